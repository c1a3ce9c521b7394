/* Building graphs: cells, captured values, names, errors. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "graph/build_random.h"
#include "graph/graph.h"
#include "weft/ops.h"

static weft_graph *new_graph(void) {
    weft_graph *g = NULL;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

static const weft_init zeros = {WEFT_INIT_ZEROS, 0};

static void assert_fails(weft_graph *g, weft_status status, const char *part) {
    if (weft_graph_status(g) != status || !has_facts(weft_graph_message(g), part))
        fail_msg("status %d, message '%s'; expected %d, '%s'", weft_graph_status(g),
                 weft_graph_message(g), status, part);
    weft_graph_destroy(g);
}

/* ---- cells ---- */

static weft_value block(weft_graph *g, weft_value x, int i, double rate, int64_t width) {
    int64_t columns = weft_value_desc(g, x).shape[1];
    weft_cell_begin(g, "h.%d", i);
    weft_cell_begin(g, "ff");
    weft_value up = weft_param(g, "up.weight", matrix(columns, width), normal_init());
    weft_value down = weft_param(g, "down.weight", matrix(width, columns), normal_init());
    weft_value y = weft_gelu(g, weft_linear(g, x, up, WEFT_NO_VALUE, false));
    y = weft_dropout(g, weft_linear(g, y, down, WEFT_NO_VALUE, false), rate);
    y = weft_cell_end(g, y);
    return weft_cell_end(g, weft_add(g, x, y));
}

static void equal_cells_are_stored_once(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    for (int i = 0; i < 96; i++) x = block(g, x, i, 0.1, 32);
    weft_output(g, "y", x);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 1);
    assert_int_equal(g->root->node_count, 96);
    assert_int_equal(wefti_graph_check(g), WEFT_OK);
    weft_graph_destroy(g);
}

static void different_cells_are_not(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    x = block(g, x, 0, 0.1, 32);
    x = block(g, x, 1, 0.2, 32); /* an attribute */
    x = block(g, x, 2, 0.1, 16); /* a shape */
    x = block(g, x, 3, 0.1, 32); /* the first again */
    weft_value z = weft_input(g, "z", matrix(5, 8));
    (void)block(g, z, 4, 0.1, 32); /* a shape of an input */
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 4);
    assert_ptr_equal(g->root->nodes[0].callee, g->root->nodes[3].callee);
    weft_graph_destroy(g);
}

/* Wiring, not only the multiset of nodes: a - b against b - a. */
static void wiring_tells_cells_apart(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value a = weft_input(g, "a", matrix(2, 2)), b = weft_input(g, "b", matrix(2, 2));
    for (int i = 0; i < 3; i++) {
        weft_cell_begin(g, "c.%d", i);
        weft_value p = weft_exp(g, a), q = weft_exp(g, b);
        (void)weft_cell_end(g, i == 1 ? weft_sub(g, q, p) : weft_sub(g, p, q));
    }
    assert_int_equal(g->cell_count, 2);
    assert_ptr_equal(g->root->nodes[0].callee, g->root->nodes[2].callee);
    weft_graph_destroy(g);
}

/* Plans address the parts of a cell by their names, so these names also tell cells apart. The names
 * of captured values do not. */
static void names_tell_cells_apart(void **state) {
    (void)state;
    static const char *const cells[] = {"a", "b", "c", "d"}, *const scopes[] = {"x", "y", "x", "x"},
                             *const params[] = {"p.w", "p.w", "q.w", "p.w"};
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    for (int i = 0; i < 4; i++) {
        weft_cell_begin(g, "%s", cells[i]);
        weft_cell_begin(g, "%s", scopes[i]);
        weft_value w = weft_param(g, params[i], matrix(8, 8), normal_init());
        weft_value y = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
        x = weft_cell_end(g, weft_tanh(g, y));
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 3);
    assert_ptr_equal(g->root->nodes[0].callee, g->root->nodes[3].callee);
    weft_value w[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "outer.%d.w", i);
        w[i] = weft_param(g, name, matrix(8, 8), normal_init());
    }
    for (int i = 0; i < 3; i++) {
        weft_cell_begin(g, "outer.%d", i);
        x = weft_cell_end(g, weft_linear(g, x, w[i], WEFT_NO_VALUE, false));
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 4);
    w[0] = weft_param(g, "w", matrix(8, 8), normal_init()); /* of the surroundings, and a cell's */
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "%s", i ? "own" : "given");
        x = weft_sigmoid(g, x);
        if (i) w[0] = weft_param(g, "w", matrix(8, 8), normal_init());
        x = weft_cell_end(g, weft_linear(g, x, w[0], WEFT_NO_VALUE, false));
    }
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 5);
    char *text;
    weft_graph *again = NULL;
    assert_int_equal(weft_graph_print(g, &text), WEFT_OK);
    assert_int_equal(weft_graph_parse(text, &again), WEFT_OK); /* none is refused as stored twice */
    assert_int_equal(again->cell_count, 5);
    weft_text_free(text);
    weft_graph_destroy(again);
    weft_graph_destroy(g);
}

