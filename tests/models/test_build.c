/* Graphs of all families: known parameter counts, all uses and dtypes, equal blocks stored once,
 * wrong configurations refused by name. */
#include "model_fixture.h"

#include "base/fault.h"
#include "graph/graph.h"
#include "models/models.h"

static int64_t parameters(const weft_graph *g) {
    int64_t sum = 0;
    for (int64_t i = 0; i < g->root->in_count; i++) {
        const wefti_value_info *v = &g->root->values[g->root->in[i]];
        if (v->kind == WEFTI_VALUE_PARAM) sum += weft_desc_elems(&v->desc);
    }
    return sum;
}

static bool has_output(const weft_graph *g, const char *name) {
    for (int64_t i = 0; i < g->output_count; i++)
        if (!strcmp(g->outputs[i].name, name)) return true;
    return false;
}

/* Published counts; the counts of transformers and torchvision for the same configuration. */
static void parameter_counts(void **state) {
    (void)state;
    static const struct {
        weft_model_config config;
        int64_t count;
    } known[] = {
        {{.family = WEFT_FAMILY_GPT2, .vocab = 50257}, 124439808},
        {{.family = WEFT_FAMILY_GPT2, .layers = 48, .hidden = 1600, .heads = 25, .vocab = 50257},
         1557611200},
        {{.family = WEFT_FAMILY_LLAMA,
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .ffn = 11008,
          .context = 4096,
          .vocab = 32000},
         6738415616},
        {{.family = WEFT_FAMILY_LLAMA,
          .layers = 16,
          .hidden = 2048,
          .heads = 32,
          .kv_heads = 8,
          .ffn = 8192,
          .context = 2048,
          .vocab = 128256,
          .tied = true},
         1235814400},
        {{.family = WEFT_FAMILY_LLAMA, /* 32 x (4 x 4096 + 2 x 11008 + 4096) more for biases */
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .ffn = 11008,
          .vocab = 32000,
          .attention_bias = true,
          .mlp_bias = true},
         6738415616 + 32 * (5 * 4096 + 2 * 11008)},
        {{.family = WEFT_FAMILY_LLAMA, /* Mistral Nemo's sizes */
          .layers = 40,
          .hidden = 5120,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 14336,
          .context = 1024,
          .vocab = 131072},
         12247782400},
        {{.family = WEFT_FAMILY_MISTRAL, /* Mistral 7B */
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .ffn = 14336,
          .context = 4096,
          .vocab = 32000},
         7241732096},
        {{.family = WEFT_FAMILY_QWEN2, /* Qwen2.5 0.5B */
          .layers = 24,
          .hidden = 896,
          .heads = 14,
          .kv_heads = 2,
          .ffn = 4864,
          .context = 4096,
          .vocab = 151936,
          .tied = true},
         494032768},
        {{.family = WEFT_FAMILY_QWEN3, /* Qwen3 0.6B */
          .layers = 28,
          .hidden = 1024,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .ffn = 3072,
          .context = 4096,
          .vocab = 151936,
          .tied = true},
         596049920},
        {{.family = WEFT_FAMILY_OLMO2, /* OLMo 2 1B */
          .layers = 16,
          .hidden = 2048,
          .heads = 16,
          .ffn = 8192,
          .context = 4096,
          .vocab = 100352},
         1484916736},
        {{.family = WEFT_FAMILY_BERT, .vocab = 30522}, 109514298},
        {{.family = WEFT_FAMILY_MIXTRAL,
          .layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 8,
          .ffn = 14336,
          .context = 4096,
          .vocab = 32000},
         46702792704},
        /* gpt2's, with 3 feed-forward layers more in each of 12 blocks, and the routers */
        {{.family = WEFT_FAMILY_GPT2_MOE, .vocab = 50257, .experts = 4},
         124439808 + 12 * (3 * (2 * 768 * 3072 + 3072 + 768) + 4 * 768)},
        {{.family = WEFT_FAMILY_VIT, .classes = 1000, .image = {3, 224, 224}}, 86567656},
        {{.family = WEFT_FAMILY_MLP, .classes = 10, .image = {1, 28, 28}},
         785 * 256 + 257 * 256 + 2570},
        {{.family = WEFT_FAMILY_LENET, .classes = 10, .image = {1, 28, 28}}, 61706},
        {{.family = WEFT_FAMILY_LENET, .classes = 10, .image = {1, 32, 32}}, 61706},
        {{.family = WEFT_FAMILY_RESNET18, .classes = 1000, .image = {3, 224, 224}}, 11689512},
        {{.family = WEFT_FAMILY_RESNET50, .classes = 1000, .image = {3, 224, 224}}, 25557032},
        {{.family = WEFT_FAMILY_RESNET18, .classes = 10, .image = {3, 32, 32}}, 11173962},
    };
    bool has[WEFT_FAMILIES] = {false};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        weft_graph *g = built(&known[i].config, WEFT_USE_TRAIN, 2, 0, WEFT_F32);
        has[known[i].config.family] = true;
        if (parameters(g) != known[i].count)
            fail_msg("%s has %lld parameters, not %lld", weft_family_text(known[i].config.family),
                     (long long)parameters(g), (long long)known[i].count);
        weft_graph_destroy(g);
    }
    for (int f = 0; f < (int)WEFT_FAMILIES; f++)
        if (!has[f])
            fail_msg("%s: give it a number of parameters here", weft_family_text((weft_family)f));
}

