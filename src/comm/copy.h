/* Copies that are larger than a core's own cache.
 *
 * A normal store first fetches its cache line, which costs as much as reading it, and later evicts
 * another line. A streaming (non-temporal) store does neither. But the line then lies in memory
 * for the next reader, and only few such stores can be under way. So a copy that overflows the
 * cache uses both: of each four pages, some are streamed.
 *
 * Measured with an all-gather of two cores, each with 2 MiB of second-level cache and stores of 64
 * bytes:
 * - Below that cache size, each streamed page costs time.
 * - Up to eight times that size, streaming two of four pages saves 20 %. A later reader of the
 *   result loses as much.
 * - Beyond it three pages, and all four once the last level overflows, save 25 to 45 %, for the
 *   reader too.
 *
 * On cores with 1 MiB of second-level cache and a nearer last level, streaming 1 and 4 MiB took
 * 1.3 times as long, and 16 MiB 0.7 times. Therefore wefti_copy_kept measures where streaming
 * begins to pay. */
#ifndef WEFTI_COPY_H
#define WEFTI_COPY_H

#include <stddef.h>
#include <stdint.h>

typedef enum wefti_copy_form {
    WEFTI_COPY_PLAIN, /* no streaming: memcpy */
    WEFTI_COPY_SSE2,
    WEFTI_COPY_AVX2,
    WEFTI_COPY_AVX512,
    WEFTI_COPY_FORMS
} wefti_copy_form;

/* The best of this processor. */
wefti_copy_form wefti_copy_best(void);
/* Bytes of the second-level cache of a core. */
int64_t wefti_copy_cache(void);
/* Sizes up to this many bytes gain nothing from streaming stores. The first call measures it,
 * which takes a few milliseconds. */
int64_t wefti_copy_kept(void);
enum { WEFTI_COPY_ALL = 4 };

/* Pages of each four that are to be streamed where `bytes` are written in all. */
int wefti_copy_streamed(int64_t bytes);

/* memcpy; `streamed` of each four pages past the caches: of less than four pages all or none. */
void wefti_copy(void *to, const void *from, size_t bytes, int streamed);
/* The same with that form, which the processor must have, and as a part of what wefti_copy_order
 * then orders before later stores. */
void wefti_copy_part(wefti_copy_form form, void *to, const void *from, size_t bytes, int streamed);
void wefti_copy_order(void);

/* Whole lines, from the beginning of one, past the caches; to be ordered. */
typedef void wefti_copy_lines(void *to, const void *from, size_t bytes);
/* NULL: this form does not stream. */
wefti_copy_lines *wefti_copy_streaming(wefti_copy_form form);

#endif
