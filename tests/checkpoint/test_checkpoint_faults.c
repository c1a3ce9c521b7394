/* Every I/O call and every allocation of writing, reading, pruning and locking fails in turn, once
 * and for good. The process is also killed in the middle. Committed steps stay; steps that were not
 * committed leave nothing. */
#include "fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "checkpoint/tensor_set.h"
#include "weft/checkpoint.h"

typedef struct fault_case {
    const char *name;
    wefti_fault_kind kind;
    bool forever;
    int error_number;
} fault_case;

static const fault_case cases[] = {
    {"EIO once", WEFTI_FAULT_IO, false, EIO},
    {"EIO from then on", WEFTI_FAULT_IO, true, EIO},
    {"ENOSPC once", WEFTI_FAULT_IO, false, ENOSPC},
    {"ENOSPC from then on", WEFTI_FAULT_IO, true, ENOSPC},
    {"no memory once", WEFTI_FAULT_ALLOC, false, 0},
    {"no memory from then on", WEFTI_FAULT_ALLOC, true, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Runs `act` with the n-th call failing, for n = 0, 1, ... until it makes no more than n calls.
 * `check` sees each result with the faults disarmed. Returns the number of calls. */
typedef weft_status action(const fixture *f);
typedef void checker(const fixture *f, const fault_case *c, weft_status status);

static int64_t fail_in_turn(const fixture *f, const fault_case *c, action *act, checker *check) {
    for (int64_t nth = 0;; nth++) {
        wefti_fault_arm(c->kind, nth, c->forever, c->error_number);
        weft_status status = act(f);
        int64_t calls = wefti_fault_count(c->kind);
        wefti_fault_arm(c->kind, -1, false, 0);
        bool clean = status >= 0 || status == WEFT_E_NOMEM || status == WEFT_E_IO;
        if (!clean) fail_msg("%s, call %lld: %s", c->name, (long long)nth, weft_error_message());
        if (status < 0) assert_true(weft_error_message()[0]);
        check(f, c, status);
        if (calls <= nth) {
            assert_true(status >= 0);
            return calls;
        }
    }
}

/* ---- writing a new step ---- */

static weft_status write_second(const fixture *f) {
    model m;
    model_make(&m, 2);
    wefti_checkpoint_meta meta = meta_of(2);
    wefti_checkpoint_options options = options_of(40);
    options.keep = 2;
    char *note = NULL;
    weft_status status =
        wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, &options, &note);
    wefti_free(note);
    return status;
}

/* After the cleaning at the next start, the newest step is 1, or 2 if its writing was far enough.
 * Each step is whole. */
static void check_second(const fixture *f, const fault_case *c, weft_status status) {
    if (!c->forever) assert_int_equal(wefti_exists(path_in(f->dir, ".tmp-step-000000000002")), 0);
    wefti_checkpoint_lock *lock = NULL;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    assert_tidy(f->dir);
    wefti_checkpoint *open = NULL;
    char *note = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &open, &note));
    assert_null(note);
    int64_t step = wefti_checkpoint_meta_of(open)->step;
    assert_true(step == 2 || (step == 1 && status < 0));
    assert_model(open, (uint64_t)step);
    wefti_checkpoint_close(open);
    ASSERT_OK(wefti_remove_tree(path_in(f->dir, "step-000000000002")));
    if (!wefti_exists(path_in(f->dir, "step-000000000000"))) ASSERT_OK(write_step(f->dir, 0, 0));
    wefti_checkpoint_lock_close(lock);
}

static void writing_fails(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 0, 0)); /* pruned when 2 is in place */
    ASSERT_OK(write_step(f->dir, 1, 0));
    for (int i = 0; i < CASES; i++)
        assert_true(fail_in_turn(f, &cases[i], write_second, check_second) > 30);
}

/* ---- replacing a step ---- */

static weft_status replace_first(const fixture *f) {
    model m;
    model_make(&m, 77);
    wefti_checkpoint_meta meta = meta_of(1);
    return wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL);
}

static void check_replaced(const fixture *f, const fault_case *c, weft_status status) {
    (void)c;
    wefti_checkpoint_lock *lock = NULL;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    assert_tidy(f->dir);
    wefti_checkpoint *open = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, 1, &open, NULL));
    model m;
    model_make(&m, 1);
    const wefti_checkpoint_entry *e =
        wefti_checkpoint_find(open, WEFTI_CHECKPOINT_MODEL, m.tensors[0].name);
    bool old = !memcmp(BYTES_OF(e), m.tensors[0].data, (size_t)e->bytes);
    assert_model(open, old ? 1 : 77);
    assert_true(!old || status < 0);
    wefti_checkpoint_close(open);
    if (!old) ASSERT_OK(write_step(f->dir, 1, 0));
    wefti_checkpoint_lock_close(lock);
}

static void replacing_fails(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    for (int i = 0; i < CASES; i++)
        assert_true(fail_in_turn(f, &cases[i], replace_first, check_replaced) > 30);
}

/* ---- reading ---- */

