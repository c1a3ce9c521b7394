/* Collectives between two devices of one process, or between processes, from 1 KiB to 64 MiB,
 * beside the limit that copying memory sets.
 *
 *   bench/comm [rounds [bytes]]     40 rounds by default; only this size
 *   bench/comm --processes N [--plain] [rounds [bytes]]     see comm_processes.h
 *
 * Two threads run on cores of their own, like devices. A line shows, for one size, the time of
 * three calls: an all-reduce (sum of f32) with source and destination apart, as in MPI_Allreduce;
 * one in place; and an all-gather of two halves. GB/s are the bytes of the whole tensor divided by
 * the time. The last column is the share of the limit.
 *
 * The limit. An all-reduce of n bytes between two devices reads 2 n and writes 2 n, by both cores
 * together. Two threads that copy n bytes each do the same (by memcpy or the copy of comm/copy.h,
 * whichever is faster, on the same arrays each time). The devices must also meet once: neither can
 * end before the other has begun. So the limit is a loop of a copy, a flag for the other thread and
 * a wait for the other's flag. An all-gather also reads n and writes n on each core. In place, an
 * all-reduce moves as many bytes but touches half the memory, and may beat the limit.
 *
 * Figures are the fastest of the rounds; `copy` is for one thread and for two. The lines
 * "all_reduce BYTES SECONDS" at the end are for bench/peers/collectives.py. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/copy.h"
#include "comm_processes.h"

/* Warm-up runs, so that the caches hold this benchmark's data. */
enum { DEVICES = 2, SETTLE = 6 };
typedef enum work { COPY_ONE, COPY_TWO, COPY_PAST, ALL_REDUCE, IN_PLACE, ALL_GATHER, WORKS } work;

static wefti_comm *comm[DEVICES];
static pthread_barrier_t barrier;
static double fastest[WORKS];
static int64_t bytes;
static int repeats, rounds = 40;
static struct { _Alignas(128) _Atomic uint64_t turn; } here[DEVICES];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, weft_error_message());
    exit(1);
}

/* The transfer of all `elements`, or of halves that all gather. */
static wefti_endpoint *bind(int32_t me, bool gather) {
    int32_t ranks[DEVICES] = {0, 1};
    wefti_region have[DEVICES] = {0}, want[DEVICES] = {0};
    for (int32_t m = 0; m < DEVICES; m++) {
        have[m].size[0] = want[m].size[0] = bytes / 4;
        if (gather) wefti_part(bytes / 4, 1, DEVICES, m, &have[m].begin[0], &have[m].size[0]);
    }
    wefti_transfer t = {.kind = gather ? WEFTI_TRANSFER_ALL_GATHER : WEFTI_TRANSFER_ALL_REDUCE,
                        .reduction = gather ? WEFTI_REDUCE_NONE : WEFTI_REDUCE_SUM,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = DEVICES,
                        .me = me,
                        .ranks = ranks,
                        .have = have,
                        .want = want,
                        .name = "data"};
    wefti_endpoint *endpoint;
    if (comm[me]->engine->bind(comm[me], &t, &endpoint) < 0) fail("bind");
    return endpoint;
}

/* A barrier of two threads: a flag in each direction, each on a cache line of its own. It spins
 * without the back-off of threads that share a core, which does not belong to the limit. */
static void meet_other(int32_t me) {
    uint64_t turn = atomic_load_explicit(&here[me].turn, memory_order_relaxed) + 1;
    atomic_store_explicit(&here[me].turn, turn, memory_order_release);
    while (atomic_load_explicit(&here[!me].turn, memory_order_acquire) < turn) {
    }
}

static void do_work(work w, int32_t times, int32_t me, wefti_endpoint *const *endpoint, float *a,
                    float *b) {
    weft_status status = WEFT_OK;
    for (int i = 0; i < times && status >= 0; i++) {
        switch (w) {
        case COPY_ONE:
            if (me == 1) break;
            memcpy(b, a, (size_t)bytes);
            __asm__ volatile("" ::: "memory");
            break;
        case COPY_TWO:
            memcpy(b, a, (size_t)bytes);
            __asm__ volatile("" ::: "memory");
            meet_other(me);
            break;
        case COPY_PAST: /* the caches */
            wefti_copy(b, a, (size_t)bytes, wefti_copy_streamed(bytes));
            __asm__ volatile("" ::: "memory");
            meet_other(me);
            break;
        case ALL_REDUCE:
            status = wefti_comm_run(endpoint[0], a, b);
            break;
        case IN_PLACE:
            status = wefti_comm_run(endpoint[0], b, b);
            break;
        default:
            status = wefti_comm_run(endpoint[1], a, b);
        }
    }
    if (status < 0) fail("transfer");
}

