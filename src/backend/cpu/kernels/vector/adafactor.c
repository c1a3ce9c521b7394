/* Adafactor: see kernels/optimizer.h. There are three passes: the factored second moment; the norms
 * of the update and of the parameter; the update. The workspace holds the row and column factors,
 * then partial results. */
#include "backend/cpu/kernels/vector/table.h"

typedef struct factor_run {
    const wefti_adafactor_args *a;
    int64_t rows, cols;             /* a vector is one row */
    int64_t row_block, blocks;      /* rows of a partial result */
    int64_t strips;                 /* of OPTIMIZER_BLOCK columns, for long rows */
    float *row_factor, *col_factor; /* u = g row_factor[i] col_factor[j] */
    float *col_partial;             /* [blocks, cols] */
    double *norms;                  /* [blocks * strips][2] */
    float shrink, step, keep;
} factor_run;

static bool is_matrix(const factor_run *r) {
    return r->a->rows > 0;
}

/* Computes the means of g^2 + eps1 over a row's columns, and its partial sums over this block's
 * rows. */
static void factors_task(void *context, int64_t task, int thread) {
    (void)thread;
    const factor_run *r = context;
    const wefti_adafactor_args *a = r->a;
    float *partial = r->col_partial + task * r->cols;
    memset(partial, 0, (size_t)r->cols * sizeof *partial);
    vf scale = vf_set1(a->grad_scale), eps = vf_set1(a->eps1);
    int64_t end = min64(r->rows, (task + 1) * r->row_block);
    for (int64_t row = task * r->row_block; row < end; row++) {
        double total = 0.0;
        for (int64_t start = 0; start < r->cols; start += 64 * VL) {
            int64_t stop = min64(r->cols, start + 64 * VL);
            vf sum = vf_zero();
            for (int64_t j = start; j < stop; j += VL) {
                int64_t n = min64(VL, stop - j);
                vf g = load(a->grad, row * r->cols + j, n) * scale, s = vf_fma(g, g, eps);
                if (n < VL) s = vf_select(vm_first(n), s, vf_zero());
                sum = sum + s;
                store_f32(partial + j, load_f32(partial + j, n) + s, n);
            }
            total += (double)vf_sum(sum);
        }
        if (is_matrix(r))
            a->row[row] =
                a->beta2 * a->row[row] + (1.0f - a->beta2) * (float)(total / (double)r->cols);
    }
}

/* The column moment: means over all rows, blocks in order. A vector has one row. */
static void columns_task(void *context, int64_t task, int thread) {
    (void)thread;
    const factor_run *r = context;
    const wefti_adafactor_args *a = r->a;
    int64_t end = min64(r->cols, (task + 1) * REDUCE_COLUMN_BLOCK);
    vf fresh = vf_set1((1.0f - a->beta2) / (float)r->rows), beta2 = vf_set1(a->beta2);
    for (int64_t j = task * REDUCE_COLUMN_BLOCK; j < end; j += VL) {
        int64_t n = min64(VL, end - j);
        vf s = vf_zero();
        for (int64_t b = 0; b < r->blocks; b++)
            s = s + load_f32(r->col_partial + b * r->cols + j, n);
        vf c = vf_fma(beta2, load_f32(a->col + j, n), fresh * s);
        store_f32(a->col + j, c, n);
        store_f32(r->col_factor + j, vf_set1(1.0f) / vf_sqrt(c), n);
    }
}

static void norms_task(void *context, int64_t task, int thread) {
    (void)thread;
    const factor_run *r = context;
    const wefti_adafactor_args *a = r->a;
    int64_t block = task / r->strips, strip = task % r->strips;
    int64_t last = min64(r->cols, (strip + 1) * OPTIMIZER_BLOCK);
    int64_t end = min64(r->rows, (block + 1) * r->row_block);
    vf scale = vf_set1(a->grad_scale);
    double u2 = 0.0, p2 = 0.0;
    for (int64_t row = block * r->row_block; row < end; row++) {
        vf factor = scale * vf_set1(r->row_factor[row]);
        for (int64_t start = strip * OPTIMIZER_BLOCK; start < last; start += 64 * VL) {
            int64_t stop = min64(last, start + 64 * VL);
            vf su = vf_zero(), sp = vf_zero();
            for (int64_t j = start; j < stop; j += VL) {
                int64_t n = min64(VL, stop - j), at = row * r->cols + j;
                vf u = load(a->grad, at, n) * factor * load_f32(r->col_factor + j, n);
                vf p = load_f32(a->param + at, n);
                su = vf_fma(u, u, su);
                sp = vf_fma(p, p, sp);
            }
            u2 += (double)vf_sum(su);
            p2 += (double)vf_sum(sp);
        }
    }
    r->norms[2 * task] = u2;
    r->norms[2 * task + 1] = p2;
}

