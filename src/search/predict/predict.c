/* Predicts a plan: see search/predict/predict.h. */
#include "search/predict/predict.h"

#include "base/memory.h"

/* Of a call's products, those whose weights are frozen: they have no gradient of the weight. */
static double frozen_flops(const weft_body *root, const weft_node *call) {
    const weft_body *cell = call->callee;
    double flops = 0;
    for (int64_t k = 0; cell && k < cell->node_count; k++) {
        const weft_node *n = &cell->nodes[k];
        bool frozen = false;
        wefti_cost cost;
        for (int i = 0; i < n->inputs; i++) {
            const wefti_value_info *v = n->in[i] < 0 ? NULL : &cell->values[n->in[i]];
            if (v && v->node < 0 && v->kind == WEFTI_VALUE_PARAM)
                frozen |= root->values[call->in[v->slot]].frozen;
        }
        if (!frozen) continue;
        wefti_node_cost(n, &cost);
        flops += cost.flops;
    }
    return flops;
}

/* A product takes as much again for the gradient of each operand. */
double wefti_model_flops(const weft_graph *graph, int32_t microbatches) {
    const weft_body *root = graph->root;
    bool *trains = wefti_calloc((size_t)root->value_count + 1, sizeof *trains);
    bool some = false;
    double flops = 0;
    for (int64_t v = 0; v < root->value_count; v++) {
        const bool param = root->values[v].kind == WEFTI_VALUE_PARAM;
        some |= param && root->values[v].frozen;
        if (trains) trains[v] = param && !root->values[v].frozen;
    }
    for (int64_t k = 0; k < root->node_count; k++) {
        const weft_node *n = &root->nodes[k];
        bool back = !some || !trains; /* without memory: as if all were trained */
        wefti_cost cost;
        for (int i = 0; i < n->inputs && trains; i++) back |= n->in[i] >= 0 && trains[n->in[i]];
        for (int o = 0; o < n->outputs && trains; o++) trains[n->out[o]] |= back;
        wefti_node_cost(n, &cost);
        flops += cost.flops + (back ? 2 * cost.flops : 0);
        if (back && some && trains) flops -= frozen_flops(root, n);
    }
    wefti_free(trains);
    return flops * microbatches;
}

typedef struct prediction {
    const wefti_predict_spec *spec;
    const weft_plan *plan; /* NULL: one device */
    wefti_route_cache *routes;
    int32_t *host; /* of each device, by the machine */
} prediction;

static weft_status build(void *context, int32_t rank, wefti_program **programs) {
    const prediction *p = context;
    const wefti_predict_options *o = &p->spec->options;
    WEFT_REQUIRE(!o->stop || !o->stop(o->stop_context), WEFT_E_STOPPED,
                 "the prediction of a plan was stopped");
    wefti_program_spec spec = {.graph = p->spec->graph,
                               .kind = wefti_kind_of(rank),
                               .prepare = p->spec->prepare,
                               .optimizer = p->spec->optimizer,
                               .keep_gradients = p->spec->keep_gradients,
                               .microbatches = p->spec->options.microbatches,
                               .plan = p->plan,
                               .rank = rank,
                               .host = p->host,
                               .routes = p->routes};
    spec.prepare.dry = true;
    return wefti_program_build(&spec, programs);
}

/* ---- classes ---- */

static void describe(const wefti_rank_classes *all, weft_prediction *out) {
    out->peak_bytes = 0;
    for (int32_t i = 0; i < out->class_count; i++) {
        weft_rank_prediction *r = &out->classes[i];
        const wefti_rank_class *c = wefti_rank_class_of(all, r->rank);
        r->stage = c->stage;
        r->program_bytes = 0;
        r->peak_bytes = wefti_footprint_bytes(wefti_programs_footprint(c->programs, all->graphs),
                                              WEFTI_SPACE_DEVICE);
        for (int32_t g = 0; g < all->graphs; g++) r->program_bytes += c->programs[g]->program_bytes;
        if (r->peak_bytes <= out->peak_bytes) continue;
        out->peak_bytes = r->peak_bytes;
        out->peak_rank = r->rank;
    }
}

