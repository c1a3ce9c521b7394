/* The models of tokenizers: each appends the tokens of a word of at least one byte. */
#ifndef WEFTI_TOKENIZER_MODEL_H
#define WEFTI_TOKENIZER_MODEL_H

#include "tokenizer/tokenizer.h"

/* Buffers, kept between calls. Zero-initialise. */
typedef struct wefti_model_scratch {
    struct wefti_merge_symbol *symbols;
    int64_t symbol_capacity;
    struct wefti_merge_candidate *heap;
    int64_t heap_capacity;
    struct wefti_unigram_node *nodes;
    int64_t node_capacity;
    unsigned char *piece;
    int64_t piece_capacity;
} wefti_model_scratch;
void wefti_model_scratch_free(wefti_model_scratch *scratch);
/* Room for `wanted` elements, without keeping old ones. */
weft_status wefti_model_room(void **array, int64_t *capacity, int64_t wanted,
                             size_t element) WEFT_CHECKED;

typedef weft_status (*wefti_model_function)(const weft_tokenizer *tokenizer,
                                            const unsigned char *word, int64_t bytes,
                                            wefti_model_scratch *scratch, wefti_ids *ids);
/* Byte-pair merging, in time n log n. */
weft_status wefti_model_bpe(const weft_tokenizer *tokenizer, const unsigned char *word,
                            int64_t bytes, wefti_model_scratch *scratch,
                            wefti_ids *ids) WEFT_CHECKED;
/* The pieces of the largest sum of scores. */
weft_status wefti_model_unigram(const weft_tokenizer *tokenizer, const unsigned char *word,
                                int64_t bytes, wefti_model_scratch *scratch,
                                wefti_ids *ids) WEFT_CHECKED;
/* The longest known pieces, or the unknown token. */
weft_status wefti_model_word_piece(const weft_tokenizer *tokenizer, const unsigned char *word,
                                   int64_t bytes, wefti_model_scratch *scratch,
                                   wefti_ids *ids) WEFT_CHECKED;
/* The word, or the unknown token. */
weft_status wefti_model_word_level(const weft_tokenizer *tokenizer, const unsigned char *word,
                                   int64_t bytes, wefti_model_scratch *scratch,
                                   wefti_ids *ids) WEFT_CHECKED;

#endif
