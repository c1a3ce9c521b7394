/* Reads and writes config.json, the file that Hugging Face's transformers keeps beside a model.
 *
 * Versions 4 and 5 differ in places (rope_theta or rope_parameters, torch_dtype or dtype). Both are
 * read, and both forms are written. A setting that the family does not implement is refused by
 * name, because ignoring it would compute another model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "weft/model.h"

/* ---- reading ---- */

static const wefti_json *member(const wefti_json *o, const char *key) {
    const wefti_json *v = wefti_json_get(o, key);
    return v && v->kind != WEFTI_JSON_NULL ? v : NULL; /* null means: not given */
}

static weft_status read_int(const wefti_json *o, const char *key, int64_t *out) {
    const wefti_json *v = member(o, key);
    WEFT_REQUIRE(v, WEFT_E_ARG, "%s is missing: a whole number", key);
    WEFT_REQUIRE(v->kind == WEFTI_JSON_INT && v->as.integer > 0, WEFT_E_ARG,
                 "%s must be a whole number, 1 or more", key);
    *out = v->as.integer;
    return WEFT_OK;
}

static weft_status read_int_or(const wefti_json *o, const char *key, int64_t standard,
                               int64_t *out) {
    if (member(o, key)) return read_int(o, key, out);
    *out = standard;
    return WEFT_OK;
}

static weft_status read_real_or(const wefti_json *o, const char *key, double standard,
                                double *out) {
    const wefti_json *v = member(o, key);
    double x = standard;
    if (v && v->kind == WEFTI_JSON_INT)
        x = (double)v->as.integer;
    else if (v && v->kind == WEFTI_JSON_REAL)
        x = v->as.real;
    else
        WEFT_REQUIRE(!v, WEFT_E_ARG, "%s must be a number", key);
    WEFT_REQUIRE(isfinite(x), WEFT_E_ARG, "%s must be a finite number", key);
    *out = x;
    return WEFT_OK;
}

/* Reads a number for which 0 would mean the family's default. */
static weft_status read_positive_or(const wefti_json *o, const char *key, double standard,
                                    double *out) {
    WEFT_TRY(read_real_or(o, key, standard, out));
    WEFT_REQUIRE(*out > 0, WEFT_E_ARG, "%s is %g: it must be positive", key, *out);
    return WEFT_OK;
}

static weft_status read_bool_or(const wefti_json *o, const char *key, bool standard, bool *out) {
    const wefti_json *v = member(o, key);
    WEFT_REQUIRE(!v || v->kind == WEFTI_JSON_BOOL, WEFT_E_ARG, "%s must be true or false", key);
    *out = v ? v->as.boolean : standard;
    return WEFT_OK;
}

/* A switch that must have this value; absent means `standard`. */
static weft_status expect_bool(const wefti_json *o, const char *key, bool standard, bool wanted) {
    bool value;
    WEFT_TRY(read_bool_or(o, key, standard, &value));
    WEFT_REQUIRE(value == wanted, WEFT_E_NO_IMPL, "%s is %s: only %s is supported", key,
                 value ? "true" : "false", wanted ? "true" : "false");
    return WEFT_OK;
}

/* A text that must be one of two (`two` may be NULL). A missing key is legal. */
static weft_status expect_text(const wefti_json *o, const char *key, const char *one,
                               const char *two) {
    const wefti_json *v = member(o, key);
    if (!v) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_TEXT, WEFT_E_ARG, "%s must be a text", key);
    bool known = !strcmp(v->as.text, one) || (two && !strcmp(v->as.text, two));
    WEFT_REQUIRE(known, WEFT_E_NO_IMPL, "%s is \"%s\": only %s%s%s is supported", key, v->as.text,
                 one, two ? " or " : "", two ? two : "");
    return WEFT_OK;
}

/* Reads a model's dropout. config.json may have several rates; if they differ, the result is NaN.
 */
