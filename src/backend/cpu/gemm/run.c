/* Runs a prepared matrix product in f32: packing, tiles and their tasks. See gemm.h for the
 * sources.
 *
 * Large products: for each block of columns, block of rows and span of k, all threads pack panels
 * of A into the shared workspace. Then each task packs a few columns of B and multiplies all rows
 * with them. These columns stay in the second-level cache of the task's thread. This is GotoBLAS's
 * order with the loops over B outermost. If A has more rows than B has columns, the roles are
 * exchanged: B is shared, and tasks pack a few rows of A. If both are too few for the threads, all
 * panels are shared and tasks are tiles of C.
 *
 * Small and batched products: each task packs for itself.
 *
 * Few rows: B is read in place (skinny_blocks).
 *
 * A is not packed if the kernel can read it where it lies.
 *
 * The division of C into tiles and of k into spans does not influence any sum. Each element is the
 * sum over ascending blocks of k of fixed size. */
#include "backend/cpu/gemm/block.h"

#include <string.h>

#include "tensor/tensor.h"

enum {
    PACK_A_PANELS = 8, /* panels of one packing task */
    PACK_B_PANELS = 4,
    TASKS_PER_THREAD = 8,
    GROUPS_PER_THREAD = 3,
    SKINNY_SUMS = 2, /* of a block of k, and of the blocks before it */
    /* the last columns are in tasks smaller by this factor, so that all threads end at about the
     * same time */
    FINE = 4,
};

static int64_t skinny_a_bytes(const wefti_gemm *gemm) {
    return wefti_round_up(gemm->spec.m * gemm->spec.k * 4, GEMM_ALIGNMENT);
}

/* Bytes for all threads together, or for each thread if tasks pack for themselves. */
static int64_t block_bytes(const wefti_gemm *gemm) {
    if (gemm->path == GEMM_SKINNY)
        return skinny_a_bytes(gemm) + SKINNY_SUMS * GEMM_SKINNY_ROWS * GEMM_SKINNY_COLUMNS * 4;
    return wefti_gemm_a_bytes(gemm) + wefti_gemm_columns_bytes(gemm, gemm->n_block) +
           wefti_gemm_partial_bytes(gemm);
}

/* Rows or columns, of `total`, that one task packs for itself: at most `most`, such that each
 * thread has several groups. 0: `total` is too small. */
static int64_t group_size(int64_t total, int64_t most, int64_t unit, int threads) {
    const int64_t wanted = threads == 1 ? 1 : (int64_t)threads * GROUPS_PER_THREAD;
    int64_t group = most;
    while (group > 2 * unit && ceil_div(total, group) < wanted)
        group = wefti_round_up(group / 2, unit);
    return ceil_div(total, group) < wanted ? 0 : group;
}

/* 0: B is packed for all threads. */
static int64_t group_columns(const wefti_gemm *gemm, int threads) {
    if (gemm->path != GEMM_SHARED || gemm->n_group == 0) return 0;
    return group_size(gemm->n_block, gemm->n_group, gemm->kernels->columns, threads);
}
/* 0: A is packed for all threads, or read in place. */
static int64_t group_rows(const wefti_gemm *gemm, int threads) {
    if (gemm->path != GEMM_SHARED || gemm->a_in_place || gemm->m_group == 0 ||
        gemm->spec.m <= gemm->spec.n)
        return 0;
    return group_size(gemm->m_block, gemm->m_group, gemm->kernels->rows, threads);
}
static int64_t group_rows_bytes(const wefti_gemm *gemm, int64_t rows) {
    return wefti_round_up(rows * gemm->k_span * gemm->kernels->element_bytes, GEMM_ALIGNMENT);
}

