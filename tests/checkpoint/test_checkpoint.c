/* Intact checkpoints: written tensors read back equal, steps are added and pruned, models are
 * compared, and a run locks its directory. */
#include "fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/json/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_set.h"
#include "weft/checkpoint.h"

static void round_trip(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 7, 0));
    wefti_checkpoint *c = NULL;
    char *note = "x";
    ASSERT_OK(wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, &note));
    assert_null(note);
    assert_model(c, 7);
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(c);
    assert_int_equal(meta->step, 7);
    assert_int_equal(meta->data_position, 7 * 32);
    assert_true(meta->seed == 0xfedcba9876543210u);
    assert_string_equal(meta->optimizer, "adamw");
    assert_string_equal(wefti_checkpoint_value(&meta->settings, "betas"), "0.9,0.95");
    assert_null(wefti_checkpoint_value(&meta->settings, "absent"));
    assert_int_equal(meta->loss_count, 2);
    assert_true(meta->losses[1].loss == 0.1);
    assert_int_equal(meta->losses[1].step, 2);
    const wefti_checkpoint_entry *e =
        wefti_checkpoint_find(c, WEFTI_CHECKPOINT_MODEL, "h.0.attn.weight");
    assert_string_equal(e->layout, "replicated");
    assert_string_equal(e->file, "model.safetensors");
    assert_null(wefti_checkpoint_find(c, WEFTI_CHECKPOINT_OPTIMIZER, "h.0.attn.weight"));
    wefti_checkpoint_close(c);
    assert_tidy(f->dir);
    size_t bytes = 0;
    unsigned char *latest = get_file(path_in(f->dir, "latest"), &bytes);
    assert_int_equal(bytes, 18);
    assert_memory_equal(latest, "step-000000000007\n", 18);
    free(latest);
    unsigned char *config = get_file(path_in(f->dir, "step-000000000007/config.json"), &bytes);
    assert_memory_equal(config, fixture_texts[0].text, bytes);
    free(config);
}

/* Every shard size from one byte up: the same tensors, in files no larger than asked. */
static void shards(void **state) {
    const fixture *f = *state;
    for (int64_t limit = 1; limit < 200; limit += 33) {
        ASSERT_OK(write_step(f->dir, 1, limit));
        wefti_checkpoint *c = NULL;
        ASSERT_OK(wefti_checkpoint_open(f->dir, 1, &c, NULL));
        assert_model(c, 1);
        wefti_tensor_set *set = NULL; /* the step is a model directory for others */
        ASSERT_OK(wefti_tensor_set_open(wefti_checkpoint_path(c), &set));
        assert_int_equal(wefti_tensor_set_count(set), 4);
        assert_non_null(wefti_tensor_set_find(set, "h.0.attn.weight"));
        assert_null(wefti_tensor_set_find(set, "h.0.attn.weight.m"));
        for (int64_t i = 0; i < wefti_tensor_set_files(set); i++) {
            const wefti_safetensors *file = wefti_tensor_set_file(set, i);
            int64_t data = wefti_safetensors_bytes(file) - wefti_safetensors_header_bytes(file);
            int64_t with_bytes = 0;
            for (int64_t k = 0; k < wefti_safetensors_count(file); k++)
                with_bytes += wefti_safetensors_at(file, k)->bytes > 0;
            assert_true(data <= limit || with_bytes == 1);
        }
        wefti_tensor_set_close(set);
        wefti_checkpoint_close(c);
    }
    assert_tidy(f->dir);
}

static void empty_and_bare(void **state) {
    const fixture *f = *state;
    wefti_checkpoint_meta meta = {.step = 0};
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, NULL, 0, NULL, NULL));
    wefti_checkpoint *c = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, 0, &c, NULL));
    assert_int_equal(wefti_checkpoint_count(c), 0);
    assert_string_equal(wefti_checkpoint_meta_of(c)->optimizer, "");
    wefti_checkpoint_close(c);
}

