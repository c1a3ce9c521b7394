/* Bodies by index: functions with which passes and the builder make, copy and prune lists of
 * nodes. */
#include "graph/graph.h"

#include <string.h>

#include "graph/text/text.h"

enum { MAX_CALL_INPUTS = 32767 };

weft_status wefti_body_create(weft_graph *g, const char *name, weft_body **out) {
    char *copy = wefti_arena_strdup(g->arena, name);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for the name of a cell");
    weft_body *b;
    WEFT_NEW(b, weft_body);
    b->graph = g;
    b->name = copy;
    *out = b;
    return WEFT_OK;
}

void wefti_body_destroy(weft_body *b) {
    if (!b) return;
    wefti_free(b->values);
    wefti_free(b->nodes);
    wefti_free(b->in);
    wefti_free(b->out);
    wefti_free(b);
}

int64_t wefti_body_bytes(const weft_body *b) {
    if (!b) return 0;
    return (int64_t)sizeof *b + wefti_array_bytes(b->values, b->value_cap, sizeof *b->values) +
           wefti_array_bytes(b->nodes, b->node_cap, sizeof *b->nodes) +
           wefti_array_bytes(b->in, b->in_cap, sizeof *b->in) +
           wefti_array_bytes(b->out, b->out_cap, sizeof *b->out);
}

static weft_status push_value(weft_body *b, const wefti_value_info *value) {
    WEFT_REQUIRE(b->value_count < INT32_MAX, WEFT_E_ARG, "too many values in one body");
    WEFT_TRY(WEFT_GROW(b->values, b->value_count, b->value_cap));
    b->values[b->value_count++] = *value;
    return WEFT_OK;
}

weft_status wefti_body_input(weft_body *b, weft_desc desc, wefti_value_kind kind, const char *name,
                             int32_t *out) {
    WEFT_TRY(wefti_desc_check(&desc));
    char *copy = name ? wefti_arena_strdup(b->graph->arena, name) : NULL;
    WEFT_REQUIRE(copy || !name, WEFT_E_NOMEM, "no memory for a name");
    WEFT_TRY(WEFT_GROW(b->in, b->in_count, b->in_cap));
    int32_t index = (int32_t)b->value_count;
    wefti_value_info value = {
        .desc = desc, .kind = kind, .node = -1, .slot = (int32_t)b->in_count, .name = copy};
    WEFT_TRY(push_value(b, &value));
    b->in[b->in_count++] = index;
    *out = index;
    return WEFT_OK;
}

weft_status wefti_body_add_like(weft_body *b, const weft_node *n, const int32_t *in,
                                const wefti_attr *attrs, int32_t *map, int32_t *out_node) {
    WEFT_TRY(wefti_body_add(b, n->op, n->callee, n->inputs, in, attrs ? attrs : n->attrs, n->scope,
                            out_node));
    weft_node *made = &b->nodes[*out_node];
    made->stream = n->stream;
    made->gradient = n->gradient;
    for (int o = 0; map && o < n->outputs; o++) map[n->out[o]] = made->out[o];
    return WEFT_OK;
}

weft_status wefti_body_copy_node(weft_body *b, const weft_node *n, int32_t *map) {
    int32_t in[WEFTI_MAX_IN + WEFTI_MAX_OUT], node;
    WEFT_REQUIRE(n->inputs <= WEFTI_MAX_IN + WEFTI_MAX_OUT, WEFT_E_BUG, "%s has %d operands",
                 n->op->name, n->inputs);
    for (int i = 0; i < n->inputs; i++) in[i] = n->in[i] < 0 ? -1 : map[n->in[i]];
    return wefti_body_add_like(b, n, in, NULL, map, &node);
}

weft_status wefti_body_output(weft_body *b, int32_t value) {
    WEFT_REQUIRE(value >= 0 && value < b->value_count, WEFT_E_BUG, "output %d of %s does not exist",
                 (int)value, b->name);
    WEFT_TRY(WEFT_GROW(b->out, b->out_count, b->out_cap));
    b->out[b->out_count++] = value;
    return WEFT_OK;
}

/* Puts "linear(f32[2, 3], _)" before infer's message, so that every shape error names op and
 * shapes. */
static weft_status shapes_prefix(weft_status st, const weft_node *n) {
    char text[1024];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n->inputs && used + 204 < sizeof text; i++) {
        const weft_desc *d = wefti_in(n, i);
        wefti_shape_text shape = d ? wefti_desc_text(d) : (wefti_shape_text){"_"};
        size_t length = strlen(shape.text);
        if (i) used += (size_t)(stpcpy(text + used, ", ") - (text + used));
        memcpy(text + used, shape.text, length + 1);
        used += length;
    }
    return wefti_prefix(st, "%s(%s)", n->op->name, text);
}

