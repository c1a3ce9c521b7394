/* Halo exchanges on buffers, of planes and of grids. The cells that neighbors keep are packed into
 * blocks, the blocks are exchanged, and they are unpacked when the request is done: around the tile
 * in a buffer of its own (weft_halo_exchange), or in place (weft_grid_exchange).
 *
 * Between two members, blocks match in order. Two members may be neighbors on several sides, as in
 * a ring of two tiles. Therefore received blocks are listed in the order of the sender's
 * directions. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/halo.h"

struct wefti_halo_work {
    const void *source;
    void *destination;
    size_t element;
    int rank;                 /* dimensions of the regions */
    wefti_region tile, grown; /* the source; the destination */
    wefti_region center;      /* of the destination, for the tile; empty: it is there already */
    bool clears;              /* the destination, before it is filled */
    wefti_region box[2][WEFTI_GRID_WAYS]; /* of source and destination: sent, received */
    int ranks[2][WEFTI_GRID_WAYS];
    int64_t counts[2][WEFTI_GRID_WAYS];
    int blocks[2];
    char *received;
    char packed[];
};

static int64_t elems(const wefti_halo_work *w, const wefti_region *box) {
    return wefti_region_elems(box, w->rank);
}

enum { SENT, RECEIVED };

static void add(wefti_halo_work *w, int side, int member, wefti_region box) {
    if (member < 0) return;
    const int b = w->blocks[side]++;
    w->ranks[side][b] = member;
    w->box[side][b] = box;
    w->counts[side][b] = elems(w, &box);
}

/* ---- planes ---- */

static weft_status check_plane(const wefti_call *call) {
    const char *group = call->group->name;
    const int64_t *shape = call->shape;
    WEFT_REQUIRE(shape && call->send && call->receive, WEFT_E_ARG,
                 "halo_exchange of %s: no %s given", group,
                 !shape        ? "shape is"
                 : !call->send ? "halo to send is"
                               : "halo to receive is");
    for (int d = 0; d < WEFTI_HALO_RANK; d++)
        WEFT_REQUIRE(shape[d] >= 0 && shape[d] <= (int64_t)1 << 40, WEFT_E_ARG,
                     "halo_exchange of %s: dimension %d of the tile has %lld elements", group, d,
                     (long long)shape[d]);
    weft_status status = wefti_halo_check(shape, call->group->count, call->send, call->receive);
    return status < 0 ? wefti_prefix(status, "halo_exchange of %s", group) : WEFT_OK;
}

static weft_status list_plane(const wefti_call *call, wefti_halo_work *w) {
    const int64_t *shape = call->shape;
    WEFT_TRY(check_plane(call));
    w->rank = WEFTI_HALO_RANK;
    w->tile = (wefti_region){.size = {shape[0], shape[1], shape[2]}};
    w->grown = wefti_halo_grown(shape, call->receive);
    w->center = wefti_halo_received(shape, call->receive, WEFTI_HALO_CENTER);
    w->clears = true;
    for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
        const int back = wefti_halo_opposite(way);
        add(w, SENT, call->send->ranks[way], wefti_halo_sent(shape, call->send, way));
        add(w, RECEIVED, call->receive->ranks[back],
            wefti_halo_received(shape, call->receive, back));
    }
    return WEFT_OK;
}

/* ---- grids ---- */

/* Blocks without elements are so on both sides: neither sends nor receives them. */
static weft_status list_grid(const wefti_call *call, wefti_halo_work *w) {
    wefti_grid_tile tile;
    weft_status status = wefti_grid_tile_of(call->grid, call->group->me, call->count, &tile);
    if (status < 0) return wefti_prefix(status, "grid_exchange of %s", call->group->name);
    const int *parts = tile.grid.parts;
    WEFT_REQUIRE((int64_t)parts[0] * parts[1] <= INT32_MAX &&
                     (int64_t)parts[0] * parts[1] * parts[2] == call->group->count,
                 WEFT_E_ARG, "grid_exchange of %s: a grid of %d x %d x %d parts for %d members",
                 call->group->name, parts[0], parts[1], parts[2], (int)call->group->count);
    w->rank = WEFTI_GRID_RANK;
    w->tile = w->grown = wefti_grid_array(&tile);
    for (int way = 0; way < WEFTI_GRID_WAYS; way++) {
        if (way == WEFTI_GRID_CENTER) continue;
        const int back = wefti_grid_opposite(way);
        const wefti_region sent = wefti_grid_sent(&tile, way);
        const wefti_region received = wefti_grid_received(&tile, back);
        if (elems(w, &sent)) add(w, SENT, wefti_grid_neighbor(&tile, way), sent);
        if (elems(w, &received)) add(w, RECEIVED, wefti_grid_neighbor(&tile, back), received);
    }
    return WEFT_OK;
}

