/* Disk streams, by both engines: random reads and writes against memory, each request failed in
 * turn, full disks, and kills. weft-test: threads */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "base/io.h"
#include "device/disk.h"
#include "unnamed_file.h"

enum { FILE_BYTES = 1 << 20, OPERATIONS = 24, ROUNDS = SANITIZED ? 16 : 40 };

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/var/tmp/weft-test-disk-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static uint64_t random_below(uint64_t *seed, uint64_t end) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 20) % end;
}

static int names_in(const char *path) {
    DIR *d = opendir(path);
    int count = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += e->d_name[0] != '.' || e->d_name[1] == 'w';
    (void)closedir(d);
    return count;
}

/* How a stream works: the engine, whether it asks for the page cache, and whether it encrypts. */
typedef struct way {
    wefti_disk_engine engine;
    bool cached, encrypted;
} way;
static const way ways[] = {{WEFTI_DISK_URING, false, false},
                           {WEFTI_DISK_URING, true, false},
                           {WEFTI_DISK_THREADS, false, false},
                           {WEFTI_DISK_THREADS, true, false},
#ifdef WEFT_HAVE_OPENSSL
                           {WEFTI_DISK_URING, false, true},
                           {WEFTI_DISK_URING, true, true},
                           {WEFTI_DISK_THREADS, false, true},
                           {WEFTI_DISK_THREADS, true, true}
#endif
};
enum { WAYS = sizeof ways / sizeof *ways };

static wefti_disk_options options_of(way w) {
    return (wefti_disk_options){.directory = folder,
                                .bytes = FILE_BYTES,
                                .block = 1 << 14,
                                .depth = 5,
                                .engine = w.engine,
                                .cached = w.cached,
                                .encrypted = w.encrypted};
}

/* False: there is no io_uring here. */
static bool open_way(way w, wefti_disk_stream **out) {
    const wefti_disk_options o = options_of(w);
    weft_status status = wefti_disk_stream_open(&o, out);
    if (status < 0 && w.engine == WEFTI_DISK_URING && has_facts(weft_error_message(), "io_uring"))
        return false;
    ASSERT_OK(status);
    assert_int_equal(wefti_disk_stream_engine(*out), w.engine);
    if (w.cached) assert_false(wefti_disk_stream_direct(*out));
    return true;
}

static void test_engines_are_there(void **state) {
    (void)state;
    wefti_disk_stream *d;
    const wefti_disk_options any = {.directory = folder, .bytes = 1};
    ASSERT_OK(wefti_disk_stream_open(&any, &d));
    print_message("%s\n", wefti_disk_stream_text(d));
    const bool uring = wefti_disk_stream_engine(d) == WEFTI_DISK_URING;
    if (!uring) ASSERT_FACTS(wefti_disk_stream_text(d), "threads|io_uring");
    wefti_disk_stream_close(d);
    if (!uring) SKIP("no io_uring");
}

/* ---- reads and writes ---- */

typedef struct operation {
    int64_t offset, bytes;
    bool writes;
    unsigned char *memory, *expected;
    wefti_disk_ticket *ticket;
} operation;

/* Sizes and places on all sides of the blocks' edges. */
static void choose(uint64_t *seed, operation *op) {
    static const int64_t grid[] = {1, 512, 4096, 16384};
    const int64_t step = grid[random_below(seed, 4)];
    op->bytes = (int64_t)random_below(seed, 3 * (1 << 16) / (uint64_t)step + 1) * step;
    op->offset =
        (int64_t)random_below(seed, (uint64_t)((FILE_BYTES - op->bytes) / step + 1)) * step;
    op->writes = random_below(seed, 2);
    const int64_t shift = random_below(seed, 2) ? 0 : (int64_t)random_below(seed, 4096);
    void *memory;
    assert_int_equal(posix_memalign(&memory, 4096, (size_t)op->bytes + 8192), 0);
    op->expected = memory;
    op->memory = op->expected + shift;
}

