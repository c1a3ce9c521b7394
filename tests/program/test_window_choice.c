/* Convolutions and pools exchange halos along split height and width, and the choice of their
 * splits counts these exchanges. The estimated bytes equal the exchanged bytes. The choice differs
 * from one without this cost where another split is cheaper. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/choice.h"

enum { CASES = 800, SPACE = 2, BATCH = 2 };

/* ---- ops over windows ---- */

typedef enum kind { CONV, CONV_DX, CONV_DW, MAX, AVERAGE, MAX_DX, AVERAGE_DX, KINDS } kind;

typedef struct windows {
    kind kind;
    int64_t in, out; /* channels; pools have `in` */
    int64_t x[SPACE], y[SPACE], kernel[SPACE], stride[SPACE], padding[SPACE], dilation[SPACE];
} windows;

static const char *const names[] = {"conv2d",         "conv_grad_input", "conv_grad_weight",
                                    "max_pool2d",     "avg_pool2d",      "max_pool2d_grad",
                                    "avg_pool2d_grad"};

static bool is_conv(kind k) {
    return k <= CONV_DW;
}

/* Sizes of y; false where a window is larger than x. */
static bool fits(windows *w) {
    for (int d = 0; d < SPACE; d++) {
        int64_t window = w->dilation[d] * (w->kernel[d] - 1) + 1;
        w->y[d] = (w->x[d] + 2 * w->padding[d] - window) / w->stride[d] + 1;
        if (w->x[d] + 2 * w->padding[d] < window) return false;
    }
    return true;
}

static weft_desc image(int64_t channels, const int64_t *size) {
    return weft_desc_of(WEFT_F32, 4, (int64_t[]){BATCH, channels, size[0], size[1]});
}

static op_graph graph_of(const windows *w) {
    op_graph g = new_graph();
    bool conv = is_conv(w->kind);
    weft_desc x = image(w->in, w->x), y = image(conv ? w->out : w->in, w->y),
              weight =
                  weft_desc_of(WEFT_F32, 4, (int64_t[]){w->out, w->in, w->kernel[0], w->kernel[1]});
    wefti_attr attrs[5] = {WEFTI_N(stride, wefti_op_ints(2, w->stride)),
                           WEFTI_N(padding, wefti_op_ints(2, w->padding)),
                           conv ? WEFTI_N(dilation, wefti_op_ints(2, w->dilation))
                                : WEFTI_N(kernel, wefti_op_ints(2, w->kernel))};
    int count = 3, operands = 0;
    weft_value in[2];
    if (w->kind != CONV_DX && w->kind != AVERAGE_DX) in[operands++] = weft_input(g.graph, "x", x);
    if (w->kind != CONV && w->kind != MAX && w->kind != AVERAGE)
        in[operands++] = weft_input(g.graph, "dy", y);
    if (w->kind == CONV || w->kind == CONV_DX)
        in[operands++] = weft_input(g.graph, "weight", weight);
    if (w->kind == CONV_DX || w->kind == AVERAGE_DX)
        attrs[count++] = WEFTI_N(in_shape, wefti_op_shape_ints(&x));
    if (w->kind == CONV_DW) attrs[count++] = WEFTI_N(kernel, wefti_op_ints(2, w->kernel));
    const weft_op_def *op = wefti_op_find(wefti_builtin_ops(), names[w->kind]);
    weft_output(g.graph, "result", wefti_graph_add1(g.graph, op, operands, in, count, attrs));
    if (weft_graph_status(g.graph) < 0) fail_msg("%s: %s", op->name, weft_graph_message(g.graph));
    evaluate(&g);
    return g;
}

static windows random_windows(dice *d, bool even) {
    windows w = {.kind = (kind)roll(d, KINDS), .in = 1 + roll(d, 3), .out = 1 + roll(d, 3)};
    do {
        for (int s = 0; s < SPACE; s++) {
            w.x[s] = even ? 8 * (1 + roll(d, 2)) : 8 + roll(d, 9);
            w.kernel[s] = 1 + roll(d, 5);
            w.stride[s] = 1 + roll(d, even ? 2 : 3);
            w.dilation[s] = is_conv(w.kind) ? 1 + roll(d, 2) : 1;
            w.padding[s] = roll(d, is_conv(w.kind) ? 4 : w.kernel[s]);
        }
    } while (!fits(&w) || w.y[0] < 4 || w.y[1] < 4 ||
             (even && (w.y[0] % 4 != 0 || w.y[1] % 4 != 0)));
    return w;
}

static void describe(const windows *w, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "%s of %dx%d, kernel %dx%d, stride %dx%d, padding %dx%d",
                   names[w->kind], (int)w->x[0], (int)w->x[1], (int)w->kernel[0], (int)w->kernel[1],
                   (int)w->stride[0], (int)w->stride[1], (int)w->padding[0], (int)w->padding[1]);
}

