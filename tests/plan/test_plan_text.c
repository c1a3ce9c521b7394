/* Plans as text: a printed plan reads back equal, an invalid plan is refused with its place, and
 * differences are listed. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/philox.h"
#include "plan/plan.h"

static void good(weft_status status) {
    if (status < 0) fail_msg("refused: %s", weft_error_message());
}

static weft_plan *parse(const char *text) {
    weft_plan *plan = NULL;
    good(weft_plan_parse("plan.json", text, (int64_t)strlen(text), &plan));
    return plan;
}
static char *print(const weft_plan *plan) {
    char *text = NULL;
    good(weft_plan_print(plan, &text));
    return text;
}

static void refused(const char *text, weft_status expected, const char *message) {
    weft_plan *plan = NULL;
    assert_int_equal(weft_plan_parse("plan.json", text, (int64_t)strlen(text), &plan), expected);
    assert_null(plan);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}
/* A plan of 8 devices, dp 2, tp 4, with one more member. */
static void refused_member(const char *member, const char *message) {
    char text[512];
    snprintf(text, sizeof text,
             "{\"weft_plan\": 1, \"devices\": 8, \"mesh\": {\"dp\": 2, \"tp\": 4}, %s}", member);
    refused(text, WEFT_E_ARG, message);
}

static const char example[] =
    "{\n"
    "  \"weft_plan\": 1,\n"
    "  \"model\": \"00c0ffee00000001\",\n"
    "  \"devices\": 8,\n"
    "  \"mesh\": {\"dp\": 2, \"tp\": 2},\n"
    "  \"links\": {\n"
    "    \"ranks_per_host\": 4,\n"
    "    \"same_host\": null,\n"
    "    \"between_hosts\": {\"latency_seconds\": 2.5e-05, \"bytes_per_second\": 2000000000}\n"
    "  },\n"
    "  \"mode\": \"semi\",\n"
    "  \"pipeline\": {\n"
    "    \"stages\": 2,\n"
    "    \"microbatches\": 4,\n"
    "    \"schedule\": \"1f1b\",\n"
    "    \"virtual_stages\": 1,\n"
    "    \"stage_of\": [\n"
    "      {\"match\": \"h.[0-5]\", \"stage\": 0},\n"
    "      {\"match\": \"h.*\", \"stage\": 1}\n"
    "    ],\n"
    "    \"meshes\": [\n"
    "      {\"dp\": 3, \"tp\": 2},\n"
    "      {\"dp\": 1, \"tp\": 2}\n"
    "    ]\n"
    "  },\n"
    "  \"optimizer\": {\"level\": 2, \"threshold\": 65536, \"shard_size\": 2},\n"
    "  \"accumulate\": 1,\n"
    "  \"copies\": 2,\n"
    "  \"recompute\": {\"mode\": \"full\", \"cells\": [\"h.*\"], \"communication\": true},\n"
    "  \"offload\": [\n"
    "    {\"match\": \"h.*\", \"what\": \"optimizer\", \"to\": \"host\"},\n"
    "    {\"match\": \"wte.*\", \"what\": \"optimizer\", \"to\": \"disk\", \"cache\": 4096},\n"
    "    {\"match\": \"wpe\", \"what\": \"optimizer\", \"to\": \"disk\", \"cache_percent\": 0.1},\n"
    "    {\"match\": \"*.bias\", \"what\": \"optimizer\", \"to\": \"device\"}\n"
    "  ],\n"
    "  \"gradients\": \"sum\",\n"
    "  \"fusion\": {\n"
    "    \"allreduce\": {\"mode\": \"index\", \"config\": [20, 35]},\n"
    "    \"allgather\": {\"mode\": \"size\", \"config\": 1048576},\n"
    "    \"reducescatter\": {\"mode\": \"none\"}\n"
    "  },\n"
    "  \"dataset\": \"full_batch\",\n"
    "  \"overlap\": false,\n"
    "  \"strategies\": [\n"
    "    {\"match\": \"h.*.mlp.c_fc\", \"split\": \"m0=dp n0=tp\"},\n"
    "    {\"match\": \"a \\\"b\\\"\", \"split\": \"((2,1),(1,2))\"}\n"
    "  ],\n"
    "  \"tensors\": [\n"
    "    {\"match\": \"wte.weight\", \"layout\": \"[tp, -]\"}\n"
    "  ]\n"
    "}\n";

