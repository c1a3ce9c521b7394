/* memory.offload: auto, for the programs of any graphs of a model. The programs of the plan are
 * built, dry. If they do not fit the memory of a device, candidates are chosen by what they free
 * and cost (setup/movable.h, memory/residency.h), and the programs are built again. If an estimate
 * was too low, the next choice has a smaller limit. If it was too high, some candidates stay after
 * all. */
#include <string.h>

#include "base/number.h"
#include "base/text.h"
#include "device/disk.h"
#include "job/job.h"
#include "program/print.h"
#include "search/predict/predict.h"
#include "setup/movable.h"
#include "setup/programs.h"
#include "weft/info.h"

enum {
    CHOICE_ROUNDS = 8,
    TRIED_STEPS = 1 << 18 /* of all programs that are built to make a choice better */
};
#define ENOUGH (INT64_MAX / 4)          /* bytes of a tier without a limit */
#define LEAST_AHEAD ((int64_t)64 << 20) /* bytes: two slices of an update */
#define FASTER 0.99                     /* of a step: one that is longer is not worth more bytes */

/* A plan with its programs. */
typedef struct offload_trial {
    weft_plan *plan; /* refined */
    wefti_rank_classes *classes;
    int64_t bytes;  /* of device memory, and of programs if the limit counts them */
    int64_t host;   /* of all else that memory.host limits */
    double seconds; /* of a step by the simulator's clock, once `judge` has found it */
    int64_t moved;  /* bytes that a step copies, likewise */
} offload_trial;

typedef struct offload_choice {
    wefti_built *b;
    const weft_session_options *options;
    weft_plan *base;             /* moves nothing that the user has not decided */
    wefti_job_programs programs; /* with the plan of a trial */
    wefti_machine_model *machine;
    wefti_arena *arena;
    wefti_movable movable;
    int64_t limit;       /* of device memory */
    bool programs_count; /* in the limit */
    wefti_limits limits; /* of the job */
    bool tiers[WEFT_TIERS];
    int32_t tries; /* how many more plans may be built to make the choice better */
} offload_choice;

static bool trains(const offload_choice *x) {
    return x->options->optimizer.kind != WEFT_NO_OPTIMIZER;
}

/* For messages: what needs memory. */
static const char *work_of(const offload_choice *x) {
    return trains(x) ? "a step" : "a pass";
}

/* ---- trials ---- */

static weft_status build(void *context, int32_t rank, wefti_program **programs) {
    return wefti_job_programs_build(context, rank, true, programs);
}

static void end_trial(offload_trial *t) {
    wefti_rank_classes_destroy(t->classes);
    weft_plan_destroy(t->plan);
    *t = (offload_trial){.plan = NULL};
}

/* Also on failure, the caller calls end_trial. */
static weft_status try_plan(offload_choice *x, const weft_plan *plan, offload_trial *t) {
    wefti_job_programs *of = &x->programs;
    weft_session_options o = *x->options;
    o.plan = plan;
    WEFT_TRY(wefti_session_take_plan(&o, &of->microbatches, &t->plan));
    of->plan = t->plan;
    const wefti_fold fold = {.plan = of->devices > 1 ? t->plan : NULL,
                             .graphs = of->graphs,
                             .context = of,
                             .build = build};
    const weft_status status = wefti_rank_classes_find(&fold, &t->classes);
    of->plan = NULL;
    WEFT_TRY(status);
    for (int32_t c = 0; c < t->classes->count; c++) {
        wefti_program *const *programs = t->classes->classes[c].programs;
        const wefti_needs needs = wefti_job_programs_needs(programs, fold.graphs);
        const int64_t device = wefti_footprint_bytes(needs.arenas, WEFTI_SPACE_DEVICE);
        wefti_keep_most(&t->bytes, device + (x->programs_count ? needs.programs : 0));
        wefti_keep_most(&t->host, wefti_needs_host(&needs, &x->limits));
    }
    return WEFT_OK;
}

