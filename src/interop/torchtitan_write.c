/* A job as a configuration of torchtitan, which is a function of Python: see interop/systems.h. The
 * names are those of torchtitan 0.3.0; bench/peers/exports.py lets it read them. */
#include <string.h>

#include "interop/systems.h"

static void add_real(wefti_text *out, const char *name, double value) {
    char text[32];
    wefti_text_add(out, "        %s=%s,\n", name, wefti_real_text(value, 2, 17, text));
}

/* The flavor of these sizes; NULL: there is none. Sources: torchtitan/models/llama3/__init__.py and
 * torchtitan/models/qwen3/__init__.py. */
static const char *flavor_of(const weft_model_config *c) {
    static const struct {
        weft_family family;
        const char *name;
        int64_t layers, hidden, heads, ffn, vocab;
    } flavors[] = {{WEFT_FAMILY_LLAMA, "1B", 16, 2048, 32, 8192, 128256},
                   {WEFT_FAMILY_LLAMA, "3B", 28, 3072, 24, 8192, 128256},
                   {WEFT_FAMILY_LLAMA, "8B", 32, 4096, 32, 14336, 128256},
                   {WEFT_FAMILY_LLAMA, "70B", 80, 8192, 64, 28672, 128256},
                   {WEFT_FAMILY_LLAMA, "405B", 126, 16384, 128, 53248, 128256},
                   {WEFT_FAMILY_QWEN3, "0.6B", 28, 1024, 16, 3072, 151936},
                   {WEFT_FAMILY_QWEN3, "1.7B", 28, 2048, 16, 6144, 151936},
                   {WEFT_FAMILY_QWEN3, "4B", 36, 2560, 32, 9728, 151936},
                   {WEFT_FAMILY_QWEN3, "8B", 36, 4096, 32, 12288, 151936},
                   {WEFT_FAMILY_QWEN3, "14B", 40, 5120, 40, 17408, 151936},
                   {WEFT_FAMILY_QWEN3, "32B", 64, 5120, 64, 25600, 151936}};
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++)
        if (c->family == flavors[i].family && c->layers == flavors[i].layers &&
            c->hidden == flavors[i].hidden && c->heads == flavors[i].heads &&
            c->ffn == flavors[i].ffn && c->kv_heads == 8 && c->vocab == flavors[i].vocab)
            return flavors[i].name;
    return NULL;
}

static void add_model(const weft_model_config *c, wefti_text *out, wefti_text *notes) {
    const char *flavor = flavor_of(c);
    if (!flavor)
        wefti_text_add(
            notes,
            "the model's sizes, which torchtitan takes from a flavor, here 8B: %lld layers, dim "
            "%lld, %lld heads, %lld key heads, ffn %lld, vocabulary %lld\n",
            (long long)c->layers, (long long)c->hidden, (long long)c->heads, (long long)c->kv_heads,
            (long long)c->ffn, (long long)c->vocab);
    wefti_text_add(out, "    config.model_spec = model_registry(\"%s\")\n", flavor ? flavor : "8B");
}

static void add_optimizer(const weft_job_train *t, wefti_text *out, wefti_text *notes) {
    const bool adamw = t->optimizer.name == WEFT_ADAMW, adam = t->optimizer.name == WEFT_ADAM;
    if (!adamw && !adam)
        wefti_text_add(notes, "train.optimizer.name: %s: only adam and adamw have a counterpart\n",
                       weft_optimizer_text(t->optimizer.name));
    char first[32], second[32];
    wefti_text_add(out, "    config.optimizer = default_adamw(\n");
    add_real(out, "lr", t->optimizer.lr);
    wefti_text_add(out, "        betas=(%s, %s),\n",
                   wefti_real_text(t->optimizer.betas[0], 2, 17, first),
                   wefti_real_text(t->optimizer.betas[1], 2, 17, second));
    add_real(out, "eps", t->optimizer.eps);
    add_real(out, "weight_decay", t->optimizer.weight_decay);
    wefti_text_add(out, "    )\n");
    if (adam)
        wefti_text_add(out, "    config.optimizer.param_groups[0].optimizer_name = \"Adam\"\n");
    wefti_text_add(out,
                   "    config.lr_scheduler = LRSchedulersContainer.Config(\n"
                   "        warmup_steps=%lld,\n",
                   (long long)t->schedule.warmup);
    if (t->schedule.name == WEFT_SCHEDULE_LINEAR || t->schedule.name == WEFT_SCHEDULE_COSINE)
        wefti_text_add(out, "        decay_type=\"%s\",\n", weft_schedule_text(t->schedule.name));
    else if (t->schedule.name == WEFT_SCHEDULE_CONSTANT)
        wefti_text_add(out, "        decay_ratio=0.0,\n");
    else
        wefti_text_add(notes, "train.schedule.name: step\n");
    if (t->schedule.name != WEFT_SCHEDULE_CONSTANT)
        add_real(out, "min_lr_factor", t->schedule.final);
    wefti_text_add(out, "    )\n");
}

