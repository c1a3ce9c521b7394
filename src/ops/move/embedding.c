/* Embedding: rows of a table by number, and its gradient.
 *
 *     embedding(table [vocab, dim], ids i32 [...]; dtype, padding) -> y [..., dim]
 *         y[i] = table[ids[i]]
 *     embedding_grad(ids, dy; vocab, padding) -> dtable f32 [vocab, dim]
 *         dtable[ids[i]] += dy[i]
 *
 * An id outside the table gives a row of NaN, so that wrong data are found at once. Its gradient is
 * dropped, and so is the gradient of the id `padding` (-1: none), of a token that only fills up
 * texts. The table gradient is f32 (f64 for f64), because it is a parameter gradient. Rows are
 * added in order.
 *
 * A piece of a split table holds the rows from `begin` on. The whole table has `whole` rows (0: the
 * table is not a piece). A piece gives 0 for ids of rows that other pieces hold, so that pieces are
 * terms of a sum. */
#include "ops/common.h"

static weft_status check_padding(const weft_node *n) {
    int64_t padding = wefti_attr_int(n, WEFTI_AT_padding);
    WEFT_REQUIRE(padding >= -1 && padding <= INT32_MAX, WEFT_E_ARG,
                 "%s: padding is %lld: it must be an id, or -1 for none", n->op->name,
                 (long long)padding);
    return WEFT_OK;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *table = wefti_in(n, 0), *ids = wefti_in(n, 1);
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    WEFT_REQUIRE(wefti_dtype_is_float((weft_dtype)dtype), WEFT_E_ARG,
                 "embedding: the result cannot be %s; it must be floating point",
                 weft_dtype_text((weft_dtype)dtype));
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, 2));
    WEFT_TRY(wefti_op_check_i32(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 1, 0, WEFT_MAX_RANK - 1));
    int64_t begin = wefti_attr_int(n, WEFTI_AT_begin), whole = wefti_attr_int(n, WEFTI_AT_whole);
    WEFT_REQUIRE(begin >= 0 && whole >= 0 && whole <= INT32_MAX &&
                     (whole ? begin <= whole - table->shape[0] : begin == 0),
                 WEFT_E_SHAPE, "embedding: %s cannot begin at row %lld of %lld", TEXT(table),
                 (long long)begin, (long long)whole);
    WEFT_TRY(check_padding(n));
    weft_desc y = wefti_op_retyped(ids, (weft_dtype)dtype);
    y.shape[y.rank++] = table->shape[1];
    *out = y;
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *ids = wefti_in(n, 0), *dy = wefti_in(n, 1);
    int64_t vocab = wefti_attr_int(n, WEFTI_AT_vocab);
    WEFT_REQUIRE(vocab >= 0 && wefti_attr_int(n, WEFTI_AT_begin) >= 0 &&
                     wefti_attr_int(n, WEFTI_AT_begin) <= INT32_MAX,
                 WEFT_E_ARG, "embedding_grad: the vocabulary has %lld rows from %lld on",
                 (long long)vocab, (long long)wefti_attr_int(n, WEFTI_AT_begin));
    WEFT_TRY(check_padding(n));
    WEFT_TRY(wefti_op_check_i32(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    bool fits = dy->rank == ids->rank + 1;
    for (int d = 0; fits && d < ids->rank; d++) fits = dy->shape[d] == ids->shape[d];
    WEFT_REQUIRE(fits, WEFT_E_SHAPE, "embedding_grad: ids are %s and dy is %s", TEXT(ids),
                 TEXT(dy));
    *out = wefti_op_desc(wefti_op_statistics_dtype(dy->dtype), 2,
                         (int64_t[]){vocab, dy->shape[dy->rank - 1]});
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 1), wefti_grad_of(g, n, 0)};
    wefti_grad_add_reduced(
        g, n, 0,
        wefti_graph_add1(wefti_grad_graph(g), &weft_op_embedding_grad, 2, in, 3,
                         (wefti_attr[]){WEFTI_I(vocab, wefti_in(n, 0)->shape[0]),
                                        WEFTI_I(begin, wefti_attr_int(n, WEFTI_AT_begin)),
                                        WEFTI_I(padding, wefti_attr_int(n, WEFTI_AT_padding))}));
    return WEFT_OK;
}

/* Sets factors: rows of the table "vocab" and "dim", ids of kind `kind`. y has the dimensions of
 * ids, then dim. */
static void rule(const weft_desc *table, const weft_desc *ids, wefti_factor_kind kind,
                 wefti_factor_kind vocab, wefti_split_rule *r, int8_t *of_table, int8_t *of_ids,
                 int8_t *of_y) {
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", ids, 0, ids->rank, kind, f);
    of_table[0] = wefti_op_factor(r, "vocab", -1, table->shape[0], vocab);
    of_table[1] = wefti_op_factor(r, "dim", -1, table->shape[1], WEFTI_FACTOR_FREE);
    wefti_op_assign(of_ids, 0, f, 0, ids->rank);
    wefti_op_assign(of_y, 0, f, 0, ids->rank);
    of_y[ids->rank] = of_table[1];
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    rule(wefti_in(n, 0), wefti_in(n, 1), WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, r, r->in[0], r->in[1],
         r->out[0]);
    return WEFT_OK;
}

