/* Applies the strategies that a plan states for a node: axes of factors, numbers of parts, and what
 * a strategy of an op means for the op's gradients. A strategy that does not fit is refused, with
 * all ways in which the node can be split. */
#include "partition/strategy.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* ---- factors ---- */

bool wefti_strategy_splittable(const wefti_lowering *c, int f) {
    wefti_factor_kind kind = c->rule.factor[f].kind;
    if (kind == WEFTI_FACTOR_FREE || kind == WEFTI_FACTOR_SUM || kind == WEFTI_FACTOR_MAX)
        return true;
    return kind != WEFTI_FACTOR_WHOLE && c->n->op->lower && (c->n->op->lowers >> kind & 1);
}

/* Elements of a dimension for each unit of its factor; 1 if both are split on their own (spatial
 * dimensions). */
int64_t wefti_strategy_unit(const wefti_lowering *c, int f, int64_t size) {
    int64_t whole = c->rule.factor[f].size;
    if (c->rule.factor[f].kind == WEFTI_FACTOR_HALO || whole == 0) return 1;
    return size % whole == 0 ? size / whole : 1;
}

int64_t wefti_strategy_parts(const wefti_lowering *c, const wefti_dim_split *s) {
    int64_t parts = 1;
    for (int k = 0; k < s->count; k++) parts *= c->context->run->p->mesh.axis[s->axis[k]].size;
    return parts;
}

/* ---- axes of factors ---- */

static weft_status factor_words(const wefti_lowering *c, wefti_text *t) {
    bool any = false;
    for (int f = 0; f < c->rule.factors; f++) {
        if (!wefti_strategy_splittable(c, f)) continue;
        wefti_text_add(t, "%s%s (%lld)", any ? ", " : "", c->rule.factor[f].name,
                       (long long)c->rule.factor[f].size);
        any = true;
    }
    if (!any) wefti_text_add(t, "none");
    return WEFT_OK;
}

weft_status wefti_strategy_refuse(const wefti_lowering *c, const wefti_strategy *s,
                                  const char *what, const char *why) {
    wefti_text t = {0};
    for (int i = 0; i < c->n->inputs; i++)
        wefti_text_add(&t, "%s%s", i ? ", " : "",
                       wefti_in(c->n, i) ? wefti_desc_text(wefti_in(c->n, i)).text : "-");
    for (int o = 0; o < c->n->outputs; o++)
        wefti_text_add(&t, "%s%s",
                       o              ? ", "
                       : c->n->inputs ? "; results are "
                                      : "none; results are ",
                       wefti_desc_text(wefti_out(c->n, o)).text);
    wefti_text_add(&t, "; it can be split by ");
    WEFT_TRY(factor_words(c, &t));
    char *text = wefti_text_take(&t);
    weft_status status = WEFT_RAISE(
        WEFT_E_LAYOUT, "%s%sthe strategy '%.100s' says %s: %s; operands are %s",
        s->source ? s->source : "", s->source ? ": " : "", s->match, what, why, text ? text : "");
    wefti_free(text);
    return status;
}

/* Finds the factor of "n0", "in0.1", "out0.2", or "1" (a dimension of input 0). -1: no such factor;
 * -2: no such dimension, or a dimension of size 1. */
static int find_factor(const wefti_lowering *c, const char *what) {
    for (int f = 0; f < c->rule.factors; f++)
        if (!strcmp(c->rule.factor[f].name, what)) return f;
    int operand = 0, d = 0, used = 0;
    bool output = false;
    size_t length = strlen(what);
    if (sscanf(what, "in%d.%d%n", &operand, &d, &used) == 2 && (size_t)used == length) {
    } else if (sscanf(what, "out%d.%d%n", &operand, &d, &used) == 2 && (size_t)used == length) {
        output = true;
    } else if (operand = 0, sscanf(what, "%d%n", &d, &used) != 1 || (size_t)used != length) {
        return -1;
    }
    if (operand < 0 || operand >= (output ? c->n->outputs : c->n->inputs)) return -2;
    const weft_desc *desc = output ? wefti_out(c->n, operand) : wefti_in(c->n, operand);
    if (!desc || d < 0 || d >= desc->rank) return -2;
    int f = output ? c->rule.out[operand][d] : c->rule.in[operand][d];
    return f < 0 ? -2 : f;
}

