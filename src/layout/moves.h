/* The edges of the redistribution search: the moves from one layout to others, and their costs.
 * Internal to this folder. */
#ifndef WEFTI_MOVES_H
#define WEFTI_MOVES_H

#include "layout/redistribute.h"

typedef struct wefti_moves {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    const wefti_layout *from, *to; /* ends of the route, in normal form */
    wefti_axes axes;               /* axes that either end uses; the search uses no others */
} wefti_moves;

/* In `move`, the kind, transfer, axes and target layout are set; the cost is not. */
typedef weft_status wefti_move_visit(void *context, const wefti_move *move);
/* Calls `visit` for all moves from layout `at`. Stops at the first failure of `visit` and returns
 * it. */
weft_status wefti_moves_each(const wefti_moves *moves, const wefti_layout *at,
                             wefti_move_visit *visit, void *context);
/* The number of leading axes of dimension d that both layouts share and that give the same
 * boundaries. */
int wefti_moves_common(const wefti_moves *moves, const wefti_layout *a, const wefti_layout *b,
                       int d);
/* Removes all but the first `keep` axes from dimension d. */
void wefti_moves_keep(const wefti_moves *moves, wefti_layout *layout, int d, int keep);

/* The exchange that leads from `at` to the goal in one move. Returns false if the partial axes
 * differ or if the devices have nothing to exchange. */
bool wefti_moves_exchange(const wefti_moves *moves, const wefti_layout *at, wefti_move *out);

/* Fills in bytes and seconds. */
void wefti_move_cost(const wefti_mesh *mesh, const weft_desc *whole, const wefti_layout *from,
                     wefti_move *move);

#endif
