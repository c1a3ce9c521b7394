/* Optimizer steps on pieces of a parameter that need facts about the whole: norms (lamb), and means
 * of squares along rows and columns (adafactor). First the devices add up the sums of all pieces.
 * Then each device runs the step on its piece with these sums as inputs. */
#include "ops/optimizer/optimizer.h"

/* Scalar number `place` of the step, in the dtype of `like`. */
static weft_value scalar_at(weft_graph *g, weft_value scalars, int64_t place, weft_value like) {
    weft_value scalar = weft_reshape(g, weft_slice(g, scalars, 0, place, place + 1), 0, NULL);
    return weft_cast(g, scalar, weft_value_desc(g, like).dtype);
}

/* The sums of {a, b} over all devices, f32 [2]. */
static weft_value add_up(wefti_lowering *c, weft_value a, weft_value b) {
    weft_graph *g = wefti_lower_graph(c);
    int64_t one = 1;
    weft_value both[] = {weft_reshape(g, a, 1, &one), weft_reshape(g, b, 1, &one)};
    return wefti_lower_all_reduce(c, weft_concat(g, 2, both, 0),
                                  wefti_op_factors_of(c, WEFTI_FACTOR_STATS), WEFTI_REDUCE_SUM);
}

static weft_value squares_of(weft_graph *g, weft_value v) {
    return wefti_op_add1(g, &weft_op_grad_norm2, v);
}

/* Adds the step with the extra inputs after its operands. */
static weft_status step_with(wefti_lowering *c, const weft_node *n, int attr_count,
                             wefti_attr *attrs, int inputs, const weft_value *in) {
    weft_value out[WEFTI_MAX_OUT];
    wefti_graph_add(wefti_lower_graph(c), n->op, inputs, in, attr_count, attrs, n->outputs, out);
    for (int o = 0; o < n->outputs; o++) wefti_lower_out(c, o, out[o]);
    return WEFT_OK;
}

weft_status wefti_lamb_lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value in[6];
    for (int i = 0; i < 5; i++) in[i] = wefti_lower_in(c, i);
    wefti_attr attrs[] = {WEFTI_F(beta1, wefti_attr_float(n, WEFTI_AT_beta1)),
                          WEFTI_F(beta2, wefti_attr_float(n, WEFTI_AT_beta2)),
                          WEFTI_F(eps, wefti_attr_float(n, WEFTI_AT_eps)),
                          WEFTI_F(weight_decay, wefti_attr_float(n, WEFTI_AT_weight_decay))};
    weft_value squares = wefti_graph_add1(g, &weft_op_lamb_squares, 5, in, 4, attrs);
    in[5] = wefti_lower_all_reduce(c, squares, wefti_op_factors_of(c, WEFTI_FACTOR_STATS),
                                   WEFTI_REDUCE_SUM);
    return step_with(c, n, 4, attrs, 6, in);
}

/* ---- adafactor ---- */

/* The attributes of the step on a piece, taken from the step on the whole. */
static void adafactor_attrs(const weft_node *n, wefti_attr out[7]) {
    static const wefti_attr_id ids[] = {WEFTI_AT_decay_exponent, WEFTI_AT_eps1, WEFTI_AT_eps2,
                                        WEFTI_AT_clip, WEFTI_AT_weight_decay};
    for (int i = 0; i < 5; i++)
        out[i] = (wefti_attr){ids[i], WEFTI_ATTR_FLOAT, .f = wefti_attr_float(n, ids[i])};
    out[5] = WEFTI_I(scale_parameter, wefti_attr_int(n, WEFTI_AT_scale_parameter));
    out[6] = WEFTI_I(count, weft_desc_elems(wefti_in(n, 0)));
}

/* beta2 of this step, 1 - step^decay_exponent, for `state`; steps are whole numbers from 1. */
static weft_value beta2_of(weft_graph *g, const weft_node *n, weft_value scalars,
                           weft_value state) {
    weft_value step = scalar_at(g, scalars, WEFTI_STEP_PLACE(step), state);
    weft_dtype dtype = weft_value_desc(g, step).dtype;
    step = weft_cast(g, weft_cast(g, step, WEFT_I32), dtype);
    step = weft_maximum(g, step, wefti_op_scalar(g, step, 1.0));
    weft_value power =
        weft_pow(g, step, wefti_op_scalar(g, step, wefti_attr_float(n, WEFTI_AT_decay_exponent)));
    return weft_shift(g, weft_neg(g, power), 1.0);
}

