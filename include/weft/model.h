/* Model families, written with the public graph API only: gpt2, llama, bert, vit, mlp, lenet,
 * resnet18, resnet50. */
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

/* What a model is, apart from the batch. Zero means the family's default where there is one. */
typedef struct weft_model_config {
    weft_family family;
    int64_t layers, hidden, heads, kv_heads, ffn, context, vocab;
    int64_t classes;  /* classifiers */
    int64_t image[3]; /* channels, height, width */
    int64_t patch;    /* vit */
    double dropout, norm_eps, rope_theta;
    bool tied; /* llama: the output uses the embedding; gpt2 and bert always do */
} weft_model_config;

typedef enum weft_model_use {
    WEFT_USE_TRAIN,  /* with loss, dropout, batch statistics */
    WEFT_USE_EVAL,   /* with loss, no dropout */
    WEFT_USE_LOGITS, /* output "logits", no loss, no target input */
    WEFT_USE_DECODE  /* gpt2, llama: one step with key/value caches; inputs "tokens" [batch, seq],
                        "position" i32 [] */
} weft_model_use;

/** Fill in defaults and check: WEFT_E_ARG names the field that is wrong and what would be right. */
WEFT_API weft_status weft_model_complete(weft_model_config *config) WEFT_CHECKED;

/** Build the graph for `batch` samples of `seq` tokens (seq 0: config->context; ignored by image
 * models) with activations of dtype `dtype`. Inputs: language models "tokens" i32 [batch, seq] and
 * "targets" i32 [batch, seq] (-1: ignored); classifiers "image" f32 [batch, c, h, w] and "label"
 * i32 [batch]. Outputs: "logits" (LOGITS, DECODE and classifiers), "loss". Parameters have Hugging
 * Face names (without the "transformer."/"model." prefix question: see weft_model_file_name). */
WEFT_API weft_status weft_model_build(const weft_model_config *config, weft_model_use use,
                                      int64_t batch, int64_t seq, weft_dtype dtype,
                                      weft_graph **out) WEFT_CHECKED;

/** config.json of Hugging Face's form: text to a config (WEFT_E_ARG names what is not supported),
 * and back (freed with weft_text_free). */
WEFT_API weft_status weft_model_config_read(const char *json, weft_model_config *out) WEFT_CHECKED;
WEFT_API weft_status weft_model_config_write(const weft_model_config *config,
                                             char **out) WEFT_CHECKED;

/** How parameter `name` is stored in files of the family: its tensor's name there, and its shape
 * there (same elements in the same order, unless *out_transposed). Returned name lives in `buffer`.
 */
WEFT_API weft_status weft_model_file_name(const weft_model_config *config, const char *name,
                                          const weft_desc *desc, char *buffer, size_t buffer_bytes,
                                          weft_desc *out_desc) WEFT_CHECKED;

/** Samples of this family are token sequences (else images with labels). */
WEFT_API bool weft_family_is_language(weft_family family);
WEFT_API const char *weft_family_text(weft_family family);

#ifdef __cplusplus
}
#endif
#endif
