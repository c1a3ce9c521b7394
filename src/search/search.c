/* The door of the searches: checks the options, builds the graph of choices, runs one search and
 * writes its plan. */
#include <math.h>
#include <stdio.h>

#include "search/find.h"
#include "search/joint/joint.h"
#include "search/mindspore/mindspore.h"
#include "search/search.h"

void weft_search_fill_defaults(weft_search_options *out, size_t struct_bytes) {
    const weft_search_options defaults = {
        .struct_bytes = sizeof defaults,
        .search = WEFT_SEARCH_DYNAMIC,
        .cost = {.alpha = 1,
                 .beta = 400,
                 .gamma = 0.001,
                 .threshold = 2048,
                 .constant = 3072,
                 .bias = 1024,
                 .capacity = 0x1p34},
        .rules = {.fully_use_devices = true, .epsilon = 0.1},
    };
    wefti_struct_fill(&defaults, out, struct_bytes);
}

static weft_status check(const weft_plan *settings, const weft_search_options *o) {
    WEFT_REQUIRE((unsigned)o->search < WEFT_SEARCHES, WEFT_E_ARG,
                 "the search has the number %d; known: propagation, dynamic, recursive, joint",
                 (int)o->search);
    WEFT_REQUIRE((unsigned)o->cost_model < WEFT_COST_MODELS, WEFT_E_ARG,
                 "the cost model has the number %d; known: mindspore, machine", (int)o->cost_model);
    WEFT_TRY(wefti_mindspore_check(&o->cost));
    WEFT_REQUIRE(isfinite(o->rules.epsilon) && o->rules.epsilon > 0 && o->rules.epsilon <= 1,
                 WEFT_E_ARG, "parallel.algorithm.epsilon is %g; it must be above 0 and at most 1",
                 o->rules.epsilon);
    WEFT_REQUIRE(o->rules.tensor_slice_align >= 0 && o->rules.tensor_slice_align <= 1024,
                 WEFT_E_ARG,
                 "parallel.algorithm.tensor_slice_align is %lld; it must be from 1 to 1024, or 0 "
                 "for none",
                 (long long)o->rules.tensor_slice_align);
    return wefti_plan_check_settings(settings);
}

/* The plan's checks, on a mesh of the devices' prime factors. */
static weft_status check_on_own_mesh(const weft_plan *settings) {
    weft_plan *plan;
    int32_t sizes[31];
    WEFT_TRY(wefti_plan_copy(settings, &plan));
    const int64_t strategies = plan->strategy_count, tensors = plan->tensor_count;
    const int count = wefti_search_mesh(wefti_mesh_size(&settings->mesh), sizes);
    weft_status status = WEFT_OK;
    plan->strategy_count = plan->tensor_count = 0;
    for (int a = 0; a < count && status >= 0; a++) {
        char name[16];
        (void)snprintf(name, sizeof name, "a%d", a);
        status = weft_plan_axis(plan, name, sizes[a]);
    }
    plan->strategy_count = strategies;
    plan->tensor_count = tensors;
    if (status >= 0) status = wefti_plan_check(plan);
    weft_plan_destroy(plan);
    return status;
}

weft_status wefti_plan_check_settings(const weft_plan *settings) {
    WEFT_REQUIRE(settings->mode != WEFT_PARALLEL_MANUAL, WEFT_E_ARG,
                 "a search splits the model, but in mode manual the model communicates itself: "
                 "use mode semi");
    WEFT_REQUIRE(!settings->pipeline.meshes, WEFT_E_ARG,
                 "pipeline.meshes gives stages different meshes, but a search makes one mesh for "
                 "all stages: leave it out");
    return settings->mesh_given ? wefti_plan_check(settings) : check_on_own_mesh(settings);
}

static weft_status find(wefti_find *f) {
    const weft_search_rules *r = &f->options->rules;
    const bool recursive = f->options->search == WEFT_SEARCH_RECURSIVE;
    const wefti_candidate_rules rules = {
        .fully_use_devices = r->fully_use_devices,
        .elementwise_follow = r->elementwise_op_strategy_follow,
        .slice_align = r->tensor_slice_align,
        .configured_only = recursive,
    };
    f->assigned = wefti_calloc((size_t)f->graph->node_count + 1, sizeof *f->assigned);
    WEFT_REQUIRE(f->assigned, WEFT_E_NOMEM, "no memory for a search");
    WEFT_TRY(wefti_choice_candidates(f->graph, &rules));
    if (recursive) WEFT_TRY(wefti_find_recursive(f));
    if (recursive) return wefti_find_or_batches(f);
    if (f->options->search == WEFT_SEARCH_PROPAGATION) return wefti_find_propagation(f);
    return wefti_find_dynamic(f);
}

weft_status weft_plan_search(weft_graph *graph, const weft_plan *settings,
                             const weft_search_options *options, weft_plan **out,
                             char **out_notes) {
    WEFT_REQUIRE(graph && settings && options && out, WEFT_E_ARG,
                 "weft_plan_search needs a graph, settings, options and a place for the plan");
    weft_search_options own = weft_search_defaults();
    WEFT_TRY(wefti_struct_take("weft_search_options", options, &own));
    options = &own;
    wefti_find f = {.options = options};
    WEFT_TRY(check(settings, options));
    f.pricing = options->cost_model == WEFT_COST_MACHINE ? wefti_seconds_pricing(&options->cost)
                                                         : wefti_mindspore_pricing(&options->cost);
    if (options->search == WEFT_SEARCH_JOINT) {
        WEFT_TRY(wefti_joint_of_graph(graph, settings, options, out));
        if (!out_notes) return WEFT_OK;
        *out_notes = wefti_strdup("");
        if (*out_notes) return WEFT_OK;
        weft_plan_destroy(*out);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for the notes of a search");
    }
    WEFT_TRY(wefti_choice_graph_create(graph, settings, &f.graph));
    weft_status status = find(&f);
    if (status >= 0) status = wefti_find_write(&f, out);
    char *notes = wefti_text_take(&f.notes);
    wefti_choice_graph_destroy(f.graph);
    wefti_free(f.assigned);
    if (status >= 0 && !notes) {
        weft_plan_destroy(*out);
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the notes of a search");
    }
    if (status < 0 || !out_notes)
        wefti_free(notes);
    else
        *out_notes = notes;
    return status < 0 ? wefti_note(status, __func__, __FILE__, __LINE__) : WEFT_OK;
}
