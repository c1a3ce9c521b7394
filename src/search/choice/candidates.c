/* The strategies of each node: which axes split which factors of its split rule.
 *
 * A search's own mesh: the factors take consecutive axes in turn, and the axes that are left are
 * the innermost ones. A user's mesh: each axis splits any factor or none. A strategy of the user
 * leaves only the candidates that agree with it. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "search/choice/choice.h"

int64_t wefti_choice_parts(const wefti_mesh *mesh, const wefti_assignment *s, int f) {
    int64_t parts = 1;
    for (int a = 0; a < mesh->axes; a++)
        if (s->factor[a] == f) parts *= mesh->axis[a].size;
    return parts;
}

int64_t wefti_choice_product(const wefti_mesh *mesh, const wefti_assignment *s) {
    int64_t parts = 1;
    for (int a = 0; a < mesh->axes; a++)
        if (s->factor[a] >= 0) parts *= mesh->axis[a].size;
    return parts;
}

static void layout_of(const wefti_choice_graph *g, const wefti_choice_node *n,
                      const wefti_assignment *s, const int8_t *dims, const weft_desc *desc,
                      wefti_layout *out) {
    *out = wefti_layout_replicated(desc->rank);
    for (int d = 0; d < desc->rank; d++) {
        wefti_dim_split *split = &out->dim[d];
        split->unit = 1;
        if (dims[d] < 0) continue;
        for (int8_t a = 0; a < g->mesh.axes; a++)
            if (s->factor[a] == dims[d] && g->mesh.axis[a].size > 1)
                split->axis[split->count++] = a;
        int64_t size = n->rule.factor[dims[d]].size;
        bool halo = n->rule.factor[dims[d]].kind == WEFTI_FACTOR_HALO;
        if (split->count && size > 0 && !halo && desc->shape[d] % size == 0)
            split->unit = desc->shape[d] / size;
    }
    wefti_layout_normal(out, &g->mesh, desc);
}

void wefti_choice_layout_in(const wefti_choice_graph *g, const wefti_choice_node *n,
                            const wefti_assignment *s, int input, wefti_layout *out) {
    layout_of(g, n, s, n->rule.in[input], wefti_choice_input(g, n, input), out);
}

void wefti_choice_layout_out(const wefti_choice_graph *g, const wefti_choice_node *n,
                             const wefti_assignment *s, int output, wefti_layout *out) {
    layout_of(g, n, s, n->rule.out[output], wefti_choice_output(g, n, output), out);
}

int64_t wefti_choice_slice(const wefti_choice_graph *g, const wefti_choice_node *n,
                           const wefti_assignment *s, bool output, int number) {
    wefti_layout layout;
    const weft_desc *desc =
        output ? wefti_choice_output(g, n, number) : wefti_choice_input(g, n, number);
    if (!desc) return 0;
    (output ? wefti_choice_layout_out : wefti_choice_layout_in)(g, n, s, number, &layout);
    int64_t bytes = (int64_t)weft_dtype_bytes(desc->dtype);
    for (int d = 0; d < desc->rank; d++) {
        int64_t parts = wefti_layout_parts(&layout, &g->mesh, d);
        int64_t unit = layout.dim[d].unit > 1 ? layout.dim[d].unit : 1;
        int64_t units = desc->shape[d] / unit;
        bytes *= (units + parts - 1) / parts * unit;
    }
    return bytes;
}

/* ---- the user's strategies ---- */

/* The factor that a split of the user's strategy names; -1: none of this op. */
static int factor_of(const wefti_choice_node *n, const char *what) {
    int operand = 0, d = 0, used = 0;
    for (int f = 0; f < n->rule.factors; f++)
        if (!strcmp(n->rule.factor[f].name, what)) return f;
    bool in = sscanf(what, "in%d.%d%n", &operand, &d, &used) == 2 && !what[used];
    bool out = !in && sscanf(what, "out%d.%d%n", &operand, &d, &used) == 2 && !what[used];
    if (!in && !out && (operand = 0, sscanf(what, "%d%n", &d, &used) != 1 || what[used])) return -1;
    if (operand < 0 || operand >= (out ? n->op->outputs : n->op->inputs)) return -1;
    if (d < 0 || d >= WEFT_MAX_RANK) return -1;
    return (out ? n->rule.out : n->rule.in)[operand][d];
}

/* What the user says of a node: the axes of some factors, or the parts of all of them. */
typedef struct demand {
    bool exact[WEFTI_MAX_FACTORS];
    wefti_axes axes[WEFTI_MAX_FACTORS];
    int64_t parts[WEFTI_MAX_FACTORS]; /* 0: not said */
} demand;

