/* Model families: a builder for each, and shared parts. Uses the public interface only. */
#ifndef WEFTI_MODELS_H
#define WEFTI_MODELS_H

#include "weft/layer.h"
#include "weft/model.h"
#include "weft/ops.h"

/* The input of a family's builder: the complete configuration and the sizes of one batch. */
typedef struct wefti_model_build {
    weft_graph *g;
    const weft_model_config *c;
    weft_model_use use;
    int64_t batch, seq;
    weft_dtype dtype; /* of activations */
    weft_dtype param; /* of parameters: f32, or f64 in f64 graphs */
    /* of tables and of weights of products: `param`; bf16 to DECODE in bf16, since a token costs
     * the time to read them, and with masters */
    weft_dtype weight;
    bool f8; /* products with weights in blocks have operands in 8 bits */
} wefti_model_build;

/* weft_model_build with products in 8 bits (WEFT_E_NO_IMPL: the family has no blocks), or with
 * tables and weights of products in the type of activations. */
typedef struct wefti_model_form {
    bool f8, narrow;
} wefti_model_form;
weft_status wefti_model_build_of(const weft_model_config *config, weft_model_use use, int64_t batch,
                                 int64_t seq, weft_dtype dtype, wefti_model_form form,
                                 weft_graph **out) WEFT_CHECKED;
/* weft_linear, of a block. */
weft_value wefti_product(const wefti_model_build *b, weft_value x, weft_value weight,
                         weft_value bias, bool transposed);

void wefti_build_gpt2(const wefti_model_build *b);
void wefti_build_llama(const wefti_model_build *b);
void wefti_build_bert(const wefti_model_build *b);
void wefti_build_vit(const wefti_model_build *b);
void wefti_build_mlp(const wefti_model_build *b);
void wefti_build_lenet(const wefti_model_build *b);
void wefti_build_resnet(const wefti_model_build *b);

/* Rows of the table of tokens, in activations' type. The padding token's look-up has no gradient.
 */
weft_value wefti_look_up(const wefti_model_build *b, weft_value table, weft_value tokens);
/* A parameter [d0, d1, ...]: sizes up to the first 0. */
weft_value wefti_param(const wefti_model_build *b, const char *name, weft_init init, int64_t d0,
                       int64_t d1, int64_t d2, int64_t d3);
/* A table, or a weight of a product: the same with dtype b->weight. */
weft_value wefti_weight(const wefti_model_build *b, const char *name, weft_init init, int64_t d0,
                        int64_t d1, int64_t d2, int64_t d3);
/* weft_dense with a weight of dtype b->weight (f64 for an f64 x), and its adapter; its bias stays
 * f32. */
weft_value wefti_dense(const wefti_model_build *b, const char *name, weft_value x, int64_t features,
                       weft_dense_options o);
/* ---- lora.c: adapters of low rank ---- */

/* Fills in defaults of c->lora, and checks it. */
weft_status wefti_lora_complete(weft_model_config *c);
/* Whether `targets` lists the layer of these bytes. */
bool wefti_lora_targets(const weft_lora *lora, const char *layer, size_t length);
/* Whether the parameter of this name is one of an adapter. */
bool wefti_lora_is_adapter(const char *parameter);
/* y [..., out...] with what the adapter of the layer adds for x [..., in]; y itself if it has none.
 * out [dims]. `prefix` stands before the parameters' names: "", or "c_attn." outside of the layer's
 * own cell. */
weft_value wefti_lora(const wefti_model_build *b, const char *layer, const char *prefix,
                      weft_value x, weft_value y, int dims, const int64_t *out);
/* Freezes all parameters but those of adapters. */
weft_status wefti_lora_freeze(const wefti_model_build *b);

/* Logits of x [..., hidden] with the matrix `head` [vocab, hidden]. To DECODE they are f32 (f64 for
 * f64): one row of them is small, and tokens are chosen from it. */
weft_value wefti_logits(const wefti_model_build *b, weft_value x, weft_value head);
/* weft_dense with options by value. */
weft_value wefti_dense_of(weft_graph *g, const char *name, weft_value x, int64_t features,
                          weft_dense_options o);
/* Normal with this standard deviation; zeros; ones. */
weft_init wefti_normal(double deviation);
weft_init wefti_zeros(void);
weft_init wefti_ones(void);

/* Dense layers as files of most families have them, the weight [features, in]; the second without a
 * bias; the third with relu, its weight of variance 2 / in. */
