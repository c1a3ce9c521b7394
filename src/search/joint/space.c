/* The space of the joint search: see joint.h. */
#include <string.h>

#include "models/splits.h"
#include "schedule/schedule.h"
#include "search/joint/parts.h"

enum { JOINT_AXES = 4, DIVISORS = 1024 };

static bool admits(const wefti_joint *j, wefti_joint_dimension dimension, int64_t value) {
    const int32_t fixed = j->problem->fix.value[dimension];
    return fixed < 0 || fixed == value;
}

static bool is_fixed(const wefti_joint *j, wefti_joint_dimension dimension) {
    return j->problem->fix.value[dimension] >= 0;
}

/* ---- the order of axes ---- */

/* How many blocks of each level the groups of an axis have: what transfers of the axis cost. */
static void signature_of(const wefti_machine_model *m, int32_t stride, int32_t size,
                         int32_t out[WEFTI_LEVELS_MAX]) {
    memset(out, 0, WEFTI_LEVELS_MAX * sizeof *out);
    for (int32_t l = 0; size > 1 && l < m->level_count; l++)
        out[l] = wefti_joint_blocks(stride, size, wefti_model_block(m, l));
}

typedef int32_t axis_levels[JOINT_AXES][WEFTI_LEVELS_MAX];

static void levels_of(const wefti_joint *j, const wefti_degrees *d, const int8_t order[JOINT_AXES],
                      axis_levels out) {
    const int32_t sizes[JOINT_AXES] = {d->data, d->expert, d->context, d->tensor};
    int32_t stride = 1;
    for (int i = JOINT_AXES - 1; i >= 0; i--) {
        signature_of(j->problem->machine, stride, sizes[order[i]], out[order[i]]);
        stride *= sizes[order[i]];
    }
}

/* The usual order, and each axis in turn as the innermost one. Orders that put each axis on the
 * same links as an earlier one are left out. */
static weft_status visit_orders(const wefti_joint *j, const wefti_joint_visit *visit,
                                wefti_degrees *d) {
    const int32_t sizes[JOINT_AXES] = {d->data, d->expert, d->context, d->tensor};
    axis_levels known[JOINT_AXES];
    int count = 0;
    for (int inner = JOINT_AXES - 1; inner >= 0; inner--) {
        int8_t order[JOINT_AXES];
        int at = 0;
        bool seen = false;
        if (inner < JOINT_AXES - 1 && sizes[inner] == 1) continue;
        if (!admits(j, WEFTI_JOINT_INNER, inner)) continue;
        for (int a = 0; a < JOINT_AXES; a++)
            if (a != inner) order[at++] = (int8_t)a;
        order[at] = (int8_t)inner;
        levels_of(j, d, order, known[count]);
        for (int k = 0; k < count; k++) seen |= !memcmp(known[k], known[count], sizeof known[k]);
        if (seen) continue;
        memcpy(d->order, order, sizeof order);
        WEFT_TRY(visit->degrees(visit->context, d));
        count++;
    }
    return WEFT_OK;
}

/* ---- splits ---- */

static weft_status visit_modes(const wefti_joint *j, const wefti_joint_visit *visit,
                               wefti_degrees *d) {
    const weft_model_config *c = j->problem->source.config;
    const bool splits =
        d->tensor > 1 && c && wefti_family_has_split(c->family, WEFTI_SPLIT_SEQUENCE);
    for (int sequence = splits; sequence >= 0; sequence--) {
        if (!admits(j, WEFTI_JOINT_SEQUENCE, sequence)) continue;
        d->sequence = sequence;
        d->recompute = (weft_recompute)(is_fixed(j, WEFTI_JOINT_RECOMPUTE)
                                            ? j->problem->fix.value[WEFTI_JOINT_RECOMPUTE]
                                            : (int32_t)WEFT_RECOMPUTE_NONE);
        WEFT_TRY(visit_orders(j, visit, d));
    }
    return WEFT_OK;
}

/* A search may not change results: where norms see a microbatch only, the job alone decides about
 * microbatches. */
static bool may_divide(const wefti_joint *j) {
    const weft_model_config *c = j->problem->source.config;
    return is_fixed(j, WEFTI_JOINT_MICROBATCHES) || !c || !wefti_family_has_batch_norms(c->family);
}

