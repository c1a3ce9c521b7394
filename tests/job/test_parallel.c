/* The section `parallel` of a job: into a plan, printed and read back, refused with its place.
 * weft-test: no threads */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/text.h"
#include "plan/plan.h"
#include "job/job.h"

enum { WORDS = 32 };

/* A job of override words, "a=1\nb=2", which need no YAML reader. */
static weft_status parse_words(const char *lines, weft_job **out) {
    char copy[4096], *words[WORDS], *rest = copy;
    int count = 0;
    snprintf(copy, sizeof copy, "%s", lines);
    for (char *word; (word = strsep(&rest, "\n"));)
        if (*word && count < WORDS) words[count++] = word;
    return weft_job_parse("job.yaml", NULL, 0, (const char *const *)words, count, out);
}
static weft_job *words(const char *lines) {
    weft_job *job = NULL;
    if (parse_words(lines, &job) < 0) fail_msg("refused: %s", weft_error_message());
    return job;
}
static void refused(const char *lines, const char *message) {
    weft_job *job = NULL;
    assert_int_equal(parse_words(lines, &job), WEFT_E_ARG);
    assert_null(job);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

/* The plan of a job, as JSON, against one made by hand. */
static void expect_plan(const weft_job *job, const char *json) {
    weft_plan *plan = NULL;
    char *differences = NULL;
    assert_non_null(job->plan);
    if (weft_plan_parse("expected", json, (int64_t)strlen(json), &plan) < 0)
        fail_msg("%s", weft_error_message());
    assert_int_equal(weft_plan_diff(plan, job->plan, &differences), WEFT_OK);
    assert_string_equal(differences, "");
    wefti_free(differences);
    weft_plan_destroy(plan);
}

static void test_no_plan(void **state) {
    (void)state;
    weft_job *job = words("");
    assert_null(job->plan);
    assert_int_equal(job->parallel.devices, 1);
    weft_job_free(job);
    job =
        words("train.accumulate=4\nparallel.devices=1\nparallel.mode=semi\nparallel.mesh={dp: 1}");
    assert_null(job->plan);
    assert_int_equal(job->parallel.accumulate, 4);
    weft_job_free(job);
    job = words("parallel.recompute=full");
    expect_plan(job, "{\"weft_plan\": 1, \"devices\": 1, \"recompute\": {\"mode\": \"full\"}}");
    weft_job_free(job);
}

static const char all_words[] =
    "train.batch=32\n"
    "parallel.devices=8\n"
    "parallel.mesh={dp: 2, tp: 2}\n"
    "parallel.strategies=[{match: h.*.mlp.c_fc, split: {n0: tp, m0: dp}}, "
    "{match: 'a, \"b\"', split: ((2,1),(1,2))}, {match: c, split: [[2, 1], [1, 2]]}, "
    "{match: d, split: n0=dp+tp}, {match: e, split: {}}, {match: f, split: {n0: [tp, dp]}}]\n"
    "parallel.tensors=[{match: wte.weight, layout: [[dp, tp], -]}, {match: w, layout: \"[-, "
    "dp]\"}]\n"
    "parallel.optimizer.level=2\n"
    "parallel.optimizer.threshold=64KiB\n"
    "parallel.optimizer.shard_size=2\n"
    "parallel.pipeline.stages=2\n"
    "parallel.pipeline.microbatches=8\n"
    "parallel.pipeline.schedule=interleaved\n"
    "parallel.pipeline.stage_of=[{match: h.0, stage: 0}, {match: head, stage: 3}]\n"
    "parallel.pipeline.meshes=[{dp: 3, tp: 2}, {tp: 2}]\n"
    "parallel.copies=2\n"
    "parallel.recompute.mode=selective\n"
    "parallel.recompute.cells=[h.*, head]\n"
    "parallel.recompute.communication=true\n"
    "memory.offload=[{match: \"*\", what: optimizer, to: host}, "
    "{match: 'a: \"b\"', what: parameters, to: disk}, {to: device, what: optimizer, match: h.*}, "
    "{match: h.*, what: saved, to: host}]\n"
    "memory.disk.path=/tmp/weft\n"
    "memory.disk.size=1GiB\n"
    "parallel.place=[{match: 'h.*:update', on: host}, {on: device, match: \"h.0.*:update\"}]\n"
    "parallel.server=[{match: 'wpe.*'}, {sync: sync, match: ln_f.weight}]\n"
    "parallel.gradients=sum\n"
    "parallel.fusion.allreduce=index\n"
    "parallel.fusion.allreduce.config=[20, 35]\n"
    "parallel.fusion.allgather.mode=size\n"
    "parallel.fusion.allgather.config=25MiB\n"
    "parallel.dataset={image: [dp, -, -, tp]}\n"
    "parallel.overlap=false";

static const char all_plan[] =
    "{\"weft_plan\": 1, \"devices\": 8, \"mesh\": {\"dp\": 2, \"tp\": 2},"
    " \"strategies\": [{\"match\": \"h.*.mlp.c_fc\", \"split\": \"n0=tp m0=dp\"},"
    "  {\"match\": \"a, \\\"b\\\"\", \"split\": \"((2,1),(1,2))\"},"
    "  {\"match\": \"c\", \"split\": \"((2,1),(1,2))\"},"
    "  {\"match\": \"d\", \"split\": \"n0=dp+tp\"}, {\"match\": \"e\", \"split\": \"\"},"
    "  {\"match\": \"f\", \"split\": \"n0=tp+dp\"}],"
    " \"tensors\": [{\"match\": \"wte.weight\", \"layout\": \"[dp+tp, -]\"},"
    "  {\"match\": \"w\", \"layout\": \"[-, dp]\"},"
    "  {\"match\": \"image\", \"layout\": \"[dp, -, -, tp]\"}],"
    " \"optimizer\": {\"level\": 2, \"threshold\": 65536, \"shard_size\": 2},"
    " \"pipeline\": {\"stages\": 2, \"microbatches\": 8, \"schedule\": \"interleaved\","
    "  \"virtual_stages\": 2, \"stage_of\": [{\"match\": \"h.0\", \"stage\": 0},"
    "  {\"match\": \"head\", \"stage\": 3}],"
    "  \"meshes\": [{\"dp\": 3, \"tp\": 2}, {\"dp\": 1, \"tp\": 2}]},"
    " \"copies\": 2, \"gradients\": \"sum\", \"overlap\": false,"
    " \"recompute\": {\"mode\": \"selective\", \"cells\": [\"h.*\", \"head\"],"
    "  \"communication\": true},"
    " \"offload\": [{\"match\": \"*\", \"what\": \"optimizer\", \"to\": \"host\"},"
    "  {\"match\": \"a: \\\"b\\\"\", \"what\": \"parameters\", \"to\": \"disk\"},"
    "  {\"match\": \"h.*\", \"what\": \"optimizer\", \"to\": \"device\"},"
    "  {\"match\": \"h.*\", \"what\": \"saved\", \"to\": \"host\"}],"
    " \"place\": [{\"match\": \"h.*:update\", \"on\": \"host\"},"
    "  {\"match\": \"h.0.*:update\", \"on\": \"device\"}],"
    " \"server\": [{\"match\": \"wpe.*\"}, {\"match\": \"ln_f.weight\"}],"
    " \"fusion\": {\"allreduce\": {\"mode\": \"index\", \"config\": [20, 35]},"
    "  \"allgather\": {\"mode\": \"size\", \"config\": 26214400}}}";

static void test_all_keys(void **state) {
    (void)state;
    weft_job *job = words(all_words);
    expect_plan(job, all_plan);
    assert_string_equal(job->parallel.strategies.items[2].key, "c");
    weft_job_free(job);
}

/* Omitted keys follow from the other keys. */
static void test_filled_in(void **state) {
    (void)state;
    weft_job *job = words("parallel.mesh={dp: 2, tp: 4}");
    assert_int_equal(job->parallel.devices, 8);
    assert_int_equal(job->parallel.fusion.allreduce.mode, WEFT_FUSION_AUTO);
    weft_job_free(job);
    job = words("parallel.mesh={tp: 2}\nparallel.pipeline.stages=4\n"
                "parallel.pipeline.schedule=interleaved");
    assert_int_equal(job->parallel.devices, 8);
    assert_int_equal(job->parallel.pipeline.microbatches, 8);
    assert_int_equal(job->train.accumulate, 8); /* the same number */
    assert_int_equal(job->parallel.pipeline.virtual_stages, 2);
    weft_job_free(job);
    job = words("parallel.devices=4\nparallel.pipeline.stages=2");
    assert_int_equal(job->parallel.pipeline.microbatches, 2);
    expect_plan(job, "{\"weft_plan\": 1, \"devices\": 4, \"mesh\": {\"dp\": 2},"
                     " \"pipeline\": {\"stages\": 2, \"microbatches\": 2}}");
    weft_job_free(job);
    job = words("parallel.devices=2\nparallel.accumulate=4");
    assert_int_equal(job->train.accumulate, 4);
    assert_int_equal(job->plan->accumulate, 4);
    weft_job_free(job);
    job = words("parallel.devices=4\nparallel.pipeline.stages=2\ntrain.accumulate=8");
    assert_int_equal(job->plan->pipeline.microbatches, 8);
    assert_int_equal(job->plan->accumulate, 1);
    weft_job_free(job);
    job = words("parallel.mesh={dp: 2}\nparallel.pipeline.stages=2\n"
                "parallel.pipeline.meshes=[dp=2, {dp: 1}]");
    assert_int_equal(job->parallel.devices, 3);
    weft_job_free(job);
    job = words("parallel.pipeline.stages=2\nparallel.pipeline.meshes=[{dp: 4}, {dp: 1}]");
    expect_plan(job, "{\"weft_plan\": 1, \"devices\": 5, \"pipeline\": {\"stages\": 2,"
                     " \"microbatches\": 2, \"meshes\": [{\"dp\": 4}, {\"dp\": 1}]}}");
    weft_job_free(job);
    /* the last word counts */
    job = words("parallel.devices=4\nparallel.mesh={tp: 4}\nparallel.mesh={dp: 4}\n"
                "parallel.fusion.allreduce=none\nparallel.fusion.allreduce=auto");
    assert_string_equal(job->parallel.mesh.items[0].key, "dp");
    assert_int_equal(job->parallel.fusion.allreduce.mode, WEFT_FUSION_AUTO);
    weft_job_free(job);
}

static void test_refused_words(void **state) {
    (void)state;
    refused("parallel.mesh={dp: x}", "parallel.mesh|{dp: 2, tp: 4}");
    refused("parallel.pipeline.stages=3", "'parallel.pipeline.stages=3': "
                                          "parallel.pipeline.microbatches = 3 must divide");
    refused("parallel.mesh=[1]", "1");
    refused("parallel.mesh={dp: 0, tp: 2}", "parallel.mesh|{dp: 2, tp: 4}|'0'");
    refused("parallel.pipeline.stages=2\nparallel.pipeline.meshes=[{dp: -1}, {dp: 1}]", "'dp=-1'");
    refused("parallel.pipeline.stages=2\nparallel.pipeline.meshes=[{dp: 1}, {dp: 0}]", "'dp=0'");
    refused("parallel.mesh={dp: 2", "'parallel.mesh={dp: 2'|','|'}'");
    refused("parallel.mesh={dp: 2, dp: 1}", "before");
    refused("parallel.mesh={dp: 2} x", "something|follows");
    refused("parallel.mesh={2d: 2}", "2d");
    refused("parallel.mesh={dp: 2000000}", "more than 1048576 devices");
    refused("parallel.mesh={dp: 2}\nparallel.devices=8", "'parallel.mesh={dp: 2}'|2|2 devices|8");
    refused("parallel.devices=0", "parallel.devices|1");
    refused("parallel.strategies=[{match: a}]", "parallel.strategies|split");
    refused("parallel.strategies=[{match: a, splt: b}]", "splt|parallel.strategies|match|split");
    refused("parallel.strategies=[a]", "parallel.strategies");
    refused("parallel.strategies=[{match: a, split: [[x]]}]", "'x'");
    refused("parallel.strategies=[{match: a, split: n0=tp}]", "tp");
    refused("parallel.tensors=[{match: a, layout: [tp]}]", "layout");
    refused("parallel.pipeline.stage_of=[{match: a, stage: b}]", "parallel.pipeline.stage_of|'b'");
    refused("parallel.devices=4\nparallel.pipeline.stages=2\nparallel.pipeline.microbatches=1",
            "'parallel.pipeline.microbatches=1': parallel: pipeline.microbatches = 1 must be");
    refused(
        "parallel.devices=4\nparallel.pipeline.stages=2\ntrain.accumulate=4\n"
        "parallel.pipeline.microbatches=2",
        "'parallel.pipeline.microbatches=2'|parallel.pipeline.microbatches|2|train.accumulate|4");
    refused("parallel.accumulate=2\ntrain.accumulate=4", "same");
    refused("parallel.devices=4\nparallel.pipeline.stages=2\n"
            "parallel.pipeline.meshes=[{dp: 2}, {tp: 2}]",
            "parallel.mesh|tp");
    refused("parallel.mesh={dp_shard: 2, dp: 4}\nparallel.optimizer.level=1\n"
            "parallel.optimizer.shard_size=2",
            "'parallel.optimizer.shard_size=2'|optimizer.shard_size = 2|dp_shard");
    refused("parallel.mesh={dp: 2}\nparallel.pipeline.stages=2\nparallel.pipeline.meshes=[{dp: 2}]",
            "1|2 stages");
    refused("parallel.mesh={dp: 2}\nparallel.pipeline.stages=1\nparallel.pipeline.meshes=[dp: 2]",
            "axes|sizes");
    refused("parallel.recompute=all", "parallel.recompute.mode");
    refused("parallel.dataset=full", "data_parallel|full_batch|full");
    refused("parallel.mesh={dp: 8}\nparallel.dataset=((1,1,4,2),(1,))",
            "parallel.dataset|2 dimensions");
    refused("parallel.mesh={dp: 8}\nparallel.dataset=[[1, 1], [8]]", "parallel.dataset|8");
    refused("parallel.mesh={dp: 8}\nparallel.dataset=((3,1),(1,))", "parallel.dataset|3");
    refused("parallel.fusion.allreduce.config=25", "parallel.fusion.allreduce.config|25MiB|1KiB");
    refused("parallel.fusion.allreduce.config=1MiB", "bytes|mode");
    refused("parallel.fusion.allreduce=size", "0");
    refused("parallel.fusion.allgather=index\nparallel.fusion.allgather.config=[3]",
            "index|allreduce");
    refused("parallel.devices=2\nparallel.copies=2\ntrain.batch=7",
            "'train.batch=7'|train.batch = 7|2");
    refused("parallel.accumulate=3\ntrain.batch=8",
            "'parallel.accumulate=3': parallel.accumulate = 3 must divide train.batch = 8");
    refused("parallel.devices=4\nparallel.pipeline.stages=4\ntrain.batch=6",
            "parallel.pipeline.microbatches = 4 must divide train.batch = 6");
    refused("parallel.fusion=auto", "parallel.fusion");
    refused("parallel.optimizer.level=4", "parallel.optimizer.level|0");
    refused("memory.offload=hots", "'memory.offload=hots': memory.offload|none|disk|'host'");
    refused("memory.offload=everything", "memory.offload|what|to|host|everything");
    refused("memory.offload=[host]", "memory.offload|what|to|host");
    refused("memory.offload=[{match: h.*, to: host}]", "memory.offload|'what'");
    refused("memory.offload=[{match: h.*, what: optimizer, too: host}]", "too|'what'|'to'");
    refused("memory.offload=[{match: h.*, what: optimiser, to: host}]", "what|'optimizer'");
    refused("memory.offload=[{match: h.*, what: optimizer, to: [host]}]", "memory.offload");
    refused("memory.offload=[{match: h.*, what: optimizer, to: dsk}]", "to|device|'disk'");
    refused("parallel.place=[{match: 'h.*:update', on: hots}]", "parallel.place|on|device|'host'");
    refused("parallel.place=[{match: 'h.*:update'}]", "parallel.place|'on'");
    refused("parallel.place=[{match: 'h[:update', on: host}]", "place|'h[:update'");
    refused("parallel.place=host", "parallel.place|match|on");
    refused("parallel.server=[{match: wte, sync: async}]", "parallel.server|sync|'async'");
    refused("parallel.server=[{sync: sync}]", "parallel.server|'match'");
    refused("parallel.server=[{match: wte, staleness: 4}]", "staleness|parallel.server");
    refused("parallel.server=[{match: 'h[.'}]", "server|'h[.'");
    refused("memory.offload=[{match: 'h[', what: optimizer, to: host}]", "offload|'h['");
    refused("memory.offload=disk", "'memory.offload=disk': memory.offload|memory.disk.path");
    refused("memory.disk.path=/tmp", "'memory.disk.path=/tmp': memory.disk.path|memory.offload");
    refused("memory.disk.size=1GiB", "memory.disk.size|memory.offload");
    refused("memory.offload=disk\nmemory.disk.path=/tmp\nmemory.disk.size=1", "memory.disk.size");
    refused("memory=host", "memory|memory.device");
    refused("memory.device=2GiB\ndevice.memory=2GiB", "'memory.device=2GiB'|device.memory");
    refused("memory.device=0%", "memory.device|%");
    refused("memory.host=much", "memory.host|'much'");
    refused("mesh=5", "parallel.mesh");
}

/* One word stands for the optimizer states of all parameters. */
static void test_offload(void **state) {
    (void)state;
    static const char all[] = "{\"weft_plan\": 1, \"devices\": 1, \"offload\": [{\"match\": "
                              "\"*\", \"what\": \"optimizer\", \"to\": \"host\"}]}";
    weft_job *job = words("memory.offload=host");
    expect_plan(job, all);
    assert_string_equal(job->memory.offload.items[0].value, "optimizer host");
    weft_job_free(job);
    job = words("memory.offload=disk\nmemory.disk.path=/tmp\nmemory.disk.size=1GiB\n"
                "memory.offload=none");
    assert_null(job->plan);
    weft_job_free(job);
    job = words("memory.offload=disk\nmemory.disk.path=/tmp/a b\nmemory.disk.size=3GiB");
    assert_int_equal(wefti_plan_tier(job->plan, WEFT_OFFLOAD_OPTIMIZER, "w"), WEFT_TIER_DISK);
    assert_string_equal(job->memory.disk.path, "/tmp/a b");
    assert_int_equal(job->memory.disk.size_bytes, 3ll << 30);
    weft_job_free(job);
    job = words("memory.device=60%\nmemory.host=4GiB\ndevice.memory=auto");
    assert_true(job->memory.device_percent == 60 && !job->memory.device_bytes);
    assert_true(job->memory.host_bytes == 4ll << 30 && !(job->memory.host_percent > 0));
    weft_job_free(job);
    /* the settings of a search */
    job = words("memory.offload=host\nparallel.mode=auto\nparallel.devices=2");
    assert_int_equal(wefti_plan_tier(job->plan, WEFT_OFFLOAD_OPTIMIZER, "w"), WEFT_TIER_HOST);
    weft_job_free(job);
}

/* A plan file's entries come before the job's. */
static void test_offload_of_a_plan(void **state) {
    (void)state;
    char path[] = "/tmp/weft-plan-XXXXXX", lines[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    static const char json[] = "{\"weft_plan\": 1, \"devices\": 2, \"offload\": ["
                               "{\"match\": \"*\", \"what\": \"optimizer\", \"to\": \"disk\"},"
                               "{\"match\": \"h.*\", \"what\": \"optimizer\", \"to\": \"disk\"}]}";
    assert_int_equal(wefti_file_write(path, json, strlen(json)), WEFT_OK);
    snprintf(
        lines, sizeof lines,
        "parallel.plan=%s\nmemory.disk.path=/tmp\nmemory.offload=[{match: h.*, what: optimizer, "
        "to: host}]",
        path);
    weft_job *job = words(lines);
    assert_int_equal(wefti_plan_tier(job->plan, WEFT_OFFLOAD_OPTIMIZER, "h.1"), WEFT_TIER_HOST);
    assert_int_equal(wefti_plan_tier(job->plan, WEFT_OFFLOAD_OPTIMIZER, "wte"), WEFT_TIER_DISK);
    assert_int_equal(job->plan->offload.count, 2);
    weft_job_free(job);
    snprintf(lines, sizeof lines, "parallel.plan=%s", path);
    weft_job_free(words(lines)); /* forward passes need no directory */
    remove(path);
}

static void test_plan_file(void **state) {
    (void)state;
    char path[] = "/tmp/weft-plan-XXXXXX", lines[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    static const char json[] = "{\"weft_plan\": 1, \"devices\": 4, \"mesh\": {\"dp\": 4},"
                               " \"accumulate\": 2}";
    assert_int_equal(wefti_file_write(path, json, strlen(json)), WEFT_OK);
    /* the section's own keys give way, but not what must agree */
    snprintf(lines, sizeof lines, "parallel.plan=%s\nparallel.mesh={tp: 3}", path);
    weft_job *job = words(lines);
    expect_plan(job, json);
    assert_int_equal(job->parallel.devices, 4);
    assert_int_equal(job->train.accumulate, 2);
    assert_null(strstr(job->text, "mesh"));
    assert_non_null(strstr(job->text, path));
    weft_job_free(job);
    snprintf(lines, sizeof lines, "parallel.plan=%s\nparallel.devices=8", path);
    refused(lines, "'parallel.devices=8': parallel.devices is 8; the plan /tmp/weft-plan-");
    snprintf(lines, sizeof lines, "parallel.plan=%s\ntrain.accumulate=4", path);
    refused(lines, "train.accumulate is 4; the plan ");
    snprintf(lines, sizeof lines, "parallel.plan=%s\ntrain.batch=3", path);
    refused(lines, "train.batch = 3");
    static const char bad[] = "{\"weft_plan\": 1, \"devices\": 4, \"mesh\": {\"dp\": 3}}";
    assert_int_equal(wefti_file_write(path, bad, strlen(bad)), WEFT_OK);
    snprintf(lines, sizeof lines, "parallel.plan=%s", path);
    refused(lines, "dp=3|3 devices|4");
    remove(path);
    job = NULL;
    assert_int_equal(parse_words(lines, &job), WEFT_E_NOT_FOUND);
    assert_null(job);
}

/* Each allocation failed in turn: WEFT_E_NOMEM, nothing leaked. */
static void test_no_memory(void **state) {
    (void)state;
    int64_t failures = 0;
    for (;; failures++) {
        weft_job *job = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failures, false, 0);
        weft_status status = parse_words(all_words, &job);
        bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > failures;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        weft_job_free(job);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failures >= 20);
}

#ifdef WEFT_HAVE_YAML
static weft_job *parse(const char *text) {
    weft_job *job = NULL;
    if (weft_job_parse("job.yaml", text, (int64_t)strlen(text), NULL, 0, &job) < 0)
        fail_msg("refused: %s\n%s", weft_error_message(), text);
    return job;
}
static void refused_file(const char *text, const char *message) {
    weft_job *job = NULL;
    assert_int_equal(weft_job_parse("job.yaml", text, (int64_t)strlen(text), NULL, 0, &job),
                     WEFT_E_ARG);
    assert_null(job);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

/* The printed job reads back equal: all keys, one key at a time, none. */
static void test_round_trip(void **state) {
    (void)state;
    static const char *const jobs[] = {
        all_words,
        "",
        "parallel.devices=3",
        "parallel.mesh={dp: 2, tp: 4}",
        "parallel.devices=2\nparallel.mode=data\nparallel.dataset=full_batch",
        "parallel.devices=4\nparallel.pipeline.stages=2\nparallel.pipeline.schedule=zero_bubble\n"
        "parallel.pipeline.virtual_stages=2",
        "memory.offload=host",
        "memory.offload=[{match: w, what: optimizer, to: device}]",
        "parallel.recompute.cells=[\"a: #b\", 'c]', \"\\\"\"]\nparallel.recompute=full",
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        weft_job *job = words(jobs[i]), *again = parse(job->text);
        assert_string_equal(job->text, again->text);
        assert_true(!job->plan == !again->plan);
        char *first = NULL, *second = NULL;
        if (job->plan) {
            assert_int_equal(weft_plan_print(job->plan, &first), WEFT_OK);
            assert_int_equal(weft_plan_print(again->plan, &second), WEFT_OK);
            assert_string_equal(first, second);
        }
        wefti_free(first);
        wefti_free(second);
        weft_job_free(job);
        weft_job_free(again);
    }
}

static const char file[] = "train: {batch: 32}\n"
                           "parallel:\n"
                           "  mesh: {dp: 2, tp: 4}\n"
                           "  strategies:\n"
                           "    - {match: h.*.mlp.c_fc, split: {n0: tp}}\n"
                           "    - match: h.*.attn\n"
                           "      split: ((2,1),(1,4))\n"
                           "  tensors:\n"
                           "    - {match: wte.weight, layout: [tp, -]}\n"
                           "    - match: wpe.weight\n"
                           "      layout:\n"
                           "        - '-'\n"
                           "        - [dp, tp]\n"
                           "  recompute: full\n"
                           "  fusion:\n"
                           "    allreduce: {mode: index, config: [20, 35]}\n"
                           "    allgather: none\n";

static void test_file(void **state) {
    (void)state;
    weft_job *job = parse(file);
    expect_plan(job, "{\"weft_plan\": 1, \"devices\": 8, \"mesh\": {\"dp\": 2, \"tp\": 4},"
                     " \"strategies\": [{\"match\": \"h.*.mlp.c_fc\", \"split\": \"n0=tp\"},"
                     "  {\"match\": \"h.*.attn\", \"split\": \"((2,1),(1,4))\"}],"
                     " \"tensors\": [{\"match\": \"wte.weight\", \"layout\": \"[tp, -]\"},"
                     "  {\"match\": \"wpe.weight\", \"layout\": \"[-, dp+tp]\"}],"
                     " \"recompute\": {\"mode\": \"full\"},"
                     " \"fusion\": {\"allreduce\": {\"mode\": \"index\", \"config\": [20, 35]},"
                     "  \"allgather\": {\"mode\": \"none\"}}}");
    assert_string_equal(job->plan->strategies[1].source, "job.yaml:6:7");
    weft_job_free(job);
}

/* Every error is reported with its line. */
static void test_lines(void **state) {
    (void)state;
    refused_file("parallel:\n  meshes: {dp: 2}\n", "job.yaml:2:3|meshes");
    refused_file("parallel:\n  strategies:\n    - match: a\n      splt: b\n",
                 "job.yaml:4:7|splt|parallel.strategies");
    refused_file("parallel:\n  strategies:\n    - match: a\n",
                 "job.yaml:3:7|parallel.strategies|split");
    refused_file("parallel:\n  strategies:\n    - match: a\n      split: {n0: tp}\n",
                 "job.yaml:3:7|tp|1|dp");
    refused_file("parallel:\n  mesh:\n    dp: 2\n    tp: two\n", "job.yaml:4:5|parallel.mesh");
    refused_file("parallel:\n  devices: 8\n  mesh: {dp: 3}\n", "job.yaml:3:3|dp=3|3 devices|8");
    refused_file("parallel:\n  devices: 8\n  pipeline:\n    stages: 3\n",
                 "job.yaml:4:5|pipeline.stages = 3|devices = 8");
    refused_file("parallel:\n  devices: 8\n  optimizer: {level: 1, shard_size: 3}\n",
                 "job.yaml:3:25|optimizer.shard_size = 3");
    refused_file("parallel:\n  devices: 8\n  mode: data\n  strategies:\n"
                 "    - {match: a, split: n0=dp}\n",
                 "job.yaml:5:7");
    refused_file("parallel:\n  mode: manual\n  devices: 4\n  optimizer: {level: 2}\n",
                 "job.yaml:4:15|optimizer.level = 2");
    refused_file("parallel:\n  mode: manual\n  devices: 4\n  tensors:\n"
                 "    - {match: w, layout: [dp, -]}\n",
                 "job.yaml:5:7");
    refused_file("parallel:\n  fusion:\n    allreduce: {mode: index, config: [3, 2]}\n",
                 "job.yaml:3:17|fusion.allreduce|number 2|2");
    refused_file("parallel:\n  strategies:\n", "job.yaml:2:3: parallel.strategies must be");
    refused_file("memory:\n  offload:\n    - {match: w, what: optimizer, to: hist}\n",
                 "job.yaml:3:35|memory.offload|to|host");
    refused_file("memory:\n  offload: dsk\n", "job.yaml:2:3|memory.offload|disk");
    refused_file("memory:\n  offload: disk\n", "job.yaml:2:3|memory.disk.path");
    refused_file("memory:\n  disk: {size: 2GiB}\n", "job.yaml:2:10|memory.disk.size");
    refused_file("parallel: 8\n", "job.yaml:1:1|parallel.mode");
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_plan),    cmocka_unit_test(test_all_keys),
        cmocka_unit_test(test_filled_in),  cmocka_unit_test(test_refused_words),
        cmocka_unit_test(test_plan_file),  cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_offload),    cmocka_unit_test(test_offload_of_a_plan),
#ifdef WEFT_HAVE_YAML
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_file),
        cmocka_unit_test(test_lines),
#endif
    };
    return cmocka_run_group_tests_name("job parallel", tests, NULL, NULL);
}
