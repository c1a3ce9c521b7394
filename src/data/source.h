/* Sources of samples: a long sequence of tokens in many pieces, or images with labels. */
#ifndef WEFTI_DATA_SOURCE_H
#define WEFTI_DATA_SOURCE_H

#include "base/memory.h"
#include "data/array.h"
#include "weft/data.h"

/* The tokens of one file. */
typedef struct wefti_token_piece {
    wefti_array array;
    int64_t first; /* tokens of all pieces before */
    const char *path;
} wefti_token_piece;

/* Zero-initialise; close also after a failed open. */
typedef struct wefti_token_source {
    wefti_arena *arena; /* paths, and tokens made from text */
    wefti_token_piece *pieces;
    int64_t count, capacity;
    wefti_array_file *files;
    int64_t file_count, file_capacity;
    int64_t tokens;
} wefti_token_source;

/* Text files as bytes, or as tokens of `tokenizer` (then, of several files, each ends with the
 * tokenizer's end of text if it has one). */
weft_status wefti_tokens_open_text(wefti_token_source *source, const char *path,
                                   const weft_tokenizer *tokenizer) WEFT_CHECKED;
/* Shards or npy files of one dimension. */
weft_status wefti_tokens_open_arrays(wefti_token_source *source, const char *path,
                                     wefti_array_format format) WEFT_CHECKED;
void wefti_tokens_close(wefti_token_source *source);

/* Tokens [first, first + count); each must be in [0, vocab) (vocab 0: in [0, 2^31)), else
 * WEFT_E_ARG names the token and its place. */
weft_status wefti_tokens_read(const wefti_token_source *source, int64_t first, int64_t count,
                              int64_t vocab, int32_t *out) WEFT_CHECKED;
/* The same check for the first 256 MiB of tokens, in advance. */
weft_status wefti_tokens_check(const wefti_token_source *source, int64_t vocab) WEFT_CHECKED;

/* Images and labels. */
typedef struct wefti_image_source {
    wefti_array_file images, labels;
    char *path; /* of the images */
    int64_t count;
    int64_t classes; /* the largest label plus one */
} wefti_image_source;

/* `labels` may be NULL: see weft/data.h. Every label is checked against `vocab` (0: not). */
weft_status wefti_images_open(wefti_image_source *source, const char *path, const char *labels,
                              wefti_array_format format, int64_t vocab) WEFT_CHECKED;
void wefti_images_close(wefti_image_source *source);
weft_status wefti_images_read(const wefti_image_source *source, int64_t index, float *image,
                              int32_t *label) WEFT_CHECKED;

#endif
