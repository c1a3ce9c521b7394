/* Keys of a job: values and defaults, words, what must fit together, the printed form.
 * weft-test: no threads */
#include "job_words.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "base/text.h"
#include "job/job.h"

static void test_defaults(void **state) {
    (void)state;
    weft_job *job = parse(NULL);
    assert_int_equal(job->model.family, WEFT_FAMILY_GPT2);
    assert_int_equal(job->model.hidden, 256);
    assert_int_equal(job->model.kv_heads, 0);
    assert_int_equal(job->model.vocab, 0);
    assert_true(job->model.dropout == 0);
    assert_false(job->model.tied);
    assert_int_equal(job->data.format, WEFT_FORMAT_TEXT);
    assert_string_equal(job->data.path, "");
    assert_string_equal(job->data.tokenizer, "");
    assert_true(job->data.validation_fraction == 0.1);
    assert_int_equal(job->train.steps, 1000);
    assert_true(job->train.optimizer.lr == 1e-3);
    assert_true(job->train.optimizer.betas[1] == 0.999);
    assert_int_equal(job->train.schedule.warmup, 100);
    assert_int_equal(job->train.eval_every, 100);
    assert_true(job->checkpoint.resume);
    assert_int_equal(job->device.memory_bytes, 0);
    weft_job_free(job);
    weft_job_free(NULL);
}

/* The key that another word means: its end, its name elsewhere, another spelling. */
static void near_keys(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"lr", "train.optimizer.lr"},       {"LR", "train.optimizer.lr"},
        {"train.lr", "train.optimizer.lr"}, {"learning-rate", "train.optimizer.lr"},
        {"Train.Steps", "train.steps"},     {"max_steps", "train.steps"},
        {"num-heads", "model.heads"},       {"batch-size", "train.batch"},
        {"search_mode", "parallel.search"}, {"train.optimizr.lr", "train.optimizer.lr"},
        {"acumulate", "train.accumulate"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_string_equal(weft_job_near_key(pairs[i][0]), pairs[i][1]);
    assert_null(weft_job_near_key(""));
    assert_null(weft_job_near_key("xyzzy"));
    assert_null(weft_job_near_key("temperature_of_the_sea"));
}

/* Each name elsewhere leads to a key that exists. */
static void near_keys_exist(void **state) {
    (void)state;
    int count;
    const weft_job_key *keys = weft_job_keys(&count);
    static const char *const words[] = {"iterations",   "dtype",       "grad_clip",  "output_dir",
                                        "save_steps",   "hidden_size", "n_embd",     "seq_len",
                                        "block_size",   "dataset",     "zero_stage", "eval_steps",
                                        "warmup_steps", "logging_dir", "vocab_size", "num_layers"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *path = weft_job_near_key(words[i]);
        bool exists = false;
        assert_non_null(path);
        for (int k = 0; k < count; k++) exists |= !strcmp(keys[k].path, path);
        assert_true(exists);
    }
}

/* A section may be one word. */
static void sections_in_words(void **state) {
    (void)state;
    const char *words[] = {"train.schedule={name: linear, warmup: 3}",
                           "train={optimizer: {lr: 0.5, betas: [0.5, 0.25]}, steps: 9}"};
    weft_job *job;
    ASSERT_OK(weft_job_load(NULL, words, 2, &job));
    assert_int_equal(job->train.schedule.name, WEFT_SCHEDULE_LINEAR);
    assert_int_equal(job->train.schedule.warmup, 3);
    assert_int_equal(job->train.steps, 9);
    assert_true(job->train.optimizer.lr == 0.5 && job->train.optimizer.betas[1] == 0.25);
    weft_job_free(job);
    refused_word("parallel.optimizer={zero: 1}", "'parallel.optimizer={zero: 1}'|zero|level");
    refused_word("train.optimizer={lr: fast}", "'train.optimizer={lr: fast}'|train.optimizer.lr");
    refused_word("train.optimizer={lr: 1", "}");
    refused_word("data=x", "data.format=|data={format: ");
    refused_word("train.optimizer=adamW", "'adamw'");
}

