/* Running a prepared matrix product in f32: packing, tiles and their tasks. See gemm.h for the
 * sources.
 *
 * Large products: for each block of columns, of rows and each span of k, all threads pack panels of
 * A and B into the shared workspace, then compute tiles of C from them. Small and batched products:
 * each task packs for itself. Few rows: B is read in place. How C is cut into tiles and k into
 * spans has no influence on any sum: each element is the sum over ascending blocks of k, whose size
 * is fixed. */
#include "backend/cpu/gemm_internal.h"

#include <string.h>

#include "tensor/tensor.h"

enum {
    ALIGNMENT = 64,
    LINE = 64, /* bytes that memory is fetched in */
    PACK_DEPTH = 64,
    PACK_A_PANELS = 8, /* of a packing task */
    PACK_B_PANELS = 4,
    TASKS_PER_THREAD = 8,
    FINE = 4, /* the last columns go in tasks so many times smaller, so that all threads end close
                 together */
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t a_panels_bytes(const wefti_gemm *gemm) {
    return round_up(gemm->m_block * gemm->k_span * gemm->kernels->element_bytes, ALIGNMENT);
}
static int64_t b_panels_bytes(const wefti_gemm *gemm) {
    return gemm->spec.b_packed
               ? 0
               : round_up(gemm->n_block * gemm->k_span * gemm->kernels->element_bytes, ALIGNMENT);
}
static int64_t partial_bytes(const wefti_gemm *gemm) {
    return gemm->split_sums ? round_up(gemm->m_block * gemm->n_block * 4, ALIGNMENT) : 0;
}
static int64_t skinny_a_bytes(const wefti_gemm *gemm) {
    return round_up(gemm->spec.m * gemm->spec.k * 4, ALIGNMENT);
}

/* Bytes for all threads, or for each where tasks pack for themselves. */
static int64_t block_bytes(const wefti_gemm *gemm) {
    if (gemm->path == GEMM_SKINNY)
        return skinny_a_bytes(gemm) + GEMM_SKINNY_ROWS * GEMM_SKINNY_COLUMNS * 4;
    return a_panels_bytes(gemm) + b_panels_bytes(gemm) + partial_bytes(gemm);
}

int64_t wefti_gemm_panel_bytes(const wefti_gemm *gemm, int threads) {
    return block_bytes(gemm) * (gemm->path == GEMM_SHARED ? 1 : threads);
}

/* --- One block: panels of A and B over one span of k
 * ----------------------------------------------------------- */

typedef struct block {
    const wefti_gemm *gemm;
    wefti_gemm_sink sink;
    wefti_gemm_sink adding; /* plain sums after the first block of k: adds to C */
    wefti_gemm_spec adding_spec;
    const char *a, *b; /* operands of this batch, unpacked */
    char *a_panels, *b_panels;
    int64_t a_depth, b_depth; /* lines of a panel: those of this span, or all k of a packed B */
    float *partial;           /* sums of the k blocks so far, NULL where they wait in C */
    int64_t i, j, p;          /* where the block starts */
    int64_t rows, columns, depth;
    int64_t m_tile, n_tile; /* of this run */
    int64_t coarse; /* columns before this go in tiles of n_tile, the others in finer ones */
} block;

static void block_begin(block *w, const wefti_gemm *gemm, char *workspace) {
    *w = (block){.gemm = gemm};
    w->a_panels = workspace;
    w->b_panels = workspace + a_panels_bytes(gemm);
    if (gemm->split_sums)
        w->partial = (float *)(workspace + a_panels_bytes(gemm) + b_panels_bytes(gemm));
}

static void block_batch(block *w, const wefti_gemm_args *args, int64_t batch) {
    const wefti_gemm_spec *spec = &w->gemm->spec;
    w->a = wefti_gemm_batch(spec, &spec->a, args->a, batch);
    w->b = wefti_gemm_batch(spec, &spec->b, args->b, batch);
    w->sink = (wefti_gemm_sink){
        .spec = spec,
        .c = (char *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, args->c, batch),
        .pre = spec->has_pre ? (char *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, args->pre, batch)
                             : NULL,
        .residual =
            spec->has_residual ? wefti_gemm_batch(spec, &spec->c, args->residual, batch) : NULL,
        .aux = spec->derivative ? wefti_gemm_batch(spec, &spec->c, args->aux, batch) : NULL,
        .bias = spec->has_bias ? args->bias : NULL,
    };
    w->adding = w->sink;
    w->adding_spec = *spec;
    w->adding_spec.accumulate = true;
    w->adding.spec = &w->adding_spec;
}

/* Lines of a panel are a multiple of this. */
static int64_t padding(const wefti_gemm *gemm) {
    return gemm->kernels->element_bytes == 2 ? gemm->kernels->depth_unit : 1;
}

static void block_span(block *w, int64_t p) {
    w->p = p;
    const int64_t unit = padding(w->gemm);
    w->depth = smaller(w->gemm->k_span, w->gemm->spec.k - p);
    w->a_depth = round_up(w->depth, unit);
    w->b_depth = w->gemm->spec.b_packed ? round_up(w->gemm->spec.k, unit) : w->a_depth;
}

static const void *element(const wefti_gemm_operand *operand, const char *data, int64_t row,
                           int64_t column) {
    return data + (row * operand->row_stride + column * operand->column_stride) *
                      (int64_t)weft_dtype_bytes(operand->dtype);
}

/* Lines of k that are packed for several panels before the next ones. Where the operand is
 * contiguous across panels that keeps to few pages; where it is contiguous along k, the whole line
 * is read at once. */
static int64_t pack_depth(const block *w, int64_t k_stride) {
    return k_stride == 1 ? w->depth : PACK_DEPTH;
}

/* Line p of the panel that begins with row i, or column j. */
static char *a_panel(const block *w, int64_t i, int64_t p) {
    return w->a_panels +
           (i * w->a_depth + p * w->gemm->kernels->rows) * w->gemm->kernels->element_bytes;
}
static char *b_panel(const block *w, int64_t j, int64_t p) {
    return w->b_panels +
           (j * w->b_depth + p * w->gemm->kernels->columns) * w->gemm->kernels->element_bytes;
}

static void pack_a_panels(const block *w, int64_t first, int64_t end) {
    const wefti_gemm *gemm = w->gemm;
    const int64_t rows = gemm->kernels->rows, step = pack_depth(w, gemm->spec.a.column_stride);
    for (int64_t p = 0; p < w->depth; p += step)
        for (int64_t panel = first; panel < end; panel++) {
            int64_t i = panel * rows;
            gemm->kernels->pack_a(&gemm->spec.a, element(&gemm->spec.a, w->a, w->i + i, w->p + p),
                                  smaller(rows, w->rows - i), gemm->spec.m - w->i - i,
                                  smaller(step, w->depth - p), a_panel(w, panel * rows, p));
        }
}
static void pack_b_panels(const block *w, int64_t first, int64_t end) {
    const wefti_gemm *gemm = w->gemm;
    const int64_t columns = gemm->kernels->columns, step = pack_depth(w, gemm->spec.b.row_stride);
    for (int64_t p = 0; p < w->depth; p += step)
        for (int64_t panel = first; panel < end; panel++) {
            int64_t j = panel * columns;
            gemm->kernels->pack_b(&gemm->spec.b, element(&gemm->spec.b, w->b, w->p + p, w->j + j),
                                  smaller(columns, w->columns - j), smaller(step, w->depth - p),
                                  b_panel(w, panel * columns, p));
        }
}

/* Where the sums of k blocks before the last wait for it. */
static float *partial_at(const block *w, int64_t i, int64_t j, int64_t *out_stride) {
    const wefti_gemm_spec *spec = &w->gemm->spec;
    if (w->partial) {
        *out_stride = w->gemm->n_block;
        return w->partial + i * w->gemm->n_block + j;
    }
    *out_stride = spec->c.row_stride;
    return (float *)w->sink.c + (w->i + i) * spec->c.row_stride + w->j + j;
}

/* One register tile, rows from i and columns from j of the block, over one block of k. */
static void compute_tile(const block *w, int64_t i, int64_t j, int64_t depth, bool first, bool last,
                         const void *a, const void *b, const void *ahead) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    const int64_t rows = smaller(kernels->rows, w->rows - i);
    const int64_t columns = smaller(kernels->columns, w->columns - j);
    const bool whole = columns == kernels->columns;
    _Alignas(64) float sums[GEMM_MAX_ROWS * GEMM_MAX_COLUMNS];
    int64_t stride;
    float *partial = partial_at(w, i, j, &stride);
    if (w->gemm->plain_sum) {
        const wefti_gemm_sink *sink = first ? &w->sink : &w->adding;
        if (whole) {
            kernels->tile((int)rows, depth, a, b, partial, stride, sink->spec->accumulate, ahead);
            return;
        }
        kernels->tile((int)rows, depth, a, b, sums, kernels->columns, false, ahead);
        kernels->epilogue(sink, w->i + i, w->j + j, rows, columns, sums, kernels->columns, NULL, 0);
    } else if (last) {
        kernels->tile((int)rows, depth, a, b, sums, kernels->columns, false, ahead);
        kernels->epilogue(&w->sink, w->i + i, w->j + j, rows, columns, sums, kernels->columns,
                          first ? NULL : partial, stride);
    } else if (whole || w->partial) {
        kernels->tile((int)rows, depth, a, b, partial, stride, !first, ahead);
    } else {
        kernels->tile((int)rows, depth, a, b, sums, kernels->columns, false, ahead);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                partial[r * stride + c] =
                    (first ? 0.0f : partial[r * stride + c]) + sums[r * kernels->columns + c];
    }
}

