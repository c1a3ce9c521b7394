/* The words of Megatron-LM's command line: see interop/systems.h. A text may be a whole script
 * (interop/shell.h): the words of its commands that are no options are skipped. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/shell.h"
#include "interop/systems.h"

enum { OPTION_BYTES = 64 };

typedef enum option_kind {
    OPTION_INTEGER, /* int64_t, at least 0 */
    OPTION_REAL,    /* double */
    OPTION_TEXT,
    OPTION_SWITCH,  /* bool, no value */
    OPTION_SILENT,  /* of torchrun, or follows from others; any number of values */
    OPTION_IGNORED, /* not taken over, and a note says so; any number of values */
} option_kind;

typedef struct option {
    const char *name; /* without the dashes; '_' and '-' are the same */
    option_kind kind;
    size_t offset;
} option;

#define MEGATRON_AT(field) offsetof(wefti_megatron, field)
static const option known[] = {
    {"num-layers", OPTION_INTEGER, MEGATRON_AT(layers)},
    {"hidden-size", OPTION_INTEGER, MEGATRON_AT(hidden)},
    {"ffn-hidden-size", OPTION_INTEGER, MEGATRON_AT(ffn)},
    {"num-attention-heads", OPTION_INTEGER, MEGATRON_AT(heads)},
    {"kv-channels", OPTION_INTEGER, MEGATRON_AT(head_dim)},
    {"num-query-groups", OPTION_INTEGER, MEGATRON_AT(groups)},
    {"group-query-attention", OPTION_SWITCH, MEGATRON_AT(grouped)},
    {"seq-length", OPTION_INTEGER, MEGATRON_AT(sequence)},
    {"encoder-seq-length", OPTION_INTEGER, MEGATRON_AT(sequence)},
    {"max-position-embeddings", OPTION_INTEGER, MEGATRON_AT(positions)},
    {"vocab-size", OPTION_INTEGER, MEGATRON_AT(vocab)},
    {"padded-vocab-size", OPTION_INTEGER, MEGATRON_AT(vocab)},
    {"make-vocab-size-divisible-by", OPTION_INTEGER, MEGATRON_AT(divisible)},
    {"num-experts", OPTION_INTEGER, MEGATRON_AT(experts)},
    {"moe-router-topk", OPTION_INTEGER, MEGATRON_AT(experts_per_token)},
    {"moe-ffn-hidden-size", OPTION_INTEGER, MEGATRON_AT(expert_ffn)},
    {"moe-aux-loss-coeff", OPTION_REAL, MEGATRON_AT(aux_loss)},
    {"moe-expert-capacity-factor", OPTION_REAL, MEGATRON_AT(capacity)},
    {"window-size", OPTION_INTEGER, MEGATRON_AT(window)},
    {"swiglu", OPTION_SWITCH, MEGATRON_AT(swiglu)},
    {"disable-bias-linear", OPTION_SWITCH, MEGATRON_AT(no_bias)},
    {"add-qkv-bias", OPTION_SWITCH, MEGATRON_AT(qkv_bias)},
    {"qk-layernorm", OPTION_SWITCH, MEGATRON_AT(qk_norm)},
    {"untie-embeddings-and-output-weights", OPTION_SWITCH, MEGATRON_AT(untied)},
    {"use-rotary-position-embeddings", OPTION_SWITCH, MEGATRON_AT(rotary)},
    {"position-embedding-type", OPTION_TEXT, MEGATRON_AT(position)},
    {"normalization", OPTION_TEXT, MEGATRON_AT(normalization)},
    {"tokenizer-type", OPTION_TEXT, MEGATRON_AT(tokenizer)},
    {"merge-file", OPTION_SWITCH, MEGATRON_AT(merges)},
    {"apply-layernorm-1p", OPTION_SWITCH, MEGATRON_AT(layernorm_1p)},
    {"norm-epsilon", OPTION_REAL, MEGATRON_AT(norm_eps)},
    {"layernorm-epsilon", OPTION_REAL, MEGATRON_AT(norm_eps)},
    {"rotary-base", OPTION_REAL, MEGATRON_AT(rope_theta)},
    {"attention-dropout", OPTION_REAL, MEGATRON_AT(dropout)},
    {"hidden-dropout", OPTION_REAL, MEGATRON_AT(hidden_dropout)},
    {"micro-batch-size", OPTION_INTEGER, MEGATRON_AT(micro_batch)},
    {"global-batch-size", OPTION_INTEGER, MEGATRON_AT(batch)},
    {"train-iters", OPTION_INTEGER, MEGATRON_AT(steps)},
    {"lr-warmup-iters", OPTION_INTEGER, MEGATRON_AT(warmup)},
    {"seed", OPTION_INTEGER, MEGATRON_AT(seed)},
    {"lr", OPTION_REAL, MEGATRON_AT(lr)},
    {"min-lr", OPTION_REAL, MEGATRON_AT(min_lr)},
    {"weight-decay", OPTION_REAL, MEGATRON_AT(weight_decay)},
    {"clip-grad", OPTION_REAL, MEGATRON_AT(clip)},
    {"adam-beta1", OPTION_REAL, MEGATRON_AT(beta1)},
    {"adam-beta2", OPTION_REAL, MEGATRON_AT(beta2)},
    {"adam-eps", OPTION_REAL, MEGATRON_AT(eps)},
    {"sgd-momentum", OPTION_REAL, MEGATRON_AT(momentum)},
    {"lr-decay-style", OPTION_TEXT, MEGATRON_AT(decay)},
    {"optimizer", OPTION_TEXT, MEGATRON_AT(optimizer)},
    {"bf16", OPTION_SWITCH, MEGATRON_AT(bf16)},
    {"fp16", OPTION_SWITCH, MEGATRON_AT(fp16)},
    {"fp8-format", OPTION_SWITCH, MEGATRON_AT(fp8)},
    {"fp8-hybrid", OPTION_SWITCH, MEGATRON_AT(fp8)},
    {"tensor-model-parallel-size", OPTION_INTEGER, MEGATRON_AT(tensor)},
    {"pipeline-model-parallel-size", OPTION_INTEGER, MEGATRON_AT(pipeline)},
    {"context-parallel-size", OPTION_INTEGER, MEGATRON_AT(context)},
    {"expert-model-parallel-size", OPTION_INTEGER, MEGATRON_AT(expert)},
    {"expert-tensor-parallel-size", OPTION_INTEGER, MEGATRON_AT(expert_tensor)},
    {"num-layers-per-virtual-pipeline-stage", OPTION_INTEGER, MEGATRON_AT(chunk_layers)},
    {"num-virtual-stages-per-pipeline-rank", OPTION_INTEGER, MEGATRON_AT(chunks)},
    {"pipeline-model-parallel-layout", OPTION_TEXT, MEGATRON_AT(layout)},
    {"nnodes", OPTION_INTEGER, MEGATRON_AT(nodes)},
    {"nproc-per-node", OPTION_INTEGER, MEGATRON_AT(per_node)},
    {"sequence-parallel", OPTION_SWITCH, MEGATRON_AT(sequence_parallel)},
    {"use-distributed-optimizer", OPTION_SWITCH, MEGATRON_AT(distributed_optimizer)},
    {"num-distributed-optimizer-instances", OPTION_INTEGER, MEGATRON_AT(instances)},
    {"use-torch-fsdp2", OPTION_SWITCH, MEGATRON_AT(fsdp)},
    {"use-custom-fsdp", OPTION_SWITCH, MEGATRON_AT(fsdp)},
    {"use-megatron-fsdp", OPTION_SWITCH, MEGATRON_AT(fsdp)},
    {"data-parallel-sharding-strategy", OPTION_TEXT, MEGATRON_AT(sharding)},
    {"recompute-activations", OPTION_SWITCH, MEGATRON_AT(selective)},
    {"recompute-granularity", OPTION_TEXT, MEGATRON_AT(recompute)},
    {"recompute-method", OPTION_TEXT, MEGATRON_AT(recompute_method)},
    {"recompute-num-layers", OPTION_INTEGER, MEGATRON_AT(recompute_layers)},
    {"use-flash-attn", OPTION_IGNORED, 0},
    {"use-mcore-models", OPTION_IGNORED, 0},
    {"transformer-impl", OPTION_IGNORED, 0},
    {"attention-softmax-in-fp32", OPTION_IGNORED, 0},
    {"overlap-grad-reduce", OPTION_IGNORED, 0},
    {"overlap-param-gather", OPTION_IGNORED, 0},
    {"no-masked-softmax-fusion", OPTION_IGNORED, 0},
    {"no-bias-gelu-fusion", OPTION_IGNORED, 0},
    {"moe-grouped-gemm", OPTION_IGNORED, 0},
    {"moe-token-dispatcher-type", OPTION_IGNORED, 0},
    {"moe-router-load-balancing-type", OPTION_IGNORED, 0},
    {"init-method-std", OPTION_IGNORED, 0},
    {"data-path", OPTION_IGNORED, 0},
    {"vocab-file", OPTION_IGNORED, 0},
    {"tokenizer-model", OPTION_IGNORED, 0},
    {"mock-data", OPTION_IGNORED, 0},
    {"split", OPTION_IGNORED, 0},
    {"save", OPTION_IGNORED, 0},
    {"load", OPTION_IGNORED, 0},
    {"save-interval", OPTION_IGNORED, 0},
    {"eval-interval", OPTION_IGNORED, 0},
    {"eval-iters", OPTION_IGNORED, 0},
    {"log-interval", OPTION_IGNORED, 0},
    {"log-throughput", OPTION_IGNORED, 0},
    {"tensorboard-dir", OPTION_IGNORED, 0},
    {"tensorboard-queue-size", OPTION_IGNORED, 0},
    {"wandb-project", OPTION_IGNORED, 0},
    {"wandb-exp-name", OPTION_IGNORED, 0},
    {"attention-backend", OPTION_IGNORED, 0},
    {"rotary-percent", OPTION_IGNORED, 0},
    {"train-samples", OPTION_IGNORED, 0},
    {"lr-decay-samples", OPTION_IGNORED, 0},
    {"lr-warmup-samples", OPTION_IGNORED, 0},
    {"lr-warmup-fraction", OPTION_IGNORED, 0},
    {"lr-decay-iters", OPTION_IGNORED, 0},
    {"decoupled-lr", OPTION_IGNORED, 0},
    {"decoupled-min-lr", OPTION_IGNORED, 0},
    {"grad-reduce-in-bf16", OPTION_IGNORED, 0},
    {"cross-entropy-loss-fusion", OPTION_IGNORED, 0},
    {"calculate-per-token-loss", OPTION_IGNORED, 0},
    {"manual-gc", OPTION_IGNORED, 0},
    {"empty-unused-memory-level", OPTION_IGNORED, 0},
    {"exit-duration-in-mins", OPTION_IGNORED, 0},
    {"fp8-amax-history-len", OPTION_IGNORED, 0},
    {"fp8-amax-compute-algo", OPTION_IGNORED, 0},
    {"fp8-param-gather", OPTION_IGNORED, 0},
    {"data-cache-path", OPTION_IGNORED, 0},
    {"tiktoken-pattern", OPTION_IGNORED, 0},
    {"no-create-attention-mask-in-dataloader", OPTION_IGNORED, 0},
    {"no-mmap-bin-files", OPTION_IGNORED, 0},
    {"num-workers", OPTION_IGNORED, 0},
    {"profile", OPTION_IGNORED, 0},
    {"profile-step-start", OPTION_IGNORED, 0},
    {"profile-step-end", OPTION_IGNORED, 0},
    {"ckpt-format", OPTION_SILENT, 0},
    {"distributed-timeout-minutes", OPTION_IGNORED, 0},
    {"no-load-optim", OPTION_IGNORED, 0},
    {"no-load-rng", OPTION_IGNORED, 0},
    {"no-save-optim", OPTION_IGNORED, 0},
    {"no-position-embedding", OPTION_IGNORED, 0},
    {"rampup-batch-size", OPTION_IGNORED, 0},
    {"overlap-p2p-communication", OPTION_IGNORED, 0},
    {"tp-comm-overlap", OPTION_IGNORED, 0},
    {"distributed-backend", OPTION_SILENT, 0},
    {"log-dir", OPTION_SILENT, 0},
    {"redirects", OPTION_SILENT, 0},
    {"tee", OPTION_SILENT, 0},
    {"master-addr", OPTION_SILENT, 0},
    {"master-port", OPTION_SILENT, 0},
    {"node-rank", OPTION_SILENT, 0},
    {"rdzv-id", OPTION_SILENT, 0},
    {"rdzv-backend", OPTION_SILENT, 0},
    {"rdzv-endpoint", OPTION_SILENT, 0},
};
enum { KNOWN = sizeof known / sizeof *known };

