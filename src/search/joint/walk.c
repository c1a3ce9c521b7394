/* Candidates of the joint search are walked with a clock. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "models/splits.h"
#include "search/joint/branch.h"
#include "search/predict/predict.h"

enum { EFFORT = 16 };

/* What a walk costs, in short programs. Each stage has a program. Its tasks grow with the
 * microbatches until they repeat each other. There are twice as many with weights' gradients apart.
 * Split sequences add rings. The numbers fit processor times of 38 walks of GPT-3 175B and Llama
 * 405B, most of them to a factor of three. */
double wefti_joint_walk_effort(const wefti_degrees *d) {
    enum { TASKS = 16, REPEATED = 64, REGIONS = 64 };
    const double unlike = d->microbatches < REPEATED ? d->microbatches : REPEATED;
    const double of_stage = (1 + unlike / TASKS) * pow(d->context, WEFTI_GUESS_CONTEXT_EFFORT) *
                            (d->schedule == WEFT_PIPELINE_ZERO_BUBBLE ? 2 : 1);
    return of_stage * d->stages + (double)d->data * d->expert * d->context * d->tensor / REGIONS;
}

bool wefti_joint_is_walked(const wefti_joint_item *x) {
    return x->kind == WEFTI_JOINT_BOUNDED || x->kind == WEFTI_JOINT_DRAFT;
}

int32_t wefti_joint_budget(const wefti_joint_branch *s) {
    return s->round;
}

double wefti_joint_now(const wefti_joint_problem *p) {
    return p->now ? p->now(p->clock) : wefti_now_s();
}

bool wefti_joint_out_of_time(const wefti_joint_branch *s) {
    const double seconds = s->j.problem->seconds;
    return seconds > 0 && wefti_joint_now(s->j.problem) - s->begin > seconds;
}

static bool stops(void *context) {
    return wefti_joint_out_of_time(context);
}

bool wefti_joint_is_over(const wefti_joint_branch *s) {
    const int32_t asked = s->j.problem->evaluations;
    return (asked && s->out->prediction && s->out->evaluations >= asked) ||
           wefti_joint_out_of_time(s);
}

void wefti_joint_begin_phase(wefti_joint_branch *s, double share) {
    s->share = share;
    s->phase_walks = s->found = s->out->evaluations;
    s->phase_spent += wefti_joint_spent(s);
}

double wefti_joint_larger_machine(const wefti_joint_branch *s) {
    return wefti_smaller(1 + s->j.devices / 1024.0, 5);
}

static double effort_of(const wefti_joint_branch *s, int32_t evaluations) {
    return wefti_joint_larger_machine(s) * evaluations * EFFORT;
}

double wefti_joint_effort_budget(const wefti_joint_branch *s) {
    return effort_of(s, wefti_joint_budget(s));
}

/* While no plan fits: what needs least memory comes first, so more effort seldom helps. */
double wefti_joint_effort_without_plan(const wefti_joint_branch *s) {
    return effort_of(s, s->j.problem->plain ? WEFTI_JOINT_ROUND / 4 : 2 * WEFTI_JOINT_ROUND);
}

double wefti_joint_spent(const wefti_joint_branch *s) {
    return s->j.effort + wefti_joint_effort_of_routes(&s->j) - s->phase_spent;
}

/* Whether the walk goes far beyond the budget. */
bool wefti_joint_is_costly(const wefti_joint_branch *s, const wefti_joint_item *x) {
    return wefti_joint_is_walked(x) && s->out->prediction &&
           wefti_joint_spent(s) + wefti_joint_walk_effort(&x->degrees) >
               WEFTI_GUESS_COSTLY * wefti_joint_effort_budget(s);
}

weft_status wefti_joint_graph_of(wefti_joint_branch *s, const wefti_degrees *d, weft_graph **graph,
                                 const wefti_optimizer_plan **optimizer) {
    const wefti_joint_source *source = &s->j.problem->source;
    const int64_t parts = (int64_t)d->microbatches * s->j.problem->settings->copies;
    return source->model(source->context, s->j.scalable ? source->batch / parts : 0, 0, graph,
                         optimizer);
}

