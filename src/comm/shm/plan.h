/* One member's plan for a transfer between ranks that read each other's memory. It is computed
 * once, when the transfer is bound: which part the member takes from which partner, which partners
 * take from it, and how the data moves.
 *
 * - Sources are read where they lie: one copy, and the poster waits for its readers.
 * - A small source that is only sent is copied when it is posted, to where others read it, so that
 *   the poster need not wait. If all members wait for each other anyway, the copy would only cost
 *   time.
 * - In an all-reduce each member reduces one share of the elements, out of all sources straight
 *   into all destinations. Each element is read once per source and written once per destination,
 *   the least possible. Only the owner of a share touches it, so source and destination may be the
 *   same memory. Processes with unmapped memory show it chunk by chunk in staging buffers
 *   (comm/shm/staged_reduce.c), and so they do in a long all-gather.
 * - In an all-reduce of a few bytes each member reduces all elements, out of copies: one
 *   synchronization instead of two. */
#ifndef WEFTI_SHM_PLAN_H
#define WEFTI_SHM_PLAN_H

#include "base/memory.h"
#include "comm/reduce/reduce.h"

enum {
    WEFTI_SHM_CHUNK_BITS = 24, /* of a word that counts chunks of a post */
    WEFTI_SHM_SMALL = 8192,    /* bytes of a source that is copied when posted, at most */
    WEFTI_SHM_TINY = 80        /* bytes of a source that is always copied, at most */
};

typedef struct wefti_shm_partner {
    int32_t member;
    bool gives;   /* must have posted before this member can move */
    bool touches; /* reads or writes this member's memory: that stays lent until it has moved */
    int64_t first, count; /* elements of an all-reduce, or of an all-gather, that are its share */
} wefti_shm_partner;

typedef struct wefti_shm_plan wefti_shm_plan;
struct wefti_shm_plan {
    wefti_shm_plan *next;
    uint64_t hash; /* of the transfer without `me`, `name` and `tag`: equal for all members */
    wefti_transfer transfer;
    const char *text; /* "all_reduce of h.3.attn.c_proj (f32, 768 elements)" */
    /* comm/shm/bind.c: */
    wefti_arena *arena; /* of all this */
    char *shown;        /* the text, where others see it, of `room` bytes */
    size_t room;
    int32_t endpoints; /* that have this plan */
    int32_t partners;
    const wefti_shm_partner *partner; /* ascending */
    int64_t moves;
    const wefti_copy_move *move;
    bool small;   /* own source is copied when posted */
    bool exposes; /* others touch this member's memory */
    bool shares;  /* all-reduce; elements [first, first + count) are this member's */
    bool gathers; /* all-gather of runs, to which each member gives [first, first + count) */
    bool
        gathers_long; /* so much that boxes are faster than the kernel (comm/shm/staged_gather.c) */
    bool runs;        /* no member's moves have loops */
    bool reduces_runs; /* and some reduce */
    bool staged; /* others read this member's source: a result that belongs there waits for them */
    int64_t first, count;
    int64_t chunk, chunks; /* elements of a share that go together, and how many of the longest */
    int64_t bytes;         /* of own source */
    /* All-reduces that leave the core's own cache: which destinations are written past it
       (comm/copy.h). */
    bool streams_others, streams_own;
    int gathered_streamed; /* pages of each four of an all-gather's result */
};

/* Of a legal transfer (wefti_transfer_check), in the arena. */
weft_status wefti_shm_plan_create(wefti_arena *arena, const wefti_transfer *t,
                                  wefti_shm_plan **out) WEFT_CHECKED;
/* The same transfer, member and name. */
bool wefti_shm_plan_fits(const wefti_shm_plan *plan, const wefti_transfer *t);

#endif
