/* Collectives in graphs, for models that divide their work by hand.
 *
 * All ranks of the world build the same graph. They differ in the data that they feed, and in their
 * parameters if those start or change differently. The world is divided into groups of `count`
 * ranks, `stride` apart. A rank communicates with the members of its own group. The total loss is
 * the sum of the losses of all ranks. Gradients are the gradients of that sum. The gradient of each
 * op is listed after the last semicolon:
 *
 *     all_reduce(x)          same shape. Gradient of sum: all_reduce sum; of max, min: in equal
 * parts to the members that have the extreme; prod has none all_gather(x)          members' x one
 * after the other along dimension 0; reduce_scatter reduce_scatter(x)      block number `place` of
 * the sum, along dimension 0; all_gather all_to_all(x)          block i of dimension 0 goes to
 * member i; all_to_all broadcast(x)           x of member `root`; reduce reduce(x)              the
 * sum on member `root`, zeros elsewhere; broadcast permute(x)             x of member from[own
 * place], zeros if that is -1; the inverse permute
 *
 * The reference kernel supports only groups of one process, which need no communication. In the
 * programs of a plan, each op is lowered to one transfer. */
#include <string.h>

#include "ops/common.h"

enum { GROUP_MOST = WEFTI_MAX_TABLE };

static int64_t count_of(const weft_node *n) {
    return wefti_attr_int(n, WEFTI_AT_count);
}

static weft_status check_group(const weft_node *n) {
    int64_t count = count_of(n), stride = wefti_attr_int(n, WEFTI_AT_stride);
    WEFT_REQUIRE(count >= 1 && count <= GROUP_MOST && stride >= 1 && stride <= 1 << 20, WEFT_E_ARG,
                 "%s: groups of %lld ranks, %lld apart; possible are 1 to %d ranks", n->op->name,
                 (long long)count, (long long)stride, GROUP_MOST);
    return WEFT_OK;
}

static weft_status check_member(const weft_node *n, wefti_attr_id id) {
    int64_t member = wefti_attr_int(n, id);
    WEFT_REQUIRE(member >= 0 && member < count_of(n), WEFT_E_ARG,
                 "%s: %s is member %lld of groups of %lld", n->op->name, wefti_attr_name(id),
                 (long long)member, (long long)count_of(n));
    return WEFT_OK;
}

/* ---- shapes ---- */

static weft_status infer_same(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    WEFT_TRY(check_group(n));
    *out = *wefti_in(n, 0);
    return WEFT_OK;
}

static weft_status infer_all_reduce(const weft_node *n, weft_desc *out, int *out_count) {
    int64_t reduction = wefti_attr_int(n, WEFTI_AT_reduction);
    WEFT_REQUIRE(reduction >= 0 && reduction < WEFT_REDUCTIONS, WEFT_E_ARG,
                 "all_reduce: unknown reduction %lld", (long long)reduction);
    return infer_same(n, out, out_count);
}

static weft_status infer_root(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check_group(n));
    WEFT_TRY(check_member(n, WEFTI_AT_root));
    return infer_same(n, out, out_count);
}

/* Each member receives from at most one member and sends to at most one member. */
static weft_status infer_permute(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(check_group(n));
    const wefti_table *from = wefti_attr_table(n, WEFTI_AT_from);
    bool gives[GROUP_MOST] = {false};
    WEFT_REQUIRE(from->count == count_of(n), WEFT_E_ARG,
                 "permute says for %d members from whom; groups have %lld", from->count,
                 (long long)count_of(n));
    for (int m = 0; m < from->count; m++) {
        int64_t giver = from->v[m];
        WEFT_REQUIRE(
            giver >= -1 && giver < from->count, WEFT_E_ARG,
            "permute: member %d takes from member %lld; there are 0 to %d, and -1 for none", m,
            (long long)giver, from->count - 1);
        WEFT_REQUIRE(giver < 0 || !gives[giver], WEFT_E_ARG,
                     "permute: members %d and another take from member %lld; only one may", m,
                     (long long)giver);
        if (giver >= 0) gives[giver] = true;
    }
    return infer_same(n, out, out_count);
}

