/* Collectives on buffers (weft/collective.h): each is one or several posts of bound transfers, and
 * a request is what there is to wait for. The calls that wait are the others with the wait behind
 * them. */
#include "weft/collective.h"

#include <string.h>

#include "comm/collective/collective.h"

/* ---- requests ---- */

static weft_status more_parts(weft_request *r) {
    int capacity = 2 * r->capacity;
    wefti_request_part *more = wefti_calloc((size_t)capacity, sizeof *more);
    WEFT_REQUIRE(more, WEFT_E_NOMEM, "no memory for %d transfers of a request", capacity);
    memcpy(more, r->part, (size_t)r->parts * sizeof *more);
    if (r->part != &r->one) wefti_free(r->part);
    r->part = more;
    r->capacity = capacity;
    return WEFT_OK;
}

weft_status wefti_request_post(weft_request *r, const wefti_call *call, const wefti_bound_key *key,
                               const void *source, void *destination) {
    wefti_bound *bound;
    if (r->parts == r->capacity) WEFT_TRY(more_parts(r));
    WEFT_TRY(wefti_bound_get(call->group->of, call, key, &bound));
    bound->endpoint->call = r->number;
    WEFT_TRY(wefti_comm_post(bound->endpoint, source, destination));
    bound->holders++;
    r->part[r->parts++] = (wefti_request_part){bound, bound->posted++};
    return WEFT_OK;
}

static void release(weft_request *r) {
    for (int i = 0; i < r->parts && r->group->of; i++) r->part[i].bound->holders--;
    if (r->part != &r->one) wefti_free(r->part);
    wefti_free(r->halo);
    wefti_group_release(r->group);
}

/* Where this rank was, in front of what went wrong, which may be of another call. */
static weft_status tell(const weft_request *r, weft_status status) {
    const char *what = wefti_call_text(r->kind);
    if (r->partner >= 0)
        return wefti_prefix(status, "in %s %s member %d of %s", what,
                            r->kind == WEFTI_CALL_SEND ? "to" : "from", r->partner, r->group->name);
    return wefti_prefix(status, "in %s, call %llu of %s", what, (unsigned long long)r->number,
                        r->group->name);
}

/* An endpoint's posts end in their order. */
static weft_status advance(weft_request *r, bool wait) {
    WEFT_REQUIRE(r->parts == 0 || r->group->of, WEFT_E_ARG,
                 "a request is waited for after its world was left");
    for (; r->done < r->parts; r->done++) {
        wefti_request_part *part = &r->part[r->done];
        while (part->bound->done <= part->number) {
            wefti_endpoint *endpoint = part->bound->endpoint;
            weft_status status = wait ? wefti_comm_wait(endpoint) : wefti_comm_test(endpoint);
            if (status == WEFT_PENDING) return status;
            if (status < 0) return tell(r, status);
            part->bound->done++;
        }
    }
    if (r->halo) wefti_halo_end(r->halo);
    return WEFT_OK;
}

weft_status weft_request_wait(weft_request *request) {
    WEFT_REQUIRE(request, WEFT_E_ARG, "no request is given to wait for");
    weft_status status = advance(request, true);
    release(request);
    wefti_free(request);
    return status;
}

weft_status weft_request_test(weft_request *request) {
    WEFT_REQUIRE(request, WEFT_E_ARG, "no request is given to test");
    weft_status status = advance(request, false);
    if (status == WEFT_PENDING) return status;
    release(request);
    wefti_free(request);
    return status;
}

/* ---- calls ---- */

static void copy_alone(const wefti_call *call) {
    size_t bytes = (size_t)call->count * weft_dtype_bytes(call->dtype);
    if (call->kind != WEFTI_CALL_BROADCAST && bytes && call->destination != call->source)
        memcpy(call->destination, call->source, bytes);
}

static uint64_t tag_of(const wefti_call *call) {
    const weft_group *group = call->group;
    if (call->kind != WEFTI_CALL_SEND && call->kind != WEFTI_CALL_RECV)
        return wefti_collective_tag(WEFTI_TAG_GROUP, (uint64_t)group->instance << 4);
    bool higher = group->ranks[group->me] < group->ranks[call->root];
    bool up = higher == (call->kind == WEFTI_CALL_SEND);
    return wefti_collective_tag(up ? WEFTI_TAG_SEND_UP : WEFTI_TAG_SEND_DOWN,
                                wefti_group_mix(group->identity, (uint32_t)call->tag));
}

