/* When a run saves and when it ends: by the clock, after failures, and by a file that asks for it. */
#include "run_layouts.h"
#include "session/world_fixture.h"

#include <time.h>

/* ---- worlds ---- */

typedef struct member {
    weft_job *job;
    record record;
} member;

static weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events = {.context = &m->record,
                                .start = on_start,
                                .step = on_step,
                                .checkpoint = on_checkpoint,
                                .note = on_note,
                                .stop = &m->record.stop};
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

/* The job of rank r is `w` and the word more[r] (NULL: none). */
static void run_each(const words *w, const char *const *more, int count, member *members,
                     rank_of_world *ranks) {
    for (int r = 0; r < count; r++) {
        words own = *w;
        if (more && more[r]) add_word(&own, "%s", more[r]);
        members[r].job = job_of(&own);
    }
    run_world(count, run_member, members, sizeof *members, ranks);
    for (int r = 0; r < count; r++) weft_job_free(members[r].job);
}

static void remove_run(const char *dir) {
    ASSERT_OK(wefti_remove_tree(in_root(dir)));
}

/* ---- checkpoint.seconds ---- */

/* So few seconds that every step is late, and so many that none is. */
static void steps_by_the_clock(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record often = {.first = 0}, never = {.first = 0};
    add_words(&w, WITH("train.steps=6", "checkpoint.keep=9"));
    ASSERT_OK(run_with(&w, WITH(dir_word("often"), "checkpoint.seconds=1e-9"), &often));
    assert_int_equal(often.checkpoints, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(often.checkpoint_steps[i], i + 1);
    ASSERT_OK(run_with(&w, WITH(dir_word("never"), "checkpoint.seconds=1e9"), &never));
    assert_int_equal(never.checkpoints, 1);
    assert_int_equal(never.checkpoint_steps[0], 6);
    assert_same_checkpoint(step_path("often", 6), step_path("never", 6));
    /* The step that a run goes on from is not written again. */
    record rest = {.first = 0};
    ASSERT_OK(run_with(
        &w, WITH(dir_word("never"), "train.steps=8", "checkpoint.seconds=1e-9"), &rest));
    assert_int_equal(rest.first, 7);
    assert_int_equal(rest.checkpoints, 2);
    assert_int_equal(rest.checkpoint_steps[0], 7);
}

/* Rank 0's clock counts for all ranks, also where a rank gathers for another one. */
static void all_ranks_save_the_same_step(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        for (int apart = 0; apart < 2; apart++) {
            const devices *d = &layouts[i];
            words w = job_words(5);
            static member members[MOST_RANKS];
            rank_of_world ranks[MOST_RANKS];
            const char *more[MOST_RANKS] = {NULL};
            memset(members, 0, sizeof members);
            add_devices(&w, d);
            add_words(&w, WITH(dir_word("clock"), "checkpoint.seconds=1e-9", "checkpoint.keep=9"));
            if (apart) more[1] = dir_word("other");
            run_each(&w, more, d->count, members, ranks);
            assert_all_ok(ranks, d->count, d->name);
            assert_int_equal(members[0].record.checkpoints, 5);
            for (int64_t s = 1; s <= 5; s++) {
                assert_int_equal(members[0].record.checkpoint_steps[s - 1], s);
                ASSERT_OK(wefti_checkpoint_verify(step_path("clock", s)));
            }
            remove_run("clock");
        }
}

static void ranks_with_other_rules_are_refused(void **state) {
    (void)state;
    words w = job_words(2);
    static member members[2];
    rank_of_world ranks[2];
    const char *more[2] = {"checkpoint.seconds=5", "checkpoint.seconds=6"};
    add_devices(&w, &layouts[0]);
    add_word(&w, "%s", dir_word("rules"));
    run_each(&w, more, 2, members, ranks);
    for (int r = 0; r < 2; r++)
        assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, "checkpoint.seconds");
}

/* ---- checkpoint.keep_minutes ---- */

/* All steps of a test lie within one minute: the first stays beside the newest. */
static void the_first_of_a_minute_stays(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    add_words(&w, WITH(dir_word("minutes"), "checkpoint.every=1", "checkpoint.keep=2",
                       "checkpoint.keep_minutes=1000000", "train.steps=7"));
    time_t before = time(NULL);
    ASSERT_OK(run_words(&w, &r));
    int64_t *steps, count;
    ASSERT_OK(wefti_checkpoint_list(in_root("minutes"), &steps, &count));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], 1);
    assert_int_equal(steps[1], 6);
    assert_int_equal(steps[2], 7);
    wefti_free(steps);
    wefti_checkpoint *c;
    ASSERT_OK(wefti_checkpoint_open(in_root("minutes"), 1, &c, NULL));
    const char *text =
        wefti_checkpoint_value(&wefti_checkpoint_meta_of(c)->notes, WEFTI_CHECKPOINT_TIME);
    assert_non_null(text);
    assert_in_range(strtoll(text, NULL, 10), before, time(NULL));
    wefti_checkpoint_close(c);
    /* Another run goes on and keeps by the same rule. */
    ASSERT_OK(run_with(&w, WITH("train.steps=9"), &r));
    ASSERT_OK(wefti_checkpoint_list(in_root("minutes"), &steps, &count));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], 1);
    wefti_free(steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_by_the_clock),
        cmocka_unit_test(all_ranks_save_the_same_step),
        cmocka_unit_test(ranks_with_other_rules_are_refused),
        cmocka_unit_test(the_first_of_a_minute_stays),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
