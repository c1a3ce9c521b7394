/* Thread pool: workers spin for a short while, then sleep on a condition variable. */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/cgroup.h"
#include "base/memory.h"
#include "base/thread.h"
#include "base/tuning.h"

enum { SPINS = 4000 }; /* about 20-50 microseconds of pause instructions before sleeping */

typedef struct worker {
    wefti_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct wefti_pool {
    int threads;
    worker *workers; /* threads - 1 */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    _Atomic uint64_t generation; /* incremented for each loop */
    _Atomic bool stop;
    _Atomic int busy; /* workers still in the current loop */
    _Atomic int64_t next;
    int64_t tasks;
    wefti_task *fn;
    void *context;
};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static void drain(wefti_pool *pool, int thread) {
    int64_t task;
    while ((task = atomic_fetch_add(&pool->next, 1)) < pool->tasks)
        pool->fn(pool->context, task, thread);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    wefti_pool *pool = self->pool;
    uint64_t seen = 0;
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen &&
               !atomic_load(&pool->stop) && spins < SPINS) {
            pause_briefly();
            spins++;
        }
        if (atomic_load(&pool->generation) == seen && !atomic_load(&pool->stop)) {
            pthread_mutex_lock(&pool->mutex);
            while (atomic_load(&pool->generation) == seen && !atomic_load(&pool->stop))
                pthread_cond_wait(&pool->wake, &pool->mutex);
            pthread_mutex_unlock(&pool->mutex);
        }
        if (atomic_load(&pool->stop)) return NULL;
        seen = atomic_load(&pool->generation);
        drain(pool, self->index);
        atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_release);
    }
}

weft_status wefti_pool_create(int threads, wefti_pool **out) {
    WEFT_REQUIRE(threads >= 1 && threads <= 4096, WEFT_E_ARG,
                 "a pool needs 1 to 4096 threads, not %d", threads);
    wefti_pool *pool;
    WEFT_NEW(pool, wefti_pool);
    pool->workers = wefti_calloc((size_t)threads, sizeof *pool->workers);
    if (!pool->workers) {
        wefti_free(pool);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %d threads", threads);
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->threads = 1;
    for (int i = 1; i < threads; i++) {
        worker *w = &pool->workers[i - 1];
        w->pool = pool;
        w->index = i;
        if (wefti_thread_start(&w->thread, worker_main, w)) {
            wefti_pool_destroy(pool);
            WEFT_FAIL(WEFT_E_NOMEM, "cannot start thread %d of %d", i + 1, threads);
        }
        pool->threads++;
    }
    *out = pool;
    return WEFT_OK;
}

void wefti_pool_destroy(wefti_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i - 1].thread, NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    wefti_free(pool->workers);
    wefti_free(pool);
}

int wefti_pool_threads(const wefti_pool *pool) {
    return pool ? pool->threads : 1;
}

void wefti_pool_run(wefti_pool *pool, int64_t tasks, wefti_task *fn, void *context) {
    if (!pool || pool->threads == 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; task++) fn(context, task, 0);
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->tasks = tasks;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->busy, pool->threads - 1);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    drain(pool, 0);
    for (int spins = 0; atomic_load_explicit(&pool->busy, memory_order_acquire) > 0; spins++) {
        if (spins < SPINS)
            pause_briefly();
        else
            sched_yield(); /* a preempted worker may need this core */
    }
}

int wefti_cores(void) {
    const char *by;
    wefti_cgroups groups;
    cpu_set_t set;
    int cores = 1;
    if (wefti_tuned()->cores > 0) return wefti_tuned()->cores;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    wefti_cgroups_read("", &groups);
    return wefti_cgroups_cores(&groups, cores, cores, &by);
}
