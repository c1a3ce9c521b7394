/* Between gemm.c, which cuts a product into tasks, and the kernels, which exist once for each isa.
 */
#ifndef WEFTI_BACKEND_CPU_GEMM_INTERNAL_H
#define WEFTI_BACKEND_CPU_GEMM_INTERNAL_H

#include "backend/cpu/gemm/gemm.h"

enum {
    GEMM_MAX_ROWS = 32, /* of a register tile */
    GEMM_MAX_COLUMNS = 48,
    GEMM_AHEAD = 8,            /* lines of memory fetched ahead for each `depth_unit` of k */
    GEMM_SKINNY_ROWS = 8,      /* up to this many rows B is read in place, once */
    GEMM_SKINNY_COLUMNS = 512, /* of B that a skinny task owns: 16 KiB of sums for 8 rows */
};

enum gemm_path {
    GEMM_EMPTY,   /* no element of C, or no batch */
    GEMM_SHARED,  /* large: see gemm/run.c */
    GEMM_PRIVATE, /* small or batched: each task packs what it needs */
    GEMM_SKINNY,  /* few rows: memory-bound, B is read in place */
    GEMM_F64
};

/* One batch of a product as the epilogue sees it: where each element of C belongs. */
typedef struct wefti_gemm_sink {
    const wefti_gemm_spec *spec;
    char *c;
    const float *bias;
} wefti_gemm_sink;

/* Memory that later tiles read, fetched into the second-level cache as a tile goes on: `runs` of
 * `bytes` each, `stride` bytes apart. */
typedef struct wefti_gemm_ahead {
    const char *start, *at; /* of the run; the next line of it */
    int64_t bytes, stride, runs;
} wefti_gemm_ahead;

/* Sums are f32 from here on. Panels: A as [k][rows], B as [k][columns], of the register tile, short
 * panels of B filled up with zeros and short panels of A left undefined beyond their rows. Elements
 * are f32. Where `element_bytes` is not 4 they are one or several bf16 numbers in an order of their
 * own (gemm/amx.c, gemm/amx_f32.c, gemm/avx512_bf16.c), and both panels are filled up with zeros to
 * a multiple of `depth_unit` lines. */
typedef struct wefti_gemm_kernels {
    int rows, columns;               /* register tile */
    int element_bytes;               /* of panels */
    int depth_unit;                  /* blocks of k, but the last, are multiples of it */
    int64_t k_block, m_tile, n_tile; /* at most: what the caches hold */
    int64_t m_group; /* rows of A that a thread packs for itself, at most; 0: A is shared */
    int64_t n_group; /* columns of B, likewise */
    bool reads_rows; /* of bf16, where they lie: whole register tiles of A need no panel */
    /* c[rows, columns] = (add ? c : 0) + A panel * B panel, over k. The bits of an element depend
     * on its row of A, its column of B, `add` and the old element only, not on `rows`. c is f32
     * with its own row stride. rows counts those that are computed; all columns are. a_stride: 0
     * for a panel, else the bytes from row to row of A where it lies (`reads_rows`; all rows, k in
     * whole `depth_unit`s). `ahead` moves on by a few lines for each `depth_unit` of k; NULL: none.
     */
    void (*tile)(int rows, int64_t k, const void *a, int64_t a_stride, const void *b, float *c,
                 int64_t c_stride, bool add, wefti_gemm_ahead *ahead);
    /* Around all tiles of a task, where the thread needs them; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    /* One panel from op(A) at `a`: `rows` (up to the tile's) by k. `readable_rows`: rows of the
     * matrix from here on. */
    void (*pack_a)(const wefti_gemm_operand *operand, const void *a, int64_t rows,
                   int64_t readable_rows, int64_t k, void *panel);
    void (*pack_b)(const wefti_gemm_operand *operand, const void *b, int64_t columns, int64_t k,
                   void *panel);
    /* Take finished sums to C: the sums of rows [i, i + rows) and columns [j, j + columns), plus
     * `partial` where not NULL. */
    void (*epilogue)(const wefti_gemm_sink *sink, int64_t i, int64_t j, int64_t rows,
                     int64_t columns, const float *sums, int64_t sums_stride, const float *partial,
                     int64_t partial_stride);
    /* sums[rows, columns] = A B for rows <= GEMM_SKINNY_ROWS, columns <= GEMM_SKINNY_COLUMNS; a is
     * f32 [rows][k]; b has one stride of 1. */
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

/* The operand's or output's batch number `batch` (i * batch[1] + j). NULL stays NULL. */
const char *wefti_gemm_batch(const wefti_gemm_spec *spec, const wefti_gemm_operand *operand,
                             const void *data, int64_t batch);

/* gemm/run.c: the f32 algorithms. */
int64_t wefti_gemm_panel_bytes(const wefti_gemm *gemm, int threads);
void wefti_gemm_run_f32(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                        wefti_pool *pool);

/* gemm/f64.c: the same contract in doubles, for gradient checks and references. */
void wefti_gemm_run_f64(const wefti_gemm *gemm, const wefti_gemm_args *args, wefti_pool *pool);

#endif
