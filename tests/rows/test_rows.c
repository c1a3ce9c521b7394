/* Touched rows of lists of ids, against a search of the whole list for each place. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "rows/rows.h"

enum { MOST = 300 };

/* The number of the row that `id` has, given those before it; -1: it is new. */
static int32_t row_among(const int32_t *ids, int32_t count, int32_t id) {
    for (int32_t r = 0; r < count; r++)
        if (ids[r] == id) return r;
    return -1;
}

static void check(const int32_t *ids, int32_t places, const wefti_rows *rows) {
    int32_t seen[MOST], count = 0;
    for (int32_t i = 0; i < places; i++)
        if (ids[i] >= 0 && row_among(seen, count, ids[i]) < 0) seen[count++] = ids[i];
    assert_int_equal(rows->count, count);
    assert_int_equal(rows->begin[0], 0);
    for (int32_t r = 0; r < count; r++) {
        int32_t k = rows->begin[r];
        assert_int_equal(rows->ids[r], seen[r]);
        for (int32_t i = 0; i < places; i++)
            if (ids[i] == seen[r]) assert_int_equal(rows->place[k++], i);
        assert_int_equal(k, rows->begin[r + 1]);
    }
}

static void rows_are_those_of_a_plain_search(void **state) {
    (void)state;
    const uint64_t seed = test_new_seed();
    for (uint32_t round = 0; round < 500; round++) {
        int32_t ids[MOST];
        uint64_t at = (uint64_t)round << 32;
        const int32_t places = (int32_t)(wefti_philox_u32(seed, 1, at++) % (MOST + 1));
        const int32_t names = 1 + (int32_t)(wefti_philox_u32(seed, 1, at++) % 200);
        const int shift = (int)(wefti_philox_u32(seed, 1, at++) % 23);
        for (int32_t i = 0; i < places; i++)
            ids[i] = ((int32_t)(wefti_philox_u32(seed, 1, at++) % (uint32_t)(names + 1)) - 1) *
                     (1 << shift);
        void *memory = malloc(wefti_rows_bytes(places));
        assert_non_null(memory);
        wefti_rows rows;
        wefti_rows_find(ids, places, memory, &rows);
        check(ids, places, &rows);
        free(memory);
    }
}

/* Ids that have their lower bits in common must not share a slot: this would take days. */
static void ids_of_one_residue_have_slots_of_their_own(void **state) {
    (void)state;
    enum { PLACES = 1 << 21, STRIDE = 1 << 10 /* 2^31 ids in all */ };
    int32_t *ids = malloc(PLACES * sizeof *ids);
    void *memory = malloc(wefti_rows_bytes(PLACES));
    assert_non_null(ids);
    assert_non_null(memory);
    for (int32_t i = 0; i < PLACES; i++) ids[i] = (PLACES - 1 - i) * STRIDE;
    wefti_rows rows;
    wefti_rows_find(ids, PLACES, memory, &rows);
    for (int32_t r = 0; r < rows.count; r++)
        for (int32_t k = rows.begin[r]; k < rows.begin[r + 1]; k++)
            assert_int_equal(ids[rows.place[k]], rows.ids[r]);
    assert_int_equal(rows.begin[rows.count], PLACES);
    free(ids);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_a_plain_search),
        cmocka_unit_test(ids_of_one_residue_have_slots_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
