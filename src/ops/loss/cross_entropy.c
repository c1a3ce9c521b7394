/* Cross-entropy of logits against class numbers, averaged over the targets that count.
 *
 *     logits [..., classes], targets i32 [...], count [] or none  ->  loss [], lse [...], count []
 *     loss = 1/count sum over rows of  lse - ((1 - s) logits[target] + s mean(logits))
 *
 * Here lse = ln sum e^logits, and s is the label smoothing (Szegedy et al., CVPR 2016, section 7).
 * Rows with the target `ignore` do not count. If no row counts, the loss is 0. A target outside the
 * classes gives a NaN loss, so that wrong data are found at once. A given count covers more rows
 * than these. The loss is then one term of a sum over pieces of the rows. lse and count are kept
 * for the gradient, so the probabilities are never stored:
 *
 *     dlogits = (e^(logits - lse) - q) dloss / count,  q = (1 - s) [target] + s / classes
 *
 * If the classes are split, each device has the logits of classes `begin`... of `whole` (0: all).
 * The gradient needs no more than this. The loss combines the results of cross_entropy_part on each
 * piece:
 *
 *     cross_entropy_part(logits, targets)  ->  terms [...], lse [...]
 *     terms = -((1 - s) [target here] logits[target] + s / whole sum(logits)), 0 where ignored
 *     loss = 1/count sum over rows of (lse of all pieces + terms of all pieces)
 *
 *     count_targets(targets, weight [...] or none, count [] or none)  ->  []
 *
 * count_targets returns the sum of the weights of the targets that count; without weights it
 * returns their number. If count is given, the result is divided by it, or 0 if count is 0. With
 * the losses of rows as weights, the result is their mean loss, rounded once.
 *
 * Loss and statistics are f32 (f64 for f64 logits). */
#include "ops/common.h"

static weft_status check(const weft_node *n, bool piece) {
    const weft_desc *x = wefti_in(n, 0);
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing);
    WEFT_REQUIRE(smoothing >= 0.0 && smoothing < 1.0, WEFT_E_ARG,
                 "%s: the smoothing is %g; it must be in [0, 1)", n->op->name, smoothing);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_i32(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    if (piece) {
        int64_t begin = wefti_attr_int(n, WEFTI_AT_begin),
                whole = wefti_attr_int(n, WEFTI_AT_whole);
        int64_t classes = x->shape[x->rank - 1];
        WEFT_REQUIRE(begin >= 0 && whole >= 0 && whole <= INT32_MAX &&
                         (whole ? begin <= whole - classes : begin == 0),
                     WEFT_E_SHAPE, "%s: the classes of %s cannot begin at %lld of %lld",
                     n->op->name, TEXT(x), (long long)begin, (long long)whole);
        piece = whole > 0;
    }
    WEFT_REQUIRE(piece || x->shape[x->rank - 1] >= 1, WEFT_E_SHAPE, "%s: logits %s have no classes",
                 n->op->name, TEXT(x));
    return wefti_op_check_shape(n, 1, x->rank - 1, x->shape, "one target for each row of logits");
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check(n, false));
    if (wefti_in(n, 2)) {
        WEFT_TRY(wefti_op_check_float(n, 2));
        WEFT_TRY(wefti_op_check_shape(n, 2, 0, NULL, "one count"));
    }
    const weft_desc *x = wefti_in(n, 0);
    weft_dtype dtype = wefti_op_statistics_dtype(x->dtype);
    out[0] = out[2] = wefti_op_desc(dtype, 0, NULL);
    out[1] = wefti_op_desc(dtype, x->rank - 1, x->shape);
    *out_count = 3;
    return WEFT_OK;
}

static weft_status infer_part(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check(n, true));
    const weft_desc *x = wefti_in(n, 0);
    out[0] = out[1] = wefti_op_desc(wefti_op_statistics_dtype(x->dtype), x->rank - 1, x->shape);
    *out_count = 2;
    return WEFT_OK;
}

