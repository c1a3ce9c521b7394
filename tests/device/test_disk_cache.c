/* Caches of rows of files: random reads and writes of rows and of ranges of the files, against
 * memory; failed reads and writes, which lose nothing; and what the cache saves.
 * weft-test: threads */
#include "row_ways.h"

#include <errno.h>
#include <stdlib.h>

#include "base/fault.h"
#include "device/disk_cache.h"
#include "device/disk_parts.h"

enum { TRIALS = SANITIZED ? 8 : 24, CALLS = 120, MOST_ROWS = 400, MOST_BYTES = 600 };

/* Tables of the same rows in one file, their cache, and what the file should hold. The tables from
 * number `joined` on are records. */
typedef struct bed {
    wefti_disk_stream *file;
    wefti_disk_cache *cache;
    wefti_disk_cache_options o;
    int64_t rows;
    int joined;
    unsigned char image[FILE_BYTES];
} bed;

static int64_t row_bytes_of(const bed *b, int part) {
    return b->o.parts[part].table.row_bytes;
}

/* Makes records of the tables from number b->joined on. */
static void join(bed *b) {
    int64_t row_bytes[WEFTI_CACHE_PARTS];
    wefti_disk_records r;
    const int count = b->o.count - b->joined;
    for (int i = 0; i < count; i++) row_bytes[i] = row_bytes_of(b, b->joined + i);
    if (!wefti_disk_records_of(b->o.parts[b->joined].table.begin, b->rows, count, row_bytes, &r))
        return;
    ASSERT_OK(wefti_disk_stream_interleave(b->file, &r));
    for (int i = 0; i < count; i++)
        assert_int_equal(r.part[i].begin, b->o.parts[b->joined + i].table.begin);
}

static void fill_file(bed *b, uint64_t *seed) {
    wefti_disk_ticket *ticket;
    for (int i = 0; i < FILE_BYTES; i++) b->image[i] = (unsigned char)random_below(seed, 256);
    ASSERT_OK(wefti_disk_stream_write(b->file, 0, FILE_BYTES, b->image, &ticket));
    ASSERT_OK(wefti_disk_stream_wait(b->file, ticket));
}

/* Opens the cache that b->o describes, for moves of as many rows. */
static void open_cache(bed *b, int64_t rows) {
    int64_t slot_bytes = 0;
    for (int part = 0; part < b->o.count; part++) slot_bytes += row_bytes_of(b, part);
    b->o.memory = malloc((size_t)wefti_disk_cache_bytes(b->o.slots, slot_bytes));
    assert_non_null(b->o.memory);
    ASSERT_OK(wefti_disk_cache_open(&b->o, &b->cache));
    ASSERT_OK(wefti_disk_cache_reserve(b->cache, rows));
}

static void open_bed(bed *b, way w, uint64_t *seed) {
    int64_t at = 4096;
    assert_true(open_way(w, &b->file));
    b->o = (wefti_disk_cache_options){.count = 1 + (int)random_below(seed, 3)};
    b->rows = 1 + (int64_t)random_below(seed, MOST_ROWS);
    b->o.slots = 1 + (int64_t)random_below(seed, (uint64_t)b->rows);
    for (int part = 0; part < b->o.count; part++) {
        const int64_t bytes = 1 + (int64_t)random_below(seed, MOST_BYTES);
        b->o.parts[part] = (wefti_cache_table){{b->file, at, bytes}, 0, b->rows};
        at += (b->rows * bytes + 4095) / 4096 * 4096;
    }
    assert_true(at <= FILE_BYTES);
    b->joined = (int)random_below(seed, (uint64_t)b->o.count + 1);
    if (b->joined < b->o.count) join(b);
    fill_file(b, seed);
    open_cache(b, b->rows);
}

/* Lays tables of rows of the same length into a file, as records or one behind the other. The cache
 * has one slot; open_cache opens it. */
static void lay_bed(bed *b, int count, int64_t rows, int64_t row_bytes, bool joined) {
    const int64_t table_bytes = (rows * row_bytes + 4095) / 4096 * 4096;
    uint64_t seed = 1;
    assert_true(open_way((way){WEFTI_DISK_THREADS, true, false}, &b->file));
    b->rows = rows;
    b->joined = 0;
    b->o = (wefti_disk_cache_options){.count = count, .slots = 1};
    for (int part = 0; part < count; part++)
        b->o.parts[part] =
            (wefti_cache_table){{b->file, 4096 + part * table_bytes, row_bytes}, 0, rows};
    if (joined) join(b);
    fill_file(b, &seed);
}

