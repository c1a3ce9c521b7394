/* Reads a family's settings from config.json. See interop/config.h. */
#include "interop/config.h"

#include <math.h>
#include <string.h>

#include "models/family.h"

const char *const wefti_gpt2_dropout[3] = {"resid_pdrop", "attn_pdrop", "embd_pdrop"};
const char *const wefti_bert_dropout[2] = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
const char *const wefti_llama_dropout[1] = {"attention_dropout"};

/* gpt2-moe has the keys of gpt2, and mixtral's keys for its experts. */
static weft_status read_experts(const wefti_json *o, int64_t per_token, weft_model_config *c) {
    WEFT_TRY(wefti_config_int_or(o, "num_local_experts", 8, &c->experts));
    WEFT_TRY(wefti_config_int_or(o, "num_experts_per_tok", per_token, &c->experts_per_token));
    WEFT_TRY(wefti_config_real_or(o, "router_aux_loss_coef", 0.001, &c->aux_loss));
    return wefti_config_real_or(o, "capacity_factor", 0, &c->capacity_factor);
}

/* gpt2 and bert are tied, unless the file says otherwise. */
static weft_status read_untied(const wefti_json *o, weft_model_config *c) {
    bool tied;
    WEFT_TRY(wefti_config_bool_or(o, "tie_word_embeddings", true, &tied));
    c->untied = !tied;
    return WEFT_OK;
}

