/* The feed: every batch is a function of its number alone, for every caller, start and set of rows.
 * Stops are clean, and failures of the reader thread arrive. weft-test: threads */
#include "data_fixture.h"

#include <pthread.h>

#include "data/feed.h"

enum { CONTEXT = 3, SAMPLES = 20, TEXT_BYTES = SAMPLES * CONTEXT + 1 };

static weft_data *numbers(int64_t vocab, double validation) {
    unsigned char text[TEXT_BYTES];
    for (int i = 0; i < TEXT_BYTES; i++) text[i] = (unsigned char)i;
    const char *path = put_file("numbers", text, sizeof text);
    weft_data *data;
    ASSERT_OK(weft_data_open(&WEFT_STRUCT(weft_data_options, .format = "text", .path = path,
                                          .context = CONTEXT, .vocab = vocab,
                                          .validation_fraction = validation),
                             &data));
    return data;
}

typedef struct running {
    wefti_feed *feed;
    unsigned char *block;
    int64_t bytes;
} running;

/* Start with guard bytes around the block. */
static running start(const wefti_feed_options *o) {
    running r = {0};
    ASSERT_OK(wefti_feed_bytes(o, &r.bytes));
    r.block = aligned_alloc(64, (size_t)(r.bytes + 128 + 63) / 64 * 64);
    assert_non_null(r.block);
    memset(r.block, 0xA5, (size_t)r.bytes + 128);
    ASSERT_OK(wefti_feed_create(o, r.block + 64, &r.feed));
    return r;
}

static void end(running *r) {
    wefti_feed_destroy(r->feed);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(r->block[i], 0xA5);
        assert_int_equal(r->block[64 + r->bytes + i], 0xA5);
    }
    free(r->block);
}

static int64_t sample_of(const wefti_batch *b, int64_t row) {
    return ((const int32_t *)b->input)[row * CONTEXT] / CONTEXT;
}

static void assert_row(const wefti_batch *b, int64_t row, int64_t sample) {
    const int32_t *input = (const int32_t *)b->input + row * CONTEXT,
                  *target = b->target + row * CONTEXT;
    for (int i = 0; i < CONTEXT; i++) {
        assert_int_equal(input[i], sample * CONTEXT + i);
        assert_int_equal(target[i], sample * CONTEXT + i + 1);
    }
}

static void batches_follow_the_order(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    for (int ring = 1; ring <= 4; ring++) {
        wefti_feed_options o = {.data = data, .seed = 99, .batch = 6, .row_end = 6, .ring = ring};
        running r = start(&o);
        for (int64_t number = 0; number < 25; number++) { /* 150 positions: 7.5 epochs */
            wefti_batch b;
            ASSERT_OK(wefti_feed_next(r.feed, &b));
            assert_int_equal(b.number, number);
            assert_int_equal(b.rows, 6);
            assert_int_equal(b.valid, 6);
            assert_int_equal((uintptr_t)b.input % 64, 0);
            assert_int_equal((uintptr_t)b.target % 64, 0);
            for (int64_t row = 0; row < 6; row++)
                assert_row(&b, row, weft_data_order(99, SAMPLES, number * 6 + row));
            wefti_feed_release(r.feed);
        }
        end(&r);
    }
    weft_data_close(data);
}

static void starts_anywhere(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    for (int64_t first = 0; first < 40; first++) {
        wefti_feed_options o = {
            .data = data, .seed = 5, .batch = 4, .row_end = 4, .ring = 2, .first = first};
        running r = start(&o);
        for (int64_t number = first; number < first + 2; number++) {
            wefti_batch b;
            ASSERT_OK(wefti_feed_next(r.feed, &b));
            assert_int_equal(b.number, number);
            for (int64_t row = 0; row < 4; row++)
                assert_row(&b, row, weft_data_order(5, SAMPLES, number * 4 + row));
            wefti_feed_release(r.feed);
        }
        end(&r);
    }
    weft_data_close(data);
}

