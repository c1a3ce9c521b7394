/* A job as options of Megatron-LM: see interop/systems.h. */
#include <stdio.h>
#include <string.h>

#include "interop/systems.h"
#include "models/family.h"

static void add_integer(wefti_text *out, const char *name, int64_t value) {
    wefti_text_add(out, "--%s %lld\n", name, (long long)value);
}

static void add_real(wefti_text *out, const char *name, double value) {
    char text[32];
    wefti_text_add(out, "--%s %s\n", name, wefti_real_text(value, 1, 17, text));
}

static weft_status add_model(const weft_model_config *c, wefti_text *out, wefti_text *notes) {
    const bool gpt2 = wefti_family_style_of(c->family) == WEFTI_STYLE_GPT2;
    WEFT_REQUIRE(!wefti_family_has(c->family, WEFTI_QK_NORMS | WEFTI_POST_NORMS), WEFT_E_NO_IMPL,
                 "%s has one norm of all queries and one of all keys, and norms behind attention "
                 "and feed-forward layers: Megatron-LM has only norms before them, and norms of "
                 "each head",
                 weft_family_text(c->family));
    WEFT_REQUIRE(gpt2 || wefti_family_style_of(c->family) == WEFTI_STYLE_LLAMA, WEFT_E_NO_IMPL,
                 "Megatron-LM's options describe gpt2, llama and their relatives, but not %s",
                 weft_family_text(c->family));
    add_integer(out, "num-layers", c->layers);
    add_integer(out, "hidden-size", c->hidden);
    add_integer(out, "ffn-hidden-size", c->ffn);
    add_integer(out, "num-attention-heads", c->heads);
    add_integer(out, "seq-length", c->context);
    add_integer(out, "max-position-embeddings", c->context);
    add_integer(out, "vocab-size", c->vocab);
    add_integer(out, "make-vocab-size-divisible-by", 1);
    add_real(out, "norm-epsilon", c->norm_eps);
    add_real(out, "attention-dropout", c->dropout_apart ? c->attention_dropout : c->dropout);
    add_real(out, "hidden-dropout", gpt2 ? c->dropout : 0);
    if (gpt2) {
        wefti_text_add(out, "--position-embedding-type learned_absolute\n");
        if (c->untied) wefti_text_add(out, "--untie-embeddings-and-output-weights\n");
    } else {
        add_integer(out, "kv-channels", c->head_dim);
        if (c->kv_heads != c->heads) {
            wefti_text_add(out, "--group-query-attention\n");
            add_integer(out, "num-query-groups", c->kv_heads);
        }
        wefti_text_add(out, "--position-embedding-type rope\n");
        add_integer(out, "rotary-base", (int64_t)c->rope_theta); /* a whole number there */
        if (c->rope_theta != (double)(int64_t)c->rope_theta)
            wefti_text_add(notes, "a base of rotary positions that is not whole\n");
        wefti_text_add(out, "--normalization RMSNorm\n--swiglu\n");
        if (!c->mlp_bias && !(c->attention_bias && wefti_family_has(c->family, WEFTI_MLP_BIAS)))
            wefti_text_add(out, "--disable-bias-linear\n");
        if (c->attention_bias != c->mlp_bias)
            wefti_text_add(notes,
                           "biases of only some linear layers: Megatron-LM has all or none\n");
        if (wefti_family_has(c->family, WEFTI_QKV_BIASED)) wefti_text_add(out, "--add-qkv-bias\n");
        if (wefti_family_has(c->family, WEFTI_HEAD_NORMS)) wefti_text_add(out, "--qk-layernorm\n");
        if (!c->tied) wefti_text_add(out, "--untie-embeddings-and-output-weights\n");
        if (c->window) add_integer(out, "window-size", c->window);
        if (c->rope_scaling.factor > 0)
            wefti_text_add(notes, "scaling of rotary positions (model: rope scaling)\n");
    }
    if (c->experts) {
        add_integer(out, "num-experts", c->experts);
        add_integer(out, "moe-router-topk", c->experts_per_token);
        add_integer(out, "moe-ffn-hidden-size", c->ffn);
        add_real(out, "moe-aux-loss-coeff", c->aux_loss);
        if (c->capacity_factor > 0) add_real(out, "moe-expert-capacity-factor", c->capacity_factor);
    }
    return WEFT_OK;
}