/* ---- estimated costs ---- */

/* Records the bytes that an op reports to the choice: calls the op's own function and sums its
 * bytes. */
static int64_t weighed;

static void record(const wefti_lowering *c, const weft_node *n, int64_t *bytes) {
    const weft_node x = node_of_original(n);
    original->exchanged(c, &x, bytes);
    weighed = 0;
    for (int f = 0; f < WEFTI_MAX_FACTORS; f++) weighed += bytes[f];
}

/* Returns the bytes that the busiest device receives if the plan splits `split`. `weighed` becomes
 * the estimate. */
static int64_t exchanged_over(op_graph *g, const int *mesh, const char *split, const char *what) {
    spmd s;
    int64_t most = 0;
    wefti_layout in[2] = {wefti_layout_replicated(4), wefti_layout_replicated(4)};
    weft_node *n = &g->graph->root->nodes[0];
    weft_plan *plan = plan_of(mesh);
    const weft_op_def *op = n->op, recorder = copy_of(op, record);
    assert_non_null(op->exchanged);
    weighed = -1;
    n->op = &recorder;
    ASSERT_OK(weft_plan_split_op(plan, "*", split));
    if (!spmd_partition_over(&s, g, plan, in, NULL, per_byte)) fail_msg("%s: %s", what, s.why);
    spmd_feed(&s, 11);
    if (!spmd_run(&s, &no_random) || !spmd_compare(&s)) fail_msg("%s: %s", what, s.why);
    n->op = op;
    for (int32_t r = 0; r < s.ranks; r++)
        if (s.halo[r] > most) most = s.halo[r];
    spmd_close(&s);
    weft_plan_destroy(plan);
    return most;
}

static void what_is_exchanged(void **state) {
    (void)state;
    static const int meshes[][2] = {{2, 0}, {4, 0}, {2, 2}, {2, 4}};
    int halos = 0;
    TEST_SEEDS(seed, 0, CASES) {
        dice d = {seed, 0};
        bool even = seed % 4 != 0;
        windows w = random_windows(&d, even);
        const int *mesh = meshes[roll(&d, 4)];
        char text[128], what[192], split[32];
        const char *const factors[] = {is_conv(w.kind) ? "s0" : "h", is_conv(w.kind) ? "s1" : "w"};
        int first = (int)roll(&d, 2);
        (void)snprintf(split, sizeof split, mesh[1] ? "%s=a %s=b" : "%s=a", factors[first],
                       factors[!first]);
        describe(&w, text, sizeof text);
        (void)snprintf(what, sizeof what, "seed %d: %s, %s, mesh %dx%d", (int)seed, text, split,
                       mesh[0], mesh[1]);
        op_graph g = graph_of(&w);
        int64_t received = exchanged_over(&g, mesh, split, what);
        if (even ? received != weighed : received > weighed)
            fail_msg("%s: %lld bytes are received, %lld were weighed", what, (long long)received,
                     (long long)weighed);
        halos += received > 0;
        op_graph_close(&g);
    }
    print_message("%d of %d have halos\n", halos, CASES);
    assert_true(test_one_seed() || halos > CASES / 2);
}

/* ---- the choice ---- */

/* An image arrives cut along its height and is wanted cut along its width. Either the image is
 * redistributed before the op, or its smaller result after the op. The second is cheaper unless
 * windows reach far along the height. */
static void along_which_side(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int tall = 0; tall < 2; tall++) {
            windows w = {.kind = k ? MAX : CONV,
                         .in = 5,
                         .out = 4,
                         .x = {16, 32},
                         .kernel = {tall ? 5 : 1, tall ? 1 : 5},
                         .stride = {1, 1},
                         .padding = {tall ? 2 : 0, tall ? 0 : 2},
                         .dilation = {1, 1}};
            char what[128];
            assert_true(fits(&w));
            describe(&w, what, sizeof what);
            op_graph g = graph_of(&w);
            weft_plan *plan = plan_of((int[]){4, 0});
            wefti_layout in[2] = {wefti_layout_replicated(4), wefti_layout_replicated(4)},
                         out = wefti_layout_replicated(4);
            in[0].dim[2] = out.dim[3] = (wefti_dim_split){.count = 1, .axis = {0}};
            outcome blind = choose(&g, plan, in, &out, true, what),
                    is = choose(&g, plan, in, &out, false, what);
            assert_int_equal(is.halos, 0);
            assert_true(tall ? blind.halos > 0 && is.received < blind.received
                             : is.received <= blind.received);
            weft_plan_destroy(plan);
            op_graph_close(&g);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_exchanged),
        cmocka_unit_test(along_which_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
