/* Convolutions: chooses the algorithm for each problem and runs it as a kernel. See conv.h. */
#include "backend/cpu/conv/conv.h"

#include <string.h>

#include "backend/cpu/ops/ops.h"

typedef struct conv_kernel {
    wefti_kernel base;
    wefti_conv_gemm *gemm; /* one of the two */
    wefti_onednn_conv *onednn;
    wefti_conv_kind kind;
    bool has_bias;
} conv_kernel;

static weft_status run_conv(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const conv_kernel *k = (const conv_kernel *)kernel;
    wefti_conv_args a = {0};
    /* Collect the addresses of the operands; the algorithms write only the result. */
    switch (k->kind) {
    case WEFTI_CONV_FORWARD:
        a = (wefti_conv_args){(void *)(uintptr_t)in[0], (void *)(uintptr_t)in[1], out[0],
                              k->has_bias ? in[2] : NULL};
        break;
    case WEFTI_CONV_GRAD_INPUT:
        a = (wefti_conv_args){out[0], (void *)(uintptr_t)in[1], (void *)(uintptr_t)in[0], NULL};
        break;
    case WEFTI_CONV_GRAD_WEIGHT:
        a = (wefti_conv_args){(void *)(uintptr_t)in[0], out[0], (void *)(uintptr_t)in[1], NULL};
        break;
    }
    if (k->gemm)
        wefti_conv_gemm_run(k->gemm, &a, workspace, run->pool);
    else
        return wefti_onednn_conv_run(k->onednn, &a, workspace, run->pool);
    return WEFT_OK;
}

static void destroy_conv(wefti_kernel *kernel) {
    conv_kernel *k = (conv_kernel *)kernel;
    wefti_conv_gemm_destroy(k->gemm);
    wefti_onednn_conv_destroy(k->onednn);
    wefti_free(k);
}

/* The numbers of a node. The caller passes its x, w and y, or their gradients. */
static wefti_conv problem(const weft_node *n, wefti_conv_kind kind, const weft_desc *x,
                          const weft_desc *w, const weft_desc *y) {
    const wefti_ints *stride = wefti_attr_ints(n, WEFTI_AT_stride);
    const wefti_ints *padding = wefti_attr_ints(n, WEFTI_AT_padding);
    const wefti_ints *dilation = wefti_attr_ints(n, WEFTI_AT_dilation);
    wefti_conv p = {.kind = kind,
                    .spatial = x->rank - 2,
                    .batch = x->shape[0],
                    .groups = wefti_attr_int(n, WEFTI_AT_groups),
                    .in = x->shape[1],
                    .out = y->shape[1],
                    .x_dtype = x->dtype,
                    .w_dtype = w->dtype,
                    .y_dtype = y->dtype};
    for (int s = 0; s < WEFTI_CONV_SPATIAL; s++) {
        int from = s - (WEFTI_CONV_SPATIAL - p.spatial);
        bool real = from >= 0;
        p.x[s] = real ? x->shape[2 + from] : 1;
        p.k[s] = real ? w->shape[2 + from] : 1;
        p.y[s] = real ? y->shape[2 + from] : 1;
        p.stride[s] = real ? stride->v[from] : 1;
        p.padding[s] = real ? padding->v[from] : 0;
        p.dilation[s] = real ? dilation->v[from] : 1;
    }
    return p;
}

static weft_status conv_kernel_of(wefti_conv *p, const wefti_prepare *options, wefti_kernel **out) {
    wefti_conv_gemm *gemm = NULL;
    wefti_onednn_conv *onednn = NULL;
    p->isa = wefti_cpu_isa(options);
    p->native_bf16 = options->bf16 == WEFTI_BF16_NATIVE && wefti_isa_best_has_bf16();
    p->sizes_only = options->anywhere; /* those of oneDNN depend on the processor */
    weft_status status = WEFT_E_NO_IMPL;
    if (!p->sizes_only && !wefti_conv_prefers_gemm(p))
        status = wefti_onednn_conv_create(p, options->threads, options->dry, &onednn);
    if (status == WEFT_E_NO_IMPL) status = wefti_conv_gemm_create(p, options->threads, &gemm);
    if (status == WEFT_E_NO_IMPL && !p->sizes_only && !onednn)
        status = wefti_onednn_conv_create(p, options->threads, options->dry, &onednn);
    if (status < 0) return status;
    wefti_kernel *base;
    status =
        wefti_cpu_kernel(sizeof(conv_kernel), gemm ? "conv gemm" : "conv onednn", run_conv, &base);
    if (status < 0) {
        wefti_conv_gemm_destroy(gemm);
        wefti_onednn_conv_destroy(onednn);
        return status;
    }
    conv_kernel *k = (conv_kernel *)base;
    k->gemm = gemm;
    k->onednn = onednn;
    k->kind = p->kind;
    k->has_bias = p->has_bias;
    base->destroy = destroy_conv;
    base->bytes += wefti_conv_gemm_bytes(gemm) + wefti_onednn_conv_bytes(onednn);
    base->workspace_bytes =
        gemm ? wefti_conv_gemm_workspace_bytes(gemm) : wefti_onednn_conv_workspace_bytes(onednn);
    *out = base;
    return WEFT_OK;
}

static bool all_real(const weft_desc *x, const weft_desc *w, const weft_desc *y) {
    return wefti_cpu_is_real(x) && wefti_cpu_is_real(w) && wefti_cpu_is_real(y) &&
           weft_desc_elems(x) && weft_desc_elems(w) && weft_desc_elems(y);
}

weft_status wefti_cpu_conv(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *y = wefti_out(n, 0);
    const weft_desc *bias = wefti_in(n, 2);
    if (options->accumulate || !all_real(x, w, y)) return WEFT_E_NO_IMPL;
    if (bias && bias->dtype != WEFT_F32) return WEFT_E_NO_IMPL;
    wefti_conv p = problem(n, WEFTI_CONV_FORWARD, x, w, y);
    p.has_bias = bias != NULL;
    return conv_kernel_of(&p, options, out);
}

weft_status wefti_cpu_conv_grad_input(const weft_node *n, const wefti_prepare *options,
                                      wefti_kernel **out) {
    const weft_desc *dy = wefti_in(n, 0), *w = wefti_in(n, 1), *dx = wefti_out(n, 0);
    if (options->accumulate || !all_real(dx, w, dy)) return WEFT_E_NO_IMPL;
    wefti_conv p = problem(n, WEFTI_CONV_GRAD_INPUT, dx, w, dy);
    return conv_kernel_of(&p, options, out);
}

weft_status wefti_cpu_conv_grad_weight(const weft_node *n, const wefti_prepare *options,
                                       wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1), *dw = wefti_out(n, 0);
    if (!all_real(x, dw, dy)) return WEFT_E_NO_IMPL;
    wefti_conv p = problem(n, WEFTI_CONV_GRAD_WEIGHT, x, dw, dy);
    p.accumulate = options->accumulate != 0;
    return conv_kernel_of(&p, options, out);
}