/* Results are those of operations one after the other, although they run at the same time. */
static void random_round(wefti_disk_stream *d, unsigned char *image, uint64_t *seed) {
    operation ops[OPERATIONS];
    unsigned char *wanted[OPERATIONS];
    for (int i = 0; i < OPERATIONS; i++) {
        operation *op = &ops[i];
        choose(seed, op);
        wanted[i] = malloc((size_t)op->bytes + 1);
        assert_non_null(wanted[i]);
        if (op->writes) {
            for (int64_t k = 0; k < op->bytes; k++)
                op->memory[k] = (unsigned char)random_below(seed, 256);
            ASSERT_OK(wefti_disk_stream_write(d, op->offset, op->bytes, op->memory, &op->ticket));
            memcpy(image + op->offset, op->memory, (size_t)op->bytes);
        } else {
            memset(op->memory, 0xee, (size_t)op->bytes);
            memcpy(wanted[i], image + op->offset, (size_t)op->bytes);
            ASSERT_OK(wefti_disk_stream_read(d, op->offset, op->bytes, op->memory, &op->ticket));
        }
    }
    for (int n = OPERATIONS; n; n--) { /* waits come in any order */
        const int i = (int)random_below(seed, (uint64_t)n);
        const operation op = ops[i];
        ASSERT_OK(wefti_disk_stream_wait(d, op.ticket));
        if (!op.writes) assert_memory_equal(op.memory, wanted[i], (size_t)op.bytes);
        free(op.expected);
        free(wanted[i]);
        ops[i] = ops[n - 1];
        wanted[i] = wanted[n - 1];
    }
}

static void test_random_operations_equal_memory(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 3) {
        for (int w = 0; w < WAYS; w++) {
            wefti_disk_stream *d;
            uint64_t s = seed;
            if (!open_way(ways[w], &d)) continue;
            unsigned char *image = calloc(1, FILE_BYTES), *whole = malloc(FILE_BYTES);
            assert_true(image && whole);
            for (int round = 0; round < ROUNDS; round++) random_round(d, image, &s);
            wefti_disk_ticket *t;
            ASSERT_OK(wefti_disk_stream_read(d, 0, FILE_BYTES, whole, &t));
            ASSERT_OK(wefti_disk_stream_wait(d, t));
            assert_memory_equal(image, whole, FILE_BYTES);
            wefti_disk_stream_close(d);
            free(image);
            free(whole);
        }
    }
}

/* ---- bytes of other files ---- */

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

/* ---- threads ---- */

/* Threads that share a stream, each with blocks of its own. */
enum { SHARERS = 4, PART = FILE_BYTES / SHARERS };

typedef struct sharer {
    wefti_disk_stream *d;
    int number;
    bool equal;
} sharer;

static void *share(void *context) {
    sharer *s = context;
    unsigned char *bytes = malloc(PART), *back = malloc(PART);
    wefti_disk_ticket *t[2];
    s->equal = bytes && back;
    for (int round = 0; s->equal && round < 10; round++) {
        memset(bytes, 16 * s->number + round, PART);
        s->equal = wefti_disk_stream_write(s->d, s->number * PART, PART, bytes, &t[0]) >= 0 &&
                   wefti_disk_stream_read(s->d, s->number * PART, PART, back, &t[1]) >= 0 &&
                   wefti_disk_stream_wait(s->d, t[1]) >= 0 &&
                   wefti_disk_stream_wait(s->d, t[0]) >= 0 && !memcmp(bytes, back, PART);
    }
    free(bytes);
    free(back);
    return NULL;
}

static void test_threads_share_a_stream(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        pthread_t threads[SHARERS];
        sharer sharers[SHARERS];
        if (!open_way(ways[w], &d)) continue;
        for (int i = 0; i < SHARERS; i++) {
            sharers[i] = (sharer){.d = d, .number = i};
            assert_int_equal(pthread_create(&threads[i], NULL, share, &sharers[i]), 0);
        }
        for (int i = 0; i < SHARERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < SHARERS; i++) assert_true(sharers[i].equal);
        wefti_disk_stream_close(d);
    }
}

