/* Cutting a node: what one device of a mesh computes of it.
 *
 * A node's strategy gives axes to the factors of its split rule. For FREE, SUM and MAX factors the
 * piece is the node itself on smaller operands (attributes that state sizes are rewritten by
 * `localize`), and what outputs are split by or partial over follows from the rule. For the other
 * kinds the op says what to do: its `lower` adds the nodes that one device runs, communication
 * among them. It sees this device's operands, already in the layouts that the strategy asks for,
 * and gives the local outputs.
 *
 * Nothing here is known of where the numbers of an axis run: processes, hosts or threads. */
#ifndef WEFTI_LOWER_H
#define WEFTI_LOWER_H

#include "graph/graph.h"
#include "layout/transfer.h"

typedef struct wefti_lower_ranks {
    int32_t rank, world, stage_first, stage_size;
} wefti_lower_ranks;

/* Adds a transfer of a local value to the local body and names it after the node. Supplied by the
 * partition; takes `transfer` over, also on failure. */
typedef weft_status wefti_lower_add_transfer(wefti_lowering *c, int32_t local,
                                             wefti_transfer *transfer, int32_t *out_local);

/* A node of the whole with its split, as one device sees it. The partition fills it in; `lower`
 * uses the functions below. */
struct wefti_lowering {
    const weft_node *n;
    wefti_split_rule rule;
    wefti_dim_split factor[WEFTI_MAX_FACTORS]; /* axes of each factor */
    wefti_axes keep; /* axes over which operands stay partial, and the results with them (LINEAR) */
    wefti_layout need[WEFTI_MAX_IN];  /* of inputs */
    wefti_layout give[WEFTI_MAX_OUT]; /* of outputs */
    int32_t local[WEFTI_MAX_IN];      /* operands in the local body, -1: absent */
    int32_t made[WEFTI_MAX_OUT];      /* results there, -1: not yet */
    const wefti_mesh *mesh;
    wefti_lower_ranks ranks;
    weft_graph *graph;             /* of the local body */
    weft_body *body;               /* the local body */
    struct wefti_builder *handles; /* of local values, while `lower` runs */
    wefti_lower_add_transfer *transfer;
    struct wefti_lower_context *context; /* the partition's own */
};

/* The graph to add local nodes to, with the functions of weft/ops.h and wefti_graph_add. */
weft_graph *wefti_lower_graph(wefti_lowering *c);
/* The node of the whole model: global shapes. */
const weft_node *wefti_lower_node(const wefti_lowering *c);
/* This device's piece of input i; empty when absent. Dimensions of the input that have a factor are
 * split as the factor is, those without are whole; never partial. */
weft_value wefti_lower_in(wefti_lowering *c, int i);
/* This device's piece of output o: dimensions split as their factors are, not partial. */
void wefti_lower_out(wefti_lowering *c, int o, weft_value value);
/* The same where `value` is one term of a sum over the devices that split `factors` (bit mask). */
void wefti_lower_out_partial(wefti_lowering *c, int o, weft_value value, uint32_t factors);

/* ---- factors, by number in the rule ---- */

const wefti_split_rule *wefti_lower_rule(const wefti_lowering *c);
int wefti_lower_factor(const wefti_lowering *c,
                       const char *name); /* -1: the rule has none of that name */
int32_t wefti_lower_parts(const wefti_lowering *c,
                          int factor); /* devices that share it; 1: not split, also for factor -1 */
int32_t wefti_lower_index(const wefti_lowering *c,
                          int factor); /* which of the parts this device has */
/* Range of part `index` of a factor, in units of the factor. */
void wefti_lower_range(const wefti_lowering *c, int factor, int32_t index, int64_t *begin,
                       int64_t *size);
/* Begin of this device's piece along dimension d of input i / output o, in elements of the whole.
 */
int64_t wefti_lower_in_begin(const wefti_lowering *c, int i, int d);
int64_t wefti_lower_out_begin(const wefti_lowering *c, int o, int d);
/* The shape of output o here. */
weft_desc wefti_lower_out_desc(const wefti_lowering *c, int o);

/* ---- nodes ---- */

/* The node itself over local operands (all of its inputs, empty where absent), attributes
 * localized, then changed by `attrs`. Its outputs, whose shapes are what the op infers. */
