/* Mean squared error: x, target [...] -> [] of all elements, f32 (f64 for f64).
 *
 *     loss = 1/count sum (x - target)^2
 *     dx = 2 (x - target) dloss / count          dtarget = -dx
 *
 * `count` 0 means the number of elements. A piece of a split loss states the count of the whole, so
 * that its loss is one term of a sum. */
#include "ops/common.h"

static int64_t count_of(const weft_node *n) {
    int64_t count = wefti_attr_int(n, WEFTI_AT_count);
    return count ? count : weft_desc_elems(wefti_in(n, 0));
}

static weft_status check(const weft_node *n) {
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_count) >= 0, WEFT_E_ARG, "%s: the count is %lld",
                 n->op->name, (long long)wefti_attr_int(n, WEFTI_AT_count));
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    return wefti_op_check_mix(n, 0);
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n));
    *out = wefti_op_desc(wefti_op_statistics_dtype(wefti_in(n, 0)->dtype), 0, NULL);
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n));
    WEFT_TRY(wefti_op_check_shape(n, 2, 0, NULL, "one loss"));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    wefti_attr count = WEFTI_I(count, wefti_attr_int(n, WEFTI_AT_count));
    for (int i = 0; i < 2; i++) { /* with exchanged operands, the formula is the same */
        if (!wefti_grad_wanted(g, n, i)) continue;
        weft_value in[] = {wefti_grad_in(g, n, i), wefti_grad_in(g, n, 1 - i),
                           wefti_grad_of(g, n, 0)};
        wefti_grad_add(g, n, i, wefti_graph_add1(b, &weft_op_mse_grad, 3, in, 1, &count));
    }
    return WEFT_OK;
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "d", x, 0, x->rank, WEFTI_FACTOR_SUM, f);
    for (int i = 0; i < 2; i++) wefti_op_assign(r->in[i], 0, f, 0, x->rank);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)rule;
    (void)begins;
    (void)sizes;
    wefti_op_attr(n, attrs, WEFTI_AT_count)->i = count_of(n);
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 3.0 * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    int64_t elements = weft_desc_elems(wefti_in(n, 0));
    double sum = 0.0;
    for (int64_t i = 0; i < elements; i++) sum += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
    out[0][0] = sum / (double)count_of(n);
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    int64_t elements = weft_desc_elems(wefti_in(n, 0));
    for (int64_t i = 0; i < elements; i++)
        out[0][i] = 2.0 * (in[0][i] - in[1][i]) * in[2][0] / (double)count_of(n);
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I(count, 0), {0}};

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]"), CASE(NULL, "bf16[2,1,7]", "f32[2,1,7]"),
    CASE(NULL, "f32[]", "f32[]"), CASE("count=24", "f32[2,3]", "f32[2,3]"), CASES_END};
static const wefti_op_case cases_grad[] = {CASE(NULL, "f32[3,5]", "f32[3,5]", "f32[]"),
                                           CASE(NULL, "bf16[2,1,7]", "f32[2,1,7]", "f32[]"),
                                           CASE("count=24", "f32[2,3]", "f32[2,3]", "f32[]"),
                                           CASE(NULL, "f32[0]", "f32[0]", "f32[]"), CASES_END};

const weft_op_def weft_op_mse = {
    WEFTI_OP_NAME(mse),   .min_inputs = 2, .max_inputs = 2,        .family = WEFTI_FAMILY_LOSS,
    .attrs = attrs,       .infer = infer,  .grad = grad,           .split = split,
    .localize = localize, .cost = cost,    .reference = reference, .cases = cases,
};

const weft_op_def weft_op_mse_grad = {
    WEFTI_OP_NAME(mse_grad),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_grad,
    .split = wefti_op_split_elementwise,
    .localize = localize,
    .cost = cost,
    .reference = reference_grad,
    .cases = cases_grad,
};

weft_value weft_mse(weft_graph *g, weft_value x, weft_value target) {
    return wefti_op_add2(g, &weft_op_mse, x, target);
}
