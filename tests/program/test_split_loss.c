/* Loss heads chunk by chunk, with gradients and forward only, on one device and over split
 * vocabularies. They give the result of the uncut head. No chunk has more logits than allowed. The
 * devices exchange as many bytes as without chunks. Memory falls by the size of the logits. */
#include "support.h"

#include "backend/cpu/tuning.h"
#include "ops/common.h"
#include "rewrite/rewrite.h"
#include "program/spmd.h"
#include "session/session_models.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};

/* ---- in double, in lockstep ---- */

typedef struct head {
    int rank; /* of x */
    bool transposed, bias, frozen_weight, frozen_bias, frozen_input, reads_lse;
    bool whole_weight; /* each device has all of it */
    bool forward;      /* no gradients */
    int losses;        /* of the same x, each with a weight of its own; 0: one */
    int64_t ignore;
    double smoothing;
} head;

enum { BATCH = 2, SEQ = 13, WIDTH = 5, CLASSES = 17, MOST_HERE = 20, MOST_OPERANDS = 8 };

static weft_value backward(weft_graph *g, const weft_op_def *op, weft_value a, weft_value b,
                           const head *h, bool dims) {
    wefti_attr attrs[] = {WEFTI_I(transposed, h->transposed), WEFTI_I(dims, 1)};
    return wefti_graph_add1(g, op, 2, (weft_value[]){a, b}, dims ? 2 : 1, attrs);
}

/* The nodes that differentiation makes of linear and cross_entropy. Returns the gradient of x. */
static weft_value add_loss(weft_graph *g, const head *h, int number, weft_value x,
                           const int64_t *rows, weft_value dloss) {
    char name[6][16];
    static const char *const names[] = {"w", "targets", "bias", "loss", "dw", "lse"};
    for (int i = 0; i < 6; i++)
        (void)snprintf(name[i], sizeof *name, number ? "%s%d" : "%s", names[i], number);
    weft_value w =
        weft_input(g, name[0], h->transposed ? matrix(CLASSES, WIDTH) : matrix(WIDTH, CLASSES));
    weft_value targets = weft_input(g, name[1], weft_desc_of(WEFT_I32, h->rank - 1, rows));
    weft_value bias = h->bias ? weft_input(g, name[2], vector(CLASSES)) : WEFT_NO_VALUE;
    weft_value logits = weft_linear(g, x, w, bias, h->transposed), made[3], dlogits, dx;
    wefti_attr attrs[] = {WEFTI_I(ignore, h->ignore), WEFTI_F(smoothing, h->smoothing)};
    wefti_graph_add(g, &weft_op_cross_entropy, 2, (weft_value[]){logits, targets}, 2, attrs, 3,
                    made);
    weft_output(g, name[3], made[0]);
    if (h->reads_lse) weft_output(g, name[5], weft_scale(g, made[1], 0.5));
    if (h->forward) return WEFT_NO_VALUE;
    dlogits = wefti_graph_add1(g, &weft_op_cross_entropy_grad, 5,
                               (weft_value[]){logits, targets, made[1], made[2], dloss}, 2, attrs);
    dx = h->frozen_input ? WEFT_NO_VALUE
                         : backward(g, &weft_op_linear_grad_input, dlogits, w, h, false);
    if (!h->frozen_weight)
        weft_output(g, name[4], backward(g, &weft_op_linear_grad_weight, x, dlogits, h, true));
    if (h->bias && !h->frozen_bias) {
        weft_desc to = weft_value_desc(g, bias);
        (void)snprintf(name[2], sizeof *name, "dbias%d", number);
        weft_output(g, name[2], wefti_op_sum_to(g, dlogits, &to));
    }
    return dx;
}

