/* Elementwise ops of two operands, compare and where, with NumPy broadcasting.
 *
 *     y[i] = f(a[i], b[i])      a, b [...] -> [broadcast]
 *
 * One file for the family. Each op is a formula, a gradient and one table row. Shape, split rule,
 * reference and cost are shared by all of them.
 *
 * WEFTI_OP_CHEAP marks results that the backward pass recomputes. The operands that the gradient
 * needs decide this. Ops mul, div, pow, maximum and minimum need their operands anyway, so to keep
 * the result too would waste memory. Ops add, sub and where need no operand, so one kept result
 * costs less than two kept operands. */
#include "ops/common.h"

static weft_status infer_operands(const weft_node *n, int first, weft_desc *out) {
    const weft_desc *a = wefti_in(n, first), *b = wefti_in(n, first + 1);
    bool floats = wefti_dtype_is_float(a->dtype) && wefti_dtype_is_float(b->dtype);
    WEFT_REQUIRE(floats || a->dtype == b->dtype, WEFT_E_ARG, "%s: %s and %s do not mix; cast one",
                 n->op->name, TEXT(a), TEXT(b));
    WEFT_TRY(wefti_op_check_mix(n, first));
    weft_status status = wefti_broadcast(a, b, out);
    if (status < 0) return wefti_prefix(status, "%s", n->op->name);
    out->dtype = wefti_op_result_dtype(n, first);
    return WEFT_OK;
}

/* Accepts all numbers, including integers. */
static weft_status infer_numbers(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_REQUIRE(wefti_in(n, 0)->dtype != WEFT_BOOL, WEFT_E_ARG,
                 "%s: %s: booleans have no arithmetic (use where, or cast)", n->op->name,
                 TEXT(wefti_in(n, 0)));
    return infer_operands(n, 0, out);
}

static weft_status infer_floats(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    return infer_operands(n, 0, out);
}

static weft_status infer_compare(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t relation = wefti_attr_int(n, WEFTI_AT_relation);
    WEFT_REQUIRE(relation >= WEFT_EQ && relation <= WEFT_GE, WEFT_E_ARG,
                 "compare: relation %lld; it must be one of weft_relation, 0 to %d",
                 (long long)relation, WEFT_GE);
    WEFT_TRY(infer_operands(n, 0, out));
    out->dtype = WEFT_BOOL;
    return WEFT_OK;
}

static weft_status infer_where(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *cond = wefti_in(n, 0);
    WEFT_REQUIRE(cond->dtype == WEFT_BOOL, WEFT_E_ARG,
                 "where: the condition is %s; it must be bool (use compare)", TEXT(cond));
    weft_desc both;
    WEFT_TRY(infer_operands(n, 1, &both));
    weft_status status = wefti_broadcast(&both, cond, out);
    return status < 0 ? wefti_prefix(status, "where") : WEFT_OK;
}

/* ---- gradients ---- */

static weft_status grad_add(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    for (int i = 0; i < 2; i++)
        if (wefti_grad_wanted(g, n, i)) wefti_grad_add_reduced(g, n, i, dy);
    return WEFT_OK;
}

static weft_status grad_sub(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add_reduced(g, n, 0, dy);
    if (wefti_grad_wanted(g, n, 1))
        wefti_grad_add_reduced(g, n, 1, weft_neg(wefti_grad_graph(g), dy));
    return WEFT_OK;
}

static weft_status grad_mul(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    for (int i = 0; i < 2; i++)
        if (wefti_grad_wanted(g, n, i))
            wefti_grad_add_reduced(g, n, i,
                                   weft_mul(wefti_grad_graph(g), dy, wefti_grad_in(g, n, 1 - i)));
    return WEFT_OK;
}

/* da = dy / b,  db = -dy a / b^2 = -(dy / b) (a / b) */
static weft_status grad_div(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value quotient = weft_div(b, wefti_grad_of(g, n, 0), wefti_grad_in(g, n, 1));
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add_reduced(g, n, 0, quotient);
    if (wefti_grad_wanted(g, n, 1))
        wefti_grad_add_reduced(g, n, 1,
                               weft_neg(b, weft_mul(b, quotient, wefti_grad_out(g, n, 0))));
    return WEFT_OK;
}

/* The gradient of maximum and minimum: dy where a `strictly` b, half of it where they are equal,
 * else 0. */
static weft_value share(wefti_grad *g, const weft_node *n, weft_relation strictly) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value x = wefti_grad_in(g, n, 0), y = wefti_grad_in(g, n, 1), dy = wefti_grad_of(g, n, 0);
    weft_value tie = weft_where(b, weft_compare(b, x, y, WEFT_EQ), weft_scale(b, dy, 0.5),
                                wefti_op_scalar(b, dy, 0.0));
    return weft_where(b, weft_compare(b, x, y, strictly), dy, tie);
}

static weft_status grad_maximum(wefti_grad *g, const weft_node *n) {
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add_reduced(g, n, 0, share(g, n, WEFT_GT));
    if (wefti_grad_wanted(g, n, 1)) wefti_grad_add_reduced(g, n, 1, share(g, n, WEFT_LT));
    return WEFT_OK;
}

