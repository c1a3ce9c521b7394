/* Arrays read from files: IDX, npy and llm.c token shards, all seen as one n-dimensional array.
 *
 * The parsers take bytes in memory and look at nothing else, so that fuzzers and truncation tests
 * call them directly; of a large file its begin is enough for them. Every count is checked against
 * the bytes that are there before anything is allocated or read. Sources: IDX: LeCun, Cortes,
 * Burges, "The MNIST database", file formats. npy: NumPy enhancement proposal 1 and
 * numpy.lib.format (versions 1 to 3). Shards: llm.c, dev/data/data_common.py. */
#ifndef WEFTI_DATA_ARRAY_H
#define WEFTI_DATA_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reader.h"
#include "base/status.h"
#include "weft/types.h"

/* name, bytes, largest value (white in an image; floats are kept as they are) */
#define WEFTI_ELEMENT_LIST(X)                                                                      \
    X(U8, 1, 255.0)                                                                                \
    X(I8, 1, 127.0)                                                                                \
    X(U16, 2, 65535.0)                                                                             \
    X(I16, 2, 32767.0)                                                                             \
    X(U32, 4, 4294967295.0)                                                                        \
    X(I32, 4, 2147483647.0)                                                                        \
    X(I64, 8, 9223372036854775807.0)                                                               \
    X(F16, 2, 1.0)                                                                                 \
    X(F32, 4, 1.0)                                                                                 \
    X(F64, 8, 1.0)                                                                                 \
    X(BOOL, 1, 1.0)

typedef enum wefti_element {
#define WEFTI_ELEMENT_ROW(name, bytes, largest) WEFTI_ELEMENT_##name,
    WEFTI_ELEMENT_LIST(WEFTI_ELEMENT_ROW)
#undef WEFTI_ELEMENT_ROW
} wefti_element;

/* `data` is borrowed from the parsed bytes and may be unaligned. For an array that stays in its
 * file, use wefti_array_take instead of `data`. Elements are numbered row by row, whatever their
 * order in memory. */
typedef struct wefti_array {
    wefti_element element;
    bool big_endian;
    bool by_columns; /* the first dimension fastest, as Fortran has it */
    int rank;
    int64_t shape[WEFT_MAX_RANK];
    int64_t elems;
    const unsigned char *data;
    int64_t offset;             /* of the first element in its file */
    const wefti_reader *reader; /* NULL: the elements lie at `data` */
} wefti_array;

/* The position of element i in `data`. */
int64_t wefti_array_place(const wefti_array *array, int64_t i);
int wefti_element_bytes(wefti_element element);
bool wefti_element_is_integer(wefti_element element); /* BOOL included */
/* "i4 [10, 20]", for messages: the type as npy files name it, and the shape. */
typedef struct wefti_array_words {
    char text[WEFT_MAX_RANK * 22 + 8];
} wefti_array_words;
wefti_array_words wefti_array_text(const wefti_array *array);
double wefti_element_largest(wefti_element element);

/* Elements [first, first + count) as integers (the array must be of integers), or as f32 scaled so
 * that the largest value of an integer type is 1. The range is the caller's to check. */
void wefti_array_integers(const wefti_array *array, int64_t first, int64_t count, int64_t *out);
void wefti_array_scaled(const wefti_array *array, int64_t first, int64_t count, float *out);
/* Token numbers; -1 for a negative number or one beyond 32 bits. */
void wefti_array_tokens(const wefti_array *array, int64_t first, int64_t count, int32_t *out);

/* Some elements of an array in memory: `count` elements, from number `first` of `array` on. */
typedef struct wefti_array_piece {
    wefti_array array;
    int64_t first, count;
    unsigned char bytes[16 << 10];
} wefti_array_piece;
/* At most `count` elements from `first` on, and at least one. */
weft_status wefti_array_take(const wefti_array *array, int64_t first, int64_t count,
                             wefti_array_piece *out) WEFT_CHECKED;

/* `bytes` are the whole file, or its header and more; `count` is how many the file has. `path` is
 * for messages. WEFT_E_CORRUPT for damaged bytes, WEFT_E_NO_IMPL for npy features that weft does
 * not support. */
weft_status wefti_idx_parse(const char *path, const unsigned char *bytes, int64_t count,
                            wefti_array *out) WEFT_CHECKED;
weft_status wefti_npy_parse(const char *path, const unsigned char *bytes, int64_t count,
                            wefti_array *out) WEFT_CHECKED;
weft_status wefti_shard_parse(const char *path, const unsigned char *bytes, int64_t count,
                              wefti_array *out) WEFT_CHECKED;

enum { WEFTI_NPY_HEADER_BYTES = (1 << 20) + 12, WEFTI_ARRAY_HEADER_BYTES = 1024 }; /* the longest */

/* Unpack a gzip file that holds an IDX file. *out is from wefti_alloc. */
weft_status wefti_idx_unpack(const char *path, const unsigned char *bytes, int64_t count,
                             unsigned char **out, int64_t *out_bytes) WEFT_CHECKED;

/* A file with its array. The array stays in the file and is read in parts, or is in memory as a
 * whole: packed files, and arrays by columns, which have no contiguous rows. */
typedef enum wefti_array_format {
    WEFTI_ARRAY_IDX,
    WEFTI_ARRAY_NPY,
    WEFTI_ARRAY_SHARD
} wefti_array_format;
typedef struct wefti_array_file {
    wefti_reader *reader;
    unsigned char *unpacked; /* NULL: the array stays in the file */
    wefti_array array;
} wefti_array_file;
/* structured.c: WEFT_E_CORRUPT, with what the file is and what to do, if its first bytes are those
 * of a well-known format. For a reader of `format` that has not found its own. */
weft_status wefti_array_refuse(const char *path, wefti_array_format format,
                               const unsigned char *first, int64_t bytes) WEFT_CHECKED;
weft_status wefti_array_open(const char *path, wefti_array_format format,
                             wefti_array_file *out) WEFT_CHECKED;
void wefti_array_close(wefti_array_file *file);

#endif
