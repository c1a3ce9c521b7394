/* Adapters of low rank: see weft_lora in weft/model.h. Source: Hu et al., "LoRA: Low-Rank
 * Adaptation of Large Language Models", 2021. Names, start values, defaults and the place of
 * dropout as Hugging Face's PEFT has them: A uniform in +-1 / sqrt(in), B zero. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "models/family.h"
#include "models/models.h"
#include "models/splits.h"

/* The layers of a list, one after the other: moves *list behind the first one. */
static size_t next_layer(const char **list, const char **out) {
    *list += strspn(*list, ",");
    *out = *list;
    const size_t length = strcspn(*list, ",");
    *list += length;
    return length;
}

bool wefti_lora_targets(const weft_lora *lora, const char *layer, size_t length) {
    const char *rest = lora->targets, *name;
    for (size_t n; lora->rank && (n = next_layer(&rest, &name)) > 0;)
        if (length == n && !memcmp(layer, name, n)) return true;
    return false;
}

bool wefti_lora_is_adapter(const char *parameter) {
    const char *at = strstr(parameter, "lora_");
    return at && (at == parameter || at[-1] == '.') && (at[5] == 'A' || at[5] == 'B') &&
           !strcmp(at + 6, ".weight");
}

/* The layers that may have adapters are those of which the table of splits tells. */
static weft_status check_layer(const weft_model_config *c, const char *name, size_t length) {
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    char list[WEFT_LORA_TARGETS] = "";
    for (int i = 0; i < count; i++) {
        size_t n;
        const char *layer = wefti_split_adapter(&rows[i], &n);
        if (!layer || !(rows[i].families >> c->family & 1)) continue;
        if (length == n && !memcmp(layer, name, n)) return WEFT_OK;
        char each[32];
        const size_t used = strlen(list);
        (void)snprintf(each, sizeof each, "%.*s", (int)n, layer);
        if (!strstr(list, each))
            (void)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", each);
    }
    WEFT_FAIL(WEFT_E_ARG,
              "model.lora.targets has '%.*s'; the layers of %s that can have adapters "
              "are %s",
              (int)length, name, weft_family_text(c->family), list);
}

weft_status wefti_lora_complete(weft_model_config *c) {
    weft_lora *l = &c->lora;
    WEFT_REQUIRE(l->rank >= 0 && l->rank <= INT32_MAX, WEFT_E_ARG,
                 "model.lora.rank is %lld: it must be 1 or more", (long long)l->rank);
    WEFT_REQUIRE(l->rank || (l->alpha == 0 && l->dropout == 0 && !l->targets[0]), WEFT_E_ARG,
                 "model.lora.rank is missing: adapters need a rank");
    if (!l->rank) return WEFT_OK;
    WEFT_REQUIRE(wefti_family_has(c->family, WEFTI_GENERATES), WEFT_E_NO_IMPL,
                 "model.lora is for gpt2, llama and families like them, not %s",
                 weft_family_text(c->family));
    WEFT_REQUIRE(isfinite(l->alpha) && l->alpha >= 0, WEFT_E_ARG,
                 "model.lora.alpha is %g: it must be positive", l->alpha);
    WEFT_REQUIRE(l->dropout >= 0 && l->dropout < 1, WEFT_E_ARG,
                 "model.lora.dropout is %g: it must be in [0, 1)", l->dropout);
    WEFT_REQUIRE(memchr(l->targets, 0, sizeof l->targets), WEFT_E_ARG,
                 "model.lora.targets takes more than %d bytes", WEFT_LORA_TARGETS - 1);
    if (l->alpha == 0) l->alpha = (double)l->rank;
    const bool gpt2 = wefti_family_style_of(c->family) == WEFTI_STYLE_GPT2;
    if (!l->targets[0]) (void)strcpy(l->targets, gpt2 ? "c_attn" : "q_proj,v_proj");
    const char *rest = l->targets, *name;
    for (size_t n; (n = next_layer(&rest, &name)) > 0;) WEFT_TRY(check_layer(c, name, n));
    return WEFT_OK;
}

weft_value wefti_lora(const wefti_model_build *b, const char *layer, const char *prefix,
                      weft_value x, weft_value y, int dims, const int64_t *out) {
    weft_graph *g = b->g;
    const weft_lora *l = &b->c->lora;
    const weft_desc desc = weft_value_desc(g, x);
    char name[WEFTI_MODEL_NAME_BYTES];
    if (!wefti_lora_targets(l, layer, strlen(layer)) || desc.rank < 1) return y;
    const int64_t in = desc.shape[desc.rank - 1];
    const weft_init spread = {WEFT_INIT_UNIFORM, 1 / sqrt((double)in)};
    (void)snprintf(name, sizeof name, "%slora_A.weight", prefix);
    weft_value down = wefti_weight(b, name, spread, l->rank, in, 0, 0);
    int64_t shape[4] = {0};
    for (int d = 0; d < dims; d++) shape[d] = out[d];
    shape[dims] = l->rank;
    (void)snprintf(name, sizeof name, "%slora_B.weight", prefix);
    weft_value up = wefti_weight(b, name, wefti_zeros(), shape[0], shape[1], shape[2], 0);
    if (b->use == WEFT_USE_TRAIN && l->dropout > 0) x = weft_dropout(g, x, l->dropout);
    weft_value low = weft_linear(g, x, down, WEFT_NO_VALUE, true);
    low = weft_scale(g, low, l->alpha / (double)l->rank);
    return weft_add(g, y, weft_linear(g, low, up, WEFT_NO_VALUE, true));
}

weft_status wefti_lora_freeze(const wefti_model_build *b) {
    WEFT_TRY(weft_freeze(b->g, "*", true));
    return weft_freeze(b->g, "*lora_[AB].weight", false);
}
