/* The joint search finds what trying all plans finds, and it finds the known answers of invented
 * machines. */
#include "joint_models.h"

#include <math.h>
#include <unistd.h>

#include "base/philox.h"

/* ---- against all plans ---- */

/* The least step over all constraints that name every dimension. */
static double least_of_all(joint_source *m, const joint_question *base) {
    static const char *const modes[] = {"none", "selective", "full"};
    static const char *const schedules[] = {"1f1b", "interleaved", "zero_bubble"};
    double least = INFINITY;
    for (int pp = 1; pp <= base->devices; pp *= 2)
        for (int tp = 1; tp * pp <= base->devices; tp *= 2)
            for (int micro = 1; micro <= base->batch; micro *= 2)
                for (int level = 0; level < 4; level++)
                    for (int r = 0; r < 3; r++)
                        for (int s = 0; s < (pp > 1 ? 3 : 1); s++) {
                            char fix[160];
                            snprintf(fix, sizeof fix,
                                     "pp=%d tp=%d cp=1 ep=1 microbatches=%d level=%d recompute=%s "
                                     "schedule=%s",
                                     pp, tp, micro, level, modes[r], schedules[s]);
                            joint_question q = *base;
                            q.fix = fix;
                            q.evaluations = 64;
                            wefti_joint_answer a;
                            if (joint_ask(m, &q, &a) < 0) continue;
                            if (a.prediction->step_seconds < least)
                                least = a.prediction->step_seconds;
                            wefti_joint_answer_free(&a);
                        }
    return least;
}

static void the_search_equals_trying_all(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        joint_source m = {.dtype = WEFT_F32};
        m.config = joint_language(k ? WEFT_FAMILY_LLAMA : WEFT_FAMILY_GPT2, 4, 64, 256, 32);
        const joint_question q = {
            joint_machine(2, 1, 1e9, k ? 1e8 : 2e10), "cp=1 ep=1", 2, 4, 0, .evaluations = 1000};
        wefti_joint_answer a = joint_answered(&m, &q);
        const double least = least_of_all(&m, &q);
        assert_true(a.exhausted);
        if (!(a.prediction->step_seconds <= least * 1.0021))
            fail_msg("found %.9g s, but a plan takes %.9g s", a.prediction->step_seconds, least);
        if (!(a.lower_bound_seconds <= least * (1 + 1e-9)))
            fail_msg("bound %.9g s, but a plan takes %.9g s", a.lower_bound_seconds, least);
        wefti_joint_answer_free(&a);
        joint_source_free(&m);
    }
}

