/* Ops that only move elements: reshape, transpose, slice, concat, split, pad. They accept any
 * dtype. The reference kernels copy.
 *
 * reshape costs nothing (WEFTI_OP_RESHAPE). If the source of a slice stays in memory anyway, the
 * backward pass recomputes the slice instead of keeping it. */
#include "ops/move/blocks.h"

static weft_status check_rank_at_least_1(const weft_node *n, int64_t axis) {
    return wefti_op_check_axis(n, axis, wefti_in(n, 0)->rank);
}

/* ---- reshape ---- */

static weft_status infer_reshape(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    weft_desc y;
    WEFT_TRY(wefti_op_desc_of_attr(n, WEFTI_AT_shape, x->dtype, &y));
    WEFT_REQUIRE(weft_desc_elems(&y) == weft_desc_elems(x), WEFT_E_SHAPE,
                 "reshape: %s has %lld elements, %s would have %lld", TEXT(x),
                 (long long)weft_desc_elems(x), TEXT(&y), (long long)weft_desc_elems(&y));
    *out = y;
    return WEFT_OK;
}

static weft_status grad_reshape(wefti_grad *g, const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    wefti_grad_add(g, n, 0,
                   weft_reshape(wefti_grad_graph(g), wefti_grad_of(g, n, 0), x->rank, x->shape));
    return WEFT_OK;
}

/* Dimensions form groups of equal products, [a b] <-> [a*b]. In each group, the outermost
 * dimensions of both sides share one factor. The factor counts units of the smaller dimension, if
 * this divides the larger one. Pieces then stay contiguous. The inner dimensions stay whole. */
static weft_status split_reshape(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int i = 0, o = 0;
    /* Without elements, no groups can be found: everything is replicated. */
    if (weft_desc_elems(x) == 0) return WEFT_OK;
    for (;;) {
        while (i < x->rank && x->shape[i] == 1) i++;
        while (o < y->rank && y->shape[o] == 1) o++;
        if (i == x->rank || o == y->rank) return WEFT_OK;
        int64_t a = x->shape[i], b = y->shape[o], unit = a < b ? a : b;
        bool divides = (a < b ? b : a) % unit == 0;
        int8_t f = wefti_op_factor(r, "d", r->factors, unit,
                                   divides ? WEFTI_FACTOR_FREE : WEFTI_FACTOR_WHOLE);
        r->in[0][i] = f;
        r->out[0][o] = divides ? f : wefti_op_factor(r, "d", r->factors, b, WEFTI_FACTOR_WHOLE);
        if (!divides) r->factor[f].size = a;
        while (a != b) { /* the rest of the group */
            if (a < b) {
                a *= x->shape[++i];
                r->in[0][i] = wefti_op_factor(r, "d", r->factors, x->shape[i], WEFTI_FACTOR_WHOLE);
            } else {
                b *= y->shape[++o];
                r->out[0][o] = wefti_op_factor(r, "d", r->factors, y->shape[o], WEFTI_FACTOR_WHOLE);
            }
        }
        i++;
        o++;
    }
}

static weft_status localize_reshape(const weft_node *n, const wefti_split_rule *rule,
                                    const int64_t *begins, const int64_t *sizes,
                                    wefti_attr *attrs) {
    (void)begins;
    wefti_op_localize_shape(n, rule, sizes, attrs, WEFTI_AT_shape);
    return WEFT_OK;
}

static weft_status reference_reshape(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    int64_t count = weft_desc_elems(wefti_out(n, 0));
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][i];
    return WEFT_OK;
}

/* ---- transpose: y.shape[d] = x.shape[order[d]] ---- */

