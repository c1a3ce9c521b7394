/* Placing buffers by lifetime: never an overlap, near the lower bound. The checker finds every
 * planted overlap. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <stdbool.h>
#include <string.h>

#include "base/fault.h"
#include "base/philox.h"
#include "memory/place.h"

enum { MOST = 300 };

static int64_t roll(uint64_t seed, uint64_t *at, int64_t sides) {
    return (int64_t)(wefti_philox_u32(seed, 1, (*at)++) % (uint32_t)sides);
}

/* Three kinds: any lifetimes; the nested lifetimes of a forward and backward pass; many equal
 * sizes. In some runs buffers live a second time. */
static int64_t random_buffers(uint64_t seed, wefti_lifetime *b) {
    uint64_t at = 0;
    int64_t count = roll(seed, &at, MOST), steps = 1 + roll(seed, &at, 200);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = roll(seed, &at, steps), last = first + roll(seed, &at, steps - first);
        if (seed % 3 == 1) {
            first = roll(seed, &at, steps / 2 + 1);
            last = steps - first;
        }
        int64_t bytes = roll(seed, &at, 10) ? roll(seed, &at, 5000) : roll(seed, &at, 500000);
        if (seed % 3 == 2) bytes = 64 << roll(seed, &at, 4);
        b[i] = (wefti_lifetime){.bytes = bytes, .first = (int32_t)first, .last = (int32_t)last};
        if (seed % 4 == 3 && b[i].last + 2 < steps) { /* lives a second time */
            int64_t again = b[i].last + 1 + roll(seed, &at, steps - b[i].last - 1);
            b[i].again = (int32_t)again;
            b[i].until = (int32_t)(again + roll(seed, &at, steps - again));
        }
    }
    return count;
}

static bool is_alive(const wefti_lifetime *b, int32_t at) {
    return (b->first <= at && at <= b->last) || (b->until > 0 && b->again <= at && at <= b->until);
}

/* No placement can be smaller than the buffers alive at one time. */
static int64_t lower_bound(const wefti_lifetime *b, int64_t count) {
    int64_t most = 0;
    for (int64_t i = 0; i < 2 * count; i++) {
        int64_t alive = 0;
        for (int64_t j = 0; j < count; j++)
            if (is_alive(&b[j], i < count ? b[i].first : b[i - count].again))
                alive += (b[j].bytes + 63) & ~(int64_t)63;
        if (alive > most) most = alive;
    }
    return most;
}

static void random_lifetimes_are_placed(void **state) {
    (void)state;
    double worst = 0;
    TEST_SEEDS(seed, 0, SANITIZED ? 100 : 300) {
        wefti_lifetime b[MOST];
        int64_t count = random_buffers(seed, b), total = -1;
        assert_int_equal(wefti_place(b, count, &total), WEFT_OK);
        if (wefti_place_check(b, count, total) < 0)
            fail_msg("seed %d: %s", (int)seed, weft_error_message());
        int64_t bound = lower_bound(b, count), end = 0;
        for (int64_t i = 0; i < count; i++)
            if (b[i].bytes && b[i].offset + b[i].bytes > end) end = b[i].offset + b[i].bytes;
        assert_int_equal(end, total); /* not a byte more */
        if (bound && (double)total / (double)bound > worst) worst = (double)total / (double)bound;
        if ((double)total > (seed % 4 == 3 ? 1.6 : 1.3) * (double)bound)
            fail_msg("seed %d: %lld bytes, but %lld are alive at most", (int)seed, (long long)total,
                     (long long)bound);
    }
    print_message("largest total over most alive: %.3f\n", worst);
}

static bool overlap_in_time(const wefti_lifetime *a, const wefti_lifetime *b) {
    for (int32_t at = 0; at < 200; at++)
        if (is_alive(a, at) && is_alive(b, at)) return true;
    return false;
}

/* The definition: take the largest buffer that is not placed yet (of equal ones the earliest).
 * Place it at the lowest offset that is free of all placed buffers alive with it. */
