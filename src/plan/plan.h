/* The plan: all decisions about how a model runs on many devices. It is plain data, and can be
 * read, edited, compared and checked as a JSON file (docs/reference/format-plan.md). The functions
 * of weft/plan.h build it, or a job's `parallel` section, or a search. When programs are built,
 * propagation completes the decisions that the plan leaves open (partition/partition.h). The
 * completed plan is a plan too. */
#ifndef WEFTI_PLAN_H
#define WEFTI_PLAN_H

#include "base/memory.h"
#include "base/text.h"
#include "layout/layout.h"
#include "topo/machine.h"
#include "weft/plan.h"

/* One factor or dimension and the axes that split it. */
typedef struct wefti_split {
    char what[24]; /* a factor's name ("n", "heads"); or "in0.1", "out0.2": dimension 1 of input
                      0, dimension 2 of output 0; or "1": dimension 1 of input 0 */
    int8_t count;
    int8_t axis[WEFTI_MAX_AXES]; /* outermost first */
} wefti_split;

/* The strategy of all ops that a pattern matches. An op has the names "<label>" and "<label>:<op>".
 * The label is the path of the cell call and the scope inside it. For an op with a parameter of its
 * own, the label is the parameter's name without the last component. Examples:
 * "h.3.attn.c_attn:linear", "h.3.attn:attention". The pattern is a glob (*, ?, [..]). The last
 * strategy that matches counts. Backward nodes follow their forward strategies through layouts. */
typedef struct wefti_strategy {
    char *match;
    const char *op;      /* the part of `match` after ":", a pattern for ops; NULL: `match` is for
                            labels, and the strategy applies to each op as far as it can */
    wefti_split *splits; /* split_count entries; `cuts` is NULL then */
    int32_t split_count;
    int64_t
        *cuts; /* MindSpore's form: for each input in turn, a cut for each dimension; NULL: none */
    int32_t *cut_ranks; /* number of dimensions of each input */
    int32_t cut_inputs;
    wefti_layout *out; /* layout of the op's first result, "-> [dp, -]"; NULL: as it is made */
    char *source;      /* its place in the input ("job.yaml:14", "plan.json: strategies[3]"), for
                          messages; may be NULL */
} wefti_strategy;

/* The layout of named tensors: parameters, states, fed inputs. */
typedef struct wefti_tensor_strategy {
    char *match;  /* glob over full names */
    char *layout; /* in the form of wefti_layout_parse, "[dp, -]" */
    char *source;
} wefti_tensor_strategy;

typedef struct wefti_stage_rule {
    char *match; /* glob over the paths of cell calls */
    int32_t stage;
} wefti_stage_rule;

/* Host memory for the rows of each table; none: no cache. */
typedef struct wefti_cache_size {
    int64_t bytes;  /* so many, */
    double percent; /* or room for this part of the table's rows */
} wefti_cache_size;

typedef struct wefti_offload_rule {
    char *match; /* glob over names of parameters; SAVED: over the paths of cell calls */
    weft_offload what;
    weft_tier to;
    wefti_cache_size cache;
} wefti_offload_rule;

/* Where work that a rule matches runs: on the device, or on the host of the device. */
typedef enum wefti_place_on { WEFTI_ON_DEVICE, WEFTI_ON_HOST, WEFTI_PLACES } wefti_place_on;
/* The words of plans and jobs for each; NULL-terminated. */
extern const char *const wefti_place_words[], *const wefti_offload_words[],
                                                  *const wefti_tier_words[];
/* Servers keep the parameters that it matches. */
typedef struct wefti_server_rule {
    char *match;
} wefti_server_rule;

typedef struct wefti_place_rule {
    char *match; /* glob over "PARAMETER:update", or over the names of ops as a strategy's */
    wefti_place_on on;
} wefti_place_rule;

/* Bytes of a bucket in mode auto: 16 MiB. */
enum { WEFTI_FUSION_AUTO = 16 << 20 };
typedef struct wefti_fusion {
    weft_fusion_mode mode;
    int64_t bytes;  /* of a bucket: modes size and auto */
    int32_t *index; /* index: ascending ends, exclusive: [20, 35] makes 0-19, 20-34, 35- */
    int32_t index_count;
} wefti_fusion;

/* Smaller saved blocks stay in device memory. */
enum { WEFTI_SAVED_LEAST = 64 << 10 };