static int64_t bytes_of(const wefti_gemm *gemm, int threads) {
    const int64_t rows = group_rows(gemm, threads), group = group_columns(gemm, threads);
    if (rows > 0)
        return wefti_gemm_partial_bytes(gemm) + wefti_gemm_columns_bytes(gemm, gemm->n_block) +
               threads * group_rows_bytes(gemm, rows);
    if (group > 0)
        return wefti_gemm_a_bytes(gemm) + wefti_gemm_partial_bytes(gemm) +
               threads * wefti_gemm_columns_bytes(gemm, group);
    return block_bytes(gemm) * (gemm->path == GEMM_SHARED ? 1 : threads);
}

/* Fewer threads pack wider groups; returns a size that is enough for all these cases. */
int64_t wefti_gemm_panel_bytes(const wefti_gemm *gemm, int threads) {
    int64_t most = 0;
    for (int fewer = 1; fewer <= threads; fewer++) {
        int64_t bytes = bytes_of(gemm, fewer);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* --- Large products
 * -------------------------------------------------------------------------------------------- */

static int64_t pack_a_tasks(const wefti_gemm_block *w) {
    return ceil_div(wefti_gemm_a_panels(w), PACK_A_PANELS);
}
static int64_t pack_b_tasks(const wefti_gemm_block *w) {
    return ceil_div(ceil_div(w->columns, w->gemm->kernels->columns), PACK_B_PANELS);
}

static void pack_a_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_gemm_block *w = context;
    const int64_t first = wefti_gemm_first_a_panel(w);
    wefti_gemm_pack_a_panels(w, first + task * PACK_A_PANELS,
                             first + smaller(wefti_gemm_a_panels(w), (task + 1) * PACK_A_PANELS));
}
static void pack_b_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_gemm_block *w = context;
    const int64_t panels = ceil_div(w->columns, w->gemm->kernels->columns);
    wefti_gemm_pack_b_panels(w, task * PACK_B_PANELS, smaller(panels, (task + 1) * PACK_B_PANELS));
}
static void pack_task(void *context, int64_t task, int thread) {
    const int64_t a_tasks = pack_a_tasks(context);
    if (task < a_tasks)
        pack_a_task(context, task, thread);
    else
        pack_b_task(context, task - a_tasks, thread);
}

/* Makes tiles smaller until all threads have enough of them. Tiles of the last columns (or rows, if
 * tasks pack rows) are smaller still. */
static void choose_tiles(wefti_gemm_block *w, int threads) {
    const int64_t rows = w->gemm->kernels->rows, columns = w->gemm->kernels->columns;
    const int64_t wanted = threads == 1 ? 1 : (int64_t)threads * TASKS_PER_THREAD;
    const int64_t m_group = group_rows(w->gemm, threads);
    const int64_t n_group = m_group > 0 ? 0 : group_columns(w->gemm, threads);
    w->own_rows = m_group > 0;
    w->own_columns = n_group > 0;
    w->m_tile = w->own_rows ? m_group : w->gemm->m_tile;
    w->n_tile = w->own_columns ? n_group : w->gemm->n_tile;
    while (!w->own_rows && !w->own_columns &&
           ceil_div(w->rows, w->m_tile) * ceil_div(w->columns, w->n_tile) < wanted) {
        if (w->n_tile > 4 * columns || (w->n_tile > columns && w->m_tile <= 4 * rows))
            w->n_tile = wefti_round_up(w->n_tile / 2, columns);
        else if (w->m_tile > 4 * rows)
            w->m_tile = wefti_round_up(w->m_tile / 2, rows);
        else
            break;
    }
    const int64_t total = w->own_rows ? w->rows : w->columns;
    const int64_t tile = w->own_rows ? w->m_tile : w->n_tile;
    w->coarse = threads == 1 ? total : total * 3 / 4 / tile * tile;
}

/* How columns, or rows, are divided into groups. */
typedef struct cut {
    int64_t total, coarse, tile, fine;
} cut;

