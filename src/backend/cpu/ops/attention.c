/* Attention, rotary positions, key/value caches. */
#include <math.h>
#include <string.h>

#include "backend/cpu/ops/ops.h"

typedef struct attention_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    const weft_node *node;
    wefti_attention_shape shape;
    weft_dtype q, k, v, o, d_o;
    int mask, position;   /* operand numbers, -1: absent */
    int64_t piece_offset; /* position of query 0 minus position of key 0, in the whole tensor */
    int64_t rows;         /* of k and v */
} attention_kernel;

static wefti_attention_strides dense(int64_t seq, int64_t heads, int64_t dim) {
    return (wefti_attention_strides){seq * heads * dim, heads * dim, dim};
}

/* The shape, with the values that only a run knows: mask, position, random numbers. */
static wefti_attention_shape shape_now(const attention_kernel *k, const wefti_run *run,
                                       const void *const *in) {
    wefti_attention_shape s = k->shape;
    if (k->mask >= 0) s.mask.data = in[k->mask];
    if (k->position >= 0 && s.by_sample) s.positions = in[k->position];
    if (k->position >= 0)
        s.q_offset = k->piece_offset + (s.by_sample ? 0 : ((const int32_t *)in[k->position])[0]);
    if (s.dropout > 0) {
        s.seed = run->random.seed;
        s.stream = wefti_random_stream(&run->random, k->node);
        int64_t strides[WEFT_MAX_RANK];
        weft_desc scores = weft_desc_of(k->q, 4, (int64_t[]){s.batch, s.q_heads, s.q_len, s.k_len});
        s.first = (uint64_t)wefti_random_place(&run->random, k->node, &scores, strides);
    }
    return s;
}

/* The kernels trust the rows. */
static weft_status check_rows(const attention_kernel *k, const wefti_attention_shape *s) {
    for (int64_t b = 0; s->by_row && b < s->batch; b++)
        WEFT_REQUIRE(s->positions[2 * b] >= 0 && s->positions[2 * b] < k->rows, WEFT_E_ARG,
                     "attention: row %d of a cache of %lld", s->positions[2 * b],
                     (long long)k->rows);
    return WEFT_OK;
}

static weft_status run_attention(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const attention_kernel *k = (const attention_kernel *)kernel;
    wefti_attention_shape s = shape_now(k, run, in);
    wefti_attention_args a = {.shape = s,
                              .q = {in[0], k->q},
                              .k = {in[1], k->k},
                              .v = {in[2], k->v},
                              .q_strides = dense(s.q_len, s.q_heads, s.dim),
                              .k_strides = dense(s.k_len, s.kv_heads, s.dim),
                              .v_strides = dense(s.k_len, s.kv_heads, s.dim),
                              .o = {out[0], k->o},
                              .o_strides = dense(s.q_len, s.q_heads, s.dim),
                              .lse = out[1],
                              .workspace = workspace};
    WEFT_TRY(check_rows(k, &s));
    k->kernels->attention(run->pool, &a);
    return WEFT_OK;
}

static weft_status run_attention_grad(const wefti_kernel *kernel, const wefti_run *run,
                                      const void *const *in, void *const *out, void *workspace) {
    const attention_kernel *k = (const attention_kernel *)kernel;
    wefti_attention_shape s = shape_now(k, run, in);
    wefti_attention_strides sq = dense(s.q_len, s.q_heads, s.dim),
                            sk = dense(s.k_len, s.kv_heads, s.dim);
    wefti_attention_backward_args a = {.shape = s,
                                       .q = {in[0], k->q},
                                       .k = {in[1], k->k},
                                       .v = {in[2], k->v},
                                       .o = {in[3], k->o},
                                       .d_o = {in[5], k->d_o},
                                       .q_strides = sq,
                                       .k_strides = sk,
                                       .v_strides = sk,
                                       .o_strides = sq,
                                       .do_strides = sq,
                                       .lse = in[4],
                                       .dq = {out[0], k->q},
                                       .dk = {out[1], k->k},
                                       .dv = {out[2], k->v},
                                       .dq_strides = sq,
                                       .dk_strides = sk,
                                       .dv_strides = sk,
                                       .workspace = workspace};
    k->kernels->attention_backward(run->pool, &a);
    return WEFT_OK;
}

