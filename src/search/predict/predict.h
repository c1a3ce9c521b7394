/* Predicts a plan: builds one rank of each class of equal ranks, dry, and walks them with a clock
 * (simulate/predict.h). */
#ifndef WEFTI_SEARCH_PREDICT_H
#define WEFTI_SEARCH_PREDICT_H

#include "backend/backend.h"
#include "builder/fold/fold.h"
#include "simulate/predict.h"
#include "weft/search.h"

/* Files that a prediction writes; NULL: none. */
typedef struct wefti_predict_files {
    const char *trace, *report;
    const weft_plan *plan;            /* for the report: shown too; NULL: one device */
    const weft_search_report *search; /* for the report: that has found the plan; NULL: none has */
    const char *title, *model;        /* for the report: of the job, and of its model; NULL: none */
} wefti_predict_files;

typedef struct wefti_predict_spec {
    const weft_graph *graph;               /* wrapped (wefti_graph_wrap); unchanged */
    const weft_plan *plan;                 /* refined (wefti_plan_refine); NULL: one device */
    const wefti_optimizer_plan *optimizer; /* NULL: forward only */
    bool keep_gradients;       /* of a graph without an optimizer: it has a backward pass too */
    wefti_prepare prepare;     /* `dry` is set by the call */
    wefti_route_cache *routes; /* NULL: of its own. Calls for plans of one machine may share it */
    wefti_predict_files files;
    bool match; /* also match the classes, as a session does before its first step */
    wefti_predict_options options; /* options.microbatches: also of the build */
} wefti_predict_spec;

/* FLOPs of a step over all devices without recomputation: three times those of the forward pass, of
 * which the backward pass has two, one for the gradients of operands and one for parameters. Frozen
 * parameters have none, and what comes before all that are trained has no backward pass. */
double wefti_model_flops(const weft_graph *graph, int32_t microbatches);
/* options.flops 0: wefti_model_flops. The errors of wefti_program_build for a plan that does not
 * fit the graph. */
weft_status wefti_predict_plan(const wefti_predict_spec *spec, weft_prediction **out) WEFT_CHECKED;

/* Of classes that are built and match: walks their first graph. Of several graphs the arena is that
 * of the largest. */
weft_status wefti_predict_classes(const wefti_rank_classes *all,
                                  const wefti_predict_options *options,
                                  const wefti_predict_files *files,
                                  weft_prediction **out) WEFT_CHECKED;
/* besides.c: what a rank needs besides its step: memory that the driver shows, hosts, a checkpoint.
 */
weft_status wefti_predict_besides(const wefti_rank_classes *all, const wefti_machine_model *machine,
                                  weft_prediction *out) WEFT_CHECKED;
/* timeline.c, report.c: a prediction `p` of these classes as a timeline, and as HTML. */
weft_status wefti_predict_trace(const wefti_match_classes *classes,
                                const wefti_predict_options *options, const weft_prediction *p,
                                const char *path) WEFT_CHECKED;
weft_status wefti_predict_report(const wefti_match_classes *classes,
                                 const wefti_predict_options *options, const weft_prediction *p,
                                 const wefti_predict_files *files) WEFT_CHECKED;

#endif
