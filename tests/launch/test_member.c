/* Joining and all-gathers: any order of starting; ranks as requested; too many, too few, late and
 * unauthorised members. (weft-test: threads) */
#include "lanes.h"

static void any_order(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    for (int round = 0; round < 12; round++) {
        int count = 1 + (int)(test_random(&seed) % MOST);
        wefti_scheduler_options o = test_scheduler(count);
        wefti_scheduler *s = start(&o);
        test_lane lanes[MOST];
        prepare(lanes, count, wefti_scheduler_address(s));
        for (int i = 0; i < count; i++) {
            lanes[i].delay_us = (int)(test_random(&seed) % 30000);
            lanes[i].swaps = 20;
        }
        test_lanes_start(lanes, count);
        test_lanes_join(lanes, count);
        all_good(lanes, count);
        for (int i = 0; i < count; i++) assert_int_equal(lanes[i].rank, i); /* node-2 < node-10 */
        assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 5), WEFTI_SCHEDULER_LEFT);
        wefti_scheduler_stop(s);
    }
}

static void ranks_as_wanted(void **state) {
    (void)state;
    enum { COUNT = 5 };
    static const int wanted[COUNT] = {3, 0, 4, 2, 1};
    for (int way = 0; way < 3; way++) {
        wefti_scheduler_options o = test_scheduler(COUNT);
        wefti_scheduler *s = start(&o);
        test_lane lanes[COUNT];
        prepare(lanes, COUNT, wefti_scheduler_address(s));
        for (int i = 0; i < COUNT; i++) {
            lanes[i].swaps = 1;
            if (way == 0) lanes[i].options.rank = wanted[i];
            if (way == 1) snprintf(lanes[i].node, sizeof lanes[i].node, "%d", wanted[i]);
            if (way == 2) { /* one member asks for a rank; the others take free ones */
                lanes[i].options.rank = i == 0 ? 2 : -1;
                snprintf(lanes[i].host, sizeof lanes[i].host, "host-%d", i % 2);
            }
        }
        test_lanes_start(lanes, COUNT);
        test_lanes_join(lanes, COUNT);
        all_good(lanes, COUNT);
        for (int i = 0; i < COUNT && way < 2; i++) assert_int_equal(lanes[i].rank, wanted[i]);
        /* host-0: members 0, 2, 4; host-1: 1, 3. By (host, node): 0 2 4 1 3, with 0 at rank 2. */
        static const int third[COUNT] = {2, 3, 0, 4, 1}, third_hosts[COUNT] = {0, 0, 0, 1, 1};
        for (int i = 0; i < COUNT && way == 2; i++) {
            assert_int_equal(lanes[i].rank, third[i]);
            assert_int_equal(lanes[0].hosts[i], third_hosts[i]);
        }
        wefti_scheduler_stop(s);
    }
}

static void one_too_many(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(3);
    wefti_scheduler *s = start(&o);
    test_lane lanes[4];
    prepare(lanes, 4, wefti_scheduler_address(s));
    for (int i = 0; i < 4; i++) lanes[i].swaps = 3;
    lanes[3].delay_us = 100000;
    test_lanes_start(lanes, 4);
    test_lanes_join(lanes, 4);
    all_good(lanes, 3);
    assert_int_equal(lanes[3].status, WEFT_E_MISMATCH);
    ASSERT_FACTS(lanes[3].text, "too many|3 members");
    wefti_scheduler_stop(s);
}

static void one_too_few(void **state) {
    (void)state;
    for (int known = 0; known < 2; known++) {
        wefti_scheduler_options o = test_scheduler(4);
        o.join_seconds = 0.5;
        wefti_scheduler *s = start(&o);
        test_lane lanes[3];
        prepare(lanes, 3, wefti_scheduler_address(s));
        for (int i = 0; i < 3; i++) {
            lanes[i].options.join_seconds = 0.5;
            lanes[i].options.rank = known ? i + (i > 1) : -1;
        }
        test_lanes_start(lanes, 3);
        test_lanes_join(lanes, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(lanes[i].status, WEFT_E_TIMEOUT);
            ASSERT_FACTS(lanes[i].text, "1 of 4|missing|0.5 s");
            assert_true(has_facts(lanes[i].text, "rank 2") == known);
        }
        assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 0),
                         WEFTI_SCHEDULER_FAILED);
        test_lane late[1];
        prepare(late, 1, wefti_scheduler_address(s));
        test_lanes_start(late, 1);
        test_lanes_join(late, 1);
        assert_int_equal(late[0].status, WEFT_E_TIMEOUT);
        ASSERT_FACTS(late[0].text, "has failed|1 of 4|0.5 s");
        assert_int_equal(late[0].failed, WEFT_RANK_NONE);
        wefti_scheduler_stop(s);
    }
}