/* All keys at once: read, and printed to the byte. */
static void test_example(void **state) {
    (void)state;
    weft_plan *plan = parse(example);
    assert_true(plan->model_hash == 0xc0ffee00000001u);
    assert_int_equal(plan->mesh.axis[1].size, 2);
    assert_int_equal(plan->pipeline.meshes[0].axis[0].size, 3);
    assert_int_equal(plan->pipeline.microbatches, 4);
    assert_int_equal(plan->optimizer.threshold, 65536);
    assert_int_equal(plan->optimizer.shard, 2);
    assert_int_equal(plan->copies, 2);
    assert_true(plan->gradients_sum && plan->recompute.communication && !plan->overlap);
    assert_int_equal(wefti_plan_tier(plan, WEFT_OFFLOAD_OPTIMIZER, "wte.weight"), WEFT_TIER_DISK);
    assert_int_equal(plan->fusion[0].index[1], 35);
    assert_int_equal(plan->fusion[1].bytes, 1 << 20);
    assert_int_equal(plan->dataset, WEFT_DATASET_FULL_BATCH);
    assert_string_equal(plan->strategies[0].source, "plan.json: strategies[0]");
    good(weft_plan_check(plan));
    char *text = print(plan);
    assert_string_equal(text, example);
    weft_plan *copy = NULL;
    good(wefti_plan_copy(plan, &copy));
    weft_plan_destroy(plan);
    char *again = print(copy);
    assert_string_equal(again, example);
    wefti_free(text);
    wefti_free(again);
    weft_plan_destroy(copy);
    /* omitted keys have their defaults */
    plan = parse("{\"weft_plan\": 1, \"devices\": 4, \"pipeline\": {\"stages\": 2}}");
    assert_int_equal(plan->mesh.axis[0].size, 2);
    assert_int_equal(plan->pipeline.schedule, WEFT_PIPELINE_1F1B);
    assert_int_equal(plan->fusion[0].mode, WEFT_FUSION_AUTO);
    weft_plan_destroy(plan);
}

/* The last audit stands before the rest, and its error follows from the two times. */
static void test_audit(void **state) {
    (void)state;
    weft_plan *plan =
        parse("{\"weft_plan\": 1, \"devices\": 4, \"audit\": {\"predicted_seconds\": 3, "
              "\"measured_seconds\": 2, \"error\": 9}}");
    assert_true(plan->audit.predicted_seconds == 3 && plan->audit.measured_seconds == 2);
    char *text = print(plan);
    const char *at = strstr(text, "\"audit\"");
    assert_non_null(at);
    assert_true(at < strstr(text, "\"mesh\""));
    assert_non_null(strstr(text, "\"error\": 0.5"));
    weft_plan *again = parse(text), *copy = NULL;
    good(wefti_plan_copy(again, &copy));
    assert_true(copy->audit.measured_seconds == 2);
    wefti_free(text);
    weft_plan_destroy(plan);
    weft_plan_destroy(again);
    weft_plan_destroy(copy);
}

