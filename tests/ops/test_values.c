/* Reference kernels against numbers from PyTorch (values.h, made by make_values.py), and formulas
 * at their edges. */
#include "support.h"

#include <math.h>

#include "ops/harness.h"

/* One output of one call. output -1: an optimizer. Its one input is the shape of the parameter, and
 * its values are the parameter after three steps. */
typedef struct value_row {
    const char *op, *attrs, *inputs[6];
    int output, count;
    double expected[48];
} value_row;

#include "ops/values.h"

static const wefti_random no_random = {0};

/* Element e of input i, as make_values.py draws it. */
static double wave(const operand *o, int i, int64_t e) {
    double v = sin(0.7 * (double)(e + 1) + 1.3 * i);
    switch (o->style) {
    case '+':
        return fabs(v) + 0.5;
    case '<':
        return (double)((7 * e + 3 * i + 1) % o->below);
    case '?':
        return (e + i) % 3 != 0;
    default:
        return v;
    }
}

/* f32 is what both sides round to in the end; both compute in double. The op's rotary angles are
 * f32, those of the numbers are not. */
static void compare(const value_row *r, const double *have) {
    const double near = !strncmp(r->op, "rope", 4) ? 2e-6 : 1e-10;
    for (int e = 0; e < r->count; e++)
        if (!(fabs(have[e] - r->expected[e]) <= 0.01 * near + near * fabs(r->expected[e])))
            fail_msg("%s %s, output %d, element %d: %.17g, expected %.17g", r->op, r->attrs,
                     r->output, e, have[e], r->expected[e]);
}

static void open_row(const char *op, const char *attrs, const char *const *inputs, op_graph *out) {
    op_setup s;
    wefti_op_case c = {.attrs = attrs};
    for (int i = 0; i < 6 && inputs[i]; i++) c.inputs[i] = inputs[i];
    if (!setup_case(wefti_op_find(wefti_builtin_ops(), op), &c, &s) ||
        op_graph_open(&s, 1, out) < 0)
        fail_msg("%s %s: %s", op, attrs, weft_error_message());
    for (int i = 0; i < s.inputs; i++)
        for (int64_t e = 0; out->in[i] && e < weft_desc_elems(&s.in[i].desc); e++)
            out->in[i][e] = wave(&s.in[i], i, e);
}

static void check_call(const value_row *r) {
    op_graph g;
    open_row(r->op, r->attrs, r->inputs, &g);
    assert_int_equal(op_graph_run(&g, &no_random), WEFT_OK);
    assert_int_equal(weft_desc_elems(wefti_out(g.node, r->output)), r->count);
    compare(r, g.out[r->output]);
    op_graph_close(&g);
}

/* The tensors that an optimizer updates beside the parameter of shape `of`. */
static int state_texts(const value_row *r, const char *of, char text[5][40]) {
    bool factored = !strcmp(r->op, "opt_adafactor");
    bool two = factored || strstr(r->op, "adam") || !strcmp(r->op, "opt_lamb");
    int states = two ? 2 : 1, n = 0;
    (void)snprintf(text[n++], sizeof text[0], "f32[%s]", of);
    for (int k = 0; k < states; k++) (void)snprintf(text[n++], sizeof text[0], "f32[%s]", of);
    if (factored) { /* of [2,3,2] */
        (void)snprintf(text[1], sizeof text[0], "f32[2,3]");
        (void)snprintf(text[2], sizeof text[0], "f32[2,2]");
    }
    if (!strcmp(r->op, "opt_sgd") && !strstr(r->attrs, "momentum"))
        (void)snprintf(text[1], sizeof text[0], "-");
    (void)snprintf(text[n++], sizeof text[0], "f32[%s]", of);
    (void)snprintf(text[n++], sizeof text[0], "f32[8]");
    return n;
}