/* ---- failures ---- */

/* A write that begins and ends within blocks, then a read of it. */
static weft_status write_and_read(way w, bool *equal) {
    enum { OFFSET = 1000, BYTES = 50000 };
    const wefti_disk_options o = options_of(w);
    unsigned char *bytes = malloc(BYTES), *back = calloc(1, BYTES);
    wefti_disk_stream *d = NULL;
    wefti_disk_ticket *t;
    assert_true(bytes && back);
    memset(bytes, 0x5a, BYTES);
    weft_status status = wefti_disk_stream_open(&o, &d);
    if (status >= 0) status = wefti_disk_stream_write(d, OFFSET, BYTES, bytes, &t);
    if (status >= 0) status = wefti_disk_stream_wait(d, t);
    if (status >= 0) status = wefti_disk_stream_read(d, OFFSET, BYTES, back, &t);
    if (status >= 0) status = wefti_disk_stream_wait(d, t);
    if (status >= 0) *equal = !memcmp(bytes, back, BYTES);
    wefti_disk_stream_close(d);
    free(bytes);
    free(back);
    return status;
}

static void test_each_call_fails_in_turn(void **state) {
    (void)state;
    for (int kind = WEFTI_FAULT_ALLOC; kind <= WEFTI_FAULT_IO; kind++) {
        for (int w = 0; w < WAYS; w++) {
            wefti_disk_stream *d;
            bool equal = false;
            if (!open_way(ways[w], &d)) continue;
            wefti_disk_stream_close(d);
            wefti_fault_arm((wefti_fault_kind)kind, INT64_MAX, false, 0);
            ASSERT_OK(write_and_read(ways[w], &equal));
            assert_true(equal);
            const int64_t calls = wefti_fault_count((wefti_fault_kind)kind);
            assert_in_range(calls, 4, 100);
            for (int64_t nth = 0; nth < calls; nth++) {
                wefti_fault_arm((wefti_fault_kind)kind, nth, false, EIO);
                equal = false;
                const weft_status status = write_and_read(ways[w], &equal);
                if (kind == WEFTI_FAULT_IO) {
                    assert_int_equal(status, WEFT_E_IO);
                    ASSERT_FACTS(weft_error_message(), folder);
                } else {
                    assert_true(status < 0 || equal);
                }
                assert_int_equal(names_in(folder), 0);
            }
            wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
        }
    }
}

/* Bytes that begin on a page, so that whole blocks need no buffer. */
static unsigned char *make_pages(int64_t bytes, int byte) {
    void *memory;
    assert_int_equal(posix_memalign(&memory, WEFTI_DISK_ALIGNMENT, (size_t)bytes), 0);
    memset(memory, byte, (size_t)bytes);
    return memory;
}

/* A write in several requests changes nothing if one of its allocations fails. With one request at
 * once, an engine that allocates between requests would do some and not others. */
