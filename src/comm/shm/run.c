/* Posting, waiting, and what happens when the world breaks.
 *
 * All work is done by ranks that wait, each for itself: it takes what it wants out of the others'
 * memory. Whoever waits, for whatever it is, carries on everything that it has under way, in any
 * order in which partners turn up; so waits in different orders on different ranks cannot lock each
 * other out. */
#include <string.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "comm/shm/shm.h"

static wefti_local_place *place_of(wefti_local_seat *seat, uint64_t number) {
    return wefti_local_place_of(seat, number);
}
static wefti_local_slot *slot_of_partner(const wefti_local_seat *seat,
                                         const wefti_local_partner *partner, uint64_t number) {
    return wefti_local_slot_of(seat->channel, partner->member, number);
}
static wefti_local_slot *own_slot(const wefti_local_seat *seat, uint64_t number) {
    return wefti_local_slot_in(seat->row, number);
}

static void ring_member(const wefti_local *local, const wefti_local_seat *seat, int32_t member) {
    wefti_bell_ring(&local->world->common->line[seat->channel->places[member]].bell,
                    local->world->mode);
}
static void ring_partners(const wefti_local *local, const wefti_local_seat *seat,
                          const wefti_local_plan *plan) {
    for (int32_t i = 0; i < plan->partners; i++) ring_member(local, seat, plan->partner[i].member);
}
/* For posts: one that does not match may have partners that it does not know of. */
static void ring_group(const wefti_local *local, const wefti_local_seat *seat) {
    for (int32_t m = 0; m < seat->channel->members; m++)
        if (m != seat->me) ring_member(local, seat, m);
}

/* Others' memory may be touched from here to leave_memory; false: not any more. A store and then a
 * load, as wefti_local_calm comes after the store to `broken`: one of the two sees the other. */
static bool enter_memory(wefti_local *local) {
    wefti_local_line *line = &local->world->common->line[local->place];
    wefti_bell_show(&line->moving, 1, local->world->mode);
    if (!wefti_local_broken(local)) return true;
    atomic_store(&line->moving, 0);
    return false;
}
static void leave_memory(wefti_local *local) {
    atomic_store_explicit(&local->world->common->line[local->place].moving, 0,
                          memory_order_release);
}

/* --- progress --- */

/* No member looks at posts before the one returned: the last that all are known to have come to. */
static uint64_t first_in_use(const wefti_local_seat *seat) {
    uint64_t first = UINT64_MAX;
    for (int32_t m = 0; m < seat->channel->members; m++) {
        if (m == seat->me) continue;
        uint64_t oldest = atomic_load_explicit(&seat->channel->row[m].oldest, memory_order_acquire);
        if (oldest < first) first = oldest;
    }
    return first;
}

/* Whether the slot for the next post is free: its last post is finished, and no partner looks. */
static bool slot_is_free(wefti_local_seat *seat) {
    uint64_t number = seat->published;
    if (number < WEFTI_LOCAL_RING || place_of(seat, number)->free) return true;
    if (place_of(seat, number)->post) return false;
    number -= WEFTI_LOCAL_RING;
    if (number < seat->free_before) return true;
    seat->free_before = first_in_use(seat);
    if (number < seat->free_before) return true;
    const wefti_local_plan *plan = place_of(seat, number)->plan;
    for (int32_t i = 0; i < plan->partners; i++)
        if (atomic_load(&slot_of_partner(seat, &plan->partner[i], number)->moved) <= number)
            return false;
    return true;
}

/* The lines that this member writes next are fetched while it waits for others, who do not look at
 * them yet. */
static void fetch_slot(wefti_local_seat *seat, uint64_t number) {
    wefti_bell_own((const void *)&own_slot(seat, number)->posted);
    wefti_bell_own((const void *)&own_slot(seat, number)->moved);
    wefti_bell_own((const void *)&own_slot(seat, number)->reduced);
}

/* Put a post into the next slot, where the others see it. */
static void publish(wefti_local *local, wefti_local_seat *seat, wefti_local_post *post) {
    const wefti_local_plan *plan = post->endpoint->plan;
    uint64_t number = seat->published++;
    wefti_local_slot *slot = own_slot(seat, number);
    wefti_local_place place = {.post = post,
                               .plan = plan,
                               .source = post->source,
                               .destination = post->destination,
                               .copied = plan->small || post->copied,
                               .hash = wefti_digest_number(seat->hash, plan->hash)};
    seat->hash = place.hash;
    bool inside = place.copied && plan->bytes <= WEFTI_LOCAL_INSIDE;
    if (inside) {
        if (plan->bytes > 0) memcpy(slot->inside, post->source, (size_t)plan->bytes);
    } else if (place.copied) {
        unsigned char *copy = seat->small + number % WEFTI_LOCAL_RING * WEFTI_LOCAL_SMALL;
        place.source = memcpy(copy, post->source, (size_t)plan->bytes);
    } else if (post->bounce && !post->boxes) {
        place.source = post->bounce;
    }
    if (post->boxes) wefti_local_show_given(slot, post, number);
    slot->hash = place.hash;
    slot->text = plan->text;
    slot->source = inside ? NULL : post->boxes ? post->bounce : place.source;
    slot->destination = post->boxes ? NULL : place.destination;
    *place_of(seat, number) = place;
    wefti_bell_show(&slot->posted, number + 1, local->world->mode);
    ring_group(local, seat);
}

