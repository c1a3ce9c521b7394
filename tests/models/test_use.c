/* Models at work: a few steps lower the loss; tokens one at a time or in pieces give the same
 * logits as the whole sequence; evaluation ignores dropout and uses running statistics. */
#include "model_fixture.h"

#include <math.h>

#include "tensor/tensor.h"

static double train(const weft_model_config *c, weft_dtype dtype, int steps, double rate,
                    double *out_first) {
    weft_graph *g = built(c, WEFT_USE_TRAIN, 4, 0, dtype);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_ADAM;
    o.seed = 5;
    weft_session *s;
    double loss = 0;
    ASSERT_OK(weft_session_create(g, &o, &s));
    for (int i = 0; i < steps; i++) {
        feed_all(s, 0, c, 31);
        ASSERT_OK(weft_session_step(s, rate, &loss));
        if (i == 0) *out_first = loss;
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return loss;
}

static void a_few_steps_lower_the_loss(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++)
        for (int half = 0; half < 2; half++) {
            weft_model_config c = tiny((weft_family)family);
            double classes =
                       weft_family_is_language(c.family) ? (double)c.vocab : (double)c.classes,
                   first;
            double last = train(&c, half ? WEFT_BF16 : WEFT_F32, 6, 2e-3, &first);
            /* a fresh model knows nothing: about log(classes) */
            if (!(first > 0.4 * log(classes) && first < 2.5 * log(classes)))
                fail_msg("%s starts at a loss of %g", weft_family_text(c.family), first);
            if (!(last < first))
                fail_msg("%s%s: loss %g after 6 steps, %g before", weft_family_text(c.family),
                         half ? " in bf16" : "", last, first);
        }
}

static void fill_parameters(weft_session *s, double scale) {
    uint64_t seed = 77;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        float *data = malloc((size_t)t.bytes);
        assert_non_null(data);
        for (int64_t k = 0; k < t.bytes / 4; k++)
            data[k] = (float)(scale * (2 * uniform(&seed) - 1)) + (t.desc.rank == 1 ? 1.0f : 0.0f);
        ASSERT_OK(weft_session_write(s, 0, t.name, data, (size_t)t.bytes));
        free(data);
    }
}

/* Token by token, or piece by piece, with caches against all at once. */
enum { BATCH = 2 };

/* `asked` NULL, or numbers of `answers` tokens of the piece, whose logits are computed. */
static void decode_piece(weft_session *s, int program, const int32_t tokens[BATCH][TINY_CONTEXT],
                         int32_t begin, int32_t count, const int32_t *asked, int answers,
                         float *logits) {
    int32_t piece[BATCH * TINY_CONTEXT], places[BATCH * TINY_CONTEXT], begins[BATCH];
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < count; k++) piece[i * count + k] = tokens[i][begin + k];
    for (int k = 0; k < BATCH * count; k++) places[k] = begin + k % count;
    for (int i = 0; i < BATCH; i++) begins[i] = begin;
    weft_tensor_info info;
    ASSERT_OK(weft_session_feed(s, program, "tokens", piece, (size_t)(BATCH * count) * 4));
    ASSERT_OK(weft_session_feed(s, program, "position", begins, sizeof begins));
    if (weft_session_find(s, program, "positions", &info) == WEFT_OK)
        ASSERT_OK(weft_session_feed(s, program, "positions", places, (size_t)(BATCH * count) * 4));
    if (asked) ASSERT_OK(weft_session_feed(s, program, "asked", asked, (size_t)answers * 4));
    ASSERT_OK(weft_session_forward(s, program, NULL));
    ASSERT_OK(weft_session_read(s, program, "logits", logits,
                                (size_t)answers * TINY_VOCAB * sizeof(float)));
}

static void assert_near(const weft_model_config *c, int token, const float *want,
                        const float *got) {
    for (int i = 0; i < TINY_VOCAB; i++)
        if (!(fabs((double)want[i] - (double)got[i]) <= 1e-5 * (1 + fabs((double)want[i]))))
            fail_msg("%s: token %d: %g, not %g", weft_family_text(c->family), token, (double)got[i],
                     (double)want[i]);
}