static void no_allocation_leaves_a_part(way w, int32_t depth) {
    enum { BYTES = 1 << 16, OFFSET = 1000, PART = 50000 };
    wefti_disk_options o = options_of(w);
    unsigned char *old = make_pages(BYTES, 0x5a), *back = make_pages(BYTES, 0),
                  *zeros = make_pages(PART, 0);
    bool fails = true;
    o.depth = depth;
    for (int64_t nth = 0; fails; nth++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        ASSERT_OK(wefti_disk_stream_open(&o, &d));
        ASSERT_OK(wefti_disk_stream_write(d, 0, BYTES, old, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = wefti_disk_stream_write(d, OFFSET, PART, zeros, &t);
        if (status >= 0) status = wefti_disk_stream_wait(d, t);
        fails = wefti_fault_count(WEFTI_FAULT_ALLOC) > nth;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_int_equal(status, fails ? WEFT_E_NOMEM : WEFT_OK);
        if (!fails) memset(old + OFFSET, 0, PART);
        ASSERT_OK(wefti_disk_stream_read(d, 0, BYTES, back, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        assert_memory_equal(back, old, BYTES);
        wefti_disk_stream_close(d);
    }
    free(old);
    free(back);
    free(zeros);
}

static void test_a_failed_allocation_changes_nothing(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        no_allocation_leaves_a_part(ways[w], 1);
        no_allocation_leaves_a_part(ways[w], 5);
    }
}

/* ---- encryption ---- */

/* Blocks with a pattern, which the file must not show. */
enum { SECRETS = 8, SECRET_BYTES = SECRETS * WEFTI_DISK_ALIGNMENT };

static void transfer(wefti_disk_stream *d, int64_t offset, int64_t bytes, unsigned char *memory,
                     bool writes, weft_status expected) {
    wefti_disk_ticket *t;
    if (writes)
        ASSERT_OK(wefti_disk_stream_write(d, offset, bytes, memory, &t));
    else
        ASSERT_OK(wefti_disk_stream_read(d, offset, bytes, memory, &t));
    assert_int_equal(wefti_disk_stream_wait(d, t), expected);
    if (expected < 0) ASSERT_FACTS(weft_error_message(), folder);
}

static void check_secrets(wefti_disk_stream *d) {
    const int fd = open_unnamed(folder);
    unsigned char *plain = make_pages(SECRET_BYTES, 0x5a), *old = make_pages(SECRET_BYTES, 0),
                  *now = make_pages(SECRET_BYTES, 0), *back = make_pages(SECRET_BYTES, 0);
    /* written twice, the same bytes differ in the file; other bytes stay zeros */
    for (int k = 0; k < 2; k++) {
        transfer(d, 0, SECRET_BYTES, plain, true, WEFT_OK);
        assert_int_equal(pread(fd, k ? now : old, SECRET_BYTES, 0), SECRET_BYTES);
        assert_null(memmem(k ? now : old, SECRET_BYTES, plain, 16));
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_OK);
        assert_memory_equal(back, plain, SECRET_BYTES);
    }
    for (int b = 0; b < SECRETS; b++)
        assert_memory_not_equal(old + b * WEFTI_DISK_ALIGNMENT, now + b * WEFTI_DISK_ALIGNMENT, 64);
    transfer(d, FILE_BYTES / 2, 100, back, false, WEFT_OK);
    for (int i = 0; i < 100; i++) assert_int_equal(back[i], 0);
    /* a bit that changed, an older block, and a block from another place */
    for (int wrong = 0; wrong < 3; wrong++) {
        const unsigned char *from =
            wrong == 1 ? old + WEFTI_DISK_ALIGNMENT : now + 2 * WEFTI_DISK_ALIGNMENT;
        unsigned char block[WEFTI_DISK_ALIGNMENT];
        memcpy(block, wrong ? from : now + WEFTI_DISK_ALIGNMENT, sizeof block);
        if (!wrong) block[1234] ^= 4;
        assert_int_equal(pwrite(fd, block, sizeof block, WEFTI_DISK_ALIGNMENT), sizeof block);
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_E_CORRUPT);
        transfer(d, 5000, 10, plain, true, WEFT_E_CORRUPT); /* a part of the block */
        transfer(d, 0, WEFTI_DISK_ALIGNMENT, back, false, WEFT_OK);
        assert_int_equal(pwrite(fd, now + WEFTI_DISK_ALIGNMENT, sizeof block, WEFTI_DISK_ALIGNMENT),
                         sizeof block);
        transfer(d, 0, SECRET_BYTES, back, false, WEFT_OK);
        assert_memory_equal(back, plain, SECRET_BYTES);
    }
    (void)close(fd);
    free(plain);
    free(old);
    free(now);
    free(back);
}

static void test_encrypted_files_show_nothing(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        if (!ways[w].encrypted || !open_way(ways[w], &d)) continue;
        check_secrets(d);
        wefti_disk_stream_close(d);
    }
}

