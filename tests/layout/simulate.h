/* Every device's data carried through a route, move by move, by the regions of its transfers. */
#ifndef TESTS_LAYOUT_SIMULATE_H
#define TESTS_LAYOUT_SIMULATE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/philox.h"
#include "layout/redistribute.h"

enum { SIM_RANKS = 12, SIM_ELEMS = 512 };

typedef struct sim {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    int32_t ranks;
    wefti_layout layout;
    wefti_region region[SIM_RANKS];
    double data[SIM_RANKS][SIM_ELEMS];
} sim;

/* The value of element i of the whole. */
static inline double sim_value(int64_t i) {
    return (double)((i * 7919 + 13) % 1009) - 300;
}

static inline int64_t sim_index(const weft_desc *whole, const wefti_region *region, int64_t local) {
    int64_t index = 0, stride = 1;
    for (int d = whole->rank - 1; d >= 0; d--) {
        index += (region->begin[d] + local % region->size[d]) * stride;
        local /= region->size[d];
        stride *= whole->shape[d];
    }
    return index;
}

/* Place of this rank along partial axes, and how many there are. */
static inline int32_t sim_term(const wefti_mesh *mesh, wefti_axes partial, int32_t rank) {
    int32_t at[WEFTI_MAX_AXES], term = 0;
    wefti_mesh_coordinates(mesh, rank, at);
    for (int a = 0; a < mesh->axes; a++)
        if (partial >> a & 1u) term = term * mesh->axis[a].size + at[a];
    return term;
}

static inline void sim_regions(sim *s) {
    for (int32_t r = 0; r < s->ranks; r++)
        wefti_layout_region(&s->layout, s->mesh, s->whole, s->mesh->first + r, &s->region[r]);
}

static inline void sim_start(sim *s, const wefti_mesh *mesh, const weft_desc *whole,
                             const wefti_layout *layout) {
    s->mesh = mesh;
    s->whole = whole;
    s->ranks = wefti_mesh_size(mesh);
    s->layout = *layout;
    sim_regions(s);
    wefti_axes partial = layout->sum | layout->max;
    int32_t terms = wefti_mesh_product(mesh, partial);
    for (int32_t r = 0; r < s->ranks; r++) {
        int32_t term = sim_term(mesh, partial, mesh->first + r);
        int64_t n = wefti_region_elems(&s->region[r], whole->rank);
        for (int64_t i = 0; i < n; i++) {
            int64_t index = sim_index(whole, &s->region[r], i);
            double value = sim_value(index);
            /* whole numbers: sums are exact. Which term is the large one changes with the index. */
            bool here = (index + term) % terms == 0;
            if (layout->sum) value = here ? value - 3 * (terms - 1) : 3;
            if (layout->max) value = here ? value : value - 1 - term;
            s->data[r][i] = value;
        }
    }
}

static inline void sim_local(sim *s, const sim *old, const wefti_move *move) {
    for (int32_t r = 0; r < s->ranks; r++) {
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(s->mesh, s->mesh->first + r, at);
        bool keeps = true;
        for (int a = 0; a < s->mesh->axes && move->kind == WEFTI_MOVE_TO_PARTIAL; a++)
            if (move->axes >> a & 1u && at[a]) keeps = false;
        wefti_region_copy(&s->region[r], &old->region[r], old->data[r], &s->region[r], s->data[r],
                          s->whole->rank, sizeof(double));
        if (keeps) continue;
        int64_t n = wefti_region_elems(&s->region[r], s->whole->rank);
        bool sum = move->axes & move->to.sum;
        for (int64_t i = 0; i < n; i++) s->data[r][i] = sum ? 0 : -INFINITY;
    }
}

/* What one member gets. False when the transfer is not legal. */
static inline bool sim_receive(sim *s, const sim *old, const wefti_transfer *t, int32_t r) {
    const wefti_region *want = &t->want[t->me];
    int rank = s->whole->rank;
    double got[SIM_ELEMS];
    int64_t n = wefti_region_elems(want, rank);
    bool has[SIM_ELEMS] = {false};
    for (int32_t k = 0; k < t->members; k++) {
        /* oneself first where nothing is reduced */
        int32_t m = k;
        if (t->reduction == WEFTI_REDUCE_NONE) m = k == 0 ? t->me : k <= t->me ? k - 1 : k;
        const wefti_region *have = &t->have[m];
        int32_t from = t->ranks[m] - s->mesh->first;
        for (int d = 0; d < rank; d++)
            if (have->begin[d] != old->region[from].begin[d] ||
                have->size[d] != old->region[from].size[d])
                return false;
        wefti_region both;
        if (!wefti_region_intersect(have, want, rank, &both)) continue;
        wefti_region_copy(&both, have, old->data[from], want, got, rank, sizeof(double));
        int64_t cells = wefti_region_elems(&both, rank);
        for (int64_t c = 0; c < cells; c++) {
            int64_t index = sim_index(s->whole, &both, c), i = 0;
            for (int d = 0; d < rank; d++) { /* the same element in `want` */
                int64_t stride = 1;
                for (int e = d + 1; e < rank; e++) stride *= s->whole->shape[e];
                i = i * want->size[d] + index / stride % s->whole->shape[d] - want->begin[d];
            }
            double value = got[i], *to = &s->data[r][i];
            if (!has[i])
                *to = value;
            else if (t->reduction == WEFTI_REDUCE_SUM)
                *to += value;
            else if (t->reduction == WEFTI_REDUCE_MAX)
                *to = fmax(*to, value);
            has[i] = true;
        }
    }
    for (int64_t i = 0; i < n; i++)
        if (!has[i]) return false;
    return true;
}

