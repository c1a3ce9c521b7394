/* Training data: tokenizers, and data sets of samples from files.
 *
 * A data set has two parts, training and validation, and returns samples by index. A sample is a
 * window of tokens with the same window shifted by one as its target, or an image with its label.
 * The order in which a run visits samples is a function of seed and position only
 * (weft_data_order). A run can therefore resume anywhere, and its samples do not depend on the
 * split. */
#ifndef WEFT_DATA_H
#define WEFT_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "weft/status.h"
#include "weft/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Converts text to token numbers and back. Immutable: any number of threads may share one. */
typedef struct weft_tokenizer weft_tokenizer;

/** Open a tokenizer.
 * @param path  NULL or "bytes": every byte is a token, vocabulary 256. Else a directory or the path
 *   of
 * a Hugging Face tokenizer.json, of any model: byte pairs, unigram, word pieces, words
 * @param out   freed with weft_tokenizer_close
 * @return WEFT_E_NO_IMPL refuses a file whose tokens this reader would get wrong, and names the
 *   part: dropout, a part that it does not know, or a regular expression with its place;
 *   WEFT_E_CORRUPT for a damaged file */
WEFT_API weft_status weft_tokenizer_open(const char *path, weft_tokenizer **out) WEFT_CHECKED;
WEFT_API void weft_tokenizer_close(weft_tokenizer *tokenizer); /* NULL is legal */

/** The largest token number plus one. */
WEFT_API int64_t weft_tokenizer_vocab(const weft_tokenizer *tokenizer);

/** The number of the token with the text `text` in the file ("<|endoftext|>"), or -1. */
WEFT_API int32_t weft_tokenizer_find(const weft_tokenizer *tokenizer, const char *text);

/** Convert `bytes` bytes of text to token numbers. Added tokens ("<|endoftext|>") are recognised.
 * Nothing is put in front or after (see weft_tokenizer_prefix).
 * @param ids        [capacity], receives the numbers; may be NULL if capacity is 0
 * @param out_count  the number of tokens, also set if it is more than `capacity`; the call then
 *   returns
 * WEFT_E_ARG. 4 * bytes + 4 is enough, unless a normalizer makes the text longer (NFKC) */
WEFT_API weft_status weft_tokenizer_encode(const weft_tokenizer *tokenizer, const char *text,
                                           int64_t bytes, int32_t *ids, int64_t capacity,
                                           int64_t *out_count) WEFT_CHECKED;

/** The token numbers that the file's template puts in front of a text (Llama: begin of text).
 * Borrowed from the tokenizer. */
WEFT_API const int32_t *weft_tokenizer_prefix(const weft_tokenizer *tokenizer, int64_t *out_count);

/** Convert `count` token numbers to text, without a NUL. `text`, `capacity` and `out_bytes` follow
 * the rules of weft_tokenizer_encode. */
WEFT_API weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids,
                                           int64_t count, char *text, int64_t capacity,
                                           int64_t *out_bytes) WEFT_CHECKED;

/** The bytes of one token, borrowed; NULL for a number without a token. A token may be a part of a
 * character. */
WEFT_API const char *weft_tokenizer_token(const weft_tokenizer *tokenizer, int32_t id,
                                          int64_t *out_bytes);

/* Sources of data. Strings are not kept. */
typedef struct weft_data_options {
    size_t struct_bytes;
    /* "text": files of text. Files whose name ends in .jsonl or .ndjson are read as "jsonl". Files
     * of another structure (csv, parquet, json, archives) are refused by name or first bytes.
     * "jsonl": one JSON object a line, whose member `field` is one document. "raw": the bytes of
     * any file. "tokens": llm.c token shards. "idx": MNIST-style images and labels, plain or gzip.
     * "npy": NumPy arrays, of tokens when context > 0, else of images and labels. */
    const char *format;
    /* A file, a directory (all files below it, sorted, without hidden ones) or a pattern. In a
     * pattern *, ? and [a-z] stay within a directory, and ** crosses directories. idx, npy: the
     * file of images, or a directory that holds it. */
    const char *path;
    /* idx, npy images: the file of labels. NULL: the name of the images with "images" replaced by
     * "labels" (and "idx3" by "idx1"). */
    const char *labels;
    /* Validation data: a path (with its labels), or the last `validation_fraction` of the samples,
     * in [0, 1); 0: none. */
    const char *validation_path, *validation_labels;
    double validation_fraction;
    const char *tokenizer; /* text, jsonl, raw: see weft_tokenizer_open */
    int64_t context;       /* tokens of a sample; 0: images */
    int64_t vocab;         /* every token or label must be below it; 0: not checked */
    const char *field;     /* jsonl: the member that holds the text; NULL: "text" */
    bool skip_bad_lines;   /* jsonl: leave out lines without such a text instead of refusing them */
} weft_data_options;
WEFTI_ZERO_DEFAULTS(weft_data_options, weft_data_defaults)

typedef enum weft_data_part { WEFT_DATA_TRAIN, WEFT_DATA_VALIDATION } weft_data_part;

typedef struct weft_data weft_data;

/** Open files, check them, count samples. These are read at once and stay in memory: text files
 * below 1 MiB, tokenized text, the texts of jsonl files, .gz files, and npy files in Fortran order.
 * Other samples are read from the files on demand. If a file is cut short meanwhile, reading fails
 * with WEFT_E_IO; it may also fail if a file is replaced or removed.
 * @param out  freed with weft_data_close
 * @return WEFT_E_ARG for invalid options; WEFT_E_NOT_FOUND, WEFT_E_IO; WEFT_E_NO_IMPL for a file
 * whose structure is not text; WEFT_E_CORRUPT with path and offset or line; WEFT_E_SHAPE for data
 * shorter than one sample or labels that do not fit */
WEFT_API weft_status weft_data_open(const weft_data_options *options, weft_data **out) WEFT_CHECKED;
WEFT_API void weft_data_close(weft_data *data); /* NULL is legal */

/** The number of samples of a part: floor((tokens - 1) / context) windows, or images. 0: no such
 * part. */
WEFT_API int64_t weft_data_samples(const weft_data *data, weft_data_part part);

/** Type of a sample: input i32 [context] and target i32 [context], or input f32 [channels, height,
 * width] (as in the file) and target i32 []. */
WEFT_API weft_desc weft_data_input(const weft_data *data);
WEFT_API weft_desc weft_data_target(const weft_data *data);

/** The largest token or label plus one: 256 for byte text, the tokenizer's vocabulary, or the
 * classes in the labels. 0: unknown without reading all data (token files). */
WEFT_API int64_t weft_data_vocab(const weft_data *data);

/** The tokenizer of text, jsonl and raw data, borrowed; NULL for other formats. */
WEFT_API const weft_tokenizer *weft_data_tokenizer(const weft_data *data);

/** Read sample `index` of a part. Any number of threads may read at once.
 * @param input, target  buffers of weft_desc_bytes() of weft_data_input and weft_data_target.
 *   Integer
 * pixels are divided by the largest value of their type (u8 by 255); floats are unchanged */
WEFT_API weft_status weft_data_read(const weft_data *data, weft_data_part part, int64_t index,
                                    void *input, int32_t *target) WEFT_CHECKED;

/** The sample index at `position` of the global order of a part with `samples` samples. Epoch e =
 * position / samples is permutation number e of the seed, so each epoch visits each sample once. */
WEFT_API int64_t weft_data_order(uint64_t seed, int64_t samples, int64_t position);

#ifdef __cplusplus
}
#endif
#endif
