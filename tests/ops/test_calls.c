/* The public calls of weft/ops.h that take their operands as they are. Each result has the right
 * shape and dtype, and operands that do not fit are refused. tests/ops/test_lists.sh finds calls
 * that no test of this folder makes. */
#include "support.h"

#include "graph/graph.h"
#include "tensor/tensor.h"
#include "weft/collective.h"
#include "weft/ops.h"

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                       \
        __VA_ARGS__                                                                                \
    }

static weft_value input(weft_graph *g, const char *name, weft_dtype dtype, int rank,
                        const int64_t *shape) {
    return weft_input(g, name, weft_desc_of(dtype, rank, shape));
}

static void assert_desc(const weft_graph *g, const char *call, weft_value v, weft_dtype dtype,
                        int rank, const int64_t *shape) {
    weft_desc have = weft_value_desc(g, v), want = weft_desc_of(dtype, rank, shape);
    if (!wefti_desc_equal(&have, &want))
        fail_msg("%s: %s, expected %s; %s", call, wefti_desc_text(&have).text,
                 wefti_desc_text(&want).text, weft_graph_message(g));
}

static weft_graph *open_graph(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    return g;
}

static void close_graph(weft_graph *g) {
    ASSERT_OK(weft_graph_status(g));
    weft_graph_destroy(g);
}

static void one_operand(void **state) {
    (void)state;
    static const struct {
        const char *name;
        weft_value (*call)(weft_graph *g, weft_value x);
    } calls[] = {
        {"neg", weft_neg},           {"exp", weft_exp},     {"log", weft_log},
        {"sqrt", weft_sqrt},         {"rsqrt", weft_rsqrt}, {"tanh", weft_tanh},
        {"sigmoid", weft_sigmoid},   {"relu", weft_relu},   {"gelu", weft_gelu},
        {"gelu_erf", weft_gelu_erf}, {"silu", weft_silu},
    };
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_BF16, SHAPE(2, 3)), ids = input(g, "ids", WEFT_I32, SHAPE(2));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        assert_desc(g, calls[i].name, calls[i].call(g, x), WEFT_BF16, SHAPE(2, 3));
    assert_desc(g, "clip", weft_clip(g, x, -1, 1), WEFT_BF16, SHAPE(2, 3));
    assert_desc(g, "log_softmax", weft_log_softmax(g, x, -1), WEFT_BF16, SHAPE(2, 3));
    assert_desc(g, "one_hot", weft_one_hot(g, ids, 5, WEFT_F32), WEFT_F32, SHAPE(2, 5));
    close_graph(g);
    g = open_graph();
    (void)weft_relu(g, weft_log(g, input(g, "ids", WEFT_I32, SHAPE(2))));
    assert_int_not_equal(weft_graph_status(g), WEFT_OK);
    weft_graph_destroy(g);
}

static void several_operands(void **state) {
    (void)state;
    static const struct {
        const char *name;
        weft_value (*call)(weft_graph *g, weft_value a, weft_value b);
    } calls[] = {{"sub", weft_sub},
                 {"div", weft_div},
                 {"pow", weft_pow},
                 {"maximum", weft_maximum},
                 {"minimum", weft_minimum}};
    weft_graph *g = open_graph();
    weft_value a = input(g, "a", WEFT_F32, SHAPE(2, 1, 4)),
               b = input(g, "b", WEFT_F32, SHAPE(3, 1));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        assert_desc(g, calls[i].name, calls[i].call(g, a, b), WEFT_F32, SHAPE(2, 3, 4));
    weft_value less = weft_compare(g, a, b, WEFT_LT);
    assert_desc(g, "compare", less, WEFT_BOOL, SHAPE(2, 3, 4));
    assert_desc(g, "where", weft_where(g, less, a, b), WEFT_F32, SHAPE(2, 3, 4));
    weft_value m = input(g, "m", WEFT_F32, SHAPE(5, 2, 3)),
               n = input(g, "n", WEFT_F32, SHAPE(5, 4, 3));
    assert_desc(g, "matmul", weft_matmul(g, m, n, false, true), WEFT_F32, SHAPE(5, 2, 4));
    weft_value index = input(g, "index", WEFT_I32, SHAPE(6));
    assert_desc(g, "take", weft_take(g, m, index, -1), WEFT_F32, SHAPE(5, 2, 6));
    weft_value updates = input(g, "updates", WEFT_F32, SHAPE(5, 6, 3));
    assert_desc(g, "scatter_add", weft_scatter_add(g, m, index, updates, 1), WEFT_F32,
                SHAPE(5, 2, 3));
    close_graph(g);
    g = open_graph();
    (void)weft_matmul(g, input(g, "m", WEFT_F32, SHAPE(2, 3)), input(g, "n", WEFT_F32, SHAPE(2, 3)),
                      false, false);
    assert_int_equal(weft_graph_status(g), WEFT_E_SHAPE);
    weft_graph_destroy(g);
}

