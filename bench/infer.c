/* Decoding against the rate of reading memory, and prompts against weft's own matrix products.
 *
 *     bench/infer [--model gpt2|llama1b|both] [--precision f32|bf16|both] [--threads 0]
 *                 [--tokens 64] [--prompt 512] [--piece 512] [--rounds 5] [--layers N] [--devices
 * 1]
 *
 * gpt2 is GPT-2 124M. llama1b has 22 layers, hidden 2048, 32 heads, 4 heads of keys, ffn 5632 and
 * 32000 tokens. --layers makes a smaller one. --devices splits heads and products over as many
 * devices of the process, as weft generate does. Weights are random. In bf16, tables, weights of
 * products, caches and activations are bf16.
 *
 * All parts of a round see the same load of the machine. First the same number of threads read an
 * array as large as the weights. Then tokens are decoded one by one behind the prompt. Then as many
 * times the products of a token are made, and nothing else. Then a
 * prompt is computed in pieces, each with the logits of its last token. At the end square matrices
 * are multiplied.
 *
 * Prints one JSON object for each model and precision. Its figures are medians of the rounds. */
#include <pthread.h>

#include "stepper.h"

#include "infer/generator.h"

enum { INFER_ROUNDS = 64, INFER_THREADS = 256, SQUARE = 1536 };

typedef struct bench {
    const char *model, *precision;
    int threads, rounds, devices;
    int64_t tokens, prompt, piece, layers;
} bench;

/* ---- reading ---- */

typedef struct part {
    const float *data;
    int64_t count;
    float sum;
} part;

static void *read_part(void *context) {
    enum { LANES = 64 }; /* independent sums, so that the loads are the limit */
    part *p = context;
    float sums[LANES] = {0};
    for (int64_t i = 0; i + LANES <= p->count; i += LANES)
        for (int k = 0; k < LANES; k++) sums[k] += p->data[i + k];
    for (int k = 0; k < LANES; k++) p->sum += sums[k];
    return NULL;
}

/* Bytes per second at which the threads read the array. */
static double read_rate(const float *data, int64_t bytes, int threads) {
    part parts[INFER_THREADS];
    pthread_t ids[INFER_THREADS];
    const int64_t each = bytes / 4 / threads;
    const double start = stepper_now();
    for (int t = 0; t < threads; t++) {
        parts[t] = (part){.data = data + t * each, .count = each};
        if (pthread_create(&ids[t], NULL, read_part, &parts[t])) exit(1);
    }
    volatile float sum = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(ids[t], NULL);
        sum = sum + parts[t].sum;
    }
    return (double)bytes / (stepper_now() - start);
}

/* ---- the model ---- */

typedef struct subject {
    weft_model_config config;
    weft_graph *graph, *piece_graph;
    weft_session *session;
    int32_t *ids, *positions;
    int64_t piece, weights;
    bool has_positions;
} subject;

static weft_model_config config_of(const bench *b, const char *name) {
    weft_model_config c = {
        .family = WEFT_FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12, .vocab = 50257};
    if (!strcmp(name, "llama1b"))
        c = (weft_model_config){.family = WEFT_FAMILY_LLAMA,
                                .layers = 22,
                                .hidden = 2048,
                                .heads = 32,
                                .kv_heads = 4,
                                .ffn = 5632,
                                .vocab = 32000};
    if (b->layers) c.layers = b->layers;
    c.context = b->prompt + b->tokens + 1;
    stepper_check(weft_model_complete(&c));
    return c;
}

static subject open_subject(const bench *b, const char *name, weft_dtype dtype) {
    weft_session_options o = weft_session_defaults();
    subject s = {.config = config_of(b, name), .piece = b->piece};
    weft_tensor_info info;
    int program;
    weft_plan *plan = NULL;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = b->threads;
    stepper_check(wefti_generator_plan(&s.config, NULL, b->devices, NULL, &plan));
    o.plan = plan;
    stepper_check(weft_model_build(&s.config, WEFT_USE_DECODE, 1, 1, dtype, &s.graph));
    stepper_check(weft_session_create(s.graph, &o, &s.session));
    weft_plan_destroy(plan);
    weft_model_config of_piece = s.config;
    of_piece.asked = 1; /* the logits of its last token, as text generation needs them */
    stepper_check(weft_model_build(&of_piece, WEFT_USE_DECODE, 1, b->piece, dtype, &s.piece_graph));
    stepper_check(weft_session_add(s.session, s.piece_graph, &program));
    s.has_positions = weft_session_find(s.session, 1, "positions", &info) == WEFT_OK;
    s.ids = malloc((size_t)b->piece * 4);
    s.positions = malloc((size_t)b->piece * 4);
    s.weights = weft_session_memory_of(s.session).parameter_bytes;
    return s;
}

static void close_subject(subject *s) {
    weft_session_destroy(s->session);
    weft_graph_destroy(s->graph);
    weft_graph_destroy(s->piece_graph);
    free(s->ids);
    free(s->positions);
}

