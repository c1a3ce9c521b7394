/* Plans that the search walks whatever the guesses of splits say. Plain plans come first, then the
 * best plans of each single constraint. The neighbours of the best plans come last.
 *
 * Guesses order the splits of the whole space, and they are wrong by up to a factor of two. So a
 * plain layout, or a plan that differs from the best one in one decision, could be faster and never
 * be walked. Each set is a part of the space. A few constraints describe it.
 *
 * Plain: one axis has all devices. Or one axis has the devices of a host, and another axis has the
 * hosts.
 *
 * Single: for each value of a degree, the split with this value and the least guess.
 *
 * Neighbours: one decision differs from that of a plan, or two degrees divide their devices
 * otherwise. After a change of degrees, level, recomputation and schedule are free.
 *
 * Of each part the candidates with the least guesses are walked. A better plan has neighbours of
 * its own: this is a local search. It ends when a pass over all parts finds nothing, and begins
 * again at the best plans with other splits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "search/joint/branch.h"

/* How many candidates of a part are walked, and how many of these may share their split. */
typedef struct breadth {
    int of_part, of_split;
} breadth;
static const breadth usual = {5, 2}, one = {1, 1};

typedef struct part {
    wefti_joint_branch *s;
    wefti_joint j;               /* with the constraints of the part */
    wefti_joint_problem problem; /* of j */
    wefti_joint_item *items;
    int64_t count, cap;
    /* Of the last candidates without `shard` and with it: all levels have the same coarse bound. */
    wefti_joint_line_bound bound[2];
    wefti_degrees bounded[2]; /* at level 0; data 0: none yet */
} part;

static bool may_be_better(const wefti_joint_branch *s, const wefti_joint_line_bound *b) {
    return b->bytes <= (double)s->j.limit && b->seconds * s->ratio < wefti_joint_best(s);
}

static weft_status bound_of(part *p, const wefti_degrees *d, wefti_joint_line_bound *out) {
    const int k = d->shard > 0;
    wefti_degrees any = *d;
    any.level = 0;
    if (memcmp(&p->bounded[k], &any, sizeof any) != 0) {
        p->bounded[k].data = 0;
        WEFT_TRY(wefti_joint_coarse_bound(p->s, d, &p->bound[k]));
        p->bounded[k] = any;
    }
    *out = p->bound[k];
    return WEFT_OK;
}

static weft_status push(void *context, const wefti_degrees *d) {
    part *p = context;
    wefti_joint_branch *s = p->s;
    wefti_joint_line_bound b;
    if (wefti_joint_is_large(d) || wefti_joint_is_past(s, d)) return WEFT_OK;
    WEFT_TRY(bound_of(p, d, &b));
    const double about = b.guess_bytes[d->level];
    if (!may_be_better(s, &b) || wefti_joint_fitting_of(s, about) == WEFTI_JOINT_TOO_LARGE)
        return WEFT_OK;
    const double work = b.about.work + b.about.further;
    wefti_joint_item x = {.degrees = *d, .bound = b.seconds, .bytes = b.bytes, .about = about};
    x.guess = work + wefti_joint_guess_stages(s, d, &b.about) +
              wefti_joint_guess_exposed(s, d, work, d->level);
    WEFT_TRY(WEFT_GROW(p->items, p->count, p->cap));
    p->items[p->count++] = x;
    return WEFT_OK;
}

static weft_status push_split(void *context, const wefti_degrees *split) {
    part *p = context;
    const wefti_joint_visit visit = {p, push};
    const int32_t fixed = p->problem.fix.value[WEFTI_JOINT_RECOMPUTE];
    wefti_degrees d = *split;
    if (wefti_joint_out_of_time(p->s)) return WEFT_OK; /* no walk follows */
    for (int32_t mode = WEFT_RECOMPUTE_NONE; mode <= (int32_t)WEFT_RECOMPUTE_FULL; mode++) {
        if (fixed >= 0 && fixed != mode) continue;
        bool alike;
        d.recompute = (weft_recompute)mode;
        wefti_joint_line_bound b; /* of all schedules */
        WEFT_TRY(wefti_joint_is_alike(p->s, &d, &alike));
        if (alike) continue;
        WEFT_TRY(wefti_joint_coarse_bound(p->s, &d, &b));
        if (!may_be_better(p->s, &b)) continue;
        WEFT_TRY(wefti_joint_schedules(&p->j, &d, &visit));
    }
    return WEFT_OK;
}

