/* Collectives on buffers, for programs that divide their work themselves.
 *
 *     weft_all_reduce(world, NULL, gradient, gradient, count, WEFT_F32, WEFT_REDUCE_SUM);
 *
 * A group is a list of ranks; NULL is all of them. All members make the same calls in the same
 * order; one that does not is named in everyone's error. Reductions are taken in the order of the
 * group's ranks: every member gets the same bits, and so does every communicator. Counts are of
 * elements; buffers do not overlap unless it is said that they may be the same.
 *
 * A call returns when its buffers may be used again. Each also has a form that does not wait, with
 * _start at the end: buffers, not lists of ranks and counts, belong to it until its request is
 * done.
 *
 * Errors: WEFT_E_ARG for what this process alone can see to be wrong (nobody is told, so whoever
 * goes on should say weft_world_fail); WEFT_E_MISMATCH when members make different calls,
 * WEFT_E_PEER and WEFT_E_TIMEOUT when one dies or does not come, on all of them, naming it, after
 * which the world can only be left; WEFT_E_NOMEM, after which the call may be made once more,
 * unless blocks of an exchange were under way already: then the world has failed for all. */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include "weft/types.h"
#include "weft/world.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_REDUCE_LIST(X)                                                                        \
    X(SUM, "sum")                                                                                  \
    X(MAX, "max")                                                                                  \
    X(MIN, "min")                                                                                  \
    X(PROD, "prod")
typedef enum weft_reduction {
#define WEFT_REDUCE_ROW(name, text) WEFT_REDUCE_##name,
    WEFT_REDUCE_LIST(WEFT_REDUCE_ROW)
#undef WEFT_REDUCE_ROW
        WEFT_REDUCTIONS
} weft_reduction;

typedef struct weft_group weft_group;
typedef struct weft_request weft_request;

/** `ranks` [count], ascending. Not collective, but all members make an equal group, in the same
 * order where they make several of the same ranks. What it communicates through, some KiB, is kept
 * until the world is left: a group is made once, not for each call. */
WEFT_API weft_status weft_group_create(weft_world *world, const int *ranks, int count,
                                       weft_group **out) WEFT_CHECKED;
/** Requests that are under way still end. NULL is legal. */
WEFT_API void weft_group_destroy(weft_group *group);
WEFT_API int weft_group_size(const weft_group *group);
WEFT_API int weft_group_rank(const weft_group *group); /* this process's place, -1: no member */
/** The rank in the world of a member, -1 for none. */
WEFT_API int weft_group_world_rank(const weft_group *group, int rank);

/** Wait until the request is done; frees it, also on failure. */
WEFT_API weft_status weft_request_wait(weft_request *request) WEFT_CHECKED;
/** Never blocks: WEFT_PENDING, or as weft_request_wait, also in that it frees the request. */
WEFT_API weft_status weft_request_test(weft_request *request) WEFT_CHECKED;

/** The neighbours of a tile, group members clockwise from the top (top, top right, right, ... top
 * left), -1 for none; and how much is sent to them, or received: rows to the top and the bottom,
 * columns to the left and the right. */
typedef struct weft_halo {
    int ranks[8];
    int64_t sizes[4];
} weft_halo;
/** Of tile number `place` of a grid, row by row, whose members are tiles of the same numbers. Who
 * has no place on the grid has no neighbours. */
WEFT_API weft_halo weft_halo_on_grid(int rows, int columns, int place, const int64_t sizes[4]);

#define WEFTI_COLLECTIVE(name, ...)                                                                \
    WEFT_API weft_status name(weft_world *world, weft_group *group, __VA_ARGS__) WEFT_CHECKED;     \
    WEFT_API weft_status name##_start(weft_world *world, weft_group *group, __VA_ARGS__,           \
                                      weft_request **out) WEFT_CHECKED;

/** source, destination: [count]; may be the same. */
WEFTI_COLLECTIVE(weft_all_reduce, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction)
/** source [count], destination [group, count]. */
WEFTI_COLLECTIVE(weft_all_gather, const void *source, void *destination, int64_t count,
                 weft_dtype dtype)
/** source [group, count], destination [count]: the reduction of block number `group rank`. */
WEFTI_COLLECTIVE(weft_reduce_scatter, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction)
/** source, destination [group, count]: block i goes to member i. */
WEFTI_COLLECTIVE(weft_all_to_all, const void *source, void *destination, int64_t count,
                 weft_dtype dtype)
/** Blocks of any size: send_counts, receive_counts [group]; blocks follow each other without gaps.
 */
WEFTI_COLLECTIVE(weft_all_to_all_v, const void *source, const int64_t *send_counts,
                 void *destination, const int64_t *receive_counts, weft_dtype dtype)
/** buffer [count], of member `root` to all. */
WEFTI_COLLECTIVE(weft_broadcast, void *buffer, int64_t count, weft_dtype dtype, int root)
/** destination [count], used on member `root` only; may be the source. */
WEFTI_COLLECTIVE(weft_reduce, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction, int root)
/** destination [group, count], used on member `root` only. */
WEFTI_COLLECTIVE(weft_gather, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, int root)
/** source [group, count], used on member `root` only; destination [count]. */
WEFTI_COLLECTIVE(weft_scatter, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, int root)
/** To and from group members, counts as given: source the blocks for send_ranks[sends] one after
 * the other, destination those of receive_ranks[receives]. Only neighbours take part with each
 * other; two members agree on how often and how much. */
WEFTI_COLLECTIVE(weft_neighbor_exchange, const void *source, const int *send_ranks,
                 const int64_t *send_counts, int sends, void *destination, const int *receive_ranks,
                 const int64_t *receive_counts, int receives, weft_dtype dtype)
/** Tiles of a plane and their rims. source [planes, height, width] (of an image [n, c, h, w], n c
 * planes), as `shape` says; destination [planes, top + height + bottom, left + width + right] by
 * the sizes that are received: the tile in what its neighbours sent, zeros where there is none. The
 * block to a side is as long as the tile, to a corner as large as both sizes say. */
WEFTI_COLLECTIVE(weft_halo_exchange, const void *source, const int64_t *shape,
                 const weft_halo *send, void *destination, const weft_halo *receive,
                 weft_dtype dtype)
/** Between two members. Messages of one pair and tag arrive in the order in which they were sent.
 * Tags tell kinds of messages apart, and do not count them: each that two members use takes some
 * KiB until the world is left. Every message that is not empty must be received, with its tag,
 * before its two ranks leave, or the job fails (weft_world_close), though small ones wait for
 * nobody; a receive that was begun may be left. */
WEFTI_COLLECTIVE(weft_send, const void *source, int64_t count, weft_dtype dtype, int to, int tag)
WEFTI_COLLECTIVE(weft_recv, void *destination, int64_t count, weft_dtype dtype, int from, int tag)

/** Returns when all members have come here. */
WEFT_API weft_status weft_barrier(weft_world *world, weft_group *group) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
