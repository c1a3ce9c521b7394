/* Worlds that go on after a death. launch/recovery decides: this file carries its decisions out.
 *
 * All ranks have said that they can be mended, and the user has allowed restarts. Then a death
 * breaks the world (HALT), and its seat is empty until another process takes it. A seat is kept for
 * processes of the same host that have the same facts. Everything that ranks said before HALT is
 * void: cards of all-gathers, and accusations. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* --- beginning and ending --- */

void wefti_mend_end(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    for (int32_t r = 0; m->holds && r < s->options.size; r++) wefti_free(m->holds[r].ranks);
    wefti_free(m->holds);
    wefti_free(m->seats);
    wefti_free(m->first);
    wefti_free(m->holder);
    *m = (wefti_mending_state){0};
}

void wefti_mend_begin(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    const size_t size = (size_t)s->options.size;
    wefti_mend_end(s);
    if (s->options.restarts <= 0 || s->taken < 2) return;
    m->holds = wefti_calloc(size, sizeof *m->holds);
    m->first = wefti_calloc(size + 1, sizeof *m->first);
    m->seats = wefti_calloc(size, sizeof *m->seats);
    if (!m->holds || !m->first || !m->seats) {
        wefti_mend_end(s);
        return;
    }
    const wefti_holders nobody = {.first = m->first, .holder = m->first};
    wefti_mending_begin(&m->world, s->taken, m->seats, nobody, (int64_t)s->generation);
}

void wefti_mend_arm(wefti_scheduler *s, int32_t rank) {
    wefti_member_slot *slot = &s->slots[rank];
    if (!slot->armed) s->mend.armed++;
    slot->armed = true;
}

/* --- deaths --- */

/* What the others hear, after each death. */
static void halt(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    unsigned char body[WEFTI_MESSAGE_MAX];
    s->generation = m->halt.generation = (uint64_t)m->world.generation;
    m->since_ns = wefti_now_ns();
    s->blame.until_ns = 0;
    s->answered = 0;
    s->allgather_since_ns = 0;
    wefti_shared_body_release(s->answer);
    s->answer = NULL;
    size_t bytes = wefti_halt_encode(&m->halt, body);
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        wefti_slot_clear(slot);
        slot->gave_up = false;
        slot->join.generation = s->generation;
        if (slot->client) wefti_client_send(s, slot->client, WEFTI_FRAME_HALT, body, bytes);
    }
}

static void empty(wefti_scheduler *s, int32_t rank) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_client *client = slot->client;
    slot->client = NULL;
    slot->dead = true;
    slot->newcomer = false;
    if (!client) return;
    client->slot = -1;
    wefti_client_drop(s, client);
}

static bool some_left(const wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].left) return true;
    return false;
}

/* Counts it; false: there are no more restarts. */
static bool may_start_again(wefti_scheduler *s, int32_t rank) {
    s->slots[rank].deaths++;
    return ++s->mend.deaths <= s->options.restarts;
}

bool wefti_mend_died(wefti_scheduler *s, int32_t rank, const char *text, const char **why) {
    wefti_mending_state *m = &s->mend;
    *why = "";
    if (!m->seats || s->state != WEFTI_SCHEDULER_RUNNING) return false;
    if (m->armed < s->taken) {
        *why = "; not all ranks could be mended yet (recovery.enabled)";
        return false;
    }
    if (some_left(s)) {
        *why = "; some ranks have left already, so that it cannot be started again";
        return false;
    }
    if (!may_start_again(s, rank)) {
        *why = "; it is not started again: that was done as often as it may be";
        return false;
    }
    m->halt.failed = rank;
    (void)snprintf(m->halt.text, sizeof m->halt.text, "%s", text);
    empty(s, rank);
    if (wefti_mending_died(&m->world, rank) & WEFTI_MENDING_HALT) halt(s);
    return true;
}

/* --- launchers --- */

/* A process that may do better the next time. Shells report a signal as 128 and its number. */
static bool was_lost(const wefti_end *end) {
    enum { AGAIN = 75, SHELL = 128 };
    const int number = end->code - SHELL;
    if (end->signal || end->code == AGAIN) return true;
    return number > 0 && number < NSIG && number != SIGHUP && number != SIGINT && number != SIGTERM;
}

static void give_up(wefti_scheduler *s, int32_t rank, const char *then) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s%s", s->mend.halt.text, then);
    wefti_scheduler_abort_text(s, WEFT_E_LOST, rank, &text);
}

