/* Posting, waiting, and what happens when the world breaks.
 *
 * All work is done by ranks that wait, each for itself: it takes what it wants out of the others'
 * memory. Whoever waits, for whatever it is, carries on everything that it has under way, in any
 * order in which partners turn up; so waits in different orders on different ranks cannot lock each
 * other out. */
#include "comm/local.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

static wefti_local_slot *slot_of(wefti_local_seat *seat, uint64_t number) {
    return &seat->slot[number % WEFTI_LOCAL_RING];
}
static wefti_local_slot *slot_of_partner(const wefti_local_seat *seat,
                                         const wefti_local_partner *partner, uint64_t number) {
    return slot_of(&seat->channel->seat[partner->member], number);
}

static void ring_partners(const wefti_local *local, const wefti_local_seat *seat,
                          const wefti_local_plan *plan) {
    for (int32_t i = 0; i < plan->partners; i++)
        wefti_bell_ring(&local->world->rank[seat->channel->ranks[plan->partner[i].member]].bell);
}
/* For posts: one that does not match may have partners that it does not know of. */
static void ring_group(const wefti_local *local, const wefti_local_seat *seat) {
    for (int32_t m = 0; m < seat->channel->members; m++)
        if (m != seat->me) wefti_bell_ring(&local->world->rank[seat->channel->ranks[m]].bell);
}

/* --- breaking --- */

void wefti_local_break(wefti_local *local, const char *format, ...) {
    wefti_local_world *world = local->world;
    pthread_mutex_lock(&world->lock);
    if (!atomic_load(&world->broken)) {
        int n = snprintf(world->message, sizeof world->message, "rank %d: ", (int)local->comm.rank);
        va_list args;
        va_start(args, format);
        (void)vsnprintf(world->message + n, sizeof world->message - (size_t)n, format, args);
        va_end(args);
        atomic_store(&world->broken, 1);
        for (int32_t r = 0; r < world->size; r++) wefti_bell_ring(&world->rank[r].bell);
    }
    pthread_mutex_unlock(&world->lock);
}

void wefti_local_calm(wefti_local *local) {
    wefti_local_world *world = local->world;
    wefti_bell_barrier(world->light);
    for (int32_t r = 0; r < world->size; r++)
        while (r != local->comm.rank && atomic_load(&world->rank[r].moving)) sched_yield();
}

static weft_status fail_broken(wefti_local *local) {
    wefti_local_calm(local);
    return wefti_adopt(local->at_fault ? WEFT_E_MISMATCH : WEFT_E_PEER, local->world->message);
}

/* Others' memory may be touched from here to leave_memory; false: not any more. A store and then a
 * load, as wefti_local_calm comes after the store to `broken`: one of the two sees the other. */
static bool enter_memory(wefti_local *local) {
    wefti_bell_show(&local->moving, 1, local->world->light);
    if (!atomic_load(&local->world->broken)) return true;
    atomic_store(&local->moving, 0);
    return false;
}
static void leave_memory(wefti_local *local) {
    atomic_store_explicit(&local->moving, 0, memory_order_release);
}

/* --- progress --- */

static wefti_local_place *place_of(wefti_local_seat *seat, uint64_t number) {
    return &seat->place[number % WEFTI_LOCAL_RING];
}

/* Whether the slot for the next post is free: its last post is finished, and no partner looks. */
static bool slot_is_free(wefti_local_seat *seat) {
    uint64_t number = seat->published;
    if (number < WEFTI_LOCAL_RING || place_of(seat, number)->free) return true;
    if (place_of(seat, number)->post) return false;
    number -= WEFTI_LOCAL_RING;
    const wefti_local_plan *plan = place_of(seat, number)->plan;
    for (int32_t i = 0; i < plan->partners; i++)
        if (atomic_load(&slot_of_partner(seat, &plan->partner[i], number)->moved) <= number)
            return false;
    return true;
}

/* The lines that this member writes next are fetched while it waits for others, who do not look at
 * them yet. */
static void fetch_slot(wefti_local_seat *seat, uint64_t number) {
    wefti_bell_own((const void *)&slot_of(seat, number)->posted);
    wefti_bell_own((const void *)&slot_of(seat, number)->moved);
}

/* Put a post into the next slot, where the others see it. */
static void publish(wefti_local *local, wefti_local_seat *seat, wefti_local_post *post) {
    const wefti_local_plan *plan = post->endpoint->plan;
    uint64_t number = seat->published++;
    wefti_local_slot *slot = slot_of(seat, number);
    slot->plan = plan;
    const void *source = post->source;
    if (plan->small && plan->bytes > 0) {
        unsigned char *copy = seat->small + number % WEFTI_LOCAL_RING * WEFTI_LOCAL_SMALL;
        source = memcpy(copy, post->source, (size_t)plan->bytes);
    }
    slot->source = source;
    slot->destination = post->destination;
    *place_of(seat, number) = (wefti_local_place){.post = post, .plan = plan, .source = source};
    wefti_bell_show(&slot->posted, number + 1, local->world->light);
    ring_group(local, seat);
}

