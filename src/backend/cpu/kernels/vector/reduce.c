/* Reductions: see kernels/reduce.h. There are three shapes of loop: rows (inner 1), columns (outer
 * 1) and the general middle axis. Long reductions are split into fixed blocks. Their partial
 * results are combined in order. */
#include "backend/cpu/kernels/vector/table.h"

enum {
    REDUCE_TASK = 16384,
    VECTOR_REDUCE_ROW_BLOCK = REDUCE_ROW_BLOCK,
    COLUMN_BLOCK = REDUCE_COLUMN_BLOCK
};

typedef struct reduce_run {
    const wefti_reduce_args *a;
    int64_t blocks, per_task; /* rows: blocks of a row, (row, block) pairs of a task */
    int64_t strips;           /* columns: strips of COLUMN_BLOCK */
    float *partial;
} reduce_run;

INLINE float combine(wefti_reduce_op op, float a, float b) {
    if (op != WEFTI_FOLD_MAX) return a + b;
    return a != a || a > b ? a : b; /* NaN propagates: returns a, or b if b is NaN */
}
INLINE vf combine_vectors(wefti_reduce_op op, vf a, vf b) {
    if (op == WEFTI_FOLD_MAX) return vf_max_nan(a, b);
    return a + b;
}
INLINE float identity(wefti_reduce_op op) {
    return op == WEFTI_FOLD_MAX ? -INFINITY : 0.0f;
}

static void finish(const wefti_reduce_args *a, int64_t at, float value) {
    if (a->op == WEFTI_FOLD_MEAN) value = value / (float)a->reduce;
    if (a->accumulate) value = combine(a->op, load1(as_in(a->y), at), value);
    store1(a->y, at, value);
}

static float reduce_dense(wefti_reduce_op op, wefti_src x, int64_t start, int64_t count) {
    vf s0 = vf_set1(identity(op)), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * VL <= count; i += 4 * VL) {
        s0 = combine_vectors(op, s0, load(x, start + i, VL));
        s1 = combine_vectors(op, s1, load(x, start + i + VL, VL));
        s2 = combine_vectors(op, s2, load(x, start + i + 2 * VL, VL));
        s3 = combine_vectors(op, s3, load(x, start + i + 3 * VL, VL));
    }
    for (; i + VL <= count; i += VL) s0 = combine_vectors(op, s0, load(x, start + i, VL));
    s0 = combine_vectors(op, combine_vectors(op, s0, s1), combine_vectors(op, s2, s3));
    float result;
    if (op == WEFTI_FOLD_MAX) {
        float lanes[VL];
        vf_store(lanes, s0);
        result = lanes[0];
        for (int k = 1; k < VL; k++) result = combine(op, result, lanes[k]);
    } else {
        result = vf_sum(s0);
    }
    for (; i < count; i++) result = combine(op, result, load1(x, start + i));
    return result;
}

static void rows_task(void *context, int64_t task, int thread) {
    (void)thread;
    const reduce_run *run = context;
    const wefti_reduce_args *a = run->a;
    int64_t end = min64(a->outer * run->blocks, (task + 1) * run->per_task);
    for (int64_t k = task * run->per_task; k < end; k++) {
        int64_t row = k / run->blocks, first = k % run->blocks * VECTOR_REDUCE_ROW_BLOCK;
        float s = reduce_dense(a->op, a->x, row * a->reduce + first,
                               min64(VECTOR_REDUCE_ROW_BLOCK, a->reduce - first));
        if (run->blocks == 1)
            finish(a, row, s);
        else
            run->partial[k] = s;
    }
}

/* Combines the partial results of a row, in order. */
static void rows_finish_task(void *context, int64_t task, int thread) {
    (void)thread;
    const reduce_run *run = context;
    float s = run->partial[task * run->blocks];
    for (int64_t k = 1; k < run->blocks; k++)
        s = combine(run->a->op, s, run->partial[task * run->blocks + k]);
    finish(run->a, task, s);
}

