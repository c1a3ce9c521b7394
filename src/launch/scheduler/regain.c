/* The world that ranks have come back to a new scheduler from (gather.c) begins again: the last one
 * that was whole, with the ranks and the hosts that it had. Who has come keeps its place, and seats
 * to which nobody has come are empty. Numbers of processes that have no seat in it were given up. A
 * process that came to make a later world larger has no seat either: it waits, and the world grows
 * once it runs. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* Generations that begin are at least so far above the known ones: the scheduler before may have
 * begun some of which no rank says anything. They follow the time, so that two schedulers which
 * know the same begin different ones. */
static const uint64_t above_all = 1 << 20;

/* A seat to which nobody has come. */
static wefti_member_slot empty_slot(const wefti_scheduler *s, int32_t number) {
    const int32_t ended = wefti_gather_has_ended(s, number);
    wefti_member_slot slot = {.join = s->slots[0].join,
                              .armed = WEFTI_ARMED,
                              .uncounted = ended == 0,
                              .deaths = ended > 0 ? ended : WEFTI_DEATHS_UNKNOWN};
    slot.join.number = number;
    slot.join.pid = 0;
    slot.join.node[0] = '\0';
    return slot;
}

static wefti_member_slot filled_slot(const wefti_scheduler *s, int32_t at, const wefti_vote *v) {
    wefti_member_slot slot = s->slots[at];
    const wefti_voter voter = wefti_gather_voter(&slot.join);
    slot.armed = slot.join.armed ? WEFTI_ARMED : WEFTI_ARMED_NOT;
    slot.deaths = slot.join.deaths;
    slot.later = v->said && voter.said.generation == v->said ? voter.said.rank + 1 : 0;
    return slot;
}

/* leaves: the world is ending, and those that are missing have left. */
static wefti_life_state state_of(const wefti_member_slot *slot, const wefti_vote *v, bool leaves) {
    if (!slot->client) return leaves ? WEFTI_LIFE_PARTED : WEFTI_LIFE_DEAD;
    const wefti_voter voter = wefti_gather_voter(&slot->join);
    return wefti_vote_rank(v, &voter) < 0 ? WEFTI_LIFE_NEWCOMER : WEFTI_LIFE_RANK;
}

/* Those that have no seat. */
static void let_wait(wefti_scheduler *s, const bool *has_seat) {
    for (int32_t i = 0; i < s->taken; i++) {
        wefti_client *client = s->slots[i].client;
        if (has_seat[i]) continue;
        client->slot = -1;
        wefti_scheduler_wait_for_next_world(s, client, &s->slots[i].join);
    }
}

static void fill_slots(wefti_scheduler *s, const wefti_vote *v, bool leaves,
                       wefti_member_slot *slots, bool *has_seat) {
    const wefti_gathered_world *world = wefti_gather_find(s, v->whole);
    wefti_liveness_begin(&s->live, world->size, wefti_now_ns());
    for (int32_t r = 0; r < world->size; r++) {
        const wefti_seated *seat = &world->seats[r];
        const int32_t at = wefti_seats_of_number(s, seat->number);
        wefti_member_slot *slot = &slots[r];
        *slot = at >= 0 ? filled_slot(s, at, v) : empty_slot(s, seat->number);
        slot->number = seat->number;
        slot->host = seat->host;
        s->live.ranks[r].state = state_of(slot, v, leaves);
        if (at < 0) continue;
        slot->client->slot = r;
        has_seat[at] = true;
    }
}

/* Slots in the order of ranks. */
static weft_status make_slots(wefti_scheduler *s, const wefti_vote *v, bool leaves) {
    const int32_t size = wefti_gather_find(s, v->whole)->size;
    WEFT_TRY(wefti_make_room(s, size));
    wefti_member_slot *slots = wefti_calloc((size_t)s->room, sizeof *slots);
    bool *has_seat = wefti_calloc((size_t)s->room, sizeof *has_seat);
    if (slots && has_seat) {
        fill_slots(s, v, leaves, slots, has_seat);
        let_wait(s, has_seat);
        memcpy(s->slots, slots, (size_t)s->room * sizeof *slots);
        s->taken = size;
        s->ranked = true;
    }
    const bool done = slots && has_seat;
    wefti_free(slots);
    wefti_free(has_seat);
    WEFT_REQUIRE(done, WEFT_E_NOMEM, "no memory for the ranks that have come back");
    return WEFT_OK;
}