/* Rows [begin, end) of the global batch are the same on every device. */
static void rows_of_devices(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    for (int64_t begin = 0; begin < 7; begin++)
        for (int64_t finish = begin + 1; finish <= 7; finish++) {
            wefti_feed_options o = {.data = data,
                                    .seed = 1,
                                    .batch = 7,
                                    .row_begin = begin,
                                    .row_end = finish,
                                    .ring = 2,
                                    .first = 2};
            running r = start(&o);
            wefti_batch b;
            ASSERT_OK(wefti_feed_next(r.feed, &b));
            assert_int_equal(b.rows, finish - begin);
            for (int64_t row = 0; row < b.rows; row++)
                assert_row(&b, row, weft_data_order(1, SAMPLES, 14 + begin + row));
            wefti_feed_release(r.feed);
            end(&r);
        }
    weft_data_close(data);
}

/* A feed prepares some rows of each group, and touches no others. */
static void own_rows_of_groups(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0.5);
    for (int sequential = 0; sequential < 2; sequential++)
        for (int64_t begin = 0; begin < 3; begin++)
            for (int64_t finish = begin; finish <= 3; finish++) {
                wefti_feed_options o = {.data = data,
                                        .part = WEFT_DATA_VALIDATION,
                                        .sequential = sequential,
                                        .seed = 1,
                                        .batch = 6,
                                        .row_end = 6,
                                        .group = 3,
                                        .own_begin = begin,
                                        .own_end = finish,
                                        .ring = 2,
                                        .padding_target = -100};
                const int64_t samples = weft_data_samples(data, WEFT_DATA_VALIDATION);
                running r = start(&o);
                for (int64_t number = 0; number < 2; number++) {
                    wefti_batch b;
                    int64_t prepared = 0;
                    ASSERT_OK(wefti_feed_next(r.feed, &b));
                    for (int64_t row = 0; row < 6; row++) {
                        bool own = row % 3 >= begin && row % 3 < finish;
                        int32_t raw;
                        memset(&raw, 0xA5, sizeof raw);
                        if (!own) {
                            assert_int_equal(b.target[row * CONTEXT], raw);
                            assert_int_equal(((int32_t *)b.input)[row * CONTEXT], raw);
                        } else if (row >= b.valid) {
                            assert_int_equal(b.target[row * CONTEXT], -100);
                        } else {
                            prepared++;
                        }
                    }
                    assert_int_equal(b.prepared, prepared);
                    assert_int_equal(b.rows, 6);
                    assert_int_equal(b.valid, !sequential || samples >= (number + 1) * 6
                                                  ? 6
                                                  : samples - number * 6);
                    wefti_feed_release(r.feed);
                }
                end(&r);
            }
    /* the same samples as without groups */
    wefti_feed_options o = {.data = data,
                            .seed = 4,
                            .batch = 8,
                            .row_end = 8,
                            .group = 4,
                            .own_begin = 1,
                            .own_end = 3,
                            .ring = 2};
    running r = start(&o);
    wefti_batch b;
    ASSERT_OK(wefti_feed_next(r.feed, &b));
    for (int64_t row = 0; row < 8; row++)
        if (row % 4 == 1 || row % 4 == 2)
            assert_row(&b, row, weft_data_order(4, weft_data_samples(data, WEFT_DATA_TRAIN), row));
    assert_int_equal(b.prepared, 4);
    end(&r);
    weft_data_close(data);
}

static void sequential_ends_with_padding(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0.5);
    assert_int_equal(wefti_feed_batches(data, WEFT_DATA_VALIDATION, 4), 3);
    assert_int_equal(wefti_feed_batches(data, WEFT_DATA_VALIDATION, 5), 2);
    assert_int_equal(wefti_feed_batches(data, WEFT_DATA_VALIDATION, 0), 0);
    for (int device = 0; device < 2; device++) { /* rows 0, 1 and rows 2, 3 */
        wefti_feed_options o = {.data = data,
                                .part = WEFT_DATA_VALIDATION,
                                .sequential = true,
                                .batch = 4,
                                .row_begin = device * 2,
                                .row_end = device * 2 + 2,
                                .ring = 2,
                                .padding_target = -100};
        running r = start(&o);
        wefti_batch b;
        for (int64_t number = 0; number < 3; number++) {
            ASSERT_OK(wefti_feed_next(r.feed, &b));
            assert_int_equal(b.valid, number < 2 || device == 0 ? 2 : 0);
            for (int64_t row = 0; row < b.valid; row++)
                assert_row(&b, row, SAMPLES / 2 + number * 4 + device * 2 + row);
            for (int64_t i = b.valid * CONTEXT; i < b.rows * CONTEXT; i++) {
                assert_int_equal(((int32_t *)b.input)[i], 0);
                assert_int_equal(b.target[i], -100);
            }
            wefti_feed_release(r.feed);
        }
        ASSERT_FAILS(WEFT_E_NOT_FOUND, "all batches", wefti_feed_next(r.feed, &b));
        ASSERT_FAILS(WEFT_E_NOT_FOUND, "all batches",
                     wefti_feed_next(r.feed, &b)); /* and stays so */
        end(&r);
    }
    weft_data_close(data);
}

