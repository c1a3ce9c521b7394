/* Job files: messages with their lines, limits of YAML, failing allocations.
 * weft-test: no threads */
#include "job_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/text.h"

#ifdef WEFT_HAVE_YAML
static void test_file(void **state) {
    (void)state;
    weft_job *job = parse("# a job\n"
                          "model: {family: resnet18, classes: 10, image: [3, 64, 48]}\n"
                          "data:\n"
                          "  path: 'no'\n"
                          "  validation: 0\n"
                          "train:\n"
                          "  precision: bf16\n"
                          "  optimizer: nesterov\n"
                          "  schedule: {name: step, every: 5}\n"
                          "  eval_every: 0\n"
                          "checkpoint:\n"
                          "device: {memory: 2GB}\n");
    assert_int_equal(job->model.family, WEFT_FAMILY_RESNET18);
    assert_int_equal(job->model.image[2], 48);
    assert_int_equal(job->data.format, WEFT_FORMAT_IDX);
    assert_string_equal(job->data.path, "no");
    assert_true(job->data.validation_fraction == 0 && !*job->data.validation);
    assert_int_equal(job->train.precision, WEFT_BF16);
    assert_int_equal(job->train.optimizer.name, WEFT_NESTEROV);
    assert_true(job->train.optimizer.lr == 0.1);
    assert_int_equal(job->train.schedule.every, 5);
    assert_int_equal(job->train.eval_every, 0);
    assert_int_equal(job->device.memory_bytes, 2000000000);
    weft_job_free(job);
    weft_job_free(parse(""));
    weft_job_free(parse("--- {}\n"));
}

static void test_messages(void **state) {
    (void)state;
    refused("model:\n  layer: 4\n", "job.yaml:2:3|layer|layers");
    refused("modle: {}\n", "job.yaml:1:1|modle|model");
    refused("train:\n  lr: 1\n", "job.yaml:2:3|lr|train.optimizer.lr");
    refused("train:\n  xyzzyplugh: 1\n", "known|steps");
    refused("train:\n  steps: 010x\n", "job.yaml:2:3|train.steps");
    refused("train:\n  steps: 0\n", "1|'0'");
    refused("train: {batch: 9223372036854775808}\n",
            "train.batch|1|1000000000|9223372036854775808");
    refused("train:\n  steps: 1e3\n", "it is '1e3'");
    refused("train:\n  steps: 99999999999999999999\n", "train.steps must be");
    refused("train:\n  steps:\n", "''");
    refused("train:\n  steps: [1]\n", "1");
    refused("model:\n  dropout: 1\n", "0|1|'1'");
    refused("model:\n  dropout: nan\n", "nan");
    refused("model:\n  image: [1, 2]\n", "3");
    refused("model:\n  family: gtp2\n", "gpt2");
    refused("checkpoint:\n  resume: yes\n", "yes");
    refused("device:\n  memory: 3 gigs\n", "2GiB");
    refused("data:\n  path:\n", "data.path");
    refused("train:\n\tsteps: 1\n", "job.yaml:2:1");
    refused("parallel:\n  optimizer: {threshold: 1.5}\n", "2GiB|500MB");
    refused("data:\n  validation: 1.5\n", "0|1|1.5");
    refused("train:\n  batch: 6\n  accumulate: 4\n",
            "job.yaml:3:3: train.accumulate = 4 must divide train.batch = 6");
    refused("train:\n  steps: 5\n  schedule: {warmup: 6}\n", "train.steps = 5");
    refused("model:\n  from: .\n  layers: 2\n", "job.yaml:3:3|model.layers|model.from");
    refused("train: 5\n", "job.yaml:1:1");
    refused("- a\n", "job|written");
    refused("just words\n", "job|written");
}

