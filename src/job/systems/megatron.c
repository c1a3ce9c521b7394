/* Megatron-LM's options of the model and of training, and the table of all. See systems.h. */
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "job/systems/systems.h"
#include "models/family.h"
#include "topo/limits.h"

static bool has_experts(const wefti_translation *x) {
    return wefti_whole_of(x, "num-experts", 0) > 0;
}

/* ---- the block of the model ---- */

static weft_status read_rotary_block(wefti_translation *x, bool rms) {
    weft_job_model *m = &x->job.model;
    const bool experts = has_experts(x), norms = wefti_is_given(x, "qk-layernorm"),
               qkv = wefti_is_given(x, "add-qkv-bias"),
               no_bias = wefti_is_given(x, "disable-bias-linear");
    m->family = experts                                       ? WEFT_FAMILY_MIXTRAL
                : norms                                       ? WEFT_FAMILY_QWEN3
                : qkv                                         ? WEFT_FAMILY_QWEN2
                : no_bias && wefti_is_given(x, "window-size") ? WEFT_FAMILY_MISTRAL
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
                       wefti_is_given(x, "apply-layernorm-1p") ? "--apply-layernorm-1p"
                                                               : "LayerNorm",
                       weft_family_text(m->family));
    m->attention_bias = m->mlp_bias = !no_bias;
    m->tied = !wefti_is_given(x, "untie-embeddings-and-output-weights");
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
    const bool rms = wefti_word_is(x, "normalization", "RMSNorm"),
               swiglu = wefti_is_given(x, "swiglu");
    const bool rotary = wefti_is_given(x, "use-rotary-position-embeddings") ||
                        wefti_word_is(x, "position-embedding-type", "rope");
    wefti_tell(x, "model.family");
    if (rotary && swiglu) return read_rotary_block(x, rms);
    WEFT_REQUIRE(!rms && !rotary && !swiglu, WEFT_E_NO_IMPL,
                 "no family of weft has this block: llama needs --normalization RMSNorm, --swiglu "
                 "and --position-embedding-type rope, gpt2 none of them; missing: %s%s%s",
                 rms ? "" : "RMSNorm ", swiglu ? "" : "swiglu ", rotary ? "" : "rope");
    WEFT_REQUIRE(!wefti_is_given(x, "qk-layernorm"), WEFT_E_NO_IMPL,
                 "--qk-layernorm: gpt2 of weft has no norms of queries and keys");
    x->job.model.family = has_experts(x) ? WEFT_FAMILY_GPT2_MOE : WEFT_FAMILY_GPT2;
    if (wefti_is_given(x, "disable-bias-linear"))
        wefti_text_add(x->notes, "--disable-bias-linear: gpt2 of weft has biases\n");
    if (wefti_is_given(x, "untie-embeddings-and-output-weights"))
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

/* ---- the model's sizes and rates ---- */

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
    m->kv_heads = wefti_is_given(x, "group-query-attention")
                      ? wefti_whole_of(x, "num-query-groups", 1)
                      : m->heads;
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
    if (!type) type = wefti_is_given(x, "merge-file") ? "GPT2BPETokenizer" : "";
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
    const bool rotary = wefti_is_rotary(x), both = wefti_is_given(x, "attention-dropout");
    if (!both && (rotary || !wefti_is_given(x, "hidden-dropout"))) return WEFT_OK;
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
    const bool fp16 = wefti_is_given(x, "fp16"), fp8 = wefti_is_given(x, "fp8-format");
    t->precision = wefti_is_given(x, "bf16") || fp16 || fp8 ? WEFT_BF16 : WEFT_F32;
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
    OF(wefti_megatron_degrees, "parallel.devices", INTEGER, "nnodes"),
    OF(wefti_megatron_degrees, "parallel.devices", INTEGER, "nproc-per-node"),
    OF(wefti_megatron_degrees, "parallel.mesh", INTEGER, "tensor-model-parallel-size"),
    OF(wefti_megatron_degrees, "parallel.pipeline.stages", INTEGER, "pipeline-model-parallel-size"),
    OF(wefti_megatron_degrees, "parallel.mesh", INTEGER, "context-parallel-size"),
    OF(wefti_megatron_degrees, "parallel.mesh", INTEGER, "expert-model-parallel-size"),
    OF(wefti_megatron_degrees, "parallel.mesh", INTEGER, "expert-tensor-parallel-size"),
    OF(wefti_megatron_degrees, "parallel.strategies", SWITCH, "sequence-parallel"),
    OF(wefti_megatron_degrees, "parallel.accumulate", INTEGER, "micro-batch-size"),
    OF(wefti_megatron_degrees, "train.batch", INTEGER, "global-batch-size"),
    OF(wefti_megatron_stages, "parallel.pipeline.virtual_stages", INTEGER,
       "num-layers-per-virtual-pipeline-stage"),
    OF(wefti_megatron_stages, "parallel.pipeline.virtual_stages", INTEGER,
       "num-virtual-stages-per-pipeline-rank"),
    OF(wefti_megatron_stages, "parallel.pipeline.stage_of", TEXT, "pipeline-model-parallel-layout"),
    OF(wefti_megatron_shards, "parallel.optimizer.level", SWITCH, "use-megatron-fsdp",
       .aliases = " use-torch-fsdp2 use-custom-fsdp"),
    OF(wefti_megatron_shards, "parallel.optimizer.level", TEXT, "data-parallel-sharding-strategy"),
    OF(wefti_megatron_shards, "parallel.optimizer.level", SWITCH, "use-distributed-optimizer"),
    OF(wefti_megatron_shards, "parallel.optimizer.level", TEXT, "ckpt-format"),
    OF(wefti_megatron_shards, "parallel.optimizer.shard_size", INTEGER,
       "num-distributed-optimizer-instances"),
    OF(wefti_megatron_recompute, "parallel.recompute.mode", TEXT, "recompute-granularity"),
    OF(wefti_megatron_recompute, "parallel.recompute.mode", SWITCH, "recompute-activations"),
    OF(wefti_megatron_recompute, "parallel.recompute.mode", TEXT, "recompute-method"),
    OF(wefti_megatron_recompute, "parallel.recompute.mode", INTEGER, "recompute-num-layers"),
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
