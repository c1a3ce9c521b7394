/* The usual splits of each model family: which factor of which op is split for tensor, sequence and
 * expert parallelism. Sources: Shoeybi et al., "Megatron-LM", 2019 (heads, widths, vocabulary);
 * Korthikanti et al., "Reducing Activation Recomputation", 2022 (norms and residuals along the
 * sequence); Lepikhin et al., "GShard", 2020 (experts). */
#ifndef WEFTI_MODELS_SPLITS_H
#define WEFTI_MODELS_SPLITS_H

#include <stddef.h>

#include "weft/model.h"

typedef enum wefti_split_role {
    WEFTI_SPLIT_TENSOR,       /* widths of feed-forward layers */
    WEFTI_SPLIT_HEADS,        /* the same of attention: over as many devices as keys have heads */
    WEFTI_SPLIT_VOCABULARY,   /* tables of the embedding and of the output */
    WEFTI_SPLIT_SEQUENCE,     /* norms and residual sums, along the sequence */
    WEFTI_SPLIT_EXPERT,       /* experts of mixtures */
    WEFTI_SPLIT_EXPERT_WIDTH, /* the inside of experts, to generate text */
    WEFTI_SPLIT_ROLES
} wefti_split_role;

typedef struct wefti_family_split {
    unsigned families; /* bit 1 << family for each that has the ops */
    wefti_split_role role;
    const char *match;  /* pattern over the names of ops, as in a plan */
    const char *factor; /* a factor or dimension of these ops */
} wefti_family_split;

/* The layer whose adapter a row is about: "q_proj" of "layers.*.q_proj.lora_B:linear". NULL: none.
 */
const char *wefti_split_adapter(const wefti_family_split *row, size_t *out_length);
/* Whether a model of this configuration has the ops of the row: its family does, and, for rows of
 * adapters, the configuration lists their layer. */
bool wefti_split_applies(const wefti_family_split *row, const weft_model_config *c);
/* All rows, in the order in which a plan should list them. Static storage. */
const wefti_family_split *wefti_family_splits(int *out_count);
/* Whether the family's results depend on the number of microbatches: norms over the batch see one
 * microbatch. */
bool wefti_family_has_batch_norms(weft_family family);
/* Whether the family has rows of this role; for TENSOR, those of HEADS count too. */
bool wefti_family_has_split(weft_family family, wefti_split_role role);

#endif
