/* Optimizer updates, in place. Operands: the tensors to update, the gradient, the scalars of the
 * step. */
#include <math.h>
#include <string.h>

#include "backend/cpu/ops/ops.h"

typedef enum rule { SGD, ADAM, LION, LAMB, LAMB_SQUARES, ADAFACTOR } rule;

typedef struct optimizer_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    rule rule;
    bool decoupled, nesterov, has_buffer, scale_parameter;
    bool piece;   /* what it needs of the whole is given, behind the scalars */
    int gradient; /* operand number; the scalars come behind it */
    weft_dtype gradient_dtype;
    int64_t elements, rows, cols;
    float beta1, beta2, eps, eps2, clip, momentum, weight_decay;
    double decay_exponent, count;
} optimizer_kernel;

static void run_adafactor(const optimizer_kernel *k, const wefti_run *run, const void *const *in,
                          void *const *out, wefti_src grad, const float *scalars, int64_t step,
                          void *workspace) {
    wefti_adafactor_args a = {.param = out[0],
                              .grad = grad,
                              .row = k->rows ? out[1] : NULL,
                              .col = k->rows ? out[2] : out[1],
                              .rows = k->rows,
                              .cols = k->cols,
                              .grad_scale = scalars[2],
                              .lr = scalars[0],
                              .beta2 = (float)(1.0 - pow((double)step, k->decay_exponent)),
                              .eps1 = k->eps,
                              .eps2 = k->eps2,
                              .clip = k->clip,
                              .weight_decay = k->weight_decay,
                              .scale_parameter = k->scale_parameter,
                              .workspace = workspace};
    if (k->piece) {
        const void *const *given = in + k->gradient + 2;
        a.row_next = k->rows ? given[0] : NULL;
        a.col_next = k->rows ? given[1] : NULL;
        a.row_mean = k->rows ? (double)((const float *)given[2])[0] : 0.0;
        a.squares = given[k->rows ? 3 : 0];
        a.count = k->count;
    }
    k->kernels->adafactor(run->pool, &a);
}

/* A piece takes a step in two: its moments, then the parameter with norms of the whole. */
static void run_lamb(const optimizer_kernel *k, const wefti_run *run, const void *const *in,
                     void *const *out, wefti_src grad, const float *scalars, int64_t step,
                     void *workspace) {
    double norms[2];
    bool squares = k->rule == LAMB_SQUARES;
    wefti_lamb_args a = {.param = squares ? (float *)(uintptr_t)in[0] : out[0],
                         .grad = grad,
                         .m = squares ? (float *)(uintptr_t)in[1] : out[1],
                         .v = squares ? (float *)(uintptr_t)in[2] : out[2],
                         .elements = k->elements,
                         .step = step,
                         .grad_scale = scalars[2],
                         .lr = scalars[0],
                         .beta1 = k->beta1,
                         .beta2 = k->beta2,
                         .eps = k->eps,
                         .weight_decay = k->weight_decay,
                         .norms_only = squares || k->piece,
                         .peek = squares, /* nothing is written */
                         .norms = norms,
                         .workspace = workspace};
    k->kernels->lamb(run->pool, &a);
    if (squares)
        for (int i = 0; i < 2; i++) ((float *)out[0])[i] = (float)norms[i];
    if (!k->piece) return;
    for (int i = 0; i < 2; i++) norms[i] = (double)((const float *)in[k->gradient + 2])[i];
    a.norms_only = false;
    a.norms_given = true;
    k->kernels->lamb(run->pool, &a);
}

