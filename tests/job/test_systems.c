/* The tables of other systems' options. Export and import give a random job again, if the system
 * can express it. Some job reaches each row of a table. */
#include "support.h"

#include <string.h>

#include "base/memory.h"
#include "job/read_back.h"
#include "job/systems/systems.h"
#include "models/family.h"
#include "plan/plan.h"
#include "weft/job.h"

typedef struct dice {
    uint64_t state;
} dice;

static int64_t below(dice *d, int64_t count) { /* splitmix64 */
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)count);
}
#define PICK(d, ...)                                                                               \
    ((const char *const[]){__VA_ARGS__})[below(                                                    \
        d, (int64_t)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)))]

/* A job as overrides: one word a line. */
typedef struct random_job {
    wefti_text words;
    weft_model_config config; /* what degrees need to know */
    wefti_degrees degrees;
    const char *optimizer, *schedule;
} random_job;

#define SET(j, ...) (wefti_text_add(&(j)->words, __VA_ARGS__), wefti_text_add(&(j)->words, "\n"))

static void set_training(random_job *j, dice *d) {
    static const char *const finals[] = {"0", "0.07", "0.1", "1"};
    SET(j, "train.steps=%lld", 20 + (long long)below(d, 1000));
    SET(j, "train.seed=%s", PICK(d, "0", "1", "1234", "999999999999999999"));
    SET(j, "train.clip=%s", PICK(d, "0", "1", "0.5"));
    SET(j, "train.optimizer.name=%s", j->optimizer);
    SET(j, "train.optimizer.lr=%s", PICK(d, "0.001", "0.0003", "0.7"));
    SET(j, "train.optimizer.weight_decay=%s", PICK(d, "0", "0.01", "0.1"));
    if (!strncmp(j->optimizer, "adam", 4)) {
        SET(j, "train.optimizer.betas=[%s, %s]", PICK(d, "0", "0.9", "0.85"),
            PICK(d, "0.999", "0.95"));
        SET(j, "train.optimizer.eps=%s", PICK(d, "1e-8", "1e-6", "0"));
    }
    if (!strcmp(j->optimizer, "momentum"))
        SET(j, "train.optimizer.momentum=%s", PICK(d, "0.9", "0.5"));
    SET(j, "train.schedule.name=%s", j->schedule);
    SET(j, "train.schedule.warmup=%s", PICK(d, "0", "7", "20"));
    if (strcmp(j->schedule, "constant") != 0)
        SET(j, "train.schedule.final=%s", finals[below(d, 4)]);
}

