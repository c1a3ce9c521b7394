/* The state of a world moves to another number of ranks, or to another plan. Parameters, states and
 * optimizer tensors go region by region, from old sessions to new ones, in memory.
 *
 * Both sessions of a rank live at once. Each rank tells which regions it has, so all know who has
 * and who wants what. Each tensor is one transfer. A rank takes an element from itself if it can,
 * else from the lowest rank that has it. Where every rank has what it wants, nothing is sent. If
 * some element is only in copies of buddies, the tensor goes box by box (boxes.c). */
#include "session/recovery/move.h"

#include <string.h>

#include "layout/slab.h"

static bool is_kept(wefti_tensor_role role) {
    return role <= WEFTI_TENSOR_OPTIMIZER;
}

/* Whether a rank's values are the tensor's own values, not terms of a sum. */
static bool has_values(const wefti_tensor *t) {
    return !t->layout.sum && !t->layout.max;
}

static bool same_tensor(const wefti_view_tensor *a, const wefti_view_tensor *b) {
    if (a->role != b->role || a->whole.dtype != b->whole.dtype || a->whole.rank != b->whole.rank)
        return false;
    for (int d = 0; d < a->whole.rank; d++)
        if (a->whole.shape[d] != b->whole.shape[d]) return false;
    return !strcmp(a->name, b->name);
}

/* ---- the tensors ---- */

static void find_old(const weft_session *from, moved_tensor *x) {
    x->old_program = x->old_index = -1;
    for (int64_t p = 0; from && p < from->view_count; p++)
        for (int64_t i = 0; i < from->views[p]->count; i++)
            if (same_tensor(&from->views[p]->tensors[i], x->of)) {
                x->old_program = (int)p;
                x->old_index = (int)i;
                return;
            }
}

static weft_status list_tensors(state_move *m) {
    const weft_session *to = m->to;
    for (int64_t p = 0; p < to->view_count; p++)
        for (int64_t i = 0; i < to->views[p]->count; i++) {
            const wefti_view_tensor *t = &to->views[p]->tensors[i];
            bool again = false; /* programs share their parameters */
            for (int64_t k = 0; k < m->count && p; k++)
                again |= !strcmp(m->tensors[k].of->name, t->name);
            if (!is_kept(t->role) || again) continue;
            WEFT_TRY(WEFT_GROW(m->tensors, m->count, m->room));
            moved_tensor *x = &m->tensors[m->count++];
            *x = (moved_tensor){.of = t, .program = (int)p, .index = (int)i};
            find_old(m->from, x);
        }
    return WEFT_OK;
}

/* ---- who has what ---- */

/* The piece of this process; NULL: none. Void after the next call. */
weft_status wefti_move_own_piece(weft_session *s, int program, int index,
                                 const wefti_session_piece **out) {
    int32_t count;
    *out = NULL;
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &count));
    for (int32_t i = 0; i < count; i++)
        if (s->pieces[i].rank == s->me) *out = &s->pieces[i];
    return WEFT_OK;
}

/* The piece of a tensor in a list of pieces that a device updates or copies; NULL: none. */
static const wefti_piece *find_piece(const wefti_piece *pieces, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (!strcmp(pieces[i].name, name)) return &pieces[i];
    return NULL;
}

/* Of a scattered parameter, only the part that the device has updated is right. */
static void leave_updated(const weft_session *s, const char *name, wefti_region *own) {
    const wefti_program *p = s->views[0]->programs[s->me];
    const wefti_piece *x = find_piece(p->owned, p->owned_count, name);
    if (s->survivor.phase == WEFTI_SURVIVOR_SCATTERED && x)
        wefti_layout_region(&x->layout, &p->mesh, &x->whole, p->rank, own);
}

static weft_status find_own(const state_move *m, const moved_tensor *x, held_region *out) {
    const wefti_session_piece *piece;
    const wefti_view *v = m->from->views[x->old_program];
    const int32_t local = v->tensors[x->old_index].local[m->from->me];
    if (local < 0 || !has_values(&v->sites[m->from->me].tensors[local])) return WEFT_OK;
    WEFT_TRY(wefti_move_own_piece(m->from, x->old_program, x->old_index, &piece));
    if (!piece) return WEFT_OK;
    out->has_own = 1;
    out->own = piece->box;
    if (x->of->role == WEFTI_TENSOR_PARAM) leave_updated(m->from, x->of->name, &out->own);
    return WEFT_OK;
}