static void captures_once_and_by_kind(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_value w = weft_param(g, "w", matrix(8, 8), normal_init());
    weft_value s = weft_state(g, "s", matrix(4, 8), zeros);
    weft_cell_begin(g, "c");
    weft_value y = weft_linear(g, x, w, WEFT_NO_VALUE, false);
    y = weft_add(g, weft_linear(g, y, w, WEFT_NO_VALUE, true), weft_add(g, x, s));
    y = weft_cell_end(g, y);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    const weft_node *call = &g->root->nodes[0];
    const weft_body *cell = call->callee;
    assert_int_equal(cell->in_count, 3);
    wefti_value_kind kinds[3] = {WEFTI_VALUE_INPUT, WEFTI_VALUE_PARAM, WEFTI_VALUE_STATE};
    for (int k = 0; k < 3; k++) {
        assert_int_equal(cell->values[cell->in[k]].kind, kinds[k]);
        assert_int_equal(call->in[k], k);
    }
    assert_string_equal(call->scope, "c");
    weft_graph_destroy(g);
}

static void nested_cells_name_parameters_and_scopes(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "h.3");
    weft_cell_begin(g, "attn");
    weft_cell_begin(g, "qkv");
    weft_value w = weft_param(g, "weight", matrix(8, 8), normal_init());
    weft_value y = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
    y = weft_cell_end(g, weft_exp(g, y));
    y = weft_cell_end(g, weft_tanh(g, y));
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cell_count, 1);
    const weft_body *cell = g->cells[0];
    assert_string_equal(cell->nodes[0].scope, "attn.qkv");
    assert_string_equal(cell->nodes[1].scope, "attn");
    assert_string_equal(cell->nodes[2].scope, "");
    assert_string_equal(cell->values[cell->in[0]].name, "attn.qkv.weight");
    assert_string_equal(g->root->values[g->root->in[1]].name, "h.3.attn.qkv.weight");
    assert_int_equal(weft_value_desc(g, y).shape[1], 8);
    weft_graph_destroy(g);
}

/* A parameter created in one cell is used in another: the embedding that is also the head. */
static void parameters_outlive_their_cell(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "stem");
    weft_value w = weft_param(g, "w", matrix(8, 8), normal_init());
    weft_value y = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
    weft_cell_begin(g, "head");
    y = weft_cell_end(g, weft_linear(g, y, w, WEFT_NO_VALUE, true));
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->root->in_count, 2);
    int32_t shared = g->root->in[1];
    assert_string_equal(g->root->values[shared].name, "stem.w");
    for (int c = 0; c < 2; c++) {
        const weft_node *call = &g->root->nodes[c];
        int uses = 0;
        for (int k = 0; k < call->inputs; k++) uses += call->in[k] == shared;
        assert_int_equal(uses, 1);
    }
    weft_graph_destroy(g);
}

static void results_may_pass_through(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "c");
    weft_value y = weft_exp(g, x);
    weft_value out[4] = {y, x, y, weft_param(g, "w", matrix(2, 2), zeros)};
    weft_cell_end_many(g, 4, out);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->cells[0]->out_count, 1);
    weft_output(g, "x", out[1]);
    weft_output(g, "w", out[3]);
    weft_output(g, "sum", weft_add(g, out[0], out[2]));
    assert_int_equal(g->outputs[0].value, g->root->in[0]);
    assert_int_equal(g->outputs[1].value, g->root->in[1]);
    assert_int_equal(wefti_graph_check(g), WEFT_OK);
    weft_graph_destroy(g);
}