weft_dense_options wefti_transposed(double deviation);
weft_dense_options wefti_plain(double deviation);
weft_dense_options wefti_rectified(int64_t in);
/* "NAME.PART" into a caller's buffer; returns it. */
enum { WEFTI_MODEL_NAME_BYTES = 128 };
const char *wefti_model_join(char out[WEFTI_MODEL_NAME_BYTES], const char *name, const char *part);
/* layer_norm with NAME.weight and NAME.bias. */
weft_value wefti_layer_norm(const wefti_model_build *b, weft_value x, const char *name,
                            int64_t dim);
/* Dropout in training, x itself otherwise: in blocks, and after the embedding. */
weft_value wefti_drop(const wefti_model_build *b, weft_value x);
weft_value wefti_drop_embedding(const wefti_model_build *b, weft_value x);
/* The rate for attention probabilities: 0 unless in training. */
double wefti_attention_dropout(const wefti_model_build *b);
/* ---- layers of experts ---- */

/* The sum of the balancing losses over the layers. Empty for models without experts. */
weft_value wefti_balance_begin(const wefti_model_build *b);
/* Of the sum over all layers. */
weft_value wefti_balance_loss(const wefti_model_build *b, weft_value balance_sum);
/* logits [batch, seq, experts] -> weight [batch, seq, experts_per_token]; adds to *balance_sum. */
weft_value wefti_experts_route(const wefti_model_build *b, weft_value logits, weft_routing *out,
                               weft_value *balance_sum);
/* x [experts, batch, slots, in] -> [experts, batch, slots, out] with the parameter NAME.weight
 * [experts, in, out] (transposed: [experts, out, in]). */
weft_value wefti_expert_dense(const wefti_model_build *b, weft_value x, const weft_routing *routing,
                              const char *name, int64_t in, int64_t out, bool transposed,
                              weft_init init);
/* Ends the cell of a block. Its results are the block's value and the sum of balancing losses so
 * far, if the model has one. */
weft_value wefti_end_block(const wefti_model_build *b, weft_value x, weft_value *balance_sum);

/* Attention without a mask, up to the output projection (bert, vit). x: [batch, seq, heads * dim].
 * QUERY, KEY and VALUE name its parameters, each [hidden, hidden] with a bias. Call it inside a
 * cell. */
weft_value wefti_attend_all(const wefti_model_build *b, weft_value x, const char *query,
                            const char *key, const char *value);
/* The inputs "tokens" and "targets" [batch, seq]; targets empty when the use has no loss. */
weft_value wefti_tokens(const wefti_model_build *b);
weft_value wefti_targets(const wefti_model_build *b);
/* DECODE: the key or value cache "cache.<layer>.<k|v>" with x written at `position`; else x itself.
 */
weft_value wefti_cached(const wefti_model_build *b, weft_value x, const char *which,
                        weft_value position, int64_t heads, int64_t dim);
/* "position" i32 [batch] in DECODE, else no value. */
weft_value wefti_model_position(const wefti_model_build *b);
/* DECODE: the positions of all tokens, i32 [batch, seq]. Several tokens make it an input of its
 * own. */
weft_value wefti_positions(const wefti_model_build *b, weft_value position);
/* DECODE with c->asked: the input "asked" i32 [asked], else no value; and x [batch, seq, hidden] at
 * these tokens, [1, asked, hidden], or x itself. */
weft_value wefti_asked(const wefti_model_build *b);
weft_value wefti_take_asked(const wefti_model_build *b, weft_value x, weft_value asked);
/* "share" f32 [] in TRAIN, else no value: the weight of a microbatch's loss. It is the microbatch's
 * number of counting targets, divided by the mean of that number over the step's microbatches. So
 * the mean of the weighted losses is the mean over all targets, for every division into
 * microbatches. */
weft_value wefti_share(const wefti_model_build *b);
/* Ends a model inside its last cell, and closes that cell. The loss is the mean cross-entropy of
 * `logits` against `targets` (-1: ignored), times `share`, plus `further`; both may be empty.
 * "logits" becomes an output if the use needs it. */
void wefti_model_end(const wefti_model_build *b, weft_value logits, weft_value targets,
                     weft_value share, weft_value further);
weft_value wefti_labels(const wefti_model_build *b); /* "label" i32 [batch], empty without loss */
weft_value
wefti_image(const wefti_model_build *b); /* "image" f32 [batch, c, h, w], cast to dtype */

#endif
