/* Launchers that watch a job: they hear of unlike calls, of failures and of the end, early or late.
 * (weft-test: threads) */
#include "lanes.h"

static wefti_watch *look_at(const wefti_scheduler *s) {
    wefti_watch *look;
    wefti_member_options word = test_member(wefti_scheduler_address(s));
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    ASSERT_SOON(!wefti_watch_is_seeking(look));
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
    ASSERT_SOON(!wefti_watch_is_seeking(look));
    wefti_watch_end(look);
    word.scheduler = "127.0.0.1:1";
    assert_int_equal(wefti_watch_begin(&word, &(wefti_span){1, 1}, &look), WEFT_OK);
    ASSERT_SOON(has_called_in_vain(look));
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
    ASSERT_SOON(wefti_scheduler_is_watched(s, 1, 3));
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
    ASSERT_SOON(wefti_watch_is_over(late, &end));
    ASSERT_SOON(wefti_watch_is_over(early, &end)); /* each has a line of its own */
    assert_true(end.rank == 3 && end.signal == 9);
    assert_true(wefti_watch_is_over(late, &end) && end.code == 0);
    assert_string_equal(end.text, "rank 3 died");
    assert_false(wefti_scheduler_has_told(s, 0, 2));
    wefti_watch_end(early); /* its processes have ended, then */
    ASSERT_SOON(wefti_scheduler_has_told(s, 1, 1));
    assert_true(wefti_scheduler_has_told(s, 0, 1));
    wefti_watch_end(late);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_for_unlike_calls),
        cmocka_unit_test(gives_up_and_has_no_answer),
        cmocka_unit_test(looks_and_is_told),
        cmocka_unit_test(launchers_hear_of_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
