/* Completed plans, for every family: each decision is written once. A completed plan has nothing
 * left to complete. It fits only its model, and runs like the plan from which it was made.
 * weft-test: no threads */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "plan/plan.h"
#include "search/search.h"
#include "train/training.h"
#include "weft/ops.h"
#include "weft/program.h"
#include "weft/train.h"

enum { WORDS = 24 };

/* A job of override words, "a=1\nb=2". Sizes are given, so that no data are read. */
static weft_job *job_of(const char *lines) {
    char copy[2048], *words[WORDS], *rest = copy;
    int count = 0;
    weft_job *job = NULL;
    snprintf(copy, sizeof copy, "%s", lines);
    for (char *word; (word = strsep(&rest, "\n"));)
        if (*word && count < WORDS) words[count++] = word;
    if (weft_job_parse("job", NULL, 0, (const char *const *)words, count, &job) < 0)
        fail_msg("%s: %s", lines, weft_error_message());
    return job;
}

static weft_plan *completed(const weft_job *job) {
    weft_plan *plan = NULL;
    if (weft_job_plan(job, &plan, NULL) < 0) fail_msg("%s", weft_error_message());
    return plan;
}

static void equal_plans(const weft_plan *a, const weft_plan *b) {
    char *differences = NULL;
    assert_int_equal(weft_plan_diff(a, b, &differences), WEFT_OK);
    assert_string_equal(differences, "");
    weft_text_free(differences);
}

#define GPT2                                                                                       \
    "model.family=gpt2\nmodel.layers=3\nmodel.hidden=16\nmodel.heads=2\nmodel.context=8\n"         \
    "model.vocab=32\ntrain.batch=8\n"

/* The same with more words behind. */
static weft_job *gpt2_with(const char *more) {
    char lines[1024];
    snprintf(lines, sizeof lines, GPT2 "%s", more);
    return job_of(lines);
}

