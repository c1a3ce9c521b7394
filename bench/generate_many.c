/* Many prompts at once against one after the other.
 *
 *     bench/generate_many [--prompts 32] [--shortest 8] [--longest 128] [--tokens 64]
 *                         [--threads 0] [--rounds 3] [--layers 12] [--hidden 768] [--heads 12]
 *                         [--vocab 50257] [--checkpoint DIR]
 *
 * The model is a GPT-2 of the given size with random weights, or a checkpoint with its tokenizer.
 * Prompts have random bytes. Their lengths lie evenly between the shortest and the longest one,
 * and are mixed. All texts are greedy. The two ways take turns.
 *
 * Prints one JSON object. Seconds and CPU seconds are medians of the rounds. `equal_texts` counts
 * the prompts with the same text in both ways: random weights have near ties. */
#include "../tests/infer/saved_model.h"
#include "base/io.h"
#include "stepper.h"

enum { MOST_PROMPTS = 1024, MOST_BYTES = 4096, MOST_ROUNDS = 64 };

typedef struct bench {
    int64_t count, shortest, longest, tokens;
    int threads, rounds;
    weft_model_config model;
    const char *checkpoint;
    weft_prompt prompts[MOST_PROMPTS];
    char bytes[MOST_PROMPTS + MOST_BYTES];
    char *text[2][MOST_PROMPTS]; /* of the two ways */
    int64_t used[2][MOST_PROMPTS];
    int64_t now;
} bench;

static void make_prompts(bench *b) {
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof b->bytes; i++) {
        random = random * 1664525u + 1013904223u;
        b->bytes[i] = (char)('a' + (random >> 16) % 26);
    }
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t step = b->count > 1 ? i * (b->longest - b->shortest) / (b->count - 1) : 0;
        const int64_t mixed = i * 7 % b->count; /* lengths in no order */
        b->prompts[mixed] =
            (weft_prompt){.text = b->bytes + i, .bytes = b->shortest + step, .tokens = b->tokens};
    }
}

static void keep(bench *b, int way, int64_t n, const char *bytes, int64_t count) {
    memcpy(b->text[way][n] + b->used[way][n], bytes, (size_t)count);
    b->used[way][n] += count;
}
static void take_one(void *context, const char *bytes, int64_t count) {
    bench *b = context;
    keep(b, 0, b->now, bytes, count);
}
static void take_many(void *context, const weft_generated *made) {
    keep(context, 1, made->prompt, made->text, made->bytes);
}

static void in_turn(bench *b, weft_generator *g) {
    for (b->now = 0; b->now < b->count; b->now++) {
        const weft_generate_options o =
            WEFT_STRUCT(weft_generate_options, .tokens = b->tokens, .context = b, .text = take_one);
        const weft_prompt *p = &b->prompts[b->now];
        b->used[0][b->now] = 0;
        stepper_check(weft_generator_run(g, p->text, p->bytes, &o, NULL));
    }
}
static void at_once(bench *b, weft_generator *g) {
    const weft_generate_options o =
        WEFT_STRUCT(weft_generate_options, .tokens = b->tokens, .context = b);
    memset(b->used[1], 0, sizeof b->used[1]);
    stepper_check(weft_generator_run_many(g, b->prompts, b->count, &o, take_many));
}

static void open_generators(const bench *b, const char *checkpoint, const char *tokenizer,
                            weft_generator *out[2]) {
    weft_generator_options o =
        WEFT_STRUCT(weft_generator_options, .threads = b->threads, .tokenizer = tokenizer);
    stepper_check(weft_generator_open(checkpoint, &o, &out[0]));
    o.rows = b->count;
    o.prompts = b->prompts;
    o.prompt_count = b->count;
    stepper_check(weft_generator_open(checkpoint, &o, &out[1]));
}