static void decode(weft_model_config c, int32_t count) {
    weft_graph *whole = built(&c, WEFT_USE_LOGITS, BATCH, TINY_CONTEXT, WEFT_F32);
    weft_graph *part = built(&c, WEFT_USE_DECODE, BATCH, count == 1 ? 0 : count, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    weft_session *s;
    int program, asking;
    enum { ASKED = 3 };
    c.asked = ASKED;
    weft_graph *asked_part = built(&c, WEFT_USE_DECODE, BATCH, count == 1 ? 0 : count, WEFT_F32);
    ASSERT_OK(weft_session_create(whole, &o, &s));
    ASSERT_OK(weft_session_add(s, part, &program));
    ASSERT_OK(weft_session_add(s, asked_part, &asking));
    fill_parameters(s, 0.5);
    int32_t tokens[BATCH][TINY_CONTEXT];
    uint64_t seed = 9;
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < TINY_CONTEXT; k++)
            tokens[i][k] = (int32_t)(uniform(&seed) * TINY_VOCAB);
    float expected[BATCH][TINY_CONTEXT][TINY_VOCAB], logits[BATCH * TINY_CONTEXT * TINY_VOCAB];
    ASSERT_OK(weft_session_feed(s, 0, "tokens", tokens, sizeof tokens));
    ASSERT_OK(weft_session_forward(s, 0, NULL));
    ASSERT_OK(weft_session_read(s, 0, "logits", expected, sizeof expected));
    double spread = 0;
    for (int round = 0; round < 2; round++) /* a second text over the first one's caches */
        for (int32_t begin = 0; begin < TINY_CONTEXT; begin += count) {
            const int32_t(*const text)[TINY_CONTEXT] = (const int32_t(*)[TINY_CONTEXT])tokens;
            decode_piece(s, program, text, begin, count, NULL, BATCH * count, logits);
            for (int at = 0; at < BATCH * count; at++) {
                const int i = at / count, k = begin + at % count;
                assert_near(&c, k, expected[i][k], logits + at * TINY_VOCAB);
                for (int e = 0; e < TINY_VOCAB; e++)
                    spread += fabs((double)expected[i][k][e] - (double)expected[i][0][e]);
            }
            /* the last token, the first one, and the last one again */
            const int32_t asked[ASKED] = {BATCH * count - 1, 0, BATCH * count - 1};
            decode_piece(s, asking, text, begin, count, asked, ASKED, logits);
            for (int a = 0; a < ASKED; a++)
                assert_near(&c, asked[a], expected[asked[a] / count][begin + asked[a] % count],
                            logits + a * TINY_VOCAB);
        }
    assert_true(spread > 1); /* the positions differ: the comparison means something */
    weft_session_destroy(s);
    weft_graph_destroy(whole);
    weft_graph_destroy(part);
    weft_graph_destroy(asked_part);
}

static void pieces_with_caches(void **state) {
    (void)state;
    for (int32_t count = 1; count <= 3; count++) {
        for (int f = 0; f < (int)WEFT_FAMILIES; f++)
            if (wefti_family_has((weft_family)f, WEFTI_GENERATES))
                decode(tiny((weft_family)f), count);
        decode(tiny_full(), count);
    }
}

/* ---- decoding in bf16 ---- */