static void expect_not_found(const char *text, const char *facts) {
    weft_job *none;
    assert_int_equal(parse_with(text, NULL, 0, &none), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE(facts);
}

/* A model that is not there is named before the keys that its files would set. */
static void absent_models(void **state) {
    (void)state;
    expect_not_found("model:\n  from: no/such/dir\n  layers: 2\n",
                     "job.yaml:2:3|model.from|no/such/dir");
    expect_not_found("model: {config: nosuch.json, heads: 2}\n", "model.config|nosuch.json");
    expect_not_found("model: {from: some-org/Some-Model-8B, heads: 2}\n",
                     "some-org/Some-Model-8B|Hugging Face|download");
}

/* Faults of YAML: where they are, and in words that name no rule of a grammar. */
static void yaml_in_plain_words(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"train: {steps: 5\n", "job.yaml:2:1|'{'|line 1|'}'"},
        {"train:\n  optimizer:\n    betas: [0.9, 0.95\n  clip: 3\n", "job.yaml:4:|'['|line 3|']'"},
        {"train:\n  steps: 5\n lr: 3\n", "job.yaml:3:2|line 1|indent"},
        {"train:\n  steps: 5\n  batch 4\n", "job.yaml:4:1|line 3|key: value"},
        {"train: steps: 5\n", "job.yaml:1:13|':'|quotes"},
        {"data:\n  path:x\n  format: text\n", "job.yaml:3:9|space"},
        {"data:\n  path: \"abc\n", "job.yaml:3:1|quote|line 2"},
        {"data:\n  path: \"a\\qb\"\n", "job.yaml:2:11|backslash"},
        {"data: {path: \"\\u12\"}\n", "job.yaml:1:17|hexadecimal"},
        {"data:\n  path: @abc\n", "job.yaml:2:9|quotes"},
        {"data: {path: &}\n", "job.yaml:1:15|'&'|quotes"},
        {"data: {path: *}\n", "job.yaml:1:15|'*'|quotes"},
        {"train:\n  - steps: 5\n  batch: 3\n", "job.yaml:3:3|'-'|line 2"},
        {"data:\n  path: - a\n", "job.yaml:2:9|'-'"},
        {"data: |x\n a", "job.yaml:1:8|'|'"},
        {"%YAML 3.0\n---\ntrain: 3\n", "job.yaml:1:1|%YAML"},
        {"%x\n", "job.yaml:1:3|'%'"},
        {"data:\n  path: \xff\n", "job.yaml:2:9|UTF-8"},
        {"data:\n  path: a\x01\n", "job.yaml:2:10|control character|UTF-8"}};
    static const char *const raw[] = {"while parsing", "while scanning", "did not", "token",
                                      "mapping",       "scalar",         "octet"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused(cases[i][0], cases[i][1]);
        for (size_t k = 0; k < sizeof raw / sizeof *raw; k++)
            assert_null(strstr(weft_error_message(), raw[k]));
    }
}

