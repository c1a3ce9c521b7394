/* Elementwise ops of one operand. Also the gradients that cannot be written as one or two of these
 * ops.
 *
 *     y[i] = f(x[i])      x [...] -> [...]
 *
 * One file for the family. Each op is a formula, a gradient and one table row. Shape, split rule,
 * reference and cost are shared by all of them.
 *
 * Gradient ops take (x, dy), or (y, dy) where the result is easier to use (tanh, sigmoid, relu).
 * These ops and exp, sqrt, rsqrt keep their result. The others are WEFTI_OP_CHEAP: the backward
 * pass needs their operand anyway, or it needs nothing.
 *
 * gelu: Hendrycks & Gimpel, "Gaussian Error Linear Units", 2016: x Phi(x) (gelu_erf) and the tanh
 * form of its section 2. silu: the same paper, section 2 (x sigmoid(x)). */
#include "ops/common.h"

static const double SQRT_2_OVER_PI = 0.79788456080286535588;
static const double ONE_OVER_SQRT_2 = 0.70710678118654752440;
static const double ONE_OVER_SQRT_2PI = 0.39894228040143267794;
static const double GELU_CUBIC = 0.044715;

static weft_status infer_float(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_number(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    WEFT_REQUIRE(x->dtype != WEFT_BOOL, WEFT_E_ARG,
                 "%s: %s: booleans have no arithmetic (use cast)", n->op->name, TEXT(x));
    *out = *x;
    return WEFT_OK;
}

static weft_status infer_clip(const weft_node *n, weft_desc *out, int *out_count) {
    double low = wefti_attr_float(n, WEFTI_AT_low), high = wefti_attr_float(n, WEFTI_AT_high);
    WEFT_REQUIRE(low <= high, WEFT_E_ARG, "%s: the bounds [%g, %g]: low must not exceed high",
                 n->op->name, low, high);
    return infer_float(n, out, out_count);
}

static weft_status infer_cast(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    *out = wefti_op_retyped(wefti_in(n, 0), (weft_dtype)dtype);
    return WEFT_OK;
}

/* (x or y, dy) -> dx, with the dtype of the gradient */
static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    *out = *wefti_in(n, 1);
    return WEFT_OK;
}

/* ---- gradients ---- */

static void chain(wefti_grad *g, const weft_node *n, weft_value dx) {
    wefti_grad_add(g, n, 0, dx);
}

#define GRAD(name_, formula_)                                                                      \
    static weft_status grad_##name_(wefti_grad *g, const weft_node *n) {                           \
        weft_graph *b = wefti_grad_graph(g);                                                       \
        weft_value dy = wefti_grad_of(g, n, 0);                                                    \
        (void)b;                                                                                   \
        chain(g, n, formula_);                                                                     \
        return WEFT_OK;                                                                            \
    }
#define X wefti_grad_in(g, n, 0)
#define Y wefti_grad_out(g, n, 0)
GRAD(neg, weft_neg(b, dy))
GRAD(exp, weft_mul(b, dy, Y))
GRAD(log, weft_div(b, dy, X))
GRAD(sqrt, weft_scale(b, weft_div(b, dy, Y), 0.5)) /* 1 / (2 y) */
/* y = x^(-1/2): -1/2 x^(-3/2) = -1/2 y^3 */
GRAD(rsqrt,
     weft_scale(b, weft_mul(b, weft_mul(b, dy, wefti_op_add1(b, &weft_op_square, Y)), Y), -0.5))
GRAD(tanh, wefti_op_add2(b, &weft_op_tanh_grad, Y, dy))
GRAD(sigmoid, wefti_op_add2(b, &weft_op_sigmoid_grad, Y, dy))
GRAD(relu, wefti_op_add2(b, &weft_op_relu_grad, Y, dy))
GRAD(gelu, wefti_op_add2(b, &weft_op_gelu_grad, X, dy))
GRAD(gelu_erf, wefti_op_add2(b, &weft_op_gelu_erf_grad, X, dy))
GRAD(silu, wefti_op_add2(b, &weft_op_silu_grad, X, dy))
GRAD(abs, weft_mul(b, dy, wefti_op_add1(b, &weft_op_sign, X)))
GRAD(square, weft_scale(b, weft_mul(b, dy, X), 2.0))
GRAD(scale, weft_scale(b, dy, wefti_attr_float(n, WEFTI_AT_factor)))
GRAD(shift, dy)
GRAD(clip, wefti_graph_add1(b, &weft_op_clip_grad, 2, (weft_value[]){X, dy}, 2,
                            (wefti_attr[]){WEFTI_F(low, wefti_attr_float(n, WEFTI_AT_low)),
                                           WEFTI_F(high, wefti_attr_float(n, WEFTI_AT_high))}))
