/* Double recursive search: the devices are divided again and again, by one prime factor in each
 * round. In a round each op with a cost model is cut along one of its dimensions, or not at all.
 * Heavier ops choose first. The other ops get their strategies from their neighbors at the end.
 *
 * The cost of a cut of a product I x K times K x J by p devices is the traffic that it causes:
 *
 *     I: J K (p-1)/p 0.25, for gradients of the weights, which other work hides in part
 *     J: I K (p-1)/p
 *     K: I J (p-1)/p
 *
 * and 16 times the size of each operand or result that a neighbor has cut otherwise in the round.
 * Sizes are those that earlier rounds left. Source: the MindSpore documentation, "Double Recursion
 * Strategy Search"; halving by two is its case p = 2.
 *
 * These costs are relative, and the rounds are greedy. So the result is compared with data
 * parallelism in seconds (seconds.c), and the shorter one is taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "search/find.h"

static const double hidden = 0.25, mismatch = 16;

/* How a factor of an op counts as one of the three dimensions of a product. */
typedef enum cut_role {
    ROLE_NONE,
    ROLE_BATCH, /* I: rows of the operand, and batches */
    ROLE_INNER, /* K: summed */
    ROLE_OUTER  /* J: columns of the weight */
} cut_role;

typedef struct modelled {
    int32_t node;
    uint8_t roles[WEFTI_MAX_FACTORS];
    double sizes[WEFTI_MAX_FACTORS]; /* what is left */
    int8_t round[WEFTI_MAX_AXES];    /* factor of each round; -1: none */
    double weight;
    bool batch_only; /* no weight: visited first */
} modelled;

/* Two ops with a model, with only ops in between that keep the shape. */
typedef struct tie {
    int32_t other; /* number of the op with a model */
    int32_t next;
    int8_t factor[WEFT_MAX_RANK], other_factor[WEFT_MAX_RANK]; /* of each dimension of the value */
    double elements;
    int rank;
} tie;

/* An op in the order of a round. */
typedef struct in_turn {
    bool batch_only;
    double weight;
    int32_t number;
} in_turn;

typedef struct recursion {
    wefti_find *f;
    modelled *ops;
    int32_t count;
    int32_t *number; /* per node: of its op with a model, -1 */
    int32_t *first;  /* per op with a model: its first tie */
    tie *ties;
    int64_t tie_count, tie_cap;
    in_turn *order;
    bool *decided; /* per op with a model, in the round; per node at the end */
} recursion;

/* ---- ops with a model ---- */

typedef enum cost_model { MODEL_NONE, MODEL_PRODUCT, MODEL_BATCH } cost_model;

/* Products have three roles. Pooling, norms over batches and losses are split by their batch. */
static cost_model model_of_family(wefti_op_family family) {
    switch (family) {
    case WEFTI_FAMILY_MATRIX:
    case WEFTI_FAMILY_PRODUCT:
        return MODEL_PRODUCT;
    case WEFTI_FAMILY_POOL:
    case WEFTI_FAMILY_BATCH_NORM:
    case WEFTI_FAMILY_LOSS:
        return MODEL_BATCH;
    case WEFTI_FAMILY_ROW_NORM:
    case WEFTI_FAMILY_OTHER:
        break;
    }
    return MODEL_NONE;
}

static bool dims_have(const int8_t *dims, const weft_desc *desc, int f) {
    for (int d = 0; desc && d < desc->rank; d++)
        if (dims[d] == f) return true;
    return false;
}

/* False: the op has no cost model. */
static bool model_of(const wefti_choice_node *n, modelled *out) {
    const cost_model model = n->op ? model_of_family(n->op->op->family) : MODEL_NONE;
    const bool product = model == MODEL_PRODUCT;
    if (model == MODEL_NONE) return false;
    out->batch_only = !product;
    for (int f = 0; f < n->rule.factors; f++) {
        wefti_factor_kind kind = n->rule.factor[f].kind;
        const bool left = dims_have(n->rule.in[0], wefti_in(n->op, 0), f),
                   right = n->op->inputs > 1 && dims_have(n->rule.in[1], wefti_in(n->op, 1), f),
                   result = dims_have(n->rule.out[0], wefti_out(n->op, 0), f);
        out->sizes[f] = (double)n->rule.factor[f].size;
        out->roles[f] = ROLE_NONE;
        if (kind == WEFTI_FACTOR_WHOLE || kind == WEFTI_FACTOR_HALO || kind == WEFTI_FACTOR_RING)
            continue;
        if (!product)
            out->roles[f] = n->rule.in[0][0] == f ? ROLE_BATCH : ROLE_NONE;
        else if (left && !(right && !result))
            out->roles[f] = ROLE_BATCH;
        else if (right && (result || kind != WEFTI_FACTOR_SUM) && !left)
            out->roles[f] = ROLE_OUTER;
        else
            out->roles[f] = ROLE_INNER;
    }
    return true;
}