static weft_status predict(wefti_joint_branch *s, const wefti_degrees *d, const weft_plan *plan,
                           weft_prediction **out) {
    const wefti_joint_problem *p = s->j.problem;
    weft_graph *graph;
    const wefti_optimizer_plan *optimizer;
    WEFT_TRY(wefti_joint_graph_of(s, d, &graph, &optimizer));
    const bool limited = p->seconds > 0;
    const wefti_predict_spec spec = {
        .graph = graph,
        .plan = wefti_plan_matters(plan) ? plan : NULL,
        .optimizer = optimizer,
        .prepare = wefti_prepare_anywhere(),
        .keep_gradients = !optimizer && graph->loss >= 0,
        .routes = s->j.routes,
        .options = {.machine = p->machine,
                    .microbatches = d->microbatches * p->settings->copies,
                    .stop = limited ? stops : NULL,
                    .stop_context = s,
                    .tokens = p->source.tokens,
                    .flops =
                        p->source.flops > 0
                            ? p->source.flops
                            : wefti_model_flops(graph, d->microbatches * p->settings->copies)}};
    return wefti_predict_plan(&spec, out);
}

static double bytes_of(const weft_prediction *x, int32_t *out_rank) {
    double most = 0;
    *out_rank = 0;
    for (int c = 0; c < x->class_count; c++) {
        const weft_rank_prediction *r = &x->classes[c];
        if ((double)r->peak_bytes <= most) continue;
        most = (double)r->peak_bytes;
        *out_rank = r->rank;
    }
    return most;
}

static void note_walked(wefti_joint_branch *s, const wefti_degrees *d, double bytes, int32_t rank) {
    if (s->any_walked && s->walked.bytes <= bytes) return;
    s->walked = (wefti_joint_misfit){bytes, rank, *d};
    s->any_walked = true;
}

void wefti_joint_note_bounded(wefti_joint_branch *s, const wefti_degrees *d, double bytes) {
    int at = s->misfits;
    while (at > 0 && s->bounded[at - 1].bytes > bytes) at--;
    if (at == WEFTI_JOINT_MISFITS) return;
    if (s->misfits < WEFTI_JOINT_MISFITS) s->misfits++;
    for (int i = s->misfits - 1; i > at; i--) s->bounded[i] = s->bounded[i - 1];
    s->bounded[at] = (wefti_joint_misfit){bytes, 0, *d};
}

static void take_answer(wefti_joint_branch *s, const wefti_degrees *d, weft_plan *plan,
                        weft_prediction *prediction) {
    wefti_joint_answer *a = s->out;
    weft_plan_destroy(a->plan);
    weft_prediction_free(a->prediction);
    a->plan = plan;
    a->prediction = prediction;
    a->degrees = *d;
}

/* Keeps the best of the simulated candidates in order; of equal ones the first comes first. */
static void keep_walked(wefti_joint_answer *a, const wefti_joint_walked *x) {
    int32_t at = a->walked_count;
    while (at > 0 &&
           (x->fits != a->walked[at - 1].fits ? x->fits : x->seconds < a->walked[at - 1].seconds))
        at--;
    if (at == WEFTI_JOINT_WALKED) return;
    if (a->walked_count < WEFTI_JOINT_WALKED) a->walked_count++;
    for (int32_t i = a->walked_count - 1; i > at; i--) a->walked[i] = a->walked[i - 1];
    a->walked[at] = *x;
}

static bool same_mesh(const wefti_degrees *a, const wefti_degrees *b) {
    return a->data == b->data && a->expert == b->expert && a->context == b->context &&
           a->tensor == b->tensor && a->sequence == b->sequence && a->stages == b->stages &&
           !memcmp(a->order, b->order, sizeof a->order);
}

/* Candidates that differ in schedule, level and shard only. */
bool wefti_joint_same_split(const wefti_degrees *a, const wefti_degrees *b) {
    return same_mesh(a, b) && a->microbatches == b->microbatches && a->recompute == b->recompute;
}

static bool same_plan(const wefti_degrees *a, const wefti_degrees *b) {
    return wefti_joint_same_split(a, b) && a->schedule == b->schedule && a->chunks == b->chunks &&
           a->level == b->level && a->shard == b->shard;
}

/* The factor that the guess of a candidate needs, 1: nothing is known. Other levels are less alike.
 * If a walk was more than twice as long as guessed, its mesh is slower than known, whatever the
 * number of microbatches: about half of what was missing counts for the others. */
double wefti_joint_correction_for(const wefti_joint_branch *s, const wefti_joint_item *x) {
    double factor = 1, others = 1;
    for (int64_t i = 0; i < s->correction_count; i++) {
        const wefti_joint_correction *c = &s->corrections[i];
        if (c->ratio > 2 && same_mesh(&c->degrees, &x->degrees))
            others = wefti_larger(others, 1 + WEFTI_GUESS_MISSING * c->missing / x->guess);
        if (!wefti_joint_same_split(&c->degrees, &x->degrees)) continue;
        if (c->degrees.level == x->degrees.level) return c->ratio;
        factor = factor == 1 || sqrt(c->ratio) < factor ? sqrt(c->ratio) : factor;
    }
    return factor > 1 ? factor : others;
}

