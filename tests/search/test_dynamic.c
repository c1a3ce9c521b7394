/* The dynamic search: its plan for MindSpore's example, and the least cost of all strategies on
 * random models with diamonds, residuals, shared and reused parameters. Also its rules: use of all
 * devices, ops that follow, approximation, alignment.
 * weft-test: no threads */
#include "search_models.h"

enum { GRAPHS = 220, WAYS_MOST = 40000 };

/* (x[128,32] y[32,64]) b[64,64] on 16 devices: both products are split by their rows. */
static void test_13a_example(void **state) {
    (void)state;
    weft_graph *g;
    char text[256];
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 128, 32)),
               y = weft_input(g, "y", search_desc(WEFT_F32, 32, 64)),
               b = weft_input(g, "b", search_desc(WEFT_F32, 64, 64));
    weft_cell_begin(g, "one");
    x = weft_cell_end(g, weft_matmul(g, x, y, false, false));
    weft_cell_begin(g, "two");
    x = weft_cell_end(g, weft_matmul(g, x, b, false, false));
    weft_output(g, "out", x);
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    weft_plan *settings = search_settings(16);
    weft_search_options o = weft_search_defaults();
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    assert_string_equal(search_parts(plan, g, "one:matmul", text), "((16,1),(1,1))");
    assert_string_equal(search_parts(plan, g, "two:matmul", text), "((16,1),(1,1))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* ---- random models ---- */

/* Up to `ops` random steps over [8, 16], in cells; some cells repeat; some share a parameter. */
static weft_graph *random_model(dice *d, int ops) {
    weft_graph *g;
    weft_value values[16];
    int count = 0;
    ASSERT_OK(weft_graph_create(&g));
    values[count++] = weft_input(g, "x", matrix(8, 16));
    weft_value shared =
        roll(d, 2) ? weft_param(g, "shared", matrix(16, 16), normal_init()) : WEFT_NO_VALUE;
    const bool has_shared = weft_value_desc(g, shared).rank == 2;
    for (int i = 0; i < ops; i++) {
        weft_value a = values[roll(d, count)], b = values[count - 1], y;
        weft_cell_begin(g, "c%d", i);
        switch (roll(d, has_shared ? 7 : 4)) {
        case 0:
            y = weft_add(g, a, b);
            break;
        case 1:
            y = weft_linear(g, b, weft_param(g, "w", matrix(16, 16), normal_init()), WEFT_NO_VALUE,
                            roll(d, 2));
            break;
        case 2:
            y = weft_layer_norm(g, b, weft_param(g, "w", vector(16), normal_init()), WEFT_NO_VALUE,
                                1e-2);
            break;
        case 3:
            y = roll(d, 2) ? weft_tanh(g, b) : weft_mul(g, b, a);
            break;
        case 4:
            y = weft_matmul(g, b, shared, false, roll(d, 2));
            break;
        default:
            y = weft_linear(g, b, shared, WEFT_NO_VALUE, roll(d, 2));
            break;
        }
        values[count++] = weft_cell_end(g, y);
    }
    weft_output(g, "y", values[count - 1]);
    weft_loss(g, weft_mean(g, values[count - 1], 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* The least cost of all strategies, by trying each. INFINITY: too many. */
static double try_all(search_space *s) {
    const wefti_choice_graph *g = s->graph;
    int32_t at[64] = {0};
    double ways = 1, best = INFINITY;
    assert_true(g->node_count < 64);
    for (int32_t i = 0; i < g->node_count; i++) ways *= g->nodes[i].count;
    if (ways > WAYS_MOST) return INFINITY;
    for (;;) {
        int32_t i = 0;
        for (int32_t k = 0; k < g->node_count; k++)
            s->find.assigned[k] = g->nodes[k].strategies[at[k]];
        double time = wefti_find_total(&s->find).time;
        if (time < best) best = time;
        while (i < g->node_count && ++at[i] == g->nodes[i].count) at[i++] = 0;
        if (i == g->node_count) return best;
    }
}

static weft_search_options random_options(dice *d) {
    weft_search_options o = weft_search_defaults();
    o.cost.beta = (double[]){0.01, 1, 50, 400}[roll(d, 4)];
    o.cost.gamma = roll(d, 2) ? 1 : 0.001;
    o.cost.threshold = o.cost.constant = o.cost.bias = (double)(64 * roll(d, 2));
    return o;
}

static void test_13b_13c_equals_all(void **state) {
    (void)state;
    int compared = 0, shared = 0, diamonds = 0;
    TEST_SEEDS(seed, 1, GRAPHS * 2) {
        dice d = {seed, 0};
        search_space s;
        if (compared >= GRAPHS) continue;
        weft_search_options o = random_options(&d);
        weft_plan *settings = search_settings((int[]){2, 3, 4, 4, 8}[roll(&d, 5)]);
        weft_graph *g = random_model(&d, 1 + (int)roll(&d, 6));
        search_space_open(&s, g, settings, &o);
        double best = try_all(&s);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        double found = wefti_find_total(&s.find).time;
        if (!isinf(best)) {
            compared++;
            if (!(found <= best * (1 + 1e-12)))
                fail_msg("the search found %.17g, the best is %.17g", found, best);
            for (int32_t i = 0; i < s.graph->node_count; i++)
                shared += !s.graph->nodes[i].op &&
                          s.graph->graph->root->values[s.graph->nodes[i].tensor].kind ==
                              WEFTI_VALUE_PARAM;
            diamonds += s.graph->edge_count >= s.graph->node_count;
        }
        search_space_close(&s);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (test_one_seed()) return;
    assert_true(compared >= 200);
    if (shared <= 20 || diamonds <= 20) fail_msg("%d shared, %d diamonds", shared, diamonds);
}

/* A chain of 100 ops on 64 devices. The best way along a chain is known by another method. */
static void test_13d_chain(void **state) {
    (void)state;
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(256, 512));
    for (int i = 0; i < 50; i++) {
        /* widths differ, so that all cells are different */
        weft_cell_begin(g, "c%d", i);
        int64_t from = 512 + 64 * (i % 25) * (i > 0), to = 512 + 64 * ((i + 1) % 25);
        weft_value w = weft_param(g, "w", matrix(from, to), normal_init());
        x = weft_cell_end(g, weft_relu(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
    }
    weft_output(g, "y", x);
    weft_plan *settings = search_settings(64);
    weft_search_options o = weft_search_defaults();
    search_space s;
    search_space_open(&s, g, settings, &o);
    ASSERT_OK(wefti_find_dynamic(&s.find));
    double found = wefti_find_total(&s.find).time;
    /* no single change makes it better */
    for (int32_t i = 0; i < s.graph->node_count; i++) {
        wefti_assignment kept = s.find.assigned[i];
        for (int32_t k = 0; k < s.graph->nodes[i].count; k += 3) {
            s.find.assigned[i] = s.graph->nodes[i].strategies[k];
            assert_true(wefti_find_total(&s.find).time >= found * (1 - 1e-12));
        }
        s.find.assigned[i] = kept;
    }
    search_space_close(&s);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* ---- rules ---- */

/* An op with a batch of `rows` and nothing else to split. */
static weft_graph *batch_only(int64_t rows) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, rows, 1));
    weft_cell_begin(g, "act");
    x = weft_cell_end(g, weft_relu(g, x));
    weft_output(g, "y", x);
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static void test_15a_fully_use_devices(void **state) {
    (void)state;
    weft_graph *g = batch_only(6);
    weft_plan *settings = search_settings(8), *plan = NULL;
    weft_search_options o = weft_search_defaults();
    char text[256];
    ASSERT_FAILS(WEFT_E_ARG, "act:relu|8|parallel.algorithm.fully_use_devices=false",
                 weft_plan_search(g, settings, &o, &plan, NULL));
    o.rules.fully_use_devices = false;
    plan = search_plan(g, settings, &o, NULL);
    assert_string_equal(search_parts(plan, g, "act:relu", text), "((2,1))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* 1 / epsilon strategies of each op; the cost is at most 1.1 times the least. */
static void test_15b_approximation(void **state) {
    (void)state;
    int narrowed = 0;
    TEST_SEEDS(seed, 1000, 200) {
        dice d = {seed, 0};
        search_space s;
        weft_search_options o = random_options(&d);
        weft_plan *settings = search_settings((int[]){4, 8, 8, 16}[roll(&d, 4)]);
        weft_graph *g = random_model(&d, 2 + (int)roll(&d, 7));
        o.rules.fully_use_devices = roll(&d, 2) == 0;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        double exact = wefti_find_total(&s.find).time;
        s.options.rules.enable_algo_approxi = true;
        s.options.rules.epsilon = 0.1;
        ASSERT_OK(wefti_find_dynamic(&s.find));
        double found = wefti_find_total(&s.find).time;
        if (!(found <= 1.1 * exact)) fail_msg("%.17g with epsilon, %.17g without", found, exact);
        for (int32_t i = 0; i < s.graph->node_count; i++) narrowed += s.graph->nodes[i].count > 10;
        search_space_close(&s);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed()) assert_true(narrowed > 100);
}

static weft_graph *products(int64_t rows, int64_t inner, int64_t columns) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(rows, inner));
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "c%d", i);
        weft_value w =
            weft_param(g, "w", i ? matrix(columns, inner) : matrix(inner, columns), normal_init());
        x = weft_cell_end(g, weft_relu(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
    }
    weft_output(g, "y", x);
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* Rows of 64 on 8 devices would be 8 rows each, which is no multiple of 16. */
static void test_15c_alignment(void **state) {
    (void)state;
    weft_graph *g = products(64, 128, 256);
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    o.cost.gamma = 0; /* the batch would be split */
    for (int64_t align = 0; align <= 16; align += 16) {
        search_space s;
        o.rules.tensor_slice_align = align;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        bool aligned = true;
        for (int32_t i = 0; i < s.graph->node_count; i++) {
            const wefti_choice_node *n = &s.graph->nodes[i];
            if (!n->op || strcmp(n->op->op->name, "linear") != 0) continue;
            for (int k = 0; k < 3; k++) {
                wefti_layout layout;
                const weft_desc *desc = k < 2 ? wefti_in(n->op, k) : wefti_out(n->op, 0);
                if (k < 2)
                    wefti_choice_layout_in(s.graph, n, &s.find.assigned[i], k, &layout);
                else
                    wefti_choice_layout_out(s.graph, n, &s.find.assigned[i], 0, &layout);
                weft_desc slice = wefti_layout_local(&layout, &s.graph->mesh, desc, 0);
                for (int e = 0; e < 2; e++) aligned &= slice.shape[e] % 16 == 0;
            }
        }
        assert_int_equal(aligned, align == 16);
        search_space_close(&s);
    }
    /* no slice is a multiple of 1024 */
    weft_plan *plan = NULL;
    o.rules.tensor_slice_align = 1024;
    ASSERT_FAILS(WEFT_E_ARG, "c0:linear|1024|parallel.algorithm.tensor_slice_align",
                 weft_plan_search(g, settings, &o, &plan, NULL));
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

static void test_15_elementwise_follows(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 40) {
        dice d = {seed, 0};
        search_space s;
        weft_search_options o = random_options(&d);
        weft_plan *settings = search_settings(8);
        weft_graph *g = products(16 << roll(&d, 3), 64, 64 << roll(&d, 3));
        o.rules.elementwise_op_strategy_follow = true;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        int followers = 0;
        for (int32_t k = 0; k < s.graph->edge_count; k++) {
            const wefti_choice_edge *e = &s.graph->edges[k];
            const wefti_choice_node *a = &s.graph->nodes[e->from], *b = &s.graph->nodes[e->to];
            wefti_layout from, to;
            if (!a->op || !b->op || strcmp(b->op->op->name, "relu") != 0) continue;
            wefti_choice_layout_out(s.graph, a, &s.find.assigned[e->from], 0, &from);
            wefti_choice_layout_in(s.graph, b, &s.find.assigned[e->to], 0, &to);
            assert_true(wefti_layout_equal(&from, &to));
            followers++;
        }
        assert_true(followers > 0);
        search_space_close(&s);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
}

/* ---- the user's settings ---- */

/* Strategies of the user are the only candidates, and stay in the plan as they are. */
static void test_settings_are_kept(void **state) {
    (void)state;
    char text[256];
    weft_graph *g = products(64, 128, 256);
    weft_plan *settings = search_settings(8);
    ASSERT_OK(weft_op_split(settings, "c0:linear", "((2,2),(2,2))"));
    weft_search_options o = weft_search_defaults();
    search_space s;
    search_space_open(&s, g, settings, &o);
    int32_t node = search_node(&s, "c0", "linear");
    assert_int_equal(s.graph->nodes[node].count, 1);
    search_space_close(&s);
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    wefti_text kept = {0};
    wefti_split_print(plan, &plan->strategies[0], &kept);
    char *taken = wefti_text_take(&kept);
    assert_string_equal(taken, "((2,2),(2,2))");
    wefti_free(taken);
    for (int64_t i = 1; i < plan->strategy_count; i++)
        assert_false(wefti_glob_match(plan->strategies[i].match, "c0:linear"));
    assert_string_not_equal(search_parts(plan, g, "c1:linear", text), "no such op");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    /* axes of the user's mesh */
    settings = search_settings(8);
    ASSERT_OK(weft_plan_axis(settings, "dp", 2));
    ASSERT_OK(weft_plan_axis(settings, "tp", 4));
    ASSERT_OK(weft_op_split(settings, "c0:linear", "n0=tp"));
    plan = search_plan(g, settings, &o, NULL);
    assert_int_equal(plan->mesh.axes, 2);
    assert_string_equal(plan->mesh.axis[1].name, "tp");
    assert_string_equal(search_parts(plan, g, "c0:linear", text), "((1,1),(1,4))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    /* contradictions */
    settings = search_settings(8);
    ASSERT_OK(weft_op_split(settings, "c0:linear", "((3,1),(1,1))"));
    ASSERT_FAILS(WEFT_E_ARG, "c0:linear|8", weft_plan_search(g, settings, &o, &plan, NULL));
    weft_plan_destroy(settings);
    settings = search_settings(8);
    ASSERT_OK(weft_plan_mode(settings, WEFT_PARALLEL_MANUAL));
    ASSERT_FAILS(WEFT_E_ARG, "manual|semi", weft_plan_search(g, settings, &o, &plan, NULL));
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* The same bytes in every run. */
static void test_same_bytes(void **state) {
    (void)state;
    TEST_SEEDS(seed, 50, 20) {
        char *texts[2];
        for (int run = 0; run < 2; run++) {
            dice d = {seed, 0};
            weft_search_options o = random_options(&d);
            weft_plan *settings = search_settings(8);
            weft_graph *g = random_model(&d, 8);
            o.search = roll(&d, 2) ? WEFT_SEARCH_DYNAMIC : WEFT_SEARCH_RECURSIVE;
            weft_plan *plan = search_plan(g, settings, &o, NULL);
            ASSERT_OK(weft_plan_print(plan, &texts[run]));
            weft_plan_destroy(plan);
            weft_plan_destroy(settings);
            weft_graph_destroy(g);
        }
        assert_string_equal(texts[0], texts[1]);
        weft_text_free(texts[0]);
        weft_text_free(texts[1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_13a_example),
        cmocka_unit_test(test_13b_13c_equals_all),
        cmocka_unit_test(test_13d_chain),
        cmocka_unit_test(test_15a_fully_use_devices),
        cmocka_unit_test(test_15b_approximation),
        cmocka_unit_test(test_15c_alignment),
        cmocka_unit_test(test_15_elementwise_follows),
        cmocka_unit_test(test_settings_are_kept),
        cmocka_unit_test(test_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
