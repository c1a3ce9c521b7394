/* Attention forward and backward against double-precision loops: strides, grouped heads, causal
 * offsets, positions of samples, rows of a cache, masks, dropout, decoding, odd sizes. */
#include "base/philox.h"
#include "kernels_support.h"
#include "sanitized.h"

typedef struct attention_case {
    wefti_attention_args f;
    wefti_attention_backward_args b;
    operand q, k, v, o, d_o, dq, dk, dv, mask, lse;
    double *ref_o, *ref_lse, *ref_dq, *ref_dk, *ref_dv;
    bool forward; /* the forward pass only */
    bool tiles;   /* the kernels that ran last multiply bf16 tiles */
    float late;   /* test_late_maximum: its score */
} attention_case;

/* Elements of a strided [b, t, h, d] operand with gaps, its strides set to one of three layouts. */
static int64_t layout(wefti_attention_strides *s, int64_t b, int64_t t, int64_t h, int64_t d) {
    int64_t gap = random_int(0, 5);
    switch (random_int(0, 2)) {
    case 0: /* [b, t, h, d] */
        *s = (wefti_attention_strides){.head = d, .seq = h * d + gap, .batch = t * (h * d + gap)};
        break;
    case 1: /* [b, h, t, d] */
        *s = (wefti_attention_strides){
            .seq = d + gap, .head = t * (d + gap), .batch = h * t * (d + gap)};
        break;
    default: /* a third of a fused projection */
        *s = (wefti_attention_strides){.head = d, .seq = 3 * h * d, .batch = 3 * t * h * d};
        break;
    }
    return b * s->batch + t * s->seq + h * s->head + gap; /* generous */
}
static int64_t at(wefti_attention_strides s, int64_t b, int64_t t, int64_t h, int64_t c) {
    return b * s.batch + t * s.seq + h * s.head + c;
}

/* The row of k and v that sample b reads, and the position of its query 0. */
static int64_t row_of(const wefti_attention_shape *s, int64_t b) {
    return s->by_row ? s->positions[2 * b] : b;
}
static int64_t offset_of(const wefti_attention_shape *s, int64_t b) {
    if (!s->by_sample) return s->q_offset;
    return s->q_offset + s->positions[s->by_row ? 2 * b + 1 : b];
}

static double mask_value(const attention_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    const wefti_attention_shape *s = &c->f.shape;
    const int64_t last = i + offset_of(s, b);
    if (s->causal && j > last) return -INFINITY;
    if (s->window && j <= last - s->window) return -INFINITY;
    if (!s->mask.data) return 0.0;
    double m = get(c->mask, b * s->mask_batch + h * s->mask_head + i * s->mask_row + j);
    if (s->mask.dtype == WEFT_BOOL) return m != 0.0 ? 0.0 : -INFINITY;
    return m;
}

static double keep(const wefti_attention_shape *s, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (s->dropout == 0.0f) return 1.0;
    int64_t row = (b * s->heads_total + h) * s->q_total + i;
    uint64_t position = s->first + (uint64_t)(row * s->k_total + j);
    float u = wefti_philox_uniform(s->seed, s->stream, position);
    return u >= s->dropout ? 1.0 / (1.0 - (double)s->dropout) : 0.0;
}

/* The rows of one head, [rows, dim], of a strided operand. */
static double *rows_of(const operand *x, wefti_attention_strides strides, int64_t b, int64_t rows,
                       int64_t h, int64_t dim) {
    double *all = calloc((size_t)(rows * dim) + 1, sizeof *all);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = 0; e < dim; e++) all[i * dim + e] = get(*x, at(strides, b, i, h, e));
    return all;
}

