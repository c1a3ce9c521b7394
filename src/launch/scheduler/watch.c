/* Watching a world that runs: feeds liveness.h, and says and does what it finds. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

/* The job's, or of the rank's process alone. */
static void end_of(wefti_scheduler *s, int32_t rank, weft_status status, wefti_text *text) {
    const char *why;
    char *words = wefti_text_take(text);
    const char *said = words ? words : "a rank died (no memory to say how)";
    if (wefti_standby_goes_on(s, rank, status, said) && !wefti_mend_died(s, rank, said, &why)) {
        wefti_text_add(text, "%s%s", words ? words : "", why);
        wefti_scheduler_abort_text(s, status, rank, text);
    }
    wefti_free(words);
}

void wefti_scheduler_rank_died(wefti_scheduler *s, int32_t rank, const char *why) {
    if (s->state != WEFTI_SCHEDULER_RUNNING) return; /* a consequence of the verdict */
    wefti_life *life = &s->live.ranks[rank];
    wefti_life_happens(life, WEFTI_LIFE_DIES);
    if (life->gave_up && !s->slots[rank].armed && !wefti_again_is_possible(s, rank))
        return; /* it has said why */
    wefti_text text = {0};
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " died: %s; it was ", why);
    wefti_life_describe(life, wefti_now_ns(), &text);
    end_of(s, rank, WEFT_E_LOST, &text);
}

void wefti_scheduler_rank_ended_so(wefti_scheduler *s, int32_t rank, const wefti_end *end) {
    char how[64];
    (void)snprintf(how, sizeof how, "it was ended by signal %d", (int)end->signal);
    if (!end->signal) (void)snprintf(how, sizeof how, "exit code %d", (int)end->code);
    wefti_scheduler_rank_died(s, rank, how);
}

void wefti_scheduler_goodbye(wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].client)
            wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_GOODBYE, NULL, 0);
}

/* --- ranks that give up --- */

static void end_blame(wefti_scheduler *s) {
    const wefti_abort_reason reason = s->live.blame.reason;
    const char *why = "";
    wefti_text text = {0};
    const int32_t by = s->live.blame.cut_off;
    const int32_t rank = reason.failed >= 0 && reason.failed < s->taken ? reason.failed : by;
    if (by >= 0 && wefti_mend_reconnects(s, rank, reason.text, &why)) return;
    if (reason.status == WEFT_E_LOST && wefti_again_died(s, reason.failed, reason.text)) return;
    wefti_text_add(&text, "%s%s", reason.text, why);
    wefti_scheduler_abort_text(s, reason.status, reason.failed, &text);
}

/* The text without the rank's name in front: the scheduler says more of the rank. */
static const char *without_name(const char *text, int32_t rank) {
    char name[32];
    const int length = snprintf(name, sizeof name, "rank %d: ", (int)rank);
    return strncmp(text, name, (size_t)length) != 0 ? text : text + length;
}

/* `said` by the numbers that the rank knows: the seats may have others already. */
static wefti_last_word word_of(const wefti_scheduler *s, int32_t rank,
                               const wefti_abort_reason *said) {
    wefti_last_word out = {.rank = rank,
                           .said = *said,
                           .runs = s->state == WEFTI_SCHEDULER_RUNNING,
                           .halted = wefti_mend_phase(s) == WEFTI_MENDING_COUNTING,
                           .mendable = s->slots[rank].armed};
    wefti_text text = {0};
    out.of_itself = said->failed == WEFT_RANK_OWN || said->failed == s->slots[rank].told;
    if (out.of_itself) out.said.failed = wefti_slot_rank(s, rank);
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " failed: %s", without_name(said->text, s->slots[rank].told));
    char *words = wefti_text_take(&text);
    if (words) (void)snprintf(out.said.text, sizeof out.said.text, "%s", words);
    wefti_free(words);
    return out;
}

static bool takes_its_seat(const wefti_scheduler *s, int32_t rank) {
    return wefti_is_new(&s->live.ranks[rank]) && wefti_mend_phase(s) != WEFTI_MENDING_NOT;
}

/* A newcomer that cannot take its seat harms nobody: another one may come. */
static void refuse_newcomer(wefti_scheduler *s, int32_t rank, const wefti_abort_reason *why) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_text text = {0};
    wefti_mend_refused(s, rank);
    wefti_client_refuse(s, slot->client, WEFT_E_MISMATCH, why->failed, "%s", why->text);
    slot->client = NULL;
    wefti_life_happens(&s->live.ranks[rank], WEFTI_LIFE_DIES);
    wefti_text_add(&text, "%.3000s; this was before it had taken its seat", why->text);
    end_of(s, rank, WEFT_E_LOST, &text);
}

