/* A scheduler dies before, amid and after a mending, at each of its messages, and another one that
 * knows nothing takes its place. Members are threads of this process. (weft-test: threads) */
#include "lanes.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { RANKS = 3, TARGET = 7 };

typedef struct person {
    wefti_member_options options;
    char address[64];
    wefti_member *member;
    weft_status status;
    char text[2048];
    wefti_stand at;
    wefti_mend mend;
    int32_t cards[RANKS];
    _Atomic uint64_t whole; /* the generation in which its world was whole */
    atomic_bool ended;
    struct person *all; /* [RANKS] */
    pthread_t thread;
} person;

static const wefti_elastic keeps_size;

static void note(person *p, weft_status status) {
    p->status = status;
    if (status < 0) snprintf(p->text, sizeof p->text, "%s", weft_error_message());
}

static void *join(void *context) {
    person *p = context;
    note(p, wefti_member_join(&p->options, &p->member));
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
    if (p->status < 0) fail_msg("%s", p->text);
}

/* One round of a repair. WEFT_PENDING: there is to be another one. */
static weft_status repair(person *p) {
    weft_status status = wefti_member_mend(p->member, &p->at, &p->mend);
    if (status < 0) return status;
    const int32_t rank = wefti_member_rank(p->member), mine = rank + 10;
    if (p->mend.update) p->at.step++;
    p->at.ready = false;
    status = wefti_member_allgather(p->member, &mine, sizeof mine, p->cards);
    if (status < 0) return WEFT_PENDING; /* the next round says why, if it is no halt */
    p->at.step = p->mend.target;
    return wefti_member_whole(p->member);
}

static bool all_whole(const person *p) {
    const uint64_t whole = atomic_load(&p->whole);
    for (int r = 0; r < RANKS; r++)
        if (atomic_load(&p->all[r].whole) != whole) return false;
    return whole > 0;
}

