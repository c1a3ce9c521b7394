/* Normalisation, softmax and cross-entropy. */
#include "backend/cpu/ops/ops.h"

/* One kernel struct serves the family: the parameters of the node, and the function of the table
 * that runs it. */
typedef struct norm_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    int64_t rows, dim, ignore, begin, whole; /* begin, whole: of a piece of the classes */
    float eps, smoothing;
    weft_dtype x, dy, y;
    bool rms, log, has_beta, has_weight, has_count, accumulate;
    int64_t reduce_bytes;
} norm_kernel;

static weft_status new_kernel(const char *label,
                              weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                 const void *const *, void *const *, void *),
                              const weft_desc *x, norm_kernel **out) {
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(norm_kernel), label, run, &base));
    norm_kernel *k = (norm_kernel *)base;
    k->kernels = wefti_kernels_best();
    k->rows = wefti_cpu_span(x, 0, x->rank - 1);
    k->dim = x->shape[x->rank - 1];
    k->x = k->y = k->dy = x->dtype;
    *out = k;
    return WEFT_OK;
}

/* ---- layer_norm(x, gamma, beta?) -> y, mean, rstd;  rms_norm(x, gamma) -> y, rstd ---- */

static weft_status run_norm(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    (void)workspace;
    wefti_norm_args a = {.x = {in[0], k->x},
                         .gamma = in[1],
                         .beta = k->has_beta ? in[2] : NULL,
                         .y = {out[0], k->y},
                         .mean = k->rms ? NULL : out[1],
                         .rstd = k->rms ? out[1] : out[2],
                         .rows = k->rows,
                         .dim = k->dim,
                         .eps = k->eps};
    if (k->rms)
        k->kernels->rms_norm(run->pool, &a);
    else
        k->kernels->layer_norm(run->pool, &a);
    return WEFT_OK;
}

static weft_status norm(const weft_node *n, const wefti_prepare *options, bool rms,
                        wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || !wefti_cpu_is_f32(wefti_in(n, 1)) ||
        !wefti_cpu_is_f32(n->inputs > 2 ? wefti_in(n, 2) : NULL))
        return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("norm", run_norm, x, &k));
    k->rms = rms;
    k->has_beta = n->inputs > 2 && n->in[2] >= 0;
    k->eps = (float)wefti_attr_float(n, WEFTI_AT_eps);
    k->y = wefti_out(n, 0)->dtype;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_layer_norm, norm, false)
WEFTI_CPU_FORM(wefti_cpu_rms_norm, norm, true)

/* layer_norm_apply(x, gamma, beta?, mean, rstd), rms_norm_apply(x, gamma, rstd): compute y from
 * known statistics. They run as an elementwise program with column and row operands. */
typedef struct apply_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    wefti_ew_program program;
    int operand[5];
} apply_kernel;

static weft_status run_apply(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const apply_kernel *k = (const apply_kernel *)kernel;
    (void)workspace;
    wefti_elementwise_args a = {.program = &k->program, .out = {out[0]}};
    for (int i = 0; i < k->program.inputs; i++) a.in[i] = in[k->operand[i]];
    k->kernels->elementwise(run->pool, &a);
    return WEFT_OK;
}

static void operand(apply_kernel *k, int number, weft_dtype dtype, wefti_ew_broadcast broadcast,
                    int64_t inner) {
    int i = k->program.inputs++;
    k->operand[i] = number;
    k->program.input[i] = (wefti_ew_input){.dtype = dtype, .broadcast = broadcast, .inner = inner};
}

static void code(wefti_ew_program *p, wefti_ew_op op, int dst, int a, int b, int c) {
    p->code[p->instructions++] = (wefti_ew_instruction){
        .op = (uint8_t)op, .dst = (uint8_t)dst, .a = (uint8_t)a, .b = (uint8_t)b, .c = (uint8_t)c};
}

