/* Growing text, UTF-8, and patterns over names. */
#ifndef WEFTI_BASE_TEXT_H
#define WEFTI_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Zero-initialise. A failed allocation is remembered; wefti_text_take then returns NULL. Otherwise
 * it returns the string. Both reset the text. */
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
/* Decodes the UTF-8 character (RFC 3629) at the start of `bytes` >= 1 bytes and returns its length.
 * A byte that does not begin a valid character gives WEFTI_NO_CHARACTER and length 1. */
int wefti_utf8_next(const unsigned char *text, int64_t bytes, uint32_t *out);
/* Writes a character and returns its length. */
int wefti_utf8_write(char to[4], uint32_t point);
/* The length of a byte order mark at the start of a text: 3, or 0. */
int64_t wefti_utf8_mark(const void *text, int64_t bytes);
/* The name of the encoding that a text has in place of UTF-8, by its first bytes and its zeros, or
 * because it is not UTF-8; NULL: it is UTF-8, as far as `bytes` bytes of it tell. */
const char *wefti_other_encoding(const void *text, int64_t bytes);

/* Reads a number with a decimal point, as in files and settings, in any locale. Otherwise as
 * strtod. */
double wefti_real_read(const char *text, char **end);
/* Writes the fewest digits, from `least` to `most`, that read back as the same number; else `most`
 * digits. Returns `out`. */
char *wefti_real_text(double value, int least, int most, char out[32]);

/* Returns x for printing. The sign of a NaN has no meaning, but printf would show it as "-nan". */
double wefti_printed(double x);

/* Whether two words are equal but for the case of ASCII letters, and '-' for '_'. */
bool wefti_same_word(const char *a, const char *b);

/* Writes a size such as "1.5 GiB" to `out` and returns `out`. */
char *wefti_bytes_text(int64_t bytes, char out[32]);

/* ---- patterns over names of ops, cells, tensors (glob.c) ---- */

/* * matches any bytes, dots included; ? matches one byte; [a-z] and [!a-z] match one byte in, or
 * not in, the class. A pattern is well formed if every [ is closed. Time is linear in the text for
 * each * of the pattern. */
bool wefti_glob_match(const char *pattern, const char *text);
bool wefti_glob_valid(const char *pattern);

#endif
