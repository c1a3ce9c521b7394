/* Large files: every length around the buffer's size, in pieces of any size; failing calls leave
 * nothing. */
#include "support.h"

#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bulk.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/philox.h"

enum { MOST = (3 << 20) + 5000 };
static uint64_t random_seed;

static unsigned char data[MOST];
static char dirs[2][256]; /* one on a disk, where O_DIRECT works, one in memory, where it may not */

static int begin(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(dirs[0], sizeof dirs[0], "%s/weft-bulk-XXXXXX", base ? base : "/tmp");
    snprintf(dirs[1], sizeof dirs[1], "%s/weft-bulk-XXXXXX",
             access("/dev/shm", W_OK) ? (base ? base : "/tmp") : "/dev/shm");
    for (int i = 0; i < MOST; i++)
        data[i] = (unsigned char)wefti_philox_u32(random_seed, 0, (uint64_t)i);
    return !mkdtemp(dirs[0]) || !mkdtemp(dirs[1]);
}

static int end(void **state) {
    (void)state;
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    return wefti_remove_tree(dirs[0]) < 0 || wefti_remove_tree(dirs[1]) < 0;
}

/* Write data[0..bytes) in random pieces. */
static weft_status write_file(const char *path, int64_t bytes, uint64_t round) {
    wefti_bulk *file = NULL;
    WEFT_TRY(wefti_bulk_open(path, bytes, &file));
    int64_t at = 0;
    for (uint64_t i = 0; at < bytes; i++) {
        int64_t part = wefti_philox_u32(random_seed, round, i) % (round % 2 ? 2000000 : 5000);
        if (part > bytes - at) part = bytes - at;
        weft_status status = wefti_bulk_write(file, data + at, (size_t)part);
        if (status < 0) {
            wefti_bulk_abort(file);
            return status;
        }
        at += part;
    }
    return wefti_bulk_commit(file);
}

static void lengths(void **state) {
    (void)state;
    const int64_t sizes[] = {
        0,       1,   4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 8, (1 << 20) + 4096,
        2 << 20, MOST};
    for (uint64_t round = 0; round < 2 * sizeof sizes / sizeof *sizes; round++) {
        int64_t bytes = sizes[round / 2];
        char path[300];
        snprintf(path, sizeof path, "%s/f", dirs[round % 2]);
        if (write_file(path, bytes, round) < 0) fail_msg("%s", weft_error_message());
        char *text;
        int64_t there;
        assert_int_equal(wefti_file_read(path, MOST, &text, &there), WEFT_OK);
        assert_int_equal(there, bytes);
        assert_memory_equal(text, data, (size_t)bytes);
        wefti_free(text);
        assert_int_equal(remove(path), 0);
    }
}

static void promises(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/f", dirs[0]);
    wefti_bulk *file = NULL;
    assert_int_equal(wefti_bulk_open(path, 10, &file), WEFT_OK);
    assert_int_equal(wefti_bulk_write(file, data, 11), WEFT_E_BUG);
    assert_int_equal(wefti_bulk_write(file, data, 9), WEFT_OK);
    assert_int_equal(wefti_bulk_commit(file), WEFT_E_BUG); /* one byte short */
    assert_false(wefti_exists(path));
    assert_int_equal(wefti_bulk_open(path, 10, &file), WEFT_OK);
    wefti_bulk *second = NULL;
    assert_int_equal(wefti_bulk_open(path, 10, &second), WEFT_E_IO); /* it exists, and stays */
    assert_true(wefti_exists(path));
    wefti_bulk_abort(file);
    assert_false(wefti_exists(path));
    wefti_bulk_abort(NULL);
    assert_int_equal(wefti_bulk_open(path, INT64_MAX, &file), WEFT_E_IO); /* no disk has room */
    ASSERT_MESSAGE("cannot reserve");
    assert_false(wefti_exists(path));
}

/* Several writers fill ranges of one file, in turns, in any order, with seeks that do not end on
 * pages. */
enum { WRITERS = 3 };
static void ranges(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 24; round++) {
        wefti_bulk *files[WRITERS] = {NULL};
        int64_t bytes = round < 4 ? 10 + (int64_t)round : MOST, at = 0;
        int64_t step = round % 3 == 0 ? 700 : round % 3 == 1 ? 9000 : 600000;
        char path[300];
        snprintf(path, sizeof path, "%s/f", dirs[round / 3 % 2]);
        assert_int_equal(wefti_bulk_open(path, bytes, &files[0]), WEFT_OK);
        wefti_bulk_share(files[0]);
        for (int w = 1; w < WRITERS; w++)
            assert_int_equal(wefti_bulk_join(path, bytes, &files[w]), WEFT_OK);
        for (uint64_t i = 0; at < bytes; i++) {
            uint32_t draw = wefti_philox_u32(random_seed, 100 + round, i);
            int64_t n = 1 + draw % step;
            wefti_bulk *file = files[draw / 64 % WRITERS];
            if (n > bytes - at) n = bytes - at;
            if (draw % 16 == 0) assert_int_equal(wefti_bulk_park(file), WEFT_OK);
            assert_int_equal(wefti_bulk_seek(file, at), WEFT_OK);
            assert_int_equal(wefti_bulk_write(file, data + at, (size_t)n), WEFT_OK);
            at += n;
        }
        for (int w = 0; w < WRITERS; w++) assert_int_equal(wefti_bulk_commit(files[w]), WEFT_OK);
        char *text;
        assert_int_equal(wefti_file_read(path, MOST, &text, &at), WEFT_OK);
        if (at != bytes || memcmp(text, data, (size_t)bytes))
            fail_msg("round %d: other bytes", (int)round);
        wefti_free(text);
        assert_int_equal(remove(path), 0);
    }
}

