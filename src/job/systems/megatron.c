/* Megatron-LM's options and the keys of a job: see systems.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "job/systems/systems.h"
#include "models/family.h"
#include "topo/limits.h"

static bool given(const wefti_translation *x, const char *option) {
    return wefti_value_of(x, option)->given;
}

static bool has_experts(const wefti_translation *x) {
    return wefti_whole_of(x, "num-experts", 0) > 0;
}

/* ---- the block ---- */

static weft_status read_rotary_block(wefti_translation *x, bool rms) {
    weft_job_model *m = &x->job.model;
    const bool experts = has_experts(x), norms = given(x, "qk-layernorm"),
               qkv = given(x, "add-qkv-bias"), no_bias = given(x, "disable-bias-linear");
    m->family = experts                              ? WEFT_FAMILY_MIXTRAL
                : norms                              ? WEFT_FAMILY_QWEN3
                : qkv                                ? WEFT_FAMILY_QWEN2
                : no_bias && given(x, "window-size") ? WEFT_FAMILY_MISTRAL
                                                     : WEFT_FAMILY_LLAMA;
    WEFT_REQUIRE(!norms || !experts, WEFT_E_NO_IMPL,
                 "--qk-layernorm with --num-experts: mixtral of weft has no norms of queries "
                 "and keys");
    WEFT_REQUIRE(!norms || !qkv, WEFT_E_NO_IMPL,
                 "--qk-layernorm with --add-qkv-bias: qwen3 of weft has biases in all of "
                 "attention or none");
    WEFT_REQUIRE(no_bias || m->family == WEFT_FAMILY_LLAMA, WEFT_E_NO_IMPL,
                 "%s of weft has no biases in linear layers: --disable-bias-linear is missing",
                 weft_family_text(m->family));
    if (!rms)
        wefti_text_add(x->notes, "%s: %s of weft has RMSNorm, which costs less\n",
                       given(x, "apply-layernorm-1p") ? "--apply-layernorm-1p" : "LayerNorm",
                       weft_family_text(m->family));
    m->attention_bias = m->mlp_bias = !no_bias;
    m->tied = !given(x, "untie-embeddings-and-output-weights");
    wefti_tell(x, "model.tied");
    if (!no_bias) wefti_tell(x, "model.attention_bias");
    if (!no_bias) wefti_tell(x, "model.mlp_bias");
    return WEFT_OK;
}

/* The family, by the options that weft's families fix. */
static weft_status read_block(wefti_translation *x) {
    static const char *const needed[] = {"num-layers", "hidden-size", "num-attention-heads",
                                         "seq-length"};
    char missing[96] = "";
    for (int i = 0; i < 4; i++)
        if (!wefti_whole_of(x, needed[i], 0)) (void)strcat(strcat(missing, " --"), needed[i]);
    WEFT_REQUIRE(!*missing, WEFT_E_ARG,
                 "a model needs --num-layers, --hidden-size, --num-attention-heads and "
                 "--seq-length; missing:%s",
                 missing);
    const bool rms = wefti_word_is(x, "normalization", "RMSNorm"), swiglu = given(x, "swiglu");
    const bool rotary = given(x, "use-rotary-position-embeddings") ||
                        wefti_word_is(x, "position-embedding-type", "rope");
    wefti_tell(x, "model.family");
    if (rotary && swiglu) return read_rotary_block(x, rms);
    WEFT_REQUIRE(!rms && !rotary && !swiglu, WEFT_E_NO_IMPL,
                 "no family of weft has this block: llama needs --normalization RMSNorm, --swiglu "
                 "and --position-embedding-type rope, gpt2 none of them; missing: %s%s%s",
                 rms ? "" : "RMSNorm ", swiglu ? "" : "swiglu ", rotary ? "" : "rope");
    WEFT_REQUIRE(!given(x, "qk-layernorm"), WEFT_E_NO_IMPL,
                 "--qk-layernorm: gpt2 of weft has no norms of queries and keys");
    x->job.model.family = has_experts(x) ? WEFT_FAMILY_GPT2_MOE : WEFT_FAMILY_GPT2;
    if (given(x, "disable-bias-linear"))
        wefti_text_add(x->notes, "--disable-bias-linear: gpt2 of weft has biases\n");
    if (given(x, "untie-embeddings-and-output-weights"))
        wefti_text_add(x->notes, "--untie-embeddings-and-output-weights: gpt2 of weft uses the "
                                 "embedding for the output\n");
    return WEFT_OK;
}

static void write_block(wefti_translation *x) {
    const weft_model_config *c = &x->config;
    wefti_give_text(x, "position-embedding-type", wefti_is_rotary(x) ? "rope" : "learned_absolute");
    wefti_give_if(x, "untie-embeddings-and-output-weights",
                  wefti_is_rotary(x) ? !c->tied : c->untied);
    if (!wefti_is_rotary(x)) return;
    wefti_give_text(x, "normalization", "RMSNorm");
    wefti_give_if(x, "swiglu", true);
    wefti_give_if(x, "disable-bias-linear",
                  !c->mlp_bias &&
                      !(c->attention_bias && wefti_family_has(c->family, WEFTI_MLP_BIAS)));
    if (c->attention_bias != c->mlp_bias)
        wefti_text_add(x->notes,
                       "biases of only some linear layers: Megatron-LM has all or none\n");
    wefti_give_if(x, "add-qkv-bias", wefti_family_has(c->family, WEFTI_QKV_BIASED));
    wefti_give_if(x, "qk-layernorm", wefti_family_has(c->family, WEFTI_HEAD_NORMS));
}

