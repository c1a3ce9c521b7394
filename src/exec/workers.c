/* Devices in threads: see crew.h. */
#include "exec/workers.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/thread.h"

typedef struct member {
    wefti_crew *crew;
    wefti_device *device;
    pthread_t thread;
    int32_t rank;
} member;

struct wefti_crew {
    int32_t size, threads; /* threads that run: 0 for a single device */
    int32_t first;         /* rank of the first device here */
    wefti_comm *joined;    /* one rank of a world of processes: its side, borrowed; else NULL */
    member *members;
    wefti_comm **comms; /* NULL for a single device */
    pthread_mutex_t lock;
    pthread_cond_t begun, finished;
    uint64_t round; /* bumped for each piece of work */
    bool leaving;
    int32_t working;
    wefti_crew_work *work;
    void *context;
    wefti_failure failure; /* the first one of this round */
    int32_t failed;
};

/* A rank that could not go on without another is only a witness: the other tells the cause. */
static void report(wefti_crew *crew, int32_t rank, weft_status status) {
    pthread_mutex_lock(&crew->lock);
    weft_status first = crew->failure.status;
    if (first == WEFT_OK || (first == WEFT_E_PEER && status != WEFT_E_PEER)) {
        wefti_failure_keep(status, &crew->failure);
        crew->failed = rank;
    }
    pthread_mutex_unlock(&crew->lock);
    wefti_comm_break_by_failure(crew->comms[rank]);
}

static void *member_main(void *argument) {
    member *self = argument;
    wefti_crew *crew = self->crew;
    uint64_t seen = 0;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (crew->round == seen && !crew->leaving) pthread_cond_wait(&crew->begun, &crew->lock);
        if (crew->leaving) break;
        seen = crew->round;
        wefti_crew_work *work = crew->work;
        void *context = crew->context;
        pthread_mutex_unlock(&crew->lock);
        weft_status status = work(context, self->device, self->rank);
        if (status < 0) report(crew, self->rank, status);
        pthread_mutex_lock(&crew->lock);
        if (--crew->working == 0) pthread_cond_signal(&crew->finished);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

weft_status wefti_crew_run(wefti_crew *crew, wefti_crew_work *work, void *context) {
    if (crew->size == 1) return work(context, crew->members[0].device, crew->first);
    pthread_mutex_lock(&crew->lock);
    crew->work = work;
    crew->context = context;
    crew->failure.status = WEFT_OK;
    crew->working = crew->size;
    crew->round++;
    pthread_cond_broadcast(&crew->begun);
    while (crew->working > 0) pthread_cond_wait(&crew->finished, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    if (crew->failure.status == WEFT_OK) return WEFT_OK;
    wefti_comm_mend(crew->comms[0]);
    return wefti_failure_tell(&crew->failure);
}

weft_status wefti_crew_name(const wefti_crew *crew, weft_status status) {
    if (status >= 0) return status;
    if (crew->joined) return status == WEFT_E_PEER ? status : wefti_name_rank(status, crew->first);
    return crew->size == 1 ? status : wefti_prefix(status, "device %d", crew->failed);
}

/* ---- life ---- */

static weft_status start_threads(wefti_crew *crew) {
    int error = 0;
    for (int32_t r = 0; r < crew->size && !error; r++) {
        error = wefti_thread_start(&crew->members[r].thread, member_main, &crew->members[r]);
        if (!error) crew->threads++;
    }
    WEFT_REQUIRE(!error, WEFT_E_NOMEM, "cannot start the thread of device %d: %s", crew->threads,
                 strerror(error));
    return WEFT_OK;
}

static weft_status start(wefti_crew *crew, int threads, const int64_t *bytes) {
    WEFT_NEW_ARRAY(crew->members, member, crew->size);
    if (crew->size > 1) {
        WEFT_NEW_ARRAY(crew->comms, wefti_comm *, crew->size);
        WEFT_TRY(wefti_comm_local(crew->size, -1, crew->comms));
    }
    for (int32_t r = 0; r < crew->size; r++) {
        member *m = &crew->members[r];
        m->crew = crew;
        m->rank = r;
        wefti_comm *comm = crew->comms ? crew->comms[r] : crew->joined;
        WEFT_TRY(wefti_device_create(threads, bytes[r], comm, &m->device));
    }
    return crew->size > 1 ? start_threads(crew) : WEFT_OK;
}

static weft_status create(int32_t devices, wefti_comm *joined, int threads, const int64_t *bytes,
                          wefti_crew **out) {
    wefti_crew *crew;
    WEFT_NEW(crew, wefti_crew);
    crew->size = devices;
    crew->joined = joined;
    crew->first = joined ? joined->rank : 0;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->begun, NULL);
    pthread_cond_init(&crew->finished, NULL);
    weft_status status = start(crew, threads, bytes);
    if (status < 0) {
        wefti_crew_destroy(crew);
        return status;
    }
    *out = crew;
    return WEFT_OK;
}

weft_status wefti_crew_create(int32_t devices, int threads, const int64_t *bytes,
                              wefti_crew **out) {
    WEFT_REQUIRE(devices >= 1, WEFT_E_ARG, "there must be at least 1 device, not %d", devices);
    return create(devices, NULL, threads, bytes, out);
}

weft_status wefti_crew_join(wefti_comm *comm, int threads, int64_t bytes, wefti_crew **out) {
    return create(1, comm, threads, &bytes, out);
}

void wefti_crew_destroy(wefti_crew *crew) {
    if (!crew) return;
    pthread_mutex_lock(&crew->lock);
    crew->leaving = true;
    pthread_cond_broadcast(&crew->begun);
    pthread_mutex_unlock(&crew->lock);
    for (int32_t r = 0; r < crew->threads; r++) pthread_join(crew->members[r].thread, NULL);
    for (int32_t r = 0; r < crew->size && crew->members; r++)
        wefti_device_destroy(crew->members[r].device);
    for (int32_t r = 0; r < crew->size && crew->comms; r++) wefti_comm_destroy(crew->comms[r]);
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->begun);
    pthread_cond_destroy(&crew->finished);
    wefti_free(crew->comms);
    wefti_free(crew->members);
    wefti_free(crew);
}

int32_t wefti_crew_size(const wefti_crew *crew) {
    return crew->size;
}
wefti_device *wefti_crew_device(const wefti_crew *crew, int32_t rank) {
    int32_t at = rank - crew->first;
    return at >= 0 && at < crew->size ? crew->members[at].device : NULL;
}
