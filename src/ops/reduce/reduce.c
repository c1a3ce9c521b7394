/* Reductions: sum, mean, max over any set of dimensions; argmax over one.
 *
 *     x [...]; axes -> y without those dimensions, or with size 1 there (keep)
 *
 * Over no elements, the sum is 0, the mean is NaN and the maximum is -inf. A NaN wins every
 * maximum. Among equals, argmax takes the lowest index, and max shares its gradient evenly.
 *
 * mean divides by `count`; 0 means the number of reduced elements. A piece of a split mean states
 * the count of the whole (localize). So a split mean is a sum of terms, like a split sum. */
#include "ops/common.h"

static const wefti_ints *axes_of(const weft_node *n) {
    return wefti_attr_ints(n, WEFTI_AT_axes);
}

/* Strides of the reduced tensor over x; 0 along reduced dimensions. */
static void reduced_strides(const weft_desc *x, const wefti_ints *axes,
                            int64_t out[WEFT_MAX_RANK]) {
    int64_t stride = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        bool reduced = wefti_op_axes_have(axes, d);
        out[d] = reduced ? 0 : stride;
        if (!reduced) stride *= x->shape[d];
    }
}

static int64_t reduced_count(const weft_desc *x, const wefti_ints *axes) {
    int64_t count = 1;
    for (int d = 0; d < x->rank; d++)
        if (wefti_op_axes_have(axes, d)) count *= x->shape[d];
    return count;
}

/* The divisor of mean. */
static int64_t mean_count(const weft_node *n) {
    int64_t count = wefti_attr_int(n, WEFTI_AT_count);
    return count ? count : reduced_count(wefti_in(n, 0), axes_of(n));
}

/* ---- shapes ---- */

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *axes = axes_of(n);
    bool keep = wefti_attr_int(n, WEFTI_AT_keep) != 0;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_REQUIRE(axes->count > 0 || x->rank == 0, WEFT_E_SHAPE, "%s of %s: no axes are given",
                 n->op->name, TEXT(x));
    for (int i = 0; i < axes->count; i++) {
        WEFT_TRY(wefti_op_check_axis(n, axes->v[i], x->rank));
        for (int j = 0; j < i; j++)
            WEFT_REQUIRE(axes->v[i] != axes->v[j], WEFT_E_SHAPE,
                         "%s of %s: axis %lld is given twice", n->op->name, TEXT(x),
                         (long long)axes->v[i]);
    }
    weft_desc y = {.dtype = x->dtype};
    for (int d = 0; d < x->rank; d++) {
        bool reduced = wefti_op_axes_have(axes, d);
        if (!reduced || keep) y.shape[y.rank++] = reduced ? 1 : x->shape[d];
    }
    *out = y;
    return WEFT_OK;
}

static weft_status infer_mean(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_count) >= 0, WEFT_E_ARG, "mean: the count is %lld",
                 (long long)wefti_attr_int(n, WEFTI_AT_count));
    return infer(n, out, out_count);
}

static weft_status infer_max_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    for (int i = 0; i < 3; i++) WEFT_TRY(wefti_op_check_float(n, i));
    for (int i = 0; i < axes_of(n)->count; i++)
        WEFT_TRY(wefti_op_check_axis(n, axes_of(n)->v[i], x->rank));
    for (int i = 1; i < 3; i++)
        WEFT_REQUIRE(weft_desc_elems(wefti_in(n, i)) * reduced_count(x, axes_of(n)) ==
                         weft_desc_elems(x),
                     WEFT_E_SHAPE, "max_grad: %s is not %s reduced over the given axes",
                     TEXT(wefti_in(n, i)), TEXT(x));
    *out = *x;
    return WEFT_OK;
}

static weft_status infer_argmax(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis);
    WEFT_TRY(wefti_op_check_axis(n, axis, x->rank));
    WEFT_REQUIRE(x->shape[axis] >= 1, WEFT_E_SHAPE, "argmax of %s: dimension %lld is empty",
                 TEXT(x), (long long)axis);
    weft_desc y = {.dtype = WEFT_I32};
    for (int d = 0; d < x->rank; d++)
        if (d != axis) y.shape[y.rank++] = x->shape[d];
    *out = y;
    return WEFT_OK;
}

