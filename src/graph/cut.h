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
#ifndef WEFTI_CUT_H
#define WEFTI_CUT_H

#include "graph/graph.h"
#include "layout/transfer.h"

typedef struct wefti_cut wefti_cut;

/* The graph to add local nodes to, with the functions of weft/ops.h and wefti_graph_add. */
weft_graph *wefti_cut_graph(wefti_cut *c);
/* The node of the whole model: global shapes. */
const weft_node *wefti_cut_node(const wefti_cut *c);
/* This device's piece of input i; empty when absent. Dimensions of the input that have a factor are
 * split as the factor is, those without are whole; never partial. */
weft_value wefti_cut_in(wefti_cut *c, int i);
/* This device's piece of output o: dimensions split as their factors are, not partial. */
void wefti_cut_out(wefti_cut *c, int o, weft_value value);
/* The same where `value` is one term of a sum over the devices that split `factors` (bit mask). */
void wefti_cut_out_partial(wefti_cut *c, int o, weft_value value, uint32_t factors);

/* ---- factors, by number in the rule ---- */

const wefti_split_rule *wefti_cut_rule(const wefti_cut *c);
int wefti_cut_factor(const wefti_cut *c, const char *name); /* -1: the rule has none of that name */
int32_t wefti_cut_parts(const wefti_cut *c,
                        int factor); /* devices that share it; 1: not split, also for factor -1 */
int32_t wefti_cut_index(const wefti_cut *c, int factor); /* which of the parts this device has */
/* Range of part `index` of a factor, in units of the factor. */
void wefti_cut_range(const wefti_cut *c, int factor, int32_t index, int64_t *begin, int64_t *size);
/* Begin of this device's piece along dimension d of input i / output o, in elements of the whole.
 */
int64_t wefti_cut_in_begin(const wefti_cut *c, int i, int d);
int64_t wefti_cut_out_begin(const wefti_cut *c, int o, int d);
/* The shape of output o here. */
weft_desc wefti_cut_out_desc(const wefti_cut *c, int o);

/* ---- nodes ---- */

/* The node itself over local operands (all of its inputs, empty where absent), attributes
 * localized, then changed by `attrs`. Its outputs, whose shapes are what the op infers. */
void wefti_cut_same(wefti_cut *c, const weft_value *in, int attr_count, const wefti_attr *attrs,
                    weft_value *out);
/* Another op of this file, found by pointer, is added with wefti_graph_add as usual. */

/* ---- communication among the devices that share `factors` (bit mask) ---- */

/* Sum or maximum over them; same shape. Where nothing is split: value itself. */
weft_value wefti_cut_all_reduce(wefti_cut *c, weft_value value, uint32_t factors,
                                wefti_reduction reduction);
/* Pieces along `dim` joined in order of the parts; pieces may differ in size as the ranges of the
 * factor do, `unit` elements for each unit of the factor. */
weft_value wefti_cut_all_gather(wefti_cut *c, weft_value value, int dim, int factor, int64_t unit);
/* The part that the device `by` places further has (cyclic): part (index + by) mod parts. Along
 * `dim` (-1: all parts have equal shapes) its size is that part's, `unit` elements for each unit of
 * the factor. */
weft_value wefti_cut_shift(wefti_cut *c, weft_value value, int factor, int by, int dim,
                           int64_t unit);
/* `value` is a piece along `dim` of a tensor of `size` elements there, which lie as `have` says for
 * each part; the result is the elements that `want` says for this part, inside [0, size). Ranges in
 * elements, for any part. Halos. */
typedef void wefti_cut_ranges(const wefti_cut *c, int32_t part, void *context, int64_t *begin,
                              int64_t *end);
weft_value wefti_cut_exchange(wefti_cut *c, weft_value value, int dim, int factor, int64_t size,
                              wefti_cut_ranges *have, wefti_cut_ranges *want, void *context);
/* The same under another name: WEFTI_TRANSFER_SHIFT where whole pieces go round,
 * WEFTI_TRANSFER_ALL_GATHER where all are wanted. */
weft_value wefti_cut_exchange_as(wefti_cut *c, wefti_transfer_kind kind, weft_value value, int dim,
                                 int factor, wefti_cut_ranges *have, wefti_cut_ranges *want,
                                 void *context);
/* The reverse: what `value` holds for each element of `have`'s range is added up at the device in
 * whose `want` range the element lies (want ranges do not overlap and cover all). Gradients of
 * halos. */
weft_value wefti_cut_exchange_add(wefti_cut *c, weft_value value, int dim, int factor, int64_t size,
                                  wefti_cut_ranges *have, wefti_cut_ranges *want, void *context);
/* Any transfer at all over the devices that share `factors`: regions as the caller says, in its own
 * coordinates. `have` and `want` are for each member in order of ranks (parts of the first factor
 * slowest). The result's shape is want[me]. For routing by position where nothing above fits. */
weft_value wefti_cut_transfer(wefti_cut *c, weft_value value, uint32_t factors,
                              wefti_transfer_kind kind, wefti_reduction reduction, int rank,
                              const wefti_region *have, const wefti_region *want);

/* For ops that name ranks of the world themselves (WEFTI_OP_GROUP): this rank, how many there are,
 * and those of its stage, who alone do the same; and a transfer among `ranks` [members], ascending,
 * of which this one is number `me`. */
typedef struct wefti_cut_ranks {
    int32_t rank, world, stage_first, stage_size;
} wefti_cut_ranks;
wefti_cut_ranks wefti_cut_world(const wefti_cut *c);
weft_value wefti_cut_among(wefti_cut *c, weft_value value, int32_t members, int32_t *ranks,
                           int32_t me, wefti_transfer_kind kind, wefti_reduction reduction,
                           int rank, wefti_region *have, wefti_region *want);

/* A failure in lowering: recorded in the graph (sticky); `lower` returns it or WEFT_OK. */

/* ---- the op of communication inside bodies ---- */

/* transfer(x) -> y: transfer number `index` of the body's program; `shape` of y; dtype of x. Flag
 * WEFTI_OP_COMM: no backend runs it, the executor does. */
extern const weft_op_def wefti_op_transfer;

#endif
