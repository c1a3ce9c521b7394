/* The pre-tokenizers of a tokenizer.json: how normalised text is split into words. */
#ifndef WEFTI_TOKENIZER_PRETOKENIZE_H
#define WEFTI_TOKENIZER_PRETOKENIZE_H

#include "base/text.h"
#include "tokenizer/regex.h"

typedef enum wefti_split_kind {
    WEFTI_SPLIT_REGEX,
    WEFTI_SPLIT_CLASS,      /* at each character of a class */
    WEFTI_SPLIT_METASPACE,  /* replaces spaces, and may split before each */
    WEFTI_SPLIT_BYTE_LEVEL, /* splits by GPT-2's expression, and may write GPT-2's alphabet */
    WEFTI_SPLIT_PIECES      /* before each U+2581 that follows another character */
} wefti_split_kind;

/* What becomes of the matches, which the text between them separates. */
typedef enum wefti_split_behavior {
    WEFTI_BEHAVIOR_ISOLATED, /* each is a word */
    WEFTI_BEHAVIOR_REMOVED,
    WEFTI_BEHAVIOR_CONTIGUOUS, /* neighbouring ones are one word */
    WEFTI_BEHAVIOR_WITH_PREVIOUS,
    WEFTI_BEHAVIOR_WITH_NEXT
} wefti_split_behavior;

typedef enum wefti_prepend { /* the replacement, or a space, in front: */
                             WEFTI_PREPEND_NEVER,
                             WEFTI_PREPEND_ALWAYS, /* unless the text begins with it */
                             WEFTI_PREPEND_FIRST   /* only at the start of the whole text */
} wefti_prepend;

typedef struct wefti_split_step {
    wefti_split_kind kind;
    wefti_split_behavior behavior;
    bool invert;              /* the text between matches counts as matches */
    const wefti_regex *regex; /* NULL: the whole text is one word */
    bool (*class)(uint32_t point);
    uint32_t delimiter;      /* of a class without function */
    const char *replacement; /* metaspace */
    wefti_prepend prepend;
    bool maps; /* byte level: words become characters of the alphabet, for the steps behind */
} wefti_split_step;

/* Receives the words of a text, in order. */
typedef struct wefti_words {
    weft_status (*word)(void *context, const unsigned char *word, int64_t bytes);
    void *context;
} wefti_words;

/* Scratch of one thread, for each step. Zero-initialise. */
typedef struct wefti_split_scratch {
    wefti_text front, mapped;
} wefti_split_scratch;

/* Splits a text, step after step. `first`: it begins where the whole text began. */
weft_status wefti_pretokenize(const wefti_split_step *steps, int64_t count,
                              wefti_split_scratch *scratch, const unsigned char *text,
                              int64_t bytes, bool first, const wefti_words *words) WEFT_CHECKED;

#define WEFTI_PIECE_SPACE "\xE2\x96\x81" /* U+2581, which stands for a space in pieces */
/* Bytes up to the next U+2581 that follows another character. */
int64_t wefti_piece_end(const unsigned char *text, int64_t bytes);

#endif
