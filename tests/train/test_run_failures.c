/* Runs with failures: the run reports the failure and loses no stored state. */
#include "run_fixture.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weft/data.h"

/* ---- a loss that is not finite ---- */

static void a_loss_that_is_no_number_ends_the_run(void **state) {
    (void)state;
    words w = tiny_mlp();
    add_words(&w, WITH("train.optimizer.name=sgd", "train.optimizer.lr=1e6", "train.clip=0",
                       "train.schedule.name=constant", "checkpoint.every=1", "checkpoint.keep=1",
                       "train.optimizer.weight_decay=1"));
    record r = {.first = 0};
    ASSERT_FAILS(WEFT_E_NUMERIC, "cell '", run_with(&w, WITH(dir_word("nan")), &r));
    char expected[100];
    (void)snprintf(expected, sizeof expected, "step %lld|step %lld|loss", (long long)r.last,
                   (long long)r.last + 1);
    ASSERT_MESSAGE(expected);
    assert_note(&r, "comes|failure");
    /* keep=1, but the newest state leads to the failure, so the step before it is kept too. */
    int64_t *steps, count;
    ASSERT_OK(wefti_checkpoint_list(in_root("nan"), &steps, &count));
    assert_int_equal(count, r.last > 1 ? 2 : 1);
    wefti_checkpoint *c;
    for (int64_t i = 0; i < count; i++) {
        ASSERT_OK(wefti_checkpoint_open(in_root("nan"), steps[i], &c, NULL));
        wefti_checkpoint_close(c);
    }
    assert_int_equal(steps[count - 1], r.last);
    wefti_free(steps);
    /* With a smaller rate a new run, from the start, has only finite losses. */
    record on = {.first = 0};
    ASSERT_OK(wefti_remove_tree(in_root("nan")));
    ASSERT_OK(run_with(&w, WITH(dir_word("nan"), "train.optimizer.lr=0.1"), &on));
}

/* ---- keep ---- */

static void keeps_the_most_recent(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("keep"), "checkpoint.every=5", "checkpoint.keep=2"), &r));
    assert_int_equal(r.checkpoints, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(r.checkpoint_steps[i], 5 * (i + 1));
    int64_t newest;
    assert_int_equal(steps_in("keep", &newest), 2);
    assert_int_equal(newest, RUN_STEPS);
    assert_string_equal(r.result.checkpoint, step_path("keep", RUN_STEPS));
    /* checkpoint.resume=false does not bury them. */
    ASSERT_FAILS(WEFT_E_ARG, "step 30",
                 run_with(&w, WITH(dir_word("keep"), "checkpoint.resume=false"), &r));
    assert_int_equal(steps_in("keep", NULL), 2);
}

/* A run that was killed after its last checkpoint and before it deleted old steps. */
static void too_many_are_left(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("left"), "checkpoint.every=5", "checkpoint.keep=3"), &r));
    assert_int_equal(steps_in("left", NULL), 3);
    ASSERT_OK(run_with(&w, WITH(dir_word("left"), "checkpoint.keep=1"), &r));
    int64_t newest;
    assert_int_equal(steps_in("left", &newest), 1);
    assert_int_equal(newest, RUN_STEPS);
}

/* ---- the tokenizer's file goes while the run goes on ---- */

static void remove_tokenizer(void *context, const weft_train_step *step) {
    on_step(context, step);
    if (step->step == 2) assert_int_equal(unlink(in_root("tokenizer.json")), 0);
}

static void checkpoints_keep_the_tokenizer(void **state) {
    (void)state;
    int64_t bytes;
    char *text;
    ASSERT_OK(wefti_file_read("tests/data/tokenizer_gpt2.json", 1 << 24, &text, &bytes));
    (void)put_file("tokenizer.json", text, (size_t)bytes);
    words w = tiny_gpt2();
    add_word(&w, "data.tokenizer=%s", in_root("tokenizer.json"));
    add_words(&w, WITH(dir_word("tokens"), "checkpoint.every=5", "train.steps=10"));
    weft_job *job = job_of(&w);
    record r = {.first = 0};
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &r, .step = remove_tokenizer,
                    .checkpoint = on_checkpoint, .note = on_note, .stop = &r.stop);
    ASSERT_OK(weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    assert_int_equal(r.checkpoints, 2);
    char path[600], *kept;
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", step_path("tokens", 10));
    ASSERT_OK(wefti_file_read(path, 1 << 24, &kept, &bytes));
    assert_string_equal(kept, text);
    wefti_free(kept);
    wefti_free(text);
}

