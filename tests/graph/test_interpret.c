/* The oracle: bodies, calls and fused nodes evaluated in double. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "graph/build_random.h"
#include "graph/text/text.h"
#include "weft/ops.h"

static const wefti_random stream = {.seed = 2, .step = 1, .call_stream = 9};

static weft_graph *parse(const char *text) {
    weft_graph *g = NULL;
    if (weft_graph_parse(text, &g) < 0) fail_msg("%s", weft_error_message());
    return g;
}

static void run(const weft_graph *g, const double *const *in, double *const *out) {
    if (wefti_interpret(g->root, &stream, in, out) < 0) fail_msg("%s", weft_error_message());
}

/* Worked by hand. */
static void values_are_right(void **state) {
    (void)state;
    weft_graph *g = parse("weft-graph 1\n"
                          "graph {\n"
                          "  %0 = input x: f32[2,2]\n"
                          "  %1 = param w: f32[2,2] zeros\n"
                          "  %2: f32[2,2] = matmul(%0, %1) transpose_a=0 transpose_b=1\n"
                          "  %3: f32[2,2] = sub(%2, %0)\n"
                          "  output product = %2\n"
                          "  output x = %0\n"
                          "  output difference = %3\n"
                          "}\n");
    const double x[] = {1, 2, 3, 4}, w[] = {5, 6, 7, 8}, *in[] = {x, w};
    double product[4], same[4], difference[4], *out[] = {product, same, difference};
    run(g, in, out);
    const double want[] = {17, 23, 39, 53}, less[] = {16, 21, 36, 49};
    assert_memory_equal(product, want, sizeof want);
    assert_memory_equal(same, x, sizeof x);
    assert_memory_equal(difference, less, sizeof less);
    weft_graph_destroy(g);
}

static void fused_nodes_equal_their_chain(void **state) {
    (void)state;
    weft_graph *g = parse("weft-graph 1\n"
                          "fused f(%0 input: f32[2,3], %1 input: f32[3]) {\n"
                          "  %2: f32[3] = exp(%1)\n"
                          "  %3: f32[2,3] = add(%0, %2)\n"
                          "  %4: f32[2,3] = tanh(%3)\n"
                          "  return %4, %3\n"
                          "}\n"
                          "graph {\n"
                          "  %0 = input x: f32[2,3]\n"
                          "  %1 = input b: f32[3]\n"
                          "  %2: f32[2,3], %3: f32[2,3] = fused f(%0, %1)\n"
                          "  %4: f32[3] = exp(%1)\n"
                          "  %5: f32[2,3] = add(%0, %4)\n"
                          "  %6: f32[2,3] = tanh(%5)\n"
                          "  output fused = %2\n"
                          "  output chain = %6\n"
                          "}\n");
    const double x[] = {-1, 0, 1, 2, 3, 4}, b[] = {0.5, -0.5, 0}, *in[] = {x, b};
    double fused[6], chain[6], *out[] = {fused, chain};
    run(g, in, out);
    assert_memory_equal(fused, chain, sizeof chain);
    wefti_cost cost;
    wefti_node_cost(&g->root->nodes[0], &cost);
    assert_true(cost.bytes == 4.0 * (6 + 3 + 6 + 6)); /* operands and results, nothing between */
    weft_graph_destroy(g);
}

/* The same dropout in two calls of one cell gives two masks, and each the same mask again. */
static void calls_have_their_own_random_numbers(void **state) {
    (void)state;
    enum { ELEMS = 256 };
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_value x = weft_input(g, "x", vector(ELEMS));
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "c.%d", i);
        weft_output(g, i ? "b" : "a", weft_cell_end(g, weft_dropout(g, x, 0.5)));
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 1);
    double ones[ELEMS], a[ELEMS], b[ELEMS], again[ELEMS];
    for (int e = 0; e < ELEMS; e++) ones[e] = 1;
    const double *in[] = {ones};
    double *out[] = {a, b};
    run(g, in, out);
    assert_memory_not_equal(a, b, sizeof a);
    double *second[] = {again, b};
    run(g, in, second);
    assert_memory_equal(a, again, sizeof a);
    weft_graph_destroy(g);
}

/* Wrapping and pruning change no result. Dropout is left out: its numbers follow the path of its
 * cell. */
static void passes_change_no_result(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 40) {
        weft_graph *g;
        dice d = {.seed = seed};
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        weft_value x = weft_input(g, "x", matrix(3, 4)), y = x;
        for (int i = 0; i < 12; i++) {
            bool inside = roll(&d, 3) == 0;
            if (inside) weft_cell_begin(g, "c.%d", i);
            weft_value z =
                roll(&d, 2) ? weft_tanh(g, weft_add(g, x, y)) : weft_mul(g, y, weft_sigmoid(g, x));
            (void)weft_exp(g, z);
            if (inside) z = weft_cell_end(g, z);
            if (roll(&d, 2)) x = y;
            y = z;
        }
        weft_output(g, "y", y);
        double values[12], before[12], after[12], *out[] = {before};
        const double *in[] = {values};
        for (int e = 0; e < 12; e++) values[e] = (double)wefti_philox_normal(seed, 1, (uint64_t)e);
        run(g, in, out);
        assert_int_equal(wefti_body_prune(g->root), WEFT_OK);
        if (seed % 2) assert_int_equal(wefti_body_prune(g->root), WEFT_OK);
        assert_int_equal(wefti_graph_wrap(g), WEFT_OK);
        if (wefti_graph_check(g) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        out[0] = after;
        run(g, in, out);
        assert_memory_equal(before, after, sizeof before);
        weft_graph_destroy(g);
    }
}

static void allocations_may_fail(void **state) {
    (void)state;
    weft_graph *g = parse("weft-graph 1\n"
                          "cell c(%0 input: f32[2]) {\n  %1: f32[2] = exp(%0)\n  return %1\n}\n"
                          "graph {\n"
                          "  %0 = input x: f32[2]\n"
                          "  %1: f32[2] = call c(%0) @c\n"
                          "  %2: f32[2] = tanh(%1)\n"
                          "  output y = %2\n"
                          "}\n");
    const double x[] = {0, 1}, *in[] = {x};
    double y[2], *out[] = {y};
    int64_t failed = 0;
    weft_status st = WEFT_E_NOMEM;
    for (; st < 0; failed++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failed, false, 0);
        st = wefti_interpret(g->root, &stream, in, out);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (st < 0) assert_int_equal(st, WEFT_E_NOMEM);
    }
    assert_true(failed > 10);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_right),
        cmocka_unit_test(fused_nodes_equal_their_chain),
        cmocka_unit_test(calls_have_their_own_random_numbers),
        cmocka_unit_test(passes_change_no_result),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
