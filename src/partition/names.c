/* Names of nodes in plans, and the plan's strategies for the nodes of a body in one call. */
#include <stdio.h>
#include <string.h>

#include "partition/context.h"

/* ---- names ---- */

/* The scope of a node in its call. For an op with a parameter of its own: the parameter's name
 * without the last component. */
const char *wefti_node_inside(const weft_body *body, const weft_node *n, char *buffer,
                              size_t bytes) {
    const char *inside = n->scope ? n->scope : "";
    size_t length = strlen(inside);
    for (int i = 0; i < n->inputs; i++) {
        if (n->in[i] < 0) continue;
        const wefti_value_info *v = &body->values[n->in[i]];
        const char *dot = v->kind == WEFTI_VALUE_PARAM && v->name ? strrchr(v->name, '.') : NULL;
        if (!dot) continue;
        inside = v->name;
        length = (size_t)(dot - v->name);
        break;
    }
    if (length >= bytes) length = bytes - 1;
    memcpy(buffer, inside, length);
    buffer[length] = 0;
    return buffer;
}

/* "call.inside", or the one that is not empty; cut off at `bytes` - 1 characters. */
static const char *join(const char *call, const char *inside, char *buffer, size_t bytes) {
    size_t first = strlen(call), dot = first && *inside ? 1 : 0, second = strlen(inside);
    if (first + dot >= bytes) return join("", call, buffer, bytes);
    if (first + dot + second >= bytes) second = bytes - 1 - first - dot;
    memcpy(buffer, call, first);
    if (dot) buffer[first] = '.';
    memcpy(buffer + first + dot, inside, second);
    buffer[first + dot + second] = 0;
    return buffer;
}

const char *wefti_node_label(const weft_body *body, const char *call, const weft_node *n,
                             char *buffer, size_t bytes) {
    char inside[512];
    wefti_node_inside(body, n, inside, sizeof inside);
    return join(call, inside, buffer, bytes);
}

/* The name of a node's op in plans. A gradient may be an op that models also use, but with other
 * meanings of operands and factors. Its name gets the suffix "_grad": "matmul_grad" is a product in
 * the backward pass. So a strategy for "matmul" does not apply to it. */
const char *wefti_node_op(const weft_node *n, char *buffer, size_t bytes) {
    if (!n->gradient || n->op->flags & WEFTI_OP_GRADIENT) return n->op->name;
    (void)snprintf(buffer, bytes, "%s_grad", n->op->name);
    return buffer;
}

/* ---- strategies by name ---- */

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
    WEFT_TRY(wefti_partition_array(p->arena, count, sizeof **c->which, &c->which[k]));
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
        WEFT_TRY(wefti_partition_array(p->arena, 1, sizeof *c, &c));
        c->body = body;
        WEFT_TRY(wefti_partition_array(p->arena, body->node_count, sizeof *c->inside, &c->inside));
        WEFT_TRY(wefti_partition_array(p->arena, body->node_count, sizeof *c->op, &c->op));
        WEFT_TRY(wefti_partition_array(p->arena, body->node_count, sizeof *c->which, &c->which));
        WEFT_TRY(wefti_partition_array(p->arena, body->node_count, sizeof *c->count, &c->count));
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
        m->strategies[k] = wefti_plan_strategy_among(
            p->plan, c->which[k], c->count[k], join(m->call, c->inside[k], label, sizeof label),
            c->op[k], m->body->nodes[k].gradient);
    }
    return WEFT_OK;
}

weft_status wefti_partition_find_strategies(wefti_partition *p, wefti_partition_context *ctx) {
    const char *call = ctx->spec->call ? ctx->spec->call : "";
    wefti_matched **at = find_matched(p, ctx->from, call), *m = *at;
    if (!m) {
        WEFT_TRY(wefti_partition_array(p->arena, 1, sizeof *m, &m));
        WEFT_TRY(wefti_partition_array(p->arena, ctx->from->node_count, sizeof *m->strategies,
                                       &m->strategies));
        m->body = ctx->from;
        m->call = wefti_arena_strdup(p->arena, call);
        WEFT_REQUIRE(m->call, WEFT_E_NOMEM, "no memory to partition a cell");
        WEFT_TRY(match_call(p, m));
        *at = m;
    }
    ctx->strategies = m->strategies;
    return WEFT_OK;
}
