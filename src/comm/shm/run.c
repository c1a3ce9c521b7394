/* Posting, waiting, and the end of waits when the world breaks.
 *
 * Waiting ranks do all the work, each for itself: a rank takes its data out of the others' memory.
 * A rank that waits for one transfer also progresses all its other posts, in any order in which
 * partners arrive. So ranks that wait in different orders cannot deadlock. */
#include <string.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "comm/shm/shm.h"

static wefti_shm_in_flight *place_of(wefti_shm_port *port, uint64_t number) {
    return wefti_shm_in_flight_of(port, number);
}
static wefti_shm_slot *slot_of_partner(const wefti_shm_port *port, const wefti_shm_partner *partner,
                                       uint64_t number) {
    return wefti_shm_slot_of(port->channel, partner->member, number);
}
static wefti_shm_slot *own_slot(const wefti_shm_port *port, uint64_t number) {
    return wefti_shm_slot_in(port->ring, number);
}

static void ring_member(const wefti_shm_rank *local, const wefti_shm_port *port, int32_t member) {
    wefti_eventcount_notify(&local->world->common->peer[port->channel->places[member]].event,
                            local->world->mode);
}
static void ring_partners(const wefti_shm_rank *local, const wefti_shm_port *port,
                          const wefti_shm_plan *plan) {
    for (int32_t i = 0; i < plan->partners; i++) ring_member(local, port, plan->partner[i].member);
}
/* For posts: one that does not match may have partners that it does not know of. */
static void ring_group(const wefti_shm_rank *local, const wefti_shm_port *port) {
    for (int32_t m = 0; m < port->channel->members; m++)
        if (m != port->me) ring_member(local, port, m);
}

/* Others' memory may be touched from here to leave_memory; false: not any more. A store and then a
 * load, as wefti_shm_quiesce comes after the store to `broken`: one of the two sees the other. */
static bool enter_memory(wefti_shm_rank *local) {
    wefti_shm_peer *peer = &local->world->common->peer[local->place];
    wefti_eventcount_store(&peer->moving, 1, local->world->mode);
    if (!wefti_shm_broken(local)) return true;
    atomic_store(&peer->moving, 0);
    return false;
}
static void leave_memory(wefti_shm_rank *local) {
    atomic_store_explicit(&local->world->common->peer[local->place].moving, 0,
                          memory_order_release);
}

/* --- progress --- */

/* No member looks at posts before the one returned: the last that all are known to have come to. */
static uint64_t first_in_use(const wefti_shm_port *port) {
    uint64_t first = UINT64_MAX;
    for (int32_t m = 0; m < port->channel->members; m++) {
        if (m == port->me) continue;
        uint64_t oldest =
            atomic_load_explicit(&port->channel->ring[m].oldest, memory_order_acquire);
        if (oldest < first) first = oldest;
    }
    return first;
}

/* Whether the slot for the next post is free: its last post is finished, and no partner looks. */
static bool slot_is_free(wefti_shm_port *port) {
    uint64_t number = port->published;
    if (number < WEFTI_SHM_SLOTS || place_of(port, number)->free) return true;
    if (place_of(port, number)->post) return false;
    number -= WEFTI_SHM_SLOTS;
    if (number < port->free_before) return true;
    port->free_before = first_in_use(port);
    if (number < port->free_before) return true;
    const wefti_shm_plan *plan = place_of(port, number)->plan;
    for (int32_t i = 0; i < plan->partners; i++)
        if (atomic_load(&slot_of_partner(port, &plan->partner[i], number)->moved) <= number)
            return false;
    return true;
}

/* Prefetches the cache lines that this member writes next, while it waits and no peer reads them.
 */
static void fetch_slot(wefti_shm_port *port, uint64_t number) {
    wefti_prefetch_for_write((const void *)&own_slot(port, number)->posted);
    wefti_prefetch_for_write((const void *)&own_slot(port, number)->moved);
    wefti_prefetch_for_write((const void *)&own_slot(port, number)->reduced);
}

