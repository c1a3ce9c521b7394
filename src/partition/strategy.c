/* Decides which axes split a node: as the plan says, and by least cost for axes that the plan does
 * not name. If the plan gives cuts, (2,1), all ways to assign axes to the cuts are compared by
 * cost.
 *
 * An axis is a candidate for a factor if an operand already splits the factor by it, or the layout
 * in which a result leaves the body does. All combinations of candidates are compared. The cost is
 * the sum of:
 *
 * - the time to bring the operands into their layouts;
 * - the time to bring the results into the layouts in which they leave;
 * - the time of the communication between the node's pieces;
 * - the node's own time, which each axis that splits it reduces.
 *
 * The choice is local, one node at a time. It finds the schemes that people design by hand
 * (column-parallel, then row-parallel products, one all-reduce per pair), because keeping a layout
 * costs nothing. */
#include "partition/strategy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- factors and dimensions ---- */

static wefti_dim_split dim_of_factor(const wefti_lowering *c, int f, int64_t size) {
    wefti_dim_split s = c->factor[f];
    int64_t unit = s.unit > 1 ? s.unit : 1;
    if (s.count) s.unit = unit * wefti_strategy_unit(c, f, size);
    return s;
}

static void layout_of(const wefti_lowering *c, const int8_t *dims, const weft_desc *desc,
                      wefti_layout *out) {
    *out = wefti_layout_replicated(desc->rank);
    for (int d = 0; d < desc->rank; d++)
        if (dims[d] >= 0) out->dim[d] = dim_of_factor(c, dims[d], desc->shape[d]);
    wefti_layout_normal(out, &c->context->run->p->mesh, desc);
}

static bool is_float(const weft_desc *desc) {
    return desc && wefti_dtype_is_float(desc->dtype);
}

static void fill_need(wefti_lowering *c) {
    for (int i = 0; i < c->n->inputs; i++) {
        const weft_desc *desc = wefti_in(c->n, i);
        if (!desc) continue;
        layout_of(c, c->rule.in[i], desc, &c->need[i]);
        if (is_float(desc)) c->need[i].sum |= c->keep;
    }
}

static wefti_axes axes_of(const wefti_dim_split *s) {
    wefti_axes axes = 0;
    for (int k = 0; k < s->count; k++) axes |= 1u << s->axis[k];
    return axes;
}

static void fill_give(wefti_lowering *c) {
    for (int o = 0; o < c->n->outputs; o++) {
        const weft_desc *desc = wefti_out(c->n, o);
        layout_of(c, c->rule.out[o], desc, &c->give[o]);
        if (is_float(desc)) c->give[o].sum |= c->keep;
        for (int f = 0; f < c->rule.factors; f++) {
            bool has = false;
            for (int d = 0; d < desc->rank; d++) has |= c->rule.out[o][d] == f;
            if (has) continue;
            wefti_axes axes = axes_of(&c->factor[f]);
            if (c->rule.factor[f].kind == WEFTI_FACTOR_SUM) c->give[o].sum |= axes;
            if (c->rule.factor[f].kind == WEFTI_FACTOR_MAX) c->give[o].max |= axes;
        }
    }
}

/* ---- the choice ---- */

enum { MAX_CHOICES = 6 };

typedef struct choice {
    int axis;
    int count;
    int factor[MAX_CHOICES]; /* -1: no factor; always the last choice */
    int64_t unit[MAX_CHOICES];
    bool leading[MAX_CHOICES]; /* the axis comes before other axes of the dimension on which it
                                  was found */
} choice;

typedef struct chooser {
    wefti_lowering *c;
    wefti_axes fixed;
    choice choices[WEFTI_MAX_AXES];
    int count;
    double best;
    wefti_dim_split best_factor[WEFTI_MAX_FACTORS];
    wefti_dim_split given[WEFTI_MAX_FACTORS]; /* by the plan */
    wefti_dim_split seen[WEFTI_MAX_FACTORS];  /* the longest list of axes found on the factor: sets
                                                 their  order */
    double seconds;                           /* of the whole node on one device */
} chooser;

static void suggest(chooser *h, int axis, int f, int64_t unit) {
    choice *x = NULL;
    for (int k = 0; k < h->count; k++)
        if (h->choices[k].axis == axis) x = &h->choices[k];
    if (!x) {
        x = &h->choices[h->count++];
        *x = (choice){.axis = axis};
    }
    for (int k = 0; k < x->count; k++)
        if (x->factor[k] == f) return;
    if (x->count == MAX_CHOICES - 1) return;
    x->factor[x->count] = f;
    x->unit[x->count++] = unit;
}