static int by_guess(const void *a, const void *b) {
    const wefti_joint_item *x = a, *y = b;
    if (x->guess != y->guess) return x->guess < y->guess ? -1 : 1;
    return memcmp(&x->degrees, &y->degrees, sizeof x->degrees);
}

/* Whether the phase admits a walk of this effort. */
static bool has_left(const wefti_joint_branch *s, double effort) {
    return s->out->prediction && !wefti_joint_is_over(s) &&
           wefti_joint_spent(s) + effort <= s->share * wefti_joint_effort_budget(s);
}

static bool may_walk(const wefti_joint_branch *s, const wefti_joint_item *x) {
    return x->bound * s->ratio < wefti_joint_best(s) &&
           x->guess < WEFTI_GUESS_START * wefti_joint_best(s) &&
           has_left(s, wefti_joint_walk_effort(&x->degrees));
}

/* How many of the first `end` items have the same degrees and microbatches. */
static int alike(const part *p, int64_t end) {
    int count = 0;
    for (int64_t i = 0; i < end; i++)
        count += wefti_joint_same_split(&p->items[i].degrees, &p->items[end].degrees);
    return count;
}

/* Walks the best candidates of the part that the constraints cut out. */
static weft_status walk_part(wefti_joint_branch *s, const wefti_joint_fix *fix, breadth most) {
    part p = {.s = s, .j = s->j, .problem = *s->j.problem};
    const wefti_joint_visit visit = {&p, push_split};
    p.problem.fix = *fix;
    p.j.problem = &p.problem;
    if (!has_left(s, 0)) return WEFT_OK;
    weft_status status = wefti_joint_splits(&p.j, &visit);
    bool several = false; /* splits */
    for (int64_t i = 1; i < p.count; i++)
        several |= !wefti_joint_same_split(&p.items[0].degrees, &p.items[i].degrees);
    if (status >= 0 && p.count) qsort(p.items, (size_t)p.count, sizeof *p.items, by_guess);
    for (int64_t i = 0, walks = 0; i < p.count && walks < most.of_part && status >= 0; i++) {
        if (!may_walk(s, &p.items[i]) || (several && alike(&p, i) >= most.of_split)) continue;
        walks++;
        status = wefti_joint_walk_candidate(s, &p.items[i].degrees, &p.items[i]);
    }
    wefti_free(p.items);
    return status;
}

/* Sets a dimension that the user has not fixed otherwise. */
static bool set(wefti_joint_fix *fix, int dimension, int32_t value) {
    if (fix->value[dimension] >= 0 && fix->value[dimension] != value) return false;
    fix->value[dimension] = value;
    return true;
}

/* ---- plain plans ---- */

static const int axes[] = {WEFTI_JOINT_DATA, WEFTI_JOINT_TENSOR, WEFTI_JOINT_STAGES,
                           WEFTI_JOINT_CONTEXT, WEFTI_JOINT_EXPERT};
enum { NEAR_AXES = sizeof axes / sizeof *axes };

/* `inner` devices for axis a, `outer` for axis b; a == b: all for one axis. */
static weft_status walk_axes(wefti_joint_branch *s, int a, int b, int32_t inner, int32_t outer) {
    wefti_joint_fix fix = s->j.problem->fix;
    for (int k = 0; k < NEAR_AXES; k++) {
        const int32_t value = (k == a ? inner : 1) * (k == b ? outer : 1);
        if (!set(&fix, axes[k], value)) return WEFT_OK;
    }
    return walk_part(s, &fix, usual);
}

