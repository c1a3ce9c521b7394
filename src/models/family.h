/* The families of models: one row for each, with all that the program knows of a family beside the
 * code of its builder and of its config.json. Nothing else lists families: other tables are made
 * from these rows when the program is compiled, so that a family is nowhere forgotten. */
#ifndef WEFTI_MODELS_FAMILY_H
#define WEFTI_MODELS_FAMILY_H

#include "weft/model.h"

/* How the ops and tensors of a family are named, in graphs and in files. */
typedef enum wefti_family_style {
    WEFTI_STYLE_OWN, /* no other program has this family */
    WEFTI_STYLE_GPT2,
    WEFTI_STYLE_LLAMA,
    WEFTI_STYLE_BERT,
    WEFTI_STYLE_VIT,
    WEFTI_STYLE_RESNET,
    WEFTI_STYLES
} wefti_family_style;

typedef enum wefti_family_trait {
    WEFTI_LANGUAGE = 1 << 0, /* samples are token sequences, else images */
    WEFTI_LAYERS = 1 << 1,   /* model.layers tells how many */
    WEFTI_HIDDEN = 1 << 2,   /* model.hidden tells a width */
    WEFTI_HEADS = 1 << 3,    /* blocks with attention and feed-forward layers */
    WEFTI_NORM_EPS = 1 << 4,
    WEFTI_EQUAL_BLOCKS = 1 << 5, /* but for windows from a layer on; the search then uses few */
    WEFTI_GENERATES = 1 << 6,    /* WEFT_USE_DECODE */
    WEFTI_ROTARY = 1 << 7,       /* rotary positions, grouped heads, model.head_dim, model.tied */
    WEFTI_TIED = 1 << 8,         /* the output uses the embedding unless `untied` */
    WEFTI_WINDOW = 1 << 9,
    WEFTI_LATE_WINDOW = 1 << 10, /* from a layer on */
    WEFTI_EXPERTS = 1 << 11,
    WEFTI_BATCH_NORMS = 1 << 12, /* norms over the batch see one microbatch */
    WEFTI_PATCHES = 1 << 13,
    WEFTI_BIASED = 1 << 14,         /* all products have biases */
    WEFTI_QKV_BIASED = 1 << 15,     /* query, key and value have */
    WEFTI_ATTENTION_BIAS = 1 << 16, /* if model.attention_bias says so */
    WEFTI_MLP_BIAS = 1 << 17,       /* if model.mlp_bias says so */
    WEFTI_HEAD_NORMS = 1 << 18,     /* a norm of each head of queries and keys */
    WEFTI_QK_NORMS = 1 << 19,       /* a norm of all heads of queries, and one of keys */
    WEFTI_POST_NORMS = 1 << 20      /* norms stand behind attention and feed-forward layers */
} wefti_family_trait;

#define WEFTI_BLOCK_TRAITS                                                                         \
    (WEFTI_LAYERS | WEFTI_HIDDEN | WEFTI_HEADS | WEFTI_NORM_EPS | WEFTI_EQUAL_BLOCKS)
#define WEFTI_TEXT_TRAITS (WEFTI_BLOCK_TRAITS | WEFTI_LANGUAGE)
#define WEFTI_GPT2_TRAITS (WEFTI_TEXT_TRAITS | WEFTI_GENERATES | WEFTI_TIED | WEFTI_BIASED)
#define WEFTI_LLAMA_TRAITS (WEFTI_TEXT_TRAITS | WEFTI_GENERATES | WEFTI_ROTARY)

/* X(p, name of WEFT_FAMILY_NAME, builder wefti_build_..., reader and writer of config.json, style,
 * traits, model_type of config.json, defaults of weft_model_config...) */
