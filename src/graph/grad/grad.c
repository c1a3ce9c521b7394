/* Differentiation by source transformation: see grad.h.
 *
 * The first pass builds the backward nodes op by op, in a raw body. Its inputs stand for the
 * forward values that the ops request. The second pass knows which of these are read. It decides
 * the residency of each (saved_set.h) and writes the final backward body with the live nodes. A
 * recomputed forward node is cloned just before its first use, so that it occupies memory for the
 * shortest time. */
#include "graph/grad/grad.h"

#include <string.h>

#include "graph/builder.h"
#include "graph/grad/saved_set.h"

/* The meaning of input k of the raw body: a value of the cell, or the gradient of one of its
 * outputs. */
typedef struct stand_in {
    int32_t value;  /* of the cell, or -1 */
    int32_t output; /* its number, or -1 */
} stand_in;

struct wefti_grad {
    weft_graph *graph;
    const weft_body *cell;
    weft_body *raw;
    bool *need;           /* per value of the cell: its gradient is needed */
    bool *wide;           /* per value of the cell: its gradient is f32, though it is bf16 */
    weft_value *seen;     /* its stand-in in the raw body */
    weft_value *gradient; /* its gradient so far */
    stand_in *stands;     /* per raw input */
    int64_t stand_count, stand_cap;
};

/* ---- functions for the gradients of ops ---- */

weft_graph *wefti_grad_graph(wefti_grad *g) {
    return g->graph;
}

static weft_status new_stand_in(wefti_grad *g, stand_in stand, const wefti_value_info *like,
                                weft_value *out) {
    bool bound = stand.value >= 0 && like->kind != WEFTI_VALUE_NODE;
    int32_t input;
    WEFT_TRY(WEFT_GROW(g->stands, g->stand_count, g->stand_cap));
    WEFT_TRY(wefti_body_input(g->raw, like->desc, bound ? like->kind : WEFTI_VALUE_INPUT,
                              bound ? like->name : NULL, &input));
    g->stands[g->stand_count++] = stand;
    return wefti_handle_new(g->graph->builder, g->raw, input, out);
}

static weft_value see(wefti_grad *g, int32_t value) {
    if (value < 0 || !wefti_graph_ok(g->graph)) return WEFT_NO_VALUE;
    if (g->seen[value].id >= 0) return g->seen[value];
    weft_status st =
        new_stand_in(g, (stand_in){value, -1}, &g->cell->values[value], &g->seen[value]);
    if (st < 0) wefti_graph_fail(g->graph, st);
    return g->seen[value];
}

weft_value wefti_grad_in(wefti_grad *g, const weft_node *n, int i) {
    return i < n->inputs ? see(g, n->in[i]) : WEFT_NO_VALUE;
}

weft_value wefti_grad_out(wefti_grad *g, const weft_node *n, int o) {
    return o < n->outputs ? see(g, n->out[o]) : WEFT_NO_VALUE;
}

weft_value wefti_grad_of(wefti_grad *g, const weft_node *n, int o) {
    return o < n->outputs ? g->gradient[n->out[o]] : WEFT_NO_VALUE;
}

bool wefti_grad_wanted(wefti_grad *g, const weft_node *n, int i) {
    return i < n->inputs && n->in[i] >= 0 && g->need[n->in[i]];
}

static const weft_op_def *find_op(weft_graph *g, const char *name) {
    const weft_op_def *op = wefti_op_find(g->ops, name);
    if (!op) wefti_graph_fail(g, WEFT_RAISE(WEFT_E_BUG, "differentiation needs the op '%s'", name));
    return op;
}

/* The description of the gradient of a value of the cell. */
static weft_desc gradient_desc(const wefti_grad *g, int32_t value) {
    weft_desc desc = g->cell->values[value].desc;
    if (g->wide[value]) desc.dtype = WEFT_F32;
    return desc;
}