/* The parameters of `from`, rounded to their types in `to`. */
static void copy_parameters(weft_session *from, weft_session *to) {
    for (int i = 0; i < weft_session_tensors(to, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(to, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        const int64_t elems = weft_desc_elems(&t.desc);
        float *data = malloc((size_t)elems * sizeof *data);
        void *rounded = malloc((size_t)t.bytes);
        ASSERT_OK(weft_session_read(from, 0, t.name, data, (size_t)elems * sizeof *data));
        wefti_convert(t.desc.dtype, rounded, WEFT_F32, data, elems);
        ASSERT_OK(weft_session_write(to, 0, t.name, rounded, (size_t)t.bytes));
        free(data);
        free(rounded);
    }
}

/* Tables and weights of products are what a token reads: they and the caches are bf16. The router,
 * biases and norms stay f32, and so do the logits. */
static void assert_types(const weft_model_config *c, weft_session *s) {
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        const bool cache = t.role == WEFT_ROLE_STATE,
                   weight = t.role == WEFT_ROLE_PARAM && t.desc.rank > 1 &&
                            !strstr(t.name, "bias") && !strstr(t.name, ".gate.");
        if (t.desc.dtype == WEFT_I32) continue;
        if (t.desc.dtype != (cache || weight ? WEFT_BF16 : WEFT_F32))
            fail_msg("%s: %s is %s", weft_family_text(c->family), t.name,
                     weft_dtype_text(t.desc.dtype));
    }
}

/* Each rounding to bf16 is off by up to 0.4 %. Over two layers that is below 3 % of the spread of
 * the logits (root mean squares); a wrong weight or cache is off by all of it. Every expert
 * computes, since a choice among experts may turn over by a rounding. */
static void decode_in_bf16(weft_model_config c, int32_t count) {
    if (c.experts) c.experts_per_token = c.experts;
    weft_graph *whole = built(&c, WEFT_USE_LOGITS, BATCH, 0, WEFT_F32);
    weft_graph *part = built(&c, WEFT_USE_DECODE, BATCH, count, WEFT_BF16);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    weft_session *exact, *s;
    ASSERT_OK(weft_session_create(whole, &o, &exact));
    ASSERT_OK(weft_session_create(part, &o, &s));
    fill_parameters(exact, 0.5);
    copy_parameters(exact, s);
    assert_types(&c, s);
    int32_t tokens[BATCH][TINY_CONTEXT];
    uint64_t seed = 9;
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < TINY_CONTEXT; k++)
            tokens[i][k] = (int32_t)(uniform(&seed) * TINY_VOCAB) % TINY_VOCAB;
    float expected[BATCH][TINY_CONTEXT][TINY_VOCAB], logits[BATCH * TINY_CONTEXT * TINY_VOCAB];
    ASSERT_OK(weft_session_feed(exact, 0, "tokens", tokens, sizeof tokens));
    ASSERT_OK(weft_session_forward(exact, 0, NULL));
    ASSERT_OK(weft_session_read(exact, 0, "logits", expected, sizeof expected));
    double off = 0, spread = 0;
    for (int32_t begin = 0; begin + count <= TINY_CONTEXT; begin += count) {
        decode_piece(s, 0, (const int32_t(*)[TINY_CONTEXT])tokens, begin, count, NULL,
                     BATCH * count, logits);
        for (int at = 0; at < BATCH * count * TINY_VOCAB; at++) {
            const int row = at / TINY_VOCAB, i = row / count, k = begin + row % count;
            const double want = (double)expected[i][k][at % TINY_VOCAB];
            off += pow(want - (double)logits[at], 2);
            spread += pow(want - (double)expected[i][k][(at + 1) % TINY_VOCAB], 2) / 2;
        }
    }
    if (!(sqrt(off / spread) < 0.03))
        fail_msg("%s, %d at once: logits are off by %.4f of their spread",
                 weft_family_text(c.family), count, sqrt(off / spread));
    weft_session_destroy(exact);
    weft_session_destroy(s);
    weft_graph_destroy(whole);
    weft_graph_destroy(part);
}

static void weights_in_bf16(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++)
        for (int32_t count = 1; count <= 3; count += 2)
            if (wefti_family_has((weft_family)f, WEFTI_GENERATES))
                decode_in_bf16(tiny((weft_family)f), count);
    decode_in_bf16(tiny_full(), 1);
}

static double forward_loss(const weft_model_config *c, weft_model_use use) {
    weft_graph *g = built(c, use, 3, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.seed = 12;
    weft_session *s;
    double loss;
    ASSERT_OK(weft_session_create(g, &o, &s));
    feed_all(s, 0, c, 8);
    ASSERT_OK(weft_session_forward(s, 0, &loss));
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return loss;
}

static void dropout_is_for_training(void **state) {
    (void)state;
    static const weft_family with[] = {WEFT_FAMILY_GPT2,   WEFT_FAMILY_LLAMA, WEFT_FAMILY_BERT,
                                       WEFT_FAMILY_VIT,    WEFT_FAMILY_MLP,   WEFT_FAMILY_GPT2_MOE,
                                       WEFT_FAMILY_MIXTRAL};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        weft_model_config c = tiny(with[i]), drops = c;
        drops.dropout = 0.5;
        double plain = forward_loss(&c, WEFT_USE_EVAL);
        assert_true(forward_loss(&c, WEFT_USE_TRAIN) == plain);
        assert_true(forward_loss(&drops, WEFT_USE_EVAL) == plain);
        if (forward_loss(&drops, WEFT_USE_TRAIN) == plain)
            fail_msg("%s: dropout changes nothing", weft_family_text(c.family));
    }
}

/* The loss of one batch; even: the router's weights are 0, so that all experts are as probable. */
static double loss_of_experts(weft_family family, double capacity_factor, double aux_loss,
                              weft_model_use use, bool even) {
    weft_model_config c = tiny(family);
    c.capacity_factor = capacity_factor;
    c.aux_loss = aux_loss;
    weft_graph *g = built(&c, use, 3, 0, WEFT_F64);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.seed = 12;
    weft_session *s;
    double loss;
    ASSERT_OK(weft_session_create(g, &o, &s));
    for (int i = 0; even && i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (!strstr(t.name, ".gate.weight")) continue;
        void *zeros = calloc(1, (size_t)t.bytes);
        ASSERT_OK(weft_session_write(s, 0, t.name, zeros, (size_t)t.bytes));
        free(zeros);
    }
    feed_all(s, 0, &c, 8);
    ASSERT_OK(weft_session_forward(s, 0, &loss));
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return loss;
}