/* Says what a partner has posted instead. */
static void break_for_mismatch(wefti_local *local, const wefti_local_place *place, int32_t rank,
                               const char *text) {
    char what[WEFTI_COMM_MISMATCH];
    local->at_fault = true;
    wefti_local_break(local, WEFT_RANK_OWN, "%s",
                      wefti_comm_mismatch(what, place->plan->text, place->post->call, rank, text));
}

/* All partners that this member must see before it moves have posted an equal transfer, and equal
 * ones before. A mismatch breaks the world. */
static bool partners_are_there(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    const wefti_local_place *place = place_of(seat, number);
    const wefti_local_plan *plan = place->plan;
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_local_partner *partner = &plan->partner[i];
        if (!partner->gives) continue;
        const wefti_local_slot *slot = slot_of_partner(seat, partner, number);
        uint64_t posted = atomic_load(&slot->posted);
        if (posted <= number) return false;
        /* A partner that has moved on does not count this member among its own. */
        if (posted == number + 1 && slot->hash == place->hash) continue;
        const char *text =
            wefti_local_reach(local->world, seat->channel->places[partner->member], slot->text);
        break_for_mismatch(local, place, seat->channel->ranks[partner->member],
                           posted == number + 1 ? text : NULL);
        return false;
    }
    return true;
}

/* Whether anything happened. */
static bool move(wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    wefti_local_place *place = place_of(seat, number);
    const wefti_local_plan *plan = place->plan;
    if (!partners_are_there(local, seat, number)) return false;
    if (!enter_memory(local)) return false;
    wefti_local_outcome what = wefti_local_move(local, seat, number);
    if (what == WEFTI_LOCAL_MOVED) {
        place->moved = true;
        wefti_bell_show(&own_slot(seat, number)->moved, number + 1, local->world->mode);
    }
    leave_memory(local);
    if (what == WEFTI_LOCAL_MOVED) fetch_slot(seat, number + 1);
    if (what != WEFTI_LOCAL_NOTHING) ring_partners(local, seat, plan);
    return what != WEFTI_LOCAL_NOTHING;
}

/* Those who touch this member's memory have moved. */
static bool memory_is_back(wefti_local_seat *seat, uint64_t number) {
    const wefti_local_plan *plan = place_of(seat, number)->plan;
    const wefti_local_place *place = place_of(seat, number);
    /* Boxes are out of use once their owner has moved. */
    if (place->copied || place->post->boxes) return true;
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
            happened |= move(local, seat, number);
            if (!place->moved) continue;
        }
        if (!memory_is_back(seat, number)) continue;
        void *stage = wefti_local_stage(post);
        if (stage) memcpy(post->destination, stage, (size_t)place->plan->bytes);
        post->finished = happened = true;
        place->post = NULL;
    }
    uint64_t oldest = seat->oldest;
    while (oldest < seat->published && !place_of(seat, oldest)->post) oldest++;
    if (oldest != seat->oldest)
        atomic_store_explicit(&seat->row->oldest, oldest, memory_order_release);
    seat->oldest = oldest;
    return happened;
}

