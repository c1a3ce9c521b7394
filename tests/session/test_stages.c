/* Several graphs of one session over the stages of a pipeline. Whatever each graph's calls cost,
 * they run where the parameters are. Copies of a step interleave inside every task. */
#include "session_models.h"

#include "weft/plan.h"

enum { CELLS = 4, WIDTH = 6, MICRO = 2, STEPS = 3 };

/* A row of products, [MICRO, WIDTH] each. The cell numbered `heavy` computes much more. It has no
 * extra parameters and changes its result only by rounding. */
static weft_graph *row_of_cells(int cells, int heavy) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    int64_t shape[2] = {MICRO, WIDTH}, square[2] = {WIDTH, WIDTH}, large[2] = {64, 64},
            unit[2] = {1, 1};
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F64, 2, shape));
    weft_value target = weft_input(g, "target", weft_desc_of(WEFT_F64, 2, shape));
    weft_init init = {WEFT_INIT_NORMAL, 0.5};
    for (int c = 0; c < cells; c++) {
        weft_cell_begin(g, "cell%d", c);
        weft_value w = weft_param(g, "weight", weft_desc_of(WEFT_F64, 2, square), init);
        x = weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
        if (c == heavy) {
            weft_value ones = weft_constant(g, weft_desc_of(WEFT_F64, 2, large), 1);
            for (int k = 0; k < 4; k++)
                ones = weft_scale(g, weft_matmul(g, ones, ones, false, false), 1.0 / 64);
            weft_value one = weft_reshape(g, weft_mean(g, ones, 0, NULL, false), 2, unit);
            x = weft_mul(g, x, one);
        }
        x = weft_cell_end(g, x);
    }
    weft_cell_begin(g, "head");
    weft_loss(g, weft_cell_end(g, weft_mse(g, x, target)));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

typedef struct outcome {
    double train[STEPS], evaluated;
} outcome;

/* STEPS updates of `microbatches` each, then an evaluation with the other graph. */
static outcome run(const weft_plan *plan, int microbatches, int heavy, int cells,
                   int heavy_evaluation) {
    weft_graph *g = row_of_cells(CELLS, heavy), *e = row_of_cells(cells, heavy_evaluation);
    weft_session_options o = weft_session_defaults();
    outcome out;
    int evaluation;
    o.plan = plan;
    o.threads = 2;
    o.microbatches = microbatches;
    weft_session *s = session_of(g, o);
    ASSERT_OK(weft_session_add(s, e, &evaluation));
    for (int n = 0; n < STEPS; n++) {
        double sum = 0, loss;
        int known = 0;
        if (microbatches == 1) {
            feed_rows(s, 0, (uint64_t)n, 0);
            ASSERT_OK(weft_session_step(s, 0.1, &out.train[n]));
            continue;
        }
        for (int m = 0; m < microbatches; m++) {
            feed_rows(s, 0, (uint64_t)(n * microbatches + m), 0);
            ASSERT_OK(weft_session_accumulate(s, &loss));
            if (isnan(loss)) continue; /* known at the last one */
            sum += loss;
            known++;
        }
        out.train[n] = sum / known;
        ASSERT_OK(weft_session_update(s, 0.1, NULL));
    }
    feed_rows(s, evaluation, 77, 0);
    ASSERT_OK(weft_session_forward(s, evaluation, &out.evaluated));
    for (int32_t r = 0; r < (plan ? 2 : 1); r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        assert_int_equal(predicted, observed);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(e);
    return out;
}

static void equal_numbers(const char *what, double a, double b) {
    if (!(fabs(a - b) <= 1e-12)) fail_msg("%s: %.15g, one device has %.15g", what, b, a);
}

static void equal_outcomes(const outcome *one, const outcome *split) {
    for (int n = 0; n < STEPS; n++) equal_numbers("loss", one->train[n], split->train[n]);
    equal_numbers("evaluation", one->evaluated, split->evaluated);
}

/* If one graph's costs would partition the calls differently, the calls stay with the parameters
 * that training updates. This holds also if a graph has fewer calls, so that some stages have
 * none. */
static void evaluation_runs_where_the_parameters_are(void **state) {
    (void)state;
    for (int cells = 1; cells <= CELLS; cells++) {
        outcome one = run(NULL, 4, -1, cells, -1);
        for (int stages = 2; stages <= CELLS; stages++) {
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(stages, &plan));
            ASSERT_OK(weft_plan_pipeline(plan, stages, 4, WEFT_PIPELINE_1F1B, 1));
            for (int heavy = -1; heavy < CELLS; heavy++)
                for (int evaluated = -1; evaluated < cells; evaluated++) {
                    outcome split = run(plan, 4, heavy, cells, evaluated);
                    equal_outcomes(&one, &split);
                }
            weft_plan_destroy(plan);
        }
    }
}