/* ---- sizes ---- */

static weft_status read_ffn(wefti_translation *x) {
    weft_job_model *m = &x->job.model;
    const int64_t usual = wefti_is_rotary(x) ? 4 * m->hidden * 2 / 3 / 64 * 64 : 4 * m->hidden;
    m->ffn = wefti_whole_of(x, "ffn-hidden-size", usual);
    if (has_experts(x)) m->ffn = wefti_whole_of(x, "moe-ffn-hidden-size", m->ffn);
    wefti_tell(x, "model.ffn");
    return WEFT_OK;
}

static void write_ffn(wefti_translation *x) {
    wefti_give_whole(x, "ffn-hidden-size", x->config.ffn);
    if (x->config.experts) wefti_give_whole(x, "moe-ffn-hidden-size", x->config.ffn);
}

static weft_status read_heads(wefti_translation *x) {
    weft_job_model *m = &x->job.model;
    m->head_dim = wefti_whole_of(x, "kv-channels", m->hidden / m->heads);
    m->kv_heads =
        given(x, "group-query-attention") ? wefti_whole_of(x, "num-query-groups", 1) : m->heads;
    wefti_tell(x, "model.head_dim");
    wefti_tell(x, "model.kv_heads");
    return WEFT_OK;
}

static void write_heads(wefti_translation *x) {
    const weft_model_config *c = &x->config;
    wefti_give_whole(x, "kv-channels", c->head_dim);
    if (c->kv_heads == c->heads) return;
    wefti_give_if(x, "group-query-attention", true);
    wefti_give_whole(x, "num-query-groups", c->kv_heads);
}
/* Megatron-LM makes the vocabulary a multiple of 128 tp. Sizes of tokenizers that are no matter of
 * a file: the vocabularies of GPT-2 and Llama 2. */
static weft_status read_vocabulary(wefti_translation *x) {
    const char *type = wefti_value_of(x, "tokenizer-type")->text;
    if (!type) type = given(x, "merge-file") ? "GPT2BPETokenizer" : "";
    const int64_t usual = !strcmp(type, "GPT2BPETokenizer")  ? 50257
                          : !strcmp(type, "Llama2Tokenizer") ? 32000
                                                             : 0;
    const int64_t vocab = wefti_whole_of(x, "vocab-size", usual);
    const int64_t divisible = wefti_whole_of(x, "make-vocab-size-divisible-by", 128),
                  tensor = wefti_whole_of(x, "tensor-model-parallel-size", 1);
    WEFT_REQUIRE(divisible <= WEFTI_DEVICES_MAX && tensor <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                 "--make-vocab-size-divisible-by or --tensor-model-parallel-size is above %d",
                 WEFTI_DEVICES_MAX);
    if (!vocab) {
        wefti_text_add(x->notes,
                       "--vocab-size is missing, and only the files of %.60s tell it: give "
                       "model.vocab=N\n",
                       *type ? type : "the tokenizer");
        return WEFT_OK;
    }
    x->job.model.vocab = wefti_round_up(vocab, divisible * tensor);
    wefti_tell(x, "model.vocab");
    return WEFT_OK;
}

static void write_vocabulary(wefti_translation *x) {
    wefti_give_whole(x, "vocab-size", x->config.vocab);
    wefti_give_whole(x, "make-vocab-size-divisible-by", 1);
    if (x->config.vocab % x->degrees.tensor)
        wefti_text_add(x->notes, "model.vocab: %lld: Megatron-LM makes it a multiple of tp %d\n",
                       (long long)x->config.vocab, x->degrees.tensor);
}
/* "127,0": 127 tokens before a token and none behind it. One number counts the token itself too. */
static weft_status read_window(wefti_translation *x) {
    const char *text = wefti_value_of(x, "window-size")->text;
    if (!text) return WEFT_OK;
    char *end;
    text += *text == '(';
    const long long before = strtoll(text, &end, 10);
    const int64_t window = *end == ',' ? before + 1 : before;
    if (end != text && before == -1) return WEFT_OK; /* all tokens */
    WEFT_REQUIRE(end != text && before >= 0 && before <= 1LL << 50, WEFT_E_ARG,
                 "--window-size is '%.60s', but must be the tokens before and behind a token, as "
                 "in 127,0",
                 text);
    if (!wefti_family_has(x->job.model.family, WEFTI_WINDOW)) {
        wefti_text_add(x->notes, "--window-size: %s of weft attends to all earlier tokens\n",
                       weft_family_text(x->job.model.family));
        return WEFT_OK;
    }
    x->job.model.window = window;
    if (window) wefti_tell(x, "model.window");
    return WEFT_OK;
}

static void write_window(wefti_translation *x) {
    const weft_model_config *c = &x->config;
    if (!c->window) return;
    wefti_give_text(x, "window-size",
                    wefti_arena_format(x->arena, "%lld,0", (long long)c->window - 1));
    if (c->window_from)
        wefti_text_add(x->notes, "a window from layer %lld on: Megatron-LM has it in all layers\n",
                       (long long)c->window_from);
}

static weft_status read_base(wefti_translation *x) {
    x->job.model.rope_theta = (double)wefti_whole_of(x, "rotary-base", 10000);
    wefti_tell(x, "model.rope_theta");
    return WEFT_OK;
}
static void write_base(wefti_translation *x) {
    const int64_t base = (int64_t)x->config.rope_theta; /* a whole number there */
    wefti_give_whole(x, "rotary-base", base);
    if (x->config.rope_theta != (double)base)
        wefti_text_add(x->notes, "a base of rotary positions that is not whole\n");
    if (x->config.rope_scaling.factor > 0)
        wefti_text_add(x->notes, "scaling of rotary positions (model: rope scaling)\n");
}
/* weft has one rate: in rotary families that of attention. Where the options say none, weft's own
 * default counts. */