/* Rows [i, i_end) and columns [j, j_end) of the block, over the blocks of k of its span. A panel of
 * B meets all panels of A before the next one. */
static void compute_tiles(const block *w, int64_t i, int64_t i_end, int64_t j, int64_t j_end) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    const int64_t rows = kernels->rows, columns = kernels->columns;
    int64_t p = 0;
    if (kernels->enter) kernels->enter();
    do {
        const int64_t depth = smaller(w->gemm->k_block, w->depth - p);
        const bool first = w->p + p == 0, last = w->p + p + depth >= w->gemm->spec.k;
        const int64_t share = ceil_div(depth, kernels->depth_unit) * GEMM_AHEAD * LINE;
        for (int64_t c = j; c < j_end; c += columns) {
            /* The next panel of B is fetched while the panels of A meet this one, a part with each.
             */
            const char *next = c + columns < j_end ? b_panel(w, c + columns, p) : NULL;
            const char *end = next ? next + depth * columns * kernels->element_bytes : NULL;
            for (int64_t r = i; r < i_end; r += rows) {
                compute_tile(w, r, c, depth, first, last, a_panel(w, r, p), b_panel(w, c, p), next);
                next = next && next + share < end ? next + share : NULL;
            }
        }
        p += depth;
    } while (p < w->depth);
    if (kernels->leave) kernels->leave();
}

