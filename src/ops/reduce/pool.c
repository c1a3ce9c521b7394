/* Maximum and average over windows of the last two dimensions.
 *
 *     x [batch, channels, h, w] -> y [batch, channels, oh, ow]
 *     o = (s + 2 padding - kernel) / stride + 1
 *     max_pool2d_grad(x, dy) -> dx          avg_pool2d_grad(dy; in_shape) -> dx
 *
 * Padding is less than the kernel, so every window has an element of x. Padding counts as -inf
 * (maximum) and is left out of the count (average). Among equals, the first element in row-major
 * order wins and gets the gradient. A NaN wins. */
#include "ops/window.h"

typedef struct pool_problem {
    int64_t planes, x[2], y[2], kernel[2], stride[2], padding[2];
} pool_problem;

static pool_problem problem_of(const weft_node *n, const weft_desc *x, const weft_desc *y) {
    pool_problem p = {.planes = x->shape[0] * x->shape[1]};
    for (int s = 0; s < 2; s++) {
        p.x[s] = x->shape[2 + s];
        p.y[s] = y->shape[2 + s];
        p.kernel[s] = wefti_attr_ints(n, WEFTI_AT_kernel)->v[s];
        p.stride[s] = wefti_attr_ints(n, WEFTI_AT_stride)->v[s];
        p.padding[s] = wefti_attr_ints(n, WEFTI_AT_padding)->v[s];
    }
    return p;
}

/* The window of y element `at` of one plane, limited to x: [begin, end) in both dimensions. */
typedef struct window {
    int64_t begin[2], end[2];
} window;

static window window_of(const pool_problem *p, int64_t at) {
    int64_t y[2] = {at / p->y[1], at % p->y[1]};
    window w;
    for (int s = 0; s < 2; s++) {
        int64_t first = y[s] * p->stride[s] - p->padding[s], last = first + p->kernel[s];
        w.begin[s] = first < 0 ? 0 : first;
        w.end[s] = last > p->x[s] ? p->x[s] : last;
    }
    return w;
}

static int64_t window_count(const window *w) {
    return (w->end[0] - w->begin[0]) * (w->end[1] - w->begin[1]);
}

/* Index of the maximum of a window of plane x. */
static int64_t winner(const pool_problem *p, const double *x, const window *w) {
    int64_t best = w->begin[0] * p->x[1] + w->begin[1];
    for (int64_t i = w->begin[0]; i < w->end[0]; i++)
        for (int64_t j = w->begin[1]; j < w->end[1]; j++) {
            double v = x[i * p->x[1] + j];
            if (!isnan(x[best]) && (isnan(v) || v > x[best])) best = i * p->x[1] + j;
        }
    return best;
}

/* ---- shapes ---- */

static weft_status forward_shape(const weft_node *n, const weft_desc *x, weft_desc *out) {
    const wefti_ints *kernel = wefti_attr_ints(n, WEFTI_AT_kernel),
                     *stride = wefti_attr_ints(n, WEFTI_AT_stride);
    const wefti_ints *padding = wefti_attr_ints(n, WEFTI_AT_padding);
    WEFT_REQUIRE(x->rank == 4, WEFT_E_SHAPE, "%s: x is %s; it must be [batch, channels, h, w]",
                 n->op->name, TEXT(x));
    WEFT_REQUIRE(kernel->count == 2 && stride->count == 2 && padding->count == 2, WEFT_E_SHAPE,
                 "%s: kernel, stride and padding need 2 sizes each", n->op->name);
    weft_desc y = *x;
    for (int s = 0; s < 2; s++) {
        int64_t k = kernel->v[s], size = x->shape[2 + s];
        WEFT_REQUIRE(
            k >= 1 && k < INT32_MAX && stride->v[s] >= 1 && padding->v[s] >= 0 && padding->v[s] < k,
            WEFT_E_ARG,
            "%s: kernel %lld, stride %lld, padding %lld: kernel and stride must be 1 or more, the "
            "padding less than the kernel",
            n->op->name, (long long)k, (long long)stride->v[s], (long long)padding->v[s]);
        WEFT_REQUIRE(size >= 1 && size + 2 * padding->v[s] >= k, WEFT_E_SHAPE,
                     "%s: %s with padding %lld is smaller than the kernel, %lld", n->op->name,
                     TEXT(x), (long long)padding->v[s], (long long)k);
        y.shape[2 + s] = (size + 2 * padding->v[s] - k) / stride->v[s] + 1;
    }
    *out = y;
    return WEFT_OK;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    return forward_shape(n, wefti_in(n, 0), out);
}

