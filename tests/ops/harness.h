/* One op as a graph of one node, with values: the starting point of tests of ops and of kernels. */
#ifndef WEFT_TESTS_OPS_HARNESS_H
#define WEFT_TESTS_OPS_HARNESS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/philox.h"
#include "builtin.h"
#include "graph/builder.h"
#include "graph/graph.h"
#include "graph/text/text.h"

enum { HARNESS_MAX_ATTRS = 32 };

/* How an operand's values are drawn: the suffix of a case's input. */
typedef struct operand {
    weft_desc desc;
    char style; /* 0 normal, '+' positive, '<' integers below `below`, '!' the same, each once,
                   '?' booleans, 'u' distinct, '-' absent */
    int64_t below;
} operand;

/* A case as data, free to be changed before a graph is made of it. */
typedef struct op_setup {
    const weft_op_def *op;
    operand in[WEFTI_MAX_IN];
    int inputs;
    wefti_attr attrs[HARNESS_MAX_ATTRS];
} op_setup;

/* The graph: its root has the one node; inputs are "i0", "i1"..., outputs "o0"... */
typedef struct op_graph {
    weft_graph *graph;
    const weft_node *node;
    double *in[WEFTI_MAX_IN]; /* NULL: absent */
    double *out[WEFTI_MAX_OUT];
} op_graph;

/* "f32[2,3]<5"; false when it is not of that form. */
static inline bool parse_operand(const char *text, operand *out) {
    operand o = {0};
    if (!strcmp(text, "-")) {
        o.style = '-';
        *out = o;
        return true;
    }
    char dtype[8] = "";
    size_t n = strcspn(text, "[");
    if (n >= sizeof dtype || text[n] != '[') return false;
    memcpy(dtype, text, n);
    if (!wefti_dtype_parse(dtype, &o.desc.dtype)) return false;
    const char *p = text + n + 1;
    while (*p != ']') {
        char *end;
        if (o.desc.rank == WEFT_MAX_RANK) return false;
        if (o.desc.rank && *p++ != ',') return false;
        o.desc.shape[o.desc.rank++] = strtoll(p, &end, 10);
        if (end == p) return false;
        p = end;
    }
    p++;
    o.style = *p;
    if (o.style == '<' || o.style == '!') {
        char *end;
        o.below = strtoll(p + 1, &end, 10);
        if (*end || end == p + 1) return false;
    } else if (o.style && (!strchr("+?u", o.style) || p[1])) {
        return false;
    }
    *out = o;
    return true;
}

/* Of the tables of all cases: as old as the program. */
static inline wefti_arena *tables_of_cases(void) {
    static wefti_arena *arena;
    if (!arena && wefti_arena_create(&arena) < 0) return NULL;
    return arena;
}

static inline bool setup_case(const weft_op_def *op, const wefti_op_case *c, op_setup *out) {
    op_setup s = {.op = op};
    while (s.inputs < 10 && c->inputs[s.inputs]) {
        if (!parse_operand(c->inputs[s.inputs], &s.in[s.inputs])) return false;
        s.inputs++;
    }
    if (wefti_attr_count(op) >= HARNESS_MAX_ATTRS) return false;
    if (!tables_of_cases() ||
        wefti_attrs_parse(op, c->attrs ? c->attrs : "", tables_of_cases(), s.attrs) < 0)
        return false;
    *out = s;
    return true;
}

static inline double draw(const operand *o, uint64_t seed, uint64_t stream, int64_t e,
                          int64_t count) {
    uint32_t bits = wefti_philox_u32(seed, stream, (uint64_t)e);
    switch (o->style) {
    case '+':
        return fabs((double)wefti_philox_normal(seed, stream, (uint64_t)e)) + 0.5;
    case '<':
        return o->below > 0 ? (double)(bits % (uint32_t)o->below) : 0.0;
    case '!':
        return (double)wefti_philox_permute(
            seed, stream, (uint64_t)(o->below > count ? o->below : count), (uint64_t)e);
    case '?':
        return bits & 1u;
    case 'u': /* half apart, around 0 */
        return 0.5 * (double)wefti_philox_permute(seed, stream, (uint64_t)count, (uint64_t)e) -
               0.25 * (double)count + 0.1;
    default:
        return wefti_dtype_is_float(o->desc.dtype)
                   ? (double)wefti_philox_normal(seed, stream, (uint64_t)e)
                   : (double)(bits % 3u);
    }
}

