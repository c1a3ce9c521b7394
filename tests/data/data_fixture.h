/* Shared parts of the tests of training data: a directory of their own, bytes put together by hand,
 * and random numbers with a printed seed. */
#ifndef WEFT_TESTS_TRAIN_DATA_FIXTURE_H
#define WEFT_TESTS_TRAIN_DATA_FIXTURE_H

#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/philox.h"

static char data_root[200];

static inline int data_setup(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    (void)snprintf(data_root, sizeof data_root, "%s/weft-test-data-XXXXXX",
                   directory ? directory : P_tmpdir);
    return mkdtemp(data_root) ? 0 : -1;
}

static inline void disarm_faults(void) {
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
}

static inline int data_teardown(void **state) {
    (void)state;
    disarm_faults();
    return wefti_remove_tree(data_root) == WEFT_OK ? 0 : -1;
}

/* A path in the directory; valid until this thread has asked for eight more. */
static inline const char *in_root(const char *name) {
    static _Thread_local char paths[8][512];
    static _Thread_local int next;
    char *path = paths[next++ & 7];
    (void)snprintf(path, sizeof paths[0], "%s/%s", data_root, name);
    return path;
}

static inline const char *put_file(const char *name, const void *data, size_t bytes) {
    const char *path = in_root(name);
    ASSERT_OK(wefti_file_write(path, data, bytes));
    return path;
}

/* A larger public file that is not part of the repository; NULL when it is not here. */
static inline const char *shared_file(const char *name) {
    static char path[512];
    const char *directory = getenv("WEFT_TEST_DATA");
    (void)snprintf(path, sizeof path, "%s/%s",
                   directory && *directory ? directory : "../shared/data", name);
    if (wefti_exists(path)) return path;
    print_message("SKIP: %s is not there (set WEFT_TEST_DATA)\n", path);
    return NULL;
}

/* Bytes of a test file; `bytes` is far more than any of them needs. */
typedef struct buffer {
    unsigned char bytes[8192];
    int64_t count;
} buffer;

static inline void put_bytes(buffer *b, const void *data, size_t count) {
    assert_true((size_t)b->count + count <= sizeof b->bytes);
    memcpy(b->bytes + b->count, data, count);
    b->count += (int64_t)count;
}

static inline void put_big(buffer *b, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--)
        put_bytes(b, &(unsigned char){(unsigned char)(value >> 8 * i)}, 1);
}

/* IDX header and zeroed elements. */
static inline void put_idx(buffer *b, int type, int element_bytes, int rank,
                           const uint32_t *sizes) {
    put_big(b, (uint64_t)type << 8 | (uint64_t)rank, 4);
    size_t elems = 1;
    for (int i = 0; i < rank; i++) {
        put_big(b, sizes[i], 4);
        elems *= sizes[i];
    }
    static const unsigned char zeros[4096];
    put_bytes(b, zeros, elems * (size_t)element_bytes);
}

/* npy of version `major` with the header padded as NumPy pads it. */
static inline void put_npy(buffer *b, int major, const char *header, const void *data,
                           size_t bytes) {
    size_t start = major == 1 ? 10 : 12, length = strlen(header) + 1;
    size_t padding = (64 - (start + length) % 64) % 64;
    length += padding;
    put_bytes(b, "\x93NUMPY", 6);
    put_bytes(b, &(unsigned char[2]){(unsigned char)major, 0}, 2);
    uint32_t little = (uint32_t)length;
    put_bytes(b, &little, major == 1 ? 2 : 4);
    put_bytes(b, header, strlen(header));
    for (size_t i = 0; i < padding; i++) put_bytes(b, " ", 1);
    put_bytes(b, "\n", 1);
    put_bytes(b, data, bytes);
}

static inline void put_shard(buffer *b, int32_t magic, int32_t version, int32_t count,
                             const void *tokens, size_t bytes) {
    int32_t words[256] = {magic, version, count};
    put_bytes(b, words, sizeof words);
    put_bytes(b, tokens, bytes);
}

#endif
