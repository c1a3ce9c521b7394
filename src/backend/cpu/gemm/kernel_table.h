/* The interface between gemm.c, which divides a product into tasks, and the kernels, which exist
 * once for each isa. */
#ifndef WEFTI_BACKEND_CPU_GEMM_KERNEL_TABLE_H
#define WEFTI_BACKEND_CPU_GEMM_KERNEL_TABLE_H

#include "backend/cpu/gemm/gemm.h"

enum {
    GEMM_MAX_ROWS = 32, /* of a register tile */
    GEMM_MAX_COLUMNS = 48,
    GEMM_AHEAD = 8,             /* cache lines prefetched for each `depth_unit` of k */
    GEMM_SKINNY_ROWS = 8,       /* up to this many rows of A, B is read in place, once */
    GEMM_SKINNY_COLUMNS = 1024, /* columns of B that a skinny task owns at most */
};

enum gemm_path {
    GEMM_EMPTY,   /* C has no elements, or the product has no batch */
    GEMM_SHARED,  /* large: see gemm/run.c */
    GEMM_PRIVATE, /* small or batched: each task packs its own operands */
    GEMM_SKINNY,  /* few rows: bound by memory, B is read in place */
    GEMM_F64
};

/* One batch of a product for the epilogue: the place of each element of C. */
typedef struct wefti_gemm_sink {
    const wefti_gemm_spec *spec;
    char *c;
    const float *bias;
} wefti_gemm_sink;

/* Memory that later tiles read. A tile prefetches it into the second-level cache as it proceeds:
 * `runs` of `bytes` each, `stride` bytes apart. */
typedef struct wefti_gemm_ahead {
    const char *start, *at; /* begin of the current run; its next line */
    int64_t bytes, stride, runs;
} wefti_gemm_ahead;

/* From here on, sums are f32. Panels have the shape of the register tile: A as [k][rows], B as
 * [k][columns]. Short panels of B are filled up with zeros; short panels of A are undefined beyond
 * their rows.
 *
 * Elements are f32 if `element_bytes` is 4. Otherwise each element is one or more bf16 numbers, in
 * an order that depends on the kernel (gemm/amx.c, gemm/amx_f32.c, gemm/avx512_bf16.c). Then both
 * panels are filled up with zeros to a multiple of `depth_unit` lines. */
typedef struct wefti_gemm_kernels {
    int rows, columns;               /* register tile */
    int element_bytes;               /* of panels */
    int depth_unit;                  /* all blocks of k except the last are multiples of it */
    int64_t k_block, m_tile, n_tile; /* upper limits from the cache sizes */
    int64_t m_group; /* most rows of A that a thread packs for itself; 0: A is shared */
    int64_t n_group; /* the same for columns of B */
    bool reads_rows; /* reads bf16 where it lies: whole register tiles of A need no panel */
    /* c[rows, columns] = (add ? c : 0) + A panel * B panel, over k.
     *
     * The bits of an element depend only on its row of A, its column of B, `add` and the old
     * element. They do not depend on `rows`. `c` is f32 with its own row stride. `rows` rows are
     * computed, and always all columns. `a_stride`: 0 for a panel. Otherwise the bytes from row to
     * row of A where it lies (`reads_rows`; all rows, k in whole `depth_unit`s). `ahead` moves on
     * by a few lines for each `depth_unit` of k; NULL: no prefetch. */
    void (*tile)(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead);
    /* Called before and after all tiles of a task, if the thread needs setup; NULL: no setup. */
    void (*enter)(void);
    void (*leave)(void);
    /* Packs one panel from op(A) at `a`: `rows` (up to the tile's) by k. `readable_rows`: rows of
     * the matrix from here on. */
    void (*pack_a)(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel);
    void (*pack_b)(const wefti_gemm_operand *operand, const void *b, int64_t columns, int64_t k,
                   void *panel);
    /* Takes finished sums to C: the sums of rows [i, i + rows) and columns [j, j + columns), plus
     * `partial` if not NULL. */
    void (*epilogue)(const wefti_gemm_sink *sink, int64_t i, int64_t j, int64_t rows,
                     int64_t columns, const float *sums, int64_t sums_stride, const float *partial,
                     int64_t partial_stride);
    /* sums[rows, columns] = A B for rows <= GEMM_SKINNY_ROWS and columns <= GEMM_SKINNY_COLUMNS. a
     * is f32 [rows][k]. b has one stride of 1. */
    void (*skinny)(int64_t rows, int64_t columns, int64_t k, const float *a, int64_t a_stride,
                   const wefti_gemm_operand *operand, const void *b, float *sums);
} wefti_gemm_kernels;

/* The kernels of each isa. */
typedef struct wefti_gemm_forms {
    const wefti_gemm_kernels *plain, *avx2, *avx2_narrow, *avx512, *avx512_bf16, *amx, *amx_f32;
} wefti_gemm_forms;

extern const wefti_gemm_kernels wefti_gemm_kernels_plain;
#if defined(__x86_64__)
extern const wefti_gemm_kernels wefti_gemm_kernels_avx2;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx2_narrow;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx512;
extern const wefti_gemm_kernels wefti_gemm_kernels_avx512_bf16;
extern const wefti_gemm_kernels wefti_gemm_kernels_amx;
extern const wefti_gemm_kernels wefti_gemm_kernels_amx_f32;
#endif

/* The address of batch number `batch` (i * batch[1] + j) of an operand or output. NULL stays
 * NULL. */
const char *wefti_gemm_batch(const wefti_gemm_spec *spec, const wefti_gemm_operand *operand,
                             const void *data, int64_t batch);

/* gemm/run.c: the f32 algorithms. */
int64_t wefti_gemm_panel_bytes(const wefti_gemm *gemm, int threads);
void wefti_gemm_run_f32(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                        wefti_pool *pool);

/* gemm/f64.c: the same contract in doubles, for gradient checks and references. */
void wefti_gemm_run_f64(const wefti_gemm *gemm, const wefti_gemm_args *args, wefti_pool *pool);

#endif
