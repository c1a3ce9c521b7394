/* Worlds for tests: one thread for each rank, which acts as a process. Each has its own world over
 * the communicator between threads. A rank's thread cannot fail the test: it returns its status,
 * which the test checks afterwards. */
#ifndef WEFT_TESTS_WORLD_FIXTURE_H
#define WEFT_TESTS_WORLD_FIXTURE_H

#include <pthread.h>

#include "comm/world.h"

enum { MOST_RANKS = 16 };

/* For use in a rank's function. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        weft_status status_ = (expr);                                                              \
        if (status_ < 0) return status_;                                                           \
    } while (0)

typedef weft_status rank_work(void *context, weft_world *world);

typedef struct rank_of_world {
    weft_world *world;
    rank_work *work;
    void *context;
    pthread_t thread;
    weft_status status;
    char message[2000];
} rank_of_world;

static inline void *rank_main(void *argument) {
    rank_of_world *r = argument;
    r->status = r->work(r->context, r->world);
    if (r->status < 0) (void)snprintf(r->message, sizeof r->message, "%s", weft_error_message());
    return NULL;
}

/* All ranks do `work`, rank r with contexts + r * bytes. */
static inline void run_world(int size, rank_work *work, void *contexts, size_t bytes,
                             rank_of_world *ranks) {
    wefti_comm *comms[MOST_RANKS];
    ASSERT_OK(wefti_comm_threads(size, -1, comms));
    for (int r = 0; r < size; r++) {
        ranks[r] = (rank_of_world){.work = work, .context = (char *)contexts + (size_t)r * bytes};
        ASSERT_OK(wefti_world_create(comms[r], r, size, NULL, &ranks[r].world));
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    for (int r = 0; r < size; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < size; r++) weft_world_leave(ranks[r].world);
}

static inline void assert_all_ok(const rank_of_world *ranks, int size, const char *what) {
    for (int r = 0; r < size; r++)
        if (ranks[r].status < 0) fail_msg("%s, rank %d: %s", what, r, ranks[r].message);
}

static inline void assert_rank_fails(const rank_of_world *r, int rank, weft_status status,
                                     const char *part) {
    if (r->status != status || !has_facts(r->message, part))
        fail_msg("rank %d: status %d, not %d, or \"%s\" does not say \"%s\"", rank, r->status,
                 status, r->message, part);
}

#endif
