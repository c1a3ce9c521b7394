/* Sliced checkpoints of runs over a world: they hold what whole ones hold, any layout goes on from
 * them, and lost or damaged folders are replaced by those of other ranks. */
#include "run_members.h"
#include "sanitized.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "weft/checkpoint.h"

static const devices one_device = {"one", 1, {NULL}};

/* The folder of a rank, and of its step. */
static const char *rank_path(const char *dir, int rank, int64_t step) {
    static char paths[4][700];
    static int next;
    char *p = paths[next++ & 3];
    if (step < 0)
        (void)snprintf(p, sizeof paths[0], "%s/rank_%d", in_root(dir), rank);
    else
        (void)snprintf(p, sizeof paths[0], "%s/rank_%d/step-%012lld", in_root(dir), rank,
                       (long long)step);
    return p;
}

static words sliced_words(int steps, const devices *d, const char *dir) {
    words w = job_words(steps);
    add_devices(&w, d);
    add_words(&w, WITH("checkpoint.sliced=true", "checkpoint.every=1", "checkpoint.keep=20",
                       "train.schedule.name=constant", "train.schedule.warmup=0"));
    add_word(&w, "%s", dir_word(dir));
    return w;
}

static void run_ok(const words *w, const devices *d, record *out) {
    static member members[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    memset(members, 0, sizeof members);
    run_all(w, NULL, d->count, members, ranks);
    assert_all_ok(ranks, d->count, d->name);
    if (out) *out = members[0].record;
}

static void digest_of(const char *path, char *out, size_t bytes) {
    char *text;
    ASSERT_OK(weft_checkpoint_digest(path, NULL, 1, &text));
    const char *at = strstr(text, "\"digest\"");
    assert_non_null(at);
    (void)snprintf(out, bytes, "%.40s", at);
    weft_checkpoint_text_free(text);
}

/* accept 30(a): every step of every layout: the tensors and the digest of one device's whole
 * checkpoint. */
static void slices_hold_the_whole(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words sliced = sliced_words(4, d, "sliced"), whole = sliced;
        record one = {.first = 0}, many = {.first = 0};
        add_words(&whole, WITH("checkpoint.sliced=false", dir_word("whole")));
        ASSERT_OK(run_words(&whole, &one));
        run_ok(&sliced, d, &many);
        assert_same_record(&one, &many, d->name);
        assert_int_equal(steps_in("sliced", NULL), 4);
        assert_false(wefti_exists(step_path("sliced", 4)));
        for (int64_t s = 1; s <= 4; s++) {
            char a[64], b[64];
            assert_same_checkpoint(step_path("whole", s), rank_path("sliced", d->count - 1, s));
            digest_of(step_path("whole", s), a, sizeof a);
            digest_of(rank_path("sliced", 0, s), b, sizeof b);
            assert_string_equal(a, b);
        }
        assert_same_checkpoint(in_root("whole"), in_root("sliced"));
        ASSERT_OK(wefti_remove_tree(in_root("sliced")));
        ASSERT_OK(wefti_remove_tree(in_root("whole")));
    }
}

/* accept 31(d): four ranks write, and each layout goes on, also one process, which saves whole
 * steps. */
