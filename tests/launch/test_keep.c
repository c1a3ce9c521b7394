/* Launchers on hosts without the scheduler: who has the right to fill which seats, and what a
 * launcher hears of a rank that it has lost. (weft-test: threads) */
#include "lanes.h"

#include <signal.h>
#include <sys/socket.h>

static const wefti_elastic keeps_size;

static wefti_watch *launcher(const wefti_scheduler *s, uint64_t number, int32_t first,
                             int32_t count) {
    wefti_member_options o = test_member(wefti_scheduler_address(s));
    const wefti_keep keep = {.seats = {first, count}, .launcher = number};
    wefti_watch *watch;
    assert_int_equal(wefti_watch_begin_keeping(&o, &keep, &watch), WEFT_OK);
    return watch;
}

static weft_status seats_of(wefti_watch *watch) {
    wefti_span seats;
    int32_t size;
    return wefti_watch_seats(watch, &seats, &size);
}

static void gets(wefti_watch *watch, int32_t first, int32_t count, int32_t deaths) {
    wefti_span seats;
    int32_t size;
    ASSERT_SOON(seats_of(watch) != WEFT_PENDING);
    assert_int_equal(wefti_watch_seats(watch, &seats, &size), WEFT_OK);
    assert_int_equal(seats.first, first);
    assert_int_equal(seats.count, count);
    assert_int_equal(wefti_watch_deaths(watch, first), deaths);
}

/* It has asked, and the scheduler has looked at it more than once. */
static void gets_nothing(wefti_watch *watch) {
    ASSERT_SOON(wefti_watch_has_found(watch));
    for (int i = 0; i < 30; i++) {
        assert_int_equal(seats_of(watch), WEFT_PENDING);
        (void)poll(NULL, 0, 5);
    }
}

/* Ranks of a world that may be mended, each in its own thread while it joins. */
typedef struct person {
    wefti_member_options options;
    wefti_member *member;
    weft_status status;
} person;

static void *join(void *context) {
    person *p = context;
    p->status = wefti_member_join(&p->options, &p->member);
    return NULL;
}

static bool all_armed(const wefti_scheduler *s) {
    return s->mend.armed == 3;
}

static bool two_are_here(const wefti_scheduler *s) {
    return s->taken == 2;
}

/* The one that is missing is named early, and once. This machine may be slow, so the real time may
 * have come as well. */
static void is_named_early(wefti_scheduler *s) {
    const int64_t second_ns = 1000000000;
    pthread_mutex_lock(&s->lock);
    s->told_missing = false;
    const int64_t before = s->notes.count;
    wefti_scheduler_check_forming(s, s->start_ns + 9 * second_ns);
    const int64_t at_9 = s->notes.count;
    wefti_scheduler_check_forming(s, s->start_ns + 11 * second_ns);
    wefti_scheduler_check_forming(s, s->start_ns + 12 * second_ns);
    const int64_t at_12 = s->notes.count;
    pthread_mutex_unlock(&s->lock);
    assert_true(at_9 == before);
    assert_true(at_12 == before + 1);
}

/* Each that came since the last look, and how many are lost. */
static void notes_are_told_in_order(void **state) {
    (void)state;
    enum { MORE = 2, ALL = WEFTI_NOTES + MORE };
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    int64_t told = 0;
    for (int all = 1; all <= ALL; all += ALL - 1) {
        const int lost = all == ALL ? MORE : 0;
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < all; i++) wefti_scheduler_note(s, "note %d", i);
        pthread_mutex_unlock(&s->lock);
        for (int i = lost; i < all; i++) {
            char words[32], *text = wefti_scheduler_noted(s, &told);
            (void)snprintf(words, sizeof words, "note %d", i);
            assert_non_null(text);
            assert_true(strlen(text) >= strlen(words));
            const size_t before = strlen(text) - strlen(words);
            assert_string_equal(text + before, words);
            assert_true((before > 0) == (lost && i == lost)); /* the first one says it */
            wefti_free(text);
        }
        assert_null(wefti_scheduler_noted(s, &told));
    }
    wefti_scheduler_stop(s);
}

