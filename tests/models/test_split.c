/* Model families in cases where plain pieces do not suffice:
 * - sequences (rings of keys and values, positions);
 * - vocabularies (look-ups and losses in pieces);
 * - images (halos, batch norm over space);
 * - optimizers that need a property of the whole tensor.
 * Losses and parameters equal the values of one device. */
#include "models/model_fixture.h"

#include <math.h>

#include "weft/plan.h"

enum { BATCH = 4, STEPS = 3 };

/* Of the configurations: a family's, or llama with all that it may have. */
enum { FULL_LLAMA = WEFT_FAMILIES };

typedef struct said {
    const char *match, *split;
} said;

typedef struct split_case {
    const char *name;
    int config;
    struct {
        const char *name;
        int size;
    } axis[3];
    said inputs[3], ops[8];
    int level; /* of optimizer parallelism */
    weft_optimizer_kind optimizer;
} split_case;

static const split_case cases[] = {
    {"gpt2, sequence",
     WEFT_FAMILY_GPT2,
     {{"sp", 3}},
     {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
     {{0}},
     0,
     WEFT_ADAMW},
    {"gpt2, batch and sequence, uneven",
     WEFT_FAMILY_GPT2,
     {{"dp", 2}, {"sp", 4}},
     {{"tokens", "[dp, sp]"}, {"targets", "[dp, sp]"}},
     {{0}},
     1,
     WEFT_LAMB},
    {"gpt2, vocabulary",
     WEFT_FAMILY_GPT2,
     {{"tp", 3}},
     {{0}},
     {{"embed.wte:embedding", "vocab=tp"}, {"head.wte:linear", "n0=tp"}},
     0,
     WEFT_ADAMW},
    {"llama, sequence and heads",
     WEFT_FAMILY_LLAMA,
     {{"sp", 2}, {"tp", 2}},
     {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
     {{"*:attention", "heads=tp seq=sp"}},
     2,
     WEFT_ADAFACTOR},
    {"llama with biases, heads and widths", /* the strategies of examples/parallel/llama.yaml */
     FULL_LLAMA,
     {{"dp", 2}, {"tp", 2}},
     {{"tokens", "[dp, -]"}, {"targets", "[dp, -]"}},
     {{"*.embed_tokens:embedding", "vocab=tp"},
      {"*.self_attn.[qkv]_proj:linear", "n0=tp"},
      {"*.self_attn:attention", "heads=tp"},
      {"*.self_attn.o_proj:linear", "k=tp"},
      {"*.mlp.gate_proj:linear", "n0=tp"},
      {"*.mlp.up_proj:linear", "n0=tp"},
      {"*.mlp.down_proj:linear", "k=tp"},
      {"*.lm_head:linear", "n0=tp"}},
     1,
     WEFT_ADAMW},
    {"qwen2, heads and vocabulary",
     WEFT_FAMILY_QWEN2,
     {{"tp", 2}},
     {{0}},
     {{"*.self_attn.[qkv]_proj:linear", "n0=tp"},
      {"*.self_attn:attention", "heads=tp"},
      {"*.self_attn.o_proj:linear", "k=tp"},
      {"*.lm_head:linear", "n0=tp"}},
     2,
     WEFT_LAMB},
    {"llama with biases, sequence",
     FULL_LLAMA,
     {{"sp", 3}},
     {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
     {{0}},
     3,
     WEFT_ADAFACTOR},
    {"bert, sequence",
     WEFT_FAMILY_BERT,
     {{"sp", 4}},
     {{"tokens", "[-, sp]"}, {"targets", "[-, sp]"}},
     {{0}},
     0,
     WEFT_ADAMW},
    {"lenet, height",
     WEFT_FAMILY_LENET,
     {{"h", 3}},
     {{"image", "[-, -, h, -]"}},
     {{0}},
     0,
     WEFT_SGD},
    {"resnet18, batch",
     WEFT_FAMILY_RESNET18,
     {{"dp", 4}},
     {{"image", "[dp, -, -, -]"}, {"label", "[dp]"}},
     {{0}},
     1,
     WEFT_LAMB},
    {"resnet18, batch, height and width",
     WEFT_FAMILY_RESNET18,
     {{"dp", 2}, {"h", 2}, {"w", 2}},
     {{"image", "[dp, -, h, w]"}},
     {{0}},
     0,
     WEFT_SGD},
    {"resnet50, height",
     WEFT_FAMILY_RESNET50,
     {{"h", 3}},
     {{"image", "[-, -, h, -]"}},
     {{0}},
     1,
     WEFT_ADAFACTOR},
    {"vit, height", WEFT_FAMILY_VIT, {{"h", 3}}, {{"image", "[-, -, h, -]"}}, {{0}}, 0, WEFT_ADAMW},
};

static weft_model_config config_of(const split_case *c) {
    return c->config == FULL_LLAMA ? tiny_full() : tiny((weft_family)c->config);
}

static weft_plan *plan_of(const split_case *c, weft_graph *g) {
    weft_plan *plan;
    int devices = 1;
    (void)g;
    for (int a = 0; a < 3 && c->axis[a].name; a++) devices *= c->axis[a].size;
    ASSERT_OK(weft_plan_create(devices, &plan));
    for (int a = 0; a < 3 && c->axis[a].name; a++)
        ASSERT_OK(weft_plan_axis(plan, c->axis[a].name, c->axis[a].size));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    ASSERT_OK(weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH));
    for (int i = 0; i < 3 && c->inputs[i].match; i++)
        ASSERT_OK(weft_plan_split_tensor(plan, c->inputs[i].match, c->inputs[i].split));
    for (int i = 0; i < 8 && c->ops[i].match; i++)
        ASSERT_OK(weft_plan_split_op(plan, c->ops[i].match, c->ops[i].split));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    return plan;
}

static weft_session *session_for(const split_case *c, bool split, weft_graph **g) {
    weft_model_config config = config_of(c);
    weft_session_options o = weft_session_defaults();
    *g = built(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32);
    o.seed = 5;
    o.threads = 2;
    o.optimizer.kind = c->optimizer;
    if (c->optimizer == WEFT_ADAFACTOR) o.optimizer.eps = 1e-30;
    o.plan = split ? plan_of(c, *g) : NULL;
    weft_session *s;
    if (weft_session_create(*g, &o, &s) < 0) fail_msg("%s: %s", c->name, weft_error_message());
    weft_plan_destroy((weft_plan *)(uintptr_t)o.plan);
    return s;
}

/* The largest distance of a tensor between two sessions, relative to its largest element. */
static double apart(weft_session *a, weft_session *b, const weft_tensor_info *info) {
    float *x = malloc((size_t)info->bytes), *y = malloc((size_t)info->bytes);
    double most = 0, largest = 1e-3;
    ASSERT_OK(weft_session_read(a, 0, info->name, x, (size_t)info->bytes));
    ASSERT_OK(weft_session_read(b, 0, info->name, y, (size_t)info->bytes));
    for (int64_t i = 0; i < info->bytes / 4; i++) {
        largest = fmax(largest, fabs((double)x[i]));
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
    }
    free(x);
    free(y);
    return most / largest;
}

static void check(const split_case *c) {
    weft_model_config config = config_of(c);
    weft_graph *one_graph, *graph;
    weft_session *one = session_for(c, false, &one_graph), *s = session_for(c, true, &graph);
    for (int k = 0; k < STEPS; k++) {
        double want, is;
        feed_all(one, 0, &config, 17 + (uint64_t)k);
        feed_all(s, 0, &config, 17 + (uint64_t)k);
        ASSERT_OK(weft_session_step(one, 1e-3, &want));
        if (weft_session_step(s, 1e-3, &is) < 0) fail_msg("%s: %s", c->name, weft_error_message());
        if (!(fabs(is - want) <= 2e-5 * fabs(want)))
            fail_msg("%s: loss %d is %.8g, not %.8g", c->name, k, is, want);
    }
    for (int t = 0; t < weft_session_tensors(one, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(one, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_STATE) continue;
        double d = apart(one, s, &info);
        if (!(d < 5e-3)) fail_msg("%s: %s is %g apart", c->name, info.name, d);
    }
    for (int r = 0; r < weft_session_devices(s); r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        if (predicted != observed)
            fail_msg("%s: device %d uses %lld bytes, not %lld", c->name, r, (long long)observed,
                     (long long)predicted);
    }
    weft_session_destroy(s);
    weft_session_destroy(one);
    weft_graph_destroy(graph);
    weft_graph_destroy(one_graph);
}

static void families_split_give_the_result_of_one_device(void **state) {
    (void)state;
    const char *only = getenv("WEFT_TEST_CASE");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!only || strstr(cases[i].name, only)) check(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_split_give_the_result_of_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
