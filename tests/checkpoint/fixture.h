/* Shared parts of the tests of this folder: a directory of their own, a small model with state, and
 * changes of files by hand. */
#ifndef WEFT_TESTS_CHECKPOINT_FIXTURE_H
#define WEFT_TESTS_CHECKPOINT_FIXTURE_H

#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/philox.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/step_dir.h"

/* The bytes of a tensor of an open file, until the next call. */
#define BYTES_OF(entry) bytes_of((entry)->reader, (entry)->at, (entry)->bytes)
static inline const unsigned char *bytes_of(const wefti_reader *reader, int64_t at, int64_t bytes) {
    static unsigned char *last;
    wefti_free(last);
    last = NULL;
    ASSERT_OK(wefti_reader_take(reader, at, bytes, &last));
    return last;
}

/* A fresh directory, removed by fixture_end. */
typedef struct fixture {
    char root[256];
    char dir[300]; /* root/run, not made yet */
} fixture;

static inline int fixture_begin(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const char *base = getenv("TMPDIR"); /* memory when there is some: thousands of syncs */
    if (!base && !access("/dev/shm", W_OK)) base = "/dev/shm";
    snprintf(f->root, sizeof f->root, "%s/weft-checkpoint-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(f->root)) return -1;
    snprintf(f->dir, sizeof f->dir, "%s/run", f->root);
    *state = f;
    return 0;
}

static inline int fixture_end(void **state) {
    fixture *f = *state;
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    int failed = wefti_remove_tree(f->root) < 0;
    free(f);
    return failed;
}

/* A path inside the fixture, in one of a few static buffers. */
static inline const char *path_in(const char *dir, const char *name) {
    static char paths[16][700];
    static int next;
    char fresh[700]; /* `dir` may be one of them */
    snprintf(fresh, sizeof fresh, "%s/%s", dir, name);
    return memcpy(paths[next++ % 16], fresh, sizeof fresh);
}

/* A path of the fixture that stays valid during a test, unlike the paths of path_in. */
static inline const char *in(const fixture *f, const char *name) {
    static char paths[128][700];
    static int next;
    char *path = paths[next++ % 128];
    (void)snprintf(path, sizeof paths[0], "%s/%s", f->root, name);
    return path;
}

static inline void put_file(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline unsigned char *get_file(const char *path, size_t *out_bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    rewind(file);
    unsigned char *data = malloc((size_t)bytes + 1);
    assert_int_equal(fread(data, 1, (size_t)bytes, file), (size_t)bytes);
    fclose(file);
    *out_bytes = (size_t)bytes;
    return data;
}

static inline void assert_same_file(const char *a, const char *b) {
    size_t bytes[2];
    unsigned char *data[2] = {get_file(a, &bytes[0]), get_file(b, &bytes[1])};
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
}

/* A model of a few odd tensors with its optimizer state; the bytes are a function of `version`. */
enum { MODEL_TENSORS = 6, MODEL_BYTES = 512 };
typedef struct model {
    unsigned char bytes[MODEL_TENSORS][MODEL_BYTES];
    wefti_checkpoint_tensor tensors[MODEL_TENSORS];
} model;

static inline void model_fill(model *m, uint64_t version) {
    for (uint64_t i = 0; i < MODEL_TENSORS; i++)
        for (uint64_t j = 0; j < MODEL_BYTES; j++)
            m->bytes[i][j] = (unsigned char)wefti_philox_u32(version, i, j);
}

static inline void model_make(model *m, uint64_t version) {
    static const struct {
        const char *name;
        wefti_checkpoint_role role;
        weft_desc desc;
    } rows[MODEL_TENSORS] = {
        {"h.0.attn.weight", WEFTI_CHECKPOINT_MODEL, {WEFT_F32, 2, {5, 3}}},
        {"h.0.attn.weight.m", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_F32, 2, {5, 3}}},
        {"h.0.half \"quoted\" \xc3\xa9", WEFTI_CHECKPOINT_MODEL, {WEFT_BF16, 1, {7}}},
        {"scale", WEFTI_CHECKPOINT_MODEL, {WEFT_F64, 0, {0}}},
        {"none", WEFTI_CHECKPOINT_MODEL, {WEFT_F32, 2, {0, 4}}},
        {"step", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_I64, 1, {1}}},
    };
    memset(m, 0, sizeof *m);
    model_fill(m, version);
    for (int i = 0; i < MODEL_TENSORS; i++)
        m->tensors[i] = (wefti_checkpoint_tensor){
            .name = rows[i].name, .role = rows[i].role, .desc = rows[i].desc, .data = m->bytes[i]};
}

