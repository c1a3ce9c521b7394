/* moe_linear: the products of all experts, one weight each, over buffers that are partly filled.
 *
 *     moe_linear(x [experts, groups..., rows, k], w [experts, k, n], count?; transposed)
 *         -> y [experts, groups..., rows, n]
 *         y[e, g] = x[e, g] w[e]; rows from count[e, g] on are 0
 *     moe_linear_grad_weight(x, dy, count?; transposed) -> dw [experts, k, n]
 *         dw[e] = sum over g of x[e, g]^T dy[e, g], rows before count[e, g]
 *
 * count is i32 [experts, groups...]. A transposed weight is [experts, n, k].
 *
 * The kernel neither reads nor multiplies rows without a token. If the slots of an expert have no
 * bound, most rows have no token. A piece of the rows begins at first_row. The gradient to x is
 * moe_linear again, with the weight transposed. */
#include "ops/common.h"

typedef struct linear_product {
    int64_t experts, groups, rows, k, n, first;
    bool transposed;
} linear_product;

static linear_product product_of(const weft_node *n, const weft_desc *x, int64_t cols) {
    return (linear_product){x->shape[0],
                            wefti_op_count(x, 1, x->rank - 2),
                            x->shape[x->rank - 2],
                            x->shape[x->rank - 1],
                            cols,
                            wefti_attr_int(n, WEFTI_AT_first_row),
                            wefti_attr_int(n, WEFTI_AT_transposed) != 0};
}

/* The number of filled rows of buffer b, where b counts over experts and groups. */
static int64_t rows_of(const linear_product *p, const double *count, int64_t b) {
    double rows = count ? count[b] - (double)p->first : (double)p->rows;
    return (int64_t)fmax(0.0, fmin((double)p->rows, rows));
}

static int64_t weight_at(const linear_product *p, int64_t e, int64_t k, int64_t n) {
    return p->transposed ? (e * p->n + n) * p->k + k : (e * p->k + k) * p->n + n;
}

/* ---- shapes ---- */

static weft_status check_operands(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    for (int i = 0; i < 2; i++) WEFT_TRY(wefti_op_check_float(n, i));
    WEFT_TRY(wefti_op_check_rank(n, 0, 3, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    int64_t first = wefti_attr_int(n, WEFTI_AT_first_row);
    WEFT_REQUIRE(first >= 0 && first <= INT32_MAX, WEFT_E_ARG,
                 "%s: first_row is %lld; it must be 0 to 2147483647", n->op->name,
                 (long long)first);
    if (!wefti_in(n, 2)) return WEFT_OK;
    WEFT_TRY(wefti_op_check_i32(n, 2));
    return wefti_op_check_shape(n, 2, x->rank - 2, x->shape, "the experts and groups of x");
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1);
    WEFT_TRY(check_operands(n));
    WEFT_TRY(wefti_op_check_rank(n, 1, 3, 3));
    bool t = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    WEFT_REQUIRE(x->shape[0] == w->shape[0] && x->shape[x->rank - 1] == w->shape[t ? 2 : 1],
                 WEFT_E_SHAPE,
                 "moe_linear: x is %s and the weight is %s%s: the experts and the summed "
                 "dimensions must be equal",
                 TEXT(x), TEXT(w), t ? " (transposed)" : "");
    *out = *x;
    out->dtype = wefti_op_result_dtype(n, 0);
    out->shape[out->rank - 1] = w->shape[t ? 1 : 2];
    return wefti_desc_check(out);
}

static weft_status infer_grad_weight(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    WEFT_TRY(check_operands(n));
    bool t = wefti_attr_int(n, WEFTI_AT_transposed) != 0, fits = x->rank == dy->rank;
    for (int d = 0; fits && d < x->rank - 1; d++) fits = x->shape[d] == dy->shape[d];
    WEFT_REQUIRE(fits, WEFT_E_SHAPE,
                 "moe_linear_grad_weight: x is %s and dy is %s: all dimensions but the last must "
                 "be equal",
                 TEXT(x), TEXT(dy));
    int64_t k = x->shape[x->rank - 1], cols = dy->shape[dy->rank - 1];
    int64_t shape[] = {x->shape[0], t ? cols : k, t ? k : cols};
    *out = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), 3, shape);
    return wefti_desc_check(out);
}

/* ---- gradients ---- */

static weft_value count_of(wefti_grad *g, const weft_node *n) {
    return wefti_in(n, 2) ? wefti_grad_in(g, n, 2) : WEFT_NO_VALUE;
}

