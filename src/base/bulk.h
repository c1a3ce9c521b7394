/* Large files past the page cache, whole or failed.
 *
 * Writing gigabytes through the page cache takes the processor's time twice, for finding and
 * filling fresh pages and for writing them back, and throws out what others had cached; beside a
 * training step that time is the step's. Here bytes are gathered in one aligned buffer and go to
 * the disk from it (O_DIRECT): 1.5 GB took 0.2 s of processor time, against 4 s, on the virtual
 * machine where this was measured. Where the file system cannot do that, writes are ordinary. Fault
 * points as in base/io.h; a file keeps its own name, so write into a directory of your own. */
#ifndef WEFTI_BASE_BULK_H
#define WEFTI_BASE_BULK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct wefti_bulk wefti_bulk;

/* Create `path`, which must not exist, with room for exactly `bytes`: a full disk is found here,
 * where possible. */
weft_status wefti_bulk_open(const char *path, int64_t bytes, wefti_bulk **out) WEFT_CHECKED;
/* The data may change as soon as this returns. WEFT_E_BUG past the announced size. */
weft_status wefti_bulk_write(wefti_bulk *file, const void *data, size_t bytes) WEFT_CHECKED;
/* Sync and close; also on failure the file is closed, and then removed. WEFT_E_BUG short of the
 * announced size. */
weft_status wefti_bulk_commit(wefti_bulk *file) WEFT_CHECKED;
void wefti_bulk_abort(wefti_bulk *file); /* close and remove; NULL is legal */

#endif