/* `stages`: the job says the stage of each layer; some of them are unlike. */
static void set_parallel(random_job *j, dice *d, bool stages) {
    const wefti_degrees *g = &j->degrees;
    weft_plan *plan;
    ASSERT_OK(wefti_degrees_plan(&j->config, g, &plan));
    SET(j, "parallel.devices=%d", weft_plan_devices(plan));
    wefti_text_add(&j->words, "parallel.mesh={");
    for (int a = 0; a < plan->mesh.axes; a++)
        wefti_text_add(&j->words, "%s%s: %d", a ? ", " : "", plan->mesh.axis[a].name,
                       plan->mesh.axis[a].size);
    SET(j, "}");
    for (int64_t k = 0; k < plan->strategy_count; k++) {
        const wefti_strategy *s = &plan->strategies[k];
        wefti_text_add(&j->words, "%s{match: \"%s\", split: \"", k ? ", " : "parallel.strategies=[",
                       s->match);
        wefti_split_print(plan, s, &j->words);
        wefti_text_add(&j->words, "\"}%s", k + 1 == plan->strategy_count ? "]\n" : "");
    }
    for (int64_t k = 0; k < plan->tensor_count; k++)
        wefti_text_add(&j->words, "%s{match: %s, layout: \"%s\"}%s",
                       k ? ", " : "parallel.tensors=[", plan->tensors[k].match,
                       plan->tensors[k].layout, k + 1 == plan->tensor_count ? "]\n" : "");
    weft_plan_destroy(plan);
    if (g->level) SET(j, "parallel.optimizer.level=%d", g->level);
    if (g->shard) SET(j, "parallel.optimizer.shard_size=%d", g->shard);
    if (g->recompute != WEFT_RECOMPUTE_NONE)
        SET(j, "parallel.recompute.mode=%s",
            g->recompute == WEFT_RECOMPUTE_FULL ? "full" : "selective");
    if (g->stages == 1) {
        SET(j, "parallel.accumulate=%d", g->microbatches);
        return;
    }
    static const char *const schedules[] = {[WEFT_PIPELINE_GPIPE] = "gpipe",
                                            [WEFT_PIPELINE_1F1B] = "1f1b",
                                            [WEFT_PIPELINE_INTERLEAVED] = "interleaved",
                                            [WEFT_PIPELINE_ZERO_BUBBLE] = "zero_bubble"};
    SET(j, "parallel.pipeline.stages=%d", g->stages);
    SET(j, "parallel.pipeline.microbatches=%d", g->microbatches);
    SET(j, "parallel.pipeline.schedule=%s", schedules[g->schedule]);
    SET(j, "parallel.pipeline.virtual_stages=%d", g->chunks);
    if (!stages) return;
    const bool gpt2 = wefti_family_style_of(j->config.family) == WEFTI_STYLE_GPT2;
    const int32_t parts = g->stages * g->chunks;
    const int64_t layers = j->config.layers, each = layers / parts,
                  moved = each > 1 ? below(d, 2) : 0; /* a layer, from the first to the second */
    wefti_text_add(&j->words, "parallel.pipeline.stage_of=[{match: embed, stage: 0}");
    for (int64_t l = 0; l < layers; l++)
        wefti_text_add(&j->words, ", {match: %s.%lld, stage: %lld}", gpt2 ? "h" : "layers",
                       (long long)l, (long long)(l == each - 1 ? moved : l / each));
    SET(j, ", {match: head, stage: %d}]", parts - 1);
}

static void set_batch(random_job *j, dice *d) {
    const wefti_degrees *g = &j->degrees;
    SET(j, "train.batch=%lld",
        (1 + (long long)below(d, 3)) * g->data * g->expert * g->microbatches);
}

/* ---- what Megatron-LM can express ---- */

static void degrees_for_megatron(random_job *j, dice *d) {
    wefti_degrees *g = &j->degrees;
    const bool experts = j->config.experts > 0;
    *g = wefti_degrees_none();
    g->data = 1 << below(d, 3), g->tensor = 1 << below(d, 2), g->context = 1 << below(d, 2);
    g->expert = experts ? 1 << below(d, 2) : 1;
    g->sequence = g->tensor > 1 && below(d, 2);
    g->stages = 1 << below(d, 2), g->chunks = g->stages > 1 ? 1 << below(d, 2) : 1;
    if (g->chunks > 1) g->schedule = WEFT_PIPELINE_INTERLEAVED;
    g->microbatches = g->stages * (int32_t)(1 + below(d, 2));
    g->recompute = (weft_recompute)below(d, WEFT_RECOMPUTES);
    g->level = (int)below(d, 4);
    const int32_t replicas = g->data * g->expert * g->context;
    if (g->level && replicas > 1 && below(d, 2)) g->shard = replicas / 2;
}

