/* The layout of a parameter's optimizer state under a plan. See plan.h. */
#include "layout/redistribute.h"
#include "plan/plan.h"

/* Chooses the axes of `among` that make most parts. The number of parts divides the plan's shard
 * size and is at most `rows`. Of equal choices the innermost wins. */
static wefti_axes most_parts(const weft_plan *plan, const wefti_mesh *mesh, wefti_axes among,
                             int64_t rows) {
    int32_t shard = plan->optimizer.shard, most = 1;
    wefti_axes best = 0;
    for (wefti_axes set = among; set; set = (set - 1) & among) { /* descends: inner axes first */
        int32_t parts = wefti_mesh_product(mesh, set);
        if (parts <= most || parts > rows || (shard > 0 && shard % parts != 0)) continue;
        best = set;
        most = parts;
    }
    return best;
}

/* A parameter's layout, with dimension d split further by the axes that replicate the parameter.
 * Without `empty`, no more parts than the dimension has elements. */
static wefti_layout split_further(const weft_plan *plan, const wefti_mesh *mesh,
                                  const weft_desc *whole, const wefti_layout *use, int d,
                                  bool empty) {
    wefti_layout layout = *use;
    wefti_axes free = 0, taken = wefti_layout_split_axes(use);
    int64_t rows = whole->shape[d] / wefti_layout_parts(use, mesh, d);
    for (int a = 0; a < mesh->axes; a++)
        if (mesh->axis[a].size > 1 && !(taken >> a & 1u)) free |= 1u << a;
    wefti_axes axes = most_parts(plan, mesh, free, empty ? INT64_MAX : rows);
    for (int a = 0; a < mesh->axes; a++)
        if (axes >> a & 1) layout.dim[d].axis[layout.dim[d].count++] = (int8_t)a;
    wefti_layout_normal(&layout, mesh, whole);
    return layout;
}

wefti_layout wefti_plan_state_layout(const weft_plan *plan, const wefti_mesh *mesh,
                                     const weft_desc *whole, const wefti_layout *use) {
    const int32_t parts = wefti_mesh_product(mesh, wefti_layout_split_axes(use));
    wefti_layout best = *use;
    if (plan->optimizer.level == 0 || whole->rank == 0 ||
        weft_desc_bytes(whole) / parts < plan->optimizer.threshold)
        return best;
    int64_t least = wefti_layout_bytes(use, mesh, whole);
    for (int empty = 0; empty < 2; empty++)
        for (int d = 0; d < whole->rank; d++) {
            wefti_layout layout = split_further(plan, mesh, whole, use, d, empty);
            int64_t most = wefti_layout_bytes(&layout, mesh, whole);
            bool first = wefti_layout_equal(&best, use);
            if (most >= least || (!first && most * 8 >= least * 7)) continue;
            best = layout;
            least = most;
        }
    return best;
}