/* Adds columns first .. first + width - 1 of one outer index, rows begin .. end - 1, to sums. */
static void reduce_columns(const wefti_reduce_args *a, int64_t outer, int64_t begin, int64_t end,
                           int64_t first, int64_t width, float *sums) {
    wefti_reduce_op op = a->op;
    for (int64_t c = 0; c < COLUMN_BLOCK; c += VL) vf_store(sums + c, vf_set1(identity(op)));
    int64_t at = (outer * a->reduce + begin) * a->inner + first, r = begin;
    for (; r + 4 <= end; r += 4, at += 4 * a->inner) /* four rows a pass over the sums */
        FOR_VECTORS(c, n, width) {
            vf x = combine_vectors(op, load(a->x, at + c, n), load(a->x, at + a->inner + c, n));
            vf y = combine_vectors(op, load(a->x, at + 2 * a->inner + c, n),
                                   load(a->x, at + 3 * a->inner + c, n));
            vf_store(sums + c, combine_vectors(op, vf_load(sums + c), combine_vectors(op, x, y)));
        }
    for (; r < end; r++, at += a->inner) FOR_VECTORS(c, n, width) {
            vf_store(sums + c, combine_vectors(op, vf_load(sums + c), load(a->x, at + c, n)));
        }
}

static void columns_task(void *context, int64_t task, int thread) {
    (void)thread;
    const reduce_run *run = context;
    const wefti_reduce_args *a = run->a;
    int64_t strip = task % run->strips, block = task / run->strips % run->blocks;
    int64_t outer = task / run->strips / run->blocks, rows = reduce_block_rows(a->inner);
    int64_t first = strip * COLUMN_BLOCK, width = min64(COLUMN_BLOCK, a->inner - first);
    _Alignas(64) float sums[COLUMN_BLOCK];
    reduce_columns(a, outer, block * rows, min64(a->reduce, (block + 1) * rows), first, width,
                   sums);
    if (run->blocks == 1)
        for (int64_t c = 0; c < width; c++) finish(a, outer * a->inner + first + c, sums[c]);
    else
        memcpy(run->partial + (outer * run->blocks + block) * a->inner + first, sums,
               (size_t)width * sizeof *sums);
}

static void columns_finish_task(void *context, int64_t task, int thread) {
    (void)thread;
    const reduce_run *run = context;
    const wefti_reduce_args *a = run->a;
    int64_t strip = task % run->strips, outer = task / run->strips;
    int64_t first = strip * COLUMN_BLOCK, width = min64(COLUMN_BLOCK, a->inner - first);
    const float *partial = run->partial + outer * run->blocks * a->inner + first;
    _Alignas(64) float sums[COLUMN_BLOCK];
    memcpy(sums, partial, (size_t)width * sizeof *sums);
    for (int64_t b = 1; b < run->blocks; b++) FOR_VECTORS(c, n, width) {
            vf part = load_f32(partial + b * a->inner + c, n);
            store_f32(sums + c, combine_vectors(a->op, load_f32(sums + c, n), part), n);
        }
    for (int64_t c = 0; c < width; c++) finish(a, outer * a->inner + first + c, sums[c]);
}

void KERNEL(reduce)(wefti_pool *pool, const wefti_reduce_args *a) {
    reduce_run run = {.a = a, .partial = a->workspace};
    if (a->outer * a->inner == 0) return;
    if (a->reduce == 0) {
        float value = a->op == WEFTI_FOLD_MEAN ? NAN : identity(a->op);
        for (int64_t i = 0; i < a->outer * a->inner; i++)
            store1(a->y, i, a->accumulate ? combine(a->op, load1(as_in(a->y), i), value) : value);
        return;
    }
    if (a->inner == 1) {
        run.blocks = blocks_of(a->reduce, VECTOR_REDUCE_ROW_BLOCK);
        run.per_task = max64(1, REDUCE_TASK / min64(a->reduce, VECTOR_REDUCE_ROW_BLOCK));
        wefti_pool_run(pool, blocks_of(a->outer * run.blocks, run.per_task), rows_task, &run);
        if (run.blocks > 1) wefti_pool_run(pool, a->outer, rows_finish_task, &run);
        return;
    }
    run.strips = blocks_of(a->inner, COLUMN_BLOCK);
    run.blocks = blocks_of(a->reduce, reduce_block_rows(a->inner));
    wefti_pool_run(pool, a->outer * run.blocks * run.strips, columns_task, &run);
    if (run.blocks > 1) wefti_pool_run(pool, a->outer * run.strips, columns_finish_task, &run);
}