static weft_value add(wefti_grad *g, const weft_node *n, const weft_op_def *op, weft_value a,
                      weft_value b, bool transposed) {
    return wefti_graph_add1(
        wefti_grad_graph(g), op, 3, (weft_value[]){a, b, count_of(g, n)}, 3,
        (wefti_attr[]){WEFTI_I(transposed, transposed),
                       WEFTI_I(first_row, wefti_attr_int(n, WEFTI_AT_first_row)),
                       WEFTI_I(f8, wefti_attr_int(n, WEFTI_AT_f8))});
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    bool t = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    weft_value dy = wefti_grad_of(g, n, 0);
    if (wefti_grad_wanted(g, n, 0))
        wefti_grad_add_reduced(g, n, 0,
                               add(g, n, &weft_op_moe_linear, dy, wefti_grad_in(g, n, 1), !t));
    if (wefti_grad_wanted(g, n, 1))
        wefti_grad_add_reduced(
            g, n, 1, add(g, n, &weft_op_moe_linear_grad_weight, wefti_grad_in(g, n, 0), dy, t));
    return WEFT_OK;
}

/* x = dy w^T and dy = x w, over the filled rows. */
static weft_status grad_of_weight_grad(wefti_grad *g, const weft_node *n) {
    bool t = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    weft_value dw = wefti_grad_of(g, n, 0);
    for (int i = 0; i < 2; i++)
        if (wefti_grad_wanted(g, n, i))
            wefti_grad_add_reduced(
                g, n, i,
                add(g, n, &weft_op_moe_linear, wefti_grad_in(g, n, 1 - i), dw, t == (i == 1)));
    return WEFT_OK;
}

/* ---- split rules ---- */

static void rule(const weft_node *n, wefti_split_rule *r, const weft_desc *x, int64_t cols,
                 wefti_factor_kind rows, wefti_factor_kind k, int8_t *of_x, int8_t *of_w,
                 int8_t *of_y) {
    bool t = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    int last = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    f[0] = wefti_op_factor(r, "experts", -1, x->shape[0], WEFTI_FACTOR_FREE);
    for (int d = 1; d < last - 1 && d < WEFT_MAX_RANK; d++)
        f[d] = wefti_op_factor(r, "group", d - 1, x->shape[d], rows);
    f[last - 1] = wefti_op_factor(r, "rows", -1, x->shape[last - 1], rows);
    wefti_op_assign(of_x, 0, f, 0, last);
    wefti_op_assign(of_y, 0, f, 0, last);
    if (wefti_in(n, 2)) wefti_op_assign(r->in[2], 0, f, 0, last - 1);
    of_w[0] = f[0];
    of_x[last] = of_w[t ? 2 : 1] = wefti_op_factor(r, "k", -1, x->shape[last], k);
    of_y[last] = of_w[t ? 1 : 2] = wefti_op_factor(r, "n", -1, cols, WEFTI_FACTOR_FREE);
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    rule(n, r, x, y->shape[y->rank - 1], WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, r->in[0], r->in[1],
         r->out[0]);
    return WEFT_OK;
}

static weft_status split_grad_weight(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    rule(n, r, x, dy->shape[dy->rank - 1], WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, r->in[0], r->out[0],
         r->in[1]);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *r, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    int8_t rows = r->in[0][wefti_in(n, 0)->rank - 2];
    if (rows >= 0) wefti_op_attr(n, attrs, WEFTI_AT_first_row)->i += begins[rows];
    return WEFT_OK;
}

/* ---- cost and references ---- */

