/* Attention: softmax(scale q k^T + mask) v for every head, without storing the scores.
 *
 *     attention(q, k, v, mask?, position?) -> o, lse
 *     attention_grad(q, k, v, o, lse, do, mask?, position?) -> dq, dk, dv
 *     attention_mask_grad(q, k, v, o, lse, do, mask, position?) -> dmask
 *
 * Shapes: q, o [b, tq, hq, d]. k, v [b, tk, hk, d] with hq % hk == 0. lse f32 [2, b, hq, tq]. Query
 * head h reads key head h / (hq / hk) (Ainslie et al., "GQA", 2023).
 *
 * Options:
 *
 *     causal   Query i sees keys j <= i + offset. The offset is tk - tq, or `position` if the keys
 *              are a cache. It is i32 [], or i32 [b] with one for each sample. i32 [b, 2] has the
 *              row of k and v that each sample attends to, and then its position. There k and v may
 *              have another batch, and there is no gradient.
 *     window   If not 0, query i sees only the last `window` of these keys: j > i + offset - window
 *              (Child et al., "Sparse Transformers", 2019; Jiang et al., "Mistral 7B", 2023,
 *              section 2).
 *     mask     Bool [b|1, h|1, tq, tk], true = may attend. Or a float of that shape, which is added
 *              to the scaled scores.
 *
 * A query that sees no key gives 0 and lse -inf.
 *
 * lse = ln sum e^score lets the gradient recompute the probabilities block by block (Dao et al.,
 * "FlashAttention", 2022, algorithm 4). The gradient of an added mask is ds, summed over the
 * batches and heads that share the mask.
 *
 *     p = e^(score - lse)      D = sum do o      ds = p (do v^T - D)
 *     dq = scale ds k          dk = scale ds^T q          dv = p^T do
 *
 * A mask often fills a whole row with a large value such as -1e9 or the lowest f32. One f32 cannot
 * hold such a score plus ln of the sum. So lse is stored as two numbers: the rounded lse, and the
 * rest that rounding removed.
 *
 * Dropout multiplies p in o and dv, and do v^T in ds, by 0 or 1 / (1 - rate). It keeps probability
 * (b, h, i, j) iff philox_uniform(seed, stream, ((b hq + h) tq + i) tk + j) >= rate. These indices
 * count in the whole tensor. A piece therefore states the whole shape [b, hq, tq, tk] (`whole`) and
 * its own start (`begin`). The causal rule also counts in the whole; `position` is then the
 * position of query 0.
 *
 * Split sequences: attention/split.c. */
#include "ops/attention/attention.h"

#include "base/philox.h"

static const int64_t WINDOW_MAX = INT64_C(1) << 40; /* keeps sums with positions within int64 */

/* All values that a score depends on. */
typedef struct problem {
    int64_t batch, tq, tk, heads, kv_heads, dim, offset, window;
    const double *positions; /* [batch], added to the offset; NULL: none */
    const double *rows;      /* pairs of a row of k and v, and a position; NULL: the batch is one */
    bool causal, single;     /* `single`: lse is f32 */
    double scale, rate;
    const double *q, *k, *v, *mask;
    bool mask_is_bool;
    int64_t mask_batch, mask_head; /* strides, 0 where the mask repeats */
    uint64_t seed, stream;
    int64_t first, strides[WEFT_MAX_RANK]; /* positions of [b, h, i, j] in the random stream */
} problem;

/* The shape of the probabilities, [b, hq, tq, tk]. Dropout draws random numbers for this shape. */
static weft_desc scores_of(const weft_node *n) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1);
    return (weft_desc){.dtype = q->dtype,
                       .rank = 4,
                       .shape = {q->shape[0], q->shape[2], q->shape[1], k->shape[1]}};
}

/* The last key that query 0 sees. If `position` is NULL, the ends of the whole sequences are
 * aligned. */
static int64_t offset_of(const weft_node *n, const double *position) {
    const wefti_ints *whole = wefti_attr_ints(n, WEFTI_AT_whole),
                     *begin = wefti_attr_ints(n, WEFTI_AT_begin);
    weft_desc scores = scores_of(n);
    bool piece = whole->count == 4;
    int64_t tq = piece ? whole->v[2] : scores.shape[2], tk = piece ? whole->v[3] : scores.shape[3];
    return (position ? (int64_t)position[0] : tk - tq) + (piece ? begin->v[2] - begin->v[3] : 0);
}

int64_t wefti_attention_offset(const weft_node *n) {
    return offset_of(n, NULL);
}

