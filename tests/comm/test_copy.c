/* Copies past the caches: every form equals memcpy for any size and alignment and writes nothing
 * else. Reductions that stream their result equal those that do not. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "base/tuning.h"
#include "comm/copy.h"
#include "comm/reduce/reduce.h"

enum { MOST = 70000, MARGIN = 4096, ARRAYS = 3 };

static uint64_t seed, used;

static size_t pick(size_t low, size_t high) { /* inclusive */
    return low + wefti_philox_u32(seed, 1, used++) % (high - low + 1);
}

static void *random_bytes(size_t bytes, uint64_t stream) {
    unsigned char *p = malloc(bytes);
    assert_non_null(p);
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)wefti_philox_u32(seed, stream, i);
    return p;
}

static void copies_are_memcpy(void **state) {
    (void)state;
    unsigned char *from = random_bytes(MOST + MARGIN, 2);
    unsigned char *to = malloc(MOST + 2 * MARGIN), *right = malloc(MOST + 2 * MARGIN);
    assert_true(to && right);
    for (int turn = 0; turn < 2000; turn++) {
        wefti_copy_form form = (wefti_copy_form)pick(0, wefti_copy_best());
        size_t bytes = pick(0, turn % 2 ? 1200 : MOST), streamed = pick(0, WEFTI_COPY_ALL);
        size_t source = pick(0, MARGIN), target = turn % 3 ? pick(0, MARGIN) : pick(0, 63) * 64;
        memset(to, 0xA5, MOST + 2 * MARGIN);
        memset(right, 0xA5, MOST + 2 * MARGIN);
        memcpy(right + target, from + source, bytes);
        wefti_copy_part(form, to + target, from + source, bytes, (int)streamed);
        wefti_copy_order();
        if (memcmp(to, right, MOST + 2 * MARGIN) != 0)
            fail_msg("seed %llu: form %d, %zu bytes from %zu to %zu, %zu streamed",
                     (unsigned long long)seed, (int)form, bytes, source, target, streamed);
        wefti_copy(to, from + source, bytes, (int)streamed);
        assert_memory_equal(to, from + source, bytes);
    }
    free(from);
    free(to);
    free(right);
}

/* Larger copies stream more. Below the measured size nothing is streamed, and that size does not
 * change. */
static void what_is_kept_is_not_streamed(void) {
    int64_t cache = wefti_copy_cache(), kept = wefti_copy_kept();
    assert_true(kept >= cache && kept % cache == 0);
    assert_int_equal(wefti_copy_streamed(kept - 1), 0);
    assert_true(wefti_copy_streamed(kept) > 0);
    assert_int_equal(wefti_copy_streamed(INT64_MAX), WEFTI_COPY_ALL);
    int before = 0;
    for (int64_t bytes = 0; bytes < 40 * cache; bytes += cache / 2) {
        int now = wefti_copy_streamed(bytes);
        assert_true(now >= before && now <= WEFTI_COPY_ALL);
        before = now;
    }
    assert_int_equal(wefti_copy_kept(), kept);
}

/* Of small numbers, so that all dtypes can hold the results of all reductions. */
static void fill(weft_dtype dtype, void *array, size_t elements, uint64_t stream) {
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < elements; i++)
        values[i] = (float)(wefti_philox_u32(seed, stream, i) % 4);
    wefti_convert(dtype, array, WEFT_F32, values, (int64_t)elements);
    free(values);
}

