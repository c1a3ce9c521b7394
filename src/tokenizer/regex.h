/* Regular expressions that split text, in time linear in its length.
 *
 * A pattern becomes deterministic automata over classes of characters when it is compiled, so that
 * matching reads one table entry for each character, and threads share a compiled pattern. The
 * choice among matches is that of backtracking matchers: leftmost, then by the order of
 * alternatives and the greed of repeats.
 *
 * The syntax is the part of Oniguruma's (Ruby's) that published tokenizers use: alternatives,
 * groups, (?i:), classes with ranges, nested sets, && and \p{}, greedy, lazy and possessive
 * repeats, lookahead and lookbehind of one character, ^ $ \A \z \b \B. The rest is refused.
 *
 * Sources: Thompson, "Regular Expression Search Algorithm", CACM 1968; Cox, "Regular Expression
 * Matching: the Virtual Machine Approach", 2009, and "in the Wild", 2010. */
#ifndef WEFTI_TOKENIZER_REGEX_H
#define WEFTI_TOKENIZER_REGEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

typedef struct wefti_regex wefti_regex;

/* The result lives in `arena`. WEFT_E_NO_IMPL names the pattern, and the byte of it that is not
 * supported or not well formed. */
weft_status wefti_regex_compile(wefti_arena *arena, const char *pattern,
                                const wefti_regex **out) WEFT_CHECKED;
/* A pattern that matches `text`, at least one byte, literally. */
weft_status wefti_regex_literal(wefti_arena *arena, const char *text,
                                const wefti_regex **out) WEFT_CHECKED;

/* The place of a search in a text. Zero-initialise. */
typedef struct wefti_regex_search {
    int64_t at;            /* where the next search begins */
    int64_t first, behind; /* the last match: [first, behind) */
    bool found;
} wefti_regex_search;
/* The next match; false: there is none. An empty match at the end of the last one is passed over.
 */
bool wefti_regex_next(const wefti_regex *regex, const unsigned char *text, int64_t bytes,
                      wefti_regex_search *search);

#endif
