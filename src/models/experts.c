/* Mixture-of-experts layers in place of feed-forward layers: router, buffers, and the balancing
 * loss. The experts' own products belong to the families.
 *
 * The router's probabilities stay in f32 (Fedus et al., "Switch Transformer", 2021, section 2.4).
 * The probabilities of a token's experts are normalised to sum to 1 (Lepikhin et al., "GShard",
 * 2021; Jiang et al., "Mixtral of Experts", 2024). The exception is gpt2-moe with one expert a
 * token: without the probability as a factor its router would not learn (Fedus et al., section
 * 2.1).
 *
 * In training, the capacity factor may bound the slots of an expert. Evaluation and generation
 * compute every choice. */
#include <math.h>

#include "models/family.h"
#include "models/models.h"
#include "ops/common.h"

static bool balances(const wefti_model_build *b) {
    return b->use == WEFT_USE_TRAIN && b->c->experts > 0 && b->c->aux_loss > 0;
}

/* Slots of an expert for each sequence; 0: no bound. */
static int64_t capacity(const wefti_model_build *b) {
    if (b->use != WEFT_USE_TRAIN || b->c->capacity_factor <= 0) return 0;
    double even = (double)(b->seq * b->c->experts_per_token) / (double)b->c->experts;
    double slots = ceil(b->c->capacity_factor * even);
    return slots < (double)b->seq ? (int64_t)slots : b->seq;
}

/* gpt2-moe: one number. mixtral: fractions and probabilities, [2, experts]. */
static int balance_rank(const wefti_model_build *b) {
    return wefti_family_has(b->c->family, WEFTI_ROTARY) ? 2 : 0;
}

weft_value wefti_balance_begin(const wefti_model_build *b) {
    if (!balances(b)) return WEFT_NO_VALUE;
    int64_t shape[] = {2, b->c->experts};
    return weft_constant(b->g, weft_desc_of(b->param, balance_rank(b), shape), 0);
}

/* Adds a layer's share of the loss, experts * sum over experts of fraction * probability: the
 * fraction of choices that fell on an expert and its mean probability (Fedus et al., 2021, equation
 * 4). gpt2-moe sums that over its layers, as there; mixtral multiplies the means over all layers,
 * as transformers does, and so carries both. */
static weft_value balance(const wefti_model_build *b, weft_value before, weft_value probabilities,
                          weft_value expert) {
    weft_graph *g = b->g;
    int64_t experts = b->c->experts;
    weft_value picked = weft_one_hot(g, expert, experts, b->param);
    weft_value fraction = weft_mean(g, picked, 3, (int[]){0, 1, 2}, false);
    weft_value mean = weft_mean(g, probabilities, 2, (int[]){0, 1}, false);
    if (balance_rank(b) == 0) {
        weft_value sum = weft_sum(g, weft_mul(g, fraction, mean), 0, NULL, false);
        return weft_add(g, before, weft_scale(g, sum, (double)experts));
    }
    weft_value both[2] = {fraction, mean};
    for (int i = 0; i < 2; i++) both[i] = weft_reshape(g, both[i], 2, (int64_t[]){1, experts});
    return weft_add(g, before, weft_concat(g, 2, both, 0));
}

weft_value wefti_balance_loss(const wefti_model_build *b, weft_value balance_sum) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    if (!balances(b)) return WEFT_NO_VALUE;
    if (balance_rank(b) == 0) return weft_scale(g, balance_sum, c->aux_loss);
    weft_value part[2];
    weft_split(g, balance_sum, 0, 2, part);
    weft_value sum = weft_sum(g, weft_mul(g, part[0], part[1]), 0, NULL, false);
    double layers = (double)c->layers, per_token = (double)c->experts_per_token;
    return weft_scale(g, sum, c->aux_loss * (double)c->experts * per_token / (layers * layers));
}

weft_value wefti_end_block(const wefti_model_build *b, weft_value x, weft_value *balance_sum) {
    if (!balances(b)) return weft_cell_end(b->g, x);
    weft_value end[2] = {x, *balance_sum};
    weft_cell_end_many(b->g, 2, end);
    *balance_sum = end[1];
    return end[0];
}

weft_value wefti_experts_route(const wefti_model_build *b, weft_value logits, weft_routing *out,
                               weft_value *balance_sum) {
    weft_graph *g = b->g;
    weft_value probabilities = weft_softmax(g, weft_cast(g, logits, b->param), -1);
    weft_value weight = weft_moe_route(g, probabilities, b->c->experts_per_token, capacity(b), out);
    if (b->c->experts_per_token > 1 || wefti_family_has(b->c->family, WEFTI_ROTARY))
        weight = weft_div(g, weight, weft_sum(g, weight, 1, (int[]){-1}, true));
    if (balances(b)) *balance_sum = balance(b, *balance_sum, probabilities, out->expert);
    return weight;
}

weft_value wefti_expert_dense(const wefti_model_build *b, weft_value x, const weft_routing *routing,
                              const char *name, int64_t in, int64_t out, bool transposed,
                              weft_init init) {
    char full[WEFTI_MODEL_NAME_BYTES];
    int64_t experts = b->c->experts;
    wefti_model_join(full, name, "weight");
    weft_value w = transposed ? wefti_weight(b, full, init, experts, out, in, 0)
                              : wefti_weight(b, full, init, experts, in, out, 0);
    return wefti_op_moe_linear(b->g, x, w, transposed, routing, b->f8);
}