/* Losses, their gradients, and the values of their operands. */
static void open_head(const head *h, op_graph *out) {
    int64_t rows[] = {BATCH, SEQ, WIDTH};
    weft_graph *g;
    *out = (op_graph){0};
    ASSERT_OK(wefti_graph_create(wefti_builtin_ops(), &g));
    out->graph = g;
    if (h->rank == 2) rows[0] = SEQ, rows[1] = WIDTH;
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, h->rank, rows));
    weft_value dloss = weft_input(g, "dloss", weft_desc_of(WEFT_F32, 0, NULL));
    weft_value dx = add_loss(g, h, 0, x, rows, dloss);
    for (int more = 1; more < h->losses; more++) {
        weft_value also = add_loss(g, h, more, x, rows, dloss);
        if (dx.id >= 0) dx = weft_add(g, dx, also);
    }
    if (dx.id >= 0) weft_output(g, "dx", dx);
    if (h->forward) weft_output(g, "scale", weft_scale(g, dloss, 2));
    ASSERT_OK(weft_graph_status(g));
    const weft_body *b = g->root;
    for (int64_t i = 0; i < b->in_count; i++) {
        const weft_desc *d = &b->values[b->in[i]].desc;
        operand o = {.desc = *d, .style = d->dtype == WEFT_I32 ? '<' : 0, .below = CLASSES};
        int64_t count = weft_desc_elems(d);
        out->in[i] = new_values(d);
        for (int64_t e = 0; e < count; e++) out->in[i][e] = draw(&o, 7, (uint64_t)i, e, count);
    }
    for (int64_t o = 0; o < b->out_count; o++) out->out[o] = new_values(&b->values[b->out[o]].desc);
    ASSERT_OK(wefti_interpret(b, &stream, (const double *const *)out->in, out->out));
}

/* A mesh of rows x vocabulary. Operands have the layouts of a plan for it: x, dloss, and for each
 * loss weight, targets, bias. */
static void layouts(const head *h, int dp, wefti_layout *in) {
    int8_t tp = dp > 1 ? 1 : 0;
    int rows = h->rank - 2; /* the last of them: pieces are uneven */
    wefti_dim_split by_rows = {.count = dp > 1, .axis = {0}},
                    by_classes = {.count = !h->whole_weight, .axis = {tp}};
    *in = wefti_layout_replicated(h->rank);
    in->dim[rows] = by_rows;
    *++in = wefti_layout_replicated(0);
    for (int loss = 0; loss == 0 || loss < h->losses; loss++) {
        *++in = wefti_layout_replicated(2);
        in->dim[!h->transposed] = by_classes;
        *++in = wefti_layout_replicated(h->rank - 1);
        in->dim[rows] = by_rows;
        if (!h->bias) continue;
        *++in = wefti_layout_replicated(1);
        in->dim[0] = by_classes;
    }
}

static int chunks_in(const weft_body *b) {
    int parts = 0;
    for (int64_t k = 0; k < b->node_count; k++)
        parts += !strcmp(b->nodes[k].op->name, "cross_entropy_part");
    return parts;
}

static void no_large_logits(const weft_body *b, int64_t whole) {
    for (int64_t k = 0; k < b->node_count; k++) {
        const weft_node *n = &b->nodes[k];
        if (strcmp(n->op->name, "linear") != 0) continue;
        int64_t logits = weft_desc_elems(wefti_out(n, 0)), row = wefti_out(n, 0)->shape[1];
        assert_true(logits <= MOST_HERE || logits == row);
        assert_true(logits < whole);
    }
}

static void same(spmd *s, const char *what) {
    spmd_feed(s, 11);
    if (!spmd_run(s, &stream) || !spmd_compare(s)) fail_msg("%s: %s", what, s->why);
}

