/* Attention on AMX tiles, backward: see amx_panels.h.
 *
 * A block is 64 queries by 32 keys, transposed. So probabilities arise in the order in which the
 * products for keys and values read them. Slopes are also stored, for up to 512 keys, for the
 * gradient of queries. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/attention/amx_panels.h"

enum { ROWS = ATTENTION_ROWS };

/* Scores are computed transposed, one row for each key. So probabilities and slopes arise in the
 * order of a left operand, as the gradients of values and keys need them. */
typedef struct tiles_backward {
    uint16_t *keys, *values;     /* left: [key / 32][dim] */
    uint16_t *keys_t;            /* left: [dim / 32][key] */
    float *dk, *dv;              /* [key][dim] */
    uint16_t *queries, *d_o;     /* right: [query / 32][dim] */
    uint16_t *queries_t, *d_o_t; /* right: [dim / 32][64 queries] */
    float *dq;                   /* [dim][64 queries] */
    int64_t block;               /* largest number of keys in a block */
    float *scores, *d_probs;     /* [32 keys][64 queries] */
    uint16_t *probs, *slopes;    /* left: [64 queries], of 32 keys */
    uint16_t *slopes_t;          /* right: [query / 32][block] */
    float *lse, *delta;          /* [64], lse in units of ln 2 */
} tiles_backward;

typedef struct backward_run {
    const wefti_attention_backward_args *a;
    int64_t keys; /* rounded up */
    size_t per_thread;
} backward_run;

static tiles_backward carve_backward(const backward_run *r, int thread) {
    const int64_t dim = r->a->shape.dim, panel = r->keys * dim, block = ROWS * dim;
    float *f = (float *)(void *)((char *)r->a->workspace + (size_t)thread * r->per_thread);
    tiles_backward m = {.block = attention_tiles_block(r->keys)};
    m.dk = f;
    m.dv = f += panel;
    m.dq = f += panel;
    m.scores = f += block;
    m.d_probs = f += EDGE * ROWS;
    m.lse = f += EDGE * ROWS;
    m.delta = f += ROWS;
    uint16_t *p = (uint16_t *)(void *)(f + ROWS);
    m.keys = p;
    m.values = p += panel;
    m.keys_t = p += panel;
    m.queries = p += panel;
    m.queries_t = p += block;
    m.d_o = p += block;
    m.d_o_t = p += block;
    m.probs = p += block;
    m.slopes = p += EDGE * ROWS;
    m.slopes_t = p + EDGE * ROWS;
    return m;
}

/* A block of queries by a block of keys. */
typedef struct place {
    int64_t b, h, i0, count; /* queries */
    /* first key; end of the keys that at least one query sees, rounded up */
    int64_t j0, end;
} place;

static float dot_bf16(const uint16_t *x, const uint16_t *y, int64_t dim) {
    vfloat sum = (vfloat){0};
    for (int64_t c = 0; c < dim; c += VL) {
        vhalf a, b;
        memcpy(&a, x + c, sizeof a);
        memcpy(&b, y + c, sizeof b);
        sum = vfma(from_bf16(a), from_bf16(b), sum);
    }
    return vsum(sum);
}

static void pack_queries(const backward_run *r, const tiles_backward *m, const place *t) {
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const rows q = rows_of(a->q.data, a->q_strides, t->b, t->h, t->i0);
    const rows o = rows_of(a->o.data, a->o_strides, t->b, t->h, t->i0);
    const rows d = rows_of(a->d_o.data, a->do_strides, t->b, t->h, t->i0);
    pack_rows_b(q, t->count, s->dim, m->queries);
    pack_rows_b(d, t->count, s->dim, m->d_o);
    pack_transposed_b(q, t->count, s->dim, ROWS, m->queries_t);
    pack_transposed_b(d, t->count, s->dim, ROWS, m->d_o_t);
    const float *lse = a->lse + (t->b * s->q_heads + t->h) * s->q_len + t->i0;
    const float *rest = lse + wefti_attention_rest(s);
    for (int64_t i = 0; i < t->count; i++) {
        m->lse[i] = (lse[i] == -INFINITY ? INFINITY : lse[i]) * LOG2_E + rest[i] * LOG2_E;
        m->delta[i] = dot_bf16(o.data + i * o.stride, d.data + i * d.stride, s->dim);
    }
}

