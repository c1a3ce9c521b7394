/* The classes of characters that tokenizers split text by, and UTF-8. */
#ifndef WEFTI_TOKENIZER_UNICODE_H
#define WEFTI_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool wefti_unicode_letter(uint32_t point); /* \p{L} */
bool wefti_unicode_number(uint32_t point); /* \p{N} */
bool wefti_unicode_space(uint32_t point);  /* \s */

/* Looks a code point up in an ascending table. */
typedef struct wefti_range {
    uint32_t first, last;
} wefti_range;

/* The range that has a point, or NULL, in `count` rows of `bytes` each that begin with ranges. */
const wefti_range *wefti_range_of(const void *rows, size_t count, size_t bytes, uint32_t point);
bool wefti_in_ranges(const wefti_range *ranges, size_t count, uint32_t point);

#define WEFTI_NO_CHARACTER 0xFFFFFFFFu

/* The character at the start of `bytes` >= 1 bytes, and its length. A byte that is not UTF-8 counts
 * as a character, WEFTI_NO_CHARACTER, of length 1: neither letter, number nor space. */
int wefti_utf8_next(const unsigned char *text, int64_t bytes, uint32_t *out);

#endif
