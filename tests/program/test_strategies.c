/* Strategies as users of MindSpore write them, as cuts for each input. The cases are all ways to
 * split a product, plain, in batches and transposed, and the chains of its documentation. Forward
 * and backward give the results of one device, with exactly the necessary transfers. A strategy for
 * an op holds for the model's own op, not for equal ops in its gradient. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "program/print.h"
#include "session/session.h"
#include "weft/ops.h"

enum { STEPS = 3 };

static const weft_init normal = {WEFT_INIT_NORMAL, 0.3};

static weft_desc numbers(int rank, const int64_t *shape) {
    return weft_desc_of(WEFT_F64, rank, shape);
}

static weft_plan *mesh_of(const int sizes[3]) {
    static const char *const names[] = {"a", "b", "c"};
    weft_plan *plan;
    int devices = 1;
    for (int i = 0; i < 3; i++) devices *= sizes[i] ? sizes[i] : 1;
    ASSERT_OK(weft_plan_create(devices, &plan));
    for (int i = 0; i < 3 && sizes[i]; i++) ASSERT_OK(weft_plan_axis(plan, names[i], sizes[i]));
    ASSERT_OK(weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH));
    return plan;
}

static weft_session *session_of(weft_graph *g, const weft_plan *plan) {
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD};
    o.threads = 1;
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &s));
    return s;
}

/* ---- the result of one device ---- */

static void feed(weft_session *s, int step) {
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        double data[1024];
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        int64_t count = weft_desc_elems(&info.desc);
        assert_true(count <= 1024);
        for (int64_t i = 0; i < count; i++) data[i] = sin((double)(i * 7 + step * 31 + k));
        ASSERT_OK(weft_session_feed(s, 0, info.name, data, (size_t)info.bytes));
    }
}

static void compare(const char *what, weft_session *one, weft_session *many) {
    for (int k = 0; k < weft_session_tensors(one, 0); k++) {
        weft_tensor_info info;
        double a[1024], b[1024];
        ASSERT_OK(weft_session_tensor(one, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OUTPUT) continue;
        int64_t count = weft_desc_elems(&info.desc);
        assert_true(count <= 1024);
        ASSERT_OK(weft_session_read(one, 0, info.name, a, sizeof(double) * (size_t)count));
        ASSERT_OK(weft_session_read(many, 0, info.name, b, sizeof(double) * (size_t)count));
        for (int64_t i = 0; i < count; i++)
            if (!(fabs(a[i] - b[i]) <= 1e-11))
                fail_msg("%s: '%s'[%d] is %.17g, not %.17g", what, info.name, (int)i, b[i], a[i]);
    }
}

static void run_both(const char *what, weft_graph *g, weft_session *many) {
    weft_session *one = session_of(g, NULL);
    for (int step = 0; step < STEPS; step++) {
        double want, is;
        feed(one, step);
        feed(many, step);
        ASSERT_OK(weft_session_step(one, 0.1, &want));
        ASSERT_OK(weft_session_step(many, 0.1, &is));
        if (!(fabs(is - want) <= 1e-11))
            fail_msg("%s: loss %d is %.17g, not %.17g", what, step, is, want);
        compare(what, one, many);
    }
    weft_session_destroy(one);
}

/* ---- transfers ---- */

typedef struct counts {
    int all_reduce, all_gather, reduce_scatter, others;
} counts;

/* Forward transfers, in calls other than the loss, and between calls. */
static counts forward_transfers(const weft_session *s, int rank) {
    const wefti_program *p = wefti_session_program_of(s, 0, rank);
    counts c = {0};
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][i];
        wefti_step_transfer t;
        if (!strcmp(step->name, "loss") || strcmp(wefti_phase_text(step), "forward") != 0) continue;
        for (int32_t at = 0; wefti_step_transfer_next(p, step, &at, &t);) {
            c.all_reduce += t.transfer->kind == WEFTI_TRANSFER_ALL_REDUCE;
            c.all_gather += t.transfer->kind == WEFTI_TRANSFER_ALL_GATHER;
            c.reduce_scatter += t.transfer->kind == WEFTI_TRANSFER_REDUCE_SCATTER;
            c.others += t.transfer->kind != WEFTI_TRANSFER_ALL_REDUCE &&
                        t.transfer->kind != WEFTI_TRANSFER_ALL_GATHER &&
                        t.transfer->kind != WEFTI_TRANSFER_REDUCE_SCATTER;
        }
    }
    return c;
}