static void place_by_definition(wefti_lifetime *b, int64_t count) {
    bool placed[MOST] = {false};
    for (int64_t k = 0; k < count; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++) {
            if (placed[i]) continue;
            int64_t have = best < 0 ? -1 : (b[best].bytes + 63) / 64, want = (b[i].bytes + 63) / 64;
            if (want > have || (want == have && b[i].first < b[best].first)) best = i;
        }
        int64_t size = (b[best].bytes + 63) & ~(int64_t)63;
        b[best].offset = 0;
        for (bool moved = size > 0; moved;) {
            moved = false;
            for (int64_t i = 0; i < count; i++) {
                int64_t end = b[i].offset + ((b[i].bytes + 63) & ~(int64_t)63);
                if (!placed[i] || b[i].offset >= b[best].offset + size || end <= b[best].offset)
                    continue;
                if (!overlap_in_time(&b[i], &b[best])) continue;
                b[best].offset = end;
                moved = true;
            }
        }
        placed[best] = true;
    }
}

static void placing_is_what_it_says(void **state) {
    (void)state;
    TEST_SEEDS(seed, 300, SANITIZED ? 30 : 90) {
        wefti_lifetime b[MOST], same[MOST];
        int64_t count = random_buffers(seed, b), total;
        memcpy(same, b, sizeof b);
        assert_int_equal(wefti_place(b, count, &total), WEFT_OK);
        place_by_definition(same, count);
        for (int64_t i = 0; i < count; i++)
            if (b[i].offset != same[i].offset)
                fail_msg("seed %d: buffer %lld of %lld bytes at %lld, not %lld", (int)seed,
                         (long long)i, (long long)b[i].bytes, (long long)b[i].offset,
                         (long long)same[i].offset);
    }
}

/* The buffers of a deep model's step: results, saved blocks that nest, gradients and frames. */
static void deep_models_are_placed(void **state) {
    (void)state;
    enum { LAYERS = SANITIZED ? 1000 : 5000, PARAMS = 12, EACH = 4 + 2 * PARAMS };
    wefti_lifetime *b = calloc((size_t)LAYERS * EACH, sizeof *b);
    assert_non_null(b);
    int64_t count = 0, total;
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t back = LAYERS + (LAYERS - 1 - l) * (PARAMS + 1);
        b[count++] = (wefti_lifetime){.bytes = 3000, .first = l, .last = l + 1};
        b[count++] = (wefti_lifetime){.bytes = 30000, .first = l, .last = back};
        b[count++] = (wefti_lifetime){.bytes = 9000, .first = l, .last = l};
        b[count++] = (wefti_lifetime){.bytes = 12000, .first = back, .last = back};
        for (int32_t p = 0; p < PARAMS; p++) {
            b[count++] =
                (wefti_lifetime){.bytes = p % 3 ? 64 : 6400, .first = back, .last = back + 1 + p};
            b[count++] =
                (wefti_lifetime){.bytes = 128, .first = back + 1 + p, .last = back + 1 + p};
        }
    }
    assert_int_equal(wefti_place(b, count, &total), WEFT_OK);
    assert_int_equal(wefti_place_check(b, count, total), WEFT_OK);
    /* All saved blocks are alive between forward and backward pass, with the last layer's working
     * memory. */
    assert_true(total >= LAYERS * INT64_C(30016));
    assert_true(total <= LAYERS * INT64_C(30016) + 60000);
    b[1].offset = b[EACH + 1].offset; /* two saved blocks in one place */
    assert_int_equal(wefti_place_check(b, count, total), WEFT_E_BUG);
    free(b);
}

static void planted_faults_are_found(void **state) {
    (void)state;
    int found = 0;
    TEST_SEEDS(seed, 0, SANITIZED ? 60 : 200) {
        wefti_lifetime b[MOST];
        int64_t count = random_buffers(seed, b), total;
        uint64_t at = 0;
        if (count < 2) continue;
        assert_int_equal(wefti_place(b, count, &total), WEFT_OK);
        int64_t i = roll(seed ^ 77, &at, count), j = roll(seed ^ 77, &at, count);
        if (i == j || !b[i].bytes || !b[j].bytes) continue;
        if (b[i].first > b[j].last || b[j].first > b[i].last) continue;
        wefti_lifetime kept = b[i];
        b[i].offset = b[j].offset; /* both begin there */
        if (b[i].offset + b[i].bytes <= total) {
            assert_int_equal(wefti_place_check(b, count, total), WEFT_E_BUG);
            ASSERT_MESSAGE("overlap");
            found++;
        }
        b[i] = kept;
        assert_int_equal(wefti_place_check(b, count, total), WEFT_OK);
        b[i].offset = total + 64;
        assert_int_equal(wefti_place_check(b, count, total), WEFT_E_BUG);
        b[i].offset = kept.offset + 8;
        assert_int_equal(wefti_place_check(b, count, total + 8), WEFT_E_BUG);
    }
    assert_true(test_one_seed() || found > 20);
}