bool wefti_mend_awaits(wefti_scheduler *s, const wefti_end *end, int starts) {
    wefti_mending_state *m = &s->mend;
    if (s->state != WEFTI_SCHEDULER_RUNNING || !m->seats || end->rank >= s->taken) return false;
    wefti_member_slot *slot = &s->slots[end->rank];
    if (!was_lost(end)) return false;
    if (slot->deaths < starts && m->seats[end->rank].filled) {
        char how[64];
        (void)snprintf(how, sizeof how, "it was ended by signal %d", (int)end->signal);
        if (!end->signal) (void)snprintf(how, sizeof how, "exit code %d", (int)end->code);
        if (slot->left) return false;
        wefti_scheduler_rank_died(s, end->rank, how);
    } else if (slot->deaths < starts) { /* before it had its seat again */
        m->halt.failed = end->rank;
        (void)snprintf(m->halt.text, sizeof m->halt.text,
                       "%.3000s, before it had taken its seat again", end->text);
        m->since_ns = wefti_now_ns();
        if (!may_start_again(s, end->rank))
            give_up(s, end->rank, "; it is not started again: that was done as often as it may be");
    }
    return s->state == WEFTI_SCHEDULER_RUNNING && !m->seats[end->rank].filled;
}

void wefti_mend_ended(wefti_scheduler *s, const wefti_end *end) {
    if (wefti_mend_phase(s) != WEFTI_MENDING_COUNTING || s->state != WEFTI_SCHEDULER_RUNNING)
        return;
    if (end->rank >= s->taken || s->mend.seats[end->rank].filled) return;
    wefti_text text = {0};
    wefti_text_add(&text, "%s, and nobody takes its seat", end->text);
    wefti_scheduler_abort_text(s, wefti_end_status(end), end->rank, &text);
}

void wefti_mend_left(wefti_scheduler *s, int32_t rank) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s; it cannot be started again, because ", s->mend.halt.text);
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " has left");
    wefti_scheduler_abort_text(s, WEFT_E_LOST, s->mend.halt.failed, &text);
}

/* --- newcomers --- */

static bool fits_seat(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    const wefti_join *old = &s->slots[join->rank].join;
    const int rank = (int)join->rank;
    if (strcmp(join->host, old->host) != 0)
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "rank %d was process %lld on host '%.80s'; process %lld, which comes "
                            "for its seat, is on host '%.80s'",
                            rank, (long long)old->pid, old->host, (long long)join->pid, join->host);
    else if (strcmp(join->facts, old->facts) != 0)
        wefti_client_refuse(s, client, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "rank %d was process %lld (%.200s); process %lld, which comes for its "
                            "seat, is another kind (%.200s)",
                            rank, (long long)old->pid, old->facts, (long long)join->pid,
                            join->facts);
    else
        return true;
    return false;
}

bool wefti_mend_take_in(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_mending_state *m = &s->mend;
    if (s->state != WEFTI_SCHEDULER_RUNNING || join->generation || join->rank < 0) return false;
    if (wefti_mend_phase(s) == WEFTI_MENDING_NOT || m->seats[join->rank].filled) return false;
    if (!fits_seat(s, client, join)) return true;
    wefti_member_slot *slot = &s->slots[join->rank];
    slot->client = client;
    client->slot = join->rank;
    slot->join = *join;
    slot->join.generation = s->generation;
    slot->dead = slot->partial = false;
    slot->newcomer = true;
    memcpy(slot->address, client->address, sizeof slot->address);
    slot->heard_ns = wefti_now_ns();
    slot->standing = (wefti_standing){.since_ns = slot->heard_ns};
    (void)wefti_mending_filled(&m->world, join->rank); /* WORLD is also its HALT */
    weft_status status = wefti_scheduler_tell_world(s, join->rank, 1);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    return true;
}

/* --- standing, mending, going on --- */

/* Whether all ranks but this one have told where they stand. */
static bool is_last(const wefti_scheduler *s, int32_t rank) {
    for (int32_t r = 0; r < s->taken; r++)
        if (!s->mend.seats[r].filled || (r != rank && !s->mend.seats[r].stood)) return false;
    return true;
}

