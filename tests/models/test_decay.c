/* Weight decay follows the role of a parameter: weights of products, convolutions and look-ups
 * decay; norms, biases, positions and class tokens do not. Patterns override that. */
#include "model_fixture.h"

#include "base/text.h"
#include "weft/layer.h"
#include "weft/ops.h"

/* Of each family: all parameters that decay. A * stands for the number of a layer. */
enum { NAMES = 16 };
static const char *const decaying[WEFT_FAMILIES][NAMES] = {
    [WEFT_FAMILY_GPT2] = {"wte.weight", "h.*.attn.c_attn.weight", "h.*.attn.c_proj.weight",
                          "h.*.mlp.c_fc.weight", "h.*.mlp.c_proj.weight"},
    [WEFT_FAMILY_GPT2_MOE] = {"wte.weight", "h.*.attn.c_attn.weight", "h.*.attn.c_proj.weight",
                              "h.*.moe.gate.weight", "h.*.moe.experts.c_fc.weight",
                              "h.*.moe.experts.c_proj.weight"},
    [WEFT_FAMILY_LLAMA] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                           "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight",
                           "layers.*.mlp.down_proj.weight", "lm_head.weight"},
    [WEFT_FAMILY_MISTRAL] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                             "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight",
                             "layers.*.mlp.down_proj.weight", "lm_head.weight"},
    [WEFT_FAMILY_QWEN2] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                           "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight",
                           "layers.*.mlp.down_proj.weight", "lm_head.weight"},
    [WEFT_FAMILY_QWEN3] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                           "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight",
                           "layers.*.mlp.down_proj.weight", "lm_head.weight"},
    [WEFT_FAMILY_OLMO2] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                           "layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight",
                           "layers.*.mlp.down_proj.weight", "lm_head.weight"},
    [WEFT_FAMILY_MIXTRAL] = {"embed_tokens.weight", "layers.*.self_attn.[qkvo]_proj.weight",
                             "layers.*.block_sparse_moe.gate.weight",
                             "layers.*.block_sparse_moe.experts.w[123].weight", "lm_head.weight"},
    [WEFT_FAMILY_BERT] = {"embeddings.word_embeddings.weight",
                          "encoder.layer.*.attention.self.query.weight",
                          "encoder.layer.*.attention.self.key.weight",
                          "encoder.layer.*.attention.self.value.weight",
                          "encoder.layer.*.attention.output.dense.weight",
                          "encoder.layer.*.intermediate.dense.weight",
                          "encoder.layer.*.output.dense.weight",
                          "cls.predictions.transform.dense.weight"},
    [WEFT_FAMILY_VIT] = {"embeddings.patch_embeddings.projection.weight",
                         "encoder.layer.*.attention.attention.query.weight",
                         "encoder.layer.*.attention.attention.key.weight",
                         "encoder.layer.*.attention.attention.value.weight",
                         "encoder.layer.*.attention.output.dense.weight",
                         "encoder.layer.*.intermediate.dense.weight",
                         "encoder.layer.*.output.dense.weight", "classifier.weight"},
    [WEFT_FAMILY_MLP] = {"layers.*.weight", "head.weight"},
    [WEFT_FAMILY_LENET] = {"conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight",
                           "fc3.weight"},
    [WEFT_FAMILY_RESNET18] = {"conv1.weight", "layer*.*.conv[12].weight",
                              "layer*.0.downsample.0.weight", "fc.weight"},
    [WEFT_FAMILY_RESNET50] = {"conv1.weight", "layer*.*.conv[123].weight",
                              "layer*.0.downsample.0.weight", "fc.weight"},
};

static weft_session_options options_of(double decay) {
    weft_session_options o = weft_session_defaults();
    o.optimizer = weft_optimizer_defaults(WEFT_SGD);
    o.optimizer.weight_decay = decay;
    o.seed = 3;
    return o;
}

static void *parameter(weft_session *s, const weft_tensor_info *t) {
    void *data = malloc((size_t)t->bytes);
    assert_non_null(data);
    ASSERT_OK(weft_session_read(s, 0, t->name, data, (size_t)t->bytes));
    return data;
}

