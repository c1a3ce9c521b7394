/* Costs of nodes and edges of a graph of choices, in tables. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "search/find.h"

static void multiply(wefti_choice_cost *cost, int64_t weight) {
    cost->time *= (double)weight;
    cost->memory *= (double)weight;
    cost->compute *= (double)weight;
    cost->transfer *= (double)weight;
}

void wefti_find_price_node(const wefti_find *f, const wefti_choice_node *n,
                           wefti_choice_cost *out) {
    for (int32_t i = 0; i < n->count; i++) {
        f->pricing.op(f->pricing.context, f->graph, n, &n->strategies[i], &out[i]);
        multiply(&out[i], n->weight);
    }
}

/* The different layouts of one end of an edge. */
typedef struct ends {
    wefti_layout *layouts;
    int32_t *of; /* per strategy: number of its layout */
    int32_t count;
} ends;

static void free_ends(ends *e) {
    wefti_free(e->layouts);
    wefti_free(e->of);
}

static weft_status list_ends(const wefti_find *f, const wefti_choice_edge *e, bool from,
                             ends *out) {
    const wefti_choice_node *n = &f->graph->nodes[from ? e->from : e->to];
    *out = (ends){0};
    WEFT_NEW_ARRAY(out->layouts, wefti_layout, n->count);
    out->of = wefti_calloc((size_t)n->count, sizeof *out->of);
    WEFT_REQUIRE(out->of, WEFT_E_NOMEM, "no memory for a search");
    for (int32_t i = 0; i < n->count; i++) {
        wefti_layout *next = &out->layouts[out->count];
        if (from)
            wefti_choice_layout_out(f->graph, n, &n->strategies[i], e->output, next);
        else
            wefti_choice_layout_in(f->graph, n, &n->strategies[i], e->input, next);
        int32_t k = 0;
        while (!wefti_layout_equal(&out->layouts[k], next)) k++;
        out->of[i] = k;
        if (k == out->count) out->count++;
    }
    return WEFT_OK;
}

static weft_status price_pairs(const wefti_find *f, const wefti_choice_edge *e, const ends *from,
                               const ends *to, wefti_choice_cost *out) {
    const wefti_choice_graph *g = f->graph;
    const weft_desc *desc = wefti_choice_desc(g, e);
    const wefti_choice_node *a = &g->nodes[e->from], *b = &g->nodes[e->to];
    const bool follows = b->follows && e->input == 0 && a->op;
    wefti_choice_cost *pairs;
    WEFT_NEW_ARRAY(pairs, wefti_choice_cost, (int64_t)from->count * to->count);
    for (int32_t i = 0; i < from->count; i++)
        for (int32_t j = 0; j < to->count; j++) {
            wefti_choice_cost *c = &pairs[i * to->count + j];
            f->pricing.edge(f->pricing.context, g, desc, &from->layouts[i], &to->layouts[j],
                            e->gradient, c);
            multiply(c, e->weight);
            if (follows && !wefti_layout_equal(&from->layouts[i], &to->layouts[j]))
                c->time = INFINITY;
        }
    for (int32_t i = 0; i < a->count; i++)
        for (int32_t j = 0; j < b->count; j++)
            out[(int64_t)i * b->count + j] = pairs[from->of[i] * to->count + to->of[j]];
    wefti_free(pairs);
    return WEFT_OK;
}

weft_status wefti_find_price_edge(const wefti_find *f, const wefti_choice_edge *e,
                                  wefti_choice_cost *out) {
    ends from = {0}, to = {0};
    weft_status status = list_ends(f, e, true, &from);
    if (status >= 0) status = list_ends(f, e, false, &to);
    if (status >= 0) status = price_pairs(f, e, &from, &to, out);
    free_ends(&from);
    free_ends(&to);
    return status;
}

/* ---- assigned strategies ---- */

static void price_assigned_edge(const wefti_find *f, const wefti_choice_edge *e,
                                wefti_choice_cost *out) {
    const wefti_choice_graph *g = f->graph;
    wefti_layout from, to;
    wefti_choice_layout_out(g, &g->nodes[e->from], &f->assigned[e->from], e->output, &from);
    wefti_choice_layout_in(g, &g->nodes[e->to], &f->assigned[e->to], e->input, &to);
    f->pricing.edge(f->pricing.context, g, wefti_choice_desc(g, e), &from, &to, e->gradient, out);
    multiply(out, e->weight);
}

static void add(wefti_choice_cost *sum, const wefti_choice_cost *term) {
    sum->time += term->time;
    sum->memory += term->memory;
    sum->compute += term->compute;
    sum->transfer += term->transfer;
}

wefti_choice_cost wefti_find_total(const wefti_find *f) {
    wefti_choice_cost sum = {0}, term;
    for (int32_t i = 0; i < f->graph->node_count; i++) {
        const wefti_choice_node *n = &f->graph->nodes[i];
        f->pricing.op(f->pricing.context, f->graph, n, &f->assigned[i], &term);
        multiply(&term, n->weight);
        add(&sum, &term);
    }
    for (int32_t k = 0; k < f->graph->edge_count; k++) {
        price_assigned_edge(f, &f->graph->edges[k], &term);
        add(&sum, &term);
    }
    return sum;
}

static const char *op_name(const wefti_choice_node *n) {
    return n->op ? n->op->op->name : "tensor";
}

void wefti_find_note_transfers(wefti_find *f) {
    enum { LINES = 20 };
    int64_t lines = 0;
    for (int32_t k = 0; k < f->graph->edge_count; k++) {
        const wefti_choice_edge *e = &f->graph->edges[k];
        const wefti_choice_node *a = &f->graph->nodes[e->from], *b = &f->graph->nodes[e->to];
        wefti_choice_cost cost;
        price_assigned_edge(f, e, &cost);
        if (!(cost.transfer > 0) || lines++ >= LINES) continue;
        wefti_text_add(&f->notes,
                       "inconsistency at the edge from %s:%s to %s:%s: no strategy of both keeps "
                       "the layout, so the value is redistributed\n",
                       a->label, op_name(a), b->label, op_name(b));
    }
    if (lines > LINES)
        wefti_text_add(&f->notes, "%lld more edges are redistributed\n",
                       (long long)(lines - LINES));
}
