/* Regions of homes: see home_region.h. */
#include "comm/home_region.h"

#include "layout/slab.h"
#include "layout/transfer.h"

/* The next block of a region: a slab that begins at its element `at`. In the home, the range from
 * the slab's first to its last element has at most WEFTI_HOME_BLOCK bytes. */
typedef struct region_block {
    wefti_region slab;
    int64_t elems;       /* of the slab */
    int64_t first, span; /* in the home */
} region_block;

static region_block block_at(const wefti_region *box, const weft_desc *whole,
                             const wefti_region *part, int64_t at) {
    const int64_t most = WEFTI_HOME_BLOCK / (int64_t)weft_dtype_bytes(whole->dtype);
    int64_t limit = wefti_region_elems(part, whole->rank) - at;
    region_block b;
    weft_desc local = *whole;
    for (int d = 0; d < whole->rank; d++) local.shape[d] = part->size[d];
    do {
        if (limit > most) limit = most;
        b.elems = wefti_slab(&local, at, limit, &b.slab);
        for (int d = 0; d < whole->rank; d++) b.slab.begin[d] += part->begin[d];
        wefti_region_span(&b.slab, box, whole->rank, &b.first, &b.span);
        limit = b.elems / 2;
    } while (b.span > most);
    return b;
}

/* Copies into `to`; NULL: from `from`. */
static weft_status copy_region(const wefti_home *home, const wefti_region *box,
                               const weft_desc *whole, const wefti_region *part,
                               const wefti_region *of, void *to, const void *from) {
    const int64_t size = (int64_t)weft_dtype_bytes(whole->dtype),
                  all = wefti_region_elems(part, whole->rank);
    region_block b;
    for (int64_t at = 0; at < all; at += b.elems) {
        wefti_mapping m;
        b = block_at(box, whole, part, at);
        const wefti_access access = to                  ? WEFTI_ACCESS_READ
                                    : b.span == b.elems ? WEFTI_ACCESS_WRITE
                                                        : WEFTI_ACCESS_UPDATE;
        WEFT_TRY(wefti_home_map(home, b.first * size, b.span * size, access, &m));
        /* where the array of the whole region would begin */
        void *origin = (void *)((uintptr_t)m.data - (uintptr_t)(b.first * size));
        if (to)
            wefti_region_copy(&b.slab, box, origin, of, to, whole->rank, (size_t)size);
        else
            wefti_region_copy(&b.slab, of, from, box, origin, whole->rank, (size_t)size);
        WEFT_TRY(wefti_home_unmap(&m, WEFT_OK));
    }
    return WEFT_OK;
}

weft_status wefti_home_read_region(const wefti_home *home, const wefti_region *box,
                                   const weft_desc *whole, const wefti_region *part,
                                   const wefti_region *of, void *data) {
    return copy_region(home, box, whole, part, of, data, NULL);
}

weft_status wefti_home_write_region(const wefti_home *home, const wefti_region *box,
                                    const weft_desc *whole, const wefti_region *part,
                                    const wefti_region *of, const void *data) {
    return copy_region(home, box, whole, part, of, NULL, data);
}