static void read_strategy(const wefti_choice_node *n, const wefti_strategy *s, demand *out) {
    for (int32_t k = 0; k < s->split_count; k++) {
        int f = factor_of(n, s->splits[k].what);
        if (f < 0) continue;
        out->exact[f] = true;
        for (int a = 0; a < s->splits[k].count; a++) out->axes[f] |= 1u << s->splits[k].axis[a];
    }
    if (!s->cuts) return;
    const int64_t *cuts = s->cuts;
    for (int f = 0; f < n->rule.factors; f++) out->parts[f] = 0;
    for (int32_t i = 0; i < s->cut_inputs && i < n->op->inputs; cuts += s->cut_ranks[i++])
        for (int32_t d = 0; d < s->cut_ranks[i] && d < WEFT_MAX_RANK; d++)
            if (n->rule.in[i][d] >= 0) out->parts[n->rule.in[i][d]] = cuts[d];
}

static weft_status read_layout(const wefti_choice_graph *g, const wefti_choice_node *n,
                               demand *out) {
    wefti_layout layout;
    const wefti_tensor_strategy *t = wefti_plan_tensor(g->plan, n->label);
    if (!t) return WEFT_OK;
    WEFT_TRY(wefti_layout_parse(t->layout, &g->mesh, &layout));
    for (int d = 0; d < layout.rank; d++)
        if (n->rule.out[0][d] >= 0) {
            out->exact[n->rule.out[0][d]] = true;
            out->axes[n->rule.out[0][d]] = wefti_layout_dim_axes(&layout, d);
        }
    return WEFT_OK;
}

static bool agrees(const wefti_choice_graph *g, const wefti_choice_node *n,
                   const wefti_assignment *s, const demand *wanted) {
    for (int f = 0; f < n->rule.factors; f++) {
        wefti_axes axes = 0;
        for (int a = 0; a < g->mesh.axes; a++)
            if (s->factor[a] == f) axes |= 1u << a;
        if (wanted->exact[f] && axes != wanted->axes[f]) return false;
        if (wanted->parts[f] && wefti_choice_parts(&g->mesh, s, f) != wanted->parts[f])
            return false;
    }
    return true;
}

/* ---- enumeration ---- */

typedef struct lister {
    wefti_choice_graph *g;
    wefti_choice_node *n;
    const wefti_candidate_rules *rules;
    const demand *wanted; /* NULL: nothing is said */
    bool uneven;          /* parts need not divide the sizes */
    bool all;             /* only strategies that use all devices */
    wefti_assignment *items;
    int64_t count, cap;
    weft_status status;
} lister;

/* An input that each device gets as a whole. */
static bool is_whole_input(const lister *l) {
    const wefti_choice_graph *g = l->g;
    return !l->n->op && g->plan->dataset == WEFT_DATASET_FULL_BATCH &&
           g->graph->root->values[l->n->tensor].kind == WEFTI_VALUE_INPUT;
}

/* Sequences and spatial dimensions exchange elements inside of the op. Only the user splits them.
 */
static bool may_split(const lister *l, int f) {
    const wefti_factor *factor = &l->n->rule.factor[f];
    const weft_node *op = l->n->op;
    if (l->wanted && (l->wanted->exact[f] || l->wanted->parts[f])) return true;
    if (is_whole_input(l)) return false;
    switch (factor->kind) {
    case WEFTI_FACTOR_FREE:
    case WEFTI_FACTOR_SUM:
    case WEFTI_FACTOR_MAX:
        return factor->size > 1;
    case WEFTI_FACTOR_LOOKUP:
    case WEFTI_FACTOR_STATS:
        return factor->size > 1 && op && op->op->lower && (op->op->lowers >> factor->kind & 1);
    case WEFTI_FACTOR_HALO:
    case WEFTI_FACTOR_RING:
    case WEFTI_FACTOR_WHOLE:
        break;
    }
    return false;
}

static bool fits_sizes(const lister *l, const wefti_assignment *s) {
    for (int f = 0; f < l->n->rule.factors; f++) {
        int64_t parts = wefti_choice_parts(&l->g->mesh, s, f), size = l->n->rule.factor[f].size;
        if (parts > 1 && (parts > size || (!l->uneven && size % parts != 0))) return false;
    }
    return true;
}

