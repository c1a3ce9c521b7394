/* The normalizer Precompiled. A text is taken apart into grapheme clusters. A cluster below six
 * bytes becomes what the rule of its shortest known prefix says, and loses the rest; otherwise each
 * character is looked up alone. That is what Hugging Face tokenizers do, and what models were
 * trained with.
 *
 * Sources: google/sentencepiece, src/normalizer.cc, for the format; Yata et al., "A compact static
 * double-array", 2007; huggingface/tokenizers, normalizers/precompiled, for the clusters; Unicode
 * Standard Annex 29. Clusters below six bytes end by rules GB3 to GB5, GB9, 9a, 9b and 11 alone. */
#include "tokenizer/precompiled.h"

#include <string.h>

#include "tokenizer/unicode.h"

enum { LONGEST_CLUSTER = 5 };

struct wefti_precompiled {
    const uint32_t *units;
    int64_t unit_count;
    const char *texts; /* the results, each with a NUL behind */
    int64_t text_bytes;
};

static int digit_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes base64 to `to`; returns the number of bytes, or -1. */
static int64_t from_base64(const char *text, unsigned char *to) {
    uint32_t bits = 0;
    int held = 0;
    int64_t used = 0;
    for (; *text && *text != '='; text++) {
        int digit = digit_of(*text);
        if (digit < 0) return -1;
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        to[used++] = (unsigned char)(bits >> held);
    }
    return text[strspn(text, "=")] ? -1 : used;
}

weft_status wefti_precompiled_read(wefti_arena *arena, const char *charsmap,
                                   const wefti_precompiled **out) {
    wefti_precompiled *rules = wefti_arena_alloc(arena, sizeof *rules);
    unsigned char *data = wefti_arena_alloc(arena, strlen(charsmap) + 4);
    WEFT_REQUIRE(rules && data, WEFT_E_NOMEM, "no memory for the normalizer Precompiled");
    int64_t bytes = from_base64(charsmap, data);
    WEFT_REQUIRE(bytes >= 0, WEFT_E_CORRUPT, "precompiled_charsmap is not base64");
    uint32_t trie = 0;
    if (bytes >= 4) /* little-endian: units of the trie, in bytes; then the units; then texts */
        trie = data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
    WEFT_REQUIRE(bytes == 0 || (bytes >= 8 && trie >= 4 && trie % 4 == 0 && trie <= bytes - 4),
                 WEFT_E_CORRUPT, "precompiled_charsmap has %lld bytes, and a trie of %u",
                 (long long)bytes, trie);
    rules->unit_count = trie / 4;
    uint32_t *units = wefti_arena_alloc(arena, (size_t)trie + 4);
    WEFT_REQUIRE(units, WEFT_E_NOMEM, "no memory for the normalizer Precompiled");
    for (int64_t i = 0; i < rules->unit_count; i++) {
        const unsigned char *at = data + 4 + 4 * i;
        units[i] = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    }
    rules->units = units;
    rules->texts = (const char *)data + 4 + trie; /* a NUL stands behind them */
    rules->text_bytes = bytes ? bytes - 4 - trie : 0;
    *out = rules;
    return WEFT_OK;
}

static uint32_t offset_of(uint32_t unit) {
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* What the shortest prefix of the text that has a rule becomes; NULL: none has one. */
static const char *rule_of(const wefti_precompiled *rules, const unsigned char *text,
                           int64_t bytes) {
    if (!rules->unit_count) return NULL;
    uint32_t at = offset_of(rules->units[0]);
    for (int64_t i = 0; i < bytes && text[i]; i++) {
        at ^= text[i];
        if (at >= rules->unit_count) return NULL;
        uint32_t unit = rules->units[at];
        if ((unit & (1u << 31 | 0xFF)) != text[i]) return NULL;
        at ^= offset_of(unit);
        if (at >= rules->unit_count) return NULL;
        if (!(unit >> 8 & 1)) continue;
        uint32_t value = rules->units[at] & ~(1u << 31);
        return value < rules->text_bytes ? rules->texts + value : NULL;
    }
    return NULL;
}

/* Hangul: a syllable goes on with vowels and trailing consonants (GB6 to GB8). */
static bool same_syllable(uint32_t before, uint32_t next) {
    bool syllable = before >= 0xAC00 && before < 0xD7A4;
    bool leading = (before >= 0x1100 && before < 0x1160) || (before >= 0xA960 && before < 0xA97D);
    bool vowel = (before >= 0x1160 && before < 0x11A8) || (before >= 0xD7B0 && before < 0xD7C7) ||
                 (syllable && (before - 0xAC00) % 28 == 0);
    bool trailing =
        syllable || (before >= 0x11A8 && before < 0x1200) || (before >= 0xD7CB && before < 0xD7FC);
    bool to_trailing = (next >= 0x11A8 && next < 0x1200) || (next >= 0xD7CB && next < 0xD7FC);
    bool to_vowel = (next >= 0x1160 && next < 0x11A8) || (next >= 0xD7B0 && next < 0xD7C7);
    bool begins = (next >= 0x1100 && next < 0x1160) || (next >= 0xA960 && next < 0xA97D) ||
                  (next >= 0xAC00 && next < 0xD7A4);
    return (leading && (begins || to_vowel)) || (vowel && (to_vowel || to_trailing)) ||
           (trailing && to_trailing);
}

/* Whether no cluster ends between two characters of one that begins with `first`. */
static bool joined(uint32_t first, uint32_t before, uint32_t next) {
    wefti_cluster_part is = wefti_unicode_cluster(before), then = wefti_unicode_cluster(next);
    if (before == '\r' && next == '\n') return true;
    if (is == WEFTI_CLUSTER_CONTROL || then == WEFTI_CLUSTER_CONTROL) return false;
    if (then == WEFTI_CLUSTER_EXTEND || is == WEFTI_CLUSTER_PREPEND) return true;
    if (same_syllable(before, next)) return true;
    return before == 0x200D && then == WEFTI_CLUSTER_PICTURE &&
           wefti_unicode_cluster(first) == WEFTI_CLUSTER_PICTURE;
}

/* Bytes of the cluster at the start of the text. */
static int64_t cluster_of(const unsigned char *text, int64_t bytes) {
    uint32_t first, before, next;
    int64_t end = wefti_utf8_next(text, bytes, &first);
    before = first;
    while (end < bytes && first != WEFTI_NO_CHARACTER) {
        int length = wefti_utf8_next(text + end, bytes - end, &next);
        if (next == WEFTI_NO_CHARACTER || !joined(first, before, next)) break;
        before = next;
        end += length;
    }
    return end;
}

void wefti_precompiled_apply(const wefti_precompiled *rules, const unsigned char *text,
                             int64_t bytes, wefti_text *out) {
    for (int64_t at = 0, length; at < bytes; at += length) {
        length = cluster_of(text + at, bytes - at);
        const char *becomes = length <= LONGEST_CLUSTER ? rule_of(rules, text + at, length) : NULL;
        if (becomes) wefti_text_add_bytes(out, becomes, (int64_t)strlen(becomes));
        for (int64_t i = 0, one; !becomes && i < length; i += one) {
            uint32_t point;
            const unsigned char *character = text + at + i;
            one = wefti_utf8_next(character, length - i, &point);
            const char *alone = rule_of(rules, character, one);
            wefti_text_add_bytes(out, alone ? alone : (const char *)character,
                                 alone ? (int64_t)strlen(alone) : one);
        }
    }
}