weft_status wefti_joint_walk_plain(wefti_joint_branch *s) {
    const int32_t all = s->j.devices, of_host = wefti_model_per_host(s->j.problem->machine);
    const bool hosts = of_host > 1 && of_host < all && all % of_host == 0;
    enum { PLAIN = 3 }; /* replicas, tensors, stages */
    for (int a = 0; a < PLAIN; a++) WEFT_TRY(walk_axes(s, a, a, all, 1));
    for (int a = 0; a < PLAIN && hosts; a++)
        for (int b = 0; b < PLAIN; b++)
            if (a != b) WEFT_TRY(walk_axes(s, a, b, of_host, all / of_host));
    return WEFT_OK;
}

/* ---- neighbours ---- */

/* The decisions of a plan as constraints. */
static wefti_joint_fix like(const wefti_degrees *d) {
    wefti_joint_fix fix = wefti_joint_free();
    fix.value[WEFTI_JOINT_DATA] = d->data;
    fix.value[WEFTI_JOINT_EXPERT] = d->expert;
    fix.value[WEFTI_JOINT_CONTEXT] = d->context;
    fix.value[WEFTI_JOINT_TENSOR] = d->tensor;
    fix.value[WEFTI_JOINT_SEQUENCE] = d->sequence;
    fix.value[WEFTI_JOINT_STAGES] = d->stages;
    fix.value[WEFTI_JOINT_CHUNKS] = d->chunks;
    fix.value[WEFTI_JOINT_MICROBATCHES] = d->microbatches;
    if (d->stages > 1) fix.value[WEFTI_JOINT_SCHEDULE] = (int32_t)d->schedule;
    fix.value[WEFTI_JOINT_LEVEL] = d->level;
    fix.value[WEFTI_JOINT_SHARD] = d->shard;
    fix.value[WEFTI_JOINT_RECOMPUTE] = (int32_t)d->recompute;
    fix.value[WEFTI_JOINT_INNER] = d->order[3];
    return fix;
}

#define BIT(name) (1u << WEFTI_JOINT_##name)
/* What follows another split of the devices. */
#define FOLLOWING                                                                                  \
    (BIT(SEQUENCE) | BIT(CHUNKS) | BIT(SCHEDULE) | BIT(LEVEL) | BIT(SHARD) | BIT(RECOMPUTE) |      \
     BIT(INNER))
/* Dimensions that a neighbour decides otherwise. What has fewer values comes first: a budget may
 * end with the first ones. */
static const unsigned steps[] = {
    BIT(SEQUENCE),
    BIT(RECOMPUTE),
    BIT(LEVEL) | BIT(SHARD),
    BIT(INNER),
    BIT(SCHEDULE) | BIT(CHUNKS),
    BIT(MICROBATCHES),
    BIT(MICROBATCHES) | FOLLOWING,
    BIT(DATA) | BIT(TENSOR) | FOLLOWING,
    BIT(DATA) | BIT(STAGES) | BIT(MICROBATCHES) | FOLLOWING,
    BIT(TENSOR) | BIT(STAGES) | BIT(MICROBATCHES) | FOLLOWING,
    BIT(DATA) | BIT(EXPERT) | FOLLOWING,
    BIT(DATA) | BIT(CONTEXT) | FOLLOWING,
    BIT(TENSOR) | BIT(CONTEXT) | FOLLOWING,
    BIT(TENSOR) | BIT(EXPERT) | FOLLOWING,
    BIT(CONTEXT) | BIT(STAGES) | BIT(MICROBATCHES) | FOLLOWING,
    BIT(EXPERT) | BIT(STAGES) | BIT(MICROBATCHES) | FOLLOWING,
    BIT(CONTEXT) | BIT(EXPERT) | FOLLOWING,
};

static weft_status walk_step(wefti_joint_branch *s, const wefti_degrees *from, unsigned freed) {
    wefti_joint_fix fix = like(from);
    for (int d = 0; d < WEFTI_JOINT_COUNT; d++)
        if (freed & 1u << d) fix.value[d] = s->j.problem->fix.value[d];
    return walk_part(s, &fix, usual);
}

