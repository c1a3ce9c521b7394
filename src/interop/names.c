/* How tensors are called in files: Hugging Face's names for gpt2, llama and families like it, bert
 * and vit, torchvision's for resnet, ours for the others.
 *
 * Inside, names lack the base model's prefix ("transformer.", "model.", "bert.", "vit."), which
 * files have or not, depending on the class that wrote them. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "interop/pretrained.h"
#include "models/family.h"

/* Per style: the prefix of the base model. Parts outside of the base model start with `head`. The
 * embedding and the output's matrix of language models, which tied models store once. */
typedef struct naming {
    const char *prefix, *head, *table, *output;
} naming;

static const naming namings[WEFTI_STYLES] = {
    [WEFTI_STYLE_GPT2] = {"transformer.", "lm_head.", "transformer.wte.weight", "lm_head.weight"},
    [WEFTI_STYLE_LLAMA] = {"model.", "lm_head.", "model.embed_tokens.weight", "lm_head.weight"},
    [WEFTI_STYLE_BERT] = {"bert.", "cls.", "bert.embeddings.word_embeddings.weight",
                          "cls.predictions.decoder.weight"},
    [WEFTI_STYLE_VIT] = {.prefix = "vit.", .head = "classifier."},
};

static const naming *naming_of(const weft_model_config *config) {
    return &namings[wefti_family_style_of(config->family)];
}

static bool starts(const char *text, const char *with) {
    return with && !strncmp(text, with, strlen(with));
}

static bool ends(const char *text, const char *with) {
    size_t a = strlen(text), b = strlen(with);
    return a >= b && !strcmp(text + a - b, with);
}

static weft_status check_fit(int needed, size_t bytes, const char *name) {
    WEFT_REQUIRE(needed >= 0 && (size_t)needed < bytes, WEFT_E_ARG,
                 "the name of %s in files does not fit %zu bytes", name, bytes);
    return WEFT_OK;
}

/* mixtral's experts are one tensor [experts, ...] here; files have a tensor for each,
 * "experts.3.w1.weight". NULL: none. */
static const char *expert_name(const weft_model_config *config, const char *name) {
    static const char of[] = "block_sparse_moe.experts.";
    const char *at = config->family == WEFT_FAMILY_MIXTRAL ? strstr(name, of) : NULL;
    return at ? at + sizeof of - 1 : NULL;
}

weft_status weft_model_file_name(const weft_model_config *config, const char *name,
                                 const weft_desc *desc, int64_t part, char *buffer,
                                 size_t buffer_bytes, weft_desc *out_desc) {
    WEFT_REQUIRE((unsigned)config->family < WEFT_FAMILIES, WEFT_E_ARG, "unknown model.family %d",
                 (int)config->family);
    WEFT_REQUIRE(!ends(name, ".cache.k") && !ends(name, ".cache.v"), WEFT_E_NOT_FOUND,
                 "%s is a cache: it is not stored", name);
    const naming *n = naming_of(config);
    const char *prefix = !n->prefix || starts(name, n->head) ? "" : n->prefix;
    const char *expert = desc->rank > 0 ? expert_name(config, name) : NULL;
    int64_t parts = expert ? desc->shape[0] : 1;
    WEFT_REQUIRE(part >= 0 && part < parts, WEFT_E_NOT_FOUND, "%s is stored as %lld tensors", name,
                 (long long)parts);
    weft_desc there = *desc;
    if (expert) {
        int kept = (int)(expert - name);
        WEFT_TRY(check_fit(snprintf(buffer, buffer_bytes, "%s%.*s%lld.%s", prefix, kept, name,
                                    (long long)part, expert),
                           buffer_bytes, name));
        there.rank--;
        memmove(there.shape, desc->shape + 1, (size_t)there.rank * sizeof *there.shape);
        there.shape[there.rank] = 0;
    } else {
        WEFT_TRY(
            check_fit(snprintf(buffer, buffer_bytes, "%s%s", prefix, name), buffer_bytes, name));
    }
    *out_desc = there;
    /* gpt2's query, key and value: [..., 3, hidden] here, [..., 3 * hidden] there */
    bool joined = ends(name, "attn.c_attn.weight") || ends(name, "attn.c_attn.bias");
    const bool gpt2 = wefti_family_style_of(config->family) == WEFTI_STYLE_GPT2;
    if (gpt2 && joined && desc->rank >= 2) {
        int64_t last = desc->shape[desc->rank - 1];
        out_desc->rank = desc->rank - 1;
        out_desc->shape[out_desc->rank - 1] *= last;
        out_desc->shape[out_desc->rank] = 0;
    }
    if (gpt2 && ends(name, "attn.c_attn.lora_B.weight") && desc->rank == 3)
        *out_desc = WEFT_DESC(desc->dtype, desc->shape[0] * desc->shape[1], desc->shape[2]);
    return WEFT_OK;
}

