/* Adapters of low rank in PEFT's words: adapter_config.json, and the member "lora" that weft adds
 * to the config.json of a model with adapters. Source: huggingface/peft, LoraConfig. A setting that
 * changes what an adapter computes, and that weft lacks, is refused by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "interop/config.h"

/* Settings of which weft has only one value: false, null, or empty. */
static weft_status refuse_others(const wefti_json *o) {
    static const char *const unset[] = {
        "modules_to_save", "layers_to_transform", "layers_pattern",    "layer_replication",
        "rank_pattern",    "alpha_pattern",       "target_parameters", "trainable_token_indices",
        "exclude_modules", "megatron_config"};
    WEFT_TRY(wefti_config_expect_text(o, "peft_type", "LORA", NULL));
    WEFT_TRY(wefti_config_expect_text(o, "bias", "none", NULL));
    WEFT_TRY(wefti_config_expect_bool(o, "use_dora", false, false));
    WEFT_TRY(wefti_config_expect_bool(o, "lora_bias", false, false));
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) {
        const wefti_json *v = wefti_config_get(o, unset[i]);
        const bool empty =
            !v || ((v->kind == WEFTI_JSON_OBJECT || v->kind == WEFTI_JSON_ARRAY) && !v->count);
        WEFT_REQUIRE(empty, WEFT_E_NO_IMPL, "%s is given: weft has adapters without it", unset[i]);
    }
    return WEFT_OK;
}

static weft_status read_targets(const wefti_json *o, weft_lora *out) {
    const wefti_json *list = wefti_config_get(o, "target_modules");
    WEFT_REQUIRE(list && list->kind == WEFTI_JSON_ARRAY && list->count, WEFT_E_NO_IMPL,
                 "target_modules must be a list of layers");
    for (const wefti_json *item = list->as.child; item; item = item->next) {
        const size_t used = strlen(out->targets), room = sizeof out->targets - used;
        WEFT_REQUIRE(item->kind == WEFTI_JSON_TEXT && *item->as.text &&
                         !strpbrk(item->as.text, ",.*\""),
                     WEFT_E_NO_IMPL, "target_modules must be last parts of layers' names");
        const int needed =
            snprintf(out->targets + used, room, "%s%s", used ? "," : "", item->as.text);
        WEFT_REQUIRE(needed >= 0 && (size_t)needed < room, WEFT_E_NO_IMPL,
                     "target_modules takes more than %zu bytes", sizeof out->targets - 1);
    }
    return WEFT_OK;
}

weft_status wefti_lora_read(const wefti_json *o, weft_lora *out) {
    weft_lora l = {0};
    bool root_rank;
    WEFT_REQUIRE(o->kind == WEFTI_JSON_OBJECT, WEFT_E_ARG, "adapters must be one object");
    WEFT_TRY(refuse_others(o));
    WEFT_TRY(wefti_config_int(o, "r", &l.rank));
    WEFT_TRY(wefti_config_positive_or(o, "lora_alpha", 8, &l.alpha)); /* PEFT's default */
    WEFT_TRY(wefti_config_real_or(o, "lora_dropout", 0, &l.dropout));
    WEFT_TRY(wefti_config_bool_or(o, "use_rslora", false, &root_rank));
    if (root_rank) l.alpha *= sqrt((double)l.rank); /* there: alpha / sqrt(rank) */
    WEFT_TRY(read_targets(o, &l));
    *out = l;
    return WEFT_OK;
}

void wefti_lora_write(wefti_text *t, const weft_lora *lora) {
    wefti_text_add(t, "\"r\": %lld, \"lora_alpha\": ", (long long)lora->rank);
    wefti_json_real(t, lora->alpha);
    wefti_text_add(t, ", \"lora_dropout\": ");
    wefti_json_real(t, lora->dropout);
    wefti_text_add(t, ", \"target_modules\": [");
    const char *at = lora->targets;
    for (bool first = true; *at; first = false) {
        const size_t length = strcspn(at, ",");
        wefti_text_add(t, "%s\"%.*s\"", first ? "" : ", ", (int)length, at);
        at += length + (at[length] == ',');
    }
    wefti_text_add(t, "]");
}