weft_status wefti_strategy_take(wefti_lowering *c, const wefti_strategy *s, int f,
                                const wefti_dim_split *split, const char *what, wefti_axes *used) {
    char why[160];
    if (!wefti_strategy_splittable(c, f))
        return wefti_strategy_refuse(c, s, what, "this dimension must be whole");
    if (c->factor[f].count && split->count) {
        (void)snprintf(why, sizeof why, "it is %s, which the strategy splits already; say it once",
                       c->rule.factor[f].name);
        return wefti_strategy_refuse(c, s, what, why);
    }
    for (int k = 0; k < split->count; k++) {
        wefti_axes bit = 1u << split->axis[k];
        if (*used & bit) {
            (void)snprintf(why, sizeof why, "the axis '%s' splits another dimension already",
                           c->context->run->p->mesh.axis[split->axis[k]].name);
            return wefti_strategy_refuse(c, s, what, why);
        }
        *used |= bit;
    }
    if (wefti_strategy_parts(c, split) > c->rule.factor[f].size && c->rule.factor[f].size > 0) {
        (void)snprintf(why, sizeof why, "%lld elements cannot be split into %lld parts",
                       (long long)c->rule.factor[f].size,
                       (long long)wefti_strategy_parts(c, split));
        return wefti_strategy_refuse(c, s, what, why);
    }
    c->factor[f] = *split;
    return WEFT_OK;
}

static weft_status miss(const wefti_lowering *c, const wefti_strategy *s) {
    const char **missed = &c->context->run->p->missed[s - c->context->run->p->plan->strategies];
    wefti_text t = {0};
    if (*missed) return WEFT_OK;
    wefti_text_add(&t, "%s:%s can be split by ", c->context->label, c->context->op);
    WEFT_TRY(factor_words(c, &t));
    char *text = wefti_text_take(&t);
    *missed = text ? wefti_arena_strdup(c->context->run->p->arena, text) : NULL;
    wefti_free(text);
    WEFT_REQUIRE(*missed, WEFT_E_NOMEM, "no memory to partition a cell");
    return WEFT_OK;
}

weft_status wefti_strategy_take_splits(wefti_lowering *c, const wefti_strategy *s,
                                       wefti_axes *used) {
    bool exact = s->op != NULL; /* the strategy names the op: all of it must apply */
    for (int32_t k = 0; k < s->split_count; k++) {
        const wefti_split *x = &s->splits[k];
        int f = find_factor(c, x->what);
        char what[64];
        (void)snprintf(what, sizeof what, "%s", x->what);
        if (f < 0 && !exact) {
            WEFT_TRY(miss(c, s));
            continue;
        }
        if (f < 0)
            return wefti_strategy_refuse(c, s, what,
                                         f == -1 ? "it has no such factor"
                                                 : "there is no such dimension, or its size is 1");
        wefti_dim_split split = {.count = x->count};
        for (int a = 0; a < x->count; a++) {
            if (x->axis[a] >= c->context->run->p->mesh.axes)
                return wefti_strategy_refuse(c, s, what, "the axis is not in the mesh");
            split.axis[a] = x->axis[a];
        }
        WEFT_TRY(wefti_strategy_take(c, s, f, &split, what, used));
        if (k < 64)
            c->context->run->p->applied[s - c->context->run->p->plan->strategies] |= (uint64_t)1
                                                                                     << k;
    }
    return WEFT_OK;
}

/* ---- numbers of parts ---- */

static weft_status add_cut(const wefti_lowering *c, const wefti_strategy *s, wefti_cut_list *list,
                           int f, int64_t cuts, const char *what) {
    if (cuts == 1 && (f < 0 || !wefti_strategy_splittable(c, f))) return WEFT_OK;
    if (f < 0) return wefti_strategy_refuse(c, s, what, "this dimension cannot be split");
    if (!wefti_strategy_splittable(c, f))
        return wefti_strategy_refuse(c, s, what, "this dimension must be whole");
    for (int k = 0; k < list->count; k++) {
        if (list->factor[k] != f) continue;
        if (list->cuts[k] == cuts) return WEFT_OK;
        return wefti_strategy_refuse(c, s, what,
                                     "it differs from the cuts of the same dimension elsewhere");
    }
    list->factor[list->count] = f;
    list->cuts[list->count] = cuts;
    (void)snprintf(list->what[list->count++], sizeof *list->what, "%s", what);
    return WEFT_OK;
}

