/* The visit of what a piece has of a range: each element once, in ascending order, in small blocks.
 */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "layout/runs.h"

enum { MOST_ELEMS = 6 * 6 * 6 * 6 };
static uint64_t random_seed;

static int64_t draw(uint64_t *position, int64_t bound) {
    return wefti_philox_u32(random_seed, 3, (*position)++) % (uint32_t)bound;
}

/* Element `at` of the whole tensor: its place in the array of the box; -1: it is not in the box. */
static int64_t place_of(const weft_desc *whole, const wefti_region *box, int64_t at) {
    int64_t index[WEFT_MAX_RANK], place = 0;
    for (int d = whole->rank - 1; d >= 0; d--) {
        index[d] = at % whole->shape[d] - box->begin[d];
        at /= whole->shape[d];
        if (index[d] < 0 || index[d] >= box->size[d]) return -1;
    }
    for (int d = 0; d < whole->rank; d++) place = place * box->size[d] + index[d];
    return place;
}

static void each_element_once(void **state) {
    (void)state;
    uint64_t position = 0;
    for (int trial = 0; trial < 5000; trial++) {
        weft_desc whole = {.dtype = WEFT_F32, .rank = (int)draw(&position, 5)};
        wefti_region box = {{0}, {0}};
        for (int d = 0; d < whole.rank; d++) {
            whole.shape[d] = 1 + draw(&position, 6);
            bool all = draw(&position, 2); /* often, so that dimensions merge */
            box.begin[d] = all ? 0 : draw(&position, whole.shape[d]);
            box.size[d] = all ? whole.shape[d] : draw(&position, whole.shape[d] - box.begin[d] + 1);
        }
        int64_t elems = weft_desc_elems(&whole), first = draw(&position, elems),
                count = draw(&position, elems - first + 1), most = 1 + draw(&position, 40),
                next = first;
        wefti_piece_blocks b = wefti_piece_blocks_of(&whole, &box, first, count, most);
        while (wefti_piece_blocks_next(&b)) {
            wefti_region_runs run = wefti_region_runs_of(&whole, &b.block);
            assert_in_range(b.count, 1, most);
            while (wefti_region_runs_next(&run))
                for (int64_t i = 0; i < run.count; i++, next++) {
                    while (next < elems && place_of(&whole, &box, next) < 0) next++;
                    assert_int_equal(run.at + i, next);
                    assert_int_equal(b.here + run.here + i, place_of(&whole, &box, next));
                    assert_in_range(run.here + i, 0, b.count - 1);
                }
        }
        for (; next < first + count; next++)
            assert_int_equal(place_of(&whole, &box, next), -1); /* nothing was left out */
        assert_true(next <= first + count);
    }
}

int main(void) {
    random_seed = test_seed(11);
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_element_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
