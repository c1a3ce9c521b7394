/* Frozen parameters keep their bits, have no optimizer state, and no gradient. Adapters: their
 * plans match and give the result of one device; a new adapter changes nothing; wrong settings are
 * refused. */
#include "models/model_fixture.h"

#include <math.h>

#include "plan/plan.h"
#include "search/degrees.h"
#include "search/predict/predict.h"
#include "search/search.h"

enum { BATCH = 4, STEPS = 3, RANK = 2 };

typedef struct lora_case {
    weft_family family;
    const char *targets;
    int32_t data, tensor;
    bool sequence;
    int32_t stages;
    int level;
} lora_case;

#define LLAMA_TARGETS "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
static const lora_case cases[] = {
    {WEFT_FAMILY_LLAMA, LLAMA_TARGETS, 1, 1, false, 1, 0},
    {WEFT_FAMILY_LLAMA, LLAMA_TARGETS, 2, 2, false, 1, 0},
    {WEFT_FAMILY_LLAMA, LLAMA_TARGETS, 1, 2, true, 2, 1},
    {WEFT_FAMILY_LLAMA, "o_proj", 2, 1, false, 1, 3},
    {WEFT_FAMILY_LLAMA, "", 1, 4, false, 1, 0}, /* more devices than heads of keys */
    {WEFT_FAMILY_GPT2, "c_attn,c_proj,c_fc", 2, 2, true, 1, 2},
    {WEFT_FAMILY_GPT2, "", 1, 2, false, 2, 0},
    {WEFT_FAMILY_GPT2_MOE, "c_attn,c_proj", 1, 2, false, 1, 0},
    {WEFT_FAMILY_MIXTRAL, "q_proj,o_proj", 2, 2, false, 1, 1},
    {WEFT_FAMILY_QWEN3, LLAMA_TARGETS, 2, 2, true, 1, 0},
    {WEFT_FAMILY_OLMO2, LLAMA_TARGETS, 2, 2, false, 1, 3},
};

static weft_model_config config_of(const lora_case *c) {
    weft_model_config config = tiny(c->family);
    config.lora = (weft_lora){.rank = RANK, .alpha = 3};
    (void)snprintf(config.lora.targets, sizeof config.lora.targets, "%s", c->targets);
    return config;
}

static bool is_adapter(const char *name) {
    return strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

static weft_session *session_of(const weft_model_config *config, int microbatches,
                                const weft_plan *plan, weft_graph **g) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    *g = built(config, WEFT_USE_TRAIN, BATCH / microbatches, 0, WEFT_F32);
    o.seed = 5;
    o.threads = 2;
    o.microbatches = microbatches;
    o.plan = plan;
    o.clip = 1;
    ASSERT_OK(weft_session_create(*g, &o, &s));
    return s;
}

/* As test_degrees.c. */
static double step(weft_session *s, const weft_model_config *config, int microbatches,
                   uint64_t seed) {
    double out = 0;
    for (int m = 0; m < microbatches; m++) {
        double loss;
        feed_all(s, 0, config, seed + (uint64_t)m);
        ASSERT_OK(microbatches > 1 ? weft_session_accumulate(s, &loss)
                                   : weft_session_step(s, 1e-2, &loss));
        out = isnan(out) || isnan(loss) ? loss : out + loss / microbatches;
    }
    if (microbatches > 1) ASSERT_OK(weft_session_update(s, 1e-2, NULL));
    return out;
}

static void *read_tensor(weft_session *s, const weft_tensor_info *t) {
    void *out = malloc((size_t)t->bytes);
    assert_non_null(out);
    ASSERT_OK(weft_session_read(s, 0, t->name, out, (size_t)t->bytes));
    return out;
}

/* B must not stay zero, so that A has a gradient. */
static void compare(const lora_case *c, weft_session *one, weft_session *many) {
    for (int i = 0; i < weft_session_tensors(one, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(one, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        float *a = read_tensor(one, &t), *b = read_tensor(many, &t);
        double change = 0;
        for (int64_t k = 0; k < t.bytes / 4; k++) {
            change += fabs((double)a[k]);
            if (!(fabsf(a[k] - b[k]) <= 2e-4F + 2e-3F * fabsf(a[k])))
                fail_msg("%s: %s[%d] is %.8g, not %.8g", weft_family_text(c->family), t.name,
                         (int)k, (double)b[k], (double)a[k]);
        }
        if (strstr(t.name, ".lora_B.")) assert_true(change > 0);
        free(a);
        free(b);
    }
}

static void check(const lora_case *c) {
    const weft_model_config config = config_of(c);
    const int microbatches = c->stages > 1 ? 2 : 1;
    wefti_degrees d = wefti_degrees_none();
    d.data = c->data, d.tensor = c->tensor, d.sequence = c->sequence;
    d.stages = c->stages, d.microbatches = microbatches, d.level = c->level;
    weft_plan *plan;
    weft_graph *one_graph, *graph;
    char *lines;
    ASSERT_OK(wefti_degrees_plan(&config, &d, &plan));
    weft_session *one = session_of(&config, microbatches, NULL, &one_graph),
                 *many = session_of(&config, microbatches, plan, &graph);
    ASSERT_OK(wefti_plan_unmatched(plan, graph, NULL, &lines));
    if (*lines) fail_msg("%s: %s", weft_family_text(c->family), lines);
    wefti_free(lines);
    for (int k = 0; k < STEPS; k++) {
        const uint64_t seed = 17 + (uint64_t)k * 8;
        const double want = step(one, &config, microbatches, seed),
                     is = step(many, &config, microbatches, seed);
        if (!(fabs(is - want) <= 5e-5 * fabs(want)))
            fail_msg("%s: loss %d is %.8g, not %.8g", weft_family_text(c->family), k, is, want);
    }
    compare(c, one, many);
    weft_session_destroy(many);
    weft_session_destroy(one);
    weft_graph_destroy(graph);
    weft_graph_destroy(one_graph);
    weft_plan_destroy(plan);
}

static void adapters_on_devices_give_the_result_of_one(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i]);
}

