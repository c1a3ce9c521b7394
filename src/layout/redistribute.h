/* Redistribution: the cheapest way from one layout of a tensor to another.
 *
 * Uniform-cost search (Dijkstra, 1959) over layouts. An edge is a local slice, zeroing all but one
 * term (to partial), or one collective; its cost is latency + bytes / bandwidth of the axes it runs
 * over, of the device with the most to move. Rings: all-gather and reduce-scatter over g devices
 * move (g-1)/g of the larger side, all-reduce twice that, all-to-all (g-1)/g of the local piece, a
 * permutation the wanted piece (Thakur et al., IJHPCA 2005). The last collective may be a general
 * exchange (an all-to-all of unlike pieces), where each device gets just what it lacks; among
 * equals the plain ones are taken. The space of layouts reached is small: only axes that either
 * side uses occur. */
#ifndef WEFTI_REDISTRIBUTE_H
#define WEFTI_REDISTRIBUTE_H

#include "layout/transfer.h"

typedef enum wefti_move_kind {
    WEFTI_MOVE_SLICE,      /* take a part of what is here */
    WEFTI_MOVE_TO_PARTIAL, /* keep the value on the first device along `axes`, zero (or the
                              reduction's neutral) elsewhere */
    WEFTI_MOVE_TRANSFER    /* transfer kind below */
} wefti_move_kind;

typedef struct wefti_move {
    wefti_move_kind kind;
    wefti_transfer_kind transfer;
    wefti_axes axes; /* that it runs over */
    wefti_layout to; /* the layout after it */
    double seconds;
    int64_t bytes; /* received by the device that receives most */
} wefti_move;

enum { WEFTI_MAX_MOVES = 24 };
typedef struct wefti_route {
    int moves;
    wefti_move move[WEFTI_MAX_MOVES];
    double seconds;
    int64_t bytes;
} wefti_route;

/* Seconds of moving `bytes` over the slowest link among axes, latency once. */
double wefti_move_seconds(const wefti_mesh *mesh, wefti_axes axes, int64_t bytes);
/* Bytes of a layout on the device that has most. */
int64_t wefti_layout_bytes(const wefti_layout *layout, const wefti_mesh *mesh,
                           const weft_desc *whole);

/* The cheapest route: least seconds, then bytes, then moves. `bound`: no layout after the first may
 * need more bytes on any device; 0: no bound. WEFT_E_NOMEM when nothing fits the bound, WEFT_E_ARG
 * for illegal layouts. Pure: the same answer on every rank. Where more than 3 axes are free at once
 * slices look towards the goal only, and a search that has visited thousands of layouts settles for
 * the best route found. */
weft_status wefti_redistribute(const wefti_mesh *mesh, const weft_desc *whole,
                               const wefti_layout *from, const wefti_layout *to, int64_t bound,
                               wefti_route *out) WEFT_CHECKED;

/* Routes found before. Used by one thread at a time. */
typedef struct wefti_route_cache wefti_route_cache;
weft_status wefti_route_cache_create(wefti_route_cache **out) WEFT_CHECKED;
void wefti_route_cache_destroy(wefti_route_cache *cache);
/* *out is borrowed until the cache is destroyed. */
weft_status wefti_route_find(wefti_route_cache *cache, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *from,
                             const wefti_layout *to, int64_t bound,
                             const wefti_route **out) WEFT_CHECKED;

/* The transfer that a move of kind WEFTI_MOVE_TRANSFER is for `rank`; one block, wefti_free. Tag 0,
 * no name. */
weft_status wefti_move_transfer(const wefti_mesh *mesh, const weft_desc *whole,
                                const wefti_layout *from, const wefti_move *move, int32_t rank,
                                wefti_transfer **out) WEFT_CHECKED;
/* The greedy sequence of MindSpore (its documentation of tensor redistribution), for comparison:
 * each dimension split by at most one axis, no partial values, all-to-all allowed or not. Bytes
 * received per device. */
weft_status wefti_redistribute_greedy(const wefti_mesh *mesh, const weft_desc *whole,
                                      const wefti_layout *from, const wefti_layout *to,
                                      bool all_to_all, wefti_route *out) WEFT_CHECKED;

#endif
