/* Fusion: a fused body computes what the body did, to the bit in double, with fewer nodes. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/build_random.h"
#include "graph/grad/grad.h"
#include "builder/build.h"
#include "rewrite/rewrite.h"

enum { MOST = 200 };

static const wefti_random stream = {.seed = 4, .step = 2, .call_stream = 5};

static weft_graph *new_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

/* Elementwise ops over values [2, 3, 4], [3, 1] and [4]: chains with branches and broadcasts. Now
 * and then an op cannot be fused. */
static void elementwise_cell(weft_graph *g, dice *d, int steps) {
    static const int64_t shapes[3][3] = {{2, 3, 4}, {3, 1, 0}, {4, 0, 0}};
    weft_value pool[64], results[8];
    int count = 0, results_count = 1 + (int)roll(d, 6);
    for (; count < 3; count++) {
        char name[8];
        (void)snprintf(name, sizeof name, "x%d", count);
        pool[count] = weft_input(g, name, weft_desc_of(WEFT_F32, 3 - count, shapes[count]));
    }
    weft_cell_begin(g, "cell");
    for (int i = 0; i < steps; i++) {
        weft_value a = pool[roll(d, count)], b = pool[roll(d, count)], y;
        switch (roll(d, 11)) {
        case 0:
            y = weft_add(g, a, b);
            break;
        case 1:
            y = weft_mul(g, a, b);
            break;
        case 2:
            y = weft_sub(g, a, b);
            break;
        case 3:
            y = weft_maximum(g, a, b);
            break;
        case 4:
            y = weft_tanh(g, a);
            break;
        case 5:
            y = weft_gelu(g, a);
            break;
        case 6:
            y = weft_scale(g, a, 0.75);
            break;
        case 7:
            y = weft_where(g, weft_compare(g, a, b, WEFT_LT), a, b);
            break;
        case 8:
            y = weft_softmax(g, a, -1);
            break;
        case 9:
            y = weft_mean(g, a, 1, (int[]){-1}, true);
            break;
        default:
            y = weft_clip(g, a, -1, 1);
            break;
        }
        pool[count++] = y;
    }
    for (int i = 0; i < results_count; i++) results[i] = pool[count - 1 - roll(d, steps)];
    weft_cell_end_many(g, results_count, results);
}

static int64_t fused_nodes(const weft_body *b) {
    int64_t count = 0;
    for (int64_t k = 0; k < b->node_count; k++) count += b->nodes[k].op == &wefti_op_fused;
    return count;
}

/* Both bodies on the same random operands; `tolerance` relative to the largest value. */
static void compare(const weft_body *a, const weft_body *b, uint64_t seed, double tolerance) {
    double *in[MOST], *x[MOST], *y[MOST];
    assert_int_equal(a->in_count, b->in_count);
    assert_int_equal(a->out_count, b->out_count);
    assert_true(a->in_count < MOST && a->out_count < MOST);
    for (int64_t i = 0; i < a->in_count; i++) {
        const weft_desc *desc = &a->values[a->in[i]].desc;
        int64_t elems = weft_desc_elems(desc);
        in[i] = malloc((size_t)(elems + 1) * sizeof **in);
        for (int64_t e = 0; e < elems; e++)
            in[i][e] = desc->dtype == WEFT_I32
                           ? (double)(wefti_philox_u32(seed, (uint64_t)i, (uint64_t)e) % 5)
                           : (double)wefti_philox_normal(seed, (uint64_t)i, (uint64_t)e);
    }
    for (int64_t o = 0; o < a->out_count; o++) {
        int64_t elems = weft_desc_elems(&a->values[a->out[o]].desc);
        assert_true(wefti_desc_equal(&a->values[a->out[o]].desc, &b->values[b->out[o]].desc));
        x[o] = calloc((size_t)elems + 1, sizeof **x);
        y[o] = calloc((size_t)elems + 1, sizeof **y);
    }
    const double *const *operands = (const double *const *)in;
    if (wefti_interpret(a, &stream, operands, x) < 0) fail_msg("%s", weft_error_message());
    if (wefti_interpret(b, &stream, operands, y) < 0) fail_msg("%s", weft_error_message());
    for (int64_t o = 0; o < a->out_count; o++) {
        int64_t elems = weft_desc_elems(&a->values[a->out[o]].desc);
        double largest = 0;
        for (int64_t e = 0; e < elems; e++) largest = fmax(largest, fabs(x[o][e]));
        for (int64_t e = 0; e < elems; e++)
            if (!(fabs(x[o][e] - y[o][e]) <= tolerance * largest))
                fail_msg("seed %d: result %d, element %d is %.17g, fused %.17g", (int)seed, (int)o,
                         (int)e, x[o][e], y[o][e]);
        free(x[o]);
        free(y[o]);
    }
    for (int64_t i = 0; i < a->in_count; i++) free(in[i]);
}

