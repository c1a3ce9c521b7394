/* Brings values into layouts: slices, transfers and constants, and all forms of a value in which it
 * exists on this rank. */
#include <string.h>

#include "partition/context.h"

/* ---- transfers and moves ---- */

static weft_desc want_desc(const wefti_transfer *t) {
    return weft_desc_of(t->dtype, t->rank, t->want[t->me].size);
}

weft_status wefti_partition_add_transfer(wefti_partition_context *ctx, int32_t local,
                                         wefti_transfer *t, wefti_moved moved, const char *scope,
                                         int32_t *out_local) {
    weft_desc to = want_desc(t);
    int32_t index;
    t->tag = ctx->spec->tag;
    WEFT_TRY(wefti_partition_add(ctx->p, t, &index));
    return wefti_body_add_transfer(ctx->to, local, index, &to, moved, scope, out_local);
}

static const weft_op_def *op_named(const wefti_partition_context *ctx, const char *name) {
    return wefti_op_find(ctx->p->graph->ops, name);
}

static bool same_split(const wefti_dim_split *a, const wefti_dim_split *b) {
    return a->count == b->count && !memcmp(a->axis, b->axis, (size_t)a->count) &&
           (a->unit > 1 ? a->unit : 1) == (b->unit > 1 ? b->unit : 1);
}

/* All ranks have the same slices, also ranks whose slice takes all of an empty piece: transfers of
 * a call that nothing separates are posted together, on all ranks the same ones. */
static weft_status emit_slices(wefti_partition_context *ctx, const wefti_layout *from,
                               const wefti_layout *to, const wefti_region *have,
                               const wefti_region *want, int32_t *local) {
    for (int d = 0; d < from->rank; d++) {
        if (same_split(&from->dim[d], &to->dim[d])) continue;
        int64_t begin = want->begin[d] - have->begin[d];
        wefti_attr attrs[] = {
            WEFTI_I(axis, d), WEFTI_I(begin, begin), WEFTI_I(end, begin + want->size[d]), {0}};
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
        WEFTI_I(dtype, desc->dtype), WEFTI_N(shape, shape), WEFTI_F(value, value), {0}};
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
    wefti_rank_reads_first(ctx->reads, &ctx->p->mesh, move->axes);
    if (first) return WEFT_OK;
    weft_desc desc = ctx->to->values[*local].desc;
    return wefti_partition_add_constant(ctx, &desc,
                                        move->to.max & move->axes ? -__builtin_inf() : 0.0, local);
}

/* The name of a value's transfers within the call, and what they move. */
typedef struct moved_name {
    wefti_moved moved;
    const char *text; /* with the text of `moved` */
} moved_name;

/* The gradient that the value is, the op that makes it, its own name, or the op that reads it. */
static weft_status name_value(wefti_partition_context *ctx, int32_t value, const weft_node *reader,
                              const char *gradient_of, moved_name *out) {
    const wefti_value_info *info = &ctx->from->values[value];
    const weft_node *maker = info->node >= 0 ? &ctx->from->nodes[info->node] : NULL;
    const weft_node *n = maker ? maker : reader;
    char label[512], op[WEFTI_OP_NAME_BYTES];
    const bool named = !maker && info->name;
    const wefti_moved moved = gradient_of             ? WEFTI_MOVED_GRADIENT
                              : !maker && !named && n ? WEFTI_MOVED_OPERAND
                                                      : WEFTI_MOVED_VALUE;
    const char *text;
    if (gradient_of)
        text = wefti_arena_join(ctx->p->arena, wefti_moved_text(moved), gradient_of);
    else if (named)
        text = wefti_arena_strdup(ctx->p->arena, info->name);
    else if (n)
        text = wefti_arena_format(ctx->p->arena, "%s%s:%s", wefti_moved_text(moved),
                                  wefti_node_inside(ctx->from, n, label, sizeof label),
                                  wefti_node_op(n, op, sizeof op));
    else /* only passed through: the caller of the body names it */
        text = "";
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for the name of a value");
    *out = (moved_name){moved, text};
    return WEFT_OK;
}

static weft_status emit_move(wefti_partition_context *ctx, const weft_desc *whole,
                             const wefti_layout *from, const wefti_move *move,
                             const moved_name *name, int32_t *local) {
    const wefti_mesh *mesh = &ctx->p->mesh;
    if (move->kind == WEFTI_MOVE_TO_PARTIAL) return emit_partial(ctx, move, local);
    wefti_rank_reads_move(ctx->reads, mesh, whole, from, &move->to, move->axes);
    if (move->kind == WEFTI_MOVE_SLICE) {
        wefti_region have, want;
        wefti_layout_region(from, mesh, whole, ctx->p->rank, &have);
        wefti_layout_region(&move->to, mesh, whole, ctx->p->rank, &want);
        return emit_slices(ctx, from, &move->to, &have, &want, local);
    }
    wefti_transfer *t;
    WEFT_TRY(wefti_move_transfer(mesh, whole, from, move, ctx->p->rank, &t));
    t->name = name->text[0] ? name->text : NULL;
    return wefti_partition_add_transfer(ctx, *local, t, name->moved, name->text, local);
}

weft_status wefti_partition_add_version(wefti_partition_context *ctx, int32_t value,
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
weft_status wefti_partition_fix_input(wefti_partition_context *ctx, int32_t value,
                                      const wefti_layout *layout) {
    wefti_version *v = ctx->version[value];
    const wefti_value_info *info = &ctx->from->values[value];
    v->layout = *layout;
    v->layout.sum = v->layout.max = 0;
    wefti_layout_normal(&v->layout, &ctx->p->mesh, &info->desc);
    weft_desc local = wefti_layout_local(&v->layout, &ctx->p->mesh, &info->desc, ctx->p->rank);
    wefti_rank_reads_layout(ctx->reads, &ctx->p->mesh, &info->desc, &v->layout);
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
        WEFT_TRY(wefti_partition_fix_input(ctx, value, to));
    WEFT_TRY(wefti_partition_route(ctx, value, to, &from, &route));
    WEFT_REQUIRE(route, WEFT_E_BUG, "a value is used before it is made");
    int32_t local = from->value;
    wefti_layout at = from->layout;
    moved_name name = {WEFTI_MOVED_VALUE, ""};
    if (route->moves) WEFT_TRY(name_value(ctx, value, reader, gradient_of, &name));
    for (int m = 0; m < route->moves; m++) {
        bool reduces = route->move[m].kind == WEFTI_MOVE_TRANSFER &&
                       (route->move[m].transfer == WEFTI_TRANSFER_ALL_REDUCE ||
                        route->move[m].transfer == WEFTI_TRANSFER_REDUCE_SCATTER);
        ctx->communicated[value] |= reduces;
        WEFT_TRY(emit_move(ctx, whole, &at, &route->move[m], &name, &local));
        at = route->move[m].to;
        WEFT_TRY(wefti_partition_add_version(ctx, value, &at, local));
    }
    *out_local = local;
    return WEFT_OK;
}
