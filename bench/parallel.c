/* Times training steps of GPT-2 124M (or another size) split over devices of one process, the
 * counterpart of bench/peers/gpt2_parallel.py.
 *
 *     bench/parallel [--split one|data|tensor|states|gradients|parameters] [--devices 2]
 *                    [--threads 2] [--batch 4] [--seq 256] [--layers 12] [--hidden 768]
 *                    [--heads 12] [--vocab 50257] [--precision f32|bf16] [--steps 8] [--warmup 2]
 *                    [--trace FILE] [--json] [--interactive]
 *
 * Splits:
 * - one: one device with all threads.
 * - data: the devices split the batch.
 * - tensor: they split columns or rows of every product, and the attention's heads.
 * - states, gradients, parameters: as data, with optimizer level 1, 2 or 3.
 *
 * `--threads` counts the threads of all devices together. `--trace` records the steps after the
 * warm-up. Without `--interactive` the program prints each step (not with `--json`) and, last, one
 * JSON object. With it, it follows the protocol of bench/peers/stepper.py, so that programs can
 * take turns. */
#include "gpt2.h"

/* NULL for one device. */
static weft_plan *make_plan(const char *split, int devices) {
    if (!strcmp(split, "one")) return NULL;
    weft_plan *plan = gpt2_split(split, devices);
    if (plan) return plan;
    fprintf(stderr, "bench/parallel: unknown split %s\n", split);
    exit(2);
}

int main(int argc, char **argv) {
    static stepper s = {.steps = 8, .warmup = 2};
    gpt2 b = gpt2_defaults();
    int devices = 2;
    const char *split = "data";
    b.options.threads = 2;
    const stepper_option options[] = {GPT2_OPTIONS(&b),
                                      {"--split", STEPPER_TEXT, &split},
                                      {"--devices", STEPPER_INT, &devices},
                                      {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    weft_plan *plan = make_plan(split, devices);
    b.options.plan = plan;
    gpt2_begin(&b);
    char facts[80];
    snprintf(facts, sizeof facts, "\"split\": \"%s\", \"devices\": %d,", split, plan ? devices : 1);
    gpt2_run(&b, &s, facts);
    weft_plan_destroy(plan);
    return 0;
}