/* Put a post into the next slot, where the others see it. */
static void publish(wefti_shm_rank *local, wefti_shm_port *port, wefti_shm_post *post) {
    const wefti_shm_plan *plan = post->endpoint->plan;
    uint64_t number = port->published++;
    wefti_shm_slot *slot = own_slot(port, number);
    wefti_shm_in_flight place = {.post = post,
                                 .plan = plan,
                                 .source = post->source,
                                 .destination = post->destination,
                                 .copied = plan->small || post->copied,
                                 .hash = wefti_digest_number(port->hash, plan->hash)};
    port->hash = place.hash;
    bool inside = place.copied && plan->bytes <= WEFTI_SHM_INSIDE;
    if (inside) {
        if (plan->bytes > 0) memcpy(slot->inside, post->source, (size_t)plan->bytes);
    } else if (place.copied) {
        unsigned char *copy = port->small + number % WEFTI_SHM_SLOTS * WEFTI_SHM_SMALL;
        place.source = memcpy(copy, post->source, (size_t)plan->bytes);
    } else if (post->bounce && !post->staging) {
        place.source = post->bounce;
    }
    if (post->staging) wefti_shm_publish_staged(slot, post, number);
    slot->hash = place.hash;
    slot->text = plan->text;
    slot->source = inside ? NULL : post->staging ? post->bounce : place.source;
    slot->destination = post->staging ? NULL : place.destination;
    *place_of(port, number) = place;
    wefti_eventcount_store(&slot->posted, number + 1, local->world->mode);
    ring_group(local, port);
}

/* Says what a partner has posted instead. */
static void break_for_mismatch(wefti_shm_rank *local, const wefti_shm_in_flight *place,
                               int32_t rank, const char *text) {
    char what[WEFTI_COMM_MISMATCH];
    (void)wefti_comm_mismatch(what, place->plan->text, place->post->call, rank, text);
    local->at_fault = true;
    wefti_comm_found(&local->comm, what);
    wefti_shm_break(local, WEFT_RANK_OWN, "%s", what);
}

/* All partners that this member must see before it moves have posted an equal transfer, and equal
 * ones before. A mismatch breaks the world. */
static bool partners_are_there(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    const wefti_shm_in_flight *place = place_of(port, number);
    const wefti_shm_plan *plan = place->plan;
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_shm_partner *partner = &plan->partner[i];
        if (!partner->gives) continue;
        const wefti_shm_slot *slot = slot_of_partner(port, partner, number);
        uint64_t posted = atomic_load(&slot->posted);
        if (posted <= number) return false;
        /* A partner that has moved on does not count this member among its own. */
        if (posted == number + 1 && slot->hash == place->hash) continue;
        const char *text =
            wefti_shm_reach(local->world, port->channel->places[partner->member], slot->text);
        break_for_mismatch(local, place, port->channel->ranks[partner->member],
                           posted == number + 1 ? text : NULL);
        return false;
    }
    return true;
}

/* Whether anything happened. */
static bool move(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    wefti_shm_in_flight *place = place_of(port, number);
    const wefti_shm_plan *plan = place->plan;
    if (!partners_are_there(local, port, number)) return false;
    if (!enter_memory(local)) return false;
    wefti_shm_outcome what = local->world->guarded ? wefti_shm_move_guarded(local, port, number)
                                                   : wefti_shm_move(local, port, number);
    if (what == WEFTI_SHM_MOVED) {
        place->moved = true;
        wefti_eventcount_store(&own_slot(port, number)->moved, number + 1, local->world->mode);
    }
    leave_memory(local);
    if (what == WEFTI_SHM_MOVED) fetch_slot(port, number + 1);
    if (what != WEFTI_SHM_NOTHING) ring_partners(local, port, plan);
    return what != WEFTI_SHM_NOTHING;
}

/* All partners that touch this member's memory have moved. */
static bool memory_is_back(wefti_shm_port *port, uint64_t number) {
    const wefti_shm_plan *plan = place_of(port, number)->plan;
    const wefti_shm_in_flight *place = place_of(port, number);
    /* Boxes are out of use once their owner has moved. */
    if (place->copied || place->post->staging) return true;
    bool all = true;
    for (int32_t i = 0; i < plan->partners; i++) {
        if (!plan->partner[i].touches)
            all = false;
        else if (atomic_load(&slot_of_partner(port, &plan->partner[i], number)->moved) <= number)
            return false;
    }
    place_of(port, number)->free = all;
    return true;
}

