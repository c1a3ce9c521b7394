/* checkpoint.best and train.stop_after: the same step is the best one, and the run ends after the
 * same validation, on one device, on several, in processes, and after a resume. */
#include "run_kinds.h"

#include <signal.h>

enum { STEPS = 40, EVERY = 2, PATIENCE = 3 };

/* A learning rate at which the validation loss soon stops to fall. */
static words best_words(const kind *k) {
    words w = job_words(STEPS);
    add_devices(&w, &k->devices);
    add_words(&w, WITH("train.optimizer.lr=0.1", "train.schedule.name=constant",
                       "train.schedule.warmup=0", "train.eval_every=2", "checkpoint.keep=1"));
    return w;
}

static const kind *now;
static member members[MOST_RANKS];

/* The record of rank 0. stop_at: a request to stop comes in this step; 0: none. */
static record *run_kind(const kind *k, const words *w, int64_t stop_at) {
    rank_of_world ranks[MOST_RANKS];
    now = k;
    memset(members, 0, sizeof members);
    members[0].record.stop_after = stop_at;
    if (k->ranks == 1) {
        weft_job *job = job_of(w);
        ranks[0].status = run_job(job, &members[0].record);
        (void)snprintf(ranks[0].message, sizeof ranks[0].message, "%s", weft_error_message());
        weft_job_free(job);
    } else {
        run_all(w, NULL, k->ranks, members, ranks);
    }
    for (int r = 0; r < k->ranks; r++)
        if (ranks[r].status != (stop_at ? WEFT_E_STOPPED : WEFT_OK))
            fail_msg("%s, rank %d, stop at %lld: %d, %s", k->devices.name, r, (long long)stop_at,
                     ranks[r].status, ranks[r].message);
    return &members[0].record;
}

/* What the validations of a run without the keys say. */
typedef struct expected {
    int64_t best, end; /* the best step; where PATIENCE validations end the run */
    double loss;       /* of the best step */
    double margin;     /* by which a validation differs at least from the lowest before, relative */
} expected;

static expected expect(const kind *k) {
    words w = best_words(k);
    const record *r = run_kind(k, &w, 0);
    expected e = {.loss = INFINITY, .margin = 1};
    int64_t since = 0;
    for (int64_t s = EVERY; s <= STEPS && !e.end; s += EVERY) {
        const double loss = r->validations[s];
        if (isfinite(e.loss)) e.margin = fmin(e.margin, fabs(loss - e.loss) / e.loss);
        since = loss < e.loss ? 0 : since + 1;
        if (loss < e.loss) {
            e.loss = loss;
            e.best = s;
        }
        if (since == PATIENCE) e.end = s;
    }
    print_message("%s: best step %lld of %lld, margin %.2g\n", k->devices.name, (long long)e.best,
                  (long long)e.end, e.margin);
    assert_in_range(e.end, 1, STEPS - 1);
    assert_in_range(e.best, EVERY + 1, STEPS);
    return e;
}

/* Best and last are there, good, and nothing else; the last tells of the best. */
static void assert_best_and_last(const expected *e) {
    const int64_t best = e->best, last = e->end;
    int64_t *steps = NULL, count = 0, step = -1;
    wefti_checkpoint *c;
    ASSERT_OK(wefti_checkpoint_list(in_root("run"), &steps, &count));
    if (count != 2 || steps[0] != best || steps[1] != last)
        fail_msg("%s: %lld steps, %lld to %lld, not %lld and %lld", now->devices.name,
                 (long long)count, count ? (long long)steps[0] : -1,
                 count ? (long long)steps[count - 1] : -1, (long long)best, (long long)last);
    wefti_free(steps);
    ASSERT_OK(wefti_checkpoint_open(in_root("run"), best, &c, NULL));
    wefti_checkpoint_close(c);
    ASSERT_OK(wefti_checkpoint_open(in_root("run"), last, &c, NULL));
    const wefti_checkpoint_pairs *notes = &wefti_checkpoint_meta_of(c)->notes;
    const char *number = wefti_checkpoint_value(notes, "best_step"),
               *value = wefti_checkpoint_value(notes, "best_loss");
    assert_true(number && value && strtoll(number, NULL, 10) == best);
    if (strtod(value, NULL) != e->loss)
        fail_msg("%s: the best loss is %s, not %.17g", now->devices.name, value, e->loss);
    wefti_checkpoint_close(c);
    assert_int_equal(steps_in("run", &step), 2);
}

static void the_same_step_everywhere(void **state) {
    (void)state;
    const expected one = expect(&kinds[0]);
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        const expected e = expect(k);
        if (one.margin > 1e-4 && e.margin > 1e-4) { /* more than the rounding of another split */
            assert_int_equal(e.best, one.best);
            assert_int_equal(e.end, one.end);
        }
        words w = best_words(k);
        add_words(&w, WITH(dir_word("run"), "checkpoint.best=true", "train.stop_after=3",
                           k->sliced ? "checkpoint.sliced=true" : "checkpoint.sliced=false"));
        const record *r = run_kind(k, &w, 0);
        assert_int_equal(r->result.steps, e.end);
        assert_note(r, "train.stop_after: 3");
        assert_best_and_last(&e);
        /* The same command has nothing left to do. */
        r = run_kind(k, &w, 0);
        assert_int_equal(r->first, 0);
        assert_best_and_last(&e);
        ASSERT_OK(wefti_remove_tree(in_root("run")));
    }
}

static void a_resume_remembers(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        const expected e = expect(k);
        for (int64_t cut = i ? e.end - 1 : 1; cut < e.end; cut++) {
            words w = best_words(k);
            add_words(&w, WITH(dir_word("run"), "checkpoint.best=true", "train.stop_after=3",
                               k->sliced ? "checkpoint.sliced=true" : "checkpoint.sliced=false"));
            (void)run_kind(k, &w, cut);
            const record *r = run_kind(k, &w, 0);
            if (r->result.steps != e.end)
                fail_msg("%s, stopped in step %lld: ends at %lld, not %lld", k->devices.name,
                         (long long)cut, (long long)r->result.steps, (long long)e.end);
            assert_best_and_last(&e);
            ASSERT_OK(wefti_remove_tree(in_root("run")));
        }
    }
}

/* Without stop_after all steps are made, and without best only the last ones stay. */
static void each_alone(void **state) {
    (void)state;
    const expected e = expect(&kinds[0]);
    words only_best = best_words(&kinds[0]), only_stop = only_best;
    add_words(&only_best, WITH(dir_word("run"), "checkpoint.best=true"));
    assert_int_equal(run_kind(&kinds[0], &only_best, 0)->result.steps, STEPS);
    int64_t last = 0;
    assert_in_range(steps_in("run", &last), 1, 2);
    assert_int_equal(last, STEPS);
    ASSERT_OK(wefti_remove_tree(in_root("run")));
    add_words(&only_stop, WITH(dir_word("run"), "train.stop_after=3"));
    assert_int_equal(run_kind(&kinds[0], &only_stop, 0)->result.steps, e.end);
    assert_int_equal(steps_in("run", &last), 1);
    assert_int_equal(last, e.end);
}

static void needs_validations(void **state) {
    (void)state;
    record r = {.first = 0};
    words w = best_words(&kinds[0]);
    add_words(&w, WITH("train.stop_after=1", "data.validation=0"));
    assert_int_equal(run_words(&w, &r), WEFT_E_ARG);
    ASSERT_MESSAGE("train.stop_after|data.validation");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_step_everywhere), cmocka_unit_test(a_resume_remembers),
        cmocka_unit_test(each_alone), cmocka_unit_test(needs_validations)};
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
