/* Training runs of which processes die. The others keep theirs, a new one takes the place of each,
 * and the run ends with the bits of an undisturbed one. Threads act as ranks. Ranks die at random
 * places of random steps, also new ones. WEFT_TEST_SEED sets the seed, WEFT_CASES how many deaths
 * each layout sees. */
#include "run_layouts.h"

#include "base/philox.h"
#include "mending_world.h"
#include "sanitized.h"

enum { JOB_STEPS = 8 };

typedef struct mended_rank {
    mending_seat *seat;
    const weft_job *job;
    record record;
    int reported[MAX_STEPS + 1], validated[MAX_STEPS + 1];
    int64_t asked; /* of the first process, until its end */
    int64_t die_at_step, die_at_validation, die_at_checkpoint; /* of rank 0, in callbacks; 0: not */
    weft_status status;
    char message[2000];
} mended_rank;

static void count_step(void *context, const weft_train_step *s) {
    mended_rank *x = context;
    x->reported[s->step]++;
    on_step(&x->record, s);
    if (s->step == x->die_at_step && mending_die(x->seat->job, x->seat->rank)) x->die_at_step = 0;
}
static void count_validation(void *context, const weft_train_validation *v) {
    mended_rank *x = context;
    x->validated[v->step]++;
    on_validation(&x->record, v);
    if (v->step == x->die_at_validation && mending_die(x->seat->job, x->seat->rank))
        x->die_at_validation = 0;
}
static void see_checkpoint(void *context, int64_t step, const char *path) {
    mended_rank *x = context;
    (void)path;
    if (step == x->die_at_checkpoint && mending_die(x->seat->job, x->seat->rank))
        x->die_at_checkpoint = 0;
}
static void see_note(void *context, const char *text) {
    on_note(&((mended_rank *)context)->record, text);
}

static weft_status run_process(mended_rank *x) {
    const weft_train_events events = WEFT_STRUCT(
        weft_train_events, .context = x, .step = count_step, .validation = count_validation,
        .checkpoint = see_checkpoint, .note = see_note, .stop = &x->record.stop);
    return weft_train_run_in(x->seat->world, x->job, &events, &x->record.result);
}

static void *run_rank(void *context) {
    mended_rank *x = context;
    x->status = run_process(x);
    x->asked = x->seat->asked;
    while (x->status == WEFT_E_LOST && x->seat->dead) {
        x->status = mending_join(x->seat);
        if (x->status >= 0) x->status = run_process(x);
    }
    if (x->status < 0) (void)snprintf(x->message, sizeof x->message, "%s", weft_error_message());
    return NULL;
}

/* ranks [size]: `die_...` are set; deaths: of the seats. */
static void run_mended(const words *w, int32_t size, const mending_death *deaths, int count,
                       mended_rank *ranks, mending_job *job) {
    pthread_t threads[MOST_RANKS];
    weft_job *parsed = job_of(w);
    mending_open(job, size);
    for (int i = 0; i < count; i++) job->deaths[i] = deaths[i];
    job->death_count = count;
    for (int32_t r = 0; r < size; r++) {
        ranks[r].seat = &job->seats[r];
        ranks[r].job = parsed;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < size; r++) pthread_join(threads[r], NULL);
    mending_close(job);
    weft_job_free(parsed);
    for (int32_t r = 0; r < size; r++)
        if (ranks[r].status < 0) fail_msg("rank %d: %s", r, ranks[r].message);
}

/* ---- layouts ---- */

typedef struct mended_layout {
    const char *name;
    int32_t size;
    bool image, disk; /* disk: no rank has a replica */
    const char *words[9];
} mended_layout;

static const mended_layout mended[] = {
    {"dp", 2, false, false, {"parallel.devices=2"}},
    {"dp, no clip", 3, false, false, {"parallel.devices=3", "train.batch=6", "train.clip=0"}},
    {"dp, accumulate", 2, false, false, {"parallel.devices=2", "train.accumulate=2"}},
    {"dp x tp", 4, false, false, {"parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi", SPLITS}},
    {"dp x pp",
     4,
     false,
     false,
     {"parallel.mesh={dp: 2}", "parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2",
      "train.clip=0"}},
    {"tp", 2, false, true, {"parallel.mesh={tp: 2}", "parallel.mode=semi", SPLITS}},
    {"pp", 2, false, true, {"parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2"}},
    {"batch norm", 2, true, false, {"parallel.devices=2"}},
    {"level 1",
     2,
     false,
     true,
     {"parallel.devices=2", "parallel.optimizer.level=1", "parallel.optimizer.threshold=0"}},
    {"level 2",
     2,
     false,
     true,
     {"parallel.devices=2", "parallel.optimizer.level=2", "parallel.optimizer.threshold=0"}},
    {"level 3",
     2,
     false,
     true,
     {"parallel.devices=2", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0",
      "train.clip=0"}},
    {"level 1, replicas",
     4,
     false,
     false,
     {"parallel.devices=4", "parallel.optimizer.level=1", "parallel.optimizer.threshold=0",
      "parallel.optimizer.shard_size=2"}},
};
enum { MENDED = sizeof mended / sizeof *mended };

