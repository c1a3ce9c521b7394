/* Patterns over names. See base/glob.h. */
#include "base/text.h"

#include <string.h>

/* Returns the position behind the ] of the class "[...]" that begins at `p`; NULL if the class is
 * not closed. A ] in the first place is an ordinary member. */
static const char *class_end(const char *p) {
    const char *from = p + 1;
    if (*from == '!') from++;
    if (*from == ']') from++;
    const char *close = strchr(from, ']');
    return close ? close + 1 : NULL;
}

/* Whether `c` is in the class [p, end). */
static bool class_has(const char *p, const char *end, unsigned char c) {
    bool inverted = p[1] == '!', found = false;
    const char *last = end - 1; /* the ] */
    for (const char *at = p + 1 + inverted; at < last; at++) {
        unsigned char low = (unsigned char)at[0], high = low;
        if (at + 2 < last && at[1] == '-') {
            high = (unsigned char)at[2];
            at += 2;
        }
        found = found || (low <= c && c <= high);
    }
    return found != inverted;
}

/* Passes one pattern element that matches one byte. Returns NULL if the element does not match
 * `c`. */
static const char *pass_one(const char *pattern, char c) {
    if (*pattern == '[') {
        const char *end = class_end(pattern);
        if (end) return class_has(pattern, end, (unsigned char)c) ? end : NULL;
    }
    return *pattern == '?' || *pattern == c ? pattern + 1 : NULL;
}

/* A literal last byte of the pattern must equal the last byte of the text. This quick check rejects
 * most names that do not match. */
static bool ends_alike(const char *pattern, const char *text) {
    const size_t length = strlen(pattern), bytes = strlen(text);
    const char last = length > 0 ? pattern[length - 1] : '*';
    return last == '*' || last == '?' || last == ']' || (bytes > 0 && text[bytes - 1] == last);
}

bool wefti_glob_match(const char *pattern, const char *text) {
    if (!ends_alike(pattern, text)) return false;
    /* behind the last *; the text that the * has not absorbed */
    const char *star = NULL, *tried = NULL;
    while (*text) {
        const char *next = *pattern == '*' || !*pattern ? NULL : pass_one(pattern, *text);
        if (*pattern == '*') {
            star = ++pattern;
            tried = text;
        } else if (next) {
            pattern = next;
            text++;
        } else if (star) { /* the last * absorbs one more byte */
            pattern = star;
            text = ++tried;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

bool wefti_glob_valid(const char *pattern) {
    while (*pattern) {
        if (*pattern != '[') {
            pattern++;
            continue;
        }
        pattern = class_end(pattern);
        if (!pattern) return false;
    }
    return true;
}