static void add_optimizer(const weft_job_train *t, wefti_text *out, wefti_text *notes) {
    const bool adam = t->optimizer.name == WEFT_ADAMW || t->optimizer.name == WEFT_ADAM;
    const bool sgd = t->optimizer.name == WEFT_SGD || t->optimizer.name == WEFT_MOMENTUM;
    if (!adam && !sgd)
        wefti_text_add(notes,
                       "train.optimizer.name: %s: only adamw and momentum have a counterpart\n",
                       weft_optimizer_text(t->optimizer.name));
    if (t->optimizer.name == WEFT_ADAM && t->optimizer.weight_decay > 0)
        wefti_text_add(notes, "train.optimizer.name: adam adds the decay to the gradient; "
                              "Megatron-LM's adam is adamw\n");
    wefti_text_add(out, "--optimizer %s\n", sgd ? "sgd" : "adam");
    add_real(out, "lr", t->optimizer.lr);
    if (adam) {
        add_real(out, "adam-beta1", t->optimizer.betas[0]);
        add_real(out, "adam-beta2", t->optimizer.betas[1]);
        add_real(out, "adam-eps", t->optimizer.eps);
    }
    if (sgd) add_real(out, "sgd-momentum", t->optimizer.momentum);
    add_real(out, "weight-decay", t->optimizer.weight_decay);
    add_real(out, "clip-grad", t->clip);
}

static void add_training(const weft_job_train *t, const wefti_degrees *d, wefti_text *out,
                         wefti_text *notes) {
    const int64_t parts = (int64_t)d->data * d->expert * d->microbatches;
    if (t->batch % parts == 0)
        add_integer(out, "micro-batch-size", t->batch / parts);
    else
        wefti_text_add(notes, "train.batch of %lld samples in %lld uneven parts\n",
                       (long long)t->batch, (long long)parts);
    add_integer(out, "global-batch-size", t->batch);
    add_integer(out, "train-iters", t->steps);
    add_integer(out, "seed", (int64_t)t->seed);
    if (t->precision == WEFT_BF16) wefti_text_add(out, "--bf16\n");
    if (t->products == WEFT_PRODUCTS_F8) wefti_text_add(out, "--fp8-format hybrid\n");
    add_optimizer(t, out, notes);
    if (t->schedule.name == WEFT_SCHEDULE_STEP)
        wefti_text_add(notes, "train.schedule.name: step\n");
    else
        wefti_text_add(out, "--lr-decay-style %s\n", weft_schedule_text(t->schedule.name));
    add_integer(out, "lr-warmup-iters", t->schedule.warmup);
    if (t->schedule.name != WEFT_SCHEDULE_CONSTANT)
        add_real(out, "min-lr", t->optimizer.lr * t->schedule.final);
}

/* ---- stages ---- */

/* The virtual stage of a layer; -1: the plan does not say it. */
static int32_t stage_of_layer(const wefti_system_job *what, int64_t layer) {
    const bool gpt2 = wefti_family_style_of(what->config->family) == WEFTI_STYLE_GPT2;
    char cell[40];
    (void)snprintf(cell, sizeof cell, "%s.%lld", gpt2 ? "h" : "layers", (long long)layer);
    for (int64_t i = 0; i < what->plan->pipeline.rule_count; i++)
        if (!strcmp(what->plan->pipeline.rules[i].match, cell))
            return what->plan->pipeline.rules[i].stage;
    return -1;
}

static bool has_schedule(const wefti_degrees *d) {
    return d->schedule == WEFT_PIPELINE_1F1B || d->schedule == WEFT_PIPELINE_INTERLEAVED;
}

bool wefti_megatron_has_stages(const wefti_system_job *what) {
    if (!has_schedule(&what->degrees) || what->degrees.stages == 1) return false;
    int32_t before = 0;
    for (int64_t l = 0; l < what->config->layers; l++) {
        const int32_t stage = stage_of_layer(what, l);
        if (stage < before || stage >= what->degrees.stages * what->degrees.chunks) return false;
        before = stage;
    }
    return true;
}