/* The cost of full buffers, because the counts are known only at run time. */
static void cost(const weft_node *n, wefti_cost *out) {
    const weft_desc *x = wefti_in(n, 0);
    const weft_desc *y = n->op == &weft_op_moe_linear ? wefti_out(n, 0) : wefti_in(n, 1);
    *out = (wefti_cost){.flops = 2.0 * (double)weft_desc_elems(x) * (double)y->shape[y->rank - 1],
                        .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *node, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(node, 0), *y = wefti_out(node, 0);
    linear_product p = product_of(node, x, y->shape[y->rank - 1]);
    const double *count = wefti_op_optional(node, in, 2);
    for (int64_t b = 0; b < p.experts * p.groups; b++)
        for (int64_t row = 0; row < p.rows; row++)
            for (int64_t n = 0; n < p.n; n++) {
                double sum = 0.0;
                for (int64_t k = 0; row < rows_of(&p, count, b) && k < p.k; k++)
                    sum += in[0][(b * p.rows + row) * p.k + k] *
                           in[1][weight_at(&p, b / p.groups, k, n)];
                out[0][(b * p.rows + row) * p.n + n] = sum;
            }
    return WEFT_OK;
}

static weft_status reference_grad_weight(const weft_node *node, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(node, 0), *dy = wefti_in(node, 1);
    linear_product p = product_of(node, x, dy->shape[dy->rank - 1]);
    const double *count = wefti_op_optional(node, in, 2);
    for (int64_t e = 0; e < p.experts; e++)
        for (int64_t k = 0; k < p.k; k++)
            for (int64_t n = 0; n < p.n; n++) {
                double sum = 0.0;
                for (int64_t b = e * p.groups; b < (e + 1) * p.groups; b++)
                    for (int64_t row = 0; row < rows_of(&p, count, b); row++)
                        sum += in[0][(b * p.rows + row) * p.k + k] *
                               in[1][(b * p.rows + row) * p.n + n];
                out[0][weight_at(&p, e, k, n)] = sum;
            }
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_attr attrs[] = {
    WEFTI_I(transposed, 0), WEFTI_I(first_row, 0), WEFTI_I(f8, 0), {0}};

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[3,5,4]", "f32[3,4,7]", "i32[3]<7"),
    CASE("transposed=1", "f32[2,6,3]", "f32[2,5,3]", "i32[2]<6"),
    CASE("transposed=1 first_row=2", "f32[3,4,3]", "f32[3,5,3]", "i32[3]<9"),
    CASE(NULL, "f32[2,3,5]", "f32[2,5,4]"),
    CASE("transposed=1", "f32[2,3,4,3]", "f32[2,5,3]", "i32[2,3]<5"),
    CASE("first_row=1", "f32[2,2,2,3,2]", "f32[2,2,3]", "i32[2,2,2]<5"),
    CASE(NULL, "bf16[2,3,5]", "f32[2,5,4]", "i32[2]<4"),
    CASE(NULL, "f32[1,1,1]", "f32[1,1,1]", "i32[1]<2"),
    CASE(NULL, "f32[2,0,3]", "f32[2,3,4]", "i32[2]<1"),
    CASE(NULL, "f32[2,3,0]", "f32[2,0,4]", "i32[2]<4"),
    CASES_END};
static const wefti_op_case cases_grad_weight[] = {
    CASE(NULL, "f32[3,5,4]", "f32[3,5,7]", "i32[3]<7"),
    CASE("transposed=1", "f32[2,6,3]", "f32[2,6,5]", "i32[2]<6"),
    CASE("first_row=2", "f32[3,4,3]", "f32[3,4,5]", "i32[3]<9"),
    CASE(NULL, "bf16[2,3,5]", "bf16[2,3,4]"),
    CASE(NULL, "f32[2,3,4,3]", "f32[2,3,4,5]", "i32[2,3]<5"),
    CASE("transposed=1 first_row=1", "f32[2,2,2,3,2]", "f32[2,2,2,3,3]", "i32[2,2,2]<5"),
    CASE("transposed=1", "f32[1,1,1]", "f32[1,1,1]", "i32[1]<2"),
    CASE(NULL, "f32[2,0,3]", "f32[2,0,4]", "i32[2]<1"),
    CASES_END};

const weft_op_def weft_op_moe_linear = {
    WEFTI_OP_NAME(moe_linear),
    .min_inputs = 2,
    .max_inputs = 3,
    .family = WEFTI_FAMILY_PRODUCT,
    .weights = 1u << 1,
    .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .localize = localize,
    .cost = cost,
    .reference = reference,
    .cases = cases,
};

const weft_op_def weft_op_moe_linear_grad_weight = {
    WEFTI_OP_NAME(moe_linear_grad_weight),
    .min_inputs = 2,
    .max_inputs = 3,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_grad_weight,
    .grad = grad_of_weight_grad,
    .split = split_grad_weight,
    .localize = localize,
    .cost = cost,
    .reference = reference_grad_weight,
    .cases = cases_grad_weight,
};

weft_value wefti_op_moe_linear(weft_graph *g, weft_value x, weft_value weight, bool transposed,
                               const weft_routing *routing, bool f8) {
    return wefti_graph_add1(g, &weft_op_moe_linear, 3,
                            (weft_value[]){x, weight, routing ? routing->count : WEFT_NO_VALUE}, 2,
                            (wefti_attr[]){WEFTI_I(transposed, transposed), WEFTI_I(f8, f8)});
}

weft_value weft_moe_linear(weft_graph *g, weft_value x, weft_value weight, bool transposed,
                           const weft_routing *routing) {
    return wefti_op_moe_linear(g, x, weight, transposed, routing, false);
}
