/* Finds the weights among a graph's parameters. See wefti_graph_weights. */
#include "graph/graph.h"

/* One body. Both tables have an entry for each value. */
typedef struct weight_search {
    const weft_body *body;
    bool *of_params; /* computed from parameters and constants alone */
    bool *weight;    /* an op takes it as a weight, perhaps after linear ops */
} weight_search;

static weft_status search_body(const weft_body *body, const bool *of_params, const bool *outputs,
                               bool *in_weights, bool *out_of_params);

/* A call with its tables, from which the callee's are filled and to which its findings return. */
typedef struct call_flags {
    bool *of_params, *outputs, *weights, *results;
} call_flags;

static weft_status search_call(weight_search *s, const weft_node *n, bool forward) {
    const int count = n->inputs > n->outputs ? n->inputs : n->outputs;
    bool *flags;
    WEFT_NEW_ARRAY(flags, bool, 4 * (int64_t)count + 1);
    const call_flags f = {flags, flags + count, flags + 2 * count, flags + 3 * count};
    for (int i = 0; i < n->inputs; i++) f.of_params[i] = n->in[i] >= 0 && s->of_params[n->in[i]];
    for (int o = 0; o < n->outputs; o++) f.outputs[o] = !forward && s->weight[n->out[o]];
    weft_status status = search_body(n->callee, f.of_params, f.outputs, f.weights, f.results);
    for (int i = 0; i < n->inputs && status >= 0 && !forward; i++)
        if (n->in[i] >= 0 && f.weights[i]) s->weight[n->in[i]] = true;
    for (int o = 0; o < n->outputs && status >= 0 && forward; o++)
        s->of_params[n->out[o]] = f.results[o];
    wefti_free(flags);
    return status;
}

/* Sets `of_params` of the node's results. */
static weft_status visit_forward(weight_search *s, const weft_node *n) {
    if (n->op == &wefti_op_call) return search_call(s, n, true);
    bool all = true;
    for (int i = 0; i < n->inputs && all; i++) all = n->in[i] < 0 || s->of_params[n->in[i]];
    for (int o = 0; o < n->outputs; o++) s->of_params[n->out[o]] = all;
    return WEFT_OK;
}

/* Sets `weight` of the node's operands; readers of its results have been visited. */
static weft_status visit_backward(weight_search *s, const weft_node *n) {
    if (n->op == &wefti_op_call) return search_call(s, n, false);
    const bool linear = (n->op->flags & WEFTI_OP_LINEAR) && n->outputs > 0;
    bool wanted = false;
    for (int o = 0; o < n->outputs && linear; o++) wanted = wanted || s->weight[n->out[o]];
    for (int i = 0; i < n->inputs; i++) {
        const bool takes = n->op->weights >> i & 1u;
        if (n->in[i] >= 0 && (takes || wanted) && s->of_params[n->in[i]])
            s->weight[n->in[i]] = true;
    }
    return WEFT_OK;
}

/* of_params[i], outputs[o]: what the caller knows of the body's inputs and outputs. in_weights[i],
 * out_of_params[o]: what the search has found. */
static weft_status search_body(const weft_body *body, const bool *of_params, const bool *outputs,
                               bool *in_weights, bool *out_of_params) {
    weight_search s = {.body = body};
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(s.of_params, bool, 2 * body->value_count + 1);
    s.weight = s.of_params + body->value_count;
    for (int64_t i = 0; i < body->in_count; i++) s.of_params[body->in[i]] = of_params[i];
    for (int64_t k = 0; k < body->node_count && status >= 0; k++)
        status = visit_forward(&s, &body->nodes[k]);
    for (int64_t o = 0; o < body->out_count; o++) s.weight[body->out[o]] = outputs && outputs[o];
    for (int64_t k = body->node_count - 1; k >= 0 && status >= 0; k--)
        status = visit_backward(&s, &body->nodes[k]);
    for (int64_t i = 0; i < body->in_count; i++) in_weights[i] = s.weight[body->in[i]];
    for (int64_t o = 0; o < body->out_count && out_of_params; o++)
        out_of_params[o] = s.of_params[body->out[o]];
    wefti_free(s.of_params);
    return status;
}

weft_status wefti_graph_weights(const weft_graph *g, bool *out) {
    const weft_body *root = g->root;
    bool *params;
    WEFT_NEW_ARRAY(params, bool, root->in_count + 1);
    for (int64_t i = 0; i < root->in_count; i++)
        params[i] = root->values[root->in[i]].kind == WEFTI_VALUE_PARAM;
    weft_status status = search_body(root, params, NULL, out, NULL);
    for (int64_t i = 0; i < root->in_count; i++) out[i] = out[i] && params[i];
    wefti_free(params);
    return status;
}
