/* Dynamic programming: the least cost over all strategies of all ops, by eliminations
 * (choice/eliminate.c). With approximation, each op keeps its best strategies only. These are found
 * by messages between neighbors: the cost of a strategy, with the best answer of all others. On a
 * tree, the messages of one pass in each direction give exactly that (Pearl, "Probabilistic
 * Reasoning in Intelligent Systems", 1988). If all strategies would take too many sums, the search
 * approximates by itself, and a note says so. */
#include <math.h>
#include <string.h>

#include "search/find.h"

enum {
    PASSES = 3,
    MOST_TRIALS = 1 << 25, /* sums of a run: 0.3 s, with fronts of memory up to 4 s */
    LARGEST = 64           /* strategies of an op that a second run begins with */
};

typedef struct tables {
    wefti_find *f;
    double **time, **memory; /* per node */
    int32_t *values;         /* per node */
    wefti_choice_table *edges;
    int64_t edge_count;
    int32_t **kept; /* per node: numbers of the strategies that stay */
    int32_t **stay; /* per node: of the values before an approximation, those that stay */
} tables;

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a search");
}

static weft_status set_node(tables *t, int32_t i) {
    const wefti_choice_node *n = &t->f->graph->nodes[i];
    wefti_choice_cost *costs;
    t->values[i] = n->count;
    t->f->searched += n->count;
    t->time[i] = wefti_calloc((size_t)n->count, sizeof(double));
    t->memory[i] = wefti_calloc((size_t)n->count, sizeof(double));
    t->kept[i] = wefti_calloc((size_t)n->count, sizeof(int32_t));
    t->stay[i] = wefti_calloc((size_t)n->count, sizeof(int32_t));
    if (!t->time[i] || !t->memory[i] || !t->kept[i] || !t->stay[i]) return no_memory();
    WEFT_NEW_ARRAY(costs, wefti_choice_cost, n->count);
    wefti_find_price_node(t->f, n, costs);
    for (int32_t s = 0; s < n->count; s++) {
        t->time[i][s] = costs[s].time;
        t->memory[i][s] = costs[s].memory;
        t->kept[i][s] = s;
    }
    wefti_free(costs);
    return WEFT_OK;
}

/* An edge from a node to itself is a cost of the node. */
static void add_loop(tables *t, int32_t i, const wefti_choice_cost *costs) {
    for (int32_t s = 0; s < t->values[i]; s++) {
        const wefti_choice_cost *c = &costs[(int64_t)s * t->values[i] + s];
        t->time[i][s] += c->time;
        t->memory[i][s] += c->memory;
    }
}

static weft_status set_edge(tables *t, const wefti_choice_edge *e) {
    const int64_t cells = (int64_t)t->values[e->from] * t->values[e->to];
    wefti_choice_cost *costs;
    WEFT_NEW_ARRAY(costs, wefti_choice_cost, cells);
    weft_status status = wefti_find_price_edge(t->f, e, costs);
    if (status >= 0 && e->from == e->to) {
        add_loop(t, e->from, costs);
    } else if (status >= 0) {
        wefti_choice_table *out = &t->edges[t->edge_count++];
        *out = (wefti_choice_table){.from = e->from, .to = e->to};
        out->time = wefti_calloc((size_t)cells, sizeof *out->time);
        out->memory = wefti_calloc((size_t)cells, sizeof *out->memory);
        if (!out->time || !out->memory) status = no_memory();
        for (int64_t k = 0; k < cells && status >= 0; k++) {
            out->time[k] = costs[k].time;
            out->memory[k] = costs[k].memory;
        }
    }
    wefti_free(costs);
    return status;
}

static weft_status set_tables(tables *t) {
    const wefti_choice_graph *g = t->f->graph;
    WEFT_NEW_ARRAY(t->time, double *, g->node_count + 1);
    WEFT_NEW_ARRAY(t->memory, double *, g->node_count + 1);
    WEFT_NEW_ARRAY(t->kept, int32_t *, g->node_count + 1);
    WEFT_NEW_ARRAY(t->stay, int32_t *, g->node_count + 1);
    WEFT_NEW_ARRAY(t->values, int32_t, g->node_count + 1);
    WEFT_NEW_ARRAY(t->edges, wefti_choice_table, g->edge_count + 1);
    for (int32_t i = 0; i < g->node_count; i++) WEFT_TRY(set_node(t, i));
    for (int32_t k = 0; k < g->edge_count; k++) WEFT_TRY(set_edge(t, &g->edges[k]));
    return WEFT_OK;
}

