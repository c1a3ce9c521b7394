/* The saved set by minimum cut: see saved_set.h. Maximum flow by shortest augmenting paths (Edmonds
 * and Karp, J. ACM 19, 1972), which is fast enough because cells are small. */
#include "graph/grad/saved_set.h"

#include <string.h>

/* Whether memory traffic bounds the node, not arithmetic. Products, convolutions and attention are
 * never light, however small: the choice would differ from one size of a microbatch to another, and
 * the joint search reads a plan's kernels from programs of other sizes. */
static bool light(const weft_node *n) {
    wefti_cost cost;
    wefti_node_cost(n, &cost);
    return n->op->work != WEFTI_WORK_PRODUCT && cost.flops <= 8 * cost.bytes;
}

bool wefti_recompute_of(const weft_body *cell, int32_t v, const wefti_recompute_rule *rule,
                        const weft_op_def **out_op, int32_t *in, int *out_in_count) {
    const wefti_value_info *value = &cell->values[v];
    if (value->kind != WEFTI_VALUE_NODE || (rule->keep && rule->keep[v])) return false;
    const weft_node *n = &cell->nodes[value->node];
    bool cheap = (n->op->flags & (WEFTI_OP_CHEAP | WEFTI_OP_RESHAPE)) ||
                 rule->mode == WEFTI_RECOMPUTE_FULL ||
                 (rule->mode == WEFTI_RECOMPUTE_SELECTIVE && light(n));
    if (cheap && !(n->op->flags & WEFTI_OP_IN_PLACE)) {
        *out_op = n->op;
        *out_in_count = n->inputs;
        for (int k = 0; k < n->inputs; k++) in[k] = n->in[k];
        return true;
    }
    if (!n->op->apply || value->slot != 0) return false;
    int count = 0;
    for (; count < n->op->max_inputs; count++) in[count] = count < n->inputs ? n->in[count] : -1;
    for (int o = 1; o < n->outputs; o++) in[count++] = n->out[o];
    *out_op = n->op->apply;
    *out_in_count = count;
    return true;
}

typedef struct edge {
    int32_t to, next; /* next edge of the same vertex */
    int64_t room;
} edge;

/* Vertices: 0 is the source, 1 the sink. 2 + 2v is the arrival at value v, 3 + 2v its departure. */
typedef struct network {
    edge *edges;
    int64_t edge_count, edge_cap;
    int32_t *first, *via; /* per vertex: first edge; edge by which the search reached it */
    int32_t *queue;
    int64_t vertices;
} network;

enum { SOURCE = 0, SINK = 1 };
static const int64_t UNLIMITED = INT64_MAX / 4;

static int32_t arrival(int32_t v) {
    return 2 + 2 * v;
}
static int32_t departure(int32_t v) {
    return 3 + 2 * v;
}

static weft_status half_edge(network *net, int32_t from, int32_t to, int64_t room) {
    WEFT_TRY(WEFT_GROW(net->edges, net->edge_count, net->edge_cap));
    net->edges[net->edge_count] = (edge){to, net->first[from], room};
    net->first[from] = (int32_t)net->edge_count++;
    return WEFT_OK;
}

static weft_status connect(network *net, int32_t from, int32_t to, int64_t room) {
    WEFT_TRY(half_edge(net, from, to, room));
    return half_edge(net, to, from, 0);
}

/* Breadth-first search from the source. True if it reaches the sink. */
static bool search(network *net) {
    for (int64_t i = 0; i < net->vertices; i++) net->via[i] = -1;
    int64_t head = 0, tail = 0;
    net->queue[tail++] = SOURCE;
    while (head < tail && net->via[SINK] < 0) {
        int32_t at = net->queue[head++];
        for (int32_t e = net->first[at]; e >= 0; e = net->edges[e].next) {
            int32_t to = net->edges[e].to;
            if (to == SOURCE || net->via[to] >= 0 || net->edges[e].room == 0) continue;
            net->via[to] = e;
            net->queue[tail++] = to;
        }
    }
    return net->via[SINK] >= 0;
}

static void augment(network *net) {
    int64_t room = UNLIMITED;
    for (int32_t at = SINK; at != SOURCE; at = net->edges[net->via[at] ^ 1].to)
        if (net->edges[net->via[at]].room < room) room = net->edges[net->via[at]].room;
    for (int32_t at = SINK; at != SOURCE; at = net->edges[net->via[at] ^ 1].to) {
        net->edges[net->via[at]].room -= room;
        net->edges[net->via[at] ^ 1].room += room;
    }
}

/* Sets via >= 0 for the vertices from which the sink can still be reached. */
static void search_back(network *net) {
    for (int64_t i = 0; i < net->vertices; i++) net->via[i] = -1;
    int64_t head = 0, tail = 0;
    net->queue[tail++] = SINK;
    net->via[SINK] = 0;
    while (head < tail) {
        int32_t at = net->queue[head++];
        for (int32_t e = net->first[at]; e >= 0; e = net->edges[e].next) {
            int32_t from = net->edges[e].to;
            if (net->via[from] >= 0 || net->edges[e ^ 1].room == 0) continue;
            net->via[from] = 0;
            net->queue[tail++] = from;
        }
    }
}

/* The input for the decisions about the cell's values. */
typedef struct survey {
    const weft_body *cell;
    const bool *wanted;
    const wefti_recompute_rule *rule;
    bool full;
    wefti_fate *fate;
} survey;