#undef X
#undef Y
#undef GRAD

/* Only a cast between floating formats has a gradient. A value that was an integer has none. */
static weft_status grad_cast(wefti_grad *g, const weft_node *n) {
    if (wefti_dtype_is_float(wefti_in(n, 0)->dtype))
        chain(g, n, weft_cast(wefti_grad_graph(g), wefti_grad_of(g, n, 0), wefti_in(n, 0)->dtype));
    return WEFT_OK;
}

/* ---- formulas; in gradient ops x[0] is x or y, x[1] is dy ---- */

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}
static double gelu_inner(double x) {
    return tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
}
static double normal_cdf(double x) {
    return 0.5 * (1.0 + erf(x * ONE_OVER_SQRT_2));
}

static double gelu_slope(double x) {
    double t = gelu_inner(x);
    return 0.5 * (1.0 + t) +
           0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
}

static double gelu_erf_slope(double x) {
    return normal_cdf(x) + x * ONE_OVER_SQRT_2PI * exp(-0.5 * x * x);
}

static double silu_slope(double x) {
    double s = sigmoid(x);
    return s * (1.0 + x * (1.0 - s));
}

static double cast(weft_dtype to, double x) {
    if (wefti_dtype_is_float(to)) return x;
    if (to == WEFT_BOOL) return x != 0.0;
    return isnan(x) ? 0.0 : trunc(x); /* as wefti_convert; the store saturates */
}

#define ELEMENT(name_, formula_)                                                                   \
    static double element_##name_(const weft_node *n, const double *x) {                           \
        (void)n;                                                                                   \
        return formula_;                                                                           \
    }
ELEMENT(neg, -x[0])
ELEMENT(exp, exp(x[0]))
ELEMENT(log, log(x[0]))
ELEMENT(sqrt, sqrt(x[0]))
ELEMENT(rsqrt, 1.0 / sqrt(x[0]))
ELEMENT(tanh, tanh(x[0]))
ELEMENT(sigmoid, sigmoid(x[0]))
ELEMENT(relu, x[0] <= 0.0 ? 0.0 : x[0]) /* NaN stays NaN */
ELEMENT(gelu, 0.5 * x[0] * (1.0 + gelu_inner(x[0])))
ELEMENT(gelu_erf, x[0] * normal_cdf(x[0]))
ELEMENT(silu, x[0] * sigmoid(x[0]))
ELEMENT(abs, fabs(x[0]))
ELEMENT(sign, x[0] > 0.0 ? 1.0 : x[0] < 0.0 ? -1.0 : x[0]) /* NaN stays NaN */
ELEMENT(square, x[0] * x[0])
ELEMENT(scale, x[0] * wefti_attr_float(n, WEFTI_AT_factor))
ELEMENT(shift, x[0] + wefti_attr_float(n, WEFTI_AT_term))
ELEMENT(cast, cast((weft_dtype)wefti_attr_int(n, WEFTI_AT_dtype), x[0]))
ELEMENT(tanh_grad, x[1] * (1.0 - x[0] * x[0]))
ELEMENT(sigmoid_grad, x[1] * x[0] * (1.0 - x[0]))
ELEMENT(relu_grad, x[0] <= 0.0 ? 0.0 : x[1]) /* where y is NaN, dx = dy */
ELEMENT(gelu_grad, x[1] * gelu_slope(x[0]))
ELEMENT(gelu_erf_grad, x[1] * gelu_erf_slope(x[0]))
ELEMENT(silu_grad, x[1] * silu_slope(x[0]))
#undef ELEMENT

static double element_clip(const weft_node *n, const double *x) {
    double low = wefti_attr_float(n, WEFTI_AT_low), high = wefti_attr_float(n, WEFTI_AT_high);
    return x[0] < low ? low : x[0] > high ? high : x[0];
}

static double element_clip_grad(const weft_node *n, const double *x) {
    double low = wefti_attr_float(n, WEFTI_AT_low), high = wefti_attr_float(n, WEFTI_AT_high);
    return x[0] >= low && x[0] <= high ? x[1] : 0.0;
}

/* ---- formulas of integers ---- */

static int64_t integer_abs(const weft_node *n, const int64_t *x) {
    (void)n;
    return x[0] >= 0 ? x[0] : x[0] == INT64_MIN ? INT64_MAX : -x[0];
}

