/* What each candidate of setup/movable.h frees and costs, by the programs of all classes of ranks.
 * It is an estimate: the caller builds the programs again and counts. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "cost/cost.h"
#include "setup/movable_walk.h"

enum { COPY_BLOCK = 32 << 20 }; /* bytes of a copy, at most */

weft_status wefti_movable_span(wefti_movable *m, int32_t i, int32_t first, int32_t last,
                               int64_t bytes) {
    wefti_residency_candidate *c = &m->candidates[i];
    if (!bytes || first > last) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(m->spans[i], c->span_count, m->span_cap[i]));
    m->spans[i][c->span_count++] = (wefti_residency_span){first, last, bytes};
    c->spans = m->spans[i];
    return WEFT_OK;
}

/* In blocks, as updates copy. */
double wefti_movable_copy_seconds(const wefti_movable_walk *w, int tier, bool reads,
                                  int64_t bytes) {
    const double block = bytes < COPY_BLOCK ? (double)bytes : COPY_BLOCK;
    if (bytes <= 0) return 0;
    return wefti_tier_seconds(w->costs->machine, wefti_movable_spaces[tier],
                              reads ? WEFTI_TIER_READ : WEFTI_TIER_WRITE, block, w->costs->ranks) *
           ((double)bytes / block);
}

static double both_ways(const wefti_movable_walk *w, int tier, int64_t bytes) {
    return wefti_movable_copy_seconds(w, tier, true, bytes) +
           wefti_movable_copy_seconds(w, tier, false, bytes);
}

/* Kernels of a step, behind which copies can hide. */
double wefti_movable_kernel_seconds(const wefti_movable_walk *w, const wefti_step *step) {
    double seconds = 0;
    if (step->kind != WEFTI_STEP_CALL) return 0;
    for (int32_t k = step->from; k < step->to; k++) {
        const wefti_instruction *x = &step->routine->code[k];
        if (x->node)
            seconds += wefti_node_model_seconds(w->costs->machine, step->space, x->node, &x->cost);
    }
    return seconds;
}

/* The group of a tensor that is a parameter, or a state of one; -1: of none. */
int32_t wefti_movable_group(const wefti_movable_walk *w, const wefti_tensor *t) {
    if (t->role == WEFTI_TENSOR_OPTIMIZER) t = &w->p->tensors[t->param];
    if (t->role != WEFTI_TENSOR_PARAM) return -1;
    const wefti_movable_name *p = wefti_movable_name_of(&w->m->parameters, t->name);
    return p ? p->group : -1;
}

/* The group of a piece that a rank keeps for its ward, which may be of another stage. */
static int32_t group_of_copy(const wefti_movable_walk *w, const wefti_piece *x) {
    char name[256];
    if (x->tensor >= 0) return wefti_movable_group(w, &w->p->tensors[x->tensor]);
    (void)snprintf(name, sizeof name, "%s", x->name);
    char *dot = x->role == WEFTI_TENSOR_OPTIMIZER ? strrchr(name, '.') : NULL;
    if (dot) *dot = '\0';
    const wefti_movable_name *p = wefti_movable_name_of(&w->m->parameters, name);
    return p ? p->group : -1;
}

/* Copies for a buddy are updated as the tensors are. */
static void add_copies(wefti_movable_walk *w) {
    for (int32_t i = 0; i < w->p->copy_count; i++) {
        const wefti_piece *x = &w->p->copies[i];
        const int32_t group = group_of_copy(w, x);
        const int64_t bytes = weft_desc_bytes(&x->desc);
        if (group < 0 || bytes < WEFTI_SAVED_LEAST ||
            wefti_location_space(x->home) != WEFTI_SPACE_DEVICE)
            continue;
        const int32_t c = WEFT_OFFLOAD_COPIES * w->m->groups + group;
        w->sum.bytes[c] += bytes;
        w->sum.moved[c] += 2 * bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.seconds[k][c] += both_ways(w, k, bytes);
    }
}

