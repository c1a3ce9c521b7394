/* Halo exchanges on buffers. The rims of a tile are packed into blocks, the blocks are exchanged
 * with the neighbours, and they are unpacked around the tile when the request is done.
 *
 * Between two members, blocks match in order. Two members may be neighbours on several sides, as
 * in a ring of two tiles. Therefore received blocks are listed in the order of the sender's
 * directions. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/halo.h"

struct wefti_halo_work {
    int64_t shape[WEFTI_HALO_RANK];
    weft_halo receive;
    const void *source;
    void *destination;
    size_t element;
    int from_way[WEFTI_HALO_WAYS]; /* of each block received */
    int ranks[2][WEFTI_HALO_WAYS];
    int64_t counts[2][WEFTI_HALO_WAYS];
    int blocks[2]; /* sent, received */
    char *received;
    char packed[];
};

static int64_t elems(const wefti_region *box) {
    return wefti_region_elems(box, WEFTI_HALO_RANK);
}

static weft_status check(const wefti_call *call) {
    const char *group = call->group->name;
    const int64_t *shape = call->shape;
    WEFT_REQUIRE((unsigned)call->dtype < WEFT_DTYPES, WEFT_E_ARG,
                 "halo_exchange of %s: unknown dtype %d", group, (int)call->dtype);
    WEFT_REQUIRE(shape && call->send && call->receive, WEFT_E_ARG,
                 "halo_exchange of %s: no %s given", group,
                 !shape        ? "shape is"
                 : !call->send ? "halo to send is"
                               : "halo to receive is");
    int64_t most = 16 * WEFTI_HALO_WAYS;
    for (int d = 0; d < WEFTI_HALO_RANK; d++)
        WEFT_REQUIRE(shape[d] >= 0 && shape[d] <= (int64_t)1 << 40, WEFT_E_ARG,
                     "halo_exchange of %s: dimension %d of the tile has %lld elements", group, d,
                     (long long)shape[d]);
    weft_status status = wefti_halo_check(shape, call->group->count, call->send, call->receive);
    if (status < 0) return wefti_prefix(status, "halo_exchange of %s", group);
    wefti_region tile = {.size = {shape[0], shape[1], shape[2]}};
    wefti_region grown = wefti_halo_grown(shape, call->receive);
    for (int d = 0; d < WEFTI_HALO_RANK; d++)
        WEFT_REQUIRE(!grown.size[d] || !wefti_mul_overflows(most, grown.size[d], &most), WEFT_E_ARG,
                     "halo_exchange of %s: the tile is too large", group);
    return wefti_call_check_buffers(call, elems(&tile), elems(&grown));
}

/* Ranks and counts of the blocks: those sent by way, those received by the way they were sent. */
static void list_blocks(wefti_halo_work *w, const wefti_call *call) {
    for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
        int back = wefti_halo_opposite(way), *blocks = w->blocks;
        if (call->send->ranks[way] >= 0) {
            wefti_region box = wefti_halo_sent(w->shape, call->send, way);
            w->ranks[0][blocks[0]] = call->send->ranks[way];
            w->counts[0][blocks[0]++] = elems(&box);
        }
        if (call->receive->ranks[back] >= 0) {
            wefti_region box = wefti_halo_received(w->shape, &w->receive, back);
            w->from_way[blocks[1]] = back;
            w->ranks[1][blocks[1]] = call->receive->ranks[back];
            w->counts[1][blocks[1]++] = elems(&box);
        }
    }
}

static void pack(wefti_halo_work *w, const weft_halo *send) {
    wefti_region tile = {.size = {w->shape[0], w->shape[1], w->shape[2]}};
    char *to = w->packed;
    for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
        if (send->ranks[way] < 0) continue;
        wefti_region box = wefti_halo_sent(w->shape, send, way);
        wefti_region_copy(&box, &tile, w->source, &box, to, WEFTI_HALO_RANK, w->element);
        to += (size_t)elems(&box) * w->element;
    }
}

weft_status wefti_halo_begin(wefti_call *call, wefti_halo_work **out) {
    WEFT_TRY(check(call));
    wefti_halo_work list = {.receive = *call->receive,
                            .source = call->source,
                            .destination = call->destination,
                            .element = weft_dtype_bytes(call->dtype)};
    int64_t total[2] = {0, 0};
    memcpy(list.shape, call->shape, sizeof list.shape);
    list_blocks(&list, call);
    for (int side = 0; side < 2; side++)
        for (int b = 0; b < list.blocks[side]; b++) total[side] += list.counts[side][b];
    size_t sent = (size_t)total[0] * list.element, received = (size_t)total[1] * list.element;
    wefti_halo_work *w = wefti_alloc(sizeof *w + sent + received);
    WEFT_REQUIRE(w, WEFT_E_NOMEM, "no memory for a halo of %zu bytes", sent + received);
    memcpy(w, &list, sizeof list);
    w->received = w->packed + sent;
    pack(w, call->send);
    call->kind = WEFTI_CALL_NEIGHBOR_EXCHANGE;
    call->source = w->packed;
    call->destination = w->received;
    call->send_ranks = w->ranks[0];
    call->receive_ranks = w->ranks[1];
    call->send_counts = w->counts[0];
    call->receive_counts = w->counts[1];
    call->sends = w->blocks[0];
    call->receives = w->blocks[1];
    *out = w;
    return WEFT_OK;
}

void wefti_halo_end(const wefti_halo_work *w) {
    wefti_region grown = wefti_halo_grown(w->shape, &w->receive);
    wefti_region tile = wefti_halo_received(w->shape, &w->receive, WEFTI_HALO_CENTER);
    const char *from = w->received;
    if (elems(&grown)) memset(w->destination, 0, (size_t)elems(&grown) * w->element);
    wefti_region_copy(&tile, &tile, w->source, &grown, w->destination, WEFTI_HALO_RANK, w->element);
    for (int b = 0; b < w->blocks[1]; b++) {
        wefti_region box = wefti_halo_received(w->shape, &w->receive, w->from_way[b]);
        wefti_region_copy(&box, &box, from, &grown, w->destination, WEFTI_HALO_RANK, w->element);
        from += (size_t)elems(&box) * w->element;
    }
}