static void make_for_megatron(random_job *j, dice *d) {
    static const weft_family families[] = {
        WEFT_FAMILY_GPT2,  WEFT_FAMILY_GPT2_MOE, WEFT_FAMILY_LLAMA,  WEFT_FAMILY_MISTRAL,
        WEFT_FAMILY_QWEN2, WEFT_FAMILY_QWEN3,    WEFT_FAMILY_MIXTRAL};
    weft_model_config *c = &j->config;
    c->family = families[below(d, 7)];
    const bool rotary = wefti_family_has(c->family, WEFTI_ROTARY);
    c->layers = 4 << below(d, 2), c->heads = 4, c->hidden = 32, c->context = 16;
    c->kv_heads = rotary ? 2 << below(d, 2) : 4;
    if (wefti_family_has(c->family, WEFTI_EXPERTS)) c->experts = 8;
    SET(j, "model.family=%s", weft_family_text(c->family));
    SET(j, "model.layers=%lld", (long long)c->layers);
    SET(j, "model.hidden=32\nmodel.heads=4\nmodel.context=16\nmodel.ffn=%s",
        PICK(d, "64", "96", "128"));
    SET(j, "model.norm_eps=%s", PICK(d, "1e-05", "1e-06"));
    SET(j, "model.dropout=%s", PICK(d, "0", "0.1"));
    if (c->experts) {
        SET(j, "model.experts=8\nmodel.experts_per_token=%s", PICK(d, "1", "2", "3"));
        SET(j, "model.aux_loss=%s", PICK(d, "0", "0.01", "0.5"));
        SET(j, "model.capacity_factor=%s", PICK(d, "0", "1.25"));
    }
    if (rotary) {
        SET(j, "model.kv_heads=%lld\nmodel.head_dim=%s", (long long)c->kv_heads,
            PICK(d, "8", "16"));
        SET(j, "model.tied=%s", PICK(d, "true", "false"));
        SET(j, "model.rope_theta=%s", PICK(d, "10000", "500000"));
    }
    if (c->family == WEFT_FAMILY_LLAMA && below(d, 2))
        SET(j, "model.attention_bias=true\nmodel.mlp_bias=true");
    if (c->family == WEFT_FAMILY_MISTRAL ||
        (wefti_family_has(c->family, WEFTI_WINDOW) && below(d, 2)))
        SET(j, "model.window=%s", PICK(d, "1", "8"));
    j->optimizer = PICK(d, "adamw", "momentum", "sgd");
    j->schedule = PICK(d, "cosine", "linear", "constant");
    SET(j, "train.precision=%s", PICK(d, "f32", "bf16", "bf16\ntrain.products=f8"));
    degrees_for_megatron(j, d);
    SET(j, "model.vocab=%s", j->degrees.tensor == 1 ? PICK(d, "50257", "32000", "257") : "32000");
    set_batch(j, d);
    set_training(j, d);
    set_parallel(j, d, true);
}

/* ---- what torchtitan can express ---- */

static void make_for_torchtitan(random_job *j, dice *d) {
    weft_model_config *c = &j->config;
    const bool qwen3 = below(d, 2);
    *c = qwen3 ? (weft_model_config){.family = WEFT_FAMILY_QWEN3, .layers = 28, .heads = 16}
               : (weft_model_config){.family = WEFT_FAMILY_LLAMA, .layers = 16, .heads = 32};
    c->kv_heads = 8;
    SET(j, "model.kv_heads=8\nmodel.tied=true\nmodel.dropout=0\nmodel.context=%s",
        PICK(d, "64", "4096"));
    if (qwen3)
        SET(j, "model.family=qwen3\nmodel.layers=28\nmodel.hidden=1024\nmodel.heads=16\n"
               "model.ffn=3072\nmodel.vocab=151936\nmodel.head_dim=128\nmodel.norm_eps=1e-06\n"
               "model.rope_theta=1000000");
    else
        SET(j, "model.family=llama\nmodel.layers=16\nmodel.hidden=2048\nmodel.heads=32\n"
               "model.ffn=8192\nmodel.vocab=128256\nmodel.head_dim=64\nmodel.norm_eps=1e-05\n"
               "model.rope_theta=500000");
    j->optimizer = PICK(d, "adamw", "adam");
    j->schedule = PICK(d, "cosine", "linear", "constant");
    SET(j, "train.precision=%s", PICK(d, "f32", "bf16"));
    wefti_degrees *g = &j->degrees;
    *g = wefti_degrees_none();
    g->data = 1 << below(d, 3), g->tensor = 1 << below(d, 2), g->context = 1 << below(d, 2);
    g->sequence = g->tensor > 1 && below(d, 2);
    g->stages = 1 << below(d, 2);
    g->recompute = (weft_recompute)below(d, WEFT_RECOMPUTES);
    /* A part of a sequence is a shard, too. */
    g->level = g->context > 1 || (g->data > 1 && below(d, 2)) ? 3 : 0;
    if (g->level && g->data > 1 && g->data * g->context > 2 && below(d, 2))
        g->shard = g->data / 2 * g->context;
    if (g->stages > 1) {
        g->schedule = (weft_schedule)below(d, WEFT_PIPELINE_SCHEDULES);
        const bool two =
            g->schedule == WEFT_PIPELINE_INTERLEAVED || g->schedule == WEFT_PIPELINE_ZERO_BUBBLE;
        g->chunks = two ? 2 : 1;
    }
    g->microbatches = g->stages * (int32_t)(1 + below(d, 2));
    set_batch(j, d);
    set_training(j, d);
    set_parallel(j, d, false);
}