/* What lies in device memory all the time, and is read and written by updates. */
static weft_status add_tensors(wefti_movable_walk *w, int32_t begin) {
    const int32_t groups = w->m->groups;
    for (int32_t i = 0; i < w->p->tensor_count; i++) {
        const wefti_tensor *t = &w->p->tensors[i];
        const int32_t group = wefti_movable_group(w, t);
        if (group < 0) continue;
        if (wefti_location_space(t->home) != WEFTI_SPACE_DEVICE) {
            w->m->below[group] = w->m->below[group] || t->role == WEFTI_TENSOR_PARAM;
            continue;
        }
        const int what =
            t->role == WEFTI_TENSOR_OPTIMIZER ? WEFT_OFFLOAD_OPTIMIZER : WEFT_OFFLOAD_PARAMETERS;
        const int32_t c = what * groups + group;
        const int64_t bytes = weft_desc_bytes(&t->desc);
        if (t->rows == WEFTI_ROWS_TOUCHED) w->m->by_rows[group] = true;
        w->sum.bytes[c] += bytes;
        if (t->frozen) continue;
        w->sum.moved[c] += 2 * bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.seconds[k][c] += both_ways(w, k, bytes);
    }
    add_copies(w);
    for (int32_t c = 0; c < WEFT_OFFLOADS * groups; c++)
        WEFT_TRY(wefti_movable_span(w->m, c, begin, w->time - 1, w->sum.bytes[c]));
    return WEFT_OK;
}

static void read_parameters(wefti_movable_walk *w, const wefti_step *step) {
    const int32_t groups = w->m->groups;
    memset(w->sum.used, 0, (size_t)groups * sizeof *w->sum.used);
    for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
        memset(w->sum.reads[k], 0, (size_t)groups * sizeof **w->sum.reads);
    for (int32_t a = 0; a < step->routine->inputs; a++) {
        bool known = step->params[a] < 0;
        for (int32_t before = 0; before < a && !known; before++)
            known = step->params[before] == step->params[a];
        const int32_t group = known ? -1 : wefti_movable_group(w, &w->p->tensors[step->params[a]]);
        if (group < 0) continue;
        const int64_t bytes = weft_desc_bytes(&w->p->tensors[step->params[a]].desc);
        w->sum.used[group] += bytes;
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++)
            w->sum.reads[k][group] += wefti_movable_copy_seconds(w, k, true, bytes);
    }
}

/* Whether copies run beside kernels. */
bool wefti_movable_hides(const wefti_movable_walk *w, int tier) {
    return !wefti_tier_rates_of(w->costs->machine, wefti_movable_spaces[tier])->spends_cores;
}

/* A call reads its parameters from the tier while the call before it runs, `ahead` seconds. */
static weft_status add_call(wefti_movable_walk *w, const wefti_step *step, int32_t from,
                            int32_t now, double runs, double ahead) {
    const int32_t groups = w->m->groups;
    read_parameters(w, step);
    for (int32_t g = 0; g < groups; g++) {
        const int32_t c = WEFT_OFFLOAD_PARAMETERS * groups + g;
        WEFT_TRY(wefti_movable_span(w->m, c, from, now, -w->sum.used[g]));
        if (step->part) continue;
        w->sum.moved[c] += (int64_t)(runs * (double)w->sum.used[g]);
        for (int k = 0; k < WEFTI_RESIDENCY_TIERS; k++) {
            const double left = w->sum.reads[k][g] - (wefti_movable_hides(w, k) ? ahead : 0);
            if (left > 0) w->sum.seconds[k][c] += runs * left;
        }
    }
    return WEFT_OK;
}