/* Carry on with all posts of one seat; whether anything happened. */
static bool progress_seat(wefti_shm_rank *local, wefti_shm_port *port) {
    bool happened = false;
    for (; port->first && slot_is_free(port); happened = true) {
        wefti_shm_post *post = port->first;
        port->first = post->next;
        if (!port->first) port->last = &port->first;
        publish(local, port, post);
    }
    for (uint64_t number = port->oldest; number < port->published; number++) {
        wefti_shm_in_flight *place = place_of(port, number);
        wefti_shm_post *post = place->post;
        if (!post) continue;
        if (!place->moved) {
            happened |= move(local, port, number);
            if (!place->moved) continue;
        }
        if (!memory_is_back(port, number)) continue;
        void *stage = wefti_shm_result_stage(post);
        if (stage) memcpy(post->destination, stage, (size_t)place->plan->bytes);
        post->finished = happened = true;
        place->post = NULL;
    }
    uint64_t oldest = port->oldest;
    while (oldest < port->published && !place_of(port, oldest)->post) oldest++;
    if (oldest != port->oldest)
        atomic_store_explicit(&port->ring->oldest, oldest, memory_order_release);
    port->oldest = oldest;
    return happened;
}

bool wefti_shm_progress(wefti_shm_rank *local) {
    bool happened = local->other_work.count > 0 && local->other_work.carry_on(local);
    for (wefti_shm_port **at = &local->active; *at;) {
        wefti_shm_port *port = *at;
        happened |= progress_seat(local, port);
        if (port->oldest == port->published && !port->first) {
            port->active = false;
            *at = port->next;
        } else {
            at = &port->next;
        }
    }
    return happened;
}

/* --- post and wait --- */

weft_status wefti_shm_start(wefti_endpoint *base, const void *source, void *destination) {
    wefti_shm_endpoint *endpoint = (wefti_shm_endpoint *)base;
    wefti_shm_rank *local = endpoint->local;
    wefti_shm_port *port = endpoint->port;
    uint32_t generation = atomic_load_explicit(&local->world->generation, memory_order_relaxed);
    if (endpoint->generation != generation) {
        endpoint->generation = generation;
        endpoint->posted = endpoint->waited = 0;
    }
    if (endpoint->posted - endpoint->waited >= WEFTI_COMM_DEPTH)
        return wefti_comm_too_many_posts(&local->comm, endpoint->plan->text);
    if (wefti_shm_broken(local)) return wefti_shm_fail(local);
    wefti_shm_post *post = &endpoint->post[endpoint->posted % WEFTI_COMM_DEPTH];
    post->source = source;
    post->destination = destination;
    post->call = base->call;
    post->bounce = NULL;
    post->staging = post->copied = post->single_copy = false;
    post->staged_chunks = post->reduced = post->taken = 0;
    post->finished = false;
    post->next = NULL;
    if (local->world->take) WEFT_TRY(wefti_shm_make_readable(endpoint, post));
    endpoint->posted++;
    if (!port->active) {
        port->active = true;
        port->next = local->active;
        local->active = port;
    }
    if (!port->first && slot_is_free(port)) {
        publish(local, port, post);
    } else {
        *port->last = post;
        port->last = &post->next;
    }
    return WEFT_OK;
}

/* The oldest post of an endpoint. */
static weft_status find_oldest(wefti_shm_endpoint *endpoint, wefti_shm_post **out) {
    wefti_shm_rank *local = endpoint->local;
    if (wefti_shm_broken(local)) return wefti_shm_fail(local);
    if (endpoint->generation != atomic_load(&local->world->generation) ||
        endpoint->posted == endpoint->waited)
        return wefti_comm_not_posted(&local->comm, endpoint->plan->text);
    *out = &endpoint->post[endpoint->waited % WEFTI_COMM_DEPTH];
    return WEFT_OK;
}

weft_status wefti_shm_test(wefti_endpoint *base) {
    wefti_shm_endpoint *endpoint = (wefti_shm_endpoint *)base;
    wefti_shm_post *post;
    WEFT_TRY(find_oldest(endpoint, &post));
    (void)wefti_shm_progress(endpoint->local);
    if (!post->finished)
        return wefti_shm_broken(endpoint->local) ? wefti_shm_fail(endpoint->local) : WEFT_PENDING;
    endpoint->waited++;
    wefti_position_end_wait(endpoint->local->comm.position, false);
    return WEFT_OK;
}

