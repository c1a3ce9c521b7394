/* matmul: c = a b over the last two dimensions, leading dimensions broadcast.
 *
 *     a [..., m, k] (transpose_a: [..., k, m])
 *     b [..., k, n] (transpose_b: [..., n, k])  ->  c [..., m, n]
 *
 * The gradients are matmuls too. With A and B the operands after transposition:
 *
 *     C = A B          dA = dC B^T          dB = A^T dC */
#include "ops/common.h"

typedef struct matmul_product {
    int64_t batch, m, k, n;
    bool ta, tb;
    weft_desc lead; /* broadcast leading dimensions */
    /* Strides over `lead`, counted in whole matrices. */
    int64_t stride_a[WEFT_MAX_RANK], stride_b[WEFT_MAX_RANK];
} matmul_product;

static weft_desc leading(const weft_desc *d) {
    weft_desc lead = *d;
    lead.rank -= 2;
    return lead;
}

static matmul_product product_of(const weft_node *n, const weft_desc *c) {
    const weft_desc *a = wefti_in(n, 0), *b = wefti_in(n, 1);
    matmul_product p = {.ta = wefti_attr_int(n, WEFTI_AT_transpose_a) != 0,
                        .tb = wefti_attr_int(n, WEFTI_AT_transpose_b) != 0,
                        .lead = leading(c)};
    weft_desc lead_a = leading(a), lead_b = leading(b);
    p.batch = weft_desc_elems(&p.lead);
    p.m = c->shape[c->rank - 2];
    p.n = c->shape[c->rank - 1];
    p.k = a->shape[a->rank - (p.ta ? 2 : 1)];
    wefti_op_broadcast_strides(&lead_a, &p.lead, p.stride_a);
    wefti_op_broadcast_strides(&lead_b, &p.lead, p.stride_b);
    return p;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *a = wefti_in(n, 0), *b = wefti_in(n, 1);
    bool ta = wefti_attr_int(n, WEFTI_AT_transpose_a) != 0,
         tb = wefti_attr_int(n, WEFTI_AT_transpose_b) != 0;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(wefti_op_check_float(n, i));
        WEFT_TRY(wefti_op_check_rank(n, i, 2, WEFT_MAX_RANK));
    }
    WEFT_TRY(wefti_op_check_mix(n, 0));
    int64_t ka = a->shape[a->rank - (ta ? 2 : 1)], kb = b->shape[b->rank - (tb ? 1 : 2)];
    WEFT_REQUIRE(
        ka == kb, WEFT_E_SHAPE,
        "matmul: %s%s times %s%s: the summed dimensions are %lld and %lld; they must be equal",
        TEXT(a), ta ? " (transposed)" : "", TEXT(b), tb ? " (transposed)" : "", (long long)ka,
        (long long)kb);
    weft_desc lead_a = leading(a), lead_b = leading(b), c;
    weft_status status = wefti_broadcast(&lead_a, &lead_b, &c);
    if (status < 0)
        return wefti_prefix(status, "matmul: %s times %s: leading dimensions", TEXT(a), TEXT(b));
    c.dtype = wefti_op_result_dtype(n, 0);
    c.shape[c.rank++] = a->shape[a->rank - (ta ? 1 : 2)];
    c.shape[c.rank++] = b->shape[b->rank - (tb ? 2 : 1)];
    *out = c;
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value dc = wefti_grad_of(g, n, 0);
    bool ta = wefti_attr_int(n, WEFTI_AT_transpose_a) != 0,
         tb = wefti_attr_int(n, WEFTI_AT_transpose_b) != 0;
    if (wefti_grad_wanted(g, n, 0)) { /* dA = dC B^T; transposed: B dC^T */
        weft_value vb = wefti_grad_in(g, n, 1);
        wefti_grad_add_reduced(
            g, n, 0, ta ? weft_matmul(b, vb, dc, tb, true) : weft_matmul(b, dc, vb, false, !tb));
    }
    if (wefti_grad_wanted(g, n, 1)) { /* dB = A^T dC; transposed: dC^T A */
        weft_value va = wefti_grad_in(g, n, 0);
        wefti_grad_add_reduced(
            g, n, 1, tb ? weft_matmul(b, dc, va, true, ta) : weft_matmul(b, va, dc, !ta, false));
    }
    return WEFT_OK;
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    bool ta = wefti_attr_int(n, WEFTI_AT_transpose_a) != 0,
         tb = wefti_attr_int(n, WEFTI_AT_transpose_b) != 0;
    static const char *const rules[2][2] = {
        {"... m k, ... k n -> ... m n", "... m k, ... n k -> ... m n"},
        {"... k m, ... k n -> ... m n", "... k m, ... n k -> ... m n"}};
    return wefti_rule_from_text(n, rules[ta][tb], r);
}

static void cost(const weft_node *n, wefti_cost *out) {
    matmul_product p = product_of(n, wefti_out(n, 0));
    *out = (wefti_cost){.flops = 2.0 * (double)p.batch * (double)p.m * (double)p.k * (double)p.n,
                        .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    matmul_product p = product_of(n, wefti_out(n, 0));
    for (int64_t batch = 0; batch < p.batch; batch++) {
        const double *a = in[0] + wefti_op_offset(&p.lead, batch, p.stride_a) * p.m * p.k;
        const double *b = in[1] + wefti_op_offset(&p.lead, batch, p.stride_b) * p.k * p.n;
        double *c = out[0] + batch * p.m * p.n;
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++) {
                double sum = 0.0;
                for (int64_t k = 0; k < p.k; k++)
                    sum += (p.ta ? a[k * p.m + i] : a[i * p.k + k]) *
                           (p.tb ? b[j * p.k + k] : b[k * p.n + j]);
                c[i * p.n + j] = sum;
            }
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I(transpose_a, 0), WEFTI_I(transpose_b, 0), {0}};

static const wefti_op_case cases[] = {CASE(NULL, "f32[3,5]", "f32[5,7]"),
                                      CASE("transpose_a=1", "f32[5,3]", "f32[5,7]"),
                                      CASE("transpose_b=1", "f32[2,3,5]", "f32[2,7,5]"),
                                      CASE("transpose_a=1 transpose_b=1", "f32[2,5,3]", "f32[7,5]"),
                                      CASE("transpose_b=1", "f32[3,1,3,5]", "f32[2,7,5]"),
                                      CASE("transpose_a=1", "f32[5,3]", "f32[2,5,4]"),
                                      CASE(NULL, "bf16[2,3,4]", "bf16[2,4,3]"),
                                      CASE(NULL, "f32[1,1]", "f32[1,1]"),
                                      CASE(NULL, "f32[2,3,0]", "f32[2,0,4]"),
                                      CASE(NULL, "f32[0,3,2]", "f32[2,4]"),
                                      CASES_END};

const weft_op_def weft_op_matmul = {
    WEFTI_OP_NAME(matmul), .min_inputs = 2,
    .max_inputs = 2,       .family = WEFTI_FAMILY_MATRIX,
    .weights = 3u,         .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs,        .infer = infer,
    .grad = grad,          .split = split,
    .cost = cost,          .reference = reference,
    .cases = cases,
};

weft_value weft_matmul(weft_graph *g, weft_value a, weft_value b, bool transpose_a,
                       bool transpose_b) {
    return wefti_graph_add1(
        g, &weft_op_matmul, 2, (weft_value[]){a, b}, 2,
        (wefti_attr[]){WEFTI_I(transpose_a, transpose_a), WEFTI_I(transpose_b, transpose_b)});
}