/* Seconds of a prompt, in pieces. */
static double run_prompt(const bench *b, const subject *s) {
    const size_t bytes = (size_t)s->piece * 4;
    const int32_t last = (int32_t)s->piece - 1;
    const double start = stepper_now();
    for (int64_t at = 0; at + s->piece <= b->prompt; at += s->piece) {
        for (int64_t i = 0; i < s->piece; i++) {
            s->ids[i] = (int32_t)((at + i) * 7919 % s->config.vocab);
            s->positions[i] = (int32_t)(at + i);
        }
        stepper_check(weft_session_feed(s->session, 1, "tokens", s->ids, bytes));
        stepper_check(weft_session_feed(s->session, 1, "position", s->positions, 4));
        if (s->has_positions)
            stepper_check(weft_session_feed(s->session, 1, "positions", s->positions, bytes));
        stepper_check(weft_session_feed(s->session, 1, "asked", &last, 4));
        stepper_check(weft_session_forward(s->session, 1, NULL));
    }
    return stepper_now() - start;
}

/* Seconds of a token, behind the prompt. */
static double run_tokens(const bench *b, const subject *s) {
    const double start = stepper_now();
    for (int64_t i = 0; i < b->tokens; i++) {
        const int32_t token = (int32_t)(i * 31 % s->config.vocab),
                      position = (int32_t)(b->prompt + i);
        stepper_check(weft_session_feed(s->session, 0, "tokens", &token, 4));
        stepper_check(weft_session_feed(s->session, 0, "position", &position, 4));
        stepper_check(weft_session_forward(s->session, 0, NULL));
    }
    return (stepper_now() - start) / (double)b->tokens;
}

/* ---- products ---- */

static weft_session *open_square(const bench *b, weft_dtype dtype, weft_graph **out_graph) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    weft_graph *g;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = b->threads;
    stepper_check(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", WEFT_DESC(dtype, SQUARE, SQUARE));
    weft_value w = weft_param(g, "w", WEFT_DESC(dtype, SQUARE, SQUARE),
                              (weft_init){.kind = WEFT_INIT_NORMAL, .scale = 0.02});
    weft_output(g, "y", weft_linear(g, x, w, WEFT_NO_VALUE, false));
    stepper_check(weft_graph_status(g));
    stepper_check(weft_session_create(g, &o, &s));
    *out_graph = g;
    return s;
}

static double square_rate(weft_session *s, weft_dtype dtype) {
    const size_t bytes = (size_t)SQUARE * SQUARE * weft_dtype_bytes(dtype);
    void *zero = calloc(bytes, 1);
    stepper_check(weft_session_feed(s, 0, "x", zero, bytes));
    free(zero);
    const double start = stepper_now();
    stepper_check(weft_session_forward(s, 0, NULL));
    return 2.0 * SQUARE * SQUARE * SQUARE / (stepper_now() - start);
}

/* The products of a token and nothing else: what decoding could be if all the rest took no time. */
static weft_session *open_products(const bench *b, const weft_model_config *c, weft_dtype dtype,
                                   weft_graph **out_graph) {
    const bool gpt2 = c->family == WEFT_FAMILY_GPT2;
    const int64_t h = c->hidden, keys = gpt2 ? h : h / c->heads * c->kv_heads;
    const int64_t ffn = gpt2 ? 4 * h : c->ffn;
    const int64_t shapes[][2] = {{h, h + 2 * keys}, {h, h}, {h, gpt2 ? ffn : 2 * ffn}, {ffn, h}};
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    weft_graph *g;
    char name[32];
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.threads = b->threads;
    stepper_check(weft_graph_create(&g));
    const weft_value x = weft_input(g, "x", WEFT_DESC(dtype, 1, h)),
                     wide = weft_input(g, "wide", WEFT_DESC(dtype, 1, ffn));
    for (int i = 0; i <= 4 * (int)c->layers; i++) {
        const bool head = i == 4 * (int)c->layers, transposed = head || !gpt2;
        const int64_t in = head ? h : shapes[i % 4][0], out = head ? c->vocab : shapes[i % 4][1];
        (void)snprintf(name, sizeof name, "w%d", i);
        const weft_value w =
            weft_param(g, name, WEFT_DESC(dtype, transposed ? out : in, transposed ? in : out),
                       (weft_init){.kind = WEFT_INIT_NORMAL, .scale = 0.02});
        (void)snprintf(name, sizeof name, "y%d", i);
        weft_output(g, name, weft_linear(g, in == h ? x : wide, w, WEFT_NO_VALUE, transposed));
    }
    stepper_check(weft_graph_status(g));
    stepper_check(weft_session_create(g, &o, &s));
    *out_graph = g;
    return s;
}

/* Seconds of the products of a token. */
static double run_products(const bench *b, weft_session *s, int64_t hidden, int64_t ffn,
                           size_t each) {
    void *zero = calloc((size_t)ffn, each);
    const double start = stepper_now();
    for (int64_t i = 0; i < b->tokens; i++) {
        stepper_check(weft_session_feed(s, 0, "x", zero, (size_t)hidden * each));
        stepper_check(weft_session_feed(s, 0, "wide", zero, (size_t)ffn * each));
        stepper_check(weft_session_forward(s, 0, NULL));
    }
    const double seconds = (stepper_now() - start) / (double)b->tokens;
    free(zero);
    return seconds;
}

