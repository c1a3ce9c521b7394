/* Pauses between the starts of a rank: no time passes here but that of the events. */
#include "support.h"

#include "control_cases.h"
#include "launch/recovery/restart.h"

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
        assert_int_equal(wefti_restart_lost(&r, &rule, true, now), expected);
        assert_true(wefti_restart_is_due(&r, now) == (expected == 0));
        assert_false(expected && wefti_restart_is_due(&r, now + expected - 1));
        now += expected;
        assert_true(wefti_restart_is_due(&r, now));
        expected = turn == 0                        ? SECOND
                   : 2 * expected < rule.longest_ns ? 2 * expected
                                                    : rule.longest_ns;
    }
}

/* Whatever comes: a pause is bounded, the first failure after a steady run has none, and what ends
 * for the sake of others neither waits nor counts. */
static void any_events(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    wefti_restart r = {0};
    int64_t now = 1;
    int32_t row = 0;
    for (int turn = 0; turn < 200000; turn++) {
        const int64_t run = (int64_t)(test_random(&seed) % 120) * SECOND;
        const bool failed = test_random(&seed) % 3;
        wefti_restart_started(&r, now);
        now += test_random(&seed) % 2 ? run : SECOND;
        if (now - r.since_ns >= rule.steady_ns) row = 0;
        row += failed;
        const int64_t pause = wefti_restart_lost(&r, &rule, failed, now);
        assert_true(pause >= 0 && pause <= rule.longest_ns);
        assert_int_equal(r.failures, row);
        if (!failed || row == 1) assert_int_equal(pause, 0);
        if (failed && row > 1) assert_true(pause >= rule.first_ns);
        assert_int_equal(wefti_restart_lost(&r, &rule, failed, now), pause); /* said once more */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_double),
        cmocka_unit_test(any_events),
        cmocka_unit_test(shorter_than_joining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