/* Optimizer tensors are named after their parameter. */
static void frozen_parameters_keep_their_bits(void **state) {
    (void)state;
    enum { MOST = 128 };
    const weft_model_config config = config_of(&cases[0]);
    void *before[MOST] = {NULL};
    weft_tensor_info t;
    weft_graph *g;
    weft_session *s = session_of(&config, 1, NULL, &g);
    const int count = weft_session_tensors(s, 0);
    int frozen = 0, states = 0, changed = 0;
    assert_true(count < MOST);
    for (int i = 0; i < count; i++) {
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role == WEFT_ROLE_PARAM) before[i] = read_tensor(s, &t);
        if (t.role == WEFT_ROLE_OPTIMIZER) {
            states++;
            assert_true(is_adapter(t.name));
        }
    }
    for (int k = 0; k < STEPS; k++) (void)step(s, &config, 1, (uint64_t)k + 1);
    for (int i = 0; i < count; i++) {
        if (!before[i]) continue;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        void *after = read_tensor(s, &t);
        const bool equal = !memcmp(before[i], after, (size_t)t.bytes);
        if (is_adapter(t.name)) {
            changed += !equal;
        } else {
            assert_true(equal);
            frozen++;
        }
        free(after);
        free(before[i]);
    }
    assert_int_equal(changed, 2 * 7 * 2); /* A and B of 7 layers of 2 blocks */
    assert_int_equal(states, 2 * changed);
    assert_int_equal(frozen, 21);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* Frozen tensors of blocks, with pipelines whose first stage has no backward pass, and all levels.
 */
static void some_frozen_on_devices(void **state) {
    (void)state;
    static const int32_t degrees[][3] = {
        {1, 2, 0}, {2, 1, 1}, {2, 1, 2}, {2, 1, 3}}; /* dp pp level */
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        const weft_model_config config = tiny(WEFT_FAMILY_LLAMA);
        wefti_degrees d = wefti_degrees_none();
        d.data = degrees[i][0], d.stages = degrees[i][1], d.level = degrees[i][2];
        d.microbatches = 2;
        weft_plan *plan;
        weft_session *s[2];
        weft_graph *g[2];
        double loss[2];
        ASSERT_OK(wefti_degrees_plan(&config, &d, &plan));
        for (int k = 0; k < 2; k++) {
            weft_session_options o = weft_session_defaults();
            g[k] = built(&config, WEFT_USE_TRAIN, BATCH / 2, 0, WEFT_F32);
            ASSERT_OK(weft_freeze(g[k], "layers.0.*", true));
            ASSERT_OK(weft_freeze(g[k], "embed_tokens.weight", true));
            ASSERT_OK(weft_freeze(g[k], "*.mlp.up_proj.weight", true));
            o.microbatches = 2;
            o.threads = 2;
            o.plan = k ? plan : NULL;
            ASSERT_OK(weft_session_create(g[k], &o, &s[k]));
        }
        for (uint64_t n = 0; n < STEPS; n++)
            for (int k = 0; k < 2; k++) loss[k] = step(s[k], &config, 2, 3 + 8 * n);
        assert_true(fabs(loss[0] - loss[1]) <= 5e-5 * fabs(loss[0]));
        for (int k = 0; k < 2; k++) {
            weft_session_destroy(s[k]);
            weft_graph_destroy(g[k]);
        }
        weft_plan_destroy(plan);
    }
}