static weft_status read_dropout(const wefti_json *o, double standard, int count,
                                const char *const *keys, double *out) {
    for (int i = 0; i < count; i++) {
        double rate;
        WEFT_TRY(read_real_or(o, keys[i], standard, &rate));
        WEFT_REQUIRE(rate >= 0 && rate < 1, WEFT_E_ARG, "%s is %g: it must be in [0, 1)", keys[i],
                     rate);
        *out = i == 0 || rate == *out ? rate : NAN;
    }
    return WEFT_OK;
}

/* bos_token_id, pad_token_id: a number or null. A number outside the vocabulary counts as null. */
static weft_status read_token(const wefti_json *o, const char *key, int64_t vocab, bool *has,
                              int32_t *id) {
    const wefti_json *v = member(o, key);
    WEFT_REQUIRE(!v || v->kind == WEFTI_JSON_INT, WEFT_E_ARG, "%s must be the number of a token",
                 key);
    *has = v && v->as.integer >= 0 && v->as.integer < vocab;
    *id = *has ? (int32_t)v->as.integer : 0;
    return WEFT_OK;
}

/* eos_token_id: a number, several, or null. Numbers outside the vocabulary, which some files have,
 * end no text. */
static weft_status read_ends(const wefti_json *o, weft_model_config *c) {
    const wefti_json *v = member(o, "eos_token_id");
    if (!v) return WEFT_OK;
    bool several = v->kind == WEFTI_JSON_ARRAY;
    int64_t count = 0;
    for (const wefti_json *item = several ? v->as.child : v; item;
         item = several ? item->next : NULL) {
        WEFT_REQUIRE(item->kind == WEFTI_JSON_INT, WEFT_E_ARG,
                     "eos_token_id must be the number of a token, or a list of numbers");
        int64_t id = item->as.integer;
        if (id < 0 || id >= c->vocab) continue;
        WEFT_REQUIRE(count < WEFT_MAX_END_TOKENS, WEFT_E_NO_IMPL,
                     "eos_token_id lists %d tokens: at most %d are supported", v->count,
                     WEFT_MAX_END_TOKENS);
        c->ends[count++] = (int32_t)id;
    }
    c->end_count = count;
    return WEFT_OK;
}