static void any_layout_goes_on(void **state) {
    (void)state;
    for (int from = 1; from < LAYOUTS; from += 2)
        for (int to = 0; to <= LAYOUTS; to++) {
            words begin = sliced_words(3, &layouts[from], "sliced"), whole, rest, rest_whole;
            record one = {.first = 0}, many = {.first = 0};
            add_words(&begin, WITH("checkpoint.every=3"));
            whole = begin;
            add_words(&whole, WITH("checkpoint.sliced=false", dir_word("whole")));
            ASSERT_OK(run_words(&whole, &one));
            run_ok(&begin, &layouts[from], NULL);
            rest = to < LAYOUTS ? sliced_words(6, &layouts[to], "sliced")
                                : sliced_words(6, &one_device, "sliced");
            add_words(&rest, WITH("checkpoint.every=3", "checkpoint.keep=1"));
            rest_whole = rest;
            add_words(&rest_whole, WITH("checkpoint.sliced=false", dir_word("whole")));
            one = (record){.first = 0};
            ASSERT_OK(run_words(&rest_whole, &one));
            if (to < LAYOUTS)
                run_ok(&rest, &layouts[to], &many);
            else
                ASSERT_OK(run_words(&rest, &many));
            assert_int_equal(many.first, 4);
            assert_memory_equal(one.losses, many.losses, sizeof one.losses);
            assert_same_checkpoint(in_root("whole"), in_root("sliced"));
            /* the rules that keep steps apply to those of before, too */
            assert_int_equal(steps_in("sliced", NULL), 1);
            for (int r = to < LAYOUTS ? layouts[to].count : 0; r < layouts[from].count; r++)
                assert_false(wefti_exists(rank_path("sliced", r, 3)));
            ASSERT_OK(wefti_remove_tree(in_root("sliced")));
            ASSERT_OK(wefti_remove_tree(in_root("whole")));
        }
}

/* accept 33(b), 33(c): twenty steps with a checkpoint after ten. Half of the ranks lose their
 * folders; the run goes on to the bits of the undisturbed one. Without both ranks of a region it
 * does not. */
static void replicas_stand_in(void **state) {
    (void)state;
    const devices *d = &layouts[1]; /* dp 2, tp 2: ranks {0, 2} and {1, 3} hold the same */
    words undisturbed = sliced_words(20, d, "undisturbed"), w = sliced_words(10, d, "lost"), rest;
    record whole = {.first = 0}, after = {.first = 0};
    member members[MOST_RANKS] = {{.job = NULL}};
    rank_of_world ranks[MOST_RANKS];
    char *text;
    run_ok(&undisturbed, d, &whole);
    add_words(&w, WITH("checkpoint.every=10"));
    run_ok(&w, d, NULL);
    rest = w;
    add_words(&rest, WITH("train.steps=20"));
    ASSERT_OK(wefti_remove_tree(rank_path("lost", 0, -1)));
    ASSERT_OK(wefti_remove_tree(rank_path("lost", 3, -1)));
    ASSERT_OK(weft_checkpoint_verify(in_root("lost"), 0, &text));
    assert_true(has_facts(text, "good|rank 0 is lost|rank 3 is lost"));
    weft_checkpoint_text_free(text);
    run_ok(&rest, d, &after);
    assert_int_equal(after.first, 11);
    for (int64_t s = 11; s <= 20; s++)
        assert_memory_equal(&whole.losses[s], &after.losses[s], sizeof(double));
    assert_same_checkpoint(in_root("undisturbed"), in_root("lost"));
    /* step 20 has all four again; step 10 has two */
    ASSERT_OK(wefti_remove_tree(rank_path("lost", 1, -1)));
    ASSERT_OK(wefti_remove_tree(rank_path("lost", 3, -1)));
    add_words(&rest, WITH("train.steps=21"));
    run_all(&rest, NULL, d->count, members, ranks);
    for (int r = 0; r < d->count; r++)
        assert_rank_fails(&ranks[r], r, r ? WEFT_E_PEER : WEFT_E_CORRUPT,
                          "transformer.h.|lost|rank 1, rank 3");
    ASSERT_OK(wefti_remove_tree(in_root("lost")));
    ASSERT_OK(wefti_remove_tree(in_root("undisturbed")));
}

static void damage_file(const char *path, const char *name) {
    char file[900], *text;
    int64_t bytes;
    (void)snprintf(file, sizeof file, "%s/%s", path, name);
    ASSERT_OK(wefti_file_read(file, 1 << 24, &text, &bytes));
    for (int64_t i = bytes / 8; i < bytes; i += 16) text[i] ^= 4;
    ASSERT_OK(wefti_file_write(file, text, (size_t)bytes));
    wefti_free(text);
}

