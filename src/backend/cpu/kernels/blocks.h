/* Block sizes that both a kernel and its workspace size depend on. They are functions of the
 * problem alone. Those of attention are in attention/attention.h. */
#ifndef WEFTI_CPU_KERNELS_BLOCKS_H
#define WEFTI_CPU_KERNELS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/types.h"

enum {
    REDUCE_ROW_BLOCK = 8192,   /* elements of a row reduced into one partial result */
    REDUCE_COLUMN_BLOCK = 512, /* columns that a task holds */
    /* rows that are summed into one partial gradient of gamma and beta */
    NORM_ROW_BLOCK = 64,
    BATCH_NORM_ROW_BLOCK = 128, /* channels-last rows of one partial statistic */
    OPTIMIZER_BLOCK = 16384,    /* elements of a partial norm */
};

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

#endif
