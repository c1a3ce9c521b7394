/* batch_norm: see kernels/norm.h.
 *
 * The kernel works on pieces: one (sample, channel) plane, or, channels last, a block of rows by a
 * strip of channels. For each channel a piece gives a mean and a sum of squared deviations from it.
 * Both come from two passes while the piece is in cache. Pieces are merged in order. Source: Chan,
 * Golub & LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
 * 1979. */
#include "backend/cpu/kernels/vector/table.h"

enum { ROW_BLOCK = BATCH_NORM_ROW_BLOCK, STRIP = 64, CHANNELS_PER_TASK = 64, PLANE_TASK = 16384 };

typedef struct bn_run {
    const wefti_batch_norm_args *f;
    const wefti_batch_norm_backward_args *b;
    wefti_src x, dy;
    wefti_dst out;
    const float *gamma, *beta;
    int64_t n, channels, spatial, rows; /* rows = n * spatial */
    int64_t pieces, strips;             /* per channel; strips of channels (channels last) */
    bool last, train, relu;
    float *first, *second; /* partial results [pieces, channels] */
    float *scale, *shift;  /* [channels]: y = x scale + shift */
    float *factor;         /* [channels], backward: dx = dy scale + x factor + shift */
} bn_run;

static float sum_plane(wefti_src x, int64_t at, int64_t count, float centre, bool square) {
    vf s0 = vf_zero(), s1 = vf_zero(), c = vf_set1(centre);
    for (int64_t i = 0; i < count; i += 2 * VL) {
        int64_t n = min64(VL, count - i), m = min64(VL, count - i - VL);
        vf u = load(x, at + i, n) - c, v = vf_zero();
        if (n < VL) u = vf_select(vm_first(n), u, vf_zero());
        if (m > 0) {
            v = load(x, at + i + VL, m) - c;
            if (m < VL) v = vf_select(vm_first(m), v, vf_zero());
        }
        s0 = square ? vf_fma(u, u, s0) : (vf)(s0 + u);
        s1 = square ? vf_fma(v, v, s1) : (vf)(s1 + v);
    }
    return vf_sum(s0 + s1);
}

static void plane_statistics_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context; /* one task a plane group */
    int64_t per = max64(1, PLANE_TASK / max64(r->spatial, 1)), planes = r->n * r->channels;
    for (int64_t k = task * per; k < min64(planes, (task + 1) * per); k++) {
        float mean = sum_plane(r->x, k * r->spatial, r->spatial, 0.0f, false) / (float)r->spatial;
        r->first[k] = mean;
        r->second[k] = sum_plane(r->x, k * r->spatial, r->spatial, mean, true);
    }
}

static void rows_statistics_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    int64_t strip = task % r->strips, piece = task / r->strips;
    int64_t begin = piece * ROW_BLOCK, end = min64(r->rows, begin + ROW_BLOCK);
    int64_t channel = strip * STRIP, width = min64(STRIP, r->channels - channel);
    float count = (float)(end - begin);
    FOR_VECTORS(c, n, width) {
        int64_t at = channel + c;
        vf sum = vf_zero(), squares = vf_zero();
        for (int64_t row = begin; row < end; row++)
            sum = sum + load(r->x, row * r->channels + at, n);
        vf mean = sum / vf_set1(count);
        for (int64_t row = begin; row < end; row++) {
            vf d = load(r->x, row * r->channels + at, n) - mean;
            squares = vf_fma(d, d, squares);
        }
        store_f32(r->first + piece * r->channels + at, mean, n);
        store_f32(r->second + piece * r->channels + at, squares, n);
    }
}

static int64_t piece_count(const bn_run *r, int64_t piece) {
    return r->last ? min64(ROW_BLOCK, r->rows - piece * ROW_BLOCK) : r->spatial;
}

/* Merges a channel's pieces and computes its scale and shift. */
static void channel_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    const wefti_batch_norm_args *a = r->f;
    int64_t end = min64(r->channels, (task + 1) * CHANNELS_PER_TASK);
    for (int64_t c = task * CHANNELS_PER_TASK; c < end; c++) {
        float mean, rstd;
        if (a->train) {
            double m = 0.0, squares = 0.0, count = 0.0;
            for (int64_t p = 0; p < r->pieces; p++) {
                double k = (double)piece_count(r, p);
                double delta = (double)r->first[p * r->channels + c] - m;
                squares += (double)r->second[p * r->channels + c] +
                           delta * delta * (count * k / (count + k));
                m += delta * (k / (count + k));
                count += k;
            }
            double variance = squares / count;
            mean = (float)m;
            rstd = (float)(1.0 / sqrt(variance + (double)a->eps));
            if (a->running_mean) a->running_mean[c] += a->momentum * (mean - a->running_mean[c]);
            if (a->running_var) {
                float unbiased = (float)(squares / (count > 1.0 ? count - 1.0 : 1.0));
                a->running_var[c] += a->momentum * (unbiased - a->running_var[c]);
            }
        } else {
            mean = a->running_mean[c];
            rstd = 1.0f / sqrtf(a->running_var[c] + a->eps);
        }
        if (a->mean) a->mean[c] = mean;
        if (a->rstd) a->rstd[c] = rstd;
        r->scale[c] = rstd * (a->gamma ? a->gamma[c] : 1.0f);
        r->shift[c] = (a->beta ? a->beta[c] : 0.0f) - mean * r->scale[c];
    }
}