/* Tables and weights of products but the router's: bf16 to decode in bf16. */
static bool is_read_by_tokens(const wefti_value_info *v) {
    const char *end = strrchr(v->name, '.');
    return v->desc.rank > 1 && end && !strcmp(end, ".weight") && !strstr(v->name, ".gate.");
}

static void all_uses_and_dtypes(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64};
    for (int family = 0; family < (int)WEFT_FAMILIES; family++) {
        weft_model_config c = tiny((weft_family)family);
        c.dropout = 0.1;
        bool language = weft_family_is_language(c.family);
        const bool decodes = wefti_family_has(c.family, WEFTI_GENERATES);
        if (c.experts) c.capacity_factor = 1.25, c.aux_loss = 0.01;
        for (int use = WEFT_USE_TRAIN; use <= WEFT_USE_DECODE; use++)
            for (int d = 0; d < 3; d++) {
                weft_graph *g;
                weft_status status = weft_model_build(&c, (weft_model_use)use, 2, 0, dtypes[d], &g);
                if (use == WEFT_USE_DECODE && !decodes) {
                    assert_int_equal(status, WEFT_E_NO_IMPL);
                    ASSERT_MESSAGE(weft_family_text(c.family));
                    continue;
                }
                if (status < 0) fail_msg("%s", weft_error_message());
                ASSERT_OK(wefti_graph_check(g));
                bool loss = use == WEFT_USE_TRAIN || use == WEFT_USE_EVAL;
                assert_int_equal(g->loss >= 0, loss);
                assert_int_equal(has_output(g, "logits"),
                                 !loss || (use == WEFT_USE_EVAL && !language));
                for (int64_t i = 0; i < g->root->in_count; i++) {
                    const wefti_value_info *v = &g->root->values[g->root->in[i]];
                    if (v->kind != WEFTI_VALUE_PARAM) continue;
                    const weft_dtype dtype = v->desc.dtype;
                    if (use == WEFT_USE_DECODE && dtypes[d] == WEFT_BF16)
                        assert_int_equal(dtype, is_read_by_tokens(v) ? WEFT_BF16 : WEFT_F32);
                    else
                        assert_int_equal(dtype, dtypes[d] == WEFT_F64 ? WEFT_F64 : WEFT_F32);
                }
                weft_graph_destroy(g);
            }
    }
}

/* Activations of a bf16 graph are bf16: nothing widens on the way. */
static void bf16_stays_bf16(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++) {
        weft_model_config c = tiny((weft_family)family);
        weft_graph *g = built(&c, WEFT_USE_LOGITS, 2, 4, WEFT_BF16);
        for (int64_t i = 0; i < g->output_count; i++)
            assert_int_equal(g->root->values[g->outputs[i].value].desc.dtype, WEFT_BF16);
        for (int64_t n = 0; n < g->root->node_count; n++) {
            const weft_node *call = &g->root->nodes[n];
            for (int o = 0; o < call->outputs; o++) {
                const weft_desc *d = &g->root->values[call->out[o]].desc;
                if (d->rank > 1) assert_int_equal(d->dtype, WEFT_BF16);
            }
        }
        weft_graph_destroy(g);
    }
}

