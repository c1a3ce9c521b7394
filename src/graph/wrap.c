/* Wrapping: each run of loose nodes between calls becomes a cell, so that later passes see only
 * calls. */
#include "graph/builder.h"

#include <string.h>

#include "graph/text/text.h"

typedef struct wrapper {
    weft_graph *g;
    int32_t *run_of;  /* per root node: its run, -1 for calls */
    bool *exported;   /* per root value: made in one run and read outside it */
    int32_t *local;   /* per root value: its value in the run being made, -1: none */
    weft_node *nodes; /* the new root nodes */
    int64_t count;
} wrapper;

static int32_t number_runs(wrapper *w) {
    const weft_body *root = w->g->root;
    int32_t runs = 0;
    bool inside = false;
    for (int64_t i = 0; i < root->node_count; i++) {
        bool call = root->nodes[i].op == &wefti_op_call;
        if (!call && !inside) runs++;
        inside = !call;
        w->run_of[i] = call ? -1 : runs - 1;
    }
    return runs;
}

static void find_exports(wrapper *w) {
    const weft_graph *g = w->g;
    const weft_body *root = g->root;
    for (int64_t i = 0; i < root->node_count; i++)
        for (int k = 0; k < root->nodes[i].inputs; k++) {
            int32_t v = root->nodes[i].in[k];
            if (v < 0 || root->values[v].kind != WEFTI_VALUE_NODE) continue;
            if (w->run_of[root->values[v].node] != w->run_of[i]) w->exported[v] = true;
        }
    for (int64_t o = 0; o < root->out_count; o++) w->exported[root->out[o]] = true;
    for (int64_t a = 0; a < g->assign_count; a++) w->exported[g->assigns[a].next] = true;
    if (g->loss >= 0) w->exported[g->loss] = true;
}

/* The value that stands for a root value inside the run's body. On first use it becomes an
 * input. */
static weft_status localize(wrapper *w, weft_body *b, int32_t value, int32_t *outer, int32_t *out) {
    if (w->local[value] < 0) {
        const wefti_value_info *v = &w->g->root->values[value];
        bool node = v->kind == WEFTI_VALUE_NODE;
        outer[b->in_count] = value;
        WEFT_TRY(wefti_body_input(b, v->desc, node ? WEFTI_VALUE_INPUT : v->kind, v->name,
                                  &w->local[value]));
    }
    *out = w->local[value];
    return WEFT_OK;
}

static weft_status fill_run(wrapper *w, weft_body *b, int64_t begin, int64_t end, int32_t *outer,
                            int32_t *results) {
    const weft_body *root = w->g->root;
    for (int64_t v = 0; v < root->value_count; v++) w->local[v] = -1;
    for (int64_t i = begin; i < end; i++) {
        const weft_node *n = &root->nodes[i];
        int32_t in[WEFTI_MAX_IN], node;
        for (int k = 0; k < n->inputs; k++) {
            in[k] = -1;
            if (n->in[k] >= 0) WEFT_TRY(localize(w, b, n->in[k], outer, &in[k]));
        }
        WEFT_TRY(wefti_body_add(b, n->op, n->callee, n->inputs, in, n->attrs, n->scope, &node));
        for (int o = 0; o < n->outputs; o++) {
            int32_t value = n->out[o];
            w->local[value] = b->nodes[node].out[o];
            if (!w->exported[value]) continue;
            results[b->out_count] = value;
            WEFT_TRY(wefti_body_output(b, w->local[value]));
        }
    }
    return WEFT_OK;
}

/* A name that is not used by any cell: "main.0", "main.1"... */
static weft_status free_name(weft_graph *g, const char **out) {
    bool fresh = false;
    for (int64_t i = 0; !fresh; i++) {
        *out = wefti_arena_format(g->arena, "main.%lld", (long long)i);
        WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the name of a cell");
        WEFT_TRY(wefti_builder_claim(g, 'c', *out, &fresh));
    }
    return WEFT_OK;
}

