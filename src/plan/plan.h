/* The plan: everything that is decided about how a model runs on many devices. Plain data: read,
 * edited, compared and checked as a JSON file (docs/format-plan.md), built by the functions of
 * weft/plan.h, by a job's `parallel` section, or by a search. What it leaves open is completed by
 * propagation when programs are built (program/partition.h), and the completed plan is a plan too.
 */
#ifndef WEFTI_PLAN_H
#define WEFTI_PLAN_H

#include "base/memory.h"
#include "base/text.h"
#include "layout/layout.h"
#include "weft/plan.h"

/* One factor or dimension and the axes that split it. */
typedef struct wefti_split {
    char what[24]; /* a factor's name ("n", "heads"); "in0.1", "out0.2": dimension 1 of input 0...;
                      "1": of input 0 */
    int8_t count;
    int8_t axis[WEFTI_MAX_AXES]; /* outermost first */
} wefti_split;

/* What is said about all ops that a pattern matches. Ops are named "<label>" and "<label>:<op>":
 * label is the cell call's path and the scope inside it, or, for an op with a parameter of its own,
 * that parameter's name without the last component: "h.3.attn.c_attn:linear", "h.3.attn:attention".
 * The pattern is a glob (*, ?, [..]); the last strategy that matches counts. Backward nodes follow
 * their forward strategies through layouts. */
typedef struct wefti_strategy {
    char *match;
    wefti_split *splits; /* count of them; cuts NULL */
    int32_t split_count;
    int64_t
        *cuts; /* MindSpore's form: for each input in turn, a cut for each dimension; NULL: none */
    int32_t *cut_ranks; /* dimensions of each input */
    int32_t cut_inputs;
    wefti_layout *out; /* of the op's first result, "-> [dp, -]"; NULL: as it comes */
    char *source; /* where it was said ("job.yaml:14", "plan.json: strategies[3]"), for messages;
                     may be NULL */
} wefti_strategy;

/* Layout of named tensors: parameters, states, fed inputs. */
typedef struct wefti_tensor_strategy {
    char *match;  /* glob over full names */
    char *layout; /* wefti_layout_parse's form, "[dp, -]" */
    char *source;
} wefti_tensor_strategy;

typedef struct wefti_stage_rule {
    char *match; /* glob over cell calls' paths */
    int32_t stage;
} wefti_stage_rule;

/* Bytes of a bucket in mode auto: 64 MiB. */
enum { WEFTI_FUSION_AUTO = 64 << 20 };
typedef struct wefti_fusion {
    weft_fusion_mode mode;
    int64_t bytes;  /* of a bucket: size, auto */
    int32_t *index; /* index: ascending ends, exclusive: [20, 35] makes 0-19, 20-34, 35- */
    int32_t index_count;
} wefti_fusion;

struct weft_plan {
    wefti_arena *arena; /* of all below */
    int32_t devices;
    wefti_mesh mesh;   /* of one stage: without the pipeline axis; product * stages == devices */
    wefti_links links; /* that were measured; where none were, axes have one assumed link */
    bool mesh_given;   /* else one axis "dp" of devices / stages, which follows both */
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
    } optimizer;
    struct {
        int32_t stages; /* 1: none */
        int32_t microbatches;
        weft_schedule schedule;
        int32_t chunks; /* virtual stages on each device: interleaved, zero_bubble */
        wefti_stage_rule *rules;
        int64_t rule_count, rule_cap;
        wefti_mesh *meshes; /* per stage, where they differ: the axes of `mesh`, other sizes, which
                               add up to devices over all stages; NULL: all are `mesh` */
    } pipeline;
    int32_t accumulate; /* microbatches when there is one stage */
    int32_t copies;     /* interleaved copies of the batch in one step */
    struct {
        weft_recompute mode;
        char **cells; /* globs over cell calls; none: all */
        int64_t cell_count, cell_cap;
        bool communication; /* also redo transfers */
    } recompute;
    bool gradients_sum;     /* of devices' and microbatches' losses; false: mean */
    wefti_fusion fusion[3]; /* all_reduce, all_gather, reduce_scatter */
    weft_dataset dataset;
    bool overlap;
    uint64_t model_hash; /* of the graph it was completed for; 0: none */
};

/* weft_op_split and weft_tensor_split with the place where it was said (NULL: none), kept for
 * messages. */
weft_status wefti_plan_split(weft_plan *plan, const char *match, const char *split,
                             const char *source) WEFT_CHECKED;
weft_status wefti_plan_split_tensor(weft_plan *plan, const char *match, const char *layout,
                                    const char *source) WEFT_CHECKED;
/* A plan of its own, equal in all. */
weft_status wefti_plan_copy(const weft_plan *plan, weft_plan **out) WEFT_CHECKED;
/* Cuts axes in two of which optimizer.shard takes a part. What is cut already stays. */
weft_status wefti_plan_refine(weft_plan *plan) WEFT_CHECKED;

/* plan_split.c: "m0=dp n0=tp+sp" or "((2,1),(1,4))" to the splits or cuts of a strategy, in the
 * plan's arena, and back. */
weft_status wefti_split_parse(const weft_plan *plan, const char *text,
                              wefti_strategy *out) WEFT_CHECKED;
void wefti_split_print(const weft_plan *plan, const wefti_strategy *strategy, wefti_text *out);

/* Strategy for an op called `label` and "label:op"; NULL: none. What is said of a label is said of
 * the model's own ops: one of the backward pass takes it (wefti_partition_guided) if nothing is
 * said of its second name. */
const wefti_strategy *wefti_plan_strategy(const weft_plan *plan, const char *label, const char *op,
                                          bool gradient);
const wefti_tensor_strategy *wefti_plan_tensor(const weft_plan *plan, const char *name);
int32_t wefti_plan_stage(const weft_plan *plan, const char *call); /* -1: no rule says */
bool wefti_plan_recomputes(const weft_plan *plan, const char *call);
/* Whether programs depend on the plan: with one device they do only for what it says beside splits.
 */
bool wefti_plan_matters(const weft_plan *plan);
/* Mesh of a stage: its ranks begin at first, and its axes have the links of the plan, those of all
 * stages with the same axes. */
wefti_mesh wefti_plan_mesh(const weft_plan *plan, int32_t stage);
int32_t wefti_plan_stage_of_rank(const weft_plan *plan, int32_t rank);
/* All that can be said without a model: mesh against devices, levels, numbers, names of axes. */
weft_status wefti_plan_check(const weft_plan *plan) WEFT_CHECKED;

/* plan_print.c, plan_parse.c. The text is read strictly: unknown keys, wrong types and versions are
 * refused, with the place. */
weft_status wefti_plan_print(const weft_plan *plan, char **out) WEFT_CHECKED;
weft_status wefti_plan_parse(const char *name, const char *text, int64_t bytes,
                             weft_plan **out) WEFT_CHECKED;

#endif
