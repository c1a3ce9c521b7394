/* Plans: creates, fills in and copies them. Each function of weft/plan.h checks its own values;
 * wefti_plan_check checks how values fit together. See plan/plan.h. */
#include "plan/plan.h"

#include <string.h>

#include "topo/limits.h"
#include "topo/model.h"
#include "base/text.h"

enum {
    COUNT_MAX = 1 << 20, /* microbatches, copies, stages */
    CHUNKS_MAX = 1024,
};

/* Used until a machine is measured (seconds, seconds per byte). A hand-over between two threads of
 * one process takes some microseconds, and one core copies about 10 GB/s. */
static const wefti_link LINK_DEFAULT = {.latency = 5e-6, .seconds_per_byte = 1e-10};

static weft_status no_memory(void) {
    return WEFT_RAISE(WEFT_E_NOMEM, "no memory for a plan");
}

static void axis_set(wefti_axis *axis, const char *name, int32_t size) {
    *axis = (wefti_axis){.size = size, .link = LINK_DEFAULT};
    memcpy(axis->name, name, strlen(name) + 1);
}

/* Sets the mesh of a plan that names no axes. */
static void mesh_default(weft_plan *plan) {
    if (plan->mesh_given) return;
    int32_t size = plan->devices / plan->pipeline.stages;
    plan->mesh.axes = 1;
    axis_set(&plan->mesh.axis[0], "dp", size ? size : 1);
}

weft_status weft_plan_create(int devices, weft_plan **out) {
    WEFT_REQUIRE(out, WEFT_E_ARG, "weft_plan_create needs a place for the plan");
    WEFT_REQUIRE(devices >= 1 && devices <= WEFTI_DEVICES_MAX, WEFT_E_ARG,
                 "devices is %d; a plan has from 1 to %d of them", devices, WEFTI_DEVICES_MAX);
    weft_plan *plan = wefti_calloc(1, sizeof *plan);
    if (!plan) return no_memory();
    weft_status status = wefti_arena_create(&plan->arena);
    if (status < 0) {
        wefti_free(plan);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    plan->devices = devices;
    plan->rates = wefti_machine_assumed;
    plan->mode = WEFT_PARALLEL_SEMI;
    plan->pipeline.stages = 1;
    plan->pipeline.microbatches = 1;
    plan->pipeline.schedule = WEFT_PIPELINE_1F1B;
    plan->pipeline.chunks = 1;
    plan->accumulate = 1;
    plan->copies = 1;
    for (int i = 0; i < 3; i++)
        plan->fusion[i] = (wefti_fusion){.mode = WEFT_FUSION_AUTO, .bytes = WEFTI_FUSION_AUTO};
    plan->dataset = WEFT_DATASET_DATA_PARALLEL;
    plan->overlap = true;
    mesh_default(plan);
    *out = plan;
    return WEFT_OK;
}

void weft_plan_destroy(weft_plan *plan) {
    if (!plan) return;
    wefti_free(plan->strategies);
    wefti_free(plan->tensors);
    wefti_free(plan->pipeline.rules);
    wefti_free(plan->recompute.cells);
    wefti_free(plan->offload.rules);
    wefti_free(plan->place.rules);
    wefti_free(plan->server.rules);
    wefti_arena_destroy(plan->arena);
    wefti_free(plan);
}

int weft_plan_devices(const weft_plan *plan) {
    return plan ? plan->devices : 0;
}

#define PLAN_REQUIRED(plan) WEFT_REQUIRE(plan, WEFT_E_ARG, "%s: the plan is NULL", __func__)

/* Whether a text can be a name in splits and layouts: letters, digits and _, first a letter. */
static bool is_name(const char *text) {
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
    return *text && strchr(LETTERS, *text) && strspn(text, LETTERS "0123456789") == strlen(text);
#undef LETTERS
}

weft_status weft_plan_axis(weft_plan *plan, const char *name, int size) {
    PLAN_REQUIRED(plan);
    wefti_mesh *mesh = &plan->mesh;
    WEFT_REQUIRE(name && is_name(name) && strlen(name) < sizeof mesh->axis[0].name, WEFT_E_ARG,
                 "an axis is called '%.40s'; names have 1 to %d letters, digits and _, a letter "
                 "first",
                 name ? name : "", (int)sizeof mesh->axis[0].name - 1);
    WEFT_REQUIRE(size >= 1 && size <= plan->devices, WEFT_E_ARG,
                 "axis %s has size %d; with %d devices it can be from 1 to %d", name, size,
                 plan->devices, plan->devices);
    WEFT_REQUIRE(!plan->strategy_count && !plan->tensor_count && !plan->pipeline.meshes, WEFT_E_ARG,
                 "axis %s comes after splits or meshes of stages, which name axes: add the axes "
                 "first",
                 name);
    if (!plan->mesh_given) mesh->axes = 0;
    WEFT_REQUIRE(mesh->axes < WEFTI_MAX_AXES, WEFT_E_ARG, "axis %s: a mesh has at most %d axes",
                 name, WEFTI_MAX_AXES);
    for (int a = 0; a < mesh->axes; a++)
        WEFT_REQUIRE(strcmp(mesh->axis[a].name, name) != 0, WEFT_E_ARG,
                     "the mesh has an axis %s already, of size %d", name, mesh->axis[a].size);
    axis_set(&mesh->axis[mesh->axes++], name, size);
    plan->mesh_given = true;
    return WEFT_OK;
}

weft_status weft_plan_mode(weft_plan *plan, weft_parallel_mode mode) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE((unsigned)mode < WEFT_PARALLEL_MODES, WEFT_E_ARG,
                 "mode is %d; known are data, semi, manual", (int)mode);
    plan->mode = mode;
    return WEFT_OK;
}

