/* Blocks of 4 KiB of a file in host memory, the latest ones that rows needed. A row that a step
 * reads and then writes costs one read and one write, although a write of a row needs the rest of
 * its block. They are the file's place for the cache of rows (disk_cache.h), which calls these
 * functions under its lock. */
#ifndef WEFTI_DEVICE_DISK_BLOCKS_H
#define WEFTI_DEVICE_DISK_BLOCKS_H

#include "device/disk_rows.h"
#include "rows/cache.h"

typedef struct wefti_disk_blocks {
    wefti_disk_stream *file;
    wefti_row_cache index;   /* of the blocks' numbers in the file, in the order of their reads */
    unsigned char *memory;   /* [slots] blocks */
    wefti_row_place *places; /* [slots]: of reads and writes */
    int32_t *pinned;         /* [slots]: slots that the rows brought last need */
    int64_t pinned_count;
    int64_t given;    /* slots that blocks got so far */
    int64_t begun[2]; /* `given` when the last call of wefti_disk_blocks_turn came, and before */
    bool changed;     /* any block, perhaps */
} wefti_disk_blocks;

/* Bytes of memory for so many blocks, without `places` and `pinned`. A multiple of 8. */
int64_t wefti_disk_blocks_bytes(int64_t blocks);
/* How many blocks the rows of a table may need at most, each. */
int64_t wefti_disk_blocks_of_row(const wefti_disk_table *table);
/* No blocks yet, in `memory`, which is borrowed and aligned to 8 bytes. */
weft_status wefti_disk_blocks_open(wefti_disk_stream *file, int64_t blocks, void *memory,
                                   wefti_disk_blocks *out) WEFT_CHECKED;
void wefti_disk_blocks_close(wefti_disk_blocks *b); /* writes nothing */
/* Rows whose blocks were brought: the first `rows` of them. A block at least of `read` rows was
 * read. All blocks of `ahead` others were there, one at least since it had been read ahead. */
typedef struct wefti_blocks_brought {
    int64_t rows, read, ahead;
} wefti_blocks_brought;

/* Reads the blocks of the first rows that are not there: of as many rows as there is room for. They
 * stay until the next call. `table` is a place of the file. `ahead`: the next step needs them. Then
 * room is what the present step leaves, which has been given blocks since its own turn. `staging`:
 * WEFTI_ROWS_STAGING bytes. */
weft_status wefti_disk_blocks_bring(wefti_disk_blocks *b, const wefti_disk_table *table,
                                    const wefti_row_place *places, int64_t count, bool ahead,
                                    void *staging, wefti_blocks_brought *out) WEFT_CHECKED;
/* From now on rows are brought ahead for one step later. */
static inline void wefti_disk_blocks_turn(wefti_disk_blocks *b) {
    b->begun[1] = b->begun[0];
    b->begun[0] = b->given;
}
/* Copies bytes that lie in blocks which were brought, at place `at` of the file. */
void wefti_disk_blocks_read(const wefti_disk_blocks *b, int64_t at, int64_t bytes,
                            unsigned char *to);
void wefti_disk_blocks_write(wefti_disk_blocks *b, int64_t at, int64_t bytes,
                             const unsigned char *from);
/* Writes changed blocks to the file. If that fails, they stay changed. */
weft_status wefti_disk_blocks_flush(wefti_disk_blocks *b, void *staging) WEFT_CHECKED;
/* Forgets all blocks, changed ones too. */
void wefti_disk_blocks_drop(wefti_disk_blocks *b);

#endif
