/* One scheduler, one world after the other: members come early, never, or have ended.
 * (weft-test: threads) */
#include "lanes.h"

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
    wefti_member_fail(slow, WEFT_E_PEER, WEFT_RANK_OWN, TEST_REASON);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worlds_follow_each_other),
        cmocka_unit_test(the_next_world_waits),
        cmocka_unit_test(the_next_world_never_comes),
        cmocka_unit_test(ends_between_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
