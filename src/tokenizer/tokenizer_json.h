/* What the parts of the parser of tokenizer.json share: the file as it is read, and its errors.
 * tokenizer_json.c reads the steps of the pipeline, tokenizer_model.c the model and its tokens. */
#ifndef WEFTI_TOKENIZER_JSON_H
#define WEFTI_TOKENIZER_JSON_H

#include <jansson.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

typedef struct wefti_tokenizer_file {
    const char *path;
    weft_tokenizer *t;
    json_t *root;
} wefti_tokenizer_file;

#define DAMAGED(l, ...) wefti_prefix(WEFT_RAISE(WEFT_E_CORRUPT, __VA_ARGS__), "%s", (l)->path)
#define UNREADABLE(l, ...)                                                                         \
    wefti_prefix(WEFT_RAISE(WEFT_E_NO_IMPL, __VA_ARGS__), "%s: weft does not read", (l)->path)

/* json_object_get that takes a missing key and null as the same. */
static inline json_t *get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static inline const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(get(object, key));
    return text ? text : "";
}

static inline bool flag_of(const json_t *object, const char *key, bool missing) {
    json_t *value = get(object, key);
    return value ? json_is_true(value) : missing;
}

static inline bool is(const json_t *object, const char *type) {
    return !strcmp(text_of(object, "type"), type);
}

/* Copies bytes into the tokenizer's arena. */
weft_status wefti_tokenizer_keep(wefti_tokenizer_file *l, const void *data, int64_t bytes,
                                 wefti_bytes *out) WEFT_CHECKED;
/* The number of the token `name`, at least 0 and below `limit`. */
weft_status wefti_tokenizer_number(wefti_tokenizer_file *l, const json_t *value, const char *name,
                                   int64_t limit, int32_t *out) WEFT_CHECKED;

/* tokenizer_model.c, in this order, when the kind of the tokenizer is known: the vocabulary with
 * its merges or word pieces, the added tokens, and what pieces need. */
weft_status wefti_tokenizer_read_model(wefti_tokenizer_file *l, const json_t *model) WEFT_CHECKED;
weft_status wefti_tokenizer_read_added(wefti_tokenizer_file *l, const json_t *list) WEFT_CHECKED;
weft_status wefti_tokenizer_finish_pieces(wefti_tokenizer_file *l) WEFT_CHECKED;

#endif
