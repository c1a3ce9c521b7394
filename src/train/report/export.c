/* A job as options of another system. What the system cannot express is found by the way back: the
 * plan that the options mean is completed, and its differences from the job's plan are reported. */
#include "job/systems/systems.h"
#include "plan/plan.h"
#include "setup/setup.h"

/* Adds the differences between the completed plans of the job and of its degrees. */
static weft_status compare(const weft_job *job, const wefti_translation *what,
                           const weft_plan *plan, wefti_text *notes) {
    const wefti_degrees *degrees = &what->degrees;
    const bool stages = what->system->has_stages && what->stage_of;
    weft_job other = *job;
    weft_plan *means, *completed = NULL;
    char *lines = NULL;
    WEFT_TRY(wefti_degrees_plan(&what->config, degrees, &means));
    means->links = plan->links; /* of the machine: these are no part of a configuration */
    means->rates = plan->rates;
    other.plan = means;
    other.parallel.plan = "";
    other.parallel.mode = WEFT_JOB_MODE_SEMI;
    /* A search may have chosen other microbatches than the job. */
    other.train.accumulate = degrees->microbatches;
    weft_status status = wefti_plan_refine(means);
    for (int64_t i = 0; stages && i < plan->pipeline.rule_count && status >= 0; i++)
        status =
            weft_plan_stage(means, plan->pipeline.rules[i].match, plan->pipeline.rules[i].stage);
    if (status >= 0) status = weft_job_plan(&other, &completed, NULL);
    if (status >= 0) status = weft_plan_diff(plan, completed, &lines);
    if (status >= 0) wefti_text_add(notes, "%s", lines);
    weft_text_free(lines);
    weft_plan_destroy(completed);
    weft_plan_destroy(means);
    return status;
}

static weft_status export(const weft_job *job, weft_system system, const weft_model_config *config,
                          const weft_plan *plan, wefti_text *out, wefti_text *notes) {
    wefti_translation what = {.system = wefti_system_of(system),
                              .job.train = job->train,
                              .config = *config,
                              .notes = notes};
    WEFT_TRY(wefti_degrees_of_plan(plan, &what.degrees, notes));
    if (config->lora.rank) wefti_text_add(notes, "model.lora: adapters\n");
    if (job->train.frozen.count) wefti_text_add(notes, "train.frozen: frozen parameters\n");
    WEFT_TRY(wefti_arena_create(&what.arena));
    weft_status status = wefti_translation_export(&what, plan, out);
    if (status >= 0) status = compare(job, &what, plan, notes);
    wefti_free(what.stage_of);
    wefti_arena_destroy(what.arena);
    return status;
}

weft_status weft_job_export(const weft_job *job, weft_system system, char **out_options,
                            char **out_notes) {
    WEFT_REQUIRE(job && out_options && out_notes && system >= 0 && system < WEFT_SYSTEMS,
                 WEFT_E_ARG, "weft_job_export needs a job, a system and places for the texts");
    wefti_setup alone = {.context = NULL};
    wefti_built b = {.setup = &alone, .job = job};
    weft_plan *plan = NULL;
    wefti_text options = {0}, notes = {0};
    weft_status status = wefti_built_configure(&b);
    if (status >= 0) status = weft_job_plan(job, &plan, NULL);
    if (status >= 0) status = export(job, system, &b.model.config, plan, &options, &notes);
    weft_plan_destroy(plan);
    wefti_built_close(&b);
    wefti_setup_close(&alone);
    wefti_text_add(&notes, "%s", "");
    char *texts[2] = {wefti_text_take(&options), wefti_text_take(&notes)};
    if (status >= 0 && (!texts[0] || !texts[1]))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for options");
    if (status < 0) {
        wefti_free(texts[0]);
        wefti_free(texts[1]);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out_options = texts[0];
    *out_notes = texts[1];
    return WEFT_OK;
}