/* The first index of the greatest of the elements at, at + stride... */
static int64_t argmax_of(wefti_src x, int64_t at, int64_t stride, int64_t count) {
    int64_t best = 0, r = 1;
    float greatest = load1(x, at);
    while (r < count && greatest == greatest) {
        if (stride == 1) r = skip_lower(x, at + r, at + count, greatest) - at;
        for (int64_t end = min64(count, r + SKIP); r < end && greatest == greatest; r++) {
            const float value = load1(x, at + r * stride);
            if (value > greatest || value != value) {
                greatest = value;
                best = r;
            }
        }
    }
    return best;
}

static void argmax_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_argmax_args *a = context;
    int64_t per_task = max64(1, REDUCE_TASK / max64(a->reduce, 1));
    int64_t end = min64(a->outer * a->inner, (task + 1) * per_task);
    for (int64_t k = task * per_task; k < end; k++) {
        int64_t at = k / a->inner * a->reduce * a->inner + k % a->inner;
        int64_t best = argmax_of(a->x, at, a->inner, a->reduce);
        if (a->y.dtype == WEFT_I64)
            ((int64_t *)a->y.data)[k] = best;
        else
            ((int32_t *)a->y.data)[k] = (int32_t)best;
    }
}

void KERNEL(argmax)(wefti_pool *pool, const wefti_argmax_args *a) {
    int64_t per_task = max64(1, REDUCE_TASK / max64(a->reduce, 1));
    wefti_argmax_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->outer * a->inner, per_task), argmax_task, &copy);
}

/* Each lane adds 16 squares in f32; the rest is f64. The relative error is below 17 / 2^24. */
static void sum_squares_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_sum_squares_args *a = context;
    int64_t first = task * VECTOR_REDUCE_ROW_BLOCK,
            count = min64(VECTOR_REDUCE_ROW_BLOCK, a->elements - first);
    double total = 0.0;
    for (int64_t part = 0; part < count; part += 32 * VL) {
        vf s0 = vf_zero(), s1 = vf_zero();
        int64_t n = min64(32 * VL, count - part), i = 0;
        for (; i + 2 * VL <= n; i += 2 * VL) {
            vf x = load(a->x, first + part + i, VL), y = load(a->x, first + part + i + VL, VL);
            s0 = vf_fma(x, x, s0);
            s1 = vf_fma(y, y, s1);
        }
        for (; i < n; i += VL) {
            vf x = load(a->x, first + part + i, min64(VL, n - i));
            s0 = vf_fma(x, x, s0);
        }
        float lanes[VL];
        vf_store(lanes, s0 + s1);
        for (int k = 0; k < VL; k++) total += (double)lanes[k];
    }
    ((double *)a->workspace)[task] = total;
}

void KERNEL(sum_squares)(wefti_pool *pool, const wefti_sum_squares_args *a) {
    wefti_sum_squares_args copy = *a;
    int64_t blocks = blocks_of(a->elements, VECTOR_REDUCE_ROW_BLOCK);
    wefti_pool_run(pool, blocks, sum_squares_task, &copy);
    double total = 0.0;
    for (int64_t b = 0; b < blocks; b++) total += ((double *)a->workspace)[b];
    *a->result = total;
}
