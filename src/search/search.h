/* Plans that a build of the programs has decided on. */
#ifndef WEFTI_SEARCH_SEARCH_H
#define WEFTI_SEARCH_SEARCH_H

#include "backend/backend.h"
#include "builder/spec.h"
#include "graph/graph.h"
#include "partition/partition.h"
#include "plan/plan.h"

typedef struct wefti_completion {
    weft_graph *graph; /* gets its loose nodes wrapped into cells */
    const weft_plan *plan;
    const wefti_optimizer_plan *optimizer;
    int32_t microbatches;
    void (*progress)(void *context, int done, int of); /* with the ranks that are decided; NULL:
                                                          not called */
    void *context;
} wefti_completion;

/* complete.c: writes into `out`, a copy of the plan, the strategies, layouts and stages that a
 * build chooses. Builds the first rank of each stage, which decides for all ranks of the stage.
 * out_fused: the most tensors that each of the plan's fusions may join on a device. */
weft_status wefti_plan_complete(const wefti_completion *what, weft_plan *out,
                                int32_t out_fused[3]) WEFT_CHECKED;
/* A hash of the names and shapes of a model's parameters: equal for every batch and precision. */
uint64_t wefti_model_hash(const weft_graph *graph);
/* A completed plan is for a model with these parameters; other plans, and NULL, are for any.
 * `path`: what the message calls the plan. */
weft_status wefti_plan_check_model(const weft_plan *plan, const weft_graph *graph,
                                   const char *path) WEFT_CHECKED;

/* search.c: whether a search can begin from these settings. Without a mesh, the parts that
 * strategies name are checked on the mesh of a search. */
weft_status wefti_plan_check_settings(const weft_plan *settings) WEFT_CHECKED;

#endif
