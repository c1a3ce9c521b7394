/* The words of Megatron-LM's command line: see interop/systems.h. A text may be a whole shell
 * script: words that are no options are skipped, `NAME=value` sets a variable, `$NAME` and
 * `${NAME}` read one, `#` begins a comment, and quotes and backslashes join words. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "interop/systems.h"

enum { MOST_BYTES = 1 << 20, MOST_WORDS = 1 << 14, OPTION_BYTES = 4096, UNSET_BYTES = 64 };
static const char separators[] = " \t\r\n;&|()";

typedef enum option_kind {
    OPTION_INTEGER, /* int64_t, at least 0 */
    OPTION_REAL,    /* double */
    OPTION_TEXT,
    OPTION_SWITCH,  /* bool, no value */
    OPTION_IGNORED, /* no effect on model, plan or cost; any number of values */
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
    {"untie-embeddings-and-output-weights", OPTION_SWITCH, MEGATRON_AT(untied)},
    {"use-rotary-position-embeddings", OPTION_SWITCH, MEGATRON_AT(rotary)},
    {"position-embedding-type", OPTION_TEXT, MEGATRON_AT(position)},
    {"normalization", OPTION_TEXT, MEGATRON_AT(normalization)},
    {"tokenizer-type", OPTION_TEXT, MEGATRON_AT(tokenizer)},
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
    {"merge-file", OPTION_IGNORED, 0},
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
    {"distributed-backend", OPTION_IGNORED, 0},
    {"master-addr", OPTION_IGNORED, 0},
    {"master-port", OPTION_IGNORED, 0},
    {"node-rank", OPTION_IGNORED, 0},
    {"rdzv-id", OPTION_IGNORED, 0},
    {"rdzv-backend", OPTION_IGNORED, 0},
    {"rdzv-endpoint", OPTION_IGNORED, 0},
};
enum { KNOWN = sizeof known / sizeof *known };

typedef struct script_variable {
    const char *name, *value;
} script_variable;

typedef struct word_reader {
    const char *name, *at, *end;
    int line;
    wefti_arena *arena;
    script_variable *variables;
    int variable_count, word_count;
    char unset[UNSET_BYTES]; /* a variable of the last word that the text does not set; "": none */
    wefti_text *notes;
} word_reader;

