/* Times training steps of GPT-2 124M (or another size), the counterpart of
 * bench/peers/gpt2_torch.py.
 *
 *     bench/gpt2 [--batch 4] [--seq 256] [--precision f32|bf16] [--bf16 auto|native|f32]
 *                [--steps 8] [--warmup 2] [--threads 2] [--layers 12] [--hidden 768] [--heads 12]
 *                [--vocab 50257] [--trace FILE] [--json] [--interactive]
 *
 * `--bf16` chooses the arithmetic of bf16 products; auto measures which is faster. `--trace`
 * records the steps after the warm-up. Without `--interactive` the program prints each step (not
 * with `--json`) and, last, one JSON object. With it, it follows the protocol of
 * bench/peers/stepper.py ("ready"; "step" -> seconds; "quit" -> JSON), so that programs can take
 * turns. */
#include "gpt2.h"

int main(int argc, char **argv) {
    static stepper s = {.steps = 8, .warmup = 2};
    gpt2 b = gpt2_defaults();
    const char *bf16 = "auto";
    const stepper_option options[] = {
        GPT2_OPTIONS(&b), {"--bf16", STEPPER_TEXT, &bf16}, {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    b.options.bf16 = !strcmp(bf16, "native") ? WEFT_BF16_NATIVE
                     : !strcmp(bf16, "f32")  ? WEFT_BF16_AS_F32
                                             : WEFT_BF16_AUTO;
    gpt2_begin(&b);
    gpt2_run(&b, &s, "");
    return 0;
}
