/* Root-mean-square normalisation over the last dimension (Zhang, Sennrich, "Root Mean Square Layer
 * Normalization", NeurIPS 2019, equation 4).
 *
 *     x [..., h], gamma [h]  ->  y [..., h], rstd [...]
 *     y = x rstd gamma,  rstd = 1 / sqrt(avg(x^2) + eps)
 *
 * rstd is f32 (f64 for f64). The backward pass keeps only rstd: rms_norm_apply recomputes y from
 * it.
 *
 *     rms_norm_grad(x, gamma, rstd, dy) -> dx, dgamma
 *     with n = x rstd and s = dy gamma:  dx = rstd (s - n avg(s n)),
 *     dgamma = sum over rows of dy n */
#include "ops/common.h"

static int64_t rows_of(const weft_desc *x) {
    return wefti_op_count(x, 0, x->rank - 1);
}
static int64_t width_of(const weft_desc *x) {
    return x->shape[x->rank - 1];
}

static weft_status check(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    for (int i = 0; i < n->inputs; i++) WEFT_TRY(wefti_op_check_float(n, i));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_REQUIRE(width_of(x) >= 1, WEFT_E_SHAPE, "%s: the last dimension of %s is empty",
                 n->op->name, TEXT(x));
    WEFT_TRY(wefti_op_check_shape(n, 1, 1, &x->shape[x->rank - 1], "the last dimension of x"));
    if (n->inputs > 2) WEFT_TRY(wefti_op_check_shape(n, 2, x->rank - 1, x->shape, "the rows of x"));
    return WEFT_OK;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    double eps = wefti_attr_float(n, WEFTI_AT_eps);
    WEFT_REQUIRE(eps >= 0.0, WEFT_E_ARG, "rms_norm: eps is %g; it must not be negative", eps);
    WEFT_TRY(check(n));
    out[0] = *x;
    out[1] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), x->rank - 1, x->shape);
    *out_count = 2;
    return WEFT_OK;
}

static weft_status infer_apply(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(check(n));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 3));
    out[0] = *x;
    out[1] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), 1, &x->shape[x->rank - 1]);
    *out_count = 2;
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_in(g, n, 1), wefti_grad_out(g, n, 1),
                       wefti_grad_of(g, n, 0)};
    weft_value out[2];
    if (in[3].id < 0) return WEFT_OK; /* a gradient of the statistics alone is not passed on */
    wefti_graph_add(wefti_grad_graph(g), &weft_op_rms_norm_grad, 4, in, 0, NULL, 2, out);
    for (int i = 0; i < 2; i++)
        if (wefti_grad_wanted(g, n, i)) wefti_grad_add_reduced(g, n, i, out[i]);
    return WEFT_OK;
}

/* Sets the factors: rows and width for x and tensors of its shape, rows for the statistics, width
 * for gamma. */
static weft_status rule(const weft_node *n, wefti_factor_kind rows_kind,
                        wefti_factor_kind width_kind, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int rank = x->rank;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rank - 1, rows_kind, f);
    f[rank - 1] = wefti_op_factor(r, "h", -1, width_of(x), width_kind);
    wefti_op_assign(r->in[0], 0, f, 0, rank);
    r->in[1][0] = f[rank - 1];
    if (n->inputs > 2) wefti_op_assign(r->in[2], 0, f, 0, rank - 1);
    if (n->inputs > 3) wefti_op_assign(r->in[3], 0, f, 0, rank);
    wefti_op_assign(r->out[0], 0, f, 0, rank);
    return WEFT_OK;
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    WEFT_TRY(rule(n, WEFTI_FACTOR_FREE, WEFTI_FACTOR_STATS, r));
    wefti_op_assign(r->out[1], 0, r->out[0], 0, wefti_in(n, 0)->rank - 1);
    return WEFT_OK;
}

static weft_status split_apply(const weft_node *n, wefti_split_rule *r) {
    return rule(n, WEFTI_FACTOR_FREE, WEFTI_FACTOR_FREE, r);
}

/* Rows are split in dx and summed in dgamma. */
static weft_status split_grad(const weft_node *n, wefti_split_rule *r) {
    WEFT_TRY(rule(n, WEFTI_FACTOR_SUM, WEFTI_FACTOR_STATS, r));
    r->out[1][0] = r->in[1][0];
    return WEFT_OK;
}

/* ---- over a split width: the mean square of all pieces ---- */

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    weft_value in[3] = {wefti_lower_in(c, 0), wefti_lower_in(c, 1)}, here[2];
    weft_desc x = weft_value_desc(g, in[0]);
    double share = (double)width_of(&x) / (double)width_of(wefti_in(n, 0));
    wefti_lower_same(c, in, 0, NULL, here);
    weft_value one = wefti_op_scalar(g, here[1], share);
    /* share * (mean square of the piece + eps); the shares of all pieces add up to 1 */
    weft_value square = weft_div(g, one, weft_mul(g, here[1], here[1]));
    in[2] = weft_rsqrt(g, wefti_lower_all_reduce(c, square, factors, WEFTI_REDUCE_SUM));
    wefti_lower_out(c, 0, wefti_graph_add1(g, &weft_op_rms_norm_apply, 3, in, 0, NULL));
    wefti_lower_out(c, 1, in[2]);
    return WEFT_OK;
}

