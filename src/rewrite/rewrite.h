/* Rewriting passes, each from a body to a new body of equal meaning. */
#ifndef WEFTI_REWRITE_H
#define WEFTI_REWRITE_H

#include "graph/grad/grad.h"
#include "partition/partition.h"

/* Chains of elementwise nodes become one fused node that makes one pass over memory. */
weft_status wefti_fuse_elementwise(weft_graph *g, const weft_body *body,
                                   weft_body **out) WEFT_CHECKED;
/* linear -> cross_entropy -> its gradient -> both gradients of the linear, in one body: one node
 * that never holds all logits, for each loss. Source: the idea of Hsu et al., "Liger Kernel", 2024,
 * section 3.2.
 */
weft_status wefti_fuse_loss(weft_graph *g, const weft_body *body, weft_body **out) WEFT_CHECKED;

/* linear -> cross_entropy forward only, with some of the gradients, or over a split vocabulary,
 * where devices exchange what they know of each row between loss and gradient: repeated for chunks
 * of rows, so that no more than `most` logits are there at once. Every such loss of the body.
 * Transfers of the chunks join the partition's. NULL: nothing to do. */
enum { WEFTI_CHUNK_LOGITS = 32 << 20 };
weft_status wefti_chunk_loss(weft_graph *g, wefti_partition *part, const weft_body *body,
                             int64_t most, weft_body **out) WEFT_CHECKED;

/* Copying a body node by node: map[v] is the new index of old value v, -1 while unknown. */
weft_status wefti_copy_inputs(const weft_body *from, weft_body *to, int32_t *map) WEFT_CHECKED;
weft_status wefti_copy_outputs(const weft_body *from, weft_body *to,
                               const int32_t *map) WEFT_CHECKED;

/* All fusion passes: a new body of equal meaning. `part`: whose transfers the body names;
 * NULL: it has none. */
weft_status wefti_fuse(weft_graph *g, wefti_partition *part, const weft_body *body,
                       weft_body **out) WEFT_CHECKED;

/* Forward and backward of one cell as one body. Inputs: the cell's, then one per given
 * output gradient (in order of outputs); outputs: the cell's, then backward's. */
weft_status wefti_joint_body(weft_graph *g, const wefti_cell_grad *grad, const bool *given,
                             weft_body **out) WEFT_CHECKED;

#endif
