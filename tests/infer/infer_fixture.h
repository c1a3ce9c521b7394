/* Models of every family, trained for three steps, and ways to split them. */
#ifndef WEFT_TESTS_INFER_FIXTURE_H
#define WEFT_TESTS_INFER_FIXTURE_H

#include "train/run_fixture.h"
#include "session/world_fixture.h"

#include "weft/infer.h"

/* ---- models ---- */

typedef struct family {
    const char *name, *words[6];
    bool language, experts;
    const char *tensor_parallel; /* strategies; NULL: a search finds some */
} family;

#define GPT2_SPLITS                                                                                \
    "parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: "       \
    "heads=tp}, {match: h.*.attn.c_proj, split: k=tp}]"
#define LLAMA_SPLITS                                                                               \
    "parallel.strategies=[{match: '*.self_attn.[qkv]_proj', split: n0=tp}, {match: "               \
    "'*.self_attn:attention', split: heads=tp}, {match: '*.self_attn.o_proj', split: k=tp}]"
#define EXPERT_SPLITS                                                                              \
    "parallel.strategies=[{match: '*moe.experts.*', split: experts=dp}, {match: "                  \
    "'*moe:moe_dispatch', split: experts=dp}, {match: '*moe:moe_combine', split: experts=dp}]"

static const family families[] = {
    {"gpt2", {NULL}, true, false, GPT2_SPLITS},
    {"llama", {"model.kv_heads=2"}, true, false, LLAMA_SPLITS},
    {"mistral", {"model.window=5"}, true, false, LLAMA_SPLITS},
    {"qwen2", {NULL}, true, false, LLAMA_SPLITS},
    {"bert", {NULL}, true, false, NULL},
    {"gpt2-moe", {"model.experts=4"}, true, true, GPT2_SPLITS},
    {"mixtral", {"model.experts=4"}, true, true, LLAMA_SPLITS},
    {"vit",
     {"model.patch=4", "model.layers=2", "model.hidden=16", "model.heads=2"},
     false,
     false,
     NULL},
    {"mlp", {"model.hidden=16"}, false, false, NULL},
    {"lenet", {NULL}, false, false, NULL},
    {"resnet18", {"model.hidden=4"}, false, false, NULL},
    {"resnet50", {"model.hidden=4"}, false, false, NULL},
};
enum { FAMILY_COUNT = sizeof families / sizeof *families };

/* 40 images of 1 x 12 x 12 for lenet, which needs them larger. */
static inline const char *large_image_file(void) {
    enum { IMAGES = 40, SIDE = 12 };
    buffer images = {.count = 0}, labels = {.count = 0};
    put_big(&images, 0x803, 4);
    put_big(&labels, 0x801, 4);
    put_big(&images, IMAGES, 4);
    put_big(&labels, IMAGES, 4);
    for (int i = 0; i < 2; i++) put_big(&images, SIDE, 4);
    for (uint64_t i = 0; i < IMAGES; i++) put_big(&labels, i % 3, 1);
    for (uint64_t i = 0; i < IMAGES * SIDE * SIDE; i++)
        put_big(&images, wefti_philox_u32(5, 1, i) % 256, 1);
    (void)put_file("large-labels-idx1-ubyte", labels.bytes, (size_t)labels.count);
    return put_file("large-images-idx3-ubyte", images.bytes, (size_t)images.count);
}

static inline words words_of(const family *f) {
    words w = {.count = 0};
    add_word(&w, "model.family=%s", f->name);
    for (int i = 0; i < 6 && f->words[i]; i++) add_word(&w, "%s", f->words[i]);
    if (f->language)
        add_words(&w,
                  WITH("model.layers=2", "model.hidden=16", "model.heads=2", "model.context=8"));
    add_word(&w, "data.path=%s",
             f->language                 ? text_file()
             : !strcmp(f->name, "lenet") ? large_image_file()
                                         : image_file());
    add_words(&w, WITH("data.validation=0.3", "train.steps=3", "train.batch=4",
                       "train.optimizer.lr=0.003", "train.eval_every=0", "train.eval_batches=0",
                       "device.threads=1"));
    return w;
}

/* The directory of a run of three steps on one device, and its own validation. */
static inline const char *train(const family *f, record *r) {
    words w = words_of(f);
    add_word(&w, "%s", dir_word(f->name));
    ASSERT_OK(run_words(&w, r));
    return in_root(f->name);
}

/* ---- plans ---- */

typedef struct split {
    const char *name, *words[6];
    int devices;
} split;

static const split plans[] = {
    {"3 replicas, uneven", {"parallel.devices=3"}, 3},
    {"2 replicas at level 3",
     {"parallel.devices=2", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0"},
     2},
    {"2 stages, microbatches",
     {"parallel.devices=2", "parallel.pipeline.stages=2", "parallel.pipeline.microbatches=2"},
     2},
    {"found by a search",
     {"parallel.devices=4", "parallel.mode=auto", "parallel.search=recursive"},
     4},
    {"2 stages of 2 replicas in copies",
     {"parallel.devices=4", "parallel.pipeline.stages=2", "parallel.copies=2", "train.batch=16"},
     4},
};
enum { PLAN_COUNT = sizeof plans / sizeof *plans };

static inline weft_job *job_on(const family *f, const split *p) {
    words w = words_of(f);
    for (int i = 0; p && i < 6 && p->words[i]; i++) add_word(&w, "%s", p->words[i]);
    return job_of(&w);
}

/* Of language models: the tokens of each sample are divided. */
static inline split sequence_split(void) {
    return (split){
        "2 parts of each sequence",
        {"parallel.mesh={sp: 2}", "parallel.mode=semi",
         "parallel.tensors=[{match: tokens, layout: [-, sp]}, {match: targets, layout: [-, sp]}]"},
        2};
}

/* Splits of one family: over heads, over experts. */
static inline split tensor_split(const family *f) {
    return (split){"2 data 2 tensor",
                   {"parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi", f->tensor_parallel},
                   4};
}
static inline split expert_split(void) {
    return (split){"2 experts", {"parallel.mesh={dp: 2}", "parallel.mode=semi", EXPERT_SPLITS}, 2};
}

static inline bool near(double a, double b) {
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fabs(b);
}

#endif
