/* Batch normalisation over all dimensions except the channels (Ioffe, Szegedy, ICML 2015).
 *
 *     batch_norm_train(x [b, c, s...], gamma [c], beta [c]; eps) -> y, mean [c], var [c], rstd [c]
 *     batch_norm_infer(x, gamma, beta, mean, var; eps) -> y
 *     batch_norm_grad(x, gamma, mean, rstd, dy) -> dx, dgamma, dbeta        (of the training form)
 *
 *     y = (x - mean) rstd gamma + beta      rstd = 1 / sqrt(var + eps)
 *
 * The training form uses the statistics of this batch (var biased). The inference form uses given
 * statistics. With n = (x - mean) rstd:
 *
 *     dgamma = sum(dy n)      dbeta = sum(dy)      dx = gamma rstd (dy - avg(dy) - n avg(dy n))
 *
 * The public op adds the running statistics. These are plain elementwise nodes of [c], and their
 * results become the states. Statistics are f32 (f64 for f64). */
#include "ops/common.h"

/* x as [batch, channels, space] */
typedef struct planes {
    int64_t batch, channels, space;
} planes;

static planes planes_of(const weft_desc *x) {
    return (planes){x->shape[0], x->shape[1], wefti_op_count(x, 2, x->rank)};
}

/* Flat index in x of element k (of batch x space) of a channel. */
static int64_t at(const planes *p, int64_t channel, int64_t k) {
    return (k / p->space * p->channels + channel) * p->space + k % p->space;
}

/* ---- shapes ---- */

/* Checks that inputs [first, end) are [channels]. */
static weft_status check(const weft_node *n, int end) {
    const weft_desc *x = wefti_in(n, 0);
    for (int i = 0; i < n->inputs; i++) WEFT_TRY(wefti_op_check_float(n, i));
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    for (int i = 1; i < end; i++)
        WEFT_TRY(wefti_op_check_shape(n, i, 1, &x->shape[1], "the channels of x"));
    return WEFT_OK;
}

static weft_status check_eps(const weft_node *n) {
    double eps = wefti_attr_float(n, WEFTI_AT_eps);
    WEFT_REQUIRE(eps >= 0.0, WEFT_E_ARG, "%s: eps is %g; it must not be negative", n->op->name,
                 eps);
    return WEFT_OK;
}

static weft_status infer_train(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(check(n, 3));
    WEFT_TRY(check_eps(n));
    planes p = planes_of(x);
    WEFT_REQUIRE(
        p.batch * p.space >= 2, WEFT_E_SHAPE,
        "batch_norm: %s has %lld values a channel; training needs at least 2 for a variance",
        TEXT(x), (long long)(p.batch * p.space));
    out[0] = *x;
    for (int o = 1; o < 4; o++)
        out[o] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), 1, &x->shape[1]);
    *out_count = 4;
    return WEFT_OK;
}

static weft_status infer_infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n, 5));
    WEFT_TRY(check_eps(n));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(check(n, 4));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 4));
    out[0] = *x;
    out[1] = out[2] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), 1, &x->shape[1]);
    *out_count = 3;
    return WEFT_OK;
}

/* ---- gradients ---- */

static weft_status grad_train(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_in(g, n, 1), wefti_grad_out(g, n, 1),
                       wefti_grad_out(g, n, 3), wefti_grad_of(g, n, 0)};
    weft_value out[3];
    if (in[4].id < 0) return WEFT_OK; /* a gradient of the statistics alone is not passed on */
    wefti_graph_add(wefti_grad_graph(g), &weft_op_batch_norm_grad, 5, in, 0, NULL, 3, out);
    for (int i = 0; i < 3; i++)
        if (wefti_grad_wanted(g, n, i)) wefti_grad_add_reduced(g, n, i, out[i]);
    return WEFT_OK;
}

/* v [c] as [c, 1...], to broadcast over x */
static weft_value by_channel(weft_graph *b, const weft_desc *x, weft_value v) {
    int64_t shape[WEFT_MAX_RANK] = {x->shape[1]};
    for (int d = 1; d < x->rank - 1; d++) shape[d] = 1;
    return weft_reshape(b, v, x->rank - 1, shape);
}

/* v [b, c, s...] summed to the shape [c] and the dtype of input i */
static void add_channel_sum(wefti_grad *g, const weft_node *n, int i, weft_value v) {
    weft_graph *b = wefti_grad_graph(g);
    const weft_desc *x = wefti_in(n, 0);
    weft_desc to = {.dtype = wefti_in(n, i)->dtype, .rank = x->rank};
    for (int d = 0; d < x->rank; d++) to.shape[d] = d == 1 ? x->shape[1] : 1;
    weft_value sums = wefti_op_sum_to(b, v, &to);
    wefti_grad_add(g, n, i, weft_reshape(b, sums, 1, &x->shape[1]));
}

