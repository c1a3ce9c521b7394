/* Time to build and compile models. Equal cells are compiled once, so depth should cost next to
 * nothing, and programs for many devices little.
 *
 *   bench/compile [rounds]
 *
 * alternates GPT-2 of 12 and 96 layers. It prints medians, in milliseconds, of building the graph
 * and of compiling it (differentiation, fusion, kernels, placement), and their ratio.
 *
 *   bench/compile plans [rounds]
 *
 * builds the programs of all 64 devices for training GPT-3 175B (96 layers, hidden 12288, 96 heads,
 * 2048 tokens) under several plans, as a session does before its first step. All programs are alive
 * together; nothing runs. It prints the median time and the largest resident memory of the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "weft/weft.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench/compile: %s\n", weft_error_message());
    exit(1);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void once(int64_t layers, double *build, double *compile) {
    weft_model_config c = {
        .family = WEFT_FAMILY_GPT2, .layers = layers, .hidden = 768, .heads = 12, .vocab = 50257};
    weft_session_options o = weft_session_defaults();
    weft_graph *g;
    weft_session *s;
    double start = now();
    check(weft_model_build(&c, WEFT_USE_TRAIN, 4, 256, WEFT_F32, &g));
    *build = now() - start;
    start = now();
    check(weft_session_create(g, &o, &s));
    *compile = now() - start;
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* ---- plans for many devices ---- */

typedef struct deployment {
    const char *name;
    int data, tensor, stages, microbatches, level;
} deployment;

static weft_plan *plan_of(const deployment *d) {
    weft_plan *plan;
    check(weft_plan_create(d->data * d->tensor * d->stages, &plan));
    check(weft_plan_axis(plan, "dp", d->data));
    check(weft_plan_axis(plan, "tp", d->tensor));
    check(weft_plan_split_op(plan, "h.*.attn.c_attn", "n1=tp"));
    check(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
    check(weft_plan_split_op(plan, "*.wte:linear", "n0=tp"));
    check(weft_plan_split_tensor(plan, "wte.weight", "[tp, -]"));
    check(weft_plan_optimizer(plan, d->level, 0, 0));
    if (d->stages > 1)
        check(weft_plan_pipeline(plan, d->stages, d->microbatches, WEFT_PIPELINE_1F1B, 1));
    return plan;
}

static double all_programs(const deployment *d) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 96,
                           .hidden = 12288,
                           .heads = 96,
                           .context = 2048,
                           .vocab = 50257};
    weft_session_options o = weft_session_defaults();
    weft_graph *g;
    weft_session *s;
    weft_plan *plan = plan_of(d);
    double start = now();
    check(weft_model_build(&c, WEFT_USE_TRAIN, 8, 2048, WEFT_F32, &g));
    o.plan = plan;
    o.microbatches = d->microbatches;
    check(weft_session_create(g, &o, &s));
    double took = now() - start;
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    return took;
}

/* Runs in a process of its own, so that its memory is the memory of one plan. */
static void time_plan(const deployment *d, int rounds) {
    enum { MOST = 100 };
    double times[MOST];
    if (rounds > MOST) rounds = MOST;
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child == 0) {
        struct rusage usage;
        for (int r = 0; r < rounds; r++) times[r] = all_programs(d);
        qsort(times, (size_t)rounds, sizeof *times, compare);
        getrusage(RUSAGE_SELF, &usage);
        printf("%-44s %7.1f ms %7.1f MiB\n", d->name, times[rounds / 2],
               (double)usage.ru_maxrss / 1024);
        exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) exit(1);
}

static void time_plans(int rounds) {
    static const deployment deployments[] = {
        {"dp 8 x tp 8", 8, 8, 1, 1, 0},
        {"dp 8 x tp 8, optimizer level 3", 8, 8, 1, 1, 3},
        {"dp 2 x tp 8 x pp 4, 8 microbatches, 1f1b", 2, 8, 4, 8, 0},
        {"dp 2 x tp 8 x pp 4, 32 microbatches, level 1", 2, 8, 4, 32, 1},
    };
    for (size_t i = 0; i < sizeof deployments / sizeof *deployments; i++)
        time_plan(&deployments[i], rounds);
}

static void time_depths(int rounds) {
    enum { MOST = 1000 };
    static double times[4][MOST];
    static const int64_t layers[2] = {12, 96};
    if (rounds > MOST) rounds = MOST;
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < 2; k++) once(layers[k], &times[2 * k][r], &times[2 * k + 1][r]);
    for (int i = 0; i < 4; i++) qsort(times[i], (size_t)rounds, sizeof(double), compare);
    int mid = rounds / 2;
    for (int k = 0; k < 2; k++)
        printf("%3d layers: build %.3f ms, compile %.3f ms\n", (int)layers[k], times[2 * k][mid],
               times[2 * k + 1][mid]);
    printf("ratio of build + compile: %.2f\n",
           (times[2][mid] + times[3][mid]) / (times[0][mid] + times[1][mid]));
}

int main(int argc, char **argv) {
    bool plans = argc > 1 && !strcmp(argv[1], "plans");
    const char *text = argc > 1 + plans ? argv[1 + plans] : "0";
    int rounds = atoi(text);
    if (rounds < 1) rounds = plans ? 5 : 51;
    if (plans)
        time_plans(rounds);
    else
        time_depths(rounds);
    return 0;
}
