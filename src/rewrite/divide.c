/* Divides cells whose ops run in two places. The ops of a cell get levels: even ones run in the one
 * place, odd ones in the other, and an op comes at least one level behind an operand that is made
 * in the other place. Each level becomes a cell of its own, and a value that crosses becomes a
 * value of the root. */
#include <string.h>

#include "rewrite/rewrite.h"

typedef struct divider {
    weft_graph *g;
    weft_body *root;
    wefti_is_apart is_apart;
    void *context;
    weft_node *nodes; /* the new nodes of the root */
    bool *apart;      /* of each */
    int64_t count, cap, apart_cap;
} divider;

/* A call that is being divided. Arrays are per value of the cell. */
typedef struct division {
    const weft_node *call;
    const weft_body *cell;
    const int32_t *level; /* per node */
    int32_t *outside;     /* the value of the root; -1: none yet */
    int32_t *map;         /* the value of the part being made; -1: none yet */
} division;

/* Returns the number of levels. */
static int32_t find_levels(const divider *d, const weft_node *call, int32_t *level) {
    const weft_body *cell = call->callee;
    int32_t levels = 0;
    for (int64_t k = 0; k < cell->node_count; k++) {
        const weft_node *n = &cell->nodes[k];
        level[k] = d->is_apart(d->context, d->root, call, n);
        for (int i = 0; i < n->inputs; i++) {
            const int32_t maker = n->in[i] < 0 ? -1 : cell->values[n->in[i]].node;
            if (maker < 0 || level[maker] < level[k]) continue;
            level[k] = level[maker] + ((level[maker] ^ level[k]) & 1);
        }
        if (level[k] >= levels) levels = level[k] + 1;
    }
    return levels;
}

static weft_status add_node(divider *d, weft_node n, bool apart) {
    WEFT_TRY(WEFT_GROW(d->nodes, d->count, d->cap));
    WEFT_TRY(WEFT_GROW(d->apart, d->count, d->apart_cap));
    d->nodes[d->count] = n;
    d->apart[d->count++] = apart;
    return WEFT_OK;
}

/* The operand of a part: an input, if another part makes it or none. outer[i]: what input i is
 * bound to. */
static weft_status localize(const division *x, weft_body *part, int32_t value, int32_t *outer) {
    const wefti_value_info *v = &x->cell->values[value];
    const bool made = v->kind == WEFTI_VALUE_NODE;
    if (x->map[value] >= 0) return WEFT_OK;
    outer[part->in_count] = x->outside[value];
    WEFT_TRY(wefti_body_input(part, v->desc, made ? WEFTI_VALUE_INPUT : v->kind, v->name,
                              &x->map[value]));
    part->values[x->map[value]].of_root = v->of_root;
    return WEFT_OK;
}

static bool is_read_elsewhere(const division *x, int32_t value, int32_t level) {
    for (int64_t k = 0; k < x->cell->node_count; k++)
        for (int i = 0; i < x->cell->nodes[k].inputs; i++)
            if (x->level[k] != level && x->cell->nodes[k].in[i] == value) return true;
    return false;
}

/* Adds the outputs of a part that are `value`: results of the call, or a new value of the root. */
static weft_status add_outputs(divider *d, const division *x, weft_body *part, int32_t value,
                               int32_t level, int32_t *results) {
    for (int64_t o = 0; o < x->cell->out_count; o++) {
        if (x->cell->out[o] != value) continue;
        x->outside[value] = results[part->out_count] = x->call->out[o];
        WEFT_TRY(wefti_body_output(part, x->map[value]));
    }
    if (x->outside[value] >= 0 || !is_read_elsewhere(x, value, level)) return WEFT_OK;
    weft_body *root = d->root;
    WEFT_TRY(WEFT_GROW(root->values, root->value_count, root->value_cap));
    root->values[root->value_count] =
        (wefti_value_info){.desc = x->cell->values[value].desc, .kind = WEFTI_VALUE_NODE};
    x->outside[value] = results[part->out_count] = (int32_t)root->value_count++;
    return wefti_body_output(part, x->map[value]);
}

