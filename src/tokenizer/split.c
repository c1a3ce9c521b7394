/* The regular expressions that split text into words, as hand-written matchers.
 *
 * GPT-2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Llama 3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
 * ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+
 *          |\s+(?!\S)|\s+
 * Qwen 2:  as Llama 3 with \p{N} for \p{N}{1,3}
 *
 * Alternatives are tried in this order at each place; every character belongs to one of them, so
 * that the words together are the text. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/text.h"
#include "tokenizer/unicode.h"

typedef enum class_of_character { LETTER, NUMBER, SPLIT_SPACE, OTHER, END } class_of_character;

typedef struct split_cursor {
    const unsigned char *text;
    int64_t bytes;
} split_cursor;

static class_of_character class_at(const split_cursor *c, int64_t at, int *out_length) {
    *out_length = 0;
    if (at >= c->bytes) return END;
    uint32_t point;
    *out_length = wefti_utf8_next(c->text + at, c->bytes - at, &point);
    if (point == WEFTI_NO_CHARACTER) return OTHER;
    if (wefti_unicode_letter(point)) return LETTER;
    if (wefti_unicode_number(point)) return NUMBER;
    return wefti_unicode_space(point) ? SPLIT_SPACE : OTHER;
}

static int64_t run_of(const split_cursor *c, int64_t at, class_of_character wanted, int64_t limit) {
    int length;
    for (; limit > 0 && class_at(c, at, &length) == wanted; limit--) at += length;
    return at;
}

static bool is_newline(const split_cursor *c, int64_t at) {
    return at < c->bytes && (c->text[at] == '\r' || c->text[at] == '\n');
}

/* 's and its like: bytes matched, or 0. Folded, the long s (U+017F) is an s as well. */
static int64_t contraction(const split_cursor *c, bool fold) {
    if (c->bytes < 2 || c->text[0] != '\'') return 0;
    unsigned char first = c->text[1], second = c->bytes > 2 ? c->text[2] : 0;
    if (fold) {
        if (first == 0xC5 && second == 0xBF) return 3;
        if (first >= 'A' && first <= 'Z') first = (unsigned char)(first | 32);
        if (second >= 'A' && second <= 'Z') second = (unsigned char)(second | 32);
    }
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
               (first == 'l' && second == 'l');
    return two ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space up to the character before the next word, at least one. */
static int64_t spaces(const split_cursor *c) {
    int64_t at = 0, last = 0;
    int length;
    while (class_at(c, at, &length) == SPLIT_SPACE) {
        last = at;
        at += length;
    }
    return at == c->bytes || last == 0 ? at : last;
}

static int64_t next_gpt2(const split_cursor *c) {
    int64_t matched = contraction(c, false);
    if (matched) return matched;
    int length;
    int64_t at = c->text[0] == ' ' ? 1 : 0;
    class_of_character kind = class_at(c, at, &length);
    if (kind == SPLIT_SPACE || kind == END) return spaces(c);
    return run_of(c, at, kind, INT64_MAX);
}

static int64_t next_llama3(const split_cursor *c, int64_t digits) {
    int64_t matched = contraction(c, true);
    if (matched) return matched;
    int length, next_length;
    class_of_character kind = class_at(c, 0, &length);
    if (kind == LETTER) return run_of(c, 0, LETTER, INT64_MAX);
    if (kind != NUMBER && !is_newline(c, 0) && class_at(c, length, &next_length) == LETTER)
        return run_of(c, length, LETTER, INT64_MAX);
    if (kind == NUMBER) return run_of(c, 0, NUMBER, digits);
    int64_t at = c->text[0] == ' ' ? 1 : 0;
    if (class_at(c, at, &length) == OTHER) {
        at = run_of(c, at, OTHER, INT64_MAX);
        while (is_newline(c, at)) at++;
        return at;
    }
    int64_t newline = 0; /* after the last line end of the white space: \s*[\r\n]+ */
    for (at = 0; class_at(c, at, &length) == SPLIT_SPACE; at += length)
        if (is_newline(c, at)) newline = at + 1;
    return newline ? newline : spaces(c);
}

/* Up to the next U+2581 that follows another character. */
static int64_t next_piece(const split_cursor *c) {
    bool inside = false;
    for (int64_t at = 0; at < c->bytes;) {
        bool space = c->bytes - at >= 3 && !memcmp(c->text + at, WEFTI_PIECE_SPACE, 3);
        if (space && inside) return at;
        inside = !space;
        at += space ? 3 : 1;
    }
    return c->bytes;
}

int64_t wefti_pretokenize_next(wefti_pretokenizer split, const unsigned char *text, int64_t bytes) {
    split_cursor c = {text, bytes};
    switch (split) {
    case WEFTI_SPLIT_GPT2:
        return next_gpt2(&c);
    case WEFTI_SPLIT_LLAMA3:
        return next_llama3(&c, 3);
    case WEFTI_SPLIT_QWEN2:
        return next_llama3(&c, 1);
    case WEFTI_SPLIT_PIECES:
        return next_piece(&c);
    default:
        return bytes;
    }
}