static weft_status grad_minimum(wefti_grad *g, const weft_node *n) {
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add_reduced(g, n, 0, share(g, n, WEFT_LT));
    if (wefti_grad_wanted(g, n, 1)) wefti_grad_add_reduced(g, n, 1, share(g, n, WEFT_GT));
    return WEFT_OK;
}

/* da = dy b a^(b-1), and 0 where b is 0. db = dy a^b ln a, and 0 where a is 0. The zeros are the
 * limits; the formula itself would give 0 times infinity. */
static weft_status grad_pow(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value x = wefti_grad_in(g, n, 0), e = wefti_grad_in(g, n, 1), dy = wefti_grad_of(g, n, 0);
    weft_value zero = wefti_op_scalar(b, dy, 0.0);
    if (wefti_grad_wanted(g, n, 0)) {
        weft_value slope = weft_mul(b, e, weft_pow(b, x, weft_shift(b, e, -1.0)));
        weft_value none = weft_compare(b, e, wefti_op_scalar(b, e, 0.0), WEFT_EQ);
        wefti_grad_add_reduced(g, n, 0, weft_where(b, none, zero, weft_mul(b, dy, slope)));
    }
    if (wefti_grad_wanted(g, n, 1)) {
        weft_value slope = weft_mul(b, wefti_grad_out(g, n, 0), weft_log(b, x));
        weft_value none = weft_compare(b, x, wefti_op_scalar(b, x, 0.0), WEFT_EQ);
        wefti_grad_add_reduced(g, n, 1, weft_where(b, none, zero, weft_mul(b, dy, slope)));
    }
    return WEFT_OK;
}

static weft_status grad_where(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value cond = wefti_grad_in(g, n, 0), dy = wefti_grad_of(g, n, 0);
    weft_value zero = wefti_op_scalar(b, dy, 0.0);
    if (wefti_grad_wanted(g, n, 1)) wefti_grad_add_reduced(g, n, 1, weft_where(b, cond, dy, zero));
    if (wefti_grad_wanted(g, n, 2)) wefti_grad_add_reduced(g, n, 2, weft_where(b, cond, zero, dy));
    return WEFT_OK;
}

/* ---- formulas ---- */

#define ELEMENT(name_, formula_)                                                                   \
    static double element_##name_(const weft_node *n, const double *x) {                           \
        (void)n;                                                                                   \
        return formula_;                                                                           \
    }
ELEMENT(add, x[0] + x[1])
ELEMENT(sub, x[0] - x[1])
ELEMENT(mul, x[0] * x[1])
ELEMENT(div, x[0] / x[1])
ELEMENT(pow, pow(x[0], x[1]))
/* NaN if either is NaN */
ELEMENT(maximum, isnan(x[0]) || x[0] > x[1] ? x[0] : x[1])
ELEMENT(minimum, isnan(x[0]) || x[0] < x[1] ? x[0] : x[1])
ELEMENT(where, x[0] != 0.0 ? x[1] : x[2])
#undef ELEMENT

static double element_compare(const weft_node *n, const double *x) {
    switch (wefti_attr_int(n, WEFTI_AT_relation)) {
    case WEFT_EQ:
        return x[0] == x[1];
    case WEFT_NE:
        return x[0] != x[1];
    case WEFT_LT:
        return x[0] < x[1];
    case WEFT_LE:
        return x[0] <= x[1];
    case WEFT_GT:
        return x[0] > x[1];
    default:
        return x[0] >= x[1];
    }
}

/* ---- formulas of integers ---- */

static int64_t limit(bool negative) {
    return negative ? INT64_MIN : INT64_MAX;
}

#define INTEGER(name_, formula_)                                                                   \
    static int64_t integer_##name_(const weft_node *n, const int64_t *x) {                         \
        int64_t y;                                                                                 \
        (void)n;                                                                                   \
        (void)y;                                                                                   \
        return formula_;                                                                           \
    }
INTEGER(add, wefti_add_overflows(x[0], x[1], &y) ? limit(x[0] < 0) : y)
INTEGER(sub, wefti_sub_overflows(x[0], x[1], &y) ? limit(x[0] < 0) : y)
INTEGER(mul, wefti_mul_overflows(x[0], x[1], &y) ? limit((x[0] < 0) != (x[1] < 0)) : y)
INTEGER(maximum, x[0] > x[1] ? x[0] : x[1])
INTEGER(minimum, x[0] < x[1] ? x[0] : x[1])
INTEGER(where, x[0] ? x[1] : x[2])
#undef INTEGER

static int64_t integer_compare(const weft_node *n, const int64_t *x) {
    /* Compares the order of the two integers with 0. */
    double order = (double)((x[0] > x[1]) - (x[0] < x[1]));
    return element_compare(n, (const double[]){order, 0.0}) != 0.0;
}

/* ---- cases ---- */