static void check_optimizer(const value_row *r) {
    char text[5][40];
    const char *inputs[6] = {0};
    int n = state_texts(r, r->inputs[0], text);
    op_graph g;
    for (int i = 0; i < n; i++) inputs[i] = text[i];
    open_row(r->op, r->attrs, inputs, &g);
    for (int i = 1; i < n - 2; i++)
        for (int64_t e = 0; g.in[i] && e < weft_desc_elems(wefti_in(g.node, i)); e++)
            g.in[i][e] = 0.0;
    for (int step = 1; step <= 3; step++) {
        /* A gradient twice as large under a scale of one half is the same gradient. */
        for (int e = 0; e < r->count; e++) g.in[n - 2][e] = 2.0 * cos(0.7 * (e + 1) + step);
        memcpy(g.in[n - 1], (double[8]){0.1, step, 0.5}, 8 * sizeof(double));
        assert_int_equal(op_graph_run(&g, &no_random), WEFT_OK);
        for (int i = 0, o = 0; i < n - 2; i++)
            if (g.in[i]) {
                size_t bytes = sizeof(double) * (size_t)weft_desc_elems(wefti_in(g.node, i));
                memcpy(g.in[i], g.out[o++], bytes);
            }
    }
    compare(r, g.out[0]);
    op_graph_close(&g);
}

static void numbers_of_pytorch(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof value_rows / sizeof *value_rows; k++)
        if (value_rows[k].output < 0)
            check_optimizer(&value_rows[k]);
        else
            check_call(&value_rows[k]);
}

/* ---- edges ---- */

/* Output `o` of an op on the given input values (each as many as the input has). */
static void run(const char *op, const char *attrs, const char *const inputs[6],
                const double *const values[6], int o, double *out, int64_t count) {
    op_graph g;
    open_row(op, attrs, inputs, &g);
    for (int i = 0; i < g.node->inputs; i++)
        if (g.in[i] && values[i])
            memcpy(g.in[i], values[i],
                   sizeof(double) * (size_t)weft_desc_elems(wefti_in(g.node, i)));
    assert_int_equal(op_graph_run(&g, &no_random), WEFT_OK);
    assert_int_equal(weft_desc_elems(wefti_out(g.node, o)), count);
    memcpy(out, g.out[o], sizeof(double) * (size_t)count);
    op_graph_close(&g);
}
#define IN(...) ((const char *const[6]){__VA_ARGS__})
#define OF(...) ((const double *const[6]){__VA_ARGS__})
#define V(...) ((const double[]){__VA_ARGS__})

static void assert_values(const double *have, const double *want, int count) {
    for (int e = 0; e < count; e++)
        if (!(have[e] == want[e] || (isnan(have[e]) && isnan(want[e]))))
            fail_msg("element %d is %.17g, expected %.17g", e, have[e], want[e]);
}

static void nan_is_never_lost(void **state) {
    (void)state;
    double y[4];
    run("relu", "", IN("f32[3]"), OF(V(NAN, -1, 2)), 0, y, 3);
    assert_values(y, V(NAN, 0, 2), 3);
    run("clip", "low=0 high=1", IN("f32[3]"), OF(V(NAN, -1, 2)), 0, y, 3);
    assert_values(y, V(NAN, 0, 1), 3);
    run("maximum", "", IN("f32[4]", "f32[4]"), OF(V(NAN, 1, 1, 2), V(1, NAN, 2, 1)), 0, y, 4);
    assert_values(y, V(NAN, NAN, 2, 2), 4);
    run("minimum", "", IN("f32[4]", "f32[4]"), OF(V(NAN, 1, 1, 2), V(1, NAN, 2, 1)), 0, y, 4);
    assert_values(y, V(NAN, NAN, 1, 1), 4);
    run("max", "axes=(1)", IN("f32[2,3]"), OF(V(1, NAN, 2, 4, 3, 4)), 0, y, 2);
    assert_values(y, V(NAN, 4), 2);
    run("argmax", "axis=1", IN("f32[2,3]"), OF(V(1, NAN, 2, 4, 3, 4)), 0, y, 2);
    assert_values(y, V(1, 0), 2);
    run("top_k", "k=2", IN("f32[4]"), OF(V(3, 5, NAN, 5)), 1, y, 2);
    assert_values(y, V(2, 1), 2);
    run("relu_grad", "", IN("f32[3]", "f32[3]"), OF(V(NAN, 0, 2), V(5, 6, 7)), 0, y, 3);
    assert_values(y, V(5, 0, 7), 3);
    run("attention", "", IN("f32[1,1,1,1]", "f32[1,2,1,1]", "f32[1,2,1,1]"),
        OF(V(NAN), V(1, 2), V(3, 4)), 0, y, 1);
    assert_values(y, V(NAN), 1);
    run("max_pool2d", "kernel=(1,2)", IN("f32[1,1,1,3]"), OF(V(NAN, 1, 2)), 0, y, 2);
    assert_values(y, V(NAN, 2), 2);
}

