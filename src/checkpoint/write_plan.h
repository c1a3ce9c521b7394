/* The contents of a step, decided before the first byte is written: which tensor goes into which
 * file, in which order. The plan is the step's manifest without its checksums. */
#ifndef WEFTI_CHECKPOINT_WRITE_PLAN_H
#define WEFTI_CHECKPOINT_WRITE_PLAN_H

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

/* The origin of a tensor: `data`; or pieces of `whole` from element `first` on; or a tensor that
 * comes later. */
typedef struct wefti_write_source {
    const void *data;
    bool later;
    const wefti_checkpoint_piece *pieces;
    int64_t piece_count;
    weft_desc whole;
    int64_t first;
    wefti_region part; /* of `whole`, instead of elements from `first` on */
    int64_t slice;     /* of a sliced step: number in slices; -1 */
} wefti_write_source;

/* Tensors are numbered in the order of capture: descending element sizes, so that every tensor is
 * aligned in its file, else in the caller's order. Several files fill up side by side, each in that
 * order. */
typedef struct wefti_write_plan {
    wefti_manifest
        manifest;   /* its files: first the shards, then the texts, then the index if any */
    int64_t *order; /* the caller's number of tensor k */
    wefti_write_source *sources; /* of tensor k */
    int64_t shard_count;
    int64_t *shard_begin;          /* [shard_count + 1] into items */
    wefti_safetensors_item *items; /* the tensors, shard by shard */
    int64_t *offset;               /* of tensor k in its shard, in bytes after the header */
    int64_t *shard_bytes;          /* of the tensors of each shard */
    wefti_checkpoint_text *texts;  /* the files after the shards */
    /* Of a sliced step: the whole tensors; `manifest.tensors` are the own slices. NULL: whole. */
    wefti_manifest_tensor *wholes;
    int64_t whole_count;
    bool *counts; /* of each slice in manifest.sliced */
} wefti_write_plan;

weft_status wefti_write_plan_create(const wefti_checkpoint_meta *meta,
                                    const wefti_checkpoint_tensor *tensors, int64_t count,
                                    const wefti_checkpoint_options *options,
                                    wefti_write_plan *out) WEFT_CHECKED;
void wefti_write_plan_destroy(wefti_write_plan *plan);

#endif