/* --- Large products
 * -------------------------------------------------------------------------------------------- */

static int64_t pack_a_tasks(const block *w) {
    return ceil_div(ceil_div(w->rows, w->gemm->kernels->rows), PACK_A_PANELS);
}
static int64_t pack_b_tasks(const block *w) {
    return ceil_div(ceil_div(w->columns, w->gemm->kernels->columns), PACK_B_PANELS);
}

static void pack_a_task(void *context, int64_t task, int thread) {
    (void)thread;
    const block *w = context;
    const int64_t panels = ceil_div(w->rows, w->gemm->kernels->rows);
    pack_a_panels(w, task * PACK_A_PANELS, smaller(panels, (task + 1) * PACK_A_PANELS));
}
static void pack_b_task(void *context, int64_t task, int thread) {
    (void)thread;
    const block *w = context;
    const int64_t panels = ceil_div(w->columns, w->gemm->kernels->columns);
    pack_b_panels(w, task * PACK_B_PANELS, smaller(panels, (task + 1) * PACK_B_PANELS));
}
static void pack_task(void *context, int64_t task, int thread) {
    const int64_t a_tasks = pack_a_tasks(context);
    if (task < a_tasks)
        pack_a_task(context, task, thread);
    else
        pack_b_task(context, task - a_tasks, thread);
}

/* Tiles become smaller until there are enough for the threads, and finer still for the last
 * columns. */
