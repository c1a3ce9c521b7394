/* Visits a region of a tensor in runs: ranges of elements that are contiguous both in the whole
 * tensor and in an array of the region alone. Files hold whole tensors and devices hold regions, so
 * a run is what moves between them in one piece.
 *
 * wefti_piece_blocks visits what a piece has of a range of elements of the whole tensor. A block is
 * contiguous in the piece and small, so that little of a device's memory is mapped at once. The
 * runs of a block come from wefti_region_runs. */
#ifndef WEFTI_RUNS_H
#define WEFTI_RUNS_H

#include <stdbool.h>

#include "layout/layout.h"
#include "layout/slab.h"
#include "layout/transfer.h"

typedef struct wefti_region_runs {
    const weft_desc *whole;
    const wefti_region *region;
    int64_t count; /* elements of a run */
    int64_t at;    /* of the present run: its first element in the whole tensor */
    int64_t here;  /* and in the array of the region */
    int64_t left;  /* elements of the region from the next run on */
    int outer;     /* dimensions [0, outer) number the runs */
    int64_t index[WEFT_MAX_RANK];
} wefti_region_runs;

/* Begins before the first run. Both arguments must outlive the visit. */
static inline wefti_region_runs wefti_region_runs_of(const weft_desc *whole,
                                                     const wefti_region *region) {
    wefti_region_runs r = {.whole = whole, .region = region, .count = 1, .here = -1};
    int d = whole->rank - 1;
    while (d >= 0 && region->size[d] == whole->shape[d]) r.count *= whole->shape[d--];
    if (d >= 0) r.count *= region->size[d];
    r.outer = d > 0 ? d : 0;
    r.left = wefti_region_elems(region, whole->rank);
    return r;
}

/* Goes to the next run, in ascending order; false: there is none. */
static inline bool wefti_region_runs_next(wefti_region_runs *r) {
    if (r->left <= 0) return false;
    if (r->here < 0) {
        r->here = 0;
    } else {
        r->here += r->count;
        for (int d = r->outer - 1; d >= 0 && ++r->index[d] == r->region->size[d]; d--)
            r->index[d] = 0;
    }
    r->left -= r->count;
    r->at = 0;
    for (int d = 0; d < r->whole->rank; d++)
        r->at = r->at * r->whole->shape[d] + r->region->begin[d] + (d < r->outer ? r->index[d] : 0);
    return true;
}

typedef struct wefti_piece_blocks {
    const weft_desc *whole;
    const wefti_region *box; /* the region of the piece */
    int64_t at, end;         /* the elements of the range that were not visited so far */
    int64_t most;            /* elements of a block */
    wefti_region region;     /* what the piece has of the slab before `at` */
    weft_desc local;         /* its shape */
    int64_t done, all;       /* its elements: visited, and in total */
    wefti_region block;      /* the present block */
    int64_t here, count;     /* its first element in the array of the piece; its elements */
} wefti_piece_blocks;

/* Begins before the first block of the elements [first, first + count) of the whole tensor. Both
 * pointers must outlive the visit. */
static inline wefti_piece_blocks wefti_piece_blocks_of(const weft_desc *whole,
                                                       const wefti_region *box, int64_t first,
                                                       int64_t count, int64_t most) {
    return (wefti_piece_blocks){
        .whole = whole, .box = box, .at = first, .end = first + count, .most = most};
}

/* Goes to the next block, in ascending order; false: there is none. */
static inline bool wefti_piece_blocks_next(wefti_piece_blocks *b) {
    const int rank = b->whole->rank;
    while (b->done == b->all) {
        wefti_region slab;
        if (b->at >= b->end) return false;
        b->at += wefti_slab(b->whole, b->at, b->end - b->at, &slab);
        if (!wefti_region_intersect(&slab, b->box, rank, &b->region)) continue;
        b->local = *b->whole;
        for (int d = 0; d < rank; d++) b->local.shape[d] = b->region.size[d];
        b->all = wefti_region_elems(&b->region, rank);
        b->done = 0;
    }
    int64_t left = b->all - b->done;
    b->done += wefti_slab(&b->local, b->done, left < b->most ? left : b->most, &b->block);
    for (int d = 0; d < rank; d++) b->block.begin[d] += b->region.begin[d];
    wefti_region_span(&b->block, b->box, rank, &b->here, &b->count);
    return true;
}

#endif
