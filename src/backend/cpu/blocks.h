/* Block sizes that both a kernel and its workspace size depend on. They are functions of the
 * problem alone. */
#ifndef WEFTI_CPU_KERNELS_BLOCKS_H
#define WEFTI_CPU_KERNELS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/attention/attention.h"

enum {
    REDUCE_ROW_BLOCK = 8192,   /* elements of a row reduced into one partial result */
    REDUCE_COLUMN_BLOCK = 512, /* columns that a task holds */
    /* rows that are summed into one partial gradient of gamma and beta */
    NORM_ROW_BLOCK = 64,
    BATCH_NORM_ROW_BLOCK = 128, /* channels-last rows of one partial statistic */
    OPTIMIZER_BLOCK = 16384,    /* elements of a partial norm */
    ATTENTION_BR = 128,         /* queries of a tile */
    ATTENTION_BC = 64,          /* keys of a tile */
    ATTENTION_DECODE = 3,       /* up to this many queries are computed one by one */
    /* attention/amx.c: side of a register tile; keys are rounded up to it */
    ATTENTION_EDGE = 32,
    /* attention/amx.c: keys that have scores in memory at once, forward */
    ATTENTION_SPAN = 128,
    ATTENTION_ROWS = 64,  /* attention/amx.c: queries of a block, backward */
    ATTENTION_KEYS = 512, /* attention/amx.c: keys of a block, backward, at most */
};

static inline int64_t blocks_of(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}
/* Rows of one block of column sums: 128 KiB of f32 at full width. */
static inline int64_t reduce_block_rows(int64_t inner) {
    int64_t width = inner < REDUCE_COLUMN_BLOCK ? inner : REDUCE_COLUMN_BLOCK;
    int64_t rows = width > 0 ? 32768 / width : 32768;
    return rows < 64 ? 64 : rows;
}
/* Rows of one block of an optimizer's matrix passes: 64 KiB of f32 or more. */
static inline int64_t optimizer_block_rows(int64_t cols) {
    int64_t rows = OPTIMIZER_BLOCK / (cols > 0 ? cols : 1);
    return rows < 16 ? 16 : rows;
}

/* Whether attention/amx.c takes the shape. */
static inline int attention_fits_tiles(const wefti_attention_shape *s) {
    return s->bf16 && s->dim % ATTENTION_EDGE == 0 && s->dim <= 128 &&
           s->q_len > ATTENTION_DECODE && s->k_len <= 4096 && !s->mask.data && s->dropout == 0.0f &&
           s->window == 0;
}
static inline int64_t attention_tiles_block(int64_t keys) {
    return keys < ATTENTION_KEYS ? keys : ATTENTION_KEYS;
}
/* Bytes of the members of tiles_forward and tiles_backward in attention/amx.c. */
static inline int64_t attention_tiles_forward_bytes(const wefti_attention_shape *s) {
    int64_t keys = blocks_of(s->k_len, ATTENTION_EDGE) * ATTENTION_EDGE, edge = ATTENTION_EDGE;
    return attention_fits_tiles(s)
               ? 4 * keys * s->dim + 6 * edge * s->dim + edge * (6 * ATTENTION_SPAN + 64)
               : 0;
}
static inline int64_t attention_tiles_backward_bytes(const wefti_attention_shape *s) {
    int64_t keys = blocks_of(s->k_len, ATTENTION_EDGE) * ATTENTION_EDGE, rows = ATTENTION_ROWS;
    return attention_fits_tiles(s)
               ? 14 * keys * s->dim + 12 * rows * s->dim + 2 * rows * attention_tiles_block(keys) +
                     12 * ATTENTION_EDGE * rows + 8 * rows
               : 0;
}

/* Scratch of one thread, a multiple of 64 bytes. It holds the larger of two sizes. The first is for
 * the members of forward_memory in attention.c, or for the queries, outputs and states of decoding.
 * The second is for tiles. */
static inline size_t attention_forward_bytes(const wefti_attention_shape *s) {
    int64_t padded = blocks_of(s->dim, 16) * 16;
    int64_t floats = 2 * padded * ATTENTION_BR + 2 * ATTENTION_BC * padded +
                     3 * ATTENTION_BC * ATTENTION_BR + 3 * ATTENTION_BR;
    if (s->q_len <= ATTENTION_DECODE && s->kv_heads > 0)
        floats = s->q_heads / s->kv_heads * s->q_len * (2 * s->dim + 2);
    size_t bytes = (size_t)blocks_of(floats, 16) * 64;
    size_t tiles = (size_t)attention_tiles_forward_bytes(s);
    return tiles > bytes ? tiles : bytes;
}
/* Bytes of the members of backward_memory in attention_backward.c. */
static inline size_t attention_backward_bytes(const wefti_attention_shape *s) {
    int64_t padded = blocks_of(s->dim, 16) * 16,
            rows = blocks_of(s->k_len, ATTENTION_BC) * ATTENTION_BC;
    int64_t floats = 4 * rows * padded + 5 * ATTENTION_BR * padded +
                     4 * ATTENTION_BC * ATTENTION_BR + 4 * ATTENTION_BR;
    size_t bytes = (size_t)floats * sizeof(float);
    size_t tiles = (size_t)attention_tiles_backward_bytes(s);
    return tiles > bytes ? tiles : bytes;
}

#endif
