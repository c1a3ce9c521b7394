/* The panels and tiles of one block of a product. See block.h. */
#include "backend/cpu/gemm/block.h"

#include <string.h>

#include "tensor/tensor.h"

enum { PACK_DEPTH = 64 };

/* When A is read in place, a last panel with fewer rows is still packed. */
int64_t wefti_gemm_a_bytes(const wefti_gemm *gemm) {
    const int64_t rows = gemm->a_in_place ? gemm->kernels->rows : gemm->m_block;
    return wefti_round_up(rows * gemm->k_span * gemm->kernels->element_bytes, GEMM_ALIGNMENT);
}
int64_t wefti_gemm_columns_bytes(const wefti_gemm *gemm, int64_t columns) {
    return wefti_round_up(columns * gemm->k_span * gemm->kernels->element_bytes, GEMM_ALIGNMENT);
}
int64_t wefti_gemm_partial_bytes(const wefti_gemm *gemm) {
    return gemm->split_sums ? wefti_round_up(gemm->m_block * gemm->n_block * 4, GEMM_ALIGNMENT) : 0;
}

void wefti_gemm_block_begin(wefti_gemm_block *w, const wefti_gemm *gemm, char *workspace) {
    *w = (wefti_gemm_block){.gemm = gemm};
    w->a_panels = workspace;
    if (gemm->split_sums) w->partial = (float *)(workspace + wefti_gemm_a_bytes(gemm));
    w->b_panels = workspace + wefti_gemm_a_bytes(gemm) + wefti_gemm_partial_bytes(gemm);
}

void wefti_gemm_block_batch(wefti_gemm_block *w, const wefti_gemm_args *args, int64_t batch) {
    const wefti_gemm_spec *spec = &w->gemm->spec;
    w->a = wefti_gemm_batch(spec, &spec->a, args->a, batch);
    w->b = wefti_gemm_batch(spec, &spec->b, args->b, batch);
    w->sink = (wefti_gemm_sink){
        .spec = spec,
        .c = (char *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, args->c, batch),
        .bias = spec->has_bias ? args->bias : NULL,
    };
}

/* The lines of k in a bf16 panel are a multiple of a tile's. */
void wefti_gemm_block_span(wefti_gemm_block *w, int64_t p) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    w->p = p;
    w->depth = smaller(w->gemm->k_span, w->gemm->spec.k - p);
    w->panel_depth =
        wefti_round_up(w->depth, kernels->element_bytes != 4 ? kernels->depth_unit : 1);
}

const void *wefti_gemm_element(const wefti_gemm_operand *operand, const char *data, int64_t row,
                               int64_t column) {
    return data + (row * operand->row_stride + column * operand->column_stride) *
                      (int64_t)weft_dtype_bytes(operand->dtype);
}

/* Lines of k that are packed for several panels before the next lines. If the operand is contiguous
 * across panels, this touches few pages. If it is contiguous along k, the whole line is read at
 * once. */
static int64_t pack_depth(const wefti_gemm_block *w, int64_t k_stride) {
    return k_stride == 1 ? w->depth : PACK_DEPTH;
}

/* Line p of the panel that begins with row i, or with column j. */
static char *a_panel(const wefti_gemm_block *w, int64_t i, int64_t p) {
    const int64_t first = w->gemm->a_in_place ? i : w->a_first;
    return w->a_panels + ((i - first) * w->panel_depth + p * w->gemm->kernels->rows) *
                             w->gemm->kernels->element_bytes;
}
static char *b_panel(const wefti_gemm_block *w, int64_t j, int64_t p) {
    return w->b_panels + ((j - w->b_first) * w->panel_depth + p * w->gemm->kernels->columns) *
                             w->gemm->kernels->element_bytes;
}

/* Whether the kernel can read the register tile of rows from i on where it lies in A. */
static bool in_place(const wefti_gemm_block *w, int64_t i) {
    return w->gemm->a_in_place && i + w->gemm->kernels->rows <= w->rows;
}
static int64_t a_row_bytes(const wefti_gemm_block *w) {
    return w->gemm->spec.a.row_stride * (int64_t)weft_dtype_bytes(w->gemm->spec.a.dtype);
}

/* The memory of A that a tile reads, and the bytes from row to row (0 in a panel). */
static const void *a_of(const wefti_gemm_block *w, int64_t i, int64_t p, int64_t *out_stride) {
    *out_stride = in_place(w, i) ? a_row_bytes(w) : 0;
    return in_place(w, i) ? wefti_gemm_element(&w->gemm->spec.a, w->a, w->i + i, w->p + p)
                          : a_panel(w, i, p);
}

