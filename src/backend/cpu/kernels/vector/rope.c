/* Rotary positions: see kernels/data.h. */
#include "backend/cpu/kernels/vector/table.h"

enum { ROPE_TASK = 16384 };

typedef struct rope_run {
    const wefti_rope_args *a;
    int64_t per; /* (batch, seq) positions of a task */
} rope_run;

INLINE void copy_element(wefti_dst y, wefti_src x, int64_t i) {
    store1(y, i, load1(x, i));
}

/* Halves: pairs (i, i + half), whole vectors. */
static void turn_halves(wefti_src x, wefti_dst y, const float *c, const float *s, int64_t half,
                        float sign) {
    vf side = vf_set1(sign);
    FOR_VECTORS(i, n, half) {
        vf u = load(x, i, n), v = load(x, half + i, n);
        vf cos = load_f32(c + i, n), sin = load_f32(s + i, n) * side;
        store(y, i, vf_fnma(v, sin, u * cos), n);
        store(y, half + i, vf_fma(u, sin, v * cos), n);
    }
}

/* Interleaved: pairs (2 i, 2 i + 1). */
static void turn_pairs(wefti_src x, wefti_dst y, const float *c, const float *s, int64_t half,
                       float sign) {
    for (int64_t i = 0; i < half; i++) {
        float u = load1(x, 2 * i), v = load1(x, 2 * i + 1), sin = s[i] * sign;
        store1(y, 2 * i, u * c[i] - v * sin);
        store1(y, 2 * i + 1, v * c[i] + u * sin);
    }
}

static void rope_task(void *context, int64_t task, int thread) {
    (void)thread;
    const rope_run *run = context;
    const wefti_rope_args *a = run->a;
    int64_t half = a->rotary / 2, end = min64(a->batch * a->seq, (task + 1) * run->per);
    float sign = a->inverse ? -1.0f : 1.0f;
    for (int64_t k = task * run->per; k < end; k++) {
        int64_t b = k / a->seq, t = k % a->seq;
        int64_t position = a->offset + t;
        const float *c = a->cos + position * half, *s = a->sin + position * half;
        for (int64_t h = 0; h < a->heads; h++) {
            wefti_src x =
                in_at(a->x, b * a->x_strides[0] + t * a->x_strides[1] + h * a->x_strides[2]);
            wefti_dst y =
                out_at(a->y, b * a->y_strides[0] + t * a->y_strides[1] + h * a->y_strides[2]);
            if (a->interleaved)
                turn_pairs(x, y, c, s, half, sign);
            else
                turn_halves(x, y, c, s, half, sign);
            for (int64_t i = 2 * half; i < a->dim; i++) copy_element(y, x, i);
        }
    }
}

void KERNEL(rope)(wefti_pool *pool, const wefti_rope_args *a) {
    rope_run run = {a, max64(1, ROPE_TASK / max64(a->heads * a->dim, 1))};
    wefti_pool_run(pool, blocks_of(a->batch * a->seq, run.per), rope_task, &run);
}
