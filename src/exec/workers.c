/* Device workers: the devices of one process and their threads. */
#include "exec/workers.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/thread.h"

typedef struct member {
    wefti_workers *workers;
    wefti_rank_device *device;
    pthread_t thread;
    int32_t rank;
} member;

struct wefti_workers {
    int32_t size, threads; /* started threads: 0 for a single device */
    int32_t first;         /* rank of the first device of this process */
    wefti_comm *joined;    /* the side of one rank in a world of processes, borrowed; else NULL */
    member *members;
    wefti_comm **comms;       /* NULL for a single device */
    wefti_service **services; /* [size]; NULL: there are no servers */
    pthread_mutex_t lock;
    pthread_cond_t begun, finished;
    uint64_t round; /* incremented for each piece of work */
    bool leaving;
    bool take_turns; /* on cores: each device computes in one thread, its own */
    int32_t working;
    wefti_workers_work *work;
    void *context;
    wefti_failure failure; /* the first failure of this round */
    int32_t failed;
};

/* Keeps the first failure. A rank that failed only because another rank failed is a witness: the
 * failure of that other rank replaces its own. */
static void report(wefti_workers *workers, int32_t rank, weft_status status) {
    pthread_mutex_lock(&workers->lock);
    weft_status first = workers->failure.status;
    if (first == WEFT_OK || (first == WEFT_E_PEER && status != WEFT_E_PEER)) {
        wefti_failure_keep(status, &workers->failure);
        workers->failed = rank;
    }
    pthread_mutex_unlock(&workers->lock);
    wefti_service *service = workers->services ? workers->services[rank] : NULL;
    if (service) service->engine->break_off(service, weft_error_rank(), weft_error_message());
    wefti_comm_break_by_failure(workers->comms[rank]);
}

