/* Chooses what leaves device memory: see memory/residency.h. Points are the times at which the
 * limit can bind. Branch and bound takes candidates in order. At the point that lacks most, the
 * rest of the candidates bounds the seconds from below: parts of them, the cheapest per byte first
 * (the relaxation of a knapsack). */
#include "memory/residency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAYS = WEFTI_RESIDENCY_STAYS,
    TIERS = WEFTI_RESIDENCY_TIERS,
    MOST_NODES = 1 << 19,
    MOST_TURNS = 8
};

/* Among choices with equal seconds, each byte that moves counts as so many. */
#define BYTE 1e-18

typedef struct rated {
    int32_t candidate;
    double rate; /* cost per byte freed */
} rated;

/* The choice of some candidates, and what it leaves. */
typedef struct moves {
    int8_t *tier;
    int64_t *left; /* [points]: bytes that device memory needs beyond the limit */
    int64_t room[TIERS];
    int64_t moved;
    double cost;
} moves;

typedef struct move_search {
    const wefti_residency_problem *p;
    wefti_arena *arena;
    int32_t points;
    int32_t *time;    /* [points] */
    int64_t *need;    /* [points]: beyond the limit */
    int64_t *frees;   /* [count * points] */
    int64_t *further; /* [(count + 1) * points]: the most that candidates from this one on free */
    rated *by_rate;   /* [points * count], ascending */
    int64_t most_moved;
    moves now, best;
    bool found;
    bool is_wide; /* all tiers have enough room */
    int64_t nodes;
} move_search;

static weft_status new_array(wefti_arena *arena, int64_t count, size_t bytes, void *out) {
    void *p = wefti_arena_alloc(arena, (size_t)count * bytes);
    WEFT_REQUIRE(p, WEFT_E_NOMEM, "no memory for a choice of residencies");
    memcpy(out, &p, sizeof p);
    return WEFT_OK;
}

/* ---- points ---- */

static int64_t freed_at(const wefti_residency_candidate *c, int32_t time) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < c->span_count; i++)
        if (c->spans[i].first <= time && time <= c->spans[i].last) bytes += c->spans[i].bytes;
    return bytes;
}

/* Whether the limit can bind: it does, or some candidate needs more memory there. */
static bool may_bind(const move_search *x, int32_t time) {
    if (x->p->need[time] > x->p->limit) return true;
    for (int32_t i = 0; i < x->p->count; i++)
        if (freed_at(&x->p->candidates[i], time) < 0) return true;
    return false;
}

static weft_status find_points(move_search *x) {
    const wefti_residency_problem *p = x->p;
    bool *begins; /* a span begins or has ended: from here on candidates free other bytes */
    WEFT_TRY(new_array(x->arena, p->times + 2, sizeof *begins, &begins));
    WEFT_TRY(new_array(x->arena, p->times + 1, sizeof *x->time, &x->time));
    for (int32_t i = 0; i < p->count; i++)
        for (int32_t k = 0; k < p->candidates[i].span_count; k++) {
            begins[p->candidates[i].spans[k].first] = true;
            begins[p->candidates[i].spans[k].last + 1] = true;
        }
    for (int32_t t = 0, next; t < p->times; t = next) {
        int32_t most = t;
        for (next = t + 1; next < p->times && !begins[next]; next++)
            if (p->need[next] > p->need[most]) most = next;
        if (may_bind(x, most)) x->time[x->points++] = most;
    }
    return WEFT_OK;
}

/* ---- what candidates free and cost ---- */

static double cost_of(const wefti_residency_candidate *c, int tier) {
    return c->to[tier].seconds + BYTE * (double)c->moved;
}

/* In its cheapest tier; infinite: it may not move. */
static double least_cost(const wefti_residency_candidate *c) {
    double least = INFINITY;
    for (int t = 0; t < TIERS; t++)
        if (c->to[t].allowed && cost_of(c, t) < least) least = cost_of(c, t);
    return least;
}

static int by_rate(const void *a, const void *b) {
    const rated *x = a, *y = b;
    if (x->rate != y->rate) return (x->rate > y->rate) - (x->rate < y->rate);
    return (x->candidate > y->candidate) - (x->candidate < y->candidate);
}

