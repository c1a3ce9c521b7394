/* Plans that tests of sessions run, as tables say them. */
#ifndef WEFT_TESTS_PLAN_CASES_H
#define WEFT_TESTS_PLAN_CASES_H

#include "weft/plan.h"

typedef struct split {
    const char *match, *axes;
} split;

typedef struct plan_case {
    const char *name;
    int devices;
    struct {
        const char *name;
        int size;
    } axis[3];
    split splits[6];
    int level; /* of optimizer parallelism */
    int accumulate;
    int stages, microbatches;
    double clip;
    bool sum, experts;
} plan_case;

/* Megatron's split of the tiny gpt2. */
#define TENSOR_PARALLEL                                                                            \
    {"h.*.attn.c_attn", "n1=tp"}, {"h.*.attn", "heads=tp"}, {"h.*.attn.c_proj", "k=tp"},           \
        {"h.*.mlp.c_fc", "n0=tp"}, {                                                               \
        "h.*.mlp.c_proj", "k=tp"                                                                   \
    }

static inline weft_status make_plan(const plan_case *c, weft_plan **out) {
    weft_plan *plan;
    weft_status status = weft_plan_create(c->devices, &plan);
    if (status < 0) return status;
    for (int a = 0; a < 3 && c->axis[a].name && status >= 0; a++)
        status = weft_plan_axis(plan, c->axis[a].name, c->axis[a].size);
    if (c->axis[0].name && status >= 0) status = weft_plan_mode(plan, WEFT_PARALLEL_SEMI);
    for (int i = 0; i < 6 && c->splits[i].match && status >= 0; i++)
        status = weft_plan_split_op(plan, c->splits[i].match, c->splits[i].axes);
    if (c->level && status >= 0) status = weft_plan_optimizer(plan, c->level, 0, 0);
    if (c->accumulate && status >= 0) status = weft_plan_accumulate(plan, c->accumulate);
    if (c->sum && status >= 0) status = weft_plan_gradients_sum(plan, true);
    if (c->stages && status >= 0)
        status = weft_plan_pipeline(plan, c->stages, c->microbatches, WEFT_PIPELINE_1F1B, 1);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}

static inline int microbatches_of(const plan_case *c) {
    return c->accumulate ? c->accumulate : c->microbatches ? c->microbatches : 1;
}

#endif
