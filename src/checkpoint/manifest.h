/* manifest.json: the parts of a step, and the checksum of every byte of it. Format:
 * docs/reference/format-checkpoint.md.
 *
 * The text ends in a checksum of everything before it, at a fixed distance from the end. So a
 * truncated or changed manifest is recognised before it is parsed. */
#ifndef WEFTI_CHECKPOINT_MANIFEST_H
#define WEFTI_CHECKPOINT_MANIFEST_H

#include "base/memory.h"
#include "checkpoint/checkpoint.h"

typedef struct wefti_manifest_file {
    const char *name;
    int64_t bytes;
    int64_t checked_bytes; /* number of first bytes that `crc32c` covers; the rest is tensors */
    uint32_t crc32c;
} wefti_manifest_file;

typedef struct wefti_manifest_tensor {
    const char *name, *layout;
    wefti_checkpoint_role role;
    weft_desc desc;
    int64_t file; /* index into files; -1 in a sliced step */
    uint32_t crc32c;
} wefti_manifest_tensor;

/* A region of a tensor in a sliced step. The files of each rank in `ranks` have it. */
typedef struct wefti_manifest_slice {
    int64_t tensor; /* index into tensors */
    wefti_region region;
    const int32_t *ranks; /* ascending */
    int32_t rank_count;
    /* In the files of this manifest's rank: index into files (-1: not there), name, checksum. */
    int64_t file;
    const char *stored;
    uint32_t crc32c;
} wefti_manifest_slice;

/* Of a sliced step, each rank has a manifest, which lists all tensors and all regions; its files
 * are those of the rank. */
typedef struct wefti_manifest_sliced {
    int32_t rank, ranks; /* ranks 0: the step is not sliced, its tensors are whole */
    wefti_manifest_slice *slices;
    int64_t count;
} wefti_manifest_sliced;

typedef struct wefti_manifest {
    wefti_arena *arena;
    wefti_checkpoint_meta meta;
    wefti_manifest_file *files;
    wefti_manifest_tensor *tensors;
    int64_t file_count, tensor_count;
    wefti_manifest_sliced sliced;
} wefti_manifest;

/* Free the text with wefti_free. */
weft_status wefti_manifest_print(const wefti_manifest *manifest, char **out,
                                 int64_t *out_bytes) WEFT_CHECKED;
/* WEFT_E_CORRUPT if damaged; WEFT_E_NO_IMPL if intact but of a later format. */
weft_status wefti_manifest_parse(const char *text, int64_t bytes,
                                 wefti_manifest **out) WEFT_CHECKED;
void wefti_manifest_destroy(wefti_manifest *manifest);

/* A deep copy into an arena. */
weft_status wefti_manifest_copy_meta(wefti_arena *arena, const wefti_checkpoint_meta *meta,
                                     wefti_checkpoint_meta *out) WEFT_CHECKED;
/* A hash of the names and shapes of the model's tensors, in any order. */
uint64_t wefti_manifest_fingerprint(const wefti_manifest_tensor *tensors, int64_t count);

/* A digest of all tensors: names, roles, types, shapes and checksums, in any order. It does not
 * depend on files or on how tensors are split. */
uint64_t wefti_manifest_digest(const wefti_manifest_tensor *tensors, int64_t count);

enum { WEFTI_MANIFEST_TAIL_BYTES = 35 };
/* The last bytes of a manifest, computed from the bytes before them. */
void wefti_manifest_tail(const char *body, int64_t bytes, char out[WEFTI_MANIFEST_TAIL_BYTES + 1]);

const char *wefti_checkpoint_role_text(wefti_checkpoint_role role); /* "model" */

#endif
