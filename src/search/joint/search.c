/* Branch and bound over the space of the joint search: see joint.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "models/splits.h"
#include "program/print.h"
#include "schedule/schedule.h"
#include "search/joint/parts.h"
#include "search/predict/predict.h"

enum { EVALUATIONS = 16, MISFITS = 6, FRUITLESS = 6, EFFORT = 16, PLAIN_PARTS = 64 };
static const double tolerance = 0.002;
static const double margin = 0.92; /* of memory, for guesses */

/* A set of candidates with a bound: SPLIT stands for all schedules, levels and shards. */
typedef enum item_kind {
    ITEM_BOUNDED, /* one candidate, with its state: to be walked */
    ITEM_DRAFT,   /* one candidate, without its state */
    ITEM_RETRY,   /* one candidate that has not fitted with less recomputation */
    ITEM_SPLIT,   /* with its work */
    ITEM_DRAWN,   /* with the work of one sample */
    ITEM_COARSE   /* with neither */
} item_kind;

typedef struct item {
    double bound, bytes; /* of the step and of memory, at least */
    double guess;        /* of the step, about */
    double about;        /* bytes of a device */
    item_kind kind;
    int64_t number;
    wefti_degrees degrees;
    bool retried;   /* the same with more recomputation is open as well */
    bool corrected; /* the guess is, by a walk of the same split */
    bool taken;
} item;

/* How much longer than guessed the walks of a split have been. */
typedef struct correction {
    wefti_degrees degrees;
    double ratio;
} correction;

/* Orders of what is open. BY_BYTES: while nothing that is likely to fit is known. FIRST_PLAN: by
 * guess, but what is known better comes first unless it is far longer; only plain candidates, until
 * there is a plan. */
typedef enum order { BY_BOUND, BY_GUESS, BY_BYTES, FIRST_PLAN, ORDERS } order;
/* Numbers of items. Those that have been taken leave it when they come first. */
typedef struct item_heap {
    int64_t *at;
    int64_t count, cap;
} item_heap;

/* A candidate that does not fit. */
typedef struct misfit {
    double bytes;
    int32_t rank;
    wefti_degrees degrees;
} misfit;

typedef struct joint_search {
    wefti_joint j;
    item *items; /* by number */
    int64_t numbered, cap;
    item_heap heaps[ORDERS];
    correction *corrections;
    int64_t correction_count, correction_cap;
    int64_t count;                        /* items that have not been taken */
    double ideal_forward, ideal_backward; /* of products of one sample on one device */
    double ratio;                         /* the best step may be so much longer than the bound */
    misfit walked;                        /* that needs least memory of those that were simulated */
    misfit bounded[MISFITS];              /* of the others those with the least bounds, in order */
    int misfits;
    misfit large; /* with the least activations of those without programs */
    bool any_walked, any_large;
    bool fits;     /* the plan that was walked last */
    bool outwards; /* levels of links are slower from the innermost one on */
    wefti_joint_answer *out;
    double parameters;  /* bytes of the whole model's */
    bool guessing;      /* the least guess is taken next, not the least bound */
    int32_t found;      /* walks before the last one that found a better plan */
    double split_bound; /* of the split whose candidates are pushed */
    double begin;
} joint_search;

/* ---- what is open: in the order of bounds, and in that of guesses ---- */

static bool before(const item *a, const item *b) {
    if (a->bound != b->bound) return a->bound < b->bound;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->number < b->number;
}

/* What is known less well turns out longer. */
static double guess_of(const item *x) {
    static const double later[] = {[ITEM_BOUNDED] = 1,  [ITEM_DRAFT] = 1,    [ITEM_RETRY] = 1,
                                   [ITEM_SPLIT] = 1.06, [ITEM_DRAWN] = 1.09, [ITEM_COARSE] = 1.12};
    return x->guess * later[x->kind];
}

static double key_of(const item *x, order by) {
    switch (by) {
    case BY_BOUND:
        return x->bound;
    case BY_BYTES:
        return x->about;
    case FIRST_PLAN:
        return guess_of(x) * (1 + 0.2 * (int)x->kind);
    default:
        return guess_of(x);
    }
}

static bool is_first(const joint_search *s, order by, int64_t a, int64_t b) {
    const item *x = &s->items[a], *y = &s->items[b];
    const double of_x = key_of(x, by), of_y = key_of(y, by);
    return of_x != of_y ? of_x < of_y : before(x, y);
}

/* Candidates that are cheap to build and seldom bad: tensors within a host, whole sequences,
 * replicas outermost, whole parameters. The first plan is one of them. */
static bool is_plain(const joint_search *s, const wefti_degrees *d) {
    return d->context == 1 && d->level < 3 && !d->shard && d->chunks == 1 &&
           d->schedule == WEFT_PIPELINE_1F1B && wefti_joint_outermost(d) &&
           d->tensor <= wefti_model_per_host(s->j.problem->machine) &&
           d->tensor * d->expert <= PLAIN_PARTS;
}