static weft_status try_tiers(offload_choice *x, const int8_t *tier, offload_trial *t) {
    weft_plan *plan;
    WEFT_TRY(wefti_plan_copy(x->base, &plan));
    weft_status status = wefti_movable_rules(&x->movable, tier, plan);
    if (status >= 0) status = try_plan(x, plan, t);
    weft_plan_destroy(plan);
    return status;
}

/* ---- tiers ---- */

void wefti_built_tiers(const wefti_built *b, const wefti_machine_model *machine,
                       bool out[WEFT_TIERS]) {
    const wefti_tier_rates *host = &machine->device.host_bytes_per_second;
    const bool own = *b->job->machine ? host->source && !host->spends_cores
                                      : strcmp(wefti_kind_of(0)->table->name, "host") != 0;
    out[WEFT_TIER_DEVICE] = false;
    out[WEFT_TIER_HOST] = own;
    out[WEFT_TIER_DISK] = *b->job->memory.disk.path != '\0';
}

/* What is free on the disk counts if the directory exists; predictions need none. */
static int64_t disk_room(const wefti_built *b) {
    int64_t room = ENOUGH;
    const int64_t most = b->disk_bytes ? b->disk_bytes : b->job->memory.disk.size_bytes;
    if (wefti_disk_free_bytes(b->job->memory.disk.path, &room) < 0)
        wefti_error_clear();
    else
        room /= wefti_built_sharing(b);
    return most && most < room ? most : room;
}

/* For tier host beside what else memory.host limits. Without that limit: what device memory leaves
 * of this machine; a machine that need not exist has enough. */
static int64_t host_room(const offload_choice *x, int64_t others) {
    const bool planned = *x->b->job->machine != '\0';
    const int64_t most = x->limits.host ? x->limits.host
                         : planned      ? ENOUGH
                                        : wefti_built_share(x->b) - x->limit;
    return most - others;
}

static void find_rooms(const offload_choice *x, const wefti_rank_classes *all,
                       int64_t room[WEFTI_RESIDENCY_TIERS]) {
    static const wefti_space spaces[WEFTI_RESIDENCY_TIERS] = {WEFTI_SPACE_HOST, WEFTI_SPACE_DISK};
    for (int t = 0; t < WEFTI_RESIDENCY_TIERS; t++) {
        int64_t used = 0, others = 0;
        for (int32_t c = 0; c < all->count; c++) {
            const wefti_needs needs =
                wefti_job_programs_needs(all->classes[c].programs, all->graphs);
            wefti_keep_most(&used, wefti_footprint_bytes(needs.arenas, spaces[t]));
            wefti_keep_most(&others, needs.programs + x->limits.held);
        }
        room[t] = 0;
        if (x->tiers[WEFT_TIER_HOST + t])
            room[t] = (t ? disk_room(x->b) : host_room(x, others)) - used;
        if (room[t] < 0) room[t] = 0;
    }
}

/* ---- the choice ---- */

static const char *limit_key(const offload_choice *x) {
    return x->programs_count ? "device.memory" : "memory.device";
}

