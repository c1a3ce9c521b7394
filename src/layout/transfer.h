/* A transfer: one collective, fully described. Every form of communication is the same statement:
 * each member of a group has a region of a tensor and wants a region of it. With no reduction a
 * wanted element comes from a member that has it (oneself first, then the lowest in the list); with
 * a reduction it is the sum, maximum, minimum or product over all members that have it, in the
 * order of the list, so that all get the same bits. What is commonly called all-reduce, all-gather,
 * reduce-scatter, all-to-all, send, ring shift and halo exchange differ only in the regions; the
 * kind is kept for cost, for reports, and for engines that have a faster road for it. */
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
    X(SEND, "send") /* between stages: members have or want, or both */                            \
    X(BROADCAST, "broadcast")                                                                      \
    X(REDUCE, "reduce")                                                                            \
    X(GATHER, "gather")                                                                            \
    X(SCATTER, "scatter")                                                                          \
    X(EXCHANGE, "exchange") /* between two, both ways, of any size */

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

/* "sum"; "" for none. */
const char *wefti_reduction_text(wefti_reduction reduction);

typedef struct wefti_transfer {
    wefti_transfer_kind kind;
    wefti_reduction reduction;
    weft_dtype dtype;
    int rank;                  /* dimensions of the regions */
    int32_t members;           /* of the group */
    int32_t me;                /* this device's place in it */
    int32_t *ranks;            /* world ranks, ascending */
    wefti_region *have, *want; /* per member; all sizes 0: nothing */
    uint64_t tag;     /* transfers of one group are matched in order among those of equal tag */
    const char *name; /* of what is moved: "h.3.attn.c_proj", for messages; may be NULL */
} wefti_transfer;

/* Bytes that this device receives from others: what it wants and does not have; with a reduction,
 * what it wants from every other member that has it, for an all-reduce 2 (g - 1) / g of the value
 * (a ring). */
int64_t wefti_transfer_bytes(const wefti_transfer *t);
/* Legal: ranks ascending, `me` among them, all that is wanted is had (by all that must, for
 * reductions), regions not negative. */
weft_status wefti_transfer_check(const wefti_transfer *t) WEFT_CHECKED;
weft_status wefti_transfer_clone(const wefti_transfer *t,
                                 wefti_transfer **out) WEFT_CHECKED; /* one block; wefti_free */
bool wefti_regions_equal(const wefti_region *a, const wefti_region *b, int rank);
/* Equal in all but `me`, `name` and `tag`. */
bool wefti_transfer_equal(const wefti_transfer *a, const wefti_transfer *b);
/* A digest of what is then equal, and one of ranks and tag: transfers of one channel are matched in
 * their order. */
uint64_t wefti_transfer_digest(const wefti_transfer *t);
uint64_t wefti_transfer_channel(const wefti_transfer *t);

/* The elements of an array that is region `within`, from the first element of `part` to the last:
 * `part` is not empty, and lies in `within`. */
void wefti_region_span(const wefti_region *part, const wefti_region *within, int rank,
                       int64_t *out_first, int64_t *out_count);
/* Copy region `part` from an array that is region `from` to one that is region `to`; regions in
 * coordinates of the whole; part lies in both. */
void wefti_region_copy(const wefti_region *part, const wefti_region *from, const void *source,
                       const wefti_region *to, void *destination, int rank, size_t element_bytes);

#endif