static const char *const gpt2_dropout[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
static const char *const bert_dropout[] = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
static const char *const llama_dropout[] = {"attention_dropout"};

/* gpt2-moe has the keys of gpt2, and mixtral's keys for its experts. */
static weft_status read_experts(const wefti_json *o, int64_t per_token, weft_model_config *c) {
    WEFT_TRY(read_int_or(o, "num_local_experts", 8, &c->experts));
    WEFT_TRY(read_int_or(o, "num_experts_per_tok", per_token, &c->experts_per_token));
    WEFT_TRY(read_real_or(o, "router_aux_loss_coef", 0.001, &c->aux_loss));
    return read_real_or(o, "capacity_factor", 0, &c->capacity_factor);
}

static weft_status read_gpt2(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_int(o, "n_layer", &c->layers));
    WEFT_TRY(read_int(o, "n_embd", &c->hidden));
    WEFT_TRY(read_int(o, "n_head", &c->heads));
    WEFT_TRY(read_int_or(o, "n_inner", 0, &c->ffn));
    WEFT_TRY(read_int(o, "n_positions", &c->context));
    WEFT_TRY(read_int(o, "vocab_size", &c->vocab));
    WEFT_TRY(read_positive_or(o, "layer_norm_epsilon", 1e-5, &c->norm_eps));
    WEFT_TRY(read_dropout(o, 0.1, 3, gpt2_dropout, &c->dropout));
    WEFT_TRY(expect_text(o, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    WEFT_TRY(expect_bool(o, "scale_attn_weights", true, true));
    WEFT_TRY(expect_bool(o, "scale_attn_by_inverse_layer_idx", false, false));
    WEFT_TRY(expect_bool(o, "add_cross_attention", false, false));
    return expect_bool(o, "tie_word_embeddings", true, true);
}

static weft_status read_gpt2_moe(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_gpt2(o, c));
    return read_experts(o, 1, c);
}

/* The number that is not null and not 0, which stands for "left out" there. */
static weft_status read_some_or(const wefti_json *o, const char *key, double standard,
                                double *out) {
    WEFT_TRY(read_real_or(o, key, standard, out));
    if (*out == 0) *out = standard;
    return WEFT_OK;
}

/* YaRN's scale for a length: get_mscale in transformers. */
static double mscale(double factor, double weight) {
    return factor > 1 ? 0.1 * weight * log(factor) + 1 : 1;
}

static weft_status read_yarn(const wefti_json *v, weft_model_config *c) {
    weft_rope_scaling *r = &c->rope_scaling;
    double part, all;
    bool rounded;
    WEFT_TRY(read_some_or(v, "beta_fast", 32, &r->beta_fast));
    WEFT_TRY(read_some_or(v, "beta_slow", 1, &r->beta_slow));
    WEFT_REQUIRE(r->beta_fast > 0 && r->beta_slow > 0, WEFT_E_ARG,
                 "beta_fast and beta_slow are %g and %g: they must be positive", r->beta_fast,
                 r->beta_slow);
    WEFT_TRY(read_bool_or(v, "truncate", true, &rounded));
    r->exact = !rounded;
    WEFT_TRY(read_real_or(v, "mscale", 0, &part));
    WEFT_TRY(read_real_or(v, "mscale_all_dim", 0, &all));
    double standard = part != 0 && all != 0 ? mscale(r->factor, part) / mscale(r->factor, all)
                                            : mscale(r->factor, 1);
    WEFT_TRY(read_real_or(v, "attention_factor", standard, &c->attention_factor));
    WEFT_REQUIRE(c->attention_factor > 0, WEFT_E_ARG, "attention_factor is %g: it must be positive",
                 c->attention_factor);
    return read_int_or(v, "original_max_position_embeddings", c->context, &r->original_context);
}

/* rope_type, in early files type; left out: default. */
static weft_status read_rope_type(const wefti_json *v, const char **out) {
    static const char *const types[] = {"default", "linear", "llama3", "yarn"};
    const char *key = member(v, "rope_type") ? "rope_type" : "type";
    const wefti_json *kind = member(v, key);
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
    WEFT_TRY(read_positive_or(v, "rope_theta", c->rope_theta, &c->rope_theta));
    if (!strcmp(type, "default")) return WEFT_OK;
    WEFT_TRY(read_real_or(v, "factor", 0, &r->factor));
    WEFT_REQUIRE(r->factor >= 1, WEFT_E_ARG, "factor is %g: it must be 1 or more", r->factor);
    if (!strcmp(type, "linear")) return WEFT_OK;
    if (!strcmp(type, "yarn")) return read_yarn(v, c);
    WEFT_TRY(read_real_or(v, "low_freq_factor", 0, &r->low_freq_factor));
    WEFT_TRY(read_real_or(v, "high_freq_factor", 0, &r->high_freq_factor));
    return read_int(v, "original_max_position_embeddings", &r->original_context);
}

/* Of both the older one counts alone, unless it is empty, as in transformers. */
static weft_status read_rope(const wefti_json *o, weft_model_config *c) {
    const wefti_json *old = member(o, "rope_scaling");
    bool is_empty = !old || (old->kind == WEFTI_JSON_OBJECT && old->count == 0);
    const char *key = is_empty ? "rope_parameters" : "rope_scaling";
    const wefti_json *v = member(o, key);
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
    WEFT_TRY(read_int(o, "num_hidden_layers", &c->layers));
    WEFT_TRY(read_int(o, "hidden_size", &c->hidden));
    WEFT_TRY(read_int(o, "num_attention_heads", &c->heads));
    bool grouped = wefti_json_get(o, "num_key_value_heads"); /* null: as many as heads */
    WEFT_TRY(read_int_or(o, "num_key_value_heads", grouped ? 0 : d.kv_heads, &c->kv_heads));
    WEFT_TRY(read_int(o, "intermediate_size", &c->ffn));
    WEFT_TRY(read_int_or(o, "max_position_embeddings", d.context, &c->context));
    WEFT_TRY(read_int(o, "vocab_size", &c->vocab));
    WEFT_TRY(read_positive_or(o, "rms_norm_eps", d.norm_eps, &c->norm_eps));
    WEFT_TRY(read_positive_or(o, "rope_theta", d.rope_theta, &c->rope_theta));
    WEFT_TRY(read_rope(o, c));
    WEFT_TRY(read_dropout(o, 0, 1, llama_dropout, &c->dropout));
    WEFT_TRY(read_bool_or(o, "tie_word_embeddings", false, &c->tied));
    WEFT_TRY(expect_text(o, "hidden_act", "silu", "swish"));
    return read_int_or(o, "head_dim", 0, &c->head_dim);
}

static weft_status read_llama(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){0, 2048, 1e-6, 10000.0}, c));
    WEFT_TRY(read_bool_or(o, "attention_bias", false, &c->attention_bias));
    return read_bool_or(o, "mlp_bias", false, &c->mlp_bias);
}

