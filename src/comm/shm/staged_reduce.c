/* All-reduces by shares among members some of which have memory that others cannot reach.
 *
 * Such a member has staging buffers that all members reach, WEFTI_SHM_STAGING_BUFFERS for each
 * other member, used in turn. It shows its source in them chunk by chunk: chunk k of each member's
 * share. The member that reduces a share reads chunk k out of reachable sources and staging
 * buffers, and writes the result back to the same places. The owner of the buffers then copies the
 * result home. Buffers stay in the caches of two cores, and memory is read and written no more
 * often than with mapped memory. Words in the slots count chunks: `staged_chunks` lie in buffers;
 * `reduced` chunks of the own share have reached all members. */
#include "comm/copy.h"
#include "comm/shm/shm.h"

enum { STAGED_REDUCE_LINE = 64 };

static int64_t box_bytes(const wefti_shm_plan *plan) {
    int64_t bytes = plan->chunk * (int64_t)weft_dtype_bytes(plan->transfer.dtype);
    return (bytes + STAGED_REDUCE_LINE - 1) / STAGED_REDUCE_LINE * STAGED_REDUCE_LINE;
}
/* The box for chunk k of the share of `member`. */
static void *box_of(const wefti_shm_plan *plan, void *staging, int64_t k, int32_t member) {
    int64_t n =
        (int64_t)((uint64_t)k % WEFTI_SHM_STAGING_BUFFERS) * plan->transfer.members + member;
    return (char *)staging + n * box_bytes(plan);
}
static size_t all_boxes(const wefti_shm_plan *plan) {
    int64_t staging =
        plan->chunks < WEFTI_SHM_STAGING_BUFFERS ? plan->chunks : WEFTI_SHM_STAGING_BUFFERS;
    return (size_t)(staging * plan->transfer.members * box_bytes(plan));
}
/* Where chunk k of a share begins, in bytes, and its elements. */
static int64_t find_chunk(const wefti_shm_plan *plan, int64_t first, int64_t all, int64_t k,
                          int64_t *count) {
    int64_t left = all - k * plan->chunk;
    *count = left < 0 ? 0 : left < plan->chunk ? left : plan->chunk;
    return (first + k * plan->chunk) * (int64_t)weft_dtype_bytes(plan->transfer.dtype);
}

/* A member's boxes, here; NULL: all of its memory is in reach. */
static void *boxes_of(const wefti_shm_rank *local, wefti_shm_port *port, int32_t member,
                      uint64_t number) {
    if (member == port->me) return wefti_shm_in_flight_of(port, number)->post->bounce;
    const wefti_shm_slot *slot = wefti_shm_slot_of(port->channel, member, number);
    if (slot->destination) return NULL;
    return wefti_shm_reach(local->world, port->channel->places[member], slot->source);
}

static void give(wefti_shm_post *post) {
    const wefti_shm_plan *plan = post->endpoint->plan;
    size_t bytes = weft_dtype_bytes(plan->transfer.dtype);
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_shm_partner *p = &plan->partner[i];
        int64_t count, at = find_chunk(plan, p->first, p->count, post->staged_chunks, &count);
        memcpy(box_of(plan, post->bounce, post->staged_chunks, p->member),
               (const char *)post->source + at, (size_t)count * bytes);
    }
    post->staged_chunks++;
}
static bool can_give(const wefti_shm_post *post) {
    const wefti_shm_plan *plan = post->endpoint->plan;
    return post->bounce && post->staged_chunks < plan->chunks &&
           post->staged_chunks - post->taken < WEFTI_SHM_STAGING_BUFFERS;
}

weft_status wefti_shm_stage_reduce(wefti_shm_endpoint *endpoint, wefti_shm_post *post) {
    wefti_shm_world *world = endpoint->local->world;
    void **staging = &endpoint->bounce[post - endpoint->post];
    if (!*staging) WEFT_TRY(world->take(world, all_boxes(endpoint->plan), staging));
    post->bounce = *staging;
    post->staging = true;
    while (can_give(post)) give(post);
    return WEFT_OK;
}

void wefti_shm_publish_staged(wefti_shm_slot *slot, const wefti_shm_post *post, uint64_t number) {
    atomic_store_explicit(&slot->staged_chunks, wefti_shm_mark(number, post->staged_chunks),
                          memory_order_relaxed);
}

