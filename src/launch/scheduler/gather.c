/* Ranks of a world that can be mended come back to a scheduler that knows nothing of it: the one
 * before has died. All that this one must know comes with them (JOIN, HOSTS, ARM), and launchers
 * say which processes have ended. launch/recovery decides what becomes of the world.
 *
 * Two schedulers must never both go on with one world, on two sides of a network that is cut. So
 * this one begins only with more than half of the ranks, or with half of them and rank 0. Ranks
 * whose process has ended, by a launcher's word, are not counted. Neither are processes that came
 * into a world which was not whole since (they have no vote), nor those of a world that others have
 * left behind. docs/design-recovery.md has the rule. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* Generations that begin are at least so far above the known ones: the scheduler before may have
 * begun some of which no rank says anything. They follow the time, so that two schedulers which
 * know the same begin different ones. */
static const uint64_t above_all = 1 << 20;
static const int64_t second_ns = 1000000000;

void wefti_gather_end(wefti_scheduler *s) {
    wefti_free(s->gather.host);
    wefti_free(s->gather.ended);
    wefti_free(s->gather.voters);
    s->gather = (wefti_gathering){0};
}

/* --- ranks come --- */

/* Processes without a place wait until the world is there again. */
static weft_status begin(wefti_scheduler *s) {
    WEFT_NEW_ARRAY(s->gather.voters, wefti_voter, s->options.size);
    s->gather.since_ns = wefti_now_ns();
    for (int32_t i = s->taken - 1; i >= 0; i--) {
        wefti_client *client = s->slots[i].client;
        const wefti_join join = s->slots[i].join;
        wefti_scheduler_release_slot(s, i);
        client->slot = -1;
        if (join.generation)
            wefti_scheduler_refuse_past(s, client, &join);
        else
            wefti_scheduler_wait_for_next_world(s, client, &join);
    }
    return WEFT_OK;
}

static bool begins_it(const wefti_scheduler *s, const wefti_join *join) {
    const uint64_t known = s->generation > s->past ? s->generation : s->past;
    return join->armed && !s->options.generation && join->generation > known &&
           join->size == s->options.size;
}

bool wefti_gather_take(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (s->state != WEFTI_SCHEDULER_FORMING) return false;
    if (!s->gather.since_ns && !begins_it(s, join)) return false;
    if (!s->gather.since_ns && begin(s) < 0) {
        wefti_scheduler_abort(s, WEFT_E_NOMEM, WEFT_RANK_NONE, weft_error_message());
        return true;
    }
    if (!join->generation) {
        wefti_scheduler_wait_for_next_world(s, client, join);
        return true;
    }
    const int32_t seat = wefti_seats_of_rank(s, join);
    if (seat >= 0) {
        wefti_member_slot *slot = &s->slots[seat];
        if (wefti_same_process(join, &slot->join)) {
            wefti_scheduler_replace(s, seat, client);
            slot->join = *join;
            return true;
        }
        wefti_client *behind = client;
        wefti_join past = *join;
        if (join->generation > slot->join.generation) {
            behind = slot->client;
            past = slot->join;
            wefti_scheduler_release_slot(s, seat);
        }
        wefti_scheduler_refuse_past(s, behind, &past);
        if (behind == client) return true;
    }
    if (join->generation > s->generation) s->generation = join->generation;
    wefti_scheduler_take_seat(s, client, join);
    wefti_gather_check(s, wefti_now_ns());
    return true;
}

weft_status wefti_gather_hosts(wefti_scheduler *s, const wefti_frame *frame) {
    wefti_hosts said;
    int32_t *host;
    WEFT_TRY(wefti_hosts_decode(frame, &said, &host));
    wefti_gathering *g = &s->gather;
    const bool newer = said.generation > g->generation && said.size == s->options.size;
    if (s->state != WEFTI_SCHEDULER_FORMING || !newer) {
        wefti_free(host);
        return WEFT_OK;
    }
    wefti_free(g->host);
    g->host = host;
    g->generation = said.generation;
    return WEFT_OK;
}

void wefti_gather_note(wefti_scheduler *s, int32_t rank, int starts) {
    wefti_gathering *g = &s->gather;
    if (rank < 0 || rank >= s->options.size) return;
    if (!g->ended) g->ended = wefti_calloc((size_t)s->options.size, sizeof *g->ended);
    if (g->ended && g->ended[rank] < starts) g->ended[rank] = starts;
}

bool wefti_gather_ended(wefti_scheduler *s, int32_t rank, int starts) {
    if (s->state != WEFTI_SCHEDULER_FORMING || !s->gather.since_ns) return false;
    wefti_gather_note(s, rank, starts);
    return true;
}

/* --- the vote --- */

static int32_t ended(const wefti_scheduler *s, int32_t rank) {
    return s->gather.ended ? s->gather.ended[rank] : 0;
}

static int32_t slot_of(const wefti_scheduler *s, int32_t rank) {
    const wefti_join asked = {.rank = rank};
    return wefti_seats_of_rank(s, &asked);
}

static wefti_voter voter_of(const wefti_join *join) {
    return (wefti_voter){.generation = join->generation,
                         .whole = {join->whole, join->rank, join->size},
                         .said = {join->said, join->rank, join->size}};
}

