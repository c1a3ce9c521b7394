/* Steps that can be made again. With recovery a session computes the bits that it computes without,
 * on random networks under random plans, and its memory is as predicted. Steps are given up at
 * random places and made again, on devices of one process and on ranks of a world, whose
 * communicator is then a new one. In the end all bits equal those of an undisturbed run. A new
 * rank 0 computes products in bf16 as the others do. Ranks also break off amid an update that
 * gathers parameters. WEFT_TEST_SEED sets the first seed, WEFT_CASES the number of seeds. */
#include "recovery_trial.h"

/* ---- one process ---- */

static bool same_bits_with_recovery(uint64_t seed) {
    trial t = make_trial(seed, 8, false);
    weft_graph *g[2];
    weft_session *plain = open_session(&t, PLAIN, &g[0]);
    if (!plain) {
        weft_plan_destroy(t.plan);
        return false;
    }
    weft_session *s = open_session(&t, RECOVERS, &g[1]);
    dice d = {seed, 1u << 27};
    assert_non_null(s);
    int64_t asked = 0; /* in a step */
    for (int n = 0; n < STEPS; n++) {
        double want, is;
        halting h = {.rank = (int32_t)roll(&d, weft_session_devices(s)), .at = -1};
        if (step(&t, plain, n, &want) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        wefti_session_halt_when(s, halts, &h);
        for (int again = 0; n && again < 2; again++) { /* the first step counts */
            h.at = roll(&d, asked);
            h.asked = 0;
            h.halted = false;
            weft_status status = step(&t, s, n, &is);
            if (!h.halted) break; /* this device asks less often */
            if (status != WEFT_E_PEER)
                fail_msg("seed %llu: %d, %s", (unsigned long long)seed, status,
                         weft_error_message());
            assert_int_equal(s->survivor.step, n);
            assert_int_equal(s->survivor.phase, WEFTI_SURVIVOR_STEPPING);
            ASSERT_OK(wefti_session_abandon(s, false));
            ASSERT_OK(wefti_session_advance(s, n));
        }
        h.at = -1;
        h.asked = 0;
        if (weft_session_step_number(s) == n && step(&t, s, n, &is) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        if (n == 0) asked = h.asked;
        if (memcmp(&want, &is, sizeof is))
            fail_msg("seed %llu: loss %d is %.17g, not %.17g", (unsigned long long)seed, n, is,
                     want);
        assert_same(&t, plain, s);
    }
    assert_memory(&t, s);
    weft_session_destroy(plain);
    weft_session_destroy(s);
    weft_graph_destroy(g[0]);
    weft_graph_destroy(g[1]);
    weft_plan_destroy(t.plan);
    return true;
}

static void devices_make_steps_again(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261126), cases = cases_of(SANITIZED ? 6 : 12);
    uint64_t ran = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) ran += same_bits_with_recovery(first + k);
    print_message("%llu cases ran\n", (unsigned long long)ran);
    assert_true(ran * 4 >= cases * 3);
}

/* ---- a world ---- */

/* A victim that asked `share` of all its parts is given up; whether another process takes its place
 * follows from the plan: a replica can give it its state. */
static int world_makes_step_again(uint64_t seed, int *catches, int *gathers) {
    trial t = make_trial(seed, 4, true);
    weft_graph *g;
    weft_session *s = open_session(&t, RECOVERS, &g);
    const int32_t size = s ? weft_session_devices(s) : 0;
    dice d = {seed, 1u << 28};
    world_trial calm = {.how = RECOVERS, .size = size, .source = -1, .step = -1},
                w = {.how = RECOVERS,
                     .size = size,
                     .source = -1,
                     .victim = size ? (int32_t)roll(&d, size) : 0,
                     .step = 1 + roll(&d, STEPS - 1),
                     .share = roll(&d, 64),
                     .before_end = roll(&d, 2) ? roll(&d, 3) : -1};
    for (int32_t r = 0; r < size; r++)
        if (r != w.victim && wefti_session_replicates(s, r, w.victim)) w.source = r;
    weft_session_destroy(s);
    if (s) weft_graph_destroy(g);
    int outcome = -1;
    if (size > 1) {
        world_rank a[MOST_RANKS], b[MOST_RANKS];
        run_trial(&t, &calm, a);
        run_trial(&t, &w, b);
        outcome = w.torn || !w.halted ? -1 : w.source >= 0;
        *catches += w.catches;
        *gathers += atomic_load(&w.gathers);
        for (int32_t r = 0; r < size; r++) {
            if (!w.torn) assert_same_bits(&t, &w, &a[r], &b[r], r);
            free(a[r].data);
            free(b[r].data);
        }
    }
    weft_plan_destroy(t.plan);
    return outcome;
}

static void worlds_make_steps_again(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261127), cases = cases_of(SANITIZED ? 12 : 16);
    int count[3] = {0}, catches = 0, gathers = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++)
        count[1 + world_makes_step_again(first + k, &catches, &gathers)]++;
    print_message(
        "%d ranks halted, %d were new, %d cases without a repair; in %d a rank caught up, "
        "in %d parameters were gathered again\n",
        count[1], count[2], count[0], catches, gathers);
    assert_true(cases < 12 || (count[1] > 0 && count[2] > 0));
}

/* ---- amid an update ---- */

/* Ranks that update pieces of parameters. Some pieces of gpt2's biases lie apart in their
 * parameter. Behind the commit, one rank breaks off when it begins its update. All that live have
 * their pieces, and gather them once more. */
