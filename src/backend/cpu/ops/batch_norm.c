/* Batch normalisation of [batch, channels, ...spatial]. */
#include <string.h>

#include "backend/cpu/ops/ops.h"

typedef struct batch_norm_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    int64_t n, channels, spatial;
    float eps;
    weft_dtype x, y, dy;
    bool train;
} batch_norm_kernel;

/* `dy`: operand number of the gradient of y; -1: the op has none. */
static weft_status new_kernel(const weft_node *n, const weft_desc *x, int dy,
                              weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                 const void *const *, void *const *, void *),
                              batch_norm_kernel **out) {
    if (!wefti_cpu_is_real(x)) return WEFT_E_NO_IMPL;
    for (int i = 1; i < n->inputs; i++)
        if (!(i == dy ? wefti_cpu_is_real(wefti_in(n, i)) : wefti_cpu_is_f32(wefti_in(n, i))))
            return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(batch_norm_kernel), "batch norm", run, &base));
    batch_norm_kernel *k = (batch_norm_kernel *)base;
    k->kernels = wefti_kernels_best();
    k->n = x->shape[0];
    k->channels = x->shape[1];
    k->spatial = wefti_cpu_span(x, 2, x->rank);
    k->x = k->y = k->dy = x->dtype;
    base->workspace_bytes =
        (int64_t)wefti_batch_norm_workspace_bytes(k->n, k->channels, k->spatial);
    *out = k;
    return WEFT_OK;
}

/* batch_norm_train(x, gamma, beta) -> y, mean, var, rstd; batch_norm_infer(x, gamma, beta, mean,
 * var) -> y */
static weft_status run_batch_norm(const wefti_kernel *kernel, const wefti_run *run,
                                  const void *const *in, void *const *out, void *workspace) {
    const batch_norm_kernel *k = (const batch_norm_kernel *)kernel;
    wefti_batch_norm_args a = {.x = {in[0], k->x},
                               .y = {out[0], k->y},
                               .n = k->n,
                               .channels = k->channels,
                               .spatial = k->spatial,
                               .train = k->train,
                               .gamma = in[1],
                               .beta = in[2],
                               .eps = k->eps,
                               .workspace = workspace};
    if (k->train) {
        a.mean = out[1];
        a.rstd = out[3];
        /* Start from a running variance of 0 with momentum 1: the result is this batch's unbiased
         * variance. */
        memset(out[2], 0, (size_t)k->channels * sizeof(float));
        a.running_var = out[2];
        a.momentum = 1.0f;
    } else {
        /* read only when not training */
        memcpy(&a.running_mean, &in[3], sizeof a.running_mean);
        memcpy(&a.running_var, &in[4], sizeof a.running_var);
    }
    k->kernels->batch_norm(run->pool, &a);
    double count = (double)k->n * (double)k->spatial;
    for (int64_t c = 0; k->train && c < k->channels; c++)
        a.running_var[c] = (float)((double)a.running_var[c] * ((count - 1.0) / count));
    return WEFT_OK;
}

static weft_status batch_norm(const weft_node *n, const wefti_prepare *options, bool train,
                              wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    batch_norm_kernel *k;
    if (options->accumulate || weft_desc_elems(x) == 0) return WEFT_E_NO_IMPL;
    weft_status status = new_kernel(n, x, -1, run_batch_norm, &k);
    if (status < 0) return status;
    k->train = train;
    k->eps = (float)wefti_attr_float(n, WEFTI_AT_eps);
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_batch_norm_train, batch_norm, true)
WEFTI_CPU_FORM(wefti_cpu_batch_norm_infer, batch_norm, false)

/* batch_norm_grad(x, gamma, mean, rstd, dy) -> dx, dgamma, dbeta */
static weft_status run_batch_norm_grad(const wefti_kernel *kernel, const wefti_run *run,
                                       const void *const *in, void *const *out, void *workspace) {
    const batch_norm_kernel *k = (const batch_norm_kernel *)kernel;
    wefti_batch_norm_backward_args a = {.x = {in[0], k->x},
                                        .dy = {in[4], k->dy},
                                        .dx = {out[0], k->y},
                                        .n = k->n,
                                        .channels = k->channels,
                                        .spatial = k->spatial,
                                        .train = true,
                                        .gamma = in[1],
                                        .mean = in[2],
                                        .rstd = in[3],
                                        .dgamma = out[1],
                                        .dbeta = out[2],
                                        .accumulate = k->train,
                                        .workspace = workspace};
    k->kernels->batch_norm_backward(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_batch_norm_grad(const weft_node *n, const wefti_prepare *options,
                                      wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    batch_norm_kernel *k;
    if ((options->accumulate && options->accumulate != 6u) || weft_desc_elems(x) == 0)
        return WEFT_E_NO_IMPL;
    weft_status status = new_kernel(n, x, 4, run_batch_norm_grad, &k);
    if (status < 0) return status;
    k->dy = wefti_in(n, 4)->dtype;
    k->y = wefti_out(n, 0)->dtype;
    k->train = options->accumulate != 0; /* here: add to dgamma and dbeta */
    *out = &k->base;
    return WEFT_OK;
}