static cut cut_of(const wefti_gemm_block *w) {
    const wefti_gemm_kernels *k = w->gemm->kernels;
    if (w->own_rows)
        return (cut){w->rows, w->coarse, w->m_tile,
                     wefti_round_up(ceil_div(w->m_tile, FINE), k->rows)};
    return (cut){w->columns, w->coarse, w->n_tile,
                 wefti_round_up(ceil_div(w->n_tile, FINE), k->columns)};
}
static int64_t groups(const wefti_gemm_block *w) {
    const cut c = cut_of(w);
    return ceil_div(c.coarse, c.tile) + ceil_div(c.total - c.coarse, c.fine);
}
static void group_of(const wefti_gemm_block *w, int64_t group, int64_t *out_first,
                     int64_t *out_end) {
    const cut c = cut_of(w);
    const int64_t coarse = ceil_div(c.coarse, c.tile);
    if (group < coarse) {
        *out_first = group * c.tile;
        *out_end = smaller(c.coarse, *out_first + c.tile);
    } else {
        *out_first = c.coarse + (group - coarse) * c.fine;
        *out_end = smaller(c.total, *out_first + c.fine);
    }
}

/* Rows vary fastest, so consecutive tasks share their panels of B. */
static void tile_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_gemm_block *w = context;
    const int64_t down = ceil_div(w->rows, w->m_tile), i = task % down * w->m_tile;
    int64_t j, j_end;
    group_of(w, task / down, &j, &j_end);
    wefti_gemm_compute_tiles(w, i, smaller(w->rows, i + w->m_tile), j, j_end);
}

static void columns_task(void *context, int64_t task, int thread) {
    wefti_gemm_block w = *(const wefti_gemm_block *)context;
    int64_t j_end;
    group_of(&w, task, &w.b_first, &j_end);
    w.b_panels += thread * wefti_gemm_columns_bytes(w.gemm, w.n_tile);
    const int64_t columns = w.gemm->kernels->columns;
    wefti_gemm_pack_b_panels(&w, w.b_first / columns, ceil_div(j_end, columns));
    wefti_gemm_compute_columns(&w, w.b_first, j_end);
}

static void rows_task(void *context, int64_t task, int thread) {
    wefti_gemm_block w = *(const wefti_gemm_block *)context;
    int64_t i_end;
    group_of(&w, task, &w.a_first, &i_end);
    w.a_panels += thread * group_rows_bytes(w.gemm, w.m_tile);
    const int64_t rows = w.gemm->kernels->rows;
    wefti_gemm_pack_a_panels(&w, w.a_first / rows, ceil_div(i_end, rows));
    wefti_gemm_compute_tiles(&w, w.a_first, i_end, 0, w.columns);
}

static void run_tiles(wefti_gemm_block *w, wefti_pool *pool) {
    if (w->own_rows)
        wefti_pool_run(pool, groups(w), rows_task, w);
    else if (w->own_columns)
        wefti_pool_run(pool, groups(w), columns_task, w);
    else
        wefti_pool_run(pool, ceil_div(w->rows, w->m_tile) * groups(w), tile_task, w);
}

