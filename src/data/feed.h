/* The data feed: a thread that prepares batches ahead of the training loop.
 *
 * Batch b of a run holds the samples at global positions [b * batch, (b + 1) * batch) of the order
 * that weft_data_order defines. So a feed starts at any step without history, and a device with
 * some rows of the global batch prepares only those rows. Data sets themselves are public:
 * weft/data.h. */
#ifndef WEFTI_DATA_FEED_H
#define WEFTI_DATA_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "weft/data.h"

typedef struct wefti_feed_options {
    const weft_data *data; /* borrowed; outlives the feed */
    weft_data_part part;
    bool sequential; /* samples 0, 1, 2... once, for validation; else the seed's order, without end
                      */
    uint64_t seed;
    int64_t batch;              /* samples of the global batch */
    int64_t row_begin, row_end; /* the rows of it that this feed has; 0, batch: all */
    /* Of each `group` of those rows, the feed prepares rows [own_begin, own_end) and leaves the
     * others as the block has them. `group` divides their number. 0: prepares all. */
    int64_t group, own_begin, own_end;
    int64_t first;          /* number of the first batch */
    int ring;               /* batches kept ready, 2 or more to read ahead */
    int32_t padding_target; /* target in rows past the last sample (sequential only); input is 0 */
} wefti_feed_options;

/* One batch, rows = row_end - row_begin, 64-byte aligned, valid until released. */
typedef struct wefti_batch {
    int64_t number;
    int64_t rows;
    int64_t valid;                     /* rows that hold samples; the rows after them are padding */
    int64_t group, own_begin, own_end; /* the prepared rows; group: at least 1 */
    int64_t prepared;                  /* samples that were read */
    void *input;     /* [rows, ...]: i32 tokens or f32 pixels, as weft_data_input says */
    int32_t *target; /* [rows, ...] */
} wefti_batch;

typedef struct wefti_feed wefti_feed;

/* Bytes of `ring` batches, whose rows take so many bytes of input and target. */
int64_t wefti_feed_ring_bytes(int ring, int64_t rows, int64_t input_bytes, int64_t target_bytes);
/* Bytes of the block that wefti_feed_create needs; any alignment of 64. */
weft_status wefti_feed_bytes(const wefti_feed_options *options, int64_t *out_bytes) WEFT_CHECKED;

/* Start the reader thread. `block` (borrowed, 64-byte aligned, of wefti_feed_bytes) holds all
 * batches, so that it can be part of a planned arena; nothing is allocated afterwards. */
weft_status wefti_feed_create(const wefti_feed_options *options, void *block,
                              wefti_feed **out) WEFT_CHECKED;
/* Stops the thread, at any time, and forgets prepared batches. */
void wefti_feed_destroy(wefti_feed *feed);

/* Borrows the next batch; waits for it. WEFT_E_STOPPED after wefti_feed_stop; WEFT_E_NOT_FOUND
 * after the last batch of a sequential feed. A failure of the reader thread comes after all batches
 * before it. At most `ring` batches can be borrowed at once (WEFT_E_ARG). */
weft_status wefti_feed_next(wefti_feed *feed, wefti_batch *out) WEFT_CHECKED;
/* The batch that the next call of wefti_feed_next borrows, to look at until that batch is released.
 * False: it is not ready. */
bool wefti_feed_peek(wefti_feed *feed, wefti_batch *out);
/* Returns the batch that was borrowed first. */
void wefti_feed_release(wefti_feed *feed);
/* From any thread: wake whoever waits in wefti_feed_next, and end reading. */
void wefti_feed_stop(wefti_feed *feed);

/* Number of batches of `batch` that hold all samples of a part once: ceil(samples / batch). */
int64_t wefti_feed_batches(const weft_data *data, weft_data_part part, int64_t batch);

#endif