static void test_refused(void **state) {
    (void)state;
    refused("", WEFT_E_CORRUPT, "plan.json: not valid JSON");
    refused("{\"weft_plan\": 1, }", WEFT_E_CORRUPT, "line 1, column");
    refused("[]", WEFT_E_ARG, "plan.json");
    refused("{\"devices\": 8}", WEFT_E_ARG, "plan.json");
    refused("{\"weft_plan\": 2, \"ranks\": 8}", WEFT_E_ARG, "plan.json|version 2|version 1");
    refused("{\"weft_plan\": \"1\"}", WEFT_E_ARG, "plan.json|weft_plan");
    refused("{\"weft_plan\": 1}", WEFT_E_ARG, "plan.json");
    refused("{\"weft_plan\": 1, \"devices\": 0}", WEFT_E_ARG, "plan.json: devices is 0");
    refused("{\"weft_plan\": 1, \"devices\": -3}", WEFT_E_ARG, "plan.json: devices is -3");
    refused("{\"weft_plan\": 1, \"devices\": 2.5}", WEFT_E_ARG, "plan.json");
    refused("{\"weft_plan\": 1, \"devices\": 8, \"devices\": 9}", WEFT_E_CORRUPT, "devices");
    refused_member("\"audit\": 3", "plan.json|audit");
    refused_member("\"audit\": {\"predicted_seconds\": 1}", "audit|measured_seconds");
    refused_member("\"audit\": {\"predicted_seconds\": -1, \"measured_seconds\": 1}",
                   "audit|predicted_seconds");
    refused_member("\"audit\": {\"predicted\": 1}", "audit|predicted_seconds");
    refused_member("\"stategies\": []", "plan.json|stategies|strategies");
    refused_member("\"xyzzyxyzzy\": 1", "weft_plan");
    refused_member("\"mode\": \"automatic\"", "plan.json|automatic");
    refused_member("\"mode\": \"sem\"", "semi");
    refused_member("\"pipeline\": {\"stage\": 2}", "plan.json|stage|stages");
    refused_member("\"pipeline\": {\"stages\": 9}", "plan.json: pipeline.stages is 9");
    refused_member("\"pipeline\": []", "plan.json");
    refused_member("\"pipeline\": {\"stage_of\": [{\"match\": \"h\"}]}",
                   "plan.json|pipeline.stage_of[0]");
    refused_member("\"pipeline\": {\"stages\": 2, \"meshes\": [{\"dp\": 2}]}", "2 stages");
    refused_member("\"pipeline\": {\"meshes\": [{\"ep\": 2}]}", "plan.json|pipeline.meshes[0]|ep");
    refused_member("\"strategies\": [{\"match\": \"h\", \"split\": \"n0=tp\"}, {\"match\": \"g\", "
                   "\"split\": \"n0=sp\"}]",
                   "plan.json|strategies[1]|sp");
    refused_member("\"strategies\": [{\"split\": \"n0=tp\"}]", "plan.json|strategies[0]");
    refused_member("\"strategies\": [7]", "plan.json|strategies[0]");
    refused_member("\"strategies\": {}", "plan.json");
    refused_member("\"tensors\": [{\"match\": \"w\", \"layout\": \"[xp]\"}]",
                   "plan.json|tensors[0]");
    refused_member("\"optimizer\": {\"level\": 4}", "plan.json: optimizer.level is 4");
    refused_member("\"recompute\": {\"cells\": [1]}", "plan.json|recompute.cells[0]");
    refused_member("\"optimizer\": {\"master\": \"disk\"}",
                   "plan.json|optimizer.master|device|host");
    refused_member("\"optimizer\": {\"master\": \"hots\"}",
                   "plan.json|optimizer.master|hots|device|host");
    refused_member("\"offload\": {}", "plan.json|offload");
    refused_member("\"place\": [{\"match\": \"h:update\"}]", "plan.json|place[0]|on");
    refused_member("\"place\": [{\"match\": \"h:update\", \"on\": \"hots\"}]",
                   "plan.json|place[0]|hots|host");
    refused_member("\"place\": [{\"match\": \"h\", \"on\": \"host\", \"to\": \"host\"}]",
                   "plan.json|place[0]|to");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"saved\", \"to\": \"disk\", "
                   "\"cache\": 4096}]",
                   "plan.json|offload[0]|cache|h|optimizer");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"optimizer\", \"to\": \"disk\", "
                   "\"cache\": 4096, \"cache_percent\": 7}]",
                   "plan.json|offload[0]|cache|cache_percent");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"optimizer\", \"to\": \"disk\", "
                   "\"cache_percent\": 107}]",
                   "plan.json|offload[0]|107|100");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"optimizer\"}]",
                   "plan.json|offload[0]|to");
    refused_member("\"offload\": [{\"match\": \"h\", \"to\": \"host\"}]",
                   "plan.json|offload[0]|what");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"optimiser\", \"to\": \"host\"}]",
                   "plan.json|offload[0].what|optimiser|optimizer");
    refused_member("\"offload\": [{\"match\": \"h\", \"what\": \"optimizer\", \"to\": \"dsk\"}]",
                   "plan.json|offload[0].to|dsk|disk");
    refused_member("\"offload\": [{\"match\": \"h[\", \"what\": \"optimizer\", \"to\": \"disk\"}]",
                   "plan.json|offload[0]|h[");
    refused_member("\"overlap\": 1", "plan.json");
    refused_member("\"fusion\": {\"allgather\": {\"mode\": \"index\", \"config\": [1]}}",
                   "plan.json|fusion.allgather");
    refused_member("\"fusion\": {\"allreduce\": {\"mode\": \"auto\", \"config\": 3}}",
                   "fusion.allreduce.config");
    refused_member("\"fusion\": {\"allreduce\": {\"mode\": \"index\", \"config\": [1.5]}}",
                   "fusion.allreduce.config[0] must be");
    refused("{\"weft_plan\": 1, \"devices\": 8, \"mesh\": {\"dp\": 2, \"t p\": 4}}", WEFT_E_ARG,
            "plan.json|'t p'");
    refused_member("\"links\": {\"same_hosts\": null}", "plan.json|same_hosts|same_host");
    refused_member("\"links\": {\"same_host\": null, \"between_hosts\": null}", "plan.json");
    refused_member("\"links\": {\"same_host\": {\"latency_seconds\": 1}, \"between_hosts\": null}",
                   "plan.json: links: same_host: bytes_per_second is missing");
    refused("{\"weft_plan\": 1, \"devices\": 8, \"model\": \"0x12\"}", WEFT_E_CORRUPT,
            "plan.json: \"model\"");
}

