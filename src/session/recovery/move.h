/* A state on its way from old sessions to new ones: session.h, wefti_session_move. */
#ifndef WEFTI_SESSION_MOVE_H
#define WEFTI_SESSION_MOVE_H

#include "session/tensors.h"

/* A tensor to be moved: the same list on all ranks. */
typedef struct moved_tensor {
    const wefti_view_tensor *of; /* of the new session */
    int program, index;          /* there */
    int old_program, old_index;  /* in the old session; -1: none */
    bool by_boxes;               /* some of it is only in copies of buddies */
} moved_tensor;

/* What a rank has of a tensor, as it tells the others: of its own, and of its ward's. */
typedef struct held_region {
    wefti_region own, copy;
    int64_t has_own, has_copy;
} held_region;

typedef struct state_move {
    weft_session *to, *from; /* from NULL: this rank has no state */
    int32_t size;
    moved_tensor *tensors;
    int64_t count, room;
    const held_region *held; /* [size * count], rank by rank */
    /* Of the present tensor, or of a slab of it, [size] each; one block, with [size] empty ones at
     * its end. */
    wefti_region *own, *copy, *want;
    wefti_region *slab; /* as large a block, for slabs */
    int32_t *ranks;     /* [2 * size]: 0, 1, ... */
} state_move;

/* Scalars count as tensors of one dimension. */
static inline weft_desc wefti_move_whole(const moved_tensor *x) {
    weft_desc whole = x->of->whole;
    if (whole.rank == 0) whole = weft_desc_of(whole.dtype, 1, (const int64_t[]){1});
    return whole;
}
static inline int wefti_move_rank(const moved_tensor *x) {
    return x->of->whole.rank ? x->of->whole.rank : 1;
}

/* regions.c. The piece of this process; NULL: none. Void after the next call. */
weft_status wefti_move_own_piece(weft_session *s, int program, int index,
                                 const wefti_session_piece **out) WEFT_CHECKED;
/* This rank's copy of its ward's piece of a tensor, in a buffer of its own; NULL: none. */
const wefti_piece *wefti_move_copy(const weft_session *s, const char *name);

/* Where the rank's new session has a tensor; a home nowhere: it has none of it. */
typedef struct move_target {
    wefti_home home;
    wefti_region box;
} move_target;
/* boxes.c. Whether each rank has all that it wants. have, want: [size]. */
bool wefti_move_all_have(const state_move *m, const wefti_region *have, const wefti_region *want,
                         int rank);
/* One transfer of regions of a slab, through buffers of this rank. A
 * rank's region comes from its own piece, or else from its copy. Where every rank has what it
 * wants, nothing is sent. Collective. */
weft_status wefti_move_regions(const state_move *m, const moved_tensor *x, wefti_region *have,
                               wefti_region *want, const move_target *to) WEFT_CHECKED;
/* Moves the present slab box by box: what any rank has of its own, then copies. Collective. */
weft_status wefti_move_boxes(const state_move *m, const moved_tensor *x,
                             const move_target *to) WEFT_CHECKED;

#endif
