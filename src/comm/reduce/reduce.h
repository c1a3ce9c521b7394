/* Moving data between arrays that hold regions of one tensor. An element of the result comes from
 * one source, or from several that are reduced in order. A move is prepared once, when the layout
 * of the regions is known, and run often. */
#ifndef WEFTI_REDUCE_H
#define WEFTI_REDUCE_H

#include <stdbool.h>

#include "topo/limits.h"
#include "base/memory.h"
#include "topo/limits.h"
#include "layout/transfer.h"

/* Where the elements of a part lie in one array: an offset and a stride for each loop. */
typedef struct wefti_move_side {
    int64_t offset;                /* in elements, as are the strides */
    int64_t stride[WEFT_MAX_RANK]; /* outermost loop first */
} wefti_move_side;

typedef struct wefti_copy_move {
    weft_dtype dtype;
    wefti_reduction reduction;
    int loops;                    /* around the runs */
    int64_t count[WEFT_MAX_RANK]; /* of each loop */
    int64_t run;                  /* elements that are neighbours in all arrays */
    int streamed;                 /* pages of each four, where there is one source: comm/copy.h */
    int32_t sources;
    wefti_move_side to;
    const int32_t *members;      /* [sources]: the members whose arrays are read */
    const wefti_move_side *from; /* [sources] */
} wefti_copy_move;

/* The part `part` of a tensor, out of the arrays of `members`, which hold the boxes have[member],
 * into one that holds `to`. `sides` has room for `sources`; it and `members` are borrowed by `out`.
 */
void wefti_move_prepare(const wefti_region *part, int rank, weft_dtype dtype,
                        wefti_reduction reduction, const wefti_region *to, const wefti_region *have,
                        const int32_t *members, int32_t sources, wefti_move_side *sides,
                        wefti_copy_move *out);
/* source[i]: the array of members[i]. The destination may be one of them when it holds the same
 * box. */
void wefti_move_run(const wefti_copy_move *move, const void *const *source, void *destination);

/* Reduces elements [first, first + count) of arrays that hold the same region, in order, and
 * writes the result to all destinations. A destination may be a source. `streamed`: [arrays] of
 * destinations; NULL: none. */
void wefti_move_reduce_to_all(weft_dtype dtype, wefti_reduction reduction,
                              const void *const *source, void *const *destination, bool *streamed,
                              int32_t arrays, int64_t first, int64_t count);

/* Whether all members want one region, and each element of it lies with one member. *out_parts
 * (may be NULL): members that have any. The transfer is legal (wefti_transfer_check). */
bool wefti_transfer_is_all_gather(const wefti_transfer *t, int32_t *out_parts);

/* --- pieces --- */

/* The region that a member wants, cut along the regions that others have: each piece has one set of
 * suppliers. A set is a row of bits, as long as the group needs: a group of few members must not
 * pay for the largest one. */

static inline int32_t wefti_set_words(int32_t members) {
    return (members + 63) / 64;
}
static inline void wefti_set_add(uint64_t *set, int32_t member) {
    set[member / 64] |= (uint64_t)1 << (member % 64);
}
static inline bool wefti_set_has(const uint64_t *set, int32_t member) {
    return set[member / 64] >> (member % 64) & 1;
}
static inline int32_t wefti_set_count(const uint64_t *set, int32_t words) {
    int32_t count = 0;
    for (int32_t i = 0; i < words; i++) count += __builtin_popcountll(set[i]);
    return count;
}

typedef struct wefti_piece_list {
    wefti_region *box; /* [capacity] */
    uint64_t *from;    /* [capacity][words] sets */
    int32_t words;
    int64_t used, capacity;
} wefti_piece_list;

static inline uint64_t *wefti_piece_from(const wefti_piece_list *list, int64_t piece) {
    return list->from + piece * list->words;
}
void wefti_pieces_free(wefti_piece_list *list);

/* Pieces of what `member` wants, each with those that supply it: all that have it for a reduction,
 * else oneself or the lowest that has it. Legal transfers want nothing that nobody has. `out` is
 * used again, for transfers of the same group: zeroed before the first time. */
weft_status wefti_pieces_find(const wefti_transfer *t, int32_t member,
                              wefti_piece_list *out) WEFT_CHECKED;

#endif