/* The job of a completed plan's file. */
static weft_job *gpt2_of_plan(const weft_plan *plan) {
    char path[] = "/tmp/weft-plan-XXXXXX", words[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(weft_plan_save(plan, path), WEFT_OK);
    snprintf(words, sizeof words, "parallel.plan=%s", path);
    weft_job *job = gpt2_with(words);
    remove(path);
    return job;
}

static const char *split_of(const weft_plan *plan, const char *match, char out[128]) {
    for (int64_t i = 0; i < plan->strategy_count; i++) {
        if (strcmp(plan->strategies[i].match, match) != 0) continue;
        wefti_text text = {0};
        wefti_split_print(plan, &plan->strategies[i], &text);
        char *taken = wefti_text_take(&text);
        snprintf(out, 128, "%s", taken);
        wefti_free(taken);
        return out;
    }
    return "no rule";
}

/* Column-parallel then row-parallel products follow from the first one's strategy. */
static void test_gpt2(void **state) {
    (void)state;
    char text[128];
    weft_job *job = gpt2_with("parallel.mesh={dp: 2, tp: 2}\n"
                              "parallel.strategies=[{match: h.*.mlp.c_fc:linear, split: n0=tp}]");
    weft_plan *plan = completed(job);
    assert_int_equal(weft_plan_check(plan), WEFT_OK);
    assert_string_equal(split_of(plan, "h.*.mlp.c_fc:linear", text), "m0=dp n0=tp");
    assert_string_equal(split_of(plan, "h.*.mlp.c_proj:linear", text), "m0=dp k=tp");
    assert_string_equal(wefti_plan_tensor(plan, "h.2.mlp.c_fc.weight")->layout, "[-, tp]");
    assert_string_equal(wefti_plan_tensor(plan, "h.2.mlp.c_proj.weight")->layout, "[tp, -]");
    assert_string_equal(wefti_plan_tensor(plan, "tokens")->layout, "[dp, -]");
    for (int64_t i = 0; i < plan->strategy_count; i++)
        for (int64_t k = 0; k < i; k++)
            assert_string_not_equal(plan->strategies[i].match, plan->strategies[k].match);
    /* nothing is left to complete */
    weft_job *again = gpt2_of_plan(plan);
    weft_plan *same = completed(again);
    equal_plans(plan, same);
    weft_plan_destroy(same);
    weft_plan_destroy(plan);
    weft_job_free(again);
    weft_job_free(job);
}

/* One layer differs: exact names replace a pattern that would match too much. */
static void test_uneven_layers(void **state) {
    (void)state;
    char text[128];
    weft_job *job = gpt2_with("parallel.mesh={dp: 2, tp: 2}\n"
                              "parallel.strategies=[{match: h.1.mlp.c_fc:linear, split: n0=tp}]");
    weft_plan *plan = completed(job);
    assert_string_equal(split_of(plan, "h.1.mlp.c_fc:linear", text), "m0=dp n0=tp");
    assert_string_equal(split_of(plan, "h.*.mlp.c_fc:linear", text), "no rule");
    assert_string_equal(split_of(plan, "h.*.attn.c_proj:linear", text), "m0=dp");
    assert_string_equal(wefti_plan_tensor(plan, "h.1.mlp.c_fc.weight")->layout, "[-, tp]");
    assert_string_equal(wefti_plan_tensor(plan, "h.0.mlp.c_fc.weight")->layout, "[-, -]");
    weft_plan_destroy(plan);
    weft_job_free(job);
}

static void test_stages(void **state) {
    (void)state;
    static const char *const schedules[] = {"gpipe", "interleaved", "zero_bubble"};
    for (int i = 0; i < 3; i++) {
        char words[256];
        snprintf(words, sizeof words,
                 "parallel.devices=4\nparallel.pipeline.stages=2\nparallel.pipeline.schedule=%s\n"
                 "parallel.pipeline.microbatches=4\nparallel.pipeline.virtual_stages=%d",
                 schedules[i], i ? 2 : 1);
        weft_job *job = gpt2_with(words);
        weft_plan *plan = completed(job);
        static const char *const calls[] = {"embed", "h.0", "h.1", "h.2", "head"};
        int32_t before = 0;
        assert_int_equal(plan->pipeline.rule_count, 5);
        for (int k = 0; k < 5; k++) {
            int32_t stage = wefti_plan_stage(plan, calls[k]);
            assert_in_range(stage, before, before + (k > 0));
            before = stage;
        }
        assert_int_equal(before, i ? 3 : 1);
        assert_int_equal(weft_plan_check(plan), WEFT_OK);
        weft_plan_destroy(plan);
        weft_job_free(job);
    }
}

/* If stage_of does not name a cell, the cell goes where it balances the costs of stages. A plan
 * with a stage without a cell is refused. */
static void test_named_stages(void **state) {
    (void)state;
    static const char head[] = "parallel.devices=3\nparallel.pipeline.stages=3\n"
                               "parallel.pipeline.microbatches=4\nparallel.pipeline.stage_of=";
    static const struct {
        const char *rules, *stages, *message;
    } cases[] = {
        {"[{match: embed, stage: 0}]", "00122", NULL},
        {"[{match: h.1, stage: 0}]", "00012", NULL},
        {"[{match: h.1, stage: 2}]", "01222", NULL},
        {"[{match: h.0, stage: 1}, {match: h.2, stage: 2}]", "01122", NULL},
        {"[{match: h.?, stage: 1}]", "01112", NULL},
        {"[{match: \"*\", stage: 1}]", NULL, "stage 0|embed|stage 1|0"},
        {"[{match: embed, stage: 2}]", NULL, "stage 0|embed|stage 2"},
        {"[{match: h.0, stage: 2}]", NULL, "stage 1|h.0|stage 2|1"},
        {"[{match: h.2, stage: 0}]", NULL, "stage 2|h.2|stage 0|0|2"},
        {"[{match: h.0, stage: 0}, {match: h.1, stage: 2}]", NULL,
         "stage 1|h.0|stage 0|h.1|stage 2|0"},
        {"[{match: h.0, stage: 1}, {match: h.1, stage: 0}]", NULL, "stages|descend"},
    };
    static const char *const calls[] = {"embed", "h.0", "h.1", "h.2", "head"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[512], stages[6] = {0};
        snprintf(words, sizeof words, "%s%s", head, cases[i].rules);
        weft_job *job = gpt2_with(words);
        weft_plan *plan = NULL;
        weft_status status = weft_job_plan(job, &plan, NULL);
        if (cases[i].message) {
            assert_true(status < 0);
            if (!has_facts(weft_error_message(), cases[i].message))
                fail_msg("%s: %s", cases[i].rules, weft_error_message());
        } else {
            if (status < 0) fail_msg("%s: %s", cases[i].rules, weft_error_message());
            for (int k = 0; k < 5; k++) stages[k] = (char)('0' + wefti_plan_stage(plan, calls[k]));
            assert_string_equal(stages, cases[i].stages);
        }
        weft_plan_destroy(plan);
        weft_job_free(job);
    }
}

/* If only a part of an axis shares a parameter, the completed plan has that axis as two axes. Both
 * split the batches, and the plan completes as before. */
static void test_shared_by_a_part(void **state) {
    (void)state;
    weft_job *job = gpt2_with("parallel.mesh={dp: 4, tp: 2}\nparallel.optimizer.level=1\n"
                              "parallel.optimizer.shard_size=2\n"
                              "parallel.strategies=[{match: h.*.mlp.c_fc, split: n0=tp}]");
    weft_plan *plan = completed(job);
    assert_int_equal(plan->mesh.axes, 3);
    assert_string_equal(plan->mesh.axis[1].name, "dp_shard");
    assert_int_equal(plan->mesh.axis[0].size, 2);
    assert_int_equal(plan->mesh.axis[1].size, 2);
    assert_string_equal(wefti_plan_tensor(plan, "tokens")->layout, "[dp+dp_shard, -]");
    weft_job *again = gpt2_of_plan(plan);
    weft_plan *twice = completed(again);
    equal_plans(plan, twice);
    weft_plan_destroy(twice);
    weft_plan_destroy(plan);
    weft_job_free(again);
    weft_job_free(job);
}

/* An optimizer level shards states and does not change how calls use parameters. */
static void test_optimizer_levels(void **state) {
    (void)state;
    weft_plan *first = NULL;
    for (int level = 0; level <= 3; level++) {
        char words[128];
        snprintf(words, sizeof words, "parallel.mesh={dp: 4}\nparallel.optimizer.level=%d", level);
        weft_job *job = gpt2_with(words);
        weft_plan *plan = completed(job);
        assert_int_equal(plan->optimizer.level, level);
        plan->optimizer.level = 0;
        if (first)
            equal_plans(first, plan);
        else
            first = plan;
        if (first != plan) weft_plan_destroy(plan);
        weft_job_free(job);
    }
    weft_plan_destroy(first);
}

/* A plan belongs to its model: other sizes are refused, another batch is accepted. */
static void test_other_model(void **state) {
    (void)state;
    weft_job *job = gpt2_with("parallel.devices=2");
    weft_plan *plan = completed(job);
    weft_job_free(job);
    assert_true(plan->model_hash != 0);
    job = gpt2_of_plan(plan);
    job->train.batch = 16;
    weft_plan *same = completed(job);
    equal_plans(plan, same);
    weft_plan_destroy(same);
    job->model.hidden = 32;
    same = NULL;
    assert_int_equal(weft_job_plan(job, &same, NULL), WEFT_E_ARG);
    assert_null(same);
    ASSERT_MESSAGE("model");
    weft_job_free(job);
    weft_plan_destroy(plan);
}

/* Mistyped names are reported with the nearest known name. */
/* A plan with very many settings that match nothing makes a short text. */
static void many_unmatched(void **state) {
    (void)state;
    weft_graph *g;
    weft_plan *plan;
    char *unmatched;
    int lines = 0;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 6}));
    weft_loss(g, weft_mean(g, weft_exp(g, x), 0, NULL, false));
    ASSERT_OK(weft_plan_create(2, &plan));
    for (int i = 0; i < 5000; i++) {
        char name[300];
        (void)snprintf(name, sizeof name, "%0200d:linear", i);
        ASSERT_OK(weft_plan_split_op(plan, name, "m0=dp"));
    }
    ASSERT_OK(wefti_plan_unmatched(plan, g, NULL, &unmatched));
    for (const char *at = unmatched; *at; at++) lines += *at == '\n';
    assert_true(lines < 30 && strlen(unmatched) < 10000);
    assert_true(has_facts(unmatched, "4980"));
    weft_text_free(unmatched);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

