/* Pipeline schedules: exact orders, peaks and makespans of the literature, and what holds for all.
 */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/text.h"
#include "schedule_run.h"

enum { STAGES = 16 };

static wefti_schedule *create(weft_schedule kind, int stages, int micro, int chunks) {
    wefti_schedule *s = NULL;
    if (wefti_schedule_create(kind, stages, micro, chunks, &s) < 0)
        fail_msg("%d stages, %d microbatches: %s", stages, micro, weft_error_message());
    return s;
}

/* "F0 F1 B0", or with chunks "F0.1": microbatch 0 of chunk 1. */
static void expect_order(weft_schedule kind, int stages, int micro, int chunks, int stage,
                         const char *expected) {
    wefti_schedule *s = create(kind, stages, micro, chunks);
    const wefti_stage_task *task = wefti_schedule_of(s, stage);
    wefti_text text = {0};
    for (int i = 0; i < s->tasks; i++) {
        wefti_text_add(&text, "%s%c%d", i ? " " : "", "FBW"[task[i].kind], task[i].micro);
        if (chunks > 1) wefti_text_add(&text, ".%d", task[i].chunk);
    }
    char *order = wefti_text_take(&text);
    assert_string_equal(order, expected);
    wefti_free(order);
    wefti_free(s);
}

static schedule_result run(weft_schedule kind, int stages, int micro, int chunks,
                           schedule_times times, int32_t peak[STAGES]) {
    wefti_schedule *s = create(kind, stages, micro, chunks);
    schedule_result result = {0};
    if (run_schedule(s, &times, peak, &result) < 0)
        fail_msg("%d stages, %d microbatches, %d chunks: %s", stages, micro, chunks,
                 weft_error_message());
    wefti_free(s);
    return result;
}

