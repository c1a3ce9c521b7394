/* Shared parts of the tests of this folder: a checkpoint with optimizer states, and random strategy
 * files for it. */
#ifndef WEFT_TESTS_RESHARD_FIXTURE_H
#define WEFT_TESTS_RESHARD_FIXTURE_H

#include "../checkpoint/fixture.h"

#include "base/text.h"
#include "reshard/reshard.h"
#include "weft/checkpoint.h"

/* Sizes that 1, 2, 3, 4, 6 and 8 ranks divide, and one tensor that nobody can split. */
typedef struct shard_row {
    const char *name;
    wefti_checkpoint_role role;
    weft_desc desc;
    bool listed; /* strategy files name it; states follow their parameters */
} shard_row;

static const shard_row shard_rows[] = {
    {"emb.weight", WEFTI_CHECKPOINT_MODEL, {WEFT_F32, 2, {48, 24}}, true},
    {"emb.weight.m", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_F32, 2, {48, 24}}, false},
    {"emb.weight.v", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_F32, 2, {48, 24}}, false},
    {"fc.bias", WEFTI_CHECKPOINT_MODEL, {WEFT_F32, 1, {48}}, true},
    {"fc.bias.m", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_F32, 1, {48}}, false},
    {"fc.weight", WEFTI_CHECKPOINT_MODEL, {WEFT_BF16, 3, {24, 2, 48}}, true},
    {"fc.weight.m", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_F32, 3, {24, 2, 48}}, false},
    {"odd", WEFTI_CHECKPOINT_MODEL, {WEFT_F32, 2, {7, 5}}, false},
    {"scale", WEFTI_CHECKPOINT_MODEL, {WEFT_F64, 0, {0}}, false},
    {"steps", WEFTI_CHECKPOINT_OPTIMIZER, {WEFT_I64, 1, {1}}, false},
};
enum { SHARD_ROWS = sizeof shard_rows / sizeof *shard_rows, SHARD_BYTES = 24 * 2 * 48 * 4 };

/* Writes a run with one step under root/run. */
static inline void write_run(const fixture *f) {
    static unsigned char bytes[SHARD_ROWS][SHARD_BYTES];
    wefti_checkpoint_tensor tensors[SHARD_ROWS];
    for (int i = 0; i < SHARD_ROWS; i++) {
        for (uint64_t k = 0; k < SHARD_BYTES; k++)
            bytes[i][k] = (unsigned char)wefti_philox_u32(3, (uint64_t)i, k);
        tensors[i] = (wefti_checkpoint_tensor){.name = shard_rows[i].name,
                                               .role = shard_rows[i].role,
                                               .desc = shard_rows[i].desc,
                                               .data = bytes[i]};
    }
    wefti_checkpoint_meta meta = meta_of(7);
    wefti_checkpoint_options options = options_of(0);
    ASSERT_OK(wefti_dir_make(f->dir));
    ASSERT_OK(wefti_checkpoint_write(f->dir, &meta, tensors, SHARD_ROWS, &options, NULL));
}

/* Random numbers of a test. */
typedef struct random_source {
    uint64_t seed, at;
} random_source;

static inline int64_t pick(random_source *r, int64_t below) {
    return (int64_t)(wefti_philox_u32(r->seed, 11, r->at++) % (uint64_t)below);
}

/* Splits `devices` at random into factors for the replicas in front, for each dimension, and for
 * the replicas behind. Dimensions that cannot be divided get 1. */
static inline void random_layout(random_source *r, int64_t devices, const weft_desc *desc,
                                 wefti_strategy_layout *out) {
    int64_t factor[WEFT_MAX_RANK + 2] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int rank = desc->rank;
    for (int64_t left = devices, prime; left > 1; left /= prime) {
        for (prime = 2; left % prime; prime++) {
        }
        int to = (int)pick(r, rank + 2);
        bool fits = to == 0 || to == rank + 1;
        if (!fits) fits = desc->shape[to - 1] % (factor[to] * prime) == 0;
        factor[fits ? to : 0] *= prime;
    }
    out->rank = rank;
    out->axes = rank + 2;
    for (int a = 0; a < out->axes; a++) out->matrix[a] = factor[a];
    for (int d = 0; d < rank; d++) out->map[d] = factor[d + 1] > 1 || pick(r, 2) ? rank - d : -1;
    /* optimizer parallelism among the replicas in front, or among all of them */
    const int64_t behind = devices / factor[0];
    const int64_t rows = rank ? desc->shape[0] / factor[1] : 1;
    out->size = out->step = 0;
    if (factor[0] > 1 && rank && pick(r, 2) && rows % factor[0] == 0 && factor[rank + 1] == 1) {
        out->size = factor[0];
        out->step = behind;
    }
    out->shape_rank = pick(r, 2) ? rank : -1;
    for (int d = 0; d < rank; d++) out->shape[d] = desc->shape[d];
}

/* Writes a random strategy file for `ranks` ranks in `stages` stages, in either form. */
static inline void random_strategy(random_source *r, int ranks, int stages, const char *path) {
    wefti_layouts *l = NULL, *parsed = NULL;
    char *text = NULL;
    int64_t bytes = 0;
    ASSERT_OK(wefti_layouts_create("random", &l));
    for (int i = 0, listed = 0; i < SHARD_ROWS; i++) {
        char name[64];
        wefti_strategy_layout x = {0};
        if (!shard_rows[i].listed) continue;
        const int stage = listed < stages ? listed : (int)pick(r, stages);
        listed++;
        random_layout(r, ranks / stages, &shard_rows[i].desc, &x);
        (void)snprintf(name, sizeof name, stages > 1 ? "%d-%s" : "%.0d%s", stages > 1 ? stage : 0,
                       shard_rows[i].name);
        x.name = name;
        ASSERT_OK(wefti_strategy_add(l, &x));
    }
    ASSERT_OK(wefti_layouts_finish(l));
    l->stages = stages;
    l->ranks = ranks;
    if (pick(r, 2))
        ASSERT_OK(wefti_layouts_print_json(l, &text, &bytes));
    else
        ASSERT_OK(wefti_layouts_print_protobuf(l, &text, &bytes));
    ASSERT_OK(wefti_layouts_parse("printed", text, bytes, &parsed));
    put_file(path, text, (size_t)bytes);
    wefti_free(text);
    wefti_layouts_close(parsed);
    wefti_layouts_close(l);
}

/* The digest of a checkpoint, as text. */
static inline void digest_text(const char *path, const char *layouts, char out[32]) {
    char *text = NULL;
    ASSERT_OK(weft_checkpoint_digest(path, layouts, 1, &text));
    const char *at = strstr(text, "\"digest\": \"");
    assert_non_null(at);
    (void)snprintf(out, 32, "%.18s", at + 11);
    weft_checkpoint_text_free(text);
}

static inline weft_status reshard(const char *source, const char *destination, const char *from,
                                  const char *to) {
    const weft_checkpoint_reshard_options o =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from, .to = to);
    char *text = NULL;
    weft_status status = weft_checkpoint_reshard(source, destination, &o, 1, &text);
    weft_checkpoint_text_free(text);
    return status;
}

#endif
