/* Mixtures of experts: slots, rows to the experts and back, and the experts' products. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

/* ---- slots ---- */

typedef struct slots_kernel {
    wefti_kernel base;
    int64_t rows, size, choices, experts, capacity; /* tokens are [rows, size] */
    int leading; /* dimensions of the counts in front of the choices; 0: no counts */
    int64_t whole[WEFT_MAX_RANK], begin[WEFT_MAX_RANK], here[WEFT_MAX_RANK]; /* of those */
} slots_kernel;

/* Row number `row` of all, in this piece: its number here, else -1. */
static int64_t row_here(const slots_kernel *k, int64_t row) {
    int64_t local = 0, stride = 1;
    for (int d = k->leading - 1; d >= 0; d--) {
        int64_t i = row % k->whole[d] - k->begin[d];
        row /= k->whole[d];
        if (i < 0 || i >= k->here[d]) return -1;
        local += i * stride;
        stride *= k->here[d];
    }
    return local;
}

/* In one task: a few operations for each choice. */
static weft_status run_slots(const wefti_kernel *kernel, const wefti_run *run,
                             const void *const *in, void *const *out, void *workspace) {
    const slots_kernel *k = (const slots_kernel *)kernel;
    const int32_t *expert = in[0], *counts = k->leading ? in[1] : NULL;
    int32_t *slot = out[0], *used = out[1];
    (void)run;
    (void)workspace;
    int64_t rows = counts ? 1 : k->rows;
    for (int d = 0; d < k->leading; d++) rows *= k->whole[d];
    memset(used, 0, (size_t)k->experts * sizeof *used);
    for (int64_t c = 0; c < k->choices; c++)
        for (int64_t row = 0; row < rows; row++) {
            int64_t local = counts ? row_here(k, row) : row;
            for (int64_t e = 0; local < 0 && e < k->experts; e++)
                used[e] += counts[(row * k->choices + c) * k->experts + e];
            for (int64_t t = local * k->size; local >= 0 && t < (local + 1) * k->size; t++) {
                int64_t i = t * k->choices + c, e = expert[i];
                bool known = e >= 0 && e < k->experts;
                slot[i] = known && used[e] < k->capacity ? used[e] : -1;
                if (known) used[e]++;
            }
        }
    for (int64_t e = 0; e < k->experts; e++)
        if (used[e] > k->capacity) used[e] = (int32_t)k->capacity;
    return WEFT_OK;
}

static weft_status run_counts(const wefti_kernel *kernel, const wefti_run *run,
                              const void *const *in, void *const *out, void *workspace) {
    const slots_kernel *k = (const slots_kernel *)kernel;
    const int32_t *expert = in[0];
    int32_t *count = out[0];
    (void)run;
    (void)workspace;
    memset(count, 0, (size_t)(k->rows * k->choices * k->experts) * sizeof *count);
    for (int64_t i = 0; i < k->rows * k->size * k->choices; i++) {
        int64_t row = i / (k->size * k->choices) * k->choices + i % k->choices;
        if (expert[i] >= 0 && expert[i] < k->experts) count[row * k->experts + expert[i]]++;
    }
    return WEFT_OK;
}

static weft_status slots(const weft_node *n, const wefti_prepare *options, const char *label,
                         weft_status (*run)(const wefti_kernel *, const wefti_run *,
                                            const void *const *, void *const *, void *),
                         slots_kernel **out) {
    const weft_desc *expert = wefti_in(n, 0);
    wefti_kernel *base;
    if (options->accumulate) return WEFT_E_NO_IMPL;
    WEFT_TRY(wefti_cpu_kernel(sizeof(slots_kernel), label, run, &base));
    slots_kernel *k = (slots_kernel *)base;
    k->rows = wefti_cpu_span(expert, 0, expert->rank - 2);
    k->size = expert->shape[expert->rank - 2];
    k->choices = expert->shape[expert->rank - 1];
    k->experts = wefti_attr_int(n, "experts");
    *out = k;
    return WEFT_OK;
}

