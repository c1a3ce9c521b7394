#include <math.h>

#include "layout/redistribute.h"
#include "search/mindspore/mindspore.h"

static double corrected(const weft_mindspore_model *model, double bytes) {
    if (bytes <= 0) return 0;
    return bytes <= model->threshold ? model->constant : bytes + model->bias;
}

/* The fields that follow from the bytes of the forward pass, of activations' gradients and of
 * parameters' gradients. */
static void finish(const weft_mindspore_model *model, double forward, double backward,
                   double parameters, wefti_mindspore_cost *out) {
    const double total = forward + backward + parameters;
    out->communication = corrected(model, total);
    out->without_parameter = corrected(model, forward + backward);
    out->forward = corrected(model, forward);
    out->partial_parameter =
        out->without_parameter + model->gamma * (out->communication - out->without_parameter);
}

/* Whether a result is a sum over devices: a factor that it lacks, but operands have, is split. */
static bool is_reduced(const wefti_choice_node *n, const wefti_assignment *s,
                       const wefti_mesh *mesh, int output, const weft_desc *desc) {
    for (int f = 0; f < n->rule.factors; f++) {
        wefti_factor_kind kind = n->rule.factor[f].kind;
        bool has = false;
        if (kind == WEFTI_FACTOR_FREE || kind == WEFTI_FACTOR_WHOLE) continue;
        for (int d = 0; d < desc->rank; d++) has |= n->rule.out[output][d] == f;
        if (!has && wefti_choice_parts(mesh, s, f) > 1) return true;
    }
    return false;
}

/* Bytes that pieces of a node exchange because statistics, sequences or images are split. */
static double exchanged(const wefti_choice_graph *g, const wefti_choice_node *n,
                        const wefti_assignment *s) {
    double bytes = 0;
    for (int f = 0; f < n->rule.factors; f++) {
        wefti_factor_kind kind = n->rule.factor[f].kind;
        int64_t parts = wefti_choice_parts(&g->mesh, s, f);
        if (parts == 1 ||
            (kind != WEFTI_FACTOR_STATS && kind != WEFTI_FACTOR_RING && kind != WEFTI_FACTOR_HALO))
            continue;
        for (int d = 0; d < wefti_out(n->op, 0)->rank; d++) {
            if (n->rule.out[0][d] != f) continue;
            double slice = (double)wefti_choice_slice(g, n, s, true, 0);
            double size = (double)n->rule.factor[f].size / (double)parts;
            /* a sum and a maximum for each row; a border; all of the others' pieces */
            bytes += kind == WEFTI_FACTOR_RING ? slice * (double)(parts - 1) : 2 * slice / size;
        }
    }
    return bytes;
}

/* A parameter that several ops read has a node of its own, which reduces its gradient. */
static double gradient_bytes(const wefti_choice_graph *g, const weft_desc *desc,
                             const wefti_layout *layout, double slice) {
    if (!wefti_dtype_is_float(desc->dtype)) return 0;
    int64_t parts = wefti_mesh_product(&g->mesh, wefti_layout_split_axes(layout));
    return parts == wefti_mesh_size(&g->mesh) ? 0 : slice;
}

static void tensor_cost(const weft_mindspore_model *model, const wefti_choice_graph *g,
                        const wefti_choice_node *n, const wefti_assignment *s,
                        wefti_mindspore_cost *out) {
    const wefti_value_info *info = &g->graph->root->values[n->tensor];
    double slice = (double)wefti_choice_slice(g, n, s, true, 0), parameters = 0;
    *out = (wefti_mindspore_cost){.memory = slice};
    wefti_layout layout;
    wefti_choice_layout_out(g, n, s, 0, &layout);
    if (info->kind == WEFTI_VALUE_PARAM && !info->frozen)
        parameters = gradient_bytes(g, &info->desc, &layout, slice);
    finish(model, 0, 0, parameters, out);
}

