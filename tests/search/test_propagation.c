/* Sharding propagation: MindSpore's examples, settings that stay, the error without any, and the
 * documented rule on random models, against trying every strategy of every neighbor.
 * weft-test: no threads */
#include "search_models.h"

#include "weft/model.h"

/* A feed-forward network [256,784] -> 64 -> 10: product, sum with a bias, relu, product. */
static weft_graph *network(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 256, 784));
    weft_cell_begin(g, "one");
    weft_value w = weft_param(g, "w", search_desc(WEFT_F32, 784, 64), search_normal);
    x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
    weft_cell_begin(g, "act");
    weft_value b = weft_param(g, "b", search_desc(WEFT_F32, 64, 0), search_normal);
    x = weft_cell_end(g, weft_relu(g, weft_add(g, x, b)));
    weft_cell_begin(g, "two");
    w = weft_param(g, "w", search_desc(WEFT_F32, 64, 16), search_normal);
    x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    return g;
}

/* accept 14(a): the first example. */
static void test_14a_example(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    char text[256];
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_plan_split_op(settings, "one:matmul", "((2,1),(1,4))"));
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    assert_string_equal(search_parts(plan, g, "one:matmul", text), "((2,1),(1,4))");
    assert_string_equal(search_parts(plan, g, "act:add", text), "((2,4),(4))");
    assert_string_equal(search_parts(plan, g, "act:relu", text), "((2,4))");
    assert_string_equal(search_parts(plan, g, "two:matmul", text), "((2,4),(4,1))");
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* accept 14(a): the second example. 64 wide, with a second bias: the partial sums of the second
 * product are added over ranks 0 to 3, and each of them keeps its (32, 16). */
static void test_14a_second_example(void **state) {
    (void)state;
    char text[256];
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 64, 64));
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "mm%d", i);
        weft_value w = weft_param(g, "w", search_desc(WEFT_F32, 64, 64), search_normal);
        x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
        weft_cell_begin(g, "add%d", i);
        weft_value b = weft_param(g, "b", search_desc(WEFT_F32, 64, 0), search_normal);
        x = weft_add(g, x, b);
        x = weft_cell_end(g, i ? x : weft_relu(g, x));
    }
    weft_output(g, "y", x);
    ASSERT_OK(weft_graph_status(g));
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_plan_split_op(settings, "mm0:matmul", "((2,1),(1,4))"));
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    assert_string_equal(search_parts(plan, g, "add0:add", text), "((2,4),(4))");
    assert_string_equal(search_parts(plan, g, "add0:relu", text), "((2,4))");
    assert_string_equal(search_parts(plan, g, "mm1:matmul", text), "((2,4),(4,1))");
    assert_string_equal(search_parts(plan, g, "add1:add", text), "((2,4),(4))");
    const search_log log = search_log_of(g, plan, 0, WEFTI_FORWARD);
    assert_int_equal(log.sums, 1);
    assert_int_equal(log.first_members, 4);
    assert_int_equal(log.first_rank, 0);
    assert_int_equal(log.sum_bytes, 2 * 32 * 64 * 4 * 3 / 4); /* an all-reduce of (32, 64) */
    assert_int_equal(log.moves, 0);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* accept 14(b) */