static const wefti_checkpoint_pair fixture_settings[] = {{"lr", "0.00059999999999999995"},
                                                         {"betas", "0.9,0.95"}};
static const wefti_checkpoint_loss fixture_losses[] = {{1, 4.25}, {2, 0.1}};
static const wefti_checkpoint_text fixture_texts[] = {
    {.name = "config.json", .text = "{\"model_type\": \"gpt2\"}\n"}};

static inline wefti_checkpoint_meta meta_of(int64_t step) {
    return (wefti_checkpoint_meta){.step = step,
                                   .data_position = step * 32,
                                   .seed = 0xfedcba9876543210u,
                                   .optimizer = "adamw",
                                   .settings = {fixture_settings, 2},
                                   .losses = fixture_losses,
                                   .loss_count = 2};
}

static inline wefti_checkpoint_options options_of(int64_t shard_bytes) {
    return (wefti_checkpoint_options){
        .shard_bytes = shard_bytes, .texts = fixture_texts, .text_count = 1};
}

/* Writes step `step` of a model. Its bytes are a function of the step, as for version `step`. */
static inline weft_status write_step(const char *dir, int64_t step, int64_t shard_bytes) {
    model m;
    model_make(&m, (uint64_t)step);
    wefti_checkpoint_meta meta = meta_of(step);
    wefti_checkpoint_options options = options_of(shard_bytes);
    return wefti_checkpoint_write(dir, &meta, m.tensors, MODEL_TENSORS, &options, NULL);
}

/* Asserts that every tensor of an open checkpoint has the bytes of version `version`. */
static inline void assert_model(const wefti_checkpoint *c, uint64_t version) {
    model m;
    model_make(&m, version);
    assert_int_equal(wefti_checkpoint_count(c), MODEL_TENSORS);
    for (int i = 0; i < MODEL_TENSORS; i++) {
        unsigned char got[MODEL_BYTES];
        const wefti_checkpoint_tensor *t = &m.tensors[i];
        ASSERT_OK(wefti_checkpoint_read(c, t->role, t->name, &t->desc, got));
        assert_memory_equal(got, t->data, (size_t)weft_desc_bytes(&t->desc));
    }
}

/* Asserts that all names under `dir` are steps, `latest` or the lock. */
static inline void assert_tidy(const char *dir) {
    char **names = NULL;
    int64_t count = 0;
    ASSERT_OK(wefti_dir_list(dir, &names, &count));
    for (int64_t i = 0; i < count; i++) {
        wefti_step_dir_kind kind;
        int64_t step;
        bool fine = !strcmp(names[i], "latest") || !strcmp(names[i], ".lock") ||
                    (wefti_step_parse(names[i], &kind, &step) && kind == WEFTI_STEP_COMMITTED);
        if (!fine) fail_msg("%s was left in %s", names[i], dir);
    }
    wefti_free(names);
}

/* Replaces the text `from`, up to the end of its line if `line`, in step 2's manifest, and corrects
 * the checksum. */
static inline void edit_manifest(const char *path, const char *from, const char *to, bool line) {
    size_t bytes = 0;
    char *text = (char *)get_file(path, &bytes);
    text[bytes] = 0;
    char *at = strstr(text, from);
    assert_non_null(at);
    size_t skip = line ? strcspn(at, "\n") + 1 : strlen(from), used;
    char *edited = malloc(bytes + strlen(to) + 64);
    used = (size_t)(at - text);
    memcpy(edited, text, used);
    memcpy(edited + used, to, strlen(to));
    used += strlen(to);
    size_t rest = bytes - (size_t)(at - text) - skip - WEFTI_MANIFEST_TAIL_BYTES;
    memcpy(edited + used, at + skip, rest);
    used += rest;
    wefti_manifest_tail(edited, (int64_t)used, edited + used);
    put_file(path, edited, used + WEFTI_MANIFEST_TAIL_BYTES);
    free(edited);
    free(text);
}

#endif
