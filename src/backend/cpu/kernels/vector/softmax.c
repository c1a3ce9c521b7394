/* softmax, log_softmax and cross-entropy: see kernels/norm.h.
 *
 * The first pass over a row keeps a running maximum, and rescales the running sum if the maximum
 * grows. It works by chunks that stay in the first-level cache. A second pass writes the result.
 * Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018. */
#include "backend/cpu/kernels/vector/table.h"

enum { SOFTMAX_TASK = 16384, CHUNK = 2048 };

static int64_t rows_of_task(int64_t dim) {
    return max64(1, SOFTMAX_TASK / max64(dim, 1));
}

/* Computes the maximum of a row and the sum of e^(x - max). `total`, if given, receives the sum of
 * x. */
static void row_statistics(wefti_src x, int64_t dim, float *max, float *sum, float *total) {
    float m = -INFINITY;
    float s = 0.0f;
    double t = 0.0;
    for (int64_t start = 0; start < dim; start += CHUNK) {
        int64_t count = min64(CHUNK, dim - start), i = 0;
        vf m0 = vf_set1(-INFINITY), m1 = m0;
        for (; i + 2 * VL <= count; i += 2 * VL) {
            m0 = vf_max(load(x, start + i, VL), m0);
            m1 = vf_max(load(x, start + i + VL, VL), m1);
        }
        float chunk_max = vf_hmax(vf_max(m0, m1));
        for (; i < count; i++) {
            float v = load1(x, start + i);
            if (v > chunk_max) chunk_max = v;
        }
        if (chunk_max > m) {
            s *= expf(m - chunk_max); /* 0 at first */
            m = chunk_max;
        }
        /* If all elements so far are -infinity, any finite centre gives the required sum 0. */
        vf centre = vf_set1(m == -INFINITY ? 0.0f : m);
        vf s0 = vf_zero(), s1 = vf_zero(), t0 = vf_zero();
        for (i = 0; i + 2 * VL <= count; i += 2 * VL) {
            vf a = load(x, start + i, VL), b = load(x, start + i + VL, VL);
            s0 = s0 + vf_exp_negative(a - centre);
            s1 = s1 + vf_exp_negative(b - centre);
            if (total) t0 = t0 + (a + b);
        }
        for (; i < count; i += VL) {
            int64_t n = min64(VL, count - i);
            vf a = load(x, start + i, n), e = vf_exp_negative(a - centre);
            s0 = s0 + (n == VL ? e : vf_select(vm_first(n), e, vf_zero()));
            if (total) t0 = t0 + a;
        }
        s += vf_sum(s0 + s1);
        if (total) t += (double)vf_sum(t0);
    }
    *max = m;
    *sum = s;
    if (total) *total = (float)t;
}

typedef struct softmax_run {
    const wefti_softmax_args *a;
    bool log;
} softmax_run;

static void softmax_task(void *context, int64_t task, int thread) {
    (void)thread;
    const softmax_run *run = context;
    const wefti_softmax_args *a = run->a;
    int64_t dim = a->dim, per = rows_of_task(dim), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        wefti_src x = in_at(a->x, row * dim);
        wefti_dst y = out_at(a->y, row * dim);
        float max, sum;
        row_statistics(x, dim, &max, &sum, NULL);
        vf centre = vf_set1(max), scale = vf_set1(1.0f / sum), shift = vf_set1(logf(sum));
        if (run->log) {
            FOR_VECTORS(i, n, dim) {
                store(y, i, (load(x, i, n) - centre) - shift, n);
            }
        } else {
            FOR_VECTORS(i, n, dim) {
                store(y, i, vf_exp_negative(load(x, i, n) - centre) * scale, n);
            }
        }
    }
}

void KERNEL(softmax)(wefti_pool *pool, const wefti_softmax_args *a) {
    softmax_run run = {a, false};
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), softmax_task, &run);
}
void KERNEL(log_softmax)(wefti_pool *pool, const wefti_softmax_args *a) {
    softmax_run run = {a, true};
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), softmax_task, &run);
}

typedef struct softmax_backward_run {
    const wefti_softmax_backward_args *a;
    bool log;
} softmax_backward_run;

/* softmax: dx = y (dy - sum(dy y)); log_softmax: dx = dy - e^y sum(dy). */
static void softmax_backward_task(void *context, int64_t task, int thread) {
    (void)thread;
    const softmax_backward_run *run = context;
    const wefti_softmax_backward_args *a = run->a;
    int64_t dim = a->dim, per = rows_of_task(dim), end = min64(a->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) {
        wefti_src dy = in_at(a->dy, row * dim), y = in_at(a->y, row * dim);
        wefti_dst dx = out_at(a->dx, row * dim);
        vf s = vf_zero();
        FOR_VECTORS(i, n, dim) {
            vf d = load(dy, i, n);
            s = run->log ? (vf)(s + d) : vf_fma(d, load(y, i, n), s);
        }
        vf dot = vf_set1(vf_sum(s));
        FOR_VECTORS(i, n, dim) {
            vf d = load(dy, i, n), v = load(y, i, n);
            store(dx, i, run->log ? vf_fnma(vf_exp(v), dot, d) : (vf)(v * (d - dot)), n);
        }
    }
}

void KERNEL(softmax_backward)(wefti_pool *pool, const wefti_softmax_backward_args *a) {
    softmax_backward_run run = {a, false};
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), softmax_backward_task, &run);
}
void KERNEL(log_softmax_backward)(wefti_pool *pool, const wefti_softmax_backward_args *a) {
    softmax_backward_run run = {a, true};
    wefti_pool_run(pool, blocks_of(a->rows, rows_of_task(a->dim)), softmax_backward_task, &run);
}

