/* Differentiation: against finite differences, the saved set, recomputation, and failure at every
 * allocation. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "graph/build_random.h"
#include "graph/grad/grad.h"
#include "graph/text/text.h"
#include "weft/ops.h"

enum { MAX_VALUES = 96 };

static const wefti_random stream = {.seed = 11, .step = 3, .call_stream = 17};

static weft_graph *new_graph(void) {
    weft_graph *g = NULL;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

/* Arrays of doubles for a list of values of a body. */
typedef struct tensors {
    double *at[MAX_VALUES];
    int64_t elems[MAX_VALUES], count;
} tensors;

static tensors make_tensors(const weft_body *b, const int32_t *values, int64_t count) {
    tensors t = {.count = count};
    assert_true(count <= MAX_VALUES);
    for (int64_t i = 0; i < count; i++) {
        t.elems[i] = weft_desc_elems(&b->values[values[i]].desc);
        t.at[i] = calloc((size_t)t.elems[i] + 1, sizeof(double));
        assert_non_null(t.at[i]);
    }
    return t;
}

static void free_tensors(tensors *t) {
    for (int64_t i = 0; i < t->count; i++) free(t->at[i]);
}

static void fill(tensors *t, uint64_t seed) {
    for (int64_t i = 0; i < t->count; i++)
        for (int64_t e = 0; e < t->elems[i]; e++)
            t->at[i][e] = (double)wefti_philox_normal(seed, (uint64_t)i, (uint64_t)e);
}

static void interpret(const weft_body *b, const tensors *in, tensors *out) {
    weft_status st = wefti_interpret(b, &stream, (const double *const *)in->at, out->at);
    if (st < 0) fail_msg("%s", weft_error_message());
}

/* Gradients of sum(weights * outputs) for all inputs of the backward body, as the program will
 * compute them. */
static tensors run_backward(const wefti_cell_grad *cg, const tensors *in, const tensors *weights) {
    tensors kept = make_tensors(cg->forward, cg->forward->out, cg->forward->out_count);
    interpret(cg->forward, in, &kept);
    tensors args = {.count = cg->backward->in_count};
    for (int64_t k = 0; k < args.count; k++) {
        int32_t index = cg->bindings[k].index;
        switch (cg->bindings[k].source) {
        case WEFTI_GRAD_SAVED:
            args.at[k] = kept.at[cg->cell->out_count + index];
            break;
        case WEFTI_GRAD_INPUT:
            args.at[k] = in->at[index];
            break;
        case WEFTI_GRAD_OUTPUT:
            args.at[k] = kept.at[index];
            break;
        case WEFTI_GRAD_DOUT:
            args.at[k] = weights->at[index];
            break;
        case WEFTI_GRAD_CROSSED: /* only in parts of a split pass */
            break;
        }
    }
    tensors out = make_tensors(cg->backward, cg->backward->out, cg->backward->out_count);
    interpret(cg->backward, &args, &out);
    free_tensors(&kept);
    return out;
}

static double weighted(const weft_body *cell, const tensors *in, tensors *out,
                       const tensors *weights) {
    double sum = 0;
    interpret(cell, in, out);
    for (int64_t o = 0; o < out->count; o++)
        for (int64_t e = 0; e < out->elems[o]; e++) sum += weights->at[o][e] * out->at[o][e];
    return sum;
}

static weft_status differentiate(weft_graph *g, weft_body *cell, int recompute,
                                 wefti_cell_grad *out) {
    bool all[MAX_VALUES];
    for (int i = 0; i < MAX_VALUES; i++) all[i] = true;
    assert_true(cell->in_count <= MAX_VALUES && cell->out_count <= MAX_VALUES);
    return wefti_differentiate(g, cell, all, all, (wefti_recompute_mode)recompute, out);
}

