/* The joint search keeps constraints and what the job decides, says why it cannot, and describes
 * its answer. */
#include "joint_models.h"

#include "plan/plan.h"

/* ---- what the answer says ---- */

/* The cells of an answer: all calls are in one of them, and the plan's choice is the first. */
static void cells_are_described(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    wefti_joint_answer a =
        joint_answered(&m, &(joint_question){joint_machine(2, 4, 1e11, 1e10), "pp=2 tp=2", 8, 32, 0,
                                             .evaluations = 4});
    int calls = 0, blocks = 0;
    for (int i = 0; i < a.cells.count; i++) {
        const weft_cell_report *c = &a.cells.cells[i];
        calls += c->calls;
        if (strstr(c->name, "*")) {
            blocks += c->calls;
            assert_non_null(strstr(c->splits, "tp"));
            assert_true(c->choice_count >= 3);
            assert_true(c->choices[0].forward_seconds > 0);
        }
        assert_string_equal(c->choices[0].name, "plan");
        assert_true(c->first_stage >= 0 && c->last_stage < 2);
    }
    assert_int_equal(blocks, 6);
    assert_true(calls > 6);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* Two plans never share one text, and each text is a constraint for its own plan. */
static void texts_of_degrees_differ(void **state) {
    (void)state;
    static const int8_t orders[][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {1, 2, 3, 0}};
    static const int inner[] = {3, 2, 0};
    for (int k = 0; k < 3; k++) {
        wefti_degrees d = wefti_degrees_none();
        wefti_joint_fix fix = wefti_joint_free();
        wefti_text text = {0};
        d.data = d.context = d.tensor = 2;
        memcpy(d.order, orders[k], sizeof d.order);
        wefti_joint_degrees_text(&d, &text);
        char *words = wefti_text_take(&text);
        ASSERT_OK(wefti_joint_fix_add(words, &fix));
        assert_int_equal(fix.value[WEFTI_JOINT_INNER], inner[k]);
        wefti_free(words);
    }
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 4, 64, 256, 32)};
    wefti_joint_answer a =
        joint_answered(&m, &(joint_question){joint_machine(2, 2, 1e11, 1e10), "dp=2 tp=2 inner=dp",
                                             4, 16, 0, .evaluations = 2});
    assert_int_equal(a.degrees.order[3], 0);
    wefti_joint_answer_free(&a);
    joint_source_free(&m);
}

/* ---- what the job decides ---- */

/* Copies of a microbatch alternate, so no stage has to wait for its transfers. */
static void copies_of_the_job_are_kept(void **state) {
    (void)state;
    static const char *const fixes[] = {"tp=4 sp=0 level=0", "tp=4 sp=1", "tp=2 level=3",
                                        "tp=2 pp=2",         "dp=2 cp=2", "dp=4 level=2"};
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 2, 256, 512, 64)};
    static const char *const machines[] = {"hosts=1 gpus=4 gpu=a100-80g intra=5e9,3e-6",
                                           "hosts=1 gpus=4 gpu=a100-80g intra=300e9,3e-6"};
    weft_plan *settings;
    ASSERT_OK(weft_plan_create(4, &settings));
    ASSERT_OK(weft_plan_copies(settings, 2));
    for (int k = 0; k < 2; k++) {
        const joint_question q = {machines[k],         NULL, 4, 16, 0, .evaluations = 20,
                                  .settings = settings};
        wefti_joint_answer best = joint_answered(&m, &q);
        assert_int_equal(best.plan->copies, 2);
        for (size_t f = 0; f < sizeof fixes / sizeof *fixes; f++) {
            joint_question fixed = q;
            fixed.fix = fixes[f];
            wefti_joint_answer a = joint_answered(&m, &fixed);
            assert_int_equal(a.plan->copies, 2);
            assert_true(best.lower_bound_seconds <= a.prediction->step_seconds);
            wefti_joint_answer_free(&a);
        }
        wefti_joint_answer_free(&best);
    }
    weft_plan_destroy(settings);
    joint_source_free(&m);
}