/* Start values that are nowhere 0, so that decay changes every element. */
static void fill(weft_session *s) {
    uint64_t seed = 77;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        float *data = malloc((size_t)t.bytes);
        assert_non_null(data);
        for (int64_t k = 0; k < t.bytes / 4; k++) data[k] = (float)(0.3 + 0.1 * uniform(&seed));
        ASSERT_OK(weft_session_write(s, 0, t.name, data, (size_t)t.bytes));
        free(data);
    }
}

typedef struct trained {
    weft_graph *graph;
    weft_session *session;
} trained;

static trained stepped(const weft_model_config *c, const weft_session_options *o) {
    trained t = {.graph = built(c, WEFT_USE_TRAIN, 2, 0, WEFT_F32)};
    ASSERT_OK(weft_session_create(t.graph, o, &t.session));
    fill(t.session);
    feed_all(t.session, 0, c, 31);
    ASSERT_OK(weft_session_step(t.session, 1e-2, NULL));
    return t;
}

static void end(trained t) {
    weft_session_destroy(t.session);
    weft_graph_destroy(t.graph);
}

/* Whether a step with decay ends elsewhere than one without. */
static bool decays(trained with, trained without, const weft_tensor_info *t) {
    void *a = parameter(with.session, t), *b = parameter(without.session, t);
    const bool differs = memcmp(a, b, (size_t)t->bytes) != 0;
    free(a);
    free(b);
    return differs;
}

static bool expected(const char *const *names, const char *name, int *hits) {
    for (int i = 0; i < NAMES && names[i]; i++)
        if (wefti_glob_match(names[i], name)) {
            hits[i]++;
            return true;
        }
    return false;
}

