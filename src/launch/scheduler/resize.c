/* Elastic worlds: a world that has lost processes for good goes on with the ranks that are left.
 * They keep their order, and get new numbers. If a process comes later for a seat that was given
 * up, it gets a seat at the end. recovery moves the seats; this file moves what the
 * scheduler keeps of them. Launchers know a process by the rank that it was started with. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* --- room for more ranks than at first --- */

int32_t wefti_most_ranks(const wefti_scheduler *s) {
    const wefti_arm *elastic = &s->mend.elastic;
    return elastic->least && elastic->most > s->options.size ? elastic->most : s->options.size;
}

/* A larger array, with zeros at its end. False: no memory, and the old one stays. */
static bool enlarge(void **array, int32_t from, int32_t to, size_t element) {
    char *larger = wefti_realloc(*array, (size_t)to * element);
    if (!larger) return false;
    memset(larger + (size_t)from * element, 0, (size_t)(to - from) * element);
    *array = larger;
    return true;
}

weft_status wefti_make_room(wefti_scheduler *s, int32_t ranks) {
    wefti_mending_state *m = &s->mend;
    if (ranks <= s->room) return WEFT_OK;
    bool has = enlarge((void **)&s->slots, s->room, ranks, sizeof *s->slots) &&
               enlarge((void **)&s->live.ranks, s->room, ranks, sizeof *s->live.ranks);
    if (m->seats) { /* else it makes room for slots alone */
        has = has && enlarge((void **)&m->seats, s->room, ranks, sizeof *m->seats) &&
              enlarge((void **)&m->holds, s->room, ranks, sizeof *m->holds);
        m->world.seats = m->seats;
    }
    WEFT_REQUIRE(has, WEFT_E_NOMEM, "no memory for a world of %d ranks", (int)ranks);
    s->room = ranks;
    return WEFT_OK;
}

/* --- seats --- */

int32_t wefti_slot_of_process(const wefti_scheduler *s, int32_t number) {
    if (number >= 0 && number < s->taken && s->slots[number].number == number) return number;
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].number == number) return r;
    return -1;
}

static int32_t count_filled(const wefti_scheduler *s) {
    int32_t filled = 0;
    for (int32_t r = 0; r < s->taken; r++) filled += s->mend.seats[r].filled;
    return filled;
}

static int32_t count_awaited(const wefti_scheduler *s, int64_t now_ns) {
    const int64_t waited_ns = now_ns - s->mend.since_ns;
    const bool waits = waited_ns <= (int64_t)s->mend.elastic.patience_s * 1000000000;
    int32_t awaited = 0;
    for (int32_t r = 0; r < s->taken && waits; r++)
        awaited += !s->mend.seats[r].filled && s->live.ranks[r].state == WEFTI_LIFE_AWAITED;
    return awaited;
}

/* --- sizes that plans are for --- */

void wefti_mend_also_allows(wefti_arm *all, const wefti_arm *said) {
    if (said->least == 0) all->least = 0;
    if (all->least && said->least > all->least) all->least = said->least;
    if (said->most == 0) return;
    if (all->most == 0) {
        all->most = said->most;
        memcpy(all->fits, said->fits, sizeof all->fits);
        return;
    }
    if (said->most < all->most) all->most = said->most;
    for (int32_t i = 0; i <= all->most / 8; i++) all->fits[i] &= said->fits[i];
}

static bool fits(const wefti_arm *elastic, int32_t size) {
    if (size < elastic->least) return false;
    if (elastic->most == 0) return true;
    return size <= elastic->most && elastic->fits[size / 8] >> size % 8 & 1;
}

/* The most ranks, of so many, with which the world may go on; 0: it may not. */
static int32_t fitting(const wefti_scheduler *s, int32_t ranks) {
    while (ranks > 0 && !fits(&s->mend.elastic, ranks)) ranks--;
    return ranks;
}