/* Stages are not as alike as guesses take them, in all candidates of a mesh. */
double wefti_joint_size_for(const wefti_joint_branch *s, const wefti_joint_item *x) {
    double least = INFINITY;
    for (int64_t i = 0; i < s->size_count && !x->sized; i++)
        if (same_mesh(&s->sizes[i].degrees, &x->degrees))
            least = wefti_smaller(least, s->sizes[i].ratio);
    return isfinite(least) ? least : 1;
}

/* After a walk that did not fit. */
static weft_status note_size(wefti_joint_branch *s, const wefti_joint_item *x, double bytes) {
    if (s->out->prediction || x->sized || !(x->about > 0 && bytes > x->about)) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(s->sizes, s->size_count, s->size_cap));
    s->sizes[s->size_count++] = (wefti_joint_size){x->degrees, bytes / x->about};
    return WEFT_OK;
}

static wefti_joint_correction *known_correction(wefti_joint_branch *s, const wefti_degrees *d) {
    for (int64_t i = 0; i < s->correction_count; i++)
        if (s->corrections[i].degrees.level == d->level &&
            wefti_joint_same_split(&s->corrections[i].degrees, d))
            return &s->corrections[i];
    return NULL;
}

/* After a walk: candidates of the same split will be as much longer as guessed. */
static weft_status correct(wefti_joint_branch *s, const wefti_joint_item *x, double seconds) {
    const double ratio = x->corrected || !isfinite(x->guess) ? 1 : seconds / x->guess;
    if (ratio <= 1) return WEFT_OK;
    wefti_joint_correction *known = known_correction(s, &x->degrees);
    if (known) {
        known->ratio = wefti_smaller(known->ratio, ratio);
        known->missing = wefti_smaller(known->missing, seconds - x->guess);
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(s->corrections, s->correction_count, s->correction_cap));
    s->corrections[s->correction_count++] =
        (wefti_joint_correction){x->degrees, ratio, seconds - x->guess};
    return WEFT_OK;
}

static bool fits_host(const wefti_joint_branch *s, const weft_prediction *x) {
    const int64_t most = s->j.problem->host_bytes;
    return !most || x->host_bytes <= most;
}

/* Takes over the plan and what the simulator says of it. `bounds` NULL: none were made. */
static weft_status note_walk(wefti_joint_branch *s, const wefti_degrees *d,
                             const wefti_joint_item *bounds, weft_plan *plan, weft_prediction *x) {
    int32_t rank;
    weft_status corrected = bounds ? correct(s, bounds, x->step_seconds) : WEFT_OK;
    const double bytes = bytes_of(x, &rank);
    const bool small = bytes <= (double)s->j.limit, fits = small && fits_host(s, x);
    if (corrected >= 0 && bounds && !small) corrected = note_size(s, bounds, bytes);
    s->fits = fits;
    if (!small) note_walked(s, d, bytes, rank);
    if (small && !fits && (!s->host_least || x->host_bytes < s->host_least))
        s->host_least = x->host_bytes;
    keep_walked(s->out, &(wefti_joint_walked){*d, x->step_seconds, (int64_t)bytes, fits});
    const bool better =
        fits && (!s->out->prediction || x->step_seconds < s->out->prediction->step_seconds);
    if (better) {
        s->found = s->out->evaluations;
        take_answer(s, d, plan, x);
        s->out->own_bound_seconds = bounds ? bounds->bound : 0;
        s->out->own_bound_bytes = bounds ? bounds->bytes : 0;
    } else {
        weft_plan_destroy(plan);
        weft_prediction_free(x);
    }
    s->out->evaluations++;
    s->j.effort += wefti_joint_walk_effort(d);
    return corrected;
}

weft_status wefti_joint_parts_of(wefti_joint_branch *s, const wefti_degrees *d, int32_t **out) {
    const wefti_joint_work *work;
    *out = NULL;
    if (d->stages == 1) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    WEFT_NEW_ARRAY(*out, int32_t, wefti_joint_calls(&s->j.shape) + 1);
    (void)wefti_joint_divide(&s->j, work, d->stages * d->chunks, *out);
    return WEFT_OK;
}

bool wefti_joint_is_past(const wefti_joint_branch *s, const wefti_degrees *d) {
    for (int64_t i = 0; i < s->past_count; i++)
        if (same_plan(&s->past[i], d)) return true;
    return false;
}