static void apply_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    int64_t run = r->last ? r->channels : r->spatial; /* elements of one inner loop */
    int64_t runs = r->last ? r->rows : r->n * r->channels,
            per = max64(1, PLANE_TASK / max64(run, 1));
    for (int64_t k = task * per; k < min64(runs, (task + 1) * per); k++) {
        vf scale = vf_zero(), shift = vf_zero();
        if (!r->last) {
            scale = vf_set1(r->scale[k % r->channels]);
            shift = vf_set1(r->shift[k % r->channels]);
        }
        FOR_VECTORS(i, n, run) {
            if (r->last) {
                scale = load_f32(r->scale + i, n);
                shift = load_f32(r->shift + i, n);
            }
            vf y = vf_fma(load(r->x, k * run + i, n), scale, shift);
            store(r->out, k * run + i, r->relu ? vf_max(vf_zero(), y) : y, n);
        }
    }
}

static int64_t apply_tasks(const bn_run *r) {
    int64_t run = r->last ? r->channels : r->spatial;
    return blocks_of(r->last ? r->rows : r->n * r->channels, max64(1, PLANE_TASK / max64(run, 1)));
}

static void layout(bn_run *r, void *workspace) {
    r->rows = r->n * r->spatial;
    r->pieces = r->last ? blocks_of(r->rows, ROW_BLOCK) : r->n;
    r->strips = blocks_of(r->channels, STRIP);
    r->scale = workspace;
    r->shift = r->scale + r->channels;
    r->factor = r->shift + r->channels;
    r->first = r->factor + r->channels;
    r->second = r->first + r->pieces * r->channels;
}

void KERNEL(batch_norm)(wefti_pool *pool, const wefti_batch_norm_args *a) {
    bn_run r = {.f = a, .x = a->x, .out = a->y, .n = a->n, .channels = a->channels};
    r.spatial = a->spatial;
    r.last = a->channels_last;
    r.relu = a->relu;
    layout(&r, a->workspace);
    if (r.rows * r.channels == 0) return;
    if (a->train) {
        if (r.last)
            wefti_pool_run(pool, r.pieces * r.strips, rows_statistics_task, &r);
        else
            wefti_pool_run(pool,
                           blocks_of(r.n * r.channels, max64(1, PLANE_TASK / max64(r.spatial, 1))),
                           plane_statistics_task, &r);
    }
    wefti_pool_run(pool, blocks_of(r.channels, CHANNELS_PER_TASK), channel_task, &r);
    wefti_pool_run(pool, apply_tasks(&r), apply_task, &r);
}

/* dy, or 0 where the fused relu cut off the output. scale and shift give the forward's y. */
INLINE vf live_gradient(const bn_run *r, vf dy, vf x, vf scale, vf shift) {
    if (!r->relu) return dy;
    return vf_select(vm_lt(vf_zero(), vf_fma(x, scale, shift)), dy, vf_zero());
}

/* Partial sums of dy and dy (x - mean) for each piece. */
static void plane_sums_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    int64_t per = max64(1, PLANE_TASK / max64(r->spatial, 1)), planes = r->n * r->channels;
    for (int64_t k = task * per; k < min64(planes, (task + 1) * per); k++) {
        int64_t c = k % r->channels;
        vf mean = vf_set1(r->b->mean[c]), scale = vf_set1(r->scale[c]),
           shift = vf_set1(r->shift[c]);
        vf s = vf_zero(), t = vf_zero();
        FOR_VECTORS(i, n, r->spatial) {
            vf x = load(r->x, k * r->spatial + i, n);
            vf d = live_gradient(r, load(r->dy, k * r->spatial + i, n), x, scale, shift);
            s = s + d;
            t = vf_fma(d, x - mean, t);
        }
        r->first[k] = vf_sum(s);
        r->second[k] = vf_sum(t);
    }
}
static void rows_sums_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    int64_t strip = task % r->strips, piece = task / r->strips;
    int64_t begin = piece * ROW_BLOCK, end = min64(r->rows, begin + ROW_BLOCK);
    int64_t channel = strip * STRIP, width = min64(STRIP, r->channels - channel);
    FOR_VECTORS(c, n, width) {
        int64_t at = channel + c;
        vf mean = load_f32(r->b->mean + at, n), scale = load_f32(r->scale + at, n);
        vf shift = load_f32(r->shift + at, n), s = vf_zero(), t = vf_zero();
        for (int64_t row = begin; row < end; row++) {
            vf x = load(r->x, row * r->channels + at, n);
            vf d = live_gradient(r, load(r->dy, row * r->channels + at, n), x, scale, shift);
            s = s + d;
            t = vf_fma(d, x - mean, t);
        }
        store_f32(r->first + piece * r->channels + at, s, n);
        store_f32(r->second + piece * r->channels + at, t, n);
    }
}

