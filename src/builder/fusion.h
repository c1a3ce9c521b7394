/* Decides which collectives of a step run as one. Many small collectives cost a latency each; a
 * large one cannot begin before its last tensor is ready. Model: t = latency + bytes / bandwidth
 * (Hockney, 1994). Buckets follow Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3, and
 * MindSpore's modes.
 *
 * Tensors are taken in the order in which calls produce them. Only tensors of one key (group,
 * dtype, reduction) share a bucket. Tensors of other keys between them do not close it. */
#ifndef WEFTI_FUSION_H
#define WEFTI_FUSION_H

#include "plan/plan.h"

typedef struct wefti_fusion_item {
    int64_t bytes;
    uint64_t key; /* the caller's number for group, dtype and reduction */
} wefti_fusion_item;

/* Sets bucket[i], for each of `count` items, to the number of its bucket. Buckets are numbered from
 * 0 in the order of their last items, which is the order in which they can start.
 *
 *   none    each item alone
 *   auto    at most 16 MiB, unless a single item is larger;
 *           the fewest buckets that keep the order
 *   size    the same with fusion->bytes
 *   index   exclusive ends: [20, 35] makes items 0-19, 20-34, 35 and on;
 *           ends past the last item do nothing */
weft_status wefti_fusion_buckets(const wefti_fusion *fusion, int64_t count,
                                 const wefti_fusion_item *items, int32_t *bucket,
                                 int32_t *out_buckets) WEFT_CHECKED;

#endif