static double product_of(const modelled *m, cut_role which, int factors) {
    double size = 1;
    for (int f = 0; f < factors; f++)
        if (m->roles[f] == (uint8_t)which) size *= m->sizes[f];
    return size;
}

static int factors_of(const recursion *r, const modelled *m) {
    return r->f->graph->nodes[m->node].rule.factors;
}

/* Traffic of a cut of factor f among p devices. */
static double cut_cost(const recursion *r, const modelled *m, int f, int32_t p) {
    const int factors = factors_of(r, m);
    const double rows = product_of(m, ROLE_BATCH, factors),
                 inner = product_of(m, ROLE_INNER, factors),
                 outer = product_of(m, ROLE_OUTER, factors), share = (double)(p - 1) / p;
    switch (m->roles[f]) {
    case ROLE_BATCH:
        return m->batch_only ? 0 : outer * inner * share * hidden;
    case ROLE_OUTER:
        return rows * inner * share;
    case ROLE_INNER:
        return rows * outer * share;
    default:
        return INFINITY;
    }
}

static void weigh(const recursion *r, modelled *m, int32_t p) {
    m->weight = 0;
    for (int f = 0; f < factors_of(r, m); f++) {
        double cost = cut_cost(r, m, f, p);
        if (isfinite(cost) && cost > m->weight) m->weight = cost;
    }
}

/* ---- neighbors ---- */

static weft_status add_tie(recursion *r, int32_t from, int32_t to, const int8_t *dims,
                           const int8_t *other, const weft_desc *desc) {
    WEFT_TRY(WEFT_GROW(r->ties, r->tie_count, r->tie_cap));
    tie *t = &r->ties[r->tie_count];
    *t = (tie){.other = to,
               .next = r->first[from],
               .elements = (double)weft_desc_elems(desc),
               .rank = desc->rank};
    memcpy(t->factor, dims, sizeof t->factor);
    memcpy(t->other_factor, other, sizeof t->other_factor);
    r->first[from] = (int32_t)r->tie_count++;
    return WEFT_OK;
}