static void choose_tiles(block *w, int threads) {
    const int64_t rows = w->gemm->kernels->rows, columns = w->gemm->kernels->columns;
    const int64_t wanted = threads == 1 ? 1 : (int64_t)threads * TASKS_PER_THREAD;
    w->m_tile = w->gemm->m_tile;
    w->n_tile = w->gemm->n_tile;
    while (ceil_div(w->rows, w->m_tile) * ceil_div(w->columns, w->n_tile) < wanted) {
        if (w->n_tile > 4 * columns || (w->n_tile > columns && w->m_tile <= 4 * rows))
            w->n_tile = round_up(w->n_tile / 2, columns);
        else if (w->m_tile > 4 * rows)
            w->m_tile = round_up(w->m_tile / 2, rows);
        else
            break;
    }
    w->coarse = threads == 1 ? w->columns : w->columns * 3 / 4 / w->n_tile * w->n_tile;
}
static int64_t fine_tile(const block *w) {
    return round_up(ceil_div(w->n_tile, FINE), w->gemm->kernels->columns);
}
static int64_t tile_tasks(const block *w) {
    return ceil_div(w->rows, w->m_tile) *
           (ceil_div(w->coarse, w->n_tile) + ceil_div(w->columns - w->coarse, fine_tile(w)));
}

/* Rows fastest: tasks that follow each other share their panels of B. */
static void tile_task(void *context, int64_t task, int thread) {
    (void)thread;
    const block *w = context;
    const int64_t down = ceil_div(w->rows, w->m_tile), group = task / down;
    const int64_t coarse_groups = ceil_div(w->coarse, w->n_tile);
    const int64_t i = task % down * w->m_tile;
    int64_t j = group * w->n_tile, j_end = smaller(w->coarse, j + w->n_tile);
    if (group >= coarse_groups) {
        j = w->coarse + (group - coarse_groups) * fine_tile(w);
        j_end = smaller(w->columns, j + fine_tile(w));
    }
    compute_tiles(w, i, smaller(w->rows, i + w->m_tile), j, j_end);
}

static void run_shared(const wefti_gemm *gemm, const wefti_gemm_args *args, char *workspace,
                       wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t batches = spec->batch[0] * spec->batch[1];
    /* Panels that serve several blocks are packed for the first of them only. */
    const bool one_span = spec->k <= gemm->k_span;
    const bool keep_a = one_span && spec->m <= gemm->m_block;
    const bool keep_b = one_span && spec->n <= gemm->n_block;
    block w;
    block_begin(&w, gemm, workspace);
    for (int64_t batch = 0; batch < batches; batch++) {
        block_batch(&w, args, batch);
        for (w.j = 0; w.j < spec->n; w.j += gemm->n_block)
            for (w.i = 0; w.i < spec->m; w.i += gemm->m_block) {
                w.columns = smaller(gemm->n_block, spec->n - w.j);
                w.rows = smaller(gemm->m_block, spec->m - w.i);
                choose_tiles(&w, wefti_pool_threads(pool));
                int64_t p = 0;
                do {
                    block_span(&w, p);
                    const bool pack_a = !keep_a || w.j == 0;
                    const bool pack_b = !spec->b_packed && (!keep_b || w.i == 0);
                    if (spec->b_packed)
                        w.b_panels = (char *)(uintptr_t)args->b +
                                     (w.j * w.b_depth + p * gemm->kernels->columns) *
                                         gemm->kernels->element_bytes;
                    if (pack_a && pack_b)
                        wefti_pool_run(pool, pack_a_tasks(&w) + pack_b_tasks(&w), pack_task, &w);
                    else if (pack_a)
                        wefti_pool_run(pool, pack_a_tasks(&w), pack_a_task, &w);
                    else if (pack_b)
                        wefti_pool_run(pool, pack_b_tasks(&w), pack_b_task, &w);
                    wefti_pool_run(pool, tile_tasks(&w), tile_task, &w);
                    p += w.depth;
                } while (p < spec->k);
            }
    }
}

/* --- Small and batched products
 * -------------------------------------------------------------------------------- */

typedef struct run {
    const wefti_gemm *gemm;
    const wefti_gemm_args *args;
    char *workspace;
} run;