static void random_chains(void **state) {
    (void)state;
    int64_t fused = 0, before = 0, after = 0;
    TEST_SEEDS(seed, 0, 300) {
        dice d = {seed, 0};
        weft_graph *g = new_graph();
        weft_body *body;
        elementwise_cell(g, &d, 2 + (int)(seed % 40));
        if (weft_graph_status(g) < 0) fail_msg("seed %d: %s", (int)seed, weft_graph_message(g));
        if (wefti_fuse(g, NULL, g->cells[0], &body) < 0 || wefti_body_check(body) < 0)
            fail_msg("seed %d: %s", (int)seed, weft_error_message());
        compare(g->cells[0], body, seed, 0);
        fused += fused_nodes(body);
        before += g->cells[0]->node_count;
        after += body->node_count;
        wefti_body_destroy(body);
        weft_graph_destroy(g);
    }
    assert_true(test_one_seed() || (fused > 300 && after < before * 3 / 4));
}

/* Backward bodies of random cells, where fusion meets gradients that are summed. */
static void random_backward_bodies(void **state) {
    (void)state;
    TEST_SEEDS(seed, 0, 60) {
        dice d = {seed, 0};
        weft_graph *g = new_graph();
        weft_value x = weft_input(g, "x", matrix(3, 4)), results[2];
        random_cell(g, &d, "cell", x, 3 + (int)(seed % 9), results);
        if (weft_graph_status(g) < 0) fail_msg("seed %d: %s", (int)seed, weft_graph_message(g));
        bool wanted[64], given[2] = {true, true};
        for (int i = 0; i < 64; i++) wanted[i] = true;
        wefti_cell_grad grad;
        weft_body *forward, *backward;
        assert_int_equal(wefti_differentiate(g, g->cells[0], wanted, given, 0, &grad), WEFT_OK);
        assert_int_equal(wefti_fuse(g, NULL, grad.forward, &forward), WEFT_OK);
        assert_int_equal(wefti_fuse(g, NULL, grad.backward, &backward), WEFT_OK);
        assert_int_equal(wefti_body_check(forward), WEFT_OK);
        assert_int_equal(wefti_body_check(backward), WEFT_OK);
        compare(grad.forward, forward, seed, 0);
        compare(grad.backward, backward, seed, 0);
        wefti_body_destroy(forward);
        wefti_body_destroy(backward);
        wefti_cell_grad_free(&grad);
        weft_graph_destroy(g);
    }
}

/* linear -> cross_entropy with their gradients becomes one node, also for each of two heads. A head
 * with logits that another node reads stays as it is. */
static void loss_heads(void **state) {
    (void)state;
    for (int variant = 0; variant < 14; variant++) {
        weft_graph *g = new_graph();
        bool transposed = variant & 1, smooth = variant & 2, read = variant == 4 || variant == 5;
        bool twice = variant >= 12, biased = variant >= 6 && !twice;
        bool frozen = variant >= 10; /* no gradient of the bias */
        weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 3, (int64_t[]){2, 3, 6}));
        weft_value target = weft_input(g, "t", weft_desc_of(WEFT_I32, 2, (int64_t[]){2, 3}));
        weft_value w = weft_param(g, "w", transposed ? matrix(5, 6) : matrix(6, 5), normal_init());
        weft_value bias = biased ? weft_param(g, "b", vector(5), normal_init()) : WEFT_NO_VALUE;
        weft_cell_begin(g, "head");
        weft_value y = weft_linear(g, weft_tanh(g, x), w, bias, transposed);
        weft_value results[2] = {weft_cross_entropy(g, y, target, 2, smooth ? 0.1 : 0), y};
        if (twice) {
            y = weft_linear(g, x, weft_param(g, "v", matrix(6, 7), normal_init()), WEFT_NO_VALUE,
                            false);
            results[0] = weft_add(g, results[0], weft_cross_entropy(g, y, target, 2, 0));
        }
        weft_cell_end_many(g, read ? 2 : 1, results);
        assert_int_equal(weft_graph_status(g), WEFT_OK);
        bool wanted[5] = {false}, given[2] = {true, false};
        const weft_body *cell = g->cells[0];
        for (int64_t i = 0; i < cell->in_count; i++)
            wanted[i] = cell->values[cell->in[i]].desc.dtype == WEFT_F32 &&
                        !(frozen && cell->values[cell->in[i]].desc.rank == 1);
        wefti_cell_grad grad;
        weft_body *passes, *fused;
        assert_int_equal(wefti_differentiate(g, g->cells[0], wanted, given, 0, &grad), WEFT_OK);
        assert_int_equal(wefti_fuse_passes(g, &grad, given, &passes), WEFT_OK);
        assert_int_equal(wefti_body_check(passes), WEFT_OK);
        if (wefti_fuse(g, NULL, passes, &fused) < 0) fail_msg("%s", weft_error_message());
        assert_int_equal(wefti_body_check(fused), WEFT_OK);
        int heads = 0;
        for (int64_t k = 0; k < fused->node_count; k++)
            heads += !strcmp(fused->nodes[k].op->name, "linear_cross_entropy");
        assert_int_equal(heads, read ? 0 : twice ? 2 : 1);
        TEST_SEEDS(seed, 0, 5) compare(passes, fused, seed, 1e-12);
        wefti_body_destroy(fused);
        wefti_body_destroy(passes);
        wefti_cell_grad_free(&grad);
        weft_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_chains),
        cmocka_unit_test(random_backward_bodies),
        cmocka_unit_test(loss_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
