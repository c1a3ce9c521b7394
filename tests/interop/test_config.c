/* config.json and tensor names. A written file reads back equal, and both versions of transformers
 * are understood. Settings that a family does not support are refused by name. */
#include "models/model_fixture.h"

#include <math.h>

#include "base/fault.h"

/* Compares field by field, because the padding between fields is undefined. */
static void assert_same_scaling(const weft_rope_scaling *a, const weft_rope_scaling *b) {
    assert_true(a->factor == b->factor);
    assert_true(a->low_freq_factor == b->low_freq_factor);
    assert_true(a->high_freq_factor == b->high_freq_factor);
    assert_int_equal(a->original_context, b->original_context);
    assert_true(a->beta_fast == b->beta_fast);
    assert_true(a->beta_slow == b->beta_slow);
    assert_int_equal(a->exact, b->exact);
}

static void assert_same(const weft_model_config *a, const weft_model_config *b) {
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->context, b->context);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->classes, b->classes);
    for (int i = 0; i < 3; i++) assert_int_equal(a->image[i], b->image[i]);
    assert_int_equal(a->patch, b->patch);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->window_from, b->window_from);
    assert_true(a->dropout == b->dropout);
    assert_int_equal(a->dropout_apart, b->dropout_apart);
    assert_true(a->attention_dropout == b->attention_dropout);
    assert_true(a->embedding_dropout == b->embedding_dropout);
    assert_int_equal(a->no_qkv_bias, b->no_qkv_bias);
    assert_true(a->norm_eps == b->norm_eps);
    assert_true(a->rope_theta == b->rope_theta);
    assert_same_scaling(&a->rope_scaling, &b->rope_scaling);
    assert_true(a->attention_factor == b->attention_factor);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->attention_bias, b->attention_bias);
    assert_int_equal(a->mlp_bias, b->mlp_bias);
    assert_int_equal(a->experts, b->experts);
    assert_int_equal(a->experts_per_token, b->experts_per_token);
    assert_true(a->capacity_factor == b->capacity_factor);
    assert_true(a->aux_loss == b->aux_loss);
    assert_int_equal(a->end_count, b->end_count);
    assert_memory_equal(a->ends, b->ends, (size_t)a->end_count * sizeof *a->ends);
    assert_int_equal(a->has_begin, b->has_begin);
    assert_int_equal(a->has_pad, b->has_pad);
    assert_int_equal(a->begin, b->begin);
    assert_int_equal(a->pad, b->pad);
}

/* transformers refuses a router_aux_loss_coef of 0: it has to be 0.0. */
static void assert_reals_have_a_point(const char *text) {
    static const char *const words[] = {"dropout\": ", "pdrop\": ", "_prob\": ", "eps\": ",
                                        "epsilon\": ", "theta\": ", "coef\": ",  "factor\": "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *at = text; (at = strstr(at, words[i])) != NULL;) {
            at += strlen(words[i]);
            size_t length = strcspn(at, ",}\n");
            if (strcspn(at, ".e") >= length)
                fail_msg("%s%.*s in %s", words[i], (int)length, at, text);
        }
}

static void round_trip(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++)
        for (int odd = 0; odd < 2; odd++) {
            weft_model_config c = tiny((weft_family)family), back;
            if (odd) {
                c.dropout = 0.1;
                c.norm_eps = family == WEFT_FAMILY_MLP || family == WEFT_FAMILY_LENET ? 0 : 3e-7;
                c.image[1] = c.image[1] * 2;
                if (family == WEFT_FAMILY_LLAMA) c.tied = true, c.rope_theta = 500000.25;
                if (family == WEFT_FAMILY_LLAMA) c.attention_bias = true;
                c.no_qkv_bias = family == WEFT_FAMILY_VIT;
                if (family == WEFT_FAMILY_LLAMA)
                    c.rope_scaling = (weft_rope_scaling){.factor = 32,
                                                         .low_freq_factor = 1,
                                                         .high_freq_factor = 4.5,
                                                         .original_context = 8192};
                if (family == WEFT_FAMILY_MIXTRAL) c.rope_scaling.factor = 2.5;
                if (family == WEFT_FAMILY_QWEN2) {
                    c.rope_scaling = (weft_rope_scaling){.factor = 4,
                                                         .original_context = 8,
                                                         .beta_fast = 30,
                                                         .beta_slow = 1.5,
                                                         .exact = true};
                    c.attention_factor = 1.25;
                }
                if (is_rotary(c.family)) c.head_dim = 6;
                if (wefti_family_has(c.family, WEFTI_WINDOW)) c.window = 4;
                if (wefti_family_has(c.family, WEFTI_LATE_WINDOW)) c.window_from = 1;
                c.attention_bias = wefti_family_has(c.family, WEFTI_ATTENTION_BIAS);
                if (weft_family_is_language(c.family)) {
                    c.end_count = 1 + family % 2;
                    c.ends[0] = 7, c.ends[1] = 0;
                    c.has_begin = true, c.has_pad = family % 2, c.pad = 5 * (family % 2);
                }
                if (c.experts) c.experts_per_token = 3, c.capacity_factor = 1.75, c.aux_loss = 0.02;
            }
            if (weft_family_is_language(c.family)) memset(c.image, 0, sizeof c.image);
            char *text;
            ASSERT_OK(weft_model_complete(&c));
            ASSERT_OK(weft_model_config_write(&c, &text));
            assert_reals_have_a_point(text);
            ASSERT_OK(weft_model_config_read(text, &back));
            assert_same(&c, &back);
            weft_text_free(text);
        }
}