/* `counts`: a step runs the program. */
static weft_status add_calls(wefti_movable_walk *w, int32_t begin, bool counts) {
    int32_t last = begin, now = begin;
    double ahead = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t k = 0; k < w->p->step_count[s]; k++, now++) {
            const wefti_step *step = &w->p->steps[s][k];
            const bool pass = step->phase == WEFTI_FORWARD || step->phase == WEFTI_BACKWARD;
            if (step->kind != WEFTI_STEP_CALL || !pass) continue;
            const double runs =
                !counts ? 0
                        : wefti_program_runs(w->p, (wefti_section)s, w->costs->microbatches) *
                              (double)wefti_program_times(w->p, (wefti_section)s, k);
            WEFT_TRY(add_call(w, step, step->part ? last + 1 : last, now, runs, ahead));
            ahead = wefti_movable_kernel_seconds(w, step);
            last = now;
        }
    return WEFT_OK;
}

/* ---- all classes ---- */

/* `kernels`: seconds of other work while the states of an update are read and written. */
static void hide_update(wefti_movable_walk *w, const wefti_step *update, double kernels) {
    const int32_t g =
        update->tensor < 0 ? -1 : wefti_movable_group(w, &w->p->tensors[update->tensor]);
    const int32_t c = WEFT_OFFLOAD_OPTIMIZER * w->m->groups + g;
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS && g >= 0; t++) {
        const double left = w->sum.seconds[t][c] - (wefti_movable_hides(w, t) ? kernels : 0);
        w->sum.seconds[t][c] = left > 0 ? left : 0;
    }
}

/* States are read and written while other updates run, and passes that come between updates. */
static void hide_updates(wefti_movable_walk *w) {
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        double passes = 0; /* since the last update */
        for (int32_t k = 0; k < w->p->step_count[s] && s != WEFTI_SECTION_NORM; k++) {
            const wefti_step *step = &w->p->steps[s][k];
            const double kernels = wefti_movable_kernel_seconds(w, step);
            if (wefti_movable_is_pass(step)) passes += kernels;
            if (step->phase != WEFTI_UPDATE) continue;
            hide_update(w, step, kernels + passes);
            passes = 0;
        }
    }
}

static void note_needs(wefti_movable_walk *w, const wefti_rank_class *c, int32_t graphs) {
    int64_t own = 0;
    for (int32_t g = 0; w->costs->programs_count && g < graphs; g++)
        own += c->programs[g]->program_bytes;
    for (int32_t g = 0; g < graphs; g++)
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            for (int32_t k = 0; k < c->programs[g]->step_count[s]; k++)
                w->m->need[w->time++] = c->programs[g]->steps[s][k].used_bytes + own;
}

/* A candidate has the most that it has on any class. */
static void keep_sums(wefti_movable_walk *w) {
    for (int32_t i = 0; i < WEFT_OFFLOADS * w->m->groups; i++) {
        wefti_residency_candidate *c = &w->m->candidates[i];
        wefti_keep_most(&c->bytes, w->sum.bytes[i]);
        wefti_keep_most(&c->moved, w->sum.moved[i]);
        for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
            if (w->sum.seconds[t][i] > c->to[t].seconds) c->to[t].seconds = w->sum.seconds[t][i];
    }
}

static weft_status clear_sums(wefti_movable_walk *w) {
    const int64_t groups = w->m->groups, candidates = WEFT_OFFLOADS * groups;
    WEFT_TRY(wefti_movable_take(w->m->arena, candidates, sizeof(int64_t), &w->sum.bytes));
    WEFT_TRY(wefti_movable_take(w->m->arena, candidates, sizeof(int64_t), &w->sum.moved));
    WEFT_TRY(wefti_movable_take(w->m->arena, groups, sizeof(int64_t), &w->sum.used));
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        WEFT_TRY(wefti_movable_take(w->m->arena, candidates, sizeof(double), &w->sum.seconds[t]));
        WEFT_TRY(wefti_movable_take(w->m->arena, groups, sizeof(double), &w->sum.reads[t]));
    }
    return WEFT_OK;
}

