/* What the tests of models share: tiny configurations of every family, data, statuses. */
#ifndef MODEL_FIXTURE_H
#define MODEL_FIXTURE_H

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/family.h"
#include "weft/model.h"
#include "weft/session.h"

enum { TINY_VOCAB = 11, TINY_CONTEXT = 6, TINY_CLASSES = 5 };

/* llama and the families with the same structure. */
static inline bool is_rotary(weft_family family) {
    return wefti_family_has(family, WEFTI_ROTARY);
}

static inline weft_model_config tiny(weft_family family) {
    weft_model_config c = {.family = family};
    if (weft_family_is_language(family)) {
        c.layers = 2, c.hidden = 8, c.heads = 2, c.ffn = 12;
        c.context = TINY_CONTEXT, c.vocab = TINY_VOCAB;
        if (is_rotary(family)) c.hidden = 16, c.heads = 4, c.kv_heads = 2;
        if (wefti_family_has(family, WEFTI_EXPERTS))
            c.experts = 4, c.experts_per_token = family == WEFT_FAMILY_MIXTRAL ? 2 : 1;
        return c;
    }
    c.classes = TINY_CLASSES;
    c.image[0] = 2, c.image[1] = 12, c.image[2] = 12;
    if (family == WEFT_FAMILY_VIT) c.layers = 2, c.hidden = 8, c.heads = 2, c.ffn = 12, c.patch = 4;
    if (family == WEFT_FAMILY_MLP) c.layers = 2, c.hidden = 16;
    if (family == WEFT_FAMILY_RESNET18 || family == WEFT_FAMILY_RESNET50) c.hidden = 4;
    return c;
}

/* llama with all options: heads that are not hidden / heads wide, biases, YaRN. */
static inline weft_model_config tiny_full(void) {
    weft_model_config c = tiny(WEFT_FAMILY_LLAMA);
    c.head_dim = 6;
    c.attention_bias = c.mlp_bias = true;
    c.rope_theta = 100;
    c.rope_scaling =
        (weft_rope_scaling){.factor = 4, .original_context = 32, .beta_fast = 4, .beta_slow = 1};
    c.attention_factor = 1.2;
    return c;
}

static inline weft_graph *built(const weft_model_config *c, weft_model_use use, int64_t batch,
                                int64_t seq, weft_dtype dtype) {
    weft_graph *g;
    ASSERT_OK(weft_model_build(c, use, batch, seq, dtype, &g));
    return g;
}

/* A small generator of its own (Marsaglia's xorshift), so that data do not depend on the library.
 */
static inline double uniform(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) / 9007199254740992.0;
}

/* Feed every input of a program: token ids and labels in range, images in [-1, 1). */
static inline void feed_all(weft_session *s, int program, const weft_model_config *c,
                            uint64_t seed) {
    for (int i = 0; i < weft_session_tensors(s, program); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, program, i, &t));
        if (t.role != WEFT_ROLE_INPUT) continue;
        int64_t count = weft_desc_elems(&t.desc);
        int64_t range = weft_family_is_language(c->family) ? c->vocab : c->classes;
        void *data = malloc((size_t)t.bytes);
        assert_non_null(data);
        for (int64_t k = 0; k < count; k++) {
            double u = uniform(&seed);
            double x = t.desc.rank ? 2 * u - 1 : 1; /* the share of the only microbatch */
            if (t.desc.dtype == WEFT_F64)
                ((double *)data)[k] = x;
            else if (t.desc.dtype == WEFT_F32)
                ((float *)data)[k] = (float)x;
            else
                ((int32_t *)data)[k] = (int32_t)(u * (double)range);
        }
        ASSERT_OK(weft_session_feed(s, program, t.name, data, (size_t)t.bytes));
        free(data);
    }
}

#endif
