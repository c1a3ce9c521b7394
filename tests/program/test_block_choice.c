/* Slices, concatenations, pads and chunks exchange data along a split dimension, and the choice of
 * their splits counts these exchanges. The choice is never slower than a choice that ignores
 * exchanges, and differs from it where another split is cheaper. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/choice.h"

enum { CASES = 1000, RANK = 2 };

/* Two matrices, one split by rows and one by columns, concatenated along the rows. If both are
 * split by columns, one is moved and nothing is exchanged. If both are split by rows, the other is
 * moved and both are exchanged. */
static void the_cheaper_one(void **state) {
    (void)state;
    op_graph g = new_graph();
    weft_value x[2] = {weft_input(g.graph, "x", matrix(8, 8)),
                       weft_input(g.graph, "y", matrix(8, 8))};
    weft_output(g.graph, "z", weft_concat(g.graph, 2, x, 0));
    ASSERT_OK(weft_graph_status(g.graph));
    evaluate(&g);
    weft_plan *plan = plan_of((int[]){4, 0});
    wefti_layout in[2] = {wefti_layout_replicated(2), wefti_layout_replicated(2)};
    in[0].dim[0] = in[1].dim[1] = (wefti_dim_split){.count = 1, .axis = {0}};
    outcome blind = choose(&g, plan, in, NULL, true, "exchanges are free"),
            is = choose(&g, plan, in, NULL, false, "exchanges count");
    assert_true(blind.halos > 0);
    assert_int_equal(is.halos, 0);
    assert_int_equal(is.transfers, 1);
    assert_true(is.bytes < blind.bytes && is.received < blind.received);
    weft_plan_destroy(plan);
    op_graph_close(&g);
}

/* Even: all meshes cut the operands into equal pieces. */
static int64_t random_size(dice *d, bool even) {
    return even ? 24 * (1 + roll(d, 2)) : 4 + roll(d, 13);
}

static weft_value random_op(dice *d, weft_graph *g, bool even, int *operands, char *what,
                            size_t bytes) {
    int64_t shape[RANK], before[RANK] = {0}, after[RANK] = {0};
    int axis = (int)roll(d, RANK), kind = (int)roll(d, 4);
    for (int i = 0; i < RANK; i++) shape[i] = random_size(d, even);
    if (kind == 2) shape[axis] += shape[axis] % 2;
    weft_value x[3] = {weft_input(g, "x", weft_desc_of(WEFT_F32, RANK, shape))};
    *operands = 1;
    (void)snprintf(what, bytes, "op %d along %d of [%d, %d]", kind, axis, (int)shape[0],
                   (int)shape[1]);
    switch (kind) {
    case 0: {
        int64_t begin = roll(d, shape[axis]), end = begin + 1 + roll(d, shape[axis] - begin);
        return weft_slice(g, x[0], axis, begin, end);
    }
    case 1:
        *operands = 2 + (int)roll(d, 2);
        for (int i = 1; i < *operands; i++) {
            char name[8];
            (void)snprintf(name, sizeof name, "x%d", i);
            shape[axis] = random_size(d, even);
            x[i] = weft_input(g, name, weft_desc_of(WEFT_F32, RANK, shape));
        }
        return weft_concat(g, *operands, x, axis);
    case 2: {
        weft_value parts[2];
        weft_split(g, x[0], axis, 2, parts);
        weft_output(g, "second", parts[1]);
        return parts[0];
    }
    default:
        before[axis] = roll(d, 9);
        after[axis] = before[axis] ? roll(d, 5) : 1 + roll(d, 5);
        return weft_pad(g, x[0], before, after, 0.5);
    }
}

static void never_slower(void **state) {
    (void)state;
    static const int meshes[][2] = {{2, 0}, {3, 0}, {4, 0}, {2, 2}, {8, 0}, {2, 3}};
    int64_t free_bytes = 0, bytes = 0;
    int changed = 0;
    TEST_SEEDS(seed, 0, CASES) {
        dice d = {seed, 0};
        op_graph g = new_graph();
        char text[64], what[160];
        int operands;
        weft_output(g.graph, "y", random_op(&d, g.graph, seed % 2, &operands, text, sizeof text));
        ASSERT_OK(weft_graph_status(g.graph));
        evaluate(&g);
        weft_plan *plan = plan_of(meshes[roll(&d, 6)]);
        wefti_layout in[3];
        for (int i = 0; i < operands; i++)
            in[i] = random_layout(&d, plan, &g.graph->root->values[g.graph->root->in[i]].desc);
        (void)snprintf(what, sizeof what, "seed %d: %s", (int)seed, text);
        outcome blind = choose(&g, plan, in, NULL, true, what),
                is = choose(&g, plan, in, NULL, false, what);
        if (seed % 2 && is.received > blind.received) /* uneven pieces are only estimated */
            fail_msg("%s: %g bytes, %g where exchanges are free", what, is.received,
                     blind.received);
        changed += is.received < blind.received;
        bytes += is.bytes;
        free_bytes += blind.bytes;
        weft_plan_destroy(plan);
        op_graph_close(&g);
    }
    print_message("%d of %d choices are faster: %lld bytes, %lld before\n", changed, CASES,
                  (long long)bytes, (long long)free_bytes);
    assert_true(test_one_seed() || (changed > CASES / 100 && bytes < free_bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheaper_one),
        cmocka_unit_test(never_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
