/* Rows of a table that lies in a file: many small reads or writes. Neighbouring rows share a
 * request, up to WEFTI_ROWS_JOINED bytes, also if a block of 4 KiB lies between them. Requests are
 * whole blocks, so a write of parts of blocks first reads them. */
#ifndef WEFTI_DEVICE_DISK_ROWS_H
#define WEFTI_DEVICE_DISK_ROWS_H

#include "device/disk.h"

enum {
    WEFTI_ROWS_JOINED = 64 << 10,
    /* bytes of memory that a call of wefti_disk_rows_move needs */
    WEFTI_ROWS_STAGING = (2 << 20) + WEFTI_DISK_ALIGNMENT
};

/* A row of a table, and where its bytes are or go. */
typedef struct wefti_row_place {
    int32_t row;
    int32_t look_ups; /* of a read: how many of this step's look-ups it serves; 0: an update's */
    unsigned char *memory;
} wefti_row_place;

/* A table in a file: its row r begins at byte begin + r * row_bytes. The block of 4 KiB in which
 * the table begins, and the one in which it ends, hold nothing else. */
typedef struct wefti_disk_table {
    wefti_disk_stream *file;
    int64_t begin, row_bytes;
} wefti_disk_table;

/* Reads or writes rows, each at most once. Sorts `places` by row. Has ended all that it began when
 * it returns. A write that fails may have written any of the rows. `staging`: WEFTI_ROWS_STAGING
 * bytes. */
weft_status wefti_disk_rows_move(const wefti_disk_table *table, bool reads, wefti_row_place *places,
                                 int64_t count, void *staging) WEFT_CHECKED;
/* The same for the cache that has the table's newest rows. `table` is a place of the file
 * (disk_records.h). */
weft_status wefti_disk_rows_exchange(const wefti_disk_table *table, bool reads,
                                     wefti_row_place *places, int64_t count,
                                     void *staging) WEFT_CHECKED;

#endif
