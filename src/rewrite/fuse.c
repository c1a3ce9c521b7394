/* Fusion of elementwise chains, and the order of the fusion passes. */
#include "rewrite/rewrite.h"

#include <string.h>

enum { MAX_FUSED_INPUTS = 10, MAX_FUSED_OUTPUTS = 5, MAX_FUSED_NODES = 20 };

weft_status wefti_copy_inputs(const weft_body *from, weft_body *to, int32_t *map) {
    for (int64_t v = 0; v < from->value_count; v++) map[v] = -1;
    for (int64_t i = 0; i < from->in_count; i++) {
        const wefti_value_info *v = &from->values[from->in[i]];
        WEFT_TRY(wefti_body_input(to, v->desc, v->kind, v->name, &map[from->in[i]]));
    }
    return WEFT_OK;
}

weft_status wefti_copy_outputs(const weft_body *from, weft_body *to, const int32_t *map) {
    for (int64_t o = 0; o < from->out_count; o++)
        WEFT_TRY(wefti_body_output(to, map[from->out[o]]));
    return WEFT_OK;
}

/* ---- groups ---- */

typedef struct grouping {
    const weft_body *b;
    wefti_arena *scratch;
    int32_t *group;  /* per node: its group; every node starts as a group of its own */
    int32_t *size;   /* per group: members */
    int64_t words;   /* of a reach set */
    uint64_t *reach; /* per node: the groups on which it depends, and its own group */
    int32_t *before; /* per communicating node: the communicating node before it, -1: none. All
                        devices must communicate in one order, whatever each of them fuses. */
    bool *escapes;   /* per value: it is a result of the body */
    int32_t *uses;   /* per value: number of readers among the nodes */
    int32_t *local;  /* per value: its number in the group that is emitted; all -1 in between */
} grouping;

static bool has(const grouping *g, int64_t node, int32_t group) {
    return g->reach[node * g->words + group / 64] >> (group % 64) & 1u;
}

static bool is_integer(const weft_desc *d) {
    return !wefti_dtype_is_float(d->dtype) && d->dtype != WEFT_BOOL;
}

/* Whether a node may join a chain. Kernels run a chain in f32 registers, which neither hold every
 * integer nor respect the limits of integer dtypes. So arithmetic on integers stays alone. Nodes
 * with dtypes that chain kernels cannot load or store also stay alone, so that they do not force
 * their neighbors into a slower kernel. A cast may begin or end a chain. */
static bool fusable(const weft_node *n) {
    if (!(n->op->flags & WEFTI_OP_ELEMENTWISE) || (n->op->flags & WEFTI_OP_IN_PLACE) ||
        n->outputs != 1 || n->inputs < 1)
        return false;
    for (int i = 0; i < n->inputs + 1; i++) {
        const weft_desc *d = i < n->inputs ? wefti_in(n, i) : wefti_out(n, 0);
        if (!d || !is_integer(d)) continue;
        if (!(n->op->flags & WEFTI_OP_CONVERTS) || d->dtype == WEFT_I64 || d->dtype == WEFT_U16)
            return false;
    }
    return true;
}

static bool same_shape(const weft_desc *a, const weft_desc *b) {
    if (a->rank != b->rank) return false;
    return !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]);
}

/* Whether group `target` with node `extra` stays within the limits: distinct values read from
 * outside, values made for outside, and number of nodes. */
