/* Model families, written with the public graph API only: gpt2, llama, bert, gpt2-moe, mixtral,
 * mistral, qwen2, qwen3, olmo2, vit, mlp, lenet, resnet18, resnet50. */
#ifndef WEFT_MODEL_H
#define WEFT_MODEL_H

#include <stdbool.h>

#include "weft/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_FAMILY_LIST(X)                                                                        \
    X(GPT2, "gpt2")                                                                                \
    X(LLAMA, "llama")                                                                              \
    X(BERT, "bert")                                                                                \
    X(GPT2_MOE, "gpt2-moe")                                                                        \
    X(MIXTRAL, "mixtral")                                                                          \
    X(MISTRAL, "mistral")                                                                          \
    X(QWEN2, "qwen2")                                                                              \
    X(QWEN3, "qwen3")                                                                              \
    X(OLMO2, "olmo2")                                                                              \
    X(VIT, "vit")                                                                                  \
    X(MLP, "mlp")                                                                                  \
    X(LENET, "lenet")                                                                              \
    X(RESNET18, "resnet18")                                                                        \
    X(RESNET50, "resnet50")

typedef enum weft_family {
#define WEFT_FAMILY_ROW(name, text) WEFT_FAMILY_##name,
    WEFT_FAMILY_LIST(WEFT_FAMILY_ROW)
#undef WEFT_FAMILY_ROW
        WEFT_FAMILIES
} weft_family;

enum { WEFT_MAX_END_TOKENS = 16, WEFT_LORA_TARGETS = 128 };

/* Adapters of low rank: Hu et al., "LoRA", 2021. Beside the weight of each layer in `targets` stand
 * "NAME.lora_A.weight" [rank, in] and "NAME.lora_B.weight" [out, rank]. The layer adds alpha / rank
 * * B (A x). All other parameters are frozen. At first B is zero, so a new adapter changes nothing.
 */
typedef struct weft_lora {
    int64_t rank;   /* 0: no adapters */
    double alpha;   /* 0: rank */
    double dropout; /* of what the adapters read, in training */
    /* last parts of the layers' names, "q_proj,v_proj"; "": c_attn (gpt2, gpt2-moe), q_proj and
     * v_proj (llama...) */
    char targets[WEFT_LORA_TARGETS];
} weft_lora;

/* The architecture of a model, without the batch. Zero means the family's default, if it has one.
 * "llama..." means llama and the families built like it: mixtral, mistral, qwen2, qwen3,
 * olmo2. */
typedef struct weft_model_config {
    weft_family family;
    int64_t layers; /* blocks; mlp: hidden layers */
    int64_t hidden; /* resnet: channels of the first stage */
    int64_t heads, kv_heads, ffn, context, vocab;
    int64_t head_dim; /* elements of a head; llama...: any even number, else hidden / heads */
    int64_t classes;  /* classifiers */
    int64_t image[3]; /* channels, height, width */
    int64_t patch;    /* vit */
    int64_t window;   /* mixtral, mistral, qwen2, qwen3: a token attends to that many tokens, itself
                         and   those before it; 0: to all before it */
    int64_t window_from; /* qwen2, qwen3: layers before this one have no window */
    double dropout;      /* llama...: of attention probabilities only */
    /* gpt2, gpt2-moe, bert, vit: with `dropout_apart` these places have rates of their own, and
     * `dropout` is that of both halves of a block (bert, vit: also of the embedding) */
    bool dropout_apart;
    double attention_dropout, embedding_dropout;
    double norm_eps, rope_theta;
    weft_rope_scaling rope_scaling; /* llama... */
    double attention_factor;        /* of YaRN: factor of queries and keys; 0: 1 */
    bool tied;   /* llama...: the output uses the embedding; gpt2, gpt2-moe and bert: see untied */
    bool untied; /* gpt2, gpt2-moe, bert: the output has a matrix of its own */
    bool attention_bias; /* llama, qwen3, olmo2: query, key, value and output projections have
                            biases. qwen2 always has those of query, key and value, and no others */
    bool mlp_bias;       /* llama: the projections of the feed-forward layer have biases */
    bool no_qkv_bias;    /* vit: query, key and value have no biases */
    /* gpt2-moe, mixtral: each feed-forward layer is a mixture of experts */
    int64_t experts, experts_per_token;
    double capacity_factor; /* slots of an expert in training, in multiples of an even share; 0: no
                               bound, no token is dropped */
    double aux_loss;        /* weight of the loss that balances the experts; 0: none */
    weft_lora lora;         /* gpt2, gpt2-moe, llama... */
    /* DECODE: tokens for which the key-value caches have room, at most the context; 0: the context.
     * It is not in config.json. */
    int64_t cache;
    /* DECODE: texts that the caches hold; then "position" is [batch, 2]: the text of each sample,
     * and the position. Samples may belong to one text. Needs seq 1. 0: each sample is a text. */
    int64_t cache_rows;
    /* DECODE: tokens whose logits are computed, [1, asked, vocab]. The input "asked" i32 [asked]
     * has their numbers among the batch * seq tokens. 0: all tokens, without the input. */
    int64_t asked;
    /* language models: the tokens that end a text; none: those that the tokenizer names */
    int64_t end_count;
    int32_t ends[WEFT_MAX_END_TOKENS];
    /* The tokens that begin and pad a text. llama... and bert: the look-up of the padding token
     * gives its row of the embedding no gradient, as in transformers. */
    bool has_begin, has_pad;
    int32_t begin, pad;
} weft_model_config;