static weft_status check_dy(const weft_node *n, const weft_desc *x, int dy) {
    weft_desc y;
    WEFT_TRY(wefti_op_check_float(n, dy));
    WEFT_TRY(forward_shape(n, x, &y));
    return wefti_op_check_shape(n, dy, 4, y.shape, "x and the windows");
}

static weft_status infer_max_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_TRY(check_dy(n, wefti_in(n, 0), 1));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_avg_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    weft_desc dx;
    WEFT_TRY(wefti_op_desc_of_attr(n, WEFTI_AT_in_shape, wefti_in(n, 0)->dtype, &dx));
    WEFT_TRY(check_dy(n, &dx, 0));
    *out = dx;
    return WEFT_OK;
}

/* ---- gradients ---- */

#define WINDOW_ATTRS(n_)                                                                           \
    WEFTI_N(kernel, *wefti_attr_ints(n_, WEFTI_AT_kernel)),                                        \
        WEFTI_N(stride, *wefti_attr_ints(n_, WEFTI_AT_stride)),                                    \
        WEFTI_N(padding, *wefti_attr_ints(n_, WEFTI_AT_padding))

static weft_status grad_max(wefti_grad *g, const weft_node *n) {
    weft_value in[] = {wefti_grad_in(g, n, 0), wefti_grad_of(g, n, 0)};
    wefti_attr attrs[] = {WINDOW_ATTRS(n)};
    wefti_grad_add(
        g, n, 0, wefti_graph_add1(wefti_grad_graph(g), &weft_op_max_pool2d_grad, 2, in, 3, attrs));
    return WEFT_OK;
}

static weft_status grad_avg(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    wefti_attr attrs[] = {WINDOW_ATTRS(n), WEFTI_N(in_shape, wefti_op_shape_ints(wefti_in(n, 0)))};
    wefti_grad_add(
        g, n, 0, wefti_graph_add1(wefti_grad_graph(g), &weft_op_avg_pool2d_grad, 1, &dy, 4, attrs));
    return WEFT_OK;
}

/* ---- split rules: planes free, space with a halo, counted in elements of the small side ---- */

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *last = wefti_in(n, n->inputs - 1), *y = wefti_out(n, 0);
    const weft_desc *small = weft_desc_elems(last) < weft_desc_elems(y) ? last : y;
    static const char *const names[] = {"batch", "channels", "h", "w"};
    for (int d = 0; d < 4; d++) {
        int8_t f = wefti_op_factor(r, names[d], -1, small->shape[d],
                                   d < 2 ? WEFTI_FACTOR_FREE : WEFTI_FACTOR_HALO);
        for (int i = 0; i < n->inputs; i++) r->in[i][d] = f;
        r->out[0][d] = f;
    }
    return WEFT_OK;
}

static weft_status localize_avg_grad(const weft_node *n, const wefti_split_rule *rule,
                                     const int64_t *begins, const int64_t *sizes,
                                     wefti_attr *attrs) {
    (void)begins;
    wefti_op_localize_shape(n, rule, sizes, attrs, WEFTI_AT_in_shape);
    return WEFT_OK;
}

/* ---- over split space: halos (window.h) ---- */

typedef struct pool_space {
    wefti_window window[2];
    wefti_attr padding; /* 0 in split dimensions, because the fetch adds that padding */
    bool nothing;       /* this device has no window */
} pool_space;

static pool_space space_of(const wefti_lowering *c, const weft_node *n, const weft_desc *x,
                           const weft_desc *y) {
    pool_space s = {.padding = WEFTI_N(padding, *wefti_attr_ints(n, WEFTI_AT_padding))};
    for (int d = 0; d < 2; d++) {
        s.window[d] =
            wefti_window_of(c, 2 + d, wefti_lower_rule(c)->out[0][2 + d], x->shape[2 + d],
                            y->shape[2 + d], wefti_attr_ints(n, WEFTI_AT_kernel)->v[d],
                            wefti_attr_ints(n, WEFTI_AT_stride)->v[d], s.padding.ints.v[d]);
        if (wefti_window_split(&s.window[d])) s.padding.ints.v[d] = 0;
    }
    return s;
}

/* The fraction of each window's elements that belong to x, because averages ignore the others. One
 * plane; empty if all fractions are 1. With `around`: the windows that reach this part of x. Else:
 * the windows of this part of y. */
