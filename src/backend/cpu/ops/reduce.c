/* Reductions: sums, means and maxima over any dimensions, the mean squared error, the sum of
 * squares of a gradient, argmax.
 *
 * Adjacent dimensions of one kind are merged. So a reduction is a sequence of passes over [outer,
 * reduced, inner], from the last reduced dimensions to the first. All passes except the last write
 * f32 to the workspace. */
#include <string.h>

#include "backend/cpu/ops/ops.h"
#include "base/number.h"

enum { MAX_PASSES = (WEFT_MAX_RANK + 1) / 2, MSE_BLOCK = 1 << 18 };

typedef struct reduce_pass {
    int64_t outer, axis, inner;
} reduce_pass;

typedef struct reduce_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    weft_dtype x, y;
    wefti_reduce_op op;
    bool accumulate, scaled;
    int passes;
    reduce_pass pass[MAX_PASSES];
    float scale;             /* `scaled`: factor of the sums that gives the mean */
    int64_t half, count;     /* workspace bytes of one intermediate result; its elements */
    wefti_ew_program finish; /* `scaled`: y = scale sum */
} reduce_kernel;

static weft_status new_kernel(const char *label,
                              weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                 const void *const *, void *const *, void *),
                              reduce_kernel **out) {
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(reduce_kernel), label, run, &base));
    *out = (reduce_kernel *)base;
    (*out)->kernels = wefti_kernels_best();
    return WEFT_OK;
}

/* ---- sum, mean, max, sum_to ---- */

/* Intermediate results alternate between two places in the workspace. The scratch of a pass lies
 * behind them. */
static weft_status run_reduce(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const reduce_kernel *k = (const reduce_kernel *)kernel;
    unsigned char *first = workspace, *halves[] = {first, k->half ? first + k->half : first};
    wefti_src from = {in[0], k->x};
    for (int p = 0; p < k->passes; p++) {
        bool last = p == k->passes - 1;
        wefti_dst to = {halves[p % 2], WEFT_F32};
        if (last && !k->scaled) to = (wefti_dst){out[0], k->y};
        wefti_reduce_args a = {.op = k->op,
                               .x = from,
                               .y = to,
                               .outer = k->pass[p].outer,
                               .reduce = k->pass[p].axis,
                               .inner = k->pass[p].inner,
                               .accumulate = last && k->accumulate,
                               .workspace = k->half ? first + 2 * k->half : first};
        k->kernels->reduce(run->pool, &a);
        from = (wefti_src){to.data, to.dtype};
    }
    if (k->scaled) {
        wefti_elementwise_args a = {.program = &k->finish, .in = {from.data}, .out = {out[0]}};
        k->kernels->elementwise(run->pool, &a);
    }
    return WEFT_OK;
}

/* Groups dimensions by kind, ignoring dimensions of size 1: passes go from the last reduced group
 * to the first. If no dimension is reduced, one pass reduces single elements. */
static void find_passes(reduce_kernel *k, const weft_desc *x, const bool *reduced) {
    int64_t size[WEFT_MAX_RANK];
    bool kind[WEFT_MAX_RANK];
    int groups = 0;
    for (int d = 0; d < x->rank; d++) {
        if (x->shape[d] == 1) continue;
        if (groups && kind[groups - 1] == reduced[d]) {
            size[groups - 1] *= x->shape[d];
        } else {
            size[groups] = x->shape[d];
            kind[groups++] = reduced[d];
        }
    }
    int64_t inner = 1;
    for (int g = groups - 1; g >= 0; g--) {
        if (!kind[g]) {
            inner *= size[g];
            continue;
        }
        int64_t outer = 1;
        for (int before = 0; before < g; before++) outer *= size[before];
        k->pass[k->passes++] = (reduce_pass){outer, size[g], inner};
    }
    if (!k->passes) k->pass[k->passes++] = (reduce_pass){1, 1, inner};
}