/* ---- gradients ---- */

/* dy with size 1 along the reduced dimensions, so that it broadcasts over x. */
static weft_value kept(wefti_grad *g, const weft_node *n) {
    weft_desc shape = *wefti_in(n, 0);
    for (int d = 0; d < shape.rank; d++)
        if (wefti_op_axes_have(axes_of(n), d)) shape.shape[d] = 1;
    weft_value dy = wefti_grad_of(g, n, 0);
    if (wefti_attr_int(n, WEFTI_AT_keep)) return dy;
    return weft_reshape(wefti_grad_graph(g), dy, shape.rank, shape.shape);
}

static weft_status grad_sum(wefti_grad *g, const weft_node *n) {
    wefti_grad_add(g, n, 0, wefti_op_broadcast_to(wefti_grad_graph(g), kept(g, n), wefti_in(n, 0)));
    return WEFT_OK;
}

static weft_status grad_mean(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    int64_t count = mean_count(n);
    weft_value share = weft_scale(b, kept(g, n), count ? 1.0 / (double)count : 0.0);
    wefti_grad_add(g, n, 0, wefti_op_broadcast_to(b, share, wefti_in(n, 0)));
    return WEFT_OK;
}

static weft_status grad_max(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_out(g, n, 0), wefti_grad_of(g, n, 0)};
    wefti_grad_add(g, n, 0,
                   wefti_graph_add1(wefti_grad_graph(g), &weft_op_max_grad, 3, in, 1,
                                    (wefti_attr[]){WEFTI_N(axes, *axes_of(n))}));
    return WEFT_OK;
}

/* ---- split rules ---- */

/* Sets the factors of x: `kind` along the axes, free elsewhere. y has the same factors, with or
 * without the reduced dimensions. */
static void rule(const weft_desc *x, const wefti_ints *axes, wefti_factor_kind kind,
                 wefti_split_rule *r, int8_t f[WEFT_MAX_RANK]) {
    for (int d = 0; d < x->rank; d++)
        f[d] = wefti_op_factor(r, "d", d, x->shape[d],
                               wefti_op_axes_have(axes, d) ? kind : WEFTI_FACTOR_FREE);
}

static void follow(const weft_desc *x, const wefti_ints *axes, const weft_desc *y, const int8_t *f,
                   int8_t *dims) {
    int at = 0;
    for (int d = 0; d < x->rank; d++) {
        bool reduced = wefti_op_axes_have(axes, d);
        if (!reduced) dims[at] = f[d];
        if (!reduced || y->rank == x->rank) at++;
    }
}

static weft_status split_as(const weft_node *n, wefti_factor_kind kind, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int8_t f[WEFT_MAX_RANK];
    rule(x, axes_of(n), kind, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    follow(x, axes_of(n), wefti_out(n, 0), f, r->out[0]);
    return WEFT_OK;
}

static weft_status split_sum(const weft_node *n, wefti_split_rule *r) {
    return split_as(n, WEFTI_FACTOR_SUM, r);
}
static weft_status split_max(const weft_node *n, wefti_split_rule *r) {
    return split_as(n, WEFTI_FACTOR_MAX, r);
}

static weft_status localize_mean(const weft_node *n, const wefti_split_rule *rule_,
                                 const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)rule_;
    (void)begins;
    (void)sizes;
    wefti_op_attr(n, attrs, WEFTI_AT_count)->i = mean_count(n);
    return WEFT_OK;
}