static void over_mesh(const head *h, int dp, int tp, const char *what) {
    op_graph whole;
    weft_plan *plan;
    wefti_layout in[MOST_OPERANDS];
    spmd once, chunked;
    wefti_local_body cut[SPMD_RANKS];
    open_head(h, &whole);
    ASSERT_OK(weft_plan_create(dp * tp, &plan));
    if (dp > 1) ASSERT_OK(weft_plan_axis(plan, "rows", dp));
    ASSERT_OK(weft_plan_axis(plan, "tp", tp));
    if (h->whole_weight) ASSERT_OK(weft_plan_split_op(plan, "*:linear", "n0=tp"));
    layouts(h, dp, in);
    if (!spmd_partition(&once, &whole, plan, in)) fail_msg("%s: %s", what, once.why);
    same(&once, what);
    if (!spmd_partition(&chunked, &whole, plan, in)) fail_msg("%s: %s", what, chunked.why);
    int chunks = 0;
    for (int r = 0; r < dp * tp; r++) {
        cut[r] = *chunked.rank[r].cut;
        weft_body *body;
        int64_t x = weft_desc_elems(&cut[r].body->values[cut[r].body->in[0]].desc);
        ASSERT_OK(wefti_chunk_loss(whole.graph, chunked.rank[r].partition, cut[r].body, MOST_HERE,
                                   &body));
        assert_non_null(body);
        ASSERT_OK(wefti_body_check(body));
        no_large_logits(body, x / WIDTH * (CLASSES / tp));
        cut[r].body = body;
        chunked.rank[r].cut = &cut[r];
        /* ranks of equal rows follow each other */
        if (r % tp == 0) chunks += chunks_in(body) - (h->losses ? h->losses : 1);
    }
    same(&chunked, what);
    int sums = WEFTI_TRANSFER_ALL_REDUCE;
    assert_true(chunks > 0);
    bool exchanged = tp > 1 && !h->forward; /* chunk by chunk */
    assert_int_equal(chunked.transfers[sums], once.transfers[sums] + (exchanged ? 2 * chunks : 0));
    assert_int_equal(chunked.bytes, once.bytes);
    spmd_close(&once);
    spmd_close(&chunked);
    for (int r = 0; r < dp * tp; r++) wefti_body_destroy(cut[r].body);
    weft_plan_destroy(plan);
    op_graph_close(&whole);
}

static void chunks_give_what_the_whole_gives(void **state) {
    (void)state;
    static const int meshes[][2] = {{1, 1}, {3, 1}, {1, 2}, {1, 3}, {1, 8}, {2, 2}, {2, 4}, {3, 2}};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (unsigned v = 0; v < 36; v++) {
            char what[80];
            head h = {.rank = v & 1 ? 3 : 2,
                      .transposed = v & 2,
                      .bias = v & 4,
                      .ignore = v % 3 ? 5 : -100,
                      .smoothing = v & 8 ? 0.1 : 0,
                      .frozen_weight = v == 21,
                      .frozen_input = v == 22,
                      .frozen_bias = v == 23,
                      .reads_lse = v > 16 && v < 32,
                      .forward = v >= 24 && v < 34,
                      .losses = v >= 30 ? 2 : 1,
                      .whole_weight = v == 19 || v == 20};
            (void)snprintf(what, sizeof what, "rows %d x vocabulary %d, variant %u", meshes[m][0],
                           meshes[m][1], v);
            over_mesh(&h, meshes[m][0], meshes[m][1], what);
        }
}

/* Logits that another node also reads stay whole. */
static void others_stay(void **state) {
    (void)state;
    for (int few = 0; few < 2; few++) {
        head h = {.rank = 2, .ignore = -100};
        op_graph whole;
        weft_plan *plan;
        wefti_layout in[MOST_OPERANDS];
        spmd s;
        weft_body *body;
        open_head(&h, &whole);
        if (!few)
            ASSERT_OK(wefti_root_output(whole.graph, "logits", whole.graph->root->nodes[0].out[0]));
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", 2));
        layouts(&h, 1, in);
        if (!spmd_partition(&s, &whole, plan, in)) fail_msg("%s", s.why);
        ASSERT_OK(wefti_chunk_loss(whole.graph, s.rank[0].partition, s.rank[0].cut->body,
                                   few ? SEQ * CLASSES : MOST_HERE, &body));
        assert_null(body);
        spmd_close(&s);
        weft_plan_destroy(plan);
        op_graph_close(&whole);
    }
}

