/* The communicator over messages: any transfer by means of a transport (weft/transport.h). This
 * file makes and ends worlds and binds transfers; see comm/p2p/p2p.h for how it works, and
 * comm/schedule/schedule.h for what it does. */
#include "comm/p2p/p2p.h"

#include <string.h>

#include "base/clock.h"

enum { FLUSH_NS = 1000000000 }; /* how long destroying the world waits for outgoing messages */

/* --- channels --- */

/* What came before anybody here knew of the channel. */
static void meet_strangers(wefti_p2p_world *w, uint64_t id) {
    wefti_p2p_buffer *list = w->strangers;
    w->strangers = NULL;
    while (list) {
        wefti_p2p_buffer *buffer = list;
        list = buffer->next;
        wefti_p2p_header h;
        memcpy(&h, buffer->data, sizeof h);
        if (h.channel == id) {
            wefti_p2p_match(w, buffer->rank, buffer);
        } else {
            buffer->next = w->strangers;
            w->strangers = buffer;
        }
    }
}

static weft_status open_channel(wefti_p2p_world *w, const wefti_transfer *t,
                                wefti_p2p_channel **out) {
    uint64_t id = wefti_transfer_channel(t);
    *out = wefti_p2p_channel_by_id(w, id);
    if (*out) return WEFT_OK;
    size_t members = (size_t)t->members;
    for (int32_t m = 0; m < t->members; m++) WEFT_TRY(wefti_p2p_listen_to(w, t->ranks[m]));
    wefti_p2p_channel *channel = wefti_arena_alloc(w->arena, sizeof *channel);
    wefti_p2p_credit *credit = wefti_arena_alloc(w->arena, members * sizeof *credit);
    int32_t *ranks = wefti_arena_alloc(w->arena, members * sizeof *ranks);
    WEFT_REQUIRE(channel && credit && ranks, WEFT_E_NOMEM, "no memory for a group of %d",
                 (int)t->members);
    memcpy(ranks, t->ranks, members * sizeof *ranks);
    channel->id = id;
    channel->members = t->members;
    channel->ranks = ranks;
    channel->credit = credit;
    channel->last = &channel->first;
    channel->next = w->bucket[id % WEFTI_P2P_BUCKETS];
    w->bucket[id % WEFTI_P2P_BUCKETS] = channel;
    meet_strangers(w, id);
    *out = channel;
    return WEFT_OK;
}

/* --- binding --- */

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* The lists of a post, in one block of memory. */
static weft_status make_posts(wefti_p2p_endpoint *endpoint) {
    const wefti_commsched *plan = endpoint->plan;
    size_t states = rounded((size_t)(plan->sends + plan->receives));
    size_t early = rounded((size_t)plan->receives * sizeof(void *));
    size_t open = rounded((size_t)plan->requests * sizeof(int64_t));
    size_t requests = rounded((size_t)plan->requests * endpoint->world->request_bytes);
    size_t all = requests + states + early + open + rounded((size_t)plan->stage);
    endpoint->memory = wefti_alloc(WEFTI_COMM_DEPTH * all + 64);
    WEFT_REQUIRE(endpoint->memory, WEFT_E_NOMEM, "no memory for %zu bytes under way of %s",
                 WEFTI_COMM_DEPTH * all, plan->text);
    unsigned char *at = endpoint->memory;
    at += 64 - (uintptr_t)at % 64;
    for (int i = 0; i < WEFTI_COMM_DEPTH; i++, at += all) {
        wefti_p2p_post *post = &endpoint->post[i];
        post->endpoint = endpoint;
        post->request = at;
        post->open_message = (int64_t *)(void *)(at + requests);
        post->early = (wefti_p2p_buffer **)(void *)(at + requests + open);
        post->send_state = at + requests + open + early;
        post->receive_state = post->send_state + plan->sends;
        post->stage = at + requests + open + early + states;
    }
    return WEFT_OK;
}

static void release(wefti_p2p_endpoint *endpoint) {
    wefti_commsched_destroy(endpoint->plan);
    wefti_free(endpoint->memory);
    wefti_free(endpoint);
}

