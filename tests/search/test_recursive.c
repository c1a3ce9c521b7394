/* The double recursive search: MindSpore's example, devices that are no power of two, the
 * documented rounds against every cut of every product, and data parallelism as the least that it
 * gives.
 */
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

/* accept 16(a) */
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

/* accept 12(b): a capacity that nothing fits: an error with the number of bytes that are missing.
 */
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

/* ---- the documented rounds ---- */

enum { LAYERS_MOST = 8 };

/* A chain of products x[rows, n0] W[n0, n1] W[n1, n2] ..., with relu between some of them. */
typedef struct chain {
    int64_t rows, width[LAYERS_MOST + 1];
    int layers;
    bool relu[LAYERS_MOST];
} chain;

static chain random_chain(dice *d) {
    static const int64_t sizes[] = {1, 6, 8, 12, 15, 16, 30, 36, 48, 64, 96, 128};
    chain c = {.rows = sizes[roll(d, 12)], .layers = 1 + (int)roll(d, LAYERS_MOST)};
    for (int i = 0; i <= c.layers; i++) c.width[i] = sizes[1 + roll(d, 11)];
    for (int i = 0; i < c.layers; i++) c.relu[i] = roll(d, 2);
    return c;
}

static weft_graph *graph_of_chain(const chain *c) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, c->rows, c->width[0]));
    for (int i = 0; i < c->layers; i++) {
        weft_cell_begin(g, "l%d", i);
        weft_value w =
            weft_param(g, "w", search_desc(WEFT_F32, c->width[i], c->width[i + 1]), search_normal);
        x = weft_linear(g, x, w, WEFT_NO_VALUE, false);
        x = weft_cell_end(g, c->relu[i] ? weft_relu(g, x) : x);
    }
    weft_output(g, "y", x);
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* Products that are equal are one cell, so they are decided once: number of the first equal one. */
static int first_equal(const chain *c, int i) {
    int k = 0;
    while (c->width[k] != c->width[i] || c->width[k + 1] != c->width[i + 1] ||
           c->relu[k] != c->relu[i])
        k++;
    return k;
}

enum { CUT_I, CUT_J, CUT_K, CUT_NONE };

/* The rounds as section 16 of the requirements states them, on sizes I, J, K of each product. */
static void play_rounds(const chain *c, int32_t devices, int64_t parts[LAYERS_MOST][3]) {
    double size[LAYERS_MOST][3], whole[LAYERS_MOST][3];
    for (int i = 0; i < c->layers; i++) {
        size[i][CUT_I] = (double)c->rows;
        size[i][CUT_J] = (double)c->width[i + 1];
        size[i][CUT_K] = (double)c->width[i];
        for (int k = 0; k < 3; k++) parts[i][k] = 1;
        memcpy(whole[i], size[i], sizeof whole[i]);
    }
    for (int32_t p = devices; devices > 1; devices /= p) {
        int cut[LAYERS_MOST], done[LAYERS_MOST] = {0};
        p = devices;
        for (int32_t q = 2; q <= p; q++) /* the largest prime factor */
            while (p > q && p % q == 0) p /= q;
        const double share = (double)(p - 1) / p;
        for (int n = 0; n < c->layers; n++) {
            int i = -1;
            double heaviest = -1, costs[LAYERS_MOST][3];
            for (int k = 0; k < c->layers; k++) {
                const double *s = size[k];
                costs[k][CUT_I] = s[CUT_J] * s[CUT_K] * share * 0.25;
                costs[k][CUT_J] = s[CUT_I] * s[CUT_K] * share;
                costs[k][CUT_K] = s[CUT_I] * s[CUT_J] * share;
                double weight = 0; /* a dimension of size 1 is none */
                for (int x = 0; x < 3; x++)
                    if (whole[k][x] > 1) weight = fmax(weight, costs[k][x]);
                if (done[k] || weight <= heaviest) continue;
                heaviest = weight;
                i = k;
            }
            double least = INFINITY;
            cut[i] = CUT_NONE;
            for (int k = CUT_I; k <= CUT_K; k++) {
                double cost = costs[i][k];
                if (size[i][k] < p || fmod(size[i][k], p) != 0) continue;
                /* I is rows of operand and result; K is columns of the operand, J of the result */
                if (i > 0 && done[i - 1]) {
                    const int before = cut[i - 1] == CUT_I   ? 0
                                       : cut[i - 1] == CUT_J ? 1
                                                             : -1,
                              own = k == CUT_I   ? 0
                                    : k == CUT_K ? 1
                                                 : -1;
                    if (own != before) cost += 16.0 * (double)(c->rows * c->width[i]);
                }
                if (i + 1 < c->layers && done[i + 1]) {
                    const int after = cut[i + 1] == CUT_I   ? 0
                                      : cut[i + 1] == CUT_K ? 1
                                                            : -1,
                              own = k == CUT_I   ? 0
                                    : k == CUT_J ? 1
                                                 : -1;
                    if (own != after) cost += 16.0 * (double)(c->rows * c->width[i + 1]);
                }
                if (cost >= least) continue;
                least = cost;
                cut[i] = k;
            }
            done[i] = 1;
        }
        for (int i = 0; i < c->layers; i++)
            if (cut[i] != CUT_NONE) {
                size[i][cut[i]] /= p;
                parts[i][cut[i]] *= p;
            }
    }
}

