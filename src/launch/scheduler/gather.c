/* Ranks of a world that can be mended come back to a scheduler that knows nothing of it: the one
 * before has died. All that this one must know comes with them (JOIN, HOSTS, ARM), and launchers
 * say which processes have ended. The world that counts is the last one that was whole, whatever
 * its size (regain.c). recovery decides what becomes of it.
 *
 * Two schedulers must never both go on with one world, on two sides of a network that is cut. So
 * this one begins only with more than half of the ranks, or with half of them and rank 0. Ranks
 * whose process has ended, by a launcher's word, are not counted. Neither are processes that came
 * into a world which was not whole since (they have no vote), nor those of a world that others have
 * left behind. docs/design/standby.md has the rule. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static const int64_t second_ns = 1000000000;

void wefti_gather_end(wefti_scheduler *s) {
    wefti_gathering *g = &s->gather;
    for (int64_t i = 0; i < g->world_count; i++) wefti_free(g->worlds[i].seats);
    wefti_free(g->worlds);
    wefti_free(g->ended);
    wefti_free(g->voters);
    *g = (wefti_gathering){0};
}

/* --- worlds that ranks tell of --- */

const wefti_gathered_world *wefti_gather_find(const wefti_scheduler *s, uint64_t generation) {
    const wefti_gathering *g = &s->gather;
    for (int64_t i = 0; i < g->world_count; i++)
        if (g->worlds[i].generation == generation) return &g->worlds[i];
    return NULL;
}

weft_status wefti_gather_hosts(wefti_scheduler *s, const wefti_frame *frame) {
    wefti_gathering *g = &s->gather;
    wefti_hosts said;
    wefti_seated *seats;
    WEFT_TRY(wefti_hosts_decode(frame, &said, &seats));
    weft_status status = WEFT_OK;
    const bool is_new =
        s->state == WEFTI_SCHEDULER_FORMING && !wefti_gather_find(s, said.generation);
    if (is_new) status = WEFT_GROW(g->worlds, g->world_count, g->world_room);
    if (is_new && status >= 0)
        g->worlds[g->world_count++] = (wefti_gathered_world){said.generation, said.size, seats};
    else
        wefti_free(seats);
    return status;
}

/* Whether a rank is where it says that it was. */
static bool is_there(const wefti_scheduler *s, const wefti_join *join, const wefti_vote_place *at) {
    const wefti_gathered_world *world = wefti_gather_find(s, at->generation);
    if (at->generation == 0) return true;
    return world && world->size == at->size && world->seats[at->rank].number == join->number;
}

/* --- ranks come --- */

/* Processes without a place wait until the world is there again. */
static void begin(wefti_scheduler *s) {
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
}

static bool begins_it(const wefti_scheduler *s, const wefti_join *join) {
    const uint64_t known = s->generation > s->past ? s->generation : s->past;
    return join->armed && !s->options.generation && join->generation > known;
}

/* The same process with another connection, or another process with its number: then the one with
 * the later generation stays. False: there is none. */
static bool meets_another(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const int32_t seat = wefti_seats_of_number(s, join->number);
    if (seat < 0) return false;
    wefti_member_slot *slot = &s->slots[seat];
    if (wefti_same_process(join, &slot->join)) {
        wefti_scheduler_replace(s, seat, client);
        slot->join = *join;
        return true;
    }
    if (join->generation <= slot->join.generation) {
        wefti_scheduler_refuse_past(s, client, join);
        return true;
    }
    wefti_client *behind = slot->client;
    const wefti_join past = slot->join;
    wefti_scheduler_release_slot(s, seat);
    wefti_scheduler_refuse_past(s, behind, &past);
    return false;
}

static weft_status make_room(wefti_scheduler *s) {
    wefti_gathering *g = &s->gather;
    if (g->voters && s->taken < s->room) return WEFT_OK;
    WEFT_TRY(wefti_make_room(s, s->taken + 1));
    wefti_voter *voters = wefti_realloc(g->voters, (size_t)s->room * sizeof *voters);
    WEFT_REQUIRE(voters, WEFT_E_NOMEM, "no memory for %d ranks", (int)s->room);
    g->voters = voters;
    return WEFT_OK;
}

static void take(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (make_room(s) < 0) {
        wefti_scheduler_abort(s, WEFT_E_NOMEM, WEFT_RANK_NONE, weft_error_message());
        return;
    }
    if (join->generation > s->generation) s->generation = join->generation;
    if (join->numbers > s->numbers) s->numbers = join->numbers;
    wefti_scheduler_take_seat(s, client, join);
    s->gather.came_ns = wefti_now_ns();
    wefti_gather_check(s, wefti_now_ns());
}

bool wefti_gather_take(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    if (s->state != WEFTI_SCHEDULER_FORMING) return false;
    if (!s->gather.since_ns && !begins_it(s, join)) return false;
    if (!s->gather.since_ns) begin(s);
    if (!join->generation)
        wefti_scheduler_wait_for_next_world(s, client, join);
    else if (!is_there(s, join, &join->whole) || !is_there(s, join, &join->said))
        wefti_client_refuse(s, client, WEFT_E_CORRUPT, WEFT_RANK_NONE,
                            "process %d is not where it was, as other ranks say",
                            (int)join->number);
    else if (!meets_another(s, client, join))
        take(s, client, join);
    return true;
}

void wefti_gather_note(wefti_scheduler *s, int32_t number, int starts) {
    wefti_gathering *g = &s->gather;
    if (number < 0 || number >= WEFTI_RANKS_MAX) return;
    if (!g->ended) g->ended = wefti_calloc(WEFTI_RANKS_MAX, sizeof *g->ended);
    if (g->ended && g->ended[number] < starts) g->ended[number] = starts;
}