/* Both recompute modes against central differences, for every element of every input. */
static void check_gradients(weft_graph *g, weft_body *cell, uint64_t seed) {
    wefti_cell_grad modes[2];
    tensors in = make_tensors(cell, cell->in, cell->in_count), grads[2];
    tensors out = make_tensors(cell, cell->out, cell->out_count);
    tensors weights = make_tensors(cell, cell->out, cell->out_count);
    fill(&in, seed);
    fill(&weights, seed + 1);
    for (int m = 0; m < 2; m++) {
        if (differentiate(g, cell, m, &modes[m]) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        assert_int_equal(wefti_body_check(modes[m].forward), WEFT_OK);
        if (wefti_body_check(modes[m].backward) < 0) fail_msg("%s", weft_error_message());
        grads[m] = run_backward(&modes[m], &in, &weights);
    }
    assert_int_equal(modes[1].saved, 0);
    for (int64_t i = 0; i < cell->in_count; i++) {
        int32_t at = modes[0].gradient_out[i];
        assert_int_equal(at < 0, modes[1].gradient_out[i] < 0);
        for (int64_t e = 0; e < in.elems[i]; e++) {
            double x = in.at[i][e], step = 1e-6 * (fabs(x) > 1 ? fabs(x) : 1);
            in.at[i][e] = x + step;
            double high = weighted(cell, &in, &out, &weights);
            in.at[i][e] = x - step;
            double low = weighted(cell, &in, &out, &weights);
            in.at[i][e] = x;
            double numeric = (high - low) / (2 * step), exact = at < 0 ? 0 : grads[0].at[at][e];
            if (!(fabs(numeric - exact) <= 1e-5 + 1e-3 * fabs(numeric)))
                fail_msg("seed %llu, input %lld, element %lld: %.9g, by differences %.9g",
                         (unsigned long long)seed, (long long)i, (long long)e, exact, numeric);
            if (at >= 0) assert_true(exact == grads[1].at[modes[1].gradient_out[i]][e]);
        }
    }
    for (int m = 0; m < 2; m++) {
        free_tensors(&grads[m]);
        wefti_cell_grad_free(&modes[m]);
    }
    free_tensors(&in);
    free_tensors(&out);
    free_tensors(&weights);
}

static void random_cells_match_finite_differences(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 60) {
        weft_graph *g = new_graph();
        dice d = {.seed = seed};
        weft_value x = weft_input(g, "x", matrix(2 + roll(&d, 3), 2 + roll(&d, 3)));
        weft_value results[2];
        (void)random_cell(g, &d, "c", x, 2 + (int)roll(&d, 7), results);
        if (weft_graph_status(g) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_graph_message(g));
        check_gradients(g, g->cells[0], seed);
        weft_graph_destroy(g);
    }
}

/* ---- the saved set ---- */

/* One cell `make` over x [4, 8], differentiated for everything. */
typedef weft_value (*make_cell)(weft_graph *g, weft_value x);

static weft_graph *one_cell(make_cell make, int recompute, wefti_cell_grad *out) {
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "c");
    (void)weft_cell_end(g, make(g, x));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    if (differentiate(g, g->cells[0], recompute, out) < 0) fail_msg("%s", weft_error_message());
    return g;
}

/* "op/slot op/slot" of the saved values, in order. */
static void assert_saves(const wefti_cell_grad *cg, const char *expected) {
    char text[512] = "";
    size_t used = 0;
    for (int32_t s = 0; s < cg->saved; s++) {
        const wefti_value_info *v = &cg->forward->values[cg->forward->out[cg->cell->out_count + s]];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s/%d", s ? " " : "",
                                 cg->forward->nodes[v->node].op->name, v->slot);
    }
    assert_string_equal(text, expected);
}

static int64_t count_nodes(const weft_body *b, const char *op) {
    int64_t count = 0;
    for (int64_t i = 0; i < b->node_count; i++) count += !strcmp(b->nodes[i].op->name, op);
    return count;
}

static weft_value linear_to(weft_graph *g, weft_value x, const char *name, int64_t width) {
    weft_value w =
        weft_param(g, name, matrix(weft_value_desc(g, x).shape[1], width), normal_init());
    return weft_linear(g, x, w, WEFT_NO_VALUE, false);
}

static weft_value feed_forward(weft_graph *g, weft_value x) {
    return linear_to(g, weft_gelu(g, linear_to(g, x, "up", 32)), "down", 8);
}