/* Turns what each rank holds into the holders of each rank. */
static weft_status find_holders(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    int32_t *first = m->first, size = s->taken, all = 0;
    memset(first, 0, ((size_t)size + 1) * sizeof *first);
    for (int32_t r = 0; r < size; r++)
        for (int32_t i = 0; i < m->holds[r].count; i++) first[m->holds[r].ranks[i]]++;
    for (int32_t r = 0; r < size; r++) {
        all += first[r];
        first[r] = all; /* its end; below, what is filled in moves it to its beginning */
    }
    first[size] = all;
    wefti_free(m->holder);
    m->holder = NULL;
    WEFT_NEW_ARRAY(m->holder, int32_t, all + 1);
    for (int32_t r = size - 1; r >= 0; r--)
        for (int32_t i = 0; i < m->holds[r].count; i++)
            m->holder[--first[m->holds[r].ranks[i]]] = r;
    m->world.holders = (wefti_holders){.first = first, .holder = m->holder};
    return WEFT_OK;
}

static weft_status tell_mend(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    const wefti_mend_message said = {.generation = s->generation, .target = m->world.target};
    int32_t *source;
    unsigned char *body;
    size_t bytes;
    WEFT_NEW_ARRAY(source, int32_t, s->taken);
    for (int32_t r = 0; r < s->taken; r++) source[r] = m->seats[r].source;
    weft_status status = wefti_mend_encode(&said, source, s->taken, &body, &bytes);
    wefti_free(source);
    WEFT_TRY(status);
    for (int32_t r = 0; r < s->taken; r++)
        wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_MEND, body, bytes);
    wefti_free(body);
    return WEFT_OK;
}

static weft_status stand(wefti_scheduler *s, int32_t rank, const wefti_standing_message *said) {
    unsigned actions;
    const wefti_standing_report at = {.step = said->step, .ready = said->ready, .copies = true};
    if (is_last(s, rank)) WEFT_TRY(find_holders(s));
    weft_status status =
        wefti_mending_stood(&s->mend.world, rank, (int64_t)said->generation, at, &actions);
    if (status < 0 && status != WEFT_E_CORRUPT) return status; /* else all read the disk */
    return actions & WEFTI_MENDING_MEND ? tell_mend(s) : WEFT_OK;
}

weft_status wefti_mend_stood(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) {
    wefti_mending_state *m = &s->mend;
    wefti_standing_message said;
    int32_t *holds, count;
    WEFT_TRY(wefti_standing_decode(frame, s->taken, &said, &holds, &count));
    if (wefti_mend_phase(s) != WEFTI_MENDING_COUNTING || said.generation != s->generation) {
        wefti_free(holds); /* a death has overtaken it */
        return WEFT_OK;
    }
    wefti_free(m->holds[rank].ranks);
    m->holds[rank].ranks = holds;
    m->holds[rank].count = count;
    weft_status status = stand(s, rank, &said);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    return WEFT_OK;
}

weft_status wefti_mend_whole(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) {
    unsigned char body[WEFTI_GENERATION_BYTES];
    uint64_t generation;
    WEFT_TRY(wefti_generation_decode(frame, &generation));
    if (!s->mend.seats || generation != s->generation) return WEFT_OK;
    if (!(wefti_mending_whole(&s->mend.world, rank, (int64_t)generation) & WEFTI_MENDING_GO))
        return WEFT_OK;
    s->mend.was = true;
    wefti_generation_encode(generation, body);
    for (int32_t r = 0; r < s->taken; r++) {
        s->slots[r].newcomer = false;
        s->slots[r].standing.waiting = false; /* for the rank that died: that is over */
        s->slots[r].standing.since_ns = wefti_now_ns();
        wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_GO, body, sizeof body);
    }
    return WEFT_OK;
}

/* --- times --- */

/* The process for an empty seat, or the word of a rank, may never come. */
void wefti_mend_check(wefti_scheduler *s, int64_t now_ns) {
    wefti_mending_state *m = &s->mend;
    if (wefti_mend_phase(s) != WEFTI_MENDING_COUNTING || now_ns - m->since_ns <= s->join_ns) return;
    wefti_text text = {0};
    int32_t absent = 0;
    while (absent < s->taken && m->seats[absent].filled && m->seats[absent].stood) absent++;
    if (absent == s->taken) return;
    wefti_text_add(&text, "%s; after %.4g s ", m->halt.text, (double)s->join_ns * 1e-9);
    if (m->seats[absent].filled) {
        wefti_slot_name(s, absent, &text);
        wefti_text_add(&text, " has not said where it stands");
    } else {
        wefti_text_add(&text, "no process has come for the seat of rank %d", (int)absent);
    }
    wefti_scheduler_abort_text(s, WEFT_E_LOST, absent, &text);
}