static weft_status infer_transpose(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *order = wefti_attr_ints(n, WEFTI_AT_order);
    WEFT_REQUIRE(order->count == x->rank, WEFT_E_SHAPE,
                 "transpose: the order names %d dimensions, %s has %d", order->count, TEXT(x),
                 x->rank);
    bool seen[WEFT_MAX_RANK] = {false};
    weft_desc y = {.dtype = x->dtype, .rank = x->rank};
    for (int d = 0; d < x->rank; d++) {
        WEFT_TRY(wefti_op_check_axis(n, order->v[d], x->rank));
        WEFT_REQUIRE(!seen[order->v[d]], WEFT_E_SHAPE,
                     "transpose: the order names dimension %lld twice", (long long)order->v[d]);
        seen[order->v[d]] = true;
        y.shape[d] = x->shape[order->v[d]];
    }
    *out = y;
    return WEFT_OK;
}

static weft_status grad_transpose(wefti_grad *g, const weft_node *n) {
    const wefti_ints *order = wefti_attr_ints(n, WEFTI_AT_order);
    int inverse[WEFT_MAX_RANK];
    for (int d = 0; d < order->count; d++) inverse[order->v[d]] = d;
    wefti_grad_add(
        g, n, 0,
        weft_transpose(wefti_grad_graph(g), wefti_grad_of(g, n, 0), order->count, inverse));
    return WEFT_OK;
}

static weft_status split_transpose(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *order = wefti_attr_ints(n, WEFTI_AT_order);
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "d", x, 0, x->rank, WEFTI_FACTOR_FREE, f);
    wefti_op_assign(r->in[0], 0, f, 0, x->rank);
    for (int d = 0; d < x->rank; d++) r->out[0][d] = f[order->v[d]];
    return WEFT_OK;
}

static weft_status reference_transpose(const weft_node *n, const wefti_random *random,
                                       const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    const wefti_ints *order = wefti_attr_ints(n, WEFTI_AT_order);
    int64_t own[WEFT_MAX_RANK], strides[WEFT_MAX_RANK], count = weft_desc_elems(y);
    wefti_strides(x, own);
    for (int d = 0; d < y->rank; d++) strides[d] = own[order->v[d]];
    for (int64_t i = 0; i < count; i++) out[0][i] = in[0][wefti_op_offset(y, i, strides)];
    return WEFT_OK;
}

/* ---- slice, concat, split: blocks along an axis ---- */

/* Copies `size` steps of the axis from x at x_at to y at y_at. Each tensor is [outer, its size,
 * inner]. */
static void copy_block(const double *x, int64_t x_size, int64_t x_at, double *y, int64_t y_size,
                       int64_t y_at, int64_t outer, int64_t size, int64_t inner) {
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < size; k++)
            for (int64_t i = 0; i < inner; i++)
                y[(o * y_size + y_at + k) * inner + i] = x[(o * x_size + x_at + k) * inner + i];
}

static weft_status infer_slice(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis), begin = wefti_attr_int(n, WEFTI_AT_begin);
    int64_t end = wefti_attr_int(n, WEFTI_AT_end);
    WEFT_TRY(check_rank_at_least_1(n, axis));
    WEFT_REQUIRE(begin >= 0 && begin <= end && end <= x->shape[axis], WEFT_E_SHAPE,
                 "slice: [%lld, %lld) of dimension %lld of %s: it must lie in [0, %lld)",
                 (long long)begin, (long long)end, (long long)axis, TEXT(x),
                 (long long)x->shape[axis]);
    *out = *x;
    out->shape[axis] = end - begin;
    return WEFT_OK;
}

static weft_status grad_slice(wefti_grad *g, const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis);
    int64_t before[WEFT_MAX_RANK] = {0}, after[WEFT_MAX_RANK] = {0};
    before[axis] = wefti_attr_int(n, WEFTI_AT_begin);
    after[axis] = x->shape[axis] - wefti_attr_int(n, WEFTI_AT_end);
    wefti_grad_add(g, n, 0,
                   weft_pad(wefti_grad_graph(g), wefti_grad_of(g, n, 0), before, after, 0.0));
    return WEFT_OK;
}