static void reductions_are_the_same(void **state) {
    (void)state;
    enum { ELEMENTS = 9001 };
    for (int turn = 0; turn < 400; turn++) {
        weft_dtype dtype = (weft_dtype)pick(0, WEFT_DTYPES - 1);
        wefti_reduction reduction = (wefti_reduction)pick(1, WEFTI_REDUCTIONS - 1);
        size_t bytes = weft_dtype_bytes(dtype), all = (ELEMENTS + 64) * bytes;
        int32_t arrays = (int32_t)pick(2, ARRAYS);
        size_t shift = pick(0, 63) * bytes;
        bool streams[ARRAYS] = {pick(0, 1), pick(0, 1), pick(0, 1)}, apart = pick(0, 1);
        unsigned char *source[ARRAYS], *to[2][ARRAYS];
        int64_t first = (int64_t)pick(0, 500), count = (int64_t)pick(0, ELEMENTS - 500);
        for (int way = 0; way < 2; way++) {
            for (int32_t m = 0; m < arrays; m++) {
                source[m] = malloc(all);
                to[way][m] = apart ? malloc(all) : source[m];
                assert_true(source[m] && to[way][m]);
                memset(to[way][m], 0, all);
                fill(dtype, source[m] + shift, ELEMENTS, 5 + (uint64_t)m);
                source[m] += shift;
                to[way][m] += shift;
            }
            wefti_move_reduce_to_all(dtype, reduction, (const void *const *)source,
                                     (void *const *)to[way], way ? streams : NULL, arrays, first,
                                     count);
            for (int32_t m = 0; m < arrays; m++) {
                if (apart) free(source[m] - shift);
                to[way][m] -= shift;
            }
        }
        for (int32_t m = 0; m < arrays; m++) {
            if (memcmp(to[0][m], to[1][m], all) != 0)
                fail_msg("seed %llu: %s, reduction %d, array %d", (unsigned long long)seed,
                         weft_dtype_text(dtype), (int)reduction, (int)m);
            free(to[0][m]);
            free(to[1][m]);
        }
    }
}

/* What a run of a move gives does not depend on how it is written either. */
static void moves_are_the_same(void **state) {
    (void)state;
    enum { ELEMENTS = 40001 };
    float *source[ARRAYS], *plain = malloc(ELEMENTS * sizeof *plain);
    float *streamed = malloc(ELEMENTS * sizeof *streamed);
    assert_true(plain && streamed);
    for (int32_t m = 0; m < ARRAYS; m++) {
        source[m] = malloc(ELEMENTS * sizeof(float));
        assert_non_null(source[m]);
        for (size_t i = 0; i < ELEMENTS; i++)
            source[m][i] = wefti_philox_normal(seed, 9 + (uint64_t)m, i);
    }
    for (int32_t sources = 1; sources <= ARRAYS; sources++)
        for (int pages = 1; pages <= WEFTI_COPY_ALL; pages++) {
            static const wefti_move_side from[ARRAYS];
            wefti_copy_move move = {.dtype = WEFT_F32,
                                    .reduction = WEFTI_REDUCE_SUM,
                                    .run = ELEMENTS,
                                    .sources = sources,
                                    .from = from};
            wefti_move_run(&move, (const void *const *)source, plain);
            move.streamed = pages;
            wefti_move_run(&move, (const void *const *)source, streamed);
            assert_memory_equal(plain, streamed, ELEMENTS * sizeof *plain);
        }
    for (int32_t m = 0; m < ARRAYS; m++) free(source[m]);
    free(plain);
    free(streamed);
}

/* The machine's own caches and choice, and those of other machines. */
static void every_machine(void **state) {
    for (int64_t l2 = 256 << 10; l2 <= 2 << 20; l2 *= 2)
        for (int streaming = 0; streaming <= WEFTI_STREAMING_BEYOND_LAST_LEVEL; streaming++) {
            wefti_tune(&(wefti_tuning){.l2_bytes = l2 > 256 << 10 ? l2 : 0,
                                       .streaming = (wefti_streaming)streaming});
            if (streaming == WEFTI_STREAMING_NEVER)
                assert_int_equal(wefti_copy_streamed(INT64_MAX - 1), 0);
            else
                what_is_kept_is_not_streamed();
            if (streaming == WEFTI_STREAMING_BEYOND_L2)
                assert_int_equal(wefti_copy_kept(), wefti_copy_cache());
            if (streaming == WEFTI_STREAMING_BEYOND_LAST_LEVEL)
                assert_true(wefti_copy_kept() > wefti_copy_cache());
            moves_are_the_same(state);
        }
    wefti_tune(NULL);
}

int main(void) {
    seed = test_new_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_memcpy),
        cmocka_unit_test(every_machine),
        cmocka_unit_test(reductions_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
