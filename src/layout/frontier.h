/* What a search over layouts has seen: nodes found by their layout, and a queue of those that wait
 * to be expanded, cheapest first. Internal to this folder. */
#ifndef WEFTI_FRONTIER_H
#define WEFTI_FRONTIER_H

#include "layout/redistribute.h"

/* Compared in this order. */
typedef struct wefti_cost {
    int64_t time, bytes; /* time in units of 2^-50 s */
    int32_t moves;
} wefti_cost;

int wefti_cost_compare(const wefti_cost *a, const wefti_cost *b);
wefti_cost wefti_cost_sum(wefti_cost a, wefti_cost b);

typedef struct wefti_node {
    wefti_move move;  /* that led here; move.to is the layout */
    wefti_cost cost;  /* from the start */
    wefti_cost ahead; /* at least, to the goal */
    int32_t parent;
    bool settled;
} wefti_node;

typedef struct wefti_frontier {
    wefti_node *nodes; /* moves when a node is added */
    int64_t used, capacity;
    int32_t *table; /* of nodes by hash of their layouts; -1: free */
    int64_t slots;
    struct wefti_waiting *heap;
    int64_t heap_used, heap_capacity;
} wefti_frontier;

int32_t wefti_frontier_find(const wefti_frontier *f, const wefti_layout *layout); /* -1: not seen */
weft_status wefti_frontier_add(wefti_frontier *f, const wefti_layout *layout,
                               int32_t *out) WEFT_CHECKED;
/* Node n waits at its present cost; again when that becomes less. */
weft_status wefti_frontier_push(wefti_frontier *f, int32_t n) WEFT_CHECKED;
int32_t wefti_frontier_pop(wefti_frontier *f); /* while heap_used; may be settled already */
void wefti_frontier_free(wefti_frontier *f);

#endif