static void test_14b_nothing_configured(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8), *plan = NULL;
    weft_search_options o = weft_search_defaults();
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_FAILS(WEFT_E_ARG, "parallel.strategies", weft_plan_search(g, settings, &o, &plan, NULL));
    assert_null(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* accept 14(c): both products are configured, and not in the same way: both stay. */
static void test_14c_settings_stay(void **state) {
    (void)state;
    weft_graph *g = network();
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    char text[256], *notes;
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_plan_split_op(settings, "one:matmul", "((2,1),(1,4))"));
    ASSERT_OK(weft_plan_split_op(settings, "two:matmul", "((8,1),(1,1))"));
    weft_plan *plan = search_plan(g, settings, &o, &notes);
    assert_string_equal(search_parts(plan, g, "one:matmul", text), "((2,1),(1,4))");
    assert_string_equal(search_parts(plan, g, "two:matmul", text), "((8,1),(1,1))");
    assert_true(*notes); /* names the edge that needs a redistribution */
    weft_text_free(notes);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* MindSpore's semi-automatic mode on 8 devices, with one strategy: an op without one is split by
 * its batch over all devices. */
static weft_plan *semi_automatic(weft_graph *g, const weft_plan *settings, const char *match,
                                 const char *split_of_it) {
    weft_plan *plan = search_settings(8);
    ASSERT_OK(weft_plan_axis(plan, "a", 2));
    ASSERT_OK(weft_plan_axis(plan, "b", 2));
    ASSERT_OK(weft_plan_axis(plan, "c", 2));
    ASSERT_OK(weft_plan_split_op(plan, match, split_of_it));
    for (int64_t k = 0; k < g->root->node_count; k++) {
        const weft_node *call = &g->root->nodes[k];
        for (int64_t i = 0; call->callee && i < call->callee->node_count; i++) {
            const weft_node *n = &call->callee->nodes[i];
            char label[512], name[600];
            wefti_split_rule rule;
            wefti_node_label(call->callee, call->scope, n, label, sizeof label);
            if (wefti_plan_strategy(settings, label, n->op->name, false)) continue;
            wefti_rule_begin(&rule);
            ASSERT_OK(n->op->split(n, &rule));
            const int f = wefti_in(n, 0)->rank ? rule.in[0][0] : -1;
            if (f < 0 || rule.factor[f].kind != WEFTI_FACTOR_FREE ||
                rule.factor[f].size % plan->devices != 0)
                continue;
            snprintf(name, sizeof name, "%s:%s", label, n->op->name);
            ASSERT_OK(weft_plan_split_op(plan, name, "in0.0=a+b+c"));
        }
    }
    return plan;
}

static int64_t redistributed(weft_graph *g, const weft_plan *plan) {
    int64_t bytes = 0;
    for (int32_t r = 0; r < plan->devices; r++)
        bytes += search_log_of(g, plan, r, WEFTI_FORWARD).move_bytes;
    return bytes;
}

/* accept 14(c): settings stay, and the plan redistributes no more bytes than semi-automatic mode
 * with the same settings. */
static void test_14c_bytes(void **state) {
    (void)state;
    static const char *const settings_of[][2] = {
        {"one:matmul", "((2,1),(1,4))"}, {"one:matmul", "((1,1),(1,8))"},
        {"one:matmul", "((1,2),(2,4))"}, {"two:matmul", "((2,4),(4,1))"},
        {"two:matmul", "((4,1),(1,2))"}, {"act:add", "((1,8),(8))"}};
    int less = 0;
    for (size_t k = 0; k < sizeof settings_of / sizeof *settings_of; k++) {
        weft_graph *g = network();
        weft_plan *settings = search_settings(8);
        weft_search_options o = weft_search_defaults();
        o.search = WEFT_SEARCH_PROPAGATION;
        ASSERT_OK(weft_plan_split_op(settings, settings_of[k][0], settings_of[k][1]));
        weft_plan *plan = search_plan(g, settings, &o, NULL);
        weft_plan *semi = semi_automatic(g, settings, settings_of[k][0], settings_of[k][1]);
        const int64_t bytes = redistributed(g, plan), other = redistributed(g, semi);
        if (bytes > other)
            fail_msg("%s %s: %lld bytes are redistributed, %lld in mode semi", settings_of[k][0],
                     settings_of[k][1], (long long)bytes, (long long)other);
        less += bytes < other;
        weft_plan_destroy(semi);
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    assert_true(less >= 3);
}

/* ---- which ops to configure ---- */

/* A pre-norm transformer of two layers as the propagation test configures it, on a mesh dp, tp. */
static weft_graph *transformer(void) {
    const weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                                 .layers = 2,
                                 .hidden = 32,
                                 .heads = 4,
                                 .ffn = 64,
                                 .context = 8,
                                 .vocab = 48};
    weft_graph *g;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, 8, 0, WEFT_F32, &g));
    ASSERT_OK(wefti_graph_wrap(g));
    return g;
}

typedef struct configured {
    const char *match, *split;
} configured;

/* Ops that hold weights, and the fused op that has none: attention. Residuals stay split over all
 * devices; each tensor-parallel part gathers its rows and scatters its sums. */