/* Given statistics are constants with respect to x: dx = dy gamma rstd. The other gradients follow
 * from the chain rule. */
static weft_status grad_infer(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    const weft_desc *x = wefti_in(n, 0);
    weft_value dy = wefti_grad_of(g, n, 0), gamma = wefti_grad_in(g, n, 1);
    weft_value rstd =
        weft_rsqrt(b, weft_shift(b, wefti_grad_in(g, n, 4), wefti_attr_float(n, WEFTI_AT_eps)));
    weft_value slope = by_channel(b, x, weft_mul(b, gamma, rstd));
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add_reduced(g, n, 0, weft_mul(b, dy, slope));
    if (wefti_grad_wanted(g, n, 2)) add_channel_sum(g, n, 2, dy);
    if (wefti_grad_wanted(g, n, 3)) add_channel_sum(g, n, 3, weft_neg(b, weft_mul(b, dy, slope)));
    if (!wefti_grad_wanted(g, n, 1) && !wefti_grad_wanted(g, n, 4)) return WEFT_OK;
    weft_value mean = by_channel(b, x, wefti_grad_in(g, n, 3));
    weft_value dy_x = weft_mul(b, dy, weft_sub(b, wefti_grad_in(g, n, 0), mean));
    if (wefti_grad_wanted(g, n, 1))
        add_channel_sum(g, n, 1, weft_mul(b, dy_x, by_channel(b, x, rstd)));
    if (wefti_grad_wanted(g, n, 4)) { /* d rstd / d var = -rstd^3 / 2 */
        weft_value cube = weft_mul(b, rstd, wefti_op_add1(b, &weft_op_square, rstd));
        weft_value by_var = by_channel(b, x, weft_scale(b, weft_mul(b, gamma, cube), -0.5));
        add_channel_sum(g, n, 4, weft_mul(b, dy_x, by_var));
    }
    return WEFT_OK;
}

/* ---- split rules: channels free; batch and space: statistics, or free with given statistics
 * ---- */

static int8_t rule(const weft_node *n, wefti_factor_kind kind, wefti_split_rule *r,
                   int8_t f[WEFT_MAX_RANK]) {
    const weft_desc *x = wefti_in(n, 0);
    for (int d = 0; d < x->rank; d++)
        f[d] = wefti_op_factor(r,
                               d == 0   ? "batch"
                               : d == 1 ? "channels"
                                        : "s",
                               d < 2 ? -1 : d - 2, x->shape[d], d == 1 ? WEFTI_FACTOR_FREE : kind);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->out[0], 0, f, 0, x->rank);
    return f[1];
}

static weft_status split_train(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK], channels = rule(n, WEFTI_FACTOR_STATS, r, f);
    for (int i = 1; i < 3; i++) r->in[i][0] = channels;
    for (int o = 1; o < 4; o++) r->out[o][0] = channels;
    return WEFT_OK;
}

static weft_status split_infer(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK], channels = rule(n, WEFTI_FACTOR_FREE, r, f);
    for (int i = 1; i < 5; i++) r->in[i][0] = channels;
    return WEFT_OK;
}

static weft_status split_grad(const weft_node *n, wefti_split_rule *r) {
    int8_t f[WEFT_MAX_RANK], channels = rule(n, WEFTI_FACTOR_STATS, r, f);
    wefti_op_assign(r->in[4], 0, f, 0, wefti_in(n, 0)->rank);
    for (int i = 1; i < 4; i++) r->in[i][0] = channels;
    for (int o = 1; o < 3; o++) r->out[o][0] = channels;
    return WEFT_OK;
}

/* ---- over split batch and space: sums of all pieces ---- */

/* All dimensions except the channels, and the number of values of a channel in the whole tensor. */
static wefti_ints summed(const weft_node *n, double *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    planes p = planes_of(x);
    wefti_ints axes = {0};
    for (int d = 0; d < x->rank; d++)
        if (d != 1) axes.v[axes.count++] = d;
    *out_count = (double)(p.batch * p.space);
    return axes;
}

static weft_value flat(weft_graph *g, weft_value v) {
    int64_t channels = weft_value_desc(g, v).shape[1];
    return weft_reshape(g, v, 1, &channels);
}

