/* Profiles of a program: means over chosen steps, numbers of calls, and the time on a processor,
 * which is known if a device computes in one thread. Moments of the past stand for long kernels.
 * weft-test: no threads */
#include "session/session_models.h"

#include "exec/profile.h"
#include "exec/workers.h"

static const int64_t SECOND = 1000000000;

static weft_status measure_device(void *context, wefti_rank_device *device, int32_t rank) {
    (void)rank;
    wefti_rank_device_profile(device, context);
    return WEFT_OK;
}

/* The profile of the session's program, for a device of so many threads. */
static wefti_profile *profile_of(const weft_session *s, int threads) {
    const wefti_footprint need = {.of = {{0, 4096}}};
    wefti_profile *profile;
    wefti_workers *workers;
    ASSERT_OK(wefti_profile_create(wefti_session_program(s, 0), &profile));
    ASSERT_OK(wefti_workers_create(1, threads, &need, NULL, &workers));
    ASSERT_OK(wefti_workers_run(workers, measure_device, profile));
    wefti_workers_destroy(workers);
    return profile;
}

static void add(wefti_profile *p, int32_t entry, int64_t wall, int64_t processor) {
    wefti_profile_moment begin = wefti_profile_now(p);
    begin.ns -= wall;
    begin.processor -= processor;
    wefti_profile_add(p, entry, begin);
}

static wefti_profile_time entry_of(const wefti_profile *p, uint64_t steps, int32_t index) {
    wefti_profile_time time;
    wefti_profile_entry(p, steps, index, &time);
    return time;
}

static void means_are_of_the_chosen_steps(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_EVAL, 2, 0, WEFT_F32);
    weft_session *s = session_of(g, plain_options(WEFT_NO_OPTIMIZER, 0));
    wefti_profile *p = profile_of(s, 1);
    assert_true(wefti_profile_entries(p) > 3);
    add(p, 0, 8 * SECOND, 2 * SECOND);
    add(p, 0, 8 * SECOND, 2 * SECOND);
    wefti_profile_end_step(p);
    add(p, 1, SECOND, 0);
    wefti_profile_end_step(p);
    assert_int_equal(wefti_profile_steps(p), 2);
    const wefti_profile_time first = entry_of(p, 1, 0), second = entry_of(p, 2, 0),
                             both = entry_of(p, 3, 0), other = entry_of(p, 3, 1);
    assert_true(first.seconds >= 16 && first.processor >= 4 && first.processor < first.seconds);
    assert_true(second.seconds == 0 && second.processor == 0);
    assert_float_equal(both.seconds, first.seconds / 2, 1e-6);
    assert_float_equal(both.processor, first.processor / 2, 1e-6);
    assert_true(both.calls == 1 && other.calls == 0.5);
    assert_true(other.seconds >= 0.5 && other.seconds < both.seconds);
    assert_non_null(both.x);
    assert_null(both.transfer);
    wefti_profile_destroy(p);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void several_threads_have_no_time_on_a_processor(void **state) {
    (void)state;
    weft_graph *g = tiny_gpt2(WEFT_USE_EVAL, 2, 0, WEFT_F32);
    weft_session *s = session_of(g, plain_options(WEFT_NO_OPTIMIZER, 0));
    wefti_profile *one = profile_of(s, 1), *two = profile_of(s, 2);
    assert_true(wefti_profile_now(one).processor > 0);
    assert_int_equal(wefti_profile_now(two).processor, 0);
    add(two, 0, SECOND, 0);
    wefti_profile_end_step(two);
    assert_true(entry_of(two, 1, 0).seconds >= 1);
    assert_true(entry_of(two, 1, 0).processor == 0);
    wefti_profile_destroy(one);
    wefti_profile_destroy(two);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_of_the_chosen_steps),
        cmocka_unit_test(several_threads_have_no_time_on_a_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
