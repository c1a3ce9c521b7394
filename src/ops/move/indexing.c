/* Ops that select or place elements by index: gather, scatter_add, one_hot, top_k.
 *
 *     gather(x [..., n, ...], index i32 [i]; axis) -> [..., i, ...]
 *         slices of `axis`, 0 where out of range
 *     scatter_add(x [..., n, ...], index, updates [..., i, ...]; axis) -> [..., n, ...]
 *         x with updates added in order; an update out of range is dropped
 *     one_hot(index i32 [...]; classes, dtype) -> [..., classes]
 *     top_k(x [..., n]; k) -> values [..., k], index i32 [..., k]
 *         the k largest, descending; the lowest index among equals; a NaN counts as greatest
 *     top_k_grad(index, dvalues; classes) -> dx [..., classes]
 *
 * gather and scatter_add are each other's gradient. A piece of the indexed dimension starts at
 * `begin`. An index that points to another piece is out of range for this piece. So the pieces of
 * gather are terms of a sum. */
#include "ops/common.h"

/* x seen as [outer, size, inner] around the axis. */
typedef struct lines {
    int64_t outer, size, inner;
} lines;

static lines lines_of(const weft_desc *x, int axis) {
    return (lines){wefti_op_count(x, 0, axis), x->shape[axis],
                   wefti_op_count(x, axis + 1, x->rank)};
}

static int axis_of(const weft_node *n) {
    return (int)wefti_attr_int(n, WEFTI_AT_axis);
}

/* For pieces of an indexed dimension: `begin` counts in the whole. */
static weft_status check_begin(const weft_node *n) {
    int64_t begin = wefti_attr_int(n, WEFTI_AT_begin);
    WEFT_REQUIRE(begin >= 0 && begin <= INT32_MAX, WEFT_E_ARG,
                 "%s: begins at %lld; it must be a number of i32, not negative", n->op->name,
                 (long long)begin);
    return WEFT_OK;
}

static void begin_piece(const weft_node *n, int f, const int64_t *begins, wefti_attr *attrs) {
    if (f >= 0) wefti_op_attr(n, attrs, WEFTI_AT_begin)->i += begins[f];
}

static double begin_of(const weft_node *n) {
    return (double)wefti_attr_int(n, WEFTI_AT_begin);
}

/* ---- gather and scatter_add ---- */

static weft_status check_index(const weft_node *n) {
    WEFT_TRY(check_begin(n));
    WEFT_TRY(wefti_op_check_axis(n, wefti_attr_int(n, WEFTI_AT_axis), wefti_in(n, 0)->rank));
    WEFT_TRY(wefti_op_check_i32(n, 1));
    return wefti_op_check_rank(n, 1, 1, 1);
}

static weft_status infer_gather(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check_index(n));
    *out = *wefti_in(n, 0);
    out->shape[axis_of(n)] = wefti_in(n, 1)->shape[0];
    return WEFT_OK;
}

static weft_status infer_scatter_add(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check_index(n));
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_float(n, 2));
    WEFT_TRY(wefti_op_check_mix(n, 0));
    weft_desc want = *wefti_in(n, 0);
    want.shape[axis_of(n)] = wefti_in(n, 1)->shape[0];
    WEFT_TRY(wefti_op_check_shape(n, 2, want.rank, want.shape, "x and the index"));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status grad_gather(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value in[] = {weft_constant(b, *wefti_in(n, 0), 0.0), wefti_grad_in(g, n, 1),
                       wefti_grad_of(g, n, 0)};
    wefti_attr attrs[] = {WEFTI_I(axis, axis_of(n)),
                          WEFTI_I(begin, wefti_attr_int(n, WEFTI_AT_begin))};
    wefti_grad_add(g, n, 0, wefti_graph_add1(b, &weft_op_scatter_add, 3, in, 2, attrs));
    return WEFT_OK;
}

static weft_status grad_scatter_add(wefti_grad *g, const weft_node *n) {
    weft_value dy = wefti_grad_of(g, n, 0);
    if (wefti_grad_wanted(g, n, 0)) wefti_grad_add(g, n, 0, dy);
    if (!wefti_grad_wanted(g, n, 2)) return WEFT_OK;
    weft_value in[] = {dy, wefti_grad_in(g, n, 1)};
    wefti_attr attrs[] = {WEFTI_I(axis, axis_of(n)),
                          WEFTI_I(begin, wefti_attr_int(n, WEFTI_AT_begin))};
    wefti_grad_add_reduced(g, n, 2,
                           wefti_graph_add1(wefti_grad_graph(g), &weft_op_gather, 2, in, 2, attrs));
    return WEFT_OK;
}

