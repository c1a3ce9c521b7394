/* Attention forward: see attention.h. A task is one block of queries of one head. It goes through
 * the keys in tiles. */
#include "backend/cpu/kernels/vector/attention_tile.h"

#define GROWTH 8.0f

typedef struct attention_forward_run {
    const wefti_attention_args *a;
    int64_t blocks, padded; /* blocks of queries; dim rounded up to PAD */
    size_t per_thread;
} attention_forward_run;

typedef struct forward_memory {
    float *queries, *output;        /* [padded][BR] */
    float *keys, *values;           /* [BC][padded] */
    float *scores, *mask, *dropout; /* [BC][BR] */
    float *max, *sum, *alpha;       /* [BR] */
} forward_memory;

static forward_memory carve(const attention_forward_run *r, int thread) {
    float *p = (float *)(void *)((char *)r->a->workspace + (size_t)thread * r->per_thread);
    forward_memory m;
    m.queries = p;
    m.output = p += r->padded * BR;
    m.keys = p += r->padded * BR;
    m.values = p += BC * r->padded;
    m.scores = p += BC * r->padded;
    m.mask = p += BC * BR;
    m.dropout = p += BC * BR;
    m.max = p += BC * BR;
    m.sum = p += BR;
    m.alpha = p + BR;
    return m;
}

/* Turns a tile's scores into probabilities relative to the running maximum. Returns true if the
 * maximum grew for any query. */
static bool softmax_tile(const wefti_attention_shape *s, const tile *t, const forward_memory *m) {
    bool grew = false;
    for (int64_t v = 0; v < t->vectors; v++) {
        int64_t end = key_end(s, t, v), j = 0;
        float *column = m->scores + v * VL;
        vf before = vf_load(m->max + v * VL), m0 = before, m1 = before, m2 = before, m3 = before;
        for (; j + 4 <= end; j += 4) {
            m0 = vf_max(vf_load(column + j * BR), m0);
            m1 = vf_max(vf_load(column + (j + 1) * BR), m1);
            m2 = vf_max(vf_load(column + (j + 2) * BR), m2);
            m3 = vf_max(vf_load(column + (j + 3) * BR), m3);
        }
        for (; j < end; j++) m0 = vf_max(vf_load(column + j * BR), m0);
        vf none = vf_set1(-INFINITY), now = vf_max(vf_max(m0, m1), vf_max(m2, m3));
        /* Keep a running maximum that is too low by up to GROWTH. Probabilities up to e^GROWTH cost
         * no accuracy, and the output is seldom rescaled. */
        now = vf_select(vm_lt(before + vf_set1(GROWTH), now), now, before);
        /* For a query that has seen no key yet, any finite centre gives e^-infinity = 0. */
        vf centre = vf_select(vm_eq(now, none), vf_zero(), now);
        vf alpha = vf_exp_negative(before - centre), sum = vf_zero();
        for (j = 0; j < end; j++) {
            vf p = vf_exp_negative(vf_load(column + j * BR) - centre);
            sum = sum + p;
            vf_store(column + j * BR, p);
        }
        vf_store(m->max + v * VL, now);
        vf_store(m->sum + v * VL, vf_fma(vf_load(m->sum + v * VL), alpha, sum));
        vf_store(m->alpha + v * VL, alpha);
        grew = grew || vm_any(vm_and(vm_ne(before, none), vm_ne(alpha, vf_set1(1.0f))));
    }
    return grew;
}

static void forward_tile(const attention_forward_run *r, const tile *t, const forward_memory *m) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    int64_t kv = t->h / (s->q_heads / s->kv_heads), rows = blocks_of(t->nk, MR) * MR;
    int64_t k_at = t->b * a->k_strides.batch + t->j0 * a->k_strides.seq + kv * a->k_strides.head;
    int64_t v_at = t->b * a->v_strides.batch + t->j0 * a->v_strides.seq + kv * a->v_strides.head;
    pack_rows(a->k, k_at, a->k_strides.seq, t->nk, s->dim, 1.0f, m->keys, r->padded);
    pack_rows(a->v, v_at, a->v_strides.seq, t->nk, s->dim, 1.0f, m->values, r->padded);
    memset(m->keys + t->nk * r->padded, 0, (size_t)((rows - t->nk) * r->padded) * sizeof(float));
    int64_t next = min64(BC, s->k_len - t->j0 - BC);
    prefetch_rows(a->k, k_at + BC * a->k_strides.seq, a->k_strides.seq, next, s->dim);
    prefetch_rows(a->v, v_at + BC * a->v_strides.seq, a->v_strides.seq, next, s->dim);
    if (s->mask.data) mask_tile(s, t, m->mask);
    score_tile(s, t, m->keys, r->padded, m->queries, s->mask.data ? m->mask : NULL, m->scores);
    if (softmax_tile(s, t, m))
        for (int64_t c = 0; c < r->padded; c++)
            for (int64_t v = 0; v < t->vectors; v++) {
                float *at = m->output + c * BR + v * VL;
                vf_store(at, vf_load(at) * vf_load(m->alpha + v * VL));
            }
    if (s->dropout > 0.0f) {
        dropout_tile(s, t, m->dropout);
        for (int64_t v = 0; v < t->vectors; v++)
            for (int64_t j = 0; j < key_end(s, t, v); j++) {
                float *at = m->scores + j * BR + v * VL;
                vf_store(at, vf_load(at) * vf_load(m->dropout + j * BR + v * VL));
            }
    }
    for (int64_t j = 0; j < t->nk; j += key_step(t)) {
        int64_t v = first_vector(s, t, j);
        tile_product(r->padded, t->vectors - v, min64(key_step(t), t->nk - j),
                     m->values + j * r->padded, 1, r->padded, m->scores + j * BR + v * VL, BR,
                     m->output + v * VL, BR, true);
    }
}

