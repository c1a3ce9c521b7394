/* Writing while the tensors change: the checkpoint holds the values from the time when writing
 * began. weft-test: threads */
#include "fixture.h"

#include <errno.h>

enum { TENSORS = 40, ELEMENTS = 60000 };

typedef struct big_model {
    float *values[TENSORS];
    char names[TENSORS][16];
    wefti_checkpoint_tensor tensors[TENSORS];
} big_model;

static void fill(float *values, int tensor, int version) {
    for (int i = 0; i < ELEMENTS; i++) values[i] = (float)(tensor * 1000 + version) + (float)i;
}

static void big_make(big_model *m) {
    for (int t = 0; t < TENSORS; t++) {
        m->values[t] = malloc(ELEMENTS * sizeof(float));
        assert_non_null(m->values[t]);
        fill(m->values[t], t, 0);
        snprintf(m->names[t], sizeof m->names[t], "p%d", t);
        m->tensors[t] = (wefti_checkpoint_tensor){.name = m->names[t],
                                                  .role = t % 3 ? WEFTI_CHECKPOINT_OPTIMIZER
                                                                : WEFTI_CHECKPOINT_MODEL,
                                                  .desc = {WEFT_F32, 1, {ELEMENTS}},
                                                  .data = m->values[t]};
    }
}

static void big_free(big_model *m) {
    for (int t = 0; t < TENSORS; t++) free(m->values[t]);
}

static void assert_version(const char *dir, int64_t step, const big_model *m, int version) {
    wefti_checkpoint *c = NULL;
    ASSERT_OK(wefti_checkpoint_open(dir, step, &c, NULL));
    float *expected = malloc(ELEMENTS * sizeof(float));
    for (int t = 0; t < TENSORS; t++) {
        const wefti_checkpoint_entry *e = wefti_checkpoint_find(c, m->tensors[t].role, m->names[t]);
        assert_non_null(e);
        fill(expected, t, version);
        assert_memory_equal(BYTES_OF(e), expected, ELEMENTS * sizeof(float));
    }
    free(expected);
    wefti_checkpoint_close(c);
}

/* Update in the order of capture, against it, and each tensor as late as its turn comes. */
static void updates_during_writing(void **state) {
    const fixture *f = *state;
    big_model m;
    big_make(&m);
    for (int version = 0; version < 6; version++) {
        wefti_checkpoint_meta meta = meta_of(version);
        wefti_checkpoint_options options = {.shard_bytes = 1 << 20, .nice = version % 2 ? 19 : 0};
        wefti_checkpoint_job *job = NULL;
        ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, m.tensors, TENSORS, &options, &job));
        for (int i = 0; i < TENSORS; i++) {
            int t = version % 3 == 1 ? TENSORS - 1 - i : i;
            wefti_checkpoint_wait_tensor(job, t);
            fill(m.values[t], t, version + 1);
        }
        weft_status status = wefti_checkpoint_poll(job);
        assert_true(status == WEFT_PENDING || status == WEFT_OK);
        assert_true(wefti_checkpoint_waited_ns(job) >= 0);
        ASSERT_OK(wefti_checkpoint_finish(job, NULL));
        assert_version(f->dir, version, &m, version);
    }
    big_free(&m);
}

/* A failed job makes nobody wait, gives its reason at every query, and leaves no files. */
static void failed_job(void **state) {
    const fixture *f = *state;
    big_model m;
    big_make(&m);
    wefti_checkpoint_meta meta = meta_of(1);
    ASSERT_OK(wefti_dir_make(f->dir));
    for (int64_t nth = 4; nth <= 12; nth += 2) {
        wefti_checkpoint_job *job = NULL;
        wefti_fault_arm(WEFTI_FAULT_IO, nth, false, ENOSPC);
        ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, m.tensors, TENSORS, NULL, &job));
        for (int t = 0; t < TENSORS; t++) wefti_checkpoint_wait_tensor(job, t);
        wefti_checkpoint_wait_all(job);
        weft_status status;
        while ((status = wefti_checkpoint_poll(job)) == WEFT_PENDING) usleep(1000);
        assert_int_equal(status, WEFT_E_IO);
        ASSERT_MESSAGE("No space");
        assert_int_equal(wefti_checkpoint_poll(job), WEFT_E_IO);
        wefti_error_clear();
        ASSERT_STATUS(WEFT_E_IO, wefti_checkpoint_finish(job, NULL));
        ASSERT_MESSAGE("No space");
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_tidy(f->dir);
        int64_t *steps = NULL, count = 0;
        ASSERT_OK(wefti_checkpoint_list(f->dir, &steps, &count));
        assert_int_equal(count, 0);
    }
    big_free(&m);
}

static void cancelled_job(void **state) {
    const fixture *f = *state;
    big_model m;
    big_make(&m);
    wefti_checkpoint_meta meta = meta_of(1);
    wefti_checkpoint_job *job = NULL;
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, m.tensors, TENSORS, NULL, NULL));
    for (int i = 0; i < 10; i++) {
        meta = meta_of(2 + i);
        ASSERT_OK(wefti_checkpoint_begin(f->dir, &meta, m.tensors, TENSORS, NULL, &job));
        for (int t = 0; t < i; t++) wefti_checkpoint_wait_tensor(job, t);
        wefti_checkpoint_cancel(job);
        assert_tidy(f->dir);
        assert_version(f->dir, 1, &m, 0);
    }
    big_free(&m);
}

/* A failure after the commit does not undo the commit: it is reported as a note. */
static void pruning_note(void **state) {
    const fixture *f = *state;
    big_model m;
    big_make(&m);
    wefti_checkpoint_meta meta = meta_of(1);
    ASSERT_OK(wefti_dir_make(path_in(f->dir, "latest"))); /* cannot be replaced by a file */
    char *note = NULL;
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, m.tensors, TENSORS, NULL, &note));
    assert_non_null(note);
    assert_non_null(strstr(note, "step 1"));
    wefti_free(note);
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, m.tensors, TENSORS, NULL, NULL));
    assert_version(f->dir, 1, &m, 0);
    big_free(&m);
}

static void no_job(void **state) {
    (void)state;
    wefti_checkpoint_wait_tensor(NULL, 0);
    wefti_checkpoint_wait_all(NULL);
    wefti_checkpoint_cancel(NULL);
    assert_int_equal(wefti_checkpoint_waited_ns(NULL), 0);
    ASSERT_OK(wefti_checkpoint_poll(NULL));
    char *note = "x";
    ASSERT_OK(wefti_checkpoint_finish(NULL, &note));
    assert_null(note);
    wefti_checkpoint_close(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(updates_during_writing), TEST(failed_job),
                                       TEST(cancelled_job), TEST(pruning_note),
                                       cmocka_unit_test(no_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
