/* Bytes of disk streams that lie in other files, by both engines: random loans, reads and writes
 * against memory, the space that they save, and lenders that change. weft-test: threads */
#include "disk_ways.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "unnamed_file.h"

enum { LENDER_BYTES = 200001 }; /* ends in mid-block; more than a reader copies to memory */

/* A file of random bytes, and its reader. */
static unsigned char *make_lender(const char *path, uint64_t *seed, wefti_reader **out) {
    unsigned char *bytes = malloc(LENDER_BYTES);
    assert_non_null(bytes);
    for (int i = 0; i < LENDER_BYTES; i++) bytes[i] = (unsigned char)random_below(seed, 256);
    ASSERT_OK(wefti_file_write(path, bytes, LENDER_BYTES));
    ASSERT_OK(wefti_reader_open(path, out));
    return bytes;
}

/* Lends a random range to a stream. `lent` says for each byte whether it lies in another file. */
static void lend_some(wefti_disk_stream *d, bool encrypted, const wefti_reader *reader,
                      const unsigned char *bytes, unsigned char *image, bool *lent,
                      uint64_t *seed) {
    const int64_t count = 1 + (int64_t)random_below(seed, LENDER_BYTES),
                  at = (int64_t)random_below(seed, (uint64_t)(LENDER_BYTES - count + 1)),
                  offset = (int64_t)random_below(seed, (uint64_t)(FILE_BYTES - count + 1));
    bool done;
    ASSERT_OK(wefti_disk_stream_lend(d, offset, count, reader, at, &done));
    assert_int_equal(done, !encrypted);
    if (!done) return;
    memcpy(image + offset, bytes + at, (size_t)count);
    memset(lent + offset, true, (size_t)count);
}

/* Bytes that are written lie in the stream's own file again. */
static void write_some(wefti_disk_stream *d, unsigned char *image, bool *lent, uint64_t *seed) {
    static unsigned char bytes[70000];
    const int64_t count = (int64_t)random_below(seed, sizeof bytes),
                  offset = (int64_t)random_below(seed, (uint64_t)(FILE_BYTES - count + 1));
    wefti_disk_ticket *t;
    for (int64_t i = 0; i < count; i++) bytes[i] = (unsigned char)random_below(seed, 256);
    ASSERT_OK(wefti_disk_stream_write(d, offset, count, bytes, &t));
    ASSERT_OK(wefti_disk_stream_wait(d, t));
    memcpy(image + offset, bytes, (size_t)count);
    memset(lent + offset, false, (size_t)count);
}

static void check_lent(wefti_disk_stream *d, const unsigned char *image, const bool *lent,
                       uint64_t *seed) {
    static unsigned char back[FILE_BYTES];
    const int64_t count = (int64_t)random_below(seed, FILE_BYTES + 1),
                  offset = (int64_t)random_below(seed, (uint64_t)(FILE_BYTES - count + 1));
    int64_t sum = 0;
    wefti_disk_ticket *t;
    for (int64_t i = 0; i < count; i++) sum += lent[offset + i];
    assert_int_equal(wefti_disk_stream_lent(d, offset, count), sum);
    ASSERT_OK(wefti_disk_stream_read(d, offset, count, back, &t));
    ASSERT_OK(wefti_disk_stream_wait(d, t));
    assert_memory_equal(back, image + offset, (size_t)count);
}

static void test_other_files_lend_bytes(void **state) {
    (void)state;
    char paths[2][128];
    for (int k = 0; k < 2; k++) (void)snprintf(paths[k], sizeof paths[k], "%s/lender%d", folder, k);
    TEST_SEEDS(seed, 1, 2) {
        wefti_reader *readers[2];
        uint64_t s = seed;
        unsigned char *bytes[2] = {make_lender(paths[0], &s, &readers[0]),
                                   make_lender(paths[1], &s, &readers[1])};
        for (int w = 0; w < WAYS; w++) {
            wefti_disk_options o = options_of(ways[w]);
            wefti_disk_stream *d;
            if (!open_way(ways[w], &d)) continue;
            wefti_disk_stream_close(d);
            o.late = true;
            ASSERT_OK(wefti_disk_stream_open(&o, &d));
            unsigned char *image = calloc(1, FILE_BYTES);
            bool *lent = calloc(FILE_BYTES, sizeof *lent);
            assert_true(image && lent);
            for (int round = 0; round < ROUNDS / 4; round++) {
                const int k = (int)random_below(&s, 2);
                lend_some(d, ways[w].encrypted, readers[k], bytes[k], image, lent, &s);
                if (random_below(&s, 2)) write_some(d, image, lent, &s);
                check_lent(d, image, lent, &s);
                if (round % 4 == 3) ASSERT_OK(wefti_disk_stream_reserve(d));
            }
            random_round(d, image, &s);
            wefti_disk_stream_close(d);
            free(image);
            free(lent);
        }
        for (int k = 0; k < 2; k++) {
            wefti_reader_close(readers[k]);
            free(bytes[k]);
            assert_int_equal(unlink(paths[k]), 0);
        }
    }
}

/* Space is reserved for what is not lent, and only for that. A file that was replaced lends
 * nothing, and one that is cut is named. */
static void test_lenders_save_space_and_are_named(void **state) {
    (void)state;
    char path[128], other[128];
    (void)snprintf(path, sizeof path, "%s/lender", folder);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_options o = options_of(ways[w]);
        wefti_disk_stream *d;
        wefti_reader *reader, *second;
        uint64_t seed = 7;
        bool done;
        static unsigned char back[LENDER_BYTES];
        struct stat info;
        if (ways[w].encrypted || !open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        o.late = true;
        ASSERT_OK(wefti_disk_stream_open(&o, &d));
        free(make_lender(path, &seed, &reader));
        for (int64_t at = 0; at + LENDER_BYTES <= FILE_BYTES; at += LENDER_BYTES) {
            ASSERT_OK(wefti_disk_stream_lend(d, at, LENDER_BYTES, reader, 0, &done));
            assert_true(done);
        }
        ASSERT_OK(wefti_disk_stream_reserve(d));
        const int fd = open_unnamed(folder);
        assert_int_equal(fstat(fd, &info), 0);
        assert_in_range(info.st_blocks * 512, FILE_BYTES % LENDER_BYTES,
                        FILE_BYTES % LENDER_BYTES + 4 * WEFTI_DISK_ALIGNMENT);
        (void)close(fd);
        free(make_lender(other, &seed, &second));
        wefti_reader_close(second);
        assert_int_equal(rename(other, path), 0);
        ASSERT_OK(wefti_reader_open(path, &second));
        ASSERT_OK(wefti_disk_stream_lend(d, 0, 1000, reader, 0, &done));
        assert_false(done);
        ASSERT_OK(wefti_disk_stream_lend(d, 0, LENDER_BYTES, second, 0, &done));
        assert_true(done);
        assert_int_equal(truncate(path, 100000), 0);
        wefti_disk_ticket *t;
        ASSERT_OK(wefti_disk_stream_read(d, 0, LENDER_BYTES, back, &t));
        ASSERT_FAILS(WEFT_E_IO, path, wefti_disk_stream_wait(d, t));
        wefti_disk_stream_close(d);
        wefti_reader_close(reader);
        wefti_reader_close(second);
        assert_int_equal(unlink(path), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_files_lend_bytes),
        cmocka_unit_test(test_lenders_save_space_and_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
