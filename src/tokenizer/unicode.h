/* Characters: categories, classes, case and normal forms. The tables are Unicode's, in the versions
 * that the parts of Hugging Face tokenizers follow (tools/unicode_tables.py). */
#ifndef WEFTI_TOKENIZER_UNICODE_H
#define WEFTI_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A range of code points, ends included; tables of ranges are ascending. */
typedef struct wefti_code_range {
    uint32_t first, last;
} wefti_code_range;
bool wefti_in_ranges(const wefti_code_range *ranges, size_t count, uint32_t point);

bool wefti_unicode_space(uint32_t point);       /* White_Space */
bool wefti_unicode_digit(uint32_t point);       /* any number, as the pre-tokenizer Digits counts */
bool wefti_unicode_word(uint32_t point);        /* \w of the pre-tokenizer Whitespace */
bool wefti_unicode_punctuation(uint32_t point); /* as BertPreTokenizer and Punctuation see it */
bool wefti_unicode_removed(uint32_t point);     /* controls, which clean_text removes */
bool wefti_unicode_ideograph(uint32_t point);   /* a word by itself for BERT */
bool wefti_unicode_nonspacing(uint32_t point);  /* marks that BERT's strip_accents removes */
bool wefti_unicode_accent(uint32_t point);      /* marks that StripAccents removes */
/* Lower case; returns 1 or 2 characters. */
int wefti_unicode_lower(uint32_t point, uint32_t out[2]);

/* What a character is in a grapheme cluster. */
typedef enum wefti_cluster_part {
    WEFTI_CLUSTER_OTHER,
    WEFTI_CLUSTER_CONTROL, /* stands alone */
    WEFTI_CLUSTER_EXTEND,  /* belongs to the character before: marks and the joiner */
    WEFTI_CLUSTER_PREPEND, /* belongs to the character behind */
    WEFTI_CLUSTER_PICTURE
} wefti_cluster_part;
wefti_cluster_part wefti_unicode_cluster(uint32_t point);

/* A class by the name that regular expressions give it (L, Lu, Nd, Han, Alpha ...). Calls `add` for
 * each range; false: there is no such class. */
typedef bool (*wefti_add_range)(void *to, uint32_t first, uint32_t last);
bool wefti_unicode_class(const char *name, wefti_add_range add, void *to);

/* ---- normal forms; Hangul syllables are composed and decomposed by rule ---- */

enum { WEFTI_DECOMPOSED = 18 };              /* the most characters that one becomes */
int wefti_unicode_combining(uint32_t point); /* its combining class */
/* Writes the full decomposition, canonical or also compatible; returns its characters. */
int wefti_unicode_decompose(uint32_t point, bool compatible, uint32_t out[WEFTI_DECOMPOSED]);
/* The character that two compose to, or 0. */
uint32_t wefti_unicode_compose(uint32_t first, uint32_t second);
/* Nothing before the character composes with it or moves behind it. */
bool wefti_unicode_starts(uint32_t point);

#endif
