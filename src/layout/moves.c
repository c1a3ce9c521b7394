/* Lists the moves from a layout to its neighbors. A move removes axes from the ends of dimensions,
 * adds axes there, or assigns the parts to other devices. One move may change several axes, so that
 * the latency counts once. */
#include "layout/moves.h"

enum {
    FREE_CHOICE = 3, /* up to this many axes, try all joint placements */
    PERMUTED = 5     /* up to this many axes, try all permutations */
};

typedef struct moves_context {
    const wefti_moves *m;
    const wefti_layout *at;
    wefti_move_visit *visit;
    void *context;
} moves_context;

static weft_status emit(const moves_context *w, wefti_move_kind kind, wefti_transfer_kind transfer,
                        wefti_axes axes, const wefti_layout *to) {
    wefti_move move = {.kind = kind, .transfer = transfer, .axes = axes, .to = *to};
    return w->visit(w->context, &move);
}

static int64_t unit_of_first(const wefti_moves *m, const wefti_dim_split *split, int d, int count,
                             int64_t unit) {
    int32_t parts = 1;
    for (int i = 0; i < count; i++) parts *= m->mesh->axis[split->axis[i]].size;
    return wefti_part_unit(m->whole->shape[d], unit, parts);
}

int wefti_moves_common(const wefti_moves *m, const wefti_layout *a, const wefti_layout *b, int d) {
    const wefti_dim_split *p = &a->dim[d], *q = &b->dim[d];
    int common = 0;
    while (common < p->count && common < q->count && p->axis[common] == q->axis[common]) common++;
    while (common &&
           unit_of_first(m, p, d, common, p->unit) != unit_of_first(m, q, d, common, q->unit))
        common--;
    return common;
}

void wefti_moves_keep(const wefti_moves *m, wefti_layout *layout, int d, int keep) {
    wefti_dim_split *split = &layout->dim[d];
    split->unit = unit_of_first(m, split, d, keep, split->unit);
    split->count = (int8_t)keep;
}

/* Appends axes to dimension d. `choice` selects the unit: 1, the unit at the start of the route, or
 * the unit at its goal. Returns false if this unit gives the same parts as an earlier choice. Also
 * returns false if the unit would move the boundaries that the axes already present make. */
static bool append(const wefti_moves *m, wefti_layout *layout, int d, const int8_t *axes, int count,
                   int choice) {
    wefti_dim_split *split = &layout->dim[d];
    const int64_t units[3] = {1, m->from->dim[d].unit, m->to->dim[d].unit};
    wefti_dim_split longer = *split;
    for (int i = 0; i < count; i++) longer.axis[longer.count++] = axes[i];
    int64_t results[3] = {0};
    for (int c = 0; c <= choice; c++) {
        bool repeated = false;
        for (int e = 0; e < c; e++) repeated = repeated || units[e] == units[c];
        if (repeated || unit_of_first(m, split, d, split->count, units[c]) != split->unit) continue;
        results[c] = unit_of_first(m, &longer, d, longer.count, units[c]);
        for (int e = 0; e < c; e++)
            if (results[e] == results[c]) results[c] = 0;
    }
    if (!results[choice]) return false;
    longer.unit = results[choice];
    *split = longer;
    return true;
}

/* ---- slices and reduce-scatters: append axes of a set to dimensions ---- */

typedef struct appending {
    const moves_context *w;
    wefti_move_kind kind;
} appending;

static weft_status append_axes(const appending *s, const wefti_layout *at, wefti_axes set,
                               wefti_axes done, int first_dim, bool deep) {
    const wefti_moves *m = s->w->m;
    for (int d = first_dim; d < at->rank; d++)
        for (int8_t a = 0; a < m->mesh->axes; a++)
            for (int choice = 0; choice < 3 && set >> a & 1u; choice++) {
                wefti_layout next = *at;
                if (!append(m, &next, d, &a, 1, choice)) continue;
                wefti_axes axis = 1u << a;
                next.sum &= ~axis;
                next.max &= ~axis;
                WEFT_TRY(emit(s->w, s->kind, WEFTI_TRANSFER_REDUCE_SCATTER, done | axis, &next));
                if (deep && set != axis)
                    WEFT_TRY(append_axes(s, &next, set & ~axis, done | axis, d, true));
            }
    return WEFT_OK;
}

