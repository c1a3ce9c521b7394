/* What a member does once those are there whom it needs: how the data goes (comm/shm/plan.h). */
#include "comm/shm/shm.h"

/* --- all-reduces of shares --- */

/* Whether all sources and destinations are in reach of all members, who agree on it: none has
 * boxes. */
static bool find_arrays(const wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    const wefti_local_endpoint *endpoint = wefti_local_place_of(seat, number)->post->endpoint;
    const wefti_local_plan *plan = endpoint->plan;
    if (wefti_local_place_of(seat, number)->post->boxes) return false;
    for (int32_t m = 0; m < seat->channel->members; m++) {
        endpoint->source[m] = wefti_local_source(local, seat, m, number);
        endpoint->destination[m] = wefti_local_destination(local, seat, m, number);
        if (!endpoint->destination[m]) return false;
        /* A source in its place has been fetched already. */
        endpoint->streamed[m] = endpoint->source[m] != endpoint->destination[m] &&
                                (m == seat->me ? plan->streams_own : plan->streams_others);
    }
    return true;
}

/* In pieces, so that a world that breaks need not wait for long. */
static bool share_straight(const wefti_local *local, const wefti_local_endpoint *endpoint) {
    enum { PIECE = 1 << 20 };
    const wefti_local_plan *plan = endpoint->plan;
    bool streams = false;
    for (int32_t m = 0; m < plan->transfer.members; m++) streams |= endpoint->streamed[m];
    for (int64_t done = 0; done < plan->count; done += PIECE) {
        int64_t count = plan->count - done < PIECE ? plan->count - done : PIECE;
        if (done > 0 && wefti_local_broken(local)) return false;
        wefti_move_reduce_to_all(plan->transfer.dtype, plan->transfer.reduction, endpoint->source,
                                 endpoint->destination, streams ? endpoint->streamed : NULL,
                                 plan->transfer.members, plan->first + done, count);
    }
    return true;
}

static wefti_local_outcome move_shares(wefti_local *local, wefti_local_seat *seat,
                                       uint64_t number) {
    if (!find_arrays(local, seat, number)) return wefti_local_move_boxes(local, seat, number);
    const wefti_local_endpoint *endpoint = wefti_local_place_of(seat, number)->post->endpoint;
    return share_straight(local, endpoint) ? WEFTI_LOCAL_MOVED : WEFTI_LOCAL_NOTHING;
}

/* --- all others --- */

/* Where the result of a post lies while others read the source that it replaces; NULL: there is no
 * such. */
void *wefti_local_stage(const wefti_local_post *post) {
    const wefti_local_endpoint *endpoint = post->endpoint;
    if (!endpoint->plan->staged || post->bounce || post->copied ||
        post->source != post->destination)
        return NULL;
    return (char *)endpoint->stage + (post - endpoint->post) * endpoint->plan->bytes;
}

static wefti_local_outcome move_parts(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    const wefti_local_post *post = wefti_local_place_of(seat, number)->post;
    const wefti_local_endpoint *endpoint = post->endpoint;
    const wefti_local_plan *plan = endpoint->plan;
    void *stage = wefti_local_stage(post), *destination = stage ? stage : post->destination;
    for (int64_t n = 0; n < plan->moves; n++) {
        const wefti_move *move = &plan->move[n];
        bool all = true;
        for (int32_t s = 0; s < move->sources; s++)
            all &=
                !!(endpoint->source[s] = wefti_local_source(local, seat, move->members[s], number));
        if (all)
            wefti_move_run(move, endpoint->source, destination);
        else if (!wefti_local_pull_move(local, seat, number, move, destination))
            return WEFTI_LOCAL_NOTHING;
    }
    return WEFTI_LOCAL_MOVED;
}

wefti_local_outcome wefti_local_move(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    if (wefti_local_place_of(seat, number)->plan->shares) return move_shares(local, seat, number);
    return wefti_local_gathers(local, seat, number) ? wefti_local_move_gather(local, seat, number)
                                                    : move_parts(local, seat, number);
}