/* Other dimensions are free. The indexed dimension is a masked look-up in gather and free in
 * scatter_add. */
static void rule(const weft_node *n, wefti_factor_kind index_kind, wefti_factor_kind rows_kind,
                 wefti_split_rule *r, int8_t *of_indexed, int8_t *of_picked) {
    const weft_desc *x = wefti_in(n, 0);
    int axis = axis_of(n);
    for (int d = 0; d < x->rank; d++)
        if (d != axis)
            of_indexed[d] = of_picked[d] =
                wefti_op_factor(r, "d", d, x->shape[d], WEFTI_FACTOR_FREE);
    of_indexed[axis] = wefti_op_factor(r, "rows", -1, x->shape[axis], rows_kind);
    of_picked[axis] = wefti_op_factor(r, "index", -1, wefti_in(n, 1)->shape[0], index_kind);
    r->in[1][0] = of_picked[axis];
}

static weft_status split_gather(const weft_node *n, wefti_split_rule *r) {
    rule(n, WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, r, r->in[0], r->out[0]);
    return WEFT_OK;
}

static weft_status split_scatter_add(const weft_node *n, wefti_split_rule *r) {
    rule(n, WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, r, r->in[0], r->in[2]);
    wefti_op_assign(r->out[0], 0, r->in[0], 0, wefti_in(n, 0)->rank);
    r->sum_once[0] = true;
    return WEFT_OK;
}

static weft_status localize_rows(const weft_node *n, const wefti_split_rule *rule_,
                                 const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    begin_piece(n, rule_->in[0][axis_of(n)], begins, attrs);
    return WEFT_OK;
}

static weft_status reference_gather(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    lines l = lines_of(wefti_in(n, 0), axis_of(n));
    int64_t count = wefti_in(n, 1)->shape[0];
    for (int64_t o = 0; o < l.outer; o++)
        for (int64_t k = 0; k < count; k++) {
            double id = in[1][k] - begin_of(n);
            bool known = id >= 0.0 && id < (double)l.size;
            for (int64_t i = 0; i < l.inner; i++)
                out[0][(o * count + k) * l.inner + i] =
                    known ? in[0][(o * l.size + (int64_t)id) * l.inner + i] : 0.0;
        }
    return WEFT_OK;
}

static weft_status reference_scatter_add(const weft_node *n, const wefti_random *random,
                                         const double *const *in, double *const *out) {
    (void)random;
    lines l = lines_of(wefti_in(n, 0), axis_of(n));
    int64_t count = wefti_in(n, 1)->shape[0], elements = weft_desc_elems(wefti_in(n, 0));
    for (int64_t i = 0; i < elements; i++) out[0][i] = in[0][i];
    for (int64_t o = 0; o < l.outer; o++)
        for (int64_t k = 0; k < count; k++) {
            double id = in[1][k] - begin_of(n);
            if (id < 0.0 || id >= (double)l.size) continue;
            for (int64_t i = 0; i < l.inner; i++)
                out[0][(o * l.size + (int64_t)id) * l.inner + i] +=
                    in[2][(o * count + k) * l.inner + i];
        }
    return WEFT_OK;
}

/* ---- one_hot ---- */

static weft_status check_classes(const weft_node *n) {
    int64_t classes = wefti_attr_int(n, WEFTI_AT_classes);
    WEFT_REQUIRE(classes >= 0, WEFT_E_ARG, "%s: %lld classes; there must be 0 or more", n->op->name,
                 (long long)classes);
    WEFT_TRY(check_begin(n));
    return wefti_op_check_i32(n, 0);
}

static weft_status infer_one_hot(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    int64_t dtype = wefti_attr_int(n, WEFTI_AT_dtype);
    WEFT_TRY(check_classes(n));
    WEFT_TRY(wefti_op_check_rank(n, 0, 0, WEFT_MAX_RANK - 1));
    WEFT_TRY(wefti_op_check_dtype(n, dtype));
    weft_desc y = wefti_op_retyped(wefti_in(n, 0), (weft_dtype)dtype);
    y.shape[y.rank++] = wefti_attr_int(n, WEFTI_AT_classes);
    *out = y;
    return WEFT_OK;
}

static weft_status split_one_hot(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *y = wefti_out(n, 0);
    int rows = y->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", y, 0, rows, WEFTI_FACTOR_FREE, f);
    wefti_op_assign(r->in[0], 0, f, 0, rows);
    wefti_op_assign(r->out[0], 0, f, 0, rows);
    r->out[0][rows] = wefti_op_factor(r, "classes", -1, y->shape[rows], WEFTI_FACTOR_FREE);
    return WEFT_OK;
}

