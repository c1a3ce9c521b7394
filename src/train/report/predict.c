/* Predicted steps of jobs, and of graphs under a plan: weft/predict.h. */
#include "base/text.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"
#include "search/predict/predict.h"
#include "setup/programs.h"
#include "weft/predict.h"

/* ---- jobs ---- */

static weft_status find_machine(const char *wanted, const char *own, wefti_machine_model **out) {
    const char *text = wanted && *wanted ? wanted : own;
    WEFT_REQUIRE(text && *text, WEFT_E_ARG,
                 "a prediction needs a machine: give the key machine or the option --machine "
                 "(`weft machine list`)");
    return wefti_model_find(text, out);
}

/* Tokens of a step; samples of images. */
static double tokens_of(const wefti_job_programs *p) {
    const wefti_built *b = &p->built;
    const bool language = b->model.objective->is_language;
    return (double)b->job->train.batch * (language ? (double)b->model.config.context : 1.0);
}

/* "gpt2, 124 M parameters, f32, 8 samples of 1024 tokens a step"; wefti_free. */
static char *describe(const wefti_job_programs *p) {
    const wefti_built *b = &p->built;
    const weft_body *root = b->model.graph->root;
    double parameters = 0;
    for (int64_t i = 0; i < root->value_count; i++)
        if (root->values[i].kind == WEFTI_VALUE_PARAM)
            parameters += (double)weft_desc_elems(&root->values[i].desc);
    const double unit = parameters < 1e6 ? 1e3 : parameters < 1e9 ? 1e6 : 1e9;
    wefti_text text = {0};
    char number[32];
    wefti_text_add(&text, "%s, %s %s parameters, %s, %lld samples",
                   weft_family_text(b->model.config.family),
                   wefti_real_text(parameters / unit, 3, 3, number),
                   unit < 1e6   ? "k"
                   : unit < 1e9 ? "M"
                                : "G",
                   weft_dtype_text(b->job->train.precision), (long long)b->job->train.batch);
    if (b->model.objective->is_language)
        wefti_text_add(&text, " of %lld tokens", (long long)b->model.config.context);
    wefti_text_add(&text, " a step");
    return wefti_text_take(&text);
}

static weft_status predict_job(wefti_job_programs *p, const weft_predict_options *o,
                               const wefti_machine_model *machine, weft_prediction **out) {
    const wefti_predict_options options = {
        .machine = machine,
        .microbatches = p->microbatches,
        .tokens = o->tokens > 0 ? o->tokens : tokens_of(p),
        .flops = wefti_model_flops(p->built.model.graph, p->microbatches),
        .disturbances = o->disturbances};
    WEFT_TRY(wefti_job_programs_place(p, machine));
    WEFT_TRY(wefti_job_programs_classes(p));
    char *model = describe(p);
    const wefti_predict_files files = {.trace = o->trace,
                                       .report = o->report,
                                       .plan = p->plan,
                                       .search = p->built.report,
                                       .title = o->title,
                                       .model = model};
    weft_status status = wefti_predict_classes(p->classes, &options, &files, out);
    wefti_free(model);
    return status;
}

/* Before a search, which may take long. */
static weft_status check_words(const weft_job *job, const weft_predict_options *o,
                               const wefti_machine_model *machine) {
    const wefti_predict_options options = {.machine = machine, .disturbances = o->disturbances};
    const wefti_simulate_options s = wefti_predict_simulation(&options);
    return wefti_simulate_check(&s, job->plan ? job->plan->devices : 1);
}

weft_status weft_job_predict(const weft_job *job, const weft_predict_options *options,
                             weft_prediction **out) {
    weft_predict_options o = weft_predict_defaults();
    WEFT_TRY(wefti_struct_take("weft_predict_options", options, &o));
    wefti_machine_model *machine;
    wefti_job_programs p;
    WEFT_REQUIRE(job && out, WEFT_E_ARG, "weft_job_predict needs a job and a place for the result");
    weft_status status = find_machine(o.machine, job->machine, &machine);
    if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
    status = check_words(job, &o, machine);
    weft_job on = *job; /* what leaves device memory is chosen for the machine of the prediction */
    if (wefti_job_offloads_auto(job) && o.machine && *o.machine) on.machine = o.machine;
    if (status >= 0) {
        status = wefti_job_programs_open(&on, &p);
        if (status >= 0) status = predict_job(&p, &o, machine, out);
        wefti_job_programs_close(&p);
    }
    wefti_model_destroy(machine);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}

/* ---- graphs ---- */

typedef struct graph_plan {
    weft_plan *plan;
    wefti_optimizer *optimizer;
    int32_t microbatches;
} graph_plan;

static weft_status predict_graph(weft_graph *graph, const weft_plan *plan,
                                 const weft_session_options *session, const weft_predict_options *o,
                                 const wefti_machine_model *machine, graph_plan *x,
                                 weft_prediction **out) {
    x->microbatches = session->microbatches;
    WEFT_TRY(weft_graph_status(graph));
    WEFT_TRY(wefti_graph_wrap(graph));
    weft_session_options of = *session;
    of.plan = plan;
    if (plan) WEFT_TRY(wefti_session_take_plan(&of, &x->microbatches, &x->plan));
    WEFT_TRY(wefti_optimizer_for(session, graph, &x->optimizer));
    const wefti_predict_spec spec = {
        .graph = graph,
        .plan = x->plan,
        .optimizer = wefti_optimizer_plan_of(x->optimizer),
        .prepare = {.threads = session->threads > 0 ? session->threads : 1,
                    .bf16 = wefti_session_choose_bf16(graph, session->bf16)},
        .files = {.trace = o->trace, .report = o->report, .plan = x->plan, .title = o->title},
        .match = true,
        .options = {.machine = machine,
                    .microbatches = x->microbatches,
                    .tokens = o->tokens,
                    .disturbances = o->disturbances}};
    return wefti_predict_plan(&spec, out);
}

weft_status weft_plan_predict(weft_graph *graph, const weft_plan *plan,
                              const weft_session_options *session,
                              const weft_predict_options *options, weft_prediction **out) {
    weft_session_options s = weft_session_defaults();
    weft_predict_options o = weft_predict_defaults();
    wefti_machine_model *machine;
    graph_plan x = {.plan = NULL};
    WEFT_REQUIRE(graph && options && out, WEFT_E_ARG,
                 "weft_plan_predict needs a graph, options and a place for the result");
    WEFT_TRY(wefti_struct_take("weft_session_options", session, &s));
    WEFT_TRY(wefti_struct_take("weft_predict_options", options, &o));
    weft_status status = find_machine(o.machine, NULL, &machine);
    if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
    status = predict_graph(graph, plan, &s, &o, machine, &x, out);
    wefti_optimizer_destroy(x.optimizer);
    weft_plan_destroy(x.plan);
    wefti_model_destroy(machine);
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