static void a_family_decays_its_weights(weft_family family) {
    const weft_model_config c = tiny(family);
    const weft_session_options on = options_of(0.5), off = options_of(0);
    const trained with = stepped(&c, &on), without = stepped(&c, &off);
    int hits[NAMES] = {0};
    for (int i = 0; i < weft_session_tensors(with.session, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(with.session, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        const bool should = expected(decaying[family], t.name, hits);
        if (decays(with, without, &t) != should)
            fail_msg("%s: %s %s", weft_family_text(family), t.name,
                     should ? "does not decay" : "decays");
    }
    for (int i = 0; i < NAMES && decaying[family][i]; i++)
        if (!hits[i])
            fail_msg("%s has no parameter %s", weft_family_text(family), decaying[family][i]);
    end(with);
    end(without);
}

static void every_family_decays_its_weights(void **state) {
    (void)state;
    for (int family = 0; family < (int)WEFT_FAMILIES; family++)
        a_family_decays_its_weights((weft_family)family);
}

/* ---- patterns ---- */

static bool decays_under(const weft_decay_rule *rules, int count, const char *name) {
    const weft_model_config c = tiny(WEFT_FAMILY_GPT2);
    weft_session_options on = options_of(0.5), off = options_of(0);
    on.optimizer.decay = rules;
    on.optimizer.decay_rules = count;
    const trained with = stepped(&c, &on), without = stepped(&c, &off);
    weft_tensor_info t;
    ASSERT_OK(weft_session_find(with.session, 0, name, &t));
    const bool result = decays(with, without, &t);
    end(with);
    end(without);
    return result;
}

static void patterns_override_roles(void **state) {
    (void)state;
    const weft_decay_rule rules[] = {
        {"*.bias", true}, {"h.1.*", false}, {"wte.weight", false}, {"h.1.ln_1.bias", true}};
    assert_true(decays_under(rules, 4, "h.0.attn.c_attn.bias"));
    assert_true(decays_under(rules, 4, "h.0.attn.c_attn.weight"));
    assert_false(decays_under(rules, 4, "wte.weight"));
    assert_false(decays_under(rules, 4, "wpe.weight"));
    assert_false(decays_under(rules, 4, "h.1.attn.c_attn.bias"));
    assert_false(decays_under(rules, 4, "h.1.mlp.c_fc.weight"));
    assert_true(decays_under(rules, 4, "h.1.ln_1.bias")); /* the last that matches counts */
}

static void all_parameters_decay_if_asked(void **state) {
    (void)state;
    const weft_model_config c = tiny(WEFT_FAMILY_VIT);
    weft_session_options on = options_of(0.5);
    const weft_session_options off = options_of(0);
    on.optimizer.decay_all = true;
    const trained with = stepped(&c, &on), without = stepped(&c, &off);
    for (int i = 0; i < weft_session_tensors(with.session, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(with.session, 0, i, &t));
        if (t.role == WEFT_ROLE_PARAM) assert_true(decays(with, without, &t));
    }
    end(with);
    end(without);
}

static void refused(const weft_decay_rule *rules, int count, const char *facts) {
    const weft_model_config c = tiny(WEFT_FAMILY_GPT2);
    weft_graph *g = built(&c, WEFT_USE_TRAIN, 2, 0, WEFT_F32);
    weft_session_options o = options_of(0.5);
    weft_session *s;
    o.optimizer.decay = rules;
    o.optimizer.decay_rules = count;
    ASSERT_FAILS(WEFT_E_ARG, facts, weft_session_create(g, &o, &s));
    weft_graph_destroy(g);
}

static void patterns_without_a_parameter_are_refused(void **state) {
    (void)state;
    const weft_decay_rule rules[] = {{"*.bias", true},   {"wte", false}, {"wte.wieght", false},
                                     {"nothing*", true}, {"", true},     {"[", true}};
    refused(rules, 2, "'wte'|wte.weight");
    refused(rules + 2, 1, "'wte.wieght'|wte.weight");
    refused(rules + 3, 1, "'nothing*'");
    refused(rules + 4, 1, "''");
    refused(rules + 5, 1, "'['");
    refused(NULL, 1, "1");
    refused(rules, -1, "-1");
}

/* ---- roles in models of other programs ---- */

static weft_desc matrix(int64_t rows, int64_t columns) {
    return WEFT_DESC(WEFT_F32, rows, columns);
}

static weft_value constant_one(weft_graph *g, const char *name, weft_desc desc) {
    return weft_param(g, name, desc, (weft_init){WEFT_INIT_CONSTANT, 1});
}

/* y = x (reshape(stack) + a b) + shift, with a gain on x: the sum of parameters is the weight. */
static weft_graph *low_rank(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(2, 4));
    weft_value stack = constant_one(g, "stack", WEFT_DESC(WEFT_F32, 4, 3, 2));
    weft_value a = constant_one(g, "a", matrix(4, 1)), b = constant_one(g, "b", matrix(1, 6));
    weft_value gain = constant_one(g, "gain", matrix(1, 4));
    weft_value shift = constant_one(g, "shift", matrix(3, 2));
    weft_value mixed = constant_one(g, "mixed", matrix(6, 2));
    weft_cell_begin(g, "weight");
    weft_value w = weft_reshape(g, stack, 2, (int64_t[]){4, 6});
    w = weft_cell_end(g, weft_add(g, w, weft_matmul(g, a, b, false, false)));
    weft_cell_begin(g, "body");
    weft_value y = weft_linear(g, weft_mul(g, x, gain), w, WEFT_NO_VALUE, false);
    y = weft_add(g, y, weft_reshape(g, shift, 2, (int64_t[]){1, 6}));
    y = weft_matmul(g, y, weft_slice(g, mixed, 1, 0, 1), false, false);
    weft_loss(g, weft_cell_end(g, weft_mean(g, y, 0, NULL, false)));
    return g;
}

static trained low_rank_step(double decay) {
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const weft_session_options o = options_of(decay);
    trained t = {.graph = low_rank()};
    ASSERT_OK(weft_session_create(t.graph, &o, &t.session));
    ASSERT_OK(weft_session_feed(t.session, 0, "x", x, sizeof x));
    ASSERT_OK(weft_session_step(t.session, 1e-3, NULL));
    return t;
}

static void weights_are_found_behind_linear_ops(void **state) {
    (void)state;
    static const char *const weights[] = {"stack", "a", "b", "mixed", NULL};
    const trained with = low_rank_step(0.5), without = low_rank_step(0);
    int hits[NAMES] = {0};
    for (int i = 0; i < weft_session_tensors(with.session, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(with.session, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        if (decays(with, without, &t) != expected(weights, t.name, hits)) fail_msg("%s", t.name);
    }
    end(with);
    end(without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_decays_its_weights),
        cmocka_unit_test(patterns_override_roles),
        cmocka_unit_test(all_parameters_decay_if_asked),
        cmocka_unit_test(patterns_without_a_parameter_are_refused),
        cmocka_unit_test(weights_are_found_behind_linear_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