static weft_status run_mask_grad(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const attention_kernel *k = (const attention_kernel *)kernel;
    wefti_attention_shape s = shape_now(k, run, in);
    wefti_attention_strides sq = dense(s.q_len, s.q_heads, s.dim),
                            sk = dense(s.k_len, s.kv_heads, s.dim);
    const weft_desc *mask = wefti_in(k->node, k->mask);
    wefti_attention_mask_args a = {.backward = {.shape = s,
                                                .q = {in[0], k->q},
                                                .k = {in[1], k->k},
                                                .v = {in[2], k->v},
                                                .o = {in[3], k->o},
                                                .d_o = {in[5], k->d_o},
                                                .q_strides = sq,
                                                .k_strides = sk,
                                                .v_strides = sk,
                                                .o_strides = sq,
                                                .do_strides = sq,
                                                .lse = in[4],
                                                .workspace = workspace},
                                   .d_mask = out[0],
                                   .batches = mask->shape[0],
                                   .heads = mask->shape[1]};
    k->kernels->attention_mask_backward(run->pool, &a);
    return WEFT_OK;
}

/* Computes products in f32, unless products of bf16 operands may be rounded. */
static const wefti_kernels *kernels_for(const wefti_prepare *options) {
    wefti_isa isa = wefti_isa_best();
    if (isa > WEFTI_ISA_AVX512 && options->bf16 != WEFTI_BF16_NATIVE) isa = WEFTI_ISA_AVX512;
    return wefti_kernels_of(isa);
}

/* The setup that forward and backward share: operands q, k, v come first; mask and position have
 * the given numbers. */
static weft_status common(const weft_node *n, const wefti_prepare *options, int mask, int position,
                          const char *label,
                          weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                             const void *const *, void *const *, void *),
                          attention_kernel **out) {
    const weft_desc *q = wefti_in(n, 0), *key = wefti_in(n, 1), *v = wefti_in(n, 2);
    const weft_desc *m = n->inputs > mask ? wefti_in(n, mask) : NULL;
    const weft_desc *p = n->inputs > position ? wefti_in(n, position) : NULL;
    if (!wefti_cpu_is_real(q) || !wefti_cpu_is_real(key) || !wefti_cpu_is_real(v) ||
        q->shape[3] > 256 || (p && p->dtype != WEFT_I32))
        return WEFT_E_NO_IMPL;
    if (m && m->dtype != WEFT_F32 && m->dtype != WEFT_BF16 && m->dtype != WEFT_BOOL)
        return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(attention_kernel), label, run, &base));
    attention_kernel *k = (attention_kernel *)base;
    wefti_attention_shape *s = &k->shape;
    k->kernels = kernels_for(options);
    k->node = n;
    s->batch = q->shape[0];
    s->q_len = q->shape[1];
    s->q_heads = q->shape[2];
    s->dim = q->shape[3];
    s->k_len = key->shape[1];
    s->kv_heads = key->shape[2];
    s->scale = (float)wefti_attr_float(n, WEFTI_AT_scale);
    if (s->scale == 0.0f) s->scale = (float)(1.0 / sqrt((double)s->dim));
    s->causal = wefti_attr_int(n, WEFTI_AT_causal) != 0;
    s->dropout = wefti_cpu_rate(wefti_attr_float(n, WEFTI_AT_dropout));
    s->heads_total = s->q_heads;
    s->q_total = s->q_len;
    s->k_total = s->k_len;
    const wefti_ints *whole = wefti_attr_ints(n, WEFTI_AT_whole),
                     *begin = wefti_attr_ints(n, WEFTI_AT_begin);
    if (whole->count == 4) {
        s->heads_total = whole->v[1];
        s->q_total = whole->v[2];
        s->k_total = whole->v[3];
        k->piece_offset = begin->v[2] - begin->v[3];
    }
    s->window = wefti_attr_int(n, WEFTI_AT_window);
    /* the ends are aligned, so the window hides nothing */
    if (!p && s->window >= s->k_total) s->window = 0;
    s->q_offset = s->k_total - s->q_total + k->piece_offset;
    k->mask = m ? mask : -1;
    k->position = p ? position : -1;
    /* One number is the position of all samples: kernels need not look it up for each. */
    s->by_sample = p && weft_desc_elems(p) != 1;
    s->by_row = p && p->rank == 2;
    k->rows = key->shape[0];
    if (m) {
        s->mask.dtype = m->dtype;
        int64_t strides[WEFT_MAX_RANK];
        wefti_strides(m, strides);
        s->mask_batch = m->shape[0] == 1 ? 0 : strides[0];
        s->mask_head = m->shape[1] == 1 ? 0 : strides[1];
        s->mask_row = m->shape[2] == 1 ? 0 : strides[2];
        if (m->shape[3] != s->k_len) {
            wefti_kernel_destroy(base);
            return WEFT_E_NO_IMPL;
        }
    }
    k->q = q->dtype;
    k->k = key->dtype;
    k->v = v->dtype;
    s->bf16 = k->q == WEFT_BF16 && k->k == WEFT_BF16 && k->v == WEFT_BF16;
    *out = k;
    return WEFT_OK;
}

