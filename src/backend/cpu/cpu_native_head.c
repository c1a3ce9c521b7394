/* The loss head in the processor's own bf16 arithmetic: cpu_loss_head.c with products through
 * oneDNN. dlogits are rounded to bf16 for the two products that read them, as a mixed-precision run
 * stores every activation. */
#include "backend/cpu/cpu_native.h"

enum { CHUNK_LOGITS = 32 << 20, FEWEST_ROWS = 32 };

typedef struct native_head {
    wefti_kernel base;
    const wefti_kernels *kernels;
    wefti_native_product logits, dx, dw_first, dw_next;
    int64_t rows, chunk, k, vocab, ignore;
    float smoothing;
    bool transposed, has_count, has_bias, add_bias;
    int64_t logits_bytes, rounded_bytes, loss_bytes;
} native_head;

static weft_status run_head(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const native_head *h = (const native_head *)kernel;
    const unsigned char *x = in[0], *packed = in[1];
    const unsigned char *packed_dx = packed + wefti_native_packed_bytes(&h->logits);
    const int32_t *targets = in[2];
    unsigned char *logits = workspace, *rounded = logits + h->logits_bytes;
    float *loss = (float *)(void *)(rounded + h->rounded_bytes);
    void *scratch = rounded + h->rounded_bytes + h->loss_bytes;
    double count = 0;
    for (int64_t r = 0; r < h->rows; r++) count += targets[r] != h->ignore;
    if (h->has_count) count = (double)((const float *)in[4])[0];
    for (int64_t r = 0; r < h->rows; r += h->chunk) {
        const unsigned char *xc = x + r * h->k * 2;
        wefti_gemm_args product = {
            .a = xc, .b = packed, .c = logits, .bias = h->has_bias ? in[5] : NULL};
        WEFT_TRY(wefti_native_run(&h->logits, &product, scratch, run->pool));
        h->kernels->cross_entropy_fused(
            run->pool, &(wefti_cross_entropy_fused_args){
                           .logits = {logits, WEFT_F32},
                           .targets = {targets + r, WEFT_I32},
                           .rows = h->chunk,
                           .vocab = h->vocab,
                           .ignore_index = h->ignore,
                           .smoothing = h->smoothing,
                           .scale = count > 0 ? ((const float *)in[3])[0] / (float)count : 0.0f,
                           .loss = loss + r,
                       });
        if (h->has_bias)
            h->kernels->reduce(run->pool, &(wefti_reduce_args){.op = WEFTI_REDUCE_SUM,
                                                               .x = {logits, WEFT_F32},
                                                               .y = {out[3], WEFT_F32},
                                                               .outer = 1,
                                                               .reduce = h->chunk,
                                                               .inner = h->vocab,
                                                               .accumulate = r || h->add_bias,
                                                               .workspace = scratch});
        h->kernels->convert(run->pool, &(wefti_convert_args){.x = {logits, WEFT_F32},
                                                             .y = {rounded, WEFT_BF16},
                                                             .elements = h->chunk * h->vocab});
        wefti_gemm_args dx = {
            .a = rounded, .b = packed_dx, .c = (unsigned char *)out[1] + r * h->k * 2};
        WEFT_TRY(wefti_native_run(&h->dx, &dx, scratch, run->pool));
        wefti_gemm_args dw = {
            .a = h->transposed ? rounded : xc, .b = h->transposed ? xc : rounded, .c = out[2]};
        WEFT_TRY(wefti_native_run(r ? &h->dw_next : &h->dw_first, &dw, scratch, run->pool));
    }
    double sum = 0;
    for (int64_t r = 0; r < h->rows; r++) sum += (double)loss[r];
    ((float *)out[0])[0] = count > 0 ? (float)(sum / count) : 0.0f;
    return WEFT_OK;
}

static weft_status pack_head(const wefti_kernel *kernel, const wefti_run *run, const void *source,
                             void *packed) {
    const native_head *h = (const native_head *)kernel;
    WEFT_TRY(wefti_native_pack(&h->logits, source, packed, run->pool));
    return wefti_native_pack(
        &h->dx, source, (unsigned char *)packed + wefti_native_packed_bytes(&h->logits), run->pool);
}

static void destroy_head(wefti_kernel *kernel) {
    native_head *h = (native_head *)kernel;
    wefti_native_destroy(&h->logits);
    wefti_native_destroy(&h->dx);
    wefti_native_destroy(&h->dw_first);
    wefti_native_destroy(&h->dw_next);
    wefti_free(kernel);
}