static weft_status norm_apply(const weft_node *n, const wefti_prepare *options, bool rms,
                              wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x)) return WEFT_E_NO_IMPL;
    for (int i = 1; i < n->inputs; i++)
        if (!wefti_cpu_is_f32(wefti_in(n, i))) return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(apply_kernel), "norm", run_apply, &base));
    apply_kernel *k = (apply_kernel *)base;
    wefti_ew_program *p = &k->program;
    k->kernels = wefti_kernels_best();
    int64_t dim = x->shape[x->rank - 1];
    bool beta = !rms && n->in[2] >= 0;
    p->elements = weft_desc_elems(y);
    p->outputs = 1;
    p->output[0].dtype = y->dtype;
    operand(k, 0, x->dtype, WEFTI_EW_FULL, 1);
    operand(k, 1, WEFT_F32, WEFTI_EW_ROW, dim);
    if (rms) {
        operand(k, 2, WEFT_F32, WEFTI_EW_COLUMN, dim);
        code(p, WEFTI_EW_MUL, 3, 0, 2, 0);
        code(p, WEFTI_EW_MUL, 3, 3, 1, 0);
        p->output[0].reg = 3;
    } else {
        operand(k, 3, WEFT_F32, WEFTI_EW_COLUMN, dim);
        operand(k, 4, WEFT_F32, WEFTI_EW_COLUMN, dim);
        if (beta) operand(k, 2, WEFT_F32, WEFTI_EW_ROW, dim);
        int dst = p->inputs;
        code(p, WEFTI_EW_SUB, dst, 0, 2, 0);
        code(p, WEFTI_EW_MUL, dst, dst, 3, 0);
        if (beta)
            code(p, WEFTI_EW_FMA, dst, dst, 1, 4);
        else
            code(p, WEFTI_EW_MUL, dst, dst, 1, 0);
        p->output[0].reg = (uint8_t)dst;
    }
    if (wefti_ew_check(p) < 0) {
        wefti_kernel_destroy(base);
        return WEFT_E_NO_IMPL;
    }
    *out = base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_layer_norm_apply, norm_apply, false)
WEFTI_CPU_FORM(wefti_cpu_rms_norm_apply, norm_apply, true)

/* layer_norm_grad(x, gamma, mean, rstd, dy) -> dx, dgamma, dbeta;  rms_norm_grad(x, gamma, rstd,
 * dy) -> dx, dgamma */
static weft_status run_norm_grad(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    wefti_norm_backward_args a = {.x = {in[0], k->x},
                                  .gamma = in[1],
                                  .mean = k->rms ? NULL : in[2],
                                  .rstd = k->rms ? in[2] : in[3],
                                  .dy = {k->rms ? in[3] : in[4], k->dy},
                                  .dx = {out[0], k->y},
                                  .dgamma = out[1],
                                  .dbeta = k->rms ? NULL : out[2],
                                  .accumulate = k->accumulate,
                                  .rows = k->rows,
                                  .dim = k->dim,
                                  .workspace = workspace};
    if (k->rms)
        k->kernels->rms_norm_backward(run->pool, &a);
    else
        k->kernels->layer_norm_backward(run->pool, &a);
    return WEFT_OK;
}

static weft_status norm_grad(const weft_node *n, const wefti_prepare *options, bool rms,
                             wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    int dy = rms ? 3 : 4;
    uint32_t params = rms ? 2u : 6u; /* accumulate adds to both dgamma and dbeta, or to neither */
    if ((options->accumulate && options->accumulate != params) || !wefti_cpu_is_real(x) ||
        !wefti_cpu_is_real(wefti_in(n, dy)))
        return WEFT_E_NO_IMPL;
    for (int i = 1; i < dy; i++)
        if (!wefti_cpu_is_f32(wefti_in(n, i))) return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("norm", run_norm_grad, x, &k));
    k->rms = rms;
    k->dy = wefti_in(n, dy)->dtype;
    k->y = wefti_out(n, 0)->dtype;
    k->accumulate = options->accumulate != 0;
    k->base.workspace_bytes = (int64_t)wefti_norm_backward_workspace_bytes(k->rows, k->dim);
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_layer_norm_grad, norm_grad, false)
WEFTI_CPU_FORM(wefti_cpu_rms_norm_grad, norm_grad, true)

/* ---- softmax(x), log_softmax(x) and their gradients (y, dy), last dimension ---- */

static bool last_axis(const weft_node *n, const weft_desc *x) {
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis);
    return x->rank >= 1 && (axis == -1 || axis == x->rank - 1);
}