/* Between two looks that found nothing to do. */
typedef struct run_patience {
    int looks;        /* in a row */
    int64_t since_ns; /* of them; 0: not known yet */
    bool told;        /* that this rank waits */
} run_patience;

static void tell(const wefti_shm_rank *local, run_patience *p, const char *what) {
    if (!p->told) wefti_position_begin_wait(local->comm.position, what);
    p->told = true;
}

/* Whether it looks again at once, or after others that may want the core. */
static bool stays_awake(const wefti_shm_rank *local, run_patience *p) {
    enum {
        YIELDS = 32
    }; /* if ranks share cores: yields before the waiting rank sleeps, since a peer may need this
          core */
    int spin = local->world->spin;
    if (p->looks >= (spin > 0 ? spin : YIELDS)) return false;
    p->looks++;
    if (spin == 0)
        sched_yield();
    else if (p->looks > 4)
        wefti_spin_pause();
    else
        wefti_spin_fence();
    return true;
}

/* Until the bell rings, or not longer than that; true: something has happened instead. */
static bool sleep_once(wefti_shm_rank *local, long most_ns) {
    wefti_eventcount *event = &local->world->common->peer[local->place].event;
    uint32_t epoch = wefti_eventcount_prepare(event, local->world->mode);
    bool happened = wefti_shm_progress(local);
    if (happened || wefti_shm_broken(local))
        wefti_eventcount_cancel(event);
    else
        wefti_eventcount_wait(event, epoch, local->world->mode, most_ns);
    return happened;
}

/* Used while other work has no wake-ups. Its polls are expensive: a few of them take as long as a
 * message. In between, this rank yields the core to ranks that compute. */
static bool look_less_often(wefti_shm_rank *local, run_patience *p, const char *what) {
    enum { LOOKS = 32 };
    if (p->looks < LOOKS && stays_awake(local, p)) return false;
    int64_t now = wefti_now_ns();
    if (p->since_ns == 0) p->since_ns = now;
    long ns = wefti_eventcount_backoff(now - p->since_ns);
    if (ns == 0) {
        sched_yield();
        return false;
    }
    tell(local, p, what);
    local->other_work.idle(local, now - p->since_ns);
    return sleep_once(local, ns);
}

static bool wait_for_event(wefti_shm_rank *local, run_patience *p, const char *what) {
    if (stays_awake(local, p)) return false;
    tell(local, p, what);
    p->looks = 0;
    return sleep_once(local, 0);
}

static weft_status look_until(wefti_shm_rank *local, const bool *finished, const char *what) {
    run_patience p = {0};
    for (;;) {
        bool happened = wefti_shm_progress(local);
        if (*finished) break;
        if (wefti_shm_broken(local)) return wefti_shm_fail(local);
        if (!happened)
            happened = local->other_work.count > 0 ? look_less_often(local, &p, what)
                                                   : wait_for_event(local, &p, what);
        if (!happened) continue;
        p = (run_patience){.told = p.told};
        if (p.told) atomic_fetch_add_explicit(&local->further, 1, memory_order_relaxed);
    }
    wefti_position_end_wait(local->comm.position, p.told);
    return WEFT_OK;
}

bool wefti_shm_moves(wefti_shm_rank *local) {
    uint64_t further = atomic_load_explicit(&local->further, memory_order_relaxed);
    bool moves = further != local->further_seen ||
                 atomic_load(&local->world->common->peer[local->place].moving);
    local->further_seen = further;
    return moves;
}

weft_status wefti_shm_wait_until(wefti_shm_rank *local, const bool *finished, const char *what) {
    bool attends = local->other_work.count > 0;
    if (attends) local->other_work.attend(local, true);
    weft_status status = look_until(local, finished, what);
    if (attends) local->other_work.attend(local, false);
    return status;
}

weft_status wefti_shm_wait(wefti_endpoint *base) {
    wefti_shm_endpoint *endpoint = (wefti_shm_endpoint *)base;
    wefti_shm_post *post;
    WEFT_TRY(find_oldest(endpoint, &post));
    WEFT_TRY(wefti_shm_wait_until(endpoint->local, &post->finished, endpoint->plan->text));
    endpoint->waited++;
    return WEFT_OK;
}