/* A member that comes after a failure learns which rank failed. */
static void after_a_failure(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(3);
    wefti_scheduler *s = start(&o);
    test_lane lanes[4];
    prepare(lanes, 4, wefti_scheduler_address(s));
    lanes[1].gives_up = true;
    for (int i = 0; i < 3; i++) lanes[i].options.rank = i;
    test_lanes_start(lanes, 3);
    test_lanes_join(lanes, 3);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 20), WEFTI_SCHEDULER_FAILED);
    test_lanes_start(&lanes[3], 1);
    test_lanes_join(&lanes[3], 1);
    assert_int_equal(lanes[3].status, WEFT_E_PEER);
    ASSERT_FACTS(lanes[3].text, "rank 1|" TEST_REASON);
    assert_int_equal(lanes[3].failed, 1);
    wefti_scheduler_stop(s);
}

/* The process of a rank ends before it was a member. Waiting and later members learn its rank; a
 * later report changes nothing. `far`: the report comes from another host's launcher. `killed`: a
 * signal ended it, so the job may do better the next time. */
static void ends_before_all_came(void **state) {
    (void)state;
    for (int way = 0; way < 3; way++) {
        bool far = way == 1, killed = way == 2;
        int rank = far ? 7 : 2; /* hosts may have been told different numbers */
        wefti_scheduler_options o = test_scheduler(3);
        wefti_scheduler *s = start(&o);
        test_lane lanes[2];
        prepare(lanes, 2, wefti_scheduler_address(s));
        for (int i = 0; i < 2; i++) lanes[i].options.rank = i;
        test_lanes_start(lanes, 1);
        if (far) {
            wefti_report *report;
            wefti_member_options word = test_member(wefti_scheduler_address(s));
            word.rank = rank;
            assert_int_equal(
                wefti_report_begin(
                    &word, &(wefti_end){.rank = 7, .code = 3, .text = "rank 7 ended"}, &report),
                WEFT_OK);
            wefti_report_end(report, 20, false);
        } else
            wefti_scheduler_ended(
                s, &(wefti_end){.rank = 2, .signal = killed ? 9 : 0, .text = "rank 2 ended"});
        test_lanes_start(&lanes[1], 1);
        test_lanes_join(lanes, 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lanes[i].status, killed ? WEFT_E_LOST : WEFT_E_PEER);
            assert_int_equal(lanes[i].failed, far ? WEFT_RANK_NONE : rank);
            ASSERT_FACTS(lanes[i].text, far ? "rank 7 ended|3 ranks" : "rank 2 ended|all ranks");
        }
        wefti_scheduler_stop(s);
    }
}

static void ends_later(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    test_lane lanes[2];
    prepare(lanes, 2, wefti_scheduler_address(s));
    for (int i = 0; i < 2; i++) lanes[i].swaps = 500;
    test_lanes_start(lanes, 2);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 20), WEFTI_SCHEDULER_RUNNING);
    wefti_report *report;
    wefti_member_options word = test_member(wefti_scheduler_address(s));
    word.rank = 1;
    assert_int_equal(wefti_report_begin(&word,
                                        &(wefti_end){.rank = 1, .code = 3, .text = "rank 1 ended"},
                                        &report),
                     WEFT_OK);
    wefti_report_end(report, 20, false);
    wefti_scheduler_ended(s, &(wefti_end){.rank = 0, .text = "rank 0 ended"});
    test_lanes_join(lanes, 2);
    all_good(lanes, 2);
    wefti_scheduler_stop(s);
}

static wefti_watch *launcher_of(const wefti_scheduler *s, uint64_t number, int32_t rank) {
    wefti_watch *w;
    wefti_member_options o = test_member(wefti_scheduler_address(s));
    o.launcher = number;
    assert_int_equal(wefti_watch_begin(&o, &(wefti_span){rank, 1}, &w), WEFT_OK);
    return w;
}

