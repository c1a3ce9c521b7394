/* Reads JSON (RFC 8259) strictly and within limits, and writes JSON that every parser reads.
 *
 * The files may come from any source. Every limit is checked before memory grows. The parser
 * refuses duplicate keys, broken UTF-8 and anything behind the value. Integers are exact. A lack of
 * memory is never reported as a damaged file.
 *
 * Common libraries break that last point: when an allocation fails, one drops a character of its
 * text, and a good checkpoint would look damaged. They also have no limits on size. */
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
    WEFTI_JSON_INT,  /* has neither fraction nor exponent, and fits 64 bits */
    WEFTI_JSON_REAL, /* any other number */
    WEFTI_JSON_TEXT, /* UTF-8 without NUL */
    WEFTI_JSON_ARRAY,
    WEFTI_JSON_OBJECT
} wefti_json_kind;

/* A value. It lives in the arena that the parser was given. */
typedef struct wefti_json wefti_json;
struct wefti_json {
    const char *key; /* the key, if the value is a member of an object; else NULL */
    const wefti_json *next;
    union {
        const wefti_json *child; /* first element or member, in the order of the text */
        const char *text;
        int64_t integer;
        double real;
        bool boolean;
    } as;
    int32_t count; /* number of elements or members */
    int32_t line;  /* of the text, from 1: where the value begins */
    wefti_json_kind kind;
};

/* Iterates over the elements of an array or the members of an object. */
#define WEFTI_JSON_EACH(item, parent)                                                              \
    for (const wefti_json *item = (parent)->as.child; item; item = item->next)

typedef struct wefti_json_limits {
    int depth;           /* nesting depth of arrays and objects, at most 64 */
    int32_t members;     /* members of any one object */
    int32_t array_items; /* elements of any one array */
} wefti_json_limits;

/* WEFT_E_CORRUPT with line and column if the text is not exactly one JSON value, or breaks a
 * limit. */
weft_status wefti_json_parse(wefti_arena *arena, const char *text, int64_t bytes,
                             const wefti_json_limits *limits, const wefti_json **out) WEFT_CHECKED;
/* The same of a part of a file, whose first line has this number there. */
weft_status wefti_json_parse_from(wefti_arena *arena, int32_t line, const char *text, int64_t bytes,
                                  const wefti_json_limits *limits,
                                  const wefti_json **out) WEFT_CHECKED;

/* ---- lenient: lines of corpora, and files of other programs (lenient.c) ---- */

/* One member of an object. */
typedef struct wefti_json_member {
    const char *value; /* as it stands in the text; NULL: the object lacks it */
    int64_t bytes;
    char keys[200]; /* the keys of the object, for messages */
} wefti_json_member;
/* Finds a member, the last of several with that key. Passes the others without judging them: NaN,
 * numbers beyond f64, escapes of NUL, any depth, double keys. In time linear in the text, without
 * memory. WEFT_E_CORRUPT if the text is not one object. */
weft_status wefti_json_find(const char *text, int64_t bytes, const char *key,
                            wefti_json_member *out) WEFT_CHECKED;
/* Decodes a value that is a text in place of what `out` holds. It may have NULs; half a surrogate
 * pair becomes U+FFFD. False: it is no text, or has control characters, unknown escapes, or bytes
 * that are not UTF-8. A lack of memory is seen in out->failed. */
bool wefti_json_decode(const char *value, int64_t bytes, wefti_text *out);

/* NULL if `object` is not an object or lacks the member. */
const wefti_json *wefti_json_get(const wefti_json *object, const char *key);
/* Read a member of an object. WEFT_E_CORRUPT names the key if the member is absent or of another
 * kind. */
weft_status wefti_json_text(const wefti_json *object, const char *key,
                            const char **out) WEFT_CHECKED;
weft_status wefti_json_int(const wefti_json *object, const char *key, int64_t *out) WEFT_CHECKED;
weft_status wefti_json_array(const wefti_json *object, const char *key,
                             const wefti_json **out) WEFT_CHECKED;
weft_status wefti_json_object(const wefti_json *object, const char *key,
                              const wefti_json **out) WEFT_CHECKED;
/* Reads an array of `count` whole numbers >= 0. */
weft_status wefti_json_sizes(const wefti_json *object, const char *key, int count,
                             int64_t *out) WEFT_CHECKED;
/* Reads a text that is `prefix` and 1 to 16 lower-case hexadecimal digits. */
weft_status wefti_json_hex(const wefti_json *object, const char *key, const char *prefix,
                           uint64_t *out) WEFT_CHECKED;

/* Appends `text` in quotes and escaped. U+007F to U+009F are escaped too, because terminals
 * interpret them. Each byte that is not valid UTF-8 (file names may have such bytes) becomes
 * U+FFFD. So the output is always JSON. */
void wefti_json_quote(wefti_text *out, const char *text);
/* Appends a number that reads back to the same bits in every locale; null if it is not finite. */
void wefti_json_real(wefti_text *out, double value);
/* Valid by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool wefti_utf8_valid(const char *text);

#endif
