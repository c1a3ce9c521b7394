/* Watching a world that runs: which rank has died, stopped, or keeps the others waiting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

enum { NAMED = 8 }; /* ranks in one message */

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
    wefti_member_slot *slot = &s->slots[rank];
    wefti_slot_happens(slot, WEFTI_SLOT_DIES);
    if (slot->gave_up && !slot->armed && !wefti_again_is_possible(s, rank))
        return; /* it has said why */
    wefti_text text = {0};
    wefti_slot_name(s, rank, &text);
    wefti_text_add(&text, " died: %s; it was ", why);
    wefti_slot_describe(slot, wefti_now_ns(), &text);
    end_of(s, rank, WEFT_E_LOST, &text);
}

void wefti_scheduler_rank_ended_so(wefti_scheduler *s, int32_t rank, const wefti_end *end) {
    char how[64];
    (void)snprintf(how, sizeof how, "it was ended by signal %d", (int)end->signal);
    if (!end->signal) (void)snprintf(how, sizeof how, "exit code %d", (int)end->code);
    wefti_scheduler_rank_died(s, rank, how);
}

void wefti_scheduler_newcomer_failed(wefti_scheduler *s, int32_t rank, const char *why) {
    wefti_text text = {0};
    wefti_slot_happens(&s->slots[rank], WEFTI_SLOT_DIES);
    wefti_text_add(&text, "%.3000s; this was before it had taken its seat", why);
    end_of(s, rank, WEFT_E_LOST, &text);
}

void wefti_scheduler_goodbye(wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].client)
            wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_GOODBYE, NULL, 0);
}

/* Whether some rank has not left. Each rank that leaves asks this: the search goes on where it
 * ended. */
static bool some_stays(wefti_scheduler *s) {
    for (int32_t looked = 0; looked < s->taken; looked++, s->staying++) {
        if (s->staying >= s->taken) s->staying = 0;
        if (!wefti_has_left(&s->slots[s->staying])) return true;
    }
    return false;
}

void wefti_scheduler_rank_left(wefti_scheduler *s, int32_t rank) {
    if (wefti_scheduler_newcomer_left(s, rank)) return;
    if (wefti_mend_phase(s) != WEFTI_MENDING_NOT) wefti_mend_left(s, rank);
    wefti_slot_happens(&s->slots[rank], WEFTI_SLOT_LEAVES);
    if (wefti_scheduler_awaits_word(s) && (rank == s->blame.reason.failed || !some_stays(s)))
        wefti_scheduler_end_blame(s);
    if (s->state != WEFTI_SCHEDULER_RUNNING) return;
    if (!s->slots[rank].gave_up) wefti_slot_happens(&s->slots[rank], WEFTI_SLOT_PARTS);
    if (some_stays(s)) return;
    wefti_scheduler_compare_all(s);
    if (s->state != WEFTI_SCHEDULER_RUNNING) return;
    wefti_scheduler_goodbye(s);
    s->state = WEFTI_SCHEDULER_LEFT;
    pthread_cond_broadcast(&s->changed);
    wefti_scheduler_take_waiting(s);
}

static bool check_silence(wefti_scheduler *s, int64_t now) {
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        if (slot->state >= WEFTI_SLOT_LEFT || now - slot->heard_ns <= s->heartbeat_ns) continue;
        wefti_text text = {0};
        wefti_slot_name(s, r, &text);
        wefti_text_add(&text,
                       " has not been heard of for %.1f s: it is stopped, or its host or network "
                       "is down; it was ",
                       (double)(now - slot->heard_ns) * 1e-9);
        wefti_slot_describe(slot, now, &text);
        end_of(s, r, WEFT_E_TIMEOUT, &text);
        return true;
    }
    return false;
}

/* The rank that has waited longest, -1: none waits. */
static int32_t longest_wait(const wefti_scheduler *s) {
    int32_t longest = -1;
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        if (wefti_has_left(slot) || !slot->standing.waiting) continue;
        if (longest < 0 || slot->standing.since_ns < s->slots[longest].standing.since_ns)
            longest = r;
    }
    return longest;
}

static bool same_transfer(const wefti_member_slot *a, const wefti_member_slot *b) {
    return strcmp(a->standing.what, b->standing.what) == 0;
}

static int by_place(const void *a, const void *b, void *slots) {
    const wefti_member_slot *of = slots;
    return strcmp(of[*(const int32_t *)a].standing.what, of[*(const int32_t *)b].standing.what);
}

/* For each rank that waits, how many wait where it waits; wefti_free. NULL: no memory. */
static int32_t *find_company(const wefti_scheduler *s) {
    int32_t *sorted = wefti_calloc((size_t)s->taken, sizeof *sorted), waiting = 0;
    int32_t *company = sorted ? wefti_calloc((size_t)s->taken, sizeof *company) : NULL;
    for (int32_t r = 0; company && r < s->taken; r++)
        if (!wefti_has_left(&s->slots[r]) && s->slots[r].standing.waiting) sorted[waiting++] = r;
    if (company) qsort_r(sorted, (size_t)waiting, sizeof *sorted, by_place, s->slots);
    for (int32_t i = 0, end; company && i < waiting; i = end) {
        for (end = i + 1; end < waiting && by_place(&sorted[i], &sorted[end], s->slots) == 0;)
            end++;
        for (int32_t k = i; k < end; k++) company[sorted[k]] = end - i;
    }
    wefti_free(sorted);
    return company;
}

