/* Degrees to a plan and back: see search/degrees.h. */
#include "search/degrees.h"

#include <stdio.h>
#include <string.h>

#include "models/splits.h"

enum { DATA, EXPERT, CONTEXT, TENSOR, AXES };
static const char *const axis_names[AXES] = {"dp", "ep", "cp", "tp"};
static const char part_name[] = "tp_shard"; /* wefti_mesh_part: the rest of tp */

wefti_degrees wefti_degrees_none(void) {
    return (wefti_degrees){.data = 1,
                           .expert = 1,
                           .context = 1,
                           .tensor = 1,
                           .stages = 1,
                           .chunks = 1,
                           .microbatches = 1,
                           .schedule = WEFT_PIPELINE_1F1B,
                           .recompute = WEFT_RECOMPUTE_NONE};
}

static weft_status check(const weft_model_config *c, const wefti_degrees *d) {
    const char *family = weft_family_text(c->family);
    const int32_t all[] = {d->data,   d->expert, d->context,     d->tensor,
                           d->stages, d->chunks, d->microbatches};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        WEFT_REQUIRE(all[i] >= 1, WEFT_E_ARG, "a degree of parallelism is %d, but the least is 1",
                     all[i]);
    WEFT_REQUIRE(d->tensor == 1 || wefti_family_has_split(c->family, WEFTI_SPLIT_TENSOR),
                 WEFT_E_ARG, "tp is %d, but %s has no usual tensor-parallel split", d->tensor,
                 family);
    WEFT_REQUIRE(d->tensor == 1 || !c->heads || c->heads >= d->tensor, WEFT_E_ARG,
                 "tp is %d, but the model has only %lld heads", d->tensor, (long long)c->heads);
    WEFT_REQUIRE(d->expert == 1 || wefti_family_has_split(c->family, WEFTI_SPLIT_EXPERT),
                 WEFT_E_ARG, "ep is %d, but %s has no experts", d->expert, family);
    WEFT_REQUIRE(d->expert == 1 || c->experts >= d->expert, WEFT_E_ARG,
                 "ep is %d, but the model has only %lld experts", d->expert, (long long)c->experts);
    WEFT_REQUIRE(d->context == 1 || weft_family_is_language(c->family), WEFT_E_ARG,
                 "cp is %d, but %s reads no sequences", d->context, family);
    WEFT_REQUIRE(!d->sequence || d->tensor == 1 ||
                     wefti_family_has_split(c->family, WEFTI_SPLIT_SEQUENCE),
                 WEFT_E_ARG, "sequence parallelism needs a sequence, but %s has none", family);
    return WEFT_OK;
}

/* Devices of `tensor` that have heads of their own. If keys have fewer heads than there are
 * devices, groups of devices compute the same heads, as in generation; of one head, all do. */
static int32_t heads_apart(const weft_model_config *c, const wefti_degrees *d) {
    const int64_t heads = c->kv_heads ? c->kv_heads : c->heads;
    int32_t apart = d->tensor;
    while (heads && (apart > heads || d->tensor % apart)) apart--;
    return apart;
}

bool wefti_degrees_spread_experts(const weft_model_config *c, const wefti_degrees *d) {
    return d->tensor > 1 && c->experts > 0 && c->experts % ((int64_t)d->expert * d->tensor) == 0;
}

static weft_status add_mesh(const weft_model_config *c, const wefti_degrees *d, weft_plan *plan) {
    const int32_t apart = heads_apart(c, d);
    const int32_t sizes[AXES] = {d->data, d->expert, d->context, apart > 1 ? apart : d->tensor};
    bool any = false;
    for (int i = 0; i < AXES; i++) {
        const int a = d->order[0] == d->order[1] ? i : d->order[i];
        const bool parts = a == TENSOR && apart > 1 && apart < d->tensor;
        if (sizes[a] == 1) continue;
        WEFT_TRY(weft_plan_axis(plan, axis_names[a], sizes[a]));
        if (parts) WEFT_TRY(weft_plan_axis(plan, part_name, d->tensor / apart));
        any = true;
    }
    return any ? WEFT_OK : weft_plan_axis(plan, axis_names[DATA], 1);
}

/* The axes of a list that the mesh has, "dp+ep"; "" for none. */
static const char *join(const wefti_degrees *d, const int *axes, int count, char out[16]) {
    const int32_t sizes[AXES] = {d->data, d->expert, d->context, d->tensor};
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < count; i++)
        if (sizes[axes[i]] > 1)
            used += (size_t)snprintf(out + used, 16 - used, "%s%s", used ? "+" : "",
                                     axis_names[axes[i]]);
    return out;
}

