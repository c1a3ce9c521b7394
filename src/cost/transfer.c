/* Seconds of transfers: see cost.h. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "cost/cost.h"

static double bytes_of(const wefti_transfer *t, const wefti_region *box) {
    return (double)wefti_region_elems(box, t->rank) * (double)weft_dtype_bytes(t->dtype);
}

/* The devices of [first, first + count) that lie in one block below the level, at most. */
static double sharing(const wefti_machine_model *m, int32_t level, wefti_active active) {
    if (level == 0) return 1;
    int32_t block = wefti_model_block(m, level - 1);
    return block < active.count ? block : active.count;
}

static double seconds_per_byte(const wefti_machine_model *m, int32_t level, wefti_active active) {
    return wefti_model_byte_seconds(m, level, sharing(m, level, active));
}

static double log2_up(double n) {
    double rounds = 0;
    for (double reach = 1; reach < n; reach *= 2) rounds++;
    return rounds;
}

int32_t wefti_transfer_level(const wefti_machine_model *m, const wefti_transfer *t) {
    /* Ranks ascend, and blocks are ranges: the first and the last rank are the farthest apart. */
    return t->members < 2 ? 0 : wefti_model_level_of(m, t->ranks[0], t->ranks[t->members - 1]);
}

/* ---- collectives on equal parts ---- */

typedef struct group_shape {
    const wefti_machine_model *m;
    wefti_active active;
    double members;
    double per[WEFTI_LEVELS_MAX];
    int32_t top;
} group_shape;

/* All-gather of a value of `bytes`, or its mirror, reduce-scatter: from the outermost level in. */
static double gather(const group_shape *s, double bytes) {
    double have = bytes / s->members, seconds = 0;
    for (int32_t l = s->top; l >= 0; l--) {
        const double n = s->per[l], latency = s->m->level[l].latency_seconds.value;
        if (n <= 1) continue;
        seconds += wefti_smaller(n - 1, log2_up(n)) * latency +
                   have * (n - 1) * seconds_per_byte(s->m, l, s->active);
        have *= n;
    }
    return seconds;
}

/* Of partial results of `bytes` at each level: a tree, or switches that reduce. */
static double trees(const group_shape *s, double bytes) {
    double seconds = 0;
    for (int32_t l = 0; l <= s->top; l++) {
        const double n = s->per[l], latency = s->m->level[l].latency_seconds.value;
        if (n <= 1) continue;
        const double moved = bytes * seconds_per_byte(s->m, l, s->active);
        seconds +=
            s->m->level[l].reduces ? 2 * latency + moved : 2 * log2_up(n) * latency + 2 * moved;
    }
    return seconds;
}

/* The group lies in one level with a measured curve: seconds that the curve gives for `wire` bytes
 * of a value of `bytes`. */
static double measured(const group_shape *s, double bytes, double wire) {
    const wefti_curve *curve = &s->m->level[s->top].all_reduce;
    for (int32_t l = 0; l < s->top; l++)
        if (s->per[l] > 1) return 0;
    return curve->count && bytes > 0 ? wire / wefti_curve_rate(curve, bytes) : 0;
}

static double all_to_all(const group_shape *s, double bytes) {
    double most = 0, latency = 0, inner = 1;
    for (int32_t l = 0; l <= s->top; l++) {
        if (s->per[l] <= 1) continue;
        double outer = inner * s->per[l], crossing = bytes * (outer - inner) / s->members;
        most = wefti_larger(most, crossing * seconds_per_byte(s->m, l, s->active));
        latency = wefti_larger(latency, s->m->level[l].latency_seconds.value);
        inner = outer;
    }
    return log2_up(s->members) * latency + most;
}

static double seconds_of(const group_shape *s, wefti_transfer_kind kind, double bytes) {
    const double part = (s->members - 1) / s->members;
    if (s->members < 2) return 0;
    switch (kind) {
    case WEFTI_TRANSFER_ALL_REDUCE:
        return wefti_larger(wefti_smaller(2 * gather(s, bytes), trees(s, bytes)),
                            measured(s, bytes, 2 * part * bytes));
    case WEFTI_TRANSFER_ALL_GATHER:
    case WEFTI_TRANSFER_REDUCE_SCATTER:
    case WEFTI_TRANSFER_GATHER:
    case WEFTI_TRANSFER_SCATTER:
        return wefti_larger(gather(s, bytes), measured(s, bytes, part * bytes));
    case WEFTI_TRANSFER_ALL_TO_ALL:
        return all_to_all(s, bytes);
    default: { /* one value along a tree, in pieces */
        double slowest = 0;
        for (int32_t l = 0; l <= s->top; l++)
            if (s->per[l] > 1)
                slowest = wefti_larger(slowest, seconds_per_byte(s->m, l, s->active));
        return log2_up(s->members) * s->m->level[s->top].latency_seconds.value + bytes * slowest;
    }
    }
}