/* Random chains of products that all differ, on any number of devices. */
static void test_16_rounds(void **state) {
    (void)state;
    int compared = 0, cut_in_k = 0;
    TEST_SEEDS(seed, 1, 400) {
        dice d = {seed, 0};
        const chain c = random_chain(&d);
        const int32_t devices = (int32_t[]){2, 3, 4, 6, 8, 12, 16, 30}[roll(&d, 8)];
        int64_t parts[LAYERS_MOST][3];
        bool differ = true;
        for (int i = 0; i < c.layers; i++) differ &= first_equal(&c, i) == i;
        weft_graph *g = graph_of_chain(&c);
        weft_plan *settings = search_settings(devices);
        weft_search_options o = weft_search_defaults();
        o.search = WEFT_SEARCH_RECURSIVE;
        search_space s;
        search_space_open(&s, g, settings, &o);
        ASSERT_OK(wefti_find_recursive(&s.find));
        play_rounds(&c, devices, parts);
        for (int i = 0; i < c.layers && differ; i++) {
            char label[16];
            (void)snprintf(label, sizeof label, "l%d", i);
            const int32_t node = search_node(&s, label, "linear");
            const wefti_choice_node *n = &s.graph->nodes[node];
            int64_t is[3] = {1, 1, 1};
            for (int f = 0; f < n->rule.factors; f++) {
                const char name = n->rule.factor[f].name[0];
                is[name == 'm'   ? CUT_I
                   : name == 'n' ? CUT_J
                                 : CUT_K] *=
                    wefti_choice_parts(&s.graph->mesh, &s.find.assigned[node], f);
            }
            for (int k = 0; k < 3; k++)
                if (is[k] != parts[i][k]) {
                    for (int x = 0; x < c.layers; x++)
                        print_message("l%d: I %d, J %d, K %d%s\n", x, (int)c.rows,
                                      (int)c.width[x + 1], (int)c.width[x],
                                      c.relu[x] ? ", relu" : "");
                    fail_msg("%d devices, l%d: (I, J, K) in (%lld, %lld, %lld) parts, not (%lld, "
                             "%lld, %lld)",
                             devices, i, (long long)is[0], (long long)is[1], (long long)is[2],
                             (long long)parts[i][0], (long long)parts[i][1],
                             (long long)parts[i][2]);
                }
            compared++;
            cut_in_k += parts[i][CUT_K] > 1;
        }
        search_space_close(&s);
        weft_plan_destroy(search_plan(g, settings, &o, NULL));
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed() && (compared < 400 || cut_in_k < 40))
        fail_msg("%d products compared, %d of them cut along K", compared, cut_in_k);
}

/* Random models of other ops too: the verifier takes the plans. */
static void test_16_random_models(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 200) {
        dice d = {seed, 0};
        weft_search_options o = search_random_options(&d);
        weft_plan *settings = search_settings((int[]){2, 3, 4, 5, 6, 7, 8}[roll(&d, 7)]);
        weft_graph *g = search_random_model(&d, 1 + (int)roll(&d, 7));
        o.search = WEFT_SEARCH_RECURSIVE;
        weft_plan_destroy(search_plan(g, settings, &o, NULL));
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
}

