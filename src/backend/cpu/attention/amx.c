/* Attention on AMX tiles: see attention.h.
 *
 * Operands are bf16. Products multiply bf16 and sum in f32; the softmax is in f32. Probabilities
 * and the gradients of scores are rounded to bf16 before products read them, as mixed precision
 * stores them. Dims are multiples of 32 up to 128, without mask, window and dropout. All other
 * shapes run on the AVX-512 kernels.
 *
 * All products use the matrix kernels (gemm/amx.c), on panels in tile order. A task packs the keys
 * and values of its head once. Values derived from scores stay in the first-level cache.
 *
 * Forward: a block is 32 queries by 128 keys. Each query has a centre, which moves only when scores
 * exceed it by far.
 *
 * Backward: a block is 64 queries by 32 keys, transposed. So probabilities arise in the order in
 * which the products for keys and values read them. Slopes are also stored, for up to 512 keys, for
 * the gradient of queries.
 *
 * Source: Dao, "FlashAttention-2", 2023, algorithms 1 and 2. */
#if defined(__x86_64__) || defined(WEFTI_EMULATED)
#define VL 16
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/kernels/kernels.h"

#include "backend/cpu/tile/tile.h"

extern const wefti_gemm_panels WEFTI_FORM(wefti_gemm_panels_amx);
static const wefti_gemm_panels *const tiles = &WEFTI_FORM(wefti_gemm_panels_amx);

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

/* Panels of `count` rows, and of the transposed matrix (k = the rows). a: left operand, k =
 * dim. b: right operand, the rows are its columns. Panels follow each other at 32 * `depth`. */
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

/* The number of keys that query i sees; they are the first ones. */
static int64_t seen_by(const wefti_attention_shape *s, int64_t i) {
    if (!s->causal) return s->k_len;
    int64_t seen = i + s->q_offset + 1;
    return seen < 0 ? 0 : smaller(seen, s->k_len);
}

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* 2^x: a minimax polynomial of the part above the next lower integer. Relative error 3e-6, a
 * thousandth of bf16's. */
INLINE vfloat power_of_2(vfloat x) {
    const vfloat f = vfraction(x);
    vfloat p = vsplat(0.0135341680f);
    p = vfma(p, f, vsplat(0.0520114623f));
    p = vfma(p, f, vsplat(0.241442754f));
    p = vfma(p, f, vsplat(0.693003835f));
    p = vfma(p, f, vsplat(1.00000259f));
    return vscale(p, x);
}

/* ---- forward ---- */

enum {
    /* keys that have scores in memory at once: they fit the first-level cache */
    SPAN = ATTENTION_SPAN,
    SPAN_STRIDE = SPAN + VL, /* stride for which consecutive rows lie in different cache sets */
    SPAN_VECTORS = SPAN / VL,
    SEGMENT = 512, /* queries of a task */
};

/* Probabilities may reach this power of 2 before their centre moves. Sums stay far from overflow,
 * and centres move seldom. */
static const float HEADROOM = 40.0f;

typedef struct tiles_forward {
    uint16_t *keys, *values;   /* panels: [key / 32][dim]; [dim / 32][key] */
    uint16_t *queries, *probs; /* panels of 32 queries: [dim]; [SPAN] */
    float *scores;             /* [32][SPAN_STRIDE] */
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
    m.scores = (float *)(void *)(m.probs + EDGE * SPAN);
    m.output = m.scores + EDGE * SPAN_STRIDE;
    return m;
}

/* The state of the softmax of 32 queries. A probability is 2^(score - centre), with scores in units
 * of ln 2. If scores exceed `limit`, the centre must move first. */
typedef struct softmax {
    vfloat sums[EDGE];
    float centre[EDGE], limit[EDGE];
    float factor; /* converts scores to units of ln 2 */
} softmax;

/* Moves the centre of row `row` to the largest of `top`, and rescales the row's sums and
 * outputs. */
static __attribute__((noinline)) void move_centre(softmax *x, int row, vfloat top, float *output,
                                                  int64_t dim) {
    const float centre = vtop(top);
    if (x->limit[row] != -INFINITY) {
        const vfloat less = vsplat(exp2f(x->centre[row] - centre));
        x->sums[row] = (x->sums[row] * less);
        for (int64_t c = 0; c < dim; c += VL) vstore(output + c, (vload(output + c) * less));
    }
    x->centre[row] = centre;
    x->limit[row] = centre + HEADROOM;
}

/* Turns the scores of a row into probabilities, in the order of a left operand. The query sees the
 * first `seen` of the `count` keys. `whole`: it sees a full span. */
