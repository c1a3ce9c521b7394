/* Language models with random weights on disk, and texts that they write. */
#ifndef WEFT_TESTS_GENERATE_FIXTURE_H
#define WEFT_TESTS_GENERATE_FIXTURE_H

#include "data/data_fixture.h"

#include "infer/generate.h"
#include "infer/saved_model.h"
#include "models/family.h"
#include "session/session.h"

/* ---- models with random weights on disk ---- */

static inline weft_model_config config_of(weft_family family, int64_t context, int64_t vocab) {
    const bool rotary = wefti_family_has(family, WEFTI_ROTARY) && family != WEFT_FAMILY_MISTRAL;
    weft_model_config c = {.family = family,
                           .layers = 2,
                           .hidden = 32,
                           .heads = 4,
                           .kv_heads = rotary ? 2 : 0,
                           .ffn = 48,
                           .context = context,
                           .vocab = vocab,
                           .tied = true};
    if (wefti_family_has(family, WEFTI_EXPERTS)) c.experts = 4;
    ASSERT_OK(weft_model_complete(&c));
    return c;
}

/* A session that computes the logits of a whole context, with weights large enough that tokens
 * differ much. */
static inline weft_session *reference_of(const weft_model_config *c, weft_graph **out_graph) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.seed = 3;
    o.threads = 1;
    ASSERT_OK(weft_model_build(c, WEFT_USE_LOGITS, 1, 0, WEFT_F32, out_graph));
    ASSERT_OK(weft_session_create(*out_graph, &o, &s));
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM || info.desc.rank < 2) continue;
        float *data = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(s, 0, info.name, data, (size_t)info.bytes));
        for (int64_t i = 0; i < info.bytes / 4; i++) data[i] *= 10;
        ASSERT_OK(weft_session_write(s, 0, info.name, data, (size_t)info.bytes));
        free(data);
    }
    return s;
}

static inline void save(weft_session *s, const weft_model_config *c, const char *run, int64_t step,
                        const char *tokenizer) {
    ASSERT_OK(saved_model_write(s, c, run, step, tokenizer));
}

/* Step 1 of a run with this model. Returns its directory. */
static inline const char *saved_run(const weft_model_config *c, const char *name) {
    weft_graph *graph;
    weft_session *s = reference_of(c, &graph);
    save(s, c, in_root(name), 1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return in_root(name);
}

/* ---- texts ---- */

typedef struct text {
    char data[4096];
    int64_t used;
} text;

static inline void take(void *context, const char *bytes, int64_t count) {
    text *t = context;
    assert_true(t->used + count <= (int64_t)sizeof t->data);
    memcpy(t->data + t->used, bytes, (size_t)count);
    t->used += count;
}

static inline weft_generation run(weft_generator *g, const char *prompt, int64_t bytes,
                                  weft_generate_options o, text *out) {
    weft_generation done;
    out->used = 0;
    o.context = out;
    o.text = take;
    ASSERT_OK(weft_generator_run(g, prompt, bytes, &o, &done));
    return done;
}

#endif