/* Cross-entropy: the loss, the gradient, or both. */
typedef struct entropy_run {
    wefti_src logits, targets;
    wefti_dst gradient; /* absent: the loss only */
    int64_t rows, vocab, ignore_index, begin, whole;
    int64_t stride, gradient_stride; /* elements from row to row */
    bool terms;
    float smoothing, scale;
    const float *row_scale, *known_lse;
    float *loss, *lse;
} entropy_run;

static void entropy_row(const entropy_run *run, int64_t row) {
    int64_t vocab = run->vocab, whole = run->whole ? run->whole : vocab;
    int64_t target = load_id(run->targets, row), place = target - run->begin;
    wefti_src x = in_at(run->logits, row * run->stride);
    bool ignored = target == run->ignore_index, legal = target >= 0 && target < whole;
    bool here = place >= 0 && place < vocab;
    float lse = 0.0f, total = 0.0f;
    if (run->known_lse) {
        lse = run->known_lse[row];
    } else if (run->lse || (!ignored && legal)) {
        float max, sum;
        row_statistics(x, vocab, &max, &sum, run->smoothing != 0.0f ? &total : NULL);
        lse = max + logf(sum);
    }
    if (run->lse) run->lse[row] = lse;
    if (run->loss) {
        /* lse minus the terms. The bits are the same if two kernels compute lse and the terms. */
        float loss = 0.0f;
        if (!ignored)
            loss = legal ? (run->terms ? 0.0f : lse) -
                               ((here ? (1.0f - run->smoothing) * load1(x, place) : 0.0f) +
                                run->smoothing * (total / (float)whole))
                         : NAN;
        run->loss[row] = loss;
    }
    if (!run->gradient.data) return;
    wefti_dst d = out_at(run->gradient, row * run->gradient_stride);
    if (ignored || !legal) {
        memset(d.data, 0, (size_t)vocab * (d.dtype == WEFT_F32 ? 4 : 2));
        return;
    }
    float scale = run->scale * (run->row_scale ? run->row_scale[row] : 1.0f);
    float uniform = run->smoothing / (float)whole;
    /* Read the target's own logit before it is overwritten. */
    float at_target = here ? expf(load1(x, place) - lse) - uniform - (1.0f - run->smoothing) : 0.0f;
    vf centre = vf_set1(lse), s = vf_set1(scale), u = vf_set1(uniform * scale);
    /* Set values to 0 that the scale would make subnormal: products with subnormals take ten times
     * longer. */
    vf least = vf_set1(-86.5f - fminf(0.0f, logf(fabsf(scale))));
    FOR_VECTORS(i, n, vocab) {
        vf below = load(x, i, n) - centre;
        vf p = vf_select(vm_lt(below, least), vf_zero(), vf_exp_negative(below));
        store(d, i, p * s - u, n);
    }
    if (here) store1(d, place, at_target * scale);
}

static void entropy_task(void *context, int64_t task, int thread) {
    (void)thread;
    const entropy_run *run = context;
    int64_t per = rows_of_task(run->vocab), end = min64(run->rows, (task + 1) * per);
    for (int64_t row = task * per; row < end; row++) entropy_row(run, row);
}

static void entropy(wefti_pool *pool, entropy_run *run) {
    wefti_pool_run(pool, blocks_of(run->rows, rows_of_task(run->vocab)), entropy_task, run);
}

void KERNEL(cross_entropy)(wefti_pool *pool, const wefti_cross_entropy_args *a) {
    entropy_run run = {.logits = a->logits,
                       .targets = a->targets,
                       .rows = a->rows,
                       .vocab = a->vocab,
                       .stride = a->vocab,
                       .ignore_index = a->ignore_index,
                       .begin = a->begin,
                       .whole = a->whole,
                       .terms = a->terms,
                       .smoothing = a->smoothing,
                       .loss = a->loss,
                       .lse = a->lse};
    entropy(pool, &run);
}
void KERNEL(cross_entropy_backward)(wefti_pool *pool, const wefti_cross_entropy_backward_args *a) {
    entropy_run run = {.logits = a->logits,
                       .targets = a->targets,
                       .gradient = a->dlogits,
                       .rows = a->rows,
                       .vocab = a->vocab,
                       .stride = a->vocab,
                       .gradient_stride = a->vocab,
                       .ignore_index = a->ignore_index,
                       .begin = a->begin,
                       .whole = a->whole,
                       .smoothing = a->smoothing,
                       .scale = a->scale,
                       .row_scale = a->row_scale,
                       .known_lse = a->lse};
    entropy(pool, &run);
}
void KERNEL(cross_entropy_fused)(wefti_pool *pool, const wefti_cross_entropy_fused_args *a) {
    /* A narrower gradient never overtakes the logits that are still to be read. */
    bool narrow = a->narrow && a->logits.dtype == WEFT_F32;
    int64_t stride = a->stride ? a->stride : a->vocab;
    entropy_run run = {.logits = as_in(a->logits),
                       .targets = a->targets,
                       .gradient = {a->logits.data, narrow ? WEFT_BF16 : a->logits.dtype},
                       .rows = a->rows,
                       .vocab = a->vocab,
                       .stride = stride,
                       .gradient_stride = narrow ? 2 * stride : stride,
                       .ignore_index = a->ignore_index,
                       .smoothing = a->smoothing,
                       .scale = a->scale,
                       .row_scale = a->row_scale,
                       .loss = a->loss,
                       .lse = a->lse};
    entropy(pool, &run);
}
