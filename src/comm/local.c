/* The communicator of one process: ranks are threads, and read each other's memory. This file makes
 * and ends worlds and binds transfers; comm/local_run.c runs them. */
#include "comm/local.h"

#include "base/pool.h"

enum {
    SPIN = 4000
}; /* pauses, some 0.1 ms: longer than a kernel's jitter, shorter than a
      scheduler's time slice */

/* Zeroed, at the beginning of a cache line. */
static void *lines(wefti_arena *arena, size_t bytes) {
    char *p = wefti_arena_alloc(arena, bytes + 128);
    return p ? p + (128 - (uintptr_t)p % 128) % 128 : NULL;
}

static void seat_reset(wefti_local_seat *seat) {
    for (int i = 0; i < WEFTI_LOCAL_RING; i++) {
        atomic_store(&seat->slot[i].posted, 0);
        atomic_store(&seat->slot[i].moved, 0);
        seat->place[i] = (wefti_local_place){0};
    }
    seat->published = seat->oldest = 0;
    seat->first = NULL;
    seat->last = &seat->first;
    seat->active = false;
}

/* --- binding --- */

static wefti_local_channel **find_channel(wefti_local_world *world, const wefti_transfer *t) {
    uint64_t hash = t->tag * 0x9E3779B97F4A7C15u;
    for (int32_t m = 0; m < t->members; m++)
        hash = (hash ^ (uint64_t)t->ranks[m]) * 0x9E3779B97F4A7C15u;
    wefti_local_channel **at = &world->bucket[hash >> 56 & (WEFTI_LOCAL_BUCKETS - 1)];
    for (; *at; at = &(*at)->next)
        if ((*at)->tag == t->tag && (*at)->members == t->members &&
            memcmp((*at)->ranks, t->ranks, (size_t)t->members * sizeof *t->ranks) == 0)
            break;
    return at;
}

static weft_status open_channel(wefti_local_world *world, const wefti_transfer *t,
                                wefti_local_channel **out) {
    wefti_local_channel **at = find_channel(world, t);
    if (!*at) {
        wefti_local_channel *channel = wefti_arena_alloc(world->arena, sizeof *channel);
        size_t members = (size_t)t->members;
        wefti_local_seat *seat = lines(world->arena, members * sizeof *seat);
        int32_t *ranks = wefti_arena_alloc(world->arena, members * sizeof *ranks);
        WEFT_REQUIRE(channel && seat && ranks, WEFT_E_NOMEM, "no memory for a group of %d",
                     (int)t->members);
        memcpy(ranks, t->ranks, members * sizeof *ranks);
        for (int32_t m = 0; m < t->members; m++) {
            seat_reset(&seat[m]);
            seat[m].channel = channel;
            seat[m].me = m;
        }
        *channel = (wefti_local_channel){NULL, t->tag, t->members, ranks, seat};
        *at = channel;
    }
    *out = *at;
    return WEFT_OK;
}

static weft_status find_plan(wefti_local_world *world, wefti_local_seat *seat,
                             const wefti_transfer *t, const wefti_local_plan **out) {
    for (const wefti_local_plan *plan = seat->plans; plan; plan = plan->next)
        if (wefti_local_plan_fits(plan, t)) {
            *out = plan;
            return WEFT_OK;
        }
    wefti_local_plan *plan;
    WEFT_TRY(wefti_local_plan_create(world->arena, t, &plan));
    if (plan->small && !seat->small) {
        seat->small = lines(world->arena, (size_t)WEFTI_LOCAL_RING * WEFTI_LOCAL_SMALL);
        WEFT_REQUIRE(seat->small, WEFT_E_NOMEM, "no memory for copies of small tensors");
    }
    plan->next = seat->plans;
    seat->plans = plan;
    *out = plan;
    return WEFT_OK;
}

static weft_status check(const wefti_local *local, const wefti_transfer *t) {
    int32_t size = local->comm.size;
    WEFT_TRY(wefti_transfer_check(t));
    WEFT_REQUIRE(t->ranks[t->me] == local->comm.rank, WEFT_E_ARG,
                 "a transfer of rank %d is bound by rank %d", (int)t->ranks[t->me],
                 (int)local->comm.rank);
    WEFT_REQUIRE(t->ranks[t->members - 1] < size, WEFT_E_ARG,
                 "a transfer names rank %d; there are %d", (int)t->ranks[t->members - 1],
                 (int)size);
    return WEFT_OK;
}

static weft_status find_seat(wefti_local_world *world, const wefti_transfer *t,
                             wefti_local_seat **out_seat, const wefti_local_plan **out_plan) {
    wefti_local_channel *channel;
    WEFT_TRY(open_channel(world, t, &channel));
    WEFT_TRY(find_plan(world, &channel->seat[t->me], t, out_plan));
    *out_seat = &channel->seat[t->me];
    return WEFT_OK;
}