/* ---- directories that a run cannot continue ---- */

static void two_runs_on_one_directory(void **state) {
    (void)state;
    words w = tiny_gpt2();
    wefti_checkpoint_lock *lock;
    record r = {.first = 0};
    ASSERT_OK(wefti_checkpoint_lock_open(in_root("locked"), &lock));
    ASSERT_FAILS(WEFT_E_ARG, "another run (process ", run_with(&w, WITH(dir_word("locked")), &r));
    assert_int_equal(r.starts, 0);
    wefti_checkpoint_lock_close(lock);
    ASSERT_OK(run_with(&w, WITH(dir_word("locked")), &r));
}

/* The directory is removed in the middle of a run. The next checkpoint makes it the run's own
 * again. */
static void remove_directory(void *context, int64_t step, const char *path) {
    on_checkpoint(context, step, path);
    wefti_checkpoint_lock *lock;
    if (step == 5) ASSERT_OK(wefti_remove_tree(in_root("gone")));
    if (step == 10)
        ASSERT_FAILS(WEFT_E_ARG, "another run (process ",
                     wefti_checkpoint_lock_open(in_root("gone"), &lock));
}

static void a_directory_that_goes_is_locked_again(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH(dir_word("gone"), "checkpoint.every=5", "train.steps=15"));
    weft_job *job = job_of(&w);
    record r = {.first = 0};
    weft_train_events events = WEFT_STRUCT(weft_train_events, .context = &r, .step = on_step,
                                           .checkpoint = remove_directory, .note = on_note);
    ASSERT_OK(weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    int64_t newest;
    assert_int_equal(r.checkpoints, 3);
    assert_int_equal(steps_in("gone", &newest), 2);
    assert_int_equal(newest, 15);
}

/* Another run has taken the directory meanwhile: this run writes nothing there. */
static wefti_checkpoint_lock *of_another;

static void replace_directory(void *context, int64_t step, const char *path) {
    on_checkpoint(context, step, path);
    if (step != 5) return;
    ASSERT_OK(wefti_remove_tree(in_root("replaced")));
    ASSERT_OK(wefti_checkpoint_lock_open(in_root("replaced"), &of_another));
}

static void a_directory_of_another_run_is_left_alone(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH(dir_word("replaced"), "checkpoint.every=5", "train.steps=15"));
    weft_job *job = job_of(&w);
    record r = {.first = 0};
    weft_train_events events = WEFT_STRUCT(weft_train_events, .context = &r, .step = on_step,
                                           .checkpoint = replace_directory, .note = on_note);
    ASSERT_FAILS(WEFT_E_ARG, "step 15", weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    assert_note(&r, "step 10");
    assert_int_equal(steps_in("replaced", NULL), 0);
    wefti_checkpoint_lock_close(of_another);
}

/* No run would find a run that is written into a checkpoint. */
static void a_checkpoint_is_no_directory_of_a_run(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0}, none = {.first = 0};
    char lock[700], word[700];
    ASSERT_OK(run_with(&w, WITH(dir_word("inner"), "train.steps=2"), &r));
    (void)snprintf(word, sizeof word, "checkpoint.dir=%s", step_path("inner", 2));
    (void)snprintf(lock, sizeof lock, "%s/.lock", step_path("inner", 2));
    ASSERT_FAILS(WEFT_E_ARG, "checkpoint|itself", run_with(&w, WITH(word), &none));
    ASSERT_MESSAGE("checkpoint.dir: ");
    assert_int_equal(none.starts, 0);
    assert_false(wefti_exists(lock));
}

static void flip_a_byte(const char *path) {
    char *data;
    int64_t bytes;
    ASSERT_OK(wefti_file_read(path, 1 << 26, &data, &bytes));
    data[bytes - 5] ^= 16;
    ASSERT_OK(wefti_file_write(path, data, (size_t)bytes));
    wefti_free(data);
}

