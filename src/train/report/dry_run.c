/* A dry run: one process builds and matches the programs of a job, as sessions do before their
 * first step, one for each class of equal ranks. It has no arenas and no threads, and opens data
 * only if the model's sizes depend on them. */
#include <stdio.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/text.h"
#include "builder/fold/fold.h"
#include "program/limit.h"
#include "program/match.h"
#include "program/print.h"
#include "session/optimizer.h"
#include "search/search.h"
#include "train/training.h"
#include "weft/launch.h"

typedef struct dry_run {
    const wefti_training *training;
    const wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    weft_dry_run *out;
    int32_t fused[3]; /* the most tensors that each fusion may join on a rank */
    void (*progress)(void *context, int done, int of);
    void *context;
} dry_run;

static weft_status build_rank(void *context, int32_t rank, wefti_program **out) {
    const dry_run *r = context;
    const wefti_training *t = r->training;
    const int64_t wanted = t->job->device.threads; /* of all devices of a host together */
    const wefti_program_spec spec = {
        .graph = t->model.graph,
        .backends = wefti_builtin_backends(),
        .prepare = {.threads = wanted > r->out->ranks ? (int)(wanted / r->out->ranks) : 1,
                    .bf16 = WEFTI_BF16_AS_F32,
                    .dry = true},
        .optimizer = wefti_optimizer_plan_of(r->optimizer),
        .microbatches = (int32_t)t->batch.microbatches,
        .plan = wefti_training_plan(t),
        .rank = rank,
        .routes = r->routes,
    };
    return wefti_program_build(&spec, out);
}

/* How often a section runs in a step. */
static int64_t times(const dry_run *r, const wefti_program *p, int section) {
    if (section != WEFTI_SECTION_NEXT) return 1;
    if (p->all_microbatches) return 0;
    return r->training->batch.microbatches - 1 - (p->step_count[WEFTI_SECTION_LAST] > 0);
}

/* Counts for `ranks` ranks that are equal to the program's rank. */
static void count_transfers(const dry_run *r, const wefti_program *p, int32_t ranks) {
    double received = 0;
    for (int section = 0; section < WEFTI_SECTIONS; section++) {
        const int64_t runs = times(r, p, section);
        for (int32_t s = 0; s < p->step_count[section] && runs; s++) {
            const int64_t count = runs * wefti_program_times(p, (wefti_section)section, s);
            wefti_step_transfer x;
            for (int32_t at = 0; wefti_step_transfer_next(p, &p->steps[section][s], &at, &x);) {
                received += (double)(x.receives * count);
                r->out->transfers += count * ranks;
            }
        }
    }
    r->out->received_bytes += received * ranks;
    if (received <= r->out->most_received_bytes && r->out->checked) return;
    r->out->most_received_bytes = received;
    r->out->most_received_rank = p->rank;
}

static weft_status describe(dry_run *r, const wefti_program *p, int32_t ranks) {
    enum { NAMED = 5 }; /* how many of the largest tensors are named */
    weft_dry_run *o = r->out;
    count_transfers(r, p, ranks);
    for (int k = 0; k < 3; k++)
        if (p->fused[k] > r->fused[k]) r->fused[k] = p->fused[k];
    if (!o->checked || p->peak_bytes < o->least_bytes) {
        o->least_bytes = p->peak_bytes;
        o->least_rank = p->rank;
    }
    if (!o->checked || p->peak_bytes > o->most_bytes) {
        o->most_bytes = p->peak_bytes;
        o->most_rank = p->rank;
        wefti_free(o->largest);
        o->largest = NULL;
        WEFT_TRY(wefti_program_largest(p, NAMED, &o->largest));
    }
    o->checked += ranks;
    return WEFT_OK;
}

static weft_status check_limit(const dry_run *r, const wefti_program *p) {
    return wefti_program_within(p, p->peak_bytes, p->program_bytes,
                                r->training->job->device.memory_bytes,
                                wefti_optimizer_plan_of(r->optimizer) != NULL, r->out->ranks);
}

static weft_status found(void *context, wefti_rank_class *c, int32_t done) {
    dry_run *r = context;
    WEFT_TRY(describe(r, c->programs[0], c->count));
    if (r->progress) r->progress(r->context, done, r->out->ranks);
    return WEFT_OK;
}