static void an_answer_is_the_same_in_every_run(void **state) {
    (void)state;
    char *texts[2];
    double bounds[2];
    for (int k = 0; k < 2; k++) {
        joint_source m = {.dtype = WEFT_F32,
                          .config = joint_language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
        wefti_joint_answer a =
            joint_answered(&m, &(joint_question){joint_machine(2, 4, 1e10, 1e9), NULL, 8, 32, 0,
                                                 .evaluations = 4});
        ASSERT_OK(weft_plan_print(a.plan, &texts[k]));
        bounds[k] = a.lower_bound_seconds;
        wefti_joint_answer_free(&a);
        joint_source_free(&m);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_true(bounds[0] == bounds[1]);
    weft_text_free(texts[0]);
    weft_text_free(texts[1]);
}

/* A clock that ticks when it is asked, since the last search began. */
static int64_t asked;
static double next_tick(void *clock) {
    (void)clock;
    return (double)asked++;
}

static weft_status ask_within(joint_source *s, joint_question q, int64_t ticks,
                              wefti_joint_answer *out) {
    asked = 0;
    q.seconds = (double)ticks;
    q.now = next_tick;
    return joint_ask(s, &q, out);
}

/* The clock is asked while programs are built and walked too, so the limit may end a walk, also the
 * first one. The answer is a plan that fits, and no plan of the space is below its bound; or there
 * is no plan yet, and the message says so. */
static void the_limit_of_time_is_kept(void **state) {
    (void)state;
    enum { LATE = 300 }; /* the splits that are visited after the limit, and a few more */
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    const joint_question q = {joint_machine(2, 4, 1e10, 1e9), NULL, 8, 32, 0, .evaluations = 40};
    wefti_joint_answer all;
    ASSERT_OK(ask_within(&m, q, INT32_MAX, &all));
    const int64_t whole = asked;
    assert_false(all.cut);
    assert_true(whole > 2 * all.evaluations);
    int cut = 0, without = 0;
    int32_t before = 0;
    for (int64_t ticks = 1; ticks < whole; ticks += 1 + ticks / 4) {
        wefti_joint_answer a;
        const weft_status status = ask_within(&m, q, ticks, &a);
        if (asked > ticks + LATE)
            fail_msg("%lld ticks after a limit of %lld", (long long)asked, (long long)ticks);
        if (status < 0) {
            char seconds[32];
            snprintf(seconds, sizeof seconds, "%lld s", (long long)ticks);
            ASSERT_FAILS(WEFT_E_NOT_FOUND, seconds, status);
            assert_int_equal(before, 0); /* longer searches have what shorter ones have found */
            without++;
            continue;
        }
        assert_true(a.cut || a.evaluations == all.evaluations);
        assert_true(a.evaluations >= before);
        assert_true(a.prediction->fits);
        assert_true(a.prediction->step_seconds >= all.prediction->step_seconds);
        assert_true(a.lower_bound_seconds <= all.prediction->step_seconds * (1 + 1e-9));
        before = a.evaluations;
        cut += a.cut;
        wefti_joint_answer_free(&a);
    }
    assert_true(cut > 3 && without > 3);
    wefti_joint_answer_free(&all);
    joint_source_free(&m);
}

static void more_is_never_slower(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 6, 128, 512, 64)};
    double before = INFINITY;
    for (int k = 0; k < 3; k++) { /* faster links */
        wefti_joint_answer a =
            joint_answered(&m, &(joint_question){joint_machine(2, 2, 1e10, 1e8 * pow(10, k)), NULL,
                                                 4, 16, 0, .evaluations = 40});
        assert_true(a.prediction->step_seconds <= before * (1 + a.gap + 0.003));
        before = a.prediction->step_seconds;
        wefti_joint_answer_free(&a);
    }
    before = INFINITY;
    for (int64_t megabytes = 16; megabytes <= 64; megabytes *= 2) {
        const joint_question q = {
            joint_machine(2, 2, 1e10, 1e9), NULL, 4, 16, megabytes << 20, .evaluations = 40};
        wefti_joint_answer a;
        const weft_status status = joint_ask(&m, &q, &a);
        if (status == WEFT_E_NOMEM) continue;
        ASSERT_OK(status);
        assert_true(a.prediction->peak_bytes <= megabytes << 20);
        assert_true(a.prediction->step_seconds <= before * (1 + a.gap + 0.003));
        before = a.prediction->step_seconds;
        wefti_joint_answer_free(&a);
    }
    assert_true(before < INFINITY);
    joint_source_free(&m);
}

/* The answer names the plans with the least bound. A search of these alone has no lower one. */
static void the_gap_names_the_least_bound(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 6, 128, 256, 64)};
    joint_question q = {joint_machine(2, 2, 3e11, 1e10), NULL, 4, 8, 0, .evaluations = 2};
    wefti_joint_answer a = joint_answered(&m, &q);
    assert_non_null(a.least);
    assert_true(a.plan_bound_seconds > a.lower_bound_seconds);
    q.fix = a.least;
    wefti_joint_answer named = joint_answered(&m, &q);
    assert_true(named.lower_bound_seconds >= a.lower_bound_seconds * (1 - 1e-9));
    wefti_joint_answer_free(&named);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Whatever the question: more evaluations give no slower plan, and the printed degrees, as
 * constraints, give the plan itself. */