static inline void op_graph_close(op_graph *g) {
    for (int i = 0; i < WEFTI_MAX_IN; i++) free(g->in[i]);
    for (int o = 0; o < WEFTI_MAX_OUT; o++) free(g->out[o]);
    weft_graph_destroy(g->graph);
    *g = (op_graph){0};
}

static inline double *new_values(const weft_desc *d) {
    double *values = calloc((size_t)weft_desc_elems(d) + 1, sizeof *values);
    if (!values) abort();
    return values;
}

/* The node alone, without values; refusals of infer come back as they are. */
static inline weft_status op_graph_make(const op_setup *s, weft_graph **out) {
    weft_graph *g;
    int32_t in[WEFTI_MAX_IN], node;
    weft_status st = wefti_graph_create(wefti_builtin_ops(), &g);
    if (st < 0) return st;
    for (int i = 0; i < s->inputs && st >= 0; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "i%d", i);
        in[i] = -1;
        if (s->in[i].style != '-')
            st = wefti_root_value(g, WEFTI_VALUE_INPUT, name, s->in[i].desc,
                                  (weft_init){WEFT_INIT_ZEROS, 0}, &in[i]);
    }
    if (st >= 0) st = wefti_body_add(g->root, s->op, NULL, s->inputs, in, s->attrs, "", &node);
    for (int o = 0; st >= 0 && o < g->root->nodes[node].outputs; o++) {
        char name[16];
        (void)snprintf(name, sizeof name, "o%d", o);
        st = wefti_root_output(g, name, g->root->nodes[node].out[o]);
    }
    if (st >= 0)
        *out = g;
    else
        weft_graph_destroy(g);
    return st;
}

/* Input values of a case, from `seed`; NULL where absent. */
static inline void draw_values(const op_setup *s, uint64_t seed, double **out) {
    for (int i = 0; i < s->inputs; i++) {
        out[i] = NULL;
        if (s->in[i].style == '-') continue;
        int64_t count = weft_desc_elems(&s->in[i].desc);
        out[i] = new_values(&s->in[i].desc);
        for (int64_t e = 0; e < count; e++)
            out[i][e] = draw(&s->in[i], seed, (uint64_t)i, e, count);
    }
}

/* With input values, which are copied, and room for the outputs. */
static inline weft_status op_graph_open_with(const op_setup *s, double *const *values,
                                             op_graph *out) {
    op_graph g = {0};
    weft_status st = op_graph_make(s, &g.graph);
    if (st < 0) return st;
    g.node = &g.graph->root->nodes[0];
    for (int i = 0; i < s->inputs; i++) {
        if (!values[i]) continue;
        g.in[i] = new_values(&s->in[i].desc);
        memcpy(g.in[i], values[i], (size_t)weft_desc_elems(&s->in[i].desc) * sizeof(double));
    }
    for (int o = 0; o < g.node->outputs; o++) g.out[o] = new_values(wefti_out(g.node, o));
    *out = g;
    return WEFT_OK;
}

/* With input values from `seed`. */
static inline weft_status op_graph_open(const op_setup *s, uint64_t seed, op_graph *out) {
    double *values[WEFTI_MAX_IN] = {0};
    draw_values(s, seed, values);
    weft_status st = op_graph_open_with(s, values, out);
    for (int i = 0; i < s->inputs; i++) free(values[i]);
    return st;
}

static inline weft_status op_graph_run(op_graph *g, const wefti_random *random) {
    const double *in[WEFTI_MAX_IN] = {0};
    for (int i = 0; i < WEFTI_MAX_IN; i++) in[i] = g->in[i];
    return g->node->op->reference ? g->node->op->reference(g->node, random, in, g->out)
                                  : wefti_elementwise_reference(g->node, random, in, g->out);
}

/* The split rule; false when the op has none. */
static inline bool op_rule(const weft_node *n, wefti_split_rule *out) {
    if (!n->op->split) return false;
    wefti_rule_begin(out);
    if (n->op->split(n, out) >= 0) return true;
    fprintf(stderr, "%s: %s\n", n->op->name, weft_error_message());
    abort();
}

#endif