static weft_status infer_all_gather(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(infer_same(n, out, out_count));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_REQUIRE(!wefti_mul_overflows(out->shape[0], count_of(n), &out->shape[0]), WEFT_E_SHAPE,
                 "all_gather: %s of %lld ranks is too large", TEXT(wefti_in(n, 0)),
                 (long long)count_of(n));
    return WEFT_OK;
}

static weft_status check_blocks(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(infer_same(n, out, out_count));
    WEFT_TRY(wefti_op_check_rank(n, 0, 1, WEFT_MAX_RANK));
    WEFT_REQUIRE(out->shape[0] % count_of(n) == 0, WEFT_E_SHAPE,
                 "%s: dimension 0 of %s is not divisible among %lld ranks", n->op->name,
                 TEXT(wefti_in(n, 0)), (long long)count_of(n));
    return WEFT_OK;
}

static weft_status infer_reduce_scatter(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(wefti_op_check_float(n, 0));
    WEFT_TRY(check_blocks(n, out, out_count));
    out->shape[0] /= count_of(n);
    return WEFT_OK;
}

/* ---- the part of one rank ---- */

/* Finds the members of this rank's group and the index of this rank among them. */
static weft_status find_group(wefti_lowering *c, const weft_node *n, int32_t *ranks,
                              int32_t *out_me) {
    const int64_t count = count_of(n), stride = wefti_attr_int(n, WEFTI_AT_stride);
    const wefti_lower_ranks all = wefti_lower_world(c);
    const int64_t first = all.rank / (count * stride) * (count * stride) + all.rank % stride;
    const int64_t last = first + (count - 1) * stride;
    WEFT_REQUIRE(last < all.world, WEFT_E_ARG,
                 "groups of %lld ranks, %lld apart, do not divide a world of %d", (long long)count,
                 (long long)stride, (int)all.world);
    WEFT_REQUIRE(first >= all.stage_first && last < all.stage_first + all.stage_size, WEFT_E_ARG,
                 "%s: groups of %lld ranks, %lld apart, have members in several stages: rank %d's "
                 "stage has the ranks %d to %d, and only ranks of one stage run its cells",
                 n->op->name, (long long)count, (long long)stride, (int)all.rank,
                 (int)all.stage_first, (int)(all.stage_first + all.stage_size - 1));
    for (int64_t m = 0; m < count; m++) ranks[m] = (int32_t)(first + m * stride);
    *out_me = (int32_t)((all.rank - first) / stride);
    return WEFT_OK;
}

typedef struct collective_pattern {
    const weft_node *n;
    int64_t elems, members; /* elements of the operand; members of the group */
    wefti_transfer_kind kind;
    wefti_reduction reduction;
    int rank;                 /* dimensions of the regions */
    const int64_t *from, *to; /* permute: the source and the destination of each member; -1: none */
} collective_pattern;

static void span(wefti_region *region, int d, int64_t begin, int64_t size) {
    region->begin[d] = begin;
    region->size[d] = size;
}

/* Sets the regions that member m has and wants. Each kind of transfer has its own rule. */
static void fill_regions(const collective_pattern *p, int64_t m, wefti_region *have,
                         wefti_region *want) {
    int64_t e = p->elems, block = e / p->members;
    switch (p->kind) {
    case WEFTI_TRANSFER_ALL_REDUCE:
        span(have, 0, 0, e);
        span(want, 0, 0, e);
        break;
    case WEFTI_TRANSFER_ALL_GATHER:
        span(have, 0, m * e, e);
        span(want, 0, 0, p->members * e);
        break;
    case WEFTI_TRANSFER_REDUCE_SCATTER:
        span(have, 0, 0, e);
        span(want, 0, m * block, block);
        break;
    case WEFTI_TRANSFER_ALL_TO_ALL: /* dimensions: [from, to, element] */
        span(have, 0, m, 1);
        span(have, 1, 0, p->members);
        span(have, 2, 0, block);
        span(want, 0, 0, p->members);
        span(want, 1, m, 1);
        span(want, 2, 0, block);
        break;
    case WEFTI_TRANSFER_BROADCAST:
        span(have, 0, 0, m == wefti_attr_int(p->n, WEFTI_AT_root) ? e : 0);
        span(want, 0, 0, e);
        break;
    case WEFTI_TRANSFER_REDUCE:
        span(have, 0, 0, e);
        span(want, 0, 0, m == wefti_attr_int(p->n, WEFTI_AT_root) ? e : 0);
        break;
    default: { /* permute */
        int64_t from = p->from[m];
        span(have, 0, m * e, p->to[m] >= 0 ? e : 0);
        span(want, 0, (from >= 0 ? from : 0) * e, from >= 0 ? e : 0);
    }
    }
}

