/* The searches, which assign a strategy to each node of a graph of choices. Internal to this
 * folder; weft/search.h is the public side. */
#ifndef WEFTI_SEARCH_FIND_H
#define WEFTI_SEARCH_FIND_H

#include "base/text.h"
#include "search/choice/choice.h"
#include "weft/search.h"

typedef struct wefti_find {
    wefti_choice_graph *graph;
    const weft_search_options *options;
    wefti_pricing pricing;
    wefti_assignment *assigned; /* [nodes] */
    wefti_text notes;           /* warnings, a line each */
    int64_t searched;           /* strategies that were compared */
    int32_t most;               /* DYNAMIC: strategies of the op that has most, in the last step */
    int64_t trials;             /* DYNAMIC: sums of a run; 0: a usual number */
} wefti_find;

/* dynamic.c */
weft_status wefti_find_dynamic(wefti_find *f) WEFT_CHECKED;
/* propagation.c: WEFT_E_ARG: the plan configures no op. */
weft_status wefti_find_propagation(wefti_find *f) WEFT_CHECKED;
/* recursive.c */
weft_status wefti_find_recursive(wefti_find *f) WEFT_CHECKED;
/* Takes data parallelism in place of the assigned strategies if its estimated step is shorter and
 * it fits the capacity; a note says so. The user's strategies are never given up for it. */
weft_status wefti_find_or_batches(wefti_find *f) WEFT_CHECKED;

/* seconds.c: costs in seconds, by the rates and the mesh of the graph of choices. Of the model,
 * which is borrowed, `inference` counts. */
wefti_pricing wefti_seconds_pricing(const weft_mindspore_model *model);

/* price.c: the costs of a node's strategies, [count]; multiplied by the weight. */
void wefti_find_price_node(const wefti_find *f, const wefti_choice_node *n, wefti_choice_cost *out);
/* The costs of an edge for all strategies of its ends, [count of from][count of to]; multiplied by
 * the weight. */
weft_status wefti_find_price_edge(const wefti_find *f, const wefti_choice_edge *e,
                                  wefti_choice_cost *out) WEFT_CHECKED;
/* Cost and memory of the assigned strategies. */
wefti_choice_cost wefti_find_total(const wefti_find *f);
/* A warning for each edge that the assigned strategies make a transfer of, at most 20. */
void wefti_find_note_transfers(wefti_find *f);

/* write.c: the plan that the assigned strategies make. Axes that are never apart become one. */
weft_status wefti_find_write(const wefti_find *f, weft_plan **out) WEFT_CHECKED;

#endif
