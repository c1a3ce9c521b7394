/* torchtitan's configuration, a function of Python, and the keys of a job: see systems.h. The names
 * are those of torchtitan 0.3.0; bench/peers/exports.py lets it read them. */
#include <stdio.h>
#include <string.h>

#include "job/systems/systems.h"
#include "topo/limits.h"

static void give_quoted(wefti_translation *x, const char *name, const char *text) {
    wefti_give_text(x, name, wefti_arena_format(x->arena, "\"%s\"", text));
}

/* ---- the model ---- */

/* What a flavor fixes, all with 8 heads of keys. Sources:
 * torchtitan/models/llama3/__init__.py and torchtitan/models/qwen3/__init__.py. */
typedef struct flavor {
    weft_family family;
    const char *name;
    int64_t layers, hidden, heads, ffn, vocab;
    bool tied;
} flavor;
static const flavor flavors[] = {{WEFT_FAMILY_LLAMA, "8B", 32, 4096, 32, 14336, 128256, false},
                                 {WEFT_FAMILY_LLAMA, "1B", 16, 2048, 32, 8192, 128256, true},
                                 {WEFT_FAMILY_LLAMA, "3B", 28, 3072, 24, 8192, 128256, true},
                                 {WEFT_FAMILY_LLAMA, "70B", 80, 8192, 64, 28672, 128256, false},
                                 {WEFT_FAMILY_LLAMA, "405B", 126, 16384, 128, 53248, 128256, false},
                                 {WEFT_FAMILY_QWEN3, "8B", 36, 4096, 32, 12288, 151936, false},
                                 {WEFT_FAMILY_QWEN3, "0.6B", 28, 1024, 16, 3072, 151936, true},
                                 {WEFT_FAMILY_QWEN3, "1.7B", 28, 2048, 16, 6144, 151936, true},
                                 {WEFT_FAMILY_QWEN3, "4B", 36, 2560, 32, 9728, 151936, true},
                                 {WEFT_FAMILY_QWEN3, "14B", 40, 5120, 40, 17408, 151936, false},
                                 {WEFT_FAMILY_QWEN3, "32B", 64, 5120, 64, 25600, 151936, false}};

static const flavor *find_flavor(weft_family family, const char *name) {
    for (size_t i = 0; i < sizeof flavors / sizeof *flavors; i++)
        if (flavors[i].family == family && !strcmp(flavors[i].name, name)) return &flavors[i];
    return NULL;
}

static void set_model(const flavor *f, weft_job_model *m) {
    const bool qwen3 = f->family == WEFT_FAMILY_QWEN3;
    m->family = f->family, m->layers = f->layers, m->hidden = f->hidden, m->heads = f->heads;
    m->ffn = f->ffn, m->vocab = f->vocab, m->tied = f->tied, m->kv_heads = 8;
    m->head_dim = qwen3 ? 128 : f->hidden / f->heads;
    m->norm_eps = qwen3 ? 1e-6 : 1e-5;
    m->rope_theta = qwen3 ? 1e6 : 5e5;
}

static weft_status read_model(wefti_translation *x) {
    static const char *const keys[] = {"model.family",   "model.layers",    "model.hidden",
                                       "model.heads",    "model.ffn",       "model.vocab",
                                       "model.tied",     "model.kv_heads",  "model.head_dim",
                                       "model.norm_eps", "model.rope_theta"};
    const bool qwen3 = wefti_word_is(x, "models", "qwen3");
    const char *name = wefti_value_of(x, "model_spec")->text;
    WEFT_REQUIRE(name, WEFT_E_ARG,
                 "it names no flavor: model_registry(\"8B\"), or another text in quotes");
    const flavor *f = find_flavor(qwen3 ? WEFT_FAMILY_QWEN3 : WEFT_FAMILY_LLAMA, name);
    WEFT_REQUIRE(f, WEFT_E_NO_IMPL, "no flavor %.60s of %s is known to weft", name,
                 qwen3 ? "qwen3" : "llama3");
    set_model(f, &x->job.model);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) wefti_tell(x, keys[i]);
    return WEFT_OK;
}

