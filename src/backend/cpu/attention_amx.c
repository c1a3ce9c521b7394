/* Attention on AMX tiles: see attention.h. bf16 operands, products of bf16 with f32 sums, softmax
 * in f32; probabilities and the gradients of scores are rounded to bf16 where products read them,
 * as mixed precision stores them. Dims are multiples of 32 up to 128, without mask and dropout; all
 * else runs as AVX-512 does it.
 *
 * All products are those of the matrix kernels (gemm_amx.c), on panels in the order of tiles. A
 * task packs the keys and values of its head once. Forward: for each 32 queries all scores that
 * they see exist at once, 32 x keys, so that the softmax has nothing to correct. Backward: blocks
 * of 64 queries by 512 keys; gradients of keys and values are summed transposed, [dim][key], since
 * then probabilities are the right operand, whose order they can be written in as they arise.
 * Source: Dao, "FlashAttention-2", 2023, algorithm 2 (backward). */
#if defined(__x86_64__)
#define VL 16
#include "backend/cpu/gemm_internal.h"
#include "backend/cpu/gemm_vector.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels/blocks.h"

#include "backend/cpu/gemm_amx.h"

#define X(name, args) void wefti_kernel_##name##_avx512(wefti_pool *pool, const args *a);
#include "backend/cpu/kernels.def"
#undef X

static const wefti_gemm_kernels *const tiles = &wefti_gemm_kernels_amx;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t round_up(int64_t n) {
    return (n + EDGE - 1) / EDGE * EDGE;
}

/* Rows of one head: x[row][c] at data + row * stride + c. */
typedef struct rows {
    const uint16_t *data;
    int64_t stride;
} rows;

static rows rows_of(const void *data, wefti_attention_strides s, int64_t b, int64_t h,
                    int64_t row) {
    return (rows){(const uint16_t *)data + b * s.batch + h * s.head + row * s.seq, s.seq};
}

/* Panels of `count` rows (a: left operand, k = dim; b: right operand, rows are its columns), and of
 * the transposed matrix, whose k are the rows. Panels follow each other at 32 * `depth`. */
static void pack_rows_a(rows x, int64_t count, int64_t dim, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, x.stride, 1, {0, 0}};
    for (int64_t r = 0; r < count; r += EDGE)
        tiles->pack_a(&o, x.data + r * x.stride, smaller(EDGE, count - r), count - r, dim,
                      out + r * dim);
}
static void pack_rows_b(rows x, int64_t count, int64_t dim, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, 1, x.stride, {0, 0}};
    for (int64_t r = 0; r < count; r += EDGE)
        tiles->pack_b(&o, x.data + r * x.stride, smaller(EDGE, count - r), dim, out + r * dim);
}
static void pack_transposed_a(rows x, int64_t count, int64_t dim, int64_t depth, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, 1, x.stride, {0, 0}};
    for (int64_t c = 0; c < dim; c += EDGE)
        tiles->pack_a(&o, x.data + c, EDGE, EDGE, count, out + c * depth);
}
static void pack_transposed_b(rows x, int64_t count, int64_t dim, int64_t depth, uint16_t *out) {
    const wefti_gemm_operand o = {WEFT_BF16, x.stride, 1, {0, 0}};
    for (int64_t c = 0; c < dim; c += EDGE)
        tiles->pack_b(&o, x.data + c, EDGE, count, out + c * depth);
}

/* Keys that query i sees: the first so many. */
static int64_t seen_by(const wefti_attention_shape *s, int64_t i) {
    if (!s->causal) return s->k_len;
    int64_t seen = i + s->q_offset + 1;
    return seen < 0 ? 0 : smaller(seen, s->k_len);
}

INLINE __mmask16 lanes(int64_t count) {
    return count >= VL ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}
