/* Bound transfers that are kept: found by key, the least recently used given up when there are too
 * many. One that is under way, or that a request still refers to, stays. */
#include "comm/collective/collective.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)WEFTI_REDUCE_SUM == (int)WEFT_REDUCE_SUM + 1 &&
                   (int)WEFTI_REDUCE_MAX == (int)WEFT_REDUCE_MAX + 1 &&
                   (int)WEFTI_REDUCE_MIN == (int)WEFT_REDUCE_MIN + 1 &&
                   (int)WEFTI_REDUCE_PROD == (int)WEFT_REDUCE_PROD + 1,
               "reductions have one order");

/* ---- boxes ---- */

static void span(wefti_region *box, int d, int64_t begin, int64_t size) {
    box->begin[d] = begin;
    box->size[d] = size;
}

/* Dimensions of the boxes. A barrier's are two, so that it equals no reduction of one element. */
static int dimensions(wefti_call_kind kind) {
    return kind == WEFTI_CALL_ALL_TO_ALL ? 3 : kind == WEFTI_CALL_BARRIER ? 2 : 1;
}

static void group_boxes(const wefti_call *call, int32_t m, wefti_region *have, wefti_region *want) {
    int64_t n = call->count, all = n * call->group->count, members = call->group->count;
    switch (call->kind) {
    case WEFTI_CALL_ALL_REDUCE:
        span(have, 0, 0, n);
        span(want, 0, 0, n);
        break;
    case WEFTI_CALL_BARRIER:
        for (int d = 0; d < 2; d++) {
            span(have, d, 0, 1);
            span(want, d, 0, 1);
        }
        break;
    case WEFTI_CALL_ALL_GATHER:
        span(have, 0, m * n, n);
        span(want, 0, 0, all);
        break;
    case WEFTI_CALL_REDUCE_SCATTER:
        span(have, 0, 0, all);
        span(want, 0, m * n, n);
        break;
    case WEFTI_CALL_ALL_TO_ALL: /* [from, to, element] */
        span(have, 0, m, 1);
        span(have, 1, 0, members);
        span(want, 0, 0, members);
        span(want, 1, m, 1);
        span(have, 2, 0, n);
        span(want, 2, 0, n);
        break;
    case WEFTI_CALL_BROADCAST:
        span(m == call->root ? have : want, 0, 0, n);
        break;
    case WEFTI_CALL_REDUCE:
        span(have, 0, 0, n);
        if (m == call->root) span(want, 0, 0, n);
        break;
    case WEFTI_CALL_GATHER:
        span(have, 0, m * n, n);
        if (m == call->root) span(want, 0, 0, all);
        break;
    default: /* scatter */
        if (m == call->root) span(have, 0, 0, all);
        span(want, 0, m * n, n);
    }
}

/* What the lower rank sends, then what the higher one does. */
static void pair_boxes(const wefti_bound_key *key, wefti_region *have, wefti_region *want) {
    span(&have[0], 0, 0, key->count);
    span(&want[1], 0, 0, key->count);
    span(&have[1], 0, key->count, key->back);
    span(&want[0], 0, key->count, key->back);
}

static const wefti_transfer_kind kinds[] = {
    [WEFTI_CALL_ALL_REDUCE] = WEFTI_TRANSFER_ALL_REDUCE,
    [WEFTI_CALL_ALL_GATHER] = WEFTI_TRANSFER_ALL_GATHER,
    [WEFTI_CALL_REDUCE_SCATTER] = WEFTI_TRANSFER_REDUCE_SCATTER,
    [WEFTI_CALL_ALL_TO_ALL] = WEFTI_TRANSFER_ALL_TO_ALL,
    [WEFTI_CALL_BROADCAST] = WEFTI_TRANSFER_BROADCAST,
    [WEFTI_CALL_REDUCE] = WEFTI_TRANSFER_REDUCE,
    [WEFTI_CALL_GATHER] = WEFTI_TRANSFER_GATHER,
    [WEFTI_CALL_SCATTER] = WEFTI_TRANSFER_SCATTER,
    [WEFTI_CALL_BARRIER] = WEFTI_TRANSFER_ALL_REDUCE,
    [WEFTI_CALL_ALL_TO_ALL_V] = WEFTI_TRANSFER_EXCHANGE,
    [WEFTI_CALL_NEIGHBOR_EXCHANGE] = WEFTI_TRANSFER_EXCHANGE,
    [WEFTI_CALL_SEND] = WEFTI_TRANSFER_SEND,
    [WEFTI_CALL_RECV] = WEFTI_TRANSFER_SEND,
};

/* For messages: equal on all members, so that engines find equal transfers equal. */
static void name_transfer(const wefti_call *call, const wefti_bound_key *key, char *out,
                          size_t room) {
    const char *group = call->group->name;
    if (call->kind == WEFTI_CALL_BARRIER)
        (void)snprintf(out, room, "barrier of %s", group);
    else if (key->low < 0 && key->reduction >= 0 && call->kind == WEFTI_CALL_REDUCE)
        (void)snprintf(out, room, "%s over %s to member %d",
                       wefti_reduction_text((wefti_reduction)(key->reduction + 1)), group,
                       call->root);
    else if (key->low < 0 && key->reduction >= 0)
        (void)snprintf(out, room, "%s over %s",
                       wefti_reduction_text((wefti_reduction)(key->reduction + 1)), group);
    else if (key->low < 0 && kinds[call->kind] >= WEFTI_TRANSFER_BROADCAST)
        (void)snprintf(out, room, "%s, root member %d", group, call->root);
    else if (key->low < 0)
        (void)snprintf(out, room, "%s", group);
    else if (call->kind == WEFTI_CALL_SEND || call->kind == WEFTI_CALL_RECV)
        (void)snprintf(out, room, "ranks %d and %d, tag %d", (int)key->low, (int)key->high,
                       call->tag);
    else
        (void)snprintf(out, room, "ranks %d and %d in %s of %s", (int)key->low, (int)key->high,
                       wefti_call_text(call->kind), group);
}

