/* Mixture of experts: assigns tokens to experts, and moves tokens to the experts and back.
 *
 * The router gives a probability for each expert, and top_k sends a token to k of the experts.
 * Tokens come in groups (sequences). An expert has a buffer of `capacity` slots for each group. In
 * each group the first choices of all tokens receive slots first, in token order. Then the second
 * choices follow, and so on. A choice without a free slot gets slot -1 and is dropped. Source:
 * Lepikhin et al., "GShard", 2021, section 2.2 and algorithm 1.
 *
 * Groups are independent. So a batch can be split between groups without communication. To change
 * from buffers split by groups to buffers split by experts takes one all-to-all.
 *
 *     moe_slots(expert i32 [groups..., s, k], counts?; experts, capacity)
 *         -> slot i32 [groups..., s, k], count i32 [experts, groups...]      slots in use
 *     moe_counts(expert i32 [groups..., s, k]; experts) -> i32 [groups..., 1, k, experts]
 *         how often each expert is chosen
 *     moe_dispatch(x [groups..., s, h], expert, slot, weight?; experts, capacity)
 *         -> y [experts, groups..., capacity, h]
 *         y[expert, group, slot] = weight x, 0 for an empty slot
 *     moe_combine(y [experts, groups..., capacity, h], expert, slot, weight?)
 *         -> x [groups..., s, h]
 *         x = sum over the k choices of weight y[expert, group, slot]
 *     moe_dot(y, expert, slot, x) -> S [groups..., s, k]
 *         S = y[expert, group, slot] . x
 *
 * moe_dispatch and moe_combine are each other's gradient. moe_dot gives the gradient of both to the
 * weights. A piece of the buffers, [experts, capacity] from first_expert and first_slot on, handles
 * only its own tokens. So both dimensions can be split without communication of their own. If a
 * group is split inside, moe_slots starts from the counts of all pieces. */
#include "graph/lower/lower.h"
#include "ops/common.h"

/* Experts, groups and slots of a piece of the buffers; tokens and choices of a group. */
typedef struct buffers {
    int64_t experts, groups, capacity, first_expert, first_slot, per_group;
} buffers;

/* The sizes for buffers y [experts, groups..., capacity, h] and expert [groups..., s, k]. */
static buffers buffers_of(const weft_node *n, const weft_desc *y, const weft_desc *expert) {
    return (buffers){y->shape[0],
                     wefti_op_count(y, 1, y->rank - 2),
                     y->shape[y->rank - 2],
                     wefti_attr_int(n, WEFTI_AT_first_expert),
                     wefti_attr_int(n, WEFTI_AT_first_slot),
                     wefti_op_count(expert, expert->rank - 2, expert->rank)};
}

/* The row of the buffers that choice i goes to; -1: not in this piece. */
static int64_t row_of(const buffers *b, int64_t i, double expert, double slot) {
    double e = expert - (double)b->first_expert, s = slot - (double)b->first_slot;
    if (slot < 0.0 || e < 0.0 || e >= (double)b->experts || s < 0.0 || s >= (double)b->capacity)
        return -1;
    return ((int64_t)e * b->groups + i / b->per_group) * b->capacity + (int64_t)s;
}

static weft_status check_count(const weft_node *n, wefti_attr_id id) {
    int64_t value = wefti_attr_int(n, id);
    WEFT_REQUIRE(value >= 0 && value <= INT32_MAX, WEFT_E_ARG,
                 "%s: %s is %lld; it must be 0 to 2147483647", n->op->name, wefti_attr_name(id),
                 (long long)value);
    return WEFT_OK;
}

/* ---- slots ---- */

/* Checks counts [groups..., parts, k, experts], the counts of whole groups. This node is part
 * number `part`. */
static weft_status check_whole(const weft_node *n, const weft_desc *expert, int64_t experts) {
    const weft_desc *counts = wefti_in(n, 1);
    int64_t part = wefti_attr_int(n, WEFTI_AT_part);
    int groups = expert->rank - 2;
    WEFT_TRY(wefti_op_check_i32(n, 1));
    bool fits = counts->rank == groups + 3 &&
                counts->shape[groups + 1] == expert->shape[groups + 1] &&
                counts->shape[groups + 2] == experts;
    for (int d = 0; fits && d < groups; d++) fits = counts->shape[d] == expert->shape[d];
    WEFT_REQUIRE(fits && part >= 0 && part < counts->shape[groups], WEFT_E_SHAPE,
                 "moe_slots: counts are %s for part %lld, %s and %lld experts; they must be "
                 "[groups..., parts, choices, experts]",
                 TEXT(counts), (long long)part, TEXT(expert), (long long)experts);
    return WEFT_OK;
}

