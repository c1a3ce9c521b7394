/* Options of Megatron-LM as a job file: see interop/systems.h and weft_job_import. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/systems.h"
#include "models/family.h"

typedef struct importing {
    wefti_megatron m;
    weft_model_config config;
    wefti_degrees degrees;
    int64_t devices, batch;
    int32_t *stage_of; /* [layers]: the virtual stage of each; NULL: shared out */
    wefti_text *notes;
} importing;

static int64_t or_else(int64_t value, int64_t standard) {
    return value ? value : standard;
}

/* Sizes of tokenizers that are no matter of a file. Sources: the vocabularies of GPT-2 and Llama 2.
 */
static int64_t size_of_tokenizer(const wefti_megatron *m) {
    const char *type = m->tokenizer ? m->tokenizer : m->merges ? "GPT2BPETokenizer" : "";
    if (!strcmp(type, "GPT2BPETokenizer")) return 50257;
    return !strcmp(type, "Llama2Tokenizer") ? 32000 : 0;
}

/* Megatron-LM makes the vocabulary a multiple of 128 tp. 0: only the tokenizer's files tell. */
static void find_vocabulary(importing *i) {
    const wefti_megatron *m = &i->m;
    const int64_t vocab = or_else(m->vocab, size_of_tokenizer(m));
    if (!vocab) {
        wefti_text_add(i->notes,
                       "--vocab-size is missing, and only the files of %.60s tell it: give "
                       "model.vocab=N\n",
                       m->tokenizer ? m->tokenizer : "the tokenizer");
        return;
    }
    const int64_t unit = or_else(m->divisible, 128) * or_else(m->tensor, 1);
    i->config.vocab = (vocab + unit - 1) / unit * unit;
}

/* The family, by the options that weft's families fix. */
static weft_status find_family(importing *i) {
    const wefti_megatron *m = &i->m;
    const bool rms = m->normalization && !strcmp(m->normalization, "RMSNorm");
    const bool rotary = m->rotary || (m->position && !strcmp(m->position, "rope"));
    weft_model_config *c = &i->config;
    if (rotary && m->swiglu) {
        c->family = m->experts    ? WEFT_FAMILY_MIXTRAL
                    : m->qk_norm  ? WEFT_FAMILY_QWEN3
                    : m->qkv_bias ? WEFT_FAMILY_QWEN2
                                  : WEFT_FAMILY_LLAMA;
        WEFT_REQUIRE(!m->qk_norm || !m->experts, WEFT_E_NO_IMPL,
                     "--qk-layernorm with --num-experts: mixtral of weft has no norms of queries "
                     "and keys");
        WEFT_REQUIRE(!m->qk_norm || !m->qkv_bias, WEFT_E_NO_IMPL,
                     "--qk-layernorm with --add-qkv-bias: qwen3 of weft has biases in all of "
                     "attention or none");
        WEFT_REQUIRE(m->no_bias || c->family == WEFT_FAMILY_LLAMA, WEFT_E_NO_IMPL,
                     "%s of weft has no biases in linear layers: --disable-bias-linear is missing",
                     weft_family_text(c->family));
        if (!rms)
            wefti_text_add(i->notes, "%s: %s of weft has RMSNorm, which costs less\n",
                           m->layernorm_1p ? "--apply-layernorm-1p" : "LayerNorm",
                           weft_family_text(c->family));
        c->attention_bias = c->mlp_bias = !m->no_bias;
        c->tied = !m->untied;
        return WEFT_OK;
    }
    WEFT_REQUIRE(!rms && !rotary && !m->swiglu, WEFT_E_NO_IMPL,
                 "no family of weft has this block: llama needs --normalization RMSNorm, --swiglu "
                 "and --position-embedding-type rope, gpt2 none of them; missing: %s%s%s",
                 rms ? "" : "RMSNorm ", m->swiglu ? "" : "swiglu ", rotary ? "" : "rope");
    WEFT_REQUIRE(!m->qk_norm, WEFT_E_NO_IMPL,
                 "--qk-layernorm: gpt2 of weft has no norms of queries and keys");
    c->family = m->experts ? WEFT_FAMILY_GPT2_MOE : WEFT_FAMILY_GPT2;
    if (m->no_bias) wefti_text_add(i->notes, "--disable-bias-linear: gpt2 of weft has biases\n");
    if (m->untied)
        wefti_text_add(i->notes, "--untie-embeddings-and-output-weights: gpt2 of weft uses the "
                                 "embedding for the output\n");
    return WEFT_OK;
}

