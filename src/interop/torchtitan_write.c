/* A job as torchtitan's job file: see interop/systems.h. */
#include "interop/systems.h"

static void add_real(wefti_text *out, const char *name, double value) {
    char text[32];
    wefti_text_add(out, "%s = %s\n", name, wefti_real_text(value, 2, 17, text));
}

static void add_optimizer(const weft_job_train *t, wefti_text *out, wefti_text *notes) {
    const bool adamw = t->optimizer.name == WEFT_ADAMW, adam = t->optimizer.name == WEFT_ADAM;
    if (!adamw && !adam)
        wefti_text_add(notes, "train.optimizer.name: %s: only adam and adamw have a counterpart\n",
                       weft_optimizer_text(t->optimizer.name));
    wefti_text_add(out, "\n[optimizer]\nname = \"%s\"\n", adam ? "Adam" : "AdamW");
    add_real(out, "lr", t->optimizer.lr);
    add_real(out, "beta1", t->optimizer.betas[0]);
    add_real(out, "beta2", t->optimizer.betas[1]);
    add_real(out, "eps", t->optimizer.eps);
    add_real(out, "weight_decay", t->optimizer.weight_decay);
    wefti_text_add(out, "\n[lr_scheduler]\nwarmup_steps = %lld\n", (long long)t->schedule.warmup);
    if (t->schedule.name == WEFT_SCHEDULE_LINEAR || t->schedule.name == WEFT_SCHEDULE_COSINE)
        wefti_text_add(out, "decay_type = \"%s\"\n", weft_schedule_text(t->schedule.name));
    else if (t->schedule.name == WEFT_SCHEDULE_CONSTANT)
        wefti_text_add(out, "decay_ratio = 0.0\n");
    else
        wefti_text_add(notes, "train.schedule.name: step\n");
    if (t->schedule.name != WEFT_SCHEDULE_CONSTANT)
        add_real(out, "min_lr_factor", t->schedule.final);
}

static void add_parallel(const wefti_degrees *d, wefti_text *out, wefti_text *notes) {
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
                   "\n[parallelism]\ndata_parallel_replicate_degree = %d\n"
                   "data_parallel_shard_degree = %d\nfsdp_reshard_after_forward = \"%s\"\n"
                   "tensor_parallel_degree = %d\ncontext_parallel_degree = %d\n"
                   "expert_parallel_degree = %d\npipeline_parallel_degree = %d\n",
                   replicas / shard, shard, d->level == 3 ? "always" : "never", d->tensor,
                   d->context, d->expert, d->stages);
    if (d->tensor > 1 && !d->sequence)
        wefti_text_add(notes, "tensor parallelism without the sequence's: torchtitan splits norms "
                              "along the sequence\n");
    if (d->stages > 1 && schedules[d->schedule])
        wefti_text_add(out,
                       "pipeline_parallel_schedule = \"%s\"\n"
                       "pipeline_parallel_microbatch_size = 1\n",
                       schedules[d->schedule]);
    else if (d->stages > 1)
        wefti_text_add(notes, "the pipeline schedule zero_bubble with one virtual stage\n");
    wefti_text_add(out, "\n[activation_checkpoint]\nmode = \"%s\"\n",
                   d->recompute == WEFT_RECOMPUTE_FULL        ? "full"
                   : d->recompute == WEFT_RECOMPUTE_SELECTIVE ? "selective"
                                                              : "none");
    if (d->recompute == WEFT_RECOMPUTE_SELECTIVE)
        wefti_text_add(out, "selective_ac_option = \"op\"\n");
}

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
    wefti_text_add(out, "[model]\nname = \"%s\"\n", qwen3 ? "qwen3" : "llama3");
    if (c->attention_bias || c->mlp_bias)
        wefti_text_add(notes, "biases of linear layers: torchtitan's models have none\n");
    if (c->window) wefti_text_add(notes, "model.window: torchtitan's models have none\n");
    wefti_text_add(
        notes,
        "the model's sizes, which torchtitan takes from a flavor: %lld layers, dim %lld, "
        "%lld heads, %lld key heads, ffn %lld, vocabulary %lld\n",
        (long long)c->layers, (long long)c->hidden, (long long)c->heads, (long long)c->kv_heads,
        (long long)c->ffn, (long long)c->vocab);
    const int64_t replicas = (int64_t)d->data * d->expert;
    wefti_text_add(out,
                   "\n[training]\nglobal_batch_size = %lld\nlocal_batch_size = %lld\nseq_len = "
                   "%lld\nsteps = %lld\n",
                   (long long)t->batch,
                   (long long)(t->batch / replicas / (d->stages > 1 ? 1 : d->microbatches)),
                   (long long)c->context, (long long)t->steps);
    add_real(out, "max_norm", t->clip);
    wefti_text_add(out, "mixed_precision_param = \"%s\"\n",
                   t->precision == WEFT_BF16 ? "bfloat16" : "float32");
    add_optimizer(t, out, notes);
    add_parallel(d, out, notes);
    return WEFT_OK;
}