static void add_parallel(const wefti_degrees *d, int64_t batch, wefti_text *out,
                         wefti_text *notes) {
    const char *schedules[WEFT_PIPELINE_SCHEDULES] = {
        [WEFT_PIPELINE_GPIPE] = "GPipe",
        [WEFT_PIPELINE_1F1B] = "1F1B",
        [WEFT_PIPELINE_INTERLEAVED] = "Interleaved1F1B",
        [WEFT_PIPELINE_ZERO_BUBBLE] = d->chunks > 1 ? "ZBVZeroBubble" : NULL};
    const int32_t replicas = d->data * d->expert;
    /* Its data parallelism is FSDP, which shards parameters, or copies of the whole model. */
    const bool sharded = d->level >= 2;
    /* Its shards also hold the context's parts, in a factor of its own. */
    const bool in_part = sharded && d->shard && d->shard % d->context == 0;
    const int32_t shard = !sharded ? 1 : in_part ? d->shard / d->context : replicas;
    if (sharded && d->shard && !in_part)
        wefti_text_add(notes,
                       "parallel.optimizer.shard_size: %d: torchtitan's shards are a multiple of "
                       "the %d parts of a sequence\n",
                       d->shard, d->context);
    if (d->level == 1 || d->level == 2)
        wefti_text_add(notes,
                       "parallel.optimizer.level: %d: torchtitan shards nothing or also the "
                       "parameters\n",
                       d->level);
    wefti_text_add(out,
                   "    config.parallelism = ParallelismConfig(\n"
                   "        data_parallel_replicate_degree=%d,\n"
                   "        data_parallel_shard_degree=%d,\n"
                   "        fsdp_reshard_after_forward=\"%s\",\n"
                   "        tensor_parallel_degree=%d,\n        context_parallel_degree=%d,\n"
                   "        enable_sequence_parallel=%s,\n"
                   "        expert_parallel_degree=%d,\n        pipeline_parallel_degree=%d,\n",
                   replicas / shard, shard, d->level == 3 ? "always" : "never", d->tensor,
                   d->context, d->sequence ? "True" : "False", d->expert, d->stages);
    if (d->stages > 1 && schedules[d->schedule])
        wefti_text_add(out,
                       "        pipeline_parallel_schedule=\"%s\",\n"
                       "        pipeline_parallel_microbatch_size=%lld,\n",
                       schedules[d->schedule], (long long)(batch / replicas / d->microbatches));
    else if (d->stages > 1)
        wefti_text_add(notes, "the pipeline schedule zero_bubble with one virtual stage\n");
    wefti_text_add(out, "    )\n    config.activation_checkpoint = %s\n",
                   d->recompute == WEFT_RECOMPUTE_FULL        ? "FullAC.Config()"
                   : d->recompute == WEFT_RECOMPUTE_SELECTIVE ? "SelectiveAC.Config()"
                                                              : "None");
}

/* Of the model's package, and a configuration in it. */
#define HEAD                                                                                       \
    "# A job for torchtitan 0.3.0. Save it as weft_job.py, and start it by torchrun with\n"        \
    "# -m torchtitan.train --module weft_job --config weft_job\n"                                  \
    "from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw\n"           \
    "from torchtitan.config import ParallelismConfig, TrainingConfig\n"                            \
    "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC\n"               \
    "from torchtitan.models.%s import config_registry, model_registry\n\n\n"                       \
    "def weft_job():\n    config = config_registry.%s()\n"

weft_status wefti_torchtitan_write(const wefti_system_job *what, wefti_text *out,
                                   wefti_text *notes) {
    const weft_model_config *c = what->config;
    const weft_job_train *t = &what->job->train;
    const wefti_degrees *d = &what->degrees;
    const bool qwen3 = c->family == WEFT_FAMILY_QWEN3;
    WEFT_REQUIRE(qwen3 || c->family == WEFT_FAMILY_LLAMA, WEFT_E_NO_IMPL,
                 "torchtitan's models are llama, qwen3 and others that weft does not have, but not "
                 "%s",
                 weft_family_text(c->family));
    wefti_text_add(out, HEAD, qwen3 ? "qwen3" : "llama3", qwen3 ? "qwen3_0_6b" : "llama3_8b");
    if (c->attention_bias || c->mlp_bias)
        wefti_text_add(notes, "biases of linear layers: torchtitan's models have none\n");
    if (c->window) wefti_text_add(notes, "model.window: torchtitan's models have none\n");
    add_model(c, out, notes);
    const int64_t replicas = (int64_t)d->data * d->expert;
    wefti_text_add(out,
                   "    config.training = TrainingConfig(\n        global_batch_size=%lld,\n"
                   "        local_batch_size=%lld,\n        seq_len=%lld,\n        steps=%lld,\n",
                   (long long)t->batch,
                   (long long)(t->batch / replicas / (d->stages > 1 ? 1 : d->microbatches)),
                   (long long)c->context, (long long)t->steps);
    add_real(out, "max_norm", t->clip);
    /* Its CUDA graphs, the default, have no pipelines. */
    if (d->stages > 1) wefti_text_add(out, "        disable_cuda_graphs=True,\n");
    wefti_text_add(out,
                   "        mixed_precision_param=\"%s\",\n    )\n    config.debug.seed = %llu\n",
                   t->precision == WEFT_BF16 ? "bfloat16" : "float32", (unsigned long long)t->seed);
    if (t->products != WEFT_PRODUCTS_AUTO)
        wefti_text_add(notes, "train.products: f8: the products of this configuration are in %s\n",
                       t->precision == WEFT_BF16 ? "bf16" : "f32");
    add_optimizer(t, out, notes);
    add_parallel(d, t->batch, out, notes);
    wefti_text_add(out, "    return config\n");
    return WEFT_OK;
}