static void forward_task(void *context, int64_t task, int thread) {
    attention_forward_run own = *(const attention_forward_run *)context;
    const attention_forward_run *r = &own;
    forward_memory m = carve(r, thread);
    int64_t head = task / r->blocks, b = head / r->a->shape.q_heads;
    const wefti_attention_args of_sample = wefti_attention_of_sample(own.a, b), *a = &of_sample;
    const wefti_attention_shape *s = &a->shape;
    own.a = a;
    /* Work head by head, so that the head's keys and values stay in the second-level cache. Start
     * with the longest causal rows, so that all threads finish at about the same time. */
    int64_t block = r->blocks - 1 - task % r->blocks, h = head % s->q_heads;
    tile t = {.b = b, .h = h, .i0 = block * BR, .nq = min64(BR, s->q_len - block * BR)};
    t.vectors = blocks_of(t.nq, VL);
    int64_t q_at = b * a->q_strides.batch + t.i0 * a->q_strides.seq + h * a->q_strides.head;
    pack_rows(a->q, q_at, a->q_strides.seq, t.nq, s->dim, s->scale, m.output, r->padded);
    memset(m.output + t.nq * r->padded, 0, (size_t)((BR - t.nq) * r->padded) * sizeof(float));
    transpose_f32(m.output, r->padded, BR, r->padded, m.queries, BR);
    if (block > 0) prefetch_rows(a->q, q_at - BR * a->q_strides.seq, a->q_strides.seq, BR, s->dim);
    memset(m.output, 0, (size_t)(r->padded * BR) * sizeof(float));
    for (int64_t i = 0; i < BR; i++) {
        m.max[i] = -INFINITY;
        m.sum[i] = 0.0f;
    }
    int64_t end = visible_keys(s, t.i0, t.nq);
    for (t.j0 = first_key(s, t.i0); t.j0 < end; t.j0 += BC) {
        place_keys(s, &t, end);
        forward_tile(r, &t, &m);
    }
    for (int64_t i = 0; i < t.nq; i++) {
        wefti_attention_store_lse(a, b, h, t.i0 + i, m.max[i], m.sum[i]);
        m.sum[i] = m.sum[i] == 0.0f ? 0.0f : 1.0f / m.sum[i];
    }
    int64_t o_at = b * a->o_strides.batch + t.i0 * a->o_strides.seq + h * a->o_strides.head;
    unpack_transposed(m.output, t.nq, s->dim, r->padded, m.sum, m.queries, a->o, o_at,
                      a->o_strides.seq);
}

/* Few queries (decoding). Vectors run over dim. Keys and values are read once for all queries and
 * heads that share them. A task is one key head of one batch element. */
typedef struct decode_state {
    float max, sum;
} decode_state;

static float score_one(const wefti_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j,
                       const float *query) {
    const wefti_attention_shape *s = &a->shape;
    if (s->causal && j > i + s->q_offset) return -INFINITY;
    if (s->window && j <= i + s->q_offset - s->window) return -INFINITY;
    float mask = 0.0f;
    if (s->mask.data) {
        int64_t at = b * s->mask_batch + h * s->mask_head + i * s->mask_row + j;
        if (s->mask.dtype == WEFT_F32 || s->mask.dtype == WEFT_BF16)
            mask = load1(s->mask, at);
        else if (!((const uint8_t *)s->mask.data)[at])
            return -INFINITY;
    }
    int64_t kv = h / (s->q_heads / s->kv_heads);
    int64_t k_at = b * a->k_strides.batch + j * a->k_strides.seq + kv * a->k_strides.head;
    vf s0 = vf_zero(), s1 = vf_zero();
    int64_t c = 0;
    for (; c + 2 * VL <= s->dim; c += 2 * VL) {
        s0 = vf_fma(load(a->k, k_at + c, VL), vf_load(query + c), s0);
        s1 = vf_fma(load(a->k, k_at + c + VL, VL), vf_load(query + c + VL), s1);
    }
    for (; c < s->dim; c += VL) {
        int64_t n = min64(VL, s->dim - c);
        s0 = vf_fma(load(a->k, k_at + c, n), load_f32(query + c, n), s0);
    }
    return vf_sum(s0 + s1) + mask;
}

