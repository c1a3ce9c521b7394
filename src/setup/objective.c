/* Training objectives: the next token, masked tokens, the class of an image. */
#include "setup/objective.h"

#include "setup/setup.h"

int64_t wefti_batch_targets(const wefti_built *m, const wefti_batch *b, int64_t first,
                            int64_t rows) {
    weft_desc target = weft_data_target(m->data);
    int64_t row = weft_desc_elems(&target), count = 0;
    for (int64_t i = first * row; i < (first + rows) * row; i++) count += b->target[i] != -1;
    return count;
}

static int64_t tokenizer_vocabulary(const weft_data *data, int64_t tokens) {
    (void)data;
    return tokens;
}

/* ---- masked tokens ---- */

/* Masks the prepared rows. */
static void mask_batch(const wefti_built *m, const wefti_batch *b, int64_t batch) {
    weft_desc in = weft_data_input(m->data);
    int64_t seq = in.shape[0];
    for (int64_t group = 0; group < b->valid; group += b->group) {
        int64_t first = group + b->own_begin, end = group + b->own_end;
        if (end > b->valid) end = b->valid;
        if (first >= end) continue;
        wefti_mask_tokens(m->job->train.seed, (b->number * batch + first) * seq,
                          (end - first) * seq, m->model.mask_token, m->model.config.vocab,
                          (int32_t *)b->input + first * seq, b->target + first * seq);
    }
}

/* Targets of rows [first, first + rows) of a training batch, on all ranks. */
static int64_t masked_in_rows(const wefti_built *m, const wefti_batch *b, int64_t first,
                              int64_t rows) {
    weft_desc in = weft_data_input(m->data);
    int64_t seq = in.shape[0];
    return wefti_masked_count(m->job->train.seed, (b->number * b->rows + first) * seq, rows * seq);
}

static int64_t masked_targets(const wefti_built *m, const wefti_batch *b) {
    return masked_in_rows(m, b, 0, b->rows);
}

/* Microbatches differ in their number of masked tokens, and the loss of a step is the mean over all
 * masked tokens. So each microbatch's mean loss is weighted by its share of the targets. */
static weft_status feed_share(wefti_built *m, const wefti_batch *b, int64_t first,
                              int64_t targets) {
    double own =
        (double)masked_in_rows(m, b, first, m->batch.micro) * (double)m->batch.microbatches;
    float share = targets ? (float)(own / (double)targets) : 1.0f;
    return weft_session_feed(m->session, 0, "share", &share, sizeof share);
}

/* Adds a mask token if the tokenizer has none. */
static int64_t masked_vocabulary(const weft_data *data, int64_t tokens) {
    return tokens > 0 && wefti_mask_token(data, tokens + 1) == tokens ? tokens + 1 : tokens;
}

static const wefti_objective next_token = {
    .is_language = true,
    .generates = true,
    .input = "tokens",
    .target = "targets",
    .unit = "tokens",
    .vocabulary = tokenizer_vocabulary,
};

static const wefti_objective masked_tokens = {
    .is_language = true,
    .input = "tokens",
    .target = "targets",
    .unit = "tokens",
    .prepare = mask_batch,
    .targets_of_step = masked_targets,
    .feed_weight = feed_share,
    .vocabulary = masked_vocabulary,
};

static const wefti_objective image_class = {
    .has_accuracy = true,
    .input = "image",
    .target = "label",
    .unit = "samples",
    .vocabulary = tokenizer_vocabulary,
};

const wefti_objective *wefti_objective_of(weft_family family) {
    if (family == WEFT_FAMILY_BERT) return &masked_tokens;
    return weft_family_is_language(family) ? &next_token : &image_class;
}