static weft_status infer_slots(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_desc *expert = wefti_in(n, 0);
    int64_t experts = wefti_attr_int(n, WEFTI_AT_experts);
    WEFT_TRY(wefti_op_check_i32(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, WEFT_MAX_RANK - 1));
    WEFT_TRY(check_count(n, WEFTI_AT_experts));
    WEFT_TRY(check_count(n, WEFTI_AT_capacity));
    if (wefti_in(n, 1)) WEFT_TRY(check_whole(n, expert, experts));
    out[0] = *expert;
    out[1] = wefti_op_desc(WEFT_I32, expert->rank - 1, (int64_t[WEFT_MAX_RANK]){experts});
    for (int d = 0; d < expert->rank - 2; d++) out[1].shape[d + 1] = expert->shape[d];
    *out_count = 2;
    return wefti_desc_check(&out[1]);
}

static weft_status infer_counts(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *expert = wefti_in(n, 0);
    WEFT_TRY(wefti_op_check_i32(n, 0));
    WEFT_TRY(wefti_op_check_rank(n, 0, 2, WEFT_MAX_RANK - 1));
    WEFT_TRY(check_count(n, WEFTI_AT_experts));
    weft_desc y = *expert;
    y.shape[y.rank - 2] = 1;
    y.shape[y.rank++] = wefti_attr_int(n, WEFTI_AT_experts);
    WEFT_TRY(wefti_desc_check(&y));
    *out = y;
    return WEFT_OK;
}

/* A node that is a part of a group already is not split again. */
static weft_status split_slots(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *expert = wefti_in(n, 0), *counts = wefti_in(n, 1);
    int s = expert->rank - 2;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "group", expert, 0, s, WEFTI_FACTOR_FREE, f);
    f[s] = wefti_op_factor(r, "s", -1, expert->shape[s],
                           counts ? WEFTI_FACTOR_WHOLE : WEFTI_FACTOR_STATS);
    f[s + 1] = wefti_op_factor(r, "choices", -1, expert->shape[s + 1], WEFTI_FACTOR_WHOLE);
    int8_t experts =
        wefti_op_factor(r, "experts", -1, wefti_out(n, 1)->shape[0], WEFTI_FACTOR_WHOLE);
    wefti_op_assign(r->in[0], 0, f, 0, s + 2);
    wefti_op_assign(r->out[0], 0, f, 0, s + 2);
    wefti_op_assign(r->out[1], 1, f, 0, s);
    r->out[1][0] = experts;
    if (!counts) return WEFT_OK;
    wefti_op_assign(r->in[1], 0, f, 0, s);
    r->in[1][s] = wefti_op_factor(r, "parts", -1, counts->shape[s], WEFTI_FACTOR_WHOLE);
    r->in[1][s + 1] = f[s + 1];
    r->in[1][s + 2] = experts;
    return WEFT_OK;
}

/* Every device counts its own tokens. The devices then exchange all counts, so that each device
 * knows where its own slots begin. */
static weft_status lower_slots(wefti_lowering *c, const weft_node *n) {
    weft_graph *g = wefti_lower_graph(c);
    int s = wefti_in(n, 0)->rank - 2, f = wefti_lower_rule(c)->in[0][s];
    wefti_attr experts = WEFTI_I(experts, wefti_attr_int(n, WEFTI_AT_experts));
    int64_t before[WEFT_MAX_RANK] = {0}, after[WEFT_MAX_RANK] = {0};
    int64_t part = wefti_lower_index(c, f);
    before[s] = part;
    after[s] = wefti_lower_parts(c, f) - 1 - part;
    weft_value here = wefti_lower_in(c, 0), out[2];
    weft_value counts = wefti_graph_add1(g, &weft_op_moe_counts, 1, &here, 1, &experts);
    counts = wefti_lower_all_reduce(c, weft_pad(g, counts, before, after, 0.0), 1u << f,
                                    WEFTI_REDUCE_SUM);
    wefti_graph_add(g, &weft_op_moe_slots, 2, (weft_value[]){here, counts}, 3,
                    (wefti_attr[]){experts, WEFTI_I(capacity, wefti_attr_int(n, WEFTI_AT_capacity)),
                                   WEFTI_I(part, part)},
                    2, out);
    wefti_lower_out(c, 0, out[0]);
    wefti_lower_out(c, 1, out[1]);
    return WEFT_OK;
}