static void test_overrides(void **state) {
    (void)state;
    const char *words[] = {
        "model.family=llama",      "model.hidden=128",          "train.steps=50",
        "train.steps=60",          "train.optimizer=lion",      "train.optimizer.betas=[0.5, 0.25]",
        "device.memory=1.5GiB",    "data.path=a: #b",           "data.validation=held out.txt",
        "train.schedule.warmup=7", "train.schedule.warmup=auto"};
    weft_job *job = NULL;
    assert_int_equal(parse_with(NULL, words, sizeof words / sizeof *words, &job), WEFT_OK);
    assert_int_equal(job->model.hidden, 128);
    assert_int_equal(job->train.steps, 60);
    assert_int_equal(job->train.optimizer.name, WEFT_LION);
    assert_true(job->train.optimizer.betas[0] == 0.5 && job->train.optimizer.betas[1] == 0.25);
    assert_true(job->train.optimizer.lr == 1e-4);
    assert_int_equal(job->device.memory_bytes, 3ll << 29);
    assert_true(job->device.memory_percent == 0);
    assert_string_equal(job->data.path, "a: #b");
    assert_string_equal(job->data.validation, "held out.txt");
    assert_true(job->data.validation_fraction == 0);
    assert_int_equal(job->train.schedule.warmup, 6);
    weft_job_free(job);
    refused_word("train.steps", "key=value");
    refused_word("checkpoint.seconds=5", "checkpoint.seconds|checkpoint.dir");
    refused_word("checkpoint.seconds=-1", "checkpoint.seconds|0");
    refused_word("checkpoint.on_error=true", "checkpoint.on_error|checkpoint.dir");
    refused_word("checkpoint.stop_file=x", "checkpoint.stop_file|checkpoint.dir");
    refused_word("checkpoint.keep_minutes=5", "checkpoint.keep_minutes|checkpoint.every");
    refused_word("recovery.buddy=2", "recovery.buddy|0 to 1");
    refused_word("recovery.buddy=true", "recovery.buddy|whole number");
    refused_word("recovery.min=1", "recovery.min|2 to 65536");
    refused_word("recovery.wait=-1", "recovery.wait|0 to");
    refused_word("recovery.max=70000", "recovery.max|0 to");
    refused_word("=5", "key=value");
    refused_word("train.step=5", "'train.step=5'|step|steps");
    refused_word("trian.steps=5", "trian|train");
    refused_word("train.optimizr.lr=2", "optimizr|optimizer");
    refused_word("parallel.pipelin.x.y=2", "pipelin");
    refused_word("parallel.mesh.dp=2", "parallel.mesh");
    refused_word("lr=5", "train.optimizer.lr");
    refused_word("train.steps=many", "'train.steps=many'|train.steps|1|many");
    const char *ended = "train.optimizer.betas=[0.9,0.95,]"; /* a comma may end a list */
    assert_int_equal(parse_with(NULL, &ended, 1, &job), WEFT_OK);
    assert_true(job->train.optimizer.betas[0] == 0.9 && job->train.optimizer.betas[1] == 0.95);
    weft_job_free(job);
    refused_word("model.image=[3,,32]", "''"); /* no item is passed over */
    refused_word("train.optimizer.betas=[0.9,,0.99]", "3");
    refused_word("train.optimizer.betas=[, 0.99]", "''");
    refused_word("train.optimizer.betas=[]", "0");
    refused_word("train.optimizer.betas=[0.9]", "2|0|1");
    refused_word("data.path=a\xc3", "data.path|UTF-8|byte 1");
    refused_word("train=5", "train|section");
}

