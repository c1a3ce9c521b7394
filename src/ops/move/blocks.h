/* Blocks along a split dimension: slice, pad and concat of tensors that are split there.
 *
 * Along one dimension, y[o] = x[o + shift], for elements that x has. Tensors x and y each have
 * their own parts, or are whole if the dimension has size 1. A device receives exactly the elements
 * of x that its part of y needs and that it lacks. */
#ifndef WEFTI_OPS_BLOCKS_H
#define WEFTI_OPS_BLOCKS_H

#include "ops/window.h"

typedef struct wefti_block {
    int dim, factor;
    int32_t parts;
    int64_t x, y, shift; /* x, y: sizes of the whole tensors */
    bool x_whole, y_whole;
} wefti_block;

/* The block between input i and output o. */
wefti_block wefti_block_of(const wefti_lowering *c, int i, int o, int dim, int64_t shift);
/* The range of x that this device's part of y takes. It may extend beyond the ends of x. */
wefti_interval wefti_block_extent(const wefti_lowering *c, const wefti_block *b);
/* The same range, limited to the elements of x. Empty if none is left. */
wefti_interval wefti_block_taken(const wefti_lowering *c, const wefti_block *b);
/* Fetches this range from the pieces of x. *out is the range of the result, which contains it. */
weft_value wefti_block_fetch(wefti_lowering *c, const wefti_block *b, weft_value x,
                             wefti_interval *out);
/* The bytes that the device with the most receives when it fetches `count` blocks along one
 * dimension from pieces of input i. */
int64_t wefti_block_bytes(const wefti_lowering *c, int count, const wefti_block *b, int i);

/* Adds one factor of kind HALO for a dimension in which the tensors of a node differ in size. Its
 * size is the smallest size that can be split. Tensors with fewer than 2 elements there stay
 * whole. */
void wefti_block_factor(const weft_node *n, int dim, wefti_split_rule *r);

#endif