static void write_model(wefti_translation *x) {
    const weft_model_config *c = &x->config;
    const bool qwen3 = c->family == WEFT_FAMILY_QWEN3;
    const flavor *f = NULL;
    for (size_t i = 0; !f && i < sizeof flavors / sizeof *flavors; i++)
        if (c->family == flavors[i].family && c->layers == flavors[i].layers &&
            c->hidden == flavors[i].hidden && c->heads == flavors[i].heads &&
            c->ffn == flavors[i].ffn && c->kv_heads == 8 && c->vocab == flavors[i].vocab)
            f = &flavors[i];
    weft_job_model m;
    set_model(f ? f : find_flavor(c->family, "8B"), &m);
    if (!f)
        wefti_text_add(
            x->notes,
            "the model's sizes, which torchtitan takes from a flavor, here 8B: %lld layers, dim "
            "%lld, %lld heads, %lld key heads, ffn %lld, vocabulary %lld\n",
            (long long)c->layers, (long long)c->hidden, (long long)c->heads, (long long)c->kv_heads,
            (long long)c->ffn, (long long)c->vocab);
    if (f && m.tied != c->tied)
        wefti_text_add(x->notes, "model.tied: %s: the flavor %s has it otherwise\n",
                       c->tied ? "true" : "false", f->name);
    if (f && m.head_dim != c->head_dim)
        wefti_text_add(x->notes, "model.head_dim: %lld: the flavor %s has another\n",
                       (long long)c->head_dim, f->name);
    if (c->rope_theta != m.rope_theta)
        wefti_text_add(x->notes, "model.rope_theta: %g: torchtitan's models have %g\n",
                       c->rope_theta, m.rope_theta);
    if (c->norm_eps != m.norm_eps)
        wefti_text_add(x->notes, "model.norm_eps: %g: torchtitan's models have %g\n", c->norm_eps,
                       m.norm_eps);
    if (c->attention_bias || c->mlp_bias)
        wefti_text_add(x->notes, "biases of linear layers: torchtitan's models have none\n");
    if (c->window) wefti_text_add(x->notes, "model.window: torchtitan's models have none\n");
    if (c->dropout > 0) wefti_text_add(x->notes, "model.dropout: torchtitan's models have none\n");
    wefti_give_text(x, "models", qwen3 ? "qwen3" : "llama3");
    wefti_give_text(x, "model_spec",
                    wefti_arena_format(x->arena, "model_registry(\"%s\")", f ? f->name : "8B"));
}

/* ---- training ---- */

static weft_status read_precision(wefti_translation *x) {
    x->job.train.precision =
        wefti_word_is(x, "training.mixed_precision_param", "float32") ? WEFT_F32 : WEFT_BF16;
    wefti_tell(x, "train.precision");
    return WEFT_OK;
}

static void write_precision(wefti_translation *x) {
    const weft_job_train *t = &x->job.train;
    if (t->products != WEFT_PRODUCTS_AUTO)
        wefti_text_add(x->notes,
                       "train.products: f8: the products of this configuration are in %s\n",
                       t->precision == WEFT_BF16 ? "bf16" : "f32");
    give_quoted(x, "training.mixed_precision_param",
                t->precision == WEFT_BF16 ? "bfloat16" : "float32");
}

static weft_status read_optimizer(wefti_translation *x) {
    const bool adam = wefti_word_is(x, "optimizer.param_groups[0].optimizer_name", "Adam");
    x->job.train.optimizer.name = adam ? WEFT_ADAM : WEFT_ADAMW;
    wefti_tell(x, "train.optimizer.name");
    return WEFT_OK;
}

static void write_optimizer(wefti_translation *x) {
    const weft_optimizer_kind name = x->job.train.optimizer.name;
    if (name != WEFT_ADAMW && name != WEFT_ADAM)
        wefti_text_add(x->notes,
                       "train.optimizer.name: %s: only adam and adamw have a counterpart\n",
                       weft_optimizer_text(name));
    if (name == WEFT_ADAM) give_quoted(x, "optimizer.param_groups[0].optimizer_name", "Adam");
}

