/* embedding, rows, one_hot, gather, scatter_add: see kernels/data.h. Additions into one row keep
 * the order of the source rows: each task owns a strip of columns and goes through all rows. */
#include "backend/cpu/kernels/vector/table.h"
#include "rows/rows.h"

enum { EMBEDDING_TASK = 8192, EMBEDDING_STRIP = 64, ROW_AHEAD_BYTES = 512 };

INLINE void ask_for_row(const void *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes && i < ROW_AHEAD_BYTES; i += 64)
        __builtin_prefetch((const char *)row + i);
}

static int64_t rows_of_task(int64_t dim) {
    return max64(1, EMBEDDING_TASK / max64(dim, 1));
}

static void embedding_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_embedding_args *a = context;
    int64_t dim = a->dim, per = rows_of_task(dim), end = min64(a->rows, (task + 1) * per);
    const int64_t bytes = (int64_t)weft_dtype_bytes(a->table.dtype) * dim;
    for (int64_t row = task * per; row < end; row++) {
        int64_t global = load_id(a->ids, row), id = global - a->begin, second = 0;
        const int64_t next =
            row + ROWS_AHEAD < end ? load_id(a->ids, row + ROWS_AHEAD) - a->begin : -1;
        if (next >= 0 && next < a->vocab)
            ask_for_row((const char *)a->table.data + next * bytes, bytes);
        if (a->second.data)
            second = a->second_ids.data ? load_id(a->second_ids, row)
                                        : a->second_offset + row % a->second_period;
        wefti_dst y = out_at(a->y, row * dim);
        if (id < 0 || id >= a->vocab || second < 0 ||
            (a->second.data && second >= a->second_vocab)) {
            bool elsewhere = global >= 0 && global < a->whole;
            FOR_VECTORS(i, n, dim) {
                store(y, i, vf_set1(elsewhere ? 0.0f : NAN), n);
            }
            continue;
        }
        wefti_src x = in_at(a->table, id * dim), z = {0};
        if (a->second.data) z = in_at(a->second, second * dim);
        FOR_VECTORS(i, n, dim) {
            vf v = load(x, i, n);
            if (z.data) v = v + load(z, i, n);
            store(y, i, v, n);
        }
    }
}

void KERNEL(embedding)(wefti_pool *pool, const wefti_embedding_args *a) {
    wefti_embedding_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), embedding_task, &copy);
}

static void zero_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_embedding_backward_args *a = context;
    int64_t first = task * EMBEDDING_TASK, count = min64(EMBEDDING_TASK, a->vocab * a->dim - first);
    memset(a->dtable + first, 0, (size_t)count * sizeof *a->dtable);
}

static void embedding_backward_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_embedding_backward_args *a = context;
    int64_t first = task * EMBEDDING_STRIP, width = min64(EMBEDDING_STRIP, a->dim - first);
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t whole = a->ids.data ? load_id(a->ids, row) : a->offset + row % a->period;
        int64_t id = whole - a->begin;
        if (id < 0 || id >= a->vocab || whole == a->padding) continue;
        float *y = a->dtable + id * a->dim + first;
        int64_t at = row * a->dim + first;
        FOR_VECTORS(i, n, width) {
            store_f32(y + i, load_f32(y + i, n) + load(a->dy, at + i, n), n);
        }
    }
}

void KERNEL(embedding_backward)(wefti_pool *pool, const wefti_embedding_backward_args *a) {
    wefti_embedding_backward_args copy = *a;
    if (!a->accumulate)
        wefti_pool_run(pool, blocks_of(a->vocab * a->dim, EMBEDDING_TASK), zero_task, &copy);
    wefti_pool_run(pool, blocks_of(a->dim, EMBEDDING_STRIP), embedding_backward_task, &copy);
}