static void listing(void **state) {
    const fixture *f = *state;
    int64_t *steps = NULL, count = 9;
    ASSERT_OK(wefti_checkpoint_list(f->dir, &steps, &count));
    assert_int_equal(count, 0);
    wefti_checkpoint *c = NULL;
    ASSERT_STATUS(WEFT_E_NOT_FOUND,
                  wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    ASSERT_OK(wefti_dir_make(f->dir));
    ASSERT_STATUS(WEFT_E_NOT_FOUND,
                  wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    ASSERT_MESSAGE("checkpoint");
    ASSERT_OK(write_step(f->dir, 1000, 0));
    ASSERT_OK(write_step(f->dir, 20, 0));
    ASSERT_OK(wefti_dir_make(path_in(f->dir, "step-000000000500"))); /* no manifest: no step */
    ASSERT_OK(wefti_dir_make(path_in(f->dir, "step-30")));
    ASSERT_OK(wefti_checkpoint_list(f->dir, &steps, &count));
    assert_int_equal(count, 2);
    assert_int_equal(steps[0], 20);
    assert_int_equal(steps[1], 1000);
    wefti_free(steps);
    ASSERT_OK(wefti_checkpoint_open(f->dir, 20, &c, NULL));
    wefti_checkpoint_close(c);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, 500, &c, NULL));
    ASSERT_MESSAGE("never completed");
    ASSERT_OK(wefti_checkpoint_open(path_in(f->dir, "step-000000001000/"), WEFTI_CHECKPOINT_LATEST,
                                    &c, NULL));
    assert_model(c, 1000);
    wefti_checkpoint_close(c);
    ASSERT_STATUS(WEFT_E_NOT_FOUND,
                  wefti_checkpoint_open(path_in(f->dir, "step-000000001000"), 3, &c, NULL));
    /* a copied step is still a step in another directory, but not under another step's name */
    ASSERT_OK(wefti_rename(path_in(f->dir, "step-000000001000"), path_in(f->root, "keep")));
    ASSERT_OK(wefti_checkpoint_open(path_in(f->root, "keep"), WEFTI_CHECKPOINT_LATEST, &c, NULL));
    wefti_checkpoint_close(c);
    ASSERT_OK(wefti_rename(path_in(f->root, "keep"), path_in(f->dir, "step-000000000021")));
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, 21, &c, NULL));
    ASSERT_MESSAGE("holds step 1000");
}

/* The same step written again takes the place of the first. */
static void replacement(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 3, 0));
    model m;
    model_make(&m, 99);
    wefti_checkpoint_meta meta = meta_of(3);
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    wefti_checkpoint *c = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, 3, &c, NULL));
    assert_model(c, 99);
    wefti_checkpoint_close(c);
    assert_tidy(f->dir);
}

static void damage(const char *dir, int64_t step) {
    char *path = NULL;
    ASSERT_OK(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &path));
    size_t bytes = 0;
    unsigned char *data = get_file(path_in(path, "model.safetensors"), &bytes);
    data[bytes - 1] ^= 1;
    put_file(path_in(path, "model.safetensors"), data, bytes);
    free(data);
    wefti_free(path);
}

static void assert_steps(const char *dir, const int64_t *expected, int64_t expected_count) {
    int64_t *steps = NULL, count = 0;
    ASSERT_OK(wefti_checkpoint_list(dir, &steps, &count));
    assert_int_equal(count, expected_count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(steps[i], expected[i]);
    wefti_free(steps);
}

static void pruning(void **state) {
    const fixture *f = *state;
    for (int64_t step = 1; step <= 6; step++) ASSERT_OK(write_step(f->dir, step, 0));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_prune(f->dir, 0));
    ASSERT_OK(wefti_checkpoint_prune(f->dir, 6));
    assert_steps(f->dir, (int64_t[]){1, 2, 3, 4, 5, 6}, 6);
    ASSERT_OK(wefti_checkpoint_prune(f->dir, 4));
    assert_steps(f->dir, (int64_t[]){3, 4, 5, 6}, 4);
    damage(f->dir, 6);
    damage(f->dir, 5);
    ASSERT_OK(wefti_checkpoint_prune(f->dir, 1)); /* 4 is the last good one */
    assert_steps(f->dir, (int64_t[]){4, 5, 6}, 3);
    damage(f->dir, 4);
    ASSERT_OK(wefti_checkpoint_prune(f->dir, 1)); /* nothing good: nothing goes */
    assert_steps(f->dir, (int64_t[]){4, 5, 6}, 3);
    wefti_checkpoint *c = NULL;
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    ASSERT_MESSAGE("good|checkpoint");
    assert_tidy(f->dir);
}