/* dx = gamma rstd (dy - mean(dy) - xhat mean(dy xhat)) = dy scale + x factor + constant. The
 * constant lies in the first row of `first`. Only this channel's task reads it. */
static void backward_channel_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    const wefti_batch_norm_backward_args *a = r->b;
    int64_t end = min64(r->channels, (task + 1) * CHANNELS_PER_TASK);
    for (int64_t c = task * CHANNELS_PER_TASK; c < end; c++) {
        double s = 0.0, t = 0.0, count = (double)r->rows;
        for (int64_t p = 0; p < r->pieces; p++) {
            s += (double)r->first[p * r->channels + c];
            t += (double)r->second[p * r->channels + c];
        }
        double rstd = (double)a->rstd[c], dgamma = t * rstd;
        if (a->dgamma) a->dgamma[c] = (float)dgamma + (a->accumulate ? a->dgamma[c] : 0.0f);
        if (a->dbeta) a->dbeta[c] = (float)s + (a->accumulate ? a->dbeta[c] : 0.0f);
        double slope = a->train ? -(double)r->scale[c] * rstd * dgamma / count : 0.0;
        double constant =
            a->train ? -(double)r->scale[c] * s / count - slope * (double)a->mean[c] : 0;
        r->factor[c] = (float)slope;
        r->first[c] = (float)constant;
    }
}

static void backward_apply_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bn_run *r = context;
    int64_t run = r->last ? r->channels : r->spatial;
    int64_t runs = r->last ? r->rows : r->n * r->channels,
            per = max64(1, PLANE_TASK / max64(run, 1));
    for (int64_t k = task * per; k < min64(runs, (task + 1) * per); k++) {
        vf scale = vf_zero(), shift = vf_zero(), factor = vf_zero(), constant = vf_zero();
        if (!r->last) {
            int64_t c = k % r->channels;
            scale = vf_set1(r->scale[c]);
            shift = vf_set1(r->shift[c]);
            factor = vf_set1(r->factor[c]);
            constant = vf_set1(r->first[c]);
        }
        FOR_VECTORS(i, n, run) {
            if (r->last) {
                scale = load_f32(r->scale + i, n);
                shift = load_f32(r->shift + i, n);
                factor = load_f32(r->factor + i, n);
                constant = load_f32(r->first + i, n);
            }
            vf x = load(r->x, k * run + i, n);
            vf d = live_gradient(r, load(r->dy, k * run + i, n), x, scale, shift);
            store(r->out, k * run + i, vf_fma(d, scale, vf_fma(x, factor, constant)), n);
        }
    }
}

void KERNEL(batch_norm_backward)(wefti_pool *pool, const wefti_batch_norm_backward_args *a) {
    bn_run r = {.b = a, .x = a->x, .dy = a->dy, .out = a->dx, .n = a->n, .channels = a->channels};
    r.spatial = a->spatial;
    r.last = a->channels_last;
    r.relu = a->relu;
    layout(&r, a->workspace);
    for (int64_t c = 0; c < r.channels; c++) {
        r.scale[c] = a->rstd[c] * (a->gamma ? a->gamma[c] : 1.0f);
        r.shift[c] = (a->beta ? a->beta[c] : 0.0f) - a->mean[c] * r.scale[c];
    }
    if (r.last)
        wefti_pool_run(pool, r.pieces * r.strips, rows_sums_task, &r);
    else
        wefti_pool_run(pool,
                       blocks_of(r.n * r.channels, max64(1, PLANE_TASK / max64(r.spatial, 1))),
                       plane_sums_task, &r);
    wefti_pool_run(pool, blocks_of(r.channels, CHANNELS_PER_TASK), backward_channel_task, &r);
    if (a->dx.data && r.rows > 0) wefti_pool_run(pool, apply_tasks(&r), backward_apply_task, &r);
}
