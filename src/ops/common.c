/* Helpers for the op files: see common.h. */
#include "ops/common.h"

#include <stdio.h>

/* ---- checks ---- */

weft_status wefti_op_check_float(const weft_node *n, int i) {
    const weft_desc *d = wefti_in(n, i);
    WEFT_REQUIRE(wefti_dtype_is_float(d->dtype), WEFT_E_ARG,
                 "%s: input %d is %s; it must be floating point (use cast)", n->op->name, i,
                 TEXT(d));
    return WEFT_OK;
}

weft_status wefti_op_check_i32(const weft_node *n, int i) {
    const weft_desc *d = wefti_in(n, i);
    WEFT_REQUIRE(d->dtype == WEFT_I32, WEFT_E_ARG, "%s: input %d is %s; it must be i32",
                 n->op->name, i, TEXT(d));
    return WEFT_OK;
}

weft_status wefti_op_check_rank(const weft_node *n, int i, int low, int high) {
    const weft_desc *d = wefti_in(n, i);
    if (low == high)
        WEFT_REQUIRE(d->rank == low, WEFT_E_SHAPE, "%s: input %d is %s; it must have %d dimensions",
                     n->op->name, i, TEXT(d), low);
    WEFT_REQUIRE(d->rank >= low && d->rank <= high, WEFT_E_SHAPE,
                 "%s: input %d is %s; it must have %d to %d dimensions", n->op->name, i, TEXT(d),
                 low, high);
    return WEFT_OK;
}

weft_status wefti_op_check_shape(const weft_node *n, int i, int rank, const int64_t *shape,
                                 const char *what) {
    const weft_desc *d = wefti_in(n, i);
    bool same = d->rank == rank;
    for (int k = 0; same && k < rank; k++) same = d->shape[k] == shape[k];
    if (same) return WEFT_OK;
    weft_desc want = wefti_op_desc(d->dtype, rank, shape);
    WEFT_FAIL(WEFT_E_SHAPE, "%s: input %d is %s; it must be %s: %s", n->op->name, i, TEXT(d),
              TEXT(&want), what);
}

weft_status wefti_op_check_same_shape(const weft_node *n, int i, int j) {
    const weft_desc *a = wefti_in(n, i), *b = wefti_in(n, j);
    bool same = a->rank == b->rank;
    for (int k = 0; same && k < a->rank; k++) same = a->shape[k] == b->shape[k];
    WEFT_REQUIRE(same, WEFT_E_SHAPE,
                 "%s: input %d is %s and input %d is %s; their shapes must be equal", n->op->name,
                 i, TEXT(a), j, TEXT(b));
    return WEFT_OK;
}

weft_status wefti_op_check_axis(const weft_node *n, int64_t axis, int rank) {
    WEFT_REQUIRE(
        axis >= 0 && axis < rank, WEFT_E_SHAPE,
        "%s: axis %lld of a tensor with %d dimensions: it must be in [0, %d) (or negative, from "
        "the end, in the calls of weft/ops.h)",
        n->op->name, (long long)axis, rank, rank);
    return WEFT_OK;
}

weft_status wefti_op_check_mix(const weft_node *n, int first) {
    const weft_desc *half = NULL, *any = NULL;
    for (int i = first; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        if (!d || !wefti_dtype_is_float(d->dtype)) continue;
        bool is_half = d->dtype == WEFT_BF16 || d->dtype == WEFT_F16;
        WEFT_REQUIRE(!any || (any->dtype == WEFT_F64) == (d->dtype == WEFT_F64), WEFT_E_ARG,
                     "%s: %s and %s do not mix; cast one", n->op->name, TEXT(any), TEXT(d));
        WEFT_REQUIRE(!half || !is_half || half->dtype == d->dtype, WEFT_E_ARG,
                     "%s: %s and %s do not mix; cast one", n->op->name, TEXT(half), TEXT(d));
        any = d;
        if (is_half) half = d;
    }
    return WEFT_OK;
}

weft_status wefti_op_check_dtype(const weft_node *n, int64_t dtype) {
    WEFT_REQUIRE(dtype >= 0 && dtype < WEFT_DTYPES, WEFT_E_ARG, "%s: unknown dtype %lld",
                 n->op->name, (long long)dtype);
    return WEFT_OK;
}

