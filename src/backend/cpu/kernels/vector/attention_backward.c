/* Attention backward: see attention.h.
 *
 * A task owns the gradients of one key head and of the query heads that share it. It goes through
 * blocks of queries, and for each block through the tiles of keys. It recomputes probabilities from
 * the saved log-sum-exp. Source: Dao, "FlashAttention-2", 2023, algorithm 2. */
#include "backend/cpu/kernels/vector/attention_tile.h"

typedef struct attention_backward_backward_run {
    const wefti_attention_backward_args *a;
    int64_t padded, wide, rows; /* dim rounded up to PAD, and to a vector; keys rounded up to BC */
    size_t per_thread;
} attention_backward_backward_run;

typedef struct backward_memory {
    float *keys, *values;       /* [rows][padded] */
    float *dk, *dv;             /* [rows][wide] */
    float *queries, *queries_t; /* [BR][wide], [padded][BR]; both multiplied by scale */
    float *d_o, *d_o_t;         /* the same of the output's gradient */
    float *dq;                  /* [padded][BR] */
    float *probs, *slopes;      /* [BC][BR] */
    float *mask, *dropout;      /* [BC][BR] */
    float *lse, *rest;          /* [BR]: a probability is e^(score - lse - rest) */
    float *delta, *factor;      /* [BR] */
} backward_memory;

static backward_memory carve(const attention_backward_backward_run *r, int thread) {
    float *p = (float *)(void *)((char *)r->a->workspace + (size_t)thread * r->per_thread);
    backward_memory m;
    m.keys = p;
    m.values = p += r->rows * r->padded;
    m.dk = p += r->rows * r->padded;
    m.dv = p += r->rows * r->wide;
    m.queries = p += r->rows * r->wide;
    m.d_o = p += BR * r->wide;
    m.queries_t = p += BR * r->wide;
    m.d_o_t = p += r->padded * BR;
    m.dq = p += r->padded * BR;
    m.probs = p += r->padded * BR;
    m.slopes = p += BC * BR;
    m.mask = p += BC * BR;
    m.dropout = p += BC * BR;
    m.lse = p += BC * BR;
    m.rest = p += BR;
    m.delta = p += BR;
    m.factor = p + BR;
    return m;
}

/* Packs a block of queries: both layouts of q and do, lse, and delta = sum(do o). */
static void pack_queries(const attention_backward_backward_run *r, const tile *t,
                         const backward_memory *m) {
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    int64_t q_at = t->b * a->q_strides.batch + t->i0 * a->q_strides.seq + t->h * a->q_strides.head;
    int64_t o_at = t->b * a->o_strides.batch + t->i0 * a->o_strides.seq + t->h * a->o_strides.head;
    int64_t d_at =
        t->b * a->do_strides.batch + t->i0 * a->do_strides.seq + t->h * a->do_strides.head;
    pack_rows(a->q, q_at, a->q_strides.seq, t->nq, s->dim, s->scale, m->queries, r->wide);
    pack_rows(a->d_o, d_at, a->do_strides.seq, t->nq, s->dim, 1.0f, m->d_o, r->wide);
    size_t rest = (size_t)((BR - t->nq) * r->wide) * sizeof(float);
    memset(m->queries + t->nq * r->wide, 0, rest);
    memset(m->d_o + t->nq * r->wide, 0, rest);
    transpose_f32(m->queries, r->wide, BR, r->padded, m->queries_t, BR);
    transpose_f32(m->d_o, r->wide, BR, r->padded, m->d_o_t, BR);
    const float *lse = a->lse + (t->b * s->q_heads + t->h) * s->q_len + t->i0;
    for (int64_t i = 0; i < BR; i++) {
        /* For a query that saw no key, and for padding: e^(x - infinity) = 0. */
        m->lse[i] = i < t->nq && lse[i] != -INFINITY ? lse[i] : INFINITY;
        m->rest[i] = i < t->nq ? lse[wefti_attention_rest(s) + i] : 0.0f;
        m->factor[i] = s->scale;
        m->delta[i] = 0.0f;
        if (i >= t->nq) continue;
        vf sum = vf_zero();
        FOR_VECTORS(c, n, s->dim) {
            vf o = load(a->o, o_at + i * a->o_strides.seq + c, n);
            sum = vf_fma(o, load_f32(m->d_o + i * r->wide + c, n), sum);
        }
        m->delta[i] = vf_sum(sum);
    }
    memset(m->dq, 0, (size_t)(r->padded * BR) * sizeof(float));
}

/* probs = e^(scores - lse - rest); slopes = probs (dprobs - delta), the gradient of the scores.
 * With dropout, dprobs is masked, and probs is masked on return, for dv. */