/* Reads sliding_window. Missing: `standard`; null: no window. */
static weft_status read_window(const wefti_json *o, int64_t standard, weft_model_config *c) {
    bool given = wefti_json_get(o, "sliding_window");
    return read_int_or(o, "sliding_window", given ? 0 : standard, &c->window);
}

static weft_status expect_no_biases(const wefti_json *o) {
    WEFT_TRY(expect_bool(o, "attention_bias", false, false));
    return expect_bool(o, "mlp_bias", false, false);
}

static weft_status read_mistral(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){8, 4096 * 32, 1e-6, 10000.0}, c));
    WEFT_TRY(expect_no_biases(o));
    return read_window(o, 4096, c);
}

/* The first layer with a window of a qwen2 that uses windows. layer_types decides, else
 * max_window_layers. */
static weft_status read_window_from(const wefti_json *o, int64_t *out) {
    const wefti_json *types = member(o, "layer_types"), *first = member(o, "max_window_layers");
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

static weft_status read_qwen2(const wefti_json *o, weft_model_config *c) {
    bool window;
    int64_t from;
    WEFT_TRY(read_llama_with(o, (llama_defaults){32, 32768, 1e-6, 10000.0}, c));
    WEFT_TRY(read_bool_or(o, "use_sliding_window", false, &window));
    WEFT_TRY(read_window_from(o, &from));
    if (!window || from >= c->layers) return WEFT_OK;
    WEFT_TRY(read_window(o, 4096, c));
    c->window_from = c->window ? from : 0;
    return WEFT_OK;
}

static weft_status read_mixtral(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_llama_with(o, (llama_defaults){8, 4096 * 32, 1e-5, 1000000.0}, c));
    WEFT_TRY(read_experts(o, 2, c));
    WEFT_TRY(expect_no_biases(o));
    WEFT_TRY(read_window(o, 0, c));
    double noise;
    WEFT_TRY(read_real_or(o, "router_jitter_noise", 0, &noise));
    WEFT_REQUIRE(noise == 0, WEFT_E_NO_IMPL, "router_jitter_noise is %g: only 0 is supported",
                 noise);
    return WEFT_OK;
}

/* Keys that bert and vit share. */
static weft_status read_encoder(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_int(o, "num_hidden_layers", &c->layers));
    WEFT_TRY(read_int(o, "hidden_size", &c->hidden));
    WEFT_TRY(read_int(o, "num_attention_heads", &c->heads));
    WEFT_TRY(read_int(o, "intermediate_size", &c->ffn));
    WEFT_TRY(read_positive_or(o, "layer_norm_eps", 1e-12, &c->norm_eps));
    return expect_text(o, "hidden_act", "gelu", NULL);
}