weft_status wefti_cpu_moe_slots(const weft_node *n, const wefti_prepare *options,
                                wefti_kernel **out) {
    const weft_desc *expert = wefti_in(n, 0), *counts = wefti_in(n, 1);
    slots_kernel *k;
    weft_status status = slots(n, options, "slots", run_slots, &k);
    if (status < 0) return status;
    k->capacity = wefti_attr_int(n, "capacity");
    if (counts) k->leading = counts->rank - 2;
    for (int d = 0; d < k->leading; d++) {
        k->whole[d] = counts->shape[d];
        k->begin[d] = wefti_attr_ints(n, "at")->v[d];
        k->here[d] = d < k->leading - 1 ? expert->shape[d] : 1;
    }
    *out = &k->base;
    return WEFT_OK;
}

weft_status wefti_cpu_moe_counts(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    slots_kernel *k;
    weft_status status = slots(n, options, "counts", run_counts, &k);
    if (status < 0) return status;
    *out = &k->base;
    return WEFT_OK;
}

/* ---- rows ---- */

typedef struct rows_kernel {
    wefti_kernel base;
    void (*kernel)(wefti_pool *pool, const wefti_moe_args *a);
    wefti_moe_args args; /* sizes and dtypes */
    bool weight, dot;
} rows_kernel;

static weft_status run_rows(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    const rows_kernel *k = (const rows_kernel *)kernel;
    wefti_moe_args a = k->args;
    a.from.data = in[0];
    a.expert = in[1];
    a.slot = in[2];
    a.workspace = workspace;
    if (k->dot) {
        a.x.data = in[3];
        a.dots = out[0];
    } else {
        a.to.data = out[0];
        if (k->weight) a.weight.data = in[3];
    }
    k->kernel(run->pool, &a);
    return WEFT_OK;
}

/* `tokens` and `buffers` are x and y of ops/moe.c; input 0 is one of them. */
static weft_status rows(const weft_node *n, const wefti_prepare *options, const char *label,
                        void (*kernel)(wefti_pool *, const wefti_moe_args *),
                        const weft_desc *tokens, const weft_desc *buffers, wefti_kernel **out) {
    const weft_desc *expert = wefti_in(n, 1), *last = wefti_in(n, 3);
    int64_t choices = expert->shape[expert->rank - 1], count = weft_desc_elems(expert);
    int64_t slots_here = buffers->shape[0] * buffers->shape[1];
    if (options->accumulate || !wefti_cpu_is_real(tokens) || !wefti_cpu_is_real(buffers) ||
        (last && !wefti_cpu_is_real(last)) || choices > WEFTI_MOE_CHOICES || count > INT32_MAX)
        return WEFT_E_NO_IMPL;
    WEFT_TRY(wefti_cpu_kernel(sizeof(rows_kernel), label, run_rows, out));
    rows_kernel *k = (rows_kernel *)*out;
    k->kernel = kernel;
    k->dot = kernel == wefti_kernels_best()->moe_dot;
    k->weight = last && !k->dot;
    k->args = (wefti_moe_args){.from = {NULL, wefti_in(n, 0)->dtype},
                               .to = {NULL, wefti_out(n, 0)->dtype},
                               .tokens = wefti_cpu_span(expert, 0, expert->rank - 1),
                               .choices = choices,
                               .h = buffers->shape[2],
                               .experts = buffers->shape[0],
                               .capacity = buffers->shape[1],
                               .first_expert = wefti_attr_int(n, "first_expert"),
                               .first_slot = wefti_attr_int(n, "first_slot")};
    if (k->dot) k->args.x.dtype = last->dtype;
    if (k->weight) k->args.weight.dtype = last->dtype;
    if (kernel == wefti_kernels_best()->moe_dispatch)
        k->base.workspace_bytes = (slots_here + count) * (int64_t)sizeof(int32_t);
    return WEFT_OK;
}