static int64_t between(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

static int64_t pairs_up_to(int64_t queries, int64_t keys, int64_t offset) {
    int64_t blind = between(-offset, 0, queries); /* the first queries, which see no key */
    int64_t full = between(keys - 1 - offset, blind, queries); /* from here on, all keys */
    int64_t first = blind + offset + 1, last = full + offset;
    return (full - blind) * (first + last) / 2 + (queries - full) * keys;
}

int64_t wefti_attention_pairs(int64_t queries, int64_t keys, int64_t offset, int64_t window) {
    int64_t hidden = window ? pairs_up_to(queries, keys, offset - window) : 0;
    return pairs_up_to(queries, keys, offset) - hidden;
}

static double scale_of(const weft_node *n) {
    double scale = wefti_attr_float(n, WEFTI_AT_scale);
    return scale != 0.0 ? scale : 1.0 / sqrt((double)wefti_in(n, 0)->shape[3]);
}

/* mask and position are the inputs `first` and first + 1. */
static problem problem_of(const weft_node *n, const wefti_random *random, const double *const *in,
                          int first) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1), *mask = wefti_in(n, first);
    const double *position = wefti_op_optional(n, in, first + 1);
    problem p = {.batch = q->shape[0],
                 .tq = q->shape[1],
                 .heads = q->shape[2],
                 .dim = q->shape[3],
                 .tk = k->shape[1],
                 .kv_heads = k->shape[2],
                 .causal = wefti_attr_int(n, WEFTI_AT_causal) != 0,
                 .window = wefti_attr_int(n, WEFTI_AT_window),
                 .scale = scale_of(n),
                 .rate = wefti_attr_float(n, WEFTI_AT_dropout),
                 .q = in[0],
                 .k = in[1],
                 .v = in[2],
                 .mask = wefti_op_optional(n, in, first)};
    p.single = wefti_op_statistics_dtype(q->dtype) == WEFT_F32;
    p.positions = position && wefti_in(n, first + 1)->rank == 1 ? position : NULL;
    p.rows = position && wefti_in(n, first + 1)->rank == 2 ? position : NULL;
    p.offset = offset_of(n, p.positions || p.rows ? (const double[]){0.0} : position);
    if (mask) {
        p.mask_is_bool = mask->dtype == WEFT_BOOL;
        p.mask_head = mask->shape[1] == 1 ? 0 : p.tq * p.tk;
        p.mask_batch = mask->shape[0] == 1 ? 0 : mask->shape[1] * p.tq * p.tk;
    }
    if (p.rate > 0.0) {
        p.seed = random->seed;
        p.stream = wefti_random_stream(random, n);
        weft_desc scores = scores_of(n);
        p.first = wefti_random_place(random, n, &scores, p.strides);
    }
    return p;
}

static int64_t query_at(const problem *p, int64_t b, int64_t i, int64_t h) {
    return ((b * p->tq + i) * p->heads + h) * p->dim;
}
static int64_t key_at(const problem *p, int64_t b, int64_t j, int64_t h) {
    if (p->rows) b = (int64_t)p->rows[2 * b];
    return ((b * p->tk + j) * p->kv_heads + h / (p->heads / p->kv_heads)) * p->dim;
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* The score of query i and key j. -inf if query i may not see key j. */
static double score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t last = i + p->offset + (p->positions ? (int64_t)p->positions[b] : 0) +
                         (p->rows ? (int64_t)p->rows[2 * b + 1] : 0);
    if (p->causal && j > last) return -INFINITY;
    if (p->window && j <= last - p->window) return -INFINITY;
    double mask = 0.0;
    if (p->mask) {
        mask = p->mask[b * p->mask_batch + h * p->mask_head + i * p->tk + j];
        if (p->mask_is_bool) mask = mask != 0.0 ? 0.0 : -INFINITY;
    }
    return p->scale * dot(p->q + query_at(p, b, i, h), p->k + key_at(p, b, j, h), p->dim) + mask;
}

/* The factor by which dropout multiplies a probability. */
static double kept(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (p->rate == 0.0) return 1.0;
    int64_t position =
        p->first + b * p->strides[0] + h * p->strides[1] + i * p->strides[2] + j * p->strides[3];
    bool keep = wefti_philox_uniform(p->seed, p->stream, (uint64_t)position) >= p->rate;
    return keep ? 1.0 / (1.0 - p->rate) : 0.0;
}

/* ---- shapes ---- */

weft_status wefti_attention_check_position(const weft_node *n, int i, int of) {
    const weft_desc *position = wefti_in(n, i);
    if (!position) return WEFT_OK;
    const int64_t batch = wefti_in(n, of)->shape[0];
    WEFT_TRY(wefti_op_check_i32(n, i));
    WEFT_TRY(wefti_op_check_rank(n, i, 0, 2));
    WEFT_REQUIRE((position->rank == 0 || position->shape[0] == batch) &&
                     (position->rank < 2 || position->shape[1] == 2),
                 WEFT_E_SHAPE,
                 "%s: the position is %s and operand %d is %s; it must be [], [%lld] or [%lld, 2]",
                 n->op->name, TEXT(position), of, TEXT(wefti_in(n, of)), (long long)batch,
                 (long long)batch);
    return WEFT_OK;
}

