/* Batches of data on their way to a session, and what the model makes of them. */
#ifndef WEFTI_SETUP_FEED_H
#define WEFTI_SETUP_FEED_H

#include "data/feed.h"
#include "setup/setup.h"

/* Batches that a feed prepares ahead. */
enum { WEFTI_RING_TRAIN = 3, WEFTI_RING_PASSES = 2 };

/* Feeds rows [first, first + micro) of a batch to a program. */
weft_status wefti_built_feed_rows(wefti_built *m, int program, const wefti_batch *b,
                                  int64_t first) WEFT_CHECKED;
/* A later pass of the program will be fed the first rows of this batch. */
void wefti_built_feed_ahead(wefti_built *m, int program, const wefti_batch *b);
/* In a world: lets the feed prepare only the rows of each microbatch that this process needs for
 * the program. */
weft_status wefti_built_choose_rows(const wefti_built *m, int program,
                                    wefti_feed_options *o) WEFT_CHECKED;
/* A feed in memory of its own: *out_block, to be freed after the feed is destroyed. */
weft_status wefti_open_feed(const wefti_feed_options *o, void **out_block,
                            wefti_feed **out) WEFT_CHECKED;

/* The loss over the first batches of a part of the data. */
typedef struct wefti_evaluation {
    int64_t samples, targets;
    int64_t bytes;         /* of the targets' texts; 0: the data have no tokenizer */
    int64_t prepared;      /* rows that this process has prepared */
    double loss, accuracy; /* means over targets and samples; accuracy NaN: no classes */
    bool stopped;          /* the numbers are of a part of the batches */
} wefti_evaluation;
/* Asked before each batch, on all ranks: *out true ends it. */
typedef weft_status wefti_evaluation_stops(void *context, bool *out);
weft_status wefti_built_evaluate(wefti_built *m, weft_data_part part, int64_t batches,
                                 wefti_evaluation_stops *stops, void *context,
                                 wefti_evaluation *out) WEFT_CHECKED;

#endif