static int64_t integer_neg(const weft_node *n, const int64_t *x) {
    return x[0] > 0 ? -x[0] : integer_abs(n, x);
}

static int64_t integer_sign(const weft_node *n, const int64_t *x) {
    (void)n;
    return (x[0] > 0) - (x[0] < 0);
}

static int64_t integer_square(const weft_node *n, const int64_t *x) {
    int64_t y;
    (void)n;
    return wefti_mul_overflows(x[0], x[0], &y) ? INT64_MAX : y;
}

static int64_t integer_cast(const weft_node *n, const int64_t *x) {
    (void)n;
    return x[0]; /* the store saturates */
}

/* ---- cases ---- */

static const wefti_op_case cases_any[] = {CASE(NULL, "f32[3,5]"), CASE(NULL, "bf16[2,1,7]"),
                                          CASE(NULL, "f32[]"), CASE(NULL, "f32[0,4]"), CASES_END};
static const wefti_op_case cases_positive[] = {CASE(NULL, "f32[3,5]+"), CASE(NULL, "f32[1]+"),
                                               CASE(NULL, "f32[0,4]+"), CASES_END};
static const wefti_op_case cases_clip[] = {CASE("low=-0.5 high=0.75", "f32[3,5]"),
                                           CASE("low=0 high=1", "bf16[2,1,7]"),
                                           CASE("low=0 high=1", "f32[0]"), CASES_END};
static const wefti_op_case cases_scale[] = {CASE("factor=-2.5", "f32[3,5]"),
                                            CASE("factor=0.125", "bf16[2,1,7]"),
                                            CASE("factor=3", "f32[0]"), CASES_END};
static const wefti_op_case cases_shift[] = {CASE("term=-2.5", "f32[3,5]"), CASE("term=1", "f32[]"),
                                            CASE("term=3", "f32[0]"), CASES_END};
static const wefti_op_case cases_cast[] = {
    CASE("dtype=bf16", "f32[3,5]"),  CASE("dtype=f32", "bf16[2,7]"),
    CASE("dtype=f32", "i32[4]<100"), CASE("dtype=bool", "i32[5]<2"),
    CASE("dtype=i32", "f32[6]"),     CASE("dtype=f16", "f32[0,2]"),
    CASE("dtype=f32", "bool[3]?"),   CASES_END};
static const wefti_op_case cases_grad[] = {CASE(NULL, "f32[3,5]", "f32[3,5]"),
                                           CASE(NULL, "bf16[2,1,7]", "bf16[2,1,7]"),
                                           CASE(NULL, "f32[0]", "f32[0]"), CASES_END};
static const wefti_op_case cases_clip_grad[] = {CASE("low=-0.5 high=0.75", "f32[3,5]", "f32[3,5]"),
                                                CASE("low=0 high=1", "f32[0]", "f32[0]"),
                                                CASES_END};

/* ---- definitions ---- */

static const wefti_attr attrs_none[] = {{0}};
static const wefti_attr attrs_clip[] = {WEFTI_F(low, 0.0), WEFTI_F(high, 1.0), {0}};
static const wefti_attr attrs_scale[] = {WEFTI_F(factor, 1.0), {0}};
static const wefti_attr attrs_shift[] = {WEFTI_F(term, 0.0), {0}};
static const wefti_attr attrs_cast[] = {WEFTI_I(dtype, WEFT_F32), {0}};

#define UNARY(name_, flags_, attrs_, infer_, grad_, cases_, integer_)                              \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_),  .min_inputs = 1,                                                    \
        .max_inputs = 1,       .flags = WEFTI_OP_ELEMENTWISE | (flags_),                           \
        .attrs = attrs_,       .infer = infer_,                                                    \
        .grad = grad_,         .split = wefti_op_split_elementwise,                                \
        .cases = cases_,       .element = element_##name_,                                         \
        .integer = (integer_),                                                                     \
    };
UNARY(neg, WEFTI_OP_CHEAP | WEFTI_OP_LINEAR, attrs_none, infer_number, grad_neg, cases_any,
      integer_neg)
