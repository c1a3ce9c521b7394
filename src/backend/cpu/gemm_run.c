/* Running a prepared matrix product in f32: packing, tiles and their tasks. See gemm.h for the
 * sources.
 *
 * Large products: for each block of columns, of rows and of k, all threads pack panels of A and B
 * into the shared workspace, then compute tiles of C from them. Small and batched products: each
 * task packs for itself. Few rows: B is read in place. How C is cut into tiles has no influence on
 * any sum: each element is the sum over ascending blocks of k, whose size is fixed. */
#include "backend/cpu/gemm_internal.h"

#include <string.h>

#include "tensor/tensor.h"

enum {
    ALIGNMENT = 64,
    PACK_DEPTH =
        64, /* rows of k that are packed for several panels before the next: fewer page changes */
    PACK_A_PANELS = 8, /* of a packing task */
    PACK_B_PANELS = 4,
    TASKS_PER_THREAD = 8, /* enough that the last tasks end close together */
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

static int64_t a_panels_bytes(const wefti_gemm *gemm, int64_t rows) {
    return round_up(round_up(rows, gemm->kernels->rows) * gemm->k_block * 4, ALIGNMENT);
}
static int64_t b_panels_bytes(const wefti_gemm *gemm, int64_t columns) {
    return round_up(round_up(columns, gemm->kernels->columns) * gemm->k_block * 4, ALIGNMENT);
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
    return a_panels_bytes(gemm, gemm->m_block) +
           (gemm->spec.b_packed ? 0 : b_panels_bytes(gemm, gemm->n_block)) + partial_bytes(gemm);
}

int64_t wefti_gemm_panel_bytes(const wefti_gemm *gemm, int threads) {
    return block_bytes(gemm) * (gemm->path == GEMM_SHARED ? 1 : threads);
}

/* --- One block: panels of A and B over one block of k
 * ---------------------------------------------------------- */

typedef struct block {
    const wefti_gemm *gemm;
    wefti_gemm_spec
        spec; /* that of this block of k: `accumulate` also where earlier blocks wait in C */
    wefti_gemm_sink sink;
    const char *a, *b; /* operands of this batch, unpacked */
    float *a_panels, *b_panels;
    float *partial;  /* sums of the k blocks so far, NULL where they wait in C */
    int64_t i, j, p; /* where the block starts */
    int64_t rows, columns, depth;
    bool first, last;       /* block of k */
    int64_t m_tile, n_tile; /* of this run */
} block;

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

static void pack_a_panels(const block *w, int64_t first, int64_t end) {
    const wefti_gemm *gemm = w->gemm;
    const int64_t rows = gemm->kernels->rows, step = pack_depth(w, gemm->spec.a.column_stride);
    for (int64_t p = 0; p < w->depth; p += step)
        for (int64_t panel = first; panel < end; panel++) {
            int64_t i = panel * rows;
            gemm->kernels->pack_a(&gemm->spec.a, element(&gemm->spec.a, w->a, w->i + i, w->p + p),
                                  smaller(rows, w->rows - i), gemm->spec.m - w->i - i,
                                  smaller(step, w->depth - p),
                                  w->a_panels + (panel * w->depth + p) * rows);
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
                                  w->b_panels + (panel * w->depth + p) * columns);
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

/* One register tile, rows from i and columns from j of the block. */
static void compute_tile(const block *w, int64_t i, int64_t j, const float *a, const float *b) {
    const wefti_gemm_kernels *kernels = w->gemm->kernels;
    const int64_t rows = smaller(kernels->rows, w->rows - i);
    const int64_t columns = smaller(kernels->columns, w->columns - j);
    const bool whole = columns == kernels->columns;
    _Alignas(64) float sums[GEMM_MAX_ROWS * GEMM_MAX_COLUMNS];
    int64_t stride;
    float *partial = partial_at(w, i, j, &stride);
    if (w->gemm->plain_sum) {
        if (whole) {
            kernels->tile((int)rows, w->depth, a, b, partial, stride, w->spec.accumulate);
            return;
        }
        kernels->tile((int)rows, w->depth, a, b, sums, kernels->columns, false);
        kernels->epilogue(&w->sink, w->i + i, w->j + j, rows, columns, sums, kernels->columns, NULL,
                          0);
    } else if (w->last) {
        kernels->tile((int)rows, w->depth, a, b, sums, kernels->columns, false);
        kernels->epilogue(&w->sink, w->i + i, w->j + j, rows, columns, sums, kernels->columns,
                          w->first ? NULL : partial, stride);
    } else if (whole || w->partial) {
        kernels->tile((int)rows, w->depth, a, b, partial, stride, !w->first);
    } else {
        kernels->tile((int)rows, w->depth, a, b, sums, kernels->columns, false);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                partial[r * stride + c] =
                    (w->first ? 0.0f : partial[r * stride + c]) + sums[r * kernels->columns + c];
    }
}

/* Rows [i, i_end) and columns [j, j_end) of the block. A panel of B meets all panels of A before
 * the next one. */
static void compute_tiles(const block *w, int64_t i, int64_t i_end, int64_t j, int64_t j_end) {
    const int64_t rows = w->gemm->kernels->rows, columns = w->gemm->kernels->columns;
    for (int64_t c = j; c < j_end; c += columns)
        for (int64_t r = i; r < i_end; r += rows)
            compute_tile(w, r, c, w->a_panels + r * w->depth, w->b_panels + c * w->depth);
}

static void begin_batch(block *w, const wefti_gemm_args *args, int64_t batch) {
    const wefti_gemm_spec *spec = &w->gemm->spec;
    w->a = wefti_gemm_batch(spec, &spec->a, args->a, batch);
    w->b = wefti_gemm_batch(spec, &spec->b, args->b, batch);
    w->spec = *spec;
    w->sink = (wefti_gemm_sink){
        .spec = &w->spec,
        .c = (char *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, args->c, batch),
        .pre = spec->has_pre ? (char *)(uintptr_t)wefti_gemm_batch(spec, &spec->c, args->pre, batch)
                             : NULL,
        .residual =
            spec->has_residual ? wefti_gemm_batch(spec, &spec->c, args->residual, batch) : NULL,
        .aux = spec->derivative ? wefti_gemm_batch(spec, &spec->c, args->aux, batch) : NULL,
        .bias = spec->has_bias ? args->bias : NULL,
    };
}

static void begin_depth(block *w, int64_t p) {
    const wefti_gemm *gemm = w->gemm;
    w->p = p;
    w->depth = smaller(gemm->k_block, gemm->spec.k - p);
    w->first = p == 0;
    w->last = p + gemm->k_block >= gemm->spec.k;
    w->spec.accumulate = gemm->spec.accumulate || (gemm->plain_sum && !w->first);
}

/* --- Large products
 * -------------------------------------------------------------------------------------------- */

static void pack_task(void *context, int64_t task, int thread) {
    (void)thread;
    const block *w = context;
    const int64_t a_count = ceil_div(w->rows, w->gemm->kernels->rows);
    const int64_t b_count = ceil_div(w->columns, w->gemm->kernels->columns);
    const int64_t a_tasks = ceil_div(a_count, PACK_A_PANELS);
    if (task < a_tasks)
        pack_a_panels(w, task * PACK_A_PANELS, smaller(a_count, (task + 1) * PACK_A_PANELS));
    else
        pack_b_panels(w, (task - a_tasks) * PACK_B_PANELS,
                      smaller(b_count, (task - a_tasks + 1) * PACK_B_PANELS));
}

static void tile_task(void *context, int64_t task, int thread) {
    (void)thread;
    const block *w = context;
    const int64_t across = ceil_div(w->rows, w->m_tile);
    const int64_t i = task % across * w->m_tile, j = task / across * w->n_tile;
    compute_tiles(w, i, smaller(w->rows, i + w->m_tile), j, smaller(w->columns, j + w->n_tile));
}

/* Tiles become smaller until there are enough for the threads; no sum depends on it. */
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
}

static void run_shared(const wefti_gemm *gemm, const wefti_gemm_args *args, char *workspace,
                       wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    const int threads = wefti_pool_threads(pool);
    block w = {.gemm = gemm, .a_panels = (float *)workspace};
    workspace += a_panels_bytes(gemm, gemm->m_block);
    float *b_panels = (float *)workspace;
    if (!spec->b_packed) workspace += b_panels_bytes(gemm, gemm->n_block);
    w.partial = gemm->split_sums ? (float *)workspace : NULL;
    const int64_t all_columns = round_up(spec->n, gemm->kernels->columns);
    /* With one block of k and of rows the panels of A serve all blocks of columns. */
    const bool keep_a = spec->k <= gemm->k_block && spec->m <= gemm->m_block;
    for (int64_t batch = 0; batch < spec->batch[0] * spec->batch[1]; batch++) {
        begin_batch(&w, args, batch);
        for (w.j = 0; w.j < spec->n; w.j += gemm->n_block) {
            w.columns = smaller(gemm->n_block, spec->n - w.j);
            for (w.i = 0; w.i < spec->m; w.i += gemm->m_block) {
                w.rows = smaller(gemm->m_block, spec->m - w.i);
                choose_tiles(&w, threads);
                for (int64_t p = 0; p == 0 || p < spec->k; p += gemm->k_block) {
                    begin_depth(&w, p);
                    bool pack_a = !keep_a || w.j == 0;
                    bool pack_b = !spec->b_packed;
                    w.b_panels =
                        pack_b ? b_panels
                               : (float *)(uintptr_t)args->b + p * all_columns + w.j * w.depth;
                    int64_t columns = w.columns, rows = w.rows;
                    if (!pack_a) w.rows = 0;
                    if (!pack_b) w.columns = 0;
                    wefti_pool_run(
                        pool,
                        ceil_div(ceil_div(w.rows, gemm->kernels->rows), PACK_A_PANELS) +
                            ceil_div(ceil_div(w.columns, gemm->kernels->columns), PACK_B_PANELS),
                        pack_task, &w);
                    w.rows = rows;
                    w.columns = columns;
                    wefti_pool_run(pool, ceil_div(w.rows, w.m_tile) * ceil_div(w.columns, w.n_tile),
                                   tile_task, &w);
                }
            }
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
    char *workspace = r->workspace + thread * block_bytes(gemm);
    block w = {.gemm = gemm, .a_panels = (float *)workspace};
    workspace += a_panels_bytes(gemm, gemm->m_block);
    w.b_panels = (float *)workspace;
    workspace += b_panels_bytes(gemm, gemm->n_block);
    w.partial = gemm->split_sums ? (float *)workspace : NULL;
    begin_batch(&w, r->args, task / (down * across));
    w.i = task % down * gemm->m_block;
    w.j = task / down % across * gemm->n_block;
    w.rows = smaller(gemm->m_block, spec->m - w.i);
    w.columns = smaller(gemm->n_block, spec->n - w.j);
    for (int64_t p = 0; p == 0 || p < spec->k; p += gemm->k_block) {
        begin_depth(&w, p);
        pack_a_panels(&w, 0, ceil_div(w.rows, gemm->kernels->rows));
        pack_b_panels(&w, 0, ceil_div(w.columns, gemm->kernels->columns));
        compute_tiles(&w, 0, w.rows, 0, w.columns);
    }
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
    block w = {.gemm = gemm, .first = true, .last = true};
    begin_batch(&w, r->args, task / across);
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

/* Blocks of k one after the other, each as panels of all columns. */
int64_t wefti_gemm_packed_bytes(const wefti_gemm *gemm) {
    return round_up(round_up(gemm->spec.n, gemm->kernels->columns) * gemm->spec.k * 4, ALIGNMENT);
}

void wefti_gemm_pack_b(const wefti_gemm *gemm, const void *b, void *packed, wefti_pool *pool) {
    const int64_t columns = gemm->kernels->columns, n = gemm->spec.n;
    block w = {.gemm = gemm, .b = b, .columns = n};
    for (int64_t p = 0; p < gemm->spec.k; p += gemm->k_block) {
        begin_depth(&w, p);
        w.b_panels = (float *)packed + p * round_up(n, columns);
        wefti_pool_run(pool, ceil_div(ceil_div(n, columns), PACK_B_PANELS), pack_task, &w);
    }
}