static weft_status infer_count(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    WEFT_REQUIRE(wefti_dtype_is_float((weft_dtype)dtype), WEFT_E_ARG,
                 "count_targets: the result cannot be %s; it must be floating point",
                 weft_dtype_text((weft_dtype)dtype));
    WEFT_TRY(wefti_op_check_i32(n, 0));
    if (wefti_in(n, 1)) {
        WEFT_TRY(wefti_op_check_float(n, 1));
        WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    }
    if (wefti_in(n, 2)) {
        WEFT_TRY(wefti_op_check_float(n, 2));
        WEFT_TRY(wefti_op_check_shape(n, 2, 0, NULL, "one count"));
    }
    *out = wefti_op_desc((weft_dtype)dtype, 0, NULL);
    return WEFT_OK;
}

/* (logits, targets, lse, count, dloss) */
static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n, true));
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(wefti_op_check_float(n, 2));
    WEFT_TRY(wefti_op_check_shape(n, 2, x->rank - 1, x->shape, "the rows of the logits"));
    WEFT_TRY(wefti_op_check_shape(n, 3, 0, NULL, "one count"));
    WEFT_TRY(wefti_op_check_shape(n, 4, 0, NULL, "one loss"));
    *out = *x;
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_in(g, n, 1), wefti_grad_out(g, n, 1),
                       wefti_grad_out(g, n, 2), wefti_grad_of(g, n, 0)};
    if (in[4].id < 0) return WEFT_OK; /* a gradient of the statistics alone is not passed on */
    if (wefti_in(n, 2) && wefti_grad_wanted(g, n, 2)) {
        weft_graph *b = wefti_grad_graph(g);
        weft_value share = weft_div(b, wefti_grad_out(g, n, 0), wefti_grad_in(g, n, 2));
        wefti_grad_add_reduced(g, n, 2, weft_neg(b, weft_mul(b, in[4], share)));
    }
    wefti_attr attrs[] = {WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                          WEFTI_F(smoothing, wefti_attr_float(n, WEFTI_AT_smoothing))};
    wefti_grad_add(
        g, n, 0,
        wefti_graph_add1(wefti_grad_graph(g), &weft_op_cross_entropy_grad, 5, in, 2, attrs));
    return WEFT_OK;
}

/* Rows: the loss needs the count of all rows, so their factors are statistics. Classes: a piece
 * reads its own classes (a masked look-up). */
static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int rows = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rows, WEFTI_FACTOR_STATS, f);
    f[rows] = wefti_op_factor(r, "classes", -1, x->shape[rows], WEFTI_FACTOR_LOOKUP);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->in[1], 0, f, 0, rows);
    wefti_op_assign(r->out[1], 0, f, 0, rows);
    return WEFT_OK;
}

static weft_status split_grad(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int rows = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rows, WEFTI_FACTOR_FREE, f);
    f[rows] = wefti_op_factor(r, "classes", -1, x->shape[rows], WEFTI_FACTOR_FREE);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->in[1], 0, f, 0, rows);
    wefti_op_assign(r->in[2], 0, f, 0, rows);
    wefti_op_assign(r->out[0], 0, f, 0, x->rank);
    return WEFT_OK;
}

static weft_status split_part(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int rows = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rows, WEFTI_FACTOR_FREE, f);
    f[rows] = wefti_op_factor(r, "classes", -1, x->shape[rows], WEFTI_FACTOR_WHOLE);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->in[1], 0, f, 0, rows);
    for (int o = 0; o < 2; o++) wefti_op_assign(r->out[o], 0, f, 0, rows);
    return WEFT_OK;
}

static weft_status split_count(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *targets = wefti_in(n, 0);
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", targets, 0, targets->rank, WEFTI_FACTOR_SUM, f);
    for (int i = 0; i < n->inputs && i < 2; i++) wefti_op_assign(r->in[i], 0, f, 0, targets->rank);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    const weft_desc *x = wefti_in(n, 0);
    int f = rule->in[0][x->rank - 1];
    (void)sizes;
    if (f < 0) return WEFT_OK;
    wefti_attr *whole = wefti_op_attr(n, attrs, WEFTI_AT_whole);
    if (!whole->i) whole->i = x->shape[x->rank - 1];
    wefti_op_attr(n, attrs, WEFTI_AT_begin)->i += begins[f];
    return WEFT_OK;
}

/* ---- the part of one device ---- */