void wefti_mindspore_op(const weft_mindspore_model *model, const wefti_choice_graph *g,
                        const wefti_choice_node *n, const wefti_assignment *s,
                        wefti_mindspore_cost *out) {
    double forward = 0, parameters = 0;
    *out = (wefti_mindspore_cost){0};
    if (!n->op) {
        tensor_cost(model, g, n, s, out);
        return;
    }
    for (int i = 0; i < n->op->inputs; i++) {
        const weft_desc *desc = wefti_in(n->op, i);
        if (!desc) continue;
        double slice = (double)wefti_choice_slice(g, n, s, false, i);
        out->computation += slice;
        if (n->op->in[i] < 0 || n->body->values[n->op->in[i]].node >= 0) continue;
        wefti_value_kind kind = n->body->values[n->op->in[i]].kind;
        if ((kind != WEFTI_VALUE_PARAM && kind != WEFTI_VALUE_STATE) || n->shared >> i & 1)
            continue;
        wefti_layout layout;
        wefti_choice_layout_in(g, n, s, i, &layout);
        out->memory += slice;
        if (n->trained >> i & 1) parameters += gradient_bytes(g, desc, &layout, slice);
    }
    for (int o = 0; o < n->op->outputs; o++) {
        double slice = (double)wefti_choice_slice(g, n, s, true, o);
        if (!(n->op->op->flags & WEFTI_OP_RESHAPE)) out->memory += slice;
        if (!is_reduced(n, s, &g->mesh, o, wefti_out(n->op, o))) continue;
        out->computation += slice;
        forward += slice;
    }
    forward += exchanged(g, n, s);
    finish(model, forward, 0, model->inference ? 0 : parameters, out);
}

double wefti_mindspore_time(const weft_mindspore_model *model, const wefti_mindspore_cost *cost) {
    return model->alpha * cost->computation +
           model->beta * (model->inference ? cost->forward : cost->partial_parameter);
}

/* ---- redistribution ---- */

enum { PLACES = WEFT_MAX_RANK * WEFTI_MAX_AXES, NO_AXIS = -1 };

/* Layouts with one axis for each place: a dimension that several axes split has several places. */
typedef struct state {
    int count;
    int dim[PLACES], in[PLACES], out[PLACES]; /* axes */
    bool pending[PLACES];
    const wefti_mesh *mesh;
    double slice;
    double computation, forward, backward, memory;
    double seconds; /* of the same rounds on the mesh's links, by rings */
} state;

static void fill_state(const wefti_layout *from, const wefti_layout *to, state *s) {
    for (int d = 0; d < from->rank; d++) {
        const wefti_dim_split *a = &from->dim[d], *b = &to->dim[d];
        for (int k = 0; k < a->count || k < b->count; k++) {
            s->dim[s->count] = d;
            s->in[s->count] = k < a->count ? a->axis[k] : NO_AXIS;
            s->out[s->count] = k < b->count ? b->axis[k] : NO_AXIS;
            s->pending[s->count++] = true;
        }
    }
}

static int size_of(const state *s, int axis) {
    return s->mesh->axis[axis].size;
}

static void slice_at(state *s, int i) {
    s->computation += s->slice;
    s->slice /= size_of(s, s->out[i]);
    s->in[i] = s->out[i];
    s->pending[i] = false;
}

/* Gathers place i and the places of the same dimension behind it that are to be whole too. */
static void gather_at(state *s, int i) {
    int n = 1;
    wefti_axes axes = 0;
    for (int k = i; k < s->count && s->dim[k] == s->dim[i]; k++) {
        if (s->in[k] == NO_AXIS || (k > i && (!s->pending[k] || s->out[k] != s->out[i]))) break;
        n *= size_of(s, s->in[k]);
        axes |= 1u << s->in[k];
        s->in[k] = NO_AXIS;
        if (k > i && s->out[k] == NO_AXIS) s->pending[k] = false;
    }
    s->forward += s->slice * n / 2;
    s->backward += s->slice / 2;
    if (s->dim[i] > 0) {
        s->computation += 2 * s->slice * n;
        s->memory += 2 * s->slice * n;
    }
    s->seconds += wefti_move_seconds(s->mesh, axes, (int64_t)(s->slice * (n - 1)));
    s->slice *= n;
}

static int holder(const state *s, int axis) {
    for (int k = 0; k < s->count; k++)
        if (s->pending[k] && s->in[k] == axis) return k;
    return -1;
}

static bool occurs(const state *s, int axis) {
    for (int k = 0; k < s->count; k++)
        if (s->out[k] == axis) return true;
    return false;
}