static weft_status prepare(move_search *x) {
    const wefti_residency_problem *p = x->p;
    WEFT_TRY(find_points(x));
    const int64_t n = p->count, points = x->points;
    WEFT_TRY(new_array(x->arena, points + 1, sizeof *x->need, &x->need));
    WEFT_TRY(new_array(x->arena, n * points + 1, sizeof *x->frees, &x->frees));
    WEFT_TRY(new_array(x->arena, (n + 1) * points + 1, sizeof *x->further, &x->further));
    WEFT_TRY(new_array(x->arena, n * points + 1, sizeof *x->by_rate, &x->by_rate));
    for (int64_t k = 0; k < points; k++) x->need[k] = p->need[x->time[k]] - p->limit;
    for (int64_t i = n - 1; i >= 0; i--) {
        const double cost = least_cost(&p->candidates[i]);
        for (int64_t k = 0; k < points; k++) {
            const int64_t freed = freed_at(&p->candidates[i], x->time[k]);
            const bool helps = freed > 0 && isfinite(cost);
            x->frees[i * points + k] = freed;
            x->further[i * points + k] = x->further[(i + 1) * points + k] + (helps ? freed : 0);
            x->by_rate[k * n + i] = (rated){(int32_t)i, helps ? cost / (double)freed : INFINITY};
        }
    }
    for (int64_t k = 0; k < points; k++)
        qsort(&x->by_rate[k * n], (size_t)n, sizeof *x->by_rate, by_rate);
    return WEFT_OK;
}

/* ---- choices ---- */

static weft_status make_choice(const move_search *x, moves *out) {
    WEFT_TRY(new_array(x->arena, x->p->count + 1, sizeof *out->tier, &out->tier));
    return new_array(x->arena, x->points + 1, sizeof *out->left, &out->left);
}

static size_t tier_bytes(const move_search *x) {
    return x->p->count > 0 ? (size_t)x->p->count : 0;
}

static void clear(const move_search *x, moves *c) {
    memset(c->tier, STAYS, tier_bytes(x));
    memcpy(c->left, x->need, (size_t)x->points * sizeof *c->left);
    memcpy(c->room, x->p->room, sizeof c->room);
    c->moved = 0;
    c->cost = 0;
}

static void copy(const move_search *x, moves *to, const moves *from) {
    memcpy(to->tier, from->tier, tier_bytes(x));
    memcpy(to->left, from->left, (size_t)x->points * sizeof *to->left);
    memcpy(to->room, from->room, sizeof to->room);
    to->moved = from->moved;
    to->cost = from->cost;
}

static bool has_room(const move_search *x, const moves *c, int32_t i, int tier) {
    const wefti_residency_candidate *k = &x->p->candidates[i];
    return tier == STAYS || (k->to[tier].allowed && k->bytes <= c->room[tier]);
}

static void account(const move_search *x, moves *c, int32_t i, int sign) {
    const wefti_residency_candidate *k = &x->p->candidates[i];
    const int tier = c->tier[i];
    if (tier == STAYS) return;
    for (int32_t at = 0; at < x->points; at++)
        c->left[at] -= sign * x->frees[(int64_t)i * x->points + at];
    c->room[tier] -= sign * k->bytes;
    c->moved += sign * k->moved;
}

/* The cost is a sum in one order, so it does not depend on the way to the choice. */
static void sum_cost(const move_search *x, moves *c) {
    c->cost = 0;
    for (int32_t i = 0; i < x->p->count; i++)
        if (c->tier[i] != STAYS) c->cost += cost_of(&x->p->candidates[i], c->tier[i]);
}

static void set(const move_search *x, moves *c, int32_t i, int tier) {
    account(x, c, i, -1);
    c->tier[i] = (int8_t)tier;
    account(x, c, i, 1);
}

/* The point at which most bytes are lacking; -1: there is none. */
static int32_t worst_point(const move_search *x, const moves *c) {
    int32_t worst = -1;
    for (int32_t k = 0; k < x->points; k++)
        if (worst < 0 || c->left[k] > c->left[worst]) worst = k;
    return worst;
}

static bool holds(const move_search *x, const moves *c) {
    const int32_t worst = worst_point(x, c);
    return (worst < 0 || c->left[worst] <= 0) && c->moved <= x->most_moved;
}

static void keep_best(move_search *x, moves *c) {
    sum_cost(x, c);
    if (!holds(x, c) || (x->found && c->cost >= x->best.cost)) return;
    copy(x, &x->best, c);
    x->found = true;
}

/* ---- the naive plan ---- */

static void move_kind(const move_search *x, moves *c, int32_t kind) {
    for (int32_t i = 0; i < x->p->count; i++) {
        int tier = 0;
        if (x->p->candidates[i].kind != kind) continue;
        while (tier < TIERS && !has_room(x, c, i, tier)) tier++;
        if (tier < TIERS) set(x, c, i, tier);
    }
}