/* Kinds that differ in the direction of a message only are one. */
static wefti_bound_key key_of(const wefti_call *call) {
    bool message = call->kind == WEFTI_CALL_SEND || call->kind == WEFTI_CALL_RECV;
    const int32_t *ranks = call->group->ranks;
    wefti_bound_key key = {.tag = tag_of(call),
                           .group = call->group->serial,
                           .count = call->count,
                           .kind = (int32_t)call->kind,
                           .dtype = (int32_t)call->dtype,
                           .reduction = (int32_t)call->reduction,
                           .root = call->root,
                           .low = -1,
                           .high = -1};
    if (!message) return key;
    int32_t me = ranks[call->group->me], other = ranks[call->root];
    key.root = -1;
    key.low = me < other ? me : other;
    key.high = me < other ? other : me;
    if ((me > other) == (call->kind == WEFTI_CALL_SEND)) { /* downwards */
        key.back = call->count;
        key.count = 0;
    }
    return key;
}

static weft_status post(weft_request *r, wefti_call *call) {
    bool exchange =
        call->kind == WEFTI_CALL_ALL_TO_ALL_V || call->kind == WEFTI_CALL_NEIGHBOR_EXCHANGE;
    if (exchange) return wefti_exchange_post(r, call);
    if (call->group->count == 1) {
        copy_alone(call);
        return WEFT_OK;
    }
    int64_t source, destination;
    wefti_call_extent(call, &source, &destination);
    wefti_bound_key key = key_of(call);
    return wefti_request_post(r, call, &key, source ? call->source : NULL,
                              destination ? call->destination : NULL);
}

static weft_status begin(weft_world *world, weft_group *group, wefti_call *call, weft_request *r) {
    WEFT_TRY(wefti_group_find(world, group, &call->group));
    if (call->kind == WEFTI_CALL_ALL_TO_ALL_V) call->sends = call->receives = call->group->count;
    if (call->kind == WEFTI_CALL_BARRIER)
        call->source = call->destination = &call->group->of->barrier;
    wefti_call_kind kind = call->kind;
    wefti_halo_work *halo = NULL;
    if (kind == WEFTI_CALL_HALO_EXCHANGE || kind == WEFTI_CALL_GRID_EXCHANGE)
        WEFT_TRY(wefti_halo_begin(call, &halo));
    weft_status status = wefti_call_check(call);
    if (status >= 0) status = wefti_record_room(call);
    if (status < 0) {
        wefti_free(halo);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    bool message = kind == WEFTI_CALL_SEND || kind == WEFTI_CALL_RECV;
    *r = (weft_request){.group = call->group, .kind = kind, .capacity = 1, .halo = halo};
    r->part = &r->one;
    r->partner = message ? call->root : -1;
    r->number = message ? 0 : call->group->calls + 1;
    call->group->references++;
    status = post(r, call);
    if (status >= 0) {
        wefti_record_call(call);
        return WEFT_OK;
    }
    status = tell(r, status);
    /* The first posts of this call cannot be taken back. */
    if (r->parts > 0) wefti_comm_break_by_failure(world->comm);
    release(r);
    return wefti_note(status, __func__, __FILE__, __LINE__);
}

static weft_status run(weft_world *world, weft_group *group, wefti_call call) {
    weft_request r;
    WEFT_TRY(begin(world, group, &call, &r));
    weft_status status = advance(&r, true);
    release(&r);
    return status;
}

static weft_status start(weft_world *world, weft_group *group, wefti_call call,
                         weft_request **out) {
    WEFT_REQUIRE(out, WEFT_E_ARG, "%s: no place for the request", wefti_call_text(call.kind));
    weft_request *r;
    WEFT_NEW(r, weft_request);
    weft_status status = begin(world, group, &call, r);
    if (status < 0) {
        wefti_free(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}

weft_status weft_barrier(weft_world *world, weft_group *group) {
    return run(world, group,
               (wefti_call){.kind = WEFTI_CALL_BARRIER,
                            .count = 1,
                            .dtype = WEFT_BOOL,
                            .reduction = WEFT_REDUCE_MIN});
}

/* Both forms of one collective: its parameters, and how they fill a call. */
#define LIST(...) __VA_ARGS__
#define COLLECTIVE(name, KIND, parameters, ...)                                                    \
    weft_status name(weft_world *world, weft_group *group, parameters) {                           \
        return run(world, group, (wefti_call){.kind = WEFTI_CALL_##KIND, __VA_ARGS__});            \
    }                                                                                              \
    weft_status name##_start(weft_world *world, weft_group *group, parameters,                     \
                             weft_request **out) {                                                 \
        return start(world, group, (wefti_call){.kind = WEFTI_CALL_##KIND, __VA_ARGS__}, out);     \
    }
#define NONE .reduction = (weft_reduction)-1
#define COLLECTIVE_BUFFERS                                                                         \
    .source = source, .destination = destination, .count = count, .dtype = dtype

COLLECTIVE(weft_all_reduce, ALL_REDUCE,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype,
                weft_reduction reduction),
           COLLECTIVE_BUFFERS, .reduction = reduction)
COLLECTIVE(weft_all_gather, ALL_GATHER,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype),
           COLLECTIVE_BUFFERS, NONE)
COLLECTIVE(weft_reduce_scatter, REDUCE_SCATTER,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype,
                weft_reduction reduction),
           COLLECTIVE_BUFFERS, .reduction = reduction)
COLLECTIVE(weft_all_to_all, ALL_TO_ALL,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype),
           COLLECTIVE_BUFFERS, NONE)
COLLECTIVE(weft_all_to_all_v, ALL_TO_ALL_V,
           LIST(const void *source, const int64_t *send_counts, void *destination,
                const int64_t *receive_counts, weft_dtype dtype),
           .source = source, .destination = destination, .dtype = dtype, .send_counts = send_counts,
           .receive_counts = receive_counts, NONE)
COLLECTIVE(weft_broadcast, BROADCAST, LIST(void *buffer, int64_t count, weft_dtype dtype, int root),
           .source = buffer, .destination = buffer, .count = count, .dtype = dtype, .root = root,
           NONE)
COLLECTIVE(weft_reduce, REDUCE,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype,
                weft_reduction reduction, int root),
           COLLECTIVE_BUFFERS, .reduction = reduction, .root = root)
COLLECTIVE(weft_gather, GATHER,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype, int root),
           COLLECTIVE_BUFFERS, .root = root, NONE)