static void suggest_layout(chooser *h, const wefti_layout *layout, const int8_t *dims,
                           const weft_desc *desc) {
    wefti_lowering *c = h->c;
    for (int d = 0; d < desc->rank; d++) {
        int f = dims[d];
        const wefti_dim_split *s = &layout->dim[d];
        if (f < 0 || s->count == 0 || !wefti_strategy_splittable(c, f) || c->factor[f].count ||
            c->context->closed[f])
            continue;
        if (s->count > h->seen[f].count) h->seen[f] = *s;
        int64_t per = wefti_strategy_unit(c, f, desc->shape[d]);
        bool space =
            c->rule.factor[f].kind == WEFTI_FACTOR_HALO; /* its dimensions differ in size */
        int64_t unit = s->unit > 1 && s->unit % per == 0 && !space ? s->unit / per : 1;
        for (int k = 0; k < s->count; k++)
            if (!(h->fixed >> s->axis[k] & 1)) suggest(h, s->axis[k], f, unit);
    }
}

/* The final layout of a result: as the plan says, or as it leaves the body. */
static const wefti_layout *wanted_of(const wefti_lowering *c, int o) {
    return o == 0 && c->context->result ? c->context->result
                                        : c->context->run->wanted[c->n->out[o]];
}

static void suggest_all(chooser *h) {
    wefti_lowering *c = h->c;
    const wefti_partition_context *ctx = c->context->run;
    /* Large operands first: of equal choices the first wins. */
    bool done[WEFTI_MAX_IN] = {false};
    for (int round = 0; round < c->n->inputs; round++) {
        int next = -1;
        for (int i = 0; i < c->n->inputs; i++) {
            const weft_desc *desc = wefti_in(c->n, i);
            if (done[i] || !desc) continue;
            if (next < 0 || weft_desc_bytes(desc) > weft_desc_bytes(wefti_in(c->n, next))) next = i;
        }
        if (next < 0) break;
        done[next] = true;
        for (const wefti_version *v = ctx->version[c->n->in[next]]; v; v = v->next)
            if (v->value >= 0)
                suggest_layout(h, &v->layout, c->rule.in[next], wefti_in(c->n, next));
    }
    for (int o = 0; o < c->n->outputs; o++) {
        const wefti_layout *to = wanted_of(c, o);
        if (to) suggest_layout(h, to, c->rule.out[o], wefti_out(c->n, o));
    }
}

/* The device's own time. A rough rate is enough, since it only decides between equal
 * communication. */
static double own_seconds(const chooser *h, int64_t parts) {
    return h->seconds / (double)parts;
}

/* The time to complete partial sums later, unless they may leave the body partial. */
static double later_seconds(const chooser *h) {
    const wefti_lowering *c = h->c;
    const wefti_mesh *mesh = &c->context->run->p->mesh;
    double seconds = 0;
    for (int o = 0; o < c->n->outputs; o++) {
        wefti_axes partial = (c->give[o].sum | c->give[o].max) & ~c->keep;
        if (!partial || c->context->run->partial_free[c->n->out[o]] ||
            (o == 0 && c->context->result))
            continue;
        weft_desc local = wefti_layout_local(&c->give[o], mesh, wefti_out(c->n, o),
                                             c->context->run->p->mesh.first);
        for (int a = 0; a < mesh->axes; a++)
            if (partial >> a & 1)
                seconds += mesh->axis[a].link.latency +
                           (double)weft_desc_bytes(&local) * mesh->axis[a].link.seconds_per_byte *
                               (double)(mesh->axis[a].size - 1) / (double)mesh->axis[a].size;
    }
    return seconds;
}

/* The time of the communication between the pieces. */
static double exchange_seconds(const chooser *h) {
    const wefti_lowering *c = h->c;
    int64_t bytes[WEFTI_MAX_FACTORS] = {0};
    double seconds = 0;
    if (c->n->op->exchanged) c->n->op->exchanged(c, c->n, bytes);
    for (int f = 0; f < c->rule.factors; f++)
        if (bytes[f] > 0)
            seconds +=
                wefti_move_seconds(&c->context->run->p->mesh, axes_of(&c->factor[f]), bytes[f]);
    return seconds;
}