static int64_t layers_of(const wefti_system_job *what, int32_t stage) {
    int64_t count = 0;
    for (int64_t l = 0; l < what->config->layers; l++) count += stage_of_layer(what, l) == stage;
    return count;
}

/* Equal numbers of layers, or a text of all, in quotes for a shell: "Et*3|t*2|t*3L", E the
 * embedding, L the head. */
static void add_layers(const wefti_system_job *what, wefti_text *out, wefti_text *notes) {
    const wefti_degrees *d = &what->degrees;
    const int32_t parts = d->stages * d->chunks;
    const bool told = wefti_megatron_has_stages(what);
    bool equal = what->config->layers % parts == 0;
    for (int32_t k = 0; k < parts && told; k++)
        equal &= layers_of(what, k) == what->config->layers / parts;
    if (equal && d->chunks > 1)
        add_integer(out, "num-layers-per-virtual-pipeline-stage", what->config->layers / parts);
    if (equal) return;
    if (!told) {
        wefti_text_add(notes, "%lld layers on %d virtual stages, which the plan does not assign\n",
                       (long long)what->config->layers, parts);
        return;
    }
    wefti_text_add(out, "--pipeline-model-parallel-layout \"");
    for (int32_t k = 0; k < parts; k++) {
        const long long layers = (long long)layers_of(what, k);
        wefti_text_add(out, "%s%s", k ? "|" : "E", layers ? "t" : "");
        if (layers > 1) wefti_text_add(out, "*%lld", layers);
    }
    wefti_text_add(out, "L\"\n");
}

static void add_parallel(const wefti_system_job *what, wefti_text *out, wefti_text *notes) {
    const wefti_degrees *d = &what->degrees;
    add_integer(out, "tensor-model-parallel-size", d->tensor);
    add_integer(out, "pipeline-model-parallel-size", d->stages);
    if (d->context > 1) add_integer(out, "context-parallel-size", d->context);
    /* Megatron-LM counts the ranks of experts; without a size of its own each is split over tp. */
    const bool spread = wefti_degrees_spread_experts(what->config, d);
    const int32_t experts = spread ? d->expert * d->tensor : d->expert;
    if (experts > 1) add_integer(out, "expert-model-parallel-size", experts);
    if (what->config->experts && d->tensor > 1) add_integer(out, "expert-tensor-parallel-size", 1);
    if (d->sequence) wefti_text_add(out, "--sequence-parallel\n");
    if (d->stages > 1 && has_schedule(d)) add_layers(what, out, notes);
    if (d->stages > 1 && !has_schedule(d))
        wefti_text_add(notes,
                       "the pipeline schedule %s with %d virtual stages: Megatron-LM has 1f1b and "
                       "interleaved, and these options mean 1f1b\n",
                       d->schedule == WEFT_PIPELINE_GPIPE ? "gpipe" : "zero_bubble", d->chunks);
    if (d->level == 1) wefti_text_add(out, "--use-distributed-optimizer\n");
    if (d->level > 1)
        wefti_text_add(out,
                       "--use-megatron-fsdp\n--data-parallel-sharding-strategy %s\n"
                       "--use-distributed-optimizer\n--ckpt-format fsdp_dtensor\n",
                       d->level == 2 ? "optim_grads" : "optim_grads_params");
    const int32_t replicas = d->data * d->expert * d->context;
    if (d->level && d->shard && replicas > d->shard)
        add_integer(out, "num-distributed-optimizer-instances", replicas / d->shard);
    if (d->recompute == WEFT_RECOMPUTE_SELECTIVE)
        wefti_text_add(out, "--recompute-granularity selective\n");
    if (d->recompute == WEFT_RECOMPUTE_FULL)
        wefti_text_add(out, "--recompute-granularity full\n--recompute-method uniform\n"
                            "--recompute-num-layers 1\n");
}

weft_status wefti_megatron_write(const wefti_system_job *what, wefti_text *out, wefti_text *notes) {
    wefti_text_add(out, "# For Megatron-LM 0.16 or later\n");
    WEFT_TRY(add_model(what->config, out, notes));
    add_training(&what->job->train, &what->degrees, out, notes);
    add_parallel(what, out, notes);
    return WEFT_OK;
}
