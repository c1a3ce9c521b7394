/* Conformance of ranks that are threads of this process. */
#ifndef CONFORMANCE_THREADS_H
#define CONFORMANCE_THREADS_H

#include <pthread.h>
#include <time.h>

#include "comm/world.h"
#include "conformance.h"

static void *run_rank(void *argument) {
    conformance *c = argument;
    (void)conformance_run(c);
    return NULL;
}

/* All ranks at once; their worlds are left. */
static void run_on_threads(conformance *ranks, int size) {
    pthread_t thread[CONFORMANCE_RANKS];
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &ranks[r]), 0);
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    const char *first = NULL;
    for (int r = 0; r < size; r++)
        if (ranks[r].message[0] && (!first || strstr(ranks[r].message, "wrong")))
            first = ranks[r].message;
    if (first) fail_msg("%s", first);
    print_message("%d ranks: %lld calls\n", size, (long long)ranks[0].calls);
    for (int r = 0; r < size; r++) weft_world_leave(ranks[r].world);
}

#endif
