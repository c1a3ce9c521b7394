/* Conformance of the communicator that this process finds itself on:
 *
 *     weft launch -n 4 -- weft-conformance [programs [bytes]]
 *     weft-conformance programs bytes 4
 *
 * Under any launcher that weft knows, with WEFT_COMM=ucx or the like to choose the communicator;
 * alone a world of one. With a third number that many ranks are threads of this process.
 * WEFT_TEST_SEED repeats a run. Rank 0 prints one line; its digest, of all bits that all ranks got,
 * is the same for all communicators that ran the same. Exit code 1 after a failure, whose rank says
 * what was wrong.
 */
#include <pthread.h>
#include <time.h>

#include "comm/shm/shm.h"
#include "comm/world.h"
#include "conformance.h"

static int failed(const char *message) {
    (void)fprintf(stderr, "weft-conformance: %s\n", message);
    return 1;
}

/* On the world that c has; which is left. */
static void *run_rank(void *argument) {
    conformance *c = argument;
    uint64_t all = 0;
    weft_status status = weft_broadcast(c->world, NULL, &c->seed, 1, WEFT_I64, 0);
    bool ok = status >= 0 ? conformance_run(c) : false;
    if (ok) {
        status = weft_all_reduce(c->world, NULL, &c->digest, &all, 1, WEFT_I64, WEFT_REDUCE_SUM);
        ok = status >= 0;
    }
    if (!ok) (void)failed(status < 0 ? weft_error_message() : c->message);
    if (ok && weft_world_rank(c->world) == 0)
        printf("%d ranks, %s: %lld calls good (seed %llu, digest %016llx)\n",
               weft_world_size(c->world), weft_world_communicator(c->world), (long long)c->calls,
               (unsigned long long)c->seed, (unsigned long long)all);
    weft_world_leave(c->world);
    return ok ? c : NULL;
}

static int run_threads(const conformance *like, int size) {
    wefti_comm *comm[CONFORMANCE_RANKS];
    pthread_t thread[CONFORMANCE_RANKS];
    conformance ranks[CONFORMANCE_RANKS];
    void *end;
    int bad = 0;
    if (size < 2 || size > CONFORMANCE_RANKS || wefti_comm_threads(size, -1, comm) < 0)
        return failed("threads: from 2 to 8");
    for (int r = 0; r < size; r++) {
        ranks[r] = *like;
        if (wefti_world_create(comm[r], r, size, NULL, &ranks[r].world) < 0)
            return failed(weft_error_message());
    }
    for (int r = 0; r < size; r++)
        if (pthread_create(&thread[r], NULL, run_rank, &ranks[r]) != 0) abort();
    for (int r = 0; r < size; r++) {
        pthread_join(thread[r], &end);
        bad |= !end;
    }
    return bad;
}

int main(int argc, char **argv) {
    conformance c = {.programs = argc > 1 ? atoi(argv[1]) : 200,
                     .bytes = argc > 2 ? atoll(argv[2]) : 64 << 20};
    const char *given = getenv("WEFT_TEST_SEED");
    c.seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    if (argc > 3) return run_threads(&c, atoi(argv[3]));
    if (weft_world_join(NULL, &c.world) < 0) return failed(weft_error_message());
    return !run_rank(&c);
}