/* A cell that reads parameters of two stages cannot be in either. */
static void parameters_of_two_stages_are_refused(void **state) {
    (void)state;
    weft_graph *g = row_of_cells(CELLS, -1), *e;
    weft_plan *plan;
    int64_t shape[2] = {MICRO, WIDTH}, square[2] = {WIDTH, WIDTH};
    weft_init init = {WEFT_INIT_NORMAL, 0.5};
    int evaluation;
    ASSERT_OK(weft_graph_create(&e));
    weft_value x = weft_input(e, "x", weft_desc_of(WEFT_F64, 2, shape));
    weft_value first = weft_param(e, "cell0.weight", weft_desc_of(WEFT_F64, 2, square), init);
    weft_value last = weft_param(e, "cell3.weight", weft_desc_of(WEFT_F64, 2, square), init);
    weft_cell_begin(e, "both");
    x = weft_linear(e, weft_linear(e, x, first, WEFT_NO_VALUE, false), last, WEFT_NO_VALUE, false);
    x = weft_cell_end(e, x);
    weft_cell_begin(e, "behind");
    weft_output(e, "y", weft_cell_end(e, weft_tanh(e, x)));
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_pipeline(plan, 2, 2, WEFT_PIPELINE_1F1B, 1));
    weft_session_options o = weft_session_defaults();
    o.plan = plan;
    weft_session *s = session_of(g, o);
    ASSERT_FAILS(WEFT_E_LAYOUT, "cell3.weight|stage 1", weft_session_add(s, e, &evaluation));
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    weft_graph_destroy(e);
}

/* Copies multiply the microbatches, for one stage and for several, under every schedule. The
 * session need not be given the number again. */
static void copies_join_with_microbatches(void **state) {
    (void)state;
    static const struct {
        weft_schedule kind;
        int chunks, microbatches;
    } schedules[] = {
        {WEFT_PIPELINE_GPIPE, 1, 2},       {WEFT_PIPELINE_1F1B, 1, 3},
        {WEFT_PIPELINE_INTERLEAVED, 2, 4}, {WEFT_PIPELINE_ZERO_BUBBLE, 1, 2},
        {WEFT_PIPELINE_ZERO_BUBBLE, 2, 4},
    };
    for (int copies = 1; copies <= 3; copies++) {
        for (int accumulate = 1; accumulate <= 3; accumulate++) {
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(2, &plan));
            ASSERT_OK(weft_plan_accumulate(plan, accumulate));
            ASSERT_OK(weft_plan_copies(plan, copies));
            outcome one = run(NULL, accumulate * copies, -1, CELLS, -1);
            outcome split = run(plan, accumulate * copies, -1, CELLS, -1);
            equal_outcomes(&one, &split);
            weft_plan_destroy(plan);
        }
        for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
            weft_plan *plan;
            int parts = schedules[i].microbatches * copies;
            ASSERT_OK(weft_plan_create(2, &plan));
            ASSERT_OK(weft_plan_pipeline(plan, 2, schedules[i].microbatches, schedules[i].kind,
                                         schedules[i].chunks));
            ASSERT_OK(weft_plan_copies(plan, copies));
            outcome one = run(NULL, parts, -1, CELLS, -1), split = run(plan, parts, -1, CELLS, -1);
            equal_outcomes(&one, &split);
            weft_plan_destroy(plan);
        }
    }
}