weft_status wefti_cpu_moe_dispatch(const weft_node *n, const wefti_prepare *options,
                                   wefti_kernel **out) {
    return rows(n, options, "dispatch", wefti_kernels_best()->moe_dispatch, wefti_in(n, 0),
                wefti_out(n, 0), out);
}

weft_status wefti_cpu_moe_combine(const weft_node *n, const wefti_prepare *options,
                                  wefti_kernel **out) {
    return rows(n, options, "combine", wefti_kernels_best()->moe_combine, wefti_out(n, 0),
                wefti_in(n, 0), out);
}

weft_status wefti_cpu_moe_dot(const weft_node *n, const wefti_prepare *options,
                              wefti_kernel **out) {
    return rows(n, options, "dot", wefti_kernels_best()->moe_dot, wefti_in(n, 3), wefti_in(n, 0),
                out);
}

/* ---- products ---- */

/* One product for each expert over the rows that are in use, prepared when their number is known:
 * a plain computation. Small ones run side by side, one thread each; large ones share all threads.
 */
typedef struct experts_kernel {
    wefti_kernel base;
    wefti_gemm_spec spec; /* of full buffers; for the weight's gradient k is the rows */
    int64_t experts, rows, first;
    bool weight_gradient, swapped, side_by_side, counted;
    int64_t workspace; /* of one product */
} experts_kernel;

typedef struct experts_run {
    const experts_kernel *kernel;
    const char *a, *b;
    char *c;
    const int32_t *count;
    char *workspace;
    wefti_pool *pool; /* NULL: side by side */
} experts_run;

static int64_t rows_in_use(const experts_kernel *k, const int32_t *count, int64_t e) {
    int64_t rows = count ? count[e] - k->first : k->rows;
    return rows < 0 ? 0 : rows > k->rows ? k->rows : rows;
}

static wefti_gemm_spec spec_of(const experts_kernel *k, int64_t rows) {
    wefti_gemm_spec spec = k->spec;
    if (k->weight_gradient)
        spec.k = rows;
    else
        spec.m = rows;
    return spec;
}

static void one_expert(void *context, int64_t e, int thread) {
    experts_run *r = context;
    const experts_kernel *k = r->kernel;
    const wefti_gemm_spec *s = &k->spec;
    int64_t rows = rows_in_use(k, r->count, e);
    wefti_gemm_spec spec = spec_of(k, rows);
    wefti_gemm gemm;
    /* All sizes were prepared before (workspace_of): it cannot fail. */
    if (wefti_gemm_prepare(&spec, wefti_isa_best(), &gemm) < 0) return;
    int64_t size = (int64_t)weft_dtype_bytes(s->c.dtype);
    char *c = r->c + e * s->m * s->n * size;
    wefti_gemm_args args = {.a = r->a + e * s->m * s->k * (int64_t)weft_dtype_bytes(s->a.dtype),
                            .b = r->b + e * s->k * s->n * (int64_t)weft_dtype_bytes(s->b.dtype),
                            .c = c};
    wefti_gemm_run(&gemm, &args, r->workspace + thread * k->workspace, r->pool);
    if (!k->weight_gradient && !s->accumulate)
        memset(c + rows * s->n * size, 0, (size_t)((s->m - rows) * s->n * size));
}

static weft_status run_experts(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const experts_kernel *k = (const experts_kernel *)kernel;
    experts_run r = {.kernel = k,
                     .a = in[k->swapped ? 1 : 0],
                     .b = in[k->swapped ? 0 : 1],
                     .c = out[0],
                     .count = k->counted ? in[2] : NULL,
                     .workspace = workspace,
                     .pool = k->side_by_side ? NULL : run->pool};
    if (k->side_by_side)
        wefti_pool_run(run->pool, k->experts, one_expert, &r);
    else
        for (int64_t e = 0; e < k->experts; e++) one_expert(&r, e, 0);
    return WEFT_OK;
}