/* Levels 1 and 2 would gather them as level 3 does. */
static void parameters_move_at_levels_0_and_3(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 2, 64, 512, 32)};
    weft_plan *settings;
    wefti_joint_answer a;
    ASSERT_OK(weft_plan_create(4, &settings));
    ASSERT_OK(weft_plan_offload(settings, "h.1.*", WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_HOST));
    joint_question q = {
        joint_machine(1, 4, 1e11, 1e10), NULL, 4, 16, 0, .evaluations = 2, .settings = settings};
    a = joint_answered(&m, &q);
    assert_true(a.degrees.level % 3 == 0);
    wefti_joint_answer_free(&a);
    q.fix = "level=2";
    ASSERT_FAILS(WEFT_E_NO_IMPL, "level=2", joint_ask(&m, &q, &a));
    weft_plan_destroy(settings);
    joint_source_free(&m);
}

/* All plans have the job's rules for lower tiers. No bound is above what the programs need: with
 * the peak of a plan as the limit the search finds that plan. */
static void offloads_of_the_job_are_kept(void **state) {
    (void)state;
    static const struct {
        weft_offload what;
        const char *match, *name; /* name: one that it matches */
        bool updates;             /* of these parameters run on the host */
    } rules[] = {{WEFT_OFFLOAD_OPTIMIZER, "*", "h.3.ln_1.weight", false},
                 {WEFT_OFFLOAD_OPTIMIZER, "h.[2-5].*", "h.3.ln_1.weight", false},
                 {WEFT_OFFLOAD_OPTIMIZER, "h.[2-5].*:update", "h.3.ln_1.weight", true},
                 {WEFT_OFFLOAD_SAVED, "h.*", "h.3", false},
                 {WEFT_OFFLOAD_PARAMETERS, "*", "h.3.attn.c_attn.weight", false},
                 {WEFT_OFFLOAD_GRADIENTS, "h.[2-5].*", "h.3.attn.c_attn.weight", false}};
    static const char *const fixes[] = {"dp=4 level=0 recompute=none", "tp=4 recompute=none",
                                        "dp=2 pp=2 microbatches=2 recompute=none", "dp=4 level=3"};
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 6, 64, 512, 32)};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        weft_plan *settings;
        ASSERT_OK(weft_plan_create(4, &settings));
        if (rules[r].updates)
            ASSERT_OK(weft_op_place(settings, rules[r].match, "host"));
        else
            ASSERT_OK(weft_plan_offload(settings, rules[r].match, rules[r].what, WEFT_TIER_HOST));
        /* With few samples, parameters and gradients are most of the memory. */
        const bool large =
            rules[r].what == WEFT_OFFLOAD_PARAMETERS || rules[r].what == WEFT_OFFLOAD_GRADIENTS;
        joint_question q = {joint_machine(1, 4, 1e11, 1e10),
                            NULL,
                            4,
                            large ? 4 : 16,
                            0,
                            .evaluations = 20,
                            .settings = settings};
        wefti_joint_answer best = joint_answered(&m, &q);
        for (size_t f = 0; f < sizeof fixes / sizeof *fixes; f++) {
            joint_question fixed = q;
            fixed.fix = fixes[f];
            wefti_joint_answer a = joint_answered(&m, &fixed);
            assert_int_equal(wefti_plan_tier(a.plan, rules[r].what, rules[r].name), WEFT_TIER_HOST);
            assert_true(best.lower_bound_seconds <= a.prediction->step_seconds);
            fixed.memory = a.prediction->peak_bytes;
            wefti_joint_answer again = joint_answered(&m, &fixed);
            assert_true(again.prediction->peak_bytes <= fixed.memory);
            assert_true(again.prediction->step_seconds <= a.prediction->step_seconds);
            wefti_joint_answer_free(&again);
            wefti_joint_answer_free(&a);
        }
        wefti_joint_answer_free(&best);
        weft_plan_destroy(settings);
    }
    joint_source_free(&m);
}

/* The job sets the stages; `first`: the block that begins the second one. */
static weft_plan *settings_of_stages(int first) {
    weft_plan *settings;
    char name[16];
    ASSERT_OK(weft_plan_create(2, &settings));
    ASSERT_OK(weft_plan_stage(settings, "embed", 0));
    ASSERT_OK(weft_plan_stage(settings, "head", 1));
    for (int k = 0; k < 6; k++) {
        (void)snprintf(name, sizeof name, "h.%d", k);
        ASSERT_OK(weft_plan_stage(settings, name, k >= first));
    }
    return settings;
}

