/* Joining and all-gathers: any order of starting; ranks as requested; too many, too few, late and
 * unauthorised members. (weft-test: threads) */
#include "support.h"

#include <poll.h>

#include "base/fault.h"
#include "control_cases.h"
#include "launch/member/state.h"
#include "launch/socket.h"

enum { MOST = 16 };

static wefti_scheduler *start(const wefti_scheduler_options *o) {
    wefti_scheduler *s;
    weft_status status = wefti_scheduler_start(o, &s);
    if (status < 0) fail_msg("%s", weft_error_message());
    return s;
}

static void prepare(test_lane *lanes, int count, const char *address) {
    memset(lanes, 0, (size_t)count * sizeof *lanes);
    for (int i = 0; i < count; i++) {
        lanes[i].options = test_member(address);
        snprintf(lanes[i].node, sizeof lanes[i].node, "node-%d", i);
    }
}

static void all_good(const test_lane *lanes, int count) {
    bool seen[MOST] = {false};
    for (int i = 0; i < count; i++) {
        if (lanes[i].status < 0) fail_msg("member %d: %s", i, lanes[i].text);
        assert_false(lanes[i].wrong);
        assert_int_equal(lanes[i].size, count);
        assert_in_range(lanes[i].rank, 0, count - 1);
        assert_false(seen[lanes[i].rank]);
        seen[lanes[i].rank] = true;
        assert_true(lanes[i].generation == lanes[0].generation && lanes[i].generation > 0);
        assert_memory_equal(lanes[i].hosts, lanes[0].hosts, sizeof lanes[i].hosts);
    }
}

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
 * later report changes nothing. `far`: the report comes from another host's launcher. */
