/* The two ops that run a body: a call of a cell, and a fused chain of elementwise nodes. They take
 * their shapes from the callee, and their reference kernel interprets it. */
#include "base/philox.h"
#include "graph/graph.h"

static weft_status infer_callee(const weft_node *n, weft_desc *out, int *out_count) {
    const weft_body *c = n->callee;
    WEFT_REQUIRE(c, WEFT_E_BUG, "%s without a body", n->op->name);
    WEFT_REQUIRE(n->inputs == c->in_count, WEFT_E_ARG, "%s takes %lld inputs, not %d", c->name,
                 (long long)c->in_count, n->inputs);
    for (int i = 0; i < n->inputs; i++) {
        const wefti_value_info *want = &c->values[c->in[i]];
        const weft_desc *have = wefti_in(n, i);
        WEFT_REQUIRE(have && wefti_desc_equal(have, &want->desc), WEFT_E_SHAPE,
                     "input %d of %s is %s, not %s", i, c->name, wefti_desc_text(&want->desc).text,
                     have ? wefti_desc_text(have).text : "absent");
        bool bound =
            want->kind == WEFTI_VALUE_INPUT || n->body->values[n->in[i]].kind == want->kind;
        WEFT_REQUIRE(bound, WEFT_E_ARG, "input %d of %s must be a %s", i, c->name,
                     want->kind == WEFTI_VALUE_PARAM ? "parameter" : "state");
    }
    for (int64_t o = 0; o < c->out_count; o++) out[o] = c->values[c->out[o]].desc;
    *out_count = (int)c->out_count;
    return WEFT_OK;
}

static weft_status infer_fused(const weft_node *n, weft_desc *out, int *out_count) {
    WEFT_TRY(infer_callee(n, out, out_count));
    for (int64_t i = 0; i < n->callee->node_count; i++)
        WEFT_REQUIRE((n->callee->nodes[i].op->flags & WEFTI_OP_ELEMENTWISE) &&
                         !n->callee->nodes[i].callee,
                     WEFT_E_ARG, "a fused body has the node %s, which is not plainly elementwise",
                     n->callee->nodes[i].op->name);
    return WEFT_OK;
}

/* Sums the flops of the nodes inside. A fused node keeps its intermediate values in registers. */
static void cost_fused(const weft_node *n, wefti_cost *out) {
    out->flops = 0;
    for (int64_t i = 0; i < n->callee->node_count; i++) {
        wefti_cost one;
        wefti_node_cost(&n->callee->nodes[i], &one);
        out->flops += one.flops;
    }
}

static void cost_call(const weft_node *n, wefti_cost *out) {
    *out = (wefti_cost){0, 0};
    for (int64_t i = 0; i < n->callee->node_count; i++) {
        wefti_cost one;
        wefti_node_cost(&n->callee->nodes[i], &one);
        out->flops += one.flops;
        out->bytes += one.bytes;
    }
}

/* A call draws random numbers from the stream of its path. A fused node uses the stream of its
 * body. */
static weft_status run_call(const weft_node *n, const wefti_random *random, const double *const *in,
                            double *const *out) {
    wefti_random inside = *random;
    inside.call_stream = wefti_stream_of(n->scope);
    return wefti_interpret(n->callee, &inside, in, out);
}

static weft_status run_fused(const weft_node *n, const wefti_random *random,
                             const double *const *in, double *const *out) {
    return wefti_interpret(n->callee, random, in, out);
}

const weft_op_def wefti_op_call = {
    WEFTI_OP_NAME(call), .max_inputs = INT8_MAX, .infer = infer_callee,
    .cost = cost_call,   .reference = run_call,
};

const weft_op_def wefti_op_fused = {
    WEFTI_OP_NAME(fused), .max_inputs = INT8_MAX, .flags = WEFTI_OP_ELEMENTWISE,
    .infer = infer_fused, .cost = cost_fused,     .reference = run_fused,
};