static weft_status check_inputs(const weft_body *b, const weft_op_def *op, int in_count,
                                const int32_t *in) {
    bool fixed = op != &wefti_op_call && op != &wefti_op_fused; /* those follow their callee */
    WEFT_REQUIRE(!fixed || (in_count >= op->min_inputs && in_count <= op->max_inputs), WEFT_E_ARG,
                 "%s takes %d to %d inputs, not %d", op->name, op->min_inputs, op->max_inputs,
                 in_count);
    int most = op == &wefti_op_call ? MAX_CALL_INPUTS : WEFTI_MAX_IN;
    WEFT_REQUIRE(in_count <= most, WEFT_E_ARG, "%s takes at most %d inputs, not %d", op->name, most,
                 in_count);
    for (int i = 0; i < in_count; i++) {
        if (in[i] == -1) {
            WEFT_REQUIRE(fixed && i >= op->min_inputs, WEFT_E_ARG, "%s: input %d is missing",
                         op->name, i);
            continue;
        }
        WEFT_REQUIRE(in[i] >= 0 && in[i] < b->value_count, WEFT_E_BUG,
                     "%s: input %d is value %d of %lld", op->name, i, (int)in[i],
                     (long long)b->value_count);
        const wefti_value_info *v = &b->values[in[i]];
        WEFT_REQUIRE(v->kind != WEFTI_VALUE_NODE || v->node >= 0, WEFT_E_BUG,
                     "%s: input %d is a removed value", op->name, i);
    }
    return WEFT_OK;
}

/* Copies a node's tables into the graph's arena. */
static weft_status keep_tables(weft_graph *g, weft_node *n, int attrs) {
    for (int i = 0; i < attrs; i++) {
        wefti_table *table = &n->attrs[i].table;
        if (n->attrs[i].kind != WEFTI_ATTR_TABLE || table->count == 0) continue;
        size_t bytes = (size_t)table->count * sizeof *table->v;
        int64_t *copy = wefti_arena_alloc(g->arena, bytes);
        WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for a node");
        memcpy(copy, table->v, bytes);
        table->v = copy;
    }
    return WEFT_OK;
}

/* Copies the arrays of a node into the graph's arena. */
static weft_status keep_arrays(weft_graph *g, weft_node *n, const char *scope, int outputs) {
    int attrs = wefti_attr_count(n->op);
    const int32_t *in = n->in;
    const wefti_attr *table = n->attrs;
    n->in = wefti_arena_alloc(g->arena, sizeof *n->in * (size_t)(n->inputs + 1));
    n->out = wefti_arena_alloc(g->arena, sizeof *n->out * (size_t)(outputs + 1));
    n->attrs = wefti_arena_alloc(g->arena, sizeof *n->attrs * (size_t)(attrs + 1));
    /* Nodes of one scope share one string: the caller passes arena text. */
    n->scope = scope ? scope : "";
    WEFT_REQUIRE(n->in && n->out && n->attrs, WEFT_E_NOMEM, "no memory for a node");
    if (n->inputs) memcpy(n->in, in, sizeof *in * (size_t)n->inputs);
    if (attrs) memcpy(n->attrs, table, sizeof *table * (size_t)attrs);
    return keep_tables(g, n, attrs);
}

static weft_status add_node(weft_body *b, weft_node *n, const char *scope, weft_desc *descs,
                            int capacity, int32_t *out_node) {
    int count = 1;
    weft_status st = n->op->infer(n, descs, &count);
    if (st < 0) return shapes_prefix(wefti_note(st, __func__, __FILE__, __LINE__), n);
    WEFT_REQUIRE(count >= 0 && count <= capacity, WEFT_E_BUG, "%s infers %d outputs", n->op->name,
                 count);
    for (int o = 0; o < count; o++) {
        st = wefti_desc_check(&descs[o]);
        if (st < 0) return shapes_prefix(st, n);
    }
    WEFT_TRY(keep_arrays(b->graph, n, scope, count));
    WEFT_REQUIRE(b->node_count < INT32_MAX, WEFT_E_ARG, "too many nodes in one body");
    WEFT_TRY(WEFT_GROW(b->nodes, b->node_count, b->node_cap));
    int64_t before = b->value_count;
    for (int o = 0; o < count; o++) {
        wefti_value_info value = {
            .desc = descs[o], .kind = WEFTI_VALUE_NODE, .node = (int32_t)b->node_count, .slot = o};
        n->out[o] = (int32_t)b->value_count;
        st = push_value(b, &value);
        if (st < 0) {
            b->value_count = before;
            return st;
        }
    }
    n->outputs = (int16_t)count;
    if (n->op->flags & WEFTI_OP_RANDOM) n->stream = b->streams++;
    *out_node = (int32_t)b->node_count;
    b->nodes[b->node_count++] = *n;
    return WEFT_OK;
}