static weft_status prepare_products(native_head *h, bool accumulate, int threads) {
    bool t = h->transposed;
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, h->chunk, h->vocab, h->k);
    s.a = wefti_gemm_rows(WEFT_BF16, h->k);
    s.b = t ? wefti_gemm_transposed(WEFT_F32, h->k) : wefti_gemm_rows(WEFT_F32, h->vocab);
    s.has_bias = h->has_bias;
    weft_status status = wefti_native_create(&s, true, threads, &h->logits);
    if (status < 0) return status;
    s = wefti_gemm_spec_of(WEFT_BF16, h->chunk, h->k, h->vocab);
    s.a = wefti_gemm_rows(WEFT_BF16, h->vocab);
    s.b = t ? wefti_gemm_rows(WEFT_F32, h->k) : wefti_gemm_transposed(WEFT_F32, h->vocab);
    status = wefti_native_create(&s, true, threads, &h->dx);
    if (status < 0) return status;
    s = wefti_gemm_spec_of(WEFT_F32, t ? h->vocab : h->k, t ? h->k : h->vocab, h->chunk);
    s.a = wefti_gemm_transposed(WEFT_BF16, t ? h->vocab : h->k);
    s.b = wefti_gemm_rows(WEFT_BF16, t ? h->k : h->vocab);
    s.accumulate = accumulate;
    status = wefti_native_create(&s, false, threads, &h->dw_first);
    if (status < 0) return status;
    s.accumulate = true;
    return wefti_native_create(&s, false, threads, &h->dw_next);
}

/* Rows of a chunk: the most that divide all rows and keep the logits small; a packed form fits one
 * size only. */
static int64_t chunk_rows(int64_t rows, int64_t vocab) {
    for (int64_t chunks = 1; chunks <= rows; chunks++)
        if (rows % chunks == 0 && rows / chunks * vocab <= CHUNK_LOGITS) return rows / chunks;
    return 0;
}

weft_status wefti_cpu_native_head(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1);
    int64_t rows = wefti_cpu_span(x, 0, x->rank - 1);
    bool t = wefti_attr_int(n, "transposed") != 0;
    int64_t vocab = t ? w->shape[0] : wefti_cpu_span(w, 1, w->rank),
            chunk = chunk_rows(rows, vocab);
    if (x->dtype != WEFT_BF16 || w->dtype != WEFT_F32 || wefti_out(n, 1)->dtype != WEFT_BF16 ||
        !options->pack_weights || !wefti_in_is_param(n, 1) || chunk < FEWEST_ROWS)
        return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(native_head), "loss head bf16", run_head, &base));
    native_head *h = (native_head *)base;
    base->destroy = destroy_head;
    h->kernels = wefti_kernels_best();
    h->rows = rows;
    h->chunk = chunk;
    h->k = x->shape[x->rank - 1];
    h->vocab = vocab;
    h->transposed = t;
    h->has_count = wefti_in(n, 4) != NULL;
    h->has_bias = wefti_in(n, 5) != NULL;
    h->add_bias = (options->accumulate & 8u) != 0;
    h->ignore = wefti_attr_int(n, "ignore");
    h->smoothing = (float)wefti_attr_float(n, "smoothing");
    weft_status status = prepare_products(h, (options->accumulate & 4u) != 0, options->threads);
    if (status < 0) {
        wefti_kernel_destroy(base);
        return status;
    }
    h->logits_bytes = (chunk * vocab * 4 + 63) & ~(int64_t)63;
    h->rounded_bytes = (chunk * vocab * 2 + 63) & ~(int64_t)63;
    h->loss_bytes = (rows * 4 + 63) & ~(int64_t)63;
    const wefti_native_product *all[] = {&h->logits, &h->dx, &h->dw_first, &h->dw_next};
    int64_t scratch = 0;
    for (int i = 0; i < 4; i++)
        if (wefti_native_workspace_bytes(all[i]) > scratch)
            scratch = wefti_native_workspace_bytes(all[i]);
    int64_t sums = h->has_bias ? (int64_t)wefti_reduce_workspace_bytes(1, chunk, vocab) : 0;
    if (sums > scratch) scratch = sums;
    base->workspace_bytes = h->logits_bytes + h->rounded_bytes + h->loss_bytes + scratch;
    base->packed_input = 1;
    base->packed_bytes = wefti_native_packed_bytes(&h->logits) + wefti_native_packed_bytes(&h->dx);
    base->packed_format = 0x4C48454144u ^ ((uint64_t)chunk << 40) ^ (uint64_t)h->has_bias; /* own */
    base->pack = pack_head;
    *out = base;
    return WEFT_OK;
}
