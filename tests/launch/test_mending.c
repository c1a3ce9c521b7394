/* Scheduler and members of a world that is mended: who may take an empty seat, what all hear, and
 * how often it may happen. Members are threads of this process; one "dies" when its connection is
 * cut. (weft-test: threads) */
#include "mending_people.h"

#include <signal.h>

static void *accuse(void *context) {
    (void)WEFT_RAISE(WEFT_E_PEER, "no way to rank 1");
    return recover(context);
}

static bool all_armed(const wefti_scheduler *s) {
    return s->mend.armed == 2;
}
static bool slots_are_armed(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool so = all_armed(s);
    pthread_mutex_unlock(&s->lock);
    return so;
}

static bool waits(const wefti_scheduler *s) {
    return s->live.ranks[0].standing.waiting;
}
static bool slot_waits(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool so = waits(s);
    pthread_mutex_unlock(&s->lock);
    return so;
}
static int64_t heard_ns(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const int64_t ns = s->live.ranks[0].heard_ns;
    pthread_mutex_unlock(&s->lock);
    return ns;
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
        if (arm) wefti_member_arm(p[r].member, &keeps_size);
    }
    assert_true(slots_are_armed(s) == arm); /* at once: a rank may die in its first step */
    return s;
}

static void only_its_like_takes_a_seat(void **state) {
    (void)state;
    person p[2], other;
    wefti_scheduler *s = two(1, p, true);
    const uint64_t generation = wefti_member_generation(p[0].member);
    lose(s, &p[1], counts);

    other = someone(s, 1);
    other.options.host = "there";
    stranger(&other, "rank 1|rank 0|here|there");
    other = someone(s, 1);
    other.options.facts = "weft 2";
    stranger(&other, "rank 1|weft 1|weft 2");
    /* With a launcher it is compared by the other ranks; without one here. */
    wefti_identity seed;
    ASSERT_OK(wefti_identity_encode("train.seed = 2", &seed));
    other = someone(s, 1);
    other.options.identity = &seed;
    stranger(&other, "train.seed is 2 here and 1 there");
    wefti_identity_free(&seed);
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
    take_seat(s, &p[1], 1);
    assert_true(wefti_member_is_newcomer(p[1].member));
    begin(&p[1], recover);
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        if (p[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p[r].text);
        assert_true(wefti_member_generation(p[r].member) == generation + 1);
        assert_int_equal(p[r].mend.target, 7);
        assert_int_equal(p[r].mend.source[0], WEFTI_SOURCE_OWN);
        assert_int_equal(p[r].mend.source[1], 0);
        assert_false(p[r].mend.from_disk);
        assert_int_equal(p[r].cards[0], 10);
        assert_int_equal(p[r].cards[1], 11);
    }
    /* Whole again: no seat is empty. */
    other = someone(s, 1);
    stranger(&other, "too many");
    leave_all(p, 2);
    wefti_scheduler_stop(s);
}

/* The wait that a death ended is no wait any more, whatever heartbeats say of it: a rank that
 * leaves after the mending must not seem to desert the others. */
static void a_broken_wait_is_over(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(1, p, true);
    wefti_position *position;
    assert_int_equal(wefti_position_create(&position), WEFT_OK);
    wefti_position_begin_wait(position, "all_reduce of one");
    wefti_member_watch(p[0].member, NULL, position);
    test_wait_until(s, waits);
    lose(s, &p[1], counts);
    take_seat(s, &p[1], 1);
    p[0].at.step = 1;
    both_recover(p);
    for (int i = 0; i < 2; i++) { /* heartbeats of the mended rank */
        const int64_t before = heard_ns(s);
        ASSERT_SOON(heard_ns(s) != before);
    }
    assert_false(slot_waits(s));
    wefti_standing at = wefti_position_read(position);
    assert_false(at.waiting);
    assert_string_equal(at.what, "");
    leave_all(p, 2);
    wefti_position_destroy(position);
    wefti_scheduler_stop(s);
}

/* A seat without living neighbors may move to another machine; also a second time, and home. */
static void a_seat_moves(void **state) {
    (void)state;
    static const char *const hosts[] = {"there", "there", "here", "elsewhere"};
    person p[2];
    wefti_scheduler_options o = test_scheduler(2);
    o.restarts = 9;
    wefti_scheduler *s = start(&o);
    for (int r = 0; r < 2; r++) {
        p[r] = someone(s, -1);
        p[r].options.node = r ? "worker-b" : "worker-a";
        p[r].options.host = r ? "there" : "here";
        begin(&p[r], join);
    }
    for (int r = 0; r < 2; r++) {
        end(&p[r]);
        if (p[r].status < 0) fail_msg("%s", p[r].text);
        wefti_member_arm(p[r].member, &keeps_size);
    }
    test_wait_until(s, all_armed);
    const int32_t rank = wefti_member_rank(p[1].member);
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        lose(s, &p[1], counts);
        person stranger_of_a = someone(s, -1);
        stranger_of_a.options.node = "worker-c";
        stranger(&stranger_of_a, "too many");
        p[1] = someone(s, -1);
        p[1].options.node = "worker-b";
        p[1].options.host = hosts[i];
        begin(&p[1], join);
        end(&p[1]);
        if (p[1].status < 0) fail_msg("to %s: %s", hosts[i], p[1].text);
        assert_int_equal(wefti_member_rank(p[1].member), rank);
        assert_int_equal(wefti_member_hosts(p[1].member)[rank], 1); /* its number stays */
        p[1].at.step = -1;
        both_recover(p);
        wefti_member_arm(p[1].member, &keeps_size);
    }
    leave_all(p, 2);
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