static void plan_workspace(reduce_kernel *k) {
    int64_t scratch = 0;
    for (int p = 0; p < k->passes; p++) {
        reduce_pass s = k->pass[p];
        int64_t need = (int64_t)wefti_reduce_workspace_bytes(s.outer, s.axis, s.inner);
        if (need > scratch) scratch = need;
        if ((p < k->passes - 1 || k->scaled) && wefti_aligned(s.outer * s.inner * 4) > k->half)
            k->half = wefti_aligned(s.outer * s.inner * 4);
    }
    k->base.workspace_bytes = 2 * k->half + scratch;
}

/* A mean whose divisor the kernel does not compute: takes sums, and scales them at the end. */
static void scale_by(reduce_kernel *k, double factor, int64_t results) {
    wefti_ew_program *f = &k->finish;
    k->scaled = true;
    f->inputs = f->outputs = f->instructions = 1;
    f->elements = results;
    f->input[0] = (wefti_ew_input){.dtype = WEFT_F32, .broadcast = WEFTI_EW_FULL, .inner = 1};
    f->output[0].dtype = k->y;
    f->output[0].reg = 1;
    f->code[0] =
        (wefti_ew_instruction){.op = WEFTI_EW_SCALE, .dst = 1, .a = 0, .imm = (float)factor};
}

