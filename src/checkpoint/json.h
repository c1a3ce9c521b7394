/* JSON from strangers, with limits before anything is allocated, and JSON for others to read.
 *
 * Parsing is jansson's (RFC 8259, duplicate keys refused, integers exact); what it does not limit
 * is counted first in one pass over the bytes, so that a small file cannot ask for much memory or
 * stack. Without jansson loading returns WEFT_E_NO_IMPL. */
#ifndef WEFTI_CHECKPOINT_JSON_H
#define WEFTI_CHECKPOINT_JSON_H

#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"

typedef struct wefti_json_limits {
    int depth;
    int64_t objects;
    int64_t array_items; /* in any one array */
} wefti_json_limits;

weft_status wefti_json_check(const char *text, int64_t bytes,
                             const wefti_json_limits *limits) WEFT_CHECKED;

/* Append `text` in quotes, escaped. */
void wefti_json_quote(wefti_text *out, const char *text);
/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool wefti_utf8_valid(const char *text);

/* A plain file name inside a directory: not empty, no slash, no leading dot, at most 255 bytes. */
bool wefti_file_name_valid(const char *name);

/* The message of every reader in a build without jansson. */
#define WEFTI_NO_JSON                                                                              \
    WEFT_RAISE(WEFT_E_NO_IMPL, "this build of weft cannot read JSON: build it with jansson")

#ifdef WEFT_HAVE_JANSSON
#include <jansson.h>

/* One JSON object and nothing behind it but white space. */
weft_status wefti_json_load(const char *text, int64_t bytes, const wefti_json_limits *limits,
                            json_t **out) WEFT_CHECKED;

/* Members of an object; WEFT_E_CORRUPT naming the key when it is absent or of another kind.
 * Borrowed. */
weft_status wefti_json_text(const json_t *object, const char *key, const char **out) WEFT_CHECKED;
weft_status wefti_json_int(const json_t *object, const char *key, int64_t *out) WEFT_CHECKED;
/* 1 to 16 hexadecimal digits behind `prefix`. */
weft_status wefti_json_hex(const json_t *object, const char *key, const char *prefix,
                           uint64_t *out) WEFT_CHECKED;
weft_status wefti_json_array(const json_t *object, const char *key,
                             const json_t **out) WEFT_CHECKED;
weft_status wefti_json_object(const json_t *object, const char *key,
                              const json_t **out) WEFT_CHECKED;
#endif

#endif
