/* The programs of a job as texts: weft/program.h. */
#include "weft/program.h"

#include "program/print.h"
#include "search/search.h"
#include "setup/programs.h"

/* Describes a rank's own program, with kernels: a class's program has another rank's numbers. */
static weft_status print(const wefti_job_programs *p, int rank, bool json, char **out) {
    wefti_program *programs[2] = {NULL, NULL};
    weft_status status = wefti_job_programs_build(p, rank, false, programs);
    if (status >= 0)
        status = json ? wefti_program_json(programs[0], p->plan, out)
                      : wefti_program_print(programs[0], p->plan, out);
    for (int g = 1; g >= 0; g--) wefti_program_destroy(programs[g]);
    return status;
}

static weft_status check(wefti_job_programs *p, int rank, char **out_unmatched) {
    int32_t fused[3];
    WEFT_REQUIRE(rank >= 0 && rank < p->devices, WEFT_E_ARG,
                 "rank %d does not exist: the job has %d device%s, ranks 0 to %d", rank, p->devices,
                 p->devices == 1 ? "" : "s", p->devices - 1);
    WEFT_TRY(wefti_job_programs_classes(p));
    if (!out_unmatched || !p->plan) return WEFT_OK;
    wefti_job_programs_fused(p, fused);
    return wefti_plan_unmatched(p->plan, p->built.model.graph, fused, out_unmatched);
}

static weft_status describe(const weft_job *job, int rank, bool json, char **out,
                            char **out_unmatched) {
    wefti_job_programs p;
    char *text = NULL, *unmatched = NULL;
    weft_status status = wefti_job_programs_open(job, &p);
    if (status >= 0) status = check(&p, rank, out_unmatched ? &unmatched : NULL);
    if (status >= 0) status = print(&p, rank, json, &text);
    wefti_job_programs_close(&p);
    if (status < 0) {
        wefti_free(text);
        wefti_free(unmatched);
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