static void close_bed(bed *b) {
    wefti_disk_cache_close(b->cache);
    wefti_disk_stream_close(b->file);
    free(b->o.memory);
}

/* Reads or writes random rows of a part. What is read is right, also if the call fails: such rows
 * are not compared. */
static weft_status move_rows(bed *b, bool reads, uint64_t *seed) {
    const int part = (int)random_below(seed, (uint64_t)b->o.count);
    const wefti_disk_table *t = &b->o.parts[part].table;
    unsigned char *memory = malloc((size_t)(b->rows * t->row_bytes));
    wefti_row_place *places = malloc((size_t)b->rows * sizeof *places);
    const uint64_t step = 1 + random_below(seed, 40);
    int64_t count = 0;
    assert_true(memory && places);
    for (int64_t row = (int64_t)random_below(seed, step); row < b->rows;
         row += 1 + (int64_t)random_below(seed, step), count++) {
        places[count] = (wefti_row_place){(int32_t)row, 0, memory + count * t->row_bytes};
        for (int64_t i = 0; i < t->row_bytes && !reads; i++)
            places[count].memory[i] = (unsigned char)random_below(seed, 256);
        if (!reads)
            memcpy(b->image + t->begin + row * t->row_bytes, places[count].memory,
                   (size_t)t->row_bytes);
    }
    const weft_status status = wefti_disk_cache_move(b->cache, part, reads, places, count, staging);
    for (int64_t i = 0; i < count && status >= 0; i++) /* not in the order of `memory` any more */
        assert_memory_equal(places[i].memory, b->image + t->begin + places[i].row * t->row_bytes,
                            (size_t)t->row_bytes);
    free(memory);
    free(places);
    return status;
}

/* Reads random rows of a part ahead, often more than there is room for, and some that it has not.
 */
static void look_ahead(bed *b, uint64_t *seed) {
    enum { COUNT = 40 };
    wefti_row_place places[COUNT];
    const int part = (int)random_below(seed, (uint64_t)b->o.count);
    const int64_t count = 1 + (int64_t)random_below(seed, COUNT);
    for (int64_t i = 0; i < count; i++)
        places[i] =
            (wefti_row_place){(int32_t)random_below(seed, (uint64_t)b->rows + 3) - 1, 0, NULL};
    (void)wefti_disk_cache_ahead(b->cache, part, random_below(seed, 2), places, count, staging);
}

/* Reads or writes a range of the file, of any tables or none. */
static weft_status move_range(bed *b, bool reads, uint64_t *seed) {
    static unsigned char bytes[FILE_BYTES];
    const int64_t count = (int64_t)random_below(seed, random_below(seed, 2) ? 3000 : FILE_BYTES),
                  at = (int64_t)random_below(seed, (uint64_t)(FILE_BYTES - count));
    wefti_disk_ticket *ticket;
    for (int64_t i = 0; i < count; i++) bytes[i] = (unsigned char)random_below(seed, 256);
    weft_status status = reads ? wefti_disk_stream_read(b->file, at, count, bytes, &ticket)
                               : wefti_disk_stream_write(b->file, at, count, bytes, &ticket);
    if (status >= 0) status = wefti_disk_stream_wait(b->file, ticket);
    if (status >= 0 && reads) assert_memory_equal(bytes, b->image + at, (size_t)count);
    if (status >= 0 && !reads) memcpy(b->image + at, bytes, (size_t)count);
    return status;
}

static bool has_way(way w) {
    wefti_disk_stream *d;
    if (!open_way(w, &d)) return false;
    wefti_disk_stream_close(d);
    return true;
}

static void test_all_see_the_same_bytes(void **state) {
    (void)state;
    static bed b;
    TEST_SEEDS(seed, 1, TRIALS) {
        uint64_t s = seed;
        if (!has_way(ways[seed % WAYS])) continue;
        open_bed(&b, ways[seed % WAYS], &s);
        for (int call = 0; call < CALLS; call++)
            if (random_below(&s, 8) == 0)
                look_ahead(&b, &s);
            else if (random_below(&s, 16))
                ASSERT_OK(move_rows(&b, random_below(&s, 2), &s));
            else
                ASSERT_OK(move_range(&b, random_below(&s, 2), &s));
        ASSERT_OK(move_range(&b, true, &s));
        close_bed(&b);
    }
}