/* One (batch, query head) of both directions, straight from the definition. */
static UNSANITIZED void reference_head(attention_case *c, int64_t b, int64_t h) {
    const wefti_attention_shape *s = &c->f.shape;
    int64_t d = s->dim, tk = s->k_len, kv = h / (s->q_heads / s->kv_heads);
    double *p = calloc((size_t)tk + 1, sizeof *p), *dp = calloc((size_t)tk + 1, sizeof *dp);
    double *qs = rows_of(&c->q, c->f.q_strides, b, s->q_len, h, d),
           *gs = c->forward ? calloc((size_t)(s->q_len * d) + 1, sizeof *gs)
                            : rows_of(&c->d_o, c->b.do_strides, b, s->q_len, h, d),
           *k = rows_of(&c->k, c->f.k_strides, row_of(s, b), tk, kv, d),
           *v = rows_of(&c->v, c->f.v_strides, row_of(s, b), tk, kv, d);
    for (int64_t i = 0; i < s->q_len; i++) {
        const double *q = qs + i * d, *g = gs + i * d;
        double max = -INFINITY, sum = 0.0, delta = 0.0;
        for (int64_t j = 0; j < tk; j++) {
            p[j] = 0.0;
            for (int64_t e = 0; e < d; e++) p[j] += q[e] * k[j * d + e];
            p[j] = p[j] * (double)s->scale + mask_value(c, b, h, i, j);
            if (p[j] > max) max = p[j];
        }
        for (int64_t j = 0; j < tk; j++) sum += p[j] = max == -INFINITY ? 0.0 : exp(p[j] - max);
        int64_t row = (b * s->q_heads + h) * s->q_len + i;
        c->ref_lse[row] = max + log(sum);
        for (int64_t j = 0; j < tk; j++) {
            if (sum > 0.0) p[j] /= sum;
            dp[j] = 0.0;
            double kept = keep(s, b, h, i, j), weight = p[j] * kept;
            double *dv = c->ref_dv + ((b * tk + j) * s->kv_heads + kv) * d;
            for (int64_t e = 0; e < d; e++) {
                c->ref_o[row * d + e] += weight * v[j * d + e];
                dv[e] += weight * g[e];
                dp[j] += g[e] * v[j * d + e] * kept;
            }
            delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j < tk; j++) {
            double ds = p[j] * (dp[j] - delta) * (double)s->scale;
            double *dk = c->ref_dk + ((b * tk + j) * s->kv_heads + kv) * d;
            for (int64_t e = 0; e < d; e++) {
                c->ref_dq[row * d + e] += ds * k[j * d + e];
                dk[e] += ds * q[e];
            }
        }
    }
    double *all[] = {p, dp, qs, gs, k, v};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]);
}

static void reference(attention_case *c) {
    const wefti_attention_shape *s = &c->f.shape;
    size_t nq = (size_t)(s->batch * s->q_heads * s->q_len * s->dim + 1);
    size_t nk = (size_t)(s->batch * s->kv_heads * s->k_len * s->dim + 1);
    c->ref_o = calloc(nq, sizeof(double));
    c->ref_dq = calloc(nq, sizeof(double));
    c->ref_lse = calloc(nq, sizeof(double));
    c->ref_dk = calloc(nk, sizeof(double));
    c->ref_dv = calloc(nk, sizeof(double));
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->q_heads; h++) reference_head(c, b, h);
}

/* An lse is the sum of two numbers, and any division between them is legal. The lse of a hidden row
 * has no digits left for that. */
static void share_lse_anew(const attention_case *c) {
    const wefti_attention_shape *s = &c->f.shape;
    const int64_t rest = s->batch * s->q_heads * s->q_len;
    float *lse = f32(c->lse);
    for (int64_t row = 0; row < rest; row++) {
        if (!(fabsf(lse[row]) < 1e3f)) continue;
        lse[row] -= 0.75f;
        lse[rest + row] += 0.75f;
    }
}

static void run(const wefti_kernels *k, wefti_pool *pool, void *context) {
    attention_case *c = context;
    c->tiles = !strcmp(k->isa, "amx");
    k->attention(pool, &c->f);
    if (c->forward) return;
    share_lse_anew(c);
    k->attention_backward(pool, &c->b);
}

