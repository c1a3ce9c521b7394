/* Inside text generation: choosing a token, shared with its test. */
#ifndef WEFTI_INFER_GENERATE_H
#define WEFTI_INFER_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/generate.h"

/* plan.c: the plan of a generator, for weft_plan_destroy: the given one, or heads divided over
 * `devices`, with the rules of `tiers` (may be NULL) for lower tiers. *out NULL: one device, and no
 * such rules. */
weft_status wefti_generator_plan(const weft_model_config *config, const weft_plan *given,
                                 int devices, const weft_plan *tiers, weft_plan **out) WEFT_CHECKED;

/* A token that may be chosen, and its logit. */
typedef struct wefti_candidate {
    float logit;
    int32_t token;
} wefti_candidate;

/* Chooses one of `count` >= 1 tokens by their logits. Random number `position` of the seed decides.
 * Temperature 0 takes the largest logit; of equal logits, the lowest token. `seen` [count] marks
 * tokens that the repetition penalty applies to; NULL: none. `scratch` has room for `count`.
 * WEFT_E_NUMERIC names the first logit that is not finite. */
weft_status wefti_choose_token(const float *logits, int64_t count, const bool *seen,
                               const weft_generate_options *options, int64_t position,
                               wefti_candidate *scratch, int32_t *out) WEFT_CHECKED;

/* stop.c: looks for stop texts in a text that grows token by token. Zero-initialise. */
typedef struct wefti_stops {
    const char *const *texts;
    int64_t count, longest; /* bytes of the longest */
    char *tail;             /* the last bytes of the text, too few for any stop text */
    int64_t used, capacity;
} wefti_stops;
/* The texts are borrowed. `prompt` is the text so far. WEFT_E_ARG if a text is empty. */
weft_status wefti_stops_open(wefti_stops *stops, const char *const *texts, int64_t count,
                             const char *prompt, int64_t bytes) WEFT_CHECKED;
/* Appends the bytes of a token. *out is the number of the first stop text that ends in them; -1:
 * none. */
weft_status wefti_stops_add(wefti_stops *stops, const char *token, int64_t bytes,
                            int64_t *out) WEFT_CHECKED;
void wefti_stops_close(wefti_stops *stops);

#endif
