/* The parts of a run: learning rates, optimizers, the meaning of train.batch, validation,
 * metrics. */
#include "run_fixture.h"

#include "interop/pretrained.h"
#include "train/loop/loop.h"

/* ---- learning rates ---- */

static void assert_rates(const char *const *more, const double *expected, int count) {
    words w = tiny_gpt2();
    add_words(&w, WITH("train.optimizer.lr=2", "train.schedule.warmup=2"));
    add_word(&w, "train.steps=%d", count);
    add_words(&w, more);
    weft_job *job = job_of(&w);
    for (int s = 0; s < count; s++) {
        double rate = wefti_learning_rate(job, s);
        if (fabs(rate - expected[s]) > 1e-12)
            fail_msg("%s, step %d: %.12g, expected %.12g", more[0], s, rate, expected[s]);
    }
    weft_job_free(job);
}

static void schedules_by_hand(void **state) {
    (void)state;
    assert_rates(WITH("train.schedule.name=constant"), (double[]){1, 2, 2, 2, 2}, 5);
    assert_rates(WITH("train.schedule.name=linear", "train.schedule.final=0.25"),
                 (double[]){1, 2, 2, 1.5, 1, 0.5}, 6);
    assert_rates(WITH("train.schedule.name=cosine", "train.schedule.final=0.5"),
                 (double[]){1, 2, 2, 1.5 + 0.5 * 0.70710678118654752, 1.5,
                            1.5 - 0.5 * 0.70710678118654752, 1},
                 7);
    assert_rates(
        WITH("train.schedule.name=step", "train.schedule.every=2", "train.schedule.factor=0.5"),
        (double[]){1, 2, 2, 2, 1, 1, 0.5, 0.5}, 8);
    assert_rates(WITH("train.schedule.name=linear", "train.schedule.warmup=4"),
                 (double[]){0.5, 1, 1.5, 2}, 4);
    assert_rates(WITH("train.schedule.name=cosine", "train.schedule.warmup=0"), (double[]){0.2}, 1);
}

/* ---- optimizers ---- */

static void every_optimizer_and_schedule_learns(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double lr;
    } rules[] = {{"sgd", 0.5},    {"momentum", 0.1},   {"nesterov", 0.1},
                 {"adam", 0.01},  {"adamw", 0.01},     {"lamb", 0.05},
                 {"lion", 0.002}, {"adafactor", 0.05}, {"adagrad", 0.05}};
    static const char *const schedules[] = {"constant", "linear", "cosine", "step"};
    assert_int_equal(sizeof rules / sizeof *rules, WEFT_OPTIMIZERS);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (size_t clip = 0; clip < 2;
             clip++) { /* the update inside of the backward pass, and after it */
            words w = tiny_gpt2();
            add_word(&w, "train.optimizer.name=%s", rules[i].name);
            add_word(&w, "train.optimizer.lr=%g", rules[i].lr);
            add_word(&w, "train.schedule.name=%s", schedules[(i + clip) % 4]);
            add_word(&w, "train.clip=%zu", clip);
            record r = {.first = 0};
            ASSERT_OK(run_words(&w, &r));
            double late = (r.losses[28] + r.losses[29] + r.losses[30]) / 3;
            if (!(late < 0.9 * r.losses[1]))
                fail_msg("%s, clip %zu: loss from %g to %g", rules[i].name, clip, r.losses[1],
                         late);
            assert_true(isnan(r.norms[5]) == (clip == 0));
            assert_true(r.rates[1] > 0);
            assert_int_equal(r.predicted, r.result.observed_peak_bytes);
            assert_int_equal(r.predicted, r.result.predicted_peak_bytes);
        }
}