static void test_failures_name_the_offset(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        char bytes[64] = "", others[64];
        if (!open_way(ways[w], &d)) continue;
        wefti_fault_arm(WEFTI_FAULT_IO, 0, true, EIO);
        ASSERT_OK(wefti_disk_stream_read(d, 123456, sizeof bytes, bytes, &t));
        ASSERT_FAILS(WEFT_E_IO, "123456", wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        ASSERT_OK(wefti_disk_stream_read(d, 123456, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        ASSERT_FAILS(WEFT_E_ARG, "1048577",
                     wefti_disk_stream_read(d, 0, FILE_BYTES + 1, bytes, &t));
        ASSERT_FAILS(WEFT_E_ARG, "-1", wefti_disk_stream_read(d, -1, 1, bytes, &t));
        ASSERT_FAILS(WEFT_E_ARG, "1048576", wefti_disk_stream_write(d, FILE_BYTES, 1, bytes, &t));
        /* close waits for what nobody waits for */
        ASSERT_OK(wefti_disk_stream_write(d, 5, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_read(d, 500000, sizeof others, others, &t));
        wefti_disk_stream_close(d);
    }
}

/* A call that a signal interrupts is repeated, and one that never succeeds ends with an error. */
static void test_interrupted_calls_are_repeated(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        wefti_disk_ticket *t;
        char bytes[64] = "";
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        wefti_fault_arm(WEFTI_FAULT_IO, 1, false, EINTR); /* the reservation */
        assert_true(open_way(ways[w], &d));
        wefti_fault_arm(WEFTI_FAULT_IO, 0, false, EINTR);
        ASSERT_OK(wefti_disk_stream_read(d, 0, sizeof bytes, bytes, &t));
        ASSERT_OK(wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, 0, true, EAGAIN);
        ASSERT_OK(wefti_disk_stream_read(d, 0, sizeof bytes, bytes, &t));
        ASSERT_FAILS(WEFT_E_IO, folder, wefti_disk_stream_wait(d, t));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        wefti_disk_stream_close(d);
    }
}

/* A slow disk changes the time only. */
static void test_slow_disks_give_the_same(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        wefti_disk_stream *d;
        bool equal = false;
        if (!open_way(ways[w], &d)) continue;
        wefti_disk_stream_close(d);
        wefti_fault_slow(WEFTI_SLOW_DISK, 2000000);
        ASSERT_OK(write_and_read(ways[w], &equal));
        wefti_fault_slow(WEFTI_SLOW_DISK, 0);
        assert_true(equal);
    }
}

/* A file system without O_TMPFILE: the file's name is removed at once. */
static void test_files_without_o_tmpfile(void **state) {
    (void)state;
    static const int errors[] = {EOPNOTSUPP, EISDIR};
    for (int e = 0; e < 2; e++) {
        bool equal = false;
        wefti_fault_arm(WEFTI_FAULT_IO, 0, false, errors[e]);
        ASSERT_OK(write_and_read(ways[2], &equal));
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_true(equal);
        assert_int_equal(names_in(folder), 0);
    }
}

/* A file system that takes O_DIRECT and refuses the transfers: calls are open, fallocate, write. */
static void test_files_without_o_direct(void **state) {
    (void)state;
    wefti_disk_stream *d;
    const wefti_disk_options o = options_of(ways[2]);
    wefti_fault_arm(WEFTI_FAULT_IO, 2, false, EINVAL);
    ASSERT_OK(wefti_disk_stream_open(&o, &d));
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    assert_false(wefti_disk_stream_direct(d));
    ASSERT_FACTS(wefti_disk_stream_text(d), "page cache");
    wefti_disk_stream_close(d);
}

static void test_wrong_options_are_refused(void **state) {
    (void)state;
    static const struct {
        wefti_disk_options o;
        const char *facts;
    } cases[] = {{{.bytes = 0}, "0"},
                 {{.bytes = -5}, "-5"},
                 {{.bytes = 1, .block = 4095}, "4095|4096"},
                 {{.bytes = 1, .block = -4096}, "-4096"},
                 {{.bytes = 1, .depth = 65}, "65|64"},
                 {{.bytes = 1, .depth = -1}, "-1"}};
    wefti_disk_stream *d;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wefti_disk_options o = cases[i].o;
        o.directory = folder;
        ASSERT_FAILS(WEFT_E_ARG, cases[i].facts, wefti_disk_stream_open(&o, &d));
    }
    const wefti_disk_options absent = {.directory = "/var/tmp/weft-absent", .bytes = 1};
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/var/tmp/weft-absent", wefti_disk_stream_open(&absent, &d));
    const wefti_disk_options file = {.directory = "/proc/self/status", .bytes = 1};
    ASSERT_FAILS(WEFT_E_IO, "/proc/self/status", wefti_disk_stream_open(&file, &d));
}

