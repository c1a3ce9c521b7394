/* Worlds that begin again.
 *
 * All ranks have left, and one comes for the next world: programs may join several.
 *
 * Or a process is lost to a world that cannot be mended: its ranks have not said yet that they can
 * be, or never say so. Then all processes of the job are started again, which counts as one
 * restart. Those that live hear that their world has failed, and their launchers end them. While
 * the first world is forming, only the lost process is started again: the others have heard of
 * nothing yet. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

weft_status wefti_again_create(wefti_scheduler *s) {
    WEFT_NEW_ARRAY(s->again.lost, int32_t, s->options.size);
    WEFT_NEW_ARRAY(s->again.ending, bool, s->options.size);
    return WEFT_OK;
}

void wefti_again_free(wefti_scheduler *s) {
    wefti_free(s->again.lost);
    wefti_free(s->again.ending);
}

/* --- the next world --- */

static void forget_world(wefti_scheduler *s) {
    const int64_t now = wefti_now_ns();
    for (int32_t i = 0; i < s->taken; i++) {
        wefti_client *client = s->slots[i].client;
        wefti_slot_clear(&s->slots[i]);
        s->slots[i] = (wefti_member_slot){0};
        if (!client) continue;
        client->slot = -1;
        wefti_client_end(client);
    }
    wefti_scheduler_forget_parted(s);
    wefti_mend_end(s);
    s->past = s->generation;
    s->generation = s->answered = 0;
    wefti_shared_body_release(s->answer);
    s->answer = NULL;
    s->taken = 0;
    wefti_alike_next_world(s);
    s->alike.refusal[0] = '\0';
    wefti_seats_clear(s);
    s->ranked = false;
    s->allgather_since_ns = s->checked_ns = 0;
    s->start_ns = now;
    wefti_liveness_begin(&s->live, 0, now);
    s->state = WEFTI_SCHEDULER_FORMING;
    pthread_cond_broadcast(&s->changed);
}

void wefti_again_next_world(wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].number < s->options.size)
            s->again.lost[s->slots[r].number] = s->slots[r].deaths;
    forget_world(s);
    s->again.follows = true;
}

/* --- the same one --- */

/* A process that has ended for good will not come. */
static bool may_begin(const wefti_scheduler *s, int32_t number) {
    return wefti_restart_may(&s->restarts, number, wefti_now_ns()) && s->options.hosted_by < 0 &&
           !s->deposed && !s->has_ended;
}

/* A world whose ranks came from an earlier scheduler has lost processes that this one has not
 * counted. */
static bool is_own(const wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].came) return false;
    return true;
}

/* One that gave up because of another rank leaves as well, and comes again with all. */
static bool some_left_in_peace(const wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++)
        if (s->live.ranks[r].state == WEFTI_LIFE_PARTED) return true;
    return false;
}

static int32_t number_of(const wefti_scheduler *s, int32_t rank) {
    return rank >= 0 && rank < s->taken ? s->slots[rank].number : WEFTI_RESTART_NOBODY;
}

bool wefti_again_is_possible(const wefti_scheduler *s, int32_t rank) {
    const wefti_mending_state *m = &s->mend;
    const bool mends = m->was || m->gathered || (m->seats && m->armed >= s->taken);
    return s->state == WEFTI_SCHEDULER_RUNNING && may_begin(s, number_of(s, rank)) && !mends &&
           !some_left_in_peace(s) && is_own(s);
}

static void end_all(wefti_scheduler *s) {
    wefti_again_state *a = &s->again;
    for (int32_t n = 0; n < s->options.size; n++) {
        a->ending[n] = true;
        if (!s->ranked) a->lost[n]++;
    }
    for (int32_t r = 0; r < s->taken && s->ranked; r++)
        a->lost[s->slots[r].number] = s->slots[r].deaths + 1;
}

static void tell_ranks(wefti_scheduler *s, int32_t rank, const char *text) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    char words[WEFTI_TEXT_MAX + 1];
    (void)snprintf(words, sizeof words, "%.3900s; all ranks are started again", text);
    const size_t bytes = wefti_abort_reason_encode(WEFT_E_LOST, rank, words, body);
    for (int32_t r = 0; r < s->taken; r++)
        if (s->slots[r].client)
            wefti_client_send(s, s->slots[r].client, WEFTI_FRAME_ABORT, body, bytes);
}