static void keeping(void **state) {
    const fixture *f = *state;
    model m;
    model_make(&m, 1);
    for (int64_t step = 1; step <= 5; step++) {
        wefti_checkpoint_meta meta = meta_of(step);
        wefti_checkpoint_options options = {.keep = 2, .nice = 5};
        char *note = "x";
        ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, &options, &note));
        assert_null(note);
    }
    assert_steps(f->dir, (int64_t[]){4, 5}, 2);
}

/* Step `step`, written `time` seconds after 1970; NULL: nobody knows when. */
static void write_at(const char *dir, int64_t step, const char *time, int64_t spacing) {
    model m;
    model_make(&m, 1);
    const wefti_checkpoint_pair note = {WEFTI_CHECKPOINT_TIME, time};
    wefti_checkpoint_meta meta = meta_of(step);
    wefti_checkpoint_options options = {.keep = 2, .spacing = spacing};
    char *failed = NULL;
    if (time) meta.notes = (wefti_checkpoint_pairs){&note, 1};
    ASSERT_OK(wefti_checkpoint_write(dir, &meta, m.tensors, MODEL_TENSORS, &options, &failed));
    assert_null(failed);
}

/* Beside the newest two, one step stays for each 60 seconds. */
static void keeping_one_for_each_minute(void **state) {
    const fixture *f = *state;
    static const char *const times[] = {"100", "110", "159", "160", "170", "219", "221", "222"};
    for (int64_t i = 0; i < 8; i++) write_at(f->dir, i + 1, times[i], 60);
    assert_steps(f->dir, (int64_t[]){1, 4, 7, 8}, 4);
    write_at(f->dir, 9, "223", 60);
    assert_steps(f->dir, (int64_t[]){1, 4, 7, 8, 9}, 5); /* 7 is 61 s behind 4 */
    write_at(f->dir, 10, "50", 60);                      /* the clock was set back */
    write_at(f->dir, 11, "60", 60);
    write_at(f->dir, 12, "70", 60);
    assert_steps(f->dir, (int64_t[]){1, 4, 7, 10, 11, 12}, 6);
    write_at(f->dir, 13, "200", 60);
    write_at(f->dir, 14, "210", 60);
    assert_steps(f->dir, (int64_t[]){1, 4, 7, 10, 13, 14}, 6);
    write_at(f->dir, 15, "220", 0); /* without the rule: the newest two */
    assert_steps(f->dir, (int64_t[]){14, 15}, 2);
}

static void steps_without_a_time_go(void **state) {
    const fixture *f = *state;
    static const char *const times[] = {NULL, "", "-5", "12x", "1000000000000000000", "100", "50"};
    for (int64_t i = 0; i < 7; i++) write_at(f->dir, i + 1, times[i], 60);
    assert_steps(f->dir, (int64_t[]){6, 7}, 2);
    write_at(f->dir, 8, "90", 60);
    write_at(f->dir, 9, "95", 60);
    assert_steps(f->dir, (int64_t[]){6, 7, 8, 9}, 4);
}

