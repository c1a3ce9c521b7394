/* What it costs to be ready for the death of a rank while nothing fails. One session takes steps of
 * GPT-2 124M, or of another size, with recovery. The other one takes the same steps with clipping
 * only.
 *
 *     bench/ready [--split data|tensor|stages|states|gradients|parameters] [--devices 2]
 *                 [--threads 2] [--batch 4] [--seq 256] [--layers 12] [--hidden 768] [--heads 12]
 *                 [--vocab 50257] [--precision f32|bf16] [--steps 8] [--warmup 2] [--json]
 *
 * The devices are threads of this process, or under `weft launch` its ranks, of one host or of
 * several. Both sessions live at the same time, and take turns step by step, so other work on the
 * machine hits both. The split `data` recovers from replicas; the others have buddies
 * (`recovery.buddy`), which keep and update copies of what no other device has. `--threads` counts
 * the threads of a process; `stages` cuts the batch into two microbatches.
 *
 * Prints the medians of both, and the memory of both on a device. A step's ratio is to the step
 * that the other session made before it. The median of these ratios is printed too, for wall time
 * and for the processor time of this process.
 */
#include "gpt2.h"

enum { MICROBATCHES = 2 /* of the split `stages` */, SIDES = 2 };

static weft_plan *make_plan(const char *split, int devices) {
    weft_plan *plan = gpt2_split(split, devices);
    if (plan) return plan;
    if (!strcmp(split, "stages")) {
        stepper_check(weft_plan_create(devices, &plan));
        stepper_check(weft_plan_pipeline(plan, devices, MICROBATCHES, WEFT_PIPELINE_1F1B, 1));
        return plan;
    }
    fprintf(stderr, "bench/ready: unknown split %s\n", split);
    exit(2);
}

/* One of the sessions: its steps are those of a gpt2, but in microbatches. */
typedef struct side {
    gpt2 b;
    double seconds[STEPPER_MAX], cpu[STEPPER_MAX];
} side;

static void step(side *x, int number) {
    gpt2 *b = &x->b;
    const size_t bytes = (size_t)(b->batch * b->seq) * 4;
    for (int64_t i = 0; i < b->batch * b->seq; i++) {
        b->random = b->random * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((b->random >> 8) % (uint32_t)b->model.vocab);
        b->targets[i] = (int32_t)((b->random >> 4) % (uint32_t)b->model.vocab);
    }
    const double start = stepper_now(), cpu = stepper_cpu();
    for (int m = 0; m < b->options.microbatches; m++) {
        stepper_check(weft_session_feed(b->session, 0, "tokens", b->tokens, bytes));
        stepper_check(weft_session_feed(b->session, 0, "targets", b->targets, bytes));
        stepper_check(weft_session_accumulate(b->session, &b->loss));
    }
    stepper_check(weft_session_update(b->session, 3e-4, NULL));
    x->seconds[number] = stepper_now() - start;
    x->cpu[number] = stepper_cpu() - cpu;
}

/* The median of the ratios of a step to the one that the first side made before it. */
static double ratio(const double *first, const double *second, const stepper *s) {
    double all[STEPPER_MAX];
    for (int i = 0; i < s->steps; i++) all[i] = second[s->warmup + i] / first[s->warmup + i];
    return stepper_median(all, s->steps);
}

static void report(side *sides, const stepper *s, const char *split, int devices, int hosts) {
    double median[SIDES];
    int64_t bytes[SIDES];
    const double more = ratio(sides[0].seconds, sides[1].seconds, s) - 1,
                 more_cpu = ratio(sides[0].cpu, sides[1].cpu, s) - 1;
    for (int k = 0; k < SIDES; k++) {
        median[k] = stepper_median(sides[k].seconds + s->warmup, s->steps);
        bytes[k] = weft_session_memory_of(sides[k].b.session).predicted_peak_bytes;
    }
    const long long tokens =
        (long long)(sides[0].b.batch * sides[0].b.seq * sides[0].b.options.microbatches);
    printf("{\"program\": \"weft\", \"split\": \"%s\", \"devices\": %d, \"hosts\": %d, "
           "\"tokens\": %lld, \"clip_seconds\": %.4f, \"ready_seconds\": %.4f, "
           "\"ready_costs\": %.4f, \"ready_costs_cpu\": %.4f, \"clip_bytes\": %lld, "
           "\"ready_bytes\": %lld}\n",
           split, devices, hosts, tokens, median[0], median[1], more, more_cpu, (long long)bytes[0],
           (long long)bytes[1]);
}

int main(int argc, char **argv) {
    static stepper s = {.steps = 8, .warmup = 2};
    static side sides[SIDES];
    gpt2 b = gpt2_defaults();
    const char *split = "tensor";
    int devices = 2;
    weft_launcher launcher;
    weft_world *world = NULL;
    b.options.threads = 2;
    b.options.clip = 1;
    const stepper_option options[] = {GPT2_OPTIONS(&b),
                                      {"--split", STEPPER_TEXT, &split},
                                      {"--devices", STEPPER_INT, &devices},
                                      {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    if (s.steps < 1 || s.warmup < 0 || s.steps + s.warmup > STEPPER_MAX) {
        fprintf(stderr, "bench/ready: --steps and --warmup are at most %d together\n", STEPPER_MAX);
        return 2;
    }
    stepper_check(weft_launcher_find(&launcher));
    if (launcher.name) {
        stepper_check(weft_world_join(NULL, &world));
        devices = weft_world_size(world);
    }
    weft_plan *plan = make_plan(split, devices);
    b.options.plan = plan;
    b.options.world = world;
    b.options.microbatches = strcmp(split, "stages") ? 1 : MICROBATCHES;
    b.batch /= b.options.microbatches;
    for (int k = 0; k < SIDES; k++) {
        sides[k].b = b;
        sides[k].b.options.recovery = sides[k].b.options.buddy = k == 1;
        gpt2_begin(&sides[k].b);
    }
    for (int i = 0; i < s.warmup + s.steps; i++)
        for (int k = 0; k < SIDES; k++) step(&sides[k], i);
    if (!world || weft_world_rank(world) == 0)
        report(sides, &s, split, devices, world ? weft_world_hosts(world) : 1);
    for (int k = 0; k < SIDES; k++) {
        weft_session_destroy(sides[k].b.session);
        weft_graph_destroy(sides[k].b.graph);
        free(sides[k].b.tokens);
        free(sides[k].b.targets);
    }
    weft_plan_destroy(plan);
    if (world) stepper_check(weft_world_close(world));
    return 0;
}
