/* Dry runs: the reported facts about a job's ranks equal the facts after building it, for all ranks
 * or one. weft-test: no threads */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft/launch.h"
#include "weft/plan.h"
#include "weft/program.h"
#include "weft/train.h"

/* Sizes are all given, so that no data are opened. */
static weft_job *job_with(const char *parallel, const char *more) {
    const char *const words[] = {"model.family=gpt2",
                                 "model.layers=4",
                                 "model.hidden=64",
                                 "model.heads=4",
                                 "model.context=16",
                                 "model.vocab=101",
                                 "data.path=/none",
                                 "train.batch=64",
                                 "device.threads=1",
                                 parallel,
                                 more};
    weft_job *job;
    if (weft_job_load(NULL, words, sizeof words / sizeof *words, &job) < 0)
        fail_msg("%s", weft_error_message());
    return job;
}

static weft_job *job_for(const char *parallel) {
    return job_with(parallel, "train.steps=1");
}

static weft_dry_run dry_run_of(const weft_job *job, int rank) {
    weft_dry_run r;
    if (weft_job_dry_run(job, rank, NULL, NULL, &r) < 0) fail_msg("%s", weft_error_message());
    return r;
}

/* Equal ranks are done together. */
static void see_progress(void *context, int done, int of) {
    int *last = context;
    assert_in_range(done, *last + 1, of);
    assert_int_equal(of, 8);
    *last = done;
}

/* As many ranks as the job has devices, with the peaks that `weft model` prints. */
static void test_as_built(void **state) {
    static const char *const splits[] = {"parallel.devices=8", "parallel.mesh={dp: 4, tp: 2}",
                                         "parallel.pipeline.stages=4"};
    (void)state;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        weft_job *job = job_for(splits[i]);
        weft_model_report *report;
        assert_int_equal(weft_job_report(job, &report), WEFT_OK);
        weft_dry_run r = dry_run_of(job, -1);
        assert_int_equal(r.ranks, report->devices);
        assert_int_equal(r.checked, report->devices);
        assert_true(r.transfers > 0 && r.received_bytes > 0);
        assert_true(r.most_received_bytes * r.ranks >= r.received_bytes);
        assert_int_equal(r.most_bytes, report->peaks[r.most_rank]);
        assert_int_equal(r.least_bytes, report->peaks[r.least_rank]);
        for (int rank = 0; rank < r.ranks; rank++) {
            assert_in_range(report->peaks[rank], r.least_bytes, r.most_bytes);
            weft_dry_run one = dry_run_of(job, rank);
            assert_int_equal(one.checked, 1);
            assert_int_equal(one.most_bytes, report->peaks[rank]);
            assert_true(one.received_bytes <= r.most_received_bytes);
            weft_dry_run_free(&one);
        }
        assert_true(strlen(r.largest) > 0);
        weft_dry_run_free(&r);
        weft_model_report_free(report);
        weft_job_free(job);
    }
}

/* Replicas reduce each gradient once a step: 2 (n - 1) / n of all parameters, for each rank. */
static void test_volume(void **state) {
    (void)state;
    weft_job *job = job_for("parallel.devices=8");
    weft_model_report *report;
    assert_int_equal(weft_job_report(job, &report), WEFT_OK);
    weft_dry_run r = dry_run_of(job, -1);
    double gradients = 2.0 * 7 * (double)report->parameters * 4;
    assert_true(r.received_bytes >= gradients && r.received_bytes < gradients * 1.01);
    weft_dry_run_free(&r);
    weft_model_report_free(report);
    weft_job_free(job);
}

static void test_one_and_many(void **state) {
    (void)state;
    weft_job *job = job_for("parallel.devices=1");
    weft_dry_run r = dry_run_of(job, -1);
    assert_int_equal(r.ranks, 1);
    assert_int_equal(r.transfers, 0);
    weft_dry_run_free(&r);
    weft_job_free(job);
    job = job_for("parallel.devices=64");
    r = dry_run_of(job, -1);
    assert_int_equal(r.checked, 64);
    weft_dry_run_free(&r);
    weft_job_free(job);
}

/* Settings without effect are reported here too. One device has nothing to report. */
static void test_unmatched(void **state) {
    (void)state;
    weft_job *job = job_with("parallel.mesh={dp: 2, tp: 2}",
                             "parallel.strategies=[{match: h.*.mlp.c_fx, split: {n0: tp}}]");
    weft_dry_run r = dry_run_of(job, -1);
    assert_non_null(r.unmatched);
    assert_non_null(strstr(r.unmatched, "h.*.mlp.c_fx"));
    weft_dry_run_free(&r);
    weft_model_report *report;
    assert_int_equal(weft_job_report(job, &report), WEFT_OK);
    assert_non_null(strstr(report->unmatched, "h.*.mlp.c_fx"));
    weft_model_report_free(report);
    weft_job_free(job);
    job = job_for("parallel.devices=2");
    r = dry_run_of(job, 1);
    assert_string_equal(r.unmatched, "");
    weft_dry_run_free(&r);
    weft_job_free(job);
}