static bool same_shape(const weft_desc *a, const weft_desc *b) {
    if (!a || !b || a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

/* The edge into input 0 of an elementwise op that keeps the shape; NULL: another op. */
static const wefti_choice_edge *behind(const wefti_choice_graph *g, const wefti_choice_node *n) {
    if (!n->op || !(n->op->op->flags & WEFTI_OP_ELEMENTWISE)) return NULL;
    for (int32_t e = n->feeder; e >= 0; e = g->edges[e].next_to)
        if (g->edges[e].input == 0 && same_shape(wefti_in(n->op, 0), wefti_out(n->op, 0)))
            return &g->edges[e];
    return NULL;
}

static weft_status tie_neighbors(recursion *r) {
    enum { STEPS = 64 };
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t k = 0; k < g->edge_count; k++) {
        const wefti_choice_edge *e = &g->edges[k], *from = e;
        const int32_t reader = r->number[e->to];
        if (reader < 0) continue;
        for (int step = 0; from && r->number[from->from] < 0 && step < STEPS; step++)
            from = behind(g, &g->nodes[from->from]);
        if (!from || r->number[from->from] < 0 || from->from == e->to) continue;
        const wefti_choice_node *a = &g->nodes[from->from], *b = &g->nodes[e->to];
        const int8_t *made = a->rule.out[from->output], *read = b->rule.in[e->input];
        const weft_desc *desc = wefti_choice_desc(g, e);
        WEFT_TRY(add_tie(r, r->number[from->from], reader, made, read, desc));
        WEFT_TRY(add_tie(r, reader, r->number[from->from], read, made, desc));
    }
    return WEFT_OK;
}

/* The dimension of a value that a factor cuts; -1: none. */
static int cut_dimension(const int8_t *factors, int rank, int f) {
    for (int d = 0; d < rank && f >= 0; d++)
        if (factors[d] == f) return d;
    return -1;
}

static double neighbor_cost(const recursion *r, const modelled *m, int f, int round) {
    double cost = 0;
    for (int32_t k = r->first[m - r->ops]; k >= 0; k = r->ties[k].next) {
        const tie *t = &r->ties[k];
        if (!r->decided[t->other]) continue;
        int own = cut_dimension(t->factor, t->rank, f),
            other = cut_dimension(t->other_factor, t->rank, r->ops[t->other].round[round]);
        if (own != other) cost += mismatch * t->elements;
    }
    return cost;
}

/* ---- rounds ---- */

/* Ops that only a batch splits come first, then heavier ops before lighter ones. */
static int compare(const void *a, const void *b) {
    const in_turn *x = a, *y = b;
    if (x->batch_only != y->batch_only) return x->batch_only ? -1 : 1;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* I before J before K where costs are equal. */
static const uint8_t preferred[] = {ROLE_BATCH, ROLE_OUTER, ROLE_INNER};

static void cut(recursion *r, modelled *m, int round, int32_t p) {
    double least = INFINITY;
    m->round[round] = -1;
    for (int k = 0; k < 3; k++)
        for (int f = 0; f < factors_of(r, m); f++) {
            if (m->roles[f] != preferred[k] || m->sizes[f] < p || fmod(m->sizes[f], p) != 0)
                continue;
            double cost = cut_cost(r, m, f, p) + neighbor_cost(r, m, f, round);
            r->f->searched++;
            if (cost >= least) continue;
            least = cost;
            m->round[round] = (int8_t)f;
        }
    if (m->round[round] >= 0) m->sizes[m->round[round]] /= p;
}

static void run_round(recursion *r, int round) {
    const wefti_choice_graph *g = r->f->graph;
    const int32_t p = g->mesh.axis[round].size;
    for (int32_t i = 0; i < r->count; i++) {
        modelled *m = &r->ops[i];
        weigh(r, m, p);
        r->order[i] = (in_turn){m->batch_only, m->weight, i};
        r->decided[i] = false;
    }
    qsort(r->order, (size_t)r->count, sizeof *r->order, compare);
    for (int32_t i = 0; i < r->count; i++) { /* the user's first: others adapt to them */
        const wefti_choice_node *n = &g->nodes[r->ops[i].node];
        if (!n->configured) continue;
        r->ops[i].round[round] = n->strategies[0].factor[round];
        r->decided[i] = true;
    }
    for (int32_t i = 0; i < r->count; i++) {
        int32_t k = r->order[i].number;
        if (r->decided[k]) continue;
        if (p > 1) cut(r, &r->ops[k], round, p);
        r->decided[k] = true;
    }
}

/* ---- axes ---- */

/* Factors take axes of equal size in their order, as MindSpore's device matrix does. In a user's
 * mesh each round keeps its axis. */
static void assign_axes(const recursion *r, const modelled *m, wefti_assignment *out) {
    const wefti_choice_graph *g = r->f->graph;
    const wefti_choice_node *n = &g->nodes[m->node];
    memset(out, -1, sizeof *out);
    if (n->configured) {
        *out = n->strategies[0];
        return;
    }
    for (int a = 0; a < g->mesh.axes; a++) {
        if (g->mesh_given) {
            out->factor[a] = m->round[a];
            continue;
        }
        int seen = 0, before = 0; /* rounds of this size: of smaller factors, and axes before */
        for (int b = 0; b < a; b++) before += g->mesh.axis[b].size == g->mesh.axis[a].size;
        for (int f = 0; f < n->rule.factors && out->factor[a] < 0; f++)
            for (int b = 0; b < g->mesh.axes; b++)
                if (g->mesh.axis[b].size == g->mesh.axis[a].size && m->round[b] == f &&
                    seen++ == before)
                    out->factor[a] = (int8_t)f;
    }
}

/* ---- ops without a model ---- */

static bool can_take(const wefti_choice_graph *g, const wefti_choice_node *n,
                     const wefti_assignment *s, int f, int axis) {
    if (f < 0) return false;
    wefti_factor_kind kind = n->rule.factor[f].kind;
    const weft_node *op = n->op;
    if (kind == WEFTI_FACTOR_WHOLE || kind == WEFTI_FACTOR_HALO || kind == WEFTI_FACTOR_RING)
        return false;
    if ((kind == WEFTI_FACTOR_STATS || kind == WEFTI_FACTOR_LOOKUP) &&
        !(op && op->op->lower && op->op->lowers >> kind & 1))
        return false;
    int64_t parts = wefti_choice_parts(&g->mesh, s, f) * g->mesh.axis[axis].size;
    return n->rule.factor[f].size % parts == 0;
}

/* Takes the layout of a value: `from` are the factors of its dimensions at the neighbor, `to` at
 * the node. */
static void take_layout(const wefti_choice_graph *g, const wefti_choice_node *n,
                        const wefti_assignment *neighbor, const int8_t *from, const int8_t *to,
                        int rank, wefti_assignment *out) {
    memset(out, -1, sizeof *out);
    for (int a = 0; a < g->mesh.axes; a++)
        for (int d = 0; d < rank; d++)
            if (neighbor->factor[a] >= 0 && from[d] == neighbor->factor[a] &&
                can_take(g, n, out, to[d], a))
                out->factor[a] = to[d];
}

/* The decided producer of the largest operand. */
static const wefti_choice_edge *largest_operand(const recursion *r, const wefti_choice_node *n) {
    const wefti_choice_graph *g = r->f->graph;
    const wefti_choice_edge *best = NULL;
    for (int32_t k = n->feeder; k >= 0; k = g->edges[k].next_to) {
        const wefti_choice_edge *e = &g->edges[k];
        if (!r->decided[e->from] || !g->nodes[e->from].op) continue;
        int64_t elements = weft_desc_elems(wefti_choice_desc(g, e)),
                most = best ? weft_desc_elems(wefti_choice_desc(g, best)) : -1;
        if (elements > most || (elements == most && e->input < best->input)) best = e;
    }
    return best;
}

static void follow_producers(recursion *r) {
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        const wefti_choice_edge *e = r->decided[i] || !n->op ? NULL : largest_operand(r, n);
        if (!e) continue;
        take_layout(g, n, &r->f->assigned[e->from], g->nodes[e->from].rule.out[e->output],
                    n->rule.in[e->input], wefti_choice_desc(g, e)->rank, &r->f->assigned[i]);
        r->decided[i] = true;
    }
}

/* Ops that only inputs feed are split by the batch. */
static void split_batches(recursion *r) {
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        if (r->decided[i] || !n->op || n->op->inputs == 0 || !wefti_in(n->op, 0)) continue;
        bool only_inputs = n->feeder >= 0;
        for (int32_t k = n->feeder; k >= 0; k = g->edges[k].next_to)
            only_inputs &= g->nodes[g->edges[k].from].op == NULL || r->decided[g->edges[k].from];
        if (!only_inputs || wefti_in(n->op, 0)->rank == 0) continue;
        const int f = n->rule.in[0][0];
        for (int a = 0; a < g->mesh.axes; a++)
            if (can_take(g, n, &r->f->assigned[i], f, a)) r->f->assigned[i].factor[a] = (int8_t)f;
        r->decided[i] = true;
    }
}