/* Capacity bounds and balancing are for training. With half of the even share, some tokens are
 * dropped; with a slot for every token, none. If all experts are equally probable, the balancing
 * loss is its weight for every choice of experts: for each layer (gpt2-moe) or for each choice
 * (mixtral). */
static void experts_are_balanced_in_training(void **state) {
    (void)state;
    static const weft_family with[] = {WEFT_FAMILY_GPT2_MOE, WEFT_FAMILY_MIXTRAL};
    for (int i = 0; i < 2; i++) {
        double plain = loss_of_experts(with[i], 0, 0, WEFT_USE_EVAL, false);
        assert_true(loss_of_experts(with[i], 0.5, 1, WEFT_USE_EVAL, false) == plain);
        assert_true(loss_of_experts(with[i], 0, 0, WEFT_USE_TRAIN, false) == plain);
        assert_true(loss_of_experts(with[i], 4, 0, WEFT_USE_TRAIN, false) == plain);
        assert_true(loss_of_experts(with[i], 0.5, 0, WEFT_USE_TRAIN, false) != plain);
        assert_true(loss_of_experts(with[i], 0, 0.5, WEFT_USE_TRAIN, false) > plain);
        double even = loss_of_experts(with[i], 0, 0, WEFT_USE_TRAIN, true);
        double more = loss_of_experts(with[i], 0, 0.5, WEFT_USE_TRAIN, true) - even;
        if (!(fabs(more - 0.5 * 2) < 1e-12)) /* 2 layers here, 2 choices there */
            fail_msg("%s: the balancing loss is %.15g", weft_family_text(with[i]), more);
    }
}

/* The llama tensor that a mixtral's expert tensor has a copy of for each expert. */
static const char *twin_of(const char *name, char out[128]) {
    static const char *const parts[][2] = {{"block_sparse_moe.experts.w1", "mlp.gate_proj"},
                                           {"block_sparse_moe.experts.w2", "mlp.down_proj"},
                                           {"block_sparse_moe.experts.w3", "mlp.up_proj"}};
    snprintf(out, 128, "%s", name);
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(name, parts[i][0]);
        if (!at) continue;
        snprintf(out, 128, "%.*s%s%s", (int)(at - name), name, parts[i][1],
                 at + strlen(parts[i][0]));
    }
    return out;
}

/* The weights of a token's experts sum to 1, one or several: a mixtral with equal experts is a
 * llama. */
static void equal_experts_are_one(void **state) {
    (void)state;
    for (int64_t choices = 1; choices <= 3; choices++) {
        weft_model_config c[2] = {tiny(WEFT_FAMILY_LLAMA), tiny(WEFT_FAMILY_MIXTRAL)};
        c[0].rope_theta = c[1].rope_theta = 100;
        c[1].experts_per_token = choices;
        weft_graph *g[2];
        weft_session *s[2];
        weft_session_options o = weft_session_defaults();
        o.optimizer.kind = WEFT_NO_OPTIMIZER;
        float logits[2][2 * TINY_CONTEXT * TINY_VOCAB];
        for (int i = 0; i < 2; i++) {
            g[i] = built(&c[i], WEFT_USE_LOGITS, 2, 0, WEFT_F32);
            ASSERT_OK(weft_session_create(g[i], &o, &s[i]));
            fill_parameters(s[i], 0.5);
        }
        for (int i = 0; i < weft_session_tensors(s[1], 0); i++) {
            weft_tensor_info t, twin;
            char name[128];
            ASSERT_OK(weft_session_tensor(s[1], 0, i, &t));
            if (t.role != WEFT_ROLE_PARAM) continue;
            if (weft_session_find(s[0], 0, twin_of(t.name, name), &twin) < 0) continue;
            char *data = malloc((size_t)t.bytes);
            ASSERT_OK(weft_session_read(s[0], 0, name, data, (size_t)twin.bytes));
            for (int64_t at = twin.bytes; at < t.bytes; at += twin.bytes)
                memcpy(data + at, data, (size_t)twin.bytes);
            ASSERT_OK(weft_session_write(s[1], 0, t.name, data, (size_t)t.bytes));
            free(data);
        }
        for (int i = 0; i < 2; i++) {
            feed_all(s[i], 0, &c[i], 9);
            ASSERT_OK(weft_session_forward(s[i], 0, NULL));
            ASSERT_OK(weft_session_read(s[i], 0, "logits", logits[i], sizeof logits[i]));
            weft_session_destroy(s[i]);
            weft_graph_destroy(g[i]);
        }
        for (size_t k = 0; k < sizeof logits[0] / sizeof *logits[0]; k++)
            if (!(fabsf(logits[0][k] - logits[1][k]) <= 1e-4f * (1 + fabsf(logits[0][k]))))
                fail_msg("%d experts a token: logit %zu is %g, a llama's %g", (int)choices, k,
                         (double)logits[1][k], (double)logits[0][k]);
    }
}

