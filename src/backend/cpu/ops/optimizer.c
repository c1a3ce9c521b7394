/* Optimizer updates, in place. Operands: the tensors to update, the gradient, the scalars of the
 * step, and perhaps the numbers of the rows to update. */
#include <math.h>
#include <string.h>

#include "backend/cpu/ops/ops.h"

typedef enum rule {
    SGD,
    ADAM,
    ADAMW, /* decay is separate from the gradient */
    LION,
    ADAGRAD,
    LAMB,
    LAMB_SQUARES,
    ADAFACTOR,
    ADAFACTOR1 /* of vectors */
} rule;

typedef struct optimizer_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    rule rule;
    bool nesterov, has_buffer, scale_parameter;
    bool piece;   /* values of the whole parameter are operands, behind the scalars */
    int gradient; /* operand number of the gradient; the scalars follow it */
    weft_dtype gradient_dtype;
    int64_t elements, rows, cols;
    int64_t list; /* most rows that a list names; -1: all elements are updated */
    float beta1, beta2, eps, eps2, clip, momentum, weight_decay, initial;
    double decay_exponent, count;
} optimizer_kernel;

static void run_adafactor(const optimizer_kernel *k, const wefti_run *run, const void *const *in,
                          void *const *out, wefti_src grad, const wefti_step_scalars *scalars,
                          int64_t step, bool *overflow, void *workspace) {
    wefti_adafactor_args a = {.param = out[0],
                              .grad = grad,
                              .row = k->rows ? out[1] : NULL,
                              .col = k->rows ? out[2] : out[1],
                              .rows = k->rows,
                              .cols = k->cols,
                              .grad_scale = scalars->gradient_scale,
                              .lr = scalars->learning_rate,
                              .beta2 = (float)(1.0 - pow((double)step, k->decay_exponent)),
                              .eps1 = k->eps,
                              .eps2 = k->eps2,
                              .clip = k->clip,
                              .weight_decay = k->weight_decay,
                              .scale_parameter = k->scale_parameter,
                              .overflow = overflow,
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

/* For a piece, a step has two phases: first its moments, then the parameter, with the norms of the
 * whole. */
static void run_lamb(const optimizer_kernel *k, const wefti_run *run, const void *const *in,
                     void *const *out, wefti_src grad, const wefti_step_scalars *scalars,
                     int64_t step, bool *overflow, void *workspace) {
    double norms[2];
    bool squares = k->rule == LAMB_SQUARES;
    wefti_lamb_args a = {.param = squares ? (float *)(uintptr_t)in[0] : out[0],
                         .grad = grad,
                         .m = squares ? (float *)(uintptr_t)in[1] : out[1],
                         .v = squares ? (float *)(uintptr_t)in[2] : out[2],
                         .elements = k->elements,
                         .step = step,
                         .grad_scale = scalars->gradient_scale,
                         .lr = scalars->learning_rate,
                         .beta1 = k->beta1,
                         .beta2 = k->beta2,
                         .eps = k->eps,
                         .weight_decay = k->weight_decay,
                         .norms_only = squares || k->piece,
                         .peek = squares, /* nothing is written */
                         .norms = norms,
                         .overflow = overflow,
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

/* The rows that an update changes: the list ends at the first number that is no row. */
static wefti_listed_rows listed_rows(const optimizer_kernel *k, const void *const *in) {
    static const int32_t none = -1;
    wefti_listed_rows x = {.width = k->cols};
    if (k->list < 0) return x;
    x.number = k->list ? in[k->gradient + 2] : &none;
    while (x.count < k->list && x.number[x.count] >= 0 && x.number[x.count] < k->rows) x.count++;
    return x;
}

static weft_status run_optimizer(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const optimizer_kernel *k = (const optimizer_kernel *)kernel;
    const wefti_step_scalars *scalars = in[k->gradient + 1];
    const void *grad = in[k->gradient];
    float lr = scalars->learning_rate, scale = scalars->gradient_scale;
    int64_t step = scalars->step >= 1.0f ? (int64_t)scalars->step : 1;
    wefti_src g = {grad, k->gradient_dtype};
    const wefti_listed_rows listed = listed_rows(k, in);
    bool overflow = false;
    switch (k->rule) {
    case SGD:
        k->kernels->sgd(run->pool,
                        &(wefti_sgd_args){.param = out[0],
                                          .grad = g,
                                          .momentum_buffer = k->has_buffer ? out[1] : NULL,
                                          .elements = k->elements,
                                          .listed = listed,
                                          .grad_scale = scale,
                                          .lr = lr,
                                          .momentum = k->momentum,
                                          .weight_decay = k->weight_decay,
                                          .nesterov = k->nesterov,
                                          .first = step <= 1});
        break;
    case ADAM:
    case ADAMW:
        k->kernels->adam(run->pool, &(wefti_adam_args){.param = out[0],
                                                       .grad = g,
                                                       .m = out[1],
                                                       .v = out[2],
                                                       .elements = k->elements,
                                                       .listed = listed,
                                                       .step = step,
                                                       .grad_scale = scale,
                                                       .lr = lr,
                                                       .beta1 = k->beta1,
                                                       .beta2 = k->beta2,
                                                       .eps = k->eps,
                                                       .weight_decay = k->weight_decay,
                                                       .decoupled = k->rule == ADAMW,
                                                       .overflow = &overflow});
        break;
    case LION:
        k->kernels->lion(run->pool, &(wefti_lion_args){.param = out[0],
                                                       .grad = g,
                                                       .m = out[1],
                                                       .elements = k->elements,
                                                       .listed = listed,
                                                       .grad_scale = scale,
                                                       .lr = lr,
                                                       .beta1 = k->beta1,
                                                       .beta2 = k->beta2,
                                                       .weight_decay = k->weight_decay});
        break;
    case ADAGRAD:
        k->kernels->adagrad(run->pool, &(wefti_adagrad_args){.param = out[0],
                                                             .grad = g,
                                                             .sum = out[1],
                                                             .elements = k->elements,
                                                             .listed = listed,
                                                             .grad_scale = scale,
                                                             .lr = lr,
                                                             .initial = k->initial,
                                                             .eps = k->eps,
                                                             .weight_decay = k->weight_decay,
                                                             .overflow = &overflow});
        break;
    case LAMB:
    case LAMB_SQUARES:
        run_lamb(k, run, in, out, g, scalars, step, &overflow, workspace);
        break;
    case ADAFACTOR:
    case ADAFACTOR1:
        run_adafactor(k, run, in, out, g, scalars, step, &overflow, workspace);
        break;
    }
    /* With an infinite second moment, an element would never change again. */
    WEFT_REQUIRE(!overflow, WEFT_E_CORRUPT, WEFTI_MOMENT_OVERFLOW, "single");
    return WEFT_OK;
}

static float attribute(const weft_node *n, wefti_attr_id id) {
    return (float)wefti_attr_float(n, id);
}

static void set_moments(optimizer_kernel *k, const weft_node *n, bool eps) {
    k->beta1 = attribute(n, WEFTI_AT_beta1);
    k->beta2 = attribute(n, WEFTI_AT_beta2);
    if (eps) k->eps = attribute(n, WEFTI_AT_eps);
}

/* Fills the fields that the rule needs. Returns false if only the reference backend supports the
 * shape. */
static bool set_rule(optimizer_kernel *k, const weft_node *n) {
    const weft_desc *param = wefti_in(n, 0);
    switch (k->rule) {
    case SGD:
        k->has_buffer = n->in[1] >= 0;
        k->momentum = attribute(n, WEFTI_AT_momentum);
        k->nesterov = wefti_attr_int(n, WEFTI_AT_nesterov) != 0;
        return true;
    case ADAM:
    case ADAMW:
        set_moments(k, n, true);
        return true;
    case LION:
        set_moments(k, n, false);
        return true;
    case ADAGRAD:
        k->initial = attribute(n, WEFTI_AT_initial_accumulator);
        k->eps = attribute(n, WEFTI_AT_eps);
        return true;
    case LAMB:
    case LAMB_SQUARES:
        set_moments(k, n, true);
        k->base.workspace_bytes = (int64_t)wefti_lamb_workspace_bytes(k->elements);
        return true;
    case ADAFACTOR:
    case ADAFACTOR1:
        break;
    }
    k->decay_exponent = wefti_attr_float(n, WEFTI_AT_decay_exponent);
    k->eps = attribute(n, WEFTI_AT_eps1);
    k->eps2 = attribute(n, WEFTI_AT_eps2);
    k->clip = attribute(n, WEFTI_AT_clip);
    k->scale_parameter = wefti_attr_int(n, WEFTI_AT_scale_parameter) != 0;
    k->cols = k->elements;
    k->count = (double)wefti_attr_int(n, WEFTI_AT_count);
    if (k->count == 0) k->count = (double)k->elements;
    bool one_matrix = true;
    if (k->rule == ADAFACTOR) {
        k->rows = param->shape[param->rank - 2];
        k->cols = param->shape[param->rank - 1];
        /* The op's norms are over the whole tensor, the kernel's over one matrix. So the tensor
         * must be one matrix. */
        one_matrix = k->rows > 0 && k->rows * k->cols == k->elements;
    }
    k->base.workspace_bytes = (int64_t)wefti_adafactor_workspace_bytes(k->rows, k->cols);
    return one_matrix;
}

static weft_status optimizer(const weft_node *n, const wefti_prepare *options, rule rule,
                             wefti_kernel **out) {
    int gradient = n->op->gradient_input;
    const weft_desc *grad = wefti_in(n, gradient);
    if (options->accumulate || !wefti_cpu_is_real(grad)) return WEFT_E_NO_IMPL;
    const bool extra = n->inputs > gradient + 2, by_rows = extra && !n->op->lower;
    for (int i = 0; i < n->inputs - by_rows; i++)
        if (i != gradient && !wefti_cpu_is_f32(wefti_in(n, i))) return WEFT_E_NO_IMPL;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(optimizer_kernel), n->op->name, run_optimizer, &base));
    optimizer_kernel *k = (optimizer_kernel *)base;
    k->kernels = wefti_kernels_best();
    k->rule = rule;
    k->gradient = gradient;
    k->piece = extra && !by_rows;
    k->list = by_rows ? grad->shape[0] : -1;
    k->rows = by_rows ? wefti_in(n, 0)->shape[0] : 0;
    k->cols = by_rows ? grad->shape[1] : 0;
    k->gradient_dtype = grad->dtype;
    k->elements = weft_desc_elems(wefti_in(n, 0));
    k->weight_decay = attribute(n, WEFTI_AT_weight_decay);
    if (!set_rule(k, n)) {
        wefti_kernel_destroy(base);
        return WEFT_E_NO_IMPL;
    }
    *out = base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_sgd, optimizer, SGD)
WEFTI_CPU_FORM(wefti_cpu_adam, optimizer, ADAM)
WEFTI_CPU_FORM(wefti_cpu_adamw, optimizer, ADAMW)
WEFTI_CPU_FORM(wefti_cpu_lion, optimizer, LION)
WEFTI_CPU_FORM(wefti_cpu_adagrad, optimizer, ADAGRAD)
WEFTI_CPU_FORM(wefti_cpu_lamb, optimizer, LAMB)
WEFTI_CPU_FORM(wefti_cpu_lamb_squares, optimizer, LAMB_SQUARES)
WEFTI_CPU_FORM(wefti_cpu_adafactor, optimizer, ADAFACTOR)
WEFTI_CPU_FORM(wefti_cpu_adafactor1, optimizer, ADAFACTOR1)
