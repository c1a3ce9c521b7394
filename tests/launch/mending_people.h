/* Members of a world that is mended, as threads of this process. One "dies" when its connection is
 * cut. */
#ifndef WEFT_TEST_MENDING_PEOPLE_H
#define WEFT_TEST_MENDING_PEOPLE_H

#include "people.h"

/* All of a recovery, but the states. */
static inline void *recover(void *context) {
    person *p = context;
    note(p, wefti_member_mend(p->member, &p->at, &p->mend));
    const int32_t mine = wefti_member_rank(p->member) + 10;
    if (p->status >= 0) note(p, wefti_member_allgather(p->member, &mine, sizeof mine, p->cards));
    if (p->status >= 0) note(p, wefti_member_whole(p->member));
    return NULL;
}

/* What all of them run. */
static inline const wefti_identity *same_job(void) {
    static wefti_identity job;
    if (!job.bytes) ASSERT_OK(wefti_identity_encode("train.seed = 1", &job));
    return &job;
}

static inline person someone(const wefti_scheduler *s, int32_t rank) {
    person p = {.options = test_member(wefti_scheduler_address(s))};
    p.options.rank = rank;
    p.options.facts = "weft 1";
    p.options.identity = same_job();
    p.options.host = "here";
    p.options.leave_seconds = 5;
    return p;
}

static inline bool counts(const wefti_scheduler *s) {
    return wefti_mend_phase(s) == WEFTI_MENDING_COUNTING;
}

static inline void die(person *p) {
    wefti_caller *c = &p->member->caller; /* whose thread may hang up */
    pthread_mutex_lock(&c->lock);
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
}

/* It calls again, with its old generation. */
static inline void refused_for_good(person *p) {
    ASSERT_SOON(wefti_member_check(p->member) < 0);
    ASSERT_MESSAGE("generation|is over");
    (void)wefti_member_close(p->member, NULL);
}

/* A person dies, and the world is ready for others in its seat (`counts`), or goes on without it.
 */
static inline void lose(wefti_scheduler *s, person *p, bool (*is_so)(const wefti_scheduler *)) {
    die(p);
    test_wait_until(s, is_so);
    refused_for_good(p);
}

/* Another process takes the seat. It has no state. */
static inline void take_seat(const wefti_scheduler *s, person *p, int32_t rank) {
    *p = someone(s, rank);
    begin(p, join);
    end_well(p);
    p->at.step = -1;
}

static inline void both_recover(person p[2]) {
    for (int r = 0; r < 2; r++) begin(&p[r], recover);
    for (int r = 0; r < 2; r++) end_well(&p[r]);
}

static inline void stranger(const person *like, const char *facts) {
    person p = *like;
    begin(&p, join);
    end(&p);
    assert_true(p.status < 0);
    ASSERT_FACTS(p.text, facts);
}

#endif