static weft_status lower(wefti_lowering *c, collective_pattern *p) {
    weft_graph *g = wefti_lower_graph(c);
    weft_value x = wefti_lower_in(c, 0);
    int32_t ranks[GROUP_MOST], me = 0;
    p->members = count_of(p->n);
    p->elems = weft_desc_elems(wefti_in(p->n, 0));
    p->rank = p->kind == WEFTI_TRANSFER_ALL_TO_ALL ? 3 : 1;
    WEFT_TRY(find_group(c, p->n, ranks, &me));
    if (p->members == 1) {
        wefti_lower_out(c, 0, x);
        return WEFT_OK;
    }
    wefti_region *regions;
    WEFT_NEW_ARRAY(regions, wefti_region, 2 * p->members);
    for (int64_t m = 0; m < p->members; m++)
        fill_regions(p, m, &regions[m], &regions[p->members + m]);
    bool has = wefti_region_elems(&regions[me], p->rank) > 0;
    bool wants = wefti_region_elems(&regions[p->members + me], p->rank) > 0;
    /* a member that sends no data still needs an operand */
    if (!has && p->elems > 0) {
        weft_desc none = weft_desc_of(wefti_in(p->n, 0)->dtype, 1, (int64_t[]){0});
        x = weft_constant(g, none, 0.0);
    }
    weft_value y = wefti_lower_among(c, x, (int32_t)p->members, ranks, me, p->kind, p->reduction,
                                     p->rank, regions, regions + p->members);
    wefti_free(regions);
    weft_desc to = *wefti_out(p->n, 0);
    if (wants || p->elems == 0)
        y = weft_reshape(g, y, to.rank, to.shape);
    else
        y = weft_constant(g, to, 0.0);
    wefti_lower_out(c, 0, y);
    return WEFT_OK;
}

