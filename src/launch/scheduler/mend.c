/* Worlds that go on after a death. recovery decides: this file carries its decisions out.
 *
 * All ranks have said that they can be mended, and the user has allowed restarts. Then a death
 * breaks the world (HALT), and its seat is empty until another process takes it (newcomer.c).
 * Everything that ranks said before HALT is void: cards of all-gathers, and accusations. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* --- beginning and ending --- */

void wefti_mend_end(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    wefti_doubt_forget(s);
    for (int32_t r = 0; m->holds && r < s->room; r++) wefti_free(m->holds[r]);
    wefti_free(m->holds);
    wefti_free(m->seats);
    wefti_free(m->dismissed);
    *m = (wefti_mending_state){0};
}

void wefti_mend_begin(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    const size_t size = (size_t)s->room;
    wefti_mend_end(s);
    if (s->taken < 2) return;
    m->holds = wefti_calloc(size, sizeof *m->holds);
    m->seats = wefti_calloc(size, sizeof *m->seats);
    if (!m->holds || !m->seats) {
        wefti_mend_end(s);
        return;
    }
    wefti_mending_begin(&m->world, s->taken, m->seats, (int64_t)s->generation);
}

/* The world is as elastic as all ranks allow. */
weft_status wefti_mend_arm(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_mending_state *m = &s->mend;
    wefti_arm said;
    WEFT_TRY(wefti_arm_decode(frame, &said));
    if (!m->allows)
        m->elastic = said;
    else
        wefti_mend_also_allows(&m->elastic, &said);
    m->allows = true;
    if (!slot->armed) m->armed++;
    slot->armed = WEFTI_ARMED_HERE;
    if (m->armed == s->taken) wefti_keep_check(s); /* before the first step */
    wefti_client_send(s, slot->client, WEFTI_FRAME_ARMED, NULL, 0);
    return WEFT_OK;
}

/* --- deaths --- */

int32_t wefti_mend_used(const wefti_scheduler *s) {
    const int32_t used = wefti_restart_used(&s->restarts, wefti_now_ns());
    bool mends = false;
    for (int32_t r = 0; r < s->taken; r++)
        mends |= s->live.ranks[r].state == WEFTI_LIFE_AWAITED || wefti_is_new(&s->live.ranks[r]);
    return used - (mends && used > 0);
}

void wefti_mend_halt(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    unsigned char body[WEFTI_MESSAGE_MAX];
    s->generation = m->halt.generation = (uint64_t)m->world.generation;
    m->halt.used = wefti_mend_used(s);
    m->since_ns = wefti_now_ns();
    wefti_liveness_halt(&s->live);
    s->answered = 0;
    s->allgather_since_ns = 0;
    wefti_shared_body_release(s->answer);
    s->answer = NULL;
    size_t bytes = wefti_halt_encode(&m->halt, body);
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        wefti_slot_clear(slot);
        slot->join.generation = s->generation;
        if (slot->client) wefti_client_send(s, slot->client, WEFTI_FRAME_HALT, body, bytes);
    }
}

static void empty(wefti_scheduler *s, int32_t rank) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_client *client = slot->client;
    slot->client = NULL;
    wefti_life_happens(&s->live.ranks[rank], WEFTI_LIFE_EMPTIES);
    if (!client) return;
    client->slot = -1;
    wefti_client_drop(s, client);
}

bool wefti_mend_some_left(const wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (wefti_has_left(&s->live.ranks[r])) return true;
    return false;
}

/* "; rank 3 on host 1 has failed 4 times within 2.5 s"; "" for the first time. */
typedef struct row_text {
    char text[512];
} row_text;
static row_text row_of(const wefti_scheduler *s, int32_t rank) {
    const wefti_member_slot *slot = &s->slots[rank];
    row_text out = {""};
    int64_t ns;
    const int32_t row = wefti_restart_row(&s->restarts, slot->number, wefti_now_ns(), &ns);
    if (row > 1)
        (void)snprintf(out.text, sizeof out.text,
                       "; rank %d on host %d has failed %d times within %.3g s", (int)rank,
                       (int)slot->host, (int)row, (double)ns * 1e-9);
    return out;
}

