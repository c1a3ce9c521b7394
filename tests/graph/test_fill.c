/* Start values: a region of a tensor holds what the whole holds there. */
#include "support.h"

#include <stdlib.h>

#include "base/philox.h"
#include "graph/fill.h"

enum { SEED = 11, STREAM = 77, ROUNDS = 400 }; /* of the values */

static uint64_t random_seed, rolls; /* of the dice below */

static int64_t dice(int64_t n) {
    return (int64_t)(wefti_philox_u32(random_seed, 2, rolls++) % (uint32_t)n);
}

/* By its definition, element by element. */
static double value_at(const weft_init *init, int64_t at) {
    switch (init->kind) {
    case WEFT_INIT_CONSTANT:
        return init->scale;
    case WEFT_INIT_NORMAL:
        return (double)((float)init->scale * wefti_philox_normal(SEED, STREAM, (uint64_t)at));
    case WEFT_INIT_UNIFORM:
        return init->scale * (2.0 * (double)wefti_philox_uniform(SEED, STREAM, (uint64_t)at) - 1.0);
    default:
        return 0.0;
    }
}

static void check_region(const weft_init *init, const weft_desc *whole,
                         const wefti_region *region) {
    int64_t count = wefti_region_elems(region, whole->rank), strides[WEFT_MAX_RANK];
    size_t bytes = weft_dtype_bytes(whole->dtype);
    unsigned char *data = malloc((size_t)(count + 1) * bytes), expected[8];
    assert_non_null(data);
    memset(data, 0xA5, (size_t)(count + 1) * bytes);
    wefti_strides(whole, strides);
    for (int64_t first = 0; first < count;) { /* in parts, as threads do */
        int64_t part = 1 + dice(count - first);
        wefti_fill_region(init, SEED, STREAM, whole, region, first, part, data);
        first += part;
    }
    for (int64_t e = 0; e < count; e++) {
        int64_t at = 0, rest = e;
        for (int d = whole->rank - 1; d >= 0; d--) {
            at += (region->begin[d] + rest % region->size[d]) * strides[d];
            rest /= region->size[d];
        }
        wefti_store(whole->dtype, expected, 0, value_at(init, at));
        assert_memory_equal(data + (size_t)e * bytes, expected, bytes);
    }
    for (size_t k = 0; k < bytes; k++) assert_int_equal(data[(size_t)count * bytes + k], 0xA5);
    free(data);
}

static void regions_hold_what_the_whole_holds(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_F16};
    for (int round = 0; round < ROUNDS; round++) {
        weft_init init = {(weft_init_kind)(round % 4), 0.02};
        weft_desc whole = {.dtype = dtypes[dice(4)], .rank = (int)dice(5)};
        wefti_region region = {{0}, {0}};
        for (int d = 0; d < whole.rank; d++) {
            whole.shape[d] = 1 + dice(whole.rank == 1 ? 3000 : whole.rank == 2 ? 90 : 12);
            bool all = dice(3) == 0;
            region.begin[d] = all ? 0 : dice(whole.shape[d]);
            region.size[d] = all ? whole.shape[d] : 1 + dice(whole.shape[d] - region.begin[d]);
        }
        check_region(&init, &whole, &region);
    }
}

int main(void) {
    random_seed = test_seed(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(regions_hold_what_the_whole_holds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
