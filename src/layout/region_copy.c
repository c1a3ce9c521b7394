/* Copies a region between two arrays that are themselves regions. Merges adjacent dimensions that
 * have no gap in both arrays, so that a contiguous range becomes one memcpy. */
#include "layout/transfer.h"

typedef struct loop {
    int64_t count, from, to; /* number of iterations; bytes from one to the next */
} loop;

/* Short rows: a constant size lets the compiler use one load and one store. */
static void copy_rows(char *to, const char *from, const loop *rows, size_t bytes) {
#define ROWS(n)                                                                                    \
    for (int64_t i = 0; i < rows->count; i++) memcpy(to + i * rows->to, from + i * rows->from, (n));
    switch (bytes) {
    case 2:
        ROWS(2) break;
    case 4:
        ROWS(4) break;
    case 8:
        ROWS(8) break;
    case 16:
        ROWS(16) break;
    default:
        ROWS(bytes) break;
    }
#undef ROWS
}

void wefti_region_copy(const wefti_region *part, const wefti_region *from, const void *source,
                       const wefti_region *to, void *destination, int rank, size_t element_bytes) {
    const char *src = source;
    char *dst = destination;
    loop loops[WEFT_MAX_RANK]; /* innermost first */
    int used = 0;
    int64_t from_stride = (int64_t)element_bytes, to_stride = from_stride, run = from_stride;
    bool contiguous = true; /* true while the dimensions so far form one run of bytes */
    for (int d = rank - 1; d >= 0; d--) {
        int64_t count = part->size[d];
        if (count == 0) return;
        src += (part->begin[d] - from->begin[d]) * from_stride;
        dst += (part->begin[d] - to->begin[d]) * to_stride;
        if (count > 1) {
            loop *last = used ? &loops[used - 1] : NULL;
            if (contiguous && from_stride == run && to_stride == run)
                run *= count;
            else if (last && last->from * last->count == from_stride &&
                     last->to * last->count == to_stride)
                last->count *= count;
            else {
                loops[used++] = (loop){count, from_stride, to_stride};
                contiguous = false;
            }
        }
        from_stride *= from->size[d];
        to_stride *= to->size[d];
    }
    if (!used) {
        memcpy(dst, src, (size_t)run);
        return;
    }
    int64_t at[WEFT_MAX_RANK] = {0};
    for (;;) {
        copy_rows(dst, src, &loops[0], (size_t)run);
        int l = 1;
        for (; l < used; l++) {
            src += loops[l].from;
            dst += loops[l].to;
            if (++at[l] < loops[l].count) break;
            src -= loops[l].from * loops[l].count;
            dst -= loops[l].to * loops[l].count;
            at[l] = 0;
        }
        if (l == used) return;
    }
}

void wefti_region_span(const wefti_region *part, const wefti_region *within, int rank,
                       int64_t *out_first, int64_t *out_count) {
    int64_t first = 0, last = 0;
    for (int d = 0; d < rank; d++) {
        int64_t at = part->begin[d] - within->begin[d];
        first = first * within->size[d] + at;
        last = last * within->size[d] + at + part->size[d] - 1;
    }
    *out_first = first;
    *out_count = last - first + 1;
}