/* Computes probabilities and slopes for row j of the scores' 32 keys and for 32 queries from i on.
 * A slope is the gradient of an unscaled score. Of these queries, those from `first` to `count` see
 * the key. */
INLINE void slope_lanes(const bool whole, const wefti_attention_shape *s, const tiles_backward *m,
                        int64_t j, int64_t i, int64_t first, int64_t count, vint *probs,
                        vint *slopes) {
    const vfloat scale = vsplat(s->scale), factor = vsplat(s->scale * LOG2_E);
    vfloat p[2], d[2];
    UNROLL for (int half = 0; half < 2; half++) {
        const int64_t at = i + half * VL;
        const vfloat x = vload(m->scores + j * ROWS + at);
        const vfloat g = vload(m->d_probs + j * ROWS + at);
        p[half] = power_of_2(vfms(x, factor, vload(m->lse + at)));
        d[half] = p[half] * scale * (g - vload(m->delta + at));
        if (!whole) {
            const mask16 here = (mask16)(first_16(count - at) & ~first_16(first - at));
            p[half] = vkeep(here, p[half]);
            d[half] = vkeep(here, d[half]);
        }
    }
    *probs = vround_bf16(p[0], p[1]);
    *slopes = vround_bf16(d[0], d[1]);
}

/* Handles 32 keys, from j on in the block, by 32 queries from i on, in the operand orders of the
 * products. */
INLINE void slope_tile(const bool whole, const wefti_attention_shape *s, const tiles_backward *m,
                       const place *t, int64_t j, int64_t i) {
    uint16_t *across = m->slopes_t + i * m->block + j * EDGE;
    for (int64_t row = 0; row < EDGE; row += 2, across += DEPTH) {
        vint p[2], d[2], pairs[2];
        uint16_t *left = m->probs + i * EDGE + row / SIDE * TILE + row % SIDE * DEPTH;
        UNROLL for (int64_t k = 0; k < 2; k++) {
            const int64_t key = t->j0 + j + row + k;
            const int64_t first = !s->causal ? 0 : key - s->q_offset - t->i0;
            slope_lanes(whole, s, m, row + k, i, key < s->k_len ? first : ROWS, t->count, &p[k],
                        &d[k]);
            vstore_int(left + k * DEPTH, p[k]);
            vstore_int(left + k * DEPTH + (m->slopes - m->probs), d[k]);
        }
        interleave(d[0], d[1], pairs);
        vstore_int(across, pairs[0]);
        vstore_int(across + TILE, pairs[1]);
    }
}

/* Handles 32 keys from j on by all queries of the block. */
static void backward_keys(const backward_run *r, const tiles_backward *m, const place *t,
                          int64_t j) {
    const wefti_attention_shape *s = &r->a->shape;
    const int64_t dim = s->dim, queries = round_up(t->count), at = (t->j0 + j) * dim;
    const int64_t last = t->j0 + j + EDGE; /* key + 1 */
    for (int64_t i = 0; i < queries; i += EDGE) {
        tiles->tile(EDGE, dim, m->keys + at, 0, m->queries + i * dim, m->scores + i, ROWS, false,
                    NULL);
        tiles->tile(EDGE, dim, m->values + at, 0, m->d_o + i * dim, m->d_probs + i, ROWS, false,
                    NULL);
    }
    for (int64_t i = 0; i < queries; i += EDGE) {
        if (i + EDGE <= t->count && last <= seen_by(s, t->i0 + i))
            slope_tile(true, s, m, t, j, i);
        else
            slope_tile(false, s, m, t, j, i);
    }
    for (int64_t c = 0; c < dim; c += EDGE) {
        tiles->tile(EDGE, queries, m->probs, 0, m->d_o_t + c * ROWS, m->dv + at + c, dim, true,
                    NULL);
        tiles->tile(EDGE, queries, m->slopes, 0, m->queries_t + c * ROWS, m->dk + at + c, dim, true,
                    NULL);
    }
}