static weft_status read_bert(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_encoder(o, c));
    WEFT_TRY(read_dropout(o, 0.1, 2, bert_dropout, &c->dropout));
    WEFT_TRY(read_int_or(o, "max_position_embeddings", 512, &c->context));
    WEFT_TRY(read_int(o, "vocab_size", &c->vocab));
    int64_t types;
    WEFT_TRY(read_int_or(o, "type_vocab_size", 2, &types));
    WEFT_REQUIRE(types == 2, WEFT_E_NO_IMPL, "type_vocab_size is %lld: only 2 is supported",
                 (long long)types);
    WEFT_TRY(expect_text(o, "position_embedding_type", "absolute", NULL));
    WEFT_TRY(expect_bool(o, "is_decoder", false, false));
    WEFT_TRY(expect_bool(o, "add_cross_attention", false, false));
    return expect_bool(o, "tie_word_embeddings", true, true);
}

/* A list of `count` sizes, or one number for all of them. */
static weft_status read_sizes(const wefti_json *o, const char *key, int count, int64_t *out) {
    const wefti_json *v = member(o, key);
    if (!v || v->kind != WEFTI_JSON_ARRAY) {
        WEFT_TRY(read_int(o, key, out));
        for (int i = 1; i < count; i++) out[i] = out[0];
        return WEFT_OK;
    }
    WEFT_REQUIRE(v->count == count, WEFT_E_ARG, "%s must hold %d whole numbers, not %d", key, count,
                 v->count);
    WEFTI_JSON_EACH(item, v) {
        WEFT_REQUIRE(item->kind == WEFTI_JSON_INT && item->as.integer > 0, WEFT_E_ARG,
                     "%s must hold whole numbers, 1 or more", key);
        *out++ = item->as.integer;
    }
    return WEFT_OK;
}

static weft_status read_vit(const wefti_json *o, weft_model_config *c) {
    int64_t patch[2];
    WEFT_TRY(read_encoder(o, c));
    WEFT_TRY(read_dropout(o, 0, 2, bert_dropout, &c->dropout));
    WEFT_TRY(read_int_or(o, "num_channels", 3, &c->image[0]));
    WEFT_TRY(read_sizes(o, "image_size", 2, &c->image[1]));
    WEFT_TRY(read_sizes(o, "patch_size", 2, patch));
    WEFT_REQUIRE(patch[0] == patch[1], WEFT_E_NO_IMPL,
                 "patch_size is [%lld, %lld]: only square patches are supported",
                 (long long)patch[0], (long long)patch[1]);
    c->patch = patch[0];
    WEFT_TRY(expect_bool(o, "qkv_bias", true, true));
    const wefti_json *labels = member(o, "id2label");
    if (!labels) return read_int_or(o, "num_labels", 2, &c->classes);
    WEFT_REQUIRE(labels->kind == WEFTI_JSON_OBJECT && labels->count > 0, WEFT_E_ARG,
                 "id2label must be an object that names each class");
    c->classes = labels->count;
    return WEFT_OK;
}

/* mlp, lenet, resnet: weft_model_config's own fields. */
static weft_status read_own(const wefti_json *o, weft_model_config *c) {
    WEFT_TRY(read_sizes(o, "image", 3, c->image));
    WEFT_TRY(read_int(o, "classes", &c->classes));
    WEFT_TRY(read_real_or(o, "dropout", 0, &c->dropout));
    if (c->family == WEFT_FAMILY_MLP) {
        WEFT_TRY(read_int(o, "layers", &c->layers));
        return read_int(o, "hidden", &c->hidden);
    }
    if (c->family == WEFT_FAMILY_LENET) return WEFT_OK;
    WEFT_TRY(read_int_or(o, "hidden", 0, &c->hidden));
    return read_real_or(o, "norm_eps", 0, &c->norm_eps);
}

/* ---- writing ---- */

static void write_int(wefti_text *t, const char *key, int64_t value) {
    wefti_text_add(t, ",\n  \"%s\": %lld", key, (long long)value);
}

/* Writes a point always: transformers refuses whole numbers for some keys. */
static void write_real(wefti_text *t, const char *key, double value) {
    wefti_text_add(t, ",\n  \"%s\": ", key);
    wefti_json_real(t, value);
    if (value == floor(value) && fabs(value) < 1e15) wefti_text_add(t, ".0");
}

static void write_raw(wefti_text *t, const char *key, const char *value) {
    wefti_text_add(t, ",\n  \"%s\": %s", key, value);
}

