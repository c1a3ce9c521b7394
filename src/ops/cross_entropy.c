/* Cross-entropy of logits against class numbers, averaged over the targets that count.
 *
 *     logits [..., classes], targets i32 [...]  ->  loss [], lse [...], count []
 *     loss = 1/count sum over rows of  lse - ((1 - s) logits[target] + s mean(logits))
 *
 * with lse = ln sum e^logits and s the label smoothing (Szegedy et al., CVPR 2016, section 7). Rows
 * whose target is `ignore` do not count; with none left the loss is 0. A target outside the classes
 * gives a NaN loss: wrong data are found at once. lse and count are kept for the gradient, so the
 * probabilities are never stored:
 *
 *     dlogits = (e^(logits - lse) - q) dloss / count,  q = (1 - s) [target] + s / classes
 *
 * Loss and statistics are f32 (f64 for f64 logits). */
#include "ops/common.h"

static weft_status check(const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    double smoothing = wefti_attr_float(n, "smoothing");
    WEFT_REQUIRE(smoothing >= 0.0 && smoothing < 1.0, WEFT_E_ARG,
                 "%s: the smoothing is %g; it must be in [0, 1)", n->op->name, smoothing);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_i32(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_REQUIRE(x->shape[x->rank - 1] >= 1, WEFT_E_SHAPE, "%s: logits %s have no classes",
                 n->op->name, TEXT(x));
    return wefti_op_check_shape(n, 1, x->rank - 1, x->shape, "one target for each row of logits");
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check(n));
    const weft_desc *x = wefti_in(n, 0);
    weft_dtype dtype = wefti_op_statistics_dtype(x->dtype);
    out[0] = out[2] = wefti_op_desc(dtype, 0, NULL);
    out[1] = wefti_op_desc(dtype, x->rank - 1, x->shape);
    *out_count = 3;
    return WEFT_OK;
}

/* (logits, targets, lse, count, dloss) */
static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check(n));
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
    if (in[4].id < 0) return WEFT_OK; /* statistics alone pass no gradient */
    wefti_attr attrs[] = {WEFTI_I("ignore", wefti_attr_int(n, "ignore")),
                          WEFTI_F("smoothing", wefti_attr_float(n, "smoothing"))};
    wefti_grad_add(
        g, n, 0,
        wefti_graph_add1(wefti_grad_graph(g), &weft_op_cross_entropy_grad, 5, in, 2, attrs));
    return WEFT_OK;
}

/* Over rows the loss needs the count of all of them: statistics. Classes are a masked look-up. */
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
    f[rows] = wefti_op_factor(r, "classes", -1, x->shape[rows], WEFTI_FACTOR_LOOKUP);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->in[1], 0, f, 0, rows);
    wefti_op_assign(r->in[2], 0, f, 0, rows);
    wefti_op_assign(r->out[0], 0, f, 0, x->rank);
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 4.0 * (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), classes = x->shape[x->rank - 1];
    double smoothing = wefti_attr_float(n, "smoothing");
    double ignore = (double)wefti_attr_int(n, "ignore"), total = 0.0, count = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const double *logits = in[0] + row * classes;
        double max = -INFINITY, exps = 0.0, sum = 0.0, target = in[1][row];
        for (int64_t c = 0; c < classes; c++) max = fmax(max, logits[c]);
        for (int64_t c = 0; c < classes; c++) {
            exps += exp(logits[c] - max);
            sum += logits[c];
        }
        double lse = max + log(exps);
        out[1][row] = lse;
        if (target == ignore) continue;
        count += 1.0;
        bool known = target >= 0.0 && target < (double)classes;
        total += lse - ((1.0 - smoothing) * (known ? logits[(int64_t)target] : NAN) +
                        smoothing * sum / (double)classes);
    }
    out[0][0] = count > 0.0 ? total / count : 0.0;
    out[2][0] = count;
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), classes = x->shape[x->rank - 1];
    double smoothing = wefti_attr_float(n, "smoothing");
    double ignore = (double)wefti_attr_int(n, "ignore"), count = in[3][0], dloss = in[4][0];
    for (int64_t row = 0; row < rows; row++) {
        double target = in[1][row];
        bool counts = target != ignore && target >= 0.0 && target < (double)classes;
        for (int64_t c = 0; c < classes; c++) {
            double q = smoothing / (double)classes + ((double)c == target ? 1.0 - smoothing : 0.0);
            double p = exp(in[0][row * classes + c] - in[2][row]);
            out[0][row * classes + c] = counts ? (p - q) * dloss / count : 0.0;
        }
    }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {WEFTI_I("ignore", -100), WEFTI_F("smoothing", 0.0), {0}};

static const wefti_op_case cases[] = {CASE(NULL, "f32[3,5]", "i32[3]<5"),
                                      CASE("ignore=2", "f32[2,7,3]", "i32[2,7]<3"),
                                      CASE("smoothing=0.1", "f32[4,5]", "i32[4]<5"),
                                      CASE("ignore=0 smoothing=0.3", "bf16[9,3]", "i32[9]<3"),
                                      CASE("ignore=0", "f32[2,3]", "i32[2]<1"),
                                      CASE(NULL, "f32[1]", "i32[]<1"),
                                      CASE(NULL, "f32[0,3]", "i32[0]<3"),
                                      CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE(NULL, "f32[3,5]", "i32[3]<5", "f32[3]+", "f32[]+", "f32[]"),
    CASE("ignore=1 smoothing=0.1", "bf16[2,7,3]", "i32[2,7]<3", "f32[2,7]+", "f32[]+", "f32[]"),
    CASE(NULL, "f32[0,3]", "i32[0]<3", "f32[0]+", "f32[]+", "f32[]"), CASES_END};

const weft_op_def weft_op_cross_entropy = {
    .name = "cross_entropy",
    .min_inputs = 2,
    .max_inputs = 2,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .cost = cost,
    .reference = reference,
    .cases = cases,
};

const weft_op_def weft_op_cross_entropy_grad = {
    .name = "cross_entropy_grad",
    .min_inputs = 5,
    .max_inputs = 5,
    .attrs = attrs,
    .infer = infer_grad,
    .split = split_grad,
    .cost = cost,
    .reference = reference_grad,
    .cases = cases_grad,
};

weft_value weft_cross_entropy(weft_graph *g, weft_value logits, weft_value targets, int64_t ignore,
                              double smoothing) {
    weft_value out[3];
    wefti_graph_add(g, &weft_op_cross_entropy, 2, (weft_value[]){logits, targets}, 2,
                    (wefti_attr[]){WEFTI_I("ignore", ignore), WEFTI_F("smoothing", smoothing)}, 3,
                    out);
    return out[0];
}
