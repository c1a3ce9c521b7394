/* Megatron-LM's options of parallelism: degrees, stages, the optimizer's shards, recomputation. See
 * systems.h. */
#include <stdlib.h>
#include <string.h>

#include "job/systems/systems.h"
#include "topo/limits.h"

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
    d->sequence = wefti_is_given(x, "sequence-parallel") && tensor > 1;
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

const wefti_transform wefti_megatron_degrees = {read_degrees, write_degrees};

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
    if (wefti_is_given(x, "pipeline-model-parallel-layout"))
        WEFT_TRY(find_layout(x, stages, &chunks));
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

const wefti_transform wefti_megatron_stages = {read_stages, write_stages};

/* ---- the optimizer's shards ---- */

/* By ZeRO's level. */
static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

/* The level, and the copies of the sharded states among all replicas of the parameters. */
static weft_status read_shards(wefti_translation *x) {
    wefti_degrees *d = &x->degrees;
    const char *strategy = wefti_value_of(x, "data-parallel-sharding-strategy")->text;
    const bool fsdp = wefti_is_given(x, "use-megatron-fsdp");
    d->level = fsdp ? 3 : wefti_is_given(x, "use-distributed-optimizer");
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

const wefti_transform wefti_megatron_shards = {read_shards, write_shards};

/* ---- recomputation ---- */

static weft_status read_recompute(wefti_translation *x) {
    const wefti_option_value *v = wefti_value_of(x, "recompute-granularity");
    const bool full = wefti_word_is(x, "recompute-granularity", "full");
    const int64_t layers = wefti_whole_of(x, "recompute-num-layers", 0);
    WEFT_REQUIRE(!v->given || full || !strcmp(v->text, "selective"), WEFT_E_ARG,
                 "--recompute-granularity is '%.60s', but must be full or selective", v->text);
    x->degrees.recompute = full ? WEFT_RECOMPUTE_FULL
                           : v->given || wefti_is_given(x, "recompute-activations")
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

const wefti_transform wefti_megatron_recompute = {read_recompute, write_recompute};
