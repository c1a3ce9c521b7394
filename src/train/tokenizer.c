/* The tokenizer of a run: the one that the job names, the one of model.from, or bytes. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "interop/pretrained.h"
#include "train/training.h"

bool wefti_training_reads_text(const weft_job *job) {
    weft_format format = job->data.format;
    return format == WEFT_FORMAT_TEXT || format == WEFT_FORMAT_JSONL || format == WEFT_FORMAT_RAW;
}

/* The files of the tokenizer that the job names: a directory, or a file and those beside it. */
static weft_status add_named(wefti_training *t, const char *path) {
    const char *slash = strrchr(path, '/');
    if (wefti_is_dir(path))
        return wefti_side_files_add(&t->saving.side, path, WEFTI_SIDE_TOKENIZER);
    if (strcmp(slash ? slash + 1 : path, "tokenizer.json") != 0)
        return wefti_side_files_add_file(&t->saving.side, path, "tokenizer.json");
    char *dir = slash ? wefti_format("%.*s/.", (int)(slash - path), path) : wefti_strdup(".");
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_side_files_add(&t->saving.side, dir, WEFTI_SIDE_TOKENIZER);
    wefti_free(dir);
    return status;
}

weft_status wefti_training_read_side(wefti_training *t) {
    const char *from = t->job->model.from, *named = t->job->data.tokenizer;
    const unsigned uses = WEFTI_SIDE_MODEL | (named[0] ? 0 : WEFTI_SIDE_TOKENIZER);
    if (t->party.follows || t->saving.side.count) return WEFT_OK;
    if (from[0]) {
        weft_status status = wefti_pretrained_side_files(from, uses, &t->saving.side);
        if (status < 0) return wefti_prefix(status, "model.from");
    }
    const bool reads = wefti_training_reads_text(t->job) && named[0] && strcmp(named, "bytes") != 0;
    return reads ? add_named(t, named) : WEFT_OK;
}

weft_status wefti_training_share_side(wefti_training *t, weft_status status) {
    wefti_side_files *side = &t->saving.side;
    int64_t bytes = side->bytes;
    char *data = t->party.follows ? NULL : side->data;
    status = wefti_party_share_text(&t->party, status, &data, &bytes);
    if (!t->party.follows || !data) return status;
    if (status >= 0) return wefti_side_files_take(side, data, bytes);
    wefti_free(data);
    return status;
}

/* wefti_special_read: a file beside model.from. Of its config.json the run has the ends. */
static weft_status read_side(void *context, const char *name, char **out, int64_t *out_bytes) {
    const wefti_training *t = context;
    const weft_model_config *c = &t->model.config;
    const char *text = wefti_side_files_find(&t->saving.side, name, out_bytes);
    const bool ends = !text && !strcmp(name, "config.json") && c->end_count > 0;
    if (!text && !ends) return WEFT_OK;
    *out =
        text ? wefti_strdup(text) : wefti_format("{\"eos_token_id\": %lld}", (long long)c->ends[0]);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for %s", name);
    *out_bytes = (int64_t)strlen(*out);
    return WEFT_OK;
}

/* Rank 0 reads it, as it reads the model. Checkpoints of the run hold its text. A newcomer has it
 * already. */
weft_status wefti_training_tokenizer(wefti_training *t, weft_tokenizer **out,
                                     wefti_ends *out_ends) {
    const char *from = t->job->model.from;
    int64_t bytes = 0;
    *out = NULL;
    if (!wefti_training_reads_text(t->job) || t->job->data.tokenizer[0] || !from[0]) return WEFT_OK;
    if (!t->briefing) {
        wefti_side_files_free(&t->saving.side);
        WEFT_TRY(wefti_training_share_side(t, wefti_training_read_side(t)));
    }
    const char *text = wefti_side_files_find(&t->saving.side, "tokenizer.json", &bytes);
    if (!text) return WEFT_OK;
    weft_status status = wefti_tokenizer_parse("tokenizer.json", text, bytes, out);
    if (status >= 0) status = wefti_ends_of(*out, read_side, t, out_ends);
    return status < 0 ? wefti_prefix(status, "the tokenizer of model.from, %s", from) : WEFT_OK;
}

weft_status wefti_training_check_bytes(const wefti_training *t) {
    const weft_job *job = t->job;
    const weft_tokenizer *tokenizer = weft_data_tokenizer(t->data);
    int64_t vocab = t->model.config.vocab, bytes;
    if (!tokenizer || job->data.tokenizer[0] ||
        wefti_side_files_find(&t->saving.side, "tokenizer.json", &bytes))
        return WEFT_OK;
    WEFT_REQUIRE(
        vocab == 256 || vocab == t->model.objective->vocabulary(t->data, 256), WEFT_E_ARG,
        "data.tokenizer is not set%s%s%s, and the model's vocabulary of %lld tokens is not "
        "one of bytes: name a tokenizer.json, or set data.tokenizer: bytes to take every "
        "byte as a token",
        job->model.from[0] ? ", " : "", job->model.from,
        job->model.from[0] ? " holds no tokenizer.json" : "", (long long)vocab);
    return WEFT_OK;
}
