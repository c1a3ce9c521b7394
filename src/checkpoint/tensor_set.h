/* The tensors of a model directory in the common forms: model.safetensors, or
 * model.safetensors.index.json with its shards, or one .safetensors file. Steps of weft are such
 * directories too.
 *
 * A directory may come from anywhere. So file names come from the index only and stay in the
 * directory: names without "..", regular files or links to such. */
#ifndef WEFTI_CHECKPOINT_TENSOR_SET_H
#define WEFTI_CHECKPOINT_TENSOR_SET_H

#include <stdbool.h>

#include "checkpoint/safetensors.h"

typedef struct wefti_tensor_set wefti_tensor_set;

/* WEFT_E_NOT_FOUND if `path` holds neither; WEFT_E_CORRUPT names the damaged file. */
weft_status wefti_tensor_set_open(const char *path, wefti_tensor_set **out) WEFT_CHECKED;
void wefti_tensor_set_close(wefti_tensor_set *set);

int64_t wefti_tensor_set_count(const wefti_tensor_set *set);
/* Ordered by name; borrowed until the close. The bytes are in its file. */
const wefti_safetensors_entry *wefti_tensor_set_at(const wefti_tensor_set *set, int64_t index);
const wefti_safetensors_entry *wefti_tensor_set_find(const wefti_tensor_set *set, const char *name);

int64_t wefti_tensor_set_files(const wefti_tensor_set *set);
const char *wefti_tensor_set_file_name(const wefti_tensor_set *set, int64_t index);
const wefti_safetensors *wefti_tensor_set_file(const wefti_tensor_set *set, int64_t index);

/* The text of an index: the pairs tensor -> file of "weight_map", ordered by tensor; one
 * allocation, wefti_free. */
typedef struct wefti_tensor_index {
    const char *tensor, *file;
} wefti_tensor_index;
weft_status wefti_tensor_index_parse(const char *text, int64_t bytes, wefti_tensor_index **out,
                                     int64_t *out_count) WEFT_CHECKED;

/* Whether the name is a link of a Hugging Face cache, to ../../blobs/NAME. */
bool wefti_link_of_cache(const char *path);
/* Refuses links that do not lead to a regular file. */
weft_status wefti_tensor_set_check_link(const char *path) WEFT_CHECKED;

/* WEFT_E_NO_IMPL if one of the names of `dir` is a model in a form that weft does not read. The
 * message tells how to convert it. */
weft_status wefti_check_formats(const char *dir, char *const *names, int64_t count) WEFT_CHECKED;
/* Whether the name is that of an output or an embedding, which a tied model stores once. Indexes
 * then list both, but no file has the second. */
bool wefti_tensor_may_be_tied(const char *name);

/* A file inside a directory or a folder of it: plain names with slashes between them. */
bool wefti_file_path_valid(const char *path);
/* A plain file name inside a directory: not empty, no slash, no leading dot, at most 255 bytes. */
bool wefti_file_name_valid(const char *name);

#endif