/* On one device chunks do not change the loss, bit for bit. */
static void the_loss_is_the_same(void **state) {
    (void)state;
    for (unsigned v = 0; v < 16; v++) {
        head h = {.rank = 3,
                  .ignore = v & 1 ? 5 : -100,
                  .smoothing = v & 2 ? 0.1 : 0,
                  .bias = v & 4,
                  .forward = v & 8};
        op_graph whole;
        weft_body *body;
        double *out[8];
        open_head(&h, &whole);
        const weft_body *b = whole.graph->root;
        ASSERT_OK(wefti_chunk_loss(whole.graph, NULL, b, MOST_HERE, &body));
        assert_non_null(body);
        assert_int_equal(chunks_in(body), BATCH * SEQ);
        for (int64_t o = 0; o < b->out_count; o++) out[o] = new_values(&b->values[b->out[o]].desc);
        ASSERT_OK(wefti_interpret(body, &stream, (const double *const *)whole.in, out));
        assert_memory_equal(out[0], whole.out[0], sizeof(double));
        for (int64_t o = 0; o < b->out_count; o++) free(out[o]);
        wefti_body_destroy(body);
        op_graph_close(&whole);
    }
}

/* ---- a gpt2 with logits that take most of its memory ---- */

/* Rows of a microbatch: just enough that two devices have more logits than one chunk may hold. */
enum { VOCAB = 50257, CONTEXT = 352, SAMPLES = 4, MICROBATCHES = 2 };
_Static_assert((int64_t)SAMPLES *CONTEXT *(VOCAB / 2) > WEFTI_CHUNK_LOGITS, "nothing to cut");

static weft_session *open_gpt2(int tp, weft_graph **graph) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 1,
                           .hidden = 8,
                           .heads = 2,
                           .ffn = 16,
                           .context = CONTEXT,
                           .vocab = VOCAB};
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    weft_session *s;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, SAMPLES, 0, WEFT_F32, graph));
    if (tp > 1) {
        ASSERT_OK(weft_plan_create(tp, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", tp));
        ASSERT_OK(weft_plan_split_tensor(plan, "wte.weight", "[tp, -]"));
    }
    o.plan = plan;
    o.threads = 2;
    o.seed = 9;
    o.microbatches = MICROBATCHES; /* the second microbatch's gradients are added to the first's */
    o.optimizer = (weft_optimizer){.kind = WEFT_SGD}; /* weights change in proportion to their
                                                       * gradients */
    ASSERT_OK(weft_session_create(*graph, &o, &s));
    weft_plan_destroy(plan);
    return s;
}

/* Validation takes no more memory than training. Returns its loss of the first microbatch. */
static double validate(weft_session *s, const char *what) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 1,
                           .hidden = 8,
                           .heads = 2,
                           .ffn = 16,
                           .context = CONTEXT,
                           .vocab = VOCAB};
    weft_graph *graph;
    int program;
    double loss;
    int64_t before = weft_session_memory_of(s).predicted_peak_bytes;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_EVAL, SAMPLES, 0, WEFT_F32, &graph));
    ASSERT_OK(weft_session_add(s, graph, &program));
    int64_t after = weft_session_memory_of(s).predicted_peak_bytes;
    if (after > before)
        fail_msg("%s: training takes %lld bytes, with validation %lld", what, (long long)before,
                 (long long)after);
    feed_rows(s, program, 0, 0);
    ASSERT_OK(weft_session_forward(s, program, &loss));
    weft_graph_destroy(graph);
    return loss;
}

/* One step; returns the losses of its microbatches. The rate is chosen so that weights change by
 * tenths. */
static void train(weft_session *s, double *losses) {
    double norm;
    for (int micro = 0; micro < MICROBATCHES; micro++) {
        feed_rows(s, 0, 0, micro * SAMPLES);
        ASSERT_OK(weft_session_accumulate(s, &losses[micro]));
    }
    ASSERT_OK(weft_session_update(s, 10, &norm));
}