struct weft_plan {
    wefti_arena *arena; /* of everything below */
    int32_t devices;
    wefti_mesh mesh;     /* of one stage, without the pipeline axis; product * stages == devices */
    wefti_links links;   /* measured links; without them all axes have one assumed link */
    wefti_machine rates; /* of a device; wefti_machine_assumed without a machine */
    bool mesh_given;     /* else one axis "dp" of devices / stages, updated with both */
    weft_parallel_mode mode;
    wefti_strategy *strategies;
    int64_t strategy_count, strategy_cap;
    wefti_tensor_strategy *tensors;
    int64_t tensor_count, tensor_cap;
    struct {
        int level;         /* 0: none, 1, 2, 3 */
        int64_t threshold; /* bytes; smaller parameters stay whole; default 0 here, 65536 in
                              MindSpore */
        int32_t shard;     /* devices that share one parameter's state; 0: all replicas */
        weft_tier master;  /* HOST: the host updates all parameters; it has f32 masters of those
                              that are bf16 in the graph */
    } optimizer;
    struct {
        int32_t stages; /* 1: no pipeline */
        int32_t microbatches;
        weft_schedule schedule;
        int32_t chunks; /* virtual stages of each device: interleaved, zero_bubble */
        wefti_stage_rule *rules;
        int64_t rule_count, rule_cap;
        wefti_mesh *meshes; /* per stage, if they differ: the axes of `mesh` with other sizes,
                               which add up to `devices` over all stages; NULL: all equal `mesh` */
    } pipeline;
    int32_t accumulate; /* microbatches if there is one stage */
    int32_t copies;     /* interleaved copies of the batch in one step */
    struct {
        weft_recompute mode;
        char **cells; /* globs over cell calls; empty list: all */
        int64_t cell_count, cell_cap;
        bool communication; /* also repeat transfers */
    } recompute;
    struct {
        wefti_offload_rule *rules;
        int64_t count, cap;
        int64_t ahead; /* most bytes on their way to updates, and back from them; 0: a slice's */
        /* Not printed: */
        int64_t slice; /* most bytes that an update fetches at once; 0: 32 MiB */
        int64_t least; /* fewest bytes of a saved block that moves; 0: WEFTI_SAVED_LEAST */
    } offload;
    struct {
        wefti_server_rule *rules;
        int64_t count, cap;
    } server;
    struct {
        wefti_place_rule *rules;
        int64_t count, cap;
    } place;
    bool gradients_sum;     /* sum over the losses of devices and microbatches; false: mean */
    wefti_fusion fusion[3]; /* all_reduce, all_gather, reduce_scatter */
    weft_dataset dataset;
    wefti_strategy dataset_cuts; /* of each input, in place of `dataset`; `cuts` NULL: none */
    bool overlap;
    uint64_t model_hash; /* of the graph for which the plan was completed; 0: none */
    struct {
        double predicted_seconds, measured_seconds; /* of a step; 0: there was no audit */
    } audit;                                        /* the last one of a run with this plan */
};

/* Takes links and rates from a machine: a text of wefti_model_find. The machine must have the
 * plan's devices. Unlike weft_plan_links it also sets the rates of devices. */
weft_status wefti_plan_machine(weft_plan *plan, const char *machine) WEFT_CHECKED;

/* weft_plan_split_op and weft_plan_split_tensor with the place in the input, kept for messages.
 * NULL: unknown. */
weft_status wefti_plan_split(weft_plan *plan, const char *match, const char *split,
                             const char *source) WEFT_CHECKED;
weft_status wefti_plan_split_tensor(weft_plan *plan, const char *match, const char *layout,
                                    const char *source) WEFT_CHECKED;
/* Adds the rules of `from` for lower tiers and for the host to the plan, and takes its masters. */
weft_status wefti_plan_take_offload(weft_plan *plan, const weft_plan *from) WEFT_CHECKED;
/* A deep copy. */
weft_status wefti_plan_copy(const weft_plan *plan, weft_plan **out) WEFT_CHECKED;
/* Refines the mesh: divides in two each axis that optimizer.shard takes only in part. An axis that
 * is already divided stays. */
weft_status wefti_plan_refine(weft_plan *plan) WEFT_CHECKED;

/* plan_split.c: parses "m0=dp n0=tp+sp" or "((2,1),(1,4))" into the splits or cuts of a strategy,
 * in the plan's arena, and prints them. */