static weft_status read_dropout(wefti_translation *x) {
    const bool rotary = wefti_is_rotary(x), both = given(x, "attention-dropout");
    if (!both && (rotary || !given(x, "hidden-dropout"))) return WEFT_OK;
    const double attention = wefti_real_of(x, "attention-dropout", 0);
    const double hidden = wefti_real_of(x, "hidden-dropout", rotary ? 0 : attention);
    x->job.model.dropout = rotary ? attention : hidden;
    wefti_tell(x, "model.dropout");
    if (rotary ? hidden > 0 : both && attention != hidden)
        wefti_text_add(x->notes, "--%s-dropout %g: %s of weft has one rate, that of %s\n",
                       rotary ? "hidden" : "attention", rotary ? hidden : attention,
                       weft_family_text(x->job.model.family),
                       rotary ? "--attention-dropout" : "--hidden-dropout");
    return WEFT_OK;
}

static void write_dropout(wefti_translation *x) {
    const weft_model_config *c = &x->config;
    wefti_give_real(x, "attention-dropout", c->dropout_apart ? c->attention_dropout : c->dropout);
    wefti_give_real(x, "hidden-dropout", wefti_is_rotary(x) ? 0 : c->dropout);
}
/* ---- training ---- */

static weft_status read_precision(wefti_translation *x) {
    weft_job_train *t = &x->job.train;
    const bool fp16 = given(x, "fp16"), fp8 = given(x, "fp8-format");
    t->precision = given(x, "bf16") || fp16 || fp8 ? WEFT_BF16 : WEFT_F32;
    wefti_tell(x, "train.precision");
    if (fp16) wefti_text_add(x->notes, "--fp16: weft computes in bf16\n");
    if (!fp8) return WEFT_OK;
    t->products = WEFT_PRODUCTS_F8;
    wefti_tell(x, "train.products");
    wefti_text_add(x->notes, "--fp8-format: weft predicts it; to train, set train.products=auto\n");
    return WEFT_OK;
}

static void write_precision(wefti_translation *x) {
    wefti_give_if(x, "bf16", x->job.train.precision == WEFT_BF16);
    if (x->job.train.products == WEFT_PRODUCTS_F8) wefti_give_text(x, "fp8-format", "hybrid");
}
/* sgd without momentum is sgd of weft, else momentum. */
static weft_status read_optimizer(wefti_translation *x) {
    const wefti_option_value *v = wefti_value_of(x, "optimizer");
    const bool sgd = wefti_word_is(x, "optimizer", "sgd");
    WEFT_REQUIRE(!v->given || sgd || wefti_word_is(x, "optimizer", "adam"), WEFT_E_NO_IMPL,
                 "--optimizer is '%.60s', but only adam and sgd have a counterpart", v->text);
    weft_job_optimizer *o = &x->job.train.optimizer;
    o->momentum = wefti_real_of(x, "sgd-momentum", 0.9);
    o->name = !sgd ? WEFT_ADAMW : o->momentum > 0 ? WEFT_MOMENTUM : WEFT_SGD;
    wefti_tell(x, "train.optimizer.name");
    if (o->name == WEFT_MOMENTUM) wefti_tell(x, "train.optimizer.momentum");
    return WEFT_OK;
}

static void write_optimizer(wefti_translation *x) {
    const weft_job_optimizer *o = &x->job.train.optimizer;
    const bool adam = o->name == WEFT_ADAMW || o->name == WEFT_ADAM;
    const bool sgd = o->name == WEFT_SGD || o->name == WEFT_MOMENTUM;
    if (!adam && !sgd)
        wefti_text_add(x->notes,
                       "train.optimizer.name: %s: only adamw and momentum have a counterpart\n",
                       weft_optimizer_text(o->name));
    if (o->name == WEFT_ADAM && o->weight_decay > 0)
        wefti_text_add(x->notes, "train.optimizer.name: adam adds the decay to the gradient; "
                                 "Megatron-LM's adam is adamw\n");
    wefti_give_text(x, "optimizer", sgd ? "sgd" : "adam");
    if (sgd) wefti_give_real(x, "sgd-momentum", o->name == WEFT_MOMENTUM ? o->momentum : 0);
}
static weft_status read_decay(wefti_translation *x) {
    weft_schedule_kind *name = &x->job.train.schedule.name;
    const wefti_option_value *v = wefti_value_of(x, "lr-decay-style");
    *name = WEFT_SCHEDULE_LINEAR;
    wefti_tell(x, "train.schedule.name");
    if (wefti_word_is(x, "lr-decay-style", "cosine")) *name = WEFT_SCHEDULE_COSINE;
    if (wefti_word_is(x, "lr-decay-style", "constant")) *name = WEFT_SCHEDULE_CONSTANT;
    if (v->given && strcmp(v->text, weft_schedule_text(*name)) != 0)
        wefti_text_add(x->notes, "--lr-decay-style %.60s: taken as linear\n", v->text);
    return WEFT_OK;
}