static weft_status lower_all_reduce(wefti_lowering *c, const weft_node *n) {
    wefti_reduction reduction = (wefti_reduction)(wefti_attr_int(n, WEFTI_AT_reduction) + 1);
    return lower(c, &(collective_pattern){
                        .n = n, .kind = WEFTI_TRANSFER_ALL_REDUCE, .reduction = reduction});
}
#define LOWER(name, kind_, reduction_)                                                             \
    static weft_status lower_##name(wefti_lowering *c, const weft_node *n) {                       \
        return lower(c, &(collective_pattern){.n = n,                                              \
                                              .kind = WEFTI_TRANSFER_##kind_,                      \
                                              .reduction = WEFTI_REDUCE_##reduction_});            \
    }
LOWER(all_gather, ALL_GATHER, NONE)
LOWER(reduce_scatter, REDUCE_SCATTER, SUM)
LOWER(all_to_all, ALL_TO_ALL, NONE)
LOWER(broadcast, BROADCAST, NONE)
LOWER(reduce, REDUCE, SUM)

/* Inverts a permutation: from the source of each member to the destination of each member. */
static void invert(const wefti_table *from, int64_t *out) {
    for (int m = 0; m < from->count; m++) out[m] = -1;
    for (int m = 0; m < from->count; m++)
        if (from->v[m] >= 0) out[from->v[m]] = m;
}

static weft_status lower_permute(wefti_lowering *c, const weft_node *n) {
    const wefti_table *from = wefti_attr_table(n, WEFTI_AT_from);
    int64_t to[GROUP_MOST];
    invert(from, to);
    if (from->count == 1 && from->v[0] < 0) {
        wefti_lower_out(c, 0, weft_constant(wefti_lower_graph(c), *wefti_out(n, 0), 0.0));
        return WEFT_OK;
    }
    return lower(c, &(collective_pattern){
                        .n = n, .kind = WEFTI_TRANSFER_PERMUTE, .from = from->v, .to = to});
}

/* No factors: every rank has the whole operands. */
static weft_status split_not(const weft_node *n, wefti_split_rule *r) {
    (void)n;
    (void)r;
    return WEFT_OK;
}

static weft_status alone(const weft_node *n, const wefti_random *random, const double *const *in,
                         double *const *out) {
    (void)random;
    WEFT_REQUIRE(count_of(n) == 1, WEFT_E_NO_IMPL,
                 "%s communicates in groups of %lld ranks: run it in a world of as many processes, "
                 "with a plan for so many devices",
                 n->op->name, (long long)count_of(n));
    size_t bytes = (size_t)weft_desc_elems(wefti_out(n, 0)) * sizeof(double);
    if (n->op == &weft_op_permute && wefti_attr_table(n, WEFTI_AT_from)->v[0] < 0)
        memset(out[0], 0, bytes);
    else
        memcpy(out[0], in[0], bytes);
    return WEFT_OK;
}

static void cost(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0, .bytes = wefti_node_bytes(n)};
}

/* ---- gradients ---- */

/* Adds `op` in groups of `count` ranks, with one more attribute (NULL: none). */
static weft_value add_op(weft_graph *g, const weft_op_def *op, weft_value x, int64_t count,
                         int64_t stride, const wefti_attr *more) {
    wefti_attr attrs[3] = {WEFTI_I(count, count), WEFTI_I(stride, stride)};
    if (more) attrs[2] = *more;
    return wefti_graph_add1(g, op, 1, &x, more ? 3 : 2, attrs);
}

/* Adds `op` in the groups of node n. */
static weft_value add_in_group(weft_graph *g, const weft_node *n, const weft_op_def *op,
                               weft_value x, const wefti_attr *more) {
    return add_op(g, op, x, count_of(n), wefti_attr_int(n, WEFTI_AT_stride), more);
}

static weft_value sum_of_all(weft_graph *g, const weft_node *n, weft_value x) {
    return add_in_group(g, n, &weft_op_all_reduce, x, NULL);
}

static weft_status grad_all_reduce(wefti_grad *g, const weft_node *n) {
    weft_graph *b = wefti_grad_graph(g);
    weft_value sum = sum_of_all(b, n, wefti_grad_of(g, n, 0));
    int64_t reduction = wefti_attr_int(n, WEFTI_AT_reduction);
    WEFT_REQUIRE(reduction != WEFT_REDUCE_PROD, WEFT_E_NO_IMPL,
                 "all_reduce prod has no gradient: use the logarithms' sum, or stop the gradient "
                 "before it");
    if (reduction != WEFT_REDUCE_SUM) {
        weft_dtype dtype = wefti_in(n, 0)->dtype;
        weft_value hit = weft_compare(b, wefti_grad_in(g, n, 0), wefti_grad_out(g, n, 0), WEFT_EQ);
        weft_value mine = weft_cast(b, hit, dtype);
        sum = weft_div(b, weft_mul(b, mine, sum), sum_of_all(b, n, mine));
    }
    wefti_grad_add(g, n, 0, sum);
    return WEFT_OK;
}

static weft_status add_dual(wefti_grad *g, const weft_node *n, const weft_op_def *op,
                            const wefti_attr *more) {
    wefti_grad_add(g, n, 0, add_in_group(wefti_grad_graph(g), n, op, wefti_grad_of(g, n, 0), more));
    return WEFT_OK;
}

