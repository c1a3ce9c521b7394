/* The ring of causal attention is even, and leaves out the keys that a window hides. The test
 * counts the pairs of a query and a key that each device's nodes compute, in total and between
 * exchanges. If pieces were attended in the order in which they lie, the last of n devices would do
 * 2 - 1 / n times the mean. */
#include "support.h"

#include "program/spmd.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};

enum { ROUNDS = 128 };

/* Pairs for each batch and head, by how many exchanges came before. */
typedef struct work {
    int64_t all, round[ROUNDS];
    double flops;
    int exchanges;
} work;

static int64_t seen_pairs(const weft_node *n) {
    const wefti_ints *whole = wefti_attr_ints(n, WEFTI_AT_whole),
                     *begin = wefti_attr_ints(n, WEFTI_AT_begin);
    int64_t pairs = 0, tq = wefti_in(n, 0)->shape[1], tk = wefti_in(n, 1)->shape[1];
    int64_t q = whole->count ? begin->v[2] : 0, k = whole->count ? begin->v[3] : 0;
    bool causal = wefti_attr_int(n, WEFTI_AT_causal) != 0;
    int64_t window = wefti_attr_int(n, WEFTI_AT_window);
    for (int64_t i = 0; i < tq; i++)
        for (int64_t j = 0; j < tk; j++)
            pairs += (!causal || k + j <= q + i) && (!window || k + j > q + i - window);
    return pairs;
}

static work work_of(const weft_body *b) {
    work w = {0};
    int exchanges = 0;
    for (int64_t i = 0; i < b->node_count; i++) {
        const weft_node *n = &b->nodes[i];
        exchanges += n->op == &wefti_op_transfer;
        if (strncmp(n->op->name, "attention", 9) != 0) continue;
        assert_true(exchanges < ROUNDS);
        wefti_cost cost;
        n->op->cost(n, &cost);
        int64_t pairs = seen_pairs(n);
        w.all += pairs;
        w.round[exchanges] += pairs;
        w.flops += cost.flops;
    }
    w.exchanges = exchanges;
    return w;
}

typedef struct ring {
    const char *op;
    wefti_op_case c;
    int64_t rows;
    double products; /* each of 2 flops a pair, and all numbers of a query */
    int exchanges;   /* of each device, where a window makes them few; 0: not looked at */
} ring;

/* 259 rows are shared unevenly; two query heads share a key head. */
static const ring rings[] = {
    {"attention", {{"f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]"}, "causal=1"}, 64, 2, 0},
    {"attention",
     {{"f32[1,259,2,2]", "f32[1,259,1,2]", "f32[1,259,1,2]"}, "causal=1 dropout=0.2"},
     259,
     2,
     0},
    {"attention_grad",
     {{"f32[1,259,2,2]", "f32[1,259,1,2]", "f32[1,259,1,2]", "f32[1,259,2,2]", "f32[2,1,2,259]+",
       "f32[1,259,2,2]"},
      "causal=1 dropout=0.2"},
     259,
     5,
     0},
    {"attention_grad",
     {{"f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]", "f32[2,1,1,64]+",
       "f32[1,64,1,2]", "f32[1,1,64,64]"},
      "causal=1"},
     64,
     5,
     0},
};

static void is_even(const ring *r, const spmd *s) {
    work w[SPMD_RANKS];
    int64_t all = 0, most = 0, lockstep = 0;
    const weft_desc *q = wefti_in(s->whole->node, 0);
    double flops = 0, each = r->products * 2 * (double)(weft_desc_elems(q) / q->shape[1]);
    for (int32_t k = 0; k < s->ranks; k++) {
        w[k] = work_of(s->rank[k].cut->body);
        all += w[k].all;
        most = w[k].all > most ? w[k].all : most;
        flops += w[k].flops;
        assert_true(w[k].flops == each * (double)w[k].all);
    }
    for (int e = 0; e < ROUNDS; e++) { /* all wait for the one that has most to do */
        int64_t longest = 0;
        for (int32_t k = 0; k < s->ranks; k++)
            longest = w[k].round[e] > longest ? w[k].round[e] : longest;
        lockstep += longest;
    }
    if (r->exchanges) { /* of windows: the first devices have less to do */
        int64_t window = wefti_attr_int(s->whole->node, WEFTI_AT_window);
        assert_int_equal(all, r->rows * window - window * (window - 1) / 2);
        assert_true(flops == each * (double)all);
        for (int32_t k = 0; k < s->ranks; k++) assert_int_equal(w[k].exchanges, r->exchanges);
        return;
    }
    double mean = (double)all / s->ranks;
    print_message("%s, %lld rows, %d devices: most / mean %.3f, by rounds %.3f\n", r->op,
                  (long long)r->rows, s->ranks, (double)most / mean, (double)lockstep / mean);
    assert_int_equal(all, r->rows * (r->rows + 1) / 2); /* each pair once */
    assert_true(flops == each * (double)all);
    assert_true((double)most <= 1.1 * mean);
    assert_true((double)lockstep <= 1.15 * mean); /* runs of few rows differ by one */
}

static void check(const ring *r, int devices) {
    op_setup setup;
    op_graph g;
    spmd s;
    weft_plan *plan;
    wefti_layout in[8];
    wefti_split_rule rule;
    const weft_op_def *op = wefti_op_find(wefti_builtin_ops(), r->op);
    assert_true(setup_case(op, &r->c, &setup));
    assert_int_equal(op_graph_open(&setup, 9, &g), WEFT_OK);
    assert_int_equal(op_graph_run(&g, &stream), WEFT_OK);
    assert_int_equal(weft_plan_create(devices, &plan), WEFT_OK);
    assert_int_equal(weft_plan_axis(plan, "x", devices), WEFT_OK);
    assert_int_equal(weft_plan_split_op(plan, "*", "seq=x"), WEFT_OK);
    assert_true(op_rule(g.node, &rule));
    for (int i = 0; i < g.node->inputs; i++) {
        in[i] = wefti_layout_replicated(wefti_in(g.node, i)->rank);
        for (int d = 0; d < wefti_in(g.node, i)->rank; d++)
            if (rule.in[i][d] == rule.in[0][1]) in[i].dim[d].count = 1;
    }
    if (!spmd_partition(&s, &g, plan, in)) fail_msg("%s: %s", r->op, s.why);
    is_even(r, &s);
    spmd_feed(&s, 1);
    if (!spmd_run(&s, &stream) || !spmd_compare(&s)) fail_msg("%s: %s", r->op, s.why);
    spmd_close(&s);
    weft_plan_destroy(plan);
    op_graph_close(&g);
}

/* Windows no longer than a piece: the keys and values of the piece before, and their gradients
 * back. */
static const ring windows[] = {
    {"attention",
     {{"f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]"}, "causal=1 window=9"},
     64,
     2,
     2},
    {"attention_grad",
     {{"f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]", "f32[1,64,1,2]", "f32[2,1,1,64]+",
       "f32[1,64,1,2]"},
      "causal=1 window=5"},
     64,
     5,
     4},
};

static void check_all(const ring *all, size_t count) {
    static const int devices[] = {2, 3, 4, 5, 8};
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) check(&all[i], devices[d]);
}

static void windows_leave_steps_out(void **state) {
    (void)state;
    check_all(windows, sizeof windows / sizeof *windows);
}

static void causal_work_is_even(void **state) {
    (void)state;
    check_all(rings, sizeof rings / sizeof *rings);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(causal_work_is_even),
                                       cmocka_unit_test(windows_leave_steps_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
