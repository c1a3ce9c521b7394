/* Layer normalisation over the last dimension (Ba, Kiros, Hinton, "Layer Normalization", 2016).
 *
 *     x [..., h], gamma [h], beta [h] or none  ->  y [..., h], mean [...], rstd [...]
 *     y = (x - mean) rstd gamma + beta,  rstd = 1 / sqrt(var + eps), var biased
 *
 * Statistics are f32 (f64 for f64). The backward pass keeps only the statistics: layer_norm_apply
 * recomputes y from them. The gradient:
 *
 *     layer_norm_grad(x, gamma, mean, rstd, dy) -> dx, dgamma, dbeta
 *     with n = (x - mean) rstd and s = dy gamma:  dx = rstd (s - avg(s) - n avg(s n)),
 *     dgamma = sum over rows of dy n,  dbeta = sum over rows of dy */
#include "ops/common.h"

/* x [rows, h] */
static int64_t rows_of(const weft_desc *x) {
    return wefti_op_count(x, 0, x->rank - 1);
}
static int64_t width_of(const weft_desc *x) {
    return x->shape[x->rank - 1];
}

static weft_status check(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    for (int i = 0; i < n->inputs; i++)
        if (wefti_in(n, i)) WEFT_TRY(wefti_op_check_float(n, i));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_REQUIRE(width_of(x) >= 1, WEFT_E_SHAPE, "%s: the last dimension of %s is empty",
                 n->op->name, TEXT(x));
    return wefti_op_check_shape(n, 1, 1, &x->shape[x->rank - 1], "the last dimension of x");
}

static weft_status check_statistics(const weft_node *n, int mean, int rstd) {
    const weft_desc *x = wefti_in(n, 0);
    WEFT_REQUIRE(wefti_in(n, mean) && wefti_in(n, rstd), WEFT_E_ARG, "%s: mean or rstd is missing",
                 n->op->name);
    WEFT_TRY(wefti_op_check_shape(n, mean, x->rank - 1, x->shape, "the rows of x"));
    return wefti_op_check_shape(n, rstd, x->rank - 1, x->shape, "the rows of x");
}

static weft_status check_beta(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    if (!wefti_in(n, 2)) return WEFT_OK;
    return wefti_op_check_shape(n, 2, 1, &x->shape[x->rank - 1], "the last dimension of x");
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    double eps = wefti_attr_float(n, WEFTI_AT_eps);
    WEFT_REQUIRE(eps >= 0.0, WEFT_E_ARG, "layer_norm: eps is %g; it must not be negative", eps);
    WEFT_TRY(check(n));
    WEFT_TRY(check_beta(n));
    out[0] = *x;
    out[1] = out[2] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), x->rank - 1, x->shape);
    *out_count = 3;
    return WEFT_OK;
}

static weft_status infer_apply(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n));
    WEFT_TRY(check_beta(n));
    WEFT_TRY(check_statistics(n, 3, 4));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(check(n));
    WEFT_TRY(check_statistics(n, 2, 3));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 4));
    out[0] = *x;
    out[1] = out[2] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), 1, &x->shape[x->rank - 1]);
    *out_count = 3;
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_in(g, n, 1), wefti_grad_out(g, n, 1),
                       wefti_grad_out(g, n, 2), wefti_grad_of(g, n, 0)};
    weft_value out[3];
    if (in[4].id < 0) return WEFT_OK; /* a gradient of the statistics alone is not passed on */
    wefti_graph_add(wefti_grad_graph(g), &weft_op_layer_norm_grad, 5, in, 0, NULL, 3, out);
    for (int i = 0; i < n->inputs; i++)
        if (wefti_in(n, i) && wefti_grad_wanted(g, n, i)) wefti_grad_add_reduced(g, n, i, out[i]);
    return WEFT_OK;
}

/* ---- split rules: rows free; the normalised dimension: statistics ---- */

static void rule(const weft_node *n, wefti_factor_kind rows_kind, wefti_factor_kind width_kind,
                 wefti_split_rule *r, int8_t f[WEFT_MAX_RANK]) {
    const weft_desc *x = wefti_in(n, 0);
    wefti_op_factors(r, "m", x, 0, x->rank - 1, rows_kind, f);
    f[x->rank - 1] = wefti_op_factor(r, "h", -1, width_of(x), width_kind);
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    int rank = wefti_in(n, 0)->rank;
    rule(n, WEFTI_FACTOR_FREE, WEFTI_FACTOR_STATS, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, rank);
    wefti_op_assign(r->out[0], 0, f, 0, rank);
    for (int i = 1; i < n->inputs; i++)
        if (wefti_in(n, i)) r->in[i][0] = f[rank - 1];
    for (int o = 1; o < 3; o++) wefti_op_assign(r->out[o], 0, f, 0, rank - 1);
    return WEFT_OK;
}