static void write_decay(wefti_translation *x) {
    const weft_schedule_kind name = x->job.train.schedule.name;
    if (name == WEFT_SCHEDULE_STEP)
        wefti_text_add(x->notes, "train.schedule.name: step\n");
    else
        wefti_give_text(x, "lr-decay-style", weft_schedule_text(name));
}
static weft_status read_min_lr(wefti_translation *x) {
    weft_job_train *t = &x->job.train;
    const double least = wefti_real_of(x, "min-lr", 0);
    if (t->optimizer.lr <= 0 || least > t->optimizer.lr) return WEFT_OK;
    t->schedule.final = wefti_fraction(least, t->optimizer.lr);
    wefti_tell(x, "train.schedule.final");
    return WEFT_OK;
}

static void write_min_lr(wefti_translation *x) {
    wefti_give_real(x, "min-lr", x->job.train.optimizer.lr * x->job.train.schedule.final);
}
/* ---- stages ---- */

static int64_t layers_of_stage(const wefti_translation *x, int32_t stage) {
    int64_t count = 0;
    for (int64_t l = 0; l < x->job.model.layers; l++) count += x->stage_of[l] == stage;
    return count;
}

/* By a text: "Et*3|(t|)*2t*3L" is Ettt|t|t|tttL. */

enum { LAYOUT_BYTES = 1 << 16 };

/* Writes `count` copies of a part behind out[*used]. */
static bool add_copies(char *out, size_t *used, const char *part, size_t length, long count) {
    if (count < 0 || count > LAYOUT_BYTES) return false;
    for (long k = 0; k < count; k++) {
        if (*used + length >= LAYOUT_BYTES) return false;
        memcpy(out + *used, part, length);
        *used += length;
    }
    return true;
}

/* Replaces "(part)*n", or "x*n". */
static bool unroll(const char *text, bool brackets, char out[LAYOUT_BYTES]) {
    size_t used = 0;
    while (*text) {
        const char *close = brackets && *text == '(' ? strchr(text, ')') : NULL;
        const char *part = close ? text + 1 : text;
        const size_t length = close ? (size_t)(close - part) : 1;
        char *end = (char *)(close ? close + 1 : text + 1);
        long count = 1;
        if (*end == '*' && (close || !brackets)) count = strtol(end + 1, &end, 10);
        if (!add_copies(out, &used, part, length, count)) return false;
        text = end;
    }
    out[used] = '\0';
    return true;
}

static weft_status read_layout(wefti_translation *x, char *first, char *second,
                               int64_t *out_parts) {
    const char *layout = wefti_value_of(x, "pipeline-model-parallel-layout")->text;
    size_t used = 0;
    int64_t layers = 0, parts = 1;
    for (const char *c = layout; *c && used < LAYOUT_BYTES - 1; c++)
        if (*c != ',') second[used++] = *c;
    second[used] = '\0';
    const bool fits = unroll(second, true, first) && unroll(first, false, second);
    used = fits ? strlen(second) : 0;
    bool good = used >= 2 && second[0] == 'E' && second[used - 1] == 'L';
    for (size_t k = 1; good && k + 1 < used; k++) {
        good = second[k] == 't' || second[k] == '|';
        parts += second[k] == '|';
        if (second[k] != 't') continue;
        if (layers < x->job.model.layers) x->stage_of[layers] = (int32_t)(parts - 1);
        layers++;
    }
    WEFT_REQUIRE(good && layers == x->job.model.layers, WEFT_E_ARG,
                 "--pipeline-model-parallel-layout '%.60s': it must be E, t for each of the %lld "
                 "layers, and L, with | between stages, as in \"Et*3|t*3L\"",
                 layout, (long long)x->job.model.layers);
    *out_parts = parts;
    return WEFT_OK;
}

static weft_status find_layout(wefti_translation *x, int64_t stages, int64_t *out_chunks) {
    int64_t parts = stages;
    WEFT_REQUIRE(!wefti_whole_of(x, "num-layers-per-virtual-pipeline-stage", 0) &&
                     !wefti_whole_of(x, "num-virtual-stages-per-pipeline-rank", 0),
                 WEFT_E_ARG,
                 "--pipeline-model-parallel-layout says the virtual stages: "
                 "--num-layers-per-virtual-pipeline-stage and "
                 "--num-virtual-stages-per-pipeline-rank must not");
    char *texts;
    WEFT_NEW_ARRAY(x->stage_of, int32_t, x->job.model.layers);
    WEFT_NEW_ARRAY(texts, char, 2 * LAYOUT_BYTES);
    const weft_status status = read_layout(x, texts, texts + LAYOUT_BYTES, &parts);
    wefti_free(texts);
    WEFT_TRY(status);
    WEFT_REQUIRE(parts % stages == 0, WEFT_E_ARG,
                 "--pipeline-model-parallel-layout has %lld parts, no multiple of %lld stages",
                 (long long)parts, (long long)stages);
    *out_chunks = parts / stages;
    return WEFT_OK;
}

static weft_status read_stages(wefti_translation *x) {
    wefti_degrees *d = &x->degrees;
    const int64_t stages = d->stages, layers = x->job.model.layers;
    const int64_t each = wefti_whole_of(x, "num-layers-per-virtual-pipeline-stage", 0);
    int64_t chunks = wefti_whole_of(x, "num-virtual-stages-per-pipeline-rank", 1);
    WEFT_REQUIRE(!each || (layers % stages == 0 && layers / stages % each == 0), WEFT_E_ARG,
                 "%lld layers are no multiple of %lld stages times %lld layers of "
                 "--num-layers-per-virtual-pipeline-stage",
                 (long long)layers, (long long)stages, (long long)each);
    if (each) chunks = layers / stages / each;
    if (given(x, "pipeline-model-parallel-layout")) WEFT_TRY(find_layout(x, stages, &chunks));
    WEFT_REQUIRE(chunks <= layers / stages, WEFT_E_ARG,
                 "%lld stages of %lld virtual stages are more than the %lld layers",
                 (long long)stages, (long long)chunks, (long long)layers);
    d->chunks = (int32_t)(stages > 1 ? chunks : 1);
    if (d->chunks > 1) d->schedule = WEFT_PIPELINE_INTERLEAVED;
    const int64_t parts = stages * d->chunks;
    if (x->stage_of || parts == 1 || layers % parts) return WEFT_OK;
    WEFT_NEW_ARRAY(x->stage_of, int32_t, layers);
    for (int64_t l = 0; l < layers; l++) x->stage_of[l] = (int32_t)(l / (layers / parts));
    return WEFT_OK;
}

