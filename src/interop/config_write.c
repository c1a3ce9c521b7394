/* Writes a family's settings for config.json. See interop/config.h. */
#include "interop/config.h"

#include <math.h>

#include "base/json/json.h"
#include "models/family.h"

void wefti_config_write_int(wefti_text *t, const char *key, int64_t value) {
    wefti_text_add(t, ",\n  \"%s\": %lld", key, (long long)value);
}

/* Writes a point always: transformers refuses whole numbers for some keys. */
static void write_real(wefti_text *t, const char *key, double value) {
    wefti_text_add(t, ",\n  \"%s\": ", key);
    wefti_json_real(t, value);
    if (value == floor(value) && fabs(value) < 1e15) wefti_text_add(t, ".0");
}

void wefti_config_write_raw(wefti_text *t, const char *key, const char *value) {
    wefti_text_add(t, ",\n  \"%s\": %s", key, value);
}

void wefti_config_write_int_or_null(wefti_text *t, const char *key, bool has, int64_t value) {
    if (has)
        wefti_config_write_int(t, key, value);
    else
        wefti_config_write_raw(t, key, "null");
}

static void write_dropout(wefti_text *t, const weft_model_config *c, int count,
                          const char *const *keys) {
    const double rates[3] = {c->dropout, c->attention_dropout, c->embedding_dropout};
    for (int i = 0; i < count; i++) write_real(t, keys[i], rates[c->dropout_apart ? i : 0]);
}

static void write_experts(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_int(t, "num_local_experts", c->experts);
    wefti_config_write_int(t, "num_experts_per_tok", c->experts_per_token);
    write_real(t, "router_aux_loss_coef", c->aux_loss);
    write_real(t, "capacity_factor", c->capacity_factor);
}

static void write_gpt2_sizes(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_int(t, "n_layer", c->layers);
    wefti_config_write_int(t, "n_embd", c->hidden);
    wefti_config_write_int(t, "n_head", c->heads);
    wefti_config_write_int(t, "n_inner", c->ffn);
    wefti_config_write_int(t, "n_positions", c->context);
    wefti_config_write_int(t, "vocab_size", c->vocab);
    write_real(t, "layer_norm_epsilon", c->norm_eps);
    write_dropout(t, c, 3, wefti_gpt2_dropout);
    wefti_config_write_raw(t, "activation_function", "\"gelu_new\"");
    wefti_config_write_raw(t, "tie_word_embeddings", c->untied ? "false" : "true");
}

static void write_gpt2(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"GPT2LMHeadModel\"]");
    write_gpt2_sizes(t, c);
}

static void write_gpt2_moe(wefti_text *t, const weft_model_config *c) {
    write_gpt2_sizes(t, c);
    write_experts(t, c);
}

static void write_rope(wefti_text *t, const char *key, const weft_model_config *c) {
    const weft_rope_scaling *r = &c->rope_scaling;
    bool yarn = r->factor > 0 && r->beta_fast > 0, plain = r->factor == 0;
    bool llama3 = !plain && !yarn && r->original_context > 0;
    wefti_config_write_raw(t, key, "{\"rope_type\": ");
    wefti_text_add(t, "\"%s\"", plain ? "default" : yarn ? "yarn" : llama3 ? "llama3" : "linear");
    write_real(t, "rope_theta", c->rope_theta);
    if (!plain) write_real(t, "factor", r->factor);
    if (llama3) {
        write_real(t, "low_freq_factor", r->low_freq_factor);
        write_real(t, "high_freq_factor", r->high_freq_factor);
    }
    if (yarn) {
        write_real(t, "beta_fast", r->beta_fast);
        write_real(t, "beta_slow", r->beta_slow);
        wefti_config_write_raw(t, "truncate", r->exact ? "false" : "true");
        write_real(t, "attention_factor", c->attention_factor > 0 ? c->attention_factor : 1);
    }
    if (llama3 || yarn)
        wefti_config_write_int(t, "original_max_position_embeddings", r->original_context);
    wefti_text_add(t, "}");
}

static void write_stack(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_int(t, "num_hidden_layers", c->layers);
    wefti_config_write_int(t, "hidden_size", c->hidden);
    wefti_config_write_int(t, "num_attention_heads", c->heads);
    wefti_config_write_int(t, "intermediate_size", c->ffn);
}

static void write_llama_sizes(wefti_text *t, const weft_model_config *c) {
    write_stack(t, c);
    wefti_config_write_int(t, "num_key_value_heads", c->kv_heads);
    wefti_config_write_int(t, "head_dim", c->head_dim);
    wefti_config_write_int(t, "max_position_embeddings", c->context);
    wefti_config_write_int(t, "vocab_size", c->vocab);
    write_real(t, "rms_norm_eps", c->norm_eps);
    write_dropout(t, c, 1, wefti_llama_dropout);
    write_real(t, "rope_theta", c->rope_theta);
    if (c->rope_scaling.factor > 0) write_rope(t, "rope_scaling", c); /* transformers 4 */
    write_rope(t, "rope_parameters", c);                              /* transformers 5 */
    wefti_config_write_raw(t, "hidden_act", "\"silu\"");
    wefti_config_write_raw(t, "tie_word_embeddings", c->tied ? "true" : "false");
}

