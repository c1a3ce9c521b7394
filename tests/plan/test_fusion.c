/* Fusion of collectives: the documented cases, and what holds for all. */
#include "support.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/philox.h"
#include "builder/fusion.h"

enum { MB = 1 << 20, MOST = 64 };

static int32_t fuse(const wefti_fusion *fusion, int count, const wefti_fusion_item *items,
                    int32_t *bucket) {
    int32_t buckets = -1;
    if (wefti_fusion_buckets(fusion, count, items, bucket, &buckets) < 0)
        fail_msg("refused: %s", weft_error_message());
    return buckets;
}

static void expect(const int32_t *bucket, const int *expected, int count) {
    for (int i = 0; i < count; i++) assert_int_equal(bucket[i], expected[i]);
}

/* 40 gradients, ends [20, 35]: 20, 15 and 5 tensors. */
static void test_index(void **state) {
    (void)state;
    wefti_fusion_item items[40];
    int32_t bucket[40], ends[] = {20, 35, 99}, sizes[4] = {0};
    for (int i = 0; i < 40; i++) items[i] = (wefti_fusion_item){.bytes = 1000 * MB};
    wefti_fusion fusion = {.mode = WEFT_FUSION_INDEX, .index = ends, .index_count = 2};
    assert_int_equal(fuse(&fusion, 40, items, bucket), 3);
    for (int i = 0; i < 40; i++) sizes[bucket[i]]++;
    assert_int_equal(sizes[0], 20);
    assert_int_equal(sizes[1], 15);
    assert_int_equal(sizes[2], 5);
    assert_int_equal(bucket[19], 0);
    assert_int_equal(bucket[20], 1);
    fusion.index_count = 3; /* past the end: nothing more */
    assert_int_equal(fuse(&fusion, 40, items, bucket), 3);
}

static void test_auto(void **state) {
    (void)state;
    wefti_fusion_item items[] = {{8 * MB, 0}, {8 * MB, 0}, {2 * MB, 0}, {20 * MB, 0}, {MB, 0}};
    int32_t bucket[5];
    wefti_fusion fusion = {.mode = WEFT_FUSION_AUTO};
    assert_int_equal(fuse(&fusion, 5, items, bucket), 4);
    expect(bucket, (int[]){0, 0, 1, 2, 3}, 5);
    fusion = (wefti_fusion){.mode = WEFT_FUSION_SIZE, .bytes = 21 * MB};
    assert_int_equal(fuse(&fusion, 5, items, bucket), 2);
    expect(bucket, (int[]){0, 0, 0, 1, 1}, 5);
    fusion = (wefti_fusion){.mode = WEFT_FUSION_SIZE, .bytes = 16 * MB}; /* just full */
    assert_int_equal(fuse(&fusion, 5, items, bucket), 4);
    expect(bucket, (int[]){0, 0, 1, 2, 3}, 5);
    fusion.mode = WEFT_FUSION_NONE;
    assert_int_equal(fuse(&fusion, 5, items, bucket), 5);
    assert_int_equal(fuse(&fusion, 0, items, bucket), 0);
}

/* Other keys neither join nor close a bucket; numbers follow the last items. */
static void test_keys(void **state) {
    (void)state;
    wefti_fusion_item items[] = {{MB, 7}, {MB, 9}, {MB, 9}, {MB, 7}, {MB, 8}};
    int32_t bucket[5], ends[] = {2};
    wefti_fusion fusion = {.mode = WEFT_FUSION_AUTO};
    assert_int_equal(fuse(&fusion, 5, items, bucket), 3);
    expect(bucket, (int[]){1, 0, 0, 1, 2}, 5);
    fusion = (wefti_fusion){.mode = WEFT_FUSION_INDEX, .index = ends, .index_count = 1};
    assert_int_equal(fuse(&fusion, 5, items, bucket), 5);
}

/* The fewest buckets into which items [0, count) can be cut in order. */
static int fewest(const wefti_fusion_item *items, int count, int64_t limit) {
    int best[MOST + 1] = {0};
    for (int end = 1; end <= count; end++) {
        int64_t bytes = 0;
        best[end] = MOST + 1;
        for (int begin = end; begin-- > 0;) {
            bytes += items[begin].bytes;
            if (bytes > limit && begin + 1 < end) break;
            if (best[begin] + 1 < best[end]) best[end] = best[begin] + 1;
        }
    }
    return best[count];
}

static void test_random(void **state) {
    (void)state;
    TEST_SEEDS(seed, 1, 500) {
        wefti_fusion_item items[MOST], of_key[MOST];
        int32_t bucket[MOST], last[MOST] = {0};
        int count = 1 + (int)(wefti_philox_u32(seed, 0, 0) % MOST), wanted = 0;
        int64_t sum[MOST] = {0};
        wefti_fusion fusion = {.mode = WEFT_FUSION_SIZE,
                               .bytes = 1 + wefti_philox_u32(seed, 0, 1) % 1000};
        for (int i = 0; i < count; i++) {
            items[i].bytes = wefti_philox_u32(seed, 1, (uint64_t)i) % 400;
            items[i].key = wefti_philox_u32(seed, 2, (uint64_t)i) % 3 * 1000;
        }
        int buckets = fuse(&fusion, count, items, bucket);
        for (int i = 0; i < count; i++) {
            assert_in_range(bucket[i], 0, buckets - 1);
            last[bucket[i]] = i;
            sum[bucket[i]] += items[i].bytes;
            for (int j = 0; j < i; j++) {
                if (bucket[j] == bucket[i]) assert_true(items[j].key == items[i].key);
                if (items[j].key == items[i].key) assert_true(bucket[j] <= bucket[i]);
            }
        }
        for (int b = 0; b < buckets; b++) {
            if (b) assert_true(last[b - 1] < last[b]);
            /* within the limit, or one item beside which only empty ones have room */
            if (sum[b] > fusion.bytes) assert_int_equal(sum[b], items[last[b]].bytes);
        }
        for (uint64_t key = 0; key < 3; key++) {
            int n = 0;
            for (int i = 0; i < count; i++)
                if (items[i].key == key * 1000) of_key[n++] = items[i];
            wanted += fewest(of_key, n, fusion.bytes);
        }
        if (buckets != wanted) fail_msg("seed %d: %d buckets, not %d", (int)seed, buckets, wanted);
    }
}

static void test_refused(void **state) {
    (void)state;
    wefti_fusion_item items[] = {{INT64_MAX, 0}, {INT64_MAX, 0}};
    int32_t bucket[2], buckets = -1;
    wefti_fusion fusion = {.mode = WEFT_FUSION_AUTO};
    assert_int_equal(wefti_fusion_buckets(&fusion, 2, items, bucket, &buckets), WEFT_E_ARG);
    items[0].bytes = items[1].bytes = 1;
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 0, false, 0);
    assert_int_equal(wefti_fusion_buckets(&fusion, 2, items, bucket, &buckets), WEFT_E_NOMEM);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    assert_int_equal(buckets, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index),  cmocka_unit_test(test_auto),    cmocka_unit_test(test_keys),
        cmocka_unit_test(test_random), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("fusion", tests, NULL, NULL);
}