static bool slice_and_permute(state *s) {
    bool any = false;
    for (int i = 0; i < s->count; i++) {
        if (!s->pending[i]) continue;
        if (s->in[i] == s->out[i]) {
            s->pending[i] = false;
            any = true;
        } else if (s->in[i] == NO_AXIS && holder(s, s->out[i]) < 0) {
            slice_at(s, i);
            any = true;
        }
    }
    for (int i = 0; i < s->count; i++) {
        if (!s->pending[i] || s->in[i] != NO_AXIS || s->out[i] == NO_AXIS) continue;
        int j = holder(s, s->out[i]);
        if (j < 0) continue;
        const int n = size_of(s, s->out[i]);
        s->forward += 2 * s->slice;
        s->backward += 2 * s->slice;
        s->seconds +=
            wefti_move_seconds(s->mesh, 1u << s->out[i], (int64_t)(s->slice * (n - 1) / n));
        s->in[i] = s->out[i];
        s->in[j] = NO_AXIS;
        s->pending[i] = false;
        any = true;
    }
    return any;
}

static int first_pending(const state *s) {
    for (int i = 0; i < s->count; i++)
        if (s->pending[i]) return i;
    return -1;
}

static void reach_target(state *s) {
    while (first_pending(s) >= 0) {
        bool any = false;
        while (slice_and_permute(s)) any = true;
        for (int i = 0; i < s->count; i++)
            if (s->pending[i] && s->in[i] != NO_AXIS && !occurs(s, s->in[i])) {
                gather_at(s, i);
                any = true;
            }
        int first = first_pending(s);
        if (!any && first >= 0) gather_at(s, first);
    }
}

static state walk(const wefti_mesh *mesh, const weft_desc *desc, const wefti_layout *from,
                  const wefti_layout *to) {
    state s = {.mesh = mesh, .slice = (double)weft_desc_bytes(desc)};
    s.slice /= wefti_mesh_product(mesh, wefti_layout_split_axes(from));
    fill_state(from, to, &s);
    reach_target(&s);
    return s;
}

double wefti_mindspore_route_seconds(const wefti_mesh *mesh, const weft_desc *desc,
                                     const wefti_layout *from, const wefti_layout *to) {
    return wefti_layout_equal(from, to) ? 0 : walk(mesh, desc, from, to).seconds;
}

void wefti_mindspore_redistribution(const weft_mindspore_model *model, const wefti_mesh *mesh,
                                    const weft_desc *desc, const wefti_layout *from,
                                    const wefti_layout *to, bool gradient,
                                    wefti_mindspore_cost *out) {
    *out = (wefti_mindspore_cost){0};
    if (wefti_layout_equal(from, to)) return;
    const state s = walk(mesh, desc, from, to);
    out->computation = s.computation;
    out->memory = s.memory;
    finish(model, s.forward, gradient && !model->inference ? s.backward : 0, 0, out);
}

/* ---- the graph of choices ---- */

static void price(const weft_mindspore_model *model, const wefti_mindspore_cost *cost,
                  wefti_choice_cost *out) {
    *out = (wefti_choice_cost){wefti_mindspore_time(model, cost), cost->memory, cost->computation,
                               model->inference ? cost->forward : cost->without_parameter};
}

static void price_op(const void *context, const wefti_choice_graph *g, const wefti_choice_node *n,
                     const wefti_assignment *s, wefti_choice_cost *out) {
    wefti_mindspore_cost cost;
    wefti_mindspore_op(context, g, n, s, &cost);
    price(context, &cost, out);
}

static void price_edge(const void *context, const wefti_choice_graph *g, const weft_desc *desc,
                       const wefti_layout *from, const wefti_layout *to, bool gradient,
                       wefti_choice_cost *out) {
    wefti_mindspore_cost cost;
    wefti_mindspore_redistribution(context, &g->mesh, desc, from, to, gradient, &cost);
    price(context, &cost, out);
}

wefti_pricing wefti_mindspore_pricing(const weft_mindspore_model *model) {
    return (wefti_pricing){model, price_op, price_edge};
}

weft_status wefti_mindspore_check(const weft_mindspore_model *model) {
    const struct {
        const char *name;
        double value;
    } fields[] = {{"alpha", model->alpha},       {"beta", model->beta},
                  {"gamma", model->gamma},       {"threshold", model->threshold},
                  {"constant", model->constant}, {"bias", model->bias},
                  {"capacity", model->capacity}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        WEFT_REQUIRE(isfinite(fields[i].value) && fields[i].value >= 0, WEFT_E_ARG,
                     "parallel.cost.%s is %g; it must be a number that is not negative",
                     fields[i].name, fields[i].value);
    WEFT_REQUIRE(model->capacity > 0, WEFT_E_ARG,
                 "parallel.cost.capacity is 0; it must be the bytes of a device's memory");
    return WEFT_OK;
}
