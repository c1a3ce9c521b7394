/* Tensors of which some element is only in copies of buddies: see move.h.
 *
 * A rank has up to two boxes of such a tensor: its own, and its ward's. Each box that no earlier
 * one contains is one transfer, from the ranks that have it to all that want some of it. */
#include "session/recovery/move.h"

#include "comm/home_region.h"

/* ---- buffers ---- */

/* The home of a region in the old session, and the box that the home has. */
static weft_status source_of(const state_move *m, const moved_tensor *x, const wefti_region *region,
                             wefti_home *out_home, wefti_region *out_box) {
    weft_session *s = m->from;
    const int32_t me = m->to->me;
    if (wefti_region_contains(&m->own[me], region, wefti_move_rank(x))) {
        const wefti_session_piece *piece;
        WEFT_TRY(wefti_move_own_piece(s, x->old_program, x->old_index, &piece));
        *out_home = piece->home;
        *out_box = wefti_region_1d(&x->of->whole, piece->box);
        return WEFT_OK;
    }
    const wefti_piece *copy = wefti_move_copy(s, x->of->name);
    const held_region *held = &m->held[me * m->count + (x - m->tensors)];
    *out_home = wefti_rank_device_home(wefti_workers_device(s->workers, s->me), copy->home,
                                       weft_desc_bytes(&copy->desc));
    *out_box = wefti_region_1d(&x->of->whole, held->copy);
    return WEFT_OK;
}

/* A buffer of a region, with the old session's values if `fill`. *out NULL: it has no elements. */
static weft_status open_region(const state_move *m, const moved_tensor *x,
                               const wefti_region *region, bool fill, void **out) {
    const weft_desc whole = wefti_move_whole(x);
    const int64_t elems = wefti_region_elems(region, whole.rank);
    wefti_home home;
    wefti_region box;
    if (!elems) return WEFT_OK;
    *out = wefti_alloc((size_t)elems * weft_dtype_bytes(whole.dtype));
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to move '%s'", x->of->name);
    if (!fill) return WEFT_OK;
    WEFT_TRY(source_of(m, x, region, &home, &box));
    return wefti_home_read_region(&home, &box, &whole, region, region, *out);
}

bool wefti_move_all_have(const state_move *m, const wefti_region *have, const wefti_region *want,
                         int rank) {
    for (int32_t r = 0; r < m->size; r++)
        if (wefti_region_elems(&want[r], rank) && !wefti_region_contains(&have[r], &want[r], rank))
            return false;
    return true;
}

weft_status wefti_move_regions(const state_move *m, const moved_tensor *x, wefti_region *have,
                               wefti_region *want, const move_target *to) {
    const weft_desc whole = wefti_move_whole(x);
    const wefti_world_transfer what = {WEFTI_TRANSFER_SEND, whole.dtype, whole.rank, have, want,
                                       x->of->name};
    const wefti_region *mine = &want[m->to->me];
    const bool local = wefti_move_all_have(m, have, want, whole.rank);
    void *gives = NULL, *takes = NULL;
    weft_status status = open_region(m, x, mine, local, &takes);
    if (status >= 0 && !local) status = open_region(m, x, &have[m->to->me], true, &gives);
    if (status >= 0 && !local)
        status = wefti_world_transfer_run(m->to->agreement, &what, gives, takes);
    if (status >= 0 && takes)
        status = wefti_home_write_region(&to->home, &to->box, &whole, mine, mine, takes);
    wefti_free(gives);
    wefti_free(takes);
    return status;
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

weft_status wefti_move_boxes(const state_move *m, const moved_tensor *x, const move_target *to) {
    const int rank = wefti_move_rank(x);
    weft_status status = WEFT_OK;
    box_transfer t;
    WEFT_NEW_ARRAY(t.have, wefti_region, 2 * m->size);
    t.want = t.have + m->size;
    for (int32_t i = 0; i < 2 * m->size && status >= 0; i++) {
        t.box = box_of(m, i);
        if (!wefti_region_elems(t.box, rank) || !is_needed(m, i, rank)) continue;
        set_box(m, rank, &t);
        status = wefti_move_regions(m, x, t.have, t.want, to);
    }
    wefti_free(t.have);
    return status;
}