static weft_status visit_microbatches(const wefti_joint *j, const wefti_joint_visit *visit,
                                      wefti_degrees *d) {
    const int64_t copies = j->problem->settings->copies, all = j->problem->source.batch;
    const int64_t replicas = (int64_t)d->data * d->expert;
    if (!j->scalable) {
        const weft_plan *s = j->problem->settings;
        d->microbatches =
            d->stages > 1 && s->pipeline.stages > 1 ? s->pipeline.microbatches : s->accumulate;
        return visit_modes(j, visit, d);
    }
    if (all % copies) return WEFT_OK;
    const int64_t batch = all / copies;
    for (int64_t m = 1; m <= batch; m++) {
        if (batch % m || !admits(j, WEFTI_JOINT_MICROBATCHES, m)) continue;
        if (m > 1 && !may_divide(j)) break;
        if (d->stages > 1 && m < d->stages) continue; /* wefti_schedule_check */
        if (batch / m < replicas) break;              /* some replicas would have no sample */
        if (batch / m % replicas && batch % replicas == 0) continue;
        d->microbatches = (int32_t)m;
        WEFT_TRY(visit_modes(j, visit, d));
    }
    return WEFT_OK;
}

static int32_t most_of(const wefti_joint *j, wefti_joint_dimension dimension) {
    const weft_model_config *c = j->problem->source.config;
    if (!j->known) return 1;
    switch (dimension) {
    case WEFTI_JOINT_TENSOR:
        if (!wefti_family_has_split(c->family, WEFTI_SPLIT_TENSOR)) return 1;
        return c->heads ? (int32_t)c->heads : j->devices;
    case WEFTI_JOINT_EXPERT:
        return wefti_family_has_split(c->family, WEFTI_SPLIT_EXPERT) ? (int32_t)c->experts : 1;
    case WEFTI_JOINT_CONTEXT:
        return weft_family_is_language(c->family) ? (int32_t)c->context : 1;
    default:
        return j->devices;
    }
}

static int32_t divisors_of(int32_t n, int32_t out[DIVISORS]) {
    int32_t count = 0;
    for (int32_t d = 1; d <= n && count < DIVISORS; d++)
        if (n % d == 0) out[count++] = d;
    return count;
}

/* Divides `left` devices among the axes from `axis` on: tp, cp, ep; the rest is dp. */
static weft_status visit_axes(const wefti_joint *j, const wefti_joint_visit *visit,
                              wefti_degrees *d, int axis, int32_t left) {
    static const wefti_joint_dimension dimensions[] = {WEFTI_JOINT_TENSOR, WEFTI_JOINT_CONTEXT,
                                                       WEFTI_JOINT_EXPERT};
    int32_t *const places[] = {&d->tensor, &d->context, &d->expert};
    int32_t divisors[DIVISORS];
    if (axis == 3) {
        if (!admits(j, WEFTI_JOINT_DATA, left)) return WEFT_OK;
        d->data = left;
        return visit_microbatches(j, visit, d);
    }
    const int32_t count = divisors_of(left, divisors), most = most_of(j, dimensions[axis]);
    for (int32_t i = 0; i < count && divisors[i] <= most; i++) {
        if (!admits(j, dimensions[axis], divisors[i])) continue;
        *places[axis] = divisors[i];
        WEFT_TRY(visit_axes(j, visit, d, axis + 1, left / divisors[i]));
    }
    return WEFT_OK;
}

weft_status wefti_joint_splits(const wefti_joint *j, const wefti_joint_visit *visit) {
    const int32_t calls = wefti_joint_calls(&j->shape);
    int32_t divisors[DIVISORS];
    const int32_t count = divisors_of(j->devices, divisors);
    for (int32_t i = 0; i < count && divisors[i] <= calls; i++) {
        wefti_degrees d = wefti_degrees_none();
        if (!admits(j, WEFTI_JOINT_STAGES, divisors[i])) continue;
        d.stages = divisors[i];
        WEFT_TRY(visit_axes(j, visit, &d, 0, j->devices / d.stages));
    }
    return WEFT_OK;
}