static weft_status check_match(const char *match, const char *of) {
    WEFT_REQUIRE(match && *match, WEFT_E_ARG,
                 "%s needs a pattern: a name, in which * stands for "
                 "anything, as in h.*.attn",
                 of);
    WEFT_REQUIRE(wefti_glob_valid(match), WEFT_E_ARG,
                 "%s: the pattern '%.100s' has a [ without ]; [0-3] is one of these characters", of,
                 match);
    return WEFT_OK;
}

static weft_status copy_text(weft_plan *plan, const char *text, char **out) {
    *out = NULL;
    if (!text) return WEFT_OK;
    *out = wefti_arena_strdup(plan->arena, text);
    return *out ? WEFT_OK : no_memory();
}

weft_status wefti_plan_split(weft_plan *plan, const char *match, const char *split,
                             const char *source) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "a strategy"));
    WEFT_REQUIRE(split, WEFT_E_ARG, "the strategy of %.100s needs a split, as n0=tp", match);
    wefti_strategy strategy = {0};
    weft_status status = wefti_split_parse(plan, split, &strategy);
    if (status == WEFT_E_ARG) return wefti_prefix(status, "strategy of %.100s", match);
    WEFT_TRY(status);
    WEFT_TRY(copy_text(plan, match, &strategy.match));
    const char *colon = strchr(strategy.match, ':');
    strategy.op = colon ? colon + 1 : NULL;
    WEFT_TRY(copy_text(plan, source, &strategy.source));
    WEFT_TRY(WEFT_GROW(plan->strategies, plan->strategy_count, plan->strategy_cap));
    plan->strategies[plan->strategy_count++] = strategy;
    return WEFT_OK;
}
weft_status weft_plan_split_op(weft_plan *plan, const char *match, const char *split) {
    PLAN_REQUIRED(plan);
    return wefti_plan_split(plan, match, split, NULL);
}

