/* Costs: seconds of kernels and transfers as computed by hand. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "cost/cost.h"
#include "ops/common.h"

static void near_to(double got, double wanted) {
    if (!(fabs(got - wanted) <= 1e-9 * fabs(wanted))) fail_msg("%.17g, not %.17g", got, wanted);
}

/* ---- kernels ---- */

static const wefti_device_model device = {.memory_bytes_per_second = {100, "t"},
                                          .memory_efficiency = {0.5, "t"},
                                          .vector_flops = {10, "t"},
                                          .launch_seconds = {3, "t"},
                                          .product_efficiency = {0.5, "t"},
                                          .units = {4, "t"},
                                          .tile_rows = {8, "t"},
                                          .tile_columns = {8, "t"},
                                          .peak_flops[WEFTI_ARITHMETIC_BF16] = {2000, "t"}};

static void kernels_take_the_longer_of_both(void **state) {
    (void)state;
    near_to(wefti_vector_seconds(&device, 100, 50), 3 + 10);
    near_to(wefti_vector_seconds(&device, 100, 1000), 3 + 20);
    near_to(wefti_product_seconds(&device, WEFTI_ARITHMETIC_BF16, NULL, 5000, 0), 3 + 5);
    near_to(wefti_product_seconds(&device, WEFTI_ARITHMETIC_BF16, NULL, 5000, 500), 3 + 10);
    /* f32 is absent: bf16 stands in. */
    near_to(wefti_product_seconds(&device, WEFTI_ARITHMETIC_F32, NULL, 5000, 0), 3 + 5);
}

static void waves_of_tiles_count(void **state) {
    (void)state;
    /* 4 tiles fill the 4 units. */
    near_to(wefti_tile_use(&device, &(wefti_product_shape){1, 16, 16, 9}), 1);
    near_to(wefti_tile_use(&device, &(wefti_product_shape){4, 8, 8, 9}), 1);
    /* 5 tiles take two waves: 5 of 8. 10 tiles of 8 x 4 take three: 10 / 12 x 0.92. 20 tiles of
     * 4 x 4 fill five waves, at 0.85 of the rate: the best. */
    near_to(wefti_tile_use(&device, &(wefti_product_shape){5, 8, 8, 9}), 0.85);
    /* Many waves: the last one hardly counts. */
    assert_true(wefti_tile_use(&device, &(wefti_product_shape){401, 8, 8, 9}) > 0.99);
    /* One element. */
    assert_true(wefti_tile_use(&device, &(wefti_product_shape){1, 1, 1, 9}) < 0.1);
    near_to(wefti_product_seconds(&device, WEFTI_ARITHMETIC_BF16,
                                  &(wefti_product_shape){1, 16, 16, 9}, 5000, 0),
            3 + 5);
}

static void depth_and_alignment_count(void **state) {
    (void)state;
    wefti_device_model d = device;
    const wefti_arithmetic bf16 = WEFTI_ARITHMETIC_BF16;
    const wefti_product_shape whole = {1, 16, 16, 64}, odd = {1, 16, 16, 60},
                              narrow = {1, 16, 12, 64};
    /* Without the figures. */
    near_to(wefti_shape_use(&d, bf16, &odd), 1);
    /* A depth of 64 beside a start of 16. */
    d.tile_depth = (wefti_figure){16, "t"};
    near_to(wefti_shape_use(&d, bf16, &whole), 0.8);
    near_to(wefti_product_seconds(&d, bf16, &whole, 4000, 0), 3 + 5);
    d.tile_depth = (wefti_figure){0, NULL};
    /* Rows of 32 bytes: 64 and 16 elements of bf16 are whole, 60 and 12 are not. */
    d.aligned_bytes = (wefti_figure){32, "t"};
    near_to(wefti_shape_use(&d, bf16, &whole), 1);
    const double of_eight = wefti_shape_use(&d, bf16, &odd);
    assert_true(of_eight < 1 && of_eight > 0.5);
    near_to(wefti_shape_use(&d, bf16, &narrow), of_eight);
    /* In f32 the same sizes are twice the bytes. */
    assert_true(wefti_shape_use(&d, WEFTI_ARITHMETIC_F32, &odd) > of_eight);
    /* One element: the slowest. */
    const wefti_product_shape one = {1, 16, 1, 64};
    assert_true(wefti_shape_use(&d, bf16, &one) < of_eight);
}

