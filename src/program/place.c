/* Offsets for buffers with known lifetimes.
 *
 * Greedy by size: largest first, each at the lowest offset where it meets no placed buffer that is
 * alive at the same time. Source: Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
 * Inference", MLSys 2020 workshop, section 5.2 ("greedy by size for offset calculation"). */
#include <stdlib.h>

#include "program/program.h"

enum { ALIGNMENT = 64 };

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) & ~(int64_t)(ALIGNMENT - 1);
}

typedef struct by_size {
    int64_t bytes;
    int32_t first;
    int64_t index;
} by_size;

static int compare_size(const void *a, const void *b) {
    const by_size *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static bool alive_together(const wefti_lifetime *a, const wefti_lifetime *b) {
    return a->first <= b->last && b->first <= a->last;
}

weft_status wefti_place(wefti_lifetime *buffers, int64_t count, int64_t *out_bytes) {
    by_size *order;
    int64_t *placed; /* indices of placed buffers, ascending by offset */
    WEFT_NEW_ARRAY(order, by_size, count);
    placed = wefti_alloc((size_t)count * sizeof *placed);
    if (!placed) {
        wefti_free(order);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory to place %lld buffers", (long long)count);
    }
    for (int64_t i = 0; i < count; i++)
        order[i] = (by_size){aligned(buffers[i].bytes), buffers[i].first, i};
    qsort(order, (size_t)count, sizeof *order, compare_size);
    int64_t used = 0, total = 0;
    for (int64_t k = 0; k < count; k++) {
        wefti_lifetime *b = &buffers[order[k].index];
        int64_t size = order[k].bytes, offset = 0, at;
        if (size == 0) {
            b->offset = 0;
            continue;
        }
        for (int64_t j = 0; j < used; j++) { /* gaps between the neighbours alive with b */
            const wefti_lifetime *p = &buffers[placed[j]];
            if (!alive_together(p, b)) continue;
            if (p->offset >= offset + size) break;
            int64_t end = p->offset + aligned(p->bytes);
            if (end > offset) offset = end;
        }
        b->offset = offset;
        for (at = used; at > 0 && buffers[placed[at - 1]].offset > offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = order[k].index;
        used++;
        if (offset + b->bytes > total) total = offset + b->bytes;
    }
    wefti_free(placed);
    wefti_free(order);
    *out_bytes = total;
    return WEFT_OK;
}

weft_status wefti_place_check(const wefti_lifetime *buffers, int64_t count, int64_t bytes) {
    for (int64_t i = 0; i < count; i++) {
        const wefti_lifetime *a = &buffers[i];
        WEFT_REQUIRE(a->offset >= 0 && a->offset % ALIGNMENT == 0 && a->offset + a->bytes <= bytes,
                     WEFT_E_BUG, "buffer %lld at [%lld, %lld) is outside the arena of %lld bytes",
                     (long long)i, (long long)a->offset, (long long)(a->offset + a->bytes),
                     (long long)bytes);
        for (int64_t j = 0; j < i; j++) {
            const wefti_lifetime *b = &buffers[j];
            bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
            WEFT_REQUIRE(apart || !alive_together(a, b) || !a->bytes || !b->bytes, WEFT_E_BUG,
                         "buffers %lld and %lld overlap at offset %lld while both are alive",
                         (long long)j, (long long)i, (long long)a->offset);
        }
    }
    return WEFT_OK;
}