static void follow_readers(recursion *r) {
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t i = g->node_count - 1; i >= 0; i--) {
        const wefti_choice_node *n = &g->nodes[i];
        for (int32_t k = n->reader; k >= 0 && !r->decided[i]; k = g->edges[k].next_from) {
            const wefti_choice_edge *e = &g->edges[k];
            if (!r->decided[e->to]) continue;
            take_layout(g, n, &r->f->assigned[e->to], g->nodes[e->to].rule.in[e->input],
                        n->rule.out[e->output], wefti_choice_desc(g, e)->rank, &r->f->assigned[i]);
            r->decided[i] = true;
        }
    }
}

static void decide_rest(recursion *r) {
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t i = 0; i < g->node_count; i++) {
        memset(&r->f->assigned[i], -1, sizeof r->f->assigned[i]);
        r->decided[i] = r->number[i] >= 0 || g->nodes[i].configured;
        if (r->number[i] >= 0)
            assign_axes(r, &r->ops[r->number[i]], &r->f->assigned[i]);
        else if (g->nodes[i].configured)
            r->f->assigned[i] = g->nodes[i].strategies[0];
    }
    if (!r->count) return; /* everything is whole */
    follow_producers(r);
    split_batches(r);
    follow_producers(r); /* of those */
    follow_readers(r);
}

/* ---- the search ---- */

static weft_status find(recursion *r) {
    const wefti_choice_graph *g = r->f->graph;
    for (int32_t i = 0; i < g->node_count; i++) {
        modelled m = {.node = i};
        memset(m.round, -1, sizeof m.round);
        r->number[i] = model_of(&g->nodes[i], &m) ? r->count : -1;
        if (r->number[i] < 0) continue;
        r->first[r->count] = -1;
        r->ops[r->count++] = m;
    }
    WEFT_TRY(tie_neighbors(r));
    for (int round = 0; round < g->mesh.axes; round++) run_round(r, round);
    decide_rest(r);
    return WEFT_OK;
}

