/* Products: linear with its gradients, and batched matmul, on the GEMM of this folder. */
#include "backend/cpu/ops/ops.h"
#include "backend/cpu/gemm/gemm.h"

/* Leading dimensions beyond the two batch loops of a product. Each index is a separate run, with
 * the byte distance from one run to the next. */
typedef struct outer_loops {
    int count;
    int64_t size[WEFT_MAX_RANK], a[WEFT_MAX_RANK], b[WEFT_MAX_RANK], c[WEFT_MAX_RANK];
} outer_loops;

typedef struct product_kernel {
    wefti_kernel base;
    wefti_gemm gemm;
    int a, b, bias; /* operand numbers; bias -1: none */
    outer_loops loops;
} product_kernel;

static weft_status run_product(const wefti_kernel *kernel, const wefti_run *run,
                               const void *const *in, void *const *out, void *workspace) {
    const product_kernel *k = (const product_kernel *)kernel;
    const outer_loops *l = &k->loops;
    int64_t runs = 1;
    for (int d = 0; d < l->count; d++) runs *= l->size[d];
    for (int64_t r = 0; r < runs; r++) {
        int64_t index = r, a = 0, b = 0, c = 0;
        for (int d = l->count - 1; d >= 0; d--) {
            int64_t i = index % l->size[d];
            index /= l->size[d];
            a += i * l->a[d];
            b += i * l->b[d];
            c += i * l->c[d];
        }
        wefti_gemm_args args = {.a = (const unsigned char *)in[k->a] + a,
                                .b = (const unsigned char *)in[k->b] + b,
                                .c = (unsigned char *)out[0] + c,
                                .bias = k->bias < 0 ? NULL : in[k->bias]};
        wefti_gemm_run(&k->gemm, &args, workspace, run->pool);
    }
    return WEFT_OK;
}

static bool known(weft_dtype d) {
    return d == WEFT_F32 || d == WEFT_BF16 || d == WEFT_F64;
}

/* A product by `spec`: a and b are operands `a` and `b` of a node. It runs once for each index of
 * `loops`. */
static weft_status product_loops(const wefti_gemm_spec *spec, int a, int b, int bias,
                                 const outer_loops *loops, const wefti_prepare *options,
                                 wefti_kernel **out) {
    wefti_gemm gemm;
    if (!known(spec->a.dtype) || !known(spec->b.dtype) || !known(spec->c.dtype))
        return WEFT_E_NO_IMPL;
    const wefti_isa isa = wefti_cpu_isa(options);
    wefti_gemm_spec s = *spec;
    s.bf16 = options->bf16 == WEFTI_BF16_NATIVE && spec->a.dtype == WEFT_BF16 &&
             wefti_isa_best_has_bf16();
    weft_status status = wefti_gemm_prepare(&s, isa, &gemm);
    if (status < 0) return status;
    wefti_kernel *k;
    WEFT_TRY(
        wefti_cpu_kernel(sizeof(product_kernel), s.bf16 ? "gemm bf16" : "gemm", run_product, &k));
    product_kernel *p = (product_kernel *)k;
    p->gemm = gemm;
    p->a = a;
    p->b = b;
    p->bias = bias;
    p->loops = *loops;
    k->workspace_bytes = wefti_gemm_workspace_bytes(&gemm, options->threads);
    *out = k;
    return WEFT_OK;
}

static weft_status product(const wefti_gemm_spec *spec, int a, int b, int bias,
                           const wefti_prepare *options, wefti_kernel **out) {
    return product_loops(spec, a, b, bias, &(outer_loops){0}, options, out);
}

/* rows, k and cols of a linear. x is [rows..., k]; w is [k, n...] or [n..., k]. */
typedef struct sizes {
    int64_t rows, k, cols;
    bool transposed;
} sizes;

static sizes sizes_of(const weft_node *n, const weft_desc *x, const weft_desc *w) {
    sizes s = {.transposed = wefti_attr_int(n, WEFTI_AT_transposed) != 0};
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
    bool t = s.transposed; /* true: dw [cols, k] = dy^T x; false: [k, cols] = x^T dy */
    wefti_gemm_spec spec =
        wefti_gemm_spec_of(dw->dtype, t ? s.cols : s.k, t ? s.k : s.cols, s.rows);
    spec.a = t ? wefti_gemm_transposed(dy->dtype, s.cols) : wefti_gemm_transposed(x->dtype, s.k);
    spec.b = t ? wefti_gemm_rows(x->dtype, s.k) : wefti_gemm_rows(dy->dtype, s.cols);
    spec.accumulate = options->accumulate != 0;
    return product(&spec, t ? 1 : 0, t ? 0 : 1, -1, options, out);
}

