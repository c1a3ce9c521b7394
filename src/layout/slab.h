/* Walks a tensor in memory order in contiguous regions. Files store tensors in this order. A small
 * buffer can then gather each region from the pieces of several devices, or scatter it to them. */
#ifndef WEFTI_SLAB_H
#define WEFTI_SLAB_H

#include "layout/layout.h"

/* The largest contiguous region that starts at element `first` and has at most `most` >= 1
 * elements. Returns its number of elements. The next region starts where this one ends. `first`
 * must be less than the number of elements of the tensor. */
static inline int64_t wefti_slab(const weft_desc *whole, int64_t first, int64_t most,
                                 wefti_region *out) {
    int64_t rest = first, run = 1; /* elements of one step of dimension d */
    int d = whole->rank - 1;
    *out = (wefti_region){{0}, {0}};
    for (int i = d; i >= 0; i--) {
        out->begin[i] = rest % whole->shape[i];
        out->size[i] = 1;
        rest /= whole->shape[i];
    }
    if (d < 0) return 1;
    while (d > 0 && out->begin[d] == 0 && run * whole->shape[d] <= most) {
        out->size[d] = whole->shape[d];
        run *= whole->shape[d--];
    }
    int64_t left = whole->shape[d] - out->begin[d], fit = most / run;
    out->size[d] = left < fit ? left : fit;
    return out->size[d] * run;
}

/* The same under two shapes of the same elements: a range that is contiguous regions of both. */
static inline int64_t wefti_slab_both(const weft_desc *a, const weft_desc *b, int64_t first,
                                      int64_t most, wefti_region *out_a, wefti_region *out_b) {
    int64_t before;
    do {
        before = most;
        most = wefti_slab(a, first, most, out_a);
        most = wefti_slab(b, first, most, out_b);
    } while (most != before);
    return most;
}

#endif
