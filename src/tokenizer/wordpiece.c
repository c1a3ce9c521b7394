/* BERT's word pieces. Text is cleaned, ideographs are separated, accents are stripped, and letters
 * become lower case. Words end at white space, and each punctuation character is a word. A word
 * becomes its longest known prefix, then the longest known prefix of the rest, as a continuation
 * ("##ing"). A word with an unknown rest is unknown as a whole.
 *
 * Sources: Schuster & Nakajima, "Japanese and Korean Voice Search", ICASSP 2012; Devlin et al.,
 * "BERT", 2019. The order of steps follows BertNormalizer in Hugging Face tokenizers. Combining
 * marks that are new in Unicode 9 or later stay in place, as there. */
#include <string.h>

#include "tokenizer/tokenizer.h"
#include "base/text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_bert.h"

/* ---- normalising ---- */

static int put_utf8(uint32_t point, unsigned char *to) {
    if (point < 0x80) {
        to[0] = (unsigned char)point;
        return 1;
    }
    int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    to[0] = (unsigned char)(lead[more] | point >> (6 * more));
    for (int i = 1; i <= more; i++)
        to[i] = (unsigned char)(0x80 | (point >> (6 * (more - i)) & 0x3F));
    return more + 1;
}

/* The normalised form of one character, as UTF-8 in `to`; returns its bytes. */
static int rewrite(const wefti_bert *b, uint32_t point, unsigned char to[WEFTI_BERT_CHARACTER]) {
    uint32_t parts[4] = {point};
    int count = 1, used = 0;
    if (b->clean) {
        parts[0] = point = wefti_bert_clean(point);
        if (!point) return 0;
    }
    bool apart = b->ideographs && wefti_bert_ideograph(point);
    if (b->strip) count = wefti_bert_strip(point, parts);
    if (apart) to[used++] = ' ';
    for (int i = 0; i < count; i++) {
        uint32_t small[4] = {parts[i]};
        int smalls = b->lower ? wefti_bert_lower(parts[i], small) : 1;
        for (int k = 0; k < smalls; k++) used += put_utf8(small[k], to + used);
    }
    if (apart) to[used++] = ' ';
    return used;
}

weft_status wefti_bert_normalise(const wefti_bert *b, const unsigned char *text, int64_t bytes,
                                 unsigned char **buffer, int64_t *capacity, int64_t *out_bytes) {
    int64_t used = 0;
    for (int64_t at = 0; at < bytes;) {
        if (*capacity - used < WEFTI_BERT_CHARACTER) {
            int64_t wanted = (bytes - at) + used + used / 8 + 4 * WEFTI_BERT_CHARACTER;
            unsigned char *bigger = wefti_realloc(*buffer, (size_t)wanted);
            WEFT_REQUIRE(bigger, WEFT_E_NOMEM, "no memory for %lld bytes of text",
                         (long long)wanted);
            *buffer = bigger;
            *capacity = wanted;
        }
        uint32_t point;
        int length = wefti_utf8_next(text + at, bytes - at, &point);
        if (point != WEFTI_NO_CHARACTER)
            used += rewrite(b, point, *buffer + used);
        else if (!b->clean) /* no character of any word: cleaning removes it */
            (*buffer)[used++] = text[at];
        at += length;
    }
    *out_bytes = used;
    return WEFT_OK;
}

/* ---- words ---- */

static uint32_t character(const unsigned char *text, int64_t bytes, int *length) {
    uint32_t point;
    *length = wefti_utf8_next(text, bytes, &point);
    return point;
}

int64_t wefti_bert_next(const unsigned char *text, int64_t bytes, bool *out_white) {
    int length;
    uint32_t point = character(text, bytes, &length);
    int64_t at = length;
    *out_white = wefti_unicode_space(point);
    if (!*out_white && wefti_bert_punctuation(point)) return at;
    for (; at < bytes; at += length) {
        point = character(text + at, bytes - at, &length);
        if (wefti_unicode_space(point) != *out_white) break;
        if (!*out_white && wefti_bert_punctuation(point)) break;
    }
    return at;
}