static void several_are_borrowed(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    wefti_feed_options o = {.data = data, .batch = 2, .row_end = 2, .ring = 3};
    running r = start(&o);
    wefti_batch b[3], more;
    for (int i = 0; i < 3; i++) ASSERT_OK(wefti_feed_next(r.feed, &b[i]));
    ASSERT_FAILS(WEFT_E_ARG, "release|first", wefti_feed_next(r.feed, &more));
    for (int i = 0; i < 3; i++) /* none was overwritten */
        for (int64_t row = 0; row < 2; row++)
            assert_int_equal(sample_of(&b[i], row), weft_data_order(0, SAMPLES, i * 2 + row));
    assert_false(wefti_feed_peek(r.feed, &more)); /* the ring is full */
    wefti_feed_release(r.feed);
    while (!wefti_feed_peek(r.feed, &more)) (void)usleep(1000);
    assert_int_equal(more.number, 3);
    for (int64_t row = 0; row < 2; row++)
        assert_int_equal(sample_of(&more, row), weft_data_order(0, SAMPLES, 6 + row));
    ASSERT_OK(wefti_feed_next(r.feed, &more));
    assert_int_equal(more.number, 3);
    for (int i = 0; i < 10; i++) wefti_feed_release(r.feed); /* more than were borrowed: nothing */
    ASSERT_OK(wefti_feed_next(r.feed, &more));
    assert_int_equal(more.number, 4);
    end(&r);
    weft_data_close(data);
}

static void stops_at_any_time(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    for (int taken = 0; taken < 8; taken++) {
        wefti_feed_options o = {.data = data, .batch = 5, .row_end = 5, .ring = 2 + taken % 3};
        running r = start(&o);
        wefti_batch b;
        for (int i = 0; i < taken; i++) {
            ASSERT_OK(wefti_feed_next(r.feed, &b));
            if (i + 1 < taken) wefti_feed_release(r.feed); /* the last one stays borrowed */
        }
        wefti_feed_stop(r.feed);
        ASSERT_FAILS(WEFT_E_STOPPED, "stopped", wefti_feed_next(r.feed, &b));
        end(&r);
    }
    wefti_feed_destroy(NULL);
    weft_data_close(data);
}

static void *stop_soon(void *feed) {
    wefti_feed_stop(feed);
    return NULL;
}

/* Another thread stops while this one takes: each call gives a right batch or says stopped. */
static void stopped_by_another_thread(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    for (int round = 0; round < 50; round++) {
        wefti_feed_options o = {.data = data, .batch = 5, .row_end = 5, .ring = 2};
        running r = start(&o);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, r.feed), 0);
        weft_status status;
        for (int64_t number = 0;; number++) {
            wefti_batch b;
            status = wefti_feed_next(r.feed, &b);
            if (status < 0) break;
            assert_row(&b, 4, weft_data_order(0, SAMPLES, number * 5 + 4));
            wefti_feed_release(r.feed);
        }
        assert_int_equal(status, WEFT_E_STOPPED);
        pthread_join(thread, NULL);
        end(&r);
    }
    weft_data_close(data);
}