/* With room for rounding: sums in another order. */
static bool is_slower(const chooser *h, double seconds) {
    return seconds > h->best * (1 + 1e-9);
}

static weft_status weigh(chooser *h) {
    wefti_lowering *c = h->c;
    int64_t parts = 1;
    double seconds = 0;
    for (int f = 0; f < c->rule.factors; f++) {
        int64_t p = wefti_strategy_parts(c, &c->factor[f]),
                unit = c->factor[f].unit > 1 ? c->factor[f].unit : 1;
        if (p > 1 && p * unit > c->rule.factor[f].size)
            return WEFT_OK; /* some pieces would be empty */
        parts *= p;
    }
    fill_need(c);
    fill_give(c);
    /* Routes take long to find: not for what is slower in any case. */
    const double own = own_seconds(h, parts) + later_seconds(h) + exchange_seconds(h);
    for (int i = 0; i < c->n->inputs; i++) {
        const wefti_version *from;
        const wefti_route *route;
        if (c->n->in[i] < 0) continue;
        if (is_slower(h, seconds + own)) return WEFT_OK;
        WEFT_TRY(wefti_partition_route(c->context->run, c->n->in[i], &c->need[i], &from, &route));
        if (route) seconds += route->seconds; /* open parameters take the required layout */
    }
    for (int o = 0; o < c->n->outputs; o++) {
        const wefti_layout *to = wanted_of(c, o);
        if (!to) continue;
        if (is_slower(h, seconds + own)) return WEFT_OK;
        const wefti_route *route;
        wefti_layout target = *to;
        if (c->context->run->partial_free[c->n->out[o]] && to != c->context->result) {
            wefti_axes split = wefti_layout_split_axes(&target);
            target.sum = c->give[o].sum & ~split;
            target.max = c->give[o].max & ~split;
        }
        WEFT_TRY(wefti_route_find(c->context->run->p->routes, &c->context->run->p->mesh,
                                  wefti_out(c->n, o), &c->give[o], &target, 0, &route));
        seconds += route->seconds;
    }
    seconds += own;
    if (seconds >= h->best) return WEFT_OK;
    h->best = seconds;
    memcpy(h->best_factor, c->factor, sizeof h->best_factor);
    return WEFT_OK;
}

/* Sorts the axes of a factor: first in the order in which an operand has them, then in the mesh's
 * order. */
static void sort_axes(const chooser *h, int f) {
    wefti_dim_split *s = &h->c->factor[f], sorted = {.unit = s->unit};
    for (int k = 0; k < h->seen[f].count; k++)
        for (int j = 0; j < s->count; j++)
            if (s->axis[j] == h->seen[f].axis[k]) sorted.axis[sorted.count++] = s->axis[j];
    for (int j = 0; j < s->count; j++) {
        bool there = false;
        for (int k = 0; k < sorted.count; k++) there |= sorted.axis[k] == s->axis[j];
        if (!there) sorted.axis[sorted.count++] = s->axis[j];
    }
    *s = sorted;
}

static weft_status try_axis(chooser *h, int at) {
    wefti_lowering *c = h->c;
    if (at == h->count) {
        for (int f = 0; f < c->rule.factors; f++)
            if (!h->given[f].count) sort_axes(h, f);
        return weigh(h);
    }
    const choice *x = &h->choices[at];
    for (int k = 0; k <= x->count; k++) {
        wefti_dim_split before[WEFTI_MAX_FACTORS];
        memcpy(before, c->factor, sizeof before);
        if (k < x->count) {
            wefti_dim_split *s = &c->factor[x->factor[k]];
            s->axis[s->count++] = (int8_t)x->axis;
            if (x->unit[k] > s->unit) s->unit = x->unit[k];
        }
        WEFT_TRY(try_axis(h, at + 1));
        memcpy(c->factor, before, sizeof before);
    }
    return WEFT_OK;
}

/* The axes over which all float operands are already partial sums, if the op is linear in all of
 * them together. */