/* ---- both ways ---- */

/* Other words for the same, which export does not write. */
typedef struct other_word {
    const char *option, *from, *to;
} other_word;

/* `text` with the line that begins with `from` in other words; NULL: there is no such line. */
static char *reworded(const char *text, const char *from, const char *to) {
    const size_t length = strlen(from);
    for (const char *at = text; (at = strstr(at, from)); at++) {
        if (at != text && at[-1] != '\n') continue;
        if (at[length] != ' ' && at[length] != '\n') continue;
        wefti_text out = {0};
        wefti_text_add(&out, "%.*s%s%s", (int)(at - text), text, to, at + length);
        return wefti_text_take(&out);
    }
    return NULL;
}

static void expect_same_lines(const char *a, const char *b, const char *what) {
    const char *line = a;
    while (*a && *a == *b) {
        if (*a == '\n') line = a + 1;
        a++, b++;
    }
    if (*a || *b) fail_msg("%s: %.70s... is now %.30s", what, line, b);
}

static void expect_same(const weft_job *job, const char *options, const char *what, int devices) {
    char *yaml, *notes;
    weft_job *back;
    if (weft_job_import("options", options, (int64_t)strlen(options), NULL, devices, &yaml,
                        &notes) < 0)
        fail_msg("%s: %s\n%s", what, weft_error_message(), options);
    ASSERT_OK(read_back(yaml, &back));
    expect_same_lines(job->text, back->text, what);
    weft_job_free(back);
    weft_text_free(yaml);
    weft_text_free(notes);
}

static bool has_option(const wefti_system *system, const wefti_option *o, const char *options) {
    char name[80];
    const char *part = system == &wefti_megatron ? NULL : strchr(o->name, '.');
    (void)snprintf(name, sizeof name, "%s%s", system == &wefti_megatron ? "--" : "",
                   part && !strchr(o->name, '[') && strncmp(o->name, "debug", 5) != 0 ? part + 1
                                                                                      : o->name);
    const size_t length = strlen(name);
    for (const char *at = options; (at = strstr(at, name)); at++)
        if ((at == options || strchr(" \n.", at[-1])) && strchr(" =\n.", at[length])) return true;
    return false;
}

typedef struct reached {
    bool row[WEFTI_OPTIONS_MAX];
    char aliases[400]; /* each with a space before and behind it */
} reached;

static void try_aliases(const weft_job *job, const char *options, const wefti_option *o,
                        reached *seen) {
    char from[80], to[80], mark[80];
    for (const char *at = o->aliases; at && (at = strchr(at, ' ')); at++) {
        const int length = (int)strcspn(at + 1, " ");
        (void)snprintf(from, sizeof from, "--%s", o->name);
        (void)snprintf(to, sizeof to, "--%.*s", length, at + 1);
        (void)snprintf(mark, sizeof mark, " %.*s ", length, at + 1);
        char *text = strstr(seen->aliases, mark) ? NULL : reworded(options, from, to);
        if (!text) continue;
        expect_same(job, text, to, weft_plan_devices(job->plan));
        assert_true(strlen(seen->aliases) + strlen(mark) < sizeof seen->aliases);
        (void)strcat(seen->aliases, mark);
        weft_text_free(text);
    }
}