static void reductions_of_nothing(void **state) {
    (void)state;
    double y[2];
    run("sum", "axes=(1)", IN("f32[2,0]"), OF(NULL), 0, y, 2);
    assert_values(y, V(0, 0), 2);
    run("mean", "axes=(1)", IN("f32[2,0]"), OF(NULL), 0, y, 2);
    assert_values(y, V(NAN, NAN), 2);
    run("max", "axes=(1)", IN("f32[2,0]"), OF(NULL), 0, y, 2);
    assert_values(y, V(-INFINITY, -INFINITY), 2);
}

static void numbers_out_of_range(void **state) {
    (void)state;
    double y[6];
    run("embedding", "", IN("f32[2,2]", "i32[3]"), OF(V(1, 2, 3, 4), V(1, 2, -1)), 0, y, 6);
    assert_values(y, V(3, 4, NAN, NAN, NAN, NAN), 6);
    run("embedding_grad", "vocab=2", IN("i32[3]", "f32[3,1]"), OF(V(1, 2, -1), V(5, 6, 7)), 0, y,
        2);
    assert_values(y, V(0, 5), 2);
    run("gather", "", IN("f32[2]", "i32[3]"), OF(V(8, 9), V(-1, 1, 2)), 0, y, 3);
    assert_values(y, V(0, 9, 0), 3);
    run("scatter_add", "", IN("f32[2]", "i32[3]", "f32[3]"), OF(V(8, 9), V(-1, 1, 2), V(1, 2, 3)),
        0, y, 2);
    assert_values(y, V(8, 11), 2);
    run("one_hot", "classes=2", IN("i32[3]"), OF(V(-1, 1, 2)), 0, y, 6);
    assert_values(y, V(0, 0, 0, 1, 0, 0), 6);
}

static void cross_entropy_counts_targets(void **state) {
    (void)state;
    const double logits[] = {0, 0, 0, 0, 0, 0, 0, 0};
    double y[8];
    run("cross_entropy", "ignore=-1", IN("f32[4,2]", "i32[4]"), OF(logits, V(-1, 1, -1, 0)), 0, y,
        1);
    assert_true(fabs(y[0] - log(2.0)) < 1e-15);
    run("cross_entropy", "ignore=-1", IN("f32[4,2]", "i32[4]"), OF(logits, V(-1, 1, -1, 0)), 2, y,
        1);
    assert_values(y, V(2), 1);
    run("cross_entropy", "ignore=-1", IN("f32[4,2]", "i32[4]"), OF(logits, V(-1, -1, -1, -1)), 0, y,
        1);
    assert_values(y, V(0), 1);
    run("cross_entropy", "", IN("f32[4,2]", "i32[4]"), OF(logits, V(0, 1, 2, 0)), 0, y, 1);
    assert_values(y, V(NAN), 1);
    /* rows of a wrong target pass no gradient on */
    run("cross_entropy_grad", "ignore=-1", IN("f32[4,2]", "i32[4]", "f32[4]", "f32[]", "f32[]"),
        OF(logits, V(-1, 1, 2, 0), V(log(2.0), log(2.0), log(2.0), log(2.0)), V(2), V(1)), 0, y, 8);
    for (int e = 0; e < 8; e++)
        assert_true(fabs(y[e] - V(0, 0, .25, -.25, 0, 0, -.25, .25)[e]) < 1e-15);
}

