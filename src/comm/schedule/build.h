/* Building plans of rounds: what the algorithms are written with. */
#ifndef WEFTI_SCHEDULE_BUILD_H
#define WEFTI_SCHEDULE_BUILD_H

#include "comm/reduce/reduce.h"
#include "comm/schedule/hosts.h"
#include "comm/schedule/schedule.h"

/* The forms of a transfer that more than one algorithm can do. */
typedef enum wefti_commsched_form {
    WEFTI_COMMSCHED_GENERAL,
    WEFTI_COMMSCHED_ALL_REDUCE,     /* all have and want the same box */
    WEFTI_COMMSCHED_REDUCE,         /* all have the same box, some want it */
    WEFTI_COMMSCHED_REDUCE_SCATTER, /* all have the same region; each wants a run of it, together no
                                       more than all of it */
    WEFTI_COMMSCHED_ALL_GATHER,     /* all want the same region, and each part of it lies with one
                                       member */
    WEFTI_COMMSCHED_BROADCAST       /* one has a box, others want all of it */
} wefti_commsched_form;

typedef struct wefti_commsched_build {
    const wefti_transfer *t;
    wefti_commsched *plan;
    wefti_commsched_form form;
    int32_t root;           /* BROADCAST: the member that has the region */
    int32_t wanting, first; /* how many want something, and the first of them */
    int64_t element;        /* bytes */
    const int32_t *each;    /* 0, 1, .. members - 1 */
    wefti_commsched_hosts hosts;
} wefti_commsched_build;

weft_status wefti_commsched_direct(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_bruck(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_ring(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_shares(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_chain(wefti_commsched_build *b) WEFT_CHECKED; /* reductions */
weft_status
wefti_commsched_chain_broadcast(wefti_commsched_build *b) WEFT_CHECKED; /* a chain of a broadcast */
weft_status wefti_commsched_tree_broadcast(wefti_commsched_build *b) WEFT_CHECKED;

weft_status wefti_commsched_host_reduce(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_host_gather(wefti_commsched_build *b) WEFT_CHECKED;
weft_status wefti_commsched_host_broadcast(wefti_commsched_build *b) WEFT_CHECKED;
/* Whether those above can do it, and in how many parts that follow each other. */
bool wefti_commsched_host_possible(const wefti_commsched_build *b);
int64_t wefti_commsched_host_parts(const wefti_commsched_build *b);
/* Partial results have the precision of the result. */
bool wefti_commsched_exact(const wefti_commsched_build *b);

/* Seconds; less than 0: not possible. All from what all members know. */
double wefti_commsched_cost(const wefti_commsched_build *b, const wefti_commsched_costs *costs,
                            wefti_commsched_algorithm algorithm);

/* The round that is being built; all rounds up to one that something is said of exist. */
static inline int32_t wefti_commsched_current_round(const wefti_commsched_build *b) {
    return (int32_t)b->plan->rounds - 1;
}
weft_status wefti_commsched_begin_round(wefti_commsched_build *b) WEFT_CHECKED;
/* In the round that is being built, to a member of the group. No bytes: no message. */
weft_status wefti_commsched_send(wefti_commsched_build *b, int32_t member,
                                 wefti_commsched_place from, int64_t bytes) WEFT_CHECKED;
/* Needed at the end of `round`, which may be one to come. */
weft_status wefti_commsched_receive(wefti_commsched_build *b, int32_t member,
                                    wefti_commsched_place to, int64_t bytes,
                                    int32_t round) WEFT_CHECKED;
/* As above, where `to` is in use until round `gate_round` and until the send number `gate_send` of
 * the plan is done (-1: none). */
weft_status wefti_commsched_receive_gated(wefti_commsched_build *b, int32_t member,
                                          wefti_commsched_place to, int64_t bytes, int32_t round,
                                          int32_t gate_round, int64_t gate_send) WEFT_CHECKED;
/* At the end of the round that is being built: box `part` out of arrays of boxes[i] at from[i]. */
weft_status wefti_commsched_op_regions(wefti_commsched_build *b, const wefti_region *part, int rank,
                                       wefti_commsched_place to, const wefti_region *to_box,
                                       int32_t sources, const wefti_commsched_place *from,
                                       const wefti_region *boxes) WEFT_CHECKED;
/* The same of elements that are neighbours everywhere. */
weft_status wefti_commsched_op_flat(wefti_commsched_build *b, int64_t elements,
                                    wefti_commsched_place to, int32_t sources,
                                    const wefti_commsched_place *from) WEFT_CHECKED;
/* Room in the stage. */
wefti_commsched_place wefti_commsched_stage_space(wefti_commsched_build *b, int64_t bytes);

/* Elements [begin, begin + count) of arrays that all have. */
typedef struct wefti_commsched_span {
    int64_t begin, count;
} wefti_commsched_span;
static inline wefti_commsched_span wefti_commsched_whole(const wefti_commsched_build *b) {
    return (wefti_commsched_span){0, wefti_region_elems(&b->t->have[0], b->t->rank)};
}
/* Part i of n of `all`, beginning at cache lines. */
wefti_commsched_span wefti_commsched_part(const wefti_commsched_build *b, wefti_commsched_span all,
                                          int64_t i, int64_t n);

/* The number of chunks of a chain that moves so many bytes. */
static inline int64_t wefti_commsched_chunks(int64_t bytes) {
    int64_t chunks = (bytes + WEFTI_COMMSCHED_CHUNK - 1) / WEFTI_COMMSCHED_CHUNK;
    return chunks < 1 ? 1 : chunks > 1024 ? 1024 : chunks;
}
/* Whether `part` lies in one run in an array of `box`, and from which element on. */
bool wefti_commsched_run(const wefti_region *part, const wefti_region *box, int rank,
                         int64_t *first);

static inline wefti_commsched_place wefti_commsched_at(wefti_commsched_array array,
                                                       int64_t offset) {
    return (wefti_commsched_place){array, offset};
}
static inline int64_t wefti_commsched_bytes(const wefti_commsched_build *b,
                                            const wefti_region *box) {
    return wefti_region_elems(box, b->t->rank) * b->element;
}

#endif