static weft_status split_counts(const weft_node *n, wefti_split_rule *r) {
    const weft_desc *expert = wefti_in(n, 0);
    int s = expert->rank - 2;
    int8_t f[WEFT_MAX_RANK];
    wefti_op_factors(r, "group", expert, 0, s, WEFTI_FACTOR_FREE, f);
    f[s] = wefti_op_factor(r, "s", -1, expert->shape[s], WEFTI_FACTOR_SUM);
    f[s + 1] = wefti_op_factor(r, "choices", -1, expert->shape[s + 1], WEFTI_FACTOR_FREE);
    wefti_op_assign(r->in[0], 0, f, 0, s + 2);
    wefti_op_assign(r->out[0], 0, f, 0, s);
    r->out[0][s + 1] = f[s + 1];
    r->out[0][s + 2] =
        wefti_op_factor(r, "experts", -1, wefti_attr_int(n, WEFTI_AT_experts), WEFTI_FACTOR_WHOLE);
    return WEFT_OK;
}

static weft_status reference_counts(const weft_node *n, const wefti_random *random,
                                    const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *expert = wefti_in(n, 0);
    int s = expert->rank - 2;
    int64_t experts = wefti_attr_int(n, WEFTI_AT_experts), k = expert->shape[s + 1];
    int64_t groups = wefti_op_count(expert, 0, s), size = expert->shape[s];
    for (int64_t i = 0; i < groups * k * experts; i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < groups * size * k; i++) {
        double e = in[0][i];
        if (e >= 0.0 && e < (double)experts)
            out[0][(i / (size * k) * k + i % k) * experts + (int64_t)e] += 1.0;
    }
    return WEFT_OK;
}

static weft_status reference_slots(const weft_node *n, const wefti_random *random,
                                   const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *expert = wefti_in(n, 0), *counts = wefti_in(n, 1);
    int s = expert->rank - 2;
    int64_t experts = wefti_attr_int(n, WEFTI_AT_experts), k = expert->shape[s + 1];
    int64_t groups = wefti_op_count(expert, 0, s), size = expert->shape[s];
    int64_t parts = counts ? counts->shape[s] : 1, part = wefti_attr_int(n, WEFTI_AT_part);
    double capacity = (double)wefti_attr_int(n, WEFTI_AT_capacity);
    for (int64_t i = 0; i < experts * groups; i++) out[1][i] = 0.0;
    for (int64_t group = 0; group < groups; group++) {
        double *used = out[1] + group; /* entry of expert e: at [e * groups] */
        for (int64_t at = 0; at < k * parts; at++) {
            int64_t choice = at / parts;
            bool here = !counts || at % parts == part;
            for (int64_t t = 0; here && t < size; t++) {
                int64_t i = (group * size + t) * k + choice;
                double e = in[0][i];
                bool known = e >= 0.0 && e < (double)experts;
                double slot = known ? used[(int64_t)e * groups]++ : capacity;
                out[0][i] = slot < capacity ? slot : -1.0;
            }
            for (int64_t e = 0; !here && e < experts; e++)
                used[e * groups] +=
                    in[1][((group * parts + at % parts) * k + choice) * experts + e];
        }
    }
    for (int64_t i = 0; i < experts * groups; i++) out[1][i] = fmin(out[1][i], capacity);
    return WEFT_OK;
}

/* ---- dispatch, combine and dot ---- */

/* Inputs i and i + 1 are expert and slot. Input `weight` is their weight (-1 or absent: none). x is
 * the tokens. */
static weft_status check_choices(const weft_node *n, int i, int weight, const weft_desc *x) {
    const weft_desc *expert = wefti_in(n, i);
    WEFT_TRY(wefti_op_check_i32(n, i));
    WEFT_TRY(wefti_op_check_i32(n, i + 1));
    WEFT_TRY(wefti_op_check_rank(n, i, 2, WEFT_MAX_RANK - 1));
    WEFT_TRY(wefti_op_check_same_shape(n, i, i + 1));
    if (weight >= 0 && wefti_in(n, weight)) {
        WEFT_TRY(wefti_op_check_float(n, weight));
        WEFT_TRY(wefti_op_check_same_shape(n, i, weight));
    }
    bool fits = !x || x->rank == expert->rank;
    for (int d = 0; x && fits && d < x->rank - 1; d++) fits = x->shape[d] == expert->shape[d];
    WEFT_REQUIRE(fits, WEFT_E_SHAPE,
                 "%s: the tokens are %s and their experts %s: all dimensions but the last must be "
                 "equal",
                 n->op->name, TEXT(x), TEXT(expert));
    WEFT_TRY(check_count(n, WEFTI_AT_first_expert));
    WEFT_TRY(check_count(n, WEFTI_AT_first_slot));
    return wefti_op_check_mix(n, 0);
}