static void release(wefti_local_endpoint *endpoint) {
    wefti_free(endpoint->source);
    wefti_free(endpoint->stage);
    wefti_free(endpoint);
}

static weft_status local_bind(wefti_comm *comm, const wefti_transfer *transfer,
                              wefti_endpoint **out) {
    wefti_local *local = (wefti_local *)comm;
    WEFT_TRY(check(local, transfer));
    wefti_local_seat *seat;
    const wefti_local_plan *plan;
    pthread_mutex_lock(&local->world->lock);
    weft_status status = find_seat(local->world, transfer, &seat, &plan);
    pthread_mutex_unlock(&local->world->lock);
    WEFT_TRY(status);
    wefti_local_endpoint *endpoint;
    WEFT_NEW(endpoint, wefti_local_endpoint);
    endpoint->base.engine = comm->engine;
    endpoint->local = local;
    endpoint->seat = seat;
    endpoint->plan = plan;
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++) endpoint->post[i].endpoint = endpoint;
    endpoint->source = wefti_calloc((size_t)transfer->members, 2 * sizeof *endpoint->source);
    if (plan->staged) endpoint->stage = wefti_alloc(WEFTI_COMM_DEPTH * (size_t)plan->bytes);
    if (!endpoint->source || (plan->staged && !endpoint->stage)) {
        release(endpoint);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %s", plan->text);
    }
    endpoint->destination = (void **)(endpoint->source + transfer->members);
    *out = &endpoint->base;
    return WEFT_OK;
}

/* Partners would wait for ever for a post that is given up, or read memory that is gone. */
static void local_unbind(wefti_endpoint *base) {
    if (!base) return;
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local *local = endpoint->local;
    if (endpoint->posted != endpoint->waited &&
        endpoint->generation == atomic_load(&local->world->generation)) {
        wefti_local_break(local, "%s was given up while under way", endpoint->plan->text);
        wefti_local_calm(local);
    }
    release(endpoint);
}

/* --- worlds --- */

static void local_destroy(wefti_comm *comm) {
    if (!comm) return;
    wefti_local_world *world = ((wefti_local *)comm)->world;
    pthread_mutex_lock(&world->lock);
    bool last = --world->alive == 0;
    pthread_mutex_unlock(&world->lock);
    if (!last) return;
    pthread_mutex_destroy(&world->lock);
    wefti_arena_destroy(world->arena);
    wefti_free(world);
}

static void local_break(wefti_comm *comm, const char *message) {
    wefti_local_break((wefti_local *)comm, "%s", message);
}

static void local_mend(wefti_comm *comm) {
    wefti_local_world *world = ((wefti_local *)comm)->world;
    pthread_mutex_lock(&world->lock);
    if (atomic_load(&world->broken)) {
        for (int b = 0; b < WEFTI_LOCAL_BUCKETS; b++)
            for (wefti_local_channel *channel = world->bucket[b]; channel; channel = channel->next)
                for (int32_t m = 0; m < channel->members; m++) seat_reset(&channel->seat[m]);
        for (int32_t r = 0; r < world->size; r++) {
            world->rank[r].active = NULL;
            world->rank[r].at_fault = false;
        }
        atomic_fetch_add(&world->generation, 1);
        atomic_store(&world->broken, 0);
    }
    pthread_mutex_unlock(&world->lock);
}

static const wefti_comm_engine engine = {
    .name = "local",
    .bind = local_bind,
    .post = wefti_local_start,
    .wait = wefti_local_wait,
    .test = wefti_local_test,
    .unbind = local_unbind,
    .break_off = local_break,
    .mend = local_mend,
    .destroy = local_destroy,
};

weft_status wefti_comm_local(int32_t size, int spin, wefti_comm **out) {
    WEFT_REQUIRE(size >= 1 && size <= WEFTI_LOCAL_MOST, WEFT_E_ARG,
                 "%d ranks in one process; possible are 1 to %d", (int)size, WEFTI_LOCAL_MOST);
    wefti_local_world *world;
    WEFT_NEW(world, wefti_local_world);
    world->size = world->alive = size;
    world->spin = spin >= 0 ? spin : size > wefti_cores() ? 0 : SPIN;
    world->light = world->spin > 0 && wefti_bell_light();
    weft_status status = wefti_arena_create(&world->arena);
    if (status >= 0 && !(world->rank = lines(world->arena, (size_t)size * sizeof *world->rank)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", (int)size);
    if (status >= 0 && pthread_mutex_init(&world->lock, NULL) != 0)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no lock for %d ranks", (int)size);
    if (status < 0) {
        wefti_arena_destroy(world->arena);
        wefti_free(world);
        return status;
    }
    for (int32_t r = 0; r < size; r++) {
        world->rank[r].comm = (wefti_comm){&engine, r, size, NULL};
        world->rank[r].world = world;
        out[r] = &world->rank[r].comm;
    }
    return WEFT_OK;
}
