/* Llama; Mistral, the same by another name; Qwen2, with biases of query, key and value; Qwen3, with
 * a norm of each head of queries and keys; OLMo 2, with norms of all queries and all keys, and with
 * norms behind both halves of a block instead of before them; Mixtral, with layers of experts for
 * feed-forward layers: pre-norm blocks with RMSNorm, rotary positions,
 * SwiGLU and grouped heads, biases as asked for. Source: Touvron et al., "LLaMA", 2023, and "Llama
 * 2", 2023 (grouped heads); Jiang et al., "Mistral 7B", 2023, and "Mixtral of Experts", 2024; Yang
 * et al., "Qwen2 Technical Report", 2024, and "Qwen3 Technical Report", 2025; OLMo et al., "2 OLMo
 * 2 Furious", 2025. Names as Hugging Face has them. Initial values as gpt2's: normal 0.02, products
 * that end in the residual stream 0.02 / sqrt(2 layers). Dropout acts on the attention
 * probabilities only, as "attention_dropout" does there. */
#include <math.h>

#include "models/family.h"
#include "models/models.h"

static weft_value norm(const wefti_model_build *b, weft_value x, const char *name, int64_t width) {
    weft_value gamma = wefti_param(b, name, wefti_ones(), width, 0, 0, 0);
    return weft_rms_norm(b->g, x, gamma, b->c->norm_eps);
}

/* The layer NAME.weight [features, in], with NAME.bias if the model has biases. */
static weft_value dense(const wefti_model_build *b, weft_value x, const char *name,
                        int64_t features, double deviation, bool bias) {
    weft_dense_options o = bias ? wefti_transposed(deviation) : wefti_plain(deviation);
    return wefti_dense(b, name, x, features, o);
}

static bool has(const wefti_model_build *b, unsigned traits) {
    return wefti_family_has(b->c->family, traits);
}

/* x [batch, seq, hidden] -> [batch, seq, heads, dim]. norm: the name of the norm of queries or
 * keys, if the family has such; NULL: none. */
static weft_value project(const wefti_model_build *b, weft_value x, const char *name, int64_t heads,
                          const char *norm_name) {
    const int64_t dim = b->c->head_dim;
    const bool bias = b->c->attention_bias || has(b, WEFTI_QKV_BIASED);
    x = dense(b, x, name, heads * dim, 0.02, bias);
    if (norm_name && has(b, WEFTI_QK_NORMS)) x = norm(b, x, norm_name, heads * dim);
    x = weft_reshape(b->g, x, 4, (int64_t[]){b->batch, b->seq, heads, dim});
    return norm_name && has(b, WEFTI_HEAD_NORMS) ? norm(b, x, norm_name, dim) : x;
}

static weft_value attention(const wefti_model_build *b, weft_value x, weft_value position,
                            int64_t layer, double deviation) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    int64_t dim = c->head_dim;
    weft_cell_begin(g, "self_attn");
    weft_value q = project(b, x, "q_proj", c->heads, "q_norm.weight");
    weft_value k = project(b, x, "k_proj", c->kv_heads, "k_norm.weight");
    weft_value v = project(b, x, "v_proj", c->kv_heads, NULL);
    q = weft_rope(g, q, c->rope_theta, c->rope_scaling, position);
    k = weft_rope(g, k, c->rope_theta, c->rope_scaling, position);
    k = wefti_cached(b, k, "k", position, c->kv_heads, dim);
    v = wefti_cached(b, v, "v", position, c->kv_heads, dim);
    weft_attention_options o = weft_attention_defaults();
    o.causal = true;
    o.window = layer < c->window_from ? 0 : c->window;
    o.position = position;
    if (c->attention_factor > 0) /* of queries and of keys */
        o.scale = c->attention_factor * c->attention_factor / sqrt((double)dim);
    o.dropout = wefti_attention_dropout(b);
    weft_value y = weft_attention(g, q, k, v, &o);
    y = weft_reshape(g, y, 3, (int64_t[]){b->batch, b->seq, c->heads * dim});
    y = dense(b, y, "o_proj", c->hidden, deviation, c->attention_bias);
    return weft_cell_end(g, y);
}