static void write_int_or_null(wefti_text *t, const char *key, bool has, int64_t value) {
    if (has)
        write_int(t, key, value);
    else
        write_raw(t, key, "null");
}

/* Writes one token as a number, as most files have it. Writes no token as null: transformers'
 * defaults for a missing key may lie outside the vocabulary. */
static void write_ends(wefti_text *t, const weft_model_config *c) {
    if (c->end_count == 0) {
        write_raw(t, "eos_token_id", "null");
    } else if (c->end_count == 1) {
        write_int(t, "eos_token_id", c->ends[0]);
    } else {
        write_raw(t, "eos_token_id", "[");
        for (int64_t i = 0; i < c->end_count; i++)
            wefti_text_add(t, "%s%d", i ? ", " : "", (int)c->ends[i]);
        wefti_text_add(t, "]");
    }
}

static void write_dropout(wefti_text *t, double rate, int count, const char *const *keys) {
    for (int i = 0; i < count; i++) write_real(t, keys[i], rate);
}

static void write_experts(wefti_text *t, const weft_model_config *c) {
    write_int(t, "num_local_experts", c->experts);
    write_int(t, "num_experts_per_tok", c->experts_per_token);
    write_real(t, "router_aux_loss_coef", c->aux_loss);
    write_real(t, "capacity_factor", c->capacity_factor);
}

static void write_gpt2_sizes(wefti_text *t, const weft_model_config *c) {
    write_int(t, "n_layer", c->layers);
    write_int(t, "n_embd", c->hidden);
    write_int(t, "n_head", c->heads);
    write_int(t, "n_inner", c->ffn);
    write_int(t, "n_positions", c->context);
    write_int(t, "vocab_size", c->vocab);
    write_real(t, "layer_norm_epsilon", c->norm_eps);
    write_dropout(t, c->dropout, 3, gpt2_dropout);
    write_raw(t, "activation_function", "\"gelu_new\"");
    write_raw(t, "tie_word_embeddings", "true");
}

static void write_gpt2(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"GPT2LMHeadModel\"]");
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
    write_raw(t, key, "{\"rope_type\": ");
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
        write_raw(t, "truncate", r->exact ? "false" : "true");
        write_real(t, "attention_factor", c->attention_factor > 0 ? c->attention_factor : 1);
    }
    if (llama3 || yarn) write_int(t, "original_max_position_embeddings", r->original_context);
    wefti_text_add(t, "}");
}

static void write_llama_sizes(wefti_text *t, const weft_model_config *c) {
    write_int(t, "num_hidden_layers", c->layers);
    write_int(t, "hidden_size", c->hidden);
    write_int(t, "num_attention_heads", c->heads);
    write_int(t, "num_key_value_heads", c->kv_heads);
    write_int(t, "head_dim", c->head_dim);
    write_int(t, "intermediate_size", c->ffn);
    write_int(t, "max_position_embeddings", c->context);
    write_int(t, "vocab_size", c->vocab);
    write_real(t, "rms_norm_eps", c->norm_eps);
    write_dropout(t, c->dropout, 1, llama_dropout);
    write_real(t, "rope_theta", c->rope_theta);
    if (c->rope_scaling.factor > 0) write_rope(t, "rope_scaling", c); /* transformers 4 */
    write_rope(t, "rope_parameters", c);                              /* transformers 5 */
    write_raw(t, "hidden_act", "\"silu\"");
    write_raw(t, "tie_word_embeddings", c->tied ? "true" : "false");
}

static void write_llama(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"LlamaForCausalLM\"]");
    write_llama_sizes(t, c);
    write_raw(t, "attention_bias", c->attention_bias ? "true" : "false");
    write_raw(t, "mlp_bias", c->mlp_bias ? "true" : "false");
}

static void write_window(wefti_text *t, const weft_model_config *c) {
    write_int_or_null(t, "sliding_window", c->window > 0, c->window);
}

static void write_mistral(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"MistralForCausalLM\"]");
    write_llama_sizes(t, c);
    write_window(t, c);
}