/* ln sum e^lse over the devices that split `classes`. Their maximum is subtracted first. */
static weft_value combine_lse(wefti_lowering *c, weft_value lse, uint32_t classes) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value max = wefti_lower_all_reduce(c, lse, classes, WEFTI_REDUCE_MAX);
    weft_value sum =
        wefti_lower_all_reduce(c, weft_exp(g, weft_sub(g, lse, max)), classes, WEFTI_REDUCE_SUM);
    return weft_add(g, max, weft_log(g, sum));
}

static weft_value count_here(weft_graph *g, const weft_node *n, weft_value targets,
                             weft_value weight) {
    return wefti_graph_add1(
        g, &weft_op_count_targets, 2, (weft_value[]){targets, weight}, 2,
        (wefti_attr[]){WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                       WEFTI_I(dtype, wefti_op_statistics_dtype(wefti_in(n, 0)->dtype))});
}

/* x / count, with 0 / 0 = 0: without targets that count, the loss is 0. */
static weft_value per_count(weft_graph *g, weft_value x, weft_value count) {
    weft_value some = weft_compare(g, count, wefti_op_scalar(g, count, 0.0), WEFT_GT);
    return weft_div(g, x, weft_where(g, some, count, wefti_op_scalar(g, count, 1.0)));
}

/* Split rows: the targets are counted first, and the loss is a sum. Split classes: lse is combined,
 * and the first device adds it to its terms. */
static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    const wefti_split_rule *r = wefti_lower_rule(c);
    int class_factor = wefti_lower_factor(c, "classes"), rank = wefti_in(n, 0)->rank;
    uint32_t classes = class_factor >= 0 ? 1u << class_factor : 0, rows = 0;
    for (int d = 0; d < rank - 1; d++)
        if (r->in[0][d] >= 0) rows |= 1u << r->in[0][d];
    weft_value logits = wefti_lower_in(c, 0), targets = wefti_lower_in(c, 1);
    weft_value count = wefti_lower_in(c, 2), out[3];
    if (!wefti_in(n, 2))
        count = wefti_lower_all_reduce(c, count_here(g, n, targets, WEFT_NO_VALUE), rows,
                                       WEFTI_REDUCE_SUM);
    if (wefti_lower_parts(c, class_factor) == 1) {
        wefti_graph_add(g, &weft_op_cross_entropy, 3, (weft_value[]){logits, targets, count}, 2,
                        (wefti_attr[]){WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                                       WEFTI_F(smoothing, wefti_attr_float(n, WEFTI_AT_smoothing))},
                        3, out);
    } else {
        int64_t begin = wefti_lower_in_begin(c, 0, rank - 1);
        wefti_graph_add(g, &weft_op_cross_entropy_part, 2, (weft_value[]){logits, targets}, 4,
                        (wefti_attr[]){WEFTI_I(ignore, wefti_attr_int(n, WEFTI_AT_ignore)),
                                       WEFTI_F(smoothing, wefti_attr_float(n, WEFTI_AT_smoothing)),
                                       WEFTI_I(begin, begin),
                                       WEFTI_I(whole, wefti_in(n, 0)->shape[rank - 1])},
                        2, out);
        weft_value loss = rank > 1 ? weft_sum(g, out[0], 0, NULL, false) : out[0];
        out[1] = combine_lse(c, out[1], classes);
        if (wefti_lower_first(c, class_factor))
            loss = weft_add(g, loss, count_here(g, n, targets, out[1]));
        out[0] = per_count(g, loss, count);
    }
    wefti_lower_out_partial(c, 0, out[0], rows | classes);
    wefti_lower_out(c, 1, out[1]);
    wefti_lower_out(c, 2, count);
    return WEFT_OK;
}

/* ---- cost ---- */

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 4.0 * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

/* Returns -inf for an empty list and for a list of only -inf: a mask may exclude a whole piece of
 * the classes. */
static double log_sum_exp(const double *logits, int64_t classes) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t c = 0; c < classes; c++) max = fmax(max, logits[c]);
    double centre = max == -INFINITY ? 0.0 : max;
    for (int64_t c = 0; c < classes; c++) sum += exp(logits[c] - centre);
    return centre + log(sum);
}

