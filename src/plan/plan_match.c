/* Finds a plan's settings for a name: the last pattern that matches counts. See plan/plan.h. */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Whether two texts have equal ends, as far as the shorter one reaches. */
static bool ends_alike(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    const size_t bytes = a_bytes < b_bytes ? a_bytes : b_bytes;
    return memcmp(a + a_bytes - bytes, b + b_bytes - bytes, bytes) == 0;
}

bool wefti_plan_may_match(const wefti_strategy *strategy, const char *inside, const char *op) {
    const char *match = strategy->match, *tail = match;
    for (const char *at = match; *at; at++)
        if (*at == '*' || *at == '?' || *at == '[' || *at == ']') tail = at + 1;
    const size_t tail_bytes = strlen(tail), bytes = strlen(inside), op_bytes = strlen(op);
    if (ends_alike(tail, tail_bytes, inside, bytes)) return true;
    if (!ends_alike(tail, tail_bytes, op, op_bytes)) return false;
    if (tail_bytes <= op_bytes) return true;
    return tail[tail_bytes - op_bytes - 1] == ':' &&
           ends_alike(tail, tail_bytes - op_bytes - 1, inside, bytes);
}

const wefti_strategy *wefti_plan_strategy(const weft_plan *plan, const char *label, const char *op,
                                          bool gradient) {
    return wefti_plan_strategy_among(plan, NULL, plan->strategy_count, label, op, gradient);
}

const wefti_strategy *wefti_plan_strategy_among(const weft_plan *plan, const int32_t *which,
                                                int64_t count, const char *label, const char *op,
                                                bool gradient) {
    char both[512]; /* label:op */
    const wefti_strategy *guide = NULL;
    const size_t length = strlen(label), bytes = strlen(op) + 1;
    const bool fits = length + 1 + bytes <= sizeof both;
    if (fits) {
        memcpy(both, label, length);
        both[length] = ':';
        memcpy(both + length + 1, op, bytes);
    }
    for (int64_t k = count; k-- > 0;) {
        const int64_t i = which ? which[k] : k;
        const char *match = plan->strategies[i].match;
        if (!wefti_glob_match(match, label) && !(fits && wefti_glob_match(match, both))) continue;
        if (!gradient || plan->strategies[i].op) return &plan->strategies[i];
        if (!guide) guide = &plan->strategies[i];
    }
    return guide;
}

const wefti_tensor_strategy *wefti_plan_tensor(const weft_plan *plan, const char *name) {
    for (int64_t i = plan->tensor_count; i-- > 0;)
        if (wefti_glob_match(plan->tensors[i].match, name)) return &plan->tensors[i];
    return NULL;
}

int32_t wefti_plan_stage(const weft_plan *plan, const char *call) {
    for (int64_t i = plan->pipeline.rule_count; i-- > 0;)
        if (wefti_glob_match(plan->pipeline.rules[i].match, call))
            return plan->pipeline.rules[i].stage;
    return -1;
}

bool wefti_plan_recomputes(const weft_plan *plan, const char *call) {
    if (plan->recompute.mode == WEFT_RECOMPUTE_NONE) return false;
    for (int64_t i = 0; i < plan->recompute.cell_count; i++)
        if (wefti_glob_match(plan->recompute.cells[i], call)) return true;
    return plan->recompute.cell_count == 0;
}

bool wefti_plan_updates_on_host(const weft_plan *plan, const char *name) {
    char both[512];
    if (plan && plan->optimizer.master == WEFT_TIER_HOST) return true;
    if (!plan || !plan->place.count ||
        snprintf(both, sizeof both, "%s:update", name) >= (int)sizeof both)
        return false;
    for (int64_t i = plan->place.count; i-- > 0;)
        if (wefti_glob_match(plan->place.rules[i].match, both))
            return plan->place.rules[i].on == WEFTI_ON_HOST;
    return false;
}

bool wefti_plan_may_update_on_host(const weft_plan *plan) {
    if (plan && plan->optimizer.master == WEFT_TIER_HOST) return true;
    for (int64_t i = 0; plan && i < plan->place.count; i++)
        if (plan->place.rules[i].on == WEFTI_ON_HOST) return true;
    return false;
}

