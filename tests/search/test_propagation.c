/* Sharding propagation: MindSpore's example, settings that stay, and the error without any.
 * weft-test: no threads */
#include "search_models.h"

/* A feed-forward network [256,784] -> 64 -> 10: product, sum with a bias, relu, product. */
static weft_graph *network(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 256, 784));
    weft_cell_begin(g, "one");
    weft_value w = weft_param(g, "w", search_desc(WEFT_F32, 784, 64), search_normal);
    x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
    weft_cell_begin(g, "act");
    weft_value b = weft_param(g, "b", search_desc(WEFT_F32, 64, 0), search_normal);
    x = weft_cell_end(g, weft_relu(g, weft_add(g, x, b)));
    weft_cell_begin(g, "two");
    w = weft_param(g, "w", search_desc(WEFT_F32, 64, 16), search_normal);
    x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    return g;
}

static void test_14a_example(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    char text[256];
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_op_split(settings, "one:matmul", "((2,1),(1,4))"));
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    assert_string_equal(search_parts(plan, g, "one:matmul", text), "((2,1),(1,4))");
    assert_string_equal(search_parts(plan, g, "act:add", text), "((2,4),(4))");
    assert_string_equal(search_parts(plan, g, "act:relu", text), "((2,4))");
    assert_string_equal(search_parts(plan, g, "two:matmul", text), "((2,4),(4,1))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

static void test_14b_nothing_configured(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8), *plan = NULL;
    weft_search_options o = weft_search_defaults();
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_FAILS(WEFT_E_ARG, "parallel.strategies", weft_plan_search(g, settings, &o, &plan, NULL));
    assert_null(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* Both products are configured, and not in the same way: both stay. */
static void test_14c_settings_stay(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    char text[256], *notes;
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_op_split(settings, "one:matmul", "((2,1),(1,4))"));
    ASSERT_OK(weft_op_split(settings, "two:matmul", "((8,1),(1,1))"));
    weft_plan *plan = search_plan(g, settings, &o, &notes);
    assert_string_equal(search_parts(plan, g, "one:matmul", text), "((2,1),(1,4))");
    assert_string_equal(search_parts(plan, g, "two:matmul", text), "((8,1),(1,1))");
    assert_true(*notes); /* names the edge that needs a redistribution */
    weft_text_free(notes);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_14a_example),
                                       cmocka_unit_test(test_14b_nothing_configured),
                                       cmocka_unit_test(test_14c_settings_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
