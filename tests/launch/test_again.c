/* A process is lost to a world that cannot be mended: all are started again, as often as it may be.
 * While the first world is forming, only the lost one is. Members are threads of this process; one
 * "dies" when its connection is cut. (weft-test: threads) */
#include "mending_people.h"

#include <signal.h>

enum { AGAIN = 75 };
static const wefti_end killed[] = {{.rank = 0, .signal = SIGKILL, .text = "rank 0 was killed"},
                                   {.rank = 1, .signal = SIGKILL, .text = "rank 1 was killed"}};
static const wefti_end gave_up[] = {{.rank = 0, .code = AGAIN, .text = "rank 0 gave up"},
                                    {.rank = 1, .code = AGAIN, .text = "rank 1 gave up"}};
static const wefti_end failed[] = {{.rank = 0, .code = 1, .text = "rank 0 failed"},
                                   {.rank = 1, .code = 1, .text = "rank 1 failed"}};

static wefti_scheduler *open_job(int restarts) {
    wefti_scheduler_options o = test_scheduler(2);
    o.restarts = restarts;
    o.repeats = true;
    return start(&o);
}

static void both_join(wefti_scheduler *s, person p[2]) {
    for (int r = 0; r < 2; r++) {
        p[r] = someone(s, r);
        begin(&p[r], join);
    }
    for (int r = 0; r < 2; r++) end_well(&p[r]);
}

static void close_one(person *p) {
    p->member->leave_ns = 1;
    (void)wefti_member_close(p->member, NULL);
}
static void close_both(person p[2]) {
    for (int r = 0; r < 2; r++) close_one(&p[r]);
}

static bool forms(wefti_scheduler *s) {
    return wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900) == WEFTI_SCHEDULER_FORMING;
}

static void hears_of_it(person *p, const char *facts) {
    ASSERT_SOON(wefti_member_check(p->member) < 0);
    ASSERT_FACTS(weft_error_message(), facts);
}

static void expect_deaths(wefti_scheduler *s, int of_0, int of_1) {
    assert_int_equal(wefti_scheduler_deaths(s, 0), of_0);
    assert_int_equal(wefti_scheduler_deaths(s, 1), of_1);
}

static int waiting(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const int taken = s->ranked ? 0 : s->taken;
    pthread_mutex_unlock(&s->lock);
    return taken;
}

/* When the connection of the first that waits was made; 0: nobody waits. */
static int64_t first_came_ns(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const int64_t ns = s->taken ? s->slots[0].client->since_ns : 0;
    pthread_mutex_unlock(&s->lock);
    return ns;
}

static bool both_are_armed(const wefti_scheduler *s) {
    return s->mend.armed == 2;
}
static bool first_gave_up(const wefti_scheduler *s) {
    return !s->ranked || s->live.ranks[0].gave_up;
}

/* The survivor is told, and dead to the others. However it ends, another one follows. */
static void all_begin_again(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(2);
    both_join(s, p);
    const uint64_t generation = wefti_member_generation(p[0].member);
    wefti_member_arm(p[0].member, &keeps_size);
    die(&p[1]);
    assert_true(forms(s));
    hears_of_it(&p[0], "rank 1|died|started again");
    expect_deaths(s, 1, 1);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_ALL);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_YES); /* the same */
    assert_int_equal(wefti_scheduler_awaits(s, &failed[0], 1), WEFTI_AGAIN_ALL);
    char *why = wefti_scheduler_again_text(s);
    ASSERT_FACTS(why, "rank 1|died");
    wefti_free(why);
    close_both(p);

    /* The next world can be mended, and has one restart. */
    both_join(s, p);
    assert_true(wefti_member_generation(p[0].member) > generation);
    for (int r = 0; r < 2; r++) wefti_member_arm(p[r].member, &keeps_size);
    test_wait_until(s, both_are_armed);
    expect_deaths(s, 1, 1);
    die(&p[1]);
    test_wait_until(s, counts);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 2), WEFTI_AGAIN_YES);
    expect_deaths(s, 1, 2);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 3), WEFTI_AGAIN_NO);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    close_both(p);
    wefti_scheduler_stop(s);
}

/* Also of the world that follows; then the job ends. */
static void so_often_and_no_more(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    die(&p[0]);
    assert_true(forms(s));
    close_both(p);
    for (int r = 0; r < 2; r++)
        assert_int_equal(wefti_scheduler_awaits(s, &killed[r], 1), WEFTI_AGAIN_ALL);
    both_join(s, p);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[0], 2), WEFTI_AGAIN_NO);
    die(&p[0]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    char *reason = wefti_scheduler_abort_reason(s);
    ASSERT_FACTS(reason, "rank 0|died|often");
    wefti_free(reason);
    close_both(p);
    wefti_scheduler_stop(s);
}

static void *accuse(void *context) {
    person *p = context;
    wefti_member_fail(p->member, WEFT_E_LOST, 1, "no way to rank 1");
    return NULL;
}

static void accuses(wefti_scheduler *s, person *p) {
    begin(p, accuse);
    test_wait_until(s, first_gave_up);
}

/* The launcher may see an end before the connection has closed. */
static void a_launcher_sees_the_end_first(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_ALL);
    expect_deaths(s, 1, 1);
    close_both(p);
    wefti_scheduler_stop(s);
}