const wefti_piece *wefti_move_copy(const weft_session *s, const char *name) {
    const wefti_program *p = s->views[0]->programs[s->me];
    const wefti_piece *x = NULL;
    if (p->copy_count && wefti_session_keeps(s, s->me, p->ward))
        x = find_piece(p->copies, p->copy_count, name);
    return x && x->tensor < 0 ? x : NULL;
}

static weft_status find_held(const state_move *m, int64_t k, held_region *out) {
    const moved_tensor *x = &m->tensors[k];
    *out = (held_region){.has_own = 0};
    if (!m->from) return WEFT_OK;
    if (x->old_index >= 0) WEFT_TRY(find_own(m, x, out));
    const wefti_piece *copy = wefti_move_copy(m->from, x->of->name);
    if (!copy) return WEFT_OK;
    const int32_t ward = m->from->views[0]->programs[m->from->me]->ward;
    const wefti_mesh *mesh = &m->from->views[0]->sites[ward].facts.mesh;
    out->has_copy = 1;
    wefti_layout_region(&copy->layout, mesh, &copy->whole, ward, &out->copy);
    return WEFT_OK;
}

static weft_status gather(const state_move *m, held_region *own, char **out, int64_t **block) {
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < m->count && status >= 0; k++) status = find_held(m, k, &own[k]);
    if (!m->to->world) {
        *out = (char *)own;
        *block = NULL;
        return status;
    }
    WEFT_TRY(wefti_agree(m->to->agreement, status));
    return wefti_agree_gather(m->to->agreement, own, m->count * (int64_t)sizeof *own, out, block);
}

/* The regions of tensor k, in the form of transfers. False: its values are terms of a sum. */
static bool set_regions(const state_move *m, int64_t k) {
    const wefti_view_tensor *t = m->tensors[k].of;
    const wefti_view *v = m->to->views[m->tensors[k].program];
    bool values = true;
    for (int32_t r = 0; r < m->size; r++) {
        const held_region *held = &m->held[r * m->count + k];
        m->own[r] = m->copy[r] = m->want[r] = (wefti_region){{0}, {0}};
        if (held->has_own) m->own[r] = wefti_region_1d(&t->whole, held->own);
        if (held->has_copy) m->copy[r] = wefti_region_1d(&t->whole, held->copy);
        if (t->local[r] < 0) continue;
        const wefti_tensor *local = &v->sites[r].tensors[t->local[r]];
        values &= has_values(local);
        m->want[r] = wefti_region_1d(&t->whole, wefti_site_region(&v->sites[r], local));
    }
    return values;
}

/* Whether some rank has each element that is wanted: the same answer on all ranks. With copies,
 * each rank counts as two members, of which the second wants nothing. */
static bool is_covered(const state_move *m, const moved_tensor *x, bool copies) {
    const wefti_transfer t = {.kind = WEFTI_TRANSFER_SEND,
                              .dtype = x->of->whole.dtype,
                              .rank = wefti_move_rank(x),
                              .members = copies ? 2 * m->size : m->size,
                              .ranks = m->ranks,
                              .have = m->own,
                              .want = m->want,
                              .name = x->of->name};
    return wefti_move_all_have(m, m->own, m->want, t.rank) || wefti_transfer_check(&t) >= 0;
}

static bool find_missing(state_move *m) {
    for (int64_t k = 0; k < m->count; k++) {
        moved_tensor *x = &m->tensors[k];
        if (!set_regions(m, k)) return false;
        x->by_boxes = !is_covered(m, x, false);
        if (x->by_boxes && !is_covered(m, x, true)) return false;
    }
    return true;
}

/* ---- moving ---- */

/* What each rank has and wants of a slab, in a view of the move. */
static state_move slab_of(const state_move *m, const wefti_region *slab, int rank) {
    state_move part = *m;
    part.own = m->slab;
    part.copy = part.own + m->size;
    part.want = part.copy + m->size;
    for (int32_t i = 0; i < 3 * m->size; i++)
        if (!wefti_region_intersect(&m->own[i], slab, rank, &part.own[i]))
            part.own[i] = (wefti_region){{0}, {0}};
    return part;
}

