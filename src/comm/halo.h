/* Where the blocks lie that a tile and its neighbors exchange: on a plane as its user lists them
 * (weft_halo), or on a grid (weft_grid). */
#ifndef WEFTI_HALO_H
#define WEFTI_HALO_H

#include "layout/layout.h"
#include "weft/collective.h"

enum { WEFTI_HALO_WAYS = 8, WEFTI_HALO_CENTER = 8, WEFTI_HALO_RANK = 3 };

/* What goes one way comes from the opposite one. */
static inline int wefti_halo_opposite(int way) {
    return (way + WEFTI_HALO_WAYS / 2) % WEFTI_HALO_WAYS;
}
const char *wefti_halo_way_text(int way); /* "top right" */

/* shape [planes, height, width]. The block that a tile sends one way, in the tile; */
wefti_region wefti_halo_sent(const int64_t shape[3], const weft_halo *send, int way);
/* the one that it receives from there, in the grown tile; WEFTI_HALO_CENTER: the tile itself; */
wefti_region wefti_halo_received(const int64_t shape[3], const weft_halo *receive, int way);
/* the grown tile. */
wefti_region wefti_halo_grown(const int64_t shape[3], const weft_halo *receive);
/* Members exist, sizes are not negative, and a tile has what it sends. */
weft_status wefti_halo_check(const int64_t shape[3], int members, const weft_halo *send,
                             const weft_halo *receive) WEFT_CHECKED;

/* Grids. Directions are 0 to WEFTI_GRID_WAYS - 1; the one in the middle is the tile itself. */
enum { WEFTI_GRID_DIMS = 3, WEFTI_GRID_WAYS = 27, WEFTI_GRID_CENTER = 13, WEFTI_GRID_RANK = 4 };

/* A member's part: cells, and the array [planes, d0, d1, d2] with the layers of its neighbors.
 * Dimensions that the grid does not have are of one cell. */
typedef struct wefti_grid_tile {
    weft_grid grid; /* of three dimensions */
    int place, at[WEFTI_GRID_DIMS];
    int64_t begin[WEFTI_GRID_DIMS], size[WEFTI_GRID_DIMS];
    int64_t planes;
} wefti_grid_tile;
weft_status wefti_grid_tile_of(const weft_grid *grid, int place, int64_t planes,
                               wefti_grid_tile *out) WEFT_CHECKED;
/* The member in direction `way`; -1: none. */
int wefti_grid_neighbor(const wefti_grid_tile *tile, int way);
static inline int wefti_grid_opposite(int way) {
    return WEFTI_GRID_WAYS - 1 - way;
}
/* In the array: the own cells that go to that neighbor, and the layers that come from it. */
wefti_region wefti_grid_sent(const wefti_grid_tile *tile, int way);
wefti_region wefti_grid_received(const wefti_grid_tile *tile, int way);
wefti_region wefti_grid_array(const wefti_grid_tile *tile);

#endif
