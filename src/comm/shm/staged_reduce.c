/* All-reduces of shares among members some of whom have memory that others cannot reach.
 *
 * Such a member has boxes that all reach, WEFTI_LOCAL_BOXES in turn for each other member, and
 * shows its source in them chunk by chunk: chunk k of everybody's share. Who reduces a share takes
 * its chunk k out of the sources within reach and the boxes of the others, and writes the result
 * back to where it has read; the owner of the boxes then takes it home. So boxes stay in the caches
 * of the two cores that use them, and memory itself is read and written no more often than where
 * all is mapped. Words in the slots say how far each member is: `given` chunks lie in boxes,
 * `reduced` ones of the own share have reached everybody. */
#include "comm/copy.h"
#include "comm/shm/shm.h"

enum { LINE = 64 };

static int64_t box_bytes(const wefti_local_plan *plan) {
    int64_t bytes = plan->chunk * (int64_t)weft_dtype_bytes(plan->transfer.dtype);
    return (bytes + LINE - 1) / LINE * LINE;
}
/* The box for chunk k of the share of `member`. */
static void *box_of(const wefti_local_plan *plan, void *boxes, int64_t k, int32_t member) {
    int64_t n = (int64_t)((uint64_t)k % WEFTI_LOCAL_BOXES) * plan->transfer.members + member;
    return (char *)boxes + n * box_bytes(plan);
}
static size_t all_boxes(const wefti_local_plan *plan) {
    int64_t boxes = plan->chunks < WEFTI_LOCAL_BOXES ? plan->chunks : WEFTI_LOCAL_BOXES;
    return (size_t)(boxes * plan->transfer.members * box_bytes(plan));
}
/* Where chunk k of a share begins, in bytes, and its elements. */
static int64_t find_chunk(const wefti_local_plan *plan, int64_t first, int64_t all, int64_t k,
                          int64_t *count) {
    int64_t left = all - k * plan->chunk;
    *count = left < 0 ? 0 : left < plan->chunk ? left : plan->chunk;
    return (first + k * plan->chunk) * (int64_t)weft_dtype_bytes(plan->transfer.dtype);
}

/* A member's boxes, here; NULL: all of its memory is in reach. */
static void *boxes_of(const wefti_local *local, wefti_local_seat *seat, int32_t member,
                      uint64_t number) {
    if (member == seat->me) return wefti_local_place_of(seat, number)->post->bounce;
    const wefti_local_slot *slot = wefti_local_slot_of(seat->channel, member, number);
    if (slot->destination) return NULL;
    return wefti_local_reach(local->world, seat->channel->places[member], slot->source);
}

static void give(wefti_local_post *post) {
    const wefti_local_plan *plan = post->endpoint->plan;
    size_t bytes = weft_dtype_bytes(plan->transfer.dtype);
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_local_partner *p = &plan->partner[i];
        int64_t count, at = find_chunk(plan, p->first, p->count, post->given, &count);
        memcpy(box_of(plan, post->bounce, post->given, p->member), (const char *)post->source + at,
               (size_t)count * bytes);
    }
    post->given++;
}
static bool can_give(const wefti_local_post *post) {
    const wefti_local_plan *plan = post->endpoint->plan;
    return post->bounce && post->given < plan->chunks &&
           post->given - post->taken < WEFTI_LOCAL_BOXES;
}

weft_status wefti_local_give_boxes(wefti_local_endpoint *endpoint, wefti_local_post *post) {
    wefti_local_world *world = endpoint->local->world;
    void **boxes = &endpoint->bounce[post - endpoint->post];
    if (!*boxes) WEFT_TRY(world->take(world, all_boxes(endpoint->plan), boxes));
    post->bounce = *boxes;
    post->boxes = true;
    while (can_give(post)) give(post);
    return WEFT_OK;
}

void wefti_local_show_given(wefti_local_slot *slot, const wefti_local_post *post, uint64_t number) {
    atomic_store_explicit(&slot->given, wefti_local_mark(number, post->given),
                          memory_order_relaxed);
}