/* boxes: [2 * members], ranks: [members], scratch. The members of a transfer have ascending ranks,
 * those of a group any. */
static weft_status bind_boxes(wefti_collectives *c, const wefti_call *call,
                              const wefti_bound_key *key, wefti_region *boxes, int32_t *ranks,
                              wefti_endpoint **out) {
    bool pair = key->low >= 0;
    const weft_group *group = call->group;
    int32_t members = pair ? 2 : group->count, two[2] = {key->low, key->high};
    int32_t me = pair && key->high == c->world->rank;
    char name[160];
    wefti_transfer t = {.kind = kinds[call->kind],
                        .reduction = (wefti_reduction)(key->reduction + 1),
                        .dtype = call->dtype,
                        .rank = pair ? 1 : dimensions(call->kind),
                        .members = members,
                        .ranks = pair ? two : ranks,
                        .have = boxes,
                        .want = boxes + members,
                        .tag = key->tag,
                        .name = name};
    if (pair) pair_boxes(key, t.have, t.want);
    for (int32_t k = 0; k < members && !pair; k++) {
        int32_t m = group->member[k];
        group_boxes(call, m, &t.have[k], &t.want[k]);
        ranks[k] = group->ranks[m];
        if (m == group->me) me = k;
    }
    t.me = me;
    name_transfer(call, key, name, sizeof name);
    return c->world->comm->engine->bind(c->world->comm, &t, out);
}

/* ---- the kept ones ---- */

static wefti_bound **bucket_of(wefti_collectives *c, const wefti_bound_key *key) {
    uint64_t hash = wefti_group_mix(key->tag ^ key->group, (uint64_t)key->count);
    hash = wefti_group_mix(hash, (uint64_t)key->back);
    hash = wefti_group_mix(hash, (uint64_t)key->kind << 32 | (uint32_t)key->dtype);
    hash = wefti_group_mix(hash, (uint64_t)key->reduction << 32 | (uint32_t)key->root);
    hash = wefti_group_mix(hash, (uint64_t)(uint32_t)key->low << 32 | (uint32_t)key->high);
    return &c->bucket[hash >> 40 & (WEFTI_BOUND_BUCKETS - 1)];
}

static bool idle(const wefti_bound *b) {
    return b->holders == 0 && b->posted == b->done;
}

static void give_up(wefti_collectives *c, wefti_bound **at) {
    wefti_bound *b = *at;
    *at = b->next;
    wefti_comm_unbind(b->endpoint);
    wefti_free(b);
    c->kept--;
}

static void give_up_oldest(wefti_collectives *c) {
    wefti_bound **oldest = NULL;
    for (int i = 0; i < WEFTI_BOUND_BUCKETS; i++)
        for (wefti_bound **at = &c->bucket[i]; *at; at = &(*at)->next)
            if (idle(*at) && (!oldest || (*at)->used < (*oldest)->used)) oldest = at;
    if (oldest) give_up(c, oldest);
}

void wefti_bound_drop(wefti_collectives *c, const weft_group *group) {
    for (int i = 0; i < WEFTI_BOUND_BUCKETS; i++)
        for (wefti_bound **at = &c->bucket[i]; *at;)
            if (!group || ((*at)->key.group == group->serial && idle(*at)))
                give_up(c, at);
            else
                at = &(*at)->next;
}

weft_status wefti_bound_get(wefti_collectives *c, const wefti_call *call,
                            const wefti_bound_key *key, wefti_bound **out) {
    wefti_bound **bucket = bucket_of(c, key);
    for (wefti_bound *b = *bucket; b; b = b->next)
        if (memcmp(&b->key, key, sizeof *key) == 0 && b->posted - b->done < WEFTI_COMM_DEPTH) {
            b->used = ++c->clock;
            *out = b;
            return WEFT_OK;
        }
    if (c->kept >= WEFTI_BOUND_KEPT) give_up_oldest(c);
    int32_t members = key->low >= 0 ? 2 : call->group->count;
    wefti_bound *b = wefti_calloc(1, sizeof *b);
    wefti_region *boxes =
        b ? wefti_calloc((size_t)members, 2 * sizeof *boxes + sizeof(int32_t)) : NULL;
    weft_status status =
        boxes ? bind_boxes(c, call, key, boxes, (int32_t *)(boxes + 2 * members), &b->endpoint)
              : WEFT_RAISE(WEFT_E_NOMEM, "no memory to bind a transfer of %d", (int)members);
    wefti_free(boxes);
    if (status < 0) {
        wefti_free(b);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    b->key = *key;
    b->used = ++c->clock;
    b->next = *bucket;
    *bucket = b;
    c->kept++;
    *out = b;
    return WEFT_OK;
}
