/* The record of a run: a resume uses its plan again, to the same bits, in one process and in a
 * world of several. Other settings, damage and tampering have their own ends. */
#include "run_layouts.h"
#include "session/world_fixture.h"

#include "base/io.h"
#include "plan/plan.h"

enum { LAST = 8, CUT = 3, RANKS = 2 };

static words base_job(void) {
    words w = tiny_gpt2();
    add_words(&w, WITH("train.batch=8", "device.threads=2", "data.validation=0"));
    add_word(&w, "train.steps=%d", LAST);
    return w;
}

static words auto_job(const char *search) {
    words w = base_job();
    add_words(&w, WITH("parallel.devices=2", "parallel.mode=auto"));
    add_word(&w, "parallel.search=%s", search);
    if (!strcmp(search, "joint")) add_words(&w, WITH("parallel.fix=pp=2 microbatches=4"));
    return w;
}

static char *record_file(const char *dir, const char *file) {
    char path[600], *text;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/record/%s", in_root(dir), file);
    ASSERT_OK(wefti_file_read(path, 1 << 24, &text, &bytes));
    return text;
}

static void replace_file(const char *dir, const char *file, const char *text) {
    char path[600];
    (void)snprintf(path, sizeof path, "%s/record/%s", in_root(dir), file);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
}

static void assert_same_losses(const record *a, const record *b, int64_t first) {
    for (int64_t s = first; s <= LAST; s++)
        if (memcmp(&a->losses[s], &b->losses[s], sizeof(double)) != 0)
            fail_msg("step %lld: loss %.17g and %.17g", (long long)s, a->losses[s], b->losses[s]);
}

/* Stops after step CUT. */
static void begin_run(const words *w, const char *dir) {
    record begin = {.stop_after = CUT};
    assert_int_equal(run_with(w, WITH(dir_word(dir)), &begin), WEFT_E_STOPPED);
}

static void clean(const char *dir) {
    ASSERT_OK(wefti_remove_tree(in_root(dir)));
}

static void a_resume_uses_the_plan_again(void **state) {
    (void)state;
    static const char *const searches[] = {"dynamic", "recursive", "joint"};
    for (int i = 0; i < 3; i++) {
        const words w = auto_job(searches[i]);
        record whole = {.first = 0}, rest = {.first = 0};
        ASSERT_OK(run_with(&w, WITH(dir_word("whole")), &whole));
        begin_run(&w, "cut");
        char *plan = record_file("cut", "plan.json"), *again;
        assert_non_null(strstr(plan, "\"mode\": \"semi\""));
        assert_non_null(strstr(plan, "\"devices\": 2"));
        if (i < 2) assert_non_null(strstr(plan, "\"match\""));
        if (i == 2) assert_non_null(strstr(plan, "\"stages\": 2"));
        ASSERT_OK(run_with(&w, WITH(dir_word("cut")), &rest));
        assert_int_equal(rest.first, CUT + 1);
        assert_note(&rest, "record/plan.json");
        assert_same_losses(&whole, &rest, CUT + 1);
        assert_same_checkpoint(in_root("whole"), in_root("cut"));
        again = record_file("cut", "plan.json");
        assert_string_equal(plan, again);
        wefti_free(plan);
        wefti_free(again);
        clean("whole");
        clean("cut");
    }
}

/* The recorded plan counts, not what a search would find: here a plan by hand takes its place. */
static void no_search_takes_part(void **state) {
    (void)state;
    const words w = auto_job("dynamic");
    words by_hand = base_job();
    add_words(&by_hand, WITH("parallel.devices=2", "parallel.optimizer.level=3"));
    record rest = {.first = 0}, other = {.first = 0};
    begin_run(&w, "cut");
    ASSERT_OK(run_with(&by_hand, WITH(dir_word("by_hand")), &other));
    char *found = record_file("cut", "plan.json"), *plan = record_file("by_hand", "plan.json");
    assert_string_not_equal(found, plan);
    replace_file("cut", "plan.json", plan);
    ASSERT_OK(run_with(&w, WITH(dir_word("cut")), &rest));
    assert_int_equal(rest.predicted, other.predicted);
    wefti_free(found);
    wefti_free(plan);
    clean("cut");
    clean("by_hand");
}

static void other_settings_are_planned_anew(void **state) {
    (void)state;
    /* another search, other constraints, another budget, another limit of memory */
    const words jobs[][2] = {{auto_job("dynamic"), auto_job("recursive")},
                             {auto_job("joint"), auto_job("joint")},
                             {auto_job("joint"), auto_job("joint")},
                             {auto_job("joint"), auto_job("joint")}};
    static const char *const more[] = {NULL, "parallel.fix=pp=1 level=1", "parallel.evaluations=3",
                                       "device.memory=64MiB"};
    for (int i = 0; i < 4; i++) {
        words other = jobs[i][1];
        record rest = {.first = 0}, fresh = {.first = 0};
        if (more[i]) add_words(&other, WITH(more[i]));
        begin_run(&jobs[i][0], "cut");
        ASSERT_OK(run_with(&other, WITH(dir_word("fresh")), &fresh));
        ASSERT_OK(run_with(&other, WITH(dir_word("cut")), &rest));
        assert_int_equal(rest.first, CUT + 1);
        assert_note(&rest, "not used");
        char *a = record_file("cut", "plan.json"), *b = record_file("fresh", "plan.json");
        assert_string_equal(a, b);
        wefti_free(a);
        wefti_free(b);
        clean("cut");
        clean("fresh");
    }
}

