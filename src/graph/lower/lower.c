/* The device's view of a node of the whole model, and the nodes and transfers that an op's `lower`
 * adds. */
#include "graph/lower/lower.h"

#include <string.h>

#include "graph/builder.h"

/* ---- the transfer op ---- */

static weft_status infer_transfer(const weft_node *n, weft_desc *out, int *out_count) {
    (void)out_count;
    const wefti_ints *shape = wefti_attr_ints(n, WEFTI_AT_shape);
    *out = weft_desc_of(wefti_in(n, 0)->dtype, shape->count, shape->v);
    return wefti_desc_check(out);
}

static void cost_transfer(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){.flops = 0, .bytes = wefti_node_bytes(n)};
}

static const wefti_attr transfer_attrs[] = {
    WEFTI_I(index, 0),
    {.id = WEFTI_AT_shape, .kind = WEFTI_ATTR_INTS},
    WEFTI_I(moves, WEFTI_MOVED_VALUE),
    {0},
};

const weft_op_def wefti_op_transfer = {
    WEFTI_OP_NAME(transfer), .min_inputs = 1,         .max_inputs = 1,       .flags = WEFTI_OP_COMM,
    .attrs = transfer_attrs, .infer = infer_transfer, .cost = cost_transfer,
};

const char *wefti_moved_text(wefti_moved moved) {
    static const char *const texts[WEFTI_MOVED] = {"", "gradient of ", "operand of "};
    return texts[moved];
}

weft_status wefti_body_add_transfer(weft_body *b, int32_t value, int32_t index,
                                    const weft_desc *result, wefti_moved moved, const char *scope,
                                    int32_t *out) {
    wefti_ints shape = {.count = result->rank};
    int32_t node;
    for (int d = 0; d < result->rank; d++) shape.v[d] = result->shape[d];
    wefti_attr attrs[] = {WEFTI_I(index, index), WEFTI_N(shape, shape), WEFTI_I(moves, moved), {0}};
    WEFT_TRY(wefti_body_add(b, &wefti_op_transfer, NULL, 1, &value, attrs, scope, &node));
    *out = b->nodes[node].out[0];
    return WEFT_OK;
}

/* ---- factors on this device ---- */

static const wefti_mesh *mesh_of(const wefti_lowering *c) {
    return c->mesh;
}

static wefti_axes axes_of(const wefti_lowering *c, int f) {
    wefti_axes axes = 0;
    for (int k = 0; f >= 0 && k < c->factor[f].count; k++) axes |= 1u << c->factor[f].axis[k];
    return axes;
}

static wefti_axes axes_of_mask(const wefti_lowering *c, uint32_t factors) {
    wefti_axes axes = 0;
    for (int f = 0; f < c->rule.factors; f++)
        if (factors >> f & 1) axes |= axes_of(c, f);
    return axes;
}

int32_t wefti_lower_parts(const wefti_lowering *c, int f) {
    int32_t parts = 1;
    for (int k = 0; f >= 0 && k < c->factor[f].count; k++)
        parts *= mesh_of(c)->axis[c->factor[f].axis[k]].size;
    return parts;
}

static int32_t part_of_rank(const wefti_lowering *c, int f, int32_t rank) {
    int32_t at[WEFTI_MAX_AXES], index = 0;
    wefti_mesh_coordinates(mesh_of(c), rank, at);
    for (int k = 0; f >= 0 && k < c->factor[f].count; k++) {
        int axis = c->factor[f].axis[k];
        index = index * mesh_of(c)->axis[axis].size + at[axis];
    }
    return index;
}

int32_t wefti_lower_index(const wefti_lowering *c, int f) {
    wefti_rank_reads_place(c->reads, mesh_of(c), axes_of(c, f));
    return part_of_rank(c, f, c->ranks.rank);
}

bool wefti_lower_first(const wefti_lowering *c, int f) {
    wefti_rank_reads_first(c->reads, mesh_of(c), axes_of(c, f));
    return part_of_rank(c, f, c->ranks.rank) == 0;
}

void wefti_lower_range(const wefti_lowering *c, int f, int32_t index, int64_t *begin,
                       int64_t *size) {
    int64_t unit = c->factor[f].unit > 1 ? c->factor[f].unit : 1;
    wefti_part(c->rule.factor[f].size, unit, wefti_lower_parts(c, f), index, begin, size);
}

