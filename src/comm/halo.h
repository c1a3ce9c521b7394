/* Where the blocks lie that a tile of a plane and its eight neighbours exchange (weft_halo). */
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

#endif
