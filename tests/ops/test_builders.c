/* The public calls of weft/ops.h: their results, refusals, optional operands, and result dtypes. */
#include "support.h"

#include <math.h>

#include "graph/grad/grad.h"
#include "ops/common.h"
#include "ops/harness.h"
#include "weft/ops.h"

static weft_desc desc(weft_dtype dtype, int rank, const int64_t *shape) {
    return weft_desc_of(dtype, rank, shape);
}
#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                       \
        __VA_ARGS__                                                                                \
    }

static weft_value input(weft_graph *g, const char *name, weft_dtype dtype, int rank,
                        const int64_t *shape) {
    return weft_input(g, name, desc(dtype, rank, shape));
}

static weft_value param(weft_graph *g, const char *name, int rank, const int64_t *shape) {
    return weft_param(g, name, desc(WEFT_F32, rank, shape), (weft_init){WEFT_INIT_NORMAL, 1.0});
}

static void assert_desc(const weft_graph *g, weft_value v, weft_dtype dtype, int rank,
                        const int64_t *shape) {
    weft_desc have = weft_value_desc(g, v), want = desc(dtype, rank, shape);
    if (!wefti_desc_equal(&have, &want))
        fail_msg("%s, expected %s; %s", wefti_desc_text(&have).text, wefti_desc_text(&want).text,
                 weft_graph_message(g));
}

static weft_graph *open_graph(void) {
    weft_graph *g;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    return g;
}

static void close_graph(weft_graph *g) {
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    weft_graph_destroy(g);
}

static void axes_and_open_sizes_are_resolved(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_F32, SHAPE(2, 3, 4)), parts[2];
    assert_desc(g, weft_sum(g, x, 1, (int[]){-1}, false), WEFT_F32, SHAPE(2, 3));
    assert_desc(g, weft_mean(g, x, 2, (int[]){0, -1}, true), WEFT_F32, SHAPE(1, 3, 1));
    assert_desc(g, weft_max(g, x, 0, NULL, false), WEFT_F32, 0, NULL);
    assert_desc(g, weft_argmax(g, x, -2), WEFT_I32, SHAPE(2, 4));
    assert_desc(g, weft_softmax(g, x, -1), WEFT_F32, SHAPE(2, 3, 4));
    assert_desc(g, weft_reshape(g, x, SHAPE(4, -1)), WEFT_F32, SHAPE(4, 6));
    assert_desc(g, weft_transpose(g, x, 3, (int[]){-1, 0, 1}), WEFT_F32, SHAPE(4, 2, 3));
    assert_desc(g, weft_slice(g, x, -1, 1, 3), WEFT_F32, SHAPE(2, 3, 2));
    assert_desc(g, weft_concat(g, 2, (weft_value[]){x, x}, -2), WEFT_F32, SHAPE(2, 6, 4));
    weft_split(g, x, -1, 2, parts);
    assert_desc(g, parts[1], WEFT_F32, SHAPE(2, 3, 2));
    assert_desc(g, weft_pad(g, x, (int64_t[]){0, 1, 0}, (int64_t[]){0, 0, 2}, 0.0), WEFT_F32,
                SHAPE(2, 4, 6));
    close_graph(g);
}

static void experts_have_their_shapes(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_routing bounded, free_of_bounds;
    weft_value gates = input(g, "gates", WEFT_F32, SHAPE(2, 5, 4));
    weft_value x = input(g, "x", WEFT_BF16, SHAPE(2, 5, 6)), w = param(g, "w", SHAPE(4, 6, 3));
    assert_desc(g, weft_moe_route(g, gates, 2, 3, &bounded), WEFT_F32, SHAPE(2, 5, 2));
    assert_desc(g, weft_moe_route(g, gates, 1, 0, &free_of_bounds), WEFT_F32, SHAPE(2, 5, 1));
    assert_int_equal(free_of_bounds.capacity, 5);
    assert_desc(g, bounded.expert, WEFT_I32, SHAPE(2, 5, 2));
    assert_desc(g, bounded.slot, WEFT_I32, SHAPE(2, 5, 2));
    assert_desc(g, bounded.count, WEFT_I32, SHAPE(4, 2));
    weft_value y = weft_moe_dispatch(g, x, &bounded);
    assert_desc(g, y, WEFT_BF16, SHAPE(4, 2, 3, 6));
    assert_desc(g, weft_moe_linear(g, y, w, false, &bounded), WEFT_BF16, SHAPE(4, 2, 3, 3));
    assert_desc(g, weft_moe_linear(g, y, w, false, NULL), WEFT_BF16, SHAPE(4, 2, 3, 3));
    assert_desc(g, weft_moe_combine(g, y, &bounded, WEFT_NO_VALUE), WEFT_BF16, SHAPE(2, 5, 6));
    close_graph(g);
}

