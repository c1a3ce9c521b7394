/* Degrees of parallelism give plans whose every pattern matches, and the results of one device; the
 * plan gives the degrees back. */
#include "models/model_fixture.h"

#include <math.h>

#include "plan/plan.h"
#include "search/degrees.h"
#include "search/search.h"

enum { BATCH = 4, STEPS = 2 };

typedef struct degrees_case {
    weft_family family;
    int32_t data, expert, context, tensor;
    bool sequence;
    int32_t stages, microbatches;
    int level;
    weft_recompute recompute;
} degrees_case;

static const degrees_case cases[] = {
    {WEFT_FAMILY_GPT2, 2, 1, 1, 2, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_GPT2, 1, 1, 2, 2, true, 1, 1, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_GPT2, 1, 1, 1, 2, true, 2, 2, 0, WEFT_RECOMPUTE_FULL},
    {WEFT_FAMILY_GPT2_MOE, 1, 2, 1, 2, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_GPT2_MOE, 2, 2, 1, 1, false, 1, 1, 2, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_LLAMA, 2, 1, 2, 2, true, 1, 1, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_LLAMA, 1, 1, 1, 2, false, 2, 2, 3, WEFT_RECOMPUTE_SELECTIVE},
    {WEFT_FAMILY_MISTRAL, 1, 1, 1, 2, true, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_QWEN2, 2, 1, 1, 2, true, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_QWEN3, 2, 1, 1, 2, true, 1, 1, 3, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_QWEN3, 1, 1, 2, 2, false, 1, 1, 0, WEFT_RECOMPUTE_FULL},
    {WEFT_FAMILY_QWEN3, 1, 1, 1, 2, true, 2, 2, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_OLMO2, 2, 1, 1, 2, true, 1, 1, 3, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_OLMO2, 1, 1, 2, 2, false, 1, 1, 0, WEFT_RECOMPUTE_SELECTIVE},
    {WEFT_FAMILY_OLMO2, 1, 1, 1, 2, false, 2, 2, 1, WEFT_RECOMPUTE_NONE},
    /* more devices than heads of keys, 2 */
    {WEFT_FAMILY_LLAMA, 1, 1, 1, 4, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_LLAMA, 2, 1, 1, 4, true, 1, 1, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_QWEN3, 1, 1, 1, 4, true, 2, 2, 3, WEFT_RECOMPUTE_FULL},
    {WEFT_FAMILY_OLMO2, 1, 1, 1, 4, true, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_MIXTRAL, 1, 1, 1, 4, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_MIXTRAL, 1, 4, 1, 1, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_MIXTRAL, 1, 2, 1, 2, true, 1, 1, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_BERT, 2, 1, 1, 2, true, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_BERT, 1, 1, 2, 1, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_VIT, 2, 1, 1, 2, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_VIT, 1, 1, 1, 2, true, 2, 2, 1, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_MLP, 2, 1, 1, 2, false, 1, 1, 0, WEFT_RECOMPUTE_NONE},
    {WEFT_FAMILY_RESNET18, 4, 1, 1, 1, false, 1, 1, 2, WEFT_RECOMPUTE_NONE},
};

static wefti_degrees degrees_of(const degrees_case *c) {
    wefti_degrees d = wefti_degrees_none();
    d.data = c->data, d.expert = c->expert, d.context = c->context, d.tensor = c->tensor;
    d.sequence = c->sequence;
    d.stages = c->stages, d.microbatches = c->microbatches;
    d.level = c->level;
    d.recompute = c->recompute;
    return d;
}

static const char *name_of(const degrees_case *c, char out[96]) {
    snprintf(out, 96, "%s dp=%d ep=%d cp=%d tp=%d%s pp=%d", weft_family_text(c->family), c->data,
             c->expert, c->context, c->tensor, c->sequence ? " sp" : "", c->stages);
    return out;
}

static weft_session *session_for(const degrees_case *c, const weft_plan *plan, weft_graph **g) {
    weft_model_config config = tiny(c->family);
    weft_session_options o = weft_session_defaults();
    char name[96];
    weft_session *s;
    *g = built(&config, WEFT_USE_TRAIN, BATCH / c->microbatches, 0, WEFT_F32);
    o.seed = 5;
    o.threads = 2;
    o.microbatches = c->microbatches;
    o.plan = plan;
    if (weft_session_create(*g, &o, &s) < 0)
        fail_msg("%s: %s", name_of(c, name), weft_error_message());
    return s;
}

/* Every pattern of the plan matches an op or a tensor of the model. */
static void check_matches(const degrees_case *c, const weft_plan *plan) {
    weft_model_config config = tiny(c->family);
    weft_graph *g = built(&config, WEFT_USE_TRAIN, BATCH / c->microbatches, 0, WEFT_F32);
    char *lines, name[96];
    ASSERT_OK(wefti_plan_unmatched(plan, g, NULL, &lines));
    if (*lines) fail_msg("%s: %s", name_of(c, name), lines);
    wefti_free(lines);
    weft_graph_destroy(g);
}