static weft_value own_share(wefti_lowering *c, const weft_node *n, const pool_space *s, bool around,
                            weft_dtype dtype) {
    weft_graph *g = wefti_lower_graph(c);
    weft_desc d = {.dtype = dtype, .rank = 4, .shape = {1, 1, s->window[0].x, s->window[1].x}};
    weft_value ones = weft_constant(g, d, 1.0);
    bool all = true;
    for (int k = 0; k < 2; k++) {
        const wefti_window *w = &s->window[k];
        if (!wefti_window_split(w)) continue;
        wefti_interval x = {0, w->x},
                       extent = wefti_window_extent(w, around ? wefti_window_y_around(w)
                                                              : wefti_window_y_part(w));
        all = all && extent.begin >= 0 && extent.end <= w->x;
        ones = wefti_window_crop(g, ones, 2 + k, x, extent, 0.0);
    }
    if (all) return WEFT_NO_VALUE;
    wefti_attr attrs[] = {WEFTI_N(kernel, *wefti_attr_ints(n, WEFTI_AT_kernel)),
                          WEFTI_N(stride, *wefti_attr_ints(n, WEFTI_AT_stride)), s->padding};
    return wefti_graph_add1(g, &weft_op_avg_pool2d, 1, &ones, 3, attrs);
}

static weft_status lower(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    bool max = n->op == &weft_op_max_pool2d;
    pool_space s = space_of(c, n, wefti_in(n, 0), wefti_out(n, 0));
    weft_value x = wefti_lower_in(c, 0), y = weft_constant(g, wefti_lower_out_desc(c, 0), 0.0);
    for (int d = 0; d < 2; d++) {
        if (!wefti_window_split(&s.window[d])) continue;
        wefti_interval part = wefti_window_y_part(&s.window[d]);
        s.nothing = s.nothing || part.begin == part.end;
        x = wefti_window_fetch(c, &s.window[d], x, max ? -INFINITY : 0.0);
    }
    if (!s.nothing && max) wefti_lower_same(c, &x, 1, &s.padding, &y);
    if (!s.nothing && !max) {
        x = wefti_op_precise(g, x);
        wefti_lower_same(c, &x, 1, &s.padding, &y);
        weft_value share = own_share(c, n, &s, false, weft_value_desc(g, x).dtype);
        if (share.id >= 0) y = weft_div(g, y, share);
        y = weft_cast(g, y, wefti_out(n, 0)->dtype);
    }
    wefti_lower_out(c, 0, y);
    return WEFT_OK;
}

/* Computes dx of this device from all windows that reach it. max_pool2d_grad(x, dy) finds the
 * maximum of each window again. */
static weft_status lower_grad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    bool max = n->inputs == 2;
    int dy = n->inputs - 1;
    pool_space s = space_of(c, n, wefti_out(n, 0), wefti_in(n, dy));
    weft_desc here = wefti_lower_out_desc(c, 0), around = here;
    weft_value in[2] = {wefti_lower_in(c, 0), wefti_lower_in(c, 1)},
               dx = weft_constant(g, here, 0.0);
    for (int d = 0; d < 2; d++) {
        const wefti_window *w = &s.window[d];
        if (!wefti_window_split(w)) continue;
        wefti_interval reached = wefti_window_extent(w, wefti_window_y_around(w));
        in[dy] = wefti_window_fetch_y(c, w, in[dy]);
        if (max) in[0] = wefti_window_fetch_around(c, w, in[0], -INFINITY);
        around.shape[2 + d] = reached.end - reached.begin;
        s.nothing = s.nothing || reached.begin == reached.end;
    }
    if (!s.nothing) {
        wefti_attr attrs[] = {s.padding, WEFTI_N(in_shape, wefti_op_shape_ints(&around))};
        if (!max) {
            in[0] = wefti_op_precise(g, in[0]);
            weft_value share = own_share(c, n, &s, true, weft_value_desc(g, in[0]).dtype);
            if (share.id >= 0) in[0] = weft_div(g, in[0], share);
        }
        wefti_lower_same(c, in, max ? 1 : 2, attrs, &dx);
        for (int d = 0; d < 2; d++) {
            const wefti_window *w = &s.window[d];
            if (wefti_window_split(w))
                dx = wefti_window_crop(g, dx, 2 + d,
                                       wefti_window_extent(w, wefti_window_y_around(w)),
                                       wefti_window_x_part(w), 0.0);
        }
        dx = weft_cast(g, dx, here.dtype);
    }
    wefti_lower_out(c, 0, dx);
    return WEFT_OK;
}

