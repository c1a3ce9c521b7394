/* The text form of graphs, its parser's messages, and the checker. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/build_random.h"
#include "graph/text/text.h"
#include "weft/ops.h"

static weft_graph *new_graph(void) {
    weft_graph *g = NULL;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

static char *print(const weft_graph *g) {
    char *text = NULL;
    if (weft_graph_print(g, &text) < 0) fail_msg("%s", weft_error_message());
    return text;
}

/* Every kind of element that a text can hold. */
static weft_graph *varied(uint64_t seed) {
    weft_graph *g = new_graph();
    dice d = {.seed = seed};
    weft_value x = weft_input(g, "x", matrix(2 + roll(&d, 3), 2 + roll(&d, 3))), results[2];
    weft_desc shape = weft_value_desc(g, x);
    weft_value loose = weft_param(g, "scale", shape, (weft_init){WEFT_INIT_UNIFORM, 1.0 / 3});
    weft_value state = weft_state(g, "seen", shape, (weft_init){WEFT_INIT_CONSTANT, -2.5});
    int cells = 1 + (int)roll(&d, 4);
    x = weft_mul(g, x, loose);
    for (int c = 0; c < cells; c++) {
        char name[16];
        (void)snprintf(name, sizeof name, "c.%d", c);
        dice own = {.seed = seed + (uint64_t)roll(&d, 2)};
        (void)random_cell(g, &own, name, x, 2 + (int)roll(&own, 6), results);
        x = results[roll(&d, 2)];
    }
    weft_state_update(g, state, x);
    weft_output(g, "y", x);
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

static void random_graphs_read_back(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 100) {
        weft_graph *g = varied(seed), *again = NULL;
        if (seed % 3 == 0) assert_int_equal(wefti_graph_wrap(g), WEFT_OK);
        if (wefti_graph_check(g) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        char *first = print(g);
        if (weft_graph_parse(first, &again) < 0)
            fail_msg("seed %llu: %s in\n%s", (unsigned long long)seed, weft_error_message(), first);
        char *second = print(again);
        assert_string_equal(first, second);
        assert_int_equal(g->cell_count, again->cell_count);
        for (int64_t c = 0; c < g->cell_count; c++)
            assert_true(g->cells[c]->hash == again->cells[c]->hash);
        assert_true(wefti_body_hash(g->root) == wefti_body_hash(again->root));
        weft_text_free(first);
        weft_text_free(second);
        weft_graph_destroy(g);
        weft_graph_destroy(again);
    }
}

static const char sample[] =
    "weft-graph 1\n"
    "fused f(%0 input: f32[2,3]) {\n"
    "  %1: f32[2,3] = exp(%0)\n"
    "  %2: f32[2,3] = neg(%1)\n"
    "  return %2\n"
    "}\n"
    "cell h.0(%0 input x: f32[2,3], %1 param w: f32[2,3], %2 input: f32[2,3]) {\n"
    "  %3: f32[2,3] = fused f(%0)\n"
    "  %4: f32[2,3] = add(%3, %1) @inner.most\n"
    "  %5: f32[2,3] = dropout(%4) rate=0.1 stream=-1 whole=() begin=() #7\n"
    "  return %5, %3\n"
    "}\n"
    "graph {\n"
    "  %0 = input x: f32[2,3]\n"
    "  %1 = param h.0.w: f32[2,3] normal(0.02)\n"
    "  %2 = state s: f32[2,3] zeros\n"
    "  %3: f32[2,3], %4: f32[2,3] = call h.0(%0, %1, %2) @h.0\n"
    "  %5: f32[] = mean(%4) axes=(0,1) keep=0 count=0\n"
    "  output y = %3\n"
    "  loss %5\n"
    "  update %2 = %4\n"
    "}\n";

static void the_form_is_what_it_says(void **state) {
    (void)state;
    weft_graph *g;
    if (weft_graph_parse(sample, &g) < 0) fail_msg("%s", weft_error_message());
    char *text = print(g);
    assert_string_equal(text, sample);
    assert_int_equal(g->cells[0]->nodes[2].stream, 7);
    assert_string_equal(g->cells[0]->nodes[1].scope, "inner.most");
    assert_true(g->root->values[1].init.scale == 0.02);
    weft_text_free(text);
    /* A parsed graph can be built on: its names are taken. */
    (void)weft_input(g, "s", matrix(1, 1));
    assert_int_equal(weft_graph_status(g), WEFT_E_ARG);
    weft_graph_destroy(g);
}

/* Every line of the sample is changed in some way: the message has the line and the matter. */
typedef struct edit {
    const char *from, *to, *message;
} edit;

static void edits_are_explained(void **state) {
    (void)state;
    static const edit edits[] = {
        {"weft-graph 1", "weft-graph 2", "line 1: 'weft-graph 1' is expected"},
        {"exp(%0)", "expp(%0)", "line 3|expp"},
        {"exp(%0)", "exp(%1)", "line 3|1"},
        {"exp(%0)", "exp(%0, %0)", "line 3: exp takes 1 to 1 inputs, not 2"},
        {"exp(%0)", "exp(_)", "line 3: exp: input 0 is missing"},
        {"exp(%0)", "exp()", "line 3: exp takes 1 to 1 inputs, not 0"},
        {"exp(%0)", "exp(%0) rate=1", "line 3|rate"},
        {"exp(%0)", "exp(%0) #1", "line 3|'#1'"},
        {"exp(%0)", "mean(%0) axes=(1) keep=1 count=0", "line 3|result 0|f32[2, 1]|f32[2, 3]"},
        {"  %2: f32[2,3] = neg", "  %3: f32[2,3] = neg", "line 4|2|3"},
        {"f32[2,3] = neg", "f31[2,3] = neg", "line 4|f31"},
        {"f32[2,3] = neg", "f32[2,-3] = neg", "line 4"},
        {"f32[2,3] = neg", "f32[2,99999999999999999999] = neg", "line 4|99999999999999999999"},
        {"f32[2,3] = neg", "f32[1,1,1,1,1,1,1,1,1] = neg", "line 4: more than 8 dimensions"},
        {"return %2\n", "return %0\n", "line 5"},
        {"return %5, %3", "return %5, %5", "line 11"},
        {"return %2\n", "return\n", "line 5|'%'"},
        {"%1 param w", "%1 parm w", "line 7|parm"},
        {"fused f(%0)", "fused g(%0)", "line 8|'g'"},
        {"fused f(%0)", "call f(%0)", "line 8"},
        {"rate=0.1", "rate=x", "line 10|rate"},
        {"rate=0.1", "rate=0.1 rate=0.2", "line 10|rate"},
        {"rate=0.1", "rate=1.5", "line 10: "},
        {" #7", "", "line 10|'#'"},
        {" #7", " #99999999999", "line 10|number 99999999999"},
        {"cell h.0", "cell h 0", "line 7"},
        {"= input x", "= inputs x", "line 14|inputs"},
        {"= input x", "= input h.0.w", "line 15|h.0.w"},
        {"normal(0.02)", "normal(inf)", "line 15"},
        {"normal(0.02)", "gauss(0.02)", "line 15|gauss"},
        {"normal(0.02)", "", "line 15"},
        {"call h.0(%0, %1, %2)", "call h.0(%0, %0, %2)", "line 17|f32[2, 3]|input 1|h.0"},
        {"call h.0(%0, %1, %2)", "call h.0(%0, %1)",
         "line 17: call(f32[2, 3], f32[2, 3]): h.0 takes 3 inputs, not 2"},
        {" @h.0", "", "line 17"},
        {"axes=(0,1)", "axes=(0,1", "line 18|axes"},
        {"axes=(0,1)", "axes=(0,9)", "line 18: "},
        {"output y = %3", "output y = %9", "line 19|9"},
        {"  loss %5\n", "  loss %4\n", "line 20"},
        {"  loss %5\n", "  loss %5\n  loss %5\n", "line 21"},
        {"update %2", "update %1", "line 21"},
        {"  update %2 = %4\n", "  update %2 = %4\n  update %2 = %3\n", "line 22|'s'"},
        {"  update %2 = %4\n}\n", "  update %2 = %4\n", "line 22|'update '"},
        {"  update %2 = %4\n}\n", "  update %2 = %4\n}\ngraph", "line 23"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char text[4096];
        const char *at = strstr(sample, edits[i].from);
        assert_non_null(at);
        (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sample), sample, edits[i].to,
                       at + strlen(edits[i].from));
        weft_graph *g = NULL;
        weft_status st = weft_graph_parse(text, &g);
        if (st >= 0) fail_msg("'%s' for '%s' is accepted", edits[i].to, edits[i].from);
        if (!has_facts(weft_error_message(), edits[i].message))
            fail_msg("'%s' for '%s': '%s', expected '%s'", edits[i].to, edits[i].from,
                     weft_error_message(), edits[i].message);
        assert_null(g);
    }
}

static void equal_cells_are_refused(void **state) {
    (void)state;
    const char *text = "weft-graph 1\n"
                       "cell a(%0 input: f32[2]) {\n  %1: f32[2] = exp(%0)\n  return %1\n}\n"
                       "cell b(%0 input: f32[2]) {\n  %1: f32[2] = exp(%0)\n  return %1\n}\n"
                       "graph {\n}\n";
    weft_graph *g;
    assert_int_equal(weft_graph_parse(text, &g), WEFT_E_ARG);
    ASSERT_MESSAGE("line 6|b|a");
    assert_int_equal(weft_graph_parse(NULL, &g), WEFT_E_ARG);
    assert_int_equal(weft_graph_parse("", &g), WEFT_E_ARG);
}

/* The text cut anywhere and any byte changed: refused or parsed, never worse. */
static void damaged_texts_end_cleanly(void **state) {
    (void)state;
    char text[sizeof sample];
    for (size_t cut = 0; cut + 1 < sizeof sample; cut++) {
        memcpy(text, sample, sizeof sample);
        text[cut] = '\0';
        weft_graph *g = NULL;
        assert_true(weft_graph_parse(text, &g) < 0);
    }
    dice d = {.seed = 4};
    for (int i = 0; i < 3000; i++) {
        static const char bytes[] = "0123456789%()[]{}=,.:#@_- \nabcxyz<\"\x80";
        memcpy(text, sample, sizeof sample);
        for (int64_t k = roll(&d, 3); k >= 0; k--)
            text[roll(&d, sizeof sample - 1)] = bytes[roll(&d, sizeof bytes - 1)];
        weft_graph *g = NULL;
        if (weft_graph_parse(text, &g) < 0) {
            assert_true(weft_error_message()[0] != '\0');
        } else {
            weft_text_free(print(g));
            weft_graph_destroy(g);
        }
    }
}

static void floats_read_back_and_are_short(void **state) {
    (void)state;
    static const double values[] = {0.1,  1e-5, 1.0 / 3, 5e-324, 1.7976931348623157e308,
                                    -0.0, 100,  0.02};
    static const char *const texts[] = {
        "0.1", "1e-05", "0.3333333333333333", "4.94066e-324", "1.7976931348623157e+308", "-0",
        "100", "0.02"};
    for (int i = 0; i < 8; i++) {
        wefti_text t = {0};
        wefti_float_print(values[i], &t);
        char *text = wefti_text_take(&t);
        assert_string_equal(text, texts[i]);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
        wefti_free(text);
    }
}

/* ---- the checker ---- */

typedef void (*corruption)(weft_graph *g);

static weft_body *cell(weft_graph *g) {
    return g->cells[0];
}
static void later_operand(weft_graph *g) {
    cell(g)->nodes[0].in[0] = cell(g)->nodes[1].out[0];
}
static void operand_out_of_range(weft_graph *g) {
    cell(g)->nodes[0].in[0] = 1000;
}
static void wrong_shape(weft_graph *g) {
    cell(g)->values[cell(g)->nodes[1].out[0]].desc.shape[0]++;
}
static void negative_shape(weft_graph *g) {
    cell(g)->values[0].desc.shape[0] = -4;
}
static void wrong_maker(weft_graph *g) {
    cell(g)->values[cell(g)->nodes[1].out[0]].node = 0;
}
static void dead_result(weft_graph *g) {
    cell(g)->values[cell(g)->out[0]].node = -1;
}
static void result_out_of_range(weft_graph *g) {
    cell(g)->out[0] = -7;
}
static void result_is_input(weft_graph *g) {
    cell(g)->out[0] = cell(g)->in[0];
}
static void stale_hash(weft_graph *g) {
    cell(g)->hash ^= 1;
}
static void changed_attribute(weft_graph *g) {
    cell(g)->nodes[2].attrs[0].f = 7;
}
static void missing_attribute(weft_graph *g) {
    cell(g)->nodes[2].attrs[0].id = WEFTI_AT_NONE;
}
static void input_moved(weft_graph *g) {
    cell(g)->values[cell(g)->in[1]].slot = 0;
}
static void foreign_node(weft_graph *g) {
    cell(g)->nodes[0].body = g->root;
}
static void unknown_callee(weft_graph *g) {
    g->root->nodes[0].callee = g->fused[0];
}
static void unexpected_callee(weft_graph *g) {
    cell(g)->nodes[1].callee = g->fused[0];
}
static void same_names(weft_graph *g) {
    g->root->values[1].name = "x";
}
static void no_name(weft_graph *g) {
    g->root->values[1].name = NULL;
}
static void no_path(weft_graph *g) {
    g->root->nodes[0].scope = "";
}
static void other_output(weft_graph *g) {
    g->outputs[0].value = 0;
}
static void assign_to_param(weft_graph *g) {
    g->assigns[0].state = 1;
}
static void loss_gone(weft_graph *g) {
    g->loss = 99;
}
static void loss_shape(weft_graph *g) {
    g->loss = 0;
}

static void planted_corruption_is_found(void **state) {
    (void)state;
    static const corruption corruptions[] = {later_operand,
                                             operand_out_of_range,
                                             wrong_shape,
                                             negative_shape,
                                             wrong_maker,
                                             dead_result,
                                             result_out_of_range,
                                             result_is_input,
                                             stale_hash,
                                             changed_attribute,
                                             missing_attribute,
                                             input_moved,
                                             foreign_node,
                                             unknown_callee,
                                             unexpected_callee,
                                             same_names,
                                             no_name,
                                             no_path,
                                             other_output,
                                             assign_to_param,
                                             loss_gone,
                                             loss_shape};
    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        weft_graph *g;
        assert_int_equal(weft_graph_parse(sample, &g), WEFT_OK);
        corruptions[i](g);
        weft_status st = wefti_graph_check(g);
        if (st != WEFT_E_BUG) fail_msg("corruption %zu: status %d", i, st);
        weft_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_read_back),
        cmocka_unit_test(the_form_is_what_it_says),
        cmocka_unit_test(edits_are_explained),
        cmocka_unit_test(equal_cells_are_refused),
        cmocka_unit_test(damaged_texts_end_cleanly),
        cmocka_unit_test(floats_read_back_and_are_short),
        cmocka_unit_test(planted_corruption_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
