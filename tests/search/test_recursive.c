/* The double recursive search: MindSpore's example, devices that are no power of two, and models of
 * any kind.
 * weft-test: no threads */
#include "search_models.h"

/* x[256,784] W[784,512], relu, W[512,512], relu, W[512,1]. `last` is the first cell's label. */
static weft_graph *perceptron(void) {
    static const int64_t sizes[] = {784, 512, 512, 1};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 256, 784));
    for (int i = 0; i < 3; i++) {
        weft_cell_begin(g, "l%d", i);
        weft_value w =
            weft_param(g, "w", search_desc(WEFT_F32, sizes[i + 1], sizes[i]), search_normal);
        weft_value b = weft_param(g, "b", search_desc(WEFT_F32, sizes[i + 1], 0), search_normal);
        x = weft_linear(g, x, w, b, true);
        x = weft_cell_end(g, i < 2 ? weft_relu(g, x) : x);
    }
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    return g;
}

static void test_16a_example(void **state) {
    (void)state;
    weft_graph *g = perceptron();
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    char text[256];
    o.search = WEFT_SEARCH_RECURSIVE;
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    const char *parts = search_parts(plan, g, "l0:linear", text);
    if (strncmp(parts, "((4,2),(1,2)", 12) != 0) fail_msg("l0:linear is %s", parts);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* Each count of devices gives a legal plan whose mesh has the prime factors. */
static void test_any_number_of_devices(void **state) {
    (void)state;
    for (int devices = 2; devices <= 36; devices++) {
        weft_graph *g = perceptron();
        weft_plan *settings = search_settings(devices);
        weft_search_options o = weft_search_defaults();
        o.search = WEFT_SEARCH_RECURSIVE;
        weft_plan *plan = search_plan(g, settings, &o, NULL);
        int product = 1;
        for (int a = 0; a < plan->mesh.axes; a++) product *= plan->mesh.axis[a].size;
        assert_int_equal(product, devices);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
}

/* A capacity that nothing fits: an error with the number of bytes that are missing. */
static void test_12_capacity(void **state) {
    (void)state;
    weft_graph *g = perceptron();
    weft_plan *settings = search_settings(4), *plan = NULL;
    weft_search_options o = weft_search_defaults();
    for (int s = WEFT_SEARCH_DYNAMIC; s <= WEFT_SEARCH_RECURSIVE; s++) {
        o.search = (weft_search)s;
        o.cost.capacity = 1000;
        ASSERT_FAILS(WEFT_E_NOMEM, "1000", weft_plan_search(g, settings, &o, &plan, NULL));
        assert_null(plan);
    }
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_16a_example),
                                       cmocka_unit_test(test_any_number_of_devices),
                                       cmocka_unit_test(test_12_capacity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