#define GPT2(more)                                                                                 \
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 48, \"n_head\": 4, \"n_positions\": "  \
    "32, \"vocab_size\": 101" more "}"
#define LLAMA(more)                                                                                \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "                  \
    "\"num_attention_heads\": 6, \"intermediate_size\": 80, \"vocab_size\": 101" more "}"
#define MIXTRAL(more)                                                                              \
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "                \
    "\"num_attention_heads\": 8, \"intermediate_size\": 80, \"vocab_size\": 101" more "}"
#define MISTRAL(more)                                                                              \
    "{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "                \
    "\"num_attention_heads\": 8, \"intermediate_size\": 80, \"vocab_size\": 101" more "}"
#define QWEN2(more)                                                                                \
    "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "                  \
    "\"num_attention_heads\": 32, \"intermediate_size\": 80, \"vocab_size\": 101" more "}"
#define BERT(more)                                                                                 \
    "{\"model_type\": \"bert\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "                   \
    "\"num_attention_heads\": 6, \"intermediate_size\": 80, \"vocab_size\": 101" more "}"
#define VIT(more)                                                                                  \
    "{\"model_type\": \"vit\", \"num_hidden_layers\": 2, \"hidden_size\": 48, "                    \
    "\"num_attention_heads\": 6, \"intermediate_size\": 80, \"image_size\": 32, \"patch_size\": "  \
    "8" more "}"

/* What transformers assumes when a key is left out. */
static void defaults_of_transformers(void **state) {
    (void)state;
    weft_model_config c;
    ASSERT_OK(weft_model_config_read(GPT2(""), &c));
    assert_int_equal(c.ffn, 4 * 48);
    assert_true(c.norm_eps == 1e-5 && c.dropout == 0.1 && c.tied);
    ASSERT_OK(weft_model_config_read(LLAMA(""), &c));
    assert_int_equal(c.kv_heads, 6);
    assert_int_equal(c.context, 2048);
    assert_int_equal(c.head_dim, 8);
    assert_true(c.norm_eps == 1e-6 && c.dropout == 0 && !c.tied && c.rope_theta == 10000.0);
    ASSERT_OK(weft_model_config_read(MIXTRAL(""), &c));
    assert_int_equal(c.experts, 8);
    assert_int_equal(c.experts_per_token, 2);
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.context, 131072);
    assert_true(c.norm_eps == 1e-5 && c.rope_theta == 1e6 && !c.tied);
    assert_true(c.aux_loss == 0.001 && c.capacity_factor == 0);
    ASSERT_OK(weft_model_config_read(MISTRAL(""), &c));
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.context, 131072);
    assert_int_equal(c.window, 4096);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000.0 && !c.tied);
    ASSERT_OK(weft_model_config_read(QWEN2(""), &c));
    assert_int_equal(c.kv_heads, 32);
    assert_int_equal(c.context, 32768);
    assert_int_equal(c.window, 0);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000.0 && !c.tied);
    ASSERT_OK(weft_model_config_read(BERT(""), &c));
    assert_int_equal(c.context, 512);
    assert_true(c.norm_eps == 1e-12 && c.dropout == 0.1);
    ASSERT_OK(weft_model_config_read(VIT(""), &c));
    assert_int_equal(c.classes, 2);
    assert_int_equal(c.image[0], 3);
    assert_true(c.norm_eps == 1e-12 && c.dropout == 0);
    ASSERT_OK(weft_model_config_read(
        VIT(", \"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}"), &c));
    assert_int_equal(c.classes, 3);
    ASSERT_OK(weft_model_config_read(VIT(", \"num_labels\": 7, \"num_channels\": 1"), &c));
    assert_int_equal(c.classes, 7);
    assert_int_equal(c.image[0], 1);
}

