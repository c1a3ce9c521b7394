/* `weft generate`: text from a trained model. */
#include "cli/infer/generate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/infer/trained.h"
#include "weft/checkpoint.h"

#define GENERATE_AT(field) offsetof(cli_generate_options, field)
static const cli_option options[] = {
    {"prompt", "TEXT", CLI_PROSE, GENERATE_AT(prompt), 0, 0, "begin of the text; - reads it"},
    {"prompts", "FILE", CLI_TEXT, GENERATE_AT(prompts), 0, 0,
     "JSON lines, each with \"prompt\", and \"id\", \"tokens\" or \"seed\""},
    {"rows", "N", CLI_INTEGER, GENERATE_AT(rows), 1, 4096,
     "texts of --prompts that are made at once (32)"},
    {"tokens", "N", CLI_INTEGER, GENERATE_AT(tokens), 1, 1e9, "tokens to make at most (200)"},
    {"temperature", "X", CLI_REAL, GENERATE_AT(temperature), 0, 1e6,
     "below 1 surer, above 1 bolder, 0 always the likeliest (0.8)"},
    {"top-k", "K", CLI_INTEGER, GENERATE_AT(top_k), 0, 1e9,
     "choose among the K likeliest, 0 all (40)"},
    {"top-p", "P", CLI_REAL, GENERATE_AT(top_p), 1e-6, 1,
     "among the fewest likeliest that make up this share, 1 all (1)"},
    {"min-p", "P", CLI_REAL, GENERATE_AT(min_p), 0, 1,
     "among those this fraction as likely as the likeliest, 0 all (0)"},
    {"repetition-penalty", "X", CLI_REAL, GENERATE_AT(repetition_penalty), 1e-6, 1e6,
     "above 1 avoids tokens of the prompt and the text, 1 none (1)"},
    {"stop", "TEXT", CLI_TEXTS, GENERATE_AT(stop), 0, 0,
     "end behind this text; may be given several times"},
    {"seed", "S", CLI_INTEGER, GENERATE_AT(seed), 0, 9e15, "the same seed gives the same text (0)"},
    {"threads", "N", CLI_INTEGER, GENERATE_AT(threads), 0, 1024, "0: all cores (0)"},
    {"devices", "N", CLI_INTEGER, GENERATE_AT(devices), 1, INT32_MAX,
     "divide the model's heads over N devices, which share the cores"},
    {"plan", "FILE", CLI_TEXT, GENERATE_AT(plan), 0, 0, "split the model by this plan"},
    {"precision", "NAME", CLI_TEXT, GENERATE_AT(precision), 0, 0,
     "f32, or bf16: half the memory, and less time for a token (f32)"},
    {"tokenizer", "FILE", CLI_TEXT, GENERATE_AT(tokenizer), 0, 0,
     "bytes, or a tokenizer.json (the checkpoint's)"},
    {"key", "FILE", CLI_TEXT, GENERATE_AT(key), 0, 0,
     "the key of an encrypted checkpoint, or env:NAME"},
    {"json", NULL, CLI_FLAG, GENERATE_AT(json), 0, 0, "one JSON object"},
    {0},
};

/* A growing text. Out of memory is remembered in `failed`. */
typedef struct buffer {
    char *data;
    size_t used, capacity;
    bool failed;
} buffer;

static bool make_room(buffer *b, size_t bytes) {
    if (b->failed || b->used + bytes + 1 <= b->capacity) return !b->failed;
    size_t capacity = (b->used + bytes + 1) * 2;
    char *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

static void add(buffer *b, const char *text, size_t bytes) {
    if (!make_room(b, bytes)) return;
    memcpy(b->data + b->used, text, bytes);
    b->used += bytes;
    b->data[b->used] = '\0';
}

static bool read_stdin(buffer *b) {
    size_t got = 1;
    while (got > 0 && make_room(b, 65536)) {
        got = fread(b->data + b->used, 1, 65536, stdin);
        b->used += got;
    }
    if (b->failed || ferror(stdin)) {
        (void)cli_complain("cannot read the prompt: %s", b->failed ? "no memory" : strerror(errno));
        return false;
    }
    return true;
}

/* JSON is UTF-8 without NUL, but a model of bytes may write any bytes. */
static void add_valid(buffer *to, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
        size_t length = cli_character((const unsigned char *)text + i, bytes - i);
        if (length && text[i])
            add(to, text + i, length);
        else
            add(to, "\xEF\xBF\xBD", 3);
        i += length ? length : 1;
    }
}

typedef struct output {
    buffer text;
    bool json;
    unsigned char last; /* byte that was shown */
} output;

/* Writes the text while it is generated. */
static void show(void *context, const char *bytes, int64_t count) {
    output *o = context;
    if (o->json) {
        add(&o->text, bytes, (size_t)count);
        return;
    }
    cli_say_piece(stdout, bytes, (size_t)count, &o->last);
    fflush(stdout);
}

