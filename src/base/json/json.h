/* JSON (RFC 8259) read strictly and within limits, and written so that everyone reads it.
 *
 * For files that come from anywhere: every limit is checked before anything grows, duplicate keys,
 * broken UTF-8 and anything behind the value are refused, integers are exact, and a lack of memory
 * is never mistaken for a damaged file. The last is why this is not a library: jansson 2.14 drops a
 * character of the text it reads when an allocation fails, so that a good checkpoint would look
 * damaged, and has no limits on size. */
#ifndef WEFTI_BASE_JSON_H
#define WEFTI_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

typedef enum wefti_json_kind {
    WEFTI_JSON_NULL,
    WEFTI_JSON_BOOL,
    WEFTI_JSON_INT,  /* written without fraction and exponent, and within 64 bits */
    WEFTI_JSON_REAL, /* any other number */
    WEFTI_JSON_TEXT, /* UTF-8 without NUL */
    WEFTI_JSON_ARRAY,
    WEFTI_JSON_OBJECT
} wefti_json_kind;

/* A value; lives in the arena it was parsed into. */
typedef struct wefti_json wefti_json;
struct wefti_json {
    const char *key; /* in an object, else NULL */
    const wefti_json *next;
    union {
        const wefti_json *child; /* first element or member, in the order of the text */
        const char *text;
        int64_t integer;
        double real;
        bool boolean;
    } as;
    int32_t count; /* of elements or members */
    wefti_json_kind kind;
};

/* Walk the elements of an array or the members of an object. */
#define WEFTI_JSON_EACH(item, parent)                                                              \
    for (const wefti_json *item = (parent)->as.child; item; item = item->next)

typedef struct wefti_json_limits {
    int depth;           /* of arrays and objects in each other, at most 64 */
    int32_t members;     /* in any one object */
    int32_t array_items; /* in any one array */
} wefti_json_limits;

/* WEFT_E_CORRUPT with line and column when it is not one JSON value, or breaks a limit. */
weft_status wefti_json_parse(wefti_arena *arena, const char *text, int64_t bytes,
                             const wefti_json_limits *limits, const wefti_json **out) WEFT_CHECKED;

/* NULL when `object` is no object or has no such member. */
const wefti_json *wefti_json_get(const wefti_json *object, const char *key);
/* Members of an object; WEFT_E_CORRUPT naming the key when it is absent or of another kind. */
weft_status wefti_json_text(const wefti_json *object, const char *key,
                            const char **out) WEFT_CHECKED;
weft_status wefti_json_int(const wefti_json *object, const char *key, int64_t *out) WEFT_CHECKED;
weft_status wefti_json_array(const wefti_json *object, const char *key,
                             const wefti_json **out) WEFT_CHECKED;
weft_status wefti_json_object(const wefti_json *object, const char *key,
                              const wefti_json **out) WEFT_CHECKED;
/* A text of 1 to 16 lower-case hexadecimal digits behind `prefix`. */
weft_status wefti_json_hex(const wefti_json *object, const char *key, const char *prefix,
                           uint64_t *out) WEFT_CHECKED;

/* Append `text` in quotes, escaped, U+007F to U+009F too: what terminals act by. Bytes that are no
 * UTF-8, as names of files may have, become U+FFFD each: the outcome is JSON in any case. */
void wefti_json_quote(wefti_text *out, const char *text);
/* Append a number that reads back to the same bits whatever the locale; null when it is not finite.
 */
void wefti_json_real(wefti_text *out, double value);
/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool wefti_utf8_valid(const char *text);

#endif