static void contribute(wefti_grad *g, int32_t value, weft_value gradient, const char *who) {
    if (!wefti_graph_ok(g->graph)) return;
    const weft_desc want = gradient_desc(g, value);
    weft_desc have = weft_value_desc(g->graph, gradient);
    if (g->wide[value] && have.dtype == g->cell->values[value].desc.dtype) {
        const weft_op_def *cast = find_op(g->graph, "cast");
        const wefti_attr to = WEFTI_I(dtype, (int64_t)want.dtype);
        if (!cast) return;
        gradient = wefti_graph_add1(g->graph, cast, 1, &gradient, 1, &to);
        have = weft_value_desc(g->graph, gradient);
    }
    if (!wefti_desc_equal(&have, &want)) {
        wefti_graph_fail(g->graph,
                         WEFT_RAISE(WEFT_E_BUG, "%s gives a gradient %s to an operand %s", who,
                                    wefti_desc_text(&have).text, wefti_desc_text(&want).text));
        return;
    }
    if (g->gradient[value].id < 0) {
        g->gradient[value] = gradient;
        return;
    }
    const weft_op_def *add = find_op(g->graph, "add");
    if (!add) return;
    weft_value terms[2] = {g->gradient[value], gradient};
    g->gradient[value] = wefti_graph_add1(g->graph, add, 2, terms, 0, NULL);
}

void wefti_grad_add(wefti_grad *g, const weft_node *n, int i, weft_value gradient) {
    if (wefti_grad_wanted(g, n, i)) contribute(g, n->in[i], gradient, n->op->name);
}

void wefti_grad_add_reduced(wefti_grad *g, const weft_node *n, int i, weft_value gradient) {
    if (!wefti_grad_wanted(g, n, i) || !wefti_graph_ok(g->graph)) return;
    const weft_desc want = gradient_desc(g, n->in[i]);
    weft_desc have = weft_value_desc(g->graph, gradient);
    if (!wefti_desc_equal(&have, &want)) {
        const weft_op_def *sum_to = find_op(g->graph, "sum_to");
        if (!sum_to) return;
        wefti_ints shape = {.count = want.rank};
        for (int d = 0; d < want.rank; d++) shape.v[d] = want.shape[d];
        wefti_attr attrs[2] = {WEFTI_N(shape, shape), WEFTI_I(dtype, (int64_t)want.dtype)};
        gradient = wefti_graph_add1(g->graph, sum_to, 1, &gradient, 2, attrs);
    }
    contribute(g, n->in[i], gradient, n->op->name);
}

/* ---- first pass: the raw backward body ---- */

/* Marks the values that need a gradient: floats that depend on a wanted input through
 * differentiable ops. */
static weft_status find_needed(wefti_grad *g, const bool *wanted) {
    const weft_body *cell = g->cell;
    for (int64_t i = 0; i < cell->in_count; i++)
        g->need[cell->in[i]] =
            wanted[i] && wefti_dtype_is_float(cell->values[cell->in[i]].desc.dtype);
    for (int64_t i = 0; i < cell->node_count; i++) {
        const weft_node *n = &cell->nodes[i];
        WEFT_REQUIRE(!n->callee, WEFT_E_BUG, "%s: a %s node cannot be differentiated", cell->name,
                     n->op->name);
        bool reached = false;
        for (int k = 0; k < n->inputs; k++) reached |= n->in[k] >= 0 && g->need[n->in[k]];
        for (int o = 0; o < n->outputs; o++)
            g->need[n->out[o]] =
                reached && n->op->grad && wefti_dtype_is_float(wefti_out(n, o)->dtype);
    }
    return WEFT_OK;
}

/* What is made of copies of masters alone, as a slice of one, has a wide gradient too. */
static void find_wide(wefti_grad *g, const bool *wide) {
    const weft_body *cell = g->cell;
    for (int64_t i = 0; i < cell->in_count && wide; i++) g->wide[cell->in[i]] = wide[i];
    for (int64_t k = 0; k < cell->node_count && wide; k++) {
        const weft_node *n = &cell->nodes[k];
        bool all = n->inputs > 0;
        for (int i = 0; i < n->inputs; i++) all = all && n->in[i] >= 0 && g->wide[n->in[i]];
        for (int o = 0; o < n->outputs; o++)
            g->wide[n->out[o]] = all && wefti_out(n, o)->dtype == WEFT_BF16;
    }
}