static void run_shared(const wefti_gemm *gemm, const wefti_gemm_args *args, char *workspace,
                       wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t batches = spec->batch[0] * spec->batch[1];
    /* Panels that serve several blocks are packed only for the first of these blocks. */
    const bool one_span = spec->k <= gemm->k_span;
    const bool keep_a = one_span && spec->m <= gemm->m_block;
    const bool keep_b = one_span && spec->n <= gemm->n_block;
    wefti_gemm_block w;
    wefti_gemm_block_begin(&w, gemm, workspace);
    /* the threads' own panels of A lie last */
    if (group_rows(gemm, wefti_pool_threads(pool)) > 0) {
        w.partial = gemm->split_sums ? (float *)(void *)workspace : NULL;
        w.b_panels = workspace + wefti_gemm_partial_bytes(gemm);
        w.a_panels = w.b_panels + wefti_gemm_columns_bytes(gemm, gemm->n_block);
    }
    for (int64_t batch = 0; batch < batches; batch++) {
        wefti_gemm_block_batch(&w, args, batch);
        for (w.j = 0; w.j < spec->n; w.j += gemm->n_block)
            for (w.i = 0; w.i < spec->m; w.i += gemm->m_block) {
                w.columns = smaller(gemm->n_block, spec->n - w.j);
                w.rows = smaller(gemm->m_block, spec->m - w.i);
                choose_tiles(&w, wefti_pool_threads(pool));
                int64_t p = 0;
                do {
                    wefti_gemm_block_span(&w, p);
                    const bool pack_a = !w.own_rows && (!keep_a || w.j == 0);
                    const bool pack_b = !w.own_columns && (!keep_b || w.i == 0);
                    if (pack_a && pack_b)
                        wefti_pool_run(pool, pack_a_tasks(&w) + pack_b_tasks(&w), pack_task, &w);
                    else if (pack_a)
                        wefti_pool_run(pool, pack_a_tasks(&w), pack_a_task, &w);
                    else if (pack_b)
                        wefti_pool_run(pool, pack_b_tasks(&w), pack_b_task, &w);
                    run_tiles(&w, pool);
                    p += w.depth;
                } while (p < spec->k);
            }
    }
}

/* --- Small and batched products
 * -------------------------------------------------------------------------------- */

typedef struct run_item {
    const wefti_gemm *gemm;
    const wefti_gemm_args *args;
    char *workspace;
    int64_t skinny; /* columns of a task with few rows */
} run_item;

static void private_task(void *context, int64_t task, int thread) {
    const run_item *r = context;
    const wefti_gemm *gemm = r->gemm;
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t down = ceil_div(spec->m, gemm->m_block);
    const int64_t across = ceil_div(spec->n, gemm->n_block);
    wefti_gemm_block w;
    wefti_gemm_block_begin(&w, gemm, r->workspace + thread * block_bytes(gemm));
    wefti_gemm_block_batch(&w, r->args, task / (down * across));
    w.i = task % down * gemm->m_block;
    w.j = task / down % across * gemm->n_block;
    w.rows = smaller(gemm->m_block, spec->m - w.i);
    w.columns = smaller(gemm->n_block, spec->n - w.j);
    int64_t p = 0;
    do {
        wefti_gemm_block_span(&w, p);
        wefti_gemm_pack_a_panels(&w, wefti_gemm_first_a_panel(&w),
                                 ceil_div(w.rows, gemm->kernels->rows));
        wefti_gemm_pack_b_panels(&w, 0, ceil_div(w.columns, gemm->kernels->columns));
        wefti_gemm_compute_tiles(&w, 0, w.rows, 0, w.columns);
        p += w.depth;
    } while (p < spec->k);
}

/* --- Few rows
 * --------------------------------------------------------------------------------------------------
 */

/* A in f32 with contiguous rows: where it lies, or a copy in the workspace. */
static const float *skinny_a(const wefti_gemm_spec *spec, const char *data, float *copy,
                             int64_t *out_stride) {
    *out_stride = spec->a.row_stride;
    if (spec->a.dtype == WEFT_F32 && spec->a.column_stride == 1) return (const float *)data;
    *out_stride = spec->k;
    if (spec->a.dtype == WEFT_BF16 && spec->a.column_stride == 1) {
        for (int64_t i = 0; i < spec->m; i++)
            wefti_convert(WEFT_F32, copy + i * spec->k, WEFT_BF16,
                          wefti_gemm_element(&spec->a, data, i, 0), spec->k);
        return copy;
    }
    for (int64_t i = 0; i < spec->m; i++)
        for (int64_t p = 0; p < spec->k; p++) {
            const void *from = wefti_gemm_element(&spec->a, data, i, p);
            copy[i * spec->k + p] = spec->a.dtype == WEFT_F32
                                        ? *(const float *)from
                                        : wefti_bf16_to_f32(*(const uint16_t *)from);
        }
    return copy;
}

