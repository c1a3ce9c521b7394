/* Partition: derives the body that one rank of a mesh runs from the body of the whole model.
 *
 * It works on forward and backward bodies alike, after differentiation, so gradients need no rules
 * of their own. Nodes are taken in order. For each node:
 *
 * - The plan gives its strategy, or the strategy follows the layouts of its inputs.
 * - Each operand is brought once into its required layout along the cheapest route
 *   (layout/redistribute.h).
 * - The node's piece is added.
 * - Its outputs get the layouts of the split rule. Partial sums stay partial as long as the
 *   following ops are linear in them.
 *
 * All decisions depend only on the whole model, so every rank makes the same ones. Source of the
 * general scheme: Xu et al., "GSPMD", 2021, section 3. In addition, partial values and uneven
 * pieces are first-class here. */
#ifndef WEFTI_PARTITION_H
#define WEFTI_PARTITION_H

#include "graph/graph.h"
#include "layout/rank_reads.h"
#include "layout/redistribute.h"
#include "plan/plan.h"

typedef struct wefti_partition wefti_partition;

/* A partition for one rank of one mesh. `graph` stores attributes and names of local bodies. The
 * partitions of all ranks may share `routes` if one thread at a time uses them. All arguments are
 * borrowed. */
weft_status wefti_partition_create(const weft_plan *plan, const wefti_mesh *mesh, int32_t rank,
                                   weft_graph *graph, wefti_route_cache *routes,
                                   wefti_partition **out) WEFT_CHECKED;
void wefti_partition_destroy(wefti_partition *p);
/* Bytes that a partition has requested from the allocator; NULL: 0. */
int64_t wefti_partition_bytes(const wefti_partition *p);
/* Call it when the whole model is partitioned. Refuses a strategy with a split that no matched op
 * can use. */
weft_status wefti_partition_check(const wefti_partition *p) WEFT_CHECKED;

/* Up to GIVEN_LATE a layout is stated. The two before SUMMED are of outputs that are gradients of
 * parameters. */
typedef enum wefti_layout_state {
    WEFTI_LAYOUT_GIVEN,         /* input: it comes in this layout; output: it must have it */
    WEFTI_LAYOUT_GIVEN_PARTIAL, /* GIVEN, except that partial axes stay as they are made */
    WEFTI_LAYOUT_GIVEN_LATE,    /* GIVEN, but brought there at the end, and splits do not depend on
                                   it. They are those of GIVEN_PARTIAL for the layout in `late` */
    WEFTI_LAYOUT_SUMMED,        /* output: as it is made, with partial sums added up */
    WEFTI_LAYOUT_OPEN /* input (parameter): as its first reader requires; output: as it is made */
} wefti_layout_state;

typedef struct wefti_partition_spec {
    const weft_body *body;        /* body of the whole model */
    const char *call;             /* path of the call: for strategies and messages */
    const wefti_layout *in, *out; /* per input and output of the body; read if stated */
    const wefti_layout *late;     /* per output; read if GIVEN_LATE */
    const uint8_t *in_state,
        *out_state; /* wefti_layout_state values; NULL: inputs GIVEN, outputs OPEN */
    const char *const *out_gradient_of; /* per output: the value whose gradient it is, for names of
                                           transfers; NULL, also for single ones: no gradient */
    uint64_t tag;                       /* of all transfers of the body; 0 for a cell's body */
} wefti_partition_spec;

typedef struct wefti_local_body {
    weft_body *body;              /* local; owned by the partition */
    const wefti_layout *in, *out; /* decided, per input and output */
    const bool *communicated;     /* per value of the whole body: making it needed a reduction, or
                                     communication inside its op */
} wefti_local_body;

/* Names of nodes in plans and messages. `wefti_node_label` is the label of a node of `body` in a
 * call with path `call`, "h.3.attn.c_attn". `wefti_node_inside` is the part of the label after the
 * call's path. `wefti_node_op` is the name of the op, which follows the label: "linear", or
 * "mul_grad" in a backward pass. */
enum { WEFTI_OP_NAME_BYTES = 64 };
const char *wefti_node_label(const weft_body *body, const char *call, const weft_node *n,
                             char *buffer, size_t bytes);
