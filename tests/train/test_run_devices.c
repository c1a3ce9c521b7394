/* Training runs over several devices: the loss curve of one device, and checkpoints that do not
 * depend on the number of devices. */
#include "run_layouts.h"

static void assert_near(const record *one, const record *many, const char *what) {
    for (int64_t s = many->first; s <= many->last; s++)
        if (!(fabs(one->losses[s] - many->losses[s]) <= 1e-5 * fabs(one->losses[s])))
            fail_msg("%s: the loss of step %lld is %.9g, on one device %.9g", what, (long long)s,
                     many->losses[s], one->losses[s]);
}

static void the_loss_curve_is_that_of_one_device(void **state) {
    (void)state;
    words one_words = job_words(12);
    add_words(&one_words, WITH("train.eval_every=6", "train.eval_batches=0"));
    record one = {.first = 0};
    ASSERT_OK(run_words(&one_words, &one));
    for (int i = 0; i < LAYOUTS; i++) {
        words w = one_words;
        record r = {.first = 0};
        add_devices(&w, &layouts[i]);
        ASSERT_OK(run_words(&w, &r));
        assert_int_equal(r.last, 12);
        assert_near(&one, &r, layouts[i].name);
        assert_true(fabs(one.validations[6] - r.validations[6]) <= 1e-5 * one.validations[6]);
        assert_int_equal(r.predicted, r.result.observed_peak_bytes);
        /* Devices share the work, and repeat a little of it. */
        if (!(r.flops > 0.99 * one.flops && r.flops < 1.5 * one.flops))
            fail_msg("%s: a step has %g FLOPs, on one device %g", layouts[i].name, r.flops,
                     one.flops);
    }
}

/* Stopped on four devices, and continued on one and on all other numbers of devices. */
static void a_run_goes_on_with_other_devices(void **state) {
    (void)state;
    words one_words = job_words(8), four_words = one_words;
    record one = {.first = 0};
    ASSERT_OK(run_words(&one_words, &one));
    add_devices(&four_words, &layouts[1]);
    for (int i = -1; i < LAYOUTS; i++) {
        record begin = {.stop_after = 4}, rest = {.first = 0};
        words w = one_words;
        if (i >= 0) add_devices(&w, &layouts[i]);
        assert_int_equal(run_with(&four_words, WITH(dir_word("moved")), &begin), WEFT_E_STOPPED);
        ASSERT_OK(run_with(&w, WITH(dir_word("moved")), &rest));
        assert_int_equal(rest.first, 5);
        assert_int_equal(rest.last, 8);
        assert_near(&one, &begin, "before");
        assert_near(&one, &rest, i < 0 ? "one device" : layouts[i].name);
        ASSERT_OK(wefti_remove_tree(in_root("moved")));
    }
}

/* A run with stages, a sharded optimizer, recomputation and microbatches, then a run without them.
 * 4 x 2 devices continue the checkpoint of 2 x 2 devices of two stages. */
static void a_pipelined_run_goes_on_without_stages(void **state) {
    (void)state;
    static const devices wide = {
        "4 x 2", 8, {"parallel.mesh={dp: 4, tp: 2}", "parallel.mode=semi", SPLITS}};
    words one_words = job_words(20), staged_words = one_words, wide_words = one_words;
    record one = {.first = 0}, begin = {.stop_after = 10}, rest = {.first = 0};
    add_devices(&staged_words, &layouts[3]);
    add_words(&staged_words, WITH("parallel.optimizer.level=2", "parallel.optimizer.threshold=0",
                                  "parallel.recompute=full", "parallel.pipeline.microbatches=4"));
    add_devices(&wide_words, &wide);
    ASSERT_OK(run_words(&one_words, &one));
    assert_int_equal(run_with(&staged_words, WITH(dir_word("staged")), &begin), WEFT_E_STOPPED);
    ASSERT_OK(run_with(&wide_words, WITH(dir_word("staged")), &rest));
    assert_int_equal(rest.first, 11);
    assert_int_equal(rest.last, 20);
    assert_near(&one, &begin, "before");
    assert_near(&one, &rest, wide.name);
    ASSERT_OK(wefti_remove_tree(in_root("staged")));
}

/* Every byte of every file but the manifest, which names the job. */
static void assert_same_files(const char *a, const char *b) {
    static const char *const names[] = {"model.safetensors", "config.json",
                                        "optimizer-00001-of-00001.safetensors"};
    for (int i = 0; i < 3; i++) {
        char path[2][800], *text[2];
        int64_t bytes[2];
        (void)snprintf(path[0], sizeof path[0], "%s/%s", a, names[i]);
        (void)snprintf(path[1], sizeof path[1], "%s/%s", b, names[i]);
        if (!wefti_exists(path[0])) {
            assert_false(wefti_exists(path[1]));
            continue;
        }
        for (int k = 0; k < 2; k++)
            ASSERT_OK(wefti_file_read(path[k], 1 << 24, &text[k], &bytes[k]));
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(text[0], text[1], (size_t)bytes[0]);
        for (int k = 0; k < 2; k++) wefti_free(text[k]);
    }
}

/* If no parameter changes, all plans give the same bits, and so do their files. Checkpoints are
 * written at every step, while the next one runs. */
static void files_do_not_tell_the_devices(void **state) {
    (void)state;
    words one_words = job_words(3);
    add_words(&one_words,
              WITH("train.optimizer.lr=0", "train.optimizer.name=sgd",
                   "train.optimizer.weight_decay=0", "train.schedule.name=constant",
                   "train.schedule.warmup=0", "checkpoint.every=1", "checkpoint.keep=10"));
    record one = {.first = 0};
    ASSERT_OK(run_with(&one_words, WITH(dir_word("whole")), &one));
    for (int i = 0; i < LAYOUTS; i++) {
        words w = one_words;
        record r = {.first = 0};
        add_devices(&w, &layouts[i]);
        ASSERT_OK(run_with(&w, WITH(dir_word("pieces")), &r));
        for (int64_t s = 1; s <= 3; s++) {
            assert_same_checkpoint(step_path("whole", s), step_path("pieces", s));
            assert_same_files(step_path("whole", s), step_path("pieces", s));
        }
        ASSERT_OK(wefti_remove_tree(in_root("pieces")));
    }
    ASSERT_OK(wefti_remove_tree(in_root("whole")));
}

/* A checkpoint that is captured while the next step runs holds the state before that step. It
 * equals the checkpoint of a run that stopped there. */
static void checkpoints_are_captured_before_they_change(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        words w = job_words(6);
        add_devices(&w, &layouts[i]);
        record whole = {.first = 0};
        ASSERT_OK(run_with(
            &w, WITH(dir_word("meanwhile"), "checkpoint.every=1", "checkpoint.keep=10"), &whole));
        for (int64_t s = 1; s < 6; s += 2) {
            record r = {.stop_after = s};
            assert_int_equal(run_with(&w, WITH(dir_word("stopped")), &r), WEFT_E_STOPPED);
            assert_same_checkpoint(step_path("meanwhile", s), step_path("stopped", s));
            ASSERT_OK(wefti_remove_tree(in_root("stopped")));
        }
        ASSERT_OK(wefti_remove_tree(in_root("meanwhile")));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loss_curve_is_that_of_one_device),
        cmocka_unit_test(a_run_goes_on_with_other_devices),
        cmocka_unit_test(a_pipelined_run_goes_on_without_stages),
        cmocka_unit_test(files_do_not_tell_the_devices),
        cmocka_unit_test(checkpoints_are_captured_before_they_change),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
