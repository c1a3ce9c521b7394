/* Gradients of tables as rows, and their updates: see rows/rows.h. */
#include "backend/cpu/ops/ops.h"
#include "graph/graph.h"
#include "layout/layout.h"
#include "rows/rows.h"

typedef struct touched_kernel {
    wefti_kernel base;
    const wefti_kernels *kernels;
    weft_dtype dtype; /* of dy */
    int64_t places, width, dim, vocab, begin, padding, first;
    int32_t parts, ends[];
} touched_kernel;

static weft_status new_kernel(const char *label, int32_t parts,
                              weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                                 const void *const *, void *const *, void *),
                              touched_kernel **out) {
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(touched_kernel) + (size_t)parts * sizeof(int32_t), label, run,
                              &base));
    *out = (touched_kernel *)base;
    (*out)->kernels = wefti_kernels_best();
    (*out)->parts = parts;
    return WEFT_OK;
}

static weft_status run_embedding_rows(const wefti_kernel *kernel, const wefti_run *run,
                                      const void *const *in, void *const *out, void *workspace) {
    const touched_kernel *k = (const touched_kernel *)kernel;
    (void)workspace;
    k->kernels->embedding_rows(run->pool, &(wefti_embedding_rows_args){.ids = {in[0], WEFT_I32},
                                                                       .dy = {in[1], k->dtype},
                                                                       .y = out[0],
                                                                       .rows = k->places,
                                                                       .dim = k->dim,
                                                                       .vocab = k->vocab,
                                                                       .begin = k->begin,
                                                                       .padding = k->padding});
    return WEFT_OK;
}

weft_status wefti_cpu_embedding_rows(const weft_node *n, const wefti_prepare *options,
                                     wefti_kernel **out) {
    const weft_desc *dy = wefti_in(n, 1);
    if (options->accumulate || !wefti_cpu_is_real(dy) || wefti_in(n, 0)->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    touched_kernel *k;
    WEFT_TRY(new_kernel("embedding", 0, run_embedding_rows, &k));
    k->dtype = dy->dtype;
    k->places = weft_desc_elems(wefti_in(n, 0));
    k->dim = dy->shape[dy->rank - 1];
    k->vocab = wefti_attr_int(n, WEFTI_AT_vocab);
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    k->padding = wefti_attr_int(n, WEFTI_AT_padding);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_rows_find(const wefti_kernel *kernel, const wefti_run *run,
                                 const void *const *in, void *const *out, void *workspace) {
    const touched_kernel *k = (const touched_kernel *)kernel;
    const int32_t *given = in[0];
    int32_t *row = out[0], *place = out[1], *ids = workspace;
    wefti_rows rows;
    (void)run;
    for (int64_t i = 0; i < k->places; i++)
        ids[i] = given[i] >= 0 && given[i] < k->vocab ? given[i] : -1;
    wefti_rows_find(ids, k->places, ids + k->places, &rows);
    int32_t end = rows.count;
    for (int64_t i = 0; i < k->places; i++) {
        row[i] = i < rows.count ? rows.ids[i] : -1;
        place[i] = -1;
    }
    for (int32_t r = 0; r < rows.count; r++)
        for (int32_t i = rows.begin[r]; i < rows.begin[r + 1]; i++) {
            if (i > rows.begin[r]) row[end++] = wefti_rows_repeat(r);
            place[rows.place[i]] = r;
        }
    return WEFT_OK;
}

weft_status wefti_cpu_rows_find(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    if (options->accumulate || wefti_in(n, 0)->dtype != WEFT_I32) return WEFT_E_NO_IMPL;
    touched_kernel *k;
    WEFT_TRY(new_kernel("rows", 0, run_rows_find, &k));
    k->places = weft_desc_elems(wefti_in(n, 0));
    k->vocab = wefti_attr_int(n, WEFTI_AT_vocab);
    k->base.workspace_bytes = (int64_t)wefti_rows_sum_workspace_bytes(k->places);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_rows_sum(const wefti_kernel *kernel, const wefti_run *run,
                                const void *const *in, void *const *out, void *workspace) {
    const touched_kernel *k = (const touched_kernel *)kernel;
    k->kernels->rows_sum(run->pool, &(wefti_rows_sum_args){.x = in[0],
                                                           .ids = out[0],
                                                           .sums = out[1],
                                                           .ends = k->ends,
                                                           .places = k->places,
                                                           .width = k->width,
                                                           .first = k->first,
                                                           .columns = k->dim,
                                                           .vocab = k->vocab,
                                                           .begin = k->begin,
                                                           .parts = k->parts,
                                                           .workspace = workspace});
    return WEFT_OK;
}

weft_status wefti_cpu_rows_sum(const weft_node *n, const wefti_prepare *options,
                               wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_f32(x)) return WEFT_E_NO_IMPL;
    const int32_t parts = (int32_t)wefti_attr_int(n, WEFTI_AT_parts);
    const int64_t whole = x->rank > 1 ? x->shape[0] : 1;
    touched_kernel *k;
    WEFT_TRY(new_kernel("rows", parts, run_rows_sum, &k));
    k->places = wefti_cpu_span(x, 0, x->rank - 1);
    k->width = x->shape[x->rank - 1];
    k->first = WEFTI_ROWS_ID + wefti_attr_int(n, WEFTI_AT_first_column);
    k->dim = wefti_attr_int(n, WEFTI_AT_columns);
    k->vocab = wefti_attr_int(n, WEFTI_AT_vocab);
    k->begin = wefti_attr_int(n, WEFTI_AT_begin);
    for (int32_t p = 0; p < parts; p++) {
        int64_t begin, size;
        wefti_part(whole, wefti_attr_int(n, WEFTI_AT_unit), parts, p, &begin, &size);
        k->ends[p] = (int32_t)(whole ? (begin + size) * (k->places / whole) : 0);
    }
    k->base.workspace_bytes = (int64_t)wefti_rows_sum_workspace_bytes(k->places);
    *out = &k->base;
    return WEFT_OK;
}

static weft_status run_rows_write(const wefti_kernel *kernel, const wefti_run *run,
                                  const void *const *in, void *const *out, void *workspace) {
    const touched_kernel *k = (const touched_kernel *)kernel;
    (void)workspace;
    k->kernels->rows_write(run->pool, &(wefti_rows_write_args){.table = out[0],
                                                               .ids = in[1],
                                                               .x = in[2],
                                                               .count = k->places,
                                                               .dim = k->dim,
                                                               .vocab = k->vocab});
    return WEFT_OK;
}

weft_status wefti_cpu_rows_write(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    const weft_desc *table = wefti_in(n, 0);
    if (options->accumulate || !wefti_cpu_is_f32(table) || wefti_in(n, 1)->dtype != WEFT_I32)
        return WEFT_E_NO_IMPL;
    touched_kernel *k;
    WEFT_TRY(new_kernel("rows", 0, run_rows_write, &k));
    k->places = wefti_in(n, 1)->shape[0];
    k->dim = table->shape[1];
    k->vocab = table->shape[0];
    *out = &k->base;
    return WEFT_OK;
}
