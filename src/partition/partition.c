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

wefti_rank_reads *wefti_partition_reads(wefti_partition *p) {
    return &p->reads;
}

void wefti_partition_use(wefti_partition *p, const weft_body *local) {
    const wefti_partition_entry *e = wefti_partition_entry_of(p, local);
    if (e) wefti_rank_reads_join(&p->reads, &e->reads);
}

void wefti_partition_observe(wefti_partition *p, wefti_decide *decide, void *context) {
    p->decide = decide;
    p->decide_context = context;
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
        wefti_rank_reads_layout(ctx->reads, &ctx->p->mesh, &info->desc, &layout);
        WEFT_TRY(wefti_body_input(ctx->to, desc, info->kind, info->name, &local));
        ctx->in_layout[i] = layout;
        WEFT_TRY(wefti_partition_add_version(ctx, v, &layout, open ? -1 : local));
    }
    return WEFT_OK;
}

static wefti_layout_state out_state(const wefti_partition_context *ctx, int64_t o) {
    return ctx->spec->out_state ? (wefti_layout_state)ctx->spec->out_state[o] : WEFTI_LAYOUT_OPEN;
}

static weft_status find_wanted(wefti_partition_context *ctx) {
    for (int64_t o = 0; o < ctx->from->out_count; o++) {
        int32_t v = ctx->from->out[o];
        const wefti_layout_state state = out_state(ctx, o);
        ctx->partial_free[v] |=
            state == WEFTI_LAYOUT_GIVEN_PARTIAL || state == WEFTI_LAYOUT_GIVEN_LATE;
        if (state <= WEFTI_LAYOUT_GIVEN_PARTIAL) ctx->wanted[v] = &ctx->spec->out[o];
        if (state == WEFTI_LAYOUT_GIVEN_LATE) ctx->wanted[v] = &ctx->spec->late[o];
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
    return wefti_partition_add_version(ctx, c->n->out[0], c->context->result, local);
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
    c->reads = ctx->reads; /* choices are the same on all ranks */
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
        WEFT_TRY(wefti_partition_add_version(ctx, n->out[o], &c->give[o], c->made[o]));
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
            WEFT_TRY(wefti_partition_fix_input(ctx, v, &whole));
        }
        out[o] = natural->layout;
        const wefti_layout_state state = out_state(ctx, o);
        if (state <= WEFTI_LAYOUT_GIVEN_LATE) {
            wefti_layout to = ctx->spec->out[o];
            if (state == WEFTI_LAYOUT_GIVEN_PARTIAL) {
                wefti_axes split = wefti_layout_split_axes(&to);
                to.sum = natural->layout.sum & ~split;
                to.max = natural->layout.max & ~split;
            }
            wefti_layout_normal(&to, &ctx->p->mesh, &ctx->from->values[v].desc);
            out[o] = to;
        }
        if (state == WEFTI_LAYOUT_SUMMED) out[o].sum = out[o].max = 0;
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

weft_status wefti_partition_array(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)(count + 1) * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory to partition a cell");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

static weft_status partition_body(wefti_partition *p, wefti_partition_context *ctx,
                                  wefti_layout *out) {
    int64_t values = ctx->from->value_count;
    WEFT_TRY(wefti_partition_array(ctx->scratch, values, sizeof *ctx->version, &ctx->version));
    WEFT_TRY(wefti_partition_array(ctx->scratch, values, sizeof *ctx->wanted, &ctx->wanted));
    WEFT_TRY(
        wefti_partition_array(ctx->scratch, values, sizeof *ctx->partial_free, &ctx->partial_free));
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

static weft_status run(wefti_partition *p, wefti_partition_context *ctx,
                       const wefti_local_body **out) {
    wefti_partition_entry *e;
    wefti_layout *layouts;
    WEFT_TRY(wefti_partition_new_entry(p, ctx->spec, ctx->strategies, &e));
    ctx->reads = &e->reads;
    WEFT_TRY(wefti_partition_array(p->arena, ctx->from->in_count, sizeof *ctx->in_layout,
                                   &ctx->in_layout));
    WEFT_TRY(wefti_partition_array(p->arena, ctx->from->out_count, sizeof *layouts, &layouts));
    WEFT_TRY(
        wefti_partition_array(p->arena, ctx->from->value_count, sizeof(bool), &ctx->communicated));
    weft_status status = partition_body(p, ctx, layouts);
    if (status >= 0 && e->reads.lost) status = WEFT_E_NOMEM; /* raised where they were lost */
    e->result = (wefti_local_body){ctx->to, ctx->in_layout, layouts, ctx->communicated};
    if (status >= 0) status = wefti_partition_keep_entry(p, e);
    if (status < 0) {
        wefti_body_destroy(ctx->to);
        wefti_rank_reads_free(&e->reads);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = &e->result;
    return WEFT_OK;
}

weft_status wefti_partition_body(wefti_partition *p, const wefti_partition_spec *spec,
                                 const wefti_local_body **out) {
    wefti_partition_context ctx = {.p = p, .spec = spec, .from = spec->body};
    WEFT_REQUIRE(wefti_graph_ok(p->graph), p->graph->status, "%s", weft_graph_message(p->graph));
    WEFT_TRY(wefti_partition_find_strategies(p, &ctx));
    const wefti_partition_entry *old =
        p->decide ? NULL : wefti_partition_find_entry(p, spec, ctx.strategies);
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
    const wefti_partition_entry *e = wefti_partition_entry_of(p, local);
    if (!e) return NULL;
    *out_whole = e->key;
    return &e->result;
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
    for (int64_t e = 0; e < p->entry_count; e++) {
        wefti_body_destroy(p->entries[e]->result.body);
        wefti_rank_reads_free(&p->entries[e]->reads);
    }
    for (int64_t t = 0; t < p->transfer_count; t++) wefti_free(p->transfers[t]);
    wefti_rank_reads_free(&p->reads);
    wefti_map_free(&p->by_request);
    wefti_map_free(&p->by_body);
    wefti_free(p->entries);
    wefti_free(p->transfers);
    wefti_free(p->applied);
    wefti_free(p->missed);
    wefti_free(p->meaning);
    wefti_arena_destroy(p->arena);
    wefti_free(p);
}

int64_t wefti_partition_bytes(const wefti_partition *p) {
    if (!p) return 0;
    const int64_t strategies = p->plan->strategy_count + 1;
    int64_t bytes =
        (int64_t)sizeof *p + wefti_arena_bytes(p->arena) +
        wefti_array_bytes(p->entries, p->entry_cap, sizeof *p->entries) +
        wefti_array_bytes(p->by_request.slots, p->by_request.capacity,
                          sizeof *p->by_request.slots) +
        wefti_array_bytes(p->by_body.slots, p->by_body.capacity, sizeof *p->by_body.slots) +
        wefti_array_bytes(p->transfers, p->transfer_cap, sizeof *p->transfers) +
        wefti_array_bytes(p->applied, strategies, sizeof *p->applied) +
        wefti_array_bytes(p->missed, strategies, sizeof *p->missed) +
        wefti_array_bytes(p->meaning, strategies, sizeof *p->meaning) +
        wefti_array_bytes(p->reads.items, p->reads.cap, sizeof *p->reads.items);
    for (int64_t e = 0; e < p->entry_count; e++)
        bytes += wefti_body_bytes(p->entries[e]->result.body) +
                 wefti_array_bytes(p->entries[e]->reads.items, p->entries[e]->reads.cap,
                                   sizeof *p->entries[e]->reads.items);
    for (int64_t t = 0; t < p->transfer_count; t++)
        bytes += wefti_transfer_block_bytes(p->transfers[t]);
    return bytes;
}