/* What a program of Megatron-LM trains, if weft has no counterpart. */
static const struct {
    const char *program, *trains;
} foreign[] = {
    {"pretrain_bert.py", "an encoder with a head for pairs of sentences"},
    {"pretrain_t5.py", "an encoder and a decoder"},
    {"pretrain_mamba.py", "a state-space model"},
    {"pretrain_hybrid.py", "a state-space model"},
    {"pretrain_retro.py", "a decoder with retrieval"},
    {"pretrain_ict.py", "a retriever"},
    {"pretrain_vlm.py", "a model of images and text"},
    {"pretrain_vision_classify.py", "a model of images"},
};

typedef struct option_reader {
    const char *name;
    wefti_arena *arena;
    wefti_text *notes, left; /* left: names of options that are not taken over */
    const option *open;      /* the option whose value comes next */
    int line;                /* of that option */
    wefti_megatron *out;
} option_reader;

static bool same_name(const char *word, size_t length, const char *name) {
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((word[i] == '_' ? '-' : word[i]) != name[i]) return false;
    return true;
}

/* `word` NULL: there is no value. */
static weft_status store(option_reader *r, const option *o, int line,
                         const wefti_shell_word *word) {
    void *place = (char *)r->out + o->offset;
    const char *value = word ? word->text : NULL;
    char *end = NULL;
    if (o->kind == OPTION_SWITCH) {
        *(bool *)place = true;
        return WEFT_OK;
    }
    WEFT_REQUIRE(value, WEFT_E_ARG, "%s:%d: --%s has no value", r->name, line, o->name);
    WEFT_REQUIRE(!word->unset, WEFT_E_ARG,
                 "%s:%d: --%s needs %s, which this text does not set: write its value there, or "
                 "take it from the environment (--import-env)",
                 r->name, line, o->name, word->unset);
    if (o->kind == OPTION_INTEGER) {
        errno = 0;
        const long long number = strtoll(value, &end, 10);
        WEFT_REQUIRE(end != value && !*end && !errno && number >= 0 && number <= 1LL << 50,
                     WEFT_E_ARG, "%s:%d: --%s is '%.60s', but must be a whole number from 0",
                     r->name, line, o->name, value);
        *(int64_t *)place = number;
    } else if (o->kind == OPTION_REAL) {
        const double number = wefti_real_read(value, &end);
        WEFT_REQUIRE(end != value && !*end && isfinite(number) && number >= 0, WEFT_E_ARG,
                     "%s:%d: --%s is '%.60s', but must be a number from 0", r->name, line, o->name,
                     value);
        *(double *)place = number;
    } else {
        char *copy = wefti_arena_strdup(r->arena, value);
        WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for options");
        *(const char **)place = copy;
    }
    return WEFT_OK;
}