static void test_yaml_limits(void **state) {
    (void)state;
    weft_job *none;
    assert_int_equal(parse_with("parallel:\n  plan: none.json\n", NULL, 0, &none),
                     WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE("job.yaml:2:3|parallel.plan");
    weft_job *marked; /* by editors that begin UTF-8 with a byte order mark */
    const char *text_marked = "\xEF\xBB\xBFtrain: {steps: 5}\nmodel: {layers: 2}\n";
    assert_int_equal(parse_with(text_marked, NULL, 0, &marked), WEFT_OK);
    assert_true(marked->train.steps == 5 && marked->model.layers == 2);
    weft_job_free(marked);
    refused("\xEF\xBB\xBFtrain:\n  stepz: 5\n", "job.yaml:2:3: unknown key");
    refused("train: {steps: 5, steps: 6}\n", "steps|line 1");
    refused("train.steps: 5\ntrain: {steps: 6}\n", "job.yaml:2:9|train.steps|line 1");
    refused("train:\n  schedule: linear\n  schedule.name: step\n",
            "job.yaml:3:3|train.schedule.name|line 2");
    static const char *const threads[] = {"auto", "4"}; /* auto is a value, before or behind */
    for (int i = 0; i < 2; i++) {
        char twice[128];
        snprintf(twice, sizeof twice, "device.threads: %s\ndevice:\n  threads: %s\n", threads[i],
                 threads[1 - i]);
        refused(twice, "job.yaml:3:3|device.threads|line 1");
    }
    refused("train: {log: Null}\n", "train.log|Null");
    refused("data: {validation: NULL}\n", "data.validation");
    refused("train: &a {steps: 5}\n", "job.yaml:1:8: anchors (&a)");
    refused("train: *a\n", "aliases (*a)");
    refused("train: {steps: !!int 5}\n", "tags");
    refused("train: {steps: 5\n", "job.yaml:");
    refused("a: 1\n---\nb: 2\n", "second|document");
    refused("? [a]\n: b\n", "plain|word");
    refused("data: {path: \"a\\0b\"}\n", "zero byte");
    refused("data: {path: \"\xff\xfe\"}\n", "UTF-8");
    wefti_text deep = {0};
    for (int i = 0; i < 5000; i++) wefti_text_add(&deep, "[");
    char *text = wefti_text_take(&deep);
    refused(text, "32");
    wefti_free(text);
    wefti_text wide = {0};
    wefti_text_add(&wide, "train: {");
    for (int i = 0; i < 2000; i++) wefti_text_add(&wide, "k%d: 1, ", i);
    wefti_text_add(&wide, "}");
    text = wefti_text_take(&wide);
    refused(text, "more than 1000 entries");
    wefti_free(text);
    weft_job *job = NULL;
    char *big = wefti_calloc(1, WEFTI_YAML_BYTES + 2);
    memset(big, ' ', WEFTI_YAML_BYTES + 1);
    assert_int_equal(parse_with(big, NULL, 0, &job), WEFT_E_ARG);
    ASSERT_MESSAGE("at most 1048576");
    wefti_free(big);
}

/* Each allocation failed in turn: a clean WEFT_E_NOMEM, nothing leaked (the sanitizer build looks).
 */
static void test_no_memory(void **state) {
    (void)state;
    const char *text = "model: {family: llama}\ntrain: {optimizer: {betas: [0.5, 0.6]}}\n";
    const char *word = "train.optimizer.betas=[0.1, 0.2]";
    int64_t failures = 0;
    for (;; failures++) {
        weft_job *job = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failures, false, 0);
        weft_status status = parse_with(text, &word, 1, &job);
        bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > failures;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        weft_job_free(job);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failures >= 3);
}

static void test_load(void **state) {
    (void)state;
    char path[] = "/tmp/weft-job-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs("train:\n  stepz: 3\n", file);
    fclose(file);
    weft_job *job = NULL;
    char expected[128];
    snprintf(expected, sizeof expected, "%s:2:3: unknown key", path);
    assert_int_equal(weft_job_load(path, NULL, 0, &job), WEFT_E_ARG);
    ASSERT_MESSAGE(expected);
    remove(path);
    assert_int_equal(weft_job_load(path, NULL, 0, &job), WEFT_E_NOT_FOUND);
    ASSERT_MESSAGE(path);
    assert_null(job);
}
#else
static void test_without_yaml(void **state) {
    (void)state;
    weft_job *job = NULL;
    assert_int_equal(parse_with("train: {}\n", NULL, 0, &job), WEFT_E_NO_IMPL);
    ASSERT_MESSAGE("libyaml");
    assert_null(job);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef WEFT_HAVE_YAML
        cmocka_unit_test(test_file),           cmocka_unit_test(test_messages),
        cmocka_unit_test(test_yaml_limits),    cmocka_unit_test(absent_models),
        cmocka_unit_test(yaml_in_plain_words), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_load),
#else
        cmocka_unit_test(test_without_yaml),
#endif
    };
    return cmocka_run_group_tests_name("job file", tests, NULL, NULL);
}
