/* A machine of which nothing is known, and searches on it. */
#include "search/joint/joint.h"

static void add_figure(wefti_text *out, const char *name, double value, const char *source) {
    char number[32];
    wefti_text_add(out, "\"%s\": {\"value\": %s, \"source\": \"%s\"}", name,
                   wefti_real_text(value, 6, 17, number), source);
}

/* A host's devices share its memory, so links are copies. Latency: assumed, that of waking a
 * thread. */
weft_status wefti_joint_assume(int32_t devices, int64_t memory_bytes, const wefti_links *links,
                               wefti_machine_model **out) {
    static const double latency = 2e-6;
    const wefti_machine *r = &wefti_machine_assumed;
    const bool known = links && wefti_link_known(&links->same_host);
    const wefti_measured_link *link = known ? &links->same_host : NULL;
    wefti_text text = {0};
    wefti_text_add(&text,
                   "{\"version\": 1, \"name\": \"this-machine\", \"hosts\": 1, \"device\": {");
    add_figure(&text, "memory_bytes", (double)memory_bytes, "the machine's, divided by devices");
    wefti_text_add(&text, ", ");
    add_figure(&text, "memory_bytes_per_second", r->bytes_per_second, "assumed");
    wefti_text_add(&text, ", ");
    add_figure(&text, "vector_flops", r->vector_flops, "assumed");
    wefti_text_add(&text, ", ");
    add_figure(&text, "launch_seconds", r->start_seconds, "assumed");
    wefti_text_add(&text, ", \"peak_flops\": {");
    add_figure(&text, "f32", r->product_f32, "assumed");
    wefti_text_add(&text, ", ");
    add_figure(&text, "bf16", r->product_bf16, "assumed");
    wefti_text_add(&text, "}}, \"levels\": [{\"name\": \"host\", \"devices\": %d, ", devices);
    add_figure(&text, "latency_seconds", link ? link->latency_seconds : latency,
               link ? "measured" : "assumed");
    wefti_text_add(&text, ", ");
    add_figure(&text, "bytes_per_second", link ? link->bytes_per_second : r->bytes_per_second,
               link ? "measured" : "assumed: a core's copies");
    wefti_text_add(&text, "}]}");
    const int64_t bytes = text.used;
    char *json = wefti_text_take(&text);
    WEFT_REQUIRE(json, WEFT_E_NOMEM, "no memory for a machine");
    const weft_status status = wefti_model_parse("this machine", json, bytes, out);
    wefti_free(json);
    return status;
}

/* ---- a search for one graph ---- */

static weft_status the_graph(void *context, int64_t samples, int64_t layers, weft_graph **graph,
                             const wefti_optimizer_plan **optimizer) {
    (void)samples;
    (void)layers;
    *graph = context;
    *optimizer = NULL;
    return WEFT_OK;
}

/* Settings that are not those of an empty plan are constraints. */
static void fix_settings(const weft_plan *s, wefti_joint_fix *fix) {
    if (s->pipeline.stages > 1) {
        fix->value[WEFTI_JOINT_STAGES] = s->pipeline.stages;
        fix->value[WEFTI_JOINT_SCHEDULE] = (int32_t)s->pipeline.schedule;
        fix->value[WEFTI_JOINT_CHUNKS] = s->pipeline.chunks;
    }
    if (s->optimizer.level) fix->value[WEFTI_JOINT_LEVEL] = s->optimizer.level;
    if (s->recompute.mode != WEFT_RECOMPUTE_NONE)
        fix->value[WEFTI_JOINT_RECOMPUTE] = (int32_t)s->recompute.mode;
}

static weft_status search_on(weft_graph *graph, const weft_plan *settings,
                             const weft_search_options *o, const wefti_machine_model *machine,
                             weft_plan **out) {
    wefti_joint_answer answer;
    wefti_joint_problem p = {.source = {.context = graph, .model = the_graph},
                             .settings = settings,
                             .machine = machine,
                             .fix = wefti_joint_free(),
                             .memory_bytes = o->memory_bytes,
                             .evaluations = o->evaluations,
                             .seconds = o->seconds};
    WEFT_TRY(wefti_joint_fix_add(o->fix ? o->fix : "", &p.fix));
    fix_settings(settings, &p.fix);
    WEFT_TRY(wefti_graph_wrap(graph));
    WEFT_TRY(wefti_joint_search(&p, &answer));
    *out = answer.plan;
    answer.plan = NULL;
    wefti_joint_answer_free(&answer);
    return WEFT_OK;
}

weft_status wefti_joint_of_graph(weft_graph *graph, const weft_plan *settings,
                                 const weft_search_options *o, weft_plan **out) {
    enum { ASSUMED_MEMORY = 64 }; /* GiB: of a server */
    wefti_machine_model *machine;
    if (o->machine)
        WEFT_TRY(wefti_model_find(o->machine, &machine));
    else
        WEFT_TRY(wefti_joint_assume(settings->devices, (int64_t)ASSUMED_MEMORY << 30,
                                    &settings->links, &machine));
    const weft_status status = search_on(graph, settings, o, machine, out);
    wefti_model_destroy(machine);
    return status;
}
