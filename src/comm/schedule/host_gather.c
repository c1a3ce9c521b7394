/* All-gathers in which each block enters each other host once. A member sends its block to one
 * member of each other host, and to the members of its own host. The receiver passes it on within
 * its host. Blocks go in chunks, so that one chunk spreads while the next arrives. A message that
 * is sent in a round is needed at the end of that round. */
#include "comm/schedule/build.h"

typedef struct work {
    wefti_commsched_build *b;
    const wefti_commsched_hosts *hosts;
    int64_t parts;
    int32_t mine;                 /* this member's host */
    wefti_commsched_place *place; /* [members]: where the block of each lies until the end */
} work;

/* The member on a host that receives the block of `member` first. */
static int32_t first_on(const work *w, int32_t host, int32_t member) {
    if (host == w->hosts->host[member]) return member;
    return wefti_commsched_hosts_responsible(w->hosts, host, w->hosts->place[member]);
}

/* Chunk k of a block: where it is here, and its bytes. */
static wefti_commsched_place chunk_of(const work *w, int32_t member, int64_t k, int64_t *bytes) {
    int64_t all = wefti_region_elems(&w->b->t->have[member], w->b->t->rank);
    int64_t begin = all * k / w->parts, end = all * (k + 1) / w->parts;
    wefti_commsched_place at = w->place[member];
    *bytes = (end - begin) * w->b->element;
    at.offset += begin * w->b->element;
    return at;
}

static weft_status send_to_hosts(work *w, int64_t k) {
    int64_t bytes;
    int32_t me = w->b->t->me;
    wefti_commsched_place at = chunk_of(w, me, k, &bytes);
    for (int32_t i = 1; i < w->hosts->hosts; i++) {
        int32_t host = (w->mine + i) % w->hosts->hosts;
        WEFT_TRY(wefti_commsched_send(w->b, first_on(w, host, me), at, bytes));
    }
    return WEFT_OK;
}

/* To all others of this host. */
static weft_status spread(work *w, int32_t member, int64_t k) {
    int64_t bytes;
    wefti_commsched_place at = chunk_of(w, member, k, &bytes);
    int32_t count = wefti_commsched_hosts_count(w->hosts, w->mine);
    for (int32_t i = 1; i < count; i++) {
        int32_t n = (w->hosts->place[w->b->t->me] + i) % count;
        int32_t to = w->hosts->member[w->hosts->begin[w->mine] + n];
        WEFT_TRY(wefti_commsched_send(w->b, to, at, bytes));
    }
    return WEFT_OK;
}

static weft_status receive(work *w, int32_t from, int32_t member, int64_t k) {
    int64_t bytes;
    wefti_commsched_place at = chunk_of(w, member, k, &bytes);
    return wefti_commsched_receive(w->b, from, at, bytes, wefti_commsched_current_round(w->b));
}

/* Its chunk comes to each host in round k, and is spread there in the next one. */
static weft_status move_block(work *w, int32_t member, int64_t round) {
    int32_t me = w->b->t->me, first = first_on(w, w->mine, member);
    bool comes = round < w->parts, goes = round >= 1 && round <= w->parts;
    if (comes && member == me) WEFT_TRY(send_to_hosts(w, round));
    if (comes && member != me && first == me) WEFT_TRY(receive(w, member, member, round));
    if (!goes) return WEFT_OK;
    return first == me ? spread(w, member, round - 1) : receive(w, first, member, round - 1);
}

static weft_status unpack(work *w, int32_t member) {
    const wefti_transfer *t = w->b->t;
    if (w->place[member].array == WEFTI_COMMSCHED_DESTINATION) return WEFT_OK;
    return wefti_commsched_op_regions(w->b, &t->have[member], t->rank,
                                      wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, 0),
                                      &t->want[t->me], 1, &w->place[member], &t->have[member]);
}

static weft_status build(work *w) {
    const wefti_transfer *t = w->b->t;
    for (int32_t m = 0; m < t->members; m++) {
        int64_t first;
        if (m == t->me)
            w->place[m] = wefti_commsched_at(WEFTI_COMMSCHED_SOURCE, 0);
        else if (wefti_commsched_run(&t->have[m], &t->want[t->me], t->rank, &first))
            w->place[m] = wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, first * w->b->element);
        else
            w->place[m] =
                wefti_commsched_stage_space(w->b, wefti_commsched_bytes(w->b, &t->have[m]));
    }
    for (int64_t r = 0; r <= w->parts; r++) {
        WEFT_TRY(wefti_commsched_begin_round(w->b));
        for (int32_t m = 0; m < t->members; m++) WEFT_TRY(move_block(w, m, r));
    }
    for (int32_t m = 0; m < t->members; m++) WEFT_TRY(unpack(w, m));
    return WEFT_OK;
}

weft_status wefti_commsched_host_gather(wefti_commsched_build *b) {
    work w = {.b = b,
              .hosts = &b->hosts,
              .parts = wefti_commsched_host_parts(b),
              .mine = b->hosts.host[b->t->me]};
    WEFT_NEW_ARRAY(w.place, wefti_commsched_place, b->t->members);
    weft_status status = build(&w);
    wefti_free(w.place);
    return status;
}