static void what_does_nothing_adds_nothing(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_F32, SHAPE(2, 3));
    assert_int_equal(weft_dropout(g, x, 0.0).id, x.id);
    assert_int_equal(weft_scale(g, x, 1.0).id, x.id);
    assert_int_equal(weft_shift(g, x, 0.0).id, x.id);
    assert_int_equal(weft_cast(g, x, WEFT_F32).id, x.id);
    assert_int_equal(g->root->node_count, 0);
    close_graph(g);
}

static void results_have_the_dtype_of_activations(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_BF16, SHAPE(2, 3)), w = param(g, "w", SHAPE(3, 5));
    weft_value b = param(g, "b", SHAPE(5)), c = param(g, "c", SHAPE(3));
    weft_value ids = input(g, "ids", WEFT_I32, SHAPE(2));
    weft_value y = weft_linear(g, x, w, b, false);
    assert_desc(g, y, WEFT_BF16, SHAPE(2, 5));
    assert_desc(g, weft_mul(g, c, x), WEFT_BF16, SHAPE(2, 3)); /* the parameter comes first */
    assert_desc(g, weft_layer_norm(g, x, c, WEFT_NO_VALUE, 1e-5), WEFT_BF16, SHAPE(2, 3));
    assert_desc(g, weft_embedding(g, w, ids, WEFT_BF16), WEFT_BF16, SHAPE(2, 5));
    assert_desc(g, weft_embedding_padded(g, w, ids, 1, WEFT_BF16), WEFT_BF16, SHAPE(2, 5));
    assert_desc(g, weft_cross_entropy(g, y, ids, -1, 0.0), WEFT_F32, 0, NULL);
    assert_desc(g, weft_mse(g, x, x), WEFT_F32, 0, NULL);
    assert_desc(g, weft_add(g, b, b), WEFT_F32, SHAPE(5));
    close_graph(g);
}

/* The gradient of an f32 parameter is f32 under bf16 activations, whatever the op. */
static void gradients_have_the_dtype_of_their_value(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value ids = input(g, "ids", WEFT_I32, SHAPE(2, 3));
    weft_value table = param(g, "table", SHAPE(7, 4)), w = param(g, "w", SHAPE(4, 2, 2));
    weft_value b = param(g, "b", SHAPE(2, 2)), gamma = param(g, "gamma", SHAPE(4));
    weft_value scale = param(g, "scale", SHAPE(2)), kernel = param(g, "kernel", SHAPE(3, 3, 1, 2));
    weft_value bias = param(g, "bias", SHAPE(3));
    weft_value x = weft_embedding(g, table, ids, WEFT_BF16);
    x = weft_rms_norm(g, x, gamma, 1e-5);
    x = weft_mul(g, weft_linear(g, x, w, b, false), scale);
    x = weft_conv2d(g, x, kernel, bias, NULL);
    x = weft_sum(g, weft_cast(g, x, WEFT_F32), 0, NULL, false);
    weft_output(g, "sum", x);
    assert_string_equal(weft_graph_message(g), "");

    bool wanted[8], given = true;
    wefti_cell_grad cg;
    for (int i = 0; i < 8; i++) wanted[i] = true;
    assert_int_equal(g->root->in_count, 8);
    assert_int_equal(wefti_differentiate(g, g->root, wanted, &given, 0, &cg), WEFT_OK);
    for (int i = 1; i < 8; i++) {
        const weft_desc *of = &g->root->values[g->root->in[i]].desc;
        assert_true(cg.gradient_out[i] >= 0);
        int32_t at = cg.backward->out[cg.gradient_out[i]];
        assert_true(wefti_desc_equal(&cg.backward->values[at].desc, of));
    }
    assert_true(cg.gradient_out[0] < 0); /* integers have none */
    wefti_cell_grad_free(&cg);
    close_graph(g);
}