bool wefti_mend_may_shrink(const wefti_scheduler *s) {
    if (!wefti_mend_is_elastic(s)) return false;
    int32_t stays = -1; /* without the one more */
    for (int32_t r = 0; r < s->taken; r++)
        stays += s->mend.seats[r].filled || s->live.ranks[r].state == WEFTI_LIFE_AWAITED;
    return fitting(s, stays) > 0;
}

/* --- ranks that are too many --- */

bool wefti_mend_was_dismissed(const wefti_scheduler *s, int32_t number) {
    const wefti_mending_state *m = &s->mend;
    for (int64_t i = 0; i < m->dismissed_count; i++)
        if (m->dismissed[i] == number) return true;
    return false;
}

static bool all_stand(const wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->mend.seats[r].filled && !s->mend.seats[r].stood) return false;
    return true;
}

/* Whether `holder` has the state of `rank`. Ranks say so by the numbers that they had in the world
 * that was whole last. */
static bool holds(const wefti_scheduler *s, int32_t holder, int32_t rank) {
    return wefti_stand_holds(&s->mend.seats[holder].at, s->mend.seats[rank].was);
}

/* Whether a rank that is here, other than `besides`, has the state of this one. */
static bool is_held_besides(const wefti_scheduler *s, int32_t rank, int32_t besides) {
    for (int32_t r = 0; r < s->taken; r++)
        if (r != besides && s->mend.seats[r].filled && holds(s, r, rank)) return true;
    return false;
}

/* Whether this rank alone has the state of a rank that is lost. */
static bool holds_alone(const wefti_scheduler *s, int32_t rank) {
    for (int32_t lost = 0; lost < s->taken; lost++)
        if (!s->mend.seats[lost].filled && holds(s, rank, lost) && !is_held_besides(s, lost, rank))
            return true;
    return false;
}

/* Whether no state is lost with this rank. */
static bool is_spare(const wefti_scheduler *s, int32_t rank) {
    return is_held_besides(s, rank, rank) && !holds_alone(s, rank);
}

/* Whether no other rank has made as many steps. */
static bool is_ahead(const wefti_scheduler *s, int32_t rank) {
    const wefti_seat *seats = s->mend.seats;
    for (int32_t r = 0; r < s->taken; r++)
        if (r != rank && seats[r].filled && seats[r].at.step >= seats[rank].at.step) return false;
    return true;
}

/* The rank with which least is lost; of equals, the highest. */
static int32_t choose_dismissed(const wefti_scheduler *s) {
    int32_t chosen = -1, best = -1;
    for (int32_t r = s->taken - 1; r >= 0; r--) {
        const wefti_seat *seat = &s->mend.seats[r];
        if (!seat->filled) continue;
        const int32_t spares = seat->at.step < 0 ? 4 : 2 * is_spare(s, r) + !is_ahead(s, r);
        if (spares > best) chosen = r;
        if (spares > best) best = spares;
    }
    return chosen;
}

static weft_status dismiss(wefti_scheduler *s, int32_t here, int32_t stay) {
    wefti_mending_state *m = &s->mend;
    for (int32_t left = here; left > stay; left--) {
        const int32_t r = choose_dismissed(s);
        WEFT_TRY(WEFT_GROW(m->dismissed, m->dismissed_count, m->dismissed_room));
        m->dismissed[m->dismissed_count++] = s->slots[r].number;
        wefti_client_refuse(s, s->slots[r].client, WEFT_E_LOST, WEFT_RANK_NONE,
                            "the job goes on with %d ranks without this one: it has no plan for %d",
                            (int)stay, (int)here);
        s->slots[r].client = NULL;
        wefti_mending_dismiss(&m->world, r);
    }
    return WEFT_OK;
}

/* --- shrinking --- */

