/* GPT-2, and gpt2-moe: the same with layers of experts for feed-forward layers. Source: Radford et
 * al., "Language Models are Unsupervised Multitask Learners", 2019; initial values as its code has
 * them: normal 0.02, products that end in the residual stream 0.02 / sqrt(2 layers). */
#include <math.h>

#include "models/models.h"

static weft_value attention(const wefti_model_build *b, weft_value x, weft_value position,
                            double deviation) {
    weft_graph *g = b->g;
    int64_t hidden = b->c->hidden, heads = b->c->heads, dim = hidden / heads;
    weft_cell_begin(g, "attn");
    /* [hidden, 3, hidden]: heads lie along the last dimension of each of q, k, v. */
    weft_value w = wefti_weight(b, "c_attn.weight", wefti_normal(0.02), hidden, 3, hidden, 0);
    weft_value bias = wefti_param(b, "c_attn.bias", wefti_zeros(), 3, hidden, 0, 0);
    weft_value qkv = wefti_product(b, x, w, bias, false), part[3];
    qkv = wefti_lora(b, "c_attn", "c_attn.", x, qkv, 2, (int64_t[]){3, hidden});
    weft_split(g, qkv, 2, 3, part);
    int64_t shape[4] = {b->batch, b->seq, heads, dim};
    for (int i = 0; i < 3; i++) part[i] = weft_reshape(g, part[i], 4, shape);
    weft_attention_options o = weft_attention_defaults();
    o.causal = true;
    o.position = position;
    o.dropout = wefti_attention_dropout(b);
    weft_value k = wefti_cached(b, part[1], "k", position, heads, dim);
    weft_value v = wefti_cached(b, part[2], "v", position, heads, dim);
    weft_value y = weft_attention(g, part[0], k, v, &o);
    y = weft_reshape(g, y, 3, (int64_t[]){b->batch, b->seq, hidden});
    y = wefti_dense(b, "c_proj", y, hidden,
                    WEFT_STRUCT(weft_dense_options, .deviation = deviation));
    return weft_cell_end(g, wefti_drop(b, y));
}

static weft_value feed_forward(const wefti_model_build *b, weft_value x, double deviation) {
    weft_graph *g = b->g;
    weft_cell_begin(g, "mlp");
    x = wefti_dense(b, "c_fc", x, b->c->ffn, WEFT_STRUCT(weft_dense_options, .deviation = 0.02));
    x = weft_gelu(g, x);
    x = wefti_dense(b, "c_proj", x, b->c->hidden,
                    WEFT_STRUCT(weft_dense_options, .deviation = deviation));
    return weft_cell_end(g, wefti_drop(b, x));
}

/* [experts, size], to be added to [experts, batch, slots, size] */
static weft_value expert_bias(const wefti_model_build *b, const char *name, int64_t size) {
    weft_value x = wefti_param(b, name, wefti_zeros(), b->c->experts, size, 0, 0);
    return weft_reshape(b->g, x, 4, (int64_t[]){b->c->experts, 1, 1, size});
}

/* The same in each expert, for tokens that the router sent there. */
static weft_value experts(const wefti_model_build *b, weft_value x, double deviation,
                          weft_value *balance) {
    weft_graph *g = b->g;
    int64_t hidden = b->c->hidden, ffn = b->c->ffn, count = b->c->experts;
    weft_cell_begin(g, "moe");
    weft_value logits = wefti_dense_of(
        g, "gate", x, count, WEFT_STRUCT(weft_dense_options, .deviation = 0.02, .no_bias = true));
    weft_routing routing;
    weft_value weight = wefti_experts_route(b, logits, &routing, balance);
    weft_value shift = expert_bias(b, "experts.c_fc.bias", ffn);
    weft_value last = expert_bias(b, "experts.c_proj.bias", hidden);
    x = weft_moe_dispatch(g, x, &routing);
    x = wefti_expert_dense(b, x, &routing, "experts.c_fc", hidden, ffn, false, wefti_normal(0.02));
    x = weft_gelu(g, weft_add(g, x, shift));
    x = wefti_expert_dense(b, x, &routing, "experts.c_proj", ffn, hidden, false,
                           wefti_normal(deviation));
    x = weft_moe_combine(g, weft_add(g, x, last), &routing, weight);
    return wefti_end_block(b, wefti_drop(b, x), balance);
}

static weft_value block(const wefti_model_build *b, weft_value x, weft_value position,
                        int64_t layer, weft_value *balance) {
    weft_graph *g = b->g;
    double deviation = 0.02 / sqrt(2.0 * (double)b->c->layers);
    weft_cell_begin(g, "h.%d", (int)layer);
    x = weft_add(g, x,
                 attention(b, wefti_layer_norm(b, x, "ln_1", b->c->hidden), position, deviation));
    weft_value y = wefti_layer_norm(b, x, "ln_2", b->c->hidden);
    y = b->c->experts ? experts(b, y, deviation, balance) : feed_forward(b, y, deviation);
    return wefti_end_block(b, weft_add(g, x, y), balance);
}

/* Rows of the position table: the first ones; in DECODE the rows of the positions `at`. */
static weft_value positions(const wefti_model_build *b, weft_value wpe, weft_value at) {
    if (b->use == WEFT_USE_DECODE) return weft_embedding(b->g, wpe, at, b->param);
    return b->seq == b->c->context ? wpe : weft_slice(b->g, wpe, 0, 0, b->seq);
}

void wefti_build_gpt2(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value tokens = wefti_tokens(b), targets = wefti_targets(b),
               position = wefti_model_position(b), asked = wefti_asked(b);
    weft_value wte = wefti_weight(b, "wte.weight", wefti_normal(0.02), c->vocab, c->hidden, 0, 0);
    weft_value wpe = wefti_weight(b, "wpe.weight", wefti_normal(0.02), c->context, c->hidden, 0, 0);
    weft_value at = wefti_positions(b, position);
    weft_cell_begin(g, "embed");
    weft_value x = weft_add(g, weft_embedding(g, wte, tokens, b->dtype), positions(b, wpe, at));
    weft_value balance = wefti_balance_begin(b);
    x = wefti_end_block(b, wefti_drop_embedding(b, x), &balance);
    for (int64_t layer = 0; layer < c->layers; layer++) x = block(b, x, position, layer, &balance);
    weft_value shift = wefti_param(b, "ln_f.bias", wefti_zeros(), c->hidden, 0, 0, 0);
    weft_value scale = wefti_param(b, "ln_f.weight", wefti_ones(), c->hidden, 0, 0, 0);
    weft_value head =
        c->untied ? wefti_weight(b, "lm_head.weight", wefti_normal(0.02), c->vocab, c->hidden, 0, 0)
                  : wte;
    weft_cell_begin(g, "head");
    x = wefti_take_asked(b, x, asked);
    x = weft_layer_norm(g, x, scale, shift, c->norm_eps);
    wefti_model_end(b, wefti_logits(b, x, head), targets, WEFT_NO_VALUE,
                    wefti_balance_loss(b, balance));
}
