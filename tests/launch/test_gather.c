/* A scheduler dies before, amid and after a mending, at each of its messages, and another one that
 * knows nothing takes its place. Members are threads of this process. (weft-test: threads)
 * weft-test: computes
 */
#include "gathering_people.h"

#include <signal.h>

static const wefti_end killed = {
    .rank = 1, .signal = SIGKILL, .text = "rank 1 was ended by signal 9"};

/* Rank 1 dies and another process takes its seat, while the scheduler dies at message `nth` from
 * then on, and the one after it so many messages later. False: there was no such message. */
static bool a_repair(int64_t nth, int outages) {
    static const int32_t held[] = {1};
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    person p[RANKS], dead;
    wefti_scheduler *s = world(&o, p);
    p[0].at.holds = held;
    p[0].at.holds_count = 1;
    p[2].at = (wefti_stand){.step = TARGET - 1, .ready = true}; /* it has not seen the commit */
    wefti_fault_arm(WEFTI_FAULT_SCHEDULER, nth, false, 0);
    dead = p[1];
    set_up(&p[1], dead.address, 1, p);
    p[1].at.step = -1;
    begin(&p[0], survive);
    begin(&p[2], survive);
    die(&dead);
    bool told = false, died = false;
    for (int ended = 0; ended < RANKS || is_dead(s);) {
        if (is_dead(s)) {
            wefti_fault_arm(WEFTI_FAULT_SCHEDULER, --outages > 0 ? nth : -1, false, 0);
            s = follow(s, &o);
            died = true;
        }
        /* Its launcher asks, and starts another process. */
        if (!told && (told = wefti_scheduler_awaits(s, &killed, 1))) begin(&p[1], come);
        ended = 0;
        for (int r = 0; r < RANKS; r++) ended += atomic_load(&p[r].ended);
        usleep(200);
    }
    wefti_fault_arm(WEFTI_FAULT_SCHEDULER, -1, false, 0);
    for (int r = 0; r < RANKS; r++) {
        end_well(&p[r]);
        assert_int_equal(p[r].at.step, TARGET);
        assert_int_equal(wefti_member_rank(p[r].member), r);
        assert_int_equal(wefti_member_hosts(p[r].member)[r], r == 2);
        for (int k = 0; k < RANKS; k++) assert_int_equal(p[r].cards[k], k + 10);
        assert_true(wefti_member_generation(p[r].member) == atomic_load(&p[0].whole));
    }
    leave_all(p, RANKS);
    wefti_scheduler_stop(s);
    return died;
}

static void at_each_message_of_a_repair(void **state) {
    (void)state;
    int64_t nth = 0;
    while (a_repair(nth, 1 + (int)(nth % 2))) nth++;
    printf("a scheduler died at each of %lld messages\n", (long long)nth);
    assert_true(nth > 20);
}

static bool runs(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_RUNNING;
}

static bool forms(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_FORMING && s->taken > 0;
}

static void mend_rank_1(wefti_scheduler *s, person p[RANKS]) {
    for (int r = 0; r < RANKS; r++) {
        atomic_store(&p[r].whole, 0);
        atomic_store(&p[r].ended, false);
    }
    person dead = p[1];
    set_up(&p[1], wefti_scheduler_address(s), 1, p);
    p[1].at.step = -1;
    begin(&p[0], survive);
    begin(&p[2], survive);
    die(&dead);
    begin(&p[1], come);
    for (int r = 0; r < RANKS; r++) end_well(&p[r]);
}

/* Between steps nobody notices more than a pause: no generation begins. The next scheduler knows
 * that all can be mended, and how often that was done. */