/* Why there is no restart, for the end of a message. */
static const char *refusal(wefti_scheduler *s, int32_t rank, const char *what) {
    (void)snprintf(s->refusal, sizeof s->refusal,
                   "%s; %s: that was done as often as it may be (--restart %d within %.6g s)",
                   row_of(s, rank).text, what, (int)s->restarts.most,
                   (double)s->restarts.window_ns * 1e-9);
    return s->refusal;
}

/* A world that may go on without a rank that keeps failing does so: each further try stops all. */
static bool keeps_failing(const wefti_scheduler *s, int32_t rank) {
    int64_t ns;
    return wefti_restart_row(&s->restarts, s->slots[rank].number, wefti_now_ns(), &ns) >=
               WEFTI_RESTART_KEEPS_FAILING &&
           wefti_mend_may_shrink(s);
}

/* The processes of a host that is left out, other than the one that was lost. The world's
 * generation is above the scheduler's then: HALT follows. */
static void end_others(wefti_scheduler *s, int32_t lost, const wefti_span *seats) {
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_member_slot *slot = &s->slots[r];
        if (r == lost || slot->number < seats->first || slot->number >= seats->first + seats->count)
            continue;
        if (s->mend.seats[r].filled) slot->deaths++;
        wefti_keep_tell(s, r);
        empty(s, r);
        wefti_life_happens(&s->live.ranks[r], WEFTI_LIFE_AWAITS);
        (void)wefti_mending_died(&s->mend.world, r);
    }
}

/* Counts it; false: it is not to be. *out_text: what all hear besides its end. */
static bool may_start_again(wefti_scheduler *s, int32_t rank, row_text *out_text) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_span seats;
    *out_text = row_of(s, rank);
    slot->deaths++;
    wefti_keep_tell(s, rank);
    if (wefti_keep_leaves_out(s, slot->number, &seats)) {
        (void)snprintf(out_text->text, sizeof out_text->text, "; %.500s",
                       s->notes.text[(s->notes.count - 1) % WEFTI_NOTES]);
        end_others(s, rank, &seats);
        wefti_keep_hand_over(s, &seats);
        wefti_life_happens(&s->live.ranks[rank], WEFTI_LIFE_AWAITS);
        return true;
    }
    const bool may =
        !keeps_failing(s, rank) && wefti_restart_take(&s->restarts, slot->number, wefti_now_ns());
    wefti_life_happens(&s->live.ranks[rank], may ? WEFTI_LIFE_AWAITS : WEFTI_LIFE_AWAITS_NONE);
    if (may) out_text->text[0] = '\0';
    return may;
}

/* Whether all ranks are there that a mending needs; else *why says more, if there is more. */
static bool can_be_mended(wefti_scheduler *s, int32_t rank, const char **why) {
    const wefti_mending_state *m = &s->mend;
    if (!m->seats || s->state != WEFTI_SCHEDULER_RUNNING) return false;
    if (s->options.restarts <= 0 && !wefti_mend_is_elastic(s) && !m->gathered) return false;
    if (m->armed < s->taken)
        *why = s->restarts.all > 0 &&
                       !wefti_restart_may(&s->restarts, s->slots[rank].number, wefti_now_ns())
                   ? refusal(s, rank, "the ranks are not started again")
                   : "; not all ranks could be mended yet (recovery.enabled)";
    else if (wefti_mend_some_left(s))
        *why = "; some ranks have left already, so that it cannot be started again";
    else
        return true;
    return false;
}

static void begin_halt(wefti_scheduler *s, int32_t rank, const char *text, unsigned actions) {
    wefti_mending_state *m = &s->mend;
    m->halt.failed = rank;
    (void)snprintf(m->halt.text, sizeof m->halt.text, "%s", text);
    if (actions & WEFTI_MENDING_HALT) wefti_mend_halt(s);
}