weft_status wefti_plan_split_tensor(weft_plan *plan, const char *match, const char *layout,
                                    const char *source) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "a tensor's layout"));
    WEFT_REQUIRE(layout, WEFT_E_ARG, "tensor %.100s needs a layout, as [dp, -]", match);
    wefti_layout parsed;
    weft_status status = wefti_layout_parse(layout, &plan->mesh, &parsed);
    if (status == WEFT_E_ARG) return wefti_prefix(status, "layout of %.100s", match);
    WEFT_TRY(status);
    wefti_tensor_strategy tensor;
    WEFT_TRY(copy_text(plan, match, &tensor.match));
    WEFT_TRY(copy_text(plan, layout, &tensor.layout));
    WEFT_TRY(copy_text(plan, source, &tensor.source));
    WEFT_TRY(WEFT_GROW(plan->tensors, plan->tensor_count, plan->tensor_cap));
    plan->tensors[plan->tensor_count++] = tensor;
    return WEFT_OK;
}
weft_status weft_plan_split_tensor(weft_plan *plan, const char *match, const char *layout) {
    PLAN_REQUIRED(plan);
    return wefti_plan_split_tensor(plan, match, layout, NULL);
}

weft_status weft_plan_optimizer(weft_plan *plan, int level, int64_t threshold, int shard) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(level >= 0 && level <= 3, WEFT_E_ARG,
                 "optimizer.level is %d; 0: nothing is shared, 1: states, 2: states and gradients, "
                 "3: parameters too",
                 level);
    WEFT_REQUIRE(threshold >= 0, WEFT_E_ARG,
                 "optimizer.threshold is %lld; it is a number of bytes, 0 or more",
                 (long long)threshold);
    WEFT_REQUIRE(shard >= 0 && shard <= plan->devices, WEFT_E_ARG,
                 "optimizer.shard_size is %d; with %d devices it can be from 1 to %d, or 0: all "
                 "that hold the same",
                 shard, plan->devices, plan->devices);
    plan->optimizer.level = level;
    plan->optimizer.threshold = threshold;
    plan->optimizer.shard = shard;
    return WEFT_OK;
}

weft_status weft_plan_master(weft_plan *plan, weft_tier tier) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(tier == WEFT_TIER_DEVICE || tier == WEFT_TIER_HOST, WEFT_E_ARG,
                 "optimizer.master is %d; known are device, host", (int)tier);
    plan->optimizer.master = tier;
    return WEFT_OK;
}

weft_status weft_plan_pipeline(weft_plan *plan, int stages, int microbatches,
                               weft_schedule schedule, int chunks) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(stages >= 1 && stages <= plan->devices, WEFT_E_ARG,
                 "pipeline.stages is %d; with %d devices it can be from 1 to %d", stages,
                 plan->devices, plan->devices);
    WEFT_REQUIRE(microbatches >= 1 && microbatches <= COUNT_MAX, WEFT_E_ARG,
                 "pipeline.microbatches is %d; it can be from 1 to %d", microbatches, COUNT_MAX);
    WEFT_REQUIRE((unsigned)schedule < WEFT_PIPELINE_SCHEDULES, WEFT_E_ARG,
                 "pipeline.schedule is %d; known are gpipe, 1f1b, interleaved, zero_bubble",
                 (int)schedule);
    WEFT_REQUIRE(chunks >= 1 && chunks <= CHUNKS_MAX, WEFT_E_ARG,
                 "pipeline.virtual_stages is %d; it can be from 1 to %d", chunks, CHUNKS_MAX);
    WEFT_REQUIRE(!plan->pipeline.meshes || stages == plan->pipeline.stages, WEFT_E_ARG,
                 "pipeline.stages changes from %d to %d after a stage got a mesh of its own; say "
                 "the number first",
                 plan->pipeline.stages, stages);
    plan->pipeline.stages = stages;
    plan->pipeline.microbatches = microbatches;
    plan->pipeline.schedule = schedule;
    plan->pipeline.chunks = chunks;
    mesh_default(plan);
    return WEFT_OK;
}