static bool can_reduce(const wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    const wefti_local_post *post = wefti_local_place_of(seat, number)->post;
    const wefti_local_plan *plan = post->endpoint->plan;
    if (post->reduced == plan->chunks) return false;
    for (int32_t i = 0; i < plan->partners; i++) {
        int32_t member = plan->partner[i].member;
        wefti_local_slot *slot = wefti_local_slot_of(seat->channel, member, number);
        if (boxes_of(local, seat, member, number) &&
            atomic_load(&slot->given) <= wefti_local_mark(number, post->reduced))
            return false;
    }
    return true;
}

static void reduce(const wefti_local *local, wefti_local_seat *seat, uint64_t number) {
    wefti_local_post *post = wefti_local_place_of(seat, number)->post;
    const wefti_local_endpoint *endpoint = post->endpoint;
    const wefti_local_plan *plan = endpoint->plan;
    int64_t count, at = find_chunk(plan, plan->first, plan->count, post->reduced, &count);
    for (int32_t m = 0; m < plan->transfer.members; m++) {
        void *boxes = m == seat->me ? NULL : boxes_of(local, seat, m, number);
        endpoint->streamed[m] = m == seat->me && post->bounce && plan->streams_others &&
                                post->source != post->destination;
        if (boxes) {
            endpoint->destination[m] = box_of(plan, boxes, post->reduced, seat->me);
            endpoint->source[m] = endpoint->destination[m];
        } else {
            endpoint->source[m] = (const char *)wefti_local_source(local, seat, m, number) + at;
            endpoint->destination[m] = (char *)wefti_local_destination(local, seat, m, number) + at;
        }
    }
    bool *streamed = endpoint->streamed[seat->me] ? endpoint->streamed : NULL;
    if (count > 0)
        wefti_move_reduce_to_all(plan->transfer.dtype, plan->transfer.reduction, endpoint->source,
                                 endpoint->destination, streamed, plan->transfer.members, 0, count);
    post->reduced++;
}

static bool can_take(const wefti_local_seat *seat, const wefti_local_post *post, uint64_t number) {
    const wefti_local_plan *plan = post->endpoint->plan;
    if (!post->bounce || post->taken == post->given) return false;
    for (int32_t i = 0; i < plan->partners; i++) {
        wefti_local_slot *slot =
            wefti_local_slot_of(seat->channel, plan->partner[i].member, number);
        if (atomic_load(&slot->reduced) <= wefti_local_mark(number, post->taken)) return false;
    }
    return true;
}

static void take(wefti_local_post *post) {
    const wefti_local_plan *plan = post->endpoint->plan;
    size_t bytes = weft_dtype_bytes(plan->transfer.dtype);
    bool streams = plan->streams_others && post->source != post->destination;
    wefti_copy_form form = wefti_copy_best();
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_local_partner *p = &plan->partner[i];
        int64_t count, at = find_chunk(plan, p->first, p->count, post->taken, &count);
        wefti_copy_part(form, (char *)post->destination + at,
                        box_of(plan, post->bounce, post->taken, p->member), (size_t)count * bytes,
                        streams ? WEFTI_COPY_ALL : 0);
    }
    if (++post->taken == plan->chunks && streams) wefti_copy_order();
}

wefti_local_outcome wefti_local_move_boxes(wefti_local *local, wefti_local_seat *seat,
                                           uint64_t number) {
    wefti_local_post *post = wefti_local_place_of(seat, number)->post;
    wefti_local_slot *own = wefti_local_slot_in(seat->row, number);
    const wefti_local_plan *plan = post->endpoint->plan;
    wefti_local_outcome outcome = WEFTI_LOCAL_NOTHING;
    for (bool happened = true; happened;) {
        if (wefti_local_broken(local)) return WEFTI_LOCAL_NOTHING;
        happened = false;
        if (can_give(post)) {
            give(post);
            wefti_bell_show(&own->given, wefti_local_mark(number, post->given), local->world->mode);
            happened = true;
        }
        if (can_reduce(local, seat, number)) {
            reduce(local, seat, number);
            wefti_bell_show(&own->reduced, wefti_local_mark(number, post->reduced),
                            local->world->mode);
            happened = true;
        }
        if (can_take(seat, post, number)) {
            take(post);
            happened = true;
        }
        if (happened) outcome = WEFTI_LOCAL_FURTHER;
    }
    bool all = post->reduced == plan->chunks && (!post->bounce || post->taken == plan->chunks);
    return all ? WEFTI_LOCAL_MOVED : outcome;
}
