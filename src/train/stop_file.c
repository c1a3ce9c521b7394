/* A file that asks for the end of a run, as MindSpore's OnRequestExit reads it: JSON with the
 * member GracefulExit. See wefti_training_file_asks in train/training.h. */
#include "base/io.h"
#include "base/json/json.h"
#include "train/training.h"

enum { FILE_BYTES = 1 << 16 };

static weft_status parse(const char *text, int64_t bytes, bool *out) {
    const wefti_json_limits limits = {.depth = 8, .members = 1000, .array_items = 1000};
    const wefti_json *root;
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_json_parse(arena, text, bytes, &limits, &root);
    if (status >= 0 && root->kind != WEFTI_JSON_OBJECT)
        status = WEFT_RAISE(WEFT_E_CORRUPT, "it holds no JSON object");
    const wefti_json *member = status >= 0 ? wefti_json_get(root, "GracefulExit") : NULL;
    if (member && member->kind == WEFTI_JSON_BOOL)
        *out = member->as.boolean;
    else if (member && member->kind == WEFTI_JSON_INT)
        *out = member->as.integer == 1;
    else if (member)
        status = WEFT_RAISE(WEFT_E_CORRUPT, "GracefulExit must be 0 or 1");
    wefti_arena_destroy(arena);
    return status;
}

/* *out: as long as there is no file, nothing is asked for. */
static weft_status read_file(const char *path, bool *out) {
    char *text;
    int64_t bytes;
    weft_status status = wefti_file_read(path, FILE_BYTES, &text, &bytes);
    if (status == WEFT_E_NOT_FOUND) {
        wefti_error_clear();
        return WEFT_OK;
    }
    WEFT_TRY(status);
    status = parse(text, bytes, out);
    wefti_free(text);
    return status;
}

bool wefti_training_file_asks(wefti_training *t) {
    const char *path = t->built->job->checkpoint.stop_file;
    bool asks = false;
    if (!*path || t->progress.step >= t->built->job->train.steps) return false; /* it ends anyway */
    weft_status status = read_file(path, &asks);
    if (status < 0 && !t->ranks.stop_file_is_bad)
        wefti_setup_note(&t->setup, "checkpoint.stop_file %s is ignored: %s", path,
                         weft_error_message());
    if (status < 0) wefti_error_clear();
    t->ranks.stop_file_is_bad = status < 0;
    return asks;
}
