/* Scratch sizes of the kernels. They are functions of the problem alone, and the same for every
 * instruction set. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/blocks.h"
#include "rows/rows.h"

size_t wefti_reduce_workspace_bytes(int64_t outer, int64_t reduce, int64_t inner) {
    int64_t block = inner == 1 ? REDUCE_ROW_BLOCK : reduce_block_rows(inner);
    int64_t blocks = blocks_of(reduce, block);
    return blocks > 1 ? (size_t)(outer * blocks * inner) * sizeof(float) : 0;
}

size_t wefti_sum_squares_workspace_bytes(int64_t elements) {
    return (size_t)blocks_of(elements, REDUCE_ROW_BLOCK) * sizeof(double);
}

/* A row of dgamma and one of dbeta for each block of rows. */
size_t wefti_norm_backward_workspace_bytes(int64_t rows, int64_t dim) {
    return (size_t)(2 * blocks_of(rows, NORM_ROW_BLOCK) * dim) * sizeof(float);
}

/* Scale, shift and factor of each channel, and two partial results for each piece. */
size_t wefti_batch_norm_workspace_bytes(int64_t n, int64_t channels, int64_t spatial) {
    int64_t pieces = blocks_of(n * spatial, BATCH_NORM_ROW_BLOCK);
    if (n > pieces) pieces = n;
    if (pieces < 1) pieces = 1;
    return (size_t)((3 + 2 * pieces) * channels) * sizeof(float);
}

/* The ids as the rows have them, and what finds equal ones. */
size_t wefti_rows_sum_workspace_bytes(int64_t places) {
    return (size_t)places * sizeof(int32_t) + wefti_rows_bytes(places);
}

size_t wefti_lamb_workspace_bytes(int64_t elements) {
    return (size_t)(2 * blocks_of(elements, OPTIMIZER_BLOCK)) * sizeof(double);
}

/* See adafactor.c: norms, row and column factors, partial column sums. */
size_t wefti_adafactor_workspace_bytes(int64_t rows, int64_t cols) {
    if (rows < 1) rows = 1;
    int64_t blocks = blocks_of(rows, optimizer_block_rows(cols));
    int64_t strips = blocks_of(cols, OPTIMIZER_BLOCK);
    return (size_t)(2 * blocks * strips) * sizeof(double) +
           (size_t)(rows + cols + blocks * cols) * sizeof(float);
}

/* A value and an index for each result. */
size_t wefti_top_k_workspace_bytes(int64_t rows, int64_t dim, int64_t k) {
    (void)dim;
    return (size_t)(rows * k) * 2 * sizeof(int64_t);
}

size_t wefti_attention_workspace_bytes(const wefti_attention_shape *shape, int threads) {
    return (size_t)threads * attention_forward_bytes(shape);
}
size_t wefti_attention_backward_workspace_bytes(const wefti_attention_shape *shape, int threads) {
    return (size_t)threads * attention_backward_bytes(shape);
}