static const configured key_ops[] = {
    {"embed.wte:embedding", "((1,1),(4,1))"},
    {"h.*.attn.c_attn:linear", "((2,1,1),(1,1,2),(1,2))"},
    {"h.*.attn:attention", "batch=dp heads=tp"},
    {"h.*.attn.c_proj:linear", "((2,1,2),(2,1),(1))"},
    {"h.*.mlp.c_fc:linear", "((2,1,1),(1,2),(2))"},
    {"h.*.mlp.c_proj:linear", "((2,1,2),(2,1),(1))"},
    {"head.wte:linear", "((4,1,1),(1,1))"},
};
/* All other ops, for the net that is annotated by hand. */
static const configured other_ops[] = {
    {"embed.wpe:add", "d0=dp+tp"},
    {"h.*.ln_?:layer_norm", "m0=dp+tp"},
    {"h.*.attn:chunk", "d0=dp d3=tp"},
    {"h.*.attn:reshape", "d0=dp d2=tp"},
    {"h.*:add", "d0=dp+tp"},
    {"h.*.mlp:gelu", "d0=dp d2=tp"},
    {"head.ln_f:layer_norm", "m0=dp+tp"},
    {"head:cross_entropy", "m0=dp+tp"},
};

static weft_plan *configured_plan(bool all) {
    weft_plan *plan = search_settings(4);
    ASSERT_OK(weft_plan_axis(plan, "dp", 2));
    ASSERT_OK(weft_plan_axis(plan, "tp", 2));
    for (size_t i = 0; i < sizeof key_ops / sizeof *key_ops; i++)
        ASSERT_OK(weft_plan_split_op(plan, key_ops[i].match, key_ops[i].split));
    for (size_t i = 0; all && i < sizeof other_ops / sizeof *other_ops; i++)
        ASSERT_OK(weft_plan_split_op(plan, other_ops[i].match, other_ops[i].split));
    if (all) ASSERT_OK(weft_plan_split_tensor(plan, "tokens", "[dp+tp, -]"));
    if (all) ASSERT_OK(weft_plan_split_tensor(plan, "targets", "[dp+tp, -]"));
    return plan;
}

/* accept 19(a): with the key ops alone, propagation gives the programs of the net that is annotated
 * op by op, and redistributes nothing that the net does not. */