static void ends_before_all_came(void **state) {
    (void)state;
    for (int far = 0; far < 2; far++) {
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
            wefti_scheduler_ended(s, &(wefti_end){.rank = 2, .text = "rank 2 ended"});
        test_lanes_start(&lanes[1], 1);
        test_lanes_join(lanes, 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lanes[i].status, WEFT_E_PEER);
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

typedef struct leaver {
    wefti_member_options options;
    wefti_call_records records;
    weft_status joined, left;
    _Atomic bool has_joined; /* or failed to */
    pthread_t thread;
} leaver;

static void *join_and_leave(void *context) {
    leaver *l = context;
    wefti_member *m;
    l->joined = wefti_member_join(&l->options, &m);
    l->has_joined = true;
    if (l->joined >= 0) l->left = wefti_member_close(m, &l->records);
    return NULL;
}

/* FAIL and LEAVE behind each other, as on a busy machine: ABORT has not come yet. */
static void give_up_and_leave(wefti_member *m) {
    pthread_mutex_lock(&m->caller.lock);
    m->giving_up = wefti_strdup(TEST_REASON);
    m->fail_status = WEFT_E_PEER;
    m->failed = WEFT_RANK_OWN;
    m->leaving = true;
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
        ASSERT_SOON(20, other.has_joined); /* else it may hear of the failure while it joins */
        if (fails) give_up_and_leave(m);
        weft_status left = wefti_member_close(m, NULL);
        assert_int_equal(left, fails ? WEFT_E_PEER : WEFT_OK);
        pthread_join(other.thread, NULL);
        assert_int_equal(other.joined, WEFT_OK);
        assert_true(wefti_scheduler_has_left(s, 0) == !fails);
        wefti_scheduler_stop(s);
    }
}

static wefti_watch *look_at(const wefti_scheduler *s) {
    wefti_watch *look;
    wefti_member_options word = test_member(wefti_scheduler_address(s));
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    ASSERT_SOON(20, !wefti_watch_is_seeking(look));
    assert_true(wefti_watch_has_found(look));
    return look;
}

/* Members leave after unlike calls. Watchers, early and late, are told, and still know it when the
 * scheduler has gone. */
static void looks_for_unlike_calls(void **state) {
    (void)state;
    static leaver leavers[2];
    for (int unlike = 0; unlike < 2; unlike++) {
        wefti_scheduler_options o = test_scheduler(2);
        wefti_scheduler *s = start(&o);
        wefti_watch *look[2] = {look_at(s)};
        wefti_abort_reason reason = {.status = WEFT_OK};
        assert_false(wefti_watch_is_unlike(look[0], 20, &reason));
        for (int i = 0; i < 2; i++) {
            leavers[i] = (leaver){.options = test_member(wefti_scheduler_address(s))};
            leavers[i].options.rank = i;
            leavers[i].records.count = 1;
            leavers[i].records.of[0] = (wefti_call_record){.ranks = 9,
                                                           .other = -1,
                                                           .calls = 3,
                                                           .digest = (uint64_t)(unlike * i),
                                                           .text = "it"};
            assert_int_equal(pthread_create(&leavers[i].thread, NULL, join_and_leave, &leavers[i]),
                             0);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(leavers[i].thread, NULL);
            assert_int_equal(leavers[i].joined, WEFT_OK);
            assert_int_equal(leavers[i].left, unlike ? WEFT_E_MISMATCH : WEFT_OK);
        }
        look[1] = look_at(s);
        for (int i = 0; i < 4; i++) {
            if (i == 2) wefti_scheduler_stop(s);
            assert_true(wefti_watch_is_unlike(look[i % 2], 20, &reason) == unlike);
            if (unlike) ASSERT_FACTS(reason.text, "rank 0|rank 1|same calls");
            reason.text[0] = '\0';
        }
        for (int i = 0; i < 2; i++) wefti_watch_end(look[i]);
    }
}

/* Both ways between two sockets, until a launcher has found the scheduler behind them. */
static void carry(int one, int other, wefti_watch *look) {
    struct pollfd ends[2] = {{.fd = one, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    char data[1024];
    for (int turn = 0; turn < 10000 && !wefti_watch_has_found(look); turn++) {
        if (poll(ends, 2, 10) <= 0) continue;
        for (int i = 0; i < 2; i++) {
            ssize_t bytes = ends[i].revents ? read(ends[i].fd, data, sizeof data) : 0;
            if (bytes > 0) assert_int_equal(write(ends[1 - i].fd, data, (size_t)bytes), bytes);
        }
    }
    assert_true(wefti_watch_has_found(look));
}

/* Its connection was cut and stayed without an answer for its time limit: it stops waiting. */
static void gives_up_and_has_no_answer(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    wefti_address here, there;
    char text[WEFTI_ADDRESS_TEXT];
    int listener, near, far;
    wefti_watch *look;
    wefti_abort_reason reason;
    assert_int_equal(wefti_address_local("127.0.0.1", 0, &here), WEFT_OK);
    assert_int_equal(wefti_listen(&here, &listener), WEFT_OK);
    assert_int_equal(wefti_address_find(wefti_scheduler_address(s), &there), WEFT_OK);
    wefti_member_options word = test_member(wefti_address_text(&here, true, text));
    word.join_seconds = 1;
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 20000), 1);
    near = accept(listener, NULL, NULL);
    assert_true(near >= 0);
    assert_true(wefti_connect(&there, "", &far) >= 0);
    carry(near, far, look);
    close(near);
    close(far);
    int64_t begin = wefti_now_ns();
    assert_false(wefti_watch_is_unlike(look, 60, &reason));
    double took = (double)(wefti_now_ns() - begin) * 1e-9;
    if (took > 30) fail_msg("it was waited for an answer for %.1f s", took);
    wefti_watch_end(look);
    close(listener);
    wefti_scheduler_stop(s);
}

static bool has_called_in_vain(wefti_watch *watch) {
    wefti_caller *c = (wefti_caller *)watch; /* its first field */
    pthread_mutex_lock(&c->lock);
    bool so = c->trouble[0] != '\0';
    pthread_mutex_unlock(&c->lock);
    return so;
}

/* A watcher finds the scheduler and takes no slot. The scheduler knows which ranks were told of a
 * failure. */
static void looks_and_is_told(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(3);
    o.join_seconds = 40;
    wefti_scheduler *s = start(&o);
    wefti_watch *look;
    wefti_member_options word = test_member(wefti_scheduler_address(s));
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    ASSERT_SOON(20, !wefti_watch_is_seeking(look));
    wefti_watch_end(look);
    word.scheduler = "127.0.0.1:1";
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    ASSERT_SOON(20, has_called_in_vain(look));
    assert_true(wefti_watch_is_seeking(look));
    wefti_watch_end(look);

    assert_true(wefti_scheduler_seconds_to_come(s) > 0);
    assert_false(wefti_scheduler_has_told(s, 0, 3));
    wefti_scheduler_ended(s, &(wefti_end){.rank = 2, .text = "rank 2 ended"});
    assert_true(wefti_scheduler_has_told(s, 2, 1));
    assert_false(wefti_scheduler_has_told(s, 0, 2));
    test_lane lane;
    prepare(&lane, 1, wefti_scheduler_address(s));
    lane.options.rank = 1;
    test_lanes_start(&lane, 1);
    test_lanes_join(&lane, 1);
    assert_int_equal(lane.status, WEFT_E_PEER);
    assert_true(wefti_scheduler_has_told(s, 0, 2));
    assert_false(wefti_scheduler_has_told(s, 0, 1));
    assert_true(wefti_scheduler_seconds_to_come(s) > 0);
    wefti_scheduler_ended(
        s, &(wefti_end){.rank = 5, .text = "rank 5 ended"}); /* of a host that counts otherwise */
    assert_true(wefti_scheduler_has_told(s, 0, 1));
    wefti_scheduler_stop(s);
}

/* Launchers on other hosts learn of the first failed process, early or late. A process that ended
 * well, or was asked to end and left, is not reported. */
static void launchers_hear_of_failures(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(4);
    wefti_scheduler *s = start(&o);
    wefti_member_options word = test_member(wefti_scheduler_address(s));
    wefti_watch *early, *late;
    wefti_report *report;
    wefti_end end;
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){0, 2}, &early), WEFT_OK);
    ASSERT_SOON(20, wefti_scheduler_is_watched(s, 1, 3));
    assert_false(wefti_scheduler_is_watched(s, 2, 2));
    wefti_scheduler_ended(s, &(wefti_end){.rank = 2, .text = "rank 2 ended well"});
    assert_false(wefti_scheduler_is_over(s, &end) || wefti_watch_is_over(early, &end));
    assert_int_equal(wefti_report_begin(&word,
                                        &(wefti_end){.rank = 3, .signal = 9, .text = "rank 3 died"},
                                        &report),
                     WEFT_OK);
    wefti_report_end(report, 20, false);
    wefti_scheduler_ended(s, &(wefti_end){.rank = 2, .code = 7, .text = "rank 2 failed"});
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){2, 1}, &late), WEFT_OK);
    ASSERT_SOON(20, wefti_watch_is_over(late, &end));
    assert_true(wefti_watch_is_over(early, &end) && end.rank == 3 && end.signal == 9);
    assert_true(wefti_watch_is_over(late, &end) && end.code == 0);
    assert_string_equal(end.text, "rank 3 died");
    assert_false(wefti_scheduler_has_told(s, 0, 2));
    wefti_watch_end(early); /* its processes have ended, then */
    ASSERT_SOON(20, wefti_scheduler_has_told(s, 1, 1));
    assert_true(wefti_scheduler_has_told(s, 0, 1));
    wefti_watch_end(late);
    wefti_scheduler_stop(s);
}

