/* Training data: tokenizers, and data sets of samples read from files.
 *
 * A data set has two parts, training and validation, and gives samples by index: a window of tokens
 * with the same window shifted by one as its target, or an image with its label. In which order a
 * run visits them is a function of seed and position only (weft_data_order), so that a run can be
 * resumed anywhere and its samples do not depend on how the work is split. */
#ifndef WEFT_DATA_H
#define WEFT_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "weft/status.h"
#include "weft/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Text to token numbers and back. Immutable: any number of threads may share one. */
typedef struct weft_tokenizer weft_tokenizer;

/** Open a tokenizer.
 *  @param path  NULL or "bytes": every byte is a token, vocabulary 256. Else a Hugging Face
 * tokenizer.json with a byte-pair model (GPT-2, Llama 3, Qwen 2 and Llama 2 styles) or with the
 * word pieces of BERT, or a directory that holds one.
 *  @param out   owned by the caller: weft_tokenizer_close
 *  @return WEFT_E_NO_IMPL names a part of the file that is not supported; WEFT_E_CORRUPT a damaged
 * file. */
WEFT_API weft_status weft_tokenizer_open(const char *path, weft_tokenizer **out) WEFT_CHECKED;
WEFT_API void weft_tokenizer_close(weft_tokenizer *tokenizer); /* NULL is legal */

/** The largest token number plus one. */
WEFT_API int64_t weft_tokenizer_vocab(const weft_tokenizer *tokenizer);

/** The number of the token written `text` in the file ("<|endoftext|>"), or -1. */
WEFT_API int32_t weft_tokenizer_find(const weft_tokenizer *tokenizer, const char *text);

/** Token numbers of `bytes` bytes of text. Added tokens ("<|endoftext|>") are recognised in it;
 * nothing is put in front or behind (see weft_tokenizer_prefix).
 *  @param ids        receives the numbers; may be NULL when capacity is 0
 *  @param out_count  how many there are. When that is more than `capacity` the call returns
 * WEFT_E_ARG, and *out_count is set all the same; 4 * bytes + 4 always suffice. */
WEFT_API weft_status weft_tokenizer_encode(const weft_tokenizer *tokenizer, const char *text,
                                           int64_t bytes, int32_t *ids, int64_t capacity,
                                           int64_t *out_count) WEFT_CHECKED;

/** The numbers that the file's own template puts in front of a text (Llama: begin of text);
 * borrowed. */
WEFT_API const int32_t *weft_tokenizer_prefix(const weft_tokenizer *tokenizer, int64_t *out_count);

/** Text of token numbers; same rules for `text`, `capacity` and `out_bytes`. No NUL is added. */
WEFT_API weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids,
                                           int64_t count, char *text, int64_t capacity,
                                           int64_t *out_bytes) WEFT_CHECKED;

/** The bytes of one token, borrowed, or NULL for a number without a token. A token may be part of a
 *  character. */
WEFT_API const char *weft_tokenizer_token(const weft_tokenizer *tokenizer, int32_t id,
                                          int64_t *out_bytes);

/* Where data comes from. Zero-initialise, then set what is needed. Strings are not kept. */
typedef struct weft_data_options {
    /* "text": files of text. "tokens": llm.c token shards. "idx": MNIST-style images and labels,
     * plain or gzip. "npy": NumPy arrays, of tokens when context > 0, else of images and labels. */
    const char *format;
    /* A file, a directory (all files below it, sorted, hidden ones left out) or a pattern with *,
     * ?, [a-z] and
     * ** that also crosses directories. idx, npy: the file of images, or a directory that holds it.
     */
    const char *path;
    /* idx, npy images: the file of labels. NULL: the name of the images with "images" replaced by
     * "labels" (and "idx3" by "idx1"). */
    const char *labels;
    /* Validation data: a path of its own (with its labels), else the last `validation_fraction` of
     * the samples, in [0, 1); 0: none. */
    const char *validation_path, *validation_labels;
    double validation_fraction;
    const char *tokenizer; /* text: see weft_tokenizer_open */
    int64_t context;       /* tokens of a sample; 0: images */
    int64_t vocab;         /* every token or label must be below it; 0: not checked */
} weft_data_options;

typedef enum weft_data_part { WEFT_DATA_TRAIN, WEFT_DATA_VALIDATION } weft_data_part;

typedef struct weft_data weft_data;

/** Open files, check them, count samples. Samples are read from the files when they are asked for:
 *  of a file that was cut short meanwhile reading fails with WEFT_E_IO, and so it may where a file
 *  was replaced or removed. Text files below 1 MiB, text that is tokenized, .gz and npy files in
 *  Fortran's order are read at once and lie in memory.
 *  @return WEFT_E_ARG for options that make no sense, WEFT_E_NOT_FOUND, WEFT_E_IO, WEFT_E_CORRUPT
 * with path and offset; WEFT_E_SHAPE for data shorter than one sample or labels that do not fit. */
WEFT_API weft_status weft_data_open(const weft_data_options *options, weft_data **out) WEFT_CHECKED;
WEFT_API void weft_data_close(weft_data *data); /* NULL is legal */

/** Samples of a part: floor((tokens - 1) / context) windows, or images. 0: no such part. */
WEFT_API int64_t weft_data_samples(const weft_data *data, weft_data_part part);

/** What one sample is: input i32 [context] and target i32 [context], or input f32 [...] and target
 * i32 []. */
WEFT_API weft_desc weft_data_input(const weft_data *data);
WEFT_API weft_desc weft_data_target(const weft_data *data);

/** Largest token or label plus one, as far as known without reading all: 256 for byte text, the
 *  tokenizer's vocabulary, the classes that the labels name; 0: unknown (token files). */
WEFT_API int64_t weft_data_vocab(const weft_data *data);

/** The tokenizer of text data, borrowed; NULL for other formats. */
WEFT_API const weft_tokenizer *weft_data_tokenizer(const weft_data *data);

/** Read sample `index` of a part. Threads: any number at once.
 *  @param input, target  buffers of weft_desc_bytes(weft_data_input(data)) and of the target's.
 * Images: integers are divided by the largest value of their type (u8 by 255), floats are kept. */
WEFT_API weft_status weft_data_read(const weft_data *data, weft_data_part part, int64_t index,
                                    void *input, int32_t *target) WEFT_CHECKED;

/** The sample index at `position` of the global order of a part of `samples` samples: epoch e =
 * position / samples is the permutation number e of the seed, so each epoch visits each sample
 * once. */
WEFT_API int64_t weft_data_order(uint64_t seed, int64_t samples, int64_t position);

#ifdef __cplusplus
}
#endif
#endif
