/* The input of a program build, and the function that builds a program. */
#ifndef WEFTI_BUILD_SPEC_H
#define WEFTI_BUILD_SPEC_H

#include "compile/update.h"
#include "program/program.h"

/* The optimizer as the program builder sees it: the ops of the update of one parameter. Supplied by
 * floor 8. */
typedef struct wefti_optimizer_plan {
    void *context;
    weft_status (*rule)(void *context, const char *param, const weft_desc *desc,
                        wefti_update_rule *out); /* arrays stay valid while the program is built */
    bool clip; /* clipping: needs squares of gradients, so all gradients live until the update */
    const weft_op_def *norm_op;
    bool rows; /* gradients of tables may be rows: see builder/rows.c */
    /* Up to a commit of all devices, a step changes no parameter, state or optimizer tensor. */
    bool recovery;
    /* With recovery: state that no other device has is also kept by a buddy (buddy/buddy.h). */
    bool buddies;
} wefti_optimizer_plan;

/* Receives the decisions of a build, for completed plans. Calls of equal cells are reported one by
 * one. */
typedef struct wefti_observer {
    void *context;
    wefti_decide *decide; /* of each op of forward passes */
    void (*tensor)(void *context, const char *tensor, const wefti_layout *use,
                   const wefti_mesh *mesh); /* inputs, parameters and states, with the layout in
                                               which calls use them */
    void (*assign)(void *context, const char *call,
                   int32_t stage); /* the virtual stage of each call */
} wefti_observer;

typedef struct wefti_program_spec {
    const weft_graph *graph;       /* wrapped (wefti_graph_wrap); outlives the program, unchanged */
    const wefti_device_kind *kind; /* of the rank's device */
    wefti_prepare prepare;
    const wefti_optimizer_plan *optimizer; /* NULL: forward only */
    int32_t microbatches;                  /* >= 1 */
    bool keep_gradients; /* gradients stay readable as outputs "grad:<param>" until the step ends */
    bool unrolled;       /* list the steps of all microbatches, without loops */
    int recompute;       /* 0: default, 1: full, for every cell */
    const weft_plan *plan; /* NULL: one device */
    int32_t rank;
    const int32_t *host; /* [devices] of each device, for buddies; NULL: all are on one */
    wefti_route_cache
        *routes; /* with a plan; the programs of all ranks, built one after the other, share it */
    /* The program that shares its parameters and states with this one (evaluation beside training);
     * tensors are found by name. New persistent tensors are appended behind those of all programs
     * `before`. Without `shared` there are none. */
    const struct wefti_program *shared;
    wefti_footprint before;
    const wefti_observer *observer; /* NULL: none */
} wefti_program_spec;

weft_status wefti_program_build(const wefti_program_spec *spec, wefti_program **out) WEFT_CHECKED;

#endif
