/* Convolution over two or three spatial dimensions (as cross-correlation, the usual meaning in deep
 * learning).
 *
 *     x [batch, in, s...], w [out, in/groups, k...], bias [out] or none  ->  y [batch, out, o...]
 *     y[b, c, o] = bias[c] + sum over i, k of x[b, i, o stride - padding + k dilation] w[c, i, k]
 *     o = (s + 2 padding - dilation (k - 1) - 1) / stride + 1
 *
 *     conv_grad_input (dy, w; in_shape) -> dx          conv_grad_weight(x, dy; kernel) -> dw, f32
 *
 * Output channel c belongs to group c / (out/groups) and reads only the input channels of that
 * group. All three ops compute the same products (x element, w element, y element). They differ in
 * the tensor to which they add the products. */
#include "ops/window.h"

enum { SPATIAL = 3 };

/* A two-dimensional problem gets a leading depth of 1. */
typedef struct conv_problem {
    int64_t batch, groups, in, out; /* in, out: channels of one group */
    int64_t x[SPATIAL], k[SPATIAL], y[SPATIAL];
    int64_t stride[SPATIAL], padding[SPATIAL], dilation[SPATIAL];
} conv_problem;

static conv_problem problem_of(const weft_node *n, const weft_desc *x, const weft_desc *w,
                               const weft_desc *y) {
    const wefti_ints *stride = wefti_attr_ints(n, WEFTI_AT_stride);
    const wefti_ints *padding = wefti_attr_ints(n, WEFTI_AT_padding);
    const wefti_ints *dilation = wefti_attr_ints(n, WEFTI_AT_dilation);
    conv_problem p = {
        .groups = wefti_attr_int(n, WEFTI_AT_groups), .batch = x->shape[0], .in = w->shape[1]};
    p.out = w->shape[0] / p.groups;
    int missing = SPATIAL + 2 - x->rank;
    for (int s = 0; s < SPATIAL; s++) {
        int from = s - missing;
        bool real = from >= 0;
        p.x[s] = real ? x->shape[2 + from] : 1;
        p.k[s] = real ? w->shape[2 + from] : 1;
        p.y[s] = real ? y->shape[2 + from] : 1;
        p.stride[s] = real ? stride->v[from] : 1;
        p.padding[s] = real ? padding->v[from] : 0;
        p.dilation[s] = real ? dilation->v[from] : 1;
    }
    return p;
}

/* ---- the products ---- */

/* The tensor that receives the result: each product of the other two is added to it. */
typedef enum role { X, W, Y } role;

typedef struct terms {
    const double *x, *w, *y; /* NULL for the result */
    double *result;
    role to;
} terms;

static void add_product(const terms *t, int64_t x, int64_t w, int64_t y) {
    if (t->to == X) t->result[x] += t->y[y] * t->w[w];
    if (t->to == W) t->result[w] += t->x[x] * t->y[y];
    if (t->to == Y) t->result[y] += t->x[x] * t->w[w];
}

/* Adds all products of element `y` of a plane. The planes begin at x0, w0 and y0. */
static void add_window(const conv_problem *p, const terms *t, int64_t x0, int64_t w0, int64_t y0,
                       int64_t y) {
    int64_t first[SPATIAL], rest = y;
    for (int s = SPATIAL - 1; s >= 0; s--) {
        first[s] = rest % p->y[s] * p->stride[s] - p->padding[s];
        rest /= p->y[s];
    }
    for (int64_t a = 0; a < p->k[0]; a++)
        for (int64_t b = 0; b < p->k[1]; b++)
            for (int64_t c = 0; c < p->k[2]; c++) {
                int64_t i = first[0] + a * p->dilation[0], j = first[1] + b * p->dilation[1],
                        k = first[2] + c * p->dilation[2];
                if (i < 0 || i >= p->x[0] || j < 0 || j >= p->x[1] || k < 0 || k >= p->x[2])
                    continue; /* padding */
                add_product(t, x0 + (i * p->x[1] + j) * p->x[2] + k,
                            w0 + (a * p->k[1] + b) * p->k[2] + c, y0 + y);
            }
}