/* A path that no shell has seen never makes a directory '~' or '$HOME'. */
static void homes_in_paths(void **state) {
    static const char *const homes[] = {"~/a b", "$HOME/a b", "${HOME}/a b"};
    const char *const before = getenv("HOME");
    char *const kept = before ? strdup(before) : NULL;
    char word[64];
    weft_job *job;
    (void)state;
    assert_int_equal(setenv("HOME", "/home/of", 1), 0);
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        snprintf(word, sizeof word, "checkpoint.dir=%s", homes[i]);
        const char *words[] = {word, "data.validation=$HOME", "train.log=./~/x",
                               "checkpoint.key=env:KEY", "data.path=a~b/c$.txt"};
        ASSERT_OK(parse_with(NULL, words, sizeof words / sizeof *words, &job));
        assert_string_equal(job->checkpoint.dir, "/home/of/a b");
        assert_string_equal(job->data.validation, "/home/of");
        assert_string_equal(job->train.log, "./~/x");
        assert_string_equal(job->checkpoint.key, "env:KEY");
        assert_string_equal(job->data.path, "a~b/c$.txt");
        weft_job_free(job);
    }
    refused_word("checkpoint.dir=~alice/run", "checkpoint.dir|~alice|./~");
    refused_word("checkpoint.dir=$SCRATCH/run", "checkpoint.dir|$SCRATCH");
    refused_word("data.path=/scratch/$USER/x", "data.path|$USER");
    refused_word("data.path=~/${set}", "data.path|${set}");
    refused_word("data.path=$HOMES/x", "data.path|$HOMES");
    assert_int_equal(setenv("HOME", "", 1), 0);
    refused_word("checkpoint.dir=~/run", "checkpoint.dir|~/run|HOME");
    assert_int_equal(unsetenv("HOME"), 0);
    refused_word("checkpoint.dir=$HOME/run", "checkpoint.dir|HOME");
    if (kept) assert_int_equal(setenv("HOME", kept, 1), 0);
    free(kept);
}

/* Which parameters decay: a mapping from patterns to truth values, in order. */
static void decay_by_pattern(void **state) {
    (void)state;
    const char *words[] = {"train.optimizer.decay={\"*.bias\": true, wte.weight: false}"};
    weft_job *job;
    ASSERT_OK(weft_job_load(NULL, words, 1, &job));
    const weft_job_optimizer *o = &job->train.optimizer;
    assert_int_equal(o->decay.count, 2);
    assert_string_equal(o->decay_rules[0].match, "*.bias");
    assert_true(o->decay_rules[0].decay);
    assert_string_equal(o->decay_rules[1].match, "wte.weight");
    assert_false(o->decay_rules[1].decay);
#ifdef WEFT_HAVE_YAML
    weft_job *again;
    ASSERT_OK(weft_job_parse("again", job->text, (int64_t)strlen(job->text), NULL, 0, &again));
    assert_string_equal(again->text, job->text);
    weft_job_free(again);
#endif
    weft_job_free(job);
    refused_word("train.optimizer.decay={a: yes}", "train.optimizer.decay|'yes'");
    refused_word("train.optimizer.decay=[a, b]", "train.optimizer.decay|2");
    refused_word("train.optimizer.decay=true", "train.optimizer.decay|'true'");
}

/* Keys without effect for the chosen family, optimizer or schedule would be ignored in silence, so
 * they are refused. The value auto, and a value that holds anyway, are accepted. */
