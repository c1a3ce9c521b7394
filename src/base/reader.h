/* Files that are read in pieces while they are in use. Nothing is mapped: of a file that is cut
 * meanwhile a mapping would end the process by a signal, and give zeros for the rest of a page;
 * what is gone is an error here, which names the file. Opening and reading are fault points. */
#ifndef WEFTI_BASE_READER_H
#define WEFTI_BASE_READER_H

#include <stdint.h>

#include "base/status.h"

typedef struct wefti_reader wefti_reader;

/* A regular file. A small one is read at once; of the others as many stay open as a process can
 * well spare, and the rest are opened for each piece, and must still be the same file then. */
weft_status wefti_reader_open(const char *path, wefti_reader **out) WEFT_CHECKED;
/* What lies in memory, borrowed until the close, as if it were a file. */
weft_status wefti_reader_of(const void *data, int64_t bytes, wefti_reader **out) WEFT_CHECKED;
void wefti_reader_close(wefti_reader *r);

int64_t wefti_reader_bytes(const wefti_reader *r); /* when it was opened */

/* The `bytes` at `at`, which the file had when it was opened. From any thread. */
weft_status wefti_reader_at(const wefti_reader *r, int64_t at, int64_t bytes,
                            void *to) WEFT_CHECKED;
/* The same into fresh memory; wefti_free it. */
weft_status wefti_reader_take(const wefti_reader *r, int64_t at, int64_t bytes,
                              unsigned char **out) WEFT_CHECKED;
weft_status wefti_reader_crc32c(const wefti_reader *r, int64_t at, int64_t bytes,
                                uint32_t *out) WEFT_CHECKED;
/* The file is about to be read from its begin to its end: let the disk run ahead. */
void wefti_reader_ahead(const wefti_reader *r);

enum { WEFTI_READER_PIECE = 32 << 10 };

/* For small pieces that lie near each other: what was read around the last one is kept.
 * Zero-initialise but for the reader. */
typedef struct wefti_reader_window {
    const wefti_reader *reader;
    int64_t begin, end;
    unsigned char bytes[WEFTI_READER_PIECE];
} wefti_reader_window;
weft_status wefti_reader_near(wefti_reader_window *w, int64_t at, int64_t bytes,
                              void *to) WEFT_CHECKED;

#endif