static void check(void *context) {
    attention_case *c = context;
    const wefti_attention_shape *s = &c->f.shape;
    const int64_t d = s->dim, rest = s->batch * s->q_heads * s->q_len;
    const float *lse = f32(c->lse);
    /* Scores of size 4 carry errors of 1e-6, which the exponential turns into relative errors; the
     * gradients add up to k_len terms of that size. A bf16 o enters delta with a relative error of
     * 2^-9. */
    double coarse = c->o.dtype == WEFT_BF16 ? 4e-2 : 0.0;
    /* Tiles take probabilities and slopes as bf16, each off by up to 2^-8 of itself. An output is a
     * mean of values up to 1, so it is off by 2^-8. A gradient is off by 2^-8 of a sum of absolute
     * terms, at most some tens of the largest gradient. */
    bool rounded = c->tiles && c->o.dtype == WEFT_BF16;
    double o_margin = rounded ? 0x1p-8 : 2e-5, sum_margin = rounded ? 6e-2 : 0.0;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->q_heads; h++)
            for (int64_t i = 0; i < s->q_len; i++) {
                int64_t row = (b * s->q_heads + h) * s->q_len + i;
                const double sum = (double)lse[row] + (double)lse[rest + row];
                if (sum != c->ref_lse[row] && !(fabs(sum - c->ref_lse[row]) <= 1e-5))
                    fail_msg("lse: row %lld is %g + %g, not %g", (long long)row, (double)lse[row],
                             (double)lse[rest + row], c->ref_lse[row]);
                for (int64_t e = 0; e < d; e++) {
                    check_close(c->o, at(c->f.o_strides, b, i, h, e), c->ref_o[row * d + e],
                                o_margin, "o");
                    if (c->forward) continue;
                    check_close(c->dq, at(c->b.dq_strides, b, i, h, e), c->ref_dq[row * d + e],
                                1e-4 + coarse + sum_margin, "dq");
                }
            }
    for (int64_t b = 0; b < s->batch && !c->forward; b++)
        for (int64_t j = 0; j < s->k_len; j++)
            for (int64_t h = 0; h < s->kv_heads; h++)
                for (int64_t e = 0; e < d; e++) {
                    int64_t r = ((b * s->k_len + j) * s->kv_heads + h) * d + e;
                    check_close(c->dk, at(c->b.dk_strides, b, j, h, e), c->ref_dk[r],
                                2e-4 + coarse + sum_margin, "dk");
                    check_close(c->dv, at(c->b.dv_strides, b, j, h, e), c->ref_dv[r],
                                2e-4 + sum_margin, "dv");
                }
}

/* Some rows of an added mask have the lowest number, so their queries weight all keys equally. */
static void hide_rows(attention_case *c, int64_t k_len) {
    for (int64_t i = 0; i < c->mask.count; i += k_len) {
        if (random_bool()) continue;
        for (int64_t j = 0; j < k_len; j++)
            wefti_store(c->mask.dtype, c->mask.data, i + j, -3.3e38);
    }
}

static void backward_operands(attention_case *c, weft_dtype t, bool plain) {
    const wefti_attention_shape *s = &c->f.shape;
    const int64_t q_len = s->q_len, k_len = s->k_len, dim = s->dim;
    c->b.shape = *s;
    c->b.q = in(c->q);
    c->b.k = in(c->k);
    c->b.v = in(c->v);
    c->b.o = in(c->o);
    c->b.q_strides = c->f.q_strides;
    c->b.k_strides = c->f.k_strides;
    c->b.v_strides = c->f.v_strides;
    c->b.o_strides = c->f.o_strides;
    c->b.lse = f32(c->lse);
    c->d_o =
        operand_random(INPUT, plain ? t : random_type(),
                       layout(&c->b.do_strides, s->batch, q_len, s->q_heads, dim), -1.0f, 1.0f);
    c->b.d_o = in(c->d_o);
    c->b.shape.bf16 &= c->d_o.dtype == WEFT_BF16;
    c->dq = operand_new(OUTPUT, random_type(),
                        layout(&c->b.dq_strides, s->batch, q_len, s->q_heads, dim));
    c->dk = operand_new(OUTPUT, random_type(),
                        layout(&c->b.dk_strides, s->batch, k_len, s->kv_heads, dim));
    c->dv = operand_new(OUTPUT, random_type(),
                        layout(&c->b.dv_strides, s->batch, k_len, s->kv_heads, dim));
    c->b.dq = out(c->dq);
    c->b.dk = out(c->dk);
    c->b.dv = out(c->dv);
    c->b.workspace = scratch(wefti_attention_backward_workspace_bytes(&c->b.shape, THREADS));
}

