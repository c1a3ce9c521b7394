/* The dynamic search: its plan for MindSpore's example, and the least cost of all strategies on
 * random models with diamonds, residuals, shared and reused parameters. Also its rules: use of all
 * devices, ops that follow, approximation, alignment.
 * weft-test: no threads */
#include "search_models.h"

enum { GRAPHS = 300, NODES_MOST = 32, EDGES_MOST = 64, STEPS_MOST = 2000000 };

/* accept 13(a): (x[128,32] y[32,64]) b[64,64] on 16 devices: both products are split by their rows.
 */
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

/* ---- brute force ---- */

/* All prices, one call of the pricing for each: nothing of the search's own tables. */
typedef struct prices {
    const wefti_choice_graph *g;
    wefti_choice_cost *own[NODES_MOST], *edge[EDGES_MOST];
    int32_t at[NODES_MOST];
    double capacity, best, least_memory;
    int64_t steps;
} prices;

static void scale(wefti_choice_cost *c, int64_t weight) {
    c->time *= (double)weight;
    c->memory *= (double)weight;
}

static void list_prices(const search_space *s, prices *p) {
    const wefti_choice_graph *g = p->g = s->graph;
    const wefti_pricing *how = &s->find.pricing;
    assert_true(g->node_count <= NODES_MOST && g->edge_count <= EDGES_MOST);
    for (int32_t i = 0; i < g->node_count; i++) {
        const wefti_choice_node *n = &g->nodes[i];
        p->own[i] = calloc((size_t)n->count, sizeof *p->own[i]);
        for (int32_t k = 0; k < n->count; k++) {
            how->op(how->context, g, n, &n->strategies[k], &p->own[i][k]);
            scale(&p->own[i][k], n->weight);
        }
    }
    for (int32_t e = 0; e < g->edge_count; e++) {
        const wefti_choice_edge *x = &g->edges[e];
        const wefti_choice_node *from = &g->nodes[x->from], *to = &g->nodes[x->to];
        p->edge[e] = calloc((size_t)(from->count * to->count), sizeof *p->edge[e]);
        for (int32_t i = 0; i < from->count; i++)
            for (int32_t j = 0; j < to->count; j++) {
                wefti_choice_cost *out = &p->edge[e][i * to->count + j];
                wefti_layout a, b;
                wefti_choice_layout_out(g, from, &from->strategies[i], x->output, &a);
                wefti_choice_layout_in(g, to, &to->strategies[j], x->input, &b);
                how->edge(how->context, g, wefti_choice_desc(g, x), &a, &b, x->gradient, out);
                scale(out, x->weight);
            }
    }
}

/* Visits all strategies of node i and later ones. No price is negative, so a way that already costs
 * more than the best is left. */
static void try_from(prices *p, int32_t i, double time, double memory) {
    const wefti_choice_graph *g = p->g;
    if (time >= p->best || memory > p->capacity || ++p->steps > STEPS_MOST) return;
    if (i == g->node_count) {
        p->best = time;
        return;
    }
    for (int32_t k = 0; k < g->nodes[i].count; k++) {
        double t = time + p->own[i][k].time, m = memory + p->own[i][k].memory;
        p->at[i] = k;
        for (int32_t e = 0; e < g->edge_count; e++) {
            const wefti_choice_edge *x = &g->edges[e];
            if ((x->from > x->to ? x->from : x->to) != i) continue;
            const wefti_choice_cost *c =
                &p->edge[e][p->at[x->from] * g->nodes[x->to].count + p->at[x->to]];
            t += c->time;
            m += c->memory;
        }
        try_from(p, i + 1, t, m);
    }
}

/* The least cost of all strategies within the capacity. NAN: too many to try. */
static double try_all(prices *p, double capacity) {
    p->capacity = capacity;
    p->best = INFINITY;
    p->steps = 0;
    try_from(p, 0, 0, 0);
    return p->steps > STEPS_MOST ? NAN : p->best;
}

static void free_prices(prices *p) {
    for (int32_t i = 0; i < p->g->node_count; i++) free(p->own[i]);
    for (int32_t e = 0; e < p->g->edge_count; e++) free(p->edge[e]);
}

