/* safetensors files: a header of JSON, then the tensors' bytes without gaps.
 *
 * Source: the format's description and reference reader, github.com/huggingface/safetensors. This
 * reader is stricter: it refuses duplicate keys and unknown members. It checks everything before it
 * returns a tensor: the header's length, UTF-8, products of shapes with overflow, and that the
 * tensors tile the file exactly. A file from elsewhere may place a tensor at an address that is not
 * a multiple of its element size: copy the tensor before computing. */
#ifndef WEFTI_CHECKPOINT_SAFETENSORS_H
#define WEFTI_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>

#include "base/reader.h"
#include "base/status.h"
#include "weft/types.h"

enum {
    WEFTI_SAFETENSORS_HEADER_BYTES = 100000000, /* as in the reference */
    WEFTI_SAFETENSORS_TENSORS = 1000000,
    WEFTI_SAFETENSORS_NAME_BYTES = 4096,
    WEFTI_SAFETENSORS_RANK = 32
};

/* Borrowed from the file. */
typedef struct wefti_safetensors_entry {
    const char *name;
    const char *dtype; /* as in the file: "F32", "F8_E4M3" */
    /* rank -1: legal in the format, but of an element type or a number of dimensions that weft
     * lacks. Its bytes may be copied; see wefti_safetensors_check_known. */
    weft_desc desc;
    const wefti_reader *reader; /* of its file, with the tensor at byte `at` */
    int64_t at, bytes;
} wefti_safetensors_entry;

typedef struct wefti_safetensors_pair {
    const char *key, *value;
} wefti_safetensors_pair;

typedef struct wefti_safetensors wefti_safetensors;

/* WEFT_E_NO_IMPL, with the element type, if the tensor has no `desc`. path: of its file. */
weft_status wefti_safetensors_check_known(const char *path,
                                          const wefti_safetensors_entry *entry) WEFT_CHECKED;

/* Opens a file; it must outlive the result. WEFT_E_CORRUPT names the violated rule. */
weft_status wefti_safetensors_read(const wefti_reader *reader,
                                   wefti_safetensors **out) WEFT_CHECKED;
/* The same for a file in memory. */
weft_status wefti_safetensors_parse(const void *data, int64_t bytes,
                                    wefti_safetensors **out) WEFT_CHECKED;
/* The same for a path, which messages name. */
weft_status wefti_safetensors_open(const char *path, wefti_safetensors **out) WEFT_CHECKED;
void wefti_safetensors_close(wefti_safetensors *file);

int64_t wefti_safetensors_count(const wefti_safetensors *file);
const wefti_safetensors_entry *wefti_safetensors_at(const wefti_safetensors *file,
                                                    int64_t index); /* ordered by name */
const wefti_safetensors_entry *wefti_safetensors_find(const wefti_safetensors *file,
                                                      const char *name); /* NULL: absent */
const wefti_safetensors_pair *wefti_safetensors_metadata(const wefti_safetensors *file,
                                                         int64_t *out_count);
int64_t wefti_safetensors_bytes(const wefti_safetensors *file);        /* of the whole file */
int64_t wefti_safetensors_header_bytes(const wefti_safetensors *file); /* before the tensors */

/* A tensor to write. */
typedef struct wefti_safetensors_item {
    const char *name;
    weft_desc desc;
    const void *data;
} wefti_safetensors_item;

/* Everything before the bytes of `items`, which follow in this order: a multiple of 8 bytes. Pass
 * items by descending element size, so that each tensor starts at a multiple of its element size.
 * Names are unique, UTF-8, at most 4096 bytes. wefti_free the result. */
weft_status wefti_safetensors_header(const wefti_safetensors_item *items, int64_t count,
                                     const wefti_safetensors_pair *metadata, int64_t pairs,
                                     char **out, int64_t *out_bytes) WEFT_CHECKED;

/* Writes a whole file; after a failure the file is absent. Pass tensors by descending element size,
 * then by name, as the reference does. */
weft_status wefti_safetensors_write(const char *path, const wefti_safetensors_item *items,
                                    int64_t count, const wefti_safetensors_pair *metadata,
                                    int64_t pairs) WEFT_CHECKED;
/* The same for tensors that are not in memory in the written form. `make` writes the bytes of an
 * item into `room`, which has space for them. Only `make` interprets an item's `data`. */
typedef weft_status (*wefti_safetensors_make)(const wefti_safetensors_item *item, void *room);
weft_status wefti_safetensors_write_made(const char *path, const wefti_safetensors_item *items,
                                         int64_t count, const wefti_safetensors_pair *metadata,
                                         int64_t pairs, wefti_safetensors_make make) WEFT_CHECKED;

const char *wefti_safetensors_dtype_name(weft_dtype dtype);
/* Whether the last part of a path is NAME.safetensors. */
bool wefti_safetensors_is_name(const char *path);

/* The value of a metadata text that is a number >= 0. -1: the key is missing; -2: the text is not
 * such a number. */
int64_t wefti_safetensors_number(const wefti_safetensors_pair *pairs, int64_t count,
                                 const char *key);

#endif
