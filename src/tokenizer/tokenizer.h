/* Tokenizers from inside.
 *
 * Text passes these stages, as in Hugging Face tokenizers. Added tokens are extracted (added.c).
 * The rest is normalised (normalize.c) and split into words (pretokenize.c). A model turns each
 * word into tokens (model/): byte-pair merging, the most probable pieces, word pieces, or whole
 * words. Decoding goes back by a table of each token's bytes (decode.c). file.c reads the stages
 * from a tokenizer.json, vocabulary.c its tokens.
 *
 * With the pre-tokenizer ByteLevel, words and vocabulary are bytes, without the detour through
 * GPT-2's alphabet. */
#ifndef WEFTI_TOKENIZER_TOKENIZER_H
#define WEFTI_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/map/map.h"
#include "base/memory.h"
#include "base/status.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/trie.h"
#include "weft/data.h"

enum { WEFTI_TOKENIZER_BYTES = 256 << 20 }; /* the largest tokenizer.json */

typedef enum wefti_token_model {
    WEFTI_MODEL_BYTES, /* token number = byte */
    WEFTI_MODEL_BPE,
    WEFTI_MODEL_UNIGRAM,
    WEFTI_MODEL_WORD_PIECE,
    WEFTI_MODEL_WORD_LEVEL
} wefti_token_model;

typedef enum wefti_alphabet {
    WEFTI_ALPHABET_NONE,
    WEFTI_ALPHABET_BYTES, /* words of the model are bytes */
    WEFTI_ALPHABET_MAPPED /* words are characters of GPT-2's alphabet, which stand for bytes */
} wefti_alphabet;

typedef struct wefti_added_token {
    wefti_bytes content;
    wefti_bytes pattern; /* the content, normalised for a token that is found in normalised text */
    int32_t id;
    bool normalized, single_word, lstrip, rstrip;
} wefti_added_token;

typedef struct wefti_added {
    wefti_added_token *tokens;
    int64_t count;
    wefti_trie exact, normalized; /* patterns -> index of a token */
    bool begins[2][256];          /* bytes that begin a pattern of each */
} wefti_added;

/* The first decoders of a text, and what is left to do with a whole text. */
typedef struct wefti_decoding {
    wefti_bytes *first, *last; /* [vocab], of a token that begins or ends a text; NULL: as others */
    const char *strip;         /* removed from the start of a text, up to `strip_count` times */
    int64_t strip_count;
} wefti_decoding;

struct weft_tokenizer {
    wefti_arena *arena;
    const wefti_normal_step *normal;
    int64_t normal_count;
    const wefti_split_step *split;
    int64_t split_count;
    wefti_alphabet alphabet;
    wefti_token_model model;
    int64_t vocab;
    wefti_bytes *tokens;   /* [vocab], the decoded bytes; data NULL: no such token */
    wefti_map words;       /* model vocabulary: bytes, or names -> number */
    int32_t byte_ids[256]; /* the token of a single byte (byte_fallback: <0xNN>), or -1 */
    int32_t unknown;       /* -1: none */
    bool fuse_unknown, byte_fallback;
    wefti_bytes prefix_text, suffix_text; /* of characters inside, and at the end, of words */
    wefti_pair_map merges;
    bool whole_words;            /* a word that is a token is not merged (ignore_merges) */
    double *scores, least_score; /* [vocab], unigram */
    wefti_trie pieces;           /* unigram */
    int64_t most_characters;     /* word pieces: of a word; longer ones are unknown */
    int64_t longest;             /* word pieces: bytes of a piece */
    wefti_added added;
    wefti_decoding decoding;
    int32_t *prefix; /* tokens in front of a text */
    int64_t prefix_count;
};

/* A tokenizer from the text of a tokenizer.json; `path` is for messages. */
weft_status wefti_tokenizer_parse(const char *path, const char *text, int64_t bytes,
                                  weft_tokenizer **out) WEFT_CHECKED;

/* Growing list of token numbers. */
typedef struct wefti_ids {
    int32_t *ids;
    int64_t count, capacity;
} wefti_ids;
static inline weft_status wefti_ids_add(wefti_ids *ids, int32_t id) {
    WEFT_TRY(WEFT_GROW(ids->ids, ids->count, ids->capacity));
    ids->ids[ids->count++] = id;
    return WEFT_OK;
}

/* Bytes of the first character that the model tells apart: a byte, or a UTF-8 character. */
int wefti_model_character(const weft_tokenizer *tokenizer, const unsigned char *text,
                          int64_t bytes);

/* The next added token in text[from, bytes). */
typedef struct wefti_added_match {
    const wefti_added_token *token; /* NULL: there is none */
    int64_t first, behind;
} wefti_added_match;
/* Leftmost, and longest of those. */
wefti_added_match wefti_added_find(const wefti_added *added, bool normalized,
                                   const unsigned char *text, int64_t bytes, int64_t from);

/* Scratch of one thread that encodes: buffers and a cache of words. */
typedef struct wefti_encoder wefti_encoder;
weft_status wefti_encoder_create(const weft_tokenizer *tokenizer, wefti_encoder **out) WEFT_CHECKED;
void wefti_encoder_destroy(wefti_encoder *encoder);
/* Append the tokens of a text. */
weft_status wefti_encoder_add(wefti_encoder *encoder, const unsigned char *text, int64_t bytes,
                              wefti_ids *ids) WEFT_CHECKED;

#endif
