/* Inside text generation: choosing a token, shared with its test. */
#ifndef WEFTI_INFER_GENERATE_H
#define WEFTI_INFER_GENERATE_H

#include <stdint.h>

#include "weft/generate.h"

/* A token that may be chosen, and its logit. */
typedef struct wefti_candidate {
    float logit;
    int32_t token;
} wefti_candidate;

/* Chooses one of `count` >= 1 tokens by their logits. Random number `position` of the seed decides.
 * Temperature 0 takes the largest logit; of equal logits, the lowest token. `scratch` has room for
 * `count`. WEFT_E_NUMERIC names the first logit that is not finite. */
weft_status wefti_choose_token(const float *logits, int64_t count,
                               const weft_generate_options *options, int64_t position,
                               wefti_candidate *scratch, int32_t *out) WEFT_CHECKED;

#endif