/* Clipping with a bound that is never reached changes nothing but the order of the sums. */
static void clipping_scales_the_gradient(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("train.optimizer.name=sgd", "train.optimizer.lr=0.1", "train.steps=2",
                       "train.schedule.name=constant"));
    record loose = {.first = 0}, none = {.first = 0}, tight = {.first = 0}, slow = {.first = 0};
    char clip[40], lr[40];
    ASSERT_OK(run_with(&w, WITH("train.clip=0"), &none));
    ASSERT_OK(run_with(&w, WITH("train.clip=1e6"), &loose));
    assert_true(fabs(none.losses[2] - loose.losses[2]) < 1e-5);
    /* SGD with the gradient at half of its norm is SGD at half of the rate. */
    (void)snprintf(clip, sizeof clip, "train.clip=%.17g", loose.norms[1] / 2);
    (void)snprintf(lr, sizeof lr, "train.optimizer.lr=%g", 0.05);
    ASSERT_OK(run_with(&w, WITH(clip), &tight));
    ASSERT_OK(run_with(&w, WITH("train.clip=0", lr), &slow));
    assert_true(fabs(tight.losses[2] - slow.losses[2]) < 1e-5);
    assert_true(fabs(tight.losses[2] - none.losses[2]) > 1e-4);
}

/* ---- the batch ---- */

static void assert_same_losses(const words *w, const char *const *parts, const record *whole) {
    record r = {.first = 0};
    ASSERT_OK(run_with(w, parts, &r));
    for (int s = 1; s <= RUN_STEPS; s++)
        if (fabs(r.losses[s] - whole->losses[s]) > 2e-5)
            fail_msg("%s, step %d: %.9g, in one piece %.9g", parts[0], s, r.losses[s],
                     whole->losses[s]);
    if (fabs(r.result.validation_loss - whole->result.validation_loss) > 2e-5) /* same samples */
        fail_msg("%s: validation %.9g, in one piece %.9g", parts[0], r.result.validation_loss,
                 whole->result.validation_loss);
}

/* train.batch is the number of samples of an update, however they are computed. The dropout of a
 * sample is the same, and all masked tokens count alike. The losses differ by rounding only. The
 * test avoids Adam, because its division amplifies rounding. */
static void check_batch(const char *family) {
    words w = tiny_gpt2();
    add_word(&w, "model.family=%s", family);
    add_words(&w, WITH("model.dropout=0.2", "train.optimizer.name=momentum",
                       "train.optimizer.lr=0.05", "train.batch=8", "train.eval_batches=1"));
    record whole = {.first = 0};
    ASSERT_OK(run_with(&w, WITH("train.clip=0"), &whole));
    assert_same_losses(&w, WITH("train.accumulate=1", "train.clip=1000"), &whole);
    assert_same_losses(&w, WITH("train.accumulate=2", "train.clip=1000"), &whole);
    assert_same_losses(&w, WITH("train.accumulate=4", "train.clip=1000"), &whole);
    assert_same_losses(&w, WITH("train.accumulate=8", "train.clip=1000"), &whole);
    assert_same_losses(&w, WITH("parallel.copies=2", "train.clip=0"), &whole);
    assert_same_losses(&w,
                       WITH("parallel.pipeline.microbatches=4", "parallel.pipeline.stages=2",
                            "parallel.devices=2", "train.clip=0"),
                       &whole);
    assert_same_losses(
        &w,
        WITH("parallel.devices=2", "parallel.mode=data", "train.accumulate=2", "train.clip=1000"),
        &whole);
}

static void batch_is_global(void **state) {
    (void)state;
    check_batch("gpt2");
    check_batch("bert");
}

/* ---- validation ---- */