/* Equal numbers of layers, or a text of all, in quotes for a shell: "Et*3|t*2|t*3L", E the
 * embedding, L the head. */
static void write_stages(wefti_translation *x) {
    const wefti_degrees *d = &x->degrees;
    const int32_t parts = d->stages * d->chunks;
    bool equal = x->config.layers % parts == 0;
    if (d->stages == 1) return;
    if (d->schedule != WEFT_PIPELINE_1F1B && d->schedule != WEFT_PIPELINE_INTERLEAVED) {
        wefti_text_add(x->notes,
                       "the pipeline schedule %s with %d virtual stages: Megatron-LM has 1f1b and "
                       "interleaved, and these options mean 1f1b\n",
                       d->schedule == WEFT_PIPELINE_GPIPE ? "gpipe" : "zero_bubble", d->chunks);
        return;
    }
    for (int32_t k = 0; k < parts && x->stage_of; k++)
        equal &= layers_of_stage(x, k) == x->config.layers / parts;
    if (equal && d->chunks > 1)
        wefti_give_whole(x, "num-layers-per-virtual-pipeline-stage", x->config.layers / parts);
    if (equal) return;
    if (!x->stage_of) {
        wefti_text_add(x->notes,
                       "%lld layers on %d virtual stages, which the plan does not assign\n",
                       (long long)x->config.layers, parts);
        return;
    }
    wefti_text text = {0};
    for (int32_t k = 0; k < parts; k++) {
        const long long layers = (long long)layers_of_stage(x, k);
        wefti_text_add(&text, "%s%s", k ? "|" : "\"E", layers ? "t" : "");
        if (layers > 1) wefti_text_add(&text, "*%lld", layers);
    }
    wefti_text_add(&text, "L\"");
    wefti_give_text(x, "pipeline-model-parallel-layout",
                    text.failed ? NULL : wefti_arena_strdup(x->arena, text.data));
    wefti_text_free(&text);
}

/* ---- degrees ---- */

/* Devices, and the replicas of the model among them. */
static weft_status find_replicas(wefti_translation *x, int64_t model, int64_t expert,
                                 int64_t *out_replicas) {
    int64_t devices = x->devices;
    if (!devices) devices = wefti_whole_of(x, "nnodes", 1) * wefti_whole_of(x, "nproc-per-node", 0);
    if (!devices) {
        devices = model * expert;
        wefti_text_add(x->notes,
                       "the options do not say how many devices there are: taken %lld, the least; "
                       "--devices N says it\n",
                       (long long)devices);
    }
    WEFT_REQUIRE(devices % model == 0, WEFT_E_ARG,
                 "%lld devices are no multiple of tp %lld x cp %lld x pp %lld", (long long)devices,
                 (long long)wefti_whole_of(x, "tensor-model-parallel-size", 1),
                 (long long)wefti_whole_of(x, "context-parallel-size", 1),
                 (long long)wefti_whole_of(x, "pipeline-model-parallel-size", 1));
    *out_replicas = devices / model;
    WEFT_REQUIRE(*out_replicas % expert == 0, WEFT_E_ARG,
                 "%lld replicas of the model are no multiple of --expert-model-parallel-size %lld",
                 (long long)*out_replicas, (long long)expert);
    return WEFT_OK;
}

/* The batch, and the microbatches that make it up. */
static weft_status find_batch(wefti_translation *x, int64_t replicas) {
    const int64_t micro = wefti_whole_of(x, "micro-batch-size", 1);
    WEFT_REQUIRE(micro <= 1LL << 30 && replicas <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                 "--micro-batch-size %lld for %lld replicas is too large", (long long)micro,
                 (long long)replicas);
    const int64_t batch = wefti_whole_of(x, "global-batch-size", micro * replicas);
    WEFT_REQUIRE(batch % (micro * replicas) == 0, WEFT_E_ARG,
                 "--global-batch-size %lld is no multiple of --micro-batch-size %lld times %lld "
                 "replicas",
                 (long long)batch, (long long)micro, (long long)replicas);
    const int64_t microbatches = batch / (micro * replicas);
    WEFT_REQUIRE(microbatches <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                 "--global-batch-size %lld makes more than %d microbatches", (long long)batch,
                 WEFTI_DEVICES_MAX);
    x->degrees.microbatches = (int32_t)microbatches;
    x->job.train.batch = batch;
    wefti_tell(x, "train.batch");
    return WEFT_OK;
}

