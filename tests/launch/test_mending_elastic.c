/* Scheduler and members of an elastic world: it shrinks, grows, and has only sizes for which the
 * job has a plan. (weft-test: threads) */
#include "mending_people.h"

#include <limits.h>
#include <signal.h>

static bool has_shrunk(const wefti_scheduler *s) {
    return s->taken == 2;
}
static bool has_grown(const wefti_scheduler *s) {
    return s->taken == 3;
}
static bool has_stood(wefti_scheduler *s, int32_t rank) {
    pthread_mutex_lock(&s->lock);
    const bool stood = s->mend.seats[rank].stood;
    pthread_mutex_unlock(&s->lock);
    return stood;
}
static bool three_armed(const wefti_scheduler *s) {
    return s->mend.armed == 3;
}

/* p[i] of a world of `size` is rank i, and was rank was[i] before. */
static void resized(person *const p[], int32_t size, const int32_t *was) {
    for (int32_t r = 0; r < size; r++) begin(p[r], recover);
    for (int32_t r = 0; r < size; r++) {
        end(p[r]);
        if (p[r]->status != WEFT_OK) fail_msg("rank %d: %s", (int)r, p[r]->text);
        const wefti_mend *m = &p[r]->mend;
        assert_true(m->resized && !m->from_disk);
        assert_int_equal(m->rank, r);
        assert_int_equal(m->size, size);
        assert_int_equal(wefti_member_rank(p[r]->member), r);
        assert_int_equal(wefti_member_size(p[r]->member), size);
        assert_int_equal(m->target, 5);
        assert_memory_equal(m->was, was, (size_t)size * sizeof *was);
        for (int32_t k = 0; k < size; k++) {
            assert_int_equal(m->source[k], was[k] < 0 ? WEFTI_SOURCE_ALL : WEFTI_SOURCE_OWN);
            assert_int_equal(p[r]->cards[k], k + 10);
            assert_int_equal(wefti_member_hosts(p[r]->member)[k], 0);
        }
    }
}

static const wefti_elastic two_at_least = {.least = 2, .seconds = 60};

/* A world of three after its fifth step, without restarts. */
static wefti_scheduler *three(person p[3], const wefti_elastic *elastic) {
    wefti_scheduler_options o = test_scheduler(3);
    wefti_scheduler *s = start(&o);
    for (int r = 0; r < 3; r++) {
        p[r] = someone(s, r);
        begin(&p[r], join);
    }
    for (int r = 0; r < 3; r++) end(&p[r]);
    for (int r = 0; r < 3; r++) {
        if (p[r].status < 0) fail_msg("%s", p[r].text);
        assert_false(wefti_member_mends(p[r].member));
        assert_true(wefti_member_resizes(p[r].member));
        wefti_member_arm(p[r].member, elastic);
        p[r].at.step = 5;
    }
    test_wait_until(s, three_armed);
    return s;
}

static wefti_scheduler *two_of_three(person p[3]) {
    wefti_scheduler *s = three(p, &two_at_least);
    lose(s, &p[1], has_shrunk);
    return s;
}

/* A process with this number makes it larger again. */
static void grow(wefti_scheduler *s, person *p, int32_t number) {
    *p = someone(s, number);
    begin(p, join);
    test_wait_until(s, has_grown);
    end_well(p);
    assert_true(wefti_member_is_newcomer(p->member));
    p->at.step = -1;
}

static void stop_two(wefti_scheduler *s, person p[3]) {
    wefti_scheduler_stop(s);
    (void)wefti_member_close(p[0].member, NULL);
    (void)wefti_member_close(p[2].member, NULL);
}

/* A launcher that adds processes to the job. */
static wefti_watch *adder(const wefti_scheduler *s, uint64_t number, int32_t count) {
    wefti_member_options o = test_member(wefti_scheduler_address(s));
    const wefti_keep keep = {.seats = {WEFTI_SEATS_ADDED, count}, .launcher = number};
    wefti_watch *watch;
    assert_int_equal(wefti_watch_begin_keeping(&o, &keep, &watch), WEFT_OK);
    return watch;
}

