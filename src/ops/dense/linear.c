/* linear: y = x w + bias. Most of the arithmetic of a model runs in this op.
 *
 *     x [..., k], w [k, n...] (transposed: [n..., k]), bias [n...] or none  ->  y [..., n...]
 *     linear_grad_input (dy [..., n...], w; transposed)        -> dx [..., k]   dx = dy w^T
 *     linear_grad_weight(x [..., k], dy [..., n...]; transposed, dims) -> dw, f32   dw = x^T dy
 *
 * n... may be several dimensions, such as [heads, head_dim]. So a projection to heads needs no
 * reshape, and heads can split it. `dims` is the number of trailing dimensions of dy that belong to
 * n. dw is f32 (f64 for f64), because it is a parameter gradient, summed over rows and
 * microbatches. The bias gradient is sum_to.
 *
 * `f8` 1: both operands are cast to 8 bits before the product (e4m3; gradients of results e5m2),
 * with one scale for each. For predictions: no kernel does it (backend/narrow.c). */
#include "ops/common.h"

/* A matrix product of any rank, seen as rows x k times k x cols. */
typedef struct product {
    int64_t rows, k, cols;
    bool transposed;
} product;

static int64_t weight_at(const product *p, int64_t k, int64_t col) {
    return p->transposed ? col * p->k + k : k * p->cols + col;
}

static product product_of(const weft_node *n, const weft_desc *x, const weft_desc *w) {
    product p = {.transposed = wefti_attr_int(n, WEFTI_AT_transposed) != 0};
    p.rows = wefti_op_count(x, 0, x->rank - 1);
    p.k = x->shape[x->rank - 1];
    p.cols = p.transposed ? wefti_op_count(w, 0, w->rank - 1) : wefti_op_count(w, 1, w->rank);
    return p;
}

/* Index in the weight's shape at which n... begins. */
static int first_n(const weft_node *n) {
    return wefti_attr_int(n, WEFTI_AT_transposed) ? 0 : 1;
}

/* ---- shapes ---- */

static weft_status infer_linear(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *bias = wefti_in(n, 2);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_rank(n, 1, 2, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    bool transposed = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    int64_t k = w->shape[transposed ? w->rank - 1 : 0];
    WEFT_REQUIRE(
        x->shape[x->rank - 1] == k, WEFT_E_SHAPE,
        "linear: x is %s and the weight is %s%s: the last dimension of x, %lld, must equal the "
        "weight's %s, %lld",
        TEXT(x), TEXT(w), transposed ? " (transposed)" : "", (long long)x->shape[x->rank - 1],
        transposed ? "last" : "first", (long long)k);
    int dims = w->rank - 1, rows = x->rank - 1;
    WEFT_REQUIRE(rows + dims <= WEFT_MAX_RANK, WEFT_E_SHAPE,
                 "linear: x %s and weight %s would give %d dimensions; at most %d are possible",
                 TEXT(x), TEXT(w), rows + dims, WEFT_MAX_RANK);
    weft_desc y = {.dtype = wefti_op_result_dtype(n, 0), .rank = rows + dims};
    for (int d = 0; d < rows; d++) y.shape[d] = x->shape[d];
    for (int d = 0; d < dims; d++) y.shape[rows + d] = w->shape[first_n(n) + d];
    if (bias) {
        WEFT_TRY(wefti_op_check_float(n, 2));
        WEFT_TRY(wefti_op_check_shape(n, 2, dims, y.shape + rows, "the outputs of the weight"));
    }
    *out = y;
    return WEFT_OK;
}

static weft_status infer_grad_input(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *dy = wefti_in(n, 0), *w = wefti_in(n, 1);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 1, 2, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    int dims = w->rank - 1, rows = dy->rank - dims;
    bool fits = rows >= 0;
    for (int d = 0; fits && d < dims; d++) fits = dy->shape[rows + d] == w->shape[first_n(n) + d];
    WEFT_REQUIRE(
        fits, WEFT_E_SHAPE,
        "linear_grad_input: dy is %s and the weight is %s: dy must end with the weight's outputs",
        TEXT(dy), TEXT(w));
    weft_desc dx = {.dtype = wefti_op_result_dtype(n, 0), .rank = rows + 1};
    for (int d = 0; d < rows; d++) dx.shape[d] = dy->shape[d];
    dx.shape[rows] = w->shape[first_n(n) ? 0 : w->rank - 1];
    *out = dx;
    return WEFT_OK;
}

static weft_status infer_grad_weight(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    int64_t dims = wefti_attr_int(n, WEFTI_AT_dims);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    int rows = x->rank - 1;
    bool fits = dims >= 1 && dims < WEFT_MAX_RANK && dy->rank == rows + (int)dims;
    for (int d = 0; fits && d < rows; d++) fits = dy->shape[d] == x->shape[d];
    WEFT_REQUIRE(
        fits, WEFT_E_SHAPE,
        "linear_grad_weight: x is %s and dy is %s with %lld output dimensions: their leading "
        "dimensions must be equal",
        TEXT(x), TEXT(dy), (long long)dims);
    weft_desc dw = {.dtype = wefti_op_statistics_dtype(x->dtype), .rank = (int)dims + 1};
    int at = first_n(n);
    for (int d = 0; d < dims; d++) dw.shape[at + d] = dy->shape[rows + d];
    dw.shape[at ? 0 : dims] = x->shape[rows];
    *out = dw;
    return WEFT_OK;
}

/* ---- gradient ---- */

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value dy = wefti_grad_of(g, n, 0);
    const wefti_attr transposed = WEFTI_I(transposed, wefti_attr_int(n, WEFTI_AT_transposed));
    const wefti_attr f8 = WEFTI_I(f8, wefti_attr_int(n, WEFTI_AT_f8));
    if (wefti_grad_wanted(g, n, 0))
        wefti_grad_add_reduced(g, n, 0,
                               wefti_graph_add1(b, &weft_op_linear_grad_input, 2,
                                                (weft_value[]){dy, wefti_grad_in(g, n, 1)}, 2,
                                                (wefti_attr[]){transposed, f8}));
    if (wefti_grad_wanted(g, n, 1))
        wefti_grad_add_reduced(
            g, n, 1,
            wefti_graph_add1(
                b, &weft_op_linear_grad_weight, 2, (weft_value[]){wefti_grad_in(g, n, 0), dy}, 3,
                (wefti_attr[]){transposed, WEFTI_I(dims, wefti_in(n, 1)->rank - 1), f8}));
    if (wefti_in(n, 2) && wefti_grad_wanted(g, n, 2))
        wefti_grad_add(g, n, 2, wefti_op_sum_to(b, dy, wefti_in(n, 2)));
    return WEFT_OK;
}

