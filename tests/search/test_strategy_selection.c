/* Which strategy for which case: data parallelism while the model fits, sharded states or split
 * models where it does not, and never slower than one strategy alone. */
#include "joint_models.h"

#include "weft/session.h"

static const char machine[] = "hosts=1 gpus=4 gpu=a100-80g intra=300e9,3e-6 inter=25e9,8e-6";
/* Batches are large beside the model, so gradients are cheap. */
enum { DEVICES = 4, BATCH = 64, EVALUATIONS = 24 };
static const char data_parallel[] = "dp=4 tp=1 pp=1 cp=1 level=0 recompute=none";

static joint_source source(int64_t hidden) {
    joint_source s = {.config = {.family = WEFT_FAMILY_GPT2,
                                 .layers = 4,
                                 .hidden = hidden,
                                 .heads = 4,
                                 .ffn = 4 * hidden,
                                 .context = 32,
                                 .vocab = 256}};
    ASSERT_OK(weft_model_complete(&s.config));
    return s;
}

static joint_question question(const char *fix, int64_t memory) {
    return (joint_question){.machine = machine,
                            .fix = fix,
                            .devices = DEVICES,
                            .batch = BATCH,
                            .memory = memory,
                            .evaluations = EVALUATIONS};
}

/* accept 18(a): the model fits: every device has all of it, and its share of the batch. */
static void test_18a_model_fits(void **state) {
    (void)state;
    joint_source s = source(64);
    const joint_question q = question(NULL, 0);
    wefti_joint_answer a = joint_answered(&s, &q);
    assert_int_equal(a.degrees.data, DEVICES);
    assert_int_equal(a.degrees.tensor * a.degrees.context * a.degrees.expert, 1);
    assert_int_equal(a.degrees.stages, 1);
    assert_int_equal(a.degrees.recompute, WEFT_RECOMPUTE_NONE);
    wefti_joint_answer_free(&a);
    joint_source_free(&s);
}

/* The highest byte of any device's arena in a step of the plan, whose batch is one microbatch. */
static int64_t measured_peak(joint_source *s, const weft_plan *plan, int64_t batch) {
    weft_session_options o = weft_session_defaults();
    weft_session *session;
    double loss;
    weft_graph *graph = built(&s->config, WEFT_USE_TRAIN, batch, 0, WEFT_F32);
    assert_int_equal(joint_microbatches(plan), 1);
    o.plan = plan;
    o.threads = 1;
    o.bf16 = WEFT_BF16_AS_F32;
    ASSERT_OK(weft_session_create(graph, &o, &session));
    feed_all(session, 0, &s->config, 5);
    ASSERT_OK(weft_session_step(session, 1e-3, &loss));
    const weft_session_memory memory = weft_session_memory_of(session);
    weft_session_destroy(session);
    weft_graph_destroy(graph);
    assert_true(memory.observed_peak_bytes > 0);
    return memory.observed_peak_bytes;
}

/* accept 18(b): with 0.6 of the memory that data parallelism needs, the plan shards states or
 * splits the model, and a real step stays within the limit. */
static void test_18b_memory_limit(void **state) {
    (void)state;
    joint_source s = source(128);
    joint_question q = question("dp=4 level=0 recompute=none microbatches=1", 0);
    q.batch = 4; /* so parameters and states are most of the memory */
    wefti_joint_answer data = joint_answered(&s, &q);
    q.memory = data.prediction->peak_bytes * 6 / 10;
    q.fix = "microbatches=1";
    wefti_joint_answer a = joint_answered(&s, &q);
    if (a.degrees.level == 0 && a.degrees.tensor == 1 && a.degrees.stages == 1)
        fail_msg("the plan is data parallel");
    const int64_t peak = measured_peak(&s, a.plan, q.batch);
    if (peak > q.memory)
        fail_msg("%lld bytes were used of %lld", (long long)peak, (long long)q.memory);
    assert_true(measured_peak(&s, data.plan, q.batch) > q.memory);
    wefti_joint_answer_free(&data);
    wefti_joint_answer_free(&a);
    joint_source_free(&s);
}

/* accept 18(c): no feasible plan of data, tensor or pipeline parallelism alone takes less time. */
static void test_18c_never_slower(void **state) {
    (void)state;
    static const char *const machines[] = {
        machine, "hosts=4 gpus=1 gpu=a100-80g intra=300e9,3e-6 inter=2e7,8e-6",
        "hosts=2 gpus=2 gpu=v100 intra=100e9,3e-6 inter=1e9,8e-6"};
    static const char *const alone[] = {data_parallel, "tp=4 level=0", "pp=4 level=0"};
    int feasible = 0;
    for (int m = 0; m < 3; m++) {
        joint_source s = source(64);
        joint_question q = question(NULL, 0);
        q.machine = machines[m];
        wefti_joint_answer a = joint_answered(&s, &q);
        for (int k = 0; k < 3; k++) {
            wefti_joint_answer other;
            q.fix = alone[k];
            if (joint_ask(&s, &q, &other) < 0) continue;
            feasible++;
            /* 0.2 %: the search's own tolerance */
            if (a.prediction->step_seconds > other.prediction->step_seconds * 1.002)
                fail_msg("%s: %g s, %s takes %g s", machines[m], a.prediction->step_seconds,
                         alone[k], other.prediction->step_seconds);
            wefti_joint_answer_free(&other);
        }
        wefti_joint_answer_free(&a);
        joint_source_free(&s);
    }
    assert_true(feasible >= 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_18a_model_fits),
                                       cmocka_unit_test(test_18b_memory_limit),
                                       cmocka_unit_test(test_18c_never_slower)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