const wefti_offload_rule *wefti_plan_offload_rule(const weft_plan *plan, weft_offload what,
                                                  const char *name) {
    for (int64_t i = plan ? plan->offload.count : 0; i-- > 0;) {
        const wefti_offload_rule *rule = &plan->offload.rules[i];
        if (rule->what == what && wefti_glob_match(rule->match, name)) return rule;
    }
    return NULL;
}

weft_tier wefti_plan_tier(const weft_plan *plan, weft_offload what, const char *name) {
    if (what == WEFT_OFFLOAD_OPTIMIZER && wefti_plan_updates_on_host(plan, name))
        return WEFT_TIER_HOST;
    const wefti_offload_rule *rule = wefti_plan_offload_rule(plan, what, name);
    return rule ? rule->to : WEFT_TIER_DEVICE;
}

bool wefti_plan_may_offload(const weft_plan *plan, weft_offload what, weft_tier tier) {
    if (what == WEFT_OFFLOAD_OPTIMIZER && tier == WEFT_TIER_HOST &&
        wefti_plan_may_update_on_host(plan))
        return true;
    for (int64_t i = plan ? plan->offload.count : 0; i-- > 0;) {
        const wefti_offload_rule *rule = &plan->offload.rules[i];
        if (rule->what != what) continue;
        if (rule->to == tier) return true;
        if (!strcmp(rule->match, "*")) break;
    }
    return false;
}

bool wefti_plan_serves(const weft_plan *plan, const char *name) {
    for (int64_t i = 0; plan && i < plan->server.count; i++)
        if (wefti_glob_match(plan->server.rules[i].match, name)) return true;
    return false;
}

bool wefti_plan_divides(const weft_plan *plan, const char *name) {
    const int level = plan->optimizer.level;
    return level >= 3 || (level > 0 && (plan->optimizer.master != WEFT_TIER_DEVICE ||
                                        wefti_plan_tier(plan, WEFT_OFFLOAD_PARAMETERS, name) !=
                                            WEFT_TIER_DEVICE));
}

bool wefti_plan_matters(const weft_plan *plan) {
    return plan->devices > 1 || plan->copies > 1 || plan->recompute.mode != WEFT_RECOMPUTE_NONE ||
           plan->offload.count > 0 || plan->place.count > 0 || plan->server.count > 0 ||
           plan->optimizer.master != WEFT_TIER_DEVICE;
}

static const wefti_mesh *mesh_of(const weft_plan *plan, int32_t stage) {
    return plan->pipeline.meshes ? &plan->pipeline.meshes[stage] : &plan->mesh;
}

/* The slowest link between blocks of ranks, over all stages with this mesh. Host boundaries may lie
 * differently in each stage, but all stages must decide alike. */
static wefti_link slowest_link(const weft_plan *plan, const wefti_mesh *mesh, int32_t block) {
    wefti_link slowest = {0, 0};
    int32_t first = 0, ranks = wefti_mesh_size(mesh);
    for (int32_t s = 0; s < plan->pipeline.stages; s++) {
        const wefti_mesh *other = mesh_of(plan, s);
        if (wefti_meshes_alike(other, mesh)) {
            wefti_link link = wefti_links_of_blocks(&plan->links, first, ranks, block);
            if (link.latency > slowest.latency) slowest.latency = link.latency;
            if (link.seconds_per_byte > slowest.seconds_per_byte)
                slowest.seconds_per_byte = link.seconds_per_byte;
        }
        first += wefti_mesh_size(other);
    }
    return slowest;
}

wefti_mesh wefti_plan_mesh(const weft_plan *plan, int32_t stage) {
    wefti_mesh mesh = *mesh_of(plan, stage);
    mesh.first = 0;
    for (int32_t s = 0; s < stage; s++) mesh.first += wefti_mesh_size(mesh_of(plan, s));
    int32_t block = wefti_mesh_size(&mesh);
    for (int a = 0; a < mesh.axes && plan->links.measured; a++) {
        mesh.axis[a].link = slowest_link(plan, &mesh, block);
        block /= mesh.axis[a].size;
    }
    return mesh;
}

int32_t wefti_plan_stage_of_rank(const weft_plan *plan, int32_t rank) {
    int32_t end = 0;
    for (int32_t s = 0; s < plan->pipeline.stages; s++) {
        end += wefti_mesh_size(mesh_of(plan, s));
        if (rank < end) return s;
    }
    return plan->pipeline.stages - 1;
}