weft_status weft_plan_stage(weft_plan *plan, const char *match, int stage) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "pipeline.stage_of"));
    WEFT_REQUIRE(stage >= 0, WEFT_E_ARG,
                 "pipeline.stage_of: %.100s has stage %d; stages count from 0", match, stage);
    wefti_stage_rule rule = {.stage = stage};
    WEFT_TRY(copy_text(plan, match, &rule.match));
    WEFT_TRY(WEFT_GROW(plan->pipeline.rules, plan->pipeline.rule_count, plan->pipeline.rule_cap));
    plan->pipeline.rules[plan->pipeline.rule_count++] = rule;
    return WEFT_OK;
}

weft_status weft_plan_stage_mesh(weft_plan *plan, int stage, int axes, const int *sizes) {
    PLAN_REQUIRED(plan);
    int32_t stages = plan->pipeline.stages;
    WEFT_REQUIRE(stage >= 0 && stage < stages, WEFT_E_ARG,
                 "pipeline.meshes: stage %d does not exist; the pipeline has %d, from 0 on", stage,
                 stages);
    WEFT_REQUIRE(axes == plan->mesh.axes && sizes, WEFT_E_ARG,
                 "pipeline.meshes: stage %d has %d sizes; the mesh has %d axes, and each needs one",
                 stage, axes, plan->mesh.axes);
    for (int a = 0; a < axes; a++)
        WEFT_REQUIRE(sizes[a] >= 1 && sizes[a] <= plan->devices, WEFT_E_ARG,
                     "pipeline.meshes: stage %d has %d along %s; it can be from 1 to %d", stage,
                     sizes[a], plan->mesh.axis[a].name, plan->devices);
    if (!plan->pipeline.meshes) {
        wefti_mesh *meshes =
            wefti_arena_alloc(plan->arena, (size_t)stages * sizeof *plan->pipeline.meshes);
        if (!meshes) return no_memory();
        for (int32_t s = 0; s < stages; s++) meshes[s] = plan->mesh;
        plan->pipeline.meshes = meshes;
    }
    for (int a = 0; a < axes; a++) plan->pipeline.meshes[stage].axis[a].size = sizes[a];
    return WEFT_OK;
}

weft_status weft_plan_accumulate(weft_plan *plan, int microbatches) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(microbatches >= 1 && microbatches <= COUNT_MAX, WEFT_E_ARG,
                 "accumulate is %d; it can be from 1 to %d", microbatches, COUNT_MAX);
    plan->accumulate = microbatches;
    return WEFT_OK;
}

weft_status weft_plan_copies(weft_plan *plan, int copies) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(copies >= 1 && copies <= COUNT_MAX, WEFT_E_ARG,
                 "copies is %d; it can be from 1 to %d", copies, COUNT_MAX);
    plan->copies = copies;
    return WEFT_OK;
}

weft_status weft_plan_recompute(weft_plan *plan, weft_recompute mode, const char *match,
                                bool communication) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE((unsigned)mode < WEFT_RECOMPUTES, WEFT_E_ARG,
                 "recompute.mode is %d; known are none, selective, full", (int)mode);
    if (match) {
        char *copy;
        WEFT_TRY(check_match(match, "recompute.cells"));
        WEFT_TRY(copy_text(plan, match, &copy));
        WEFT_TRY(
            WEFT_GROW(plan->recompute.cells, plan->recompute.cell_count, plan->recompute.cell_cap));
        plan->recompute.cells[plan->recompute.cell_count++] = copy;
    } else {
        plan->recompute.cell_count = 0;
    }
    plan->recompute.mode = mode;
    plan->recompute.communication = communication;
    return WEFT_OK;
}

#define PLAN_QUOTED(name, text) " '" text "'"