static weft_status read_gpt2(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(wefti_config_int(o, "n_layer", &c->layers));
    WEFT_TRY(wefti_config_int(o, "n_embd", &c->hidden));
    WEFT_TRY(wefti_config_int(o, "n_head", &c->heads));
    WEFT_TRY(wefti_config_int_or(o, "n_inner", 0, &c->ffn));
    WEFT_TRY(wefti_config_int(o, "n_positions", &c->context));
    WEFT_TRY(wefti_config_int(o, "vocab_size", &c->vocab));
    WEFT_TRY(wefti_config_positive_or(o, "layer_norm_epsilon", 1e-5, &c->norm_eps));
    WEFT_TRY(wefti_config_dropout(o, 0.1, 3, wefti_gpt2_dropout, c));
    WEFT_TRY(wefti_config_expect_text(o, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    WEFT_TRY(wefti_config_expect_bool(o, "scale_attn_weights", true, true));
    WEFT_TRY(wefti_config_expect_bool(o, "scale_attn_by_inverse_layer_idx", false, false));
    WEFT_TRY(wefti_config_expect_bool(o, "add_cross_attention", false, false));
    return read_untied(o, c);
}

static weft_status read_gpt2_moe(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_gpt2(o, c));
    return read_experts(o, 1, c);
}

/* Sizes of a stack of layers: the keys of all families but gpt2 and images. */
static weft_status read_stack(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(wefti_config_int(o, "num_hidden_layers", &c->layers));
    WEFT_TRY(wefti_config_int(o, "hidden_size", &c->hidden));
    WEFT_TRY(wefti_config_int(o, "num_attention_heads", &c->heads));
    return wefti_config_int(o, "intermediate_size", &c->ffn);
}

/* YaRN's scale for a length: get_mscale in transformers. */
static double mscale(double factor, double weight) {
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

static weft_status read_yarn(const wefti_json *v, weft_model_config *c) {
    weft_rope_scaling *r = &c->rope_scaling;
    double part, all;
    bool rounded;
    WEFT_TRY(wefti_config_nonzero_or(v, "beta_fast", 32, &r->beta_fast));
    WEFT_TRY(wefti_config_nonzero_or(v, "beta_slow", 1, &r->beta_slow));
    WEFT_REQUIRE(r->beta_fast > 0 && r->beta_slow > 0, WEFT_E_ARG,
                 "beta_fast and beta_slow are %g and %g: they must be positive", r->beta_fast,
                 r->beta_slow);
    WEFT_TRY(wefti_config_bool_or(v, "truncate", true, &rounded));
    r->exact = !rounded;
    WEFT_TRY(wefti_config_real_or(v, "mscale", 0, &part));
    WEFT_TRY(wefti_config_real_or(v, "mscale_all_dim", 0, &all));
    double standard = part != 0 && all != 0 ? mscale(r->factor, part) / mscale(r->factor, all)
                                            : mscale(r->factor, 1);
    WEFT_TRY(wefti_config_real_or(v, "attention_factor", standard, &c->attention_factor));
    WEFT_REQUIRE(c->attention_factor > 0, WEFT_E_ARG, "attention_factor is %g: it must be positive",
                 c->attention_factor);
    return wefti_config_int_or(v, "original_max_position_embeddings", c->context,
                               &r->original_context);
}

/* rope_type, in early files type; left out: default. */
static weft_status read_rope_type(const wefti_json *v, const char **out) {
    static const char *const types[] = {"default", "linear", "llama3", "yarn"};
    const char *key = wefti_config_get(v, "rope_type") ? "rope_type" : "type";
    const wefti_json *kind = wefti_config_get(v, key);
    size_t t = 0;
    WEFT_REQUIRE(!kind || kind->kind == WEFTI_JSON_TEXT, WEFT_E_ARG, "%s must be a text", key);
    while (kind && t < 4 && strcmp(types[t], kind->as.text)) t++;
    WEFT_REQUIRE(t < 4, WEFT_E_NO_IMPL,
                 "%s is \"%s\": only default, linear, llama3 or yarn is supported", key,
                 kind->as.text);
    *out = types[t];
    return WEFT_OK;
}

/* rope_scaling (transformers 4) or rope_parameters (5): no scaling, "linear", Llama 3.1's, YaRN's.
 */
static weft_status read_scaling(const wefti_json *v, weft_model_config *c) {
    weft_rope_scaling *r = &c->rope_scaling;
    const char *type;
    WEFT_TRY(read_rope_type(v, &type));
    WEFT_TRY(wefti_config_positive_or(v, "rope_theta", c->rope_theta, &c->rope_theta));
    if (!strcmp(type, "default")) return WEFT_OK;
    WEFT_TRY(wefti_config_real_or(v, "factor", 0, &r->factor));
    WEFT_REQUIRE(r->factor >= 1, WEFT_E_ARG, "factor is %g: it must be 1 or more", r->factor);
    if (!strcmp(type, "linear")) return WEFT_OK;
    if (!strcmp(type, "yarn")) return read_yarn(v, c);
    WEFT_TRY(wefti_config_real_or(v, "low_freq_factor", 0, &r->low_freq_factor));
    WEFT_TRY(wefti_config_real_or(v, "high_freq_factor", 0, &r->high_freq_factor));
    return wefti_config_int(v, "original_max_position_embeddings", &r->original_context);
}

/* Of both the older one counts alone, unless it is empty, as in transformers. */
static weft_status read_rope(const wefti_json *o, weft_model_config *c) {
    const wefti_json *old = wefti_config_get(o, "rope_scaling");
    bool is_empty = !old || (old->kind == WEFTI_JSON_OBJECT && old->count == 0);
    const char *key = is_empty ? "rope_parameters" : "rope_scaling";
    const wefti_json *v = wefti_config_get(o, key);
    if (!v) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "%s must be an object", key);
    weft_status status = read_scaling(v, c);
    return status < 0 ? wefti_prefix(status, "%s", key) : WEFT_OK;
}

/* The defaults of transformers for a family like llama. kv_heads 0: as many as heads. */
typedef struct llama_defaults {
    int64_t kv_heads, context;
    double norm_eps, rope_theta;
} llama_defaults;

static weft_status read_llama_with(const wefti_json *o, llama_defaults d, weft_model_config *c) {
    WEFT_TRY(read_stack(o, c));
    bool grouped = wefti_json_get(o, "num_key_value_heads"); /* null: as many as heads */
    WEFT_TRY(wefti_config_int_or(o, "num_key_value_heads", grouped ? 0 : d.kv_heads, &c->kv_heads));
    WEFT_TRY(wefti_config_int_or(o, "max_position_embeddings", d.context, &c->context));
    WEFT_TRY(wefti_config_int(o, "vocab_size", &c->vocab));
    WEFT_TRY(wefti_config_positive_or(o, "rms_norm_eps", d.norm_eps, &c->norm_eps));
    WEFT_TRY(wefti_config_positive_or(o, "rope_theta", d.rope_theta, &c->rope_theta));
    WEFT_TRY(read_rope(o, c));
    WEFT_TRY(wefti_config_dropout(o, 0, 1, wefti_llama_dropout, c));
    WEFT_TRY(wefti_config_bool_or(o, "tie_word_embeddings", false, &c->tied));
    WEFT_TRY(wefti_config_expect_text(o, "hidden_act", "silu", "swish"));
    return wefti_config_int_or(o, "head_dim", 0, &c->head_dim);
}

static weft_status read_llama(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){0, 2048, 1e-6, 10000.0}, c));
    WEFT_TRY(wefti_config_bool_or(o, "attention_bias", false, &c->attention_bias));
    return wefti_config_bool_or(o, "mlp_bias", false, &c->mlp_bias);
}

