/* The syntax tree of a regular expression. */
#ifndef WEFTI_TOKENIZER_REGEX_SYNTAX_H
#define WEFTI_TOKENIZER_REGEX_SYNTAX_H

#include "tokenizer/charset.h"

typedef enum wefti_regex_kind {
    WEFTI_REGEX_EMPTY,
    WEFTI_REGEX_SET,    /* one character of `set` */
    WEFTI_REGEX_THEN,   /* `left`, then `right` */
    WEFTI_REGEX_OR,     /* `left`, or else `right` */
    WEFTI_REGEX_REPEAT, /* `left`, `least` to `most` times */
    WEFTI_REGEX_LOOK    /* the next, or last, character is in `set`, or there is none and `edge` */
} wefti_regex_kind;

typedef struct wefti_regex_node wefti_regex_node;
struct wefti_regex_node {
    wefti_regex_kind kind;
    wefti_regex_node *left, *right;
    wefti_charset set;
    int least, most; /* most < 0: no limit */
    bool lazy;       /* fewer times first */
    bool behind, edge;
};

/* The tree lives in `arena`. */
weft_status wefti_regex_parse(wefti_arena *arena, const char *pattern,
                              wefti_regex_node **out) WEFT_CHECKED;

#endif