static void write_llama(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"LlamaForCausalLM\"]");
    write_llama_sizes(t, c);
    wefti_config_write_raw(t, "attention_bias", c->attention_bias ? "true" : "false");
    wefti_config_write_raw(t, "mlp_bias", c->mlp_bias ? "true" : "false");
}

static void write_window(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_int_or_null(t, "sliding_window", c->window > 0, c->window);
}

static void write_mistral(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"MistralForCausalLM\"]");
    write_llama_sizes(t, c);
    write_window(t, c);
}

static void write_late_window(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "use_sliding_window", c->window > 0 ? "true" : "false");
    write_window(t, c);
    wefti_config_write_int(t, "max_window_layers", c->window > 0 ? c->window_from : c->layers);
}

static void write_qwen2(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"Qwen2ForCausalLM\"]");
    write_llama_sizes(t, c);
    write_late_window(t, c);
}

static void write_qwen3(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"Qwen3ForCausalLM\"]");
    write_llama_sizes(t, c);
    wefti_config_write_raw(t, "attention_bias", c->attention_bias ? "true" : "false");
    write_late_window(t, c);
}

static void write_olmo2(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"Olmo2ForCausalLM\"]");
    write_llama_sizes(t, c);
    wefti_config_write_raw(t, "attention_bias", c->attention_bias ? "true" : "false");
}

static void write_mixtral(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"MixtralForCausalLM\"]");
    write_llama_sizes(t, c);
    write_experts(t, c);
    write_window(t, c);
}

static void write_encoder(wefti_text *t, const weft_model_config *c) {
    write_stack(t, c);
    write_real(t, "layer_norm_eps", c->norm_eps);
    write_dropout(t, c, 2, wefti_bert_dropout);
    wefti_config_write_raw(t, "hidden_act", "\"gelu\"");
}

static void write_bert(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"BertForMaskedLM\"]");
    write_encoder(t, c);
    wefti_config_write_int(t, "max_position_embeddings", c->context);
    wefti_config_write_int(t, "vocab_size", c->vocab);
    wefti_config_write_int(t, "type_vocab_size", 2);
    wefti_config_write_raw(t, "tie_word_embeddings", c->untied ? "false" : "true");
}

static void write_vit(wefti_text *t, const weft_model_config *c) {
    wefti_config_write_raw(t, "architectures", "[\"ViTForImageClassification\"]");
    write_encoder(t, c);
    wefti_config_write_int(t, "num_channels", c->image[0]);
    if (c->image[1] == c->image[2])
        wefti_config_write_int(t, "image_size", c->image[1]);
    else
        wefti_text_add(t, ",\n  \"image_size\": [%lld, %lld]", (long long)c->image[1],
                       (long long)c->image[2]);
    wefti_config_write_int(t, "patch_size", c->patch);
    wefti_config_write_raw(t, "qkv_bias", c->no_qkv_bias ? "false" : "true");
    wefti_config_write_raw(t, "id2label", "{"); /* transformers counts the classes here */
    for (int64_t i = 0; i < c->classes; i++)
        wefti_text_add(t, "%s\"%lld\": \"LABEL_%lld\"", i ? ", " : "", (long long)i, (long long)i);
    wefti_text_add(t, "}");
    wefti_config_write_raw(t, "label2id", "{");
    for (int64_t i = 0; i < c->classes; i++)
        wefti_text_add(t, "%s\"LABEL_%lld\": %lld", i ? ", " : "", (long long)i, (long long)i);
    wefti_text_add(t, "}");
}

static void write_own(wefti_text *t, const weft_model_config *c) {
    wefti_text_add(t, ",\n  \"image\": [%lld, %lld, %lld]", (long long)c->image[0],
                   (long long)c->image[1], (long long)c->image[2]);
    wefti_config_write_int(t, "classes", c->classes);
    write_real(t, "dropout", c->dropout);
    if (c->family == WEFT_FAMILY_MLP) {
        wefti_config_write_int(t, "layers", c->layers);
        wefti_config_write_int(t, "hidden", c->hidden);
    } else if (c->family != WEFT_FAMILY_LENET) {
        wefti_config_write_int(t, "hidden", c->hidden);
        write_real(t, "norm_eps", c->norm_eps);
    }
}

static void (*const writers[WEFT_FAMILIES])(wefti_text *t, const weft_model_config *c) = {
#define ROW(p, name, build, config, ...) [WEFT_FAMILY_##name] = write_##config,
    WEFTI_FAMILY_ROWS(ROW, )
#undef ROW
};

void wefti_config_write(wefti_text *t, const weft_model_config *c) {
    writers[c->family](t, c);
}
