/* Tables that lie as records in a disk stream. They have the same number of rows. A record has row
 * r of each table, so one request reads or writes these rows.
 *
 * Only the places in the file change. Users of the stream see the tables one behind the other. Each
 * begins at a block of 4 KiB. Each byte has one place, so the tables take no more space. Reads and
 * writes of a table go through a buffer, in stretches of up to 4 MiB of whole records. They have
 * ended when they have begun. */
#ifndef WEFTI_DEVICE_DISK_RECORDS_H
#define WEFTI_DEVICE_DISK_RECORDS_H

#include "device/disk.h"

enum { WEFTI_RECORD_PARTS = 8, WEFTI_RECORD_MOST = 1 << 20 };

typedef struct wefti_disk_records {
    int64_t begin, end;  /* in the stream: multiples of 4 KiB. Record r is at begin + r * bytes */
    int64_t rows, bytes; /* records, and the bytes of one, at most WEFTI_RECORD_MOST */
    int count;           /* tables */
    struct {
        int64_t row_bytes;
        int64_t begin; /* of the table, for reads and writes of the stream */
        int64_t at;    /* of its row, in the record */
        int64_t rest;  /* where the bytes between this table and the next one are */
    } part[WEFTI_RECORD_PARTS];
} wefti_disk_records;

/* Where such tables lie if the first one begins at byte `begin`. False: there is nothing to gain,
 * or a record would be too large. */
bool wefti_disk_records_of(int64_t begin, int64_t rows, int count, const int64_t *row_bytes,
                           wefti_disk_records *out);
/* The tables are records from now on. What was in their range is undefined. Call it while nothing
 * else is done with the range. */
weft_status wefti_disk_stream_interleave(wefti_disk_stream *d,
                                         const wefti_disk_records *records) WEFT_CHECKED;
/* The records with the lowest place that have bytes in [begin, end). False: there are none. `out`
 * may be NULL. */
bool wefti_disk_stream_records(wefti_disk_stream *d, int64_t begin, int64_t end,
                               wefti_disk_records *out);

#endif
