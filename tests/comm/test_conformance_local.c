/* Conformance of the communicator between threads, and of worlds of one, on 1 to 8 ranks.
 * (weft-test: threads) */
#include "support.h"

#include "conformance_threads.h"
#include "sanitized.h"

#if SANITIZED
enum { PROGRAMS = 15, LARGE = 1 << 20, SLOW = 1 };
#else
enum { PROGRAMS = 250, LARGE = 64 << 20, SLOW = 0 };
#endif

static void run_ranks(int size, int spin, uint64_t seed, int64_t bytes) {
    conformance ranks[CONFORMANCE_RANKS];
    wefti_comm *comm[CONFORMANCE_RANKS] = {NULL};
    if (size > 1) assert_true(wefti_comm_threads(size, spin, comm) >= 0);
    for (int r = 0; r < size; r++) {
        ranks[r] = (conformance){
            .seed = seed,
            .programs = guarded_device() ? PROGRAMS / 10 : PROGRAMS, /* each buffer is a mapping */
            .bytes = bytes,
            .brief = SLOW || guarded_device() || size % 2 == 1};
        assert_true(wefti_world_create(comm[r], r, size, NULL, &ranks[r].world) >= 0);
    }
    run_on_threads(ranks, size);
}

static void all_sizes_of_worlds(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    for (int size = 1; size <= CONFORMANCE_RANKS; size++)
        run_ranks(size, size % 3 ? -1 : 20, seed + (uint64_t)size, size == 2 ? LARGE : LARGE / 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_sizes_of_worlds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