/* Devices with prime factors of the search, or a mesh of the user. */
static weft_plan *random_settings(dice *d) {
    static const int meshes[][3] = {{2, 2, 1}, {4, 2, 1}, {2, 2, 2}, {2, 3, 1}, {7, 1, 1}};
    const int devices = (int[]){2, 3, 4, 5, 6, 8, 8, 8}[roll(d, 8)];
    if (roll(d, 3)) return search_settings(devices);
    const int *sizes = meshes[roll(d, 5)];
    weft_plan *settings = search_settings(sizes[0] * sizes[1] * sizes[2]);
    for (int a = 0; a < 3; a++)
        if (sizes[a] > 1)
            ASSERT_OK(weft_plan_axis(settings, (char[]){(char)('a' + a), 0}, sizes[a]));
    return settings;
}

/* accept 13(b), 13(c): the cost of the plan is that of trying all, also within a limit of memory,
 * and with both cost models. The verifier takes the plans. */
static void test_13b_13c_equals_all(void **state) {
    (void)state;
    int compared = 0, shared = 0, diamonds = 0, limited = 0;
    TEST_SEEDS(seed, 1, GRAPHS) {
        dice d = {seed, 0};
        search_space s;
        prices p = {0};
        weft_search_options o = search_random_options(&d);
        o.cost_model = roll(&d, 4) ? WEFT_COST_MINDSPORE : WEFT_COST_MACHINE;
        o.rules.fully_use_devices = roll(&d, 3) > 0;
        weft_plan *settings = random_settings(&d);
        weft_graph *g = search_random_model(&d, 1 + (int)roll(&d, 7));
        search_space_open(&s, g, settings, &o);
        list_prices(&s, &p);
        const double best = try_all(&p, INFINITY);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        const wefti_choice_cost found = wefti_find_total(&s.find);
        if (!isnan(best)) {
            compared++;
            if (!(fabs(found.time - best) <= best * 1e-9))
                fail_msg("the search found %.17g, the best is %.17g", found.time, best);
            for (int32_t i = 0; i < s.graph->node_count; i++)
                shared += !s.graph->nodes[i].op &&
                          s.graph->graph->root->values[s.graph->nodes[i].tensor].kind ==
                              WEFTI_VALUE_PARAM;
            diamonds += s.graph->edge_count >= s.graph->node_count;
        }
        /* with less memory than that plan needs */
        s.options.cost.capacity = found.memory * (0.6 + 0.1 * (double)roll(&d, 4));
        const double within = isnan(best) ? NAN : try_all(&p, s.options.cost.capacity);
        if (!isnan(within)) {
            const weft_status status = wefti_find_dynamic(&s.find);
            assert_int_equal(status, isinf(within) ? WEFT_E_NOMEM : WEFT_OK);
            const wefti_choice_cost tight = wefti_find_total(&s.find);
            if (!isinf(within) && !(fabs(tight.time - within) <= within * 1e-9 &&
                                    tight.memory <= s.options.cost.capacity))
                fail_msg("within %.0f bytes: found %.17g of %.0f bytes, the best is %.17g",
                         s.options.cost.capacity, tight.time, tight.memory, within);
            limited += !isinf(within);
        }
        free_prices(&p);
        search_space_close(&s);
        o.search = WEFT_SEARCH_DYNAMIC;
        weft_plan_destroy(search_plan(g, settings, &o, NULL));
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (test_one_seed()) return;
    if (compared < 200 || limited < 50 || shared <= 20 || diamonds <= 20)
        fail_msg("%d compared, %d within a limit, %d shared, %d diamonds", compared, limited,
                 shared, diamonds);
}

/* accept 13(c): twenty steps under the plan are those of one device. */
static void test_13c_values(void **state) {
    (void)state;
    TEST_SEEDS(seed, 300, 12) {
        weft_graph *g[2];
        weft_search_options o = weft_search_defaults();
        weft_plan *settings = search_settings((int[]){2, 4, 8}[seed % 3]);
        for (int k = 0; k < 2; k++) {
            dice d = {seed, 0};
            o = search_random_options(&d);
            g[k] = search_random_model(&d, 5);
        }
        weft_plan *plan = search_plan(g[0], settings, &o, NULL);
        search_equals_one_device(g[0], g[1], plan, 1e-2);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g[0]);
        weft_graph_destroy(g[1]);
    }
}

/* accept 13(d): a chain of 100 ops on 64 devices. The best way along a chain is known by another
 * method. */
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