static weft_status split_grad(const weft_node *n, wefti_split_rule *r) {
    rule(wefti_out(n, 0), wefti_in(n, 0), WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, r, r->out[0],
         r->in[0], r->in[1]);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule_,
                            const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    int f = rule_->in[0][0];
    (void)sizes;
    if (f < 0) return WEFT_OK;
    wefti_attr *whole = wefti_op_attr(n, attrs, WEFTI_AT_whole);
    if (!whole->i) whole->i = rule_->factor[f].size;
    wefti_op_attr(n, attrs, WEFTI_AT_begin)->i += begins[f];
    return WEFT_OK;
}

static weft_status localize_grad(const weft_node *n, const wefti_split_rule *rule_,
                                 const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    int f = rule_->out[0][0];
    if (f < 0) return WEFT_OK;
    wefti_op_attr(n, attrs, WEFTI_AT_vocab)->i = sizes[f];
    wefti_op_attr(n, attrs, WEFTI_AT_begin)->i += begins[f];
    return WEFT_OK;
}

static void cost_grad(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = (double)weft_desc_elems(wefti_in(n, 1)),
                        .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *table = wefti_in(n, 0);
    int64_t rows = weft_desc_elems(wefti_in(n, 1)), dim = table->shape[1];
    double whole = (double)wefti_attr_int(n, WEFTI_AT_whole);
    for (int64_t row = 0; row < rows; row++) {
        double id = in[1][row] - (double)wefti_attr_int(n, WEFTI_AT_begin);
        bool known = id >= 0.0 && id < (double)table->shape[0];
        bool elsewhere = in[1][row] >= 0.0 && in[1][row] < whole;
        for (int64_t d = 0; d < dim; d++)
            out[0][row * dim + d] = known ? in[0][(int64_t)id * dim + d] : elsewhere ? 0.0 : NAN;
    }
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *table = wefti_out(n, 0);
    int64_t rows = weft_desc_elems(wefti_in(n, 0)), dim = table->shape[1];
    const double padding = (double)wefti_attr_int(n, WEFTI_AT_padding);
    for (int64_t i = 0; i < table->shape[0] * dim; i++) out[0][i] = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        double id = in[0][row] - (double)wefti_attr_int(n, WEFTI_AT_begin);
        if (id < 0.0 || id >= (double)table->shape[0] || in[0][row] == padding) continue;
        for (int64_t d = 0; d < dim; d++) out[0][(int64_t)id * dim + d] += in[1][row * dim + d];
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {
    WEFTI_I(dtype, WEFT_F32), WEFTI_I(begin, 0), WEFTI_I(whole, 0), WEFTI_I(padding, -1), {0}};
static const wefti_attr attrs_grad[] = {
    WEFTI_I(vocab, 0), WEFTI_I(begin, 0), WEFTI_I(padding, -1), {0}};

static const wefti_op_case cases[] = {CASE(NULL, "f32[7,5]", "i32[2,3]<7"),
                                      CASE("dtype=bf16", "f32[7,5]", "i32[9]<7"),
                                      CASE(NULL, "f32[3,1]", "i32[]<3"),
                                      CASE(NULL, "f32[1,4]", "i32[2]<1"),
                                      CASE(NULL, "f32[3,4]", "i32[0]<3"),
                                      CASE("begin=2 whole=9", "f32[4,3]", "i32[11]<9"),
                                      CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE("vocab=7", "i32[2,3]<7", "f32[2,3,5]"),
    CASE("vocab=3", "i32[9]<3", "bf16[9,5]"),
    CASE("vocab=2", "i32[]<2", "f32[4]"),
    CASE("vocab=4", "i32[0]<4", "f32[0,3]"),
    CASE("vocab=4 begin=2", "i32[11]<9", "f32[11,3]"),
    CASE("vocab=3 padding=1", "i32[9]<3", "f32[9,5]"),
    CASE("vocab=4 begin=2 padding=3", "i32[11]<9", "f32[11,3]"),
    CASES_END};

const weft_op_def weft_op_embedding = {
    WEFTI_OP_NAME(embedding),
    .min_inputs = 2,
    .max_inputs = 2,
    .weights = 1u << 0,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .localize = localize,
    .cost = wefti_op_cost_move,
    .reference = reference,
    .cases = cases,
};

const weft_op_def weft_op_embedding_grad = {
    WEFTI_OP_NAME(embedding_grad),
    .min_inputs = 2,
    .max_inputs = 2,
    .flags = WEFTI_OP_LINEAR | WEFTI_OP_GRADIENT,
    .attrs = attrs_grad,
    .infer = infer_grad,
    .split = split_grad,
    .localize = localize_grad,
    .cost = cost_grad,
    .reference = reference_grad,
    .cases = cases_grad,
};

weft_value weft_embedding(weft_graph *g, weft_value table, weft_value ids, weft_dtype dtype) {
    return weft_embedding_padded(g, table, ids, -1, dtype);
}

weft_value weft_embedding_padded(weft_graph *g, weft_value table, weft_value ids, int64_t padding,
                                 weft_dtype dtype) {
    return wefti_graph_add1(g, &weft_op_embedding, 2, (weft_value[]){table, ids}, 2,
                            (wefti_attr[]){WEFTI_I(dtype, dtype), WEFTI_I(padding, padding)});
}
