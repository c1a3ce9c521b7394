/* Matrix multiplication on the CPU: C (+)= alpha * op(A) op(B) + bias, batched, prepared once and
 * run many times.
 *
 * Structure: blocks for each cache level, with packed operands, around a register-tile kernel.
 * Sources: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS
 * 34(3), 2008. Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
 * Functionality", ACM TOMS 41(3), 2015.
 *
 * Packing converts bf16 operands to f32; in a product with `bf16` it converts f32 operands to bf16.
 * Sums are f32 (f64 for f64). With WEFTI_ISA_AMX, each f32 operand is split into three bf16
 * numbers. Their tiles are multiplied. This is no less exact than f32 (amx_f32.c).
 *
 * The isa, k and `bf16` alone determine the order of additions of one element of C, with one
 * exception. Products of up to 8 rows read B in place. They add in another order if the columns of
 * B are contiguous, or if products of more rows multiply bf16. Blocks of k are fixed when the
 * product is prepared, and are added in ascending order. So the bits do not depend on the number of
 * threads, and those of a row of C do not depend on the other rows. */
#ifndef WEFTI_BACKEND_CPU_GEMM_H
#define WEFTI_BACKEND_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/isa.h"
#include "base/pool.h"
#include "base/status.h"
#include "weft/types.h"

/* How a matrix lies in memory. Element (row, column) of batch (i, j) is at
 *   data[row * row_stride + column * column_stride + i * batch_stride[0] + j * batch_stride[1]]
 * Strides are in elements. A transposed matrix has the two strides swapped. A batch stride of 0
 * repeats the matrix. */
typedef struct wefti_gemm_operand {
    weft_dtype dtype; /* F32 or BF16 in any mix; or F64 for all three */
    int64_t row_stride, column_stride;
    int64_t batch_stride[2];
} wefti_gemm_operand;

/* For every batch (i, j), with S[m, n] = sum over k of A[m, k] B[k, n]:
 *   C = alpha * S + bias[n] + C
 * bias: if `has_bias`; f32 [n] (f64 with f64). + C, the old value: if `accumulate`.
 * k = 0 gives S = 0. C must not overlap an operand. */
typedef struct wefti_gemm_spec {
    int64_t m, n, k;
    int64_t batch[2]; /* {1, 1}: one product */
    wefti_gemm_operand a, b, c;
    double alpha;
    bool accumulate, has_bias;
    bool bf16; /* operands may be rounded to bf16, for arithmetic that takes only bf16 */
} wefti_gemm_spec;

/* C[m, n] = A[m, k] B[k, n], all row-major, dense, of one dtype. Change fields as needed. */
wefti_gemm_spec wefti_gemm_spec_of(weft_dtype dtype, int64_t m, int64_t n, int64_t k);
/* An operand with row-major [rows, columns] storage, or its transpose: op(X) = X^T, where X is
 * stored as [columns, rows]. */
wefti_gemm_operand wefti_gemm_rows(weft_dtype dtype, int64_t columns);
wefti_gemm_operand wefti_gemm_transposed(weft_dtype dtype, int64_t rows);

/* A prepared product: plain data that may be copied; it needs no destroy. The fields are private to
 * gemm*.c. */
typedef struct wefti_gemm {
    wefti_gemm_spec spec;
    wefti_isa isa;
    const struct wefti_gemm_kernels *kernels;
    int path;        /* the algorithm: enum gemm_path in kernel_table.h */
    int64_t k_block; /* KC: the same for all blocks of k except the last */
    int64_t k_span;  /* lines of k that are packed at once: some blocks */
    int64_t m_block; /* rows of A packed together for all threads */
    int64_t n_block; /* columns of B packed together for all threads */
    int64_t m_tile;  /* C tile of a task */
    int64_t n_tile;
    int64_t m_group; /* most rows of A that a thread packs for itself; 0: A is shared */
    int64_t n_group; /* the same for columns of B */
    bool a_in_place; /* whole register tiles of A are read where they lie */
    bool plain_sum;  /* C (+)= A B: tiles go to C straight from registers */
    bool split_sums; /* partial sums between k blocks live in the workspace, not in C */
} wefti_gemm;

typedef struct wefti_gemm_args {
    const void *a, *b;
    void *c;
    const void *bias; /* NULL without `has_bias` */
} wefti_gemm_args;

/* Packed panels of bf16 on AMX tiles, for kernels that pack and multiply operands of their own. The
 * contracts are those of the same members of wefti_gemm_kernels (kernel_table.h). */
struct wefti_gemm_ahead;
typedef struct wefti_gemm_panels {
    void (*enter)(void);
    void (*leave)(void);
    void (*pack_a)(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel);
    void (*pack_b)(const wefti_gemm_operand *operand, const void *b, int64_t columns, int64_t k,
                   void *panel);
    void (*tile)(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, struct wefti_gemm_ahead *ahead);
} wefti_gemm_panels;

/* *out: whether the isa multiplies bf16 directly, and faster here than in f32. Takes some
 * milliseconds. */
weft_status wefti_gemm_bf16_choice(wefti_isa isa, bool *out) WEFT_CHECKED;

/* Returns WEFT_E_SHAPE for negative sizes. Returns WEFT_E_NO_IMPL for dtypes outside the list
 * above, and for `bf16` if the isa has no such arithmetic (wefti_isa_has_bf16). Returns WEFT_E_ARG
 * for an isa that this build lacks. If only the processor lacks it, the product has its sizes, and
 * must not run. */
weft_status wefti_gemm_prepare(const wefti_gemm_spec *spec, wefti_isa isa,
                               wefti_gemm *out) WEFT_CHECKED;

/* Bytes of workspace that a run with `threads` threads needs. It grows with threads, and may be
 * 0. */
int64_t wefti_gemm_workspace_bytes(const wefti_gemm *gemm, int threads);

/* Runs the product. workspace: 64-byte aligned, of workspace_bytes(threads of the pool); its
 * contents do not matter before or after. Allocates nothing and cannot fail. NULL pool: the calling
 * thread runs alone. */
void wefti_gemm_run(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                    wefti_pool *pool);

#endif
