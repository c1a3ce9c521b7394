/* Copies that are larger than a core's own cache.
 *
 * A store first fetches the line that it changes, which takes as long as reading it, and later
 * drives another line out. A streaming (non-temporal) store does neither, but what it writes lies
 * in memory, not in a cache, for whoever reads it next, and few of them are under way at a time. So
 * a copy that leaves the core's cache anyhow does best when it does both at once: of each four
 * pages some are streamed. Measured with two cores that gather (2 MiB of second-level cache each,
 * stores of 64 bytes): below that size every streamed page costs time; from there to eight times as
 * much two of four save 20 %, and cost whoever then reads all of it at full speed as much again;
 * beyond, three, and where the last level is overrun all four, save 25 to 45 %, for the reader
 * too. With other cores (1 MiB of second-level cache each), whose last level is nearer, streamed
 * pages cost time beyond that size as well: gathers of 1 and 4 MiB took 1.3 times as long with them
 * as without, of 16 MiB 0.7 times. So which of both it is is measured. */
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
/* Bytes up to which nothing is gained by streaming what is written. The first call measures it,
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
/* NULL: there is no such. */
wefti_copy_lines *wefti_copy_streaming(wefti_copy_form form);

#endif