static weft_status infer_dispatch(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *x = wefti_in(n, 0);
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(check_choices(n, 1, 3, x));
    WEFT_TRY(check_count(n, WEFTI_AT_experts));
    WEFT_TRY(check_count(n, WEFTI_AT_capacity));
    *out = (weft_desc){.dtype = x->dtype, .rank = x->rank + 1};
    out->shape[0] = wefti_attr_int(n, WEFTI_AT_experts);
    for (int d = 0; d < x->rank - 2; d++) out->shape[d + 1] = x->shape[d];
    out->shape[x->rank - 1] = wefti_attr_int(n, WEFTI_AT_capacity);
    out->shape[x->rank] = x->shape[x->rank - 1];
    return wefti_desc_check(out);
}

/* Checks that the buffers (input 0) have the groups of `expert` (input 1). */
static weft_status check_buffers(const weft_node *n) {
    const weft_desc *y = wefti_in(n, 0), *expert = wefti_in(n, 1);
    WEFT_TRY(wefti_op_check_float(n, 0));
    bool fits = y->rank == expert->rank + 1;
    for (int d = 0; fits && d < expert->rank - 2; d++) fits = y->shape[d + 1] == expert->shape[d];
    WEFT_REQUIRE(fits, WEFT_E_SHAPE,
                 "%s: the buffers are %s and the experts of tokens %s; they must be [experts, "
                 "groups..., capacity, h] and [groups..., s, k] of equal groups",
                 n->op->name, TEXT(y), TEXT(expert));
    return WEFT_OK;
}

static weft_status infer_combine(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *y = wefti_in(n, 0), *expert = wefti_in(n, 1);
    WEFT_TRY(check_choices(n, 1, 3, NULL));
    WEFT_TRY(check_buffers(n));
    *out = wefti_op_retyped(expert, y->dtype);
    out->shape[out->rank - 1] = y->shape[y->rank - 1];
    return wefti_desc_check(out);
}

static weft_status infer_dot(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const weft_desc *y = wefti_in(n, 0), *x = wefti_in(n, 3);
    WEFT_TRY(wefti_op_check_float(n, 3));
    WEFT_TRY(check_choices(n, 1, -1, x));
    WEFT_TRY(check_buffers(n));
    WEFT_REQUIRE(x->shape[x->rank - 1] == y->shape[y->rank - 1], WEFT_E_SHAPE,
                 "moe_dot: y is %s and x is %s: their last dimensions must be equal", TEXT(y),
                 TEXT(x));
    *out = wefti_op_retyped(wefti_in(n, 1), wefti_op_statistics_dtype(y->dtype));
    return WEFT_OK;
}

/* The attributes that give the place of a piece of the buffers, for another node. */
#define FIRSTS(n)                                                                                  \
    WEFTI_I(first_expert, wefti_attr_int(n, WEFTI_AT_first_expert)),                               \
        WEFTI_I(first_slot, wefti_attr_int(n, WEFTI_AT_first_slot))

static weft_value dispatch(weft_graph *g, const weft_node *n, const weft_value in[4],
                           const weft_desc *buffers_desc) {
    return wefti_graph_add1(
        g, &weft_op_moe_dispatch, 4, in, 4,
        (wefti_attr[]){WEFTI_I(experts, buffers_desc->shape[0]),
                       WEFTI_I(capacity, buffers_desc->shape[buffers_desc->rank - 2]), FIRSTS(n)});
}

/* The weight of the choices (inputs 1 to 3 are expert, slot, weight); empty if the node has
 * none. */
static void choices(wefti_grad *g, const weft_node *n, weft_value out[4]) {
    for (int i = 1; i < 4; i++) out[i] = wefti_in(n, i) ? wefti_grad_in(g, n, i) : WEFT_NO_VALUE;
}

/* Adds y . x for the buffers y and the tokens x: the gradient of the weight. */
static void grad_weight(wefti_grad *g, const weft_node *n, weft_value y, weft_value x) {
    if (!wefti_in(n, 3) || !wefti_grad_wanted(g, n, 3)) return;
    weft_value in[4] = {y, wefti_grad_in(g, n, 1), wefti_grad_in(g, n, 2), x};
    wefti_grad_add_reduced(g, n, 3,
                           wefti_graph_add1(wefti_grad_graph(g), &weft_op_moe_dot, 4, in, 2,
                                            (wefti_attr[]){FIRSTS(n)}));
}