static weft_status start_from_outputs(wefti_grad *g, const bool *given) {
    const weft_body *cell = g->cell;
    for (int32_t o = 0; o < cell->out_count; o++) {
        int32_t v = cell->out[o];
        if (!given[o] || !g->need[v]) continue;
        weft_value dout;
        WEFT_TRY(new_stand_in(g, (stand_in){-1, o}, &cell->values[v], &dout));
        contribute(g, v, dout, cell->name);
    }
    return WEFT_OK;
}

static weft_status differentiate_node(wefti_grad *g, const weft_node *n) {
    bool has_gradient = false, wanted = false;
    for (int o = 0; o < n->outputs; o++) has_gradient |= g->gradient[n->out[o]].id >= 0;
    for (int k = 0; k < n->inputs; k++) wanted |= wefti_grad_wanted(g, n, k);
    if (!has_gradient || !wanted) return WEFT_OK;
    g->graph->builder->scope = n->scope;
    weft_status st = n->op->grad(g, n);
    if (st < 0) return wefti_prefix(st, "gradient of %s", n->op->name);
    return WEFT_OK;
}

static weft_status build_raw(wefti_grad *g, const bool *wanted, const bool *given,
                             const bool *wide) {
    const weft_body *cell = g->cell;
    WEFT_NEW_ARRAY(g->need, bool, cell->value_count);
    WEFT_NEW_ARRAY(g->wide, bool, cell->value_count);
    find_wide(g, wide);
    WEFT_NEW_ARRAY(g->seen, weft_value, cell->value_count);
    WEFT_NEW_ARRAY(g->gradient, weft_value, cell->value_count);
    for (int64_t v = 0; v < cell->value_count; v++) g->seen[v] = g->gradient[v] = WEFT_NO_VALUE;
    WEFT_TRY(find_needed(g, wanted));
    WEFT_TRY(start_from_outputs(g, given));
    for (int64_t i = cell->node_count - 1; i >= 0 && wefti_graph_ok(g->graph); i--)
        WEFT_TRY(differentiate_node(g, &cell->nodes[i]));
    return WEFT_OK;
}

/* Runs the first pass with a builder of its own in the graph. If the pass leaves a sticky error in
 * the graph, returns it as its status and clears it. */
static weft_status run_raw(wefti_grad *g, const bool *wanted, const bool *given, const bool *wide,
                           wefti_builder *own) {
    weft_graph *graph = g->graph;
    wefti_builder *before = graph->builder;
    graph->builder = own;
    weft_status st = build_raw(g, wanted, given, wide);
    if (!wefti_graph_ok(graph)) {
        st = wefti_adopt(graph->status, weft_graph_message(graph));
        graph->status = WEFT_OK;
        wefti_free(graph->message);
        graph->message = NULL;
    }
    graph->builder = before;
    if (st < 0) return wefti_prefix(st, "%s", g->cell->name);
    return WEFT_OK;
}

/* ---- second pass: the final bodies ---- */

typedef struct writer {
    const wefti_grad *g;
    const wefti_builder *handles;
    wefti_cell_grad *out;
    wefti_recompute_rule rule;
    bool *live;        /* per raw value */
    bool *wanted;      /* per value of the cell: a live raw node reads it */
    wefti_fate *fate;  /* per value of the cell */
    int32_t *forward;  /* value of the cell -> value of the backward body, -1: not yet */
    int32_t *backward; /* raw value -> value of the backward body */
    bool *pending;     /* scratch of recompute() */
} writer;

static int32_t raw_gradient(const writer *w, int64_t input) {
    weft_value h = w->g->gradient[w->g->cell->in[input]];
    return h.id < 0 ? -1 : w->handles->handles[h.id].value;
}

static void find_live(writer *w) {
    const wefti_grad *g = w->g;
    for (int64_t i = 0; i < g->cell->in_count; i++) {
        int32_t v = g->need[g->cell->in[i]] ? raw_gradient(w, i) : -1;
        if (v >= 0) w->live[v] = true;
    }
    for (int64_t i = g->raw->node_count - 1; i >= 0; i--) {
        const weft_node *n = &g->raw->nodes[i];
        bool used = false;
        for (int o = 0; o < n->outputs; o++) used |= w->live[n->out[o]];
        for (int k = 0; k < n->inputs && used; k++)
            if (n->in[k] >= 0) w->live[n->in[k]] = true;
    }
    for (int64_t k = 0; k < g->stand_count; k++)
        if (g->stands[k].value >= 0 && w->live[g->raw->in[k]]) w->wanted[g->stands[k].value] = true;
}

