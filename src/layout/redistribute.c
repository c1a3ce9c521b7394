/* Finds the cheapest moves between two layouts by best-first search (Dijkstra, "A note on two
 * problems in connexion with graphs", 1959). The search adds a lower bound of the remaining cost
 * (Hart, Nilsson and Raphael, "A formal basis for the heuristic determination of minimum cost
 * paths", 1968).
 *
 * Costs are compared as (seconds, bytes, moves). Seconds are whole units of 2^-50 s, so that the
 * order of additions cannot change the result of a comparison. The search first tries a few obvious
 * routes to the goal. It then ignores every layout that cannot beat the best of them. */
#include "layout/redistribute.h"

#include <math.h>

#include "layout/open_list.h"
#include "layout/moves.h"

enum {
    LOOKS = 1 << 16, /* with a known route: visit at most this many moves, then take that route */
    MORE_LOOKS = 1 << 20, /* without a known route: visit at most this many moves */
    SAMPLES = 8,          /* number of ranks sampled for the bytes that they lack */
    GENERAL_EXCHANGE = 4  /* a general exchange counts as this many moves */
};

typedef struct search {
    wefti_moves moves;
    int64_t bound;
    wefti_open_list open;
    int32_t at, goal; /* node numbers; goal -1: not reached yet */
    int64_t looks;
    int32_t samples, sample[SAMPLES][WEFTI_MAX_AXES]; /* coordinates of the sampled ranks */
    wefti_region want[SAMPLES];                       /* their regions at the goal */
    wefti_link quickest; /* lowest latency and lowest s/byte over the axes in use */
} search;

static int64_t whole_units(double seconds) {
    double units = seconds * 0x1p50;
    return units < 0x1p58 ? llrint(units) : INT64_C(1) << 58;
}

/* ---- lower bound of the remaining cost ---- */

/* Chooses ranks spread over the mesh, or all ranks of a small mesh. */
static void choose_samples(search *s) {
    const wefti_mesh *mesh = s->moves.mesh;
    int32_t size = wefti_mesh_size(mesh);
    s->samples = size < SAMPLES ? size : SAMPLES;
    for (int32_t i = 0; i < s->samples; i++) {
        int64_t place = size <= SAMPLES ? i : i * INT64_C(2654435761) % size;
        wefti_mesh_coordinates(mesh, mesh->first + (int32_t)place, s->sample[i]);
        wefti_layout_region_at(s->moves.to, mesh, s->moves.whole, s->sample[i], &s->want[i]);
    }
    s->quickest = (wefti_link){INFINITY, INFINITY};
    for (int a = 0; a < mesh->axes; a++) {
        if (!(s->moves.axes >> a & 1u)) continue;
        s->quickest.latency = fmin(s->quickest.latency, mesh->axis[a].link.latency);
        s->quickest.seconds_per_byte =
            fmin(s->quickest.seconds_per_byte, mesh->axis[a].link.seconds_per_byte);
    }
}

/* Bytes that a sampled rank wants at the goal and lacks now; the maximum over the samples. A move
 * reduces this number at most by the bytes that it transfers. */
static int64_t lacking(const search *s, const wefti_layout *layout) {
    const wefti_moves *m = &s->moves;
    int64_t most = 0;
    for (int32_t i = 0; i < s->samples; i++) {
        wefti_region have, both;
        wefti_layout_region_at(layout, m->mesh, m->whole, s->sample[i], &have);
        int64_t elems = wefti_region_elems(&s->want[i], layout->rank);
        if (wefti_region_intersect(&have, &s->want[i], layout->rank, &both))
            elems -= wefti_region_elems(&both, layout->rank);
        if (elems > most) most = elems;
    }
    return most * (int64_t)weft_dtype_bytes(m->whole->dtype);
}

/* Bytes for a reduction. To reduce over g devices takes g - 1 additions for every element, shared
 * among all devices. */
static int64_t reducing(const search *s, wefti_axes partial) {
    int64_t g = wefti_mesh_product(s->moves.mesh, partial);
    return (int64_t)((double)(g - 1) * (double)weft_desc_bytes(s->moves.whole) /
                     wefti_mesh_product(s->moves.mesh, s->moves.axes));
}

