/* A dry run: one process builds and matches the programs of all ranks of a job, as sessions do
 * before their first step. It has no arenas and no threads, and opens data only if the model's
 * sizes depend on them. */
#include <stdio.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/text.h"
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
    wefti_program **programs; /* [ranks] */
    weft_dry_run *out;
    int32_t fused[3]; /* the most tensors that each fusion may join on a rank */
    void (*progress)(void *context, int done, int of);
    void *context;
} dry_run;

static weft_status build_rank(const dry_run *r, int32_t rank, wefti_program **out) {
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
    return p->all_microbatches ? 0 : r->training->batch.microbatches - 1;
}

static void count_transfers(const dry_run *r, const wefti_program *p) {
    double received = 0;
    for (int section = 0; section < WEFTI_SECTIONS; section++) {
        const int64_t runs = times(r, p, section);
        for (int32_t s = 0; s < p->step_count[section] && runs; s++) {
            const int64_t count = runs * wefti_program_times(p, (wefti_section)section, s);
            wefti_step_transfer x;
            for (int32_t at = 0; wefti_step_transfer_next(p, &p->steps[section][s], &at, &x);) {
                received += (double)(x.receives * count);
                r->out->transfers += count;
            }
        }
    }
    r->out->received_bytes += received;
    if (received <= r->out->most_received_bytes && r->out->checked) return;
    r->out->most_received_bytes = received;
    r->out->most_received_rank = p->rank;
}

static weft_status describe(dry_run *r, const wefti_program *p) {
    enum { NAMED = 5 }; /* how many of the largest tensors are named */
    weft_dry_run *o = r->out;
    count_transfers(r, p);
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
    o->checked++;
    return WEFT_OK;
}

static weft_status build_ranks(dry_run *r, int first, int count) {
    for (int32_t rank = first; rank < first + count; rank++) {
        WEFT_TRY(build_rank(r, rank, &r->programs[rank]));
        WEFT_TRY(describe(r, r->programs[rank]));
        if (r->progress) r->progress(r->context, rank - first + 1, count);
    }
    if (count < r->out->ranks || count == 1) return WEFT_OK;
    return wefti_programs_match((const wefti_program *const *)r->programs, count);
}

static weft_status build_and_match(dry_run *r, int rank) {
    const wefti_training *t = r->training;
    weft_session_options o = wefti_training_options(t);
    wefti_optimizer *optimizer;
    const int ranks = r->out->ranks;
    weft_status status;
    WEFT_TRY(wefti_optimizer_create(&o.optimizer, o.clip > 0, t->model.graph->ops, &optimizer));
    r->optimizer = optimizer;
    r->programs = wefti_calloc((size_t)ranks, sizeof *r->programs);
    if (!r->programs)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the programs of %d ranks", ranks);
    else
        status = rank < 0 ? build_ranks(r, 0, ranks) : build_ranks(r, rank, 1);
    for (int i = 0; r->programs && i < ranks; i++) wefti_program_destroy(r->programs[i]);
    wefti_free(r->programs);
    wefti_optimizer_destroy(optimizer);
    return status;
}

static weft_status prepare(wefti_training *t, dry_run *r, int rank) {
    const weft_plan *plan = t->job->plan;
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