static void apply_task(void *context, int64_t task, int thread) {
    (void)thread;
    const factor_run *r = context;
    const wefti_adafactor_args *a = r->a;
    int64_t block = task / r->strips, strip = task % r->strips;
    int64_t last = min64(r->cols, (strip + 1) * OPTIMIZER_BLOCK);
    int64_t end = min64(r->rows, (block + 1) * r->row_block);
    vf shrink = vf_set1(r->shrink), step = vf_set1(r->step), keep = vf_set1(r->keep);
    vf scale = vf_set1(a->grad_scale), fresh = vf_set1(1.0f - a->beta1);
    for (int64_t row = block * r->row_block; row < end; row++) {
        vf factor = scale * vf_set1(r->row_factor[row]);
        for (int64_t j = strip * OPTIMIZER_BLOCK; j < last; j += VL) {
            int64_t n = min64(VL, last - j), at = row * r->cols + j;
            vf u = load(a->grad, at, n) * factor * load_f32(r->col_factor + j, n) * shrink;
            if (a->m) {
                vf m = load_f32(a->m + at, n);
                u = vf_fma(fresh, u - m, m);
                store_f32(a->m + at, u, n);
            }
            vf p = vf_fnma(step, u, load_f32(a->param + at, n) * keep);
            store_f32(a->param + at, p, n);
            if (a->shadow) {
                if (n == VL)
                    store_bf16(a->shadow + at, p);
                else
                    store_bf16_n(a->shadow + at, p, n);
            }
        }
    }
}

/* Takes a piece's factors and state from the values that the caller gave. */
static void take_given(const factor_run *r) {
    const wefti_adafactor_args *a = r->a;
    for (int64_t i = 0; i < a->rows; i++) {
        a->row[i] = a->row_next[i];
        r->row_factor[i] = (float)sqrt(a->row_mean / (double)a->row[i]);
    }
    for (int64_t j = 0; j < r->cols && is_matrix(r); j++) {
        a->col[j] = a->col_next[j];
        r->col_factor[j] = (float)(1.0 / sqrt((double)a->col[j]));
    }
}

static bool is_finite(const float *x, int64_t count) {
    float check = 0.0f; /* 0 times an infinite number is NaN */
    for (int64_t i = 0; i < count; i++) check += x[i] * 0.0f;
    return check == 0.0f;
}

void KERNEL(adafactor)(wefti_pool *pool, const wefti_adafactor_args *a) {
    factor_run r = {.a = a, .rows = a->rows > 0 ? a->rows : 1, .cols = a->cols};
    if (r.cols == 0) return;
    r.row_block = optimizer_block_rows(r.cols);
    r.blocks = blocks_of(r.rows, r.row_block);
    r.strips = blocks_of(r.cols, OPTIMIZER_BLOCK);
    r.norms = a->workspace;
    r.row_factor = (float *)(r.norms + 2 * r.blocks * r.strips);
    r.col_factor = r.row_factor + r.rows;
    r.col_partial = r.col_factor + r.cols;
    if (!a->squares || !is_matrix(&r)) { /* a vector's v needs no values of the whole parameter */
        wefti_pool_run(pool, r.blocks, factors_task, &r);
        wefti_pool_run(pool, blocks_of(r.cols, REDUCE_COLUMN_BLOCK), columns_task, &r);
    }
    if (a->squares && is_matrix(&r)) {
        take_given(&r);
    } else if (is_matrix(&r)) {
        double mean = 0.0;
        for (int64_t i = 0; i < r.rows; i++) mean += (double)a->row[i];
        mean /= (double)r.rows;
        for (int64_t i = 0; i < r.rows; i++)
            r.row_factor[i] = (float)sqrt(mean / (double)a->row[i]);
    } else {
        r.row_factor[0] = 1.0f;
    }
    if (a->overflow && !(is_finite(a->col, r.cols) && is_finite(a->row, a->rows)))
        *a->overflow = true;
    double u2 = 0.0, p2 = 0.0, count = (double)r.rows * (double)r.cols;
    if (a->squares) {
        p2 = (double)a->squares[0];
        u2 = (double)a->squares[1];
        count = a->count;
    } else {
        wefti_pool_run(pool, r.blocks * r.strips, norms_task, &r);
        for (int64_t k = 0; k < r.blocks * r.strips; k++) {
            u2 += r.norms[2 * k];
            p2 += r.norms[2 * k + 1];
        }
    }
    double over = sqrt(u2 / count) / (double)a->clip, rms = sqrt(p2 / count), lr = (double)a->lr;
    if (a->scale_parameter) lr *= rms > (double)a->eps2 ? rms : (double)a->eps2;
    r.shrink = (float)(over > 1.0 ? 1.0 / over : 1.0);
    r.step = (float)lr;
    r.keep = (float)(1.0 - lr * (double)a->weight_decay);
    wefti_pool_run(pool, r.blocks * r.strips, apply_task, &r);
}