static void a_damaged_newest_checkpoint_is_passed_over(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record whole = {.first = 0}, rest = {.first = 0}, none = {.first = 0};
    const char *const more[] = {dir_word("damaged"), "checkpoint.every=10", NULL};
    char path[700];
    ASSERT_OK(run_with(&w, more, &whole));
    ASSERT_OK(wefti_remove_tree(step_path("damaged", 30)));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", step_path("damaged", 20));
    flip_a_byte(path);
    ASSERT_OK(run_with(&w, more, &rest));
    assert_note(&rest, "step-000000000020");
    assert_int_equal(rest.first, 11);
    assert_true(rest.losses[30] == whole.losses[30]);
    /* If no step is intact, the run does not start again over the damaged ones. */
    for (int64_t s = 10; s <= 30; s += 10) {
        (void)snprintf(path, sizeof path, "%s/model.safetensors", step_path("damaged", s));
        flip_a_byte(path);
    }
    flip_a_byte(path);
    (void)snprintf(path, sizeof path, "%s/manifest.json", step_path("damaged", 30));
    flip_a_byte(path);
    (void)snprintf(path, sizeof path, "%s/optimizer.safetensors", step_path("damaged", 20));
    if (wefti_exists(path)) flip_a_byte(path);
    weft_status status = run_with(&w, more, &none);
    assert_true(status == WEFT_E_CORRUPT || none.first == 21);
}

static void a_checkpoint_of_another_model_is_refused(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    const char *dir = dir_word("other");
    ASSERT_OK(run_with(&w, WITH(dir, "train.steps=2"), &r));
    static const struct {
        const char *word, *part;
    } cases[] = {
        {"model.hidden=32", "h.0.attn.c_attn.bias|f32[48]|f32[96]"},
        {"model.layers=3", "h.2."},
        {"model.context=16", "wpe.weight"},
        {"train.optimizer.name=lion", "train.optimizer.name"},
        {"train.optimizer.name=adafactor", "train.optimizer.name"},
        {"train.seed=5", "train.seed 1, not 5"},
        {"train.batch=3", "train.batch"},
        {"model.family=llama", "another model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        record other = {.first = 0};
        weft_status status = run_with(&w, WITH(dir, cases[i].word), &other);
        if (status >= 0 || !has_facts(weft_error_message(), cases[i].part))
            fail_msg("%s: status %d, \"%s\" does not say \"%s\"", cases[i].word, status,
                     weft_error_message(), cases[i].part);
        assert_int_equal(other.last, 0);
    }
    int64_t newest;
    assert_int_equal(steps_in("other", &newest), 1);
    assert_int_equal(newest, 2);
    ASSERT_OK(run_with(&w, WITH(dir, "train.steps=3"), &r)); /* nothing was lost */
    /* States of the same names are taken, and that is said. */
    record lamb = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir, "train.steps=4", "train.optimizer.name=lamb"), &lamb));
    assert_note(&lamb, "train.optimizer.name");
}

/* ---- memory ---- */

static void too_little_memory_is_refused_before_the_run(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    ASSERT_FAILS(WEFT_E_NOMEM, "h.0.mlp.c_fc.weight 1.0 MiB",
                 run_with(&w, WITH("model.hidden=256", "device.memory=1MiB"), &r));
    ASSERT_MESSAGE("device.memory");
    ASSERT_MESSAGE("would fit");
    ASSERT_MESSAGE("1.0 MiB");
    ASSERT_FAILS(WEFT_E_NOMEM, "fit",
                 run_with(&w, WITH("train.batch=512", "device.memory=2MiB"), &r));
    /* The largest job that fits the limit is exactly the predicted one. */
    ASSERT_OK(run_with(&w, WITH("train.steps=1", "train.batch=64"), &r));
    char word[60];
    (void)snprintf(word, sizeof word, "device.memory=%lld", (long long)(r.predicted + r.programs));
    ASSERT_OK(run_with(&w, WITH("train.steps=1", "train.batch=64", word), &r));
    (void)snprintf(word, sizeof word, "device.memory=%lld",
                   (long long)(r.predicted + r.programs - 1));
    record less = {.first = 0};
    ASSERT_FAILS(WEFT_E_NOMEM, "would fit",
                 run_with(&w, WITH("train.steps=1", "train.batch=64", word), &less));
    assert_int_equal(less.starts, 0);
}