static weft_status run_softmax(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    (void)workspace;
    wefti_softmax_args a = {
        .x = {in[0], k->x}, .y = {out[0], k->y}, .rows = k->rows, .dim = k->dim};
    if (k->log)
        k->kernels->log_softmax(run->pool, &a);
    else
        k->kernels->softmax(run->pool, &a);
    return WEFT_OK;
}

static weft_status softmax(const weft_node *n, const wefti_prepare *options, bool log,
                           wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || !last_axis(n, x)) return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("softmax", run_softmax, x, &k));
    k->log = log;
    k->base.in_place = 0;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_softmax, softmax, false)
WEFTI_CPU_FORM(wefti_cpu_log_softmax, softmax, true)

static weft_status run_softmax_grad(const wefti_kernel *kernel, const wefti_run *run,
                                    const void *const *in, void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    (void)workspace;
    wefti_softmax_backward_args a = {.y = {in[0], k->x},
                                     .dy = {in[1], k->dy},
                                     .dx = {out[0], k->y},
                                     .rows = k->rows,
                                     .dim = k->dim};
    if (k->log)
        k->kernels->log_softmax_backward(run->pool, &a);
    else
        k->kernels->softmax_backward(run->pool, &a);
    return WEFT_OK;
}

static weft_status softmax_grad(const weft_node *n, const wefti_prepare *options, bool log,
                                wefti_kernel **out) {
    const weft_desc *y = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(y) || !wefti_cpu_is_real(wefti_in(n, 1)) ||
        !last_axis(n, y))
        return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("softmax", run_softmax_grad, y, &k));
    k->log = log;
    k->dy = wefti_in(n, 1)->dtype;
    k->y = wefti_out(n, 0)->dtype;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_softmax_grad, softmax_grad, false)
WEFTI_CPU_FORM(wefti_cpu_log_softmax_grad, softmax_grad, true)

/* ---- cross_entropy(logits, targets, count?) -> loss, lse, count; its pieces and gradient ---- */

static weft_status run_cross_entropy(const wefti_kernel *kernel, const wefti_run *run,
                                     const void *const *in, void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    float *loss = workspace;
    wefti_cross_entropy_args a = {.logits = {in[0], k->x},
                                  .targets = {in[1], WEFT_I32},
                                  .rows = k->rows,
                                  .vocab = k->dim,
                                  .ignore_index = k->ignore,
                                  .smoothing = k->smoothing,
                                  .loss = loss,
                                  .lse = out[1]};
    k->kernels->cross_entropy(run->pool, &a);
    const int32_t *targets = in[1];
    double sum = 0;
    int64_t here = 0;
    for (int64_t r = 0; r < k->rows; r++) {
        sum += (double)loss[r];
        here += targets[r] != k->ignore;
    }
    double count = k->has_count ? (double)((const float *)in[2])[0] : (double)here;
    ((float *)out[0])[0] = count > 0 ? (float)(sum / count) : 0.0f;
    ((float *)out[2])[0] = (float)count;
    return WEFT_OK;
}

/* (logits, targets) -> terms, lse */
static weft_status run_cross_entropy_part(const wefti_kernel *kernel, const wefti_run *run,
                                          const void *const *in, void *const *out,
                                          void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    (void)workspace;
    wefti_cross_entropy_args a = {.logits = {in[0], k->x},
                                  .targets = {in[1], WEFT_I32},
                                  .rows = k->rows,
                                  .vocab = k->dim,
                                  .ignore_index = k->ignore,
                                  .begin = k->begin,
                                  .whole = k->whole,
                                  .terms = true,
                                  .smoothing = k->smoothing,
                                  .loss = out[0],
                                  .lse = out[1]};
    k->kernels->cross_entropy(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_cross_entropy_part(const weft_node *n, const wefti_prepare *options,
                                         wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || x->shape[x->rank - 1] == 0)
        return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("cross entropy", run_cross_entropy_part, x, &k));
    k->ignore = wefti_attr_int(n, WEFTI_AT_ignore);
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    k->whole = wefti_attr_int(n, WEFTI_AT_whole);
    k->smoothing = (float)wefti_attr_float(n, WEFTI_AT_smoothing);
    *out = &k->base;
    return WEFT_OK;
}