/* The mean over samples, one by one, of a model read back from the checkpoint. */
static double loss_by_hand(const char *directory, int64_t *out_samples) {
    weft_model_config config = {.family = WEFT_FAMILIES};
    ASSERT_OK(wefti_pretrained_config(directory, &config));
    weft_graph *graph;
    weft_session *session;
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    ASSERT_OK(weft_model_build(&config, WEFT_USE_EVAL, 1, 0, WEFT_F32, &graph));
    ASSERT_OK(weft_session_create(graph, &o, &session));
    ASSERT_OK(wefti_pretrained_load(session, &config, directory));
    weft_data_options d = WEFT_STRUCT(weft_data_options, .format = "text", .path = in_root("text"),
                                      .validation_fraction = 0.1, .tokenizer = "bytes",
                                      .context = config.context, .vocab = config.vocab);
    weft_data *data;
    ASSERT_OK(weft_data_open(&d, &data));
    *out_samples = weft_data_samples(data, WEFT_DATA_VALIDATION);
    double sum = 0;
    for (int64_t i = 0; i < *out_samples; i++) {
        int32_t input[64], target[64];
        double loss;
        size_t bytes = (size_t)config.context * 4;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_VALIDATION, i, input, target));
        ASSERT_OK(weft_session_feed(session, 0, "tokens", input, bytes));
        ASSERT_OK(weft_session_feed(session, 0, "targets", target, bytes));
        ASSERT_OK(weft_session_forward(session, 0, &loss));
        sum += loss;
    }
    weft_data_close(data);
    weft_session_destroy(session);
    weft_graph_destroy(graph);
    return sum / (double)*out_samples;
}

static void validation_is_the_mean_over_samples(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_words(&w, WITH("model.dropout=0.3", "train.eval_every=10", "train.eval_batches=0",
                       "train.batch=8", "train.accumulate=2", "checkpoint.every=10",
                       "checkpoint.keep=9"));
    record r = {.first = 0};
    ASSERT_OK(run_with(&w, WITH(dir_word("valid")), &r));
    assert_int_equal(r.validated, 3);
    for (int64_t s = 10; s <= RUN_STEPS; s += 10) {
        int64_t samples;
        double expected = loss_by_hand(step_path("valid", s), &samples);
        assert_true(samples % 4 != 0); /* the last batch is not full */
        if (fabs(expected - r.validations[s]) > 1e-5)
            fail_msg("step %lld: validation %.9g, by hand %.9g", (long long)s, r.validations[s],
                     expected);
    }
    assert_true(r.validations[30] < r.validations[10]);
    assert_true(r.result.validation_loss == r.validations[30]);
    assert_true(isnan(r.result.accuracy));
}

static void classifiers_report_accuracy(void **state) {
    (void)state;
    words w = tiny_mlp();
    add_words(&w, WITH("train.steps=60", "train.eval_batches=0", "train.optimizer.lr=0.01"));
    record r = {.first = 0};
    ASSERT_OK(run_words(&w, &r));
    assert_true(r.result.accuracy > 0.9);
}

static void no_validation_data(void **state) {
    (void)state;
    words w = tiny_gpt2();
    record r = {.first = 0};
    ASSERT_OK(run_with(&w, WITH("data.validation=0", "train.eval_every=5"), &r));
    assert_int_equal(r.validated, 0);
    assert_true(isnan(r.result.validation_loss));
}

/* A path may have as many bytes as the system lets it have. */
static void long_directories_are_told_whole(void **state) {
    (void)state;
    char dir[1200], word[1300], want[1300];
    words w = tiny_gpt2();
    const char *list[MAX_WORDS + 2];
    int count = 0;
    for (; count < w.count; count++) list[count] = w.text[count];
    (void)snprintf(dir, sizeof dir, "%s/%0200d/%0200d/%0200d", in_root("long"), 1, 2, 3);
    (void)snprintf(word, sizeof word, "checkpoint.dir=%s", dir);
    (void)snprintf(want, sizeof want, "%s/step-000000000001", dir);
    list[count++] = "train.steps=1";
    list[count++] = word;
    weft_job *job;
    ASSERT_OK(weft_job_load(NULL, list, count, &job));
    record r = {.first = 0};
    ASSERT_OK(run_job(job, &r));
    assert_string_equal(r.result.checkpoint, want);
    assert_true(wefti_is_dir(r.result.checkpoint));
    weft_job_free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_by_hand),
        cmocka_unit_test(every_optimizer_and_schedule_learns),
        cmocka_unit_test(clipping_scales_the_gradient),
        cmocka_unit_test(batch_is_global),
        cmocka_unit_test(validation_is_the_mean_over_samples),
        cmocka_unit_test(classifiers_report_accuracy),
        cmocka_unit_test(no_validation_data),
        cmocka_unit_test(long_directories_are_told_whole),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