/* Split rule of slice, concat and split: blocks along the axis, other dimensions free. */
static weft_status split_along(const weft_node *n, wefti_split_rule *r) {
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    const weft_desc *x = wefti_in(n, 0);
    for (int d = 0; d < x->rank; d++) {
        if (d == axis) {
            wefti_block_factor(n, d, r);
            continue;
        }
        int8_t f = wefti_op_factor(r, "d", d, x->shape[d], WEFTI_FACTOR_FREE);
        for (int i = 0; i < n->inputs; i++) r->in[i][d] = f;
        for (int o = 0; o < n->outputs; o++) r->out[o][d] = f;
    }
    return WEFT_OK;
}

/* Slice and split: each result is a block of x. */
static void result_blocks(const wefti_lowering *c, const weft_node *n, wefti_block *b) {
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t at = n->op == &weft_op_slice ? wefti_attr_int(n, WEFTI_AT_begin) : 0;
    for (int o = 0; o < n->outputs; o++) {
        b[o] = wefti_block_of(c, 0, o, axis, at);
        at += b[o].y;
    }
}

static weft_status lower_blocks(wefti_lowering *c, const weft_node *n) {
    weft_value fetched[WEFTI_MAX_OUT];
    wefti_interval have[WEFTI_MAX_OUT];
    wefti_block b[WEFTI_MAX_OUT];
    result_blocks(c, n, b);
    for (int o = 0; o < n->outputs; o++)
        fetched[o] = wefti_block_fetch(c, &b[o], wefti_lower_in(c, 0), &have[o]);
    for (int o = 0; o < n->outputs; o++)
        wefti_lower_out(c, o,
                        wefti_window_crop(wefti_lower_graph(c), fetched[o], b[o].dim, have[o],
                                          wefti_block_extent(c, &b[o]), 0.0));
    return WEFT_OK;
}

static void exchanged_blocks(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    wefti_block b[WEFTI_MAX_OUT];
    result_blocks(c, n, b);
    if (b[0].factor >= 0) bytes[b[0].factor] = wefti_block_bytes(c, n->outputs, b, 0);
}

static weft_status reference_slice(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    copy_block(in[0], x->shape[axis], wefti_attr_int(n, WEFTI_AT_begin), out[0], y->shape[axis], 0,
               wefti_op_count(x, 0, axis), y->shape[axis], wefti_op_count(x, axis + 1, x->rank));
    return WEFT_OK;
}

static weft_status infer_concat(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis);
    weft_desc y = *wefti_in(n, 0);
    WEFT_TRY(check_rank_at_least_1(n, axis));
    for (int i = 1; i < n->inputs; i++) {
        const weft_desc *x = wefti_in(n, i);
        WEFT_REQUIRE(x, WEFT_E_ARG, "concat: value %d of %d is empty", i, n->inputs);
        bool fits = x->rank == y.rank && x->dtype == y.dtype;
        for (int d = 0; fits && d < y.rank; d++) fits = d == axis || x->shape[d] == y.shape[d];
        WEFT_REQUIRE(
            fits, WEFT_E_SHAPE,
            "concat along %lld: input %d is %s and input 0 is %s; dtypes and all other dimensions "
            "must be equal",
            (long long)axis, i, TEXT(x), TEXT(wefti_in(n, 0)));
        WEFT_REQUIRE(!wefti_add_overflows(y.shape[axis], x->shape[axis], &y.shape[axis]),
                     WEFT_E_SHAPE, "concat along %lld: with input %d, %s, it grows beyond 64 bits",
                     (long long)axis, i, TEXT(x));
    }
    *out = y;
    return WEFT_OK;
}

static weft_status grad_concat(wefti_grad *g, const weft_node *n) {
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t at = 0;
    for (int i = 0; i < n->inputs; i++) {
        int64_t size = wefti_in(n, i)->shape[axis];
        if (wefti_grad_wanted(g, n, i))
            wefti_grad_add(
                g, n, i,
                weft_slice(wefti_grad_graph(g), wefti_grad_of(g, n, 0), axis, at, at + size));
        at += size;
    }
    return WEFT_OK;
}