/* Appends all axes of the set that come next in the goal. */
static weft_status append_to_goal(const appending *s, wefti_axes set) {
    const wefti_moves *m = s->w->m;
    wefti_layout next = *s->w->at;
    wefti_axes done = 0;
    for (int d = 0; d < next.rank; d++) {
        const wefti_dim_split *goal = &m->to->dim[d];
        int here = next.dim[d].count, common = wefti_moves_common(m, &next, m->to, d), end = here;
        if (common < here) continue;
        while (end < goal->count && set >> goal->axis[end] & 1u) end++;
        for (int i = here; i < end; i++) done |= 1u << goal->axis[i];
        next.dim[d] = *goal;
        wefti_moves_keep(m, &next, d, end);
    }
    next.sum &= ~done;
    next.max &= ~done;
    return done ? emit(s->w, s->kind, WEFTI_TRANSFER_REDUCE_SCATTER, done, &next) : WEFT_OK;
}

static weft_status append_all(const moves_context *w, wefti_move_kind kind, wefti_axes set) {
    appending s = {w, kind};
    if (!set) return WEFT_OK;
    bool deep = __builtin_popcount(set) <= FREE_CHOICE;
    if (!deep) WEFT_TRY(append_to_goal(&s, set));
    return append_axes(&s, w->at, set, 0, 0, deep);
}

/* ---- all-gathers: remove axes from the ends of dimensions ---- */

static weft_status gather(const moves_context *w, const wefti_layout *at, int d, wefti_axes done) {
    if (d == at->rank)
        return done ? emit(w, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_GATHER, done, at) : WEFT_OK;
    WEFT_TRY(gather(w, at, d + 1, done));
    for (int keep = at->dim[d].count - 1; keep >= 0; keep--) {
        wefti_layout next = *at;
        done |= 1u << at->dim[d].axis[keep];
        wefti_moves_keep(w->m, &next, d, keep);
        WEFT_TRY(gather(w, &next, d + 1, done));
    }
    return WEFT_OK;
}

/* ---- all-to-alls: move axes from the end of one dimension to the end of another ---- */

static weft_status all_to_all(const moves_context *w, int from) {
    const wefti_dim_split *split = &w->at->dim[from];
    wefti_axes moved = 0;
    for (int keep = split->count - 1; keep >= 0; keep--) {
        moved |= 1u << split->axis[keep];
        for (int to = 0; to < w->at->rank; to++)
            for (int choice = 0; choice < 3 && to != from; choice++) {
                wefti_layout next = *w->at;
                wefti_moves_keep(w->m, &next, from, keep);
                if (append(w->m, &next, to, split->axis + keep, split->count - keep, choice))
                    WEFT_TRY(emit(w, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_TO_ALL, moved, &next));
            }
    }
    return WEFT_OK;
}

/* ---- permutations: assign the parts of the same grid to other devices. Exchange: go from any grid
 * to the grid of the goal in one move ---- */

/* The axes along which devices exchange parts of dimension d. There are two cases. If the axis
 * sizes agree place by place, these are the axes that change their place and the axes that leave.
 * Otherwise they are the old axes without the common prefix. If the numbers of parts agree, the
 * common suffix is dropped too. Axes that were unused before are not included, because every device
 * along them has a copy. */
static wefti_axes exchanged_axes(const wefti_moves *m, const wefti_layout *from,
                                 const wefti_layout *to, int d) {
    const wefti_dim_split *a = &from->dim[d], *b = &to->dim[d];
    const wefti_axis *axis = m->mesh->axis;
    int places = a->count < b->count ? a->count : b->count, begin = 0, end = a->count;
    bool alike = unit_of_first(m, a, d, places, a->unit) == unit_of_first(m, b, d, places, b->unit);
    for (int i = 0; i < places && alike; i++)
        alike = axis[a->axis[i]].size == axis[b->axis[i]].size;
    if (!alike) {
        begin = wefti_moves_common(m, from, to, d);
        int end_b = b->count;
        bool same_parts = a->unit == b->unit && wefti_layout_parts(from, m->mesh, d) ==
                                                    wefti_layout_parts(to, m->mesh, d);
        while (same_parts && end > begin && end_b > begin &&
               a->axis[end - 1] == b->axis[end_b - 1]) {
            end--;
            end_b--;
        }
    }
    wefti_axes axes = 0;
    for (int i = begin; i < end; i++)
        if (!alike || i >= places || a->axis[i] != b->axis[i]) axes |= 1u << a->axis[i];
    return axes;
}