void wefti_attention_split_position(const weft_node *n, int i, int of, wefti_split_rule *r) {
    const weft_desc *position = wefti_in(n, i);
    if (position && position->rank > 0) r->in[i][0] = r->in[of][0];
}

/* Whether operand i, which may be absent, names rows of a cache. */
static bool is_by_row(const weft_node *n, int i) {
    const weft_desc *position = wefti_in(n, i);
    return position && position->rank == 2;
}

static weft_status check_window(const weft_node *n) {
    int64_t window = wefti_attr_int(n, WEFTI_AT_window);
    WEFT_REQUIRE(window >= 0 && window <= WINDOW_MAX, WEFT_E_ARG,
                 "%s: the window is %lld; it must be from 1 to 2^40 keys, or 0 for none",
                 n->op->name, (long long)window);
    WEFT_REQUIRE(!window || wefti_attr_int(n, WEFTI_AT_causal), WEFT_E_ARG,
                 "%s: a window is given, which only causal attention has", n->op->name);
    return WEFT_OK;
}

static weft_status check(const weft_node *n, int first) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1);
    const weft_desc *mask = wefti_in(n, first);
    double rate = wefti_attr_float(n, WEFTI_AT_dropout);
    for (int i = 0; i < 3; i++) {
        WEFT_TRY(wefti_op_check_float(n, i));
        WEFT_TRY(wefti_op_check_rank(n, i, 4, 4));
    }
    WEFT_TRY(wefti_op_check_mix(n, 0));
    WEFT_TRY(wefti_op_check_same_shape(n, 1, 2));
    WEFT_REQUIRE((q->shape[0] == k->shape[0] || is_by_row(n, first + 1)) &&
                     q->shape[3] == k->shape[3],
                 WEFT_E_SHAPE, "%s: q is %s and k is %s; batch and head size must be equal",
                 n->op->name, TEXT(q), TEXT(k));
    WEFT_REQUIRE(q->shape[3] >= 1 && k->shape[2] >= 1 && q->shape[2] % k->shape[2] == 0,
                 WEFT_E_SHAPE, "%s: q is %s and k is %s; q's heads must be a multiple of k's",
                 n->op->name, TEXT(q), TEXT(k));
    WEFT_REQUIRE(rate >= 0.0 && rate < 1.0, WEFT_E_ARG,
                 "%s: the dropout is %g; it must be in [0, 1)", n->op->name, rate);
    WEFT_TRY(check_window(n));
    if (mask) {
        bool fits = mask->rank == 4 && (mask->shape[0] == 1 || mask->shape[0] == q->shape[0]) &&
                    (mask->shape[1] == 1 || mask->shape[1] == q->shape[2]) &&
                    mask->shape[2] == q->shape[1] && mask->shape[3] == k->shape[1];
        WEFT_REQUIRE(
            fits, WEFT_E_SHAPE,
            "%s: the mask is %s; for q %s and k %s it must be [%lld or 1, %lld or 1, %lld, %lld]",
            n->op->name, TEXT(mask), TEXT(q), TEXT(k), (long long)q->shape[0],
            (long long)q->shape[2], (long long)q->shape[1], (long long)k->shape[1]);
        WEFT_REQUIRE(mask->dtype == WEFT_BOOL || wefti_dtype_is_float(mask->dtype), WEFT_E_ARG,
                     "%s: the mask is %s; it must be bool or floating point", n->op->name,
                     TEXT(mask));
    }
    weft_desc scores = scores_of(n);
    WEFT_TRY(wefti_op_check_place(n, &scores));
    if (wefti_in(n, first + 1)) {
        WEFT_TRY(wefti_attention_check_position(n, first + 1, 0));
        WEFT_REQUIRE(wefti_attr_int(n, WEFTI_AT_causal), WEFT_E_ARG,
                     "%s: a position is given, which only causal attention uses", n->op->name);
    }
    return WEFT_OK;
}

static weft_status infer(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check(n, 3));
    const weft_desc *q = wefti_in(n, 0);
    out[0] = wefti_op_retyped(q, wefti_op_result_dtype(n, 0));
    out[1] = wefti_op_desc(wefti_op_statistics_dtype(q->dtype), 4,
                           (int64_t[]){2, q->shape[0], q->shape[2], q->shape[1]});
    *out_count = 2;
    return WEFT_OK;
}