bool wefti_gather_ended(wefti_scheduler *s, int32_t number, int starts) {
    if (s->state != WEFTI_SCHEDULER_FORMING || !s->gather.since_ns) return false;
    wefti_gather_note(s, number, starts);
    return true;
}

int32_t wefti_gather_has_ended(const wefti_scheduler *s, int32_t number) {
    return s->gather.ended ? s->gather.ended[number] : 0;
}

void wefti_gather_release_launchers(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->unanswered && c->state < WEFTI_CLIENT_GONE)
            wefti_client_drop(s, c); /* it calls and asks again */
    }
}

/* --- the vote --- */

wefti_voter wefti_gather_voter(const wefti_join *join) {
    return (wefti_voter){.generation = join->generation, .whole = join->whole, .said = join->said};
}

static bool is_missing(const wefti_scheduler *s, int32_t number) {
    return wefti_seats_of_number(s, number) < 0;
}

static bool is_all_here(const wefti_scheduler *s, uint64_t generation) {
    const wefti_gathered_world *world = wefti_gather_find(s, generation);
    bool here = world != NULL;
    for (int32_t r = 0; here && r < world->size; r++) here = !is_missing(s, world->seats[r].number);
    return here;
}

/* If all ranks of a later world are here, and none has heard GO, nobody has. But they may leave
 * again for another scheduler. */
static wefti_vote take_vote(const wefti_scheduler *s) {
    for (int32_t i = 0; i < s->taken; i++)
        s->gather.voters[i] = wefti_gather_voter(&s->slots[i].join);
    wefti_vote v = wefti_vote_take(s->gather.voters, s->taken);
    if (v.said && !s->options.has_other && is_all_here(s, v.said)) v.said = 0;
    if (!v.said) v.said_size = 0;
    return v;
}

/* Ranks of a world whose process has ended, and has not come: they are on no side. But where there
 * may be two schedulers, they may have gone on with the other one before they ended. */
static int32_t count_ended(const wefti_scheduler *s, uint64_t generation) {
    const wefti_gathered_world *world = wefti_gather_find(s, generation);
    int32_t count = 0;
    if (s->options.has_other) return 0;
    for (int32_t r = 0; world && r < world->size; r++) {
        const int32_t number = world->seats[r].number;
        count += is_missing(s, number) && wefti_gather_has_ended(s, number) > 0;
    }
    return count;
}

static bool has_seat(const wefti_gathered_world *world, int32_t number) {
    int32_t r = 0;
    while (r < world->size && world->seats[r].number != number) r++;
    return r < world->size;
}

/* Processes that will wait (regain.c) may leave for the other scheduler unseen. */
static void count_only_seats(const wefti_scheduler *s, const wefti_vote *v) {
    const wefti_gathered_world *world = wefti_gather_find(s, v->whole);
    for (int32_t i = 0; world && i < s->taken; i++) {
        const wefti_join *join = &s->slots[i].join;
        if (!join->whole.generation && !has_seat(world, join->number))
            s->gather.voters[i].said = (wefti_vote_place){0};
    }
}

static bool may_begin(const wefti_scheduler *s, const wefti_vote *v) {
    if (s->options.has_other) count_only_seats(s, v);
    return v->whole && wefti_vote_may_begin(v, s->gather.voters, s->taken, count_ended(s, v->whole),
                                            count_ended(s, v->said));
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

/* Whether nobody of that world is awaited. */
static bool is_settled(const wefti_scheduler *s, uint64_t generation, bool armed) {
    const wefti_gathered_world *world = wefti_gather_find(s, generation);
    for (int32_t r = 0; world && r < world->size; r++) {
        const int32_t number = world->seats[r].number;
        if (is_missing(s, number) && !(armed && wefti_gather_has_ended(s, number))) return false;
    }
    return true;
}

/* --- the world again --- */

static void refuse_left_behind(wefti_scheduler *s, const wefti_vote *v) {
    for (int32_t i = s->taken - 1; i >= 0; i--) {
        wefti_client *client = s->slots[i].client;
        const wefti_join join = s->slots[i].join;
        const wefti_voter voter = wefti_gather_voter(&join);
        if (!wefti_vote_is_past(v, &voter)) continue;
        wefti_scheduler_release_slot(s, i);
        wefti_scheduler_refuse_past(s, client, &join);
    }
}

static void end_without(wefti_scheduler *s, const wefti_vote *v) {
    wefti_text text = {0};
    wefti_text_add(&text,
                   "%d of %d ranks have come back within %.4g s to a scheduler that was started "
                   "again: without more than half of them it does not go on",
                   (int)s->taken, (int)(v->size ? v->size : s->options.size),
                   (double)s->join_ns * 1e-9);
    wefti_scheduler_abort_text(s, WEFT_E_LOST, WEFT_RANK_NONE, &text);
}

void wefti_gather_check(wefti_scheduler *s, int64_t now_ns) {
    const int64_t waited_ns = now_ns - s->gather.since_ns;
    if (s->state != WEFTI_SCHEDULER_FORMING || !s->gather.since_ns) return;
    wefti_vote v = take_vote(s);
    refuse_left_behind(s, &v);
    v = take_vote(s);
    const bool armed = all_armed(s);
    /* Another scheduler may await a word on the last one that has come: standby.c. */
    const bool awaited = s->options.has_other && now_ns - s->gather.came_ns < 3 * second_ns;
    const bool late = armed && !awaited && waited_ns > s->heartbeat_ns + 2 * second_ns;
    const bool settled = is_settled(s, v.whole, armed) && is_settled(s, v.said, armed);
    if ((late || settled) && s->taken > 0 && may_begin(s, &v))
        wefti_gather_begin_world(s, &v);
    else if (waited_ns > s->join_ns)
        end_without(s, &v);
}