static int64_t plane_of(const int64_t size[SPATIAL]) {
    return size[0] * size[1] * size[2];
}

/* Order of the loops: batch, group, output channel, input channel, element of y, element of the
 * window. */
static void add_products(const conv_problem *p, const terms *t) {
    for (int64_t image = 0; image < p->batch * p->groups; image++)
        for (int64_t out = 0; out < p->out; out++)
            for (int64_t in = 0; in < p->in; in++) {
                int64_t x = image * p->in + in, y = image * p->out + out,
                        w = (image % p->groups * p->out + out) * p->in + in;
                for (int64_t at = 0; at < plane_of(p->y); at++)
                    add_window(p, t, x * plane_of(p->x), w * plane_of(p->k), y * plane_of(p->y),
                               at);
            }
}

/* ---- shapes ---- */

static weft_status check_window(const weft_node *n, int spatial) {
    const wefti_attr_id ids[] = {WEFTI_AT_stride, WEFTI_AT_padding, WEFTI_AT_dilation};
    for (int k = 0; k < 3; k++) {
        const wefti_ints *v = wefti_attr_ints(n, ids[k]);
        WEFT_REQUIRE(v->count == spatial, WEFT_E_SHAPE,
                     "%s: %s has %d sizes for %d spatial dimensions", n->op->name,
                     wefti_attr_name(ids[k]), v->count, spatial);
        for (int s = 0; s < spatial; s++)
            WEFT_REQUIRE(v->v[s] >= (k == 1 ? 0 : 1) && v->v[s] < INT32_MAX, WEFT_E_ARG,
                         "%s: %s %lld in spatial dimension %d; it must be at least %d", n->op->name,
                         wefti_attr_name(ids[k]), (long long)v->v[s], s, k == 1 ? 0 : 1);
    }
    WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_groups) >= 1, WEFT_E_ARG,
                 "%s: %lld groups; there must be 1 or more", n->op->name,
                 (long long)wefti_attr_int(n, WEFTI_AT_groups));
    return WEFT_OK;
}

/* The shape of y. Checks x against w. */
static weft_status forward_shape(const weft_node *n, const weft_desc *x, const weft_desc *w,
                                 weft_desc *out) {
    int spatial = x->rank - 2;
    WEFT_REQUIRE(
        w->rank == x->rank && (spatial == 2 || spatial == 3), WEFT_E_SHAPE,
        "%s: x is %s and the weight is %s; both need 4 dimensions (2 spatial) or 5 (3 spatial)",
        n->op->name, TEXT(x), TEXT(w));
    WEFT_TRY(check_window(n, spatial));
    int64_t groups = wefti_attr_int(n, WEFTI_AT_groups);
    WEFT_REQUIRE(
        w->shape[0] % groups == 0 && x->shape[1] % groups == 0 &&
            w->shape[1] == x->shape[1] / groups,
        WEFT_E_SHAPE,
        "%s: x %s and weight %s with %lld groups: the weight must be [out, in / groups, ...] and "
        "groups must divide both channel counts",
        n->op->name, TEXT(x), TEXT(w), (long long)groups);
    weft_desc y = {.dtype = x->dtype, .rank = x->rank, .shape = {x->shape[0], w->shape[0]}};
    for (int s = 0; s < spatial; s++) {
        WEFT_REQUIRE(w->shape[2 + s] >= 1 && w->shape[2 + s] < INT32_MAX, WEFT_E_SHAPE,
                     "%s: the kernel of the weight %s is empty or too large", n->op->name, TEXT(w));
        int64_t padded = x->shape[2 + s] + 2 * wefti_attr_ints(n, WEFTI_AT_padding)->v[s];
        int64_t window = wefti_attr_ints(n, WEFTI_AT_dilation)->v[s] * (w->shape[2 + s] - 1) + 1;
        WEFT_REQUIRE(
            w->shape[2 + s] >= 1 && padded >= window, WEFT_E_SHAPE,
            "%s: x %s with padding %lld in spatial dimension %d is smaller than the window of %s, "
            "%lld",
            n->op->name, TEXT(x), (long long)wefti_attr_ints(n, WEFTI_AT_padding)->v[s], s, TEXT(w),
            (long long)window);
        y.shape[2 + s] = (padded - window) / wefti_attr_ints(n, WEFTI_AT_stride)->v[s] + 1;
    }
    *out = y;
    return WEFT_OK;
}