static weft_status infer_grad(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check(n, 6));
    WEFT_REQUIRE(!is_by_row(n, 7), WEFT_E_NO_IMPL,
                 "%s: attention to rows of a cache has no gradient", n->op->name);
    const weft_desc *q = wefti_in(n, 0);
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 3));
    WEFT_TRY(wefti_op_check_same_shape(n, 0, 5));
    WEFT_TRY(wefti_op_check_shape(n, 4, 4, (int64_t[]){2, q->shape[0], q->shape[2], q->shape[1]},
                                  "two for each of batch, heads and queries"));
    for (int i = 0; i < 3; i++) out[i] = *wefti_in(n, i);
    *out_count = 3;
    return WEFT_OK;
}

static weft_status infer_mask_grad(const weft_node *n, weft_desc *out, int *out_count) {
    weft_desc unused[3];
    WEFT_TRY(infer_grad(n, unused, out_count));
    WEFT_REQUIRE(wefti_in(n, 6), WEFT_E_ARG, "attention_mask_grad: there is no mask");
    WEFT_TRY(wefti_op_check_float(n, 6));
    out[0] = *wefti_in(n, 6);
    *out_count = 1;
    return WEFT_OK;
}

static weft_status grad(wefti_grad *g, const weft_node *n) {
    weft_value in[8], out[3], d_o = wefti_grad_of(g, n, 0);
    if (d_o.id < 0) return WEFT_OK; /* a gradient of lse alone is not passed on */
    for (int i = 0; i < 3; i++) in[i] = wefti_grad_in(g, n, i);
    in[3] = wefti_grad_out(g, n, 0);
    in[4] = wefti_grad_out(g, n, 1);
    in[5] = d_o;
    for (int i = 3; i < 5; i++) in[3 + i] = wefti_in(n, i) ? wefti_grad_in(g, n, i) : WEFT_NO_VALUE;
    wefti_attr attrs[] = {WEFTI_I(causal, wefti_attr_int(n, WEFTI_AT_causal)),
                          WEFTI_I(window, wefti_attr_int(n, WEFTI_AT_window)),
                          WEFTI_F(scale, wefti_attr_float(n, WEFTI_AT_scale)),
                          WEFTI_F(dropout, wefti_attr_float(n, WEFTI_AT_dropout)),
                          WEFTI_I(stream, n->stream),
                          WEFTI_N(whole, *wefti_attr_ints(n, WEFTI_AT_whole)),
                          WEFTI_N(begin, *wefti_attr_ints(n, WEFTI_AT_begin))};
    wefti_graph_add(wefti_grad_graph(g), &weft_op_attention_grad, 8, in, 7, attrs, 3, out);
    for (int i = 0; i < 3; i++)
        if (wefti_grad_wanted(g, n, i)) wefti_grad_add(g, n, i, out[i]);
    if (!wefti_in(n, 3) || !wefti_grad_wanted(g, n, 3)) return WEFT_OK;
    wefti_graph_add(wefti_grad_graph(g), &weft_op_attention_mask_grad, 8, in, 7, attrs, 1, out);
    wefti_grad_add(g, n, 3, out[0]);
    return WEFT_OK;
}

/* ---- split rules: batch and heads free, sequences by ring ----
 *
 * Self-attention has one factor for queries and keys. So q, k and v are split alike, and the pieces
 * of k and v move between the devices. If the lengths differ, queries and keys have one factor
 * each. Pieces of the queries are then independent, and pieces of the keys give terms that are
 * merged. */

static weft_status split(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1);
    bool backward = n->op == &weft_op_attention_grad;
    int first = backward ? 6 : 3;
    int8_t batch = wefti_op_factor(r, "batch", -1, q->shape[0], WEFTI_FACTOR_FREE);
    /* Counts key heads. The query heads of a group stay with their key head. */
    int8_t heads = wefti_op_factor(r, "heads", -1, k->shape[2], WEFTI_FACTOR_FREE);
    const bool by_row = is_by_row(n, first + 1);
    bool self = q->shape[1] == k->shape[1] && !by_row;
    int8_t rows = by_row ? wefti_op_factor(r, "rows", -1, k->shape[0], WEFTI_FACTOR_WHOLE) : batch;
    int8_t queries =
        wefti_op_factor(r, self ? "seq" : "queries", -1, q->shape[1], WEFTI_FACTOR_RING);
    int8_t keys = self ? queries : wefti_op_factor(r, "keys", -1, k->shape[1], WEFTI_FACTOR_RING);
    int8_t dim = wefti_op_factor(r, "dim", -1, q->shape[3], WEFTI_FACTOR_WHOLE);
    int8_t of_q[] = {batch, queries, heads, dim}, of_k[] = {rows, keys, heads, dim};
    int8_t of_lse[] = {-1, batch, heads, queries};
    wefti_op_assign(r->in[0], 0, of_q, 0, 4);
    for (int i = 1; i < 3; i++) wefti_op_assign(r->in[i], 0, of_k, 0, 4);
    wefti_op_assign(r->out[0], 0, of_q, 0, 4);
    if (backward) {
        wefti_op_assign(r->in[3], 0, of_q, 0, 4);
        wefti_op_assign(r->in[4], 0, of_lse, 0, 4);
        wefti_op_assign(r->in[5], 0, of_q, 0, 4);
        for (int o = 1; o < 3; o++) wefti_op_assign(r->out[o], 0, of_k, 0, 4);
    } else {
        wefti_op_assign(r->out[1], 0, of_lse, 0, 4);
    }
    const weft_desc *mask = wefti_in(n, first);
    if (mask) {
        int8_t of_mask[] = {batch, heads, queries, self ? -1 : keys};
        for (int d = 0; d < 4; d++)
            if (mask->shape[d] != 1) r->in[first][d] = of_mask[d];
    }
    wefti_attention_split_position(n, first + 1, 0, r);
    return WEFT_OK;
}