static weft_status insert(joint_search *s, order by, int64_t number) {
    item_heap *h = &s->heaps[by];
    WEFT_TRY(WEFT_GROW(h->at, h->count, h->cap));
    int64_t i = h->count++;
    for (; i && is_first(s, by, number, h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = number;
    return WEFT_OK;
}

static void remove_first(joint_search *s, order by) {
    item_heap *h = &s->heaps[by];
    const int64_t moved = h->at[--h->count];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && is_first(s, by, h->at[child + 1], h->at[child])) child++;
        if (!is_first(s, by, h->at[child], moved)) break;
        h->at[i] = h->at[child];
    }
    if (h->count) h->at[i] = moved;
}

static weft_status push_item(joint_search *s, item x) {
    WEFT_TRY(WEFT_GROW(s->items, s->numbered, s->cap));
    x.number = s->numbered++;
    if (x.guess < x.bound) x.guess = x.bound;
    s->items[x.number] = x;
    s->count++;
    const bool guessed = s->guessing && isfinite(x.guess);
    if (guessed) WEFT_TRY(insert(s, BY_GUESS, x.number));
    if (!s->out->prediction) WEFT_TRY(insert(s, BY_BYTES, x.number));
    if (guessed && !s->out->prediction && is_plain(s, &x.degrees))
        WEFT_TRY(insert(s, FIRST_PLAN, x.number));
    return insert(s, BY_BOUND, x.number);
}

static weft_status push(joint_search *s, item_kind kind, double bound, double guess, double about,
                        const wefti_degrees *d) {
    return push_item(
        s, (item){.bound = bound, .guess = guess, .about = about, .kind = kind, .degrees = *d});
}

static item take_number(joint_search *s, int64_t number) {
    s->items[number].taken = true;
    s->count--;
    return s->items[number];
}

/* ---- coarse bounds ---- */

/* Samples of a step on the replica that has most of them: an uneven batch gives some replicas more
 * than others, in each microbatch the same ones. */
static double busiest_samples(const joint_search *s, const wefti_degrees *d) {
    const wefti_joint_problem *p = s->j.problem;
    const double parts = (double)d->microbatches * p->settings->copies;
    return s->j.scalable ? parts * ceil((double)p->source.batch / parts / d->data / d->expert) : 1;
}

/* A schedule of two chunks a stage begins stages behind the first chunks only. */
static bool begins_by_chunks(const joint_search *s, const wefti_degrees *d) {
    const int32_t *fixed = s->j.problem->fix.value;
    return wefti_joint_calls(&s->j.shape) >= 2 * (int64_t)d->stages &&
           fixed[WEFTI_JOINT_CHUNKS] != 1 &&
           (fixed[WEFTI_JOINT_SCHEDULE] < 0 ||
            fixed[WEFTI_JOINT_SCHEDULE] == (int32_t)WEFT_PIPELINE_ZERO_BUBBLE);
}

/* All devices compute products at the best rate, and a stage begins behind the forward passes of
 * those before it. A forward pass is at least a quarter of both; a fifth leaves room. Of two alike
 * chunks the first one is half of that. */
static double products_bound(const joint_search *s, const wefti_degrees *d) {
    const double replicas = s->j.scalable ? (double)d->data * d->expert : 1;
    double work = s->ideal_forward + s->ideal_backward;
    if (d->recompute == WEFT_RECOMPUTE_FULL) work += s->ideal_forward * 0.9; /* the head is not */
    const double even = busiest_samples(s, d) * replicas * work / s->j.devices;
    if (d->stages == 1 || d->microbatches % d->stages == 0) return even;
    const double part = begins_by_chunks(s, d) ? 0.125 : 0.2;
    const double micro = even * d->stages / d->microbatches;
    const double filled = part * micro / (1 - pow(1 - part / d->microbatches, d->stages));
    return filled > even ? filled : even;
}

static weft_status find_ideal(joint_search *s) {
    if (!s->j.scalable) return WEFT_OK; /* 0 is a bound too */
    return wefti_joint_ideal(&s->j, &s->ideal_forward, &s->ideal_backward);
}

/* ---- walking a candidate ---- */

/* What a walk costs, in short programs: a program for each stage, more if its devices differ. */
static double walk_effort(const wefti_degrees *d) {
    return wefti_joint_effort(d) * d->stages * (2 + d->chunks) / 3 * (d->shard ? 4 : 1);
}

static bool is_walked(const item *x) {
    return x->kind == ITEM_BOUNDED || x->kind == ITEM_DRAFT;
}

static int32_t budget_of(const joint_search *s) {
    const int32_t asked = s->j.problem->evaluations;
    return asked ? asked : EVALUATIONS;
}

/* Searches on larger machines may take longer. */
static double effort_budget(const joint_search *s) {
    const double larger_machine = 1 + s->j.devices / 8192.0, most = 3;
    return (larger_machine < most ? larger_machine : most) * budget_of(s) * EFFORT;
}

