/* Ops that look up, move and pool. */
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
    weft_dtype x, y, ids;
    int64_t outer, axis, inner, count;
    /* for a piece: its begin and the whole size, in the index space of the ids */
    int64_t begin, whole, padding;
    double value;
    bool accumulate, has_fill, max;
    wefti_permute_args permute;
    wefti_pool2d_args pool;
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
        k->region = wefti_calloc((size_t)regions, sizeof *k->region);
        if (!k->region) {
            wefti_kernel_destroy(base);
            WEFT_FAIL(WEFT_E_NOMEM, "no memory for a kernel");
        }
    }
    *out = k;
    return WEFT_OK;
}

static int axis_of(const weft_node *n, const weft_desc *x) {
    int64_t axis = wefti_attr_int(n, "axis");
    return (int)(axis < 0 ? axis + x->rank : axis);
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
    k->value = wefti_attr_float(n, "value");
    *out = &k->base;
    return WEFT_OK;
}

/* ---- embedding and indexing ---- */

static weft_status run_embedding(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_embedding_args a = {.table = {in[0], k->x},
                              .ids = {in[1], k->ids},
                              .y = {out[0], k->y},
                              .rows = k->count,
                              .dim = k->inner,
                              .vocab = k->axis,
                              .begin = k->begin,
                              .whole = k->whole};
    k->kernels->embedding(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_embedding(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    const weft_desc *table = wefti_in(n, 0), *ids = wefti_in(n, 1), *y = wefti_out(n, 0);
    if (options->accumulate || !wefti_cpu_is_real(table) || !wefti_cpu_is_real(y) ||
        ids->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("embedding", run_embedding, 0, &k));
    k->x = table->dtype;
    k->ids = ids->dtype;
    k->y = y->dtype;
    k->axis = table->shape[0];
    k->inner = wefti_cpu_span(table, 1, table->rank);
    k->count = weft_desc_elems(ids);
    k->begin = wefti_attr_int(n, "begin");
    k->whole = wefti_attr_int(n, "whole");
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_embedding_grad(const wefti_kernel *kernel, const wefti_run *run,
                                      const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_embedding_backward_args a = {.ids = {in[0], k->ids},
                                       .dy = {in[1], k->x},
                                       .dtable = out[0],
                                       .accumulate = k->accumulate,
                                       .rows = k->count,
                                       .dim = k->inner,
                                       .vocab = k->axis,
                                       .begin = k->begin,
                                       .padding = k->padding};
    k->kernels->embedding_backward(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_embedding_grad(const weft_node *n, const wefti_prepare *options,
                                     wefti_kernel **out) {
    const weft_desc *ids = wefti_in(n, 0), *dy = wefti_in(n, 1), *dtable = wefti_out(n, 0);
    if (!wefti_cpu_is_real(dy) || dtable->dtype != WEFT_F32 || ids->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("embedding", run_embedding_grad, 0, &k));
    k->x = dy->dtype;
    k->ids = ids->dtype;
    k->axis = dtable->shape[0];
    k->inner = wefti_cpu_span(dtable, 1, dtable->rank);
    k->count = weft_desc_elems(ids);
    k->begin = wefti_attr_int(n, "begin");
    k->padding = wefti_attr_int(n, "padding");
    k->accumulate = options->accumulate != 0;
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_gather(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_gather_args a = {.x = {in[0], k->x},
                           .ids = {in[1], k->ids},
                           .y = {out[0], k->y},
                           .outer = k->outer,
                           .axis = k->axis,
                           .count = k->count,
                           .inner = k->inner,
                           .begin = k->begin};
    k->kernels->gather(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_gather(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *ids = wefti_in(n, 1);
    if (options->accumulate || ids->dtype != WEFT_I32 || ids->rank != 1) return WEFT_E_NO_IMPL;
    int axis = axis_of(n, x);
    data_kernel *k;
    WEFT_TRY(new_kernel("gather", run_gather, 0, &k));
    k->x = k->y = x->dtype;
    k->ids = ids->dtype;
    k->outer = wefti_cpu_span(x, 0, axis);
    k->axis = x->shape[axis];
    k->inner = wefti_cpu_span(x, axis + 1, x->rank);
    k->count = ids->shape[0];
    k->begin = wefti_attr_int(n, "begin");
    *out = &k->base;
    return WEFT_OK;
}

/* scatter_add(x, index, updates): copies x, then adds rows in order. */
static weft_status run_scatter(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    if (out[0] != in[0])
        k->kernels->convert(run->pool,
                            &(wefti_convert_args){.x = {in[0], WEFT_F32},
                                                  .y = {out[0], WEFT_F32},
                                                  .elements = k->outer * k->axis * k->inner});
    wefti_scatter_add_args a = {.x = {in[2], k->x},
                                .ids = {in[1], k->ids},
                                .y = out[0],
                                .accumulate = true,
                                .outer = k->outer,
                                .axis = k->axis,
                                .count = k->count,
                                .inner = k->inner,
                                .begin = k->begin};
    k->kernels->scatter_add(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_scatter_add(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *ids = wefti_in(n, 1), *u = wefti_in(n, 2);
    if (options->accumulate || x->dtype != WEFT_F32 || !wefti_cpu_is_real(u) ||
        ids->dtype != WEFT_I32 || ids->rank != 1)
        return WEFT_E_NO_IMPL;
    int axis = axis_of(n, x);
    data_kernel *k;
    WEFT_TRY(new_kernel("scatter", run_scatter, 0, &k));
    k->x = u->dtype;
    k->ids = ids->dtype;
    k->outer = wefti_cpu_span(x, 0, axis);
    k->axis = x->shape[axis];
    k->inner = wefti_cpu_span(x, axis + 1, x->rank);
    k->count = ids->shape[0];
    k->begin = wefti_attr_int(n, "begin");
    k->base.in_place = 0;
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_one_hot(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_one_hot_args a = {.ids = {in[0], k->ids},
                            .y = {out[0], k->y},
                            .rows = k->count,
                            .classes = k->axis,
                            .begin = k->begin,
                            .on = 1.0f};
    k->kernels->one_hot(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_one_hot(const weft_node *n, const wefti_prepare *options,
                              wefti_kernel **out) {
    const weft_desc *ids = wefti_in(n, 0), *y = wefti_out(n, 0);
    if (options->accumulate || ids->dtype != WEFT_I32 || !wefti_cpu_is_real(y))
        return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("one hot", run_one_hot, 0, &k));
    k->ids = ids->dtype;
    k->y = y->dtype;
    k->count = weft_desc_elems(ids);
    k->axis = y->shape[y->rank - 1];
    k->begin = wefti_attr_int(n, "begin");
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_top_k(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    wefti_top_k_args a = {.x = {in[0], k->x},
                          .rows = k->outer,
                          .dim = k->axis,
                          .k = k->count,
                          .values = {out[0], k->y},
                          .indices = {out[1], WEFT_I32},
                          .workspace = workspace};
    k->kernels->top_k(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_top_k(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    int64_t count = wefti_attr_int(n, "k");
    if (options->accumulate || !wefti_cpu_is_real(x) || count < 1) return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("top k", run_top_k, 0, &k));
    k->x = k->y = x->dtype;
    k->outer = wefti_cpu_span(x, 0, x->rank - 1);
    k->axis = x->shape[x->rank - 1];
    k->count = count;
    k->base.workspace_bytes = (int64_t)wefti_top_k_workspace_bytes(k->outer, k->axis, count);
    *out = &k->base;
    return WEFT_OK;
}

/* top_k_grad(index, dvalues): adds each row's gradients to a row of zeros. */
static weft_status run_top_k_grad(const wefti_kernel *kernel, const wefti_run *run,
                                  const void *const *in, void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_scatter_add_args a = {.x = {in[1], k->x},
                                .ids = {in[0], WEFT_I32},
                                .y = out[0],
                                .accumulate = k->accumulate,
                                .outer = k->outer,
                                .axis = k->axis,
                                .count = k->count,
                                .inner = 1,
                                .begin = k->begin,
                                .ids_per_outer = true};
    k->kernels->scatter_add(run->pool, &a);
    return WEFT_OK;
}

weft_status wefti_cpu_top_k_grad(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    const weft_desc *ids = wefti_in(n, 0), *dvalues = wefti_in(n, 1), *y = wefti_out(n, 0);
    if (!wefti_cpu_is_real(dvalues) || y->dtype != WEFT_F32 || ids->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("scatter", run_top_k_grad, 0, &k));
    k->x = dvalues->dtype;
    k->outer = wefti_cpu_span(ids, 0, ids->rank - 1);
    k->count = ids->shape[ids->rank - 1];
    k->axis = y->shape[y->rank - 1];
    k->begin = wefti_attr_int(n, "begin");
    k->accumulate = options->accumulate != 0;
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
    const wefti_ints *order = wefti_attr_ints(n, "order");
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
    at[axis_of(n, x)] = wefti_attr_int(n, "begin");
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
    int axis = axis_of(n, x);
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
    int axis = axis_of(n, y);
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
    const wefti_ints *before = wefti_attr_ints(n, "before"), *after = wefti_attr_ints(n, "after");
    if (options->accumulate) return WEFT_E_NO_IMPL;
    int64_t zero[WEFT_MAX_RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        if (before->v[d] < 0 || after->v[d] < 0) return WEFT_E_NO_IMPL;
    data_kernel *k;
    WEFT_TRY(new_kernel("pad", run_regions, 1, &k));
    k->has_fill = true;
    k->y = y->dtype;
    k->count = weft_desc_elems(y);
    k->value = wefti_attr_float(n, "value");
    set_region(&k->region[0], 0, 0, x, zero, y, before->v, x->shape);
    *out = &k->base;
    return WEFT_OK;
}

/* ---- pooling ---- */

static weft_status run_pool(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const data_kernel *k = (const data_kernel *)kernel;
    (void)workspace;
    wefti_pool2d_args a = k->pool;
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
    const data_kernel *k = (const data_kernel *)kernel;
    wefti_pool2d_args a = k->pool;
    if (k->max) {
        unsigned char *y = workspace;
        a.indices = (int32_t *)(void *)(y + k->count);
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
                               run_function *run, data_kernel **out) {
    if (!wefti_cpu_is_real(x) || !wefti_cpu_is_real(y) || x->rank != 4) return WEFT_E_NO_IMPL;
    const wefti_ints *kernel = wefti_attr_ints(n, "kernel"), *stride = wefti_attr_ints(n, "stride"),
                     *padding = wefti_attr_ints(n, "padding");
    data_kernel *k;
    WEFT_TRY(new_kernel("pool", run, 0, &k));
    k->pool = (wefti_pool2d_args){.planes = x->shape[0] * x->shape[1],
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
    data_kernel *k;
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
    data_kernel *k;
    const weft_desc *dy = wefti_in(n, max ? 1 : 0);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    weft_status status = pool_kernel(n, max, wefti_out(n, 0), dy, run_pool_grad, &k);
    if (status < 0) return status;
    int64_t elems = weft_desc_elems(dy);
    k->count = (elems * (int64_t)weft_dtype_bytes(dy->dtype) + 63) & ~(int64_t)63;
    if (max) k->base.workspace_bytes = k->count + elems * 4;
    *out = &k->base;
    return WEFT_OK;
}

WEFTI_CPU_FORM(wefti_cpu_max_pool_grad, pool_grad, true)
WEFTI_CPU_FORM(wefti_cpu_avg_pool_grad, pool_grad, false)