static void test_unmatched(void **state) {
    (void)state;
    weft_plan *plan = NULL;
    char *unmatched = NULL;
    weft_job *job = gpt2_with("parallel.mesh={dp: 2}\nparallel.recompute.cells=[hh.1, h.*]\n"
                              "parallel.strategies=[{match: h.*.mlp.c_fx, split: n0=dp}, "
                              "{match: h.*.mlp.c_fc, split: m0=dp}, "
                              "{match: \"h.*.mlp.c_fc:linear_grad_weight\", split: m0=dp}]\n"
                              "parallel.tensors=[{match: wte.wieght, layout: [-, -]}]\n"
                              "memory.offload=[{match: h.*.fx.weight, what: optimizer, to: host}, "
                              "{match: hh.*, what: saved, to: host}]\n"
                              "parallel.place=[{match: \"wte.wieght:update\", on: host}]");
    assert_int_equal(weft_job_plan(job, &plan, &unmatched), WEFT_OK);
    ASSERT_FACTS(unmatched, "h.*.mlp.c_fx|h.*.mlp.c_fc");
    ASSERT_FACTS(unmatched, "wte.wieght|wte.weight");
    ASSERT_FACTS(unmatched, "recompute.cells[0]|hh.1|h.1");
    ASSERT_FACTS(unmatched, "offload[0]|parameter|h.*.fx.weight");
    ASSERT_FACTS(unmatched, "offload[1]|cell|hh.*|h.*");
    ASSERT_FACTS(unmatched, "place[0]|update|wte.wieght|wte.weight:update");
    int lines = 0;
    for (const char *at = unmatched; *at; at++) lines += *at == '\n';
    assert_int_equal(lines, 6);
    weft_text_free(unmatched);
    weft_plan_destroy(plan);
    weft_job_free(job);
}