/* All partners that this member must see before it moves have posted an equal transfer. A mismatch
 * breaks the world. */
static bool partners_are_there(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    const wefti_local_plan *plan = place_of(seat, number)->plan;
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_local_partner *partner = &plan->partner[i];
        if (!partner->gives) continue;
        const wefti_local_slot *slot = slot_of_partner(seat, partner, number);
        uint64_t posted = atomic_load(&slot->posted);
        if (posted <= number) return false;
        /* A partner that has moved on does not count this member among its own. */
        if (posted == number + 1 && slot->plan->hash == plan->hash) continue;
        local->at_fault = true;
        wefti_local_break(local,
                          "posts %s where rank %d posts %s; transfers of one group and tag must "
                          "be equal on all members and posted in the same order",
                          plan->text, (int)seat->channel->ranks[partner->member],
                          posted == number + 1 ? slot->plan->text : "something else");
        return false;
    }
    return true;
}

static const void *source_of(wefti_local_seat *seat, int32_t member, uint64_t number) {
    return member == seat->me ? place_of(seat, number)->source
                              : slot_of(&seat->channel->seat[member], number)->source;
}

static void move_shares(wefti_local_seat *seat, const wefti_local_post *post, uint64_t number) {
    const wefti_local_endpoint *endpoint = post->endpoint;
    const wefti_local_plan *plan = endpoint->plan;
    for (int32_t m = 0; m < plan->transfer.members; m++) {
        endpoint->source[m] = source_of(seat, m, number);
        endpoint->destination[m] = m == seat->me
                                       ? post->destination
                                       : slot_of(&seat->channel->seat[m], number)->destination;
    }
    wefti_move_reduce_to_all(plan->transfer.dtype, plan->transfer.reduction, endpoint->source,
                             endpoint->destination, plan->transfer.members, plan->first,
                             plan->count);
}

/* Where the result of a post lies while others read the source that it replaces; NULL: there is no
 * such. */
static void *stage_of(const wefti_local_post *post) {
    const wefti_local_endpoint *endpoint = post->endpoint;
    if (!endpoint->plan->staged || post->source != post->destination) return NULL;
    return (char *)endpoint->stage + (post - endpoint->post) * endpoint->plan->bytes;
}

static void move_parts(wefti_local_seat *seat, const wefti_local_post *post, uint64_t number) {
    const wefti_local_endpoint *endpoint = post->endpoint;
    const wefti_local_plan *plan = endpoint->plan;
    void *stage = stage_of(post);
    for (int64_t n = 0; n < plan->moves; n++) {
        const wefti_move *move = &plan->move[n];
        for (int32_t s = 0; s < move->sources; s++)
            endpoint->source[s] = source_of(seat, move->members[s], number);
        wefti_move_run(move, endpoint->source, stage ? stage : post->destination);
    }
}

static bool move(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    wefti_local_place *place = place_of(seat, number);
    const wefti_local_post *post = place->post;
    const wefti_local_plan *plan = place->plan;
    if (!partners_are_there(local, seat, number)) return false;
    if (!enter_memory(local)) return false;
    if (plan->shares)
        move_shares(seat, post, number);
    else
        move_parts(seat, post, number);
    place->moved = true;
    wefti_bell_show(&slot_of(seat, number)->moved, number + 1, local->world->light);
    leave_memory(local);
    fetch_slot(seat, number + 1);
    ring_partners(local, seat, plan);
    return true;
}

/* Those who touch this member's memory have moved. */
static bool memory_is_back(wefti_local_seat *seat, uint64_t number) {
    const wefti_local_plan *plan = place_of(seat, number)->plan;
    bool all = true;
    for (int32_t i = 0; i < plan->partners; i++) {
        if (!plan->partner[i].touches)
            all = false;
        else if (atomic_load(&slot_of_partner(seat, &plan->partner[i], number)->moved) <= number)
            return false;
    }
    place_of(seat, number)->free = all;
    return true;
}