/* Whether the walk goes far beyond the budget. */
static bool is_costly(const joint_search *s, const item *x) {
    return is_walked(x) && s->out->prediction &&
           s->j.effort + walk_effort(&x->degrees) > 1.5 * effort_budget(s);
}

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

/* Candidates that differ in schedule, level and shard only. */
static bool same_split(const wefti_degrees *a, const wefti_degrees *b) {
    return a->data == b->data && a->expert == b->expert && a->context == b->context &&
           a->tensor == b->tensor && a->sequence == b->sequence && a->stages == b->stages &&
           a->microbatches == b->microbatches && a->recompute == b->recompute &&
           !memcmp(a->order, b->order, sizeof a->order);
}

/* The factor that the guess of a candidate needs, 1: nothing is known. Other levels are less alike.
 */
static double correction_of(const joint_search *s, const wefti_degrees *d) {
    double factor = 1;
    for (int64_t i = 0; i < s->correction_count; i++) {
        const correction *c = &s->corrections[i];
        if (!same_split(&c->degrees, d)) continue;
        if (c->degrees.level == d->level) return c->ratio;
        factor = factor == 1 || sqrt(c->ratio) < factor ? sqrt(c->ratio) : factor;
    }
    return factor;
}

static correction *known_correction(joint_search *s, const wefti_degrees *d) {
    for (int64_t i = 0; i < s->correction_count; i++)
        if (s->corrections[i].degrees.level == d->level &&
            same_split(&s->corrections[i].degrees, d))
            return &s->corrections[i];
    return NULL;
}