static weft_value feed_forward(const wefti_model_build *b, weft_value x, double deviation) {
    weft_graph *g = b->g;
    weft_cell_begin(g, "mlp");
    bool bias = b->c->mlp_bias;
    weft_value gate = dense(b, x, "gate_proj", b->c->ffn, 0.02, bias);
    weft_value up = dense(b, x, "up_proj", b->c->ffn, 0.02, bias);
    x = weft_mul(g, weft_silu(g, gate), up);
    x = dense(b, x, "down_proj", b->c->hidden, deviation, bias);
    return weft_cell_end(g, x);
}

/* The same in each expert, for tokens that the router sent there. */
static weft_value experts(const wefti_model_build *b, weft_value x, double deviation,
                          weft_value *balance) {
    weft_graph *g = b->g;
    int64_t hidden = b->c->hidden, ffn = b->c->ffn;
    weft_init init = wefti_normal(0.02);
    weft_cell_begin(g, "block_sparse_moe");
    weft_value logits = wefti_dense_of(g, "gate", x, b->c->experts, wefti_plain(0.02));
    weft_routing routing;
    weft_value weight = wefti_experts_route(b, logits, &routing, balance);
    x = weft_moe_dispatch(g, x, &routing);
    weft_value gate = wefti_expert_dense(b, x, &routing, "experts.w1", hidden, ffn, true, init);
    weft_value up = wefti_expert_dense(b, x, &routing, "experts.w3", hidden, ffn, true, init);
    x = weft_mul(g, weft_silu(g, gate), up);
    x = wefti_expert_dense(b, x, &routing, "experts.w2", ffn, hidden, true,
                           wefti_normal(deviation));
    return wefti_end_block(b, weft_moe_combine(g, x, &routing, weight), balance);
}

static weft_value block(const wefti_model_build *b, weft_value x, weft_value position,
                        int64_t layer, weft_value *balance) {
    weft_graph *g = b->g;
    double deviation = 0.02 / sqrt(2.0 * (double)b->c->layers);
    const int64_t hidden = b->c->hidden;
    weft_cell_begin(g, "layers.%d", (int)layer);
    if (has(b, WEFTI_POST_NORMS)) {
        weft_value y = attention(b, x, position, layer, deviation);
        x = weft_add(g, x, norm(b, y, "post_attention_layernorm.weight", hidden));
        y = feed_forward(b, x, deviation);
        y = norm(b, y, "post_feedforward_layernorm.weight", hidden);
        return wefti_end_block(b, weft_add(g, x, y), balance);
    }
    weft_value y = norm(b, x, "input_layernorm.weight", hidden);
    x = weft_add(g, x, attention(b, y, position, layer, deviation));
    y = norm(b, x, "post_attention_layernorm.weight", hidden);
    y = b->c->experts ? experts(b, y, deviation, balance) : feed_forward(b, y, deviation);
    return wefti_end_block(b, weft_add(g, x, y), balance);
}

void wefti_build_llama(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value tokens = wefti_tokens(b), targets = wefti_targets(b),
               position = wefti_model_position(b), asked = wefti_asked(b);
    weft_init init = wefti_normal(0.02);
    weft_value table = wefti_weight(b, "embed_tokens.weight", init, c->vocab, c->hidden, 0, 0);
    weft_cell_begin(g, "embed");
    weft_value balance = wefti_balance_begin(b);
    weft_value x = wefti_end_block(b, wefti_look_up(b, table, tokens), &balance);
    for (int64_t layer = 0; layer < c->layers; layer++) x = block(b, x, position, layer, &balance);
    weft_value scale = wefti_param(b, "norm.weight", wefti_ones(), c->hidden, 0, 0, 0);
    weft_value head =
        c->tied ? table : wefti_weight(b, "lm_head.weight", init, c->vocab, c->hidden, 0, 0);
    weft_cell_begin(g, "head");
    x = wefti_take_asked(b, x, asked);
    x = weft_rms_norm(g, x, scale, c->norm_eps);
    wefti_model_end(b, wefti_logits(b, x, head), targets, WEFT_NO_VALUE,
                    wefti_balance_loss(b, balance));
}
