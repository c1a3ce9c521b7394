/* Training steps of GPT-2 124M (or another size) split over devices of one process, timed: the
 * counterpart of bench/peers/gpt2_parallel.py.
 *
 *     bench/parallel [--split one|data|tensor|states|gradients|parameters] [--devices 2]
 *                    [--threads 2] [--batch 4] [--seq 256] [--layers 12] [--hidden 768]
 *                    [--heads 12] [--vocab 50257] [--precision f32|bf16] [--steps 8] [--warmup 2]
 *                    [--trace FILE] [--interactive]
 *
 * --split: one device with all threads; the batch over the devices; every product's columns or rows
 * and the attention's heads; the batch, and of the optimizer the states (level 1), gradients too
 * (level 2), parameters too (level 3). --threads: of all devices together. Without --interactive:
 * prints each step and, last, one JSON object. With it: the protocol of bench/peers/stepper.py, so
 * that programs can take turns. */
#include "stepper.h"

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench/parallel: %s\n", weft_error_message());
    exit(1);
}

typedef struct bench {
    weft_session *session;
    int64_t tokens_count, vocab;
    int32_t *tokens, *targets;
    uint32_t state;
    double loss;
} bench;

static double step(void *context) {
    bench *b = context;
    size_t bytes = (size_t)b->tokens_count * 4;
    double start = stepper_now();
    for (int64_t i = 0; i < b->tokens_count; i++) {
        b->state = b->state * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((b->state >> 8) % (uint32_t)b->vocab);
        b->targets[i] = (int32_t)((b->state >> 4) % (uint32_t)b->vocab);
    }
    check(weft_session_feed(b->session, 0, "tokens", b->tokens, bytes));
    check(weft_session_feed(b->session, 0, "targets", b->targets, bytes));
    check(weft_session_step(b->session, 3e-4, &b->loss));
    return stepper_now() - start;
}

/* Megatron's split of a block (Shoeybi et al., 2019): heads and the inner features of the
 * feed-forward part, one sum after each half of a block; and the vocabulary at both ends. */
static void split_tensors(weft_plan *plan, int devices) {
    check(weft_plan_axis(plan, "tp", devices));
    check(weft_op_split(plan, "h.*.attn.c_attn", "n1=tp"));
    check(weft_op_split(plan, "h.*.mlp.c_fc", "n0=tp"));
    check(weft_op_split(plan, "*.wte:linear", "n0=tp"));
    check(weft_tensor_split(plan, "wte.weight", "[tp, -]"));
}

/* NULL for one device. */
static weft_plan *make_plan(const char *split, int devices) {
    static const char *const level[] = {"data", "states", "gradients", "parameters"};
    weft_plan *plan;
    if (!strcmp(split, "one")) return NULL;
    check(weft_plan_create(devices, &plan));
    if (!strcmp(split, "tensor")) {
        split_tensors(plan, devices);
        return plan;
    }
    check(weft_plan_axis(plan, "dp", devices));
    for (int i = 0; i < 4; i++)
        if (!strcmp(split, level[i])) {
            check(weft_plan_optimizer(plan, i, 0, 0));
            return plan;
        }
    fprintf(stderr, "bench/parallel: unknown split %s\n", split);
    exit(2);
}

int main(int argc, char **argv) {
    weft_model_config c = {
        .family = WEFT_FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12, .vocab = 50257};
    static stepper s = {.step = step, .steps = 8, .warmup = 2};
    int64_t batch = 4, seq = 256;
    int devices = 2;
    const char *split = "data", *precision = "f32", *trace = NULL;
    weft_session_options o = weft_session_defaults();
    o.threads = 2;
    for (int i = 1; i < argc; i++) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(key, "--interactive")) {
            s.interactive = true;
            continue;
        }
        if (!strcmp(key, "--split"))
            split = value;
        else if (!strcmp(key, "--devices"))
            devices = atoi(value);
        else if (!strcmp(key, "--threads"))
            o.threads = atoi(value);
        else if (!strcmp(key, "--batch"))
            batch = atoll(value);
        else if (!strcmp(key, "--seq"))
            seq = atoll(value);
        else if (!strcmp(key, "--layers"))
            c.layers = atoll(value);
        else if (!strcmp(key, "--hidden"))
            c.hidden = atoll(value);
        else if (!strcmp(key, "--heads"))
            c.heads = atoll(value);
        else if (!strcmp(key, "--vocab"))
            c.vocab = atoll(value);
        else if (!strcmp(key, "--precision"))
            precision = value;
        else if (!strcmp(key, "--steps"))
            s.steps = atoi(value);
        else if (!strcmp(key, "--warmup"))
            s.warmup = atoi(value);
        else if (!strcmp(key, "--trace"))
            trace = value;
        else
            return fprintf(stderr, "bench/parallel: unknown option %s\n", key), 2;
        i++;
    }
    c.context = seq > 1024 ? seq : 1024;
    bench b = {.tokens_count = batch * seq, .vocab = c.vocab, .state = 1};
    weft_plan *plan = make_plan(split, devices);
    weft_graph *g;
    o.plan = plan;
    weft_dtype dtype = strcmp(precision, "bf16") ? WEFT_F32 : WEFT_BF16;
    check(weft_model_build(&c, WEFT_USE_TRAIN, batch, seq, dtype, &g));
    check(weft_session_create(g, &o, &b.session));
    b.tokens = malloc((size_t)b.tokens_count * 4);
    b.targets = malloc((size_t)b.tokens_count * 4);
    if (!b.tokens || !b.targets) return 1;
    s.context = &b;
    if (trace) check(weft_session_trace(b.session, trace));
    stepper_drive(&s);
    char facts[200];
    snprintf(facts, sizeof facts,
             "\"split\": \"%s\", \"devices\": %d, \"precision\": \"%s\", \"batch\": %lld, \"seq\": "
             "%lld, \"loss\": %.6f,",
             split, plan ? devices : 1, precision, (long long)batch, (long long)seq, b.loss);
    stepper_report(&s, facts, "tokens_per_second", (double)b.tokens_count,
                   weft_session_memory_of(b.session));
    weft_session_destroy(b.session);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    free(b.tokens);
    free(b.targets);
    return 0;
}
