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
    /* Of the present tensor, [size] each; one block, with [size] empty ones at its end. */
    wefti_region *own, *copy, *want;
    int32_t *ranks; /* [2 * size]: 0, 1, ... */
} state_move;

/* Scalars count as tensors of one dimension. */
static inline int wefti_move_rank(const moved_tensor *x) {
    return x->of->whole.rank ? x->of->whole.rank : 1;
}

/* regions.c. The piece of this process; NULL: none. Void after the next call. */
weft_status wefti_move_own_piece(weft_session *s, int program, int index,
                                 const wefti_session_piece **out) WEFT_CHECKED;
/* This rank's copy of its ward's piece of a tensor, in a buffer of its own; NULL: none. */
const wefti_piece *wefti_move_copy(const weft_session *s, const char *name);

/* boxes.c. A box of a tensor as a rank's old session has it, in host memory. */
typedef struct move_source {
    const void *data; /* the elements of the box; NULL: the rank does not have it */
    wefti_mapping map;
    void *staged; /* a copy of the box, if it is a part of what is mapped */
} move_source;
/* box NULL, or without elements: nothing. It comes from the rank's own piece, or else from its
 * copy, which then is exactly this box. */
weft_status wefti_move_open(const state_move *m, const moved_tensor *x, const wefti_region *box,
                            move_source *out) WEFT_CHECKED;
weft_status wefti_move_close(move_source *x, weft_status status) WEFT_CHECKED;

/* Moves the present tensor box by box: what any rank has of its own, then copies. `destination`:
 * what this rank wants of it. Collective. */
weft_status wefti_move_boxes(const state_move *m, const moved_tensor *x,
                             void *destination) WEFT_CHECKED;

#endif