static weft_status reference_concat(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *y = wefti_out(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t at = 0;
    for (int i = 0; i < n->inputs; i++) {
        int64_t size = wefti_in(n, i)->shape[axis];
        copy_block(in[i], size, 0, out[0], y->shape[axis], at, wefti_op_count(y, 0, axis), size,
                   wefti_op_count(y, axis + 1, y->rank));
        at += size;
    }
    return WEFT_OK;
}

/* Assembles a piece of the result from the parts that it takes of each input. */
static void input_blocks(const wefti_lowering *c, const weft_node *n, wefti_block *b) {
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t at = 0;
    for (int i = 0; i < n->inputs; i++) {
        b[i] = wefti_block_of(c, i, 0, axis, -at);
        at += b[i].x;
    }
}

static weft_status lower_concat(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis), count = 0;
    weft_value fetched[WEFTI_MAX_IN], pieces[WEFTI_MAX_IN];
    wefti_interval have[WEFTI_MAX_IN];
    wefti_block b[WEFTI_MAX_IN];
    input_blocks(c, n, b);
    for (int i = 0; i < n->inputs; i++)
        fetched[i] = wefti_block_fetch(c, &b[i], wefti_lower_in(c, i), &have[i]);
    for (int i = 0; i < n->inputs; i++) {
        wefti_interval taken = wefti_block_taken(c, &b[i]);
        if (taken.end > taken.begin)
            pieces[count++] = wefti_window_crop(g, fetched[i], axis, have[i], taken, 0.0);
    }
    weft_value y = count ? weft_concat(g, count, pieces, axis)
                         : weft_constant(g, wefti_lower_out_desc(c, 0), 0.0);
    wefti_lower_out(c, 0, y);
    return WEFT_OK;
}

static void exchanged_concat(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    wefti_block b[WEFTI_MAX_IN];
    int f = wefti_lower_rule(c)->out[0][wefti_attr_int(n, WEFTI_AT_axis)];
    input_blocks(c, n, b);
    if (f >= 0) bytes[f] = wefti_block_bytes(c, n->inputs, b, 0);
}

static weft_status infer_split(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    int64_t axis = wefti_attr_int(n, WEFTI_AT_axis), parts = wefti_attr_int(n, WEFTI_AT_parts);
    WEFT_TRY(check_rank_at_least_1(n, axis));
    WEFT_REQUIRE(parts >= 1 && parts <= WEFTI_MAX_OUT, WEFT_E_ARG,
                 "split: %lld parts; there must be 1 to %d", (long long)parts, WEFTI_MAX_OUT);
    WEFT_REQUIRE(x->shape[axis] % parts == 0, WEFT_E_SHAPE,
                 "split: dimension %lld of %s does not divide into %lld equal parts",
                 (long long)axis, TEXT(x), (long long)parts);
    for (int p = 0; p < parts; p++) {
        out[p] = *x;
        out[p].shape[axis] = x->shape[axis] / parts;
    }
    *out_count = (int)parts;
    return WEFT_OK;
}

static weft_status grad_split(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value parts[WEFTI_MAX_OUT];
    for (int o = 0; o < n->outputs; o++) {
        parts[o] = wefti_grad_of(g, n, o);
        if (parts[o].id < 0) parts[o] = weft_constant(b, *wefti_out(n, o), 0.0);
    }
    wefti_grad_add(g, n, 0,
                   weft_concat(b, n->outputs, parts, (int)wefti_attr_int(n, WEFTI_AT_axis)));
    return WEFT_OK;
}

static weft_status reference_split(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int axis = (int)wefti_attr_int(n, WEFTI_AT_axis);
    int64_t size = x->shape[axis] / n->outputs;
    for (int o = 0; o < n->outputs; o++)
        copy_block(in[0], x->shape[axis], o * size, out[o], size, 0, wefti_op_count(x, 0, axis),
                   size, wefti_op_count(x, axis + 1, x->rank));
    return WEFT_OK;
}