static weft_status refuse(const offload_choice *x, int64_t base, int64_t least,
                          const wefti_residency *r) {
    static const char *const names[WEFTI_RESIDENCY_TIERS] = {"host", "disk"};
    const char *key = limit_key(x);
    char need[32], moved[32], most[32];
    wefti_bytes_text(base, need);
    wefti_bytes_text(x->limit, most);
    WEFT_REQUIRE(x->tiers[WEFT_TIER_HOST] || x->tiers[WEFT_TIER_DISK], WEFT_E_NOMEM,
                 "memory.offload: auto: %s needs %s of device memory, but the limit "
                 "(%s) is %s, which lacks %lld bytes, and there is no tier below it: set "
                 "memory.disk.path to a directory of a local disk",
                 work_of(x), need, key, most, (long long)(base - x->limit));
    WEFT_REQUIRE(r->lacking == WEFTI_RESIDENCY_STAYS, WEFT_E_NOMEM,
                 "memory.offload: auto: %s needs %s of device memory, but the limit "
                 "(%s) is %s, and what must leave it needs %lld bytes more than tier %s has: "
                 "give the tier more room%s",
                 work_of(x), need, key, most, (long long)r->lacks, names[r->lacking],
                 r->lacking ? " (memory.disk.size)" : " (memory.host), or set memory.disk.path");
    WEFT_FAIL(WEFT_E_NOMEM,
              "memory.offload: auto: %s needs %s of device memory, and %s with all %sparameters%s "
              "in lower tiers, but the limit (%s) is %s, which lacks %lld bytes: use %s",
              work_of(x), need, wefti_bytes_text(least, moved),
              trains(x) ? "optimizer states, gradients, " : "",
              trains(x) ? " and saved blocks" : "", key, most, (long long)(least - x->limit),
              trains(x) ? "a smaller train.batch, or more train.accumulate"
                        : "fewer samples or rows at once, or a shorter context");
}

static bool has_entry(const weft_plan *plan, const wefti_offload_rule *entry) {
    for (int64_t i = 0; i < plan->offload.count; i++) {
        const wefti_offload_rule *own = &plan->offload.rules[i];
        if (own->what == entry->what && own->to == entry->to && !strcmp(own->match, entry->match))
            return true;
    }
    return false;
}

/* "parameters of h.0.*, h.1.* to disk; saved of h.* to host" */
static char *moves_text(const weft_plan *base, const weft_plan *plan) {
    enum { NAMED = 12 };
    wefti_text out = {0};
    const wefti_offload_rule *last = NULL;
    int named = 0;
    for (int64_t i = 0; i < plan->offload.count; i++) {
        const wefti_offload_rule *r = &plan->offload.rules[i];
        if (has_entry(base, r) || named++ >= NAMED) continue;
        const bool same = last && last->what == r->what && last->to == r->to;
        if (last && !same) wefti_text_add(&out, " to %s; ", wefti_tier_words[last->to]);
        if (!same) wefti_text_add(&out, "%s of ", wefti_offload_words[r->what]);
        wefti_text_add(&out, "%s%s", same ? ", " : "", r->match);
        last = r;
    }
    if (last) wefti_text_add(&out, " to %s", wefti_tier_words[last->to]);
    if (named > NAMED) wefti_text_add(&out, "; and %d more entries", named - NAMED);
    return wefti_text_take(&out);
}

/* Tells what moves, in a note and for reports. */
static weft_status tell(const offload_choice *x, const offload_trial *t, int64_t base) {
    char need[32], least[32], most[32];
    wefti_built *b = x->b;
    char *moves = moves_text(x->base, t->plan);
    char *note =
        wefti_format("memory.offload: auto: %s needs %s of device memory in place of %s, "
                     "of which the limit is %s: moved are %s",
                     work_of(x), wefti_bytes_text(t->bytes, least), wefti_bytes_text(base, need),
                     wefti_bytes_text(x->limit, most), moves ? moves : "");
    char *all = note ? wefti_format("%s%s\n", b->search_notes ? b->search_notes : "", note) : NULL;
    if (all) {
        wefti_setup_note(b->setup, "%s", note);
        wefti_free(b->search_notes);
        b->search_notes = all;
    }
    wefti_free(note);
    wefti_free(moves);
    WEFT_REQUIRE(all, WEFT_E_NOMEM, "no memory for a note");
    return WEFT_OK;
}

static weft_status take_trial(offload_choice *x, offload_trial *t, int64_t base) {
    WEFT_TRY(tell(x, t, base));
    weft_plan_destroy(x->b->searched);
    x->b->searched = t->plan;
    t->plan = NULL;
    return WEFT_OK;
}