/* After a walk: candidates of the same split will be as much longer as guessed. */
static weft_status correct(joint_search *s, const item *x, double seconds) {
    const double ratio = x->corrected || !isfinite(x->guess) ? 1 : seconds / x->guess;
    if (ratio <= 1) return WEFT_OK;
    correction *known = known_correction(s, &x->degrees);
    if (known) {
        known->ratio = ratio < known->ratio ? ratio : known->ratio;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(s->corrections, s->correction_count, s->correction_cap));
    s->corrections[s->correction_count++] = (correction){x->degrees, ratio};
    return WEFT_OK;
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
    const weft_status corrected = bounds ? correct(s, bounds, x->step_seconds) : WEFT_OK;
    const double bytes = bytes_of(x, &rank);
    const bool fits = bytes <= (double)s->j.limit;
    s->fits = fits;
    if (!fits) note_walked(s, d, bytes, rank);
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
    s->j.effort += walk_effort(d);
    return corrected;
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

/* ---- bounds from lines ---- */

/* Whether lines say something about a candidate: replicas with whole samples, on the outermost axis
 * of the mesh. */
static bool has_line(const joint_search *s, const wefti_degrees *d) {
    const int64_t replicas = (int64_t)d->data * d->expert;
    return s->j.scalable && s->j.problem->source.batch % replicas == 0 && wefti_joint_outermost(d);
}

/* Samples of a microbatch on each device. */
static double samples_of(const joint_search *s, const wefti_degrees *d) {
    const wefti_joint_problem *p = s->j.problem;
    return (double)p->source.batch / d->data / d->expert / d->microbatches / p->settings->copies;
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

/* The least bytes of a stage. If each stage has `limit` bytes, with n microbatches in flight, all
 * stages together keep at most the sum of (limit - state) / n of one microbatch. */
static double least_bytes(const joint_search *s, const wefti_degrees *d, int level, double kept,
                          const wefti_joint_line *line) {
    const double mesh = (double)s->j.devices / d->stages;
    const double most = d->stages < d->microbatches ? d->stages : d->microbatches;
    /* At level 3 those of one call are gathered. */
    const double gathered = line->parameters / wefti_joint_calls(&s->j.shape);
    const double state =
        (level >= 3 ? line->whole_parameters / mesh + gathered : line->parameters) +
        (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    double shares = 0;
    for (int32_t stage = 0; stage < d->stages; stage++)
        shares += 1.0 / (d->stages - stage < most ? d->stages - stage : most);
    const double bytes = (kept + state / most) / shares;
    return WEFTI_JOINT_ROUNDING * (bytes > state / d->stages ? bytes : state / d->stages);
}

/* ---- coarse bounds: from lines of one device and of two ---- */

typedef struct axes_sum {
    double fixed, each; /* seconds of a microbatch, of each sample in it */
    double further;     /* about how much longer each sample takes on the links of the axes */
} axes_sum;

/* How much longer transfers of `size` devices with a stride take than those of two neighbours,
 * about: a ring of g devices moves (g - 1) / g of the bytes twice. */
static double further_of(const wefti_machine_model *m, int32_t stride, int32_t size) {
    const int32_t level = wefti_model_level_of(m, 0, stride * size - 1);
    const int32_t block = level ? wefti_model_block(m, level - 1) : 1;
    const double slower =
        wefti_model_byte_seconds(m, level, block) / wefti_model_byte_seconds(m, 0, 1);
    const double longer = 2.0 * (size - 1) / size * slower - 1;
    return longer > 0 ? longer : 0;
}

/* Transfers of an axis take at least as long as those of two devices on the innermost links, since
 * more devices have no fewer bytes and latencies. `share`: the part of a sample's values that each
 * group of the axis has. */
static weft_status add_axis(joint_search *s, const wefti_degrees *two, double share, int32_t stride,
                            int32_t size, axes_sum *sum) {
    const wefti_joint_line *line;
    WEFT_TRY(wefti_joint_line_find(&s->j, two, &line));
    if (!line->legal) return WEFT_OK;
    sum->fixed += line->wait_fixed;
    sum->each += line->wait_each * share;
    sum->further += line->wait_each * share * further_of(s->j.problem->machine, stride, size);
    return WEFT_OK;
}

static weft_status add_axes(joint_search *s, const wefti_degrees *d, axes_sum *sum) {
    wefti_degrees two = wefti_degrees_none();
    two.recompute = d->recompute;
    if (!s->outwards) return WEFT_OK;
    if (d->tensor > 1) {
        two.tensor = 2;
        two.sequence = d->sequence;
        WEFT_TRY(add_axis(s, &two, 1.0 / d->context, 1, d->tensor, sum));
        two.tensor = 1;
        two.sequence = false;
    }
    if (d->context > 1) {
        two.context = 2;
        WEFT_TRY(add_axis(s, &two, 1.0 / d->tensor, d->tensor, d->context, sum));
        two.context = 1;
    }
    if (d->expert == 1) return WEFT_OK;
    two.expert = 2;
    const int32_t inner = d->tensor * d->context;
    return add_axis(s, &two, 1.0 / inner, inner, d->expert, sum);
}

/* About how many bytes the first stage needs, if stages are alike. `frame`: of one block. */
static double guess_bytes(const joint_search *s, const wefti_degrees *d, int level, double kept,
                          double frame, const wefti_joint_line *line) {
    const double mesh = (double)s->j.devices / d->stages;
    const double most = d->stages < d->microbatches ? d->stages : d->microbatches;
    const bool apart = wefti_schedule_splits(d->schedule);
    /* More microbatches are in flight than in 1f1b, or are kept for gradients of weights; what was
     * recomputed then as well. */
    const double chunks = apart                                      ? 2
                          : d->schedule == WEFT_PIPELINE_INTERLEAVED ? 1 + 1.0 / d->chunks
                                                                     : 1;
    const bool all = apart && d->stages > 1 && d->recompute == WEFT_RECOMPUTE_FULL;
    const double recomputed = all ? frame * wefti_joint_calls(&s->j.shape) : 0;
    const bool several = d->stages > 1 || d->microbatches > 1;
    const double shared = line->whole_parameters / mesh;
    const double parameters = level >= 3 ? shared : line->parameters;
    const double gradients = !several ? 0 : level >= 2 ? shared : line->parameters;
    const double state =
        parameters + gradients + (level >= 1 ? line->whole_optimizer / mesh : line->optimizer);
    const double gathered = level >= 2 ? 3 * line->parameters / wefti_joint_calls(&s->j.shape) : 0;
    return (state + chunks * kept * most + recomputed) / d->stages + gathered + frame;
}

typedef struct line_bound {
    bool legal;
    double seconds, bytes;
    double guess_bytes[4]; /* about, by optimizer level; 0: unknown */
    double further;        /* seconds that transfers take more than the bound says, about */
} line_bound;

static double frame_of(const wefti_joint_line *line, double samples) {
    const double frame = line->frame[0] + (line->frame[1] - line->frame[0]) * (samples - 1);
    return frame > 0 ? frame : 0;
}

/* About how many bytes the level takes that needs least. */
static double least_of_levels(const joint_search *s, const line_bound *b) {
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    double least = INFINITY;
    for (int level = 0; level <= 3; level++)
        if ((fixed < 0 || fixed == level) && b->guess_bytes[level] < least)
            least = b->guess_bytes[level];
    return least;
}

/* Whether about some level fits, with room for `margin`. */
static bool likely_fits(const joint_search *s, const line_bound *b) {
    return least_of_levels(s, b) <= margin * (double)s->j.limit;
}

/* Bytes that a sample keeps with tensor parallelism: a part is divided, the rest is on all devices.
 * Two devices tell which. */
static weft_status kept_of_tensor(joint_search *s, const wefti_degrees *d, double *each) {
    wefti_degrees two = wefti_degrees_none();
    const wefti_joint_line *line;
    if (d->tensor == 1) return WEFT_OK;
    two.recompute = d->recompute;
    two.tensor = 2;
    two.sequence = d->sequence;
    WEFT_TRY(wefti_joint_line_find(&s->j, &two, &line));
    double whole = 2 * line->kept_each - *each;
    if (!line->legal || whole < 0) whole = 0;
    *each = whole + (*each - whole) / d->tensor;
    return WEFT_OK;
}

/* Two devices with a sample each tell how much working memory their samples take together. */
static weft_status frame_of_experts(joint_search *s, const wefti_degrees *d, double samples,
                                    double *frame) {
    wefti_degrees two = wefti_degrees_none();
    const wefti_joint_line *line;
    two.recompute = d->recompute;
    two.expert = 2;
    WEFT_TRY(wefti_joint_line_find(&s->j, &two, &line));
    if (line->legal) *frame = frame_of(line, samples > 1 ? samples : 1) / d->tensor / d->context;
    return WEFT_OK;
}

/* Without programs of its own. Kernels divide at best evenly. */
static weft_status coarse_bound(joint_search *s, const wefti_degrees *d, line_bound *out) {
    wefti_degrees whole = wefti_degrees_none();
    const wefti_joint_line *line;
    const int32_t level = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    *out = (line_bound){.legal = true, .seconds = products_bound(s, d)};
    whole.recompute = d->recompute;
    if (!s->j.scalable) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, &whole, &line));
    if (!line->legal) return WEFT_OK;
    const double parts = (double)d->tensor * d->context;
    const double samples = busiest_samples(s, d);
    axes_sum sum = {.fixed = line->fixed, .each = line->each / parts};
    const wefti_joint_line base = *line;
    WEFT_TRY(add_axes(s, d, &sum));
    const double seconds =
        WEFTI_JOINT_ROUNDING * (d->microbatches * sum.fixed + samples * sum.each) / d->stages;
    out->further = samples * sum.further / d->stages;
    if (seconds > out->seconds) out->seconds = seconds;
    const double micro = samples / d->microbatches / s->j.problem->settings->copies;
    const wefti_joint_line divided = {.parameters = base.whole_parameters / d->tensor / d->expert,
                                      .optimizer = base.whole_optimizer / d->tensor / d->expert,
                                      .whole_parameters = base.whole_parameters,
                                      .whole_optimizer = base.whole_optimizer};
    double of_sample = base.kept_each, frame = frame_of(&base, micro >= 1 ? micro : 1) / parts;
    WEFT_TRY(kept_of_tensor(s, d, &of_sample));
    if (d->expert > 1) WEFT_TRY(frame_of_experts(s, d, micro, &frame));
    const double kept = micro >= 1 ? 0.98 * of_sample * micro / d->context : 0;
    if (micro >= 1) out->bytes = least_bytes(s, d, level < 0 ? 3 : level, kept, &divided);
    for (int l = 0; l < 4; l++) out->guess_bytes[l] = guess_bytes(s, d, l, kept, frame, &divided);
    s->parameters = base.whole_parameters;
    return WEFT_OK;
}

/* Saves the programs of splits that are slow, and of microbatches that are far too large. */
static weft_status bound_of_line(joint_search *s, const wefti_degrees *d, line_bound *out) {
    const int32_t level = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    const wefti_joint_line *line;
    *out = (line_bound){.legal = true};
    if (!has_line(s, d)) return WEFT_OK;
    WEFT_TRY(wefti_joint_line_find(&s->j, d, &line));
    out->legal = line->legal;
    if (!line->legal) return WEFT_OK;
    const double micro = samples_of(s, d), samples = micro * d->microbatches;
    /* Little is the same for any size; its placement may differ. */
    const double kept = 0.98 * (line->kept_fixed + line->kept_each * micro);
    out->bytes = least_bytes(s, d, level < 0 ? 3 : level, kept, line);
    out->seconds =
        WEFTI_JOINT_ROUNDING * (d->microbatches * line->fixed + samples * line->each) / d->stages;
    for (int l = 0; l < 4; l++)
        out->guess_bytes[l] = guess_bytes(s, d, l, kept, frame_of(line, micro), line);
    return WEFT_OK;
}

static wefti_degrees in_usual_order(const wefti_degrees *degrees) {
    wefti_degrees d = *degrees;
    for (int a = 0; a < 4; a++) d.order[a] = (int8_t)a;
    return d;
}

/* The least bytes of a stage, and about how many, before its state is known. */
static weft_status bytes_of_draft(joint_search *s, const wefti_degrees *d,
                                  const wefti_joint_work *work, double *out, double *out_about) {
    const wefti_joint_shape *shape = &s->j.shape;
    const wefti_degrees usual = in_usual_order(d);
    const wefti_joint_line *line;
    double kept = 0, frame = 0;
    *out = *out_about = 0;
    if (!has_line(s, &usual)) {
        line_bound b;
        WEFT_TRY(coarse_bound(s, d, &b));
        *out_about = b.guess_bytes[d->level];
        return WEFT_OK;
    }
    for (int32_t k = 0; k < shape->calls; k++) {
        if ((double)work->calls[k].frame > frame) frame = (double)work->calls[k].frame;
        kept += (double)(work->calls[k].saved + work->calls[k].kept) *
                (k == shape->middle ? shape->copies : 1);
    }
    WEFT_TRY(wefti_joint_line_find(&s->j, &usual, &line));
    if (!line->legal) return WEFT_OK;
    if (wefti_joint_outermost(d)) *out = least_bytes(s, d, d->level, kept, line);
    *out_about = guess_bytes(s, d, d->level, kept, frame, line);
    return WEFT_OK;
}

/* ---- branching ---- */

static bool is_last_mode(const joint_search *s, const wefti_degrees *d) {
    return s->j.problem->fix.value[WEFTI_JOINT_RECOMPUTE] >= 0 ||
           d->recompute == WEFT_RECOMPUTE_FULL;
}

static double best(const joint_search *s) {
    return s->out->prediction ? s->out->prediction->step_seconds : INFINITY;
}

static void note_large(joint_search *s, const wefti_degrees *d, double bytes) {
    if (!s->any_large || bytes < s->large.bytes) s->large = (misfit){bytes, 0, *d};
    s->any_large = true;
}

/* Programs for so many devices take long to build. They come in the order of bounds. */
static bool is_large(const wefti_degrees *d) {
    const double part = (double)d->expert * d->context * d->tensor;
    return d->context > 16 || part > 512 || part * d->data > 2048;
}

/* Infinite: about no level fits, or it is large. */
static double guess_of_split(const joint_search *s, const wefti_degrees *d, const line_bound *b) {
    const double work = b->seconds + b->further;
    const double bubble = wefti_joint_guess_bubble(&s->j, d, work);
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    double least = INFINITY;
    if (is_large(d)) return INFINITY;
    for (int level = 0; level <= 3; level++) {
        if (b->guess_bytes[level] > margin * (double)s->j.limit || (fixed >= 0 && fixed != level))
            continue;
        const double exposed = wefti_joint_guess_exposed(&s->j, d, s->parameters, work, level);
        if (exposed < least) least = exposed;
    }
    /* Other orders of axes are seldom better. */
    return (work + bubble + least) * (wefti_joint_outermost(d) ? 1 : 1.1);
}

/* The first mode of recomputation with which the split may fit. More of it is never faster. */
static weft_status push_split(joint_search *s, const wefti_degrees *degrees, double bound) {
    wefti_degrees d = *degrees;
    for (;; d.recompute = (weft_recompute)((int)d.recompute + 1)) {
        line_bound b;
        WEFT_TRY(coarse_bound(s, &d, &b));
        const double guess = guess_of_split(s, &d, &b);
        const bool fits = b.bytes <= (double)s->j.limit;
        if (fits)
            WEFT_TRY(push(s, ITEM_COARSE, b.seconds > bound ? b.seconds : bound, guess,
                          least_of_levels(s, &b), &d));
        else
            note_large(s, &d, b.bytes);
        if (is_last_mode(s, &d) || (fits && (isfinite(guess) || is_large(&d)))) return WEFT_OK;
    }
}

static weft_status push_coarse(void *context, const wefti_degrees *d) {
    return push_split(context, d, 0);
}

/* Whether the next mode of recomputation keeps fewer bytes: if attention keeps none, selective
 * recomputation changes nothing. */
static weft_status keeps_less(joint_search *s, const wefti_degrees *degrees, bool *out) {
    wefti_degrees d = wefti_degrees_none();
    const wefti_joint_line *line;
    *out = true;
    if (!s->j.scalable) return WEFT_OK;
    d.recompute = degrees->recompute;
    WEFT_TRY(wefti_joint_line_find(&s->j, &d, &line));
    const double kept = line->kept_each;
    d.recompute = (weft_recompute)((int)d.recompute + 1);
    WEFT_TRY(wefti_joint_line_find(&s->j, &d, &line));
    *out = !line->legal || line->kept_each < 0.999 * kept;
    return WEFT_OK;
}

/* A candidate does not fit: with more recomputation it may, and takes no less time. */
static weft_status retry(joint_search *s, const wefti_degrees *degrees, double bound, double guess,
                         double about) {
    wefti_degrees d = *degrees;
    while (!is_last_mode(s, &d)) {
        bool less;
        WEFT_TRY(keeps_less(s, &d, &less));
        d.recompute = (weft_recompute)((int)d.recompute + 1);
        if (less) return push(s, ITEM_RETRY, bound, guess, 0.7 * about, &d);
    }
    return WEFT_OK;
}

static weft_status push_candidate(joint_search *s, const wefti_degrees *d, double least) {
    const wefti_joint_work *work;
    wefti_joint_bound b;
    double bytes, about;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    if (!work->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of(&s->j, d, work, NULL, &b));
    if (!isfinite(b.seconds)) return WEFT_OK;
    const double bound = b.seconds > least ? b.seconds : least;
    s->out->candidates++;
    WEFT_TRY(bytes_of_draft(s, d, work, &bytes, &about));
    const double exposed = wefti_joint_guess_exposed(&s->j, d, s->parameters, bound, d->level);
    /* With weights' gradients apart, what has been recomputed stays. */
    const bool stays = wefti_schedule_splits(d->schedule) && d->recompute == WEFT_RECOMPUTE_FULL;
    const double guess = stays ? INFINITY : (bound + exposed) * (d->shard ? 1.05 : 1);
    const bool fits = bytes <= (double)s->j.limit, likely = about <= margin * (double)s->j.limit;
    if (fits)
        WEFT_TRY(push_item(s, (item){.bound = bound,
                                     .guess = likely ? guess : INFINITY,
                                     .about = about,
                                     .kind = ITEM_DRAFT,
                                     .degrees = *d,
                                     .retried = !likely}));
    else
        note_bounded(s, d, bytes);
    return fits && likely ? WEFT_OK : retry(s, d, bound, guess, about);
}

static weft_status push_draft(void *context, const wefti_degrees *d) {
    joint_search *s = context;
    return push_candidate(s, d, s->split_bound);
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
    s->split_bound = x->bound;
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
    const double bound = b.seconds > x->bound ? b.seconds : x->bound;
    if (b.bytes > (double)s->j.limit) {
        note_bounded(s, &x->degrees, b.bytes);
        return x->retried ? WEFT_OK : retry(s, &x->degrees, bound, x->guess, b.bytes);
    }
    item bounded = *x;
    bounded.bound = bound, bounded.bytes = b.bytes, bounded.kind = ITEM_BOUNDED;
    bounded.taken = false;
    return push_item(s, bounded);
}

/* With replicas as the inner axis, the other axes lie on the same links as with replicas as the
 * outer one, or on links further out. So the work of that order, which takes fewer programs, is a
 * bound. */
static weft_status bound_of_order(joint_search *s, const wefti_degrees *d, line_bound *out) {
    const wefti_degrees usual = in_usual_order(d);
    const wefti_joint_work *work;
    line_bound b;
    if (wefti_joint_outermost(d) || !s->outwards) return WEFT_OK;
    WEFT_TRY(bound_of_line(s, &usual, &b));
    if (b.seconds > out->seconds) out->seconds = b.seconds;
    if (b.bytes > out->bytes) out->bytes = b.bytes;
    memcpy(out->guess_bytes, b.guess_bytes, sizeof out->guess_bytes);
    if (!b.legal || b.bytes > (double)s->j.limit) return WEFT_OK;
    WEFT_TRY(wefti_joint_work_find(&s->j, &usual, &work));
    const double even = work->legal ? even_bound(s, &usual, work) : 0;
    if (even > out->seconds) out->seconds = even;
    return WEFT_OK;
}

static weft_status draw(joint_search *s, const item *x) {
    line_bound b;
    WEFT_TRY(bound_of_line(s, &x->degrees, &b));
    WEFT_TRY(bound_of_order(s, &x->degrees, &b));
    const double bound = b.seconds > x->bound ? b.seconds : x->bound;
    if (!b.legal) return WEFT_OK;
    const bool fits = b.bytes <= (double)s->j.limit;
    const bool likely = likely_fits(s, &b);
    if (fits)
        WEFT_TRY(push(s, ITEM_DRAWN, bound, likely ? x->guess : INFINITY, x->about, &x->degrees));
    else
        note_large(s, &x->degrees, b.bytes);
    if ((fits && (likely || !isfinite(x->guess))) || is_last_mode(s, &x->degrees)) return WEFT_OK;
    wefti_degrees more = x->degrees;
    more.recompute = (weft_recompute)((int)more.recompute + 1);
    return push_split(s, &more, bound);
}

static weft_status find_work(joint_search *s, const item *x) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    if (!work->legal) return WEFT_OK;
    const double even = even_bound(s, &x->degrees, work);
    return push(s, ITEM_SPLIT, even > x->bound ? even : x->bound, x->guess, x->about, &x->degrees);
}