static weft_status find_model(importing *i) {
    const wefti_megatron *m = &i->m;
    weft_model_config *c = &i->config;
    WEFT_REQUIRE(m->layers && m->hidden && m->heads && m->sequence, WEFT_E_ARG,
                 "a model needs --num-layers, --hidden-size, --num-attention-heads and "
                 "--seq-length; missing: %s%s%s%s",
                 m->layers ? "" : "--num-layers ", m->hidden ? "" : "--hidden-size ",
                 m->heads ? "" : "--num-attention-heads ", m->sequence ? "" : "--seq-length");
    WEFT_TRY(find_family(i));
    find_vocabulary(i);
    c->layers = m->layers, c->hidden = m->hidden, c->heads = m->heads, c->context = m->sequence;
    c->kv_heads = m->grouped ? or_else(m->groups, 1) : m->heads;
    c->head_dim = or_else(m->head_dim, m->hidden / m->heads);
    c->ffn = or_else(m->ffn, m->swiglu ? 4 * m->hidden * 2 / 3 / 64 * 64 : 4 * m->hidden);
    if (m->experts) {
        c->experts = m->experts;
        c->experts_per_token = or_else(m->experts_per_token, 2);
        c->ffn = or_else(m->expert_ffn, c->ffn);
    }
    if (m->window && !wefti_family_has(c->family, WEFTI_WINDOW))
        wefti_text_add(i->notes, "--window-size: %s of weft attends to all earlier tokens\n",
                       weft_family_text(c->family));
    else
        c->window = m->window;
    return WEFT_OK;
}

static weft_status find_recompute(importing *i) {
    const wefti_megatron *m = &i->m;
    const bool full = m->recompute && !strcmp(m->recompute, "full");
    WEFT_REQUIRE(!m->recompute || full || !strcmp(m->recompute, "selective"), WEFT_E_ARG,
                 "--recompute-granularity is '%.60s', but must be full or selective", m->recompute);
    i->degrees.recompute = full                           ? WEFT_RECOMPUTE_FULL
                           : m->recompute || m->selective ? WEFT_RECOMPUTE_SELECTIVE
                                                          : WEFT_RECOMPUTE_NONE;
    if (full && m->recompute_method && !strcmp(m->recompute_method, "block"))
        wefti_text_add(
            i->notes,
            "--recompute-method block: weft recomputes all layers, not the first %lld of "
            "each stage; name them in parallel.recompute.cells\n",
            (long long)m->recompute_layers);
    else if (full && m->recompute_layers > 1)
        wefti_text_add(i->notes,
                       "--recompute-num-layers %lld: weft keeps the input of each layer\n",
                       (long long)m->recompute_layers);
    return WEFT_OK;
}

/* Copies of the sharded states, among all replicas of the parameters. */
static weft_status find_shard(importing *i) {
    wefti_degrees *d = &i->degrees;
    const int64_t copies = i->m.instances, replicas = (int64_t)d->data * d->expert * d->context;
    if (copies <= 1 || d->level == 0) return WEFT_OK;
    WEFT_REQUIRE(replicas % copies == 0, WEFT_E_ARG,
                 "--num-distributed-optimizer-instances %lld: it does not divide the %lld replicas",
                 (long long)copies, (long long)replicas);
    d->shard = (int32_t)(replicas / copies);
    return WEFT_OK;
}