static const option *find(const char *name, size_t length) {
    for (int i = 0; i < KNOWN; i++)
        if (same_name(name, length, known[i].name)) return &known[i];
    return NULL;
}

static void leave(option_reader *r, const option *o) {
    char text[OPTION_BYTES];
    (void)snprintf(text, sizeof text, " --%s,", o->name);
    if (!r->left.data || !strstr(r->left.data, text)) wefti_text_add(&r->left, "%s", text);
}

/* One option, "--name" or "--name=value". Words in quotes that need what is not set stay together:
 * "--name $value". */
static weft_status read_option(option_reader *r, const wefti_shell_word *w) {
    const char *sign = strpbrk(w->text, w->unset ? "= " : "=");
    const size_t length = sign ? (size_t)(sign - w->text) - 2 : strlen(w->text) - 2;
    const option *o = find(w->text + 2, length);
    if (!o) {
        wefti_text_add(r->notes, "--%.*s: not known to weft, ignored\n",
                       (int)(length < 60 ? length : 60), w->text + 2);
    } else if (o->kind == OPTION_IGNORED) {
        leave(r, o);
    } else if (o->kind == OPTION_SWITCH) {
        return store(r, o, w->line, NULL);
    } else if (sign) {
        const wefti_shell_word value = {sign + 1, w->unset, w->line};
        return store(r, o, w->line, &value);
    } else if (o->kind != OPTION_SILENT) {
        r->open = o;
        r->line = w->line;
    }
    return WEFT_OK;
}

