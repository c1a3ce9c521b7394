/* Support for the tests of vectorised kernels: guarded buffers, random operands, and a driver. The
 * driver runs a case on every path (paths.h) with 1, 2 and 3 threads.
 * It checks that
 * - no byte around any buffer changed, and no input changed;
 * - all thread counts gave the same bits, and so did the emulated form of an instruction set.
 * Cases compare the outputs with double-precision loops themselves. The seed is printed;
 * WEFT_TEST_SEED sets it. */
#ifndef TESTS_KERNELS_SUPPORT_H
#define TESTS_KERNELS_SUPPORT_H

#include "support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "backend/paths.h"
#include "base/pool.h"
#include "sanitized.h"
#include "tensor/tensor.h"

#define UNUSED __attribute__((unused))

enum { GUARD = 64, BUFFERS = 64, THREADS = 3 };
typedef enum role { INPUT, OUTPUT, SCRATCH } role;

typedef struct buffer {
    uint8_t *base, *data, *initial, *first;
    size_t bytes, offset, element;
    role role;
} buffer;

static buffer buffers[BUFFERS];
static int buffer_count;
static wefti_pool *pools[THREADS];
static uint64_t random_state;

static UNUSED uint64_t random_u64(void) {
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static UNUSED int64_t random_int(int64_t low, int64_t high) { /* both included */
    return low + (int64_t)(random_u64() % (uint64_t)(high - low + 1));
}
static UNUSED float random_float(float low, float high) {
    return low + (high - low) * (float)((double)(random_u64() >> 40) / 16777216.0);
}
static UNUSED weft_dtype random_type(void) {
    return random_u64() & 1 ? WEFT_F32 : WEFT_BF16;
}
static UNUSED bool random_bool(void) {
    return random_u64() >> 63;
}

static UNUSED int support_setup(void **state) {
    (void)state;
    random_state = test_seed(20240611);
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(wefti_pool_create(t + 1, &pools[t]), WEFT_OK);
    return 0;
}
static UNUSED int support_teardown(void **state) {
    (void)state;
    for (int t = 0; t < THREADS; t++) wefti_pool_destroy(pools[t]);
    paths_print();
    return 0;
}

/* A zeroed buffer between guards, at an address that is only as aligned as its element. */
static UNUSED void *buffer_new(role role, int64_t count, size_t element) {
    assert_true(buffer_count < BUFFERS);
    buffer *b = &buffers[buffer_count++];
    b->bytes = (size_t)count * element;
    b->role = role;
    b->element = element;
    b->offset = role == SCRATCH ? 0 : element * (random_u64() % (32 / element));
    size_t total = (b->bytes + b->offset + 2 * GUARD + 63) / 64 * 64;
    b->base = aligned_alloc(64, total);
    assert_non_null(b->base);
    memset(b->base, 0xA5, total);
    b->data = b->base + GUARD + b->offset;
    memset(b->data, 0, b->bytes);
    return b->data;
}
static UNUSED void *scratch(size_t bytes) {
    return buffer_new(SCRATCH, (int64_t)bytes, 1);
}
static UNUSED void buffers_free(void) {
    for (int i = 0; i < buffer_count; i++) {
        free(buffers[i].base);
        free(buffers[i].initial);
        free(buffers[i].first);
    }
    memset(buffers, 0, sizeof buffers);
    buffer_count = 0;
}

/* An operand that kernels take as wefti_src / wefti_dst. */
typedef struct operand {
    void *data;
    weft_dtype dtype;
    int64_t count;
} operand;

static UNUSED operand operand_new(role role, weft_dtype dtype, int64_t count) {
    return (operand){buffer_new(role, count, weft_dtype_bytes(dtype)), dtype, count};
}
static UNUSED double get(operand o, int64_t i) {
    return wefti_load(o.dtype, o.data, i);
}
static UNUSED operand operand_random(role role, weft_dtype dtype, int64_t count, float low,
                                     float high) {
    operand o = operand_new(role, dtype, count);
    for (int64_t i = 0; i < count; i++)
        wefti_store(dtype, o.data, i, (double)random_float(low, high));
    return o;
}
static UNUSED wefti_src in(operand o) {
    return (wefti_src){o.data, o.dtype};
}
static UNUSED wefti_dst out(operand o) {
    return (wefti_dst){o.data, o.dtype};
}
static UNUSED float *f32(operand o) {
    return o.data;
}
static UNUSED operand f32_random(role role, int64_t count, float low, float high) {
    return operand_random(role, WEFT_F32, count, low, high);
}

/* |got - want| <= tolerance (the f32 arithmetic's error), plus half a unit of bf16 where stored so
 * (twice, for a rounding that falls the other way). */
static UNUSED void check_close(operand o, int64_t i, double want, double tolerance,
                               const char *what) {
    double got = get(o, i), limit = tolerance + (o.dtype == WEFT_BF16 ? fabs(want) / 128.0 : 0.0);
    if (want != want && got != got) return;
    if (got == want || fabs(got - want) <= limit) return;
    fail_msg("%s[%lld] = %.9g, should be %.9g within %.3g", what, (long long)i, got, want, limit);
}

typedef void case_run(const wefti_kernels *k, wefti_pool *pool, void *c);
typedef void case_check(void *c);

static UNUSED void check_guards(const char *isa) {
    for (int i = 0; i < buffer_count; i++) {
        const buffer *b = &buffers[i];
        for (size_t g = 0; g < GUARD + b->offset; g++)
            if (b->base[g] != 0xA5) fail_msg("%s: byte before buffer %d changed", isa, i);
        for (size_t g = 0; g < GUARD; g++)
            if (b->data[b->bytes + g] != 0xA5)
                fail_msg("%s: byte %zu after buffer %d changed", isa, g, i);
    }
}

static UNUSED bool is_nan(const uint8_t *p, size_t element) {
    uint32_t bits = 0;
    memcpy((uint8_t *)&bits + (element == 2 ? 2 : 0), p, element == 2 ? 2 : 4);
    return (bits & 0x7fffffff) > 0x7f800000;
}
/* Equal bits. `emulated`: a NaN may be another NaN. Processors and compilers choose which operand's
 * NaN goes on. */
static UNUSED bool same_bits(const buffer *b, bool emulated) {
    if (!memcmp(b->data, b->first, b->bytes)) return true;
    if (!emulated || (b->element != 4 && b->element != 2)) return false;
    for (size_t i = 0; i < b->bytes; i += b->element)
        if (memcmp(b->data + i, b->first + i, b->element) &&
            !(is_nan(b->data + i, b->element) && is_nan(b->first + i, b->element)))
            return false;
    return true;
}

/* Runs a case once. Buffers hold their initial contents at the start. `known`: `first` holds the
 * outputs of an earlier run. */
static UNUSED void run_once(case_run *run, void *c, const wefti_kernels *k, int path, int threads,
                            bool known) {
    for (int i = 0; i < buffer_count; i++) {
        if (buffers[i].role == SCRATCH) /* scratch holds anything: NaN is the worst */
            memset(buffers[i].data, 0xFF, buffers[i].bytes);
        else
            memcpy(buffers[i].data, buffers[i].initial, buffers[i].bytes);
    }
    run(k, pools[threads - 1], c);
    check_guards(path_text(path));
    for (int i = 0; i < buffer_count; i++) {
        buffer *b = &buffers[i];
        if (b->role == INPUT && memcmp(b->data, b->initial, b->bytes))
            fail_msg("%s: input buffer %d changed", path_text(path), i);
        if (b->role != OUTPUT) continue;
        if (!known)
            memcpy(b->first, b->data, b->bytes);
        else if (!same_bits(b, path_is_emulated(path)))
            fail_msg("%s: buffer %d differs with %d threads from the first form or thread count",
                     path_text(path), i, threads);
    }
}

/* Emulated kernels are slow. They run with two thread counts. If the native ones have run, the
 * emulated ones run with one, and only in every `emulated_every`th case. Under a sanitizer the
 * latter holds for all. */
static UNUSED int emulated_every = SANITIZED ? 4 : 1;
static UNUSED int case_count;

/* Runs a case on every path. */
static UNUSED void run_case(case_run *run, case_check *check, void *c) {
    for (int i = 0; i < buffer_count; i++) {
        buffer *b = &buffers[i];
        b->initial = malloc(b->bytes + 1);
        b->first = malloc(b->bytes + 1);
        assert_true(b->initial && b->first);
        memcpy(b->initial, b->data, b->bytes);
    }
    for (int isa = 0; isa < WEFTI_ISAS; isa++) {
        bool known = false;
        for (int path = isa; path < PATHS; path += WEFTI_ISAS) {
            const bool rare = path_is_emulated(path) && (known || SANITIZED);
            const wefti_kernels *k = path_kernels(path);
            if (!k || (rare && case_count % emulated_every)) continue;
            const int step = path_is_emulated(path) ? THREADS - 1 : 1;
            for (int threads = known ? THREADS : 1; threads <= THREADS; threads += step) {
                run_once(run, c, k, path, threads, known);
                known = true;
            }
            check(c);
        }
    }
    path_end();
    case_count++;
    buffers_free();
}

/* What a buffer held before the run, for outputs that are also inputs. */
static UNUSED double before(operand o, int64_t i) {
    for (int b = 0; b < buffer_count; b++)
        if (buffers[b].data == o.data) return wefti_load(o.dtype, buffers[b].initial, i);
    return NAN;
}

#endif
