/* All checks of a plan that need no model. See plan/plan.h. */
#include "plan/plan.h"

#include <stdio.h>

#include "schedule/schedule.h"

/* "dp=2, tp=4" */
static const char *mesh_words(const wefti_mesh *mesh, char out[256]) {
    int used = 0;
    for (int a = 0; a < mesh->axes; a++)
        used += snprintf(out + used, 256 - (size_t)used, "%s%s=%d", a ? ", " : "",
                         mesh->axis[a].name, mesh->axis[a].size);
    return out;
}

/* The devices of all stages. Stops multiplying above INT32_MAX, so that the product cannot
 * overflow. */
static int64_t devices_of_meshes(const weft_plan *plan) {
    int64_t devices = 0;
    for (int32_t s = 0; s < plan->pipeline.stages; s++) {
        const wefti_mesh *mesh = &plan->pipeline.meshes[s];
        int64_t size = 1;
        for (int a = 0; a < mesh->axes && size <= INT32_MAX; a++) size *= mesh->axis[a].size;
        devices += size;
    }
    return devices;
}

/* In mode manual the ranks of one stage have values of their own. A transfer to the next stage is
 * well-defined only if each rank has one partner there, so the meshes must be equal. */
static weft_status check_equal_meshes(const weft_plan *plan) {
    for (int32_t s = 1; plan->mode == WEFT_PARALLEL_MANUAL && s < plan->pipeline.stages; s++)
        WEFT_REQUIRE(wefti_meshes_alike(&plan->pipeline.meshes[s], plan->pipeline.meshes),
                     WEFT_E_ARG,
                     "pipeline.meshes: stage %d has another mesh than stage 0; in mode manual each "
                     "rank goes with those of its place in the other stages, which need one mesh; "
                     "modes semi and data have unlike ones",
                     s);
    return WEFT_OK;
}

static weft_status check_mesh(const weft_plan *plan) {
    int32_t stages = plan->pipeline.stages;
    char words[256];
    WEFT_TRY(wefti_mesh_check(&plan->mesh));
    if (plan->pipeline.meshes) {
        int64_t devices = devices_of_meshes(plan);
        WEFT_REQUIRE(devices == plan->devices, WEFT_E_ARG,
                     "pipeline.meshes: the meshes of the %d stages have %s%lld devices together; "
                     "devices is %d",
                     stages, devices > INT32_MAX ? "at least " : "", (long long)devices,
                     plan->devices);
        return check_equal_meshes(plan);
    }
    WEFT_REQUIRE(
        plan->devices % stages == 0, WEFT_E_ARG,
        "pipeline.stages = %d does not divide devices = %d; stages of different sizes need "
        "a mesh each (pipeline.meshes)",
        stages, plan->devices);
    int32_t each = plan->devices / stages, size = wefti_mesh_size(&plan->mesh);
    if (stages == 1)
        WEFT_REQUIRE(size == each, WEFT_E_ARG, "the mesh %s has %d devices; devices is %d",
                     mesh_words(&plan->mesh, words), size, plan->devices);
    WEFT_REQUIRE(size == each, WEFT_E_ARG,
                 "the mesh %s has %d devices; each of the %d stages has %d of the %d devices",
                 mesh_words(&plan->mesh, words), size, stages, each, plan->devices);
    return WEFT_OK;
}

static weft_status check_pipeline(const weft_plan *plan) {
    int32_t stages = plan->pipeline.stages, micro = plan->pipeline.microbatches,
            chunks = plan->pipeline.chunks;
    for (int64_t i = 0; i < plan->pipeline.rule_count; i++) {
        const wefti_stage_rule *rule = &plan->pipeline.rules[i];
        WEFT_REQUIRE(rule->stage < stages * chunks, WEFT_E_ARG,
                     "pipeline.stage_of: %s is in stage %d; with %d stages of %d virtual ones they "
                     "go from 0 to %d",
                     rule->match, rule->stage, stages, chunks, stages * chunks - 1);
    }
    if (stages == 1) {
        WEFT_REQUIRE(
            micro == 1, WEFT_E_ARG,
            "pipeline.microbatches = %d needs at least 2 stages; with one stage a batch is "
            "cut by accumulate",
            micro);
        return wefti_schedule_check(plan->pipeline.schedule, 1, 1, chunks);
    }
    WEFT_REQUIRE(plan->accumulate == 1, WEFT_E_ARG,
                 "accumulate = %d is for one stage; with %d stages a batch is cut by "
                 "pipeline.microbatches",
                 plan->accumulate, stages);
    return wefti_schedule_check(plan->pipeline.schedule, stages, micro, chunks);
}

/* Prefixes a message with the place in the input, or with the list and entry number. */
static weft_status at_place(weft_status status, const char *source, const char *list, int64_t i) {
    if (source) return wefti_prefix(status, "%s", source);
    return wefti_prefix(status, "%s[%lld]", list, (long long)i);
}

