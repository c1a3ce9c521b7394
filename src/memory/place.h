/* Offsets for buffers in one block of memory, by lifetime. */
#ifndef WEFTI_PLACE_H
#define WEFTI_PLACE_H

#include <stdint.h>

#include "base/memory.h"

/* A buffer that is alive in steps [first, last] (inclusive), and again in steps [again, until] if
 * until > 0. The second time lies behind the first. The alignment is always 64 bytes. */
typedef struct wefti_lifetime {
    int64_t bytes;
    int32_t first, last, again, until;
    int64_t offset; /* result */
} wefti_lifetime;

/* Finds offsets such that no two buffers that are alive together overlap; *out_bytes is the total.
 * Greedy by size (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference",
 * 2020, section 5). */
weft_status wefti_place(wefti_lifetime *buffers, int64_t count, int64_t *out_bytes) WEFT_CHECKED;
/* Adds a buffer's bytes, aligned, to *all. WEFT_E_NOMEM if sums could overflow. */
weft_status wefti_place_count(int64_t bytes, int64_t *all) WEFT_CHECKED;
/* For each time in [0, times), later than all buffers: the end of the highest buffer that is alive,
 * and the bytes of all that are alive. The highest end of all times is wefti_place's total. */
weft_status wefti_place_usage(const wefti_lifetime *buffers, int64_t count, int32_t times,
                              int64_t *out_highest, int64_t *out_alive) WEFT_CHECKED;
/* Checks a placement. WEFT_E_BUG names two buffers that overlap in time and address, or a buffer
 * outside [0, bytes). */
weft_status wefti_place_check(const wefti_lifetime *buffers, int64_t count,
                              int64_t bytes) WEFT_CHECKED;

#endif