static void a_damaged_record_is_refused(void **state) {
    (void)state;
    const words w = auto_job("dynamic");
    static const char *const broken[] = {"", "{", "{\"weft_plan\": 1, \"devices\": 3}",
                                         "{\"version\": 9, \"settings\": \"1\"}",
                                         "{\"version\": 1}"};
    begin_run(&w, "cut");
    char *plan = record_file("cut", "plan.json"), *run = record_file("cut", "run.json");
    for (int i = 0; i < 5; i++) {
        record rest = {.first = 0};
        const char *file = i < 3 ? "plan.json" : "run.json";
        replace_file("cut", "plan.json", plan);
        replace_file("cut", "run.json", run);
        replace_file("cut", file, broken[i]);
        assert_true(run_with(&w, WITH(dir_word("cut")), &rest) < 0);
        assert_non_null(strstr(weft_error_message(), file));
        assert_non_null(strstr(weft_error_message(), "record"));
    }
    char path[600];
    (void)snprintf(path, sizeof path, "%s/record", in_root("cut"));
    ASSERT_OK(wefti_remove_tree(path));
    record rest = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("cut")), &rest));
    char *again = record_file("cut", "plan.json");
    assert_string_equal(plan, again);
    wefti_free(again);
    wefti_free(plan);
    wefti_free(run);
    clean("cut");
}

/* Links that were measured again decide nothing in a run that has begun. */
static void links_of_the_begin_count(void **state) {
    (void)state;
    static const char form[] =
        "{\"version\": 1, \"communicator\": \"host\", \"ranks\": 4, \"hosts\": 2, \"links\": "
        "{\"same_host\": {\"latency_seconds\": %s, \"bytes_per_second\": 1e10}, "
        "\"between_hosts\": {\"latency_seconds\": %s, \"bytes_per_second\": %s}}}";
    char slow[500], fast[500];
    (void)snprintf(slow, sizeof slow, form, "1e-6", "1e-3", "1e6");
    (void)snprintf(fast, sizeof fast, form, "1e-6", "1e-6", "1e10");
    words w = base_job();
    add_words(&w, WITH("parallel.devices=4", "parallel.mode=semi", "parallel.mesh={dp: 2, tp: 2}"));
    add_word(&w, "machine=%s", put_file("links.json", slow, strlen(slow)));
    record whole = {.first = 0}, rest = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("whole")), &whole));
    begin_run(&w, "cut");
    (void)put_file("links.json", fast, strlen(fast));
    ASSERT_OK(run_with(&w, WITH(dir_word("cut")), &rest));
    assert_int_equal(rest.predicted, whole.predicted);
    assert_same_losses(&whole, &rest, CUT + 1);
    assert_same_checkpoint(in_root("whole"), in_root("cut"));
    clean("whole");
    clean("cut");
}

/* ---- worlds ---- */

typedef struct member {
    const weft_job *job;
    record record;
} member;

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .start = on_start, .step = on_step,
                    .note = on_note, .stop = &m->record.stop);
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

static void run_all(const words *base, const char *dir, member *members, rank_of_world *ranks) {
    words w = *base;
    add_word(&w, "%s", dir_word(dir));
    weft_job *job = job_of(&w);
    for (int r = 0; r < RANKS; r++) members[r].job = job;
    run_world(RANKS, run_member, members, sizeof *members, ranks);
    weft_job_free(job);
}

static void check_world(const char *search) {
    const words w = auto_job(search);
    record whole = {.first = 0};
    member begin[RANKS] = {{.job = NULL}}, rest[RANKS] = {{.job = NULL}};
    rank_of_world ranks[RANKS];
    ASSERT_OK(run_with(&w, WITH(dir_word("whole")), &whole));
    begin[0].record.stop_after = CUT;
    run_all(&w, "cut", begin, ranks);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].status, WEFT_E_STOPPED);
    char *one = record_file("whole", "plan.json"), *many = record_file("cut", "plan.json");
    assert_string_equal(one, many);
    run_all(&w, "cut", rest, ranks);
    assert_all_ok(ranks, RANKS, "the rest");
    assert_int_equal(rest[0].record.first, CUT + 1);
    assert_note(&rest[0].record, "record/plan.json");
    assert_int_equal(rest[1].record.notes, 0);
    assert_same_losses(&whole, &rest[0].record, CUT + 1);
    assert_same_checkpoint(in_root("whole"), in_root("cut"));
    wefti_free(one);
    wefti_free(many);
    clean("whole");
    clean("cut");
}

static void a_world_has_the_plan_of_rank_0(void **state) {
    (void)state;
    check_world("dynamic");
    check_world("joint");
}

/* A damaged record, which only rank 0 reads, ends all ranks. */
static void a_world_ends_together(void **state) {
    (void)state;
    const words w = auto_job("dynamic");
    member members[RANKS] = {{.job = NULL}};
    rank_of_world ranks[RANKS];
    begin_run(&w, "cut");
    replace_file("cut", "plan.json", "{");
    run_all(&w, "cut", members, ranks);
    for (int r = 0; r < RANKS; r++) {
        assert_true(ranks[r].status < 0);
        assert_non_null(strstr(ranks[r].message, "plan.json"));
    }
    clean("cut");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resume_uses_the_plan_again),
        cmocka_unit_test(no_search_takes_part),
        cmocka_unit_test(other_settings_are_planned_anew),
        cmocka_unit_test(a_damaged_record_is_refused),
        cmocka_unit_test(links_of_the_begin_count),
        cmocka_unit_test(a_world_has_the_plan_of_rank_0),
        cmocka_unit_test(a_world_ends_together),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