/* ZeRO's level. */
static weft_status find_level(importing *i) {
    static const char *const names[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    const wefti_megatron *m = &i->m;
    i->degrees.level = m->distributed_optimizer;
    if (!m->fsdp) return WEFT_OK;
    i->degrees.level = 3;
    for (int level = 0; m->sharding; level++) {
        WEFT_REQUIRE(level < 4, WEFT_E_ARG,
                     "--data-parallel-sharding-strategy is '%.60s', but must be no_shard, optim, "
                     "optim_grads or optim_grads_params",
                     m->sharding);
        i->degrees.level = level;
        if (!strcmp(m->sharding, names[level])) break;
    }
    return WEFT_OK;
}

/* --- stages by a text: "Et*3|(t|)*2t*3L" is Ettt|t|t|tttL --- */

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

static weft_status read_layout(importing *i, char *first, char *second, int64_t *out_parts) {
    const char *layout = i->m.layout;
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
        if (layers < i->m.layers) i->stage_of[layers] = (int32_t)(parts - 1);
        layers++;
    }
    WEFT_REQUIRE(good && layers == i->m.layers, WEFT_E_ARG,
                 "--pipeline-model-parallel-layout '%.60s': it must be E, t for each of the %lld "
                 "layers, and L, with | between stages, as in \"Et*3|t*3L\"",
                 layout, (long long)i->m.layers);
    *out_parts = parts;
    return WEFT_OK;
}

static weft_status find_layout(importing *i, int64_t stages, int64_t *out_chunks) {
    int64_t parts = stages;
    WEFT_REQUIRE(!i->m.chunk_layers && !i->m.chunks, WEFT_E_ARG,
                 "--pipeline-model-parallel-layout says the virtual stages: "
                 "--num-layers-per-virtual-pipeline-stage and "
                 "--num-virtual-stages-per-pipeline-rank must not");
    char *texts;
    WEFT_NEW_ARRAY(i->stage_of, int32_t, i->m.layers);
    WEFT_NEW_ARRAY(texts, char, 2 * LAYOUT_BYTES);
    const weft_status status = read_layout(i, texts, texts + LAYOUT_BYTES, &parts);
    wefti_free(texts);
    WEFT_TRY(status);
    WEFT_REQUIRE(parts % stages == 0, WEFT_E_ARG,
                 "--pipeline-model-parallel-layout has %lld parts, no multiple of %lld stages",
                 (long long)parts, (long long)stages);
    *out_chunks = parts / stages;
    return WEFT_OK;
}

/* Without a text of them, all virtual stages have equally many layers. */
static weft_status share_layers(importing *i, int64_t parts) {
    if (i->stage_of || parts == 1 || i->m.layers % parts) return WEFT_OK;
    WEFT_NEW_ARRAY(i->stage_of, int32_t, i->m.layers);
    for (int64_t l = 0; l < i->m.layers; l++) i->stage_of[l] = (int32_t)(l / (i->m.layers / parts));
    return WEFT_OK;
}

static weft_status find_stages(importing *i) {
    const wefti_megatron *m = &i->m;
    wefti_degrees *d = &i->degrees;
    const int64_t stages = or_else(m->pipeline, 1);
    int64_t chunks = or_else(m->chunks, 1);
    WEFT_REQUIRE(m->chunk_layers == 0 || m->layers % (stages * m->chunk_layers) == 0, WEFT_E_ARG,
                 "%lld layers are no multiple of %lld stages times %lld layers of "
                 "--num-layers-per-virtual-pipeline-stage",
                 (long long)m->layers, (long long)stages, (long long)m->chunk_layers);
    if (m->chunk_layers) chunks = m->layers / stages / m->chunk_layers;
    if (m->layout) WEFT_TRY(find_layout(i, stages, &chunks));
    WEFT_REQUIRE(stages * chunks <= m->layers, WEFT_E_ARG,
                 "%lld stages of %lld virtual stages are more than the %lld layers",
                 (long long)stages, (long long)chunks, (long long)m->layers);
    d->stages = (int32_t)stages;
    d->chunks = (int32_t)(stages > 1 ? chunks : 1);
    if (d->chunks > 1) d->schedule = WEFT_PIPELINE_INTERLEAVED;
    return share_layers(i, (int64_t)d->stages * d->chunks);
}

