/* Blocks of a product in f32 or bf16. A block places and packs panels of A and B, and computes
 * tiles of C from them. run.c makes tasks of blocks; gemm.c chooses their sizes. */
#ifndef WEFTI_BACKEND_CPU_GEMM_BLOCK_H
#define WEFTI_BACKEND_CPU_GEMM_BLOCK_H

#include "base/number.h"
#include "backend/cpu/gemm/kernel_table.h"

enum { GEMM_ALIGNMENT = 64 };

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Panels of A and B over one span of k, for some rows and columns of one batch. */
typedef struct wefti_gemm_block {
    const wefti_gemm *gemm;
    wefti_gemm_sink sink;
    const char *a, *b; /* unpacked operands of this batch */
    char *a_panels, *b_panels;
    int64_t a_first, b_first; /* row and column of the block at which the panels begin */
    int64_t panel_depth;      /* lines of a panel */
    float *partial;           /* sums of the k blocks so far; NULL if they wait in C */
    int64_t i, j, p;          /* where the block starts */
    int64_t rows, columns, depth;
    int64_t m_tile, n_tile; /* of this run */
    bool own_rows;          /* each task packs its own m_tile rows of A */
    bool own_columns;       /* each task packs its own n_tile columns of B */
    /* columns (own_rows: rows) before this are in whole tiles, later ones in smaller tiles */
    int64_t coarse;
} wefti_gemm_block;

/* Bytes of a block's panels of A, of some columns' panels of B, and of sums that wait for later k
 * blocks. */
int64_t wefti_gemm_a_bytes(const wefti_gemm *gemm);
int64_t wefti_gemm_columns_bytes(const wefti_gemm *gemm, int64_t columns);
int64_t wefti_gemm_partial_bytes(const wefti_gemm *gemm);

/* Begins a block. Its panels lie in `workspace`: A's, partial sums, B's. Then call
 * wefti_gemm_block_batch and wefti_gemm_block_span. */
void wefti_gemm_block_begin(wefti_gemm_block *w, const wefti_gemm *gemm, char *workspace);
void wefti_gemm_block_batch(wefti_gemm_block *w, const wefti_gemm_args *args, int64_t batch);
void wefti_gemm_block_span(wefti_gemm_block *w, int64_t p);

/* The first panel of A that must be packed, and the number of such panels. The other panels are
 * read in place. */
int64_t wefti_gemm_first_a_panel(const wefti_gemm_block *w);
int64_t wefti_gemm_a_panels(const wefti_gemm_block *w);
/* Packs panels [first, end). */
void wefti_gemm_pack_a_panels(const wefti_gemm_block *w, int64_t first, int64_t end);
void wefti_gemm_pack_b_panels(const wefti_gemm_block *w, int64_t first, int64_t end);

/* Compute C from packed panels, over the span of k. Both prefetch the memory that is read next.
 * `tiles`: rows [i, i_end) and columns [j, j_end). A panel of B meets all panels of A before the
 * next panel of B.
 * `columns`: all rows of the block. Each m_tile rows meet all panels of B before the next rows. */
void wefti_gemm_compute_tiles(const wefti_gemm_block *w, int64_t i, int64_t i_end, int64_t j,
                              int64_t j_end);
void wefti_gemm_compute_columns(const wefti_gemm_block *w, int64_t j, int64_t j_end);

/* Element [row, column] of an operand. */
const void *wefti_gemm_element(const wefti_gemm_operand *operand, const char *data, int64_t row,
                               int64_t column);

#endif
