/* Training steps of GPT-2 124M (or another size), timed: the counterpart of
 * bench/peers/gpt2_torch.py.
 *
 *     bench/gpt2 [--batch 4] [--seq 256] [--precision f32|bf16] [--steps 8] [--warmup 2] [--threads
 * 2]
 *                [--layers 12] [--hidden 768] [--heads 12] [--vocab 50257] [--trace FILE]
 * [--interactive]
 *
 * Without --interactive: prints each step and, last, one JSON object. With it: the protocol of
 * bench/peers/stepper.py ("ready"; "step" -> seconds; "quit" -> JSON), so that two programs can
 * take turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "weft/weft.h"

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench/gpt2: %s\n", weft_error_message());
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double process_age(void) {
    const char *t0 = getenv("WEFT_T0");
    struct timespec t;
    if (t0) {
        clock_gettime(CLOCK_REALTIME, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - atof(t0);
    }
    FILE *f = fopen("/proc/self/stat", "r");
    char text[2048];
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    clock_gettime(CLOCK_BOOTTIME, &t);
    double started = at ? (double)strtoull(at, NULL, 10) / (double)sysconf(_SC_CLK_TCK) : 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - started;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct bench {
    weft_session *s;
    int64_t batch, seq, vocab;
    int32_t *tokens, *targets;
    uint32_t state;
    double first, loss, seconds[4096];
    int steps, warmup;
} bench;

static double step(bench *b) {
    size_t bytes = (size_t)(b->batch * b->seq) * 4;
    double start = now(), loss;
    for (int64_t i = 0; i < b->batch * b->seq; i++) {
        b->state = b->state * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((b->state >> 8) % (uint32_t)b->vocab);
        b->targets[i] = (int32_t)((b->state >> 4) % (uint32_t)b->vocab);
    }
    check(weft_session_feed(b->s, 0, "tokens", b->tokens, bytes));
    check(weft_session_feed(b->s, 0, "targets", b->targets, bytes));
    check(weft_session_step(b->s, 3e-4, &loss));
    b->loss = loss;
    double took = now() - start;
    if (b->steps == 0) b->first = process_age();
    if (b->steps < 4096) b->seconds[b->steps++] = took;
    return took;
}

static void report(const bench *b, const char *precision) {
    double sorted[4096];
    int n = b->steps - b->warmup;
    if (n < 1) n = b->steps;
    memcpy(sorted, b->seconds + (b->steps - n), (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    double median = n ? sorted[n / 2] : 0;
    weft_session_memory m = weft_session_memory_of(b->s);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"program\": \"weft\", \"precision\": \"%s\", \"batch\": %lld, \"seq\": %lld, "
           "\"tokens_per_second\": %.1f, \"median_seconds\": %.4f, \"min_seconds\": %.4f, "
           "\"first_step_seconds\": %.3f, \"flops_per_step\": %.6g, \"gflops_per_second\": %.1f, "
           "\"peak_rss_bytes\": %lld, \"predicted_peak_bytes\": %lld, \"observed_peak_bytes\": "
           "%lld}\n",
           precision, (long long)b->batch, (long long)b->seq,
           median > 0 ? (double)(b->batch * b->seq) / median : 0, median, n ? sorted[0] : 0,
           b->first, m.forward_flops + m.backward_flops,
           median > 0 ? (m.forward_flops + m.backward_flops) / median / 1e9 : 0,
           (long long)usage.ru_maxrss * 1024, (long long)m.predicted_peak_bytes,
           (long long)m.observed_peak_bytes);
    fflush(stdout);
}

int main(int argc, char **argv) {
    weft_model_config c = {
        .family = WEFT_FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12, .vocab = 50257};
    static bench b = {.batch = 4, .seq = 256, .warmup = 2, .state = 1};
    const char *precision = "f32", *trace = NULL;
    int steps = 8, interactive = 0;
    weft_session_options o = weft_session_defaults();
    for (int i = 1; i < argc; i++) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(key, "--interactive")) {
            interactive = 1;
            continue;
        }
        if (!strcmp(key, "--json")) continue;
        if (!strcmp(key, "--batch"))
            b.batch = atoll(value);
        else if (!strcmp(key, "--seq"))
            b.seq = atoll(value);
        else if (!strcmp(key, "--precision"))
            precision = value;
        else if (!strcmp(key, "--steps"))
            steps = atoi(value);
        else if (!strcmp(key, "--warmup"))
            b.warmup = atoi(value);
        else if (!strcmp(key, "--threads"))
            o.threads = atoi(value);
        else if (!strcmp(key, "--layers"))
            c.layers = atoll(value);
        else if (!strcmp(key, "--hidden"))
            c.hidden = atoll(value);
        else if (!strcmp(key, "--heads"))
            c.heads = atoll(value);
        else if (!strcmp(key, "--vocab"))
            c.vocab = atoll(value);
        else if (!strcmp(key, "--bf16"))
            o.bf16 = !strcmp(value, "native") ? WEFT_BF16_NATIVE
                     : !strcmp(value, "f32")  ? WEFT_BF16_AS_F32
                                              : WEFT_BF16_AUTO;
        else if (!strcmp(key, "--trace"))
            trace = value;
        else
            return fprintf(stderr, "bench/gpt2: unknown option %s\n", key), 2;
        i++;
    }
    c.context = b.seq > 1024 ? b.seq : 1024;
    b.vocab = c.vocab;
    weft_graph *g;
    weft_dtype dtype = strcmp(precision, "bf16") ? WEFT_F32 : WEFT_BF16;
    check(weft_model_build(&c, WEFT_USE_TRAIN, b.batch, b.seq, dtype, &g));
    check(weft_session_create(g, &o, &b.s));
    b.tokens = malloc((size_t)(b.batch * b.seq) * 4);
    b.targets = malloc((size_t)(b.batch * b.seq) * 4);
    if (!b.tokens || !b.targets) return 1;
    if (interactive) {
        char line[64];
        printf("ready\n");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4)) {
            printf("%.6f\n", step(&b));
            fflush(stdout);
        }
    } else {
        for (int i = 0; i < steps + b.warmup; i++) {
            if (trace && i == b.warmup) check(weft_session_trace(b.s, trace));
            {
                double took = step(&b);
                printf("step %d %.4f s, loss %.6f\n", i, took, b.loss);
            }
            fflush(stdout);
        }
    }
    report(&b, precision);
    weft_session_destroy(b.s);
    weft_graph_destroy(g);
    free(b.tokens);
    free(b.targets);
    return 0;
}
