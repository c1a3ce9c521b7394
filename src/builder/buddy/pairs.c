/* Which device keeps copies for which: see buddy.h. */
#include "builder/buddy/buddy.h"

/* Moves a rank's coordinate along the axis, or its stage, by so many of its steps. */
static int32_t moved(const weft_plan *plan, wefti_buddy_pairs pairs, int32_t rank, int32_t times) {
    const int32_t stage = wefti_plan_stage_of_rank(plan, rank), stages = plan->pipeline.stages;
    const wefti_mesh mesh = wefti_plan_mesh(plan, stage);
    if (pairs.axis >= 0) {
        const int32_t size = mesh.axis[pairs.axis].size;
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(&mesh, rank, at);
        at[pairs.axis] = (at[pairs.axis] + times * pairs.step + size) % size;
        return wefti_mesh_rank(&mesh, at);
    }
    if (pairs.step == 0) return -1;
    const int32_t to = (stage + times * pairs.step + stages) % stages;
    return wefti_plan_mesh(plan, to).first + rank - mesh.first;
}

int32_t wefti_buddy_holder(const weft_plan *plan, wefti_buddy_pairs pairs, int32_t rank) {
    return moved(plan, pairs, rank, 1);
}

int32_t wefti_buddy_ward(const weft_plan *plan, wefti_buddy_pairs pairs, int32_t rank) {
    return moved(plan, pairs, rank, -1);
}

/* How many of these ranks have a holder on another host. */
static int32_t apart(const weft_plan *plan, wefti_buddy_pairs pairs, const int32_t *host,
                     int32_t first, int32_t end) {
    int32_t count = 0;
    for (int32_t r = first; r < end && host; r++)
        count += host[r] != host[wefti_buddy_holder(plan, pairs, r)];
    return count;
}

/* Of an axis of that size, or as many stages: all steps of a short one; of a long one 1, powers of
 * two and half of it. If hosts have no more than a third of its places each, in order, some power
 * of two leads each place to another host; if they have up to half of them, half of it does. */
static int32_t next_step(int32_t step, int32_t size) {
    enum { SHORT = 64 };
    const int32_t half = size / 2;
    if (size <= SHORT) return step + 1;
    if (step < half && 2 * step > half) return half;
    int32_t power = 1;
    while (power <= step) power *= 2;
    return power;
}

/* The search for the best pairs. */
typedef struct best_pairs {
    const weft_plan *plan;
    const int32_t *host;
    int32_t first, end; /* ranks */
    int32_t most;       /* ranks with a holder on another host; -1: no pairs yet */
    wefti_buddy_pairs pairs;
} best_pairs;

static void try_axis(best_pairs *x, int axis, int32_t size) {
    for (int32_t step = 1; step < size; step = next_step(step, size)) {
        const wefti_buddy_pairs pairs = {axis, step};
        const int32_t count = apart(x->plan, pairs, x->host, x->first, x->end);
        if (count > x->most) {
            x->most = count;
            x->pairs = pairs;
        }
        if (!x->host || x->most == x->end - x->first) return;
    }
}

weft_status wefti_buddy_pairs_of(const weft_plan *plan, const int32_t *host, int32_t stage,
                                 wefti_buddy_pairs *out) {
    const wefti_mesh mesh = wefti_plan_mesh(plan, stage);
    const int32_t stages = plan->pipeline.stages > 1 ? plan->pipeline.stages : 1;
    bool alike = true;
    for (int32_t s = 0; s < stages; s++) {
        const wefti_mesh other = wefti_plan_mesh(plan, s);
        alike = alike && wefti_meshes_alike(&mesh, &other);
    }
    /* The choice is one for all stages, unless their meshes differ. */
    best_pairs x = {.plan = plan,
                    .host = host,
                    .first = alike ? 0 : mesh.first,
                    .end = alike ? plan->devices : mesh.first + wefti_mesh_size(&mesh),
                    .most = -1,
                    .pairs = {.axis = -1}};
    for (int k = 0; k < mesh.axes; k++) try_axis(&x, k, mesh.axis[k].size);
    if (alike) try_axis(&x, -1, stages);
    *out = x.pairs;
    WEFT_REQUIRE(x.most >= 0, WEFT_E_LAYOUT,
                 "stage %d has one device and other stages have more: no other device can keep a "
                 "copy of its state; set recovery.buddy to 0, or give all stages as many devices",
                 stage);
    return WEFT_OK;
}