static void budgets_and_texts_hold(void **state) {
    (void)state;
    static const int budgets[] = {1, 5, 16, 40};
    const uint64_t seed = test_seed((uint64_t)getpid());
    for (uint64_t k = 0; k < 3; k++) {
        const uint32_t x = wefti_philox_u32(seed, 0, k);
        const int hosts = 2 + (int)(x % 2), each = 2 + (int)(x / 2 % 2);
        const int64_t layers = 2 + x / 4 % 5, batch = 2 + x / 32 % 11;
        joint_source m = {.dtype = WEFT_F32,
                          .config = joint_language(WEFT_FAMILY_GPT2, layers, 64, 256, 32)};
        double before = INFINITY;
        wefti_text text = {0};
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            const char *links = joint_machine(hosts, each, 1e10, 1e9);
            wefti_joint_answer a =
                joint_answered(&m, &(joint_question){links, NULL, hosts * each, batch, 0,
                                                     .evaluations = budgets[b]});
            const double step = a.prediction->step_seconds;
            if (step > before)
                fail_msg("seed %llu, question %llu: %d evaluations give %g s, fewer %g s",
                         (unsigned long long)seed, (unsigned long long)k, budgets[b], step, before);
            before = step;
            text.used = 0;
            wefti_joint_degrees_text(&a.degrees, &text);
            wefti_joint_answer_free(&a);
        }
        char *fix = wefti_text_take(&text);
        wefti_joint_answer again =
            joint_answered(&m, &(joint_question){joint_machine(hosts, each, 1e10, 1e9), fix,
                                                 hosts * each, batch, 0, .evaluations = 1});
        if (again.prediction->step_seconds != before)
            fail_msg("seed %llu, question %llu: '%s' gives %g s, not %g s",
                     (unsigned long long)seed, (unsigned long long)k, fix,
                     again.prediction->step_seconds, before);
        wefti_joint_answer_free(&again);
        wefti_free(fix);
        joint_source_free(&m);
    }
}

/* The best plan takes 94 % of the memory. Guesses of bytes are not as exact as that, but the plan
 * is found. */
static void a_plan_may_take_nearly_all_memory(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16};
    m.config = joint_language(WEFT_FAMILY_GPT2, 96, 12288, 51200, 2048);
    m.config.heads = m.config.kv_heads = 96, m.config.head_dim = 128;
    joint_question q = {"8 hosts of 8 a100-80g", NULL, 64, 64, 0, .evaluations = 0};
    wefti_joint_answer a = joint_answered(&m, &q);
    q.fix = "dp=1 cp=1 ep=1 tp=4 sp=0 pp=16 microbatches=64";
    wefti_joint_answer best = joint_answered(&m, &q);
    const int64_t memory = best.prediction->device_bytes;
    assert_true((double)best.prediction->peak_bytes > 0.92 * (double)memory);
    if (!(a.prediction->step_seconds <= best.prediction->step_seconds * 1.002))
        fail_msg("found %.9g s, but a plan takes %.9g s", a.prediction->step_seconds,
                 best.prediction->step_seconds);
    wefti_joint_answer_free(&a);
    wefti_joint_answer_free(&best);
    joint_source_free(&m);
}

/* ---- known answers ---- */

static void replicas_if_everything_fits(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_GPT2, 4, 256, 512, 128)};
    wefti_joint_answer a =
        joint_answered(&m, &(joint_question){joint_machine(1, 4, 300e9, 50e9), NULL, 4, 256, 0,
                                             .evaluations = 24});
    assert_int_equal(a.degrees.data, 4);
    assert_int_equal(a.degrees.tensor * a.degrees.stages * a.degrees.context, 1);
    assert_int_equal(a.degrees.recompute, WEFT_RECOMPUTE_NONE);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Guesses put each of these far behind other plans. */