static weft_status read_betas(wefti_translation *x) {
    const char *text = wefti_value_of(x, "optimizer.betas")->text;
    double *betas = x->job.train.optimizer.betas;
    char *end;
    if (!text) text = "(0.9, 0.95)";
    betas[0] = wefti_real_read(text + (*text == '('), &end);
    const char *second = end + strspn(end, ", ");
    betas[1] = wefti_real_read(second, &end);
    WEFT_REQUIRE(*end == ')' && end > second, WEFT_E_ARG,
                 "optimizer.betas is '%.60s', but must be two numbers", text);
    wefti_tell(x, "train.optimizer.betas");
    return WEFT_OK;
}

static void write_betas(wefti_translation *x) {
    const double *betas = x->job.train.optimizer.betas;
    char first[32], second[32];
    wefti_give_text(x, "optimizer.betas",
                    wefti_arena_format(x->arena, "(%s, %s)",
                                       wefti_real_text(betas[0], 2, 17, first),
                                       wefti_real_text(betas[1], 2, 17, second)));
}

static weft_status read_decay(wefti_translation *x) {
    const wefti_option_value *ratio = wefti_value_of(x, "lr_scheduler.decay_ratio");
    const wefti_option_value *type = wefti_value_of(x, "lr_scheduler.decay_type");
    const bool constant = ratio->given && ratio->real == 0;
    const bool cosine = wefti_word_is(x, "lr_scheduler.decay_type", "cosine");
    x->job.train.schedule.name = constant ? WEFT_SCHEDULE_CONSTANT
                                 : cosine ? WEFT_SCHEDULE_COSINE
                                          : WEFT_SCHEDULE_LINEAR;
    wefti_tell(x, "train.schedule.name");
    if (x->job.train.schedule.warmup > x->job.train.steps) /* cut there, too */
        x->job.train.schedule.warmup = x->job.train.steps;
    if (ratio->given && !constant)
        wefti_text_add(x->notes, "lr_scheduler.decay_ratio: weft decays behind the warm-up\n");
    if (type->given && !cosine && strcmp(type->text, "linear") != 0)
        wefti_text_add(x->notes, "lr_scheduler.decay_type %.60s: taken as linear\n", type->text);
    return WEFT_OK;
}

static void write_decay(wefti_translation *x) {
    const weft_schedule_kind name = x->job.train.schedule.name;
    if (name == WEFT_SCHEDULE_LINEAR || name == WEFT_SCHEDULE_COSINE)
        give_quoted(x, "lr_scheduler.decay_type", weft_schedule_text(name));
    else if (name == WEFT_SCHEDULE_CONSTANT)
        wefti_give_real(x, "lr_scheduler.decay_ratio", 0);
    else
        wefti_text_add(x->notes, "train.schedule.name: step\n");
}

/* ---- degrees ---- */

/* zero_bubble has two virtual stages there. */
static const char *const schedules[WEFT_PIPELINE_SCHEDULES] = {
    [WEFT_PIPELINE_GPIPE] = "GPipe",
    [WEFT_PIPELINE_1F1B] = "1F1B",
    [WEFT_PIPELINE_INTERLEAVED] = "Interleaved1F1B",
    [WEFT_PIPELINE_ZERO_BUBBLE] = "ZBVZeroBubble"};

static weft_status read_pipeline(wefti_translation *x) {
    wefti_degrees *d = &x->degrees;
    const char *schedule = wefti_value_of(x, "parallelism.pipeline_parallel_schedule")->text;
    for (int k = 0; k < (int)WEFT_PIPELINE_SCHEDULES && schedule; k++)
        if (!strcmp(schedule, schedules[k])) d->schedule = (weft_schedule)k;
    WEFT_REQUIRE(!schedule || !strcmp(schedule, schedules[d->schedule]), WEFT_E_NO_IMPL,
                 "pipeline_parallel_schedule is '%.60s', but weft has GPipe, 1F1B, Interleaved1F1B "
                 "and ZBVZeroBubble",
                 schedule);
    /* Stages of a rank are two in the schedules that have several. */
    const bool several =
        d->schedule == WEFT_PIPELINE_INTERLEAVED || d->schedule == WEFT_PIPELINE_ZERO_BUBBLE;
    d->chunks = several && d->stages > 1 ? 2 : 1;
    return WEFT_OK;
}

