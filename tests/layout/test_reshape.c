/* Regions under two shapes: each element of the region once, in boxes of both shapes that list
 * equal elements. */
#include "support.h"

#include <string.h>

#include "base/philox.h"
#include "layout/reshape.h"
#include "layout/runs.h"

enum { MOST_ELEMS = 5000 };
static uint64_t random_seed;

static int64_t draw(uint64_t *position, int64_t bound) {
    return wefti_philox_u32(random_seed, 4, (*position)++) % (uint32_t)bound;
}

typedef struct visit {
    const weft_desc *from, *to;
    unsigned char seen[MOST_ELEMS];
    int64_t boxes, elems;
} visit;

/* The elements of a box, in the order of its array. */
static int64_t list(const weft_desc *whole, const wefti_region *box, int64_t *out) {
    wefti_region_runs run = wefti_region_runs_of(whole, box);
    int64_t count = 0;
    while (wefti_region_runs_next(&run))
        for (int64_t i = 0; i < run.count; i++) out[count++] = run.at + i;
    return count;
}

static weft_status see(void *context, const wefti_region *from, const wefti_region *to) {
    static int64_t a[MOST_ELEMS], b[MOST_ELEMS];
    visit *v = context;
    int64_t count = list(v->from, from, a);
    assert_true(count > 0);
    assert_int_equal(list(v->to, to, b), count);
    assert_memory_equal(a, b, (size_t)count * sizeof *a);
    for (int64_t i = 0; i < count; i++) assert_int_equal(v->seen[a[i]]++, 0);
    v->boxes++;
    v->elems += count;
    return WEFT_OK;
}

/* Factors of both shapes: neighbours are joined in one and not in the other. */
static void random_shapes(uint64_t *position, weft_desc *from, weft_desc *to) {
    *from = *to = (weft_desc){.dtype = WEFT_F32};
    int factors = (int)draw(position, 6);
    for (int i = 0; i < factors; i++) {
        int64_t size = 1 + draw(position, 4);
        for (int k = 0; k < 2; k++) {
            weft_desc *d = k ? to : from;
            if (d->rank && draw(position, 2))
                d->shape[d->rank - 1] *= size;
            else
                d->shape[d->rank++] = size;
        }
    }
}

static void each_element_once(void **state) {
    (void)state;
    uint64_t position = 0;
    for (int trial = 0; trial < 3000; trial++) {
        weft_desc from, to;
        wefti_region region = {{0}, {0}};
        static visit v;
        random_shapes(&position, &from, &to);
        for (int d = 0; d < from.rank; d++) {
            bool all = draw(&position, 2);
            region.begin[d] = all ? 0 : draw(&position, from.shape[d]);
            region.size[d] =
                all ? from.shape[d] : draw(&position, from.shape[d] - region.begin[d] + 1);
        }
        memset(&v, 0, sizeof v);
        v.from = &from;
        v.to = &to;
        ASSERT_OK(wefti_region_reshape(&from, &region, &to, see, &v));
        assert_int_equal(v.elems, wefti_region_elems(&region, from.rank));
        if (wefti_desc_equal(&from, &to)) assert_true(v.boxes <= 1);
    }
}

/* Half of the heads of queries, keys and values: three blocks of columns. */
static void merged_heads_are_three_blocks(void **state) {
    (void)state;
    static visit v;
    const weft_desc from = {.dtype = WEFT_F32, .rank = 4, .shape = {8, 3, 4, 2}},
                    to = {.dtype = WEFT_F32, .rank = 2, .shape = {8, 24}};
    const wefti_region region = {{0, 0, 2, 0}, {8, 3, 2, 2}};
    v = (visit){.from = &from, .to = &to};
    ASSERT_OK(wefti_region_reshape(&from, &region, &to, see, &v));
    assert_int_equal(v.boxes, 3);
    assert_int_equal(v.elems, 8 * 3 * 2 * 2);
}

static weft_status refuse(void *context, const wefti_region *from, const wefti_region *to) {
    (void)from;
    (void)to;
    ++*(int *)context;
    return WEFT_RAISE(WEFT_E_ARG, "enough");
}

static void failures_end_the_visit(void **state) {
    (void)state;
    int calls = 0;
    const weft_desc from = {.dtype = WEFT_F32, .rank = 2, .shape = {4, 4}},
                    to = {.dtype = WEFT_F32, .rank = 1, .shape = {16}},
                    other = {.dtype = WEFT_F32, .rank = 1, .shape = {15}};
    const wefti_region columns = {{0, 1}, {4, 2}};
    assert_int_equal(wefti_region_reshape(&from, &columns, &to, refuse, &calls), WEFT_E_ARG);
    assert_int_equal(calls, 1);
    assert_int_equal(wefti_region_reshape(&from, &columns, &other, refuse, &calls), WEFT_E_SHAPE);
    assert_int_equal(calls, 1);
}

int main(void) {
    random_seed = test_seed(12);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(each_element_once),
                                              cmocka_unit_test(merged_heads_are_three_blocks),
                                              cmocka_unit_test(failures_end_the_visit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