static void exchanged(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    pool_space s = space_of(c, n, wefti_in(n, 0), wefti_out(n, 0));
    wefti_window_exchanged(c, 0, WEFTI_WINDOW_X, 2, s.window, bytes);
}

static void exchanged_grad(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    int dy = n->inputs - 1;
    pool_space s = space_of(c, n, wefti_out(n, 0), wefti_in(n, dy));
    wefti_window_exchanged(c, dy, WEFTI_WINDOW_Y, 2, s.window, bytes);
    if (dy) wefti_window_exchanged(c, 0, WEFTI_WINDOW_AROUND, 2, s.window, bytes);
}

/* One operation for each element of every window. */
static void cost(const weft_node *n, wefti_cost *out) {
    const weft_desc *last = wefti_in(n, n->inputs - 1), *y = wefti_out(n, 0);
    double windows = fmin((double)weft_desc_elems(last), (double)weft_desc_elems(y));
    const wefti_ints *kernel = wefti_attr_ints(n, WEFTI_AT_kernel);
    *out = (wefti_cost){.flops = windows * (double)kernel->v[0] * (double)kernel->v[1],
                        .bytes = wefti_node_bytes(n)};
}

/* ---- references ---- */

static weft_status reference_max(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    pool_problem p = problem_of(n, wefti_in(n, 0), wefti_out(n, 0));
    int64_t x_size = p.x[0] * p.x[1], y_size = p.y[0] * p.y[1];
    for (int64_t plane = 0; plane < p.planes; plane++)
        for (int64_t at = 0; at < y_size; at++) {
            const double *x = in[0] + plane * x_size;
            window w = window_of(&p, at);
            out[0][plane * y_size + at] = x[winner(&p, x, &w)];
        }
    return WEFT_OK;
}

static weft_status reference_max_grad(const weft_node *n, const wefti_random *random,
                                      const double *const *in, double *const *out) {
    (void)random;
    pool_problem p = problem_of(n, wefti_in(n, 0), wefti_in(n, 1));
    int64_t x_size = p.x[0] * p.x[1], y_size = p.y[0] * p.y[1];
    for (int64_t i = 0; i < p.planes * x_size; i++) out[0][i] = 0.0;
    for (int64_t plane = 0; plane < p.planes; plane++)
        for (int64_t at = 0; at < y_size; at++) {
            window w = window_of(&p, at);
            int64_t best = winner(&p, in[0] + plane * x_size, &w);
            out[0][plane * x_size + best] += in[1][plane * y_size + at];
        }
    return WEFT_OK;
}

static weft_status reference_avg(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    pool_problem p = problem_of(n, wefti_in(n, 0), wefti_out(n, 0));
    int64_t x_size = p.x[0] * p.x[1], y_size = p.y[0] * p.y[1];
    for (int64_t plane = 0; plane < p.planes; plane++)
        for (int64_t at = 0; at < y_size; at++) {
            window w = window_of(&p, at);
            double sum = 0.0;
            for (int64_t i = w.begin[0]; i < w.end[0]; i++)
                for (int64_t j = w.begin[1]; j < w.end[1]; j++)
                    sum += in[0][plane * x_size + i * p.x[1] + j];
            out[0][plane * y_size + at] = sum / (double)window_count(&w);
        }
    return WEFT_OK;
}

static weft_status reference_avg_grad(const weft_node *n, const wefti_random *random,
                                      const double *const *in, double *const *out) {
    (void)random;
    pool_problem p = problem_of(n, wefti_out(n, 0), wefti_in(n, 0));
    int64_t x_size = p.x[0] * p.x[1], y_size = p.y[0] * p.y[1];
    for (int64_t i = 0; i < p.planes * x_size; i++) out[0][i] = 0.0;
    for (int64_t plane = 0; plane < p.planes; plane++)
        for (int64_t at = 0; at < y_size; at++) {
            window w = window_of(&p, at);
            for (int64_t i = w.begin[0]; i < w.end[0]; i++)
                for (int64_t j = w.begin[1]; j < w.end[1]; j++)
                    out[0][plane * x_size + i * p.x[1] + j] +=
                        in[0][plane * y_size + at] / (double)window_count(&w);
        }
    return WEFT_OK;
}

/* ---- tables ---- */