/* Lists the cuts: for each input in turn, one number per dimension. */
weft_status wefti_strategy_list_cuts(const wefti_lowering *c, const wefti_strategy *s,
                                     wefti_cut_list *list) {
    int64_t at = 0;
    char why[192], what[64];
    int present = 0;
    for (int i = 0; i < c->n->inputs; i++) present += wefti_in(c->n, i) != NULL;
    if (s->cut_inputs > present) {
        (void)snprintf(why, sizeof why, "it names %d inputs, there are %d", s->cut_inputs, present);
        return wefti_strategy_refuse(c, s, "cuts", why);
    }
    if (s->cut_inputs < c->n->op->min_inputs) {
        (void)snprintf(why, sizeof why,
                       "it names %d input%s, but the op has %d%s: give each its own", s->cut_inputs,
                       s->cut_inputs == 1 ? "" : "s", present,
                       present > c->n->op->min_inputs ? ", not all of which may be left out" : "");
        return wefti_strategy_refuse(c, s, "cuts", why);
    }
    for (int32_t i = 0; i < s->cut_inputs; i++) {
        const weft_desc *desc = wefti_in(c->n, i);
        if (!desc || desc->rank != s->cut_ranks[i]) {
            (void)snprintf(why, sizeof why, "it has %d cuts for input %d, which is %s",
                           s->cut_ranks[i], i, desc ? wefti_desc_text(desc).text : "absent");
            return wefti_strategy_refuse(c, s, "cuts", why);
        }
        for (int d = 0; d < desc->rank; d++) {
            int64_t cuts = s->cuts[at++];
            (void)snprintf(what, sizeof what, "%lld cuts of dimension %d of input %d",
                           (long long)cuts, d, i);
            WEFT_TRY(add_cut(c, s, list, c->rule.in[i][d], cuts, what));
        }
    }
    return WEFT_OK;
}

/* ---- gradients ---- */

/* Whether every result, and every operand with dimensions, has the factor. Then the factor means
 * the same in the op's gradient, whichever operands a product takes. */
static bool is_everywhere(const wefti_lowering *c, int f) {
    bool all = true;
    for (int i = 0; i < c->n->inputs + c->n->outputs; i++) {
        bool input = i < c->n->inputs, has = false;
        const weft_desc *desc = input ? wefti_in(c->n, i) : wefti_out(c->n, i - c->n->inputs);
        const int8_t *dims = input ? c->rule.in[i] : c->rule.out[i - c->n->inputs];
        for (int d = 0; desc && d < desc->rank; d++) has |= dims[d] == f;
        all &= has || !desc || desc->rank == 0;
    }
    return all;
}

/* A strategy for a label is meant for the model's own ops. Gradients follow it where its factors
 * mean the same, and ignore it where it does not fit. */
void wefti_strategy_take_guidance(wefti_lowering *c, const wefti_strategy *s, wefti_axes *used) {
    bool same_names = (c->n->op->flags & WEFTI_OP_GRADIENT) != 0;
    for (int32_t k = 0; k < s->split_count; k++) {
        const wefti_split *x = &s->splits[k];
        wefti_dim_split split = {.count = x->count};
        wefti_axes axes = 0;
        int f = c->rule.factors - 1;
        while (f >= 0 && strcmp(c->rule.factor[f].name, x->what) != 0) f--;
        if (f < 0 || !wefti_strategy_splittable(c, f) || c->factor[f].count) continue;
        if (!same_names && !is_everywhere(c, f)) continue;
        bool fits = true;
        for (int a = 0; a < x->count; a++) {
            fits &=
                x->axis[a] < c->context->run->p->mesh.axes && !((axes | *used) >> x->axis[a] & 1u);
            axes |= 1u << x->axis[a];
            split.axis[a] = x->axis[a];
        }
        if (!fits || wefti_strategy_parts(c, &split) > c->rule.factor[f].size) continue;
        *used |= axes;
        c->factor[f] = split;
    }
}
