/* Tokenizers from inside: tables, splitting into words, byte-pair merging.
 *
 * Text passes these stages, as in Hugging Face tokenizers. Added tokens are extracted. The rest is
 * normalised (Llama 2: spaces become U+2581, one in front). A regular expression splits it into
 * words; split.c has hand-written matchers for the expressions of GPT-2 and Llama 3. Each word is a
 * list of bytes (byte-level) or characters (pieces), whose neighbours are merged, lowest rank first
 * (merge.c). BERT's words become pieces of a vocabulary instead (wordpiece.c).
 *
 * Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units",
 * ACL 2016; byte level: Radford et al., "Language Models are Unsupervised Multitask Learners",
 * 2019, section 2.2. */
#ifndef WEFTI_TOKENIZER_TOKENIZER_H
#define WEFTI_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/map/map.h"
#include "base/memory.h"
#include "base/status.h"
#include "weft/data.h"

enum { WEFTI_TOKENIZER_BYTES = 256 << 20 }; /* the largest tokenizer.json */

typedef enum wefti_token_kind {
    WEFTI_TOKENS_BYTES,      /* token number = byte */
    WEFTI_TOKENS_BYTE_LEVEL, /* byte pairs over bytes */
    WEFTI_TOKENS_PIECES, /* byte pairs over characters, others as bytes <0xNN> (sentencepiece) */
    WEFTI_TOKENS_WORD_PIECES /* longest known pieces of words (BERT) */
} wefti_token_kind;

typedef enum wefti_pretokenizer {
    WEFTI_SPLIT_NONE, /* the whole text is one word */
    WEFTI_SPLIT_GPT2,
    WEFTI_SPLIT_LLAMA3, /* numbers by up to three digits */
    WEFTI_SPLIT_QWEN2,  /* the same, numbers digit by digit */
    WEFTI_SPLIT_PIECES, /* before each U+2581 that follows another character */
    WEFTI_SPLIT_BERT    /* at white space, which is dropped, and at punctuation */
} wefti_pretokenizer;

typedef enum wefti_prepend { /* U+2581 in front of text between added tokens: */
                             WEFTI_PREPEND_NEVER,
                             WEFTI_PREPEND_ALWAYS,  /* also in front of another (normalizer Prepend)
                                                     */
                             WEFTI_PREPEND_MISSING, /* unless there (Metaspace "always") */
                             WEFTI_PREPEND_FIRST_MISSING, /* only at the start of all, unless there
                                                             (Metaspace "first") */
} wefti_prepend;

typedef struct wefti_bytes {
    const unsigned char *data;
    int64_t count;
} wefti_bytes;

/* (left, right) -> rank and merged token. */
typedef struct wefti_merge_slot {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: free */
    int32_t id;
} wefti_merge_slot;
typedef struct wefti_merge_map {
    wefti_merge_slot *slots;
    int64_t capacity;
} wefti_merge_map;
weft_status wefti_merge_map_create(int64_t count, wefti_merge_map *out) WEFT_CHECKED;
const wefti_merge_slot *wefti_merge_map_find(const wefti_merge_map *map, int32_t left,
                                             int32_t right);
/* A pair that is there gets the new rank, as in Hugging Face tokenizers. */
void wefti_merge_map_add(wefti_merge_map *map, int32_t left, int32_t right, int32_t rank,
                         int32_t id);

typedef struct wefti_added_token {
    wefti_bytes content;
    int32_t id;
    bool normalized; /* matched in normalised text */
} wefti_added_token;

/* BertNormalizer: the operations on characters, in this order. */
typedef struct wefti_bert {
    bool clean, ideographs, strip, lower;
} wefti_bert;

/* The model and the decoder WordPiece. */
typedef struct wefti_pieces {
    wefti_bytes prefix;      /* of pieces that continue a word: "##" */
    int64_t most_characters; /* of a word; longer ones are unknown */
    int64_t longest;         /* bytes of a piece */
    int32_t unknown;
    wefti_bytes *first; /* [vocab], the decoded bytes at the start of a text */
    wefti_bytes joined; /* decoding: the prefix that no space stands before, if `joins` */
    bool joins, cleanup;
} wefti_pieces;

