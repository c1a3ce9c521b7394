/* `weft generate`: text from a checkpoint, written as it comes. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "weft/generate.h"

typedef struct generate_options {
    const char *prompt;
    int64_t tokens, top_k, seed, threads;
    double temperature;
    bool json;
} generate_options;

static const cli_option options[] = {
    {"prompt", "TEXT", CLI_TEXT, offsetof(generate_options, prompt), 0, 0,
     "text to go on from (empty)"},
    {"tokens", "N", CLI_INTEGER, offsetof(generate_options, tokens), 1, 1e9,
     "how many tokens to make at most (200)"},
    {"temperature", "X", CLI_REAL, offsetof(generate_options, temperature), 0, 100,
     "0: always the most likely token; higher: more variety (0.8)"},
    {"top-k", "K", CLI_INTEGER, offsetof(generate_options, top_k), 0, 1e9,
     "choose among the K most likely tokens; 0: all (0)"},
    {"seed", "S", CLI_INTEGER, offsetof(generate_options, seed), 0, 1e18,
     "the same seed gives the same text (0)"},
    {"threads", "N", CLI_INTEGER, offsetof(generate_options, threads), 1, 1024,
     "threads that compute (all cores)"},
    {"json", NULL, CLI_FLAG, offsetof(generate_options, json), 0, 0, "one JSON object at the end"},
    {0},
};

static volatile int stop_signal;
static void on_signal(int number) {
    stop_signal = number;
}

/* Where the text goes: to the stream at once, or (JSON) into memory. */
typedef struct sink {
    bool terminal, failed;
    bool keep;
    char *text;
    size_t used, capacity;
} sink;

static void write_text(void *context, const char *bytes, int64_t count) {
    sink *s = context;
    if (!s->keep) {
        for (int64_t i = 0; i < count; i++) {
            /* A model's output must not drive the terminal. */
            unsigned char byte = (unsigned char)bytes[i];
            bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
            fputc(s->terminal && control ? '?' : byte, stdout);
        }
        fflush(stdout);
        return;
    }
    if (s->used + (size_t)count + 1 > s->capacity) {
        size_t capacity = 2 * (s->used + (size_t)count + 1);
        char *text = realloc(s->text, capacity);
        if (!text) {
            s->failed = true;
            return;
        }
        s->text = text;
        s->capacity = capacity;
    }
    memcpy(s->text + s->used, bytes, (size_t)count);
    s->used += (size_t)count;
    s->text[s->used] = '\0';
}

static void print_json(const generate_options *o, const sink *s, const weft_generation *g) {
    cli_json json;
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "prompt", o->prompt);
    cli_json_bytes(&json, "text", s->text ? s->text : "", s->used);
    cli_json_integer(&json, "prompt_tokens", g->prompt_tokens);
    cli_json_integer(&json, "dropped_tokens", g->dropped_tokens);
    cli_json_integer(&json, "tokens", g->tokens);
    cli_json_bool(&json, "ended", g->ended);
    cli_json_real(&json, "prompt_seconds", g->prompt_seconds);
    cli_json_real(&json, "seconds", g->seconds);
    cli_json_end(&json);
}

static weft_status generate(const char *path, const generate_options *o) {
    weft_generator *generator;
    weft_status status = weft_generator_open(
        path, &(weft_generator_options){.threads = (int)o->threads}, &generator);
    if (status < 0) return status;
    sink s = {.keep = o->json, .terminal = cli_is_terminal(stdout)};
    weft_generation made = {0};
    weft_generate_options run = {.tokens = o->tokens,
                                 .temperature = o->temperature,
                                 .top_k = o->top_k,
                                 .seed = (uint64_t)o->seed,
                                 .context = &s,
                                 .text = write_text,
                                 .stop = &stop_signal};
    if (!o->json) printf("%s%s%s", cli_dim(stdout), o->prompt, cli_plain(stdout));
    status = weft_generator_run(generator, o->prompt, (int64_t)strlen(o->prompt), &run, &made);
    weft_generator_close(generator);
    if (!o->json) {
        printf("\n");
    } else if (status >= 0 && !s.failed) {
        print_json(o, &s, &made);
    }
    if (s.failed) fprintf(stderr, "weft: no memory for the text\n");
    free(s.text);
    if (status >= 0 && made.dropped_tokens)
        fprintf(stderr,
                "weft: the prompt is longer than the model's context; its first %lld tokens were "
                "left out\n",
                (long long)made.dropped_tokens);
    if (status >= 0 && s.terminal && made.seconds > 0)
        fprintf(stderr, "%s%lld tokens, %.0f tokens/s%s\n", cli_dim(stderr), (long long)made.tokens,
                (double)made.tokens / made.seconds, cli_plain(stderr));
    return status;
}

static int run(const cli_verb *verb, int count, char **words) {
    generate_options values = {.prompt = "", .tokens = 200, .temperature = 0.8};
    int code, left;
    if (!cli_parse(verb, count, words, &values, &left, &code)) return code;
    if (left != 1) return cli_usage(verb, "generate takes one checkpoint; there are %d", left);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (generate(words[0], &values) < 0) return cli_failed();
    return stop_signal ? 128 + stop_signal : CLI_DONE;
}

const cli_verb cli_generate = {
    .name = "generate",
    .summary = "make text with a trained language model",
    .usage = "generate CHECKPOINT [--prompt TEXT] [--tokens N] [--temperature X] [--top-k K] "
             "[--seed S] [--json]",
    .example = "weft generate run/ --prompt 'Once upon a time' --tokens 100 --temperature 0.7",
    .notes = "CHECKPOINT is a run's directory, one of its steps, or a Hugging Face directory.",
    .options = options,
    .run = run,
};
