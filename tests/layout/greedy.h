/* MindSpore's method to get from one layout to another, for comparison. Each round makes three
 * passes over the dimensions that differ from the target:
 *
 *     1. If the wanted axis is free, slice.
 *     2. If another dimension holds the wanted axis, move it (or gather that dimension and slice).
 *     3. If the target does not split the dimension, gather it.
 *
 * If a round changes nothing, the first such dimension is gathered. Source: the MindSpore
 * documentation, "Tensor Redistribution", and its redistribution operator inference. */
#ifndef WEFT_TEST_LAYOUT_GREEDY_H
#define WEFT_TEST_LAYOUT_GREEDY_H

#include "layout/moves.h"

enum { REDISTRIBUTE_GREEDY_NONE = -1 };

typedef struct greedy {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    wefti_layout at;
    const wefti_layout *to;
    bool all_to_all, pending[WEFT_MAX_RANK];
    wefti_route route;
} greedy;

static int axis_of(const wefti_layout *layout, int d) {
    return layout->dim[d].count ? layout->dim[d].axis[0] : REDISTRIBUTE_GREEDY_NONE;
}

static void set_axis(greedy *g, wefti_layout *layout, int d, int axis) {
    layout->dim[d] = (wefti_dim_split){.count = axis != REDISTRIBUTE_GREEDY_NONE, .unit = 1};
    if (axis != REDISTRIBUTE_GREEDY_NONE) layout->dim[d] = g->to->dim[d];
}

static void move_to(greedy *g, wefti_move_kind kind, wefti_transfer_kind transfer, int axis,
                    const wefti_layout *to) {
    wefti_move move = {.kind = kind, .transfer = transfer, .axes = 1u << axis, .to = *to};
    wefti_move_cost(g->mesh, g->whole, &g->at, &move);
    g->at = *to;
    g->route.move[g->route.moves++] = move;
    g->route.bytes += move.bytes;
    g->route.seconds += move.seconds;
}

static void slice(greedy *g, int d) {
    wefti_layout next = g->at;
    next.dim[d] = g->to->dim[d];
    move_to(g, WEFTI_MOVE_SLICE, WEFTI_TRANSFER_ALL_REDUCE, axis_of(g->to, d), &next);
}

static void gather(greedy *g, int d) {
    wefti_layout next = g->at;
    set_axis(g, &next, d, REDISTRIBUTE_GREEDY_NONE);
    move_to(g, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_GATHER, axis_of(&g->at, d), &next);
}

/* The pending dimension that `axis` splits at present. */
static int holder(const greedy *g, int axis) {
    for (int d = 0; d < g->at.rank; d++)
        if (g->pending[d] && axis_of(&g->at, d) == axis) return d;
    return REDISTRIBUTE_GREEDY_NONE;
}

static bool split_pass(greedy *g) {
    bool changed = false;
    for (int d = 0; d < g->at.rank; d++) {
        if (!g->pending[d]) continue;
        int have = axis_of(&g->at, d), want = axis_of(g->to, d);
        bool equal = have == want &&
                     (have == REDISTRIBUTE_GREEDY_NONE || g->at.dim[d].unit == g->to->dim[d].unit);
        if (!equal &&
            (have != REDISTRIBUTE_GREEDY_NONE || holder(g, want) != REDISTRIBUTE_GREEDY_NONE))
            continue;
        if (!equal) slice(g, d);
        g->pending[d] = false;
        changed = true;
    }
    return changed;
}

static bool permute_pass(greedy *g) {
    bool changed = false;
    for (int d = 0; d < g->at.rank; d++) {
        if (!g->pending[d] || axis_of(&g->at, d) != REDISTRIBUTE_GREEDY_NONE ||
            axis_of(g->to, d) == REDISTRIBUTE_GREEDY_NONE)
            continue;
        int other = holder(g, axis_of(g->to, d));
        if (other == REDISTRIBUTE_GREEDY_NONE) continue;
        if (g->all_to_all) {
            wefti_layout next = g->at;
            set_axis(g, &next, other, REDISTRIBUTE_GREEDY_NONE);
            next.dim[d] = g->to->dim[d];
            move_to(g, WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_TO_ALL, axis_of(g->to, d), &next);
        } else {
            gather(g, other);
            slice(g, d);
        }
        g->pending[d] = false;
        changed = true;
    }
    return changed;
}

static bool concat_pass(greedy *g) {
    bool changed = false;
    for (int d = 0; d < g->at.rank; d++) {
        int have = axis_of(&g->at, d);
        if (!g->pending[d] || have == REDISTRIBUTE_GREEDY_NONE ||
            wefti_layout_split_axes(g->to) >> have & 1u)
            continue;
        gather(g, d);
        changed = true;
    }
    return changed;
}

static int first_pending(const greedy *g) {
    for (int d = 0; d < g->at.rank; d++)
        if (g->pending[d]) return d;
    return REDISTRIBUTE_GREEDY_NONE;
}

static weft_status check_end(const wefti_layout *layout, const wefti_mesh *mesh,
                             const weft_desc *whole) {
    WEFT_TRY(wefti_layout_check(layout, mesh, whole));
    WEFT_REQUIRE(!layout->sum && !layout->max, WEFT_E_NO_IMPL,
                 "the greedy sequence knows no partial values: %s",
                 wefti_layout_text(layout, mesh).text);
    return WEFT_OK;
}

static weft_status check_single(const wefti_layout *layout, const wefti_mesh *mesh) {
    for (int d = 0; d < layout->rank; d++)
        WEFT_REQUIRE(layout->dim[d].count <= 1, WEFT_E_NO_IMPL,
                     "the greedy sequence knows one axis for each dimension: %s",
                     wefti_layout_text(layout, mesh).text);
    return WEFT_OK;
}

/* At most one axis splits each dimension, and no values are partial. `all_to_all` allows
 * all-to-all. Bytes are received bytes per device. */
static inline weft_status greedy_route(const wefti_mesh *mesh, const weft_desc *whole,
                                       const wefti_layout *from, const wefti_layout *to,
                                       bool all_to_all, wefti_route *out) {
    WEFT_TRY(check_end(from, mesh, whole));
    WEFT_TRY(check_end(to, mesh, whole));
    wefti_layout begin = *from, end = *to;
    wefti_layout_normal(&begin, mesh, whole);
    wefti_layout_normal(&end, mesh, whole);
    WEFT_TRY(check_single(&begin, mesh));
    WEFT_TRY(check_single(&end, mesh));
    greedy g = {.mesh = mesh, .whole = whole, .at = begin, .to = &end, .all_to_all = all_to_all};
    for (int d = 0; d < begin.rank; d++) g.pending[d] = true;
    while (first_pending(&g) != REDISTRIBUTE_GREEDY_NONE) {
        bool any = false, changed = true;
        while (changed) {
            changed = split_pass(&g);
            changed = permute_pass(&g) || changed;
            any = any || changed;
        }
        any = concat_pass(&g) || any;
        if (!any) gather(&g, first_pending(&g));
    }
    *out = g.route;
    return WEFT_OK;
}

#endif