/* Adds the call that replaces a run. Its results keep their root value indices. */
static weft_status call_run(wrapper *w, weft_body *b, const char *path, const int32_t *outer,
                            const int32_t *results) {
    weft_graph *g = w->g;
    WEFT_REQUIRE(b->in_count < INT16_MAX && b->out_count < INT16_MAX, WEFT_E_ARG,
                 "%s has too many inputs or results", path);
    weft_node n = {.op = &wefti_op_call,
                   .body = g->root,
                   .scope = path,
                   .callee = b,
                   .inputs = (int16_t)b->in_count,
                   .outputs = (int16_t)b->out_count};
    n.in = wefti_arena_alloc(g->arena, sizeof *n.in * (size_t)(n.inputs + 1));
    n.out = wefti_arena_alloc(g->arena, sizeof *n.out * (size_t)(n.outputs + 1));
    n.attrs = wefti_arena_alloc(g->arena, sizeof *n.attrs);
    WEFT_REQUIRE(n.in && n.out && n.attrs, WEFT_E_NOMEM, "no memory for a call");
    memcpy(n.in, outer, sizeof *outer * (size_t)n.inputs);
    memcpy(n.out, results, sizeof *results * (size_t)n.outputs);
    w->nodes[w->count++] = n;
    return WEFT_OK;
}

static weft_status wrap_run(wrapper *w, int64_t begin, int64_t end) {
    weft_graph *g = w->g;
    int64_t slots = g->root->value_count;
    int32_t *outer, *results;
    const char *path;
    weft_body *b = NULL;
    WEFT_NEW_ARRAY(outer, int32_t, slots);
    results = wefti_calloc((size_t)slots, sizeof *results);
    weft_status st = results ? free_name(g, &path) : WEFT_RAISE(WEFT_E_NOMEM, "no memory to wrap");
    if (st >= 0) st = wefti_body_create(g, path, &b);
    if (st >= 0) st = fill_run(w, b, begin, end, outer, results);
    if (st >= 0 && b->out_count == 0) { /* no node reads the run */
        wefti_body_destroy(b);
        b = NULL;
    } else if (st >= 0) {
        weft_body *stored;
        st = wefti_graph_intern(g, b, &stored);
        b = NULL;
        if (st >= 0) st = call_run(w, stored, path, outer, results);
    }
    wefti_body_destroy(b);
    wefti_free(outer);
    wefti_free(results);
    return st;
}

static weft_status wrap(wrapper *w) {
    weft_body *root = w->g->root;
    WEFT_NEW_ARRAY(w->run_of, int32_t, root->node_count);
    WEFT_NEW_ARRAY(w->exported, bool, root->value_count);
    WEFT_NEW_ARRAY(w->local, int32_t, root->value_count);
    WEFT_NEW_ARRAY(w->nodes, weft_node, root->node_count);
    if (number_runs(w) == 0) return WEFT_OK;
    find_exports(w);
    for (int64_t i = 0; i < root->node_count;) {
        if (w->run_of[i] < 0) {
            w->nodes[w->count++] = root->nodes[i++];
            continue;
        }
        int64_t end = i;
        while (end < root->node_count && w->run_of[end] == w->run_of[i]) end++;
        WEFT_TRY(wrap_run(w, i, end));
        i = end;
    }
    for (int64_t v = 0; v < root->value_count; v++) root->values[v].node = -1;
    for (int64_t i = 0; i < w->count; i++)
        for (int o = 0; o < w->nodes[i].outputs; o++) {
            wefti_value_info *v = &root->values[w->nodes[i].out[o]];
            v->node = (int32_t)i;
            v->slot = o;
        }
    weft_node *old = root->nodes;
    root->nodes = w->nodes;
    root->node_cap = root->node_count; /* the number of nodes that were allocated */
    root->node_count = w->count;
    w->nodes = old;
    return WEFT_OK;
}

weft_status wefti_graph_wrap(weft_graph *g) {
    WEFT_REQUIRE(wefti_graph_ok(g), g->status, "%s", weft_graph_message(g));
    wrapper w = {.g = g};
    weft_status st = wrap(&w);
    wefti_free(w.run_of);
    wefti_free(w.exported);
    wefti_free(w.local);
    wefti_free(w.nodes);
    WEFT_TRY(st);
#ifdef WEFT_DEBUG_CHECKS
    WEFT_TRY(wefti_graph_check(g));
#endif
    return WEFT_OK;
}
