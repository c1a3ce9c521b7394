/* The open list of a search over layouts (A*): all nodes that the search has found, by their
 * layout, and a queue of those that wait to be expanded, cheapest first. Private to this folder. */
#ifndef WEFTI_OPEN_LIST_H
#define WEFTI_OPEN_LIST_H

#include "layout/redistribute.h"

/* Compared in this order. */
typedef struct wefti_route_cost {
    int64_t time, bytes; /* time in units of 2^-50 s */
    int32_t moves;
} wefti_route_cost;

int wefti_route_cost_compare(const wefti_route_cost *a, const wefti_route_cost *b);
wefti_route_cost wefti_route_cost_sum(wefti_route_cost a, wefti_route_cost b);

typedef struct wefti_open_node {
    wefti_move move;        /* that led here; move.to is the layout */
    wefti_route_cost cost;  /* from the start */
    wefti_route_cost ahead; /* at least, to the goal */
    int32_t parent;
    bool settled;
} wefti_open_node;

typedef struct wefti_open_list {
    wefti_open_node *nodes; /* moves when a node is added */
    int64_t used, capacity;
    int32_t *table; /* of nodes by hash of their layouts; -1: free */
    int64_t slots;
    struct wefti_waiting *heap;
    int64_t heap_used, heap_capacity;
} wefti_open_list;

int32_t wefti_open_list_find(const wefti_open_list *f,
                             const wefti_layout *layout); /* -1: not seen */
weft_status wefti_open_list_add(wefti_open_list *f, const wefti_layout *layout,
                                int32_t *out) WEFT_CHECKED;
/* Node n waits at its present cost; again when that becomes less. */
weft_status wefti_open_list_push(wefti_open_list *f, int32_t n) WEFT_CHECKED;
int32_t wefti_open_list_pop(wefti_open_list *f); /* while heap_used; may be settled already */
void wefti_open_list_free(wefti_open_list *f);

#endif