static void settle(survey *s, int32_t v) {
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT];
    const weft_op_def *op;
    int count;
    if (!s->wanted[v] && s->fate[v] == WEFTI_FATE_UNUSED) return;
    bool output = false;
    for (int64_t o = 0; o < s->cell->out_count && !s->full; o++) output |= s->cell->out[o] == v;
    if (s->cell->values[v].kind != WEFTI_VALUE_NODE) {
        s->fate[v] = WEFTI_FATE_INPUT;
    } else if (output) {
        s->fate[v] = WEFTI_FATE_OUTPUT;
    } else if (!wefti_recompute_of(s->cell, v, s->rule, &op, in, &count)) {
        s->fate[v] = s->wanted[v] || s->full ? WEFTI_FATE_SAVED : WEFTI_FATE_RECOMPUTE;
    } else {
        s->fate[v] = WEFTI_FATE_RECOMPUTE;
        for (int k = 0; k < count; k++)
            if (in[k] >= 0 && s->fate[in[k]] == WEFTI_FATE_UNUSED)
                s->fate[in[k]] = WEFTI_FATE_RECOMPUTE;
    }
}

/* Marks all values from which the wanted values may be recomputed. Decides inputs, outputs and
 * values that must be saved; RECOMPUTE values remain for the cut. Readers come before their
 * operands: nodes in reverse order, but output 0 of a node first, since an `apply` op reads the
 * other outputs. */
static void collect(survey *s) {
    const weft_body *cell = s->cell;
    for (int64_t i = cell->node_count - 1; i >= 0; i--)
        for (int o = 0; o < cell->nodes[i].outputs; o++) settle(s, cell->nodes[i].out[o]);
    for (int64_t i = 0; i < cell->in_count; i++) settle(s, cell->in[i]);
}

static weft_status build(network *net, const survey *s, const wefti_fate *fate) {
    const weft_body *cell = s->cell;
    const bool *wanted = s->wanted;
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT];
    const weft_op_def *op;
    int count;
    for (int32_t v = 0; v < cell->value_count; v++) {
        if (fate[v] != WEFTI_FATE_RECOMPUTE) continue;
        const weft_op_def *maker = cell->nodes[cell->values[v].node].op;
        bool alias = maker->flags & WEFTI_OP_RESHAPE; /* never worth memory of its own */
        /* Bytes plus one: of cuts with equal bytes, prefer fewer values. */
        int64_t weight = alias ? UNLIMITED : weft_desc_bytes(&cell->values[v].desc) + 1;
        WEFT_TRY(connect(net, arrival(v), departure(v), weight));
        if (wanted[v]) WEFT_TRY(connect(net, departure(v), SINK, UNLIMITED));
        if (!wefti_recompute_of(cell, v, s->rule, &op, in, &count)) {
            WEFT_TRY(connect(net, SOURCE, arrival(v), UNLIMITED));
            continue;
        }
        for (int k = 0; k < count; k++)
            if (in[k] >= 0 && fate[in[k]] == WEFTI_FATE_RECOMPUTE)
                WEFT_TRY(connect(net, departure(in[k]), arrival(v), UNLIMITED));
    }
    return WEFT_OK;
}

static weft_status cut(network *net, const survey *s, wefti_fate *fate) {
    const weft_body *cell = s->cell;
    net->vertices = 2 + 2 * cell->value_count;
    WEFT_NEW_ARRAY(net->first, int32_t, net->vertices);
    WEFT_NEW_ARRAY(net->via, int32_t, net->vertices);
    WEFT_NEW_ARRAY(net->queue, int32_t, net->vertices);
    for (int64_t i = 0; i < net->vertices; i++) net->first[i] = -1;
    WEFT_TRY(build(net, s, fate));
    while (search(net)) augment(net);
    search_back(net); /* of equal cuts the one nearest to the readers, which recomputes least */
    for (int32_t v = 0; v < cell->value_count; v++)
        if (fate[v] == WEFTI_FATE_RECOMPUTE && net->via[arrival(v)] < 0 &&
            net->via[departure(v)] >= 0)
            fate[v] = WEFTI_FATE_SAVED;
    return WEFT_OK;
}

static void need(const survey *s, int32_t v, bool *needed) {
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT];
    const weft_op_def *op;
    int count;
    if (s->wanted[v]) needed[v] = true;
    if (!needed[v])
        s->fate[v] = WEFTI_FATE_UNUSED;
    else if (s->fate[v] == WEFTI_FATE_RECOMPUTE &&
             wefti_recompute_of(s->cell, v, s->rule, &op, in, &count))
        for (int k = 0; k < count; k++)
            if (in[k] >= 0) needed[in[k]] = true;
}

/* After the cut: drops values from which nothing is recomputed any more. */
static weft_status trim(const survey *s) {
    const weft_body *cell = s->cell;
    bool *needed;
    WEFT_NEW_ARRAY(needed, bool, cell->value_count);
    for (int64_t i = cell->node_count - 1; i >= 0; i--)
        for (int o = 0; o < cell->nodes[i].outputs; o++) need(s, cell->nodes[i].out[o], needed);
    for (int64_t i = 0; i < cell->in_count; i++) need(s, cell->in[i], needed);
    wefti_free(needed);
    return WEFT_OK;
}

weft_status wefti_saved_set(const weft_body *cell, const bool *wanted,
                            const wefti_recompute_rule *rule, wefti_fate *fate) {
    bool full = rule->mode == WEFTI_RECOMPUTE_FULL;
    survey s = {cell, wanted, rule, full, fate};
    for (int64_t v = 0; v < cell->value_count; v++) fate[v] = WEFTI_FATE_UNUSED;
    collect(&s);
    if (!full) {
        network net = {0};
        weft_status st = cut(&net, &s, fate);
        wefti_free(net.edges);
        wefti_free(net.first);
        wefti_free(net.via);
        wefti_free(net.queue);
        WEFT_TRY(st);
    }
    return trim(&s);
}
