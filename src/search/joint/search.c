/* Branch and bound over the space of the joint search: see joint.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "models/splits.h"
#include "search/joint/parts.h"
#include "search/predict/predict.h"

enum { EVALUATIONS = 16, MISFITS = 6 };
static const double tolerance = 0.002;

/* A set of candidates with a bound: SPLIT stands for all schedules, levels and shards. */
typedef enum item_kind {
    ITEM_BOUNDED, /* one candidate, with its state: to be walked */
    ITEM_DRAFT,   /* one candidate, without its state */
    ITEM_SPLIT,   /* with its work */
    ITEM_DRAWN,   /* with the work of one sample */
    ITEM_COARSE   /* with neither */
} item_kind;

typedef struct item {
    double bound, bytes; /* of the step and of memory, at least */
    item_kind kind;
    int64_t number;
    wefti_degrees degrees;
} item;

/* A candidate that does not fit. */
typedef struct misfit {
    double bytes;
    int32_t rank;
    wefti_degrees degrees;
} misfit;

typedef struct joint_search {
    wefti_joint j;
    item *heap;
    int64_t count, cap, numbered;
    double ideal_forward, ideal_backward; /* of products of one sample on one device */
    double ratio;                         /* the best step may be so much longer than the bound */
    misfit walked;                        /* that needs least memory of those that were simulated */
    misfit bounded[MISFITS];              /* of the others those with the least bounds, in order */
    int misfits;
    misfit large; /* with the least activations of those without programs */
    bool any_walked, any_large;
    wefti_joint_answer *out;
    double begin;
} joint_search;

/* ---- the heap ---- */

static bool before(const item *a, const item *b) {
    if (a->bound != b->bound) return a->bound < b->bound;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->number < b->number;
}