static bool within_limits(const grouping *g, int32_t target, int64_t extra) {
    const weft_body *b = g->b;
    int32_t in[MAX_FUSED_INPUTS + 1];
    int ins = 0, outs = 0;
    for (int64_t k = target; k <= extra; k++) { /* a group has the number of its first node */
        if (g->group[k] != target && k != extra) continue;
        const weft_node *n = &b->nodes[k];
        for (int i = 0; i < n->inputs; i++) {
            int32_t v = n->in[i], maker = v < 0 ? -1 : b->values[v].node;
            if (v < 0 || (maker >= 0 && (g->group[maker] == target || maker == extra))) continue;
            int seen = 0;
            while (seen < ins && in[seen] != v) seen++;
            if (seen < ins) continue;
            if (ins == MAX_FUSED_INPUTS) return false;
            in[ins++] = v;
        }
        int32_t inside = 0;
        for (int64_t j = k + 1; j <= extra; j++) {
            if (g->group[j] != target && j != extra) continue;
            for (int i = 0; i < b->nodes[j].inputs; i++) inside += b->nodes[j].in[i] == n->out[0];
        }
        if (g->escapes[n->out[0]] || inside < g->uses[n->out[0]]) outs++;
    }
    return outs <= MAX_FUSED_OUTPUTS && g->size[target] < MAX_FUSED_NODES;
}

/* A node may join a group if none of its operands from outside the group depends on the group. */
static bool may_join(const grouping *g, int64_t node, int32_t target) {
    const weft_node *n = &g->b->nodes[node];
    for (int i = 0; i < n->inputs; i++) {
        int32_t maker = n->in[i] < 0 ? -1 : g->b->values[n->in[i]].node;
        if (maker >= 0 && g->group[maker] != target && has(g, maker, target)) return false;
    }
    return within_limits(g, target, node);
}

static void add_reach(grouping *g, uint64_t *mine, int32_t maker) {
    for (int64_t w = 0; maker >= 0 && w < g->words; w++) mine[w] |= g->reach[maker * g->words + w];
}

static void form_groups(grouping *g) {
    const weft_body *b = g->b;
    int32_t last = -1;
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        g->group[k] = (int32_t)k;
        g->size[k] = 1;
        uint64_t *mine = &g->reach[k * g->words];
        if (fusable(n)) {
            for (int i = 0; i < n->inputs; i++) {
                int32_t maker = n->in[i] < 0 ? -1 : b->values[n->in[i]].node;
                if (maker < 0 || !fusable(&b->nodes[maker])) continue;
                if (is_integer(wefti_in(n, i)))
                    continue; /* the value exists only as stored: it
                                 must be rounded */
                if (!same_shape(wefti_out(n, 0), wefti_out(&b->nodes[maker], 0))) continue;
                int32_t target = g->group[maker];
                if (!may_join(g, k, target)) continue;
                g->group[k] = target;
                g->size[target]++;
                break;
            }
        }
        for (int i = 0; i < n->inputs; i++)
            add_reach(g, mine, n->in[i] < 0 ? -1 : b->values[n->in[i]].node);
        g->before[k] = -1;
        if (n->op->flags & WEFTI_OP_COMM) {
            g->before[k] = last;
            add_reach(g, mine, last);
            last = (int32_t)k;
        }
        mine[g->group[k] / 64] |= (uint64_t)1 << (g->group[k] % 64);
        /* Other members, and their dependents, now depend on the dependencies of this node. */
        for (int64_t j = g->group[k]; j < k && g->size[g->group[k]] > 1; j++)
            if (has(g, j, g->group[k])) add_reach(g, &g->reach[j * g->words], (int32_t)k);
    }
}

/* ---- emission ---- */

/* Whether nodes outside the group, or the body's results, need the result of its node `k`. */
static bool is_needed_outside(const grouping *g, int32_t group, int64_t k) {
    const int32_t v = g->b->nodes[k].out[0];
    int32_t inside = 0;
    for (int64_t j = k + 1, left = g->size[group]; j < g->b->node_count && left > 0; j++) {
        if (g->group[j] != group) continue;
        left--;
        for (int i = 0; i < g->b->nodes[j].inputs; i++) inside += g->b->nodes[j].in[i] == v;
    }
    return g->escapes[v] || inside < g->uses[v];
}