static void both_versions(void **state) {
    (void)state;
    weft_model_config c;
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_theta\": 5e5, \"rope_scaling\": null, \"torch_dtype\": \"bfloat16\""), &c));
    assert_true(c.rope_theta == 5e5);
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_parameters\": {\"rope_theta\": 250000, \"rope_type\": \"default\"}, "
              "\"dtype\": \"float16\""),
        &c));
    assert_true(c.rope_theta == 250000);
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_theta\": 7.0, \"rope_scaling\": {\"type\": \"default\"}"), &c));
    assert_true(c.rope_theta == 7 && c.rope_scaling.factor == 0);
    /* If both keys are present, only the older one counts, unless it is empty. */
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
              "{\"rope_theta\": 5e5, \"rope_type\": \"linear\", \"factor\": 8}"),
        &c));
    assert_true(c.rope_theta == 10000 && c.rope_scaling.factor == 2);
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 5e5}"), &c));
    assert_true(c.rope_theta == 5e5 && c.rope_scaling.factor == 0);
    /* Llama 3.1 in both. */
#define LLAMA3                                                                                     \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                       \
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\""
    weft_rope_scaling scaling = {
        .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
    ASSERT_OK(
        weft_model_config_read(LLAMA(", \"rope_theta\": 5e5, \"rope_scaling\": {" LLAMA3 "}"), &c));
    assert_true(c.rope_theta == 5e5);
    assert_same_scaling(&c.rope_scaling, &scaling);
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_parameters\": {\"rope_theta\": 5e5, " LLAMA3 "}"), &c));
    assert_true(c.rope_theta == 5e5);
    assert_same_scaling(&c.rope_scaling, &scaling);
    ASSERT_OK(weft_model_config_read(
        LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}"), &c));
    assert_true(c.rope_scaling.factor == 2 && c.rope_scaling.original_context == 0);
    /* YaRN, with the defaults of transformers */
    ASSERT_OK(weft_model_config_read(
        QWEN2(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
              "\"original_max_position_embeddings\": 32768}, \"max_position_embeddings\": 131072"),
        &c));
    assert_true(c.rope_scaling.factor == 4 && c.rope_scaling.original_context == 32768);
    assert_true(c.rope_scaling.beta_fast == 32 && c.rope_scaling.beta_slow == 1);
    assert_true(!c.rope_scaling.exact && fabs(c.attention_factor - 1.138629436111989) < 1e-12);
    ASSERT_OK(weft_model_config_read(
        LLAMA(
            ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": false, "
            "\"beta_fast\": null, \"beta_slow\": 0, \"attention_factor\": 0.5}"),
        &c));
    assert_true(c.rope_scaling.original_context == 2048 && c.rope_scaling.beta_fast == 32);
    assert_true(c.rope_scaling.beta_slow == 1 && c.rope_scaling.exact && c.attention_factor == 0.5);
}

/* Places of dropout have rates of their own, and config.json keeps them. */
static void unequal_dropout(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double blocks, attention, embedding; /* attention < 0: one rate */
    } cases[] = {
        {GPT2(", \"resid_pdrop\": 0.2"), 0.2, 0.1, 0.1},
        {GPT2(", \"attn_pdrop\": 0"), 0.1, 0, 0.1},
        {GPT2(", \"embd_pdrop\": 0.3, \"resid_pdrop\": 0"), 0, 0.1, 0.3},
        {GPT2(", \"resid_pdrop\": 0.2, \"attn_pdrop\": 0.2, \"embd_pdrop\": 0.2"), 0.2, -1, 0},
        {BERT(", \"hidden_dropout_prob\": 0.2"), 0.2, 0.1, 0.2},
        {VIT(", \"attention_probs_dropout_prob\": 0.4"), 0, 0.4, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c, back;
        char *text;
        ASSERT_OK(weft_model_config_read(cases[i].text, &c));
        ASSERT_OK(weft_model_config_write(&c, &text));
        ASSERT_OK(weft_model_config_read(text, &back));
        assert_same(&c, &back);
        weft_text_free(text);
        assert_true(c.dropout == cases[i].blocks);
        assert_int_equal(c.dropout_apart, cases[i].attention >= 0);
        if (!c.dropout_apart) continue;
        assert_true(c.attention_dropout == cases[i].attention);
        assert_true(c.embedding_dropout == cases[i].embedding);
    }
}

