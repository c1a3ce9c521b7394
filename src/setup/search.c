/* The plan of a job of mode auto, or of a resume: rank 0 searches, or reads the record of the run,
 * and sends the plan to the others. */
#include <string.h>

#include "plan/plan.h"
#include "setup/setup.h"
#include "weft/search.h"

const weft_plan *wefti_built_plan(const wefti_built *b) {
    return b->searched ? b->searched : b->job->plan;
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

static weft_status search(wefti_built *b) {
    const weft_search_options options = options_of(b->job);
    char *notes = NULL;
    WEFT_TRY(weft_plan_search(b->model.graph, b->job->plan, &options, &b->searched, &notes));
    for (const char *line = notes, *end; (end = strchr(line, '\n')); line = end + 1)
        wefti_setup_note(b->setup, "%.*s", (int)(end - line), line);
    wefti_free(b->search_notes);
    b->search_notes = notes;
    return wefti_plan_refine(b->searched);
}

bool wefti_built_is_joint(const wefti_built *b) {
    const weft_job_parallel *p = &b->job->parallel;
    return p->mode == WEFT_JOB_MODE_AUTO && p->search == WEFT_SEARCH_JOINT && !*p->plan &&
           b->job->plan;
}

/* Whether the job leaves its plan to a search. */
static bool searches(const weft_job *job) {
    const weft_job_parallel *p = &job->parallel;
    return p->mode == WEFT_JOB_MODE_AUTO && !*p->plan && job->plan &&
           (p->search == WEFT_SEARCH_JOINT || weft_plan_devices(job->plan) > 1);
}

/* Rank 0's part. */
static weft_status choose(wefti_built *b) {
    const wefti_setup *s = b->setup;
    if (s->recorded) WEFT_TRY(s->recorded(s->context, &b->searched));
    if (b->searched || !searches(b->job)) return WEFT_OK;
    return wefti_built_is_joint(b) ? wefti_built_joint(b) : search(b);
}

weft_status wefti_built_share_plan(wefti_built *b, weft_status found) {
    char *text = NULL;
    if (found >= 0 && b->searched) found = wefti_plan_print(b->searched, &text);
    int64_t bytes = text ? (int64_t)strlen(text) : 0;
    weft_status status = wefti_party_share_text(&b->setup->party, found, &text, &bytes);
    if (status >= 0 && text && b->setup->party.follows) {
        weft_plan_destroy(b->searched);
        b->searched = NULL;
        status = wefti_plan_parse("the plan of rank 0", text, bytes, &b->searched);
    }
    wefti_free(text);
    return status;
}

static void take_microbatches(wefti_built *b) {
    const weft_plan *plan = b->searched;
    const int64_t parts =
        plan->pipeline.stages > 1 ? plan->pipeline.microbatches : plan->accumulate;
    b->batch.microbatches = parts * plan->copies;
    b->batch.micro = b->job->train.batch / b->batch.microbatches;
}

/* A newcomer has the plan of the other ranks already. */
static weft_status take_briefed(wefti_built *b) {
    const char *text = b->setup->briefing->plan;
    if (!text) return WEFT_OK;
    WEFT_TRY(wefti_plan_parse("the plan of the run", text, (int64_t)strlen(text), &b->searched));
    if (wefti_built_is_joint(b)) take_microbatches(b);
    return WEFT_OK;
}

weft_status wefti_built_search(wefti_built *b) {
    if (b->searched) return WEFT_OK;
    if (b->setup->briefing && !b->setup->briefing->anew) return take_briefed(b);
    weft_status status = b->setup->party.follows ? WEFT_OK : choose(b);
    if (b->setup->party.agreement) status = wefti_built_share_plan(b, status);
    WEFT_TRY(status);
    if (b->searched && wefti_built_is_joint(b)) take_microbatches(b);
    return WEFT_OK;
}
