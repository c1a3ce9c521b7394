/* Processes that come for empty seats.
 *
 * A seat keeps its number of a host, on which all ranks have built: those of one number reach each
 * other's memory. So a newcomer must be on the machine of the ranks of that number that live. If
 * none of them lives, it may be on any machine, and the others of that number must follow it
 * there. What all processes of a job have in common stays the same. */
#include <string.h>

#include "base/clock.h"
#include "launch/scheduler/state.h"

/* A rank of the same number of a host that lives; -1: none. */
static int32_t neighbor_of(const wefti_scheduler *s, int32_t rank) {
    for (int32_t r = 0; r < s->taken; r++)
        if (r != rank && s->slots[r].host == s->slots[rank].host &&
            !wefti_is_dead(&s->live.ranks[r]))
            return r;
    return -1;
}

static bool is_on_its_host(wefti_scheduler *s, wefti_client *client, int32_t rank,
                           const wefti_join *join) {
    const int32_t with = neighbor_of(s, rank);
    if (with < 0 || strcmp(join->host, s->slots[with].join.host) == 0) return true;
    const wefti_join *near = &s->slots[with].join;
    wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "rank %d shares memory with rank %d, which is process %lld on host "
                        "'%.80s'; process %lld, which comes for its seat, is on host '%.80s'",
                        (int)rank, (int)with, (long long)near->pid, near->host,
                        (long long)join->pid, join->host);
    return false;
}

static bool is_of_its_kind(wefti_scheduler *s, wefti_client *client, int32_t rank,
                           const wefti_join *join) {
    const wefti_join *old = &s->slots[rank].join;
    if (strcmp(join->facts, old->facts) == 0) return true;
    wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "rank %d was process %lld (%.200s); process %lld, which comes for its "
                        "seat, is another kind (%.200s)",
                        (int)rank, (long long)old->pid, old->facts, (long long)join->pid,
                        join->facts);
    return false;
}

/* The empty seat that it means: of its rank, else of its node id, rather on its host than on
 * another one. -1: none. */
static int32_t seat_of(const wefti_scheduler *s, const wefti_join *join) {
    int32_t found = -1;
    if (join->number >= 0) {
        const int32_t seat = wefti_slot_of_process(s, join->number);
        return seat < 0 || s->mend.seats[seat].filled ? -1 : seat;
    }
    for (int32_t r = 0; r < s->taken && join->node[0]; r++) {
        const wefti_join *old = &s->slots[r].join;
        const bool unknown = old->pid == 0; /* its process was never here: scheduler/gather.c */
        if (s->mend.seats[r].filled || (!unknown && strcmp(old->node, join->node) != 0)) continue;
        if (found < 0 || strcmp(old->host, join->host) == 0) found = r;
    }
    return found;
}

static void sit_down(wefti_scheduler *s, wefti_client *client, int32_t rank,
                     const wefti_join *join) {
    wefti_member_slot *slot = &s->slots[rank];
    slot->client = client;
    client->slot = rank;
    slot->join = *join;
    slot->join.number = slot->number;
    slot->join.generation = s->generation;
    slot->partial = false;
    slot->later = 0;
    slot->came = 0;
    memcpy(slot->address, client->address, sizeof slot->address);
    wefti_liveness_fill(&s->live, rank, wefti_now_ns());
}

/* It was in a world that was whole, even if it has not heard so. */
static bool had_a_place(const wefti_scheduler *s, const wefti_join *join) {
    return join->whole.generation || (join->generation && join->said.generation == s->whole);
}

bool wefti_mend_take_in(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (s->state != WEFTI_SCHEDULER_RUNNING) return false;
    if (had_a_place(s, join) || !s->mend.seats) return false;
    if (join->number >= 0 && wefti_slot_of_process(s, join->number) < 0)
        return wefti_mend_take_back(s, client, join);
    if (wefti_mend_phase(s) == WEFTI_MENDING_NOT) return false;
    const int32_t rank = seat_of(s, join);
    if (rank < 0 || (join->generation && wefti_mend_phase(s) != WEFTI_MENDING_COUNTING))
        return false;
    if (wefti_is_in_doubt(s)) {
        wefti_scheduler_wait_for_next_world(s, client, join);
        return true;
    }
    if (!is_on_its_host(s, client, rank, join) || !is_of_its_kind(s, client, rank, join))
        return true;
    sit_down(s, client, rank, join);
    (void)wefti_mending_filled(&s->mend.world, rank); /* WORLD is also its HALT */
    weft_status status = wefti_scheduler_tell_world(s, rank, 1);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    if (status >= 0) wefti_mend_give_up_seats(s, s->live.ranks[rank].heard_ns);
    return true;
}