const wefti_split_rule *wefti_lower_rule(const wefti_lowering *c) {
    return &c->rule;
}

int wefti_lower_factor(const wefti_lowering *c, const char *name) {
    for (int f = 0; f < c->rule.factors; f++)
        if (!strcmp(c->rule.factor[f].name, name)) return f;
    return -1;
}

static int64_t begin_of(const wefti_lowering *c, const wefti_layout *layout, const weft_desc *desc,
                        int d) {
    wefti_region box;
    wefti_layout_region(layout, mesh_of(c), desc, c->ranks.rank, &box);
    return box.begin[d];
}

int64_t wefti_lower_in_begin(const wefti_lowering *c, int i, int d) {
    return begin_of(c, &c->need[i], wefti_in(c->n, i), d);
}

weft_desc wefti_lower_out_desc(const wefti_lowering *c, int o) {
    wefti_rank_reads_layout(c->reads, mesh_of(c), wefti_out(c->n, o), &c->give[o]);
    return wefti_layout_local(&c->give[o], mesh_of(c), wefti_out(c->n, o), c->ranks.rank);
}

/* ---- values ---- */

weft_graph *wefti_lower_graph(wefti_lowering *c) {
    return c->graph;
}

const weft_node *wefti_lower_node(const wefti_lowering *c) {
    return c->n;
}

static weft_value handle(wefti_lowering *c, int32_t local) {
    weft_value v = WEFT_NO_VALUE;
    if (local < 0 || !wefti_graph_ok(c->graph)) return v;
    weft_status status = wefti_handle_new(c->handles, c->body, local, &v);
    if (status < 0) wefti_graph_fail(c->graph, status);
    return v;
}

static int32_t local_of(const wefti_lowering *c, weft_value v) {
    return v.id < 0 ? -1 : c->handles->handles[v.id].value;
}

weft_value wefti_lower_in(wefti_lowering *c, int i) {
    return i < c->n->inputs ? handle(c, c->local[i]) : WEFT_NO_VALUE;
}

void wefti_lower_out(wefti_lowering *c, int o, weft_value value) {
    wefti_lower_out_partial(c, o, value, 0);
}

void wefti_lower_out_partial(wefti_lowering *c, int o, weft_value value, uint32_t factors) {
    c->made[o] = local_of(c, value);
    c->give[o].sum = axes_of_mask(c, factors) | c->keep;
    c->give[o].max = 0;
}

/* ---- nodes ---- */

/* The attributes of this device's piece, or of the piece with part `part` of factor `moved`. */
static weft_status local_attrs(const wefti_lowering *c, int moved, int32_t part, wefti_attr *attrs,
                               int *out_count) {
    int count = wefti_attr_count(c->n->op);
    WEFT_REQUIRE(count < 32, WEFT_E_BUG, "%s has too many attributes", c->n->op->name);
    memcpy(attrs, c->n->attrs, (size_t)(count + 1) * sizeof *attrs);
    if (c->n->op->localize) {
        int64_t begins[WEFTI_MAX_FACTORS], sizes[WEFTI_MAX_FACTORS];
        for (int f = 0; f < c->rule.factors; f++) {
            wefti_rank_reads_part(c->reads, mesh_of(c), c->rule.factor[f].size, &c->factor[f]);
            wefti_lower_range(c, f, f == moved ? part : part_of_rank(c, f, c->ranks.rank),
                              &begins[f], &sizes[f]);
        }
        WEFT_TRY(c->n->op->localize(c->n, &c->rule, begins, sizes, attrs));
    }
    *out_count = count;
    return WEFT_OK;
}

static bool costs_alike(const weft_node *made, wefti_attr *attrs, const wefti_cost *cost) {
    weft_node other = *made;
    wefti_cost its;
    other.attrs = attrs;
    wefti_node_cost(&other, &its);
    return its.flops == cost->flops && its.bytes == cost->bytes;
}

