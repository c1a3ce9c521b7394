/* The compiler of routines, in parts: routine.c makes instructions, residency.c decides which
 * values share memory and which lie in the caller's arguments, frame.c places the rest. */
#ifndef WEFTI_COMPILER_H
#define WEFTI_COMPILER_H

#include "compile/routine.h"

/* A copy or addition of one value to another. `to` -1: the instruction's destination is already
 * set. */
typedef struct wefti_compiler_move {
    int32_t from, to;
} wefti_compiler_move;

typedef struct wefti_compiler {
    const wefti_routine_spec *spec;
    const weft_body *body;
    wefti_routine *r;
    int32_t *root;              /* per value: the value that provides its memory */
    wefti_ref *place;           /* per root: its place; arg NONE until known */
    bool *in_place_chain;       /* per value: an in-place op lies between it and its root */
    bool *overwritten;          /* per value: an in-place op has replaced it */
    int32_t *first, *last;      /* per root: instruction of definition and last use */
    wefti_compiler_move *moves; /* per instruction without a node */
    bool sums;                  /* some nodes add in place */
    wefti_arena *scratch;
} wefti_compiler;

#define WEFTI_NO_REF ((wefti_ref){WEFTI_REF_NONE, 0})

/* The output disposition of a result: how the routine delivers it. */
typedef enum wefti_disposition {
    WEFTI_RESULT_WRITTEN, /* a kernel writes it into the caller's argument */
    WEFTI_RESULT_COPIED,  /* an instruction copies it there */
    WEFTI_RESULT_ADDED,   /* an instruction adds it to the argument */
    WEFTI_RESULT_ALIASED  /* it is an operand, changed in place */
} wefti_disposition;

/* The value that provides the memory of `value`. */
static inline int32_t wefti_compiler_root(const wefti_compiler *c, int32_t value) {
    while (c->root[value] != value) value = c->root[value];
    return value;
}

static inline bool wefti_compiler_adds(const weft_node *n) {
    return n->op->flags & WEFTI_OP_ADDS;
}

/* Memory for the time of the compilation; *out is a pointer. */
weft_status wefti_compiler_array(wefti_compiler *c, size_t bytes, void *out) WEFT_CHECKED;

/* residency.c. Finds the roots of reshapes and in-place ops; then places roots that are inputs, and
 * roots that are results: *end and *accumulate_root are per result and per root. */
weft_status wefti_compiler_find_aliases(wefti_compiler *c) WEFT_CHECKED;
void wefti_compiler_place_inputs(wefti_compiler *c);
weft_status wefti_compiler_place_outputs(wefti_compiler *c, wefti_disposition *end,
                                         bool *accumulate_root) WEFT_CHECKED;

/* frame.c. Places all other roots and the workspaces in the frame, by lifetime, and fills in the
 * operands of all instructions. */
weft_status wefti_compiler_place_frame(wefti_compiler *c) WEFT_CHECKED;

#endif
