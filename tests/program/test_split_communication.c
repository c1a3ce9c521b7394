/* The cost of splits: for the textbook cases, which transfers an op's cut makes, how many, and how
 * many bytes all devices receive. */
#include "support.h"

#include "program/spmd.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};

typedef struct expected {
    const char *what, *op;
    wefti_op_case c;
    int devices;
    const char *split;
    const char *in[9]; /* layouts of the operands that are there */
    const char *out;   /* of output 0 */
    wefti_transfer_kind kind;
    int transfers;
    int64_t bytes; /* f32 */
} expected;

static const expected cases[] = {
    {"a product split by columns moves nothing",
     "linear",
     {{"f32[6,8]", "f32[8,4]", "f32[4]"}, NULL},
     4,
     "n0=x",
     {"[-, -]", "[-, x]", "[x]"},
     "[-, x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a slice moves what does not lie where it goes",
     "slice",
     {{"f32[16]"}, "begin=1 end=13"},
     4,
     "d0=x",
     {"[x]"},
     "[x]",
     WEFTI_TRANSFER_HALO,
     1,
     (1 + 2) * 4},
    {"a slice of what a device has moves nothing",
     "slice",
     {{"f32[4,16]"}, "axis=1 begin=0 end=16"},
     4,
     "d1=x",
     {"[-, x]"},
     "[-, x]",
     WEFTI_TRANSFER_HALO,
     0,
     0},
    {"one row of a split dimension goes to all",
     "slice",
     {{"f32[16,3]"}, "begin=15 end=16"},
     4,
     "d0=x",
     {"[x, -]"},
     "[-, -]",
     WEFTI_TRANSFER_HALO,
     1,
     3 * 3 * 4},
    {"a pad moves what it shifts over an edge",
     "pad",
     {{"f32[16]"}, "before=(1) after=(3)"},
     4,
     "d0=x",
     {"[x]"},
     "[x]",
     WEFTI_TRANSFER_HALO,
     1,
     (1 + 2) * 4},
    {"a concat moves each input once at most",
     "concat",
     {{"f32[8]", "f32[8]"}, NULL},
     4,
     "d0=x",
     {"[x]", "[x]"},
     "[x]",
     WEFTI_TRANSFER_HALO,
     2,
     (2 + 4 + 4 + 2) * 4},
    {"a row before split ones moves nothing where parts fit",
     "concat",
     {{"f32[1]", "f32[15]"}, NULL},
     4,
     "d0=x",
     {"[-]", "[x]"},
     "[x]",
     WEFTI_TRANSFER_HALO,
     0,
     0},
    {"chunks are slices",
     "chunk",
     {{"f32[16]"}, "parts=2"},
     4,
     "d0=x",
     {"[x]"},
     "[x]",
     WEFTI_TRANSFER_HALO,
     2,
     (6 + 6) * 4},
    {"a product split by rows leaves a sum",
     "linear",
     {{"f32[6,8]", "f32[8,4]", "f32[4]"}, NULL},
     4,
     "k=x",
     {"[-, x]", "[x, -]", "[-]"},
     "[-, -] sum(x)",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a weight's gradient over split rows is a sum",
     "linear_grad_weight",
     {{"f32[8,3]", "f32[8,5]"}, NULL},
     4,
     "m0=x",
     {"[x, -]", "[x, -]"},
     "[-, -] sum(x)",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a look-up in a split table is a sum",
     "embedding",
     {{"f32[8,3]", "i32[5]<8"}, NULL},
     4,
     "vocab=x",
     {"[x, -]", "[-]"},
     "[-, -] sum(x)",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"the gradient of a split table stays where the table is",
     "embedding_grad",
     {{"i32[5]<8", "f32[5,3]"}, "vocab=8"},
     4,
     "vocab=x",
     {"[-]", "[-, -]"},
     "[x, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"dropout knows its place",
     "dropout",
     {{"f32[8,4]"}, "rate=0.5"},
     4,
     "d1=x",
     {"[-, x]"},
     "[-, x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"heads are independent",
     "attention",
     {{"f32[1,4,8,2]", "f32[1,4,8,2]", "f32[1,4,8,2]"}, NULL},
     4,
     "heads=x",
     {"[-, -, x, -]", "[-, -, x, -]", "[-, -, x, -]"},
     "[-, -, x, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"rope knows its place",
     "rope",
     {{"f32[1,8,2,4]"}, NULL},
     4,
     "seq=x",
     {"[-, x, -, -]"},
     "[-, x, -, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"windows of one element need no neighbours",
     "conv2d",
     {{"f32[1,2,8,3]", "f32[3,2,1,1]"}, NULL},
     4,
     "s0=x",
     {"[-, -, x, -]", "[-, -, -, -]"},
     "[-, -, x, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a step of adamw is local",
     "opt_adamw",
     {{"f32[8]", "f32[8]", "f32[8]+", "f32[8]", "f32[8]+"}, NULL},
     4,
     "d0=x",
     {"[x]", "[x]", "[x]", "[x]", "[-]"},
     "[x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a loss over split rows: one number, the count",
     "cross_entropy",
     {{"f32[8,5]", "i32[8]<5"}, NULL},
     4,
     "m0=x",
     {"[x, -]", "[x]"},
     "[] sum(x)",
     WEFTI_TRANSFER_ALL_REDUCE,
     1,
     4 * 4},
    {"a loss over split classes: maximum and sum of each row",
     "cross_entropy",
     {{"f32[6,8]", "i32[6]<8"}, NULL},
     4,
     "classes=x",
     {"[-, x]", "[-]"},
     "[] sum(x)",
     WEFTI_TRANSFER_ALL_REDUCE,
     2,
     2 * 4 * 6 * 4},
    {"its gradient: nothing",
     "cross_entropy_grad",
     {{"f32[6,8]", "i32[6]<8", "f32[6]+", "f32[]+", "f32[]"}, NULL},
     4,
     "classes=x",
     {"[-, x]", "[-]", "[-]", "[]", "[]"},
     "[-, x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a norm over split rows moves nothing",
     "layer_norm",
     {{"f32[8,6]", "f32[6]"}, NULL},
     4,
     "m0=x",
     {"[x, -]", "[-]"},
     "[x, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     0,
     0},
    {"a norm over a split width: mean and variance of each row",
     "layer_norm",
     {{"f32[6,8]", "f32[8]"}, NULL},
     4,
     "h=x",
     {"[-, x]", "[x]"},
     "[-, x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     2,
     2 * 4 * 6 * 4},
    {"softmax over a split dimension",
     "softmax",
     {{"f32[6,8]"}, "axis=1"},
     4,
     "d1=x",
     {"[-, x]"},
     "[-, x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     2,
     2 * 4 * 6 * 4},
    {"batch norm over a split batch: mean and variance of each channel",
     "batch_norm_train",
     {{"f32[8,3,2]", "f32[3]", "f32[3]"}, NULL},
     4,
     "batch=x",
     {"[x, -, -]", "[-]", "[-]"},
     "[x, -, -]",
     WEFTI_TRANSFER_ALL_REDUCE,
     2,
     2 * 4 * 3 * 4},
    {"lamb: two sums of squares",
     "opt_lamb",
     {{"f32[8]", "f32[8]", "f32[8]+", "f32[8]", "f32[8]+"}, NULL},
     4,
     "d0=x",
     {"[x]", "[x]", "[x]", "[x]", "[-]"},
     "[x]",
     WEFTI_TRANSFER_ALL_REDUCE,
     1,
     4 * 2 * 4},
    /* 3 rows: each of the two inner devices gets one row from either side, each outer device gets
     * one */
    {"a convolution over split height: rows at the borders",
     "conv2d",
     {{"f32[1,2,8,5]", "f32[3,2,3,3]"}, "padding=(1,1)"},
     4,
     "s0=x",
     {"[-, -, x, -]", "[-, -, -, -]"},
     "[-, -, x, -]",
     WEFTI_TRANSFER_HALO,
     1,
     6 * 2 * 5 * 4},
    {"strides that fit need no borders",
     "max_pool2d",
     {{"f32[1,1,16,2]u"}, "kernel=(2,2) stride=(2,2)"},
     4,
     "h=x",
     {"[-, -, x, -]"},
     "[-, -, x, -]",
     WEFTI_TRANSFER_HALO,
     0,
     0},
    /* every device gets the 3 other pieces of k and of v, each 2 x 2 x 3 elements */
    {"the ring: all keys and values come by",
     "attention",
     {{"f32[1,8,2,3]", "f32[1,8,2,3]", "f32[1,8,2,3]"}, NULL},
     4,
     "seq=x",
     {"[-, x, -, -]", "[-, x, -, -]", "[-, x, -, -]"},
     "[-, x, -, -]",
     WEFTI_TRANSFER_SHIFT,
     6,
     4 * 3 * 2 * 12 * 4},
};