/* Slab by slab, so that no more than a block of a tensor is in buffers. */
static weft_status move_slabs(const state_move *m, const moved_tensor *x, const move_target *to) {
    const weft_desc whole = wefti_move_whole(x);
    const int64_t all = weft_desc_elems(&whole),
                  most = WEFTI_HOME_BLOCK / (int64_t)weft_dtype_bytes(whole.dtype);
    for (int64_t at = 0, count; at < all; at += count) {
        wefti_region slab;
        count = wefti_slab(&whole, at, all - at < most ? all - at : most, &slab);
        const state_move part = slab_of(m, &slab, whole.rank);
        WEFT_TRY(x->by_boxes ? wefti_move_boxes(&part, x, to)
                             : wefti_move_regions(&part, x, part.own, part.want, to));
    }
    return WEFT_OK;
}

static weft_status move_tensor(state_move *m, int64_t k) {
    const moved_tensor *x = &m->tensors[k];
    const wefti_session_piece *piece = NULL;
    move_target to = {.home = {.bytes = 0}};
    (void)set_regions(m, k);
    WEFT_TRY(wefti_move_own_piece(m->to, x->program, x->index, &piece));
    if (piece) to = (move_target){piece->home, wefti_region_1d(&x->of->whole, piece->box)};
    WEFT_TRY(move_slabs(m, x, &to));
    if (!piece) return WEFT_OK;
    wefti_session_observe(m->to, piece);
    return wefti_host_copy_refresh(m->to, m->to->views[x->program], x->index, piece);
}

/* Numbers that a session keeps besides its tensors. Ranks without an old session are told the
 * number of updates only; rank 0 reports the rest. */
static void move_numbers(weft_session *to, const weft_session *from, int64_t target) {
    wefti_survivor_moved(&to->survivor, target, !from);
    if (!from) return;
    to->rate = from->rate;
    to->scale = from->scale;
    to->norm = from->norm;
    to->made_scale = from->made_scale;
    to->made_norm = from->made_norm;
}

static weft_status move_all(state_move *m, int64_t target, bool *out_whole) {
    *out_whole = find_missing(m);
    if (!*out_whole) return WEFT_OK;
    for (int64_t k = 0; k < m->count; k++)
        WEFT_TRY(wefti_fail_world(m->to->world, move_tensor(m, k)));
    move_numbers(m->to, m->from, target);
    return WEFT_OK;
}

static weft_status new_regions(state_move *m) {
    WEFT_NEW_ARRAY(m->own, wefti_region, 8 * m->size);
    m->slab = m->own + 4 * m->size;
    m->copy = m->own + m->size;
    m->want = m->copy + m->size; /* and as many empty ones, of the second members */
    WEFT_NEW_ARRAY(m->ranks, int32_t, 2 * m->size);
    for (int32_t r = 0; r < 2 * m->size; r++) m->ranks[r] = r;
    return WEFT_OK;
}

static weft_status move_listed(state_move *m, int64_t target, bool *out_whole) {
    held_region *own;
    char *all = NULL;
    int64_t *block = NULL;
    WEFT_NEW_ARRAY(own, held_region, m->count + 1);
    weft_status status = new_regions(m);
    if (status >= 0) status = gather(m, own, &all, &block);
    m->held = (const held_region *)(const void *)all;
    if (status >= 0) status = move_all(m, target, out_whole);
    wefti_free(block);
    wefti_free(m->own);
    wefti_free(m->ranks);
    wefti_free(own);
    return status;
}

/* Whether the old session's regions are those of the target's state. A scattered one must say which
 * parts of its parameters are. */
static bool has_target(const weft_session *from, int64_t target) {
    if (from->survivor.phase == WEFTI_SURVIVOR_SCATTERED &&
        !from->views[0]->programs[from->me]->owned_count)
        return false;
    return wefti_survivor_stands(&from->survivor).step == target;
}

weft_status wefti_session_move(weft_session *to, weft_session *from, int64_t target,
                               bool *out_whole) {
    state_move m = {.to = to, .from = from, .size = to->devices};
    WEFT_TRY(wefti_session_start(to));
    if (from && !has_target(from, target)) m.from = NULL;
    weft_status status = list_tensors(&m);
    if (status >= 0) status = move_listed(&m, target, out_whole);
    wefti_free(m.tensors);
    status = wefti_fail_world(to->world, status);
    return to->world ? wefti_agree(to->agreement, status) : status;
}