static weft_status lower_train(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    double count;
    wefti_ints axes = summed(n, &count);
    weft_value x = wefti_op_precise(g, wefti_lower_in(c, 0));
    weft_desc d = weft_value_desc(g, x);
    weft_value mean = weft_scale(g, wefti_op_sum_over(c, x, &axes, factors), 1.0 / count);
    weft_value off = weft_sub(g, x, mean);
    weft_value var =
        weft_scale(g, wefti_op_sum_over(c, wefti_op_add1(g, &weft_op_square, off), &axes, factors),
                   1.0 / count);
    weft_value rstd = weft_rsqrt(g, weft_shift(g, flat(g, var), wefti_attr_float(n, WEFTI_AT_eps)));
    weft_value slope = by_channel(g, &d, weft_mul(g, rstd, wefti_lower_in(c, 1)));
    weft_value y = weft_add(g, weft_mul(g, off, slope), by_channel(g, &d, wefti_lower_in(c, 2)));
    wefti_lower_out(c, 0, weft_cast(g, y, wefti_out(n, 0)->dtype));
    wefti_lower_out(c, 1, flat(g, mean));
    wefti_lower_out(c, 2, flat(g, var));
    wefti_lower_out(c, 3, rstd);
    return WEFT_OK;
}

static weft_status lower_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    double count;
    wefti_ints axes = summed(n, &count);
    weft_value x = wefti_op_precise(g, wefti_lower_in(c, 0));
    weft_value dy = wefti_op_precise(g, wefti_lower_in(c, 4)), rstd = wefti_lower_in(c, 3);
    weft_desc d = weft_value_desc(g, x);
    weft_value normal = weft_mul(g, weft_sub(g, x, by_channel(g, &d, wefti_lower_in(c, 2))),
                                 by_channel(g, &d, rstd));
    weft_value sum = wefti_op_sum_over(c, dy, &axes, factors);
    weft_value sum_n = wefti_op_sum_over(c, weft_mul(g, dy, normal), &axes, factors);
    weft_value rest = weft_sub(g, weft_sub(g, dy, weft_scale(g, sum, 1.0 / count)),
                               weft_mul(g, normal, weft_scale(g, sum_n, 1.0 / count)));
    weft_value slope = by_channel(g, &d, weft_mul(g, rstd, wefti_lower_in(c, 1)));
    wefti_lower_out(c, 0, weft_cast(g, weft_mul(g, rest, slope), wefti_out(n, 0)->dtype));
    wefti_lower_out(c, 1, flat(g, sum_n));
    wefti_lower_out(c, 2, flat(g, sum));
    return WEFT_OK;
}

static void cost_of(const weft_node *n, double flops, wefti_cost *out) {
    *out = (wefti_cost){.flops = flops * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}
static void cost_train(const weft_node *n, wefti_cost *out) {
    cost_of(n, 8.0, out);
}
static void cost_infer(const weft_node *n, wefti_cost *out) {
    cost_of(n, 4.0, out);
}
static void cost_grad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 9.0, out);
}

/* ---- references ---- */

static weft_status reference_infer(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    planes p = planes_of(wefti_in(n, 0));
    for (int64_t c = 0; c < p.channels; c++)
        for (int64_t k = 0; k < p.batch * p.space; k++) {
            double rstd = 1.0 / sqrt(in[4][c] + wefti_attr_float(n, WEFTI_AT_eps));
            out[0][at(&p, c, k)] = (in[0][at(&p, c, k)] - in[3][c]) * rstd * in[1][c] + in[2][c];
        }
    return WEFT_OK;
}