bool wefti_mend_reconnects(wefti_scheduler *s, int32_t rank, const char *text, const char **why) {
    wefti_mending_state *m = &s->mend;
    if (!can_be_mended(s, rank, why)) return false;
    if (!wefti_restart_take(&s->restarts, WEFTI_RESTART_NOBODY, wefti_now_ns())) {
        *why = refusal(s, rank, "no new connections are made");
        return wefti_mend_may_shrink(s) && wefti_mend_died(s, rank, text, why);
    }
    begin_halt(s, rank, text, wefti_mending_rejoined(&m->world, true));
    return true;
}

bool wefti_mend_died(wefti_scheduler *s, int32_t rank, const char *text, const char **why) {
    wefti_mending_state *m = &s->mend;
    *why = "";
    if (wefti_again_died(s, rank, text)) return true;
    if (!can_be_mended(s, rank, why)) return false;
    row_text row;
    if (!may_start_again(s, rank, &row) && !wefti_mend_may_shrink(s) && !m->gathered) {
        *why = wefti_mend_is_elastic(s)
                   ? "; the job ends, since fewer ranks than recovery.min would be left, or a "
                     "number of ranks for which the job has no plan"
                   : refusal(s, rank, "it is not started again");
        return false;
    }
    char said[WEFTI_TEXT_MAX + 1];
    (void)snprintf(said, sizeof said, "%.3000s%s", text, row.text);
    empty(s, rank);
    begin_halt(s, rank, said, wefti_mending_died(&m->world, rank));
    if (!m->gathered) wefti_mend_give_up_seats(s, wefti_now_ns());
    return true;
}

/* WORLD is its HALT. */
bool wefti_mend_rejoin(wefti_scheduler *s, wefti_client *client, const wefti_join *join) {
    wefti_mending_state *m = &s->mend;
    if (s->state != WEFTI_SCHEDULER_RUNNING || !m->seats || !join->armed) return false;
    const int32_t rank = wefti_slot_of_process(s, join->number);
    if (rank < 0 || join->generation > s->generation) return false;
    wefti_member_slot *slot = &s->slots[rank];
    if (s->live.ranks[rank].state >= WEFTI_LIFE_LEFT || !wefti_same_process(join, &slot->join))
        return false;
    const bool mends = join->mends || join->generation < s->generation;
    if (!(wefti_mending_rejoined(&m->world, mends) & WEFTI_MENDING_HALT)) return false;
    wefti_scheduler_replace(s, rank, client);
    slot->client = NULL;
    m->halt.failed = rank;
    (void)snprintf(m->halt.text, sizeof m->halt.text,
                   "the connection of rank %d broke while the world was being mended", (int)rank);
    wefti_mend_halt(s);
    slot->client = client;
    s->live.ranks[rank].heard_ns = wefti_now_ns();
    slot->join = *join;
    weft_status status = wefti_scheduler_tell_world(s, rank, 1);
    slot->join.generation = s->generation;
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    return true;
}

/* --- launchers --- */

static void give_up(wefti_scheduler *s, int32_t rank, const char *then) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s%s", s->mend.halt.text, then);
    wefti_scheduler_abort_text(s, WEFT_E_LOST, rank, &text);
}

/* Once all that came have said whether the world may go on without others. */
static void check_restarts(wefti_scheduler *s) {
    if (!s->mend.gathered) return;
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].client && s->slots[r].join.arms && s->slots[r].armed != WEFTI_ARMED_HERE)
            return;
    s->mend.gathered = false;
    wefti_gather_release_launchers(s);
    for (int32_t r = 0; r < s->taken; r++)
        if (s->live.ranks[r].state == WEFTI_LIFE_DEAD && !wefti_mend_is_elastic(s))
            give_up(s, r, refusal(s, r, "it is not started again"));
    wefti_scheduler_take_waiting(s); /* the world may grow */
}

/* A launcher's word of a seat whose processes this scheduler has not counted. */
static void count_again(wefti_scheduler *s, int32_t seat, int starts) {
    wefti_member_slot *slot = &s->slots[seat];
    if (!slot->uncounted) return;
    slot->uncounted = false;
    slot->deaths = starts;
    wefti_keep_tell(s, seat);
}

