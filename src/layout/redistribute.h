/* Redistribution: the cheapest route from one layout of a tensor to another.
 *
 * Uniform-cost search (Dijkstra, 1959) over layouts. An edge is one collective, a local slice, or a
 * change to a partial value (zero all but one term). The cost of an edge is latency + bytes /
 * bandwidth of the axes that it uses. The bytes are the most that any device moves. Bytes of rings
 * over g devices (Thakur et al., IJHPCA 2005):
 *
 *     all-gather, reduce-scatter   (g-1)/g of the larger side
 *     all-reduce                   2 (g-1)/g of the value
 *     all-to-all                   (g-1)/g of the local piece
 *     permutation                  the wanted piece
 *
 * The last collective may be a general exchange (an all-to-all of unequal pieces). Each device then
 * receives only the elements that it lacks. Among routes of equal cost the search prefers common
 * collectives. The space of layouts is small, because only axes that either side uses occur. */
#ifndef WEFTI_REDISTRIBUTE_H
#define WEFTI_REDISTRIBUTE_H

#include "layout/transfer.h"

typedef enum wefti_move_kind {
    WEFTI_MOVE_SLICE, /* keep a part of the local piece */
    /* TO_PARTIAL keeps the value on the first device along `axes`. The other devices get zero, or
     * the neutral element of the reduction. */
    WEFTI_MOVE_TO_PARTIAL,
    WEFTI_MOVE_TRANSFER /* transfer kind below */
} wefti_move_kind;

typedef struct wefti_move {
    wefti_move_kind kind;
    wefti_transfer_kind transfer;
    wefti_axes axes; /* that the move uses */
    wefti_layout to; /* the layout after the move */
    double seconds;
    int64_t bytes; /* the most that any device receives */
} wefti_move;

enum { WEFTI_MAX_MOVES = 24 };
typedef struct wefti_route {
    int moves;
    wefti_move move[WEFTI_MAX_MOVES];
    double seconds;
    int64_t bytes;
    int64_t looks; /* moves that the search has looked at */
} wefti_route;

/* Seconds to move `bytes` over the slowest link among the axes, with the latency once. */
double wefti_move_seconds(const wefti_mesh *mesh, wefti_axes axes, int64_t bytes);
/* Bytes of a layout on the device with the largest piece. */
int64_t wefti_layout_bytes(const wefti_layout *layout, const wefti_mesh *mesh,
                           const weft_desc *whole);

/* The cheapest route: the least seconds, then bytes, then moves. With a `bound` other than 0, no
 * layout after the first needs more bytes than `bound` on any device. WEFT_E_NOMEM: no route fits
 * the bound. WEFT_E_ARG: a layout is illegal. The function is pure, so all ranks get the same
 * answer.
 *
 * Two limits keep the search short. If more than 3 axes are free at once, it slices several of them
 * in one move only towards the goal. After it has visited thousands of layouts, it returns the best
 * route found. */
weft_status wefti_redistribute(const wefti_mesh *mesh, const weft_desc *whole,
                               const wefti_layout *from, const wefti_layout *to, int64_t bound,
                               wefti_route *out) WEFT_CHECKED;

/* A cache of routes. Only one thread may use it at a time. */
typedef struct wefti_route_cache wefti_route_cache;
weft_status wefti_route_cache_create(wefti_route_cache **out) WEFT_CHECKED;
/* How many moves the searches of all routes in the cache have looked at. */
int64_t wefti_route_cache_looks(const wefti_route_cache *cache);
void wefti_route_cache_destroy(wefti_route_cache *cache);
/* *out is valid until the cache is destroyed. */
weft_status wefti_route_find(wefti_route_cache *cache, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *from,
                             const wefti_layout *to, int64_t bound,
                             const wefti_route **out) WEFT_CHECKED;

/* The transfer of `rank` for a move of kind WEFTI_MOVE_TRANSFER, with tag 0 and no name. It is one
 * block; release it with wefti_free. */
weft_status wefti_move_transfer(const wefti_mesh *mesh, const weft_desc *whole,
                                const wefti_layout *from, const wefti_move *move, int32_t rank,
                                wefti_transfer **out) WEFT_CHECKED;

#endif