static weft_status check_program(const option_reader *r, const wefti_shell_word *w) {
    const char *slash = strrchr(w->text, '/'), *file = slash ? slash + 1 : w->text;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        WEFT_REQUIRE(strcmp(file, foreign[i].program) != 0, WEFT_E_NO_IMPL,
                     "%s:%d: %s trains %s; weft knows the models of pretrain_gpt.py", r->name,
                     w->line, file, foreign[i].trains);
    return WEFT_OK;
}

/* Commands whose words are no options of a training. */
static bool is_aside(const char *command) {
    static const char *const names[] = {"echo", "printf", "mkdir",  "cd",    "rm",     "cp",
                                        "ls",   "cat",    "set",    "unset", "source", ".",
                                        "pip",  "conda",  "module", "git",   "sleep",  "exit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(command, names[i])) return true;
    return false;
}

/* A list of options is a text of commands too. There, a value may stand on a line of its own. */
static weft_status read_command(void *context, const wefti_shell_word *words, int64_t count) {
    option_reader *r = context;
    if (is_aside(words[0].text)) return WEFT_OK;
    for (int64_t i = 0; i < count; i++) {
        const wefti_shell_word *w = &words[i];
        const bool is_option = !strncmp(w->text, "--", 2) && w->text[2];
        const option *open = r->open;
        r->open = NULL;
        if (open)
            WEFT_TRY(store(r, open, r->line, is_option ? NULL : w));
        else if (!is_option)
            WEFT_TRY(check_program(r, w));
        if (is_option) WEFT_TRY(read_option(r, w));
    }
    return WEFT_OK;
}

static bool has_options(void *context) {
    const option_reader *r = context;
    return r->out->layers || r->out->hidden || r->out->heads;
}

weft_status wefti_megatron_read(const char *name, const char *text, int64_t bytes,
                                const char *const *variables, wefti_arena *arena,
                                wefti_megatron *out, wefti_text *notes) {
    option_reader r = {.name = name, .arena = arena, .notes = notes, .out = out};
    const wefti_shell_script script = {.name = name,
                                       .text = text,
                                       .bytes = bytes,
                                       .variables = variables,
                                       .arena = arena,
                                       .notes = notes,
                                       .context = &r,
                                       .command = read_command,
                                       .enough = has_options};
    *out = (wefti_megatron){0};
    weft_status status = wefti_shell_read(&script);
    if (status >= 0 && r.open) status = store(&r, r.open, r.line, NULL);
    if (r.left.used)
        wefti_text_add(notes, "not taken over:%.*s\n", (int)r.left.used - 1, r.left.data);
    wefti_text_free(&r.left);
    return status;
}
