/* Members of a world whose scheduler dies, and is followed by another one that knows nothing. They
 * are threads of this process, and repair their world until it is whole. */
#ifndef WEFT_TEST_GATHERING_PEOPLE_H
#define WEFT_TEST_GATHERING_PEOPLE_H

#include "people.h"

enum { RANKS = 3, TARGET = 7 };

/* What ranks hold, they hold by the numbers of the world that was whole last. */
static inline void hold_all(person *p, int32_t size) {
    p->at.holds = p->holds;
    p->at.holds_count = 0;
    for (int32_t k = 0; k < size; k++)
        if (k != p->was) p->holds[p->at.holds_count++] = k;
}

/* One round of a repair. WEFT_PENDING: there is to be another one. The scheduler must know where
 * each rank was when the world was whole last. A process that was not there has nothing before the
 * world is whole with it, if that has another size. */
static inline weft_status repair(person *p) {
    weft_status status = wefti_member_mend(p->member, &p->at, &p->mend);
    if (status < 0) return status;
    const int32_t rank = wefti_member_rank(p->member), mine = rank + 10;
    WEFT_REQUIRE(p->mend.was[rank] == p->was, WEFT_E_CORRUPT, "rank %d was %d, not %d", (int)rank,
                 (int)p->was, (int)p->mend.was[rank]);
    const bool had = p->at.step >= 0 || !p->mend.resized;
    if (p->at.step == p->mend.target - 1) p->at.step++;
    p->at.ready = false;
    status = wefti_member_allgather(p->member, &mine, sizeof mine, p->cards);
    if (status < 0) return WEFT_PENDING; /* the next round says why, if it is no halt */
    p->at.step = p->mend.target;
    status = wefti_member_whole(p->member);
    if (status == WEFT_OK) p->was = rank;
    if (status == WEFT_OK && p->holds_all) hold_all(p, p->mend.size);
    if (status != WEFT_OK && !had) p->at.step = -1;
    return status;
}

static inline bool all_whole(const person *p) {
    const uint64_t whole = atomic_load(&p->whole);
    int32_t here = 0;
    for (int r = 0; r < p->count; r++) {
        if (atomic_load(&p->all[r].gone)) continue;
        if (atomic_load(&p->all[r].whole) != whole) return false;
        here++;
    }
    return whole > 0 && p->mend.size == here;
}

/* Makes steps, which take no time here, until all are in one whole world after the death. */
static inline weft_status live(person *p) {
    for (;;) {
        while (!wefti_member_is_halted(p->member)) {
            if (all_whole(p)) return WEFT_OK;
            weft_status status = wefti_member_check(p->member);
            if (status < 0) return status;
            usleep(200);
        }
        weft_status status = repair(p);
        if (status < 0) return status;
        if (status == WEFT_OK) atomic_store(&p->whole, wefti_member_generation(p->member));
    }
}

static inline void *survive(void *context) {
    person *p = context;
    note(p, live(p));
    atomic_store(&p->ended, true);
    return NULL;
}

static inline void *come(void *context) {
    person *p = context;
    note(p, wefti_member_join(&p->options, &p->member));
    p->was = -1;
    if (p->status >= 0) {
        wefti_member_arm(p->member, p->allows);
        note(p, live(p));
    }
    atomic_store(&p->ended, true);
    return NULL;
}

static inline void set_up(person *p, const char *address, int32_t rank, person *all) {
    memset(p, 0, sizeof *p);
    snprintf(p->address, sizeof p->address, "%s", address); /* it outlives the scheduler */
    p->options = test_member(p->address);
    p->options.rank = rank;
    p->options.facts = "weft 1";
    p->options.host = rank == 2 ? "there" : "here";
    p->allows = &keeps_size;
    p->all = all;
    p->count = RANKS;
}

/* Its process ends: it calls nobody any more. */
static inline void die(person *p) {
    wefti_caller *c = &p->member->caller;
    pthread_mutex_lock(&c->lock);
    wefti_caller_fail(c, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    (void)wefti_member_close(p->member, NULL);
}

static inline bool is_dead(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool dead = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return dead;
}
static inline bool gathers(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool so = s->gather.since_ns > 0;
    pthread_mutex_unlock(&s->lock);
    return so;
}

/* The port stays the same. */
static inline wefti_scheduler *follow(wefti_scheduler *s, wefti_scheduler_options *o) {
    o->port = wefti_scheduler_port(s);
    wefti_scheduler_stop(s);
    return start(o);
}

/* Options of a launcher in a job whose scheduler runs elsewhere and may be started again. */
static inline wefti_member_options launcher_elsewhere(const char *scheduler) {
    wefti_member_options o = test_member(scheduler);
    o.outlives = true;
    return o;
}

/* All that live have joined and can be mended, and stand where `at` says. */
static inline wefti_scheduler *elastic_world(const wefti_scheduler_options *o, person p[RANKS],
                                             const wefti_elastic *elastic) {
    wefti_scheduler *s = start(o);
    for (int r = 0; r < o->size; r++) {
        set_up(&p[r], wefti_scheduler_address(s), r, p);
        begin(&p[r], join);
    }
    for (int r = 0; r < o->size; r++) end_well(&p[r]);
    for (int r = 0; r < o->size; r++) {
        wefti_member_arm(p[r].member, elastic);
        p[r].at = (wefti_stand){.step = TARGET, .ready = false};
    }
    return s;
}

static inline wefti_scheduler *world(const wefti_scheduler_options *o, person p[RANKS]) {
    return elastic_world(o, p, &keeps_size);
}

/* The scheduler is gone at once, as after SIGKILL: nobody hears a goodbye, and nobody can join it
 * before it is stopped. */
static inline void kill_scheduler(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->state = WEFTI_SCHEDULER_LEFT;
    s->stopping = true;
    for (int64_t i = 0; i < s->client_count; i++) {
        s->clients[i]->slot = -1;
        wefti_client_drop(s, s->clients[i]);
    }
    pthread_mutex_unlock(&s->lock);
}

static inline wefti_scheduler *crash(wefti_scheduler *s, wefti_scheduler_options *o) {
    kill_scheduler(s);
    return follow(s, o);
}

#endif