INLINE __m512 exponential(__m512 x) {
    return (__m512)vexp((vfloat)x);
}
INLINE __m512i narrow(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* ---- forward ---- */

typedef struct tiles_forward {
    uint16_t *keys, *values;   /* panels: [key / 32][dim]; [dim / 32][key] */
    uint16_t *queries, *probs; /* panels of 32 queries: [dim]; [key] */
    float *scores;             /* [32][keys] */
    float *output;             /* [32][dim] */
} tiles_forward;

typedef struct forward_run {
    const wefti_attention_args *a;
    int64_t keys; /* rounded up */
    size_t per_thread;
} forward_run;

static tiles_forward carve_forward(const forward_run *r, int thread) {
    const int64_t dim = r->a->shape.dim;
    char *p = (char *)r->a->workspace + (size_t)thread * r->per_thread;
    tiles_forward m;
    m.keys = (uint16_t *)(void *)p;
    m.values = m.keys + r->keys * dim;
    m.queries = m.values + r->keys * dim;
    m.probs = m.queries + EDGE * dim;
    m.scores = (float *)(void *)(m.probs + EDGE * r->keys);
    m.output = m.scores + EDGE * r->keys;
    return m;
}

/* Scores of `seen` keys to probabilities relative to their maximum, as row `row` of a left operand
 * of `end` keys. */
static void softmax_row(const float *scores, int64_t seen, int64_t end, float scale, int row,
                        uint16_t *probs, float *out_max, float *out_sum) {
    const __m512 none = _mm512_set1_ps(-INFINITY), factor = _mm512_set1_ps(scale);
    __m512 max = none, sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < seen; j += VL) {
        const __mmask16 here = lanes(seen - j);
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(here, scores + j), factor);
        /* The second operand of a maximum is what is taken when one is NaN. */
        max = _mm512_mask_max_ps(max, here, max, x);
    }
    *out_max = _mm512_reduce_max_ps(max);
    const __m512 centre = _mm512_set1_ps(*out_max == -INFINITY ? 0.0f : *out_max);
    uint16_t *out = probs + row * DEPTH;
    for (int64_t j = 0; j < end; j += DEPTH, out += 2 * TILE) {
        __m512 p[2];
        UNROLL for (int half = 0; half < 2; half++) {
            const __mmask16 here = lanes(seen - j - half * VL);
            __m512 x = _mm512_maskz_loadu_ps(here, scores + j + half * VL);
            p[half] = _mm512_maskz_mov_ps(here, exponential(_mm512_fmsub_ps(x, factor, centre)));
            sum = _mm512_add_ps(sum, p[half]);
        }
        _mm512_storeu_si512(out, narrow(p[0], p[1]));
    }
    *out_sum = _mm512_reduce_add_ps(sum);
}

/* Queries i0 .. i0 + 31 of head h. */
static void forward_block(const forward_run *r, const tiles_forward *m, int64_t b, int64_t h,
                          int64_t i0) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t dim = s->dim, count = smaller(EDGE, s->q_len - i0);
    const int64_t end = round_up(seen_by(s, i0 + count - 1));
    float sums[EDGE];
    pack_rows_a(rows_of(a->q.data, a->q_strides, b, h, i0), count, dim, m->queries);
    for (int64_t j = 0; j < end; j += EDGE)
        tiles->tile(EDGE, dim, m->queries, 0, m->keys + j * dim, m->scores + j, r->keys, false,
                    NULL);
    for (int64_t i = 0; i < EDGE; i++) {
        const int64_t seen = i < count ? seen_by(s, i0 + i) : 0;
        float max;
        softmax_row(m->scores + i * r->keys, seen, end, s->scale, (int)i, m->probs, &max, &sums[i]);
        if (a->lse && i < count)
            a->lse[(b * s->q_heads + h) * s->q_len + i0 + i] = max + logf(sums[i]);
    }
    for (int64_t c = 0; c < dim; c += EDGE)
        tiles->tile(EDGE, end, m->probs, 0, m->values + c * r->keys, m->output + c, dim, false,
                    NULL);
    for (int64_t i = 0; i < count; i++) {
        const __m512 factor = _mm512_set1_ps(sums[i] == 0.0f ? 0.0f : 1.0f / sums[i]);
        uint16_t *o = (uint16_t *)a->o.data + b * a->o_strides.batch + h * a->o_strides.head +
                      (i0 + i) * a->o_strides.seq;
        for (int64_t c = 0; c < dim; c += DEPTH) {
            const float *from = m->output + i * dim + c;
            _mm512_storeu_si512(o + c, narrow(_mm512_mul_ps(_mm512_loadu_ps(from), factor),
                                              _mm512_mul_ps(_mm512_loadu_ps(from + VL), factor)));
        }
    }
}