static weft_status split_apply(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    int rank = wefti_in(n, 0)->rank;
    rule(n, WEFTI_FACTOR_FREE, WEFTI_FACTOR_FREE, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, rank);
    wefti_op_assign(r->out[0], 0, f, 0, rank);
    for (int i = 1; i < 3; i++)
        if (wefti_in(n, i)) r->in[i][0] = f[rank - 1];
    for (int i = 3; i < 5; i++) wefti_op_assign(r->in[i], 0, f, 0, rank - 1);
    return WEFT_OK;
}

/* Rows are split in dx and summed in dgamma and dbeta. */
static weft_status split_grad(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK];
    int rank = wefti_in(n, 0)->rank;
    rule(n, WEFTI_FACTOR_SUM, WEFTI_FACTOR_STATS, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, rank);
    wefti_op_assign(r->in[4], 0, f, 0, rank);
    wefti_op_assign(r->out[0], 0, f, 0, rank);
    for (int i = 2; i < 4; i++) wefti_op_assign(r->in[i], 0, f, 0, rank - 1);
    r->in[1][0] = r->out[1][0] = r->out[2][0] = f[rank - 1];
    return WEFT_OK;
}

/* ---- over a split width ----
 *
 * Combines the statistics of all pieces (Chan, Golub, LeVeque, "Algorithms for Computing the Sample
 * Variance", 1983, equation 1.5). The mean is the mean of the pieces' means, weighted by element
 * count. The variance is the weighted mean of the pieces' variances, plus the weighted mean of the
 * squared differences between the pieces' means and the total mean. */

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    weft_value in[5] = {wefti_lower_in(c, 0), wefti_lower_in(c, 1), wefti_lower_in(c, 2)}, here[3];
    weft_desc x = weft_value_desc(g, in[0]);
    double share = (double)width_of(&x) / (double)width_of(wefti_in(n, 0));
    wefti_lower_same(c, in, 0, NULL, here);
    weft_value mean =
        wefti_lower_all_reduce(c, weft_scale(g, here[1], share), factors, WEFTI_REDUCE_SUM);
    /* var + eps of the piece, and the difference of its mean from the total mean */
    weft_value one = wefti_op_scalar(g, mean, 1.0), off = weft_sub(g, here[1], mean);
    weft_value square = weft_div(g, one, weft_mul(g, here[2], here[2]));
    square = weft_scale(g, weft_add(g, square, weft_mul(g, off, off)), share);
    weft_value rstd = weft_rsqrt(g, wefti_lower_all_reduce(c, square, factors, WEFTI_REDUCE_SUM));
    in[3] = mean;
    in[4] = rstd;
    wefti_lower_out(c, 0, wefti_graph_add1(g, &weft_op_layer_norm_apply, 5, in, 0, NULL));
    wefti_lower_out(c, 1, mean);
    wefti_lower_out(c, 2, rstd);
    return WEFT_OK;
}

static weft_status lower_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    const weft_desc *x = wefti_in(n, 0);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    uint32_t rows = wefti_op_factors_of(c, WEFTI_FACTOR_SUM);
    wefti_ints last = {1, {x->rank - 1}};
    double share = 1.0 / (double)width_of(x);
    weft_value mean = wefti_op_column(g, wefti_lower_in(c, 2));
    weft_value rstd = wefti_op_column(g, wefti_lower_in(c, 3));
    weft_value dy = wefti_op_precise(g, wefti_lower_in(c, 4));
    weft_value normal =
        weft_mul(g, weft_sub(g, wefti_op_precise(g, wefti_lower_in(c, 0)), mean), rstd);
    weft_value s = weft_mul(g, dy, wefti_lower_in(c, 1));
    weft_value avg = weft_scale(g, wefti_op_sum_over(c, s, &last, factors), share);
    weft_value avg_n =
        weft_scale(g, wefti_op_sum_over(c, weft_mul(g, s, normal), &last, factors), share);
    weft_value dx = weft_mul(g, rstd, weft_sub(g, weft_sub(g, s, avg), weft_mul(g, normal, avg_n)));
    wefti_lower_out(c, 0, weft_cast(g, dx, x->dtype));
    weft_desc gamma = wefti_lower_out_desc(c, 1);
    wefti_lower_out_partial(c, 1, wefti_op_sum_to(g, weft_mul(g, dy, normal), &gamma), rows);
    wefti_lower_out_partial(c, 2, wefti_op_sum_to(g, dy, &gamma), rows);
    return WEFT_OK;
}

static void cost_of(const weft_node *n, double flops, wefti_cost *out) {
    *out = (wefti_cost){.flops = flops * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}
static void cost(const weft_node *n, wefti_cost *out) {
    cost_of(n, 8.0, out);
}
static void cost_apply(const weft_node *n, wefti_cost *out) {
    cost_of(n, 4.0, out);
}
static void cost_grad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 13.0, out);
}

/* ---- references ---- */

