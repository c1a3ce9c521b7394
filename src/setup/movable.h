/* What memory.offload: auto may move to a tier below device memory, as candidates of
 * memory/residency.h. */
#ifndef WEFTI_SETUP_MOVABLE_H
#define WEFTI_SETUP_MOVABLE_H

#include "base/map/map.h"
#include "builder/fold/fold.h"
#include "memory/residency.h"
#include "plan/plan.h"
#include "topo/model.h"

/* What entries match: a parameter with its unit "h.3.*", the block that it belongs to; or a cell,
 * "h.3", which is its own unit. */
typedef struct wefti_movable_name {
    const char *name, *unit;
    int32_t group;
} wefti_movable_name;

typedef struct wefti_movable_names {
    wefti_movable_name *items;
    int32_t count;
    wefti_map map; /* of names */
} wefti_movable_names;

/* The parameters of a model in groups, in the order of the model. A group is a run of blocks, or
 * one large parameter, and has at most about an eighth of all bytes. Candidate what * groups + g is
 * what entries with this `what` (weft_offload) move of group g. */
typedef struct wefti_movable {
    wefti_arena *arena; /* the caller's */
    wefti_movable_names parameters, cells;
    int32_t groups;
    const weft_plan *plan; /* the caller's; what it moves already is no candidate */
    wefti_residency_candidate *candidates;
    bool *by_rows; /* per group of parameters: it has a table that is updated by rows */
    bool *below;   /* likewise: one of its parameters lies in a tier below device memory */
    int64_t *need;
    wefti_residency_span **spans; /* of each candidate */
    int64_t *span_cap;
} wefti_movable;

/* What the costs of a step depend on. */
typedef struct wefti_movable_costs {
    const wefti_machine_model *machine;
    int32_t microbatches, ranks;
    bool programs_count;                 /* in what a device needs */
    bool allowed[WEFTI_RESIDENCY_TIERS]; /* host, disk */
} wefti_movable_costs;

/* The parameters of a graph. Also on failure, the caller calls wefti_movable_free. */
weft_status wefti_movable_find(const weft_graph *graph, const weft_plan *plan, wefti_arena *arena,
                               wefti_movable *out) WEFT_CHECKED;
void wefti_movable_free(wefti_movable *m);
/* Sets all of the problem but limit and room, from the programs of the plan, which are dry. */
weft_status wefti_movable_problem(wefti_movable *m, const wefti_rank_classes *classes,
                                  const wefti_movable_costs *costs,
                                  wefti_residency_problem *out) WEFT_CHECKED;
/* Adds entries to a copy of the plan that move the candidates to their tiers: as few as possible,
 * in words that a user may write. */
weft_status wefti_movable_rules(const wefti_movable *m, const int8_t *tier,
                                weft_plan *plan) WEFT_CHECKED;

#endif