/* Equal maxima must be counted along the axes before they share the gradient: statistics. */
static weft_status split_max_grad(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    int8_t f[WEFT_MAX_RANK];
    rule(x, axes_of(n), WEFTI_FACTOR_STATS, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    wefti_op_assign(r->out[0], 0, f, 0, x->rank);
    for (int i = 1; i < 3; i++) follow(x, axes_of(n), wefti_in(n, i), f, r->in[i]);
    return WEFT_OK;
}

/* v without the reduced dimensions, or with size 1 there. */
static weft_value with_axes(weft_graph *g, weft_value v, const weft_desc *x,
                            const wefti_ints *axes) {
    weft_desc d = *x;
    for (int k = 0; k < d.rank; k++)
        if (wefti_op_axes_have(axes, k)) d.shape[k] = 1;
    return weft_reshape(g, v, d.rank, d.shape);
}

static weft_status lower_max_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value x = wefti_lower_in(c, 0);
    weft_desc local = weft_value_desc(g, x);
    weft_value y = with_axes(g, wefti_lower_in(c, 1), &local, axes_of(n));
    weft_value dy = wefti_op_precise(g, with_axes(g, wefti_lower_in(c, 2), &local, axes_of(n)));
    weft_value equal = weft_compare(g, x, y, WEFT_EQ);
    weft_value ties = wefti_op_sum_over(c, weft_cast(g, equal, weft_value_desc(g, dy).dtype),
                                        axes_of(n), wefti_op_factors_of(c, WEFTI_FACTOR_STATS));
    weft_value dx = weft_where(g, equal, weft_div(g, dy, ties), wefti_op_scalar(g, dy, 0.0));
    wefti_lower_out(c, 0, weft_cast(g, dx, local.dtype));
    return WEFT_OK;
}

static weft_status split_argmax(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    wefti_ints axes = {1, {wefti_attr_int(n, WEFTI_AT_axis)}};
    int8_t f[WEFT_MAX_RANK];
    rule(x, &axes, WEFTI_FACTOR_STATS, r, f);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    follow(x, &axes, wefti_out(n, 0), f, r->out[0]);
    return WEFT_OK;
}

/* The greatest of the pieces' maxima. The pieces are in order, so the lowest index wins among
 * equals. */
static weft_status lower_argmax(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis), factor = wefti_lower_rule(c)->in[0][axis];
    weft_value x = wefti_lower_in(c, 0), index;
    int64_t counts[WEFTI_MAX_PARTS];
    WEFT_REQUIRE(wefti_lower_parts(c, factor) <= WEFTI_MAX_PARTS, WEFT_E_NO_IMPL,
                 "argmax over %d parts; at most %d", wefti_lower_parts(c, factor), WEFTI_MAX_PARTS);
    for (int32_t p = 0; p < wefti_lower_parts(c, factor); p++) counts[p] = 1;
    wefti_lower_same(c, &x, 0, NULL, &index);
    weft_value begin =
        weft_constant(g, (weft_desc){.dtype = WEFT_I32}, (double)wefti_lower_in_begin(c, 0, axis));
    index = wefti_op_column(g, weft_add(g, index, begin));
    if (!wefti_dtype_is_float(weft_value_desc(g, x).dtype)) x = weft_cast(g, x, WEFT_F64);
    weft_value max = wefti_op_column(g, weft_max(g, x, 1, &axis, false));
    max = wefti_op_candidates(c, max, factor, counts);
    index = wefti_op_candidates(c, index, factor, counts);
    weft_value best = wefti_op_column(g, weft_argmax(g, max, -1));
    weft_desc out = wefti_lower_out_desc(c, 0);
    index = wefti_op_pick(g, index, best, wefti_in(n, 0)->shape[axis]);
    wefti_lower_out(c, 0, weft_reshape(g, index, out.rank, out.shape));
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = (double)weft_desc_elems(wefti_in(n, 0)),
                        .bytes = wefti_node_bytes(n)};
}

/* ---- references ---- */

static weft_status reference_sum(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t strides[WEFT_MAX_RANK], count = weft_desc_elems(x),
                                    results = weft_desc_elems(wefti_out(n, 0));
    reduced_strides(x, axes_of(n), strides);
    for (int64_t i = 0; i < results; i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < count; i++) out[0][wefti_op_offset(x, i, strides)] += in[0][i];
    return WEFT_OK;
}

static weft_status reference_mean(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    WEFT_TRY(reference_sum(n, random, in, out));
    int64_t results = weft_desc_elems(wefti_out(n, 0));
    for (int64_t i = 0; i < results; i++) out[0][i] /= (double)mean_count(n);
    return WEFT_OK;
}

