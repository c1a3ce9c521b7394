/* Rewriting passes: each makes a new body of equal meaning from a body. */
#ifndef WEFTI_REWRITE_H
#define WEFTI_REWRITE_H

#include "graph/grad/grad.h"
#include "partition/partition.h"

/* Fuses chains of elementwise nodes; each fused node makes one pass over memory. */
weft_status wefti_fuse_elementwise(weft_graph *g, const weft_body *body,
                                   weft_body **out) WEFT_CHECKED;
/* Fuses linear -> cross_entropy -> its gradient -> both gradients of the linear, in one body, into
 * one node that never holds all logits. Handles each such loss. Source of the idea: Hsu et al.,
 * "Liger Kernel", 2024, section 3.2. */
weft_status wefti_fuse_loss(weft_graph *g, const weft_body *body, weft_body **out) WEFT_CHECKED;

/* Chunked loss: repeats other heads linear -> cross_entropy for chunks of rows, so that at most
 * `most` logits exist at once. These are heads without gradients, with some of the gradients, or
 * over a split vocabulary, where devices communicate per row between loss and gradient. Handles
 * every such loss of the body. The transfers of the chunks are added to the partition. NULL:
 * nothing to do. */
enum { WEFTI_CHUNK_LOGITS = 32 << 20 };
weft_status wefti_chunk_loss(weft_graph *g, wefti_partition *part, const weft_body *body,
                             int64_t most, weft_body **out) WEFT_CHECKED;

/* Divides each call of `root` whose ops run in two places into calls of which each runs in one.
 * Equal parts of equal cells are one body, which `g` owns. The calls keep the name of the divided
 * one, and ops their random numbers. root: belongs to the caller, with nodes of its own; its nodes
 * and values change. *out_apart [nodes of the root]: freed by the caller. */
typedef bool (*wefti_is_apart)(void *context, const weft_body *root, const weft_node *call,
                               const weft_node *op);
weft_status wefti_divide(weft_graph *g, weft_body *root, wefti_is_apart is_apart, void *context,
                         bool **out_apart) WEFT_CHECKED;

/* Copies a body node by node: map[v] is the new index of old value v, -1 while unknown. */
weft_status wefti_copy_inputs(const weft_body *from, weft_body *to, int32_t *map) WEFT_CHECKED;
weft_status wefti_copy_outputs(const weft_body *from, weft_body *to,
                               const int32_t *map) WEFT_CHECKED;

/* Runs all fusion passes: a new body of equal meaning. `part`: the partition with the body's
 * transfers; NULL: the body has none. */
weft_status wefti_fuse(weft_graph *g, wefti_partition *part, const weft_body *body,
                       weft_body **out) WEFT_CHECKED;

/* Makes the fused forward-backward body of one cell. Inputs: the cell's, then one per given output
 * gradient, in the order of outputs. Outputs: the cell's, then the backward body's. */
weft_status wefti_fuse_passes(weft_graph *g, const wefti_cell_grad *grad, const bool *given,
                              weft_body **out) WEFT_CHECKED;

#endif