/* A process that joins needs the announced file, and never removes it. */
static void joining(void **state) {
    (void)state;
    char path[300];
    wefti_bulk *file = NULL, *other = NULL;
    snprintf(path, sizeof path, "%s/f", dirs[0]);
    assert_int_equal(wefti_bulk_join(path, 10, &other), WEFT_E_IO);
    assert_int_equal(wefti_bulk_open(path, 10, &file), WEFT_OK);
    assert_int_equal(wefti_bulk_join(path, 11, &other), WEFT_E_IO);
    assert_true(wefti_exists(path));
    assert_int_equal(wefti_bulk_join(path, 10, &other), WEFT_OK);
    assert_int_equal(wefti_bulk_seek(other, 4), WEFT_OK);
    assert_int_equal(wefti_bulk_write(other, data, 7), WEFT_E_BUG);
    wefti_bulk_abort(other);
    assert_true(wefti_exists(path));
    wefti_bulk_abort(file);
    assert_false(wefti_exists(path));
}

static void failures(void **state) {
    (void)state;
    const struct {
        wefti_fault_kind kind;
        int error_number;
    } faults[] = {{WEFTI_FAULT_IO, EIO}, {WEFTI_FAULT_IO, ENOSPC}, {WEFTI_FAULT_ALLOC, 0}};
    char path[300];
    snprintf(path, sizeof path, "%s/f", dirs[0]);
    for (int i = 0; i < 3; i++) {
        for (int64_t nth = 0;; nth++) {
            wefti_fault_arm(faults[i].kind, nth, false, faults[i].error_number);
            weft_status status = write_file(path, MOST, 1);
            wefti_fault_arm(faults[i].kind, -1, false, 0);
            assert_int_equal(wefti_exists(path), status >= 0);
            if (status >= 0) break;
            assert_int_equal(status, i == 2 ? WEFT_E_NOMEM : WEFT_E_IO);
        }
        assert_int_equal(remove(path), 0);
    }
}

/* Short ranges, so far apart that the disk begins with the first ones before the sync. */
enum { FAR_BYTES = 40 << 20, FAR_STEP = 1 << 20, FAR_RUN = 700 };
static weft_status write_far(const char *path) {
    wefti_bulk *file = NULL;
    weft_status status = wefti_bulk_open(path, FAR_BYTES, &file);
    if (status < 0) return status;
    wefti_bulk_share(file);
    for (int64_t at = 100; at < FAR_BYTES && status >= 0; at += FAR_STEP) {
        status = wefti_bulk_seek(file, at);
        if (status >= 0) status = wefti_bulk_write(file, data + at % 1000, FAR_RUN);
    }
    if (status >= 0) return wefti_bulk_commit(file);
    wefti_bulk_abort(file);
    return status;
}

static void far_ranges(void **state) {
    (void)state;
    char path[300], got[FAR_RUN];
    snprintf(path, sizeof path, "%s/f", dirs[0]);
    for (int64_t nth = 0;; nth++) {
        wefti_fault_arm(WEFTI_FAULT_IO, nth, false, EIO);
        weft_status status = write_far(path);
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_int_equal(wefti_exists(path), status >= 0);
        if (status >= 0) {
            assert_true(nth > FAR_BYTES / FAR_STEP + 4); /* with calls that begin early */
            break;
        }
        assert_int_equal(status, WEFT_E_IO);
    }
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (int64_t at = 100; at < FAR_BYTES; at += FAR_STEP) {
        assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
        assert_int_equal(fread(got, 1, FAR_RUN, file), FAR_RUN);
        assert_memory_equal(got, data + at % 1000, FAR_RUN);
    }
    fclose(file);
    assert_int_equal(remove(path), 0);
}

int main(void) {
    random_seed = test_seed(9);
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths),  cmocka_unit_test(promises),
                                       cmocka_unit_test(ranges),   cmocka_unit_test(joining),
                                       cmocka_unit_test(failures), cmocka_unit_test(far_ranges)};
    return cmocka_run_group_tests(tests, begin, end);
}
