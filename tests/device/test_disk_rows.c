/* Rows of files by both engines: random rows against memory, few requests for neighbours, and
 * failed reads and writes. weft-test: threads */
#include "row_ways.h"

#include <errno.h>
#include <stdlib.h>

#include "base/fault.h"

enum { TRIALS = SANITIZED ? 6 : 20, COPIES = 6 };

/* Random rows, dense or far apart, each once. Returns their number. */
static int64_t choose_rows(uint64_t *seed, int64_t rows, int64_t row_bytes, unsigned char *memory,
                           wefti_row_place *out) {
    const uint64_t step = 1 + random_below(seed, random_below(seed, 2) ? 2 : 200);
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row += 1 + (int64_t)random_below(seed, step), count++)
        out[count] = (wefti_row_place){(int32_t)row, 0, memory + count * row_bytes};
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t k = (int64_t)random_below(seed, (uint64_t)i + 1);
        const int32_t row = out[i].row;
        out[i].row = out[k].row;
        out[k].row = row;
    }
    return count;
}

static void random_copies(wefti_disk_stream *d, unsigned char *image, uint64_t *seed) {
    static const int64_t sizes[] = {4, 28, 256, 4096, 5000, 70000};
    const wefti_disk_table t = {.file = d,
                                .begin = 4096 * (int64_t)random_below(seed, 20),
                                .row_bytes = sizes[random_below(seed, 6)]};
    const int64_t rows = (FILE_BYTES - t.begin) / t.row_bytes;
    unsigned char *memory = malloc(FILE_BYTES);
    wefti_row_place *places = malloc((size_t)rows * sizeof *places);
    assert_true(memory && places);
    for (int copy = 0; copy < COPIES; copy++) {
        const bool reads = copy % 2;
        const int64_t count = choose_rows(seed, rows, t.row_bytes, memory, places);
        for (int64_t i = 0; i < count * t.row_bytes; i++)
            memory[i] = reads ? 0xee : (unsigned char)random_below(seed, 256);
        ASSERT_OK(wefti_disk_rows_move(&t, reads, places, count, staging));
        for (int64_t i = 0; i < count; i++) {
            unsigned char *row = image + t.begin + places[i].row * t.row_bytes;
            if (!reads) memcpy(row, places[i].memory, (size_t)t.row_bytes);
            assert_memory_equal(places[i].memory, row, (size_t)t.row_bytes);
        }
    }
    free(memory);
    free(places);
}

static void test_rows_are_those_of_memory(void **state) {
    (void)state;
    static unsigned char image[FILE_BYTES], back[FILE_BYTES];
    TEST_SEEDS(seed, 1, TRIALS) {
        uint64_t s = seed;
        wefti_disk_stream *d;
        wefti_disk_ticket *ticket;
        if (!open_way(ways[seed % WAYS], &d)) continue;
        for (int i = 0; i < FILE_BYTES; i++) image[i] = (unsigned char)random_below(&s, 256);
        ASSERT_OK(wefti_disk_stream_write(d, 0, FILE_BYTES, image, &ticket));
        ASSERT_OK(wefti_disk_stream_wait(d, ticket));
        random_copies(d, image, &s);
        ASSERT_OK(wefti_disk_stream_read(d, 0, FILE_BYTES, back, &ticket));
        ASSERT_OK(wefti_disk_stream_wait(d, ticket));
        if (memcmp(back, image, FILE_BYTES))
            fail_msg("WEFT_TEST_SEED=%llu", (unsigned long long)seed);
        wefti_disk_stream_close(d);
    }
}

/* Every second row of 64 KiB, in falling order. */
static weft_status move_some(wefti_disk_stream *d, bool reads, unsigned char *memory) {
    enum { ROW = 256, COUNT = 128 };
    const wefti_disk_table t = {.file = d, .begin = 4096, .row_bytes = ROW};
    wefti_row_place places[COUNT];
    for (int i = 0; i < COUNT; i++)
        places[i] = (wefti_row_place){2 * (COUNT - 1 - i), 0, memory + i * ROW};
    return wefti_disk_rows_move(&t, reads, places, COUNT, staging);
}

/* Neighbours share a request of at most 64 KiB, which the options divide by 16 KiB: 4 reads, and 4
 * writes. Each of them fails in turn. */
static void test_neighbours_share_requests(void **state) {
    (void)state;
    static unsigned char memory[1 << 15], back[1 << 15];
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        /* What a failed write leaves of an encrypted file cannot be read any more. */
        if (ways[w].encrypted || !open_way(ways[w], &d)) continue;
        for (size_t i = 0; i < sizeof memory; i++) memory[i] = (unsigned char)(i * 7 >> 8);
        for (int reads = 0; reads < 2; reads++) {
            const int64_t calls = reads ? 4 : 8;
            for (int64_t nth = calls; nth >= 0; nth--) {
                wefti_fault_arm(WEFTI_FAULT_IO, nth, false, EIO);
                const weft_status status = move_some(d, reads, reads ? back : memory);
                const int64_t seen = wefti_fault_count(WEFTI_FAULT_IO);
                wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
                if (nth == calls) assert_int_equal(seen, calls);
                if (nth == calls && reads) assert_memory_equal(back, memory, sizeof back);
                assert_int_equal(status, nth == calls ? WEFT_OK : WEFT_E_IO);
                if (status < 0) ASSERT_FACTS(weft_error_message(), folder);
            }
            if (!reads) ASSERT_OK(move_some(d, reads, memory));
        }
        wefti_disk_stream_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_are_those_of_memory),
                                       cmocka_unit_test(test_neighbours_share_requests)};
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