static void backward_block(const backward_run *r, const tiles_backward *m, const place *t) {
    const int64_t dim = r->a->shape.dim;
    for (int64_t j = 0; j < t->end; j += EDGE) backward_keys(r, m, t, j);
    for (int64_t c = 0; c < dim; c += EDGE)
        for (int64_t i = 0; i < t->count; i += EDGE)
            tiles->tile(EDGE, t->end, m->keys_t + c * r->keys + t->j0 * EDGE, 0,
                        m->slopes_t + i * m->block, m->dq + c * ROWS + i, ROWS, t->j0 > 0, NULL);
}

/* Stores 16 values of a row of x in y's dtype. */
static void store_16(wefti_dst y, int64_t at, vfloat x) {
    store_row(y.dtype, y.data, at, x);
}

/* y[query][c] = x[c][query]. */
static void store_queries(const backward_run *r, const tiles_backward *m, const place *t) {
    const wefti_attention_backward_args *a = r->a;
    const int64_t at =
        t->b * a->dq_strides.batch + t->h * a->dq_strides.head + t->i0 * a->dq_strides.seq;
    for (int64_t i = 0; i < t->count; i += VL)
        for (int64_t c = 0; c < a->shape.dim; c += VL) {
            vfloat lines[VL];
            UNROLL for (int l = 0; l < VL; l++) lines[l] = vload(m->dq + (c + l) * ROWS + i);
            transpose(lines);
            for (int l = 0; l < VL && i + l < t->count; l++)
                store_16(a->dq, at + (i + l) * a->dq_strides.seq + c, lines[l]);
        }
}

static void store_keys(const backward_run *r, const float *x, wefti_dst y,
                       wefti_attention_strides strides, int64_t b, int64_t kv) {
    const wefti_attention_shape *s = &r->a->shape;
    const int64_t at = b * strides.batch + kv * strides.head;
    for (int64_t j = 0; j < s->k_len; j++)
        for (int64_t c = 0; c < s->dim; c += VL)
            store_16(y, at + j * strides.seq + c, vload(x + j * s->dim + c));
}

static void backward_task(void *context, int64_t task, int thread) {
    const backward_run *r = context;
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    tiles_backward m = carve_backward(r, thread);
    const int64_t b = task / s->kv_heads, kv = task % s->kv_heads, group = s->q_heads / s->kv_heads;
    const rows keys = rows_of(a->k.data, a->k_strides, b, kv, 0);
    tiles->enter();
    pack_rows_a(keys, s->k_len, s->dim, m.keys);
    pack_transposed_a(keys, s->k_len, s->dim, r->keys, m.keys_t);
    pack_rows_a(rows_of(a->v.data, a->v_strides, b, kv, 0), s->k_len, s->dim, m.values);
    memset(m.dk, 0, (size_t)(r->keys * s->dim) * sizeof *m.dk);
    memset(m.dv, 0, (size_t)(r->keys * s->dim) * sizeof *m.dv);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i0 = 0; i0 < s->q_len; i0 += ROWS) {
            place t = {.b = b, .h = h, .i0 = i0, .count = smaller(ROWS, s->q_len - i0)};
            const int64_t seen = seen_by(s, i0 + t.count - 1);
            pack_queries(r, &m, &t);
            if (seen == 0) memset(m.dq, 0, (size_t)(ROWS * s->dim) * sizeof *m.dq);
            for (t.j0 = 0; t.j0 < seen; t.j0 += m.block) {
                t.end = round_up(smaller(m.block, seen - t.j0));
                backward_block(r, &m, &t);
            }
            store_queries(r, &m, &t);
        }
    tiles->leave();
    store_keys(r, m.dk, a->dk, a->dk_strides, b, kv);
    store_keys(r, m.dv, a->dv, a->dv_strides, b, kv);
}

void WEFTI_FORM(wefti_attention_backward_on_tiles)(wefti_pool *pool,
                                                   const wefti_attention_backward_args *a) {
    const wefti_attention_shape *s = &a->shape;
    if (!attention_fits_tiles(s)) {
        wefti_kernels_of(WEFTI_ISA_AVX512)->attention_backward(pool, a);
        return;
    }
    backward_run r = {
        .a = a, .keys = round_up(s->k_len), .per_thread = attention_backward_bytes(s)};
    wefti_pool_run(pool, s->batch * s->kv_heads, backward_task, &r);
}
#endif