static weft_status read_degrees(wefti_translation *x) {
    static const char *const names[] = {
        "tensor_parallel_degree",   "context_parallel_degree",        "expert_parallel_degree",
        "pipeline_parallel_degree", "data_parallel_replicate_degree", "data_parallel_shard_degree"};
    enum { TENSOR, CONTEXT, EXPERT, STAGES, COPIES, SHARD, DEGREES };
    wefti_degrees *d = &x->degrees;
    int64_t n[DEGREES], devices = 1;
    for (int i = 0; i < DEGREES; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "parallelism.%s", names[i]);
        n[i] = wefti_whole_of(x, name, 1);
        /* Shards that are not said are the devices that are left. */
        if (i == SHARD && !wefti_is_given(x, name) && x->devices > devices)
            n[i] = x->devices / devices;
        WEFT_REQUIRE(n[i] <= WEFTI_DEVICES_MAX, WEFT_E_ARG, "%s is above %d", names[i],
                     WEFTI_DEVICES_MAX);
        devices *= i == EXPERT ? 1 : n[i];
        WEFT_REQUIRE(devices <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                     "the degrees make more than %d devices", WEFTI_DEVICES_MAX);
    }
    const int64_t replicas = n[COPIES] * n[SHARD];
    WEFT_REQUIRE(!x->devices || x->devices == devices, WEFT_E_ARG,
                 "the configuration is for %lld devices, not %lld", (long long)devices,
                 (long long)x->devices);
    WEFT_REQUIRE(replicas % n[EXPERT] == 0, WEFT_E_ARG,
                 "%lld replicas of the model are no multiple of the expert_parallel_degree %lld",
                 (long long)replicas, (long long)n[EXPERT]);
    d->tensor = (int32_t)n[TENSOR], d->context = (int32_t)n[CONTEXT];
    d->expert = (int32_t)n[EXPERT], d->data = (int32_t)(replicas / n[EXPERT]);
    d->stages = (int32_t)n[STAGES];
    d->sequence =
        d->tensor > 1 && !wefti_word_is(x, "parallelism.enable_sequence_parallel", "False");
    /* Shards hold parameters, and also the parts of a sequence in a factor of its own. */
    const bool sharded = n[SHARD] * n[CONTEXT] > 1;
    const bool kept = wefti_word_is(x, "parallelism.fsdp_reshard_after_forward", "never");
    d->level = !sharded ? 0 : kept ? 2 : 3;
    if (sharded && n[COPIES] > 1) d->shard = (int32_t)(n[SHARD] * n[CONTEXT]);
    return read_pipeline(x);
}

