/* A transfer: the full description of one collective. All communication has the same form: each
 * member of a group has a region of a tensor and wants a region of it.
 *
 * Without a reduction, a member takes a wanted element from itself if it has the element. Otherwise
 * it takes the element from the first member in the list that has it. With a reduction, an element
 * is the sum, maximum, minimum or product over all members that have it. They are combined in list
 * order, so that all members get the same bits.
 *
 * All-reduce, all-gather, reduce-scatter, all-to-all, send, ring shift and halo exchange differ
 * only in their regions. The kind is still stored: cost formulas and reports use it, and some
 * engines have a faster method for it. */
#ifndef WEFTI_TRANSFER_H
#define WEFTI_TRANSFER_H

#include "layout/layout.h"

#define WEFTI_TRANSFER_LIST(X)                                                                     \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(PERMUTE, "permute")                                                                          \
    X(SHIFT, "shift")                                                                              \
    X(HALO, "halo")                                                                                \
    X(SEND, "send") /* between stages: each member has, wants, or both */                          \
    X(BROADCAST, "broadcast")                                                                      \
    X(REDUCE, "reduce")                                                                            \
    X(GATHER, "gather")                                                                            \
    X(SCATTER, "scatter")                                                                          \
    X(EXCHANGE, "exchange") /* between two members, both directions, any size */

typedef enum wefti_transfer_kind {
#define WEFTI_TRANSFER_ROW(name, text) WEFTI_TRANSFER_##name,
    WEFTI_TRANSFER_LIST(WEFTI_TRANSFER_ROW)
#undef WEFTI_TRANSFER_ROW
        WEFTI_TRANSFER_KINDS
} wefti_transfer_kind;

const char *wefti_transfer_kind_text(wefti_transfer_kind kind);

typedef enum wefti_reduction {
    WEFTI_REDUCE_NONE,
    WEFTI_REDUCE_SUM,
    WEFTI_REDUCE_MAX,
    WEFTI_REDUCE_MIN,
    WEFTI_REDUCE_PROD,
    WEFTI_REDUCTIONS
} wefti_reduction;

/* Such as "sum"; "" for none. */
const char *wefti_reduction_text(wefti_reduction reduction);

typedef struct wefti_transfer {
    wefti_transfer_kind kind;
    wefti_reduction reduction;
    weft_dtype dtype;
    int rank;                  /* dimensions of the regions */
    int32_t members;           /* number of members of the group */
    int32_t me;                /* index of this device in the group */
    int32_t *ranks;            /* world ranks, ascending */
    wefti_region *have, *want; /* of each member; all sizes 0: no elements */
    uint64_t tag;              /* transfers of one group and equal tag are matched in order */
    const char *name;          /* the moved value, for messages: "h.3.attn.c_proj"; may be NULL */
} wefti_transfer;

/* Bytes that this device receives from others: the elements that it wants and lacks. With a
 * reduction, it receives every wanted element from each other member that has it. An all-reduce is
 * a ring: 2 (g - 1) / g of the value. */
int64_t wefti_transfer_bytes(const wefti_transfer *t);
/* Checks a transfer. Ranks ascend and include `me`. Begins and sizes of regions are not negative.
 * Some member has each wanted element (for a reduction: every required member). */
weft_status wefti_transfer_check(const wefti_transfer *t) WEFT_CHECKED;
weft_status wefti_transfer_clone(const wefti_transfer *t,
                                 wefti_transfer **out) WEFT_CHECKED; /* one block; wefti_free */
/* Bytes of the block that contains a transfer made by wefti_transfer_clone or
 * wefti_move_transfer. */
int64_t wefti_transfer_block_bytes(const wefti_transfer *t);
bool wefti_regions_equal(const wefti_region *a, const wefti_region *b, int rank);
/* Whether two transfers are equal except for `me`, `name` and `tag`. */
bool wefti_transfer_equal(const wefti_transfer *a, const wefti_transfer *b);
/* A digest of the fields that wefti_transfer_equal compares, and a digest of ranks and tag.
 * Transfers with the same ranks and tag (one channel) are matched in their order. */
uint64_t wefti_transfer_digest(const wefti_transfer *t);
uint64_t wefti_transfer_channel(const wefti_transfer *t);

/* The array stores region `within`. Returns its range of elements from the first to the last
 * element of `part`. `part` is not empty and lies in `within`. */
void wefti_region_span(const wefti_region *part, const wefti_region *within, int rank,
                       int64_t *out_first, int64_t *out_count);
/* Copies region `part` from an array that stores region `from` to an array that stores region `to`.
 * All regions are in coordinates of the whole tensor. `part` lies in both. */
void wefti_region_copy(const wefti_region *part, const wefti_region *from, const void *source,
                       const wefti_region *to, void *destination, int rank, size_t element_bytes);

#endif