/* A read that fails, since a row that leaves the cache cannot be written or the rows cannot be
 * read, loses nothing: once the disk works, all bytes are there. */
static void test_failures_lose_nothing(void **state) {
    (void)state;
    static bed b;
    int64_t failures = 0;
    TEST_SEEDS(seed, 1, TRIALS) {
        uint64_t s = seed;
        const way w = ways[seed % WAYS];
        if (w.encrypted || !has_way(w)) continue;
        open_bed(&b, w, &s);
        for (int call = 0; call < CALLS; call++) {
            ASSERT_OK(move_rows(&b, random_below(&s, 2), &s));
            wefti_fault_arm(WEFTI_FAULT_IO, (int64_t)random_below(&s, 3), true, EIO);
            if (random_below(&s, 4) == 0) look_ahead(&b, &s);
            const weft_status status =
                random_below(&s, 8) ? move_rows(&b, true, &s) : move_range(&b, true, &s);
            wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
            if (status >= 0) continue;
            assert_int_equal(status, WEFT_E_IO);
            ASSERT_FACTS(weft_error_message(), folder);
            failures++;
        }
        ASSERT_OK(move_range(&b, true, &s));
        for (int i = 0; i < 9; i++) ASSERT_OK(move_rows(&b, true, &s));
        close_bed(&b);
    }
    assert_true(test_one_seed() || failures > TRIALS);
}

/* A cache with room for all rows reads each once, and writes nothing until somebody looks. */
static void test_a_cache_saves_requests(void **state) {
    (void)state;
    static bed b;
    uint64_t s = 1;
    open_bed(&b, (way){WEFTI_DISK_THREADS, true, false}, &s);
    wefti_disk_cache_close(b.cache);
    free(b.o.memory);
    b.o.slots = b.rows;
    b.o.count = 1;
    open_cache(&b, b.rows);
    for (int i = 0; i < 200; i++) ASSERT_OK(move_rows(&b, true, &s));
    const wefti_row_counts before = wefti_disk_cache_counts(b.cache);
    assert_in_range(before.misses, 1, b.rows);
    assert_int_equal(before.written, 0);
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    for (int i = 0; i < 200; i++) ASSERT_OK(move_rows(&b, i % 2, &s));
    assert_int_equal(wefti_fault_count(WEFTI_FAULT_IO), 0);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    const wefti_row_counts after = wefti_disk_cache_counts(b.cache);
    assert_int_equal(after.misses, before.misses);
    assert_int_equal(after.written, 0);
    assert_true(after.hits > before.hits);
    close_bed(&b);
}

/* A cache that reads each row of a few, which lie far from each other, and then updates them as a
 * step does. Returns the requests to the system. */