static void refusals_name_the_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
        weft_status status;
    } cases[] = {
        {"", "config.json", WEFT_E_CORRUPT},
        {"[1]", "one object", WEFT_E_ARG},
        {"{}", "model_type", WEFT_E_CORRUPT},
        {"{\"model_type\": 3}", "model_type", WEFT_E_CORRUPT},
        {"{\"model_type\": \"gpt2\", \"model_type\": \"gpt2\"}", "model_type", WEFT_E_CORRUPT},
        {"{\"model_type\": \"mamba\"}", "mamba", WEFT_E_NO_IMPL},
        {"{\"model_type\": \"gpt2\"}", "n_layer", WEFT_E_ARG},
        {GPT2(", \"n_inner\": \"x\""), "n_inner", WEFT_E_ARG},
        {GPT2(", \"n_inner\": -3"), "n_inner", WEFT_E_ARG},
        {GPT2(", \"activation_function\": \"relu\""), "activation_function", WEFT_E_NO_IMPL},
        {GPT2(", \"activation_function\": 1"), "activation_function", WEFT_E_ARG},
        {GPT2(", \"resid_pdrop\": 2"), "resid_pdrop", WEFT_E_ARG},
        {GPT2(", \"scale_attn_weights\": false"), "scale_attn_weights", WEFT_E_NO_IMPL},
        {GPT2(", \"scale_attn_by_inverse_layer_idx\": true"), "inverse_layer", WEFT_E_NO_IMPL},
        {GPT2(", \"add_cross_attention\": true"), "add_cross_attention", WEFT_E_NO_IMPL},
        {GPT2(", \"tie_word_embeddings\": 1"), "tie_word_embeddings", WEFT_E_ARG},
        {GPT2(", \"layer_norm_epsilon\": \"1e-5\""), "layer_norm_epsilon", WEFT_E_ARG},
        {GPT2(", \"quantization_config\": {}"), "quantization_config", WEFT_E_NO_IMPL},
        {LLAMA(", \"num_key_value_heads\": 4"), "kv_heads", WEFT_E_ARG},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 1000000000, \"n_embd\": 48, \"n_head\": 4, "
         "\"n_positions\": 32, \"vocab_size\": 101}",
         "model.layers|1000000000|10000", WEFT_E_ARG},
        {LLAMA(", \"head_dim\": 15"), "model.head_dim is 15: rotary", WEFT_E_ARG},
        {LLAMA(", \"head_dim\": 0"), "head_dim", WEFT_E_ARG},
        {LLAMA(", \"hidden_act\": \"gelu\""), "hidden_act", WEFT_E_NO_IMPL},
        {LLAMA(", \"attention_bias\": 1"), "attention_bias", WEFT_E_ARG},
        {LLAMA(", \"mlp_bias\": \"no\""), "mlp_bias", WEFT_E_ARG},
        {MIXTRAL(", \"attention_bias\": true"), "attention_bias", WEFT_E_NO_IMPL},
        {MIXTRAL(", \"mlp_bias\": true"), "mlp_bias", WEFT_E_NO_IMPL},
        {LLAMA(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}"),
         "rope_scaling: original_max_position_embeddings", WEFT_E_ARG},
        {LLAMA(", \"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": 4.0, "
               "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, "
               "\"rope_type\": \"llama3\"}"),
         "rope_scaling", WEFT_E_ARG},
        {LLAMA(", \"rope_scaling\": {\"type\": \"linear\"}"), "rope_scaling: factor", WEFT_E_ARG},
        {LLAMA(", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}"), "default|linear",
         WEFT_E_NO_IMPL},
        {LLAMA(", \"rope_parameters\": {\"rope_type\": \"yarn\"}"), "rope_parameters: factor",
         WEFT_E_ARG},
        {LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": -1}"),
         "rope_scaling: beta_fast", WEFT_E_ARG},
        {LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"attention_factor\": 0}"),
         "rope_scaling: attention_factor", WEFT_E_ARG},
        {LLAMA(", \"rope_parameters\": 5"), "rope_parameters", WEFT_E_ARG},
        {LLAMA(", \"rope_theta\": -5"), "rope_theta", WEFT_E_ARG},
        {QWEN2(", \"rope_theta\": 0"), "rope_theta|0", WEFT_E_ARG},
        {LLAMA(", \"rope_parameters\": {\"rope_theta\": 0}"), "rope_parameters: rope_theta is 0",
         WEFT_E_ARG},
        {LLAMA(", \"rms_norm_eps\": 0"), "rms_norm_eps|0", WEFT_E_ARG},
        {GPT2(", \"layer_norm_epsilon\": 0.0"), "layer_norm_epsilon is 0", WEFT_E_ARG},
        {MIXTRAL(", \"sliding_window\": 0"), "sliding_window", WEFT_E_ARG},
        {MISTRAL(", \"sliding_window\": true"), "sliding_window", WEFT_E_ARG},
        {MISTRAL(", \"attention_bias\": true"), "attention_bias", WEFT_E_NO_IMPL},
        {QWEN2(", \"use_sliding_window\": 1"), "use_sliding_window", WEFT_E_ARG},
        {QWEN2(", \"max_window_layers\": -1"), "max_window_layers", WEFT_E_ARG},
        {QWEN2(", \"layer_types\": [\"chunked_attention\"]"), "layer_types has \"chunked",
         WEFT_E_NO_IMPL},
        {QWEN2(", \"layer_types\": [1]"), "layer_types", WEFT_E_ARG},
        {QWEN2(", \"layer_types\": [\"sliding_attention\", \"full_attention\"]"), "full_attention",
         WEFT_E_NO_IMPL},
        {QWEN2(", \"layer_types\": {}"), "layer_types", WEFT_E_ARG},
        {LLAMA(", \"bos_token_id\": [1]"), "bos_token_id", WEFT_E_ARG},
        {QWEN2(", \"pad_token_id\": \"<pad>\""), "pad_token_id", WEFT_E_ARG},
        {MIXTRAL(", \"router_jitter_noise\": 0.01"), "router_jitter_noise", WEFT_E_NO_IMPL},
        {MIXTRAL(", \"num_experts_per_tok\": 9"), "experts_per_token", WEFT_E_ARG},
        {MIXTRAL(", \"router_aux_loss_coef\": -1"), "aux_loss", WEFT_E_ARG},
        {BERT(", \"hidden_act\": \"relu\""), "hidden_act", WEFT_E_NO_IMPL},
        {BERT(", \"type_vocab_size\": 1"), "type_vocab_size", WEFT_E_NO_IMPL},
        {BERT(", \"position_embedding_type\": \"relative_key\""), "position_embedding_type",
         WEFT_E_NO_IMPL},
        {BERT(", \"is_decoder\": true"), "is_decoder", WEFT_E_NO_IMPL},
        {VIT(", \"qkv_bias\": 1"), "qkv_bias", WEFT_E_ARG},
        {GPT2(", \"attn_pdrop\": 1"), "attn_pdrop", WEFT_E_ARG},
        {VIT(", \"id2label\": []"), "id2label", WEFT_E_ARG},
        {"{\"model_type\": \"weft-mlp\", \"image\": [1, 2]}", "image", WEFT_E_ARG},
        {"{\"model_type\": \"weft-mlp\", \"image\": [1, 2, 0]}", "image", WEFT_E_ARG},
        {"{\"model_type\": \"weft-lenet\", \"image\": [1, 28, 28]}", "classes", WEFT_E_ARG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c, untouched;
        memset(&c, 7, sizeof c);
        memcpy(&untouched, &c, sizeof c);
        weft_status status = weft_model_config_read(cases[i].text, &c);
        if (status != cases[i].status || !has_facts(weft_error_message(), cases[i].says) ||
            !has_facts(weft_error_message(), "config.json"))
            fail_msg("%s: %s: %s", cases[i].text, weft_status_text(status), weft_error_message());
        assert_memory_equal(&c, &untouched, sizeof c);
    }
}