static void note_halt(wefti_scheduler *s, int32_t missing, int32_t missing_count) {
    wefti_halt *halt = &s->mend.halt;
    halt->failed = missing;
    if (missing_count == 0)
        (void)snprintf(halt->text, sizeof halt->text,
                       "the scheduler was started again while the world was being mended");
    else
        (void)snprintf(halt->text, sizeof halt->text,
                       "rank %d has not come back to a scheduler that was started again",
                       (int)missing);
}

/* When the earlier ones were is not known: they count as of now. So do the empty seats and those
 * with new processes, all of them once. */
static void count_restarts(wefti_scheduler *s, int32_t earlier) {
    const int64_t now = wefti_now_ns();
    for (int32_t i = 0; i < earlier; i++)
        if (!wefti_restart_take(&s->restarts, WEFTI_RESTART_NOBODY, now)) break;
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        if (s->live.ranks[r].state == WEFTI_LIFE_RANK) continue;
        const bool counts = wefti_restart_take(&s->restarts, slot->number, now);
        if (!slot->client && counts) wefti_life_happens(&s->live.ranks[r], WEFTI_LIFE_AWAITS);
    }
}

static weft_status begin_mending(wefti_scheduler *s, bool leaves) {
    wefti_mending_state *m = &s->mend;
    int32_t missing = 0, count = 0, used = 0;
    wefti_mend_begin(s);
    if (leaves) return WEFT_OK;
    WEFT_REQUIRE(m->seats, WEFT_E_NOMEM, "no memory for the ranks that have come back");
    s->own = wefti_new_generation(s->generation + above_all);
    wefti_mending_gather(&m->world, s->taken, m->seats, (int64_t)s->own);
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        m->armed += slot->armed != WEFTI_ARMED_NOT;
        if (slot->client) {
            (void)wefti_mending_returned(&m->world, r, (int64_t)slot->join.generation,
                                         slot->join.mends, wefti_is_new(&s->live.ranks[r]));
            if (slot->join.used > used) used = slot->join.used;
            continue;
        }
        (void)wefti_mending_missing(&m->world, r);
        if (count++ == 0) missing = r;
    }
    count_restarts(s, used);
    s->generation = (uint64_t)m->world.generation;
    m->since_ns = wefti_now_ns();
    m->was = m->gathered = true;
    note_halt(s, missing, count);
    return WEFT_OK;
}

static bool some_leave(const wefti_scheduler *s) {
    bool leaves = false;
    for (int32_t i = 0; i < s->taken; i++) {
        const wefti_join *join = &s->slots[i].join;
        leaves = leaves || join->leaves;
        if (join->mends || join->generation != s->generation) return false;
    }
    return leaves;
}

void wefti_gather_begin_world(wefti_scheduler *s, const wefti_vote *v) {
    const bool leaves = some_leave(s);
    weft_status status = make_slots(s, v, leaves);
    if (status >= 0) {
        s->whole = v->whole;
        status = begin_mending(s, leaves);
        s->mend.later_size = v->said_size;
        s->state = WEFTI_SCHEDULER_RUNNING;
        pthread_cond_broadcast(&s->changed);
    }
    wefti_gather_end(s);
    if (status >= 0) status = wefti_scheduler_tell_world(s, 0, s->taken);
    for (int32_t r = 0; r < s->taken && status >= 0; r++)
        s->slots[r].join.generation = s->generation;
    if (status < 0) {
        wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
        return;
    }
    wefti_add_count(s);
    wefti_gather_release_launchers(s);
    wefti_scheduler_take_waiting(s);
}
