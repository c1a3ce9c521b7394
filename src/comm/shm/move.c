/* Moves the data of a post, once the required members have posted: the kinds of moves are those of
 * comm/shm/plan.h. */
#include "comm/shm/shm.h"

/* --- all-reduces of shares --- */

/* Whether every member reaches all sources and destinations. All members agree on that, since then
 * no member uses staging buffers. */
static bool find_arrays(const wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    const wefti_shm_endpoint *endpoint = wefti_shm_in_flight_of(port, number)->post->endpoint;
    const wefti_shm_plan *plan = endpoint->plan;
    if (wefti_shm_in_flight_of(port, number)->post->staging) return false;
    for (int32_t m = 0; m < port->channel->members; m++) {
        endpoint->source[m] = wefti_shm_source(local, port, m, number);
        endpoint->destination[m] = wefti_shm_destination(local, port, m, number);
        if (!endpoint->destination[m]) return false;
        /* A source in its place has been fetched already. */
        endpoint->streamed[m] = endpoint->source[m] != endpoint->destination[m] &&
                                (m == port->me ? plan->streams_own : plan->streams_others);
    }
    return true;
}

/* In pieces, so that a world that breaks need not wait for long. */
static bool share_straight(const wefti_shm_rank *local, const wefti_shm_endpoint *endpoint) {
    enum { PIECE = 1 << 20 };
    const wefti_shm_plan *plan = endpoint->plan;
    bool streams = false;
    for (int32_t m = 0; m < plan->transfer.members; m++) streams |= endpoint->streamed[m];
    for (int64_t done = 0; done < plan->count; done += PIECE) {
        int64_t count = plan->count - done < PIECE ? plan->count - done : PIECE;
        if (done > 0 && wefti_shm_broken(local)) return false;
        wefti_move_reduce_to_all(plan->transfer.dtype, plan->transfer.reduction, endpoint->source,
                                 endpoint->destination, streams ? endpoint->streamed : NULL,
                                 plan->transfer.members, plan->first + done, count);
    }
    return true;
}

static wefti_shm_outcome move_shares(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    if (!find_arrays(local, port, number)) return wefti_shm_move_staged_reduce(local, port, number);
    const wefti_shm_endpoint *endpoint = wefti_shm_in_flight_of(port, number)->post->endpoint;
    return share_straight(local, endpoint) ? WEFTI_SHM_MOVED : WEFTI_SHM_NOTHING;
}

/* --- all others --- */

/* Where the result of a post lies while others read the source that it replaces; NULL: it needs no
 * such place. */
void *wefti_shm_result_stage(const wefti_shm_post *post) {
    const wefti_shm_endpoint *endpoint = post->endpoint;
    if (!endpoint->plan->staged || post->bounce || post->copied ||
        post->source != post->destination)
        return NULL;
    return (char *)endpoint->stage + (post - endpoint->post) * endpoint->plan->bytes;
}

static wefti_shm_outcome move_parts(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    const wefti_shm_post *post = wefti_shm_in_flight_of(port, number)->post;
    const wefti_shm_endpoint *endpoint = post->endpoint;
    const wefti_shm_plan *plan = endpoint->plan;
    void *stage = wefti_shm_result_stage(post), *destination = stage ? stage : post->destination;
    for (int64_t n = 0; n < plan->moves; n++) {
        const wefti_copy_move *move = &plan->move[n];
        bool all = true;
        for (int32_t s = 0; s < move->sources; s++)
            all &=
                !!(endpoint->source[s] = wefti_shm_source(local, port, move->members[s], number));
        if (all)
            wefti_move_run(move, endpoint->source, destination);
        else if (!wefti_shm_read_peer_move(local, port, number, move, destination))
            return WEFTI_SHM_NOTHING;
    }
    return WEFTI_SHM_MOVED;
}

wefti_shm_outcome wefti_shm_move(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    if (wefti_shm_in_flight_of(port, number)->plan->shares) return move_shares(local, port, number);
    return wefti_shm_is_staged_gather(local, port, number)
               ? wefti_shm_move_staged_gather(local, port, number)
               : move_parts(local, port, number);
}