static void test_keys_of_choices(void **state) {
    (void)state;
    refused_word("model.kv_heads=2", "'model.kv_heads=2'|model.kv_heads");
    refused_word("model.rope_theta=5e5", "llama|mixtral");
    refused_word("model.experts=4", "only of gpt2-moe, mixtral");
    refused_word("model.aux_loss=0", "only of gpt2-moe, mixtral");
    refused_word("train.optimizer.momentum=0.9", "momentum|nesterov");
    refused_word("model.image=[1, 2, 3]", "resnet18|resnet50");
    static const char *const bad[][2] = {
        {"model.family=lenet", "model.dropout=0.1"},
        {"model.family=resnet18", "model.dropout=0.1"},
        {"model.family=mlp", "model.vocab=5"},
        {"model.family=lenet", "model.hidden=5"},
        {"model.family=resnet18", "model.layers=4"},
        {"model.family=resnet50", "model.tied=true"},
        {"model.family=lenet", "model.norm_eps=1e-5"},
        {"model.family=vit", "model.context=64"},
        {"model.family=bert", "model.patch=4"},
        {"model.family=bert", "model.head_dim=8"},
        {"model.family=llama", "model.window=64"},
        {"model.family=mixtral", "model.attention_bias=true"},
        {"model.family=gpt2", "model.mlp_bias=true"},
        {"model.family=gpt2", "model.mlp_bias=false"},
        {"model.family=qwen2", "model.attention_bias=false"},
        {"model.family=vit", "model.attention_bias=false"},
        {"model.family=bert", "model.tied=false"},
        {"data.format=text", "data.labels=file"},
        {"model.family=mlp", "data.tokenizer=bytes"},
        {"train.optimizer.name=sgd", "train.optimizer.momentum=0.9"},
        {"train.optimizer.name=adafactor", "train.optimizer.betas=[0.9, 0.99]"},
        {"train.optimizer.name=lion", "train.optimizer.eps=1e-8"},
        {"train.optimizer.name=adam", "train.optimizer.initial_accumulator=0.1"},
        {"train.schedule.name=constant", "train.schedule.final=0.5"},
        {"train.schedule.name=step", "train.schedule.final=0.5"},
        {"train.schedule.name=cosine", "train.schedule.every=5"},
        {"train.schedule.name=linear", "train.schedule.factor=0.5"}};
    static const char *const good[][2] = {
        {"model.family=lenet", "model.dropout=0"},
        {"model.family=mlp", "model.dropout=0.1"},
        {"model.family=gpt2", "model.kv_heads=auto"},
        {"model.family=mlp", "data.labels=file"},
        {"data.format=npy", "data.labels=file"},
        {"model.from=dir", "data.labels=file"},
        {"train.optimizer.name=sgd", "train.optimizer.momentum=auto"},
        {"train.optimizer.name=nesterov", "train.optimizer.momentum=0.5"},
        {"train.schedule.name=constant", "train.schedule.final=auto"},
        {"model.family=llama", "model.kv_heads=2"},
        {"model.family=llama", "model.head_dim=24"},
        {"model.family=qwen2", "model.window=64"},
        {"model.family=llama", "model.mlp_bias=true"},
        {"model.family=lenet", "model.attention_bias=false"},
        {"model.family=mistral", "model.attention_bias=false"},
        {"model.family=qwen2", "model.mlp_bias=false"},
        {"model.family=gpt2", "model.tied=true"},
        {"model.family=vit", "model.dropout=0.1"},
        {"model.family=lenet", "model.tied=false"},
        {"model.from=dir", "model.dropout=0.5"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weft_job *job = NULL;
        assert_int_equal(parse_with(NULL, bad[i], 2, &job), WEFT_E_ARG);
        ASSERT_MESSAGE(bad[i][1]);
        ASSERT_MESSAGE("leave");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        weft_job *job = NULL;
        if (parse_with(NULL, good[i], 2, &job) < 0)
            fail_msg("%s: %s", good[i][1], weft_error_message());
        weft_job_free(job);
    }
}

#ifdef WEFT_HAVE_YAML
static void test_checkpoint_rules(void **state) {
    (void)state;
    weft_job *job = parse("checkpoint: {dir: run, seconds: 0.5, keep: 2, keep_minutes: 60}\n");
    assert_true(job->checkpoint.seconds == 0.5 && job->checkpoint.every == 0);
    assert_int_equal(job->checkpoint.keep_minutes, 60);
    weft_job_free(job);
    job = parse("checkpoint: {dir: run, on_error: true, stop_file: stop.json}\n");
    assert_true(job->checkpoint.on_error);
    assert_string_equal(job->checkpoint.stop_file, "stop.json");
    weft_job_free(job);
    weft_job_free(parse("checkpoint: {dir: run, every: 5, seconds: 0, keep_minutes: 1}\n"));
    job = parse("train: {stop_after: 4}\ncheckpoint: {dir: run, best: true}\n");
    assert_true(job->checkpoint.best);
    assert_int_equal(job->train.stop_after, 4);
    weft_job_free(job);
    refused("checkpoint:\n  best: true\n", "job.yaml:2:3|checkpoint.best|checkpoint.dir");
    refused("train:\n  stop_after: 2\n  eval_every: 0\n",
            "job.yaml:2:3|train.stop_after|train.eval_every");
    refused("train:\n  stop_after: -1\n", "job.yaml:2:3|train.stop_after");
    refused("train:\n  stop_after: soon\n", "job.yaml:2:3|train.stop_after");
    refused("checkpoint:\n  dir: run\n  best: 3\n", "job.yaml:3:3|checkpoint.best");
    refused("checkpoint:\n  dir: run\n  every: 5\n  seconds: 7\n",
            "job.yaml:4:3|checkpoint.seconds|checkpoint.every = 5");
    refused("checkpoint:\n  dir: run\n  keep_minutes: 5\n",
            "job.yaml:3:3|checkpoint.keep_minutes|checkpoint.every|checkpoint.seconds");
    refused("checkpoint:\n  every: 5\n  keep_minutes: 5\n",
            "job.yaml:3:3|checkpoint.keep_minutes|checkpoint.dir");
}

static void test_recovery_rules(void **state) {
    (void)state;
    weft_job *job = parse("recovery: {buddy: 1}\n");
    assert_true(job->recovery.enabled && job->recovery.buddy == 1);
    weft_job_free(job);
    job = parse("recovery: {enabled: true}\n");
    assert_true(job->recovery.enabled && job->recovery.buddy == 0);
    weft_job_free(job);
    refused("recovery:\n  enabled: false\n  buddy: 1\n",
            "job.yaml:3:3|recovery.buddy|recovery.enabled");
    job = parse("parallel: {devices: 4}\nrecovery: {elastic: true, min: 4}\n");
    assert_true(job->recovery.enabled && job->recovery.elastic && job->recovery.min == 4);
    weft_job_free(job);
    refused("recovery:\n  enabled: false\n  elastic: true\n",
            "job.yaml:3:3|recovery.elastic|recovery.enabled");
    refused("recovery:\n  elastic: true\n  min: 3\n  max: 2\n",
            "job.yaml:4:3|recovery.max = 2|recovery.min = 3");
    job = parse("recovery: {buddy: 1, elastic: true}\n");
    assert_true(job->recovery.enabled && job->recovery.elastic && job->recovery.buddy == 1);
    weft_job_free(job);
    refused("recovery:\n  elastic: true\nparallel: {mode: manual, mesh: {tp: 2}}\n",
            "job.yaml:2:3|recovery.elastic|manual");
    refused("parallel: {devices: 4}\nrecovery:\n  elastic: true\n  min: 5\n",
            "job.yaml:4:3|recovery.min = 5|4 devices");
}

/* A random value of a row, as text. */
static void random_value(const weft_job_key *key, uint64_t seed, uint64_t *at, wefti_text *out) {
    uint32_t r = wefti_philox_u32(seed, 1, (*at)++);
    double u = wefti_philox_uniform(seed, 2, *at);
    if (key->words) {
        int words = 0;
        while (key->words[words]) words++;
        wefti_text_add(out, "%s", key->words[r % (uint32_t)words]);
    } else if (!strcmp(key->type, "whole number")) {
        wefti_text_add(out, "%.0f", key->min + r % 1000);
    } else if (!strcmp(key->type, "number")) {
        wefti_text_add(out, "%.17g", key->min + u * ((key->max > 1 ? 1 : key->max) - key->min));
    } else if (!strcmp(key->type, "true or false")) {
        wefti_text_add(out, r & 1 ? "true" : "false");
    } else if (!strncmp(key->type, "bytes", 5)) { /* those of limits may be per cent */
        if (key->type[5] && r & 1)
            wefti_text_add(out, "%u.%u%%", r / 2 % 100, 1 + r / 256 % 8);
        else
            wefti_text_add(out, "%uMiB", 1 + r % 100000);
    } else if (!strcmp(key->type, "list of whole numbers")) {
        wefti_text_add(out, "[%u, %u, %u]", 1 + r % 4, 1 + r % 512, 1 + r % 500);
    } else if (!strcmp(key->type, "{pattern: true or false}")) {
        wefti_text_add(out, "{\"*.b%u\": %s, w: false}", r % 7, r & 8 ? "true" : "false");
    } else if (!strcmp(key->type, "list of numbers")) {
        wefti_text_add(out, "[%.17g, 0.5]", u);
    } else {
        /* with a line separator, a next line and a byte order mark */
        static const char *const odd[] = {"\u2028", "\xc2\x85", "\ufeff", "\U0001f600"};
        if (r & 16) wefti_text_add(out, "%s", odd[r >> 5 & 3]);
        for (uint32_t i = 0; i < r % 9; i++)
            wefti_text_add(out, "%c",
                           "a \"\\'#:\n\t{[é%~,.0"[wefti_philox_u32(seed, 3, (*at)++) % 18]);
    }
}

/* Any set of values that is accepted prints to a text that reads back equal. */
static void test_round_trip(void **state) {
    (void)state;
    int rows, accepted = 0;
    const weft_job_key *keys = weft_job_keys(&rows);
    TEST_SEEDS(seed, 1, 3000) {
        char *words[8];
        int count = 1 + (int)(seed % 8);
        uint64_t at = 0;
        for (int i = 0; i < count; i++) {
            const weft_job_key *key = &keys[wefti_philox_u32(seed, 0, at++) % (uint32_t)rows];
            while (!strncmp(key->path, "parallel.", 9)) key--; /* those must fit each other */
            wefti_text word = {0};
            wefti_text_add(&word, "%s=", key->path);
            random_value(key, seed, &at, &word);
            words[i] = wefti_text_take(&word);
        }
        weft_job *job = NULL, *again = NULL;
        if (parse_with(NULL, (const char *const *)words, count, &job) >= 0) {
            accepted++;
            if (parse_with(job->text, NULL, 0, &again) < 0)
                fail_msg("seed %d: %s\n%s", (int)seed, weft_error_message(), job->text);
            assert_string_equal(job->text, again->text);
            assert_memory_equal(&job->train.optimizer, &again->train.optimizer,
                                offsetof(weft_job_optimizer, decay)); /* then pointers */
            assert_string_equal(job->data.path, again->data.path);
            assert_string_equal(job->data.validation, again->data.validation);
            weft_job_free(again);
        }
        weft_job_free(job);
        for (int i = 0; i < count; i++) wefti_free(words[i]);
    }
    assert_true(test_one_seed() ||
                accepted > 900); /* the others have keys of another family, for the most part */
}

/* Two ranks with random values of one key: only what the table says they share is refused, with the
 * key and both values; also against a message that ends too early. */
static void test_ranks(void **state) {
    (void)state;
    int rows, refused = 0, accepted = 0;
    const weft_job_key *keys = weft_job_keys(&rows);
    const wefti_job_row *table = wefti_job_table(&rows);
    TEST_SEEDS(seed, 1, 2000) {
        const int k = (int)(wefti_philox_u32(seed, 0, 0) % (uint32_t)rows);
        weft_job *jobs[2] = {NULL, NULL};
        wefti_text words[2] = {{0}, {0}}, values[2] = {{0}, {0}}, shared = {0};
        uint64_t at = 1;
        bool parsed = strncmp(keys[k].path, "parallel.", 9) != 0;
        for (int i = 0; i < 2 && parsed; i++) {
            wefti_text_add(&words[i], "%s=", keys[k].path);
            random_value(&keys[k], seed, &at, &words[i]);
            const char *const word = words[i].data;
            parsed = parse_with(NULL, &word, 1, &jobs[i]) >= 0;
            if (parsed) wefti_job_write_value(jobs[i], &table[k], &values[i]);
        }
        if (parsed) {
            const char *a = values[0].data, *b = values[1].data;
            ASSERT_OK(wefti_job_shared(jobs[0], &shared));
            const weft_status status = wefti_job_same(jobs[1], 3, shared.data, shared.used);
            const bool was_set = strcmp(a, "\"\"") && strcmp(a, "auto");
            const bool is_set = strcmp(b, "\"\"") && strcmp(b, "auto");
            const bool same = table[k].ranks == WEFTI_RANKS_GIVEN  ? was_set == is_set
                              : table[k].ranks == WEFTI_RANKS_SAME ? !strcmp(a, b)
                                                                   : true;
            /* Other keys may follow from this one. */
            if (!same) {
                assert_int_equal(status, WEFT_E_MISMATCH);
                assert_int_equal(weft_error_rank(), 3);
                refused++;
            } else if (!strcmp(a, b) || table[k].ranks >= WEFTI_RANKS_RANK0) {
                if (status < 0) fail_msg("%s: %s", words[1].data, weft_error_message());
                accepted++;
            }
            if (status < 0 && !strchr(weft_error_message(), '3')) fail_msg("names no rank");
            for (int64_t cut = 0; cut < shared.used - 1; cut += 37)
                assert_int_equal(wefti_job_same(jobs[0], 1, shared.data, cut), WEFT_E_MISMATCH);
        }
        for (int i = 0; i < 2; i++) {
            weft_job_free(jobs[i]);
            wefti_text_free(&words[i]);
            wefti_text_free(&values[i]);
        }
        wefti_text_free(&shared);
    }
    assert_true(test_one_seed() || (refused > 300 && accepted > 100));
}

#endif

/* The table itself: paths unique and short enough, defaults within their own range (all are parsed
 * by every job). */
static void test_table(void **state) {
    (void)state;
    int rows, keys;
    const wefti_job_row *table = wefti_job_table(&rows);
    const weft_job_key *public = weft_job_keys(&keys);
    assert_int_equal(rows, keys);
    for (int i = 0; i < rows; i++) {
        assert_true(strlen(table[i].path) + 8 < WEFTI_JOB_PATH);
        /* One key lies in no section. */
        assert_true(strchr(table[i].path, '.') || !strcmp(table[i].path, "machine"));
        assert_string_equal(table[i].path, public[i].path);
        for (int j = 0; j < i; j++) assert_string_not_equal(table[i].path, table[j].path);
    }
    assert_string_equal(weft_format_text(WEFT_FORMAT_NPY), "npy");
    assert_string_equal(weft_format_text(WEFT_FORMATS), "?");
    assert_string_equal(weft_schedule_text(WEFT_SCHEDULE_STEP), "step");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decay_by_pattern),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(homes_in_paths),
        cmocka_unit_test(near_keys),
        cmocka_unit_test(near_keys_exist),
        cmocka_unit_test(sections_in_words),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_keys_of_choices),
#ifdef WEFT_HAVE_YAML
        cmocka_unit_test(test_checkpoint_rules),
        cmocka_unit_test(test_recovery_rules),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_ranks),
#endif
    };
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