/* Reads this device's place along the factors by which the cost of its piece would change. */
static weft_status read_places(const wefti_lowering *c, const weft_node *made) {
    wefti_cost cost;
    if (!c->reads || !c->n->op->localize) return WEFT_OK;
    wefti_node_cost(made, &cost);
    for (int f = 0; f < c->rule.factors; f++) {
        const int32_t own = part_of_rank(c, f, c->ranks.rank), parts = wefti_lower_parts(c, f);
        bool alike = true;
        for (int32_t part = 0; part < parts && alike; part++) {
            wefti_attr attrs[33];
            int count;
            if (part == own) continue;
            WEFT_TRY(local_attrs(c, f, part, attrs, &count));
            alike = costs_alike(made, attrs, &cost);
        }
        if (!alike) wefti_rank_reads_place(c->reads, mesh_of(c), axes_of(c, f));
    }
    return WEFT_OK;
}

weft_status wefti_lower_add(wefti_lowering *c, const int32_t *in, int attr_count,
                            const wefti_attr *given, int32_t *out) {
    wefti_attr attrs[33];
    int count;
    int32_t node;
    WEFT_TRY(local_attrs(c, -1, 0, attrs, &count));
    for (int k = 0; k < attr_count; k++) {
        int at = -1;
        for (int i = 0; i < count; i++)
            if (attrs[i].id == given[k].id) at = i;
        WEFT_REQUIRE(at >= 0, WEFT_E_BUG, "%s has no attribute '%s'", c->n->op->name,
                     wefti_attr_name(given[k].id));
        attrs[at] = given[k];
    }
    WEFT_TRY(wefti_body_add_like(c->body, c->n, in, attrs, NULL, &node));
    const weft_node *made = &c->body->nodes[node];
    if (!attr_count) WEFT_TRY(read_places(c, made));
    for (int o = 0; o < made->outputs; o++) out[o] = made->out[o];
    return WEFT_OK;
}

void wefti_lower_same(wefti_lowering *c, const weft_value *in, int attr_count,
                      const wefti_attr *attrs, weft_value *out) {
    int32_t local[WEFTI_MAX_IN], made[WEFTI_MAX_OUT];
    for (int o = 0; o < c->n->outputs; o++) out[o] = WEFT_NO_VALUE;
    if (!wefti_graph_ok(c->graph)) return;
    for (int i = 0; i < c->n->inputs; i++) local[i] = local_of(c, in[i]);
    weft_status status = wefti_lower_add(c, local, attr_count, attrs, made);
    if (status < 0) {
        wefti_graph_fail(c->graph, status);
        return;
    }
    for (int o = 0; o < c->n->outputs; o++) out[o] = handle(c, made[o]);
}

/* ---- communication ---- */

/* A transfer over the devices that differ at most along `axes`. The group is filled in; the regions
 * are zero. */
static weft_status new_transfer(wefti_lowering *c, wefti_axes axes, const weft_desc *desc,
                                wefti_transfer_kind kind, wefti_reduction reduction,
                                wefti_transfer **out) {
    int32_t members = wefti_mesh_product(mesh_of(c), axes);
    wefti_region *boxes = wefti_calloc((size_t)members, 2 * sizeof *boxes + sizeof(int32_t));
    WEFT_REQUIRE(boxes, WEFT_E_NOMEM, "no memory for a transfer of %d members", members);
    int32_t *ranks = (int32_t *)(boxes + 2 * (size_t)members);
    (void)wefti_mesh_group(mesh_of(c), c->ranks.rank, axes, ranks);
    wefti_transfer shape = {.kind = kind,
                            .reduction = reduction,
                            .dtype = desc->dtype,
                            .rank = desc->rank,
                            .members = members,
                            .ranks = ranks,
                            .have = boxes,
                            .want = boxes + members};
    for (int32_t m = 0; m < members; m++)
        if (ranks[m] == c->ranks.rank) shape.me = m;
    weft_status status = wefti_transfer_clone(&shape, out);
    wefti_free(boxes);
    return status;
}

/* Owns the transfer from now on, also on failure. */
static weft_value finish_transfer(wefti_lowering *c, weft_value value, wefti_transfer *t) {
    int32_t local;
    weft_status status = c->transfer(c, local_of(c, value), t, &local);
    if (status < 0) {
        wefti_graph_fail(c->graph, status);
        return WEFT_NO_VALUE;
    }
    return handle(c, local);
}