static weft_status check(const wefti_comm *comm, const wefti_transfer *t) {
    WEFT_TRY(wefti_transfer_check(t));
    WEFT_REQUIRE(t->ranks[t->me] == comm->rank, WEFT_E_ARG,
                 "a transfer of rank %d is bound by rank %d", (int)t->ranks[t->me],
                 (int)comm->rank);
    WEFT_REQUIRE(t->ranks[t->members - 1] < comm->size, WEFT_E_ARG,
                 "a transfer names rank %d; there are %d", (int)t->ranks[t->members - 1],
                 (int)comm->size);
    return WEFT_OK;
}

static weft_status fill(wefti_p2p_endpoint *endpoint, const wefti_transfer *t) {
    wefti_p2p_world *w = endpoint->world;
    WEFT_TRY(wefti_commsched_create(t, &w->costs, w->host, w->forced, &endpoint->plan));
    WEFT_TRY(make_posts(endpoint));
    pthread_mutex_lock(&w->lock);
    weft_status status = wefti_p2p_reserve(w, 2 + endpoint->plan->sends);
    if (status >= 0) status = open_channel(w, t, &endpoint->channel);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static weft_status p2p_bind(wefti_comm *comm, const wefti_transfer *t, wefti_endpoint **out) {
    WEFT_TRY(check(comm, t));
    wefti_p2p_endpoint *endpoint;
    WEFT_NEW(endpoint, wefti_p2p_endpoint);
    endpoint->base.engine = comm->engine;
    endpoint->world = (wefti_p2p_world *)comm;
    weft_status status = fill(endpoint, t);
    if (status < 0) {
        release(endpoint);
        return status;
    }
    *out = &endpoint->base;
    return WEFT_OK;
}

/* Partners would wait for ever for a post that is given up. */
static void p2p_unbind(wefti_endpoint *base) {
    if (!base) return;
    wefti_p2p_endpoint *endpoint = (wefti_p2p_endpoint *)base;
    wefti_p2p_world *w = endpoint->world;
    pthread_mutex_lock(&w->lock);
    bool under_way = false;
    for (uint32_t i = endpoint->waited; i != endpoint->posted; i++)
        under_way |= !endpoint->post[i % WEFTI_COMM_DEPTH].finished;
    if (under_way && !atomic_load(&w->broken))
        wefti_p2p_break(w, WEFT_RANK_OWN, "%s was given up while under way", endpoint->plan->text);
    if (atomic_load(&w->broken)) wefti_p2p_abort(w);
    pthread_mutex_unlock(&w->lock);
    release(endpoint);
}

/* --- worlds --- */

static void p2p_break_off(wefti_comm *comm, int failed, const char *message) {
    wefti_p2p_world *w = (wefti_p2p_world *)comm;
    wefti_p2p_break(w, failed, "%s", message);
    if (!w->transport.any_thread) return;
    pthread_mutex_lock(&w->lock);
    wefti_p2p_abort(w);
    wefti_p2p_wake(w);
    pthread_mutex_unlock(&w->lock);
}

/* How much of a long message has come no transport tells. */
static bool p2p_moves(wefti_comm *comm) {
    wefti_p2p_world *w = (wefti_p2p_world *)comm;
    uint64_t further = atomic_load_explicit(&w->further, memory_order_relaxed);
    bool moves = further != w->further_seen || atomic_load(&w->receiving) > 0;
    w->further_seen = further;
    return moves;
}

static void free_list(wefti_p2p_buffer *list) {
    while (list) {
        wefti_p2p_buffer *next = list->next;
        wefti_free(list);
        list = next;
    }
}

static void free_buffers(wefti_p2p_world *w) {
    for (wefti_p2p_buffer *b = w->outgoing; b; b = b->next)
        w->transport.cancel(w->transport.context, b->request);
    for (int32_t rank = w->known; rank >= 0; rank = w->peer[rank].next) {
        wefti_p2p_buffer *incoming = w->peer[rank].incoming;
        if (incoming) w->transport.cancel(w->transport.context, incoming->request);
        wefti_free(incoming);
    }
    for (int b = 0; b < WEFTI_P2P_BUCKETS; b++)
        for (wefti_p2p_channel *c = w->bucket[b]; c; c = c->next) free_list(c->early);
    free_list(w->outgoing);
    free_list(w->strangers);
    free_list(w->spare);
}

static void p2p_destroy(wefti_comm *comm) {
    wefti_p2p_world *w = (wefti_p2p_world *)comm;
    if (!w) return;
    wefti_p2p_stop_thread(w);
    if (atomic_load(&w->broken)) wefti_p2p_abort(w);
    int64_t until = wefti_now_ns() + FLUSH_NS;
    while (w->outgoing && wefti_now_ns() < until) (void)wefti_p2p_progress_outgoing(w);
    free_buffers(w);
    if (atomic_load(&w->broken) && w->transport.abandon) w->transport.abandon(w->transport.context);
    if (w->transport.close) w->transport.close(w->transport.context);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->message_lock);
    pthread_mutex_destroy(&w->lock);
    wefti_arena_destroy(w->arena);
    wefti_free(w->peer);
    wefti_free(w);
}