static void layers(void **state) {
    (void)state;
    weft_graph *g = open_graph();
    weft_value q = input(g, "q", WEFT_F32, SHAPE(2, 5, 4, 8)),
               k = input(g, "k", WEFT_F32, SHAPE(2, 7, 2, 8));
    weft_value place = input(g, "place", WEFT_I32, 0, NULL);
    assert_desc(g, "attention", weft_attention(g, q, k, k, NULL), WEFT_F32, SHAPE(2, 5, 4, 8));
    assert_desc(g, "rope", weft_rope(g, q, 1e4, (weft_rope_scaling){0}, place), WEFT_F32,
                SHAPE(2, 5, 4, 8));
    weft_value cache = input(g, "cache", WEFT_F32, SHAPE(2, 9, 4, 8));
    assert_desc(g, "cache_write", weft_cache_write(g, cache, q, place), WEFT_F32,
                SHAPE(2, 9, 4, 8));
    weft_value image = input(g, "image", WEFT_F32, SHAPE(1, 2, 6, 8));
    const int64_t two[] = {2, 2}, none[] = {0, 0};
    assert_desc(g, "avg_pool2d", weft_avg_pool2d(g, image, two, two, none), WEFT_F32,
                SHAPE(1, 2, 3, 4));
    weft_value film = input(g, "film", WEFT_F32, SHAPE(1, 2, 4, 5, 6));
    weft_value kernel = input(g, "kernel", WEFT_F32, SHAPE(3, 2, 2, 3, 3));
    assert_desc(g, "conv3d", weft_conv3d(g, film, kernel, WEFT_NO_VALUE, NULL), WEFT_F32,
                SHAPE(1, 3, 3, 3, 4));
    close_graph(g);
}

/* Among 4 ranks, in groups of 2. */
static void communication(void **state) {
    (void)state;
    const weft_ranks pair = {2, 1};
    const int from[] = {1, -1}, ranks[] = {1, 0};
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_F32, SHAPE(4, 6)), out[1];
    assert_desc(g, "all_reduce", weft_graph_all_reduce(g, x, pair, WEFT_REDUCE_SUM), WEFT_F32,
                SHAPE(4, 6));
    assert_desc(g, "all_gather", weft_graph_all_gather(g, x, pair), WEFT_F32, SHAPE(8, 6));
    assert_desc(g, "reduce_scatter", weft_graph_reduce_scatter(g, x, pair), WEFT_F32, SHAPE(2, 6));
    assert_desc(g, "all_to_all", weft_graph_all_to_all(g, x, pair, 0, 1), WEFT_F32, SHAPE(2, 12));
    assert_desc(g, "broadcast", weft_graph_broadcast(g, x, pair, 1), WEFT_F32, SHAPE(4, 6));
    assert_desc(g, "reduce", weft_graph_reduce(g, x, pair, 0), WEFT_F32, SHAPE(4, 6));
    assert_desc(g, "permute", weft_graph_permute(g, x, pair, from), WEFT_F32, SHAPE(4, 6));
    assert_desc(g, "send", weft_graph_send(g, x, pair, 0, 1), WEFT_F32, SHAPE(4, 6));
    weft_desc received = weft_desc_of(WEFT_F32, SHAPE(4, 6));
    weft_graph_neighbor_exchange(g, pair, &x, 1, ranks, &received, 1, ranks, out);
    assert_desc(g, "neighbor_exchange", out[0], WEFT_F32, SHAPE(4, 6));
    close_graph(g);
}

/* A plane of two tiles, one above the other: each gets the row of the other. */
static void halos(void **state) {
    (void)state;
    const int64_t sizes[4] = {1, 1, 0, 0};
    weft_halo halo[2];
    for (int m = 0; m < 2; m++) halo[m] = weft_halo_on_grid(2, 1, m, sizes);
    weft_graph *g = open_graph();
    weft_value x = input(g, "x", WEFT_F32, SHAPE(1, 2, 3, 4));
    assert_desc(g, "halo_exchange", weft_graph_halo_exchange(g, x, (weft_ranks){2, 1}, halo, halo),
                WEFT_F32, SHAPE(1, 2, 5, 4));
    close_graph(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_operand), cmocka_unit_test(several_operands),
        cmocka_unit_test(layers),      cmocka_unit_test(communication),
        cmocka_unit_test(halos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