/* The process ended before it had its seat again: another one may be started for it. */
static void lose_newcomer(wefti_scheduler *s, int32_t seat, const wefti_end *end) {
    wefti_mending_state *m = &s->mend;
    row_text row;
    const bool follows = may_start_again(s, seat, &row);
    m->halt.failed = seat;
    (void)snprintf(m->halt.text, sizeof m->halt.text,
                   "%.3000s, before it had taken its seat again%s", end->text,
                   follows || wefti_mend_is_elastic(s) ? row.text : "");
    m->since_ns = wefti_now_ns();
    if ((uint64_t)m->world.generation != s->generation) wefti_mend_halt(s);
    if (follows) return;
    if (wefti_mend_is_elastic(s))
        wefti_mend_give_up_seats(s, m->since_ns);
    else
        give_up(s, seat, refusal(s, seat, "it is not started again"));
}

void wefti_mend_refused(wefti_scheduler *s, int32_t rank) {
    wefti_mending_state *m = &s->mend;
    wefti_member_slot *slot = &s->slots[rank];
    slot->refused = slot->deaths + 1;
    if (!wefti_mend_is_elastic(s)) return;
    /* Its seat may be given up. Without memory its end is the end of the job. */
    if (WEFT_GROW(m->dismissed, m->dismissed_count, m->dismissed_room) < 0) return;
    m->dismissed[m->dismissed_count++] = slot->number;
}

void wefti_mend_hear_out(wefti_scheduler *s, const wefti_end *end) {
    const int32_t seat = s->ranked ? wefti_slot_of_process(s, end->rank) : -1;
    if (seat < 0 || !wefti_is_new(&s->live.ranks[seat]) || wefti_is_loss(end->code, end->signal))
        return;
    if (s->slots[seat].client) wefti_client_read(s, s->slots[seat].client);
}

bool wefti_mend_awaits(wefti_scheduler *s, const wefti_end *end, int starts) {
    wefti_mending_state *m = &s->mend;
    wefti_mend_hear_out(s, end);
    if (wefti_is_loss(end->code, end->signal) && wefti_gather_ended(s, end->rank, starts))
        return true;
    int32_t seat = wefti_slot_of_process(s, end->rank);
    if (s->state != WEFTI_SCHEDULER_RUNNING || !m->seats || seat < 0) return false;
    if (!wefti_is_loss(end->code, end->signal) && s->slots[seat].refused != starts) return false;
    count_again(s, seat, starts);
    if (s->slots[seat].deaths < starts && m->seats[seat].filled) {
        if (wefti_has_left(&s->live.ranks[seat])) return false;
        wefti_scheduler_rank_ended_so(s, seat, end);
    } else if (s->slots[seat].deaths < starts) {
        lose_newcomer(s, seat, end);
    }
    seat = wefti_slot_of_process(s, end->rank); /* it may have been given up */
    return s->state == WEFTI_SCHEDULER_RUNNING && seat >= 0 && !m->seats[seat].filled;
}

void wefti_mend_ended(wefti_scheduler *s, const wefti_end *end) {
    if (wefti_mend_phase(s) != WEFTI_MENDING_COUNTING) return;
    const int32_t seat = wefti_slot_of_process(s, end->rank);
    if (seat < 0 || s->mend.seats[seat].filled) return;
    wefti_text text = {0};
    wefti_text_add(&text, "%s, and nobody takes its seat", end->text);
    wefti_scheduler_abort_text(s, wefti_end_status(end), seat, &text);
}

void wefti_mend_left(wefti_scheduler *s, int32_t rank) {
    wefti_text text = {0};
    wefti_text_add(&text, "%s; it cannot be started again, because ", s->mend.halt.text);
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " has left");
    wefti_scheduler_abort_text(s, WEFT_E_LOST, s->mend.halt.failed, &text);
}

/* --- standing, mending, going on --- */