static void may_not_start(const wefti_scheduler *s, uint64_t number, int32_t rank,
                          const char *facts) {
    wefti_watch *w = launcher_of(s, number, rank);
    assert_int_equal(wefti_watch_registered(w, 900), WEFT_E_MISMATCH);
    ASSERT_FACTS(weft_error_message(), facts);
    wefti_watch_end(w);
}

static void says_that_it_failed(const wefti_scheduler *s, uint64_t number, int32_t rank) {
    wefti_report *report;
    wefti_member_options o = test_member(wefti_scheduler_address(s));
    o.launcher = number;
    const wefti_end end = {.rank = rank, .code = 3, .text = "a rank ended with 3"};
    assert_int_equal(wefti_report_begin(&o, &end, &report), WEFT_OK);
    wefti_report_end(report, 900, false);
}

/* A launcher owns its ranks while it is connected, and while their processes are: another one may
 * not start them, and is not heard for them. */
static void ranks_have_one_launcher(void **state) {
    (void)state;
    enum { FIRST = 11, SECOND = 22 };
    wefti_scheduler_options o = test_scheduler(2);
    o.own = (wefti_span){0, 1};
    wefti_scheduler *s = start(&o);
    wefti_end end;
    wefti_watch *first = launcher_of(s, FIRST, 1);
    assert_int_equal(wefti_watch_registered(first, 900), WEFT_OK);
    may_not_start(s, SECOND, 1, "launcher process|rank 1|--host-rank");
    may_not_start(s, SECOND, 0, "launcher process|rank 0|scheduler");
    says_that_it_failed(s, SECOND, 1);
    says_that_it_failed(s, FIRST, 0);
    assert_false(wefti_scheduler_is_over(s, &end));
    test_lane lanes[2];
    prepare(lanes, 2, wefti_scheduler_address(s));
    for (int i = 0; i < 2; i++) lanes[i].swaps = 500;
    test_lanes_start(lanes, 2);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_FORMING, 900),
                     WEFTI_SCHEDULER_RUNNING);
    says_that_it_failed(s, SECOND, 1);
    assert_false(wefti_scheduler_is_over(s, &end));
    wefti_watch *again = launcher_of(s, FIRST, 1); /* over a new connection */
    assert_int_equal(wefti_watch_registered(again, 900), WEFT_OK);
    says_that_it_failed(s, FIRST, 1);
    assert_true(wefti_scheduler_is_over(s, &end));
    assert_int_equal(end.rank, 1);
    test_lanes_join(lanes, 2);
    all_good(lanes, 2);
    wefti_watch_end(first);
    wefti_watch_end(again);
    wefti_scheduler_stop(s);
}

/* Nobody answers: that is found out once, or tried until the time is up. */
static void report_to_nobody(void **state) {
    (void)state;
    wefti_report *report;
    wefti_member_options word = test_member("127.0.0.1:1");
    word.rank = 1;
    assert_int_equal(wefti_report_begin(&word,
                                        &(wefti_end){.rank = 1, .code = 3, .text = "rank 1 ended"},
                                        &report),
                     WEFT_OK);
    wefti_report_end(report, 1000, true);
    assert_int_equal(wefti_report_begin(&word,
                                        &(wefti_end){.rank = 1, .code = 3, .text = "rank 1 ended"},
                                        &report),
                     WEFT_OK);
    wefti_report_end(report, 0.2, false);
}

/* FAIL and LEAVE behind each other, as on a busy machine: ABORT has not come yet. */
static void give_up_and_leave(wefti_member *m) {
    pthread_mutex_lock(&m->caller.lock);
    m->giving_up = wefti_strdup(TEST_REASON);
    m->fail_status = WEFT_E_PEER;
    m->failed = WEFT_RANK_OWN;
    m->fail_word = m->leave_word = WEFTI_WORD_DUE;
    pthread_mutex_unlock(&m->caller.lock);
}

