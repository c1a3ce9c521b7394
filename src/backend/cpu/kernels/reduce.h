/* Reductions of [outer, reduce, inner] over the middle axis. Last dims: inner = 1. Leading dims
 * (column sums, the bias gradient): outer = 1. Sums run over fixed blocks, which are added in
 * order. */
#ifndef WEFTI_CPU_KERNELS_REDUCE_H
#define WEFTI_CPU_KERNELS_REDUCE_H

#include "backend/cpu/types.h"

typedef enum wefti_reduce_op { WEFTI_FOLD_SUM, WEFTI_FOLD_MEAN, WEFTI_FOLD_MAX } wefti_reduce_op;

typedef struct wefti_reduce_args {
    wefti_reduce_op op;
    wefti_src x; /* [outer, reduce, inner] f32, bf16 */
    wefti_dst y; /* [outer, inner] */
    int64_t outer, reduce, inner;
    bool accumulate; /* y += result (sum, mean) or y = max(y, result) */
    void *workspace;
} wefti_reduce_args; /* empty reduction: sum 0, mean NaN, max -inf; a max over a NaN is NaN */

size_t wefti_reduce_workspace_bytes(int64_t outer, int64_t reduce, int64_t inner);

typedef struct wefti_argmax_args {
    wefti_src x; /* [outer, reduce, inner] f32, bf16; reduce >= 1 */
    /* [outer, inner] i32 or i64: the first index of the greatest element; NaN counts as greatest */
    wefti_dst y;
    int64_t outer, reduce, inner;
} wefti_argmax_args;

/* The sum of x^2 in f64 over blocks of 8192 elements, for the global norm. */
typedef struct wefti_sum_squares_args {
    wefti_src x;
    int64_t elements;
    double *result;
    void *workspace;
} wefti_sum_squares_args;

size_t wefti_sum_squares_workspace_bytes(int64_t elements);

#endif