/* The smoothing term of all logits. Without smoothing it is 0 even for infinite logits. */
static double share_of_all(const double *logits, int64_t classes, double smoothing, double whole) {
    double sum = 0.0;
    for (int64_t c = 0; c < classes && smoothing != 0.0; c++) sum += logits[c];
    return smoothing * sum / whole;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), classes = x->shape[x->rank - 1];
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing);
    double ignore = (double)wefti_attr_int(n, WEFTI_AT_ignore), total = 0.0, count = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const double *logits = in[0] + row * classes;
        double lse = log_sum_exp(logits, classes), target = in[1][row];
        out[1][row] = lse;
        if (target == ignore) continue;
        count += 1.0;
        bool known = target >= 0.0 && target < (double)classes;
        total += lse - ((1.0 - smoothing) * (known ? logits[(int64_t)target] : NAN) +
                        share_of_all(logits, classes, smoothing, (double)classes));
    }
    if (wefti_in(n, 2)) count = in[2][0];
    out[0][0] = count > 0.0 ? total / count : 0.0;
    out[2][0] = count;
    return WEFT_OK;
}

/* The number of classes of the whole; the logits may be a piece. */
static int64_t classes_of(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    int64_t whole = wefti_attr_int(n, WEFTI_AT_whole);
    return whole ? whole : x->shape[x->rank - 1];
}

static weft_status reference_part(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), classes = x->shape[x->rank - 1];
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing), whole = (double)classes_of(n);
    double ignore = (double)wefti_attr_int(n, WEFTI_AT_ignore);
    for (int64_t row = 0; row < rows; row++) {
        const double *logits = in[0] + row * classes;
        double target = in[1][row], at_target = 0.0;
        double here = target - (double)wefti_attr_int(n, WEFTI_AT_begin);
        if (here >= 0.0 && here < (double)classes) at_target = logits[(int64_t)here];
        if (!(target >= 0.0 && target < whole)) at_target = NAN;
        out[0][row] = target == ignore ? 0.0
                                       : -((1.0 - smoothing) * at_target +
                                           share_of_all(logits, classes, smoothing, whole));
        out[1][row] = log_sum_exp(logits, classes);
    }
    return WEFT_OK;
}

static weft_status reference_count(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = weft_desc_elems(wefti_in(n, 0));
    const double *weight = wefti_op_optional(n, in, 1), *count = wefti_op_optional(n, in, 2);
    double ignore = (double)wefti_attr_int(n, WEFTI_AT_ignore), sum = 0.0;
    for (int64_t row = 0; row < rows; row++)
        if (in[0][row] != ignore) sum += weight ? weight[row] : 1.0;
    if (count) sum = count[0] > 0.0 ? sum / count[0] : 0.0;
    out[0][0] = sum;
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), classes = x->shape[x->rank - 1];
    double smoothing = wefti_attr_float(n, WEFTI_AT_smoothing);
    double ignore = (double)wefti_attr_int(n, WEFTI_AT_ignore), count = in[3][0], dloss = in[4][0];
    double whole = (double)classes_of(n), begin = (double)wefti_attr_int(n, WEFTI_AT_begin);
    for (int64_t row = 0; row < rows; row++) {
        double target = in[1][row];
        bool counts = target != ignore && target >= 0.0 && target < whole;
        for (int64_t c = 0; c < classes; c++) {
            double q = smoothing / whole + ((double)c + begin == target ? 1.0 - smoothing : 0.0);
            double p = exp(in[0][row * classes + c] - in[2][row]);
            out[0][row * classes + c] = counts ? (p - q) * dloss / count : 0.0;
        }
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I(ignore, -100), WEFTI_F(smoothing, 0.0), {0}};
static const wefti_attr attrs_piece[] = {
    WEFTI_I(ignore, -100), WEFTI_F(smoothing, 0.0), WEFTI_I(begin, 0), WEFTI_I(whole, 0), {0}};
static const wefti_attr attrs_count[] = {WEFTI_I(ignore, -100), WEFTI_I(dtype, WEFT_F32), {0}};