/* A random plan. Every accepted plan prints to a text that reads back to the same text. */
typedef struct numbers {
    uint64_t seed, at;
} numbers;
static int pick(numbers *r, int n) {
    return (int)(wefti_philox_u32(r->seed, 0, r->at++) % (uint32_t)n);
}

static weft_plan *random_plan(uint64_t seed) {
    numbers numbers = {.seed = seed}, *r = &numbers;
    int devices = 1 + pick(r, 64), axes = pick(r, 4);
    weft_plan *p = NULL;
    good(weft_plan_create(devices, &p));
    for (int a = 0; a < axes; a++) {
        static const char *const names[] = {"dp", "tp", "sp", "e_2"};
        good(weft_plan_axis(p, names[a], 1 + pick(r, devices)));
    }
    int stages = 1 + pick(r, devices), micro = 1 + pick(r, 9), chunks = 1 + pick(r, 3);
    good(weft_plan_pipeline(p, stages, micro, (weft_schedule)pick(r, 4), chunks));
    int level = pick(r, 4), threshold = pick(r, 100000);
    good(weft_plan_optimizer(p, level, threshold, pick(r, devices)));
    good(weft_plan_mode(p, (weft_parallel_mode)pick(r, 3)));
    good(weft_plan_dataset(p, (weft_dataset)pick(r, 2)));
    good(weft_plan_gradients_sum(p, pick(r, 2)));
    good(weft_plan_overlap(p, pick(r, 2)));
    good(weft_plan_accumulate(p, 1 + pick(r, 5)));
    good(weft_plan_copies(p, 1 + pick(r, 5)));
    for (int i = pick(r, 4); i > 0; i--) {
        char match[32], split[64], layout[40];
        const char *axis = p->mesh.axis[pick(r, p->mesh.axes)].name;
        int cell = pick(r, 20), mode = pick(r, 3), cut = 1 + pick(r, 5);
        snprintf(match, sizeof match, "h.%d.\t\"\\%c*", cell, 'a' + mode);
        snprintf(layout, sizeof layout, "[-, %s]", axis);
        if (pick(r, 2))
            snprintf(split, sizeof split, "n0=%s in0.1=%s", axis, axis);
        else
            snprintf(split, sizeof split, "((2,%d),(%d))%s", cut, cut, cut & 1 ? " -> [-]" : "");
        good(weft_plan_split_op(p, match, split));
        good(weft_plan_split_tensor(p, match, layout));
        good(weft_plan_stage(p, match, pick(r, 4)));
        good(weft_plan_offload(p, match, (weft_offload)pick(r, WEFT_OFFLOADS),
                               (weft_tier)pick(r, WEFT_TIERS)));
        good(weft_op_place(p, match, pick(r, 2) ? "host" : "device"));
        if (pick(r, 2)) good(weft_plan_server(p, match));
        good(weft_plan_recompute(p, (weft_recompute)mode, cut > 1 ? match : NULL, cut & 1));
    }
    if (pick(r, 2)) good(weft_plan_master(p, WEFT_TIER_HOST));
    p->links.measured = pick(r, 2);
    p->links.ranks_per_host = pick(r, 9);
    p->links.same_host = (wefti_measured_link){pick(r, 1000) / 7e7, 1 + pick(r, 1 << 30) / 3.0};
    int first = 1 + pick(r, 5), index[] = {first, first + 7}, mode = pick(r, 3);
    good(weft_plan_fusion(p, "allreduce", WEFT_FUSION_INDEX, 0, 1 + pick(r, 2), index));
    good(weft_plan_fusion(p, "allgather", (weft_fusion_mode)mode, 1 + pick(r, 1 << 30), 0, NULL));
    return p;
}

