/* linear_cross_entropy: the loss head, forward and backward, a chunk of rows at a time. Only one
 * chunk's logits exist at any time. Per chunk:
 *   logits = x w + bias
 *   loss and dlogits in one pass
 *   dx = dlogits w^T
 *   dw += x^T dlogits
 *   dbias += the column sums of dlogits */
#include "backend/cpu/ops/ops.h"
#include "backend/cpu/gemm/gemm.h"
#include "base/number.h"

/* Most logits of a chunk: CHUNK_LOGITS is 128 MiB in f32. With fast products (NATIVE), larger
 * chunks pay off, because the weight is packed less often. */
enum { CHUNK_LOGITS = 32 << 20, CHUNK_LOGITS_NATIVE = 64 << 20 };

/* The products of one chunk size. */
typedef struct chunk {
    int64_t rows;
    wefti_gemm logits, dx, dw_first, dw_next;
} chunk;

typedef struct head_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    chunk whole, rest; /* rest.rows 0: chunks divide the rows */
    int64_t rows, k, vocab, ignore;
    float smoothing;
    weft_dtype x_dtype;
    bool transposed, has_count, has_bias, add_bias; /* add_bias: add to the old bias gradient */
    bool native;                                    /* multiply in bf16, with f32 logits */
    bool narrow;                                    /* logits whose gradients are stored in bf16 */
    int64_t stride; /* elements from row to row of logits; rows do not share cache lines */
    /* bytes of the workspace: logits, row losses, the products' workspace */
    int64_t logits_bytes, loss_bytes;
} head_kernel;

/* The stride is whole cache lines but not a multiple of a page, because products read the same
 * columns of many rows together. */
static int64_t row_stride(int64_t vocab) {
    int64_t stride = (vocab + 31) / 32 * 32;
    return stride % 1024 ? stride : stride + 32;
}

static int64_t counted(const int32_t *targets, int64_t rows, int64_t ignore) {
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) count += targets[r] != ignore;
    return count;
}

static weft_status run_head(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const head_kernel *h = (const head_kernel *)kernel;
    const unsigned char *x = in[0];
    const int32_t *targets = in[2];
    float dloss = ((const float *)in[3])[0];
    unsigned char *dx = out[1], *logits = workspace;
    float *loss = (float *)(void *)(logits + h->logits_bytes);
    void *scratch = logits + h->logits_bytes + h->loss_bytes;
    double count = h->has_count ? (double)((const float *)in[4])[0]
                                : (double)counted(targets, h->rows, h->ignore);
    float scale = count > 0 ? dloss / (float)count : 0.0f;
    int64_t row_bytes = h->k * (int64_t)weft_dtype_bytes(h->x_dtype);
    for (int64_t r = 0; r < h->rows;) {
        const chunk *c = h->rows - r >= h->whole.rows ? &h->whole : &h->rest;
        const unsigned char *xc = x + r * row_bytes;
        wefti_gemm_args product = {
            .a = xc, .b = in[1], .c = logits, .bias = h->has_bias ? in[5] : NULL};
        wefti_gemm_run(&c->logits, &product, scratch, run->pool);
        wefti_cross_entropy_fused_args ce = {
            .logits = {logits, WEFT_F32},
            .targets = {targets + r, WEFT_I32},
            .rows = c->rows,
            .vocab = h->vocab,
            .stride = h->stride,
            .narrow = h->narrow,
            .ignore_index = h->ignore,
            .smoothing = h->smoothing,
            .scale = scale,
            .loss = loss + r,
        };
        h->kernels->cross_entropy_fused(run->pool, &ce);
        wefti_gemm_run(&c->dx, &(wefti_gemm_args){.a = logits, .b = in[1], .c = dx + r * row_bytes},
                       scratch, run->pool);
        wefti_gemm_args dw = {.a = h->transposed ? (const void *)logits : (const void *)xc,
                              .b = h->transposed ? (const void *)xc : (const void *)logits,
                              .c = out[2]};
        wefti_gemm_run(r ? &c->dw_next : &c->dw_first, &dw, scratch, run->pool);
        if (h->has_bias)
            h->kernels->reduce(run->pool, &(wefti_reduce_args){.op = WEFTI_FOLD_SUM,
                                                               .x = {logits, WEFT_F32},
                                                               .y = {out[3], WEFT_F32},
                                                               .outer = 1,
                                                               .reduce = c->rows,
                                                               .inner = h->vocab,
                                                               .accumulate = r || h->add_bias,
                                                               .workspace = scratch});
        r += c->rows;
    }
    double sum = 0;
    for (int64_t r = 0; r < h->rows; r++) sum += (double)loss[r];
    ((float *)out[0])[0] = count > 0 ? (float)(sum / count) : 0.0f;
    return WEFT_OK;
}

