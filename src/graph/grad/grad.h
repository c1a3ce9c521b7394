/* Differentiation of a cell: its forward body extended by a saved block, and its backward body.
 *
 * Reverse mode by source transformation, one op at a time: each op's `grad` adds nodes to the
 * backward body. What the backward body needs of the forward pass is either an input of the cell
 * (the caller keeps it alive), a cheap op's result (recomputed: its node is cloned into the
 * backward body), or saved. */
#ifndef WEFTI_GRAD_H
#define WEFTI_GRAD_H

#include "graph/graph.h"

/* ---- for op files: inside weft_op_def.grad ---- */

/* The graph to add backward nodes to with the public functions of weft/ops.h and wefti_graph_add.
 */
weft_graph *wefti_grad_graph(wefti_grad *g);
weft_value wefti_grad_in(wefti_grad *g, const weft_node *n,
                         int i); /* forward input i, seen in backward */
weft_value wefti_grad_out(wefti_grad *g, const weft_node *n,
                          int o); /* forward output o, seen in backward */
/* Gradient of output o; an empty value when nothing depends on it. At least one output has one. */
weft_value wefti_grad_of(wefti_grad *g, const weft_node *n, int o);
bool wefti_grad_wanted(wefti_grad *g, const weft_node *n,
                       int i); /* someone needs the gradient of input i */
/* Contribute to the gradient of input i (shape and dtype of that input). Contributions are summed.
 */
void wefti_grad_add(wefti_grad *g, const weft_node *n, int i, weft_value gradient);
/* The same for an operand that was broadcast and possibly of another dtype: sums `gradient` down to
 * input i. */
void wefti_grad_add_reduced(wefti_grad *g, const weft_node *n, int i, weft_value gradient);

/* ---- for the program builder ---- */

typedef enum wefti_grad_source {
    WEFTI_GRAD_SAVED, /* index: position in the saved block (forward->out[original outputs + index])
                       */
    WEFTI_GRAD_INPUT, /* index: position in the cell's inputs */
    WEFTI_GRAD_OUTPUT, /* index: position in the cell's outputs (its forward value) */
    WEFTI_GRAD_DOUT,   /* index: gradient of that output */
    WEFTI_GRAD_CROSSED /* of the second part of a split backward pass; index: among the last
                          `crossed` results of the first */
} wefti_grad_source;

typedef struct wefti_grad_binding {
    wefti_grad_source source;
    int32_t index;
} wefti_grad_binding;

typedef struct wefti_cell_grad {
    weft_body *cell;
    weft_body *forward;            /* cell's nodes; outputs: the cell's, then the saved values */
    weft_body *backward;           /* inputs as in bindings; outputs: gradients, see gradient_out */
    int32_t saved;                 /* count */
    wefti_grad_binding *bindings;  /* backward->in_count of them */
    int32_t *gradient_out;         /* per cell input: index in backward->out, or -1 */
    struct wefti_cell_grad *parts; /* two of them, after wefti_cell_grad_split; else NULL */
    int32_t crossed;               /* of a part: values that go from the first to the second */
    weft_body *joined; /* both passes as one body, when the program wanted it; borrowed */
} wefti_cell_grad;

/* What the backward pass may compute again instead of keeping it. */
typedef enum wefti_recompute_mode {
    WEFTI_RECOMPUTE_CHEAP,    /* results of cheap ops, where that saves memory */
    WEFTI_RECOMPUTE_FULL,     /* everything: nothing but the inputs is kept */
    WEFTI_RECOMPUTE_SELECTIVE /* everything but products, convolutions and attention */
} wefti_recompute_mode;

/* wanted[i]: the gradient of cell input i is needed. given[o]: output o has a gradient. All in the
 * graph's arena; bodies are freed with wefti_cell_grad_free. recompute: what to keep: 0 = default
 * as above, 1 = nothing but the inputs (full recompute). */
weft_status wefti_differentiate(weft_graph *g, weft_body *cell, const bool *wanted,
                                const bool *given, wefti_recompute_mode recompute,
                                wefti_cell_grad *out) WEFT_CHECKED;
/* The same; values of the cell for which keep[v] is set are kept when the backward pass reads them.
 */
weft_status wefti_differentiate_keeping(weft_graph *g, weft_body *cell, const bool *wanted,
                                        const bool *given, wefti_recompute_mode recompute,
                                        const bool *keep, wefti_cell_grad *out) WEFT_CHECKED;
/* Splits the backward body in two, grad->parts: [0] makes the gradients of inputs for which
 * weights[i] is not set, and whatever falls out on the way; [1] those of the others. Parts are
 * freed with the whole. */
weft_status wefti_cell_grad_split(weft_graph *g, wefti_cell_grad *grad,
                                  const bool *weights) WEFT_CHECKED;
void wefti_cell_grad_free(wefti_cell_grad *grad);

#endif