static void test_19a_key_ops(void **state) {
    (void)state;
    weft_graph *g = transformer();
    weft_plan *settings = configured_plan(false), *hand = configured_plan(true);
    weft_search_options o = weft_search_defaults();
    o.search = WEFT_SEARCH_PROPAGATION;
    weft_plan *plan = search_plan(g, settings, &o, NULL);
    for (int32_t r = 0; r < 4; r++)
        for (int pass = WEFTI_FORWARD; pass <= WEFTI_BACKWARD; pass++) {
            const search_log is = search_log_of(g, plan, r, (wefti_phase)pass),
                             want = search_log_of(g, hand, r, (wefti_phase)pass);
            assert_int_equal(is.moves, want.moves);
            assert_int_equal(is.move_bytes, want.move_bytes);
            assert_int_equal(is.sums, want.sums);
            assert_int_equal(is.sum_bytes, want.sum_bytes);
            assert_int_equal(is.form, want.form);
            /* the gathers before attention and feed-forward, in two layers; nothing else */
            if (pass == WEFTI_FORWARD) assert_int_equal(is.moves, 4);
        }
    weft_plan_destroy(plan);
    weft_plan_destroy(hand);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* accept 19(b): two layers split by the batch, two by the model. The first product and those at the
 * boundary are configured. There is one redistribution, at the boundary. */
static void test_19b_boundary(void **state) {
    (void)state;
    char text[256];
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", search_desc(WEFT_F32, 64, 64));
    for (int i = 0; i < 4; i++) {
        weft_cell_begin(g, "l%d", i);
        weft_value w = weft_param(g, "w", search_desc(WEFT_F32, 64, 64), search_normal);
        x = weft_linear(g, x, w, WEFT_NO_VALUE, false);
        x = weft_cell_end(g, i < 3 ? weft_relu(g, x) : x);
    }
    weft_output(g, "y", x);
    ASSERT_OK(weft_graph_status(g));
    weft_plan *settings = search_settings(8);
    weft_search_options o = weft_search_defaults();
    o.search = WEFT_SEARCH_PROPAGATION;
    ASSERT_OK(weft_plan_split_op(settings, "l0:linear", "((8,1),(1,1))"));
    ASSERT_OK(weft_plan_split_op(settings, "l1:linear", "((8,1),(1,1))"));
    ASSERT_OK(weft_plan_split_op(settings, "l2:linear", "((1,1),(1,8))"));
    char *notes;
    weft_plan *plan = search_plan(g, settings, &o, &notes);
    assert_string_equal(search_parts(plan, g, "l0:relu", text), "((8,1))");
    assert_string_equal(search_parts(plan, g, "l1:relu", text), "((8,1))");
    assert_string_equal(search_parts(plan, g, "l2:relu", text), "((1,8))");
    assert_string_equal(search_parts(plan, g, "l3:linear", text), "((1,8),(8,1))");
    /* the one note names the edge */
    ASSERT_FACTS(notes, "l1:relu|l2:linear");
    assert_string_equal(strchr(notes, '\n'), "\n");
    for (int32_t r = 0; r < 8; r++) {
        const search_log log = search_log_of(g, plan, r, WEFTI_FORWARD);
        assert_int_equal(log.moves, 1);
        assert_int_equal(log.move_bytes, 64 * 64 * 4 * 7 / 8); /* a gather of the rows */
        assert_int_equal(log.sums, 1);                         /* of the last product */
    }
    weft_text_free(notes);
    weft_plan_destroy(plan);
    weft_plan_destroy(settings);
    weft_graph_destroy(g);
}

/* ---- random models ---- */

/* Configures a random op of the model with a random one of its strategies. */
static void configure(dice *d, weft_graph *g, weft_plan *settings, const weft_search_options *o) {
    search_space s;
    char name[600], split[256] = "(";
    search_space_open(&s, g, settings, o);
    int32_t i = (int32_t)roll(d, s.graph->node_count);
    while (!s.graph->nodes[i].op || s.graph->nodes[i].op->inputs < 1 ||
           s.graph->nodes[i].configured)
        i = (i + 1) % s.graph->node_count;
    const wefti_choice_node *n = &s.graph->nodes[i];
    const wefti_assignment *a = &n->strategies[roll(d, n->count)];
    for (int k = 0; k < n->op->inputs && wefti_in(n->op, k); k++) {
        size_t at = strlen(split);
        at += (size_t)snprintf(split + at, sizeof split - at, k ? ",(" : "(");
        for (int x = 0; x < wefti_in(n->op, k)->rank; x++) {
            const int f = n->rule.in[k][x];
            const int64_t parts = f < 0 ? 1 : wefti_choice_parts(&s.graph->mesh, a, f);
            at += (size_t)snprintf(split + at, sizeof split - at, x ? ",%d" : "%d", (int)parts);
        }
        snprintf(split + at, sizeof split - at, ")");
    }
    strcat(split, ")");
    snprintf(name, sizeof name, "%s:%s", n->label, n->op->op->name);
    ASSERT_OK(weft_plan_split_op(settings, name, split));
    search_space_close(&s);
}

/* How good strategy `t` of the other end of an edge is, in the order of the rule: allowed, free of
 * communication or the cheapest edge, least computation, least own communication. */
typedef struct merit {
    double forbidden, edge, compute, transfer;
} merit;

static merit merit_of(const search_space *s, const wefti_choice_edge *e, bool forward,
                      const wefti_assignment *known, const wefti_assignment *t) {
    const wefti_choice_graph *g = s->graph;
    const wefti_pricing *how = &s->find.pricing;
    const wefti_assignment *from = forward ? known : t, *to = forward ? t : known;
    wefti_layout a, b;
    wefti_choice_cost edge, own;
    wefti_choice_layout_out(g, &g->nodes[e->from], from, e->output, &a);
    wefti_choice_layout_in(g, &g->nodes[e->to], to, e->input, &b);
    how->edge(how->context, g, wefti_choice_desc(g, e), &a, &b, e->gradient, &edge);
    how->op(how->context, g, &g->nodes[forward ? e->to : e->from], t, &own);
    if (g->nodes[e->to].follows && e->input == 0 && g->nodes[e->from].op &&
        !wefti_layout_equal(&a, &b))
        edge.time = INFINITY;
    return (merit){isinf(edge.time) ? 1 : 0, edge.transfer > 0 ? edge.time : 0, own.compute,
                   own.transfer};
}

static bool is_less(const merit *a, const merit *b) {
    if (a->forbidden != b->forbidden) return a->forbidden < b->forbidden;
    if (a->edge != b->edge) return a->edge < b->edge;
    if (a->compute != b->compute) return a->compute < b->compute;
    return a->transfer < b->transfer;
}

typedef struct reference {
    search_space *s;
    int32_t *at; /* strategy of each node; -1: none yet */
    int32_t queue[256];
    int first, last;
    int64_t tried;
} reference;

static void visit(reference *r, const wefti_choice_edge *e, bool forward) {
    const wefti_choice_graph *g = r->s->graph;
    const int32_t here = forward ? e->from : e->to, there = forward ? e->to : e->from;
    const wefti_choice_node *n = &g->nodes[there];
    merit best = {0};
    if (r->at[there] >= 0) return;
    for (int32_t t = 0; t < n->count; t++) {
        const merit m =
            merit_of(r->s, e, forward, &g->nodes[here].strategies[r->at[here]], &n->strategies[t]);
        r->tried++;
        if (r->at[there] >= 0 && !is_less(&m, &best)) continue;
        best = m;
        r->at[there] = t;
    }
    r->queue[r->last++] = there;
}

static void spread_from(reference *r, int32_t node) {
    r->first = r->last;
    r->queue[r->last++] = node;
    while (r->first < r->last) {
        const int32_t here = r->queue[r->first++];
        for (int side = 0; side < 2; side++)
            for (int32_t k = 0; k < r->s->graph->edge_count; k++) {
                const wefti_choice_edge *e = &r->s->graph->edges[k];
                if ((side ? e->to : e->from) == here) visit(r, e, !side);
            }
    }
}

static void cheapest(reference *r, int32_t node) {
    const wefti_choice_node *n = &r->s->graph->nodes[node];
    double least = INFINITY;
    r->at[node] = 0;
    for (int32_t t = 0; t < n->count; t++) {
        wefti_choice_cost own;
        r->s->find.pricing.op(r->s->find.pricing.context, r->s->graph, n, &n->strategies[t], &own);
        if (own.time >= least) continue;
        least = own.time;
        r->at[node] = t;
    }
}

/* accept 14(c), 14(d): the plan is that of the documented rule, with every strategy of every
 * neighbor tried. Settings stay, and values are those of one device. */
static void test_14d_random_models(void **state) {
    (void)state;
    int64_t tried = 0;
    TEST_SEEDS(seed, 1, 250) {
        dice d = {seed, 0};
        search_space s;
        reference r = {.s = &s};
        weft_search_options o = search_random_options(&d);
        weft_plan *settings = search_settings((int[]){2, 3, 4, 6, 8}[roll(&d, 5)]);
        weft_graph *g = search_random_model(&d, 2 + (int)roll(&d, 6)), *alone;
        o.search = WEFT_SEARCH_PROPAGATION;
        for (int64_t k = roll(&d, 2); k >= 0; k--) configure(&d, g, settings, &o);
        search_space_open(&s, g, settings, &o);
        const int32_t nodes = s.graph->node_count;
        assert_true(nodes < 64);
        r.at = malloc((size_t)nodes * sizeof *r.at);
        for (int32_t i = 0; i < nodes; i++) r.at[i] = -1;
        for (int32_t i = 0; i < nodes; i++)
            if (s.graph->nodes[i].op && s.graph->nodes[i].configured) cheapest(&r, i);
        for (int32_t i = 0; i < nodes; i++)
            if (s.graph->nodes[i].op && s.graph->nodes[i].configured) spread_from(&r, i);
        for (int32_t i = 0; i < nodes; i++)
            if (r.at[i] < 0) {
                cheapest(&r, i);
                spread_from(&r, i);
            }
        ASSERT_OK(wefti_find_propagation(&s.find));
        for (int32_t i = 0; i < nodes; i++)
            if (memcmp(&s.find.assigned[i], &s.graph->nodes[i].strategies[r.at[i]],
                       sizeof(wefti_assignment)) != 0)
                fail_msg("%s has another strategy than number %d", s.graph->nodes[i].label,
                         r.at[i]);
        tried += r.tried;
        free(r.at);
        search_space_close(&s);
        weft_plan *plan = search_plan(g, settings, &o, NULL); /* the verifier compares settings */
        if (seed % 20 == 0) {
            dice again = {seed, 0};
            (void)search_random_options(&again);
            (void)roll(&again, 5);
            alone = search_random_model(&again, 2 + (int)roll(&again, 6));
            search_equals_one_device(g, alone, plan, 1e-2);
            weft_graph_destroy(alone);
        }
        weft_plan_destroy(plan);
        weft_plan_destroy(settings);
        weft_graph_destroy(g);
    }
    if (!test_one_seed()) assert_true(tried > 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_14a_example),
        cmocka_unit_test(test_14a_second_example),
        cmocka_unit_test(test_14b_nothing_configured),
        cmocka_unit_test(test_14c_settings_stay),
        cmocka_unit_test(test_14c_bytes),
        cmocka_unit_test(test_19a_key_ops),
        cmocka_unit_test(test_19b_boundary),
        cmocka_unit_test(test_14d_random_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
