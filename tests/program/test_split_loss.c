/* The loss head over a split vocabulary, chunk by chunk: it gives what the uncut head gives, no
 * chunk has more logits than it may, the devices exchange as many bytes as without chunks, and
 * memory falls by what the logits took. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/common.h"
#include "program/fuse.h"
#include "program/spmd.h"
#include "train/session_models.h"

static const wefti_random stream = {.seed = 3, .step = 1, .call_stream = 5};

/* ---- in double, in lockstep ---- */

typedef struct head {
    int rank; /* of x */
    bool transposed, bias, frozen_weight, frozen_bias, frozen_input, reads_lse;
    bool whole_weight; /* each device has all of it */
    int64_t ignore;
    double smoothing;
} head;

enum { BATCH = 2, SEQ = 13, WIDTH = 5, CLASSES = 17, MOST_HERE = 20 };

static weft_value backward(weft_graph *g, const weft_op_def *op, weft_value a, weft_value b,
                           const head *h, bool dims) {
    wefti_attr attrs[] = {WEFTI_I("transposed", h->transposed), WEFTI_I("dims", 1)};
    return wefti_graph_add1(g, op, 2, (weft_value[]){a, b}, dims ? 2 : 1, attrs);
}

/* What differentiation makes of linear and cross_entropy, and the values of its operands. */
static void open_head(const head *h, op_graph *out) {
    int64_t rows[] = {BATCH, SEQ, WIDTH};
    weft_graph *g;
    *out = (op_graph){0};
    ASSERT_OK(wefti_graph_create(wefti_builtin_ops(), &g));
    out->graph = g;
    if (h->rank == 2) rows[0] = SEQ, rows[1] = WIDTH;
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, h->rank, rows));
    weft_value w =
        weft_input(g, "w", h->transposed ? matrix(CLASSES, WIDTH) : matrix(WIDTH, CLASSES));
    weft_value targets = weft_input(g, "targets", weft_desc_of(WEFT_I32, h->rank - 1, rows));
    weft_value dloss = weft_input(g, "dloss", weft_desc_of(WEFT_F32, 0, NULL));
    weft_value bias = h->bias ? weft_input(g, "bias", vector(CLASSES)) : WEFT_NO_VALUE;
    weft_value logits = weft_linear(g, x, w, bias, h->transposed), made[3], dlogits;
    wefti_attr attrs[] = {WEFTI_I("ignore", h->ignore), WEFTI_F("smoothing", h->smoothing)};
    wefti_graph_add(g, &weft_op_cross_entropy, 2, (weft_value[]){logits, targets}, 2, attrs, 3,
                    made);
    dlogits = wefti_graph_add1(g, &weft_op_cross_entropy_grad, 5,
                               (weft_value[]){logits, targets, made[1], made[2], dloss}, 2, attrs);
    weft_output(g, "loss", made[0]);
    if (h->reads_lse) weft_output(g, "lse", weft_scale(g, made[1], 0.5));
    if (!h->frozen_input)
        weft_output(g, "dx", backward(g, &weft_op_linear_grad_input, dlogits, w, h, false));
    if (!h->frozen_weight)
        weft_output(g, "dw", backward(g, &weft_op_linear_grad_weight, x, dlogits, h, true));
    if (h->bias && !h->frozen_bias) {
        weft_desc to = weft_value_desc(g, bias);
        weft_output(g, "dbias", wefti_op_sum_to(g, dlogits, &to));
    }
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

/* A mesh of rows x vocabulary, and operands as a plan for it has them. */
static void layouts(const head *h, int dp, wefti_layout *in) {
    int8_t tp = dp > 1 ? 1 : 0;
    in[0] = wefti_layout_replicated(h->rank);
    in[1] = wefti_layout_replicated(2);
    in[2] = wefti_layout_replicated(h->rank - 1);
    in[3] = wefti_layout_replicated(0);
    in[4] = wefti_layout_replicated(1);
    int rows = h->rank - 2; /* the last of them: pieces are uneven */
    if (dp > 1) in[0].dim[rows] = in[2].dim[rows] = (wefti_dim_split){.count = 1, .axis = {0}};
    if (!h->whole_weight)
        in[1].dim[!h->transposed] = in[4].dim[0] = (wefti_dim_split){.count = 1, .axis = {tp}};
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
    wefti_layout in[5];
    spmd once, chunked;
    wefti_cut_body cut[SPMD_RANKS];
    open_head(h, &whole);
    ASSERT_OK(weft_plan_create(dp * tp, &plan));
    if (dp > 1) ASSERT_OK(weft_plan_axis(plan, "rows", dp));
    ASSERT_OK(weft_plan_axis(plan, "tp", tp));
    if (h->whole_weight) ASSERT_OK(weft_op_split(plan, "*:linear", "n0=tp"));
    layouts(h, dp, in);
    if (!spmd_cut(&once, &whole, plan, in)) fail_msg("%s: %s", what, once.why);
    same(&once, what);
    if (!spmd_cut(&chunked, &whole, plan, in)) fail_msg("%s: %s", what, chunked.why);
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
        if (r % tp == 0) chunks += chunks_in(body) - 1; /* ranks of equal rows follow each other */
    }
    same(&chunked, what);
    int sums = WEFTI_TRANSFER_ALL_REDUCE;
    assert_true(chunks > 0);
    assert_int_equal(chunked.transfers[sums], once.transfers[sums] + 2 * chunks);
    assert_int_equal(chunked.bytes, once.bytes);
    spmd_close(&once);
    spmd_close(&chunked);
    for (int r = 0; r < dp * tp; r++) wefti_body_destroy(cut[r].body);
    weft_plan_destroy(plan);
    op_graph_close(&whole);
}

