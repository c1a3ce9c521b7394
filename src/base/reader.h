/* Reads files in pieces while they are in use.
 *
 * The reader maps nothing into memory. If another process truncates a mapped file, access to the
 * mapping ends this process by a signal, and the rest of the last page reads as zeros. Here a
 * truncated file is an error that names the file. Opening and reading are fault points. */
#ifndef WEFTI_BASE_READER_H
#define WEFTI_BASE_READER_H

#include <stdint.h>

#include "base/status.h"

typedef struct wefti_reader wefti_reader;

/* Opens a regular file. A small file is read at once. Larger files stay open, up to a limit on
 * descriptors. A file beyond that limit is opened again for each piece, and must still be the same
 * file. */
weft_status wefti_reader_open(const char *path, wefti_reader **out) WEFT_CHECKED;
/* Treats bytes in memory as a file. The memory is borrowed until the close. */
weft_status wefti_reader_of(const void *data, int64_t bytes, wefti_reader **out) WEFT_CHECKED;
/* Bytes that functions supply, as a file of `bytes` bytes named `path` in messages. `read` may be
 * called from any thread. `close` may be NULL; it ends `context` with the reader, not if this call
 * fails. */
typedef struct wefti_reader_table {
    weft_status (*read)(void *context, int64_t at, int64_t bytes, void *to);
    void (*close)(void *context);
} wefti_reader_table;
weft_status wefti_reader_made(const wefti_reader_table *table, void *context, const char *path,
                              int64_t bytes, wefti_reader **out) WEFT_CHECKED;
void wefti_reader_close(wefti_reader *r);

int64_t wefti_reader_bytes(const wefti_reader *r); /* the file's size when it was opened */

/* Reads `bytes` bytes from offset `at`, within the size that the file had when it was opened. Any
 * thread may call it. */
weft_status wefti_reader_at(const wefti_reader *r, int64_t at, int64_t bytes,
                            void *to) WEFT_CHECKED;
/* Reads into fresh memory; free it with wefti_free. */
weft_status wefti_reader_take(const wefti_reader *r, int64_t at, int64_t bytes,
                              unsigned char **out) WEFT_CHECKED;
weft_status wefti_reader_crc32c(const wefti_reader *r, int64_t at, int64_t bytes,
                                uint32_t *out) WEFT_CHECKED;
/* A new descriptor of the file, for a caller that reads it in its own way. Close it with
 * wefti_reader_give_back. -1: there is none. Either the bytes lie in no file, or the name leads to
 * another file now, or too many files are open. */
int wefti_reader_take_file(const wefti_reader *r);
void wefti_reader_give_back(int fd);
/* The file's path, as it was opened; NULL: bytes in memory. Borrowed. */
const char *wefti_reader_path(const wefti_reader *r);
/* Hint: the file will be read from begin to end, so the disk should read ahead. */
void wefti_reader_ahead(const wefti_reader *r);

/* Hint: these bytes will be read soon. The disk reads them while the caller does other work. */
void wefti_reader_soon(const wefti_reader *r, int64_t at, int64_t bytes);

enum { WEFTI_READER_PIECE = 32 << 10, WEFTI_READER_WINDOW = 128 << 10 };

/* For small pieces that lie near each other: one read fetches a larger window, from which later
 * pieces come. A piece that lies far behind the previous one is read alone: a window would copy
 * more bytes than it saves calls. Zero-initialise all fields except the reader. */
typedef struct wefti_reader_window {
    const wefti_reader *reader;
    int64_t begin, end; /* of the window */
    int64_t last;       /* the end of the previous piece */
    unsigned char bytes[WEFTI_READER_WINDOW];
} wefti_reader_window;
weft_status wefti_reader_near(wefti_reader_window *w, int64_t at, int64_t bytes,
                              void *to) WEFT_CHECKED;

#endif