static void embedding_rows_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_embedding_rows_args *a = context;
    int64_t dim = a->dim, per = rows_of_task(dim), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        int64_t id = load_id(a->ids, row);
        if (id < a->begin || id - a->begin >= a->vocab || id == a->padding) id = -1;
        float *y = a->y + row * (dim + WEFTI_ROWS_ID);
        y[0] = (float)wefti_rows_high(id);
        y[1] = (float)wefti_rows_low(id);
        FOR_VECTORS(i, n, dim) {
            store_f32(y + WEFTI_ROWS_ID + i, load(a->dy, row * dim + i, n), n);
        }
    }
}

void KERNEL(embedding_rows)(wefti_pool *pool, const wefti_embedding_rows_args *a) {
    wefti_embedding_rows_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), embedding_rows_task, &copy);
}

typedef struct rows_sum_run {
    const wefti_rows_sum_args *a;
    wefti_rows rows;
} rows_sum_run;

static void rows_sum_task(void *context, int64_t task, int thread) {
    (void)thread;
    const rows_sum_run *run = context;
    const wefti_rows_sum_args *a = run->a;
    const int32_t last = run->rows.begin[run->rows.count] - 1; /* of the places */
    int64_t per = rows_of_task(a->columns), end = min64(a->places, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        float *y = a->sums + row * a->columns;
        a->ids[row] = row < run->rows.count ? run->rows.ids[row] : -1;
        if (row >= run->rows.count) {
            memset(y, 0, (size_t)a->columns * sizeof *y);
            continue;
        }
        const int32_t *place = run->rows.place, *begin = run->rows.begin + row;
        for (int32_t k = begin[0]; k < begin[1]; k++) {
            const int64_t next = place[k + ROWS_AHEAD < last ? k + ROWS_AHEAD : last];
            ask_for_row(a->x + next * a->width + a->first, a->columns * (int64_t)sizeof *y);
        }
        FOR_VECTORS(i, n, a->columns) {
            vf total = vf_zero(), term = vf_zero();
            int32_t part = 0;
            for (int32_t k = begin[0]; k < begin[1]; k++) {
                for (; place[k] >= a->ends[part]; part++) {
                    total = total + term;
                    term = vf_zero();
                }
                term = term + load_f32(a->x + place[k] * a->width + a->first + i, n);
            }
            store_f32(y + i, total + term, n);
        }
    }
}

void KERNEL(rows_sum)(wefti_pool *pool, const wefti_rows_sum_args *a) {
    rows_sum_run run = {.a = a};
    int32_t *ids = a->workspace;
    for (int64_t i = 0; i < a->places; i++) {
        const float *row = a->x + i * a->width;
        int64_t id = wefti_rows_id((double)row[0], (double)row[1]) - a->begin;
        ids[i] = id >= 0 && id < a->vocab ? (int32_t)id : -1;
    }
    wefti_rows_find(ids, a->places, ids + a->places, &run.rows);
    wefti_pool_run(pool, blocks_of(a->places, rows_of_task(a->columns)), rows_sum_task, &run);
}

static void rows_write_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_rows_write_args *a = context;
    int64_t per = rows_of_task(a->dim), end = min64(a->count, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        const int64_t next = row + ROWS_AHEAD < end ? a->ids[row + ROWS_AHEAD] : -1;
        if (next >= 0 && next < a->vocab)
            ask_for_row(a->table + next * a->dim, a->dim * (int64_t)sizeof *a->table);
        if (a->ids[row] >= 0 && a->ids[row] < a->vocab)
            memcpy(a->table + a->ids[row] * a->dim, a->x + row * a->dim,
                   (size_t)a->dim * sizeof *a->table);
    }
}

void KERNEL(rows_write)(wefti_pool *pool, const wefti_rows_write_args *a) {
    wefti_rows_write_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->count, rows_of_task(a->dim)), rows_write_task, &copy);
}

static void one_hot_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_one_hot_args *a = context;
    int64_t per = rows_of_task(a->classes), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        wefti_dst y = out_at(a->y, row * a->classes);
        FOR_VECTORS(i, n, a->classes) {
            store(y, i, vf_set1(a->off), n);
        }
        int64_t id = load_id(a->ids, row) - a->begin;
        if (id >= 0 && id < a->classes) store1(y, id, a->on);
    }
}