static weft_status tell_mend(wefti_scheduler *s) {
    wefti_mending_state *m = &s->mend;
    wefti_mend_message said = {.generation = s->generation,
                               .target = m->world.target,
                               .size = s->taken,
                               .resized = wefti_mending_is_resized(&m->world),
                               .numbers = s->numbers};
    wefti_mend_rank *ranks;
    wefti_seated *seats;
    WEFT_TRY(wefti_scheduler_seats(s, &seats));
    weft_status status = WEFT_OK;
    ranks = wefti_calloc((size_t)s->taken, sizeof *ranks);
    if (!ranks) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to mend %d ranks", (int)s->taken);
    for (int32_t r = 0; r < s->taken && ranks; r++)
        ranks[r] = (wefti_mend_rank){m->seats[r].source, m->seats[r].was};
    for (int32_t r = 0; r < s->taken && status >= 0; r++) {
        unsigned char *body;
        size_t bytes;
        said.rank = r;
        status = wefti_mend_encode(&said, ranks, seats, &body, &bytes);
        if (status < 0) break;
        s->slots[r].told = r;
        wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_MEND, body, bytes);
        wefti_free(body);
    }
    wefti_free(ranks);
    wefti_free(seats);
    return status;
}

weft_status wefti_mend_act(wefti_scheduler *s, unsigned actions) {
    return actions & WEFTI_MENDING_MEND ? tell_mend(s) : WEFT_OK;
}

weft_status wefti_mend_stood(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) {
    wefti_mending_state *m = &s->mend;
    uint64_t generation;
    wefti_stand at;
    int32_t *holds;
    unsigned actions;
    WEFT_TRY(wefti_standing_decode(frame, m->seats ? m->world.whole : s->taken, &generation, &at,
                                   &holds));
    if (wefti_mend_phase(s) != WEFTI_MENDING_COUNTING || generation != s->generation) {
        wefti_free(holds); /* a death has overtaken it */
        return WEFT_OK;
    }
    wefti_free(m->holds[rank]);
    m->holds[rank] = holds;
    weft_status status = wefti_mending_stood(&m->world, rank, (int64_t)generation, at, &actions);
    if (status >= 0 || status == WEFT_E_CORRUPT) /* then all read the disk */
        status = wefti_mend_act(s, actions);
    if (status < 0) wefti_scheduler_abort(s, status, WEFT_RANK_NONE, weft_error_message());
    wefti_mend_give_up_seats(s, wefti_now_ns()); /* some of those that stand may be too many */
    return WEFT_OK;
}

weft_status wefti_mend_whole(wefti_scheduler *s, int32_t rank, const wefti_frame *frame) {
    unsigned char body[WEFTI_GO_BYTES];
    uint64_t generation;
    WEFT_TRY(wefti_generation_decode(frame, &generation));
    if (wefti_mend_phase(s) != WEFTI_MENDING_GIVING || generation != s->generation) return WEFT_OK;
    if (!(wefti_mending_whole(&s->mend.world, rank, (int64_t)generation) & WEFTI_MENDING_GO))
        return WEFT_OK;
    s->mend.was = true;
    s->mend.later_size = 0;
    wefti_doubt_forget(s);
    wefti_restart_went_on(&s->restarts);
    s->whole = generation;
    wefti_go_encode(generation, wefti_restart_used(&s->restarts, wefti_now_ns()), body);
    wefti_liveness_go(&s->live, wefti_now_ns());
    for (int32_t r = 0; r < s->taken; r++)
        wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_GO, body, sizeof body);
    wefti_scheduler_take_waiting(s); /* processes for which there was no room amid the mending */
    return WEFT_OK;
}

/* --- times --- */

/* The process for an empty seat, or the word of a rank, may never come. */
void wefti_mend_check(wefti_scheduler *s, int64_t now_ns) {
    wefti_mending_state *m = &s->mend;
    check_restarts(s);
    if (!m->gathered) wefti_mend_give_up_seats(s, now_ns);
    if (s->state != WEFTI_SCHEDULER_RUNNING) return;
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