static void comparison(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    wefti_checkpoint *c = NULL;
    ASSERT_OK(wefti_checkpoint_open(f->dir, 1, &c, NULL));
    model m;
    model_make(&m, 1);
    ASSERT_OK(wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, m.tensors, MODEL_TENSORS));
    ASSERT_OK(wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_OPTIMIZER, m.tensors, MODEL_TENSORS));
    m.tensors[0].desc.shape[1] = 4;
    m.tensors[3].name = "scales";
    ASSERT_OK(wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_OPTIMIZER, m.tensors, MODEL_TENSORS));
    ASSERT_STATUS(WEFT_E_SHAPE,
                  wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, m.tensors, MODEL_TENSORS));
    ASSERT_MESSAGE("3");
    ASSERT_MESSAGE("h.0.attn.weight|f32[5, 3]|f32[5, 4]");
    ASSERT_MESSAGE("f64[]");
    ASSERT_MESSAGE("scales f64[] is missing");
    ASSERT_STATUS(WEFT_E_SHAPE, wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_OPTIMIZER, NULL, 0));
    wefti_checkpoint_tensor many[9];
    char names[9][16];
    for (int i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "x%d", i);
        many[i] = (wefti_checkpoint_tensor){.name = names[i], .desc = {.dtype = WEFT_F32}};
    }
    ASSERT_STATUS(WEFT_E_SHAPE, wefti_checkpoint_compare(c, WEFTI_CHECKPOINT_MODEL, many, 9));
    ASSERT_MESSAGE("13");
    ASSERT_MESSAGE("; ...");
    float x;
    weft_desc scalar = {.dtype = WEFT_F32};
    ASSERT_STATUS(WEFT_E_NOT_FOUND,
                  wefti_checkpoint_read(c, WEFTI_CHECKPOINT_MODEL, "x", &scalar, &x));
    ASSERT_STATUS(WEFT_E_SHAPE,
                  wefti_checkpoint_read(c, WEFTI_CHECKPOINT_MODEL, "scale", &scalar, &x));
    wefti_checkpoint_close(c);
}

static void bad_requests(void **state) {
    const fixture *f = *state;
    model m;
    model_make(&m, 1);
    wefti_checkpoint_meta meta = meta_of(1);
    m.tensors[2].name = m.tensors[0].name;
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    ASSERT_MESSAGE("h.0.attn.weight");
    model_make(&m, 1);
    m.tensors[2].name = "\xff";
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    ASSERT_MESSAGE("not UTF-8"); /* found by the thread: the message travels */
    assert_tidy(f->dir);
    model_make(&m, 1);
    m.tensors[2].data = NULL;
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    model_make(&m, 1);
    m.tensors[2].desc.dtype = WEFT_DTYPES;
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    model_make(&m, 1);
    const wefti_checkpoint_text texts[] = {{.name = "../evil", .text = ""},
                                           {.name = "manifest.json", .text = ""},
                                           {.name = "model.safetensors", .text = ""}};
    for (int i = 0; i < 3; i++) {
        wefti_checkpoint_options options = {.texts = &texts[i], .text_count = 1};
        ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS,
                                                         &options, NULL));
    }
    wefti_checkpoint_options negative = {.shard_bytes = -1};
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, &negative, NULL));
    const wefti_checkpoint_pair twice[] = {{"k", "1"}, {"k", "2"}};
    meta.compute = (wefti_checkpoint_pairs){twice, 2};
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
    meta = meta_of(-1);
    ASSERT_STATUS(WEFT_E_ARG,
                  wefti_checkpoint_write(f->dir, &meta, m.tensors, MODEL_TENSORS, NULL, NULL));
}

/* The manifest of step 2. */
static const char *second(const fixture *f) {
    return path_in(f->dir, "step-000000000002/manifest.json");
}

/* A later format is not damage: it causes no fallback to an older step. */
static void later_format(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 0));
    edit_manifest(second(f), "\"format_version\": 2", "\"format_version\": 4", false);
    wefti_checkpoint *c = NULL;
    ASSERT_STATUS(WEFT_E_NO_IMPL, wefti_checkpoint_open(f->dir, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    ASSERT_MESSAGE("version 4");
    ASSERT_OK(wefti_checkpoint_open(f->dir, 1, &c, NULL));
    wefti_checkpoint_close(c);
}

/* Version 1 has no digest of all tensors. In version 2 a missing or wrong one is damage. */
static void first_format(void **state) {
    const fixture *f = *state;
    wefti_checkpoint *c = NULL;
    ASSERT_OK(write_step(f->dir, 2, 0));
    edit_manifest(second(f), " \"digest\": \"0x", " \"digest\": \"0x0", false);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, 2, &c, NULL));
    edit_manifest(second(f), " \"digest\":", "", true);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_checkpoint_open(f->dir, 2, &c, NULL));
    edit_manifest(second(f), "\"format_version\": 2", "\"format_version\": 1", false);
    ASSERT_OK(wefti_checkpoint_open(f->dir, 2, &c, NULL));
    assert_model(c, 2);
    wefti_checkpoint_close(c);
}