weft_status wefti_split_parse(const weft_plan *plan, const char *text,
                              wefti_strategy *out) WEFT_CHECKED;
void wefti_split_print(const weft_plan *plan, const wefti_strategy *strategy, wefti_text *out);

/* The strategy for an op with the names `label` and "label:op"; NULL: none. A strategy for a label
 * is meant for the model's own ops. An op of the backward pass gets it as a guide
 * (wefti_partition_guided) if no strategy matches its second name. */
const wefti_strategy *wefti_plan_strategy(const weft_plan *plan, const char *label, const char *op,
                                          bool gradient);
/* The same among the plan's strategies with the numbers `which`, which ascend; NULL: all of them.
 */
const wefti_strategy *wefti_plan_strategy_among(const weft_plan *plan, const int32_t *which,
                                                int64_t count, const char *label, const char *op,
                                                bool gradient);
/* Whether the strategy can match an op with a label that ends with `inside`, in any call. A quick
 * test: if it fails, no call's label needs to be matched. */
bool wefti_plan_may_match(const wefti_strategy *strategy, const char *inside, const char *op);
const wefti_tensor_strategy *wefti_plan_tensor(const weft_plan *plan, const char *name);
int32_t wefti_plan_stage(const weft_plan *plan, const char *call); /* -1: no rule matches */
bool wefti_plan_recomputes(const weft_plan *plan, const char *call);
/* Whether the host updates the parameter `name`: a rule says so, or it has the masters. plan NULL:
 * no. */
bool wefti_plan_updates_on_host(const weft_plan *plan, const char *name);
/* Whether the host may update any parameter. */
bool wefti_plan_may_update_on_host(const weft_plan *plan);
/* Where `what` of the parameter or the cell call `name` lies. No rule, or plan NULL:
 * WEFT_TIER_DEVICE. The states of a parameter that the host updates lie in its memory. */
weft_tier wefti_plan_tier(const weft_plan *plan, weft_offload what, const char *name);
/* The entry of memory.offload that counts for it; NULL: none. */
const wefti_offload_rule *wefti_plan_offload_rule(const weft_plan *plan, weft_offload what,
                                                  const char *name);
/* Whether `what` of anything may lie in the tier: an entry says so, and no later one is for
 * all. */
bool wefti_plan_may_offload(const weft_plan *plan, weft_offload what, weft_tier tier);
/* Whether servers keep the parameter `name`, if it is trained. */
bool wefti_plan_serves(const weft_plan *plan, const char *name);
/* Whether devices that use the same region of a parameter keep pieces of it, not copies. They do at
 * level 3. At levels 1 and 2 they do so for parameters in a tier below device memory, and for all
 * with masters on the host. */
bool wefti_plan_divides(const weft_plan *plan, const char *name);
/* Whether programs depend on the plan. With one device they depend only on settings other than
 * splits. */
bool wefti_plan_matters(const weft_plan *plan);
/* The mesh of a stage. Its ranks begin at `first`. Its axes have the plan's links; stages with
 * equal axes get equal links. */
wefti_mesh wefti_plan_mesh(const weft_plan *plan, int32_t stage);
int32_t wefti_plan_stage_of_rank(const weft_plan *plan, int32_t rank);
/* All checks that need no model: mesh against devices, levels, numbers, names of axes. */
weft_status wefti_plan_check(const weft_plan *plan) WEFT_CHECKED;

/* plan_state.c: the layout of a parameter's optimizer state, if its readers have it in layout
 * `use`. It is split along the first dimension: these pieces are contiguous, which makes copies and
 * transfers fast. Another dimension is used if its largest piece is smaller by more than an eighth.
 * If no dimension has elements for all devices, some devices hold none. */
wefti_layout wefti_plan_state_layout(const weft_plan *plan, const wefti_mesh *mesh,
                                     const weft_desc *whole, const wefti_layout *use);

/* plan_print.c, plan_parse.c. Parsing is strict: it refuses unknown keys, wrong types and other
 * versions, and names the place. */
weft_status wefti_plan_print(const weft_plan *plan, char **out) WEFT_CHECKED;
weft_status wefti_plan_parse(const char *name, const char *text, int64_t bytes,
                             weft_plan **out) WEFT_CHECKED;

#endif