static void write_degrees(wefti_translation *x) {
    const wefti_degrees *d = &x->degrees;
    const int32_t replicas = d->data * d->expert;
    /* Its data parallelism is FSDP, which shards parameters, or copies of the whole model. */
    const bool sharded = d->level >= 2, in_part = sharded && d->shard && d->shard % d->context == 0;
    const int32_t shard = !sharded ? 1 : in_part ? d->shard / d->context : replicas;
    if (sharded && d->shard && !in_part)
        wefti_text_add(x->notes,
                       "parallel.optimizer.shard_size: %d: torchtitan's shards are a multiple of "
                       "the %d parts of a sequence\n",
                       d->shard, d->context);
    if (d->level == 1 || d->level == 2)
        wefti_text_add(x->notes,
                       "parallel.optimizer.level: %d: torchtitan shards nothing or also the "
                       "parameters\n",
                       d->level);
    if (!sharded && d->context > 1)
        wefti_text_add(
            x->notes,
            "parallel.optimizer.level: %d: torchtitan shards parameters over the %d parts "
            "of a sequence\n",
            d->level, d->context);
    wefti_give_whole(x, "parallelism.data_parallel_replicate_degree", replicas / shard);
    wefti_give_whole(x, "parallelism.data_parallel_shard_degree", shard);
    give_quoted(x, "parallelism.fsdp_reshard_after_forward", d->level == 3 ? "always" : "never");
    wefti_give_whole(x, "parallelism.tensor_parallel_degree", d->tensor);
    wefti_give_whole(x, "parallelism.context_parallel_degree", d->context);
    wefti_give_text(x, "parallelism.enable_sequence_parallel", d->sequence ? "True" : "False");
    wefti_give_whole(x, "parallelism.expert_parallel_degree", d->expert);
    wefti_give_whole(x, "parallelism.pipeline_parallel_degree", d->stages);
    if (d->stages == 1) return;
    if (d->schedule == WEFT_PIPELINE_ZERO_BUBBLE && d->chunks == 1) {
        wefti_text_add(x->notes, "the pipeline schedule zero_bubble with one virtual stage\n");
        return;
    }
    if (d->schedule == WEFT_PIPELINE_INTERLEAVED && d->chunks != 2)
        wefti_text_add(x->notes, "parallel.pipeline.virtual_stages: %d: torchtitan takes 2\n",
                       d->chunks);
    give_quoted(x, "parallelism.pipeline_parallel_schedule", schedules[d->schedule]);
}

static weft_status read_batch(wefti_translation *x) {
    wefti_degrees *d = &x->degrees;
    const int64_t replicas = (int64_t)d->data * d->expert,
                  local = wefti_whole_of(x, "training.local_batch_size", 8),
                  part =
                      d->stages == 1
                          ? local
                          : wefti_whole_of(x, "parallelism.pipeline_parallel_microbatch_size", 1);
    WEFT_REQUIRE(local <= 1 << 30 && part <= 1 << 30, WEFT_E_ARG,
                 "a local batch of %lld in parts of %lld is too large", (long long)local,
                 (long long)part);
    const int64_t batch = wefti_whole_of(x, "training.global_batch_size", local * replicas);
    WEFT_REQUIRE(
        local % part == 0, WEFT_E_ARG,
        "local_batch_size %lld is no multiple of the pipeline_parallel_microbatch_size %lld",
        (long long)local, (long long)part);
    WEFT_REQUIRE(batch % (local * replicas) == 0 && batch / (part * replicas) <= 1 << 20,
                 WEFT_E_ARG,
                 "global_batch_size %lld is no multiple, or too large a one, of %lld samples of "
                 "%lld replicas",
                 (long long)batch, (long long)local, (long long)replicas);
    x->job.train.batch = batch;
    wefti_tell(x, "train.batch");
    d->microbatches = (int32_t)(batch / (part * replicas));
    return WEFT_OK;
}

static void write_batch(wefti_translation *x) {
    const wefti_degrees *d = &x->degrees;
    const int64_t micro = wefti_samples_of_part(x, (int64_t)d->data * d->expert * d->microbatches);
    wefti_give_whole(x, "training.global_batch_size", x->job.train.batch);
    if (micro)
        wefti_give_whole(x, "training.local_batch_size",
                         d->stages > 1 ? micro * d->microbatches : micro);
    if (d->stages == 1) return;
    if (micro) wefti_give_whole(x, "parallelism.pipeline_parallel_microbatch_size", micro);
    /* Its CUDA graphs, the default, have no pipelines. */
    wefti_give_text(x, "training.disable_cuda_graphs", "True");
}

static weft_status read_recompute(wefti_translation *x) {
    x->degrees.recompute = wefti_word_is(x, "activation_checkpoint", "FullAC") ? WEFT_RECOMPUTE_FULL
                           : wefti_word_is(x, "activation_checkpoint", "SelectiveAC")
                               ? WEFT_RECOMPUTE_SELECTIVE
                               : WEFT_RECOMPUTE_NONE;
    return WEFT_OK;
}

