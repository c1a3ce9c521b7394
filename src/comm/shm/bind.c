/* Binding: the channel of a group and tag, this rank's seat there, and the plan of a transfer. */
#include "comm/shm/shm.h"

void *wefti_shm_alloc_lines(wefti_arena *arena, size_t bytes) {
    char *p = wefti_arena_alloc(arena, bytes + 128);
    return p ? p + (128 - (uintptr_t)p % 128) % 128 : NULL;
}

void wefti_shm_port_reset(wefti_shm_port *port) {
    for (int i = 0; i < WEFTI_SHM_SLOTS; i++) port->place[i] = (wefti_shm_in_flight){0};
    port->published = port->oldest = port->free_before = port->hash = 0;
    port->first = NULL;
    port->last = &port->first;
    port->active = false;
}

weft_status wefti_shm_world_begin(wefti_shm_world *world) {
    WEFT_REQUIRE(pthread_mutex_init(&world->lock, NULL) == 0, WEFT_E_NOMEM, "no lock for %d ranks",
                 (int)world->size);
    weft_status status = wefti_arena_create(&world->arena);
    if (status < 0) pthread_mutex_destroy(&world->lock);
    return status;
}

/* --- channels --- */

static wefti_shm_channel **find_channel(wefti_shm_world *world, const wefti_transfer *t) {
    wefti_shm_channel **at = &world->bucket[wefti_transfer_channel(t) % WEFTI_SHM_BUCKETS];
    for (; *at; at = &(*at)->next)
        if ((*at)->tag == t->tag && (*at)->members == t->members &&
            memcmp((*at)->ranks, t->ranks, (size_t)t->members * sizeof *t->ranks) == 0)
            break;
    return at;
}

static weft_status open_channel(wefti_shm_world *world, const wefti_transfer *t,
                                wefti_shm_channel **out) {
    wefti_shm_channel **at = find_channel(world, t);
    if (!*at) {
        size_t members = (size_t)t->members;
        wefti_shm_channel *channel = wefti_arena_alloc(world->arena, sizeof *channel);
        wefti_shm_port **port = wefti_arena_alloc(world->arena, members * sizeof *port);
        int32_t *ranks = wefti_arena_alloc(world->arena, 2 * members * sizeof *ranks);
        WEFT_REQUIRE(channel && port && ranks, WEFT_E_NOMEM, "no memory for a group of %d",
                     (int)t->members);
        memcpy(ranks, t->ranks, members * sizeof *ranks);
        *channel =
            (wefti_shm_channel){NULL, t->tag, t->members, ranks, ranks + members, NULL, port};
        WEFT_TRY(world->open_rings(world, t, &channel->ring));
        for (int32_t m = 0; m < t->members; m++)
            channel->places[m] = world->place_of ? world->place_of[ranks[m]] : ranks[m];
        *at = channel;
    }
    *out = *at;
    return WEFT_OK;
}

/* The port of member `me`, a rank of this process. */
static weft_status open_port(wefti_shm_world *world, wefti_shm_channel *channel, int32_t me,
                             wefti_shm_port **out) {
    wefti_shm_port *port = channel->port[me];
    if (!port) {
        port = wefti_shm_alloc_lines(world->arena, sizeof *port);
        WEFT_REQUIRE(port, WEFT_E_NOMEM, "no memory for a member of a group of %d",
                     (int)channel->members);
        wefti_shm_port_reset(port);
        port->channel = channel;
        port->ring = &channel->ring[me];
        port->me = me;
        channel->port[me] = port;
    }
    *out = port;
    return WEFT_OK;
}

weft_status wefti_shm_keep_small(wefti_shm_world *world, wefti_shm_port *port) {
    void *p;
    if (port->small) return WEFT_OK;
    WEFT_TRY(world->show(world, (size_t)WEFTI_SHM_SLOTS * WEFTI_SHM_SMALL, &p));
    port->small = p;
    return WEFT_OK;
}

/* --- plans --- */

/* Plans without endpoints are kept for later use, up to this number: a caller with ever new counts
 * must not fill the memory. */
enum { KEPT = 64, TEXT_BYTES = 64 };

/* Of the last posts others may still read the text. */
static bool is_spare(const wefti_shm_port *port, const wefti_shm_plan *plan) {
    bool spare = plan->endpoints == 0;
    for (int i = 0; i < WEFTI_SHM_SLOTS && spare; i++) spare = port->place[i].plan != plan;
    return spare;
}

/* Takes the oldest unused plan whose text has room for `bytes`. NULL: there is room for a new
 * plan, or no plan can be reused. */
static wefti_shm_plan *take_spare(wefti_shm_port *port, size_t bytes) {
    wefti_shm_plan **oldest = NULL, *plan;
    int spares = 0;
    for (wefti_shm_plan **at = &port->plans; *at; at = &(*at)->next) {
        if (!is_spare(port, *at)) continue;
        if ((*at)->room >= bytes) oldest = at;
        spares++;
    }
    if (spares < KEPT || !oldest) return NULL;
    plan = *oldest;
    *oldest = plan->next;
    return plan;
}

