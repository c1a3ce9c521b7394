/* Worlds: see weft/world.h and comm/world.h. */
#include "comm/world.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/servers.h"

weft_status wefti_world_create(wefti_comm *comm, int32_t rank, int32_t size, const int32_t *host,
                               weft_world **out) {
    weft_world *w = wefti_calloc(1, sizeof *w);
    int32_t *hosts = w ? wefti_calloc((size_t)size, sizeof *hosts) : NULL;
    if (!hosts) {
        wefti_free(w);
        wefti_comm_destroy(comm);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for a world of %d", (int)size);
    }
    *w = (weft_world){.comm = comm, .rank = rank, .size = size, .host = hosts};
    for (int32_t r = 0; r < size; r++) {
        hosts[r] = host ? host[r] : 0;
        if (hosts[r] >= w->hosts) w->hosts = hosts[r] + 1;
    }
    const char *name = comm ? comm->engine->name : "none";
    memcpy(w->communicator, name,
           strlen(name) < sizeof w->communicator ? strlen(name) : sizeof w->communicator - 1);
    *out = w;
    return WEFT_OK;
}

weft_status wefti_world_resize(weft_world *w, int32_t rank, int32_t size, const int32_t *host) {
    int32_t *hosts;
    WEFT_NEW_ARRAY(hosts, int32_t, size);
    wefti_free(w->host);
    w->host = hosts;
    w->rank = rank;
    w->size = size;
    w->hosts = 0;
    for (int32_t r = 0; r < size; r++) {
        hosts[r] = host[r];
        if (hosts[r] >= w->hosts) w->hosts = hosts[r] + 1;
    }
    return WEFT_OK;
}

weft_status weft_world_close(weft_world *w) {
    weft_status status = WEFT_OK;
    if (!w) return status;
    if (w->agreement) w->end_agreement(w->agreement);
    wefti_call_records *records = w->leave && w->comm ? wefti_collectives_records(w) : NULL;
    if (w->leave) status = w->leave(w->control, records);
    wefti_free(records);
    /* Giving up a receive that nothing came for ends others' calls: not before they are through. */
    wefti_collectives_destroy(w->collectives);
    wefti_comm_destroy(w->comm);
    if (w->servers) explicit_bzero(w->servers->key, sizeof w->servers->key);
    wefti_free(w->servers);
    wefti_free(w->host);
    wefti_free(w);
    return status;
}

/* Leaving reports no failure: the caller keeps its own error message. */
void weft_world_leave(weft_world *w) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    weft_status status = weft_world_close(w);
    (void)status;
    (void)wefti_failure_tell(&failure);
}

static void tell(weft_world *w, weft_status status, int failed, const char *message) {
    if (w->mender && w->mender->break_off)
        w->mender->break_off(w->control, failed, message);
    else if (w->comm)
        wefti_comm_break(w->comm, failed, message);
    if (w->fail) w->fail(w->control, status, failed, message);
}

/* Telling others can overwrite this thread's failure; it stays as it is. */
void weft_world_fail(weft_world *w, const char *message) {
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    bool of_thread = !message || message == weft_error_message();
    tell(w, WEFT_E_PEER, of_thread ? failure.rank : WEFT_RANK_OWN,
         of_thread ? failure.message : message);
    (void)wefti_failure_tell(&failure);
}

/* Others may have said that it is this rank which they have lost. */
weft_status wefti_world_lost(weft_world *w, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    const bool own = failure.rank == w->rank || failure.rank < 0;
    tell(w, WEFT_E_LOST, own ? WEFT_RANK_NONE : failure.rank, failure.message);
    return wefti_failure_tell(&failure);
}

int weft_world_rank(const weft_world *w) {
    return w->rank;
}
int weft_world_size(const weft_world *w) {
    return w->size;
}
int weft_world_hosts(const weft_world *w) {
    return w->hosts;
}
int weft_world_host_of(const weft_world *w, int rank) {
    return rank >= 0 && rank < w->size ? w->host[rank] : -1;
}

int weft_world_local_rank(const weft_world *w) {
    int local = 0;
    for (int32_t r = 0; r < w->rank; r++) local += w->host[r] == w->host[w->rank];
    return local;
}
int weft_world_local_size(const weft_world *w) {
    int local = 0;
    for (int32_t r = 0; r < w->size; r++) local += w->host[r] == w->host[w->rank];
    return local;
}
const char *weft_world_communicator(const weft_world *w) {
    return w->communicator;
}

weft_status weft_world_alloc(weft_world *w, size_t bytes, void **out) {
    if (w->comm && w->comm->engine->map) return w->comm->engine->map(w->comm, NULL, bytes, out);
    void *p = wefti_calloc(1, bytes ? bytes : 1);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory for %zu bytes", bytes);
    *out = p;
    return WEFT_OK;
}

void weft_world_free(weft_world *w, void *memory, size_t bytes) {
    if (!memory) return;
    if (w->comm && w->comm->engine->map)
        w->comm->engine->unmap(w->comm, NULL, memory, bytes);
    else
        wefti_free(memory);
}