static void test_round_trip(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 500) {
        weft_plan *plan = random_plan(seed), *again = NULL;
        char *first = print(plan), *differences = NULL;
        again = parse(first);
        char *second = print(again);
        if (strcmp(first, second) != 0) fail_msg("seed %d:\n%s\n%s", (int)seed, first, second);
        good(weft_plan_diff(plan, again, &differences));
        assert_string_equal(differences, "");
        wefti_free(differences);
        wefti_free(first);
        wefti_free(second);
        weft_plan_destroy(plan);
        weft_plan_destroy(again);
    }
}

static void test_diff(void **state) {
    (void)state;
    weft_plan *a = parse(example);
    weft_plan *b = parse(
        "{\"weft_plan\": 1, \"devices\": 8, \"mesh\": {\"tp\": 2, \"dp\": 2},"
        " \"pipeline\": {\"stages\": 2, \"microbatches\": 8,"
        "  \"stage_of\": [{\"match\": \"h.*\", \"stage\": 1},"
        "                 {\"match\": \"h.[0-5]\", \"stage\": 0}]},"
        " \"optimizer\": {\"level\": 3, \"threshold\": 65536, \"shard_size\": 2}, \"copies\": 2,"
        " \"recompute\": {\"mode\": \"full\", \"cells\": [\"h.1\"], \"communication\": true},"
        " \"offload\": [{\"match\": \"h.*\", \"what\": \"optimizer\", \"to\": \"disk\"},"
        "               {\"match\": \"*.bias\", \"what\": \"optimizer\", \"to\": \"device\"},"
        "               {\"match\": \"ln\", \"what\": \"optimizer\", \"to\": \"host\"}],"
        " \"gradients\": \"sum\", \"dataset\": \"full_batch\", \"overlap\": false,"
        " \"fusion\": {\"allreduce\": {\"mode\": \"index\", \"config\": [20, 35]},"
        "              \"allgather\": {\"mode\": \"size\", \"config\": 1048576},"
        "              \"reducescatter\": {\"mode\": \"none\"}},"
        " \"strategies\": [{\"match\": \"h.*.mlp.c_fc\", \"split\": \"m0=dp n0=tp\"},"
        "                  {\"match\": \"new\", \"split\": \"\"}],"
        " \"tensors\": [{\"match\": \"wte.weight\", \"layout\": \"[dp, -]\"}]}");
    char *text = NULL;
    good(weft_plan_diff(a, b, &text));
    assert_string_equal(
        text, "model: '00c0ffee00000001' removed\n"
              "mesh: {dp: 2, tp: 2} -> {tp: 2, dp: 2}\n"
              "links: {ranks_per_host: 4, same_host: null, between_hosts: "
              "{latency_seconds: 2.5e-05, bytes_per_second: 2000000000}} removed\n"
              "pipeline.microbatches: 4 -> 8\n"
              "pipeline.stage_of: in another order\n"
              "pipeline.meshes: [{dp: 3, tp: 2}, {dp: 1, tp: 2}] removed\n"
              "optimizer.level: 2 -> 3\n"
              "recompute.cells: ['h.*'] -> ['h.1']\n"
              "offload[h.*]: {what: 'optimizer', to: 'host'} -> "
              "{what: 'optimizer', to: 'disk'}\n"
              "offload[wte.*]: {what: 'optimizer', to: 'disk', cache: 4096} removed\n"
              "offload[wpe]: {what: 'optimizer', to: 'disk', cache_percent: 0.1} removed\n"
              "offload[ln]: added {what: 'optimizer', to: 'host'}\n"
              "strategies[a \"b\"]: '((2,1),(1,2))' removed\n"
              "strategies[new]: added ''\n"
              "tensors[wte.weight]: '[tp, -]' -> '[dp, -]'\n");
    wefti_free(text);
    weft_plan_destroy(a);
    weft_plan_destroy(b);
}

