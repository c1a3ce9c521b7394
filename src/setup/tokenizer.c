/* The tokenizer of a run: the one that the job names, the one of model.from, or bytes. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "interop/pretrained.h"
#include "setup/setup.h"

static bool reads_text(const weft_job *job) {
    weft_format format = job->data.format;
    return format == WEFT_FORMAT_TEXT || format == WEFT_FORMAT_JSONL || format == WEFT_FORMAT_RAW;
}

/* The files of the tokenizer that the job names: a directory, or a file and those beside it. */
static weft_status add_named(wefti_built *b, const char *path) {
    const char *slash = strrchr(path, '/');
    if (wefti_is_dir(path))
        return wefti_side_files_add(&b->setup->side, path, WEFTI_SIDE_TOKENIZER);
    if (strcmp(slash ? slash + 1 : path, "tokenizer.json") != 0)
        return wefti_side_files_add_file(&b->setup->side, path, "tokenizer.json");
    char *dir = slash ? wefti_format("%.*s/.", (int)(slash - path), path) : wefti_strdup(".");
    WEFT_REQUIRE(dir, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_side_files_add(&b->setup->side, dir, WEFTI_SIDE_TOKENIZER);
    wefti_free(dir);
    return status;
}

weft_status wefti_built_read_side(wefti_built *b) {
    const char *from = b->job->model.from, *named = b->job->data.tokenizer;
    const unsigned uses = WEFTI_SIDE_MODEL | (named[0] ? 0 : WEFTI_SIDE_TOKENIZER);
    if (b->setup->party.follows || b->setup->side.count) return WEFT_OK;
    if (from[0]) {
        weft_status status = wefti_pretrained_side_files(from, uses, &b->setup->side);
        if (status < 0) return wefti_prefix(status, "model.from");
    }
    const bool reads = reads_text(b->job) && named[0] && strcmp(named, "bytes") != 0;
    return reads ? add_named(b, named) : WEFT_OK;
}

weft_status wefti_built_share_side(wefti_built *b, weft_status status) {
    wefti_side_files *side = &b->setup->side;
    int64_t bytes = side->bytes;
    char *data = b->setup->party.follows ? NULL : side->data;
    status = wefti_party_share_text(&b->setup->party, status, &data, &bytes);
    if (!b->setup->party.follows || !data) return status;
    if (status >= 0) return wefti_side_files_take(side, data, bytes);
    wefti_free(data);
    return status;
}

/* wefti_special_read: a file beside model.from. Of its config.json the run has the ends. */
static weft_status read_side(void *context, const char *name, char **out, int64_t *out_bytes) {
    const wefti_built *b = context;
    const weft_model_config *c = &b->model.config;
    const char *text = wefti_side_files_find(&b->setup->side, name, out_bytes);
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
weft_status wefti_built_tokenizer(wefti_built *b, weft_tokenizer **out, wefti_ends *out_ends) {
    const char *from = b->job->model.from;
    int64_t bytes = 0;
    *out = NULL;
    if (!reads_text(b->job) || b->job->data.tokenizer[0] || !from[0]) return WEFT_OK;
    if (!b->setup->briefing) {
        wefti_side_files_free(&b->setup->side);
        WEFT_TRY(wefti_built_share_side(b, wefti_built_read_side(b)));
    }
    const char *text = wefti_side_files_find(&b->setup->side, "tokenizer.json", &bytes);
    if (!text) return WEFT_OK;
    weft_status status = wefti_tokenizer_parse("tokenizer.json", text, bytes, out);
    if (status >= 0) status = wefti_ends_of(*out, read_side, b, out_ends);
    if (status >= 0) return WEFT_OK;
    weft_tokenizer_close(*out);
    *out = NULL;
    return wefti_prefix(status, "the tokenizer of model.from, %s", from);
}

weft_status wefti_built_check_bytes(const wefti_built *b) {
    const weft_job *job = b->job;
    const weft_tokenizer *tokenizer = weft_data_tokenizer(b->data);
    int64_t vocab = b->model.config.vocab, bytes;
    if (!tokenizer || job->data.tokenizer[0] ||
        wefti_side_files_find(&b->setup->side, "tokenizer.json", &bytes))
        return WEFT_OK;
    WEFT_REQUIRE(
        vocab == 256 || vocab == b->model.objective->vocabulary(b->data, 256), WEFT_E_ARG,
        "data.tokenizer is not set%s%s%s, and the model's vocabulary of %lld tokens is not "
        "one of bytes: name a tokenizer.json, or set data.tokenizer: bytes to take every "
        "byte as a token",
        job->model.from[0] ? ", " : "", job->model.from,
        job->model.from[0] ? " holds no tokenizer.json" : "", (long long)vocab);
    return WEFT_OK;
}
