/* The communicator between threads: every kind of transfer on random groups and boxes gives what it
 * must, however the ranks interleave; a failure reaches everybody. (weft-test: threads) */
#include "support.h"

#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "comm/copy.h"
#include "comm/shm/shm.h"
#include "comm_scripts.h"
#include "threads_asleep.h"

static void random_scripts(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    static script s;
    for (int round = 0; round < (SANITIZED ? 50 : 150); round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 1, MOST_RANKS);
        choose_script(&s, seed + (uint64_t)round, &r, size);
        world_test w;
        assert_true(world_begin(&w, size, (int)pick(&r, 0, 2) * 20, &s));
        run_all(&w, follow_script);
        if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
        world_end(&w);
    }
}

/* One rank breaks the world anywhere; the others stop where they are, free all they have, and after
 * mending the same world runs another script. */
static void broken_scripts(void **state) {
    (void)state;
    uint64_t seed = test_new_seed() ^ 0xB0;
    static script s;
    for (int round = 0; round < (SANITIZED ? 10 : 25); round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, 2, MOST_RANKS);
        world_test w;
        assert_true(world_begin(&w, size, (int)pick(&r, 0, 2) * 20, &s));
        for (int turn = 0; turn < 4; turn++) {
            choose_script(&s, seed + (uint64_t)(round * 4 + turn), &r, size);
            char expected[64] = "";
            if (turn % 2 == 0) {
                choose_breaker(&s, &r, size, expected);
                w.expected = expected;
            }
            run_all(&w, follow_script);
            if (w.failures) fail_msg("seed %llu, %s", (unsigned long long)s.seed, w.message);
            wefti_comm_mend(w.comm[pick(&r, 0, size - 1)]);
            wefti_comm_mend(w.comm[0]); /* once more changes nothing */
            w.expected = NULL;
        }
        world_end(&w);
    }
}

/* --- one thing at a time --- */

/* All members get the same bits: those of additions in the members' order. Halves are added in f32
 * and rounded once. Tested on both sides of the size that is copied when posted, and beyond a
 * core's cache. */
static void sums_have_one_order(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 5, 1000, 2048, 2049, 5003, 70001, 0};
    for (int32_t members = 1; members <= 8; members++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes - (members != 2 && members != 3); k++)
            for (int half = 0; half < 2; half++) {
                int64_t n = sizes[k] ? sizes[k] : wefti_copy_cache() / 8 + 77;
                bits_test b = {.c = all_reduce_of(members, n, half ? WEFT_BF16 : WEFT_F32)};
                float *whole[MOST_RANKS];
                for (int32_t m = 0; m < members; m++) {
                    whole[m] = malloc((size_t)n * sizeof(float));
                    b.source[m] = malloc((size_t)n * sizeof(float));
                    b.destination[m] = m % 2 ? b.source[m] : malloc((size_t)n * sizeof(float));
                    assert_true(whole[m] && b.source[m] && b.destination[m]);
                    for (int64_t i = 0; i < n; i++)
                        whole[m][i] = wefti_philox_normal(5, (uint64_t)m, (uint64_t)i);
                    if (half) {
                        wefti_convert(WEFT_BF16, b.source[m], WEFT_F32, whole[m], n);
                        wefti_convert(WEFT_F32, whole[m], WEFT_BF16, b.source[m], n);
                    } else {
                        memcpy(b.source[m], whole[m], (size_t)n * sizeof(float));
                    }
                }
                world_test w;
                assert_true(world_begin(&w, members, -1, &b));
                run_all(&w, reduce_bits);
                if (w.failures) fail_msg("%s", w.message);
                for (int64_t i = 0; i < n; i++) {
                    float sum = whole[0][i];
                    for (int32_t m = 1; m < members; m++) sum += whole[m][i];
                    whole[0][i] = sum;
                }
                void *right = whole[0];
                if (half) {
                    wefti_convert(WEFT_BF16, whole[1 % members], WEFT_F32, whole[0], n);
                    right = whole[1 % members];
                }
                if (half && members == 1) right = b.source[0];
                for (int32_t m = 0; m < members; m++)
                    assert_memory_equal(b.destination[m], right, (size_t)n * (half ? 2 : 4));
                world_end(&w);
                for (int32_t m = 0; m < members; m++) {
                    if (b.destination[m] != b.source[m]) free(b.destination[m]);
                    free(b.source[m]);
                    free(whole[m]);
                }
            }
}

static void nan_wins_a_maximum(void **state) {
    (void)state;
    bits_test b = {.c = all_reduce_of(2, 3, WEFT_F32)};
    b.c.t.reduction = WEFTI_REDUCE_MAX;
    float a[] = {NAN, 1, -3}, c[] = {1, NAN, -2}, out[2][3];
    b.source[0] = a, b.source[1] = c, b.destination[0] = out[0], b.destination[1] = out[1];
    world_test w;
    assert_true(world_begin(&w, 2, -1, &b));
    run_all(&w, reduce_bits);
    if (w.failures) fail_msg("%s", w.message);
    for (int m = 0; m < 2; m++)
        assert_true(isnan(out[m][0]) && isnan(out[m][1]) && out[m][2] == -2.0f);
    world_end(&w);
}

