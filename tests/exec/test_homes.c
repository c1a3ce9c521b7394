/* Homes: random ranges and regions of random tensors equal an image in the host's memory, in either
 * space. WEFT_DEVICE=fenced runs this on a device that the host cannot reach. Arenas have several
 * blocks, and rows may be longer than WEFTI_HOME_BLOCK. An allocation that fails changes nothing
 * and leaks nothing. WEFT_TEST_SEED sets the first seed, WEFT_CASES the number of seeds.
 * (weft-test: threads) */
#include "support.h"

#include "base/fault.h"
#include "base/gcm/gcm.h"
#include "comm/home_region.h"
#include "exec/exec.h"
#include "layout/transfer.h"

enum { GROWTHS = 4, ACTIONS = 12 };

static uint64_t state_of_rolls;

static int64_t roll(int64_t below) {
    state_of_rolls = state_of_rolls * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state_of_rolls >> 33) % (uint64_t)below);
}

static void fill_random(unsigned char *data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)((uint64_t)(i * 197 + 11) >> (i & 7));
    if (bytes) data[roll(bytes)] ^= 0x5a;
}

/* A device of which all memory has an image. */
typedef struct fixture {
    wefti_rank_device *device;
    wefti_home all;
    unsigned char *image;
} fixture;

static void begin(fixture *f, int64_t bytes) {
    const wefti_space space = (wefti_space)roll(WEFTI_SPACE_SERVER);
    wefti_footprint need = {{{0}}};
    need.of[space][WEFTI_PERSISTENT] = bytes / GROWTHS;
    const wefti_disk_place disk = {.directory = "/tmp",
                                   .encrypted = roll(2) && wefti_gcm_is_built()};
    ASSERT_OK(wefti_rank_device_create(1, need, &disk, NULL, &f->device));
    for (int k = 2; k <= GROWTHS; k++) {
        need.of[space][WEFTI_PERSISTENT] = bytes * k / GROWTHS;
        ASSERT_OK(wefti_rank_device_reserve(f->device, need));
    }
    f->all =
        wefti_rank_device_home(f->device, wefti_location_of(space, WEFTI_PERSISTENT, 0), bytes);
    f->image = malloc((size_t)bytes);
    fill_random(f->image, bytes);
    ASSERT_OK(wefti_home_write(&f->all, 0, bytes, f->image));
}

static void assert_image(const fixture *f) {
    unsigned char *got = malloc((size_t)f->all.bytes);
    ASSERT_OK(wefti_home_read(&f->all, 0, f->all.bytes, got));
    assert_memory_equal(got, f->image, (size_t)f->all.bytes);
    free(got);
}

static void end(fixture *f) {
    assert_image(f);
    free(f->image);
    wefti_rank_device_destroy(f->device);
}

/* ---- ranges ---- */

static void try_range(fixture *f, unsigned char *bytes) {
    const int64_t at = roll(f->all.bytes + 1), most = f->all.bytes - at;
    const int64_t limit = most < WEFTI_HOME_BLOCK ? most : WEFTI_HOME_BLOCK;
    const int64_t count = roll(limit + 1);
    const wefti_access access = (wefti_access)(1 + roll(3));
    wefti_mapping m;
    fill_random(bytes, count);
    switch (roll(3)) {
    case 0:
        ASSERT_OK(wefti_home_read(&f->all, at, count, bytes));
        assert_memory_equal(bytes, f->image + at, (size_t)count);
        return;
    case 1:
        ASSERT_OK(wefti_home_write(&f->all, at, count, bytes));
        memcpy(f->image + at, bytes, (size_t)count);
        return;
    default:
        ASSERT_OK(wefti_home_map(&f->all, at, count, access, &m));
        if (!count) assert_null(m.data);
        if (count && access & WEFTI_ACCESS_READ)
            assert_memory_equal(m.data, f->image + at, (size_t)count);
        if (count && access & WEFTI_ACCESS_WRITE) {
            memcpy(m.data, bytes, (size_t)count);
            memcpy(f->image + at, bytes, (size_t)count);
        }
        ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    }
}

static void ranges_are_those_of_the_image(void **state) {
    (void)state;
    const char *cases = getenv("WEFT_CASES"), *first = getenv("WEFT_TEST_SEED");
    unsigned char *bytes = malloc(WEFTI_HOME_BLOCK);
    for (int64_t seed = 0; seed < (cases ? atoll(cases) : 20); seed++) {
        fixture f;
        state_of_rolls = (uint64_t)(seed + (first ? atoll(first) : 1));
        begin(&f, 4096 + roll(roll(4) ? 100000 : 5 << 20));
        for (int k = 0; k < ACTIONS; k++) try_range(&f, bytes);
        end(&f);
    }
    free(bytes);
}

/* ---- regions ---- */

static wefti_region part_of(const wefti_region *box, int rank) {
    wefti_region part = *box;
    for (int d = 0; d < rank; d++) {
        const int64_t skip = roll(box->size[d]);
        part.begin[d] += skip;
        part.size[d] = 1 + roll(box->size[d] - skip);
    }
    return part;
}

/* A box of a tensor lies in the home from some byte on. A part of it is copied to or from an array
 * of a region around the part. */