/* A rank that has failed the job leaves, but not in agreement with the others. */
static void leaves_after_a_failure(void **state) {
    (void)state;
    static leaver other;
    for (int fails = 0; fails < 2; fails++) {
        wefti_scheduler_options o = test_scheduler(2);
        wefti_scheduler *s = start(&o);
        wefti_member *m;
        wefti_member_options mine = test_member(wefti_scheduler_address(s));
        other = (leaver){.options = mine};
        other.options.rank = 1;
        mine.rank = 0;
        assert_int_equal(pthread_create(&other.thread, NULL, join_and_leave, &other), 0);
        assert_int_equal(wefti_member_join(&mine, &m), WEFT_OK);
        ASSERT_SOON(other.has_joined); /* else it may hear of the failure while it joins */
        if (fails) give_up_and_leave(m);
        weft_status left = wefti_member_close(m, NULL);
        assert_int_equal(left, fails ? WEFT_E_PEER : WEFT_OK);
        pthread_join(other.thread, NULL);
        assert_int_equal(other.joined, WEFT_OK);
        assert_true(wefti_scheduler_has_left(s, 0) == !fails);
        wefti_scheduler_stop(s);
    }
}

/* Takes `count` connections at a port of the loopback interface and hangs up on each. False: the
 * port is in use. */
static bool hang_up_on_callers(int port, int count) {
    wefti_address here;
    int listener;
    assert_int_equal(wefti_address_local("127.0.0.1", port, &here), WEFT_OK);
    if (wefti_listen(&here, &listener) < 0) return false;
    for (int taken = 0; taken < count;) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, 20000), 1);
        int caller = accept(listener, NULL, NULL);
        if (caller < 0) continue;
        close(caller);
        taken++;
    }
    close(listener);
    return true;
}

/* Members may be there first: they call until the scheduler has started. */
static void scheduler_late(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    char address[64];
    snprintf(address, sizeof address, "%s", wefti_scheduler_address(s));
    o.port = wefti_scheduler_port(s);
    wefti_scheduler_stop(s); /* a port that was free a moment ago */
    test_lane lanes[2];
    prepare(lanes, 2, address);
    lanes[0].swaps = lanes[1].swaps = 2;
    test_lanes_start(lanes, 2);
    bool free = hang_up_on_callers(o.port, 4);
    weft_status status = free ? wefti_scheduler_start(&o, &s) : WEFT_E_IO;
    if (status == WEFT_E_IO) { /* somebody else took it meanwhile */
        print_message("SKIP: %s\n", weft_error_message());
        for (int i = 0; i < 2; i++) pthread_join(lanes[i].thread, NULL);
        return;
    }
    test_lanes_join(lanes, 2);
    all_good(lanes, 2);
    wefti_scheduler_stop(s);
}

static void nobody_there(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    char address[64];
    snprintf(address, sizeof address, "%s", wefti_scheduler_address(s));
    wefti_scheduler_stop(s);
    test_lane lanes[1];
    prepare(lanes, 1, address);
    lanes[0].options.join_seconds = 0.3;
    test_lanes_start(lanes, 1);
    test_lanes_join(lanes, 1);
    assert_int_equal(lanes[0].status, WEFT_E_TIMEOUT);
    ASSERT_FACTS(lanes[0].text, address);
    ASSERT_FACTS(lanes[0].text, "Connection refused");
}

typedef struct refusal {
    const char *facts;
    int32_t rank, size;
    const char *job, *node;
    int secret;
    weft_status status;
} refusal;
static const refusal refusals[] = {
    {"two processes|rank 1|process", 1, -1, "", "x", 42, WEFT_E_MISMATCH},
    {"rank 7|ranks 0 to 2", 7, -1, "", "x", 42, WEFT_E_MISMATCH},
    {"job of 4|for 3", -1, 4, "", "x", 42, WEFT_E_MISMATCH},
    {"job ''|'other'", -1, -1, "other", "x", 42, WEFT_E_MISMATCH},
    {"two processes|one host|'node-0'", -1, -1, "", "node-0", 42, WEFT_E_MISMATCH},
    {"another secret", -1, -1, "", "x", 43, WEFT_E_ARG},
};

static bool two_are_in(const wefti_scheduler *s) {
    return s->taken == 2;
}

