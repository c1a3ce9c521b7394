/* Reads parts of tensors. See checkpoint.h.
 *
 * A region of a tensor is many short runs if it is split along an inner dimension. Runs near each
 * other come from one read of a window, and others are read alone (base/reader.h). The kernel
 * detects neither pattern, so the disk gets hints which bytes come next. */
#include "base/digest/digest.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "layout/transfer.h"

/* READ_BLOCK_BYTES: a block stays in the core's cache between the copy and the checksum.
 * SOON_BYTES: a longer range is read in order, which the kernel detects. */
enum { READ_BLOCK_BYTES = 256 << 10, SOON_BYTES = 32 << 20 };

struct wefti_checkpoint_part {
    const wefti_checkpoint_entry *entry;
    wefti_crc_sum sum;
    wefti_reader_window window;
};

weft_status wefti_checkpoint_part_create(wefti_checkpoint_part **out) {
    WEFT_NEW(*out, wefti_checkpoint_part);
    return WEFT_OK;
}

void wefti_checkpoint_part_destroy(wefti_checkpoint_part *part) {
    wefti_free(part);
}

void wefti_checkpoint_part_begin(wefti_checkpoint_part *part, const wefti_checkpoint_entry *entry) {
    wefti_reader_window *w = &part->window;
    if (w->reader != entry->reader) {
        w->reader = entry->reader;
        w->begin = w->end = w->last = 0;
    }
    part->entry = entry;
    part->sum = (wefti_crc_sum){0};
}

weft_status wefti_checkpoint_part_read(wefti_checkpoint_part *part, int64_t first, int64_t count,
                                       void *out) {
    const wefti_checkpoint_entry *e = part->entry;
    int64_t size = (int64_t)weft_dtype_bytes(e->desc.dtype), at = first * size, left = count * size;
    for (int64_t n; left > 0; left -= n, at += n, out = (char *)out + n) {
        n = left < READ_BLOCK_BYTES ? left : READ_BLOCK_BYTES;
        WEFT_TRY(wefti_reader_near(&part->window, e->at + at, n, out));
        wefti_crc_sum_add(&part->sum, at, out, (size_t)n);
    }
    return WEFT_OK;
}

uint32_t wefti_checkpoint_part_sum(wefti_checkpoint_part *part) {
    return wefti_crc_sum_of(&part->sum, part->entry->bytes);
}

void wefti_checkpoint_soon(const wefti_checkpoint_entry *entry, const weft_desc *whole,
                           int64_t first, const wefti_region *box) {
    wefti_region all = {{0}, {0}};
    int64_t size = (int64_t)weft_dtype_bytes(entry->desc.dtype), at, count;
    if (wefti_region_elems(box, whole->rank) == 0) return;
    for (int d = 0; d < whole->rank; d++) all.size[d] = whole->shape[d];
    wefti_region_span(box, &all, whole->rank, &at, &count);
    int64_t begin = (at - first) * size, end = begin + count * size;
    if (begin < 0) begin = 0;
    if (end > entry->bytes) end = entry->bytes;
    if (end - begin > SOON_BYTES) end = begin + SOON_BYTES;
    wefti_reader_soon(entry->reader, entry->at + begin, end - begin);
}