static void curves_replace_the_peak(void **state) {
    (void)state;
    static const double work[] = {100, 10000}, rate[] = {10, 1000};
    wefti_device_model d = device;
    d.product[WEFTI_ARITHMETIC_BF16] = (wefti_curve){"t", work, rate, 2};
    near_to(wefti_product_seconds(&d, WEFTI_ARITHMETIC_BF16, NULL, 1000, 0), 3 + 10);
    d.memory = (wefti_curve){"t", work, rate, 2};
    near_to(wefti_vector_seconds(&d, 0, 1000), 3 + 10);
}

/* A factor changes a kernel's time, but not its launch. */
static void ops_are_corrected(void **state) {
    (void)state;
    static const double one[] = {1}, twice[] = {2}, half[] = {0.5};
    wefti_op_curve factors[] = {{"relu", {"t", one, twice, 1}}, {"copy", {"t", one, half, 1}}};
    wefti_machine_model m = {.device = device};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", (weft_desc){WEFT_F32, 1, {100}});
    weft_relu(g, weft_neg(g, x));
    ASSERT_OK(weft_graph_status(g));
    wefti_cost cost[2];
    double before[2], after[2];
    for (int i = 0; i < 2; i++) {
        wefti_node_cost(&g->root->nodes[i], &cost[i]);
        before[i] = wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, &g->root->nodes[i], &cost[i]);
    }
    const double copy = wefti_copy_seconds(&m, 1000);
    m.device.op_factors = factors;
    m.device.op_factor_count = 2;
    for (int i = 0; i < 2; i++)
        after[i] = wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, &g->root->nodes[i], &cost[i]);
    near_to(after[0], before[0]);
    near_to(after[1], 3 + 2 * (before[1] - 3));
    near_to(wefti_copy_seconds(&m, 1000), 3 + (copy - 3) / 2);
    weft_graph_destroy(g);
}

/* 100 elements of f32 are read and written: 800 bytes. The host moves 10 of them a second, and is
 * no faster than the device if it moves 1e6. */
static void the_host_has_a_rate_of_its_own(void **state) {
    (void)state;
    wefti_machine_model m = {.device = device};
    weft_graph *g;
    wefti_cost cost;
    ASSERT_OK(weft_graph_create(&g));
    weft_neg(g, weft_input(g, "x", (weft_desc){WEFT_F32, 1, {100}}));
    ASSERT_OK(weft_graph_status(g));
    const weft_node *n = &g->root->nodes[0];
    wefti_node_cost(n, &cost);
    const double device_seconds = wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, n, &cost);
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_HOST, n, &cost), device_seconds);
    m.device.host_memory_bytes_per_second = (wefti_figure){10, "t"};
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_HOST, n, &cost), 80);
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, n, &cost), device_seconds);
    m.device.host_memory_bytes_per_second.value = 1e6;
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_HOST, n, &cost), device_seconds);
    weft_graph_destroy(g);
}

static const weft_node *last_node(const weft_graph *g) {
    return &g->root->nodes[g->root->node_count - 1];
}

/* x [16, 9] in bf16 is multiplied by w [9, 16] in f32. Each cast computes 144 elements at 10 a
 * second. It reads 288 or 576 bytes and writes 144, at 50 bytes a second, which takes no longer.
 * The product reads 288 bytes, writes 512, and takes 4608 operations. */
static void casts_come_before_products_in_8_bits(void **state) {
    (void)state;
    wefti_machine_model m = {.device = device, .level_count = 1, .host_level = 0};
    weft_graph *g;
    wefti_cost cost;
    m.device.units = (wefti_figure){0};
    ASSERT_OK(weft_graph_create(&g));
    const weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_BF16, 16, 9));
    const weft_value w = weft_param(g, "w", WEFT_DESC(WEFT_F32, 9, 16), (weft_init){0});
    const double casts = 2 * (3 + 144 / 10.0);
    for (int f8 = 0; f8 < 2; f8++) {
        (void)wefti_op_linear(g, x, w, WEFT_NO_VALUE, false, f8);
        ASSERT_OK(weft_graph_status(g));
        const weft_node *n = last_node(g);
        wefti_node_cost(n, &cost);
        near_to(cost.flops, 4608);
        assert_int_equal(wefti_node_arithmetic(n),
                         f8 ? WEFTI_ARITHMETIC_F8 : WEFTI_ARITHMETIC_BF16);
        /* At the rate of bf16, which stands in for f8, memory is slower than arithmetic. */
        near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, n, &cost),
                f8 ? casts + 3 + (288 + 512) / 50.0 : 3 + (288 + 576 + 512) / 50.0);
    }
    const weft_node *n = last_node(g);
    m.device.peak_flops[WEFTI_ARITHMETIC_BF16].value = 200;
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, n, &cost), casts + 3 + 4608 / 100.0);
    m.device.peak_flops[WEFTI_ARITHMETIC_F8] = (wefti_figure){400, "t"};
    near_to(wefti_node_model_seconds(&m, WEFTI_SPACE_DEVICE, n, &cost), casts + 3 + 4608 / 200.0);
    weft_graph_destroy(g);
}

