/* MindSpore's cost model: each formula against values computed by hand, 4 bytes an element. The
 * numbers in names of tests are those of the requirements, section.letter.
 * weft-test: no threads */
#include "search_models.h"

static weft_search_options options(void) {
    return weft_search_defaults();
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}
#define ASSERT_NEAR(a, b)                                                                          \
    do {                                                                                           \
        const double a_ = (a), b_ = (b);                                                           \
        if (!near(a_, b_)) fail_msg("%s is %.12g, not %.12g", #a, a_, b_);                         \
    } while (0)

static weft_graph *product(int64_t m, int64_t k, int64_t n, bool parameter) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value a = weft_input(g, "a", search_desc(WEFT_F32, m, k)), b = WEFT_NO_VALUE, y;
    if (!parameter) b = weft_input(g, "b", search_desc(WEFT_F32, k, n));
    weft_cell_begin(g, "layer");
    if (parameter)
        y = weft_linear(g, a, weft_param(g, "w", search_desc(WEFT_F32, k, n), search_normal),
                        WEFT_NO_VALUE, false);
    else
        y = weft_matmul(g, a, b, false, false);
    y = weft_cell_end(g, y);
    weft_output(g, "y", y);
    weft_loss(g, weft_mean(g, y, 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static wefti_mindspore_cost cost_of(const search_space *s, const char *label, const char *op,
                                    const char *parts) {
    wefti_mindspore_cost cost;
    int32_t node = search_node(s, label, op);
    wefti_mindspore_op(&s->options.cost, s->graph, &s->graph->nodes[node],
                       search_strategy(s, node, parts), &cost);
    return cost;
}

/* accept 12(a): A[128,32] B[32,64] on 16 devices. */
static void test_12a_product(void **state) {
    (void)state;
    weft_graph *g = product(128, 32, 64, true);
    weft_plan *settings = search_settings(16);
    weft_search_options o = options();
    search_space s;
    o.cost.threshold = o.cost.bias = 0; /* bytes as they are */
    search_space_open(&s, g, settings, &o);
    wefti_mindspore_cost c = cost_of(&s, "layer", "linear", "m0=16");
    ASSERT_NEAR(c.computation, 8 * 32 * 4 + 32 * 64 * 4); /* 9216 */
    assert_true(c.forward == 0);
    ASSERT_NEAR(c.communication, 8192); /* the gradient of B */
    assert_true(c.without_parameter == 0);
    ASSERT_NEAR(c.partial_parameter, 8.192);
    ASSERT_NEAR(c.memory, 32 * 64 * 4 + 8 * 64 * 4);
    /* K is split: C is added up */
    c = cost_of(&s, "layer", "linear", "m0=4 k=4");
    ASSERT_NEAR(c.computation, 32 * 8 * 4 + 8 * 64 * 4 + 32 * 64 * 4);
    ASSERT_NEAR(c.forward, 32 * 64 * 4);
    ASSERT_NEAR(c.communication, 32 * 64 * 4 + 8 * 64 * 4);
    ASSERT_NEAR(c.without_parameter, 32 * 64 * 4);
    /* B over all devices: no gradient to add */
    c = cost_of(&s, "layer", "linear", "k=4 n0=4");
    ASSERT_NEAR(c.communication, 128 * 16 * 4);
    ASSERT_NEAR(c.computation, 128 * 8 * 4 + 8 * 16 * 4 + 128 * 16 * 4);
    c = cost_of(&s, "layer", "linear", "m0=4 n0=4");
    assert_true(c.forward == 0);
    ASSERT_NEAR(c.communication, 32 * 16 * 4);
    search_space_close(&s);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
    /* an operand that is no parameter has no gradient that is added up here */
    g = product(128, 32, 64, false);
    settings = search_settings(16);
    search_space_open(&s, g, settings, &o);
    c = cost_of(&s, "layer", "matmul", "m=16");
    ASSERT_NEAR(c.computation, 9216);
    assert_true(c.communication == 0);
    search_space_close(&s);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* 0 < bytes <= threshold count `constant`; more bytes count `bias` more; none count nothing. */
static void test_12a_messages(void **state) {
    (void)state;
    weft_graph *g = product(128, 32, 64, true);
    weft_plan *settings = search_settings(16);
    weft_search_options o = options();
    search_space s;
    search_space_open(&s, g, settings, &o);
    wefti_mindspore_cost c = cost_of(&s, "layer", "linear", "m0=16");
    ASSERT_NEAR(c.communication, 8192 + 1024);
    ASSERT_NEAR(wefti_mindspore_time(&s.options.cost, &c), 9216 + 400 * 0.001 * 9216);
    c = cost_of(&s, "layer", "linear", "m0=4 n0=4"); /* 2048 bytes: at the threshold */
    ASSERT_NEAR(c.communication, 3072);
    s.options.cost.threshold = 2047;
    c = cost_of(&s, "layer", "linear", "m0=4 n0=4");
    ASSERT_NEAR(c.communication, 2048 + 1024);
    /* inference: the forward pass alone communicates */
    s.options.cost.inference = true;
    c = cost_of(&s, "layer", "linear", "m0=4 k=4");
    ASSERT_NEAR(c.communication, 8192 + 1024);
    ASSERT_NEAR(wefti_mindspore_time(&s.options.cost, &c), c.computation + 400 * 9216.0);
    search_space_close(&s);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

static wefti_mindspore_cost moved(const char *from, const char *to, bool gradient,
                                  const weft_desc *desc) {
    wefti_mesh mesh = {.axes = 2, .axis = {{.name = "a", .size = 2}, {.name = "b", .size = 4}}};
    weft_search_options o = options();
    wefti_layout x, y;
    wefti_mindspore_cost cost;
    o.cost.threshold = o.cost.bias = 0;
    ASSERT_OK(wefti_layout_parse(from, &mesh, &x));
    ASSERT_OK(wefti_layout_parse(to, &mesh, &y));
    wefti_layout_normal(&x, &mesh, desc);
    wefti_layout_normal(&y, &mesh, desc);
    wefti_mindspore_redistribution(&o.cost, &mesh, desc, &x, &y, gradient, &cost);
    return cost;
}

/* A value of 64 x 32 elements, 8192 bytes, on a mesh of 2 x 4. */
static void test_12a_redistribution(void **state) {
    (void)state;
    const weft_desc d = search_desc(WEFT_F32, 64, 32);
    wefti_mindspore_cost c = moved("[a, b]", "[a, b]", true, &d);
    assert_true(c.communication == 0 && c.computation == 0);
    /* replicated to anything: slices only */
    c = moved("[-, -]", "[a, b]", true, &d);
    assert_true(c.communication == 0);
    ASSERT_NEAR(c.computation, 8192 + 4096);
    c = moved("[a, -]", "[a+b, -]", true, &d);
    assert_true(c.communication == 0);
    /* gather of the first dimension: s n / 2 forward, s / 2 backward */
    c = moved("[b, -]", "[-, -]", true, &d);
    ASSERT_NEAR(c.forward, 2048 * 4 / 2);
    ASSERT_NEAR(c.communication, 2048 * 4 / 2 + 2048 / 2);
    assert_true(c.computation == 0 && c.memory == 0);
    c = moved("[b, -]", "[-, -]", false, &d);
    ASSERT_NEAR(c.communication, 4096);
    /* of another dimension: also a split and a concatenation */
    c = moved("[-, b]", "[-, -]", true, &d);
    ASSERT_NEAR(c.communication, 4096 + 1024);
    ASSERT_NEAR(c.computation, 2 * 2048 * 4);
    ASSERT_NEAR(c.memory, 2 * 2048 * 4);
    /* one gather for both axes of a dimension */
    c = moved("[a+b, -]", "[-, -]", true, &d);
    ASSERT_NEAR(c.forward, 1024 * 8 / 2);
    /* rows to columns: an all-to-all, 2 s each way */
    c = moved("[b, -]", "[-, b]", true, &d);
    ASSERT_NEAR(c.forward, 2 * 2048);
    ASSERT_NEAR(c.communication, 4 * 2048);
    /* a swap: gather, all-to-all, slice */
    c = moved("[a, b]", "[b, a]", true, &d);
    ASSERT_NEAR(c.forward, 1024.0 * 2 / 2 + 2 * 2048);
}

static weft_graph *two_products(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 64, 512));
    const int64_t sizes[] = {512, 1024, 512};
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "l%d", i);
        weft_value w =
            weft_param(g, "w", search_desc(WEFT_F32, sizes[i], sizes[i + 1]), search_normal);
        x = weft_cell_end(g, weft_relu(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
    }
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static wefti_choice_cost best(const weft_search_options *o, double *out_communication) {
    weft_graph *g = two_products();
    weft_plan *settings = search_settings(8);
    search_space s;
    search_space_open(&s, g, settings, o);
    ASSERT_OK(wefti_find_dynamic(&s.find));
    wefti_choice_cost total = wefti_find_total(&s.find);
    /* by a model that counts nothing but communication */
    s.options.cost.alpha = 0;
    s.options.cost.beta = 1;
    *out_communication = wefti_find_total(&s.find).time;
    search_space_close(&s);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
    return total;
}

/* accept 12(b): a larger beta never gives a plan with more communication. */
static void test_12b_beta(void **state) {
    (void)state;
    weft_search_options o = options();
    double before = INFINITY, first = 0;
    o.cost.gamma = 1;
    for (double beta = 1e-4; beta < 1e6; beta *= 10) {
        double communication;
        o.cost.beta = beta;
        (void)best(&o, &communication);
        assert_true(communication <= before);
        if (isinf(before)) first = communication;
        before = communication;
    }
    assert_true(before < first); /* it matters */
}

/* accept 12(b): less memory than the best plan needs: another plan, or an error. */
static void test_12b_capacity(void **state) {
    (void)state;
    weft_search_options o = options();
    double communication;
    wefti_choice_cost free = best(&o, &communication);
    /* a little less: another plan, which fits and costs more */
    o.cost.capacity = free.memory - 1;
    wefti_choice_cost tight = best(&o, &communication);
    assert_true(tight.memory <= o.cost.capacity);
    assert_true(tight.time > free.time);
    /* far too little: an error with the number of bytes */
    weft_graph *g = two_products();
    weft_plan *settings = search_settings(8), *plan = NULL;
    o.cost.capacity = 1000;
    ASSERT_FAILS(WEFT_E_NOMEM, "bytes|1000|parallel.cost.capacity",
                 weft_plan_search(g, settings, &o, &plan, NULL));
    assert_null(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

static void refused(weft_search_options o, const char *facts) {
    weft_graph *g = two_products();
    weft_plan *settings = search_settings(8), *plan = NULL;
    ASSERT_FAILS(WEFT_E_ARG, facts, weft_plan_search(g, settings, &o, &plan, NULL));
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

static void test_12_ranges(void **state) {
    (void)state;
    weft_search_options o = options();
    o.cost.alpha = -1;
    refused(o, "parallel.cost.alpha|-1");
    o = options(), o.cost.gamma = NAN;
    refused(o, "parallel.cost.gamma");
    o = options(), o.cost.capacity = 0;
    refused(o, "parallel.cost.capacity");
    o = options(), o.rules.epsilon = 0;
    refused(o, "parallel.algorithm.epsilon");
    o = options(), o.rules.tensor_slice_align = 1025;
    refused(o, "parallel.algorithm.tensor_slice_align|1025|1024");
    o = options(), o.search = WEFT_SEARCHES;
    refused(o, "propagation|recursive");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_12a_product),        cmocka_unit_test(test_12a_messages),
        cmocka_unit_test(test_12a_redistribution), cmocka_unit_test(test_12b_beta),
        cmocka_unit_test(test_12b_capacity),       cmocka_unit_test(test_12_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