static void private_task(void *context, int64_t task, int thread) {
    const run *r = context;
    const wefti_gemm *gemm = r->gemm;
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t down = ceil_div(spec->m, gemm->m_block);
    const int64_t across = ceil_div(spec->n, gemm->n_block);
    block w;
    block_begin(&w, gemm, r->workspace + thread * block_bytes(gemm));
    block_batch(&w, r->args, task / (down * across));
    w.i = task % down * gemm->m_block;
    w.j = task / down % across * gemm->n_block;
    w.rows = smaller(gemm->m_block, spec->m - w.i);
    w.columns = smaller(gemm->n_block, spec->n - w.j);
    int64_t p = 0;
    do {
        block_span(&w, p);
        pack_a_panels(&w, 0, ceil_div(w.rows, gemm->kernels->rows));
        pack_b_panels(&w, 0, ceil_div(w.columns, gemm->kernels->columns));
        compute_tiles(&w, 0, w.rows, 0, w.columns);
        p += w.depth;
    } while (p < spec->k);
}

/* --- Few rows
 * --------------------------------------------------------------------------------------------------
 */

static void skinny_task(void *context, int64_t task, int thread) {
    const run *r = context;
    const wefti_gemm *gemm = r->gemm;
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t across = ceil_div(spec->n, gemm->n_tile);
    char *workspace = r->workspace + thread * block_bytes(gemm);
    float *sums = (float *)(workspace + skinny_a_bytes(gemm));
    block w = {.gemm = gemm};
    block_batch(&w, r->args, task / across);
    const int64_t j = task % across * gemm->n_tile;
    const int64_t columns = smaller(gemm->n_tile, spec->n - j);
    const float *a = (const float *)w.a;
    int64_t a_stride = spec->a.row_stride;
    if (spec->a.dtype != WEFT_F32 || spec->a.column_stride != 1) {
        float *copy = (float *)workspace;
        for (int64_t i = 0; i < spec->m; i++)
            for (int64_t p = 0; p < spec->k; p++) {
                const void *from = element(&spec->a, w.a, i, p);
                copy[i * spec->k + p] = spec->a.dtype == WEFT_F32
                                            ? *(const float *)from
                                            : wefti_bf16_to_f32(*(const uint16_t *)from);
            }
        a = copy;
        a_stride = spec->k;
    }
    gemm->kernels->skinny(spec->m, columns, spec->k, a, a_stride, &spec->b,
                          element(&spec->b, w.b, 0, j), sums);
    gemm->kernels->epilogue(&w.sink, 0, j, spec->m, columns, sums, GEMM_SKINNY_COLUMNS, NULL, 0);
}

void wefti_gemm_run_f32(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                        wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t batches = spec->batch[0] * spec->batch[1];
    run r = {.gemm = gemm, .args = args, .workspace = workspace};
    if (gemm->path == GEMM_SHARED)
        run_shared(gemm, args, workspace, pool);
    else if (gemm->path == GEMM_SKINNY)
        wefti_pool_run(pool, batches * ceil_div(spec->n, gemm->n_tile), skinny_task, &r);
    else
        wefti_pool_run(
            pool, batches * ceil_div(spec->m, gemm->m_block) * ceil_div(spec->n, gemm->n_block),
            private_task, &r);
}

/* --- Packed B
 * --------------------------------------------------------------------------------------------------
 */

/* Panels of all k, one after the other. */
int64_t wefti_gemm_packed_bytes(const wefti_gemm *gemm) {
    return round_up(round_up(gemm->spec.n, gemm->kernels->columns) *
                        round_up(gemm->spec.k, padding(gemm)) * gemm->kernels->element_bytes,
                    ALIGNMENT);
}

void wefti_gemm_pack_b(const wefti_gemm *gemm, const void *b, void *packed, wefti_pool *pool) {
    block w = {.gemm = gemm,
               .b = b,
               .b_panels = packed,
               .columns = gemm->spec.n,
               .depth = gemm->spec.k,
               .b_depth = round_up(gemm->spec.k, padding(gemm))};
    wefti_pool_run(pool, pack_b_tasks(&w), pack_b_task, &w);
}