weft_status weft_plan_offload(weft_plan *plan, const char *match, weft_offload what, weft_tier to) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "offload"));
    WEFT_REQUIRE((unsigned)what < WEFT_OFFLOADS, WEFT_E_ARG,
                 "offload.what is %d; known are" WEFT_OFFLOAD_LIST(PLAN_QUOTED), (int)what);
    WEFT_REQUIRE((unsigned)to < WEFT_TIERS, WEFT_E_ARG,
                 "offload.to is %d; known are" WEFT_TIER_LIST(PLAN_QUOTED), (int)to);
    wefti_offload_rule rule = {.what = what, .to = to};
    WEFT_TRY(copy_text(plan, match, &rule.match));
    WEFT_TRY(WEFT_GROW(plan->offload.rules, plan->offload.count, plan->offload.cap));
    int64_t kept = 0;
    for (int64_t i = 0; i < plan->offload.count; i++) {
        const wefti_offload_rule *before = &plan->offload.rules[i];
        if (before->what == what && !strcmp(before->match, match)) continue;
        plan->offload.rules[kept++] = *before;
    }
    plan->offload.rules[kept] = rule;
    plan->offload.count = kept + 1;
    return WEFT_OK;
}

#define PLAN_WORD(name, text) text,
const char *const wefti_place_words[] = {"device", "host", NULL};
static weft_status set_cache(weft_plan *plan, const char *match, weft_offload what,
                             wefti_cache_size size) {
    WEFT_TRY(check_match(match, "offload"));
    int64_t i = plan->offload.count - 1;
    while (i >= 0 && (plan->offload.rules[i].what != what ||
                      strcmp(plan->offload.rules[i].match, match) != 0))
        i--;
    WEFT_REQUIRE(i >= 0, WEFT_E_ARG, "offload.cache for '%s', which no rule of offload keeps",
                 match);
    WEFT_REQUIRE((!size.bytes && !(size.percent > 0)) ||
                     (plan->offload.rules[i].to == WEFT_TIER_DISK &&
                      (what == WEFT_OFFLOAD_PARAMETERS || what == WEFT_OFFLOAD_OPTIMIZER)),
                 WEFT_E_ARG,
                 "offload.cache for '%s': only parameters and optimizer states on a disk have a "
                 "cache (what: parameters or optimizer, to: disk)",
                 match);
    plan->offload.rules[i].cache = size;
    return WEFT_OK;
}

weft_status weft_plan_cache(weft_plan *plan, const char *match, weft_offload what, int64_t bytes) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(bytes >= 0, WEFT_E_ARG, "offload.cache is %lld; it must be at least 0",
                 (long long)bytes);
    return set_cache(plan, match, what, (wefti_cache_size){.bytes = bytes});
}

weft_status weft_plan_cache_percent(weft_plan *plan, const char *match, weft_offload what,
                                    double percent) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(percent >= 0 && percent <= 100, WEFT_E_ARG,
                 "offload.cache_percent is %g; it can be from 0 to 100", percent);
    return set_cache(plan, match, what, (wefti_cache_size){.percent = percent});
}

const char *const wefti_offload_words[] = {WEFT_OFFLOAD_LIST(PLAN_WORD) NULL};
const char *const wefti_tier_words[] = {WEFT_TIER_LIST(PLAN_WORD) NULL};
#undef PLAN_WORD

weft_status weft_op_place(weft_plan *plan, const char *match, const char *where) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "place"));
    int on = 0;
    while (where && on < WEFTI_PLACES && strcmp(where, wefti_place_words[on]) != 0) on++;
    WEFT_REQUIRE(where && on < WEFTI_PLACES, WEFT_E_ARG,
                 "place.on is '%.60s'; known are device, host", where ? where : "");
    wefti_place_rule rule = {.on = (wefti_place_on)on};
    WEFT_TRY(copy_text(plan, match, &rule.match));
    WEFT_TRY(WEFT_GROW(plan->place.rules, plan->place.count, plan->place.cap));
    int64_t kept = 0;
    for (int64_t i = 0; i < plan->place.count; i++)
        if (strcmp(plan->place.rules[i].match, match) != 0)
            plan->place.rules[kept++] = plan->place.rules[i];
    plan->place.rules[kept] = rule;
    plan->place.count = kept + 1;
    return WEFT_OK;
}

