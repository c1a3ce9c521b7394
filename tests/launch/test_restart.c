/* Pauses between the starts of a rank, and how many a job may have: no time passes here but that of
 * the events. */
#include "support.h"

#include "control_cases.h"
#include "recovery/restart.h"

#define SECOND ((int64_t)1000000000)

static const wefti_restart_rule rule = {SECOND, 60 * SECOND, 60 * SECOND};

/* Dies at its start, over and over: 0, 1, 2, 4, ... 60, 60 s. */
static void pauses_double(void **state) {
    (void)state;
    wefti_restart r = {0};
    int64_t now = 5, expected = 0;
    for (int turn = 0; turn < 200; turn++) {
        wefti_restart_started(&r, now);
        now += 40000000;
        assert_int_equal(wefti_restart_lost(&r, &rule, now), expected);
        assert_true(wefti_restart_is_due(&r, now) == (expected == 0));
        assert_false(expected && wefti_restart_is_due(&r, now + expected - 1));
        now += expected;
        assert_true(wefti_restart_is_due(&r, now));
        expected = turn == 0                        ? SECOND
                   : 2 * expected < rule.longest_ns ? 2 * expected
                                                    : rule.longest_ns;
    }
}

/* Whatever comes: a pause is bounded, and the first failure after a steady run has none. */
static void any_events(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    wefti_restart r = {0};
    int64_t now = 1;
    int32_t row = 0;
    for (int turn = 0; turn < 200000; turn++) {
        const int64_t run = (int64_t)(test_random(&seed) % 120) * SECOND;
        wefti_restart_started(&r, now);
        now += test_random(&seed) % 2 ? run : SECOND;
        if (now - r.since_ns >= rule.steady_ns) row = 0;
        row++;
        const int64_t pause = wefti_restart_lost(&r, &rule, now);
        assert_true(pause >= 0 && pause <= rule.longest_ns);
        assert_int_equal(r.failures, row);
        if (row == 1) assert_int_equal(pause, 0);
        if (row > 1) assert_true(pause >= rule.first_ns);
        assert_int_equal(wefti_restart_lost(&r, &rule, now), pause); /* said once more */
        assert_int_equal(r.failures, row);
        now += pause;
        assert_true(wefti_restart_is_due(&r, now));
    }
}

/* A seat may not stay empty for longer than processes may take to join. */
static void shorter_than_joining(void **state) {
    (void)state;
    assert_int_equal(wefti_restart_rule_of(600 * SECOND).longest_ns, 60 * SECOND);
    assert_int_equal(wefti_restart_rule_of(8 * SECOND).longest_ns, 2 * SECOND);
}

/* Three within 40 s: the fourth may be when the first no longer counts, and not an instant before.
 */
static void window_of_time(void **state) {
    (void)state;
    wefti_restart_budget b = wefti_restart_budget_of(3, 40);
    assert_true(wefti_restart_take(&b, 1, 5 * SECOND));
    assert_true(wefti_restart_take(&b, 2, 15 * SECOND));
    assert_true(wefti_restart_take(&b, 1, 25 * SECOND));
    assert_false(wefti_restart_may(&b, 1, 45 * SECOND - 1));
    assert_false(wefti_restart_take(&b, 1, 45 * SECOND - 1));
    assert_int_equal(wefti_restart_used(&b, 45 * SECOND - 1), 3);
    assert_int_equal(wefti_restart_used(&b, 45 * SECOND), 2);
    assert_true(wefti_restart_take(&b, 3, 45 * SECOND));
    assert_false(wefti_restart_may(&b, 1, 54 * SECOND));
    assert_int_equal(wefti_restart_used(&b, 1000 * SECOND), 0);
    assert_int_equal(b.all, 4);
    /* What a process without a seat has used no longer counts. */
    assert_false(wefti_restart_may(&b, 1, 50 * SECOND));
    wefti_restart_forget(&b, 1);
    assert_int_equal(wefti_restart_used(&b, 50 * SECOND), 2);
    assert_true(wefti_restart_may(&b, 1, 50 * SECOND));
    assert_int_equal(b.all, 4);
    wefti_restart_budget_free(&b);
    b = wefti_restart_budget_of(0, 0);
    assert_int_equal(b.window_ns, 3600 * SECOND);
    assert_false(wefti_restart_take(&b, 1, SECOND));
    wefti_restart_budget_free(&b);
}