static void chunks_give_what_the_whole_gives(void **state) {
    (void)state;
    static const int meshes[][2] = {{1, 2}, {1, 3}, {1, 8}, {2, 2}, {2, 4}, {3, 2}};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (unsigned v = 0; v < 24; v++) {
            char what[80];
            head h = {.rank = v & 1 ? 3 : 2,
                      .transposed = v & 2,
                      .bias = v & 4,
                      .ignore = v % 3 ? 5 : -100,
                      .smoothing = v & 8 ? 0.1 : 0,
                      .frozen_weight = v == 21,
                      .frozen_input = v == 22,
                      .frozen_bias = v == 23,
                      .reads_lse = v > 16,
                      .whole_weight = v == 19 || v == 20};
            (void)snprintf(what, sizeof what, "rows %d x vocabulary %d, variant %u", meshes[m][0],
                           meshes[m][1], v);
            over_mesh(&h, meshes[m][0], meshes[m][1], what);
        }
}

/* Logits that are read by something else too stay whole. */
static void others_stay(void **state) {
    (void)state;
    for (int few = 0; few < 2; few++) {
        head h = {.rank = 2, .ignore = -100};
        op_graph whole;
        weft_plan *plan;
        wefti_layout in[5];
        spmd s;
        weft_body *body;
        open_head(&h, &whole);
        if (!few)
            ASSERT_OK(wefti_root_output(whole.graph, "logits", whole.graph->root->nodes[0].out[0]));
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", 2));
        layouts(&h, 1, in);
        if (!spmd_cut(&s, &whole, plan, in)) fail_msg("%s", s.why);
        ASSERT_OK(wefti_chunk_loss(whole.graph, s.rank[0].partition, s.rank[0].cut->body,
                                   few ? SEQ * CLASSES : MOST_HERE, &body));
        assert_null(body);
        spmd_close(&s);
        weft_plan_destroy(plan);
        op_graph_close(&whole);
    }
}

/* ---- a gpt2 whose logits are most of its memory ---- */

enum { VOCAB = 50257, CONTEXT = 256, SAMPLES = 4, STEPS = 2 };

static weft_session *open_gpt2(int tp, weft_graph **graph) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 1,
                           .hidden = 8,
                           .heads = 2,
                           .ffn = 16,
                           .context = 2 * CONTEXT,
                           .vocab = VOCAB};
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    weft_session *s;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, SAMPLES, 0, WEFT_F32, graph));
    if (tp > 1) {
        ASSERT_OK(weft_plan_create(tp, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", tp));
        ASSERT_OK(weft_tensor_split(plan, "wte.weight", "[tp, -]"));
    }
    o.plan = plan;
    o.threads = 2;
    o.seed = 9;
    o.microbatches = 2; /* gradients of the second are added to those of the first */
    ASSERT_OK(weft_session_create(*graph, &o, &s));
    weft_plan_destroy(plan);
    return s;
}

static void train(weft_session *s, double *losses) {
    for (int step = 0; step < STEPS; step++) {
        losses[step] = 0;
        for (int micro = 0; micro < 2; micro++) {
            double loss, norm;
            feed_rows(s, 0, (uint64_t)step, micro * SAMPLES);
            ASSERT_OK(weft_session_accumulate(s, &loss));
            losses[step] += loss / 2;
            if (micro) ASSERT_OK(weft_session_update(s, 1e-2, &norm));
        }
    }
}

static void memory_falls(void **state) {
    (void)state;
    weft_graph *one_graph, *graph;
    double want[STEPS], got[STEPS];
    weft_session *one = open_gpt2(1, &one_graph), *s = open_gpt2(2, &graph);
    train(one, want);
    train(s, got);
    for (int step = 0; step < STEPS; step++) assert_true(fabs(got[step] / want[step] - 1) < 1e-5);
    int64_t count, logits = (int64_t)SAMPLES * 2 * CONTEXT * (VOCAB / 2) * 4;
    float *a = read_tensor(one, 0, "wte.weight", &count),
          *b = read_tensor(s, 0, "wte.weight", &count);
    for (int64_t i = 0; i < count; i++) assert_true(fabsf(a[i] - b[i]) < 1e-4f);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_give_what_the_whole_gives),
        cmocka_unit_test(others_stay),
        cmocka_unit_test(memory_falls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