/* Positions of queries: one for all samples, one for each, or each with its row of k and v. */
typedef enum positions { OF_ALL, BY_SAMPLE, BY_ROW } positions;

/* Positions from some before the first key to some behind the last one. Returns the samples of k
 * and v. */
static int64_t place_samples(wefti_attention_shape *s, positions by) {
    const int64_t numbers = by == BY_ROW ? 2 : 1, rows = by == BY_ROW ? random_int(1, 6) : s->batch;
    s->by_sample = by != OF_ALL;
    s->by_row = by == BY_ROW;
    if (!s->by_sample) return rows;
    s->q_offset = random_int(-2, 2);
    int32_t *to = buffer_new(INPUT, numbers * s->batch, sizeof *to);
    for (int64_t b = 0; b < s->batch; b++) {
        if (s->by_row) to[2 * b] = (int32_t)random_int(0, rows - 1);
        to[numbers * b + numbers - 1] = (int32_t)random_int(-3, s->k_len + 3);
    }
    s->positions = to;
    return rows;
}

/* `plain`: operands for kernels on bf16 tiles: all bf16, without mask and dropout. */
static void one_case(int64_t q_len, int64_t k_len, int64_t dim, bool causal, bool plain,
                     int64_t window, positions by) {
    attention_case c = {.forward = by != OF_ALL};
    wefti_attention_shape *s = &c.f.shape;
    s->batch = by == OF_ALL ? random_int(1, 2) : random_int(1, 5);
    s->kv_heads = random_int(1, 2);
    s->q_heads = s->kv_heads * random_int(1, 3);
    s->q_len = q_len;
    s->k_len = k_len;
    s->dim = dim;
    s->scale = 1.0f / sqrtf((float)dim);
    s->causal = causal;
    s->q_offset = random_int(0, 3) ? k_len - q_len : random_int(-5, 10);
    s->window = causal ? window : 0;
    const int64_t rows = place_samples(s, by);
    int64_t nq = layout(&c.f.q_strides, s->batch, q_len, s->q_heads, dim);
    int64_t nk = layout(&c.f.k_strides, rows, k_len, s->kv_heads, dim);
    int64_t nv = layout(&c.f.v_strides, rows, k_len, s->kv_heads, dim);
    int64_t no = layout(&c.f.o_strides, s->batch, q_len, s->q_heads, dim);
    weft_dtype t = plain ? WEFT_BF16 : random_type();
    c.q = operand_random(INPUT, t, nq, -1.5f, 1.5f);
    c.k = operand_random(INPUT, t, nk, -1.5f, 1.5f);
    c.v = operand_random(INPUT, plain ? t : random_type(), nv, -1.0f, 1.0f);
    c.o = operand_new(OUTPUT, plain ? t : random_type(), no);
    c.lse = operand_new(OUTPUT, WEFT_F32, 2 * s->batch * s->q_heads * q_len);
    int kind = plain ? 0 : (int)random_int(0, 4);
    if (kind >= 1 && kind <= 3) {
        s->mask_row = kind == 1 ? 0 : k_len;
        s->mask_head = random_bool() ? q_len * k_len : 0;
        s->mask_batch = random_bool() ? s->q_heads * q_len * k_len : 0;
        int64_t count = s->batch * s->q_heads * q_len * k_len;
        c.mask = kind == 3 ? operand_random(INPUT, WEFT_BOOL, count, 0.0f, 1.0f)
                           : operand_random(INPUT, random_type(), count, -2.0f, 2.0f);
        if (kind == 3)
            for (int64_t i = 0; i < count; i++) ((uint8_t *)c.mask.data)[i] = random_int(0, 4) > 0;
        if (kind != 3 && k_len > 0 && random_bool()) hide_rows(&c, k_len);
        s->mask = in(c.mask);
    }
    if (!plain && random_int(0, 3) == 0) {
        s->dropout = 0.3f;
        s->seed = random_u64();
        s->stream = random_u64();
        s->first = random_u64() >> 2;
        s->heads_total = s->q_heads + 4;
        s->q_total = q_len + 9;
        s->k_total = k_len + 9;
    }
    c.f.q = in(c.q);
    c.f.k = in(c.k);
    c.f.v = in(c.v);
    c.f.o = out(c.o);
    c.f.lse = f32(c.lse);
    s->bf16 = t == WEFT_BF16 && c.v.dtype == t && c.o.dtype == t;
    c.f.workspace = scratch(wefti_attention_workspace_bytes(s, THREADS));
    if (!c.forward) backward_operands(&c, t, plain);
    reference(&c);
    run_case(run, check, &c);
    free(c.ref_o);
    free(c.ref_lse);
    free(c.ref_dq);
    free(c.ref_dk);
    free(c.ref_dv);
}