static void products_have_sizes(void **state) {
    (void)state;
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", (weft_desc){WEFT_BF16, 2, {6, 10}});
    weft_value a = weft_input(g, "a", (weft_desc){WEFT_F32, 3, {5, 6, 10}});
    weft_value b = weft_input(g, "b", (weft_desc){WEFT_F32, 3, {5, 10, 7}});
    weft_value w = weft_param(g, "w", (weft_desc){WEFT_F32, 2, {10, 12}}, (weft_init){0});
    weft_linear(g, x, w, WEFT_NO_VALUE, false);
    weft_matmul(g, a, b, false, false);
    weft_relu(g, a);
    ASSERT_OK(weft_graph_status(g));
    assert_int_equal(g->root->node_count, 3);
    wefti_product_shape shape;
    const weft_node *n = g->root->nodes;
    assert_true(wefti_node_product(&n[0], &shape));
    near_to(shape.batch, 1);
    near_to(shape.rows, 6);
    near_to(shape.columns, 12);
    near_to(shape.depth, 10);
    assert_int_equal(wefti_node_arithmetic(&n[0]), WEFTI_ARITHMETIC_BF16);
    assert_true(wefti_node_product(&n[1], &shape));
    near_to(shape.batch, 5);
    near_to(shape.rows, 6);
    near_to(shape.columns, 7);
    near_to(shape.depth, 10);
    assert_int_equal(wefti_node_arithmetic(&n[1]), WEFTI_ARITHMETIC_F32);
    assert_false(wefti_node_product(&n[2], &shape));
    weft_graph_destroy(g);
}

/* ---- transfers ---- */

static wefti_machine_model *machine(void) {
    wefti_machine_model *m;
    ASSERT_OK(wefti_model_find("hosts=4 gpus=4 gpu=v100 intra=1e9,1e-6 inter=1e8,1e-5", &m));
    return m;
}

static const wefti_active all = {0, 16};

static void rings_and_trees(void **state) {
    (void)state;
    wefti_machine_model *m = machine();
    const int32_t host[] = {4, 1}, hosts[] = {1, 4}, both[] = {4, 4};
    const double big = 1e9, small = 8;
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, big, host, all),
            2e-6 + 0.75 * big / 1e9);
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_REDUCE_SCATTER, big, hosts, all),
            2e-5 + 0.75 * big / 1e8);
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_REDUCE, big, host, all),
            2 * (2e-6 + 0.75 * big / 1e9));
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_REDUCE, small, host, all),
            2 * (2e-6 + 0.75 * small / 1e9));
    /* Two levels: between hosts each device moves its quarter. */
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, big, both, all),
            2e-5 + big / 16 * 3 / 1e8 + 2e-6 + big / 4 * 3 / 1e9);
    /* One that the switches reduce. */
    m->level[0].reduces = true;
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_REDUCE, big, host, all),
            2e-6 + big / 1e9);
    m->level[0].reduces = false;
    /* All to all: 12 of 16 parts leave the host. */
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_TO_ALL, big, both, all),
            4e-5 + big * 12 / 16 / 1e8);
    wefti_model_destroy(m);
}

static void uplinks_are_shared_by_equal_groups(void **state) {
    (void)state;
    wefti_machine_model *m = machine();
    const int32_t hosts[] = {1, 4};
    m->level[1].uplink_bytes_per_second = (wefti_figure){2e8, "t"};
    /* Four groups of one device of each host share 2e8 bytes/s. */
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, 1e9, hosts, all),
            2e-5 + 0.75e9 / 0.5e8);
    /* If only two devices of each host take part, they have 1e8 each. */
    near_to(
        wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, 1e9, hosts, (wefti_active){0, 2}),
        2e-5 + 0.75e9 / 1e8);
    wefti_model_destroy(m);
}