/* Megatron-LM divides what tp, cp and pp leave over into data parallelism, which also holds ep. */
static weft_status read_degrees(wefti_translation *x) {
    const int64_t tensor = wefti_whole_of(x, "tensor-model-parallel-size", 1),
                  context = wefti_whole_of(x, "context-parallel-size", 1),
                  ranks = wefti_whole_of(x, "expert-model-parallel-size", 1),
                  stages = wefti_whole_of(x, "pipeline-model-parallel-size", 1),
                  parts = wefti_whole_of(x, "expert-tensor-parallel-size", tensor);
    weft_model_config c = {.experts = x->job.model.experts};
    /* Ranks of tp hold whole experts too: weft's ep is the rest. */
    const bool spread =
        parts == 1 && tensor > 1 && ranks % tensor == 0 && c.experts > 0 && c.experts % ranks == 0;
    const int64_t expert = spread ? ranks / tensor : ranks;
    WEFT_REQUIRE(tensor <= WEFTI_DEVICES_MAX && context <= WEFTI_DEVICES_MAX &&
                     expert <= WEFTI_DEVICES_MAX && stages <= WEFTI_DEVICES_MAX &&
                     wefti_whole_of(x, "nnodes", 0) <= WEFTI_DEVICES_MAX &&
                     wefti_whole_of(x, "nproc-per-node", 0) <= WEFTI_DEVICES_MAX,
                 WEFT_E_ARG, "a degree of parallelism is above %d", WEFTI_DEVICES_MAX);
    WEFT_REQUIRE(
        (double)tensor * (double)context * (double)stages * (double)expert <= WEFTI_DEVICES_MAX,
        WEFT_E_ARG, "the degrees of parallelism make more than %d devices", WEFTI_DEVICES_MAX);
    int64_t replicas;
    WEFT_TRY(find_replicas(x, tensor * context * stages, expert, &replicas));
    WEFT_TRY(find_batch(x, replicas));
    wefti_degrees *d = &x->degrees;
    d->stages = (int32_t)stages;
    d->data = (int32_t)(replicas / expert), d->expert = (int32_t)expert;
    d->context = (int32_t)context, d->tensor = (int32_t)tensor;
    d->sequence = given(x, "sequence-parallel") && tensor > 1;
    const int64_t held = wefti_degrees_spread_experts(&c, d) ? expert * tensor : expert;
    if (c.experts && (parts != 1 || held != ranks))
        wefti_text_add(x->notes,
                       "--expert-tensor-parallel-size %lld: experts of weft are whole, spread over "
                       "%lld ranks of ep and tp, not %lld; a strategy for `n` and `k` of "
                       "moe_linear splits them\n",
                       (long long)parts, (long long)held, (long long)ranks);
    return WEFT_OK;
}

static void write_degrees(wefti_translation *x) {
    const wefti_degrees *d = &x->degrees;
    const int64_t micro = wefti_samples_of_part(x, (int64_t)d->data * d->expert * d->microbatches);
    /* Megatron-LM counts the ranks of experts; without a size of its own each is split over tp. */
    const bool spread = wefti_degrees_spread_experts(&x->config, d);
    const int32_t experts = spread ? d->expert * d->tensor : d->expert;
    wefti_give_whole(x, "global-batch-size", x->job.train.batch);
    if (micro) wefti_give_whole(x, "micro-batch-size", micro);
    wefti_give_whole(x, "tensor-model-parallel-size", d->tensor);
    wefti_give_whole(x, "pipeline-model-parallel-size", d->stages);
    if (d->context > 1) wefti_give_whole(x, "context-parallel-size", d->context);
    if (experts > 1) wefti_give_whole(x, "expert-model-parallel-size", experts);
    if (x->config.experts && d->tensor > 1) wefti_give_whole(x, "expert-tensor-parallel-size", 1);
    if (x->config.experts && d->tensor > 1 && !spread)
        wefti_text_add(x->notes,
                       "experts that all %d ranks of tp compute: Megatron-LM spreads them\n",
                       d->tensor);
    wefti_give_if(x, "sequence-parallel", d->sequence);
}

/* ---- the optimizer's shards ---- */

/* By ZeRO's level. */
static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

/* The level, and the copies of the sharded states among all replicas of the parameters. */
static weft_status read_shards(wefti_translation *x) {
    wefti_degrees *d = &x->degrees;
    const char *strategy = wefti_value_of(x, "data-parallel-sharding-strategy")->text;
    const bool fsdp = given(x, "use-megatron-fsdp");
    d->level = fsdp ? 3 : given(x, "use-distributed-optimizer");
    for (int level = 0; fsdp && strategy; level++) {
        WEFT_REQUIRE(level < 4, WEFT_E_ARG,
                     "--data-parallel-sharding-strategy is '%.60s', but must be no_shard, optim, "
                     "optim_grads or optim_grads_params",
                     strategy);
        d->level = level;
        if (!strcmp(strategy, strategies[level])) break;
    }
    const int64_t copies = wefti_whole_of(x, "num-distributed-optimizer-instances", 1),
                  replicas = (int64_t)d->data * d->expert * d->context;
    if (copies <= 1 || d->level == 0) return WEFT_OK;
    WEFT_REQUIRE(replicas % copies == 0, WEFT_E_ARG,
                 "--num-distributed-optimizer-instances %lld: it does not divide the %lld replicas",
                 (long long)copies, (long long)replicas);
    d->shard = (int32_t)(replicas / copies);
    return WEFT_OK;
}

static void write_shards(wefti_translation *x) {
    const wefti_degrees *d = &x->degrees;
    const int32_t replicas = d->data * d->expert * d->context;
    wefti_give_if(x, "use-distributed-optimizer", d->level > 0);
    wefti_give_if(x, "use-megatron-fsdp", d->level > 1);
    if (d->level > 1) wefti_give_text(x, "data-parallel-sharding-strategy", strategies[d->level]);
    if (d->level > 1) wefti_give_text(x, "ckpt-format", "fsdp_dtensor");
    if (d->level && d->shard && replicas > d->shard)
        wefti_give_whole(x, "num-distributed-optimizer-instances", replicas / d->shard);
}
/* ---- recomputation ---- */

