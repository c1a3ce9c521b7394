/* Binding: the channel of a group and tag, this rank's seat there, and the plan of a transfer. */
#include "comm/local.h"

void *wefti_local_lines(wefti_arena *arena, size_t bytes) {
    char *p = wefti_arena_alloc(arena, bytes + 128);
    return p ? p + (128 - (uintptr_t)p % 128) % 128 : NULL;
}

void wefti_local_seat_reset(wefti_local_seat *seat) {
    for (int i = 0; i < WEFTI_LOCAL_RING; i++) seat->place[i] = (wefti_local_place){0};
    seat->published = seat->oldest = seat->free_before = seat->hash = 0;
    seat->first = NULL;
    seat->last = &seat->first;
    seat->active = false;
}

weft_status wefti_local_world_begin(wefti_local_world *world) {
    WEFT_REQUIRE(pthread_mutex_init(&world->lock, NULL) == 0, WEFT_E_NOMEM, "no lock for %d ranks",
                 (int)world->size);
    weft_status status = wefti_arena_create(&world->arena);
    if (status < 0) pthread_mutex_destroy(&world->lock);
    return status;
}

void wefti_local_world_end(wefti_local_world *world) {
    wefti_arena_destroy(world->arena);
    pthread_mutex_destroy(&world->lock);
}

/* --- channels --- */

static wefti_local_channel **find_channel(wefti_local_world *world, const wefti_transfer *t) {
    wefti_local_channel **at = &world->bucket[wefti_transfer_channel(t) % WEFTI_LOCAL_BUCKETS];
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
        size_t members = (size_t)t->members;
        wefti_local_channel *channel = wefti_arena_alloc(world->arena, sizeof *channel);
        wefti_local_seat *seat = wefti_local_lines(world->arena, members * sizeof *seat);
        int32_t *ranks = wefti_arena_alloc(world->arena, 2 * members * sizeof *ranks);
        WEFT_REQUIRE(channel && seat && ranks, WEFT_E_NOMEM, "no memory for a group of %d",
                     (int)t->members);
        memcpy(ranks, t->ranks, members * sizeof *ranks);
        *channel =
            (wefti_local_channel){NULL, t->tag, t->members, ranks, ranks + members, NULL, seat};
        WEFT_TRY(world->open_rows(world, t, &channel->row));
        for (int32_t m = 0; m < t->members; m++) {
            wefti_local_seat_reset(&seat[m]);
            seat[m].channel = channel;
            seat[m].row = &channel->row[m];
            seat[m].me = m;
            channel->places[m] = world->place_of ? world->place_of[ranks[m]] : ranks[m];
        }
        *at = channel;
    }
    *out = *at;
    return WEFT_OK;
}

weft_status wefti_local_keep_small(wefti_local_world *world, wefti_local_seat *seat) {
    void *p;
    if (seat->small) return WEFT_OK;
    WEFT_TRY(world->show(world, (size_t)WEFTI_LOCAL_RING * WEFTI_LOCAL_SMALL, &p));
    seat->small = p;
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
    void *p;
    WEFT_TRY(wefti_local_plan_create(world->arena, t, &plan));
    size_t length = strlen(plan->text) + 1;
    WEFT_TRY(world->show(world, length, &p));
    plan->text = memcpy(p, plan->text, length);
    if (plan->small) WEFT_TRY(wefti_local_keep_small(world, seat));
    plan->next = seat->plans;
    seat->plans = plan;
    *out = plan;
    return WEFT_OK;
}

/* --- endpoints --- */

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
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++)
        if (endpoint->bounce[i])
            endpoint->local->world->give(endpoint->local->world, endpoint->bounce[i]);
    wefti_free(endpoint->blocks);
    wefti_free(endpoint->source);
    wefti_free(endpoint->stage);
    wefti_free(endpoint);
}

weft_status wefti_local_bind(wefti_comm *comm, const wefti_transfer *transfer,
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
    endpoint->source = wefti_calloc((size_t)transfer->members,
                                    2 * sizeof *endpoint->source + sizeof *endpoint->streamed);
    if (plan->staged) endpoint->stage = wefti_alloc(WEFTI_COMM_DEPTH * (size_t)plan->bytes);
    bool pulls = local->world->pull_parts > 0 && plan->reduces_runs && !plan->shares;
    if (pulls) endpoint->blocks = wefti_alloc((size_t)transfer->members * WEFTI_LOCAL_BLOCK);
    if (!endpoint->source || (plan->staged && !endpoint->stage) || (pulls && !endpoint->blocks)) {
        release(endpoint);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for %s", plan->text);
    }
    endpoint->destination = (void **)(endpoint->source + transfer->members);
    endpoint->streamed = (bool *)(endpoint->destination + transfer->members);
    *out = &endpoint->base;
    return WEFT_OK;
}

/* Partners would wait for ever for a post that is given up, or read memory that is gone. */
void wefti_local_unbind(wefti_endpoint *base) {
    if (!base) return;
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local *local = endpoint->local;
    if (endpoint->posted != endpoint->waited &&
        endpoint->generation == atomic_load(&local->world->generation)) {
        wefti_local_break(local, WEFT_RANK_OWN, "%s was given up while under way",
                          endpoint->plan->text);
        wefti_local_calm(local);
    }
    release(endpoint);
}
