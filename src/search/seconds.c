/* Costs in seconds: kernels by the rates of a device, transfers by the links of the mesh.
 *
 * Kernels take their time three times in training, once forward and twice backward. Products with
 * frozen weights take it twice. Bytes that a device receives, with g devices in a group and s bytes
 * in its piece:
 *
 *     result that is a sum over g, or gradient of an operand that all of g read: 2 s (g - 1) / g
 *     redistribution: all-gather s (g - 1), all-to-all s (g - 1) / g, by MindSpore's rounds
 *
 * and the same rounds back for the gradient. Memory is that of MindSpore's model. Transfers do not
 * overlap with kernels here. Source of the bytes: Thakur et al., IJHPCA 2005 (rings). */
#include "layout/redistribute.h"
#include "search/find.h"
#include "search/mindspore/mindspore.h"

static bool has_factor(const int8_t *dims, const weft_desc *desc, int f) {
    for (int d = 0; desc && d < desc->rank; d++)
        if (dims[d] == f) return true;
    return false;
}

static double kernel_seconds(const wefti_choice_graph *g, const wefti_choice_node *n,
                             const wefti_assignment *s) {
    wefti_cost cost;
    wefti_node_cost(n->op, &cost);
    cost.flops /= (double)wefti_choice_product(&g->mesh, s);
    cost.bytes = 0;
    for (int i = 0; i < n->op->inputs; i++)
        cost.bytes += (double)wefti_choice_slice(g, n, s, false, i);
    for (int o = 0; o < n->op->outputs; o++)
        cost.bytes += (double)wefti_choice_slice(g, n, s, true, o);
    return wefti_cost_seconds(n->op, &cost, &g->plan->rates);
}

/* The sum over `axes` of a piece of so many bytes, which all of them need. */
static double sum_seconds(const wefti_mesh *mesh, wefti_axes axes, double bytes) {
    const int32_t g = wefti_mesh_product(mesh, axes);
    if (g < 2) return 0;
    return wefti_move_seconds(mesh, axes, (int64_t)(2 * bytes * (g - 1) / g));
}

/* Axes that split a factor which is summed in this result. */
static wefti_axes summed(const wefti_choice_graph *g, const wefti_choice_node *n,
                         const wefti_assignment *s, int output) {
    wefti_axes axes = 0;
    for (int a = 0; a < g->mesh.axes; a++) {
        const int f = s->factor[a];
        if (f < 0 || n->rule.factor[f].kind == WEFTI_FACTOR_FREE) continue;
        if (!has_factor(n->rule.out[output], wefti_out(n->op, output), f)) axes |= 1u << a;
    }
    return axes;
}

/* Axes that split results, but not this operand: its gradient is a sum over them. */
static wefti_axes shared_by(const wefti_choice_graph *g, const wefti_choice_node *n,
                            const wefti_assignment *s, int input) {
    wefti_axes axes = 0;
    for (int a = 0; a < g->mesh.axes; a++) {
        const int f = s->factor[a];
        if (f < 0 || has_factor(n->rule.in[input], wefti_in(n->op, input), f)) continue;
        for (int o = 0; o < n->op->outputs; o++)
            if (has_factor(n->rule.out[o], wefti_out(n->op, o), f)) axes |= 1u << a;
    }
    return axes;
}

static bool has_gradient(const wefti_choice_graph *g, const wefti_choice_node *n, int input) {
    const int32_t value = n->op->in[input];
    if (value < 0) return false;
    for (int32_t e = n->feeder; e >= 0; e = g->edges[e].next_to)
        if (g->edges[e].input == input && g->edges[e].gradient) return true;
    return n->trained >> input & 1;
}

/* Once forward, and twice backward, unless a weight is frozen: then it has no gradient. */
static int passes(const wefti_choice_graph *g, const wefti_choice_node *n) {
    for (int i = 0; i < n->op->inputs && n->op->op->work == WEFTI_WORK_PRODUCT; i++) {
        const wefti_value_info *v = n->op->in[i] < 0 ? NULL : &n->body->values[n->op->in[i]];
        const bool weight = v && v->node < 0 && v->kind == WEFTI_VALUE_PARAM;
        if (weight && wefti_dtype_is_float(v->desc.dtype) && !has_gradient(g, n, i)) return 2;
    }
    return 3;
}

/* Statistics, borders and sequences that pieces of a node exchange. */
static double exchange_seconds(const wefti_choice_graph *g, const wefti_choice_node *n,
                               const wefti_assignment *s) {
    double seconds = 0;
    for (int f = 0; f < n->rule.factors; f++) {
        const wefti_factor_kind kind = n->rule.factor[f].kind;
        const int64_t parts = wefti_choice_parts(&g->mesh, s, f);
        if (parts == 1 ||
            (kind != WEFTI_FACTOR_STATS && kind != WEFTI_FACTOR_RING && kind != WEFTI_FACTOR_HALO))
            continue;
        wefti_axes axes = 0;
        for (int a = 0; a < g->mesh.axes; a++)
            if (s->factor[a] == f) axes |= 1u << a;
        const double slice = (double)wefti_choice_slice(g, n, s, true, 0),
                     size = (double)n->rule.factor[f].size / (double)parts,
                     bytes =
                         kind == WEFTI_FACTOR_RING ? slice * (double)(parts - 1) : 2 * slice / size;
        seconds += wefti_move_seconds(&g->mesh, axes, (int64_t)bytes);
    }
    return seconds;
}

static void price_op(const void *context, const wefti_choice_graph *g, const wefti_choice_node *n,
                     const wefti_assignment *s, wefti_choice_cost *out) {
    const weft_mindspore_model *model = context;
    wefti_mindspore_cost bytes;
    wefti_mindspore_op(model, g, n, s, &bytes);
    *out = (wefti_choice_cost){.memory = bytes.memory};
    if (!n->op) return; /* readers pay for its gradient */
    out->compute = kernel_seconds(g, n, s) * (model->inference ? 1 : passes(g, n));
    for (int o = 0; o < n->op->outputs; o++)
        out->transfer +=
            sum_seconds(&g->mesh, summed(g, n, s, o), (double)wefti_choice_slice(g, n, s, true, o));
    out->transfer += exchange_seconds(g, n, s) * (model->inference ? 1 : 2);
    for (int i = 0; i < n->op->inputs && !model->inference; i++)
        if (has_gradient(g, n, i))
            out->transfer += sum_seconds(&g->mesh, shared_by(g, n, s, i),
                                         (double)wefti_choice_slice(g, n, s, false, i));
    out->time = out->compute + out->transfer;
}

static void price_edge(const void *context, const wefti_choice_graph *g, const weft_desc *desc,
                       const wefti_layout *from, const wefti_layout *to, bool gradient,
                       wefti_choice_cost *out) {
    const weft_mindspore_model *model = context;
    wefti_mindspore_cost bytes;
    *out = (wefti_choice_cost){0};
    if (wefti_layout_equal(from, to)) return;
    wefti_mindspore_redistribution(model, &g->mesh, desc, from, to, gradient, &bytes);
    out->memory = bytes.memory;
    out->transfer = wefti_mindspore_route_seconds(&g->mesh, desc, from, to);
    if (gradient && !model->inference)
        out->transfer += wefti_mindspore_route_seconds(&g->mesh, desc, to, from);
    out->time = out->transfer;
}

wefti_pricing wefti_seconds_pricing(const weft_mindspore_model *model) {
    return (wefti_pricing){model, price_op, price_edge};
}