/* A scheduler of a launcher: programs join one world after the other. */
static void worlds_follow_each_other(void **state) {
    (void)state;
    uint64_t seed = test_new_seed(), before = 0;
    wefti_scheduler_options o = test_scheduler(3);
    o.repeats = true;
    wefti_scheduler *s = start(&o);
    for (int round = 0; round < 10; round++) {
        test_lane lanes[3];
        prepare(lanes, 3, wefti_scheduler_address(s));
        for (int i = 0; i < 3; i++) {
            lanes[i].delay_us = (int)(test_random(&seed) % 5000);
            lanes[i].swaps = round % 4;
        }
        test_lanes_start(lanes, 3);
        test_lanes_join(lanes, 3);
        all_good(lanes, 3);
        assert_true(lanes[0].generation > before);
        before = lanes[0].generation;
    }
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 20), WEFTI_SCHEDULER_LEFT);
    wefti_scheduler_stop(s);
}

static bool one_waits_for_the_next_world(const wefti_scheduler *s) {
    for (int64_t i = 0; i < s->client_count; i++)
        if (s->clients[i]->next) return true;
    return false;
}

/* Rank 0 has left the first world of two and comes for the next, `slow` is still there. */
static wefti_scheduler *come_early(wefti_scheduler_options *o, test_lane lanes[2], test_lane *first,
                                   wefti_member **out_slow) {
    o->repeats = true;
    wefti_scheduler *s = start(o);
    prepare(lanes, 2, wefti_scheduler_address(s));
    for (int i = 0; i < 2; i++) lanes[i].options.rank = i;
    *first = lanes[0];
    first->options.leave_seconds = 0.01;
    test_lanes_start(first, 1);
    assert_int_equal(wefti_member_join(&lanes[1].options, out_slow), WEFT_OK);
    test_lanes_join(first, 1);
    assert_int_equal(first->status, WEFT_OK);
    test_lanes_start(&lanes[0], 1);
    test_wait_until(s, one_waits_for_the_next_world);
    return s;
}