static void free_tables(tables *t) {
    for (int32_t i = 0; i < t->f->graph->node_count; i++) {
        if (t->time) wefti_free(t->time[i]);
        if (t->memory) wefti_free(t->memory[i]);
        if (t->kept) wefti_free(t->kept[i]);
        if (t->stay) wefti_free(t->stay[i]);
    }
    for (int64_t k = 0; k < t->edge_count; k++) {
        wefti_free(t->edges[k].time);
        wefti_free(t->edges[k].memory);
    }
    wefti_free(t->time);
    wefti_free(t->memory);
    wefti_free(t->kept);
    wefti_free(t->stay);
    wefti_free(t->values);
    wefti_free(t->edges);
}

/* ---- approximation ---- */

/* Message of an edge to one of its ends: the least cost of the rest, per value of that end. */
typedef struct messages {
    double **to_end, **to_start; /* per edge */
} messages;

static void pass(const tables *t, const double *const *belief, const messages *m, int64_t k,
                 bool forward) {
    const wefti_choice_table *e = &t->edges[k];
    const int32_t from = forward ? e->from : e->to, to = forward ? e->to : e->from;
    double *out = forward ? m->to_end[k] : m->to_start[k], least = INFINITY;
    const double *back = forward ? m->to_start[k] : m->to_end[k];
    for (int32_t j = 0; j < t->values[to]; j++) {
        out[j] = INFINITY;
        for (int32_t i = 0; i < t->values[from]; i++) {
            int64_t cell =
                forward ? (int64_t)i * t->values[to] + j : (int64_t)j * t->values[from] + i;
            double cost =
                isinf(belief[from][i]) ? INFINITY : belief[from][i] - back[i] + e->time[cell];
            if (cost < out[j]) out[j] = cost;
        }
        if (out[j] < least) least = out[j];
    }
    for (int32_t j = 0; j < t->values[to] && !isinf(least); j++) out[j] -= least;
}

static void collect_belief(const tables *t, const messages *m, double **belief) {
    for (int32_t i = 0; i < t->f->graph->node_count; i++)
        memcpy(belief[i], t->time[i], (size_t)t->values[i] * sizeof(double));
    for (int64_t k = 0; k < t->edge_count; k++) {
        const wefti_choice_table *e = &t->edges[k];
        for (int32_t j = 0; j < t->values[e->to]; j++) belief[e->to][j] += m->to_end[k][j];
        for (int32_t j = 0; j < t->values[e->from]; j++) belief[e->from][j] += m->to_start[k][j];
    }
}

/* Passes messages along all edges and back. A belief changes with each message, so that a chain
 * needs one pass in each direction. */
static void exchange(const tables *t, const messages *m, double **belief) {
    for (int p = 0; p < 2 * PASSES; p++) {
        const bool forward = p % 2 == 0;
        for (int64_t n = 0; n < t->edge_count; n++) {
            int64_t k = forward ? n : t->edge_count - 1 - n;
            const wefti_choice_table *e = &t->edges[k];
            const int32_t to = forward ? e->to : e->from;
            double *message = forward ? m->to_end[k] : m->to_start[k];
            for (int32_t j = 0; j < t->values[to]; j++)
                if (!isinf(message[j])) belief[to][j] -= message[j];
            pass(t, (const double *const *)belief, m, k, forward);
            for (int32_t j = 0; j < t->values[to]; j++) belief[to][j] += message[j];
        }
    }
    collect_belief(t, m, belief);
}

static weft_status make_messages(const tables *t, messages *m, double **belief) {
    for (int64_t k = 0; k < t->edge_count; k++) {
        m->to_end[k] = wefti_calloc((size_t)t->values[t->edges[k].to], sizeof(double));
        m->to_start[k] = wefti_calloc((size_t)t->values[t->edges[k].from], sizeof(double));
        if (!m->to_end[k] || !m->to_start[k]) return no_memory();
    }
    for (int32_t i = 0; i < t->f->graph->node_count; i++) {
        belief[i] = wefti_calloc((size_t)t->values[i], sizeof(double));
        if (!belief[i]) return no_memory();
        memcpy(belief[i], t->time[i], (size_t)t->values[i] * sizeof(double));
    }
    return WEFT_OK;
}

/* Keeps the `most` values of node i with the best belief, in their order; and the one that needs
 * least memory, in place of the last. */
static void choose_kept(tables *t, int32_t i, const double *belief, int32_t most) {
    int32_t used = 0, frugal = 0;
    for (int32_t s = 0; s < t->values[i]; s++)
        if (t->memory[i][s] < t->memory[i][frugal]) frugal = s;
    for (int32_t s = 0; s < t->values[i]; s++) {
        int32_t better = 0;
        for (int32_t r = 0; r < t->values[i]; r++)
            better += belief[r] < belief[s] || (belief[r] == belief[s] && r < s);
        if (better < most - (most > 1) || s == frugal) {
            if (used < most) t->stay[i][used++] = s;
        }
    }
    for (int32_t k = 0; k < used; k++) {
        const int32_t s = t->stay[i][k];
        t->time[i][k] = t->time[i][s];
        t->memory[i][k] = t->memory[i][s];
        t->kept[i][k] = t->kept[i][s];
    }
    t->values[i] = used;
}