void wefti_lower_same(wefti_lowering *c, const weft_value *in, int attr_count,
                      const wefti_attr *attrs, weft_value *out);
/* The same by value numbers of the local body, for the partition. */
weft_status wefti_lower_add(wefti_lowering *c, const int32_t *in, int attr_count,
                            const wefti_attr *attrs, int32_t *out) WEFT_CHECKED;
/* Another op of this file, found by pointer, is added with wefti_graph_add as usual. */

/* ---- communication among the devices that share `factors` (bit mask) ---- */

/* Sum or maximum over them; same shape. Where nothing is split: value itself. */
weft_value wefti_lower_all_reduce(wefti_lowering *c, weft_value value, uint32_t factors,
                                  wefti_reduction reduction);
/* Pieces along `dim` joined in order of the parts; pieces may differ in size as the ranges of the
 * factor do, `unit` elements for each unit of the factor. */
weft_value wefti_lower_all_gather(wefti_lowering *c, weft_value value, int dim, int factor,
                                  int64_t unit);
/* The part that the device `by` places further has (cyclic): part (index + by) mod parts. Along
 * `dim` (-1: all parts have equal shapes) its size is that part's, `unit` elements for each unit of
 * the factor. */
weft_value wefti_lower_shift(wefti_lowering *c, weft_value value, int factor, int by, int dim,
                             int64_t unit);
/* `value` is a piece along `dim`: the elements of the whole that `have` says for this part. The
 * result is the elements that `want` says for this part. Ranges in elements, for any part. Halos.
 */
typedef void wefti_lower_ranges(const wefti_lowering *c, int32_t part, void *context,
                                int64_t *begin, int64_t *end);
weft_value wefti_lower_exchange(wefti_lowering *c, weft_value value, int dim, int factor,
                                wefti_lower_ranges *have, wefti_lower_ranges *want, void *context);
/* The same under another name: WEFTI_TRANSFER_SHIFT where whole pieces go round,
 * WEFTI_TRANSFER_ALL_GATHER where all are wanted. */
weft_value wefti_lower_exchange_as(wefti_lowering *c, wefti_transfer_kind kind, weft_value value,
                                   int dim, int factor, wefti_lower_ranges *have,
                                   wefti_lower_ranges *want, void *context);
/* The reverse: what `value` holds for each element of `have`'s range is added up at the device in
 * whose `want` range the element lies (want ranges do not overlap and cover all). Gradients of
 * halos. */
weft_value wefti_lower_exchange_add(wefti_lowering *c, weft_value value, int dim, int factor,
                                    wefti_lower_ranges *have, wefti_lower_ranges *want,
                                    void *context);
/* Any transfer at all over the devices that share `factors`: regions as the caller says, in its own
 * coordinates. `have` and `want` are for each member in order of ranks (parts of the first factor
 * slowest). The result's shape is want[me]. For routing by position where nothing above fits. */
weft_value wefti_lower_transfer(wefti_lowering *c, weft_value value, uint32_t factors,
                                wefti_transfer_kind kind, wefti_reduction reduction, int rank,
                                const wefti_region *have, const wefti_region *want);

/* For ops that name ranks of the world themselves (WEFTI_OP_GROUP): this rank, how many there are,
 * and those of its stage, who alone do the same; and a transfer among `ranks` [members], ascending,
 * of which this one is number `me`. */
wefti_lower_ranks wefti_lower_world(const wefti_lowering *c);
weft_value wefti_lower_among(wefti_lowering *c, weft_value value, int32_t members, int32_t *ranks,
                             int32_t me, wefti_transfer_kind kind, wefti_reduction reduction,
                             int rank, wefti_region *have, wefti_region *want);

/* A failure in lowering: recorded in the graph (sticky); `lower` returns it or WEFT_OK. */

/* ---- the op of communication inside bodies ---- */

/* transfer(x) -> y: transfer number `index` of the body's program; `shape` of y; dtype of x. Flag
 * WEFTI_OP_COMM: no backend runs it, the executor does. */
extern const weft_op_def wefti_op_transfer;
/* Adds such a node: transfer `index` of `value`, with a result of that shape. `scope` is kept, not
 * copied. *out: the result. */
weft_status wefti_body_add_transfer(weft_body *b, int32_t value, int32_t index,
                                    const weft_desc *result, const char *scope,
                                    int32_t *out) WEFT_CHECKED;

#endif