static void try_region(fixture *f, const weft_desc *whole) {
    const int64_t size = (int64_t)weft_dtype_bytes(whole->dtype);
    wefti_region all = {{0}, {0}};
    for (int d = 0; d < whole->rank; d++) all.size[d] = whole->shape[d];
    const wefti_region box = roll(3) ? part_of(&all, whole->rank) : all,
                       of = roll(2) ? part_of(&box, whole->rank) : box,
                       part = roll(2) ? part_of(&of, whole->rank) : of;
    wefti_home home = f->all;
    home.bytes = wefti_region_elems(&box, whole->rank) * size;
    home.offset = roll(f->all.bytes - home.bytes + 1) / size * size;
    const int64_t bytes = wefti_region_elems(&of, whole->rank) * size;
    unsigned char *array = malloc((size_t)bytes), *want = malloc((size_t)bytes);
    fill_random(array, bytes);
    memcpy(want, array, (size_t)bytes);
    if (roll(2)) {
        ASSERT_OK(wefti_home_read_region(&home, &box, whole, &part, &of, array));
        wefti_region_copy(&part, &box, f->image + home.offset, &of, want, whole->rank,
                          (size_t)size);
        assert_memory_equal(array, want, (size_t)bytes);
    } else {
        ASSERT_OK(wefti_home_write_region(&home, &box, whole, &part, &of, array));
        wefti_region_copy(&part, &of, array, &box, f->image + home.offset, whole->rank,
                          (size_t)size);
    }
    free(array);
    free(want);
}

static void regions_are_those_of_the_image(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_U8};
    const char *cases = getenv("WEFT_CASES"), *first = getenv("WEFT_TEST_SEED");
    for (int64_t seed = 0; seed < (cases ? atoll(cases) : 20); seed++) {
        fixture f;
        state_of_rolls = (uint64_t)(seed + (first ? atoll(first) : 1)) * 77;
        weft_desc whole = {dtypes[roll(4)], (int)roll(5), {0}};
        for (int d = 0; d < whole.rank; d++) whole.shape[d] = 1 + roll(12);
        begin(&f, weft_desc_bytes(&whole) + 64 + roll(4096));
        for (int k = 0; k < ACTIONS; k++) try_region(&f, &whole);
        end(&f);
    }
}

/* One row has more bytes than a block. */
static void rows_may_be_longer_than_a_block(void **state) {
    (void)state;
    fixture f;
    const weft_desc wide = {WEFT_F32, 2, {2, WEFTI_HOME_BLOCK / 4 + 1000}};
    state_of_rolls = 3;
    begin(&f, weft_desc_bytes(&wide) + 1000);
    for (int k = 0; k < 6; k++) try_region(&f, &wide);
    end(&f);
}

/* ---- failures ---- */

static void what_is_not_in_a_home_is_refused(void **state) {
    (void)state;
    fixture f;
    unsigned char byte[2];
    wefti_mapping m;
    begin(&f, 4096);
    const wefti_home nowhere = {.bytes = 10};
    ASSERT_STATUS(WEFT_E_BUG, wefti_home_read(&f.all, 4095, 2, byte));
    ASSERT_STATUS(WEFT_E_BUG, wefti_home_write(&f.all, -1, 1, byte));
    ASSERT_STATUS(WEFT_E_BUG, wefti_home_map(&f.all, INT64_MAX, 1, WEFTI_ACCESS_READ, &m));
    ASSERT_STATUS(WEFT_E_BUG, wefti_home_read(&nowhere, 0, 1, byte));
    ASSERT_OK(wefti_home_map(&nowhere, 0, 0, WEFTI_ACCESS_READ, &m));
    assert_null(m.data);
    end(&f);
    begin(&f, WEFTI_HOME_BLOCK + 4096);
    ASSERT_STATUS(WEFT_E_BUG,
                  wefti_home_map(&f.all, 0, WEFTI_HOME_BLOCK + 1, WEFTI_ACCESS_READ, &m));
    end(&f);
}

/* Work that failed on a mapping writes nothing back to a device that the host cannot reach. */
static void failed_work_writes_nothing_back(void **state) {
    (void)state;
    fixture f;
    wefti_mapping m;
    begin(&f, 4096);
    ASSERT_OK(wefti_home_map(&f.all, 100, 8, WEFTI_ACCESS_UPDATE, &m));
    if (m.copied) memset(m.data, 0, 8);
    ASSERT_STATUS(WEFT_E_IO, wefti_home_unmap(&m, WEFT_E_IO));
    end(&f);
}

static void each_allocation_may_fail(void **state) {
    (void)state;
    fixture f;
    const weft_desc whole = {WEFT_F32, 2, {64, 64}};
    const wefti_region box = {{0, 0}, {64, 64}}, part = {{3, 5}, {40, 20}};
    float *array = calloc(40 * 20, sizeof *array);
    begin(&f, GROWTHS * 64 * 64 * 4);
    const wefti_home first = {f.all.device, f.all.space, f.all.arena, 0,
                              64 * 64 * 4}; /* in one block */
    int64_t failed = 0;
    for (int64_t nth = 0;; nth++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        weft_status status = wefti_home_write_region(&first, &box, &whole, &part, &part, array);
        const bool due = wefti_fault_count(WEFTI_FAULT_ALLOC) > nth;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (!due) {
            ASSERT_OK(status);
            break;
        }
        ASSERT_STATUS(WEFT_E_NOMEM, status);
        assert_image(&f);
        failed++;
    }
    wefti_mapping m;
    ASSERT_OK(wefti_home_map(&f.all, 0, 4, WEFTI_ACCESS_READ, &m));
    assert_int_equal(failed > 0, m.copied); /* memory that the host reaches needs none */
    ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    wefti_region_copy(&part, &part, array, &box, f.image, 2, 4);
    free(array);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_those_of_the_image),
        cmocka_unit_test(regions_are_those_of_the_image),
        cmocka_unit_test(rows_may_be_longer_than_a_block),
        cmocka_unit_test(what_is_not_in_a_home_is_refused),
        cmocka_unit_test(failed_work_writes_nothing_back),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
