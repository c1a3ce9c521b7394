/* Programs beside training on several devices: evaluation, added before and after steps, and
 * allocations that fail while a session is made or takes a program. */
#include "device_cases.h"

#include "exec/rank_device.h"
#include "session/parts.h"

/* ---- evaluation beside training ---- */

/* `late`: the evaluation is added after a step. */
static void evaluate_beside(bool late) {
    static const char *const names[] = {"2 data", "2 tensor", "4 data, all split",
                                        "2 data 2 tensor, states split", "2 stages"};
    for (int i = 0; i < 5; i++) {
        const plan_case *c = case_of(names[i]);
        weft_graph *graph[2], *eval[2];
        weft_session *s[2];
        double loss[2][2];
        for (int k = 0; k < 2; k++) {
            int program;
            s[k] = session_for(c, k == 1, &graph[k]);
            eval[k] = tiny_gpt2(WEFT_USE_EVAL, BATCH, 0, WEFT_F32);
            if (late) (void)train_step(s[k], c, 7);
            if (weft_session_add(s[k], eval[k], &program) < 0)
                fail_msg("%s: %s", c->name, weft_error_message());
            for (int round = 0; round < 2; round++) {
                feed_rows(s[k], program, 5, 0);
                if (weft_session_forward(s[k], program, &loss[k][round]) < 0)
                    fail_msg("%s: %s", c->name, weft_error_message());
                (void)train_step(s[k], c, round);
            }
        }
        for (int round = 0; round < 2; round++)
            if (!(fabs(loss[0][round] - loss[1][round]) <= 1e-5 * fabs(loss[0][round])))
                fail_msg("%s: validation loss %d is %.8g, not %.8g", c->name, round, loss[1][round],
                         loss[0][round]);
        check_memory(s[1], c);
        for (int k = 0; k < 2; k++) {
            end_session(s[k], graph[k]);
            weft_graph_destroy(eval[k]);
        }
    }
}

static void evaluation_has_the_same_plan(void **state) {
    (void)state;
    evaluate_beside(false);
}

static void evaluation_comes_after_a_step(void **state) {
    (void)state;
    evaluate_beside(true);
}

/* ---- memory that is not there ---- */

static int64_t fail_at = INT64_MAX;

static int64_t roll_of(uint64_t n, int64_t below) {
    return (int64_t)(wefti_philox_u32(SEED, 3, n) % (uint64_t)(2 * below + 1));
}

static weft_status create_and_step(const plan_case *c, weft_graph *graph, weft_session **out) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = plan_of(c);
    o.seed = SEED;
    o.threads = 2;
    o.clip = c->clip;
    o.plan = plan;
    wefti_fault_arm(WEFTI_FAULT_ALLOC, fail_at, fail_at & 1, 0);
    weft_status status = weft_session_create(graph, &o, out);
    double loss;
    wefti_session_piece pieces[8];
    int32_t count;
    if (status == WEFT_OK)
        status = wefti_session_pieces(*out, 0, 0, pieces, &count); /* starts it */
    if (status == WEFT_OK) status = try_step(*out, c, 0, &loss);
    weft_plan_destroy(plan);
    return status;
}

/* A program cannot be added because memory fails, at any time: while it is built, or while the
 * devices take it. Then the session goes on without it, and takes it later. */
static void an_addition_may_fail(void **state) {
    (void)state;
    const plan_case *c = case_of("2 data 2 tensor, states split");
    weft_graph *graph[2], *eval[2];
    weft_session *s[2];
    double loss[2];
    int program[2], failures = 0;
    int64_t bound[8];
    for (int k = 0; k < 2; k++) {
        eval[k] = tiny_gpt2(WEFT_USE_EVAL, BATCH, 0, WEFT_F32);
        s[k] = session_for(c, true, &graph[k]);
        (void)train_step(s[k], c, 0);
    }
    ASSERT_OK(weft_session_add(s[0], eval[0], &program[0]));
    for (int r = 0; r < weft_session_devices(s[1]); r++)
        bound[r] = wefti_workers_device(s[1]->workers, r)->binding_count;
    for (weft_status status = WEFT_E_NOMEM; status < 0; failures++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, (int64_t)failures * 11, true, 0); /* all from here on */
        status = weft_session_add(s[1], eval[1], &program[1]);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status < 0) assert_int_equal(status, WEFT_E_NOMEM);
        for (int r = 0; r < weft_session_devices(s[1]) && status < 0; r++)
            assert_int_equal(wefti_workers_device(s[1]->workers, r)->binding_count, bound[r]);
        for (int k = 0; k < 2 && failures % 64 == 0; k++) (void)train_step(s[k], c, 0);
    }
    assert_true(failures > 40);
    for (int k = 0; k < 2; k++) {
        feed_rows(s[k], program[k], 5, 0);
        ASSERT_OK(weft_session_forward(s[k], program[k], &loss[k]));
        (void)train_step(s[k], c, 1);
        check_memory(s[k], c);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    assert_true(difference(s[0], s[1], WEFT_ROLE_PARAM) == 0);
    for (int k = 0; k < 2; k++) {
        end_session(s[k], graph[k]);
        weft_graph_destroy(eval[k]);
    }
}