/* ---- pad ---- */

static weft_status infer_pad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    const wefti_ints *before = wefti_attr_ints(n, WEFTI_AT_before),
                     *after = wefti_attr_ints(n, WEFTI_AT_after);
    WEFT_REQUIRE(before->count == x->rank && after->count == x->rank, WEFT_E_SHAPE,
                 "pad: %d sizes before and %d after are given for %s, which needs %d of each",
                 before->count, after->count, TEXT(x), x->rank);
    weft_desc y = *x;
    for (int d = 0; d < x->rank; d++) {
        WEFT_REQUIRE(before->v[d] >= 0 && after->v[d] >= 0, WEFT_E_SHAPE,
                     "pad: %lld before and %lld after dimension %d: sizes must not be negative",
                     (long long)before->v[d], (long long)after->v[d], d);
        bool overflow = wefti_add_overflows(y.shape[d], before->v[d], &y.shape[d]) ||
                        wefti_add_overflows(y.shape[d], after->v[d], &y.shape[d]);
        WEFT_REQUIRE(!overflow, WEFT_E_SHAPE, "pad: dimension %d of %s grows beyond 64 bits", d,
                     TEXT(x));
    }
    WEFT_TRY(wefti_desc_check(&y));
    *out = y;
    return WEFT_OK;
}

static weft_status grad_pad(wefti_grad *g, const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    const wefti_ints *before = wefti_attr_ints(n, WEFTI_AT_before);
    weft_value dx = wefti_grad_of(g, n, 0);
    for (int d = 0; d < x->rank; d++)
        if (x->shape[d] != y->shape[d])
            dx = weft_slice(wefti_grad_graph(g), dx, d, before->v[d], before->v[d] + x->shape[d]);
    wefti_grad_add(g, n, 0, dx);
    return WEFT_OK;
}

static weft_status split_pad(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    for (int d = 0; d < x->rank; d++)
        if (x->shape[d] == y->shape[d])
            r->in[0][d] = r->out[0][d] = wefti_op_factor(r, "d", d, x->shape[d], WEFTI_FACTOR_FREE);
        else
            wefti_block_factor(n, d, r);
    return WEFT_OK;
}

/* In a split dimension, a piece fetches its part of x and adds the pad value around it. Other
 * dimensions are padded as usual. */
static weft_status lower_pad(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value v = wefti_lower_in(c, 0);
    wefti_ints before = *wefti_attr_ints(n, WEFTI_AT_before),
               after = *wefti_attr_ints(n, WEFTI_AT_after);
    double value = wefti_attr_float(n, WEFTI_AT_value);
    bool more = false;
    for (int d = 0; d < before.count; d++) {
        wefti_block b = wefti_block_of(c, 0, 0, d, -before.v[d]);
        if (b.parts > 1 && (before.v[d] || after.v[d])) {
            wefti_interval have;
            v = wefti_block_fetch(c, &b, v, &have);
            v = wefti_window_crop(g, v, d, have, wefti_block_extent(c, &b), value);
            before.v[d] = after.v[d] = 0;
        }
        more = more || before.v[d] || after.v[d];
    }
    if (more) v = weft_pad(g, v, before.v, after.v, value);
    wefti_lower_out(c, 0, v);
    return WEFT_OK;
}

static void exchanged_pad(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    const wefti_ints *before = wefti_attr_ints(n, WEFTI_AT_before),
                     *after = wefti_attr_ints(n, WEFTI_AT_after);
    for (int d = 0; d < before->count; d++) {
        wefti_block b = wefti_block_of(c, 0, 0, d, -before->v[d]);
        if (b.parts > 1 && (before->v[d] || after->v[d]))
            bytes[b.factor] = wefti_block_bytes(c, 1, &b, 0);
    }
}