enum { SEGMENT = 512 }; /* queries of a task */

static void forward_task(void *context, int64_t task, int thread) {
    const forward_run *r = context;
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t segments = blocks_of(s->q_len, SEGMENT);
    /* The longest causal rows first, so that threads finish together. */
    const int64_t first = (segments - 1 - task % segments) * SEGMENT, head = task / segments;
    const int64_t last = smaller(s->q_len, first + SEGMENT);
    const int64_t b = head / s->q_heads, h = head % s->q_heads;
    const int64_t kv = h / (s->q_heads / s->kv_heads), keys = seen_by(s, last - 1);
    tiles_forward m = carve_forward(r, thread);
    tiles->enter();
    pack_rows_b(rows_of(a->k.data, a->k_strides, b, kv, 0), keys, s->dim, m.keys);
    pack_transposed_b(rows_of(a->v.data, a->v_strides, b, kv, 0), keys, s->dim, r->keys, m.values);
    for (int64_t i0 = first; i0 < last; i0 += EDGE) forward_block(r, &m, b, h, i0);
    tiles->leave();
}

static void attention_on_tiles(wefti_pool *pool, const wefti_attention_args *a) {
    const wefti_attention_shape *s = &a->shape;
    if (!attention_fits_tiles(s)) {
        wefti_kernel_attention_avx512(pool, a);
        return;
    }
    forward_run r = {.a = a, .keys = round_up(s->k_len), .per_thread = attention_forward_bytes(s)};
    wefti_pool_run(pool, s->batch * s->q_heads * blocks_of(s->q_len, SEGMENT), forward_task, &r);
}

/* ---- backward ---- */

enum { ROWS = ATTENTION_ROWS };

typedef struct tiles_backward {
    uint16_t *keys, *values;                     /* panels: [key / 32][dim] */
    uint16_t *keys_t;                            /* [dim / 32][key] */
    float *dk, *dv;                              /* [dim][keys] */
    uint16_t *queries, *queries_t, *d_o, *d_o_t; /* [query / 32][dim]; [dim / 32][64 queries] */
    float *dq;                                   /* [64][dim] */
    int64_t block;                               /* keys of a block, at most */
    float *scores, *d_probs;                     /* [64][block] */
    uint16_t *probs, *slopes_b;                  /* [key / 32][64 queries] */
    uint16_t *slopes;                            /* [query / 32][block] */
    float *lse, *delta;                          /* [64] */
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
    m.d_probs = f += ROWS * m.block;
    m.lse = f += ROWS * m.block;
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
    m.slopes_b = p += ROWS * m.block;
    m.slopes = p + ROWS * m.block;
    return m;
}

/* A block of queries by a block of keys. */
typedef struct place {
    int64_t b, h, i0, count; /* queries */
    int64_t j0, end;         /* keys, those that none of the queries sees left out; rounded up */
} place;