static weft_status read_recompute(wefti_translation *x) {
    const wefti_option_value *v = wefti_value_of(x, "recompute-granularity");
    const bool full = wefti_word_is(x, "recompute-granularity", "full");
    const int64_t layers = wefti_whole_of(x, "recompute-num-layers", 0);
    WEFT_REQUIRE(!v->given || full || !strcmp(v->text, "selective"), WEFT_E_ARG,
                 "--recompute-granularity is '%.60s', but must be full or selective", v->text);
    x->degrees.recompute = full ? WEFT_RECOMPUTE_FULL
                           : v->given || given(x, "recompute-activations")
                               ? WEFT_RECOMPUTE_SELECTIVE
                               : WEFT_RECOMPUTE_NONE;
    if (full && wefti_word_is(x, "recompute-method", "block"))
        wefti_text_add(
            x->notes,
            "--recompute-method block: weft recomputes all layers, not the first %lld of "
            "each stage; name them in parallel.recompute.cells\n",
            (long long)layers);
    else if (full && layers > 1)
        wefti_text_add(x->notes,
                       "--recompute-num-layers %lld: weft keeps the input of each layer\n",
                       (long long)layers);
    return WEFT_OK;
}

static void write_recompute(wefti_translation *x) {
    const bool full = x->degrees.recompute == WEFT_RECOMPUTE_FULL;
    if (x->degrees.recompute == WEFT_RECOMPUTE_NONE) return;
    wefti_give_text(x, "recompute-granularity", full ? "full" : "selective");
    if (full) wefti_give_text(x, "recompute-method", "uniform");
    if (full) wefti_give_whole(x, "recompute-num-layers", 1);
}
/* ---- the table ---- */

WEFTI_TRANSFORM(block);
WEFTI_TRANSFORM(ffn);
WEFTI_TRANSFORM(heads);
WEFTI_TRANSFORM(vocabulary);
WEFTI_TRANSFORM(window);
WEFTI_TRANSFORM(base);
WEFTI_TRANSFORM(dropout);
WEFTI_TRANSFORM(precision);
WEFTI_TRANSFORM(optimizer);
WEFTI_TRANSFORM(decay);
WEFTI_TRANSFORM(min_lr);
WEFTI_TRANSFORM(degrees);
WEFTI_TRANSFORM(stages);
WEFTI_TRANSFORM(shards);
WEFTI_TRANSFORM(recompute);

#define SAME WEFTI_OPTION_SAME
#define OF WEFTI_OPTION_BY
#define OF_ROTARY .jobs = WEFTI_JOBS_ROTARY
#define OF_EXPERTS .jobs = WEFTI_JOBS_EXPERTS
#define OF_ADAM .jobs = WEFTI_JOBS_ADAM
#define IF_MISSING(value) .standard = value