static void *member_main(void *argument) {
    member *self = argument;
    wefti_workers *workers = self->workers;
    uint64_t seen = 0;
    if (workers->take_turns) (void)wefti_thread_take_turns(self->rank, workers->size);
    pthread_mutex_lock(&workers->lock);
    for (;;) {
        while (workers->round == seen && !workers->leaving)
            pthread_cond_wait(&workers->begun, &workers->lock);
        if (workers->leaving) break;
        seen = workers->round;
        wefti_workers_work *work = workers->work;
        void *context = workers->context;
        pthread_mutex_unlock(&workers->lock);
        weft_status status = work(context, self->device, self->rank);
        if (status < 0) report(workers, self->rank, status);
        pthread_mutex_lock(&workers->lock);
        if (--workers->working == 0) pthread_cond_signal(&workers->finished);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

weft_status wefti_workers_run(wefti_workers *workers, wefti_workers_work *work, void *context) {
    if (workers->size == 1) return work(context, workers->members[0].device, workers->first);
    pthread_mutex_lock(&workers->lock);
    workers->work = work;
    workers->context = context;
    workers->failure.status = WEFT_OK;
    workers->working = workers->size;
    workers->round++;
    pthread_cond_broadcast(&workers->begun);
    while (workers->working > 0) pthread_cond_wait(&workers->finished, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
    if (workers->failure.status == WEFT_OK) return WEFT_OK;
    wefti_comm_mend(workers->comms[0]);
    if (workers->services) workers->services[0]->engine->mend(workers->services[0]);
    return wefti_failure_tell(&workers->failure);
}

weft_status wefti_workers_name(const wefti_workers *workers, weft_status status) {
    if (status >= 0) return status;
    if (workers->joined)
        return status == WEFT_E_PEER ? status : wefti_name_rank(status, workers->first);
    return workers->size == 1 ? status : wefti_prefix(status, "device %d", workers->failed);
}

/* ---- life ---- */

static weft_status start_threads(wefti_workers *workers) {
    int error = 0;
    for (int32_t r = 0; r < workers->size && !error; r++) {
        error = wefti_thread_start(&workers->members[r].thread, member_main, &workers->members[r]);
        if (!error) workers->threads++;
    }
    WEFT_REQUIRE(!error, WEFT_E_NOMEM, "cannot start the thread of device %d: %s", workers->threads,
                 strerror(error));
    return WEFT_OK;
}

static weft_status start(wefti_workers *workers, int threads, const wefti_footprint *need,
                         const wefti_disk_place *disk) {
    WEFT_NEW_ARRAY(workers->members, member, workers->size);
    workers->take_turns = threads == 1;
    if (workers->size > 1) {
        WEFT_NEW_ARRAY(workers->comms, wefti_comm *, workers->size);
        WEFT_TRY(wefti_comm_threads(workers->size, -1, workers->comms));
    }
    for (int32_t r = 0; r < workers->size; r++) {
        member *m = &workers->members[r];
        m->workers = workers;
        m->rank = r;
        wefti_comm *comm = workers->comms ? workers->comms[r] : workers->joined;
        WEFT_TRY(wefti_rank_device_create(threads, need[r], disk, comm, &m->device));
    }
    return workers->size > 1 ? start_threads(workers) : WEFT_OK;
}

static weft_status create(int32_t devices, wefti_comm *joined, int threads,
                          const wefti_footprint *need, const wefti_disk_place *disk,
                          wefti_workers **out) {
    wefti_workers *workers;
    WEFT_NEW(workers, wefti_workers);
    workers->size = devices;
    workers->joined = joined;
    workers->first = joined ? joined->rank : 0;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->begun, NULL);
    pthread_cond_init(&workers->finished, NULL);
    weft_status status = start(workers, threads, need, disk);
    if (status < 0) {
        wefti_workers_destroy(workers);
        return status;
    }
    *out = workers;
    return WEFT_OK;
}

weft_status wefti_workers_create(int32_t devices, int threads, const wefti_footprint *need,
                                 const wefti_disk_place *disk, wefti_workers **out) {
    WEFT_REQUIRE(devices >= 1, WEFT_E_ARG, "there must be at least 1 device, not %d", devices);
    return create(devices, NULL, threads, need, disk, out);
}

weft_status wefti_workers_join(wefti_comm *comm, int threads, wefti_footprint need,
                               const wefti_disk_place *disk, wefti_workers **out) {
    return create(1, comm, threads, &need, disk, out);
}

void wefti_workers_serve(wefti_workers *workers, wefti_service **services) {
    workers->services = services;
    for (int32_t r = 0; r < workers->size; r++)
        wefti_rank_device_serve(workers->members[r].device, services[r]);
}

void wefti_workers_destroy(wefti_workers *workers) {
    if (!workers) return;
    pthread_mutex_lock(&workers->lock);
    workers->leaving = true;
    pthread_cond_broadcast(&workers->begun);
    pthread_mutex_unlock(&workers->lock);
    for (int32_t r = 0; r < workers->threads; r++) pthread_join(workers->members[r].thread, NULL);
    for (int32_t r = 0; r < workers->size && workers->members; r++)
        wefti_rank_device_destroy(workers->members[r].device);
    for (int32_t r = 0; r < workers->size && workers->services; r++)
        wefti_service_destroy(workers->services[r]);
    for (int32_t r = 0; r < workers->size && workers->comms; r++)
        wefti_comm_destroy(workers->comms[r]);
    pthread_mutex_destroy(&workers->lock);
    pthread_cond_destroy(&workers->begun);
    pthread_cond_destroy(&workers->finished);
    wefti_free(workers->services);
    wefti_free(workers->comms);
    wefti_free(workers->members);
    wefti_free(workers);
}

wefti_rank_device *wefti_workers_device(const wefti_workers *workers, int32_t rank) {
    int32_t at = rank - workers->first;
    return at >= 0 && at < workers->size ? workers->members[at].device : NULL;
}
