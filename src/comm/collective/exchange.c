/* Exchanges: blocks of any size between pairs of members.
 *
 * An all_to_all_v is one transfer for each pair, in both directions, even if both blocks are
 * empty: so counts that differ between two members meet and are refused. In a neighbor_exchange
 * only the named members take part, with one message for each block. */
#include "comm/collective/collective.h"

#include <string.h>

static const void *block_at(const void *buffer, int64_t element, weft_dtype dtype) {
    return buffer ? (const char *)buffer + element * (int64_t)weft_dtype_bytes(dtype) : NULL;
}

static void copy_own(const wefti_call *call, int64_t from, int64_t to, int64_t count) {
    if (count > 0)
        memcpy((void *)block_at(call->destination, to, call->dtype),
               block_at(call->source, from, call->dtype),
               (size_t)count * weft_dtype_bytes(call->dtype));
}

/* Whether what this member sends to another goes to a higher rank. */
static bool goes_up(const wefti_call *call, int32_t other) {
    return call->group->ranks[call->group->me] < call->group->ranks[other];
}

static wefti_bound_key key_of(const wefti_call *call, int32_t other) {
    int32_t mine = call->group->ranks[call->group->me], theirs = call->group->ranks[other];
    return (wefti_bound_key){.group = call->group->serial,
                             .kind = (int32_t)call->kind,
                             .dtype = (int32_t)call->dtype,
                             .reduction = -1,
                             .root = -1,
                             .low = mine < theirs ? mine : theirs,
                             .high = mine < theirs ? theirs : mine};
}

static weft_status post_pairs(weft_request *r, const wefti_call *call) {
    int32_t me = call->group->me;
    int64_t from = 0, to = 0;
    for (int32_t m = 0; m < call->group->count; m++) {
        int64_t sent = call->send_counts[m], received = call->receive_counts[m];
        if (m == me) {
            copy_own(call, from, to, sent);
        } else {
            wefti_bound_key key = key_of(call, m);
            key.tag = wefti_collective_tag(WEFTI_TAG_PAIR, call->group->identity);
            bool low = goes_up(call, m);
            key.count = low ? sent : received;
            key.back = low ? received : sent;
            WEFT_TRY(wefti_request_post(
                r, call, &key, sent ? block_at(call->source, from, call->dtype) : NULL,
                received ? (void *)block_at(call->destination, to, call->dtype) : NULL));
        }
        from += sent;
        to += received;
    }
    return WEFT_OK;
}

static uint64_t neighbor_tag(const wefti_call *call, bool up) {
    return wefti_collective_tag(up ? WEFTI_TAG_NEIGHBOR_UP : WEFTI_TAG_NEIGHBOR_DOWN,
                                call->group->identity);
}

/* The block that this member sends itself for the `index`-th time: its number, -1. */
static int own_send(const wefti_call *call, int index, int64_t *out_from) {
    *out_from = 0;
    for (int b = 0; b < call->sends; *out_from += call->send_counts[b++])
        if (call->send_ranks[b] == call->group->me && index-- == 0) return b;
    return -1;
}

weft_status wefti_exchange_check_own(const wefti_call *call) {
    const char *what = wefti_call_text(call->kind), *group = call->group->name;
    int me = call->group->me, own = 0, b;
    int64_t from, sent, received;
    for (b = 0; call->kind == WEFTI_CALL_NEIGHBOR_EXCHANGE && b < call->receives; b++) {
        if (call->receive_ranks[b] != me) continue;
        int s = own_send(call, own++, &from);
        sent = s < 0 ? -1 : call->send_counts[s];
        WEFT_REQUIRE(sent == call->receive_counts[b], WEFT_E_MISMATCH,
                     "%s of %s: member %d receives block %d from itself, but does not send it",
                     what, group, me, b);
    }
    if (call->kind == WEFTI_CALL_NEIGHBOR_EXCHANGE) {
        WEFT_REQUIRE(own_send(call, own, &from) < 0, WEFT_E_MISMATCH,
                     "%s of %s: member %d sends itself more blocks than it receives", what, group,
                     me);
        return WEFT_OK;
    }
    sent = call->send_counts[me];
    received = call->receive_counts[me];
    WEFT_REQUIRE(sent == received, WEFT_E_MISMATCH,
                 "%s of %s: member %d sends itself %lld elements and receives %lld", what, group,
                 me, (long long)sent, (long long)received);
    return WEFT_OK;
}

static weft_status post_neighbors(weft_request *r, const wefti_call *call) {
    int me = call->group->me, own = 0;
    int64_t at = 0, own_at;
    for (int b = 0; b < call->sends; at += call->send_counts[b++]) {
        if (call->send_ranks[b] == me) continue;
        wefti_bound_key key = key_of(call, call->send_ranks[b]);
        bool up = goes_up(call, call->send_ranks[b]);
        key.tag = neighbor_tag(call, up);
        *(up ? &key.count : &key.back) = call->send_counts[b];
        WEFT_TRY(wefti_request_post(
            r, call, &key, call->send_counts[b] ? block_at(call->source, at, call->dtype) : NULL,
            NULL));
    }
    at = 0;
    for (int b = 0; b < call->receives; at += call->receive_counts[b++]) {
        int from = call->receive_ranks[b];
        if (from == me) {
            (void)own_send(call, own++, &own_at);
            copy_own(call, own_at, at, call->receive_counts[b]);
            continue;
        }
        wefti_bound_key key = key_of(call, from);
        bool up = !goes_up(call, from);
        key.tag = neighbor_tag(call, up);
        *(up ? &key.count : &key.back) = call->receive_counts[b];
        WEFT_TRY(wefti_request_post(
            r, call, &key, NULL,
            call->receive_counts[b] ? (void *)block_at(call->destination, at, call->dtype) : NULL));
    }
    return WEFT_OK;
}

weft_status wefti_exchange_post(weft_request *r, const wefti_call *call) {
    return call->kind == WEFTI_CALL_ALL_TO_ALL_V ? post_pairs(r, call) : post_neighbors(r, call);
}
