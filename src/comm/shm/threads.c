/* The communicator of one process: ranks are threads, which have all memory in common. This file
 * makes, mends and ends such worlds; what happens in them is in comm/shm. */
#include "comm/shm/shm.h"

#include "base/pool.h"

typedef struct thread_rank {
    alignas(128) wefti_shm_rank local;
} thread_rank;

typedef struct thread_world {
    wefti_shm_world base;
    thread_rank *rank; /* [size] */
    int32_t alive;     /* communicators not destroyed yet; under the lock */
} thread_world;

static thread_world *world_of(wefti_comm *comm) {
    return (thread_world *)((wefti_shm_rank *)comm)->world;
}

static weft_status open_rings(wefti_shm_world *world, const wefti_transfer *t,
                              wefti_shm_ring **out) {
    *out = wefti_shm_alloc_lines(world->arena, (size_t)t->members * sizeof **out);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for a group of %d", (int)t->members);
    return WEFT_OK;
}

static weft_status show(wefti_shm_world *world, size_t bytes, void **out) {
    *out = wefti_shm_alloc_lines(world->arena, bytes);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for %zu bytes that others read", bytes);
    return WEFT_OK;
}

static void local_destroy(wefti_comm *comm) {
    if (!comm) return;
    thread_world *world = world_of(comm);
    pthread_mutex_lock(&world->base.lock);
    bool last = --world->alive == 0;
    pthread_mutex_unlock(&world->base.lock);
    if (!last) return;
    wefti_shm_world_end(&world->base);
    wefti_free(world);
}

static void local_break(wefti_comm *comm, int failed, const char *message) {
    wefti_shm_break((wefti_shm_rank *)comm, failed, "%s", message);
}

static void mend_channel(wefti_shm_channel *channel) {
    for (int32_t m = 0; m < channel->members; m++) {
        wefti_shm_ring *ring = &channel->ring[m];
        for (int i = 0; i < WEFTI_SHM_SLOTS; i++) {
            atomic_store(&ring->slot[i].posted, 0);
            atomic_store(&ring->slot[i].moved, 0);
            atomic_store(&ring->slot[i].staged_chunks, 0);
            atomic_store(&ring->slot[i].reduced, 0);
        }
        atomic_store(&ring->oldest, 0);
        if (channel->port[m]) wefti_shm_port_reset(channel->port[m]);
    }
}

static void local_mend(wefti_comm *comm) {
    thread_world *world = world_of(comm);
    pthread_mutex_lock(&world->base.lock);
    if (atomic_load(&world->base.common->broken)) {
        for (int b = 0; b < WEFTI_SHM_BUCKETS; b++)
            for (wefti_shm_channel *c = world->base.bucket[b]; c; c = c->next) mend_channel(c);
        for (int32_t r = 0; r < world->base.size; r++) {
            world->rank[r].local.active = NULL;
            world->rank[r].local.at_fault = false;
        }
        atomic_fetch_add(&world->base.generation, 1);
        atomic_store(&world->base.common->broken, 0);
    }
    pthread_mutex_unlock(&world->base.lock);
}

static const wefti_comm_engine engine = {
    .name = "local",
    .bind = wefti_shm_bind,
    .post = wefti_shm_start,
    .wait = wefti_shm_wait,
    .test = wefti_shm_test,
    .unbind = wefti_shm_unbind,
    .break_off = local_break,
    .mend = local_mend,
    .destroy = local_destroy,
};

weft_status wefti_comm_threads(int32_t size, int spin, wefti_comm **out) {
    WEFT_REQUIRE(size >= 1 && size <= WEFTI_COMM_MEMBERS, WEFT_E_ARG,
                 "%d ranks in one process; possible are 1 to %d", (int)size, WEFTI_COMM_MEMBERS);
    thread_world *world;
    WEFT_NEW(world, thread_world);
    wefti_shm_world *base = &world->base;
    base->size = world->alive = size;
    base->spin = spin >= 0 ? spin : size > wefti_cores() ? 0 : WEFTI_SHM_SPIN;
    base->mode =
        (wefti_eventcount_mode){.light = base->spin > 0 && wefti_eventcount_can_be_light(false)};
    base->open_rings = open_rings;
    base->show = show;
    weft_status status = wefti_shm_world_begin(base);
    if (status < 0) {
        wefti_free(world);
        return status;
    }
    base->common = wefti_shm_alloc_lines(
        base->arena, sizeof *base->common + (size_t)size * sizeof *base->common->peer);
    base->area = wefti_arena_alloc(base->arena, (size_t)size * sizeof *base->area);
    world->rank = wefti_shm_alloc_lines(base->arena, (size_t)size * sizeof *world->rank);
    if (!base->common || !base->area || !world->rank) {
        wefti_shm_world_end(base);
        wefti_free(world);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %d ranks", (int)size);
    }
    for (int32_t r = 0; r < size; r++) {
        base->area[r] = (wefti_shm_area){.bytes = UINTPTR_MAX};
        wefti_shm_rank *local = &world->rank[r].local;
        *local = (wefti_shm_rank){
            .comm = {.engine = &engine, .rank = r, .size = size}, .world = base, .place = r};
        out[r] = &local->comm;
    }
    return WEFT_OK;
}