static void memory_falls(void **state) {
    (void)state;
    weft_graph *one_graph, *graph;
    double want[MICROBATCHES], got[MICROBATCHES];
    weft_session *one = open_gpt2(1, &one_graph), *s = open_gpt2(2, &graph);
    double found[2] = {validate(one, "one device"), validate(s, "two devices")};
    int64_t count, logits = (int64_t)SAMPLES * CONTEXT * (VOCAB / 2) * 4;
    float *before = read_tensor(one, 0, "wte.weight", &count);
    train(one, want);
    train(s, got);
    assert_true(fabs(found[0] / want[0] - 1) < 1e-6 && fabs(found[1] / got[0] - 1) < 1e-6);
    for (int micro = 0; micro < MICROBATCHES; micro++)
        assert_true(fabs(got[micro] / want[micro] - 1) < 1e-5);
    float *a = read_tensor(one, 0, "wte.weight", &count),
          *b = read_tensor(s, 0, "wte.weight", &count);
    float change = 0;
    for (int64_t i = 0; i < count; i++) {
        assert_true(fabsf(a[i] - b[i]) < 1e-4f);
        change = fmaxf(change, fabsf(a[i] - before[i]));
    }
    assert_true(change > 0.1f);
    free(before);
    free(a);
    free(b);
    for (int r = 0; r < 2; r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        assert_int_equal(predicted, observed);
        assert_true(predicted < logits * 3 / 4); /* parameters, activations and all */
    }
    weft_session_destroy(one);
    weft_session_destroy(s);
    weft_graph_destroy(one_graph);
    weft_graph_destroy(graph);
}

/* ---- kernels ---- */

/* The loss of many rows. `asked`: the caller also reads the logits, so they stay whole. */
static double loss_of(weft_dtype dtype, bool asked, int64_t *out_bytes) {
    const int64_t rows = 680, width = 8;
    assert_true(rows * VOCAB > WEFTI_CHUNK_LOGITS);
    weft_graph *g;
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    double loss;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 2;
    o.seed = 3;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, width}));
    weft_value targets = weft_input(g, "targets", weft_desc_of(WEFT_I32, 1, &rows));
    weft_value w = weft_param(g, "w", matrix(VOCAB, width), (weft_init){WEFT_INIT_NORMAL, 1});
    weft_cell_begin(g, "head");
    weft_value y = weft_linear(g, weft_cast(g, x, dtype), w, WEFT_NO_VALUE, true);
    weft_value results[2] = {weft_cross_entropy(g, y, targets, 7, 0.1), y};
    weft_cell_end_many(g, asked ? 2 : 1, results);
    weft_loss(g, results[0]);
    if (asked) weft_output(g, "logits", results[1]);
    ASSERT_OK(weft_graph_status(g));
    ASSERT_OK(weft_session_create(g, &o, &s));
    feed_rows(s, 0, 5, 0);
    ASSERT_OK(weft_session_forward(s, 0, &loss));
    weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    *out_bytes = m.predicted_peak_bytes;
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return loss;
}

static void loss_is_the_same_in(weft_dtype dtype, const char *what) {
    int64_t whole, chunks;
    const double want = loss_of(dtype, true, &whole), is = loss_of(dtype, false, &chunks);
    if (memcmp(&want, &is, sizeof is) != 0)
        fail_msg("%s, %s: %.9g, in chunks %.9g", weft_dtype_text(dtype), what, want, is);
    assert_true(chunks < whole * 2 / 3);
}

/* With products of bf16 both ways, as far as the processor has them. */
static void fast_losses_are_the_same(void **state) {
    (void)state;
    static const wefti_cpu_tuning slower = {.bf16 = WEFTI_BF16_SLOWER},
                                  faster = {.bf16 = WEFTI_BF16_FASTER};
    loss_is_the_same_in(WEFT_F32, "as it is");
    wefti_cpu_tune(&slower);
    loss_is_the_same_in(WEFT_BF16, "products in f32");
    wefti_cpu_tune(&faster);
    if (wefti_kind_has_bf16(wefti_kind_of(0))) loss_is_the_same_in(WEFT_BF16, "products in bf16");
    wefti_cpu_tune(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_give_what_the_whole_gives),
        cmocka_unit_test(others_stay),
        cmocka_unit_test(the_loss_is_the_same),
        cmocka_unit_test(memory_falls),
        cmocka_unit_test(fast_losses_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