static wefti_axes all_exchanged(const wefti_moves *m, const wefti_layout *from,
                                const wefti_layout *to) {
    wefti_axes axes = 0;
    for (int d = 0; d < to->rank; d++) axes |= exchanged_axes(m, from, to, d);
    return axes;
}

static bool same_grid(const wefti_mesh *mesh, const wefti_layout *a, const wefti_layout *b) {
    for (int d = 0; d < a->rank; d++)
        if (a->dim[d].unit != b->dim[d].unit ||
            wefti_layout_parts(a, mesh, d) != wefti_layout_parts(b, mesh, d))
            return false;
    return true;
}

bool wefti_moves_exchange(const wefti_moves *m, const wefti_layout *at, wefti_move *out) {
    if (at->sum != m->to->sum || at->max != m->to->max) return false;
    *out = (wefti_move){.kind = WEFTI_MOVE_TRANSFER,
                        .transfer = same_grid(m->mesh, at, m->to) ? WEFTI_TRANSFER_PERMUTE
                                                                  : WEFTI_TRANSFER_ALL_TO_ALL,
                        .axes = all_exchanged(m, at, m->to),
                        .to = *m->to};
    return out->axes;
}

/* Dimensions before d are filled. Dimension d still needs axes with sizes that multiply to
 * `parts`. */
static weft_status permute(const moves_context *w, wefti_layout *next, int d, int32_t parts,
                           wefti_axes set) {
    while (parts == 1 && ++d < next->rank) {
        parts = wefti_layout_parts(w->at, w->m->mesh, d);
        next->dim[d].count = 0;
    }
    if (d == next->rank) {
        wefti_axes axes = all_exchanged(w->m, w->at, next);
        return axes ? emit(w, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_PERMUTE, axes, next) : WEFT_OK;
    }
    for (int8_t a = 0; a < w->m->mesh->axes; a++) {
        if (!(set >> a & 1u) || parts % w->m->mesh->axis[a].size) continue;
        wefti_layout longer = *next;
        longer.dim[d].axis[longer.dim[d].count++] = a;
        WEFT_TRY(permute(w, &longer, d, parts / w->m->mesh->axis[a].size, set & ~(1u << a)));
    }
    return WEFT_OK;
}

static weft_status permutations(const moves_context *w) {
    wefti_axes set = w->m->axes & ~(w->at->sum | w->at->max);
    if (__builtin_popcount(set) <= PERMUTED) {
        wefti_layout next = *w->at;
        WEFT_TRY(permute(w, &next, -1, 1, set));
    }
    wefti_move last;
    return wefti_moves_exchange(w->m, w->at, &last) ? w->visit(w->context, &last) : WEFT_OK;
}

/* ---- to and from partial values ---- */

static weft_status reduce(const moves_context *w, wefti_axes set) {
    for (wefti_axes some = set; some; some = (some - 1) & set) {
        wefti_layout next = *w->at;
        next.sum &= ~some;
        next.max &= ~some;
        WEFT_TRY(emit(w, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_REDUCE, some, &next));
    }
    return WEFT_OK;
}

static weft_status to_partial(const moves_context *w, wefti_axes set, bool sum) {
    for (wefti_axes some = set; some; some = (some - 1) & set) {
        wefti_layout next = *w->at;
        if (sum)
            next.sum |= some;
        else
            next.max |= some;
        WEFT_TRY(emit(w, WEFTI_MOVE_TO_PARTIAL, WEFTI_TRANSFER_ALL_REDUCE, some, &next));
    }
    return WEFT_OK;
}

weft_status wefti_moves_each(const wefti_moves *moves, const wefti_layout *at,
                             wefti_move_visit *visit, void *context) {
    moves_context w = {moves, at, visit, context};
    wefti_axes partial = at->sum | at->max, unused = moves->axes & ~wefti_layout_axes(at);
    WEFT_TRY(reduce(&w, partial));
    WEFT_TRY(append_all(&w, WEFTI_MOVE_TRANSFER, partial));
    WEFT_TRY(append_all(&w, WEFTI_MOVE_SLICE, unused));
    WEFT_TRY(gather(&w, at, 0, 0));
    for (int d = 0; d < at->rank; d++) WEFT_TRY(all_to_all(&w, d));
    WEFT_TRY(permutations(&w));
    /* a value is a partial sum or a partial maximum, never both */
    if (!at->max) WEFT_TRY(to_partial(&w, unused & moves->to->sum, true));
    if (!at->sum) WEFT_TRY(to_partial(&w, unused & moves->to->max, false));
    return WEFT_OK;
}