static words words_of(const mended_layout *l, const char *dir) {
    words w = l->image ? tiny_resnet() : job_words(JOB_STEPS);
    add_word(&w, "train.steps=%d", JOB_STEPS);
    add_words(&w, WITH("recovery.enabled=true", "train.eval_every=2", "checkpoint.every=2",
                       "checkpoint.keep=3", "device.threads=2"));
    for (int i = 0; i < 9 && l->words[i]; i++) add_word(&w, "%s", l->words[i]);
    add_word(&w, "%s", dir_word(dir));
    return w;
}

/* Losses, validations and the last checkpoint; `once`: each report came once. */
static void assert_same_end(const mended_rank *calm, const mended_rank *x, const char *what,
                            bool once) {
    for (int64_t s = 1; s <= JOB_STEPS; s++) {
        if (memcmp(&calm->record.losses[s], &x->record.losses[s], sizeof(double)))
            fail_msg("%s: the loss of step %lld is %.17g, not %.17g", what, (long long)s,
                     x->record.losses[s], calm->record.losses[s]);
        if (!isnan(calm->record.norms[s]) &&
            memcmp(&calm->record.norms[s], &x->record.norms[s], sizeof(double)))
            fail_msg("%s: the norm of step %lld is %.17g, not %.17g", what, (long long)s,
                     x->record.norms[s], calm->record.norms[s]);
        if (once && (x->reported[s] != 1 || x->validated[s] != calm->validated[s]))
            fail_msg("%s: step %lld has %d lines and %d validations", what, (long long)s,
                     x->reported[s], x->validated[s]);
    }
    /* A rank 0 that dies may take a report with it that nobody else makes. */
    for (int64_t s = 1; s <= JOB_STEPS; s++)
        if ((once || x->validated[s]) &&
            memcmp(&calm->record.validations[s], &x->record.validations[s], sizeof(double)))
            fail_msg("%s: the validation of step %lld is %.17g, not %.17g", what, (long long)s,
                     x->record.validations[s], calm->record.validations[s]);
    assert_same_checkpoint(step_path("calm", JOB_STEPS), step_path("mended", JOB_STEPS));
}

static uint64_t cases_of(uint64_t otherwise) {
    const char *text = getenv("WEFT_CASES");
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t below(uint64_t seed, uint64_t number, uint64_t limit) {
    return wefti_philox_u32(seed, 77, number) % limit;
}

static void runs_end_as_undisturbed_ones(void **state) {
    (void)state;
    static mended_rank calm[MOST_RANKS], x[MOST_RANKS];
    static mending_job job;
    const uint64_t seed = test_seed(20261127), cases = cases_of(SANITIZED ? 2 : 4);
    int mends = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < MENDED; i++) {
        const mended_layout *l = &mended[i];
        words w = words_of(l, "calm");
        memset(calm, 0, sizeof calm);
        run_mended(&w, l->size, NULL, 0, calm, &job);
        assert_int_equal(job.mends, 0);
        for (uint64_t k = 0; k < cases; k++) {
            char what[100];
            const uint64_t n = (i << 20) + k * 8;
            mending_death deaths[2] = {{.rank = (int32_t)below(seed, n, (uint64_t)l->size)}};
            deaths[0].at = 1 + (int64_t)below(seed, n + 1, (uint64_t)calm[deaths[0].rank].asked);
            deaths[1] = (mending_death){.rank = (int32_t)below(seed, n + 2, (uint64_t)l->size),
                                        .at = 1 + (int64_t)below(seed, n + 3, 200)};
            deaths[1].of_new = deaths[1].rank == deaths[0].rank;
            if (k % 4 == 3) deaths[1].at = deaths[1].of_new ? IN_SETUP : IN_WHOLE;
            (void)snprintf(what, sizeof what, "%s, case %d: rank %d dies", l->name, (int)k,
                           deaths[0].rank);
            w = words_of(l, "mended");
            memset(x, 0, sizeof x);
            run_mended(&w, l->size, deaths, k % 2 ? 2 : 1, x, &job);
            if ((job.from_disk > 0) != (l->disk && job.mends > 0))
                fail_msg("%s: %d mends, %d of them from the disk", what, job.mends, job.from_disk);
            mends += job.mends;
            bool of_first = false;
            for (int d = 0; d < job.death_count; d++)
                of_first |= job.deaths[d].done && job.deaths[d].rank == 0;
            assert_same_end(&calm[0], &x[0], what, !l->disk && !of_first);
            ASSERT_OK(wefti_remove_tree(in_root("mended")));
        }
        ASSERT_OK(wefti_remove_tree(in_root("calm")));
    }
    print_message("%d worlds were mended\n", mends);
    assert_true(mends >= (int)(MENDED * cases));
}