static weft_status bind(writer *w, wefti_grad_source source, int32_t index,
                        const wefti_value_info *like, int32_t *out_value) {
    weft_body *b = w->out->backward;
    bool bound = source == WEFTI_GRAD_INPUT;
    WEFT_TRY(wefti_body_input(b, like->desc, bound ? like->kind : WEFTI_VALUE_INPUT,
                              bound ? like->name : NULL, out_value));
    w->out->bindings[b->in_count - 1] = (wefti_grad_binding){source, index};
    return WEFT_OK;
}

/* Adds the inputs of the backward body: inputs of the cell, its outputs, saved values, then
 * gradients of outputs. */
static weft_status bind_inputs(writer *w) {
    const weft_body *cell = w->g->cell;
    weft_body *forward = w->out->forward;
    for (int64_t i = 0; i < cell->in_count; i++) {
        int32_t v = cell->in[i];
        if (w->fate[v] == WEFTI_FATE_INPUT)
            WEFT_TRY(bind(w, WEFTI_GRAD_INPUT, (int32_t)i, &cell->values[v], &w->forward[v]));
    }
    for (int64_t o = 0; o < cell->out_count; o++) {
        int32_t v = cell->out[o];
        if (w->fate[v] == WEFTI_FATE_OUTPUT && w->forward[v] < 0)
            WEFT_TRY(bind(w, WEFTI_GRAD_OUTPUT, (int32_t)o, &cell->values[v], &w->forward[v]));
    }
    for (int32_t v = 0; v < cell->value_count; v++) {
        if (w->fate[v] != WEFTI_FATE_SAVED) continue;
        WEFT_TRY(bind(w, WEFTI_GRAD_SAVED, w->out->saved, &cell->values[v], &w->forward[v]));
        WEFT_TRY(wefti_body_output(forward, v));
        w->out->saved++;
    }
    for (int64_t k = 0; k < w->g->stand_count; k++) {
        int32_t o = w->g->stands[k].output, raw = w->g->raw->in[k];
        if (o >= 0 && w->live[raw])
            WEFT_TRY(bind(w, WEFTI_GRAD_DOUT, o, &cell->values[cell->out[o]], &w->backward[raw]));
    }
    return WEFT_OK;
}

static weft_status clone_forward(writer *w, int32_t v) {
    const wefti_value_info *value = &w->g->cell->values[v];
    const weft_node *n = &w->g->cell->nodes[value->node];
    const weft_op_def *op;
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT], node;
    int count;
    if (!wefti_recompute_of(w->g->cell, v, &w->rule, &op, in, &count))
        WEFT_FAIL(WEFT_E_BUG, "%s was to be recomputed, but is not cheap", n->op->name);
    for (int k = 0; k < count; k++)
        if (in[k] >= 0) in[k] = w->forward[in[k]];
    weft_body *b = w->out->backward;
    WEFT_TRY(
        wefti_body_add(b, op, NULL, count, in, op == n->op ? n->attrs : NULL, n->scope, &node));
    weft_node *clone = &b->nodes[node];
    clone->stream = n->stream; /* the same random numbers again */
    if (op != n->op) {
        w->forward[v] = clone->out[0];
        return WEFT_OK;
    }
    for (int o = 0; o < n->outputs; o++)
        if (w->forward[n->out[o]] < 0) w->forward[n->out[o]] = clone->out[o];
    return WEFT_OK;
}

