/* The words of Megatron-LM's command line: see systems.h. A text may be a whole script
 * (shell.h): the words of its commands that are no options are skipped. */
#include <stdio.h>
#include <string.h>

#include "job/systems/shell.h"
#include "job/systems/systems.h"

/* Options that a job does not take over, each with a space before it; a note says so. They may
 * have any number of values. */
static const char ignored[] =
    " use-flash-attn use-mcore-models transformer-impl attention-softmax-in-fp32"
    " overlap-grad-reduce overlap-param-gather no-masked-softmax-fusion no-bias-gelu-fusion"
    " moe-grouped-gemm moe-token-dispatcher-type moe-router-load-balancing-type"
    " init-method-std data-path vocab-file tokenizer-model mock-data split save load"
    " save-interval eval-interval eval-iters log-interval log-throughput tensorboard-dir"
    " tensorboard-queue-size wandb-project wandb-exp-name attention-backend rotary-percent"
    " train-samples lr-decay-samples lr-warmup-samples lr-warmup-fraction lr-decay-iters"
    " decoupled-lr decoupled-min-lr grad-reduce-in-bf16 cross-entropy-loss-fusion"
    " calculate-per-token-loss manual-gc empty-unused-memory-level exit-duration-in-mins"
    " fp8-amax-history-len fp8-amax-compute-algo fp8-param-gather data-cache-path"
    " tiktoken-pattern no-create-attention-mask-in-dataloader no-mmap-bin-files num-workers"
    " profile profile-step-start profile-step-end distributed-timeout-minutes no-load-optim"
    " no-load-rng no-save-optim no-position-embedding rampup-batch-size"
    " overlap-p2p-communication tp-comm-overlap";
/* Options of torchrun, and those that follow from others. */
static const char silent[] =
    " distributed-backend log-dir redirects tee master-addr master-port node-rank rdzv-id"
    " rdzv-backend rdzv-endpoint";

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
    wefti_translation *x;
    const wefti_option *open; /* the option whose value comes next */
    int line;                 /* of that option */
} option_reader;

static bool same_name(const char *word, size_t length, const char *name) {
    for (size_t i = 0; i < length; i++)
        if ((word[i] == '_' ? '-' : word[i]) != name[i]) return false;
    return !name[length] || name[length] == ' ';
}

/* The place of a name in a list, in which each has a space before it. '_' and '-' are the same.
 * NULL: the list lacks it. */
static const char *find_name(const char *list, const char *word, size_t length) {
    for (const char *at = list; at && (at = strchr(at, ' ')); at++)
        if (same_name(word, length, at + 1)) return at + 1;
    return NULL;
}

/* `word` NULL: there is no value. */
static weft_status store(option_reader *r, const wefti_option *o, int line,
                         const wefti_shell_word *word) {
    char wanted[64];
    wefti_option_value *v = &r->x->values[o - r->x->system->options];
    v->given = true;
    if (o->form == WEFTI_OPTION_SWITCH) return WEFT_OK;
    WEFT_REQUIRE(word, WEFT_E_ARG, "%s:%d: --%s has no value", r->name, line, o->name);
    WEFT_REQUIRE(!word->unset, WEFT_E_ARG,
                 "%s:%d: --%s needs %s, which this text does not set: write its value there, or "
                 "take it from the environment (--import-env)",
                 r->name, line, o->name, word->unset);
    char *copy = wefti_arena_strdup(r->x->arena, word->text);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for options");
    WEFT_REQUIRE(wefti_option_parse(o, copy, v), WEFT_E_ARG,
                 "%s:%d: --%s is '%.60s', but must be %s", r->name, line, o->name, copy,
                 wefti_option_wanted(o, wanted));
    return WEFT_OK;
}

/* An option by its name or one of its aliases. */
static const wefti_option *find(const wefti_system *system, const char *name, size_t length) {
    for (int i = 0; i < system->count; i++) {
        const wefti_option *o = &system->options[i];
        if (same_name(name, length, o->name) || find_name(o->aliases, name, length)) return o;
    }
    return NULL;
}

static void leave(option_reader *r, const char *name) {
    char text[64];
    (void)snprintf(text, sizeof text, " --%.*s,", (int)strcspn(name, " "), name);
    wefti_text *left = &r->x->left;
    if (!left->data || !strstr(left->data, text)) wefti_text_add(left, "%s", text);
}

/* One option, "--name" or "--name=value". Words in quotes that need what is not set stay together:
 * "--name $value". */
static weft_status read_option(option_reader *r, const wefti_shell_word *w) {
    const char *name = w->text + 2, *sign = strpbrk(name, w->unset ? "= " : "=");
    const size_t length = sign ? (size_t)(sign - name) : strlen(name);
    const wefti_option *o = find(r->x->system, name, length);
    const char *other = find_name(ignored, name, length);
    if (other) {
        leave(r, other);
    } else if (!o) {
        if (!find_name(silent, name, length))
            wefti_text_add(r->x->notes, "--%.*s: not known to weft, ignored\n",
                           (int)(length < 60 ? length : 60), name);
    } else if (o->form == WEFTI_OPTION_SWITCH) {
        return store(r, o, w->line, NULL);
    } else if (sign) {
        const wefti_shell_word value = {sign + 1, w->unset, w->line};
        return store(r, o, w->line, &value);
    } else {
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
        const wefti_option *open = r->open;
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
    return wefti_whole_of(r->x, "num-layers", 0) || wefti_whole_of(r->x, "hidden-size", 0) ||
           wefti_whole_of(r->x, "num-attention-heads", 0);
}

weft_status wefti_megatron_read(const char *name, const char *text, int64_t bytes,
                                const char *const *variables, wefti_translation *x) {
    option_reader r = {.name = name, .x = x};
    const wefti_shell_script script = {.name = name,
                                       .text = text,
                                       .bytes = bytes,
                                       .variables = variables,
                                       .arena = x->arena,
                                       .notes = x->notes,
                                       .context = &r,
                                       .command = read_command,
                                       .enough = has_options};
    weft_status status = wefti_shell_read(&script);
    if (status >= 0 && r.open) status = store(&r, r.open, r.line, NULL);
    return status;
}