/* Writes the parameters after one step of many microbatches to *out; returns the loss. */
static double run_many(const weft_plan *plan, int microbatches, double out[CELLS][WIDTH * WIDTH]) {
    weft_graph *g = row_of_cells(CELLS, -1);
    weft_session_options o = weft_session_defaults();
    double loss, sum = 0;
    char name[32];
    o.plan = plan;
    o.threads = 2;
    o.microbatches = microbatches;
    weft_session *s = session_of(g, o);
    for (int m = 0; m < microbatches; m++) {
        feed_rows(s, 0, (uint64_t)m, 0);
        ASSERT_OK(weft_session_accumulate(s, &loss));
        if (!isnan(loss)) sum += plan ? loss * microbatches : loss; /* a pipeline has the mean */
    }
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    for (int c = 0; c < CELLS; c++) {
        (void)snprintf(name, sizeof name, "cell%d.weight", c);
        ASSERT_OK(weft_session_read(s, 0, name, out[c], sizeof out[c]));
    }
    int64_t predicted, observed;
    for (int32_t r = 0; r < (plan ? 2 : 1); r++) {
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        assert_int_equal(predicted, observed);
        int loops = wefti_session_program_of(s, 0, r)->loop_count[WEFTI_SECTION_FIRST];
        assert_int_equal(loops, plan ? 1 : 0);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return sum / microbatches;
}

/* Many microbatches run in loops, and give the bits of one device. */
static void loops_have_the_bits_of_one_device(void **state) {
    (void)state;
    static const struct {
        weft_schedule kind;
        int chunks, copies;
    } schedules[] = {
        {WEFT_PIPELINE_1F1B, 1, 1},        {WEFT_PIPELINE_1F1B, 1, 2},
        {WEFT_PIPELINE_INTERLEAVED, 2, 1}, {WEFT_PIPELINE_ZERO_BUBBLE, 1, 1},
        {WEFT_PIPELINE_ZERO_BUBBLE, 2, 1},
    };
    double one[CELLS][WIDTH * WIDTH], split[CELLS][WIDTH * WIDTH];
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        int copies = schedules[i].copies, micro = 60, all = micro * copies;
        weft_plan *plan;
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_pipeline(plan, 2, micro, schedules[i].kind, schedules[i].chunks));
        ASSERT_OK(weft_plan_copies(plan, copies));
        double a = run_many(NULL, all, one), b = run_many(plan, all, split);
        equal_numbers("loss", a, b);
        assert_memory_equal(one, split, sizeof one);
        weft_plan_destroy(plan);
    }
}

/* The plan and the session must agree on microbatches. */
static void microbatches_are_said_once_or_alike(void **state) {
    (void)state;
    weft_graph *g = row_of_cells(CELLS, -1);
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_accumulate(plan, 3));
    ASSERT_OK(weft_plan_copies(plan, 2));
    o.plan = plan;
    o.microbatches = 3;
    ASSERT_FAILS(WEFT_E_ARG, "6|3", weft_session_create(g, &o, &s));
    o.microbatches = 1;
    s = session_of(g, o);
    for (int m = 0; m < 6; m++) {
        feed_rows(s, 0, (uint64_t)m, 0);
        ASSERT_OK(weft_session_accumulate(s, NULL));
    }
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* The most that a stage saves for backward passes at once: in 1F1B, of the microbatches in flight;
 * in gpipe, of all. */
static int64_t saved_by(weft_schedule schedule, int microbatches) {
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 1, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_pipeline(plan, 2, microbatches, schedule, 1));
    o.plan = plan;
    weft_session *s = session_of(g, o);
    weft_session_memory m = weft_session_memory_of(s);
    if (m.saved_bytes <= 0 || m.saved_bytes > m.transient_bytes)
        fail_msg("%d microbatches: %lld of %lld bytes", microbatches, (long long)m.saved_bytes,
                 (long long)m.transient_bytes);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return m.saved_bytes;
}

static void saved_values_count_while_they_exist(void **state) {
    (void)state;
    const int64_t two = saved_by(WEFT_PIPELINE_1F1B, 2);
    for (int m = 3; m < 70; m = 2 * m + 1) {
        assert_int_equal(saved_by(WEFT_PIPELINE_1F1B, m), two);
        assert_int_equal(2 * saved_by(WEFT_PIPELINE_GPIPE, m), m * two);
    }
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, 1, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    weft_session *s = session_of(g, o);
    const int64_t one = weft_session_memory_of(s).saved_bytes;
    weft_session_destroy(s);
    o.microbatches = 4; /* one after the other */
    s = session_of(g, o);
    assert_int_equal(weft_session_memory_of(s).saved_bytes, one);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_runs_where_the_parameters_are),
        cmocka_unit_test(parameters_of_two_stages_are_refused),
        cmocka_unit_test(copies_join_with_microbatches),
        cmocka_unit_test(loops_have_the_bits_of_one_device),
        cmocka_unit_test(microbatches_are_said_once_or_alike),
        cmocka_unit_test(saved_values_count_while_they_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