const char *wefti_node_inside(const weft_body *body, const weft_node *n, char *buffer,
                              size_t bytes);
const char *wefti_node_op(const weft_node *n, char *buffer, size_t bytes);

/* Partitions a body, or returns the result for an equal earlier request (same body, layouts and
 * strategies). */
weft_status wefti_partition_body(wefti_partition *p, const wefti_partition_spec *spec,
                                 const wefti_local_body **out) WEFT_CHECKED;

/* The partition that made a local body, and the whole body that it was made from; NULL: none. */
const wefti_local_body *wefti_partition_of_local(const wefti_partition *p, const weft_body *local,
                                                 const weft_body **out_whole);

/* The transfers to which `transfer` nodes refer by index, in all bodies of this partition. */
int32_t wefti_partition_transfers(const wefti_partition *p);
const wefti_transfer *wefti_partition_transfer(const wefti_partition *p, int32_t index);
/* Adds a transfer, which the partition owns from now on, also on failure. Equal transfers share an
 * index. */
weft_status wefti_partition_add(wefti_partition *p, wefti_transfer *transfer,
                                int32_t *out_index) WEFT_CHECKED;

/* What the bodies in use, and the program around them, depend on. The builder adds to it. A body
 * that only decides layouts, of a call of another stage, is not in use. */
wefti_rank_reads *wefti_partition_reads(wefti_partition *p);
/* The program runs a local body of this partition. Other bodies are ignored. */
void wefti_partition_use(wefti_partition *p, const weft_body *local);

/* The decision for a node, for plans and reports. While an observer is set, equal partitions are
 * made again, so that every node of every call is reported. */
typedef struct wefti_decision {
    const char *label; /* "h.3.attn.c_attn" */
    const char *op;
    wefti_split_rule rule;
    wefti_dim_split factor[WEFTI_MAX_FACTORS]; /* axes of each factor */
    const wefti_strategy *said;                /* the plan's strategy for it; NULL: none */
} wefti_decision;
typedef void wefti_decide(void *context, const wefti_decision *decision);
void wefti_partition_observe(wefti_partition *p, wefti_decide *decide, void *context);

/* unmatched.c: lists the settings of a plan that have no effect, one message per line, "" for none;
 * wefti_free it. It lists at most 20 patterns, and counts the others. These are patterns that match
 * no name of the model, axes that split nothing, and fusions without tensors. Wraps the graph's
 * loose nodes into cells. `fused`: for each of the plan's fusions the most tensors that it may join
 * on a device, known from a build; NULL: unknown, then fusions are not checked. */
weft_status wefti_plan_unmatched(const weft_plan *plan, weft_graph *graph, const int32_t fused[3],
                                 char **out) WEFT_CHECKED;
/* The same for a model in use, of which only parameters move. NULL if there is nothing to check. */
weft_status wefti_plan_unmatched_moves(const weft_plan *plan, weft_graph *graph,
                                       char **out) WEFT_CHECKED;
/* Refuses a plan with a split of an op or a tensor whose pattern matches no name of the model:
 * WEFT_E_NOT_FOUND, with the first such split and the nearest name. Wraps the graph too. */
weft_status wefti_plan_check_splits(const weft_plan *plan, weft_graph *graph) WEFT_CHECKED;
/* Whether the plan's rules of `place` say that the host runs an op of a call of `root`. A rule
 * matches an op by a name that strategies match too, and a look-up also by the name of its table:
 * "wte.weight", or "wte". */
bool wefti_plan_op_on_host(const weft_plan *plan, const weft_body *root, const weft_node *call,
                           const weft_node *op);
/* Whether they may say so of any op. plan NULL: no. */
bool wefti_plan_may_run_on_host(const weft_plan *plan);
/* Refuses rules for the host that it cannot follow: one for an op that cannot run there,
 * WEFT_E_NO_IMPL; one for a parameter, or the update of one, that another rule keeps elsewhere,
 * WEFT_E_ARG. The graph is wrapped. plan NULL: no rules. */
weft_status wefti_plan_check_places(const weft_plan *plan, const weft_graph *graph) WEFT_CHECKED;

#endif
