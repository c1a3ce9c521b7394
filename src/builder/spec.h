/* What a program is built from, and the function that builds it. */
#ifndef WEFTI_BUILD_SPEC_H
#define WEFTI_BUILD_SPEC_H

#include "program/program.h"

/* The optimizer as the program builder sees it: the ops to place per parameter. Supplied by
 * floor 8. */
typedef struct wefti_update_rule {
    const weft_op_def *op;
    const wefti_attr *attrs; /* full table of the op */
    int states;              /* in-place tensors after the parameter */
    int absent;              /* optional operands left out behind them */
    const char *state_names[4];
    weft_desc state_descs[4];
} wefti_update_rule;
typedef struct wefti_optimizer_plan {
    void *context;
    weft_status (*rule)(void *context, const char *param, const weft_desc *desc,
                        wefti_update_rule *out); /* arrays stay valid while the program is built */
    bool clip; /* squares of gradients are wanted: all gradients are kept until the update */
    const weft_op_def *norm_op;
} wefti_optimizer_plan;

/* Told what a build decides, for completed plans. Calls of equal cells are told one by one. */
typedef struct wefti_observer {
    void *context;
    wefti_decide *decide; /* of each op of forward passes */
    void (*settle)(void *context, const char *tensor, const wefti_layout *use,
                   const wefti_mesh *mesh); /* inputs, parameters, states: where calls use them */
    void (*assign)(void *context, const char *call, int32_t stage); /* virtual; of all calls */
} wefti_observer;

typedef struct wefti_program_spec {
    const weft_graph *graph; /* wrapped (wefti_graph_wrap); outlives the program, unchanged */
    const wefti_backend *const *backends;
    wefti_prepare prepare;
    const wefti_optimizer_plan *optimizer; /* NULL: forward only */
    int32_t microbatches;                  /* >= 1 */
    bool keep_gradients; /* gradients stay readable as outputs "grad:<param>" until the step ends */
    int recompute;       /* 0: default, 1: full, for every cell */
    const weft_plan *plan; /* NULL: one device */
    int32_t rank;
    wefti_route_cache
        *routes; /* with a plan: shared by all ranks' programs built one after the other */
    /* Tensors that exist already, of a program that shares its parameters and states (evaluation
     * beside training): found by name. What is new and persistent goes above `peak_bytes`, the most
     * that any earlier program uses; what is transient above `persistent_bytes`, behind all that
     * any of them keeps. Both 0 without `shared`. */
    const struct wefti_program *shared;
    int64_t peak_bytes, persistent_bytes;
    const wefti_observer *observer; /* NULL: none */
} wefti_program_spec;

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) WEFT_CHECKED;

#endif