static weft_status grad_dispatch(wefti_grad *g, const weft_node *n) {
    weft_value in[4];
    if (wefti_grad_wanted(g, n, 0)) {
        choices(g, n, in);
        in[0] = wefti_grad_of(g, n, 0);
        wefti_grad_add_reduced(g, n, 0,
                               wefti_graph_add1(wefti_grad_graph(g), &weft_op_moe_combine, 4, in, 2,
                                                (wefti_attr[]){FIRSTS(n)}));
    }
    if (wefti_in(n, 3) && wefti_grad_wanted(g, n, 3))
        grad_weight(g, n, wefti_grad_of(g, n, 0), wefti_grad_in(g, n, 0));
    return WEFT_OK;
}

static weft_status grad_combine(wefti_grad *g, const weft_node *n) {
    weft_value in[4];
    if (wefti_grad_wanted(g, n, 0)) {
        choices(g, n, in);
        in[0] = wefti_grad_of(g, n, 0);
        wefti_grad_add_reduced(g, n, 0, dispatch(wefti_grad_graph(g), n, in, wefti_in(n, 0)));
    }
    if (wefti_in(n, 3) && wefti_grad_wanted(g, n, 3))
        grad_weight(g, n, wefti_grad_in(g, n, 0), wefti_grad_of(g, n, 0));
    return WEFT_OK;
}

static weft_status grad_dot(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value in[4] = {WEFT_NO_VALUE, wefti_grad_in(g, n, 1), wefti_grad_in(g, n, 2),
                        wefti_grad_of(g, n, 0)};
    if (wefti_grad_wanted(g, n, 0)) {
        in[0] = wefti_grad_in(g, n, 3);
        wefti_grad_add_reduced(g, n, 0, dispatch(b, n, in, wefti_in(n, 0)));
    }
    if (wefti_grad_wanted(g, n, 3)) {
        in[0] = wefti_grad_in(g, n, 0);
        wefti_grad_add_reduced(
            g, n, 3,
            wefti_graph_add1(b, &weft_op_moe_combine, 4, in, 2, (wefti_attr[]){FIRSTS(n)}));
    }
    return WEFT_OK;
}

/* Kinds of the factors of the buffers [experts, groups..., capacity, h] and of the choices
 * [groups..., s, k]. Groups are always free. */
typedef struct kinds {
    wefti_factor_kind buffers, s, choices, h;
} kinds;

static void rule(wefti_split_rule *r, const weft_desc *y, const weft_desc *expert, kinds kind,
                 int8_t *of_y, int8_t *of_choices, int8_t *of_x) {
    int s = expert->rank - 2;
    int8_t f[WEFT_MAX_RANK];
    of_y[0] = wefti_op_factor(r, "experts", -1, y->shape[0], kind.buffers);
    of_y[s + 1] = wefti_op_factor(r, "capacity", -1, y->shape[s + 1], kind.buffers);
    of_y[s + 2] = wefti_op_factor(r, "h", -1, y->shape[s + 2], kind.h);
    wefti_op_factors(r, "group", expert, 0, s, WEFTI_FACTOR_FREE, f);
    f[s] = wefti_op_factor(r, "s", -1, expert->shape[s], kind.s);
    f[s + 1] = wefti_op_factor(r, "choices", -1, expert->shape[s + 1], kind.choices);
    wefti_op_assign(of_y, 1, f, 0, s);
    wefti_op_assign(of_choices, 0, f, 0, s + 2);
    wefti_op_assign(of_x, 0, f, 0, s + 1);
    of_x[s + 1] = of_y[s + 2];
}

static void same_choices(const weft_node *n, wefti_split_rule *r, int last) {
    for (int i = 2; i <= last; i++)
        if (wefti_in(n, i)) wefti_op_assign(r->in[i], 0, r->in[1], 0, wefti_in(n, 1)->rank);
}

static weft_status split_dispatch(const weft_node *n, wefti_split_rule *r) {
    kinds kind = {WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE};
    rule(r, wefti_out(n, 0), wefti_in(n, 1), kind, r->out[0], r->in[1], r->in[0]);
    same_choices(n, r, 3);
    return WEFT_OK;
}

static weft_status split_combine(const weft_node *n, wefti_split_rule *r) {
    kinds kind = {WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE};
    rule(r, wefti_in(n, 0), wefti_in(n, 1), kind, r->in[0], r->in[1], r->out[0]);
    same_choices(n, r, 3);
    return WEFT_OK;
}

static weft_status split_dot(const weft_node *n, wefti_split_rule *r) {
    kinds kind = {WEFTI_FACTOR_SUM, WEFTI_FACTOR_FREE, WEFTI_FACTOR_FREE, WEFTI_FACTOR_SUM};
    rule(r, wefti_in(n, 0), wefti_in(n, 1), kind, r->in[0], r->in[1], r->in[3]);
    same_choices(n, r, 2);
    wefti_op_assign(r->out[0], 0, r->in[1], 0, wefti_in(n, 1)->rank);
    return WEFT_OK;
}