static bool can_reduce(const wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    const wefti_shm_post *post = wefti_shm_in_flight_of(port, number)->post;
    const wefti_shm_plan *plan = post->endpoint->plan;
    if (post->reduced == plan->chunks) return false;
    for (int32_t i = 0; i < plan->partners; i++) {
        int32_t member = plan->partner[i].member;
        wefti_shm_slot *slot = wefti_shm_slot_of(port->channel, member, number);
        if (boxes_of(local, port, member, number) &&
            atomic_load(&slot->staged_chunks) <= wefti_shm_mark(number, post->reduced))
            return false;
    }
    return true;
}

static void reduce(const wefti_shm_rank *local, wefti_shm_port *port, uint64_t number) {
    wefti_shm_post *post = wefti_shm_in_flight_of(port, number)->post;
    const wefti_shm_endpoint *endpoint = post->endpoint;
    const wefti_shm_plan *plan = endpoint->plan;
    int64_t count, at = find_chunk(plan, plan->first, plan->count, post->reduced, &count);
    for (int32_t m = 0; m < plan->transfer.members; m++) {
        void *staging = m == port->me ? NULL : boxes_of(local, port, m, number);
        endpoint->streamed[m] = m == port->me && post->bounce && plan->streams_others &&
                                post->source != post->destination;
        if (staging) {
            endpoint->destination[m] = box_of(plan, staging, post->reduced, port->me);
            endpoint->source[m] = endpoint->destination[m];
        } else {
            endpoint->source[m] = (const char *)wefti_shm_source(local, port, m, number) + at;
            endpoint->destination[m] = (char *)wefti_shm_destination(local, port, m, number) + at;
        }
    }
    bool *streamed = endpoint->streamed[port->me] ? endpoint->streamed : NULL;
    if (count > 0)
        wefti_move_reduce_to_all(plan->transfer.dtype, plan->transfer.reduction, endpoint->source,
                                 endpoint->destination, streamed, plan->transfer.members, 0, count);
    post->reduced++;
}

static bool can_take(const wefti_shm_port *port, const wefti_shm_post *post, uint64_t number) {
    const wefti_shm_plan *plan = post->endpoint->plan;
    if (!post->bounce || post->taken == post->staged_chunks) return false;
    for (int32_t i = 0; i < plan->partners; i++) {
        wefti_shm_slot *slot = wefti_shm_slot_of(port->channel, plan->partner[i].member, number);
        if (atomic_load(&slot->reduced) <= wefti_shm_mark(number, post->taken)) return false;
    }
    return true;
}

static void take(wefti_shm_post *post) {
    const wefti_shm_plan *plan = post->endpoint->plan;
    size_t bytes = weft_dtype_bytes(plan->transfer.dtype);
    bool streams = plan->streams_others && post->source != post->destination;
    wefti_copy_form form = wefti_copy_best();
    for (int32_t i = 0; i < plan->partners; i++) {
        const wefti_shm_partner *p = &plan->partner[i];
        int64_t count, at = find_chunk(plan, p->first, p->count, post->taken, &count);
        wefti_copy_part(form, (char *)post->destination + at,
                        box_of(plan, post->bounce, post->taken, p->member), (size_t)count * bytes,
                        streams ? WEFTI_COPY_ALL : 0);
    }
    if (++post->taken == plan->chunks && streams) wefti_copy_order();
}

wefti_shm_outcome wefti_shm_move_staged_reduce(wefti_shm_rank *local, wefti_shm_port *port,
                                               uint64_t number) {
    wefti_shm_post *post = wefti_shm_in_flight_of(port, number)->post;
    wefti_shm_slot *own = wefti_shm_slot_in(port->ring, number);
    const wefti_shm_plan *plan = post->endpoint->plan;
    wefti_shm_outcome outcome = WEFTI_SHM_NOTHING;
    for (bool happened = true; happened;) {
        if (wefti_shm_broken(local)) return WEFTI_SHM_NOTHING;
        happened = false;
        if (can_give(post)) {
            give(post);
            wefti_eventcount_store(&own->staged_chunks, wefti_shm_mark(number, post->staged_chunks),
                                   local->world->mode);
            happened = true;
        }
        if (can_reduce(local, port, number)) {
            reduce(local, port, number);
            wefti_eventcount_store(&own->reduced, wefti_shm_mark(number, post->reduced),
                                   local->world->mode);
            happened = true;
        }
        if (can_take(port, post, number)) {
            take(post);
            happened = true;
        }
        if (happened) outcome = WEFTI_SHM_FURTHER;
    }
    bool all = post->reduced == plan->chunks && (!post->bounce || post->taken == plan->chunks);
    return all ? WEFTI_SHM_MOVED : outcome;
}