static void damage(const char *path, bool in_manifest) {
    damage_file(path, in_manifest ? "manifest.json" : "slices-model-00001-of-00001.safetensors");
}

/* A damaged slice or manifest is as good as a lost folder. */
static void damage_counts_as_loss(void **state) {
    (void)state;
    const devices *d = &layouts[1];
    for (int in_manifest = 0; in_manifest < 2; in_manifest++) {
        words w = sliced_words(4, d, "hurt"), rest = w;
        record before = {.first = 0}, after = {.first = 0};
        char *text;
        run_ok(&w, d, &before);
        add_words(&rest, WITH("train.steps=5"));
        damage(rank_path("hurt", 1, 4), in_manifest);
        ASSERT_OK(weft_checkpoint_verify(in_root("hurt"), 0, &text));
        assert_true(has_facts(text, in_manifest ? "good|rank 1 is lost" : "good|rank_1|damaged"));
        weft_checkpoint_text_free(text);
        run_ok(&rest, d, &after);
        assert_int_equal(after.first, 5);
        /* in both: the step before */
        ASSERT_OK(wefti_remove_tree(rank_path("hurt", 0, 5)));
        ASSERT_OK(wefti_remove_tree(rank_path("hurt", 2, 5)));
        damage(rank_path("hurt", 1, 4), !in_manifest);
        damage(rank_path("hurt", 3, 4), false);
        run_ok(&rest, d, &after);
        assert_int_equal(after.first, 4);
        assert_memory_equal(&before.losses[4], &after.losses[4], sizeof(double));
        ASSERT_OK(wefti_remove_tree(in_root("hurt")));
    }
}

/* Each rank prunes its own folder: unlike rules would delete slices of steps that others keep. */
static void ranks_that_would_prune_otherwise_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *word, *facts;
    } cases[] = {
        {"checkpoint.keep=1", "checkpoint.keep is 1 on rank 1|20 on rank 0"},
        {"checkpoint.keep_minutes=9", "checkpoint.keep_minutes is 9 on rank 1|0 on rank 0"}};
    const devices *d = &layouts[1];
    for (int i = 0; i < 2; i++) {
        words w = sliced_words(2, d, "unlike"), other = w;
        member members[MOST_RANKS] = {{.job = NULL}};
        rank_of_world ranks[MOST_RANKS];
        add_word(&other, "%s", cases[i].word);
        run_all(&w, &other, d->count, members, ranks);
        for (int r = 0; r < d->count; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, cases[i].facts);
    }
}

#ifdef WEFT_HAVE_OPENSSL
/* Encrypted slices: the bits of plain ones, also after two folders are lost; and jobs of ranks with
 * different keys. */
static void encrypted_slices_go_on(void **state) {
    (void)state;
    const devices *d = &layouts[1];
    words plain = sliced_words(6, d, "plain"), w = sliced_words(3, d, "sealed"), other;
    record one = {.first = 0}, after = {.first = 0};
    member members[MOST_RANKS] = {{.job = NULL}};
    rank_of_world ranks[MOST_RANKS];
    char path[700];
    (void)snprintf(path, sizeof path, "%s", in_root("key"));
    ASSERT_OK(weft_checkpoint_make_key(path));
    add_word(&w, "checkpoint.key=%s", path);
    run_ok(&plain, d, &one);
    run_ok(&w, d, NULL);
    other = w;
    (void)snprintf(path, sizeof path, "%s", in_root("other"));
    ASSERT_OK(weft_checkpoint_make_key(path));
    add_word(&other, "checkpoint.key=%s", path);
    run_all(&w, &other, d->count, members, ranks);
    assert_rank_fails(&ranks[1], 1, WEFT_E_MISMATCH, "checkpoint.key");
    ASSERT_OK(wefti_remove_tree(rank_path("sealed", 0, -1)));
    ASSERT_OK(wefti_remove_tree(rank_path("sealed", 3, -1)));
    add_words(&w, WITH("train.steps=6"));
    run_ok(&w, d, &after);
    assert_int_equal(after.first, 4);
    for (int64_t s = 4; s <= 6; s++)
        assert_memory_equal(&one.losses[s], &after.losses[s], sizeof(double));
    assert_same_checkpoint(in_root("plain"), in_root("sealed"));
    ASSERT_OK(wefti_remove_tree(in_root("sealed")));
    ASSERT_OK(wefti_remove_tree(in_root("plain")));
}
#endif