static weft_status grad_all_gather(wefti_grad *g, const weft_node *n) {
    return add_dual(g, n, &weft_op_reduce_scatter, NULL);
}
static weft_status grad_reduce_scatter(wefti_grad *g, const weft_node *n) {
    return add_dual(g, n, &weft_op_all_gather, NULL);
}
static weft_status grad_all_to_all(wefti_grad *g, const weft_node *n) {
    return add_dual(g, n, &weft_op_all_to_all, NULL);
}
static weft_status grad_broadcast(wefti_grad *g, const weft_node *n) {
    return add_dual(g, n, &weft_op_reduce, &WEFTI_I(root, wefti_attr_int(n, WEFTI_AT_root)));
}
static weft_status grad_reduce(wefti_grad *g, const weft_node *n) {
    return add_dual(g, n, &weft_op_broadcast, &WEFTI_I(root, wefti_attr_int(n, WEFTI_AT_root)));
}
static weft_status grad_permute(wefti_grad *g, const weft_node *n) {
    const wefti_table *from = wefti_attr_table(n, WEFTI_AT_from);
    int64_t to[GROUP_MOST];
    invert(from, to);
    return add_dual(g, n, &weft_op_permute, &WEFTI_T(from, from->count, to));
}

/* ---- definitions ---- */

#define GROUP_ATTRS WEFTI_I(count, 1), WEFTI_I(stride, 1)
static const wefti_attr attrs_group[] = {GROUP_ATTRS, {0}};
static const wefti_attr attrs_all_reduce[] = {
    GROUP_ATTRS, WEFTI_I(reduction, WEFT_REDUCE_SUM), {0}};
static const wefti_attr attrs_root[] = {GROUP_ATTRS, WEFTI_I(root, 0), {0}};
static const int64_t itself[] = {0};
static const wefti_attr attrs_permute[] = {GROUP_ATTRS, WEFTI_T(from, 1, itself), {0}};

/* Groups of one. The tests in tests/program run larger groups on several devices. */
static const wefti_op_case cases_group[] = {CASE(NULL, "f32[4,3]"), CASE(NULL, "bf16[2]"),
                                            CASE(NULL, "f32[0,2]"), CASES_END};
static const wefti_op_case cases_any[] = {CASE(NULL, "f32[4,3]"), CASE(NULL, "f32[]"),
                                          CASE("stride=4", "bf16[2,0]"), CASES_END};
static const wefti_op_case cases_permute[] = {CASE(NULL, "f32[4,3]"), CASE("from=(-1)", "f32[2]"),
                                              CASE("from=(0) stride=4", "bf16[2,0]"), CASES_END};
static const wefti_op_case cases_all_reduce[] = {
    CASE(NULL, "f32[4,3]"), CASE("reduction=1", "f32[5]"), CASE("reduction=2", "f32[]"),
    CASE("stride=2", "bf16[3]"), CASES_END};

#define GROUP_OP(name_, infer_, attrs_, cases_)                                                    \
    const weft_op_def weft_op_##name_ = {                                                          \
        WEFTI_OP_NAME(name_), .min_inputs = 1,    .max_inputs = 1,      .flags = WEFTI_OP_GROUP,   \
        .attrs = attrs_,      .infer = infer_,    .grad = grad_##name_, .split = split_not,        \
        .cost = cost,         .reference = alone, .cases = cases_,      .lower = lower_##name_,    \
    };
GROUP_OP(all_reduce, infer_all_reduce, attrs_all_reduce, cases_all_reduce)
GROUP_OP(all_gather, infer_all_gather, attrs_group, cases_group)
GROUP_OP(reduce_scatter, infer_reduce_scatter, attrs_group, cases_group)
GROUP_OP(all_to_all, check_blocks, attrs_group, cases_group)
GROUP_OP(broadcast, infer_root, attrs_root, cases_any)
GROUP_OP(reduce, infer_root, attrs_root, cases_any)
GROUP_OP(permute, infer_permute, attrs_permute, cases_permute)

/* ---- public ---- */