static void try_words(const weft_job *job, const char *options, reached *seen) {
    const wefti_system *system = &wefti_megatron;
    const int devices = weft_plan_devices(job->plan);
    char hosts[200];
    (void)snprintf(hosts, sizeof hosts, "--nnodes %d --nproc-per-node %d --swiglu",
                   devices % 2 ? 1 : 2, devices % 2 ? devices : devices / 2);
    char layers[80];
    (void)snprintf(layers, sizeof layers, "--num-layers-per-virtual-pipeline-stage %lld",
                   (long long)job->model.layers / 4);
    const other_word words[] = {
        {"use-rotary-position-embeddings", "--position-embedding-type rope",
         "--use-rotary-position-embeddings"},
        {"recompute-activations", "--recompute-granularity selective", "--recompute-activations"},
        {"num-virtual-stages-per-pipeline-rank", layers,
         "--num-virtual-stages-per-pipeline-rank 2"},
        {"fp16", "--bf16", "--fp16"},
        {"nnodes", "--swiglu", hosts},
        {"nproc-per-node", "--swiglu", hosts},
        {"tokenizer-type", "--vocab-size 32000", "--tokenizer-type Llama2Tokenizer"},
        {"merge-file", "--vocab-size 50257", "--merge-file merges.txt"},
        {"apply-layernorm-1p", "--normalization RMSNorm", "--apply-layernorm-1p"},
    };
    for (int i = 0; i < system->count; i++) {
        try_aliases(job, options, &system->options[i], seen);
        for (size_t k = 0; k < sizeof words / sizeof *words && !seen->row[i]; k++) {
            if (strcmp(words[k].option, system->options[i].name) != 0) continue;
            char *text = reworded(options, words[k].from, words[k].to);
            if (!text) continue;
            expect_same(job, text, words[k].option, strstr(text, "--nnodes") ? 0 : devices);
            seen->row[i] = true;
            weft_text_free(text);
        }
    }
}

static void check_system(weft_system which, uint64_t jobs) {
    const wefti_system *system = wefti_system_of(which);
    reached seen = {.aliases = " "};
    TEST_SEEDS(seed, 1, jobs) {
        dice d = {seed};
        random_job j = {.degrees = wefti_degrees_none()};
        weft_job *job;
        char *options, *notes;
        if (which == WEFT_SYSTEM_MEGATRON)
            make_for_megatron(&j, &d);
        else
            make_for_torchtitan(&j, &d);
        if (load_lines(&j.words, &job) < 0) fail_msg("%s\n%s", weft_error_message(), j.words.data);
        ASSERT_OK(weft_job_export(job, which, &options, &notes));
        if (*notes) fail_msg("a note on a job that the system can express: %s", notes);
        const char *base = strstr(options, "--rotary-base "); /* Megatron-LM takes digits only */
        if (base) assert_non_null(strchr("\n", base[14 + strspn(base + 14, "0123456789")]));
        for (int i = 0; i < system->count; i++)
            seen.row[i] |= has_option(system, &system->options[i], options);
        expect_same(job, options, "exported", weft_plan_devices(job->plan));
        if (which == WEFT_SYSTEM_MEGATRON) try_words(job, options, &seen);
        weft_text_free(options);
        weft_text_free(notes);
        weft_job_free(job);
        wefti_text_free(&j.words);
    }
    for (int i = 0; i < system->count && !test_one_seed(); i++) {
        const wefti_option *o = &system->options[i];
        if (!seen.row[i]) fail_msg("no job reaches %s", o->name);
        for (const char *at = o->aliases; at && (at = strchr(at, ' ')); at++) {
            char mark[80];
            (void)snprintf(mark, sizeof mark, " %.*s ", (int)strcspn(at + 1, " "), at + 1);
            if (!strstr(seen.aliases, mark)) fail_msg("no job reaches%s", mark);
        }
    }
}

static void jobs_pass_megatron(void **state) {
    (void)state;
    check_system(WEFT_SYSTEM_MEGATRON, 40);
}
static void jobs_pass_torchtitan(void **state) {
    (void)state;
    check_system(WEFT_SYSTEM_TORCHTITAN, 12);
}