/* Of all cells: `op` NULL: in 8 bits; else of this op. */
static int products(const weft_graph *g, const char *op) {
    int count = 0;
    for (int64_t c = 0; c < g->cell_count; c++)
        for (int64_t k = 0; k < g->cells[c]->node_count; k++) {
            const weft_node *n = &g->cells[c]->nodes[k];
            count += op ? !strcmp(n->op->name, op) : wefti_node_is_f8(n);
        }
    return count;
}

/* All products with weights in the block of each family are in 8 bits, but for the router of
 * experts. A family without blocks is refused: nothing of it would be. */
static void products_of_blocks_in_8_bits(void **state) {
    (void)state;
    static const int of_block[WEFTI_STYLES] = {[WEFTI_STYLE_GPT2] = 4,
                                               [WEFTI_STYLE_LLAMA] = 7,
                                               [WEFTI_STYLE_BERT] = 6,
                                               [WEFTI_STYLE_VIT] = 6};
    for (int family = 0; family < (int)WEFT_FAMILIES; family++) {
        const weft_model_config c = tiny((weft_family)family);
        weft_graph *g;
        const weft_status status = wefti_model_build_of(&c, WEFT_USE_TRAIN, 2, 0, WEFT_BF16,
                                                        (wefti_model_form){.f8 = true}, &g);
        if (!wefti_family_has(c.family, WEFTI_HEADS)) {
            assert_int_equal(status, WEFT_E_NO_IMPL);
            ASSERT_MESSAGE(weft_family_text(c.family));
            continue;
        }
        ASSERT_OK(status);
        const int known = of_block[wefti_family_style_of(c.family)]; /* 0: a style of its own */
        assert_true(known ? products(g, NULL) == known : products(g, NULL) > 0);
        assert_int_equal(products(g, "moe_linear") > 0, c.experts > 0);
        weft_graph_destroy(g);
        g = built(&c, WEFT_USE_TRAIN, 2, 0, WEFT_BF16);
        assert_int_equal(products(g, NULL), 0);
        weft_graph_destroy(g);
    }
}

static int64_t cells(weft_family family, int64_t layers, weft_model_use use) {
    weft_model_config c = tiny(family);
    c.layers = layers;
    if (c.experts) c.aux_loss = 0.01;
    weft_graph *g = built(&c, use, 2, 0, WEFT_F32);
    int64_t count = g->cell_count;
    weft_graph_destroy(g);
    return count;
}

static void equal_blocks_are_stored_once(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        const weft_family family = (weft_family)f;
        if (!wefti_family_has(family, WEFTI_EQUAL_BLOCKS)) continue;
        assert_int_equal(cells(family, 96, WEFT_USE_TRAIN), 3); /* embedding, block, head */
        assert_int_equal(cells(family, 1, WEFT_USE_TRAIN), 3);
        if (wefti_family_has(family, WEFTI_GENERATES))
            assert_int_equal(cells(family, 96, WEFT_USE_DECODE), 3);
    }
    assert_int_equal(cells(WEFT_FAMILY_MLP, 40, WEFT_USE_TRAIN), 3); /* first, others, head */
    /* stem, one kind of block in the first stage, two in each other, head */
    assert_int_equal(cells(WEFT_FAMILY_RESNET18, 0, WEFT_USE_TRAIN), 9);
    assert_int_equal(cells(WEFT_FAMILY_RESNET50, 0, WEFT_USE_TRAIN), 10);
}