static weft_status reference_pad(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    const wefti_ints *before = wefti_attr_ints(n, WEFTI_AT_before);
    int64_t strides[WEFT_MAX_RANK], shift = 0;
    int64_t count = weft_desc_elems(x), padded = weft_desc_elems(y);
    wefti_strides(y, strides);
    for (int d = 0; d < x->rank; d++) shift += before->v[d] * strides[d];
    for (int64_t i = 0; i < padded; i++) out[0][i] = wefti_attr_float(n, WEFTI_AT_value);
    for (int64_t i = 0; i < count; i++) out[0][shift + wefti_op_offset(x, i, strides)] = in[0][i];
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_attr attrs_reshape[] = {ATTR_INTS(shape, 0, {0}), {0}};
static const wefti_attr attrs_transpose[] = {ATTR_INTS(order, 0, {0}), {0}};
static const wefti_attr attrs_slice[] = {WEFTI_I(axis, 0), WEFTI_I(begin, 0), WEFTI_I(end, 0), {0}};
static const wefti_attr attrs_concat[] = {WEFTI_I(axis, 0), {0}};
static const wefti_attr attrs_split[] = {WEFTI_I(axis, 0), WEFTI_I(parts, 1), {0}};
static const wefti_attr attrs_pad[] = {
    ATTR_INTS(before, 0, {0}), ATTR_INTS(after, 0, {0}), WEFTI_F(value, 0.0), {0}};

static const wefti_op_case cases_reshape[] = {CASE("shape=(15)", "f32[3,5]"),
                                              CASE("shape=(2,3,4)", "bf16[6,4]"),
                                              CASE("shape=(4,6)", "f32[4,2,3]"),
                                              CASE("shape=(6,4)", "f32[4,6]"),
                                              CASE("shape=(2,1,3)", "f32[2,3,1]"),
                                              CASE("shape=()", "f32[1,1]"),
                                              CASE("shape=(0,7)", "f32[3,0]"),
                                              CASE("shape=(4,2,3)", "i32[8,3]<9"),
                                              CASES_END};
static const wefti_op_case cases_transpose[] = {CASE("order=(1,0)", "f32[3,5]"),
                                                CASE("order=(0,2,1,3)", "bf16[2,3,4,5]"),
                                                CASE("order=(2,0,1)", "f32[2,1,7]"),
                                                CASE("order=()", "f32[]"),
                                                CASE("order=(1,0)", "f32[0,3]"),
                                                CASE("order=(1,0)", "i32[2,3]<5"),
                                                CASES_END};
static const wefti_op_case cases_slice[] = {
    CASE("axis=1 begin=1 end=4", "f32[3,5]"),   CASE("axis=0 begin=0 end=3", "bf16[3,5]"),
    CASE("axis=1 begin=2 end=3", "f32[2,7,3]"), CASE("axis=0 begin=2 end=2", "f32[3]"),
    CASE("axis=0 begin=1 end=2", "f32[3,0]"),   CASES_END};
static const wefti_op_case cases_concat[] = {CASE("axis=1", "f32[3,5]", "f32[3,2]"),
                                             CASE("axis=0", "bf16[3,5]", "bf16[1,5]", "bf16[4,5]"),
                                             CASE("axis=1", "f32[2,3,2]", "f32[2,3,2]"),
                                             CASE("axis=0", "f32[3]"),
                                             CASE("axis=0", "f32[0,2]", "f32[3,2]"),
                                             CASES_END};
static const wefti_op_case cases_split[] = {
    CASE("axis=1 parts=3", "f32[3,6]"),   CASE("axis=0 parts=2", "bf16[4,5]"),
    CASE("axis=2 parts=3", "f32[2,1,3]"), CASE("axis=0 parts=1", "f32[3]"),
    CASE("axis=1 parts=2", "f32[0,4]"),   CASES_END};
static const wefti_op_case cases_pad[] = {CASE("before=(1,0) after=(2,0) value=1.5", "f32[3,5]"),
                                          CASE("before=(0,2,0) after=(0,0,1)", "bf16[2,3,1]"),
                                          CASE("before=() after=()", "f32[]"),
                                          CASE("before=(1) after=(1)", "f32[0]"), CASES_END};

/* ---- definitions ---- */

const weft_op_def weft_op_reshape = {
    WEFTI_OP_NAME(reshape),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_RESHAPE | WEFTI_OP_CHEAP | WEFTI_OP_LINEAR,
    .attrs = attrs_reshape,
    .infer = infer_reshape,
    .grad = grad_reshape,
    .split = split_reshape,
    .localize = localize_reshape,
    .cost = wefti_op_cost_view,
    .reference = reference_reshape,
    .cases = cases_reshape,
};

const weft_op_def weft_op_transpose = {
    WEFTI_OP_NAME(transpose),         .min_inputs = 1,          .max_inputs = 1,
    .flags = WEFTI_OP_LINEAR,         .attrs = attrs_transpose, .infer = infer_transpose,
    .grad = grad_transpose,           .split = split_transpose, .cost = wefti_op_cost_move,
    .reference = reference_transpose, .cases = cases_transpose,
};

const weft_op_def weft_op_slice = {
    WEFTI_OP_NAME(slice),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_CHEAP | WEFTI_OP_LINEAR,
    .attrs = attrs_slice,
    .infer = infer_slice,
    .grad = grad_slice,
    .split = split_along,
    .cost = wefti_op_cost_move,
    .reference = reference_slice,
    .cases = cases_slice,
    .lower = lower_blocks,
    .exchanged = exchanged_blocks,
    .lowers = 1u << WEFTI_FACTOR_HALO,
};

const weft_op_def weft_op_concat = {
    WEFTI_OP_NAME(concat),         .min_inputs = 1,
    .max_inputs = WEFTI_MAX_IN,    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs_concat,         .infer = infer_concat,
    .grad = grad_concat,           .split = split_along,
    .cost = wefti_op_cost_move,    .reference = reference_concat,
    .cases = cases_concat,         .lower = lower_concat,
    .exchanged = exchanged_concat, .lowers = 1u << WEFTI_FACTOR_HALO,
};

const weft_op_def weft_op_chunk = {
    WEFTI_OP_NAME(chunk),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_CHEAP | WEFTI_OP_LINEAR,
    .attrs = attrs_split,
    .infer = infer_split,
    .grad = grad_split,
    .split = split_along,
    .cost = wefti_op_cost_move,
    .reference = reference_split,
    .cases = cases_split,
    .lower = lower_blocks,
    .exchanged = exchanged_blocks,
    .lowers = 1u << WEFTI_FACTOR_HALO,
};

/* Counts the write of the padding, but no read. */
static void cost_pad(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0, .bytes = wefti_node_bytes(n)};
}