static void write_qwen2(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"Qwen2ForCausalLM\"]");
    write_llama_sizes(t, c);
    write_raw(t, "use_sliding_window", c->window > 0 ? "true" : "false");
    write_window(t, c);
    write_int(t, "max_window_layers", c->window > 0 ? c->window_from : c->layers);
}

static void write_mixtral(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"MixtralForCausalLM\"]");
    write_llama_sizes(t, c);
    write_experts(t, c);
    write_window(t, c);
}

static void write_encoder(wefti_text *t, const weft_model_config *c) {
    write_int(t, "num_hidden_layers", c->layers);
    write_int(t, "hidden_size", c->hidden);
    write_int(t, "num_attention_heads", c->heads);
    write_int(t, "intermediate_size", c->ffn);
    write_real(t, "layer_norm_eps", c->norm_eps);
    write_dropout(t, c->dropout, 2, bert_dropout);
    write_raw(t, "hidden_act", "\"gelu\"");
}

static void write_bert(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"BertForMaskedLM\"]");
    write_encoder(t, c);
    write_int(t, "max_position_embeddings", c->context);
    write_int(t, "vocab_size", c->vocab);
    write_int(t, "type_vocab_size", 2);
    write_raw(t, "tie_word_embeddings", "true");
}

static void write_vit(wefti_text *t, const weft_model_config *c) {
    write_raw(t, "architectures", "[\"ViTForImageClassification\"]");
    write_encoder(t, c);
    write_int(t, "num_channels", c->image[0]);
    if (c->image[1] == c->image[2])
        write_int(t, "image_size", c->image[1]);
    else
        wefti_text_add(t, ",\n  \"image_size\": [%lld, %lld]", (long long)c->image[1],
                       (long long)c->image[2]);
    write_int(t, "patch_size", c->patch);
    write_raw(t, "qkv_bias", "true");
    write_raw(t, "id2label", "{"); /* transformers counts the classes here */
    for (int64_t i = 0; i < c->classes; i++)
        wefti_text_add(t, "%s\"%lld\": \"LABEL_%lld\"", i ? ", " : "", (long long)i, (long long)i);
    wefti_text_add(t, "}");
    write_raw(t, "label2id", "{");
    for (int64_t i = 0; i < c->classes; i++)
        wefti_text_add(t, "%s\"LABEL_%lld\": %lld", i ? ", " : "", (long long)i, (long long)i);
    wefti_text_add(t, "}");
}

static void write_own(wefti_text *t, const weft_model_config *c) {
    wefti_text_add(t, ",\n  \"image\": [%lld, %lld, %lld]", (long long)c->image[0],
                   (long long)c->image[1], (long long)c->image[2]);
    write_int(t, "classes", c->classes);
    write_real(t, "dropout", c->dropout);
    if (c->family == WEFT_FAMILY_MLP) {
        write_int(t, "layers", c->layers);
        write_int(t, "hidden", c->hidden);
    } else if (c->family != WEFT_FAMILY_LENET) {
        write_int(t, "hidden", c->hidden);
        write_real(t, "norm_eps", c->norm_eps);
    }
}

/* ---- families ---- */

typedef struct config_form {
    const char *model_type;
    weft_status (*read)(const wefti_json *o, weft_model_config *c);
    void (*write)(wefti_text *t, const weft_model_config *c);
} config_form;

static const config_form forms[WEFT_FAMILIES] = {
    [WEFT_FAMILY_GPT2] = {"gpt2", read_gpt2, write_gpt2},
    [WEFT_FAMILY_LLAMA] = {"llama", read_llama, write_llama},
    [WEFT_FAMILY_BERT] = {"bert", read_bert, write_bert},
    [WEFT_FAMILY_GPT2_MOE] = {"weft-gpt2-moe", read_gpt2_moe, write_gpt2_moe},
    [WEFT_FAMILY_MIXTRAL] = {"mixtral", read_mixtral, write_mixtral},
    [WEFT_FAMILY_MISTRAL] = {"mistral", read_mistral, write_mistral},
    [WEFT_FAMILY_QWEN2] = {"qwen2", read_qwen2, write_qwen2},
    [WEFT_FAMILY_VIT] = {"vit", read_vit, write_vit},
    [WEFT_FAMILY_MLP] = {"weft-mlp", read_own, write_own},
    [WEFT_FAMILY_LENET] = {"weft-lenet", read_own, write_own},
    [WEFT_FAMILY_RESNET18] = {"weft-resnet18", read_own, write_own},
    [WEFT_FAMILY_RESNET50] = {"weft-resnet50", read_own, write_own},
};