/* A configuration as torchtitan's own registries write them. */
#define REGISTRY                                                                                   \
    "from torchtitan.models.llama3 import model_registry # the models\n"                           \
    "def llama3_1b() -> Trainer.Config:\n    model_spec = model_registry('1B')\n"                  \
    "    return Trainer.Config(\n        model_spec=model_spec,\n"                                 \
    "        loss=Wrapper.Config(loss_fn=Loss.Config(size_of(model_spec))),\n"                     \
    "        optimizer=default_adamw(lr=3e-4), training=TrainingConfig(local_batch_size=2,\n"      \
    "            seq_len=4096, steps=30, max_norm=0.5),\n"
#define END "        activation_checkpoint=SelectiveAC.Config(), other=[1, 2])\n"

static void torchtitans_own_form_is_read(void **state) {
    (void)state;
    static const struct {
        const char *parallelism;
        int devices, data, tensor, level;
        weft_status status; /* with a fact of the message */
        const char *fact;
    } cases[] = {
        {"", 4, 4, 1, 3, WEFT_OK, NULL}, /* all devices share the parameters */
        {"", 0, 1, 1, 0, WEFT_OK, NULL},
        {"parallelism=ParallelismConfig(tensor_parallel_degree=2),", 8, 4, 2, 3, WEFT_OK, NULL},
        {"parallelism=ParallelismConfig(data_parallel_replicate_degree=4,"
         "data_parallel_shard_degree=1),",
         0, 4, 1, 0, WEFT_OK, NULL},
        {"parallelism=ParallelismConfig(data_parallel_shard_degree=-1),", 2, 2, 1, 3, WEFT_OK,
         NULL},
        {"parallelism=ParallelismConfig(tensor_parallel_degree=two),", 0, 0, 0, 0, WEFT_E_ARG,
         "options:9"},
        {"parallelism=ParallelismConfig(tensor_parallel_degree=3),", 8, 0, 0, 0, WEFT_E_ARG, "8"},
        {"parallelism=ParallelismConfig(tensor_parallel_degree=2097152),", 0, 0, 0, 0, WEFT_E_ARG,
         "1048576"},
        {"parallelism=ParallelismConfig(pipeline_parallel_degree=2,"
         "pipeline_parallel_schedule='DualPipeV'),",
         0, 0, 0, 0, WEFT_E_NO_IMPL, "DualPipeV"},
        {"training=TrainingConfig(local_batch_size=3, global_batch_size=4),", 0, 0, 0, 0,
         WEFT_E_ARG, "4"},
        {"parallelism=ParallelismConfig(pipeline_parallel_degree=2),"
         "training=TrainingConfig(local_batch_size=3, global_batch_size=4),",
         0, 0, 0, 0, WEFT_E_ARG, "4"},
        {"parallelism=ParallelismConfig(pipeline_parallel_degree=2,"
         "pipeline_parallel_microbatch_size=2), training=TrainingConfig(local_batch_size=3),",
         0, 0, 0, 0, WEFT_E_ARG, "3"},
        {"optimizer=default_adamw(betas=(0.9)),", 0, 0, 0, 0, WEFT_E_ARG, "0.9"},
        {"training=TrainingConfig(seq_len=16777217),", 0, 0, 0, 0, WEFT_E_ARG, "16777216"},
        {"model_spec=model_registry('2B'),", 0, 0, 0, 0, WEFT_E_NO_IMPL, "2B"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[2000], *yaml, *notes;
        weft_job *job;
        (void)snprintf(text, sizeof text, "%s        %s\n%s", REGISTRY, cases[k].parallelism, END);
        const weft_status status = weft_job_import("options", text, (int64_t)strlen(text), NULL,
                                                   cases[k].devices, &yaml, &notes);
        if (status != cases[k].status ||
            (status < 0 && !strstr(weft_error_message(), cases[k].fact)))
            fail_msg("%s: %d, %s", cases[k].parallelism, status, weft_error_message());
        if (status < 0) continue;
        ASSERT_OK(read_back(yaml, &job));
        wefti_degrees d;
        wefti_text none = {0};
        ASSERT_OK(wefti_degrees_of_plan(job->plan, &d, &none));
        assert_int_equal(d.data, cases[k].data);
        assert_int_equal(d.tensor, cases[k].tensor);
        assert_int_equal(d.level, cases[k].level);
        assert_int_equal(d.sequence, d.tensor > 1);
        assert_int_equal(d.recompute, WEFT_RECOMPUTE_SELECTIVE);
        assert_int_equal(job->model.layers, 16);
        assert_int_equal(job->train.batch, 2 * d.data);
        assert_int_equal(job->train.steps, 30);
        assert_true(job->train.clip == 0.5 && job->train.optimizer.lr == 3e-4);
        assert_non_null(strstr(notes, "other"));
        weft_job_free(job);
        weft_text_free(yaml);
        weft_text_free(notes);
    }
}

/* Too long, or with a byte that ends a text. */
static void texts_that_are_none_are_refused(void **state) {
    (void)state;
    static const char *const begins[] = {"--num-layers 2 ", "from torchtitan.config import x\n"};
    enum { LONG = (1 << 20) + 1 };
    char *text = malloc(LONG), *yaml, *notes;
    assert_non_null(text);
    for (size_t k = 0; k < sizeof begins / sizeof *begins; k++) {
        memset(text, ' ', LONG);
        memcpy(text, begins[k], strlen(begins[k]));
        ASSERT_FAILS(WEFT_E_ARG, "1048577",
                     weft_job_import("options", text, LONG, NULL, 0, &yaml, &notes));
        text[50] = '\0';
        ASSERT_FAILS(WEFT_E_ARG, "NUL",
                     weft_job_import("options", text, 100, NULL, 0, &yaml, &notes));
    }
    free(text);
}

/* The key of each row exists, and an option has one row. */
static void rows_are_sound(void **state) {
    (void)state;
    for (int s = 0; s < (int)WEFT_SYSTEMS; s++) {
        const wefti_system *system = wefti_system_of((weft_system)s);
        for (int i = 0; i < system->count; i++) {
            const wefti_option *o = &system->options[i];
            if (o->key && wefti_job_row_number(o->key) < 0)
                fail_msg("%s: no key %s", o->name, o->key);
            for (int k = 0; k < i; k++)
                if (!strcmp(o->name, system->options[k].name)) fail_msg("two rows of %s", o->name);
        }
    }
}

/* The page of options has the rows of the tables. On a difference the right page is printed. */
static void the_page_has_the_tables(void **state) {
    (void)state;
    wefti_text page = {0};
    for (int s = 0; s < (int)WEFT_SYSTEMS; s++) {
        const wefti_system *system = wefti_system_of((weft_system)s);
        wefti_text_add(&page,
                       "\n## %s\n\n| option | key of the job | if missing |\n|---|---|---|\n",
                       system->name);
        for (int i = 0; i < system->count; i++) {
            const wefti_option *o = &system->options[i];
            wefti_text_add(&page, "| `%s%s`", system == &wefti_megatron ? "--" : "", o->name);
            for (const char *at = o->aliases; at && (at = strchr(at, ' ')); at++)
                wefti_text_add(&page, ", `--%.*s`", (int)strcspn(at + 1, " "), at + 1);
            wefti_text_add(&page, " | %s%s%s | %s |\n", o->key ? "`" : "", o->key ? o->key : "",
                           o->key ? "`" : "", o->standard ? o->standard : "");
        }
    }
    FILE *f = fopen("docs/reference/other-systems.md", "r");
    static char text[1 << 16];
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    char *first = strstr(text, "\n## ");
    const bool same = first && !strcmp(first, page.data);
    if (!same) (void)fprintf(stderr, "%s", page.data);
    assert_true(same);
    wefti_text_free(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_sound),
                                       cmocka_unit_test(texts_that_are_none_are_refused),
                                       cmocka_unit_test(torchtitans_own_form_is_read),
                                       cmocka_unit_test(the_page_has_the_tables),
                                       cmocka_unit_test(jobs_pass_megatron),
                                       cmocka_unit_test(jobs_pass_torchtitan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
