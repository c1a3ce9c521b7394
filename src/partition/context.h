/* Definitions that the files of the partition share:
 *
 *   partition.c   the partition of a body
 *   strategy.c    the axes that split a node
 *   names.c       names of nodes, and strategies by name
 *   bring.c       values in layouts
 *   stored.c      earlier partitions
 *   emit.c        the nodes of one device */
#ifndef WEFTI_PARTITION_CONTEXT_H
#define WEFTI_PARTITION_CONTEXT_H

#include "base/map/map.h"
#include "graph/builder.h"
#include "graph/lower/lower.h"
#include "partition/partition.h"

typedef struct wefti_partition_entry {
    const weft_body *key;
    const wefti_strategy **strategies; /* per node */
    wefti_layout *required_in, *required_out, *late;
    uint8_t *in_state, *out_state;
    wefti_local_body result;
    wefti_rank_reads reads; /* what the local body depends on */
    uint64_t request[2];    /* the body and the tag: the key in `by_request` */
    int64_t next, last;     /* the next entry with this key, -1: none; of the first one: the last */
} wefti_partition_entry;

/* The plan's strategies for the nodes of a body in one call. They are kept because matching names
 * takes longer than finding an earlier partition. */
typedef struct wefti_matched {
    struct wefti_matched *next; /* in the same bucket */
    const weft_body *body;
    const char *call;
    const wefti_strategy **strategies; /* per node */
} wefti_matched;

enum { WEFTI_MATCHED_BUCKETS = 256 };

/* The names of a body's nodes, the same in all calls, and the strategies that can match them. Most
 * nodes have none, so a call needs few matches. */
typedef struct wefti_candidates {
    struct wefti_candidates *next; /* in the same bucket */
    const weft_body *body;
    const char **inside, **op; /* per node */
    int32_t **which, *count;   /* per node: numbers of strategies, ascending */
} wefti_candidates;

struct wefti_partition {
    const weft_plan *plan;
    wefti_mesh mesh;
    int32_t rank, coordinate[WEFTI_MAX_AXES];
    weft_graph *graph;
    wefti_route_cache *routes;
    wefti_arena *arena;
    wefti_rank_reads reads; /* of the bodies in use, and of the builder */
    wefti_transfer **transfers;
    int64_t transfer_count, transfer_cap;
    wefti_partition_entry **entries;
    int64_t entry_count, entry_cap;
    wefti_map by_request; /* the first entry for a body and a tag */
    wefti_map by_body;    /* the entry of a local body; the key is the pointer */
    wefti_matched *matched[WEFTI_MATCHED_BUCKETS];
    wefti_candidates *candidates[WEFTI_MATCHED_BUCKETS];
    uint64_t *applied;   /* per strategy of the plan: a bit for each of its first 64 splits that
                            some op has used */
    int32_t *meaning;    /* per strategy: 1 + the number of the first equivalent strategy; 0: not
                            looked up yet */
    const char **missed; /* per strategy: the name of a matched op without the strategy's factor;
                            NULL: none found */
    wefti_decide *decide;
    void *decide_context;
};

/* One form in which a value of the whole model exists on this rank. */
typedef struct wefti_version {
    wefti_layout layout;
    int32_t value; /* in the local body; -1: an open input, without a layout yet */
    struct wefti_version *next;
} wefti_version;

typedef struct wefti_partition_context {
    wefti_partition *p;
    const wefti_partition_spec *spec;
    const weft_body *from;
    weft_body *to;
    wefti_rank_reads *reads; /* of the entry */
    wefti_builder *own;      /* the graph's builder during the run */
    wefti_arena *scratch;
    wefti_version **version; /* per value of the whole body; the layout in which it is made comes
                                first */
    const wefti_strategy *const *strategies;
    wefti_layout *in_layout;     /* per input: the decided layout */
    const wefti_layout **wanted; /* per value: the layout in which it leaves the body; NULL: open */
    bool *communicated;          /* per value: see wefti_local_body; outlives the run */
    bool *partial_free;          /* per value: it may leave the body as a partial sum */
} wefti_partition_context;