INLINE void softmax_row(const bool whole, const tiles_forward *m, softmax *x, int row, int64_t seen,
                        int64_t count, int64_t dim) {
    const float *scores = m->scores + row * SPAN_STRIDE;
    uint16_t *out = m->probs + row / SIDE * TILE + row % SIDE * DEPTH;
    const vfloat factor = vsplat(x->factor);
    const int vectors = whole ? SPAN_VECTORS : (int)(count / VL);
    vfloat s[SPAN_VECTORS], top = vsplat(-INFINITY);
    UNROLL for (int v = 0; v < vectors; v++) {
        const mask16 here = whole ? 0xffff : first_16(seen - v * VL);
        s[v] = (vload_masked(here, scores + v * VL) * factor);
        /* A maximum returns its second operand if either operand is NaN. */
        top = whole ? vmax(s[v], top) : vmax_masked(here, s[v], top);
    }
    if (vany_greater(top, vsplat(x->limit[row])))
        move_centre(x, row, top, m->output + row * dim, dim);
    const vfloat centre = vsplat(x->centre[row]);
    vfloat sum = x->sums[row];
    UNROLL for (int v = 0; v < vectors; v += 2, out += 2 * TILE) {
        vfloat low = power_of_2(s[v] - centre);
        vfloat high = power_of_2(s[v + 1] - centre);
        if (!whole) {
            low = vkeep(first_16(seen - v * VL), low);
            high = vkeep(first_16(seen - (v + 1) * VL), high);
        }
        sum = sum + low + high;
        vstore_int(out, vround_bf16(low, high));
    }
    x->sums[row] = sum;
}

static void store_output(const forward_run *r, const tiles_forward *m, const softmax *x, int64_t b,
                         int64_t h, int64_t i0, int64_t count) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    uint16_t *o = (uint16_t *)a->o.data + b * a->o_strides.batch + h * a->o_strides.head +
                  i0 * a->o_strides.seq;
    for (int64_t i = 0; i < count; i++, o += a->o_strides.seq) {
        const float sum = vsum(x->sums[i]);
        const vfloat factor = vsplat(sum == 0.0f ? 0.0f : 1.0f / sum);
        wefti_attention_store_lse(a, b, h, i0 + i, x->centre[i] * LN_2, sum);
        for (int64_t c = 0; c < s->dim; c += DEPTH) {
            const float *from = m->output + i * s->dim + c;
            vstore_int(o + c, vround_bf16(vload(from) * factor, (vload(from + VL) * factor)));
        }
    }
}

/* The outputs of queries i0 .. i0 + 31 of head h. */
static void forward_block(const forward_run *r, const tiles_forward *m, int64_t b, int64_t h,
                          int64_t i0) {
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t dim = s->dim, count = smaller(EDGE, s->q_len - i0);
    const int64_t end = round_up(seen_by(s, i0 + count - 1));
    softmax x = {.factor = s->scale * LOG2_E};
    for (int i = 0; i < EDGE; i++) {
        x.sums[i] = (vfloat){0};
        x.limit[i] = -INFINITY;
    }
    pack_rows_a(rows_of(a->q.data, a->q_strides, b, h, i0), count, dim, m->queries);
    if (end == 0) memset(m->output, 0, (size_t)(EDGE * dim) * sizeof *m->output);
    for (int64_t j0 = 0; j0 < end; j0 += SPAN) {
        const int64_t keys = smaller(SPAN, end - j0);
        for (int64_t j = 0; j < keys; j += EDGE)
            tiles->tile(EDGE, dim, m->queries, 0, m->keys + (j0 + j) * dim, m->scores + j,
                        SPAN_STRIDE, false, NULL);
        for (int i = 0; i < EDGE; i++) {
            const int64_t seen = i < count ? seen_by(s, i0 + i) - j0 : 0;
            if (seen >= SPAN)
                softmax_row(true, m, &x, i, SPAN, SPAN, dim);
            else
                softmax_row(false, m, &x, i, seen, keys, dim);
        }
        for (int64_t c = 0; c < dim; c += EDGE)
            tiles->tile(EDGE, keys, m->probs, 0, m->values + c * r->keys + j0 * EDGE, m->output + c,
                        dim, j0 > 0, NULL);
    }
    store_output(r, m, &x, b, h, i0, count);
}

static void forward_task(void *context, int64_t task, int thread) {
    const forward_run *r = context;
    const wefti_attention_args *a = r->a;
    const wefti_attention_shape *s = &a->shape;
    const int64_t segments = blocks_of(s->q_len, SEGMENT);
    /* Start with the longest causal rows, so that all threads finish at about the same time. */
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

void WEFTI_FORM(wefti_attention_on_tiles)(wefti_pool *pool, const wefti_attention_args *a) {
    const wefti_attention_shape *s = &a->shape;
    if (!attention_fits_tiles(s)) {
        wefti_kernels_of(WEFTI_ISA_AVX512)->attention(pool, a);
        return;
    }
    forward_run r = {.a = a, .keys = round_up(s->k_len), .per_thread = attention_forward_bytes(s)};
    wefti_pool_run(pool, s->batch * s->q_heads * blocks_of(s->q_len, SEGMENT), forward_task, &r);
}

/* ---- backward ---- */

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