static weft_status localize_classes(const weft_node *n, const wefti_split_rule *rule_,
                                    const int64_t *begins, const int64_t *sizes,
                                    wefti_attr *attrs) {
    int f = rule_->out[0][wefti_out(n, 0)->rank - 1];
    if (f >= 0) wefti_op_attr(n, attrs, WEFTI_AT_classes)->i = sizes[f];
    begin_piece(n, f, begins, attrs);
    return WEFT_OK;
}

static weft_status reference_one_hot(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    int64_t rows = weft_desc_elems(wefti_in(n, 0)), classes = wefti_attr_int(n, WEFTI_AT_classes);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < classes; c++)
            out[0][row * classes + c] = in[0][row] - begin_of(n) == (double)c ? 1.0 : 0.0;
    return WEFT_OK;
}

/* ---- top_k ---- */

static weft_status infer_top_k(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *x = wefti_in(n, 0);
    int64_t k = wefti_attr_int(n, WEFTI_AT_k);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_REQUIRE(k >= 1 && k <= x->shape[x->rank - 1], WEFT_E_SHAPE,
                 "top_k: the %lld largest of %s: it must be 1 to %lld", (long long)k, TEXT(x),
                 (long long)x->shape[x->rank - 1]);
    out[0] = *x;
    out[0].shape[x->rank - 1] = k;
    out[1] = wefti_op_retyped(&out[0], WEFT_I32);
    *out_count = 2;
    return WEFT_OK;
}

static weft_status infer_top_k_grad(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check_classes(n));
    WEFT_TRY(wefti_op_check_float(n, 1));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 1));
    *out = *wefti_in(n, 1);
    out->shape[out->rank - 1] = wefti_attr_int(n, WEFTI_AT_classes);
    return WEFT_OK;
}

static weft_status grad_top_k(wefti_grad *g, const weft_node *n) {
    const weft_desc *x = wefti_in(n, 0);
    weft_value in[] = {wefti_grad_out(g, n, 1), wefti_grad_of(g, n, 0)};
    if (in[1].id < 0) return WEFT_OK; /* only the indices were used */
    wefti_attr classes = WEFTI_I(classes, x->shape[x->rank - 1]);
    wefti_grad_add(g, n, 0,
                   wefti_graph_add1(wefti_grad_graph(g), &weft_op_top_k_grad, 2, in, 1, &classes));
    return WEFT_OK;
}

/* Rows are free. If the searched dimension is split, each piece gives candidates. In the gradient
 * the k results stay whole, and the dimension that they scatter into is free. */
static weft_status split_rows(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *x = wefti_in(n, 0), *y = wefti_out(n, 0);
    int rows = x->rank - 1;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "m", x, 0, rows, WEFTI_FACTOR_FREE, f);
    bool gradient = n->op == &weft_op_top_k_grad;
    int8_t from = wefti_op_factor(r, "from", -1, x->shape[rows],
                                  gradient ? WEFTI_FACTOR_WHOLE : WEFTI_FACTOR_STATS);
    int8_t to = wefti_op_factor(r, "to", -1, y->shape[rows],
                                gradient ? WEFTI_FACTOR_FREE : WEFTI_FACTOR_WHOLE);
    for (int i = 0; i < n->inputs; i++) {
        wefti_op_assign(r->in[i], 0, f, 0, rows);
        r->in[i][rows] = from;
    }
    for (int o = 0; o < n->outputs; o++) {
        wefti_op_assign(r->out[o], 0, f, 0, rows);
        r->out[o][rows] = to;
    }
    return WEFT_OK;
}

/* Takes the k largest of the candidates: the k largest of each piece, or all elements of a smaller
 * piece. Candidates are ordered by piece and descend within a piece. So the lowest index stays
 * first among equals. */