/* ---- both ---- */

static weft_status list(const wefti_call *call, wefti_halo_work *w) {
    const char *what = wefti_call_text(call->kind), *group = call->group->name;
    const bool plane = call->kind == WEFTI_CALL_HALO_EXCHANGE;
    int64_t most = 16 * WEFTI_GRID_WAYS;
    WEFT_REQUIRE((unsigned)call->dtype < WEFT_DTYPES, WEFT_E_ARG, "%s of %s: unknown dtype %d",
                 what, group, (int)call->dtype);
    WEFT_TRY(plane ? list_plane(call, w) : list_grid(call, w));
    for (int d = 0; d < w->rank; d++)
        WEFT_REQUIRE(!w->grown.size[d] || !wefti_mul_overflows(most, w->grown.size[d], &most),
                     WEFT_E_ARG, "%s of %s: the tile is too large", what, group);
    if (plane) return wefti_call_check_buffers(call, elems(w, &w->tile), elems(w, &w->grown));
    WEFT_REQUIRE(call->source || elems(w, &w->grown) == 0, WEFT_E_ARG, "%s of %s: no array", what,
                 group);
    return WEFT_OK;
}

static void pack(wefti_halo_work *w) {
    char *to = w->packed;
    for (int b = 0; b < w->blocks[SENT]; b++) {
        const wefti_region *box = &w->box[SENT][b];
        wefti_region_copy(box, &w->tile, w->source, box, to, w->rank, w->element);
        to += (size_t)w->counts[SENT][b] * w->element;
    }
}

weft_status wefti_halo_begin(wefti_call *call, wefti_halo_work **out) {
    wefti_halo_work blocks = {.source = call->source, .destination = call->destination};
    int64_t total[2] = {0, 0};
    WEFT_TRY(list(call, &blocks));
    blocks.element = weft_dtype_bytes(call->dtype);
    for (int side = 0; side < 2; side++)
        for (int b = 0; b < blocks.blocks[side]; b++) total[side] += blocks.counts[side][b];
    size_t sent = (size_t)total[SENT] * blocks.element,
           received = (size_t)total[RECEIVED] * blocks.element;
    wefti_halo_work *w = wefti_alloc(sizeof *w + sent + received);
    WEFT_REQUIRE(w, WEFT_E_NOMEM, "no memory for a halo of %zu bytes", sent + received);
    memcpy(w, &blocks, sizeof blocks);
    w->received = w->packed + sent;
    pack(w);
    call->kind = WEFTI_CALL_NEIGHBOR_EXCHANGE;
    call->source = w->packed;
    call->destination = w->received;
    call->send_ranks = w->ranks[SENT];
    call->receive_ranks = w->ranks[RECEIVED];
    call->send_counts = w->counts[SENT];
    call->receive_counts = w->counts[RECEIVED];
    call->sends = w->blocks[SENT];
    call->receives = w->blocks[RECEIVED];
    *out = w;
    return WEFT_OK;
}

void wefti_halo_end(const wefti_halo_work *w) {
    const char *from = w->received;
    if (w->clears && elems(w, &w->grown))
        memset(w->destination, 0, (size_t)elems(w, &w->grown) * w->element);
    if (elems(w, &w->center))
        wefti_region_copy(&w->center, &w->center, w->source, &w->grown, w->destination, w->rank,
                          w->element);
    for (int b = 0; b < w->blocks[RECEIVED]; b++) {
        const wefti_region *box = &w->box[RECEIVED][b];
        wefti_region_copy(box, box, from, &w->grown, w->destination, w->rank, w->element);
        from += (size_t)w->counts[RECEIVED][b] * w->element;
    }
}