static wefti_route_cost ahead_of(const search *s, const wefti_layout *layout, int64_t lack) {
    const wefti_layout *goal = s->moves.to;
    wefti_axes partial = (layout->sum & ~goal->sum) | (layout->max & ~goal->max);
    int64_t bytes = lack + (partial ? reducing(s, partial) : 0);
    double seconds = (double)bytes * s->quickest.seconds_per_byte +
                     ((lack > 0) + (partial != 0)) * s->quickest.latency;
    return (wefti_route_cost){whole_units(seconds), bytes, 0};
}

/* ---- the search ---- */

static bool fits(const search *s, const wefti_layout *layout) {
    return !s->bound || wefti_layout_bytes(layout, s->moves.mesh, s->moves.whole) <= s->bound;
}

/* Counts a general exchange as more moves than a common collective. At equal time and bytes the
 * search then takes the common collective, because communication engines run it faster. */
static int32_t moves_of(const wefti_layout *from, const wefti_move *move) {
    if (move->kind != WEFTI_MOVE_TRANSFER || move->transfer != WEFTI_TRANSFER_ALL_TO_ALL) return 1;
    wefti_axes gained = 0, lost = 0;
    for (int d = 0; d < from->rank; d++) {
        const wefti_dim_split *a = &from->dim[d], *b = &move->to.dim[d];
        for (int i = 0; i < a->count || i < b->count; i++) {
            if (i >= a->count)
                gained |= 1u << b->axis[i];
            else if (i >= b->count)
                lost |= 1u << a->axis[i];
            else if (a->axis[i] != b->axis[i])
                return GENERAL_EXCHANGE;
        }
    }
    return gained == lost ? 1 : GENERAL_EXCHANGE;
}

/* Whether a route with this cost cannot improve on the known route. */
static bool hopeless(const search *s, wefti_route_cost total) {
    return s->goal >= 0 && wefti_route_cost_compare(&s->open.nodes[s->goal].cost, &total) <= 0;
}

/* Visitor: tries `move` from node s->at. */
static weft_status reach(void *context, const wefti_move *move) {
    search *s = context;
    s->looks++;
    int32_t n = wefti_open_list_find(&s->open, &move->to);
    if ((n >= 0 && s->open.nodes[n].settled) || !fits(s, &move->to)) return WEFT_OK;
    const wefti_open_node *parent = &s->open.nodes[s->at];
    int64_t lack = n >= 0 ? s->open.nodes[n].lack : lacking(s, &move->to);
    wefti_route_cost ahead = n >= 0 ? s->open.nodes[n].ahead : ahead_of(s, &move->to, lack),
                     total = parent->cost;
    total.moves += moves_of(&parent->move.to, move);
    if (total.moves > WEFTI_MAX_MOVES || hopeless(s, wefti_route_cost_sum(total, ahead)))
        return WEFT_OK;
    wefti_move priced = *move;
    /* the exact cost of a transfer is slow to compute: test a lower bound first */
    if (move->kind == WEFTI_MOVE_TRANSFER) {
        wefti_route_cost least = total;
        int64_t bytes = parent->lack > lack ? parent->lack - lack : 0;
        least.time += whole_units(wefti_move_seconds(s->moves.mesh, move->axes, bytes));
        least.bytes += bytes;
        if (hopeless(s, wefti_route_cost_sum(least, ahead))) return WEFT_OK;
        if (n >= 0 && wefti_route_cost_compare(&s->open.nodes[n].cost, &least) <= 0) return WEFT_OK;
    }
    wefti_move_cost(s->moves.mesh, s->moves.whole, &parent->move.to, &priced);
    total.time += whole_units(priced.seconds);
    total.bytes += priced.bytes;
    if (n >= 0 && wefti_route_cost_compare(&s->open.nodes[n].cost, &total) <= 0) return WEFT_OK;
    if (hopeless(s, wefti_route_cost_sum(total, ahead))) return WEFT_OK;
    if (n < 0) WEFT_TRY(wefti_open_list_add(&s->open, &move->to, &n));
    s->open.nodes[n].move = priced;
    s->open.nodes[n].cost = total;
    s->open.nodes[n].ahead = ahead;
    s->open.nodes[n].lack = lack;
    s->open.nodes[n].parent = s->at;
    if (s->goal < 0 && wefti_layout_equal(&priced.to, s->moves.to)) s->goal = n;
    return wefti_open_list_push(&s->open, n);
}