/* Buffers that touch at a step are alive together. Buffers that only follow each other share their
 * place. */
static void lifetimes_are_inclusive(void **state) {
    (void)state;
    wefti_lifetime together[] = {{.bytes = 100, .first = 0, .last = 3},
                                 {.bytes = 100, .first = 3, .last = 5}},
                   apart[] = {{.bytes = 100, .first = 0, .last = 3},
                              {.bytes = 100, .first = 4, .last = 5}};
    int64_t total;
    assert_int_equal(wefti_place(together, 2, &total), WEFT_OK);
    assert_int_equal(total, 228);
    assert_int_equal(wefti_place(apart, 2, &total), WEFT_OK);
    assert_int_equal(total, 100);
    assert_int_equal(wefti_place(NULL, 0, &total), WEFT_OK);
    assert_int_equal(total, 0);
}

/* If the sum of the sizes overflows, the sizes are refused before they are added. */
static void sums_do_not_overflow(void **state) {
    (void)state;
    wefti_lifetime buffers[8];
    int64_t bytes;
    for (int i = 0; i < 8; i++)
        buffers[i] = (wefti_lifetime){.bytes = INT64_C(1) << 60, .first = 0, .last = 3};
    assert_int_equal(wefti_place(buffers, 2, &bytes), WEFT_OK);
    assert_int_equal(bytes, INT64_C(1) << 61);
    assert_int_equal(wefti_place(buffers, 8, &bytes), WEFT_E_NOMEM);
    buffers[7].bytes = INT64_MAX;
    assert_int_equal(wefti_place(buffers + 7, 1, &bytes), WEFT_E_NOMEM);
}

/* The use of a time is that of the buffers alive then, and the highest of all times is the total.
 */
static void usage_is_of_the_buffers_alive(void **state) {
    (void)state;
    enum { TIMES = 420 };
    TEST_SEEDS(seed, 0, 100) {
        wefti_lifetime b[MOST];
        int64_t count = random_buffers(seed, b), total = -1, highest[TIMES], alive[TIMES], top = 0;
        ASSERT_OK(wefti_place(b, count, &total));
        ASSERT_OK(wefti_place_usage(b, count, TIMES, highest, alive));
        for (int32_t t = 0; t < TIMES; t++) {
            int64_t bytes = 0, end = 0;
            for (int64_t i = 0; i < count; i++) {
                const int64_t until = b[i].offset + b[i].bytes;
                if (!is_alive(&b[i], t)) continue;
                bytes += b[i].bytes;
                if (b[i].bytes && until > end) end = until;
            }
            if (highest[t] != end || alive[t] != bytes)
                fail_msg("seed %d, time %d: %lld to %lld, expected %lld to %lld", (int)seed, t,
                         (long long)alive[t], (long long)highest[t], (long long)bytes,
                         (long long)end);
            if (highest[t] > top) top = highest[t];
        }
        assert_int_equal(top, total);
    }
}

static void usage_may_lack_memory(void **state) {
    (void)state;
    wefti_lifetime b[2] = {{.bytes = 100, .last = 1}, {.bytes = 50, .first = 1, .last = 2}};
    int64_t highest[4], alive[4];
    for (int n = 0; n < 2; n++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        assert_int_equal(wefti_place_usage(b, 2, 4, highest, alive), WEFT_E_NOMEM);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_is_of_the_buffers_alive), cmocka_unit_test(usage_may_lack_memory),
        cmocka_unit_test(random_lifetimes_are_placed),   cmocka_unit_test(placing_is_what_it_says),
        cmocka_unit_test(deep_models_are_placed),        cmocka_unit_test(planted_faults_are_found),
        cmocka_unit_test(lifetimes_are_inclusive),       cmocka_unit_test(sums_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