/* ---- schedules, levels ---- */

static weft_status visit_levels(const wefti_joint *j, wefti_degrees *d,
                                const wefti_joint_visit *visit) {
    const int32_t replicas = d->data * d->expert * d->context;
    const int32_t per_host = wefti_model_per_host(j->problem->machine);
    const int32_t inner = d->expert * d->context * d->tensor;
    for (int level = 0; level <= (replicas > 1 ? 3 : 0); level++) {
        if (!admits(j, WEFTI_JOINT_LEVEL, level)) continue;
        if (level % 3 && wefti_joint_moves_parameters(j)) continue;
        /* All replicas share, or those of one host. */
        const int32_t within = per_host / inner;
        const int32_t shards[] = {0, within > 1 && d->data % within == 0 && within < d->data &&
                                             d->order[JOINT_AXES - 1] == JOINT_AXES - 1
                                         ? within
                                         : 0};
        d->level = level;
        if (is_fixed(j, WEFTI_JOINT_SHARD)) {
            d->shard = level ? j->problem->fix.value[WEFTI_JOINT_SHARD] : 0;
            if (admits(j, WEFTI_JOINT_SHARD, d->shard)) WEFT_TRY(visit->degrees(visit->context, d));
            continue;
        }
        for (int k = 0; k < (level && shards[1] ? 2 : 1); k++) {
            d->shard = shards[k];
            WEFT_TRY(visit->degrees(visit->context, d));
        }
    }
    return WEFT_OK;
}

static weft_status visit_chunks_of(const wefti_joint *j, wefti_degrees *d, int32_t chunks,
                                   const wefti_joint_visit *visit) {
    if (!admits(j, WEFTI_JOINT_CHUNKS, chunks)) return WEFT_OK;
    if (wefti_joint_calls(&j->shape) < (int64_t)d->stages * chunks) return WEFT_OK;
    if (wefti_schedule_check(d->schedule, d->stages, d->microbatches, chunks) < 0) {
        wefti_error_clear();
        return WEFT_OK;
    }
    d->chunks = chunks;
    return visit->degrees(visit->context, d);
}

weft_status wefti_joint_orders(const wefti_joint *j, const wefti_degrees *split,
                               const wefti_joint_visit *visit) {
    wefti_degrees d = *split;
    if (d.stages == 1)
        return admits(j, WEFTI_JOINT_CHUNKS, 1) ? visit->degrees(visit->context, &d) : WEFT_OK;
    /* gpipe takes as long as 1f1b, and more memory: only if it is asked for. */
    static const weft_schedule order[] = {WEFT_PIPELINE_1F1B, WEFT_PIPELINE_INTERLEAVED,
                                          WEFT_PIPELINE_ZERO_BUBBLE, WEFT_PIPELINE_GPIPE};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const weft_schedule s = order[i];
        if (!admits(j, WEFTI_JOINT_SCHEDULE, (int64_t)s)) continue;
        if (s == WEFT_PIPELINE_GPIPE && !is_fixed(j, WEFTI_JOINT_SCHEDULE)) continue;
        d.schedule = s;
        const int32_t least = s == WEFT_PIPELINE_INTERLEAVED ? 2 : 1;
        const int32_t most = s == WEFT_PIPELINE_INTERLEAVED   ? 16
                             : s == WEFT_PIPELINE_ZERO_BUBBLE ? 2
                                                              : 1;
        for (int32_t chunks = least; chunks <= most; chunks++)
            WEFT_TRY(visit_chunks_of(j, &d, chunks, visit));
    }
    return WEFT_OK;
}

typedef struct with_levels {
    const wefti_joint *j;
    const wefti_joint_visit *visit;
} with_levels;

static weft_status visit_levels_of(void *context, const wefti_degrees *order) {
    const with_levels *x = context;
    wefti_degrees d = *order;
    return visit_levels(x->j, &d, x->visit);
}

weft_status wefti_joint_schedules(const wefti_joint *j, const wefti_degrees *split,
                                  const wefti_joint_visit *visit) {
    with_levels x = {j, visit};
    return wefti_joint_orders(j, split, &(wefti_joint_visit){&x, visit_levels_of});
}