/* Sets the start of a piece of the buffers from the begins of its factors. */
static void localize_firsts(const weft_node *n, const int8_t *of_y, int rank, const int64_t *begins,
                            wefti_attr *attrs) {
    int8_t experts = of_y[0], capacity = of_y[rank - 2];
    if (experts >= 0) wefti_op_attr(n, attrs, WEFTI_AT_first_expert)->i += begins[experts];
    if (capacity >= 0) wefti_op_attr(n, attrs, WEFTI_AT_first_slot)->i += begins[capacity];
}

static weft_status localize_dispatch(const weft_node *n, const wefti_split_rule *r,
                                     const int64_t *begins, const int64_t *sizes,
                                     wefti_attr *attrs) {
    int rank = wefti_out(n, 0)->rank;
    int8_t experts = r->out[0][0], capacity = r->out[0][rank - 2];
    if (experts >= 0) wefti_op_attr(n, attrs, WEFTI_AT_experts)->i = sizes[experts];
    if (capacity >= 0) wefti_op_attr(n, attrs, WEFTI_AT_capacity)->i = sizes[capacity];
    localize_firsts(n, r->out[0], rank, begins, attrs);
    return WEFT_OK;
}

static weft_status localize_read(const weft_node *n, const wefti_split_rule *r,
                                 const int64_t *begins, const int64_t *sizes, wefti_attr *attrs) {
    (void)sizes;
    localize_firsts(n, r->in[0], wefti_in(n, 0)->rank, begins, attrs);
    return WEFT_OK;
}

static weft_status reference_dispatch(const weft_node *n, const wefti_random *random,
                                      const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *y = wefti_out(n, 0), *expert = wefti_in(n, 1);
    const double *weight = wefti_op_optional(n, in, 3);
    buffers b = buffers_of(n, y, expert);
    int64_t h = y->shape[y->rank - 1], k = expert->shape[expert->rank - 1],
            count = weft_desc_elems(expert);
    for (int64_t i = 0; i < weft_desc_elems(y); i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = row_of(&b, i, in[1][i], in[2][i]);
        for (int64_t d = 0; row >= 0 && d < h; d++)
            out[0][row * h + d] += (weight ? weight[i] : 1.0) * in[0][i / k * h + d];
    }
    return WEFT_OK;
}

static weft_status reference_combine(const weft_node *n, const wefti_random *random,
                                     const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *y = wefti_in(n, 0), *expert = wefti_in(n, 1);
    const double *weight = wefti_op_optional(n, in, 3);
    buffers b = buffers_of(n, y, expert);
    int64_t h = y->shape[y->rank - 1], k = expert->shape[expert->rank - 1],
            count = weft_desc_elems(expert);
    for (int64_t i = 0; i < weft_desc_elems(wefti_out(n, 0)); i++) out[0][i] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = row_of(&b, i, in[1][i], in[2][i]);
        for (int64_t d = 0; row >= 0 && d < h; d++)
            out[0][i / k * h + d] += (weight ? weight[i] : 1.0) * in[0][row * h + d];
    }
    return WEFT_OK;
}

static weft_status reference_dot(const weft_node *n, const wefti_random *random,
                                 const double *const *in, double *const *out) {
    (void)random;
    const weft_desc *y = wefti_in(n, 0), *expert = wefti_in(n, 1);
    buffers b = buffers_of(n, y, expert);
    int64_t h = y->shape[y->rank - 1], k = expert->shape[expert->rank - 1],
            count = weft_desc_elems(expert);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = row_of(&b, i, in[1][i], in[2][i]);
        out[0][i] = 0.0;
        for (int64_t d = 0; row >= 0 && d < h; d++)
            out[0][i] += in[0][row * h + d] * in[3][i / k * h + d];
    }
    return WEFT_OK;
}

/* One product and one sum for each element of the row of each choice. Combine and dot read a row of
 * the buffers for each choice. All other operands count once. */
static void cost_rows(const weft_node *n, wefti_cost *out) {
    const weft_desc *x = n->op == &weft_op_moe_combine ? wefti_out(n, 0) : NULL;
    if (!x) x = wefti_in(n, n->op == &weft_op_moe_dot ? 3 : 0);
    const weft_desc *expert = wefti_in(n, 1), *buffers = wefti_in(n, 0);
    double k = (double)expert->shape[expert->rank - 1], moved = k * (double)weft_desc_elems(x);
    *out = (wefti_cost){.flops = 2.0 * moved, .bytes = wefti_node_bytes(n)};
    if (n->op != &weft_op_moe_dispatch)
        out->bytes +=
            moved * (double)weft_dtype_bytes(buffers->dtype) - (double)weft_desc_bytes(buffers);
}

