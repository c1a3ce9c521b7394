/* Masters of parameters (docs/design/memory.md). A parameter that is bf16 in the graph and is
 * trained has an f32 master. The build works with masters, so that gradients, updates and tensors
 * are those of f32 parameters. Calls read the bf16 copy of the master. */
#include "builder/decide.h"

static bool has_master(const wefti_program_spec *spec, const wefti_value_info *info) {
    if (info->kind != WEFTI_VALUE_PARAM || info->desc.dtype != WEFT_BF16) return false;
    if (spec->shared) return spec->shared->masters;
    return spec->optimizer && spec->plan && spec->plan->optimizer.master == WEFT_TIER_HOST;
}

weft_status wefti_decide_masters(wefti_decisions *dec) {
    const weft_body *given = dec->root;
    bool any = false;
    WEFT_TRY(wefti_new_array(dec->scratch, given->value_count, sizeof *dec->copied, &dec->copied));
    for (int64_t i = 0; i < given->in_count; i++) {
        dec->copied[given->in[i]] = has_master(dec->spec, &given->values[given->in[i]]);
        any = any || dec->copied[given->in[i]];
    }
    if (!any) return WEFT_OK;
    dec->masters = true;
    if (!dec->own_root) WEFT_TRY(wefti_body_clone(dec->g, given, given->name, &dec->own_root));
    dec->root = dec->own_root;
    for (int64_t v = 0; v < dec->root->value_count; v++)
        if (dec->copied[v]) dec->own_root->values[v].desc.dtype = WEFT_F32;
    return WEFT_OK;
}

weft_desc wefti_use_desc(const wefti_decisions *dec, int32_t value) {
    weft_desc desc = dec->root->values[value].desc;
    if (dec->copied[value]) desc.dtype = WEFT_BF16;
    return desc;
}