static void slope_tile(const wefti_attention_shape *s, const tile *t, const backward_memory *m) {
    for (int64_t v = 0; v < t->vectors; v++) {
        int64_t end = key_end(s, t, v);
        vf lse = vf_load(m->lse + v * VL), delta = vf_load(m->delta + v * VL);
        vf rest = vf_load(m->rest + v * VL);
        for (int64_t j = 0; j < end; j++) {
            float *p_at = m->probs + j * BR + v * VL, *s_at = m->slopes + j * BR + v * VL;
            vf p = vf_exp_negative((vf_load(p_at) - lse) - rest), d = vf_load(s_at);
            if (s->dropout > 0.0f) {
                vf keep = vf_load(m->dropout + j * BR + v * VL);
                d = d * keep;
                vf_store(p_at, p * keep);
            } else {
                vf_store(p_at, p);
            }
            vf_store(s_at, p * (d - delta));
        }
    }
    /* Rows pad the last key to a multiple of MR. They may be keys that these queries do not see. */
    size_t padding = (size_t)(blocks_of(t->nk, MR) * MR - t->nk) * BR * sizeof(float);
    memset(m->probs + t->nk * BR, 0, padding);
    memset(m->slopes + t->nk * BR, 0, padding);
}

/* Computes the scores of a tile, in the place of its probabilities. */
static void find_scores(const attention_backward_backward_run *r, const tile *t,
                        const backward_memory *m) {
    const wefti_attention_shape *s = &r->a->shape;
    if (s->mask.data) mask_tile(s, t, m->mask);
    score_tile(s, t, m->keys + t->j0 * r->padded, r->padded, m->queries_t,
               s->mask.data ? m->mask : NULL, m->probs);
}

/* Computes the probabilities and the gradient of the scores of a tile. */
static void find_slopes(const attention_backward_backward_run *r, const tile *t,
                        const backward_memory *m) {
    const wefti_attention_shape *s = &r->a->shape;
    const float *values = m->values + t->j0 * r->padded;
    if (s->dropout > 0.0f) dropout_tile(s, t, m->dropout);
    find_scores(r, t, m);
    for (int64_t j = 0; j < t->nk; j += key_step(t)) {
        int64_t v = first_vector(s, t, j), rows = blocks_of(min64(key_step(t), t->nk - j), MR) * MR;
        tile_product(rows, t->vectors - v, s->dim, values + j * r->padded, r->padded, 1,
                     m->d_o_t + v * VL, BR, m->slopes + j * BR + v * VL, BR, false);
    }
    slope_tile(s, t, m);
}

static void backward_tile(const attention_backward_backward_run *r, const tile *t,
                          const backward_memory *m) {
    const wefti_attention_shape *s = &r->a->shape;
    const float *keys = m->keys + t->j0 * r->padded;
    float *dk = m->dk + t->j0 * r->wide, *dv = m->dv + t->j0 * r->wide;
    find_slopes(r, t, m);
    for (int64_t j = 0; j < t->nk; j += key_step(t)) {
        int64_t keys_here = min64(key_step(t), t->nk - j), rows = blocks_of(keys_here, MR) * MR;
        int64_t i = first_vector(s, t, j) * VL;
        if (i >= t->nq) continue;
        tile_product(rows, r->wide / VL, t->nq - i, m->probs + j * BR + i, BR, 1,
                     m->d_o + i * r->wide, r->wide, dv + j * r->wide, r->wide, true);
        tile_product(rows, r->wide / VL, t->nq - i, m->slopes + j * BR + i, BR, 1,
                     m->queries + i * r->wide, r->wide, dk + j * r->wide, r->wide, true);
        tile_product(r->padded, t->vectors - i / VL, keys_here, keys + j * r->padded, 1, r->padded,
                     m->slopes + j * BR + i, BR, m->dq + i, BR, true);
    }
}

static void pack_keys(const attention_backward_backward_run *r, const backward_memory *m, int64_t b,
                      int64_t kv) {
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    int64_t k_at = b * a->k_strides.batch + kv * a->k_strides.head;
    int64_t v_at = b * a->v_strides.batch + kv * a->v_strides.head;
    pack_rows(a->k, k_at, a->k_strides.seq, s->k_len, s->dim, 1.0f, m->keys, r->padded);
    pack_rows(a->v, v_at, a->v_strides.seq, s->k_len, s->dim, 1.0f, m->values, r->padded);
    size_t tail = (size_t)((r->rows - s->k_len) * r->padded) * sizeof(float);
    memset(m->keys + s->k_len * r->padded, 0, tail);
    memset(m->values + s->k_len * r->padded, 0, tail);
}