static void no_plain_plan_is_faster(void **state) {
    (void)state;
    static const char *const plain[] = {"dp=12",
                                        "pp=12",
                                        "pp=1",
                                        "tp=1",
                                        "dp=12 level=0 recompute=none",
                                        "dp=12 level=1 recompute=none",
                                        "dp=12 level=3 recompute=full",
                                        "tp=1 pp=12 recompute=none"};
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 24, 32, 8000, 512)};
    m.config.heads = m.config.kv_heads = 2, m.config.head_dim = 16;
    joint_question q = {"hosts=4 gpus=3 gpu=a100-80g intra=300e9,2e-6 inter=10e9,5e-6",
                        NULL,
                        12,
                        24,
                        0,
                        .evaluations = 0};
    wefti_joint_answer a = joint_answered(&m, &q);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        q.fix = plain[i];
        wefti_joint_answer other = joint_answered(&m, &q);
        if (!(a.prediction->step_seconds <= other.prediction->step_seconds * 1.002))
            fail_msg("found %.9g s, but %s takes %.9g s", a.prediction->step_seconds, plain[i],
                     other.prediction->step_seconds);
        wefti_joint_answer_free(&other);
    }
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Hosts that are slow to reach: stages lie on them, and no axis of the mesh crosses them. */
static void stages_across_slow_links(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 8, 512, 512, 64)};
    wefti_joint_answer a = joint_answered(
        &m, &(joint_question){joint_machine(2, 2, 300e9, 2e7), NULL, 4, 16, 0, .evaluations = 24});
    assert_true(a.degrees.stages >= 2);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Replicas of the whole model do not fit: tensors are split on the fast links within hosts, and
 * replicas lie on the slow ones (Megatron's layout). */
static void tensors_on_fast_links(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_GPT2, 4, 512, 512, 128)};
    const char *const fix = "level=0 cp=1 pp=1 recompute=none";
    const joint_question whole = {
        joint_machine(2, 4, 300e9, 2e9), "tp=1 level=0 cp=1 pp=1", 8, 64, 0, .evaluations = 4};
    wefti_joint_answer all = joint_answered(&m, &whole);
    wefti_joint_answer a = joint_answered(
        &m, &(joint_question){joint_machine(2, 4, 300e9, 2e9), fix, 8, 64,
                              all.prediction->peak_bytes * 6 / 10, .evaluations = 24});
    const wefti_mesh *mesh = &a.plan->mesh;
    assert_true(a.degrees.tensor == 2 || a.degrees.tensor == 4);
    assert_true(a.degrees.data >= 2);
    assert_string_equal(mesh->axis[mesh->axes - 1].name, "tp");
    wefti_joint_answer_free(&all);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

static void experts_are_shared_out(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_MIXTRAL, 4, 128, 256, 64)};
    wefti_joint_answer all =
        joint_answered(&m, &(joint_question){joint_machine(1, 8, 300e9, 5e9),
                                             "ep=1 tp=1 pp=1 level=0", 8, 64, 0, .evaluations = 8});
    wefti_joint_answer a = joint_answered(
        &m, &(joint_question){joint_machine(1, 8, 300e9, 5e9), "tp=1 pp=1 cp=1 level=0", 8, 64,
                              all.prediction->peak_bytes * 2 / 3, .evaluations = 24});
    assert_true(a.degrees.expert > 1);
    wefti_joint_answer_free(&all);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Device counts that are no powers of two, on hosts of 8. */
static void uneven_machines_have_plans(void **state) {
    (void)state;
    static const int devices[] = {6, 12, 24};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        joint_source m = {.dtype = WEFT_BF16,
                          .config = joint_language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
        const joint_question q = {
            joint_machine(3, 8, 1e11, 1e10), NULL, devices[i], 48, 0, .evaluations = 4};
        wefti_joint_answer a = joint_answered(&m, &q);
        const wefti_degrees *d = &a.degrees;
        assert_int_equal(d->data * d->expert * d->context * d->tensor * d->stages, devices[i]);
        assert_true(a.prediction->step_seconds >= a.lower_bound_seconds * (1 - 1e-9));
        wefti_joint_answer_free(&a);
        joint_source_free(&m);
    }
}

/* A plain plan that fits comes first, though most splits of the experts do not fit. The batch is no
 * multiple of the devices. */
static void the_first_walk_is_a_plan_that_fits(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_MIXTRAL, 5, 64, 256, 64)};
    m.config.experts = 32;
    wefti_joint_answer a =
        joint_answered(&m, &(joint_question){joint_machine(2, 8, 300e9, 25e9), NULL, 16, 24,
                                             (int64_t)36 << 20, .evaluations = 1});
    assert_int_equal(a.evaluations, 1);
    assert_int_equal(a.degrees.context, 1);
    /* The limit leaves room for a change of guesses. */
    if (a.programs > 96) fail_msg("%lld programs", (long long)a.programs);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_equals_trying_all),
        cmocka_unit_test(an_answer_is_the_same_in_every_run),
        cmocka_unit_test(the_limit_of_time_is_kept),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(the_gap_names_the_least_bound),
        cmocka_unit_test(budgets_and_texts_hold),
        cmocka_unit_test(a_plan_may_take_nearly_all_memory),
        cmocka_unit_test(replicas_if_everything_fits),
        cmocka_unit_test(no_plain_plan_is_faster),
        cmocka_unit_test(stages_across_slow_links),
        cmocka_unit_test(tensors_on_fast_links),
        cmocka_unit_test(experts_are_shared_out),
        cmocka_unit_test(uneven_machines_have_plans),
        cmocka_unit_test(the_first_walk_is_a_plan_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
