/* Visits a region of a tensor in runs: ranges of elements that are contiguous both in the whole
 * tensor and in an array of the region alone. Files hold whole tensors and devices hold regions, so
 * a run is what moves between them in one piece. */
#ifndef WEFTI_RUNS_H
#define WEFTI_RUNS_H

#include <stdbool.h>

#include "layout/layout.h"

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

#endif
