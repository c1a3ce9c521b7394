/* Ranks in threads of this process, for tests of collectives on buffers. */
#ifndef WEFT_TESTS_COMM_RANKS_H
#define WEFT_TESTS_COMM_RANKS_H

#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "comm/collective/collective.h"

enum { MOST = 8 };

typedef struct ranks_test {
    weft_world *world[MOST];
    int size;
    void (*body)(struct ranks_test *t, int rank);
    char message[MOST][1024];
    weft_status status[MOST];
} ranks_test;

typedef struct rank_thread {
    ranks_test *t;
    int rank;
} rank_thread;

static inline void *run_rank(void *argument) {
    rank_thread *r = argument;
    r->t->body(r->t, r->rank);
    return NULL;
}

static inline void begin(ranks_test *t, int size) {
    wefti_comm *comm[MOST] = {NULL};
    *t = (ranks_test){.size = size};
    if (size > 1) assert_true(wefti_comm_threads(size, -1, comm) >= 0);
    for (int r = 0; r < size; r++)
        assert_true(wefti_world_create(comm[r], r, size, NULL, &t->world[r]) >= 0);
}
static inline void run(ranks_test *t, void (*body)(ranks_test *t, int rank)) {
    pthread_t thread[MOST];
    rank_thread argument[MOST];
    t->body = body;
    for (int r = 0; r < t->size; r++) {
        argument[r] = (rank_thread){t, r};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &argument[r]), 0);
    }
    for (int r = 0; r < t->size; r++) pthread_join(thread[r], NULL);
}
static inline void end(ranks_test *t) {
    for (int r = 0; r < t->size; r++) weft_world_leave(t->world[r]);
}

/* cmocka's assertions are for one thread: ranks keep their first failure instead. */
static inline bool good(ranks_test *t, int rank, weft_status status) {
    if (status >= 0) return true;
    if (t->status[rank] >= 0) {
        t->status[rank] = status;
        (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", weft_error_message());
        weft_world_fail(t->world[rank], "another rank's test failed");
    }
    return false;
}
static inline void all_good(const ranks_test *t) {
    for (int r = 0; r < t->size; r++)
        if (t->status[r] < 0) fail_msg("rank %d: %s", r, t->message[r]);
}

/* The outcome of a rank whose calls may fail. */
static inline void keep(ranks_test *t, int rank, weft_status status) {
    t->status[rank] = status;
    (void)snprintf(t->message[rank], sizeof t->message[rank], "%s", weft_error_message());
}

#define REFUSED(expression, text)                                                                  \
    do {                                                                                           \
        assert_true((expression) < 0);                                                             \
        if (!strstr(weft_error_message(), text)) fail_msg("%s", weft_error_message());             \
    } while (0)

#endif