typedef struct wrong {
    const char *what;
    size_t offset; /* of the field, int64_t */
    int64_t value;
    weft_family family;
} wrong;
#define FIELD(key, member, value, family)                                                          \
    { key, offsetof(weft_model_config, member), value, WEFT_FAMILY_##family }

static void wrong_configurations(void **state) {
    (void)state;
    static const wrong cases[] = {
        FIELD("model.layers", layers, -1, GPT2),
        FIELD("model.hidden", hidden, -8, LLAMA),
        FIELD("model.heads", heads, 3, GPT2),
        FIELD("model.heads", heads, -2, BERT),
        FIELD("model.kv_heads", kv_heads, 3, LLAMA),
        FIELD("model.kv_heads", kv_heads, 1, GPT2),
        FIELD("model.ffn", ffn, -4, VIT),
        FIELD("model.context", context, -1, GPT2),
        FIELD("model.vocab", vocab, 0, BERT),
        FIELD("model.vocab", vocab, INT64_MAX, LLAMA),
        FIELD("model.hidden", hidden, INT64_MAX, LLAMA),
        FIELD("model.head_dim", heads, 16, LLAMA), /* one element a head cannot be rotated */
        FIELD("model.head_dim", head_dim, 7, MIXTRAL),
        FIELD("model.head_dim", head_dim, -2, LLAMA),
        FIELD("model.head_dim", head_dim, 8, GPT2),
        FIELD("model.window|4|0", window, 4, LLAMA),
        FIELD("model.window|-1", window, -1, MISTRAL),
        FIELD("layer 1", window_from, 1, MISTRAL),
        FIELD("layer 1", window_from, 1, QWEN2),
        FIELD("model.classes", classes, 0, RESNET50),
        FIELD("model.image", image[0], 0, RESNET18),
        FIELD("model.image", image[1], 11, LENET),
        FIELD("model.image", image[2], -5, MLP),
        FIELD("model.patch", patch, 5, VIT),
        FIELD("model.patch", patch, -4, VIT),
        FIELD("model.layers", layers, -3, MLP),
        FIELD("model.experts", experts, -1, MIXTRAL),
        FIELD("model.experts", experts, 4, GPT2),
        FIELD("model.experts_per_token", experts_per_token, 5, GPT2_MOE),
        FIELD("model.experts_per_token", experts_per_token, -2, MIXTRAL),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c = tiny(cases[i].family), before;
        memcpy((char *)&c + cases[i].offset, &cases[i].value, sizeof(int64_t));
        before = c;
        weft_status status = weft_model_complete(&c);
        if (status != WEFT_E_ARG || !has_facts(weft_error_message(), cases[i].what))
            fail_msg("%s of %s as %lld: %s: %s", cases[i].what, weft_family_text(cases[i].family),
                     (long long)cases[i].value, weft_status_text(status), weft_error_message());
        assert_memory_equal(&c, &before, sizeof c);
        weft_graph *g = NULL;
        assert_int_equal(weft_model_build(&c, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &g), WEFT_E_ARG);
        assert_null(g);
    }
}

static void wrong_numbers(void **state) {
    (void)state;
    weft_model_config c = tiny(WEFT_FAMILY_GPT2);
    c.dropout = 1.0;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.dropout");
    c = tiny(WEFT_FAMILY_LLAMA);
    c.rope_theta = -1;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.rope_theta");
    c = tiny(WEFT_FAMILY_MIXTRAL);
    c.attention_bias = true;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.attention_bias|mixtral"); /* and the families that have it: */
    for (int f = 0; f < WEFT_FAMILIES; f++)
        if (wefti_family_has((weft_family)f, WEFTI_ATTENTION_BIAS))
            ASSERT_MESSAGE(weft_family_text((weft_family)f));
    c = tiny(WEFT_FAMILY_GPT2);
    c.mlp_bias = true;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.mlp_bias");
    c = tiny(WEFT_FAMILY_MISTRAL);
    c.attention_factor = 1.5;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("1.5");
    c.rope_scaling = (weft_rope_scaling){.factor = 2, .original_context = 8, .beta_fast = 4};
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("beta_slow 0");
    c = tiny(WEFT_FAMILY_BERT);
    c.norm_eps = -1e-5;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.norm_eps");
    c = tiny(WEFT_FAMILY_MIXTRAL);
    c.capacity_factor = -1;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.capacity_factor");
    c = tiny(WEFT_FAMILY_GPT2_MOE);
    c.aux_loss = -0.01;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.aux_loss");
    c = tiny(WEFT_FAMILY_BERT);
    c.family = WEFT_FAMILIES;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("model.family");
}

/* Logits of a text with the first token `first`, [TINY_CONTEXT, TINY_VOCAB]. */
static void logits_after(const weft_model_config *c, int32_t first, float *out) {
    weft_graph *g = built(c, WEFT_USE_LOGITS, 1, 0, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    int32_t tokens[TINY_CONTEXT] = {first, 3, 1, 4, 1, 5};
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = 1;
    ASSERT_OK(weft_session_create(g, &o, &s));
    ASSERT_OK(weft_session_feed(s, 0, "tokens", tokens, sizeof tokens));
    ASSERT_OK(weft_session_forward(s, 0, NULL));
    ASSERT_OK(weft_session_read(s, 0, "logits", out, TINY_CONTEXT * TINY_VOCAB * sizeof *out));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* The number of a text's logits that the first token affects. The next layer carries on the
 * positions that a layer's window reaches. A window as long as the text has no effect. */
static void windows_bound_what_is_seen(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        int64_t window, from;
        int rows;
    } cases[] = {{WEFT_FAMILY_MISTRAL, 1, 0, 1},
                 {WEFT_FAMILY_MISTRAL, 2, 0, 3},
                 {WEFT_FAMILY_MISTRAL, 3, 0, 5},
                 {WEFT_FAMILY_MIXTRAL, 2, 0, 3},
                 {WEFT_FAMILY_QWEN2, 2, 0, 3},
                 {WEFT_FAMILY_QWEN2, 2, 1, TINY_CONTEXT},
                 {WEFT_FAMILY_QWEN2, TINY_CONTEXT, 0, TINY_CONTEXT}};
    enum { WHOLE = TINY_CONTEXT * TINY_VOCAB };
    float open[WHOLE], one[WHOLE], other[WHOLE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c = tiny(cases[i].family);
        logits_after(&c, 2, open);
        c.window = cases[i].window;
        c.window_from = cases[i].from;
        logits_after(&c, 2, one);
        logits_after(&c, 7, other);
        for (int row = 0; row < TINY_CONTEXT; row++) {
            const int at = row * TINY_VOCAB;
            bool same = !memcmp(one + at, other + at, TINY_VOCAB * sizeof *one);
            if (same != (row >= cases[i].rows))
                fail_msg("case %d: row %d is %s", (int)i, row, same ? "the same" : "another");
        }
        bool all = cases[i].window == TINY_CONTEXT;
        assert_int_equal(!memcmp(one, open, sizeof one), all);
    }
}

static void wrong_batches(void **state) {
    (void)state;
    weft_model_config c = tiny(WEFT_FAMILY_GPT2);
    weft_graph *g = NULL;
    assert_int_equal(weft_model_build(&c, WEFT_USE_TRAIN, 0, 0, WEFT_F32, &g), WEFT_E_ARG);
    ASSERT_MESSAGE("batch");
    assert_int_equal(weft_model_build(&c, WEFT_USE_TRAIN, 1, TINY_CONTEXT + 1, WEFT_F32, &g),
                     WEFT_E_ARG);
    ASSERT_MESSAGE("model.context");
    assert_int_equal(weft_model_build(&c, WEFT_USE_TRAIN, 1, 0, WEFT_I32, &g), WEFT_E_ARG);
    ASSERT_MESSAGE("i32");
    assert_null(g);
}

/* Every allocation of building fails in turn: no memory, never another answer, nothing left. */
static void allocations_fail(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++) {
        weft_model_config c = tiny((weft_family)family);
        int64_t nth = 0;
        for (weft_status status = WEFT_E_NOMEM; status < 0; nth++) {
            weft_graph *g = NULL;
            wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
            status = weft_model_build(&c, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &g);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            if (status != WEFT_OK && status != WEFT_E_NOMEM)
                fail_msg("allocation %lld: %s: %s", (long long)nth, weft_status_text(status),
                         weft_error_message());
            weft_graph_destroy(g);
        }
        assert_true(nth > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_counts),
        cmocka_unit_test(all_uses_and_dtypes),
        cmocka_unit_test(bf16_stays_bf16),
        cmocka_unit_test(products_of_blocks_in_8_bits),
        cmocka_unit_test(equal_blocks_are_stored_once),
        cmocka_unit_test(wrong_configurations),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(windows_bound_what_is_seen),
        cmocka_unit_test(wrong_batches),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
