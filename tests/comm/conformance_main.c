/* Conformance of the communicator that this process finds itself on:
 *
 *     weft launch -n 4 -- weft-conformance [programs [bytes]]
 *
 * Under any launcher that weft knows, with WEFT_COMM=ucx or the like to choose the communicator;
 * alone a world of one. WEFT_SEED repeats a run. Rank 0 prints one line; exit code 1 after a
 * failure, whose rank says what was wrong. */
#include <time.h>

#include "conformance.h"

static int failed(const char *message) {
    (void)fprintf(stderr, "weft-conformance: %s\n", message);
    return 1;
}

int main(int argc, char **argv) {
    conformance c = {.programs = argc > 1 ? atoi(argv[1]) : 200,
                     .bytes = argc > 2 ? atoll(argv[2]) : 64 << 20};
    const char *given = getenv("WEFT_SEED");
    c.seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    if (weft_world_join(NULL, &c.world) < 0) return failed(weft_error_message());
    weft_status status = weft_broadcast(c.world, NULL, &c.seed, 1, WEFT_I64, 0);
    bool ok = status >= 0 ? conformance_run(&c) : false;
    if (!ok) (void)failed(status < 0 ? weft_error_message() : c.message);
    if (ok && weft_world_rank(c.world) == 0)
        printf("%d ranks, %s: %lld calls as they should be (seed %llu)\n", weft_world_size(c.world),
               weft_world_communicator(c.world), (long long)c.calls, (unsigned long long)c.seed);
    weft_world_leave(c.world);
    return !ok;
}