/* What the largest product needs: sizes up to that of full buffers. */
static weft_status workspace_of(experts_kernel *k, int threads) {
    int64_t most = 0;
    for (int64_t rows = 0; rows <= k->rows; rows++) {
        wefti_gemm_spec spec = spec_of(k, rows);
        wefti_gemm gemm;
        weft_status status = wefti_gemm_prepare(&spec, wefti_isa_best(), &gemm);
        if (status < 0) return status;
        int64_t bytes = wefti_gemm_workspace_bytes(&gemm, k->side_by_side ? 1 : threads);
        if (bytes > most) most = bytes;
    }
    k->workspace = (most + 63) / 64 * 64;
    k->base.workspace_bytes = k->side_by_side ? threads * k->workspace : k->workspace;
    return WEFT_OK;
}

static weft_status experts(const weft_node *n, const wefti_prepare *options,
                           const wefti_gemm_spec *spec, bool weight_gradient, bool swapped,
                           wefti_kernel **out) {
    enum { SMALL = 100000000 }; /* multiplications: some milliseconds of one thread */
    const weft_desc *x = wefti_in(n, 0);
    wefti_gemm gemm;
    weft_status status = wefti_gemm_prepare(spec, wefti_isa_best(), &gemm);
    if (status < 0) return status;
    wefti_kernel *base;
    WEFT_TRY(wefti_cpu_kernel(sizeof(experts_kernel), "gemm experts", run_experts, &base));
    experts_kernel *k = (experts_kernel *)base;
    k->spec = *spec;
    k->experts = x->shape[0];
    k->rows = x->shape[1];
    k->first = wefti_attr_int(n, "first_row");
    k->weight_gradient = weight_gradient;
    k->swapped = swapped;
    k->counted = wefti_in(n, 2) != NULL;
    k->side_by_side = (double)spec->m * (double)spec->n * (double)spec->k <= SMALL;
    status = workspace_of(k, options->threads);
    if (status < 0) {
        wefti_kernel_destroy(base);
        return status;
    }
    *out = base;
    return WEFT_OK;
}

static bool takes(const wefti_gemm_spec *s) {
    const weft_dtype d[] = {s->a.dtype, s->b.dtype, s->c.dtype};
    bool f64 = d[0] == WEFT_F64 && d[1] == WEFT_F64 && d[2] == WEFT_F64, real = true;
    for (int i = 0; i < 3; i++) real = real && (d[i] == WEFT_F32 || d[i] == WEFT_BF16);
    return f64 || real;
}

weft_status wefti_cpu_moe_linear(const weft_node *n, const wefti_prepare *options,
                                 wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *y = wefti_out(n, 0);
    int64_t depth = x->shape[2], cols = y->shape[2];
    wefti_gemm_spec spec = wefti_gemm_spec_of(y->dtype, x->shape[1], cols, depth);
    spec.a = wefti_gemm_rows(x->dtype, depth);
    spec.b = wefti_attr_int(n, "transposed") ? wefti_gemm_transposed(w->dtype, depth)
                                             : wefti_gemm_rows(w->dtype, cols);
    spec.accumulate = options->accumulate != 0;
    return takes(&spec) ? experts(n, options, &spec, false, false, out) : WEFT_E_NO_IMPL;
}

weft_status wefti_cpu_moe_linear_grad_weight(const weft_node *n, const wefti_prepare *options,
                                             wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    int64_t depth = x->shape[2], cols = dy->shape[2];
    bool t = wefti_attr_int(n, "transposed") != 0; /* then dw [n, k] = dy^T x, else x^T dy */
    wefti_gemm_spec spec =
        wefti_gemm_spec_of(wefti_out(n, 0)->dtype, t ? cols : depth, t ? depth : cols, x->shape[1]);
    spec.a = t ? wefti_gemm_transposed(dy->dtype, cols) : wefti_gemm_transposed(x->dtype, depth);
    spec.b = t ? wefti_gemm_rows(x->dtype, depth) : wefti_gemm_rows(dy->dtype, cols);
    spec.accumulate = options->accumulate != 0;
    return takes(&spec) ? experts(n, options, &spec, true, t, out) : WEFT_E_NO_IMPL;
}