/* An addition for each choice. */
static void cost_choices(const weft_node *n, wefti_cost *out) {
    wefti_op_cost_each(n, 0, 1.0, out);
}

/* ---- tables ---- */

static const wefti_attr attrs_slots[] = {
    WEFTI_I(experts, 0), WEFTI_I(capacity, 0), WEFTI_I(part, 0), {0}};
static const wefti_attr attrs_counts[] = {WEFTI_I(experts, 0), {0}};
static const wefti_attr attrs_dispatch[] = {WEFTI_I(experts, 0),
                                            WEFTI_I(capacity, 0),
                                            WEFTI_I(first_expert, 0),
                                            WEFTI_I(first_slot, 0),
                                            {0}};
static const wefti_attr attrs_read[] = {WEFTI_I(first_expert, 0), WEFTI_I(first_slot, 0), {0}};

static const wefti_op_case cases_slots[] = {
    CASE("experts=3 capacity=20", "i32[7,2]<3"),
    CASE("experts=3 capacity=2", "i32[2,5,2]<3"),
    CASE("experts=4 capacity=3", "i32[9,1]<4"),
    CASE("experts=2 capacity=4", "i32[5,3]<4"),
    CASE("experts=3 capacity=2", "i32[2,3,4,2]<3"),
    CASE("experts=3 capacity=9 part=1", "i32[2,3,2]<3", "i32[2,2,2,3]<4"),
    CASE("experts=3 capacity=5 part=2", "i32[3,1]<3", "i32[4,1,3]<3"),
    CASE("experts=0 capacity=0", "i32[3,1]<1"),
    CASE("experts=2 capacity=1", "i32[0,2]<2"),
    CASES_END};
static const wefti_op_case cases_counts[] = {
    CASE("experts=3", "i32[7,2]<3"), CASE("experts=4", "i32[2,5,1]<5"),
    CASE("experts=2", "i32[2,3,4,2]<2"), CASE("experts=2", "i32[0,2]<2"), CASES_END};
static const wefti_op_case cases_dispatch[] = {
    CASE("experts=3 capacity=5", "f32[7,4]", "i32[7,2]<3", "i32[7,2]<6"),
    CASE("experts=3 capacity=4", "f32[2,3,5]", "i32[2,3,2]<3", "i32[2,3,2]<4", "f32[2,3,2]"),
    CASE("experts=2 capacity=3 first_expert=1 first_slot=2", "f32[9,3]", "i32[9,1]<4", "i32[9,1]<6",
         "f32[9,1]"),
    CASE("experts=2 capacity=4", "bf16[3,5,3]", "i32[3,5,2]<2", "i32[3,5,2]<4", "f32[3,5,2]"),
    CASE("experts=2 capacity=2", "f32[2,2,3,2]", "i32[2,2,3,1]<2", "i32[2,2,3,1]<2"),
    CASE("experts=1 capacity=1", "f32[1,1]", "i32[1,1]<1", "i32[1,1]<1"),
    CASE("experts=3 capacity=0", "f32[2,4]", "i32[2,1]<3", "i32[2,1]<1"),
    CASE("experts=2 capacity=3", "f32[2,0,4]", "i32[2,0,2]<2", "i32[2,0,2]<3", "f32[2,0,2]"),
    CASES_END};
static const wefti_op_case cases_combine[] = {
    CASE(NULL, "f32[3,5,4]", "i32[7,2]<3", "i32[7,2]<6"),
    CASE(NULL, "f32[3,2,4,5]", "i32[2,3,2]<3", "i32[2,3,2]<4", "f32[2,3,2]"),
    CASE("first_expert=1 first_slot=2", "f32[2,3,3]", "i32[9,1]<4", "i32[9,1]<6", "f32[9,1]"),
    CASE(NULL, "bf16[2,3,4,3]", "i32[3,5,2]<2", "i32[3,5,2]<4", "f32[3,5,2]"),
    CASE(NULL, "f32[2,2,2,2,2]", "i32[2,2,3,1]<2", "i32[2,2,3,1]<2"),
    CASE(NULL, "f32[1,1,1]", "i32[1,1]<1", "i32[1,1]<1"),
    CASE(NULL, "f32[3,0,4]", "i32[2,1]<3", "i32[2,1]<1"),
    CASE(NULL, "f32[2,2,3,4]", "i32[2,0,2]<2", "i32[2,0,2]<3", "f32[2,0,2]"),
    CASES_END};