static void state_updates_leave_the_cell(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "c");
    weft_value s = weft_state(g, "mean", matrix(4, 8), zeros);
    weft_state_update(g, s, weft_add(g, s, x));
    weft_value y = weft_cell_end(g, weft_exp(g, x));
    weft_output(g, "y", y);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_int_equal(g->assign_count, 1);
    assert_string_equal(g->root->values[g->assigns[0].state].name, "c.mean");
    const wefti_value_info *next = &g->root->values[g->assigns[0].next];
    assert_int_equal(next->node, 0);
    assert_int_equal(next->slot, 1); /* the result, then the hidden one */
    assert_int_equal(wefti_graph_check(g), WEFT_OK);
    weft_graph_destroy(g);
}

static void wrapping_leaves_calls_only(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_value w = weft_param(g, "w", matrix(8, 8), normal_init());
    weft_value loose = weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
    (void)weft_exp(g, loose); /* read by nobody */
    weft_value y = block(g, loose, 0, 0.1, 16);
    y = weft_add(g, y, loose);
    weft_value again = weft_tanh(g, weft_linear(g, y, w, WEFT_NO_VALUE, false));
    weft_output(g, "y", again);
    weft_loss(g, weft_mean(g, again, 0, NULL, false));
    assert_int_equal(wefti_graph_wrap(g), WEFT_OK);
    assert_int_equal(wefti_graph_check(g), WEFT_OK);
    assert_int_equal(g->root->node_count, 3);
    for (int i = 0; i < 3; i++) assert_ptr_equal(g->root->nodes[i].op, &wefti_op_call);
    assert_string_equal(g->root->nodes[0].scope, "main.0");
    assert_string_equal(g->root->nodes[2].scope, "main.1");
    assert_int_equal(g->root->nodes[2].outputs, 2);
    char *before, *after;
    assert_int_equal(weft_graph_print(g, &before), WEFT_OK);
    assert_int_equal(wefti_graph_wrap(g), WEFT_OK);
    assert_int_equal(weft_graph_print(g, &after), WEFT_OK);
    assert_string_equal(before, after);
    weft_text_free(before);
    weft_text_free(after);
    weft_graph_destroy(g);
}

static void pruning_removes_dead_nodes(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_value dead = weft_exp(g, x), kept = weft_tanh(g, x);
    (void)weft_add(g, dead, kept);
    weft_value s = weft_state(g, "s", matrix(4, 8), zeros);
    weft_state_update(g, s, weft_neg(g, x));
    weft_output(g, "y", weft_sigmoid(g, kept));
    assert_int_equal(wefti_body_prune(g->root), WEFT_OK);
    assert_int_equal(wefti_graph_check(g), WEFT_OK);
    assert_int_equal(g->root->node_count, 3);
    assert_string_equal(g->root->nodes[0].op->name, "tanh");
    assert_string_equal(g->root->nodes[1].op->name, "neg");
    assert_string_equal(g->root->nodes[2].op->name, "sigmoid");
    (void)weft_exp(g, dead); /* the handle of a removed value */
    assert_fails(g, WEFT_E_ARG, "removed");
}

/* ---- errors ---- */

static void errors_are_sticky_and_say_where(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_cell_begin(g, "h.%d", 3);
    weft_cell_begin(g, "attn");
    weft_value w = weft_param(g, "w", matrix(7, 8), normal_init());
    weft_value y = weft_linear(g, x, w, WEFT_NO_VALUE, false);
    assert_int_equal(y.id, -1);
    char first[512];
    (void)snprintf(first, sizeof first, "%s", weft_graph_message(g));
    y = weft_exp(g, y); /* no-ops from here */
    y = weft_cell_end(g, y);
    y = weft_cell_end(g, y);
    weft_output(g, "y", y);
    weft_loss(g, y);
    weft_cell_begin(g, "h.3");
    assert_int_equal(weft_value_desc(g, y).rank, -1);
    assert_string_equal(weft_graph_message(g), first);
    char *text;
    assert_int_equal(weft_graph_print(g, &text), WEFT_E_SHAPE);
    assert_int_equal(wefti_graph_wrap(g), WEFT_E_SHAPE);
    assert_int_equal(wefti_graph_check(g), WEFT_E_SHAPE);
    assert_non_null(strstr(first, "f32[4, 8]"));
    assert_non_null(strstr(first, "f32[7, 8]"));
    assert_fails(g, WEFT_E_SHAPE, "h.3.attn: linear(");
}

