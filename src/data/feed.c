/* The reader thread and its ring of prepared batches. See data/feed.h.
 *
 * Three counters only grow: prepared >= borrowed >= released. A batch's slot is its number modulo
 * the ring. The reader owns the slots in [prepared, released + ring), the caller the slots in
 * [released, borrowed). */
#include "base/number.h"
#include "data/feed.h"

#include <pthread.h>
#include <string.h>

#include "base/fault.h"
#include "base/memory.h"
#include "base/thread.h"

enum { FEED_MESSAGE_BYTES = 1024, LARGEST_RING = 1024 };

struct wefti_feed {
    wefti_feed_options options;
    unsigned char *block;
    int64_t input_bytes, target_bytes; /* of one sample */
    int64_t slot_bytes, target_offset; /* of one slot */
    int64_t samples;
    int64_t read[LARGEST_RING]; /* samples in each slot */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t prepared, borrowed, released; /* guarded by mutex, as is all below */
    bool stop;
    weft_status failure; /* the reader's failure, or WEFT_OK */
    char message[FEED_MESSAGE_BYTES];
};

/* Sizes into a feed that is only a plan yet. */
static weft_status measure(const wefti_feed_options *o, wefti_feed *feed) {
    WEFT_REQUIRE(o->data, WEFT_E_ARG, "a feed needs data");
    feed->options = *o;
    if (!o->group) { /* one group, all of it */
        feed->options.group = feed->options.own_end = o->row_end - o->row_begin;
        feed->options.own_begin = 0;
    }
    feed->samples = weft_data_samples(o->data, o->part);
    WEFT_REQUIRE(feed->samples > 0, WEFT_E_ARG, "the data has no %s part",
                 o->part == WEFT_DATA_VALIDATION ? "validation" : "training");
    WEFT_REQUIRE(o->batch >= 1 && o->batch <= INT32_MAX, WEFT_E_ARG, "a batch of %lld samples",
                 (long long)o->batch);
    WEFT_REQUIRE(o->row_begin >= 0 && o->row_begin < o->row_end && o->row_end <= o->batch,
                 WEFT_E_ARG, "rows %lld to %lld of a batch of %lld", (long long)o->row_begin,
                 (long long)o->row_end, (long long)o->batch);
    int64_t group = o->group;
    WEFT_REQUIRE(group == 0 ||
                     (group > 0 && (o->row_end - o->row_begin) % group == 0 && o->own_begin >= 0 &&
                      o->own_begin <= o->own_end && o->own_end <= group),
                 WEFT_E_ARG, "rows %lld to %lld of each %lld of %lld rows", (long long)o->own_begin,
                 (long long)o->own_end, (long long)group, (long long)(o->row_end - o->row_begin));
    WEFT_REQUIRE(o->ring >= 1 && o->ring <= LARGEST_RING, WEFT_E_ARG,
                 "a feed keeps 1 to %d batches ready, not %d", LARGEST_RING, o->ring);
    /* positions stay below 2^63 for any run that can end */
    WEFT_REQUIRE(o->first >= 0 && o->first <= (int64_t)1 << 31, WEFT_E_ARG,
                 "the first batch is %lld", (long long)o->first);
    weft_desc input = weft_data_input(o->data), target = weft_data_target(o->data);
    feed->input_bytes = weft_desc_bytes(&input);
    feed->target_bytes = weft_desc_bytes(&target);
    int64_t rows = o->row_end - o->row_begin, inputs, targets, total;
    WEFT_REQUIRE(!wefti_mul_overflows(rows, feed->input_bytes, &inputs) &&
                     !wefti_mul_overflows(rows, feed->target_bytes, &targets) &&
                     !wefti_add_overflows(inputs, targets, &total) &&
                     total <= INT64_MAX / (2 * LARGEST_RING),
                 WEFT_E_ARG, "a batch of %lld rows is too large to address", (long long)rows);
    feed->target_offset = wefti_aligned(inputs);
    feed->slot_bytes = feed->target_offset + wefti_aligned(targets);
    return WEFT_OK;
}