/* Megatron-LM divides what tp, cp and pp leave over into data parallelism, which also holds ep. */
static weft_status find_degrees(importing *i) {
    const wefti_megatron *m = &i->m;
    const int64_t tensor = or_else(m->tensor, 1), context = or_else(m->context, 1),
                  ranks = or_else(m->expert, 1), stages = or_else(m->pipeline, 1);
    /* Ranks of tp hold whole experts too: weft's ep is the rest. */
    const bool spread = m->expert_tensor == 1 && tensor > 1 && ranks % tensor == 0 &&
                        i->config.experts > 0 && i->config.experts % ranks == 0;
    const int64_t expert = spread ? ranks / tensor : ranks;
    const int64_t most = 1 << 20;
    WEFT_REQUIRE(tensor <= most && context <= most && expert <= most && stages <= most &&
                     m->nodes <= most && m->per_node <= most,
                 WEFT_E_ARG, "a degree of parallelism is above %lld", (long long)most);
    const int64_t model = tensor * context * stages;
    int64_t devices = i->devices ? i->devices : or_else(m->nodes, 1) * m->per_node;
    if (!devices) {
        devices = model * expert;
        wefti_text_add(i->notes,
                       "the options do not say how many devices there are: taken %lld, the least; "
                       "--devices N says it\n",
                       (long long)devices);
    }
    WEFT_REQUIRE(devices % model == 0, WEFT_E_ARG,
                 "%lld devices are no multiple of tp %lld x cp %lld x pp %lld", (long long)devices,
                 (long long)tensor, (long long)context, (long long)stages);
    const int64_t data = devices / model;
    WEFT_REQUIRE(data % expert == 0, WEFT_E_ARG,
                 "%lld replicas of the model are no multiple of --expert-model-parallel-size %lld",
                 (long long)data, (long long)expert);
    const int64_t micro = or_else(m->micro_batch, 1);
    WEFT_REQUIRE(micro <= 1LL << 30 && data <= most, WEFT_E_ARG,
                 "--micro-batch-size %lld for %lld replicas is too large", (long long)micro,
                 (long long)data);
    i->batch = or_else(m->batch, micro * data);
    WEFT_REQUIRE(i->batch % (micro * data) == 0, WEFT_E_ARG,
                 "--global-batch-size %lld is no multiple of --micro-batch-size %lld times %lld "
                 "replicas",
                 (long long)i->batch, (long long)micro, (long long)data);
    WEFT_REQUIRE(i->batch / (micro * data) <= most, WEFT_E_ARG,
                 "--global-batch-size %lld makes more than %lld microbatches", (long long)i->batch,
                 (long long)most);
    wefti_degrees *d = &i->degrees;
    *d = wefti_degrees_none();
    WEFT_TRY(find_stages(i));
    d->data = (int32_t)(data / expert), d->expert = (int32_t)expert;
    d->context = (int32_t)context, d->tensor = (int32_t)tensor;
    d->sequence = m->sequence_parallel && tensor > 1;
    d->microbatches = (int32_t)(i->batch / (micro * data));
    const int64_t parts = or_else(m->expert_tensor, tensor);
    const int64_t held = wefti_degrees_spread_experts(&i->config, d) ? expert * tensor : expert;
    if (i->config.experts && (parts != 1 || held != ranks))
        wefti_text_add(i->notes,
                       "--expert-tensor-parallel-size %lld: experts of weft are whole, spread over "
                       "%lld ranks of ep and tp, not %lld; a strategy for `n` and `k` of "
                       "moe_linear splits them\n",
                       (long long)parts, (long long)held, (long long)ranks);
    WEFT_TRY(find_recompute(i));
    WEFT_TRY(find_level(i));
    return find_shard(i);
}

static void write_real(wefti_text *out, const char *key, double value) {
    char text[32];
    wefti_text_add(out, "%s%s", key, wefti_real_text(value, 1, 17, text));
}

static void write_model(const importing *i, wefti_text *out) {
    const weft_model_config *c = &i->config;
    const wefti_megatron *m = &i->m;
    const bool gpt2 = wefti_family_style_of(c->family) == WEFTI_STYLE_GPT2;
    wefti_text_add(out,
                   "model:\n  family: %s\n  layers: %lld\n  hidden: %lld\n  heads: %lld\n  ffn: "
                   "%lld\n  context: %lld\n",
                   weft_family_text(c->family), (long long)c->layers, (long long)c->hidden,
                   (long long)c->heads, (long long)c->ffn, (long long)c->context);
    if (c->vocab) wefti_text_add(out, "  vocab: %lld\n", (long long)c->vocab);
    if (!gpt2)
        wefti_text_add(out, "  kv_heads: %lld\n  head_dim: %lld\n  tied: %s\n",
                       (long long)c->kv_heads, (long long)c->head_dim, c->tied ? "true" : "false");
    if (c->attention_bias) wefti_text_add(out, "  attention_bias: true\n  mlp_bias: true\n");
    if (c->window) wefti_text_add(out, "  window: %lld\n", (long long)c->window);
    if (c->experts)
        wefti_text_add(out, "  experts: %lld\n  experts_per_token: %lld\n", (long long)c->experts,
                       (long long)c->experts_per_token);
    if (c->experts && m->aux_loss > 0) write_real(out, "  aux_loss: ", m->aux_loss);
    if (c->experts && m->aux_loss > 0) wefti_text_add(out, "\n");
    if (c->experts && m->capacity > 0) write_real(out, "  capacity_factor: ", m->capacity);
    if (c->experts && m->capacity > 0) wefti_text_add(out, "\n");
    /* Megatron-LM's defaults, not those of the family. */
    write_real(out, "  norm_eps: ", m->norm_eps > 0 ? m->norm_eps : 1e-5);
    if (!gpt2) write_real(out, "\n  rope_theta: ", m->rope_theta > 0 ? m->rope_theta : 10000);
    wefti_text_add(out, "\n");
}