static weft_status fill_part(divider *d, const division *x, int32_t level, weft_body *part,
                             int32_t *outer, int32_t *results) {
    for (int64_t v = 0; v < x->cell->value_count; v++) x->map[v] = -1;
    for (int64_t k = 0; k < x->cell->node_count; k++) {
        const weft_node *n = &x->cell->nodes[k];
        if (x->level[k] != level) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] >= 0) WEFT_TRY(localize(x, part, n->in[i], outer));
        WEFT_TRY(wefti_body_copy_node(part, n, x->map));
        for (int o = 0; o < n->outputs; o++)
            WEFT_TRY(add_outputs(d, x, part, n->out[o], level, results));
    }
    part->streams = x->cell->streams;
    return WEFT_OK;
}

/* Adds the call of a part. */
static weft_status call_part(divider *d, const division *x, weft_body *part, const int32_t *outer,
                             const int32_t *results, bool apart) {
    weft_node n = *x->call;
    n.body = d->root;
    n.callee = part;
    n.inputs = (int16_t)part->in_count;
    n.outputs = (int16_t)part->out_count;
    n.in = wefti_arena_alloc(d->g->arena, sizeof *n.in * (size_t)(n.inputs + 1));
    n.out = wefti_arena_alloc(d->g->arena, sizeof *n.out * (size_t)(n.outputs + 1));
    WEFT_REQUIRE(n.in && n.out, WEFT_E_NOMEM, "no memory to divide a cell");
    memcpy(n.in, outer, sizeof *outer * (size_t)n.inputs);
    memcpy(n.out, results, sizeof *results * (size_t)n.outputs);
    return add_node(d, n, apart);
}

static weft_status make_part(divider *d, const division *x, int32_t level) {
    weft_body *part, *stored;
    int32_t *outer, *results;
    bool any = false;
    for (int64_t k = 0; k < x->cell->node_count; k++) any = any || x->level[k] == level;
    if (!any) return WEFT_OK;
    const size_t most = (size_t)(x->cell->value_count + x->cell->out_count);
    WEFT_NEW_ARRAY(outer, int32_t, 2 * most);
    results = outer + most;
    weft_status status = wefti_body_create(d->g, x->cell->name, &part);
    if (status >= 0) {
        status = fill_part(d, x, level, part, outer, results);
        if (status < 0) wefti_body_destroy(part);
    }
    if (status >= 0) status = wefti_graph_intern_part(d->g, part, &stored);
    if (status >= 0 && stored->out_count > 0) /* else nothing reads it */
        status = call_part(d, x, stored, outer, results, level & 1);
    wefti_free(outer);
    return status;
}

static weft_status divide_call(divider *d, const weft_node *call) {
    const weft_body *cell = call->callee;
    int32_t *level;
    WEFT_NEW_ARRAY(level, int32_t, cell->node_count + 2 * cell->value_count + 1);
    division x = {call, cell, level, level + cell->node_count,
                  level + cell->node_count + cell->value_count};
    const int32_t levels = find_levels(d, call, level);
    bool alike = true;
    for (int64_t k = 1; k < cell->node_count; k++) alike = alike && level[k] == level[0];
    weft_status status = WEFT_OK;
    if (alike) status = add_node(d, *call, cell->node_count && (level[0] & 1));
    for (int64_t v = 0; v < cell->value_count; v++) x.outside[v] = -1;
    for (int64_t i = 0; i < cell->in_count; i++) x.outside[cell->in[i]] = call->in[i];
    for (int32_t k = 0; k < levels && !alike && status >= 0; k++) status = make_part(d, &x, k);
    wefti_free(level);
    return status;
}

weft_status wefti_divide(weft_graph *g, weft_body *root, wefti_is_apart is_apart, void *context,
                         bool **out_apart) {
    divider d = {.g = g, .root = root, .is_apart = is_apart, .context = context};
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < root->node_count && status >= 0; k++)
        status = divide_call(&d, &root->nodes[k]);
    if (status < 0) {
        wefti_free(d.nodes);
        wefti_free(d.apart);
        return status;
    }
    wefti_free(root->nodes);
    root->nodes = d.nodes;
    root->node_count = d.count;
    root->node_cap = d.cap;
    for (int64_t k = 0; k < d.count; k++)
        for (int o = 0; o < d.nodes[k].outputs; o++) {
            wefti_value_info *v = &root->values[d.nodes[k].out[o]];
            v->node = (int32_t)k;
            v->slot = o;
        }
    *out_apart = d.apart;
    return WEFT_OK;
}