static weft_status read_root(const wefti_json *o, weft_model_config *c) {
    const char *type;
    WEFT_REQUIRE(o->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "it must hold one object");
    WEFT_TRY(wefti_json_text(o, "model_type", &type));
    int family = 0;
    while (family < (int)WEFT_FAMILIES && strcmp(forms[family].model_type, type)) family++;
    WEFT_REQUIRE(family < (int)WEFT_FAMILIES, WEFT_E_NO_IMPL,
                 "model_type is \"%s\": only gpt2, llama, bert, mixtral, mistral, qwen2, vit, "
                 "weft-gpt2-moe, weft-mlp, "
                 "weft-lenet, weft-resnet18 and weft-resnet50 are supported",
                 type);
    WEFT_REQUIRE(!member(o, "quantization_config"), WEFT_E_NO_IMPL,
                 "quantization_config is given: quantized models are not supported");
    c->family = (weft_family)family;
    WEFT_TRY(forms[family].read(o, c));
    if (weft_family_is_language(c->family)) {
        WEFT_TRY(read_ends(o, c));
        WEFT_TRY(read_token(o, "bos_token_id", c->vocab, &c->has_begin, &c->begin));
        WEFT_TRY(read_token(o, "pad_token_id", c->vocab, &c->has_pad, &c->pad));
    }
    double dropout = c->dropout;
    if (isnan(dropout)) c->dropout = 0;
    WEFT_TRY(weft_model_complete(c));
    c->dropout = dropout;
    return WEFT_OK;
}

static weft_status read_generation(const wefti_json *o, weft_model_config *c) {
    WEFT_REQUIRE(o->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "it must hold one object");
    return read_ends(o, c);
}

/* Changes *out only on success. */
static weft_status read_with(weft_status (*read)(const wefti_json *o, weft_model_config *c),
                             const char *file, const char *json, weft_model_config *out) {
    const wefti_json_limits limits = {32, 100000, 100000};
    weft_model_config c = *out;
    wefti_arena *arena;
    const wefti_json *root;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, json, (int64_t)strlen(json), &limits, &root);
    if (status == WEFT_OK) status = read(root, &c);
    wefti_arena_destroy(arena);
    if (status < 0) return wefti_prefix(status, "%s", file);
    *out = c;
    return WEFT_OK;
}

weft_status weft_model_config_read(const char *json, weft_model_config *out) {
    weft_model_config c = {0};
    WEFT_TRY(read_with(read_root, "config.json", json, &c));
    *out = c;
    return WEFT_OK;
}

weft_status weft_model_config_read_generation(const char *json, weft_model_config *config) {
    return read_with(read_generation, "generation_config.json", json, config);
}

weft_status weft_model_config_write(const weft_model_config *config, char **out) {
    weft_model_config c = *config;
    wefti_text t = {0};
    WEFT_TRY(weft_model_complete(&c));
    wefti_text_add(&t, "{\n  \"model_type\": \"%s\"", forms[c.family].model_type);
    forms[c.family].write(&t, &c);
    if (weft_family_is_language(c.family)) {
        write_int_or_null(&t, "bos_token_id", c.has_begin, c.begin);
        write_ends(&t, &c);
        write_int_or_null(&t, "pad_token_id", c.has_pad, c.pad);
    }
    write_raw(&t, "dtype", "\"float32\"");       /* transformers 5 */
    write_raw(&t, "torch_dtype", "\"float32\""); /* transformers 4 */
    wefti_text_add(&t, "\n}\n");
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for config.json");
    *out = text;
    return WEFT_OK;
}