/* Before the seats have moved. */
static void move_slots(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    int32_t kept = 0;
    for (int32_t r = 0; r < s->taken; r++) {
        if (!m->seats[r].filled) {
            wefti_slot_clear(&s->slots[r]);
            wefti_restart_forget(&s->restarts, s->slots[r].number);
            if (s->slots[r].armed) m->armed--;
            continue;
        }
        if (kept != r) {
            wefti_free(m->holds[kept]);
            s->slots[kept] = s->slots[r];
            s->live.ranks[kept] = s->live.ranks[r];
            s->slots[kept].client->slot = kept;
            m->holds[kept] = m->holds[r];
            m->holds[r] = NULL;
        }
        kept++;
    }
    for (int32_t r = kept; r < s->taken; r++) s->slots[r] = (wefti_member_slot){0};
    wefti_liveness_shrink(&s->live, kept);
    s->taken = kept;
}

static weft_status shrink(wefti_scheduler *s) {
    unsigned actions;
    move_slots(s);
    WEFT_TRY(wefti_scheduler_number_hosts(s->slots, s->taken));
    weft_status status = wefti_mending_shrink(&s->mend.world, &actions);
    if (status < 0 && status != WEFT_E_CORRUPT) return status; /* else all read the disk */
    return wefti_mend_act(s, actions);
}

static void end_small(wefti_scheduler *s, int32_t left) {
    const int32_t least = s->mend.elastic.least;
    wefti_text text = {0};
    wefti_text_add(&text, "%s; the job ends, since %d ranks are left, and ", s->mend.halt.text,
                   (int)left);
    if (left < least)
        wefti_text_add(&text, "recovery.min is %d", (int)least);
    else
        wefti_text_add(&text, "the job has a plan for none of %d to %d ranks", (int)least,
                       (int)left);
    wefti_scheduler_abort_text(s, WEFT_E_LOST, s->mend.halt.failed, &text);
}

void wefti_mend_give_up_seats(wefti_scheduler *s, int64_t now_ns) {
    if (!wefti_mend_is_elastic(s) || wefti_mend_phase(s) != WEFTI_MENDING_COUNTING) return;
    const int32_t filled = count_filled(s);
    if (s->state != WEFTI_SCHEDULER_RUNNING || filled == s->taken || wefti_is_in_doubt(s)) return;
    if (count_awaited(s, now_ns)) return;
    const int32_t stay = fitting(s, filled);
    if (!stay) {
        end_small(s, filled);
        return;
    }
    weft_status status = WEFT_OK;
    if (stay < filled && !all_stand(s)) return;
    if (stay < filled) status = dismiss(s, filled, stay);
    if (status >= 0) status = shrink(s);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
}

bool wefti_mend_goes_on(wefti_scheduler *s, const wefti_end *end) {
    wefti_mend_hear_out(s, end);
    const bool is_loss =
        wefti_is_loss(end->code, end->signal) || wefti_mend_was_dismissed(s, end->rank);
    if (!wefti_mend_is_elastic(s) || !is_loss) return false;
    int32_t seat = wefti_slot_of_process(s, end->rank);
    /* The others may have ended well before a process without a seat does. */
    if (s->state == WEFTI_SCHEDULER_LEFT) return seat < 0;
    if (s->state != WEFTI_SCHEDULER_RUNNING) return false;
    if (seat >= 0 && wefti_has_left(&s->live.ranks[seat])) return false;
    if (seat >= 0 && s->mend.seats[seat].filled) {
        wefti_scheduler_rank_ended_so(s, seat, end);
    } else if (seat >= 0) {
        wefti_life_happens(&s->live.ranks[seat], WEFTI_LIFE_AWAITS_NONE);
        wefti_mend_give_up_seats(s, wefti_now_ns());
    }
    if (s->state != WEFTI_SCHEDULER_RUNNING) return false;
    if (!s->has_ended) { /* it will not come to the job's next world */
        s->has_ended = true;
        s->first_end = *end;
    }
    return true;
}

/* --- growing --- */