static weft_status prepare_chunk(const head_kernel *h, weft_dtype w_dtype, int64_t rows,
                                 bool accumulate, const wefti_prepare *options, chunk *out,
                                 int64_t *bytes) {
    bool t = h->transposed;
    const wefti_isa isa = wefti_cpu_isa(options);
    out->rows = rows;
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, rows, h->vocab, h->k);
    s.a = wefti_gemm_rows(h->x_dtype, h->k);
    s.b = t ? wefti_gemm_transposed(w_dtype, h->k) : wefti_gemm_rows(w_dtype, h->vocab);
    s.c.row_stride = h->stride;
    s.has_bias = h->has_bias;
    s.bf16 = h->native;
    WEFT_TRY(wefti_gemm_prepare(&s, isa, &out->logits));
    s = wefti_gemm_spec_of(h->x_dtype, rows, h->k, h->vocab);
    const weft_dtype slope = h->narrow ? WEFT_BF16 : WEFT_F32;
    const int64_t line = h->narrow ? 2 * h->stride : h->stride;
    s.a = wefti_gemm_rows(slope, line);
    s.b = t ? wefti_gemm_rows(w_dtype, h->k) : wefti_gemm_transposed(w_dtype, h->vocab);
    s.bf16 = h->native;
    WEFT_TRY(wefti_gemm_prepare(&s, isa, &out->dx));
    s = wefti_gemm_spec_of(WEFT_F32, t ? h->vocab : h->k, t ? h->k : h->vocab, rows);
    s.a = t ? wefti_gemm_transposed(slope, line) : wefti_gemm_transposed(h->x_dtype, h->k);
    s.b = t ? wefti_gemm_rows(h->x_dtype, h->k) : wefti_gemm_rows(slope, line);
    s.bf16 = h->native;
    s.accumulate = accumulate;
    WEFT_TRY(wefti_gemm_prepare(&s, isa, &out->dw_first));
    s.accumulate = true;
    WEFT_TRY(wefti_gemm_prepare(&s, isa, &out->dw_next));
    const wefti_gemm *all[] = {&out->logits, &out->dx, &out->dw_first, &out->dw_next};
    for (int i = 0; i < 4; i++) {
        int64_t need = wefti_gemm_workspace_bytes(all[i], options->threads);
        if (need > *bytes) *bytes = need;
    }
    int64_t sums = h->has_bias ? (int64_t)wefti_reduce_workspace_bytes(1, rows, h->vocab) : 0;
    if (sums > *bytes) *bytes = sums;
    return WEFT_OK;
}

weft_status wefti_cpu_linear_cross_entropy(const weft_node *n, const wefti_prepare *options,
                                           wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *targets = wefti_in(n, 2);
    const weft_desc *bias = wefti_in(n, 5);
    /* Only the gradients of weight and bias can add to old values. */
    if (options->accumulate & ~(bias ? 12u : 4u)) return WEFT_E_NO_IMPL;
    if (!wefti_cpu_is_real(x) || !wefti_cpu_is_real(w) || targets->dtype != WEFT_I32 ||
        wefti_in(n, 3)->dtype != WEFT_F32 || !wefti_cpu_is_f32(wefti_in(n, 4)) ||
        !wefti_cpu_is_f32(bias) || wefti_out(n, 2)->dtype != WEFT_F32)
        return WEFT_E_NO_IMPL;
    const bool native =
        options->bf16 == WEFTI_BF16_NATIVE && x->dtype == WEFT_BF16 && wefti_isa_best_has_bf16();
    wefti_kernel *k;
    WEFT_TRY(wefti_cpu_kernel(sizeof(head_kernel), native ? "loss head bf16" : "loss head",
                              run_head, &k));
    head_kernel *h = (head_kernel *)k;
    h->kernels = wefti_kernels_best();
    h->rows = wefti_cpu_span(x, 0, x->rank - 1);
    h->k = x->shape[x->rank - 1];
    h->transposed = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    h->native = native;
    h->has_count = wefti_in(n, 4) != NULL;
    h->has_bias = bias != NULL;
    h->add_bias = (options->accumulate & 8u) != 0;
    h->vocab = h->transposed ? w->shape[0] : wefti_cpu_span(w, 1, w->rank);
    /* the sum over rows reads dense rows */
    h->stride = h->has_bias ? h->vocab : row_stride(h->vocab);
    h->narrow = native && !h->has_bias;
    h->ignore = wefti_attr_int(n, WEFTI_AT_ignore);
    h->smoothing = (float)wefti_attr_float(n, WEFTI_AT_smoothing);
    h->x_dtype = x->dtype;
    const int64_t most = native ? CHUNK_LOGITS_NATIVE : CHUNK_LOGITS;
    int64_t chunks = (h->rows * h->vocab + most - 1) / most;
    int64_t rows = chunks > 1 ? (h->rows + chunks - 1) / chunks : h->rows, scratch = 0;
    if (rows < 1) rows = 1;
    bool add = (options->accumulate & 4u) != 0;
    weft_status status = prepare_chunk(h, w->dtype, rows, add, options, &h->whole, &scratch);
    if (status == WEFT_OK && h->rows % rows)
        status = prepare_chunk(h, w->dtype, h->rows % rows, add, options, &h->rest, &scratch);
    if (status < 0 || h->rows == 0) {
        wefti_kernel_destroy(k);
        return status < 0 ? status : WEFT_E_NO_IMPL;
    }
    h->logits_bytes = wefti_aligned(rows * h->stride * 4);
    h->loss_bytes = wefti_aligned(h->rows * 4);
    k->workspace_bytes = h->logits_bytes + h->loss_bytes + scratch;
    *out = k;
    return WEFT_OK;
}
