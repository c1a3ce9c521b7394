/* The communicator between processes. Processes of one host use shared memory by the rules of
 * comm/shm. Transfers that leave the host go through another communicator (comm/host/internode.c).
 * This file creates and destroys it. */
#include "comm/host/host.h"

#include <stdio.h>
#include <sys/mman.h>

static weft_status open_rings(wefti_shm_world *world, const wefti_transfer *t,
                              wefti_shm_ring **out) {
    return wefti_host_control_rings(wefti_host_of(world)->control, t, out);
}
static weft_status show(wefti_shm_world *world, size_t bytes, void **out) {
    return wefti_host_keep(&wefti_host_of(world)->heap, bytes, out);
}
static weft_status take(wefti_shm_world *world, size_t bytes, void **out) {
    return wefti_host_take(&wefti_host_of(world)->heap, bytes, out);
}
static void give(wefti_shm_world *world, void *memory) {
    wefti_host_give(&wefti_host_of(world)->heap, memory);
}

/* --- the engine: transfers of this host, and those that leave it --- */

static bool is_intranode(const wefti_host *host, const wefti_transfer *t) {
    for (int32_t m = 0; m < t->members; m++)
        if (t->ranks[m] >= host->local.comm.size || host->world.place_of[t->ranks[m]] < 0)
            return false;
    return true;
}

static weft_status host_bind(wefti_comm *comm, const wefti_transfer *t, wefti_endpoint **out) {
    wefti_host *host = (wefti_host *)comm;
    WEFT_TRY(wefti_transfer_check(t));
    WEFT_REQUIRE(t->ranks[t->members - 1] < comm->size, WEFT_E_ARG,
                 "a transfer names rank %d; there are %d", (int)t->ranks[t->members - 1],
                 (int)comm->size);
    return is_intranode(host, t) ? wefti_shm_bind(comm, t, out)
                                 : wefti_host_internode_bind(host, t, out);
}
/* What fails here fails there: ranks of other hosts may wait for this one. */
static weft_status tell_internode(wefti_endpoint *e, weft_status status) {
    wefti_host *host = (wefti_host *)((wefti_shm_endpoint *)e)->local;
    if (!host->internode || (status != WEFT_E_PEER && status != WEFT_E_MISMATCH)) return status;
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_comm_break(host->internode, failure.rank, failure.message);
    return wefti_failure_tell(&failure);
}
static weft_status host_post(wefti_endpoint *e, const void *source, void *destination) {
    if (wefti_host_is_internode(e)) return wefti_host_internode_post(e, source, destination);
    return tell_internode(e, wefti_shm_start(e, source, destination));
}
static weft_status host_wait(wefti_endpoint *e) {
    return wefti_host_is_internode(e) ? wefti_host_internode_wait(e)
                                      : tell_internode(e, wefti_shm_wait(e));
}
static weft_status host_test(wefti_endpoint *e) {
    return wefti_host_is_internode(e) ? wefti_host_internode_test(e)
                                      : tell_internode(e, wefti_shm_test(e));
}
static void host_unbind(wefti_endpoint *e) {
    if (!e) return;
    if (wefti_host_is_internode(e))
        wefti_host_internode_unbind(e);
    else
        wefti_shm_unbind(e);
}

static void host_break(wefti_comm *comm, int failed, const char *message) {
    wefti_host *host = (wefti_host *)comm;
    wefti_shm_break(&host->local, failed, "%s", message);
    if (host->internode) wefti_comm_break(host->internode, failed, message);
}

static weft_status host_map(wefti_comm *comm, wefti_device *device, size_t bytes, void **out) {
    wefti_host *host = (wefti_host *)comm;
    return device ? wefti_host_map_device(host, device, bytes, out)
                  : wefti_host_take(&host->heap, bytes, out);
}
static void host_unmap(wefti_comm *comm, wefti_device *device, void *memory, size_t bytes) {
    wefti_host *host = (wefti_host *)comm;
    if (memory && device)
        wefti_host_unmap_device(host, device, memory, bytes);
    else if (memory)
        wefti_host_give(&host->heap, memory);
}