/* A step can be opened without its tensors' bytes. Damage of those is left to the reader of the
 * tensors; other damage is found. */
static void unread(void **state) {
    const fixture *f = *state;
    wefti_checkpoint *c = NULL, *whole = NULL;
    char *note = NULL;
    for (int64_t step = 1; step <= 3; step++) ASSERT_OK(write_step(f->dir, step, 0));
    size_t bytes;
    const char *path = path_in(f->dir, "step-000000000003/model.safetensors");
    unsigned char *file = get_file(path, &bytes);
    file[bytes - 1] ^= 1;
    put_file(path, file, bytes);
    free(file);
    ASSERT_OK(wefti_checkpoint_open_unread(f->dir, INT64_MAX, &c, &note));
    assert_null(note);
    assert_int_equal(wefti_checkpoint_meta_of(c)->step, 3);
    wefti_checkpoint_close(c);
    ASSERT_OK(wefti_checkpoint_open_unread(f->dir, 3, &c, NULL));
    ASSERT_OK(wefti_checkpoint_open(f->dir, 2, &whole, NULL));
    assert_int_equal(wefti_checkpoint_identity(c), wefti_checkpoint_identity(whole));
    assert_model(c, 2);
    wefti_checkpoint_close(c);
    wefti_checkpoint_close(whole);
    assert_int_equal(unlink(path_in(f->dir, "step-000000000002/model.safetensors")), 0);
    ASSERT_OK(wefti_checkpoint_open_unread(f->dir, 3, &c, &note));
    assert_int_equal(wefti_checkpoint_meta_of(c)->step, 1);
    assert_non_null(strstr(note, "step 2"));
    wefti_checkpoint_close(c);
    wefti_free(note);
    ASSERT_STATUS(WEFT_E_NOT_FOUND, wefti_checkpoint_open_unread(f->dir, 1, &c, NULL));
}

static void locking(void **state) {
    const fixture *f = *state;
    wefti_checkpoint_lock *first = NULL, *second = NULL;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &first));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_lock_open(f->dir, &second));
    char expected[64];
    snprintf(expected, sizeof expected, "another run (process %ld)", (long)getpid());
    ASSERT_MESSAGE(expected);
    wefti_checkpoint_lock_close(first);
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &second));
    wefti_checkpoint_lock_close(second);
    /* a process that is killed gives its lock back */
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        bool held = wefti_checkpoint_lock_open(f->dir, &first) >= 0;
        if (write(ready[1], held ? "y" : "n", 1) == 1) pause();
        _exit(0);
    }
    char answer = 0;
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_lock_open(f->dir, &second));
    snprintf(expected, sizeof expected, "(process %ld)", (long)child);
    ASSERT_MESSAGE(expected);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &second));
    wefti_checkpoint_lock_close(second);
    wefti_checkpoint_lock_close(NULL);
}

/* A directory that is made for a run goes if the run leaves nothing in it, and only with the run
 * that holds the lock. */
static void empty_directories_go(void **state) {
    const fixture *f = *state;
    wefti_checkpoint_lock *held, *other;
    char dir[sizeof f->dir + 8];
    (void)snprintf(dir, sizeof dir, "%s/a/b", f->dir);
    ASSERT_OK(wefti_checkpoint_lock_open(dir, &held));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_lock_open(dir, &other));
    ASSERT_STATUS(WEFT_E_ARG, wefti_checkpoint_lock_open(dir, &other));
    wefti_checkpoint_lock_close(held);
    assert_false(wefti_exists(dir));
    ASSERT_OK(wefti_checkpoint_lock_open(dir, &held));
    ASSERT_OK(write_step(dir, 1, 0));
    wefti_checkpoint_lock_close(held);
    ASSERT_OK(wefti_checkpoint_lock_open(dir, &held));
    wefti_checkpoint_lock_close(held);
    assert_true(wefti_exists(dir)); /* it has a step, and the last run has not made it */
}

/* The next run that takes the lock removes the remains of an interrupted run, or puts them back in
 * place. */