static void cheap_results_are_recomputed(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(feed_forward, 0, &cg);
    assert_saves(&cg, "linear/0"); /* not gelu's result: it follows from its operand */
    assert_int_equal(count_nodes(cg.backward, "gelu"), 1);
    assert_int_equal(count_nodes(cg.backward, "linear"), 0);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static void full_recompute_keeps_nothing(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(feed_forward, 1, &cg);
    assert_saves(&cg, "");
    assert_int_equal(count_nodes(cg.backward, "linear"), 1); /* the last is not needed */
    for (int64_t k = 0; k < cg.backward->in_count; k++)
        assert_true(cg.bindings[k].source == WEFTI_GRAD_INPUT ||
                    cg.bindings[k].source == WEFTI_GRAD_DOUT);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

/* However small they are: the choice must not differ with the size of a microbatch. */
static void selective_recompute_keeps_products(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(feed_forward, WEFTI_RECOMPUTE_SELECTIVE, &cg);
    assert_saves(&cg, "linear/0");
    assert_int_equal(count_nodes(cg.backward, "gelu"), 1);
    assert_int_equal(count_nodes(cg.backward, "linear"), 0);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static weft_value normed(weft_graph *g, weft_value x) {
    int64_t width = 8;
    weft_value sum = weft_add(g, x, linear_to(g, x, "in", 8));
    weft_value gamma = weft_param(g, "gamma", vector(width), normal_init());
    weft_value beta = weft_param(g, "beta", vector(width), normal_init());
    return linear_to(g, weft_layer_norm(g, sum, gamma, beta, 1e-5), "out", 8);
}

/* Norms save their statistics and their operand. Of the add's operand and result, only the result
 * is saved, because it is read. */
static void norms_keep_statistics(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(normed, 0, &cg);
    assert_saves(&cg, "add/0 layer_norm/1 layer_norm/2");
    assert_int_equal(count_nodes(cg.backward, "layer_norm_apply"), 1);
    assert_int_equal(count_nodes(cg.backward, "layer_norm"), 0);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static weft_value shared_leaf(weft_graph *g, weft_value x) {
    weft_value h = linear_to(g, x, "in", 8); /* not read by any gradient but through these: */
    weft_value a = weft_shift(g, h, 1.0), b = weft_scale(g, h, 2.0), c = weft_neg(g, h);
    weft_value ab = weft_matmul(g, a, b, true, false);
    return weft_matmul(g, c, ab, false, false);
}

/* Three cheap results of one value: keeping the value is cheaper than keeping two of them. */
static void the_cut_is_minimal(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(shared_leaf, 0, &cg);
    assert_saves(&cg, "linear/0 matmul/0");
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static weft_value narrow(weft_graph *g, weft_value x) {
    weft_value wide = linear_to(g, x, "in", 64);
    weft_value left = weft_gelu(g, weft_slice(g, wide, 1, 0, 4));
    weft_value right = weft_gelu(g, weft_slice(g, wide, 1, 4, 8));
    return linear_to(g, weft_matmul(g, left, right, false, false), "out", 8);
}

static void small_results_are_kept_before_large_sources(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(narrow, 0, &cg);
    assert_saves(&cg, "slice/0 slice/0 matmul/0"); /* [4, 4] each, not the [4, 64] behind both */
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static weft_value reshaped(weft_graph *g, weft_value x) {
    weft_value h = linear_to(g, x, "w", 8);
    return weft_tanh(g, weft_matmul(g, x, weft_reshape(g, h, 2, (int64_t[]){8, 4}), false, false));
}

static void reshapes_are_free(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(reshaped, 0, &cg);
    assert_saves(&cg, "linear/0"); /* and the result, tanh, is an output */
    assert_int_equal(count_nodes(cg.backward, "reshape") > 0, 1);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static weft_value dropped(weft_graph *g, weft_value x) {
    return linear_to(g, weft_dropout(g, weft_dropout(g, linear_to(g, x, "a", 8), 0.5), 0.5), "b",
                     8);
}

static void recomputed_dropout_keeps_its_stream(void **state) {
    (void)state;
    wefti_cell_grad cg;
    weft_graph *g = one_cell(dropped, 1, &cg);
    uint32_t seen[2] = {99, 99};
    int clones = 0;
    for (int64_t i = 0; i < cg.backward->node_count; i++) {
        const weft_node *n = &cg.backward->nodes[i];
        if (!strcmp(n->op->name, "dropout") && wefti_attr_int(n, WEFTI_AT_stream) < 0)
            seen[clones++] = n->stream;
    }
    assert_int_equal(clones, 2);
    assert_int_equal(seen[0], 0);
    assert_int_equal(seen[1], 1);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

/* ---- required and produced gradients ---- */

static void unwanted_gradients_cost_nothing(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "c");
    (void)weft_cell_end(g, linear_to(g, x, "w", 8)); /* inputs: w, then x */
    wefti_cell_grad cg;
    bool yes[2] = {true, true}, no[2] = {false, false}, only_w[2] = {true, false};
    assert_int_equal(wefti_differentiate(g, g->cells[0], only_w, yes, 0, &cg), WEFT_OK);
    assert_int_equal(cg.gradient_out[0], 0);
    assert_int_equal(cg.gradient_out[1], -1);
    assert_int_equal(count_nodes(cg.backward, "linear_grad_weight"), 1);
    assert_int_equal(cg.backward->node_count, 1);
    wefti_cell_grad_free(&cg);
    assert_int_equal(wefti_differentiate(g, g->cells[0], no, yes, 0, &cg), WEFT_OK);
    assert_int_equal(cg.backward->node_count, 0);
    wefti_cell_grad_free(&cg);
    assert_int_equal(wefti_differentiate(g, g->cells[0], yes, no, 0, &cg), WEFT_OK);
    assert_int_equal(cg.backward->out_count, 0);
    assert_int_equal(cg.gradient_out[0], -1);
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

/* Integers take part and have no gradient; a value that two nodes read has the sum; x passes
 * straight through. */
static void integers_have_no_gradient(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value ids = weft_input(g, "ids", weft_desc_of(WEFT_I32, 1, (int64_t[]){3}));
    weft_value x = weft_input(g, "x", matrix(3, 8));
    weft_cell_begin(g, "c");
    weft_value table = weft_param(g, "table", matrix(5, 8), normal_init());
    weft_value y = weft_add(g, weft_add(g, weft_embedding(g, table, ids, WEFT_F32), x), x);
    (void)weft_cell_end(g, y);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    wefti_cell_grad cg;
    const weft_body *cell = g->cells[0];
    assert_int_equal(differentiate(g, g->cells[0], 0, &cg), WEFT_OK);
    for (int64_t i = 0; i < cell->in_count; i++)
        assert_int_equal(cg.gradient_out[i] < 0, cell->values[cell->in[i]].desc.dtype == WEFT_I32);
    assert_int_equal(count_nodes(cg.backward, "add"), 1);
    assert_saves(&cg, "");
    wefti_cell_grad_free(&cg);
    weft_graph_destroy(g);
}

static void calls_cannot_be_differentiated(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "c");
    x = weft_cell_end(g, weft_exp(g, x));
    weft_output(g, "y", x);
    wefti_cell_grad cg;
    assert_int_equal(differentiate(g, g->root, 0, &cg), WEFT_E_BUG);
    ASSERT_MESSAGE("call");
    assert_int_equal(weft_graph_status(g), WEFT_OK); /* the graph itself is fine */
    weft_graph_destroy(g);
}

/* ---- failures ---- */

static weft_status build_and_differentiate(void) {
    weft_graph *g;
    WEFT_TRY(weft_graph_create(&g));
    dice d = {.seed = 5};
    weft_value x = weft_input(g, "x", matrix(3, 4)), results[2];
    for (int c = 0; c < 2; c++) {
        dice same = d; /* two equal cells: the second is found stored */
        (void)random_cell(g, &same, c ? "b" : "a", x, 6, results);
        x = results[0];
    }
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    weft_status st = wefti_graph_wrap(g);
    for (int mode = 0; mode < 2 && st >= 0; mode++) {
        wefti_cell_grad cg;
        bool all[MAX_VALUES];
        memset(all, 1, sizeof all);
        st = wefti_differentiate(g, g->cells[0], all, all, (wefti_recompute_mode)mode, &cg);
        if (st >= 0) wefti_cell_grad_free(&cg);
    }
    char *text;
    weft_graph *again;
    if (st >= 0) st = weft_graph_print(g, &text);
    if (st >= 0) {
        st = weft_graph_parse(text, &again);
        weft_text_free(text);
        if (st >= 0) weft_graph_destroy(again);
    }
    weft_graph_destroy(g);
    return st;
}

/* Leaks show under the address sanitizer. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    wefti_fault_arm(WEFTI_FAULT_ALLOC, INT64_MAX, false, 0);
    assert_int_equal(build_and_differentiate(), WEFT_OK);
    int64_t calls = wefti_fault_count(WEFTI_FAULT_ALLOC);
    assert_true(calls > 100);
    for (int64_t n = 0; n < calls; n++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, n % 2, 0);
        weft_status st = build_and_differentiate();
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (st != WEFT_E_NOMEM)
            fail_msg("allocation %lld of %lld: status %d, %s", (long long)n, (long long)calls, st,
                     weft_error_message());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_cells_match_finite_differences),
        cmocka_unit_test(cheap_results_are_recomputed),
        cmocka_unit_test(full_recompute_keeps_nothing),
        cmocka_unit_test(selective_recompute_keeps_products),
        cmocka_unit_test(norms_keep_statistics),
        cmocka_unit_test(the_cut_is_minimal),
        cmocka_unit_test(small_results_are_kept_before_large_sources),
        cmocka_unit_test(reshapes_are_free),
        cmocka_unit_test(recomputed_dropout_keeps_its_stream),
        cmocka_unit_test(unwanted_gradients_cost_nothing),
        cmocka_unit_test(integers_have_no_gradient),
        cmocka_unit_test(calls_cannot_be_differentiated),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
