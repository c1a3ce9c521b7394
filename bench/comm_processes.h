/* bench/comm --processes N: the same collectives between N processes of this host, from 8 bytes to
 * 64 MiB. The memory is mapped between them by the communicator, or, with `--plain`, any other.
 * Each process has a core of its own if there are enough. The lines "NAME BYTES SECONDS" are for
 * bench/peers/collectives.py. They are timed as in bench/peers/mpi_allreduce.c. */
#ifndef BENCH_COMM_PROCESSES_H
#define BENCH_COMM_PROCESSES_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"

enum { MOST_PROCESSES = 64, CARD_BYTES = 4096 };

typedef struct bench_meeting {
    int32_t size;
    _Atomic uint32_t arrived, all;
    unsigned char card[MOST_PROCESSES][CARD_BYTES];
} bench_meeting;

typedef struct bench_rank {
    bench_meeting *meeting;
    int32_t rank;
    bool plain;
    uint32_t meetings;
    wefti_comm *comm;
} bench_rank;

static void processes_fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, weft_error_message());
    exit(1);
}

static void meet(bench_rank *r) {
    uint32_t all = ++r->meetings * (uint32_t)r->meeting->size;
    atomic_fetch_add(&r->meeting->arrived, 1);
    while (atomic_load(&r->meeting->arrived) < all) sched_yield();
}

static weft_status bench_swap(void *context, const void *card, size_t card_bytes, void *cards) {
    bench_rank *r = context;
    if (card_bytes > CARD_BYTES) exit(1);
    memcpy(r->meeting->card[r->rank], card, card_bytes);
    meet(r);
    for (int32_t i = 0; i < r->meeting->size; i++)
        memcpy((char *)cards + (size_t)i * card_bytes, r->meeting->card[i], card_bytes);
    meet(r);
    return WEFT_OK;
}

static wefti_endpoint *bind_process(const bench_rank *r, int64_t elements, bool gather) {
    int32_t ranks[MOST_PROCESSES], size = r->meeting->size;
    wefti_region have[MOST_PROCESSES] = {0}, want[MOST_PROCESSES] = {0};
    for (int32_t m = 0; m < size; m++) {
        ranks[m] = m;
        have[m].size[0] = want[m].size[0] = elements;
        if (gather) wefti_part(elements, 1, size, m, &have[m].begin[0], &have[m].size[0]);
    }
    wefti_transfer t = {.kind = gather ? WEFTI_TRANSFER_ALL_GATHER : WEFTI_TRANSFER_ALL_REDUCE,
                        .reduction = gather ? WEFTI_REDUCE_NONE : WEFTI_REDUCE_SUM,
                        .dtype = WEFT_F32,
                        .rank = 1,
                        .members = size,
                        .me = r->rank,
                        .ranks = ranks,
                        .have = have,
                        .want = want,
                        .name = "data"};
    wefti_endpoint *endpoint;
    if (r->comm->engine->bind(r->comm, &t, &endpoint) < 0) processes_fail("bind");
    return endpoint;
}

static void *bench_memory(const bench_rank *r, size_t size) {
    void *p = NULL;
    if (r->plain)
        p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    else if (r->comm->engine->map(r->comm, NULL, size, &p) < 0)
        processes_fail("map");
    if (!p) processes_fail("memory");
    memset(p, 0, size);
    return p;
}

static void measure_size(bench_rank *r, int64_t size, int times) {
    static const char *const names[] = {"all_reduce", "in_place", "all_gather"};
    int turns = (int)((16 << 20) / (size + 16384)) + 1;
    void *a = bench_memory(r, (size_t)size), *b = bench_memory(r, (size_t)size);
    wefti_endpoint *endpoint[2] = {bind_process(r, size / 4, false),
                                   bind_process(r, size / 4, true)};
    for (int w = 0; w < 3; w++) {
        double best = 1e9;
        if (w == 2 && size / 4 % r->meeting->size != 0) continue;
        for (int round = 0; round < times; round++) {
            weft_status status = WEFT_OK;
            meet(r);
            double start = wefti_now_s();
            for (int i = 0; i < turns && status >= 0; i++)
                status = wefti_comm_run(endpoint[w / 2], w == 1 ? b : a, b);
            double seconds = (wefti_now_s() - start) / turns;
            if (status < 0) processes_fail(names[w]);
            if (seconds < best) best = seconds;
        }
        if (r->rank == 0) printf("%s %lld %.9f\n", names[w], (long long)size, best);
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++) r->comm->engine->unbind(endpoint[i]);
    if (r->plain) {
        free(a);
        free(b);
    } else {
        r->comm->engine->unmap(r->comm, NULL, a, (size_t)size);
        r->comm->engine->unmap(r->comm, NULL, b, (size_t)size);
    }
}

static void choose_core(int32_t rank, int32_t size) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < size) return;
    for (size_t core = 0, seen = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && seen++ == (size_t)rank) CPU_SET(core, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static int be_process(bench_meeting *meeting, int32_t rank, bool plain, int times, int64_t only) {
    static const int64_t sizes[] = {8,     64,     512,     1024,    4096,     16384,
                                    65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
    static const int32_t hosts[MOST_PROCESSES];
    bench_rank r = {.meeting = meeting, .rank = rank, .plain = plain};
    wefti_exchange exchange = {&r, bench_swap};
    choose_core(rank, meeting->size);
    if (wefti_comm_host(rank, meeting->size, hosts, &exchange, &r.comm) < 0)
        processes_fail("communicator");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !only; i++)
        measure_size(&r, sizes[i], times);
    if (only) measure_size(&r, only, times);
    wefti_comm_destroy(r.comm);
    return 0;
}

static int measure_processes(int32_t size, bool plain, int times, int64_t only) {
    bench_meeting *meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED || size < 1 || size > MOST_PROCESSES) return 1;
    meeting->size = size;
    for (int32_t rank = 1; rank < size; rank++)
        if (fork() == 0) exit(be_process(meeting, rank, plain, times, only));
    int failed = be_process(meeting, 0, plain, times, only), how;
    while (wait(&how) > 0) failed |= how;
    return failed != 0;
}

#endif
