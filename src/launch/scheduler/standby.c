/* Two schedulers for one job: the scheduler, and one that stands by.
 *
 * The one that stands by takes nobody but members that come back from a lost scheduler, with their
 * rank and generation, or that have waited there for a world to form. All other callers find a
 * closed connection, and try the other address. It begins the world once it has more than half of
 * the ranks, or half of them with rank 0. Until then it keeps the members for the heartbeat time
 * and 2 s, and then sends them away, to try the first scheduler once more.
 *
 * Each of the two needs that majority for everything that makes a new generation. A rank has one
 * connection, and a mending needs a word from every rank that is counted. So two schedulers cannot
 * both go on with the job: docs/design/standby.md. */
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

static const int64_t second_ns = 1000000000, word_ns = (int64_t)WEFTI_WORD_SECONDS * 1000000000;

static bool has_world(const wefti_scheduler *s) {
    return s->state != WEFTI_SCHEDULER_FORMING || s->past > 0;
}

static bool stands_by(const wefti_scheduler *s) {
    return s->options.stands_by && !has_world(s);
}

static bool is_of_launcher(uint32_t kind) {
    return kind == WEFTI_FRAME_REGISTER || kind == WEFTI_FRAME_ENDED || kind == WEFTI_FRAME_WATCH ||
           kind == WEFTI_FRAME_KEEP || kind == WEFTI_FRAME_LOST || kind == WEFTI_FRAME_HEALTH;
}

/* A new process waits here only with others that have lost the first scheduler. All of a job form
 * its world, and each is with one scheduler, so two of them cannot both form one. */
static bool may_wait(const wefti_scheduler *s, const wefti_join *join) {
    if (join->generation) return true;
    return !s->gather.since_ns && (join->waited || s->taken > 0);
}

bool wefti_standby_turns_away(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_join join;
    bool away = s->deposed;
    if (stands_by(s) && frame->kind == WEFTI_FRAME_JOIN)
        away = wefti_join_decode(frame, &join) >= 0 && !may_wait(s, &join);
    else if (stands_by(s) && is_of_launcher(frame->kind))
        away = s->taken == 0;
    if (away) wefti_client_drop(s, c);
    return away;
}

bool wefti_standby_may_begin(const wefti_scheduler *s) {
    bool has_first = false;
    int32_t size = s->options.size;
    if (!s->options.has_other) return true;
    if (s->gather.since_ns) return wefti_gather_may_begin(s);
    for (int32_t i = 0; i < s->taken; i++) {
        if (!s->slots[i].join.generation) return false; /* a world forms, which needs all */
        has_first = has_first || s->slots[i].join.number == 0;
        if (s->slots[i].join.size > 0) size = s->slots[i].join.size;
    }
    return wefti_is_majority(s->taken, has_first, size);
}