weft_status wefti_cpu_attention(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    if (options->accumulate) return WEFT_E_NO_IMPL;
    attention_kernel *k;
    weft_status status = common(n, options, 3, 4, "attention", run_attention, &k);
    if (status < 0) return status;
    k->o = wefti_out(n, 0)->dtype;
    k->shape.bf16 &= k->o == WEFT_BF16;
    k->base.workspace_bytes = (int64_t)wefti_attention_workspace_bytes(&k->shape, options->threads);
    *out = &k->base;
    return WEFT_OK;
}

/* (q, k, v, o, lse, do, mask?, position?) -> dq, dk, dv; or, with a mask, -> its gradient */
static weft_status attention_grad(const weft_node *n, const wefti_prepare *options, bool of_mask,
                                  wefti_kernel **out) {
    if (of_mask && wefti_out(n, 0)->dtype != WEFT_F32) return WEFT_E_NO_IMPL;
    if (options->accumulate || !wefti_cpu_is_real(wefti_in(n, 3)) ||
        !wefti_cpu_is_f32(wefti_in(n, 4)) || !wefti_cpu_is_real(wefti_in(n, 5)))
        return WEFT_E_NO_IMPL;
    attention_kernel *k;
    if (n->inputs > 7 && wefti_in(n, 7) && wefti_in(n, 7)->rank > 0) return WEFT_E_NO_IMPL;
    weft_status status = common(n, options, 6, 7, of_mask ? "attention mask" : "attention",
                                of_mask ? run_mask_grad : run_attention_grad, &k);
    if (status < 0) return status;
    k->o = wefti_in(n, 3)->dtype;
    k->d_o = wefti_in(n, 5)->dtype;
    k->shape.bf16 &= k->o == WEFT_BF16 && k->d_o == WEFT_BF16;
    k->base.workspace_bytes =
        (int64_t)wefti_attention_backward_workspace_bytes(&k->shape, options->threads);
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_attention_grad, attention_grad, false)
WEFTI_CPU_FORM(wefti_cpu_attention_mask_grad, attention_grad, true)

/* ---- rope(x, position?), rope_grad(dy, position?) ---- */

typedef struct rope_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    int64_t batch, seq, heads, dim; /* samples with positions of their own: one sequence, batch 1 */
    int64_t offset;                 /* position of row 0 of this piece of the sequence */
    int64_t length;                 /* rows of a sample */
    int64_t stride; /* operand `position`: numbers of a sample, of which the last is the position */
    weft_dtype x, y;
    bool inverse, has_position;
    double *frequencies; /* [dim / 2] */
    float *table;        /* without a position: cos, then sin, [seq, dim / 2] each */
} rope_kernel;