/* The two ways take turns. */
static void measure(bench *b, weft_generator *g[2]) {
    double seconds[2][MOST_ROUNDS], cpus[2][MOST_ROUNDS];
    int equal = 0;
    for (int r = 0; r < b->rounds; r++)
        for (int way = 0; way < 2; way++) {
            const double start = stepper_now(), before = stepper_cpu();
            (way ? at_once : in_turn)(b, g[way]);
            seconds[way][r] = stepper_now() - start;
            cpus[way][r] = stepper_cpu() - before;
        }
    for (int64_t i = 0; i < b->count; i++)
        equal += b->used[0][i] == b->used[1][i] &&
                 !memcmp(b->text[0][i], b->text[1][i], (size_t)b->used[0][i]);
    const double one = stepper_median(seconds[0], b->rounds),
                 many = stepper_median(seconds[1], b->rounds),
                 cpu_one = stepper_median(cpus[0], b->rounds),
                 cpu_many = stepper_median(cpus[1], b->rounds);
    printf("{\"prompts\": %lld, \"tokens\": %lld, \"one_after_the_other_s\": %.3f, "
           "\"at_once_s\": %.3f, \"ratio\": %.2f, \"one_after_the_other_cpu_s\": %.3f, "
           "\"at_once_cpu_s\": %.3f, \"cpu_ratio\": %.2f, \"equal_texts\": %d}\n",
           (long long)b->count, (long long)b->tokens, one, many, one / many, cpu_one, cpu_many,
           cpu_one / cpu_many, equal);
}

static void write_random_model(const weft_model_config *config, const char *run) {
    weft_session_options o = weft_session_defaults();
    weft_graph *graph;
    weft_session *s;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    stepper_check(weft_model_build(config, WEFT_USE_LOGITS, 1, 1, WEFT_F32, &graph));
    stepper_check(weft_session_create(graph, &o, &s));
    stepper_check(saved_model_write(s, config, run, 1, NULL));
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

static const char *model_at(const bench *b, char *run, size_t bytes) {
    weft_model_config c = b->model;
    if (b->checkpoint) return b->checkpoint;
    c.family = WEFT_FAMILY_GPT2;
    c.context = 1024;
    (void)snprintf(run, bytes, "/tmp/weft-generate-many-XXXXXX");
    if (!mkdtemp(run)) exit(1);
    stepper_check(weft_model_complete(&c));
    write_random_model(&c, run);
    return run;
}

int main(int argc, char **argv) {
    static bench b = {.count = 32,
                      .shortest = 8,
                      .longest = 128,
                      .tokens = 64,
                      .rounds = 3,
                      .model = {.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257}};
    const stepper_option options[] = {
        {"--prompts", STEPPER_LONG, &b.count},         {"--shortest", STEPPER_LONG, &b.shortest},
        {"--longest", STEPPER_LONG, &b.longest},       {"--tokens", STEPPER_LONG, &b.tokens},
        {"--threads", STEPPER_INT, &b.threads},        {"--rounds", STEPPER_INT, &b.rounds},
        {"--checkpoint", STEPPER_TEXT, &b.checkpoint}, {"--layers", STEPPER_LONG, &b.model.layers},
        {"--hidden", STEPPER_LONG, &b.model.hidden},   {"--heads", STEPPER_LONG, &b.model.heads},
        {"--vocab", STEPPER_LONG, &b.model.vocab},     {NULL, STEPPER_FLAG, NULL}};
    stepper unused = {0};
    char run[64];
    weft_generator *g[2];
    if (!stepper_read(&unused, options, argc, argv)) return 2;
    if (b.count < 1 || b.count > MOST_PROMPTS || b.rounds < 1 || b.rounds > MOST_ROUNDS ||
        b.shortest < 1 || b.longest < b.shortest || b.longest > MOST_BYTES || b.tokens < 1) {
        fprintf(stderr, "%s: a number is out of range\n", argv[0]);
        return 2;
    }
    make_prompts(&b);
    for (int64_t i = 0; i < b.count; i++) {
        const size_t room = (size_t)b.tokens * 64;
        b.text[0][i] = malloc(room);
        b.text[1][i] = malloc(room);
    }
    open_generators(&b, model_at(&b, run, sizeof run), b.checkpoint ? NULL : "bytes", g);
    measure(&b, g);
    weft_generator_close(g[0]);
    weft_generator_close(g[1]);
    if (!b.checkpoint) stepper_check(wefti_remove_tree(run));
    return 0;
}