static float dot_bf16(const uint16_t *x, const uint16_t *y, int64_t dim) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t c = 0; c < dim; c += VL) {
        vhalf a, b;
        memcpy(&a, x + c, sizeof a);
        memcpy(&b, y + c, sizeof b);
        sum = _mm512_fmadd_ps((__m512)from_bf16(a), (__m512)from_bf16(b), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

static void pack_queries(const backward_run *r, const tiles_backward *m, const place *t) {
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const rows q = rows_of(a->q.data, a->q_strides, t->b, t->h, t->i0);
    const rows o = rows_of(a->o.data, a->o_strides, t->b, t->h, t->i0);
    const rows d = rows_of(a->d_o.data, a->do_strides, t->b, t->h, t->i0);
    pack_rows_a(q, t->count, s->dim, m->queries);
    pack_rows_a(d, t->count, s->dim, m->d_o);
    pack_transposed_a(q, t->count, s->dim, ROWS, m->queries_t);
    pack_transposed_a(d, t->count, s->dim, ROWS, m->d_o_t);
    const float *lse = a->lse + (t->b * s->q_heads + t->h) * s->q_len + t->i0;
    for (int64_t i = 0; i < t->count; i++) {
        m->lse[i] = lse[i];
        m->delta[i] = dot_bf16(o.data + i * o.stride, d.data + i * d.stride, s->dim);
    }
}

/* Probabilities and slopes, the gradient of unscaled scores, of query i of the block and 32 keys.
 */
INLINE void slope_lanes(const wefti_attention_shape *s, const tiles_backward *m, const place *t,
                        int64_t i, int64_t j, __m512i *probs, __m512i *slopes) {
    const int64_t seen = i < t->count ? seen_by(s, t->i0 + i) - t->j0 - j : 0;
    *probs = *slopes = _mm512_setzero_si512();
    if (seen <= 0) return;
    const __m512 scale = _mm512_set1_ps(s->scale), lse = _mm512_set1_ps(m->lse[i]);
    const __m512 delta = _mm512_set1_ps(m->delta[i]);
    __m512 p[2], d[2];
    UNROLL for (int half = 0; half < 2; half++) {
        const __mmask16 here = lanes(seen - half * VL);
        const int64_t at = i * m->block + j + half * VL;
        __m512 x = _mm512_maskz_loadu_ps(here, m->scores + at);
        __m512 g = _mm512_maskz_loadu_ps(here, m->d_probs + at);
        p[half] = _mm512_maskz_mov_ps(here, exponential(_mm512_fmsub_ps(x, scale, lse)));
        d[half] = _mm512_mul_ps(_mm512_mul_ps(p[half], scale), _mm512_sub_ps(g, delta));
    }
    *probs = narrow(p[0], p[1]);
    *slopes = narrow(d[0], d[1]);
}

/* In both orders that products want: slopes as left operand, slopes and probabilities as right ones
 * over queries. */
static void slope_block(const wefti_attention_shape *s, const tiles_backward *m, const place *t) {
    const int64_t queries = round_up(t->count);
    for (int64_t i = 0; i < queries; i += 2)
        for (int64_t j = 0; j < t->end; j += DEPTH) {
            __m512i p[2], d[2], pairs[2];
            uint16_t *left = m->slopes + i / EDGE * EDGE * m->block + j * EDGE +
                             i % EDGE / SIDE * TILE + i % SIDE * DEPTH;
            slope_lanes(s, m, t, i, j, &p[0], &d[0]);
            slope_lanes(s, m, t, i + 1, j, &p[1], &d[1]);
            _mm512_storeu_si512(left, d[0]);
            _mm512_storeu_si512(left + DEPTH, d[1]);
            uint16_t *at = m->probs + j * ROWS + i / DEPTH * 2 * TILE + i % DEPTH / 2 * DEPTH;
            interleave(p[0], p[1], pairs);
            _mm512_storeu_si512(at, pairs[0]);
            _mm512_storeu_si512(at + TILE, pairs[1]);
            at += m->slopes_b - m->probs;
            interleave(d[0], d[1], pairs);
            _mm512_storeu_si512(at, pairs[0]);
            _mm512_storeu_si512(at + TILE, pairs[1]);
        }
}

static void backward_block(const backward_run *r, const tiles_backward *m, const place *t) {
    const wefti_attention_shape *s = &r->a->shape;
    const int64_t dim = s->dim, queries = round_up(t->count);
    for (int64_t i = 0; i < queries; i += EDGE) {
        const int64_t last = smaller(t->count, i + EDGE) - 1;
        const int64_t end = smaller(t->end, round_up(seen_by(s, t->i0 + last) - t->j0));
        for (int64_t j = 0; j < end; j += EDGE) {
            tiles->tile(EDGE, dim, m->queries + i * dim, 0, m->keys + (t->j0 + j) * dim,
                        m->scores + i * m->block + j, m->block, false, NULL);
            tiles->tile(EDGE, dim, m->d_o + i * dim, 0, m->values + (t->j0 + j) * dim,
                        m->d_probs + i * m->block + j, m->block, false, NULL);
        }
    }
    slope_block(s, m, t);
    for (int64_t c = 0; c < dim; c += EDGE) {
        for (int64_t i = 0; i < queries; i += EDGE)
            tiles->tile(EDGE, t->end, m->slopes + i * m->block, 0,
                        m->keys_t + c * r->keys + t->j0 * EDGE, m->dq + i * dim + c, dim, t->j0 > 0,
                        NULL);
        for (int64_t j = 0; j < t->end; j += EDGE) {
            const int64_t at = c * r->keys + t->j0 + j;
            tiles->tile(EDGE, queries, m->d_o_t + c * ROWS, 0, m->probs + j * ROWS, m->dv + at,
                        r->keys, true, NULL);
            tiles->tile(EDGE, queries, m->queries_t + c * ROWS, 0, m->slopes_b + j * ROWS,
                        m->dk + at, r->keys, true, NULL);
        }
    }
}

/* 16 values of a row of x in y's dtype. */
static void store_16(wefti_dst y, int64_t at, vfloat x) {
    store_row(y.dtype, y.data, at, x);
}

static void store_queries(const backward_run *r, const tiles_backward *m, const place *t) {
    const wefti_attention_backward_args *a = r->a;
    const int64_t dim = a->shape.dim;
    int64_t at = t->b * a->dq_strides.batch + t->h * a->dq_strides.head + t->i0 * a->dq_strides.seq;
    for (int64_t i = 0; i < t->count; i++, at += a->dq_strides.seq)
        for (int64_t c = 0; c < dim; c += VL) store_16(a->dq, at + c, vload(m->dq + i * dim + c));
}

/* y[key][c] = x[c][key]. */
static void store_keys(const backward_run *r, const float *x, wefti_dst y,
                       wefti_attention_strides strides, int64_t b, int64_t kv) {
    const wefti_attention_shape *s = &r->a->shape;
    for (int64_t j = 0; j < s->k_len; j += VL)
        for (int64_t c = 0; c < s->dim; c += VL) {
            vfloat lines[VL];
            UNROLL for (int i = 0; i < VL; i++) lines[i] = vload(x + (c + i) * r->keys + j);
            transpose(lines);
            for (int i = 0; i < VL && j + i < s->k_len; i++)
                store_16(y, b * strides.batch + kv * strides.head + (j + i) * strides.seq + c,
                         lines[i]);
        }
}

static void backward_task(void *context, int64_t task, int thread) {
    const backward_run *r = context;
    const wefti_attention_backward_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    tiles_backward m = carve_backward(r, thread);
    const int64_t b = task / s->kv_heads, kv = task % s->kv_heads, group = s->q_heads / s->kv_heads;
    const rows keys = rows_of(a->k.data, a->k_strides, b, kv, 0);
    tiles->enter();
    pack_rows_b(keys, s->k_len, s->dim, m.keys);
    pack_transposed_b(keys, s->k_len, s->dim, r->keys, m.keys_t);
    pack_rows_b(rows_of(a->v.data, a->v_strides, b, kv, 0), s->k_len, s->dim, m.values);
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

static void attention_backward_on_tiles(wefti_pool *pool, const wefti_attention_backward_args *a) {
    const wefti_attention_shape *s = &a->shape;
    if (!attention_fits_tiles(s)) {
        wefti_kernel_attention_backward_avx512(pool, a);
        return;
    }
    backward_run r = {
        .a = a, .keys = round_up(s->k_len), .per_thread = attention_backward_bytes(s)};
    wefti_pool_run(pool, s->batch * s->kv_heads, backward_task, &r);
}

/* ---- the table: AVX-512's with two entries changed ---- */

#define wefti_kernel_attention_avx512 attention_on_tiles
#define wefti_kernel_attention_backward_avx512 attention_backward_on_tiles
extern const wefti_kernels wefti_kernels_amx;
const wefti_kernels wefti_kernels_amx = {
#define X(name, args) .name = wefti_kernel_##name##_avx512,
#include "backend/cpu/kernels.def"
#undef X
    .isa = "amx",
};
#endif