static void graph_without_failure_has_no_message(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    assert_string_equal(weft_graph_message(g), "");
    weft_graph_destroy(g);
    weft_graph_destroy(NULL);
}

/* Each mistake on a fresh graph that has x [4, 8], w [8, 8] (a parameter), s [4, 8] (a state). */
typedef struct mistake {
    void (*make)(weft_graph *g, weft_value x, weft_value w, weft_value s);
    weft_status status;
    const char *message;
} mistake;

#define MISTAKE(name) static void name(weft_graph *g, weft_value x, weft_value w, weft_value s)
#define UNUSED (void)x, (void)w, (void)s

MISTAKE(name_taken) {
    UNUSED;
    (void)weft_param(g, "w", matrix(2, 2), zeros);
}
MISTAKE(name_taken_in_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    (void)weft_param(g, "b", matrix(2, 2), zeros);
    (void)weft_state(g, "b", matrix(2, 2), zeros);
}
MISTAKE(name_empty) {
    UNUSED;
    (void)weft_input(g, "", matrix(2, 2));
}
MISTAKE(name_null) {
    UNUSED;
    (void)weft_input(g, NULL, matrix(2, 2));
}
MISTAKE(name_with_blank) {
    UNUSED;
    (void)weft_input(g, "a b", matrix(2, 2));
}
MISTAKE(name_too_long) {
    UNUSED;
    char name[300];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    weft_cell_begin(g, "%s", name);
}
MISTAKE(cell_taken) {
    UNUSED;
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "c");
        (void)weft_cell_end(g, weft_exp(g, x));
    }
}
MISTAKE(cells_too_deep) {
    UNUSED;
    for (int i = 0; i < 40; i++) weft_cell_begin(g, "c");
}
MISTAKE(end_without_begin) {
    UNUSED;
    (void)weft_cell_end(g, x);
}
MISTAKE(ended_value) {
    UNUSED;
    weft_cell_begin(g, "c");
    weft_value inside = weft_exp(g, x);
    (void)weft_cell_end(g, weft_exp(g, inside));
    (void)weft_exp(g, inside);
}
MISTAKE(empty_value) {
    UNUSED;
    (void)weft_add(g, x, WEFT_NO_VALUE);
}
MISTAKE(empty_result) {
    UNUSED;
    weft_cell_begin(g, "c");
    (void)weft_cell_end(g, WEFT_NO_VALUE);
}
MISTAKE(foreign_value) {
    UNUSED;
    (void)weft_exp(g, (weft_value){1000});
}
MISTAKE(input_in_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    (void)weft_input(g, "y", matrix(2, 2));
}
MISTAKE(output_in_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    weft_output(g, "y", x);
}
MISTAKE(loss_in_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    weft_loss(g, x);
}
MISTAKE(output_twice) {
    UNUSED;
    weft_output(g, "y", x);
    weft_output(g, "y", w);
}
MISTAKE(loss_not_scalar) {
    UNUSED;
    weft_loss(g, x);
}
MISTAKE(loss_twice) {
    UNUSED;
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
}
MISTAKE(half_parameter) {
    UNUSED;
    (void)weft_param(g, "p", weft_desc_of(WEFT_F16, 0, NULL), zeros);
}
MISTAKE(infinite_init) {
    UNUSED;
    (void)weft_param(g, "p", matrix(2, 2), (weft_init){WEFT_INIT_NORMAL, (double)INFINITY});
}
MISTAKE(unknown_init) {
    UNUSED;
    (void)weft_param(g, "p", matrix(2, 2), (weft_init){(weft_init_kind)9, 0});
}
MISTAKE(bad_rank) {
    UNUSED;
    (void)weft_input(g, "y", weft_desc_of(WEFT_F32, 9, NULL));
}
MISTAKE(negative_size) {
    UNUSED;
    (void)weft_input(g, "y", matrix(2, -1));
}
MISTAKE(huge_size) {
    UNUSED;
    (void)weft_input(g, "y", matrix(INT64_MAX, 2));
}
MISTAKE(update_of_a_parameter) {
    UNUSED;
    weft_state_update(g, w, w);
}
MISTAKE(update_of_another_shape) {
    UNUSED;
    weft_state_update(g, s, w);
}
MISTAKE(update_twice) {
    UNUSED;
    weft_state_update(g, s, x);
    weft_cell_begin(g, "c");
    weft_state_update(g, s, weft_exp(g, x));
    (void)weft_cell_end(g, weft_exp(g, x));
}
MISTAKE(update_of_a_parameter_in_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    weft_state_update(g, w, weft_exp(g, w));
}
MISTAKE(open_cell) {
    UNUSED;
    weft_cell_begin(g, "c");
    weft_status st = wefti_graph_check(g);
    if (st < 0) wefti_graph_fail(g, st);
}

