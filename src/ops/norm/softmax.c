/* softmax and log_softmax along one dimension, and their gradients from the result.
 *
 *     softmax        y = e^(x - max) / sum e^(x - max)          dx = y (dy - sum(dy y))
 *     log_softmax    y = x - max - ln sum e^(x - max)           dx = dy - e^y sum(dy)
 *
 * Subtracting the maximum makes every exponent at most 0. */
#include "ops/common.h"

/* x as [outer, size, inner] around the axis. */
typedef struct softmax_lines {
    int64_t outer, size, inner;
} softmax_lines;

static softmax_lines lines_of(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    return (softmax_lines){wefti_op_count(x, 0, axis), x->shape[axis],
                           wefti_op_count(x, axis + 1, x->rank)};
}

/* Offset of element 0 of line number `line`. The elements of a line are `inner` apart. */
static int64_t line_at(const softmax_lines *l, int64_t line) {
    return line / l->inner * l->size * l->inner + line % l->inner;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_axis(n, wefti_attr_int(n, WEFTI_AT_axis), x->rank));
    *out = *x;
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(infer(n, out, out_count));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    return wefti_op_check_mix(n, 0);
}

static weft_status grad_by(wefti_grad *g, const weft_node *n, const weft_op_def *op) {
    weft_value in[] = {wefti_grad_out(g, n, 0), wefti_grad_of(g, n, 0)};
    wefti_attr axis = WEFTI_I(axis, wefti_attr_int(n, WEFTI_AT_axis));
    wefti_grad_add(g, n, 0, wefti_graph_add1(wefti_grad_graph(g), op, 2, in, 1, &axis));
    return WEFT_OK;
}

static weft_status grad_softmax(wefti_grad *g, const weft_node *n) {
    return grad_by(g, n, &weft_op_softmax_grad);
}
static weft_status grad_log_softmax(wefti_grad *g, const weft_node *n) {
    return grad_by(g, n, &weft_op_log_softmax_grad);
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    for (int d = 0; d < x->rank; d++) {
        int8_t f = wefti_op_factor(r, "d", d, x->shape[d],
                                   d == axis ? WEFTI_FACTOR_STATS : WEFTI_FACTOR_FREE);
        for (int i = 0; i < n->inputs; i++) r->in[i][d] = f;
        r->out[0][d] = f;
    }
    return WEFT_OK;
}

/* ---- over a split dimension: maximum and sum of all pieces ---- */

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    wefti_ints axes = {1, {wefti_attr_int(n, WEFTI_AT_axis)}};
    weft_value x = wefti_op_precise(g, wefti_lower_in(c, 0));
    weft_value max = wefti_graph_add1(g, &weft_op_max, 1, &x, 2,
                                      (wefti_attr[]){WEFTI_N(axes, axes), WEFTI_I(keep, 1)});
    weft_value below = weft_sub(g, x, wefti_lower_all_reduce(c, max, factors, WEFTI_REDUCE_MAX));
    weft_value exps = weft_exp(g, below);
    weft_value sum = wefti_op_sum_over(c, exps, &axes, factors);
    weft_value y =
        n->op == &weft_op_softmax ? weft_div(g, exps, sum) : weft_sub(g, below, weft_log(g, sum));
    wefti_lower_out(c, 0, weft_cast(g, y, wefti_out(n, 0)->dtype));
    return WEFT_OK;
}

static weft_status lower_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t factors = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    wefti_ints axes = {1, {wefti_attr_int(n, WEFTI_AT_axis)}};
    weft_value y = wefti_op_precise(g, wefti_lower_in(c, 0));
    weft_value dy = wefti_op_precise(g, wefti_lower_in(c, 1)), dx;
    if (n->op == &weft_op_softmax_grad) {
        weft_value dot = wefti_op_sum_over(c, weft_mul(g, y, dy), &axes, factors);
        dx = weft_mul(g, y, weft_sub(g, dy, dot));
    } else {
        weft_value sum = wefti_op_sum_over(c, dy, &axes, factors);
        dx = weft_sub(g, dy, weft_mul(g, weft_exp(g, y), sum));
    }
    wefti_lower_out(c, 0, weft_cast(g, dx, wefti_out(n, 0)->dtype));
    return WEFT_OK;
}

/* Operations for each element: maximum, difference, exponential, sum, and division or
 * difference. */
static void cost(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 0, 5.0, out);
}

/* Operations for each element. softmax: product and sum, difference and product. log_softmax: sum,
 * exponential, product, difference. */
static void cost_grad(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 0, 4.0, out);
}

/* The maximum of a line, and the sum of e^(x - max). They stay separate numbers, because rounding
 * max + ln(sum) would lose ln(sum) if max is large. */