static void assert_transfers(const char *what, const weft_session *s, counts want) {
    for (int r = 0; r < weft_session_devices(s); r++) {
        counts c = forward_transfers(s, r);
        if (memcmp(&c, &want, sizeof c) != 0)
            fail_msg("%s, rank %d: %d all-reduce, %d all-gather, %d reduce-scatter, %d others",
                     what, r, c.all_reduce, c.all_gather, c.reduce_scatter, c.others);
    }
}

/* ---- one product ---- */

enum { M = 8, K = 9, N = 10, BATCH = 8 }; /* uneven along k and n */

/* loss = mean(y^2), y = x w; both operands are trained. */
static weft_graph *product(bool batched, bool x_transposed, bool w_transposed) {
    weft_graph *g;
    int64_t x[3] = {BATCH, x_transposed ? K : M, x_transposed ? M : K};
    int64_t w[3] = {BATCH, w_transposed ? N : K, w_transposed ? K : N};
    int skip = batched ? 0 : 1;
    ASSERT_OK(weft_graph_create(&g));
    weft_value a = weft_param(g, "x", numbers(3 - skip, x + skip), normal);
    weft_value b = weft_param(g, "w", numbers(3 - skip, w + skip), normal);
    weft_cell_begin(g, "product");
    weft_value y = weft_cell_end(g, weft_matmul(g, a, b, x_transposed, w_transposed));
    weft_output(g, "y", y);
    weft_cell_begin(g, "loss");
    weft_loss(g, weft_cell_end(g, weft_mean(g, weft_mul(g, y, y), 0, NULL, false)));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* The numbers of parts of rows m, the sum k and columns n, for each of several products. */
static void check_product(const int parts[4], bool batched, bool x_transposed, bool w_transposed) {
    char cuts[96], x[32], w[32];
    int m = parts[0], k = parts[1], n = parts[2], batch = parts[3];
    (void)snprintf(x, sizeof x, "%d,%d", x_transposed ? k : m, x_transposed ? m : k);
    (void)snprintf(w, sizeof w, "%d,%d", w_transposed ? n : k, w_transposed ? k : n);
    if (batched)
        (void)snprintf(cuts, sizeof cuts, "((%d,%s),(%d,%s))", batch, x, batch, w);
    else
        (void)snprintf(cuts, sizeof cuts, "((%s),(%s))", x, w);
    weft_graph *g = product(batched, x_transposed, w_transposed);
    weft_plan *plan = mesh_of((int[]){2, 2, 2}); /* what nothing uses computes repeatedly */
    ASSERT_OK(weft_plan_split_op(plan, "product:matmul", cuts));
    weft_session *s = session_of(g, plan);
    for (int r = 0; r < weft_session_devices(s); r++) {
        counts c = forward_transfers(s, r);
        bool any = c.all_reduce || c.all_gather || c.reduce_scatter || c.others;
        bool sums = c.all_reduce || c.reduce_scatter;
        if (any != (k > 1) || sums != (k > 1))
            fail_msg("%s, rank %d: %d all-reduce, %d all-gather, %d reduce-scatter, %d others",
                     cuts, r, c.all_reduce, c.all_gather, c.reduce_scatter, c.others);
    }
    run_both(cuts, g, s);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

static void every_way_to_share_out_a_product(void **state) {
    (void)state;
    int tried = 0;
    for (int way = 0; way < 8; way++)
        for (int m = 1; m <= 8; m *= 2)
            for (int k = 1; m * k <= 8; k *= 2)
                for (int n = 1; m * k * n <= 8; n *= 2)
                    for (int batch = 1; m * k * n * batch <= (way & 4 ? 8 : m * k * n);
                         batch *= 2) {
                        if ((way & 4) && m * k * n * batch < 8)
                            continue; /* enough with all eight */
                        check_product((int[]){m, k, n, batch}, way & 4, way & 2, way & 1);
                        tried++;
                    }
    assert_int_equal(tried, 4 * 20 + 4 * 20);
}

/* ---- chains ---- */

typedef struct chain {
    const char *what;
    int sizes[3];
    bool relus, one_cell;
    const char *said[5]; /* of products and activations in turn, NULL: nothing */
    bool counted;
    counts want;
} chain;

static const chain chains[] = {
    {"rows, rows, columns",
     {2, 4},
     true,
     false,
     {"((2,4),(4,1))", "((4,1))", "((1,8),(8,1))", "((8,1),)", NULL},
     false,
     {0}},
    {"rows and columns twice",
     {2, 4},
     true,
     false,
     {"((2,4),(4,1))", "((2,4))", "((2,4),(4,1))", "((2,4))", NULL},
     false,
     {0}},
    {"from rows to columns",
     {4},
     false,
     false,
     {"((4,1),(1,1))", NULL, "((1,1),(1,4))", NULL, NULL},
     true,
     {.all_gather = 1}},
    {"from columns to rows",
     {4},
     false,
     false,
     {"((1,1),(1,4))", NULL, "((4,1),(1,1))", NULL, NULL},
     true,
     {.others = 1}},
    {"whole is what is cut into one",
     {4},
     false,
     false,
     {"((4,1),(1,1))", NULL, "((1,1),(1,1))", NULL, NULL},
     true,
     {.all_gather = 1}},
    {"columns, then rows",
     {2, 2},
     false,
     false,
     {"((2,1),(1,2))", NULL, "((2,2),(2,1))", NULL, NULL},
     true,
     {.all_reduce = 1}},
    {"a sum scattered over axes in another order",
     {2, 2, 2},
     true,
     true,
     {"m=c k=b+a", "d0=c+b+a", NULL, NULL, NULL},
     true,
     {.reduce_scatter = 1}},
    {"a sum scattered, said of the product itself",
     {2, 2, 2},
     false,
     false,
     {"((2,4),(4,1)) -> [a+b+c, -]", NULL, "m=a+b+c -> [-, -]", NULL, NULL},
     true,
     {.reduce_scatter = 1, .all_gather = 1}},
    {"results that are not where they came",
     {2, 2, 2},
     true,
     true,
     {"m=c k=b+a -> [a, c+b]", "-> [b, -]", "n=a -> [a+b, c]", "d1=a -> [-, -]", "-> [c+b+a, -]"},
     false,
     {0}},
    {"tensor parallelism in two dimensions",
     {2, 4},
     true,
     false,
     {"k=a n=b", "d1=b", "k=b n=a", "d1=a+b", NULL},
     false,
     {0}},
    {"tensor parallelism in three dimensions",
     {2, 2, 2},
     true,
     false,
     {"m=c k=a n=b", "d0=c d1=b", "m=c k=b n=a -> [c+b, a]", "d0=c+b d1=a", NULL},
     false,
     {0}},
    {"several axes on one dimension, the inner one first",
     {2, 2, 2},
     true,
     false,
     {"k=c+a n=b", "d0=b d1=a+c", "m=a k=c+b", "d1=c+b+a", "n=b+a"},
     false,
     {0}},
    {"less devices than there are",
     {2, 3},
     true,
     false,
     {"((2,1),(1,1))", "((1,3))", "((1,1),(1,3))", NULL, "((6,1),(1,1))"},
     false,
     {0}},
};

static weft_graph *layers(const chain *c) {
    enum { ROWS = 16, WIDTH = 32 };
    static const char *const names[] = {"m0", "r0", "m1", "r1", "m2"};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value y = weft_input(g, "x", numbers(2, (int64_t[]){ROWS, WIDTH}));
    if (c->one_cell) weft_cell_begin(g, "all");
    for (int l = 0; l < 5; l++) {
        if ((l % 2 && !c->relus) || (l == 4 && !c->relus)) continue;
        weft_cell_begin(g, "%s", names[l]);
        if (l % 2)
            y = weft_relu(g, y);
        else
            y = weft_matmul(g, y,
                            weft_param(g, "w", numbers(2, (int64_t[]){l ? 16 : WIDTH, 16}), normal),
                            false, false);
        y = weft_cell_end(g, y);
    }
    if (c->one_cell) y = weft_cell_end(g, y);
    weft_output(g, "y", y);
    weft_cell_begin(g, "loss");
    weft_loss(g, weft_cell_end(g, weft_mean(g, weft_mul(g, y, y), 0, NULL, false)));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static weft_plan *plan_of(const chain *c) {
    static const char *const names[] = {"*m0:matmul", "*r0:relu", "*m1:matmul", "*r1:relu",
                                        "*m2:matmul"};
    weft_plan *plan = mesh_of(c->sizes);
    for (int l = 0; l < 5; l++)
        if (c->said[l]) ASSERT_OK(weft_plan_split_op(plan, names[l], c->said[l]));
    return plan;
}

static void documented_chains(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        weft_graph *g = layers(&chains[i]);
        weft_plan *plan = plan_of(&chains[i]);
        weft_session *s = session_of(g, plan);
        if (chains[i].counted) assert_transfers(chains[i].what, s, chains[i].want);
        run_both(chains[i].what, g, s);
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* ---- the network of the documentation's quick start ---- */

/* All transfers of the forward pass are between ranks that have the same rows. */
static void assert_row_groups(const weft_session *s, int rank) {
    const wefti_program *p = wefti_session_program_of(s, 0, rank);
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][i];
        wefti_step_transfer t;
        if (!strcmp(step->name, "loss") || strcmp(wefti_phase_text(step), "forward") != 0) continue;
        for (int32_t at = 0; wefti_step_transfer_next(p, step, &at, &t);) {
            assert_int_equal(t.transfer->members, 4);
            for (int32_t m = 0; m < 4; m++)
                assert_int_equal(t.transfer->ranks[m], rank / 4 * 4 + m);
        }
    }
}

static void assert_local(const weft_session *s, int rank, const char *name, int64_t rows,
                         int64_t columns) {
    const wefti_tensor *t = wefti_program_tensor(wefti_session_program_of(s, 0, rank), name);
    assert_non_null(t);
    assert_int_equal(t->desc.shape[0], rows);
    assert_int_equal(t->desc.shape[1], columns);
}

/* X [16, 32]; two products cut by ((2,4),(4,1)) and the activation between them cut by ((2,4)), on
 * 8 ranks. Pieces are (8, 8) (8, 16), then (8, 4) (4, 16). Sums run over ranks 0 to 3 and 4 to 7;
 * the activation takes its part of each sum. */
static void the_quick_start_network(void **state) {
    (void)state;
    weft_graph *g;
    weft_plan *plan = mesh_of((int[]){2, 4, 0});
    weft_session_options o = weft_session_defaults();
    weft_session *s[2];
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", numbers(2, (int64_t[]){16, 32}));
    weft_value target = weft_input(g, "target", numbers(2, (int64_t[]){16, 16}));
    for (int l = 0; l < 2; l++) {
        weft_cell_begin(g, "m%d", l);
        weft_value w = weft_param(g, "w", numbers(2, (int64_t[]){l ? 16 : 32, 16}), normal);
        x = weft_cell_end(g, weft_matmul(g, x, w, false, false));
        if (l) break;
        weft_cell_begin(g, "r0");
        x = weft_cell_end(g, weft_relu(g, x));
    }
    weft_output(g, "y", x);
    weft_cell_begin(g, "loss");
    weft_loss(g, weft_cell_end(g, weft_mse(g, x, target)));
    ASSERT_OK(weft_plan_split_op(plan, "m?:matmul", "((2,4),(4,1))"));
    ASSERT_OK(weft_plan_split_op(plan, "r0:relu", "((2,4))"));
    ASSERT_OK(weft_plan_split_tensor(plan, "x", "[a, b]"));
    o.optimizer = (weft_optimizer){.kind = WEFT_MOMENTUM, .momentum = 0.1};
    o.threads = 1;
    for (int many = 0; many < 2; many++) {
        o.plan = many ? plan : NULL;
        ASSERT_OK(weft_session_create(g, &o, &s[many]));
    }
    for (int r = 0; r < 8; r++) {
        assert_local(s[1], r, "x", 8, 8);
        assert_local(s[1], r, "m0.w", 8, 16);
        assert_local(s[1], r, "m1.w", 4, 16);
        assert_row_groups(s[1], r);
    }
    assert_transfers("quick start", s[1], (counts){.all_reduce = 2});
    double first = 0, want = 0, is = 0;
    for (int step = 0; step < 10; step++) {
        feed(s[0], 0);
        feed(s[1], 0);
        ASSERT_OK(weft_session_step(s[0], 0.2, &want));
        ASSERT_OK(weft_session_step(s[1], 0.2, &is)); /* one number; all ranks have a copy */
        if (!(fabs(is - want) <= 1e-11)) fail_msg("loss %d is %.17g, not %.17g", step, is, want);
        if (step == 0) first = want;
    }
    assert_true(want < first);
    ASSERT_OK(weft_session_check_replicas(s[1]));
    compare("quick start", s[0], s[1]);
    for (int many = 0; many < 2; many++) weft_session_destroy(s[many]);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* ---- one block of several ---- */

/* Three blocks of two layers. dp splits the batch, and tp splits the hidden units of one block. */
static weft_graph *blocks(void) {
    enum { ROWS = 10, WIDTH = 8, HIDDEN = 12 };
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value y = weft_input(g, "x", numbers(2, (int64_t[]){ROWS, WIDTH}));
    for (int b = 0; b < 3; b++) {
        weft_cell_begin(g, "block%d", b);
        for (int l = 0; l < 2; l++) {
            int64_t in = l ? HIDDEN : WIDTH, out = l ? WIDTH : HIDDEN;
            weft_cell_begin(g, "dense%d", l);
            weft_value w = weft_param(g, "weight", numbers(2, (int64_t[]){in, out}), normal);
            weft_value bias = weft_param(g, "bias", numbers(1, &out), normal);
            y = weft_cell_end(g, weft_linear(g, y, w, bias, false));
            if (l == 0) y = weft_gelu(g, y);
        }
        y = weft_cell_end(g, y);
    }
    weft_output(g, "y", y);
    weft_cell_begin(g, "loss");
    weft_loss(g, weft_cell_end(g, weft_mean(g, weft_mul(g, y, y), 0, NULL, false)));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

/* The part of a parameter that a device has. */
static void assert_size(const weft_session *s, int rank, const char *name, int64_t rows,
                        int64_t columns) {
    const wefti_program *p = wefti_session_program_of(s, 0, rank);
    const wefti_tensor *t = wefti_program_tensor(p, name);
    assert_non_null(t);
    assert_int_equal(t->desc.shape[0], rows);
    assert_int_equal(t->desc.shape[1], columns);
}

static void a_block_is_split_and_the_others_follow(void **state) {
    (void)state;
    weft_plan *plan;
    weft_graph *g = blocks();
    ASSERT_OK(weft_plan_create(8, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", 2));
    ASSERT_OK(weft_plan_axis(plan, "tp", 4));
    ASSERT_OK(weft_plan_split_op(plan, "block1.dense0:linear", "((2,1),(1,4),(4,))"));
    ASSERT_OK(weft_plan_split_tensor(plan, "block1.dense1.weight", "[tp, -]"));
    ASSERT_OK(weft_plan_split_op(plan, "block1.dense1:linear", "m0=dp k=tp -> [dp+tp, -]"));
    weft_session *s = session_of(g, plan);
    for (int r = 0; r < 8; r++) {
        assert_size(s, r, "block0.dense0.weight", 8, 12);
        assert_size(s, r, "block1.dense0.weight", 8, 3);
        assert_size(s, r, "block1.dense1.weight", 3, 8);
        assert_size(s, r, "block2.dense1.weight", 12, 8);
    }
    assert_true(forward_transfers(s, 0).reduce_scatter == 1);
    run_both("a block", g, s);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* The text of a rank's program, without the strategies. */
static char *program_text(const chain *c, int rank) {
    weft_graph *g = layers(c);
    weft_plan *plan = plan_of(c);
    weft_session *s = session_of(g, plan);
    char *text;
    ASSERT_OK(wefti_program_print(wefti_session_program_of(s, 0, rank), plan, &text));
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return text;
}

static void cuts_and_axes_say_the_same(void **state) {
    (void)state;
    static const chain pairs[][2] = {
        {{.sizes = {2, 4}, .relus = true, .said = {"((2,4),(4,1))", "((2,4))", "((2,1),(1,4))"}},
         {.sizes = {2, 4}, .relus = true, .said = {"m=a k=b", "d0=a d1=b", "m=a n=b"}}},
        {{.sizes = {2, 2, 2}, .relus = true, .said = {"((4,2),(2,1))", "((8,1))", "((2,1),(1,4))"}},
         {.sizes = {2, 2, 2},
          .relus = true,
          .said = {"m=a+b k=c", "0=a+b+c", "in0.0=a out0.1=b+c"}}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int rank = 0; rank < 8; rank++) {
            char *cuts = program_text(&pairs[i][0], rank), *axes = program_text(&pairs[i][1], rank);
            assert_non_null(strstr(cuts, "m1"));
            assert_string_equal(cuts, axes);
            wefti_free(cuts);
            wefti_free(axes);
        }
}

/* Each required input has its own cuts: fewer would leave one to chance. */
static void too_few_cuts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *cuts;
        bool accepted;
    } cases[] = {
        {"((2,1))", false},
        {"((2,1),(1,4))", true},
        {"((2,1),(1,4),(4,))", true},
        {"((1,2),)", false},
        {"((2,1),(1,4),(4,),(1,))", false},
        {"((2,1),(4,))", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_plan *plan = mesh_of((int[]){2, 4, 0});
        weft_graph *g = blocks();
        weft_session *s = NULL;
        weft_session_options o = weft_session_defaults();
        o.plan = plan;
        ASSERT_OK(weft_plan_split_op(plan, "block1.dense0:linear", cases[i].cuts));
        weft_status status = weft_session_create(g, &o, &s);
        if ((status == WEFT_OK) != cases[i].accepted)
            fail_msg("%s: %s", cases[i].cuts, weft_error_message());
        if (status < 0) assert_non_null(strstr(weft_error_message(), "block1.dense0"));
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

/* MindSpore's dataset_strategy: the parts of each input, by its rules. The results are those of one
 * device. */
static void inputs_are_cut_by_tuples(void **state) {
    (void)state;
    static const struct {
        const char *cuts;
        int64_t rows, columns; /* of x, [10, 8], on rank 0 */
    } cases[] = {{"((2,1))", 5, 8},
                 {"((1,4),)", 10, 2},
                 {"((1,8))", 10, 1},
                 {"((1,2),())", 10, 4},
                 {"((1,1))", 10, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_plan *plan, *copy;
        char *text;
        weft_graph *g = blocks();
        ASSERT_OK(weft_plan_create(8, &plan));
        ASSERT_OK(weft_plan_axis(plan, "dp", 2));
        ASSERT_OK(weft_plan_axis(plan, "tp", 4));
        ASSERT_OK(weft_plan_dataset_cuts(plan, cases[i].cuts));
        ASSERT_OK(weft_plan_check(plan));
        weft_session *s = session_of(g, plan);
        assert_size(s, 0, "x", cases[i].rows, cases[i].columns);
        run_both(cases[i].cuts, g, s);
        ASSERT_OK(weft_plan_print(plan, &text)); /* and a plan file holds them */
        ASSERT_OK(weft_plan_parse("copy", text, (int64_t)strlen(text), &copy));
        weft_text_free(text);
        ASSERT_OK(weft_plan_diff(plan, copy, &text));
        assert_string_equal(text, "");
        weft_text_free(text);
        weft_plan_destroy(copy);
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

static void tuples_of_inputs_have_rules(void **state) {
    (void)state;
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(8, &plan));
    ASSERT_OK(weft_plan_dataset_cuts(plan, "((1,1,1,8),(8,))"));
    ASSERT_OK(weft_plan_dataset_cuts(plan, "((1,1,1,4),(1,))"));
    ASSERT_FAILS(WEFT_E_ARG, "2 dimensions|input 0",
                 weft_plan_dataset_cuts(plan, "((1,1,4,2),(1,))"));
    ASSERT_FAILS(WEFT_E_ARG, "1 parts|8", weft_plan_dataset_cuts(plan, "((1,1,1,1),(8,))"));
    ASSERT_FAILS(WEFT_E_ARG, "dataset", weft_plan_dataset_cuts(plan, "data_parallel"));
    ASSERT_FAILS(WEFT_E_ARG, "dataset", weft_plan_dataset_cuts(plan, "((1,x))"));
    ASSERT_FAILS(WEFT_E_ARG, "dataset", weft_plan_dataset_cuts(plan, NULL));
    ASSERT_OK(weft_plan_dataset_cuts(plan, "((3,1))")); /* of 8 devices */
    ASSERT_FAILS(WEFT_E_ARG, "dataset|3", weft_plan_check(plan));
    ASSERT_OK(weft_plan_dataset_cuts(plan, "((2,1))"));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_MANUAL));
    ASSERT_FAILS(WEFT_E_ARG, "dataset|manual", weft_plan_check(plan));
    ASSERT_OK(weft_plan_dataset(plan, WEFT_DATASET_DATA_PARALLEL));
    ASSERT_OK(weft_plan_check(plan));
    weft_plan_destroy(plan);

    static const char *const wrong[] = {"((2,1),(2,1))", "((2,))", "((1,1,1))"};
    for (int i = 0; i < 3; i++) {
        weft_session *s = NULL;
        weft_session_options o = weft_session_defaults();
        weft_graph *g = blocks();
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_dataset_cuts(plan, wrong[i]));
        o.plan = plan;
        ASSERT_FAILS(WEFT_E_LAYOUT, "dataset", weft_session_create(g, &o, &s));
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_share_out_a_product),
        cmocka_unit_test(documented_chains),
        cmocka_unit_test(the_quick_start_network),
        cmocka_unit_test(a_block_is_split_and_the_others_follow),
        cmocka_unit_test(cuts_and_axes_say_the_same),
        cmocka_unit_test(too_few_cuts_are_refused),
        cmocka_unit_test(inputs_are_cut_by_tuples),
        cmocka_unit_test(tuples_of_inputs_have_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
