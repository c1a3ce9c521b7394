/* Misuse of sessions is refused: splits that fit or match nothing, wrong calls, passes without
 * their inputs. */
#include "session_models.h"

/* The factors of a reshape are the dimensions of its result, so a refusal shows both shapes. */
static void a_refused_reshape_shows_its_result(void **state) {
    (void)state;
    weft_graph *g;
    weft_plan *plan;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(4, 6));
    weft_cell_begin(g, "c");
    weft_value y = weft_cell_end(g, weft_exp(g, weft_reshape(g, x, 2, (int64_t[]){8, 3})));
    weft_loss(g, weft_mean(g, y, 0, NULL, false));
    ASSERT_OK(weft_plan_create(2, &plan));
    ASSERT_OK(weft_plan_split_op(plan, "c:reshape", "nonsense=dp"));
    weft_session_options o = plain_options(WEFT_SGD, 0);
    o.plan = plan;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_FAILS(WEFT_E_LAYOUT, "f32[4, 6]", weft_session_create(g, &o, &s));
    ASSERT_MESSAGE("f32[8, 3]");
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* A split whose pattern matches no op or tensor is refused, and the message has the nearest name.
 */
static void splits_that_match_nothing_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *op, *tensor, *facts;
    } wrong[] = {
        {"aa:linear", NULL, "strategies[0]|'aa:linear'|'a:linear'"},
        {"a:linear", "xx", "tensors[0]|'xx'|'x'"},
        {"a:exp", NULL, "strategies[0]|'a:exp'"},
        {"linear", NULL, "strategies[0]|'linear'"},
        {"b.*:linear", "y*", "strategies[0]|'b.*:linear'|1 more split"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_graph *g;
        weft_plan *plan;
        weft_session *s = NULL;
        weft_session_options o = plain_options(WEFT_SGD, 0);
        ASSERT_OK(weft_graph_create(&g));
        weft_value x = weft_input(g, "x", matrix(4, COLUMNS));
        weft_cell_begin(g, "a");
        weft_value w =
            weft_param(g, "w", matrix(COLUMNS, COLUMNS), (weft_init){WEFT_INIT_NORMAL, 0.3});
        x = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
        weft_loss(g, weft_mean(g, x, 0, NULL, false));
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_split_op(plan, wrong[i].op, "n0=dp"));
        if (wrong[i].tensor) ASSERT_OK(weft_plan_split_tensor(plan, wrong[i].tensor, "[-, dp]"));
        o.plan = plan;
        ASSERT_FAILS(WEFT_E_NOT_FOUND, wrong[i].facts, weft_session_create(g, &o, &s));
        assert_null(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* A training moves f32 or f64 parameters; without it, bf16 ones are read. */
static void bf16_parameters_are_not_trained(void **state) {
    (void)state;
    weft_graph *g;
    weft_session *s = NULL;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(4, COLUMNS));
    const weft_desc desc = weft_desc_of(WEFT_BF16, 2, (int64_t[]){COLUMNS, COLUMNS});
    weft_value w = weft_param(g, "w", desc, (weft_init){WEFT_INIT_NORMAL, 0.3});
    weft_loss(g, weft_mean(g, weft_linear(g, x, w, WEFT_NO_VALUE, false), 0, NULL, false));
    weft_session_options o = plain_options(WEFT_SGD, 0);
    ASSERT_FAILS(WEFT_E_ARG, "'w'", weft_session_create(g, &o, &s));
    ASSERT_MESSAGE("bf16");
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_OK(weft_session_create(g, &o, &s));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* ---- misuse ---- */

static void misuse_is_refused(void **state) {
    (void)state;
    weft_graph *g = random_model(1), *none;
    weft_session_options o = plain_options(WEFT_SGD, 1);
    weft_session *s;
    weft_tensor_info info;
    float x[ROWS * COLUMNS] = {0};
    o.microbatches = 0;
    ASSERT_FAILS(WEFT_E_ARG, "1", weft_session_create(g, &o, &s));
    o = plain_options(WEFT_SGD, -1);
    ASSERT_FAILS(WEFT_E_ARG, "clip", weft_session_create(g, &o, &s));
    o = plain_options(WEFT_SGD, 0);
    o.threads = -1;
    ASSERT_FAILS(WEFT_E_ARG, "0", weft_session_create(g, &o, &s));
    o = plain_options(WEFT_SGD, 0);
    o.memory_bytes = -1;
    ASSERT_FAILS(WEFT_E_ARG, "memory_bytes", weft_session_create(g, &o, &s));
    o = plain_options(WEFT_SGD, 0);
    o.bf16 = (weft_bf16_compute)3;
    ASSERT_FAILS(WEFT_E_ARG, "unknown way 3", weft_session_create(g, &o, &s));
    for (int wrong = 0; wrong < 5; wrong++) {
        o = plain_options(WEFT_ADAMW, 0);
        if (wrong == 0) o.optimizer.weight_decay = INFINITY;
        if (wrong == 1) o.optimizer.eps = 1e39;
        if (wrong == 2) o.optimizer.momentum = NAN;
        if (wrong == 3) o.optimizer.beta1 = -0.1;
        if (wrong == 4) o.optimizer.beta2 = 0.99999999;
        ASSERT_FAILS(WEFT_E_ARG, wrong < 3 ? "negative|finite" : "(train.optimizer.betas)|1",
                     weft_session_create(g, &o, &s));
    }
    o = plain_options(WEFT_SGD, 0);
    ASSERT_OK(weft_graph_create(&none));
    (void)weft_input(none, "x", vector(3));
    o.threads = 1;
    ASSERT_FAILS(WEFT_E_ARG, "loss", weft_session_create(none, &o, &s));
    weft_graph_destroy(none);
    o.microbatches = 2;
    s = session_of(g, o);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "'y'", weft_session_feed(s, 0, "y", x, sizeof x));
    ASSERT_FAILS(WEFT_E_SHAPE, "96 bytes, not 95", weft_session_feed(s, 0, "x", x, sizeof x - 1));
    ASSERT_FAILS(WEFT_E_ARG, "shared", weft_session_feed(s, 0, "shared", x, 144));
    ASSERT_FAILS(WEFT_E_ARG, "NULL", weft_session_feed(s, 0, NULL, x, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "'x'|NULL", weft_session_feed(s, 0, "x", NULL, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "shared|NULL", weft_session_read(s, 0, "shared", NULL, 144));
    ASSERT_FAILS(WEFT_E_ARG, "shared|NULL", weft_session_write(s, 0, "shared", NULL, 144));
    ASSERT_FAILS(WEFT_E_ARG, "program 1", weft_session_feed(s, 1, "x", x, sizeof x));
    ASSERT_FAILS(WEFT_E_ARG, "-1", weft_session_forward(s, -1, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "program 0 trains", weft_session_forward(s, 0, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "tensor", weft_session_tensor(s, 0, 10000, &info));
    ASSERT_FAILS(WEFT_E_ARG, "2 microbatches", weft_session_step(s, 0.1, NULL));
    feed_rows(s, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1 of 2 microbatches", weft_session_update(s, 0.1, NULL));
    feed_rows(s, 0, 1, 0);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "accumulated already", weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "nan", weft_session_update(s, NAN, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1e+39", weft_session_update(s, 1e39, NULL));
    ASSERT_OK(weft_session_update(s, 0.1, NULL));
    weft_session_destroy(s);
    weft_session_destroy(NULL);
    weft_graph_destroy(g);
}

/* ---- a pass reads only fed inputs ---- */

static weft_plan *two_stages(void) {
    weft_plan *p;
    ASSERT_OK(weft_plan_create(2, &p));
    ASSERT_OK(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_1F1B, 1));
    return p;
}

static void a_pass_needs_its_inputs(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) { /* a step, microbatches one by one, in a pipeline at once */
        float x[ROWS * COLUMNS] = {1};
        weft_graph *g = random_model(6);
        weft_session_options o = plain_options(WEFT_SGD, how ? 1 : 0);
        weft_plan *plan = how == 2 ? two_stages() : NULL;
        o.microbatches = how == 1 ? 2 : 1;
        o.plan = plan;
        weft_session *s = session_of(g, o);
        int eval;
        ASSERT_OK(weft_session_add(s, g, &eval));
        ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
        ASSERT_OK(weft_session_feed(s, eval, "target", x, sizeof x));
        for (int pass = 0; pass < 2; pass++) { /* what was fed before counts, but once */
            const char *missing = "target|0";
            ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
            ASSERT_FAILS(WEFT_E_ARG, missing,
                         how ? weft_session_accumulate(s, NULL) : weft_session_step(s, 0.1, NULL));
            ASSERT_OK(weft_session_feed(s, 0, "target", x, sizeof x));
            ASSERT_OK(how ? weft_session_accumulate(s, NULL) : weft_session_step(s, 0.1, NULL));
        }
        ASSERT_FAILS(WEFT_E_ARG, "'x'|1", weft_session_forward(s, eval, NULL));
        ASSERT_OK(weft_session_feed(s, eval, "x", x, sizeof x));
        ASSERT_FAILS(WEFT_E_ARG, "target|1", /* since the steps */
                     weft_session_forward(s, eval, NULL));
        ASSERT_OK(weft_session_feed(s, eval, "target", x, sizeof x));
        ASSERT_OK(weft_session_forward(s, eval, NULL));
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* A caller that writes an input in place need not report each write. */
static void what_is_written_in_place_counts_as_fed(void **state) {
    (void)state;
    float target[ROWS * COLUMNS] = {0};
    weft_graph *g = random_model(6);
    weft_session *s = session_of(g, plain_options(WEFT_SGD, 0));
    weft_session_part x;
    ASSERT_OK(weft_session_local(s, 0, "x", &x));
    for (int step = 0; step < 2; step++) {
        memset(x.data, 0, (size_t)x.bytes);
        ASSERT_FAILS(WEFT_E_ARG, "target|0", weft_session_step(s, 0.1, NULL));
        ASSERT_FAILS(WEFT_E_ARG, "target|NULL",
                     weft_session_feed_local(s, 0, "target", NULL, sizeof target));
        ASSERT_FAILS(WEFT_E_SHAPE, "target|f32[4, 6]|96 bytes|92",
                     weft_session_feed_local(s, 0, "target", target, sizeof target - 4));
        ASSERT_FAILS(WEFT_E_ARG, "target|0", weft_session_step(s, 0.1, NULL));
        ASSERT_OK(weft_session_feed_local(s, 0, "target", target, sizeof target));
        ASSERT_OK(weft_session_step(s, 0.1, NULL));
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_reshape_shows_its_result),
        cmocka_unit_test(splits_that_match_nothing_are_refused),
        cmocka_unit_test(bf16_parameters_are_not_trained),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(a_pass_needs_its_inputs),
        cmocka_unit_test(what_is_written_in_place_counts_as_fed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