/* Its bytes limit all others. If it does not fit, there is no such limit. */
static void take_naive(move_search *x) {
    int32_t kinds = 0;
    for (int32_t i = 0; i < x->p->count; i++)
        if (x->p->candidates[i].kind >= kinds) kinds = x->p->candidates[i].kind + 1;
    x->most_moved = INT64_MAX;
    clear(x, &x->now);
    for (int32_t kind = 0; kind < kinds && !x->found; kind++) {
        move_kind(x, &x->now, kind);
        keep_best(x, &x->now);
    }
    if (x->found) x->most_moved = x->best.moved;
}

/* ---- greedy, and improvement ---- */

/* The bytes that a candidate frees where some are lacking. */
static double useful(const move_search *x, const moves *c, int32_t i) {
    double bytes = 0;
    for (int32_t k = 0; k < x->points; k++) {
        const int64_t freed = x->frees[(int64_t)i * x->points + k];
        if (c->left[k] > 0) bytes += (double)(freed < c->left[k] ? freed : c->left[k]);
    }
    return bytes;
}

static void go_greedily(move_search *x, moves *c) {
    clear(x, c);
    for (bool more = true; more && !holds(x, c);) {
        double best = INFINITY;
        int32_t which = 0;
        int to = STAYS;
        for (int32_t i = 0; i < x->p->count; i++) {
            const double bytes = c->tier[i] == STAYS ? useful(x, c, i) : 0;
            for (int t = 0; t < TIERS && bytes > 0; t++) {
                const double rate = cost_of(&x->p->candidates[i], t) / bytes;
                if (has_room(x, c, i, t) && rate < best) best = rate, which = i, to = t;
            }
        }
        more = to != STAYS;
        if (more) set(x, c, which, to);
    }
    keep_best(x, c);
}

/* Gives candidate i the tier, and candidate k the tier `other`; takes both back if that is not
 * better. */
static bool improves(move_search *x, moves *c, int32_t i, int tier, int32_t k, int other) {
    const int before = c->tier[i], before_other = c->tier[k];
    const double cost = x->best.cost;
    set(x, c, i, STAYS);
    if (has_room(x, c, i, tier)) {
        set(x, c, i, tier);
        if (k != i && has_room(x, c, k, other)) set(x, c, k, other);
        keep_best(x, c);
    }
    if (x->best.cost < cost) return true;
    set(x, c, i, STAYS);
    if (k != i) set(x, c, k, before_other);
    set(x, c, i, before);
    return false;
}

/* Changes one candidate, or two at once, as long as that is better. */
static void improve(move_search *x, moves *c) {
    bool better = x->found;
    if (better) copy(x, c, &x->best);
    for (int turn = 0; better && turn < MOST_TURNS; turn++) {
        better = false;
        for (int32_t i = 0; i < x->p->count; i++)
            for (int tier = STAYS; tier < TIERS; tier++)
                for (int32_t k = 0; k <= i; k++)
                    for (int other = STAYS; other < TIERS; other++) {
                        if (k == i && other != STAYS) continue;
                        better |= improves(x, c, i, tier, k, other);
                    }
    }
}

/* ---- branch and bound ---- */

/* The least cost of candidates from `i` on that frees what is lacking at the worst point. */
static double cost_bound(const move_search *x, int32_t i) {
    const int32_t at = worst_point(x, &x->now);
    double cost = 0, lacks = at < 0 ? 0 : (double)x->now.left[at];
    for (int32_t r = 0; r < x->p->count && lacks > 0; r++) {
        const rated *c = &x->by_rate[(int64_t)at * x->p->count + r];
        if (c->candidate < i) continue;
        if (!isfinite(c->rate)) return INFINITY;
        const double freed = (double)x->frees[(int64_t)c->candidate * x->points + at];
        cost += c->rate * (freed < lacks ? freed : lacks);
        lacks -= freed;
    }
    return cost;
}

static bool is_hopeless(const move_search *x, int32_t i, double cost) {
    for (int32_t k = 0; k < x->points; k++)
        if (x->now.left[k] > x->further[(int64_t)i * x->points + k]) return true;
    if (x->now.moved > x->most_moved) return true;
    /* below the rounding of sums, nothing is better */
    return x->found && cost + cost_bound(x, i) >= x->best.cost * (1 - 1e-12);
}