static void backward_task(void *context, int64_t task, int thread) {
    const attention_backward_backward_run *r = context;
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    backward_memory m = carve(r, thread);
    int64_t b = task / s->kv_heads, kv = task % s->kv_heads, group = s->q_heads / s->kv_heads;
    pack_keys(r, &m, b, kv);
    memset(m.dk, 0, (size_t)(r->rows * r->wide) * sizeof(float));
    memset(m.dv, 0, (size_t)(r->rows * r->wide) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i0 = 0; i0 < s->q_len; i0 += BR) {
            tile t = {.b = b, .h = h, .i0 = i0, .nq = min64(BR, s->q_len - i0)};
            t.vectors = blocks_of(t.nq, VL);
            pack_queries(r, &t, &m);
            int64_t end = visible_keys(s, i0, t.nq);
            for (t.j0 = first_key(s, i0); t.j0 < end; t.j0 += BC) {
                place_keys(s, &t, end);
                backward_tile(r, &t, &m);
            }
            int64_t at = b * a->dq_strides.batch + i0 * a->dq_strides.seq + h * a->dq_strides.head;
            unpack_transposed(m.dq, t.nq, s->dim, r->padded, m.factor, m.queries, a->dq, at,
                              a->dq_strides.seq);
        }
    for (int64_t j = 0; j < s->k_len; j++) {
        int64_t dk_at = b * a->dk_strides.batch + j * a->dk_strides.seq + kv * a->dk_strides.head;
        int64_t dv_at = b * a->dv_strides.batch + j * a->dv_strides.seq + kv * a->dv_strides.head;
        FOR_VECTORS(c, n, s->dim) {
            store(a->dk, dk_at + c, load_f32(m.dk + j * r->wide + c, n), n);
            store(a->dv, dv_at + c, load_f32(m.dv + j * r->wide + c, n), n);
        }
    }
}

static attention_backward_backward_run run_of(const wefti_attention_backward_args *a) {
    const wefti_attention_shape *s = &a->shape;
    return (attention_backward_backward_run){.a = a,
                                             .padded = blocks_of(s->dim, PAD) * PAD,
                                             .wide =
                                                 blocks_of(s->dim, max64(VL, PAD)) * max64(VL, PAD),
                                             .rows = blocks_of(s->k_len, BC) * BC,
                                             .per_thread = attention_backward_bytes(s)};
}

void KERNEL(attention_backward)(wefti_pool *pool, const wefti_attention_backward_args *a) {
    const wefti_attention_shape *s = &a->shape;
    attention_backward_backward_run r = run_of(a);
    wefti_pool_run(pool, s->batch * s->kv_heads, backward_task, &r);
}

/* ---- the gradient of an added mask ---- */

typedef struct mask_run {
    attention_backward_backward_run run;
    const wefti_attention_mask_args *a;
} mask_run;

/* Adds the slopes of a tile to the rows of d_mask. Pairs beyond `key_end` were not computed, and
 * are 0. */
static void add_slopes(const mask_run *r, const tile *t, const backward_memory *m, float *rows) {
    const wefti_attention_shape *s = &r->run.a->shape;
    for (int64_t v = 0; v < t->vectors; v++) {
        int64_t end = key_end(s, t, v);
        for (int64_t i = v * VL; i < min64((v + 1) * VL, t->nq); i++)
            for (int64_t j = 0; j < end; j++)
                rows[i * s->k_len + t->j0 + j] += m->slopes[j * BR + i];
    }
}

/* Handles a block of queries of one mask: all batches and heads that share the mask, in order. */
static void mask_task(void *context, int64_t task, int thread) {
    const mask_run *r = context;
    const wefti_attention_shape *s = &r->run.a->shape;
    backward_memory m = carve(&r->run, thread);
    int64_t blocks = blocks_of(s->q_len, BR), i0 = task % blocks * BR, mask = task / blocks;
    int64_t mb = mask / r->a->heads, mh = mask % r->a->heads, nq = min64(BR, s->q_len - i0);
    float *rows = r->a->d_mask + (mask * s->q_len + i0) * s->k_len;
    memset(rows, 0, (size_t)(nq * s->k_len) * sizeof *rows);
    for (int64_t b = r->a->batches == 1 ? 0 : mb; b < (r->a->batches == 1 ? s->batch : mb + 1); b++)
        for (int64_t h = r->a->heads == 1 ? 0 : mh; h < (r->a->heads == 1 ? s->q_heads : mh + 1);
             h++) {
            tile t = {.b = b, .h = h, .i0 = i0, .nq = nq, .vectors = blocks_of(nq, VL)};
            int64_t end = visible_keys(s, i0, nq);
            pack_keys(&r->run, &m, b, h / (s->q_heads / s->kv_heads));
            pack_queries(&r->run, &t, &m);
            for (t.j0 = first_key(s, i0); t.j0 < end; t.j0 += BC) {
                place_keys(s, &t, end);
                find_slopes(&r->run, &t, &m);
                add_slopes(r, &t, &m, rows);
            }
        }
}

void KERNEL(attention_mask_backward)(wefti_pool *pool, const wefti_attention_mask_args *a) {
    mask_run r = {.run = run_of(&a->backward), .a = a};
    int64_t blocks = blocks_of(a->backward.shape.q_len, BR);
    wefti_pool_run(pool, a->batches * a->heads * blocks, mask_task, &r);
}
