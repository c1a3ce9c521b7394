/* The table of usual splits: see models/splits.h. */
#include "models/splits.h"

#include <string.h>

#include "models/family.h"
#include "models/models.h"

enum {
    MIXTURES = WEFTI_FAMILIES_WITH(WEFTI_EXPERTS),
    GPT2_BOTH = WEFTI_FAMILIES_LIKE(WEFTI_STYLE_GPT2),
    GPT2 = GPT2_BOTH & ~MIXTURES,
    GPT2_EXPERTS = GPT2_BOTH & MIXTURES,
    LLAMA_ALL = WEFTI_FAMILIES_LIKE(WEFTI_STYLE_LLAMA),
    LLAMA_DENSE = LLAMA_ALL & ~MIXTURES,
    LLAMA_EXPERTS = LLAMA_ALL & MIXTURES,
    BERT = WEFTI_FAMILIES_LIKE(WEFTI_STYLE_BERT),
    VIT = WEFTI_FAMILIES_LIKE(WEFTI_STYLE_VIT),
    ENCODERS = BERT | VIT,
    PERCEPTRON = 1 << WEFT_FAMILY_MLP
};

static const wefti_family_split splits[] = {
    {GPT2_BOTH, WEFTI_SPLIT_VOCABULARY, "embed.wte:embedding", "vocab"},
    {GPT2_BOTH, WEFTI_SPLIT_HEADS, "h.*.attn.c_attn:linear", "n1"}, /* [3, heads * dim] */
    {GPT2_BOTH, WEFTI_SPLIT_HEADS, "h.*.attn:attention", "heads"},
    {GPT2_BOTH, WEFTI_SPLIT_HEADS, "h.*.attn.c_proj:linear", "k"},
    {GPT2, WEFTI_SPLIT_TENSOR, "h.*.mlp.c_fc:linear", "n0"},
    {GPT2, WEFTI_SPLIT_TENSOR, "h.*.mlp.c_proj:linear", "k"},
    {GPT2_EXPERTS, WEFTI_SPLIT_EXPERT, "h.*.moe.experts.*:moe_linear", "experts"},
    {GPT2_EXPERTS, WEFTI_SPLIT_EXPERT_WIDTH, "h.*.moe.experts.c_fc:moe_linear", "n"},
    {GPT2_EXPERTS, WEFTI_SPLIT_EXPERT_WIDTH, "h.*.moe.experts.c_proj:moe_linear", "k"},
    {GPT2_BOTH, WEFTI_SPLIT_SEQUENCE, "h.*.ln_?:layer_norm", "in0.1"},
    {GPT2_BOTH, WEFTI_SPLIT_SEQUENCE, "h.*[0-9]:add", "in0.1"},
    {GPT2_BOTH, WEFTI_SPLIT_SEQUENCE, "head.ln_f:layer_norm", "in0.1"},
    {GPT2_BOTH, WEFTI_SPLIT_VOCABULARY, "head.*:linear", "n0"},
    /* Adapters: B as the columns of their layer, A as its rows. */
    {GPT2_BOTH, WEFTI_SPLIT_HEADS, "h.*.attn.c_attn.lora_B:linear", "n1"},
    {GPT2_BOTH, WEFTI_SPLIT_HEADS, "h.*.attn.c_proj.lora_A:linear", "k"},
    {GPT2, WEFTI_SPLIT_TENSOR, "h.*.mlp.c_fc.lora_B:linear", "n0"},
    {GPT2, WEFTI_SPLIT_TENSOR, "h.*.mlp.c_proj.lora_A:linear", "k"},

    {LLAMA_ALL, WEFTI_SPLIT_VOCABULARY, "embed.embed_tokens:embedding", "vocab"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.self_attn.[qkv]_proj:linear", "n0"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.self_attn:attention", "heads"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.self_attn.o_proj:linear", "k"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.mlp.gate_proj:linear", "n0"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.mlp.up_proj:linear", "n0"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.mlp.down_proj:linear", "k"},
    {LLAMA_EXPERTS, WEFTI_SPLIT_EXPERT, "layers.*.experts.*:moe_linear", "experts"},
    {LLAMA_EXPERTS, WEFTI_SPLIT_EXPERT_WIDTH, "layers.*.experts.w[13]:moe_linear", "n"},
    {LLAMA_EXPERTS, WEFTI_SPLIT_EXPERT_WIDTH, "layers.*.experts.w2:moe_linear", "k"},
    {LLAMA_ALL, WEFTI_SPLIT_SEQUENCE, "layers.*_layernorm:rms_norm", "in0.1"},
    {LLAMA_ALL, WEFTI_SPLIT_SEQUENCE, "layers.*[0-9]:add", "in0.1"},
    {LLAMA_ALL, WEFTI_SPLIT_SEQUENCE, "head.norm:rms_norm", "in0.1"},
    {LLAMA_ALL, WEFTI_SPLIT_VOCABULARY, "head.*:linear", "n0"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.q_proj.lora_B:linear", "n0"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.k_proj.lora_B:linear", "n0"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.v_proj.lora_B:linear", "n0"},
    {LLAMA_ALL, WEFTI_SPLIT_HEADS, "layers.*.o_proj.lora_A:linear", "k"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.gate_proj.lora_B:linear", "n0"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.up_proj.lora_B:linear", "n0"},
    {LLAMA_DENSE, WEFTI_SPLIT_TENSOR, "layers.*.down_proj.lora_A:linear", "k"},

    {BERT, WEFTI_SPLIT_VOCABULARY, "embeddings.*word_embeddings:embedding", "vocab"},
    {BERT, WEFTI_SPLIT_HEADS, "encoder.layer.*.attention.self.*:linear", "n0"},
    {VIT, WEFTI_SPLIT_HEADS, "encoder.layer.*.attention.attention.*:linear", "n0"},
    {ENCODERS, WEFTI_SPLIT_HEADS, "encoder.layer.*:attention", "heads"},
    {ENCODERS, WEFTI_SPLIT_HEADS, "encoder.layer.*.attention.output.dense:linear", "k"},
    {ENCODERS, WEFTI_SPLIT_TENSOR, "encoder.layer.*.intermediate.dense:linear", "n0"},
    {ENCODERS, WEFTI_SPLIT_TENSOR, "encoder.layer.*[0-9].output.dense:linear", "k"},
    {BERT, WEFTI_SPLIT_SEQUENCE, "encoder.layer.*LayerNorm:layer_norm", "in0.1"},
    {BERT, WEFTI_SPLIT_SEQUENCE, "encoder.layer.*.output:add", "in0.1"},
    {VIT, WEFTI_SPLIT_SEQUENCE, "encoder.layer.*.layernorm_*:layer_norm", "in0.1"},
    {VIT, WEFTI_SPLIT_SEQUENCE, "encoder.layer.*[0-9]:add", "in0.1"},
    {BERT, WEFTI_SPLIT_VOCABULARY, "cls.predictions.*word_embeddings:linear", "n0"},

    {PERCEPTRON, WEFTI_SPLIT_TENSOR, "layers.*[02468]:linear", "n0"},
    {PERCEPTRON, WEFTI_SPLIT_TENSOR, "layers.*[13579]:linear", "k"},
};

const char *wefti_split_adapter(const wefti_family_split *row, size_t *out_length) {
    const char *end = strstr(row->match, ".lora_"), *begin = end;
    if (!end) return NULL;
    while (begin > row->match && begin[-1] != '.') begin--;
    *out_length = (size_t)(end - begin);
    return begin;
}

bool wefti_split_applies(const wefti_family_split *row, const weft_model_config *c) {
    if (!(row->families >> c->family & 1)) return false;
    size_t length;
    const char *layer = wefti_split_adapter(row, &length);
    return !layer || wefti_lora_targets(&c->lora, layer, length);
}

const wefti_family_split *wefti_family_splits(int *out_count) {
    *out_count = (int)(sizeof splits / sizeof *splits);
    return splits;
}

bool wefti_family_has_batch_norms(weft_family family) {
    return wefti_family_has(family, WEFTI_BATCH_NORMS);
}

bool wefti_family_has_split(weft_family family, wefti_split_role role) {
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const bool is = splits[i].role == role ||
                        (role == WEFTI_SPLIT_TENSOR && splits[i].role == WEFTI_SPLIT_HEADS);
        if (is && splits[i].families >> family & 1) return true;
    }
    return false;
}
