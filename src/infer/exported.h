/* Exported models: a folder with the program and the weights of each rank, which runs without the
 * job and the checkpoint (docs/reference/format-exported.md). */
#ifndef WEFTI_INFER_EXPORTED_H
#define WEFTI_INFER_EXPORTED_H

#include "infer/infer.h"

/* What the file exported.json says. */
typedef struct wefti_exported {
    weft_family family;
    int64_t vocab;
    weft_bf16_compute bf16;
    int devices;
    bool has_plan;
    uint32_t graph, plan; /* checksums of the files */
    uint32_t *ranks;      /* [devices]; wefti_free */
} wefti_exported;

/* Reads the text of exported.json. WEFT_E_CORRUPT. */
weft_status wefti_exported_parse(const char *text, int64_t bytes, wefti_exported *out) WEFT_CHECKED;
weft_status wefti_exported_print(const wefti_exported *facts, char **out) WEFT_CHECKED;
/* The checksum of a file. */
weft_status wefti_exported_sum(const char *path, uint32_t *out) WEFT_CHECKED;
/* DIR/rank-3.safetensors; wefti_free. NULL: no memory. */
char *wefti_exported_rank_file(const char *folder, int rank);

/* The parameters and states of a device, for its file. */
typedef struct wefti_exported_tensors {
    struct wefti_safetensors_item *items;
    wefti_session_piece *pieces; /* [count] */
    int64_t count;
} wefti_exported_tensors;
/* Collective. wefti_exported_tensors_free, also after a failure. */
weft_status wefti_exported_list(weft_session *session, int rank,
                                wefti_exported_tensors *out) WEFT_CHECKED;
void wefti_exported_tensors_free(wefti_exported_tensors *tensors);

/* Opens a model from a folder: all of `f` but what weft_infer_open sets. */
weft_status wefti_exported_open(weft_infer *f, const weft_infer_options *options) WEFT_CHECKED;

#endif
