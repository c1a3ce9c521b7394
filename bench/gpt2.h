/* Training steps of a GPT-2, 124M or another size, for bench/gpt2 and bench/parallel. */
#ifndef WEFT_BENCH_GPT2_H
#define WEFT_BENCH_GPT2_H

#include "stepper.h"

typedef struct gpt2 {
    weft_model_config model;
    weft_session_options options;
    int64_t batch, seq;
    const char *precision;
    weft_graph *graph;
    weft_session *session;
    int32_t *tokens, *targets;
    uint32_t random;
    double loss;
} gpt2;

/* Rows of an option table that configure a gpt2. */
#define GPT2_OPTIONS(b)                                                                            \
    {"--batch", STEPPER_LONG, &(b)->batch}, {"--seq", STEPPER_LONG, &(b)->seq},                    \
        {"--precision", STEPPER_TEXT, &(b)->precision},                                            \
        {"--threads", STEPPER_INT, &(b)->options.threads},                                         \
        {"--layers", STEPPER_LONG, &(b)->model.layers},                                            \
        {"--hidden", STEPPER_LONG, &(b)->model.hidden},                                            \
        {"--heads", STEPPER_LONG, &(b)->model.heads}, {                                            \
        "--vocab", STEPPER_LONG, &(b)->model.vocab                                                 \
    }

static inline gpt2 gpt2_defaults(void) {
    gpt2 b = {.batch = 4, .seq = 256, .precision = "f32", .random = 1};
    b.model = (weft_model_config){
        .family = WEFT_FAMILY_GPT2, .layers = 12, .hidden = 768, .heads = 12, .vocab = 50257};
    b.options = weft_session_defaults();
    return b;
}

static inline double gpt2_step(void *context) {
    gpt2 *b = context;
    const int64_t count = b->batch * b->seq;
    const double start = stepper_now();
    for (int64_t i = 0; i < count; i++) {
        b->random = b->random * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((b->random >> 8) % (uint32_t)b->model.vocab);
        b->targets[i] = (int32_t)((b->random >> 4) % (uint32_t)b->model.vocab);
    }
    stepper_check(weft_session_feed(b->session, 0, "tokens", b->tokens, (size_t)count * 4));
    stepper_check(weft_session_feed(b->session, 0, "targets", b->targets, (size_t)count * 4));
    stepper_check(weft_session_step(b->session, 3e-4, &b->loss));
    return stepper_now() - start;
}

static inline void gpt2_begin(gpt2 *b) {
    const size_t bytes = (size_t)(b->batch * b->seq) * 4;
    b->model.context = b->seq > 1024 ? b->seq : 1024;
    stepper_check(weft_model_build(&b->model, WEFT_USE_TRAIN, b->batch, b->seq,
                                   strcmp(b->precision, "bf16") ? WEFT_F32 : WEFT_BF16, &b->graph));
    stepper_check(weft_session_create(b->graph, &b->options, &b->session));
    b->tokens = malloc(bytes);
    b->targets = malloc(bytes);
    if (!b->tokens || !b->targets) exit(1);
}

/* Runs the steps, prints the report with `facts` first, and frees everything. */
static inline void gpt2_run(gpt2 *b, stepper *s, const char *facts) {
    char all[300];
    s->step = gpt2_step;
    s->context = b;
    s->session = b->session;
    stepper_drive(s);
    snprintf(all, sizeof all,
             "%s \"precision\": \"%s\", \"batch\": %lld, \"seq\": %lld, \"loss\": %.6f,", facts,
             b->precision, (long long)b->batch, (long long)b->seq, b->loss);
    stepper_report(s, all, "tokens_per_second", (double)(b->batch * b->seq),
                   weft_session_memory_of(b->session));
    weft_session_destroy(b->session);
    weft_graph_destroy(b->graph);
    free(b->tokens);
    free(b->targets);
}

/* Megatron's split of a block (Shoeybi et al., 2019): heads and the inner features of the
 * feed-forward part, with one sum after each half of a block. The vocabulary is split at both ends.
 */
static inline void gpt2_split_tensors(weft_plan *plan, int devices) {
    stepper_check(weft_plan_axis(plan, "tp", devices));
    stepper_check(weft_plan_split_op(plan, "h.*.attn.c_attn", "n1=tp"));
    stepper_check(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
    stepper_check(weft_plan_split_op(plan, "*.wte:linear", "n0=tp"));
    stepper_check(weft_plan_split_tensor(plan, "wte.weight", "[tp, -]"));
}

/* A plan of the split data, states, gradients, parameters (optimizer levels 0 to 3) or tensor;
 * NULL: it is none of them. */
static inline weft_plan *gpt2_split(const char *split, int devices) {
    static const char *const level[] = {"data", "states", "gradients", "parameters"};
    weft_plan *plan;
    int i = 0;
    while (i < 4 && strcmp(split, level[i])) i++;
    const bool tensor = !strcmp(split, "tensor");
    if (i == 4 && !tensor) return NULL;
    stepper_check(weft_plan_create(devices, &plan));
    if (tensor) {
        gpt2_split_tensors(plan, devices);
        return plan;
    }
    stepper_check(weft_plan_axis(plan, "dp", devices));
    stepper_check(weft_plan_optimizer(plan, i, 0, 0));
    return plan;
}

#endif