static weft_status run_optimizer(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const optimizer_kernel *k = (const optimizer_kernel *)kernel;
    const float *scalars = in[k->gradient + 1];
    const void *grad = in[k->gradient];
    float lr = scalars[0], scale = scalars[2];
    int64_t step = scalars[1] >= 1.0f ? (int64_t)scalars[1] : 1;
    wefti_src g = {grad, k->gradient_dtype};
    switch (k->rule) {
    case SGD:
        k->kernels->sgd(run->pool,
                        &(wefti_sgd_args){.param = out[0],
                                          .grad = g,
                                          .momentum_buffer = k->has_buffer ? out[1] : NULL,
                                          .elements = k->elements,
                                          .grad_scale = scale,
                                          .lr = lr,
                                          .momentum = k->momentum,
                                          .weight_decay = k->weight_decay,
                                          .nesterov = k->nesterov,
                                          .first = step <= 1});
        break;
    case ADAM:
        k->kernels->adam(run->pool, &(wefti_adam_args){.param = out[0],
                                                       .grad = g,
                                                       .m = out[1],
                                                       .v = out[2],
                                                       .elements = k->elements,
                                                       .step = step,
                                                       .grad_scale = scale,
                                                       .lr = lr,
                                                       .beta1 = k->beta1,
                                                       .beta2 = k->beta2,
                                                       .eps = k->eps,
                                                       .weight_decay = k->weight_decay,
                                                       .decoupled = k->decoupled});
        break;
    case LION:
        k->kernels->lion(run->pool, &(wefti_lion_args){.param = out[0],
                                                       .grad = g,
                                                       .m = out[1],
                                                       .elements = k->elements,
                                                       .grad_scale = scale,
                                                       .lr = lr,
                                                       .beta1 = k->beta1,
                                                       .beta2 = k->beta2,
                                                       .weight_decay = k->weight_decay});
        break;
    case LAMB:
    case LAMB_SQUARES:
        run_lamb(k, run, in, out, g, scalars, step, workspace);
        break;
    case ADAFACTOR:
        run_adafactor(k, run, in, out, g, scalars, step, workspace);
        break;
    }
    return WEFT_OK;
}

static float attribute(const weft_node *n, const char *name) {
    return (float)wefti_attr_float(n, name);
}

static void set_moments(optimizer_kernel *k, const weft_node *n, bool eps) {
    k->beta1 = attribute(n, "beta1");
    k->beta2 = attribute(n, "beta2");
    if (eps) k->eps = attribute(n, "eps");
}

weft_status wefti_cpu_optimizer(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    int gradient = !strcmp(n->op->name, "opt_sgd") ? 2 : n->op->min_inputs - 2;
    const weft_desc *param = wefti_in(n, 0), *grad = wefti_in(n, gradient);
    if (options->accumulate || !wefti_cpu_is_real(grad)) return WEFT_E_NO_IMPL;
    for (int i = 0; i < n->inputs; i++)
        if (i != gradient && !wefti_cpu_is_f32(wefti_in(n, i))) return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(optimizer_kernel), n->op->name, run_optimizer, &base));
    optimizer_kernel *k = (optimizer_kernel *)base;
    const char *op = n->op->name;
    bool one_matrix = true;
    k->kernels = wefti_kernels_best();
    k->gradient = gradient;
    k->piece = n->inputs > gradient + 2;
    k->gradient_dtype = grad->dtype;
    k->elements = weft_desc_elems(param);
    k->weight_decay = attribute(n, "weight_decay");
    if (!strcmp(op, "opt_sgd")) {
        k->rule = SGD;
        k->has_buffer = n->in[1] >= 0;
        k->momentum = attribute(n, "momentum");
        k->nesterov = wefti_attr_int(n, "nesterov") != 0;
    } else if (!strcmp(op, "opt_adam") || !strcmp(op, "opt_adamw")) {
        k->rule = ADAM;
        k->decoupled = op[8] == 'w';
        set_moments(k, n, true);
    } else if (!strcmp(op, "opt_lion")) {
        k->rule = LION;
        set_moments(k, n, false);
    } else if (!strcmp(op, "opt_lamb") || !strcmp(op, "lamb_squares")) {
        k->rule = op[0] == 'o' ? LAMB : LAMB_SQUARES;
        set_moments(k, n, true);
        base->workspace_bytes = (int64_t)wefti_lamb_workspace_bytes(k->elements);
    } else {
        k->rule = ADAFACTOR;
        k->decay_exponent = wefti_attr_float(n, "decay_exponent");
        k->eps = attribute(n, "eps1");
        k->eps2 = attribute(n, "eps2");
        k->clip = attribute(n, "clip");
        k->scale_parameter = wefti_attr_int(n, "scale_parameter") != 0;
        k->cols = k->elements;
        k->count = (double)wefti_attr_int(n, "count");
        if (k->count == 0) k->count = (double)k->elements;
        if (!strcmp(op, "opt_adafactor")) {
            k->rows = param->shape[param->rank - 2];
            k->cols = param->shape[param->rank - 1];
            /* The norms are those of the whole tensor, the kernel's those of its matrix. */
            one_matrix = k->rows > 0 && k->rows * k->cols == k->elements;
        }
        base->workspace_bytes = (int64_t)wefti_adafactor_workspace_bytes(k->rows, k->cols);
    }
    if (!one_matrix) {
        wefti_kernel_destroy(base);
        return WEFT_E_NO_IMPL;
    }
    *out = base;
    return WEFT_OK;
}
