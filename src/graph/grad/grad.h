/* Differentiation of a cell: its forward body with a saved block, and its backward body.
 *
 * Reverse mode by source transformation, one op at a time: each op's `grad` adds nodes to the
 * backward body. A forward value that the backward body reads is one of:
 *
 * - an input or output of the cell, which the caller keeps alive;
 * - a recomputed value: the node of a cheap op is cloned into the backward body;
 * - a value of the saved block. */
#ifndef WEFTI_GRAD_H
#define WEFTI_GRAD_H

#include "graph/graph.h"

/* ---- for op files: inside weft_op_def.grad ---- */

/* The graph that receives backward nodes, through the public functions of weft/ops.h and
 * wefti_graph_add. */
weft_graph *wefti_grad_graph(wefti_grad *g);
weft_value wefti_grad_in(wefti_grad *g, const weft_node *n,
                         int i); /* forward input i as a value of the backward body */
weft_value wefti_grad_out(wefti_grad *g, const weft_node *n,
                          int o); /* forward output o as a value of the backward body */
/* The gradient of output o; an empty value if nothing depends on the output. At least one output
 * has a gradient. */
weft_value wefti_grad_of(wefti_grad *g, const weft_node *n, int o);
bool wefti_grad_wanted(wefti_grad *g, const weft_node *n,
                       int i); /* the gradient of input i is needed */
/* Adds a term to the gradient of input i, with shape and dtype of that input. (The input may be the
 * copy of an f32 master: then the term is cast.) */
void wefti_grad_add(wefti_grad *g, const weft_node *n, int i, weft_value gradient);
/* The same for an operand that was broadcast or has another dtype: sums `gradient` down to input
 * i. */
void wefti_grad_add_reduced(wefti_grad *g, const weft_node *n, int i, weft_value gradient);

/* ---- for the program builder ---- */

typedef enum wefti_grad_source {
    WEFTI_GRAD_SAVED, /* index: position in the saved block (forward->out[original outputs + index])
                       */
    WEFTI_GRAD_INPUT, /* index: position in the cell's inputs */
    WEFTI_GRAD_OUTPUT, /* index: position in the cell's outputs (its forward value) */
    WEFTI_GRAD_DOUT,   /* index: gradient of that output */
    WEFTI_GRAD_CROSSED /* second part of a split backward pass; index: among the last `crossed`
                          results of the first part */
} wefti_grad_source;

typedef struct wefti_grad_binding {
    wefti_grad_source source;
    int32_t index;
} wefti_grad_binding;

typedef struct wefti_cell_grad {
    weft_body *cell;
    weft_body *forward;            /* the cell's nodes; outputs: the cell's, then the saved
                                      values */
    weft_body *backward;           /* inputs as in bindings; outputs: gradients, see gradient_out */
    int32_t saved;                 /* count */
    wefti_grad_binding *bindings;  /* backward->in_count entries */
    int32_t *gradient_out;         /* per cell input: index in backward->out, or -1 */
    struct wefti_cell_grad *parts; /* the two parts, after wefti_cell_grad_split; else NULL */
    int32_t crossed;               /* of a part: number of values that pass from the first part
                                      to the second */
    weft_body *fused_body;         /* fused forward-backward body, if the program needs it; owned */
} wefti_cell_grad;

/* The forward values that the backward pass may recompute instead of saving them. */
typedef enum wefti_recompute_mode {
    WEFTI_RECOMPUTE_CHEAP,    /* results of cheap ops, where that saves memory */
    WEFTI_RECOMPUTE_FULL,     /* all values: only the inputs are kept */
    WEFTI_RECOMPUTE_SELECTIVE /* all but results of products, convolutions and attention */
} wefti_recompute_mode;

/* Differentiates a cell. wanted[i]: the gradient of cell input i is needed. given[o]: output o has
 * a gradient. The results lie in the graph's arena; wefti_cell_grad_free frees the bodies.
 * recompute: the mode, see wefti_recompute_mode. */
weft_status wefti_differentiate(weft_graph *g, weft_body *cell, const bool *wanted,
                                const bool *given, wefti_recompute_mode recompute,
                                wefti_cell_grad *out) WEFT_CHECKED;
/* The same. Values of the cell with keep[v] set are saved if the backward pass reads them, never
 * recomputed. The gradient of a bf16 input with wide[i] set is f32. NULL: none. */
weft_status wefti_differentiate_keeping(weft_graph *g, weft_body *cell, const bool *wanted,
                                        const bool *given, wefti_recompute_mode recompute,
                                        const bool *keep, const bool *wide,
                                        wefti_cell_grad *out) WEFT_CHECKED;
/* Splits the backward body into two, grad->parts. Part 0 makes the gradients of inputs without
 * weights[i], and other gradients that the same nodes make. Part 1 makes the rest. The parts are
 * freed with the whole. */
weft_status wefti_cell_grad_split(weft_graph *g, wefti_cell_grad *grad,
                                  const bool *weights) WEFT_CHECKED;
void wefti_cell_grad_free(wefti_cell_grad *grad);
/* Bytes of the bodies that wefti_cell_grad_free frees. */
int64_t wefti_cell_grad_bytes(const wefti_cell_grad *grad);

#endif