/* Batches and heads that share a mask are summed. Sequences are free, because o and lse already
 * hold everything that the op needs from the whole sequence. */
static weft_status split_mask_grad(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1), *mask = wefti_in(n, 6);
    int8_t batch = wefti_op_factor(r, "batch", -1, q->shape[0],
                                   mask->shape[0] == 1 ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE);
    int8_t heads = wefti_op_factor(r, "heads", -1, k->shape[2],
                                   mask->shape[1] == 1 ? WEFTI_FACTOR_SUM : WEFTI_FACTOR_FREE);
    int8_t queries = wefti_op_factor(r, "queries", -1, q->shape[1], WEFTI_FACTOR_FREE);
    int8_t keys = wefti_op_factor(r, "keys", -1, k->shape[1], WEFTI_FACTOR_FREE);
    int8_t dim = wefti_op_factor(r, "dim", -1, q->shape[3], WEFTI_FACTOR_WHOLE);
    int8_t of_q[] = {batch, queries, heads, dim}, of_k[] = {batch, keys, heads, dim};
    int8_t of_lse[] = {-1, batch, heads, queries}, of_mask[] = {batch, heads, queries, keys};
    for (int i = 0; i < 6; i++)
        wefti_op_assign(r->in[i], 0, i == 4 ? of_lse : i == 1 || i == 2 ? of_k : of_q, 0, 4);
    for (int d = 0; d < 4; d++)
        if (d >= 2 || mask->shape[d] != 1) r->in[6][d] = r->out[0][d] = of_mask[d];
    wefti_attention_split_position(n, 7, 0, r);
    return WEFT_OK;
}

static weft_status localize(const weft_node *n, const wefti_split_rule *rule, const int64_t *begins,
                            const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    int64_t shift[WEFT_MAX_RANK] = {0}, group = wefti_in(n, 0)->shape[2] / wefti_in(n, 1)->shape[2];
    const int8_t of[4] = {rule->in[0][0], rule->in[0][2], rule->in[0][1], rule->in[1][1]};
    for (int d = 0; d < 4; d++)
        if (of[d] >= 0) shift[d] = begins[of[d]] * (d == 1 ? group : 1);
    weft_desc scores = scores_of(n);
    wefti_op_localize_place(n, &scores, shift, attrs);
    return WEFT_OK;
}

/* Two products forward, five backward, over the pairs of a query and a key that the query sees. If
 * the position is known only at run time, all pairs count. */
static void cost_of(const weft_node *n, int position, double products, wefti_cost *out) {
    const weft_desc *q = wefti_in(n, 0), *k = wefti_in(n, 1);
    int64_t tq = q->shape[1], tk = k->shape[1], pairs = tq * tk;
    if (wefti_attr_int(n, WEFTI_AT_causal) && !wefti_in(n, position))
        pairs = wefti_attention_pairs(tq, tk, wefti_attention_offset(n),
                                      wefti_attr_int(n, WEFTI_AT_window));
    double each = (double)(q->shape[0] * q->shape[2] * q->shape[3]);
    *out =
        (wefti_cost){.flops = products * 2.0 * each * (double)pairs, .bytes = wefti_node_bytes(n)};
}
static void cost(const weft_node *n, wefti_cost *out) {
    cost_of(n, 4, 2.0, out);
}
static void cost_grad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 7, 5.0, out);
}
static void cost_mask_grad(const weft_node *n, wefti_cost *out) {
    cost_of(n, 7, 2.0, out);
}

/* ---- references ---- */

/* A probability is e^(score - centre) / sum. */
typedef struct attention_row {
    double centre, sum;
} attention_row;