/* Cells that differ only in the names in them: each strategy applies to the cell that it names. */
static void test_names_in_equal_cells(void **state) {
    (void)state;
    static const char *const names[] = {"left", "right"};
    weft_graph *g = NULL;
    weft_plan *plan = NULL;
    char *unmatched;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 8}));
    for (int i = 0; i < 2; i++) {
        weft_cell_begin(g, "c.%d", i);
        weft_cell_begin(g, "%s", names[i]);
        weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, 2, (int64_t[]){8, 8}),
                                  (weft_init){WEFT_INIT_ZEROS, 0});
        weft_value y = weft_cell_end(g, weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)));
        x = weft_cell_end(g, y);
    }
    weft_output(g, "y", x);
    assert_int_equal(weft_graph_status(g), WEFT_OK);
    const char *text = "{\"weft_plan\": 1, \"devices\": 2, \"mesh\": {\"tp\": 2}, "
                       "\"strategies\": [{\"match\": \"c.*.left:linear\", \"split\": \"n0=tp\"}, "
                       "{\"match\": \"c.1.right:linear\", \"split\": \"n0=tp\"}, "
                       "{\"match\": \"c.1.left\", \"split\": \"n0=tp\"}]}";
    if (weft_plan_parse("p", text, (int64_t)strlen(text), &plan) < 0)
        fail_msg("%s", weft_error_message());
    assert_int_equal(wefti_plan_unmatched(plan, g, NULL, &unmatched), WEFT_OK);
    if (!has_facts(unmatched, "c.1.left") || strstr(unmatched, "right'") ||
        strstr(unmatched, "linear'"))
        fail_msg("%s", unmatched);
    weft_text_free(unmatched);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

/* Whether each line of a text has the facts that the same line of `facts` lists. */
static bool has_lines(const char *text, const char *facts) {
    char line[2][1000];
    while (*text && *facts) {
        const char **from[] = {&text, &facts};
        for (int i = 0; i < 2; i++) {
            const size_t length = strcspn(*from[i], "\n");
            assert_true(length < sizeof line[i]);
            memcpy(line[i], *from[i], length);
            line[i][length] = 0;
            *from[i] += length + ((*from[i])[length] == '\n');
        }
        if (!has_facts(line[0], line[1])) return false;
    }
    return !*text && !*facts;
}

