/* Products: linear with its gradients, and batched matmul, on the GEMM of this folder. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

typedef struct product_kernel {
    wefti_kernel base;
    wefti_gemm gemm;
    int a, b, bias; /* operand numbers; bias -1: none */
} product_kernel;

static weft_status run_product(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const product_kernel *k = (const product_kernel *)kernel;
    wefti_gemm_args args = {
        .a = in[k->a], .b = in[k->b], .c = out[0], .bias = k->bias < 0 ? NULL : in[k->bias]};
    wefti_gemm_run(&k->gemm, &args, workspace, run->pool);
    return WEFT_OK;
}

static bool known(weft_dtype d) {
    return d == WEFT_F32 || d == WEFT_BF16 || d == WEFT_F64;
}

/* A product by `spec`, whose a, b are operands `a`, `b` of the node. */
static weft_status product(const wefti_gemm_spec *spec, int a, int b, int bias,
                           const wefti_prepare *options, wefti_kernel **out) {
    wefti_gemm gemm;
    if (!known(spec->a.dtype) || !known(spec->b.dtype) || !known(spec->c.dtype))
        return WEFT_E_NO_IMPL;
    weft_status status = wefti_gemm_prepare(spec, wefti_isa_best(), &gemm);
    if (status < 0) return status;
    wefti_kernel *k;
    WEFT_TRY(wefti_cpu_kernel(sizeof(product_kernel), "gemm", run_product, &k));
    product_kernel *p = (product_kernel *)k;
    p->gemm = gemm;
    p->a = a;
    p->b = b;
    p->bias = bias;
    k->workspace_bytes = wefti_gemm_workspace_bytes(&gemm, options->threads);
    *out = k;
    return WEFT_OK;
}

/* rows, k and cols of a linear from x [rows..., k] and w [k, n...] or [n..., k]. */
typedef struct sizes {
    int64_t rows, k, cols;
    bool transposed;
} sizes;

static sizes sizes_of(const weft_node *n, const weft_desc *x, const weft_desc *w) {
    sizes s = {.transposed = wefti_attr_int(n, "transposed") != 0};
    s.rows = wefti_cpu_span(x, 0, x->rank - 1);
    s.k = x->shape[x->rank - 1];
    s.cols = s.transposed ? wefti_cpu_span(w, 0, w->rank - 1) : wefti_cpu_span(w, 1, w->rank);
    return s;
}

weft_status wefti_cpu_linear(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *bias = wefti_in(n, 2);
    if (options->accumulate) return WEFT_E_NO_IMPL;
    if (bias && bias->dtype != (x->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32)) return WEFT_E_NO_IMPL;
    sizes s = sizes_of(n, x, w);
    wefti_gemm_spec spec = wefti_gemm_spec_of(wefti_out(n, 0)->dtype, s.rows, s.cols, s.k);
    spec.a = wefti_gemm_rows(x->dtype, s.k);
    spec.b =
        s.transposed ? wefti_gemm_transposed(w->dtype, s.k) : wefti_gemm_rows(w->dtype, s.cols);
    spec.has_bias = bias != NULL;
    return product(&spec, 0, 1, bias ? 2 : -1, options, out);
}

weft_status wefti_cpu_linear_grad_input(const weft_node *n, const wefti_prepare *options,
                                        wefti_kernel **out) {
    const weft_desc *dy = wefti_in(n, 0), *w = wefti_in(n, 1);
    sizes s = sizes_of(n, wefti_out(n, 0), w);
    wefti_gemm_spec spec = wefti_gemm_spec_of(wefti_out(n, 0)->dtype, s.rows, s.k, s.cols);
    spec.a = wefti_gemm_rows(dy->dtype, s.cols);
    spec.b =
        s.transposed ? wefti_gemm_rows(w->dtype, s.k) : wefti_gemm_transposed(w->dtype, s.cols);
    spec.accumulate = options->accumulate != 0;
    return product(&spec, 0, 1, -1, options, out);
}

weft_status wefti_cpu_linear_grad_weight(const weft_node *n, const wefti_prepare *options,
                                         wefti_kernel **out) {
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1), *dw = wefti_out(n, 0);
    sizes s = sizes_of(n, x, dw);
    bool t = s.transposed; /* then dw [cols, k] = dy^T x, else [k, cols] = x^T dy */
    wefti_gemm_spec spec =
        wefti_gemm_spec_of(dw->dtype, t ? s.cols : s.k, t ? s.k : s.cols, s.rows);
    spec.a = t ? wefti_gemm_transposed(dy->dtype, s.cols) : wefti_gemm_transposed(x->dtype, s.k);
    spec.b = t ? wefti_gemm_rows(x->dtype, s.k) : wefti_gemm_rows(dy->dtype, s.cols);
    spec.accumulate = options->accumulate != 0;
    return product(&spec, t ? 1 : 0, t ? 0 : 1, -1, options, out);
}

/* Batch strides of an operand whose leading dimensions broadcast to `y`'s, when they collapse into
 * two strides. */
static bool batch_strides(const weft_desc *x, const weft_desc *y, const int64_t group[2],
                          const int first[3], int64_t out[2]) {
    int lead_y = y->rank - 2, lead_x = x->rank - 2;
    int64_t stride = x->shape[x->rank - 1] * x->shape[x->rank - 2], strides[WEFT_MAX_RANK] = {0};
    for (int d = lead_y - 1; d >= 0; d--) {
        int dx = d - (lead_y - lead_x);
        int64_t size = dx < 0 ? 1 : x->shape[dx];
        strides[d] = size == 1 ? 0 : stride;
        stride *= size;
    }
    for (int part = 0; part < 2; part++) {
        out[part] = 0;
        if (group[part] <= 1) continue;
        int last = first[part + 1] - 1;
        out[part] = strides[last];
        int64_t expect = strides[last];
        for (int d = last; d >= first[part]; d--) {
            if (y->shape[d] == 1) continue;
            if (strides[d] != expect) return false;
            expect = strides[d] * y->shape[d];
        }
    }
    return true;
}

weft_status wefti_cpu_matmul(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *a = wefti_in(n, 0), *b = wefti_in(n, 1), *y = wefti_out(n, 0);
    bool ta = wefti_attr_int(n, "transpose_a") != 0, tb = wefti_attr_int(n, "transpose_b") != 0;
    int64_t m = y->shape[y->rank - 2], cols = y->shape[y->rank - 1];
    int64_t k = ta ? a->shape[a->rank - 2] : a->shape[a->rank - 1];
    wefti_gemm_spec spec = wefti_gemm_spec_of(y->dtype, m, cols, k);
    spec.a = ta ? wefti_gemm_transposed(a->dtype, m) : wefti_gemm_rows(a->dtype, k);
    spec.b = tb ? wefti_gemm_transposed(b->dtype, k) : wefti_gemm_rows(b->dtype, cols);
    spec.accumulate = options->accumulate != 0;
    /* Leading dimensions as two batch loops, cut where broadcasting changes. */
    int lead = y->rank - 2;
    for (int cut = 0; cut <= lead; cut++) {
        int first[3] = {0, cut, lead};
        int64_t group[2] = {wefti_cpu_span(y, 0, cut), wefti_cpu_span(y, cut, lead)};
        if (!batch_strides(a, y, group, first, spec.a.batch_stride) ||
            !batch_strides(b, y, group, first, spec.b.batch_stride) ||
            !batch_strides(y, y, group, first, spec.c.batch_stride))
            continue;
        spec.batch[0] = group[0];
        spec.batch[1] = group[1];
        return product(&spec, 0, 1, -1, options, out);
    }
    return WEFT_E_NO_IMPL;
}
