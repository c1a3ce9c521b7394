/* Constants, casts, and ops that move elements. */
#include <string.h>

#include "backend/cpu/ops/ops.h"
#include "graph/graph.h"

/* Copies of regions. Every shape op that moves data is a list of such copies. */
enum { MAX_REGIONS = 16 };

typedef struct region {
    int in, out;              /* operand numbers */
    int64_t x_begin, y_begin; /* bytes into them */
    wefti_copy_strided_args args;
} region;

typedef struct data_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    weft_dtype x, y;
    int64_t count;
    double value;
    bool has_fill;
    wefti_permute_args permute;
    int regions;
    region *region;
} data_kernel;

typedef weft_status run_function(const wefti_kernel *, const wefti_run *, const void *const *,
                                 void *const *, void *);

static void destroy_data(wefti_kernel *kernel) {
    wefti_free(((data_kernel *)kernel)->region);
    wefti_free(kernel);
}

static weft_status new_kernel(const char *label, run_function *run, int regions,
                              data_kernel **out) {
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(data_kernel), label, run, &base));
    data_kernel *k = (data_kernel *)base;
    base->destroy = destroy_data;
    k->kernels = wefti_kernels_best();
    k->regions = regions;
    if (regions) {
        base->bytes += regions * (int64_t)sizeof *k->region;
        k->region = wefti_calloc((size_t)regions, sizeof *k->region);
        if (!k->region) {
            wefti_kernel_destroy(base);
            WEFT_FAIL(WEFT_E_NOMEM, "no memory for a kernel");
        }
    }
    *out = k;
    return WEFT_OK;
}

/* ---- constant ---- */

static weft_status run_constant(const wefti_kernel *kernel, const wefti_run *run,
                                const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)in;
    (void)workspace;
    wefti_fill_args a = {.y = {out[0], k->y}, .elements = k->count, .value = k->value};
    k->kernels->fill(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_constant(const weft_node *n, const wefti_prepare *options,
                               wefti_kernel **out) {
    if (options->accumulate) return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("fill", run_constant, 0, &k));
    k->y = wefti_out(n, 0)->dtype;
    k->count = weft_desc_elems(wefti_out(n, 0));
    k->value = wefti_attr_float(n, WEFTI_AT_value);
    *out = &k->base;
    return WEFT_OK;
}

/* ---- cast ---- */

static weft_status run_convert(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_convert_args a = {.x = {in[0], k->x}, .y = {out[0], k->y}, .elements = k->count};
    k->kernels->convert(run->pool, &a);
    return WEFT_OK;
}

/* Uses the elementwise kernel if it takes the dtypes; else converts through double. */
weft_status wefti_cpu_cast(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    if (options->accumulate) return WEFT_E_NO_IMPL;
    weft_status status = wefti_cpu_elementwise(n, options, out);
    if (status != WEFT_E_NO_IMPL) return status;
    data_kernel *k;
    WEFT_TRY(new_kernel("convert", run_convert, 0, &k));
    k->x = wefti_in(n, 0)->dtype;
    k->y = wefti_out(n, 0)->dtype;
    k->count = weft_desc_elems(wefti_out(n, 0));
    *out = &k->base;
    return WEFT_OK;
}

/* ---- moving ---- */