static void every_mistake_is_explained(void **state) {
    (void)state;
    static const mistake mistakes[] = {
        {name_taken, WEFT_E_ARG, "'w'"},
        {name_taken_in_cell, WEFT_E_ARG, "c.b"},
        {name_empty, WEFT_E_ARG, "input|empty"},
        {name_null, WEFT_E_ARG, "input|empty"},
        {name_with_blank, WEFT_E_ARG, "'a b'"},
        {name_too_long, WEFT_E_ARG, "256"},
        {cell_taken, WEFT_E_ARG, "'c'"},
        {cells_too_deep, WEFT_E_ARG, "nested"},
        {end_without_begin, WEFT_E_ARG, "weft_cell_end without a weft_cell_begin"},
        {ended_value, WEFT_E_ARG, "input 0|'c'"},
        {empty_value, WEFT_E_ARG, "input 1"},
        {empty_result, WEFT_E_ARG, "result 0"},
        {foreign_value, WEFT_E_ARG, "value 1000"},
        {input_in_cell, WEFT_E_ARG, "'y'"},
        {output_in_cell, WEFT_E_ARG, "output|inside"},
        {loss_in_cell, WEFT_E_ARG, "loss|inside"},
        {output_twice, WEFT_E_ARG, "'y'"},
        {loss_not_scalar, WEFT_E_SHAPE, "f32[]|f64[]|f32[4, 8]"},
        {loss_twice, WEFT_E_ARG, "graph|already"},
        {half_parameter, WEFT_E_ARG, "'p'"},
        {infinite_init, WEFT_E_ARG, "'p'"},
        {unknown_init, WEFT_E_ARG, "'p'|9"},
        {bad_rank, WEFT_E_SHAPE, "0|8 dimensions"},
        {negative_size, WEFT_E_SHAPE, "dimension 1|size -1"},
        {huge_size, WEFT_E_SHAPE, "64 bits"},
        {update_of_a_parameter, WEFT_E_ARG, "state|updated"},
        {update_of_another_shape, WEFT_E_SHAPE, "'s'|f32[4, 8]|f32[8, 8]"},
        {update_twice, WEFT_E_ARG, "'s'"},
        {update_of_a_parameter_in_cell, WEFT_E_ARG, "state|updated"},
        {open_cell, WEFT_E_ARG, "'c'|ended"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        weft_graph *g = new_graph();
        weft_value x = weft_input(g, "x", matrix(4, 8));
        weft_value w = weft_param(g, "w", matrix(8, 8), normal_init());
        weft_value s = weft_state(g, "s", matrix(4, 8), zeros);
        mistakes[i].make(g, x, w, s);
        assert_fails(g, mistakes[i].status, mistakes[i].message);
    }
}

/* ---- random streams ---- */

static void streams_differ_by_call_node_and_step(void **state) {
    (void)state;
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", matrix(4, 8));
    weft_value y = weft_dropout(g, weft_dropout(g, x, 0.5), 0.5);
    weft_output(g, "y", y);
    const weft_node *first = &g->root->nodes[0], *second = &g->root->nodes[1];
    wefti_random r = {.seed = 1, .step = 2, .call_stream = 3};
    uint64_t base = wefti_random_stream(&r, first);
    assert_true(base == wefti_random_stream(&r, first));
    assert_true(base != wefti_random_stream(&r, second));
    r.step = 3;
    assert_true(base != wefti_random_stream(&r, first));
    r = (wefti_random){.seed = 1, .step = 2, .call_stream = 4};
    assert_true(base != wefti_random_stream(&r, first));
    r.call_stream = 3;
    for (wefti_attr *a = second->attrs; a->id; a++)
        if (a->id == WEFTI_AT_stream) a->i = first->stream;
    assert_true(base == wefti_random_stream(&r, second));
    weft_graph_destroy(g);
}

/* The position of a microbatch that comes after `row` samples of a value. */
static int64_t begin_of(int64_t row, int64_t samples, int rank, const int64_t *shape) {
    wefti_random r = {.row_offset = row, .samples = samples};
    int64_t strides[WEFT_MAX_RANK];
    weft_graph *g = new_graph();
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, rank, shape));
    weft_output(g, "y", weft_dropout(g, x, 0.5));
    const weft_node *n = &g->root->nodes[0];
    int64_t begin = wefti_random_place(&r, n, wefti_out(n, 0), strides);
    weft_graph_destroy(g);
    return begin;
}