#define WINDOW                                                                                     \
    ATTR_INTS(kernel, 2, {1, 1}), ATTR_INTS(stride, 2, {1, 1}), ATTR_INTS(padding, 2, {0, 0})
static const wefti_attr attrs[] = {WINDOW, {0}};
static const wefti_attr attrs_avg_grad[] = {WINDOW, ATTR_INTS(in_shape, 0, {0}), {0}};

static const wefti_op_case cases[] = {
    CASE("kernel=(2,2) stride=(2,2)", "f32[2,3,4,6]u"),
    CASE("kernel=(3,2) stride=(2,1) padding=(1,1)", "f32[1,2,5,3]u"),
    CASE("kernel=(3,3) stride=(1,2) padding=(2,0)", "bf16[2,1,3,7]u"),
    CASE("kernel=(1,1) stride=(1,1)", "f32[1,1,1,1]u"),
    CASE("kernel=(2,2) stride=(2,2)", "f32[0,3,4,4]u"),
    CASES_END};
static const wefti_op_case cases_max_grad[] = {
    CASE("kernel=(2,2) stride=(2,2)", "f32[2,3,4,6]u", "f32[2,3,2,3]"),
    CASE("kernel=(3,2) stride=(2,1) padding=(1,1)", "bf16[1,2,5,3]<3", "bf16[1,2,3,4]"), CASES_END};
static const wefti_op_case cases_avg_grad[] = {
    CASE("kernel=(2,2) stride=(2,2) in_shape=(2,3,4,6)", "f32[2,3,2,3]"),
    CASE("kernel=(3,2) stride=(2,1) padding=(1,1) in_shape=(1,2,5,3)", "bf16[1,2,3,4]"), CASES_END};

const weft_op_def weft_op_max_pool2d = {
    WEFTI_OP_NAME(max_pool2d),
    .min_inputs = 1,
    .max_inputs = 1,
    .family = WEFTI_FAMILY_POOL,
    .attrs = attrs,
    .infer = infer,
    .grad = grad_max,
    .split = split,
    .cost = cost,
    .reference = reference_max,
    .cases = cases,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged,
};

const weft_op_def weft_op_max_pool2d_grad = {
    WEFTI_OP_NAME(max_pool2d_grad),
    .min_inputs = 2,
    .max_inputs = 2,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_max_grad,
    .split = split,
    .cost = cost,
    .reference = reference_max_grad,
    .cases = cases_max_grad,
    .lower = lower_grad,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged_grad,
};

const weft_op_def weft_op_avg_pool2d = {
    WEFTI_OP_NAME(avg_pool2d),
    .min_inputs = 1,
    .max_inputs = 1,
    .family = WEFTI_FAMILY_POOL,
    .attrs = attrs,
    .infer = infer,
    .grad = grad_avg,
    .split = split,
    .cost = cost,
    .reference = reference_avg,
    .cases = cases,
    .lower = lower,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged,
};

const weft_op_def weft_op_avg_pool2d_grad = {
    WEFTI_OP_NAME(avg_pool2d_grad),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_GRADIENT,
    .attrs = attrs_avg_grad,
    .infer = infer_avg_grad,
    .split = split,
    .localize = localize_avg_grad,
    .cost = cost,
    .reference = reference_avg_grad,
    .cases = cases_avg_grad,
    .lower = lower_grad,
    .lowers = 1u << WEFTI_FACTOR_HALO,
    .exchanged = exchanged_grad,
};

static weft_value pool(weft_graph *g, const weft_op_def *op, weft_value x, const int64_t kernel[2],
                       const int64_t stride[2], const int64_t padding[2]) {
    return wefti_graph_add1(g, op, 1, &x, 3,
                            (wefti_attr[]){WEFTI_N(kernel, wefti_op_ints(2, kernel)),
                                           WEFTI_N(stride, wefti_op_ints(2, stride)),
                                           WEFTI_N(padding, wefti_op_ints(2, padding))});
}

weft_value weft_max_pool2d(weft_graph *g, weft_value x, const int64_t kernel[2],
                           const int64_t stride[2], const int64_t padding[2]) {
    return pool(g, &weft_op_max_pool2d, x, kernel, stride, padding);
}

weft_value weft_avg_pool2d(weft_graph *g, weft_value x, const int64_t kernel[2],
                           const int64_t stride[2], const int64_t padding[2]) {
    return pool(g, &weft_op_avg_pool2d, x, kernel, stride, padding);
}
