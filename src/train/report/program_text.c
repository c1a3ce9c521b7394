/* The programs of a job as texts: weft/program.h. */
#include "weft/program.h"

#include "program/print.h"
#include "search/search.h"
#include "train/training.h"

static weft_status print(const wefti_training *t, int rank, bool json, char **out) {
    const weft_plan *plan = wefti_training_plan(t);
    int devices = plan ? weft_plan_devices(plan) : 1;
    WEFT_REQUIRE(rank >= 0 && rank < devices, WEFT_E_ARG,
                 "rank %d does not exist: the job has %d device%s, ranks 0 to %d", rank, devices,
                 devices == 1 ? "" : "s", devices - 1);
    const wefti_program *p = wefti_session_program_of(t->session, 0, rank);
    return json ? wefti_program_json(p, plan, out) : wefti_program_print(p, plan, out);
}

static weft_status describe(const weft_job *job, int rank, bool json, char **out,
                            char **out_unmatched) {
    weft_train_result unused = {0};
    wefti_training t = {.job = job, .result = &unused};
    char *text = NULL, *unmatched = NULL;
    int32_t fused[3];
    weft_status status = wefti_training_prepare(&t);
    if (status == WEFT_OK) status = print(&t, rank, json, &text);
    if (status == WEFT_OK && out_unmatched && wefti_training_plan(&t)) {
        wefti_session_fused(t.session, fused);
        status = wefti_plan_unmatched(wefti_training_plan(&t), t.model.graph, fused, &unmatched);
    }
    wefti_training_close(&t);
    if (status < 0) {
        wefti_free(text);
        return status;
    }
    *out = text;
    if (out_unmatched) *out_unmatched = unmatched;
    return status;
}

weft_status weft_job_program_text(const weft_job *job, int rank, char **out, char **out_unmatched) {
    return describe(job, rank, false, out, out_unmatched);
}

weft_status weft_job_program_json(const weft_job *job, int rank, char **out, char **out_unmatched) {
    return describe(job, rank, true, out, out_unmatched);
}
