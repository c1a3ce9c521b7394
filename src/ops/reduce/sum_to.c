/* Broadcasting as an op, and its gradient.
 *
 *     broadcast_to(x; shape)          x repeated to `shape` (NumPy rules)
 *     sum_to(x; shape, dtype)         x summed down to `shape`; `shape` must broadcast to x's shape
 *
 * Each op is the gradient of the other. sum_to has two more uses. It makes the bias gradient. Under
 * bf16 activations, it casts the gradient of an f32 parameter: it sums in f32 and stores
 * `dtype`. */
#include "ops/common.h"

/* Checks that `small` broadcasts to exactly `large`. */
static weft_status check_broadcast(const weft_node *n, const weft_desc *small,
                                   const weft_desc *large) {
    weft_desc both;
    weft_status status = wefti_broadcast(small, large, &both);
    if (status < 0) return wefti_prefix(status, "%s", n->op->name);
    both.dtype = large->dtype;
    WEFT_REQUIRE(wefti_desc_equal(&both, large), WEFT_E_SHAPE, "%s: %s does not broadcast to %s",
                 n->op->name, TEXT(small), TEXT(large));
    return WEFT_OK;
}

static weft_status infer_sum_to(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    weft_desc y;
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_desc_of_attr(n, WEFTI_AT_shape, (weft_dtype)dtype, &y));
    WEFT_TRY(check_broadcast(n, &y, wefti_in(n, 0)));
    *out = y;
    return WEFT_OK;
}

static weft_status infer_broadcast_to(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    weft_desc y;
    WEFT_TRY(wefti_op_desc_of_attr(n, WEFTI_AT_shape, wefti_in(n, 0)->dtype, &y));
    WEFT_TRY(check_broadcast(n, wefti_in(n, 0), &y));
    *out = y;
    return WEFT_OK;
}

static weft_status grad_sum_to(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value dx = wefti_op_broadcast_to(b, wefti_grad_of(g, n, 0), wefti_in(n, 0));
    wefti_grad_add(g, n, 0, weft_cast(b, dx, wefti_in(n, 0)->dtype));
    return WEFT_OK;
}

static weft_status grad_broadcast_to(wefti_grad *g, const weft_node *n) {
    wefti_grad_add_reduced(g, n, 0, wefti_grad_of(g, n, 0));
    return WEFT_OK;
}

/* Summed dimensions are SUM, the others FREE. */
static weft_status split_sum_to(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int lead = x->rank - y->rank;
    for (int d = 0; d < x->rank; d++) {
        bool summed = d < lead || y->shape[d - lead] != x->shape[d];
        int8_t f =
            wefti_op_factor(r, "d", d, x->shape[d], summed ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE);
        r->in[0][d] = f;
        if (!summed) r->out[0][d - lead] = f;
    }
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)begins;
    wefti_op_localize_shape(n, rule, sizes, attrs, WEFTI_AT_shape);
    return WEFT_OK;
}

static void cost_sum_to(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

static void cost_broadcast_to(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0, .bytes = wefti_node_bytes(n)};
}

static weft_status reference_sum_to(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int64_t strides[WEFT_MAX_RANK], count = weft_desc_elems(x);
    wefti_op_broadcast_strides(y, x, strides);
    for (int64_t i = 0; i < weft_desc_elems(y); i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < count; i++) out[0][wefti_op_offset(x, i, strides)] += in[0][i];
    return WEFT_OK;
}

static weft_status reference_broadcast_to(const weft_node *n, const wefti_random *random,
                                          const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int64_t strides[WEFT_MAX_RANK], count = weft_desc_elems(y);
    wefti_op_broadcast_strides(x, y, strides);
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][wefti_op_offset(y, i, strides)];
    return WEFT_OK;
}

static const wefti_attr attrs_sum_to[] = {ATTR_INTS(shape, 0, {0}), WEFTI_I(dtype, WEFT_F32), {0}};
static const wefti_attr attrs_broadcast_to[] = {ATTR_INTS(shape, 0, {0}), {0}};

static const wefti_op_case cases_sum_to[] = {
    CASE("shape=(5)", "f32[3,5]"),     CASE("shape=(3,1)", "f32[3,5]"),
    CASE("shape=()", "f32[2,3]"),      CASE("shape=(4,1,1) dtype=f32", "bf16[2,4,3,5]"),
    CASE("shape=(3,5)", "f32[3,5]"),   CASE("shape=(1)", "f32[0]"),
    CASE("shape=(0,1)", "f32[2,0,3]"), CASES_END};
static const wefti_op_case cases_broadcast_to[] = {
    CASE("shape=(3,5)", "f32[5]"),   CASE("shape=(3,5)", "bf16[3,1]"),
    CASE("shape=(2,3)", "f32[]"),    CASE("shape=(2,4,3,5)", "f32[4,1,1]"),
    CASE("shape=(2,0)", "f32[2,1]"), CASES_END};

const weft_op_def weft_op_sum_to = {
    WEFTI_OP_NAME(sum_to),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs_sum_to,
    .infer = infer_sum_to,
    .grad = grad_sum_to,
    .split = split_sum_to,
    .localize = localize,
    .cost = cost_sum_to,
    .reference = reference_sum_to,
    .cases = cases_sum_to,
};

const weft_op_def weft_op_broadcast_to = {
    WEFTI_OP_NAME(broadcast_to),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_CHEAP | WEFTI_OP_LINEAR,
    .attrs = attrs_broadcast_to,
    .infer = infer_broadcast_to,
    .grad = grad_broadcast_to,
    .split = wefti_op_split_elementwise,
    .localize = localize,
    .cost = cost_broadcast_to,
    .reference = reference_broadcast_to,
    .cases = cases_broadcast_to,
};