/* Makes value v of the cell available in the backward body: clones the nodes that recompute it. */
static weft_status recompute(writer *w, int32_t v) {
    const weft_body *cell = w->g->cell;
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT];
    const weft_op_def *op;
    int count;
    if (w->forward[v] >= 0) return WEFT_OK;
    memset(w->pending, 0, sizeof *w->pending * (size_t)cell->value_count);
    w->pending[v] = true;
    int32_t last = cell->values[v].node;
    for (int32_t i = last; i >= 0; i--)
        for (int o = 0; o < cell->nodes[i].outputs; o++) {
            int32_t u = cell->nodes[i].out[o];
            if (!w->pending[u] || !wefti_recompute_of(cell, u, &w->rule, &op, in, &count)) continue;
            for (int k = 0; k < count; k++)
                if (in[k] >= 0 && w->forward[in[k]] < 0) w->pending[in[k]] = true;
        }
    for (int32_t i = 0; i <= last; i++)
        for (int o = 0; o < cell->nodes[i].outputs; o++) {
            int32_t u = cell->nodes[i].out[o];
            if (w->pending[u] && w->forward[u] < 0) WEFT_TRY(clone_forward(w, u));
        }
    return WEFT_OK;
}

/* The value of the backward body that corresponds to a raw value. */
static weft_status arrive(writer *w, int32_t raw, int32_t *out) {
    const wefti_value_info *value = &w->g->raw->values[raw];
    if (value->kind != WEFTI_VALUE_NODE && w->g->stands[value->slot].value >= 0) {
        int32_t v = w->g->stands[value->slot].value;
        WEFT_TRY(recompute(w, v));
        *out = w->forward[v];
        return WEFT_OK;
    }
    *out = w->backward[raw];
    return WEFT_OK;
}

static weft_status write_nodes(writer *w) {
    const weft_body *raw = w->g->raw;
    weft_body *b = w->out->backward;
    for (int64_t i = 0; i < raw->node_count; i++) {
        const weft_node *n = &raw->nodes[i];
        int32_t in[WEFTI_MAX_IN], node;
        bool used = false;
        for (int o = 0; o < n->outputs; o++) used |= w->live[n->out[o]];
        if (!used) continue;
        for (int k = 0; k < n->inputs; k++) {
            in[k] = -1;
            if (n->in[k] >= 0) WEFT_TRY(arrive(w, n->in[k], &in[k]));
        }
        WEFT_TRY(wefti_body_add_like(b, n, in, NULL, w->backward, &node));
        b->nodes[node].gradient = true;
    }
    return WEFT_OK;
}

static weft_status write_outputs(writer *w) {
    const weft_body *cell = w->g->cell;
    weft_body *b = w->out->backward;
    for (int64_t i = 0; i < cell->in_count; i++) {
        w->out->gradient_out[i] = -1;
        int32_t raw = w->g->need[cell->in[i]] ? raw_gradient(w, i) : -1, value;
        if (raw < 0) continue;
        WEFT_TRY(arrive(w, raw, &value));
        int32_t at = 0;
        while (at < b->out_count && b->out[at] != value) at++;
        if (at == b->out_count) WEFT_TRY(wefti_body_output(b, value));
        w->out->gradient_out[i] = at;
    }
    b->hash = wefti_body_hash(b);
    w->out->forward->hash = wefti_body_hash(w->out->forward);
    return WEFT_OK;
}

static weft_status write_bodies(writer *w) {
    weft_graph *graph = w->g->graph;
    const weft_body *cell = w->g->cell;
    size_t values = (size_t)cell->value_count, raw_values = (size_t)w->g->raw->value_count;
    WEFT_NEW_ARRAY(w->live, bool, raw_values);
    WEFT_NEW_ARRAY(w->backward, int32_t, raw_values);
    WEFT_NEW_ARRAY(w->wanted, bool, values);
    WEFT_NEW_ARRAY(w->pending, bool, values);
    WEFT_NEW_ARRAY(w->fate, wefti_fate, values);
    WEFT_NEW_ARRAY(w->forward, int32_t, values);
    for (size_t v = 0; v < values; v++) w->forward[v] = -1;
    for (size_t v = 0; v < raw_values; v++) w->backward[v] = -1;
    find_live(w);
    WEFT_TRY(wefti_saved_set(cell, w->wanted, &w->rule, w->fate));

    size_t bindings = values + (size_t)cell->out_count + 1;
    w->out->bindings = wefti_arena_alloc(graph->arena, sizeof *w->out->bindings * bindings);
    w->out->gradient_out = wefti_arena_alloc(graph->arena, sizeof *w->out->gradient_out *
                                                               (size_t)(cell->in_count + 1));
    char *name = wefti_arena_format(graph->arena, "%s.backward", cell->name);
    WEFT_REQUIRE(w->out->bindings && w->out->gradient_out && name, WEFT_E_NOMEM,
                 "no memory for the backward body of %s", cell->name);
    WEFT_TRY(wefti_body_clone(graph, cell, cell->name, &w->out->forward));
    WEFT_TRY(wefti_body_create(graph, name, &w->out->backward));
    w->out->backward->streams = cell->streams;
    WEFT_TRY(bind_inputs(w));
    WEFT_TRY(write_nodes(w));
    WEFT_TRY(write_outputs(w));
#ifdef WEFT_DEBUG_CHECKS
    WEFT_TRY(wefti_body_check(w->out->forward));
    WEFT_TRY(wefti_body_check(w->out->backward));
#endif
    return WEFT_OK;
}

