/* SGD, Adam, AdamW, Lion, Adagrad and LAMB: see kernels/optimizer.h. One pass over memory, in tasks
 * of 32768 elements, or fewer of rows that lie far from each other. */
#include "backend/cpu/kernels/vector/table.h"

enum { OPTIMIZER_TASK = 32768, LISTED_TASK = 8192, AHEAD = 512 };

/* Elements that lie behind each other: of the parameter and its states from `at` on, and of the
 * gradient from `from` on. With so many arrays the processor does not prefetch early enough by
 * itself, and rows of a large table lie far from each other. So while a stretch is updated,
 * `ahead`, AHEAD elements or ROWS_AHEAD rows later, is asked for. */
typedef struct stretch {
    int64_t at, from, count, ahead;
} stretch;

/* The stretches of a task: `next` to `end` count rows, or elements, of which there are `most`. */
typedef struct stretches {
    wefti_listed_rows listed;
    int64_t next, end, most;
} stretches;

static int64_t units_of_task(const wefti_listed_rows *x) {
    return x->number ? max64(1, LISTED_TASK / max64(x->width, 1)) : OPTIMIZER_TASK;
}

static int64_t tasks_of(const wefti_listed_rows *x, int64_t elements) {
    return blocks_of(x->number ? x->count : elements, units_of_task(x));
}

static stretches stretches_of(const wefti_listed_rows *x, int64_t elements, int64_t task) {
    const int64_t units = units_of_task(x), most = x->number ? x->count : elements;
    return (stretches){*x, task * units, min64(most, (task + 1) * units), most};
}

/* The next stretch; false: there is none. */
INLINE bool next_stretch(stretches *x, stretch *out) {
    const wefti_listed_rows *rows = &x->listed;
    if (x->next >= x->end) return false;
    if (!rows->number) {
        *out = (stretch){x->next, x->next, x->end - x->next, x->next + AHEAD};
        x->next = x->end;
        return true;
    }
    const int64_t r = x->next++, later = min64(r + ROWS_AHEAD, x->most - 1);
    *out = (stretch){rows->number[r] * rows->width, r * rows->width, rows->width,
                     rows->number[later] * rows->width};
    return true;
}

/* The vectors of all stretches: `n` elements from number i of stretch s on. */
#define FOR_STRETCHES(s, i, n, left)                                                               \
    for (stretch s; next_stretch(left, &s);) FOR_VECTORS(i, n, s.count)

/* The same numbers for a vector. */
INLINE stretch vector_of(const stretch *s, int64_t i, int64_t n) {
    return (stretch){s->at + i, s->from + i, n, s->ahead + i};
}

/* Prefetches an element. Beyond the end this is harmless. */
INLINE void fetch(const float *x, int64_t i) {
    __builtin_prefetch(x + i, 1, 3);
}

INLINE void store_param(float *param, uint16_t *shadow, int64_t i, vf p, int64_t n) {
    store_f32(param + i, p, n);
    if (!shadow) return;
    if (n == VL)
        store_bf16(shadow + i, p);
    else
        store_bf16_n(shadow + i, p, n);
}

static void sgd_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_sgd_args *a = context;
    vf scale = vf_set1(a->grad_scale), lr = vf_set1(a->lr), decay = vf_set1(a->weight_decay);
    vf momentum = vf_set1(a->momentum), fresh = vf_set1(1.0f - a->dampening);
    stretches left = stretches_of(&a->listed, a->elements, task);
    FOR_STRETCHES(s, i, n, &left) {
        const stretch x = vector_of(&s, i, n);
        fetch(a->param, x.ahead);
        if (a->momentum_buffer) fetch(a->momentum_buffer, x.ahead);
        vf p = load_f32(a->param + x.at, n), g = load(a->grad, x.from, n) * scale;
        g = vf_fma(decay, p, g);
        if (a->momentum_buffer) {
            float *buffer = a->momentum_buffer + x.at;
            vf b = g;
            if (!a->first) b = vf_fma(momentum, load_f32(buffer, n), fresh * g);
            store_f32(buffer, b, n);
            g = a->nesterov ? vf_fma(momentum, b, g) : b;
        }
        store_param(a->param, a->shadow, x.at, vf_fnma(lr, g, p), n);
    }
}

void KERNEL(sgd)(wefti_pool *pool, const wefti_sgd_args *a) {
    wefti_sgd_args copy = *a;
    wefti_pool_run(pool, tasks_of(&a->listed, a->elements), sgd_task, &copy);
}

/* `sum` is the sum of 0 v: NaN if a v is infinite or NaN, else 0. */
INLINE void report_overflow(vf sum, bool *overflow) {
    if (overflow && vf_sum(sum) != 0.0f) __atomic_store_n(overflow, true, __ATOMIC_RELAXED);
}

typedef struct adam_run {
    const wefti_adam_args *a;
    float step_size, root_correction; /* lr / (1 - b1^t), 1 / sqrt(1 - b2^t) */
} adam_run;

