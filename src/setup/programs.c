/* The programs of a job, built without a session: see setup/programs.h. */
#include "setup/programs.h"

#include "backend/kinds.h"
#include "plan/plan.h"
#include "program/limit.h"
#include "program/match.h"

/* ---- what programs are built from ---- */

/* Threads of one device, as a session in this process has them. */
static int threads_of(const wefti_job_programs *p) {
    const int wanted = (int)p->built.job->device.threads;
    const int threads = (wanted ? wanted : wefti_cores()) / p->devices;
    return threads > 1 ? threads : 1;
}

static weft_status take_plan(wefti_job_programs *p, const weft_session_options *o) {
    p->devices = 1;
    p->microbatches = o->microbatches;
    if (!o->plan) return WEFT_OK;
    WEFT_TRY(wefti_session_take_plan(o, &p->microbatches, &p->plan));
    p->devices = p->plan->devices;
    return wefti_route_cache_create(&p->routes);
}

static weft_status open_graphs(wefti_job_programs *p) {
    const wefti_built_model *m = &p->built.model;
    WEFT_TRY(wefti_built_graphs(&p->built));
    p->graph[p->graphs++] = m->graph;
    if (m->eval_graph) p->graph[p->graphs++] = m->eval_graph;
    for (int32_t g = 0; g < p->graphs; g++) WEFT_TRY(wefti_graph_wrap(p->graph[g]));
    return WEFT_OK;
}

/* Buddies are chosen by host, which the job's machine tells. */
static weft_status place_buddies(wefti_job_programs *p, const weft_job *job) {
    wefti_machine_model *machine;
    if (!job->recovery.buddy || !*job->machine) return WEFT_OK;
    WEFT_TRY(wefti_model_find(job->machine, &machine));
    weft_status status = wefti_job_programs_place(p, machine);
    wefti_model_destroy(machine);
    return status;
}

weft_status wefti_job_programs_open(const weft_job *job, wefti_job_programs *p) {
    *p = (wefti_job_programs){.built = {.setup = &p->setup, .job = job}};
    wefti_built *b = &p->built;
    WEFT_TRY(wefti_built_configure(b));
    WEFT_TRY(open_graphs(p));
    const weft_session_options o = wefti_built_options(b);
    WEFT_TRY(take_plan(p, &o));
    WEFT_TRY(place_buddies(p, job));
    p->prepare = (wefti_prepare){.threads = threads_of(p),
                                 .bf16 = wefti_session_choose_bf16(b->model.graph, o.bf16)};
    return wefti_optimizer_for(&o, b->model.graph, &p->optimizer);
}

void wefti_job_programs_free(wefti_job_programs *p) {
    wefti_rank_classes_destroy(p->classes);
    wefti_optimizer_destroy(p->optimizer);
    wefti_route_cache_destroy(p->routes);
    weft_plan_destroy(p->plan);
    wefti_free(p->host);
}

void wefti_job_programs_close(wefti_job_programs *p) {
    wefti_job_programs_free(p);
    wefti_built_close(&p->built);
    wefti_setup_close(&p->setup);
}

weft_status wefti_job_programs_place(wefti_job_programs *p, const wefti_machine_model *machine) {
    wefti_free(p->host);
    WEFT_NEW_ARRAY(p->host, int32_t, p->devices);
    for (int32_t r = 0; r < p->devices; r++) p->host[r] = r / wefti_model_per_host(machine);
    return WEFT_OK;
}

/* ---- programs ---- */

weft_status wefti_job_programs_build(const wefti_job_programs *p, int32_t rank, bool dry,
                                     wefti_program **programs) {
    wefti_program_spec spec = {.kind = wefti_kind_of(rank),
                               .prepare = p->prepare,
                               .optimizer = wefti_optimizer_plan_of(p->optimizer),
                               .microbatches = p->microbatches,
                               .plan = p->plan && wefti_plan_matters(p->plan) ? p->plan : NULL,
                               .rank = rank,
                               .host = p->host,
                               .routes = p->routes};
    spec.prepare.dry = dry;
    for (int32_t g = 0; g < p->graphs; g++) {
        spec.graph = p->graph[g];
        spec.before = wefti_programs_footprint(programs, g);
        WEFT_TRY(wefti_program_build(&spec, &programs[g]));
        spec.optimizer = NULL;
        spec.microbatches = 1;
        spec.shared = programs[0];
    }
    return WEFT_OK;
}

static weft_status build(void *context, int32_t rank, wefti_program **programs) {
    return wefti_job_programs_build(context, rank, true, programs);
}

static weft_status found(void *context, wefti_rank_class *c, int32_t done) {
    const wefti_job_programs *p = context;
    (void)c;
    const weft_job *job = p->built.job;
    if (job->progress.call) job->progress.call(job->progress.context, done, p->devices);
    return WEFT_OK;
}

static weft_status match(const wefti_job_programs *p, int32_t graph) {
    const wefti_rank_classes *all = p->classes;
    const wefti_program **programs;
    if (all->ranks == 1) return WEFT_OK;
    WEFT_NEW_ARRAY(programs, const wefti_program *, all->count);
    for (int32_t c = 0; c < all->count; c++) programs[c] = all->classes[c].programs[graph];
    const wefti_match_classes classes = {programs, all->count, all->class_of, all->ranks};
    weft_status status = wefti_classes_match(&classes);
    wefti_free(programs);
    return status;
}

weft_status wefti_job_programs_classes(wefti_job_programs *p) {
    const wefti_fold fold = {.plan = p->devices > 1 ? p->plan : NULL,
                             .graphs = p->graphs,
                             .context = p,
                             .build = build,
                             .found = found};
    WEFT_TRY(wefti_rank_classes_find(&fold, &p->classes));
    for (int32_t g = 0; g < p->graphs; g++) WEFT_TRY(match(p, g));
    return WEFT_OK;
}

wefti_needs wefti_job_programs_needs(wefti_program *const *programs, int32_t graphs) {
    wefti_needs needs = {.arenas = wefti_programs_footprint(programs, graphs)};
    for (int32_t g = 0; g < graphs; g++) needs.programs += programs[g]->program_bytes;
    return needs;
}

/* `programs`: of one rank, one for each graph. */
weft_status wefti_job_programs_fits(const wefti_job_programs *p, wefti_program *const *programs) {
    const wefti_limits limits = wefti_built_limits(&p->built);
    const bool trains = wefti_optimizer_plan_of(p->optimizer) != NULL;
    const wefti_needs needs = wefti_job_programs_needs(programs, p->graphs);
    return wefti_program_within(programs[0], &needs, &limits, trains, p->devices);
}

weft_status wefti_job_programs_within(const wefti_job_programs *p) {
    for (int32_t c = 0; c < p->classes->count; c++)
        WEFT_TRY(wefti_job_programs_fits(p, p->classes->classes[c].programs));
    return WEFT_OK;
}

void wefti_job_programs_fused(const wefti_job_programs *p, int32_t out[3]) {
    for (int k = 0; k < 3; k++) {
        out[k] = 0;
        for (int32_t c = 0; c < p->classes->count; c++) {
            const int32_t fused = p->classes->classes[c].programs[0]->fused[k];
            if (fused > out[k]) out[k] = fused;
        }
    }
}

const wefti_program *wefti_job_programs_largest(const wefti_job_programs *p, int32_t graph) {
    const wefti_program *largest = NULL;
    for (int32_t c = 0; c < p->classes->count; c++) {
        const wefti_program *x = p->classes->classes[c].programs[graph];
        if (!largest || x->peak_bytes > largest->peak_bytes) largest = x;
    }
    return largest;
}