/* ---- a small disk ---- */

/* Runs in a child with mounts of its own; the status is that of the check that failed. */
enum { SMALL = 1 << 20, REFUSED = 77 };

static int use_small_disk(void) {
    struct statvfs before, after;
    wefti_disk_stream *d;
    wefti_disk_options o = {.directory = folder, .bytes = 2 * SMALL};
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=1m"))
        return REFUSED;
    if (statvfs(folder, &before)) return 1;
    if (wefti_disk_stream_open(&o, &d) != WEFT_E_IO) return 2;
    if (!has_facts(weft_error_message(), "1048576|2097152")) return 3;
    const pid_t pid = fork();
    if (!pid) { /* dies with a write under way */
        static unsigned char bytes[SMALL / 2];
        wefti_disk_ticket *t;
        o.bytes = SMALL / 2;
        if (wefti_disk_stream_open(&o, &d) < 0) _exit(1);
        if (wefti_disk_stream_write(d, 0, o.bytes, bytes, &t) < 0) _exit(1);
        (void)raise(SIGKILL);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status)) return 4;
    if (names_in(folder)) return 5;
    const time_t end = time(NULL) + 60; /* the kernel ends a ring's requests after the process */
    do {
        if (statvfs(folder, &after)) return 6;
    } while (after.f_bfree != before.f_bfree && time(NULL) < end && !usleep(1000));
    if (after.f_bfree != before.f_bfree) return 7;
    if (mount("none", folder, NULL, MS_REMOUNT | MS_RDONLY, NULL)) return 8;
    if (wefti_disk_stream_open(&o, &d) != WEFT_E_IO) return 9;
    return has_facts(weft_error_message(), folder) ? 0 : 10;
}

static void test_small_disks(void **state) {
    (void)state;
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) _exit(use_small_disk());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == REFUSED) SKIP("no tmpfs can be mounted");
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Kills at random moments leave no name. */
static void test_kills_leave_nothing(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 6) {
        uint64_t s = seed;
        const way w = ways[random_below(&s, 2) * 2];
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid)
            for (;;) {
                bool equal;
                (void)write_and_read(w, &equal);
            }
        (void)usleep((useconds_t)random_below(&s, 30000));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(names_in(folder), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kills_leave_nothing), /* before threads of this process */
        cmocka_unit_test(test_small_disks),
        cmocka_unit_test(test_engines_are_there),
        cmocka_unit_test(test_random_operations_equal_memory),
        cmocka_unit_test(test_other_files_lend_bytes),
        cmocka_unit_test(test_lenders_save_space_and_are_named),
        cmocka_unit_test(test_threads_share_a_stream),
        cmocka_unit_test(test_each_call_fails_in_turn),
        cmocka_unit_test(test_a_failed_allocation_changes_nothing),
        cmocka_unit_test(test_encrypted_files_show_nothing),
        cmocka_unit_test(test_failures_name_the_offset),
        cmocka_unit_test(test_interrupted_calls_are_repeated),
        cmocka_unit_test(test_slow_disks_give_the_same),
        cmocka_unit_test(test_files_without_o_tmpfile),
        cmocka_unit_test(test_files_without_o_direct),
        cmocka_unit_test(test_wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