weft_status wefti_op_check_place(const weft_node *n, const weft_desc *x) {
    const wefti_ints *whole = wefti_attr_ints(n, WEFTI_AT_whole),
                     *begin = wefti_attr_ints(n, WEFTI_AT_begin);
    if (whole->count == 0 && begin->count == 0) return WEFT_OK;
    WEFT_REQUIRE(whole->count == x->rank && begin->count == x->rank, WEFT_E_SHAPE,
                 "%s: %s is a piece of a tensor: whole and begin must have %d sizes, not %d and %d",
                 n->op->name, TEXT(x), x->rank, whole->count, begin->count);
    weft_desc all = wefti_op_desc(x->dtype, whole->count, whole->v);
    WEFT_TRY(wefti_desc_check(&all));
    for (int d = 0; d < x->rank; d++)
        WEFT_REQUIRE(begin->v[d] >= 0 && begin->v[d] <= whole->v[d] - x->shape[d], WEFT_E_SHAPE,
                     "%s: %s cannot begin at %lld along dimension %d of %s", n->op->name, TEXT(x),
                     (long long)begin->v[d], d, TEXT(&all));
    return WEFT_OK;
}

/* ---- descriptors ---- */

weft_dtype wefti_op_result_dtype(const weft_node *n, int first) {
    for (int i = first; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        if (d && wefti_dtype_is_float(d->dtype) && !wefti_in_is_param(n, i)) return d->dtype;
    }
    return wefti_in(n, first)->dtype;
}

weft_dtype wefti_op_statistics_dtype(weft_dtype dtype) {
    return dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

weft_desc wefti_op_desc(weft_dtype dtype, int rank, const int64_t *shape) {
    return weft_desc_of(dtype, rank, shape);
}

weft_desc wefti_op_retyped(const weft_desc *desc, weft_dtype dtype) {
    weft_desc d = *desc;
    d.dtype = dtype;
    return d;
}

weft_status wefti_op_desc_of_attr(const weft_node *n, wefti_attr_id id, weft_dtype dtype,
                                  weft_desc *out) {
    const wefti_ints *shape = wefti_attr_ints(n, id);
    weft_desc d = wefti_op_desc(dtype, shape->count, shape->v);
    weft_status status = wefti_desc_check(&d);
    if (status < 0)
        return wefti_prefix(status, "%s: %s %s", n->op->name, wefti_attr_name(id), TEXT(&d));
    *out = d;
    return WEFT_OK;
}

int64_t wefti_op_count(const weft_desc *desc, int from, int to) {
    int64_t count = 1;
    for (int d = from; d < to; d++) count *= desc->shape[d];
    return count;
}

wefti_ints wefti_op_ints(int count, const int64_t *values) {
    wefti_ints r = {.count = count < 0 ? 0 : count > WEFT_MAX_RANK ? WEFT_MAX_RANK : count};
    for (int i = 0; i < r.count; i++) r.v[i] = values[i];
    return r;
}

wefti_ints wefti_op_shape_ints(const weft_desc *desc) {
    return wefti_op_ints(desc->rank, desc->shape);
}

bool wefti_op_axes_have(const wefti_ints *axes, int axis) {
    for (int i = 0; i < axes->count; i++)
        if (axes->v[i] == axis) return true;
    return false;
}

int64_t wefti_op_axis(int axis, int rank) {
    return axis < 0 ? (int64_t)axis + rank : axis;
}

/* ---- broadcast operands ---- */

void wefti_op_broadcast_strides(const weft_desc *desc, const weft_desc *over,
                                int64_t out[WEFT_MAX_RANK]) {
    int64_t own[WEFT_MAX_RANK];
    wefti_strides(desc, own);
    for (int d = 0; d < over->rank; d++) {
        int k = d - (over->rank - desc->rank);
        out[d] = k < 0 || desc->shape[k] == 1 ? 0 : own[k];
    }
}

int64_t wefti_op_offset(const weft_desc *over, int64_t flat, const int64_t strides[WEFT_MAX_RANK]) {
    int64_t offset = 0;
    for (int d = over->rank - 1; d >= 0; d--) {
        offset += flat % over->shape[d] * strides[d];
        flat /= over->shape[d];
    }
    return offset;
}

/* ---- split rules ---- */

int8_t wefti_op_factor(wefti_split_rule *r, const char *name, int index, int64_t size,
                       wefti_factor_kind kind) {
    if (size == 1) return -1;
    char text[12];
    if (index < 0)
        (void)snprintf(text, sizeof text, "%s", name);
    else
        (void)snprintf(text, sizeof text, "%.6s%d", name, index % 1000);
    return (int8_t)wefti_rule_factor(r, text, size, kind);
}

void wefti_op_factors(wefti_split_rule *r, const char *name, const weft_desc *desc, int from,
                      int to, wefti_factor_kind kind, int8_t f[WEFT_MAX_RANK]) {
    for (int d = from; d < to; d++) f[d] = wefti_op_factor(r, name, d - from, desc->shape[d], kind);
}

void wefti_op_assign(int8_t *dims, int at, const int8_t *f, int from, int count) {
    for (int k = 0; k < count; k++) dims[at + k] = f[from + k];
}

weft_status wefti_op_split_elementwise(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *out = wefti_out(n, 0);
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "d", out, 0, out->rank, WEFTI_FACTOR_FREE, f);
    wefti_op_assign(r->out[0], 0, f, 0, out->rank);
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *in = wefti_in(n, i);
        if (!in) continue;
        int lead = out->rank - in->rank;
        for (int d = 0; d < in->rank; d++)
            r->in[i][d] = in->shape[d] == out->shape[lead + d] ? f[lead + d] : -1;
    }
    return WEFT_OK;
}