/* Applies the move; false, and a line that says why, when something is wrong with it. */
static inline bool sim_move(sim *s, const wefti_move *move) {
    static sim old;
    old = *s;
    s->layout = move->to;
    sim_regions(s);
    if (move->kind != WEFTI_MOVE_TRANSFER) {
        sim_local(s, &old, move);
        return true;
    }
    int64_t most = 0;
    for (int32_t r = 0; r < s->ranks; r++) {
        wefti_transfer *t = NULL;
        if (wefti_move_transfer(s->mesh, s->whole, &old.layout, move, s->mesh->first + r, &t) < 0 ||
            wefti_transfer_check(t) < 0) {
            printf("%s\n", weft_error_message());
            wefti_free(t);
            return false;
        }
        int64_t bytes = wefti_transfer_bytes(t);
        if (bytes > most) most = bytes;
        bool right = t->ranks[t->me] == s->mesh->first + r && sim_receive(s, &old, t, r);
        wefti_free(t);
        if (!right) {
            printf("rank %d does not get what it wants\n", r);
            return false;
        }
    }
    if (most == move->bytes) return true;
    printf("the move says %lld bytes, its transfers %lld\n", (long long)move->bytes,
           (long long)most);
    return false;
}

/* Every rank has its region, and terms combine to the value. */
static inline bool sim_is(const sim *s, const wefti_layout *layout) {
    wefti_axes partial = layout->sum | layout->max;
    for (int32_t r = 0; r < s->ranks; r++) {
        int32_t group[SIM_RANKS];
        int32_t members = wefti_mesh_group(s->mesh, s->mesh->first + r, partial, group);
        wefti_region region;
        wefti_layout_region(layout, s->mesh, s->whole, s->mesh->first + r, &region);
        int64_t n = wefti_region_elems(&region, s->whole->rank);
        for (int d = 0; d < s->whole->rank; d++)
            if (region.begin[d] != s->region[r].begin[d] || region.size[d] != s->region[r].size[d])
                return false;
        for (int64_t i = 0; i < n; i++) {
            double value = layout->max ? -INFINITY : 0;
            for (int32_t m = 0; m < members; m++) {
                double term = s->data[group[m] - s->mesh->first][i];
                value = layout->max ? fmax(value, term) : value + term;
            }
            if (value != sim_value(sim_index(s->whole, &region, i))) return false;
        }
    }
    return true;
}

static inline void print_route(const wefti_mesh *mesh, const weft_desc *whole,
                               const wefti_layout *from, const wefti_layout *to,
                               const wefti_route *route) {
    printf("%s %s -> %s: %g s, %lld bytes\n", wefti_desc_text(whole).text,
           wefti_layout_text(from, mesh).text, wefti_layout_text(to, mesh).text, route->seconds,
           (long long)route->bytes);
    for (int i = 0; i < route->moves; i++) {
        const wefti_move *move = &route->move[i];
        printf("  %s %s, %g s, %lld bytes\n",
               move->kind == WEFTI_MOVE_SLICE        ? "slice"
               : move->kind == WEFTI_MOVE_TO_PARTIAL ? "to_partial"
                                                     : wefti_transfer_kind_text(move->transfer),
               wefti_layout_text(&move->to, mesh).text, move->seconds, (long long)move->bytes);
    }
}

/* The whole route on data; prints it when it is wrong. */
static inline bool sim_route(const wefti_mesh *mesh, const weft_desc *whole,
                             const wefti_layout *from, const wefti_layout *to,
                             const wefti_route *route) {
    static sim s;
    sim_start(&s, mesh, whole, from);
    bool right = true;
    double seconds = 0;
    int64_t bytes = 0;
    for (int i = 0; i < route->moves && right; i++) {
        right = sim_move(&s, &route->move[i]);
        seconds += route->move[i].seconds;
        bytes += route->move[i].bytes;
    }
    right = right && sim_is(&s, to) && bytes == route->bytes &&
            fabs(seconds - route->seconds) <= 1e-12 * seconds;
    if (!right) print_route(mesh, whole, from, to, route);
    return right;
}

#endif