static void write_recompute(wefti_translation *x) {
    const weft_recompute mode = x->degrees.recompute;
    wefti_give_text(x, "activation_checkpoint",
                    mode == WEFT_RECOMPUTE_FULL        ? "FullAC.Config()"
                    : mode == WEFT_RECOMPUTE_SELECTIVE ? "SelectiveAC.Config()"
                                                       : "None");
}

/* ---- the table ---- */

WEFTI_TRANSFORM(model);
WEFTI_TRANSFORM(degrees);
WEFTI_TRANSFORM(batch);
WEFTI_TRANSFORM(precision);
WEFTI_TRANSFORM(optimizer);
WEFTI_TRANSFORM(betas);
WEFTI_TRANSFORM(decay);
WEFTI_TRANSFORM(recompute);

/* In the order in which values depend on each other. */
static const wefti_option options[] = {
    WEFTI_OPTION_BY(model, "model.family", TEXT, "models"),
    WEFTI_OPTION_BY(model, "model.family", TEXT, "model_spec"),
    WEFTI_OPTION_BY(degrees, "parallel.mesh", INTEGER,
                    "parallelism.data_parallel_replicate_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.mesh", INTEGER, "parallelism.data_parallel_shard_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.optimizer.level", TEXT,
                    "parallelism.fsdp_reshard_after_forward"),
    WEFTI_OPTION_BY(degrees, "parallel.mesh", INTEGER, "parallelism.tensor_parallel_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.mesh", INTEGER, "parallelism.context_parallel_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.strategies", TEXT, "parallelism.enable_sequence_parallel"),
    WEFTI_OPTION_BY(degrees, "parallel.mesh", INTEGER, "parallelism.expert_parallel_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.pipeline.stages", INTEGER,
                    "parallelism.pipeline_parallel_degree"),
    WEFTI_OPTION_BY(degrees, "parallel.pipeline.schedule", TEXT,
                    "parallelism.pipeline_parallel_schedule"),
    WEFTI_OPTION_BY(batch, "parallel.pipeline.microbatches", INTEGER,
                    "parallelism.pipeline_parallel_microbatch_size"),
    WEFTI_OPTION_BY(batch, "train.batch", INTEGER, "training.global_batch_size"),
    WEFTI_OPTION_BY(batch, "parallel.accumulate", INTEGER, "training.local_batch_size"),
    WEFTI_OPTION_BY(batch, NULL, TEXT, "training.disable_cuda_graphs"),
    WEFTI_OPTION_SAME("model.context", "training.seq_len", .standard = "2048"),
    WEFTI_OPTION_SAME("train.steps", "training.steps", .standard = "10000"),
    WEFTI_OPTION_SAME("train.clip", "training.max_norm", .standard = "1"),
    WEFTI_OPTION_BY(precision, "train.precision", TEXT, "training.mixed_precision_param"),
    WEFTI_OPTION_SAME("train.seed", "debug.seed"),
    WEFTI_OPTION_SAME("train.optimizer.lr", "optimizer.lr", .standard = "8e-4"),
    WEFTI_OPTION_BY(betas, "train.optimizer.betas", TEXT, "optimizer.betas"),
    WEFTI_OPTION_SAME("train.optimizer.eps", "optimizer.eps", .standard = "1e-8"),
    WEFTI_OPTION_SAME("train.optimizer.weight_decay", "optimizer.weight_decay", .standard = "0.1"),
    WEFTI_OPTION_BY(optimizer, "train.optimizer.name", TEXT,
                    "optimizer.param_groups[0].optimizer_name"),
    WEFTI_OPTION_SAME("train.schedule.warmup", "lr_scheduler.warmup_steps", .standard = "200"),
    WEFTI_OPTION_BY(decay, "train.schedule.name", TEXT, "lr_scheduler.decay_type"),
    WEFTI_OPTION_BY(decay, "train.schedule.name", REAL, "lr_scheduler.decay_ratio"),
    WEFTI_OPTION_SAME("train.schedule.final", "lr_scheduler.min_lr_factor", .standard = "0",
                      .jobs = WEFTI_JOBS_DECAY),
    WEFTI_OPTION_BY(recompute, "parallel.recompute.mode", TEXT, "activation_checkpoint"),
};

