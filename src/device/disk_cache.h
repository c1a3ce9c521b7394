/* A cache in host memory for rows of tables that lie in a file: a table, and its states, which have
 * the same rows. rows/cache.h decides which rows it keeps. A changed row is written back when it
 * leaves the cache, and before anything else touches the bytes of its table. For that, the file's
 * stream asks the cache (wefti_disk_guard), so other readers and writers need not know of it. Any
 * thread may call its functions.
 *
 * Tables that lie as records (disk_records.h) are read and written as such: a row of one of them
 * brings those of the others. Up to a ninth of the memory has the blocks that were read last
 * (disk_blocks.h), so rows that get no slot need not be read again before they are written. */
#ifndef WEFTI_DEVICE_DISK_CACHE_H
#define WEFTI_DEVICE_DISK_CACHE_H

#include "device/disk_records.h"
#include "device/disk_rows.h"

typedef struct wefti_disk_cache wefti_disk_cache;

enum { WEFTI_CACHE_PARTS = WEFTI_RECORD_PARTS };

/* One of the tables. It has rows [first, first + rows) alone. `begin` is the place where row 0
 * would be. */
typedef struct wefti_cache_table {
    wefti_disk_table table;
    int64_t first, rows;
} wefti_cache_table;

typedef struct wefti_disk_cache_options {
    /* each with a row of its own in each slot; of one file. Those of one record follow each other
     */
    wefti_cache_table parts[WEFTI_CACHE_PARTS];
    int count;
    bool looked_up; /* part 0 is looked up. Else all reads are those of updates */
    int64_t slots;
    void *memory; /* borrowed: wefti_disk_cache_bytes, aligned to 8 bytes */
} wefti_disk_cache_options;

typedef struct wefti_row_counts {
    int64_t hits;                   /* rows that were read from memory, of each part */
    int64_t misses, written;        /* records that were read from the file, and written to it */
    int64_t look_ups, look_ups_hit; /* of rows, and those whose row the cache had */
    int64_t ahead;                  /* of `hits`: they were in no slot, but had been read ahead */
} wefti_row_counts;

/* Bytes of memory for a cache. slot_bytes: of one row of each part. */
int64_t wefti_disk_cache_bytes(int64_t slots, int64_t slot_bytes);
/* The most slots that fit in `bytes`. */
int64_t wefti_disk_cache_slots(int64_t bytes, int64_t slot_bytes);
weft_status wefti_disk_cache_open(const wefti_disk_cache_options *options,
                                  wefti_disk_cache **out) WEFT_CHECKED;
/* Call it before the files are closed. Writes nothing back. NULL is legal. */
void wefti_disk_cache_close(wefti_disk_cache *cache);
/* Makes room for calls of wefti_disk_cache_move with up to `rows` rows. */
weft_status wefti_disk_cache_reserve(wefti_disk_cache *cache, int64_t rows) WEFT_CHECKED;
/* As wefti_disk_rows_move, by way of the cache: of part number `part`. A row counts as used once in
 * each call that looks it up, and may get a slot then. In a cache without look-ups, an update that
 * reads part 0 uses its rows. Rows without a slot are in the file when those of the last part of
 * their record are written. If rows that leave the cache cannot be written back, they stay. */
weft_status wefti_disk_cache_move(wefti_disk_cache *cache, int part, bool reads,
                                  wefti_row_place *places, int64_t count,
                                  void *staging) WEFT_CHECKED;
/* Reads rows of a part that the next step will look up, but for those that have a slot. They get
 * blocks that the present step does not need, as long as there are some. `places` need no memory;
 * their order changes. `turn`: they are the first ones of that step. False: a read failed, there is
 * no room for all, or others write to the tables, up to the next copy of rows. A row that is not
 * read now is read when it is looked up. */
bool wefti_disk_cache_ahead(wefti_disk_cache *cache, int part, bool turn, wefti_row_place *places,
                            int64_t count, void *staging);
/* The part that has a table, or its rows from some row on; -1: none. *out_row: the number, in the
 * part, of the table's row 0. */
int wefti_disk_cache_part(const wefti_disk_cache *cache, const wefti_disk_table *table,
                          int64_t *out_row);
/* Drops all rows, changed ones too: files and memory have got other bytes. */
void wefti_disk_cache_forget(wefti_disk_cache *cache);
wefti_row_counts wefti_disk_cache_counts(wefti_disk_cache *cache);

#endif
