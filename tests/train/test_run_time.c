/* Where the time of a run goes: the parts add up to the whole, and each appears when it is
 * provoked. No test judges how long anything takes: a pause is a lower bound, and nothing else is.
 */
#include "run_layouts.h"

#include "base/fault.h"
#include "base/io.h"
#include "base/json/json.h"
#include "exec/exec.h"

static const double pause_s = 0.25;

/* All seconds that steps have told, by part, and those of the run. */
typedef struct told {
    record r;
    double first[WEFT_TRAIN_PARTS], all[WEFT_TRAIN_PARTS];
    int64_t resident;
} told;

static void hear_step(void *context, const weft_train_step *s) {
    told *x = context;
    on_step(&x->r, s);
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) {
        assert_true(s->part_seconds[p] >= 0);
        if (s->step == x->r.first) x->first[p] = s->part_seconds[p];
        x->all[p] += s->part_seconds[p];
    }
    x->resident = s->resident_bytes;
}

static void assert_adds_up(const weft_train_result *r) {
    double sum = 0;
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) {
        assert_true(r->part_seconds[p] >= 0);
        sum += r->part_seconds[p];
    }
    if (!(fabs(sum - r->process_seconds) < 1e-9 * (1 + sum)))
        fail_msg("the parts are %g s of %g s", sum, r->process_seconds);
    assert_true(r->process_seconds > r->seconds);
    assert_true(r->process_seconds > r->first_step_seconds);
}

static void hear(const char *const *more, told *x) {
    words w = tiny_gpt2();
    add_words(&w, more);
    weft_job *job = job_of(&w);
    const weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = x, .step = hear_step, .stop = &x->r.stop);
    *x = (told){.resident = 0};
    ASSERT_OK(weft_train_run(job, &events, &x->r.result));
    weft_job_free(job);
    assert_adds_up(&x->r.result);
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) /* a step tells of time that the run had */
        assert_true(x->all[p] <= x->r.result.part_seconds[p] + 1e-9);
}

static void parts_add_up(void **state) {
    (void)state;
    told x;
    hear(WITH("train.steps=6", "train.eval_every=2"), &x);
    const double *of = x.r.result.part_seconds;
    assert_true(of[WEFT_TRAIN_PART_START] > 0 && of[WEFT_TRAIN_PART_OPENING] > 0);
    assert_true(of[WEFT_TRAIN_PART_BUILDING] > 0 && of[WEFT_TRAIN_PART_STEPS] > 0);
    assert_true(of[WEFT_TRAIN_PART_VALIDATION] > 0 && of[WEFT_TRAIN_PART_DATA] > 0);
    assert_true(x.first[WEFT_TRAIN_PART_BUILDING] > 0 && x.first[WEFT_TRAIN_PART_START] > 0);
    /* One device, no directory, no world: */
    assert_true(of[WEFT_TRAIN_PART_WAITING] == 0 && of[WEFT_TRAIN_PART_JOINING] == 0);
    assert_true(of[WEFT_TRAIN_PART_CHECKPOINTS] == 0 && of[WEFT_TRAIN_PART_LOADING] == 0);
    assert_true(of[WEFT_TRAIN_PART_RECOVERY] == 0);
    assert_true(x.resident > 0);
}

static void each_part_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++)
        for (int q = 0; q < p; q++)
            assert_string_not_equal(weft_train_part_text((weft_train_part)p),
                                    weft_train_part_text((weft_train_part)q));
    assert_string_equal(weft_train_part_text(WEFT_TRAIN_PARTS), "?");
}

static void slow_data_are_seen(void **state) {
    (void)state;
    told x;
    wefti_fault_slow(WEFTI_SLOW_DATA, (int64_t)(pause_s * 1e9));
    hear(WITH("train.steps=3", "data.validation=0"), &x);
    wefti_fault_slow(WEFTI_SLOW_DATA, 0);
    /* The reader sleeps three times. Two steps of this model hide some of it, on a busy machine. */
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_DATA] > pause_s / 5);
}

static void others_are_waited_for(void **state) {
    (void)state;
    told x;
    hear(WITH("train.steps=4", "parallel.devices=2"), &x);
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_WAITING] > 0);
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_STEPS] > 0);
}

static void a_slow_disk_is_seen(void **state) {
    (void)state;
    told x;
    wefti_fault_slow(WEFTI_SLOW_DISK, (int64_t)(pause_s * 1e9 / 50));
    hear(WITH("train.steps=4", "checkpoint.every=1", dir_word("slow")), &x);
    wefti_fault_slow(WEFTI_SLOW_DISK, 0);
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_CHECKPOINTS] > pause_s / 50);
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_SAVING] > pause_s / 50);
    hear(WITH("train.steps=5", dir_word("slow")), &x); /* goes on */
    assert_true(x.r.result.part_seconds[WEFT_TRAIN_PART_LOADING] > 0);
}