/* New moments. */
INLINE void next_moments(const float *m_at, const float *v_at, vf g, vf fresh1, vf beta2, vf fresh2,
                         int64_t n, vf *m, vf *v) {
    vf old = load_f32(m_at, n);
    *m = vf_fma(fresh1, g - old, old);
    *v = vf_fma(beta2, load_f32(v_at, n), fresh2 * (g * g));
}

/* The same, stored. */
INLINE void moments(float *m_at, float *v_at, vf g, vf fresh1, vf beta2, vf fresh2, int64_t n,
                    vf *m, vf *v) {
    next_moments(m_at, v_at, g, fresh1, beta2, fresh2, n, m, v);
    store_f32(m_at, *m, n);
    store_f32(v_at, *v, n);
}

static void adam_task(void *context, int64_t task, int thread) {
    (void)thread;
    const adam_run *run = context;
    const wefti_adam_args *a = run->a;
    vf scale = vf_set1(a->grad_scale), fresh1 = vf_set1(1.0f - a->beta1), beta2 = vf_set1(a->beta2);
    vf fresh2 = vf_set1(1.0f - a->beta2), eps = vf_set1(a->eps), size = vf_set1(run->step_size);
    vf root = vf_set1(run->root_correction);
    vf keep = vf_set1(a->decoupled ? 1.0f - a->lr * a->weight_decay : 1.0f);
    vf decay = vf_set1(a->decoupled ? 0.0f : a->weight_decay);
    vf zero = vf_zero(), check = vf_zero();
    stretches left = stretches_of(&a->listed, a->elements, task);
    FOR_STRETCHES(s, i, n, &left) {
        const stretch x = vector_of(&s, i, n);
        fetch(a->param, x.ahead);
        fetch(a->m, x.ahead);
        fetch(a->v, x.ahead);
        if (a->grad.dtype == WEFT_F32) fetch(a->grad.data, x.from + AHEAD);
        vf p = load_f32(a->param + x.at, n), m, v;
        vf g = vf_fma(decay, p, load(a->grad, x.from, n) * scale);
        p = p * keep;
        moments(a->m + x.at, a->v + x.at, g, fresh1, beta2, fresh2, n, &m, &v);
        check = vf_fma(v, zero, check);
        vf denominator = vf_fma(vf_sqrt(v), root, eps);
        store_param(a->param, a->shadow, x.at, vf_fnma(size, m / denominator, p), n);
    }
    report_overflow(check, a->overflow);
}

void KERNEL(adam)(wefti_pool *pool, const wefti_adam_args *a) {
    adam_run run = {.a = a};
    run.step_size = (float)((double)a->lr / (1.0 - pow((double)a->beta1, (double)a->step)));
    run.root_correction = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2, (double)a->step)));
    wefti_pool_run(pool, tasks_of(&a->listed, a->elements), adam_task, &run);
}

static void lion_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_lion_args *a = context;
    vf scale = vf_set1(a->grad_scale), fresh1 = vf_set1(1.0f - a->beta1), beta1 = vf_set1(a->beta1);
    vf fresh2 = vf_set1(1.0f - a->beta2), beta2 = vf_set1(a->beta2), lr = vf_set1(a->lr);
    vf keep = vf_set1(1.0f - a->lr * a->weight_decay), zero = vf_zero();
    stretches left = stretches_of(&a->listed, a->elements, task);
    FOR_STRETCHES(s, i, n, &left) {
        const stretch x = vector_of(&s, i, n);
        fetch(a->param, x.ahead);
        fetch(a->m, x.ahead);
        vf p = load_f32(a->param + x.at, n) * keep, g = load(a->grad, x.from, n) * scale;
        vf m = load_f32(a->m + x.at, n), u = vf_fma(beta1, m, fresh1 * g);
        vf step = vf_select(vm_lt(zero, u), lr, vf_select(vm_lt(u, zero), vf_neg(lr), u * lr));
        store_f32(a->m + x.at, vf_fma(beta2, m, fresh2 * g), n);
        store_param(a->param, a->shadow, x.at, p - step, n);
    }
}

void KERNEL(lion)(wefti_pool *pool, const wefti_lion_args *a) {
    wefti_lion_args copy = *a;
    wefti_pool_run(pool, tasks_of(&a->listed, a->elements), lion_task, &copy);
}

static void adagrad_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_adagrad_args *a = context;
    vf scale = vf_set1(a->grad_scale), lr = vf_set1(a->lr), decay = vf_set1(a->weight_decay);
    vf initial = vf_set1(a->initial), eps = vf_set1(a->eps), zero = vf_zero(), check = vf_zero();
    stretches left = stretches_of(&a->listed, a->elements, task);
    FOR_STRETCHES(s, i, n, &left) {
        const stretch x = vector_of(&s, i, n);
        fetch(a->param, x.ahead);
        fetch(a->sum, x.ahead);
        vf p = load_f32(a->param + x.at, n), g = vf_fma(decay, p, load(a->grad, x.from, n) * scale);
        vf sum = vf_fma(g, g, load_f32(a->sum + x.at, n));
        store_f32(a->sum + x.at, sum, n);
        check = vf_fma(sum, zero, check);
        vf u = g / (vf_sqrt(sum + initial) + eps);
        store_param(a->param, a->shadow, x.at, vf_fnma(lr, u, p), n);
    }
    report_overflow(check, a->overflow);
}

