/* Cutting bodies: from a body of the whole model to the body that one rank of a mesh runs.
 *
 * Works on forward and backward bodies alike, after differentiation: gradients need no rules of
 * their own. The nodes are walked in order. Each node's strategy comes from the plan or, where that
 * is silent, from following the layouts of its inputs; operands are brought into the layouts that
 * the strategy asks for along the cheapest routes (layout/redistribute.h), each once; the node's
 * piece is added; and its outputs have the layouts that the split rule gives, partial sums
 * included, which stay partial as long as ops are linear in them. All decisions are functions of
 * the whole: every rank makes the same ones. Source of the general scheme: Xu et al., "GSPMD",
 * 2021, section 3; here partial values and uneven pieces are first-class. */
#ifndef WEFTI_PARTITION_H
#define WEFTI_PARTITION_H

#include "graph/graph.h"
#include "layout/redistribute.h"
#include "plan/plan.h"

typedef struct wefti_partition wefti_partition;

/* For one rank of one mesh. `graph` takes the attributes and names of local bodies; `routes` may be
 * shared by the partitions of all ranks, which are used by one thread at a time. All borrowed. */
weft_status wefti_partition_create(const weft_plan *plan, const wefti_mesh *mesh, int32_t rank,
                                   weft_graph *graph, wefti_route_cache *routes,
                                   wefti_partition **out) WEFT_CHECKED;
void wefti_partition_destroy(wefti_partition *p);
/* When all of a model is cut: refuses strategies that say what no op they match has. */
weft_status wefti_partition_check(const wefti_partition *p) WEFT_CHECKED;

typedef enum wefti_layout_state {
    WEFTI_LAYOUT_GIVEN,  /* inputs: it comes so; outputs: it must be so */
    WEFTI_LAYOUT_SUMMED, /* outputs: as it comes, but not partial */
    WEFTI_LAYOUT_OPEN /* inputs (parameters): as the first op that reads it wants it; outputs: as it
                         comes */
} wefti_layout_state;

typedef struct wefti_cut_spec {
    const weft_body *body;        /* of the whole */
    const char *call;             /* path of the call: for strategies and messages */
    const wefti_layout *in, *out; /* per input and output of the body; read where GIVEN */
    const uint8_t *in_state,
        *out_state; /* wefti_layout_state each; NULL: inputs GIVEN, outputs OPEN */
    const uint8_t
        *out_partial_open; /* per output, NULL: all 0. 1: GIVEN but for the partial axes, which stay
                              as they come; 2: GIVEN, but brought there at the end: no node is split
                              for its sake (gradients of parameters) */
    const char *const *out_names; /* per output: what it is, for names of transfers; NULL, also one
                                     by one: called after the op that makes it */
} wefti_cut_spec;

typedef struct wefti_cut_body {
    weft_body *body;              /* local; owned by the partition */
    const wefti_layout *in, *out; /* decided, per input and output */
    const bool *communicated; /* per value of the whole body: it took a reduction, or communication
                                 inside of its op, to make it */
} wefti_cut_body;

/* Names of nodes, by which plans and messages speak of them. The label of a node of `body` in a
 * call with path `call`: "h.3.attn.c_attn"; `inside`: the part of it behind the call's path; the
 * name of its op, which follows the label: "linear"; "mul_grad" in a backward pass. */
enum { WEFTI_OP_NAME_BYTES = 64 };
const char *wefti_node_label(const weft_body *body, const char *call, const weft_node *n,
                             char *buffer, size_t bytes);
const char *wefti_node_inside(const weft_body *body, const weft_node *n, char *buffer,
                              size_t bytes);
const char *wefti_node_op(const weft_node *n, char *buffer, size_t bytes);

/* Cut, or the result of an equal cut before (same body, layouts and strategies). */
weft_status wefti_partition_cut(wefti_partition *p, const wefti_cut_spec *spec,
                                const wefti_cut_body **out) WEFT_CHECKED;

/* The cut that made a local body, and the body of the whole that it was made of; NULL: none. */
const wefti_cut_body *wefti_partition_cut_of(const wefti_partition *p, const weft_body *local,
                                             const weft_body **out_whole);

/* Transfers that `transfer` nodes name by their index, in all bodies of this partition. */
int32_t wefti_partition_transfers(const wefti_partition *p);
const wefti_transfer *wefti_partition_transfer(const wefti_partition *p, int32_t index);
/* Add one (taken over, also on failure); equal ones share an index. */
weft_status wefti_partition_add(wefti_partition *p, wefti_transfer *transfer,
                                int32_t *out_index) WEFT_CHECKED;

/* What was decided for a node, for plans and reports. While somebody observes, equal cuts are made
 * again, so that every node of every call is told. */
typedef struct wefti_decision {
    const char *label; /* "h.3.attn.c_attn" */
    const char *op;
    wefti_split_rule rule;
    wefti_dim_split factor[WEFTI_MAX_FACTORS]; /* axes of each factor */
    const wefti_strategy *said;                /* by the plan; NULL: nothing */
} wefti_decision;
typedef void wefti_decide(void *context, const wefti_decision *decision);
void wefti_partition_observe(wefti_partition *p, wefti_decide *decide, void *context);

#endif