static void cleaning(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 0));
    ASSERT_OK(wefti_rename(path_in(f->dir, "step-000000000002"),
                           path_in(f->dir, ".old-step-000000000002")));
    ASSERT_OK(wefti_dir_make(path_in(f->dir, ".tmp-step-000000000002")));
    ASSERT_OK(wefti_dir_make(path_in(f->dir, ".tmp-step-000000000003/deep")));
    ASSERT_OK(wefti_dir_make(path_in(f->dir, ".old-step-000000000001")));
    ASSERT_OK(wefti_dir_make(path_in(f->dir, ".trash-step-000000000000")));
    put_file(path_in(f->dir, ".tmp-step-000000000003/x"), "x", 1);
    wefti_checkpoint_lock *lock = NULL;
    ASSERT_OK(wefti_checkpoint_lock_open(f->dir, &lock));
    assert_tidy(f->dir);
    assert_steps(f->dir, (int64_t[]){1, 2}, 2);
    wefti_checkpoint_lock_close(lock);
}

/* The length of a list in a text that must be a JSON object. */
static int count_in(const char *text, const char *key) {
    static const wefti_json_limits limits = {.depth = 8, .members = 100, .array_items = 100};
    wefti_arena *arena = NULL;
    const wefti_json *root = NULL, *list = NULL;
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, text, (int64_t)strlen(text), &limits, &root));
    ASSERT_OK(wefti_json_array(root, key, &list));
    int count = list->count;
    wefti_arena_destroy(arena);
    return count;
}

static void descriptions(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 0));
    const char *paths[] = {f->dir, path_in(f->dir, "step-000000000002"),
                           path_in(f->dir, "step-000000000002/model.safetensors")};
    for (int i = 0; i < 3; i++) {
        char *text = NULL;
        ASSERT_OK(weft_checkpoint_describe(paths[i], 0, &text));
        assert_non_null(strstr(text, "h.0.attn.weight"));
        assert_non_null(strstr(text, "f32[5, 3]"));
        assert_int_equal(strstr(text, "steps        1 2\n") != NULL, i == 0);
        weft_checkpoint_text_free(text);
        ASSERT_OK(weft_checkpoint_describe(paths[i], 1, &text));
        assert_int_equal(count_in(text, "tensors"), i == 2 ? 4 : MODEL_TENSORS);
        weft_checkpoint_text_free(text);
        ASSERT_OK(weft_checkpoint_verify(paths[i], 0, &text));
        assert_non_null(strstr(text, "good"));
        weft_checkpoint_text_free(text);
    }
    damage(f->dir, 2);
    char *text = NULL;
    ASSERT_STATUS(WEFT_E_CORRUPT, weft_checkpoint_verify(f->dir, 0, &text));
    assert_non_null(strstr(text, "step-000000000001     good\n"));
    assert_non_null(strstr(text, "step-000000000002     DAMAGED: tensor "));
    weft_checkpoint_text_free(text);
    ASSERT_STATUS(WEFT_E_CORRUPT, weft_checkpoint_verify(f->dir, 1, &text));
    assert_int_equal(count_in(text, "results"), 2);
    assert_non_null(strstr(text, "], \"good\": false}"));
    weft_checkpoint_text_free(text);
    ASSERT_OK(weft_checkpoint_describe(f->dir, 0, &text));
    assert_non_null(strstr(text, "skipped step 2: "));
    weft_checkpoint_text_free(text);
    ASSERT_STATUS(WEFT_E_NOT_FOUND, weft_checkpoint_describe(path_in(f->root, "absent"), 0, &text));
    weft_checkpoint_text_free(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(round_trip),
        TEST(shards),
        TEST(empty_and_bare),
        TEST(listing),
        TEST(replacement),
        TEST(pruning),
        TEST(keeping),
        TEST(comparison),
        TEST(bad_requests),
        TEST(later_format),
        TEST(first_format),
        TEST(unread),
        TEST(locking),
        TEST(empty_directories_go),
        TEST(cleaning),
        TEST(descriptions),
        TEST(keeping_one_for_each_minute),
        TEST(steps_without_a_time_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