/* ---- split rules: rows and n free, k summed; each gradient sums another one of the three ---- */

/* Sets the dims of x (rows, k), of w (k, n in either order) and of y (rows, n). The factors have
 * these kinds. */
static void rule(const weft_node *n, const weft_desc *x, const weft_desc *w, wefti_factor_kind rows,
                 wefti_factor_kind k, wefti_factor_kind cols, wefti_split_rule *r, int8_t *of_x,
                 int8_t *of_w, int8_t *of_y) {
    int8_t f[WEFT_MAX_RANK], fn[WEFT_MAX_RANK];
    int count = x->rank - 1, dims = w->rank - 1, at = first_n(n);
    wefti_op_factors(r, "m", x, 0, count, rows, f);
    int8_t fk = wefti_op_factor(r, "k", -1, x->shape[count], k);
    for (int d = 0; d < dims && d < WEFT_MAX_RANK; d++)
        fn[d] = wefti_op_factor(r, "n", d, w->shape[at + d], cols);
    wefti_op_assign(of_x, 0, f, 0, count);
    of_x[count] = fk;
    wefti_op_assign(of_w, at, fn, 0, dims);
    of_w[at ? 0 : dims] = fk;
    wefti_op_assign(of_y, 0, f, 0, count);
    wefti_op_assign(of_y, count, fn, 0, dims);
}

static weft_status split_linear(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1);
    rule(n, x, w, WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, r, r->in[0], r->in[1],
         r->out[0]);
    if (wefti_in(n, 2)) {
        wefti_op_assign(r->in[2], 0, r->out[0], x->rank - 1, w->rank - 1);
        r->sum_once[2] = true;
    }
    return WEFT_OK;
}

static weft_status split_grad_input(const weft_node *n, wefti_split_rule *r) {
    rule(n, wefti_out(n, 0), wefti_in(n, 1), WEFTI_FACTOR_FREE, WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM,
         r, r->out[0], r->in[1], r->in[0]);
    return WEFT_OK;
}

static weft_status split_grad_weight(const weft_node *n, wefti_split_rule *r) {
    rule(n, wefti_in(n, 0), wefti_out(n, 0), WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, WEFTI_FACTOR_FREE,
         r, r->in[0], r->out[0], r->in[1]);
    return WEFT_OK;
}

/* ---- cost ---- */

static void product_cost(const weft_node *n, product p, wefti_cost *out) {
    *out = (wefti_cost){.flops = 2.0 * (double)p.rows * (double)p.k * (double)p.cols,
                        .bytes = wefti_node_bytes(n)};
}

static void cost_linear(const weft_node *n, wefti_cost *out) {
    product_cost(n, product_of(n, wefti_in(n, 0), wefti_in(n, 1)), out);
}
static void cost_grad_input(const weft_node *n, wefti_cost *out) {
    product_cost(n, product_of(n, wefti_out(n, 0), wefti_in(n, 1)), out);
}
static void cost_grad_weight(const weft_node *n, wefti_cost *out) {
    product_cost(n, product_of(n, wefti_in(n, 0), wefti_out(n, 0)), out);
}

/* ---- references ---- */

static weft_status reference_linear(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    product p = product_of(n, wefti_in(n, 0), wefti_in(n, 1));
    const double *bias = wefti_op_optional(n, in, 2);
    for (int64_t row = 0; row < p.rows; row++)
        for (int64_t col = 0; col < p.cols; col++) {
            double sum = bias ? bias[col] : 0.0;
            for (int64_t k = 0; k < p.k; k++)
                sum += in[0][row * p.k + k] * in[1][weight_at(&p, k, col)];
            out[0][row * p.cols + col] = sum;
        }
    return WEFT_OK;
}