static weft_desc desc_of(const wefti_lowering *c, weft_value v) {
    return weft_value_desc(c->graph, v);
}

static void box_of_desc(const weft_desc *desc, wefti_region *out) {
    *out = (wefti_region){0};
    for (int d = 0; d < desc->rank; d++) out->size[d] = desc->shape[d];
}

weft_value wefti_lower_all_reduce(wefti_lowering *c, weft_value value, uint32_t factors,
                                  wefti_reduction reduction) {
    wefti_axes axes = axes_of_mask(c, factors);
    if (!wefti_graph_ok(c->graph) || wefti_mesh_product(mesh_of(c), axes) == 1) return value;
    weft_desc desc = desc_of(c, value);
    wefti_transfer *t;
    weft_status status = new_transfer(c, axes, &desc, WEFTI_TRANSFER_ALL_REDUCE, reduction, &t);
    if (status < 0) {
        wefti_graph_fail(c->graph, status);
        return WEFT_NO_VALUE;
    }
    for (int32_t m = 0; m < t->members; m++) {
        box_of_desc(&desc, &t->have[m]);
        box_of_desc(&desc, &t->want[m]);
    }
    return finish_transfer(c, value, t);
}

/* A transfer along one dimension: each member has a range of it and wants a range of it. */
weft_value wefti_lower_exchange_as(wefti_lowering *c, wefti_transfer_kind kind, weft_value value,
                                   int dim, int f, wefti_lower_ranges *have,
                                   wefti_lower_ranges *want, void *context) {
    wefti_axes axes = axes_of(c, f);
    if (!wefti_graph_ok(c->graph)) return WEFT_NO_VALUE;
    weft_desc desc = desc_of(c, value);
    wefti_transfer *t;
    if (kind == WEFTI_TRANSFER_ALL_GATHER) /* what a member receives depends on its own piece */
        wefti_rank_reads_part(c->reads, mesh_of(c), c->rule.factor[f].size, &c->factor[f]);
    else
        wefti_rank_reads_place(c->reads, mesh_of(c), axes);
    weft_status status = new_transfer(c, axes, &desc, kind, WEFTI_REDUCE_NONE, &t);
    if (status < 0) {
        wefti_graph_fail(c->graph, status);
        return WEFT_NO_VALUE;
    }
    for (int32_t m = 0; m < t->members; m++) {
        int32_t part = part_of_rank(c, f, t->ranks[m]);
        int64_t begin, end;
        box_of_desc(&desc, &t->have[m]);
        box_of_desc(&desc, &t->want[m]);
        have(c, part, context, &begin, &end);
        t->have[m].begin[dim] = begin;
        t->have[m].size[dim] = end - begin;
        want(c, part, context, &begin, &end);
        t->want[m].begin[dim] = begin;
        t->want[m].size[dim] = end - begin;
    }
    return finish_transfer(c, value, t);
}

weft_value wefti_lower_exchange(wefti_lowering *c, weft_value value, int dim, int factor,
                                wefti_lower_ranges *have, wefti_lower_ranges *want, void *context) {
    return wefti_lower_exchange_as(c, WEFTI_TRANSFER_HALO, value, dim, factor, have, want, context);
}

wefti_lower_ranks wefti_lower_world(const wefti_lowering *c) {
    wefti_rank_reads_place(c->reads, mesh_of(c), ~(wefti_axes)0);
    return c->ranks;
}

weft_value wefti_lower_among(wefti_lowering *c, weft_value value, int32_t members, int32_t *ranks,
                             int32_t me, wefti_transfer_kind kind, wefti_reduction reduction,
                             int rank, wefti_region *have, wefti_region *want) {
    if (!wefti_graph_ok(c->graph)) return WEFT_NO_VALUE;
    wefti_transfer *t, shape = {.kind = kind,
                                .reduction = reduction,
                                .dtype = desc_of(c, value).dtype,
                                .rank = rank,
                                .members = members,
                                .me = me,
                                .ranks = ranks,
                                .have = have,
                                .want = want};
    weft_status status = wefti_transfer_clone(&shape, &t);
    if (status < 0) {
        wefti_graph_fail(c->graph, status);
        return WEFT_NO_VALUE;
    }
    return finish_transfer(c, value, t);
}