/* Eight runs of one row. Device i attends with rows 2 i and 7 - 2 i to the keys up to them, and has
 * rows 2 i and 2 i + 1. So 6, 4, 4 and 6 rows of k and of v arrive. One row each of q and o is
 * swapped with the mirror device, and one of the statistics. */
static const expected causal_ring = {"a causal ring: what is seen, and halves that are swapped",
                                     "attention",
                                     {{"f32[1,8,2,3]", "f32[1,8,2,3]", "f32[1,8,2,3]"}, "causal=1"},
                                     4,
                                     "seq=x",
                                     {"[-, x, -, -]", "[-, x, -, -]", "[-, x, -, -]"},
                                     "[-, x, -, -]",
                                     WEFTI_TRANSFER_SHIFT,
                                     12,
                                     ((6 + 4 + 4 + 6) * 2 * 6 + 4 * 2 * 6 + 4 * 2 * 2) * 4};

/* `permutes` come in addition to the transfers of the expected kind. */
static void check(const expected *e, int permutes) {
    op_setup setup;
    op_graph g;
    spmd s;
    weft_plan *plan;
    wefti_layout in[9], out;
    const weft_op_def *op = wefti_op_find(wefti_builtin_ops(), e->op);
    assert_non_null(op);
    assert_true(setup_case(op, &e->c, &setup));
    assert_int_equal(op_graph_open(&setup, 9, &g), WEFT_OK);
    assert_int_equal(op_graph_run(&g, &stream), WEFT_OK);
    assert_int_equal(weft_plan_create(e->devices, &plan), WEFT_OK);
    assert_int_equal(weft_plan_axis(plan, "x", e->devices), WEFT_OK);
    assert_int_equal(weft_plan_split_op(plan, "*", e->split), WEFT_OK);
    wefti_mesh mesh = wefti_plan_mesh(plan, 0);
    for (int i = 0; e->in[i]; i++)
        assert_int_equal(wefti_layout_parse(e->in[i], &mesh, &in[i]), WEFT_OK);
    assert_int_equal(wefti_layout_parse(e->out, &mesh, &out), WEFT_OK);
    if (!spmd_partition(&s, &g, plan, in)) fail_msg("%s: %s", e->what, s.why);
    spmd_feed(&s, 1);
    if (!spmd_run(&s, &stream) || !spmd_compare(&s)) fail_msg("%s: %s", e->what, s.why);
    if (strcmp(wefti_layout_text(&s.rank[0].cut->out[0], &mesh).text, e->out))
        fail_msg("%s: the result is %s, not %s", e->what,
                 wefti_layout_text(&s.rank[0].cut->out[0], &mesh).text, e->out);
    for (int k = 0; k < SPMD_KINDS; k++) {
        int want = k == (int)e->kind ? e->transfers : k == WEFTI_TRANSFER_PERMUTE ? permutes : 0;
        if (s.transfers[k] != want)
            fail_msg("%s: %d transfers %s, not %d", e->what, s.transfers[k],
                     wefti_transfer_kind_text((wefti_transfer_kind)k), want);
    }
    if (s.bytes != e->bytes)
        fail_msg("%s: %lld bytes, not %lld", e->what, (long long)s.bytes, (long long)e->bytes);
    spmd_close(&s);
    weft_plan_destroy(plan);
    op_graph_close(&g);
}

