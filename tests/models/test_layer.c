/* Layers with parameters of their own (weft/layer.h), and sessions with nothing but defaults. */
#include "model_fixture.h"

#include <math.h>

#include "weft/layer.h"

static weft_graph *empty(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    return g;
}

static void assert_parameter(weft_session *s, const char *name, weft_desc expected) {
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, 0, name, &info));
    assert_int_equal(info.role, WEFT_ROLE_PARAM);
    assert_memory_equal(&info.desc, &expected, sizeof expected);
}

/* The text of a graph with the layer, and of one with the same made of operations. */
static void a_dense_layer_is_its_operations(void **state) {
    (void)state;
    weft_graph *g = empty(), *by_hand = empty();
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, 5, 3));
    weft_output(
        g, "y",
        weft_dense(g, "fc", x, 4,
                   &WEFT_STRUCT(weft_dense_options, .deviation = 0.5, .activation = weft_tanh)));
    x = weft_input(by_hand, "x", WEFT_DESC(WEFT_F32, 5, 3));
    weft_cell_begin(by_hand, "fc");
    weft_init normal = {WEFT_INIT_NORMAL, 0.5}, zeros = {WEFT_INIT_ZEROS, 0};
    weft_value w = weft_param(by_hand, "weight", WEFT_DESC(WEFT_F32, 3, 4), normal);
    weft_value b = weft_param(by_hand, "bias", WEFT_DESC(WEFT_F32, 4), zeros);
    x = weft_tanh(by_hand, weft_linear(by_hand, x, w, b, false));
    weft_output(by_hand, "y", weft_cell_end(by_hand, x));
    char *text, *expected;
    ASSERT_OK(weft_graph_print(g, &text));
    ASSERT_OK(weft_graph_print(by_hand, &expected));
    assert_string_equal(text, expected);
    weft_text_free(text);
    weft_text_free(expected);
    weft_graph_destroy(g);
    weft_graph_destroy(by_hand);
}

static void its_options_shape_the_parameters(void **state) {
    (void)state;
    weft_graph *g = empty();
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F32, 2, 5, 400));
    weft_cell_begin(g, "block");
    x = weft_dense(g, "inner.one", x, 100, &WEFT_STRUCT(weft_dense_options, .transposed = true));
    x = weft_dense(g, NULL, x, 7, &WEFT_STRUCT(weft_dense_options, .no_bias = true));
    x = weft_cell_end(g, x);
    weft_desc y = weft_value_desc(g, x), three = WEFT_DESC(WEFT_F32, 2, 5, 7);
    assert_memory_equal(&y, &three, sizeof three);
    weft_loss(g, weft_mean(g, x, 0, NULL, false));
    weft_session *s;
    ASSERT_OK(weft_session_create(g, NULL, &s)); /* with defaults */
    assert_parameter(s, "block.inner.one.weight", WEFT_DESC(WEFT_F32, 100, 400));
    assert_parameter(s, "block.inner.one.bias", WEFT_DESC(WEFT_F32, 100));
    assert_parameter(s, "block.weight", WEFT_DESC(WEFT_F32, 100, 7));
    weft_tensor_info info;
    assert_int_equal(weft_session_find(s, 0, "block.bias", &info), WEFT_E_NOT_FOUND);
    /* start values: of variance 1 / 400, 40000 of them, so that 5 % is ten times the deviation */
    static float weight[100 * 400];
    double squares = 0;
    ASSERT_OK(weft_session_read(s, 0, "block.inner.one.weight", weight, sizeof weight));
    for (int i = 0; i < 100 * 400; i++) squares += (double)weight[i] * (double)weight[i];
    assert_true(fabs(squares / (100 * 400) * 400 - 1) < 0.05);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void parameters_of_f64_graphs_are_f64(void **state) {
    (void)state;
    weft_graph *g = empty();
    weft_value x = weft_input(g, "x", WEFT_DESC(WEFT_F64, 2, 3));
    weft_loss(g, weft_mean(g, weft_dense(g, "fc", x, 4, NULL), 0, NULL, false));
    weft_session *s;
    ASSERT_OK(weft_session_create(g, NULL, &s));
    assert_parameter(s, "fc.weight", WEFT_DESC(WEFT_F64, 3, 4));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void its_errors_are_kept(void **state) {
    (void)state;
    weft_graph *g = empty();
    weft_value scalar = weft_input(g, "scalar", weft_desc_of(WEFT_F32, 0, NULL));
    weft_value y = weft_dense(g, "fc", scalar, 4, NULL);
    assert_int_equal(y.id, -1);
    assert_int_equal(weft_graph_status(g), WEFT_E_SHAPE);
    assert_non_null(strstr(weft_graph_message(g), "fc: linear"));
    y = weft_dense(g, "more", y, 4, &WEFT_STRUCT(weft_dense_options, .activation = weft_relu));
    assert_non_null(strstr(weft_graph_message(g), "fc: linear"));
    weft_session *s;
    assert_int_equal(weft_session_create(g, NULL, &s), WEFT_E_SHAPE);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_layer_is_its_operations),
        cmocka_unit_test(its_options_shape_the_parameters),
        cmocka_unit_test(parameters_of_f64_graphs_are_f64),
        cmocka_unit_test(its_errors_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