wefti_attr *wefti_op_attr(const weft_node *n, wefti_attr *attrs, wefti_attr_id id) {
    int k = 0;
    while (n->op->attrs[k].id != id) k++;
    return &attrs[k];
}

void wefti_op_localize_shape(const weft_node *n, const wefti_split_rule *rule, const int64_t *sizes,
                             wefti_attr *attrs, wefti_attr_id id) {
    const weft_desc *out = wefti_out(n, 0);
    wefti_attr *shape = wefti_op_attr(n, attrs, id);
    for (int d = 0; d < out->rank; d++) {
        int f = rule->out[0][d];
        if (f < 0 || rule->factor[f].kind == WEFTI_FACTOR_HALO) continue;
        /* a reshape may count several elements as one unit */
        int64_t size = rule->factor[f].size;
        shape->ints.v[d] = size ? sizes[f] * (out->shape[d] / size) : 0;
    }
}

void wefti_op_localize_place(const weft_node *n, const weft_desc *x,
                             const int64_t shift[WEFT_MAX_RANK], wefti_attr *attrs) {
    wefti_attr *whole = wefti_op_attr(n, attrs, WEFTI_AT_whole),
               *begin = wefti_op_attr(n, attrs, WEFTI_AT_begin);
    wefti_attr *stream = wefti_op_attr(n, attrs, WEFTI_AT_stream);
    if (whole->ints.count != x->rank) {
        whole->ints = wefti_op_shape_ints(x);
        begin->ints = (wefti_ints){.count = x->rank};
    }
    for (int d = 0; d < x->rank; d++) begin->ints.v[d] += shift[d];
    /* The body of a piece numbers its nodes differently, so the stream is fixed here. */
    if (stream->i < 0) stream->i = n->stream;
}

/* ---- cost ---- */

void wefti_op_cost_move(const weft_node *n, wefti_cost *out) {
    double bytes = 0;
    for (int o = 0; o < n->outputs; o++) {
        const weft_desc *y = wefti_out(n, o);
        double elements = (double)weft_desc_elems(y);
        bytes += elements * (double)weft_dtype_bytes(wefti_in(n, 0)->dtype);
        bytes += elements * (double)weft_dtype_bytes(y->dtype);
    }
    for (int i = 1; i < n->inputs && n->op->max_inputs == 2; i++)
        bytes += (double)weft_desc_bytes(wefti_in(n, i)); /* the indices */
    *out = (wefti_cost){.flops = 0, .bytes = bytes};
}

void wefti_op_cost_each(const weft_node *n, int i, double flops, wefti_cost *out) {
    *out = (wefti_cost){.flops = flops * (double)weft_desc_elems(wefti_in(n, i)),
                        .bytes = wefti_node_bytes(n)};
}

void wefti_op_cost_view(const weft_node *n, wefti_cost *out) {
    (void)n;
    *out = (wefti_cost){0};
}

/* ---- adding nodes ---- */

weft_value wefti_op_add1(weft_graph *g, const weft_op_def *op, weft_value x) {
    return wefti_graph_add1(g, op, 1, &x, 0, NULL);
}

weft_value wefti_op_add2(weft_graph *g, const weft_op_def *op, weft_value a, weft_value b) {
    return wefti_graph_add1(g, op, 2, (weft_value[]){a, b}, 0, NULL);
}

