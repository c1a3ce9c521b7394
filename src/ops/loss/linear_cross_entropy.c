/* The last linear layer and cross-entropy in one op, forward and backward. The full logits are
 * never in memory.
 *
 *     x [..., k], w [k, classes] (transposed: [classes, k]), targets i32 [...], dloss [],
 *     count [] or none, bias [classes] or none
 *         ->  loss [], dx [..., k], dw f32 of w's shape, with a bias also dbias f32 [classes]
 *
 * The results equal those from linear, cross_entropy and their gradients, with dloss known
 * beforehand. A kernel makes the logits of `chunk` rows at a time and turns them into their
 * gradient in place. All rows x classes elements, the largest tensor of a step at a vocabulary of
 * 50257, never exist at once. A pass makes this op; it has no builder. It is not differentiable,
 * since it is the derivative. */
#include "ops/common.h"

typedef struct linear_cross_entropy_problem {
    int64_t rows, k, classes;
    bool transposed;
} linear_cross_entropy_problem;

static linear_cross_entropy_problem problem_of(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1);
    bool transposed = wefti_attr_int(n, WEFTI_AT_transposed) != 0;
    return (linear_cross_entropy_problem){.rows = wefti_op_count(x, 0, x->rank - 1),
                                          .k = x->shape[x->rank - 1],
                                          .classes = w->shape[transposed ? 0 : 1],
                                          .transposed = transposed};
}

static int64_t weight_at(const linear_cross_entropy_problem *p, int64_t k, int64_t c) {
    return p->transposed ? c * p->k + k : k * p->classes + c;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1);
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_rank(n, 1, 2, 2));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    linear_cross_entropy_problem p = problem_of(n);
    int64_t k = w->shape[p.transposed ? 1 : 0];
    WEFT_REQUIRE(k == p.k && p.classes >= 1, WEFT_E_SHAPE,
                 "linear_cross_entropy: x is %s and the weight is %s%s: they share %lld and %lld",
                 TEXT(x), TEXT(w), p.transposed ? " (transposed)" : "", (long long)p.k,
                 (long long)k);
    WEFT_REQUIRE(smoothing >= 0.0 && smoothing < 1.0, WEFT_E_ARG,
                 "linear_cross_entropy: the smoothing is %g; it must be in [0, 1)", smoothing);
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_chunk) >= 1, WEFT_E_ARG,
                 "linear_cross_entropy: chunks of %lld rows; they must have at least 1",
                 (long long)wefti_attr_int(n, WEFTI_AT_chunk));
    WEFT_TRY(wefti_op_check_i32(n, 2));
    WEFT_TRY(wefti_op_check_shape(n, 2, x->rank - 1, x->shape, "the rows of x"));
    WEFT_TRY(wefti_op_check_shape(n, 3, 0, NULL, "one loss"));
    if (wefti_in(n, 4)) {
        WEFT_TRY(wefti_op_check_float(n, 4));
        WEFT_TRY(wefti_op_check_shape(n, 4, 0, NULL, "one count"));
    }
    const weft_desc *bias = wefti_in(n, 5);
    if (bias) {
        WEFT_TRY(wefti_op_check_float(n, 5));
        WEFT_TRY(wefti_op_check_shape(n, 5, 1, &p.classes, "the classes of the weight"));
    }
    weft_dtype statistics = wefti_op_statistics_dtype(x->dtype);
    out[0] = wefti_op_desc(statistics, 0, NULL);
    out[1] = *x;
    out[2] = wefti_op_retyped(w, statistics);
    if (bias) out[3] = wefti_op_retyped(bias, statistics);
    *out_count = bias ? 4 : 3;
    return WEFT_OK;
}

/* Rows: the number of counted targets is a statistic of all rows, unless it is given. k: not split,
 * because each logit must be complete before its use. Classes: not split; for split classes the
 * plan uses the separate ops. */
static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    linear_cross_entropy_problem p = problem_of(n);
    int rows = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rows, wefti_in(n, 4) ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_STATS, f);
    f[rows] = wefti_op_factor(r, "k", -1, p.k, WEFTI_FACTOR_WHOLE);
    int8_t classes = wefti_op_factor(r, "classes", -1, p.classes, WEFTI_FACTOR_WHOLE);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->out[1], 0, f, 0, x->rank);
    wefti_op_assign(r->in[2], 0, f, 0, rows);
    r->in[1][p.transposed] = r->out[2][p.transposed] = f[rows];
    r->in[1][!p.transposed] = r->out[2][!p.transposed] = classes;
    if (wefti_in(n, 5)) r->in[5][0] = r->out[3][0] = classes;
    return WEFT_OK;
}

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    uint32_t rows = wefti_op_factors_of(c, WEFTI_FACTOR_STATS);
    weft_value in[6], out[4];
    for (int i = 0; i < 6; i++) in[i] = wefti_lower_in(c, i);
    wefti_attr ignore = WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore));
    wefti_attr count[] = {ignore, WEFTI_I(dtype, wefti_op_statistics_dtype(wefti_in(n, 0)->dtype))};
    in[4] =
        wefti_lower_all_reduce(c, wefti_graph_add1(g, &weft_op_count_targets, 1, &in[2], 2, count),
                               rows, WEFTI_REDUCE_SUM);
    wefti_attr attrs_[] = {WEFTI_I(transposed, wefti_attr_int(n, WEFTI_AT_transposed)), ignore,
                           WEFTI_F(smoothing, wefti_attr_float(n, WEFTI_AT_smoothing)),
                           WEFTI_I(chunk, wefti_attr_int(n, WEFTI_AT_chunk))};
    wefti_graph_add(g, n->op, 6, in, 4, attrs_, n->outputs, out);
    for (int o = 0; o < n->outputs; o++) wefti_lower_out_partial(c, o, out[o], o == 1 ? 0 : rows);
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    linear_cross_entropy_problem p = problem_of(n);
    *out = (wefti_cost){.flops = (double)p.rows * (double)p.classes * (6.0 * (double)p.k + 8.0),
                        .bytes = wefti_node_bytes(n)};
}