static weft_status infer_rank(const weft_node *n, int rank, weft_desc *out) {
    const weft_desc *w = wefti_in(n, 1);
    weft_desc y;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, rank, rank));
    WEFT_TRY(forward_shape(n, wefti_in(n, 0), w, &y));
    y.dtype = wefti_op_result_dtype(n, 0);
    if (wefti_in(n, 2)) {
        WEFT_TRY(wefti_op_check_float(n, 2));
        WEFT_TRY(wefti_op_check_shape(n, 2, 1, w->shape, "the output channels of the weight"));
    }
    *out = y;
    return WEFT_OK;
}

static weft_status infer_conv2d(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    return infer_rank(n, 4, out);
}
static weft_status infer_conv3d(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    return infer_rank(n, 5, out);
}

/* dy must have the shape of the forward result for x and w. */
static weft_status check_dy(const weft_node *n, const weft_desc *x, const weft_desc *w,
                            const weft_desc *dy) {
    weft_desc y;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_TRY(forward_shape(n, x, w, &y));
    y.dtype = dy->dtype;
    WEFT_REQUIRE(wefti_desc_equal(&y, dy), WEFT_E_SHAPE, "%s: dy is %s; x %s and weight %s give %s",
                 n->op->name, TEXT(dy), TEXT(x), TEXT(w), TEXT(&y));
    return WEFT_OK;
}

static weft_status infer_grad_input(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *dy = wefti_in(n, 0), *w = wefti_in(n, 1);
    weft_desc dx;
    WEFT_TRY(wefti_op_desc_of_attr(n, WEFTI_AT_in_shape, wefti_op_result_dtype(n, 0), &dx));
    WEFT_TRY(check_dy(n, &dx, w, dy));
    *out = dx;
    return WEFT_OK;
}

static weft_status infer_grad_weight(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0), *dy = wefti_in(n, 1);
    const wefti_ints *kernel = wefti_attr_ints(n, WEFTI_AT_kernel);
    int64_t groups = wefti_attr_int(n, WEFTI_AT_groups);
    WEFT_REQUIRE(
        x->rank == dy->rank && x->rank == kernel->count + 2 && groups >= 1, WEFT_E_SHAPE,
        "conv_grad_weight: x is %s, dy is %s, with a kernel of %d dimensions and %lld groups",
        TEXT(x), TEXT(dy), kernel->count, (long long)groups);
    weft_desc dw = {.dtype = wefti_op_statistics_dtype(x->dtype),
                    .rank = x->rank,
                    .shape = {dy->shape[1], x->shape[1] / groups}};
    for (int s = 0; s < kernel->count; s++) dw.shape[2 + s] = kernel->v[s];
    WEFT_TRY(wefti_desc_check(&dw));
    WEFT_TRY(check_dy(n, x, &dw, dy));
    *out = dw;
    return WEFT_OK;
}