weft_value weft_graph_all_reduce(weft_graph *g, weft_value x, weft_ranks group,
                                 weft_reduction reduction) {
    return add_op(g, &weft_op_all_reduce, x, group.count, group.stride,
                  &WEFTI_I(reduction, reduction));
}
weft_value weft_graph_all_gather(weft_graph *g, weft_value x, weft_ranks group) {
    return add_op(g, &weft_op_all_gather, x, group.count, group.stride, NULL);
}
weft_value weft_graph_reduce_scatter(weft_graph *g, weft_value x, weft_ranks group) {
    return add_op(g, &weft_op_reduce_scatter, x, group.count, group.stride, NULL);
}
weft_value weft_graph_broadcast(weft_graph *g, weft_value x, weft_ranks group, int root) {
    return add_op(g, &weft_op_broadcast, x, group.count, group.stride, &WEFTI_I(root, root));
}
weft_value weft_graph_reduce(weft_graph *g, weft_value x, weft_ranks group, int root) {
    return add_op(g, &weft_op_reduce, x, group.count, group.stride, &WEFTI_I(root, root));
}
weft_value weft_graph_permute(weft_graph *g, weft_value x, weft_ranks group, const int *from) {
    int64_t table[GROUP_MOST];
    int count = group.count > GROUP_MOST || !from ? 0 : group.count;
    for (int m = 0; m < count; m++) table[m] = from[m];
    return add_op(g, &weft_op_permute, x, group.count, group.stride, &WEFTI_T(from, count, table));
}
weft_value weft_graph_send(weft_graph *g, weft_value x, weft_ranks group, int from, int to) {
    int table[GROUP_MOST];
    bool legal = group.count <= GROUP_MOST && to >= 0 && to < group.count && from >= 0;
    if (!legal && wefti_graph_ok(g))
        wefti_graph_fail(g,
                         WEFT_RAISE(WEFT_E_ARG, "send from member %d to member %d of groups of %d",
                                    from, to, group.count));
    if (!legal) return WEFT_NO_VALUE;
    for (int m = 0; m < group.count; m++) table[m] = m == to ? from : -1;
    return weft_graph_permute(g, x, group, table);
}

/* Dimension `split` is divided into one block for each member; the received blocks are joined along
 * `join`. Steps: make a dimension of members, transpose it to the front, exchange, transpose it to
 * the place of `join`, merge. */
weft_value weft_graph_all_to_all(weft_graph *g, weft_value x, weft_ranks group, int split,
                                 int join) {
    weft_desc d = weft_value_desc(g, x);
    if (d.rank < 0) return WEFT_NO_VALUE;
    int64_t shape[WEFT_MAX_RANK + 1], parts = group.count > 0 ? group.count : 1;
    int order[WEFT_MAX_RANK], rank = d.rank;
    split = split < 0 ? split + rank : split;
    join = join < 0 ? join + rank : join;
    if (split < 0 || join < 0 || split >= rank || join >= rank || rank == WEFT_MAX_RANK ||
        d.shape[split] % parts != 0) {
        wefti_graph_fail(g, WEFT_RAISE(WEFT_E_SHAPE,
                                       "all_to_all: %s has no dimension %d that %lld ranks divide, "
                                       "and %d to join along",
                                       TEXT(&d), split, (long long)parts, join));
        return WEFT_NO_VALUE;
    }
    for (int k = 0; k < rank; k++) shape[k < split ? k : k + 1] = d.shape[k];
    shape[split] = parts;
    shape[split + 1] = d.shape[split] / parts;
    x = weft_reshape(g, x, rank + 1, shape);
    order[0] = split;
    for (int k = 1; k <= rank; k++) order[k] = k <= split ? k - 1 : k;
    x = weft_transpose(g, x, rank + 1, order);
    x = add_op(g, &weft_op_all_to_all, x, group.count, group.stride, NULL);
    for (int k = 0; k <= rank; k++) order[k] = k < join ? k + 1 : k == join ? 0 : k;
    x = weft_transpose(g, x, rank + 1, order);
    for (int k = 0; k < rank; k++) shape[k] = k == split ? d.shape[k] / parts : d.shape[k];
    shape[join] *= parts;
    return weft_reshape(g, x, rank, shape);
}