typedef struct update_case {
    const char *name;
    int devices, level, shard;
    recovers how;
    bool dies;
} update_case;

static const update_case update_cases[] = {
    {"level 1, halted", 2, 1, 0, RECOVERS, false},
    {"level 1, replicas", 4, 1, 2, RECOVERS, true},
    {"level 1, buddies", 4, 1, 0, WITH_BUDDIES, true},
    {"level 2, buddies", 2, 2, 0, WITH_BUDDIES, true},
};

static void breaks_amid_update(const update_case *c, int32_t victim) {
    trial t = {.seed = 5,
               .dtype = WEFT_F32,
               .batch = 12,
               .microbatches = 1,
               .optimizer = WEFT_ADAMW,
               .gpt2 = true};
    weft_graph *g;
    world_rank a[MOST_RANKS], b[MOST_RANKS];
    ASSERT_OK(weft_plan_create(c->devices, &t.plan));
    ASSERT_OK(weft_plan_optimizer(t.plan, c->level, 0, c->shard));
    world_trial calm = {.how = c->how, .size = c->devices, .source = -1, .step = -1},
                w = {.how = c->how,
                     .size = c->devices,
                     .source = -1,
                     .victim = victim,
                     .step = 1,
                     .in_update = true};
    weft_session *s = open_session(&t, c->how, &g);
    assert_non_null(s);
    if (c->dies) w.source = wefti_session_program_of(s, 0, victim)->holder;
    for (int32_t r = 0; r < w.size && c->dies && w.source < 0; r++)
        if (r != victim && wefti_session_replicates(s, r, victim)) w.source = r;
    assert_true(!c->dies || w.source >= 0);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    run_trial(&t, &calm, a);
    run_trial(&t, &w, b);
    if (w.torn || !w.halted || !atomic_load(&w.gathers))
        fail_msg("%s, rank %d: %s", c->name, victim,
                 w.torn     ? "a rank has no state: all would read the last checkpoint"
                 : w.halted ? "nothing was gathered again"
                            : "nothing was repaired");
    for (int32_t r = 0; r < w.size; r++) {
        assert_same_bits(&t, &w, &a[r], &b[r], r);
        free(a[r].data);
        free(b[r].data);
    }
    weft_plan_destroy(t.plan);
}

static void updates_end_after_a_death(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof update_cases / sizeof *update_cases; i++)
        for (int32_t victim = 0; victim < update_cases[i].devices; victim++)
            breaks_amid_update(&update_cases[i], victim);
}

/* ---- the choice of bf16 ---- */

/* Rank 0 dies, and a process takes its place that would compute products in bf16 another way. It
 * takes the way of the ranks that live. */
static void rank_0_is_new(weft_bf16_compute bf16, weft_bf16_compute of_new,
                          const wefti_cpu_tuning *tuning, const wefti_cpu_tuning *of_new_tuning,
                          const char *what) {
    trial t = {.seed = 5,
               .dtype = WEFT_BF16,
               .batch = 6,
               .microbatches = 1,
               .optimizer = WEFT_ADAMW,
               .gpt2 = true};
    enum { SIZE = 3 };
    world_rank a[SIZE], b[SIZE];
    ASSERT_OK(weft_plan_create(SIZE, &t.plan));
    world_trial calm = {.how = RECOVERS, .size = SIZE, .source = -1, .step = -1, .bf16 = bf16},
                w = {.how = RECOVERS,
                     .size = SIZE,
                     .source = 1,
                     .step = 1,
                     .share = 32,
                     .before_end = -1,
                     .bf16 = bf16,
                     .bf16_of_new = of_new,
                     .tuning = of_new_tuning};
    wefti_cpu_tune(tuning);
    run_trial(&t, &calm, a);
    run_trial(&t, &w, b);
    wefti_cpu_tune(NULL);
    if (!w.halted || w.torn) fail_msg("%s: rank 0 was not replaced", what);
    for (int32_t r = 0; r < SIZE; r++) {
        assert_same_bits(&t, &w, &a[r], &b[r], r);
        free(a[r].data);
        free(b[r].data);
    }
    weft_plan_destroy(t.plan);
}

static void newcomers_take_the_way_of_bf16(void **state) {
    (void)state;
    static const wefti_cpu_tuning slower = {.bf16 = WEFTI_BF16_SLOWER},
                                  faster = {.bf16 = WEFTI_BF16_FASTER};
    rank_0_is_new(WEFT_BF16_AS_F32, WEFT_BF16_NATIVE, NULL, NULL, "f32 products");
    if (!wefti_kind_has_bf16(wefti_kind_of(0))) {
        print_message("this processor does not multiply bf16: measured choices are all the same\n");
        return;
    }
    rank_0_is_new(WEFT_BF16_NATIVE, WEFT_BF16_AS_F32, NULL, NULL, "bf16 products");
    rank_0_is_new(WEFT_BF16_AUTO, WEFT_BF16_AUTO, &slower, &faster, "measured as slower");
    rank_0_is_new(WEFT_BF16_AUTO, WEFT_BF16_AUTO, &faster, &slower, "measured as faster");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_make_steps_again),
        cmocka_unit_test(worlds_make_steps_again),
        cmocka_unit_test(updates_end_after_a_death),
        cmocka_unit_test(newcomers_take_the_way_of_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
