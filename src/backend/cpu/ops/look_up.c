/* Ops that look up elements by index, and their gradients. */
#include "backend/cpu/ops/ops.h"
#include "graph/graph.h"

typedef struct look_up {
    wefti_kernel base;
    const wefti_kernels *kernels;
    weft_dtype x, y, ids;
    int64_t outer, axis, inner, count; /* the rows of `axis`, and how many are looked up */
    /* for a piece: its begin and the whole size, in the index space of the ids */
    int64_t begin, whole, padding;
    bool accumulate;
} look_up;

static weft_status new_look_up(const char *label,
                               weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                  const void *const *, void *const *, void *),
                               look_up **out) {
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(look_up), label, run, &base));
    *out = (look_up *)base;
    (*out)->kernels = wefti_kernels_best();
    return WEFT_OK;
}

/* The ids name rows of x along `axis`, in the whole tensor if x is a piece. */
static void set_rows(look_up *k, const weft_node *n, const weft_desc *x, int axis,
                     const weft_desc *ids) {
    k->ids = ids->dtype;
    k->outer = wefti_cpu_span(x, 0, axis);
    k->axis = x->shape[axis];
    k->inner = wefti_cpu_span(x, axis + 1, x->rank);
    k->count = weft_desc_elems(ids);
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
}

static weft_status run_embedding(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    look_up *k;
    WEFT_TRY(new_look_up("embedding", run_embedding, &k));
    k->x = table->dtype;
    k->y = y->dtype;
    set_rows(k, n, table, 0, ids);
    k->whole = wefti_attr_int(n, WEFTI_AT_whole);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_embedding_grad(const wefti_kernel *kernel, const wefti_run *run,
                                      const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    look_up *k;
    WEFT_TRY(new_look_up("embedding", run_embedding_grad, &k));
    k->x = dy->dtype;
    set_rows(k, n, dtable, 0, ids);
    k->padding = wefti_attr_int(n, WEFTI_AT_padding);
    k->accumulate = options->accumulate != 0;
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_gather(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    int axis = wefti_cpu_axis(n, x);
    look_up *k;
    WEFT_TRY(new_look_up("gather", run_gather, &k));
    k->x = k->y = x->dtype;
    set_rows(k, n, x, axis, ids);
    *out = &k->base;
    return WEFT_OK;
}

/* scatter_add(x, index, updates): copies x, then adds rows in order. */
static weft_status run_scatter(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    int axis = wefti_cpu_axis(n, x);
    look_up *k;
    WEFT_TRY(new_look_up("scatter", run_scatter, &k));
    k->x = u->dtype;
    set_rows(k, n, x, axis, ids);
    k->base.in_place = 0;
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_one_hot(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    look_up *k;
    WEFT_TRY(new_look_up("one hot", run_one_hot, &k));
    k->ids = ids->dtype;
    k->y = y->dtype;
    k->count = weft_desc_elems(ids);
    k->axis = y->shape[y->rank - 1];
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_top_k(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const look_up *k = (const look_up *)kernel;
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
    int64_t count = wefti_attr_int(n, WEFTI_AT_k);
    if (options->accumulate || !wefti_cpu_is_real(x) || count < 1) return WEFT_E_NO_IMPL;
    look_up *k;
    WEFT_TRY(new_look_up("top k", run_top_k, &k));
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
    const look_up *k = (const look_up *)kernel;
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
    look_up *k;
    WEFT_TRY(new_look_up("scatter", run_top_k_grad, &k));
    k->x = dvalues->dtype;
    k->outer = wefti_cpu_span(ids, 0, ids->rank - 1);
    k->count = ids->shape[ids->rank - 1];
    k->axis = y->shape[y->rank - 1];
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    k->accumulate = options->accumulate != 0;
    *out = &k->base;
    return WEFT_OK;
}