/* Tables hold only the kernel's own rows. A table from 0 would be long if a cache or a split
 * sequence begins at a high position. */
typedef struct rope_tables {
    const rope_kernel *k;
    const int32_t *positions; /* NULL: 0 */
    float *cos, *sin;
} rope_tables;

enum { TABLE_ROWS = 32 }; /* of a task: 10 us of sines and cosines for heads of 64 */

static void fill_rows(void *context, int64_t task, int thread) {
    const rope_tables *t = context;
    const rope_kernel *k = t->k;
    const int64_t half = k->dim / 2, first = task * TABLE_ROWS;
    (void)thread;
    for (int64_t row = first; row < first + TABLE_ROWS && row < k->seq; row++) {
        const int64_t at = row / k->length * k->stride + k->stride - 1;
        const int64_t start = t->positions ? t->positions[at] : 0;
        wefti_rope_row(start + k->offset + row % k->length, half, k->frequencies,
                       t->cos + row * half, t->sin + row * half);
    }
}

static rope_tables fill_tables(const rope_kernel *k, wefti_pool *pool, const int32_t *positions,
                               float *table) {
    rope_tables t = {k, positions, table, table + k->seq * (k->dim / 2)};
    wefti_pool_run(pool, (k->seq + TABLE_ROWS - 1) / TABLE_ROWS, fill_rows, &t);
    return t;
}

static weft_status run_rope(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const rope_kernel *k = (const rope_kernel *)kernel;
    const rope_tables t = k->has_position
                              ? fill_tables(k, run->pool, in[1], workspace)
                              : (rope_tables){k, NULL, k->table, k->table + k->seq * (k->dim / 2)};
    wefti_rope_args a = {.x = {in[0], k->x},
                         .y = {out[0], k->y},
                         .batch = k->batch,
                         .seq = k->seq,
                         .heads = k->heads,
                         .dim = k->dim,
                         .rotary = k->dim,
                         .x_strides = {k->seq * k->heads * k->dim, k->heads * k->dim, k->dim},
                         .y_strides = {k->seq * k->heads * k->dim, k->heads * k->dim, k->dim},
                         .cos = t.cos,
                         .sin = t.sin,
                         .inverse = k->inverse};
    k->kernels->rope(run->pool, &a);
    return WEFT_OK;
}

static void destroy_rope(wefti_kernel *kernel) {
    wefti_free(((rope_kernel *)kernel)->frequencies);
    wefti_free(((rope_kernel *)kernel)->table);
    wefti_free(kernel);
}

static weft_rope_scaling scaling_of(const weft_node *n) {
    return (weft_rope_scaling){.factor = wefti_attr_float(n, WEFTI_AT_factor),
                               .low_freq_factor = wefti_attr_float(n, WEFTI_AT_low),
                               .high_freq_factor = wefti_attr_float(n, WEFTI_AT_high),
                               .original_context = wefti_attr_int(n, WEFTI_AT_original),
                               .beta_fast = wefti_attr_float(n, WEFTI_AT_fast),
                               .beta_slow = wefti_attr_float(n, WEFTI_AT_slow),
                               .exact = wefti_attr_int(n, WEFTI_AT_exact) != 0};
}

/* Memory of the kernel's own. */
static weft_status keep_tables(rope_kernel *k, const weft_node *n) {
    const weft_rope_scaling scaling = scaling_of(n);
    const int64_t half = k->dim / 2;
    k->frequencies = wefti_alloc((size_t)half * sizeof *k->frequencies);
    if (!k->has_position) k->table = wefti_alloc((size_t)(k->seq * half) * 8);
    WEFT_REQUIRE(k->frequencies && (k->has_position || k->table), WEFT_E_NOMEM,
                 "no memory for the rotary table");
    wefti_rope_frequencies(k->dim, wefti_attr_float(n, WEFTI_AT_theta), &scaling, k->frequencies);
    if (!k->has_position) (void)fill_tables(k, NULL, NULL, k->table);
    return WEFT_OK;
}

