/* Conformance of the communicator over messages, on 1 to 8 ranks of one process that send each
 * other messages with random delays. (weft-test: threads) */
#include "support.h"

#include "comm/p2p/p2p.h"
#include "conformance_threads.h"
#include "rounds_mesh.h"
#include "sanitized.h"

#if SANITIZED
enum { PROGRAMS = 4, LARGE = 1 << 20 };
#else
enum { PROGRAMS = 40, LARGE = 16 << 20 };
#endif

static void run_ranks(int size, uint64_t seed, int64_t bytes) {
    static mesh m;
    conformance ranks[CONFORMANCE_RANKS];
    mesh_begin(&m, size, seed, size % 3, size % 2 ? 0 : 4096);
    for (int r = 0; r < size; r++) {
        wefti_comm *comm;
        weft_transport transport = mesh_transport(&m, r, size % 2);
        assert_true(wefti_comm_p2p(&transport, NULL, &comm) >= 0);
        ranks[r] =
            (conformance){.seed = seed, .programs = PROGRAMS, .bytes = bytes, .brief = size != 4};
        assert_true(wefti_world_create(comm, r, size, NULL, &ranks[r].world) >= 0);
    }
    run_on_threads(ranks, size);
    if (m.complaint[0]) fail_msg("%s", m.complaint);
    mesh_end(&m);
}

static void all_sizes_of_worlds(void **state) {
    (void)state;
    uint64_t seed = test_new_seed();
    for (int size = 1; size <= CONFORMANCE_RANKS; size++)
        run_ranks(size, seed + (uint64_t)size, size == 3 ? LARGE : LARGE / 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_sizes_of_worlds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