/* The search keeps stages that the job sets, and says in which stage cells are. */
static void stages_of_the_job_are_kept(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 6, 64, 512, 32)};
    joint_question q = {
        joint_machine(2, 1, 1e9, 1e9), "pp=2 microbatches=4", 2, 8, 0, .evaluations = 20};
    for (int first = 1; first < 6; first++) { /* block of the second stage */
        weft_plan *settings = settings_of_stages(first);
        q.settings = settings;
        wefti_joint_answer a = joint_answered(&m, &q);
        for (int k = 0; k < a.cells.count; k++) {
            const weft_cell_report *cell = &a.cells.cells[k];
            if (!strcmp(cell->name, "head")) assert_int_equal(cell->first_stage, 1);
            if (!strcmp(cell->name, "embed")) assert_int_equal(cell->last_stage, 0);
        }
        for (int k = 0; k < 6; k++) {
            char name[16];
            (void)snprintf(name, sizeof name, "h.%d", k);
            assert_int_equal(wefti_plan_stage(a.plan, name), k >= first);
        }
        assert_true(a.lower_bound_seconds <= a.prediction->step_seconds);
        wefti_joint_answer_free(&a);
        weft_plan_destroy(settings);
    }
    joint_source_free(&m);
}

static void constraints_are_kept(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_LLAMA, 6, 64, 256, 32)};
    wefti_joint_answer free = joint_answered(
        &m, &(joint_question){joint_machine(2, 4, 1e11, 1e10), NULL, 8, 32, 0, .evaluations = 16});
    wefti_joint_answer a = joint_answered(&m, &(joint_question){joint_machine(2, 4, 1e11, 1e10),
                                                                "pp=2, tp=2 recompute=full", 8, 32,
                                                                0, .evaluations = 16});
    assert_int_equal(a.degrees.stages, 2);
    assert_int_equal(a.degrees.tensor, 2);
    assert_int_equal(a.degrees.recompute, WEFT_RECOMPUTE_FULL);
    assert_int_equal(a.plan->pipeline.stages, 2);
    assert_true(a.prediction->step_seconds >= free.lower_bound_seconds);
    /* The constraints that the answer names give the answer. */
    wefti_text text = {0};
    wefti_joint_degrees_text(&free.degrees, &text);
    char *fix = wefti_text_take(&text);
    wefti_joint_answer again = joint_answered(
        &m, &(joint_question){joint_machine(2, 4, 1e11, 1e10), fix, 8, 32, 0, .evaluations = 8});
    assert_true(again.prediction->step_seconds <= free.prediction->step_seconds);
    wefti_free(fix);
    wefti_joint_answer_free(&free);
    wefti_joint_answer_free(&a);
    wefti_joint_answer_free(&again);
    joint_source_free(&m);
}

/* ---- what is refused ---- */

static void refuses(const char *fix, int devices, const char *first, const char *second) {
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 4, 64, 256, 32)};
    wefti_joint_answer a;
    const weft_status status = joint_ask(
        &m,
        &(joint_question){joint_machine(1, 8, 1e11, 1e10), fix, devices, 8, 0, .evaluations = 2},
        &a);
    if (status != WEFT_E_ARG) fail_msg("%s: status %d", fix, (int)status);
    if (!strstr(weft_error_message(), first) || !strstr(weft_error_message(), second))
        fail_msg("%s: %s", fix, weft_error_message());
    joint_source_free(&m);
}

