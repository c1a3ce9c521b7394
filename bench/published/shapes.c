/* Public shapes of models that tables name without their sizes. Sources: the models' own published
 * configurations (config.json of Hugging Face, or the paper). */
#include <ctype.h>
#include <string.h>

#include "published.h"

static const struct {
    const char *name; /* letters and digits of a part of the name, lower case */
    pub_model model;
} shapes[] = {
    {"deepseekcoderv2lite",
     {.layers = 27, .hidden = 2048, .heads = 16, .kv_heads = 16, .head_size = 192, .ffn = 10944,
      .vocab = 102400, .gated = true, .experts = 64, .chosen = 6, .expert_ffn = 1408,
      .shared_ffn = 2816, .dense_layers = 1, .value_rank = 512}},
    {"deepseekv4flash", /* sizes not public when this was written: of 284e9 parameters, 13e9 active */
     {.layers = 43, .hidden = 4096, .heads = 64, .kv_heads = 64, .head_size = 192, .ffn = 12288,
      .vocab = 129280, .gated = true, .experts = 256, .chosen = 6, .expert_ffn = 2048,
      .shared_ffn = 2048, .query_rank = 1024, .value_rank = 512}},
    {"deepseekv3",
     {.layers = 61, .hidden = 7168, .heads = 128, .kv_heads = 128, .head_size = 192, .ffn = 18432,
      .vocab = 129280, .gated = true, .experts = 256, .chosen = 8, .expert_ffn = 2048,
      .shared_ffn = 2048, .dense_layers = 3, .query_rank = 1536, .value_rank = 512}},
    {"kimik2",
     {.layers = 61, .hidden = 7168, .heads = 64, .kv_heads = 64, .head_size = 192, .ffn = 18432,
      .vocab = 163840, .gated = true, .experts = 384, .chosen = 8, .expert_ffn = 2048,
      .shared_ffn = 2048, .dense_layers = 1, .query_rank = 1536, .value_rank = 512}},
    {"gptoss120b",
     {.layers = 36, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_size = 64, .ffn = 2880,
      .vocab = 201088, .gated = true, .experts = 128, .chosen = 4, .expert_ffn = 2880}},
    {"gptoss20b",
     {.layers = 24, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_size = 64, .ffn = 2880,
      .vocab = 201088, .gated = true, .experts = 32, .chosen = 4, .expert_ffn = 2880}},
    {"qwen3next80b",
     {.layers = 48, .hidden = 2048, .heads = 16, .kv_heads = 2, .head_size = 256, .ffn = 5120,
      .vocab = 151936, .gated = true, .experts = 512, .chosen = 10, .expert_ffn = 512,
      .shared_ffn = 512}},
    {"qwen330b",
     {.layers = 48, .hidden = 2048, .heads = 32, .kv_heads = 4, .head_size = 128, .ffn = 6144,
      .vocab = 151936, .gated = true, .experts = 128, .chosen = 8, .expert_ffn = 768}},
    {"qwen3235b",
     {.layers = 94, .hidden = 4096, .heads = 64, .kv_heads = 4, .head_size = 128, .ffn = 12288,
      .vocab = 151936, .gated = true, .experts = 128, .chosen = 8, .expert_ffn = 1536}},
    {"mixtral8x22b",
     {.layers = 56, .hidden = 6144, .heads = 48, .kv_heads = 8, .head_size = 128, .ffn = 16384,
      .vocab = 32000, .gated = true, .experts = 8, .chosen = 2, .expert_ffn = 16384}},
    {"mixtral8x7b",
     {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_size = 128, .ffn = 14336,
      .vocab = 32000, .gated = true, .experts = 8, .chosen = 2, .expert_ffn = 14336}},
    {"llama4maverick",
     {.layers = 48, .hidden = 5120, .heads = 40, .kv_heads = 8, .head_size = 128, .ffn = 16384,
      .vocab = 202048, .gated = true, .experts = 128, .chosen = 1, .expert_ffn = 8192,
      .shared_ffn = 8192, .every = 2}},
    {"llama4scout",
     {.layers = 48, .hidden = 5120, .heads = 40, .kv_heads = 8, .head_size = 128, .ffn = 16384,
      .vocab = 202048, .gated = true, .experts = 16, .chosen = 1, .expert_ffn = 8192,
      .shared_ffn = 8192}},
    {"grok1",
     {.hidden = 6144, .heads = 48, .kv_heads = 8, .head_size = 128, .ffn = 32768, .vocab = 131072,
      .gated = true, .experts = 8, .chosen = 2, .expert_ffn = 32768}},
    /* Hybrids of state spaces, experts and attention: as transformers of equal width. A pair of
     * their layers counts as one. */
    {"nemotron3nano",
     {.layers = 26, .hidden = 2688, .heads = 32, .kv_heads = 2, .head_size = 128, .ffn = 1856,
      .vocab = 131072, .experts = 128, .chosen = 6, .expert_ffn = 1856, .shared_ffn = 3712}},
    {"nemotronv3nano",
     {.layers = 26, .hidden = 2688, .heads = 32, .kv_heads = 2, .head_size = 128, .ffn = 1856,
      .vocab = 131072, .experts = 128, .chosen = 6, .expert_ffn = 1856, .shared_ffn = 3712}},
    {"nemotron35lightning",
     {.layers = 26, .hidden = 2688, .heads = 32, .kv_heads = 2, .head_size = 128, .ffn = 1856,
      .vocab = 131072, .experts = 128, .chosen = 6, .expert_ffn = 1856, .shared_ffn = 3712}},
    {"nemotron3super",
     {.layers = 44, .hidden = 4096, .heads = 32, .kv_heads = 2, .head_size = 128, .ffn = 2688,
      .vocab = 131072, .experts = 512, .chosen = 22, .expert_ffn = 1344, .shared_ffn = 5376}},
    {"nemotron3ultra",
     {.layers = 54, .hidden = 8192, .heads = 64, .kv_heads = 2, .head_size = 128, .ffn = 5120,
      .vocab = 131072, .experts = 512, .chosen = 22, .expert_ffn = 2560, .shared_ffn = 10240}},
    {"nemotronh56b",
     {.layers = 59, .hidden = 8192, .heads = 64, .kv_heads = 8, .head_size = 128, .ffn = 32768,
      .vocab = 131072}},
    {"nemotron8b",
     {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .head_size = 128, .ffn = 16384,
      .vocab = 256000}},
    {"nemotron22b",
     {.layers = 40, .hidden = 6144, .heads = 48, .kv_heads = 48, .head_size = 128, .ffn = 24576,
      .vocab = 256000}},
    {"nemotron4",
     {.gated = false, .tied = false}}, /* squared ReLU; the row has the sizes */
    {"gpt320b",
     {.layers = 44, .hidden = 6144, .heads = 48, .kv_heads = 48, .head_size = 128, .ffn = 24576,
      .vocab = 51200, .tied = true, .learned_positions = true}},
    {"t5770m",
     {.layers = 48, .hidden = 1024, .heads = 16, .kv_heads = 16, .head_size = 64, .ffn = 4096,
      .vocab = 30592, .tied = true, .learned_positions = true}},
    {"gpt313b",
     {.layers = 24, .hidden = 2048, .heads = 32, .kv_heads = 32, .head_size = 64, .ffn = 8192,
      .vocab = 51200, .tied = true, .learned_positions = true}},
};

bool pub_shape_find(const char *name, pub_model *out) {
    char plain[80];
    size_t used = 0;
    for (; *name && used + 1 < sizeof plain; name++)
        if (isalnum((unsigned char)*name)) plain[used++] = (char)tolower((unsigned char)*name);
    plain[used] = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strstr(plain, shapes[i].name)) {
            *out = shapes[i].model;
            return true;
        }
    return false;
}
