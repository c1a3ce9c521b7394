/* Measures without a world: the ranks are threads of this process. */
#include <pthread.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/pool.h"
#include "base/thread.h"
#include "measure/comm.h"
#include "session/party.h"

typedef struct bench_thread {
    pthread_t thread;
    weft_world *world;
    int rank, size;
    wefti_bench_work *work;
    void *context;
    wefti_failure failure;
} bench_thread;

static void *run_rank(void *argument) {
    bench_thread *t = argument;
    (void)wefti_thread_take_turns(t->rank, t->size); /* as devices of a session do */
    weft_status status = t->work(t->world, t->context);
    if (status >= 0) return NULL;
    wefti_failure_keep(status, &t->failure);
    weft_world_fail(t->world, NULL);
    return NULL;
}

static weft_status make_worlds(bench_thread *threads, int size) {
    wefti_comm *comm[WEFTI_BENCH_THREADS] = {NULL};
    weft_status status = WEFT_OK;
    if (size > 1) WEFT_TRY(wefti_comm_threads(size, -1, comm));
    for (int r = 0; r < size; r++) {
        if (status >= 0)
            status = wefti_world_create(comm[r], r, size, NULL, &threads[r].world);
        else
            wefti_comm_destroy(comm[r]);
    }
    return status;
}

static weft_status run_ranks(bench_thread *threads, int size) {
    int started = 0;
    weft_status status = WEFT_OK;
    while (started < size &&
           wefti_thread_start(&threads[started].thread, run_rank, &threads[started]) == 0)
        started++;
    if (started < size) {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no thread for rank %d", started);
        weft_world_fail(threads[started].world, "not all threads could be started");
    }
    for (int r = 0; r < started; r++) pthread_join(threads[r].thread, NULL);
    /* Report the rank that failed first, not the ranks that only saw its failure. */
    for (int r = 0, found = 0; r < started && status >= 0 && !found; r++)
        if (threads[r].failure.status < 0 && threads[r].failure.status != WEFT_E_PEER) {
            status = wefti_failure_tell(&threads[r].failure);
            found = 1;
        }
    if (status >= 0 && threads[0].failure.status < 0)
        status = wefti_failure_tell(&threads[0].failure);
    return status;
}

weft_status wefti_bench_threads(int size, wefti_bench_work *work, void *contexts, size_t bytes) {
    WEFT_REQUIRE(size >= 1 && size <= WEFTI_BENCH_THREADS, WEFT_E_ARG,
                 "%d threads; possible are 1 to %d", size, WEFTI_BENCH_THREADS);
    bench_thread *threads;
    WEFT_NEW_ARRAY(threads, bench_thread, size);
    for (int r = 0; r < size; r++) {
        threads[r].rank = r;
        threads[r].size = size;
        threads[r].work = work;
        threads[r].context = (char *)contexts + (size_t)r * bytes;
    }
    weft_status status = make_worlds(threads, size);
    if (status >= 0) status = run_ranks(threads, size);
    for (int r = 0; r < size; r++) weft_world_leave(threads[r].world);
    wefti_free(threads);
    return status;
}

/* ---- collectives ---- */

typedef struct collective_rank {
    const weft_bench_options *options;
    weft_bench *bench;
} collective_rank;

static weft_status measure_rank(weft_world *world, void *context) {
    collective_rank *r = context;
    return wefti_bench_world(world, r->options, &r->bench);
}

static weft_status bench_threads(const weft_bench_options *options, weft_bench **out) {
    const int cores = wefti_cores();
    const int size = options->threads ? options->threads : cores < 2 ? 2 : cores > 8 ? 8 : cores;
    collective_rank ranks[WEFTI_BENCH_THREADS] = {{NULL, NULL}};
    for (int r = 0; r < WEFTI_BENCH_THREADS; r++) ranks[r].options = options;
    weft_status status = wefti_bench_threads(size, measure_rank, ranks, sizeof *ranks);
    if (status >= 0) {
        *out = ranks[0].bench;
        ranks[0].bench = NULL;
    }
    for (int r = 0; r < WEFTI_BENCH_THREADS; r++) weft_bench_free(ranks[r].bench);
    return status;
}

static void set_defaults(weft_bench_options *o) {
    if (!o->min_bytes) o->min_bytes = 1024;
    if (!o->max_bytes) o->max_bytes = o->min_bytes > 64 << 20 ? o->min_bytes : 64 << 20;
    if (!(o->seconds > 0)) o->seconds = 0.05;
}

weft_status weft_bench_comm(weft_world *world, const weft_bench_options *options,
                            weft_bench **out) {
    weft_bench_options own = weft_bench_defaults();
    wefti_job_fact same = {
        .name = "bench", .verb = "measures", .advice = "all ranks measure alike"};
    wefti_party party = {0};
    weft_status status = out ? wefti_struct_take("weft_bench_options", options, &own)
                             : WEFT_RAISE(WEFT_E_ARG, "there is no place for what is measured");
    set_defaults(&own);
    if (!world) return status < 0 ? status : bench_threads(&own, out);
    (void)snprintf(same.text, sizeof same.text, "%.40s of %lld to %lld bytes for %g s",
                   own.collective ? own.collective : "all", (long long)own.min_bytes,
                   (long long)own.max_bytes, own.seconds);
    WEFT_TRY(wefti_party_join(&party, world));
    WEFT_TRY(wefti_party_same(&party, status, &same, 1));
    return wefti_party_tell(&party, wefti_bench_world(world, &own, out));
}