static weft_status lower_top_k(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    int last = wefti_in(n, 0)->rank - 1, factor = wefti_lower_rule(c)->in[0][last];
    int32_t parts = wefti_lower_parts(c, factor);
    int64_t k = wefti_attr_int(n, WEFTI_AT_k), counts[WEFTI_MAX_PARTS];
    weft_value values, index, place;
    WEFT_REQUIRE(parts <= WEFTI_MAX_PARTS, WEFT_E_NO_IMPL, "top_k over %d parts; at most %d", parts,
                 WEFTI_MAX_PARTS);
    for (int32_t p = 0; p < parts; p++) {
        int64_t begin, size;
        wefti_lower_range(c, factor, p, &begin, &size);
        counts[p] = size < k ? size : k;
    }
    weft_value begin =
        weft_constant(g, (weft_desc){.dtype = WEFT_I32}, (double)wefti_lower_in_begin(c, 0, last));
    values = weft_top_k(g, wefti_lower_in(c, 0), counts[wefti_lower_index(c, factor)], &index);
    values = wefti_op_candidates(c, values, factor, counts);
    index = wefti_op_candidates(c, weft_add(g, index, begin), factor, counts);
    wefti_lower_out(c, 0, weft_top_k(g, values, k, &place));
    wefti_lower_out(c, 1, wefti_op_pick(g, index, place, wefti_in(n, 0)->shape[last]));
    return WEFT_OK;
}

static bool greater(double a, double b) {
    return isnan(a) ? !isnan(b) : a > b;
}

/* Repeats k times: take the greatest element that was not taken yet. */
static weft_status reference_top_k(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *x = wefti_in(n, 0);
    int64_t rows = wefti_op_count(x, 0, x->rank - 1), size = x->shape[x->rank - 1];
    int64_t k = wefti_attr_int(n, WEFTI_AT_k);
    for (int64_t row = 0; row < rows; row++) {
        const double *from = in[0] + row * size;
        double *values = out[0] + row * k, *index = out[1] + row * k;
        for (int64_t place = 0; place < k; place++) {
            int64_t best = -1;
            for (int64_t i = 0; i < size; i++) {
                bool taken = false;
                for (int64_t p = 0; p < place; p++) taken = taken || index[p] == (double)i;
                if (!taken && (best < 0 || greater(from[i], from[best]))) best = i;
            }
            values[place] = from[best];
            index[place] = (double)best;
        }
    }
    return WEFT_OK;
}

static weft_status reference_top_k_grad(const weft_node *n, const wefti_random *random,
                                        const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *index = wefti_in(n, 0);
    int64_t rows = wefti_op_count(index, 0, index->rank - 1), k = index->shape[index->rank - 1];
    int64_t classes = wefti_attr_int(n, WEFTI_AT_classes);
    for (int64_t i = 0; i < rows * classes; i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < rows * k; i++) {
        double id = in[0][i] - begin_of(n);
        if (id >= 0.0 && id < (double)classes) out[0][i / k * classes + (int64_t)id] += in[1][i];
    }
    return WEFT_OK;
}

/* ---- tables ---- */

static const wefti_attr attrs_axis[] = {WEFTI_I(axis, 0), WEFTI_I(begin, 0), {0}};
static const wefti_attr attrs_one_hot[] = {
    WEFTI_I(classes, 0), WEFTI_I(dtype, WEFT_F32), WEFTI_I(begin, 0), {0}};
static const wefti_attr attrs_top_k[] = {WEFTI_I(k, 1), {0}};
static const wefti_attr attrs_top_k_grad[] = {WEFTI_I(classes, 0), WEFTI_I(begin, 0), {0}};

static const wefti_op_case cases_gather[] = {CASE("axis=0", "f32[7,5]", "i32[4]<7"),
                                             CASE("axis=1", "bf16[3,5]", "i32[9]<5"),
                                             CASE("axis=1", "f32[2,3,4]", "i32[1]<3"),
                                             CASE("axis=0", "i32[5]<9", "i32[3]<5"),
                                             CASE("axis=0", "f32[3,2]", "i32[0]<3"),
                                             CASE("axis=1 begin=3", "f32[2,4]", "i32[9]<9"),
                                             CASES_END};
static const wefti_op_case cases_scatter_add[] = {
    CASE("axis=0", "f32[7,5]", "i32[4]<7", "f32[4,5]"),
    CASE("axis=1", "f32[3,5]", "i32[9]<5", "bf16[3,9]"),
    CASE("axis=1", "f32[2,3,4]", "i32[1]<3", "f32[2,1,4]"),
    CASE("axis=0", "f32[3,2]", "i32[0]<3", "f32[0,2]"),
    CASE("axis=0 begin=3", "f32[4,2]", "i32[9]<9", "f32[9,2]"),
    CASES_END};
static const wefti_op_case cases_one_hot[] = {
    CASE("classes=5", "i32[2,3]<5"),       CASE("classes=3 dtype=bf16", "i32[7]<9"),
    CASE("classes=4", "i32[]<4"),          CASE("classes=3", "i32[0]<3"),
    CASE("classes=3 begin=2", "i32[9]<7"), CASES_END};