static weft_status numbers_of(wefti_watch *watch, wefti_span *out) {
    int32_t size;
    return wefti_watch_seats(watch, out, &size);
}

static void gets_no_numbers(const wefti_scheduler *s, int32_t count, const char *facts) {
    wefti_watch *watch = adder(s, 77, count);
    wefti_span seats;
    ASSERT_SOON(numbers_of(watch, &seats) == WEFT_E_MISMATCH);
    ASSERT_MESSAGE(facts);
    wefti_watch_end(watch);
}

/* Launchers add processes to a world that has room for them, and can change. */
static void a_launcher_adds_processes(void **state) {
    (void)state;
    person p[3];
    wefti_span seats = {0, 0};
    wefti_scheduler *s = three(p, &keeps_size);
    gets_no_numbers(s, 1, "size|recovery.elastic");
    wefti_scheduler_stop(s);
    for (int r = 0; r < 3; r++) (void)wefti_member_close(p[r].member, NULL);
    s = three(p, &two_at_least);
    gets_no_numbers(s, 1, "full|3 ranks");
    lose(s, &p[1], has_shrunk);
    resized((person *[]){&p[0], &p[2]}, 2, (const int32_t[]){0, 2});
    gets_no_numbers(s, 2, "2 processes|too many|3 ranks|1 more");
    wefti_watch *watch = adder(s, 5, 1);
    ASSERT_SOON(numbers_of(watch, &seats) == WEFT_OK);
    assert_int_equal(seats.first, 3); /* numbers 0 to 2 were those of the first world */
    assert_int_equal(seats.count, 1);
    gets_no_numbers(s, 1, "full"); /* the one seat is promised */
    person other = someone(s, 4);
    stranger(&other, "rank 4|not among");
    grow(s, &p[1], 3);
    resized((person *[]){&p[0], &p[2], &p[1]}, 3, (const int32_t[]){0, 1, -1});
    die(&p[1]); /* its launcher hears that the job goes on */
    const wefti_end lost = {.rank = 3, .signal = SIGKILL, .text = "rank 3 was ended by signal 9"};
    ASSERT_SOON(wefti_watch_again(watch, &lost, 1) != WEFTI_AGAIN_PENDING);
    assert_int_equal(wefti_watch_again(watch, &lost, 1), WEFTI_AGAIN_WITHOUT);
    test_wait_until(s, has_shrunk);
    wefti_watch_end(watch);
    refused_for_good(&p[1]);
    stop_two(s, p);
}

/* Rank 2 of three blames the dead rank 1 when it is rank 1 of two itself, and has not heard so. */
static void blame_by_an_old_number(void **state) {
    (void)state;
    person p[3];
    wefti_scheduler *s = two_of_three(p);
    const wefti_abort_reason said = {WEFT_E_PEER, 1, "no way to rank 1"};
    pthread_mutex_lock(&s->lock);
    wefti_scheduler_rank_gave_up(s, 1, &said);
    pthread_mutex_unlock(&s->lock);
    resized((person *[]){&p[0], &p[2]}, 2, (const int32_t[]){0, 2});
    stop_two(s, p);
}

/* The job fails amid a mending, and the last rank stands after that. */
static void nobody_mends_what_has_failed(void **state) {
    (void)state;
    person p[3];
    wefti_scheduler *s = two_of_three(p);
    begin(&p[0], recover);
    ASSERT_SOON(has_stood(s, 0));
    wefti_scheduler_fail(s, WEFT_E_PEER, WEFT_RANK_NONE, "enough");
    die(&p[0]);
    end(&p[0]);
    assert_true(p[0].status < 0);
    pthread_mutex_lock(&s->lock);
    assert_int_equal(wefti_mend_phase(s), WEFTI_MENDING_NOT);
    pthread_mutex_unlock(&s->lock);
    begin(&p[2], recover);
    end(&p[2]);
    assert_true(p[2].status < 0);
    stop_two(s, p);
}

