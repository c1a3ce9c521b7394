/* Tensors of which some element is only in copies of buddies: see move.h.
 *
 * A rank has up to two boxes of such a tensor: its own, and its ward's. Each box that no earlier
 * one contains is one transfer, from the ranks that have it to all that want some of it. */
#include "session/recovery/move.h"

/* ---- sources ---- */

static weft_status open_copy(const state_move *m, const moved_tensor *x, move_source *out) {
    weft_session *s = m->from;
    const wefti_piece *copy = wefti_move_copy(s, x->of->name);
    wefti_rank_device *d = wefti_workers_device(s->workers, s->me);
    WEFT_TRY(wefti_rank_device_map(d, copy->home, weft_desc_bytes(&copy->desc), WEFTI_ACCESS_READ,
                                   &out->map));
    out->data = out->map.data;
    return WEFT_OK;
}

static weft_status stage(const moved_tensor *x, const wefti_region *box, const wefti_region *mapped,
                         move_source *out) {
    const size_t element = weft_dtype_bytes(x->of->whole.dtype);
    const int rank = wefti_move_rank(x);
    out->staged = wefti_alloc((size_t)wefti_region_elems(box, rank) * element);
    WEFT_REQUIRE(out->staged, WEFT_E_NOMEM, "no memory to move '%s'", x->of->name);
    wefti_region_copy(box, mapped, out->map.data, box, out->staged, rank, element);
    out->data = out->staged;
    return WEFT_OK;
}

static weft_status open_own(const state_move *m, const moved_tensor *x, const wefti_region *box,
                            move_source *out) {
    const wefti_session_piece *piece;
    WEFT_TRY(wefti_move_own_piece(m->from, x->old_program, x->old_index, &piece));
    const wefti_region mapped = wefti_region_1d(&x->of->whole, piece->box);
    WEFT_TRY(wefti_piece_map(&x->of->whole, piece, WEFTI_ACCESS_READ, &out->map));
    out->data = out->map.data;
    if (wefti_regions_equal(&mapped, box, wefti_move_rank(x))) return WEFT_OK;
    weft_status status = stage(x, box, &mapped, out);
    return status < 0 ? wefti_move_close(out, status) : WEFT_OK;
}

weft_status wefti_move_open(const state_move *m, const moved_tensor *x, const wefti_region *box,
                            move_source *out) {
    const int rank = wefti_move_rank(x);
    *out = (move_source){.data = NULL};
    if (!box || !wefti_region_elems(box, rank)) return WEFT_OK;
    if (wefti_regions_equal(&m->own[m->to->me], box, rank)) return open_own(m, x, box, out);
    return open_copy(m, x, out);
}

weft_status wefti_move_close(move_source *x, weft_status status) {
    wefti_free(x->staged);
    return wefti_device_unmap(&x->map, status);
}

/* ---- boxes ---- */

/* The boxes of a tensor in their order: [0, size) are the ranks' own, [size, 2 * size) copies. */
static const wefti_region *box_of(const state_move *m, int32_t i) {
    return i < m->size ? &m->own[i] : &m->copy[i - m->size];
}

static bool is_needed(const state_move *m, int32_t i, int rank) {
    const wefti_region *box = box_of(m, i);
    wefti_region both;
    for (int32_t k = 0; k < i; k++)
        if (wefti_region_contains(box_of(m, k), box, rank)) return false;
    for (int32_t r = 0; r < m->size; r++)
        if (wefti_region_intersect(box, &m->want[r], rank, &both)) return true;
    return false;
}

/* Who has a box, and who wants what of it. */
typedef struct box_transfer {
    const wefti_region *box;
    wefti_region *have, *want; /* [size] */
} box_transfer;

static void set_box(const state_move *m, int rank, box_transfer *t) {
    for (int32_t r = 0; r < m->size; r++) {
        const bool has = wefti_regions_equal(&m->own[r], t->box, rank) ||
                         wefti_regions_equal(&m->copy[r], t->box, rank);
        t->have[r] = has ? *t->box : (wefti_region){{0}, {0}};
        if (!wefti_region_intersect(t->box, &m->want[r], rank, &t->want[r]))
            t->want[r] = (wefti_region){{0}, {0}};
    }
}

static weft_status move_box(const state_move *m, const moved_tensor *x, const box_transfer *t,
                            void *destination) {
    const size_t element = weft_dtype_bytes(x->of->whole.dtype);
    const int rank = wefti_move_rank(x);
    const int32_t me = m->to->me;
    const int64_t wanted = wefti_region_elems(&t->want[me], rank);
    const wefti_world_transfer what = {
        WEFTI_TRANSFER_SEND, x->of->whole.dtype, rank, t->have, t->want, x->of->name};
    move_source from;
    void *got = wefti_alloc((size_t)wanted * element + 1);
    WEFT_REQUIRE(got, WEFT_E_NOMEM, "no memory to move '%s'", x->of->name);
    weft_status status = wefti_move_open(m, x, &t->have[me], &from);
    if (status >= 0)
        status = wefti_move_close(
            &from, wefti_world_transfer_run(m->to->agreement, &what, from.data, got));
    if (status >= 0 && wanted)
        wefti_region_copy(&t->want[me], &t->want[me], got, &m->want[me], destination, rank,
                          element);
    wefti_free(got);
    return status;
}

weft_status wefti_move_boxes(const state_move *m, const moved_tensor *x, void *destination) {
    const int rank = wefti_move_rank(x);
    weft_status status = WEFT_OK;
    box_transfer t;
    WEFT_NEW_ARRAY(t.have, wefti_region, 2 * m->size);
    t.want = t.have + m->size;
    for (int32_t i = 0; i < 2 * m->size && status >= 0; i++) {
        t.box = box_of(m, i);
        if (!wefti_region_elems(t.box, rank) || !is_needed(m, i, rank)) continue;
        set_box(m, rank, &t);
        status = move_box(m, x, &t, destination);
    }
    wefti_free(t.have);
    return status;
}