static weft_status add_id(wefti_ids *ids, int32_t id) {
    WEFT_TRY(WEFT_GROW(ids->ids, ids->count, ids->capacity));
    ids->ids[ids->count++] = id;
    return WEFT_OK;
}

/* The longest piece at the start of `text`, or -1; `starts`: it begins the word. */
static int32_t longest_piece(const weft_tokenizer *t, const unsigned char *text, int64_t bytes,
                             bool starts, unsigned char *scratch, int64_t *out_bytes) {
    const wefti_pieces *p = &t->pieces;
    int64_t front = starts ? 0 : p->prefix.count;
    if (bytes > p->longest - front) bytes = p->longest - front;
    if (bytes <= 0) return -1;
    memcpy(scratch, p->prefix.data, (size_t)front);
    memcpy(scratch + front, text, (size_t)bytes);
    for (; bytes > 0; bytes--) { /* a piece is whole characters, so any bytes may be tried */
        int32_t id = (int32_t)wefti_map_find(&t->words, scratch, front + bytes);
        if (id < 0) continue;
        *out_bytes = bytes;
        return id;
    }
    return -1;
}

static int64_t characters(const unsigned char *word, int64_t bytes) {
    int64_t count = 0;
    for (int64_t at = 0; at < bytes; count++) {
        int length;
        (void)character(word + at, bytes - at, &length);
        at += length;
    }
    return count;
}

weft_status wefti_piece_word(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                             wefti_ids *ids) {
    const wefti_pieces *p = &t->pieces;
    int64_t before = ids->count, piece;
    if (bytes > p->most_characters && characters(word, bytes) > p->most_characters)
        return add_id(ids, p->unknown);
    unsigned char *scratch = wefti_alloc((size_t)p->longest + 1);
    WEFT_REQUIRE(scratch, WEFT_E_NOMEM, "no memory for a word of %lld bytes", (long long)bytes);
    weft_status status = WEFT_OK;
    for (int64_t at = 0; at < bytes && status >= 0; at += piece) {
        int32_t id = longest_piece(t, word + at, bytes - at, at == 0, scratch, &piece);
        if (id < 0) {
            ids->count = before;
            status = add_id(ids, p->unknown);
            break;
        }
        status = add_id(ids, id);
    }
    wefti_free(scratch);
    return status;
}

/* ---- decoding ---- */

static int64_t replace(unsigned char *text, int64_t bytes, const char *from, const char *to) {
    int64_t long_ = (int64_t)strlen(from), short_ = (int64_t)strlen(to), used = 0;
    for (int64_t at = 0; at < bytes;) {
        if (bytes - at >= long_ && !memcmp(text + at, from, (size_t)long_)) {
            memcpy(text + used, to, (size_t)short_);
            used += short_;
            at += long_;
        } else {
            text[used++] = text[at++];
        }
    }
    return used;
}

/* Texts that English writes without a space before them; the list of the decoder WordPiece. */
static int64_t cleanup(unsigned char *text, int64_t bytes) {
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        bytes = replace(text, bytes, pairs[i][0], pairs[i][1]);
    return bytes;
}

weft_status wefti_piece_decoded(const weft_tokenizer *t, wefti_bytes piece, bool first,
                                wefti_bytes *out) {
    const wefti_pieces *p = &t->pieces;
    unsigned char *to = wefti_arena_alloc(t->arena, (size_t)piece.count + 2);
    WEFT_REQUIRE(to, WEFT_E_NOMEM, "no memory for a vocabulary");
    int64_t used = 0, skip = 0;
    bool continues = p->joins && piece.count >= p->joined.count &&
                     !memcmp(piece.data, p->joined.data, (size_t)p->joined.count);
    if (!first && continues)
        skip = p->joined.count;
    else if (!first)
        to[used++] = ' ';
    memcpy(to + used, piece.data + skip, (size_t)(piece.count - skip));
    used += piece.count - skip;
    if (p->cleanup) used = cleanup(to, used);
    *out = (wefti_bytes){to, used};
    return WEFT_OK;
}
