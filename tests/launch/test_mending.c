/* Scheduler and members of a world that is mended: who may take an empty seat, what all hear, and
 * how often it may happen. Members are threads of this process; one "dies" when its connection is
 * cut. (weft-test: threads) */
#include "lanes.h"

#include <signal.h>
#include <sys/socket.h>

typedef struct person {
    wefti_member_options options;
    wefti_member *member;
    weft_status status;
    char text[2048];
    wefti_stand at;
    wefti_mend mend;
    int32_t cards[4];
    pthread_t thread;
} person;

static void note(person *p, weft_status status) {
    p->status = status;
    if (status < 0) snprintf(p->text, sizeof p->text, "%s", weft_error_message());
}

static void *join(void *context) {
    person *p = context;
    note(p, wefti_member_join(&p->options, &p->member));
    return NULL;
}

/* All of a recovery, but the states. */
static void *recover(void *context) {
    person *p = context;
    const int32_t mine = wefti_member_rank(p->member) + 10;
    note(p, wefti_member_mend(p->member, &p->at, &p->mend));
    if (p->status >= 0) note(p, wefti_member_allgather(p->member, &mine, sizeof mine, p->cards));
    if (p->status >= 0) note(p, wefti_member_whole(p->member));
    return NULL;
}

static void *accuse(void *context) {
    person *p = context;
    (void)WEFT_RAISE(WEFT_E_PEER, "no way to rank 1");
    note(p, wefti_member_mend(p->member, &p->at, &p->mend));
    return NULL;
}

static void *leave(void *context) {
    person *p = context;
    note(p, wefti_member_close(p->member, NULL));
    return NULL;
}

static void begin(person *p, void *(*what)(void *)) {
    assert_int_equal(pthread_create(&p->thread, NULL, what, p), 0);
}
static void end(person *p) {
    assert_int_equal(pthread_join(p->thread, NULL), 0);
}

static person someone(const wefti_scheduler *s, int32_t rank) {
    person p = {.options = test_member(wefti_scheduler_address(s))};
    p.options.rank = rank;
    p.options.facts = "weft 1";
    p.options.host = "here";
    p.options.leave_seconds = 5;
    return p;
}

static void leave_all(person p[2]) {
    for (int r = 0; r < 2; r++) begin(&p[r], leave);
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        if (p[r].status < 0) fail_msg("%s", p[r].text);
    }
}

static bool all_armed(const wefti_scheduler *s) {
    return s->mend.armed == 2;
}
static bool counts(const wefti_scheduler *s) {
    return wefti_mend_phase(s) == WEFTI_MENDING_COUNTING;
}

/* A world of two that may lose so many processes. */
static wefti_scheduler *two(int restarts, person p[2], bool arm) {
    wefti_scheduler_options o = test_scheduler(2);
    o.restarts = restarts;
    wefti_scheduler *s = start(&o);
    for (int r = 0; r < 2; r++) {
        p[r] = someone(s, r);
        begin(&p[r], join);
    }
    for (int r = 0; r < 2; r++) end(&p[r]);
    for (int r = 0; r < 2; r++) {
        if (p[r].status < 0) fail_msg("%s", p[r].text);
        assert_true(wefti_member_mends(p[r].member) == (restarts > 0));
        assert_false(wefti_member_is_newcomer(p[r].member));
        if (arm) wefti_member_arm(p[r].member);
    }
    if (arm) test_wait_until(s, all_armed);
    return s;
}

static void die(person *p) {
    wefti_caller *c = &p->member->caller; /* whose thread may hang up */
    pthread_mutex_lock(&c->lock);
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
}

/* It calls again, with its old generation. */
static void refused_for_good(person *p) {
    ASSERT_SOON(20, wefti_member_check(p->member) < 0);
    ASSERT_MESSAGE("generation|is over");
    (void)wefti_member_close(p->member, NULL);
}

static void stranger(const person *like, const char *facts) {
    person p = *like;
    begin(&p, join);
    end(&p);
    assert_true(p.status < 0);
    ASSERT_FACTS(p.text, facts);
}

static void only_its_like_takes_a_seat(void **state) {
    (void)state;
    person p[2], other;
    wefti_scheduler *s = two(1, p, true);
    const uint64_t generation = wefti_member_generation(p[0].member);
    die(&p[1]);
    test_wait_until(s, counts);
    refused_for_good(&p[1]);

    other = someone(s, 1);
    other.options.host = "there";
    stranger(&other, "rank 1|here|there");
    other = someone(s, 1);
    other.options.facts = "weft 2";
    stranger(&other, "rank 1|weft 1|weft 2");
    other = someone(s, 1);
    other.options.job = "another";
    stranger(&other, "job|another");
    other = someone(s, 1);
    other.options.size = 3;
    stranger(&other, "of 3|for 2");
    other = someone(s, 0);
    stranger(&other, "too many");
    other = someone(s, 1);
    other.options.secret.key[0] ^= 1;
    stranger(&other, "secret");

    p[0].at = (wefti_stand){.step = 7, .holds = (const int32_t[]){1}, .holds_count = 1};
    begin(&p[0], recover);
    p[1] = someone(s, 1);
    begin(&p[1], join);
    end(&p[1]);
    if (p[1].status < 0) fail_msg("%s", p[1].text);
    assert_true(wefti_member_is_newcomer(p[1].member));
    p[1].at.step = -1;
    begin(&p[1], recover);
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        if (p[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p[r].text);
        assert_true(wefti_member_generation(p[r].member) == generation + 1);
        assert_int_equal(p[r].mend.target, 7);
        assert_int_equal(p[r].mend.source[0], WEFTI_SOURCE_OWN);
        assert_int_equal(p[r].mend.source[1], 0);
        assert_false(p[r].mend.from_disk || p[r].mend.update);
        assert_int_equal(p[r].cards[0], 10);
        assert_int_equal(p[r].cards[1], 11);
    }
    /* Whole again: no seat is empty. */
    other = someone(s, 1);
    stranger(&other, "too many");
    leave_all(p);
    wefti_scheduler_stop(s);
}