static void decode_block(const wefti_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j0,
                         int64_t nk, const float *query, decode_state *state, float *output) {
    const wefti_attention_shape *s = &a->shape;
    float scores[BC], best = state->max;
    for (int64_t j = 0; j < nk; j++) {
        scores[j] = score_one(a, b, h, i, j0 + j, query);
        if (scores[j] > best) best = scores[j];
    }
    float centre = best == -INFINITY ? 0.0f : best, alpha = expf(state->max - centre);
    vf sum = vf_zero();
    FOR_VECTORS(j, n, nk) {
        vf p = vf_exp_negative(load_f32(scores + j, n) - vf_set1(centre));
        if (n < VL) p = vf_select(vm_first(n), p, vf_zero());
        sum = sum + p;
        store_f32(scores + j, p, n);
    }
    state->sum = state->sum * alpha + vf_sum(sum);
    state->max = best;
    if (s->dropout > 0.0f) {
        float uniform[BC], kept = 1.0f / (1.0f - s->dropout);
        philox_uniform(s->seed, s->stream, dropout_position(s, b, h, i, j0), nk, uniform);
        for (int64_t j = 0; j < nk; j++) scores[j] *= uniform[j] >= s->dropout ? kept : 0.0f;
    }
    int64_t kv = h / (s->q_heads / s->kv_heads);
    int64_t v_at = b * a->v_strides.batch + j0 * a->v_strides.seq + kv * a->v_strides.head;
    FOR_VECTORS(c, n, s->dim) {
        vf o = load_f32(output + c, n) * vf_set1(alpha);
        for (int64_t j = 0; j < nk; j++)
            o = vf_fma(vf_set1(scores[j]), load(a->v, v_at + j * a->v_strides.seq + c, n), o);
        store_f32(output + c, o, n);
    }
}

static void decode_task(void *context, int64_t task, int thread) {
    const attention_forward_run *r = context;
    int64_t b = task / r->a->shape.kv_heads;
    const wefti_attention_args of_sample = wefti_attention_of_sample(r->a, b), *a = &of_sample;
    const wefti_attention_shape *s = &a->shape;
    int64_t group = s->q_heads / s->kv_heads, first = task % s->kv_heads * group;
    int64_t count = group * s->q_len;
    float *queries = (float *)(void *)((char *)a->workspace + (size_t)thread * r->per_thread);
    float *outputs = queries + count * s->dim;
    decode_state *states = (decode_state *)(void *)(outputs + count * s->dim);
    for (int64_t k = 0; k < count; k++) {
        int64_t h = first + k / s->q_len, i = k % s->q_len;
        int64_t at = b * a->q_strides.batch + i * a->q_strides.seq + h * a->q_strides.head;
        pack_rows(a->q, at, 0, 1, s->dim, s->scale, queries + k * s->dim, s->dim);
        states[k] = (decode_state){-INFINITY, 0.0f};
    }
    memset(outputs, 0, (size_t)(count * s->dim) * sizeof *outputs);
    int64_t end = visible_keys(s, 0, s->q_len);
    for (int64_t j0 = first_key(s, 0); j0 < end; j0 += BC)
        for (int64_t k = 0; k < count; k++)
            decode_block(a, b, first + k / s->q_len, k % s->q_len, j0, min64(BC, end - j0),
                         queries + k * s->dim, &states[k], outputs + k * s->dim);
    for (int64_t k = 0; k < count; k++) {
        int64_t h = first + k / s->q_len, i = k % s->q_len;
        wefti_attention_store_lse(a, b, h, i, states[k].max, states[k].sum);
        float scale = states[k].sum == 0.0f ? 0.0f : 1.0f / states[k].sum;
        int64_t at = b * a->o_strides.batch + i * a->o_strides.seq + h * a->o_strides.head;
        FOR_VECTORS(c, n, s->dim) {
            store(a->o, at + c, load_f32(outputs + k * s->dim + c, n) * vf_set1(scale), n);
        }
    }
}

void KERNEL(attention)(wefti_pool *pool, const wefti_attention_args *a) {
    const wefti_attention_shape *s = &a->shape;
    attention_forward_run r = {
        .a = a, .blocks = blocks_of(s->q_len, BR), .padded = blocks_of(s->dim, PAD) * PAD};
    r.per_thread = attention_forward_bytes(s);
    if (s->batch * s->q_heads * s->q_len == 0) return;
    if (s->q_len <= ATTENTION_DECODE)
        wefti_pool_run(pool, s->batch * s->kv_heads, decode_task, &r);
    else
        wefti_pool_run(pool, s->batch * s->q_heads * r.blocks, forward_task, &r);
}