typedef enum weft_model_use {
    WEFT_USE_TRAIN,  /* with loss, dropout, batch statistics */
    WEFT_USE_EVAL,   /* with loss, no dropout */
    WEFT_USE_LOGITS, /* output "logits", no loss, no target input */
    WEFT_USE_DECODE /* gpt2, gpt2-moe, llama...: a piece of a sequence with key-value caches; seq 0:
                       one token. Inputs "tokens" [batch, seq] and "position" i32 [batch], the
                       position of each sample's first token; gpt2 and gpt2-moe with seq > 1 also
                       "positions" i32 [batch, seq]: position, position + 1... */
} weft_model_use;

/** Fill in defaults and check. WEFT_E_ARG names the wrong field and the valid values. */
WEFT_API weft_status weft_model_complete(weft_model_config *config) WEFT_CHECKED;

/** Build the graph for `batch` samples of `seq` tokens (seq 0: config->context; image models ignore
 * it). Activations have the type `dtype`; parameters are f32, or f64 if `dtype` is f64. DECODE in
 * bf16 has tables and weights of products in bf16 as well; its logits are f32. Below, "float" is
 * f64 in f64 graphs, else f32.
 *
 * Inputs of language models: "tokens" i32 [batch, seq] and "targets" i32 [batch, seq] (-1:
 * ignored). Inputs of classifiers: "image" float [batch, channels, height, width] and "label" i32
 * [batch]. bert in TRAIN also has "share", float []: it multiplies the loss. It is 1, or, for a
 * microbatch, its number of targets that count, divided by the mean number in the step's
 * microbatches.
 *
 * Outputs: "loss" (TRAIN, EVAL); "logits" (LOGITS, DECODE, and EVAL of classifiers).
 *
 * Parameters have the names of Hugging Face or torchvision, without the model's own prefix: see
 * weft_model_file_name.
 * @param out  freed with weft_graph_destroy */
WEFT_API weft_status weft_model_build(const weft_model_config *config, weft_model_use use,
                                      int64_t batch, int64_t seq, weft_dtype dtype,
                                      weft_graph **out) WEFT_CHECKED;
/** The same with tables and weights of products in the type of activations, for training with
 * masters (weft_plan_master): TRAIN, and EVAL and LOGITS beside it. */
WEFT_API weft_status weft_model_build_master(const weft_model_config *config, weft_model_use use,
                                             int64_t batch, int64_t seq, weft_dtype dtype,
                                             weft_graph **out) WEFT_CHECKED;

/** Convert config.json, in the form of transformers 4 or 5, to a complete config, and back.
 * gpt2-moe, mlp, lenet and resnet have no such form: they use model_type "weft-mlp" and so on,
 * with the fields of weft_model_config. The text of weft_model_config_write is freed with
 * weft_text_free.
 * @return WEFT_E_NO_IMPL names an unsupported setting; WEFT_E_ARG and WEFT_E_CORRUPT an invalid one
 */
WEFT_API weft_status weft_model_config_read(const char *json, weft_model_config *out) WEFT_CHECKED;
WEFT_API weft_status weft_model_config_write(const weft_model_config *config,
                                             char **out) WEFT_CHECKED;

/** Read generation_config.json, which may be beside config.json. If it names tokens that end a
 * text, they replace those in `config`. */
WEFT_API weft_status weft_model_config_read_generation(const char *json,
                                                       weft_model_config *config) WEFT_CHECKED;

/** How files of the family store parameter or state `name` of a graph: writes the tensor's name in
 * files into `buffer`, and its shape there (the same elements in the same order) into *out_desc.
 * Some are stored as several tensors, each an equal share of the elements in order (mixtral: one
 * for each expert); `part` counts them from 0. WEFT_E_NOT_FOUND after the last part, and for a
 * key-value cache, which is not stored. */
WEFT_API weft_status weft_model_file_name(const weft_model_config *config, const char *name,
                                          const weft_desc *desc, int64_t part, char *buffer,
                                          size_t buffer_bytes, weft_desc *out_desc) WEFT_CHECKED;
/** Further names of the tensor `file_name` of weft_model_file_name in files of other programs;
 * `index` counts from 0. WEFT_E_NOT_FOUND after the last one. */
WEFT_API weft_status weft_model_file_alias(const weft_model_config *config, const char *file_name,
                                           int index, char *buffer,
                                           size_t buffer_bytes) WEFT_CHECKED;
/** Whether files of the family may hold a tensor of this name that the model does not have:
 * constants, copies of tied tensors, heads of other tasks. */
WEFT_API bool weft_model_file_extra(const weft_model_config *config, const char *file_name);

/** Whether samples of this family are token sequences (else images with labels). */
WEFT_API bool weft_family_is_language(weft_family family);
/** "gpt2-moe"; "?" for a value outside the enum. Static storage. */
WEFT_API const char *weft_family_text(weft_family family);

#ifdef __cplusplus
}
#endif
#endif