/* Continues at the layout after `move` if the search could reach that layout. */
static weft_status step(search *s, wefti_move *move, bool *going) {
    if (!*going || wefti_layout_equal(&move->to, &s->open.nodes[s->at].move.to)) return WEFT_OK;
    WEFT_TRY(reach(s, move));
    s->at = wefti_open_list_find(&s->open, &move->to);
    *going = s->at >= 0;
    return WEFT_OK;
}

static wefti_axes to_be_reduced(const search *s, const wefti_layout *layout) {
    return (layout->sum & ~s->moves.to->sum) | (layout->max & ~s->moves.to->max);
}

/* An obvious route: reduce, gather, make partial, slice. */
static weft_status reach_goal_by_gather(search *s) {
    const wefti_layout *goal = s->moves.to;
    bool going = true;
    wefti_layout next = *s->moves.from;
    s->at = 0;
    wefti_axes drop = to_be_reduced(s, &next);
    next.sum &= ~drop;
    next.max &= ~drop;
    wefti_move reduce = {WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_ALL_REDUCE, drop, next, 0, 0};
    WEFT_TRY(step(s, &reduce, &going));
    wefti_axes before_gather = wefti_layout_split_axes(&next);
    for (int d = 0; d < next.rank; d++)
        wefti_moves_keep(&s->moves, &next, d, wefti_moves_common(&s->moves, &next, goal, d));
    wefti_move gather = {WEFTI_MOVE_TRANSFER,
                         WEFTI_TRANSFER_ALL_GATHER,
                         before_gather & ~wefti_layout_split_axes(&next),
                         next,
                         0,
                         0};
    WEFT_TRY(step(s, &gather, &going));
    wefti_axes zeroed = (goal->sum & ~next.sum) | (goal->max & ~next.max);
    next.sum = goal->sum;
    next.max = goal->max;
    wefti_move partial = {WEFTI_MOVE_TO_PARTIAL, WEFTI_TRANSFER_ALL_REDUCE, zeroed, next, 0, 0};
    WEFT_TRY(step(s, &partial, &going));
    wefti_move slice = {WEFTI_MOVE_SLICE,
                        WEFTI_TRANSFER_ALL_REDUCE,
                        wefti_layout_split_axes(goal) & ~wefti_layout_split_axes(&next),
                        *goal,
                        0,
                        0};
    return step(s, &slice, &going);
}

/* An obvious route: reduce-scatter along the longest dimension, then one exchange. */
static weft_status reach_goal_by_exchange(search *s) {
    const wefti_moves *m = &s->moves;
    bool going = true;
    wefti_layout next = *m->from;
    s->at = 0;
    wefti_axes drop = to_be_reduced(s, &next);
    int longest = -1;
    int64_t length = 0;
    for (int d = 0; d < next.rank; d++) {
        int64_t here = m->whole->shape[d] / wefti_layout_parts(&next, m->mesh, d);
        if (next.dim[d].unit != 1 || here <= length) continue;
        longest = d;
        length = here;
    }
    if (drop && longest >= 0) {
        for (int8_t a = 0; a < m->mesh->axes; a++)
            if (drop >> a & 1u) next.dim[longest].axis[next.dim[longest].count++] = a;
        next.sum &= ~drop;
        next.max &= ~drop;
        wefti_move reduce = {WEFTI_MOVE_TRANSFER, WEFTI_TRANSFER_REDUCE_SCATTER, drop, next, 0, 0};
        WEFT_TRY(step(s, &reduce, &going));
    }
    wefti_move last;
    return going && wefti_moves_exchange(m, &next, &last) ? step(s, &last, &going) : WEFT_OK;
}