static weft_status rope(const weft_node *n, const wefti_prepare *options, bool inverse,
                        wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *p = n->inputs > 1 ? wefti_in(n, 1) : NULL;
    if (options->accumulate || !wefti_cpu_is_real(x) || (p && p->dtype != WEFT_I32) ||
        x->shape[3] % 2)
        return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(rope_kernel), "rope", run_rope, &base));
    rope_kernel *k = (rope_kernel *)base;
    base->destroy = destroy_rope;
    k->kernels = wefti_kernels_best();
    const bool by_sample = p && p->rank > 0;
    k->batch = by_sample ? 1 : x->shape[0];
    k->seq = by_sample ? x->shape[0] * x->shape[1] : x->shape[1];
    k->length = x->shape[1];
    k->stride = p && p->rank == 2 ? 2 : 1;
    k->heads = x->shape[2];
    k->dim = x->shape[3];
    k->offset = wefti_attr_int(n, WEFTI_AT_offset);
    k->x = x->dtype;
    k->y = wefti_out(n, 0)->dtype;
    k->inverse = inverse;
    k->has_position = p != NULL;
    const int64_t half = k->dim / 2, table_bytes = k->seq * half * 8;
    base->bytes += half * (int64_t)sizeof *k->frequencies + (p ? 0 : table_bytes);
    base->workspace_bytes = p ? table_bytes : 0;
    weft_status status = options->dry ? WEFT_OK : keep_tables(k, n);
    if (status < 0) {
        wefti_kernel_destroy(base);
        return status;
    }
    base->in_place = 0;
    *out = base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_rope, rope, false)
WEFTI_CPU_FORM(wefti_cpu_rope_grad, rope, true)

/* ---- cache_write(cache, x, position), in place ---- */

typedef struct cache_kernel {
    wefti_kernel base;
    int64_t batch, length, seq, row_bytes; /* batch: of x */
    int64_t samples;                       /* of the cache */
    bool by_sample, by_row; /* each sample has a position; and the number of its own in the cache */
} cache_kernel;

static weft_status run_cache(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const cache_kernel *k = (const cache_kernel *)kernel;
    (void)run;
    (void)workspace;
    const int32_t *position = in[2];
    for (int64_t b = 0; b < k->batch; b++) {
        const int64_t at = position[k->by_row ? 2 * b + 1 : k->by_sample ? b : 0];
        const int64_t to = k->by_row ? position[2 * b] : b;
        WEFT_REQUIRE(at >= 0 && at + k->seq <= k->length, WEFT_E_ARG,
                     "cache_write: rows [%lld, %lld) of a cache of %lld", (long long)at,
                     (long long)(at + k->seq), (long long)k->length);
        WEFT_REQUIRE(to >= 0 && to < k->samples, WEFT_E_ARG,
                     "cache_write: sample %lld of a cache of %lld", (long long)to,
                     (long long)k->samples);
        memcpy((unsigned char *)out[0] + (to * k->length + at) * k->row_bytes,
               (const unsigned char *)in[1] + b * k->seq * k->row_bytes,
               (size_t)(k->seq * k->row_bytes));
    }
    return WEFT_OK;
}

weft_status wefti_cpu_cache_write(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    const weft_desc *cache = wefti_in(n, 0), *x = wefti_in(n, 1);
    if (options->accumulate || cache->dtype != x->dtype || wefti_in(n, 2)->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(cache_kernel), "cache", run_cache, &base));
    cache_kernel *k = (cache_kernel *)base;
    k->batch = x->shape[0];
    k->samples = cache->shape[0];
    k->length = cache->shape[1];
    k->seq = x->shape[1];
    k->by_sample = wefti_in(n, 2)->rank > 0;
    k->by_row = wefti_in(n, 2)->rank == 2;
    k->row_bytes = wefti_cpu_span(cache, 2, cache->rank) * (int64_t)weft_dtype_bytes(cache->dtype);
    *out = base;
    return WEFT_OK;
}