int64_t wefti_gemm_first_a_panel(const wefti_gemm_block *w) {
    return w->gemm->a_in_place ? w->rows / w->gemm->kernels->rows : 0;
}
int64_t wefti_gemm_a_panels(const wefti_gemm_block *w) {
    return ceil_div(w->rows, w->gemm->kernels->rows) - wefti_gemm_first_a_panel(w);
}
void wefti_gemm_pack_a_panels(const wefti_gemm_block *w, int64_t first, int64_t end) {
    const wefti_gemm *gemm = w->gemm;
    const int64_t rows = gemm->kernels->rows, step = pack_depth(w, gemm->spec.a.column_stride);
    for (int64_t p = 0; p < w->depth; p += step)
        for (int64_t panel = first; panel < end; panel++) {
            int64_t i = panel * rows;
            gemm->kernels->pack_a(&gemm->spec.a,
                                  wefti_gemm_element(&gemm->spec.a, w->a, w->i + i, w->p + p),
                                  smaller(rows, w->rows - i), gemm->spec.m - w->i - i,
                                  smaller(step, w->depth - p), a_panel(w, panel * rows, p));
        }
}
void wefti_gemm_pack_b_panels(const wefti_gemm_block *w, int64_t first, int64_t end) {
    const wefti_gemm *gemm = w->gemm;
    const int64_t columns = gemm->kernels->columns, step = pack_depth(w, gemm->spec.b.row_stride);
    for (int64_t p = 0; p < w->depth; p += step)
        for (int64_t panel = first; panel < end; panel++) {
            int64_t j = panel * columns;
            gemm->kernels->pack_b(&gemm->spec.b,
                                  wefti_gemm_element(&gemm->spec.b, w->b, w->p + p, w->j + j),
                                  smaller(columns, w->columns - j), smaller(step, w->depth - p),
                                  b_panel(w, panel * columns, p));
        }
}

/* The place where the sums of earlier k blocks wait for the last k block. */
static float *partial_at(const wefti_gemm_block *w, int64_t i, int64_t j, int64_t *out_stride) {
    const wefti_gemm_spec *spec = &w->gemm->spec;
    if (w->partial) {
        *out_stride = w->gemm->n_block;
        return w->partial + i * w->gemm->n_block + j;
    }
    *out_stride = spec->c.row_stride;
    return (float *)w->sink.c + (w->i + i) * spec->c.row_stride + w->j + j;
}

/* Sums of a register tile that still must go to C. They wait until the next tile is under way,
 * because memory that a tile has just stored cannot be read at once. */
typedef struct finished {
    _Alignas(64) float sums[GEMM_MAX_ROWS * GEMM_MAX_COLUMNS];
    int64_t i, j, rows, columns; /* rows 0: no sums are waiting */
    const float *partial;
    int64_t stride;
} finished;

static void finish(const wefti_gemm_block *w, finished *f) {
    if (f->rows > 0)
        w->gemm->kernels->epilogue(&w->sink, w->i + f->i, w->j + f->j, f->rows, f->columns, f->sums,
                                   w->gemm->kernels->columns, f->partial, f->stride);
    f->rows = 0;
}

/* One block of k that a task multiplies, and its state that depends on other blocks. */
typedef struct pass {
    int64_t p, depth;
    bool first, last; /* of all k */
    wefti_gemm_ahead *ahead;
    finished *waiting, *next; /* sums of the previous tile; room for sums of this tile */
} pass;

/* A register tile with columns beyond C, when the sums so far wait in C. It goes through local
 * memory. The kernel itself adds to the sums so far, as for a whole tile. A later addition would
 * differ in bits, because AMX adds to a sum in another order. */
static void tile_at_edge(const wefti_gemm_kernels *kernels, int64_t rows, int64_t columns,
                         const pass *s, const void *a, int64_t a_stride, const void *b, float *c,
                         int64_t stride, bool add) {
    float *sums = s->next->sums;
    const size_t width = (size_t)kernels->columns, bytes = (size_t)columns * sizeof *c;
    if (add)
        for (int64_t r = 0; r < rows; r++) {
            float *row = sums + (size_t)r * width;
            memcpy(row, c + r * stride, bytes);
            memset(row + columns, 0, width * sizeof *c - bytes);
        }
    kernels->tile((int)rows, s->depth, a, a_stride, b, sums, kernels->columns, add, s->ahead);
    for (int64_t r = 0; r < rows; r++) memcpy(c + r * stride, sums + (size_t)r * width, bytes);
}

/* The last block of k of a tile: the epilogue takes its sums to C. */
static void last_tile(const wefti_gemm_block *w, int64_t i, int64_t j, pass *s, const void *a,
                      int64_t a_stride, const void *b, const float *partial, int64_t stride) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    finished *next = s->next;
    next->i = i;
    next->j = j;
    next->rows = smaller(kernels->rows, w->rows - i);
    next->columns = smaller(kernels->columns, w->columns - j);
    next->partial = s->first ? NULL : partial;
    next->stride = stride;
    kernels->tile((int)next->rows, s->depth, a, a_stride, b, next->sums, kernels->columns, false,
                  s->ahead);
    finish(w, s->waiting);
    s->next = s->waiting;
    s->waiting = next;
}

