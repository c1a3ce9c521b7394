/* Runs of sessions over a world: the same steps in one process, or as one rank of several. */
#ifndef WEFT_TESTS_WORLD_RUN_H
#define WEFT_TESTS_WORLD_RUN_H

#include "session_models.h"

#include "plan_cases.h"
#include "world_fixture.h"

enum { SEED = 21, BATCH = 8, STEPS = 3 };

/* ---- plans ---- */

static const plan_case cases[] = {
    {.name = "2 data", .devices = 2},
    {.name = "3 data, uneven", .devices = 3},
    {.name = "4 data, clipped", .devices = 4, .clip = 0.5},
    {.name = "2 data, accumulated", .devices = 2, .accumulate = 2, .sum = true},
    {.name = "4 data, states split", .devices = 4, .level = 1},
    {.name = "4 data, gradients split", .devices = 4, .level = 2, .clip = 0.5},
    {.name = "4 data, all split", .devices = 4, .level = 3},
    {.name = "2 tensor", .devices = 2, .axis = {{"tp", 2}}, .splits = {TENSOR_PARALLEL}},
    {.name = "2 data 2 tensor, states split",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 1,
     .clip = 0.5},
    {.name = "2 stages", .devices = 2, .stages = 2, .microbatches = 4},
    {.name = "2 data 2 tensor 2 stages, states split",
     .devices = 8,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 2,
     .stages = 2,
     .microbatches = 2,
     .clip = 0.5},
    {.name = "2 data 2 experts",
     .devices = 4,
     .axis = {{"dp", 2}, {"ep", 2}},
     .splits = {{"*moe.experts.*", "experts=ep"},
                {"*moe:moe_dispatch", "experts=ep"},
                {"*moe:moe_combine", "experts=ep"}},
     .experts = true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- one rank's run, or the whole run in one process ---- */

enum { TAMPER_NONE, TAMPER_MODEL, TAMPER_SEED, TAMPER_PLAN, TAMPER_CLIP, TAMPER_DEVICES };

typedef enum feeding { FEED_WHOLE, FEED_LOCAL, FEED_ROWS } feeding;

typedef struct run run;
struct run {
    const plan_case *c;
    int tamper;          /* what rank 1 has otherwise */
    bool evaluate, late; /* late: the second program comes after the first step */
    feeding how;
    int rank;
    const float *start; /* parameters to begin with; NULL: own */
    /* Called before each step, and after the last one with STEPS; NULL: nothing. */
    weft_status (*at)(weft_session *s, const run *r, int step);
    double losses[STEPS], norms[STEPS], evaluation;
    int64_t observed; /* -1: not the memory that was predicted */
    float *tensors;   /* all parameters and optimizer states, one behind the other */
    int64_t elems;
};

static inline weft_model_config config_of(const plan_case *c, bool other) {
    return (weft_model_config){.family = c->experts ? WEFT_FAMILY_GPT2_MOE : WEFT_FAMILY_GPT2,
                               .layers = 2,
                               .hidden = other ? 16 : 32,
                               .heads = 4,
                               .ffn = 64,
                               .context = 16,
                               .vocab = 50,
                               .experts = c->experts ? 4 : 0,
                               .experts_per_token = c->experts ? 2 : 0,
                               .dropout = 0.2};
}

/* Tokens; the whole input, or this process's part of it in place or through a copy. */
static inline weft_status feed(weft_session *s, int program, uint64_t step, feeding how, int rank) {
    for (int t = 0; t < weft_session_tensors(s, program); t++) {
        weft_tensor_info info;
        int32_t data[BATCH * 16];
        WEFT_TRY(weft_session_tensor(s, program, t, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        uint64_t stream = wefti_stream_of(info.name);
        for (int64_t i = 0; i < info.bytes / 4; i++)
            data[i] = (int32_t)(wefti_philox_u32(step, stream, (uint64_t)i) % 50);
        if (how == FEED_ROWS) { /* some ranks have none */
            int64_t rows = info.desc.shape[0], row = info.bytes / rows, n = weft_session_devices(s);
            int64_t begin = rows * rank * rank / (n * n),
                    end = rows * (rank + 1) * (rank + 1) / (n * n);
            if (step & 1) { /* or the share that the session asks for */
                WEFT_TRY(weft_session_rows(s, program, info.name, &begin, &end));
                end += begin;
            }
            WEFT_TRY(weft_session_feed_rows(s, program, info.name, (char *)data + begin * row,
                                            (size_t)((end - begin) * row)));
            continue;
        }
        if (how == FEED_WHOLE) {
            WEFT_TRY(weft_session_feed(s, program, info.name, data, (size_t)info.bytes));
            continue;
        }
        weft_session_part part;
        WEFT_TRY(weft_session_local(s, program, info.name, &part));
        int32_t cut[BATCH * 16];
        for (int64_t i = 0; i < part.bytes / 4; i++) {
            int64_t row = part.begin[0] + i / part.size[1], at = part.begin[1] + i % part.size[1];
            cut[i] = data[row * info.desc.shape[1] + at];
        }
        if (step & 1)
            WEFT_TRY(weft_session_feed_local(s, program, info.name, cut, (size_t)part.bytes));
        else if (part.bytes)
            memcpy(part.data, cut, (size_t)part.bytes);
    }
    return WEFT_OK;
}

static inline weft_status read_all(weft_session *s, run *r) {
    for (int pass = 0; pass < 2; pass++) {
        r->elems = 0;
        for (int t = 0; t < weft_session_tensors(s, 0); t++) {
            weft_tensor_info info;
            WEFT_TRY(weft_session_tensor(s, 0, t, &info));
            if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
            if (pass)
                WEFT_TRY(
                    weft_session_read(s, 0, info.name, r->tensors + r->elems, (size_t)info.bytes));
            r->elems += info.bytes / 4;
        }
        if (!pass) r->tensors = calloc((size_t)r->elems, sizeof(float));
    }
    return WEFT_OK;
}

static inline weft_status write_all(weft_session *s, const float *from) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
        WEFT_TRY(weft_session_write(s, 0, info.name, from, (size_t)info.bytes));
        from += info.bytes / 4;
    }
    return WEFT_OK;
}

static inline weft_status one_step(weft_session *s, run *r, int step, int microbatches) {
    double sum = 0, loss;
    int known = 0;
    r->norms[step] = NAN;
    for (int m = 0; m < microbatches; m++) {
        WEFT_TRY(feed(s, 0, (uint64_t)(step * 10 + m), r->how, r->rank));
        WEFT_TRY(weft_session_set_row(s, m * BATCH / microbatches));
        if (microbatches == 1 && r->c->clip == 0)
            return weft_session_step(s, 0.01, &r->losses[step]);
        WEFT_TRY(weft_session_accumulate(s, &loss));
        if (isnan(loss)) continue;
        sum += loss;
        known++;
    }
    r->losses[step] = sum / known;
    return weft_session_update(s, 0.01, &r->norms[step]);
}

static inline weft_status run_steps(weft_session *s, run *r, int microbatches, weft_graph *second,
                                    int *evaluation) {
    if (r->start) WEFT_TRY(write_all(s, r->start));
    for (int step = 0; step < STEPS; step++) {
        if (r->at) WEFT_TRY(r->at(s, r, step));
        WEFT_TRY(one_step(s, r, step, microbatches));
        if (r->late && step == 0) WEFT_TRY(weft_session_add(s, second, evaluation));
    }
    if (r->at) WEFT_TRY(r->at(s, r, STEPS));
    if (r->evaluate) {
        WEFT_TRY(feed(s, *evaluation, 77, FEED_WHOLE, 0));
        WEFT_TRY(weft_session_forward(s, *evaluation, &r->evaluation));
    }
    return read_all(s, r);
}

/* If a failure is outside the session's calls, the program itself tells the other ranks. */
static inline weft_status told(weft_world *world, weft_status status) {
    if (status < 0 && world) weft_world_fail(world, weft_error_message());
    return status;
}

static inline weft_status run_session(run *r, weft_world *world) {
    int rank = world ? weft_world_rank(world) : 0, evaluation = 0;
    int tamper = rank == 1 ? r->tamper : TAMPER_NONE;
    plan_case c = *r->c;
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    weft_graph *graph = NULL, *second = NULL;
    weft_session *s = NULL;
    weft_model_config config = config_of(&c, tamper == TAMPER_MODEL);
    if (tamper == TAMPER_PLAN) c.level = 3;
    if (tamper == TAMPER_DEVICES) c.devices--;
    o.seed = SEED + (tamper == TAMPER_SEED);
    o.threads = 2;
    o.clip = tamper == TAMPER_CLIP ? 3 : c.clip;
    o.microbatches = microbatches_of(&c);
    o.keep_gradients = r->how == FEED_ROWS; /* on several stages a sum of terms */
    o.world = world;
    WEFT_TRY(told(world, make_plan(&c, &plan)));
    o.plan = plan;
    int64_t batch = BATCH / o.microbatches;
    weft_status status =
        told(world, weft_model_build(&config, WEFT_USE_TRAIN, batch, 0, WEFT_F32, &graph));
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0 && r->evaluate)
        status = told(world, weft_model_build(&config, WEFT_USE_EVAL, batch, 0, WEFT_F32, &second));
    if (status >= 0 && r->evaluate && !r->late) status = weft_session_add(s, second, &evaluation);
    if (status >= 0) status = run_steps(s, r, o.microbatches, second, &evaluation);
    for (int d = 0; d < c.devices && status >= 0; d++) {
        int64_t predicted, observed;
        if (world && d != rank) continue;
        status = weft_session_device_memory(s, d, &predicted, &observed);
        if (observed != predicted) r->observed = -1;
    }
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    weft_graph_destroy(second);
    weft_plan_destroy(plan);
    return status;
}

static inline weft_status run_rank(void *context, weft_world *world) {
    return run_session(context, world);
}

static inline void free_run(run *r) {
    free(r->tensors);
    r->tensors = NULL;
}

static inline void assert_same_run(const run *a, const run *b, int rank) {
    for (int i = 0; i < STEPS; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof(double)) ||
            (!isnan(a->norms[i]) && memcmp(&a->norms[i], &b->norms[i], sizeof(double))))
            fail_msg("%s, rank %d: step %d came to %.17g, norm %.17g; in one process %.17g, %.17g",
                     a->c->name, rank, i, b->losses[i], b->norms[i], a->losses[i], a->norms[i]);
    if (a->evaluate) assert_memory_equal(&a->evaluation, &b->evaluation, sizeof(double));
    assert_int_equal(a->elems, b->elems);
    if (memcmp(a->tensors, b->tensors, (size_t)a->elems * sizeof(float)))
        fail_msg("%s: rank %d reads other parameters than one process has", a->c->name, rank);
    if (b->observed < 0)
        fail_msg("%s: rank %d uses other memory than was planned", a->c->name, rank);
}

#endif