/* The loss and gradients of the chunked last layer equal those of separate ops. */
static void last_layer_equals_its_parts(void **state) {
    (void)state;
    op_graph fused, linear, loss, dlogits, dx, dw;
    const char *rule = "ignore=1 smoothing=0.1";
    open_row("linear_cross_entropy", "transposed=1 ignore=1 smoothing=0.1",
             IN("f32[5,3]", "f32[4,3]", "i32[5]<4", "f32[]"), &fused);
    open_row("linear", "transposed=1", IN("f32[5,3]", "f32[4,3]"), &linear);
    open_row("cross_entropy", rule, IN("f32[5,4]", "i32[5]<4"), &loss);
    open_row("cross_entropy_grad", rule, IN("f32[5,4]", "i32[5]<4", "f32[5]", "f32[]", "f32[]"),
             &dlogits);
    open_row("linear_grad_input", "transposed=1", IN("f32[5,4]", "f32[4,3]"), &dx);
    open_row("linear_grad_weight", "transposed=1", IN("f32[5,3]", "f32[5,4]"), &dw);
    assert_int_equal(op_graph_run(&fused, &no_random), WEFT_OK);
    assert_int_equal(op_graph_run(&linear, &no_random), WEFT_OK);
    memcpy(loss.in[0], linear.out[0], 20 * sizeof(double));
    memcpy(loss.in[1], fused.in[2], 5 * sizeof(double));
    assert_int_equal(op_graph_run(&loss, &no_random), WEFT_OK);
    memcpy(dlogits.in[0], linear.out[0], 20 * sizeof(double));
    memcpy(dlogits.in[1], fused.in[2], 5 * sizeof(double));
    memcpy(dlogits.in[2], loss.out[1], 5 * sizeof(double));
    *dlogits.in[3] = *loss.out[2];
    *dlogits.in[4] = *fused.in[3];
    assert_int_equal(op_graph_run(&dlogits, &no_random), WEFT_OK);
    memcpy(dx.in[0], dlogits.out[0], 20 * sizeof(double));
    memcpy(dx.in[1], fused.in[1], 12 * sizeof(double));
    memcpy(dw.in[0], fused.in[0], 15 * sizeof(double));
    memcpy(dw.in[1], dlogits.out[0], 20 * sizeof(double));
    assert_int_equal(op_graph_run(&dx, &no_random), WEFT_OK);
    assert_int_equal(op_graph_run(&dw, &no_random), WEFT_OK);
    assert_true(fabs(*fused.out[0] - *loss.out[0]) < 1e-14);
    for (int e = 0; e < 15; e++) assert_true(fabs(fused.out[1][e] - dx.out[0][e]) < 1e-14);
    for (int e = 0; e < 12; e++) assert_true(fabs(fused.out[2][e] - dw.out[0][e]) < 1e-14);
    op_graph *all[] = {&fused, &linear, &loss, &dlogits, &dx, &dw};
    for (int k = 0; k < 6; k++) op_graph_close(all[k]);
}

static void attention_of_blind_queries_is_zero(void **state) {
    (void)state;
    double y[4];
    /* two queries at the ends of one key: the first sees none */
    const char *const inputs[6] = {"f32[1,2,1,2]", "f32[1,1,1,2]", "f32[1,1,1,2]"};
    run("attention", "causal=1", inputs, OF(NULL, NULL, V(3, 4)), 0, y, 4);
    assert_values(y, V(0, 0, 3, 4), 4);
    run("attention", "causal=1", inputs, OF(NULL), 1, y, 4);
    assert_true(y[0] == -INFINITY && isfinite(y[1]) && y[2] == 0);
}