static weft_status take(joint_search *s, const item *x) {
    switch (x->kind) {
    case ITEM_COARSE:
        return draw(s, x);
    case ITEM_DRAWN:
        return find_work(s, x);
    case ITEM_SPLIT:
        return expand(s, x);
    case ITEM_RETRY:
        return push_candidate(s, &x->degrees, x->bound);
    case ITEM_DRAFT:
        if (!s->guessing) return refine(s, x);
        break;
    default:
        break;
    }
    s->fits = true;
    WEFT_TRY(walk(s, &x->degrees, x));
    return s->fits || x->retried ? WEFT_OK : retry(s, &x->degrees, x->bound, x->guess, x->about);
}

static bool over_budget(const joint_search *s) {
    const int32_t budget = budget_of(s);
    if (s->out->evaluations >= budget && s->out->prediction) return true;
    if (s->j.effort >= effort_budget(s) && s->out->prediction) return true;
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

/* The open item with the least guess, -1: none may be better than the best plan. */
static weft_status least_guess(joint_search *s, int64_t *out) {
    item_heap *h = &s->heaps[BY_GUESS];
    *out = -1;
    while (h->count) {
        item *x = &s->items[h->at[0]];
        if (!x->taken && guess_of(x) > 1.1 * best(s)) break;
        const bool open = !x->taken && x->bound * s->ratio < best(s) && !is_costly(s, x);
        const double factor =
            open && is_walked(x) && !x->corrected ? correction_of(s, &x->degrees) : 1;
        if (open && factor == 1) {
            *out = x->number;
            return WEFT_OK;
        }
        remove_first(s, BY_GUESS);
        if (!open) continue;
        x->guess *= factor;
        x->corrected = true;
        WEFT_TRY(insert(s, BY_GUESS, x->number));
    }
    return WEFT_OK;
}

/* The first item that is open, -1: none. */
static int64_t first_of(joint_search *s, order by) {
    item_heap *h = &s->heaps[by];
    while (h->count && s->items[h->at[0]].taken) remove_first(s, by);
    return h->count ? h->at[0] : -1;
}

/* A plain plan first, or what needs least memory if nothing is likely to fit. By guess until a few
 * walks in turn have found no better plan; then by bound. */
static weft_status next_of(joint_search *s, int64_t *out) {
    *out = -1;
    if (s->out->prediction && s->out->evaluations - s->found >= FRUITLESS) s->guessing = false;
    if (s->guessing && !s->out->prediction) *out = first_of(s, FIRST_PLAN);
    if (s->guessing && *out < 0) WEFT_TRY(least_guess(s, out));
    if (s->guessing && *out < 0 && !s->out->prediction) *out = first_of(s, BY_BYTES);
    s->guessing = *out >= 0;
    if (*out < 0) *out = first_of(s, BY_BOUND);
    return WEFT_OK;
}

static weft_status branch_and_bound(joint_search *s) {
    const wefti_joint_visit visit = {s, push_coarse};
    WEFT_TRY(walk_splits_of_ops(s));
    WEFT_TRY(wefti_joint_splits(&s->j, &visit));
    double least = INFINITY;
    while (s->count) {
        least = s->items[first_of(s, BY_BOUND)].bound;
        if (least * s->ratio >= best(s)) break;
        if (over_budget(s) || out_of_time(s)) break;
        int64_t next;
        WEFT_TRY(next_of(s, &next));
        const item x = take_number(s, next);
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

/* The largest tensors at the peak of a candidate that has been walked, and the step of the peak.
 * NULL: its plan is not the one of its degrees. */
static weft_status build_instant(joint_search *s, const misfit *m, char **out) {
    const wefti_degrees *d = &m->degrees;
    const wefti_optimizer_plan *optimizer;
    wefti_program *program;
    int32_t *part_of;
    weft_plan *plan;
    weft_graph *graph;
    WEFT_TRY(graph_of(s, d, &graph, &optimizer));
    WEFT_TRY(parts_of(s, d, &part_of));
    weft_status status = wefti_joint_plan(&s->j, d, part_of, &plan);
    wefti_free(part_of);
    WEFT_TRY(status);
    const wefti_program_spec spec = {
        .graph = graph,
        .backends = wefti_builtin_backends(),
        .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
        .optimizer = optimizer,
        .keep_gradients = !optimizer && graph->loss >= 0,
        .microbatches = d->microbatches * s->j.problem->settings->copies,
        .plan = wefti_plan_matters(plan) ? plan : NULL,
        .rank = m->rank,
        .routes = s->j.routes};
    status = wefti_program_build(&spec, &program);
    weft_plan_destroy(plan);
    WEFT_TRY(status);
    enum { NAMED = 3 };
    if ((double)program->peak_bytes == m->bytes)
        status = wefti_program_largest(program, NAMED, out);
    wefti_program_destroy(program);
    return status;
}

static weft_status find_instant(joint_search *s, const misfit *m, char **out) {
    *out = NULL;
    const weft_status status = build_instant(s, m, out);
    if (!wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status no_plan(joint_search *s) {
    const misfit *m = &s->walked;
    char *instant = NULL;
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
    if (s->any_walked && !s->j.problem->plain) WEFT_TRY(find_instant(s, m, &instant));
    wefti_text text = {0};
    wefti_joint_degrees_text(&m->degrees, &text);
    if (instant) wefti_text_add(&text, ": %s", instant);
    wefti_free(instant);
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
    s->outwards = is_slower_outwards(p->machine);
    s->guessing = !p->by_bound;
    s->ratio = 1 + (p->tolerance > 0 ? p->tolerance : tolerance);
    WEFT_TRY(wefti_arena_create(&j->arena));
    WEFT_TRY(wefti_route_cache_create(&j->routes));
    WEFT_TRY(wefti_joint_shape_find(j));
    return find_ideal(s);
}

static void end(joint_search *s) {
    wefti_free(s->items);
    wefti_free(s->corrections);
    for (int k = 0; k < ORDERS; k++) wefti_free(s->heaps[k].at);
    wefti_free(s->j.works);
    wefti_free(s->j.lines);
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
    if (status >= 0) status = wefti_joint_cells_find(&s.j, &out->degrees, out->plan, &out->cells);
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
    wefti_joint_cells_free(&answer->cells);
    answer->plan = NULL;
    answer->prediction = NULL;
}
