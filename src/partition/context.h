/* What the files that cut bodies share: partition.c (the walk), strategy.c (which axes split a
 * node), emit.c (the nodes of one device). */
#ifndef WEFTI_WALK_H
#define WEFTI_WALK_H

#include "graph/builder.h"
#include "graph/lower/lower.h"
#include "partition/partition.h"

typedef struct wefti_cut_entry {
    const weft_body *key;
    const wefti_strategy **strategies; /* per node */
    wefti_layout *asked_in, *asked_out;
    uint8_t *in_state, *out_state, *partial_open;
    wefti_cut_body result;
} wefti_cut_entry;

/* What the plan's patterns say of a body in one call; matching names takes longer than finding a
 * cut again. */
typedef struct wefti_matched {
    struct wefti_matched *next; /* of the same bucket */
    const weft_body *body;
    const char *call;
    const wefti_strategy **strategies; /* per node */
} wefti_matched;

enum { WEFTI_MATCHED_BUCKETS = 256 };

struct wefti_partition {
    const weft_plan *plan;
    wefti_mesh mesh;
    int32_t rank, coordinate[WEFTI_MAX_AXES];
    weft_graph *graph;
    wefti_route_cache *routes;
    wefti_arena *arena;
    wefti_transfer **transfers;
    int64_t transfer_count, transfer_cap;
    wefti_cut_entry **entries;
    int64_t entry_count, entry_cap;
    wefti_matched *matched[WEFTI_MATCHED_BUCKETS];
    uint64_t
        *applied;     /* per strategy of the plan: which of its first 64 splits some op has taken */
    int32_t *meaning; /* per strategy: 1 + the first one that says the same; 0: not looked up yet */
    const char **missed; /* per strategy: an op that it matches and that has no such factor; NULL:
                            none met */
    wefti_decide *decide;
    void *decide_context;
};

/* One form in which a value of the whole exists here. */
typedef struct wefti_version {
    wefti_layout layout;
    int32_t value; /* in the local body; -1: an open input, in no layout yet */
    struct wefti_version *next;
} wefti_version;

typedef struct wefti_walk {
    wefti_partition *p;
    const wefti_cut_spec *spec;
    const weft_body *from;
    weft_body *to;
    wefti_builder *own; /* of the graph, while the walk goes on */
    wefti_arena *scratch;
    wefti_version **version; /* per value of the whole, the natural one first */
    const wefti_strategy *const *strategies;
    wefti_layout *in_layout;     /* per input: decided */
    const wefti_layout **wanted; /* per value: the layout in which it leaves the body; NULL: none */
    bool *communicated;          /* per value: see wefti_cut_body; outlives the walk */
    bool *partial_free;          /* per value: it leaves the body and may stay partial */
} wefti_walk;

/* What the partition knows of a node beside its wefti_lowering. */
typedef struct wefti_lower_context {
    wefti_walk *w;
    bool closed[WEFTI_MAX_FACTORS]; /* the plan says in how many parts, also that it is one */
    const wefti_layout *result; /* where the plan wants the first result; NULL: it does not say */
    const char *label, *op;     /* its name is "label:op" */
} wefti_lower_context;

/* strategy.c: fills factor and keep, from the plan or by least cost; then need and give. */
weft_status wefti_partition_choose(wefti_lowering *c, const wefti_strategy *strategy) WEFT_CHECKED;
/* The strategy is of a label, the op one of its gradients: a guide, no demand. */
bool wefti_partition_guided(const weft_node *n, const wefti_strategy *s);
/* partition.c */
/* A version of that layout. For names: the node that reads it, or the output that it becomes. */
weft_status wefti_walk_bring(wefti_walk *w, int32_t value, const wefti_layout *to,
                             const weft_node *reader, const char *output,
                             int32_t *out_local) WEFT_CHECKED;
weft_status wefti_walk_route(wefti_walk *w, int32_t value, const wefti_layout *to,
                             const wefti_version **out_from, const wefti_route **out) WEFT_CHECKED;
weft_status wefti_walk_transfer(wefti_walk *w, int32_t local,
                                wefti_transfer *transfer /* taken over */, const char *scope,
                                int32_t *out_local) WEFT_CHECKED;

weft_status wefti_walk_constant(wefti_walk *w, const weft_desc *desc, double value,
                                int32_t *out_local) WEFT_CHECKED;

/* emit.c: names a transfer of a node after it. */
wefti_lower_add_transfer wefti_partition_named_transfer;
/* One device's nodes for a chosen split. */
weft_status wefti_partition_emit(wefti_lowering *c) WEFT_CHECKED;

#endif