/* After a better plan the first step comes again, from there: steps that change one decision have
 * few candidates, of which most are past. */
static weft_status walk_from(wefti_joint_branch *s, wefti_degrees from) {
    enum { STEPS = sizeof steps / sizeof *steps };
    for (int i = 0; i < STEPS && s->out->prediction && !wefti_joint_is_over(s); i++) {
        const double before = wefti_joint_best(s);
        WEFT_TRY(walk_step(s, &from, steps[i]));
        if (wefti_joint_best(s) >= before) continue;
        from = s->out->degrees;
        i = -1;
    }
    return WEFT_OK;
}

/* The best plan of those whose devices are divided otherwise than in each of `known`; NULL: none.
 */
static const wefti_joint_walked *other_start(const wefti_joint_branch *s,
                                             const wefti_degrees *known, int count) {
    for (int i = 0; i < s->out->walked_count; i++) {
        const wefti_joint_walked *x = &s->out->walked[i];
        bool seen = !x->fits;
        for (int k = 0; k < count; k++) seen |= wefti_joint_same_split(&x->degrees, &known[k]);
        if (!seen) return x;
    }
    return NULL;
}

/* The neighbours of the best plan, then those of the best ones with other splits. */
weft_status wefti_joint_walk_neighbours(wefti_joint_branch *s) {
    enum { STARTS = 4 };
    wefti_degrees from[STARTS];
    for (int k = 0; k < STARTS; k++) {
        const wefti_joint_walked *start = other_start(s, from, k);
        if (!start || start->seconds > WEFTI_GUESS_START * wefti_joint_best(s)) return WEFT_OK;
        from[k] = start->degrees;
        WEFT_TRY(walk_from(s, from[k]));
    }
    return WEFT_OK;
}

/* ---- one constraint ---- */

enum { SINGLE_VALUES = 64 };
typedef struct single {
    const wefti_joint_item *item;
    int32_t value;
} single;

/* The split with the least guess for each value of a dimension. Returns how many there are. */
static int choices_of(const wefti_joint_branch *s, int dimension, single out[SINGLE_VALUES]) {
    int count = 0;
    for (int64_t i = 0; i < s->numbered; i++) {
        const wefti_joint_item *x = &s->items[i];
        if (x->kind != WEFTI_JOINT_COARSE || !isfinite(x->guess)) continue;
        const int32_t value = like(&x->degrees).value[dimension];
        int k = 0;
        while (k < count && out[k].value != value) k++;
        if (k == SINGLE_VALUES) continue;
        if (k == count)
            out[count++] = (single){x, value};
        else if (x->guess < out[k].item->guess)
            out[k].item = x;
    }
    return count;
}

/* The best candidate of each value. */
static weft_status walk_choices(wefti_joint_branch *s) {
    static const int dimensions[] = {
        WEFTI_JOINT_STAGES,  WEFTI_JOINT_TENSOR,    WEFTI_JOINT_DATA,        WEFTI_JOINT_EXPERT,
        WEFTI_JOINT_CONTEXT, WEFTI_JOINT_RECOMPUTE, WEFTI_JOINT_MICROBATCHES};
    for (size_t d = 0; d < sizeof dimensions / sizeof *dimensions; d++) {
        single of[SINGLE_VALUES];
        const int count = choices_of(s, dimensions[d], of);
        for (int k = 0; k < count; k++) {
            const wefti_degrees split = of[k].item->degrees;
            wefti_joint_fix fix = like(&split);
            const unsigned open = BIT(CHUNKS) | BIT(SCHEDULE) | BIT(LEVEL) | BIT(SHARD);
            for (int o = 0; o < WEFTI_JOINT_COUNT; o++)
                if (open & 1u << o) fix.value[o] = s->j.problem->fix.value[o];
            WEFT_TRY(walk_part(s, &fix, one));
        }
    }
    return WEFT_OK;
}

/* All values have their best candidate before one has its second, for the budget may end. */
weft_status wefti_joint_walk_singles(wefti_joint_branch *s) {
    WEFT_TRY(walk_choices(s));
    return walk_choices(s);
}