weft_status weft_plan_server(weft_plan *plan, const char *match) {
    PLAN_REQUIRED(plan);
    WEFT_TRY(check_match(match, "server"));
    wefti_server_rule rule;
    for (int64_t i = 0; i < plan->server.count; i++)
        if (!strcmp(plan->server.rules[i].match, match)) return WEFT_OK;
    WEFT_TRY(copy_text(plan, match, &rule.match));
    WEFT_TRY(WEFT_GROW(plan->server.rules, plan->server.count, plan->server.cap));
    plan->server.rules[plan->server.count++] = rule;
    return WEFT_OK;
}

weft_status wefti_plan_take_offload(weft_plan *plan, const weft_plan *from) {
    if (from->offload.ahead) plan->offload.ahead = from->offload.ahead;
    for (int64_t i = 0; i < from->offload.count; i++) {
        const wefti_offload_rule *rule = &from->offload.rules[i];
        WEFT_TRY(weft_plan_offload(plan, rule->match, rule->what, rule->to));
        WEFT_TRY(set_cache(plan, rule->match, rule->what, rule->cache));
    }
    for (int64_t i = 0; i < from->place.count; i++)
        WEFT_TRY(weft_op_place(plan, from->place.rules[i].match,
                               wefti_place_words[from->place.rules[i].on]));
    for (int64_t i = 0; i < from->server.count; i++)
        WEFT_TRY(weft_plan_server(plan, from->server.rules[i].match));
    if (from->optimizer.master) plan->optimizer.master = from->optimizer.master;
    return WEFT_OK;
}

weft_status weft_plan_gradients_sum(weft_plan *plan, bool sum) {
    PLAN_REQUIRED(plan);
    plan->gradients_sum = sum;
    return WEFT_OK;
}

static weft_status check_index(const char *collective, int count, const int *index) {
    WEFT_REQUIRE(!strcmp(collective, "allreduce"), WEFT_E_ARG,
                 "fusion.%s: mode index is for allreduce only; auto, size and none are possible",
                 collective);
    WEFT_REQUIRE(count >= 1 && index, WEFT_E_ARG,
                 "fusion.%s: mode index needs a list of ends, as [20, 35]: tensors 0 to 19, 20 to "
                 "34, and the rest",
                 collective);
    for (int i = 0; i < count; i++)
        WEFT_REQUIRE(index[i] > (i ? index[i - 1] : 0), WEFT_E_ARG,
                     "fusion.%s: number %d of the list is %d; the numbers are positive and each is "
                     "larger than the one before",
                     collective, i + 1, index[i]);
    return WEFT_OK;
}

weft_status weft_plan_fusion(weft_plan *plan, const char *collective, weft_fusion_mode mode,
                             int64_t bytes, int index_count, const int *index) {
    static const char *const names[] = {"allreduce", "allgather", "reducescatter", NULL};
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(collective, WEFT_E_ARG,
                 "fusion needs a collective: allreduce, allgather, reducescatter");
    int which = 0;
    while (names[which] && strcmp(names[which], collective) != 0) which++;
    const char *near = weft_nearest(collective, names);
    WEFT_REQUIRE(names[which], WEFT_E_ARG,
                 "fusion: unknown collective '%.40s'; known are allreduce, allgather, "
                 "reducescatter%s%s%s",
                 collective, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    WEFT_REQUIRE((unsigned)mode < WEFT_FUSIONS, WEFT_E_ARG,
                 "fusion.%s: mode is %d; known are none, auto, size, index", collective, (int)mode);
    wefti_fusion fusion = {.mode = mode, .bytes = WEFTI_FUSION_AUTO};
    if (mode == WEFT_FUSION_SIZE) {
        WEFT_REQUIRE(bytes > 0, WEFT_E_ARG,
                     "fusion.%s: mode size has %lld bytes; it needs more than 0, as 25 MiB",
                     collective, (long long)bytes);
        fusion.bytes = bytes;
    } else if (mode == WEFT_FUSION_INDEX) {
        WEFT_TRY(check_index(collective, index_count, index));
        fusion.index_count = index_count;
        fusion.index = wefti_arena_alloc(plan->arena, (size_t)index_count * sizeof *fusion.index);
        if (!fusion.index) return no_memory();
        for (int i = 0; i < index_count; i++) fusion.index[i] = index[i];
    }
    plan->fusion[which] = fusion;
    return WEFT_OK;
}

weft_status weft_plan_dataset(weft_plan *plan, weft_dataset dataset) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE((unsigned)dataset < WEFT_DATASETS, WEFT_E_ARG,
                 "dataset is %d; known are data_parallel, full_batch", (int)dataset);
    plan->dataset = dataset;
    plan->dataset_cuts = (wefti_strategy){0};
    return WEFT_OK;
}

