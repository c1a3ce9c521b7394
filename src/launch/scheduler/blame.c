/* Ranks that give up, by themselves or because of another rank.
 *
 * A rank whose connection to another rank has closed may give up before the scheduler sees that the
 * other process has died: these are different connections. So the word of a blamed rank counts
 * more. For a moment the scheduler awaits its death or its own failure, which is then why the job
 * fails. If neither comes, nobody is dead: only the connection between the two was lost. The world
 * makes new connections if it can be mended, or else begins again. If it may do neither, the job
 * fails for the reason of the rank that blames, and may be tried again. */
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static const int64_t second_ns = 1000000000;

void wefti_scheduler_end_blame(wefti_scheduler *s) {
    const wefti_abort_reason reason = s->blame.reason;
    const char *why = "";
    wefti_text text = {0};
    const int32_t rank =
        reason.failed >= 0 && reason.failed < s->taken ? reason.failed : s->blame.by;
    if (s->blame.of_connection && wefti_mend_reconnects(s, rank, reason.text, &why)) return;
    if (reason.status == WEFT_E_LOST && wefti_again_died(s, reason.failed, reason.text)) return;
    wefti_text_add(&text, "%s%s", reason.text, why);
    wefti_scheduler_abort_text(s, reason.status, reason.failed, &text);
}

/* Whether something is to be heard from `blamed` that counts more than what `rank` says. */
static bool can_say_more(const wefti_scheduler *s, int32_t rank, int32_t blamed) {
    if (s->state != WEFTI_SCHEDULER_RUNNING || blamed == rank) return false;
    /* In a world that can be mended some process may have died, whoever is blamed. */
    if (s->slots[rank].armed) return true;
    if (blamed < 0 || blamed >= s->taken) return false;
    return !wefti_has_left(&s->slots[blamed]) && !s->slots[blamed].gave_up;
}

/* A member that was lost, or late, may do better the next time. */
static weft_status status_of(weft_status status) {
    return status == WEFT_E_LOST || status == WEFT_E_TIMEOUT ? status : WEFT_E_PEER;
}

/* By the numbers that it knows: the seats may have others already. */
static bool means_itself(const wefti_scheduler *s, int32_t rank, const wefti_abort_reason *said) {
    return said->failed == WEFT_RANK_OWN || said->failed == s->slots[rank].told;
}

/* Whether it has lost its connection to a rank that has not left in peace: else their calls were
 * unlike. A rank may hear from another one that it is lost itself. */
static bool is_of_connection(const wefti_scheduler *s, int32_t rank,
                             const wefti_abort_reason *said) {
    const bool lost = said->status == WEFT_E_LOST;
    if ((!lost && said->status != WEFT_E_PEER) || means_itself(s, rank, said)) return false;
    if (said->failed >= 0 && said->failed < s->taken)
        return s->slots[said->failed].state != WEFTI_SLOT_PARTED;
    return lost || s->slots[rank].armed;
}

static void fill_in(const wefti_scheduler *s, int32_t rank, const wefti_abort_reason *said,
                    wefti_abort_reason *out) {
    wefti_text text = {0};
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " failed: %s", said->text);
    char *words = wefti_text_take(&text);
    out->status = status_of(said->status);
    out->failed = means_itself(s, rank, said) ? wefti_slot_rank(s, rank) : said->failed;
    (void)snprintf(out->text, sizeof out->text, "%s", words ? words : said->text);
    wefti_free(words);
}

/* A newcomer that cannot take its seat, since it is unlike the others, harms nobody: another one
 * may come. */
static void refuse_newcomer(wefti_scheduler *s, int32_t rank, const wefti_abort_reason *why) {
    wefti_member_slot *slot = &s->slots[rank];
    wefti_mend_refused(s, rank);
    wefti_client_refuse(s, slot->client, WEFT_E_MISMATCH, why->failed, "%s", why->text);
    slot->client = NULL;
    wefti_scheduler_newcomer_failed(s, rank, why->text);
}

static bool is_taking_its_seat(const wefti_scheduler *s, int32_t rank) {
    return wefti_is_new(&s->slots[rank]) && wefti_mend_phase(s) != WEFTI_MENDING_NOT;
}

/* It may have named another rank before, which it is unlike. */
bool wefti_scheduler_newcomer_left(wefti_scheduler *s, int32_t rank) {
    const wefti_abort_reason leaves = {
        .status = WEFT_E_PEER, .failed = WEFT_RANK_OWN, .text = "it has left"};
    wefti_abort_reason why;
    if (!is_taking_its_seat(s, rank)) return false;
    fill_in(s, rank, &leaves, &why);
    if (s->slots[rank].gave_up && wefti_scheduler_awaits_word(s)) why = s->blame.reason;
    refuse_newcomer(s, rank, &why);
    return true;
}

void wefti_scheduler_rank_gave_up(wefti_scheduler *s, int32_t rank,
                                  const wefti_abort_reason *reason) {
    if (is_taking_its_seat(s, rank) && means_itself(s, rank, reason)) {
        wefti_abort_reason why;
        fill_in(s, rank, reason, &why);
        refuse_newcomer(s, rank, &why);
        return;
    }
    /* A consequence of the death that is being mended. */
    if (wefti_mend_phase(s) == WEFTI_MENDING_COUNTING && !means_itself(s, rank, reason)) return;
    s->slots[rank].gave_up = true;
    if (wefti_scheduler_awaits_word(s) && rank != s->blame.reason.failed)
        return; /* not the first */
    fill_in(s, rank, reason, &s->blame.reason);
    s->blame.by = rank;
    s->blame.of_connection = is_of_connection(s, rank, reason);
    if (s->blame.of_connection)
        s->blame.reason.status = WEFT_E_LOST;
    else if (s->blame.reason.status == WEFT_E_LOST && !means_itself(s, rank, reason))
        s->blame.reason.status = WEFT_E_PEER;
    if (!can_say_more(s, rank, s->blame.reason.failed)) {
        wefti_scheduler_end_blame(s);
        return;
    }
    if (wefti_scheduler_awaits_word(s)) return; /* the time is as it was */
    s->blame.until_ns = wefti_now_ns() + WEFTI_WORD_SECONDS * second_ns;
}
