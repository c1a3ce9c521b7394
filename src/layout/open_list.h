/* The open list of a search over layouts (A*). It holds all nodes that the search has found, by
 * their layout, and a queue of the nodes to expand, cheapest first. Private to this folder. */
#ifndef WEFTI_OPEN_LIST_H
#define WEFTI_OPEN_LIST_H

#include "layout/redistribute.h"

/* Compared by time, then bytes, then moves. */
typedef struct wefti_route_cost {
    int64_t time, bytes; /* time in units of 2^-50 s */
    int32_t moves;
} wefti_route_cost;

int wefti_route_cost_compare(const wefti_route_cost *a, const wefti_route_cost *b);
wefti_route_cost wefti_route_cost_sum(wefti_route_cost a, wefti_route_cost b);

typedef struct wefti_open_node {
    wefti_move move;        /* the move that led here; move.to is the node's layout */
    wefti_route_cost cost;  /* of the route from the start */
    wefti_route_cost ahead; /* lower bound of the cost to the goal */
    int64_t lack;           /* bytes that a device lacks of its region at the goal */
    int32_t parent;
    bool settled;
} wefti_open_node;

typedef struct wefti_open_list {
    wefti_open_node *nodes; /* the array moves in memory when a node is added */
    int64_t used, capacity;
    int32_t *table; /* node numbers by the hash of their layouts; -1: free */
    int64_t slots;
    struct wefti_waiting *heap;
    int64_t heap_used, heap_capacity;
} wefti_open_list;

int32_t wefti_open_list_find(const wefti_open_list *f,
                             const wefti_layout *layout); /* -1: not reached */
weft_status wefti_open_list_add(wefti_open_list *f, const wefti_layout *layout,
                                int32_t *out) WEFT_CHECKED;
/* Adds node n to the open list at its present cost. Call it again when that cost decreases. */
weft_status wefti_open_list_push(wefti_open_list *f, int32_t n) WEFT_CHECKED;
/* Requires heap_used > 0. The node may already be settled. */
int32_t wefti_open_list_pop(wefti_open_list *f);
void wefti_open_list_free(wefti_open_list *f);

#endif