/* Two ranks die at once, again and again, at their start: each time is one restart of two. */
static void ranks_with_one_cause(void **state) {
    (void)state;
    const int64_t instant = SECOND / 10;
    wefti_restart_budget b = wefti_restart_budget_of(2, 3600);
    int64_t now = SECOND, ns;
    for (int32_t time = 1; time <= 2; time++, now += instant) {
        for (int32_t r = 0; r < 2; r++) {
            assert_true(wefti_restart_may(&b, r, now));
            assert_true(wefti_restart_take(&b, r, now));
            assert_int_equal(wefti_restart_used(&b, now), time);
            now += instant;
        }
        assert_int_equal(wefti_restart_row(&b, 1, now, &ns), time + 1);
    }
    assert_false(wefti_restart_take(&b, 1, now));
    assert_true(wefti_restart_may(&b, 2, now)); /* it has not failed before */
    assert_false(wefti_restart_may(&b, WEFTI_RESTART_NOBODY, now));
    assert_false(wefti_restart_take(&b, 2, now + SECOND));
    /* The first of them no longer counts, and the second does. */
    wefti_restart_forget(&b, 0);
    assert_int_equal(wefti_restart_used(&b, now), 2);
    wefti_restart_went_on(&b);
    assert_false(wefti_restart_may(&b, 2, now));
    assert_int_equal(b.all, 4);
    wefti_restart_budget_free(&b);
    /* A second apart, or after the world has gone on, they are two. */
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        b = wefti_restart_budget_of(2, 3600);
        assert_true(wefti_restart_take(&b, 0, SECOND));
        if (goes_on) wefti_restart_went_on(&b);
        now = goes_on ? SECOND : 2 * SECOND;
        assert_true(wefti_restart_take(&b, 1, now));
        assert_int_equal(wefti_restart_used(&b, now), 2);
        assert_true(wefti_restart_take(&b, 0, now)); /* with rank 1 */
        assert_false(wefti_restart_take(&b, 0, now));
        wefti_restart_budget_free(&b);
    }
}

/* Against a list of all failures that is never shortened. */
static void any_window(void **state) {
    (void)state;
    enum { TURNS = 3000, NUMBERS = 4 };
    static struct {
        int64_t at;
        int32_t number, cause;
    } taken[TURNS];
    uint64_t seed = test_new_seed();
    const int32_t most = 1 + (int32_t)(test_random(&seed) % 9);
    wefti_restart_budget b = wefti_restart_budget_of(most, 30);
    int64_t now = 0, count = 0;
    bool went_on = false;
    for (int turn = 0; turn < TURNS; turn++) {
        const int32_t number = (int32_t)(test_random(&seed) % (NUMBERS + 1)) - 1;
        now += (int64_t)(test_random(&seed) % 3 * (test_random(&seed) % 12)) * SECOND / 3;
        int32_t used = 0, cause = count ? taken[count - 1].cause : 0;
        bool joins = count && !went_on && number >= 0 && now - taken[count - 1].at < SECOND;
        for (int64_t i = 0; i < count; i++) {
            if (taken[i].cause == cause)
                joins = joins && taken[i].number != number && taken[i].number >= 0;
            const bool is_last = i + 1 == count || taken[i + 1].cause != taken[i].cause;
            used += is_last && now - taken[i].at < 30 * SECOND;
        }
        assert_int_equal(wefti_restart_used(&b, now), used);
        const bool may = joins || used < most;
        assert_true(wefti_restart_may(&b, number, now) == may);
        assert_true(wefti_restart_take(&b, number, now) == may);
        if (may) {
            taken[count].at = now;
            taken[count].number = number;
            taken[count++].cause = cause + !joins;
            went_on = false;
        }
        assert_true(b.count <= most * NUMBERS);
        if (test_random(&seed) % 8) continue;
        wefti_restart_went_on(&b);
        went_on = true;
    }
    assert_int_equal(b.all, count);
    wefti_restart_budget_free(&b);
}

