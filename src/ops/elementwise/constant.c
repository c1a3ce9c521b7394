/* constant: a tensor filled with one value. It has no inputs. The backward pass never keeps it. */
#include "ops/common.h"

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    return wefti_op_desc_of_attr(n, WEFTI_AT_shape, (weft_dtype)dtype, out);
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    const weft_desc *y = wefti_out(n, 0);
    wefti_op_factors(r, "d", y, 0, y->rank, WEFTI_FACTOR_FREE, f);
    wefti_op_assign(r->out[0], 0, f, 0, y->rank);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)begins;
    wefti_op_localize_shape(n, rule, sizes, attrs, WEFTI_AT_shape);
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0, .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    (void)in;
    int64_t count = weft_desc_elems(wefti_out(n, 0));
    double value = wefti_attr_float(n, WEFTI_AT_value);
    for (int64_t i = 0; i < count; i++) out[0][i] = value;
    return WEFT_OK;
}

static const wefti_attr attrs[] = {
    WEFTI_I(dtype, WEFT_F32), ATTR_INTS(shape, 0, {0}), WEFTI_F(value, 0.0), {0}};

static const wefti_op_case cases[] = {{{NULL}, "shape=(2,3) value=1.5"}, {{NULL}, NULL}};

const weft_op_def weft_op_constant = {
    WEFTI_OP_NAME(constant), .flags = WEFTI_OP_CHEAP, .attrs = attrs, .infer = infer,
    .split = split,          .localize = localize,    .cost = cost,   .reference = reference,
    .cases = cases,
};

weft_value weft_constant(weft_graph *g, weft_desc desc, double value) {
    if (desc.rank < 0 || desc.rank > WEFT_MAX_RANK) {
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_SHAPE, "constant: a tensor has 0 to %d dimensions",
                                       WEFT_MAX_RANK));
        return WEFT_NO_VALUE;
    }
    return wefti_graph_add1(g, &weft_op_constant, 0, NULL, 3,
                            (wefti_attr[]){WEFTI_I(dtype, desc.dtype),
                                           WEFTI_N(shape, wefti_op_shape_ints(&desc)),
                                           WEFTI_F(value, value)});
}