static weft_status differentiate(wefti_grad *g, const bool *wanted, const bool *given,
                                 wefti_recompute_mode recompute, const bool *keep, const bool *wide,
                                 wefti_builder *own, wefti_cell_grad *out) {
    WEFT_TRY(wefti_body_create(g->graph, g->cell->name, &g->raw));
    g->raw->streams = g->cell->streams; /* new random numbers differ from those of the forward
                                           pass */
    own->current = g->raw;
    own->scope = "";
    WEFT_TRY(run_raw(g, wanted, given, wide, own));
    writer w = {.g = g, .handles = own, .out = out, .rule = {recompute, keep}};
    weft_status st = write_bodies(&w);
    wefti_free(w.live);
    wefti_free(w.backward);
    wefti_free(w.wanted);
    wefti_free(w.pending);
    wefti_free(w.fate);
    wefti_free(w.forward);
    return st;
}

weft_status wefti_differentiate(weft_graph *graph, weft_body *cell, const bool *wanted,
                                const bool *given, wefti_recompute_mode recompute,
                                wefti_cell_grad *out) {
    return wefti_differentiate_keeping(graph, cell, wanted, given, recompute, NULL, NULL, out);
}

weft_status wefti_differentiate_keeping(weft_graph *graph, weft_body *cell, const bool *wanted,
                                        const bool *given, wefti_recompute_mode recompute,
                                        const bool *keep, const bool *wide, wefti_cell_grad *out) {
    WEFT_REQUIRE(wefti_graph_ok(graph), graph->status, "%s", weft_graph_message(graph));
    wefti_grad g = {.graph = graph, .cell = cell};
    wefti_cell_grad made = {.cell = cell};
    wefti_builder *own;
    WEFT_NEW(own, wefti_builder);
    weft_status st = differentiate(&g, wanted, given, recompute, keep, wide, own, &made);
    wefti_builder_destroy(own);
    wefti_body_destroy(g.raw);
    wefti_free(g.need);
    wefti_free(g.wide);
    wefti_free(g.seen);
    wefti_free(g.gradient);
    wefti_free(g.stands);
    if (st < 0) {
        wefti_cell_grad_free(&made);
        return wefti_note(st, __func__, __FILE__, __LINE__);
    }
    *out = made;
    return WEFT_OK;
}

void wefti_cell_grad_free(wefti_cell_grad *grad) {
    if (!grad) return;
    wefti_body_destroy(grad->forward);
    wefti_body_destroy(grad->backward);
    wefti_body_destroy(grad->fused_body);
    for (int p = 0; grad->parts && p < 2; p++) wefti_body_destroy(grad->parts[p].backward);
    *grad = (wefti_cell_grad){0};
}

int64_t wefti_cell_grad_bytes(const wefti_cell_grad *grad) {
    int64_t bytes = wefti_body_bytes(grad->forward) + wefti_body_bytes(grad->backward) +
                    wefti_body_bytes(grad->fused_body);
    for (int p = 0; grad->parts && p < 2; p++) bytes += wefti_body_bytes(grad->parts[p].backward);
    return bytes;
}