/* Reads sliding_window. Missing: `standard`; null: no window. */
static weft_status read_window(const wefti_json *o, int64_t standard, weft_model_config *c) {
    bool given = wefti_json_get(o, "sliding_window");
    return wefti_config_int_or(o, "sliding_window", given ? 0 : standard, &c->window);
}

static weft_status expect_no_biases(const wefti_json *o) {
    WEFT_TRY(wefti_config_expect_bool(o, "attention_bias", false, false));
    return wefti_config_expect_bool(o, "mlp_bias", false, false);
}

static weft_status read_mistral(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){8, 4096 * 32, 1e-6, 10000.0}, c));
    WEFT_TRY(expect_no_biases(o));
    return read_window(o, 4096, c);
}

/* The first layer with a window of a qwen2 that uses windows. layer_types decides, else
 * max_window_layers. */
static weft_status read_window_from(const wefti_json *o, int64_t *out) {
    const wefti_json *types = wefti_config_get(o, "layer_types"),
                     *first = wefti_config_get(o, "max_window_layers");
    WEFT_REQUIRE(!types || types->kind == WEFTI_JSON_ARRAY, WEFT_E_ARG,
                 "layer_types must be a list of texts");
    WEFT_REQUIRE(!first || (first->kind == WEFTI_JSON_INT && first->as.integer >= 0), WEFT_E_ARG,
                 "max_window_layers must be a whole number, 0 or more");
    bool begun = false;
    *out = types ? 0 : first ? first->as.integer : 28;
    for (const wefti_json *type = types ? types->as.child : NULL; type; type = type->next) {
        WEFT_REQUIRE(type->kind == WEFTI_JSON_TEXT, WEFT_E_ARG,
                     "layer_types must be a list of texts");
        bool windowed = !strcmp(type->as.text, "sliding_attention");
        WEFT_REQUIRE(windowed || !strcmp(type->as.text, "full_attention"), WEFT_E_NO_IMPL,
                     "layer_types has \"%s\": only full_attention and sliding_attention are "
                     "supported",
                     type->as.text);
        WEFT_REQUIRE(windowed || !begun, WEFT_E_NO_IMPL,
                     "layer_types has full_attention after sliding_attention: only the first "
                     "layers can be without a window");
        begun = windowed;
        *out += !windowed;
    }
    return WEFT_OK;
}

static weft_status read_late_window(const wefti_json *o, weft_model_config *c) {
    bool window;
    int64_t from;
    WEFT_TRY(wefti_config_bool_or(o, "use_sliding_window", false, &window));
    WEFT_TRY(read_window_from(o, &from));
    if (!window || from >= c->layers) return WEFT_OK;
    WEFT_TRY(read_window(o, 4096, c));
    c->window_from = c->window ? from : 0;
    return WEFT_OK;
}

static weft_status read_qwen2(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){32, 32768, 1e-6, 10000.0}, c));
    return read_late_window(o, c);
}

static weft_status read_qwen3(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){32, 32768, 1e-6, 10000.0}, c));
    if (!c->head_dim) c->head_dim = 128;
    WEFT_TRY(wefti_config_bool_or(o, "attention_bias", false, &c->attention_bias));
    return read_late_window(o, c);
}

static weft_status read_olmo2(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){0, 2048, 1e-5, 10000.0}, c));
    return wefti_config_bool_or(o, "attention_bias", false, &c->attention_bias);
}