/* The word of a launcher: a process has died, once more, and once too often. */
static void there_are_so_many_restarts(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(2, p, true);
    const wefti_end killed = {.rank = 1, .signal = SIGKILL, .text = "rank 1 was ended by signal 9"};
    const wefti_end failed = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    assert_false(wefti_scheduler_awaits(s, &failed, 1)); /* not worth trying again */
    assert_true(wefti_scheduler_awaits(s, &killed, 1));
    assert_int_equal(wefti_scheduler_deaths(s, 1), 1);
    assert_true(wefti_scheduler_awaits(s, &killed, 1)); /* the same death */
    assert_true(wefti_scheduler_awaits(s, &killed, 2)); /* before it had joined */
    assert_int_equal(wefti_scheduler_deaths(s, 1), 2);
    assert_false(wefti_scheduler_awaits(s, &killed, 3));
    p[0].at.step = 3;
    begin(&p[0], recover);
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_LOST);
    ASSERT_FACTS(p[0].text, "rank 1|signal 9|started again");
    for (int r = 0; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* A process that failed for good leaves its seat empty: nobody waits. */
static void a_seat_that_stays_empty_ends_the_job(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(2, p, true);
    const wefti_end failed = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    die(&p[1]);
    test_wait_until(s, counts);
    assert_false(wefti_scheduler_awaits(s, &failed, 1));
    wefti_scheduler_ended(s, &failed);
    begin(&p[0], recover);
    end(&p[0]);
    assert_true(p[0].status < 0);
    ASSERT_FACTS(p[0].text, "rank 1|exit code 1|nobody takes");
    for (int r = 0; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* Without restarts, before all can be mended, and once one has left, a death ends the job. */
static void deaths_that_end_the_job(void **state) {
    (void)state;
    static const char *const facts[] = {"rank 1|died", "rank 1|died|recovery.enabled",
                                        "rank 1|died|have left"};
    for (int which = 0; which < 3; which++) {
        person p[2];
        wefti_scheduler *s = two(which ? 3 : 0, p, which == 2);
        if (which == 1) wefti_member_arm(p[0].member);
        if (which == 2) {
            p[0].member->leave_ns = 1;
            begin(&p[0], leave);
            ASSERT_SOON(20, wefti_scheduler_has_left(s, 0));
            end(&p[0]);
        }
        die(&p[1]);
        assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 20),
                         WEFTI_SCHEDULER_FAILED);
        char *reason = wefti_scheduler_abort_reason(s);
        ASSERT_FACTS(reason, facts[which]);
        wefti_free(reason);
        for (int r = which == 2; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
        wefti_scheduler_stop(s);
    }
}

/* A rank that is two steps behind cannot follow: all read the disk. */
static void standings_that_contradict(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(1, p, true);
    die(&p[1]);
    test_wait_until(s, counts);
    refused_for_good(&p[1]);
    p[1] = someone(s, 1);
    begin(&p[1], join);
    end(&p[1]);
    assert_int_equal(p[1].status, WEFT_OK);
    p[0].at = (wefti_stand){.step = 9, .ready = true};
    p[1].at.step = 7;
    for (int r = 0; r < 2; r++) begin(&p[r], recover);
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        if (p[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p[r].text);
        assert_true(p[r].mend.from_disk && p[r].mend.forget);
        assert_int_equal(p[r].mend.source[r], WEFTI_SOURCE_DISK);
    }
    leave_all(p);
    wefti_scheduler_stop(s);
}

/* A rank that cannot reach another one, though none has died, ends the job with its own words. */
static void nobody_has_died(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(1, p, true);
    begin(&p[0], accuse);
    end(&p[0]);
    assert_true(p[0].status < 0);
    ASSERT_FACTS(p[0].text, "rank 0|failed|no way");
    for (int r = 0; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_its_like_takes_a_seat),
        cmocka_unit_test(there_are_so_many_restarts),
        cmocka_unit_test(a_seat_that_stays_empty_ends_the_job),
        cmocka_unit_test(deaths_that_end_the_job),
        cmocka_unit_test(standings_that_contradict),
        cmocka_unit_test(nobody_has_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