/* Without restarts the world goes on with two of three ranks; the third may come back, even from
 * another kind of start; with one rank the job ends. */
static void an_elastic_world_shrinks_and_grows(void **state) {
    (void)state;
    const wefti_end lost = {.rank = 1, .signal = SIGKILL, .text = "rank 1 was ended by signal 9"};
    const wefti_end failed = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    person p[3], other;
    wefti_scheduler *s = three(p, &two_at_least);
    assert_false(wefti_scheduler_goes_on(s, &failed)); /* such a process would fail again */
    die(&p[1]);
    test_wait_until(s, has_shrunk);
    assert_true(wefti_scheduler_goes_on(s, &lost));
    refused_for_good(&p[1]);
    resized((person *[]){&p[0], &p[2]}, 2, (const int32_t[]){0, 2});

    other = someone(s, 1);
    other.options.facts = "weft 2";
    stranger(&other, "rank 1|weft 1|weft 2");
    grow(s, &p[1], 1);
    resized((person *[]){&p[0], &p[2], &p[1]}, 3, (const int32_t[]){0, 1, -1});
    other = someone(s, 1);
    stranger(&other, "too many");

    die(&p[2]);
    test_wait_until(s, has_shrunk);
    die(&p[1]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    char *reason = wefti_scheduler_abort_reason(s);
    ASSERT_FACTS(reason, "rank 1|died|recovery.min");
    wefti_free(reason);
    for (int r = 0; r < 3; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* A process whose seat was given up, such as a silent one, may end after all others have left. */
static void a_lost_process_ends_last(void **state) {
    (void)state;
    const wefti_end lost = {.rank = 1, .signal = SIGKILL, .text = "rank 1 was ended by signal 9"};
    const wefti_end other = {.rank = 0, .signal = SIGKILL, .text = "rank 0 was ended by signal 9"};
    person p[3];
    wefti_scheduler *s = two_of_three(p);
    resized((person *[]){&p[0], &p[2]}, 2, (const int32_t[]){0, 2});
    for (int r = 0; r < 3; r += 2) begin(&p[r], leave);
    for (int r = 0; r < 3; r += 2) end(&p[r]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_LEFT);
    assert_true(wefti_scheduler_goes_on(s, &lost));
    assert_false(wefti_scheduler_goes_on(s, &other));
    wefti_scheduler_stop(s);
}

static bool is_alone(const wefti_scheduler *s) {
    return s->taken == 1;
}
static bool one_waits(const wefti_scheduler *s) {
    int waiting = 0;
    for (int64_t i = 0; i < s->client_count; i++) waiting += s->clients[i]->next != NULL;
    return waiting == 1;
}

/* The job has plans for one rank and for three. When one of three dies, another one has to leave:
 * not the one whose state nobody else has. Processes that come wait until they are enough. */
static void a_world_has_only_sizes_with_plans(void **state) {
    (void)state;
    static const unsigned char sizes[] = {1 << 1 | 1 << 3};
    static const int32_t holds[] = {0};
    const wefti_elastic elastic = {.least = 1, .seconds = 60, .fits = sizes, .most = 3};
    const wefti_end lost = {.rank = 0, .code = 75, .text = "rank 0 ended with exit code 75"};
    person p[3];
    wefti_scheduler *s = three(p, &elastic);
    lose(s, &p[1], counts);
    p[2].at.holds = holds;
    p[2].at.holds_count = 1;
    begin(&p[0], recover);
    resized((person *[]){&p[2]}, 1, (const int32_t[]){2});
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_LOST);
    ASSERT_FACTS(p[0].text, "with 1 ranks|plan for 2");
    (void)wefti_member_close(p[0].member, NULL);
    assert_int_equal(wefti_scheduler_deaths(s, 0), 0); /* it may end by itself... */
    assert_int_equal(wefti_scheduler_deaths(s, 1), INT_MAX);
    assert_true(wefti_scheduler_goes_on(s, &lost)); /* ...and has not failed the job */
    assert_true(is_alone(s));
    for (int r = 0; r < 2; r++) {
        p[r] = someone(s, r);
        begin(&p[r], join);
        if (r == 0) test_wait_until(s, one_waits);
    }
    for (int r = 1; r >= 0; r--) {
        end(&p[r]);
        if (p[r].status < 0) fail_msg("%s", p[r].text);
        p[r].at.step = -1;
    }
    p[2].at.holds_count = 0;
    resized((person *[]){&p[2], &p[1], &p[0]}, 3, (const int32_t[]){0, -1, -1});
    for (int r = 0; r < 3; r++) begin(&p[r], leave);
    for (int r = 0; r < 3; r++) end(&p[r]);
    wefti_scheduler_stop(s);
}

/* Two ranks hold each other's state, and one of them alone that of the lost rank: that one stays.
 */
static void the_holder_of_the_lost_stays(void **state) {
    (void)state;
    static const unsigned char sizes[] = {1 << 1 | 1 << 3};
    static const int32_t both[] = {0, 1}, one[] = {2};
    const wefti_elastic elastic = {.least = 1, .seconds = 60, .fits = sizes, .most = 3};
    person p[3];
    wefti_scheduler *s = three(p, &elastic);
    lose(s, &p[1], counts);
    p[0].at.holds = one;
    p[0].at.holds_count = 1;
    p[2].at.holds = both;
    p[2].at.holds_count = 2;
    begin(&p[0], recover);
    resized((person *[]){&p[2]}, 1, (const int32_t[]){2});
    end(&p[0]);
    assert_int_equal(p[0].status, WEFT_E_LOST);
    (void)wefti_member_close(p[0].member, NULL);
    begin(&p[2], leave);
    end(&p[2]);
    wefti_scheduler_stop(s);
}

static bool has_five(const wefti_scheduler *s) {
    return s->taken == 5;
}

/* The job has plans for three ranks and for five, and began with three. */
static void a_world_exceeds_its_first_size(void **state) {
    (void)state;
    static const unsigned char sizes[] = {1 << 3 | 1 << 5};
    const wefti_elastic elastic = {.least = 2, .seconds = 60, .fits = sizes, .most = 5};
    person p[5];
    wefti_span seats = {0, 0};
    wefti_scheduler *s = three(p, &elastic);
    gets_no_numbers(s, 3, "3 processes|too many|5 ranks|2 more");
    wefti_watch *watch = adder(s, 5, 2);
    ASSERT_SOON(numbers_of(watch, &seats) == WEFT_OK);
    assert_int_equal(seats.first, 3);
    gets_no_numbers(s, 1, "full|5 ranks|recovery.max");
    for (int r = 3; r < 5; r++) {
        p[r] = someone(s, r);
        begin(&p[r], join);
        if (r == 3) test_wait_until(s, one_waits);
    }
    test_wait_until(s, has_five);
    for (int r = 3; r < 5; r++) {
        end(&p[r]);
        if (p[r].status < 0) fail_msg("%s", p[r].text);
        p[r].at.step = -1;
    }
    /* p[3] waited for p[4], which got its seat first. */
    person *const all[] = {&p[0], &p[1], &p[2], &p[4], &p[3]};
    resized(all, 5, (const int32_t[]){0, 1, 2, -1, -1});
    for (int r = 0; r < 5; r++) begin(&p[r], leave);
    for (int r = 0; r < 5; r++) end(&p[r]);
    wefti_watch_end(watch);
    wefti_scheduler_stop(s);
}

/* No number of ranks that could be left has a plan. */
static void a_world_without_a_smaller_plan_ends(void **state) {
    (void)state;
    static const unsigned char sizes[] = {1 << 3};
    const wefti_elastic elastic = {.least = 1, .seconds = 60, .fits = sizes, .most = 3};
    person p[3];
    wefti_scheduler *s = three(p, &elastic);
    die(&p[2]);
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 900), WEFTI_SCHEDULER_FAILED);
    char *reason = wefti_scheduler_abort_reason(s);
    ASSERT_FACTS(reason, "rank 2|died|no plan");
    wefti_free(reason);
    for (int r = 0; r < 3; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

/* A process makes the world larger, and says that it is unlike the others. It is refused alone: the
 * world shrinks again, however the process ends. The next one is welcome. */
static void an_unlike_newcomer_is_refused_alone(void **state) {
    (void)state;
    const wefti_end ended = {.rank = 1, .code = 1, .text = "rank 1 ended with exit code 1"};
    person p[3];
    wefti_scheduler *s = two_of_three(p);
    resized((person *[]){&p[0], &p[2]}, 2, (const int32_t[]){0, 2});
    assert_false(wefti_scheduler_goes_on(s, &ended));
    for (int turn = 0; turn < 2; turn++) {
        grow(s, &p[1], 1);
        if (turn == 1) break;
        wefti_member_fail(p[1].member, WEFT_E_MISMATCH, WEFT_RANK_OWN, "it has another model");
        test_wait_until(s, has_shrunk);
        ASSERT_SOON(wefti_member_check(p[1].member) < 0);
        ASSERT_MESSAGE("another model");
        (void)wefti_member_close(p[1].member, NULL);
        assert_true(wefti_scheduler_goes_on(s, &ended));
        for (int r = 0; r < 3; r += 2) begin(&p[r], recover);
        for (int r = 0; r < 3; r += 2) end(&p[r]);
        for (int r = 0; r < 3; r += 2) /* the ranks that they were before it came */
            assert_true(p[r].status == WEFT_OK && !p[r].mend.resized && !p[r].mend.from_disk);
    }
    resized((person *[]){&p[0], &p[2], &p[1]}, 3, (const int32_t[]){0, 1, -1});
    for (int r = 0; r < 3; r++) begin(&p[r], leave);
    for (int r = 0; r < 3; r++) end(&p[r]);
    wefti_scheduler_stop(s);
}

static bool has_lost_two(const wefti_scheduler *s) {
    return s->taken == 1 || s->state != WEFTI_SCHEDULER_RUNNING;
}

/* Beside a standby scheduler, a majority is one of the world that was whole last. Two of three die
 * one after the other, before the others are whole: the third is no majority of two. */
static void a_majority_of_the_last_whole_world(void **state) {
    (void)state;
    static const wefti_elastic one_at_least = {.least = 1, .seconds = 60};
    person p[3];
    wefti_scheduler *s = three(p, &one_at_least);
    pthread_mutex_lock(&s->lock);
    s->options.has_other = true;
    pthread_mutex_unlock(&s->lock);
    die(&p[0]);
    test_wait_until(s, has_shrunk);
    die(&p[2]);
    test_wait_until(s, has_lost_two);
    assert_true(wefti_scheduler_is_deposed(s));
    for (int r = 0; r < 3; r++) (void)wefti_member_close(p[r].member, NULL);
    wefti_scheduler_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launcher_adds_processes),
        cmocka_unit_test(blame_by_an_old_number),
        cmocka_unit_test(nobody_mends_what_has_failed),
        cmocka_unit_test(an_elastic_world_shrinks_and_grows),
        cmocka_unit_test(a_lost_process_ends_last),
        cmocka_unit_test(a_world_has_only_sizes_with_plans),
        cmocka_unit_test(the_holder_of_the_lost_stays),
        cmocka_unit_test(a_world_exceeds_its_first_size),
        cmocka_unit_test(a_world_without_a_smaller_plan_ends),
        cmocka_unit_test(a_majority_of_the_last_whole_world),
        cmocka_unit_test(an_unlike_newcomer_is_refused_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