void KERNEL(adagrad)(wefti_pool *pool, const wefti_adagrad_args *a) {
    wefti_adagrad_args copy = *a;
    wefti_pool_run(pool, tasks_of(&a->listed, a->elements), adagrad_task, &copy);
}

typedef struct lamb_run {
    const wefti_lamb_args *a;
    float correction1, root_correction, step; /* 1 / (1 - b1^t), 1 / sqrt(1 - b2^t), lr |p| / |u| */
} lamb_run;

INLINE vf lamb_update(const lamb_run *run, vf m, vf v, vf p) {
    vf denominator = vf_fma(vf_sqrt(v), vf_set1(run->root_correction), vf_set1(run->a->eps));
    vf u = m * vf_set1(run->correction1) / denominator;
    return vf_fma(vf_set1(run->a->weight_decay), p, u);
}

static void lamb_moments_task(void *context, int64_t task, int thread) {
    (void)thread;
    const lamb_run *run = context;
    const wefti_lamb_args *a = run->a;
    vf scale = vf_set1(a->grad_scale), fresh1 = vf_set1(1.0f - a->beta1), beta2 = vf_set1(a->beta2);
    vf fresh2 = vf_set1(1.0f - a->beta2), zero = vf_zero(), check = vf_zero();
    double sums[2] = {0.0, 0.0};
    int64_t end = min64(a->elements, (task + 1) * OPTIMIZER_BLOCK);
    for (int64_t start = task * OPTIMIZER_BLOCK; start < end; start += 64 * VL) {
        vf p2 = vf_zero(), u2 = vf_zero();
        int64_t stop = min64(end, start + 64 * VL);
        for (int64_t i = start; i < stop; i += VL) {
            int64_t n = min64(VL, stop - i);
            vf p = load_f32(a->param + i, n), g = load(a->grad, i, n) * scale, m, v;
            if (a->peek)
                next_moments(a->m + i, a->v + i, g, fresh1, beta2, fresh2, n, &m, &v);
            else
                moments(a->m + i, a->v + i, g, fresh1, beta2, fresh2, n, &m, &v);
            check = vf_fma(v, zero, check);
            vf u = lamb_update(run, m, v, p);
            if (n < VL) u = vf_select(vm_first(n), u, vf_zero()); /* 0 / 0 if eps is 0 */
            p2 = vf_fma(p, p, p2);
            u2 = vf_fma(u, u, u2);
        }
        sums[0] += (double)vf_sum(p2);
        sums[1] += (double)vf_sum(u2);
    }
    report_overflow(check, a->overflow);
    double *partial = (double *)a->workspace + 2 * task;
    partial[0] = sums[0];
    partial[1] = sums[1];
}

static void lamb_apply_task(void *context, int64_t task, int thread) {
    (void)thread;
    const lamb_run *run = context;
    const wefti_lamb_args *a = run->a;
    int64_t end = min64(a->elements, (task + 1) * OPTIMIZER_TASK);
    for (int64_t i = task * OPTIMIZER_TASK; i < end; i += VL) {
        int64_t n = min64(VL, end - i);
        vf p = load_f32(a->param + i, n);
        vf u = lamb_update(run, load_f32(a->m + i, n), load_f32(a->v + i, n), p);
        store_param(a->param, a->shadow, i, vf_fnma(vf_set1(run->step), u, p), n);
    }
}

void KERNEL(lamb)(wefti_pool *pool, const wefti_lamb_args *a) {
    lamb_run run = {.a = a};
    run.correction1 = (float)(1.0 / (1.0 - pow((double)a->beta1, (double)a->step)));
    run.root_correction = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2, (double)a->step)));
    double norms[2] = {0.0, 0.0};
    if (a->norms_given) {
        norms[0] = a->norms[0];
        norms[1] = a->norms[1];
    } else {
        int64_t blocks = blocks_of(a->elements, OPTIMIZER_BLOCK);
        wefti_pool_run(pool, blocks, lamb_moments_task, &run);
        for (int64_t b = 0; b < blocks; b++) {
            norms[0] += ((double *)a->workspace)[2 * b];
            norms[1] += ((double *)a->workspace)[2 * b + 1];
        }
        if (a->norms) memcpy(a->norms, norms, sizeof norms);
    }
    if (a->norms_only) return;
    double ratio = norms[0] > 0.0 && norms[1] > 0.0 ? sqrt(norms[0] / norms[1]) : 1.0;
    run.step = (float)((double)a->lr * ratio);
    wefti_pool_run(pool, blocks_of(a->elements, OPTIMIZER_TASK), lamb_apply_task, &run);
}