/* The programs of the first graph, for wefti_free. */
static weft_status first_programs(const wefti_rank_classes *all, const wefti_program ***out) {
    WEFT_NEW_ARRAY(*out, const wefti_program *, all->count);
    for (int32_t c = 0; c < all->count; c++) (*out)[c] = all->classes[c].programs[0];
    return WEFT_OK;
}

static weft_status write_files(const wefti_match_classes *classes,
                               const wefti_predict_options *options, const weft_prediction *p,
                               const wefti_predict_files *files) {
    if (files->trace) WEFT_TRY(wefti_predict_trace(classes, options, p, files->trace));
    if (files->report) WEFT_TRY(wefti_predict_report(classes, options, p, files));
    return WEFT_OK;
}

weft_status wefti_predict_classes(const wefti_rank_classes *all,
                                  const wefti_predict_options *options,
                                  const wefti_predict_files *files, weft_prediction **out) {
    const wefti_program **programs;
    weft_prediction *p = NULL;
    WEFT_TRY(first_programs(all, &programs));
    const wefti_match_classes classes = {programs, all->count, all->class_of, all->ranks};
    weft_status status = wefti_predict(&classes, options, &p);
    if (status >= 0) {
        describe(all, p);
        wefti_predict_fits(options->machine, p);
        status = wefti_predict_besides(all, options->machine, p);
    }
    if (status >= 0) status = write_files(&classes, options, p, files);
    wefti_free(programs);
    if (status < 0) {
        weft_prediction_free(p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

static weft_status match(const wefti_rank_classes *all) {
    const wefti_program **programs;
    WEFT_TRY(first_programs(all, &programs));
    const wefti_match_classes classes = {programs, all->count, all->class_of, all->ranks};
    weft_status status = wefti_classes_match(&classes);
    wefti_free(programs);
    return status;
}

/* ---- plans ---- */

static weft_status predict(const prediction *p, const wefti_rank_classes *all,
                           weft_prediction **out) {
    wefti_predict_options o = p->spec->options;
    if (o.flops <= 0 && p->spec->optimizer)
        o.flops = wefti_model_flops(p->spec->graph, o.microbatches);
    if (p->spec->match && all->ranks > 1) WEFT_TRY(match(all));
    return wefti_predict_classes(all, &o, &p->spec->files, out);
}

static weft_status build_and_walk(prediction *p, weft_prediction **out) {
    const wefti_fold fold = {.plan = p->plan, .graphs = 1, .context = p, .build = build};
    wefti_rank_classes *all;
    WEFT_TRY(wefti_rank_classes_find(&fold, &all));
    weft_status status = predict(p, all, out);
    wefti_rank_classes_destroy(all);
    return status;
}

weft_status wefti_predict_plan(const wefti_predict_spec *spec, weft_prediction **out) {
    const bool matters = spec->plan && wefti_plan_matters(spec->plan);
    prediction p = {.spec = spec, .plan = matters ? spec->plan : NULL, .routes = spec->routes};
    WEFT_REQUIRE(spec->options.machine, WEFT_E_ARG, "a prediction needs a machine");
    const int32_t devices = matters ? spec->plan->devices : 1;
    WEFT_NEW_ARRAY(p.host, int32_t, devices);
    for (int32_t r = 0; r < devices; r++)
        p.host[r] = r / wefti_model_per_host(spec->options.machine);
    const bool own = matters && !spec->routes;
    weft_status status = own ? wefti_route_cache_create(&p.routes) : WEFT_OK;
    if (status >= 0) status = build_and_walk(&p, out);
    if (own) wefti_route_cache_destroy(p.routes);
    wefti_free(p.host);
    return status;
}
