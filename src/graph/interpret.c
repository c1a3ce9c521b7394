/* The oracle: evaluates a body with the reference kernels in double precision, node by node. */
#include "graph/graph.h"

#include <string.h>

typedef struct interpret_run {
    const weft_body *body;
    const wefti_random *random;
    const double **value; /* per value of the body */
    double **owned;       /* the values that this run allocated */
    int64_t *last;        /* last node that reads the value; node_count for outputs */
} interpret_run;

static void find_last_uses(interpret_run *r) {
    const weft_body *b = r->body;
    for (int64_t v = 0; v < b->value_count; v++) r->last[v] = -1;
    for (int64_t i = 0; i < b->node_count; i++)
        for (int k = 0; k < b->nodes[i].inputs; k++)
            if (b->nodes[i].in[k] >= 0) r->last[b->nodes[i].in[k]] = i;
    for (int64_t o = 0; o < b->out_count; o++) r->last[b->out[o]] = b->node_count;
}

static void release(interpret_run *r, int32_t value) {
    wefti_free(r->owned[value]);
    r->owned[value] = NULL;
    r->value[value] = NULL;
}

static weft_status run_node(interpret_run *r, int64_t index, const double **in, double **out) {
    const weft_node *n = &r->body->nodes[index];
    for (int k = 0; k < n->inputs; k++) in[k] = n->in[k] < 0 ? NULL : r->value[n->in[k]];
    for (int k = n->inputs; k < n->op->max_inputs; k++) in[k] = NULL; /* absent optional operands */
    for (int o = 0; o < n->outputs; o++) {
        int64_t elems = weft_desc_elems(wefti_out(n, o));
        WEFT_NEW_ARRAY(out[o], double, elems);
        r->owned[n->out[o]] = out[o];
        r->value[n->out[o]] = out[o];
    }
    weft_status st = n->op->reference ? n->op->reference(n, r->random, in, out)
                                      : wefti_elementwise_reference(n, r->random, in, out);
    if (st < 0) return wefti_prefix(st, "%s%s%s", n->scope, n->scope[0] ? ": " : "", n->op->name);
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] >= 0 && r->last[n->in[k]] == index) release(r, n->in[k]);
    for (int o = 0; o < n->outputs; o++)
        if (r->last[n->out[o]] < 0) release(r, n->out[o]);
    return WEFT_OK;
}

static weft_status run_body(interpret_run *r, const double *const *in, double *const *out) {
    const weft_body *b = r->body;
    int64_t widest_in = INT8_MAX, widest_out = 1;
    for (int64_t i = 0; i < b->node_count; i++) {
        if (b->nodes[i].inputs > widest_in) widest_in = b->nodes[i].inputs;
        if (b->nodes[i].outputs > widest_out) widest_out = b->nodes[i].outputs;
    }
    const double **args;
    double **results;
    WEFT_NEW_ARRAY(args, const double *, widest_in);
    results = wefti_calloc((size_t)widest_out, sizeof *results);
    weft_status st =
        results ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to interpret %s", b->name);
    if (st >= 0) {
        find_last_uses(r);
        for (int64_t i = 0; i < b->in_count; i++) r->value[b->in[i]] = in[i];
    }
    for (int64_t i = 0; i < b->node_count && st >= 0; i++) st = run_node(r, i, args, results);
    for (int64_t o = 0; o < b->out_count && st >= 0; o++) {
        int64_t elems = weft_desc_elems(&b->values[b->out[o]].desc);
        if (elems) memcpy(out[o], r->value[b->out[o]], sizeof(double) * (size_t)elems);
    }
    wefti_free(args);
    wefti_free(results);
    return st;
}

weft_status wefti_interpret(const weft_body *b, const wefti_random *random, const double *const *in,
                            double *const *out) {
    interpret_run r = {.body = b, .random = random};
    size_t count = (size_t)b->value_count;
    r.value = wefti_calloc(count, sizeof *r.value);
    r.owned = wefti_calloc(count, sizeof *r.owned);
    r.last = wefti_calloc(count, sizeof *r.last);
    weft_status st = r.value && r.owned && r.last
                         ? run_body(&r, in, out)
                         : WEFT_RAISE(WEFT_E_NOMEM, "no memory to interpret %s", b->name);
    if (r.owned)
        for (size_t v = 0; v < count; v++) wefti_free(r.owned[v]);
    wefti_free(r.value);
    wefti_free(r.owned);
    wefti_free(r.last);
    return st;
}