bool wefti_model_tie(const weft_model_config *config, const char **table, const char **head) {
    *table = naming_of(config)->table;
    *head = naming_of(config)->output;
    return *table != NULL;
}

/* BERT's first checkpoints call a norm's weight and bias gamma and beta. */
static const char *const old_norm[2][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};

weft_status weft_model_file_alias(const weft_model_config *config, const char *file_name, int index,
                                  char *buffer, size_t buffer_bytes) {
    WEFT_REQUIRE((unsigned)config->family < WEFT_FAMILIES, WEFT_E_ARG, "unknown model.family %d",
                 (int)config->family);
    const char *prefix = naming_of(config)->prefix;
    int place = index;
    if (starts(file_name, prefix) && place-- == 0)
        return check_fit(snprintf(buffer, buffer_bytes, "%s", file_name + strlen(prefix)),
                         buffer_bytes, file_name);
    for (int i = 0; i < 2 && config->family == WEFT_FAMILY_BERT; i++)
        if (ends(file_name, old_norm[i][0]) && place-- == 0) {
            int keep = (int)(strlen(file_name) - strlen(old_norm[i][0]));
            return check_fit(
                snprintf(buffer, buffer_bytes, "%.*s%s", keep, file_name, old_norm[i][1]),
                buffer_bytes, file_name);
        }
    /* safetensors' save_model keeps one name of a tied matrix, which may be the output's. */
    const char *table, *head;
    if (config->tied && wefti_model_tie(config, &table, &head) && !strcmp(file_name, table) &&
        place == 0)
        return check_fit(snprintf(buffer, buffer_bytes, "%s", head), buffer_bytes, file_name);
    WEFT_FAIL(WEFT_E_NOT_FOUND, "%s has no %d names in files", file_name, index + 2);
}

const char *wefti_bare_name(const weft_model_config *config, const char *plain) {
    const char *prefix = naming_of(config)->prefix;
    return starts(plain, prefix) ? plain + strlen(prefix) : plain;
}

/* Components of names that wrappers of torch add: compile, DistributedDataParallel, FSDP,
 * checkpoint_wrapper. DistributedDataParallel's stands at the begin only, and so does what PEFT
 * puts before the names of adapters. */
void wefti_plain_name(const char *name, char *out) {
    static const char *const wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                           "_checkpoint_wrapped_module."};
    static const char adapted[] = "base_model.model.";
    bool begin = true, boundary = true;
    while (*name) {
        size_t skip = begin && starts(name, "module.") ? strlen("module.") : 0;
        if (begin && starts(name, adapted)) skip = strlen(adapted);
        for (size_t i = 0; boundary && i < sizeof wrappers / sizeof *wrappers; i++)
            if (starts(name, wrappers[i])) skip = strlen(wrappers[i]);
        name += skip;
        if (skip) continue;
        begin = false;
        boundary = *name == '.';
        *out++ = *name++;
    }
    *out = 0;
}

bool weft_model_file_extra(const weft_model_config *config, const char *file_name) {
    const char *table, *head;
    if (config->tied && wefti_model_tie(config, &table, &head) && !strcmp(file_name, head))
        return true;
    switch (wefti_family_style_of(config->family)) {
    case WEFTI_STYLE_GPT2: /* the causal mask, the fill value after it */
        return ends(file_name, ".attn.bias") || ends(file_name, ".attn.masked_bias");
    case WEFTI_STYLE_LLAMA: /* rotary frequencies */
        return ends(file_name, ".rotary_emb.inv_freq");
    case WEFTI_STYLE_BERT: /* indices, the bias's second name, the head for sentence pairs */
        return ends(file_name, "embeddings.position_ids") ||
               ends(file_name, "embeddings.token_type_ids") ||
               !strcmp(file_name, "cls.predictions.decoder.bias") ||
               !strcmp(file_name, "cls.predictions.bias") ||
               starts(file_name, "cls.seq_relationship.") || starts(file_name, "bert.pooler.") ||
               starts(file_name, "pooler.");
    case WEFTI_STYLE_VIT:
        return starts(file_name, "vit.pooler.");
    case WEFTI_STYLE_RESNET:
        return ends(file_name, ".num_batches_tracked");
    default:
        return false;
    }
}
