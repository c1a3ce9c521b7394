/* Choices of splits where time is bytes. An op is cut for all ranks and run twice: as it is, and as
 * if the exchanges of its pieces cost nothing. */
#ifndef WEFT_TESTS_PROGRAM_CHOICE_H
#define WEFT_TESTS_PROGRAM_CHOICE_H

#include "support.h"
#include "graph/build_random.h"
#include "ops/common.h"
#include "program/spmd.h"

static const wefti_random no_random = {0};

/* Time is bytes: no latency, and arithmetic next to nothing. */
static const wefti_link per_byte = {0, 1e3};

typedef struct outcome {
    double received; /* by the devices with most, one transfer after the other */
    int64_t bytes;   /* by all */
    int halos, transfers;
} outcome;

/* The values of the operands and of the uncut results. */
static inline void evaluate(op_graph *g) {
    const weft_body *b = g->graph->root;
    for (int64_t i = 0; i < b->in_count; i++) {
        const weft_desc *d = &b->values[b->in[i]].desc;
        operand o = {.desc = *d};
        int64_t count = weft_desc_elems(d);
        g->in[i] = new_values(d);
        for (int64_t e = 0; e < count; e++) g->in[i][e] = draw(&o, 7, (uint64_t)i, e, count);
    }
    for (int64_t o = 0; o < b->out_count; o++) g->out[o] = new_values(&b->values[b->out[o]].desc);
    ASSERT_OK(wefti_interpret(b, &no_random, (const double *const *)g->in, g->out));
}

/* ---- an op under another definition ---- */

/* Ops recognise their own nodes by the definition. So a copied definition hands on a node of the
 * original. */
static const weft_op_def *original;

static inline weft_node node_of_original(const weft_node *n) {
    weft_node x = *n;
    x.op = original;
    return x;
}

static weft_status localize_original(const weft_node *n, const wefti_split_rule *rule,
                                     const int64_t *begins, const int64_t *sizes,
                                     wefti_attr *attrs) {
    const weft_node x = node_of_original(n);
    return original->localize(&x, rule, begins, sizes, attrs);
}

static weft_status lower_original(wefti_lowering *c, const weft_node *n) {
    const weft_node x = node_of_original(n);
    return original->lower(c, &x);
}

/* A copy with another estimate of exchanges. One copy at a time. */
static inline weft_op_def copy_of(const weft_op_def *op,
                                  void (*exchanged)(const wefti_lowering *, const weft_node *,
                                                    int64_t *)) {
    weft_op_def copy = *op;
    original = op;
    if (op->localize) copy.localize = localize_original;
    if (op->lower) copy.lower = lower_original;
    copy.exchanged = exchanged;
    return copy;
}

/* ---- choices ---- */

/* The op cut and run; `free_exchange`: as if exchanges cost nothing. */
static inline outcome choose(op_graph *g, weft_plan *plan, const wefti_layout *in,
                             const wefti_layout *out, bool free_exchange, const char *what) {
    spmd s;
    weft_node *n = &g->graph->root->nodes[0];
    const weft_op_def *op = n->op;
    const weft_op_def blind = copy_of(op, NULL);
    if (free_exchange) n->op = &blind;
    if (!spmd_partition_over(&s, g, plan, in, out, per_byte)) fail_msg("%s: %s", what, s.why);
    spmd_feed(&s, 11);
    if (!spmd_run(&s, &no_random) || !spmd_compare(&s)) fail_msg("%s: %s", what, s.why);
    n->op = op;
    int64_t halo = 0;
    outcome result = {.bytes = s.bytes, .halos = s.transfers[WEFTI_TRANSFER_HALO]};
    for (int32_t r = 0; r < s.ranks; r++)
        if (s.halo[r] > halo) halo = s.halo[r];
    for (int k = 0; k < SPMD_KINDS; k++) result.transfers += s.transfers[k];
    result.received = (double)halo;
    for (int k = 0; k < SPMD_MOVES; k++) result.received += (double)s.most[k];
    spmd_close(&s);
    return result;
}

static inline weft_plan *plan_of(const int *mesh) {
    static const char *const names[] = {"a", "b"};
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(mesh[0] * (mesh[1] ? mesh[1] : 1), &plan));
    for (int a = 0; a < 2 && mesh[a]; a++) ASSERT_OK(weft_plan_axis(plan, names[a], mesh[a]));
    return plan;
}

static inline op_graph new_graph(void) {
    op_graph g = {0};
    ASSERT_OK(wefti_graph_create(wefti_builtin_ops(), &g.graph));
    return g;
}

/* Each axis splits some dimension that has elements for it, or none. */
static inline wefti_layout random_layout(dice *d, const weft_plan *plan, const weft_desc *desc) {
    wefti_layout l = wefti_layout_replicated(desc->rank);
    wefti_mesh mesh = wefti_plan_mesh(plan, 0);
    for (int a = 0; a < mesh.axes; a++) {
        int dim = (int)roll(d, desc->rank + 1);
        if (dim == desc->rank ||
            wefti_layout_parts(&l, &mesh, dim) * mesh.axis[a].size > desc->shape[dim])
            continue;
        l.dim[dim].axis[l.dim[dim].count++] = (int8_t)a;
    }
    wefti_layout_normal(&l, &mesh, desc);
    return l;
}

#endif