static void test_progress_and_errors(void **state) {
    (void)state;
    int done = 0;
    weft_dry_run r;
    weft_job *job = job_for("parallel.devices=8");
    assert_int_equal(weft_job_dry_run(job, -1, see_progress, &done, &r), WEFT_OK);
    assert_int_equal(done, 8);
    weft_dry_run_free(&r);
    assert_int_equal(weft_job_dry_run(job, 8, NULL, NULL, &r), WEFT_E_ARG);
    ASSERT_MESSAGE("rank 8");
    weft_dry_run_free(&r);
    weft_job_free(job);
}

/* Thousands of ranks cost no more than their classes. Here stages, uneven pieces of products, and
 * replicas that do not count for the norm make some dozens. */
static void test_thousands_of_ranks(void **state) {
    const char *const words[] = {"model.family=gpt2",
                                 "model.layers=4",
                                 "model.hidden=33",
                                 "model.heads=3",
                                 "model.context=16",
                                 "model.vocab=101",
                                 "data.path=/none",
                                 "train.batch=2048",
                                 "train.clip=1",
                                 "device.threads=1",
                                 "parallel.devices=16384",
                                 "parallel.mesh={dp: 512, tp: 8}",
                                 "parallel.pipeline.stages=4",
                                 "parallel.pipeline.microbatches=4",
                                 "parallel.strategies=[{match: h.*.mlp.c_fc, split: {n0: tp}}]"};
    weft_job *job;
    weft_model_report *report;
    weft_plan *plan;
    char *text;
    (void)state;
    ASSERT_OK(weft_job_load(NULL, words, sizeof words / sizeof *words, &job));
    weft_dry_run r = dry_run_of(job, -1);
    assert_int_equal(r.ranks, 16384);
    assert_int_equal(r.checked, 16384);
    assert_true(r.least_bytes < r.most_bytes && r.transfers > 16384);
    ASSERT_OK(weft_job_report(job, &report));
    assert_int_equal(report->devices, 16384);
    assert_int_equal(report->peaks[r.most_rank], r.most_bytes);
    assert_int_equal(report->peaks[r.least_rank], r.least_bytes);
    for (int rank = 0; rank < r.ranks; rank++)
        assert_in_range(report->peaks[rank], r.least_bytes, r.most_bytes);
    static const int some[] = {0, 1, 2, 5000, 16383};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        weft_dry_run one = dry_run_of(job, some[i]);
        assert_int_equal(one.most_bytes, report->peaks[some[i]]);
        weft_dry_run_free(&one);
    }
    ASSERT_OK(weft_job_program_text(job, 16383, &text, NULL));
    assert_non_null(strstr(text, "rank 16383"));
    weft_text_free(text);
    ASSERT_OK(weft_job_plan(job, &plan, NULL));
    assert_int_equal(weft_plan_devices(plan), 16384);
    weft_plan_destroy(plan);
    weft_model_report_free(report);
    weft_dry_run_free(&r);
    weft_job_free(job);
}

/* Reports refuse what a run would refuse, if the job says how much memory a device has. */
static void test_memory_limit(void **state) {
    (void)state;
    static const char *const splits[] = {"parallel.devices=1", "parallel.devices=4",
                                         "parallel.pipeline.stages=4"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        weft_job *job = job_for(splits[i]);
        weft_dry_run r = dry_run_of(job, -1), refused;
        weft_model_report *report;
        char limit[64], *text;
        for (int below = 0; below < 2; below++) {
            const weft_status expected = below ? WEFT_E_NOMEM : WEFT_OK;
            (void)snprintf(limit, sizeof limit, "device.memory=%lld",
                           (long long)(below ? r.most_bytes - 1 : r.most_bytes + r.program_bytes));
            weft_job *limited = job_with(splits[i], limit);
            assert_int_equal(weft_job_dry_run(limited, -1, NULL, NULL, &refused), expected);
            weft_dry_run_free(&refused);
            if (below) ASSERT_MESSAGE("device.memory");
            assert_int_equal(weft_job_dry_run(limited, r.most_rank, NULL, NULL, &refused),
                             expected);
            weft_dry_run_free(&refused);
            assert_int_equal(weft_job_report(limited, &report), expected);
            if (!below) weft_model_report_free(report);
            ASSERT_OK(weft_job_program_text(limited, 0, &text, NULL)); /* shows why */
            weft_text_free(text);
            weft_job_free(limited);
        }
        weft_dry_run_free(&r);
        weft_job_free(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_built),
        cmocka_unit_test(test_volume),
        cmocka_unit_test(test_one_and_many),
        cmocka_unit_test(test_unmatched),
        cmocka_unit_test(test_thousands_of_ranks),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_progress_and_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