static const wefti_op_case cases_any[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]"),   CASE(NULL, "f32[2,1,7]", "f32[4,1]"),
    CASE(NULL, "bf16[3,5]", "f32[5]"),    CASE(NULL, "f32[]", "f32[3]"),
    CASE(NULL, "f32[1,1]", "f32[1]"),     CASE(NULL, "f32[0,4]", "f32[4]"),
    CASE(NULL, "i32[2,3]<9", "i32[3]<9"), CASES_END};
static const wefti_op_case cases_div[] = {
    CASE(NULL, "f32[3,5]", "f32[3,5]+"), CASE(NULL, "f32[2,1,7]", "f32[4,1]+"),
    CASE(NULL, "f32[5]", "f32[]+"), CASE(NULL, "f32[0,4]", "f32[4]+"), CASES_END};
static const wefti_op_case cases_pow[] = {
    CASE(NULL, "f32[3,5]+", "f32[3,5]"), CASE(NULL, "f32[2,1,7]+", "f32[4,1]"),
    CASE(NULL, "f32[3]+", "f32[]"), CASE(NULL, "f32[0]+", "f32[1]"), CASES_END};
static const wefti_op_case cases_compare[] = {
    CASE("relation=0", "i32[3,5]<3", "i32[5]<3"),   CASE("relation=1", "i32[3,5]<3", "i32[3,1]<3"),
    CASE("relation=2", "f32[3,5]", "f32[3,5]"),     CASE("relation=3", "i32[3,5]<3", "i32[3,5]<3"),
    CASE("relation=4", "f32[2,1,7]", "bf16[4,1]"),  CASE("relation=5", "f32[0,2]", "f32[]"),
    CASE("relation=1", "bool[3,5]?", "bool[3,5]?"), CASES_END};
static const wefti_op_case cases_where[] = {CASE(NULL, "bool[3,5]?", "f32[3,5]", "f32[3,5]"),
                                            CASE(NULL, "bool[3,1]?", "f32[2,1,5]", "f32[]"),
                                            CASE(NULL, "bool[2,3,5]?", "f32[]", "bf16[5]"),
                                            CASE(NULL, "bool[0]?", "f32[1]", "f32[0]"),
                                            CASE(NULL, "bool[4]?", "i32[4]<7", "i32[1]<7"),
                                            CASES_END};

/* ---- definitions ---- */

#define BINARY(name_, flags_, infer_, cases_, integer_)                                            \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_),                                                                      \
        .min_inputs = 2,                                                                           \
        .max_inputs = 2,                                                                           \
        .flags = WEFTI_OP_ELEMENTWISE | (flags_),                                                  \
        .infer = infer_,                                                                           \
        .grad = grad_##name_,                                                                      \
        .split = wefti_op_split_elementwise,                                                       \
        .cases = cases_,                                                                           \
        .element = element_##name_,                                                                \
        .integer = (integer_),                                                                     \
    };                                                                                             \
    weft_value weft_##name_(weft_graph *g, weft_value a, weft_value b) {                           \
        return wefti_op_add2(g, &weft_op_##name_, a, b);                                           \
    }
BINARY(add, WEFTI_OP_LINEAR, infer_numbers, cases_any, integer_add)
BINARY(sub, WEFTI_OP_LINEAR, infer_numbers, cases_any, integer_sub)
BINARY(mul, WEFTI_OP_CHEAP, infer_numbers, cases_any, integer_mul)
BINARY(div, WEFTI_OP_CHEAP, infer_floats, cases_div, NULL)
BINARY(maximum, WEFTI_OP_CHEAP, infer_numbers, cases_any, integer_maximum)
BINARY(minimum, WEFTI_OP_CHEAP, infer_numbers, cases_any, integer_minimum)
BINARY(pow, WEFTI_OP_CHEAP, infer_floats, cases_pow, NULL)
#undef BINARY

static const wefti_attr attrs_compare[] = {WEFTI_I(relation, WEFT_EQ), {0}};

const weft_op_def weft_op_compare = {
    WEFTI_OP_NAME(compare),
    .min_inputs = 2,
    .max_inputs = 2,
    .flags = WEFTI_OP_ELEMENTWISE | WEFTI_OP_CHEAP,
    .attrs = attrs_compare,
    .infer = infer_compare,
    .split = wefti_op_split_elementwise,
    .cases = cases_compare,
    .element = element_compare,
    .integer = integer_compare,
};

const weft_op_def weft_op_where = {
    WEFTI_OP_NAME(where),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_ELEMENTWISE | WEFTI_OP_LINEAR,
    .infer = infer_where,
    .grad = grad_where,
    .split = wefti_op_split_elementwise,
    .cases = cases_where,
    .element = element_where,
    .integer = integer_where,
};

weft_value weft_compare(weft_graph *g, weft_value a, weft_value b, weft_relation relation) {
    return wefti_graph_add1(g, &weft_op_compare, 2, (weft_value[]){a, b}, 1,
                            (wefti_attr[]){WEFTI_I(relation, relation)});
}

weft_value weft_where(weft_graph *g, weft_value cond, weft_value a, weft_value b) {
    return wefti_graph_add1(g, &weft_op_where, 3, (weft_value[]){cond, a, b}, 0, NULL);
}
