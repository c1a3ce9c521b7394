/* Keys of models that only some families know. See train/job.h. */
#include "train/job.h"

#include <stdio.h>
#include <string.h>

#define OF(family) (1u << WEFT_FAMILY_##family)
enum {
    ROTARY = OF(LLAMA) | OF(MIXTRAL),
    EXPERTS = OF(GPT2_MOE) | OF(MIXTRAL),
    LANGUAGE = OF(GPT2) | OF(LLAMA) | OF(BERT) | OF(GPT2_MOE) | OF(MIXTRAL),
    BLOCKS = LANGUAGE | OF(VIT),
    RESIDUAL = OF(RESNET18) | OF(RESNET50),
    IMAGES = OF(VIT) | OF(MLP) | OF(LENET) | RESIDUAL
};

static const struct {
    const char *key;
    unsigned families;
} uses[] = {
    {"model.layers", BLOCKS | OF(MLP)},
    {"model.hidden", BLOCKS | OF(MLP) | RESIDUAL},
    {"model.heads", BLOCKS},
    {"model.kv_heads", ROTARY},
    {"model.ffn", BLOCKS},
    {"model.context", LANGUAGE},
    {"model.vocab", LANGUAGE},
    {"model.classes", IMAGES},
    {"model.image", IMAGES},
    {"model.patch", OF(VIT)},
    {"model.norm_eps", BLOCKS | RESIDUAL},
    {"model.experts", EXPERTS},
    {"model.experts_per_token", EXPERTS},
    {"model.capacity_factor", EXPERTS},
    {"model.aux_loss", EXPERTS},
    {"model.rope_theta", ROTARY},
};

static weft_status refuse(const wefti_job_draft *draft, const char *key, unsigned families) {
    char where[512], list[200] = "";
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        if (!(families >> f & 1)) continue;
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                       weft_family_text((weft_family)f));
    }
    WEFT_FAIL(WEFT_E_ARG, "%s%s says nothing of a %s, only of %s; leave it out",
              wefti_job_where(draft, wefti_job_mark_of(draft, key), where), key,
              weft_family_text(draft->job.model.family), list);
}

/* A dropout of 0 and an output layer that is not tied are what the other families have. */
weft_status wefti_job_check_family(const wefti_job_draft *draft) {
    const weft_job_model *m = &draft->job.model;
    unsigned family = 1u << m->family;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (wefti_job_mark_of(draft, uses[i].key)->given && !(uses[i].families & family))
            return refuse(draft, uses[i].key, uses[i].families);
    if (m->dropout > 0 && !(family & BLOCKS)) return refuse(draft, "model.dropout", BLOCKS);
    if (m->tied && !(family & LANGUAGE)) return refuse(draft, "model.tied", ROTARY);
    return WEFT_OK;
}