/* The last two dimensions of each slice of a product are multiples of the alignment. */
static bool is_aligned(const lister *l, const wefti_assignment *s) {
    const int64_t align = l->rules->slice_align;
    if (align <= 1 || !l->n->op || l->n->op->op->family != WEFTI_FAMILY_MATRIX) return true;
    for (int i = 0; i < l->n->op->inputs + l->n->op->outputs; i++) {
        bool output = i >= l->n->op->inputs;
        int number = output ? i - l->n->op->inputs : i;
        const weft_desc *desc = output ? wefti_out(l->n->op, number) : wefti_in(l->n->op, number);
        if (!desc || desc->rank < 2) continue;
        const int8_t *dims = output ? l->n->rule.out[number] : l->n->rule.in[number];
        for (int d = desc->rank - 2; d < desc->rank; d++) {
            int64_t parts = dims[d] < 0 ? 1 : wefti_choice_parts(&l->g->mesh, s, dims[d]);
            if (desc->shape[d] % (parts * align) != 0) return false;
        }
    }
    return true;
}

static void take(lister *l, const wefti_assignment *s) {
    if (l->status < 0 || !fits_sizes(l, s) || !is_aligned(l, s)) return;
    if (l->wanted && !agrees(l->g, l->n, s, l->wanted)) return;
    if (l->all && wefti_choice_product(&l->g->mesh, s) != wefti_mesh_size(&l->g->mesh)) return;
    l->status = WEFT_GROW(l->items, l->count, l->cap);
    if (l->status >= 0) l->items[l->count++] = *s;
}

/* Axis `a` and all later ones. `least`: the first factor that a consecutive axis may split. */
static void list(lister *l, int a, int least, wefti_assignment *s) {
    bool free = l->g->mesh_given;
    if (a == l->g->mesh.axes) {
        take(l, s);
        return;
    }
    for (int f = free ? 0 : least; f < l->n->rule.factors; f++) {
        if (!may_split(l, f)) continue;
        s->factor[a] = (int8_t)f;
        if (wefti_choice_parts(&l->g->mesh, s, f) <= l->n->rule.factor[f].size)
            list(l, a + 1, f, s);
    }
    s->factor[a] = -1;
    if (free) {
        list(l, a + 1, 0, s);
        return;
    }
    wefti_assignment rest = *s;
    for (int k = a; k < l->g->mesh.axes; k++) rest.factor[k] = -1;
    take(l, &rest);
}

static weft_status run(lister *l, bool all, bool uneven) {
    wefti_assignment none;
    memset(&none, -1, sizeof none);
    l->count = 0;
    l->all = all;
    l->uneven = uneven;
    list(l, 0, 0, &none);
    return l->status;
}

static bool has_factor(const lister *l) {
    for (int f = 0; f < l->n->rule.factors; f++)
        if (may_split(l, f)) return true;
    return false;
}

static weft_status keep(lister *l) {
    wefti_assignment *kept = wefti_arena_alloc(l->g->arena, (size_t)l->count * sizeof *kept);
    WEFT_REQUIRE(kept, WEFT_E_NOMEM, "no memory for strategies");
    memcpy(kept, l->items, (size_t)l->count * sizeof *kept);
    l->n->strategies = kept;
    l->n->count = (int32_t)l->count;
    return WEFT_OK;
}

static const char *name_of(const wefti_choice_node *n) {
    return n->op ? n->op->op->name : "tensor";
}

/* Where the user says nothing: all devices and even parts if possible, then uneven ones, then
 * fewer devices. */
static weft_status list_free(lister *l, int *out_full) {
    const int32_t devices = wefti_mesh_size(&l->g->mesh);
    const bool full = l->rules->fully_use_devices && l->n->op && has_factor(l);
    if (full) WEFT_TRY(run(l, true, false));
    if (full && !l->count) WEFT_TRY(run(l, true, true));
    *out_full = l->count > 0;
    if (!l->count) WEFT_TRY(run(l, false, false));
    WEFT_REQUIRE(l->count > 0, WEFT_E_ARG,
                 "no strategy of %s:%s on %d devices has slices that are multiples of %lld: set "
                 "parallel.algorithm.tensor_slice_align to a smaller number",
                 l->n->label, name_of(l->n), devices, (long long)l->rules->slice_align);
    return WEFT_OK;
}