static void test_fixed_sizes(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{64, 64, 64},  {128, 128, 64}, {1, 1, 1},   {1, 200, 64},
                                       {3, 77, 40},   {65, 65, 33},   {4, 130, 8}, {130, 4, 8},
                                       {66, 100, 20}, {10, 0, 16},    {0, 10, 16}, {5, 70, 256},
                                       {70, 129, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int causal = 0; causal < 2; causal++)
            one_case(sizes[i][0], sizes[i][1], sizes[i][2], causal, false, 0, OF_ALL);
}

static void test_random_sizes(void **state) {
    (void)state;
    for (int round = 0; round < (SANITIZED ? 20 : 60); round++)
        one_case(random_int(1, 150), random_int(1, 150), random_int(1, 80), random_bool(), false,
                 random_bool() ? 0 : random_int(1, 170), OF_ALL);
}

/* Windows within a tile of keys and over some of them, of more keys than tiles hold. */
static void test_windows(void **state) {
    (void)state;
    for (int round = 0; round < (SANITIZED ? 6 : 20); round++) {
        int64_t keys = random_int(200, 400);
        one_case(random_bool() ? keys : random_int(1, 150), keys, random_int(1, 40), true, false,
                 random_bool() ? random_int(1, 9) : random_int(1, keys + 20), OF_ALL);
    }
}

/* Samples at positions of their own, alone and with rows of a cache: few queries (decoding), pieces
 * of prompts, and operands that tiles would take if all samples had one position. */
static void test_positions(void **state) {
    (void)state;
    for (int round = 0; round < (SANITIZED ? 12 : 40); round++) {
        const bool plain = random_int(0, 3) == 0;
        const int64_t keys = random_int(1, 200);
        one_case(random_int(1, random_bool() ? 3 : 140), keys,
                 plain ? 32 * random_int(1, 2) : random_int(1, 70), true, plain,
                 random_bool() ? 0 : random_int(1, keys + 9), random_bool() ? BY_SAMPLE : BY_ROW);
    }
}

/* Dims in whole tiles; sizes around tiles, blocks of queries and of keys, and segments of tasks. */
static void test_bf16(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{32, 32}, {64, 64},   {33, 65},    {4, 1},     {130, 20},
                                       {5, 600}, {600, 513}, {100, 1030}, {256, 256}, {10, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int causal = 0; causal < 2; causal++)
            one_case(sizes[i][0], sizes[i][1], 64, causal, true, 0, OF_ALL);
    for (int round = 0; round < (SANITIZED ? 8 : 24); round++)
        one_case(random_int(4, 150), random_int(1, 150), 32 * random_int(1, 4), random_bool(), true,
                 0, OF_ALL);
}

