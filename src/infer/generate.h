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

/* Choose one of `count` >= 1 tokens by their logits. Number `position` of the seed's random numbers
 * decides; temperature 0 takes the largest logit, the lowest token among equals. `scratch` has room
 * for `count`. WEFT_E_NUMERIC naming the first logit that is not finite. */
weft_status wefti_choose_token(const float *logits, int64_t count,
                               const weft_generate_options *options, int64_t position,
                               wefti_candidate *scratch, int32_t *out) WEFT_CHECKED;

#endif
