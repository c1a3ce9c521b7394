/* Growing text, UTF-8, patterns over names, and the nearest known word for a mistyped one. */
#ifndef WEFTI_BASE_TEXT_H
#define WEFTI_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Zero-initialise; sticky out-of-memory; wefti_text_take returns the string (or NULL) and resets.
 */
typedef struct wefti_text {
    char *data;
    int64_t used, capacity;
    int failed;
} wefti_text;
void wefti_text_add(wefti_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void wefti_text_add_bytes(wefti_text *t, const char *bytes, int64_t count);
char *wefti_text_take(wefti_text *t);
void wefti_text_free(wefti_text *t);

#define WEFTI_NO_CHARACTER 0xFFFFFFFFu
/* The UTF-8 character (RFC 3629) at the start of `bytes` >= 1 bytes, and its length. A byte that
 * does not begin a character gives WEFTI_NO_CHARACTER and the length 1. */
int wefti_utf8_next(const unsigned char *text, int64_t bytes, uint32_t *out);

/* The entry of `words` (NULL-terminated) nearest to `word` by edit distance, or NULL when none is
 * within max(2, length / 3) edits. */
const char *wefti_nearest(const char *word, const char *const *words);

/* Numbers as files and settings have them, with a point, whatever the locale of the program is.
 * Reads as strtod does. */
double wefti_real_read(const char *text, char **end);
/* The fewest digits, from `least` to `most`, that read back as the same number, else `most` of
 * them; returns `out`. */
char *wefti_real_text(double value, int least, int most, char out[32]);

/* x as it should be printed: the sign of a NaN means nothing, but printf would show it, "-nan". */
double wefti_printed(double x);

/* "1.5 GiB" into a caller's buffer; returns it. */
char *wefti_bytes_text(int64_t bytes, char out[32]);

/* ---- patterns over names: of ops, cells, tensors (glob.c) ---- */

/* *: any bytes, dots too; ?: one; [a-z], [!a-z]: one of, none of. A pattern is well formed when
 * every [ is closed. Linear in the text for each * of the pattern. */
bool wefti_glob_match(const char *pattern, const char *text);
bool wefti_glob_valid(const char *pattern);

#endif
