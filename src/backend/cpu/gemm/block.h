/* Blocks of a product in f32 or bf16: where panels of A and B lie, how they are packed, and tiles
 * of C from them. run.c makes tasks of it, gemm.c chooses the sizes. */
#ifndef WEFTI_BACKEND_CPU_GEMM_BLOCK_H
#define WEFTI_BACKEND_CPU_GEMM_BLOCK_H

#include "backend/cpu/gemm_internal.h"

enum { GEMM_ALIGNMENT = 64 };

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}
static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Panels of A and B over one span of k, of some rows and columns of one batch. */
typedef struct wefti_gemm_block {
    const wefti_gemm *gemm;
    wefti_gemm_sink sink;
    const char *a, *b; /* operands of this batch, unpacked */
    char *a_panels, *b_panels;
    int64_t a_first, b_first; /* row and column of the block that the panels begin with */
    int64_t panel_depth;      /* lines of a panel */
    float *partial;           /* sums of the k blocks so far, NULL where they wait in C */
    int64_t i, j, p;          /* where the block starts */
    int64_t rows, columns, depth;
    int64_t m_tile, n_tile; /* of this run */
    bool own_rows;          /* tasks pack m_tile rows of A for themselves */
    bool own_columns;       /* tasks pack n_tile columns of B for themselves */
    int64_t coarse; /* columns (own_rows: rows) before this go in whole tiles, others in finer */
} wefti_gemm_block;

/* Bytes of the panels of a block: of A, of some columns of B, of sums that wait for more of k. */
int64_t wefti_gemm_a_bytes(const wefti_gemm *gemm);
int64_t wefti_gemm_columns_bytes(const wefti_gemm *gemm, int64_t columns);
int64_t wefti_gemm_partial_bytes(const wefti_gemm *gemm);

/* A block whose panels lie in `workspace`: A's, partial sums, B's. Then its batch and its span. */
void wefti_gemm_block_begin(wefti_gemm_block *w, const wefti_gemm *gemm, char *workspace);
void wefti_gemm_block_batch(wefti_gemm_block *w, const wefti_gemm_args *args, int64_t batch);
void wefti_gemm_block_span(wefti_gemm_block *w, int64_t p);

/* The first panel of A that has to be packed, and their number; the others are read in place. */
int64_t wefti_gemm_first_a_panel(const wefti_gemm_block *w);
int64_t wefti_gemm_a_panels(const wefti_gemm_block *w);
/* Pack panels [first, end). */
void wefti_gemm_pack_a_panels(const wefti_gemm_block *w, int64_t first, int64_t end);
void wefti_gemm_pack_b_panels(const wefti_gemm_block *w, int64_t first, int64_t end);

/* C from packed panels, over the span of k. Tiles: rows [i, i_end) and columns [j, j_end), a panel
 * of B with all panels of A before the next one. Columns: all rows of the block, m_tile of them
 * with all panels of B before the next ones. What is read next is fetched meanwhile. */
void wefti_gemm_compute_tiles(const wefti_gemm_block *w, int64_t i, int64_t i_end, int64_t j,
                              int64_t j_end);
void wefti_gemm_compute_columns(const wefti_gemm_block *w, int64_t j, int64_t j_end);

/* Element [row, column] of an operand. */
const void *wefti_gemm_element(const wefti_gemm_operand *operand, const char *data, int64_t row,
                               int64_t column);

#endif
