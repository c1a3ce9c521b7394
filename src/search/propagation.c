/* Sharding propagation: strategies spread from the ops that the user configures.
 *
 * A breadth-first search starts at each configured op, in the order of the graph. From each op it
 * visits first the readers of its results, then the producers of its operands. A neighbor without a
 * strategy gets the one whose edge needs no communication and that computes least. Of equals it is
 * the one with least communication of its own, and then the first one. If each edge communicates,
 * the cheapest edge counts, and a warning says so. A strategy that an op has is never changed.
 * Source: the MindSpore documentation, "Sharding Propagation". */
#include <math.h>

#include "search/find.h"

typedef struct propagation {
    wefti_find *f;
    bool *known;         /* per node: it has its strategy */
    int32_t *queue, *at; /* nodes; per node: the number of its strategy */
    int32_t first, last;
} propagation;

static void decide(propagation *p, int32_t node, int32_t strategy) {
    p->known[node] = true;
    p->at[node] = strategy;
    p->f->assigned[node] = p->f->graph->nodes[node].strategies[strategy];
    p->queue[p->last++] = node;
}

/* Whether `a` is a better strategy for a neighbor than `b`, by (edge, own). */
static bool is_better(const wefti_choice_cost *edge_a, const wefti_choice_cost *own_a,
                      const wefti_choice_cost *edge_b, const wefti_choice_cost *own_b) {
    const bool free_a = edge_a->transfer <= 0, free_b = edge_b->transfer <= 0;
    if (isinf(edge_a->time) != isinf(edge_b->time)) return isinf(edge_b->time);
    if (free_a != free_b) return free_a;
    if (!free_a && edge_a->time != edge_b->time) return edge_a->time < edge_b->time;
    if (own_a->compute != own_b->compute) return own_a->compute < own_b->compute;
    return own_a->transfer < own_b->transfer;
}

/* Gives the other end of an edge its strategy. `forward`: from the producer to the reader. */
static weft_status spread(propagation *p, const wefti_choice_edge *e, bool forward) {
    const wefti_choice_graph *g = p->f->graph;
    const int32_t here = forward ? e->from : e->to, there = forward ? e->to : e->from;
    const wefti_choice_node *n = &g->nodes[there];
    if (p->known[there]) return WEFT_OK;
    const int32_t width = g->nodes[e->to].count;
    wefti_choice_cost *edge, *own;
    WEFT_NEW_ARRAY(edge, wefti_choice_cost, (int64_t)g->nodes[e->from].count * width);
    own = wefti_calloc((size_t)n->count, sizeof *own);
    weft_status status = own ? wefti_find_price_edge(p->f, e, edge)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
    if (status >= 0) {
        int32_t best = 0;
        wefti_find_price_node(p->f, n, own);
        p->f->searched += n->count;
#define EDGE_OF(s)                                                                                 \
    edge[forward ? (int64_t)p->at[here] * width + (s) : (int64_t)(s)*width + p->at[here]]
        for (int32_t s = 1; s < n->count; s++)
            if (is_better(&EDGE_OF(s), &own[s], &EDGE_OF(best), &own[best])) best = s;
#undef EDGE_OF
        decide(p, there, best);
    }
    wefti_free(edge);
    wefti_free(own);
    return status;
}

/* Edges were listed in reverse order. Visits them in the order of the graph. */
static weft_status spread_all(propagation *p, int32_t node, bool forward) {
    const wefti_choice_graph *g = p->f->graph;
    int32_t *edges = NULL;
    int64_t count = 0, cap = 0;
    weft_status status = WEFT_OK;
    for (int32_t e = forward ? g->nodes[node].reader : g->nodes[node].feeder; e >= 0 && status >= 0;
         e = forward ? g->edges[e].next_from : g->edges[e].next_to) {
        status = WEFT_GROW(edges, count, cap);
        if (status >= 0) edges[count++] = e;
    }
    while (count && status >= 0) status = spread(p, &g->edges[edges[--count]], forward);
    wefti_free(edges);
    return status;
}

static weft_status run_queue(propagation *p) {
    while (p->first < p->last) {
        int32_t node = p->queue[p->first++];
        WEFT_TRY(spread_all(p, node, true));
        WEFT_TRY(spread_all(p, node, false));
    }
    return WEFT_OK;
}

/* Of a configured op, or of an op that no configured one reaches: the cheapest strategy. */
static weft_status decide_alone(propagation *p, int32_t node) {
    const wefti_choice_node *n = &p->f->graph->nodes[node];
    wefti_choice_cost *own;
    int32_t best = 0;
    WEFT_NEW_ARRAY(own, wefti_choice_cost, n->count);
    wefti_find_price_node(p->f, n, own);
    for (int32_t s = 1; s < n->count; s++)
        if (own[s].time < own[best].time) best = s;
    wefti_free(own);
    decide(p, node, best);
    return WEFT_OK;
}

static weft_status run(propagation *p) {
    const wefti_choice_graph *g = p->f->graph;
    int32_t configured = 0;
    for (int32_t i = 0; i < g->node_count; i++) {
        if (!g->nodes[i].op || !g->nodes[i].configured) continue;
        WEFT_TRY(decide_alone(p, i));
        configured++;
    }
    WEFT_REQUIRE(configured, WEFT_E_ARG,
                 "parallel.search: propagation spreads strategies from configured ops, but "
                 "parallel.strategies configures no op of the model: name the ops with weights, "
                 "or use dynamic or recursive");
    /* one search after the other, each from its configured op */
    for (int32_t k = 0; k < configured; k++) {
        int32_t from = p->queue[k];
        WEFT_TRY(spread_all(p, from, true));
        WEFT_TRY(spread_all(p, from, false));
        if (k == 0) p->first = configured;
        WEFT_TRY(run_queue(p));
    }
    for (int32_t i = 0; i < g->node_count; i++) {
        if (p->known[i]) continue;
        WEFT_TRY(decide_alone(p, i));
        WEFT_TRY(run_queue(p));
    }
    return WEFT_OK;
}

weft_status wefti_find_propagation(wefti_find *f) {
    propagation p = {.f = f};
    const size_t nodes = (size_t)f->graph->node_count + 1;
    p.known = wefti_calloc(nodes, sizeof *p.known);
    p.queue = wefti_calloc(nodes, sizeof *p.queue);
    p.at = wefti_calloc(nodes, sizeof *p.at);
    weft_status status =
        p.known && p.queue && p.at ? run(&p) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
    if (status >= 0) wefti_find_note_transfers(f);
    wefti_free(p.known);
    wefti_free(p.queue);
    wefti_free(p.at);
    return status;
}