static void run_forward(const wefti_kernels *k, wefti_pool *pool, void *context) {
    k->attention(pool, &((attention_case *)context)->f);
}

/* With keys of zero but one, of `score`, and values of 1 there and -1 elsewhere. */
static void check_late(void *context) {
    const attention_case *c = context;
    const wefti_attention_shape *s = &c->f.shape;
    const double late = exp((double)c->late), others = (double)(s->k_len - 1);
    for (int64_t i = 0; i < s->q_len; i++) {
        check_close(c->lse, i, log(late + others), 1e-5 + 1e-6 * (double)c->late, "lse");
        for (int64_t e = 0; e < s->dim; e++)
            check_close(c->o, i * s->dim + e, (late - others) / (late + others), 0x1p-8, "o");
    }
}

/* A score far above the scores of many keys before it, and of as many after it. */
static void test_late_maximum(void **state) {
    (void)state;
    static const float scores[] = {1.0f, 5.0f, 24.0f, 40.0f, 64.0f};
    enum { QUERIES = 40, KEYS = 400, DIM = 64 };
    for (size_t n = 0; n < sizeof scores / sizeof *scores; n++) {
        attention_case c = {.late = scores[n]};
        c.f.shape = (wefti_attention_shape){.batch = 1,
                                            .q_len = QUERIES,
                                            .k_len = KEYS,
                                            .q_heads = 1,
                                            .kv_heads = 1,
                                            .dim = DIM,
                                            .bf16 = true,
                                            .scale = 1.0f / 8};
        c.q = operand_random(INPUT, WEFT_BF16, QUERIES * DIM, 1.0f, 1.0f);
        c.k = operand_random(INPUT, WEFT_BF16, KEYS * DIM, 0.0f, 0.0f);
        c.v = operand_random(INPUT, WEFT_BF16, KEYS * DIM, -1.0f, -1.0f);
        for (int64_t e = 0; e < DIM; e++) {
            wefti_store(WEFT_BF16, c.k.data, KEYS / 2 * DIM + e, (double)scores[n] / 8);
            wefti_store(WEFT_BF16, c.v.data, KEYS / 2 * DIM + e, 1.0);
        }
        c.o = operand_new(OUTPUT, WEFT_BF16, QUERIES * DIM);
        c.lse = operand_new(OUTPUT, WEFT_F32, 2 * QUERIES);
        c.f.q = in(c.q);
        c.f.k = in(c.k);
        c.f.v = in(c.v);
        c.f.o = out(c.o);
        c.f.lse = f32(c.lse);
        c.f.q_strides = c.f.o_strides = (wefti_attention_strides){QUERIES * DIM, DIM, DIM};
        c.f.k_strides = c.f.v_strides = (wefti_attention_strides){KEYS * DIM, DIM, DIM};
        c.f.workspace = scratch(wefti_attention_workspace_bytes(&c.f.shape, THREADS));
        run_case(run_forward, check_late, &c);
    }
}

/* Scratch for tiles exists for operands that tiles accept, and has only the size that the keys
 * need. */
static void test_scratch(void **state) {
    (void)state;
    wefti_attention_shape s = {
        .batch = 2, .q_len = 64, .k_len = 64, .q_heads = 4, .kv_heads = 4, .dim = 32};
    size_t plain = wefti_attention_workspace_bytes(&s, 1);
    s.bf16 = true;
    assert_int_equal(wefti_attention_workspace_bytes(&s, 1), plain);
    s.q_len = s.k_len = 2048;
    size_t tiles = wefti_attention_workspace_bytes(&s, 1);
    s.bf16 = false;
    assert_true(wefti_attention_workspace_bytes(&s, 1) < tiles);
}

static int setup(void **state) {
    emulated_every = SANITIZED ? 16 : 4;
    return support_setup(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scratch),      cmocka_unit_test(test_fixed_sizes),
        cmocka_unit_test(test_random_sizes), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_positions),    cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_late_maximum)};
    return cmocka_run_group_tests(tests, setup, support_teardown);
}
