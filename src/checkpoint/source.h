/* The tensors at a path: a .safetensors file, a model directory, or a step of weft with its
 * optimizer state. */
#ifndef WEFTI_CHECKPOINT_SOURCE_H
#define WEFTI_CHECKPOINT_SOURCE_H

#include "checkpoint/safetensors.h"

typedef struct wefti_source wefti_source;

/* `path` as in weft/checkpoint.h. Verifies a step's checksums. Of a run's directory the newest step
 * must be good, because other files of the caller belong to it. WEFT_E_ARG if a parameter and an
 * optimizer's tensor have one name. */
weft_status wefti_source_open(const char *path, wefti_source **out) WEFT_CHECKED;
void wefti_source_close(wefti_source *source); /* NULL is legal */

const char *wefti_source_path(const wefti_source *source);
/* Updates before it was written, from a step's manifest or a file's metadata; -1: unknown. */
int64_t wefti_source_step(const wefti_source *source);
int64_t wefti_source_count(const wefti_source *source);
/* Ordered by name; the bytes are in its file. NULL: no such tensor. */
const wefti_safetensors_entry *wefti_source_at(const wefti_source *source, int64_t index);
const wefti_safetensors_entry *wefti_source_find(const wefti_source *source, const char *name);
/* The metadata of a file; of a directory, of its first file. */
const wefti_safetensors_pair *wefti_source_metadata(const wefti_source *source, int64_t *out_count);
/* A number >= 0 of the metadata; -1: missing. */
int64_t wefti_source_number(const wefti_source *source, const char *key);

#endif