weft_status wefti_body_add(weft_body *b, const weft_op_def *op, weft_body *callee, int in_count,
                           const int32_t *in, const wefti_attr *attrs, const char *scope,
                           int32_t *out_node) {
    while (in_count > op->min_inputs && in_count > 0 && in[in_count - 1] == -1) in_count--;
    WEFT_TRY(check_inputs(b, op, in_count, in));
    static const wefti_attr none;
    weft_node n = {.op = op,
                   .body = b,
                   .in = (int32_t *)(uintptr_t)in, /* copied before the node is kept */
                   .attrs = (wefti_attr *)(uintptr_t)(attrs       ? attrs
                                                      : op->attrs ? op->attrs
                                                                  : &none),
                   .scope = scope,
                   .callee = callee,
                   .inputs = (int16_t)in_count};
    weft_desc few[WEFTI_MAX_OUT];
    if (!callee) return add_node(b, &n, scope, few, WEFTI_MAX_OUT, out_node);
    WEFT_REQUIRE(callee->out_count < INT16_MAX, WEFT_E_ARG, "%s has too many results",
                 callee->name);
    weft_desc *many;
    WEFT_NEW_ARRAY(many, weft_desc, callee->out_count);
    weft_status st = add_node(b, &n, scope, many, (int)callee->out_count, out_node);
    wefti_free(many);
    return st;
}

static weft_status copy_ints(int32_t **out, const int32_t *from, int64_t count) {
    WEFT_NEW_ARRAY(*out, int32_t, count);
    if (count) memcpy(*out, from, sizeof *from * (size_t)count);
    return WEFT_OK;
}

static weft_status fill_clone(const weft_body *b, weft_body *c) {
    WEFT_TRY(copy_ints(&c->in, b->in, b->in_count));
    c->in_count = c->in_cap = b->in_count;
    WEFT_TRY(copy_ints(&c->out, b->out, b->out_count));
    c->out_count = c->out_cap = b->out_count;
    WEFT_NEW_ARRAY(c->values, wefti_value_info, b->value_count);
    if (b->value_count) memcpy(c->values, b->values, sizeof *b->values * (size_t)b->value_count);
    c->value_count = c->value_cap = b->value_count;
    WEFT_NEW_ARRAY(c->nodes, weft_node, b->node_count);
    c->node_cap = b->node_count;
    for (int64_t i = 0; i < b->node_count; i++) {
        weft_node n = b->nodes[i];
        const int32_t *out = n.out;
        n.body = c;
        WEFT_TRY(keep_arrays(c->graph, &n, n.scope, n.outputs));
        if (n.outputs) memcpy(n.out, out, sizeof *out * (size_t)n.outputs);
        c->nodes[c->node_count++] = n;
    }
    c->hash = b->hash;
    c->streams = b->streams;
    return WEFT_OK;
}

weft_status wefti_body_clone(weft_graph *g, const weft_body *b, const char *name, weft_body **out) {
    weft_body *c;
    WEFT_TRY(wefti_body_create(g, name, &c));
    weft_status st = fill_clone(b, c);
    if (st < 0) {
        wefti_body_destroy(c);
        return wefti_note(st, __func__, __FILE__, __LINE__);
    }
    *out = c;
    return WEFT_OK;
}

weft_status wefti_body_prune(weft_body *b) {
    const weft_graph *g = b->graph;
    bool *live;
    WEFT_NEW_ARRAY(live, bool, b->value_count);
    for (int64_t o = 0; o < b->out_count; o++) live[b->out[o]] = true;
    if (b == g->root) {
        if (g->loss >= 0) live[g->loss] = true;
        for (int64_t a = 0; a < g->assign_count; a++) live[g->assigns[a].next] = true;
    }
    int64_t kept = b->node_count;
    for (int64_t i = b->node_count - 1; i >= 0; i--) { /* kept nodes move to the end, in order */
        const weft_node *n = &b->nodes[i];
        /* Communication stays: other ranks wait for it. */
        bool needed = (n->op->flags & (WEFTI_OP_COMM | WEFTI_OP_GROUP)) != 0;
        for (int o = 0; o < n->outputs; o++) needed |= live[n->out[o]];
        if (!needed) {
            for (int o = 0; o < n->outputs; o++) b->values[n->out[o]].node = -1;
            continue;
        }
        for (int k = 0; k < n->inputs; k++)
            if (n->in[k] >= 0) live[n->in[k]] = true;
        b->nodes[--kept] = *n;
    }
    int64_t removed = kept;
    b->node_count -= removed;
    if (removed) memmove(b->nodes, b->nodes + removed, sizeof *b->nodes * (size_t)b->node_count);
    for (int64_t i = 0; i < b->node_count; i++)
        for (int o = 0; o < b->nodes[i].outputs; o++)
            b->values[b->nodes[i].out[o]].node = (int32_t)i;
    wefti_free(live);
    if (removed && b != g->root) b->hash = wefti_body_hash(b);
    return WEFT_OK;
}
