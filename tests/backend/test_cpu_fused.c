/* Fused elementwise chains on the cpu backend, against the reference. Random bodies hold every
 * elementwise op, operands that repeat in every way, masks and dropout. The fusion pass of programs
 * fuses them. */
#include "backend/cpu_ops_driver.h"
#include "base/philox.h"
#include "rewrite/rewrite.h"
#include "weft/ops.h"

enum { GRAPHS = 60, INPUTS = 5, NODES = 14 };

typedef struct dice {
    uint64_t seed, at;
} dice;

static int64_t roll(dice *d, int64_t sides) {
    return (int64_t)(wefti_philox_u32(d->seed, 5, d->at++) % (uint32_t)sides);
}

/* A shape that broadcasts to the given one. */
static weft_desc some_operand(dice *d, const weft_desc *shape, bool whole) {
    weft_desc x = *shape;
    x.dtype = roll(d, 3) ? WEFT_F32 : WEFT_BF16;
    if (whole) return x;
    int drop = (int)roll(d, x.rank + 1);
    x.rank -= drop;
    for (int k = 0; k < x.rank; k++) {
        x.shape[k] = shape->shape[k + drop];
        if (!roll(d, 3)) x.shape[k] = 1;
    }
    return x;
}

/* One more value; results stay around 1, so that bounds mean something. */
static weft_value step(weft_graph *g, dice *d, weft_value a, weft_value b, weft_value x,
                       weft_value y) {
    switch (roll(d, 16)) {
    case 0:
        return weft_add(g, a, b);
    case 1:
        return weft_sub(g, a, b);
    case 2:
        return weft_mul(g, weft_tanh(g, a), b);
    case 3:
        return weft_div(g, a, weft_shift(g, weft_sigmoid(g, b), 1.0));
    case 4:
        return weft_gelu(g, a);
    case 5:
        return weft_silu(g, weft_scale(g, a, 0.5));
    case 6:
        return weft_maximum(g, a, b);
    case 7:
        return weft_minimum(g, a, weft_neg(g, b));
    case 8:
        return weft_clip(g, a, -0.75, 1.25);
    case 9:
        return weft_where(g, weft_compare(g, x, y, (weft_relation)roll(d, 6)), a, b);
    case 10:
        return weft_dropout(g, a, 0.1 * (double)(1 + roll(d, 4)));
    case 11:
        return weft_exp(g, weft_neg(g, weft_relu(g, a)));
    case 12:
        return weft_sqrt(g, weft_shift(g, weft_relu(g, a), 0.5));
    case 13:
        return weft_rsqrt(g, weft_shift(g, weft_relu(g, b), 0.5));
    case 14:
        return weft_gelu_erf(g, a);
    default:
        return weft_log(g, weft_shift(g, weft_relu(g, a), 1.5));
    }
}

static void build(uint64_t seed, weft_graph **out) {
    static const int64_t shapes[][4] = {{3, 1, 5, 7},   {2, 9, 1, 257}, {1, 1, 1, 8193},
                                        {33, 3, 4, 17}, {0, 2, 3, 4},   {5, 2, 3, 1}};
    dice d = {.seed = seed};
    weft_graph *g;
    weft_desc shape = weft_desc_of(WEFT_F32, 4, shapes[roll(&d, 6)]);
    weft_value in[INPUTS], made[NODES];
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    for (int i = 0; i < INPUTS; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "x%d", i);
        in[i] = weft_input(g, name, some_operand(&d, &shape, i == 0));
    }
    for (int k = 0; k < NODES; k++) {
        weft_value a = k ? made[roll(&d, k)] : in[0];
        weft_value b = k && roll(&d, 2) ? made[roll(&d, k)] : in[roll(&d, INPUTS)];
        made[k] = step(g, &d, a, b, in[roll(&d, INPUTS)], in[roll(&d, INPUTS)]);
    }
    for (int o = 0; o < 3; o++) {
        char name[8];
        (void)snprintf(name, sizeof name, "y%d", o);
        weft_output(g, name, made[NODES - 1 - o]);
    }
    if (weft_graph_status(g) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
    *out = g;
}

/* Values for the operands of a node inside a body, and room for its results. */
static void check_node(const weft_node *n, uint64_t seed) {
    op_graph g = {.node = n};
    op_setup s = {.op = n->op, .inputs = n->inputs};
    subject subject;
    for (int i = 0; i < n->inputs; i++) {
        const weft_desc *d = wefti_in(n, i);
        s.in[i].desc = *d;
        g.in[i] = new_values(d);
        for (int64_t e = 0; e < weft_desc_elems(d); e++) { /* away from 0: some are divided by */
            double x = draw(&s.in[i], seed, (uint64_t)i, e, weft_desc_elems(d));
            g.in[i][e] = x < 0.0 ? x - 0.5 : x + 0.5;
        }
    }
    for (int o = 0; o < n->outputs; o++) g.out[o] = new_values(wefti_out(n, o));
    subject_open(&s, &g, &subject);
    if (!check_subject(&subject)) complain(&s, "prepare", "a fused node falls to the reference");
    check_reference(&subject);
    subject_close(&subject);
    op_graph_close(&g);
}

static void random_chains(uint64_t graphs) {
    int fused = 0;
    failures = 0;
    TEST_SEEDS(seed, 1, graphs) {
        weft_graph *g;
        weft_body *body;
        int before = failures;
        build(seed, &g);
        assert_int_equal(wefti_body_prune(g->root), WEFT_OK);
        assert_int_equal(wefti_fuse_elementwise(g, g->root, &body), WEFT_OK);
        for (int64_t k = 0; k < body->node_count; k++) {
            if (!body->nodes[k].callee) continue;
            check_node(&body->nodes[k], seed);
            fused++;
        }
        if (failures > before) print_error("seed %llu\n", (unsigned long long)seed);
        wefti_body_destroy(body);
        weft_graph_destroy(g);
    }
    print_message("%s: %d fused nodes\n", path_text(path), fused);
    assert_true(test_one_seed() || fused >= (int)graphs);
    assert_int_equal(failures, 0);
}
/* The chains have the same seeds on every path. */
static void chains_on_every_path(void **state) {
    (void)state;
    for (int which = 0; which < PATHS; which++)
        if (use_path(which)) random_chains(path_is_emulated(which) ? GRAPHS / 3 : GRAPHS);
    path_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chains_on_every_path)};
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