static weft_status list_configured(lister *l) {
    WEFT_TRY(run(l, false, false));
    if (!l->count) WEFT_TRY(run(l, false, true));
    WEFT_REQUIRE(l->count > 0, WEFT_E_ARG,
                 "the strategy for %s:%s leaves no way to split it on a mesh of %d devices: check "
                 "its factors and parts against the shapes",
                 l->n->label, name_of(l->n), wefti_mesh_size(&l->g->mesh));
    /* Of strategies that leave factors open, those that use most devices. */
    int64_t most = 0, used = 0;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t product = wefti_choice_product(&l->g->mesh, &l->items[i]);
        if (product > most) most = product;
    }
    for (int64_t i = 0; i < l->count && l->rules->fully_use_devices; i++)
        if (wefti_choice_product(&l->g->mesh, &l->items[i]) == most) l->items[used++] = l->items[i];
    if (l->rules->fully_use_devices) l->count = used;
    return WEFT_OK;
}

/* ---- ops that follow their producer ---- */

static const wefti_choice_edge *edge_to(const wefti_choice_graph *g, const wefti_choice_node *n,
                                        int input) {
    for (int32_t e = n->feeder; e >= 0; e = g->edges[e].next_to)
        if (g->edges[e].input == input) return &g->edges[e];
    return NULL;
}

/* The strategies under which the first operand keeps the layout of its producer. */
static weft_status list_followed(lister *l, bool *out_done) {
    const wefti_choice_edge *e = edge_to(l->g, l->n, 0);
    *out_done = false;
    if (!l->rules->elementwise_follow || !l->n->op || !e) return WEFT_OK;
    if (!(l->n->op->op->flags & WEFTI_OP_ELEMENTWISE)) return WEFT_OK;
    const wefti_choice_node *from = &l->g->nodes[e->from];
    if (!from->count || from == l->n || !from->op) return WEFT_OK;
    l->count = 0;
    for (int32_t i = 0; i < from->count && l->status >= 0; i++) {
        const weft_desc *desc = wefti_choice_desc(l->g, e);
        wefti_assignment s;
        memset(&s, -1, sizeof s);
        for (int a = 0; a < l->g->mesh.axes; a++)
            for (int d = 0; d < desc->rank; d++)
                if (from->strategies[i].factor[a] >= 0 &&
                    from->rule.out[e->output][d] == from->strategies[i].factor[a])
                    s.factor[a] = l->n->rule.in[0][d];
        bool known = false;
        for (int64_t k = 0; k < l->count; k++) known |= !memcmp(&l->items[k], &s, sizeof s);
        if (known) continue;
        l->status = WEFT_GROW(l->items, l->count, l->cap);
        if (l->status >= 0) l->items[l->count++] = s;
    }
    l->n->follows = *out_done = true;
    return l->status;
}

/* ---- all nodes ---- */

static weft_status demand_of(const wefti_choice_graph *g, const wefti_choice_node *n, demand *out) {
    if (!n->op) return read_layout(g, n, out);
    const wefti_strategy *s = wefti_plan_strategy(g->plan, n->label, n->op->op->name, false);
    if (s) read_strategy(n, s, out);
    return WEFT_OK;
}

static weft_status list_node(lister *l, int *out_full) {
    demand wanted = {0};
    bool done = false;
    l->count = 0;
    l->wanted = NULL;
    if (l->n->configured) {
        l->wanted = &wanted;
        WEFT_TRY(demand_of(l->g, l->n, &wanted));
        WEFT_TRY(list_configured(l));
        *out_full = 1;
    } else {
        WEFT_TRY(list_followed(l, &done));
        if (!done) WEFT_TRY(list_free(l, out_full));
    }
    return keep(l);
}

weft_status wefti_choice_candidates(wefti_choice_graph *g, const wefti_candidate_rules *rules) {
    lister l = {.g = g, .rules = rules};
    weft_status status = WEFT_OK;
    int full = 0, splittable = 0;
    const wefti_choice_node *narrow = NULL;
    for (int32_t i = 0; i < g->node_count && status >= 0; i++) {
        int is_full = 0;
        l.n = &g->nodes[i];
        if (rules->configured_only && !l.n->configured) continue;
        status = list_node(&l, &is_full);
        full += is_full;
        if (!l.n->op || l.n->count < 1 || !has_factor(&l)) continue;
        splittable++;
        if (!narrow && !is_full) narrow = l.n;
    }
    wefti_free(l.items);
    WEFT_TRY(status);
    WEFT_REQUIRE(
        !rules->fully_use_devices || rules->configured_only || full || !splittable, WEFT_E_ARG,
        "no op can use all %d devices; %s:%s, for one, cannot be split into as many "
        "parts: set parallel.algorithm.fully_use_devices=false, or use fewer devices",
        wefti_mesh_size(&g->mesh), narrow ? narrow->label : "", narrow ? name_of(narrow) : "");
    return WEFT_OK;
}