static weft_status reference_grad_input(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) {
    (void)random;
    product p = product_of(n, wefti_out(n, 0), wefti_in(n, 1));
    for (int64_t row = 0; row < p.rows; row++)
        for (int64_t k = 0; k < p.k; k++) {
            double sum = 0.0;
            for (int64_t col = 0; col < p.cols; col++)
                sum += in[0][row * p.cols + col] * in[1][weight_at(&p, k, col)];
            out[0][row * p.k + k] = sum;
        }
    return WEFT_OK;
}

static weft_status reference_grad_weight(const weft_node *n, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    product p = product_of(n, wefti_in(n, 0), wefti_out(n, 0));
    for (int64_t k = 0; k < p.k; k++)
        for (int64_t col = 0; col < p.cols; col++) {
            double sum = 0.0;
            for (int64_t row = 0; row < p.rows; row++)
                sum += in[0][row * p.k + k] * in[1][row * p.cols + col];
            out[0][weight_at(&p, k, col)] = sum;
        }
    return WEFT_OK;
}

/* ---- cases ---- */

static const wefti_op_case cases_linear[] = {CASE(NULL, "f32[3,5]", "f32[5,7]"),
                                             CASE(NULL, "f32[2,3,5]", "f32[5,7]", "f32[7]"),
                                             CASE("transposed=1", "f32[3,5]", "f32[7,5]", "f32[7]"),
                                             CASE(NULL, "f32[2,3,5]", "f32[5,2,3]", "f32[2,3]"),
                                             CASE("transposed=1", "bf16[4,5]", "f32[2,3,5]", "-"),
                                             CASE(NULL, "f32[5]", "f32[5,3]"),
                                             CASE(NULL, "f32[1,1]", "f32[1,1]", "f32[1]"),
                                             CASE(NULL, "f32[0,5]", "f32[5,3]", "f32[3]"),
                                             CASE(NULL, "f32[2,0]", "f32[0,3]", "f32[3]"),
                                             CASES_END};
static const wefti_op_case cases_grad_input[] = {
    CASE(NULL, "f32[3,7]", "f32[5,7]"),     CASE("transposed=1", "f32[2,3,7]", "f32[7,5]"),
    CASE(NULL, "f32[4,2,3]", "f32[5,2,3]"), CASE("transposed=1", "bf16[2,3]", "f32[2,3,5]"),
    CASE(NULL, "f32[0,3]", "f32[5,3]"),     CASES_END};
static const wefti_op_case cases_grad_weight[] = {
    CASE(NULL, "f32[3,5]", "f32[3,7]"),
    CASE("transposed=1", "f32[2,3,5]", "f32[2,3,7]"),
    CASE("dims=2", "f32[4,5]", "f32[4,2,3]"),
    CASE("transposed=1 dims=2", "bf16[4,5]", "bf16[4,2,3]"),
    CASE(NULL, "f32[5]", "f32[3]"),
    CASE(NULL, "f32[0,5]", "f32[0,3]"),
    CASES_END};

/* ---- definitions ---- */

static const wefti_attr attrs[] = {WEFTI_I(transposed, 0), WEFTI_I(f8, 0), {0}};
static const wefti_attr attrs_grad_weight[] = {
    WEFTI_I(transposed, 0), WEFTI_I(dims, 1), WEFTI_I(f8, 0), {0}};

const weft_op_def weft_op_linear = {
    WEFTI_OP_NAME(linear), .min_inputs = 2,
    .max_inputs = 3,       .family = WEFTI_FAMILY_MATRIX,
    .weights = 1u << 1,    .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs,        .infer = infer_linear,
    .grad = grad,          .split = split_linear,
    .cost = cost_linear,   .reference = reference_linear,
    .cases = cases_linear,
};

const weft_op_def weft_op_linear_grad_input = {
    WEFTI_OP_NAME(linear_grad_input),
    .min_inputs = 2,
    .max_inputs = 2,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_grad_input,
    .split = split_grad_input,
    .cost = cost_grad_input,
    .reference = reference_grad_input,
    .cases = cases_grad_input,
};

const weft_op_def weft_op_linear_grad_weight = {
    WEFTI_OP_NAME(linear_grad_weight),
    .min_inputs = 2,
    .max_inputs = 2,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_grad_weight,
    .infer = infer_grad_weight,
    .split = split_grad_weight,
    .cost = cost_grad_weight,
    .reference = reference_grad_weight,
    .cases = cases_grad_weight,
};

weft_value wefti_op_linear(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                           bool transposed, bool f8) {
    return wefti_graph_add1(g, &weft_op_linear, 3, (weft_value[]){x, weight, bias}, 2,
                            (wefti_attr[]){WEFTI_I(transposed, transposed), WEFTI_I(f8, f8)});
}

weft_value weft_linear(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                       bool transposed) {
    return wefti_op_linear(g, x, weight, bias, transposed, false);
}