/* ---- gradient ---- */

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    const weft_desc *x = wefti_in(n, 0), *w = wefti_in(n, 1), *bias = wefti_in(n, 2);
    weft_value dy = wefti_grad_of(g, n, 0);
    wefti_attr attrs[] = {WEFTI_N(stride, *wefti_attr_ints(n, WEFTI_AT_stride)),
                          WEFTI_N(padding, *wefti_attr_ints(n, WEFTI_AT_padding)),
                          WEFTI_N(dilation, *wefti_attr_ints(n, WEFTI_AT_dilation)),
                          WEFTI_I(groups, wefti_attr_int(n, WEFTI_AT_groups)),
                          WEFTI_N(in_shape, wefti_op_shape_ints(x))};
    if (wefti_grad_wanted(g, n, 0))
        wefti_grad_add_reduced(g, n, 0,
                               wefti_graph_add1(b, &weft_op_conv_grad_input, 2,
                                                (weft_value[]){dy, wefti_grad_in(g, n, 1)}, 5,
                                                attrs));
    attrs[4] = WEFTI_N(kernel, wefti_op_ints(w->rank - 2, w->shape + 2));
    if (wefti_grad_wanted(g, n, 1))
        wefti_grad_add_reduced(g, n, 1,
                               wefti_graph_add1(b, &weft_op_conv_grad_weight, 2,
                                                (weft_value[]){wefti_grad_in(g, n, 0), dy}, 5,
                                                attrs));
    if (bias && wefti_grad_wanted(g, n, 2)) {
        weft_desc channels = {.dtype = bias->dtype, .rank = x->rank};
        for (int d = 0; d < x->rank; d++) channels.shape[d] = d == 1 ? bias->shape[0] : 1;
        weft_value sums = wefti_op_sum_to(b, dy, &channels);
        wefti_grad_add(g, n, 2, weft_reshape(b, sums, 1, bias->shape));
    }
    return WEFT_OK;
}

/* ---- split rules ----
 *
 * Channels: with one group, `in` is summed and `out` is free (in gradients the roles change). With
 * more groups, x, w and y share one free factor with a whole group as its unit. `groups` is then
 * the number of groups in the piece. Space needs a halo, unless windows are single elements. The
 * spatial factor counts elements of y. */

typedef struct roles {
    int8_t *x, *w, *y;
    bool x_out, w_out, y_out; /* true for the result */
} roles;

static void rule(const weft_node *n, const weft_desc *x, const weft_desc *w, const weft_desc *y,
                 wefti_split_rule *r, roles of) {
    wefti_factor_kind batch = of.w_out ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE;
    of.x[0] = of.y[0] = wefti_op_factor(r, "batch", -1, x->shape[0], batch);
    if (wefti_attr_int(n, WEFTI_AT_groups) == 1) {
        of.x[1] = of.w[1] = wefti_op_factor(r, "in", -1, w->shape[1],
                                            of.y_out ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE);
        of.w[0] = of.y[1] = wefti_op_factor(r, "out", -1, w->shape[0],
                                            of.x_out ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE);
    } else {
        of.x[1] = of.w[0] = of.y[1] =
            wefti_op_factor(r, "groups", -1, wefti_attr_int(n, WEFTI_AT_groups), WEFTI_FACTOR_FREE);
        of.w[1] = wefti_op_factor(r, "in", -1, w->shape[1], WEFTI_FACTOR_WHOLE);
    }
    for (int d = 2; d < x->rank; d++) {
        bool single = w->shape[d] == 1 && wefti_attr_ints(n, WEFTI_AT_stride)->v[d - 2] == 1 &&
                      wefti_attr_ints(n, WEFTI_AT_padding)->v[d - 2] == 0;
        of.x[d] = of.y[d] =
            wefti_op_factor(r, "s", d - 2, y->shape[d], single ? batch : WEFTI_FACTOR_HALO);
        of.w[d] = wefti_op_factor(r, "k", d - 2, w->shape[d], WEFTI_FACTOR_WHOLE);
    }
}

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    rule(n, wefti_in(n, 0), wefti_in(n, 1), wefti_out(n, 0), r,
         (roles){r->in[0], r->in[1], r->out[0], false, false, true});
    if (wefti_in(n, 2)) {
        r->in[2][0] = r->out[0][1];
        r->sum_once[2] = true;
    }
    return WEFT_OK;
}

static weft_status split_grad_input(const weft_node *n, wefti_split_rule *r) {
    rule(n, wefti_out(n, 0), wefti_in(n, 1), wefti_in(n, 0), r,
         (roles){r->out[0], r->in[1], r->in[0], true, false, false});
    return WEFT_OK;
}