/* The parts of one input: into how many, along how many dimensions. */
static int64_t parts_of_input(const int64_t *cuts, int32_t rank, int *out_dims) {
    int64_t parts = 1;
    *out_dims = 0;
    for (int32_t d = 0; d < rank; d++) {
        parts *= cuts[d];
        *out_dims += cuts[d] > 1;
    }
    return parts;
}

/* MindSpore's rules for dataset_strategy. */
static weft_status check_dataset_cuts(const char *text, const wefti_strategy *s) {
    int64_t most = 1, of_highest = 1;
    int32_t highest = 0, dims;
    const int64_t *cuts = s->cuts;
    for (int32_t i = 0; i < s->cut_inputs; cuts += s->cut_ranks[i++]) {
        int64_t parts = parts_of_input(cuts, s->cut_ranks[i], &dims);
        WEFT_REQUIRE(dims <= 1, WEFT_E_ARG,
                     "dataset %.80s cuts %d dimensions of input %d; a tuple cuts one at most, and "
                     "layouts by name cut several, as {image: [dp, -, -, sp]}",
                     text, dims, i);
        if (parts > most) most = parts;
        if (s->cut_ranks[i] > highest || (s->cut_ranks[i] == highest && parts > of_highest))
            of_highest = parts;
        if (s->cut_ranks[i] > highest) highest = s->cut_ranks[i];
    }
    WEFT_REQUIRE(of_highest >= most, WEFT_E_ARG,
                 "dataset %.80s cuts the input of the highest rank into %lld parts, but another "
                 "into %lld; no input may have more parts than that one",
                 text, (long long)of_highest, (long long)most);
    return WEFT_OK;
}

weft_status weft_plan_dataset_cuts(weft_plan *plan, const char *cuts) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(cuts && cuts[strspn(cuts, " \t")] == '(' && !strstr(cuts, "->"), WEFT_E_ARG,
                 "dataset '%.80s' is not of the form ((1,1,1,4),(1,)), with the parts of each "
                 "dimension of each input",
                 cuts ? cuts : "");
    wefti_strategy parsed;
    weft_status status = wefti_split_parse(plan, cuts, &parsed);
    if (status < 0) return wefti_prefix(status, "dataset");
    WEFT_TRY(check_dataset_cuts(cuts, &parsed));
    plan->dataset = WEFT_DATASET_DATA_PARALLEL;
    plan->dataset_cuts = parsed;
    return WEFT_OK;
}

weft_status weft_plan_links(weft_plan *plan, const char *path) {
    PLAN_REQUIRED(plan);
    WEFT_REQUIRE(path, WEFT_E_ARG, "weft_plan_links needs the path of measured links");
    WEFT_TRY(wefti_links_find(path, &plan->links));
    plan->links.by_messages = false; /* no decision of a plan depends on it */
    return WEFT_OK;
}

