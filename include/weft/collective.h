/* Collectives on buffers, for programs that divide their work themselves.
 *
 *     weft_all_reduce(world, NULL, gradient, gradient, count, WEFT_F32, WEFT_REDUCE_SUM);
 *
 * A group is a list of ranks; NULL is the whole world. All members make the same calls in the same
 * order. If one does not, the errors of all members name it. Reductions are computed by ascending
 * world rank, whatever the group's order, so every member and every communicator gets the same
 * bits. Counts are numbers of elements. Buffers must not overlap, unless stated that they may be
 * the same.
 *
 * A call blocks until its buffers may be used again. Each call has a nonblocking form with _start
 * at the end of its name. Its buffers, but not its lists of ranks and counts, belong to it until
 * the request is done.
 *
 * Errors:
 * - WEFT_E_ARG: an argument that is wrong on this process alone. The other members are not told, so
 *   a
 *   program that does not repeat the call should call weft_world_fail.
 * - WEFT_E_MISMATCH: members make different calls. WEFT_E_PEER, WEFT_E_TIMEOUT: a member died or
 *   did
 *   not come. All members get the error with its rank, and the world can only be left.
 * - WEFT_E_NOMEM: the call may be repeated once, unless blocks of an exchange were in flight; then
 *   the
 *   world has failed for all. */
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

/** Create a group of the ranks `ranks` [count], in any order, each once: member m is ranks[m]. Not
 * collective, but all members must create equal groups, and several groups of the same ranks in the
 * same order. A group's channels, some KiB, stay until the world is left: create a group once, not
 * for each call. */
WEFT_API weft_status weft_group_create(weft_world *world, const int *ranks, int count,
                                       weft_group **out) WEFT_CHECKED;
/** Free a group. Requests in flight still complete. NULL is legal. */
WEFT_API void weft_group_destroy(weft_group *group);
WEFT_API int weft_group_size(const weft_group *group);
WEFT_API int weft_group_rank(const weft_group *group); /* this process's place, -1: not a member */
/** The rank in the world of member `rank`; -1 for none. */
WEFT_API int weft_group_world_rank(const weft_group *group, int rank);

/** Block until the request is done, and free it, also on failure. */
WEFT_API weft_status weft_request_wait(weft_request *request) WEFT_CHECKED;
/** Nonblocking. Returns WEFT_PENDING, or frees the request and returns as weft_request_wait. */
WEFT_API weft_status weft_request_test(weft_request *request) WEFT_CHECKED;

/** The neighbors of a tile, as group members clockwise from the top (top, top right, right, ... top
 * left), -1 for none. The sizes say how much is sent to them, or received: rows to the top and the
 * bottom, columns to the left and the right. */
typedef struct weft_halo {
    int ranks[8];
    int64_t sizes[4];
} weft_halo;
/** The halo of tile number `place` of a grid. Members are the tiles, numbered row by row. A place
 * outside the grid has no neighbors. */
WEFT_API weft_halo weft_halo_on_grid(int rows, int columns, int place, const int64_t sizes[4]);
/** The same on a periodic grid. ring_of_rows: the last row is beside the first one;
 * ring_of_columns: likewise for columns. */
WEFT_API weft_halo weft_halo_on_ring(int rows, int columns, int place, const int64_t sizes[4],
                                     bool ring_of_rows, bool ring_of_columns);

/** A line, plane or box of cells that the members of a group divide: parts[d] members along
 * dimension d. The members are numbered with the last dimension fastest. Of n cells along a
 * dimension, part i of s has those from floor(i n / s) to floor((i + 1) n / s). */
typedef struct weft_grid {
    size_t struct_bytes;
    int dimensions;    /* 1 to 3; further elements of the arrays do not count */
    int parts[3];      /* their product is the size of the group */
    int64_t cells[3];  /* of the whole grid */
    int64_t before[3]; /* layers of cells of the neighbors that a member keeps before its own */
    int64_t after[3];  /* and behind its own */
    bool periodic[3];  /* the last cell is beside the first one */
} weft_grid;
WEFTI_ZERO_DEFAULTS(weft_grid, weft_grid_defaults)
/** The cells of member `place`: from begin[d] on size[d] cells along each dimension, without the
 * layers of neighbors. Not collective.
 * @return WEFT_E_ARG for a grid or a place that there is not; WEFT_E_SHAPE if a member has fewer
 *   cells than its neighbors keep of them */
WEFT_API weft_status weft_grid_tile(const weft_grid *grid, int place, int64_t begin[3],
                                    int64_t size[3]) WEFT_CHECKED;

