/* Sets of characters, as ranges: what one place of a regular expression matches. The set of all
 * characters has one more element, WEFTI_CHARSET_LAST, for bytes that are no character. */
#ifndef WEFTI_TOKENIZER_CHARSET_H
#define WEFTI_TOKENIZER_CHARSET_H

#include "base/memory.h"
#include "tokenizer/unicode.h"

enum { WEFTI_CHARSET_LAST = 0x110000 };

/* Its memory comes from an arena. Zero-initialise. */
typedef struct wefti_charset {
    wefti_code_range *ranges; /* ascending and apart, after wefti_charset_sort */
    int64_t count, capacity;
} wefti_charset;

weft_status wefti_charset_add(wefti_arena *arena, wefti_charset *set, uint32_t first,
                              uint32_t last) WEFT_CHECKED;
weft_status wefti_charset_add_all(wefti_arena *arena, wefti_charset *set,
                                  const wefti_charset *other) WEFT_CHECKED;
void wefti_charset_sort(wefti_charset *set);
/* Both take sorted sets and give sorted ones. */
weft_status wefti_charset_invert(wefti_arena *arena, wefti_charset *set) WEFT_CHECKED;
weft_status wefti_charset_intersect(wefti_arena *arena, wefti_charset *set,
                                    const wefti_charset *other) WEFT_CHECKED;
/* In a sorted set. */
bool wefti_charset_has(const wefti_charset *set, uint32_t point);
bool wefti_charset_equal(const wefti_charset *a, const wefti_charset *b);

#endif
