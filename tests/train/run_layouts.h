/* Ways to split a training run of the tiny gpt2, as words of the command line. */
#ifndef WEFT_TESTS_RUN_LAYOUTS_H
#define WEFT_TESTS_RUN_LAYOUTS_H

#include "run_fixture.h"

typedef struct devices {
    const char *name;
    int count;
    const char *words[6];
} devices;

#define SPLITS                                                                                     \
    "parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: "       \
    "heads=tp}, {match: h.*.attn.c_proj, split: k=tp}, {match: h.*.mlp.c_fc, split: n0=tp}, "      \
    "{match: h.*.mlp.c_proj, split: k=tp}]"

static const devices layouts[] = {
    {"two", 2, {"parallel.devices=2"}},
    {"mesh", 4, {"parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi", SPLITS}},
    {"sharded",
     4,
     {"parallel.devices=4", "parallel.optimizer.level=3", "parallel.optimizer.threshold=0"}},
    {"eight",
     8,
     {"parallel.mesh={dp: 2, tp: 2}", "parallel.mode=semi", SPLITS, "parallel.pipeline.stages=2",
      "parallel.pipeline.microbatches=2", "parallel.optimizer.level=1"}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static inline void add_devices(words *w, const devices *d) {
    for (int i = 0; i < 6 && d->words[i]; i++) add_word(w, "%s", d->words[i]);
}

static inline words job_words(int steps) {
    words w = tiny_gpt2();
    add_words(&w, WITH("train.batch=8", "model.dropout=0.1", "train.optimizer.lr=0.003",
                       "device.threads=2"));
    add_word(&w, "train.steps=%d", steps);
    return w;
}

#endif
