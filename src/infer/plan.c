/* Plans for text generation: a batch of one text has nothing to split but the model.
 *
 * Heads, the hidden elements of feed-forward layers and the vocabulary are divided over all
 * devices: one sum of partial results after each pair of products and after the embedding. Source:
 * Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
 * Parallelism", 2019, section 3. */
#include <stdio.h>
#include <string.h>

#include "infer/generate.h"
#include "models/splits.h"
#include "plan/plan.h"
#include "search/search.h"

/* Two axes: heads are divided over the first one, and are the same along the second. */
typedef struct axes {
    int heads, rest;
} axes;

/* The model's own matrices: activations are split as these products give them. */
static bool is_of_weights(wefti_split_role role) {
    return role == WEFTI_SPLIT_HEADS || role == WEFTI_SPLIT_TENSOR ||
           role == WEFTI_SPLIT_EXPERT_WIDTH || role == WEFTI_SPLIT_VOCABULARY;
}

static weft_status divide(weft_plan *plan, axes a, const weft_model_config *config) {
    enum { BYTES = 32 };
    char split[BYTES];
    int count;
    const wefti_family_split *rows = wefti_family_splits(&count);
    for (int i = 0; i < count; i++) {
        const bool first = a.heads > 1, second = a.rest > 1 && rows[i].role != WEFTI_SPLIT_HEADS;
        if (!wefti_split_applies(&rows[i], config) || !is_of_weights(rows[i].role)) continue;
        if (!first && !second) continue;
        (void)snprintf(split, sizeof split, "%s=%s%s%s", rows[i].factor, first ? "heads" : "",
                       first && second ? "+" : "", second ? "rest" : "");
        WEFT_TRY(weft_plan_split_op(plan, rows[i].match, split));
    }
    return WEFT_OK;
}

/* As many devices as possible have heads of keys and values of their own. */
static axes axes_of(const weft_model_config *config, int devices) {
    const int64_t heads = config->kv_heads ? config->kv_heads : config->heads;
    axes a = {devices, 1};
    while (a.heads > heads || devices % a.heads != 0) a.heads--;
    a.rest = devices / a.heads;
    return a;
}

static weft_status divide_model(weft_plan *plan, const weft_model_config *config) {
    /* The vocabulary and the feed-forward layers are divided over all devices. */
    const int64_t most = config->vocab < config->ffn ? config->vocab : config->ffn;
    WEFT_REQUIRE(weft_plan_devices(plan) <= most, WEFT_E_ARG,
                 "devices is %d; this model can be divided over at most %lld",
                 weft_plan_devices(plan), (long long)most);
    const axes a = axes_of(config, weft_plan_devices(plan));
    if (a.heads > 1) WEFT_TRY(weft_plan_axis(plan, "heads", a.heads));
    if (a.rest > 1) WEFT_TRY(weft_plan_axis(plan, "rest", a.rest));
    return divide(plan, a, config);
}

/* Caches of keys and values are split as attention splits its heads. */
static weft_status divide_caches(weft_plan *plan) {
    enum { BYTES = 600 };
    char match[BYTES], layout[BYTES];
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        const wefti_strategy *s = &plan->strategies[i];
        for (int32_t k = 0; k < s->split_count; k++) {
            const wefti_split *split = &s->splits[k];
            if (strcmp(split->what, "heads") != 0 || split->count == 0) continue;
            int used = snprintf(layout, sizeof layout, "[-, -, ");
            for (int a = 0; a < split->count && used < BYTES; a++)
                used += snprintf(layout + used, (size_t)(BYTES - used), "%s%s", a ? "+" : "",
                                 plan->mesh.axis[split->axis[a]].name);
            if (used < BYTES) used += snprintf(layout + used, (size_t)(BYTES - used), ", -]");
            const size_t label = strcspn(s->match, ":");
            if (used >= BYTES || label > BYTES - 16) continue;
            (void)snprintf(match, sizeof match, "%.*s*cache.*", (int)label, s->match);
            WEFT_TRY(weft_plan_split_tensor(plan, match, layout));
        }
    }
    return WEFT_OK;
}

/* Whether a factor is of the model, not of its activations' shape: columns and sums of products,
 * heads, experts, vocabulary. */
static bool is_of_model(const char *factor) {
    return factor[0] == 'n' || !strcmp(factor, "k") || !strcmp(factor, "heads") ||
           !strcmp(factor, "experts") || !strcmp(factor, "vocab");
}

/* A completed plan says of each op how it divides the rows of a training's batch, besides the
 * patterns that it was completed from. Only divisions of the model are kept; the rest follows from
 * them. */
static void forget_batch(weft_plan *plan) {
    int64_t kept = 0;
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        wefti_strategy s = plan->strategies[i];
        int32_t count = 0;
        for (int32_t k = 0; k < s.split_count; k++)
            if (is_of_model(s.splits[k].what)) s.splits[count++] = s.splits[k];
        s.split_count = count;
        s.out = NULL;
        if (count && s.op) plan->strategies[kept++] = s;
    }
    plan->strategy_count = kept;
    kept = 0;
    for (int64_t i = 0; i < plan->tensor_count; i++)
        if (strcmp(plan->tensors[i].match, "tokens") != 0 &&
            strcmp(plan->tensors[i].match, "targets") != 0)
            plan->tensors[kept++] = plan->tensors[i];
    plan->tensor_count = kept;
}

/* A completed plan names the parameters of one model. */
static weft_status check_model(const weft_plan *plan, const weft_model_config *config) {
    weft_graph *graph;
    if (!plan || !plan->model_hash) return WEFT_OK;
    WEFT_TRY(weft_model_build(config, WEFT_USE_TRAIN, 1, 0, WEFT_F32, &graph));
    weft_status status = wefti_plan_check_model(plan, graph, "that is given");
    weft_graph_destroy(graph);
    return status;
}

weft_status wefti_generator_plan(const weft_model_config *config, const weft_plan *given,
                                 int devices, const weft_plan *tiers, weft_plan **out) {
    const bool moves = tiers && tiers->offload.count > 0;
    weft_plan *plan = NULL;
    *out = NULL;
    WEFT_REQUIRE(devices >= 0, WEFT_E_ARG,
                 "devices must be 0 (as many as the plan has) or more, "
                 "not %d",
                 devices);
    WEFT_REQUIRE(!given || !devices || devices == weft_plan_devices(given), WEFT_E_ARG,
                 "the plan is for %d devices, not for %d", weft_plan_devices(given), devices);
    if (!given && devices <= 1 && !moves) return WEFT_OK;
    WEFT_TRY(check_model(given, config));
    if (given)
        WEFT_TRY(wefti_plan_copy(given, &plan));
    else
        WEFT_TRY(weft_plan_create(devices > 1 ? devices : 1, &plan));
    if (given && given->model_hash) forget_batch(plan);
    weft_status status = given ? WEFT_OK : divide_model(plan, config);
    if (status >= 0) status = divide_caches(plan);
    if (status >= 0 && moves) status = wefti_plan_take_offload(plan, tiers);
    /* one text: axes that would split a batch hold replicas */
    if (status >= 0) status = weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}