/* Memory fails while the devices take a program that needs more of it than training. Devices that
 * have taken it have lost their inputs: the session asks for them instead of computing with what
 * the new memory holds. */
static void inputs_are_asked_for_after_a_failed_addition(void **state) {
    (void)state;
    enum { LAST = 40, LARGER = 16 * BATCH };
    const plan_case *c = case_of("2 data 2 tensor, states split");
    weft_graph *graph[2], *small = tiny_gpt2(WEFT_USE_EVAL, BATCH, 0, WEFT_F32),
                          *large[2] = {tiny_gpt2(WEFT_USE_EVAL, LARGER, 0, WEFT_F32),
                                       tiny_gpt2(WEFT_USE_EVAL, LARGER, 0, WEFT_F32)};
    weft_session *s[2];
    int program, other, asked = 0;
    double loss, first;
    for (int k = 0; k < 2; k++) s[k] = session_for(c, true, &graph[k]);
    ASSERT_OK(weft_session_add(s[0], small, &program));
    for (int k = 0; k < 2; k++) (void)train_step(s[k], c, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, INT64_MAX, false, 0);
    ASSERT_OK(weft_session_add(s[1], large[1], &other));
    const int64_t calls = wefti_fault_count(WEFTI_FAULT_ALLOC);
    feed_rows(s[0], program, 5, 0);
    ASSERT_OK(weft_session_forward(s[0], program, &first));
    for (int64_t at = calls - LAST; at < calls; at++) {
        feed_rows(s[0], program, 5, 0);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, at, false, 0);
        const weft_status added = weft_session_add(s[0], large[0], &other);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (added >= 0) break;
        weft_status status = weft_session_forward(s[0], program, &loss);
        if (status < 0) {
            asked++;
            ASSERT_FAILS(WEFT_E_ARG, "fed", status);
            feed_rows(s[0], program, 5, 0);
            ASSERT_OK(weft_session_forward(s[0], program, &loss));
        }
        assert_memory_equal(&loss, &first, sizeof loss);
    }
    assert_true(asked > 0);
    for (int k = 0; k < 2; k++) {
        end_session(s[k], graph[k]);
        weft_graph_destroy(large[k]);
    }
    weft_graph_destroy(small);
}

/* One in some of the allocations, each time others. */
static void allocations_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"2 data", "2 data 2 tensor, states split"};
    for (int i = 0; i < 2; i++) {
        const plan_case *c = case_of(names[i]);
        weft_session *s = NULL;
        weft_graph *graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH, 0.2, WEFT_F32);
        ASSERT_OK(create_and_step(c, graph, &s));
        int64_t calls = wefti_fault_count(WEFTI_FAULT_ALLOC), stride = calls / 60;
        end_session(s, graph);
        print_message("%s: %d allocations, one in %d fails\n", c->name, (int)calls, (int)stride);
        for (int64_t n = 0; n < calls; n += 1 + roll_of((uint64_t)n, stride)) {
            s = NULL;
            graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH, 0.2, WEFT_F32);
            fail_at = n;
            weft_status status = create_and_step(c, graph, &s);
            fail_at = INT64_MAX;
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            if (status != WEFT_E_NOMEM)
                fail_msg("%s: allocation %d of %d failed: %s: %s", c->name, (int)n, (int)calls,
                         weft_status_text(status), weft_error_message());
            end_session(s, graph);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_has_the_same_plan),
        cmocka_unit_test(evaluation_comes_after_a_step),
        cmocka_unit_test(an_addition_may_fail),
        cmocka_unit_test(inputs_are_asked_for_after_a_failed_addition),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
