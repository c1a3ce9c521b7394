/* The tokenizer of a run: the one that the job names, the one of model.from, or bytes. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "interop/pretrained.h"
#include "train/training.h"

bool wefti_training_reads_text(const weft_job *job) {
    weft_format format = job->data.format;
    return format == WEFT_FORMAT_TEXT || format == WEFT_FORMAT_JSONL || format == WEFT_FORMAT_RAW;
}

/* Rank 0's text of the tokenizer, for all ranks: *bytes and t->saving.tokenizer. */
static weft_status share_tokenizer(wefti_training *t, weft_status status, int64_t *bytes) {
    WEFT_TRY(wefti_training_broadcast(t, status, bytes, sizeof *bytes));
    if (!t->ranks.agreement || *bytes == 0) return WEFT_OK;
    status = WEFT_OK;
    if (t->ranks.follows && !(t->saving.tokenizer = wefti_alloc((size_t)*bytes + 1)))
        status =
            WEFT_RAISE(WEFT_E_NOMEM, "no memory for a tokenizer of %lld bytes", (long long)*bytes);
    WEFT_TRY(wefti_agree(t->ranks.agreement, status));
    return wefti_training_broadcast(t, WEFT_OK, t->saving.tokenizer, (size_t)*bytes);
}

/* A newcomer has the text already. */
static weft_status briefed_tokenizer(const wefti_training *t, weft_tokenizer **out) {
    const char *text = t->saving.tokenizer;
    return text ? wefti_tokenizer_parse("tokenizer.json", text, (int64_t)strlen(text), out)
                : WEFT_OK;
}

/* Rank 0 reads it, as it reads the model. Checkpoints of the run hold its text. */
weft_status wefti_training_tokenizer(wefti_training *t, weft_tokenizer **out) {
    const char *from = t->job->model.from;
    int64_t bytes = 0;
    weft_status status = WEFT_OK;
    *out = NULL;
    if (!wefti_training_reads_text(t->job) || t->job->data.tokenizer[0] || !from[0]) return WEFT_OK;
    if (t->briefing) return briefed_tokenizer(t, out);
    wefti_free(t->saving.tokenizer);
    t->saving.tokenizer = NULL;
    if (!t->ranks.follows) status = wefti_pretrained_tokenizer(from, &t->saving.tokenizer, &bytes);
    if (status < 0) (void)wefti_prefix(status, "model.from");
    WEFT_TRY(share_tokenizer(t, status, &bytes));
    if (bytes == 0) return WEFT_OK;
    status = wefti_tokenizer_parse("tokenizer.json", t->saving.tokenizer, bytes, out);
    return status < 0 ? wefti_prefix(status, "the tokenizer of model.from, %s", from) : WEFT_OK;
}

weft_status wefti_training_check_bytes(const wefti_training *t) {
    const weft_job *job = t->job;
    const weft_tokenizer *tokenizer = weft_data_tokenizer(t->data);
    int64_t vocab = t->model.config.vocab;
    if (!tokenizer || job->data.tokenizer[0] || t->saving.tokenizer) return WEFT_OK;
    WEFT_REQUIRE(
        vocab == 256 || vocab == t->model.objective->vocabulary(t->data, 256), WEFT_E_ARG,
        "data.tokenizer is not set%s%s%s, and the model's vocabulary of %lld tokens is not "
        "one of bytes: name a tokenizer.json, or set data.tokenizer: bytes to take every "
        "byte as a token",
        job->model.from[0] ? ", " : "", job->model.from,
        job->model.from[0] ? " holds no tokenizer.json" : "", (long long)vocab);
    return WEFT_OK;
}
