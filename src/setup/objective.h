/* The training objective: how a model's batches are prepared, weighted and judged. */
#ifndef WEFTI_SETUP_OBJECTIVE_H
#define WEFTI_SETUP_OBJECTIVE_H

#include "data/feed.h"
#include "weft/model.h"
#include "weft/session.h"

typedef struct wefti_built wefti_built;

typedef struct wefti_objective {
    bool is_language;           /* samples are sequences of tokens, else images with labels */
    bool generates;             /* the model writes text, and needs the tokens that end one */
    bool has_accuracy;          /* validation counts rows with the largest logit at their label */
    const char *input, *target; /* names of the graph's inputs */
    const char *unit;           /* of throughput */
    /* Changes the prepared rows of a batch into inputs and targets, in place. `batch`: samples of a
     * batch of that feed. NULL: they are used as they are. */
    void (*prepare)(const wefti_built *m, const wefti_batch *b, int64_t batch);
    /* Counting targets of a step. NULL: all microbatches have equally many, and no weight. */
    int64_t (*targets_of_step)(const wefti_built *m, const wefti_batch *b);
    /* Feeds the weight of the microbatch from row `first` on, in a step with that many targets.
     * NULL exactly if targets_of_step is. */
    weft_status (*feed_weight)(wefti_built *m, const wefti_batch *b, int64_t first,
                               int64_t targets);
    /* The size of the vocabulary for a tokenizer with `tokens` tokens. */
    int64_t (*vocabulary)(const weft_data *data, int64_t tokens);
} wefti_objective;

const wefti_objective *wefti_objective_of(weft_family family);

/* Counting targets in rows [first, first + rows) of a batch: targets other than -1. */
int64_t wefti_batch_targets(const wefti_built *m, const wefti_batch *b, int64_t first,
                            int64_t rows);

/* Masked language models (masking.c). The mask token of the tokenizer, else the last token. */
int32_t wefti_mask_token(const weft_data *data, int64_t vocab);
/* How many of `count` positions become targets. */
int64_t wefti_masked_count(uint64_t seed, int64_t first_position, int64_t count);
/* Masks `count` tokens in place and overwrites `targets`. */
void wefti_mask_tokens(uint64_t seed, int64_t first_position, int64_t count, int32_t mask_token,
                       int64_t vocab, int32_t *tokens, int32_t *targets);

#endif