static wefti_vote take_vote(const wefti_scheduler *s) {
    for (int32_t i = 0; i < s->taken; i++) s->gather.voters[i] = voter_of(&s->slots[i].join);
    return wefti_vote_take(s->gather.voters, s->taken);
}

/* Ranks whose process has ended, and has not come: they are on no side. But where there may be two
 * schedulers, they may have gone on with the other one before they ended. */
static int32_t count_ended(const wefti_scheduler *s) {
    int32_t count = 0;
    if (s->options.has_other) return 0;
    for (int32_t r = 0; r < s->options.size; r++) count += slot_of(s, r) < 0 && ended(s, r) > 0;
    return count;
}

static bool may_begin(const wefti_scheduler *s, const wefti_vote *v) {
    const int32_t gone = count_ended(s);
    return wefti_vote_may_begin(v, s->gather.voters, s->taken, gone, gone);
}

bool wefti_gather_may_begin(const wefti_scheduler *s) {
    const wefti_vote v = take_vote(s);
    return may_begin(s, &v);
}

static bool all_armed(const wefti_scheduler *s) {
    for (int32_t i = 0; i < s->taken; i++)
        if (!s->slots[i].join.armed) return false;
    return true;
}

/* --- the world again --- */

static void refuse_left_behind(wefti_scheduler *s, const wefti_vote *v) {
    for (int32_t i = s->taken - 1; i >= 0; i--) {
        wefti_client *client = s->slots[i].client;
        const wefti_join join = s->slots[i].join;
        const wefti_voter voter = voter_of(&join);
        if (!wefti_vote_is_past(v, &voter)) continue;
        wefti_scheduler_release_slot(s, i);
        wefti_scheduler_refuse_past(s, client, &join);
    }
}

/* A seat to which nobody has come. */
static wefti_member_slot empty_slot(const wefti_scheduler *s, int32_t rank, bool leaves) {
    const bool word = ended(s, rank) > 0;
    wefti_member_slot slot = {.join = s->slots[0].join,
                              .armed = true,
                              .left = leaves,
                              .in_peace = leaves,
                              .dead = !leaves,
                              .uncounted = !word,
                              .deaths = word ? ended(s, rank) : WEFTI_DEATHS_UNKNOWN};
    slot.join.rank = rank;
    slot.join.pid = 0;
    slot.join.node[0] = '\0';
    return slot;
}

static weft_status fill_slots(wefti_scheduler *s, const wefti_vote *v, bool leaves) {
    const int64_t now = wefti_now_ns();
    const int32_t size = s->options.size;
    wefti_member_slot *slots;
    WEFT_NEW_ARRAY(slots, wefti_member_slot, size);
    for (int32_t r = 0; r < size; r++) {
        const int32_t at = slot_of(s, r);
        slots[r] = at >= 0 ? s->slots[at] : empty_slot(s, r, leaves);
        wefti_member_slot *slot = &slots[r];
        slot->number = r;
        slot->host = s->gather.host ? s->gather.host[r] : 0;
        slot->heard_ns = now;
        slot->standing = (wefti_standing){.since_ns = now};
        if (at < 0) continue;
        slot->client->slot = r;
        slot->armed = slot->join.armed;
        slot->deaths = slot->join.deaths;
        const wefti_voter voter = voter_of(&slot->join);
        slot->newcomer = wefti_vote_rank(v, &voter) < 0;
        slot->later = v->said && voter.said.generation == v->said ? voter.said.rank + 1 : 0;
    }
    memcpy(s->slots, slots, (size_t)size * sizeof *slots);
    wefti_free(slots);
    s->taken = size;
    s->ranked = true;
    s->looked_ns = now;
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

void wefti_gather_release_launchers(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->unanswered && !c->gone) wefti_client_drop(s, c); /* it calls and asks again */
    }
}

static void begin_world(wefti_scheduler *s, const wefti_vote *v) {
    const bool leaves = some_leave(s);
    weft_status status = fill_slots(s, v, leaves);
    if (status >= 0) {
        status = wefti_mend_gathered(s, leaves, wefti_new_generation(s->generation + above_all));
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
    wefti_gather_release_launchers(s);
    wefti_scheduler_take_waiting(s);
}

static void end_without(wefti_scheduler *s) {
    wefti_text text = {0};
    wefti_text_add(&text,
                   "%d of %d ranks have come back within %.4g s to a scheduler that was started "
                   "again: without more than half of them it does not go on",
                   (int)s->taken, (int)s->options.size, (double)s->join_ns * 1e-9);
    wefti_scheduler_abort_text(s, WEFT_E_LOST, WEFT_RANK_NONE, &text);
}

void wefti_gather_check(wefti_scheduler *s, int64_t now_ns) {
    const int64_t waited_ns = now_ns - s->gather.since_ns;
    if (s->state != WEFTI_SCHEDULER_FORMING || !s->gather.since_ns) return;
    wefti_vote v = take_vote(s);
    refuse_left_behind(s, &v);
    v = take_vote(s);
    const bool armed = all_armed(s);
    const bool late = armed && waited_ns > s->heartbeat_ns + 2 * second_ns;
    bool settled = true;
    for (int32_t r = 0; r < s->options.size && !late; r++)
        settled = settled && (slot_of(s, r) >= 0 || (armed && ended(s, r) > 0));
    if (settled && s->taken > 0 && may_begin(s, &v))
        begin_world(s, &v);
    else if (waited_ns > s->join_ns)
        end_without(s);
}