/* ---- a full disk in the midst of a run ---- */

/* From the first checkpoint on nothing can be written, until the run has noticed that. */
static void checkpoint_then_full_disk(void *context, int64_t step, const char *path) {
    on_checkpoint(context, step, path);
    if (step == 5) wefti_fault_arm(WEFTI_FAULT_IO, 0, true, ENOSPC);
}
static void note_then_space(void *context, const char *text) {
    on_note(context, text);
    disarm_faults();
}

static void a_missed_checkpoint_does_not_end_the_run(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH(dir_word("space"), "checkpoint.every=5", "checkpoint.keep=9"));
    weft_job *job = job_of(&w);
    record r = {.first = 0};
    weft_train_events events = WEFT_STRUCT(weft_train_events, .context = &r, .step = on_step,
                                           .checkpoint = checkpoint_then_full_disk,
                                           .note = note_then_space, .stop = &r.stop);
    ASSERT_OK(weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    assert_note(&r, "step 10");
    assert_note(&r, "No space");
    assert_int_equal(r.last, RUN_STEPS);
    assert_true(wefti_exists(step_path("space", 5)));
    assert_false(wefti_exists(step_path("space", 10)));
    assert_true(wefti_exists(step_path("space", RUN_STEPS)));
}

/* ---- everything fails once ---- */

/* A run that goes on from step 1 to step 3, writing at each step, with the n-th call failing. */
typedef struct faults {
    words words;
    wefti_fault_kind kind;
    bool forever;
    int error_number;
    const char *dir;
} faults;

static weft_status run_with_fault(const faults *f, const weft_job *job, int64_t nth,
                                  int64_t *out_calls) {
    record r = {.first = 0};
    wefti_fault_arm(f->kind, nth, f->forever, f->error_number);
    weft_status status = run_job(job, &r);
    *out_calls = wefti_fault_count(f->kind);
    disarm_faults();
    bool clean = status == WEFT_OK || status == WEFT_E_IO || status == WEFT_E_NOMEM;
    const char *cause = f->kind == WEFTI_FAULT_IO ? strerror(f->error_number) : "memory";
    if (!clean || (status < 0 && !strstr(weft_error_message(), cause)))
        fail_msg("call %lld failed: status %d, \"%s\"", (long long)nth, status,
                 weft_error_message());
    return status;
}

/* Earlier committed steps are there and intact, and so is the newest. Then back to step 1 alone. */
static void assert_intact(const faults *f, weft_status status, int64_t nth) {
    wefti_checkpoint *c;
    char *note = NULL;
    weft_status open = wefti_checkpoint_open(in_root(f->dir), WEFTI_CHECKPOINT_LATEST, &c, &note);
    if (open < 0 || note)
        fail_msg("call %lld: %s", (long long)nth, note ? note : weft_error_message());
    int64_t step = wefti_checkpoint_meta_of(c)->step;
    assert_in_range(step, 1, 3);
    if (status == WEFT_OK) assert_int_equal(step, 3);
    wefti_checkpoint_close(c);
    ASSERT_OK(wefti_checkpoint_open(in_root(f->dir), 1, &c, NULL));
    wefti_checkpoint_close(c);
    for (int64_t s = 2; s <= 3; s++) ASSERT_OK(wefti_remove_tree(step_path(f->dir, s)));
}

/* `stride` 1: each call in turn. Returns how many calls a whole run makes. */
static int64_t fail_in_turn(const faults *f, int64_t stride) {
    weft_job *job = job_of(&f->words);
    int64_t calls = 0, failures = 0;
    for (int64_t nth = 0;; nth += stride) {
        weft_status status = run_with_fault(f, job, nth, &calls);
        assert_intact(f, status, nth);
        failures += status < 0;
        if (calls <= nth) { /* nothing failed any more */
            assert_int_equal(status, WEFT_OK);
            break;
        }
    }
    assert_true(failures > 5);
    weft_job_free(job);
    return calls;
}