static weft_status lower_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    const weft_desc *x = wefti_in(n, 0);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    wefti_ints last = {1, {x->rank - 1}};
    weft_value rstd = wefti_op_column(g, wefti_lower_in(c, 2));
    weft_value dy = wefti_op_precise(g, wefti_lower_in(c, 3));
    weft_value normal = weft_mul(g, wefti_op_precise(g, wefti_lower_in(c, 0)), rstd);
    weft_value s = weft_mul(g, dy, wefti_lower_in(c, 1));
    weft_value avg = weft_scale(g, wefti_op_sum_over(c, weft_mul(g, s, normal), &last, factors),
                                1.0 / (double)width_of(x));
    weft_value dx = weft_mul(g, rstd, weft_sub(g, s, weft_mul(g, normal, avg)));
    wefti_lower_out(c, 0, weft_cast(g, dx, x->dtype));
    weft_desc gamma = wefti_lower_out_desc(c, 1);
    wefti_lower_out_partial(c, 1, wefti_op_sum_to(g, weft_mul(g, dy, normal), &gamma),
                            wefti_op_factors_of(c, WEFTI_FACTOR_SUM));
    return WEFT_OK;
}

static void cost_of(const weft_node *n, double flops, wefti_cost *out) {
    *out = (wefti_cost){.flops = flops * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}
static void cost(const weft_node *n, wefti_cost *out) {
    cost_of(n, 4.0, out);
}
static void cost_apply(const weft_node *n, wefti_cost *out) {
    cost_of(n, 2.0, out);
}
static void cost_grad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 9.0, out);
}

static weft_status reference_apply(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < h; k++)
            out[0][row * h + k] = in[0][row * h + k] * in[2][row] * in[1][k];
    return WEFT_OK;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    for (int64_t row = 0; row < rows; row++) {
        double square = 0.0;
        for (int64_t k = 0; k < h; k++)
            square += in[0][row * h + k] * in[0][row * h + k] / (double)h;
        out[1][row] = 1.0 / sqrt(square + wefti_attr_float(n, WEFTI_AT_eps));
    }
    return reference_apply(n, random, (const double *[]){in[0], in[1], out[1]}, out);
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    const double *gamma = in[1];
    for (int64_t k = 0; k < h; k++) out[1][k] = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = in[0] + row * h, *dy = in[3] + row * h;
        double rstd = in[2][row], avg = 0.0;
        for (int64_t k = 0; k < h; k++) {
            avg += dy[k] * gamma[k] * x[k] * rstd / (double)h;
            out[1][k] += dy[k] * x[k] * rstd;
        }
        for (int64_t k = 0; k < h; k++)
            out[0][row * h + k] = rstd * (dy[k] * gamma[k] - x[k] * rstd * avg);
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_F(eps, 1e-5), {0}};

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[3,5]", "f32[5]"),    CASE("eps=0.1", "f32[2,3,7]", "f32[7]"),
    CASE(NULL, "bf16[2,16]", "f32[16]"), CASE("eps=0.5", "f32[3,1]", "f32[1]"),
    CASE(NULL, "f32[0,4]", "f32[4]"),    CASES_END};
static const wefti_op_case cases_apply[] = {CASE(NULL, "f32[3,5]", "f32[5]", "f32[3]+"),
                                            CASE(NULL, "bf16[2,3,7]", "f32[7]", "f32[2,3]+"),
                                            CASE(NULL, "f32[0,4]", "f32[4]", "f32[0]+"), CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE(NULL, "f32[3,5]", "f32[5]", "f32[3]+", "f32[3,5]"),
    CASE(NULL, "bf16[2,3,7]", "f32[7]", "f32[2,3]+", "bf16[2,3,7]"),
    CASE(NULL, "f32[0,4]", "f32[4]", "f32[0]+", "f32[0,4]"), CASES_END};

const weft_op_def weft_op_rms_norm = {
    WEFTI_OP_NAME(rms_norm),
    .min_inputs = 2,
    .max_inputs = 2,
    .family = WEFTI_FAMILY_ROW_NORM,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .cost = cost,
    .reference = reference,
    .cases = cases,
    .apply = &weft_op_rms_norm_apply,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

const weft_op_def weft_op_rms_norm_apply = {
    WEFTI_OP_NAME(rms_norm_apply),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_CHEAP,
    .infer = infer_apply,
    .split = split_apply,
    .cost = cost_apply,
    .reference = reference_apply,
    .cases = cases_apply,
};

const weft_op_def weft_op_rms_norm_grad = {
    WEFTI_OP_NAME(rms_norm_grad),
    .min_inputs = 4,
    .max_inputs = 4,
    .flags = WEFTI_OP_GRADIENT,
    .infer = infer_grad,
    .split = split_grad,
    .cost = cost_grad,
    .reference = reference_grad,
    .cases = cases_grad,
    .lower = lower_grad,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

weft_value weft_rms_norm(weft_graph *g, weft_value x, weft_value gamma, double eps) {
    weft_value out[2];
    wefti_graph_add(g, &weft_op_rms_norm, 2, (weft_value[]){x, gamma}, 1,
                    (wefti_attr[]){WEFTI_F(eps, eps)}, 2, out);
    return out[0];
}