static weft_status read_mixtral(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){8, 4096 * 32, 1e-5, 1000000.0}, c));
    WEFT_TRY(read_experts(o, 2, c));
    WEFT_TRY(expect_no_biases(o));
    WEFT_TRY(read_window(o, 0, c));
    double noise;
    WEFT_TRY(wefti_config_real_or(o, "router_jitter_noise", 0, &noise));
    WEFT_REQUIRE(noise == 0, WEFT_E_NO_IMPL, "router_jitter_noise is %g: only 0 is supported",
                 noise);
    return WEFT_OK;
}

/* Keys that bert and vit share. */
static weft_status read_encoder(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_stack(o, c));
    WEFT_TRY(wefti_config_positive_or(o, "layer_norm_eps", 1e-12, &c->norm_eps));
    return wefti_config_expect_text(o, "hidden_act", "gelu", NULL);
}

static weft_status read_bert(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_encoder(o, c));
    WEFT_TRY(wefti_config_dropout(o, 0.1, 2, wefti_bert_dropout, c));
    WEFT_TRY(wefti_config_int_or(o, "max_position_embeddings", 512, &c->context));
    WEFT_TRY(wefti_config_int(o, "vocab_size", &c->vocab));
    int64_t types;
    WEFT_TRY(wefti_config_int_or(o, "type_vocab_size", 2, &types));
    WEFT_REQUIRE(types == 2, WEFT_E_NO_IMPL, "type_vocab_size is %lld: only 2 is supported",
                 (long long)types);
    WEFT_TRY(wefti_config_expect_text(o, "position_embedding_type", "absolute", NULL));
    WEFT_TRY(wefti_config_expect_bool(o, "is_decoder", false, false));
    WEFT_TRY(wefti_config_expect_bool(o, "add_cross_attention", false, false));
    return read_untied(o, c);
}

static weft_status read_vit(const wefti_json *o, weft_model_config *c) {
    int64_t patch[2];
    WEFT_TRY(read_encoder(o, c));
    WEFT_TRY(wefti_config_dropout(o, 0, 2, wefti_bert_dropout, c));
    WEFT_TRY(wefti_config_int_or(o, "num_channels", 3, &c->image[0]));
    WEFT_TRY(wefti_config_sizes(o, "image_size", 2, &c->image[1]));
    WEFT_TRY(wefti_config_sizes(o, "patch_size", 2, patch));
    WEFT_REQUIRE(patch[0] == patch[1], WEFT_E_NO_IMPL,
                 "patch_size is [%lld, %lld]: only square patches are supported",
                 (long long)patch[0], (long long)patch[1]);
    c->patch = patch[0];
    bool biased;
    WEFT_TRY(wefti_config_bool_or(o, "qkv_bias", true, &biased));
    c->no_qkv_bias = !biased;
    const wefti_json *labels = wefti_config_get(o, "id2label");
    if (!labels) return wefti_config_int_or(o, "num_labels", 2, &c->classes);
    WEFT_REQUIRE(labels->kind == WEFTI_JSON_OBJECT && labels->count > 0, WEFT_E_ARG,
                 "id2label must be an object that names each class");
    c->classes = labels->count;
    return WEFT_OK;
}

/* mlp, lenet, resnet: weft_model_config's own fields. */
static weft_status read_own(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(wefti_config_sizes(o, "image", 3, c->image));
    WEFT_TRY(wefti_config_int(o, "classes", &c->classes));
    WEFT_TRY(wefti_config_real_or(o, "dropout", 0, &c->dropout));
    if (c->family == WEFT_FAMILY_MLP) {
        WEFT_TRY(wefti_config_int(o, "layers", &c->layers));
        return wefti_config_int(o, "hidden", &c->hidden);
    }
    if (c->family == WEFT_FAMILY_LENET) return WEFT_OK;
    WEFT_TRY(wefti_config_int_or(o, "hidden", 0, &c->hidden));
    return wefti_config_real_or(o, "norm_eps", 0, &c->norm_eps);
}

static weft_status (*const readers[WEFT_FAMILIES])(const wefti_json *o, weft_model_config *c) = {
#define ROW(p, name, build, config, ...) [WEFT_FAMILY_##name] = read_##config,
    WEFTI_FAMILY_ROWS(ROW, )
#undef ROW
};

weft_status wefti_config_read(const wefti_json *o, weft_model_config *c) {
    return readers[c->family](o, c);
}