static void assert_ends(const weft_model_config *c, int64_t count, int32_t first, int32_t last) {
    assert_int_equal(c->end_count, count);
    if (count > 0) assert_int_equal(c->ends[0], first);
    if (count > 0) assert_int_equal(c->ends[count - 1], last);
}

/* One end token, several, none. An id that is no token of the model ends no text.
 * generation_config.json takes precedence over config.json if it gives any. */
static void ends_of_texts(void **state) {
    (void)state;
    weft_model_config c;
    ASSERT_OK(weft_model_config_read(GPT2(""), &c));
    assert_ends(&c, 0, 0, 0);
    ASSERT_OK(weft_model_config_read(LLAMA(", \"eos_token_id\": null"), &c));
    assert_ends(&c, 0, 0, 0);
    ASSERT_OK(weft_model_config_read(GPT2(", \"eos_token_id\": 0"), &c));
    assert_ends(&c, 1, 0, 0);
    ASSERT_OK(weft_model_config_read(GPT2(", \"eos_token_id\": 50256"), &c));
    assert_ends(&c, 0, 0, 0);
    ASSERT_OK(weft_model_config_read(LLAMA(", \"eos_token_id\": [5, 101, -1, 100]"), &c));
    assert_ends(&c, 2, 5, 100);
    ASSERT_OK(weft_model_config_read_generation("{\"eos_token_id\": null, \"top_k\": 5}", &c));
    assert_ends(&c, 2, 5, 100);
    ASSERT_OK(weft_model_config_read_generation("{\"eos_token_id\": [9]}", &c));
    assert_ends(&c, 1, 9, 9);
    static const char *const wrong[] = {"true", "\"</s>\"", "1.5", "[1, []]", "{}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "{\"eos_token_id\": %s}", wrong[i]);
        assert_int_equal(weft_model_config_read_generation(text, &c), WEFT_E_ARG);
        ASSERT_MESSAGE("generation_config.json: eos_token_id must");
        assert_ends(&c, 1, 9, 9);
    }
    assert_int_equal(weft_model_config_read_generation("[]", &c), WEFT_E_ARG);
    assert_int_equal(weft_model_config_read_generation("{", &c), WEFT_E_CORRUPT);
    const char *many = "{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}";
    assert_int_equal(weft_model_config_read_generation(many, &c), WEFT_E_NO_IMPL);
    ASSERT_MESSAGE("17 tokens|16");
    c.ends[0] = 101;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("token 101");
    c.end_count = -1;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
}

