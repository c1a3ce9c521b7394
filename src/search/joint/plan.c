/* Degrees, and what the user has decided, as a plan: see parts.h. */
#include <stdio.h>
#include <string.h>

#include "search/joint/parts.h"

/* The user's strategies come behind those of the degrees, so they count. */
static weft_status add_strategies(const weft_plan *settings, weft_plan *out) {
    for (int64_t i = 0; i < settings->strategy_count; i++) {
        const wefti_strategy *s = &settings->strategies[i];
        wefti_text text = {0};
        wefti_split_print(settings, s, &text);
        char *split = wefti_text_take(&text);
        WEFT_REQUIRE(split, WEFT_E_NOMEM, "no memory for a plan");
        const weft_status status = wefti_plan_split(out, s->match, split, s->source);
        wefti_free(split);
        WEFT_TRY(status);
    }
    for (int64_t i = 0; i < settings->tensor_count; i++) {
        const wefti_tensor_strategy *t = &settings->tensors[i];
        WEFT_TRY(wefti_plan_split_tensor(out, t->match, t->layout, t->source));
    }
    return WEFT_OK;
}

static weft_status add_fusions(const weft_plan *settings, weft_plan *out) {
    static const char *const names[] = {"allreduce", "allgather", "reducescatter"};
    for (int k = 0; k < 3; k++) {
        const wefti_fusion *f = &settings->fusion[k];
        const int64_t bytes = f->mode == WEFT_FUSION_SIZE ? f->bytes : 0;
        WEFT_TRY(weft_plan_fusion(out, names[k], f->mode, bytes, f->index_count, f->index));
    }
    return WEFT_OK;
}

static weft_status add_settings(const wefti_joint *j, const wefti_degrees *d, weft_plan *out) {
    const weft_plan *s = j->problem->settings;
    WEFT_TRY(add_strategies(s, out));
    WEFT_TRY(add_fusions(s, out));
    if (s->dataset != out->dataset) WEFT_TRY(weft_plan_dataset(out, s->dataset));
    WEFT_TRY(weft_plan_copies(out, s->copies));
    WEFT_TRY(weft_plan_gradients_sum(out, s->gradients_sum));
    WEFT_TRY(weft_plan_overlap(out, s->overlap));
    WEFT_TRY(weft_plan_optimizer(out, d->level, s->optimizer.threshold, d->shard));
    for (int64_t i = 0; i < s->recompute.cell_count && d->recompute != WEFT_RECOMPUTE_NONE; i++)
        WEFT_TRY(weft_plan_recompute(out, d->recompute, s->recompute.cells[i],
                                     s->recompute.communication));
    WEFT_TRY(wefti_plan_take_offload(out, s));
    for (int64_t i = 0; i < s->pipeline.rule_count && d->stages > 1; i++)
        WEFT_TRY(weft_plan_stage(out, s->pipeline.rules[i].match, s->pipeline.rules[i].stage));
    return WEFT_OK;
}

static weft_status add_stages(const wefti_joint *j, const int32_t *part_of, weft_plan *out) {
    const int32_t calls = wefti_joint_calls(&j->shape);
    for (int32_t k = 0; k < calls; k++) {
        char name[256];
        WEFT_TRY(weft_plan_stage(out, wefti_joint_call_name(&j->shape, k, name), part_of[k]));
    }
    return WEFT_OK;
}

/* Without a family: stages of replicas, or with the splits that the dynamic search finds. */
static weft_status plan_without_family(const wefti_joint *j, const wefti_degrees *d,
                                       weft_plan **out) {
    WEFT_TRY(weft_plan_create((int)((int64_t)d->data * d->stages), out));
    WEFT_TRY(weft_plan_axis(*out, "dp", d->data));
    if (d->stages > 1)
        WEFT_TRY(weft_plan_pipeline(*out, d->stages, d->microbatches, d->schedule, d->chunks));
    else
        WEFT_TRY(weft_plan_accumulate(*out, d->microbatches));
    (void)j;
    if (d->recompute == WEFT_RECOMPUTE_NONE) return WEFT_OK;
    return weft_plan_recompute(*out, d->recompute, NULL, false);
}

static weft_status make(wefti_joint *j, const wefti_degrees *d, const int32_t *part_of,
                        weft_plan **out) {
    if (j->known)
        WEFT_TRY(wefti_degrees_plan(j->problem->source.config, d, out));
    else
        WEFT_TRY(plan_without_family(j, d, out));
    (*out)->links = j->links;
    (*out)->rates = j->rates;
    WEFT_TRY(add_settings(j, d, *out));
    if (part_of && d->stages > 1 && !j->problem->settings->pipeline.rule_count)
        WEFT_TRY(add_stages(j, part_of, *out));
    WEFT_TRY(weft_plan_check(*out));
    return wefti_plan_refine(*out);
}

weft_status wefti_joint_plan(wefti_joint *j, const wefti_degrees *d, const int32_t *part_of,
                             weft_plan **out) {
    *out = NULL;
    const weft_status status = make(j, d, part_of, out);
    if (status >= 0) return WEFT_OK;
    weft_plan_destroy(*out);
    *out = NULL;
    return wefti_note(status, __func__, __FILE__, __LINE__);
}