static const wefti_comm_engine engine = {
    .name = "messages",
    .bind = p2p_bind,
    .post = wefti_p2p_post_one,
    .wait = wefti_p2p_wait,
    .test = wefti_p2p_test,
    .attend = wefti_p2p_attend,
    .idle = wefti_p2p_idle,
    .unbind = p2p_unbind,
    .break_off = p2p_break_off,
    .moves = p2p_moves,
    .destroy = p2p_destroy,
};

static weft_status make_locks(wefti_p2p_world *w) {
    bool lock = pthread_mutex_init(&w->lock, NULL) == 0;
    bool message = lock && pthread_mutex_init(&w->message_lock, NULL) == 0;
    pthread_condattr_t monotonic;
    if (message && pthread_condattr_init(&monotonic) == 0) {
        bool wake = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                    pthread_cond_init(&w->wake, &monotonic) == 0;
        pthread_condattr_destroy(&monotonic);
        if (wake) return WEFT_OK;
    }
    if (message) pthread_mutex_destroy(&w->message_lock);
    if (lock) pthread_mutex_destroy(&w->lock);
    WEFT_FAIL(WEFT_E_NOMEM, "no locks for a world of messages");
}

static weft_status create(const weft_transport *transport, wefti_p2p_world **out) {
    wefti_p2p_world *w;
    WEFT_REQUIRE(transport->size >= 1 && transport->rank >= 0 && transport->rank < transport->size,
                 WEFT_E_ARG, "a transport for rank %d of %d", transport->rank, transport->size);
    WEFT_NEW(w, wefti_p2p_world);
    w->engine = engine;
    if (transport->name) w->engine.name = transport->name;
    w->comm = (wefti_comm){.engine = &w->engine, .rank = transport->rank, .size = transport->size};
    w->transport = *transport;
    w->request_bytes = (transport->request_bytes + 15) / 16 * 16;
    w->costs = wefti_commsched_default_costs();
    w->known = -1;
    w->peer = wefti_calloc((size_t)transport->size, sizeof *w->peer);
    weft_status status = w->peer
                             ? wefti_arena_create(&w->arena)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", transport->size);
    if (status >= 0) status = make_locks(w);
    if (status < 0) {
        wefti_arena_destroy(w->arena);
        wefti_free(w->peer);
        wefti_free(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

static weft_status set_up(wefti_p2p_world *w, const wefti_p2p_setup *setup) {
    if (setup && setup->costs) w->costs = *setup->costs;
    if (!setup || !setup->host) return WEFT_OK;
    size_t bytes = (size_t)w->comm.size * sizeof *setup->host;
    int32_t *copy = wefti_arena_alloc(w->arena, bytes);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for the hosts of %d ranks", (int)w->comm.size);
    w->host = memcpy(copy, setup->host, bytes);
    return WEFT_OK;
}

weft_status wefti_comm_p2p(const weft_transport *transport, const wefti_p2p_setup *setup,
                           wefti_comm **out) {
    wefti_p2p_world *w = NULL;
    weft_status status = create(transport, &w);
    if (status < 0) {
        if (transport->close) transport->close(transport->context);
        return status;
    }
    status = set_up(w, setup);
    if (status >= 0) status = wefti_p2p_start_thread(w);
    if (status < 0) {
        p2p_destroy(&w->comm);
        return status;
    }
    *out = &w->comm;
    return WEFT_OK;
}

void wefti_p2p_force(wefti_comm *comm, wefti_commsched_algorithm algorithm) {
    ((wefti_p2p_world *)comm)->forced = algorithm;
}
wefti_commsched_algorithm wefti_p2p_chosen(const wefti_endpoint *endpoint) {
    return ((const wefti_p2p_endpoint *)endpoint)->plan->algorithm;
}