static void test_file(void **state) {
    (void)state;
    char path[] = "/tmp/weft-plan-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    weft_plan *plan = parse(example), *again = NULL;
    good(weft_plan_save(plan, path));
    good(weft_plan_load(path, &again));
    char *text = print(again);
    assert_string_equal(text, example);
    assert_int_equal(remove(path), 0);
    wefti_free(text);
    weft_plan_destroy(again);
    again = NULL;
    assert_int_equal(weft_plan_load(path, &again), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE(path);
    assert_int_equal(weft_plan_save(plan, "/nonexistent/plan.json"), WEFT_E_NOT_FOUND);
    assert_null(again);
    weft_plan_destroy(plan);
}

/* Cut short anywhere: refused, nothing leaked. */
static void test_cut_short(void **state) {
    (void)state;
    for (size_t bytes = 0; bytes + 2 < sizeof example; bytes++) {
        weft_plan *plan = NULL;
        assert_int_equal(weft_plan_parse("plan.json", example, (int64_t)bytes, &plan),
                         WEFT_E_CORRUPT);
        assert_null(plan);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    int64_t failures = 0;
    for (;; failures++) {
        weft_plan *plan = NULL;
        char *text = NULL, *differences = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failures, false, 0);
        weft_status status = weft_plan_parse("plan.json", example, (int64_t)strlen(example), &plan);
        if (status >= 0) status = weft_plan_print(plan, &text);
        if (status >= 0) status = weft_plan_diff(plan, plan, &differences);
        bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > failures;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        weft_plan_destroy(plan);
        wefti_free(text);
        wefti_free(differences);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failures >= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),   cmocka_unit_test(test_audit),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_diff),      cmocka_unit_test(test_file),
        cmocka_unit_test(test_cut_short), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("plan text", tests, NULL, NULL);
}
