/* How long it takes to build the program of one rank: GPT-3 175B on 64 devices, 8 pipeline stages
 * of 8 devices that split each block's products, 32 microbatches. A dry build prepares no kernels.
 * Besides the wall time, CPU time of the thread: on a busy machine it varies less. Page faults are
 * those of the last build.
 * bench/build [RUNS [dry]] */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "builder/spec.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

enum { DEVICES = 64, STAGES = 8, MICROBATCHES = 32 };

#define CHECK(expr)                                                                                \
    do {                                                                                           \
        if ((expr) < 0) {                                                                          \
            fprintf(stderr, "build: %s\n", weft_error_message());                                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static weft_status make_plan(weft_plan **out) {
    static const char *const splits[][2] = {{"h.*.attn.c_attn", "n1=tp"},
                                            {"h.*.attn", "heads=tp"},
                                            {"h.*.attn.c_proj", "k=tp"},
                                            {"h.*.mlp.c_fc", "n0=tp"},
                                            {"h.*.mlp.c_proj", "k=tp"}};
    WEFT_TRY(weft_plan_create(DEVICES, out));
    WEFT_TRY(weft_plan_axis(*out, "tp", DEVICES / STAGES));
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        WEFT_TRY(weft_plan_split_op(*out, splits[i][0], splits[i][1]));
    return weft_plan_pipeline(*out, STAGES, MICROBATCHES, WEFT_PIPELINE_1F1B, 1);
}

static double cpu_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static long page_faults(void) {
    struct rusage use;
    (void)getrusage(RUSAGE_SELF, &use);
    return use.ru_minflt;
}

int main(int argc, char **argv) {
    const weft_model_config config = {.family = WEFT_FAMILY_GPT2,
                                      .layers = 96,
                                      .hidden = 12288,
                                      .heads = 96,
                                      .context = 2048,
                                      .vocab = 50304};
    const weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const int runs = argc > 1 ? atoi(argv[1]) : 20;
    const bool dry_only = argc > 2;
    weft_plan *plan;
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    CHECK(make_plan(&plan));
    CHECK(weft_model_build(&config, WEFT_USE_TRAIN, 1, 0, WEFT_BF16, &graph));
    CHECK(wefti_graph_wrap(graph));
    CHECK(wefti_optimizer_create(&adamw, 0, graph, &optimizer));
    CHECK(wefti_route_cache_create(&routes));
    for (int dry = 1; dry >= dry_only; dry--) {
        double first = 0, best = 0, best_cpu = 0, peak = 0, own = 0;
        long faults = 0;
        for (int k = 0; k < runs; k++) {
            const wefti_program_spec spec = {
                .graph = graph,
                .kind = wefti_kind_of(0),
                .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = dry},
                .optimizer = wefti_optimizer_plan_of(optimizer),
                .microbatches = MICROBATCHES,
                .plan = plan,
                .rank = DEVICES / 2, /* of a stage in the middle */
                .routes = routes};
            wefti_program *program;
            const int64_t begin = wefti_now_ns();
            const double cpu_begin = cpu_ms();
            faults = page_faults();
            CHECK(wefti_program_build(&spec, &program));
            faults = page_faults() - faults;
            const double cpu = cpu_ms() - cpu_begin;
            const double ms = (double)(wefti_now_ns() - begin) / 1e6;
            peak = (double)program->peak_bytes / (1 << 30);
            own = (double)program->program_bytes / (1 << 10);
            wefti_program_destroy(program);
            if (k == 0) first = ms;
            if (k == 0 || ms < best) best = ms;
            if (k == 0 || cpu < best_cpu) best_cpu = cpu;
        }
        printf("%s build: first %.2f ms, best of %d %.2f ms (CPU %.2f ms, %ld page "
               "faults); peak %.1f GiB, program %.0f KiB\n",
               dry ? "dry" : "real", first, runs, best, best_cpu, faults, peak, own);
    }
    wefti_route_cache_destroy(routes);
    wefti_optimizer_destroy(optimizer);
    weft_graph_destroy(graph);
    weft_plan_destroy(plan);
    return 0;
}