static void print_json(const weft_generator_info *info, const buffer *prompt, const output *o,
                       const weft_generation *done, const cli_texts *stop) {
    cli_json json;
    buffer clean = {0}, before = {0};
    add_valid(&before, prompt->data, prompt->used);
    add_valid(&clean, o->text.data, o->text.used);
    cli_json_begin(&json, stdout);
    cli_json_text(&json, "checkpoint", info->path);
    cli_json_text(&json, "prompt", before.data ? before.data : "");
    cli_json_text(&json, "text", clean.data ? clean.data : "");
    cli_json_integer(&json, "prompt_tokens", done->prompt_tokens);
    cli_json_integer(&json, "dropped_tokens", done->dropped_tokens);
    cli_json_integer(&json, "tokens", done->tokens);
    cli_json_bool(&json, "ended", done->ended);
    cli_json_text(&json, "stop", done->stop_text < 0 ? NULL : stop->items[done->stop_text]);
    cli_json_real(&json, "prompt_seconds", done->prompt_seconds);
    cli_json_real(&json, "seconds", done->seconds);
    cli_json_end(&json);
    free(before.data);
    free(clean.data);
}

static void print_end(const weft_generation *done) {
    cli_say(stdout, "\n");
    fflush(stdout);
    if (!cli_is_terminal(stderr)) return;
    cli_say_dim(stderr, "%lld tokens, %.1f tokens/s%s", (long long)done->tokens,
                done->seconds > 0 ? (double)done->tokens / done->seconds : 0.0,
                done->ended ? ", the text ended" : "");
    cli_say(stderr, "\n");
}

void cli_generator_notes(const weft_generator *g) {
    const char *line = weft_generator_info_of(g).note;
    for (size_t bytes; line && *line; line += bytes + (line[bytes] == '\n')) {
        bytes = strcspn(line, "\n");
        cli_say(stderr, "weft: note: %.*s\n", (int)bytes, line);
    }
}

weft_generate_options cli_generate_how(const cli_generate_options *values) {
    return WEFT_STRUCT(
        weft_generate_options, .tokens = values->tokens, .temperature = values->temperature,
        .top_k = values->top_k, .top_p = values->top_p, .min_p = values->min_p,
        .repetition_penalty = values->repetition_penalty, .stop_texts = values->stop.items,
        .stop_count = values->stop.count, .seed = (uint64_t)values->seed);
}

/* Of several processes, rank 0 has the prompt and shows the text. */
static int generate_one(weft_world *world, const weft_plan *plan, const char *checkpoint,
                        const cli_generate_options *values, const buffer *prompt) {
    output o = {.json = values->json};
    weft_generator *g;
    weft_generation done;
    const int rank = world ? weft_world_rank(world) : 0;
    /* Room for every token of the prompt (see weft_tokenizer_encode), of its beginning, and of the
     * text. */
    weft_generator_options open = WEFT_STRUCT(
        weft_generator_options, .threads = (int)values->threads, .tokenizer = values->tokenizer,
        .devices = (int)values->devices, .plan = plan, .world = world, .precision = values->dtype,
        .memory = values->memory, .context = 4 * (int64_t)prompt->used + 68 + values->tokens);
    weft_generate_options how = cli_generate_how(values);
    how.context = &o;
    how.text = rank == 0 ? show : NULL;
    if (weft_generator_open(checkpoint, &open, &g) < 0) return cli_failed_rank(rank);
    cli_generator_notes(g);
    if (!values->json && rank == 0)
        show(&o, prompt->data ? prompt->data : "", (int64_t)prompt->used);
    weft_status status = weft_generator_run(g, prompt->data, (int64_t)prompt->used, &how, &done);
    weft_generator_info info = weft_generator_info_of(g);
    int code = CLI_DONE;
    if (status < 0) {
        if (!values->json && rank == 0) cli_say(stdout, "\n");
        code = cli_failed_rank(rank);
    } else if (rank > 0) {
        code = CLI_DONE;
    } else if (o.text.failed) {
        code = cli_complain("no memory for the text");
    } else {
        if (values->json)
            print_json(&info, prompt, &o, &done, &values->stop);
        else
            print_end(&done);
        if (done.dropped_tokens)
            cli_say(stderr,
                    "weft: the prompt is longer than the model's context of %lld tokens: its "
                    "first %lld tokens were left out\n",
                    (long long)info.config.context, (long long)done.dropped_tokens);
    }
    free(o.text.data);
    weft_generator_close(g);
    return code;
}

static int generate(weft_world *world, const weft_plan *plan, const char *checkpoint,
                    const cli_generate_options *values, const buffer *prompt) {
    return values->prompts ? cli_generate_many(world, plan, checkpoint, values)
                           : generate_one(world, plan, checkpoint, values, prompt);
}

static int generate_across(const weft_launcher *launcher, const weft_plan *plan,
                           const char *checkpoint, const cli_generate_options *values,
                           const buffer *prompt) {
    weft_world *world;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .links = "", .identity = "program = weft generate");
    const weft_status joined = weft_world_join(&options, &world);
    if (joined < 0) return cli_failed_to_join(launcher->rank, joined);
    int code = generate(world, plan, checkpoint, values, prompt);
    return cli_leave(world, code);
}