double wefti_collective_seconds(const wefti_machine_model *m, wefti_transfer_kind kind,
                                double bytes, const int32_t *per_level, wefti_active active) {
    group_shape s = {.m = m, .active = active, .members = 1};
    for (int32_t l = 0; l < m->level_count; l++) {
        s.per[l] = per_level[l];
        s.members *= s.per[l];
        if (s.per[l] > 1) s.top = l;
    }
    return seconds_of(&s, kind, bytes);
}

/* ---- transfers ---- */

/* The members of each block, level by level; uneven groups count by their average. */
static group_shape shape_of(const wefti_machine_model *m, const wefti_transfer *t,
                            wefti_active active) {
    group_shape s = {
        .m = m, .active = active, .members = t->members, .top = wefti_transfer_level(m, t)};
    double below = t->members;
    for (int32_t l = 0; l <= s.top; l++) {
        const int32_t block = wefti_model_block(m, l);
        double blocks = 1;
        for (int32_t i = 1; i < t->members; i++)
            blocks += t->ranks[i] / block != t->ranks[i - 1] / block;
        s.per[l] = below / blocks;
        below = blocks;
    }
    return s;
}

/* Adds to each member the seconds of what it receives and what it sends, pair by pair. */
static double pairs(const wefti_machine_model *m, const wefti_transfer *t, wefti_active active) {
    double most = 0, latency = 0;
    for (int32_t a = 0; a < t->members; a++) {
        double in = 0, out = 0, own = 0, left;
        wefti_region both;
        if (wefti_region_intersect(&t->want[a], &t->have[a], t->rank, &both))
            own = bytes_of(t, &both);
        left = bytes_of(t, &t->want[a]) - own;
        for (int32_t b = 0; b < t->members; b++) {
            if (a == b) continue;
            const int32_t level = wefti_model_level_of(m, t->ranks[a], t->ranks[b]);
            const double each = seconds_per_byte(m, level, active);
            double moved;
            bool moves = false;
            if (left > 0 && wefti_region_intersect(&t->want[a], &t->have[b], t->rank, &both)) {
                moved = bytes_of(t, &both);
                if (t->reduction == WEFTI_REDUCE_NONE) {
                    moved = wefti_smaller(moved, left);
                    left -= moved;
                }
                in += moved * each;
                moves = moved > 0;
            }
            wefti_region own_part;
            if (wefti_region_intersect(&t->want[b], &t->have[a], t->rank, &both)) {
                moved = bytes_of(t, &both);
                /* b takes from itself what it has */
                if (t->reduction == WEFTI_REDUCE_NONE &&
                    wefti_region_intersect(&both, &t->have[b], t->rank, &own_part))
                    moved -= bytes_of(t, &own_part);
                out += moved * each;
                moves |= moved > 0;
            }
            if (moves) latency = wefti_larger(latency, m->level[level].latency_seconds.value);
        }
        most = wefti_larger(most, wefti_larger(in, out));
    }
    return latency + most;
}

double wefti_transfer_seconds(const wefti_machine_model *m, const wefti_transfer *t,
                              wefti_active active) {
    double have = 0, want = 0;
    if (t->members < 2) return 0;
    for (int32_t i = 0; i < t->members; i++) {
        have = wefti_larger(have, bytes_of(t, &t->have[i]));
        want = wefti_larger(want, bytes_of(t, &t->want[i]));
    }
    group_shape s;
    switch (t->kind) {
    case WEFTI_TRANSFER_ALL_REDUCE:
    case WEFTI_TRANSFER_ALL_GATHER:
    case WEFTI_TRANSFER_REDUCE_SCATTER:
    case WEFTI_TRANSFER_BROADCAST:
    case WEFTI_TRANSFER_REDUCE:
        s = shape_of(m, t, active);
        return seconds_of(&s, t->kind, wefti_larger(have, want));
    case WEFTI_TRANSFER_ALL_TO_ALL:
        s = shape_of(m, t, active);
        return seconds_of(&s, t->kind, have);
    default:
        return pairs(m, t, active);
    }
}
