/* Pooling over images, and its gradients. */
#include "backend/cpu/ops/ops.h"
#include "base/number.h"
#include "graph/graph.h"

typedef struct pool_op {
    wefti_kernel base;
    const wefti_kernels *kernels;
    weft_dtype x, y;
    bool max; /* the maxima, otherwise the means */
    wefti_pool2d_args args;
    int64_t y_bytes; /* scratch of the gradient of maxima: the maxima, before their places */
} pool_op;

static weft_status run_pool(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const pool_op *k = (const pool_op *)kernel;
    (void)workspace;
    wefti_pool2d_args a = k->args;
    a.x = (wefti_src){in[0], k->x};
    a.y = (wefti_dst){out[0], k->y};
    if (k->max)
        k->kernels->max_pool(run->pool, &a);
    else
        k->kernels->avg_pool(run->pool, &a);
    return WEFT_OK;
}

/* max_pool2d_grad(x, dy): finds the maxima again, then adds their gradients.
 * avg_pool2d_grad(dy). */
static weft_status run_pool_grad(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const pool_op *k = (const pool_op *)kernel;
    wefti_pool2d_args a = k->args;
    if (k->max) {
        unsigned char *y = workspace;
        a.indices = (int32_t *)(void *)(y + k->y_bytes);
        a.x = (wefti_src){in[0], k->x};
        a.y = (wefti_dst){y, k->y};
        k->kernels->max_pool(run->pool, &a);
    }
    a.dy = (wefti_src){in[k->max ? 1 : 0], k->y};
    a.dx = (wefti_dst){out[0], k->x};
    if (k->max)
        k->kernels->max_pool_backward(run->pool, &a);
    else
        k->kernels->avg_pool_backward(run->pool, &a);
    return WEFT_OK;
}

static weft_status pool_kernel(const weft_node *n, bool max, const weft_desc *x, const weft_desc *y,
                               weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                  const void *const *, void *const *, void *),
                               pool_op **out) {
    if (!wefti_cpu_is_real(x) || !wefti_cpu_is_real(y) || x->rank != 4) return WEFT_E_NO_IMPL;
    const wefti_ints *kernel = wefti_attr_ints(n, WEFTI_AT_kernel),
                     *stride = wefti_attr_ints(n, WEFTI_AT_stride),
                     *padding = wefti_attr_ints(n, WEFTI_AT_padding);
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(pool_op), "pool", run, &base));
    pool_op *k = (pool_op *)base;
    k->kernels = wefti_kernels_best();
    k->args = (wefti_pool2d_args){.planes = x->shape[0] * x->shape[1],
                                  .height = x->shape[2],
                                  .width = x->shape[3],
                                  .out_height = y->shape[2],
                                  .out_width = y->shape[3],
                                  .kernel_h = kernel->v[0],
                                  .kernel_w = kernel->v[1],
                                  .stride_h = stride->v[0],
                                  .stride_w = stride->v[1],
                                  .pad_h = padding->v[0],
                                  .pad_w = padding->v[1],
                                  .dilation_h = 1,
                                  .dilation_w = 1};
    k->x = x->dtype;
    k->y = y->dtype;
    k->max = max;
    *out = k;
    return WEFT_OK;
}

static weft_status pool(const weft_node *n, const wefti_prepare *options, bool max,
                        wefti_kernel **out) {
    pool_op *k;
    if (options->accumulate) return WEFT_E_NO_IMPL;
    weft_status status = pool_kernel(n, max, wefti_in(n, 0), wefti_out(n, 0), run_pool, &k);
    if (status < 0) return status;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_max_pool, pool, true)
WEFTI_CPU_FORM(wefti_cpu_avg_pool, pool, false)

static weft_status pool_grad(const weft_node *n, const wefti_prepare *options, bool max,
                             wefti_kernel **out) {
    pool_op *k;
    const weft_desc *dy = wefti_in(n, max ? 1 : 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    weft_status status = pool_kernel(n, max, wefti_out(n, 0), dy, run_pool_grad, &k);
    if (status < 0) return status;
    int64_t elems = weft_desc_elems(dy);
    k->y_bytes = wefti_aligned(elems * (int64_t)weft_dtype_bytes(dy->dtype));
    if (max) k->base.workspace_bytes = k->y_bytes + elems * 4;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_max_pool_grad, pool_grad, true)
WEFTI_CPU_FORM(wefti_cpu_avg_pool_grad, pool_grad, false)
