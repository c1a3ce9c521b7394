/* Blocks along a split dimension: slices, pads and joints of tensors that are cut there.
 *
 * y[o] = x[o + shift] along one dimension, where x has it. x and y are each cut into parts of their
 * own, or whole where the dimension has size 1; a device gets from the others those elements of x
 * that its part of y takes, and no more. */
#ifndef WEFTI_OPS_BLOCKS_H
#define WEFTI_OPS_BLOCKS_H

#include "ops/window.h"

typedef struct wefti_block {
    int dim, factor;
    int32_t parts;
    int64_t x, y, shift; /* sizes of the whole */
    bool x_whole, y_whole;
} wefti_block;

/* Of input i and output o. */
wefti_block wefti_block_of(const wefti_lowering *c, int i, int o, int dim, int64_t shift);
/* What this device's part of y takes, in elements of x, beyond the ends of x too. */
wefti_interval wefti_block_extent(const wefti_lowering *c, const wefti_block *b);
/* The same without what x has not; empty for nothing. */
wefti_interval wefti_block_taken(const wefti_lowering *c, const wefti_block *b);
/* From pieces of x: *out, which has all of that. */
weft_value wefti_block_fetch(wefti_lowering *c, const wefti_block *b, weft_value x,
                             wefti_interval *out);
/* What that brings to the device that gets most, of `count` blocks along one dimension, in bytes
 * of pieces of input i. */
int64_t wefti_block_bytes(const wefti_lowering *c, int count, const wefti_block *b, int i);

/* The one factor of a dimension along which tensors of a node have sizes of their own: HALO, of the
 * smallest size that can be cut; those of fewer than 2 elements are whole. */
void wefti_block_factor(const weft_node *n, int dim, wefti_split_rule *r);

#endif