weft_value wefti_op_sum_to(weft_graph *g, weft_value x, const weft_desc *to) {
    return wefti_graph_add1(
        g, &weft_op_sum_to, 1, &x, 2,
        (wefti_attr[]){WEFTI_N(shape, wefti_op_shape_ints(to)), WEFTI_I(dtype, to->dtype)});
}

weft_value wefti_op_broadcast_to(weft_graph *g, weft_value x, const weft_desc *to) {
    return wefti_graph_add1(g, &weft_op_broadcast_to, 1, &x, 1,
                            (wefti_attr[]){WEFTI_N(shape, wefti_op_shape_ints(to))});
}

weft_value wefti_op_scalar(weft_graph *g, weft_value like, double value) {
    weft_desc d = weft_value_desc(g, like);
    return weft_constant(g, wefti_op_desc(d.dtype, 0, NULL), value);
}

/* ---- lowering ---- */

uint32_t wefti_op_factors_of(const wefti_lowering *c, wefti_factor_kind kind) {
    const wefti_split_rule *r = wefti_lower_rule(c);
    uint32_t mask = 0;
    for (int f = 0; f < r->factors; f++)
        if (r->factor[f].kind == kind) mask |= 1u << f;
    return mask;
}

weft_value wefti_op_sum_over(wefti_lowering *c, weft_value x, const wefti_ints *axes,
                             uint32_t factors) {
    weft_value sum = wefti_graph_add1(wefti_lower_graph(c), &weft_op_sum, 1, &x, 2,
                                      (wefti_attr[]){WEFTI_N(axes, *axes), WEFTI_I(keep, 1)});
    return wefti_lower_all_reduce(c, sum, factors, WEFTI_REDUCE_SUM);
}

weft_value wefti_op_precise(weft_graph *g, weft_value x) {
    return weft_cast(g, x, wefti_op_statistics_dtype(weft_value_desc(g, x).dtype));
}

weft_value wefti_op_column(weft_graph *g, weft_value v) {
    weft_desc d = weft_value_desc(g, v);
    if (d.rank < 0 || d.rank == WEFT_MAX_RANK) return v;
    d.shape[d.rank++] = 1;
    return weft_reshape(g, v, d.rank, d.shape);
}

typedef struct candidates {
    const int64_t *counts;
    int32_t parts;
} candidates;

static int64_t counted(const candidates *a, int32_t end) {
    int64_t sum = 0;
    for (int32_t p = 0; p < end; p++) sum += a->counts[p];
    return sum;
}

static void own_candidates(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                           int64_t *end) {
    (void)c;
    *begin = counted(context, part);
    *end = counted(context, part + 1);
}

static void all_candidates(const wefti_lowering *c, int32_t part, void *context, int64_t *begin,
                           int64_t *end) {
    const candidates *a = context;
    (void)c;
    (void)part;
    *begin = 0;
    *end = counted(a, a->parts);
}

weft_value wefti_op_candidates(wefti_lowering *c, weft_value v, int factor, const int64_t *counts) {
    candidates a = {counts, wefti_lower_parts(c, factor)};
    int last = weft_value_desc(wefti_lower_graph(c), v).rank - 1;
    return wefti_lower_exchange_as(c, WEFTI_TRANSFER_ALL_GATHER, v, last, factor, own_candidates,
                                   all_candidates, &a);
}

weft_value wefti_op_pick(weft_graph *g, weft_value v, weft_value place, int64_t limit) {
    static const int64_t exact = (int64_t)1 << 24; /* f32 represents all integers up to this one */
    weft_dtype dtype = limit > exact ? WEFT_F64 : WEFT_F32;
    weft_desc d = weft_value_desc(g, v), p = weft_value_desc(g, place);
    if (d.rank < 1 || p.rank < 0 || d.rank == WEFT_MAX_RANK) return WEFT_NO_VALUE;
    int64_t n = d.shape[d.rank - 1];
    weft_value here = weft_one_hot(g, place, n, dtype); /* [..., k, n] */
    d.shape[d.rank - 1] = 1;
    d.shape[d.rank++] = n;
    weft_value all = weft_reshape(g, weft_cast(g, v, dtype), d.rank, d.shape);
    int last = d.rank - 1;
    return weft_cast(g, weft_sum(g, weft_mul(g, all, here), 1, &last, false), WEFT_I32);
}