static weft_status reduction(const weft_node *n, const bool *reduced, wefti_reduce_op op,
                             int64_t count, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    if (!wefti_cpu_is_real(x) || !wefti_cpu_is_real(y)) return WEFT_E_NO_IMPL;
    if (options->accumulate && (op == WEFTI_FOLD_MAX || y->dtype != WEFT_F32))
        return WEFT_E_NO_IMPL;
    reduce_kernel *k;
    WEFT_TRY(new_kernel("reduce", run_reduce, &k));
    k->op = op;
    k->x = x->dtype;
    k->y = y->dtype;
    k->accumulate = options->accumulate != 0;
    find_passes(k, x, reduced);
    if (op == WEFTI_FOLD_MEAN && (k->passes > 1 || count != k->pass[0].axis)) {
        k->op = WEFTI_FOLD_SUM;
        scale_by(k, 1.0 / (double)count, weft_desc_elems(y));
    }
    if (k->scaled && k->accumulate) {
        wefti_kernel_destroy(&k->base);
        return WEFT_E_NO_IMPL;
    }
    plan_workspace(k);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status over_axes(const weft_node *n, const wefti_prepare *options, wefti_reduce_op op,
                             wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *axes = wefti_attr_ints(n, WEFTI_AT_axes);
    bool reduced[WEFT_MAX_RANK] = {0};
    int64_t count = 1;
    for (int i = 0; i < axes->count; i++) {
        reduced[axes->v[i]] = true;
        count *= x->shape[axes->v[i]];
    }
    if (op == WEFTI_FOLD_MEAN && wefti_attr_int(n, WEFTI_AT_count))
        count = wefti_attr_int(n, WEFTI_AT_count);
    return reduction(n, reduced, op, count, options, out);
}

WEFTI_CPU_FORM(wefti_cpu_sum, over_axes, WEFTI_FOLD_SUM)
WEFTI_CPU_FORM(wefti_cpu_mean, over_axes, WEFTI_FOLD_MEAN)
WEFTI_CPU_FORM(wefti_cpu_max, over_axes, WEFTI_FOLD_MAX)

weft_status wefti_cpu_sum_to(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    bool reduced[WEFT_MAX_RANK] = {0};
    for (int d = 0; d < x->rank; d++) {
        int dy = d - (x->rank - y->rank);
        reduced[d] = dy < 0 || (y->shape[dy] == 1 && x->shape[d] != 1);
    }
    return reduction(n, reduced, WEFTI_FOLD_SUM, 1, options, out);
}

/* ---- mse(x, target) ---- */

/* Computes the differences of one block at a time, while they are in cache. */
static weft_status run_mse(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                           void *const *out, void *workspace) {
    const reduce_kernel *k = (const reduce_kernel *)kernel;
    float *difference = workspace;
    wefti_ew_program block = k->finish;
    double total = 0.0;
    for (int64_t at = 0; at < k->count; at += MSE_BLOCK) {
        int64_t n = k->count - at < MSE_BLOCK ? k->count - at : MSE_BLOCK;
        wefti_elementwise_args sub = {.program = &block, .out = {difference}};
        for (int i = 0; i < 2; i++)
            sub.in[i] =
                (const unsigned char *)in[i] + at * (int64_t)weft_dtype_bytes(block.input[i].dtype);
        block.elements = n;
        k->kernels->elementwise(run->pool, &sub);
        double sum = 0.0;
        wefti_sum_squares_args squares = {.x = {difference, WEFT_F32},
                                          .elements = n,
                                          .result = &sum,
                                          .workspace = (unsigned char *)workspace + k->half};
        k->kernels->sum_squares(run->pool, &squares);
        total += sum;
    }
    ((float *)out[0])[0] = (float)(total / (double)k->pass[0].axis);
    return WEFT_OK;
}

weft_status wefti_cpu_mse(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *target = wefti_in(n, 1);
    if (options->accumulate || !wefti_cpu_is_real(x) || !wefti_cpu_is_real(target))
        return WEFT_E_NO_IMPL;
    reduce_kernel *k;
    WEFT_TRY(new_kernel("mean squared error", run_mse, &k));
    int64_t count = wefti_attr_int(n, WEFTI_AT_count);
    k->count = weft_desc_elems(x);
    k->pass[0].axis = count ? count : k->count;
    wefti_ew_program *f = &k->finish;
    f->inputs = 2;
    f->outputs = f->instructions = 1;
    f->input[0] = (wefti_ew_input){.dtype = x->dtype, .broadcast = WEFTI_EW_FULL, .inner = 1};
    f->input[1] = (wefti_ew_input){.dtype = target->dtype, .broadcast = WEFTI_EW_FULL, .inner = 1};
    f->code[0] = (wefti_ew_instruction){.op = WEFTI_EW_SUB, .dst = 2, .a = 0, .b = 1};
    f->output[0].dtype = WEFT_F32;
    f->output[0].reg = 2;
    int64_t block = k->count < MSE_BLOCK ? k->count : MSE_BLOCK;
    k->half = wefti_aligned(block * 4);
    k->base.workspace_bytes = k->half + (int64_t)wefti_sum_squares_workspace_bytes(block);
    *out = &k->base;
    return WEFT_OK;
}

/* ---- grad_norm2(grad) ---- */

static weft_status run_norm2(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const reduce_kernel *k = (const reduce_kernel *)kernel;
    double result = 0;
    wefti_sum_squares_args a = {
        .x = {in[0], k->x}, .elements = k->count, .result = &result, .workspace = workspace};
    k->kernels->sum_squares(run->pool, &a);
    ((float *)out[0])[0] = (float)result;
    return WEFT_OK;
}

weft_status wefti_cpu_grad_norm2(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(x) || wefti_out(n, 0)->dtype != WEFT_F32)
        return WEFT_E_NO_IMPL;
    reduce_kernel *k;
    WEFT_TRY(new_kernel("sum of squares", run_norm2, &k));
    k->x = x->dtype;
    k->count = weft_desc_elems(x);
    k->base.workspace_bytes = (int64_t)wefti_sum_squares_workspace_bytes(k->count);
    *out = &k->base;
    return WEFT_OK;
}

/* ---- argmax ---- */

static weft_status run_argmax(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const reduce_kernel *k = (const reduce_kernel *)kernel;
    (void)workspace;
    wefti_argmax_args a = {.x = {in[0], k->x},
                           .y = {out[0], k->y},
                           .outer = k->pass[0].outer,
                           .reduce = k->pass[0].axis,
                           .inner = k->pass[0].inner};
    k->kernels->argmax(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_argmax(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    if (options->accumulate || !wefti_cpu_is_real(x)) return WEFT_E_NO_IMPL;
    reduce_kernel *k;
    WEFT_TRY(new_kernel("argmax", run_argmax, &k));
    k->pass[0] = (reduce_pass){wefti_cpu_span(x, 0, axis), x->shape[axis],
                               wefti_cpu_span(x, axis + 1, x->rank)};
    k->x = x->dtype;
    k->y = wefti_out(n, 0)->dtype;
    *out = &k->base;
    return WEFT_OK;
}
