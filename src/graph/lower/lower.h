/* Lowering: the part of a node that one device of a mesh computes.
 *
 * A node's strategy assigns axes to the factors of its split rule. For FREE, SUM and MAX factors
 * the piece is the node itself on smaller operands; `localize` rewrites attributes that state
 * sizes. The rule then determines how outputs are split or partial. For the other kinds the op's
 * `lower` adds the nodes that one device runs, including communication. `lower` sees this device's
 * operands in the required layouts, and produces the local outputs.
 *
 * Lowering does not depend on whether the devices of an axis are processes, hosts or threads. */
#ifndef WEFTI_LOWER_H
#define WEFTI_LOWER_H

#include "graph/graph.h"
#include "layout/rank_reads.h"
#include "layout/transfer.h"

typedef struct wefti_lower_ranks {
    int32_t rank, world, stage_first, stage_size;
} wefti_lower_ranks;

/* Adds a transfer of a local value to the local body and names it after the node. The partition
 * supplies this function. It owns `transfer` from the call on, also on failure. */
typedef weft_status wefti_lower_add_transfer(wefti_lowering *c, int32_t local,
                                             wefti_transfer *transfer, int32_t *out_local);

/* A node of the whole model with its split, as one device sees it. The partition fills it in;
 * `lower` uses the functions below. */
struct wefti_lowering {
    const weft_node *n;
    wefti_split_rule rule;
    wefti_dim_split factor[WEFTI_MAX_FACTORS]; /* axes of each factor */
    wefti_axes keep; /* axes over which operands and results both stay partial (LINEAR) */
    wefti_layout need[WEFTI_MAX_IN];  /* required layouts of inputs */
    wefti_layout give[WEFTI_MAX_OUT]; /* produced layouts of outputs */
    int32_t local[WEFTI_MAX_IN];      /* operands in the local body, -1: absent */
    int32_t made[WEFTI_MAX_OUT];      /* results in the local body, -1: not made yet */
    const wefti_mesh *mesh;
    wefti_lower_ranks ranks;
    wefti_rank_reads *reads;       /* what the nodes depend on; NULL: nobody asks */
    weft_graph *graph;             /* of the local body */
    weft_body *body;               /* the local body */
    struct wefti_builder *handles; /* of local values, while `lower` runs */
    wefti_lower_add_transfer *transfer;
    struct wefti_lower_context *context; /* the partition's own */
};

/* The graph that receives local nodes, through the functions of weft/ops.h and wefti_graph_add. */
weft_graph *wefti_lower_graph(wefti_lowering *c);
/* The node of the whole model: global shapes. */
const weft_node *wefti_lower_node(const wefti_lowering *c);
/* This device's piece of input i; empty if absent. Dimensions with a factor are split like the
 * factor; dimensions without are whole. Never partial. */
weft_value wefti_lower_in(wefti_lowering *c, int i);
/* Sets this device's piece of output o: dimensions are split like their factors, and not
 * partial. */
void wefti_lower_out(wefti_lowering *c, int o, weft_value value);
/* The same, but `value` is one term of a sum over the devices that split `factors` (bit mask). */
void wefti_lower_out_partial(wefti_lowering *c, int o, weft_value value, uint32_t factors);

/* ---- factors, by number in the rule ---- */

const wefti_split_rule *wefti_lower_rule(const wefti_lowering *c);
int wefti_lower_factor(const wefti_lowering *c,
                       const char *name); /* -1: the rule has no factor of that name */
int32_t wefti_lower_parts(const wefti_lowering *c,
                          int factor); /* into how many parts devices split it; 1: not split,
                                          also for factor -1 */
int32_t wefti_lower_index(const wefti_lowering *c,
                          int factor); /* the number of this device's part */
/* Whether this device has the first part. Ask this if nothing else about the number matters:
 * devices with other parts then count as alike (layout/rank_reads.h). */
bool wefti_lower_first(const wefti_lowering *c, int factor);
/* Range of part `index` of a factor, in units of the factor. */
void wefti_lower_range(const wefti_lowering *c, int factor, int32_t index, int64_t *begin,
                       int64_t *size);