/* Memory like the arenas of devices. Heaps of two threads are 2^27 bytes apart, and some processors
 * mistake such addresses for each other when they predict the way of the first-level cache. A gap
 * follows, because processors prefetch beyond the data. */
enum { GAP = 4096 };
static float *map_array(void) {
    float *p =
        mmap(NULL, (size_t)bytes + GAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("memory");
    return memset(p, 0, (size_t)bytes);
}

static void *device(void *argument) {
    int32_t me = *(int32_t *)argument;
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) == 0)
        for (size_t core = 0, seen = 0; core < CPU_SETSIZE; core++)
            if (CPU_ISSET(core, &all) && seen++ == (size_t)me) CPU_SET(core, &one);
    if (CPU_COUNT(&one) == 1) (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    float *a = map_array(), *b = map_array();
    wefti_endpoint *endpoint[2] = {bind(me, false), bind(me, true)};
    for (int round = 0; round < rounds; round++) {
        for (work w = 0; w < WORKS; w++) {
            do_work(w, SETTLE, me, endpoint, a, b);
            pthread_barrier_wait(&barrier);
            double start = wefti_now_s();
            do_work(w, repeats, me, endpoint, a, b);
            pthread_barrier_wait(&barrier);
            double seconds = (wefti_now_s() - start) / repeats;
            if (me == 0 && seconds < fastest[w]) fastest[w] = seconds;
        }
    }
    for (int i = 0; i < 2; i++) comm[me]->engine->unbind(endpoint[i]);
    munmap(a, (size_t)bytes + GAP);
    munmap(b, (size_t)bytes + GAP);
    return NULL;
}

static void measure(int64_t size) {
    bytes = size;
    repeats = (int)((16 << 20) / (size + 16384)) + 1;
    for (work w = 0; w < WORKS; w++) fastest[w] = 1e9;
    pthread_t thread[DEVICES];
    int32_t rank[DEVICES] = {0, 1};
    for (int r = 0; r < DEVICES; r++)
        if (pthread_create(&thread[r], NULL, device, &rank[r]) != 0) fail("thread");
    for (int r = 0; r < DEVICES; r++) pthread_join(thread[r], NULL);
    if (fastest[COPY_PAST] < fastest[COPY_TWO]) fastest[COPY_TWO] = fastest[COPY_PAST];
    double limit = fastest[COPY_TWO], n = (double)size;
    printf("%9lld", (long long)size);
    for (work w = 0; w < WORKS; w++) {
        if (w == COPY_PAST) continue;
        printf("  %9.3f us %6.2f GB/s", fastest[w] * 1e6, n / fastest[w] * 1e-9);
        if (w > COPY_PAST) printf(" %3.0f %%", 100 * limit / fastest[w]);
    }
    printf("\n");
    fflush(stdout);
}

/* The count in argument `at`, if present. Ends the program if it is not a count. */
static int64_t count_at(int argc, char **argv, int at, int64_t otherwise) {
    if (at >= argc) return otherwise;
    char *end;
    long long count = strtoll(argv[at], &end, 10);
    if (end != argv[at] && *end == 0 && count > 0) return count;
    fprintf(stderr,
            "bench/comm: '%s' is no count; [ROUNDS [BYTES]] or --processes N [--plain] [ROUNDS "
            "[BYTES]]\n",
            argv[at]);
    exit(2);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--processes") == 0) {
        bool plain = argc > 3 && strcmp(argv[3], "--plain") == 0;
        return measure_processes((int)count_at(argc, argv, 2, 2), plain,
                                 (int)count_at(argc, argv, 3 + plain, 40),
                                 count_at(argc, argv, 4 + plain, 0));
    }
    rounds = (int)count_at(argc, argv, 1, rounds);
    int64_t only = count_at(argc, argv, 2, 0);
    if (wefti_comm_threads(DEVICES, -1, comm) < 0) fail("communicator");
    pthread_barrier_init(&barrier, NULL, DEVICES);
    static double seconds[64][2];
    int lines = 0;
    printf("    bytes            copy, one thread        copy and a meeting                  "
           "all-reduce                    in place                  all-gather\n");
    int64_t first = only ? only : 1024, last = only ? only : 64 << 20;
    for (int64_t size = first; size <= last; size *= 4, lines++) {
        measure(size);
        seconds[lines][0] = fastest[ALL_REDUCE];
        seconds[lines][1] = fastest[IN_PLACE];
    }
    for (int i = 0; i < lines; i++)
        printf("all_reduce %lld %.9f\nin_place %lld %.9f\n", (long long)(first << 2 * i),
               seconds[i][0], (long long)(first << 2 * i), seconds[i][1]);
    for (int r = 0; r < DEVICES; r++) comm[r]->engine->destroy(comm[r]);
    pthread_barrier_destroy(&barrier);
    return 0;
}