static weft_status reference_train(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    planes p = planes_of(wefti_in(n, 0));
    int64_t count = p.batch * p.space;
    for (int64_t c = 0; c < p.channels; c++) {
        double mean = 0.0, var = 0.0;
        for (int64_t k = 0; k < count; k++) mean += in[0][at(&p, c, k)] / (double)count;
        for (int64_t k = 0; k < count; k++)
            var += (in[0][at(&p, c, k)] - mean) * (in[0][at(&p, c, k)] - mean) / (double)count;
        out[1][c] = mean;
        out[2][c] = var;
        out[3][c] = 1.0 / sqrt(var + wefti_attr_float(n, WEFTI_AT_eps));
    }
    const double *given[] = {in[0], in[1], in[2], out[1], out[2]};
    return reference_infer(n, random, given, out);
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    planes p = planes_of(wefti_in(n, 0));
    int64_t count = p.batch * p.space;
    for (int64_t c = 0; c < p.channels; c++) {
        double mean = in[2][c], rstd = in[3][c], sum = 0.0, sum_n = 0.0;
        for (int64_t k = 0; k < count; k++) {
            double dy = in[4][at(&p, c, k)];
            sum += dy;
            sum_n += dy * (in[0][at(&p, c, k)] - mean) * rstd;
        }
        for (int64_t k = 0; k < count; k++) {
            double normal = (in[0][at(&p, c, k)] - mean) * rstd;
            out[0][at(&p, c, k)] =
                in[1][c] * rstd *
                (in[4][at(&p, c, k)] - sum / (double)count - normal * sum_n / (double)count);
        }
        out[1][c] = sum_n;
        out[2][c] = sum;
    }
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_attr attrs[] = {WEFTI_F(eps, 1e-5), {0}};

static const wefti_op_case cases_train[] = {CASE(NULL, "f32[3,2,5]", "f32[2]", "f32[2]"),
                                            CASE("eps=0.1", "f32[2,3,2,3]", "f32[3]", "f32[3]"),
                                            CASE(NULL, "bf16[7,3]", "f32[3]", "f32[3]"),
                                            CASE(NULL, "f32[1,2,2,1,2]", "f32[2]", "f32[2]"),
                                            CASE(NULL, "f32[3,0,2]", "f32[0]", "f32[0]"),
                                            CASES_END};
static const wefti_op_case cases_infer[] = {
    CASE(NULL, "f32[3,2,5]", "f32[2]", "f32[2]", "f32[2]", "f32[2]+"),
    CASE("eps=0.1", "bf16[2,3,2,3]", "f32[3]", "f32[3]", "f32[3]", "f32[3]+"),
    CASE(NULL, "f32[1,1]", "f32[1]", "f32[1]", "f32[1]", "f32[1]+"),
    CASE(NULL, "f32[0,2,2]", "f32[2]", "f32[2]", "f32[2]", "f32[2]+"), CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE(NULL, "f32[3,2,5]", "f32[2]", "f32[2]", "f32[2]+", "f32[3,2,5]"),
    CASE(NULL, "bf16[2,3,2,3]", "f32[3]", "f32[3]", "f32[3]+", "bf16[2,3,2,3]"), CASES_END};

const weft_op_def weft_op_batch_norm_train = {
    WEFTI_OP_NAME(batch_norm_train),
    .min_inputs = 3,
    .max_inputs = 3,
    .family = WEFTI_FAMILY_BATCH_NORM,
    .attrs = attrs,
    .infer = infer_train,
    .grad = grad_train,
    .split = split_train,
    .cost = cost_train,
    .reference = reference_train,
    .cases = cases_train,
    .lower = lower_train,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

const weft_op_def weft_op_batch_norm_infer = {
    WEFTI_OP_NAME(batch_norm_infer),
    .min_inputs = 5,
    .max_inputs = 5,
    .family = WEFTI_FAMILY_BATCH_NORM,
    .attrs = attrs,
    .infer = infer_infer,
    .grad = grad_infer,
    .split = split_infer,
    .cost = cost_infer,
    .reference = reference_infer,
    .cases = cases_infer,
};

const weft_op_def weft_op_batch_norm_grad = {
    WEFTI_OP_NAME(batch_norm_grad),
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

/* state = (1 - momentum) state + momentum factor now */
static void update(weft_graph *g, weft_value state, weft_value now, double momentum,
                   double factor) {
    weft_value next =
        weft_add(g, weft_scale(g, state, 1.0 - momentum), weft_scale(g, now, momentum * factor));
    weft_state_update(g, state, next);
}

weft_value weft_batch_norm(weft_graph *g, weft_value x, weft_value gamma, weft_value beta,
                           weft_value mean, weft_value var, double momentum, double eps,
                           bool training) {
    wefti_attr attr = WEFTI_F(eps, eps);
    if (!training)
        return wefti_graph_add1(g, &weft_op_batch_norm_infer, 5,
                                (weft_value[]){x, gamma, beta, mean, var}, 1, &attr);
    if (wefti_graph_ok(g) && !(momentum >= 0 && momentum <= 1))
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_ARG,
                                       "batch_norm: the momentum is %g; it must be in [0, 1]",
                                       wefti_printed(momentum)));
    weft_value out[4];
    weft_desc d = weft_value_desc(g, x);
    wefti_graph_add(g, &weft_op_batch_norm_train, 3, (weft_value[]){x, gamma, beta}, 1, &attr, 4,
                    out);
    if (!wefti_graph_ok(g)) return WEFT_NO_VALUE;
    planes p = planes_of(&d);
    double count = (double)(p.batch * p.space); /* at least 2: the op checked it */
    update(g, mean, out[1], momentum, 1.0);
    update(g, var, out[2], momentum, count / (count - 1.0)); /* the running variance is unbiased */
    return out[0];
}
