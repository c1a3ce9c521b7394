/* Values of config.json by key, with their checks. See interop/config.h. */
#include "interop/config.h"

#include <math.h>
#include <string.h>

const wefti_json *wefti_config_get(const wefti_json *o, const char *key) {
    const wefti_json *v = wefti_json_get(o, key);
    return v && v->kind != WEFTI_JSON_NULL ? v : NULL; /* null means: not given */
}

weft_status wefti_config_int(const wefti_json *o, const char *key, int64_t *out) {
    const wefti_json *v = wefti_config_get(o, key);
    WEFT_REQUIRE(v, WEFT_E_ARG, "%s is missing: a whole number", key);
    WEFT_REQUIRE(v->kind == WEFTI_JSON_INT && v->as.integer > 0, WEFT_E_ARG,
                 "%s must be a whole number, 1 or more", key);
    *out = v->as.integer;
    return WEFT_OK;
}

weft_status wefti_config_int_or(const wefti_json *o, const char *key, int64_t standard,
                                int64_t *out) {
    if (wefti_config_get(o, key)) return wefti_config_int(o, key, out);
    *out = standard;
    return WEFT_OK;
}

weft_status wefti_config_real_or(const wefti_json *o, const char *key, double standard,
                                 double *out) {
    const wefti_json *v = wefti_config_get(o, key);
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
weft_status wefti_config_positive_or(const wefti_json *o, const char *key, double standard,
                                     double *out) {
    WEFT_TRY(wefti_config_real_or(o, key, standard, out));
    WEFT_REQUIRE(*out > 0, WEFT_E_ARG, "%s is %g: it must be positive", key, *out);
    return WEFT_OK;
}

weft_status wefti_config_bool_or(const wefti_json *o, const char *key, bool standard, bool *out) {
    const wefti_json *v = wefti_config_get(o, key);
    WEFT_REQUIRE(!v || v->kind == WEFTI_JSON_BOOL, WEFT_E_ARG, "%s must be true or false", key);
    *out = v ? v->as.boolean : standard;
    return WEFT_OK;
}

/* A switch that must have this value; absent means `standard`. */
weft_status wefti_config_expect_bool(const wefti_json *o, const char *key, bool standard,
                                     bool wanted) {
    bool value;
    WEFT_TRY(wefti_config_bool_or(o, key, standard, &value));
    WEFT_REQUIRE(value == wanted, WEFT_E_NO_IMPL, "%s is %s: only %s is supported", key,
                 value ? "true" : "false", wanted ? "true" : "false");
    return WEFT_OK;
}

/* A text that must be one of two (`two` may be NULL). A missing key is legal. */
weft_status wefti_config_expect_text(const wefti_json *o, const char *key, const char *one,
                                     const char *two) {
    const wefti_json *v = wefti_config_get(o, key);
    if (!v) return WEFT_OK;
    WEFT_REQUIRE(v->kind == WEFTI_JSON_TEXT, WEFT_E_ARG, "%s must be a text", key);
    bool known = !strcmp(v->as.text, one) || (two && !strcmp(v->as.text, two));
    WEFT_REQUIRE(known, WEFT_E_NO_IMPL, "%s is \"%s\": only %s%s%s is supported", key, v->as.text,
                 one, two ? " or " : "", two ? two : "");
    return WEFT_OK;
}

weft_status wefti_config_dropout(const wefti_json *o, double standard, int count,
                                 const char *const *keys, weft_model_config *c) {
    double rates[3];
    for (int i = 0; i < count; i++) {
        WEFT_TRY(wefti_config_real_or(o, keys[i], standard, &rates[i]));
        WEFT_REQUIRE(rates[i] >= 0 && rates[i] < 1, WEFT_E_ARG, "%s is %g: it must be in [0, 1)",
                     keys[i], rates[i]);
        c->dropout_apart = c->dropout_apart || rates[i] != rates[0];
    }
    c->dropout = rates[0];
    c->attention_dropout = c->dropout_apart ? rates[1] : 0;
    c->embedding_dropout = c->dropout_apart ? rates[count > 2 ? 2 : 0] : 0;
    return WEFT_OK;
}

/* The number that is not null and not 0, which stands for "left out" there. */
weft_status wefti_config_nonzero_or(const wefti_json *o, const char *key, double standard,
                                    double *out) {
    WEFT_TRY(wefti_config_real_or(o, key, standard, out));
    if (*out == 0) *out = standard;
    return WEFT_OK;
}

/* A list of `count` sizes, or one number for all of them. */
weft_status wefti_config_sizes(const wefti_json *o, const char *key, int count, int64_t *out) {
    const wefti_json *v = wefti_config_get(o, key);
    if (!v || v->kind != WEFTI_JSON_ARRAY) {
        WEFT_TRY(wefti_config_int(o, key, out));
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