static weft_status match_classes(const wefti_rank_classes *all) {
    const wefti_program **programs;
    if (all->ranks == 1) return WEFT_OK;
    WEFT_NEW_ARRAY(programs, const wefti_program *, all->count);
    for (int32_t c = 0; c < all->count; c++) programs[c] = all->classes[c].programs[0];
    const wefti_match_classes classes = {programs, all->count, all->class_of, all->ranks};
    weft_status status = wefti_classes_match(&classes);
    wefti_free(programs);
    return status;
}

static weft_status build_all(dry_run *r) {
    const wefti_fold fold = {.plan = wefti_training_plan(r->training),
                             .graphs = 1,
                             .context = r,
                             .build = build_rank,
                             .found = found};
    wefti_rank_classes *all;
    WEFT_TRY(wefti_rank_classes_find(&fold, &all));
    weft_status status = match_classes(all);
    if (status >= 0)
        status = check_limit(r, wefti_rank_class_of(all, r->out->most_rank)->programs[0]);
    wefti_rank_classes_destroy(all);
    return status;
}

static weft_status build_one(dry_run *r, int32_t rank) {
    wefti_program *p;
    WEFT_TRY(build_rank(r, rank, &p));
    weft_status status = describe(r, p, 1);
    if (status >= 0 && r->progress) r->progress(r->context, 1, 1);
    if (status >= 0) status = check_limit(r, p);
    wefti_program_destroy(p);
    return status;
}

static weft_status build_and_match(dry_run *r, int rank) {
    const wefti_training *t = r->training;
    weft_session_options o = wefti_training_options(t);
    wefti_optimizer *optimizer;
    WEFT_TRY(wefti_optimizer_create(&o.optimizer, o.clip > 0, t->model.graph, &optimizer));
    r->optimizer = optimizer;
    weft_status status = rank < 0 ? build_all(r) : build_one(r, rank);
    wefti_optimizer_destroy(optimizer);
    return status;
}

static weft_status prepare(wefti_training *t, dry_run *r, int rank) {
    const weft_plan *plan = wefti_training_plan(t);
    const int ranks = r->out->ranks = plan ? weft_plan_devices(plan) : 1;
    WEFT_REQUIRE(rank >= -1 && rank < ranks, WEFT_E_ARG,
                 "rank %d does not exist: the job has %d rank%s, 0 to %d", rank, ranks,
                 ranks == 1 ? "" : "s", ranks - 1);
    WEFT_TRY(wefti_training_configure(t));
    WEFT_TRY(wefti_training_graph(t));
    WEFT_TRY(wefti_graph_wrap(t->model.graph));
    if (ranks > 1) WEFT_TRY(wefti_route_cache_create(&r->routes));
    return WEFT_OK;
}

/* Without a rank of each stage, the effect of fusion is unknown. */
static weft_status find_unmatched(const dry_run *r, int rank) {
    const weft_plan *plan = wefti_training_plan(r->training);
    if (!plan) return WEFT_OK;
    const int32_t *fused = rank < 0 || plan->pipeline.stages == 1 ? r->fused : NULL;
    return wefti_plan_unmatched(plan, r->training->model.graph, fused, &r->out->unmatched);
}

weft_status weft_job_dry_run(const weft_job *job, int rank,
                             void (*progress)(void *context, int done, int of), void *context,
                             weft_dry_run *out) {
    const double begin = wefti_now_s();
    wefti_training t = {.job = job};
    *out = (weft_dry_run){0};
    dry_run r = {.training = &t, .out = out, .progress = progress, .context = context};
    weft_status status = prepare(&t, &r, rank);
    if (status >= 0) status = build_and_match(&r, rank);
    if (status >= 0) status = find_unmatched(&r, rank);
    wefti_route_cache_destroy(r.routes);
    wefti_training_close(&t);
    out->seconds = wefti_now_s() - begin;
    return status;
}

void weft_dry_run_free(weft_dry_run *report) {
    wefti_free(report->largest);
    wefti_free(report->unmatched);
    report->largest = report->unmatched = NULL;
}