/* For each leading dimension of `y`: the elements from one index to the next in x, which broadcasts
 * to y. */
static void leading_strides(const weft_desc *x, const weft_desc *y, int64_t out[WEFT_MAX_RANK]) {
    int lead_y = y->rank - 2, lead_x = x->rank - 2;
    int64_t stride = x->shape[x->rank - 1] * x->shape[x->rank - 2];
    for (int d = lead_y - 1; d >= 0; d--) {
        int dx = d - (lead_y - lead_x);
        int64_t size = dx < 0 ? 1 : x->shape[dx];
        out[d] = size == 1 ? 0 : stride;
        stride *= size;
    }
}

/* Treats dimensions [from, to) of y as one loop: its stride in x, if there is a single one. */
static bool one_stride(const int64_t *strides, const weft_desc *y, int from, int to, int64_t *out) {
    int64_t stride = 0, expect = 0;
    bool first = true;
    for (int d = to - 1; d >= from; d--) {
        if (y->shape[d] == 1) continue;
        if (first)
            stride = strides[d];
        else if (strides[d] != expect)
            return false;
        first = false;
        expect = strides[d] * y->shape[d];
    }
    *out = stride;
    return true;
}

weft_status wefti_cpu_matmul(const weft_node *n, const wefti_prepare *options, wefti_kernel **out) {
    const weft_desc *a = wefti_in(n, 0), *b = wefti_in(n, 1), *y = wefti_out(n, 0);
    bool ta = wefti_attr_int(n, WEFTI_AT_transpose_a) != 0,
         tb = wefti_attr_int(n, WEFTI_AT_transpose_b) != 0;
    int64_t m = y->shape[y->rank - 2], cols = y->shape[y->rank - 1];
    int64_t k = ta ? a->shape[a->rank - 2] : a->shape[a->rank - 1];
    int64_t sa[WEFT_MAX_RANK], sb[WEFT_MAX_RANK], sc[WEFT_MAX_RANK];
    wefti_gemm_spec spec = wefti_gemm_spec_of(y->dtype, m, cols, k);
    spec.a = ta ? wefti_gemm_transposed(a->dtype, m) : wefti_gemm_rows(a->dtype, k);
    spec.b = tb ? wefti_gemm_transposed(b->dtype, k) : wefti_gemm_rows(b->dtype, cols);
    spec.accumulate = options->accumulate != 0;
    leading_strides(a, y, sa);
    leading_strides(b, y, sb);
    leading_strides(y, y, sc);
    /* Two batch loops, divided where broadcasting changes. Dimensions left in front become separate
     * runs. */
    int lead = y->rank - 2, loops = 0, cut = 0;
    for (;; cut++) {
        if (cut > lead) cut = ++loops;
        if (one_stride(sa, y, loops, cut, &spec.a.batch_stride[0]) &&
            one_stride(sb, y, loops, cut, &spec.b.batch_stride[0]) &&
            one_stride(sc, y, loops, cut, &spec.c.batch_stride[0]) &&
            one_stride(sa, y, cut, lead, &spec.a.batch_stride[1]) &&
            one_stride(sb, y, cut, lead, &spec.b.batch_stride[1]) &&
            one_stride(sc, y, cut, lead, &spec.c.batch_stride[1]))
            break;
    }
    spec.batch[0] = wefti_cpu_span(y, loops, cut);
    spec.batch[1] = wefti_cpu_span(y, cut, lead);
    outer_loops outside = {.count = loops};
    for (int d = 0; d < loops; d++) {
        outside.size[d] = y->shape[d];
        outside.a[d] = sa[d] * (int64_t)weft_dtype_bytes(a->dtype);
        outside.b[d] = sb[d] * (int64_t)weft_dtype_bytes(b->dtype);
        outside.c[d] = sc[d] * (int64_t)weft_dtype_bytes(y->dtype);
    }
    return product_loops(&spec, 0, 1, -1, &outside, options, out);
}