int64_t wefti_feed_ring_bytes(int ring, int64_t rows, int64_t input_bytes, int64_t target_bytes) {
    return ring * (wefti_aligned(rows * input_bytes) + wefti_aligned(rows * target_bytes));
}

weft_status wefti_feed_bytes(const wefti_feed_options *options, int64_t *out_bytes) {
    wefti_feed plan = {0};
    WEFT_TRY(measure(options, &plan));
    *out_bytes = plan.slot_bytes * options->ring;
    return WEFT_OK;
}

int64_t wefti_feed_batches(const weft_data *data, weft_data_part part, int64_t batch) {
    int64_t samples = weft_data_samples(data, part);
    return batch > 0 ? samples / batch + (samples % batch != 0) : 0;
}

static unsigned char *slot_of(const wefti_feed *feed, int64_t count) {
    return feed->block + count % feed->options.ring * feed->slot_bytes;
}

/* Rows of this feed in batch `number` that hold samples. */
static int64_t valid_rows(const wefti_feed *feed, int64_t number) {
    const wefti_feed_options *o = &feed->options;
    int64_t rows = o->row_end - o->row_begin;
    if (!o->sequential) return rows;
    int64_t left = feed->samples - number * o->batch - o->row_begin;
    return left < 0 ? 0 : left < rows ? left : rows;
}

static weft_status prepare(wefti_feed *feed, int64_t count) {
    const wefti_feed_options *o = &feed->options;
    unsigned char *input = slot_of(feed, count), *target = input + feed->target_offset;
    int64_t number = o->first + count, valid = valid_rows(feed, number);
    int64_t *read = &feed->read[count % o->ring];
    *read = 0;
    wefti_fault_pass(WEFTI_SLOW_DATA);
    for (int64_t row = 0; row < o->row_end - o->row_begin; row++) {
        int32_t *row_target = (int32_t *)(void *)(target + row * feed->target_bytes);
        void *row_input = input + row * feed->input_bytes;
        if (row % o->group < o->own_begin || row % o->group >= o->own_end) continue;
        if (row < valid) {
            int64_t position = number * o->batch + o->row_begin + row;
            int64_t index =
                o->sequential ? position : weft_data_order(o->seed, feed->samples, position);
            WEFT_TRY(weft_data_read(o->data, o->part, index, row_input, row_target));
            ++*read;
        } else {
            memset(row_input, 0, (size_t)feed->input_bytes);
            for (int64_t i = 0; i < feed->target_bytes / (int64_t)sizeof *row_target; i++)
                row_target[i] = o->padding_target;
        }
    }
    return WEFT_OK;
}

/* Past the last batch of a sequential feed. */
static bool ended(const wefti_feed *feed, int64_t count) {
    const wefti_feed_options *o = &feed->options;
    return o->sequential && o->first + count >= wefti_feed_batches(o->data, o->part, o->batch);
}

static void *reader_main(void *argument) {
    wefti_feed *feed = argument;
    for (int64_t count = 0;; count++) {
        pthread_mutex_lock(&feed->mutex);
        while (!feed->stop && feed->prepared - feed->released >= feed->options.ring)
            pthread_cond_wait(&feed->changed, &feed->mutex);
        bool stop = feed->stop;
        pthread_mutex_unlock(&feed->mutex);
        if (stop) return NULL;
        weft_status status = ended(feed, count)
                                 ? WEFT_RAISE(WEFT_E_NOT_FOUND, "all batches of the data were read")
                                 : prepare(feed, count);
        pthread_mutex_lock(&feed->mutex);
        if (status < 0) {
            feed->failure = status;
            const char *message = weft_error_message();
            size_t length = strnlen(message, FEED_MESSAGE_BYTES - 1);
            memcpy(feed->message, message, length);
            feed->message[length] = '\0';
        } else {
            feed->prepared++;
        }
        pthread_cond_broadcast(&feed->changed);
        pthread_mutex_unlock(&feed->mutex);
        if (status < 0) return NULL;
    }
}