static weft_status split_grad_weight(const weft_node *n, wefti_split_rule *r) {
    rule(n, wefti_in(n, 0), wefti_out(n, 0), wefti_in(n, 1), r,
         (roles){r->in[0], r->out[0], r->in[1], false, true, false});
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule_,
                            const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)begins;
    for (int f = 0; f < rule_->factors; f++)
        if (!strcmp(rule_->factor[f].name, "groups"))
            wefti_op_attr(n, attrs, WEFTI_AT_groups)->i = sizes[f];
    if (n->op == &weft_op_conv_grad_input)
        wefti_op_localize_shape(n, rule_, sizes, attrs, WEFTI_AT_in_shape);
    return WEFT_OK;
}

/* ---- over split space: halos (window.h) ---- */

typedef struct space {
    wefti_window window[SPATIAL];
    int dims;
    wefti_attr padding; /* 0 in split dimensions, because the fetch adds that padding */
    bool nothing;       /* this device has no output element */
} space;

static space space_of(const wefti_lowering *c, const weft_node *n, const weft_desc *x,
                      const weft_desc *w, const weft_desc *y, const int8_t *factors) {
    space s = {.dims = x->rank - 2,
               .padding = WEFTI_N(padding, *wefti_attr_ints(n, WEFTI_AT_padding))};
    for (int d = 0; d < s.dims; d++) {
        int64_t dilation = wefti_attr_ints(n, WEFTI_AT_dilation)->v[d];
        int factor = factors[2 + d];
        bool halo = factor >= 0 && wefti_lower_rule(c)->factor[factor].kind == WEFTI_FACTOR_HALO;
        s.window[d] =
            wefti_window_of(c, 2 + d, halo ? factor : -1, x->shape[2 + d], y->shape[2 + d],
                            dilation * (w->shape[2 + d] - 1) + 1,
                            wefti_attr_ints(n, WEFTI_AT_stride)->v[d], s.padding.ints.v[d]);
        if (wefti_window_split(&s.window[d])) s.padding.ints.v[d] = 0;
    }
    return s;
}

static space forward_space(const wefti_lowering *c, const weft_node *n) {
    return space_of(c, n, wefti_in(n, 0), wefti_in(n, 1), wefti_out(n, 0),
                    wefti_lower_rule(c)->in[0]);
}

static space grad_input_space(const wefti_lowering *c, const weft_node *n) {
    return space_of(c, n, wefti_out(n, 0), wefti_in(n, 1), wefti_in(n, 0),
                    wefti_lower_rule(c)->out[0]);
}

static space grad_weight_space(const wefti_lowering *c, const weft_node *n) {
    return space_of(c, n, wefti_in(n, 0), wefti_out(n, 0), wefti_in(n, 1),
                    wefti_lower_rule(c)->in[0]);
}

/* x with all elements that the windows of this device read. */
static weft_value fetch(wefti_lowering *c, space *s, weft_value x) {
    for (int d = 0; d < s->dims; d++) {
        const wefti_window *w = &s->window[d];
        if (!wefti_window_split(w)) continue;
        wefti_interval y = wefti_window_y_part(w);
        s->nothing = s->nothing || y.begin == y.end;
        x = wefti_window_fetch(c, w, x, 0.0);
    }
    return x;
}

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    space s = forward_space(c, n);
    uint32_t sums = wefti_op_factors_of(c, WEFTI_FACTOR_SUM);
    weft_value in[3] = {fetch(c, &s, wefti_lower_in(c, 0)), wefti_lower_in(c, 1),
                        wefti_lower_in(c, 2)};
    weft_value y = weft_constant(wefti_lower_graph(c), wefti_lower_out_desc(c, 0), 0.0);
    int terms = wefti_lower_factor(c, "in"); /* only one term adds the bias */
    if (terms >= 0 && (sums >> terms & 1) && !wefti_lower_first(c, terms)) in[2] = WEFT_NO_VALUE;
    if (!s.nothing) wefti_lower_same(c, in, 1, &s.padding, &y);
    wefti_lower_out_partial(c, 0, y, sums);
    return WEFT_OK;
}

/* Computes dx of this device from all dy with windows that reach it. Without a split, the products
 * and their order are the same. */