/* One step of the case's microbatches. *out: the mean of their losses. */
static weft_status step(const degrees_case *c, weft_session *s, uint64_t seed, double *out) {
    const weft_model_config config = tiny(c->family);
    weft_status status = WEFT_OK;
    *out = 0;
    for (int m = 0; m < c->microbatches && status >= 0; m++) {
        double loss;
        feed_all(s, 0, &config, seed + (uint64_t)m);
        status = c->microbatches > 1 ? weft_session_accumulate(s, &loss)
                                     : weft_session_step(s, 1e-3, &loss);
        /* A pipeline returns the mean with the last microbatch, and NaN before. */
        *out = isnan(*out) || isnan(loss) ? loss : *out + loss / c->microbatches;
    }
    if (status < 0 || c->microbatches == 1) return status;
    return weft_session_update(s, 1e-3, NULL);
}

static void check_losses(const degrees_case *c, const weft_plan *plan) {
    weft_graph *one_graph, *graph;
    weft_session *one = session_for(c, NULL, &one_graph), *s = session_for(c, plan, &graph);
    char name[96];
    for (int k = 0; k < STEPS; k++) {
        const uint64_t seed = 17 + (uint64_t)k * 8;
        double want, is;
        ASSERT_OK(step(c, one, seed, &want));
        if (step(c, s, seed, &is) < 0) fail_msg("%s: %s", name_of(c, name), weft_error_message());
        if (!(fabs(is - want) <= 2e-5 * fabs(want)))
            fail_msg("%s: loss %d is %.8g, not %.8g", name_of(c, name), k, is, want);
    }
    weft_session_destroy(s);
    weft_session_destroy(one);
    weft_graph_destroy(graph);
    weft_graph_destroy(one_graph);
}

static void degrees_give_the_result_of_one_device(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const degrees_case *c = &cases[i];
        const wefti_degrees d = degrees_of(c);
        const weft_model_config config = tiny(c->family);
        weft_plan *plan;
        char name[96];
        if (wefti_degrees_plan(&config, &d, &plan) < 0)
            fail_msg("%s: %s", name_of(c, name), weft_error_message());
        check_matches(c, plan);
        check_losses(c, plan);
        weft_plan_destroy(plan);
    }
}

static void a_plan_gives_its_degrees_back(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const wefti_degrees d = degrees_of(&cases[i]);
        const weft_model_config config = tiny(cases[i].family);
        wefti_degrees back;
        wefti_text notes = {0};
        weft_plan *plan;
        ASSERT_OK(wefti_degrees_plan(&config, &d, &plan));
        assert_int_equal(weft_plan_devices(plan),
                         d.data * d.expert * d.context * d.tensor * d.stages);
        ASSERT_OK(wefti_degrees_of_plan(plan, &back, &notes));
        assert_int_equal(notes.used, 0);
        assert_int_equal(back.data, d.data);
        assert_int_equal(back.expert, d.expert);
        assert_int_equal(back.context, d.context);
        assert_int_equal(back.tensor, d.tensor);
        assert_int_equal(back.sequence, d.sequence && d.tensor > 1);
        assert_int_equal(back.stages, d.stages);
        assert_int_equal(back.microbatches, d.microbatches);
        assert_int_equal(back.level, d.level);
        assert_int_equal(back.recompute, d.recompute);
        weft_plan_destroy(plan);
    }
}

/* Experts lie on the ranks of ep and tp together, each on one of them. */
static void experts_have_a_mesh_of_both(void **state) {
    (void)state;
    static const struct {
        int32_t expert, tensor;
        const char *axes;
    } rows[] = {{2, 2, "ep+tp"}, {1, 2, "tp"}, {1, 4, "tp+tp_shard"}, {4, 1, "ep"}, {4, 2, "ep"}};
    const weft_model_config config = tiny(WEFT_FAMILY_MIXTRAL); /* 4 experts */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wefti_degrees d = wefti_degrees_none();
        char want[64], *text;
        weft_plan *plan;
        d.expert = rows[i].expert, d.tensor = rows[i].tensor;
        ASSERT_OK(wefti_degrees_plan(&config, &d, &plan));
        ASSERT_OK(weft_plan_print(plan, &text));
        snprintf(want, sizeof want, "\"experts=%s\"", rows[i].axes);
        if (!strstr(text, want)) fail_msg("ep=%d tp=%d: %s", d.expert, d.tensor, text);
        weft_text_free(text);
        weft_plan_destroy(plan);
    }
}

static void impossible_degrees_are_refused(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        int32_t expert, context, tensor;
        const char *fact;
    } wrong[] = {{WEFT_FAMILY_RESNET18, 1, 1, 2, "tp"}, {WEFT_FAMILY_LENET, 1, 2, 1, "cp"},
                 {WEFT_FAMILY_LLAMA, 2, 1, 1, "ep"},    {WEFT_FAMILY_MIXTRAL, 8, 1, 1, "4"},
                 {WEFT_FAMILY_GPT2, 1, 1, 4, "2"},      {WEFT_FAMILY_GPT2, 1, 1, 0, "0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const weft_model_config config = tiny(wrong[i].family);
        wefti_degrees d = wefti_degrees_none();
        weft_plan *plan = NULL;
        d.expert = wrong[i].expert, d.context = wrong[i].context, d.tensor = wrong[i].tensor;
        ASSERT_FAILS(WEFT_E_ARG, wrong[i].fact, wefti_degrees_plan(&config, &d, &plan));
        assert_null(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(degrees_give_the_result_of_one_device),
                                       cmocka_unit_test(a_plan_gives_its_degrees_back),
                                       cmocka_unit_test(experts_have_a_mesh_of_both),
                                       cmocka_unit_test(impossible_degrees_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