static weft_status run_transpose(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_permute_args a = k->permute;
    a.x = in[0];
    a.y = out[0];
    k->kernels->permute(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_transpose(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *order = wefti_attr_ints(n, WEFTI_AT_order);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("transpose", run_transpose, 0, &k));
    k->permute.element = (int)weft_dtype_bytes(x->dtype);
    k->permute.rank = x->rank;
    memcpy(k->permute.shape, x->shape, sizeof k->permute.shape);
    for (int d = 0; d < x->rank; d++)
        k->permute.axes[d] = (int)(order->v[d] < 0 ? order->v[d] + x->rank : order->v[d]);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_regions(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    if (k->has_fill)
        k->kernels->fill(
            run->pool,
            &(wefti_fill_args){.y = {out[0], k->y}, .elements = k->count, .value = k->value});
    for (int i = 0; i < k->regions; i++) {
        wefti_copy_strided_args a = k->region[i].args;
        a.x = (const unsigned char *)in[k->region[i].in] + k->region[i].x_begin;
        a.y = (unsigned char *)out[k->region[i].out] + k->region[i].y_begin;
        k->kernels->copy_strided(run->pool, &a);
    }
    return WEFT_OK;
}

/* The region of `shape` at element offsets in x and y. */
static void set_region(region *b, int in, int out, const weft_desc *x, const int64_t *x_at,
                       const weft_desc *y, const int64_t *y_at, const int64_t *shape) {
    int64_t element = (int64_t)weft_dtype_bytes(x->dtype);
    b->in = in;
    b->out = out;
    b->args.element = (int)element;
    b->args.rank = x->rank;
    wefti_strides(x, b->args.x_strides);
    wefti_strides(y, b->args.y_strides);
    for (int d = 0; d < x->rank; d++) {
        b->args.shape[d] = shape[d];
        b->x_begin += x_at[d] * b->args.x_strides[d] * element;
        b->y_begin += y_at[d] * b->args.y_strides[d] * element;
    }
}

/* Uses the elementwise kernel if it can; else a copy that reads some elements several times. */
weft_status wefti_cpu_broadcast_to(const weft_node *n, const wefti_prepare *options,
                                   wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    weft_status status = wefti_cpu_elementwise(n, options, out);
    if (status != WEFT_E_NO_IMPL) return status;
    const int64_t zero[WEFT_MAX_RANK] = {0};
    int64_t strides[WEFT_MAX_RANK] = {0};
    data_kernel *k;
    WEFT_TRY(new_kernel("copy", run_regions, 1, &k));
    wefti_copy_strided_args *a = &k->region[0].args;
    set_region(&k->region[0], 0, 0, y, zero, y, zero, y->shape);
    wefti_strides(x, strides);
    for (int d = 0; d < y->rank; d++) {
        int dx = d - (y->rank - x->rank);
        a->x_strides[d] = dx < 0 || x->shape[dx] == 1 ? 0 : strides[dx];
    }
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_slice(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    int64_t at[WEFT_MAX_RANK] = {0}, zero[WEFT_MAX_RANK] = {0};
    at[wefti_cpu_axis(n, x)] = wefti_attr_int(n, WEFTI_AT_begin);
    data_kernel *k;
    WEFT_TRY(new_kernel("copy", run_regions, 1, &k));
    set_region(&k->region[0], 0, 0, x, at, y, zero, y->shape);
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_split(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    int64_t at[WEFT_MAX_RANK] = {0}, zero[WEFT_MAX_RANK] = {0};
    int axis = wefti_cpu_axis(n, x);
    data_kernel *k;
    WEFT_TRY(new_kernel("copy", run_regions, n->outputs, &k));
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *y = wefti_out(n, o);
        set_region(&k->region[o], 0, o, x, at, y, zero, y->shape);
        at[axis] += y->shape[axis];
    }
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_concat(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *y = wefti_out(n, 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    int64_t at[WEFT_MAX_RANK] = {0}, zero[WEFT_MAX_RANK] = {0};
    int axis = wefti_cpu_axis(n, y);
    data_kernel *k;
    WEFT_TRY(new_kernel("copy", run_regions, n->inputs, &k));
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        set_region(&k->region[i], i, 0, x, zero, y, at, x->shape);
        at[axis] += x->shape[axis];
    }
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_pad(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    const wefti_ints *before = wefti_attr_ints(n, WEFTI_AT_before),
                     *after = wefti_attr_ints(n, WEFTI_AT_after);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    int64_t zero[WEFT_MAX_RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        if (before->v[d] < 0 || after->v[d] < 0) return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("pad", run_regions, 1, &k));
    k->has_fill = true;
    k->y = y->dtype;
    k->count = weft_desc_elems(y);
    k->value = wefti_attr_float(n, WEFTI_AT_value);
    set_region(&k->region[0], 0, 0, x, zero, y, before->v, x->shape);
    *out = &k->base;
    return WEFT_OK;
}