/* (targets, weight?, count?) -> sum, over count */
static weft_status run_count_targets(const wefti_kernel *kernel, const wefti_run *run,
                                     const void *const *in, void *const *out, void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    const int32_t *targets = in[0];
    const float *weight = k->has_weight ? in[1] : NULL;
    double sum = 0;
    (void)run;
    (void)workspace;
    for (int64_t r = 0; r < k->rows; r++)
        if (targets[r] != k->ignore) sum += weight ? (double)weight[r] : 1.0;
    if (k->has_count) {
        double count = (double)((const float *)in[2])[0];
        sum = count > 0 ? sum / count : 0;
    }
    ((float *)out[0])[0] = (float)sum;
    return WEFT_OK;
}

weft_status wefti_cpu_count_targets(const weft_node *n, const wefti_prepare *options,
                                    wefti_kernel **out) {
    const weft_desc *targets = wefti_in(n, 0), *weight = wefti_in(n, 1);
    if (options->accumulate || !wefti_cpu_is_f32(wefti_out(n, 0)) || !wefti_cpu_is_f32(weight) ||
        !wefti_cpu_is_f32(wefti_in(n, 2)))
        return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(norm_kernel), "count", run_count_targets, &base));
    norm_kernel *k = (norm_kernel *)base;
    k->rows = weft_desc_elems(targets);
    k->ignore = wefti_attr_int(n, WEFTI_AT_ignore);
    k->has_weight = weight != NULL;
    k->has_count = wefti_in(n, 2) != NULL;
    *out = base;
    return WEFT_OK;
}

weft_status wefti_cpu_cross_entropy(const weft_node *n, const wefti_prepare *options,
                                    wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || wefti_in(n, 1)->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    norm_kernel *k;
    if (wefti_in(n, 2) && !wefti_cpu_is_f32(wefti_in(n, 2))) return WEFT_E_NO_IMPL;
    WEFT_TRY(new_kernel("cross entropy", run_cross_entropy, x, &k));
    k->has_count = wefti_in(n, 2) != NULL;
    k->ignore = wefti_attr_int(n, WEFTI_AT_ignore);
    k->smoothing = (float)wefti_attr_float(n, WEFTI_AT_smoothing);
    k->base.workspace_bytes = k->rows * 4;
    *out = &k->base;
    return WEFT_OK;
}

/* (logits, targets, lse, count, dloss) -> dlogits */
static weft_status run_cross_entropy_grad(const wefti_kernel *kernel, const wefti_run *run,
                                          const void *const *in, void *const *out,
                                          void *workspace) {
    const norm_kernel *k = (const norm_kernel *)kernel;
    (void)workspace;
    float count = ((const float *)in[3])[0], dloss = ((const float *)in[4])[0];
    wefti_cross_entropy_backward_args a = {.logits = {in[0], k->x},
                                           .targets = {in[1], WEFT_I32},
                                           .lse = in[2],
                                           .dlogits = {out[0], k->y},
                                           .rows = k->rows,
                                           .vocab = k->dim,
                                           .ignore_index = k->ignore,
                                           .begin = k->begin,
                                           .whole = k->whole,
                                           .smoothing = k->smoothing,
                                           .scale = count > 0 ? dloss / count : 0.0f};
    k->kernels->cross_entropy_backward(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_cross_entropy_grad(const weft_node *n, const wefti_prepare *options,
                                         wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || wefti_in(n, 1)->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    for (int i = 2; i < 5; i++)
        if (!wefti_cpu_is_f32(wefti_in(n, i))) return WEFT_E_NO_IMPL;
    norm_kernel *k;
    WEFT_TRY(new_kernel("cross entropy", run_cross_entropy_grad, x, &k));
    k->ignore = wefti_attr_int(n, WEFTI_AT_ignore);
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    k->whole = wefti_attr_int(n, WEFTI_AT_whole);
    k->smoothing = (float)wefti_attr_float(n, WEFTI_AT_smoothing);
    k->y = wefti_out(n, 0)->dtype;
    k->base.in_place = 0;
    *out = &k->base;
    return WEFT_OK;
}