/* A failure to read is an error, never a reason to go back to an older step. */
static weft_status open_newest(const fixture *f) {
    wefti_checkpoint *c = NULL;
    char *note = NULL;
    WEFT_TRY(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
    if (note) fail_msg("%s", note);
    assert_int_equal(wefti_checkpoint_meta_of(c)->step, 2);
    model m;
    model_make(&m, 2);
    weft_status status =
        wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, m.tensors, MODEL_TENSORS);
    wefti_checkpoint_close(c);
    return status;
}

/* A newest step that is damaged, so that a note has to be written. */
static weft_status open_with_note(const fixture *f) {
    wefti_checkpoint *c = NULL;
    char *note = NULL;
    WEFT_TRY(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
    assert_non_null(note);
    wefti_free(note);
    wefti_checkpoint_close(c);
    return WEFT_OK;
}

static weft_status list_steps(const fixture *f) {
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_checkpoint_list(f->dir, &steps, &count));
    assert_int_equal(count, 2);
    wefti_free(steps);
    return WEFT_OK;
}

static weft_status open_model(const fixture *f) {
    wefti_tensor_set *set = NULL;
    WEFT_TRY(wefti_tensor_set_open(path_in(f->dir, "step-000000000002"), &set));
    wefti_tensor_set_close(set);
    return WEFT_OK;
}

static weft_status describe(const fixture *f) {
    char *text = NULL;
    WEFT_TRY(weft_checkpoint_describe(f->dir, 1, &text));
    weft_checkpoint_text_free(text);
    WEFT_TRY(weft_checkpoint_verify(f->dir, 1, &text));
    weft_checkpoint_text_free(text);
    return WEFT_OK;
}

static weft_status lock(const fixture *f) {
    wefti_checkpoint_lock *held = NULL;
    WEFT_TRY(wefti_checkpoint_lock_open(f->dir, &held));
    wefti_checkpoint_lock_close(held);
    return WEFT_OK;
}

static void check_nothing(const fixture *f, const fault_case *c, weft_status status) {
    (void)f, (void)c, (void)status;
}

static void reading_fails(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 40));
    action *const acts[] = {open_newest, list_steps, open_model, describe, lock};
    for (int i = 0; i < CASES; i++)
        for (size_t k = 0; k < sizeof acts / sizeof *acts; k++)
            assert_true(fail_in_turn(f, &cases[i], acts[k], check_nothing) > 3);
    put_file(path_in(f->dir, "step-000000000002/manifest.json"), "{}", 2);
    for (int i = 0; i < CASES; i++)
        assert_true(fail_in_turn(f, &cases[i], open_with_note, check_nothing) > 3);
}

/* ---- pruning ---- */

static weft_status prune(const fixture *f) {
    return wefti_checkpoint_prune(f->dir, 1);
}

static void check_pruned(const fixture *f, const fault_case *c, weft_status status) {
    (void)c, (void)status;
    wefti_checkpoint *open = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &open, NULL));
    assert_model(open, 2);
    wefti_checkpoint_close(open);
    ASSERT_OK(lock(f));
    assert_tidy(f->dir);
    if (!wefti_exists(path_in(f->dir, "step-000000000001"))) ASSERT_OK(write_step(f->dir, 1, 0));
}

static void pruning_fails(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 0));
    for (int i = 0; i < CASES; i++)
        assert_true(fail_in_turn(f, &cases[i], prune, check_pruned) > 3);
}

/* ---- kill -9 ---- */

enum { KILLS = 60 };
static uint64_t random_seed;

/* Write steps from `first` on and tell each one that is committed, until killed. */
static void write_until_killed(const fixture *f, int64_t first, int told) {
    for (int64_t step = first;; step++) {
        model m;
        model_make(&m, (uint64_t)step);
        wefti_checkpoint_meta meta = meta_of(step);
        wefti_checkpoint_options options = options_of(40);
        options.keep = 2;
        if (wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, &options, NULL) < 0)
            _exit(1);
        if (write(told, &step, sizeof step) != sizeof step) _exit(1);
    }
}

/* accept 30(d) */
static void killed_in_the_middle(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    int64_t newest = 1;
    for (uint64_t round = 0; round < KILLS; round++) {
        int told[2];
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) write_until_killed(f, newest + 1, told[1]);
        close(told[1]);
        usleep(wefti_philox_u32(random_seed, 0, round) % 8000);
        kill(child, SIGKILL);
        int how = 0;
        waitpid(child, &how, 0);
        assert_true(WIFSIGNALED(how));
        int64_t committed = newest, step;
        while (read(told[0], &step, sizeof step) == sizeof step) committed = step;
        close(told[0]);
        wefti_checkpoint *c = NULL;
        char *note = NULL;
        ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
        assert_null(note); /* nothing half written is ever visible */
        newest = wefti_checkpoint_meta_of(c)->step;
        assert_true(newest == committed || newest == committed + 1);
        assert_model(c, (uint64_t)newest);
        wefti_checkpoint_close(c);
        ASSERT_OK(lock(f));
        assert_tidy(f->dir);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void) {
    random_seed = test_seed(3);
    const struct CMUnitTest tests[] = {TEST(writing_fails), TEST(replacing_fails),
                                       TEST(reading_fails), TEST(pruning_fails),
                                       TEST(killed_in_the_middle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