/* A member that has left may come for the next world while others are still in this one. */
static void the_next_world_waits(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    test_lane lanes[2], first;
    wefti_member *slow;
    wefti_scheduler *s = come_early(&o, lanes, &first, &slow);
    assert_int_equal(wefti_member_close(slow, NULL), WEFT_OK);
    test_lanes_start(&lanes[1], 1);
    test_lanes_join(lanes, 2);
    all_good(lanes, 2);
    assert_true(lanes[0].generation > first.generation);
    wefti_scheduler_stop(s);
}

/* ... and hears of it when that one fails. */
static void the_next_world_never_comes(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    test_lane lanes[2], first;
    wefti_member *slow;
    wefti_scheduler *s = come_early(&o, lanes, &first, &slow);
    wefti_member_fail(slow, WEFT_RANK_OWN, TEST_REASON);
    test_lanes_join(lanes, 1);
    assert_int_equal(lanes[0].status, WEFT_E_PEER);
    assert_int_equal(lanes[0].failed, 1);
    ASSERT_FACTS(lanes[0].text, "rank 1|" TEST_REASON);
    (void)wefti_member_close(slow, NULL);
    wefti_scheduler_stop(s);
}

/* A process that has ended does not come to the next world: nobody waits for it. */
static void ends_between_worlds(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    o.repeats = true;
    o.join_seconds = 1000;
    wefti_scheduler *s = start(&o);
    test_lane lanes[2];
    prepare(lanes, 2, wefti_scheduler_address(s));
    for (int i = 0; i < 2; i++) lanes[i].options.rank = i;
    test_lanes_start(lanes, 2);
    test_lanes_join(lanes, 2);
    all_good(lanes, 2);
    wefti_scheduler_ended(s, &(wefti_end){.rank = 0, .text = "rank 0 ended well"});
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 5), WEFTI_SCHEDULER_LEFT);
    test_lanes_start(&lanes[1], 1);
    test_lanes_join(&lanes[1], 1);
    assert_int_equal(lanes[1].status, WEFT_E_PEER);
    assert_int_equal(lanes[1].failed, 0);
    ASSERT_FACTS(lanes[1].text, "rank 0 ended well|all ranks");
    wefti_scheduler_stop(s);
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
        ASSERT_SOON(20, v.ready);
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
        cmocka_unit_test(report_to_nobody),
        cmocka_unit_test(looks_for_unlike_calls),
        cmocka_unit_test(gives_up_and_has_no_answer),
        cmocka_unit_test(looks_and_is_told),
        cmocka_unit_test(launchers_hear_of_failures),
        cmocka_unit_test(leaves_after_a_failure),
        cmocka_unit_test(worlds_follow_each_other),
        cmocka_unit_test(the_next_world_waits),
        cmocka_unit_test(the_next_world_never_comes),
        cmocka_unit_test(ends_between_worlds),
        cmocka_unit_test(scheduler_late),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(refuses),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(serves_until_all_is_over),
        TEST_OVER_TLS(any_order),
        TEST_OVER_TLS(ranks_as_wanted),
        TEST_OVER_TLS(one_too_many),
        TEST_OVER_TLS(one_too_few),
        TEST_OVER_TLS(ends_before_all_came),
        TEST_OVER_TLS(worlds_follow_each_other),
        TEST_OVER_TLS(scheduler_late),
        TEST_OVER_TLS(nobody_there),
        TEST_OVER_TLS(refuses),
        TEST_OVER_TLS(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