static weft_status lower_grad_input(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    space s = grad_input_space(c, n);
    weft_desc dx = wefti_lower_out_desc(c, 0), around = dx;
    weft_value in[2] = {wefti_lower_in(c, 0), wefti_lower_in(c, 1)};
    weft_value out = weft_constant(g, dx, 0.0);
    for (int d = 0; d < s.dims; d++) {
        const wefti_window *w = &s.window[d];
        if (!wefti_window_split(w)) continue;
        wefti_interval reached = wefti_window_extent(w, wefti_window_y_around(w));
        in[0] = wefti_window_fetch_y(c, w, in[0]);
        around.shape[2 + d] = reached.end - reached.begin;
        s.nothing = s.nothing || reached.end == reached.begin;
    }
    if (!s.nothing) {
        wefti_attr attrs[] = {s.padding, WEFTI_N(in_shape, wefti_op_shape_ints(&around))};
        wefti_lower_same(c, in, 2, attrs, &out);
        for (int d = 0; d < s.dims; d++) {
            const wefti_window *w = &s.window[d];
            if (wefti_window_split(w))
                out = wefti_window_crop(g, out, 2 + d,
                                        wefti_window_extent(w, wefti_window_y_around(w)),
                                        wefti_window_x_part(w), 0.0);
        }
    }
    wefti_lower_out_partial(c, 0, out, wefti_op_factors_of(c, WEFTI_FACTOR_SUM));
    return WEFT_OK;
}

static weft_status lower_grad_weight(wefti_lowering *c, const weft_node *n) {
    space s = grad_weight_space(c, n);
    weft_value in[2] = {fetch(c, &s, wefti_lower_in(c, 0)), wefti_lower_in(c, 1)};
    weft_value dw = weft_constant(wefti_lower_graph(c), wefti_lower_out_desc(c, 0), 0.0);
    if (!s.nothing) wefti_lower_same(c, in, 1, &s.padding, &dw);
    wefti_lower_out_partial(c, 0, dw,
                            wefti_op_factors_of(c, WEFTI_FACTOR_SUM) |
                                wefti_op_factors_of(c, WEFTI_FACTOR_HALO));
    return WEFT_OK;
}

static void exchanged(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    space s = forward_space(c, n);
    wefti_window_exchanged(c, 0, WEFTI_WINDOW_X, s.dims, s.window, bytes);
}

static void exchanged_grad_input(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    space s = grad_input_space(c, n);
    wefti_window_exchanged(c, 0, WEFTI_WINDOW_Y, s.dims, s.window, bytes);
}

static void exchanged_grad_weight(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    space s = grad_weight_space(c, n);
    wefti_window_exchanged(c, 0, WEFTI_WINDOW_X, s.dims, s.window, bytes);
}

/* ---- cost: two operations for each product, windows counted with their padding ---- */

static void cost_of(const weft_node *n, const weft_desc *y, const weft_desc *w, wefti_cost *out) {
    *out = (wefti_cost){.flops = 2.0 * (double)weft_desc_elems(y) *
                                 (double)wefti_op_count(w, 1, w->rank),
                        .bytes = wefti_node_bytes(n)};
}
static void cost(const weft_node *n, wefti_cost *out) {
    cost_of(n, wefti_out(n, 0), wefti_in(n, 1), out);
}
static void cost_grad_input(const weft_node *n, wefti_cost *out) {
    cost_of(n, wefti_in(n, 0), wefti_in(n, 1), out);
}
static void cost_grad_weight(const weft_node *n, wefti_cost *out) {
    cost_of(n, wefti_in(n, 1), wefti_out(n, 0), out);
}

/* ---- references ---- */

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *y = wefti_out(n, 0);
    conv_problem p = problem_of(n, wefti_in(n, 0), wefti_in(n, 1), y);
    const double *bias = wefti_op_optional(n, in, 2);
    int64_t plane = wefti_op_count(y, 2, y->rank), count = weft_desc_elems(y);
    for (int64_t i = 0; i < count; i++) out[0][i] = bias ? bias[i / plane % y->shape[1]] : 0.0;
    add_products(&p, &(terms){.x = in[0], .w = in[1], .result = out[0], .to = Y});
    return WEFT_OK;
}