static void join_three(wefti_scheduler *s, person p[3]) {
    pthread_t thread[3];
    for (int32_t r = 0; r < 3; r++) {
        if (r == 2) test_wait_until(s, two_are_here);
        if (r == 2) is_named_early(s);
        p[r] = (person){.options = test_member(wefti_scheduler_address(s))};
        p[r].options.rank = r;
        p[r].options.host = r ? "there" : "here";
        assert_int_equal(pthread_create(&thread[r], NULL, join, &p[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        assert_int_equal(p[r].status, WEFT_OK);
    }
}

static void arm_three(wefti_scheduler *s, person p[3], const wefti_elastic *elastic) {
    for (int r = 0; r < 3; r++) wefti_member_arm(p[r].member, elastic);
    test_wait_until(s, all_armed);
}

static wefti_scheduler *three(person p[3]) {
    wefti_scheduler_options o = test_scheduler(3);
    o.restarts = 3;
    o.join_seconds = 200;
    wefti_scheduler *s = start(&o);
    join_three(s, p);
    arm_three(s, p, &keeps_size);
    return s;
}

static void die(wefti_scheduler *s, person *p, int32_t rank) {
    wefti_caller *c = &p->member->caller;
    const int deaths = wefti_scheduler_deaths(s, rank);
    pthread_mutex_lock(&c->lock);
    (void)shutdown(c->link.fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    ASSERT_SOON(wefti_scheduler_deaths(s, rank) > deaths);
}

static void close_all(wefti_scheduler *s, person p[3]) {
    for (int r = 0; r < 3; r++) p[r].member->leave_ns = 1;
    for (int r = 0; r < 3; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

static void seats_go_from_a_lost_launcher_to_the_next(void **state) {
    (void)state;
    person p[3];
    wefti_scheduler *s = three(p);
    wefti_watch *first = launcher(s, 1, 1, 2), *second, *spare, *small;
    gets(first, 1, 2, 0);
    second = launcher(s, 2, 1, 2);
    gets_nothing(second); /* it has asked before the others */
    spare = launcher(s, 3, -1, 8);
    small = launcher(s, 4, -1, 1); /* has no room for two */
    wefti_watch_end(first);
    gets_nothing(second); /* its processes live */
    die(s, &p[1], 1);
    gets_nothing(second); /* one of them does */
    gets_nothing(spare);
    die(s, &p[2], 2);
    gets(second, 1, 2, 1);
    gets_nothing(spare);
    wefti_watch_end(second);
    gets(spare, 1, 2, 1);
    gets_nothing(small);
    first = launcher(s, 1, 1, 2); /* it comes back, and is late */
    gets_nothing(first);
    wefti_watch_end(first);
    wefti_watch_end(small);
    wefti_watch_end(spare);
    close_all(s, p);
}

/* Three restarts in all: the last one is for the spare launcher. The process that lives goes with
 * its host, and the launcher that had the seats gets none again. */
static void a_host_that_keeps_failing_is_left_out(void **state) {
    (void)state;
    person p[3];
    wefti_scheduler *s = three(p);
    wefti_watch *bad = launcher(s, 1, 1, 2), *small = launcher(s, 4, -1, 1), *spare;
    int64_t notes = 0;
    wefti_free(wefti_scheduler_noted(s, &notes));
    gets(bad, 1, 2, 0);
    spare = launcher(s, 3, -1, 2);
    gets_nothing(spare);
    for (int starts = 1; starts <= 3; starts++) {
        const wefti_end killed = {.rank = 1, .signal = SIGKILL, .text = "rank 1 was killed"};
        ASSERT_SOON(wefti_watch_again(bad, &killed, starts) != WEFTI_AGAIN_PENDING);
        assert_int_equal(wefti_watch_again(bad, &killed, starts),
                         starts < 3 ? WEFTI_AGAIN_YES : WEFTI_AGAIN_ELSEWHERE);
        if (starts == 3) break;
        gets_nothing(spare);
        assert_null(wefti_scheduler_noted(s, &notes));
    }
    gets(spare, 1, 2, 3);
    assert_int_equal(wefti_watch_deaths(spare, 2), 1);
    ASSERT_SOON(wefti_watch_deaths(bad, 2) == 1); /* it is to end that process */
    char *text = wefti_scheduler_noted(s, &notes);
    assert_non_null(text);
    wefti_free(text);
    gets_nothing(small);
    /* The spare host has not failed before. */
    const wefti_end lost = {.rank = 2, .signal = SIGKILL, .text = "rank 2 was killed"};
    ASSERT_SOON(wefti_watch_again(spare, &lost, 2) != WEFTI_AGAIN_PENDING);
    assert_int_equal(wefti_watch_again(spare, &lost, 2), WEFTI_AGAIN_YES);
    ASSERT_SOON(wefti_watch_again(bad, &lost, 2) != WEFTI_AGAIN_PENDING);
    assert_int_equal(wefti_watch_again(bad, &lost, 2), WEFTI_AGAIN_ELSEWHERE);
    wefti_watch_end(bad);
    wefti_watch_end(small);
    wefti_watch_end(spare);
    close_all(s, p);
}

static void a_loss_is_answered_once(void **state) {
    (void)state;
    person p[3];
    wefti_scheduler *s = three(p);
    wefti_watch *watch = launcher(s, 1, 1, 2);
    const wefti_end killed = {.rank = 1, .signal = SIGKILL, .text = "rank 1 was ended by signal 9"};
    const wefti_end failed = {.rank = 2, .code = 1, .text = "rank 2 ended with exit code 1"};
    gets(watch, 1, 2, 0);
    ASSERT_SOON(wefti_watch_again(watch, &failed, 1) != WEFTI_AGAIN_PENDING);
    assert_int_equal(wefti_watch_again(watch, &failed, 1), WEFTI_AGAIN_NO);
    for (int starts = 1; starts <= 4; starts++) { /* three restarts in all */
        ASSERT_SOON(wefti_watch_again(watch, &killed, starts) != WEFTI_AGAIN_PENDING);
        assert_int_equal(wefti_watch_again(watch, &killed, starts),
                         starts <= 3 ? WEFTI_AGAIN_YES : WEFTI_AGAIN_NO);
        assert_int_equal(wefti_scheduler_deaths(s, 1), starts);
        if (starts <= 3) ASSERT_SOON(wefti_watch_deaths(watch, 1) == starts);
    }
    wefti_watch_end(watch);
    close_all(s, p);
}

static void askers_that_are_refused(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    wefti_scheduler *s = start(&o);
    wefti_watch *watch = launcher(s, 1, 1, 1);
    ASSERT_SOON(seats_of(watch) == WEFT_E_MISMATCH);
    ASSERT_MESSAGE("--restart|scheduler");
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
    o.restarts = 1;
    s = start(&o);
    watch = launcher(s, 1, 1, 2);
    ASSERT_SOON(seats_of(watch) == WEFT_E_MISMATCH);
    ASSERT_MESSAGE("rank 1|2 ranks");
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

static bool runs(const wefti_scheduler *s) {
    return s->state == WEFTI_SCHEDULER_RUNNING;
}

/* A launcher that starts nothing again hears that the world can go on without its processes, and
 * asks then: also one that calls late, or again. */
static void one_that_starts_nothing_again(void **state) {
    (void)state;
    static const wefti_elastic two_at_least = {.least = 2, .seconds = 60};
    const wefti_end killed = {.rank = 2, .signal = SIGKILL, .text = "rank 2 was ended by signal 9"};
    const wefti_end failed = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    const wefti_elastic *elastic[] = {&keeps_size, &two_at_least};
    for (int changes = 0; changes < 2; changes++) {
        person p[3];
        wefti_scheduler_options o = test_scheduler(3);
        wefti_scheduler *s = start(&o);
        wefti_watch *watch[2];
        const wefti_member_options at = test_member(wefti_scheduler_address(s));
        const wefti_span ranks = {1, 2};
        assert_int_equal(wefti_watch_begin(&at, &ranks, &watch[0]), WEFT_OK);
        ASSERT_SOON(wefti_watch_has_found(watch[0]));
        join_three(s, p);
        test_wait_until(s, runs);
        assert_false(wefti_watch_may_ask(watch[0]));
        arm_three(s, p, elastic[changes]);
        assert_int_equal(wefti_watch_begin(&at, &ranks, &watch[1]), WEFT_OK);
        for (int i = 0; i < 2; i++) {
            wefti_abort_reason reason;
            if (changes) ASSERT_SOON(wefti_watch_may_ask(watch[i]));
            assert_false(wefti_watch_is_unlike(watch[i], 600, &reason)); /* it has an answer */
            assert_true(wefti_watch_may_ask(watch[i]) == (changes == 1));
        }
        if (changes) {
            ASSERT_SOON(wefti_watch_again(watch[0], &failed, 1) != WEFTI_AGAIN_PENDING);
            assert_int_equal(wefti_watch_again(watch[0], &failed, 1), WEFTI_AGAIN_NO);
            die(s, &p[2], 2);
            for (int i = 0; i < 2; i++) {
                ASSERT_SOON(wefti_watch_deaths(watch[i], 2) == 1);
                ASSERT_SOON(wefti_watch_again(watch[i], &killed, 1) != WEFTI_AGAIN_PENDING);
                assert_int_equal(wefti_watch_again(watch[i], &killed, 1), WEFTI_AGAIN_WITHOUT);
            }
        }
        for (int i = 0; i < 2; i++) wefti_watch_end(watch[i]);
        close_all(s, p);
    }
}

static bool nobody_calls(const wefti_scheduler *s) {
    return s->client_count == 0;
}

/* The launcher of these seats is gone. Processes of the next one may come before it says that it
 * has them. */
static void processes_come_before_their_launcher(void **state) {
    (void)state;
    wefti_scheduler_options o = test_scheduler(2);
    o.restarts = 1;
    wefti_scheduler *s = start(&o);
    wefti_watch *first = launcher(s, 1, 0, 2);
    gets(first, 0, 2, 0);
    wefti_watch_end(first);
    test_wait_until(s, nobody_calls);
    person p[2];
    pthread_t thread[2];
    for (int32_t r = 0; r < 2; r++) {
        p[r] = (person){.options = test_member(wefti_scheduler_address(s))};
        p[r].options.rank = r;
        p[r].options.launcher = 2;
        assert_int_equal(pthread_create(&thread[r], NULL, join, &p[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        assert_int_equal(p[r].status, WEFT_OK);
    }
    for (int r = 0; r < 2; r++) p[r].member->leave_ns = 1;
    for (int r = 0; r < 2; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* Bodies come back as they were; damaged ones are refused, or keep their promises. */
static void bodies(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    unsigned char body[WEFTI_MESSAGE_MAX], *fresh;
    const wefti_keep keep = {.seats = {-1, 8}, .launcher = 77, .again = true};
    const wefti_loss loss = {.end = {.rank = 3, .code = 75, .text = "words"}, .starts = 2};
    const wefti_again_message again = {.rank = 3, .starts = 2, .again = WEFTI_AGAIN_YES};
    const wefti_span seats = {4, 3};
    size_t fresh_bytes;
    assert_int_equal(
        wefti_seats_encode(&seats, 8, (const int32_t[]){0, 5, 1}, &fresh, &fresh_bytes), WEFT_OK);
    for (int round = 0; round < 40000; round++) {
        size_t bytes = round % 4 == 0   ? wefti_keep_encode(&keep, body)
                       : round % 4 == 1 ? wefti_loss_encode(&loss, body)
                       : round % 4 == 2 ? wefti_again_encode(&again, body)
                                        : fresh_bytes;
        if (round % 4 == 3) memcpy(body, fresh, bytes);
        for (int n = round < 4 ? 0 : 1 + (int)(test_random(&seed) % 3); n > 0; n--)
            body[test_random(&seed) % bytes] = (unsigned char)test_random(&seed);
        if (round >= 4 && test_random(&seed) % 4 == 0) bytes = test_random(&seed) % (bytes + 1);
        const wefti_frame f = {.kind = WEFTI_FRAME_KEEP, .body = body, .bytes = bytes};
        wefti_keep k;
        wefti_loss l;
        wefti_again_message a;
        wefti_span span;
        int32_t *deaths, size;
        if (wefti_keep_decode(&f, &k) >= 0)
            assert_true(k.launcher && k.seats.first >= WEFTI_SEATS_ADDED && k.seats.count > 0);
        else
            assert_int_not_equal(round, 0);
        if (wefti_loss_decode(&f, &l) >= 0)
            assert_true(l.starts > 0 && l.end.rank >= 0 && l.end.rank < WEFTI_RANKS_MAX);
        else
            assert_int_not_equal(round, 1);
        if (wefti_again_decode(&f, &a) >= 0)
            assert_true(a.rank >= 0 && a.starts > 0 && a.again < WEFTI_AGAIN_PENDING);
        else
            assert_int_not_equal(round, 2);
        if (wefti_seats_decode(&f, &span, &size, &deaths) >= 0) {
            assert_true(size > 0 && size <= WEFTI_RANKS_MAX);
            for (int32_t i = 0; i < span.count; i++) assert_true(deaths[i] >= 0);
            wefti_free(deaths);
        } else
            assert_int_not_equal(round, 3);
    }
    wefti_free(fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notes_are_told_in_order),
        cmocka_unit_test(seats_go_from_a_lost_launcher_to_the_next),
        cmocka_unit_test(processes_come_before_their_launcher),
        cmocka_unit_test(a_host_that_keeps_failing_is_left_out),
        cmocka_unit_test(a_loss_is_answered_once),
        cmocka_unit_test(askers_that_are_refused),
        cmocka_unit_test(one_that_starts_nothing_again),
        cmocka_unit_test(bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