static weft_status reference_max(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t strides[WEFT_MAX_RANK], count = weft_desc_elems(x),
                                    results = weft_desc_elems(wefti_out(n, 0));
    reduced_strides(x, axes_of(n), strides);
    for (int64_t i = 0; i < results; i++) out[0][i] = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        double *y = &out[0][wefti_op_offset(x, i, strides)];
        if (isnan(in[0][i]) || in[0][i] > *y) *y = in[0][i];
    }
    return WEFT_OK;
}

static weft_status reference_max_grad(const weft_node *n, const wefti_random *random,
                                      const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t strides[WEFT_MAX_RANK], count = weft_desc_elems(x),
                                    results = weft_desc_elems(wefti_in(n, 1));
    double *ties;
    WEFT_NEW_ARRAY(ties, double, results ? results : 1);
    reduced_strides(x, axes_of(n), strides);
    for (int64_t i = 0; i < count; i++) {
        int64_t y = wefti_op_offset(x, i, strides);
        if (in[0][i] == in[1][y]) ties[y] += 1.0;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t y = wefti_op_offset(x, i, strides);
        out[0][i] = in[0][i] == in[1][y] ? in[2][y] / ties[y] : 0.0;
    }
    wefti_free(ties);
    return WEFT_OK;
}

static weft_status reference_argmax(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t outer = wefti_op_count(x, 0, axis), size = x->shape[axis];
    int64_t inner = wefti_op_count(x, axis + 1, x->rank);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const double *p = in[0] + o * size * inner + i;
            int64_t best = 0;
            for (int64_t k = 1; k < size && !isnan(p[best * inner]); k++)
                if (isnan(p[k * inner]) || p[k * inner] > p[best * inner]) best = k;
            out[0][o * inner + i] = (double)best;
        }
    return WEFT_OK;
}

/* ---- cases ---- */

static const wefti_op_case cases[] = {
    CASE("axes=(1)", "f32[3,5]"),     CASE("axes=(0) keep=1", "bf16[3,5]"),
    CASE("axes=(0,2)", "f32[2,3,4]"), CASE("axes=(1,0) keep=1", "f32[2,3,1]"),
    CASE("axes=()", "f32[]"),         CASE("axes=(0,1,2)", "f32[1,7,1]"),
    CASE("axes=(0)", "f32[3,0]"),     CASES_END};
static const wefti_op_case cases_sum[] = {CASE("axes=(1)", "f32[3,5]"),
                                          CASE("axes=(0) keep=1", "bf16[3,5]"),
                                          CASE("axes=(0,2)", "f32[2,3,4]"),
                                          CASE("axes=()", "f32[]"),
                                          CASE("axes=(1)", "f32[3,0]"),
                                          CASE("axes=(0)", "f32[3,0]"),
                                          CASES_END};
static const wefti_op_case cases_max[] = {CASE("axes=(1)", "f32[3,5]u"),
                                          CASE("axes=(0) keep=1", "bf16[3,5]u"),
                                          CASE("axes=(0,2)", "f32[2,3,4]u"),
                                          CASE("axes=(0,1) keep=1", "f32[2,3,1]u"),
                                          CASE("axes=()", "f32[]u"),
                                          CASE("axes=(0)", "f32[3,0]u"),
                                          CASES_END};
static const wefti_op_case cases_max_grad[] = {
    CASE("axes=(1)", "f32[3,5]<2", "f32[3]<2", "f32[3]"),
    CASE("axes=(0)", "f32[3,5]<2", "f32[1,5]<2", "f32[1,5]"),
    CASE("axes=(0,2)", "f32[2,3,4]<3", "f32[3]<3", "f32[3]"), CASES_END};
static const wefti_op_case cases_argmax[] = {CASE("axis=1", "f32[3,5]"),
                                             CASE("axis=0", "bf16[3,5]"),
                                             CASE("axis=1", "f32[2,7,3]<3"),
                                             CASE("axis=0", "i32[9]<4"),
                                             CASE("axis=0", "f32[1]"),
                                             CASE("axis=1", "f32[0,3]"),
                                             CASES_END};