/* A search has predicted another plan than the one that was chosen behind it. */
static weft_status predict_again(const offload_choice *x, const offload_trial *t) {
    weft_search_report *r = x->b->report;
    const wefti_predict_files none = {.trace = NULL};
    weft_prediction *p;
    if (!r || !r->prediction || !trains(x)) return WEFT_OK;
    const wefti_predict_options options = {.machine = x->machine,
                                           .microbatches = x->programs.microbatches,
                                           .tokens = r->prediction->tokens_per_second *
                                                     r->prediction->step_seconds,
                                           .flops = r->prediction->flops};
    WEFT_TRY(wefti_predict_classes(t->classes, &options, &none, &p));
    weft_prediction_free(r->prediction);
    r->prediction = p;
    if (r->lower_bound_seconds > 0)
        r->gap = (p->step_seconds - r->lower_bound_seconds) / r->lower_bound_seconds;
    if (r->plan_bound_seconds > p->step_seconds) r->plan_bound_seconds = p->step_seconds;
    return WEFT_OK;
}

static int64_t host_lacks(const offload_choice *x, const offload_trial *t) {
    return x->limits.host ? t->host - x->limits.host : 0;
}

static bool fits(const offload_choice *x, const offload_trial *t) {
    return t->bytes <= x->limit && host_lacks(x, t) <= 0;
}

/* *out: the first choice that fits when its programs are built, or a trial without a plan. */
static weft_status try_choices(offload_choice *x, wefti_residency_problem *p, wefti_residency *r,
                               offload_trial *out) {
    for (int round = 0; round < CHOICE_ROUNDS; round++) {
        end_trial(out);
        WEFT_TRY(wefti_residency_choose(p, r));
        if (!r->fits) return WEFT_OK;
        WEFT_TRY(try_tiers(x, r->tier, out));
        if (fits(x, out)) return WEFT_OK;
        if (out->bytes > x->limit)
            p->limit = x->limit - (out->bytes - r->peak); /* less than r->peak */
        if (host_lacks(x, out) > 0) p->room[0] -= host_lacks(x, out);
    }
    end_trial(out);
    return WEFT_OK;
}

/* ---- bytes under way ---- */

/* By the simulator's clock. */
static weft_status judge(const offload_choice *x, offload_trial *t) {
    const wefti_predict_files none = {.trace = NULL};
    const wefti_predict_options options = {.machine = x->machine,
                                           .microbatches = x->programs.microbatches};
    weft_prediction *p;
    WEFT_TRY(wefti_predict_classes(t->classes, &options, &none, &p));
    t->seconds = p->step_seconds;
    t->moved = p->host_moved_bytes + p->disk_moved_bytes;
    weft_prediction_free(p);
    return WEFT_OK;
}

/* Keeps the trial and the choice that are better, in *t and `tier`. */
static void keep(offload_trial *t, int8_t *tier, offload_trial *other, const int8_t *other_tier,
                 int32_t count) {
    const offload_trial worse = *t;
    *t = *other;
    *other = worse;
    memcpy(tier, other_tier, (size_t)count);
}

/* With more bytes under way to updates, a disk works beside more kernels; but they take room, so
 * that more must move, though no more than by the naive plan. Takes what makes a step faster, by
 * the simulator. *t and *r: the choice so far, which fits. */
static weft_status widen(offload_choice *x, const wefti_residency_problem *p, wefti_residency *r,
                         offload_trial *t) {
    int64_t best = x->base->offload.ahead;
    wefti_residency other = *r;
    if (!trains(x) || best || !r->fits) return WEFT_OK;
    other.tier = wefti_arena_alloc(x->arena, (size_t)p->count + 1);
    WEFT_REQUIRE(other.tier, WEFT_E_NOMEM, "no memory for a choice of tiers");
    WEFT_TRY(judge(x, t));
    weft_status status = WEFT_OK;
    for (int64_t ahead = LEAST_AHEAD; status >= 0 && ahead <= x->limit / 4; ahead *= 2) {
        offload_trial wider = {.plan = NULL};
        wefti_residency_problem again = *p;
        x->base->offload.ahead = ahead;
        status = try_choices(x, &again, &other, &wider);
        const bool found = status >= 0 && wider.plan;
        if (found) status = judge(x, &wider);
        if (found && wider.seconds < FASTER * t->seconds && other.moved <= r->naive) {
            keep(t, r->tier, &wider, other.tier, p->count);
            best = ahead;
        }
        end_trial(&wider);
        if (!found) break;
    }
    x->base->offload.ahead = best;
    return status;
}