const weft_op_def weft_op_pad = {
    WEFTI_OP_NAME(pad),
    .min_inputs = 1,
    .max_inputs = 1,
    .attrs = attrs_pad,
    .infer = infer_pad,
    .grad = grad_pad,
    .split = split_pad,
    .cost = cost_pad,
    .reference = reference_pad,
    .cases = cases_pad,
    .lower = lower_pad,
    .exchanged = exchanged_pad,
    .lowers = 1u << WEFTI_FACTOR_HALO,
};

/* ---- builders ---- */

weft_value weft_reshape(weft_graph *g, weft_value x, int rank, const int64_t *shape) {
    weft_desc d = weft_value_desc(g, x);
    wefti_ints to = wefti_op_ints(rank, shape);
    if (rank < 0 || rank > WEFT_MAX_RANK) {
        wefti_graph_fail(g,
                         WEFT_RAISE(WEFT_E_SHAPE, "reshape: %d dimensions; there must be 0 to %d",
                                    rank, WEFT_MAX_RANK));
        return WEFT_NO_VALUE;
    }
    int open = -1;
    int64_t known = 1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] == -1 && open < 0)
            open = i; /* a second -1 stays and is refused as a negative size */
        else if (wefti_mul_overflows(known, shape[i], &known))
            known = 0;
    }
    /* Left at -1, hence refused, when nothing fits. */
    if (open >= 0 && d.rank >= 0 && known > 0 && weft_desc_elems(&d) % known == 0)
        to.v[open] = weft_desc_elems(&d) / known;
    return wefti_graph_add1(g, &weft_op_reshape, 1, &x, 1, (wefti_attr[]){WEFTI_N(shape, to)});
}