static attention_row row_of(const problem *p, int64_t b, int64_t h, int64_t i) {
    attention_row r = {-INFINITY, 0.0};
    for (int64_t j = 0; j < p->tk; j++) r.centre = fmax(r.centre, score(p, b, h, i, j));
    /* A query that sees no key: -inf - -inf would be NaN. */
    if (r.centre == -INFINITY) r.centre = 0.0;
    for (int64_t j = 0; j < p->tk; j++) r.sum += exp(score(p, b, h, i, j) - r.centre);
    return r;
}

/* Index of the lse of a row. The rest that rounding removed lies `rest_at` elements later. */
static int64_t lse_at(const problem *p, int64_t b, int64_t h, int64_t i) {
    return (b * p->heads + h) * p->tq + i;
}
static int64_t rest_at(const problem *p) {
    return p->batch * p->heads * p->tq;
}

/* The same row from the stored lse: the sum is e^rest. */
static attention_row row_again(const problem *p, int64_t b, int64_t h, int64_t i,
                               const double *lse) {
    lse += lse_at(p, b, h, i);
    return (attention_row){lse[0], exp(lse[rest_at(p)])};
}

static void attend(const problem *p, int64_t b, int64_t h, int64_t i, double *o, double *lse) {
    attention_row r = row_of(p, b, h, i);
    double all = r.centre + log(r.sum);
    double rounded = p->single && fabs(all) >= WEFTI_ATTENTION_LARGE ? (double)(float)all : all;
    for (int64_t d = 0; d < p->dim; d++) o[d] = 0.0;
    lse += lse_at(p, b, h, i);
    lse[0] = rounded;
    lse[rest_at(p)] = isinf(rounded) ? 0.0 : (r.centre - rounded) + log(r.sum);
    if (r.sum == 0.0) return;
    for (int64_t j = 0; j < p->tk; j++) {
        double weight = exp(score(p, b, h, i, j) - r.centre) / r.sum * kept(p, b, h, i, j);
        for (int64_t d = 0; d < p->dim; d++) o[d] += weight * p->v[key_at(p, b, j, h) + d];
    }
}

static weft_status check_rows(const weft_node *n, const problem *p) {
    const int64_t rows = wefti_in(n, 1)->shape[0];
    for (int64_t b = 0; p->rows && b < p->batch; b++)
        WEFT_REQUIRE(p->rows[2 * b] >= 0.0 && p->rows[2 * b] < (double)rows, WEFT_E_ARG,
                     "attention: row %lld of a cache of %lld", (long long)p->rows[2 * b],
                     (long long)rows);
    return WEFT_OK;
}

static weft_status reference(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    problem p = problem_of(n, random, in, 3);
    WEFT_TRY(check_rows(n, &p));
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < p.tq; i++)
                attend(&p, b, h, i, out[0] + query_at(&p, b, i, h), out[1]);
    return WEFT_OK;
}

static weft_status reference_grad(const weft_node *n, const wefti_random *random,
                                  const double *const *in, double *const *out) {
    problem p = problem_of(n, random, in, 6);
    const double *o = in[3], *lse = in[4], *d_o = in[5];
    double *dq = out[0], *dk = out[1], *dv = out[2];
    int64_t q_count = weft_desc_elems(wefti_in(n, 0)), k_count = weft_desc_elems(wefti_in(n, 1));
    for (int64_t e = 0; e < q_count; e++) dq[e] = 0.0;
    for (int64_t e = 0; e < k_count; e++) dk[e] = dv[e] = 0.0;
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < p.tq; i++) {
                int64_t q_at = query_at(&p, b, i, h);
                attention_row r = row_again(&p, b, h, i, lse);
                double average = dot(d_o + q_at, o + q_at, p.dim);
                for (int64_t j = 0; j < p.tk; j++) {
                    double s = score(&p, b, h, i, j), keep = kept(&p, b, h, i, j);
                    if (s == -INFINITY) continue;
                    int64_t k_at = key_at(&p, b, j, h);
                    double probability = exp(s - r.centre) / r.sum;
                    double d_score = probability *
                                     (keep * dot(d_o + q_at, p.v + k_at, p.dim) - average) *
                                     p.scale;
                    for (int64_t d = 0; d < p.dim; d++) {
                        dq[q_at + d] += d_score * p.k[k_at + d];
                        dk[k_at + d] += d_score * p.q[q_at + d];
                        dv[k_at + d] += probability * keep * d_o[q_at + d];
                    }
                }
            }
    return WEFT_OK;
}

