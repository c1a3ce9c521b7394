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
 * RECURSIVE: devices are divided again and again; each time each op is cut where it costs least.
 * JOINT: the shortest step in the simulator over all degrees of parallelism, stages, optimizer
 * levels and recomputation together, within the memory of devices. */
#define WEFT_SEARCH_LIST(X)                                                                        \
    X(PROPAGATION, "propagation")                                                                  \
    X(DYNAMIC, "dynamic") X(RECURSIVE, "recursive") X(JOINT, "joint")
#define WEFT_ROW(name, text) WEFT_SEARCH_##name,
typedef enum weft_search { WEFT_SEARCH_LIST(WEFT_ROW) WEFT_SEARCHES } weft_search;
#undef WEFT_ROW

/* What PROPAGATION, DYNAMIC and RECURSIVE compare. MINDSPORE: bytes, weft_mindspore_model. MACHINE:
 * seconds of kernels and transfers, by the machine or the links of the settings; of the model below
 * only `capacity` and `inference` count then. */
typedef enum weft_cost_model {
    WEFT_COST_MINDSPORE,
    WEFT_COST_MACHINE,
    WEFT_COST_MODELS
} weft_cost_model;

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
    size_t struct_bytes;
    weft_search search;
    weft_mindspore_model cost; /* not JOINT, like the next two */
    weft_cost_model cost_model;
    weft_search_rules rules;
    /* JOINT: */
    const char *machine;  /* a machine (docs/reference/format-machine.md); NULL: assumed rates, the
                             settings'  links */
    const char *fix;      /* hard constraints, "pp=4 tp=2"; NULL: none */
    int64_t memory_bytes; /* of a device; 0: the machine's */
    int evaluations;      /* how many plans are simulated at most; 0: the usual number */
    double seconds;       /* its limit, with which a search cannot be repeated; 0: no limit */
} weft_search_options;

/* An axis of the mesh, and the links between its devices. */
typedef struct weft_axis_links {
    char name[16];
    int size;
    char links[64]; /* levels of the machine, innermost first: "host", "host and network" */
} weft_axis_links;

/* A plan that the joint search has simulated beside its answer. */
typedef struct weft_search_alternative {
    char *degrees; /* as constraints, which give this plan or a faster one */
    double step_seconds;
    int64_t peak_bytes; /* of the rank that needs most */
    bool fits;
} weft_search_alternative;

/* A choice for a cell: seconds of a microbatch on one device, with the transfers that its call
 * waits for, and bytes that it keeps for the backward pass or needs during that pass. */
typedef struct weft_cell_choice {
    char name[32]; /* "plan", or what differs: "recompute=full", "tp=4 dp=2" */
    double forward_seconds, backward_seconds;
    int64_t kept_bytes, working_bytes;
} weft_cell_choice;

enum { WEFT_CELL_CHOICES = 6 };
/* A unique cell: calls with equal names, but for numbers, and equal costs. */
typedef struct weft_cell_report {
    char name[128]; /* "h.*" */
    int calls, first_stage, last_stage;
    int call;                                    /* a number of the search */
    char *splits;                                /* what the plan says about its ops */
    weft_cell_choice choices[WEFT_CELL_CHOICES]; /* the first is the plan's */
    int choice_count;
} weft_cell_report;

/* The answer of the joint search. The lower bound holds for every plan of the space that was
 * searched: none has a shorter step in the simulator. */
typedef struct weft_search_report {
    struct weft_prediction *prediction; /* weft/predict.h */
    double lower_bound_seconds;
    double gap;              /* (step - lower bound) / lower bound */
    const char *bound_scope; /* for which plans the bound holds, and how that is known; static */
    double search_seconds;
    int64_t candidates; /* whose bounds were compared */
    int evaluations;    /* plans that were simulated */
    int64_t programs;   /* of a few blocks of the model, built for the bounds */
    bool exhausted;     /* no plan of the space is faster by more than 0.2 % */
    bool cut;           /* by a limit of time: the search cannot be repeated */
    weft_axis_links axes[8];
    int axis_count;
    int stages, chunks, microbatches, level, shard;
    weft_schedule schedule;
    weft_recompute recompute;
    int64_t device_memory_bytes;
    char *degrees;                           /* as constraints, "dp=8 tp=8 pp=1 ..." */
    weft_search_alternative alternatives[8]; /* those that fit first, the fastest first */
    int alternative_count;
    weft_cell_report *cells;
    int cell_count;
    /* The best bound of the plan itself: from lower_bound_seconds to the step. The step is longer
     * by what no bound counts, such as waits. 0: not known, since the search is exhausted or was
     * cut. */
    double plan_bound_seconds;
    /* The plans whose bound lower_bound_seconds is, as constraints. They were not simulated. NULL:
     * it is the plan's own, or plan_bound_seconds is 0. */
    char *least_bound;
    /* Constraints of the job that decide nothing of this plan, such as the schedule of a plan
     * without stages. NULL: all decide something. */
    char *idle_constraints;
    char *moves; /* what memory.offload: auto moves, a line each; NULL: nothing */
} weft_search_report;
WEFT_API void weft_search_report_free(weft_search_report *report); /* NULL is legal */

/** Used by weft_search_defaults: the first `struct_bytes` of the defaults. */
WEFT_API void weft_search_fill_defaults(weft_search_options *out, size_t struct_bytes);
/** The values in the comments above, with search DYNAMIC. */
WEFTI_FILLED_DEFAULTS(weft_search_options, weft_search_defaults, weft_search_fill_defaults)
/** Search for a plan. Wraps loose nodes of the graph into cells.
 * @param settings   devices, stages, optimizer level, recomputation; and strategies or layouts,
 *                   which the search never changes. With a mesh, only its axes are used.
 * @param out        a plan of mode SEMI, freed with weft_plan_destroy
 * @param out_notes  warnings, one per line, "" for none; freed with weft_text_free; may be NULL
 * @return WEFT_E_ARG for settings without a solution; the message names the op or the option.
 *         WEFT_E_NOMEM if nothing fits cost.capacity; the message says how many bytes are missing.
 *         WEFT_E_NOT_FOUND if JOINT found no plan within `seconds`. */
WEFT_API weft_status weft_plan_search(weft_graph *graph, const weft_plan *settings,
                                      const weft_search_options *options, weft_plan **out,
                                      char **out_notes) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