/* A step that some ranks have and others have not, as after a crash in the midst of the commits. */
static void a_part_of_the_ranks_is_no_step(void **state) {
    (void)state;
    for (int i = 2; i < LAYOUTS; i++) {
        const devices *d = &layouts[i];
        words w = sliced_words(4, d, "part");
        record before = {.first = 0}, after = {.first = 0};
        run_ok(&w, d, &before);
        for (int r = 1; r < d->count; r += 2) ASSERT_OK(wefti_remove_tree(rank_path("part", r, 4)));
        run_ok(&w, d, &after);
        assert_int_equal(after.first, 4);
        assert_note(&after, "skipped step 4|is lost");
        assert_memory_equal(&before.losses[4], &after.losses[4], sizeof(double));
        ASSERT_OK(wefti_remove_tree(in_root("part")));
    }
}

/* A whole step of the same number, which is damaged, does not hide the sliced one. */
static void a_sliced_step_replaces_a_whole_one(void **state) {
    (void)state;
    const devices *d = &layouts[1];
    words w = sliced_words(4, d, "both"), whole = w;
    record after = {.first = 0};
    add_words(&whole, WITH("checkpoint.sliced=false"));
    ASSERT_OK(run_words(&whole, &after));
    after = (record){.first = 0};
    damage_file(step_path("both", 4), "model.safetensors");
    run_ok(&w, d, &after);
    assert_int_equal(after.first, 4);
    assert_note(&after, "skipped step 4");
    assert_false(wefti_exists(step_path("both", 4)));
    assert_true(wefti_exists(step_path("both", 3)));
    run_ok(&w, d, &after);
    assert_int_equal(after.result.steps, 4);
    assert_int_equal(after.last, 0); /* nothing was left to do */
    ASSERT_OK(wefti_remove_tree(in_root("both")));
}

/* A step that fails, with checkpoint.on_error: the state before it. */
static void a_failed_step_keeps_the_one_before(void **state) {
    (void)state;
    const devices *d = &layouts[1];
    words w = sliced_words(40, d, "loss"), until;
    member members[MOST_RANKS] = {{.job = NULL}};
    rank_of_world ranks[MOST_RANKS];
    record r = {.first = 0};
    int64_t newest;
    add_words(&w, WITH("checkpoint.every=0", "train.optimizer.name=sgd", "train.optimizer.lr=1e6",
                       "train.clip=0", "checkpoint.on_error=true", "data.validation=0"));
    run_all(&w, NULL, d->count, members, ranks);
    for (int i = 0; i < d->count; i++) assert_rank_fails(&ranks[i], i, WEFT_E_NUMERIC, "step ");
    assert_int_equal(steps_in("loss", &newest), 1);
    assert_int_equal(newest, members[0].record.last);
    until = w;
    add_word(&until, "train.steps=%d", (int)newest);
    add_words(&until, WITH("checkpoint.sliced=false", dir_word("until")));
    ASSERT_OK(run_words(&until, &r));
    assert_same_checkpoint(in_root("until"), in_root("loss"));
    ASSERT_OK(wefti_remove_tree(in_root("loss")));
    ASSERT_OK(wefti_remove_tree(in_root("until")));
}