/* beta2 old + (1 - beta2) now */
static weft_value moving(weft_graph *g, weft_value old, weft_value now, weft_value beta2) {
    weft_value fresh = weft_shift(g, weft_neg(g, beta2), 1.0);
    return weft_add(g, weft_mul(g, old, beta2), weft_mul(g, now, fresh));
}

/* Mean of x along `axis` over the whole tensor, including the devices that split `factor`. */
static weft_value mean_along(wefti_lowering *c, weft_value x, int axis, int factor, int64_t whole) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value sum = weft_sum(g, x, 1, &axis, false);
    sum = wefti_lower_all_reduce(c, sum, factor < 0 ? 0 : 1u << factor, WEFTI_REDUCE_SUM);
    return weft_scale(g, sum, whole ? 1.0 / (double)whole : 0.0);
}

weft_status wefti_adafactor_lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    const weft_desc *p = wefti_in(n, 0);
    const int8_t *factors = wefti_lower_rule(c)->in[0];
    int rows = p->rank - 2, cols = p->rank - 1;
    weft_value in[9];
    for (int i = 0; i < 5; i++) in[i] = wefti_lower_in(c, i);
    weft_value grad = wefti_op_precise(g, in[3]);
    grad = weft_mul(g, grad, scalar_at(g, in[4], WEFTI_STEP_PLACE(gradient_scale), grad));
    weft_value square =
        weft_shift(g, wefti_op_add1(g, &weft_op_square, grad), wefti_attr_float(n, WEFTI_AT_eps1));
    weft_value beta2 = beta2_of(g, n, in[4], in[1]);
    in[5] = moving(g, in[1], mean_along(c, square, cols, factors[cols], p->shape[cols]), beta2);
    in[6] = moving(g, in[2], mean_along(c, square, rows, factors[rows], p->shape[rows]), beta2);
    in[7] = mean_along(c, in[5], rows, factors[rows], p->shape[rows]);
    /* u = g / sqrt(row col / mean) */
    weft_value share = weft_div(g, in[5], wefti_op_column(g, in[7]));
    weft_desc beside = weft_value_desc(g, in[6]);
    if (beside.rank < 0) return WEFT_OK; /* the graph has failed and reports it */
    beside.shape[beside.rank] = beside.shape[beside.rank - 1];
    beside.shape[beside.rank++ - 1] = 1;
    weft_value root_col = weft_rsqrt(g, weft_reshape(g, in[6], beside.rank, beside.shape));
    weft_value u =
        weft_mul(g, weft_mul(g, grad, wefti_op_column(g, weft_rsqrt(g, share))), root_col);
    in[8] = add_up(c, squares_of(g, in[0]), squares_of(g, u));
    wefti_attr attrs[7];
    adafactor_attrs(n, attrs);
    return step_with(c, n, 7, attrs, 9, in);
}

weft_status wefti_adafactor1_lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value in[5];
    for (int i = 0; i < 4; i++) in[i] = wefti_lower_in(c, i);
    weft_value grad = wefti_op_precise(g, in[2]);
    grad = weft_mul(g, grad, scalar_at(g, in[3], WEFTI_STEP_PLACE(gradient_scale), grad));
    weft_value square =
        weft_shift(g, wefti_op_add1(g, &weft_op_square, grad), wefti_attr_float(n, WEFTI_AT_eps1));
    weft_value v = moving(g, in[1], square, beta2_of(g, n, in[3], in[1]));
    weft_value u = weft_mul(g, grad, weft_rsqrt(g, v));
    in[4] = add_up(c, squares_of(g, in[0]), squares_of(g, u));
    wefti_attr attrs[7];
    adafactor_attrs(n, attrs);
    return step_with(c, n, 7, attrs, 5, in);
}