/* accept 15(a) */
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

/* accept 15(b): 1 / epsilon strategies of each op; the cost is at most 1.1 times the least. */
static void test_15b_approximation(void **state) {
    (void)state;
    int narrowed = 0;
    TEST_SEEDS(seed, 1000, 200) {
        dice d = {seed, 0};
        search_space s;
        weft_search_options o = search_random_options(&d);
        weft_plan *settings = search_settings((int[]){4, 8, 8, 16}[roll(&d, 4)]);
        weft_graph *g = search_random_model(&d, 2 + (int)roll(&d, 7));
        o.rules.fully_use_devices = roll(&d, 2) == 0;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        double exact = wefti_find_total(&s.find).time;
        s.options.rules.enable_algo_approxi = true;
        s.options.rules.epsilon = 0.1;
        ASSERT_OK(wefti_find_dynamic(&s.find));
        double found = wefti_find_total(&s.find).time;
        assert_true(s.find.most >= 1 && s.find.most <= 10);
        if (!(found <= 1.1 * exact)) fail_msg("%.17g with epsilon, %.17g without", found, exact);
        for (int32_t i = 0; i < s.graph->node_count; i++) narrowed += s.graph->nodes[i].count > 10;
        search_space_close(&s);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed()) assert_true(narrowed > 100);
}

/* Too many sums: fewer strategies are compared, and a note says how many. */
static void test_few_sums(void **state) {
    (void)state;
    int narrowed = 0;
    TEST_SEEDS(seed, 5000, 60) {
        dice d = {seed, 0};
        search_space s;
        weft_search_options o = search_random_options(&d);
        weft_plan *settings = search_settings((int[]){4, 8, 16}[roll(&d, 3)]);
        weft_graph *g = search_random_model(&d, 2 + (int)roll(&d, 7));
        o.rules.fully_use_devices = false;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_dynamic(&s.find));
        const double exact = wefti_find_total(&s.find).time;
        const int32_t all = s.find.most;
        assert_null(s.find.notes.data);
        s.find.trials = 200 + (int64_t)roll(&d, 3000);
        const weft_status status = wefti_find_dynamic(&s.find);
        char *notes = wefti_text_take(&s.find.notes);
        if (status < 0) { /* one strategy an op is still too much */
            assert_int_equal(status, WEFT_E_NO_IMPL);
        } else if (s.find.most < all) {
            narrowed++;
            assert_non_null(strstr(notes, "the best"));
            assert_true(wefti_find_total(&s.find).time >= exact);
        } else {
            assert_string_equal(notes, "");
            assert_true(wefti_find_total(&s.find).time == exact);
        }
        wefti_free(notes);
        search_space_close(&s);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed()) assert_true(narrowed > 20);
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

/* accept 15(c): rows of 64 on 8 devices would be 8 rows each, which is no multiple of 16. */
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

/* accept 15: elementwise_op_strategy_follow */
static void test_15_elementwise_follows(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 40) {
        dice d = {seed, 0};
        search_space s;
        weft_search_options o = search_random_options(&d);
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
    ASSERT_OK(weft_plan_split_op(settings, "c0:linear", "((2,2),(2,2))"));
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
    ASSERT_OK(weft_plan_split_op(settings, "c0:linear", "n0=tp"));
    plan = search_plan(g, settings, &o, NULL);
    assert_int_equal(plan->mesh.axes, 2);
    assert_string_equal(plan->mesh.axis[1].name, "tp");
    assert_string_equal(search_parts(plan, g, "c0:linear", text), "((1,1),(1,4))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    /* contradictions */
    settings = search_settings(8);
    ASSERT_OK(weft_plan_split_op(settings, "c0:linear", "((3,1),(1,1))"));
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
            weft_search_options o = search_random_options(&d);
            weft_plan *settings = search_settings(8);
            weft_graph *g = search_random_model(&d, 8);
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
        cmocka_unit_test(test_13c_values),
        cmocka_unit_test(test_13d_chain),
        cmocka_unit_test(test_15a_fully_use_devices),
        cmocka_unit_test(test_15b_approximation),
        cmocka_unit_test(test_few_sums),
        cmocka_unit_test(test_15c_alignment),
        cmocka_unit_test(test_15_elementwise_follows),
        cmocka_unit_test(test_settings_are_kept),
        cmocka_unit_test(test_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
