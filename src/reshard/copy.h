/* Streams tensors from a source: into a destination, into checksums, or beside another source.
 *
 * A task is a contiguous range of a tensor of at most 4 MiB. Threads take tasks in turn, gather the
 * range from its pieces, sum its checksum, and scatter it to the items of the destination. Each
 * byte is read once and written once. Memory is bounded by the number of threads. */
#ifndef WEFTI_RESHARD_COPY_H
#define WEFTI_RESHARD_COPY_H

#include "reshard/source.h"
#include "reshard/target.h"

enum { WEFTI_COPY_BYTES = 4 << 20, WEFTI_COPY_THREADS = 8 };

/* Chooses the pieces to read for the items of a destination, or, with `target` NULL, for all
 * tensors. Regions with several replicas are read from as few files as possible, from the file of
 * rank `prefer` first (-1: none). replicas: if a file is missing, its replicas are read.
 * WEFT_E_CORRUPT or WEFT_E_NOT_FOUND names the tensor and the files that are missing; with
 * `out_used` [files] missing files are no error, and all files that are read are marked. */
typedef struct wefti_reads {
    wefti_shards *source;
    const wefti_target *target;
    int32_t prefer;
    bool replicas;
    bool all; /* the destination is whole: refuse a source of which tensors may be lost */
} wefti_reads;
weft_status wefti_reads_choose(const wefti_reads *r, bool *out_used) WEFT_CHECKED;

typedef struct wefti_shard_copy {
    const wefti_shards *source;
    const wefti_target *target; /* NULL: only checksums */
    bool whole;    /* read whole tensors, not only the regions of items: checksums become known */
    bool replicas; /* compare replicas. WEFT_E_MISMATCH names both files */
    uint32_t *crc32c; /* [tensors], if whole: receives the checksums */
} wefti_shard_copy;
/* WEFT_E_CORRUPT unless the copied tensors have the checksums that the checkpoint states. If slices
 * of a sliced step are damaged, everything is copied again from their replicas. */
weft_status wefti_copy_run(const wefti_shard_copy *c) WEFT_CHECKED;

/* Reads region `want` of a tensor into a dense array. `scratch` has WEFTI_COPY_BYTES. */
weft_status wefti_copy_read(const wefti_source_tensor *t, const wefti_region *want, void *out,
                            unsigned char *scratch) WEFT_CHECKED;

#endif