/* ---- all ---- */

static void measure(const bench *b, const char *name, const char *precision) {
    const weft_dtype dtype = strcmp(precision, "bf16") ? WEFT_F32 : WEFT_BF16;
    double reads[INFER_ROUNDS], tokens[INFER_ROUNDS], prompts[INFER_ROUNDS], squares[INFER_ROUNDS],
        cpus[INFER_ROUNDS], alone[INFER_ROUNDS];
    const int threads = b->threads ? b->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    subject s = open_subject(b, name, dtype);
    const int64_t ffn = s.config.family == WEFT_FAMILY_GPT2 ? 4 * s.config.hidden : s.config.ffn;
    weft_graph *square_graph, *products_graph;
    weft_session *square = open_square(b, dtype, &square_graph),
                 *of_token = open_products(b, &s.config, dtype, &products_graph);
    float *array = malloc((size_t)s.weights);
    if (!array) exit(1);
    /* not zeros: the system would map one page of zeros everywhere, and caches would serve it */
    for (int64_t i = 0; i < s.weights / 4; i++) array[i] = 1.0F;
    (void)run_prompt(b, &s); /* starts the session */
    (void)run_tokens(b, &s);
    (void)run_products(b, of_token, s.config.hidden, ffn, weft_dtype_bytes(dtype));
    for (int r = 0; r < b->rounds; r++) {
        reads[r] = read_rate(array, s.weights, threads);
        const double before = stepper_cpu();
        tokens[r] = run_tokens(b, &s);
        cpus[r] = (stepper_cpu() - before) / (double)b->tokens;
        alone[r] = run_products(b, of_token, s.config.hidden, ffn, weft_dtype_bytes(dtype));
        prompts[r] = run_prompt(b, &s);
        squares[r] = square_rate(square, dtype);
    }
    /* One row of the table of tokens is read, and a piece computes one row of the head. */
    const double each = (double)weft_dtype_bytes(dtype);
    const double table = each * (double)(s.config.vocab * s.config.hidden);
    const double read = (double)s.weights - (s.config.tied ? 0 : table);
    const double layers = (double)s.weights - (s.config.tied ? table : 2 * table);
    const double rate = stepper_median(reads, b->rounds), token = stepper_median(tokens, b->rounds),
                 prompt = stepper_median(prompts, b->rounds),
                 products = stepper_median(squares, b->rounds);
    printf("{\"model\": \"%s\", \"precision\": \"%s\", \"threads\": %d, \"devices\": %d, "
           "\"read_gb_s\": %.2f, "
           "\"tokens_s\": %.2f, \"of_read_rate\": %.3f, \"products_alone\": %.3f, "
           "\"cpu_s_of_a_token\": %.4f, "
           "\"prompt_s\": %.3f, \"matmul_gflops\": %.1f, \"of_matmul_rate\": %.3f}\n",
           name, precision, threads, b->devices, rate / 1e9, 1 / token, read / token / rate,
           read / stepper_median(alone, b->rounds) / rate, stepper_median(cpus, b->rounds), prompt,
           products / 1e9, layers / each * 2 * (double)b->prompt / prompt / products);
    fflush(stdout);
    free(array);
    weft_session_destroy(square);
    weft_session_destroy(of_token);
    weft_graph_destroy(square_graph);
    weft_graph_destroy(products_graph);
    close_subject(&s);
}

int main(int argc, char **argv) {
    bench b = {.model = "both",
               .precision = "both",
               .rounds = 5,
               .devices = 1,
               .tokens = 64,
               .prompt = 512,
               .piece = 512};
    const stepper_option options[] = {
        {"--model", STEPPER_TEXT, &b.model},    {"--precision", STEPPER_TEXT, &b.precision},
        {"--threads", STEPPER_INT, &b.threads}, {"--rounds", STEPPER_INT, &b.rounds},
        {"--tokens", STEPPER_LONG, &b.tokens},  {"--prompt", STEPPER_LONG, &b.prompt},
        {"--piece", STEPPER_LONG, &b.piece},    {"--layers", STEPPER_LONG, &b.layers},
        {"--devices", STEPPER_INT, &b.devices}, {NULL, STEPPER_FLAG, NULL}};
    static const char *const models[] = {"gpt2", "llama1b"}, *const precisions[] = {"f32", "bf16"};
    stepper unused = {0};
    if (!stepper_read(&unused, options, argc, argv)) return 2;
    if (b.rounds < 1 || b.rounds > INFER_ROUNDS || b.threads < 0 || b.threads > INFER_THREADS ||
        b.devices < 1 || b.tokens < 1 || b.piece < 2 || b.prompt < b.piece) {
        fprintf(stderr, "%s: a number is out of range\n", argv[0]);
        return 2;
    }
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 2; p++)
            if ((!strcmp(b.model, "both") || !strcmp(b.model, models[m])) &&
                (!strcmp(b.precision, "both") || !strcmp(b.precision, precisions[p])))
                measure(&b, models[m], precisions[p]);
    return 0;
}