/* A survivor gives up because of the other rank, and has ended before that one's death is seen. */
static void a_survivor_ends_first(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    accuses(s, &p[0]);
    assert_int_equal(wefti_scheduler_awaits(s, &gave_up[0], 1), WEFTI_AGAIN_ALL);
    expect_deaths(s, 1, 1);
    end(&p[0]);
    close_both(p);
    wefti_scheduler_stop(s);
}

/* The time for another word is up. */
static void a_rank_gives_up_and_none_has_died(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    accuses(s, &p[0]);
    assert_true(forms(s));
    expect_deaths(s, 1, 1);
    end(&p[0]);
    close_both(p);
    wefti_scheduler_stop(s);
}

static void a_rank_that_fails_by_itself_ends_the_job(void **state) {
    (void)state;
    person p[2];
    wefti_end first;
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    assert_int_equal(wefti_scheduler_awaits(s, &failed[1], 1), WEFTI_AGAIN_NO);
    expect_deaths(s, 0, 0);
    wefti_scheduler_ended(s, &failed[1]);
    assert_true(wefti_scheduler_is_over(s, &first));
    assert_int_equal(first.rank, 1);
    close_both(p);
    wefti_scheduler_stop(s);
}

/* The others have not heard of a world. They wait for the one that is started again. */
static void one_is_lost_before_all_have_come(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(2);
    p[0] = someone(s, 0);
    begin(&p[0], join);
    ASSERT_SOON(waiting(s) == 1);
    assert_int_equal(wefti_scheduler_awaits(s, &failed[1], 1), WEFTI_AGAIN_NO);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_YES);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_YES); /* the same */
    expect_deaths(s, 0, 1);
    /* One that waits is lost, later: its seat is free. Here it is the same thread that comes again.
     */
    pthread_mutex_lock(&s->lock);
    wefti_restart_went_on(&s->restarts);
    pthread_mutex_unlock(&s->lock);
    const int64_t came_ns = first_came_ns(s);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[0], 1), WEFTI_AGAIN_YES);
    ASSERT_SOON(first_came_ns(s) > came_ns);
    p[1] = someone(s, 1);
    begin(&p[1], join);
    for (int r = 0; r < 2; r++) end_well(&p[r]);
    expect_deaths(s, 1, 1);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 2), WEFTI_AGAIN_NO); /* two were made */
    close_both(p);
    wefti_scheduler_stop(s);
}

/* Both die at their start, within a second on any machine: that is one restart. */
static void both_are_lost_at_once(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[0], 1), WEFTI_AGAIN_YES);
    pthread_mutex_lock(&s->lock);
    s->restarts.entry[0].at_ns = wefti_now_ns() + (int64_t)3600 * 1000000000;
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_YES);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 2), WEFTI_AGAIN_NO);
    both_join(s, p);
    leave_all(p, 2);
    wefti_scheduler_stop(s);
}

/* Between two worlds of a job, the others have been in the first: all begin with it again. */
static void one_is_lost_between_two_worlds(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    leave_all(p, 2);
    p[0] = someone(s, 0);
    begin(&p[0], join);
    ASSERT_SOON(waiting(s) == 1);
    assert_int_equal(wefti_scheduler_awaits(s, &killed[1], 1), WEFTI_AGAIN_ALL);
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_LOST);
    ASSERT_FACTS(p[0].text, "rank 1|started again");
    expect_deaths(s, 1, 1);
    assert_int_equal(wefti_scheduler_awaits(s, &gave_up[0], 1), WEFTI_AGAIN_ALL);
    both_join(s, p);
    leave_all(p, 2);
    wefti_scheduler_stop(s);
}

/* It ended well, without leaving: nothing follows it, and the world would never be complete. */
static void one_has_ended_for_good(void **state) {
    (void)state;
    static const wefti_end done = {.rank = 1, .text = "rank 1 ended"};
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    wefti_scheduler_ended(s, &done);
    die(&p[1]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    close_both(p);
    wefti_scheduler_stop(s);
}

/* Restarts of a world that was mended count for the next one. */
static void worlds_share_their_restarts(void **state) {
    (void)state;
    person p[2];
    wefti_scheduler *s = open_job(1);
    both_join(s, p);
    for (int r = 0; r < 2; r++) wefti_member_arm(p[r].member, &keeps_size);
    lose(s, &p[1], counts);
    take_seat(s, &p[1], 1);
    both_recover(p);
    leave_all(p, 2);
    both_join(s, p);
    expect_deaths(s, 0, 1);
    die(&p[0]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    close_both(p);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_begin_again),
        cmocka_unit_test(so_often_and_no_more),
        cmocka_unit_test(a_launcher_sees_the_end_first),
        cmocka_unit_test(a_survivor_ends_first),
        cmocka_unit_test(a_rank_gives_up_and_none_has_died),
        cmocka_unit_test(a_rank_that_fails_by_itself_ends_the_job),
        cmocka_unit_test(one_is_lost_before_all_have_come),
        cmocka_unit_test(both_are_lost_at_once),
        cmocka_unit_test(one_is_lost_between_two_worlds),
        cmocka_unit_test(one_has_ended_for_good),
        cmocka_unit_test(worlds_share_their_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