/* accept 16(b): twenty steps under the plan are those of one device. */
static void test_16b_values(void **state) {
    (void)state;
    TEST_SEEDS(seed, 500, 8) {
        weft_graph *g[2];
        weft_search_options o = weft_search_defaults();
        weft_plan *settings = search_settings((int[]){2, 3, 4, 6, 8}[seed % 5]);
        for (int k = 0; k < 2; k++) {
            dice d = {seed, 0};
            g[k] = search_random_model(&d, 6);
        }
        o.search = WEFT_SEARCH_RECURSIVE;
        weft_plan *plan = search_plan(g[0], settings, &o, NULL);
        search_equals_one_device(g[0], g[1], plan, 1e-2);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g[0]);
        weft_graph_destroy(g[1]);
    }
}

/* accept 16(c): 5,000 ops that all differ on 1,024 devices. The work grows with the ops, not
 * faster: each round compares at most all cuts of each op once. (bench/planner has the time.) */
static void test_16c_many_ops(void **state) {
    (void)state;
    int64_t searched[2];
    for (int k = 0; k < 2; k++) {
        const int layers = k ? 2500 : 250; /* a product and a relu each */
        weft_graph *g;
        ASSERT_OK(weft_graph_create(&g));
        weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 4096, 1024));
        for (int i = 0; i < layers; i++) {
            weft_cell_begin(g, "l%d", i);
            weft_value w = weft_param(g, "w", search_desc(WEFT_F32, i ? 1023 + i : 1024, 1024 + i),
                                      search_normal);
            x = weft_cell_end(g, weft_relu(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
        }
        weft_output(g, "y", x);
        ASSERT_OK(weft_graph_status(g));
        weft_plan *settings = search_settings(1024);
        weft_search_options o = weft_search_defaults();
        o.search = WEFT_SEARCH_RECURSIVE;
        search_space s;
        o.cost.capacity = 1e15;
        search_space_open(&s, g, settings, &o);
        assert_int_equal(s.graph->node_count, 2 * layers + 1);
        ASSERT_OK(wefti_find_recursive(&s.find));
        searched[k] = s.find.searched;
        search_space_close(&s);
        weft_plan *plan = search_plan(g, settings, &o, NULL);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    assert_true(searched[0] > 0);
    assert_true(searched[1] <= 11 * searched[0]);
}

/* ---- against data parallelism ---- */

/* accept 16(d): in the simulator no plan is slower than data parallelism. */
static void test_16d_data_parallelism(void **state) {
    (void)state;
    static const char *const machines[] = {
        "hosts=1 gpus=8 gpu=a100-80g intra=300e9,3e-6 inter=25e9,8e-6",
        "hosts=1 gpus=8 gpu=v100 intra=1e9,1e-5 inter=1e9,1e-5",
        "hosts=8 gpus=1 gpu=v100 intra=1e9,1e-5 inter=1e10,1e-6"};
    int other = 0, taken = 0;
    TEST_SEEDS(seed, 1, 60) {
        dice d = {seed, 0};
        const char *machine = machines[roll(&d, 3)];
        chain c = {.rows = 64 << roll(&d, 6), .layers = 2 + (int)roll(&d, 4)};
        for (int i = 0; i <= c.layers; i++) c.width[i] = 64 << roll(&d, 6);
        for (int i = 0; i < c.layers; i++) c.relu[i] = i % 2;
        weft_graph *g = graph_of_chain(&c);
        weft_plan *settings = search_settings(8), *data;
        weft_search_options o = weft_search_defaults();
        o.search = WEFT_SEARCH_RECURSIVE;
        ASSERT_OK(wefti_plan_machine(settings, machine));
        char *notes;
        weft_plan *plan = search_plan(g, settings, &o, &notes);
        ASSERT_OK(wefti_plan_copy(settings, &data));
        ASSERT_OK(weft_plan_mode(data, WEFT_PARALLEL_DATA));
        const double own = search_predicted(g, plan, machine),
                     batches = search_predicted(g, data, machine);
        if (own > batches * (1 + 1e-9))
            fail_msg("%g s on %s, %g s of data parallelism", own, machine, batches);
        other += own < batches * 0.99;
        taken += *notes != 0;
        weft_text_free(notes);
        weft_plan_destroy(data);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed() && (other < 5 || taken < 5))
        fail_msg("%d plans are faster, %d are data parallel", other, taken);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_16a_example),      cmocka_unit_test(test_any_number_of_devices),
        cmocka_unit_test(test_12_capacity),      cmocka_unit_test(test_16_rounds),
        cmocka_unit_test(test_16_random_models), cmocka_unit_test(test_16b_values),
        cmocka_unit_test(test_16c_many_ops),     cmocka_unit_test(test_16d_data_parallelism),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