static weft_status reference_grad_input(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *dx = wefti_out(n, 0);
    conv_problem p = problem_of(n, dx, wefti_in(n, 1), wefti_in(n, 0));
    for (int64_t i = 0; i < weft_desc_elems(dx); i++) out[0][i] = 0.0;
    add_products(&p, &(terms){.y = in[0], .w = in[1], .result = out[0], .to = X});
    return WEFT_OK;
}

static weft_status reference_grad_weight(const weft_node *n, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *dw = wefti_out(n, 0);
    conv_problem p = problem_of(n, wefti_in(n, 0), dw, wefti_in(n, 1));
    for (int64_t i = 0; i < weft_desc_elems(dw); i++) out[0][i] = 0.0;
    add_products(&p, &(terms){.x = in[0], .y = in[1], .result = out[0], .to = W});
    return WEFT_OK;
}

/* ---- tables ---- */

#define WINDOW_2D                                                                                  \
    ATTR_INTS(stride, 2, {1, 1}), ATTR_INTS(padding, 2, {0, 0}), ATTR_INTS(dilation, 2, {1, 1}),   \
        WEFTI_I(groups, 1)
#define WINDOW_3D                                                                                  \
    ATTR_INTS(stride, 3, {1, 1, 1}), ATTR_INTS(padding, 3, {0, 0, 0}),                             \
        ATTR_INTS(dilation, 3, {1, 1, 1}), WEFTI_I(groups, 1)
static const wefti_attr attrs_2d[] = {WINDOW_2D, {0}};
static const wefti_attr attrs_3d[] = {WINDOW_3D, {0}};
static const wefti_attr attrs_grad_input[] = {WINDOW_2D, ATTR_INTS(in_shape, 0, {0}), {0}};
static const wefti_attr attrs_grad_weight[] = {WINDOW_2D, ATTR_INTS(kernel, 0, {0}), {0}};

static const wefti_op_case cases_2d[] = {
    CASE(NULL, "f32[2,3,5,4]", "f32[4,3,3,2]", "f32[4]"),
    CASE("stride=(2,1) padding=(1,2)", "f32[1,2,5,3]", "f32[3,2,3,3]"),
    CASE("dilation=(2,1) padding=(2,0)", "f32[2,1,3,4]", "f32[2,1,2,2]", "f32[2]"),
    CASE("groups=2 padding=(1,1)", "f32[1,4,3,3]", "f32[6,2,3,3]", "f32[6]"),
    CASE("groups=3", "f32[2,3,3,3]", "f32[3,1,2,2]"),
    CASE(NULL, "bf16[2,3,2,3]", "f32[5,3,1,1]", "f32[5]"),
    CASE(NULL, "f32[0,2,3,3]", "f32[2,2,3,3]"),
    CASES_END};
static const wefti_op_case cases_3d[] = {
    CASE(NULL, "f32[2,2,3,4,3]", "f32[3,2,2,3,1]", "f32[3]"),
    CASE("stride=(2,1,2) padding=(1,0,1) dilation=(1,2,1)", "f32[1,1,3,5,2]", "f32[2,1,2,2,3]"),
    CASE("groups=2", "bf16[1,2,2,2,2]", "f32[2,1,2,2,2]", "f32[2]"), CASES_END};
static const wefti_op_case cases_grad_input[] = {
    CASE("in_shape=(2,3,5,4)", "f32[2,4,3,3]", "f32[4,3,3,2]"),
    CASE("stride=(2,1) padding=(1,2) in_shape=(1,2,6,3)", "f32[1,3,3,5]", "f32[3,2,3,3]"),
    CASE("groups=2 dilation=(1,2) in_shape=(1,4,3,3)", "bf16[1,6,2,1]", "f32[6,2,2,2]"),
    CASE("stride=(1,1,1) padding=(0,0,0) dilation=(1,1,1) in_shape=(2,2,3,4,3)", "f32[2,3,2,2,3]",
         "f32[3,2,2,3,1]"),
    CASE("in_shape=(2,3,2,3)", "f32[2,5,2,3]", "f32[5,3,1,1]"),
    CASES_END};
