/* Plans of several devices, and sessions that train the tiny gpt2 under them. */
#ifndef WEFT_TESTS_DEVICE_CASES_H
#define WEFT_TESTS_DEVICE_CASES_H

#include "plan_cases.h"
#include "session_models.h"

enum { SEED = 21, BATCH = 8 };

static const plan_case cases[] = {
    {.name = "one device", .devices = 1},
    {.name = "2 data", .devices = 2},
    {.name = "4 data, clipped", .devices = 4, .clip = 0.5},
    {.name = "8 data", .devices = 8},
    {.name = "3 data, uneven", .devices = 3},
    {.name = "2 data, accumulated", .devices = 2, .accumulate = 2},
    {.name = "4 data, states split", .devices = 4, .level = 1},
    {.name = "4 data, gradients split", .devices = 4, .level = 2, .clip = 0.5},
    {.name = "4 data, all split", .devices = 4, .level = 3},
    {.name = "2 tensor", .devices = 2, .axis = {{"tp", 2}}, .splits = {TENSOR_PARALLEL}},
    {.name = "4 tensor", .devices = 4, .axis = {{"tp", 4}}, .splits = {TENSOR_PARALLEL}},
    {.name = "2 data 2 tensor, states split",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 1,
     .clip = 0.5},
    {.name = "2 stages", .devices = 2, .stages = 2, .microbatches = 4},
    {.name = "2 stages 2 data, clipped",
     .devices = 4,
     .axis = {{"dp", 2}},
     .stages = 2,
     .microbatches = 2,
     .clip = 0.5},
    {.name = "2 data 2 tensor 2 stages, states split",
     .devices = 8,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 2,
     .stages = 2,
     .microbatches = 2,
     .clip = 0.5},
    {.name = "4 data 2 tensor",
     .devices = 8,
     .axis = {{"dp", 4}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL}},
};
enum { CASES = sizeof cases / sizeof *cases };

static inline weft_plan *plan_of(const plan_case *c) {
    weft_plan *plan;
    ASSERT_OK(make_plan(c, &plan));
    return plan;
}

/* A session of the tiny gpt2 with dropout; `graph` is to be destroyed after it. */
static inline weft_session *session_for(const plan_case *c, bool with_plan, weft_graph **graph) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = with_plan ? plan_of(c) : NULL;
    weft_session *s;
    o.seed = SEED;
    o.threads = 2;
    o.clip = c->clip;
    o.microbatches = microbatches_of(c);
    o.plan = plan;
    *graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH / o.microbatches, 0.2, WEFT_F32);
    if (weft_session_create(*graph, &o, &s) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    weft_plan_destroy(plan); /* the session has its own */
    return s;
}

static inline void end_session(weft_session *s, weft_graph *graph) {
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

static inline const plan_case *case_of(const char *name) {
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fail_msg("no case is called %s", name);
    return NULL;
}

/* One step on batch `k`; its loss goes to *out. */
static inline weft_status try_step(weft_session *s, const plan_case *c, int k, double *out) {
    int count = microbatches_of(c), known = 0;
    double sum = 0, loss;
    for (int m = 0; m < count; m++) {
        int64_t row = m * BATCH / count;
        feed_rows(s, 0, (uint64_t)k, row);
        ASSERT_OK(weft_session_set_row(s, row));
        if (count == 1 && c->clip == 0) return weft_session_step(s, 1e-3, out);
        weft_status status = weft_session_accumulate(s, &loss);
        if (status < 0) return status;
        if (isnan(loss)) continue; /* a pipeline knows it at the last one */
        sum += loss;
        known++;
    }
    *out = sum / known;
    return weft_session_update(s, 1e-3, NULL);
}

static inline double train_step(weft_session *s, const plan_case *c, int k) {
    double loss = NAN;
    if (try_step(s, c, k, &loss) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    return loss;
}

static inline void check_memory(weft_session *s, const plan_case *c) {
    for (int r = 0; r < c->devices; r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        if (predicted != observed)
            fail_msg("%s: device %d uses %lld bytes, not %lld", c->name, r, (long long)observed,
                     (long long)predicted);
    }
}

#endif