bool wefti_local_progress(wefti_local *local) {
    bool happened = local->beside.count > 0 && local->beside.carry_on(local);
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
    WEFT_REQUIRE_OF(
        local->comm.rank, endpoint->posted - endpoint->waited < WEFTI_COMM_DEPTH, WEFT_E_ARG,
        "rank %d: %d posts of %s are under way, and there is room for no more; wait for "
        "the oldest first",
        (int)local->comm.rank, (int)WEFTI_COMM_DEPTH, endpoint->plan->text);
    if (wefti_local_broken(local)) return wefti_local_fail(local);
    wefti_local_post *post = &endpoint->post[endpoint->posted % WEFTI_COMM_DEPTH];
    post->source = source;
    post->destination = destination;
    post->call = base->call;
    post->bounce = NULL;
    post->boxes = post->copied = post->pulled = false;
    post->given = post->reduced = post->taken = 0;
    post->finished = false;
    post->next = NULL;
    if (local->world->take) WEFT_TRY(wefti_local_lend(endpoint, post));
    endpoint->posted++;
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
    if (wefti_local_broken(local)) return wefti_local_fail(local);
    WEFT_REQUIRE_OF(local->comm.rank,
                    endpoint->generation == atomic_load(&local->world->generation) &&
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
    (void)wefti_local_progress(endpoint->local);
    if (!post->finished)
        return wefti_local_broken(endpoint->local) ? wefti_local_fail(endpoint->local)
                                                   : WEFT_PENDING;
    endpoint->waited++;
    wefti_position_end_wait(endpoint->local->comm.position, false);
    return WEFT_OK;
}

/* Between two looks that found nothing to do. */
typedef struct patience {
    int looks;        /* in a row */
    int64_t since_ns; /* of them; 0: not known yet */
    bool told;        /* that this rank waits */
} patience;

static void tell(const wefti_local *local, patience *p, const char *what) {
    if (!p->told) wefti_position_begin_wait(local->comm.position, what);
    p->told = true;
}

/* Whether it looks again at once, or after others that may want the core. */
static bool stays_awake(const wefti_local *local, patience *p) {
    enum { YIELDS = 32 }; /* where ranks share cores: who is waited for may get this one at once */
    int spin = local->world->spin;
    if (p->looks >= (spin > 0 ? spin : YIELDS)) return false;
    p->looks++;
    if (spin == 0)
        sched_yield();
    else if (p->looks > 4)
        wefti_bell_pause();
    else
        wefti_bell_look_again();
    return true;
}

/* Until the bell rings, or not longer than that; true: something has happened instead. */
static bool sleep_once(wefti_local *local, long most_ns) {
    wefti_bell *bell = &local->world->common->line[local->place].bell;
    uint32_t heard = wefti_bell_sleeps(bell, local->world->mode);
    bool happened = wefti_local_progress(local);
    if (happened || wefti_local_broken(local))
        wefti_bell_wakes(bell);
    else
        wefti_bell_sleep(bell, heard, local->world->mode, most_ns);
    return happened;
}

/* Where something lies beside. Looks at that are not cheap, so that a few of them take as long as
 * messages do. Then others get the core in between: those who compute, and where hosts share a
 * machine, which ranks do not know, those who are waited for. */
static bool look_less_often(wefti_local *local, patience *p, const char *what) {
    enum { LOOKS = 32 };
    if (p->looks < LOOKS && stays_awake(local, p)) return false;
    int64_t now = wefti_now_ns();
    if (p->since_ns == 0) p->since_ns = now;
    long ns = wefti_bell_nap(now - p->since_ns);
    if (ns == 0) {
        sched_yield();
        return false;
    }
    tell(local, p, what);
    local->beside.linger(local, now - p->since_ns);
    return sleep_once(local, ns);
}

static bool wait_for_bell(wefti_local *local, patience *p, const char *what) {
    if (stays_awake(local, p)) return false;
    tell(local, p, what);
    p->looks = 0;
    return sleep_once(local, 0);
}

static weft_status look_until(wefti_local *local, const bool *finished, const char *what) {
    patience p = {0};
    for (;;) {
        bool happened = wefti_local_progress(local);
        if (*finished) break;
        if (wefti_local_broken(local)) return wefti_local_fail(local);
        if (!happened)
            happened = local->beside.count > 0 ? look_less_often(local, &p, what)
                                               : wait_for_bell(local, &p, what);
        if (!happened) continue;
        p = (patience){.told = p.told};
        if (p.told) atomic_fetch_add_explicit(&local->further, 1, memory_order_relaxed);
    }
    wefti_position_end_wait(local->comm.position, p.told);
    return WEFT_OK;
}

bool wefti_local_moves(wefti_local *local) {
    uint64_t further = atomic_load_explicit(&local->further, memory_order_relaxed);
    bool moves = further != local->further_seen ||
                 atomic_load(&local->world->common->line[local->place].moving);
    local->further_seen = further;
    return moves;
}

weft_status wefti_local_wait_until(wefti_local *local, const bool *finished, const char *what) {
    bool attends = local->beside.count > 0;
    if (attends) local->beside.attend(local, true);
    weft_status status = look_until(local, finished, what);
    if (attends) local->beside.attend(local, false);
    return status;
}

weft_status wefti_local_wait(wefti_endpoint *base) {
    wefti_local_endpoint *endpoint = (wefti_local_endpoint *)base;
    wefti_local_post *post;
    WEFT_TRY(find_oldest(endpoint, &post));
    WEFT_TRY(wefti_local_wait_until(endpoint->local, &post->finished, endpoint->plan->text));
    endpoint->waited++;
    return WEFT_OK;
}