static bool has_given_up(person *p) {
    pthread_mutex_lock(&p->member->caller.lock);
    const bool so = p->member->fail_word == WEFTI_WORD_SAID;
    pthread_mutex_unlock(&p->member->caller.lock);
    return so;
}

/* A newcomer says that it is unlike the others, and ends. On a busy machine its launcher sees the
 * end before the scheduler has read the word: another process may follow all the same. */
static void a_refusal_counts_before_the_end(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(3, p, true);
    const wefti_end failed = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    lose(s, &p[1], counts);
    take_seat(s, &p[1], 1);
    pthread_mutex_lock(&s->lock); /* it is busy */
    wefti_member_fail(p[1].member, WEFT_E_PEER, WEFT_RANK_OWN, "another seed");
    ASSERT_SOON(has_given_up(&p[1]));
    const bool follows = wefti_mend_awaits(s, &failed, 2);
    pthread_mutex_unlock(&s->lock);
    assert_true(follows);
    (void)wefti_member_close(p[1].member, NULL);
    take_seat(s, &p[1], 1);
    both_recover(p);
    leave_all(p, 2);
    wefti_scheduler_stop(s);
}

/* Without restarts, and once one has left, a death ends the job. */
static void deaths_that_end_the_job(void **state) {
    (void)state;
    static const char *const facts[] = {"rank 1|died", "rank 1|died|have left"};
    for (int which = 0; which < 2; which++) {
        person p[2];
        wefti_scheduler *s = two(which ? 3 : 0, p, which == 1);
        if (which == 1) {
            p[0].member->leave_ns = 1;
            begin(&p[0], leave);
            ASSERT_SOON(wefti_scheduler_has_left(s, 0));
            end(&p[0]);
        }
        die(&p[1]);
        assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900),
                         WEFTI_SCHEDULER_FAILED);
        char *reason = wefti_scheduler_abort_reason(s);
        ASSERT_FACTS(reason, facts[which]);
        wefti_free(reason);
        for (int r = which; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
        wefti_scheduler_stop(s);
    }
}

/* A rank that is two steps behind cannot follow: all read the disk. */
static void standings_that_contradict(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(1, p, true);
    lose(s, &p[1], counts);
    take_seat(s, &p[1], 1);
    p[0].at = (wefti_stand){.step = 9, .ready = true};
    p[1].at.step = 7;
    both_recover(p);
    for (int r = 0; r < 2; r++) {
        assert_true(p[r].mend.from_disk);
        assert_int_equal(p[r].mend.source[r], WEFTI_SOURCE_DISK);
    }
    leave_all(p, 2);
    wefti_scheduler_stop(s);
}

/* A rank cannot reach another one, though none has died: both make new connections, which counts as
 * a restart. When none is left the job ends, and may be tried again. */
static void nobody_has_died(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = two(1, p, true);
    const uint64_t before = wefti_member_generation(p[0].member);
    for (int r = 0; r < 2; r++) p[r].at.step = 3;
    begin(&p[0], accuse);
    test_wait_until(s, counts);
    begin(&p[1], recover);
    end_well(&p[1]);
    end_well(&p[0]);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(wefti_member_generation(p[r].member), before + 1);
        assert_int_equal(p[r].mend.source[r], WEFTI_SOURCE_OWN);
        assert_int_equal(wefti_scheduler_deaths(s, r), 0);
    }
    begin(&p[0], accuse);
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_LOST);
    ASSERT_FACTS(p[0].text, "rank 0|failed|no way|--restart");
    for (int r = 0; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_its_like_takes_a_seat),
        cmocka_unit_test(a_broken_wait_is_over),
        cmocka_unit_test(a_seat_moves),
        cmocka_unit_test(there_are_so_many_restarts),
        cmocka_unit_test(a_seat_that_stays_empty_ends_the_job),
        cmocka_unit_test(a_refusal_counts_before_the_end),
        cmocka_unit_test(deaths_that_end_the_job),
        cmocka_unit_test(standings_that_contradict),
        cmocka_unit_test(nobody_has_died),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