static weft_status write_training(const importing *i, wefti_text *out) {
    const wefti_megatron *m = &i->m;
    const bool sgd = m->optimizer && !strcmp(m->optimizer, "sgd");
    const char *decay = m->decay && strcmp(m->decay, "linear") != 0 ? m->decay : "linear";
    WEFT_REQUIRE(!m->optimizer || sgd || !strcmp(m->optimizer, "adam"), WEFT_E_NO_IMPL,
                 "--optimizer is '%.60s', but only adam and sgd have a counterpart", m->optimizer);
    wefti_text_add(out, "train:\n  batch: %lld\n  precision: %s\n", (long long)i->batch,
                   m->bf16 || m->fp16 || m->fp8 ? "bf16" : "f32");
    if (m->fp16) wefti_text_add(i->notes, "--fp16: weft computes in bf16\n");
    if (m->fp8) wefti_text_add(out, "  products: f8\n");
    if (m->fp8)
        wefti_text_add(i->notes, "--fp8-format: weft predicts it; to train, set "
                                 "train.products=auto\n");
    if (m->steps) wefti_text_add(out, "  steps: %lld\n", (long long)m->steps);
    if (m->seed) wefti_text_add(out, "  seed: %lld\n", (long long)m->seed);
    write_real(out, "  clip: ", m->clip > 0 ? m->clip : 1);
    wefti_text_add(out, "\n  optimizer:\n    name: %s\n", sgd ? "momentum" : "adamw");
    if (m->lr > 0) write_real(out, "    lr: ", m->lr);
    if (m->lr > 0) wefti_text_add(out, "\n");
    if (!sgd) {
        write_real(out, "    betas: [", m->beta1 > 0 ? m->beta1 : 0.9);
        write_real(out, ", ", m->beta2 > 0 ? m->beta2 : 0.999);
        write_real(out, "]\n    eps: ", m->eps > 0 ? m->eps : 1e-8);
        wefti_text_add(out, "\n");
    } else if (m->momentum > 0) {
        write_real(out, "    momentum: ", m->momentum);
        wefti_text_add(out, "\n");
    }
    write_real(out, "    weight_decay: ", m->weight_decay > 0 ? m->weight_decay : 0.01);
    wefti_text_add(out, "\n");
    if (strcmp(decay, "linear") != 0 && strcmp(decay, "cosine") != 0 &&
        strcmp(decay, "constant") != 0) {
        wefti_text_add(i->notes, "--lr-decay-style %.60s: taken as linear\n", decay);
        decay = "linear";
    }
    wefti_text_add(out, "  schedule:\n    name: %s\n", decay);
    if (m->warmup) wefti_text_add(out, "    warmup: %lld\n", (long long)m->warmup);
    if (m->lr > 0 && m->min_lr <= m->lr && strcmp(decay, "constant") != 0) {
        write_real(out, "    final: ", m->min_lr / m->lr);
        wefti_text_add(out, "\n");
    }
    return WEFT_OK;
}

static void write_stages(const importing *i, wefti_text *out) {
    const bool gpt2 = wefti_family_style_of(i->config.family) == WEFTI_STYLE_GPT2;
    if (!i->stage_of) return;
    wefti_text_add(out, "    stage_of:\n      - {match: embed, stage: 0}\n");
    for (int64_t l = 0; l < i->m.layers; l++)
        wefti_text_add(out, "      - {match: %s.%lld, stage: %d}\n", gpt2 ? "h" : "layers",
                       (long long)l, i->stage_of[l]);
    wefti_text_add(out, "      - {match: head, stage: %d}\n",
                   i->degrees.stages * i->degrees.chunks - 1);
}