static weft_status check(weft_family family) {
    WEFT_REQUIRE(family == WEFT_FAMILY_QWEN3 || family == WEFT_FAMILY_LLAMA, WEFT_E_NO_IMPL,
                 "torchtitan's models are llama, qwen3 and others that weft does not have, but not "
                 "%s",
                 weft_family_text(family));
    return WEFT_OK;
}

/* ---- writing ---- */

/* Objects that a configuration makes; other options are assignments. */
static const struct {
    const char *name, *made_by;
} sections[] = {{"parallelism.", "ParallelismConfig"},
                {"training.", "TrainingConfig"},
                {"optimizer.", "default_adamw"},
                {"lr_scheduler.", "LRSchedulersContainer.Config"}};
enum { NO_SECTION = sizeof sections / sizeof *sections };

static size_t section_of(const wefti_option *o) {
    size_t k = 0;
    for (; o && k < NO_SECTION; k++) {
        const size_t length = strlen(sections[k].name);
        if (!strncmp(o->name, sections[k].name, length) && !strchr(o->name + length, '.')) return k;
    }
    return NO_SECTION;
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

static void add(const wefti_option *o, const wefti_option *before, const wefti_option_value *v,
                wefti_text *out) {
    const size_t is = section_of(o), was = section_of(before);
    if (was != NO_SECTION && was != is) wefti_text_add(out, "    )\n");
    if (!o) {
        wefti_text_add(out, "    return config\n");
        return;
    }
    if (!before) {
        wefti_text_add(out, HEAD, v->text, *v->text == 'q' ? "qwen3_0_6b" : "llama3_8b");
        return;
    }
    if (is != NO_SECTION && is != was)
        wefti_text_add(out, "    config.%.*s = %s(\n", (int)strlen(sections[is].name) - 1,
                       sections[is].name, sections[is].made_by);
    if (is != NO_SECTION)
        wefti_text_add(out, "        %s=", o->name + strlen(sections[is].name));
    else
        wefti_text_add(out, "    config.%s = ", o->name);
    wefti_option_print(o, v, 2, out);
    wefti_text_add(out, is != NO_SECTION ? ",\n" : "\n");
}

/* ---- reading ---- */

/* Python, as far as assignments and arguments of literal values go. */
typedef struct python {
    const char *name; /* of the text */
    const char *at;   /* ends with a 0 byte */
    int line;
    char path[128]; /* of the objects being made, each with a dot behind it */
    size_t length[16];
    int depth;
    wefti_translation *x;
} python;

static void skip_blank(python *p) {
    for (; *p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '#'; p->at++) {
        if (*p->at == '#') p->at += strcspn(p->at, "\n");
        p->line += *p->at == '\n';
        if (!*p->at) return;
    }
}

static weft_status enter(python *p, const char *name, size_t length) {
    const size_t used = strlen(p->path);
    WEFT_REQUIRE(p->depth < 16 && used + length + 2 < sizeof p->path, WEFT_E_ARG,
                 "%s:%d: objects in objects, deeper than a configuration", p->name, p->line);
    p->length[p->depth++] = used;
    if (length) (void)snprintf(p->path + used, sizeof p->path - used, "%.*s.", (int)length, name);
    return WEFT_OK;
}

/* A text in quotes, a list in parentheses, or a word; of FullAC.Config() the class, of
 * model_registry("8B") the argument. NULL: another object, which is entered. */
static weft_status read_value(python *p, const char *name, size_t length, char **out) {
    const char *start = p->at;
    size_t bytes = strcspn(start, " ,()\n\t#\"'");
    const bool call = bytes && start[bytes] == '(';
    p->at += bytes + call;
    if (call) {
        skip_blank(p);
        if (!*p->at || !strchr("\"')", *p->at)) return enter(p, name, length);
        if (bytes > 7 && !strncmp(start + bytes - 7, ".Config", 7)) bytes -= 7;
    }
    if (*p->at == '"' || *p->at == '\'') {
        const char quote[] = {*p->at, '\n', '\0'};
        start = ++p->at;
        bytes = strcspn(start, quote);
        p->at += bytes;
        p->at += *p->at == quote[0];
    } else if (!bytes && *p->at == '(') {
        bytes = strcspn(start, ")\n");
        bytes += start[bytes] == ')';
        p->at += bytes;
    }
    if (call) p->at += strcspn(p->at, ")\n");
    if (call) p->at += *p->at == ')';
    *out = wefti_arena_format(p->x->arena, "%.*s", (int)bytes, start);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for options");
    return WEFT_OK;
}

static weft_status store(python *p, const char *name, size_t length, const char *value) {
    char full[192], wanted[64];
    /* "model_spec=model_spec": a variable, whose own value counts */
    if (strlen(value) == length && !strncmp(value, name, length)) return WEFT_OK;
    (void)snprintf(full, sizeof full, "%s%.*s", p->path, (int)length, name);
    for (int i = 0; i < p->x->system->count; i++) {
        const wefti_option *o = &p->x->system->options[i];
        if (strcmp(o->name, full) != 0) continue;
        const bool none = wefti_option_form_of(o) != WEFTI_OPTION_TEXT &&
                          (!strcmp(value, "None") || !strcmp(value, "-1")); /* not said */
        WEFT_REQUIRE(none || wefti_option_parse(o, value, &p->x->values[i]), WEFT_E_ARG,
                     "%s:%d: %s is '%.60s', but must be %s", p->name, p->line, full, value,
                     wefti_option_wanted(o, wanted));
        if (none) p->x->values[i] = (wefti_option_value){0};
        return WEFT_OK;
    }
    if (p->depth || strchr(full, '.')) /* else a variable */
        wefti_text_add(&p->x->left, " %s,", full);
    return WEFT_OK;
}

static weft_status read_python(python *p) {
    static const char package[] = "torchtitan.models.", config[] = "config.";
    for (skip_blank(p); *p->at; skip_blank(p)) {
        const char *start = p->at;
        const size_t whole = strspn(start, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                           "0123456789_.[]");
        size_t length = whole;
        p->at += whole;
        if (!whole) {
            if (*start == '(') WEFT_TRY(enter(p, "", 0));
            if (*start == ')' && p->depth) p->path[p->length[--p->depth]] = '\0';
            p->at++;
            continue;
        }
        char *value = NULL;
        if (!strncmp(start, package, sizeof package - 1)) {
            value = wefti_arena_format(p->x->arena, "%.*s", (int)(whole - sizeof package + 1),
                                       start + sizeof package - 1);
            WEFT_REQUIRE(value, WEFT_E_NOMEM, "no memory for options");
            wefti_give_text(p->x, "models", value);
            continue;
        }
        skip_blank(p);
        if (*p->at != '=' || p->at[1] == '=') continue;
        p->at++;
        skip_blank(p);
        if (!strncmp(start, config, sizeof config - 1))
            start += sizeof config - 1, length -= sizeof config - 1;
        WEFT_TRY(read_value(p, start, length, &value));
        if (value) WEFT_TRY(store(p, start, length, value));
    }
    return WEFT_OK;
}

static weft_status read_text(const char *name, const char *text, int64_t bytes,
                             const char *const *variables, wefti_translation *x) {
    (void)variables;
    python p = {.name = name, .line = 1, .x = x};
    p.at = wefti_arena_format(x->arena, "%.*s", (int)bytes, text);
    WEFT_REQUIRE(p.at, WEFT_E_NOMEM, "no memory for options");
    return read_python(&p);
}

const wefti_system wefti_torchtitan = {.name = "torchtitan",
                                       .options = options,
                                       .count = sizeof options / sizeof *options,
                                       .read = read_text,
                                       .check = check,
                                       .add = add};
_Static_assert(sizeof options / sizeof *options < WEFTI_OPTIONS_MAX, "raise WEFTI_OPTIONS_MAX");