static void between_steps(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 2;
    person p[RANKS];
    wefti_scheduler *s = world(&o, p);
    const uint64_t first = wefti_member_generation(p[0].member);
    s = crash(s, &o);
    test_wait_until(s, runs);
    for (int r = 0; r < RANKS; r++) {
        assert_false(wefti_member_is_halted(p[r].member));
        assert_true(wefti_member_generation(p[r].member) == first);
    }
    for (int time = 0; time < 2; time++) {
        mend_rank_1(s, p);
        s = crash(s, &o);
        test_wait_until(s, runs);
        assert_int_equal(wefti_scheduler_deaths(s, 1), time + 1);
    }
    die(&p[1]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    char *reason = wefti_scheduler_abort_reason(s);
    ASSERT_FACTS(reason, "rank 1|died|started again");
    wefti_free(reason);
    for (int r = 0; r < RANKS; r += 2) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* Rank 1 dies with the scheduler, and no launcher says so. Its process comes again. */
static void a_rank_dies_with_it(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    person p[RANKS];
    wefti_scheduler *s = world(&o, p);
    person dead = p[1];
    set_up(&p[1], wefti_scheduler_address(s), 1, p);
    p[1].at.step = -1;
    pthread_mutex_lock(&dead.member->caller.lock);
    wefti_caller_fail(&dead.member->caller, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    pthread_mutex_unlock(&dead.member->caller.lock);
    s = crash(s, &o);
    (void)wefti_member_close(dead.member, NULL);
    begin(&p[0], survive);
    begin(&p[2], survive);
    begin(&p[1], come);
    for (int r = 0; r < RANKS; r++) end_well(&p[r]);
    pthread_mutex_lock(&s->lock);
    ASSERT_FACTS(s->mend.halt.text, "rank 1|come back");
    assert_int_equal(s->restarts.all, 1);
    pthread_mutex_unlock(&s->lock);
    leave_all(p, RANKS);
    wefti_scheduler_stop(s);
}

static void *repair_once(void *context) {
    person *p = context;
    note(p, repair(p));
    return NULL;
}

/* The same in an elastic job without restarts: the others go on without it. */
static void a_world_shrinks_afterwards(void **state) {
    (void)state;
    static const wefti_elastic two_at_least = {.least = 2, .seconds = 60};
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.heartbeat_seconds = SHORT_HEARTBEAT;
    person p[RANKS];
    wefti_scheduler *s = elastic_world(&o, p, &two_at_least);
    pthread_mutex_lock(&p[1].member->caller.lock);
    wefti_caller_fail(&p[1].member->caller, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    pthread_mutex_unlock(&p[1].member->caller.lock);
    s = crash(s, &o);
    (void)wefti_member_close(p[1].member, NULL);
    for (int r = 0; r < RANKS; r += 2) begin(&p[r], repair_once);
    for (int r = 0; r < RANKS; r += 2) {
        end_well(&p[r]);
        assert_int_equal(p[r].status, WEFT_OK);
        assert_true(p[r].mend.resized && p[r].mend.size == 2 && p[r].mend.rank == r / 2);
        assert_int_equal(p[r].at.step, TARGET);
    }
    for (int r = 0; r < RANKS; r += 2) begin(&p[r], leave);
    for (int r = 0; r < RANKS; r += 2) end_well(&p[r]);
    wefti_scheduler_stop(s);
}

/* Half of the ranks are too few, unless rank 0 is one of them, or the others are known to have
 * ended. */
static void more_than_half(void **state) {
    (void)state;
    static const wefti_end ended = {.rank = 0, .signal = SIGKILL, .text = "rank 0 was ended"};
    for (int which = 0; which < 3; which++) {
        const int stays = which == 0 ? 0 : 1;
        wefti_scheduler_options o = test_scheduler(2);
        o.restarts = 1;
        o.heartbeat_seconds = 1;
        person p[RANKS];
        wefti_scheduler *s = world(&o, p);
        o.join_seconds = which == 1 ? 6 : 600;
        wefti_member *dead = p[!stays].member;
        pthread_mutex_lock(&dead->caller.lock);
        wefti_caller_fail(&dead->caller, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
        pthread_mutex_unlock(&dead->caller.lock);
        s = crash(s, &o);
        (void)wefti_member_close(dead, NULL);
        if (which == 2) {
            while (!gathers(s)) usleep(1000);
            assert_true(wefti_scheduler_awaits(s, &ended, 1));
        }
        const wefti_scheduler_state after = wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 900);
        assert_int_equal(after, which == 1 ? WEFTI_SCHEDULER_FAILED : WEFTI_SCHEDULER_RUNNING);
        char *reason = wefti_scheduler_abort_reason(s);
        if (which == 1) ASSERT_FACTS(reason, "1 of 2|half");
        wefti_free(reason);
        ASSERT_SOON(which == 1 ? wefti_member_check(p[stays].member) < 0
                               : wefti_member_is_halted(p[stays].member));
        die(&p[stays]);
        wefti_scheduler_stop(s);
    }
}

/* Rank 1 has left when the scheduler dies. The others leave as well, and nobody is missed. */
static void the_world_ends(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    o.heartbeat_seconds = 1;
    person p[RANKS];
    wefti_scheduler *s = world(&o, p);
    p[1].member->leave_ns = 1;
    begin(&p[1], leave);
    ASSERT_SOON(wefti_scheduler_has_left(s, 1));
    end_well(&p[1]);
    for (int r = 0; r < RANKS; r += 2) {
        p[r].member->leave_ns = 900000000000;
        begin(&p[r], leave);
        ASSERT_SOON(wefti_scheduler_has_left(s, r) || r == 2);
        if (r == 0) s = crash(s, &o);
    }
    for (int r = 0; r < RANKS; r += 2) end_well(&p[r]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_LEFT);
    wefti_scheduler_stop(s);
}

static bool called_in_vain(wefti_watch *watch) {
    wefti_caller *c = (wefti_caller *)watch; /* its first part */
    pthread_mutex_lock(&c->lock);
    const bool in_vain = c->refused[0];
    pthread_mutex_unlock(&c->lock);
    return in_vain;
}

static bool owes_answer(wefti_scheduler *s) {
    bool owes = false;
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < s->client_count; i++) owes = owes || s->clients[i]->unanswered;
    pthread_mutex_unlock(&s->lock);
    return owes;
}

static bool has_given_seats(wefti_scheduler *s) {
    bool has = false;
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < s->client_count; i++)
        has = has || (s->clients[i]->keeps && s->clients[i]->state == WEFTI_CLIENT_OPEN);
    pthread_mutex_unlock(&s->lock);
    return has;
}

/* The connections of launchers that have their seats break. */
static void drop_launchers(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    for (int64_t i = 0; i < s->client_count; i++)
        if (s->clients[i]->keeps) wefti_client_drop(s, s->clients[i]);
    pthread_mutex_unlock(&s->lock);
}

/* Asks after the first loss of rank 1. Whether the scheduler puts the answer off. */
static bool is_put_off(wefti_watch *watch, wefti_scheduler *s) {
    ASSERT_SOON(wefti_watch_again(watch, &killed, 1) != WEFTI_AGAIN_PENDING || owes_answer(s));
    return wefti_watch_again(watch, &killed, 1) == WEFTI_AGAIN_PENDING;
}

static wefti_again answer(wefti_watch *watch) {
    ASSERT_SOON(wefti_watch_again(watch, &killed, 1) != WEFTI_AGAIN_PENDING);
    return wefti_watch_again(watch, &killed, 1);
}

/* A launcher that has the seat of rank 1. */
static wefti_watch *keeper_of_1(wefti_scheduler *s) {
    wefti_member_options at = launcher_elsewhere(wefti_scheduler_address(s));
    const wefti_keep keep = {.seats = {1, 1}, .launcher = 9};
    wefti_watch *watch;
    wefti_span seats;
    int32_t size;
    assert_int_equal(wefti_watch_begin_keeping(&at, &keep, &watch), WEFT_OK);
    ASSERT_SOON(wefti_watch_seats(watch, &seats, &size) == WEFT_OK);
    return watch;
}

static void hold(person *p, bool holds) {
    if (holds)
        pthread_mutex_lock(&p->member->caller.lock);
    else
        pthread_mutex_unlock(&p->member->caller.lock);
}

/* A launcher asks before the ranks have come back. It has its answer once they are there. Before,
 * it calls while nobody listens, and its connection breaks after the next scheduler has given it
 * its seats. */
static void a_launcher_asks_again(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    person p[RANKS], dead;
    wefti_scheduler *s = world(&o, p);
    wefti_watch *watch = keeper_of_1(s);
    dead = p[1];
    set_up(&p[1], wefti_scheduler_address(s), 1, p);
    p[1].at.step = -1;
    hold(&dead, true);
    wefti_caller_fail(&dead.member->caller, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    hold(&dead, false);
    for (int r = 0; r < RANKS; r += 2) hold(&p[r], true); /* they come after the launcher */
    o.port = wefti_scheduler_port(s);
    kill_scheduler(s);
    wefti_scheduler_stop(s);
    ASSERT_SOON(called_in_vain(watch));
    s = start(&o);
    (void)wefti_member_close(dead.member, NULL);
    ASSERT_SOON(has_given_seats(s));
    drop_launchers(s);
    ASSERT_SOON(has_given_seats(s));
    assert_true(is_put_off(watch, s));
    for (int r = 0; r < RANKS; r += 2) hold(&p[r], false);
    assert_int_equal(answer(watch), WEFTI_AGAIN_YES);
    assert_int_equal(wefti_scheduler_deaths(s, 1), 1);
    begin(&p[0], survive);
    begin(&p[2], survive);
    begin(&p[1], come);
    for (int r = 0; r < RANKS; r++) end_well(&p[r]);
    leave_all(p, RANKS);
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

/* The world that came back has ended, and another one forms: of that one no earlier scheduler knows
 * anything. */
static void a_launcher_asks_in_the_next_world(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    o.repeats = true;
    person p[RANKS];
    wefti_scheduler *s = world(&o, p);
    wefti_watch *watch = keeper_of_1(s);
    s = crash(s, &o);
    ASSERT_SOON(has_given_seats(s));
    test_wait_until(s, runs);
    leave_all(p, RANKS);
    begin(&p[0], join);
    test_wait_until(s, forms);
    assert_false(is_put_off(watch, s));
    assert_int_equal(answer(watch), WEFTI_AGAIN_ALL);
    end(&p[0]);
    assert_true(p[0].status < 0);
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_each_message_of_a_repair),
        cmocka_unit_test(between_steps),
        cmocka_unit_test(a_rank_dies_with_it),
        cmocka_unit_test(a_world_shrinks_afterwards),
        cmocka_unit_test(more_than_half),
        cmocka_unit_test(the_world_ends),
        cmocka_unit_test(a_launcher_asks_again),
        cmocka_unit_test(a_launcher_asks_in_the_next_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
