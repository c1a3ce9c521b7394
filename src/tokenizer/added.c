/* Finds added tokens in text. Source: huggingface/tokenizers, AddedVocabulary. */
#include "base/text.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

/* The character that ends before text[at]; returns its bytes, 0 at the start of the text. */
static int character_before(const unsigned char *text, int64_t at, uint32_t *out) {
    for (int64_t tried = at < 4 ? at : 4; tried >= 1; tried--)
        if (wefti_utf8_next(text + at - tried, tried, out) == tried && *out != WEFTI_NO_CHARACTER)
            return (int)tried;
    *out = WEFTI_NO_CHARACTER;
    return at > 0;
}

static int character_at(const unsigned char *text, int64_t bytes, int64_t at, uint32_t *out) {
    *out = WEFTI_NO_CHARACTER;
    return at < bytes ? wefti_utf8_next(text + at, bytes - at, out) : 0;
}

static bool alone(const unsigned char *text, int64_t bytes, int64_t first, int64_t behind) {
    uint32_t point;
    if (character_before(text, first, &point) && wefti_unicode_word(point)) return false;
    return !character_at(text, bytes, behind, &point) || !wefti_unicode_word(point);
}

/* The longest pattern at text[at], or NULL. */
static const wefti_added_token *longest_at(const wefti_added *a, const wefti_trie *trie,
                                           const unsigned char *text, int64_t bytes, int64_t at,
                                           int64_t *out_behind) {
    const wefti_added_token *best = NULL;
    int32_t node = 0;
    for (int64_t end = at; end < bytes;) {
        node = wefti_trie_next(trie, node, text[end++]);
        if (node < 0) break;
        if (trie->ids[node] < 0) continue;
        best = &a->tokens[trie->ids[node]];
        *out_behind = end;
    }
    return best;
}

wefti_added_match wefti_added_find(const wefti_added *a, bool normalized, const unsigned char *text,
                                   int64_t bytes, int64_t from) {
    const wefti_trie *trie = normalized ? &a->normalized : &a->exact;
    const bool *begins = a->begins[normalized];
    int64_t behind = 0;
    for (int64_t at = trie->edges.slots ? from : bytes; at < bytes; at++) {
        const wefti_added_token *token =
            begins[text[at]] ? longest_at(a, trie, text, bytes, at, &behind) : NULL;
        if (!token) continue;
        if (!token->single_word || alone(text, bytes, at, behind))
            return (wefti_added_match){token, at, behind};
        at = behind - 1; /* the search goes on behind a match that is part of a word */
    }
    return (wefti_added_match){NULL, bytes, bytes};
}