/* Logits of a model with new adapters are those of the model without, since B is zero. */
static void new_adapters_change_nothing(void **state) {
    (void)state;
    weft_model_config c = config_of(&cases[0]), plain = tiny(cases[0].family);
    const weft_model_config *both[2] = {&c, &plain};
    float logits[2][2 * TINY_CONTEXT * TINY_VOCAB];
    for (int k = 0; k < 2; k++) {
        weft_session_options o = weft_session_defaults();
        weft_graph *g = built(both[k], WEFT_USE_LOGITS, 2, 0, WEFT_F32);
        weft_session *s;
        o.optimizer.kind = WEFT_NO_OPTIMIZER;
        o.seed = 3;
        ASSERT_OK(weft_session_create(g, &o, &s));
        feed_all(s, 0, both[k], 7);
        ASSERT_OK(weft_session_forward(s, 0, NULL));
        ASSERT_OK(weft_session_read(s, 0, "logits", logits[k], sizeof logits[k]));
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* Frozen weights have no gradient: a step takes two products for each of theirs, not three; none
 * goes back into layers before the first that is trained. */
static void a_step_takes_fewer_products(void **state) {
    (void)state;
    weft_model_config plain = tiny(WEFT_FAMILY_LLAMA), adapted = config_of(&cases[0]);
    plain.hidden = adapted.hidden = 256, plain.ffn = adapted.ffn = 512;
    weft_graph *g = built(&plain, WEFT_USE_TRAIN, 1, 0, WEFT_F32),
               *lora = built(&adapted, WEFT_USE_TRAIN, 1, 0, WEFT_F32);
    const double all = wefti_model_flops(g, 1), part = wefti_model_flops(lora, 1);
    assert_true(part > 0.66 * all && part < 0.72 * all);
    assert_true(wefti_model_flops(lora, 4) == 4 * part);
    ASSERT_OK(weft_freeze(g, "layers.0.*", true));
    ASSERT_OK(weft_freeze(g, "embed_tokens.weight", true));
    const double half = wefti_model_flops(g, 1);
    assert_true(half > 0.6 * all && half < 0.7 * all); /* one layer of two: a third of its three */
    weft_graph_destroy(lora);
    weft_graph_destroy(g);
}

static void graphs_keep_it_in_text(void **state) {
    (void)state;
    const weft_model_config config = config_of(&cases[0]);
    weft_graph *g = built(&config, WEFT_USE_TRAIN, 1, 0, WEFT_F32), *back;
    char *text, *again;
    ASSERT_OK(weft_graph_print(g, &text));
    assert_non_null(strstr(text, "embed_tokens.weight: f32[11,16] normal(0.02) frozen\n"));
    ASSERT_OK(weft_graph_parse(text, &back));
    ASSERT_OK(weft_graph_print(back, &again));
    assert_string_equal(text, again);
    weft_text_free(again);
    weft_text_free(text);
    weft_graph_destroy(back);
    weft_graph_destroy(g);
}

static void wrong_settings_are_refused(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        weft_lora lora;
        weft_status status;
        const char *fact;
    } wrong[] = {
        {WEFT_FAMILY_LLAMA, {.rank = -1}, WEFT_E_ARG, "model.lora.rank"},
        {WEFT_FAMILY_LLAMA, {.alpha = 4}, WEFT_E_ARG, "model.lora.rank"},
        {WEFT_FAMILY_LLAMA, {.rank = 1, .alpha = NAN}, WEFT_E_ARG, "model.lora.alpha"},
        {WEFT_FAMILY_LLAMA, {.rank = 1, .dropout = 1}, WEFT_E_ARG, "model.lora.dropout"},
        {WEFT_FAMILY_LLAMA, {.rank = 1, .targets = "q_proj,c_fc"}, WEFT_E_ARG, "'c_fc'|gate_proj"},
        {WEFT_FAMILY_MIXTRAL, {.rank = 1, .targets = "up_proj"}, WEFT_E_ARG, "q_proj"},
        {WEFT_FAMILY_VIT, {.rank = 1}, WEFT_E_NO_IMPL, "vit"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_model_config c = tiny(wrong[i].family);
        c.lora = wrong[i].lora;
        ASSERT_FAILS(wrong[i].status, wrong[i].fact, weft_model_complete(&c));
    }
    const weft_model_config config = tiny(WEFT_FAMILY_GPT2);
    weft_graph *g = built(&config, WEFT_USE_TRAIN, 1, 0, WEFT_F32);
    weft_session *s;
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "wte.weight", weft_freeze(g, "wte", true));
    ASSERT_FAILS(WEFT_E_ARG, "pattern", weft_freeze(g, "[", true));
    ASSERT_FAILS(WEFT_E_ARG, "graph", weft_freeze(NULL, "*", true));
    ASSERT_OK(weft_freeze(g, "*", true));
    ASSERT_FAILS(WEFT_E_ARG, "frozen", weft_session_create(g, NULL, &s));
    ASSERT_OK(weft_freeze(g, "wpe.weight", false));
    ASSERT_OK(weft_session_create(g, NULL, &s));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters_on_devices_give_the_result_of_one),
                                       cmocka_unit_test(frozen_parameters_keep_their_bits),
                                       cmocka_unit_test(some_frozen_on_devices),
                                       cmocka_unit_test(new_adapters_change_nothing),
                                       cmocka_unit_test(a_step_takes_fewer_products),
                                       cmocka_unit_test(graphs_keep_it_in_text),
                                       cmocka_unit_test(wrong_settings_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