/* Its connection may be closed at the other end, and that not have been read yet. */
static bool is_connected(const wefti_client *c) {
    struct pollfd end = {.fd = c->link.fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) == 0 || !(end.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* Where one rank is silent, others whose last heartbeats are late may be as well. */
static bool is_heard(const wefti_scheduler *s, const wefti_life *life) {
    return wefti_now_ns() - life->heard_ns < s->heartbeat_ns / 2;
}

/* Its rank in the world that was whole last, or in a later one that may have been; -1: it was not
 * there. */
static int32_t place_of(const wefti_scheduler *s, int32_t rank, bool in_later) {
    if (in_later) return s->slots[rank].later - 1;
    if (wefti_is_new(&s->live.ranks[rank])) return -1;
    return s->mend.seats ? s->mend.seats[rank].was : rank;
}

/* Without `rank`, which is silent, or whose connection has ended. */
static bool keeps_majority_of(const wefti_scheduler *s, int32_t rank, bool silent, bool of_later) {
    int32_t here = 0;
    bool has_first = false;
    for (int32_t r = 0; r < s->taken; r++) {
        const wefti_member_slot *slot = &s->slots[r];
        const wefti_life *life = &s->live.ranks[r];
        const int32_t place = place_of(s, r, of_later);
        const bool is_here = slot->client && !wefti_is_dead(life) && is_connected(slot->client) &&
                             (!silent || is_heard(s, life));
        if (r == rank || place < 0 || !(wefti_has_left(life) || is_here)) continue;
        here++;
        has_first = has_first || place == 0;
    }
    const int32_t last = s->mend.seats ? s->mend.world.whole : s->taken;
    return wefti_is_majority(here, has_first,
                             of_later ? s->mend.later_size - s->doubt.gone_later
                                      : last - s->doubt.gone);
}

/* Of the world that was whole last: the one that is being made may be smaller, and the other
 * scheduler does not know it. */
static bool keeps_majority(const wefti_scheduler *s, int32_t rank, bool silent) {
    if (!keeps_majority_of(s, rank, silent, false)) return false;
    return !s->mend.later_size || keeps_majority_of(s, rank, silent, true);
}

/* Its ranks may have left long before it noticed. */
static bool was_paused(const wefti_scheduler *s) {
    return s->paused_ns && wefti_now_ns() - s->paused_ns < s->heartbeat_ns;
}

/* After a pause of this process its members may have left it. So those that are still here may find
 * the others at the other scheduler. */
static void release_members(wefti_scheduler *s) {
    for (int32_t r = 0; r < s->taken; r++) {
        wefti_client *client = s->slots[r].client;
        if (!client) continue;
        s->slots[r].client = NULL;
        client->slot = -1;
        wefti_client_drop(s, client);
    }
}

static bool is_standby(const wefti_scheduler *s, const wefti_client *c) {
    return !c->keep.launcher && c->watch.first >= s->options.size;
}

/* The other scheduler hears why, and so need not wait for this one to be started again. */
static void tell_standby(wefti_scheduler *s, wefti_client *c) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    const wefti_abort_reason *why = &s->reason;
    wefti_client_send(s, c, WEFTI_FRAME_ABORT, body,
                      wefti_abort_reason_encode(why->status, why->failed, why->text, body));
    wefti_client_end(c);
}

static void release_launchers(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->state == WEFTI_CLIENT_GONE || c->watch.count == 0) continue;
        if (is_standby(s, c))
            tell_standby(s, c);
        else
            wefti_client_drop(s, c);
    }
}

/* Ends the job here. */
static void depose(wefti_scheduler *s, int32_t rank, weft_status status, const char *text) {
    wefti_text why = {0};
    wefti_text_add(&why,
                   "%s; no more than half of the ranks are left here, so that the other scheduler "
                   "may have the job",
                   text);
    s->deposed = true;
    if (was_paused(s)) release_members(s);
    wefti_scheduler_abort_text(s, status, rank, &why);
    release_launchers(s);
}

/* --- doubt ---
 *
 * The majority of the ranks is lost. They may be with the other scheduler now. Or their processes
 * have ended, and then they are on no side. A launcher's word tells, for which this scheduler waits
 * a moment.
 *
 * The word counts if it comes soon after the connection has closed. By then the other scheduler has
 * begun nothing with this rank: it waits longer for further ranks (gather.c). Until the doubt ends,
 * no seat is given up and none is filled, so that the world cannot become whole. */

void wefti_doubt_forget(wefti_scheduler *s) {
    wefti_free(s->doubt.lost);
    s->doubt = (wefti_doubt){0};
}

static void note_lost(wefti_scheduler *s, int32_t rank) {
    wefti_doubt *d = &s->doubt;
    const wefti_member_slot *slot = &s->slots[rank];
    if (WEFT_GROW(d->lost, d->lost_count, d->lost_room) < 0) return; /* no word counts then */
    d->lost[d->lost_count++] = (wefti_lost_process){.number = slot->number,
                                                    .starts = slot->deaths + 1,
                                                    .since_ns = wefti_now_ns(),
                                                    .of_whole = place_of(s, rank, false) >= 0,
                                                    .of_later = place_of(s, rank, true) >= 0};
}

/* A death that cannot be mended ends the job in any case. */
static bool may_mend(const wefti_scheduler *s) {
    return s->mend.seats && s->mend.armed >= s->taken && !wefti_mend_some_left(s) &&
           (s->options.restarts > 0 || wefti_mend_is_elastic(s));
}