static weft_status emit_group(const grouping *g, weft_graph *graph, int32_t group, weft_body *to,
                              int32_t *map) {
    const weft_body *b = g->b;
    weft_body *inner, *stored;
    int32_t in[MAX_FUSED_INPUTS], outs[MAX_FUSED_OUTPUTS], *local = g->local;
    int ins = 0, out_count = 0;
    const char *scope = "";
    weft_status status;
    WEFT_TRY(wefti_body_create(graph, "fused", &inner));
    for (int64_t k = group, left = g->size[group]; left > 0; k++) {
        const weft_node *n = &b->nodes[k];
        if (g->group[k] != group) continue;
        left--;
        for (int i = 0; i < n->inputs; i++) {
            int32_t v = n->in[i];
            if (v < 0 || local[v] >= 0) continue;
            WEFT_TRY_OR(fail, status,
                        wefti_body_input(inner, b->values[v].desc,
                                         b->values[v].kind == WEFTI_VALUE_NODE ? WEFTI_VALUE_INPUT
                                                                               : b->values[v].kind,
                                         NULL, &local[v]));
            in[ins++] = map[v];
        }
        WEFT_TRY_OR(fail, status, wefti_body_copy_node(inner, n, local));
        scope = n->scope;
    }
    for (int64_t k = group, left = g->size[group]; left > 0; k++) {
        if (g->group[k] != group) continue;
        left--;
        int32_t v = b->nodes[k].out[0];
        if (!is_needed_outside(g, group, k)) continue;
        WEFT_TRY_OR(fail, status, wefti_body_output(inner, local[v]));
        outs[out_count++] = v;
    }
    for (int64_t k = group, left = g->size[group]; left > 0; k++) { /* all are -1 again */
        if (g->group[k] != group) continue;
        left--;
        local[b->nodes[k].out[0]] = -1;
        for (int i = 0; i < b->nodes[k].inputs; i++)
            if (b->nodes[k].in[i] >= 0) local[b->nodes[k].in[i]] = -1;
    }
    WEFT_TRY(wefti_graph_intern_fused(graph, inner, &stored));
    int32_t node;
    WEFT_TRY(wefti_body_add(to, &wefti_op_fused, stored, ins, in, NULL, scope, &node));
    for (int o = 0; o < out_count; o++) map[outs[o]] = to->nodes[node].out[o];
    return WEFT_OK;
fail:
    wefti_body_destroy(inner);
    return status;
}

/* Whether all operands of a group are available, and all communication before it is done. */
static bool is_ready(const grouping *g, const bool *done, int32_t group) {
    const weft_body *b = g->b;
    for (int64_t j = group, left = g->size[group]; left > 0; j++) {
        if (g->group[j] != group) continue;
        left--;
        if (g->before[j] >= 0 && !done[g->before[j]]) return false;
        for (int i = 0; i < b->nodes[j].inputs; i++) {
            int32_t v = b->nodes[j].in[i], maker = v < 0 ? -1 : b->values[v].node;
            if (maker >= 0 && g->group[maker] != group && !done[maker]) return false;
        }
    }
    return true;
}

/* Emits a group when all its operands are available. Groups come in the order of their first ready
 * member. */
static weft_status emit_all(const grouping *g, weft_graph *graph, weft_body *to, int32_t *map) {
    const weft_body *b = g->b;
    bool *done = wefti_arena_alloc(g->scratch, (size_t)b->node_count + 1);
    WEFT_REQUIRE(done, WEFT_E_NOMEM, "no memory to fuse");
    for (int64_t left = b->node_count; left > 0;) {
        int64_t before = left;
        for (int64_t k = 0; k < b->node_count; k++) {
            if (done[k]) continue;
            const int32_t group = g->group[k];
            if (!is_ready(g, done, group)) continue;
            if (g->size[group] > 1)
                WEFT_TRY(emit_group(g, graph, group, to, map));
            else
                WEFT_TRY(wefti_body_copy_node(to, &b->nodes[k], map));
            for (int64_t j = group, members = g->size[group]; members > 0; j++)
                if (g->group[j] == group) {
                    done[j] = true;
                    members--;
                    left--;
                }
        }
        WEFT_REQUIRE(left < before, WEFT_E_BUG, "fused groups of a body depend on each other");
    }
    return WEFT_OK;
}

