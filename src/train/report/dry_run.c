/* A dry run: one process builds and matches the programs of a job, as sessions do before their
 * first step, one for each class of equal ranks. It has no arenas and no threads, and opens data
 * only if the model's sizes depend on them. */
#include "base/clock.h"
#include "program/print.h"
#include "search/search.h"
#include "setup/programs.h"
#include "weft/launch.h"

typedef struct dry_run {
    wefti_job_programs programs;
    weft_dry_run *out;
    int32_t fused[3]; /* the most tensors that each fusion may join on a rank */
} dry_run;

/* How often a section runs in a step. */
static int64_t times(const dry_run *r, const wefti_program *p, int section) {
    if (section != WEFTI_SECTION_NEXT) return 1;
    if (p->all_microbatches) return 0;
    return r->programs.microbatches - 1 - (p->step_count[WEFTI_SECTION_LAST] > 0);
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

/* Adds the programs of `ranks` equal ranks to the report. */
static weft_status describe(dry_run *r, wefti_program *const *programs, int32_t ranks) {
    enum { NAMED = 5 }; /* how many of the largest tensors are named */
    weft_dry_run *o = r->out;
    const wefti_program *p = programs[0];
    const int64_t peak = wefti_footprint_bytes(
        wefti_programs_footprint(programs, r->programs.graphs), WEFTI_SPACE_DEVICE);
    int64_t own = 0;
    count_transfers(r, p, ranks);
    for (int32_t g = 0; g < r->programs.graphs; g++) own += programs[g]->program_bytes;
    if (own > o->program_bytes) o->program_bytes = own;
    for (int k = 0; k < 3; k++)
        if (p->fused[k] > r->fused[k]) r->fused[k] = p->fused[k];
    if (!o->checked || peak < o->least_bytes) {
        o->least_bytes = peak;
        o->least_rank = p->rank;
    }
    if (!o->checked || peak > o->most_bytes) {
        o->most_bytes = peak;
        o->most_rank = p->rank;
        wefti_free(o->largest);
        o->largest = NULL;
        WEFT_TRY(wefti_program_largest(p, NAMED, &o->largest));
    }
    o->checked += ranks;
    return WEFT_OK;
}

static weft_status check_all(dry_run *r) {
    WEFT_TRY(wefti_job_programs_classes(&r->programs));
    const wefti_rank_classes *all = r->programs.classes;
    for (int32_t c = 0; c < all->count; c++)
        WEFT_TRY(describe(r, all->classes[c].programs, all->classes[c].count));
    return wefti_job_programs_within(&r->programs);
}

static weft_status check_one(dry_run *r, int32_t rank) {
    const weft_job *job = r->programs.built.job;
    wefti_program *programs[2] = {NULL, NULL};
    weft_status status = wefti_job_programs_build(&r->programs, rank, true, programs);
    if (status >= 0) status = describe(r, programs, 1);
    if (status >= 0 && job->progress.call) job->progress.call(job->progress.context, 1, 1);
    if (status >= 0) status = wefti_job_programs_fits(&r->programs, programs);
    for (int g = 1; g >= 0; g--) wefti_program_destroy(programs[g]);
    return status;
}

/* Without a rank of each stage, the effect of fusion is unknown. */
static weft_status find_unmatched(const dry_run *r, int rank) {
    const weft_plan *plan = r->programs.plan;
    if (!plan) return WEFT_OK;
    const int32_t *fused = rank < 0 || plan->pipeline.stages == 1 ? r->fused : NULL;
    return wefti_plan_unmatched(plan, r->programs.built.model.graph, fused, &r->out->unmatched);
}

static weft_status check(dry_run *r, const weft_job *job, int rank) {
    const int ranks = job->plan ? weft_plan_devices(job->plan) : 1;
    r->out->ranks = ranks;
    WEFT_REQUIRE(rank >= -1 && rank < ranks, WEFT_E_ARG,
                 "rank %d does not exist: the job has %d rank%s, 0 to %d", rank, ranks,
                 ranks == 1 ? "" : "s", ranks - 1);
    WEFT_TRY(wefti_job_programs_open(job, &r->programs));
    WEFT_TRY(rank < 0 ? check_all(r) : check_one(r, rank));
    return find_unmatched(r, rank);
}

weft_status weft_job_dry_run(const weft_job *job, int rank,
                             void (*progress)(void *context, int done, int of), void *context,
                             weft_dry_run *out) {
    const double begin = wefti_now_s();
    weft_job watched = *job;
    dry_run r = {.out = out};
    *out = (weft_dry_run){0};
    watched.progress.call = progress;
    watched.progress.context = context;
    weft_status status = check(&r, &watched, rank);
    wefti_job_programs_close(&r.programs);
    out->seconds = wefti_now_s() - begin;
    return status;
}

void weft_dry_run_free(weft_dry_run *report) {
    wefti_free(report->largest);
    wefti_free(report->unmatched);
    report->largest = report->unmatched = NULL;
}
