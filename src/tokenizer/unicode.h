/* The classes of characters that tokenizers split text by. UTF-8: base/text.h. */
#ifndef WEFTI_TOKENIZER_UNICODE_H
#define WEFTI_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool wefti_unicode_letter(uint32_t point); /* \p{L} */
bool wefti_unicode_number(uint32_t point); /* \p{N} */
bool wefti_unicode_space(uint32_t point);  /* \s */

/* A range of code points, ends included; tables of ranges are ascending. */
typedef struct wefti_code_range {
    uint32_t first, last;
} wefti_code_range;

/* The range that has a point, or NULL, in `count` rows of `bytes` each that begin with ranges. */
const wefti_code_range *wefti_range_of(const void *rows, size_t count, size_t bytes,
                                       uint32_t point);
bool wefti_in_ranges(const wefti_code_range *ranges, size_t count, uint32_t point);

#endif