static void apply_row(const double *x, const double *gamma, const double *beta, double mean,
                      double rstd, int64_t h, double *y) {
    for (int64_t k = 0; k < h; k++) y[k] = (x[k] - mean) * rstd * gamma[k] + (beta ? beta[k] : 0.0);
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    const double *beta = wefti_op_optional(n, in, 2);
    for (int64_t row = 0; row < rows; row++) {
        const double *x = in[0] + row * h;
        double mean = 0.0, var = 0.0;
        for (int64_t k = 0; k < h; k++) mean += x[k] / (double)h;
        for (int64_t k = 0; k < h; k++) var += (x[k] - mean) * (x[k] - mean) / (double)h;
        out[1][row] = mean;
        out[2][row] = 1.0 / sqrt(var + wefti_attr_float(n, WEFTI_AT_eps));
        apply_row(x, in[1], beta, mean, out[2][row], h, out[0] + row * h);
    }
    return WEFT_OK;
}

static weft_status reference_apply(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    const double *beta = wefti_op_optional(n, in, 2);
    for (int64_t row = 0; row < rows; row++)
        apply_row(in[0] + row * h, in[1], beta, in[3][row], in[4][row], h, out[0] + row * h);
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = rows_of(wefti_in(n, 0)), h = width_of(wefti_in(n, 0));
    const double *gamma = in[1];
    for (int64_t k = 0; k < h; k++) out[1][k] = out[2][k] = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = in[0] + row * h, *dy = in[4] + row * h;
        double mean = in[2][row], rstd = in[3][row], avg = 0.0, avg_n = 0.0;
        for (int64_t k = 0; k < h; k++) {
            double normal = (x[k] - mean) * rstd;
            avg += dy[k] * gamma[k] / (double)h;
            avg_n += dy[k] * gamma[k] * normal / (double)h;
            out[1][k] += dy[k] * normal;
            out[2][k] += dy[k];
        }
        for (int64_t k = 0; k < h; k++)
            out[0][row * h + k] = rstd * (dy[k] * gamma[k] - avg - (x[k] - mean) * rstd * avg_n);
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_F(eps, 1e-5), {0}};

static const wefti_op_case cases[] = {CASE(NULL, "f32[3,5]", "f32[5]", "f32[5]"),
                                      CASE("eps=0.1", "f32[2,3,7]", "f32[7]"),
                                      CASE(NULL, "bf16[2,16]", "f32[16]", "f32[16]"),
                                      CASE("eps=0.5", "f32[3,1]", "f32[1]", "f32[1]"),
                                      CASE(NULL, "f32[6]", "f32[6]", "-"),
                                      CASE(NULL, "f32[0,4]", "f32[4]", "f32[4]"),
                                      CASES_END};
static const wefti_op_case cases_apply[] = {
    CASE(NULL, "f32[3,5]", "f32[5]", "f32[5]", "f32[3]", "f32[3]+"),
    CASE(NULL, "bf16[2,3,7]", "f32[7]", "-", "f32[2,3]", "f32[2,3]+"),
    CASE(NULL, "f32[0,4]", "f32[4]", "f32[4]", "f32[0]", "f32[0]+"), CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE(NULL, "f32[3,5]", "f32[5]", "f32[3]", "f32[3]+", "f32[3,5]"),
    CASE(NULL, "bf16[2,3,7]", "f32[7]", "f32[2,3]", "f32[2,3]+", "bf16[2,3,7]"),
    CASE(NULL, "f32[0,4]", "f32[4]", "f32[0]", "f32[0]+", "f32[0,4]"), CASES_END};

const weft_op_def weft_op_layer_norm = {
    WEFTI_OP_NAME(layer_norm),
    .min_inputs = 2,
    .max_inputs = 3,
    .family = WEFTI_FAMILY_ROW_NORM,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .cost = cost,
    .reference = reference,
    .cases = cases,
    .apply = &weft_op_layer_norm_apply,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

const weft_op_def weft_op_layer_norm_apply = {
    WEFTI_OP_NAME(layer_norm_apply),
    .min_inputs = 2,
    .max_inputs = 5,
    .flags = WEFTI_OP_CHEAP,
    .infer = infer_apply,
    .split = split_apply,
    .cost = cost_apply,
    .reference = reference_apply,
    .cases = cases_apply,
};

const weft_op_def weft_op_layer_norm_grad = {
    WEFTI_OP_NAME(layer_norm_grad),
    .min_inputs = 5,
    .max_inputs = 5,
    .flags = WEFTI_OP_GRADIENT,
    .infer = infer_grad,
    .split = split_grad,
    .cost = cost_grad,
    .reference = reference_grad,
    .cases = cases_grad,
    .lower = lower_grad,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

weft_value weft_layer_norm(weft_graph *g, weft_value x, weft_value gamma, weft_value beta,
                           double eps) {
    weft_value out[3];
    wefti_graph_add(g, &weft_op_layer_norm, 3, (weft_value[]){x, gamma, beta}, 1,
                    (wefti_attr[]){WEFTI_F(eps, eps)}, 3, out);
    return out[0];
}