/* Classes excluded by -inf, one by one or all of a piece, do not affect the other classes. */
static void ruled_out_classes_cost_nothing(void **state) {
    (void)state;
    double y[3];
    run("cross_entropy", "", IN("f32[1,3]", "i32[1]"), OF(V(0, -INFINITY, 0), V(2)), 0, y, 1);
    assert_true(fabs(y[0] - log(2.0)) < 1e-15);
    run("cross_entropy", "", IN("f32[1,3]", "i32[1]"), OF(V(0, -INFINITY, 0), V(1)), 0, y, 1);
    assert_values(y, V(INFINITY), 1);
    run("cross_entropy_part", "begin=0 whole=6", IN("f32[1,3]", "i32[1]"),
        OF(V(-INFINITY, -INFINITY, -INFINITY), V(4)), 0, y, 1);
    assert_values(y, V(0), 1);
    run("cross_entropy_part", "begin=0 whole=6", IN("f32[1,3]", "i32[1]"),
        OF(V(-INFINITY, -INFINITY, -INFINITY), V(4)), 1, y, 1);
    assert_values(y, V(-INFINITY), 1);
    run("cross_entropy", "", IN("f32[1,3]", "i32[1]"), OF(V(0, NAN, 0), V(2)), 0, y, 1);
    assert_true(isnan(y[0]));
}

/* A mask of lowest numbers instead of -inf: if all keys are masked, all get equal weight. */
static void equal_scores_share_however_large(void **state) {
    (void)state;
    const double lowest = -3.4028234663852886e38;
    double y[2];
    run("softmax", "axis=1", IN("f32[1,2]"), OF(V(lowest, lowest)), 0, y, 2);
    assert_values(y, V(0.5, 0.5), 2);
    run("log_softmax", "axis=1", IN("f32[1,2]"), OF(V(lowest, lowest)), 0, y, 2);
    assert_values(y, V(-log(2.0), -log(2.0)), 2);
    run("attention", "", IN("f32[1,1,1,1]", "f32[1,2,1,1]", "f32[1,2,1,1]", "f32[1,1,1,2]"),
        OF(V(1), V(0, 0), V(2, 4), V(lowest, lowest)), 0, y, 1);
    assert_values(y, V(3), 1);
}

/* Whole tensors at once and halves under a row offset drop the same elements, and the gradient's
 * stream attribute repeats them. */
static void dropout_is_a_function_of_position(void **state) {
    (void)state;
    wefti_random random = {.seed = 7, .step = 3, .call_stream = 11};
    op_graph whole, half;
    int kept = 0;
    open_row("dropout", "rate=0.25", IN("f32[64,16]"), &whole);
    open_row("dropout", "rate=0.25", IN("f32[32,16]"), &half);
    for (int e = 0; e < 1024; e++) whole.in[0][e] = 1.0;
    for (int e = 0; e < 512; e++) half.in[0][e] = 1.0;
    assert_int_equal(op_graph_run(&whole, &random), WEFT_OK);
    for (int e = 0; e < 1024; e++) {
        assert_true(whole.out[0][e] == 0.0 || whole.out[0][e] == 1.0 / 0.75);
        kept += whole.out[0][e] != 0.0;
    }
    assert_in_range(kept, 700, 836); /* 768 expected, standard deviation 13.9 */
    random.row_offset = 32;
    assert_int_equal(op_graph_run(&half, &random), WEFT_OK);
    assert_memory_equal(half.out[0], whole.out[0] + 512, 512 * sizeof(double));
    random.step++;
    assert_int_equal(op_graph_run(&half, &random), WEFT_OK);
    assert_memory_not_equal(half.out[0], whole.out[0] + 512, 512 * sizeof(double));
    op_graph_close(&whole);
    op_graph_close(&half);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_pytorch),
        cmocka_unit_test(nan_is_never_lost),
        cmocka_unit_test(reductions_of_nothing),
        cmocka_unit_test(numbers_out_of_range),
        cmocka_unit_test(cross_entropy_counts_targets),
        cmocka_unit_test(last_layer_equals_its_parts),
        cmocka_unit_test(attention_of_blind_queries_is_zero),
        cmocka_unit_test(ruled_out_classes_cost_nothing),
        cmocka_unit_test(equal_scores_share_however_large),
        cmocka_unit_test(dropout_is_a_function_of_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