/* Columns [j, j + columns) of C, over the blocks of k that products of more rows have. Their sums
 * are added in the same order: to C if the sums of blocks wait there, to `partial` otherwise. */
static void skinny_blocks(const wefti_gemm_block *w, int64_t j, int64_t columns, const float *a,
                          int64_t a_stride, float *sums, float *partial) {
    const wefti_gemm *gemm = w->gemm;
    const wefti_gemm_kernels *kernels = gemm->kernels;
    wefti_gemm_spec spec = gemm->spec;
    wefti_gemm_sink sink = w->sink;
    sink.spec = &spec;
    for (int64_t p = 0; p < spec.k; p += gemm->k_block) {
        const int64_t depth = smaller(gemm->k_block, spec.k - p);
        const bool last = p + depth == spec.k;
        kernels->skinny(spec.m, columns, depth, a + p, a_stride, &spec.b,
                        wefti_gemm_element(&spec.b, w->b, p, j), sums);
        if (last || gemm->plain_sum) {
            kernels->epilogue(&sink, 0, j, spec.m, columns, sums, GEMM_SKINNY_COLUMNS,
                              p > 0 && !gemm->plain_sum ? partial : NULL, GEMM_SKINNY_COLUMNS);
            spec.accumulate = true; /* plain sums: C holds the blocks so far */
            continue;
        }
        for (int64_t i = 0; i < spec.m; i++)
            for (int64_t c = i * GEMM_SKINNY_COLUMNS; c < i * GEMM_SKINNY_COLUMNS + columns; c++)
                partial[c] = p > 0 ? partial[c] + sums[c] : sums[c];
    }
}

static void skinny_task(void *context, int64_t task, int thread) {
    const run_item *r = context;
    const wefti_gemm *gemm = r->gemm;
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t across = ceil_div(spec->n, r->skinny);
    char *workspace = r->workspace + thread * block_bytes(gemm);
    float *sums = (float *)(workspace + skinny_a_bytes(gemm));
    wefti_gemm_block w = {.gemm = gemm};
    wefti_gemm_block_batch(&w, r->args, task / across);
    const int64_t j = task % across * r->skinny;
    int64_t a_stride;
    const float *a = skinny_a(spec, w.a, (float *)workspace, &a_stride);
    skinny_blocks(&w, j, smaller(r->skinny, spec->n - j), a, a_stride, sums,
                  sums + GEMM_SKINNY_ROWS * GEMM_SKINNY_COLUMNS);
}

/* Columns of a task: as many as leave each thread one, and 16 KiB of sums at most. A task reads so
 * many elements of each row of B, and memory is read faster in long pieces. The sums of a column do
 * not depend on this. */
static int64_t skinny_columns(const wefti_gemm_spec *spec, int64_t batches, int64_t threads) {
    const int64_t each = ceil_div(spec->n, ceil_div(threads, batches));
    const int64_t most = spec->m <= 4 ? GEMM_SKINNY_COLUMNS : GEMM_SKINNY_COLUMNS / 2;
    return wefti_round_up(ceil_div(each, ceil_div(each, most)), 64);
}

void wefti_gemm_run_f32(const wefti_gemm *gemm, const wefti_gemm_args *args, void *workspace,
                        wefti_pool *pool) {
    const wefti_gemm_spec *spec = &gemm->spec;
    const int64_t batches = spec->batch[0] * spec->batch[1];
    run_item r = {.gemm = gemm, .args = args, .workspace = workspace};
    if (gemm->path == GEMM_SHARED)
        run_shared(gemm, args, workspace, pool);
    else if (gemm->path == GEMM_SKINNY) {
        r.skinny = skinny_columns(spec, batches, wefti_pool_threads(pool));
        wefti_pool_run(pool, batches * ceil_div(spec->n, r.skinny), skinny_task, &r);
    } else
        wefti_pool_run(
            pool, batches * ceil_div(spec->m, gemm->m_block) * ceil_div(spec->n, gemm->n_block),
            private_task, &r);
}