COLLECTIVE(weft_scatter, SCATTER,
           LIST(const void *source, void *destination, int64_t count, weft_dtype dtype, int root),
           COLLECTIVE_BUFFERS, .root = root, NONE)
COLLECTIVE(weft_neighbor_exchange, NEIGHBOR_EXCHANGE,
           LIST(const void *source, const int *send_ranks, const int64_t *send_counts, int sends,
                void *destination, const int *receive_ranks, const int64_t *receive_counts,
                int receives, weft_dtype dtype),
           .source = source, .destination = destination, .dtype = dtype, .send_ranks = send_ranks,
           .send_counts = send_counts, .sends = sends, .receive_ranks = receive_ranks,
           .receive_counts = receive_counts, .receives = receives, NONE)
COLLECTIVE(weft_halo_exchange, HALO_EXCHANGE,
           LIST(const void *source, const int64_t *shape, const weft_halo *send, void *destination,
                const weft_halo *receive, weft_dtype dtype),
           .source = source, .destination = destination, .dtype = dtype, .shape = shape,
           .send = send, .receive = receive, NONE)
COLLECTIVE(weft_grid_exchange, GRID_EXCHANGE,
           LIST(void *array, int64_t planes, const weft_grid *grid, weft_dtype dtype),
           .source = array, .destination = array, .count = planes, .grid = grid, .dtype = dtype,
           NONE)
COLLECTIVE(weft_send, SEND,
           LIST(const void *source, int64_t count, weft_dtype dtype, int to, int tag),
           .source = source, .count = count, .dtype = dtype, .root = to, .tag = tag, NONE)
COLLECTIVE(weft_recv, RECV,
           LIST(void *destination, int64_t count, weft_dtype dtype, int from, int tag),
           .destination = destination, .count = count, .dtype = dtype, .root = from, .tag = tag,
           NONE)
