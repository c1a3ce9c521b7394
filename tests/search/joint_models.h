/* Questions to the joint search for tests, and the verifier on each answer. */
#ifndef WEFT_TESTS_JOINT_MODELS_H
#define WEFT_TESTS_JOINT_MODELS_H

#include "models/model_fixture.h"

#include "search/joint/joint.h"
#include "session/optimizer.h"
#include "verify.h"

enum { JOINT_MODELS = 64 };

/* Models of one family for every size of a microbatch. */
typedef struct joint_source {
    weft_model_config config;
    weft_dtype dtype;
    struct {
        int64_t samples, layers;
        weft_graph *graph;
        wefti_optimizer *optimizer;
    } made[JOINT_MODELS];
    int count;
} joint_source;

static inline weft_status joint_find_model(void *context, int64_t samples, int64_t layers,
                                           weft_graph **graph,
                                           const wefti_optimizer_plan **optimizer) {
    joint_source *s = context;
    int i = 0;
    while (i < s->count && (s->made[i].samples != samples || s->made[i].layers != layers)) i++;
    if (i == s->count) {
        const weft_optimizer adamw = weft_optimizer_defaults(WEFT_ADAMW);
        weft_model_config c = s->config;
        assert_true(i < JOINT_MODELS);
        if (layers) c.layers = layers;
        s->made[i].samples = samples;
        s->made[i].layers = layers;
        s->made[i].graph = built(&c, WEFT_USE_TRAIN, samples, 0, s->dtype);
        ASSERT_OK(wefti_graph_wrap(s->made[i].graph));
        ASSERT_OK(wefti_optimizer_create(&adamw, false, s->made[i].graph, &s->made[i].optimizer));
        s->count++;
    }
    *graph = s->made[i].graph;
    *optimizer = wefti_optimizer_plan_of(s->made[i].optimizer);
    return WEFT_OK;
}

static inline void joint_source_free(joint_source *s) {
    for (int i = 0; i < s->count; i++) {
        wefti_optimizer_destroy(s->made[i].optimizer);
        weft_graph_destroy(s->made[i].graph);
    }
    s->count = 0;
}

static inline weft_model_config joint_language(weft_family family, int64_t layers, int64_t hidden,
                                               int64_t vocab, int64_t context) {
    weft_model_config c = {.family = family, .layers = layers, .hidden = hidden, .vocab = vocab};
    c.heads = 8, c.ffn = 4 * hidden, c.context = context;
    if (is_rotary(family)) c.kv_heads = 8;
    if (family == WEFT_FAMILY_MIXTRAL) c.experts = 8, c.experts_per_token = 2;
    ASSERT_OK(weft_model_complete(&c));
    return c;
}

typedef struct joint_question {
    const char *machine, *fix;
    int devices;
    int64_t batch, memory; /* memory 0: the machine's */
    int evaluations;
    int64_t threshold;         /* bytes of parameters that are not shared */
    bool by_bound;             /* no guesses */
    const weft_plan *settings; /* what the job decides; NULL: the devices only */
    double seconds;            /* limit by the clock `now`; 0: none */
    double (*now)(void *clock);
} joint_question;

static inline int64_t joint_microbatches(const weft_plan *plan) {
    return (plan->pipeline.stages > 1 ? plan->pipeline.microbatches : plan->accumulate) *
           plan->copies;
}

/* The parts of the gap are not negative, and the plans with the least bound can be asked for. */
static inline void joint_verify_gap(const wefti_joint_answer *a) {
    wefti_joint_fix fix = wefti_joint_free();
    if (a->plan_bound_seconds == 0) {
        assert_true(a->exhausted || a->cut);
        return;
    }
    assert_true(a->plan_bound_seconds <= a->prediction->step_seconds);
    assert_true(a->plan_bound_seconds >= a->lower_bound_seconds);
    assert_true((a->least != NULL) == (a->plan_bound_seconds > a->lower_bound_seconds));
    if (a->least) ASSERT_OK(wefti_joint_fix_add(a->least, &fix));
}

/* Verifies each answer. Its predicted peak is the largest arena of the programs of all ranks. */
static inline weft_status joint_ask(joint_source *s, const joint_question *q,
                                    wefti_joint_answer *out) {
    wefti_machine_model *machine;
    weft_plan *devices;
    ASSERT_OK(weft_plan_create(q->devices, &devices));
    ASSERT_OK(weft_plan_optimizer(devices, 0, q->threshold, 0));
    const weft_plan *settings = q->settings ? q->settings : devices;
    if (wefti_model_find(q->machine, &machine) < 0) fail_msg("%s", weft_error_message());
    wefti_joint_problem p = {.source = {.context = s,
                                        .model = joint_find_model,
                                        .config = &s->config,
                                        .batch = q->batch},
                             .settings = settings,
                             .machine = machine,
                             .fix = wefti_joint_free(),
                             .memory_bytes = q->memory,
                             .evaluations = q->evaluations,
                             .by_bound = q->by_bound,
                             .seconds = q->seconds,
                             .now = q->now};
    ASSERT_OK(wefti_joint_fix_add(q->fix ? q->fix : "", &p.fix));
    const weft_status status = wefti_joint_search(&p, out);
    if (status >= 0) {
        verify_question v = {.plan = out->plan, .settings = settings, .memory = q->memory};
        weft_graph *graph;
        ASSERT_OK(
            joint_find_model(s, q->batch / joint_microbatches(out->plan), 0, &graph, &v.optimizer));
        v.graph = graph;
        if (out->plan->devices <= VERIFY_RANKS)
            assert_int_equal(verify_plan(&v), out->prediction->peak_bytes);
        joint_verify_gap(out);
    }
    wefti_model_destroy(machine);
    weft_plan_destroy(devices);
    return status;
}

static inline wefti_joint_answer joint_answered(joint_source *s, const joint_question *q) {
    wefti_joint_answer a;
    if (joint_ask(s, q, &a) < 0) fail_msg("%s: %s", q->fix ? q->fix : "", weft_error_message());
    return a;
}

/* On A100. intra, inter: bytes per second of a device. The text lasts until the next call. */
static inline const char *joint_machine(int hosts, int devices, double intra, double inter) {
    static char text[256];
    (void)snprintf(text, sizeof text, "hosts=%d gpus=%d gpu=a100-80g intra=%g,3e-6 inter=%g,8e-6",
                   hosts, devices, intra, inter);
    return text;
}

#endif
