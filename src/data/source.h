/* Sources of samples: a long sequence of tokens in many pieces, or images with labels. */
#ifndef WEFTI_DATA_SOURCE_H
#define WEFTI_DATA_SOURCE_H

#include "base/memory.h"
#include "base/text.h"
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

/* How the texts of a file are found. */
typedef enum wefti_text_kind {
    WEFTI_TEXT_BY_NAME, /* JSON lines by the file's name; other structures are refused; else raw */
    WEFTI_TEXT_JSON_LINES, /* one object a line; its "text" is a document */
    WEFTI_TEXT_RAW         /* the file is one document */
} wefti_text_kind;

typedef struct wefti_text_options {
    wefti_text_kind kind;
    const weft_tokenizer *tokenizer; /* WEFTI_TOKENS_BYTES, NULL: bytes are tokens */
    int32_t end;                     /* the token behind each of several documents; -1: none */
    const char *field;               /* JSON lines: the member with the text; NULL: "text" */
    bool skip_bad;                   /* JSON lines that would be refused */
} wefti_text_options;

/* Documents as bytes, or as tokens of a tokenizer. Bytes have no token that ends a text: a document
 * of a JSON line ends with a newline, files follow each other. A byte order mark is no part of a
 * text. Texts in another encoding than UTF-8 are refused, unless bytes are tokens or the kind is
 * RAW. Appends to `notes` a line for each thing that a user should know. */
weft_status wefti_tokens_open_text(wefti_token_source *source, const char *path,
                                   const wefti_text_options *options,
                                   wefti_text *notes) WEFT_CHECKED;
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

/* weft_data_open with a tokenizer for text, which the data own from then on, also after a failure,
 * and the token that ends a text (-1: none). NULL: the tokenizer that the options name. */
weft_status wefti_data_open_with(const weft_data_options *options, weft_tokenizer *tokenizer,
                                 int32_t end, weft_data **out) WEFT_CHECKED;
/* What a user should know of the data, a line for each thing; "": nothing. */
const char *wefti_data_notes(const weft_data *data);

/* Images and labels. */
typedef struct wefti_image_source {
    wefti_array_file images, labels;
    char *path, *labels_path;
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