static faults prepare_faults(const char *dir, wefti_fault_kind kind, bool forever, int error,
                             const char *const *more) {
    faults f = {tiny_gpt2(), kind, forever, error, dir};
    record r = {.first = 0};
    add_words(&f.words, more);
    add_words(&f.words, WITH(dir_word(dir), "checkpoint.every=1", "checkpoint.keep=9",
                             "train.steps=1", "train.schedule.warmup=0"));
    ASSERT_OK(run_words(&f.words, &r));
    add_words(&f.words, WITH("train.steps=3", "checkpoint.on_error=true"));
    add_word(&f.words, "checkpoint.stop_file=%s", in_root("no_file"));
    add_word(&f.words, "train.log=%s", in_root("faults.jsonl"));
    add_word(&f.words, "train.tensorboard=%s", in_root("faults.board"));
    return f;
}

static void every_io_call_fails(void **state) {
    (void)state;
    faults once = prepare_faults("io1", WEFTI_FAULT_IO, false, EIO, NULL);
    assert_true(fail_in_turn(&once, 1) > 100);
    faults full = prepare_faults("io2", WEFTI_FAULT_IO, true, ENOSPC, NULL);
    assert_true(fail_in_turn(&full, 1) > 100);
}

/* A call fails in the midst of a step whose tensors lie on a disk. What is saved afterwards, also
 * as the run ends, is what an undisturbed run has at that step; and no file is left. */
static void every_io_call_of_a_tier_fails(void **state) {
    (void)state;
    static const char rules[] = "memory.offload=[{match: \"*\", what: optimizer, to: disk}, "
                                "{match: \"*\", what: parameters, to: disk}]";
    char path[600];
    (void)snprintf(path, sizeof path, "memory.disk.path=%s", in_root("tier"));
    assert_int_equal(mkdir(in_root("tier"), 0700), 0);
    faults f = prepare_faults("io3", WEFTI_FAULT_IO, false, EIO, WITH(rules, path));
    faults clean = prepare_faults("io4", WEFTI_FAULT_IO, false, 0, NULL);
    record r = {.first = 0};
    ASSERT_OK(run_words(&clean.words, &r));
    weft_job *job = job_of(&f.words);
    int64_t calls = 0, failures = 0, nth = 0;
    do {
        const weft_status status = run_with_fault(&f, job, nth, &calls);
        for (int64_t s = 1; s <= 3; s++)
            if (wefti_exists(step_path("io3", s)))
                assert_same_checkpoint(step_path("io3", s), step_path("io4", s));
        assert_intact(&f, status, nth);
        failures += status < 0;
        nth += 7;
    } while (nth < calls + 7);
    assert_true(failures > 5);
    assert_true(rmdir(in_root("tier")) == 0);
    weft_job_free(job);
}

static void every_allocation_fails(void **state) {
    (void)state;
    faults f = prepare_faults("alloc", WEFTI_FAULT_ALLOC, false, 0, NULL);
    weft_job *job = job_of(&f.words);
    int64_t calls;
    ASSERT_OK(run_with_fault(&f, job, INT64_MAX, &calls)); /* counts */
    assert_intact(&f, WEFT_OK, calls);
    weft_job_free(job);
    const char *all = getenv("WEFT_TEST_ALL_ALLOCATIONS");
    int64_t stride = all && *all ? 1 : calls / 300 | 1;
    print_message("%lld allocations, one in %lld fails\n", (long long)calls, (long long)stride);
    assert_true(fail_in_turn(&f, stride) > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_that_is_no_number_ends_the_run),
        cmocka_unit_test(keeps_the_most_recent),
        cmocka_unit_test(too_many_are_left),
        cmocka_unit_test(checkpoints_keep_the_tokenizer),
        cmocka_unit_test(two_runs_on_one_directory),
        cmocka_unit_test(a_directory_that_goes_is_locked_again),
        cmocka_unit_test(a_directory_of_another_run_is_left_alone),
        cmocka_unit_test(a_checkpoint_is_no_directory_of_a_run),
        cmocka_unit_test(a_damaged_newest_checkpoint_is_passed_over),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused),
        cmocka_unit_test(too_little_memory_is_refused_before_the_run),
        cmocka_unit_test(a_missed_checkpoint_does_not_end_the_run),
        cmocka_unit_test(every_io_call_fails),
        cmocka_unit_test(every_io_call_of_a_tier_fails),
        cmocka_unit_test(every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