#define WEFTI_COLLECTIVE(name, ...)                                                                \
    WEFT_API weft_status name(weft_world *world, weft_group *group, __VA_ARGS__) WEFT_CHECKED;     \
    WEFT_API weft_status name##_start(weft_world *world, weft_group *group, __VA_ARGS__,           \
                                      weft_request **out) WEFT_CHECKED;

/** Reduction of all members' source [count] into destination [count] on each; may be the same
 * buffer. */
WEFTI_COLLECTIVE(weft_all_reduce, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction)
/** source [count], destination [group, count]: the sources in the order of members. */
WEFTI_COLLECTIVE(weft_all_gather, const void *source, void *destination, int64_t count,
                 weft_dtype dtype)
/** source [group, count], destination [count]: the reduction of the block with the number of the
 * own place. */
WEFTI_COLLECTIVE(weft_reduce_scatter, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction)
/** source, destination [group, count]: block i goes to member i. */
WEFTI_COLLECTIVE(weft_all_to_all, const void *source, void *destination, int64_t count,
                 weft_dtype dtype)
/** All-to-all with blocks of any size: send_counts, receive_counts [group]. Blocks follow each
 * other without gaps. */
WEFTI_COLLECTIVE(weft_all_to_all_v, const void *source, const int64_t *send_counts,
                 void *destination, const int64_t *receive_counts, weft_dtype dtype)
/** buffer [count], from member `root` to all. */
WEFTI_COLLECTIVE(weft_broadcast, void *buffer, int64_t count, weft_dtype dtype, int root)
/** source [count]; destination [count], used on member `root` only; may be the source. */
WEFTI_COLLECTIVE(weft_reduce, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, weft_reduction reduction, int root)
/** source [count]; destination [group, count], used on member `root` only. */
WEFTI_COLLECTIVE(weft_gather, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, int root)
/** source [group, count], used on member `root` only; destination [count]. */
WEFTI_COLLECTIVE(weft_scatter, const void *source, void *destination, int64_t count,
                 weft_dtype dtype, int root)
/** Exchange of blocks between neighbors. `source` holds the blocks for send_ranks [sends] one after
 * the other, `destination` those from receive_ranks [receives]. Collective among neighbors only:
 * two members must agree on the number and sizes of their blocks. */
WEFTI_COLLECTIVE(weft_neighbor_exchange, const void *source, const int *send_ranks,
                 const int64_t *send_counts, int sends, void *destination, const int *receive_ranks,
                 const int64_t *receive_counts, int receives, weft_dtype dtype)
/** Exchange of the rims of tiles of a plane. source [planes, height, width], as `shape` says; an
 * image [n, c, h, w] has n c planes. destination [planes, top + height + bottom, left + width +
 * right], by the received sizes: the tile with the rims that its neighbors sent, zeros without a
 * neighbor. A block to a side is as long as the tile; a block to a corner has both sizes. */
WEFTI_COLLECTIVE(weft_halo_exchange, const void *source, const int64_t *shape,
                 const weft_halo *send, void *destination, const weft_halo *receive,
                 weft_dtype dtype)
/** Fills the layers that members of a grid keep of their neighbors' cells, with edges and corners.
 * `array` is [planes, before + size + after for each dimension]: the member's own cells
 * (weft_grid_tile), which are sent and stay as they are, inside the layers. Layers beyond an end
 * that is not periodic stay as they are, for boundary conditions. With _start, own cells may be
 * changed at once; layers may be used after the request is done. Members pass equal grids.
 * Collective among neighbors. Errors of weft_grid_tile; WEFT_E_ARG if the group has another size.
 */
WEFTI_COLLECTIVE(weft_grid_exchange, void *array, int64_t planes, const weft_grid *grid,
                 weft_dtype dtype)
/** Messages between two members. Messages of one pair and tag arrive in the order of their sends.
 * Use tags for kinds of messages, not to count them: each tag between two members takes some KiB
 * until the world is left. Every message that is not empty must be received, with its tag, before
 * its two ranks leave. Otherwise the job fails (weft_world_close), though small sends do not wait
 * for the receiver. An unfinished receive may be abandoned. */
WEFTI_COLLECTIVE(weft_send, const void *source, int64_t count, weft_dtype dtype, int to, int tag)
WEFTI_COLLECTIVE(weft_recv, void *destination, int64_t count, weft_dtype dtype, int from, int tag)

/** Block until all members have called it. */
WEFT_API weft_status weft_barrier(weft_world *world, weft_group *group) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