/* Begin of this device's piece along dimension d of input i, in elements of the whole tensor. It
 * may become a value in attributes. If sizes, costs or the choice of nodes depend on it, ask for
 * the number of the part too. */
int64_t wefti_lower_in_begin(const wefti_lowering *c, int i, int d);
/* The shape of output o on this device. */
weft_desc wefti_lower_out_desc(const wefti_lowering *c, int o);

/* ---- nodes ---- */

/* Adds the node itself over local operands: all its inputs, with empty values for absent ones. Its
 * attributes are localized, then overridden by `attrs`. The op infers the shapes of the outputs. */
void wefti_lower_same(wefti_lowering *c, const weft_value *in, int attr_count,
                      const wefti_attr *attrs, weft_value *out);
/* The same by value numbers of the local body, for the partition. */
weft_status wefti_lower_add(wefti_lowering *c, const int32_t *in, int attr_count,
                            const wefti_attr *attrs, int32_t *out) WEFT_CHECKED;
/* Another op of the same file, found by pointer, is added with wefti_graph_add. */

/* ---- communication among the devices that split `factors` (bit mask) ---- */

/* Sum or maximum over these devices, with equal shape. Without a split: `value` itself. */
weft_value wefti_lower_all_reduce(wefti_lowering *c, weft_value value, uint32_t factors,
                                  wefti_reduction reduction);
/* Exchanges ranges along `dim`, for halos. `value` holds the elements of the whole tensor that
 * `have` returns for this part; the result holds the elements that `want` returns. Both return
 * ranges in elements, for any part. */
typedef void wefti_lower_ranges(const wefti_lowering *c, int32_t part, void *context,
                                int64_t *begin, int64_t *end);
weft_value wefti_lower_exchange(wefti_lowering *c, weft_value value, int dim, int factor,
                                wefti_lower_ranges *have, wefti_lower_ranges *want, void *context);
/* The same with another transfer kind: WEFTI_TRANSFER_SHIFT if whole pieces travel round,
 * WEFTI_TRANSFER_ALL_GATHER if each part wants all. */
weft_value wefti_lower_exchange_as(wefti_lowering *c, wefti_transfer_kind kind, weft_value value,
                                   int dim, int factor, wefti_lower_ranges *have,
                                   wefti_lower_ranges *want, void *context);

/* For ops that name ranks of the world themselves (WEFTI_OP_GROUP). `wefti_lower_world` returns
 * this rank, the number of ranks, and the ranks of its stage, which run the same nodes.
 * `wefti_lower_among` adds a transfer among `ranks` [members], ascending; this rank is
 * ranks[me]. */
wefti_lower_ranks wefti_lower_world(const wefti_lowering *c);
weft_value wefti_lower_among(wefti_lowering *c, weft_value value, int32_t members, int32_t *ranks,
                             int32_t me, wefti_transfer_kind kind, wefti_reduction reduction,
                             int rank, wefti_region *have, wefti_region *want);

/* If lowering fails, the graph records the failure (sticky); `lower` returns it or WEFT_OK. */

/* ---- the transfer op inside bodies ---- */

/* transfer(x) -> y: transfer number `index` of the body's program, with the `shape` of y and the
 * dtype of x. `moves` is a wefti_moved. Flag WEFTI_OP_COMM: the executor runs it, not a backend. */
extern const weft_op_def wefti_op_transfer;

/* What a transfer moves. */
typedef enum wefti_moved {
    WEFTI_MOVED_VALUE,    /* the named value */
    WEFTI_MOVED_GRADIENT, /* its gradient */
    WEFTI_MOVED_OPERAND,  /* an operand of the named op */
    WEFTI_MOVED
} wefti_moved;

/* The words before the name: "gradient of ", or "" for the value itself. */
const char *wefti_moved_text(wefti_moved moved);

/* Adds a transfer node: transfer `index` of `value`, with the shape of `result`. `scope` is the
 * text of `moved` and the name within the cell. It is kept, not copied. *out: the result. */
weft_status wefti_body_add_transfer(weft_body *b, int32_t value, int32_t index,
                                    const weft_desc *result, wefti_moved moved, const char *scope,
                                    int32_t *out) WEFT_CHECKED;

#endif