/* logits of one row; bias NULL: none */
static void make_logits(const linear_cross_entropy_problem *p, const double *x, const double *w,
                        const double *bias, double *logits) {
    for (int64_t c = 0; c < p->classes; c++) {
        logits[c] = bias ? bias[c] : 0.0;
        for (int64_t k = 0; k < p->k; k++) logits[c] += x[k] * w[weight_at(p, k, c)];
    }
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    linear_cross_entropy_problem p = problem_of(n);
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing),
           ignore = (double)wefti_attr_int(n, WEFTI_AT_ignore);
    double total = 0.0, count = 0.0, even = smoothing / (double)p.classes, *logits;
    const double *bias = wefti_op_optional(n, in, 5);
    WEFT_NEW_ARRAY(logits, double, p.classes);
    for (int64_t row = 0; row < p.rows; row++) count += in[2][row] != ignore;
    if (wefti_in(n, 4)) count = in[4][0];
    for (int64_t i = 0; i < p.rows * p.k; i++) out[1][i] = 0.0;
    for (int64_t i = 0; i < p.k * p.classes; i++) out[2][i] = 0.0;
    for (int64_t c = 0; c < p.classes && bias; c++) out[3][c] = 0.0;
    for (int64_t row = 0; row < p.rows; row++) {
        const double *x = in[0] + row * p.k;
        double target = in[2][row], max = -INFINITY, exps = 0.0, sum = 0.0;
        if (target == ignore) continue;
        bool known = target >= 0.0 && target < (double)p.classes;
        make_logits(&p, x, in[1], bias, logits);
        for (int64_t c = 0; c < p.classes; c++) max = fmax(max, logits[c]);
        for (int64_t c = 0; c < p.classes; c++) {
            exps += exp(logits[c] - max);
            sum += logits[c];
        }
        double lse = max + log(exps);
        total += lse - ((1.0 - smoothing) * (known ? logits[(int64_t)target] : NAN) + even * sum);
        for (int64_t c = 0; c < p.classes && known; c++) {
            double q = even + ((double)c == target ? 1.0 - smoothing : 0.0);
            double dlogit = (exp(logits[c] - lse) - q) * in[3][0] / count;
            if (bias) out[3][c] += dlogit;
            for (int64_t k = 0; k < p.k; k++) {
                out[1][row * p.k + k] += dlogit * in[1][weight_at(&p, k, c)];
                out[2][weight_at(&p, k, c)] += dlogit * x[k];
            }
        }
    }
    out[0][0] = count > 0.0 ? total / count : 0.0;
    wefti_free(logits);
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I(transposed, 0),
                                   WEFTI_I(ignore, -100),
                                   WEFTI_F(smoothing, 0.0),
                                   WEFTI_I(chunk, 256),
                                   {0}};

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[7,5]", "f32[5,3]", "i32[7]<3", "f32[]"),
    CASE("transposed=1 ignore=1 chunk=2", "f32[2,3,5]", "f32[7,5]", "i32[2,3]<7", "f32[]"),
    CASE("smoothing=0.1 chunk=3", "bf16[9,4]", "f32[4,5]", "i32[9]<5", "f32[]"),
    CASE("ignore=1", "f32[5,2]", "f32[2,4]", "i32[5]<4", "f32[]", "f32[]+"),
    CASE("ignore=0", "f32[3,2]", "f32[2,1]", "i32[3]<1", "f32[]"),
    CASE("transposed=1 chunk=2", "f32[2,3,5]", "f32[7,5]", "i32[2,3]<7", "f32[]", "-", "f32[7]"),
    CASE("ignore=1 smoothing=0.1", "f32[5,2]", "f32[2,4]", "i32[5]<4", "f32[]", "f32[]+", "f32[4]"),
    CASE(NULL, "f32[0,2]", "f32[2,3]", "i32[0]<3", "f32[]"),
    CASES_END};

const weft_op_def weft_op_linear_cross_entropy = {
    WEFTI_OP_NAME(linear_cross_entropy),
    .min_inputs = 4,
    .max_inputs = 6,
    .family = WEFTI_FAMILY_PRODUCT,
    .weights = 1u << 1,
    .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs,
    .infer = infer,
    .split = split,
    .cost = cost,
    .reference = reference,
    .cases = cases,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};
