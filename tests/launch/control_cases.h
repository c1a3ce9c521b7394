/* Schedulers and members for tests: as threads of this process, or as processes. */
#ifndef CONTROL_CASES_H
#define CONTROL_CASES_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/member.h"
#include "launch/scheduler/state.h"

static inline wefti_secret test_secret(void) {
    wefti_secret s;
    memset(&s, 42, sizeof s);
    return s;
}

static inline uint64_t test_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Memory of this process, KiB. */
static inline long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2) abort();
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Seconds. A death is seen because a connection closes, long before a heartbeat is missed; a stop
 * is seen because heartbeats are. The limits tell the two apart, and leave a busy machine its
 * pauses. */
enum { LONG_HEARTBEAT = 30, DEATH_SEEN = 10, SHORT_HEARTBEAT = 3, STOP_SEEN = 20 };

/* The reason that a failing member gives. */
#define TEST_REASON "/scratch: no space"

/* Whether what follows goes over TLS; set before threads begin. */
static bool test_over_tls;
static inline int begin_tls(void **state) {
    (void)state;
    test_over_tls = true;
    return 0;
}
static inline int end_tls(void **state) {
    (void)state;
    test_over_tls = false;
    return 0;
}
/* A test once more, over TLS. */
#ifdef WEFT_HAVE_OPENSSL
#define TEST_OVER_TLS(test)                                                                        \
    { #test " over TLS", test, begin_tls, end_tls, NULL }
#else
static inline void no_tls(void **state) {
    (void)state;
    printf("SKIP: this build has no OpenSSL, and so no TLS\n");
}
#define TEST_OVER_TLS(test)                                                                        \
    { #test " over TLS", no_tls, NULL, NULL, NULL }
#endif

static inline wefti_scheduler_options test_scheduler(int32_t size) {
    return (wefti_scheduler_options){.size = size,
                                     .secret = test_secret(),
                                     .tls = test_over_tls,
                                     .hosted_by = -1,
                                     .join_seconds = 600,
                                     .heartbeat_seconds = LONG_HEARTBEAT,
                                     .wait_seconds = 60};
}

static inline wefti_member_options test_member(const char *scheduler) {
    return (wefti_member_options){.scheduler = scheduler,
                                  .secret = test_secret(),
                                  .tls = test_over_tls,
                                  .rank = -1,
                                  .size = -1,
                                  .join_seconds = 600,
                                  .leave_seconds = 5};
}

/* One member in a thread: joins after a delay, exchanges cards, leaves. */
typedef struct test_lane {
    wefti_member_options options;
    int delay_us, swaps;
    char node[32], host[32], text[1024];
    weft_status status;
    int32_t rank, size;
    int32_t hosts[64];
    uint64_t generation;
    bool gives_up; /* once it is in */
    bool wrong;    /* cards */
    int failed;    /* the rank to blame, and the text */
    pthread_t thread;
} test_lane;

static inline uint32_t test_card(int32_t rank, int number, int at) {
    return (uint32_t)rank * 1000003u + (uint32_t)number * 101u + (uint32_t)at;
}

/* Cards of 4 to 400 bytes. */
static inline weft_status test_swap(wefti_member *m, int number, bool *wrong) {
    int32_t size = wefti_member_size(m), rank = wefti_member_rank(m);
    int words = 1 + number % 100;
    uint32_t *mine = malloc((size_t)words * 4), *all = malloc((size_t)(words * size) * 4);
    if (!mine || !all) abort();
    for (int i = 0; i < words; i++) mine[i] = test_card(rank, number, i);
    weft_status status = wefti_member_allgather(m, mine, (size_t)words * 4, all);
    for (int32_t r = 0; r < size && status >= 0; r++)
        for (int i = 0; i < words; i++)
            if (all[r * words + i] != test_card(r, number, i)) *wrong = true;
    free(mine);
    free(all);
    return status;
}

static inline void *test_lane_run(void *context) {
    test_lane *l = context;
    usleep((useconds_t)l->delay_us);
    wefti_member *m = NULL;
    l->options.node = l->node;
    l->options.host = l->host[0] ? l->host : "here";
    l->status = wefti_member_join(&l->options, &m);
    if (l->status >= 0) {
        l->rank = wefti_member_rank(m);
        l->size = wefti_member_size(m);
        l->generation = wefti_member_generation(m);
        for (int32_t r = 0; r < l->size && r < 64; r++) l->hosts[r] = wefti_member_hosts(m)[r];
        for (int i = 0; i < l->swaps && l->status >= 0; i++) l->status = test_swap(m, i, &l->wrong);
        if (l->gives_up) wefti_member_fail(m, WEFT_E_PEER, WEFT_RANK_OWN, TEST_REASON);
    }
    l->failed = weft_error_rank();
    if (l->status < 0) snprintf(l->text, sizeof l->text, "%s", weft_error_message());
    if (m) (void)wefti_member_close(m, NULL);
    return NULL;
}

static inline void test_lanes_start(test_lane *lanes, int count) {
    for (int i = 0; i < count; i++)
        if (pthread_create(&lanes[i].thread, NULL, test_lane_run, &lanes[i]) != 0) abort();
}
static inline void test_lanes_join(test_lane *lanes, int count) {
    for (int i = 0; i < count; i++) pthread_join(lanes[i].thread, NULL);
}

/* Returns once the scheduler is in such a state; fails after 20 s. */
static inline void test_wait_until(wefti_scheduler *s, bool (*holds)(const wefti_scheduler *s)) {
    bool done = false;
    for (int i = 0; i < 20000 && !done; i++) {
        pthread_mutex_lock(&s->lock);
        done = holds(s);
        pthread_mutex_unlock(&s->lock);
        if (!done) usleep(1000);
    }
    assert_true(done);
}

#endif