enum { FEW_ROWS = 6 };
static int64_t requests_of_a_step(bool joined) {
    enum { ROWS = 1000, BYTES = 256, PARTS = 3, FAR = 170, COUNT = FEW_ROWS };
    static bed b;
    static unsigned char memory[COUNT][BYTES];
    wefti_row_place places[COUNT];
    lay_bed(&b, PARTS, ROWS, BYTES, joined);
    open_cache(&b, COUNT);
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    for (int move = 0; move < 1 + 2 * PARTS; move++) { /* a look-up, reads, writes */
        for (int i = 0; i < COUNT; i++) places[i] = (wefti_row_place){3 + FAR * i, 0, memory[i]};
        ASSERT_OK(wefti_disk_cache_move(b.cache, move ? (move - 1) % PARTS : 0, move <= PARTS,
                                        places, COUNT, staging));
    }
    const int64_t requests = wefti_fault_count(WEFTI_FAULT_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    assert_int_equal(wefti_disk_cache_counts(b.cache).misses, joined ? COUNT : PARTS * COUNT);
    close_bed(&b);
    return requests;
}

/* A row that gets no slot costs one read, and one write when it has changed; the row that does get
 * the slot is not written. */
static void test_a_missed_row_costs_a_read_and_a_write(void **state) {
    (void)state;
    assert_int_equal(requests_of_a_step(true), 2 * FEW_ROWS - 1);
    assert_in_range(requests_of_a_step(false), 5 * FEW_ROWS, 9 * FEW_ROWS);
}

/* Steps that each use other rows, which the step before has read ahead: the look-up waits for no
 * read, and nor does the update of the present step, whose blocks stay. More rows than there is
 * room for are not read. */
static void test_rows_ahead_are_no_misses(void **state) {
    (void)state;
    enum { ROWS = 1000, BYTES = 512, COUNT = 5, STEPS = 6, MANY = 30 };
    static bed b;
    static unsigned char memory[COUNT][BYTES];
    wefti_row_place places[MANY];
    lay_bed(&b, 1, ROWS, BYTES, false);
    b.o.looked_up = true;
    open_cache(&b, COUNT);
    for (int step = 0; step < STEPS; step++)
        for (int part = 0; part < 4; part++) { /* a look-up, rows ahead, an update */
            const int of = step + (part == 1),
                      count = part == 1 && step + 1 == STEPS ? MANY : COUNT;
            for (int i = 0; i < count; i++)
                places[i] = (wefti_row_place){8 * (COUNT * of + i), part == 0,
                                              part == 1 ? NULL : memory[i]};
            if (part == 1)
                assert_int_equal(wefti_disk_cache_ahead(b.cache, 0, true, places, count, staging),
                                 count < MANY);
            else
                ASSERT_OK(wefti_disk_cache_move(b.cache, 0, part < 3, places, COUNT, staging));
        }
    const wefti_row_counts n = wefti_disk_cache_counts(b.cache);
    assert_int_equal(n.misses, COUNT); /* of the first step */
    assert_int_equal(n.ahead, COUNT * (STEPS - 1));
    assert_int_equal(n.look_ups, COUNT * STEPS);
    close_bed(&b);
}

/* A row that the next step looks up, at the moment before another writes all rows. */
static bed *written;
static weft_status look_ahead_before(wefti_disk_guard *guard, bool writes) {
    (void)guard;
    wefti_row_place place = {3, 0, NULL};
    if (writes) assert_false(wefti_disk_cache_ahead(written->cache, 0, true, &place, 1, staging));
    return WEFT_OK;
}

/* Rows that are read ahead while others write them would be the old ones. */
static void test_rows_ahead_wait_for_writes(void **state) {
    (void)state;
    enum { ROWS = 100, BYTES = 512 };
    static bed b;
    static unsigned char memory[ROWS * BYTES];
    wefti_disk_guard guard = {.begin = 0, .end = FILE_BYTES, .before = look_ahead_before};
    wefti_row_place place = {3, 1, memory};
    wefti_disk_ticket *ticket;
    written = &b;
    lay_bed(&b, 1, ROWS, BYTES, false);
    b.o.looked_up = true;
    wefti_disk_stream_guard(b.file, &guard); /* it is called after the cache's own */
    open_cache(&b, 1);
    memset(b.image + 4096, 7, ROWS * BYTES);
    ASSERT_OK(wefti_disk_stream_write(b.file, 4096, ROWS * BYTES, b.image + 4096, &ticket));
    ASSERT_OK(wefti_disk_stream_wait(b.file, ticket));
    ASSERT_OK(wefti_disk_cache_move(b.cache, 0, true, &place, 1, staging));
    assert_memory_equal(memory, b.image + 4096 + 3 * BYTES, BYTES);
    place.row = 5; /* behind a copy of rows they are read again */
    assert_true(wefti_disk_cache_ahead(b.cache, 0, true, &place, 1, staging));
    wefti_disk_stream_unguard(b.file, &guard);
    close_bed(&b);
}

static void slots_fit_their_bytes(void **state) {
    (void)state;
    for (int64_t bytes = 0; bytes < 300000; bytes += 2777)
        for (int64_t slot = 1; slot < 2000; slot += 331) {
            const int64_t slots = wefti_disk_cache_slots(bytes, slot);
            assert_true(wefti_disk_cache_bytes(slots, slot) <= bytes || !slots);
            assert_true(wefti_disk_cache_bytes(slots + 1, slot) > bytes);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_see_the_same_bytes),
                                       cmocka_unit_test(test_failures_lose_nothing),
                                       cmocka_unit_test(test_a_cache_saves_requests),
                                       cmocka_unit_test(test_a_missed_row_costs_a_read_and_a_write),
                                       cmocka_unit_test(test_rows_ahead_are_no_misses),
                                       cmocka_unit_test(test_rows_ahead_wait_for_writes),
                                       cmocka_unit_test(slots_fit_their_bytes)};
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