/* Axes that split nothing, and bucket ends behind all gradients, are reported. */
static void test_unused(void **state) {
    (void)state;
    static const struct {
        const char *words, *notes;
    } cases[] = {
        {"parallel.mesh={dp: 2}", ""},
        {"parallel.mesh={dp: 2, x: 1}", ""},
        {"parallel.mesh={data: 2}", "'data'|'dp'\n"},
        {"parallel.mesh={data: 2}\nparallel.mode=data", ""},
        {"parallel.mesh={dp: 2, tp: 2}", "'tp'\n"},
        {"parallel.mesh={dp: 2}\nparallel.dataset=full_batch", "'dp'\n"},
        {"parallel.mesh={sp: 2}\nparallel.tensors=[{match: tokens, layout: [-, sp]}, {match: "
         "targets, layout: [-, sp]}]",
         ""},
        {"parallel.mesh={tp: 2}\nparallel.strategies=[{match: h.*.mlp.c_fc, split: n0=tp}]", ""},
        {"parallel.mesh={tp: 2}\nparallel.strategies=[{match: h.*.mlp.c_fc:linear, split: "
         "((1,1,1),(1,2))}]",
         ""},
        {"parallel.mesh={dp: 2}\nparallel.fusion.allreduce=index\n"
         "parallel.fusion.allreduce.config=[20, 40]",
         ""}, /* 2 of the embedding, 12 of each block, 2 of the last norm */
        {"parallel.mesh={dp: 2}\nparallel.fusion.allreduce=index\n"
         "parallel.fusion.allreduce.config=[20, 41, 50]",
         "fusion.allreduce.config|41|40\n"},
        {"parallel.mesh={dp: 2}\nparallel.pipeline.stages=2\nparallel.fusion.allreduce=index\n"
         "parallel.fusion.allreduce.config=[12, 30]",
         "fusion.allreduce.config|30|26\n"},
        {"parallel.pipeline.stages=2\nparallel.fusion.allreduce=none",
         "fusion.allreduce|optimizer.level 0\n"},
        {"parallel.mesh={dp: 2}\nparallel.mode=manual\nparallel.fusion.allreduce=none",
         "fusion.allreduce|manual\n"},
        {"parallel.mesh={dp: 2}\nparallel.fusion.allreduce=none", ""},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=1", ""},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=1\nparallel.fusion.reducescatter=none",
         ""},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=1\nparallel.fusion.allreduce=index\n"
         "parallel.fusion.allreduce.config=[20, 41]",
         "fusion.allreduce|optimizer.level 1|fusion.reducescatter\n"},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=3\nparallel.fusion.allreduce=none",
         "fusion.allreduce|optimizer.level 3\n"},
        {"parallel.mesh={dp: 2}\nparallel.fusion.allgather=none",
         "fusion.allgather|optimizer.level 0\n"},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=2\nparallel.fusion.allgather=none", ""},
        {"parallel.mesh={dp: 2}\nparallel.fusion.reducescatter=none",
         "fusion.reducescatter|optimizer.level 0|fusion.allreduce\n"},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=1\nparallel.fusion.reducescatter=none\n"
         "parallel.fusion.allgather=none",
         "fusion.allgather|optimizer.level 1|bucket\n"},
        {"parallel.mesh={dp: 2}\nparallel.optimizer.level=1\nparallel.optimizer.threshold=1GiB\n"
         "parallel.fusion.reducescatter=none\nparallel.fusion.allgather=none",
         "fusion.reducescatter|optimizer.level 1|fusion.allreduce\n"
         "fusion.allgather|optimizer.level 1\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_job *job = gpt2_with(cases[i].words);
        weft_plan *plan = NULL;
        char *notes = NULL;
        if (weft_job_plan(job, &plan, &notes) < 0)
            fail_msg("%s: %s", cases[i].words, weft_error_message());
        if (!has_lines(notes, cases[i].notes))
            fail_msg("%s: \"%s\" instead of \"%s\"", cases[i].words, notes, cases[i].notes);
        weft_text_free(notes);
        weft_plan_destroy(plan);
        weft_job_free(job);
    }
}

/* The programs of the first device of each of `stages` stages, one after the other. *out_told:
 * whether fusion is reported as having no effect. */
static char *programs_with(const char *lines, int stages, const char *fusion, bool *out_told) {
    char all[1024], *text, *notes;
    wefti_text texts = {0};
    snprintf(all, sizeof all, "%s\n%s", lines, fusion);
    weft_job *job = job_of(all);
    for (int s = 0; s < stages; s++) {
        int rank = s * (job->plan->devices / stages);
        if (weft_job_program_text(job, rank, &text, &notes) < 0)
            fail_msg("%s: %s", all, weft_error_message());
        wefti_text_add(&texts, "%s", text);
        *out_told = has_facts(notes, "does nothing");
        weft_text_free(text);
        weft_text_free(notes);
    }
    weft_job_free(job);
    text = wefti_text_take(&texts);
    assert_non_null(text);
    return text;
}