void wefti_scheduler_rank_gave_up(wefti_scheduler *s, int32_t rank,
                                  const wefti_abort_reason *reason) {
    const wefti_last_word word = word_of(s, rank, reason);
    if (word.of_itself && takes_its_seat(s, rank))
        refuse_newcomer(s, rank, &word.said);
    else if (wefti_liveness_gave_up(&s->live, &word, wefti_now_ns()))
        end_blame(s);
}

/* It may have named another rank before, which it is unlike. */
static void newcomer_left(wefti_scheduler *s, int32_t rank) {
    const wefti_abort_reason leaves = {
        .status = WEFT_E_PEER, .failed = WEFT_RANK_OWN, .text = "it has left"};
    wefti_abort_reason why = word_of(s, rank, &leaves).said;
    if (s->live.ranks[rank].gave_up && wefti_liveness_awaits_word(&s->live))
        why = s->live.blame.reason;
    refuse_newcomer(s, rank, &why);
}

void wefti_scheduler_rank_left(wefti_scheduler *s, int32_t rank) {
    if (takes_its_seat(s, rank)) {
        newcomer_left(s, rank);
        return;
    }
    if (wefti_mend_phase(s) != WEFTI_MENDING_NOT) wefti_mend_left(s, rank);
    if (wefti_liveness_left(&s->live, rank)) end_blame(s);
    if (s->state != WEFTI_SCHEDULER_RUNNING || !wefti_liveness_parted(&s->live, rank)) return;
    wefti_scheduler_compare_all(s);
    if (s->state != WEFTI_SCHEDULER_RUNNING) return;
    wefti_scheduler_goodbye(s);
    s->state = WEFTI_SCHEDULER_LEFT;
    pthread_cond_broadcast(&s->changed);
    wefti_scheduler_take_waiting(s);
}

/* --- times --- */

static void tell_silent(wefti_scheduler *s, int32_t rank, int64_t now) {
    wefti_text text = {0};
    const wefti_life *life = &s->live.ranks[rank];
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text,
                   " has not been heard of for %.1f s: it is stopped, or its host or network is "
                   "down; it was ",
                   (double)(now - life->heard_ns) * 1e-9);
    wefti_life_describe(life, now, &text);
    end_of(s, rank, WEFT_E_TIMEOUT, &text);
}

static void tell_waits(wefti_scheduler *s, const wefti_late *late, int64_t now) {
    wefti_text text = {0};
    const int32_t count = late->culprits, more = count - WEFTI_LATE_NAMED;
    for (int i = 0; i < count && i < WEFTI_LATE_NAMED; i++) {
        const wefti_life *life = &s->live.ranks[late->named[i]];
        wefti_text_add(&text, i > 0 ? "; " : "");
        wefti_slot_name(s, late->named[i], &text);
        wefti_text_add(&text, " keeps the others waiting: it %s",
                       wefti_has_left(life) ? "has left" : "is ");
        if (!wefti_has_left(life)) wefti_life_describe(life, now, &text);
    }
    if (more > 0) wefti_text_add(&text, "; and %d more", (int)more);
    wefti_text_add(&text, count ? ", while " : "no rank gets on, and none is behind the others: ");
    wefti_slot_name(s, late->rank, &text);
    wefti_text_add(&text, " is ");
    wefti_life_describe(&s->live.ranks[late->rank], now, &text);
    wefti_scheduler_abort_text(s, WEFT_E_TIMEOUT, count == 1 ? late->named[0] : WEFT_RANK_NONE,
                               &text);
}

void wefti_scheduler_check_word(wefti_scheduler *s, int64_t now) {
    if (wefti_liveness_is_word_late(&s->live, now)) end_blame(s);
}

void wefti_scheduler_check_ranks(wefti_scheduler *s, int64_t now) {
    const bool halted = wefti_mend_phase(s) == WEFTI_MENDING_COUNTING;
    const wefti_late late = wefti_liveness_check(&s->live, halted, now);
    if (late.kind == WEFTI_LATE_SILENT) tell_silent(s, late.rank, now);
    if (late.kind == WEFTI_LATE_WAITS) tell_waits(s, &late, now);
}