static const wefti_op_case cases[] = {CASE(NULL, "f32[3,5]", "i32[3]<5"),
                                      CASE("ignore=2", "f32[2,7,3]", "i32[2,7]<3"),
                                      CASE("smoothing=0.1", "f32[4,5]", "i32[4]<5"),
                                      CASE("ignore=0 smoothing=0.3", "bf16[9,3]", "i32[9]<3"),
                                      CASE("ignore=0", "f32[2,3]", "i32[2]<1"),
                                      CASE(NULL, "f32[1]", "i32[]<1"),
                                      CASE(NULL, "f32[0,3]", "i32[0]<3"),
                                      CASE("ignore=1", "f32[4,3]", "i32[4]<3", "f32[]+"),
                                      CASES_END};
static const wefti_op_case cases_part[] = {
    CASE(NULL, "f32[3,5]", "i32[3]<5"),
    CASE("ignore=1 smoothing=0.1 begin=2 whole=9", "bf16[2,7,4]", "i32[2,7]<9"),
    CASE("begin=3 whole=3", "f32[2,0]", "i32[2]<3"), CASES_END};
static const wefti_op_case cases_count[] = {CASE("ignore=1", "i32[9]<3"),
                                            CASE("ignore=0 dtype=f64", "i32[2,7]<3"),
                                            CASE("ignore=2", "i32[2,7]<3", "f32[2,7]"),
                                            CASE("ignore=2", "i32[7]<3", "f32[7]", "f32[]+"),
                                            CASE("ignore=2", "i32[7]<3", "-", "f32[]+"),
                                            CASE(NULL, "i32[]<3"),
                                            CASE(NULL, "i32[0]<3"),
                                            CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE(NULL, "f32[3,5]", "i32[3]<5", "f32[3]+", "f32[]+", "f32[]"),
    CASE("ignore=1 smoothing=0.1", "bf16[2,7,3]", "i32[2,7]<3", "f32[2,7]+", "f32[]+", "f32[]"),
    CASE("ignore=1 smoothing=0.1 begin=2 whole=9", "f32[6,4]", "i32[6]<9", "f32[6]+", "f32[]+",
         "f32[]"),
    CASE(NULL, "f32[0,3]", "i32[0]<3", "f32[0]+", "f32[]+", "f32[]"), CASES_END};

const weft_op_def weft_op_cross_entropy = {
    WEFTI_OP_NAME(cross_entropy),
    .min_inputs = 2,
    .max_inputs = 3,
    .family = WEFTI_FAMILY_LOSS,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .cost = cost,
    .reference = reference,
    .cases = cases,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_STATS | 1u << WEFTI_FACTOR_LOOKUP,
};

const weft_op_def weft_op_cross_entropy_part = {
    WEFTI_OP_NAME(cross_entropy_part),
    .min_inputs = 2,
    .max_inputs = 2,
    .attrs = attrs_piece,
    .infer = infer_part,
    .split = split_part,
    .localize = localize,
    .cost = cost,
    .reference = reference_part,
    .cases = cases_part,
};

static void cost_count(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 0, 1.0, out);
}

const weft_op_def weft_op_count_targets = {
    WEFTI_OP_NAME(count_targets),
    .min_inputs = 1,
    .max_inputs = 3,
    .attrs = attrs_count,
    .infer = infer_count,
    .split = split_count,
    .cost = cost_count,
    .reference = reference_count,
    .cases = cases_count,
};

const weft_op_def weft_op_cross_entropy_grad = {
    WEFTI_OP_NAME(cross_entropy_grad),
    .min_inputs = 5,
    .max_inputs = 5,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_piece,
    .infer = infer_grad,
    .split = split_grad,
    .localize = localize,
    .cost = cost,
    .reference = reference_grad,
    .cases = cases_grad,
};

weft_value weft_cross_entropy(weft_graph *g, weft_value logits, weft_value targets, int64_t ignore,
                              double smoothing) {
    weft_value out[3];
    wefti_graph_add(g, &weft_op_cross_entropy, 2, (weft_value[]){logits, targets}, 2,
                    (wefti_attr[]){WEFTI_I(ignore, ignore), WEFTI_F(smoothing, smoothing)}, 3, out);
    return out[0];
}