static const wefti_op_case cases_top_k[] = {CASE("k=2", "f32[3,5]u"), CASE("k=5", "f32[5]u"),
                                            CASE("k=1", "bf16[2,1,7]u"), CASE("k=2", "f32[0,3]u"),
                                            CASES_END};
static const wefti_op_case cases_top_k_grad[] = {
    CASE("classes=5", "i32[3,2]<5", "f32[3,2]"), CASE("classes=1", "i32[2,1,1]<1", "bf16[2,1,1]"),
    CASE("classes=3", "i32[0,2]<3", "f32[0,2]"),
    CASE("classes=3 begin=2", "i32[4,2]<7", "f32[4,2]"), CASES_END};

/* ---- definitions ---- */

const weft_op_def weft_op_gather = {
    WEFTI_OP_NAME(gather),
    .min_inputs = 2,
    .max_inputs = 2,
    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs_axis,
    .infer = infer_gather,
    .grad = grad_gather,
    .split = split_gather,
    .localize = localize_rows,
    .cost = wefti_op_cost_move,
    .reference = reference_gather,
    .cases = cases_gather,
};

/* One addition for each added element. */
static void cost_scatter_add(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 2, 1.0, out);
}

/* One comparison of each element with the least kept element. */
static void cost_top_k(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 0, 1.0, out);
}

static void cost_top_k_grad(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 1, 1.0, out);
}

const weft_op_def weft_op_scatter_add = {
    WEFTI_OP_NAME(scatter_add),
    .min_inputs = 3,
    .max_inputs = 3,
    .flags = WEFTI_OP_LINEAR,
    .attrs = attrs_axis,
    .infer = infer_scatter_add,
    .grad = grad_scatter_add,
    .split = split_scatter_add,
    .localize = localize_rows,
    .cost = cost_scatter_add,
    .reference = reference_scatter_add,
    .cases = cases_scatter_add,
};

const weft_op_def weft_op_one_hot = {
    WEFTI_OP_NAME(one_hot),
    .min_inputs = 1,
    .max_inputs = 1,
    .flags = WEFTI_OP_CHEAP,
    .attrs = attrs_one_hot,
    .infer = infer_one_hot,
    .split = split_one_hot,
    .localize = localize_classes,
    .reference = reference_one_hot,
    .cases = cases_one_hot,
};

const weft_op_def weft_op_top_k = {
    WEFTI_OP_NAME(top_k), .min_inputs = 1,      .max_inputs = 1,
    .attrs = attrs_top_k, .infer = infer_top_k, .grad = grad_top_k,
    .split = split_rows,  .cost = cost_top_k,   .reference = reference_top_k,
    .cases = cases_top_k, .lower = lower_top_k, .lowers = 1u << WEFTI_FACTOR_STATS,
};

const weft_op_def weft_op_top_k_grad = {
    WEFTI_OP_NAME(top_k_grad), .min_inputs = 2,
    .max_inputs = 2,           .flags = WEFTI_OP_LINEAR | WEFTI_OP_GRADIENT,
    .attrs = attrs_top_k_grad, .infer = infer_top_k_grad,
    .split = split_rows,       .localize = localize_classes,
    .cost = cost_top_k_grad,   .reference = reference_top_k_grad,
    .cases = cases_top_k_grad,
};

/* ---- builders ---- */

weft_value weft_take(weft_graph *g, weft_value x, weft_value index, int axis) {
    wefti_attr at = WEFTI_I(axis, wefti_op_axis(axis, weft_value_desc(g, x).rank));
    return wefti_graph_add1(g, &weft_op_gather, 2, (weft_value[]){x, index}, 1, &at);
}

weft_value weft_scatter_add(weft_graph *g, weft_value x, weft_value index, weft_value updates,
                            int axis) {
    wefti_attr at = WEFTI_I(axis, wefti_op_axis(axis, weft_value_desc(g, x).rank));
    return wefti_graph_add1(g, &weft_op_scatter_add, 3, (weft_value[]){x, index, updates}, 1, &at);
}

weft_value weft_one_hot(weft_graph *g, weft_value index, int64_t classes, weft_dtype dtype) {
    return wefti_graph_add1(g, &weft_op_one_hot, 1, &index, 2,
                            (wefti_attr[]){WEFTI_I(classes, classes), WEFTI_I(dtype, dtype)});
}

weft_value weft_top_k(weft_graph *g, weft_value x, int64_t k, weft_value *out_index) {
    weft_value out[2];
    wefti_graph_add(g, &weft_op_top_k, 1, &x, 1, (wefti_attr[]){WEFTI_I(k, k)}, 2, out);
    if (out_index) *out_index = out[1];
    return out[0];
}