/* A float image that is not a number is only seen when read: by the reader thread. */
static void failures_travel(void **state) {
    (void)state;
    enum { IMAGES = 12, BAD = 7 };
    float images[IMAGES];
    unsigned char labels[IMAGES] = {0};
    for (int i = 0; i < IMAGES; i++) images[i] = (float)i;
    images[BAD] = (float)strtod("nan", NULL);
    buffer x = {0}, y = {0};
    put_npy(&x, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (12, 1), }", images,
            sizeof images);
    put_npy(&y, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (12,), }", labels,
            sizeof labels);
    const char *path = put_file("images.npy", x.bytes, (size_t)x.count);
    put_file("labels.npy", y.bytes, (size_t)y.count);
    weft_data *data;
    ASSERT_OK(
        weft_data_open(&WEFT_STRUCT(weft_data_options, .format = "npy", .path = path), &data));
    wefti_feed_options o = {.data = data, .sequential = true, .batch = 2, .row_end = 2, .ring = 3};
    running r = start(&o);
    wefti_batch b;
    for (int i = 0; i < BAD / 2; i++) { /* all batches before the bad one are given */
        ASSERT_OK(wefti_feed_next(r.feed, &b));
        assert_true(((float *)b.input)[1] == (float)(2 * i + 1));
        assert_int_equal(b.target[1], 0);
        wefti_feed_release(r.feed);
    }
    for (int again = 0; again < 2; again++)
        ASSERT_FAILS(WEFT_E_NUMERIC, "image 7", wefti_feed_next(r.feed, &b));
    end(&r);
    weft_data_close(data);
}

static void options_are_checked(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    const wefti_feed_options good = {.data = data, .batch = 4, .row_end = 4, .ring = 2};
    int64_t bytes;
    ASSERT_OK(wefti_feed_bytes(&good, &bytes));
    assert_int_equal(bytes,
                     2 * (64 + 64)); /* 4 rows x 3 tokens x 4 bytes, to 64, twice, two slots */
    wefti_feed_options o[11];
    for (int i = 0; i < 11; i++) o[i] = good;
    o[0].data = NULL;
    o[1].part = WEFT_DATA_VALIDATION;
    o[2].batch = 0;
    o[3].row_begin = 4;
    o[4].row_end = 5;
    o[5].ring = 0;
    o[6].first = -1;
    o[7].row_begin = -1;
    o[8].group = 3;
    o[9].group = o[9].own_end = 2;
    o[9].own_begin = -1;
    o[10].group = 2;
    o[10].own_end = 3;
    _Alignas(64) static unsigned char block[1024];
    wefti_feed *feed;
    for (int i = 0; i < 11; i++) {
        assert_int_equal(wefti_feed_bytes(&o[i], &bytes), WEFT_E_ARG);
        assert_int_equal(wefti_feed_create(&o[i], block, &feed), WEFT_E_ARG);
    }
    ASSERT_FAILS(WEFT_E_ARG, "aligned", wefti_feed_create(&good, block + 4, &feed));
    ASSERT_FAILS(WEFT_E_ARG, "aligned", wefti_feed_create(&good, NULL, &feed));
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, false, 0);
    weft_status status = wefti_feed_create(&good, block, &feed);
    disarm_faults();
    assert_int_equal(status, WEFT_E_NOMEM);
    weft_data_close(data);
}

/* Nothing is allocated and no file is touched once a feed runs. */
static void a_running_feed_allocates_nothing(void **state) {
    (void)state;
    weft_data *data = numbers(256, 0);
    wefti_feed_options o = {.data = data, .batch = 4, .row_end = 4, .ring = 2};
    running r = start(&o);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, true, 0);
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, 0);
    wefti_batch b;
    weft_status status = WEFT_OK;
    for (int i = 0; i < 50 && status >= 0; i++) {
        status = wefti_feed_next(r.feed, &b);
        wefti_feed_release(r.feed);
    }
    int64_t allocations = wefti_fault_count(WEFTI_FAULT_ALLOC),
            calls = wefti_fault_count(WEFTI_FAULT_IO);
    disarm_faults();
    assert_int_equal(status, WEFT_OK);
    assert_int_equal(allocations, 0);
    assert_int_equal(calls, 0);
    end(&r);
    weft_data_close(data);
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, data_setup, data_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(batches_follow_the_order),
        IN_ROOT(starts_anywhere),
        IN_ROOT(rows_of_devices),
        IN_ROOT(own_rows_of_groups),
        IN_ROOT(sequential_ends_with_padding),
        IN_ROOT(several_are_borrowed),
        IN_ROOT(stops_at_any_time),
        IN_ROOT(stopped_by_another_thread),
        IN_ROOT(failures_travel),
        IN_ROOT(options_are_checked),
        IN_ROOT(a_running_feed_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