#define WEFTI_FAMILY_ROWS(X, p)                                                                    \
    X(p, GPT2, gpt2, gpt2, GPT2, WEFTI_GPT2_TRAITS, "gpt2", .layers = 12, .hidden = 768,           \
      .heads = 12, .context = 1024, .norm_eps = 1e-5)                                              \
    X(p, LLAMA, llama, llama, LLAMA, WEFTI_LLAMA_TRAITS | WEFTI_ATTENTION_BIAS | WEFTI_MLP_BIAS,   \
      "llama", .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-5,        \
      .rope_theta = 10000.0)                                                                       \
    X(p, BERT, bert, bert, BERT, WEFTI_TEXT_TRAITS | WEFTI_TIED | WEFTI_BIASED, "bert",            \
      .layers = 12, .hidden = 768, .heads = 12, .context = 512, .norm_eps = 1e-12)                 \
    X(p, GPT2_MOE, gpt2, gpt2_moe, GPT2, WEFTI_GPT2_TRAITS | WEFTI_EXPERTS, "weft-gpt2-moe",       \
      .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-5, .experts = 8,   \
      .experts_per_token = 1)                                                                      \
    X(p, MIXTRAL, llama, mixtral, LLAMA, WEFTI_LLAMA_TRAITS | WEFTI_WINDOW | WEFTI_EXPERTS,        \
      "mixtral", .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-5,      \
      .rope_theta = 1000000.0, .experts = 8, .experts_per_token = 2)                               \
    X(p, MISTRAL, llama, mistral, LLAMA, WEFTI_LLAMA_TRAITS | WEFTI_WINDOW, "mistral",             \
      .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-5,                 \
      .rope_theta = 10000.0)                                                                       \
    X(p, QWEN2, llama, qwen2, LLAMA,                                                               \
      WEFTI_LLAMA_TRAITS | WEFTI_WINDOW | WEFTI_LATE_WINDOW | WEFTI_QKV_BIASED, "qwen2",           \
      .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-6,                 \
      .rope_theta = 1000000.0)                                                                     \
    X(p, QWEN3, llama, qwen3, LLAMA,                                                               \
      WEFTI_LLAMA_TRAITS | WEFTI_WINDOW | WEFTI_LATE_WINDOW | WEFTI_ATTENTION_BIAS |               \
          WEFTI_HEAD_NORMS,                                                                        \
      "qwen3", .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-6,        \
      .rope_theta = 1000000.0)                                                                     \
    X(p, OLMO2, llama, olmo2, LLAMA,                                                               \
      WEFTI_LLAMA_TRAITS | WEFTI_ATTENTION_BIAS | WEFTI_QK_NORMS | WEFTI_POST_NORMS, "olmo2",      \
      .layers = 12, .hidden = 768, .heads = 12, .context = 1024, .norm_eps = 1e-6,                 \
      .rope_theta = 500000.0)                                                                      \
    X(p, VIT, vit, vit, VIT, WEFTI_BLOCK_TRAITS | WEFTI_BIASED | WEFTI_PATCHES, "vit",             \
      .layers = 12, .hidden = 768, .heads = 12, .patch = 16, .norm_eps = 1e-12)                    \
    X(p, MLP, mlp, own, OWN, WEFTI_LAYERS | WEFTI_HIDDEN, "weft-mlp", .layers = 2, .hidden = 256)  \
    X(p, LENET, lenet, own, OWN, 0, "weft-lenet", .layers = 0)                                     \
    X(p, RESNET18, resnet, own, RESNET, WEFTI_HIDDEN | WEFTI_NORM_EPS | WEFTI_BATCH_NORMS,         \
      "weft-resnet18", .hidden = 64, .norm_eps = 1e-5)                                             \
    X(p, RESNET50, resnet, own, RESNET, WEFTI_HIDDEN | WEFTI_NORM_EPS | WEFTI_BATCH_NORMS,         \
      "weft-resnet50", .hidden = 64, .norm_eps = 1e-5)

/* Sets of families, 1 << family for each, as constants: those with one of the traits; those of a
 * style. */
#define WEFTI_FAMILY_BIT_OF_TRAIT(p, name, build, config, style, traits, ...)                      \
    | ((traits) & (p) ? 1u << WEFT_FAMILY_##name : 0u)
#define WEFTI_FAMILY_BIT_OF_STYLE(p, name, build, config, style, ...)                              \
    | (WEFTI_STYLE_##style == (p) ? 1u << WEFT_FAMILY_##name : 0u)
#define WEFTI_FAMILIES_WITH(traits) (0u WEFTI_FAMILY_ROWS(WEFTI_FAMILY_BIT_OF_TRAIT, traits))
#define WEFTI_FAMILIES_LIKE(style) (0u WEFTI_FAMILY_ROWS(WEFTI_FAMILY_BIT_OF_STYLE, style))

/* Whether the family has one of the traits. False outside the enum. */
bool wefti_family_has(weft_family family, unsigned traits);
/* WEFTI_STYLE_OWN outside the enum. */
wefti_family_style wefti_family_style_of(weft_family family);

#endif