/* ---- definitions ---- */

static const wefti_attr attrs[] = {ATTR_INTS(axes, 0, {0}), WEFTI_I(keep, 0), {0}};
static const wefti_attr attrs_mean[] = {
    ATTR_INTS(axes, 0, {0}), WEFTI_I(keep, 0), WEFTI_I(count, 0), {0}};
static const wefti_attr attrs_max_grad[] = {ATTR_INTS(axes, 0, {0}), {0}};
static const wefti_attr attrs_argmax[] = {WEFTI_I(axis, 0), {0}};

const weft_op_def weft_op_sum = {
    WEFTI_OP_NAME(sum),         .min_inputs = 1,    .max_inputs = 1,
    .flags = WEFTI_OP_LINEAR,   .attrs = attrs,     .infer = infer,
    .grad = grad_sum,           .split = split_sum, .cost = cost,
    .reference = reference_sum, .cases = cases_sum,
};

const weft_op_def weft_op_mean = {
    WEFTI_OP_NAME(mean),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs_mean,
    .infer = infer_mean,
    .grad = grad_mean,
    .split = split_sum,
    .localize = localize_mean,
    .cost = cost,
    .reference = reference_mean,
    .cases = cases,
};

const weft_op_def weft_op_max = {
    WEFTI_OP_NAME(max), .min_inputs = 1, .max_inputs = 1,
    .attrs = attrs,     .infer = infer,  .grad = grad_max,
    .split = split_max, .cost = cost,    .reference = reference_max,
    .cases = cases_max,
};

const weft_op_def weft_op_max_grad = {
    WEFTI_OP_NAME(max_grad),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_max_grad,
    .infer = infer_max_grad,
    .split = split_max_grad,
    .cost = cost,
    .reference = reference_max_grad,
    .cases = cases_max_grad,
    .lower = lower_max_grad,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

const weft_op_def weft_op_argmax = {
    WEFTI_OP_NAME(argmax),
    .min_inputs = 1,
    .max_inputs = 1,
    .attrs = attrs_argmax,
    .infer = infer_argmax,
    .split = split_argmax,
    .cost = cost,
    .reference = reference_argmax,
    .cases = cases_argmax,
    .lower = lower_argmax,
    .lowers = 1u << WEFTI_FACTOR_STATS,
};

static weft_value reduce(weft_graph *g, const weft_op_def *op, weft_value x, int count,
                         const int *axes, bool keep) {
    int rank = weft_value_desc(g, x).rank;
    wefti_ints list = {0};
    if (count > WEFT_MAX_RANK) {
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_SHAPE, "%s: %d axes of at most %d", op->name, count,
                                       WEFT_MAX_RANK));
        return WEFT_NO_VALUE;
    }
    if (count == 0)
        for (list.count = 0; list.count < rank; list.count++) list.v[list.count] = list.count;
    else
        for (int i = 0; i < count; i++) list.v[list.count++] = wefti_op_axis(axes[i], rank);
    return wefti_graph_add1(g, op, 1, &x, 2,
                            (wefti_attr[]){WEFTI_N(axes, list), WEFTI_I(keep, keep)});
}

weft_value weft_sum(weft_graph *g, weft_value x, int count, const int *axes, bool keep) {
    return reduce(g, &weft_op_sum, x, count, axes, keep);
}

weft_value weft_mean(weft_graph *g, weft_value x, int count, const int *axes, bool keep) {
    return reduce(g, &weft_op_mean, x, count, axes, keep);
}

weft_value weft_max(weft_graph *g, weft_value x, int count, const int *axes, bool keep) {
    return reduce(g, &weft_op_max, x, count, axes, keep);
}

weft_value weft_argmax(weft_graph *g, weft_value x, int axis) {
    return wefti_graph_add1(
        g, &weft_op_argmax, 1, &x, 1,
        (wefti_attr[]){WEFTI_I(axis, wefti_op_axis(axis, weft_value_desc(g, x).rank))});
}