/* MindSpore's documented order for two stages, and the one for four. */
static void test_orders_1f1b(void **state) {
    (void)state;
    const weft_schedule k = WEFT_PIPELINE_1F1B;
    expect_order(k, 2, 4, 1, 0, "F0 F1 B0 F2 B1 F3 B2 B3");
    expect_order(k, 2, 4, 1, 1, "F0 B0 F1 B1 F2 B2 F3 B3");
    expect_order(k, 4, 8, 1, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    expect_order(k, 4, 8, 1, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
    expect_order(k, 4, 8, 1, 2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
    expect_order(k, 4, 8, 1, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    expect_order(k, 1, 3, 1, 0, "F0 B0 F1 B1 F2 B2");
}

static void test_orders_of_others(void **state) {
    (void)state;
    expect_order(WEFT_PIPELINE_GPIPE, 2, 3, 1, 1, "F0 F1 F2 B0 B1 B2");
    expect_order(WEFT_PIPELINE_GPIPE, 1, 2, 1, 0, "F0 B0 F1 B1");
    /* warm-up of 2 (2 - 1) + 2 (2 - 0 - 1) = 4 forwards on stage 0, 2 on stage 1 */
    expect_order(WEFT_PIPELINE_INTERLEAVED, 2, 4, 2, 0,
                 "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
    expect_order(WEFT_PIPELINE_INTERLEAVED, 2, 4, 2, 1,
                 "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
    expect_order(WEFT_PIPELINE_ZERO_BUBBLE, 2, 4, 1, 0, "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3");
    expect_order(WEFT_PIPELINE_ZERO_BUBBLE, 2, 4, 1, 1, "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3");
    expect_order(WEFT_PIPELINE_ZERO_BUBBLE, 2, 3, 2, 1,
                 "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 "
                 "B1.0 B2.1 B2.0 W1.0 W2.1 W2.0");
}

static void expect_near(double a, double b) {
    if (a > b + 1e-9 || a < b - 1e-9) fail_msg("%.12g is not %.12g", a, b);
}

static void test_makespans(void **state) {
    (void)state;
    const schedule_times t = {.forward = 1, .backward = 1, .weight = 1};
    static const struct {
        int stages, micro;
        double makespan, bubble;
    } known[] = {{2, 4, 15, 0.200}, {4, 4, 21, 0.429}, {4, 8, 33, 0.273}, {4, 16, 57, 0.158}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (int kind = WEFT_PIPELINE_GPIPE; kind <= WEFT_PIPELINE_1F1B; kind++) {
            int32_t peak[STAGES];
            schedule_result r =
                run((weft_schedule)kind, known[i].stages, known[i].micro, 1, t, peak);
            expect_near(r.makespan, known[i].makespan);
            assert_true(r.bubble > known[i].bubble - 5e-4 && r.bubble < known[i].bubble + 5e-4);
            for (int s = 0; s < known[i].stages; s++)
                assert_int_equal(peak[s], kind == WEFT_PIPELINE_GPIPE ? known[i].micro
                                                                      : known[i].stages - s);
        }
}

/* All required tasks occur once each, in ascending order for each kind and chunk, with F before B
 * before W. */
static void check_tasks(const wefti_schedule *s, int stage) {
    const wefti_stage_task *task = wefti_schedule_of(s, stage);
    int next[3][8] = {{0}};
    for (int i = 0; i < s->tasks; i++) {
        int chunk = task[i].chunk;
        assert_in_range(chunk, 0, s->chunks - 1);
        assert_int_equal(task[i].micro, next[task[i].kind][chunk]++);
        assert_true(next[1][chunk] <= next[0][chunk]);
        assert_true(next[2][chunk] <= next[1][chunk]);
    }
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        assert_int_equal(next[0][chunk], s->micro);
        assert_int_equal(next[1][chunk], s->micro);
        assert_int_equal(next[2][chunk], wefti_schedule_splits(s->kind) ? s->micro : 0);
    }
}

/* Virtual stages map to places and back, and neighbors in the V share a stage at its tip. */
static void test_places(void **state) {
    (void)state;
    for (int kind = 0; kind < WEFT_PIPELINE_SCHEDULES; kind++)
        for (int stages = 1; stages <= 5; stages++)
            for (int v = 0; v < 2 * stages; v++) {
                int32_t stage, chunk;
                wefti_schedule_place((weft_schedule)kind, stages, v, &stage, &chunk);
                assert_in_range(stage, 0, stages - 1);
                assert_int_equal(wefti_schedule_virtual((weft_schedule)kind, stages, stage, chunk),
                                 v);
            }
    int32_t stage, chunk;
    wefti_schedule_place(WEFT_PIPELINE_ZERO_BUBBLE, 4, 4, &stage, &chunk);
    assert_int_equal(stage, 3);
    wefti_schedule_place(WEFT_PIPELINE_INTERLEAVED, 4, 4, &stage, &chunk);
    assert_int_equal(stage, 0);
}

/* Runs to the end with these times and with slow sends, and within the stated memory and time. */
static void check_all(weft_schedule kind, int S, int M, int v) {
    const schedule_times t = {.forward = 1, .backward = 1, .weight = 1};
    const schedule_times slow = {.forward = 2, .backward = 3, .weight = 0.5, .send = 5};
    wefti_schedule *s = create(kind, S, M, v);
    for (int stage = 0; stage < S; stage++) check_tasks(s, stage);
    wefti_free(s);
    int32_t peak[STAGES], peak_slow[STAGES];
    schedule_result r = run(kind, S, M, v, t, peak), late = run(kind, S, M, v, slow, peak_slow);
    assert_true(late.makespan > r.makespan);
    assert_true(r.bubble >= 0 && r.bubble < 1);
    expect_near(r.bubble, 1 - 3.0 * M * v / r.makespan); /* a stage works 3 M v */
    for (int stage = 0; stage < S; stage++) {
        int most = M;
        if (kind == WEFT_PIPELINE_1F1B) most = S - stage;
        if (kind == WEFT_PIPELINE_INTERLEAVED) most = S * (v - 1) + 2 * (S - stage - 1) + 1;
        if (kind == WEFT_PIPELINE_ZERO_BUBBLE) most = S * v;
        if (most > M * v) most = M * v;
        assert_true(peak[stage] <= most);
        assert_int_equal(peak[stage], peak_slow[stage]); /* the order decides, not the times */
    }
    double expected = kind == WEFT_PIPELINE_ZERO_BUBBLE   ? 3 * M * v + (S - 1)
                      : kind == WEFT_PIPELINE_INTERLEAVED ? 3 * (M * v + S - 1)
                                                          : 3 * (M + S - 1);
    bool small = v == 2 && kind == WEFT_PIPELINE_ZERO_BUBBLE && M < 2 * S;
    if (small) /* never worse than 1f1b, where a stage takes twice as long as half of one */
        assert_true(r.makespan <= 6 * (M + S - 1));
    else
        expect_near(r.makespan, expected);
}

static void test_many(void **state) {
    (void)state;
    for (int S = 2; S <= 9; S++)
        for (int M = S; M <= 4 * S + 3; M++) {
            check_all(WEFT_PIPELINE_GPIPE, S, M, 1);
            check_all(WEFT_PIPELINE_1F1B, S, M, 1);
            check_all(WEFT_PIPELINE_ZERO_BUBBLE, S, M, 1);
            check_all(WEFT_PIPELINE_ZERO_BUBBLE, S, M, 2);
            if (M % S == 0)
                for (int v = 2; v <= 4; v++) check_all(WEFT_PIPELINE_INTERLEAVED, S, M, v);
        }
    for (int M = 1; M < 5; M++)
        for (int kind = 0; kind < WEFT_PIPELINE_SCHEDULES; kind++)
            check_all((weft_schedule)kind, 1, M, 1);
}

/* ZB-H1's bubble is (S - 1)(F + B - W), 1F1B's (S - 1)(F + B + W) (Qi et al., table 2). */
static void test_zero_bubble_formula(void **state) {
    (void)state;
    const schedule_times t = {.forward = 1.0, .backward = 1.1, .weight = 0.9};
    for (int S = 2; S <= 8; S++)
        for (int M = 2 * S; M <= 3 * S; M++) {
            double work = 3.0 * M;
            expect_near(run(WEFT_PIPELINE_ZERO_BUBBLE, S, M, 1, t, NULL).makespan,
                        work + (S - 1) * (1.0 + 1.1 - 0.9));
            expect_near(run(WEFT_PIPELINE_1F1B, S, M, 1, t, NULL).makespan, work + (S - 1) * 3.0);
        }
}

static void bad(weft_schedule kind, int stages, int micro, int chunks, const char *message) {
    wefti_schedule *s = NULL;
    assert_int_equal(wefti_schedule_create(kind, stages, micro, chunks, &s), WEFT_E_ARG);
    assert_null(s);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

static void test_refused(void **state) {
    (void)state;
    bad(WEFT_PIPELINE_1F1B, 4, 3, 1, "at least pipeline.stages = 4");
    bad(WEFT_PIPELINE_INTERLEAVED, 4, 3, 2, "at least pipeline.stages = 4");
    bad(WEFT_PIPELINE_INTERLEAVED, 4, 10, 2, "pipeline.stages = 4");
    bad(WEFT_PIPELINE_INTERLEAVED, 4, 8, 1, "at least 2");
    bad(WEFT_PIPELINE_ZERO_BUBBLE, 4, 8, 3, "stages|back");
    bad(WEFT_PIPELINE_GPIPE, 4, 8, 2, "gpipe|1");
    bad(WEFT_PIPELINE_1F1B, 0, 8, 1, "1");
    bad(WEFT_PIPELINE_SCHEDULES, 2, 8, 1, "known|gpipe");
    bad(WEFT_PIPELINE_GPIPE, 1 << 20, 1 << 20, 1, "tasks");
}

/* Orders that wait for each other are found, and the message names the waiting stages. */
static void test_stands_still(void **state) {
    (void)state;
    const schedule_times t = {.forward = 1, .backward = 1, .weight = 1};
    wefti_schedule *s = create(WEFT_PIPELINE_1F1B, 2, 2, 1);
    wefti_stage_task *task = s->task, spare = task[0]; /* stage 0: F0 F1 B0 B1 */
    task[0] = task[2];
    task[2] = spare;
    int32_t peak[2] = {-1, -1};
    schedule_result result = {.makespan = -1};
    assert_int_equal(run_schedule(s, &t, peak, &result), WEFT_E_BUG);
    ASSERT_MESSAGE("stage 0|task 0");
    assert_true(result.makespan == -1 && peak[0] == -1);
    wefti_free(s);
}

static void test_no_memory(void **state) {
    (void)state;
    const schedule_times t = {.forward = 1};
    wefti_schedule *s = NULL;
    schedule_result result;
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, false, 0);
    assert_int_equal(wefti_schedule_create(WEFT_PIPELINE_1F1B, 2, 2, 1, &s), WEFT_E_NOMEM);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 1, false, 0);
    assert_int_equal(wefti_schedule_create(WEFT_PIPELINE_1F1B, 2, 2, 1, &s), WEFT_OK);
    assert_int_equal(run_schedule(s, &t, NULL, &result), WEFT_E_NOMEM);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    wefti_free(s);
}

/* The task of a shorter order, expanded: its repeated part runs `more` times more. */
static wefti_stage_task expanded(const wefti_stage_task *task, int32_t first, int32_t count,
                                 int32_t period, int32_t more, int32_t at) {
    if (at < first + count) return task[at];
    int32_t times = (at - first) / count < more ? (at - first) / count : more;
    wefti_stage_task x = task[at - times * count];
    x.micro += times * period;
    return x;
}

static void expect_period(weft_schedule kind, int stages, int chunks, int micro, int32_t least,
                          int32_t from, int *found) {
    wefti_schedule *all = create(kind, stages, micro, chunks);
    for (int stage = 0; stage < stages; stage++) {
        int32_t period = wefti_schedule_period(kind, stages, stage, chunks, least), first, count;
        int32_t fewer = wefti_schedule_shorter(kind, stages, stage, micro, chunks, period, from);
        if (fewer == micro) continue;
        assert_int_equal((micro - fewer) % period, 0);
        wefti_schedule *s = create(kind, stages, fewer, chunks);
        if (!wefti_schedule_repeats(s, stage, period, from, &first, &count))
            fail_msg("schedule %d, %d stages, %d microbatches, %d chunks: stage %d has no period",
                     (int)kind, stages, fewer, chunks, stage);
        const wefti_stage_task *task = wefti_schedule_of(s, stage),
                               *x = wefti_schedule_of(all, stage);
        for (int32_t i = 0; i < all->tasks; i++) {
            wefti_stage_task y = expanded(task, first, count, period, (micro - fewer) / period, i);
            if (x[i].kind != y.kind || x[i].chunk != y.chunk || x[i].micro != y.micro)
                fail_msg("schedule %d, %d stages, %d for %d microbatches, %d chunks: task %d of "
                         "stage %d differs",
                         (int)kind, stages, fewer, micro, chunks, i, stage);
        }
        wefti_free(s);
        ++*found;
    }
    wefti_free(all);
}

/* An order is that of fewer microbatches with one part repeated, in every schedule. */
static void test_periods(void **state) {
    (void)state;
    static const struct {
        weft_schedule kind;
        int chunks;
    } kinds[] = {{WEFT_PIPELINE_1F1B, 1},        {WEFT_PIPELINE_INTERLEAVED, 2},
                 {WEFT_PIPELINE_INTERLEAVED, 3}, {WEFT_PIPELINE_ZERO_BUBBLE, 1},
                 {WEFT_PIPELINE_ZERO_BUBBLE, 2}, {WEFT_PIPELINE_GPIPE, 1}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int stages = 2; stages <= 24; stages += stages < 6 ? 1 : 6) { /* 2 to 6, 12, 18, 24 */
            int found = 0, step = kinds[k].kind == WEFT_PIPELINE_INTERLEAVED ? stages : 1;
            for (int micro = 2 * stages; micro < (stages > 6 ? 8 : 22) * stages; micro += step)
                for (int skips = 0; skips < 2; skips++)
                    expect_period(kinds[k].kind, stages, kinds[k].chunks, micro,
                                  skips ? 3 * stages : 3, skips ? 2 * stages : 2, &found);
            assert_true(found > 0 || stages > 6 || kinds[k].kind == WEFT_PIPELINE_GPIPE);
        }
    /* Late stages of long pipelines have short periods, and schedules no fewer microbatches than
     * stages. */
    for (int stages = 12; stages <= 24; stages += 4) {
        int found = 0;
        for (int micro = stages; micro <= 4 * stages; micro += 5)
            expect_period(WEFT_PIPELINE_1F1B, stages, 1, micro, 3, 2, &found);
        assert_true(found > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_1f1b), cmocka_unit_test(test_orders_of_others),
        cmocka_unit_test(test_makespans),   cmocka_unit_test(test_places),
        cmocka_unit_test(test_many),        cmocka_unit_test(test_zero_bubble_formula),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_stands_still),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_periods),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
