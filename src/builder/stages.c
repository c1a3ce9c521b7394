/* Decides which stage of a pipeline runs which call: as the plan says, else balanced by cost. A
 * program that shares parameters with another (validation with training) has its calls in the
 * stages of that program. */
#include <math.h>
#include <string.h>

#include "schedule/schedule.h"
#include "builder/decide.h"

/* Calls to be divided into parts. A call belongs to one part, or to any part (-1). */
typedef struct sharing {
    int32_t calls, parts;
    const double *cost;
    const int32_t *fixed;
    double *sum;  /* of each part, up to the call under consideration */
    bool *begins; /* [calls][parts]: the call is the first of this part */
    /* The largest sum within the limit, and the least above it. Any limit from `under` to just
     * below `over` has the same answer. */
    double under, over;
} sharing;

/* Whether contiguous parts in order, none of them empty, can each cost at most `limit`. Computes
 * for each call and each possible part of it the least cost of this part up to the call. If the
 * call before can be in the part before, this cost is the call's own. */
static bool fits(sharing *s, double limit) {
    s->under = 0;
    s->over = INFINITY;
    for (int32_t k = 0; k < s->calls; k++)
        for (int32_t p = s->parts - 1; p >= 0;
             p--) { /* downwards: sum[p - 1] still belongs to the call before */
            bool *begins = &s->begins[(int64_t)k * s->parts + p];
            *begins = k == 0 ? p == 0 : p > 0 && s->sum[p - 1] <= limit;
            double sum = *begins ? s->cost[k] : k ? s->sum[p] + s->cost[k] : INFINITY;
            if (s->fixed[k] >= 0 && s->fixed[k] != p) sum = INFINITY;
            if (sum > limit && sum < s->over) s->over = sum;
            if (sum <= limit && sum > s->under) s->under = sum;
            s->sum[p] = sum > limit ? INFINITY : sum;
        }
    return s->sum[s->parts - 1] <= limit;
}

/* Minimizes the largest cost of a part (the linear partition problem, by bisection on the answer,
 * which is one of the sums). Early parts take as much as the limit allows. The calls with fixed
 * parts must permit a solution. */
static void share_out(sharing *s, int32_t *stage) {
    double low = 0, high = 0;
    for (int32_t k = 0; k < s->calls; k++) high += s->cost[k];
    high *= 1 + 1e-9; /* sums in another order may round up */
    for (int round = 0; round < 60 && low < high; round++) {
        if (fits(s, (low + high) / 2))
            high = s->under;
        else
            low = s->over;
    }
    (void)fits(s, high);
    for (int32_t k = s->calls - 1, p = s->parts - 1; k >= 0; k--) {
        stage[k] = p;
        p -= s->begins[(int64_t)k * s->parts + p];
    }
}

/* ---- calls and parameters of a program that shares them ---- */

/* The virtual stage of a call, taken from the program that has the parameters. It is the stage of
 * the call with this name there. If there is none, it is the stage of a call that reads one of the
 * same parameters. Returns -1 if neither exists. A new division could separate the call from its
 * parameters. */
static int32_t shared_part(const wefti_decisions *dec, const weft_node *n) {
    const wefti_program *p = dec->spec->shared;
    for (int32_t i = 0; i < p->placed_count; i++)
        if (!p->placed[i].param && !strcmp(p->placed[i].name, n->scope)) return p->placed[i].part;
    for (int32_t i = 0; i < p->placed_count; i++)
        for (int k = 0; k < n->inputs; k++) {
            const char *name = n->in[k] < 0 ? NULL : dec->root->values[n->in[k]].name;
            if (p->placed[i].param && name && !strcmp(p->placed[i].name, name))
                return p->placed[i].part;
        }
    return -1;
}