static void refuses(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(3);
    wefti_scheduler *s = start(&o);
    test_lane lanes[3], bad[1];
    prepare(lanes, 3, wefti_scheduler_address(s));
    for (int i = 0; i < 3; i++) {
        lanes[i].options.rank = i;
        lanes[i].swaps = 2;
    }
    test_lanes_start(lanes, 2);
    test_wait_until(s, two_are_in);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        prepare(bad, 1, wefti_scheduler_address(s));
        bad[0].options.rank = r->rank;
        bad[0].options.size = r->size;
        bad[0].options.job = r->job;
        memset(&bad[0].options.secret, r->secret, sizeof bad[0].options.secret);
        snprintf(bad[0].node, sizeof bad[0].node, "%s", r->node);
        test_lanes_start(bad, 1);
        test_lanes_join(bad, 1);
        if (bad[0].status != r->status || !has_facts(bad[0].text, r->facts))
            fail_msg("'%s' instead of '%s'", bad[0].text, r->facts);
    }
    test_lanes_start(lanes + 2, 1);
    test_lanes_join(lanes, 3);
    all_good(lanes, 3); /* nothing of that has harmed them */
    wefti_scheduler_stop(s);
}

/* --- a process that is the scheduler and nothing else */

typedef struct server {
    wefti_scheduler_options options;
    char address[64];
    _Atomic int ready;
    weft_status status;
    char text[512], *table;
} server;

static void announced(void *context, const char *address) {
    server *v = context;
    snprintf(v->address, sizeof v->address, "%s", address);
    v->ready = 1;
}
static void *serve(void *context) {
    server *v = context;
    v->status = wefti_scheduler_serve(&v->options, announced, v, &v->table);
    snprintf(v->text, sizeof v->text, "%s", weft_error_message());
    return NULL;
}

static void serves_until_all_is_over(void **state) {
    (void)state;
    for (int missing = 0; missing < 2; missing++) {
        server v = {.options = test_scheduler(2 + missing)};
        if (missing) v.options.join_seconds = 0.3;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, serve, &v), 0);
        ASSERT_SOON(v.ready);
        test_lane lanes[2];
        prepare(lanes, 2, v.address);
        lanes[0].swaps = lanes[1].swaps = 3;
        test_lanes_start(lanes, 2);
        test_lanes_join(lanes, 2);
        pthread_join(thread, NULL);
        if (missing) {
            assert_int_equal(v.status, WEFT_E_TIMEOUT);
            ASSERT_FACTS(v.text, "1 of 3|missing");
            assert_int_equal(lanes[0].status, WEFT_E_TIMEOUT);
        } else {
            all_good(lanes, 2);
            assert_int_equal(v.status, WEFT_OK);
            assert_non_null(strstr(v.table, "left"));
        }
        wefti_free(v.table);
    }
}

/* The n-th allocation fails, wherever that is: errors, and nothing hangs or leaks. */
static void without_memory(void **state) {
    (void)state;
    int good = 0, bad = 0;
    for (int64_t nth = 0; nth < 40; nth++) {
        wefti_scheduler_options o = test_scheduler(2);
        o.join_seconds = 0.2;
        wefti_scheduler *s;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = wefti_scheduler_start(&o, &s);
        if (status < 0) {
            assert_int_equal(status, WEFT_E_NOMEM);
            bad++;
            continue;
        }
        test_lane lanes[2];
        prepare(lanes, 2, wefti_scheduler_address(s));
        for (int i = 0; i < 2; i++) {
            lanes[i].swaps = 2;
            lanes[i].options.join_seconds = 0.2;
            lanes[i].options.leave_seconds = 0.2;
        }
        test_lanes_start(lanes, 2);
        test_lanes_join(lanes, 2);
        for (int i = 0; i < 2; i++) {
            assert_false(lanes[i].wrong);
            if (lanes[i].status < 0) assert_true(lanes[i].text[0]);
        }
        if (lanes[0].status >= 0 && lanes[1].status >= 0)
            good++;
        else
            bad++;
        char *table = wefti_scheduler_table(s);
        wefti_free(table);
        wefti_scheduler_stop(s);
    }
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    print_message("%d went well, %d failed\n", good, bad);
    assert_true(good > 0 && bad > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order),
        cmocka_unit_test(ranks_as_wanted),
        cmocka_unit_test(one_too_many),
        cmocka_unit_test(one_too_few),
        cmocka_unit_test(after_a_failure),
        cmocka_unit_test(ends_before_all_came),
        cmocka_unit_test(ends_later),
        cmocka_unit_test(ranks_have_one_launcher),
        cmocka_unit_test(report_to_nobody),
        cmocka_unit_test(leaves_after_a_failure),
        cmocka_unit_test(scheduler_late),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(refuses),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(serves_until_all_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