static void post_never_waits(void **state) {
    (void)state;
    world_test w;
    assert_true(world_begin(&w, 2, 0, NULL));
    run_all(&w, post_many);
    if (w.failures) fail_msg("%s", w.message);
    world_end(&w);
}

/* Sender and receiver both go on at once when little is sent. */
static void small_sends_do_not_wait(void **state) {
    (void)state;
    world_test w;
    assert_true(world_begin(&w, 2, 0, NULL));
    shared_case c = send_of(1, 0, 4);
    float values[4] = {1, 2, 3, 4}, got[4] = {0};
    wefti_endpoint *sender = bound(&w, 1, &c), *receiver = bound(&w, 0, &c);
    for (int i = 0; i < 100; i++) { /* one thread for both: nothing here may wait */
        values[2] = (float)i;
        assert_int_equal(wefti_comm_run(sender, values, NULL), WEFT_OK);
        values[2] = -1;
        assert_int_equal(wefti_comm_run(receiver, NULL, got), WEFT_OK);
        assert_true(got[0] == 1 && got[2] == (float)i && got[3] == 4);
    }
    w.comm[1]->engine->unbind(sender);
    w.comm[0]->engine->unbind(receiver);
    world_end(&w);
}

/* --- failures --- */

static void what_does_not_match_is_named(void **state) {
    (void)state;
    for (int variant = 0; variant < 12; variant++) {
        mismatch_test test;
        int32_t odd = prepare_mismatch(&test, variant);
        world_test w;
        assert_true(world_begin(&w, 3, variant % 2 ? -1 : 0, &test));
        run_all(&w, meet_wrongly);
        if (w.failures) fail_msg("%s", w.message);
        const char *wrong = wrong_mismatch(&test, odd);
        if (wrong) fail_msg("variant %d: %s", variant, wrong);
        world_end(&w);
    }
}

static void all_hear_of_a_failure(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        shared_case c = all_reduce_of(5, variant / 2 ? 12000 : 3, WEFT_F32);
        world_test w;
        assert_true(world_begin(&w, 5, variant % 2 ? 100 : 0, &c));
        w.expected = "rank 2: out of memory";
        run_all(&w, wait_for_nobody);
        if (w.failures) fail_msg("%s", w.message);
        assert_int_equal(w.stopped, 8);
        world_end(&w);
    }
}

static _Atomic int waiter; /* the thread of rank 0 */

/* A rank ends after it broke the world and before it notified sleeping ranks. The process that
 * learns of its end notifies them. */
static void wait_for_the_dead(world_test *w, int32_t rank) {
    shared_case *c = w->context;
    wefti_shm_rank *waiting = (wefti_shm_rank *)w->comm[0];
    wefti_shm_common *common = waiting->world->common;
    if (rank == 0) {
        float value[3] = {1, 2, 3};
        wefti_endpoint *e = bound(w, 0, c);
        atomic_store(&waiter, this_thread());
        (void)good(w, 0, wefti_comm_run(e, value, value), "all-reduce");
        w->comm[0]->engine->unbind(e);
        return;
    }
    while (!atomic_load(&common->peer[0].event.waiting)) usleep(100);
    /* Rank 0 must sleep: else it sees the break by itself, and nothing is tested. */
    while (!is_thread_asleep(atomic_load(&waiter))) usleep(100);
    snprintf(common->peer[1].message, sizeof common->peer[1].message, "rank 1: out of memory");
    atomic_store(&common->broken, 2);
    wefti_comm_break(w->comm[0], 1, "rank 1 has ended");
}
static void a_break_is_heard_though_its_rank_dies(void **state) {
    (void)state;
    shared_case c = all_reduce_of(2, 3, WEFT_F32);
    world_test w;
    assert_true(world_begin(&w, 2, 0, &c));
    w.expected = "rank 1: out of memory";
    run_all(&w, wait_for_the_dead);
    if (w.failures) fail_msg("%s", w.message);
    assert_int_equal(w.stopped, 1);
    world_end(&w);
}

