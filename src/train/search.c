/* The plan of a job of mode auto, or of a resume: rank 0 searches, or reads the record of the run,
 * and sends the plan to the others. */
#include <string.h>

#include "plan/plan.h"
#include "train/record/record.h"
#include "weft/search.h"

const weft_plan *wefti_training_plan(const wefti_training *t) {
    return t->searched ? t->searched : t->job->plan;
}

static weft_search_options options_of(const weft_job *job) {
    const weft_job_cost *c = &job->parallel.cost;
    return (weft_search_options){
        .struct_bytes = sizeof(weft_search_options),
        .search = job->parallel.search,
        .cost = {.alpha = c->alpha,
                 .beta = c->beta,
                 .gamma = c->gamma,
                 .threshold = c->threshold,
                 .constant = c->constant,
                 .bias = c->bias,
                 .capacity = (double)c->capacity,
                 .inference = c->phase == WEFT_PHASE_INFERENCE},
        .cost_model = c->model,
        .rules = job->parallel.algorithm,
    };
}

static weft_status search(wefti_training *t) {
    const weft_search_options options = options_of(t->job);
    char *notes = NULL;
    WEFT_TRY(weft_plan_search(t->model.graph, t->job->plan, &options, &t->searched, &notes));
    for (const char *line = notes, *end; (end = strchr(line, '\n')); line = end + 1)
        wefti_training_note(t, "%.*s", (int)(end - line), line);
    wefti_free(t->search_notes);
    t->search_notes = notes;
    return wefti_plan_refine(t->searched);
}

bool wefti_training_is_joint(const wefti_training *t) {
    const weft_job_parallel *p = &t->job->parallel;
    return p->mode == WEFT_JOB_MODE_AUTO && p->search == WEFT_SEARCH_JOINT && !*p->plan &&
           t->job->plan;
}

/* Whether the job leaves its plan to a search. */
static bool searches(const weft_job *job) {
    const weft_job_parallel *p = &job->parallel;
    return p->mode == WEFT_JOB_MODE_AUTO && !*p->plan && job->plan &&
           (p->search == WEFT_SEARCH_JOINT || weft_plan_devices(job->plan) > 1);
}

/* Rank 0's part. */
static weft_status choose(wefti_training *t) {
    if (t->record.resumes) WEFT_TRY(wefti_run_record_plan(t, &t->searched));
    if (t->searched || !searches(t->job)) return WEFT_OK;
    return wefti_training_is_joint(t) ? wefti_training_joint(t) : search(t);
}

/* Sends the plan of rank 0, if it has another one than the job. */
static weft_status share(wefti_training *t, weft_status found) {
    char *text = NULL;
    if (found >= 0 && t->searched) found = wefti_plan_print(t->searched, &text);
    int64_t bytes = text ? (int64_t)strlen(text) : 0;
    weft_status status = wefti_party_share_text(&t->party, found, &text, &bytes);
    if (status >= 0 && text && t->party.follows)
        status = wefti_plan_parse("the plan of rank 0", text, bytes, &t->searched);
    wefti_free(text);
    return status;
}

static void take_microbatches(wefti_training *t) {
    const weft_plan *plan = t->searched;
    const int64_t parts =
        plan->pipeline.stages > 1 ? plan->pipeline.microbatches : plan->accumulate;
    t->batch.microbatches = parts * plan->copies;
    t->batch.micro = t->job->train.batch / t->batch.microbatches;
}

/* A newcomer has the plan of the other ranks already. */
static weft_status take_briefed(wefti_training *t) {
    const char *text = t->briefing->plan;
    if (!text) return WEFT_OK;
    WEFT_TRY(wefti_plan_parse("the plan of the run", text, (int64_t)strlen(text), &t->searched));
    if (wefti_training_is_joint(t)) take_microbatches(t);
    return WEFT_OK;
}

weft_status wefti_training_search(wefti_training *t) {
    if (t->searched) return WEFT_OK;
    if (t->briefing && !t->briefing->anew) return take_briefed(t);
    weft_status status = t->party.follows ? WEFT_OK : choose(t);
    if (t->party.agreement) status = share(t, status);
    WEFT_TRY(status);
    if (t->searched && wefti_training_is_joint(t)) take_microbatches(t);
    return WEFT_OK;
}
