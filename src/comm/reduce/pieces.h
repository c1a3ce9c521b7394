/* Parts of a member's box by who supplies them: the box is cut along the boxes that others have. */
#ifndef WEFTI_PIECES_H
#define WEFTI_PIECES_H

#include "base/memory.h"
#include "comm/reduce/reduce.h"

typedef struct wefti_member_set {
    uint64_t word[WEFTI_MOVE_MOST / 64];
} wefti_member_set;

static inline void wefti_set_add(wefti_member_set *set, int32_t member) {
    set->word[member / 64] |= (uint64_t)1 << (member % 64);
}
static inline bool wefti_set_has(const wefti_member_set *set, int32_t member) {
    return set->word[member / 64] >> (member % 64) & 1;
}
static inline int32_t wefti_set_count(const wefti_member_set *set) {
    int32_t count = 0;
    for (int i = 0; i < WEFTI_MOVE_MOST / 64; i++) count += __builtin_popcountll(set->word[i]);
    return count;
}

typedef struct wefti_piece {
    wefti_box box;
    wefti_member_set from;
} wefti_piece;

typedef struct wefti_piece_list {
    wefti_piece *piece; /* wefti_free */
    int64_t used, capacity;
} wefti_piece_list;

/* Pieces of what `member` wants, each with those that supply it: all that have it for a reduction,
 * else oneself or the lowest that has it. Legal transfers want nothing that nobody has. `out` is
 * used again: zeroed before the first time. */
weft_status wefti_pieces_find(const wefti_transfer *t, int32_t member,
                              wefti_piece_list *out) WEFT_CHECKED;

#endif