static const wefti_op_case cases_dot[] = {
    CASE(NULL, "f32[3,5,4]", "i32[7,2]<3", "i32[7,2]<6", "f32[7,4]"),
    CASE("first_expert=1 first_slot=2", "f32[2,2,3,3]", "i32[2,4,1]<4", "i32[2,4,1]<6",
         "f32[2,4,3]"),
    CASE(NULL, "bf16[2,3,4,3]", "i32[3,5,2]<2", "i32[3,5,2]<4", "bf16[3,5,3]"),
    CASE(NULL, "f32[1,1,0]", "i32[1,1]<1", "i32[1,1]<1", "f32[1,0]"),
    CASE(NULL, "f32[2,3,4]", "i32[0,2]<2", "i32[0,2]<3", "f32[0,4]"),
    CASES_END};

const weft_op_def weft_op_moe_slots = {
    WEFTI_OP_NAME(moe_slots), .min_inputs = 1,
    .max_inputs = 2,          .attrs = attrs_slots,
    .infer = infer_slots,     .split = split_slots,
    .lower = lower_slots,     .lowers = 1u << WEFTI_FACTOR_STATS,
    .cost = cost_choices,     .reference = reference_slots,
    .cases = cases_slots,
};

const weft_op_def weft_op_moe_counts = {
    WEFTI_OP_NAME(moe_counts), .min_inputs = 1,
    .max_inputs = 1,           .attrs = attrs_counts,
    .infer = infer_counts,     .split = split_counts,
    .cost = cost_choices,      .reference = reference_counts,
    .cases = cases_counts,
};

const weft_op_def weft_op_moe_dispatch = {
    WEFTI_OP_NAME(moe_dispatch),
    .min_inputs = 3,
    .max_inputs = 4,
    .flags = WEFTI_OP_CHEAP,
    .attrs = attrs_dispatch,
    .infer = infer_dispatch,
    .grad = grad_dispatch,
    .split = split_dispatch,
    .localize = localize_dispatch,
    .cost = cost_rows,
    .reference = reference_dispatch,
    .cases = cases_dispatch,
};

const weft_op_def weft_op_moe_combine = {
    WEFTI_OP_NAME(moe_combine),
    .min_inputs = 3,
    .max_inputs = 4,
    .attrs = attrs_read,
    .infer = infer_combine,
    .grad = grad_combine,
    .split = split_combine,
    .localize = localize_read,
    .cost = cost_rows,
    .reference = reference_combine,
    .cases = cases_combine,
};

const weft_op_def weft_op_moe_dot = {
    WEFTI_OP_NAME(moe_dot),     .min_inputs = 4,           .max_inputs = 4,
    .attrs = attrs_read,        .infer = infer_dot,        .grad = grad_dot,
    .split = split_dot,         .localize = localize_read, .cost = cost_rows,
    .reference = reference_dot, .cases = cases_dot,
};

/* ---- builders ---- */

weft_value weft_moe_route(weft_graph *g, weft_value gates, int64_t k, int64_t capacity,
                          weft_routing *out) {
    weft_desc desc = weft_value_desc(g, gates);
    weft_routing r = {.count = WEFT_NO_VALUE,
                      .experts = desc.rank > 0 ? desc.shape[desc.rank - 1] : 0};
    weft_value slots[2];
    r.capacity = capacity != 0 || desc.rank < 2 ? capacity : desc.shape[desc.rank - 2];
    weft_value weight = weft_top_k(g, gates, k, &r.expert);
    wefti_graph_add(g, &weft_op_moe_slots, 1, &r.expert, 2,
                    (wefti_attr[]){WEFTI_I(experts, r.experts), WEFTI_I(capacity, r.capacity)}, 2,
                    slots);
    r.slot = slots[0];
    r.count = slots[1];
    *out = r;
    return weight;
}

weft_value weft_moe_dispatch(weft_graph *g, weft_value x, const weft_routing *routing) {
    return wefti_graph_add1(
        g, &weft_op_moe_dispatch, 4,
        (weft_value[]){x, routing->expert, routing->slot, WEFT_NO_VALUE}, 2,
        (wefti_attr[]){WEFTI_I(experts, routing->experts), WEFTI_I(capacity, routing->capacity)});
}

weft_value weft_moe_combine(weft_graph *g, weft_value y, const weft_routing *routing,
                            weft_value weight) {
    return wefti_graph_add1(g, &weft_op_moe_combine, 4,
                            (weft_value[]){y, routing->expert, routing->slot, weight}, 0, NULL);
}