static void write_parallel(const importing *i, const weft_plan *plan, wefti_text *out) {
    const wefti_degrees *d = &i->degrees;
    wefti_text_add(out, "parallel:\n  devices: %d\n  mesh: {", weft_plan_devices(plan));
    for (int a = 0; a < plan->mesh.axes; a++)
        wefti_text_add(out, "%s%s: %d", a ? ", " : "", plan->mesh.axis[a].name,
                       plan->mesh.axis[a].size);
    wefti_text_add(out, "}\n");
    for (int64_t k = 0; k < plan->strategy_count; k++) {
        const wefti_strategy *s = &plan->strategies[k];
        wefti_text_add(out, "%s    - {match: \"%s\", split: \"", k ? "" : "  strategies:\n",
                       s->match);
        wefti_split_print(plan, s, out);
        wefti_text_add(out, "\"}\n");
    }
    for (int64_t k = 0; k < plan->tensor_count; k++)
        wefti_text_add(out, "%s    - {match: %s, layout: \"%s\"}\n", k ? "" : "  tensors:\n",
                       plan->tensors[k].match, plan->tensors[k].layout);
    if (d->stages > 1) {
        wefti_text_add(out,
                       "  pipeline:\n    stages: %d\n    microbatches: %d\n    schedule: %s\n"
                       "    virtual_stages: %d\n",
                       d->stages, d->microbatches,
                       d->schedule == WEFT_PIPELINE_INTERLEAVED ? "interleaved" : "1f1b",
                       d->chunks);
        write_stages(i, out);
    } else {
        wefti_text_add(out, "  accumulate: %d\n", d->microbatches);
    }
    if (d->shard)
        wefti_text_add(out, "  optimizer: {level: %d, shard_size: %d}\n", d->level, d->shard);
    else if (d->level)
        wefti_text_add(out, "  optimizer: {level: %d}\n", d->level);
    if (d->recompute != WEFT_RECOMPUTE_NONE)
        wefti_text_add(out, "  recompute: {mode: %s}\n",
                       d->recompute == WEFT_RECOMPUTE_FULL ? "full" : "selective");
}

static weft_status import(importing *i, wefti_text *out) {
    weft_plan *plan;
    WEFT_TRY(find_model(i));
    WEFT_TRY(find_degrees(i));
    WEFT_TRY(wefti_degrees_plan(&i->config, &i->degrees, &plan));
    wefti_text_add(out, "# From options of Megatron-LM. data.path is missing: the files to train "
                        "on.\n");
    write_model(i, out);
    weft_status status = write_training(i, out);
    write_parallel(i, plan, out);
    weft_plan_destroy(plan);
    return status;
}

weft_status weft_job_import(const char *name, const char *text, int64_t bytes,
                            const char *const *variables, int devices, char **out_job,
                            char **out_notes) {
    WEFT_REQUIRE(name && text && bytes >= 0 && devices >= 0 && out_job && out_notes, WEFT_E_ARG,
                 "weft_job_import needs a name, a text and places for the job and the notes");
    wefti_arena *arena;
    wefti_text job = {0}, notes = {0};
    WEFT_TRY(wefti_arena_create(&arena));
    importing i = {.devices = devices, .notes = &notes};
    weft_status status = wefti_megatron_read(name, text, bytes, variables, arena, &i.m, &notes);
    if (status >= 0) {
        status = import(&i, &job);
        if (status < 0) (void)wefti_prefix(status, "%s", name);
    }
    wefti_free(i.stage_of);
    wefti_arena_destroy(arena);
    wefti_text_add(&notes, "%s", "");
    char *texts[2] = {wefti_text_take(&job), wefti_text_take(&notes)};
    if (status >= 0 && (!texts[0] || !texts[1]))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a job");
    if (status < 0) {
        wefti_free(texts[0]);
        wefti_free(texts[1]);
        return status;
    }
    *out_job = texts[0];
    *out_notes = texts[1];
    return WEFT_OK;
}