/* The same endpoints serve again after mending. */
static void mended_endpoints(void **state) {
    (void)state;
    world_test w;
    assert_true(world_begin(&w, 2, 0, NULL));
    shared_case c = send_of(0, 1, 4000), small = send_of(0, 1, 4);
    float values[4000] = {42}, got[4000];
    const wefti_comm_engine *engine = w.comm[0]->engine;
    wefti_endpoint *out = bound(&w, 0, &c), *in = bound(&w, 1, &c);
    wefti_endpoint *small_out = bound(&w, 0, &small), *small_in = bound(&w, 1, &small);
    for (int turn = 0; turn < 3; turn++) {
        memset(got, 0, sizeof got);
        assert_int_equal(engine->post(small_out, values, NULL), WEFT_OK);
        assert_int_equal(engine->post(small_in, NULL, got), WEFT_OK);
        assert_int_equal(engine->post(out, values, NULL), WEFT_OK);
        if (turn < 2) {
            wefti_comm_break(w.comm[1], WEFT_RANK_OWN, "stop");
            assert_int_equal(engine->wait(out), WEFT_E_PEER);
            assert_string_equal(weft_error_message(), "rank 1: stop");
            assert_int_equal(engine->wait(small_in), WEFT_E_PEER);
            assert_int_equal(engine->post(in, NULL, got), WEFT_E_PEER);
            wefti_comm_mend(w.comm[0]);
            assert_int_equal(engine->wait(small_out), WEFT_E_ARG);
            continue;
        }
        assert_int_equal(engine->wait(small_in), WEFT_OK);
        assert_true(got[0] == 42);
        assert_int_equal(engine->post(in, NULL, got), WEFT_OK);
        assert_int_equal(engine->wait(in), WEFT_OK);
        assert_int_equal(engine->wait(out), WEFT_OK);
        assert_int_equal(engine->wait(small_out), WEFT_OK);
    }
    /* Unbinding a transfer under way ends it for the others. */
    assert_int_equal(engine->post(out, values, NULL), WEFT_OK);
    engine->unbind(out);
    assert_int_equal(engine->post(in, NULL, got), WEFT_E_PEER);
    ASSERT_MESSAGE("rank 0|send|activations");
    engine->unbind(in);
    engine->unbind(small_out);
    engine->unbind(small_in);
    engine->unbind(NULL);
    world_end(&w);
}

static void misuse_is_refused(void **state) {
    (void)state;
    wefti_comm *none[1];
    assert_int_equal(wefti_comm_threads(0, -1, none), WEFT_E_ARG);
    assert_int_equal(wefti_comm_threads(100000, -1, none), WEFT_E_ARG);
    world_test w;
    assert_true(world_begin(&w, 2, 0, NULL));
    const wefti_comm_engine *engine = w.comm[0]->engine;
    shared_case c = all_reduce_of(2, 4, WEFT_F32), wide = all_reduce_of(3, 4, WEFT_F32);
    wefti_endpoint *e = NULL;
    wefti_transfer t = for_member(&c, 1);
    assert_int_equal(engine->bind(w.comm[0], &t, &e), WEFT_E_ARG); /* another's place */
    assert_non_null(strstr(weft_error_message(), "rank 1"));
    t = for_member(&wide, 0);
    assert_int_equal(engine->bind(w.comm[0], &t, &e), WEFT_E_ARG); /* rank 2 of 2 */
    shared_case gap = send_of(0, 1, 4);
    gap.t.reduction = WEFTI_REDUCE_SUM;
    gap.want[1].size[0] = 5;
    t = for_member(&gap, 0);
    assert_int_equal(engine->bind(w.comm[0], &t, &e),
                     WEFT_E_MISMATCH); /* nobody has the last one */
    assert_null(e);
    e = bound(&w, 0, &c);
    float a[4] = {0};
    assert_int_equal(engine->wait(e), WEFT_E_ARG); /* nothing is posted */
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++) assert_int_equal(engine->post(e, a, a), WEFT_OK);
    assert_int_equal(engine->post(e, a, a), WEFT_E_ARG); /* too many */
    engine->unbind(e);
    world_end(&w);
}

/* Every allocation of making a world and binding may fail. */
static void no_memory(void **state) {
    (void)state;
    shared_case c = all_reduce_of(2, 9000, WEFT_F32);
    c.t.kind =
        WEFTI_TRANSFER_SEND; /* the first wants only a part: the others' sources stand still */
    c.want[1].size[0] = 4000;
    shared_case small = send_of(0, 1, 3);
    int64_t n = 0;
    for (bool done = false; !done; n++) {
        wefti_comm *comm[2];
        wefti_endpoint *e = NULL, *f = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        weft_status status = wefti_comm_threads(2, 0, comm);
        if (status >= 0) {
            wefti_transfer t = for_member(&c, 0), u = for_member(&small, 0);
            status = comm[0]->engine->bind(comm[0], &t, &e);
            if (status >= 0) status = comm[0]->engine->bind(comm[0], &u, &f);
            done = status >= 0;
            comm[0]->engine->unbind(e);
            comm[0]->engine->unbind(f);
            for (int r = 0; r < 2; r++) comm[r]->engine->destroy(comm[r]);
        }
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (!done) assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(n > 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_scripts),
        cmocka_unit_test(broken_scripts),
        cmocka_unit_test(sums_have_one_order),
        cmocka_unit_test(nan_wins_a_maximum),
        cmocka_unit_test(post_never_waits),
        cmocka_unit_test(small_sends_do_not_wait),
        cmocka_unit_test(what_does_not_match_is_named),
        cmocka_unit_test(all_hear_of_a_failure),
        cmocka_unit_test(a_break_is_heard_though_its_rank_dies),
        cmocka_unit_test(mended_endpoints),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
