/* What callers may get wrong, said before anybody waits. */
#include "comm/collective/collective.h"

const char *wefti_call_text(wefti_call_kind kind) {
    static const char *const text[] = {
#define WEFTI_CALL_ROW(name, text) text,
        WEFTI_CALL_LIST(WEFTI_CALL_ROW)
#undef WEFTI_CALL_ROW
    };
    return text[kind];
}

static bool reduces(wefti_call_kind kind) {
    return kind == WEFTI_CALL_ALL_REDUCE || kind == WEFTI_CALL_REDUCE ||
           kind == WEFTI_CALL_REDUCE_SCATTER;
}
bool wefti_call_has_root(wefti_call_kind kind) {
    return kind == WEFTI_CALL_BROADCAST || kind == WEFTI_CALL_REDUCE || kind == WEFTI_CALL_GATHER ||
           kind == WEFTI_CALL_SCATTER;
}

void wefti_call_extent(const wefti_call *call, int64_t *out_source, int64_t *out_destination) {
    int64_t one = call->count, all = one * call->group->count;
    bool root = call->group->me == call->root;
    int64_t source = one, destination = one;
    switch (call->kind) {
    case WEFTI_CALL_ALL_GATHER:
        destination = all;
        break;
    case WEFTI_CALL_REDUCE_SCATTER:
        source = all;
        break;
    case WEFTI_CALL_ALL_TO_ALL:
        source = destination = all;
        break;
    case WEFTI_CALL_BROADCAST:
        source = root ? one : 0;
        destination = root ? 0 : one;
        break;
    case WEFTI_CALL_REDUCE:
        destination = root ? one : 0;
        break;
    case WEFTI_CALL_GATHER:
        destination = root ? all : 0;
        break;
    case WEFTI_CALL_SCATTER:
        source = root ? all : 0;
        break;
    case WEFTI_CALL_SEND:
        destination = 0;
        break;
    case WEFTI_CALL_RECV:
        source = 0;
        break;
    default:
        break;
    }
    *out_source = source;
    *out_destination = destination;
}

static bool overlap(const wefti_call *call, int64_t source, int64_t destination) {
    size_t bytes = weft_dtype_bytes(call->dtype);
    uintptr_t a = (uintptr_t)call->source, b = (uintptr_t)call->destination;
    bool in_place = call->kind == WEFTI_CALL_ALL_REDUCE || call->kind == WEFTI_CALL_REDUCE ||
                    call->kind == WEFTI_CALL_BARRIER;
    if (source == 0 || destination == 0 || (in_place && a == b)) return false;
    return a < b + (size_t)destination * bytes && b < a + (size_t)source * bytes;
}

weft_status wefti_call_check_buffers(const wefti_call *call, int64_t source, int64_t destination) {
    const char *what = wefti_call_text(call->kind);
    WEFT_REQUIRE(call->source || source == 0, WEFT_E_ARG, "%s of %s: no source, %lld elements",
                 what, call->group->name, (long long)source);
    WEFT_REQUIRE(call->destination || destination == 0, WEFT_E_ARG,
                 "%s of %s: no destination, %lld elements", what, call->group->name,
                 (long long)destination);
    WEFT_REQUIRE(!overlap(call, source, destination), WEFT_E_ARG,
                 "%s of %s: source and destination overlap", what, call->group->name);
    return WEFT_OK;
}

static weft_status check_member(const wefti_call *call, const char *role, int member) {
    WEFT_REQUIRE(member >= 0 && member < call->group->count, WEFT_E_ARG,
                 "%s of %s: %s is member %d; there are 0 to %d", wefti_call_text(call->kind),
                 call->group->name, role, member, (int)call->group->count - 1);
    return WEFT_OK;
}

/* The sum of the blocks. */
static weft_status check_blocks(const wefti_call *call, const char *way, const int *ranks,
                                const int64_t *counts, int blocks, int64_t *out) {
    const char *what = wefti_call_text(call->kind);
    WEFT_REQUIRE(blocks >= 0, WEFT_E_ARG, "%s of %s: %d %s", what, call->group->name, blocks, way);
    WEFT_REQUIRE(counts || blocks == 0, WEFT_E_ARG, "%s of %s: the counts of the %s are missing",
                 what, call->group->name, way);
    WEFT_REQUIRE(ranks || blocks == 0 || call->kind != WEFTI_CALL_NEIGHBOR_EXCHANGE, WEFT_E_ARG,
                 "%s of %s: the members of the %s are missing", what, call->group->name, way);
    int64_t sum = 0, bytes;
    for (int b = 0; b < blocks; b++) {
        if (ranks) WEFT_TRY(check_member(call, "a neighbour", ranks[b]));
        WEFT_REQUIRE(counts[b] >= 0 && !wefti_add_overflows(sum, counts[b], &sum) &&
                         !wefti_mul_overflows(sum, (int64_t)weft_dtype_bytes(call->dtype), &bytes),
                     WEFT_E_ARG, "%s of %s: block %d of the %s has %lld elements", what,
                     call->group->name, b, way, (long long)counts[b]);
    }
    *out = sum;
    return WEFT_OK;
}

static weft_status check_exchange(const wefti_call *call) {
    int64_t source, destination;
    WEFT_TRY(
        check_blocks(call, "sends", call->send_ranks, call->send_counts, call->sends, &source));
    WEFT_TRY(check_blocks(call, "receives", call->receive_ranks, call->receive_counts,
                          call->receives, &destination));
    WEFT_TRY(wefti_exchange_check_own(call));
    return wefti_call_check_buffers(call, source, destination);
}

weft_status wefti_call_check(const wefti_call *call) {
    const weft_group *group = call->group;
    const char *what = wefti_call_text(call->kind);
    WEFT_REQUIRE((unsigned)call->dtype < WEFT_DTYPES, WEFT_E_ARG, "%s of %s: unknown dtype %d",
                 what, group->name, (int)call->dtype);
    if (call->kind == WEFTI_CALL_ALL_TO_ALL_V || call->kind == WEFTI_CALL_NEIGHBOR_EXCHANGE)
        return check_exchange(call);
    int64_t bytes, source, destination;
    WEFT_REQUIRE(call->count >= 0, WEFT_E_ARG, "%s of %s: %lld elements", what, group->name,
                 (long long)call->count);
    WEFT_REQUIRE(!wefti_mul_overflows(call->count, group->count, &bytes) &&
                     !wefti_mul_overflows(bytes, 16, &bytes),
                 WEFT_E_ARG, "%s of %s: %lld elements are too many", what, group->name,
                 (long long)call->count);
    WEFT_REQUIRE(!reduces(call->kind) || (unsigned)call->reduction < WEFT_REDUCTIONS, WEFT_E_ARG,
                 "%s of %s: unknown reduction %d", what, group->name, (int)call->reduction);
    if (wefti_call_has_root(call->kind)) WEFT_TRY(check_member(call, "the root", call->root));
    if (call->kind == WEFTI_CALL_SEND || call->kind == WEFTI_CALL_RECV) {
        WEFT_TRY(check_member(call, "the partner", call->root));
        WEFT_REQUIRE(call->root != group->me, WEFT_E_ARG,
                     "%s of %s: member %d is the caller itself", what, group->name, call->root);
    }
    wefti_call_extent(call, &source, &destination);
    return wefti_call_check_buffers(call, source, destination);
}