/* Checks that shared tensors which the call reads lie on the call's devices. */
static weft_status check_shared(const wefti_decisions *dec, const wefti_call_plan *call) {
    const wefti_program *p = dec->spec->shared;
    for (int k = 0; p && k < call->node->inputs; k++) {
        const char *name = call->node->in[k] < 0 ? NULL : dec->root->values[call->node->in[k]].name;
        int32_t stage = -1, chunk;
        bool there = false;
        for (int32_t i = 0; i < p->placed_count && name && !there; i++) {
            if (!p->placed[i].param || strcmp(p->placed[i].name, name) != 0) continue;
            wefti_schedule_place(dec->spec->plan->pipeline.schedule, dec->stages, p->placed[i].part,
                                 &stage, &chunk);
            there = stage == call->stage;
        }
        WEFT_REQUIRE(there || stage < 0, WEFT_E_LAYOUT,
                     "cell '%s' is in stage %d and reads '%s', which is in stage %d",
                     call->node->scope, call->stage, name, stage);
    }
    return WEFT_OK;
}

static weft_status add_placed(wefti_decisions *dec, const char *name, int32_t part, bool param) {
    char *copy = wefti_arena_strdup(dec->arena, name);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory to build a pipeline");
    dec->placed[dec->placed_count++] = (wefti_placed){copy, part, param};
    return WEFT_OK;
}

static weft_status keep_placed(wefti_decisions *dec) {
    int64_t most = dec->g->assign_count;
    for (int32_t k = 0; k < dec->call_count; k++) most += 1 + dec->calls[k].node->inputs;
    dec->placed = wefti_arena_alloc(dec->arena, (size_t)most * sizeof *dec->placed);
    WEFT_REQUIRE(dec->placed || !most, WEFT_E_NOMEM, "no memory to build a pipeline");
    for (int32_t k = 0; k < dec->call_count; k++) {
        const weft_node *n = dec->calls[k].node;
        WEFT_TRY(add_placed(dec, n->scope, dec->calls[k].part, false));
        for (int i = 0; i < n->inputs; i++) {
            const wefti_value_info *v = n->in[i] < 0 ? NULL : &dec->root->values[n->in[i]];
            bool stays = v && (v->kind == WEFTI_VALUE_PARAM || v->kind == WEFTI_VALUE_STATE);
            if (stays) WEFT_TRY(add_placed(dec, v->name, dec->calls[k].part, true));
        }
    }
    for (int64_t i = 0; i < dec->g->assign_count; i++) { /* also states that no call reads */
        const wefti_assign *a = &dec->g->assigns[i];
        int32_t maker = wefti_call_maker(dec, a->next);
        if (maker >= 0)
            WEFT_TRY(
                add_placed(dec, dec->root->values[a->state].name, dec->calls[maker].part, true));
    }
    return WEFT_OK;
}

/* ---- the choice ---- */

static weft_status must_not_descend(const wefti_decisions *dec, int32_t k, int32_t stage,
                                    int32_t now) {
    WEFT_REQUIRE(stage >= now, WEFT_E_LAYOUT,
                 "cell '%s' is to be in stage %d, but the cell before it is in stage %d: stages "
                 "must not descend",
                 dec->calls[k].node->scope, stage, now);
    return WEFT_OK;
}

/* Takes the stages of calls from the shared program. Stages may be left out here, because the
 * parameters decide. */
static weft_status take_stages(const wefti_decisions *dec, int32_t *stage) {
    int32_t now = 0;
    for (int32_t k = 0; k < dec->call_count; k++) {
        int32_t part = shared_part(dec, dec->calls[k].node);
        stage[k] = part < 0 ? now : part;
        WEFT_TRY(must_not_descend(dec, k, stage[k], now));
        now = stage[k];
    }
    return WEFT_OK;
}

/* Checks that enough cells remain between two cells with stages named by the plan, `low` and
 * `high`: each stage needs a cell. At the start `before` and `low` are -1; at the end `k` is the
 * number of calls. */
static weft_status check_room(const wefti_decisions *dec, int32_t before, int32_t low, int32_t k,
                              int32_t high) {
    int32_t between = k - before - 1, missing = low + 1 + between;
    const char *first = before < 0 ? "" : dec->calls[before].node->scope;
    if (missing >= high) return WEFT_OK;
    WEFT_REQUIRE(before >= 0, WEFT_E_LAYOUT,
                 "stage %d has no cell: '%s' is in stage %d, with %d cells before it", missing,
                 dec->calls[k].node->scope, high, between);
    WEFT_REQUIRE(k < dec->call_count, WEFT_E_LAYOUT,
                 "stage %d has no cell: '%s' is in stage %d of 0 to %d, with %d cells behind it",
                 missing, first, low, high - 1, between);
    WEFT_FAIL(WEFT_E_LAYOUT,
              "stage %d has no cell: '%s' is in stage %d and '%s' in stage %d, with %d cells "
              "between",
              missing, first, low, dec->calls[k].node->scope, high, between);
}