weft_status wefti_feed_create(const wefti_feed_options *options, void *block, wefti_feed **out) {
    WEFT_REQUIRE(block && (uintptr_t)block % WEFTI_ALIGNMENT == 0, WEFT_E_ARG,
                 "the block of a feed is aligned to %d bytes", WEFTI_ALIGNMENT);
    wefti_feed *feed;
    WEFT_NEW(feed, wefti_feed);
    weft_status status = measure(options, feed);
    if (status < 0) {
        wefti_free(feed);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    feed->block = block;
    pthread_mutex_init(&feed->mutex, NULL);
    pthread_cond_init(&feed->changed, NULL);
    if (wefti_thread_start(&feed->thread, reader_main, feed)) {
        pthread_mutex_destroy(&feed->mutex);
        pthread_cond_destroy(&feed->changed);
        wefti_free(feed);
        WEFT_FAIL(WEFT_E_NOMEM, "cannot start the thread that reads data");
    }
    *out = feed;
    return WEFT_OK;
}

void wefti_feed_stop(wefti_feed *feed) {
    pthread_mutex_lock(&feed->mutex);
    feed->stop = true;
    pthread_cond_broadcast(&feed->changed);
    pthread_mutex_unlock(&feed->mutex);
}

void wefti_feed_destroy(wefti_feed *feed) {
    if (!feed) return;
    wefti_feed_stop(feed);
    pthread_join(feed->thread, NULL);
    pthread_mutex_destroy(&feed->mutex);
    pthread_cond_destroy(&feed->changed);
    wefti_free(feed);
}

/* A prepared batch. */
static wefti_batch batch_of(const wefti_feed *feed, int64_t count) {
    int64_t number = feed->options.first + count;
    unsigned char *slot = slot_of(feed, count);
    return (wefti_batch){.number = number,
                         .rows = feed->options.row_end - feed->options.row_begin,
                         .valid = valid_rows(feed, number),
                         .group = feed->options.group,
                         .own_begin = feed->options.own_begin,
                         .own_end = feed->options.own_end,
                         .prepared = feed->read[count % feed->options.ring],
                         .input = slot,
                         .target = (int32_t *)(void *)(slot + feed->target_offset)};
}

weft_status wefti_feed_next(wefti_feed *feed, wefti_batch *out) {
    pthread_mutex_lock(&feed->mutex);
    bool full = feed->borrowed - feed->released >= feed->options.ring;
    while (!full && !feed->stop && feed->failure == WEFT_OK && feed->borrowed == feed->prepared)
        pthread_cond_wait(&feed->changed, &feed->mutex);
    bool stop = feed->stop, ready = feed->borrowed < feed->prepared;
    int64_t count = feed->borrowed;
    if (!full && !stop && ready) feed->borrowed++;
    pthread_mutex_unlock(&feed->mutex);
    WEFT_REQUIRE(!full, WEFT_E_ARG, "all %d batches of the feed are borrowed: release one first",
                 feed->options.ring);
    WEFT_REQUIRE(!stop, WEFT_E_STOPPED, "reading data was stopped");
    if (!ready)
        return wefti_adopt(feed->failure, feed->message); /* the reader has ended: no race */
    *out = batch_of(feed, count);
    return WEFT_OK;
}

bool wefti_feed_peek(wefti_feed *feed, wefti_batch *out) {
    pthread_mutex_lock(&feed->mutex);
    const int64_t count = feed->borrowed;
    const bool ready = count < feed->prepared;
    pthread_mutex_unlock(&feed->mutex);
    if (ready) *out = batch_of(feed, count);
    return ready;
}

void wefti_feed_release(wefti_feed *feed) {
    pthread_mutex_lock(&feed->mutex);
    if (feed->released < feed->borrowed) feed->released++;
    pthread_cond_broadcast(&feed->changed);
    pthread_mutex_unlock(&feed->mutex);
}