/* Every line of the log is there once, wherever rank 0 dies. */
static void logs_have_each_line_once(void **state) {
    (void)state;
    static mended_rank calm[MOST_RANKS], x[MOST_RANKS];
    static mending_job job;
    const mended_layout *l = &mended[0];
    words w = words_of(l, "calm");
    memset(calm, 0, sizeof calm);
    run_mended(&w, l->size, NULL, 0, calm, &job);
    for (int k = 0; k < 5; k++) {
        char log[600], *text;
        int64_t bytes;
        int steps[MAX_STEPS + 1] = {0}, validations[MAX_STEPS + 1] = {0};
        const mending_death late = {.rank = 0, .at = calm[0].asked * (k + 3) / 9};
        memset(x, 0, sizeof x);
        x[0].die_at_step = k == 0 ? 3 : k == 1 ? 4 : 0;
        x[0].die_at_validation = k == 2 ? 4 : 0;
        x[0].die_at_checkpoint = k == 3 ? 4 : 0;
        (void)snprintf(log, sizeof log, "%s", in_root("log"));
        w = words_of(l, "mended");
        add_word(&w, "train.log=%s", log);
        run_mended(&w, l->size, &late, k == 4, x, &job);
        if (job.mends != 1) fail_msg("case %d: %d mends", k, job.mends);
        assert_int_equal(job.from_disk, 0);
        assert_same_checkpoint(step_path("calm", JOB_STEPS), step_path("mended", JOB_STEPS));
        ASSERT_OK(wefti_file_read(log, 1 << 20, &text, &bytes));
        for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
            int step = 0;
            *end = 0;
            assert_int_equal(sscanf(line, "{\"step\": %d", &step), 1);
            assert_in_range(step, 1, JOB_STEPS);
            (strstr(line, "validation_loss") ? validations : steps)[step]++;
        }
        for (int s = 1; s <= JOB_STEPS; s++)
            if (steps[s] != 1 || validations[s] != calm[0].validated[s])
                fail_msg("case %d: step %d has %d lines, and %d of validations", k, s, steps[s],
                         validations[s]);
        wefti_free(text);
        ASSERT_OK(wefti_remove_tree(in_root("mended")));
        ASSERT_OK(wefti_remove_tree(in_root("log")));
    }
    ASSERT_OK(wefti_remove_tree(in_root("calm")));
}

/* Without a directory, all begin again. */
static void without_checkpoints_a_run_begins_again(void **state) {
    (void)state;
    static mended_rank calm[MOST_RANKS], x[MOST_RANKS];
    static mending_job job;
    words w = words_of(&mended[6], "calm");
    add_word(&w, "checkpoint.dir=");
    memset(calm, 0, sizeof calm);
    memset(x, 0, sizeof x);
    run_mended(&w, 2, NULL, 0, calm, &job);
    const mending_death death = {.rank = 1, .at = calm[1].asked * 3 / 4};
    run_mended(&w, 2, &death, 1, x, &job);
    assert_int_equal(job.from_disk, 1);
    assert_int_equal(x[0].reported[1], 2);
    assert_int_equal(x[0].reported[JOB_STEPS], 1);
    assert_memory_equal(calm[0].record.losses, x[0].record.losses, sizeof calm[0].record.losses);
}

/* The same losses, lines and bits as without recovery. */
static void recovery_changes_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < MENDED; i++) {
        words w = words_of(&mended[i], "with");
        record with = {.first = 0}, without = {.first = 0};
        add_word(&w, "train.log=%s", in_root("log"));
        ASSERT_OK(run_words(&w, &with));
        ASSERT_OK(run_with(&w, WITH("recovery.enabled=false", dir_word("without")), &without));
        assert_memory_equal(with.losses, without.losses, sizeof with.losses);
        assert_memory_equal(with.validations, without.validations, sizeof with.validations);
        assert_same_checkpoint(step_path("with", JOB_STEPS), step_path("without", JOB_STEPS));
        ASSERT_OK(wefti_remove_tree(in_root("with")));
        ASSERT_OK(wefti_remove_tree(in_root("without")));
        ASSERT_OK(wefti_remove_tree(in_root("log")));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recovery_changes_no_bit),
        cmocka_unit_test(runs_end_as_undisturbed_ones),
        cmocka_unit_test(logs_have_each_line_once),
        cmocka_unit_test(without_checkpoints_a_run_begins_again),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