/* new = (1 - momentum) old + momentum batch, the variance unbiased. */
static void batch_norm_moves_its_states(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_F32, SHAPE(4, 1));
    weft_value gamma = param(g, "gamma", SHAPE(1)), beta = param(g, "beta", SHAPE(1));
    weft_value mean = weft_state(g, "mean", desc(WEFT_F32, SHAPE(1)), (weft_init){0});
    weft_value var = weft_state(g, "var", desc(WEFT_F32, SHAPE(1)), (weft_init){0});
    weft_value y = weft_batch_norm(g, x, gamma, beta, mean, var, 0.25, 0.0, true);
    weft_output(g, "y", y);
    assert_string_equal(weft_graph_message(g), "");
    assert_int_equal(g->assign_count, 2);
    for (int a = 0; a < 2; a++)
        assert_int_equal(wefti_body_output(g->root, g->assigns[a].next), WEFT_OK);
    double values[4], next[2][1];
    const double *in[] = {(double[]){1, 2, 3, 6}, (double[]){2}, (double[]){1}, (double[]){8},
                          (double[]){4}};
    double *out[] = {values, next[0], next[1]};
    assert_int_equal(wefti_interpret(g->root, NULL, in, out), WEFT_OK);
    /* mean 3, squares 4 + 1 + 0 + 9 = 14: biased variance 3.5, unbiased 14/3 */
    for (int e = 0; e < 4; e++)
        assert_true(fabs(values[e] - ((in[0][e] - 3) / sqrt(3.5) * 2 + 1)) < 1e-12);
    assert_true(fabs(next[0][0] - (0.75 * 8 + 0.25 * 3)) < 1e-12);
    assert_true(fabs(next[1][0] - (0.75 * 4 + 0.25 * 14 / 3)) < 1e-12);
    close_graph(g);
}

/* Each of these is refused with a message that says what was wrong and with which shapes. */
typedef weft_value (*wrong_call)(weft_graph *g, weft_value x, weft_value ids, weft_value w);

#define WRONG(name_, call_)                                                                        \
    static weft_value name_(weft_graph *g, weft_value x, weft_value ids, weft_value w) {           \
        (void)x;                                                                                   \
        (void)ids;                                                                                 \
        (void)w;                                                                                   \
        return call_;                                                                              \
    }
WRONG(wrong_linear, weft_linear(g, x, x, WEFT_NO_VALUE, false))
WRONG(wrong_bias, weft_linear(g, x, w, w, false))
WRONG(wrong_add, weft_add(g, x, w))
WRONG(wrong_mix, weft_add(g, x, weft_cast(g, x, WEFT_F64)))
WRONG(wrong_integers, weft_exp(g, ids))
WRONG(wrong_axis, weft_softmax(g, x, 2))
WRONG(wrong_reshape, weft_reshape(g, x, SHAPE(4, -1)))
WRONG(wrong_two_open, weft_reshape(g, x, SHAPE(-1, -1)))
WRONG(wrong_slice, weft_slice(g, x, 1, 2, 4))
WRONG(wrong_targets, weft_cross_entropy(g, x, w, -1, 0.0))
WRONG(wrong_smoothing, weft_cross_entropy(g, x, ids, -1, 1.0))
WRONG(wrong_rate, weft_dropout(g, x, 1.0))
WRONG(wrong_empty, weft_concat(g, 2, (weft_value[]){x, WEFT_NO_VALUE}, 0))
static weft_value wrong_sum(weft_graph *g, weft_value x, weft_value ids, weft_value w) {
    weft_value large = weft_constant(g, WEFT_DESC(WEFT_U8, INT64_C(1) << 62), 0.0);
    (void)x, (void)ids, (void)w;
    return weft_concat(g, 4, (weft_value[]){large, large, large, large}, 0);
}
WRONG(wrong_missing, weft_mul(g, x, WEFT_NO_VALUE))
WRONG(wrong_top_k, weft_top_k(g, x, 4, NULL))
WRONG(wrong_rank, weft_max_pool2d(g, x, (int64_t[]){2, 2}, (int64_t[]){2, 2}, (int64_t[]){0, 0}))
WRONG(wrong_constant, weft_constant(g, desc(WEFT_F32, 9, NULL), 0.0))
WRONG(wrong_constant_rank, weft_constant(g, (weft_desc){.dtype = WEFT_F32, .rank = 9}, 0.0))
WRONG(wrong_momentum, weft_batch_norm(g, x, w, w, w, w, (double)NAN, 1e-5, true))
static weft_value wrong_capacity(weft_graph *g, weft_value x, weft_value ids, weft_value w) {
    weft_routing routing;
    (void)ids, (void)w;
    (void)weft_moe_route(g, x, 1, -1, &routing);
    return routing.slot;
}

