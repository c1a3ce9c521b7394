/* A placement as an entry of a strategy file. See layouts.h.
 *
 * Each dimension of the tensor has at most one axis of the device matrix there. Several axes of a
 * mesh that split one dimension become one axis, if they are neighbours in the mesh, in its order.
 * In dimension 0, axes after the first run of neighbours may become optimizer parallelism. */
#include <string.h>

#include "reshard/layouts.h"

typedef struct strategy_axes {
    int part_of[WEFTI_MAX_AXES]; /* of each axis: the dimension that it splits, -1, or -2: shared */
    int64_t step, size;          /* of optimizer parallelism */
} strategy_axes;

static weft_status refuse(const wefti_layouts *l, const wefti_placement *p, const char *why) {
    WEFT_FAIL(WEFT_E_NO_IMPL, "%s: a strategy file cannot describe tensor %.200s, %s: %s", l->path,
              p->name, wefti_layout_text(&p->layout, &p->mesh).text, why);
}

static int64_t stride_of(const wefti_mesh *mesh, int axis) {
    int64_t stride = 1;
    for (int a = axis + 1; a < mesh->axes; a++) stride *= mesh->axis[a].size;
    return stride;
}

/* The number of axes of a split, from number `from` on, that follow each other in the mesh. */
static int run_of(const wefti_dim_split *split, int from) {
    int end = from + 1;
    while (end < split->count && split->axis[end] == split->axis[end - 1] + 1) end++;
    return end - from;
}

static weft_status find_axes(const wefti_layouts *l, const wefti_placement *p, strategy_axes *out) {
    for (int a = 0; a < p->mesh.axes; a++) out->part_of[a] = -1;
    out->step = out->size = 0;
    for (int d = 0; d < p->rank; d++) {
        const wefti_dim_split *split = &p->layout.dim[d];
        int used = split->count ? run_of(split, 0) : 0;
        for (int i = 0; i < used; i++) out->part_of[split->axis[i]] = d;
        if (used == split->count) continue;
        int more = run_of(split, used);
        if (d || used + more != split->count)
            return refuse(l, p, "axes of one dimension must be neighbours in the mesh");
        out->size = 1;
        for (int i = used; i < split->count; i++) {
            out->part_of[split->axis[i]] = -2;
            out->size *= p->mesh.axis[split->axis[i]].size;
        }
        out->step = stride_of(&p->mesh, split->axis[split->count - 1]);
    }
    return WEFT_OK;
}

static weft_status check_even(const wefti_layouts *l, const wefti_placement *p) {
    int64_t parts[WEFT_MAX_RANK];
    wefti_placement_parts(p, p->rank, parts);
    for (int d = 0; d < p->rank && p->shaped; d++)
        if (p->shape[d] % parts[d]) return refuse(l, p, "its parts are not equal");
    return WEFT_OK;
}

weft_status wefti_strategy_of(const wefti_layouts *l, const wefti_placement *p,
                              wefti_strategy_layout *out) {
    strategy_axes axes;
    int place[WEFT_MAX_RANK];
    WEFT_TRY(check_even(l, p));
    WEFT_TRY(find_axes(l, p, &axes));
    *out = (wefti_strategy_layout){.name = p->name, .rank = p->rank, .shape_rank = -1};
    if (l->stages > 1) {
        out->name =
            wefti_arena_format(l->arena, "%d-%s", (int)wefti_placement_stage(l, p), p->name);
        WEFT_REQUIRE(out->name, WEFT_E_NOMEM, "no memory for a name");
    }
    for (int d = 0; d < p->rank; d++) place[d] = -1;
    for (int a = 0; a < p->mesh.axes; a++) {
        const int d = axes.part_of[a];
        bool joins = d >= 0 && a && axes.part_of[a - 1] == d;
        if (joins) {
            out->matrix[out->axes - 1] *= p->mesh.axis[a].size;
            continue;
        }
        if (d >= 0) place[d] = out->axes;
        out->matrix[out->axes++] = p->mesh.axis[a].size;
    }
    for (int d = 0; d < p->rank; d++) out->map[d] = place[d] < 0 ? -1 : out->axes - 1 - place[d];
    out->step = p->shard_size > 1 ? p->shard_step : axes.step;
    out->size = p->shard_size > 1 ? p->shard_size : axes.size;
    if (!p->shaped) return WEFT_OK;
    out->shape_rank = p->rank;
    memcpy(out->shape, p->shape, sizeof out->shape);
    return WEFT_OK;
}
