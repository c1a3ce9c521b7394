/* All-gathers.
 *
 * Bruck (J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", 1997): in round k, a member sends all its blocks to the member 2^k
 * before it, so that the number of blocks doubles each round. It works for any number of members.
 * Blocks lie in the stage in the order of arrival: the block of member me + j is at place j. An
 * all-reduce of little data uses this with each member's array as its block; then each member
 * reduces all blocks in the order of members.
 *
 * Ring: each member passes on the block that it received last. Only neighbours exchange messages.
 */
#include "comm/schedule/build.h"

static int64_t block_bytes(const wefti_commsched_build *b, int32_t member) {
    return wefti_commsched_bytes(b, &b->t->have[member]);
}

/* Copies staged blocks to their destinations. */
static weft_status unpack(wefti_commsched_build *b, int32_t member, wefti_commsched_place from) {
    const wefti_transfer *t = b->t;
    return wefti_commsched_op_regions(b, &t->have[member], t->rank,
                                      wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, 0),
                                      &t->want[t->me], 1, &from, &t->have[member]);
}

static weft_status settle_bruck(wefti_commsched_build *b, const int64_t *offset, int64_t base) {
    const wefti_transfer *t = b->t;
    int32_t g = t->members;
    wefti_commsched_place *from;
    if (b->form == WEFTI_COMMSCHED_ALL_GATHER) {
        for (int32_t j = 0; j < g; j++)
            WEFT_TRY(unpack(b, (t->me + j) % g,
                            wefti_commsched_at(WEFTI_COMMSCHED_STAGE, base + offset[j])));
        return WEFT_OK;
    }
    WEFT_NEW_ARRAY(from, wefti_commsched_place, g);
    for (int32_t m = 0; m < g; m++)
        from[m] = wefti_commsched_at(WEFTI_COMMSCHED_STAGE, base + offset[(m - t->me + g) % g]);
    weft_status status =
        wefti_commsched_op_flat(b, wefti_region_elems(&t->have[0], t->rank),
                                wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, 0), g, from);
    wefti_free(from);
    return status;
}

/* offset[j]: of place j; [members + 1] */
static weft_status build_bruck(wefti_commsched_build *b, int64_t *offset) {
    const wefti_transfer *t = b->t;
    int32_t g = t->members;
    for (int32_t j = 0; j < g; j++) offset[j + 1] = offset[j] + block_bytes(b, (t->me + j) % g);
    int64_t base = wefti_commsched_stage_space(b, offset[g]).offset;
    wefti_commsched_place source = {WEFTI_COMMSCHED_SOURCE, 0};
    WEFT_TRY(wefti_commsched_begin_round(b));
    WEFT_TRY(wefti_commsched_op_flat(b, wefti_region_elems(&t->have[t->me], t->rank),
                                     wefti_commsched_at(WEFTI_COMMSCHED_STAGE, base), 1, &source));
    for (int32_t step = 1; step < g; step *= 2) {
        int32_t blocks = step < g - step ? step : g - step;
        WEFT_TRY(wefti_commsched_begin_round(b));
        WEFT_TRY(wefti_commsched_send(b, (t->me - step + g) % g,
                                      wefti_commsched_at(WEFTI_COMMSCHED_STAGE, base),
                                      offset[blocks]));
        WEFT_TRY(wefti_commsched_receive(
            b, (t->me + step) % g, wefti_commsched_at(WEFTI_COMMSCHED_STAGE, base + offset[step]),
            offset[step + blocks] - offset[step], wefti_commsched_current_round(b)));
    }
    return settle_bruck(b, offset, base);
}

weft_status wefti_commsched_bruck(wefti_commsched_build *b) {
    int64_t *offset;
    WEFT_NEW_ARRAY(offset, int64_t, b->t->members + 1);
    weft_status status = build_bruck(b, offset);
    wefti_free(offset);
    return status;
}

/* place[m]: where the block of member m lies until the end. */
static weft_status build_ring(wefti_commsched_build *b, wefti_commsched_place *place) {
    const wefti_transfer *t = b->t;
    int32_t g = t->members, next = (t->me + 1) % g, previous = (t->me + g - 1) % g;
    for (int32_t m = 0; m < g; m++) {
        int64_t first;
        if (m == t->me)
            place[m] = wefti_commsched_at(WEFTI_COMMSCHED_SOURCE, 0);
        else if (wefti_commsched_run(&t->have[m], &t->want[t->me], t->rank, &first))
            place[m] = wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, first * b->element);
        else
            place[m] = wefti_commsched_stage_space(b, block_bytes(b, m));
    }
    for (int32_t k = 0; k < g - 1; k++) {
        int32_t out = (t->me - k + g) % g, in = (t->me - k - 1 + g) % g;
        WEFT_TRY(wefti_commsched_begin_round(b));
        WEFT_TRY(wefti_commsched_send(b, next, place[out], block_bytes(b, out)));
        WEFT_TRY(wefti_commsched_receive(b, previous, place[in], block_bytes(b, in),
                                         wefti_commsched_current_round(b)));
        if (k == 0) WEFT_TRY(unpack(b, t->me, place[t->me]));
        if (place[in].array == WEFTI_COMMSCHED_STAGE) WEFT_TRY(unpack(b, in, place[in]));
    }
    return WEFT_OK;
}

weft_status wefti_commsched_ring(wefti_commsched_build *b) {
    wefti_commsched_place *place;
    WEFT_NEW_ARRAY(place, wefti_commsched_place, b->t->members);
    weft_status status = build_ring(b, place);
    wefti_free(place);
    return status;
}
