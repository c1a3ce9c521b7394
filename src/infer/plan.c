/* Plans for text generation: a batch of one text has nothing to split but the model.
 *
 * Heads, the hidden elements of feed-forward layers and the vocabulary are divided over all
 * devices: one sum of partial results after each pair of products and after the embedding. Source:
 * Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
 * Parallelism", 2019, section 3. */
#include <stdio.h>
#include <string.h>

#include "infer/generate.h"
#include "models/family.h"
#include "plan/plan.h"
#include "search/search.h"

typedef struct division {
    const char *match, *factor;
    bool heads; /* over the devices that have heads of their own; else over all */
} division;

static const division of_gpt2[] = {{"h.*.attn.c_attn", "n1", true},
                                   {"h.*.attn:attention", "heads", true},
                                   {"h.*.attn.c_proj", "k", true},
                                   {NULL, NULL, false}};
static const division of_llama[] = {{"layers.*.self_attn.[qkv]_proj", "n0", true},
                                    {"layers.*.self_attn:attention", "heads", true},
                                    {"layers.*.self_attn.o_proj", "k", true},
                                    {NULL, NULL, false}};
static const division of_gpt2_mlp[] = {
    {"h.*.mlp.c_fc", "n0", false}, {"h.*.mlp.c_proj", "k", false}, {NULL, NULL, false}};
static const division of_llama_mlp[] = {{"layers.*.mlp.gate_proj", "n0", false},
                                        {"layers.*.mlp.up_proj", "n0", false},
                                        {"layers.*.mlp.down_proj", "k", false},
                                        {NULL, NULL, false}};
static const division of_gpt2_experts[] = {
    {"*moe.experts.c_fc", "n", false}, {"*moe.experts.c_proj", "k", false}, {NULL, NULL, false}};
static const division of_mixtral_experts[] = {{"*moe.experts.w1", "n", false},
                                              {"*moe.experts.w3", "n", false},
                                              {"*moe.experts.w2", "k", false},
                                              {NULL, NULL, false}};

static const division of_vocabulary[] = {
    {"embed.*:embedding", "vocab", false}, {"head.*:linear", "n0", false}, {NULL, NULL, false}};

/* Two axes: heads are divided over the first one, and are the same along the second. */
typedef struct axes {
    int heads, rest;
} axes;

static weft_status divide(weft_plan *plan, axes a, const division *list) {
    enum { BYTES = 32 };
    char split[BYTES];
    for (; list->match; list++) {
        const bool first = a.heads > 1, second = a.rest > 1 && !list->heads;
        if (!first && !second) continue;
        (void)snprintf(split, sizeof split, "%s=%s%s%s", list->factor, first ? "heads" : "",
                       first && second ? "+" : "", second ? "rest" : "");
        WEFT_TRY(weft_op_split(plan, list->match, split));
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

/* The vocabulary, the feed-forward layers and GPT-2's table of positions are divided over all
 * devices. */
static int64_t most_devices(const weft_model_config *config, bool gpt2) {
    int64_t most = config->vocab < config->ffn ? config->vocab : config->ffn;
    return gpt2 && config->context < most ? config->context : most;
}

static weft_status divide_model(weft_plan *plan, const weft_model_config *config) {
    const weft_family family = config->family;
    const bool experts = wefti_family_has(family, WEFTI_EXPERTS),
               gpt2 = wefti_family_style_of(family) == WEFTI_STYLE_GPT2;
    const int64_t most = most_devices(config, gpt2);
    WEFT_REQUIRE(weft_plan_devices(plan) <= most, WEFT_E_ARG,
                 "devices is %d; this model can be divided over at most %lld",
                 weft_plan_devices(plan), (long long)most);
    const axes a = axes_of(config, weft_plan_devices(plan));
    if (a.heads > 1) WEFT_TRY(weft_plan_axis(plan, "heads", a.heads));
    if (a.rest > 1) WEFT_TRY(weft_plan_axis(plan, "rest", a.rest));
    WEFT_TRY(divide(plan, a, of_vocabulary));
    WEFT_TRY(divide(plan, a, gpt2 ? of_gpt2 : of_llama));
    if (experts) return divide(plan, a, gpt2 ? of_gpt2_experts : of_mixtral_experts);
    return divide(plan, a, gpt2 ? of_gpt2_mlp : of_llama_mlp);
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
            WEFT_TRY(weft_tensor_split(plan, match, layout));
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
                                 int devices, weft_plan **out) {
    weft_plan *plan = NULL;
    *out = NULL;
    WEFT_REQUIRE(devices >= 0, WEFT_E_ARG,
                 "devices must be 0 (as many as the plan has) or more, "
                 "not %d",
                 devices);
    WEFT_REQUIRE(!given || !devices || devices == weft_plan_devices(given), WEFT_E_ARG,
                 "the plan is for %d devices, not for %d", weft_plan_devices(given), devices);
    if (!given && devices <= 1) return WEFT_OK;
    WEFT_TRY(check_model(given, config));
    if (given)
        WEFT_TRY(wefti_plan_copy(given, &plan));
    else
        WEFT_TRY(weft_plan_create(devices, &plan));
    if (given && given->model_hash) forget_batch(plan);
    weft_status status = given ? WEFT_OK : divide_model(plan, config);
    if (status >= 0) status = divide_caches(plan);
    /* one text: axes that would split a batch hold replicas */
    if (status >= 0) status = weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH);
    if (status < 0) {
        weft_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return WEFT_OK;
}