static const char *value_of(const word_reader *r, const char *name, size_t length) {
    for (int i = r->variable_count - 1; i >= 0; i--)
        if (strlen(r->variables[i].name) == length && !memcmp(r->variables[i].name, name, length))
            return r->variables[i].value;
    return NULL;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *find_end(const word_reader *r, const char *at) {
    while (at < r->end && is_name(*at)) at++;
    return at;
}

/* Adds the value of the variable at `at`, behind '$', to the word; returns the first byte behind
 * it. A default, "${TP:-8}", counts if the text does not set the variable. */
static const char *expand(word_reader *r, const char *at, char *out, size_t *used) {
    const bool braces = *at == '{';
    const char *first = at + braces, *last = find_end(r, first), *after = last;
    const char *value = value_of(r, first, (size_t)(last - first));
    size_t length = value ? strlen(value) : 0;
    if (braces) {
        while (after < r->end && *after != '}' && *after != '\n') after++;
        if (!value && after - last >= 2 && last[0] == ':' && last[1] == '-') {
            value = last + 2;
            length = (size_t)(after - value);
        }
        if (after < r->end && *after == '}') after++;
    }
    if (!value && !r->unset[0]) {
        const size_t name = (size_t)(last - first);
        memcpy(r->unset, first, name < UNSET_BYTES ? name : UNSET_BYTES - 1);
        r->unset[name < UNSET_BYTES ? name : UNSET_BYTES - 1] = '\0';
        if (!name) memcpy(r->unset, "?", 2);
    }
    if (length > OPTION_BYTES - 1 - *used) length = OPTION_BYTES - 1 - *used;
    if (length) memcpy(out + *used, value, length);
    *used += length;
    return after;
}

static bool is_separator(char c) {
    return c && strchr(separators, c);
}

static void skip_space(word_reader *r) {
    while (r->at < r->end) {
        const bool joined = *r->at == '\\' && r->at + 1 < r->end && r->at[1] == '\n';
        if (*r->at == '#') {
            while (r->at < r->end && *r->at != '\n') r->at++;
        } else if (joined || is_separator(*r->at)) {
            if (joined || *r->at == '\n') r->line++;
            r->at += joined ? 2 : 1;
        } else {
            return;
        }
    }
}

/* Reads the next word into `out`, its first OPTION_BYTES - 1 bytes. *out_there: false at the end of
 * the text. */
static weft_status next_word(word_reader *r, char out[OPTION_BYTES], bool *out_there) {
    size_t used = 0;
    char quote = '\0';
    r->unset[0] = '\0';
    skip_space(r);
    *out_there = r->at < r->end;
    while (r->at < r->end && (quote || !is_separator(*r->at))) {
        char c = *r->at++;
        if (c == '\n') r->line++;
        if (quote ? c == quote : c == '"' || c == '\'') {
            quote = quote ? '\0' : c;
            continue;
        }
        if (c == '$' && quote != '\'' && r->at < r->end && (*r->at == '{' || is_name(*r->at))) {
            r->at = expand(r, r->at, out, &used);
            continue;
        }
        if (c == '\\' && quote != '\'' && r->at < r->end) {
            c = *r->at++;
            if (c == '\n') {
                r->line++;
                continue;
            }
        }
        if (used < OPTION_BYTES - 1) out[used++] = c;
    }
    out[used] = '\0';
    WEFT_REQUIRE(++r->word_count <= MOST_WORDS, WEFT_E_ARG, "%s has more than %d words", r->name,
                 MOST_WORDS);
    return WEFT_OK;
}

/* "NAME=value" as a word. */
static weft_status set_variable(word_reader *r, const char *word, bool *out_set) {
    const char *sign = strchr(word, '=');
    *out_set = sign && sign != word;
    for (const char *c = word; *out_set && c < sign; c++) *out_set = is_name(*c);
    if (!*out_set || r->variable_count == MOST_WORDS) return WEFT_OK;
    char *copy = wefti_arena_strdup(r->arena, word);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for options");
    copy[sign - word] = '\0';
    r->variables[r->variable_count++] = (script_variable){copy, copy + (sign - word) + 1};
    return WEFT_OK;
}

static bool same_name(const char *word, size_t length, const char *name) {
    if (strlen(name) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((word[i] == '_' ? '-' : word[i]) != name[i]) return false;
    return true;
}

static weft_status store(word_reader *r, const option *o, const char *value, wefti_megatron *out) {
    void *place = (char *)out + o->offset;
    char *end = NULL;
    if (o->kind == OPTION_SWITCH) {
        *(bool *)place = true;
        return WEFT_OK;
    }
    WEFT_REQUIRE(value, WEFT_E_ARG, "%s:%d: --%s has no value", r->name, r->line, o->name);
    WEFT_REQUIRE(!r->unset[0], WEFT_E_ARG,
                 "%s:%d: --%s needs $%s, which this text does not set; write its value there",
                 r->name, r->line, o->name, r->unset);
    if (o->kind == OPTION_INTEGER) {
        errno = 0;
        const long long number = strtoll(value, &end, 10);
        WEFT_REQUIRE(end != value && !*end && !errno && number >= 0 && number <= 1LL << 50,
                     WEFT_E_ARG, "%s:%d: --%s is '%.60s', but must be a whole number from 0",
                     r->name, r->line, o->name, value);
        *(int64_t *)place = number;
    } else if (o->kind == OPTION_REAL) {
        const double number = wefti_real_read(value, &end);
        WEFT_REQUIRE(end != value && !*end && isfinite(number) && number >= 0, WEFT_E_ARG,
                     "%s:%d: --%s is '%.60s', but must be a number from 0", r->name, r->line,
                     o->name, value);
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

/* One option, "--name value" or "--name=value". */
static weft_status read_option(word_reader *r, const char *word, wefti_megatron *out) {
    char value[OPTION_BYTES];
    const char *sign = strchr(word, '=');
    const size_t length = sign ? (size_t)(sign - word) - 2 : strlen(word) - 2;
    const option *o = find(word + 2, length);
    if (!o) {
        wefti_text_add(r->notes, "--%.*s: not known to weft, ignored\n",
                       (int)(length < 60 ? length : 60), word + 2);
        return WEFT_OK;
    }
    if (o->kind == OPTION_IGNORED) return WEFT_OK;
    if (o->kind == OPTION_SWITCH) return store(r, o, NULL, out);
    if (sign) return store(r, o, sign + 1, out);
    bool there;
    WEFT_TRY(next_word(r, value, &there));
    return store(r, o, there && strncmp(value, "--", 2) != 0 ? value : NULL, out);
}

static weft_status read_all(word_reader *r, wefti_megatron *out) {
    char word[OPTION_BYTES];
    for (;;) {
        bool there, set;
        WEFT_TRY(next_word(r, word, &there));
        if (!there) return WEFT_OK;
        WEFT_TRY(set_variable(r, word, &set));
        if (!set && !strncmp(word, "--", 2) && word[2]) WEFT_TRY(read_option(r, word, out));
    }
}

weft_status wefti_megatron_read(const char *name, const char *text, int64_t bytes,
                                wefti_arena *arena, wefti_megatron *out, wefti_text *notes) {
    WEFT_REQUIRE(bytes <= MOST_BYTES, WEFT_E_ARG,
                 "%s is too long for a list of options: %lld bytes", name, (long long)bytes);
    WEFT_REQUIRE(!memchr(text, '\0', (size_t)bytes), WEFT_E_ARG, "%s holds a NUL byte", name);
    word_reader r = {
        .name = name, .at = text, .end = text + bytes, .line = 1, .arena = arena, .notes = notes};
    r.variables = wefti_arena_alloc(arena, MOST_WORDS * sizeof *r.variables);
    WEFT_REQUIRE(r.variables, WEFT_E_NOMEM, "no memory for options");
    *out = (wefti_megatron){0};
    return read_all(&r, out);
}