/* Makes steps, which take no time here, until all are in one whole world after the death. */
static weft_status live(person *p) {
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

static void *survive(void *context) {
    person *p = context;
    note(p, live(p));
    atomic_store(&p->ended, true);
    return NULL;
}

static void *come(void *context) {
    person *p = context;
    note(p, wefti_member_join(&p->options, &p->member));
    if (p->status >= 0) {
        wefti_member_arm(p->member, &keeps_size);
        note(p, live(p));
    }
    atomic_store(&p->ended, true);
    return NULL;
}

static void set_up(person *p, const char *address, int32_t rank, person *all) {
    memset(p, 0, sizeof *p);
    snprintf(p->address, sizeof p->address, "%s", address); /* it outlives the scheduler */
    p->options = test_member(p->address);
    p->options.rank = rank;
    p->options.facts = "weft 1";
    p->options.host = rank == 2 ? "there" : "here";
    p->all = all;
}

/* Its process ends: it calls nobody any more. */
static void die(person *p) {
    wefti_caller *c = &p->member->caller;
    pthread_mutex_lock(&c->lock);
    wefti_caller_fail(c, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    (void)wefti_member_close(p->member, NULL);
}

static bool is_dead(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool dead = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return dead;
}
static bool gathers(wefti_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    const bool so = s->gather.since_ns > 0;
    pthread_mutex_unlock(&s->lock);
    return so;
}

static wefti_scheduler *follow(wefti_scheduler *s, wefti_scheduler_options *o) {
    o->port = wefti_scheduler_port(s);
    wefti_scheduler_stop(s);
    return start(o);
}

/* All that live have joined and can be mended, and stand where `at` says. */
static wefti_scheduler *elastic_world(const wefti_scheduler_options *o, person p[RANKS],
                                      const wefti_elastic *elastic) {
    wefti_scheduler *s = start(o);
    for (int r = 0; r < o->size; r++) {
        set_up(&p[r], wefti_scheduler_address(s), r, p);
        begin(&p[r], join);
    }
    for (int r = 0; r < o->size; r++) end(&p[r]);
    for (int r = 0; r < o->size; r++) {
        wefti_member_arm(p[r].member, elastic);
        p[r].at = (wefti_stand){.step = TARGET, .ready = false};
    }
    return s;
}

static wefti_scheduler *world(const wefti_scheduler_options *o, person p[RANKS]) {
    return elastic_world(o, p, &keeps_size);
}

static void leave_all(person *p, int count) {
    for (int r = 0; r < count; r++) begin(&p[r], leave);
    for (int r = 0; r < count; r++) end(&p[r]);
}

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
        end(&p[r]);
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

/* The scheduler is gone at once, as after SIGKILL. */
static wefti_scheduler *crash(wefti_scheduler *s, wefti_scheduler_options *o) {
    pthread_mutex_lock(&s->lock);
    s->state = WEFTI_SCHEDULER_LEFT; /* no goodbye */
    for (int64_t i = 0; i < s->client_count; i++) {
        s->clients[i]->slot = -1;
        wefti_client_drop(s, s->clients[i]);
    }
    pthread_mutex_unlock(&s->lock);
    return follow(s, o);
}

static bool runs(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_RUNNING;
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
    for (int r = 0; r < RANKS; r++) end(&p[r]);
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
    for (int r = 0; r < RANKS; r++) end(&p[r]);
    pthread_mutex_lock(&s->lock);
    ASSERT_FACTS(s->mend.halt.text, "rank 1|come back");
    assert_int_equal(s->mend.deaths, 1);
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
        end(&p[r]);
        assert_int_equal(p[r].status, WEFT_OK);
        assert_true(p[r].mend.resized && p[r].mend.size == 2 && p[r].mend.rank == r / 2);
        assert_int_equal(p[r].at.step, TARGET);
    }
    for (int r = 0; r < RANKS; r += 2) begin(&p[r], leave);
    for (int r = 0; r < RANKS; r += 2) end(&p[r]);
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
    end(&p[1]);
    for (int r = 0; r < RANKS; r += 2) {
        p[r].member->leave_ns = 900000000000;
        begin(&p[r], leave);
        ASSERT_SOON(wefti_scheduler_has_left(s, r) || r == 2);
        if (r == 0) s = crash(s, &o);
    }
    for (int r = 0; r < RANKS; r += 2) end(&p[r]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_LEFT);
    wefti_scheduler_stop(s);
}

/* A launcher that asks too early has its answer once the ranks are there. */
static void a_launcher_asks_again(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(RANKS);
    o.restarts = 1;
    person p[RANKS], dead;
    wefti_scheduler *s = world(&o, p);
    wefti_member_options at = test_member(wefti_scheduler_address(s));
    const wefti_keep keep = {.seats = {1, 1}, .launcher = 9};
    wefti_watch *watch;
    wefti_span seats;
    int32_t size;
    assert_int_equal(wefti_watch_begin_keeping(&at, &keep, &watch), WEFT_OK);
    ASSERT_SOON(wefti_watch_seats(watch, &seats, &size) == WEFT_OK);
    dead = p[1];
    set_up(&p[1], wefti_scheduler_address(s), 1, p);
    p[1].at.step = -1;
    pthread_mutex_lock(&dead.member->caller.lock);
    wefti_caller_fail(&dead.member->caller, WEFT_E_PEER, WEFT_RANK_OWN, "dead");
    pthread_mutex_unlock(&dead.member->caller.lock);
    s = crash(s, &o);
    (void)wefti_member_close(dead.member, NULL);
    ASSERT_SOON(wefti_watch_again(watch, &killed, 1) != WEFTI_AGAIN_PENDING);
    assert_int_equal(wefti_watch_again(watch, &killed, 1), WEFTI_AGAIN_YES);
    assert_int_equal(wefti_scheduler_deaths(s, 1), 1);
    begin(&p[0], survive);
    begin(&p[2], survive);
    begin(&p[1], come);
    for (int r = 0; r < RANKS; r++) end(&p[r]);
    leave_all(p, RANKS);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
