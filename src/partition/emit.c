/* Adds one device's nodes for a node of the whole with a chosen split: the node itself on smaller
 * operands, or the nodes that its op's `lower` adds. */
#include "partition/context.h"

static bool needs_lowering(const wefti_lowering *c) {
    if (c->n->op->flags & WEFTI_OP_GROUP) return true;
    for (int f = 0; f < c->rule.factors; f++)
        if (wefti_lower_parts(c, f) > 1 && (c->n->op->lowers >> c->rule.factor[f].kind & 1) &&
            c->n->op->lower)
            return true;
    return false;
}

/* Whether this device has the first term of the sum that the node begins. Over axes in `keep` this
 * does not matter: all operands there are already partial sums. */
static bool first_term(const wefti_lowering *c) {
    for (int f = 0; f < c->rule.factors; f++)
        if (c->rule.factor[f].kind == WEFTI_FACTOR_SUM && !wefti_lower_first(c, f)) return false;
    return true;
}

static weft_status emit_plain(wefti_lowering *c) {
    int32_t in[WEFTI_MAX_IN];
    for (int i = 0; i < c->n->inputs; i++) {
        in[i] = c->local[i];
        if (in[i] < 0 || !c->rule.sum_once[i] || first_term(c)) continue;
        if (i >= c->n->op->min_inputs)
            in[i] = -1;
        else
            WEFT_TRY(wefti_partition_add_constant(c->context->run,
                                                  &c->body->values[c->local[i]].desc, 0.0, &in[i]));
    }
    WEFT_TRY(wefti_lower_add(c, in, 0, NULL, c->made));
    for (int o = 0; o < c->n->outputs; o++) {
        weft_desc want = wefti_lower_out_desc(c, o);
        const weft_desc *have = &c->body->values[c->made[o]].desc;
        WEFT_REQUIRE(wefti_desc_equal(&want, have), WEFT_E_BUG,
                     "%s: its piece is %s, the layout says %s", c->n->op->name,
                     wefti_desc_text(have).text, wefti_desc_text(&want).text);
    }
    return WEFT_OK;
}

static weft_status emit_lowered(wefti_lowering *c) {
    for (int o = 0; o < c->n->outputs; o++) c->made[o] = -1;
    c->handles->scope = c->n->scope;
    WEFT_TRY(c->n->op->lower(c, c->n));
    WEFT_REQUIRE(wefti_graph_ok(c->graph), c->graph->status, "%s", weft_graph_message(c->graph));
    for (int o = 0; o < c->n->outputs; o++) {
        WEFT_REQUIRE(c->made[o] >= 0, WEFT_E_BUG, "%s: its lowering leaves output %d out",
                     c->n->op->name, o);
        weft_desc want = wefti_lower_out_desc(c, o);
        const weft_desc *have = &c->body->values[c->made[o]].desc;
        WEFT_REQUIRE(wefti_desc_equal(&want, have), WEFT_E_BUG,
                     "%s: its lowering makes %s, the layout says %s", c->n->op->name,
                     wefti_desc_text(have).text, wefti_desc_text(&want).text);
    }
    return WEFT_OK;
}

/* Names a transfer after its node: "attn.c_proj:linear". */
weft_status wefti_partition_named_transfer(wefti_lowering *c, int32_t local, wefti_transfer *t,
                                           int32_t *out_local) {
    wefti_partition_context *ctx = c->context->run;
    char inside[512], op[WEFTI_OP_NAME_BYTES];
    const char *scope = wefti_arena_format(
        ctx->p->arena, "%s:%s", wefti_node_inside(ctx->from, c->n, inside, sizeof inside),
        wefti_node_op(c->n, op, sizeof op));
    if (!scope) {
        wefti_free(t);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the name of a value");
    }
    t->name = scope;
    return wefti_partition_add_transfer(ctx, local, t, WEFTI_MOVED_VALUE, scope, out_local);
}

weft_status wefti_partition_emit(wefti_lowering *c) {
    return needs_lowering(c) ? emit_lowered(c) : emit_plain(c);
}