/* The partition's own data of a node, in addition to its wefti_lowering. */
typedef struct wefti_lower_context {
    wefti_partition_context *run;
    bool closed[WEFTI_MAX_FACTORS]; /* the plan states the number of parts, even if it is one */
    const wefti_layout *result; /* the layout of the first result in the plan; NULL: none stated */
    const char *label, *op;     /* the node's name is "label:op" */
} wefti_lower_context;

/* strategy.c: sets factor and keep, from the plan or by least cost; then need and give. */
weft_status wefti_partition_choose(wefti_lowering *c, const wefti_strategy *strategy) WEFT_CHECKED;
/* Whether the strategy is only a guide for the node: it names a label, and the node belongs to a
 * gradient. */
bool wefti_partition_guided(const weft_node *n, const wefti_strategy *s);
/* Sets ctx->strategies. */
weft_status wefti_partition_find_strategies(wefti_partition *p,
                                            wefti_partition_context *ctx) WEFT_CHECKED;
/* stored.c: the earlier partition for an equal request; NULL: none. */
const wefti_partition_entry *wefti_partition_find_entry(wefti_partition *p,
                                                        const wefti_partition_spec *spec,
                                                        const wefti_strategy *const *strategies);
/* The entry of a local body; NULL: none. */
wefti_partition_entry *wefti_partition_entry_of(const wefti_partition *p, const weft_body *local);
/* Adds an entry with its result: it is found from now on. */
weft_status wefti_partition_keep_entry(wefti_partition *p, wefti_partition_entry *e) WEFT_CHECKED;
/* A new entry with a copy of the request. */
weft_status wefti_partition_new_entry(wefti_partition *p, const wefti_partition_spec *spec,
                                      const wefti_strategy *const *strategies,
                                      wefti_partition_entry **out) WEFT_CHECKED;
/* partition.c: a zeroed array of an arena. */
weft_status wefti_partition_array(wefti_arena *arena, int64_t count, size_t bytes,
                                  void *out) WEFT_CHECKED;
/* bring.c */
/* Adds a form in which a value exists. */
weft_status wefti_partition_add_version(wefti_partition_context *ctx, int32_t value,
                                        const wefti_layout *layout, int32_t local) WEFT_CHECKED;
/* An open input takes the first layout that a reader requires, without its partial sums. */
weft_status wefti_partition_fix_input(wefti_partition_context *ctx, int32_t value,
                                      const wefti_layout *layout) WEFT_CHECKED;
/* Brings a value into a layout. For names of transfers: the node that reads it, or the value
 * whose gradient it is. */
weft_status wefti_partition_bring(wefti_partition_context *ctx, int32_t value,
                                  const wefti_layout *to, const weft_node *reader,
                                  const char *gradient_of, int32_t *out_local) WEFT_CHECKED;
weft_status wefti_partition_route(wefti_partition_context *ctx, int32_t value,
                                  const wefti_layout *to, const wefti_version **out_from,
                                  const wefti_route **out) WEFT_CHECKED;
weft_status wefti_partition_add_transfer(wefti_partition_context *ctx, int32_t local,
                                         wefti_transfer *transfer /* owned from now on */,
                                         wefti_moved moved, const char *scope,
                                         int32_t *out_local) WEFT_CHECKED;

weft_status wefti_partition_add_constant(wefti_partition_context *ctx, const weft_desc *desc,
                                         double value, int32_t *out_local) WEFT_CHECKED;

/* emit.c: names a transfer after its node. */
wefti_lower_add_transfer wefti_partition_named_transfer;
/* Adds one device's nodes for a node with a chosen split. */
weft_status wefti_partition_emit(wefti_lowering *c) WEFT_CHECKED;

#endif