static const struct {
    wrong_call call;
    weft_status status;
    const char *parts[3]; /* of the message */
} refused[] = {
    {wrong_linear, WEFT_E_SHAPE, {"linear", "f32[2, 3]", "must equal"}},
    {wrong_bias, WEFT_E_SHAPE, {"linear", "f32[3, 5]", "f32[5]"}},
    {wrong_add, WEFT_E_SHAPE, {"add", "f32[2, 3]", "f32[3, 5]"}},
    {wrong_mix, WEFT_E_ARG, {"add", "f64[2, 3]", "cast"}},
    {wrong_integers, WEFT_E_ARG, {"exp", "i32[2]", "floating"}},
    {wrong_axis, WEFT_E_SHAPE, {"softmax", "axis 2", "[0, 2)"}},
    {wrong_reshape, WEFT_E_SHAPE, {"reshape", "[4, -1]", "negative"}},
    {wrong_two_open, WEFT_E_SHAPE, {"reshape", "-1", "negative"}},
    {wrong_slice, WEFT_E_SHAPE, {"slice", "[2, 4)", "f32[2, 3]"}},
    {wrong_targets, WEFT_E_ARG, {"cross_entropy", "f32[3, 5]", "i32"}},
    {wrong_smoothing, WEFT_E_ARG, {"cross_entropy", "smoothing", "[0, 1)"}},
    {wrong_rate, WEFT_E_ARG, {"dropout", "rate", "[0, 1)"}},
    {wrong_empty, WEFT_E_ARG, {"concat", "value 1", "empty"}},
    {wrong_sum, WEFT_E_SHAPE, {"concat", "u8[4611686018427387904]", "64 bits"}},
    {wrong_missing, WEFT_E_ARG, {"mul", "input 1", ""}},
    {wrong_top_k, WEFT_E_SHAPE, {"top_k", "f32[2, 3]", "1 to 3"}},
    {wrong_rank, WEFT_E_SHAPE, {"max_pool2d", "f32[2, 3]", "[batch, channels, h, w]"}},
    {wrong_constant, WEFT_E_SHAPE, {"constant", "0 to 8", ""}},
    {wrong_constant_rank, WEFT_E_SHAPE, {"constant", "0 to 8", ""}},
    {wrong_momentum, WEFT_E_ARG, {"batch_norm", "momentum|nan", "[0, 1]"}},
    {wrong_capacity, WEFT_E_ARG, {"moe_slots", "capacity is -1", ""}},
};

static void wrong_calls_are_explained_and_stick(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
        weft_graph *g = open_graph();
        weft_value x = input(g, "x", WEFT_F32, SHAPE(2, 3)),
                   ids = input(g, "i", WEFT_I32, SHAPE(2));
        weft_value w = param(g, "w", SHAPE(3, 5));
        weft_cell_begin(g, "block.%d", (int)k);
        assert_true(refused[k].call(g, x, ids, w).id < 0);
        assert_int_equal(weft_graph_status(g), refused[k].status);
        assert_non_null(strstr(weft_graph_message(g), "block."));
        for (int p = 0; p < 3; p++)
            if (!has_facts(weft_graph_message(g), refused[k].parts[p]))
                fail_msg("no '%s' in: %s", refused[k].parts[p], weft_graph_message(g));
        char *first = wefti_strdup(weft_graph_message(g));
        assert_true(weft_add(g, x, x).id < 0); /* later calls do nothing */
        assert_true(weft_reshape(g, WEFT_NO_VALUE, SHAPE(1)).id < 0);
        assert_string_equal(weft_graph_message(g), first);
        wefti_free(first);
        weft_graph_destroy(g);
    }
}

/* Numbers of candidates count in the whole, which may have more elements than f32 has exact
 * integers. In that case no number may pass through f32. */
static void picked_numbers_stay_exact(void **state) {
    (void)state;
    static const double found[3] = {16777217, 5, 33554431}, place[1] = {2};
    double have[1] = {0}, *const out[] = {have};
    weft_graph *g = open_graph();
    weft_value v = input(g, "v", WEFT_I32, SHAPE(3)), at = input(g, "at", WEFT_I32, SHAPE(1));
    weft_cell_begin(g, "cell");
    weft_value picked = wefti_op_pick(g, v, at, 33554432);
    weft_cell_end_many(g, 1, &picked);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    const weft_body *body = g->cells[0];
    for (int64_t k = 0; k < body->value_count; k++)
        assert_int_not_equal(body->values[k].desc.dtype, WEFT_F32);
    bool place_first = weft_desc_elems(&body->values[body->in[0]].desc) == 1;
    const double *in[] = {place_first ? place : found, place_first ? found : place};
    assert_int_equal(wefti_interpret(body, NULL, in, out), WEFT_OK);
    assert_true(have[0] == found[2]);
    close_graph(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_and_open_sizes_are_resolved),
        cmocka_unit_test(experts_have_their_shapes),
        cmocka_unit_test(what_does_nothing_adds_nothing),
        cmocka_unit_test(results_have_the_dtype_of_activations),
        cmocka_unit_test(gradients_have_the_dtype_of_their_value),
        cmocka_unit_test(batch_norm_moves_its_states),
        cmocka_unit_test(picked_numbers_stay_exact),
        cmocka_unit_test(wrong_calls_are_explained_and_stick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
