/* Reads and writes config.json, the file that Hugging Face's transformers keeps beside a model.
 *
 * Versions 4 and 5 differ in places (rope_theta or rope_parameters, torch_dtype or dtype). Both are
 * read, and both forms are written. A setting that the family does not implement is refused by
 * name, because ignoring it would compute another model. */
#include "interop/config.h"

#include <string.h>

#include "base/memory.h"
#include "models/family.h"

static const char *const model_types[WEFT_FAMILIES] = {
#define ROW(p, name, build, config, style, traits, type, ...) [WEFT_FAMILY_##name] = (type),
    WEFTI_FAMILY_ROWS(ROW, )
#undef ROW
};
#define SPACED(p, name, build, config, style, traits, type, ...) " " type
static const char known_types[] = WEFTI_FAMILY_ROWS(SPACED, );
#undef SPACED

/* ---- reading ---- */

/* bos_token_id, pad_token_id: a number or null. A number outside the vocabulary counts as null. */
static weft_status read_token(const wefti_json *o, const char *key, int64_t vocab, bool *has,
                              int32_t *id) {
    const wefti_json *v = wefti_config_get(o, key);
    WEFT_REQUIRE(!v || v->kind == WEFTI_JSON_INT, WEFT_E_ARG, "%s must be the number of a token",
                 key);
    *has = v && v->as.integer >= 0 && v->as.integer < vocab;
    *id = *has ? (int32_t)v->as.integer : 0;
    return WEFT_OK;
}

/* What transformers takes for a missing pad_token_id. */
static void set_default_pad(weft_model_config *c) {
    const bool olmo2 = wefti_family_has(c->family, WEFTI_POST_NORMS);
    c->has_pad = wefti_family_style_of(c->family) == WEFTI_STYLE_BERT || (olmo2 && c->vocab > 1);
    c->pad = c->has_pad && olmo2;
}

/* eos_token_id: a number, several, or null. Numbers outside the vocabulary, which some files have,
 * end no text. */
static weft_status read_ends(const wefti_json *o, weft_model_config *c) {
    const wefti_json *v = wefti_config_get(o, "eos_token_id");
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

static weft_status read_root(const wefti_json *o, weft_model_config *c) {
    const char *type;
    WEFT_REQUIRE(o->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "it must hold one object");
    WEFT_TRY(wefti_json_text(o, "model_type", &type));
    int family = 0;
    while (family < (int)WEFT_FAMILIES && strcmp(model_types[family], type)) family++;
    WEFT_REQUIRE(family < (int)WEFT_FAMILIES, WEFT_E_NO_IMPL,
                 "model_type is \"%s\"; these are known:%s", type, known_types);
    WEFT_REQUIRE(!wefti_config_get(o, "quantization_config"), WEFT_E_NO_IMPL,
                 "quantization_config is given: weft reads models in f32, bf16 and f16; "
                 "dequantize it first");
    c->family = (weft_family)family;
    WEFT_TRY(wefti_config_read(o, c));
    if (weft_family_is_language(c->family)) {
        WEFT_TRY(read_ends(o, c));
        WEFT_TRY(read_token(o, "bos_token_id", c->vocab, &c->has_begin, &c->begin));
        WEFT_TRY(read_token(o, "pad_token_id", c->vocab, &c->has_pad, &c->pad));
        if (!wefti_json_get(o, "pad_token_id")) set_default_pad(c);
        if (wefti_config_get(o, "lora"))
            WEFT_TRY(wefti_lora_read(wefti_config_get(o, "lora"), &c->lora));
    }
    return weft_model_complete(c);
}

static weft_status read_adapter(const wefti_json *o, weft_model_config *c) {
    WEFT_REQUIRE(o->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "it must hold one object");
    return wefti_lora_read(o, &c->lora);
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

weft_status wefti_adapter_config_read(const char *json, weft_model_config *config) {
    return read_with(read_adapter, "adapter_config.json", json, config);
}

/* ---- writing ---- */

/* Writes one token as a number, as most files have it. Writes no token as null: transformers'
 * defaults for a missing key may lie outside the vocabulary. */
static void write_ends(wefti_text *t, const weft_model_config *c) {
    if (c->end_count == 0) {
        wefti_config_write_raw(t, "eos_token_id", "null");
    } else if (c->end_count == 1) {
        wefti_config_write_int(t, "eos_token_id", c->ends[0]);
    } else {
        wefti_config_write_raw(t, "eos_token_id", "[");
        for (int64_t i = 0; i < c->end_count; i++)
            wefti_text_add(t, "%s%d", i ? ", " : "", (int)c->ends[i]);
        wefti_text_add(t, "]");
    }
}

weft_status weft_model_config_write(const weft_model_config *config, char **out) {
    weft_model_config c = *config;
    wefti_text t = {0};
    WEFT_TRY(weft_model_complete(&c));
    wefti_text_add(&t, "{\n  \"model_type\": \"%s\"", model_types[c.family]);
    wefti_config_write(&t, &c);
    if (weft_family_is_language(c.family)) {
        wefti_config_write_int_or_null(&t, "bos_token_id", c.has_begin, c.begin);
        write_ends(&t, &c);
        wefti_config_write_int_or_null(&t, "pad_token_id", c.has_pad, c.pad);
    }
    if (c.lora.rank) {
        wefti_config_write_raw(&t, "lora", "{");
        wefti_lora_write(&t, &c.lora);
        wefti_text_add(&t, "}");
    }
    wefti_config_write_raw(&t, "dtype", "\"float32\"");       /* transformers 5 */
    wefti_config_write_raw(&t, "torch_dtype", "\"float32\""); /* transformers 4 */
    wefti_text_add(&t, "\n}\n");
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for config.json");
    *out = text;
    return WEFT_OK;
}