static weft_status check_fixed(const wefti_decisions *dec, const int32_t *fixed, int32_t parts) {
    int32_t before = -1, now = -1;
    for (int32_t k = 0; k < dec->call_count; k++) {
        if (fixed[k] < 0) continue;
        WEFT_REQUIRE(fixed[k] < parts, WEFT_E_LAYOUT,
                     "cell '%s' is to be in stage %d, there are %d", dec->calls[k].node->scope,
                     fixed[k], parts);
        WEFT_TRY(must_not_descend(dec, k, fixed[k], now));
        WEFT_TRY(check_room(dec, before, now, k, fixed[k]));
        before = k;
        now = fixed[k];
    }
    return check_room(dec, before, now, dec->call_count, parts);
}

static weft_status choose_stages(wefti_decisions *dec, int32_t *stage) {
    const weft_plan *plan = dec->spec->plan;
    int32_t calls = dec->call_count, parts = plan->pipeline.stages * plan->pipeline.chunks, *fixed;
    double *cost;
    WEFT_REQUIRE(calls >= parts, WEFT_E_LAYOUT,
                 "the model has %d cells, too few for %d stages of at least one cell", calls,
                 parts);
    sharing s = {.calls = calls, .parts = parts};
    WEFT_TRY(wefti_new_array(dec->scratch, calls, sizeof *cost, &cost));
    WEFT_TRY(wefti_new_array(dec->scratch, calls, sizeof *fixed, &fixed));
    WEFT_TRY(wefti_new_array(dec->scratch, parts, sizeof *s.sum, &s.sum));
    WEFT_TRY(wefti_new_array(dec->scratch, (int64_t)calls * parts, sizeof *s.begins, &s.begins));
    for (int32_t k = 0; k < calls; k++) {
        const weft_node *n = dec->calls[k].node, *before = k ? dec->calls[k - 1].node : NULL;
        bool alike = before && before->callee == n->callee; /* cells in a row are often alike */
        cost[k] = alike ? cost[k - 1] : wefti_node_seconds(n, &plan->rates);
        fixed[k] = wefti_plan_stage(plan, dec->calls[k].node->scope);
    }
    WEFT_TRY(check_fixed(dec, fixed, parts));
    s.cost = cost;
    s.fixed = fixed;
    share_out(&s, stage);
    return WEFT_OK;
}

weft_status wefti_decide_stages(wefti_decisions *dec) {
    const weft_plan *plan = dec->spec->plan;
    int32_t *stage;
    if (!plan || plan->pipeline.stages <= 1) return WEFT_OK;
    dec->stages = plan->pipeline.stages;
    dec->stage = wefti_plan_stage_of_rank(plan, dec->rank);
    dec->split_backward = wefti_schedule_splits(plan->pipeline.schedule) && dec->all_microbatches;
    WEFT_TRY(wefti_new_array(dec->scratch, dec->call_count, sizeof *stage, &stage));
    WEFT_TRY(dec->spec->shared ? take_stages(dec, stage) : choose_stages(dec, stage));
    for (int32_t k = 0; k < dec->call_count; k++) {
        wefti_call_plan *call = &dec->calls[k];
        if (dec->spec->observer)
            dec->spec->observer->assign(dec->spec->observer->context, call->node->scope, stage[k]);
        call->part = stage[k];
        wefti_schedule_place(plan->pipeline.schedule, dec->stages, stage[k], &call->stage,
                             &call->chunk);
        call->mine = call->stage == dec->stage;
        WEFT_TRY(check_shared(dec, call));
    }
    return dec->layouts_only || dec->spec->shared ? WEFT_OK : keep_placed(dec);
}