static weft_status check_memory(const wefti_find *f) {
    const double has = f->options->cost.capacity * f->graph->plan->pipeline.stages,
                 needs = wefti_find_total(f).memory;
    WEFT_REQUIRE(needs <= has, WEFT_E_NOMEM,
                 "the recursive search needs %.0f bytes on each device, %.0f more than the %.0f of "
                 "parallel.cost.capacity: use more devices, or parallel.search=dynamic, which "
                 "knows this limit",
                 needs, needs - has, has);
    return WEFT_OK;
}

weft_status wefti_find_recursive(wefti_find *f) {
    recursion r = {.f = f};
    const size_t nodes = (size_t)f->graph->node_count + 1;
    r.ops = wefti_calloc(nodes, sizeof *r.ops);
    r.number = wefti_calloc(nodes, sizeof *r.number);
    r.first = wefti_calloc(nodes, sizeof *r.first);
    r.order = wefti_calloc(nodes, sizeof *r.order);
    r.decided = wefti_calloc(nodes, sizeof *r.decided);
    weft_status status = r.ops && r.number && r.first && r.order && r.decided
                             ? find(&r)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
    if (status >= 0) status = check_memory(f);
    wefti_free(r.ops);
    wefti_free(r.number);
    wefti_free(r.first);
    wefti_free(r.order);
    wefti_free(r.decided);
    wefti_free(r.ties);
    return status;
}

/* ---- data parallelism ---- */

/* The decided producer of the largest operand, fed inputs too. */
static const wefti_choice_edge *batch_operand(const wefti_choice_graph *g, const bool *decided,
                                              const wefti_choice_node *n) {
    const wefti_choice_edge *best = NULL;
    for (int32_t k = n->feeder; k >= 0; k = g->edges[k].next_to) {
        const wefti_choice_edge *e = &g->edges[k];
        if (!decided[e->from]) continue;
        int64_t elements = weft_desc_elems(wefti_choice_desc(g, e)),
                most = best ? weft_desc_elems(wefti_choice_desc(g, best)) : -1;
        if (elements > most || (elements == most && e->input < best->input)) best = e;
    }
    return best;
}

/* Inputs are split by their first dimension, and all ops follow. */
static void split_by_batch(const wefti_choice_graph *g, bool *decided, wefti_assignment *out) {
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        memset(&out[i], -1, sizeof out[i]);
        decided[i] = !n->op && g->graph->root->values[n->tensor].kind == WEFTI_VALUE_INPUT;
        if (!decided[i] || wefti_choice_output(g, n, 0)->rank == 0) continue;
        for (int a = 0; a < g->mesh.axes; a++)
            if (can_take(g, n, &out[i], n->rule.out[0][0], a)) out[i].factor[a] = n->rule.out[0][0];
    }
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        const wefti_choice_edge *e = n->op ? batch_operand(g, decided, n) : NULL;
        if (!e) continue;
        take_layout(g, n, &out[e->from], g->nodes[e->from].rule.out[e->output],
                    n->rule.in[e->input], wefti_choice_desc(g, e)->rank, &out[i]);
        decided[i] = true;
    }
}

/* The shorter of two assignments in seconds; of equal ones, the first. */
static void keep_shorter(wefti_find *f, wefti_assignment *batches) {
    wefti_find timed = *f, other;
    timed.pricing = wefti_seconds_pricing(&f->options->cost);
    other = timed;
    other.assigned = batches;
    const wefti_choice_cost own = wefti_find_total(&timed), data = wefti_find_total(&other);
    if (data.time >= own.time ||
        data.memory > f->options->cost.capacity * f->graph->plan->pipeline.stages)
        return;
    memcpy(f->assigned, batches, (size_t)f->graph->node_count * sizeof *batches);
    wefti_text_add(&f->notes,
                   "data parallelism is estimated at %.3g s a step, the plan of the recursive "
                   "search at %.3g s: data parallelism is taken\n",
                   data.time, own.time);
}

weft_status wefti_find_or_batches(wefti_find *f) {
    const wefti_choice_graph *g = f->graph;
    wefti_assignment *batches;
    for (int32_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].configured) return WEFT_OK;
    WEFT_NEW_ARRAY(batches, wefti_assignment, g->node_count + 1);
    bool *decided = wefti_calloc((size_t)g->node_count + 1, sizeof *decided);
    if (decided) {
        split_by_batch(g, decided, batches);
        keep_shorter(f, batches);
    }
    const weft_status status =
        decided ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
    wefti_free(decided);
    wefti_free(batches);
    return status;
}