/* One rank is asked to stop: all save the same step, and go on from it. */
static void a_stopped_run_goes_on(void **state) {
    (void)state;
    const devices *d = &layouts[3];
    words w = sliced_words(6, d, "stopped"), whole;
    member members[MOST_RANKS] = {{.job = NULL}};
    rank_of_world ranks[MOST_RANKS];
    record one = {.first = 0}, rest = {.first = 0};
    add_words(&w, WITH("checkpoint.every=0"));
    whole = w;
    add_words(&whole, WITH("checkpoint.sliced=false", dir_word("whole")));
    ASSERT_OK(run_words(&whole, &one));
    members[0].record.stop_after = 3;
    run_all(&w, NULL, d->count, members, ranks);
    for (int r = 0; r < d->count; r++) {
        assert_rank_fails(&ranks[r], r, WEFT_E_STOPPED, "step 3");
        assert_true(wefti_exists(rank_path("stopped", r, 3)));
    }
    run_ok(&w, d, &rest);
    assert_int_equal(rest.first, 4);
    assert_same_checkpoint(in_root("whole"), in_root("stopped"));
    ASSERT_OK(wefti_remove_tree(in_root("stopped")));
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
}

/* ---- every call of the file system fails, once or for good ---- */

/* Steps 2 and 3 of a run whose regions have no replicas, with call `nth` failing. */
static weft_status go_on(const weft_job *job, int64_t nth, bool forever, int64_t *out_calls) {
    static member members[2];
    rank_of_world ranks[2];
    memset(members, 0, sizeof members);
    members[0].job = members[1].job = job;
    wefti_fault_arm(WEFTI_FAULT_IO, nth, forever, EIO);
    run_world(2, run_member, members, sizeof *members, ranks);
    *out_calls = wefti_fault_count(WEFTI_FAULT_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    weft_status status = ranks[0].status < 0 ? ranks[0].status : ranks[1].status;
    const char *message = ranks[ranks[0].status >= 0].message;
    if (status < 0 && !strstr(message, strerror(EIO)))
        fail_msg("call %lld: \"%s\" does not tell the cause", (long long)nth, message);
    if (status < 0 && ranks[0].status >= 0 && !forever)
        fail_msg("call %lld: rank 1 has failed alone: %s", (long long)nth, ranks[1].message);
    return status;
}

/* Step 1 stays as long as step 3 is not whole; then a run without faults reaches the same bits. */
static void every_io_call_fails(void **state) {
    (void)state;
    enum { STRIDE = 11 };
    const devices two = {
        "sharded",
        2,
        {"parallel.devices=2", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0"}};
    words w = sliced_words(3, &two, "io"), one = sliced_words(1, &two, "io"),
          whole = sliced_words(3, &two, "whole");
    weft_job *job = job_of(&w);
    int64_t calls, failures = 0, missed = 0;
    run_ok(&whole, &two, NULL);
    for (int forever = 0; forever < 2; forever++)
        for (int64_t nth = forever; nth == forever || nth < calls; nth += STRIDE * (1 + forever)) {
            wefti_checkpoint *c;
            ASSERT_OK(wefti_remove_tree(in_root("io")));
            run_ok(&one, &two, NULL);
            weft_status status = go_on(job, nth, forever != 0, &calls);
            failures += status < 0;
            ASSERT_OK(wefti_checkpoint_open(in_root("io"), WEFTI_CHECKPOINT_LATEST, &c, NULL));
            missed += wefti_checkpoint_meta_of(c)->step < 3;
            if (status >= 0) assert_int_equal(wefti_checkpoint_meta_of(c)->step, 3);
            for (int64_t s = 2; s <= 3 && !forever; s++)
                assert_int_equal(wefti_exists(rank_path("io", 0, s)),
                                 wefti_exists(rank_path("io", 1, s)));
            wefti_checkpoint_close(c);
            run_ok(&w, &two, NULL);
            assert_same_checkpoint(in_root("whole"), in_root("io"));
        }
    print_message("%lld runs failed, %lld had no step 3\n", (long long)failures, (long long)missed);
    assert_true(failures > 0 && missed > 0);
    weft_job_free(job);
    ASSERT_OK(wefti_remove_tree(in_root("io")));
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
}

/* ---- kill -9 ---- */

static int told; /* the child tells its steps here */

static void tell_step(void *context, const weft_train_step *s) {
    const char byte = (char)s->step;
    (void)context;
    if (write(told, &byte, 1) != 1) _exit(3);
}

static weft_status run_telling(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .step = tell_step);
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

static void train_until_killed(const words *w, const devices *d) {
    static member members[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    weft_job *job = job_of(w);
    for (int r = 0; r < d->count; r++) members[r].job = job;
    run_world(d->count, run_telling, members, sizeof *members, ranks);
    _exit(0);
}

/* Killed after some steps, while steps are on their way to the disks, again and again. The bits are
 * those of the undisturbed run, and at most one checkpoint's step is made again. */
static void killed_at_any_time(void **state) {
    (void)state;
    enum { STEPS = 12 };
    if (SANITIZED_THREAD) SKIP("the thread sanitizer does not follow a fork");
    const devices *d = &layouts[2];
    words w = sliced_words(STEPS, d, "killed"), whole = sliced_words(STEPS, d, "whole");
    add_words(&w, WITH("checkpoint.keep=1"));
    run_ok(&whole, d, NULL);
    for (int64_t newest = 0, rounds = 0; newest < STEPS; rounds++) {
        int pipe_ends[2], result;
        char step = 0;
        assert_int_equal(pipe(pipe_ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(pipe_ends[0]);
            told = pipe_ends[1];
            train_until_killed(&w, d);
        }
        close(pipe_ends[1]);
        for (int i = 0; i < 3 && read(pipe_ends[0], &step, 1) == 1; i++)
            if (i == 0) assert_in_range(step, newest + 1, newest + 2);
        (void)kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &result, 0), child);
        close(pipe_ends[0]);
        (void)steps_in("killed", &newest);
        wefti_checkpoint *c; /* the newest whole one; a partial one does not count */
        weft_status status = wefti_checkpoint_open(in_root("killed"), -1, &c, NULL);
        newest = status < 0 ? 0 : wefti_checkpoint_meta_of(c)->step;
        if (status >= 0) wefti_checkpoint_close(c);
        assert_true(status >= 0 || status == WEFT_E_NOT_FOUND);
        assert_true(newest > 0 || rounds == 0);
        assert_true(rounds < 4 * STEPS);
    }
    run_ok(&w, d, NULL);
    assert_same_checkpoint(in_root("whole"), in_root("killed"));
    for (int r = 0; r < d->count; r++) {
        assert_true(wefti_exists(rank_path("killed", r, STEPS)));
        assert_false(wefti_exists(rank_path("killed", r, STEPS - 1)));
    }
    ASSERT_OK(wefti_remove_tree(in_root("killed")));
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_hold_the_whole),
        cmocka_unit_test(any_layout_goes_on),
        cmocka_unit_test(replicas_stand_in),
        cmocka_unit_test(damage_counts_as_loss),
        cmocka_unit_test(ranks_that_would_prune_otherwise_are_refused),
#ifdef WEFT_HAVE_OPENSSL
        cmocka_unit_test(encrypted_slices_go_on),
#endif
        cmocka_unit_test(a_part_of_the_ranks_is_no_step),
        cmocka_unit_test(a_sliced_step_replaces_a_whole_one),
        cmocka_unit_test(a_failed_step_keeps_the_one_before),
        cmocka_unit_test(a_stopped_run_goes_on),
        cmocka_unit_test(every_io_call_fails),
        cmocka_unit_test(killed_at_any_time)};
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