static weft_status fuse_into(weft_graph *graph, const weft_body *b, weft_body *to,
                             wefti_arena *scratch) {
    size_t nodes = (size_t)b->node_count + 1, values = (size_t)b->value_count + 1;
    grouping g = {.b = b, .scratch = scratch, .words = (b->node_count + 64) / 64};
    int32_t *map = wefti_arena_alloc(scratch, values * sizeof *map);
    g.group = wefti_arena_alloc(scratch, nodes * sizeof *g.group);
    g.size = wefti_arena_alloc(scratch, nodes * sizeof *g.size);
    g.reach = wefti_arena_alloc(scratch, nodes * (size_t)g.words * sizeof *g.reach);
    g.before = wefti_arena_alloc(scratch, nodes * sizeof *g.before);
    g.escapes = wefti_arena_alloc(scratch, values * sizeof *g.escapes);
    g.uses = wefti_arena_alloc(scratch, values * sizeof *g.uses);
    g.local = wefti_arena_alloc(scratch, values * sizeof *g.local);
    WEFT_REQUIRE(map && g.group && g.size && g.reach && g.before && g.escapes && g.uses && g.local,
                 WEFT_E_NOMEM, "no memory to fuse");
    for (int64_t v = 0; v < b->value_count; v++) g.local[v] = -1;
    for (int64_t k = 0; k < b->node_count; k++) g.group[k] = -1;
    for (int64_t o = 0; o < b->out_count; o++) g.escapes[b->out[o]] = true;
    for (int64_t k = 0; k < b->node_count; k++)
        for (int i = 0; i < b->nodes[k].inputs; i++)
            if (b->nodes[k].in[i] >= 0) g.uses[b->nodes[k].in[i]]++;
    form_groups(&g);
    WEFT_TRY(wefti_copy_inputs(b, to, map));
    WEFT_TRY(emit_all(&g, graph, to, map));
    return wefti_copy_outputs(b, to, map);
}

weft_status wefti_fuse_elementwise(weft_graph *g, const weft_body *body, weft_body **out) {
    weft_body *to;
    wefti_arena *scratch;
    weft_status status;
    WEFT_TRY(wefti_body_create(g, body->name, &to));
    WEFT_TRY_OR(err_body, status, wefti_arena_create(&scratch));
    status = fuse_into(g, body, to, scratch);
    wefti_arena_destroy(scratch);
    if (status < 0) goto err_body;
    *out = to;
    return WEFT_OK;
err_body:
    wefti_body_destroy(to);
    return status;
}

/* Fuses losses into one node if possible, and splits the others into chunks. */
static weft_status fuse_losses(weft_graph *g, wefti_partition *part, const weft_body *body,
                               weft_body **out) {
    weft_body *fused, *chunked = NULL;
    WEFT_TRY(wefti_fuse_loss(g, body, &fused));
    weft_status status = wefti_body_prune(fused);
    if (status == WEFT_OK) status = wefti_chunk_loss(g, part, fused, WEFTI_CHUNK_LOGITS, &chunked);
    if (chunked) {
        wefti_body_destroy(fused);
        fused = chunked;
        status = wefti_body_prune(fused);
    }
    if (status < 0) {
        wefti_body_destroy(fused);
        return status;
    }
    *out = fused;
    return WEFT_OK;
}

weft_status wefti_fuse(weft_graph *g, wefti_partition *part, const weft_body *body,
                       weft_body **out) {
    weft_body *first, *second;
    WEFT_TRY(fuse_losses(g, part, body, &first));
    weft_status status = wefti_fuse_elementwise(g, first, &second);
    wefti_body_destroy(first);
    if (status < 0) return status;
#ifdef WEFT_DEBUG_CHECKS
    status = wefti_body_check(second);
    if (status < 0) {
        wefti_body_destroy(second);
        return status;
    }
#endif
    *out = second;
    return WEFT_OK;
}