static weft_status add_class(wefti_movable_walk *w, const wefti_rank_class *c, int32_t graphs) {
    int32_t begin = w->time;
    w->p = c->programs[0];
    WEFT_TRY(clear_sums(w));
    note_needs(w, c, graphs);
    WEFT_TRY(add_tensors(w, begin));
    hide_updates(w);
    for (int32_t g = 0; g < graphs; g++) {
        w->p = c->programs[g];
        WEFT_TRY(add_calls(w, begin, g == 0));
        if (g == 0) WEFT_TRY(wefti_movable_saved(w, begin));
        if (g == 0) WEFT_TRY(wefti_movable_gradients(w, begin));
        begin += wefti_movable_steps(w->p);
    }
    keep_sums(w);
    return WEFT_OK;
}

/* Whether an op on the host reads the parameter: it lies there, but no entry says so. */
static bool is_hosted(const wefti_movable *m, const wefti_movable_name *x) {
    return m->below[x->group] && !m->plan->optimizer.master &&
           wefti_plan_tier(m->plan, WEFT_OFFLOAD_PARAMETERS, x->name) == WEFT_TIER_DEVICE;
}

/* A group of which the plan moves a part already stays as it is. So does a table that is updated by
 * rows: in another tier it would be updated whole, which can have another result. */
static void allow(wefti_movable *m, const wefti_movable_costs *costs) {
    for (int32_t i = 0; i < WEFT_OFFLOADS * m->groups; i++) {
        m->candidates[i].kind = i / m->groups;
        for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
            m->candidates[i].to[t].allowed = costs->allowed[t] && m->candidates[i].bytes > 0;
    }
    for (int what = 0; what < WEFT_OFFLOADS; what++) {
        const wefti_movable_names *names = wefti_movable_names_of(m, what);
        for (int32_t p = 0; p < names->count; p++) {
            const wefti_movable_name *x = &names->items[p];
            wefti_residency_candidate *c = &m->candidates[what * m->groups + x->group];
            const bool moves =
                wefti_plan_tier(m->plan, (weft_offload)what, x->name) != WEFT_TIER_DEVICE;
            const bool of_value = what == WEFT_OFFLOAD_PARAMETERS || what == WEFT_OFFLOAD_GRADIENTS;
            const bool on_host = of_value && wefti_plan_updates_on_host(m->plan, x->name);
            const bool by_rows = what != WEFT_OFFLOAD_SAVED && m->by_rows[x->group];
            for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++)
                if (moves || by_rows || (of_value && is_hosted(m, x)) ||
                    (on_host && wefti_movable_tiers[t] != WEFT_TIER_HOST) ||
                    (what == WEFT_OFFLOAD_PARAMETERS && m->plan->optimizer.master))
                    c->to[t].allowed = false;
        }
    }
}

weft_status wefti_movable_problem(wefti_movable *m, const wefti_rank_classes *classes,
                                  const wefti_movable_costs *costs, wefti_residency_problem *out) {
    wefti_movable_walk w = {.m = m, .costs = costs};
    int32_t times = 0;
    for (int32_t c = 0; c < classes->count; c++)
        for (int32_t g = 0; g < classes->graphs; g++)
            times += wefti_movable_steps(classes->classes[c].programs[g]);
    WEFT_TRY(wefti_movable_take(m->arena, times, sizeof *m->need, &m->need));
    WEFT_TRY(wefti_movable_take(m->arena, m->groups, sizeof *m->by_rows, &m->by_rows));
    WEFT_TRY(wefti_movable_take(m->arena, m->groups, sizeof *m->below, &m->below));
    for (int32_t c = 0; c < classes->count; c++)
        WEFT_TRY(add_class(&w, &classes->classes[c], classes->graphs));
    allow(m, costs);
    *out = (wefti_residency_problem){.need = m->need,
                                     .times = times,
                                     .candidates = m->candidates,
                                     .count = WEFT_OFFLOADS * m->groups};
    return WEFT_OK;
}
