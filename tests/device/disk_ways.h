/* Disk streams of both engines in a folder of the test, and random operations on them. */
#ifndef WEFT_TESTS_DISK_WAYS_H
#define WEFT_TESTS_DISK_WAYS_H

#include "support.h"

#include <stdlib.h>

#include "device/disk.h"

enum { FILE_BYTES = 1 << 20, OPERATIONS = 24, ROUNDS = SANITIZED ? 16 : 40 };

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/var/tmp/weft-test-disk-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static inline int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static inline uint64_t random_below(uint64_t *seed, uint64_t end) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 20) % end;
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

static inline wefti_disk_options options_of(way w) {
    return (wefti_disk_options){.directory = folder,
                                .bytes = FILE_BYTES,
                                .block = 1 << 14,
                                .depth = 5,
                                .engine = w.engine,
                                .cached = w.cached,
                                .encrypted = w.encrypted};
}

/* False: there is no io_uring here. */
static inline bool open_way(way w, wefti_disk_stream **out) {
    const wefti_disk_options o = options_of(w);
    weft_status status = wefti_disk_stream_open(&o, out);
    if (status < 0 && w.engine == WEFTI_DISK_URING && has_facts(weft_error_message(), "io_uring"))
        return false;
    ASSERT_OK(status);
    assert_int_equal(wefti_disk_stream_engine(*out), w.engine);
    if (w.cached) assert_false(wefti_disk_stream_direct(*out));
    return true;
}

typedef struct operation {
    int64_t offset, bytes;
    bool writes;
    unsigned char *memory, *expected;
    wefti_disk_ticket *ticket;
} operation;

/* Sizes and places on all sides of the blocks' edges. */
static inline void choose(uint64_t *seed, operation *op) {
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
static inline void random_round(wefti_disk_stream *d, unsigned char *image, uint64_t *seed) {
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

#endif
