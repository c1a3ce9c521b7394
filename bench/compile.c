/* Time to build and compile GPT-2 models of different depths: cells of equal structure are compiled
 * once, so that depth should cost next to nothing.
 *
 *     bench/compile [rounds]
 *
 * Alternates 12 and 96 layers; prints medians of building the graph and of compiling it
 * (differentiation, fusion, kernels, placement), in milliseconds, and their ratio. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

int main(int argc, char **argv) {
    enum { MOST = 1000 };
    static double times[4][MOST];
    static const int64_t layers[2] = {12, 96};
    int rounds = argc > 1 ? atoi(argv[1]) : 51;
    if (rounds < 1 || rounds > MOST) rounds = 51;
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < 2; k++) once(layers[k], &times[2 * k][r], &times[2 * k + 1][r]);
    for (int i = 0; i < 4; i++) qsort(times[i], (size_t)rounds, sizeof(double), compare);
    int mid = rounds / 2;
    for (int k = 0; k < 2; k++)
        printf("%3d layers: build %.3f ms, compile %.3f ms\n", (int)layers[k], times[2 * k][mid],
               times[2 * k + 1][mid]);
    printf("ratio of build + compile: %.2f\n",
           (times[2][mid] + times[3][mid]) / (times[0][mid] + times[1][mid]));
    return 0;
}