static void measured_curves_bound_collectives(void **state) {
    (void)state;
    wefti_machine_model *m;
    ASSERT_OK(wefti_model_find("a100-80g", &m));
    const int32_t host[] = {8, 1};
    const double gib = 1073741824.;
    near_to(wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_REDUCE, gib, host, all),
            1.75 * gib / 229.3e9);
    /* Small ones: the latency of a tree, not less than the curve's first point gives. */
    double tiny = wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_REDUCE, 8, host, all);
    assert_true(tiny > 1e-5 && tiny < 3e-5);
    wefti_model_destroy(m);
}

/* A transfer of regions costs what its group's shape says. */
static void transfers_find_their_levels(void **state) {
    (void)state;
    wefti_machine_model *m = machine();
    int32_t ranks[] = {0, 1, 4, 5};
    wefti_region have[4], want[4];
    memset(have, 0, sizeof have);
    memset(want, 0, sizeof want);
    for (int i = 0; i < 4; i++) {
        have[i].begin[0] = 1000 * i;
        have[i].size[0] = 1000;
        want[i].size[0] = 4000;
    }
    wefti_transfer t = {.kind = WEFTI_TRANSFER_ALL_GATHER,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = 4,
                        .ranks = ranks,
                        .have = have,
                        .want = want};
    const int32_t shape[] = {2, 2};
    assert_int_equal(wefti_transfer_level(m, &t), 1);
    near_to(wefti_transfer_seconds(m, &t, all),
            wefti_collective_seconds(m, WEFTI_TRANSFER_ALL_GATHER, 16000, shape, all));
    t.members = 2;
    assert_int_equal(wefti_transfer_level(m, &t), 0);
    t.members = 4;
    /* Pair by pair: each member receives 4000 bytes of its neighbour, and 8000 from the other host.
     */
    t.kind = WEFTI_TRANSFER_PERMUTE;
    near_to(wefti_transfer_seconds(m, &t, all), 1e-5 + 4000 / 1e9 + 8000 / 1e8);
    t.members = 1;
    assert_true(wefti_transfer_seconds(m, &t, all) == 0);
    wefti_model_destroy(m);
}

/* More bytes never take less time; more bandwidth never takes more. */
static void costs_are_monotonous(void **state) {
    (void)state;
    static const wefti_transfer_kind kinds[] = {
        WEFTI_TRANSFER_ALL_REDUCE, WEFTI_TRANSFER_ALL_GATHER, WEFTI_TRANSFER_REDUCE_SCATTER,
        WEFTI_TRANSFER_ALL_TO_ALL, WEFTI_TRANSFER_BROADCAST};
    for (const wefti_model_file *f = wefti_model_files; f->name; f++) {
        wefti_machine_model *m;
        ASSERT_OK(wefti_model_find(f->name, &m));
        const wefti_active many = {0, 64};
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (int32_t inner = 1; inner <= 4; inner *= 2)
                for (int32_t outer = 1; outer <= 4; outer *= 2) {
                    int32_t per[WEFTI_LEVELS_MAX] = {inner};
                    double before = 0;
                    for (int32_t l = 1; l < m->level_count; l++) per[l] = 1;
                    per[m->level_count - 1] = outer;
                    for (double bytes = 64; bytes < 1e11; bytes *= 1.7) {
                        double now = wefti_collective_seconds(m, kinds[k], bytes, per, many);
                        if (!(now >= before * (1 - 1e-12)))
                            fail_msg("%s, %s of %g bytes, %d x %d: %g s after %g s", f->name,
                                     wefti_transfer_kind_text(kinds[k]), bytes, inner, outer, now,
                                     before);
                        before = now;
                    }
                }
        wefti_model_destroy(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_take_the_longer_of_both),
        cmocka_unit_test(waves_of_tiles_count),
        cmocka_unit_test(depth_and_alignment_count),
        cmocka_unit_test(curves_replace_the_peak),
        cmocka_unit_test(ops_are_corrected),
        cmocka_unit_test(the_host_has_a_rate_of_its_own),
        cmocka_unit_test(casts_come_before_products_in_8_bits),
        cmocka_unit_test(products_have_sizes),
        cmocka_unit_test(rings_and_trees),
        cmocka_unit_test(uplinks_are_shared_by_equal_groups),
        cmocka_unit_test(measured_curves_bound_collectives),
        cmocka_unit_test(transfers_find_their_levels),
        cmocka_unit_test(costs_are_monotonous),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