/* With the prompt: reads the plan, and finds the processes. */
static int generate_on(const weft_launcher *launcher, const char *checkpoint,
                       const cli_generate_options *values, const buffer *prompt) {
    weft_plan *plan = NULL;
    if (values->key && weft_checkpoint_key(values->key) < 0) return cli_failed_rank(launcher->rank);
    if (values->plan && weft_plan_load(values->plan, &plan) < 0)
        return cli_failed_rank(launcher->rank);
    int code = launcher->name && launcher->size > 1
                   ? generate_across(launcher, plan, checkpoint, values, prompt)
                   : generate(NULL, plan, checkpoint, values, prompt);
    weft_plan_destroy(plan);
    return code;
}

static bool read_precision(cli_generate_options *values) {
    const char *name = values->precision;
    values->dtype = name && !strcmp(name, weft_dtype_text(WEFT_BF16)) ? WEFT_BF16 : WEFT_F32;
    return !name || !strcmp(name, weft_dtype_text(values->dtype));
}

static int run_words(const cli_verb *verb, int count, char **words, cli_generate_options *values) {
    int code, left;
    if (!cli_parse(verb, count, words, values, &left, &code)) return code;
    if (left == 0) return cli_usage(verb, "generate needs a checkpoint");
    const cli_memory_words how = {
        .offload = true,
        .planned = values->plan != NULL,
        .place = "checkpoint",
        .hint = values->prompt || values->prompts ? "" : " (the prompt follows --prompt)"};
    code = cli_trained_memory(verb, left, words, how, &values->memory);
    if (code != CLI_DONE) return code;
    for (int i = 0; i < values->stop.count; i++)
        if (!*values->stop.items[i]) return cli_usage(verb, "--stop is empty");
    if (values->prompts && values->prompt)
        return cli_usage(verb, "--prompt and --prompts are two ways to give prompts");
    if (values->rows && !values->prompts) return cli_usage(verb, "--rows belongs to --prompts");
    if (!read_precision(values))
        return cli_usage(verb, "--precision is f32 or bf16, not '%s'", values->precision);
    if (!values->prompt) values->prompt = "";
    buffer prompt = {0};
    weft_launcher launcher;
    if ((code = cli_find_launcher(&launcher)) != CLI_DONE) return code;
    if (launcher.name && launcher.size > 1 && !strcmp(values->prompt, "-"))
        return cli_usage(verb, "several processes have no common standard input: give the prompt "
                               "itself");
    if (launcher.rank > 0) {
        /* rank 0 has it */
    } else if (values->prompts) {
        if (weft_prompts_read(values->prompts, &values->file) < 0) return cli_failed();
    } else if (!strcmp(values->prompt, "-")) {
        if (!read_stdin(&prompt)) {
            free(prompt.data);
            return CLI_FAILED;
        }
    } else {
        add(&prompt, values->prompt, strlen(values->prompt));
    }
    code = generate_on(&launcher, words[0], values, &prompt);
    free(prompt.data);
    weft_prompts_free(values->file);
    return code;
}

static int run(const cli_verb *verb, int count, char **words) {
    cli_generate_options values = {
        .tokens = 200, .top_k = 40, .temperature = 0.8, .top_p = 1, .repetition_penalty = 1};
    if (!cli_texts_create(&values.stop, count)) return CLI_FAILED;
    int code = run_words(verb, count, words, &values);
    weft_job_free(values.memory);
    cli_texts_free(&values.stop);
    return code;
}

const cli_verb cli_generate = {
    .name = "generate",
    .summary = "continue a text with a trained model",
    .usage = "generate CHECKPOINT [key=value ...] --prompt TEXT | --prompts FILE [--rows N] "
             "[--tokens N] "
             "[--temperature X] [--top-k K] "
             "[--top-p P] [--min-p P] [--repetition-penalty X] [--stop TEXT]... [--seed S] "
             "[--threads N] [--devices N] [--plan FILE] [--precision NAME] [--tokenizer FILE] "
             "[--json]",
    .example = "weft generate run/ --prompt 'To be, or' --tokens 100 --temperature 0.7",
    .notes =
        "CHECKPOINT is the directory of a run (its newest step is taken), one of its steps, or a\n"
        "Hugging Face directory of a gpt2 model, of llama or a family like it. Without a\n"
        "tokenizer.json there, a vocabulary of 256 means bytes. The options that choose tokens "
        "mean\n"
        "what they mean in transformers, and apply in its order: penalty, temperature, top-k, "
        "top-p,\n"
        "min-p. A text that --stop ends holds the stop text.\n"
        "--prompts makes one JSON object a line, in the order of the prompts.\n"
        "The keys memory.offload, memory.disk.path, memory.disk.size, memory.device, memory.host,\n"
        "device.memory and machine mean what they mean in a job.\n"
        "Started by weft launch, mpirun, srun or torchrun: one device for each process.",
    .options = options,
    .run = run,
};