static bool begin_doubt(wefti_scheduler *s, int32_t rank, const char *text) {
    wefti_doubt *d = &s->doubt;
    const int64_t now_ns = wefti_now_ns();
    if (!may_mend(s) || was_paused(s)) return false;
    if (!d->since_ns) {
        d->since_ns = now_ns;
        d->rank = rank;
        (void)snprintf(d->text, sizeof d->text, "%s", text);
    }
    const int64_t last_ns = d->since_ns + s->heartbeat_ns;
    d->until_ns = now_ns + word_ns < last_ns ? now_ns + word_ns : last_ns;
    return true;
}

static void check_doubt(wefti_scheduler *s, int64_t now_ns) {
    wefti_doubt *d = &s->doubt;
    if (!wefti_is_in_doubt(s)) return;
    if (keeps_majority(s, WEFT_RANK_NONE, false)) {
        d->since_ns = d->until_ns = 0;
        wefti_mend_give_up_seats(s, now_ns);
        wefti_scheduler_take_waiting(s);
    } else if (now_ns > d->until_ns) {
        d->since_ns = d->until_ns = 0;
        depose(s, d->rank, WEFT_E_LOST, d->text);
    }
}

void wefti_doubt_ended(wefti_scheduler *s, int32_t number, int32_t starts) {
    wefti_doubt *d = &s->doubt;
    for (int64_t i = 0; i < d->lost_count && !was_paused(s); i++) {
        wefti_lost_process *p = &d->lost[i];
        if (p->number != number || p->starts > starts || p->known) continue;
        if (wefti_now_ns() - p->since_ns > word_ns) continue;
        p->known = true;
        d->gone += p->of_whole;
        d->gone_later += p->of_later;
    }
    check_doubt(s, wefti_now_ns());
}

bool wefti_standby_goes_on(wefti_scheduler *s, int32_t rank, weft_status status, const char *text) {
    if (!s->options.has_other || s->deposed) return true;
    if (status == WEFT_E_LOST) note_lost(s, rank);
    if (keeps_majority(s, rank, status == WEFT_E_TIMEOUT)) return true;
    if (status == WEFT_E_LOST && begin_doubt(s, rank, text)) return true;
    depose(s, rank, status, text);
    return false;
}

bool wefti_standby_has_strayed(const wefti_scheduler *s, const wefti_join *join) {
    const int32_t rank = s->ranked ? wefti_slot_of_process(s, join->number) : -1;
    if (!s->options.has_other || rank < 0 || !join->generation) return false;
    if (!wefti_same_process(join, &s->slots[rank].join)) return false;
    const bool is_older = join->generation < s->own && join->generation != s->slots[rank].came;
    return is_older || join->generation > s->generation;
}

bool wefti_standby_hands_over(const wefti_scheduler *s) {
    return s->deposed || stands_by(s);
}

static void send_away(wefti_scheduler *s) {
    while (s->taken > 0) {
        wefti_client *client = s->slots[s->taken - 1].client;
        wefti_scheduler_release_slot(s, s->taken - 1);
        client->slot = -1;
        wefti_client_drop(s, client);
    }
    wefti_gather_end(s);
    s->generation = s->options.generation;
}

void wefti_standby_check(wefti_scheduler *s, int64_t now_ns) {
    check_doubt(s, now_ns);
    if (!stands_by(s)) return;
    if (s->taken > 0 && now_ns - s->start_ns > s->heartbeat_ns + 2 * second_ns &&
        !wefti_standby_may_begin(s))
        send_away(s);
    if (s->taken == 0) s->start_ns = now_ns; /* the time for joining begins with the first member */
}

/* --- from any thread --- */

bool wefti_scheduler_is_idle(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool idle = stands_by(s) && s->taken == 0;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

bool wefti_scheduler_has_world(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool has = has_world(s);
    pthread_mutex_unlock(&s->lock);
    return has;
}

bool wefti_scheduler_is_deposed(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool deposed = s->deposed;
    pthread_mutex_unlock(&s->lock);
    return deposed;
}

bool wefti_scheduler_has_launcher(wefti_scheduler *s) {
    bool has = false;
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < s->client_count; i++) {
        const wefti_client *c = s->clients[i];
        has = has || (c->state < WEFTI_CLIENT_GONE && c->watch.count > 0 && !is_standby(s, c));
    }
    pthread_mutex_unlock(&s->lock);
    return has;
}
