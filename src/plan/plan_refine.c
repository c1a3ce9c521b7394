/* Refined meshes: divides axes in two so that `optimizer.shard_size` devices can share a parameter.
 * Groups of devices lie along whole axes. If an axis of 8 devices becomes one of 4 and, inside of
 * it, one of 2, then 2 devices can share. A split by the old axis becomes a split by both new ones.
 * See plan/plan.h. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

static int32_t common(int32_t a, int32_t b) {
    while (b) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Whether a group of `shard` devices uses only a part of an axis, so that the axis must be
 * divided. */
static bool is_cut(int32_t size, int32_t shard) {
    int32_t inner = common(size, shard);
    return inner > 1 && inner < size;
}

static bool needs_cut(const weft_plan *plan, int a) {
    int32_t shard = plan->optimizer.shard;
    bool needed = is_cut(plan->mesh.axis[a].size, shard);
    if (a + 1 < plan->mesh.axes && wefti_mesh_part(&plan->mesh, a + 1)) return false;
    if (wefti_mesh_part(&plan->mesh, a)) return false;
    for (int32_t s = 0; plan->pipeline.meshes && s < plan->pipeline.stages; s++)
        needed = needed || is_cut(plan->pipeline.meshes[s].axis[a].size, shard);
    return needed;
}

/* `place[a]`: the position of axis a in the new mesh; `cut`: the axes that are divided there. */
static void cut_mesh(wefti_mesh *mesh, const int *place, wefti_axes cut, int32_t shard) {
    wefti_mesh old = *mesh;
    mesh->axes = old.axes + __builtin_popcount(cut);
    for (int a = 0; a < old.axes; a++) {
        wefti_axis *outer = &mesh->axis[place[a]], *inner = outer + 1;
        *outer = old.axis[a];
        if (!(cut >> a & 1u)) continue;
        int32_t size = common(outer->size, shard);
        *inner = *outer;
        wefti_mesh_part_name(outer->name, inner->name);
        outer->size /= size;
        inner->size = size;
    }
}

static void cut_axes(int8_t *axis, int8_t *count, const int *place, wefti_axes cut) {
    int8_t old[WEFTI_MAX_AXES], was = *count;
    memcpy(old, axis, (size_t)was);
    *count = 0;
    for (int i = 0; i < was; i++) {
        axis[(*count)++] = (int8_t)place[old[i]];
        if (cut >> old[i] & 1u) axis[(*count)++] = (int8_t)(place[old[i]] + 1);
    }
}

static weft_status cut_layout(weft_plan *plan, const wefti_mesh *old, const int *place,
                              wefti_axes cut, wefti_tensor_strategy *t) {
    wefti_layout layout;
    weft_status status = wefti_layout_parse(t->layout, old, &layout);
    if (status < 0)
        return wefti_prefix(status, "%s%sthe layout of %.100s", t->source ? t->source : "",
                            t->source ? ": " : "", t->match);
    for (int d = 0; d < layout.rank; d++)
        cut_axes(layout.dim[d].axis, &layout.dim[d].count, place, cut);
    t->layout = wefti_arena_strdup(plan->arena, wefti_layout_text(&layout, &plan->mesh).text);
    WEFT_REQUIRE(t->layout, WEFT_E_NOMEM, "no memory for a plan");
    return WEFT_OK;
}

weft_status wefti_plan_refine(weft_plan *plan) {
    wefti_mesh old = plan->mesh;
    wefti_axes cut = 0;
    int place[WEFTI_MAX_AXES], axes = 0;
    if (!plan->optimizer.level || !plan->optimizer.shard) return WEFT_OK;
    for (int a = 0; a < old.axes; a++) {
        place[a] = axes;
        if (needs_cut(plan, a)) cut |= 1u << a;
        axes += 1 + (int)(cut >> a & 1u);
        WEFT_REQUIRE(axes <= WEFTI_MAX_AXES, WEFT_E_ARG,
                     "optimizer.shard_size = %d takes a part of the axis %s: it would be two, of "
                     "more than %d in all; say 0 or a mesh of fewer axes",
                     plan->optimizer.shard, old.axis[a].name, WEFTI_MAX_AXES);
    }
    if (!cut) return WEFT_OK;
    for (int a = 0; a < old.axes; a++) {
        char name[sizeof old.axis[a].name];
        wefti_mesh_part_name(old.axis[a].name, name);
        WEFT_REQUIRE(!(cut >> a & 1u) || wefti_mesh_find(&old, name) < 0, WEFT_E_ARG,
                     "optimizer.shard_size = %d cuts the axis %s in two, but the mesh has an axis "
                     "%s; call it something else",
                     plan->optimizer.shard, old.axis[a].name, name);
    }
    cut_mesh(&plan->mesh, place, cut, plan->optimizer.shard);
    plan->mesh_given = true;
    for (int32_t s = 0; plan->pipeline.meshes && s < plan->pipeline.stages; s++)
        cut_mesh(&plan->pipeline.meshes[s], place, cut, plan->optimizer.shard);
    for (int64_t i = 0; i < plan->strategy_count; i++)
        for (int32_t k = 0; k < plan->strategies[i].split_count; k++) {
            wefti_split *split = &plan->strategies[i].splits[k];
            cut_axes(split->axis, &split->count, place, cut);
        }
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        wefti_layout *out = plan->strategies[i].out;
        for (int d = 0; out && d < out->rank; d++)
            cut_axes(out->dim[d].axis, &out->dim[d].count, place, cut);
    }
    for (int64_t i = 0; i < plan->tensor_count; i++)
        WEFT_TRY(cut_layout(plan, &old, place, cut, &plan->tensors[i]));
    return WEFT_OK;
}
