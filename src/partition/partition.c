/* The partition of a body: brings operands into their layouts, partitions nodes, and keeps all
 * forms of their results. */
#include "partition/partition.h"

#include <string.h>

#include "partition/context.h"

/* ---- transfers ---- */

weft_status wefti_partition_add(wefti_partition *p, wefti_transfer *t, int32_t *out_index) {
    weft_status status = wefti_transfer_check(t);
    for (int64_t i = 0; status == WEFT_OK && i < p->transfer_count; i++)
        if (p->transfers[i]->tag == t->tag && wefti_transfer_equal(p->transfers[i], t)) {
            wefti_free(t);
            *out_index = (int32_t)i;
            return WEFT_OK;
        }
    if (status == WEFT_OK) status = WEFT_GROW(p->transfers, p->transfer_count, p->transfer_cap);
    if (status < 0) {
        wefti_free(t);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out_index = (int32_t)p->transfer_count;
    p->transfers[p->transfer_count++] = t;
    return WEFT_OK;
}

int32_t wefti_partition_transfers(const wefti_partition *p) {
    return (int32_t)p->transfer_count;
}

const wefti_transfer *wefti_partition_transfer(const wefti_partition *p, int32_t index) {
    return p->transfers[index];
}

void wefti_partition_observe(wefti_partition *p, wefti_decide *decide, void *context) {
    p->decide = decide;
    p->decide_context = context;
}

static weft_desc want_desc(const wefti_transfer *t) {
    return weft_desc_of(t->dtype, t->rank, t->want[t->me].size);
}

weft_status wefti_partition_add_transfer(wefti_partition_context *ctx, int32_t local,
                                         wefti_transfer *t, const char *scope, int32_t *out_local) {
    weft_desc to = want_desc(t);
    int32_t index;
    WEFT_TRY(wefti_partition_add(ctx->p, t, &index));
    return wefti_body_add_transfer(ctx->to, local, index, &to, scope, out_local);
}

/* ---- moves ---- */

static const weft_op_def *op_named(const wefti_partition_context *ctx, const char *name) {
    return wefti_op_find(ctx->p->graph->ops, name);
}

static weft_status emit_slices(wefti_partition_context *ctx, const wefti_region *have,
                               const wefti_region *want, int rank, int32_t *local) {
    for (int d = 0; d < rank; d++) {
        if (have->begin[d] == want->begin[d] && have->size[d] == want->size[d]) continue;
        int64_t begin = want->begin[d] - have->begin[d];
        wefti_attr attrs[] = {WEFTI_I("axis", d),
                              WEFTI_I("begin", begin),
                              WEFTI_I("end", begin + want->size[d]),
                              {0}};
        int32_t node;
        const weft_op_def *op = op_named(ctx, "slice");
        WEFT_REQUIRE(op, WEFT_E_BUG, "a partition needs the op 'slice'");
        WEFT_TRY(wefti_body_add(ctx->to, op, NULL, 1, local, attrs, "", &node));
        *local = ctx->to->nodes[node].out[0];
    }
    return WEFT_OK;
}

weft_status wefti_partition_add_constant(wefti_partition_context *ctx, const weft_desc *desc,
                                         double value, int32_t *out_local) {
    const weft_op_def *op = op_named(ctx, "constant");
    WEFT_REQUIRE(op, WEFT_E_BUG, "a partition needs the op 'constant'");
    wefti_ints shape = {.count = desc->rank};
    for (int d = 0; d < desc->rank; d++) shape.v[d] = desc->shape[d];
    wefti_attr attrs[] = {
        WEFTI_I("dtype", desc->dtype), WEFTI_N("shape", shape), WEFTI_F("value", value), {0}};
    int32_t node;
    WEFT_TRY(wefti_body_add(ctx->to, op, NULL, 0, NULL, attrs, "", &node));
    *out_local = ctx->to->nodes[node].out[0];
    return WEFT_OK;
}

/* Makes a value partial: the first device along `axes` keeps it, the others get the neutral element
 * of the reduction. */
static weft_status emit_partial(wefti_partition_context *ctx, const wefti_move *move,
                                int32_t *local) {
    bool first = true;
    for (int a = 0; a < ctx->p->mesh.axes; a++)
        if (move->axes >> a & 1) first &= ctx->p->coordinate[a] == 0;
    if (first) return WEFT_OK;
    weft_desc desc = ctx->to->values[*local].desc;
    return wefti_partition_add_constant(ctx, &desc,
                                        move->to.max & move->axes ? -__builtin_inf() : 0.0, local);
}

/* The name of a value's transfers within the call: the gradient that it is, the op that makes
 * it, its own name, or the op that reads it. */
static weft_status name_value(wefti_partition_context *ctx, int32_t value, const weft_node *reader,
                              const char *gradient_of, const char **out) {
    const wefti_value_info *info = &ctx->from->values[value];
    const weft_node *maker = info->node >= 0 ? &ctx->from->nodes[info->node] : NULL;
    const weft_node *n = maker ? maker : reader;
    char label[512], op[WEFTI_OP_NAME_BYTES];
    const char *text;
    if (gradient_of)
        text = wefti_arena_join(ctx->p->arena, "gradient of ", gradient_of);
    else if (!maker && info->name)
        text = wefti_arena_strdup(ctx->p->arena, info->name);
    else if (n)
        text = wefti_arena_format(ctx->p->arena, "%s%s:%s", maker ? "" : "operand of ",
                                  wefti_node_inside(ctx->from, n, label, sizeof label),
                                  wefti_node_op(n, op, sizeof op));
    else /* only passed through: the caller of the body names it */
        text = "";
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for the name of a value");
    *out = text;
    return WEFT_OK;
}

static weft_status emit_move(wefti_partition_context *ctx, const weft_desc *whole,
                             const wefti_layout *from, const wefti_move *move, const char *name,
                             int32_t *local) {
    const wefti_mesh *mesh = &ctx->p->mesh;
    if (move->kind == WEFTI_MOVE_TO_PARTIAL) return emit_partial(ctx, move, local);
    if (move->kind == WEFTI_MOVE_SLICE) {
        wefti_region have, want;
        wefti_layout_region(from, mesh, whole, ctx->p->rank, &have);
        wefti_layout_region(&move->to, mesh, whole, ctx->p->rank, &want);
        return emit_slices(ctx, &have, &want, whole->rank, local);
    }
    wefti_transfer *t;
    WEFT_TRY(wefti_move_transfer(mesh, whole, from, move, ctx->p->rank, &t));
    t->name = name[0] ? name : NULL;
    return wefti_partition_add_transfer(ctx, *local, t, name, local);
}

static weft_status add_version(wefti_partition_context *ctx, int32_t value,
                               const wefti_layout *layout, int32_t local) {
    wefti_version *v = wefti_arena_alloc(ctx->scratch, sizeof *v), **at = &ctx->version[value];
    WEFT_REQUIRE(v, WEFT_E_NOMEM, "no memory to partition a cell");
    *v = (wefti_version){*layout, local, NULL};
    while (*at) at = &(*at)->next;
    *at = v;
    return WEFT_OK;
}

weft_status wefti_partition_route(wefti_partition_context *ctx, int32_t value,
                                  const wefti_layout *to, const wefti_version **out_from,
                                  const wefti_route **out) {
    const weft_desc *whole = &ctx->from->values[value].desc;
    *out = NULL;
    for (const wefti_version *v = ctx->version[value]; v; v = v->next) {
        const wefti_route *route;
        if (v->value < 0) continue;
        WEFT_TRY(wefti_route_find(ctx->p->routes, &ctx->p->mesh, whole, &v->layout, to, 0, &route));
        /* Of equally fast routes take the one with fewer moves, so that an existing slice is not
         * sliced from the whole again. */
        bool better = !*out || route->seconds < (*out)->seconds ||
                      (route->seconds == (*out)->seconds && route->moves < (*out)->moves);
        if (!better) continue;
        *out = route;
        *out_from = v;
    }
    return WEFT_OK;
}

/* An open input takes the first layout that a reader requires, without its partial sums. */
static weft_status fix_open_input(wefti_partition_context *ctx, int32_t value,
                                  const wefti_layout *layout) {
    wefti_version *v = ctx->version[value];
    const wefti_value_info *info = &ctx->from->values[value];
    v->layout = *layout;
    v->layout.sum = v->layout.max = 0;
    wefti_layout_normal(&v->layout, &ctx->p->mesh, &info->desc);
    weft_desc local = wefti_layout_local(&v->layout, &ctx->p->mesh, &info->desc, ctx->p->rank);
    v->value = ctx->to->in[info->slot];
    ctx->to->values[v->value].desc = local;
    ctx->in_layout[info->slot] = v->layout;
    return WEFT_OK;
}

weft_status wefti_partition_bring(wefti_partition_context *ctx, int32_t value,
                                  const wefti_layout *to, const weft_node *reader,
                                  const char *gradient_of, int32_t *out_local) {
    const weft_desc *whole = &ctx->from->values[value].desc;
    const wefti_version *from = NULL;
    const wefti_route *route;
    if (ctx->version[value] && ctx->version[value]->value < 0)
        WEFT_TRY(fix_open_input(ctx, value, to));
    WEFT_TRY(wefti_partition_route(ctx, value, to, &from, &route));
    WEFT_REQUIRE(route, WEFT_E_BUG, "a value is used before it is made");
    int32_t local = from->value;
    wefti_layout at = from->layout;
    const char *name = "";
    if (route->moves) WEFT_TRY(name_value(ctx, value, reader, gradient_of, &name));
    for (int m = 0; m < route->moves; m++) {
        bool reduces = route->move[m].kind == WEFTI_MOVE_TRANSFER &&
                       (route->move[m].transfer == WEFTI_TRANSFER_ALL_REDUCE ||
                        route->move[m].transfer == WEFTI_TRANSFER_REDUCE_SCATTER);
        ctx->communicated[value] |= reduces;
        WEFT_TRY(emit_move(ctx, whole, &at, &route->move[m], name, &local));
        at = route->move[m].to;
        WEFT_TRY(add_version(ctx, value, &at, local));
    }
    *out_local = local;
    return WEFT_OK;
}

/* ---- one run ---- */

static weft_status bind_inputs(wefti_partition_context *ctx) {
    for (int64_t i = 0; i < ctx->from->in_count; i++) {
        int32_t v = ctx->from->in[i], local;
        const wefti_value_info *info = &ctx->from->values[v];
        bool open = ctx->spec->in_state && ctx->spec->in_state[i] == WEFTI_LAYOUT_OPEN;
        wefti_layout layout = open ? wefti_layout_replicated(info->desc.rank) : ctx->spec->in[i];
        if (!open) {
            WEFT_TRY(wefti_layout_check(&layout, &ctx->p->mesh, &info->desc));
            wefti_layout_normal(&layout, &ctx->p->mesh, &info->desc);
        }
        weft_desc desc = wefti_layout_local(&layout, &ctx->p->mesh, &info->desc, ctx->p->rank);
        WEFT_TRY(wefti_body_input(ctx->to, desc, info->kind, info->name, &local));
        ctx->in_layout[i] = layout;
        WEFT_TRY(add_version(ctx, v, &layout, open ? -1 : local));
    }
    return WEFT_OK;
}

static weft_status find_wanted(wefti_partition_context *ctx) {
    for (int64_t o = 0; o < ctx->from->out_count; o++) {
        int32_t v = ctx->from->out[o];
        if (ctx->spec->out_partial_open && ctx->spec->out_partial_open[o])
            ctx->partial_free[v] = true;
        bool aim = !ctx->spec->out_partial_open || ctx->spec->out_partial_open[o] != 2;
        if (aim && ctx->spec->out_state && ctx->spec->out_state[o] == WEFTI_LAYOUT_GIVEN)
            ctx->wanted[v] = &ctx->spec->out[o];
    }
    return WEFT_OK;
}

/* Stores the layout in which the strategy leaves the first result in c->context->result. */
static weft_status find_result(wefti_lowering *c, const wefti_strategy *s) {
    wefti_partition_context *ctx = c->context->run;
    if (!s || !s->out || c->n->outputs == 0) return WEFT_OK;
    const weft_desc *whole = wefti_out(c->n, 0);
    wefti_layout *to;
    if (s->out->rank != whole->rank && !s->op) return WEFT_OK;
    weft_status status = wefti_layout_check_stated(s->out, &ctx->p->mesh, whole);
    if (status < 0)
        return wefti_prefix(status, "%s%sthe strategy '%.100s' says that the result, %s, is %s",
                            s->source ? s->source : "", s->source ? ": " : "", s->match,
                            wefti_desc_text(whole).text,
                            wefti_layout_text(s->out, &ctx->p->mesh).text);
    to = wefti_arena_alloc(ctx->scratch, sizeof *to);
    WEFT_REQUIRE(to, WEFT_E_NOMEM, "no memory to partition a cell");
    *to = *s->out;
    wefti_layout_normal(to, &ctx->p->mesh, whole);
    c->context->result = to;
    return WEFT_OK;
}

/* Brings the first result into the strategy's layout, and keeps it in no other form for its
 * readers. */
static weft_status place_result(wefti_lowering *c) {
    wefti_partition_context *ctx = c->context->run;
    int32_t local;
    if (!c->context->result) return WEFT_OK;
    WEFT_TRY(wefti_partition_bring(ctx, c->n->out[0], c->context->result, c->n, NULL, &local));
    ctx->version[c->n->out[0]] = NULL;
    return add_version(ctx, c->n->out[0], c->context->result, local);
}

static const char *call_of(const wefti_partition_context *ctx) {
    return ctx->spec->call ? ctx->spec->call : "";
}

static weft_status partition_node(wefti_partition_context *ctx, int64_t index) {
    const weft_node *n = &ctx->from->nodes[index];
    wefti_lowering *c = wefti_arena_alloc(ctx->scratch, sizeof *c);
    char label[512], op[WEFTI_OP_NAME_BYTES];
    wefti_lower_context *x = wefti_arena_alloc(ctx->scratch, sizeof *x);
    WEFT_REQUIRE(c && x, WEFT_E_NOMEM, "no memory to partition a cell");
    const wefti_partition *p = ctx->p;
    *x = (wefti_lower_context){
        .run = ctx,
        .label = wefti_node_label(ctx->from, call_of(ctx), n, label, sizeof label),
        .op = wefti_node_op(n, op, sizeof op)};
    c->n = n;
    c->mesh = &p->mesh;
    c->ranks =
        (wefti_lower_ranks){p->rank, p->plan->devices, p->mesh.first, wefti_mesh_size(&p->mesh)};
    c->graph = p->graph;
    c->body = ctx->to;
    c->handles = ctx->own;
    c->transfer = wefti_partition_named_transfer;
    c->context = x;
    const wefti_strategy *said = ctx->strategies[index];
    if (wefti_partition_guided(n, said)) said = NULL;
    weft_status status = find_result(c, said);
    if (status == WEFT_OK) status = wefti_partition_choose(c, ctx->strategies[index]);
    for (int i = 0; status == WEFT_OK && i < n->inputs; i++) {
        c->local[i] = -1;
        if (n->in[i] >= 0)
            status = wefti_partition_bring(ctx, n->in[i], &c->need[i], n, NULL, &c->local[i]);
    }
    int64_t before = ctx->to->node_count;
    if (status == WEFT_OK) status = wefti_partition_emit(c);
    if (status < 0) return wefti_prefix(status, "%s:%s", x->label, x->op);
    bool talks = false;
    for (int64_t k = before; k < ctx->to->node_count; k++)
        talks |= (ctx->to->nodes[k].op->flags & WEFTI_OP_COMM) != 0;
    for (int o = 0; o < n->outputs; o++) {
        ctx->communicated[n->out[o]] |= talks;
        WEFT_TRY(add_version(ctx, n->out[o], &c->give[o], c->made[o]));
    }
    status = place_result(c);
    if (status < 0) return wefti_prefix(status, "%s:%s", x->label, x->op);
    if (ctx->p->decide) {
        wefti_decision d = {.label = x->label, .op = x->op, .rule = c->rule};
        d.said = said;
        memcpy(d.factor, c->factor, sizeof d.factor);
        ctx->p->decide(ctx->p->decide_context, &d);
    }
    return WEFT_OK;
}

static weft_status bind_outputs(wefti_partition_context *ctx, wefti_layout *out) {
    for (int64_t o = 0; o < ctx->from->out_count; o++) {
        int32_t v = ctx->from->out[o], local;
        const wefti_version *natural = ctx->version[v];
        WEFT_REQUIRE(natural, WEFT_E_BUG, "a result of a cell is never made");
        if (natural->value < 0) {
            wefti_layout whole = wefti_layout_replicated(ctx->from->values[v].desc.rank);
            WEFT_TRY(fix_open_input(ctx, v, &whole));
        }
        out[o] = natural->layout;
        if (ctx->spec->out_state && ctx->spec->out_state[o] == WEFTI_LAYOUT_GIVEN) {
            wefti_layout to = ctx->spec->out[o];
            if (ctx->spec->out_partial_open && ctx->spec->out_partial_open[o] == 1) {
                wefti_axes split = wefti_layout_split_axes(&to);
                to.sum = natural->layout.sum & ~split;
                to.max = natural->layout.max & ~split;
            }
            wefti_layout_normal(&to, &ctx->p->mesh, &ctx->from->values[v].desc);
            out[o] = to;
        }
        if (ctx->spec->out_state && ctx->spec->out_state[o] == WEFTI_LAYOUT_SUMMED)
            out[o].sum = out[o].max = 0;
        const char *of = ctx->spec->out_gradient_of ? ctx->spec->out_gradient_of[o] : NULL;
        WEFT_TRY(wefti_partition_bring(ctx, v, &out[o], NULL, of, &local));
        WEFT_TRY(wefti_body_output(ctx->to, local));
    }
    return WEFT_OK;
}

static weft_status partition_nodes(wefti_partition_context *ctx, wefti_layout *out) {
    WEFT_TRY(bind_inputs(ctx));
    WEFT_TRY(find_wanted(ctx));
    for (int64_t k = 0; k < ctx->from->node_count; k++) WEFT_TRY(partition_node(ctx, k));
    WEFT_TRY(bind_outputs(ctx, out));
    return WEFT_OK;
}

static weft_status scratch_array(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to partition a cell");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

static weft_status partition_body(wefti_partition *p, wefti_partition_context *ctx,
                                  wefti_layout *out) {
    int64_t values = ctx->from->value_count;
    WEFT_TRY(scratch_array(ctx->scratch, values, sizeof *ctx->version, &ctx->version));
    WEFT_TRY(scratch_array(ctx->scratch, values, sizeof *ctx->wanted, &ctx->wanted));
    WEFT_TRY(scratch_array(ctx->scratch, values, sizeof *ctx->partial_free, &ctx->partial_free));
    WEFT_TRY(wefti_body_create(p->graph, ctx->from->name, &ctx->to));
    ctx->to->streams = ctx->from->streams;
    ctx->own->current = ctx->to;
    ctx->own->scope = "";
    wefti_builder *before = p->graph->builder;
    p->graph->builder = ctx->own;
    weft_status status = partition_nodes(ctx, out);
    if (status == WEFT_OK && !wefti_graph_ok(p->graph)) status = p->graph->status;
    if (!wefti_graph_ok(p->graph)) {
        status = wefti_adopt(p->graph->status, weft_graph_message(p->graph));
        p->graph->status = WEFT_OK;
        wefti_free(p->graph->message);
        p->graph->message = NULL;
    }
    p->graph->builder = before;
    if (status == WEFT_OK) status = wefti_body_prune(ctx->to);
#ifdef WEFT_DEBUG_CHECKS
    if (status == WEFT_OK) status = wefti_body_check(ctx->to);
#endif
    return status;
}

/* ---- comparison with earlier partitions ---- */

static bool same_layouts(const wefti_layout *a, const wefti_layout *b, const uint8_t *state,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if ((!state || state[i] == WEFTI_LAYOUT_GIVEN) && !wefti_layout_equal(&a[i], &b[i]))
            return false;
    return true;
}

static bool same_states(const uint8_t *a, const uint8_t *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if ((a ? a[i] : 0) != (b ? b[i] : 0)) return false;
    return true;
}

/* ---- equivalent strategies ---- */

static bool says_nothing(const wefti_strategy *s) {
    return !s || (!s->cuts && s->split_count == 0 && !s->out);
}

static bool say_the_same(const wefti_strategy *a, const wefti_strategy *b) {
    if (a->split_count != b->split_count || a->cut_inputs != b->cut_inputs) return false;
    for (int32_t k = 0; k < a->split_count; k++)
        if (strcmp(a->splits[k].what, b->splits[k].what) != 0 ||
            a->splits[k].count != b->splits[k].count ||
            memcmp(a->splits[k].axis, b->splits[k].axis, (size_t)a->splits[k].count) != 0)
            return false;
    if (!a->out != !b->out || (a->out && !wefti_layout_equal(a->out, b->out))) return false;
    int64_t cuts = 0;
    for (int32_t i = 0; i < a->cut_inputs; i++) {
        if (a->cut_ranks[i] != b->cut_ranks[i]) return false;
        cuts += a->cut_ranks[i];
    }
    return !cuts || !memcmp(a->cuts, b->cuts, (size_t)cuts * sizeof *a->cuts);
}

/* Number of the first equivalent strategy among those that name an op. So equal cells are
 * partitioned once, even if the plan names each of them. Strategies without an op are equivalent
 * only to themselves. */
static int32_t meaning_of(wefti_partition *p, const wefti_strategy *s) {
    if (says_nothing(s)) return -1;
    int32_t *known = &p->meaning[s - p->plan->strategies];
    for (int32_t i = 0; *known == 0; i++) {
        const wefti_strategy *first = &p->plan->strategies[i];
        if (first == s || (say_the_same(first, s) && first->op && s->op)) *known = i + 1;
    }
    return *known;
}

static bool same_strategies(wefti_partition *p, const wefti_strategy *const *a,
                            const wefti_strategy *const *b, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        if (a[k] != b[k] && meaning_of(p, a[k]) != meaning_of(p, b[k])) return false;
    return true;
}

/* ---- stored partitions ---- */

static const wefti_partition_entry *find_entry(wefti_partition *p, const wefti_partition_spec *spec,
                                               const wefti_strategy *const *strategies) {
    const weft_body *b = spec->body;
    for (int64_t e = 0; e < p->entry_count; e++) {
        const wefti_partition_entry *x = p->entries[e];
        if (x->key == b && same_strategies(p, x->strategies, strategies, b->node_count) &&
            same_states(x->in_state, spec->in_state, b->in_count) &&
            same_layouts(x->required_in, spec->in, spec->in_state, b->in_count) &&
            (spec->out_state != NULL) == (x->out_state != NULL) &&
            same_states(x->partial_open, spec->out_partial_open, b->out_count) &&
            (!spec->out_state ||
             (same_states(x->out_state, spec->out_state, b->out_count) &&
              same_layouts(x->required_out, spec->out, spec->out_state, b->out_count))))
            return x;
    }
    return NULL;
}

static weft_status keep(wefti_partition *p, const void *from, int64_t count, size_t bytes,
                        void *out) {
    if (!from) return WEFT_OK;
    WEFT_TRY(scratch_array(p->arena, count, bytes, out));
    void *to;
    memcpy(&to, out, sizeof to);
    if (count) memcpy(to, from, (size_t)count * bytes);
    return WEFT_OK;
}

static weft_status new_entry(wefti_partition *p, const wefti_partition_spec *spec,
                             const wefti_strategy *const *strategies, wefti_partition_entry **out) {
    const weft_body *b = spec->body;
    wefti_partition_entry *e;
    WEFT_TRY(scratch_array(p->arena, 1, sizeof *e, &e));
    e->key = b;
    WEFT_TRY(keep(p, strategies, b->node_count, sizeof *strategies, &e->strategies));
    WEFT_TRY(keep(p, spec->in, b->in_count, sizeof *spec->in, &e->required_in));
    WEFT_TRY(keep(p, spec->in_state, b->in_count, 1, &e->in_state));
    WEFT_TRY(keep(p, spec->out_state, b->out_count, 1, &e->out_state));
    WEFT_TRY(keep(p, spec->out_partial_open, b->out_count, 1, &e->partial_open));
    if (spec->out_state)
        WEFT_TRY(keep(p, spec->out, b->out_count, sizeof *spec->out, &e->required_out));
    *out = e;
    return WEFT_OK;
}

static uint64_t body_hash(const weft_body *body) {
    return (uint64_t)(uintptr_t)body / 64;
}

static size_t bucket_of(uint64_t hash) {
    return (size_t)(hash * 0x9E3779B97F4A7C15u >> 56);
}

static wefti_matched **find_matched(wefti_partition *p, const weft_body *body, const char *call) {
    uint64_t hash = body_hash(body);
    for (const char *c = call; *c; c++) hash = hash * 31 + (unsigned char)*c;
    wefti_matched **at = &p->matched[bucket_of(hash)];
    while (*at && ((*at)->body != body || strcmp((*at)->call, call) != 0)) at = &(*at)->next;
    return at;
}

static weft_status node_candidates(wefti_partition *p, wefti_candidates *c, int64_t k) {
    char inside[512], op[WEFTI_OP_NAME_BYTES];
    const weft_node *n = &c->body->nodes[k];
    int32_t count = 0;
    wefti_node_inside(c->body, n, inside, sizeof inside);
    c->op[k] = wefti_node_op(n, op, sizeof op);
    for (int64_t i = 0; i < p->plan->strategy_count; i++)
        count += wefti_plan_may_match(&p->plan->strategies[i], inside, c->op[k]);
    if (count == 0) return WEFT_OK;
    c->inside[k] = wefti_arena_strdup(p->arena, inside);
    c->op[k] = wefti_arena_strdup(p->arena, c->op[k]);
    WEFT_REQUIRE(c->inside[k] && c->op[k], WEFT_E_NOMEM, "no memory to partition a cell");
    WEFT_TRY(scratch_array(p->arena, count, sizeof **c->which, &c->which[k]));
    for (int32_t i = 0; i < p->plan->strategy_count; i++)
        if (wefti_plan_may_match(&p->plan->strategies[i], inside, c->op[k]))
            c->which[k][c->count[k]++] = i;
    return WEFT_OK;
}

static weft_status find_candidates(wefti_partition *p, const weft_body *body,
                                   const wefti_candidates **out) {
    wefti_candidates **at = &p->candidates[bucket_of(body_hash(body))], *c;
    while (*at && (*at)->body != body) at = &(*at)->next;
    if (!*at) {
        WEFT_TRY(scratch_array(p->arena, 1, sizeof *c, &c));
        c->body = body;
        WEFT_TRY(scratch_array(p->arena, body->node_count, sizeof *c->inside, &c->inside));
        WEFT_TRY(scratch_array(p->arena, body->node_count, sizeof *c->op, &c->op));
        WEFT_TRY(scratch_array(p->arena, body->node_count, sizeof *c->which, &c->which));
        WEFT_TRY(scratch_array(p->arena, body->node_count, sizeof *c->count, &c->count));
        for (int64_t k = 0; k < body->node_count; k++) WEFT_TRY(node_candidates(p, c, k));
        *at = c;
    }
    *out = *at;
    return WEFT_OK;
}

/* Matches the nodes of a body in one call. */
static weft_status match_call(wefti_partition *p, wefti_matched *m) {
    const wefti_candidates *c;
    if (p->plan->strategy_count == 0) return WEFT_OK;
    WEFT_TRY(find_candidates(p, m->body, &c));
    for (int64_t k = 0; k < m->body->node_count; k++) {
        char label[512];
        if (c->count[k] == 0) continue;
        m->strategies[k] =
            wefti_plan_strategy_among(p->plan, c->which[k], c->count[k],
                                      wefti_label_join(m->call, c->inside[k], label, sizeof label),
                                      c->op[k], m->body->nodes[k].gradient);
    }
    return WEFT_OK;
}

static weft_status find_strategies(wefti_partition *p, wefti_partition_context *ctx) {
    const char *call = ctx->spec->call ? ctx->spec->call : "";
    wefti_matched **at = find_matched(p, ctx->from, call), *m = *at;
    if (!m) {
        WEFT_TRY(scratch_array(p->arena, 1, sizeof *m, &m));
        WEFT_TRY(
            scratch_array(p->arena, ctx->from->node_count, sizeof *m->strategies, &m->strategies));
        m->body = ctx->from;
        m->call = wefti_arena_strdup(p->arena, call);
        WEFT_REQUIRE(m->call, WEFT_E_NOMEM, "no memory to partition a cell");
        WEFT_TRY(match_call(p, m));
        *at = m;
    }
    ctx->strategies = m->strategies;
    return WEFT_OK;
}

static weft_status run(wefti_partition *p, wefti_partition_context *ctx,
                       const wefti_local_body **out) {
    wefti_partition_entry *e;
    wefti_layout *layouts;
    WEFT_TRY(WEFT_GROW(p->entries, p->entry_count, p->entry_cap));
    WEFT_TRY(new_entry(p, ctx->spec, ctx->strategies, &e));
    WEFT_TRY(scratch_array(p->arena, ctx->from->in_count, sizeof *ctx->in_layout, &ctx->in_layout));
    WEFT_TRY(scratch_array(p->arena, ctx->from->out_count, sizeof *layouts, &layouts));
    WEFT_TRY(scratch_array(p->arena, ctx->from->value_count, sizeof(bool), &ctx->communicated));
    weft_status status = partition_body(p, ctx, layouts);
    if (status < 0) {
        wefti_body_destroy(ctx->to);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    e->result = (wefti_local_body){ctx->to, ctx->in_layout, layouts, ctx->communicated};
    p->entries[p->entry_count++] = e;
    *out = &e->result;
    return WEFT_OK;
}

weft_status wefti_partition_body(wefti_partition *p, const wefti_partition_spec *spec,
                                 const wefti_local_body **out) {
    wefti_partition_context ctx = {.p = p, .spec = spec, .from = spec->body};
    WEFT_REQUIRE(wefti_graph_ok(p->graph), p->graph->status, "%s", weft_graph_message(p->graph));
    WEFT_TRY(find_strategies(p, &ctx));
    const wefti_partition_entry *old = p->decide ? NULL : find_entry(p, spec, ctx.strategies);
    if (old) {
        *out = &old->result;
        return WEFT_OK;
    }
    WEFT_NEW(ctx.own, wefti_builder);
    weft_status status = wefti_arena_create(&ctx.scratch);
    if (status == WEFT_OK) status = run(p, &ctx, out);
    wefti_arena_destroy(ctx.scratch);
    wefti_builder_destroy(ctx.own);
    return status;
}

const wefti_local_body *wefti_partition_of_local(const wefti_partition *p, const weft_body *local,
                                                 const weft_body **out_whole) {
    for (int64_t e = 0; e < p->entry_count; e++)
        if (p->entries[e]->result.body == local) {
            *out_whole = p->entries[e]->key;
            return &p->entries[e]->result;
        }
    return NULL;
}

/* A pattern without an op matches all ops of a label, and only some of them have the named factor.
 * At least one op must have it. */
weft_status wefti_partition_check(const wefti_partition *p) {
    for (int64_t i = 0; i < p->plan->strategy_count; i++) {
        const wefti_strategy *s = &p->plan->strategies[i];
        for (int32_t k = 0; p->missed[i] && k < s->split_count && k < 64; k++)
            WEFT_REQUIRE(
                p->applied[i] >> k & 1, WEFT_E_LAYOUT,
                "%s%sthe strategy '%.100s' says %s, but nothing that it matches has such a "
                "factor: %s",
                s->source ? s->source : "", s->source ? ": " : "", s->match, s->splits[k].what,
                p->missed[i]);
    }
    return WEFT_OK;
}

/* ---- create and destroy ---- */

weft_status wefti_partition_create(const weft_plan *plan, const wefti_mesh *mesh, int32_t rank,
                                   weft_graph *graph, wefti_route_cache *routes,
                                   wefti_partition **out) {
    wefti_partition *p;
    weft_status status;
    WEFT_TRY(wefti_mesh_check(mesh));
    WEFT_NEW(p, wefti_partition);
    p->plan = plan;
    p->mesh = *mesh;
    p->rank = rank;
    p->graph = graph;
    p->routes = routes;
    wefti_mesh_coordinates(mesh, rank, p->coordinate);
    p->applied = wefti_calloc((size_t)plan->strategy_count + 1, sizeof *p->applied);
    p->missed = wefti_calloc((size_t)plan->strategy_count + 1, sizeof *p->missed);
    p->meaning = wefti_calloc((size_t)plan->strategy_count + 1, sizeof *p->meaning);
    status = p->applied && p->missed && p->meaning
                 ? WEFT_OK
                 : WEFT_RAISE(WEFT_E_NOMEM, "no memory to partition a model");
    if (status == WEFT_OK) status = wefti_arena_create(&p->arena);
    if (status < 0) {
        wefti_partition_destroy(p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

void wefti_partition_destroy(wefti_partition *p) {
    if (!p) return;
    for (int64_t e = 0; e < p->entry_count; e++) wefti_body_destroy(p->entries[e]->result.body);
    for (int64_t t = 0; t < p->transfer_count; t++) wefti_free(p->transfers[t]);
    wefti_free(p->entries);
    wefti_free(p->transfers);
    wefti_free(p->applied);
    wefti_free(p->missed);
    wefti_free(p->meaning);
    wefti_arena_destroy(p->arena);
    wefti_free(p);
}