/* Training moves the running statistics a tenth of the way to the statistics of the batch.
 * Evaluation reads them and does not change them. */
static void running_statistics(void **state) {
    (void)state;
    enum { CHANNELS = 4 };
    weft_model_config c = tiny(WEFT_FAMILY_RESNET18);
    weft_graph *train = built(&c, WEFT_USE_TRAIN, 4, 0, WEFT_F32);
    weft_graph *eval = built(&c, WEFT_USE_EVAL, 4, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    int program;
    double loss, before, after;
    float first[CHANNELS], second[CHANNELS], third[CHANNELS];
    ASSERT_OK(weft_session_create(train, &o, &s));
    ASSERT_OK(weft_session_add(s, eval, &program));
    feed_all(s, program, &c, 3);
    ASSERT_OK(weft_session_forward(s, program, &before));
    for (int step = 0; step < 2; step++) { /* the same batch, no learning: the same statistics */
        feed_all(s, 0, &c, 3);
        ASSERT_OK(weft_session_step(s, 0.0, &loss));
        ASSERT_OK(weft_session_read(s, 0, "bn1.running_mean", step ? second : first, sizeof first));
    }
    for (int i = 0; i < CHANNELS; i++) {
        assert_true(first[i] != 0.0f);
        assert_true(fabsf(second[i] - 1.9f * first[i]) <= 1e-5f * fabsf(first[i]) + 1e-8f);
    }
    feed_all(s, program, &c, 3);
    ASSERT_OK(weft_session_forward(s, program, &after));
    assert_true(after != before);
    ASSERT_OK(weft_session_read(s, 0, "bn1.running_mean", third, sizeof third));
    assert_memory_equal(second, third, sizeof third);
    weft_session_destroy(s);
    weft_graph_destroy(train);
    weft_graph_destroy(eval);
}

/* Targets of -1 do not count: bert's loss over two positions of many. */
static void ignored_targets(void **state) {
    (void)state;
    enum { SEQ = TINY_CONTEXT };
    weft_model_config c = tiny(WEFT_FAMILY_BERT);
    weft_graph *g = built(&c, WEFT_USE_EVAL, 1, 0, WEFT_F32);
    weft_graph *h = built(&c, WEFT_USE_LOGITS, 1, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    weft_session *s;
    int program;
    ASSERT_OK(weft_session_create(g, &o, &s));
    ASSERT_OK(weft_session_add(s, h, &program));
    fill_parameters(s, 0.5);
    int32_t tokens[SEQ] = {1, 2, 3, 4, 5, 6}, targets[SEQ] = {-1, 7, -1, -1, 2, -1};
    float logits[SEQ][TINY_VOCAB];
    double loss, expected = 0;
    ASSERT_OK(weft_session_feed(s, 0, "tokens", tokens, sizeof tokens));
    ASSERT_OK(weft_session_feed(s, 0, "targets", targets, sizeof targets));
    ASSERT_OK(weft_session_forward(s, 0, &loss));
    ASSERT_OK(weft_session_feed(s, program, "tokens", tokens, sizeof tokens));
    ASSERT_OK(weft_session_forward(s, program, NULL));
    ASSERT_OK(weft_session_read(s, program, "logits", logits, sizeof logits));
    for (int k = 0; k < SEQ; k++) {
        double sum = 0;
        if (targets[k] < 0) continue;
        for (int v = 0; v < TINY_VOCAB; v++) sum += exp((double)logits[k][v]);
        expected += (log(sum) - (double)logits[k][targets[k]]) / 2;
    }
    assert_true(fabs(loss - expected) <= 1e-5 * (1 + fabs(expected)));
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_graph_destroy(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_steps_lower_the_loss),
        cmocka_unit_test(pieces_with_caches),
        cmocka_unit_test(weights_in_bf16),
        cmocka_unit_test(dropout_is_for_training),
        cmocka_unit_test(experts_are_balanced_in_training),
        cmocka_unit_test(equal_experts_are_one),
        cmocka_unit_test(running_statistics),
        cmocka_unit_test(ignored_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