static weft_status reference_mask_grad(const weft_node *n, const wefti_random *random,
                                       const double *const *in, double *const *out) {
    problem p = problem_of(n, random, in, 6);
    const double *o = in[3], *lse = in[4], *d_o = in[5];
    int64_t count = weft_desc_elems(wefti_in(n, 6));
    for (int64_t e = 0; e < count; e++) out[0][e] = 0.0;
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < p.tq; i++) {
                int64_t q_at = query_at(&p, b, i, h);
                attention_row r = row_again(&p, b, h, i, lse);
                double average = dot(d_o + q_at, o + q_at, p.dim);
                for (int64_t j = 0; j < p.tk; j++) {
                    double s = score(&p, b, h, i, j);
                    if (s == -INFINITY) continue;
                    double d =
                        kept(&p, b, h, i, j) * dot(d_o + q_at, p.v + key_at(&p, b, j, h), p.dim);
                    out[0][b * p.mask_batch + h * p.mask_head + i * p.tk + j] +=
                        exp(s - r.centre) / r.sum * (d - average);
                }
            }
    return WEFT_OK;
}

static const wefti_attr attrs[] = {
    WEFTI_I(causal, 0),       WEFTI_I(window, 0),  /* 0: none */
    WEFTI_F(scale, 0.0),                           /* 0: 1 / sqrt(d) */
    WEFTI_F(dropout, 0.0),    WEFTI_I(stream, -1), /* -1: the stream of the node */
    ATTR_INTS(whole, 0, {0}), ATTR_INTS(begin, 0, {0}), {0}};

static const wefti_op_case cases[] = {
    CASE(NULL, "f32[2,3,2,5]", "f32[2,4,2,5]", "f32[2,4,2,5]"),
    CASE("causal=1", "f32[1,5,3,2]", "f32[1,5,3,2]", "f32[1,5,3,2]"),
    CASE("causal=1 scale=0.3", "f32[2,3,4,3]", "f32[2,7,2,3]", "f32[2,7,2,3]"),
    CASE("dropout=0.25", "f32[2,3,2,2]", "f32[2,5,1,2]", "f32[2,5,1,2]"),
    CASE(NULL, "f32[2,3,2,3]", "f32[2,4,2,3]", "f32[2,4,2,3]", "bool[2,1,3,4]?"),
    CASE(NULL, "f32[1,3,2,3]", "f32[1,4,2,3]", "f32[1,4,2,3]", "bool[1,2,3,4]?"),
    CASE("causal=1", "bf16[1,2,2,3]", "bf16[1,6,2,3]", "bf16[1,6,2,3]", "-", "i32[]<4"),
    CASE(NULL, "f32[2,3,2,3]", "f32[2,4,2,3]", "f32[2,4,2,3]", "f32[1,2,3,4]"),
    CASE("causal=1 dropout=0.25", "f32[2,3,4,2]", "f32[2,5,2,2]", "f32[2,5,2,2]", "f32[2,1,3,5]"),
    CASE("scale=0.4", "f32[2,3,2,2]", "f32[2,3,1,2]", "f32[2,3,1,2]", "f32[2,2,3,3]"),
    CASE(NULL, "f32[3,2,2,2]", "f32[3,3,2,2]", "f32[3,3,2,2]", "f32[1,1,2,3]"),
    CASE("causal=1", "f32[1,4,1,2]", "f32[1,2,1,2]", "f32[1,2,1,2]"),
    CASE("causal=1 window=2", "f32[1,5,2,3]", "f32[1,5,1,3]", "f32[1,5,1,3]"),
    CASE("causal=1 window=3 dropout=0.25", "f32[2,3,2,2]", "f32[2,6,1,2]", "f32[2,6,1,2]"),
    CASE("causal=1 window=2", "f32[1,2,2,3]", "f32[1,6,2,3]", "f32[1,6,2,3]", "-", "i32[]<4"),
    CASE("causal=1 window=3", "f32[3,2,2,3]", "f32[3,6,1,3]", "f32[3,6,1,3]", "-", "i32[3]<4"),
    CASE("causal=1 window=3 whole=(4,4,9,8) begin=(1,2,3,1)", "f32[2,3,2,2]", "f32[2,5,1,2]",
         "f32[2,5,1,2]"),
    CASE("causal=1 dropout=0.25 whole=(4,4,9,8) begin=(1,2,3,1)", "f32[2,3,2,2]", "f32[2,5,1,2]",
         "f32[2,5,1,2]"),
    CASE(NULL, "f32[0,3,2,4]", "f32[0,3,2,4]", "f32[0,3,2,4]"),
    CASE(NULL, "f32[1,0,2,4]", "f32[1,3,2,4]", "f32[1,3,2,4]"),
    CASES_END};
