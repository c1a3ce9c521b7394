/* Searches: weft fills in the plan by itself. A search takes a model and the settings of a plan,
 * chooses how each op is split, and gives a plan of mode SEMI that runs like one written by hand.
 *
 *     weft_search_options o = weft_search_defaults();
 *     weft_plan *settings, *plan;
 *     weft_plan_create(8, &settings);
 *     weft_plan_search(graph, settings, &o, &plan, NULL);
 *
 * The answer depends on the arguments only. So all processes of a world may search on their own. */
#ifndef WEFT_SEARCH_H
#define WEFT_SEARCH_H

#include "weft/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PROPAGATION: strategies spread from the ops that the settings configure.
 * DYNAMIC: the least cost over all strategies of all ops.
 * RECURSIVE: devices are divided again and again; each time each op is cut where it costs least. */
#define WEFT_SEARCH_LIST(X)                                                                        \
    X(PROPAGATION, "propagation") X(DYNAMIC, "dynamic") X(RECURSIVE, "recursive")
#define WEFT_ROW(name, text) WEFT_SEARCH_##name,
typedef enum weft_search { WEFT_SEARCH_LIST(WEFT_ROW) WEFT_SEARCHES } weft_search;
#undef WEFT_ROW

/* MindSpore's cost model, set_cost_model_context: costs are bytes. */
typedef struct weft_mindspore_model {
    double alpha;     /* weight of computation; 1 */
    double beta;      /* weight of communication; 400 */
    double gamma;     /* part of the communication of parameters' gradients that counts; 0.001 */
    double threshold; /* messages of at most so many bytes count `constant`; 2048 */
    double constant;  /* 3072 */
    double bias;      /* what longer messages count in addition; 1024 */
    double capacity;  /* bytes of a device's memory; 16 GiB */
    bool inference;   /* only the forward pass communicates */
} weft_mindspore_model;

/* Which strategies a search considers: MindSpore's set_algo_parameters. */
typedef struct weft_search_rules {
    bool fully_use_devices;              /* each op that can use all devices does; true */
    bool elementwise_op_strategy_follow; /* elementwise ops are split like their producer; false */
    bool enable_algo_approxi;   /* DYNAMIC keeps 1 / epsilon strategies of each op; false */
    double epsilon;             /* 0.1 */
    int64_t tensor_slice_align; /* the last two dimensions of slices of products are multiples of
                                   it, 1 to 1024; 0: any */
} weft_search_rules;

typedef struct weft_search_options {
    weft_search search;
    weft_mindspore_model cost;
    weft_search_rules rules;
} weft_search_options;

/** The values in the comments above, with search DYNAMIC. */
WEFT_API weft_search_options weft_search_defaults(void);
/** Search for a plan. Wraps loose nodes of the graph into cells.
 * @param settings   devices, stages, optimizer level, recomputation; and strategies or layouts,
 *                   which the search never changes. With a mesh, only its axes are used.
 * @param out        a plan of mode SEMI, freed with weft_plan_destroy
 * @param out_notes  warnings, one per line, "" for none; freed with weft_text_free; may be NULL
 * @return WEFT_E_ARG for settings without a solution; the message names the op or the option.
 *         WEFT_E_NOMEM if nothing fits cost.capacity; the message says how many bytes are missing.
 */
WEFT_API weft_status weft_plan_search(weft_graph *graph, const weft_plan *settings,
                                      const weft_search_options *options, weft_plan **out,
                                      char **out_notes) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
