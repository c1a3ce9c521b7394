/* The models WordPiece and WordLevel. A word becomes its longest known prefix, then the longest
 * known prefix of the rest, as a continuation ("##ing"). A word with an unknown rest is unknown as
 * a whole.
 *
 * Source: Schuster & Nakajima, "Japanese and Korean Voice Search", ICASSP 2012. */
#include <string.h>

#include "tokenizer/model/model.h"

/* The longest piece at the start of `text`, or -1; `starts`: it begins the word. */
static int32_t longest_piece(const weft_tokenizer *t, const unsigned char *text, int64_t bytes,
                             bool starts, unsigned char *scratch, int64_t *out_bytes) {
    int64_t front = starts ? 0 : t->prefix_text.count;
    if (bytes > t->longest - front) bytes = t->longest - front;
    if (bytes <= 0) return -1;
    if (front) memcpy(scratch, t->prefix_text.data, (size_t)front);
    memcpy(scratch + front, text, (size_t)bytes);
    for (; bytes > 0; bytes--) { /* a piece is whole characters, so any bytes may be tried */
        int32_t id = (int32_t)wefti_map_find(&t->words, scratch, front + bytes);
        if (id < 0) continue;
        *out_bytes = bytes;
        return id;
    }
    return -1;
}

static bool too_long(const weft_tokenizer *t, const unsigned char *word, int64_t bytes) {
    int64_t count = 0;
    if (bytes <= t->most_characters) return false;
    for (int64_t at = 0; at < bytes; count++) at += wefti_model_character(t, word + at, bytes - at);
    return count > t->most_characters;
}

weft_status wefti_model_word_piece(const weft_tokenizer *t, const unsigned char *word,
                                   int64_t bytes, wefti_model_scratch *scratch, wefti_ids *ids) {
    int64_t before = ids->count, piece;
    if (too_long(t, word, bytes)) return wefti_ids_add(ids, t->unknown);
    WEFT_TRY(wefti_model_room((void **)&scratch->piece, &scratch->piece_capacity, t->longest, 1));
    for (int64_t at = 0; at < bytes; at += piece) {
        int32_t id = longest_piece(t, word + at, bytes - at, at == 0, scratch->piece, &piece);
        if (id < 0) {
            ids->count = before;
            return wefti_ids_add(ids, t->unknown);
        }
        WEFT_TRY(wefti_ids_add(ids, id));
    }
    return WEFT_OK;
}

weft_status wefti_model_word_level(const weft_tokenizer *t, const unsigned char *word,
                                   int64_t bytes, wefti_model_scratch *scratch, wefti_ids *ids) {
    (void)scratch;
    int32_t id = (int32_t)wefti_map_find(&t->words, word, bytes);
    WEFT_REQUIRE(id >= 0 || t->unknown >= 0, WEFT_E_ARG,
                 "the tokenizer has no token for the word '%.*s', and none for unknown words",
                 (int)(bytes < 100 ? bytes : 100), (const char *)word);
    return wefti_ids_add(ids, id >= 0 ? id : t->unknown);
}