/* Computes one register tile, rows from i and columns from j of the block, over one block of k. */
static void compute_tile(const wefti_gemm_block *w, int64_t i, int64_t j, pass *s) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    const int64_t rows = smaller(kernels->rows, w->rows - i);
    const int64_t columns = smaller(kernels->columns, w->columns - j);
    int64_t stride, a_stride;
    float *partial = partial_at(w, i, j, &stride);
    const void *a = a_of(w, i, s->p, &a_stride), *b = b_panel(w, j, s->p);
    const bool add = !s->first || (w->gemm->plain_sum && w->gemm->spec.accumulate);
    if (s->last && !w->gemm->plain_sum)
        last_tile(w, i, j, s, a, a_stride, b, partial, stride);
    else if (columns == kernels->columns || w->partial)
        kernels->tile((int)rows, s->depth, a, a_stride, b, partial, stride, add, s->ahead);
    else
        tile_at_edge(kernels, rows, columns, s, a, a_stride, b, partial, stride, add);
}

/* Moves on to the next block of k of the span. */
static void pass_to(const wefti_gemm_block *w, int64_t p, pass *s) {
    s->p = p;
    s->depth = smaller(w->gemm->k_block, w->depth - p);
    s->first = w->p + p == 0;
    s->last = w->p + p + s->depth >= w->gemm->spec.k;
}

static wefti_gemm_ahead b_ahead(const wefti_gemm_block *w, int64_t j, int64_t j_end, int64_t p,
                                int64_t depth) {
    if (j >= j_end) return (wefti_gemm_ahead){0};
    const char *panel = b_panel(w, j, p);
    return (wefti_gemm_ahead){.start = panel,
                              .at = panel,
                              .bytes = depth * w->gemm->kernels->columns *
                                       w->gemm->kernels->element_bytes,
                              .runs = 1};
}

/* Computes rows [i, i_end) and columns [j, j_end) of the block, over the k blocks of its span. A
 * panel of B meets all panels of A before the next panel of B, which is prefetched meanwhile. */
void wefti_gemm_compute_tiles(const wefti_gemm_block *w, int64_t i, int64_t i_end, int64_t j,
                              int64_t j_end) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    finished room[2];
    room[0].rows = room[1].rows = 0;
    wefti_gemm_ahead ahead;
    pass s = {.ahead = &ahead, .waiting = &room[0], .next = &room[1]};
    if (kernels->enter) kernels->enter();
    pass_to(w, 0, &s);
    do {
        for (int64_t c = j; c < j_end; c += kernels->columns) {
            ahead = b_ahead(w, c + kernels->columns, j_end, s.p, s.depth);
            for (int64_t r = i; r < i_end; r += kernels->rows) compute_tile(w, r, c, &s);
        }
        pass_to(w, s.p + s.depth, &s);
    } while (s.p < w->depth);
    finish(w, s.waiting);
    if (kernels->leave) kernels->leave();
}

/* The part of A that is multiplied next: the register tile of rows from i on, at p. */
static wefti_gemm_ahead a_ahead(const wefti_gemm_block *w, int64_t i, int64_t p) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    const int64_t depth = smaller(w->gemm->k_block, w->depth - p);
    int64_t stride;
    const char *start = a_of(w, i, p, &stride);
    const int64_t bytes = depth * kernels->element_bytes;
    return (wefti_gemm_ahead){.start = start,
                              .at = start,
                              .bytes = stride > 0 ? bytes : bytes * kernels->rows,
                              .stride = stride,
                              .runs = stride > 0 ? kernels->rows : 1};
}

/* Computes all rows of the block with columns [j, j_end); the thread has packed their panels. A
 * register tile's rows meet all these panels before the next rows, which are prefetched meanwhile.
 * Panels of B are too long for the first-level cache. More rows at a time would only take more of
 * the second-level cache. */
void wefti_gemm_compute_columns(const wefti_gemm_block *w, int64_t j, int64_t j_end) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    finished room[2];
    room[0].rows = room[1].rows = 0;
    wefti_gemm_ahead ahead;
    pass s = {.ahead = &ahead, .waiting = &room[0], .next = &room[1]};
    if (kernels->enter) kernels->enter();
    for (int64_t i = 0; i < w->rows; i += kernels->rows) {
        pass_to(w, 0, &s);
        do {
            if (s.p + s.depth < w->depth)
                ahead = a_ahead(w, i, s.p + s.depth);
            else /* after the last rows, prefetch the first rows for the next group of columns */
                ahead = a_ahead(w, i + kernels->rows < w->rows ? i + kernels->rows : 0, 0);
            for (int64_t c = j; c < j_end; c += kernels->columns) compute_tile(w, i, c, &s);
            pass_to(w, s.p + s.depth, &s);
        } while (s.p < w->depth);
    }
    finish(w, s.waiting);
    if (kernels->leave) kernels->leave();
}
