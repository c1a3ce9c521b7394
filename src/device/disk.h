/* Streams of asynchronous reads and writes of ranges of one file: the memory below the host's.
 *
 * The file has no name (O_TMPFILE), so nothing is left of it after any death. Where the file system
 * has no such files, its name is removed at once: a death before that leaves an empty file. Space
 * is reserved before the first use. Reads and writes pass the page cache (O_DIRECT) if the file
 * system lets them. They run by io_uring, or by threads where the library or the kernel lacks
 * io_uring.
 *
 * Operations that share blocks of 4 KiB behave as if each ended before the next one began. Other
 * operations run at the same time. Any offset, size and memory is legal. Aligned ones are faster:
 * parts of blocks go through a buffer, and writes of parts read the block first.
 *
 * An encrypted file can be read by this stream only. A block that is not what was written fails its
 * read, also after a failed write. Encryption takes 24 bytes of memory for each block
 * (disk_cipher.c).
 *
 * An operation that fails to begin changes nothing, except among records (disk_records.h). All
 * memory is allocated then, so this is where it runs out. A write that fails at the wait may have
 * written any of its bytes. */
#ifndef WEFTI_DEVICE_DISK_H
#define WEFTI_DEVICE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/reader.h"

enum {
    WEFTI_DISK_ALIGNMENT = 4096,
    WEFTI_DISK_BLOCK = 1 << 20, /* unless the options say another */
    WEFTI_DISK_BLOCK_MAX = 64 << 20,
    WEFTI_DISK_DEPTH_MAX = 64
};

/* The first aligned byte from `memory` on. */
static inline unsigned char *wefti_disk_align(void *memory) {
    const uintptr_t past = (uintptr_t)memory % WEFTI_DISK_ALIGNMENT;
    return (unsigned char *)memory + (past ? WEFTI_DISK_ALIGNMENT - past : 0);
}

typedef struct wefti_disk_stream wefti_disk_stream;
typedef struct wefti_disk_ticket wefti_disk_ticket; /* a read or write that was begun */

/* Where files of tensors lie. */
typedef struct wefti_disk_place {
    const char *directory;
    bool encrypted;
    int64_t limit; /* of the bytes of one device; 0: none */
} wefti_disk_place;

typedef enum wefti_disk_engine {
    WEFTI_DISK_ANY, /* io_uring if it is there, else threads */
    WEFTI_DISK_URING,
    WEFTI_DISK_THREADS
} wefti_disk_engine;

typedef struct wefti_disk_options {
    const char *directory;
    int64_t bytes; /* of the file */
    int64_t block; /* most bytes of one request to the system, a multiple of 4 KiB; 0: 1 MiB */
    int32_t depth; /* requests under way at once, at most WEFTI_DISK_DEPTH_MAX; 0: 16 */
    wefti_disk_engine engine;
    bool cached; /* through the page cache, also if the file system has O_DIRECT */
    bool encrypted;
    bool late; /* space is reserved by wefti_disk_stream_reserve */
} wefti_disk_options;

/* Makes the file and, unless `late`, reserves its space. WEFT_E_NOT_FOUND without the directory;
 * WEFT_E_IO if it is full or takes no files, or if the engine that the options name is not there;
 * WEFT_E_NO_IMPL for an encrypted file without OpenSSL. */
weft_status wefti_disk_stream_open(const wefti_disk_options *options,
                                   wefti_disk_stream **out) WEFT_CHECKED;
/* Waits for all operations, and frees the stream, its tickets and the file's space. NULL is legal.
 */
void wefti_disk_stream_close(wefti_disk_stream *d);
/* Whether a stream of one block can be opened in the directory. */
weft_status wefti_disk_try(const char *directory) WEFT_CHECKED;
/* Bytes of the directory's file system that this user may still take. */
weft_status wefti_disk_free_bytes(const char *directory, int64_t *out) WEFT_CHECKED;

/* Bytes [offset, offset + bytes) are those of another file, from its byte `at` on, until they are
 * written: they take no space here. The other file is kept open, and must not change. Nothing else
 * is done meanwhile with these bytes. *out false: nothing was done, since the reader has no file,
 * this stream is encrypted, or records lie there. */
weft_status wefti_disk_stream_lend(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                   const wefti_reader *reader, int64_t at, bool *out) WEFT_CHECKED;
/* How many of these bytes lie in other files. */
int64_t wefti_disk_stream_lent(wefti_disk_stream *d, int64_t offset, int64_t bytes);
/* Reserves space for all bytes that do not lie in other files. */
weft_status wefti_disk_stream_reserve(wefti_disk_stream *d) WEFT_CHECKED;

/* Begins to read bytes [offset, offset + bytes) of the file into `memory`, or to write them from
 * it. The caller neither frees nor changes the memory until the wait. Waits itself for operations
 * under way that share a block with this one, unless both read. Any thread may call it. */
weft_status wefti_disk_stream_read(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                   void *memory, wefti_disk_ticket **out) WEFT_CHECKED;
weft_status wefti_disk_stream_write(wefti_disk_stream *d, int64_t offset, int64_t bytes,
                                    const void *memory, wefti_disk_ticket **out) WEFT_CHECKED;
/* Blocks until the operation has ended, and frees the ticket. A failure names the directory and the
 * offset. WEFT_E_CORRUPT: a block of an encrypted file is not what was written. */
weft_status wefti_disk_stream_wait(wefti_disk_stream *d, wefti_disk_ticket *ticket) WEFT_CHECKED;

/* How the stream works, for messages: "io_uring, O_DIRECT". Lives as long as the stream. */
const char *wefti_disk_stream_text(const wefti_disk_stream *d);
wefti_disk_engine wefti_disk_stream_engine(const wefti_disk_stream *d);
bool wefti_disk_stream_direct(const wefti_disk_stream *d); /* past the page cache */

#endif