struct weft_tokenizer {
    wefti_token_kind kind;
    wefti_arena *arena;
    int64_t vocab;
    wefti_bytes *tokens; /* [vocab], the decoded bytes; data NULL: no such token */
    wefti_map words;     /* model vocabulary: bytes (byte level) or the text of pieces -> number */
    wefti_merge_map merges;
    int32_t byte_ids[256]; /* the token of a single byte (pieces: <0xNN>), or -1 */
    wefti_pretokenizer split;
    bool space_first; /* byte level: a space is put in front of text that does not begin with one */
    bool whole_words; /* a word that is a token is not merged (ignore_merges) */
    wefti_prepend prepend; /* pieces */
    bool strip;            /* pieces: decoding drops one leading space */
    wefti_added_token *added;
    int64_t added_count;
    bool added_first[256]; /* bytes that begin an added token */
    int32_t *prefix;
    int64_t prefix_count;
    wefti_bert bert;     /* word pieces */
    wefti_pieces pieces; /* word pieces */
};

#define WEFTI_PIECE_SPACE "\xE2\x96\x81" /* U+2581, which stands for a space in pieces */

/* A tokenizer from the text of a tokenizer.json; `path` is for messages. */
weft_status wefti_tokenizer_parse(const char *path, const char *text, int64_t bytes,
                                  weft_tokenizer **out) WEFT_CHECKED;

/* Growing list of token numbers. */
typedef struct wefti_ids {
    int32_t *ids;
    int64_t count, capacity;
} wefti_ids;

/* Bytes of the first word of text[0, bytes), bytes > 0. */
int64_t wefti_pretokenize_next(wefti_pretokenizer split, const unsigned char *text, int64_t bytes);

/* wordpiece.c */
enum { WEFTI_BERT_CHARACTER = 40 }; /* bytes at most that normalising makes of one character */
/* Normalised text in *buffer, of *capacity bytes, which grows. */
weft_status wefti_bert_normalise(const wefti_bert *bert, const unsigned char *text, int64_t bytes,
                                 unsigned char **buffer, int64_t *capacity,
                                 int64_t *out_bytes) WEFT_CHECKED;
/* Bytes of the first word of text[0, bytes), bytes > 0, or of the white space before it. */
int64_t wefti_bert_next(const unsigned char *text, int64_t bytes, bool *out_white);
/* Append the pieces of a word, or the unknown token. */
weft_status wefti_piece_word(const weft_tokenizer *tokenizer, const unsigned char *word,
                             int64_t bytes, wefti_ids *ids) WEFT_CHECKED;
/* The decoded bytes of a piece, in the tokenizer's arena. */
weft_status wefti_piece_decoded(const weft_tokenizer *tokenizer, wefti_bytes piece, bool first,
                                wefti_bytes *out) WEFT_CHECKED;

/* Scratch of one thread that encodes: buffers and a cache of words. */
typedef struct wefti_encoder wefti_encoder;
weft_status wefti_encoder_create(const weft_tokenizer *tokenizer, wefti_encoder **out) WEFT_CHECKED;
void wefti_encoder_destroy(wefti_encoder *encoder);
/* Append the tokens of a text. */
weft_status wefti_encoder_add(wefti_encoder *encoder, const unsigned char *text, int64_t bytes,
                              wefti_ids *ids) WEFT_CHECKED;

/* Merge a word (>= 1 byte): append its tokens. In time n log n. `scratch` is kept between calls. */
typedef struct wefti_merge_scratch {
    struct wefti_merge_symbol *symbols;
    int64_t symbol_capacity;
    struct wefti_merge_candidate *heap;
    int64_t heap_capacity;
} wefti_merge_scratch;
weft_status wefti_merge_word(const weft_tokenizer *tokenizer, const unsigned char *word,
                             int64_t bytes, wefti_merge_scratch *scratch,
                             wefti_ids *ids) WEFT_CHECKED;
void wefti_merge_scratch_free(wefti_merge_scratch *scratch);

#endif