static const wefti_op_case cases_grad[] = {
    CASE("causal=1 window=2", "f32[2,5,2,3]", "f32[2,5,1,3]", "f32[2,5,1,3]", "f32[2,5,2,3]",
         "f32[2,2,2,5]+", "f32[2,5,2,3]"),
    CASE("causal=1 window=3 dropout=0.25", "f32[1,3,2,2]", "f32[1,6,2,2]", "f32[1,6,2,2]",
         "f32[1,3,2,2]", "f32[2,1,2,3]+", "f32[1,3,2,2]"),
    CASE(NULL, "f32[2,3,2,5]", "f32[2,4,2,5]", "f32[2,4,2,5]", "f32[2,3,2,5]", "f32[2,2,2,3]+",
         "f32[2,3,2,5]"),
    CASE("causal=1 dropout=0.25", "f32[2,3,4,2]", "f32[2,5,2,2]", "f32[2,5,2,2]", "f32[2,3,4,2]",
         "f32[2,2,4,3]+", "f32[2,3,4,2]"),
    CASE("causal=1 dropout=0.25 whole=(3,8,6,9) begin=(0,4,2,1)", "f32[2,3,4,2]", "f32[2,5,2,2]",
         "f32[2,5,2,2]", "f32[2,3,4,2]", "f32[2,2,4,3]+", "f32[2,3,4,2]"),
    CASE(NULL, "f32[2,3,2,3]", "f32[2,4,2,3]", "f32[2,4,2,3]", "f32[2,3,2,3]", "f32[2,2,2,3]+",
         "f32[2,3,2,3]", "f32[2,1,3,4]"),
    CASES_END};

static const wefti_op_case cases_mask_grad[] = {
    CASE("causal=1 window=2", "f32[2,4,2,3]", "f32[2,5,2,3]", "f32[2,5,2,3]", "f32[2,4,2,3]",
         "f32[2,2,2,4]+", "f32[2,4,2,3]", "f32[2,1,4,5]"),
    CASE(NULL, "f32[2,3,2,3]", "f32[2,4,2,3]", "f32[2,4,2,3]", "f32[2,3,2,3]", "f32[2,2,2,3]+",
         "f32[2,3,2,3]", "f32[2,1,3,4]"),
    CASE("causal=1 dropout=0.25", "f32[2,3,4,2]", "f32[2,5,2,2]", "f32[2,5,2,2]", "f32[2,3,4,2]",
         "f32[2,2,4,3]+", "f32[2,3,4,2]", "f32[1,4,3,5]"),
    CASE(NULL, "f32[2,3,2,3]", "f32[2,4,2,3]", "f32[2,4,2,3]", "f32[2,3,2,3]", "f32[2,2,2,3]+",
         "f32[2,3,2,3]", "f32[1,1,3,4]"),
    CASES_END};

const weft_op_def weft_op_attention = {
    WEFTI_OP_NAME(attention),
    .min_inputs = 3,
    .max_inputs = 5,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_RANDOM,
    .attrs = attrs,
    .infer = infer,
    .grad = grad,
    .split = split,
    .localize = localize,
    .cost = cost,
    .reference = reference,
    .cases = cases,
    .lower = wefti_attention_lower,
    .lowers = 1u << WEFTI_FACTOR_RING,
};

const weft_op_def weft_op_attention_grad = {
    WEFTI_OP_NAME(attention_grad),
    .min_inputs = 6,
    .max_inputs = 8,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_RANDOM | WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_grad,
    .split = split,
    .localize = localize,
    .cost = cost_grad,
    .reference = reference_grad,
    .cases = cases_grad,
    .lower = wefti_attention_lower_grad,
    .lowers = 1u << WEFTI_FACTOR_RING,
};

const weft_op_def weft_op_attention_mask_grad = {
    WEFTI_OP_NAME(attention_mask_grad),
    .min_inputs = 7,
    .max_inputs = 8,
    .work = WEFTI_WORK_PRODUCT,
    .flags = WEFTI_OP_RANDOM | WEFTI_OP_GRADIENT,
    .attrs = attrs,
    .infer = infer_mask_grad,
    .split = split_mask_grad,
    .localize = localize,
    .cost = cost_mask_grad,
    .reference = reference_mask_grad,
    .cases = cases_mask_grad,
};

weft_value weft_attention(weft_graph *g, weft_value q, weft_value k, weft_value v,
                          const weft_attention_options *options) {
    weft_attention_options own = weft_attention_defaults();
    if (!wefti_graph_take(g, "weft_attention_options", options, &own)) return WEFT_NO_VALUE;
    weft_desc d = weft_value_desc(g, q);
    double scale = own.scale;
    if (scale == 0.0 && d.rank == 4 && d.shape[3] > 0) scale = 1.0 / sqrt((double)d.shape[3]);
    weft_value in[] = {q, k, v, own.mask, own.position}, out[2];
    wefti_attr attrs_[] = {WEFTI_I(causal, own.causal), WEFTI_I(window, own.window),
                           WEFTI_F(scale, scale), WEFTI_F(dropout, own.dropout)};
    wefti_graph_add(g, &weft_op_attention, 5, in, 4, attrs_, 2, out);
    return out[0];
}
