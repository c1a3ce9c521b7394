/* Launchers that add processes to a running job (weft launch --add).
 *
 * Such a launcher asks for further seats. Once the job makes steps, it gets numbers for its
 * processes, from the size of the first world on. No number is given twice, so what a launcher says
 * of a process never meets another one. Each process then joins with its number, and the world
 * grows, up to the number of ranks that the job allows. */
#include "launch/scheduler/state.h"

static bool adds(const wefti_scheduler *s, const wefti_client *c) {
    return c->keeps && c->state == WEFTI_CLIENT_OPEN && c->watch.first >= s->options.size;
}

/* Seats of processes that other launchers add, and that have not come yet. */
static int32_t promised(const wefti_scheduler *s) {
    int32_t coming = 0;
    for (int64_t i = 0; i < s->client_count; i++)
        if (adds(s, s->clients[i])) coming += s->clients[i]->coming;
    return coming;
}

static bool is_armed(const wefti_scheduler *s) {
    return s->mend.seats && s->mend.armed >= s->taken;
}

/* Ranks say before their first step whether their world can change. */
static bool keeps_its_size(const wefti_scheduler *s) {
    if (is_armed(s)) return !wefti_mend_is_elastic(s);
    for (int32_t r = 0; r < s->taken; r++)
        if (!s->slots[r].armed && s->live.ranks[r].standing.step > 0) return true;
    return s->taken < 2;
}

static void refuse_full(wefti_scheduler *s, wefti_client *c, int32_t room) {
    if (room > 0)
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "%d processes are too many: the job may have %d ranks, and has room "
                            "for %d more",
                            (int)c->keep.seats.count, (int)wefti_most_ranks(s), (int)room);
    else
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "the job is full: it may have %d ranks (recovery.max sets another "
                            "number), and none is missing",
                            (int)wefti_most_ranks(s));
}

/* False: it has its answer. */
static bool fits(wefti_scheduler *s, wefti_client *c) {
    const int32_t room = wefti_most_ranks(s) - s->taken - promised(s);
    if (keeps_its_size(s))
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this job keeps its size: it runs without recovery.elastic");
    else if (wefti_mend_some_left(s))
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "ranks of this job have ended their training already");
    else if (c->keep.seats.count > room)
        refuse_full(s, c, room);
    else if (s->numbers > WEFTI_RANKS_MAX - c->keep.seats.count)
        wefti_client_refuse(s, c, WEFT_E_MISMATCH, WEFT_RANK_NONE,
                            "this job has had %d processes: no more can be told apart",
                            (int)s->numbers);
    else
        return true;
    return false;
}

static void count_coming(const wefti_scheduler *s, wefti_client *c) {
    c->coming = 0;
    for (int32_t i = 0; i < c->watch.count; i++)
        c->coming += wefti_slot_of_process(s, c->watch.first + i) < 0;
}

/* Another launcher that has some of its numbers: an earlier scheduler gave them to one of the two,
 * and this one, which did not know that, to the other. */
static bool is_in_conflict(const wefti_scheduler *s, const wefti_client *c) {
    const wefti_span *its = &c->keep.seats;
    for (int64_t i = 0; i < s->client_count; i++) {
        const wefti_client *other = s->clients[i];
        const wefti_span *seats = &other->watch;
        if (adds(s, other) && other->keep.launcher != c->keep.launcher &&
            seats->first < its->first + its->count && its->first < seats->first + seats->count)
            return true;
    }
    return false;
}

/* A launcher that lost its connection, or its scheduler, comes back with its numbers. */
static void come_back(wefti_scheduler *s, wefti_client *c) {
    if (is_in_conflict(s, c)) {
        wefti_client_refuse(s, c, WEFT_E_LOST, WEFT_RANK_NONE,
                            "the numbers from %d on, which an earlier scheduler of this job has "
                            "given, are another launcher's by now",
                            (int)c->keep.seats.first);
        return;
    }
    c->watch = c->keep.seats;
    count_coming(s, c);
    wefti_keep_say(s, c);
}

bool wefti_add_knows(wefti_scheduler *s, const wefti_keep *keep) {
    const int32_t end = keep->seats.first + keep->seats.count;
    if (keep->again && keep->seats.first >= s->options.size && end > s->numbers) s->numbers = end;
    return end <= s->numbers;
}

void wefti_add_count(wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++)
        if (adds(s, s->clients[i])) count_coming(s, s->clients[i]);
}

void wefti_add_try(wefti_scheduler *s, wefti_client *c) {
    if (s->state == WEFTI_SCHEDULER_FORMING || (s->mend.seats && s->mend.gathered)) return;
    if (c->keep.seats.first >= 0) {
        come_back(s, c);
        return;
    }
    if (s->state == WEFTI_SCHEDULER_FAILED) {
        wefti_client_refuse(s, c, s->reason.status, s->reason.failed, "this job has failed: %s",
                            s->reason.text);
        return;
    }
    if (s->state != WEFTI_SCHEDULER_RUNNING || wefti_mend_phase(s) != WEFTI_MENDING_NOT) return;
    if (!is_armed(s) && !keeps_its_size(s)) return; /* the ranks set up */
    if (!fits(s, c)) return;
    c->watch = (wefti_span){s->numbers, c->keep.seats.count};
    c->coming = c->watch.count;
    s->numbers += c->watch.count;
    wefti_keep_say(s, c);
}

void wefti_add_came(wefti_scheduler *s, int32_t number) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        const bool its =
            adds(s, c) && number >= c->watch.first && number < c->watch.first + c->watch.count;
        if (its && c->coming > 0) c->coming--;
    }
}
