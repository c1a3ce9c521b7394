/* layer_norm and rms_norm: see kernels/norm.h. Rows are independent. The gradients of gamma and
 * beta are summed over blocks of 64 rows, then over the blocks in order. */
#include "backend/cpu/kernels/vector/table.h"

enum { VECTOR_NORM_ROW_BLOCK = NORM_ROW_BLOCK, NORM_TASK = 16384, NORM_STRIP = 256 };

static int64_t rows_of_task(int64_t dim) {
    return max64(1, NORM_TASK / max64(dim, 1));
}

/* One vector of s = x + residual. */
INLINE vf load_sum(const wefti_norm_args *a, wefti_src x, wefti_src residual, int64_t i,
                   int64_t n) {
    vf v = load(x, i, n);
    if (a->residual.data) v = v + load(residual, i, n);
    return v;
}

INLINE float reduce4(vf s0, vf s1, vf s2, vf s3) {
    return vf_sum((s0 + s1) + (s2 + s3));
}

/* Computes the sum of a row of s = x + residual, and stores s if the caller wants it. `source`
 * receives the tensor to read the row from again: the stored s, or x. */
static void row_sums(const wefti_norm_args *a, int64_t row, wefti_src *source, float *sum) {
    wefti_src x = in_at(a->x, row * a->dim), residual = {0};
    if (a->residual.data) residual = in_at(a->residual, row * a->dim);
    vf s[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    if (a->residual.data && a->sum.data) {
        wefti_dst out = out_at(a->sum, row * a->dim);
        FOR_VECTORS(i, n, a->dim) {
            vf v = load(x, i, n) + load(residual, i, n);
            store(out, i, v, n);
            /* Normalize the stored values, so that backward sees the same numbers. */
            if (out.dtype == WEFT_BF16) {
                v = vf_round_bf16(v);
                if (n < VL) v = vf_select(vm_first(n), v, vf_zero());
            }
            s[i / VL & 3] = s[i / VL & 3] + v;
        }
        *source = as_in(out);
    } else {
        FOR_VECTORS(i, n, a->dim) {
            vf v = load_sum(a, x, residual, i, n);
            s[i / VL & 3] = s[i / VL & 3] + v;
        }
        *source = x;
    }
    *sum = reduce4(s[0], s[1], s[2], s[3]);
}

static void norm_row(const wefti_norm_args *a, int64_t row, bool layer) {
    wefti_src x, residual = {0};
    float sum;
    row_sums(a, row, &x, &sum);
    bool add = a->residual.data && !a->sum.data; /* the sum was not stored: compute it again */
    if (add) residual = in_at(a->residual, row * a->dim);
    float mean = layer ? sum / (float)a->dim : 0.0f;
    vf centre = vf_set1(mean), q[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t dim = a->dim, i = 0;
    for (; i + VL <= dim; i += VL) {
        vf v = load(x, i, VL);
        if (add) v = v + load(residual, i, VL);
        v = v - centre;
        q[i / VL & 3] = vf_fma(v, v, q[i / VL & 3]);
    }
    if (i < dim) {
        vf v = load(x, i, dim - i);
        if (add) v = v + load(residual, i, dim - i);
        v = vf_select(vm_first(dim - i), v - centre, vf_zero());
        q[0] = vf_fma(v, v, q[0]);
    }
    float variance = reduce4(q[0], q[1], q[2], q[3]) / (float)dim;
    float rstd = 1.0f / sqrtf(variance + a->eps);
    if (layer && a->mean) a->mean[row] = mean;
    if (a->rstd) a->rstd[row] = rstd;
    wefti_dst y = out_at(a->y, row * dim);
    vf scale = vf_set1(rstd);
    FOR_VECTORS(j, n, dim) {
        vf v = load(x, j, n);
        if (add) v = v + load(residual, j, n);
        v = (v - centre) * scale;
        if (a->gamma && a->beta) /* one rounding, as when y is computed again from its statistics */
            v = vf_fma(v, load_f32(a->gamma + j, n), load_f32(a->beta + j, n));
        else if (a->gamma)
            v = v * load_f32(a->gamma + j, n);
        else if (a->beta)
            v = v + load_f32(a->beta + j, n);
        store(y, j, v, n);
    }
}

static void layer_norm_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_norm_args *a = context;
    int64_t per = rows_of_task(a->dim), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) norm_row(a, row, true);
}
static void rms_norm_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_norm_args *a = context;
    int64_t per = rows_of_task(a->dim), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) norm_row(a, row, false);
}

void KERNEL(layer_norm)(wefti_pool *pool, const wefti_norm_args *a) {
    wefti_norm_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), layer_norm_task, &copy);
}
void KERNEL(rms_norm)(wefti_pool *pool, const wefti_norm_args *a) {
    wefti_norm_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), rms_norm_task, &copy);
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), with g = dy gamma (rms: no mean(g)). The row's
 * parameter gradients are added to dgamma and dbeta while the row is in cache. */