weft_value weft_transpose(weft_graph *g, weft_value x, int rank, const int *order) {
    wefti_ints axes = {0};
    int known = weft_value_desc(g, x).rank;
    if (rank < 0 || rank > WEFT_MAX_RANK) {
        wefti_graph_fail(g,
                         WEFT_RAISE(WEFT_E_SHAPE, "transpose: %d dimensions; there must be 0 to %d",
                                    rank, WEFT_MAX_RANK));
        return WEFT_NO_VALUE;
    }
    for (int i = 0; i < rank; i++) axes.v[axes.count++] = wefti_op_axis(order[i], known);
    return wefti_graph_add1(g, &weft_op_transpose, 1, &x, 1, (wefti_attr[]){WEFTI_N(order, axes)});
}

weft_value weft_slice(weft_graph *g, weft_value x, int axis, int64_t begin, int64_t end) {
    int64_t at = wefti_op_axis(axis, weft_value_desc(g, x).rank);
    return wefti_graph_add1(
        g, &weft_op_slice, 1, &x, 3,
        (wefti_attr[]){WEFTI_I(axis, at), WEFTI_I(begin, begin), WEFTI_I(end, end)});
}

weft_value weft_concat(weft_graph *g, int count, const weft_value *x, int axis) {
    if (count < 1 || count > WEFTI_MAX_IN) {
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_ARG, "concat: %d values; there must be 1 to %d",
                                       count, WEFTI_MAX_IN));
        return WEFT_NO_VALUE;
    }
    for (int i = 0; i < count; i++)
        if (x[i].id < 0) { /* trailing ones would pass for absent optional inputs */
            wefti_graph_fail(g,
                             WEFT_RAISE(WEFT_E_ARG, "concat: value %d of %d is empty", i, count));
            return WEFT_NO_VALUE;
        }
    int64_t at = wefti_op_axis(axis, weft_value_desc(g, x[0]).rank);
    return wefti_graph_add1(g, &weft_op_concat, count, x, 1, (wefti_attr[]){WEFTI_I(axis, at)});
}

void weft_split(weft_graph *g, weft_value x, int axis, int parts, weft_value *out) {
    if (parts < 1 || parts > WEFTI_MAX_OUT) {
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_ARG, "split: %d parts; there must be 1 to %d", parts,
                                       WEFTI_MAX_OUT));
        for (int p = 0; p < parts && p < WEFTI_MAX_OUT; p++) out[p] = WEFT_NO_VALUE;
        return;
    }
    int64_t at = wefti_op_axis(axis, weft_value_desc(g, x).rank);
    wefti_graph_add(g, &weft_op_chunk, 1, &x, 2,
                    (wefti_attr[]){WEFTI_I(axis, at), WEFTI_I(parts, parts)}, parts, out);
}

weft_value weft_pad(weft_graph *g, weft_value x, const int64_t *before, const int64_t *after,
                    double value) {
    int rank = weft_value_desc(g, x).rank;
    return wefti_graph_add1(g, &weft_op_pad, 1, &x, 3,
                            (wefti_attr[]){WEFTI_N(before, wefti_op_ints(rank, before)),
                                           WEFTI_N(after, wefti_op_ints(rank, after)),
                                           WEFTI_F(value, value)});
}