static void shrink_edges(tables *t, const int32_t *before) {
    for (int64_t k = 0; k < t->edge_count; k++) {
        wefti_choice_table *e = &t->edges[k];
        for (int32_t i = 0; i < t->values[e->from]; i++)
            for (int32_t j = 0; j < t->values[e->to]; j++) {
                int64_t old = (int64_t)t->stay[e->from][i] * before[e->to] + t->stay[e->to][j],
                        new = (int64_t)i * t->values[e->to] + j;
                e->time[new] = e->time[old];
                e->memory[new] = e->memory[old];
            }
    }
}

/* Keeps at most so many strategies of each op. May be called again with fewer. */
static weft_status approximate(tables *t, int32_t most) {
    const wefti_choice_graph *g = t->f->graph;
    messages m = {0};
    double **belief = wefti_calloc((size_t)g->node_count + 1, sizeof *belief);
    int32_t *before = wefti_calloc((size_t)g->node_count + 1, sizeof *before);
    m.to_end = wefti_calloc((size_t)t->edge_count + 1, sizeof *m.to_end);
    m.to_start = wefti_calloc((size_t)t->edge_count + 1, sizeof *m.to_start);
    weft_status status = belief && before && m.to_end && m.to_start ? WEFT_OK : no_memory();
    if (status >= 0) status = make_messages(t, &m, belief);
    if (status >= 0) {
        exchange(t, &m, belief);
        memcpy(before, t->values, (size_t)g->node_count * sizeof *before);
        for (int32_t i = 0; i < g->node_count; i++) choose_kept(t, i, belief[i], most);
        shrink_edges(t, before);
    }
    for (int32_t i = 0; belief && i < g->node_count; i++) wefti_free(belief[i]);
    for (int64_t k = 0; k < t->edge_count; k++) {
        if (m.to_end) wefti_free(m.to_end[k]);
        if (m.to_start) wefti_free(m.to_start[k]);
    }
    wefti_free(m.to_end);
    wefti_free(m.to_start);
    wefti_free(belief);
    wefti_free(before);
    return status;
}

/* ---- the search ---- */

/* Stages hold about equal shares of the model. */
static double capacity_of(const wefti_find *f) {
    return f->options->cost.capacity * f->graph->plan->pipeline.stages;
}

static int32_t most_values(const tables *t) {
    int32_t most = 0;
    for (int32_t i = 0; i < t->f->graph->node_count; i++)
        if (t->values[i] > most) most = t->values[i];
    return most;
}

static weft_status solve(tables *t, int32_t *chosen) {
    const wefti_choice_graph *g = t->f->graph;
    wefti_choice_solution solution;
    const wefti_choice_problem problem = {.variables = g->node_count,
                                          .values = t->values,
                                          .time = (const double *const *)t->time,
                                          .memory = (const double *const *)t->memory,
                                          .tables = t->edges,
                                          .table_count = t->edge_count,
                                          .trials = t->f->trials ? t->f->trials : MOST_TRIALS};
    WEFT_TRY(wefti_choice_solve(&problem, capacity_of(t->f), chosen, &solution));
    for (int32_t i = 0; i < g->node_count; i++)
        t->f->assigned[i] = g->nodes[i].strategies[t->kept[i][chosen[i]]];
    if (!solution.exact)
        wefti_text_add(&t->f->notes,
                       "the memory limit leaves so many ways that some were left out: the plan "
                       "may not be the best\n");
    return WEFT_OK;
}

/* Halves the strategies of the ops that have most until the sums are few enough. */
static weft_status solve_what_is_possible(tables *t) {
    const int32_t all = most_values(t);
    int32_t most = all, *chosen;
    WEFT_NEW_ARRAY(chosen, int32_t, t->f->graph->node_count + 1);
    weft_status status = solve(t, chosen);
    while (status == WEFT_E_NO_IMPL && most > 1) {
        wefti_error_clear();
        most = most > LARGEST ? LARGEST : most / 2;
        status = approximate(t, most);
        if (status >= 0) status = solve(t, chosen);
    }
    if (status >= 0 && most < all)
        wefti_text_add(&t->f->notes,
                       "all %d strategies of an op would take too many sums: the best %d of each "
                       "op were compared, and the plan may not be the best\n",
                       all, most);
    t->f->most = most_values(t);
    wefti_free(chosen);
    return status;
}

weft_status wefti_find_dynamic(wefti_find *f) {
    const weft_search_rules *rules = &f->options->rules;
    tables t = {.f = f};
    weft_status status = set_tables(&t);
    if (status >= 0 && rules->enable_algo_approxi)
        status = approximate(&t, (int32_t)fmax(1, floor(1 / rules->epsilon + 1e-9)));
    if (status >= 0) status = solve_what_is_possible(&t);
    free_tables(&t);
    return status;
}