static weft_status push_bytes(joint_search *s, item_kind kind, double bound, double bytes,
                              const wefti_degrees *d) {
    WEFT_TRY(WEFT_GROW(s->heap, s->count, s->cap));
    const item x = {bound, bytes, kind, s->numbered++, *d};
    int64_t i = s->count++;
    for (; i && before(&x, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = x;
    return WEFT_OK;
}

static weft_status push(joint_search *s, item_kind kind, double bound, const wefti_degrees *d) {
    return push_bytes(s, kind, bound, 0, d);
}

static item pop(joint_search *s) {
    const item top = s->heap[0], moved = s->heap[--s->count];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < s->count; i = child) {
        if (child + 1 < s->count && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &moved)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = moved;
    return top;
}

/* ---- coarse bounds ---- */

/* All devices compute products at the best rate, and a stage begins behind the forward passes of
 * those before it; a forward pass is at least a fifth of both. */
static double coarse_bound(const joint_search *s, const wefti_degrees *d) {
    const double batch = s->j.scalable ? (double)s->j.problem->source.batch : 1;
    double work = s->ideal_forward + s->ideal_backward;
    if (d->recompute == WEFT_RECOMPUTE_FULL) work += s->ideal_forward * 0.9; /* the head is not */
    const double even = batch * work / s->j.devices;
    if (d->stages == 1 || d->microbatches % d->stages == 0) return even;
    const double micro = even * d->stages / d->microbatches;
    const double filled = 0.2 * micro / (1 - pow(1 - 0.2 / d->microbatches, d->stages));
    return filled > even ? filled : even;
}

static weft_status find_ideal(joint_search *s) {
    if (!s->j.scalable) return WEFT_OK; /* 0 is a bound too */
    return wefti_joint_ideal(&s->j, &s->ideal_forward, &s->ideal_backward);
}

/* ---- walking a candidate ---- */

static weft_status graph_of(joint_search *s, const wefti_degrees *d, weft_graph **graph,
                            const wefti_optimizer_plan **optimizer) {
    const wefti_joint_source *source = &s->j.problem->source;
    const int64_t parts = (int64_t)d->microbatches * s->j.problem->settings->copies;
    return source->model(source->context, s->j.scalable ? source->batch / parts : 0, 0, graph,
                         optimizer);
}

static weft_status predict(joint_search *s, const wefti_degrees *d, const weft_plan *plan,
                           weft_prediction **out) {
    const wefti_joint_problem *p = s->j.problem;
    weft_graph *graph;
    const wefti_optimizer_plan *optimizer;
    WEFT_TRY(graph_of(s, d, &graph, &optimizer));
    const wefti_predict_spec spec = {
        .graph = graph,
        .plan = wefti_plan_matters(plan) ? plan : NULL,
        .optimizer = optimizer,
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
        .keep_gradients = !optimizer && graph->loss >= 0,
        .routes = s->j.routes,
        .options = {.machine = p->machine,
                    .microbatches = d->microbatches * p->settings->copies,
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

static void note_walked(joint_search *s, const wefti_degrees *d, double bytes, int32_t rank) {
    if (s->any_walked && s->walked.bytes <= bytes) return;
    s->walked = (misfit){bytes, rank, *d};
    s->any_walked = true;
}

static void note_bounded(joint_search *s, const wefti_degrees *d, double bytes) {
    int at = s->misfits;
    while (at > 0 && s->bounded[at - 1].bytes > bytes) at--;
    if (at == MISFITS) return;
    if (s->misfits < MISFITS) s->misfits++;
    for (int i = s->misfits - 1; i > at; i--) s->bounded[i] = s->bounded[i - 1];
    s->bounded[at] = (misfit){bytes, 0, *d};
}

static void take_answer(joint_search *s, const wefti_degrees *d, weft_plan *plan,
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

/* Takes over the plan. `bounds` NULL: none were made. */
static weft_status walk_plan(joint_search *s, const wefti_degrees *d, const item *bounds,
                             weft_plan *plan) {
    weft_prediction *x;
    int32_t rank;
    const weft_status status = predict(s, d, plan, &x);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    const double bytes = bytes_of(x, &rank);
    const bool fits = bytes <= (double)s->j.limit;
    if (!fits) note_walked(s, d, bytes, rank);
    keep_walked(s->out, &(wefti_joint_walked){*d, x->step_seconds, (int64_t)bytes, fits});
    const bool better =
        fits && (!s->out->prediction || x->step_seconds < s->out->prediction->step_seconds);
    if (better) {
        take_answer(s, d, plan, x);
        s->out->own_bound_seconds = bounds ? bounds->bound : 0;
        s->out->own_bound_bytes = bounds ? bounds->bytes : 0;
    } else {
        weft_plan_destroy(plan);
        weft_prediction_free(x);
    }
    s->out->evaluations++;
    return WEFT_OK;
}

static weft_status parts_of(joint_search *s, const wefti_degrees *d, int32_t **out) {
    const wefti_joint_work *work;
    *out = NULL;
    if (d->stages == 1) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    WEFT_NEW_ARRAY(*out, int32_t, wefti_joint_calls(&s->j.shape) + 1);
    (void)wefti_joint_divide(&s->j.shape, work, d->stages * d->chunks, *out);
    return WEFT_OK;
}

static weft_status walk(joint_search *s, const wefti_degrees *d, const item *bounds) {
    int32_t *part_of;
    weft_plan *plan;
    WEFT_TRY(parts_of(s, d, &part_of));
    weft_status status = wefti_joint_plan(&s->j, d, part_of, &plan);
    wefti_free(part_of);
    if (status >= 0) status = walk_plan(s, d, bounds, plan);
    if (!wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    return WEFT_OK;
}

/* ---- branching ---- */

static double best(const joint_search *s) {
    return s->out->prediction ? s->out->prediction->step_seconds : INFINITY;
}

static weft_status push_coarse(void *context, const wefti_degrees *d) {
    joint_search *s = context;
    return push(s, ITEM_COARSE, coarse_bound(s, d), d);
}

static weft_status push_draft(void *context, const wefti_degrees *d) {
    joint_search *s = context;
    const wefti_joint_work *work;
    wefti_joint_bound b;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    WEFT_TRY(wefti_joint_bound_of(&s->j, d, work, NULL, &b));
    if (!isfinite(b.seconds)) return WEFT_OK;
    s->out->candidates++;
    return push(s, ITEM_DRAFT, b.seconds, d);
}

/* The work of all microbatches, divided among the stages in equal parts. */
static double even_bound(const joint_search *s, const wefti_degrees *d,
                         const wefti_joint_work *work) {
    const wefti_joint_shape *shape = &s->j.shape;
    double sum = 0;
    for (int32_t k = 0; k < shape->calls; k++)
        sum += (work->calls[k].forward + work->calls[k].backward) *
               (k == shape->middle ? shape->copies : 1);
    return WEFTI_JOINT_ROUNDING * sum * d->microbatches / d->stages;
}

static weft_status expand(joint_search *s, const item *x) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    if (!work->legal) return WEFT_OK;
    const wefti_joint_visit visit = {s, push_draft};
    return wefti_joint_schedules(&s->j, &x->degrees, &visit);
}

static weft_status refine(joint_search *s, const item *x) {
    const wefti_joint_work *work;
    const wefti_joint_state *state;
    wefti_joint_bound b;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    WEFT_TRY(wefti_joint_state_find(&s->j, &x->degrees, &state));
    if (!state->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of(&s->j, &x->degrees, work, state, &b));
    s->out->bounded++;
    if (b.bytes > (double)s->j.limit) {
        note_bounded(s, &x->degrees, b.bytes);
        return WEFT_OK;
    }
    return push_bytes(s, ITEM_BOUNDED, b.seconds > x->bound ? b.seconds : x->bound, b.bytes,
                      &x->degrees);
}

/* What one sample tells: the least seconds of a step, and the least bytes of activations on some
 * stage, of any number of samples. It saves programs of splits that are slow and of microbatches
 * that are far too large. */
typedef struct sample_bound {
    bool legal;
    double seconds, bytes;
} sample_bound;

static weft_status bound_of_sample(joint_search *s, const wefti_degrees *d, sample_bound *out) {
    const wefti_joint_shape *shape = &s->j.shape;
    const int64_t batch = s->j.problem->source.batch;
    wefti_degrees one = *d;
    const wefti_joint_work *work;
    double bytes = 0, seconds = 0, shares = 0;
    *out = (sample_bound){.legal = true};
    if (!s->j.scalable || batch % d->expert || batch % ((int64_t)d->data * d->expert))
        return WEFT_OK;
    one.data = 1;
    one.microbatches = (int32_t)(batch / d->expert);
    if (!wefti_joint_outermost(d)) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, &one, &work));
    out->legal = work->legal;
    for (int32_t k = 0; k < shape->calls && work->legal; k++) {
        const double times = k == shape->middle ? shape->copies : 1;
        bytes += times * (double)(work->calls[k].saved + work->calls[k].kept);
        seconds += times * work->calls[k].least;
    }
    const double samples = (double)batch / d->data / d->expert; /* of a replica in a step */
    const double micro = samples / d->microbatches / s->j.problem->settings->copies;
    for (int32_t stage = 0; stage < d->stages; stage++)
        shares += 1.0 / (d->stages - stage < d->microbatches ? d->stages - stage : d->microbatches);
    if (micro > 1) out->bytes = 0.9 * bytes * micro / shares; /* little is the same for any size */
    out->seconds = WEFTI_JOINT_ROUNDING * seconds * samples / d->stages;
    return WEFT_OK;
}

/* The next mode of recomputation takes no less time than this one. */
static weft_status push_more_recomputation(joint_search *s, const item *x, double bound) {
    wefti_degrees d = x->degrees;
    if (s->j.problem->fix.value[WEFTI_JOINT_RECOMPUTE] >= 0) return WEFT_OK;
    if (d.recompute == WEFT_RECOMPUTE_FULL) return WEFT_OK;
    d.recompute = (weft_recompute)((int)d.recompute + 1);
    const double coarse = coarse_bound(s, &d);
    return push(s, ITEM_COARSE, coarse > bound ? coarse : bound, &d);
}

/* Each level is at least as slow as the one before it. */
static bool is_slower_outwards(const wefti_machine_model *m) {
    for (int32_t l = 1; l < m->level_count; l++)
        if (m->level[l].latency_seconds.value < m->level[l - 1].latency_seconds.value ||
            wefti_model_byte_seconds(m, l, 1) < wefti_model_byte_seconds(m, l - 1, 1) ||
            m->level[l].reduces || m->level[l].all_reduce.count)
            return false;
    return true;
}

/* With replicas as the inner axis, the other axes lie on the same links as with replicas as the
 * outer one, or on links further out. So the work of that order, which takes fewer programs, is a
 * bound. */
static weft_status bound_of_order(joint_search *s, const wefti_degrees *d, sample_bound *out) {
    wefti_degrees usual = *d;
    const wefti_joint_work *work;
    if (wefti_joint_outermost(d) || !is_slower_outwards(s->j.problem->machine)) return WEFT_OK;
    memset(usual.order, 0, sizeof usual.order);
    for (int a = 0; a < 4; a++) usual.order[a] = (int8_t)a;
    sample_bound b;
    WEFT_TRY(bound_of_sample(s, &usual, &b));
    if (b.seconds > out->seconds) out->seconds = b.seconds;
    if (b.bytes > out->bytes) out->bytes = b.bytes;
    if (!b.legal || b.bytes > (double)s->j.limit) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, &usual, &work));
    const double even = work->legal ? even_bound(s, &usual, work) : 0;
    if (even > out->seconds) out->seconds = even;
    return WEFT_OK;
}

static weft_status draw(joint_search *s, const item *x) {
    sample_bound b;
    WEFT_TRY(bound_of_sample(s, &x->degrees, &b));
    WEFT_TRY(bound_of_order(s, &x->degrees, &b));
    const double bound = b.seconds > x->bound ? b.seconds : x->bound;
    WEFT_TRY(push_more_recomputation(s, x, bound));
    if (!b.legal) return WEFT_OK;
    if (b.bytes <= (double)s->j.limit) return push(s, ITEM_DRAWN, bound, &x->degrees);
    /* Activations alone: less than other bounds, so it counts only if there are no others. */
    if (!s->any_large || b.bytes < s->large.bytes) s->large = (misfit){b.bytes, 0, x->degrees};
    s->any_large = true;
    return WEFT_OK;
}

static weft_status find_work(joint_search *s, const item *x) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    if (!work->legal) return WEFT_OK;
    const double even = even_bound(s, &x->degrees, work);
    return push(s, ITEM_SPLIT, even > x->bound ? even : x->bound, &x->degrees);
}

static weft_status take(joint_search *s, const item *x) {
    switch (x->kind) {
    case ITEM_COARSE:
        return draw(s, x);
    case ITEM_DRAWN:
        return find_work(s, x);
    case ITEM_SPLIT:
        return expand(s, x);
    case ITEM_DRAFT:
        return refine(s, x);
    default:
        return walk(s, &x->degrees, x);
    }
}

static bool over_budget(const joint_search *s) {
    const wefti_joint_problem *p = s->j.problem;
    const int32_t budget = p->evaluations ? p->evaluations : EVALUATIONS;
    if (s->out->evaluations >= budget && s->out->prediction) return true;
    /* Candidates that do not fit count too, but the first plan that fits may take longer. */
    return s->out->evaluations >= 4 * budget;
}

static bool out_of_time(joint_search *s) {
    const double seconds = s->j.problem->seconds;
    if (!(seconds > 0) || !s->out->prediction) return false;
    s->out->cut = wefti_now_s() - s->begin > seconds;
    return s->out->cut;
}

/* Models without tensor-parallel splits of their family: the dynamic search splits the ops. */
static weft_status walk_dynamic(joint_search *s, int level) {
    const wefti_joint_problem *p = s->j.problem;
    weft_search_options o = weft_search_defaults();
    const wefti_optimizer_plan *optimizer;
    wefti_degrees d = wefti_degrees_none();
    weft_plan *settings, *plan = NULL;
    weft_graph *graph;
    d.data = s->j.devices;
    d.level = level;
    d.microbatches = s->j.scalable ? 1 : p->settings->accumulate;
    if (p->fix.value[WEFTI_JOINT_MICROBATCHES] > 0)
        d.microbatches = p->fix.value[WEFTI_JOINT_MICROBATCHES];
    o.search = WEFT_SEARCH_DYNAMIC;
    o.cost.capacity = (double)s->j.limit;
    WEFT_TRY(graph_of(s, &d, &graph, &optimizer));
    WEFT_TRY(wefti_plan_copy(p->settings, &settings));
    settings->links = s->j.links;
    settings->rates = s->j.rates;
    settings->accumulate = d.microbatches;
    weft_status status = weft_plan_optimizer(settings, level, settings->optimizer.threshold, 0);
    if (status >= 0) status = weft_plan_search(graph, settings, &o, &plan, NULL);
    weft_plan_destroy(settings);
    if (status >= 0) status = wefti_plan_refine(plan);
    if (status >= 0) return walk_plan(s, &d, NULL, plan);
    weft_plan_destroy(plan);
    if (!wefti_joint_refuses(status) && status != WEFT_E_NOMEM) return status;
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status walk_splits_of_ops(joint_search *s) {
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

static weft_status branch_and_bound(joint_search *s) {
    const wefti_joint_visit visit = {s, push_coarse};
    WEFT_TRY(walk_splits_of_ops(s));
    WEFT_TRY(wefti_joint_splits(&s->j, &visit));
    double least = INFINITY;
    while (s->count) {
        least = s->heap[0].bound;
        if (least * s->ratio >= best(s)) break;
        if (over_budget(s) || out_of_time(s)) break;
        const item x = pop(s);
        WEFT_TRY(take(s, &x));
        least = INFINITY;
    }
    s->out->lower_bound_seconds = least < best(s) ? least : best(s);
    s->out->exhausted = !s->count || least * s->ratio >= best(s);
    return WEFT_OK;
}

/* ---- the answer ---- */

/* Whether some plan fits the changed problem; WEFT_OK also if none does. */
static weft_status would_fit(const wefti_joint_problem *changed, bool *out) {
    wefti_joint_problem p = *changed;
    wefti_joint_answer answer;
    p.evaluations = 1;
    p.plain = true;
    /* The modes that need least memory are enough to show that something fits. */
    if (p.fix.value[WEFTI_JOINT_RECOMPUTE] < 0)
        p.fix.value[WEFTI_JOINT_RECOMPUTE] = (int32_t)WEFT_RECOMPUTE_FULL;
    if (p.fix.value[WEFTI_JOINT_LEVEL] < 0) p.fix.value[WEFTI_JOINT_LEVEL] = 3;
    if (p.fix.value[WEFTI_JOINT_CONTEXT] < 0) p.fix.value[WEFTI_JOINT_CONTEXT] = 1;
    const weft_status status = wefti_joint_search(&p, &answer);
    *out = status >= 0;
    if (*out) wefti_joint_answer_free(&answer);
    if (status != WEFT_E_NOMEM && !wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status without_constraint(const wefti_joint_problem *p, bool *found, char out[128]) {
    static const wefti_joint_dimension first[] = {WEFTI_JOINT_LEVEL, WEFTI_JOINT_RECOMPUTE,
                                                  WEFTI_JOINT_MICROBATCHES};
    for (int i = 0; i < 3 + WEFTI_JOINT_COUNT && !*found; i++) {
        const int d = i < 3 ? (int)first[i] : i - 3;
        wefti_joint_problem changed = *p;
        if (p->fix.value[d] < 0) continue;
        changed.fix.value[d] = -1;
        WEFT_TRY(would_fit(&changed, found));
        if (*found)
            snprintf(out, 128, "without the constraint of %s a plan fits",
                     wefti_joint_dimension_text((wefti_joint_dimension)d));
    }
    return WEFT_OK;
}

static weft_status with_more_devices(const wefti_joint_problem *p, bool *found, char out[128]) {
    wefti_machine_model larger = *p->machine;
    weft_plan *settings;
    weft_status status = WEFT_OK;
    if (p->settings->mesh_given || p->settings->strategy_count) return WEFT_OK;
    for (int32_t times = 2; times <= 8 && !*found && status >= 0; times *= 2) {
        wefti_joint_problem changed = *p;
        if (p->settings->devices > (1 << 16) / times) break;
        if (p->machine->hosts) larger.hosts = p->machine->hosts * times;
        WEFT_TRY(weft_plan_create(p->settings->devices * times, &settings));
        changed.settings = settings;
        changed.machine = &larger;
        status = would_fit(&changed, found);
        weft_plan_destroy(settings);
        if (*found) snprintf(out, 128, "with %d devices a plan fits", p->settings->devices * times);
    }
    return status;
}

/* The smallest change with which a plan fits, as a sentence. */
static weft_status advise(const wefti_joint_problem *p, char out[128]) {
    bool found = false;
    snprintf(out, 128, "the model needs more memory, or a smaller size");
    if (p->plain) return WEFT_OK;
    WEFT_TRY(without_constraint(p, &found, out));
    return found ? WEFT_OK : with_more_devices(p, &found, out);
}

static weft_status no_plan(joint_search *s) {
    const misfit *m = &s->walked;
    char needs[32], more[32], has[32], advice[128];
    if (!s->misfits && s->any_large) s->bounded[s->misfits++] = s->large;
    for (int i = 0; i < s->misfits && !s->j.problem->plain; i++)
        WEFT_TRY(walk(s, &s->bounded[i].degrees, NULL));
    if (!s->any_walked && s->misfits) s->walked = s->bounded[0];
    WEFT_REQUIRE(s->any_walked || s->misfits, WEFT_E_ARG,
                 "no plan for %d devices meets the constraints: %lld candidates suit neither the "
                 "model nor its batch",
                 s->j.devices, (long long)s->numbered);
    WEFT_TRY(advise(s->j.problem, advice));
    wefti_text text = {0};
    wefti_joint_degrees_text(&m->degrees, &text);
    char *degrees = wefti_text_take(&text);
    WEFT_REQUIRE(degrees, WEFT_E_NOMEM, "no memory for a message");
    const weft_status status = WEFT_RAISE(
        WEFT_E_NOMEM,
        "no plan fits: the one that needs least memory (%s) needs %s on rank %d, %s (%lld bytes) "
        "more than a device's %s; %s",
        degrees, wefti_bytes_text((int64_t)m->bytes, needs), m->rank,
        wefti_bytes_text((int64_t)m->bytes - s->j.limit, more),
        (long long)((int64_t)m->bytes - s->j.limit), wefti_bytes_text(s->j.limit, has), advice);
    wefti_free(degrees);
    return status;
}

static weft_status begin(joint_search *s) {
    wefti_joint *j = &s->j;
    const wefti_joint_problem *p = j->problem;
    WEFT_TRY(wefti_model_fits(p->machine, j->devices));
    WEFT_TRY(wefti_joint_fix_check(&p->fix, j->devices, p->source.batch));
    j->instant = *p->machine;
    for (int32_t l = 0; l < j->instant.level_count; l++) {
        j->instant.level[l].latency_seconds.value = 0;
        j->instant.level[l].all_reduce.count = 0;
    }
    j->links = wefti_model_links(p->machine);
    j->rates = wefti_model_rates(p->machine);
    j->limit = p->memory_bytes ? p->memory_bytes : (int64_t)p->machine->device.memory_bytes.value;
    j->scalable = p->source.batch > 0;
    j->known = p->source.config != NULL;
    s->ratio = 1 + (p->tolerance > 0 ? p->tolerance : tolerance);
    WEFT_TRY(wefti_arena_create(&j->arena));
    WEFT_TRY(wefti_route_cache_create(&j->routes));
    WEFT_TRY(wefti_joint_shape_find(j));
    return find_ideal(s);
}

static void end(joint_search *s) {
    wefti_free(s->heap);
    wefti_free(s->j.works);
    wefti_free(s->j.states);
    wefti_route_cache_destroy(s->j.routes);
    wefti_arena_destroy(s->j.arena);
}

weft_status wefti_joint_search(const wefti_joint_problem *problem, wefti_joint_answer *out) {
    joint_search s = {.j = {.problem = problem, .devices = problem->settings->devices},
                      .out = out,
                      .begin = wefti_now_s()};
    *out = (wefti_joint_answer){0};
    weft_status status = begin(&s);
    if (status >= 0) status = branch_and_bound(&s);
    if (status >= 0 && !out->prediction) status = no_plan(&s);
    out->programs = s.j.built;
    end(&s);
    if (status < 0) {
        wefti_joint_answer_free(out);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    out->gap =
        (out->prediction->step_seconds - out->lower_bound_seconds) / out->lower_bound_seconds;
    return WEFT_OK;
}

void wefti_joint_answer_free(wefti_joint_answer *answer) {
    weft_plan_destroy(answer->plan);
    weft_prediction_free(answer->prediction);
    answer->plan = NULL;
    answer->prediction = NULL;
}
