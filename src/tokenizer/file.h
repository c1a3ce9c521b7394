/* What the parts of the reader of tokenizer.json share: the file as it is read, and its errors. */
#ifndef WEFTI_TOKENIZER_FILE_H
#define WEFTI_TOKENIZER_FILE_H

#include <string.h>

#include "base/json/json.h"
#include "tokenizer/tokenizer.h"

typedef struct wefti_tokenizer_file {
    const char *path;
    weft_tokenizer *t;
    const wefti_json *root;
    wefti_map names; /* model.vocab: names as in the file -> numbers */
    wefti_normal_step *normal;
    wefti_split_step *split;
} wefti_tokenizer_file;

#define DAMAGED(l, ...) wefti_prefix(WEFT_RAISE(WEFT_E_CORRUPT, __VA_ARGS__), "%s", (l)->path)
#define UNREADABLE(l, ...)                                                                         \
    wefti_prefix(WEFT_RAISE(WEFT_E_NO_IMPL, __VA_ARGS__), "%s: weft does not read", (l)->path)

/* A member of an object; NULL if it is missing or null. */
static inline const wefti_json *get(const wefti_json *object, const char *key) {
    const wefti_json *value = wefti_json_get(object, key);
    return value && value->kind == WEFTI_JSON_NULL ? NULL : value;
}

static inline bool is_kind(const wefti_json *value, wefti_json_kind kind) {
    return value && value->kind == kind;
}

/* The text of a value, or NULL. */
static inline const char *string_of(const wefti_json *value) {
    return is_kind(value, WEFTI_JSON_TEXT) ? value->as.text : NULL;
}

static inline const char *text_of(const wefti_json *object, const char *key) {
    const char *text = string_of(get(object, key));
    return text ? text : "";
}

static inline bool flag_of(const wefti_json *object, const char *key, bool missing) {
    const wefti_json *value = get(object, key);
    return value ? value->kind == WEFTI_JSON_BOOL && value->as.boolean : missing;
}

static inline int64_t int_of(const wefti_json *value, int64_t missing) {
    return is_kind(value, WEFTI_JSON_INT) ? value->as.integer : missing;
}

static inline double real_of(const wefti_json *value) {
    return is_kind(value, WEFTI_JSON_REAL) ? value->as.real : (double)int_of(value, 0);
}

/* Elements of a list; 0 for anything else. */
static inline int32_t count_of(const wefti_json *list) {
    return is_kind(list, WEFTI_JSON_ARRAY) ? list->count : 0;
}

/* Iterates over the elements of a list; not at all over anything else. */
#define ITEMS(item, list)                                                                          \
    for (const wefti_json *item = count_of(list) ? (list)->as.child : NULL; item; item = item->next)

/* Element `index` of a short list, or NULL. */
static inline const wefti_json *item_of(const wefti_json *list, int32_t index) {
    ITEMS(item, list) if (!index--) return item;
    return NULL;
}

static inline bool is(const wefti_json *object, const char *type) {
    return !strcmp(text_of(object, "type"), type);
}

/* Copies bytes into the tokenizer's arena, with a NUL behind them. */
weft_status wefti_tokenizer_keep(wefti_tokenizer_file *l, const void *data, int64_t bytes,
                                 wefti_bytes *out) WEFT_CHECKED;
/* The number of the token `name`, at least 0 and below `limit`. */
weft_status wefti_tokenizer_number(wefti_tokenizer_file *l, const wefti_json *value,
                                   const char *name, int64_t limit, int32_t *out) WEFT_CHECKED;
/* A member {"String": text} or {"Regex": pattern}; NULL for an empty text, which matches nothing.
 */
weft_status wefti_tokenizer_pattern(wefti_tokenizer_file *l, const wefti_json *part,
                                    const wefti_regex **out) WEFT_CHECKED;

/* The parts of a file, in the order of reading: read_steps.c the first two, vocabulary.c the model
 * and the added tokens, decode.c the decoder, which needs all tokens. */
weft_status wefti_tokenizer_read_splits(wefti_tokenizer_file *l,
                                        const wefti_json *part) WEFT_CHECKED;
weft_status wefti_tokenizer_read_normal(wefti_tokenizer_file *l,
                                        const wefti_json *part) WEFT_CHECKED;
weft_status wefti_tokenizer_read_model(wefti_tokenizer_file *l,
                                       const wefti_json *model) WEFT_CHECKED;
weft_status wefti_tokenizer_read_added(wefti_tokenizer_file *l,
                                       const wefti_json *list) WEFT_CHECKED;
weft_status wefti_tokenizer_read_decoder(wefti_tokenizer_file *l,
                                         const wefti_json *part) WEFT_CHECKED;

#endif