static bool fits_world(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const wefti_join *first = &s->slots[0].join;
    if (strcmp(join->facts, first->facts) == 0) return true;
    wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                        "the ranks of this job are of one kind (%.200s), and process %lld, which "
                        "comes back as rank %d, is of another (%.200s)",
                        first->facts, (long long)join->pid, (int)join->number, join->facts);
    return false;
}

static bool waits(const wefti_scheduler *s, const wefti_client *c) {
    return c->next && c->state < WEFTI_CLIENT_GONE && !c->next->whole.generation &&
           c->next->number >= 0 && wefti_slot_of_process(s, c->next->number) < 0;
}

/* With those that wait, and one more process: how many of them get seats. */
static int32_t count_entering(const wefti_scheduler *s) {
    const int32_t room = wefti_most_ranks(s) - s->taken;
    int32_t more = 1;
    for (int64_t i = 0; i < s->client_count; i++) more += waits(s, s->clients[i]);
    if (more > room) more = room;
    while (more > 0 && !fits(&s->mend.elastic, s->taken + more)) more--;
    return more;
}

/* A seat that will be given up takes the room that a process comes for. */
static bool is_about_to_shrink(const wefti_scheduler *s) {
    return wefti_mend_phase(s) == WEFTI_MENDING_COUNTING && count_filled(s) < s->taken;
}

static void add_slot(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_mending_state *m = &s->mend;
    wefti_member_slot *slot = &s->slots[s->taken];
    *slot = (wefti_member_slot){.join = *join, .number = join->number, .armed = WEFTI_ARMED};
    wefti_liveness_grow(&s->live, wefti_now_ns());
    memcpy(slot->address, client->address, sizeof slot->address);
    slot->join.generation = 0;
    wefti_add_came(s, join->number);
    m->armed++;
    m->halt.failed = s->taken++;
    (void)snprintf(m->halt.text, sizeof m->halt.text,
                   "process %lld on host '%.80s' has come: the world grows to %d ranks",
                   (long long)join->pid, join->host, (int)s->taken);
    (void)wefti_mending_grow(&m->world);
    client->slot = s->taken - 1;
}

static void add_waiting(wefti_scheduler *s, int32_t count) {
    for (int64_t i = 0; i < s->client_count && count > 0; i++) {
        wefti_client *c = s->clients[i];
        if (!waits(s, c)) continue;
        wefti_join *join = c->next;
        c->next = NULL;
        if (fits_world(s, c, join)) add_slot(s, c, join);
        wefti_free(join);
        count--;
    }
}

/* WORLD is also the HALT of those that have come. */
static weft_status tell_comers(wefti_scheduler *s, int32_t first) {
    WEFT_TRY(wefti_scheduler_number_hosts(s->slots, s->taken));
    wefti_mend_halt(s);
    for (int64_t i = 0; i < s->client_count; i++)
        if (s->clients[i]->slot >= first) s->slots[s->clients[i]->slot].client = s->clients[i];
    return wefti_scheduler_tell_world(s, first, s->taken - first);
}

bool wefti_mend_take_back(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const wefti_mending_state *m = &s->mend;
    const int32_t before = s->taken;
    if (m->gathered) { /* its ranks have not said yet whether it is elastic */
        wefti_scheduler_wait_for_next_world(s, client, join);
        return true;
    }
    if (!wefti_mend_is_elastic(s) || m->armed < s->taken || wefti_mend_some_left(s)) return false;
    if (before >= wefti_most_ranks(s) && !is_about_to_shrink(s)) return false;
    if (!fits_world(s, client, join)) return true;
    const int32_t entering = is_about_to_shrink(s) ? 0 : count_entering(s);
    if (!entering) {
        wefti_scheduler_wait_for_next_world(s, client, join);
        return true;
    }
    weft_status status = wefti_make_room(s, before + entering);
    if (status >= 0) {
        add_slot(s, client, join);
        add_waiting(s, entering - 1);
        status = tell_comers(s, before);
    }
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    return true;
}