static wefti_axes common_partial(const wefti_lowering *c) {
    if (!(c->n->op->flags & WEFTI_OP_LINEAR)) return 0;
    wefti_axes common = ~0u;
    bool any = false;
    for (int o = 0; o < c->n->outputs; o++) /* a cast to integers is not linear */
        if (!is_float(wefti_out(c->n, o))) return 0;
    for (int i = 0; i < c->n->inputs; i++) {
        if (c->n->in[i] < 0 || !is_float(wefti_in(c->n, i))) continue;
        const wefti_version *v = c->context->run->version[c->n->in[i]];
        common &= v && v->value >= 0 ? v->layout.sum : 0;
        any = true;
    }
    return any ? common : 0;
}

bool wefti_partition_guided(const weft_node *n, const wefti_strategy *s) {
    return s && n->gradient && !s->op;
}

/* Chooses the axes that the plan leaves open, after its own choices are made. */
static weft_status choose_others(chooser *h, wefti_axes said) {
    wefti_lowering *c = h->c;
    h->best = INFINITY;
    memcpy(h->given, c->factor, sizeof h->given);
    memcpy(h->best_factor, c->factor, sizeof h->best_factor);
    c->keep = common_partial(c) & ~said;
    h->fixed = said | c->keep;
    if (c->context->run->p->plan->mode != WEFT_PARALLEL_MANUAL) suggest_all(h);
    WEFT_TRY(try_axis(h, 0));
    memcpy(c->factor, h->best_factor, sizeof h->best_factor);
    return WEFT_OK;
}

/* ---- the choice of axes for cuts ---- */

typedef struct cutter {
    const chooser *fresh; /* before any choice */
    const wefti_strategy *strategy;
    const wefti_cut_list *list;
    int ways;
    double best;
    wefti_dim_split best_factor[WEFTI_MAX_FACTORS];
    wefti_axes best_keep;
} cutter;

/* Tries one assignment of axes to the cuts. The first of equal assignments wins: a cost that is
 * lower only by rounding does not count as lower. */
static weft_status try_cuts(void *context, const wefti_dim_split *splits) {
    cutter *x = context;
    chooser h = *x->fresh;
    wefti_lowering *c = h.c;
    wefti_axes said = 0;
    memset(c->factor, 0, sizeof c->factor);
    for (int k = 0; k < x->list->count; k++)
        WEFT_TRY(wefti_strategy_take(c, x->strategy, x->list->factor[k], &splits[k],
                                     x->list->what[k], &said));
    WEFT_TRY(choose_others(&h, said));
    if (x->ways++ && !(h.best < x->best * (1 - 1e-9))) return WEFT_OK;
    x->best = h.best;
    x->best_keep = c->keep;
    memcpy(x->best_factor, c->factor, sizeof x->best_factor);
    return WEFT_OK;
}

static weft_status choose_for_cuts(const chooser *fresh, const wefti_strategy *s) {
    wefti_cut_list list = {0};
    cutter x = {.fresh = fresh, .strategy = s, .list = &list};
    wefti_lowering *c = fresh->c;
    int failed = -1;
    WEFT_TRY(wefti_strategy_list_cuts(c, s, &list));
    for (int k = 0; k < list.count; k++) c->context->closed[list.factor[k]] = true;
    weft_status status =
        wefti_cut_each(&c->context->run->p->mesh, list.count, list.cuts, try_cuts, &x, &failed);
    if (status < 0 && failed >= 0) {
        char message[192];
        (void)snprintf(message, sizeof message, "%.180s", weft_error_message());
        return wefti_strategy_refuse(c, s, list.what[failed], message);
    }
    memcpy(c->factor, x.best_factor, sizeof c->factor);
    c->keep = x.best_keep;
    return status;
}

weft_status wefti_partition_choose(wefti_lowering *c, const wefti_strategy *strategy) {
    wefti_axes said = 0;
    chooser h = {.c = c, .seconds = wefti_node_seconds(c->n, &c->context->run->p->plan->rates)};
    wefti_rule_begin(&c->rule);
    if (c->n->op->split) WEFT_TRY(c->n->op->split(c->n, &c->rule));
    bool guided = wefti_partition_guided(c->n, strategy);
    if (guided) wefti_strategy_take_guidance(c, strategy, &said);
    if (strategy && !guided && strategy->cuts) {
        WEFT_TRY(choose_for_cuts(&h, strategy));
    } else {
        if (strategy && !guided) WEFT_TRY(wefti_strategy_take_splits(c, strategy, &said));
        WEFT_TRY(choose_others(&h, said));
    }
    fill_need(c);
    fill_give(c);
    return WEFT_OK;
}