static void textbook_cases_cost_what_they_must(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i], 0);
    check(&causal_ring, 5);
}

/* Slices, pads, concatenations and chunks of any size along the split dimension: never more bytes
 * than for gathering the operands. */
static void blocks_move_less_than_gathers(void **state) {
    (void)state;
    static const char *const ops[] = {"slice", "pad", "concat", "chunk"};
    TEST_SEEDS(seed, 0, 400) {
        uint64_t rolls = 0;
#define ROLL(n) ((int64_t)(wefti_philox_u32(seed, 5, rolls++) % (uint32_t)(n)))
        const char *name = ops[seed % 4];
        char attrs[80], sizes[4][24];
        int devices = 2 + (int)ROLL(7), inputs = 1;
        int64_t size = devices + ROLL(30), begin = ROLL(size), all = size;
        wefti_op_case c = {.attrs = attrs, .inputs = {sizes[0], sizes[1], sizes[2], sizes[3]}};
        if (!strcmp(name, "slice")) {
            int64_t end = begin + 1 + ROLL(size - begin);
            (void)snprintf(attrs, sizeof attrs, "axis=1 begin=%d end=%d", (int)begin, (int)end);
        } else if (!strcmp(name, "pad")) {
            int64_t before = 1 + ROLL(40), after = ROLL(40);
            (void)snprintf(attrs, sizeof attrs, "before=(0,%d) after=(0,%d) value=2", (int)before,
                           (int)after);
        } else if (!strcmp(name, "chunk")) {
            int parts = 1 + (int)ROLL(4);
            size = all = size * parts;
            (void)snprintf(attrs, sizeof attrs, "axis=1 parts=%d", parts);
        } else {
            (void)snprintf(attrs, sizeof attrs, "axis=1");
            inputs = 2 + (int)ROLL(3);
        }
        (void)snprintf(sizes[0], sizeof sizes[0], "f32[2,%d]", (int)size);
        for (int i = 1; i < inputs; i++) {
            int64_t more = devices + ROLL(30);
            (void)snprintf(sizes[i], sizeof sizes[i], "f32[2,%d]", (int)more);
            all += more;
        }
        c.inputs[inputs] = NULL;
        op_setup setup;
        op_graph g;
        spmd s;
        weft_plan *plan;
        wefti_layout in[4];
        assert_true(setup_case(wefti_op_find(wefti_builtin_ops(), name), &c, &setup));
        assert_int_equal(op_graph_open(&setup, seed, &g), WEFT_OK);
        assert_int_equal(op_graph_run(&g, &stream), WEFT_OK);
        assert_int_equal(weft_plan_create(devices, &plan), WEFT_OK);
        assert_int_equal(weft_plan_axis(plan, "x", devices), WEFT_OK);
        wefti_mesh mesh = wefti_plan_mesh(plan, 0);
        for (int i = 0; i < inputs; i++)
            assert_int_equal(wefti_layout_parse("[-, x]", &mesh, &in[i]), WEFT_OK);
        if (!spmd_partition(&s, &g, plan, in)) fail_msg("seed %d: %s", (int)seed, s.why);
        spmd_feed(&s, seed);
        if (!spmd_run(&s, &stream) || !spmd_compare(&s))
            fail_msg("seed %d: %s(%s) over %d: %s", (int)seed, name, attrs, devices, s.why);
        if (s.bytes > (devices - 1) * all * 2 * 4)
            fail_msg("seed %d: %s(%s) of %s over %d: %lld bytes, gathers take %lld", (int)seed,
                     name, attrs, sizes[0], devices, (long long)s.bytes,
                     (long long)((devices - 1) * all * 2 * 4));
        spmd_close(&s);
        weft_plan_destroy(plan);
        op_graph_close(&g);
#undef ROLL
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(textbook_cases_cost_what_they_must),
                                       cmocka_unit_test(blocks_move_less_than_gathers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
