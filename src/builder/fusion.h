/* Which collectives of a step run as one: many small ones cost a latency each, one large one cannot
 * begin before its last tensor is there. t = latency + bytes / bandwidth (Hockney, 1994); the
 * buckets follow Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3, and MindSpore's modes.
 *
 * Tensors are taken in the order in which they are produced. Only tensors of one key (group, dtype,
 * reduction) ever share a bucket; other keys between them do not close it. */
#ifndef WEFTI_FUSION_H
#define WEFTI_FUSION_H

#include "plan/plan.h"

typedef struct wefti_fusion_item {
    int64_t bytes;
    uint64_t key; /* the caller's number for group, dtype and reduction */
} wefti_fusion_item;

/* bucket[i], of `count`: the number of item i's bucket, from 0 in the order of the buckets' last
 * items, which is the order in which they can start.
 *
 *   none    each item alone
 *   auto    at most 64 MiB, unless a single item is larger; the fewest buckets that keep the order
 *   size    the same with fusion->bytes
 *   index   ends, exclusive: [20, 35] makes items 0-19, 20-34, 35 and on; ends past the last item
 *           do nothing */
weft_status wefti_fusion_buckets(const wefti_fusion *fusion, int64_t count,
                                 const wefti_fusion_item *items, int32_t *bucket,
                                 int32_t *out_buckets) WEFT_CHECKED;

#endif
