/* The completed plan of a job: `weft plan`. */
#include "backend/backend.h"
#include "base/text.h"
#include "job/job.h"
#include "plan/plan.h"
#include "search/search.h"
#include "session/optimizer.h"
#include "train/report/report.h"
#include "setup/setup.h"

static weft_status complete_plan(const wefti_built *b, weft_plan *out, int32_t fused[3]) {
    weft_session_options o = wefti_built_options(b);
    wefti_optimizer *optimizer;
    WEFT_TRY(wefti_optimizer_for(&o, b->model.graph, &optimizer));
    const wefti_completion what = {.graph = b->model.graph,
                                   .plan = wefti_built_plan(b),
                                   .optimizer = wefti_optimizer_plan_of(optimizer),
                                   .microbatches = (int32_t)b->batch.microbatches,
                                   .progress = b->job->progress.call,
                                   .context = b->job->progress.context};
    weft_status status = wefti_plan_complete(&what, out, fused);
    wefti_optimizer_destroy(optimizer);
    return status;
}

/* The plan before it is completed: of the job or a search, or of one device. */
static weft_status begin(const wefti_built *b, weft_plan **out) {
    const weft_plan *plan = wefti_built_plan(b);
    if (plan) return wefti_plan_copy(plan, out);
    WEFT_TRY(weft_plan_create(1, out));
    (*out)->accumulate = (int32_t)b->job->train.accumulate;
    return WEFT_OK;
}

/* `out_unmatched` may be NULL. */
static weft_status complete(wefti_built *b, weft_plan *out, char **out_unmatched) {
    int32_t fused[3];
    out->model_hash = wefti_model_hash(b->model.graph);
    const bool matters = wefti_built_plan(b) && wefti_plan_matters(wefti_built_plan(b));
    if (matters) WEFT_TRY(complete_plan(b, out, fused));
    if (!out_unmatched) return WEFT_OK;
    WEFT_TRY(wefti_plan_unmatched(out, b->model.graph, matters ? fused : NULL, out_unmatched));
    if (!b->search_notes) return WEFT_OK;
    wefti_text both = {0};
    wefti_text_add(&both, "%s%s", b->search_notes, *out_unmatched);
    wefti_free(*out_unmatched);
    *out_unmatched = wefti_text_take(&both);
    WEFT_REQUIRE(*out_unmatched, WEFT_E_NOMEM, "no memory for the notes of a search");
    return WEFT_OK;
}

weft_status wefti_built_completed_plan(wefti_built *b, weft_plan **out) {
    weft_plan *plan = NULL;
    weft_status status = begin(b, &plan);
    if (status >= 0) status = complete(b, plan, NULL);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}

static weft_status search(wefti_built *b, weft_plan **out) {
    WEFT_TRY(wefti_built_configure(b));
    WEFT_REQUIRE(wefti_built_is_joint(b), WEFT_E_ARG,
                 "parallel.mode must be auto and parallel.search joint: the job asks for no joint "
                 "search");
    if (!out && !wefti_job_offloads_auto(b->job)) return wefti_built_search(b);
    WEFT_TRY(wefti_built_graphs(b));
    if (!out) return WEFT_OK;
    WEFT_TRY(begin(b, out));
    return complete(b, *out, NULL);
}

weft_status weft_job_search(const weft_job *job, weft_plan **out, weft_search_report **out_report) {
    WEFT_REQUIRE(job && out_report, WEFT_E_ARG,
                 "weft_job_search needs a job and a place for the report");
    wefti_setup alone = {.context = NULL};
    wefti_built b = {.setup = &alone, .job = job};
    weft_plan *plan = NULL;
    const weft_status status = search(&b, out ? &plan : NULL);
    weft_search_report *report = b.report;
    b.report = NULL;
    if (report) {
        report->moves = b.search_notes;
        b.search_notes = NULL;
    }
    wefti_built_close(&b);
    wefti_setup_close(&alone);
    if (status < 0) {
        weft_plan_destroy(plan);
        weft_search_report_free(report);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    if (out) *out = plan;
    *out_report = report;
    return WEFT_OK;
}

weft_status weft_job_plan(const weft_job *job, weft_plan **out, char **out_unmatched) {
    WEFT_REQUIRE(job && out, WEFT_E_ARG, "weft_job_plan needs a job and a place for the plan");
    wefti_setup alone = {.context = NULL};
    wefti_built b = {.setup = &alone, .job = job};
    weft_plan *plan = NULL;
    char *unmatched = NULL;
    weft_status status = wefti_built_configure(&b);
    if (status >= 0) status = wefti_built_graphs(&b);
    if (status >= 0) status = begin(&b, &plan);
    if (status >= 0) status = complete(&b, plan, out_unmatched ? &unmatched : NULL);
    wefti_built_close(&b);
    wefti_setup_close(&alone);
    if (status < 0) {
        weft_plan_destroy(plan);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    if (out_unmatched) *out_unmatched = unmatched;
    *out = plan;
    return WEFT_OK;
}
