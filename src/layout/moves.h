/* The edges of the redistribution search: the moves that lead from one layout to others, and what
 * they cost. Internal to this folder. */
#ifndef WEFTI_MOVES_H
#define WEFTI_MOVES_H

#include "layout/redistribute.h"

typedef struct wefti_moves {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    const wefti_layout *from, *to; /* ends of the route, in normal form */
    wefti_axes axes;               /* that either end uses: no others occur */
} wefti_moves;

/* `move` has kind, transfer, axes and to; not its cost. */
typedef weft_status wefti_move_visit(void *context, const wefti_move *move);
/* All moves from layout `at`. Stops at the first failure of `visit` and returns it. */
weft_status wefti_moves_each(const wefti_moves *moves, const wefti_layout *at,
                             wefti_move_visit *visit, void *context);
/* The part of dimension d's axes that both layouts begin with and that cut it in the same places.
 */
int wefti_moves_common(const wefti_moves *moves, const wefti_layout *a, const wefti_layout *b,
                       int d);
/* Dimension d without all but its first `keep` axes. */
void wefti_moves_keep(const wefti_moves *moves, wefti_layout *layout, int d, int keep);

/* The exchange that leads from `at` to the goal at once; false when none does: partial over other
 * axes, or nothing to exchange. */
bool wefti_moves_exchange(const wefti_moves *moves, const wefti_layout *at, wefti_move *out);

/* Fills in bytes and seconds. */
void wefti_move_cost(const wefti_mesh *mesh, const weft_desc *whole, const wefti_layout *from,
                     wefti_move *move);

#endif