static weft_status add_strategies(const weft_model_config *c, const wefti_degrees *d,
                                  weft_plan *plan) {
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    char sequence[32], all[32], experts[40];
    const int32_t apart = heads_apart(c, d);
    const bool tensor = d->tensor > 1, parts = apart > 1 && apart < d->tensor;
    join(d, (int[]){CONTEXT, TENSOR}, 2, sequence);
    if (parts) (void)strcat(strcat(sequence, "+"), part_name);
    (void)snprintf(all, sizeof all, "tp%s%s", parts ? "+" : "", parts ? part_name : "");
    const bool spread = wefti_degrees_spread_experts(c, d);
    (void)snprintf(experts, sizeof experts, "%s%s%s", d->expert > 1 ? "ep" : "",
                   spread && d->expert > 1 ? "+" : "", spread ? all : "");
    const char *const axes[WEFTI_SPLIT_ROLES] = {
        [WEFTI_SPLIT_TENSOR] = tensor ? all : NULL,
        [WEFTI_SPLIT_HEADS] = apart > 1 ? "tp" : NULL,
        [WEFTI_SPLIT_VOCABULARY] = tensor ? all : NULL,
        [WEFTI_SPLIT_SEQUENCE] = tensor && d->sequence ? sequence : NULL,
        [WEFTI_SPLIT_EXPERT] = *experts ? experts : NULL,
    };
    for (int i = 0; i < count; i++) {
        char split[48];
        if (!wefti_split_applies(&rows[i], c) || !axes[rows[i].role]) continue;
        snprintf(split, sizeof split, "%s=%s", rows[i].factor, axes[rows[i].role]);
        WEFT_TRY(weft_plan_split_op(plan, rows[i].match, split));
    }
    return WEFT_OK;
}

/* Without experts and split sequences the plan's rule for inputs is enough. */
static weft_status add_inputs(const weft_model_config *c, const wefti_degrees *d, weft_plan *plan) {
    char batch[16], sequence[16], layout[64];
    if (d->expert == 1 && d->context == 1) return WEFT_OK;
    join(d, (int[]){DATA, EXPERT}, 2, batch);
    join(d, (int[]){CONTEXT}, 1, sequence);
    snprintf(layout, sizeof layout, "[%s, %s]", batch[0] ? batch : "-",
             sequence[0] ? sequence : "-");
    (void)c;
    WEFT_TRY(weft_plan_split_tensor(plan, "tokens", layout));
    return weft_plan_split_tensor(plan, "targets", layout);
}

static weft_status fill(const weft_model_config *c, const wefti_degrees *d, weft_plan *plan) {
    WEFT_TRY(add_mesh(c, d, plan));
    WEFT_TRY(add_strategies(c, d, plan));
    WEFT_TRY(add_inputs(c, d, plan));
    if (d->stages > 1)
        WEFT_TRY(weft_plan_pipeline(plan, d->stages, d->microbatches, d->schedule, d->chunks));
    else
        WEFT_TRY(weft_plan_accumulate(plan, d->microbatches));
    WEFT_TRY(weft_plan_optimizer(plan, d->level, 0, d->shard));
    if (d->recompute != WEFT_RECOMPUTE_NONE)
        WEFT_TRY(weft_plan_recompute(plan, d->recompute, NULL, false));
    return weft_plan_check(plan);
}

weft_status wefti_degrees_plan(const weft_model_config *config, const wefti_degrees *d,
                               weft_plan **out) {
    WEFT_TRY(check(config, d));
    const double devices = (double)d->data * d->expert * d->context * d->tensor * d->stages;
    WEFT_REQUIRE(devices <= INT32_MAX, WEFT_E_ARG, "degrees of %g devices in all are too many",
                 devices);
    weft_plan *plan;
    WEFT_TRY(weft_plan_create((int)devices, &plan));
    const weft_status status = fill(config, d, plan);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}

/* Whether a norm's tokens are split over `axis`: sequence parallelism. Norms of queries and keys
 * are split by heads, too. */
static bool splits_norms(const weft_plan *plan, int axis) {
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        const wefti_strategy *s = &plan->strategies[i];
        if (!s->op || (strcmp(s->op, "layer_norm") != 0 && strcmp(s->op, "rms_norm") != 0))
            continue;
        for (int32_t k = 0; k < s->split_count; k++) {
            const wefti_split *split = &s->splits[k];
            const bool tokens = !strcmp(split->what, "m1") || !strcmp(split->what, "in0.1");
            for (int a = 0; tokens && a < split->count; a++)
                if (split->axis[a] == axis) return true;
        }
    }
    return false;
}

weft_status wefti_degrees_of_plan(const weft_plan *plan, wefti_degrees *out,
                                  wefti_text *out_notes) {
    wefti_degrees d = wefti_degrees_none();
    int32_t *const sizes[AXES] = {&d.data, &d.expert, &d.context, &d.tensor};
    int a = AXES;
    for (int i = 0; i < plan->mesh.axes; i++) {
        const wefti_axis *axis = &plan->mesh.axis[i];
        if (a < AXES && wefti_mesh_part(&plan->mesh, i)) { /* of the axis before it */
            *sizes[a] *= axis->size;
            continue;
        }
        a = 0;
        while (a < AXES && strcmp(axis->name, axis_names[a]) != 0) a++;
        if (a < AXES) {
            *sizes[a] = axis->size;
            if (a == TENSOR) d.sequence = splits_norms(plan, i);
        } else if (axis->size > 1) {
            wefti_text_add(out_notes,
                           "the mesh's axis %s of size %d: only dp, ep, cp and tp have a "
                           "counterpart\n",
                           axis->name, axis->size);
        }
    }
    d.stages = plan->pipeline.stages;
    d.chunks = plan->pipeline.chunks;
    d.schedule = plan->pipeline.schedule;
    d.microbatches = d.stages > 1 ? plan->pipeline.microbatches : plan->accumulate;
    d.level = plan->optimizer.level;
    d.shard = plan->optimizer.shard;
    d.recompute = plan->recompute.mode;
    *out = d;
    return WEFT_OK;
}