/* The text goes to where others see it, which is kept for ever. */
static weft_status show_text(wefti_shm_world *world, wefti_shm_port *port, wefti_shm_plan *plan) {
    size_t bytes = strlen(plan->text) + 1;
    void *p;
    wefti_shm_plan *spare = take_spare(port, bytes);
    if (spare) {
        plan->shown = spare->shown;
        plan->room = spare->room;
        wefti_arena_destroy(spare->arena);
    } else {
        plan->room = (bytes + TEXT_BYTES - 1) / TEXT_BYTES * TEXT_BYTES;
        WEFT_TRY(world->show(world, plan->room, &p));
        plan->shown = p;
    }
    plan->text = memcpy(plan->shown, plan->text, bytes);
    return WEFT_OK;
}

static weft_status new_plan(wefti_shm_world *world, wefti_shm_port *port, const wefti_transfer *t,
                            wefti_shm_plan **out) {
    wefti_arena *arena;
    wefti_shm_plan *plan;
    WEFT_TRY(wefti_arena_create(&arena));
    weft_status status = wefti_shm_plan_create(arena, t, &plan);
    if (status >= 0 && plan->small) status = wefti_shm_keep_small(world, port);
    if (status >= 0) status = show_text(world, port, plan);
    if (status < 0) {
        wefti_arena_destroy(arena);
        return status;
    }
    plan->arena = arena;
    plan->next = port->plans;
    port->plans = plan;
    *out = plan;
    return WEFT_OK;
}

static weft_status find_plan(wefti_shm_world *world, wefti_shm_port *port, const wefti_transfer *t,
                             wefti_shm_plan **out) {
    for (wefti_shm_plan *plan = port->plans; plan; plan = plan->next)
        if (wefti_shm_plan_fits(plan, t)) {
            *out = plan;
            return WEFT_OK;
        }
    return new_plan(world, port, t, out);
}

static void drop_plans(wefti_shm_channel *channel) {
    for (int32_t m = 0; m < channel->members; m++)
        for (wefti_shm_plan *plan = channel->port[m] ? channel->port[m]->plans : NULL, *next; plan;
             plan = next) {
            next = plan->next;
            wefti_arena_destroy(plan->arena);
        }
}

void wefti_shm_world_end(wefti_shm_world *world) {
    for (int b = 0; b < WEFTI_SHM_BUCKETS; b++)
        for (wefti_shm_channel *c = world->bucket[b]; c; c = c->next) drop_plans(c);
    wefti_arena_destroy(world->arena);
    pthread_mutex_destroy(&world->lock);
}

/* --- endpoints --- */

static weft_status check(const wefti_shm_rank *local, const wefti_transfer *t) {
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

static weft_status find_seat(wefti_shm_world *world, const wefti_transfer *t,
                             wefti_shm_port **out_seat, wefti_shm_plan **out_plan) {
    wefti_shm_channel *channel;
    WEFT_TRY(open_channel(world, t, &channel));
    WEFT_TRY(open_port(world, channel, t->me, out_seat));
    return find_plan(world, *out_seat, t, out_plan);
}

static void release(wefti_shm_endpoint *endpoint) {
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++)
        if (endpoint->bounce[i])
            endpoint->local->world->give(endpoint->local->world, endpoint->bounce[i]);
    endpoint->plan->endpoints--;
    wefti_free(endpoint->blocks);
    wefti_free(endpoint->source);
    wefti_free(endpoint->stage);
    wefti_free(endpoint);
}

weft_status wefti_shm_bind(wefti_comm *comm, const wefti_transfer *transfer, wefti_endpoint **out) {
    wefti_shm_rank *local = (wefti_shm_rank *)comm;
    WEFT_TRY(check(local, transfer));
    wefti_shm_port *port;
    wefti_shm_plan *plan;
    pthread_mutex_lock(&local->world->lock);
    weft_status status = find_seat(local->world, transfer, &port, &plan);
    pthread_mutex_unlock(&local->world->lock);
    WEFT_TRY(status);
    wefti_shm_endpoint *endpoint;
    WEFT_NEW(endpoint, wefti_shm_endpoint);
    endpoint->base.engine = comm->engine;
    endpoint->local = local;
    endpoint->port = port;
    endpoint->plan = plan;
    plan->endpoints++;
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++) endpoint->post[i].endpoint = endpoint;
    endpoint->source = wefti_calloc((size_t)transfer->members,
                                    2 * sizeof *endpoint->source + sizeof *endpoint->streamed);
    if (plan->staged) endpoint->stage = wefti_alloc(WEFTI_COMM_DEPTH * (size_t)plan->bytes);
    bool pulls = local->world->single_copy_bytes > 0 && plan->reduces_runs && !plan->shares;
    if (pulls) endpoint->blocks = wefti_alloc((size_t)transfer->members * WEFTI_SHM_BLOCK);
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
void wefti_shm_unbind(wefti_endpoint *base) {
    if (!base) return;
    wefti_shm_endpoint *endpoint = (wefti_shm_endpoint *)base;
    wefti_shm_rank *local = endpoint->local;
    if (endpoint->posted != endpoint->waited &&
        endpoint->generation == atomic_load(&local->world->generation)) {
        wefti_shm_break(local, WEFT_RANK_OWN, "%s was given up while under way",
                        endpoint->plan->text);
        wefti_shm_quiesce(local);
    }
    release(endpoint);
}