static double line_statistics(const double *x, const softmax_lines *l, double *out_sum) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k < l->size; k++) max = fmax(max, x[k * l->inner]);
    for (int64_t k = 0; k < l->size; k++) sum += exp(x[k * l->inner] - max);
    *out_sum = sum;
    return max;
}

static weft_status reference_softmax(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    softmax_lines l = lines_of(n);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        const double *x = in[0] + line_at(&l, line);
        double *y = out[0] + line_at(&l, line), sum, max = line_statistics(x, &l, &sum);
        for (int64_t k = 0; k < l.size; k++) y[k * l.inner] = exp(x[k * l.inner] - max) / sum;
    }
    return WEFT_OK;
}

static weft_status reference_log_softmax(const weft_node *n, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    softmax_lines l = lines_of(n);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        const double *x = in[0] + line_at(&l, line);
        double *y = out[0] + line_at(&l, line), sum, max = line_statistics(x, &l, &sum);
        for (int64_t k = 0; k < l.size; k++) y[k * l.inner] = x[k * l.inner] - max - log(sum);
    }
    return WEFT_OK;
}

static weft_status reference_softmax_grad(const weft_node *n, const wefti_random *random,
                                          const double *const *in, double *const *out) {
    (void)random;
    softmax_lines l = lines_of(n);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        int64_t at = line_at(&l, line);
        const double *y = in[0] + at, *dy = in[1] + at;
        double *dx = out[0] + at, dot = 0.0;
        for (int64_t k = 0; k < l.size; k++) dot += y[k * l.inner] * dy[k * l.inner];
        for (int64_t k = 0; k < l.size; k++)
            dx[k * l.inner] = y[k * l.inner] * (dy[k * l.inner] - dot);
    }
    return WEFT_OK;
}

static weft_status reference_log_softmax_grad(const weft_node *n, const wefti_random *random,
                                              const double *const *in, double *const *out) {
    (void)random;
    softmax_lines l = lines_of(n);
    for (int64_t line = 0; line < l.outer * l.inner; line++) {
        int64_t at = line_at(&l, line);
        const double *y = in[0] + at, *dy = in[1] + at;
        double *dx = out[0] + at, sum = 0.0;
        for (int64_t k = 0; k < l.size; k++) sum += dy[k * l.inner];
        for (int64_t k = 0; k < l.size; k++)
            dx[k * l.inner] = dy[k * l.inner] - exp(y[k * l.inner]) * sum;
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I(axis, 0), {0}};

static const wefti_op_case cases[] = {CASE("axis=1", "f32[3,5]"),
                                      CASE("axis=0", "bf16[3,5]"),
                                      CASE("axis=1", "f32[2,7,3]"),
                                      CASE("axis=0", "f32[1]"),
                                      CASE("axis=1", "f32[0,3]"),
                                      CASE("axis=1", "f32[3,0]"),
                                      CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE("axis=1", "f32[3,5]", "f32[3,5]"), CASE("axis=0", "bf16[3,5]", "bf16[3,5]"),
    CASE("axis=1", "f32[2,7,3]", "f32[2,7,3]"), CASE("axis=0", "f32[0]", "f32[0]"), CASES_END};

#define FORWARD(name_)                                                                             \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_), .min_inputs = 1, .max_inputs = 1,                                    \
        .attrs = attrs,       .infer = infer,  .grad = grad_##name_,                               \
        .split = split,       .cost = cost,    .reference = reference_##name_,                     \
        .cases = cases,       .lower = lower,  .lowers = 1u << WEFTI_FACTOR_STATS,                 \
    };
#define BACKWARD(name_)                                                                            \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_),                                                                      \
        .min_inputs = 2,                                                                           \
        .max_inputs = 2,                                                                           \
        .flags = WEFTI_OP_GRADIENT,                                                                \
        .attrs = attrs,                                                                            \
        .infer = infer_grad,                                                                       \
        .split = split,                                                                            \
        .cost = cost_grad,                                                                         \
        .reference = reference_##name_,                                                            \
        .cases = cases_grad,                                                                       \
        .lower = lower_grad,                                                                       \
        .lowers = 1u << WEFTI_FACTOR_STATS,                                                        \
    };
FORWARD(softmax)
FORWARD(log_softmax)
BACKWARD(softmax_grad)
BACKWARD(log_softmax_grad)

static weft_value along(weft_graph *g, const weft_op_def *op, weft_value x, int axis) {
    return wefti_graph_add1(
        g, op, 1, &x, 1,
        (wefti_attr[]){WEFTI_I(axis, wefti_op_axis(axis, weft_value_desc(g, x).rank))});
}

weft_value weft_softmax(weft_graph *g, weft_value x, int axis) {
    return along(g, &weft_op_softmax, x, axis);
}

weft_value weft_log_softmax(weft_graph *g, weft_value x, int axis) {
    return along(g, &weft_op_log_softmax, x, axis);
}
