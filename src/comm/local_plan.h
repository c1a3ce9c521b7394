/* What one member does in a transfer between threads that read each other's memory, found out once
 * when the transfer is bound: from whom it takes which part, who takes from it, and which of three
 * roads the data goes.
 *
 * - Small sources are copied when posted, to where others read them: the poster need not wait for
 *   its readers, and a small all-reduce takes one meeting instead of two.
 * - Large ones are read where they lie: one copy, and the poster waits for its readers.
 * - In a large all-reduce each member reduces one share of the elements out of all sources straight
 *   into all destinations. Each element is read once from every source and written once to every
 *   destination, the least that is possible, and only the owner of a share touches it, so that
 *   source and destination may be the same memory. */
#ifndef WEFTI_LOCAL_PLAN_H
#define WEFTI_LOCAL_PLAN_H

#include "base/memory.h"
#include "comm/move.h"

enum {
    WEFTI_LOCAL_MOST = WEFTI_MOVE_MOST, /* members */
    WEFTI_LOCAL_SMALL = 8192            /* bytes of a source that is copied when posted */
};

typedef struct wefti_local_partner {
    int32_t member;
    bool gives;   /* must have posted before this member can move */
    bool touches; /* reads or writes this member's memory: that stays lent until it has moved */
} wefti_local_partner;

typedef struct wefti_local_plan wefti_local_plan;
struct wefti_local_plan {
    wefti_local_plan *next;
    uint64_t hash; /* of the transfer without `me`, `name` and `tag`: equal for all members */
    wefti_transfer transfer;
    const char *text; /* "all_reduce of h.3.attn.c_proj (f32, 768 elements)" */
    int32_t partners;
    const wefti_local_partner *partner; /* ascending */
    int64_t moves;
    const wefti_move *move;
    bool small;  /* own source is copied when posted */
    bool shares; /* the third road; elements [first, first + count) are this member's */
    bool lends;  /* some memory outside of the small copies is touched by another than its owner */
    bool staged; /* a source that is also the destination is copied first: others read it too */
    int64_t first, count;
    int64_t bytes; /* of own source */
};

uint64_t wefti_local_hash(const wefti_transfer *t);
/* Of a legal transfer (wefti_transfer_check), in the arena. */
weft_status wefti_local_plan_create(wefti_arena *arena, const wefti_transfer *t,
                                    wefti_local_plan **out) WEFT_CHECKED;
/* The same transfer, member and name. */
bool wefti_local_plan_fits(const wefti_local_plan *plan, const wefti_transfer *t);

#endif
