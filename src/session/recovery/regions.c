/* The state of a world moves to another number of ranks, or to another plan. Parameters, states and
 * optimizer tensors go region by region, from old sessions to new ones, in memory.
 *
 * Both sessions of a rank live at once. Each rank tells which regions it has, so all know who has
 * and who wants what. Each tensor is one transfer. A rank takes an element from itself if it can,
 * else from the lowest rank that has it. Where every rank has what it wants, nothing is sent. */
#include "session/tensors.h"

#include <string.h>

/* A tensor to be moved: the same list on all ranks. */
typedef struct moved_tensor {
    const wefti_view_tensor *of; /* of the new session */
    int program, index;          /* there */
    int old_program, old_index;  /* in the old session; -1: none */
} moved_tensor;

/* What a rank has of a tensor, as it tells the others. */
typedef struct held_region {
    wefti_region region;
    int64_t is_held;
} held_region;

typedef struct state_move {
    weft_session *to, *from; /* from NULL: this rank has no state */
    int32_t size;
    moved_tensor *tensors;
    int64_t count, room;
    const held_region *held;   /* [size * count], rank by rank */
    wefti_region *have, *want; /* [size] each, of the present tensor */
} state_move;

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
static weft_status own_piece(weft_session *s, int program, int index,
                             const wefti_session_piece **out) {
    int32_t count;
    *out = NULL;
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &count));
    for (int32_t i = 0; i < count; i++)
        if (s->pieces[i].rank == s->me) *out = &s->pieces[i];
    return WEFT_OK;
}

static weft_status find_held(const state_move *m, int64_t k, held_region *out) {
    const moved_tensor *x = &m->tensors[k];
    const wefti_session_piece *piece;
    *out = (held_region){.is_held = 0};
    if (!m->from || x->old_index < 0) return WEFT_OK;
    const wefti_view *v = m->from->views[x->old_program];
    const int32_t local = v->tensors[x->old_index].local[m->from->me];
    if (local < 0 || !has_values(&v->sites[m->from->me].tensors[local])) return WEFT_OK;
    WEFT_TRY(own_piece(m->from, x->old_program, x->old_index, &piece));
    if (piece) *out = (held_region){piece->box, 1};
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
        m->have[r] = m->want[r] = (wefti_region){{0}, {0}};
        if (held->is_held) m->have[r] = wefti_region_1d(&t->whole, held->region);
        if (t->local[r] < 0) continue;
        const wefti_tensor *local = &v->sites[r].tensors[t->local[r]];
        values &= has_values(local);
        m->want[r] = wefti_region_1d(&t->whole, wefti_site_region(&v->sites[r], local));
    }
    return values;
}

static int rank_of(const moved_tensor *x) {
    return x->of->whole.rank ? x->of->whole.rank : 1;
}

/* Whether each rank has all that it wants. */
static bool is_local(const state_move *m, int rank) {
    for (int32_t r = 0; r < m->size; r++)
        if (wefti_region_elems(&m->want[r], rank) &&
            !wefti_region_contains(&m->have[r], &m->want[r], rank))
            return false;
    return true;
}

/* Whether some rank has each element that is wanted: the same answer on all ranks. */
static bool is_covered(const state_move *m, const moved_tensor *x, int32_t *ranks) {
    const wefti_transfer t = {.kind = WEFTI_TRANSFER_SEND,
                              .dtype = x->of->whole.dtype,
                              .rank = rank_of(x),
                              .members = m->size,
                              .ranks = ranks,
                              .have = m->have,
                              .want = m->want,
                              .name = x->of->name};
    return is_local(m, t.rank) || wefti_transfer_check(&t) >= 0;
}

static weft_status find_missing(const state_move *m, bool *out_whole) {
    int32_t *ranks;
    *out_whole = true;
    WEFT_NEW_ARRAY(ranks, int32_t, m->size);
    for (int32_t r = 0; r < m->size; r++) ranks[r] = r;
    for (int64_t k = 0; k < m->count && *out_whole; k++)
        *out_whole = set_regions(m, k) && is_covered(m, &m->tensors[k], ranks);
    wefti_free(ranks);
    return WEFT_OK;
}

/* ---- moving ---- */