/* Each cut must be a product of axes. The op's rule decides later which axes. */
static weft_status check_cuts(const weft_plan *plan, const wefti_strategy *strategy) {
    const int64_t *cut = strategy->cuts;
    for (int32_t i = 0; i < strategy->cut_inputs; i++)
        for (int32_t d = 0; d < strategy->cut_ranks[i]; d++, cut++) {
            wefti_axes used = 0;
            wefti_dim_split split;
            weft_status status = wefti_cut_axes(&plan->mesh, *cut, &used, &split);
            if (status < 0)
                return wefti_prefix(status, "%.100s: dimension %d of input %d",
                                    strategy->match ? strategy->match : "dataset", d, i);
        }
    return WEFT_OK;
}

static weft_status check_strategies(const weft_plan *plan) {
    bool closed = plan->mode != WEFT_PARALLEL_SEMI;
    const char *mode = plan->mode == WEFT_PARALLEL_DATA ? "data" : "manual";
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        const wefti_strategy *s = &plan->strategies[i];
        weft_status status = WEFT_OK;
        if (closed)
            status = WEFT_RAISE(
                WEFT_E_ARG, "the strategy of %.100s: mode %s has none of its own; mode semi has",
                s->match, mode);
        else if (s->cuts)
            status = check_cuts(plan, s);
        if (status < 0) return at_place(status, s->source, "strategies", i);
    }
    for (int64_t i = 0; i < plan->tensor_count; i++) {
        const wefti_tensor_strategy *t = &plan->tensors[i];
        wefti_layout layout;
        weft_status status = wefti_layout_parse(t->layout, &plan->mesh, &layout);
        if (status >= 0 && (layout.sum || layout.max))
            status =
                WEFT_RAISE(WEFT_E_ARG,
                           "the layout of %.100s is partial, %s; what is stored or fed is whole "
                           "numbers, never terms of a sum",
                           t->match, t->layout);
        if (status >= 0 && plan->mode == WEFT_PARALLEL_MANUAL && wefti_layout_split_axes(&layout))
            status = WEFT_RAISE(WEFT_E_ARG,
                                "the layout of %.100s is %s: in mode manual nothing is split, each "
                                "rank has its own; modes semi and data split tensors",
                                t->match, t->layout);
        if (status < 0) return at_place(status, t->source, "tensors", i);
    }
    return WEFT_OK;
}

static weft_status check_dataset(const weft_plan *plan) {
    if (!plan->dataset_cuts.cuts) return WEFT_OK;
    WEFT_REQUIRE(plan->mode != WEFT_PARALLEL_MANUAL, WEFT_E_ARG,
                 "dataset: in mode manual nothing is split, each rank has its own inputs; modes "
                 "semi and data split them");
    return check_cuts(plan, &plan->dataset_cuts);
}

static weft_status check_optimizer(const weft_plan *plan) {
    int32_t shard = plan->optimizer.shard;
    WEFT_REQUIRE(plan->mode != WEFT_PARALLEL_MANUAL || plan->optimizer.level == 0, WEFT_E_ARG,
                 "optimizer.level = %d: in mode manual nothing is shared out, since gradients are "
                 "each rank's own; modes semi and data share out, and a model that communicates "
                 "itself has slices as its parameters",
                 plan->optimizer.level);
    WEFT_REQUIRE(!plan->server.count || !plan->optimizer.master, WEFT_E_ARG,
                 "server: with masters on the host (train.master: host) the host keeps all "
                 "parameters; leave the entries of server out");
    WEFT_REQUIRE(!plan->server.count || plan->mode != WEFT_PARALLEL_MANUAL, WEFT_E_ARG,
                 "server: in mode manual the model communicates by itself, and servers would not "
                 "know which gradients to add; leave the entries of server out");
    WEFT_REQUIRE(!plan->optimizer.master || !plan->place.count, WEFT_E_ARG,
                 "place: with masters on the host (train.master: host) the host updates all "
                 "parameters; leave the entries of place out");
    for (int32_t s = 0; shard && s < (plan->pipeline.meshes ? plan->pipeline.stages : 1); s++) {
        const wefti_mesh *mesh = plan->pipeline.meshes ? &plan->pipeline.meshes[s] : &plan->mesh;
        int32_t each = wefti_mesh_size(mesh);
        /* A stage with fewer devices shares among all of them. */
        WEFT_REQUIRE(each % shard == 0 || (plan->pipeline.meshes && shard % each == 0), WEFT_E_ARG,
                     "optimizer.shard_size = %d does not divide the %d devices of a stage; 0: all "
                     "that hold the same",
                     shard, each);
    }
    return WEFT_OK;
}

weft_status wefti_plan_check(const weft_plan *plan) {
    WEFT_TRY(check_mesh(plan));
    WEFT_TRY(check_pipeline(plan));
    WEFT_TRY(check_strategies(plan));
    WEFT_TRY(check_dataset(plan));
    return check_optimizer(plan);
}

weft_status weft_plan_check(const weft_plan *plan) {
    WEFT_REQUIRE(plan, WEFT_E_ARG, "weft_plan_check: the plan is NULL");
    return wefti_plan_check(plan);
}