/* Whether a candidate is like the one before it. Then it needs no tier that is before that one's.
 */
static bool is_like_last(const move_search *x, int32_t i) {
    if (i == 0) return false;
    const wefti_residency_candidate *a = &x->p->candidates[i - 1], *b = a + 1;
    bool like = a->bytes == b->bytes && a->moved == b->moved;
    for (int t = 0; t < TIERS; t++)
        like &= a->to[t].allowed == b->to[t].allowed && a->to[t].seconds == b->to[t].seconds;
    return like && !memcmp(&x->frees[(int64_t)(i - 1) * x->points],
                           &x->frees[(int64_t)i * x->points], (size_t)x->points * sizeof *x->frees);
}

static void branch(move_search *x, int32_t i, double cost) {
    if (++x->nodes > MOST_NODES || is_hopeless(x, i, cost)) return;
    if (holds(x, &x->now)) { /* further moves only cost more */
        keep_best(x, &x->now);
        return;
    }
    if (i == x->p->count) return;
    const int first = is_like_last(x, i) ? x->now.tier[i - 1] : STAYS;
    for (int tier = TIERS - 1; tier >= first; tier--) {
        if (!has_room(x, &x->now, i, tier)) continue;
        set(x, &x->now, i, tier);
        branch(x, i + 1, tier == STAYS ? cost : cost + cost_of(&x->p->candidates[i], tier));
        set(x, &x->now, i, STAYS);
    }
}

static void search(move_search *x) {
    take_naive(x);
    go_greedily(x, &x->now);
    improve(x, &x->now);
    clear(x, &x->now);
    branch(x, 0, 0);
}

/* ---- the answer ---- */

static weft_status choose(move_search *x, wefti_residency *out);

/* With enough room in all tiers, the choice that fits tells which of them lacks most. */
static weft_status find_lacking_tier(move_search *x, wefti_residency *out) {
    wefti_residency_problem wide = *x->p;
    move_search y = {.p = &wide, .arena = x->arena, .is_wide = true};
    for (int t = 0; t < TIERS; t++) wide.room[t] = INT64_MAX / 2;
    WEFT_TRY(choose(&y, out));
    if (!out->fits) return WEFT_OK;
    out->fits = false;
    for (int t = 0; t < TIERS; t++) {
        int64_t lacks = -x->p->room[t];
        for (int32_t i = 0; i < x->p->count; i++)
            if (out->tier[i] == t) lacks += x->p->candidates[i].bytes;
        if (lacks > out->lacks) out->lacks = lacks, out->lacking = t;
    }
    return WEFT_OK;
}

/* That device memory lacks with all candidates moved. */
static void find_lack(move_search *x, wefti_residency *out) {
    clear(x, &x->now);
    for (int32_t i = 0; i < x->p->count; i++)
        for (int t = 0; t < TIERS && x->now.tier[i] == STAYS; t++)
            if (has_room(x, &x->now, i, t)) set(x, &x->now, i, t);
    const int32_t worst = worst_point(x, &x->now);
    out->lacks = worst < 0 ? 0 : x->now.left[worst];
}

static weft_status choose(move_search *x, wefti_residency *out) {
    WEFT_TRY(prepare(x));
    WEFT_TRY(make_choice(x, &x->now));
    WEFT_TRY(make_choice(x, &x->best));
    search(x);
    *out = (wefti_residency){
        .tier = out->tier, .fits = x->found, .exact = x->nodes <= MOST_NODES, .lacking = STAYS};
    if (!x->found && !x->is_wide) return find_lacking_tier(x, out);
    if (!x->found) {
        find_lack(x, out);
        return WEFT_OK;
    }
    memcpy(out->tier, x->best.tier, tier_bytes(x));
    out->moved = x->best.moved;
    out->naive = x->most_moved;
    const int32_t worst = worst_point(x, &x->best);
    out->peak = x->p->limit + (worst < 0 ? 0 : x->best.left[worst]);
    for (int32_t i = 0; i < x->p->count; i++)
        if (out->tier[i] != STAYS)
            out->seconds += x->p->candidates[i].to[(int)out->tier[i]].seconds;
    return WEFT_OK;
}

weft_status wefti_residency_choose(const wefti_residency_problem *problem, wefti_residency *out) {
    move_search x = {.p = problem};
    WEFT_TRY(wefti_arena_create(&x.arena));
    const weft_status status = choose(&x, out);
    wefti_arena_destroy(x.arena);
    return status;
}