static void contradictions_are_named(void **state) {
    (void)state;
    refuses("pp=4 tp=4", 8, "pp=4", "tp=4");
    refuses("tp=3", 8, "tp=3", "8 devices");
    refuses("tp=3,pp=5", 8, "tp=3", "pp=5");
    refuses("schedule=1f1b chunks=2", 8, "chunks=2", "schedule=1f1b");
    refuses("microbatches=3", 8, "microbatches=3", "8 samples");
    refuses("sp=1 tp=1", 8, "sp=1", "tp=1");
    refuses("level=3 dp=1 ep=1 cp=1", 8, "level=3", "dp=1");
    refuses("level=1 tp=4 pp=2", 8, "level=1", "tp=4 pp=2");
    /* With values that would be right, and the reason where a check knows one. */
    refuses("pp=4 microbatches=2", 8, "pp=4 and microbatches=2",
            "pp=4: microbatches=4, microbatches=8");
    refuses("microbatches=2 pp=4 sp=0", 8, "pp=4 and microbatches=2", "microbatches=2: pp=1, pp=2");
    refuses("level=3 dp=1 tp=4", 4, "tp=4 and level=3", "tp=4: level=0");
    refuses("level=3 dp=1 tp=4", 4, "tp=4 and level=3", "level=3: tp=1, tp=2");
    refuses("ep=2", 8, "ep=2 and", "gpt2");
    refuses("ep=2", 8, "experts", " ep=1");
    refuses("shard=3 level=1", 4, "shard=3 and", "shard=0, shard=1, shard=2, shard=4");
    refuses("shard=3 level=1", 4, "shard_size = 3", "4 devices");
    refuses("dp=2 tp=2 cp=1 pp=1", 8, "without", "dp=2 or cp=1 or tp=2 or pp=1");
    wefti_joint_fix fix = wefti_joint_free();
    assert_int_equal(wefti_joint_fix_add("pp=2 pp=4", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("xx=2", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("tp=", &fix), WEFT_E_ARG);
    assert_int_equal(wefti_joint_fix_add("tp=0", &fix), WEFT_E_ARG);
    ASSERT_FAILS(WEFT_E_ARG, "'some'|none|selective|full",
                 wefti_joint_fix_add("recompute=some", &fix));
}

static void what_does_not_fit_is_said(void **state) {
    (void)state;
    joint_source m = {.dtype = WEFT_F32,
                      .config = joint_language(WEFT_FAMILY_GPT2, 4, 64, 256, 32)};
    wefti_joint_answer a;
    assert_int_equal(joint_ask(&m,
                               &(joint_question){joint_machine(1, 2, 1e11, 1e10), NULL, 2, 4,
                                                 100000, .evaluations = 8},
                               &a),
                     WEFT_E_NOMEM);
    assert_non_null(strstr(weft_error_message(), "rank"));
    assert_non_null(strstr(weft_error_message(), "bytes"));
    /* The instant: a step of the program. */
    assert_non_null(strstr(weft_error_message(), "at once in "));
    joint_source_free(&m);
}

/* A mixture without a capacity factor. Its splits fit by their guesses, but their programs do not,
 * and the effort ends before one is walked. The plan that the message names needs little more than
 * the least plan. */
static void the_least_need_is_said(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    joint_source m = {.dtype = WEFT_BF16,
                      .config = joint_language(WEFT_FAMILY_MIXTRAL, 4, 512, 1024, 2048)};
    m.config.heads = m.config.kv_heads = 8, m.config.ffn = 256;
    m.config.experts = 64, m.config.experts_per_token = 4;
    ASSERT_OK(weft_model_complete(&m.config));
    const joint_question q = {
        joint_machine(4, 8, 4e11, 2e10), NULL, 32, 32, 150 * MIB, .evaluations = 0};
    wefti_joint_answer a;
    assert_int_equal(joint_ask(&m, &q, &a), WEFT_E_NOMEM);
    const char *more = strstr(weft_error_message(), " bytes) more");
    assert_non_null(more);
    while (more[-1] != '(') more--;
    if (strtoll(more, NULL, 10) > 300 * MIB) fail_msg("%s", weft_error_message());
    joint_source_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_are_described),
        cmocka_unit_test(texts_of_degrees_differ),
        cmocka_unit_test(copies_of_the_job_are_kept),
        cmocka_unit_test(stages_of_the_job_are_kept),
        cmocka_unit_test(offloads_of_the_job_are_kept),
        cmocka_unit_test(parameters_move_at_levels_0_and_3),
        cmocka_unit_test(constraints_are_kept),
        cmocka_unit_test(contradictions_are_named),
        cmocka_unit_test(what_does_not_fit_is_said),
        cmocka_unit_test(the_least_need_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