static weft_status transfer(const state_move *m, const moved_tensor *x, const void *source,
                            void *destination) {
    const wefti_region *have = &m->have[m->to->me], *want = &m->want[m->to->me];
    const int rank = rank_of(x);
    if (!is_local(m, rank)) {
        const wefti_world_transfer t = {
            WEFTI_TRANSFER_SEND, x->of->whole.dtype, rank, m->have, m->want, x->of->name};
        return wefti_world_transfer_run(m->to->agreement, &t, source, destination);
    }
    if (wefti_region_elems(want, rank))
        wefti_region_copy(want, have, source, want, destination, rank,
                          weft_dtype_bytes(x->of->whole.dtype));
    return WEFT_OK;
}

static weft_status move_mapped(state_move *m, const moved_tensor *x,
                               const wefti_session_piece *piece, const void *source) {
    wefti_mapping to = {.data = NULL};
    if (piece) WEFT_TRY(wefti_piece_map(&x->of->whole, piece, WEFTI_ACCESS_WRITE, &to));
    weft_status status = wefti_device_unmap(&to, transfer(m, x, source, to.data));
    if (status < 0 || !piece) return status;
    wefti_session_observe(m->to, x->of, piece);
    return wefti_host_copy_refresh(m->to, m->to->views[x->program], x->index, piece);
}

static weft_status move_tensor(state_move *m, int64_t k) {
    const moved_tensor *x = &m->tensors[k];
    const wefti_session_piece *piece = NULL, *old = NULL;
    wefti_mapping from = {.data = NULL};
    (void)set_regions(m, k);
    WEFT_TRY(own_piece(m->to, x->program, x->index, &piece));
    if (m->held[m->to->me * m->count + k].is_held) {
        WEFT_TRY(own_piece(m->from, x->old_program, x->old_index, &old));
        WEFT_TRY(wefti_piece_map(&x->of->whole, old, WEFTI_ACCESS_READ, &from));
    }
    return wefti_device_unmap(&from, move_mapped(m, x, piece, from.data));
}

/* Numbers that a session keeps besides its tensors. Ranks without an old session are told the
 * number of updates only; rank 0 reports the rest. */
static void move_numbers(weft_session *to, const weft_session *from, int64_t target) {
    to->step = target;
    to->torn = to->ready = to->newcomer = to->scattered = false;
    if (!from) return;
    to->rate = from->rate;
    to->scale = from->scale;
    to->norm = from->norm;
    to->made_scale = from->made_scale;
    to->made_norm = from->made_norm;
}

static weft_status move_all(state_move *m, int64_t target, bool *out_whole) {
    WEFT_TRY(find_missing(m, out_whole));
    if (!*out_whole) return WEFT_OK;
    for (int64_t k = 0; k < m->count; k++)
        WEFT_TRY(wefti_fail_world(m->to->world, move_tensor(m, k)));
    move_numbers(m->to, m->from, target);
    return WEFT_OK;
}

static weft_status move_listed(state_move *m, int64_t target, bool *out_whole) {
    held_region *own;
    char *all = NULL;
    int64_t *block = NULL;
    WEFT_NEW_ARRAY(own, held_region, m->count + 1);
    m->have = wefti_calloc((size_t)m->size, sizeof *m->have);
    m->want = wefti_calloc((size_t)m->size, sizeof *m->want);
    weft_status status = m->have && m->want ? gather(m, own, &all, &block)
                                            : WEFT_RAISE(WEFT_E_NOMEM, "no memory to move a state");
    m->held = (const held_region *)(const void *)all;
    if (status >= 0) status = move_all(m, target, out_whole);
    wefti_free(block);
    wefti_free(m->have);
    wefti_free(m->want);
    wefti_free(own);
    return status;
}

weft_status wefti_session_move(weft_session *to, weft_session *from, int64_t target,
                               bool *out_whole) {
    state_move m = {.to = to, .from = from, .size = to->devices};
    WEFT_TRY(wefti_session_start(to));
    if (from && (from->scattered || wefti_session_stands(from).step != target)) m.from = NULL;
    weft_status status = list_tensors(&m);
    if (status >= 0) status = move_listed(&m, target, out_whole);
    wefti_free(m.tensors);
    status = wefti_fail_world(to->world, status);
    return to->world ? wefti_agree(to->agreement, status) : status;
}