/* A fusion setting is reported as having no effect exactly if it changes no program. */
static void test_fusion_told(void **state) {
    (void)state;
    static const struct {
        const char *lines;
        int stages;
    } cases[] = {
        {GPT2 "parallel.mesh={dp: 2}", 1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=1", 1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=2", 1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=3", 1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=1\n"
              "parallel.optimizer.threshold=1GiB",
         1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=1\n"
              "parallel.optimizer.threshold=512",
         1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=3\n"
              "parallel.optimizer.threshold=512",
         1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.optimizer.level=2\n"
              "parallel.optimizer.shard_size=1",
         1},
        {GPT2 "parallel.mesh={dp: 4}\nparallel.optimizer.level=1\n"
              "parallel.optimizer.shard_size=2",
         1},
        {GPT2 "parallel.mesh={tp: 2}\nparallel.dataset=full_batch\nparallel.optimizer.level=1\n"
              "parallel.strategies=[{match: h.*.mlp.c_fc:linear, split: n0=tp}]",
         1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.mode=manual", 1},
        {GPT2 "parallel.mesh={dp: 2}\nparallel.pipeline.stages=2", 2},
        {GPT2 "parallel.pipeline.stages=2", 2},
        /* the second of the three stages has no parameter that devices share */
        {"model.family=gpt2\nmodel.layers=3\nmodel.hidden=16\nmodel.heads=2\nmodel.context=8\n"
         "model.vocab=2048\ntrain.batch=18\nparallel.devices=6\nparallel.mesh={dp: 2}\n"
         "parallel.pipeline.stages=3\nparallel.optimizer.level=1\n"
         "parallel.optimizer.threshold=8KiB",
         3},
        /* 3 devices share, each has a third of tp, and nothing is left to shard */
        {"model.family=mlp\nmodel.layers=2\nmodel.hidden=96\nmodel.image=[1, 8, 8]\n"
         "model.classes=12\ntrain.batch=8\nparallel.mesh={dp: 2, tp: 3}\n"
         "parallel.optimizer.level=1\nparallel.optimizer.shard_size=3\n"
         "parallel.optimizer.threshold=512\n"
         "parallel.strategies=[{match: \"*:linear\", split: n0=tp}]",
         1},
    };
    static const char *const fusions[] = {"", "parallel.fusion.allreduce=none",
                                          "parallel.fusion.reducescatter=none",
                                          "parallel.fusion.allgather=none"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *lines = cases[i].lines;
        char *text[4];
        bool told[4];
        for (int k = 0; k < 4; k++)
            text[k] = programs_with(lines, cases[i].stages, fusions[k], &told[k]);
        assert_false(told[0]);
        for (int k = 1; k < 4; k++) {
            bool same = !strcmp(text[0], text[k]);
            if (told[k] && !same) fail_msg("%s: told of what does something, %d", lines, k);
            if (!told[k] && same) fail_msg("%s: not told of what does nothing, %d", lines, k);
        }
        for (int k = 0; k < 4; k++) weft_text_free(text[k]);
    }
}

static void test_one_device(void **state) {
    (void)state;
    weft_job *job = gpt2_with("train.accumulate=2");
    weft_plan *plan = completed(job);
    assert_int_equal(plan->devices, 1);
    assert_int_equal(plan->accumulate, 2);
    assert_int_equal(plan->strategy_count, 0);
    weft_plan_destroy(plan);
    weft_job_free(job);
    assert_int_equal(weft_job_plan(NULL, &plan, NULL), WEFT_E_ARG);
    /* settings that training would refuse */
    job = gpt2_with("parallel.mesh={x: 1}\nparallel.copies=2\n"
                    "parallel.strategies=[{match: h.*.mlp.c_fc:linear, split: n7=x}]");
    assert_int_equal(weft_job_plan(job, &plan, NULL), WEFT_E_LAYOUT);
    ASSERT_MESSAGE("such|factor");
    weft_job_free(job);
}

/* Each device runs the same program if its plan was completed before or is completed while
 * building. */
static void equal_programs(const char *lines, const weft_job *a, const weft_job *b) {
    for (int rank = 0; rank < a->plan->devices; rank++) {
        char *texts[2];
        const weft_job *jobs[] = {a, b};
        for (int i = 0; i < 2; i++)
            if (weft_job_program_text(jobs[i], rank, &texts[i], NULL) < 0)
                fail_msg("%s: %s", lines, weft_error_message());
        for (int i = 0; i < 2; i++) cut_program_bytes(texts[i]);
        if (strcmp(texts[0], texts[1]) != 0) fail_msg("%s: rank %d differs", lines, rank);
        for (int i = 0; i < 2; i++) weft_text_free(texts[i]);
    }
}

/* Every family, on devices that split at least the batch. The completed plan is complete and valid,
 * and completes to itself. It uses only names that the model has, also if gradients have ops of the
 * same names. */
static void test_families(void **state) {
    (void)state;
    static const char *const plans[] = {
        "parallel.mesh={dp: 2, tp: 2}",
        "parallel.mesh={dp: 3}\ntrain.batch=3\nparallel.tensors=[{match: image, layout: [-, -, dp, "
        "-]}, {match: tokens, layout: [-, dp]}, {match: targets, layout: [-, dp]}]",
        "parallel.mesh={dp: 3}\nparallel.pipeline.stages=2\n"
        "parallel.pipeline.microbatches=2\ntrain.batch=6",
    };
    static const char *const models[] = {
        "model.family=llama\nmodel.hidden=16\nmodel.heads=2\nmodel.layers=2\nmodel.context=8\n"
        "model.vocab=32",
        "model.family=bert\nmodel.hidden=16\nmodel.heads=2\nmodel.layers=2\nmodel.context=8\n"
        "model.vocab=32",
        "model.family=vit\nmodel.layers=2\nmodel.hidden=16\nmodel.heads=2\nmodel.patch=4\n"
        "model.image=[1, 8, 8]\nmodel.classes=4",
        "model.family=mixtral\nmodel.hidden=16\nmodel.heads=2\nmodel.layers=2\nmodel.context=8\n"
        "model.vocab=32\nmodel.experts=4",
        "model.family=mlp\nmodel.layers=2\nmodel.hidden=16\nmodel.image=[1, 8, 8]\n"
        "model.classes=4",
        "model.family=lenet\nmodel.image=[1, 28, 28]\nmodel.classes=10",
        "model.family=resnet18\nmodel.image=[3, 32, 32]\nmodel.classes=10",
    };
    size_t count = sizeof models / sizeof *models;
    for (size_t i = 0; i < sizeof plans / sizeof *plans * count; i++) {
        char lines[512], *unmatched;
        snprintf(lines, sizeof lines, "%s\ntrain.batch=4\n%s", models[i % count], plans[i / count]);
        weft_job *job = job_of(lines);
        weft_plan *plan, *same;
        assert_int_equal(weft_job_plan(job, &plan, &unmatched), WEFT_OK);
        for (const char *at = unmatched; *at; at = strchr(at, '\n') + 1) /* layouts above */
            if (!has_facts(at, "tensor") && !has_facts(at, "tp"))
                fail_msg("%s: %s", lines, unmatched);
        weft_text_free(unmatched);
        assert_true(plan->strategy_count > 0 && plan->tensor_count > 0);
        assert_int_equal(weft_plan_check(plan), WEFT_OK);
        weft_job filled = *job;
        filled.plan = plan;
        same = completed(&filled);
        equal_plans(plan, same);
        equal_programs(lines, job, &filled);
        weft_plan_destroy(same);
        weft_plan_destroy(plan);
        weft_job_free(job);
    }
}

/* Each allocation failed in turn: WEFT_E_NOMEM, nothing leaked (the sanitizer build looks). */
static void test_no_memory(void **state) {
    (void)state;
    weft_job *job = job_of("model.family=mlp\nmodel.layers=1\nmodel.hidden=4\nmodel.classes=2\n"
                           "model.image=[1, 2, 2]\ntrain.batch=2\nparallel.devices=2");
    int64_t failures = 0;
    for (;; failures++) {
        weft_plan *plan = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failures, false, 0);
        char *unmatched = NULL;
        weft_status status = weft_job_plan(job, &plan, &unmatched);
        bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > failures;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        weft_plan_destroy(plan);
        weft_text_free(unmatched);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failures > 50);
    weft_job_free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_uneven_layers),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_named_stages),
        cmocka_unit_test(test_shared_by_a_part),
        cmocka_unit_test(test_optimizer_levels),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_one_device),
        cmocka_unit_test(test_unmatched),
        cmocka_unit_test(many_unmatched),
        cmocka_unit_test(test_names_in_equal_cells),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_fusion_told),
    };
    return cmocka_run_group_tests_name("plan completion", tests, NULL, NULL);
}