/* In the order in which values depend on each other. */
static const wefti_option options[] = {
    OF(block, "model.family", TEXT, "position-embedding-type"),
    OF(block, "model.family", SWITCH, "use-rotary-position-embeddings"),
    OF(block, "model.family", TEXT, "normalization"),
    OF(block, "model.family", SWITCH, "apply-layernorm-1p"),
    OF(block, "model.family", SWITCH, "swiglu"),
    OF(block, "model.mlp_bias", SWITCH, "disable-bias-linear"),
    OF(block, "model.family", SWITCH, "add-qkv-bias"),
    OF(block, "model.family", SWITCH, "qk-layernorm"),
    OF(block, "model.tied", SWITCH, "untie-embeddings-and-output-weights"),
    SAME("model.layers", "num-layers"),
    SAME("model.hidden", "hidden-size"),
    SAME("model.heads", "num-attention-heads"),
    SAME("model.context", "seq-length", .aliases = " encoder-seq-length"),
    SAME("model.context", "max-position-embeddings", .only_write = true),
    SAME("model.experts", "num-experts", IF_MISSING("0"), .brief = true),
    OF(ffn, "model.ffn", INTEGER, "ffn-hidden-size"),
    OF(ffn, "model.ffn", INTEGER, "moe-ffn-hidden-size"),
    OF(heads, "model.head_dim", INTEGER, "kv-channels", OF_ROTARY),
    OF(heads, "model.kv_heads", SWITCH, "group-query-attention", OF_ROTARY),
    OF(heads, "model.kv_heads", INTEGER, "num-query-groups", OF_ROTARY),
    OF(vocabulary, "model.vocab", INTEGER, "vocab-size", .aliases = " padded-vocab-size"),
    OF(vocabulary, "model.vocab", INTEGER, "make-vocab-size-divisible-by"),
    OF(vocabulary, "model.vocab", TEXT, "tokenizer-type"),
    OF(vocabulary, "model.vocab", SWITCH, "merge-file"),
    OF(window, "model.window", TEXT, "window-size"),
    SAME("model.norm_eps", "norm-epsilon", IF_MISSING("1e-5"), .aliases = " layernorm-epsilon"),
    OF(base, "model.rope_theta", INTEGER, "rotary-base", OF_ROTARY),
    OF(dropout, "model.dropout", REAL, "attention-dropout"),
    OF(dropout, "model.dropout", REAL, "hidden-dropout"),
    SAME("model.experts_per_token", "moe-router-topk", OF_EXPERTS, IF_MISSING("2")),
    SAME("model.aux_loss", "moe-aux-loss-coeff", OF_EXPERTS, IF_MISSING("0")),
    SAME("model.capacity_factor", "moe-expert-capacity-factor", OF_EXPERTS, IF_MISSING("0"),
         .brief = true),
    OF(precision, "train.precision", SWITCH, "bf16"),
    OF(precision, "train.precision", SWITCH, "fp16"),
    OF(precision, "train.products", SWITCH, "fp8-format", .aliases = " fp8-hybrid"),
    SAME("train.steps", "train-iters"),
    SAME("train.seed", "seed"),
    OF(optimizer, "train.optimizer.name", TEXT, "optimizer"),
    OF(optimizer, "train.optimizer.momentum", REAL, "sgd-momentum"),
    SAME("train.optimizer.lr", "lr"),
    SAME("train.optimizer.betas", "adam-beta1", OF_ADAM, IF_MISSING("0.9")),
    SAME("train.optimizer.betas", "adam-beta2", OF_ADAM, IF_MISSING("0.999"), .part = 1),
    SAME("train.optimizer.eps", "adam-eps", OF_ADAM, IF_MISSING("1e-8")),
    SAME("train.optimizer.weight_decay", "weight-decay", IF_MISSING("0.01")),
    SAME("train.clip", "clip-grad", IF_MISSING("1")),
    OF(decay, "train.schedule.name", TEXT, "lr-decay-style"),
    SAME("train.schedule.warmup", "lr-warmup-iters", IF_MISSING("0")),
    OF(min_lr, "train.schedule.final", REAL, "min-lr", .jobs = WEFTI_JOBS_DECAY),
    OF(degrees, "parallel.devices", INTEGER, "nnodes"),
    OF(degrees, "parallel.devices", INTEGER, "nproc-per-node"),
    OF(degrees, "parallel.mesh", INTEGER, "tensor-model-parallel-size"),
    OF(degrees, "parallel.pipeline.stages", INTEGER, "pipeline-model-parallel-size"),
    OF(degrees, "parallel.mesh", INTEGER, "context-parallel-size"),
    OF(degrees, "parallel.mesh", INTEGER, "expert-model-parallel-size"),
    OF(degrees, "parallel.mesh", INTEGER, "expert-tensor-parallel-size"),
    OF(degrees, "parallel.strategies", SWITCH, "sequence-parallel"),
    OF(degrees, "parallel.accumulate", INTEGER, "micro-batch-size"),
    OF(degrees, "train.batch", INTEGER, "global-batch-size"),
    OF(stages, "parallel.pipeline.virtual_stages", INTEGER,
       "num-layers-per-virtual-pipeline-stage"),
    OF(stages, "parallel.pipeline.virtual_stages", INTEGER, "num-virtual-stages-per-pipeline-rank"),
    OF(stages, "parallel.pipeline.stage_of", TEXT, "pipeline-model-parallel-layout"),
    OF(shards, "parallel.optimizer.level", SWITCH, "use-megatron-fsdp",
       .aliases = " use-torch-fsdp2 use-custom-fsdp"),
    OF(shards, "parallel.optimizer.level", TEXT, "data-parallel-sharding-strategy"),
    OF(shards, "parallel.optimizer.level", SWITCH, "use-distributed-optimizer"),
    OF(shards, "parallel.optimizer.level", TEXT, "ckpt-format"),
    OF(shards, "parallel.optimizer.shard_size", INTEGER, "num-distributed-optimizer-instances"),
    OF(recompute, "parallel.recompute.mode", TEXT, "recompute-granularity"),
    OF(recompute, "parallel.recompute.mode", SWITCH, "recompute-activations"),
    OF(recompute, "parallel.recompute.mode", TEXT, "recompute-method"),
    OF(recompute, "parallel.recompute.mode", INTEGER, "recompute-num-layers"),
};

static weft_status check(weft_family family) {
    const wefti_family_style style = wefti_family_style_of(family);
    WEFT_REQUIRE(!wefti_family_has(family, WEFTI_QK_NORMS | WEFTI_POST_NORMS), WEFT_E_NO_IMPL,
                 "%s has one norm of all queries and one of all keys, and norms behind attention "
                 "and feed-forward layers: Megatron-LM has only norms before them, and norms of "
                 "each head",
                 weft_family_text(family));
    WEFT_REQUIRE(style == WEFTI_STYLE_LLAMA || style == WEFTI_STYLE_GPT2, WEFT_E_NO_IMPL,
                 "Megatron-LM's options describe gpt2, llama and their relatives, but not %s",
                 weft_family_text(family));
    return WEFT_OK;
}

static void add(const wefti_option *o, const wefti_option *before, const wefti_option_value *v,
                wefti_text *out) {
    if (!o) return;
    wefti_text_add(out, "%s--%s", before ? "" : "# For Megatron-LM 0.16 or later\n", o->name);
    if (o->form != WEFTI_OPTION_SWITCH || v->text) wefti_text_add(out, " ");
    wefti_option_print(o, v, 1, out);
    wefti_text_add(out, "\n");
}

const wefti_system wefti_megatron = {.name = "Megatron-LM",
                                     .options = options,
                                     .count = sizeof options / sizeof *options,
                                     .read = wefti_megatron_read,
                                     .check = check,
                                     .add = add,
                                     .has_stages = true};
_Static_assert(sizeof options / sizeof *options < WEFTI_OPTIONS_MAX, "raise WEFTI_OPTIONS_MAX");