/* ---- in files ---- */

static const wefti_json *parse(wefti_arena *arena, const char *text, int64_t bytes) {
    static const wefti_json_limits limits = {16, 100, 1 << 20};
    const wefti_json *root;
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &root));
    return root;
}

static double real(const wefti_json *object, const char *key) {
    const wefti_json *v = wefti_json_get(object, key);
    if (!v) fail_msg("no member %s", key);
    return v->kind == WEFTI_JSON_INT ? (double)v->as.integer : v->as.real;
}

static void lines_of_steps_have_them(void **state) {
    (void)state;
    char log[300], *text;
    int64_t bytes;
    wefti_arena *arena;
    told x;
    (void)snprintf(log, sizeof log, "train.log=%s", in_root("time.jsonl"));
    hear(WITH("train.steps=5", log, "machine=h100-80g"), &x);
    ASSERT_OK(wefti_file_read(in_root("time.jsonl"), 1 << 20, &text, &bytes));
    ASSERT_OK(wefti_arena_create(&arena));
    double steps = 0;
    int lines = 0;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        const wefti_json *object = parse(arena, line, end - line), *time;
        if (wefti_json_get(object, "validation_loss")) continue;
        ASSERT_OK(wefti_json_object(object, "time", &time));
        steps += real(time, "steps");
        assert_true(real(object, "memory_bytes") > 0);
        const double mfu = real(object, "mfu"); /* a tiny step on a processor is no H100's work */
        assert_true(mfu > 0 && mfu < 1);
        if (lines++ == 0) assert_true(real(time, "building") > 0 && real(time, "start") > 0);
    }
    assert_int_equal(lines, 5);
    assert_true(fabs(steps - x.all[WEFT_TRAIN_PART_STEPS]) <= 1e-6 * steps);
    wefti_arena_destroy(arena);
    wefti_free(text);
}

/* The events of the run follow each other without gaps, from the start of the process on. */
static void a_trace_has_them(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("train.steps=4", "parallel.devices=2", "train.eval_every=2",
                       "checkpoint.every=2", dir_word("traced")));
    weft_job *job = job_of(&w);
    weft_train_result result;
    const weft_train_events events = WEFT_STRUCT(weft_train_events, .trace = in_root("trace.json"));
    char *text;
    int64_t bytes;
    wefti_arena *arena;
    const wefti_json *all;
    int seen[WEFT_TRAIN_PARTS] = {0};
    double end = 0;
    ASSERT_OK(weft_train_run(job, &events, &result));
    weft_job_free(job);
    ASSERT_OK(wefti_file_read(in_root("trace.json"), 1 << 26, &text, &bytes));
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_array(parse(arena, text, bytes), "traceEvents", &all));
    WEFTI_JSON_EACH(event, all) {
        const char *phase, *category;
        ASSERT_OK(wefti_json_text(event, "ph", &phase));
        if (strcmp(phase, "X") != 0 || real(event, "tid") != WEFTI_TRACK_RUN) continue;
        ASSERT_OK(wefti_json_text(event, "cat", &category));
        if (!(fabs(real(event, "ts") - end) < 0.01))
            fail_msg("%s begins at %g us, after an event until %g us", category, real(event, "ts"),
                     end);
        end = real(event, "ts") + real(event, "dur");
        for (int p = 0; p < WEFT_TRAIN_PARTS; p++)
            seen[p] += !strcmp(category, weft_train_part_text((weft_train_part)p));
    }
    assert_int_equal(seen[WEFT_TRAIN_PART_START], 1);
    assert_int_equal(seen[WEFT_TRAIN_PART_STEPS], 4);
    assert_int_equal(seen[WEFT_TRAIN_PART_DATA], 4);
    assert_int_equal(seen[WEFT_TRAIN_PART_VALIDATION], 2);
    assert_true(seen[WEFT_TRAIN_PART_CHECKPOINTS] >= 1 && seen[WEFT_TRAIN_PART_SAVING] == 1);
    wefti_arena_destroy(arena);
    wefti_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_add_up),        cmocka_unit_test(each_part_has_a_name_of_its_own),
        cmocka_unit_test(slow_data_are_seen),  cmocka_unit_test(others_are_waited_for),
        cmocka_unit_test(a_slow_disk_is_seen), cmocka_unit_test(lines_of_steps_have_them),
        cmocka_unit_test(a_trace_has_them),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
