/* The normalizers of a tokenizer.json: what becomes of text before it is split into words. */
#ifndef WEFTI_TOKENIZER_NORMALIZE_H
#define WEFTI_TOKENIZER_NORMALIZE_H

#include "base/text.h"
#include "tokenizer/precompiled.h"
#include "tokenizer/regex.h"

typedef enum wefti_normal_kind {
    WEFTI_NORMAL_NFC,
    WEFTI_NORMAL_NFD,
    WEFTI_NORMAL_NFKC,
    WEFTI_NORMAL_NFKD,
    WEFTI_NORMAL_LOWERCASE,
    WEFTI_NORMAL_STRIP,         /* white space at the ends */
    WEFTI_NORMAL_STRIP_ACCENTS, /* combining marks, which NFD sets apart */
    WEFTI_NORMAL_NONSPACING,    /* the same, by the older list of BERT */
    WEFTI_NORMAL_CLEAN,         /* controls go, white space becomes spaces */
    WEFTI_NORMAL_IDEOGRAPHS,    /* spaces around each */
    WEFTI_NORMAL_NMT,           /* sentencepiece's rule for controls and spaces */
    WEFTI_NORMAL_REPLACE,
    WEFTI_NORMAL_PREPEND,
    WEFTI_NORMAL_PRECOMPILED, /* sentencepiece's rules */
    WEFTI_NORMAL_BYTE_LEVEL,  /* bytes become characters of GPT-2's alphabet */
} wefti_normal_kind;

typedef struct wefti_normal_step {
    wefti_normal_kind kind;
    bool left, right;         /* strip */
    const wefti_regex *regex; /* replace */
    const char *content;      /* replace, prepend */
    const wefti_precompiled *rules;
} wefti_normal_step;

typedef struct wefti_normal_point {
    uint32_t point; /* or a byte that is no character, with the highest bit */
    int32_t combining;
} wefti_normal_point;

/* Scratch of one thread. Zero-initialise. */
typedef struct wefti_normal_scratch {
    wefti_text texts[2];
    wefti_normal_point *points, *sorted;
    int64_t capacity, sorted_capacity;
} wefti_normal_scratch;
void wefti_normal_scratch_free(wefti_normal_scratch *scratch);

/* Applies the steps. *text then points to the result: the same text, or one in the scratch, until
 * the next call. *first: the text begins where the whole text began; cleared if what stood there
 * was removed. */
weft_status wefti_normalize(const wefti_normal_step *steps, int64_t count,
                            wefti_normal_scratch *scratch, const unsigned char **text,
                            int64_t *bytes, bool *first) WEFT_CHECKED;

#endif