/* How often a rank has failed in a row: others' failures do not count, nor what is long ago. */
static void rows(void **state) {
    (void)state;
    wefti_restart_budget b = wefti_restart_budget_of(100, 3600);
    int64_t ns;
    assert_int_equal(wefti_restart_row(&b, 3, SECOND, &ns), 1);
    assert_int_equal(ns, 0);
    assert_true(wefti_restart_take(&b, 3, 10 * SECOND));
    assert_true(wefti_restart_take(&b, 3, 200 * SECOND));
    assert_true(wefti_restart_take(&b, 1, 210 * SECOND));
    assert_true(wefti_restart_take(&b, WEFTI_RESTART_NOBODY, 215 * SECOND));
    assert_true(wefti_restart_take(&b, 3, 220 * SECOND));
    assert_int_equal(wefti_restart_row(&b, 3, 240 * SECOND, &ns), 3);
    assert_int_equal(ns, 40 * SECOND);
    assert_int_equal(wefti_restart_row(&b, 1, 240 * SECOND, &ns), 2);
    assert_int_equal(wefti_restart_row(&b, 2, 240 * SECOND, &ns), 1);
    assert_int_equal(wefti_restart_row(&b, 3, 341 * SECOND, &ns), 1);
    wefti_restart_budget_free(&b);
}

/* A host with ranks 2 to 4: they fail one after the other, or all at once. */
static void hosts_that_keep_failing(void **state) {
    (void)state;
    wefti_restart_budget b = wefti_restart_budget_of(100, 3600);
    int64_t ns;
    for (int32_t i = 0; i < 3; i++) {
        for (int32_t r = 2; r < 5; r++)
            assert_true(wefti_restart_take(&b, r, (10 + 20 * i) * SECOND + r));
        assert_true(wefti_restart_take(&b, 1, (11 + 20 * i) * SECOND)); /* of another host */
        assert_int_equal(wefti_restart_leaves_out(&b, 4, 2, 3, (12 + 20 * i) * SECOND, &ns), 0);
    }
    assert_true(wefti_restart_take(&b, 3, 60 * SECOND));
    assert_int_equal(wefti_restart_leaves_out(&b, 4, 2, 3, 70 * SECOND, &ns), 5);
    assert_int_equal(ns, 60 * SECOND - 2);
    assert_int_equal(wefti_restart_leaves_out(&b, 4, 2, 3, 60 * SECOND + 9, &ns), 0);
    assert_int_equal(wefti_restart_leaves_out(&b, 1, 0, 2, 70 * SECOND, &ns), 0);
    assert_int_equal(wefti_restart_leaves_out(&b, 4, 2, 3, 190 * SECOND, &ns), 0);
    wefti_restart_budget_free(&b);
    /* The last restart is for another host, if this one has failed before. */
    b = wefti_restart_budget_of(2, 3600);
    assert_int_equal(wefti_restart_leaves_out(&b, 2, 2, 3, SECOND, &ns), 0);
    assert_true(wefti_restart_take(&b, 2, SECOND));
    assert_int_equal(wefti_restart_leaves_out(&b, 0, 0, 2, 5 * SECOND, &ns), 0);
    assert_int_equal(wefti_restart_leaves_out(&b, 3, 2, 3, SECOND + 1, &ns), 0);
    assert_int_equal(wefti_restart_leaves_out(&b, 3, 2, 3, 5 * SECOND, &ns), 2);
    wefti_restart_budget_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_double),
        cmocka_unit_test(any_events),
        cmocka_unit_test(shorter_than_joining),
        cmocka_unit_test(window_of_time),
        cmocka_unit_test(ranks_with_one_cause),
        cmocka_unit_test(any_window),
        cmocka_unit_test(rows),
        cmocka_unit_test(hosts_that_keep_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