static const wefti_op_case cases_grad_weight[] = {
    CASE("kernel=(3,2)", "f32[2,3,5,4]", "f32[2,4,3,3]"),
    CASE("stride=(2,1) padding=(1,2) kernel=(3,3)", "f32[1,2,6,3]", "f32[1,3,3,5]"),
    CASE("groups=2 dilation=(1,2) kernel=(2,2)", "bf16[1,4,3,3]", "bf16[1,6,2,1]"),
    CASE("stride=(1,1,1) padding=(0,0,0) dilation=(1,1,1) kernel=(2,3,1)", "f32[2,2,3,4,3]",
         "f32[2,3,2,2,3]"),
    CASE("kernel=(1,1)", "f32[2,3,2,3]", "f32[2,5,2,3]"),
    CASES_END};

/* ---- definitions ---- */

const weft_op_def weft_op_conv2d = {
    WEFTI_OP_NAME(conv2d),  .min_inputs = 2,
    .max_inputs = 3,        .family = WEFTI_FAMILY_PRODUCT,
    .weights = 1u << 1,     .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs_2d,      .infer = infer_conv2d,
    .grad = grad,           .split = split,
    .localize = localize,   .cost = cost,
    .reference = reference, .cases = cases_2d,
    .lower = lower,         .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged,
};

const weft_op_def weft_op_conv3d = {
    WEFTI_OP_NAME(conv3d),  .min_inputs = 2,
    .max_inputs = 3,        .family = WEFTI_FAMILY_PRODUCT,
    .weights = 1u << 1,     .work = WEFTI_WORK_PRODUCT,
    .attrs = attrs_3d,      .infer = infer_conv3d,
    .grad = grad,           .split = split,
    .localize = localize,   .cost = cost,
    .reference = reference, .cases = cases_3d,
    .lower = lower,         .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged,
};

const weft_op_def weft_op_conv_grad_input = {
    WEFTI_OP_NAME(conv_grad_input),
    .min_inputs = 2,
    .max_inputs = 2,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_grad_input,
    .infer = infer_grad_input,
    .split = split_grad_input,
    .localize = localize,
    .cost = cost_grad_input,
    .reference = reference_grad_input,
    .cases = cases_grad_input,
    .lower = lower_grad_input,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged_grad_input,
};

const weft_op_def weft_op_conv_grad_weight = {
    WEFTI_OP_NAME(conv_grad_weight),
    .min_inputs = 2,
    .max_inputs = 2,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_grad_weight,
    .infer = infer_grad_weight,
    .split = split_grad_weight,
    .localize = localize,
    .cost = cost_grad_weight,
    .reference = reference_grad_weight,
    .cases = cases_grad_weight,
    .lower = lower_grad_weight,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged_grad_weight,
};

static weft_value convolve(weft_graph *g, const weft_op_def *op, int spatial, weft_value x,
                           weft_value weight, weft_value bias, const weft_conv_options *options) {
    weft_conv_options own = weft_conv_defaults();
    if (!wefti_graph_take(g, "weft_conv_options", options, &own)) return WEFT_NO_VALUE;
    wefti_attr attrs[] = {WEFTI_N(stride, wefti_op_ints(spatial, own.stride)),
                          WEFTI_N(padding, wefti_op_ints(spatial, own.padding)),
                          WEFTI_N(dilation, wefti_op_ints(spatial, own.dilation)),
                          WEFTI_I(groups, own.groups)};
    return wefti_graph_add1(g, op, 3, (weft_value[]){x, weight, bias}, 4, attrs);
}

weft_value weft_conv2d(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                       const weft_conv_options *options) {
    return convolve(g, &weft_op_conv2d, 2, x, weight, bias, options);
}

weft_value weft_conv3d(weft_graph *g, weft_value x, weft_value weight, weft_value bias,
                       const weft_conv_options *options) {
    return convolve(g, &weft_op_conv3d, 3, x, weight, bias, options);
}
