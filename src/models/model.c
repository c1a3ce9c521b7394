/* Families by name: defaults, checks, dispatch. */
#include <math.h>
#include <stdio.h>

#include "base/status.h"
#include "models/family.h"
#include "models/models.h"

typedef struct family_row {
    unsigned traits;
    wefti_family_style style;
    void (*build)(const wefti_model_build *b);
    weft_model_config defaults;
} family_row;

static const char *const texts[] = {
#define TEXT(name, text) [WEFT_FAMILY_##name] = (text),
    WEFT_FAMILY_LIST(TEXT)
#undef TEXT
};

static const family_row families[WEFT_FAMILIES] = {
#define ROW(p, name, build, config, style, traits, type, ...)                                      \
    [WEFT_FAMILY_##name] = {(traits), WEFTI_STYLE_##style, wefti_build_##build, {__VA_ARGS__}},
    WEFTI_FAMILY_ROWS(ROW, )
#undef ROW
};
#define COUNT_ROW(p, ...) +1
_Static_assert(0 WEFTI_FAMILY_ROWS(COUNT_ROW, ) == (int)WEFT_FAMILIES,
               "models/family.h needs a row for each family of weft/model.h");

bool wefti_family_has(weft_family family, unsigned traits) {
    return (unsigned)family < WEFT_FAMILIES && families[family].traits & traits;
}

wefti_family_style wefti_family_style_of(weft_family family) {
    return (unsigned)family < WEFT_FAMILIES ? families[family].style : WEFTI_STYLE_OWN;
}

bool weft_family_is_language(weft_family family) {
    return wefti_family_has(family, WEFTI_LANGUAGE);
}

const char *weft_family_text(weft_family family) {
    return (unsigned)family < WEFT_FAMILIES ? texts[family] : "?";
}

static void fill(int64_t *value, int64_t standard) {
    if (!*value) *value = standard;
}

enum {
    LAYERS_MAX = 10000
}; /* Bounds the nodes of a graph: damaged files may ask for more layers. */

static weft_status check_positive(const char *key, int64_t value) {
    WEFT_REQUIRE(value > 0, WEFT_E_ARG, "%s is %lld: it must be 1 or more", key, (long long)value);
    WEFT_REQUIRE(value < INT32_MAX, WEFT_E_ARG, "%s is %lld: it must be below %d", key,
                 (long long)value, INT32_MAX);
    return WEFT_OK;
}

static weft_status check_heads(const weft_model_config *c) {
    WEFT_TRY(check_positive("model.heads", c->heads));
    WEFT_TRY(check_positive("model.kv_heads", c->kv_heads));
    WEFT_TRY(check_positive("model.ffn", c->ffn));
    WEFT_REQUIRE(c->hidden % c->heads == 0, WEFT_E_ARG,
                 "model.heads is %lld, which does not divide model.hidden, %lld",
                 (long long)c->heads, (long long)c->hidden);
    WEFT_REQUIRE(c->heads % c->kv_heads == 0, WEFT_E_ARG,
                 "model.kv_heads is %lld, which does not divide model.heads, %lld",
                 (long long)c->kv_heads, (long long)c->heads);
    const bool grouped = wefti_family_has(c->family, WEFTI_ROTARY);
    WEFT_REQUIRE(grouped || c->kv_heads == c->heads, WEFT_E_ARG,
                 "model.kv_heads is %lld: %s has as many as heads, %lld", (long long)c->kv_heads,
                 weft_family_text(c->family), (long long)c->heads);
    WEFT_TRY(check_positive("model.head_dim", c->head_dim));
    WEFT_REQUIRE(grouped || c->head_dim == c->hidden / c->heads, WEFT_E_ARG,
                 "model.head_dim is %lld: for %s it must be model.hidden / model.heads, %lld",
                 (long long)c->head_dim, weft_family_text(c->family),
                 (long long)(c->hidden / c->heads));
    WEFT_REQUIRE(!grouped || c->head_dim % 2 == 0, WEFT_E_ARG,
                 "model.head_dim is %lld: rotary positions need an even number",
                 (long long)c->head_dim);
    return WEFT_OK;
}

/* Refuses a setting that is `set` in a family without the trait; names the families that have it.
 */
static weft_status check_for(const weft_model_config *c, bool set, unsigned trait,
                             const char *what) {
    char names[16 * WEFT_FAMILIES];
    size_t used = 0;
    int left = 0;
    if (!set || wefti_family_has(c->family, trait)) return WEFT_OK;
    for (int f = 0; f < WEFT_FAMILIES; f++) left += wefti_family_has((weft_family)f, trait);
    for (int f = 0; f < WEFT_FAMILIES; f++) {
        if (!wefti_family_has((weft_family)f, trait)) continue;
        left--;
        const int n = snprintf(names + used, sizeof names - used, "%s%s", texts[f],
                               left > 1    ? ", "
                               : left == 1 ? " and "
                                           : "");
        used += (size_t)n;
        if (used >= sizeof names) WEFT_FAIL(WEFT_E_BUG, "names of families are too long");
    }
    WEFT_FAIL(WEFT_E_ARG, "%s for %s, not %s", what, names, weft_family_text(c->family));
}

static weft_status check_biases(const weft_model_config *c) {
    WEFT_TRY(check_for(c, c->attention_bias, WEFTI_ATTENTION_BIAS, "model.attention_bias is"));
    WEFT_TRY(check_for(c, c->mlp_bias, WEFTI_MLP_BIAS, "model.mlp_bias is"));
    return check_for(c, c->no_qkv_bias, WEFTI_PATCHES, "query, key and value without biases are");
}

static weft_status check_image(const weft_model_config *c) {
    WEFT_TRY(check_positive("model.classes", c->classes));
    for (int i = 0; i < 3; i++) WEFT_TRY(check_positive("model.image", c->image[i]));
    long long height = (long long)c->image[1], width = (long long)c->image[2];
    if (wefti_family_has(c->family, WEFTI_PATCHES)) {
        WEFT_TRY(check_positive("model.patch", c->patch));
        WEFT_REQUIRE(c->image[1] % c->patch == 0 && c->image[2] % c->patch == 0, WEFT_E_ARG,
                     "model.patch is %lld, which does not divide the image, %lld x %lld",
                     (long long)c->patch, height, width);
    }
    WEFT_REQUIRE(c->family != WEFT_FAMILY_LENET || (height >= 12 && width >= 12), WEFT_E_ARG,
                 "model.image is %lld x %lld: lenet needs 12 x 12 or more", height, width);
    return WEFT_OK;
}

static weft_status check_experts(const weft_model_config *c, bool has) {
    if (!has)
        return check_for(c,
                         c->experts != 0 || c->experts_per_token != 0 || c->capacity_factor != 0 ||
                             c->aux_loss != 0,
                         WEFTI_EXPERTS, "model.experts and the other settings of experts are");
    WEFT_TRY(check_positive("model.experts", c->experts));
    WEFT_TRY(check_positive("model.experts_per_token", c->experts_per_token));
    WEFT_REQUIRE(c->experts_per_token <= c->experts, WEFT_E_ARG,
                 "model.experts_per_token is %lld, more than model.experts, %lld",
                 (long long)c->experts_per_token, (long long)c->experts);
    WEFT_REQUIRE(c->capacity_factor >= 0 && isfinite(c->capacity_factor), WEFT_E_ARG,
                 "model.capacity_factor is %g: it must be positive, or 0 for no bound",
                 c->capacity_factor);
    WEFT_REQUIRE(c->aux_loss >= 0 && isfinite(c->aux_loss), WEFT_E_ARG,
                 "model.aux_loss is %g: it must be 0 or more", c->aux_loss);
    return WEFT_OK;
}

static weft_status check_numbers(const weft_model_config *c) {
    WEFT_REQUIRE(c->dropout >= 0 && c->dropout < 1, WEFT_E_ARG,
                 "model.dropout is %g: it must be in [0, 1)", c->dropout);
    WEFT_REQUIRE(!c->dropout_apart || (c->attention_dropout >= 0 && c->attention_dropout < 1 &&
                                       c->embedding_dropout >= 0 && c->embedding_dropout < 1),
                 WEFT_E_ARG,
                 "the rates of dropout are %g in attention and %g after the embedding: they must "
                 "be in [0, 1)",
                 c->attention_dropout, c->embedding_dropout);
    WEFT_REQUIRE(c->norm_eps >= 0 && isfinite(c->norm_eps), WEFT_E_ARG,
                 "model.norm_eps is %g: it must be 0 or more", c->norm_eps);
    WEFT_REQUIRE(c->rope_theta >= 0 && isfinite(c->rope_theta), WEFT_E_ARG,
                 "model.rope_theta is %g: it must be positive", c->rope_theta);
    const weft_rope_scaling *r = &c->rope_scaling;
    WEFT_REQUIRE(r->factor >= 0 && isfinite(r->factor) && r->original_context >= 0, WEFT_E_ARG,
                 "model.rope_scaling has the factor %g and the original context %lld: they must "
                 "not be negative",
                 r->factor, (long long)r->original_context);
    bool yarn = r->factor > 0 && r->beta_fast != 0;
    WEFT_REQUIRE(!yarn || (r->beta_fast > 0 && isfinite(r->beta_fast) && r->beta_slow > 0 &&
                           isfinite(r->beta_slow) && r->original_context > 0),
                 WEFT_E_ARG,
                 "model.rope_scaling has beta_fast %g, beta_slow %g and the original context %lld: "
                 "they must be positive",
                 r->beta_fast, r->beta_slow, (long long)r->original_context);
    WEFT_REQUIRE(c->attention_factor == 0 ||
                     (yarn && c->attention_factor > 0 && isfinite(c->attention_factor)),
                 WEFT_E_ARG, "the attention factor is %g: it must be positive, and is of yarn",
                 c->attention_factor);
    WEFT_REQUIRE(yarn || r->factor == 0 || r->original_context == 0 ||
                     (r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor &&
                      isfinite(r->high_freq_factor)),
                 WEFT_E_ARG,
                 "model.rope_scaling has the factors %g and %g of low and high frequencies: they "
                 "must be positive and the second larger",
                 r->low_freq_factor, r->high_freq_factor);
    return WEFT_OK;
}

static weft_status check_window(const weft_model_config *c) {
    const bool may = wefti_family_has(c->family, WEFTI_WINDOW);
    WEFT_REQUIRE(c->window >= 0 && (may || c->window == 0), WEFT_E_ARG,
                 "model.window of %s is %lld: it must be %s", weft_family_text(c->family),
                 (long long)c->window, may ? "positive, or 0 for none" : "0");
    const bool some = wefti_family_has(c->family, WEFTI_LATE_WINDOW) && c->window > 0;
    WEFT_REQUIRE(c->window_from == 0 || (some && c->window_from > 0 && c->window_from < c->layers),
                 WEFT_E_ARG,
                 "%s has a window from layer %lld on: that must be 0, or one of the %lld layers of "
                 "a qwen2 or qwen3 with a window",
                 weft_family_text(c->family), (long long)c->window_from, (long long)c->layers);
    return WEFT_OK;
}

static weft_status check_token(const weft_model_config *c, const char *what, bool has, int32_t id) {
    WEFT_REQUIRE(!has || (id >= 0 && id < c->vocab), WEFT_E_ARG,
                 "token %d %s, but the vocabulary has %lld tokens", (int)id, what,
                 (long long)c->vocab);
    return WEFT_OK;
}

static weft_status check_ends(const weft_model_config *c) {
    WEFT_REQUIRE(c->end_count >= 0 && c->end_count <= WEFT_MAX_END_TOKENS, WEFT_E_ARG,
                 "%lld tokens end a text: 0 to %d may", (long long)c->end_count,
                 WEFT_MAX_END_TOKENS);
    for (int64_t i = 0; i < c->end_count; i++)
        WEFT_TRY(check_token(c, "ends a text", true, c->ends[i]));
    WEFT_TRY(check_token(c, "begins a text", c->has_begin, c->begin));
    return check_token(c, "fills a text up", c->has_pad, c->pad);
}

/* A value of 0 becomes the family's default. */
static void fill_defaults(weft_model_config *c, const weft_model_config *d) {
    fill(&c->layers, d->layers);
    fill(&c->hidden, d->hidden);
    fill(&c->heads, d->heads);
    fill(&c->kv_heads, c->heads);
    if (d->heads > 0 && c->heads > 0) fill(&c->head_dim, c->hidden / c->heads);
    fill(&c->context, d->context);
    fill(&c->patch, d->patch);
    fill(&c->experts, d->experts);
    fill(&c->experts_per_token, d->experts_per_token);
    if (c->norm_eps == 0) c->norm_eps = d->norm_eps;
    if (c->rope_theta == 0) c->rope_theta = d->rope_theta;
    if (wefti_family_has(c->family, WEFTI_TIED)) c->tied = !c->untied;
    if (d->heads == 0 || c->hidden > INT32_MAX || c->hidden < 0) return;
    if (wefti_family_has(c->family, WEFTI_ROTARY)) /* 8/3 hidden, rounded up to a multiple of 64 */
        fill(&c->ffn, (c->hidden * 8 / 3 + 63) / 64 * 64);
    else
        fill(&c->ffn, 4 * c->hidden);
}

weft_status weft_model_complete(weft_model_config *config) {
    weft_model_config c = *config;
    WEFT_REQUIRE((unsigned)c.family < WEFT_FAMILIES, WEFT_E_ARG, "unknown model.family %d",
                 (int)c.family);
    const weft_model_config *d = &families[c.family].defaults;
    WEFT_TRY(check_numbers(&c));
    fill_defaults(&c, d);
    if (d->layers > 0) WEFT_TRY(check_positive("model.layers", c.layers));
    WEFT_REQUIRE(c.layers <= LAYERS_MAX, WEFT_E_ARG, "model.layers is %lld: it must be at most %d",
                 (long long)c.layers, LAYERS_MAX);
    if (d->hidden > 0) WEFT_TRY(check_positive("model.hidden", c.hidden));
    if (d->heads > 0) WEFT_TRY(check_heads(&c));
    WEFT_TRY(check_biases(&c));
    WEFT_TRY(check_window(&c));
    WEFT_TRY(check_experts(&c, d->experts > 0));
    WEFT_TRY(wefti_lora_complete(&c));
    if (weft_family_is_language(c.family)) {
        WEFT_TRY(check_positive("model.vocab", c.vocab));
        WEFT_TRY(check_positive("model.context", c.context));
        WEFT_REQUIRE(c.cache >= 0 && c.cache <= c.context, WEFT_E_ARG,
                     "the caches have room for %lld tokens: it must be at most the context, %lld",
                     (long long)c.cache, (long long)c.context);
        WEFT_REQUIRE(c.cache_rows >= 0, WEFT_E_ARG, "caches of %lld texts",
                     (long long)c.cache_rows);
        WEFT_REQUIRE(c.asked >= 0, WEFT_E_ARG, "logits of %lld tokens", (long long)c.asked);
        WEFT_TRY(check_ends(&c));
    } else {
        WEFT_TRY(check_image(&c));
    }
    *config = c;
    return WEFT_OK;
}

weft_status weft_model_build(const weft_model_config *config, weft_model_use use, int64_t batch,
                             int64_t seq, weft_dtype dtype, weft_graph **out) {
    return wefti_model_build_of(config, use, batch, seq, dtype, (wefti_model_form){0}, out);
}

weft_status weft_model_build_master(const weft_model_config *config, weft_model_use use,
                                    int64_t batch, int64_t seq, weft_dtype dtype,
                                    weft_graph **out) {
    return wefti_model_build_of(config, use, batch, seq, dtype, (wefti_model_form){.narrow = true},
                                out);
}

weft_status wefti_model_build_of(const weft_model_config *config, weft_model_use use, int64_t batch,
                                 int64_t seq, weft_dtype dtype, wefti_model_form form,
                                 weft_graph **out) {
    weft_model_config c = *config;
    WEFT_TRY(weft_model_complete(&c));
    WEFT_REQUIRE(batch > 0, WEFT_E_ARG, "the batch is %lld: it must be 1 or more",
                 (long long)batch);
    if (seq == 0) seq = use == WEFT_USE_DECODE ? 1 : c.context;
    if (weft_family_is_language(c.family))
        WEFT_REQUIRE(seq > 0 && seq <= c.context, WEFT_E_ARG,
                     "a sequence of %lld tokens does not fit model.context, %lld", (long long)seq,
                     (long long)c.context);
    WEFT_REQUIRE(use != WEFT_USE_DECODE || !c.cache || seq <= c.cache, WEFT_E_ARG,
                 "a piece of %lld tokens does not fit caches of %lld", (long long)seq,
                 (long long)c.cache);
    WEFT_REQUIRE(use != WEFT_USE_DECODE || !c.cache_rows || seq == 1, WEFT_E_ARG,
                 "samples of one text each have one token, not %lld", (long long)seq);
    const bool decodes = wefti_family_has(c.family, WEFTI_GENERATES);
    WEFT_REQUIRE((unsigned)use <= WEFT_USE_DECODE, WEFT_E_ARG, "unknown use %d of a model",
                 (int)use);
    WEFT_REQUIRE(use != WEFT_USE_DECODE || decodes, WEFT_E_NO_IMPL, "%s does not generate text",
                 weft_family_text(c.family));
    WEFT_REQUIRE(dtype == WEFT_F32 || dtype == WEFT_BF16 || dtype == WEFT_F64, WEFT_E_ARG,
                 "activations of %s: they must be f32, bf16 or f64", weft_dtype_text(dtype));
    WEFT_REQUIRE(!form.f8 || wefti_family_has(c.family, WEFTI_HEADS), WEFT_E_NO_IMPL,
                 "train.products: f8 is for models with blocks of attention, not for %s",
                 weft_family_text(c.family));
    weft_graph *g;
    WEFT_TRY(weft_graph_create(&g));
    wefti_model_build b = {g, &c, use, batch, seq, .dtype = dtype, .f8 = form.f8};
    b.param = b.weight = dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    if (use == WEFT_USE_DECODE || form.narrow) b.weight = dtype;
    families[c.family].build(&b);
    weft_status status = weft_graph_status(g);
    if (status >= 0 && c.lora.rank) {
        status = wefti_lora_freeze(&b);
        if (status < 0) weft_graph_destroy(g);
        WEFT_TRY(status);
    }
    if (status < 0) {
        status = WEFT_RAISE(status, "%s: %s", weft_family_text(c.family), weft_graph_message(g));
        weft_graph_destroy(g);
        return status;
    }
    *out = g;
    return WEFT_OK;
}
