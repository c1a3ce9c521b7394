/* Large files that bypass the page cache, written by one process or by several.
 *
 * Writing gigabytes through the page cache costs processor time twice: to find and fill fresh
 * pages, and to write them back. It also evicts what other programs had cached. During training
 * that time is lost to the step. This writer gathers consecutive bytes in one aligned buffer and
 * writes the aligned part of the buffer to the disk with O_DIRECT. Short ranges, and the ends of a
 * range that are not aligned, go through the page cache, so ranges of two processes may meet within
 * a page. On the
 * virtual machine of the measurement, 1.5 GB took 0.2 s of processor time, against 4 s. If the file
 * system does not support O_DIRECT, the writer uses ordinary writes.
 *
 * Fault points are as in base/io.h. The file has its final name from the start, so write into a
 * directory of your own. */
#ifndef WEFTI_BASE_BULK_H
#define WEFTI_BASE_BULK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct wefti_bulk wefti_bulk;

/* Creates `path`, which must not exist, and reserves exactly `bytes`. Where the file system can
 * reserve space, a full disk is an error here. */
weft_status wefti_bulk_open(const char *path, int64_t bytes, wefti_bulk **out) WEFT_CHECKED;
/* Opens a file of `bytes` bytes, which another process has created, to write some of its ranges. */
weft_status wefti_bulk_join(const char *path, int64_t bytes, wefti_bulk **out) WEFT_CHECKED;
/* The next bytes go to offset `at` and on. The first write goes to offset 0. */
weft_status wefti_bulk_seek(wefti_bulk *file, int64_t at) WEFT_CHECKED;
/* The caller may change the data as soon as this returns. WEFT_E_BUG past the announced size. */
weft_status wefti_bulk_write(wefti_bulk *file, const void *data, size_t bytes) WEFT_CHECKED;
/* Writes the buffer out and frees it. The next write allocates it again. */
weft_status wefti_bulk_park(wefti_bulk *file) WEFT_CHECKED;
/* Other processes write ranges of this file too: wefti_bulk_commit does not ask for all bytes. */
void wefti_bulk_share(wefti_bulk *file);
/* Syncs and closes. On failure the file is closed, and removed by the process that created it.
 * WEFT_E_BUG if fewer bytes than announced were written, unless the file is shared. */
weft_status wefti_bulk_commit(wefti_bulk *file) WEFT_CHECKED;
/* Closes the file, and removes it in the process that created it; NULL is legal. */
void wefti_bulk_abort(wefti_bulk *file);

#endif