static weft_status run(search *s) {
    int32_t start = 0;
    WEFT_TRY(wefti_open_list_add(&s->open, s->moves.from, &start));
    choose_samples(s);
    s->open.nodes[start].lack = lacking(s, s->moves.from);
    WEFT_TRY(reach_goal_by_gather(s));
    WEFT_TRY(reach_goal_by_exchange(s));
    WEFT_TRY(wefti_open_list_push(&s->open, start));
    while (s->open.heap_used && s->looks < (s->goal >= 0 ? LOOKS : MORE_LOOKS)) {
        int32_t n = wefti_open_list_pop(&s->open);
        if (s->open.nodes[n].settled) continue;
        if (n == s->goal) break;
        if (hopeless(s, wefti_route_cost_sum(s->open.nodes[n].cost, s->open.nodes[n].ahead))) break;
        s->open.nodes[n].settled = true;
        s->at = n;
        wefti_layout at = s->open.nodes[n].move.to; /* the node array moves when it grows */
        WEFT_TRY(wefti_moves_each(&s->moves, &at, reach, s));
    }
    return WEFT_OK;
}

static void add_move(wefti_route *route, const wefti_move *move) {
    wefti_move *last = route->moves ? &route->move[route->moves - 1] : NULL;
    if (last && last->kind == WEFTI_MOVE_SLICE && move->kind == WEFTI_MOVE_SLICE) {
        last->axes |= move->axes;
        last->to = move->to;
        return;
    }
    route->move[route->moves++] = *move;
    route->seconds += move->seconds;
    route->bytes += move->bytes;
}

static void collect(const search *s, wefti_route *out) {
    int32_t path[WEFTI_MAX_MOVES + 1];
    int length = 0;
    for (int32_t n = s->goal; s->open.nodes[n].parent >= 0; n = s->open.nodes[n].parent)
        path[length++] = n;
    *out = (wefti_route){.looks = s->looks};
    while (length) add_move(out, &s->open.nodes[path[--length]].move);
}

static bool refines(const wefti_moves *m) {
    if (m->from->sum != m->to->sum || m->from->max != m->to->max) return false;
    for (int d = 0; d < m->from->rank; d++)
        if (wefti_moves_common(m, m->from, m->to, d) < m->from->dim[d].count) return false;
    return true;
}

static weft_status nothing_fits(const search *s) {
    const wefti_moves *m = &s->moves;
    WEFT_FAIL(WEFT_E_NOMEM,
              "no way from layout %s to %s of %s needs at most %lld bytes on each device; the "
              "latter itself needs %lld",
              wefti_layout_text(m->from, m->mesh).text, wefti_layout_text(m->to, m->mesh).text,
              wefti_desc_text(m->whole).text, (long long)s->bound,
              (long long)wefti_layout_bytes(m->to, m->mesh, m->whole));
}

weft_status wefti_redistribute(const wefti_mesh *mesh, const weft_desc *whole,
                               const wefti_layout *from, const wefti_layout *to, int64_t bound,
                               wefti_route *out) {
    WEFT_TRY(wefti_layout_check(from, mesh, whole));
    WEFT_TRY(wefti_layout_check(to, mesh, whole));
    wefti_layout begin = *from, end = *to;
    wefti_layout_normal(&begin, mesh, whole);
    wefti_layout_normal(&end, mesh, whole);
    search s = {
        .moves = {mesh, whole, &begin, &end, wefti_layout_axes(&begin) | wefti_layout_axes(&end)},
        .bound = bound,
        .goal = -1};
    if (wefti_layout_equal(&begin, &end)) {
        *out = (wefti_route){0};
        return WEFT_OK;
    }
    if (!fits(&s, &end)) return nothing_fits(&s);
    if (refines(&s.moves)) {
        wefti_axes axes = wefti_layout_axes(&end) & ~wefti_layout_axes(&begin);
        *out = (wefti_route){.moves = 1};
        out->move[0] = (wefti_move){.kind = WEFTI_MOVE_SLICE, .axes = axes, .to = end};
        return WEFT_OK;
    }
    weft_status status = run(&s);
    if (status >= 0 && s.goal < 0) status = nothing_fits(&s);
    if (status >= 0) collect(&s, out);
    wefti_open_list_free(&s.open);
    return status;
}