static void tell_launchers(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->keeps && c->state < WEFTI_CLIENT_GONE) wefti_keep_say(s, c);
    }
}

/* False: no memory to count it. `number`: of the process that was lost. */
static bool begin(wefti_scheduler *s, int32_t rank, int32_t number, const char *text) {
    wefti_span seats;
    const bool leaves = wefti_keep_leaves_out(s, number, &seats);
    if (!leaves && !wefti_restart_take(&s->restarts, number, wefti_now_ns())) return false;
    wefti_restart_went_on(&s->restarts);
    (void)snprintf(s->again.text, sizeof s->again.text, "%s", text);
    end_all(s);
    tell_ranks(s, rank, text);
    forget_world(s);
    tell_launchers(s);
    if (leaves) wefti_keep_hand_over(s, &seats);
    return true;
}

bool wefti_again_died(wefti_scheduler *s, int32_t rank, const char *text) {
    if (!wefti_again_is_possible(s, rank)) return false;
    return begin(s, rank, number_of(s, rank), text);
}

/* --- launchers --- */

static void release_seat(wefti_scheduler *s, int32_t number) {
    const int32_t seat = wefti_seats_of_number(s, number);
    if (seat < 0) return;
    wefti_client *client = s->slots[seat].client;
    wefti_scheduler_release_slot(s, seat);
    client->slot = -1;
    wefti_client_drop(s, client);
}

/* One that has not come yet, or waited for the others. Where worlds follow each other, the others
 * have been in one already. */
static wefti_again lost_while_forming(wefti_scheduler *s, const wefti_end *end, int starts) {
    wefti_again_state *a = &s->again;
    const int32_t n = end->rank;
    if (a->lost[n] >= starts) return WEFTI_AGAIN_YES; /* asked once more */
    if (s->gather.since_ns || !may_begin(s, n)) return WEFTI_AGAIN_NO;
    if (a->follows) return begin(s, n, n, end->text) ? WEFTI_AGAIN_ALL : WEFTI_AGAIN_NO;
    wefti_span seats = {n, 1};
    const bool leaves = wefti_keep_leaves_out(s, n, &seats);
    if (!leaves && !wefti_restart_take(&s->restarts, n, wefti_now_ns())) return WEFTI_AGAIN_NO;
    a->lost[n] = starts;
    for (int32_t i = 0; i < seats.count; i++) release_seat(s, seats.first + i);
    if (leaves) wefti_keep_hand_over(s, &seats);
    return WEFTI_AGAIN_YES;
}

/* The launcher may see an end before the connection of that rank has closed. */
static void lose_rank(wefti_scheduler *s, const wefti_end *end, int starts) {
    const int32_t seat = wefti_slot_of_process(s, end->rank);
    if (seat < 0 || s->slots[seat].deaths >= starts || !wefti_again_is_possible(s, seat)) return;
    wefti_scheduler_rank_ended_so(s, seat, end);
}

wefti_again wefti_again_awaits(wefti_scheduler *s, const wefti_end *end, int starts) {
    wefti_again_state *a = &s->again;
    const int32_t n = end->rank;
    const bool is_loss = wefti_is_loss(end->code, end->signal);
    if (n < 0 || n >= s->options.size) return WEFTI_AGAIN_NO;
    if (is_loss && s->state == WEFTI_SCHEDULER_RUNNING) lose_rank(s, end, starts);
    if (s->state != WEFTI_SCHEDULER_FORMING) return WEFTI_AGAIN_NO;
    wefti_again answer = WEFTI_AGAIN_ALL;
    if (!a->ending[n]) answer = is_loss ? lost_while_forming(s, end, starts) : WEFTI_AGAIN_NO;
    if (answer == WEFTI_AGAIN_NO) return answer;
    a->ending[n] = false;
    if (a->lost[n] < starts) a->lost[n] = starts;
    return answer;
}

void wefti_again_came(wefti_scheduler *s, int32_t number) {
    if (number >= 0 && number < s->options.size) s->again.ending[number] = false;
}

int32_t wefti_again_deaths(const wefti_scheduler *s, int32_t number) {
    return number >= 0 && number < s->options.size ? s->again.lost[number] : 0;
}