static void backward_row(const wefti_norm_backward_args *a, int64_t row, bool layer, float *dgamma,
                         float *dbeta) {
    int64_t dim = a->dim;
    wefti_src dy = in_at(a->dy, row * dim), x = in_at(a->x, row * dim);
    vf centre = vf_set1(layer ? a->mean[row] : 0.0f), rstd = vf_set1(a->rstd[row]);
    vf sum_g[2] = {vf_zero(), vf_zero()}, sum_gx[2] = {vf_zero(), vf_zero()};
    FOR_VECTORS(i, n, dim) {
        vf d = load(dy, i, n), hat = (load(x, i, n) - centre) * rstd, g = d;
        if (a->gamma) g = d * load_f32(a->gamma + i, n);
        int k = (int)(i / VL & 1);
        sum_g[k] = sum_g[k] + g; /* d is 0 beyond the row's end */
        sum_gx[k] = vf_fma(g, hat, sum_gx[k]);
        if (dgamma) store_f32(dgamma + i, vf_fma(d, hat, load_f32(dgamma + i, n)), n);
        if (dbeta) store_f32(dbeta + i, d + load_f32(dbeta + i, n), n);
    }
    if (!a->dx.data) return;
    vf mean_g = vf_set1(layer ? vf_sum(sum_g[0] + sum_g[1]) / (float)dim : 0.0f);
    vf mean_gx = vf_set1(vf_sum(sum_gx[0] + sum_gx[1]) / (float)dim);
    wefti_dst dx = out_at(a->dx, row * dim);
    wefti_src add = {0};
    if (a->dx_add.data) add = in_at(a->dx_add, row * dim);
    FOR_VECTORS(i, n, dim) {
        vf g = load(dy, i, n), hat = (load(x, i, n) - centre) * rstd;
        if (a->gamma) g = g * load_f32(a->gamma + i, n);
        vf v = rstd * vf_fnma(hat, mean_gx, g - mean_g);
        if (add.data) v = v + load(add, i, n);
        store(dx, i, v, n);
    }
}

/* The workspace holds one row of partial dgamma and one row of partial dbeta for each block of
 * rows. */
static void backward_block(const wefti_norm_backward_args *a, int64_t block, bool layer) {
    float *dgamma = NULL, *dbeta = NULL;
    if (a->dgamma) dgamma = (float *)a->workspace + 2 * block * a->dim;
    if (a->dbeta) dbeta = (float *)a->workspace + (2 * block + 1) * a->dim;
    if (dgamma) memset(dgamma, 0, (size_t)a->dim * sizeof *dgamma);
    if (dbeta) memset(dbeta, 0, (size_t)a->dim * sizeof *dbeta);
    int64_t end = min64(a->rows, (block + 1) * VECTOR_NORM_ROW_BLOCK);
    for (int64_t row = block * VECTOR_NORM_ROW_BLOCK; row < end; row++)
        backward_row(a, row, layer, dgamma, dbeta);
}
static void layer_norm_backward_task(void *context, int64_t task, int thread) {
    (void)thread;
    backward_block(context, task, true);
}
static void rms_norm_backward_task(void *context, int64_t task, int thread) {
    (void)thread;
    backward_block(context, task, false);
}

static void sum_blocks(const wefti_norm_backward_args *a, int which, int64_t first, int64_t width,
                       float *out) {
    const float *partial = (const float *)a->workspace + which * a->dim + first;
    int64_t blocks = blocks_of(a->rows, VECTOR_NORM_ROW_BLOCK);
    FOR_VECTORS(c, n, width) {
        vf s = vf_zero();
        for (int64_t b = 0; b < blocks; b++) s = s + load_f32(partial + 2 * b * a->dim + c, n);
        if (a->accumulate) s = s + load_f32(out + first + c, n);
        store_f32(out + first + c, s, n);
    }
}
static void parameters_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_norm_backward_args *a = context;
    int64_t first = task * NORM_STRIP, width = min64(NORM_STRIP, a->dim - first);
    if (a->dgamma) sum_blocks(a, 0, first, width, a->dgamma);
    if (a->dbeta) sum_blocks(a, 1, first, width, a->dbeta);
}

static void backward(wefti_pool *pool, const wefti_norm_backward_args *a, wefti_task *task) {
    wefti_norm_backward_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->rows, VECTOR_NORM_ROW_BLOCK), task, &copy);
    if (a->dgamma || a->dbeta)
        wefti_pool_run(pool, blocks_of(a->dim, NORM_STRIP), parameters_task, &copy);
}
void KERNEL(layer_norm_backward)(wefti_pool *pool, const wefti_norm_backward_args *a) {
    backward(pool, a, layer_norm_backward_task);
}
void KERNEL(rms_norm_backward)(wefti_pool *pool, const wefti_norm_backward_args *a) {
    backward(pool, a, rms_norm_backward_task);
}