/* The layers with a window, and when a window of a model with this context has no effect. */
static void windows(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t window, from;
    } cases[] = {
        {MISTRAL(", \"sliding_window\": null"), 0, 0},
        {MISTRAL(", \"sliding_window\": 12"), 12, 0},
        {MIXTRAL(""), 0, 0},
        {MIXTRAL(", \"sliding_window\": 12"), 12, 0},
        {QWEN2(", \"use_sliding_window\": false, \"sliding_window\": 12"), 0, 0},
        {QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 12"), 0,
         0}, /* from layer 28 on */
        {QWEN2(", \"use_sliding_window\": true, \"max_window_layers\": 2"), 0, 0},
        {QWEN2(", \"use_sliding_window\": true, \"max_window_layers\": 1"), 4096, 1},
        {QWEN2(
             ", \"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": null"),
         0, 0},
        {QWEN2(", \"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": 12"),
         12, 0},
        {QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 12, \"max_window_layers\": 0, "
               "\"layer_types\": [\"full_attention\", \"full_attention\"]"),
         0, 0},
        {QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 12, "
               "\"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         12, 1},
        {QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 12, "
               "\"layer_types\": [\"sliding_attention\", \"sliding_attention\"]"),
         12, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c;
        ASSERT_OK(weft_model_config_read(cases[i].text, &c));
        if (c.window != cases[i].window || c.window_from != cases[i].from)
            fail_msg("%s: a window of %lld from layer %lld on", cases[i].text, (long long)c.window,
                     (long long)c.window_from);
    }
}

/* gpt2 and bert use their embedding for the output unless the file says otherwise. */
static void untied(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool untied;
    } cases[] = {{GPT2(""), false},
                 {GPT2(", \"tie_word_embeddings\": false"), true},
                 {BERT(", \"tie_word_embeddings\": true"), false},
                 {BERT(", \"tie_word_embeddings\": false"), true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c;
        char *text;
        ASSERT_OK(weft_model_config_read(cases[i].text, &c));
        assert_int_equal(c.untied, cases[i].untied);
        assert_int_equal(c.tied, !cases[i].untied);
        ASSERT_OK(weft_model_config_write(&c, &text));
        assert_int_equal(strstr(text, "\"tie_word_embeddings\": false") != NULL, c.untied);
        weft_text_free(text);
    }
}

/* The ids of the tokens that begin a text and pad it. 0 is a valid id; ids outside of the
 * vocabulary count as absent. */
static void tokens_that_begin_and_fill(void **state) {
    (void)state;
    weft_model_config c;
    ASSERT_OK(weft_model_config_read(GPT2(""), &c));
    assert_false(c.has_begin || c.has_pad);
    ASSERT_OK(weft_model_config_read(GPT2(", \"bos_token_id\": 50256, \"pad_token_id\": -1"), &c));
    assert_false(c.has_begin || c.has_pad);
    ASSERT_OK(weft_model_config_read(LLAMA(", \"bos_token_id\": 100, \"pad_token_id\": 0"), &c));
    assert_true(c.has_begin && c.begin == 100 && c.has_pad && c.pad == 0);
    char *text;
    ASSERT_OK(weft_model_config_write(&c, &text));
    assert_non_null(strstr(text, "\"bos_token_id\": 100,"));
    assert_non_null(strstr(text, "\"pad_token_id\": 0,"));
    weft_text_free(text);
    ASSERT_OK(weft_model_config_read(LLAMA(", \"bos_token_id\": null"), &c));
    ASSERT_OK(weft_model_config_write(&c, &text));
    assert_non_null(strstr(text, "\"bos_token_id\": null,"));
    assert_non_null(strstr(text, "\"pad_token_id\": null,"));
    weft_text_free(text);
    c.has_pad = true, c.pad = 101;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("token 101");
    c.has_pad = false, c.has_begin = true, c.begin = -1;
    assert_int_equal(weft_model_complete(&c), WEFT_E_ARG);
    ASSERT_MESSAGE("token -1");
}

static void assert_stored_as(weft_family family, const char *name, weft_desc inside,
                             const char *file_name, weft_desc there) {
    weft_model_config c = {.family = family};
    char buffer[128];
    weft_desc desc;
    ASSERT_OK(weft_model_file_name(&c, name, &inside, 0, buffer, sizeof buffer, &desc));
    assert_string_equal(buffer, file_name);
    assert_int_equal(desc.rank, there.rank);
    assert_int_equal(desc.dtype, there.dtype);
    for (int i = 0; i < desc.rank; i++) assert_int_equal(desc.shape[i], there.shape[i]);
    weft_model_config other = {.family = family};
    assert_int_equal(
        weft_model_file_name(&other, name, &inside, 0, buffer, strlen(file_name), &desc),
        WEFT_E_ARG); /* no room for the final NUL */
    int64_t behind = weft_desc_elems(&inside) / weft_desc_elems(&there);
    assert_int_equal(weft_model_file_name(&c, name, &inside, behind, buffer, sizeof buffer, &desc),
                     WEFT_E_NOT_FOUND);
}

static void names_in_files(void **state) {
    (void)state;
    weft_desc square = weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 4});
    weft_desc joined = weft_desc_of(WEFT_F32, 3, (int64_t[]){4, 3, 4});
    weft_desc joined_bias = weft_desc_of(WEFT_F32, 2, (int64_t[]){3, 4});
    assert_stored_as(WEFT_FAMILY_GPT2, "wte.weight", square, "transformer.wte.weight", square);
    assert_stored_as(WEFT_FAMILY_GPT2, "h.7.attn.c_attn.weight", joined,
                     "transformer.h.7.attn.c_attn.weight",
                     weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 12}));
    assert_stored_as(WEFT_FAMILY_GPT2, "h.7.attn.c_attn.bias", joined_bias,
                     "transformer.h.7.attn.c_attn.bias",
                     weft_desc_of(WEFT_F32, 1, (int64_t[]){12}));
    assert_stored_as(WEFT_FAMILY_LLAMA, "layers.0.mlp.up_proj.weight", square,
                     "model.layers.0.mlp.up_proj.weight", square);
    assert_stored_as(WEFT_FAMILY_LLAMA, "lm_head.weight", square, "lm_head.weight", square);
    assert_stored_as(WEFT_FAMILY_QWEN2, "layers.0.self_attn.q_proj.bias", square,
                     "model.layers.0.self_attn.q_proj.bias", square);
    assert_stored_as(WEFT_FAMILY_MISTRAL, "lm_head.weight", square, "lm_head.weight", square);
    weft_desc stacked = weft_desc_of(WEFT_F32, 3, (int64_t[]){3, 5, 4});
    weft_desc one = weft_desc_of(WEFT_F32, 2, (int64_t[]){5, 4});
    assert_stored_as(WEFT_FAMILY_MIXTRAL, "layers.7.block_sparse_moe.experts.w3.weight", stacked,
                     "model.layers.7.block_sparse_moe.experts.0.w3.weight", one);
    assert_stored_as(WEFT_FAMILY_MIXTRAL, "layers.7.block_sparse_moe.gate.weight", square,
                     "model.layers.7.block_sparse_moe.gate.weight", square);
    assert_stored_as(WEFT_FAMILY_GPT2_MOE, "h.7.moe.experts.c_fc.weight", stacked,
                     "transformer.h.7.moe.experts.c_fc.weight", stacked);
    assert_stored_as(WEFT_FAMILY_BERT, "encoder.layer.0.output.dense.weight", square,
                     "bert.encoder.layer.0.output.dense.weight", square);
    assert_stored_as(WEFT_FAMILY_BERT, "cls.predictions.bias", square, "cls.predictions.bias",
                     square);
    assert_stored_as(WEFT_FAMILY_VIT, "classifier.weight", square, "classifier.weight", square);
    assert_stored_as(WEFT_FAMILY_VIT, "layernorm.weight", square, "vit.layernorm.weight", square);
    assert_stored_as(WEFT_FAMILY_RESNET18, "layer1.0.bn1.running_var", square,
                     "layer1.0.bn1.running_var", square);
    weft_model_config c = {.family = WEFT_FAMILY_MIXTRAL};
    char buffer[64];
    weft_desc desc;
    ASSERT_OK(weft_model_file_name(&c, "layers.0.block_sparse_moe.experts.w1.weight", &stacked, 2,
                                   buffer, sizeof buffer, &desc));
    assert_string_equal(buffer, "model.layers.0.block_sparse_moe.experts.2.w1.weight");
    c.family = WEFT_FAMILY_GPT2;
    assert_int_equal(
        weft_model_file_name(&c, "h.0.attn.cache.k", &square, 0, buffer, sizeof buffer, &desc),
        WEFT_E_NOT_FOUND);
}