static bool host_moves(wefti_comm *comm) {
    wefti_host *host = (wefti_host *)comm;
    bool internode = host->internode && wefti_comm_moves(host->internode);
    return wefti_shm_moves(&host->local) || internode;
}

static void host_destroy(wefti_comm *comm) {
    if (!comm) return;
    wefti_host *host = (wefti_host *)comm;
    wefti_comm_destroy(host->internode);
    if (host->mapped) munmap(host->mapped, host->mapped_bytes);
    wefti_free(host->heap.range);
    pthread_mutex_destroy(&host->heap.lock);
    wefti_shm_world_end(&host->world);
    wefti_free(host);
}

static void host_set_position(wefti_comm *comm, wefti_position *position) {
    wefti_host *host = (wefti_host *)comm;
    if (host->internode) wefti_comm_set_position(host->internode, position);
}

static const wefti_comm_engine engine = {
    .bind = host_bind,
    .post = host_post,
    .wait = host_wait,
    .test = host_test,
    .unbind = host_unbind,
    .break_off = host_break,
    .map = host_map,
    .unmap = host_unmap,
    .moves = host_moves,
    .set_position = host_set_position,
    .destroy = host_destroy,
};

/* --- making one --- */

static weft_status number_ranks(wefti_host *host, const int32_t *hosts) {
    wefti_shm_world *world = &host->world;
    int32_t size = host->local.comm.size;
    int32_t *place_of = wefti_arena_alloc(world->arena, (size_t)size * sizeof *place_of);
    int32_t *rank_of = wefti_arena_alloc(world->arena, (size_t)size * sizeof *rank_of);
    world->area = wefti_arena_alloc(world->arena, (size_t)size * sizeof *world->area);
    WEFT_REQUIRE(place_of && rank_of && world->area, WEFT_E_NOMEM, "no memory for %d ranks",
                 (int)size);
    for (int32_t r = 0; r < size; r++) {
        bool intranode = hosts[r] == hosts[host->local.comm.rank];
        place_of[r] = intranode ? world->size : -1;
        if (intranode) rank_of[world->size++] = r;
    }
    world->place_of = place_of;
    world->rank_of = rank_of;
    host->local.place = place_of[host->local.comm.rank];
    WEFT_REQUIRE(world->size <= WEFTI_COMM_MEMBERS, WEFT_E_ARG,
                 "%d ranks on one host; possible are 1 to %d", (int)world->size,
                 WEFTI_COMM_MEMBERS);
    return WEFT_OK;
}

weft_status wefti_comm_host(int32_t rank, int32_t size, const int32_t *hosts,
                            const wefti_exchange *exchange, wefti_comm **out) {
    weft_status status = WEFT_OK;
    wefti_host *host = wefti_calloc(1, sizeof *host);
    if (!host || (status = wefti_shm_world_begin(&host->world)) < 0) {
        wefti_free(host);
        return status < 0 ? status : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a communicator");
    }
    enum { SECOND = 1000000000 };
    host->engine = engine;
    host->engine.name = "host";
    (void)pthread_mutex_init(&host->heap.lock, NULL);
    host->local.comm = (wefti_comm){.engine = &host->engine, .rank = rank, .size = size};
    host->local.world = &host->world;
    host->world.patience_ns = SECOND;
    host->world.open_rings = open_rings;
    host->world.show = show;
    host->world.take = take;
    host->world.give = give;
    WEFT_TRY_OR(err, status, number_ranks(host, hosts));
    WEFT_TRY_OR(err, status, wefti_host_join(host, hosts, exchange));
    *out = &host->local.comm;
    return WEFT_OK;
err:
    host_destroy(&host->local.comm);
    return status;
}

void wefti_comm_host_set_internode(wefti_comm *comm, wefti_comm *internode) {
    wefti_host *host = (wefti_host *)comm;
    snprintf(host->name, sizeof host->name, "host+%s", internode->engine->name);
    host->engine.name = host->name;
    host->internode = internode;
}