/* Carry on with all posts of one seat; whether anything happened. */
static bool progress_seat(wefti_local *local, wefti_local_seat *seat) {
    bool happened = false;
    for (; seat->first && slot_is_free(seat); happened = true) {
        wefti_local_post *post = seat->first;
        seat->first = post->next;
        if (!seat->first) seat->last = &seat->first;
        publish(local, seat, post);
    }
    for (uint64_t number = seat->oldest; number < seat->published; number++) {
        wefti_local_place *place = place_of(seat, number);
        wefti_local_post *post = place->post;
        if (!post) continue;
        if (!place->moved) {
            if (!move(local, seat, number)) continue;
            happened = true;
        }
        if (!memory_is_back(seat, number)) continue;
        void *stage = stage_of(post);
        if (stage) memcpy(post->destination, stage, (size_t)post->endpoint->plan->bytes);
        post->finished = happened = true;
        place->post = NULL;
    }
    while (seat->oldest < seat->published && !place_of(seat, seat->oldest)->post) seat->oldest++;
    return happened;
}

static bool progress(wefti_local *local) {
    bool happened = false;
    for (wefti_local_seat **at = &local->active; *at;) {
        wefti_local_seat *seat = *at;
        happened |= progress_seat(local, seat);
        if (seat->oldest == seat->published && !seat->first) {
            seat->active = false;
            *at = seat->next;
        } else {
            at = &seat->next;
        }
    }
    return happened;
}

/* --- post and wait --- */

weft_status wefti_local_start(wefti_endpoint *base, const void *source, void *destination) {
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local *local = endpoint->local;
    wefti_local_seat *seat = endpoint->seat;
    uint32_t generation = atomic_load_explicit(&local->world->generation, memory_order_relaxed);
    if (endpoint->generation != generation) {
        endpoint->generation = generation;
        endpoint->posted = endpoint->waited = 0;
    }
    WEFT_REQUIRE(endpoint->posted - endpoint->waited < WEFTI_COMM_DEPTH, WEFT_E_ARG,
                 "rank %d: %d posts of %s are under way, and there is room for no more; wait for "
                 "the oldest first",
                 (int)local->comm.rank, (int)WEFTI_COMM_DEPTH, endpoint->plan->text);
    if (atomic_load_explicit(&local->world->broken, memory_order_acquire))
        return fail_broken(local);
    wefti_local_post *post = &endpoint->post[endpoint->posted++ % WEFTI_COMM_DEPTH];
    post->source = source;
    post->destination = destination;
    post->finished = false;
    post->next = NULL;
    if (!seat->active) {
        seat->active = true;
        seat->next = local->active;
        local->active = seat;
    }
    if (!seat->first && slot_is_free(seat)) {
        publish(local, seat, post);
    } else {
        *seat->last = post;
        seat->last = &post->next;
    }
    return WEFT_OK;
}

/* The oldest post of an endpoint. */
static weft_status find_oldest(wefti_local_endpoint *endpoint, wefti_local_post **out) {
    wefti_local *local = endpoint->local;
    wefti_local_world *world = local->world;
    if (atomic_load(&world->broken)) return fail_broken(local);
    WEFT_REQUIRE(endpoint->generation == atomic_load(&world->generation) &&
                     endpoint->posted != endpoint->waited,
                 WEFT_E_ARG, "rank %d waits for %s, which is not posted", (int)local->comm.rank,
                 endpoint->plan->text);
    *out = &endpoint->post[endpoint->waited % WEFTI_COMM_DEPTH];
    return WEFT_OK;
}

weft_status wefti_local_test(wefti_endpoint *base) {
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local_post *post;
    WEFT_TRY(find_oldest(endpoint, &post));
    (void)progress(endpoint->local);
    if (!post->finished) {
        if (atomic_load(&endpoint->local->world->broken)) return fail_broken(endpoint->local);
        return WEFT_PENDING;
    }
    endpoint->waited++;
    wefti_position_end_wait(endpoint->local->comm.position, false);
    return WEFT_OK;
}

weft_status wefti_local_wait(wefti_endpoint *base) {
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local *local = endpoint->local;
    wefti_local_world *world = local->world;
    wefti_local_post *post;
    bool told = false;
    WEFT_TRY(find_oldest(endpoint, &post));
    for (int spun = 0;;) {
        bool happened = progress(local);
        if (post->finished) break;
        if (atomic_load(&world->broken)) return fail_broken(local);
        if (happened) {
            spun = 0;
        } else if (spun < world->spin) {
            if (++spun > 4) wefti_bell_pause();
        } else {
            if (!told) wefti_position_begin_wait(local->comm.position, endpoint->plan->text);
            told = true;
            uint32_t heard = wefti_bell_sleeps(&local->bell, world->light);
            if (progress(local) || atomic_load(&world->broken))
                wefti_bell_wakes(&local->bell);
            else
                wefti_bell_sleep(&local->bell, heard);
            spun = 0;
        }
    }
    endpoint->waited++;
    wefti_position_end_wait(local->comm.position, told);
    return WEFT_OK;
}