weft_status wefti_plan_machine(weft_plan *plan, const char *machine) {
    wefti_machine_model *model;
    WEFT_TRY(wefti_model_find(machine, &model));
    weft_status status = wefti_model_fits(model, plan->devices);
    if (status >= 0) {
        plan->links = wefti_model_links(model);
        plan->rates = wefti_model_rates(model);
    }
    wefti_model_destroy(model);
    return status;
}

weft_status weft_plan_overlap(weft_plan *plan, bool overlap) {
    PLAN_REQUIRED(plan);
    plan->overlap = overlap;
    return WEFT_OK;
}

/* Copies the lists to `to`. The plain values of the two plans are already equal. */
static weft_status copy_lists(const weft_plan *from, weft_plan *to) {
    wefti_text split = {0};
    for (int64_t i = 0; i < from->strategy_count; i++) {
        const wefti_strategy *s = &from->strategies[i];
        wefti_split_print(from, s, &split);
        char *text = wefti_text_take(&split);
        if (!text) return no_memory();
        weft_status status = wefti_plan_split(to, s->match, text, s->source);
        wefti_free(text);
        WEFT_TRY(status);
    }
    for (int64_t i = 0; i < from->tensor_count; i++) {
        const wefti_tensor_strategy *t = &from->tensors[i];
        WEFT_TRY(wefti_plan_split_tensor(to, t->match, t->layout, t->source));
    }
    for (int64_t i = 0; i < from->pipeline.rule_count; i++)
        WEFT_TRY(weft_plan_stage(to, from->pipeline.rules[i].match, from->pipeline.rules[i].stage));
    for (int64_t i = 0; i < from->recompute.cell_count; i++)
        WEFT_TRY(weft_plan_recompute(to, from->recompute.mode, from->recompute.cells[i],
                                     from->recompute.communication));
    WEFT_TRY(wefti_plan_take_offload(to, from));
    if (from->dataset_cuts.cuts) {
        wefti_split_print(from, &from->dataset_cuts, &split);
        char *text = wefti_text_take(&split);
        if (!text) return no_memory();
        weft_status status = weft_plan_dataset_cuts(to, text);
        wefti_free(text);
        WEFT_TRY(status);
    }
    if (from->fusion[0].mode == WEFT_FUSION_INDEX)
        WEFT_TRY(weft_plan_fusion(to, "allreduce", WEFT_FUSION_INDEX, 0,
                                  from->fusion[0].index_count, from->fusion[0].index));
    if (!from->pipeline.meshes) return WEFT_OK;
    for (int32_t s = 0; s < from->pipeline.stages; s++) {
        int sizes[WEFTI_MAX_AXES];
        for (int a = 0; a < from->mesh.axes; a++) sizes[a] = from->pipeline.meshes[s].axis[a].size;
        WEFT_TRY(weft_plan_stage_mesh(to, s, from->mesh.axes, sizes));
    }
    return WEFT_OK;
}

weft_status wefti_plan_copy(const weft_plan *plan, weft_plan **out) {
    weft_plan *copy;
    WEFT_TRY(weft_plan_create(plan->devices, &copy));
    wefti_arena *arena = copy->arena;
    *copy = *plan;
    copy->arena = arena;
    copy->strategies = NULL;
    copy->tensors = NULL;
    copy->strategy_count = copy->strategy_cap = copy->tensor_count = copy->tensor_cap = 0;
    copy->pipeline.rules = NULL;
    copy->pipeline.meshes = NULL;
    copy->pipeline.rule_count = copy->pipeline.rule_cap = 0;
    copy->recompute.cells = NULL;
    copy->recompute.cell_count = copy->recompute.cell_cap = 0;
    copy->offload.rules = NULL;
    copy->offload.count = copy->offload.cap = 0;
    copy->place.rules = NULL;
    copy->place.count = copy->place.cap = 0;
    copy->server.rules = NULL;
    copy->server.count = copy->server.cap = 0;
    weft_status status = copy_lists(plan, copy);
    if (status < 0) {
        weft_plan_destroy(copy);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = copy;
    return WEFT_OK;
}