weft_status wefti_joint_simulate(wefti_joint_branch *s, const wefti_degrees *d, weft_plan **plan,
                                 weft_prediction **out) {
    int32_t *part_of;
    *plan = NULL;
    *out = NULL;
    WEFT_TRY(wefti_joint_parts_of(s, d, &part_of));
    weft_status status = wefti_joint_plan(&s->j, d, part_of, plan);
    wefti_free(part_of);
    if (status >= 0) status = predict(s, d, *plan, out);
    if (status >= 0) return WEFT_OK;
    weft_plan_destroy(*plan);
    *plan = NULL;
    *out = NULL;
    return status;
}

weft_status wefti_joint_walk_candidate(wefti_joint_branch *s, const wefti_degrees *d,
                                       const wefti_joint_item *bounds) {
    weft_plan *plan;
    weft_prediction *x;
    if (wefti_joint_is_past(s, d)) return WEFT_OK;
    WEFT_TRY(WEFT_GROW(s->past, s->past_count, s->past_cap));
    s->past[s->past_count++] = *d;
    const weft_status status = wefti_joint_simulate(s, d, &plan, &x);
    if (status >= 0) return note_walk(s, d, bounds, plan, x);
    if (status != WEFT_E_STOPPED && !wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    if (status != WEFT_E_STOPPED || !bounds) return WEFT_OK;
    /* Its bound still counts. */
    wefti_joint_item open = *bounds;
    open.taken = false;
    return wefti_joint_push_item(s, open);
}

/* Models without tensor-parallel splits of their family: the dynamic search splits the ops. */
static weft_status walk_dynamic(wefti_joint_branch *s, int level) {
    const wefti_joint_problem *p = s->j.problem;
    weft_search_options o = weft_search_defaults();
    const wefti_optimizer_plan *optimizer;
    wefti_degrees d = wefti_degrees_none();
    weft_plan *settings, *plan = NULL;
    weft_prediction *x;
    weft_graph *graph;
    d.data = s->j.devices;
    d.level = level;
    d.microbatches = s->j.scalable ? 1 : p->settings->accumulate;
    if (p->fix.value[WEFTI_JOINT_MICROBATCHES] > 0)
        d.microbatches = p->fix.value[WEFTI_JOINT_MICROBATCHES];
    o.search = WEFT_SEARCH_DYNAMIC;
    o.cost.capacity = (double)s->j.limit;
    WEFT_TRY(wefti_joint_graph_of(s, &d, &graph, &optimizer));
    WEFT_TRY(wefti_plan_copy(p->settings, &settings));
    settings->links = s->j.links;
    settings->rates = s->j.rates;
    settings->accumulate = d.microbatches;
    weft_status status = weft_plan_optimizer(settings, level, settings->optimizer.threshold, 0);
    if (status >= 0) status = weft_plan_search(graph, settings, &o, &plan, NULL);
    weft_plan_destroy(settings);
    if (status >= 0) status = wefti_plan_refine(plan);
    if (status >= 0) status = predict(s, &d, plan, &x);
    if (status >= 0) return note_walk(s, &d, NULL, plan, x);
    weft_plan_destroy(plan);
    if (!wefti_joint_refuses(status) && status != WEFT_E_NOMEM && status != WEFT_E_STOPPED)
        return status;
    wefti_error_clear();
    return WEFT_OK;
}

weft_status wefti_joint_walk_splits_of_ops(wefti_joint_branch *s) {
    const wefti_joint_problem *p = s->j.problem;
    const weft_model_config *c = p->source.config;
    static const wefti_joint_dimension split[] = {WEFTI_JOINT_DATA,    WEFTI_JOINT_EXPERT,
                                                  WEFTI_JOINT_CONTEXT, WEFTI_JOINT_TENSOR,
                                                  WEFTI_JOINT_STAGES,  WEFTI_JOINT_RECOMPUTE};
    if (c && wefti_family_has_split(c->family, WEFTI_SPLIT_TENSOR)) return WEFT_OK;
    for (size_t i = 0; i < sizeof split / sizeof *split; i++)
        if (p->fix.value[split[i]] >= 0) return WEFT_OK;
    if (s->j.devices == 1 || p->settings->pipeline.stages > 1) return WEFT_OK;
    for (int level = 0; level <= 3; level += 3) {
        const int32_t fixed = p->fix.value[WEFTI_JOINT_LEVEL];
        if (fixed < 0 || fixed == level) WEFT_TRY(walk_dynamic(s, level));
    }
    return WEFT_OK;
}