void KERNEL(one_hot)(wefti_pool *pool, const wefti_one_hot_args *a) {
    wefti_one_hot_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->classes)), one_hot_task, &copy);
}

static int64_t id_at(wefti_src ids, bool per_outer, bool per_inner, int64_t count, int64_t inner,
                     int64_t o, int64_t k, int64_t i) {
    int64_t at = per_outer ? o * count + k : k;
    return load_id(ids, per_inner ? at * inner + i : at);
}

/* Asks for row `row` of a gather whose indices move rows. */
INLINE void ask_for_gathered(const wefti_gather_args *a, int64_t row, int64_t bytes) {
    const int64_t o = row / a->count, k = row % a->count;
    const int64_t id =
        id_at(a->ids, a->ids_per_outer, false, a->count, a->inner, o, k, 0) - a->begin;
    if (id >= 0 && id < a->axis)
        ask_for_row((const char *)a->x.data + (o * a->axis + id) * bytes, bytes);
}

static void gather_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_gather_args *a = context;
    size_t size = weft_dtype_bytes(a->x.dtype);
    int64_t per = rows_of_task(a->inner), end = min64(a->outer * a->count, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        if (!a->ids_per_inner && row + ROWS_AHEAD < end)
            ask_for_gathered(a, row + ROWS_AHEAD, a->inner * (int64_t)size);
        int64_t o = row / a->count, k = row % a->count;
        char *y = (char *)a->y.data + (size_t)(row * a->inner) * size;
        const char *x = (const char *)a->x.data + (size_t)(o * a->axis * a->inner) * size;
        int64_t span = a->ids_per_inner ? 1 : a->inner; /* elements moved by one index */
        for (int64_t i = 0; i < a->inner; i += span) {
            int64_t id =
                id_at(a->ids, a->ids_per_outer, a->ids_per_inner, a->count, a->inner, o, k, i) -
                a->begin;
            if (id < 0 || id >= a->axis)
                memset(y + (size_t)i * size, 0, (size_t)span * size);
            else
                memcpy(y + (size_t)i * size, x + (size_t)(id * a->inner + i) * size,
                       (size_t)span * size);
        }
    }
}

void KERNEL(gather)(wefti_pool *pool, const wefti_gather_args *a) {
    wefti_gather_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->outer * a->count, rows_of_task(a->inner)), gather_task,
                   &copy);
}

/* A task owns a strip of the inner columns of one outer index. */
static void scatter_add_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_scatter_add_args *a = context;
    int64_t strips = blocks_of(a->inner, EMBEDDING_STRIP), o = task / strips,
            first = task % strips * EMBEDDING_STRIP;
    int64_t width = min64(EMBEDDING_STRIP, a->inner - first);
    float *y = a->y + o * a->axis * a->inner + first;
    if (!a->accumulate)
        for (int64_t r = 0; r < a->axis; r++)
            memset(y + r * a->inner, 0, (size_t)width * sizeof *y);
    for (int64_t k = 0; k < a->count; k++) {
        int64_t at = (o * a->count + k) * a->inner + first;
        if (a->ids_per_inner) {
            for (int64_t i = 0; i < width; i++) {
                int64_t id =
                    id_at(a->ids, a->ids_per_outer, true, a->count, a->inner, o, k, first + i) -
                    a->begin;
                if (id >= 0 && id < a->axis) y[id * a->inner + i] += load1(a->x, at + i);
            }
            continue;
        }
        int64_t id = id_at(a->ids, a->ids_per_outer, false, a->count, a->inner, o, k, 0) - a->begin;
        if (id < 0 || id >= a->axis) continue;
        float *row = y + id * a->inner;
        FOR_VECTORS(i, n, width) {
            store_f32(row + i, load_f32(row + i, n) + load(a->x, at + i, n), n);
        }
    }
}

void KERNEL(scatter_add)(wefti_pool *pool, const wefti_scatter_add_args *a) {
    wefti_scatter_add_args copy = *a;
    wefti_pool_run(pool, a->outer * blocks_of(a->inner, EMBEDDING_STRIP), scatter_add_task, &copy);
}