/* Every microbatch draws numbers of its own, whatever dimension 0 holds. If samples are in front,
 * alone, merged with other dimensions or behind a 1, the numbers equal those for the same samples
 * of a whole batch. */
static void microbatches_draw_numbers_of_their_own(void **state) {
    (void)state;
    static const struct {
        int64_t samples;
        int rank;
        int64_t shape[3];
        bool of_samples; /* not: buffers of 8 experts, a sequence in front, tables */
    } cases[] = {
        {4, 3, {4, 6, 5}, true}, {4, 2, {24, 5}, true},    {4, 3, {1, 24, 5}, true},
        {1, 3, {1, 6, 5}, true}, {3, 3, {8, 6, 5}, false}, {4, 3, {5, 4, 5}, false},
        {8, 2, {9, 5}, false},   {6, 2, {4, 5}, false},    {7, 3, {1, 3, 5}, false},
        {0, 2, {4, 5}, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t samples = cases[c].samples, elems = 1, rows = samples ? samples : 4, shape[3];
        for (int d = 0; d < cases[c].rank; d++) elems *= cases[c].shape[d];
        for (int64_t m = 0; m < 3; m++) {
            int64_t begin = begin_of(m * rows, samples, cases[c].rank, cases[c].shape);
            if (begin < m * elems) fail_msg("case %d: begins at %lld", (int)c, (long long)begin);
            if (!cases[c].of_samples) continue;
            assert_int_equal(begin, m * elems);
            memcpy(shape, cases[c].shape, sizeof shape); /* of 3 times as many samples */
            shape[cases[c].rank == 3 && samples > 1 && shape[0] == 1] *= 3;
            assert_int_equal(begin_of(m * rows, 3 * samples, cases[c].rank, shape), m * elems);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_cells_are_stored_once),
        cmocka_unit_test(different_cells_are_not),
        cmocka_unit_test(wiring_tells_cells_apart),
        cmocka_unit_test(names_tell_cells_apart),
        cmocka_unit_test(captures_once_and_by_kind),
        cmocka_unit_test(nested_cells_name_parameters_and_scopes),
        cmocka_unit_test(parameters_outlive_their_cell),
        cmocka_unit_test(results_may_pass_through),
        cmocka_unit_test(state_updates_leave_the_cell),
        cmocka_unit_test(wrapping_leaves_calls_only),
        cmocka_unit_test(pruning_removes_dead_nodes),
        cmocka_unit_test(errors_are_sticky_and_say_where),
        cmocka_unit_test(graph_without_failure_has_no_message),
        cmocka_unit_test(every_mistake_is_explained),
        cmocka_unit_test(streams_differ_by_call_node_and_step),
        cmocka_unit_test(microbatches_draw_numbers_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