UNARY(exp, 0, attrs_none, infer_float, grad_exp, cases_any, NULL)
UNARY(log, WEFTI_OP_CHEAP, attrs_none, infer_float, grad_log, cases_positive, NULL)
UNARY(sqrt, 0, attrs_none, infer_float, grad_sqrt, cases_positive, NULL)
UNARY(rsqrt, 0, attrs_none, infer_float, grad_rsqrt, cases_positive, NULL)
UNARY(tanh, 0, attrs_none, infer_float, grad_tanh, cases_any, NULL)
UNARY(sigmoid, 0, attrs_none, infer_float, grad_sigmoid, cases_any, NULL)
UNARY(relu, 0, attrs_none, infer_float, grad_relu, cases_any, NULL)
UNARY(gelu, WEFTI_OP_CHEAP, attrs_none, infer_float, grad_gelu, cases_any, NULL)
UNARY(gelu_erf, WEFTI_OP_CHEAP, attrs_none, infer_float, grad_gelu_erf, cases_any, NULL)
UNARY(silu, WEFTI_OP_CHEAP, attrs_none, infer_float, grad_silu, cases_any, NULL)
UNARY(abs, WEFTI_OP_CHEAP, attrs_none, infer_number, grad_abs, cases_any, integer_abs)
UNARY(sign, WEFTI_OP_CHEAP, attrs_none, infer_number, NULL, cases_any, integer_sign)
UNARY(square, WEFTI_OP_CHEAP, attrs_none, infer_number, grad_square, cases_any, integer_square)
UNARY(clip, WEFTI_OP_CHEAP, attrs_clip, infer_clip, grad_clip, cases_clip, NULL)
UNARY(scale, WEFTI_OP_CHEAP | WEFTI_OP_LINEAR, attrs_scale, infer_float, grad_scale, cases_scale,
      NULL)
UNARY(shift, WEFTI_OP_CHEAP, attrs_shift, infer_float, grad_shift, cases_shift, NULL)
UNARY(cast, WEFTI_OP_CHEAP | WEFTI_OP_LINEAR | WEFTI_OP_CONVERTS, attrs_cast, infer_cast, grad_cast,
      cases_cast, integer_cast)
#undef UNARY

#define GRADIENT(name_, attrs_, cases_)                                                            \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_),                                                                      \
        .min_inputs = 2,                                                                           \
        .max_inputs = 2,                                                                           \
        .flags = WEFTI_OP_ELEMENTWISE | WEFTI_OP_GRADIENT,                                         \
        .attrs = attrs_,                                                                           \
        .infer = infer_grad,                                                                       \
        .split = wefti_op_split_elementwise,                                                       \
        .cases = cases_,                                                                           \
        .element = element_##name_,                                                                \
    };
GRADIENT(tanh_grad, attrs_none, cases_grad)
GRADIENT(sigmoid_grad, attrs_none, cases_grad)
GRADIENT(relu_grad, attrs_none, cases_grad)
GRADIENT(gelu_grad, attrs_none, cases_grad)
GRADIENT(gelu_erf_grad, attrs_none, cases_grad)
GRADIENT(silu_grad, attrs_none, cases_grad)
GRADIENT(clip_grad, attrs_clip, cases_clip_grad)
#undef GRADIENT

#define BUILDER(name_)                                                                             \
    weft_value weft_##name_(weft_graph *g, weft_value x) {                                         \
        return wefti_op_add1(g, &weft_op_##name_, x);                                              \
    }
BUILDER(neg)
BUILDER(exp)
BUILDER(log)
BUILDER(sqrt)
BUILDER(rsqrt)
BUILDER(tanh)
BUILDER(sigmoid)
BUILDER(relu)
BUILDER(gelu)
BUILDER(gelu_erf)
BUILDER(silu)
#undef BUILDER

weft_value weft_clip(weft_graph *g, weft_value x, double low, double high) {
    return wefti_graph_add1(g, &weft_op_clip, 1, &x, 2,
                            (wefti_attr[]){WEFTI_F(low, low), WEFTI_F(high, high)});
}

weft_value weft_scale(weft_graph *g, weft_value x, double factor) {
    if (factor == 1.0) return x;
    return wefti_graph_add1(g, &weft_op_scale, 1, &x, 1, (wefti_attr[]){WEFTI_F(factor, factor)});
}

weft_value weft_shift(weft_graph *g, weft_value x, double term) {
    if (term == 0.0) return x;
    return wefti_graph_add1(g, &weft_op_shift, 1, &x, 1, (wefti_attr[]){WEFTI_F(term, term)});
}

weft_value weft_cast(weft_graph *g, weft_value x, weft_dtype dtype) {
    if (weft_value_desc(g, x).rank >= 0 && weft_value_desc(g, x).dtype == dtype) return x;
    return wefti_graph_add1(g, &weft_op_cast, 1, &x, 1, (wefti_attr[]){WEFTI_I(dtype, dtype)});
}