/* Which ranks keep `victim` waiting: ranks that have left or compute (for long, if any rank does);
 * else ranks that wait in another transfer than most; else ranks that are behind. */
typedef struct suspicion {
    bool computing, elsewhere, behind;
    int64_t since_before; /* counts only ranks that compute since before this time */
    int32_t place;        /* a rank that waits where most do */
    uint64_t ahead;       /* the most transfers done */
} suspicion;

static suspicion suspect(const wefti_scheduler *s, int64_t now) {
    suspicion by = {.since_before = now, .place = -1};
    int32_t most = 0;
    bool tie = false, one_place = true;
    uint64_t least = UINT64_MAX;
    int32_t *company = find_company(s);
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        if (wefti_has_left(slot) || !slot->standing.waiting) {
            by.computing = true;
            if (!wefti_has_left(slot) && now - slot->standing.since_ns > s->wait_ns / 2)
                by.since_before = now - s->wait_ns / 2;
            continue;
        }
        int32_t with = company ? company[r] : 1;
        if (by.place >= 0 && !same_transfer(slot, &s->slots[by.place])) one_place = false;
        if (with > most) {
            tie = false;
            by.place = r;
            most = with;
        } else if (with == most && !same_transfer(slot, &s->slots[by.place]))
            tie = true;
        if (slot->standing.done > by.ahead) by.ahead = slot->standing.done;
        if (slot->standing.done < least) least = slot->standing.done;
    }
    wefti_free(company);
    by.elsewhere = !by.computing && !one_place && !tie;
    by.behind = !by.computing && !by.elsewhere && least < by.ahead;
    return by;
}

static bool is_culprit(const wefti_scheduler *s, int32_t r, const suspicion *by) {
    const wefti_member_slot *slot = &s->slots[r];
    const bool left = wefti_has_left(slot);
    bool computes = left || !slot->standing.waiting;
    if (by->computing) return computes && (left || slot->standing.since_ns <= by->since_before);
    if (by->elsewhere) return !same_transfer(slot, &s->slots[by->place]);
    return by->behind && slot->standing.done < by->ahead;
}

static void accuse(wefti_scheduler *s, int32_t victim, int64_t now) {
    suspicion by = suspect(s, now);
    wefti_text text = {0};
    int named = 0;
    int32_t culprit = WEFT_RANK_NONE; /* if there is only one */
    for (int32_t r = 0; r < s->taken; r++) {
        if (!is_culprit(s, r, &by) || ++named > NAMED) continue;
        culprit = named == 1 ? r : WEFT_RANK_NONE;
        wefti_text_add(&text, named > 1 ? "; " : "");
        wefti_slot_name(s, r, &text);
        wefti_text_add(&text, " keeps the others waiting: it %s",
                       wefti_has_left(&s->slots[r]) ? "has left" : "is ");
        if (!wefti_has_left(&s->slots[r])) wefti_slot_describe(&s->slots[r], now, &text);
    }
    if (named > NAMED) wefti_text_add(&text, "; and %d more", named - NAMED);
    wefti_text_add(&text, named ? ", while " : "no rank gets on, and none is behind the others: ");
    wefti_slot_name(s, victim, &text);
    wefti_text_add(&text, " is ");
    wefti_slot_describe(&s->slots[victim], now, &text);
    wefti_scheduler_abort_text(s, WEFT_E_TIMEOUT, culprit, &text);
}

/* Somebody has left, and all others wait, and nothing comes to any of them: nobody will ever answer
 * them. What one transfer moves may take longer than heartbeats do. Only what ranks have said
 * counts: a wait may have ended since. */
static bool deserted(const wefti_scheduler *s) {
    bool left = false;
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        left = left || wefti_has_left(slot);
        if (wefti_has_left(slot)) continue;
        const wefti_standing *standing = &slot->standing;
        int64_t since =
            standing->since_ns > standing->moved_ns ? standing->since_ns : standing->moved_ns;
        if (!slot->standing.waiting || slot->said_ns - since < s->heartbeat_ns) return false;
    }
    return left;
}

void wefti_scheduler_check_ranks(wefti_scheduler *s, int64_t now) {
    /* After a pause of our own (this process was stopped, or the machine slept) what the others
     * said meanwhile is read first. */
    if (now - s->looked_ns > 1000000000)
        for (int32_t r = 0; r < s->taken; r++) s->slots[r].heard_ns = now;
    s->looked_ns = now;
    if (check_silence(s, now) || wefti_mend_phase(s) == WEFTI_MENDING_COUNTING) return;
    int32_t victim = longest_wait(s);
    if (victim < 0) return;
    /* By then all others have said where they stand since the time was up. */
    int64_t grace = s->heartbeat_ns / 3;
    bool too_long = now - s->slots[victim].standing.since_ns > s->wait_ns + grace;
    if (too_long || deserted(s)) accuse(s, victim, now);
}