static void other_names(void **state) {
    (void)state;
    char buffer[128];
    weft_model_config gpt2 = {.family = WEFT_FAMILY_GPT2}, bert = {.family = WEFT_FAMILY_BERT};
    ASSERT_OK(weft_model_file_alias(&gpt2, "transformer.wte.weight", 0, buffer, sizeof buffer));
    assert_string_equal(buffer, "wte.weight");
    assert_int_equal(
        weft_model_file_alias(&gpt2, "transformer.wte.weight", 1, buffer, sizeof buffer),
        WEFT_E_NOT_FOUND);
    const char *norm = "bert.embeddings.LayerNorm.bias";
    ASSERT_OK(weft_model_file_alias(&bert, norm, 0, buffer, sizeof buffer));
    assert_string_equal(buffer, "embeddings.LayerNorm.bias");
    ASSERT_OK(weft_model_file_alias(&bert, norm, 1, buffer, sizeof buffer));
    assert_string_equal(buffer, "bert.embeddings.LayerNorm.beta");
    assert_int_equal(weft_model_file_alias(&bert, norm, 2, buffer, sizeof buffer),
                     WEFT_E_NOT_FOUND);
    ASSERT_OK(weft_model_file_alias(&bert, "cls.predictions.transform.LayerNorm.weight", 0, buffer,
                                    sizeof buffer));
    assert_string_equal(buffer, "cls.predictions.transform.LayerNorm.gamma");

    assert_true(weft_model_file_extra(&gpt2, "h.0.attn.bias"));
    assert_true(weft_model_file_extra(&gpt2, "transformer.h.0.attn.masked_bias"));
    gpt2.tied = true;
    assert_true(weft_model_file_extra(&gpt2, "lm_head.weight"));
    gpt2.tied = false;
    assert_false(weft_model_file_extra(&gpt2, "lm_head.weight"));
    assert_false(weft_model_file_extra(&gpt2, "transformer.h.0.attn.c_attn.bias"));
    assert_false(weft_model_file_extra(&gpt2, "transformer.h.0.crossattention.c_attn.weight"));
    weft_model_config llama = {.family = WEFT_FAMILY_LLAMA};
    assert_false(weft_model_file_extra(&llama, "lm_head.weight"));
    llama.tied = true;
    assert_true(weft_model_file_extra(&llama, "lm_head.weight"));
    assert_true(weft_model_file_extra(&bert, "bert.pooler.dense.weight"));
    assert_false(weft_model_file_extra(&bert, "classifier.weight"));
}

/* Every allocation of writing and of reading fails in turn. */
static void allocations_fail(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++) {
        weft_model_config c = tiny((weft_family)family), back;
        int64_t nth = 0;
        for (weft_status status = WEFT_E_NOMEM; status < 0; nth++) {
            char *text = NULL;
            wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
            status = weft_model_config_write(&c, &text);
            if (status >= 0) status = weft_model_config_read(text, &back);
            wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
            assert_true(status == WEFT_E_NOMEM || status == WEFT_OK);
            weft_text_free(text);
        }
        assert_true(nth > 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(defaults_of_transformers),
        cmocka_unit_test(both_versions),
        cmocka_unit_test(refusals_name_the_key),
        cmocka_unit_test(unequal_dropout),
        cmocka_unit_test(ends_of_texts),
        cmocka_unit_test(windows),
        cmocka_unit_test(untied),
        cmocka_unit_test(tokens_that_begin_and_fill),
        cmocka_unit_test(names_in_files),
        cmocka_unit_test(other_names),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