/* Of the candidates that move and are not marked: the one that costs most. -1: none. */
static int32_t costliest(const wefti_residency_problem *p, const int8_t *tier, const bool *marked) {
    int32_t best = -1;
    double most = -1;
    for (int32_t i = 0; i < p->count; i++) {
        const double seconds = tier[i] == WEFTI_RESIDENCY_STAYS || marked[i]
                                   ? -1
                                   : p->candidates[i].to[tier[i]].seconds;
        if (seconds < most ||
            (seconds == most && (best < 0 || p->candidates[i].bytes <= p->candidates[best].bytes)))
            continue;
        best = i;
        most = seconds;
    }
    return best;
}

/* Keeps in device memory what need not move. *t: the programs of the choice. If they do not fit,
 * keeps what needs more memory elsewhere. */
static weft_status take_back(offload_choice *x, const wefti_residency_problem *p, int8_t *tier,
                             offload_trial *t) {
    bool *tried = wefti_arena_alloc(x->arena, (size_t)p->count + 1);
    int8_t *less = wefti_arena_alloc(x->arena, (size_t)p->count + 1);
    WEFT_REQUIRE(tried && less, WEFT_E_NOMEM, "no memory for a choice of tiers");
    for (int32_t i; x->tries > 0 && (i = costliest(p, tier, tried)) >= 0; x->tries--) {
        offload_trial other = {.plan = NULL};
        memcpy(less, tier, (size_t)p->count);
        less[i] = WEFTI_RESIDENCY_STAYS;
        tried[i] = true;
        const weft_status status = try_tiers(x, less, &other);
        if (status >= 0 && (fits(x, &other) || (!fits(x, t) && other.bytes <= t->bytes)))
            keep(t, tier, &other, less, p->count);
        end_trial(&other);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* All candidates of some kinds, each to the first tier that has room. False: there are none of one
 * of these kinds. */
static bool move_kinds(const wefti_residency_problem *p, unsigned kinds, int8_t *tier) {
    int64_t room[WEFTI_RESIDENCY_TIERS];
    unsigned found = 0;
    memcpy(room, p->room, sizeof room);
    for (int32_t i = 0; i < p->count; i++) {
        const wefti_residency_candidate *c = &p->candidates[i];
        tier[i] = WEFTI_RESIDENCY_STAYS;
        if (!(kinds >> c->kind & 1)) continue;
        for (int t = 0; t < WEFTI_RESIDENCY_TIERS && tier[i] == WEFTI_RESIDENCY_STAYS; t++)
            if (c->to[t].allowed && c->bytes <= room[t]) {
                tier[i] = (int8_t)t;
                room[t] -= c->bytes;
                found |= 1u << c->kind;
            }
    }
    return found == kinds;
}

/* Kinds as a whole, since the estimates of single candidates are rough. *t: the best trial that
 * fits and copies no more bytes than `most`, or without a plan. */
static weft_status try_kinds(offload_choice *x, const wefti_residency_problem *p, int64_t most,
                             int8_t *tier, offload_trial *t) {
    int8_t *next = wefti_arena_alloc(x->arena, (size_t)p->count + 1);
    WEFT_REQUIRE(next, WEFT_E_NOMEM, "no memory for a choice of tiers");
    const int32_t left = x->tries / 2;
    for (unsigned kinds = 1; kinds < 1u << WEFT_OFFLOADS && x->tries > left; kinds++) {
        offload_trial other = {.plan = NULL};
        if (!move_kinds(p, kinds, next)) continue;
        x->tries--;
        weft_status status = try_tiers(x, next, &other);
        if (status >= 0 && fits(x, &other)) status = judge(x, &other);
        if (status >= 0 && fits(x, &other) && other.moved <= most &&
            (!t->plan || other.seconds < t->seconds))
            keep(t, tier, &other, next, p->count);
        end_trial(&other);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* *t: the choice by estimates, or without a plan. */
static weft_status improve(offload_choice *x, const wefti_residency_problem *p, int8_t *tier,
                           offload_trial *t) {
    offload_trial other = {.plan = NULL};
    int8_t *next = wefti_arena_alloc(x->arena, (size_t)p->count + 1);
    WEFT_REQUIRE(next, WEFT_E_NOMEM, "no memory for a choice of tiers");
    x->tries = p->times ? TRIED_STEPS / p->times : 0;
    if (t->plan) WEFT_TRY(take_back(x, p, tier, t));
    if (t->plan) WEFT_TRY(judge(x, t));
    weft_status status = try_kinds(x, p, t->plan ? t->moved : INT64_MAX, next, &other);
    if (status >= 0 && other.plan) status = take_back(x, p, next, &other);
    if (status >= 0 && other.plan) status = judge(x, &other);
    if (status >= 0 && other.plan && (!t->plan || other.seconds < t->seconds))
        keep(t, tier, &other, next, p->count);
    end_trial(&other);
    return status;
}

static weft_status choose_moves(offload_choice *x, const offload_trial *base, offload_trial *t) {
    const wefti_movable_costs costs = {
        .machine = x->machine,
        .microbatches = x->programs.microbatches,
        .ranks = x->programs.devices,
        .programs_count = x->programs_count,
        .allowed = {x->tiers[WEFT_TIER_HOST], x->tiers[WEFT_TIER_DISK]}};
    wefti_residency_problem p, first;
    wefti_residency r = {.tier = NULL};
    WEFT_TRY(wefti_movable_find(x->programs.graph[0], x->base, x->arena, &x->movable));
    WEFT_TRY(wefti_movable_problem(&x->movable, base->classes, &costs, &p));
    p.limit = x->limit;
    find_rooms(x, base->classes, p.room);
    r.tier = wefti_arena_alloc(x->arena, (size_t)p.count + 1);
    WEFT_REQUIRE(r.tier, WEFT_E_NOMEM, "no memory for a choice of tiers");
    first = p;
    WEFT_TRY(try_choices(x, &p, &r, t));
    if (t->plan) WEFT_TRY(widen(x, &first, &r, t));
    WEFT_TRY(improve(x, &p, r.tier, t));
    if (!t->plan) {
        for (unsigned kinds = 1u << WEFT_OFFLOADS; !move_kinds(&p, --kinds, r.tier);) {
        }
        WEFT_TRY(try_tiers(x, r.tier, t));
        WEFT_TRY(take_back(x, &p, r.tier, t));
    }
    /* A joint search does not count programs. Its plan stays, for those who do to refuse it. */
    if (!fits(x, t) && wefti_built_is_joint(x->b)) return WEFT_OK;
    if (t->bytes <= x->limit && !fits(x, t)) r.lacking = 0, r.lacks = host_lacks(x, t);
    if (!fits(x, t)) return refuse(x, base->bytes, t->bytes, &r);
    WEFT_TRY(predict_again(x, t));
    return take_trial(x, t, base->bytes);
}

/* ---- rank 0 ---- */

/* The hosts of a world decide about buddies. */
static weft_status place_ranks(wefti_job_programs *of, const weft_world *world) {
    WEFT_NEW_ARRAY(of->host, int32_t, of->devices);
    memcpy(of->host, world->host, (size_t)of->devices * sizeof *of->host);
    return WEFT_OK;
}

/* Entries that a search has tried are no decisions of the user. */
static weft_status begin_base(offload_choice *x) {
    const weft_plan *job = x->b->job->plan, *plan = wefti_built_plan(x->b);
    if (plan) {
        WEFT_TRY(wefti_plan_copy(plan, &x->base));
        if (plan != job) x->base->offload.count = 0;
        return plan != job && job ? wefti_plan_take_offload(x->base, job) : WEFT_OK;
    }
    WEFT_TRY(weft_plan_create(x->programs.devices, &x->base));
    return weft_plan_accumulate(x->base, (int)x->b->job->train.accumulate);
}

static weft_status begin(offload_choice *x, weft_graph *const *graphs, int32_t count) {
    wefti_built *b = x->b;
    wefti_job_programs *of = &x->programs;
    const weft_session_options *o = x->options;
    int64_t limit;
    *of = (wefti_job_programs){
        .built = {.job = b->job}, .devices = wefti_built_devices(b), .graphs = count};
    for (int32_t g = 0; g < count; g++) {
        of->graph[g] = graphs[g];
        WEFT_TRY(wefti_graph_wrap(graphs[g]));
    }
    WEFT_TRY(wefti_arena_create(&x->arena));
    WEFT_TRY(wefti_built_machine(b, &x->machine, &limit));
    x->limits = wefti_built_limits(b);
    x->programs_count = !x->limits.device;
    x->limit = limit ? limit : (int64_t)x->machine->device.memory_bytes.value;
    const int64_t own = x->programs_count ? b->limits.memory : b->limits.device;
    if (own && own < x->limit) x->limit = own;
    wefti_built_tiers(b, x->machine, x->tiers);
    WEFT_TRY(begin_base(x));
    if (*b->job->machine) WEFT_TRY(wefti_job_programs_place(of, x->machine));
    if (!*b->job->machine && b->setup->party.world)
        WEFT_TRY(place_ranks(of, b->setup->party.world));
    WEFT_TRY(wefti_route_cache_create(&of->routes));
    const int64_t threads = (o->threads ? o->threads : wefti_cores()) / wefti_built_sharing(b);
    of->prepare = (wefti_prepare){.threads = threads > 1 ? (int)threads : 1,
                                  .bf16 = wefti_session_choose_bf16(graphs[0], o->bf16)};
    return trains(x) ? wefti_optimizer_for(o, graphs[0], &of->optimizer) : WEFT_OK;
}

static weft_status choose(offload_choice *x, weft_graph *const *graphs, int32_t count) {
    offload_trial base = {.plan = NULL}, t = {.plan = NULL};
    WEFT_TRY(begin(x, graphs, count));
    weft_status status = try_plan(x, x->base, &base);
    if (status >= 0 && base.bytes > x->limit) status = choose_moves(x, &base, &t);
    end_trial(&t);
    end_trial(&base);
    return status;
}

static weft_status choose_alone(wefti_built *b, const weft_session_options *options,
                                weft_graph *const *graphs, int32_t count) {
    offload_choice x = {.b = b, .options = options};
    const weft_status status = choose(&x, graphs, count);
    wefti_movable_free(&x.movable);
    wefti_job_programs_free(&x.programs);
    wefti_model_destroy(x.machine);
    weft_plan_destroy(x.base);
    wefti_arena_destroy(x.arena);
    return status;
}

weft_status wefti_built_offload(wefti_built *b, const weft_session_options *options,
                                weft_graph *const *graphs, int32_t count) {
    const wefti_setup *s = b->setup;
    if (!wefti_job_offloads_auto(b->job) || (s->briefing && !s->briefing->anew)) return WEFT_OK;
    const weft_status status = s->party.follows ? WEFT_OK : choose_alone(b, options, graphs, count);
    return s->party.agreement ? wefti_built_share_plan(b, status) : status;
}
