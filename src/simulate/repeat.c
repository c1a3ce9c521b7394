/* Loops: repetitions of a state are computed at once.
 *
 * The walk depends on positions and on differences of times only. So if the state is the same as
 * some iterations ago, but for later microbatches and for times that are all later by one number,
 * it goes on in the same way until a rank leaves its loop. The state is kept as a digest, and
 * compared whenever one rank, the reference, begins another iteration.
 *
 * Causes of times are no part of the state, because they do not decide anything. In one period,
 * each moment i (a rank's clock, a stream, a meeting) takes over the causes of some moment s(i) at
 * the begin of the period, and adds w(i). s and w are the same in every period. Let d(i) be the
 * growth of the causes of moment i over a period. Then the growth over the next period is d(s(i)).
 * If d has been the same in two periods, d(s(i)) = d(i), and d stays the same in all later ones.
 * So repetitions are skipped once two periods have grown alike.
 *
 * Times are whole numbers, so equality is exact. Source of the search for a repeated state: Brent,
 * "An improved Monte Carlo factorization algorithm", BIT 1980. */
#include <string.h>

#include "base/digest/digest.h"
#include "simulate/parts.h"

/* Where a rank is in a loop. micro: microbatches of an iteration; 0: in no loop. */
typedef struct lap {
    int32_t *iteration, last, micro;
} lap;

static lap lap_of(const wefti_sim *sim, wefti_sim_rank *r) {
    const wefti_loop *l = r->done ? NULL : wefti_cursor_loop(r->program, r->section, &r->at);
    if (l) return (lap){&r->at.iteration, l->times - 1, l->micro > 0 ? l->micro : 1};
    if (!r->done && r->section == WEFTI_SECTION_NEXT)
        return (lap){&r->repeat, wefti_sim_runs(sim, r, r->section) - 1, 1};
    return (lap){NULL, 0, 0};
}

static int64_t later(const wefti_sim *sim, wefti_sim_rank *r) {
    lap l = lap_of(sim, r);
    return l.micro ? (int64_t)*l.iteration * l.micro : 0;
}

/* No transfer begins before this time any more. */
static int64_t earliest(const wefti_sim *sim) {
    int64_t least = INT64_MAX;
    for (int32_t i = 0; i < sim->count; i++)
        if (!sim->ranks[i].done && sim->ranks[i].now.at < least) least = sim->ranks[i].now.at;
    for (int64_t i = 0; i < sim->ready_count; i++) {
        const wefti_sim_ready *x = &sim->ready[i];
        const int64_t at = x->channel->open[x->number - x->channel->begin].when.at;
        if (at < least) least = at;
    }
    return least;
}

/* ---- the digest ---- */

static uint64_t add(uint64_t digest, int64_t number) {
    return wefti_digest_number(digest, (uint64_t)number);
}

static uint64_t digest_rank(const wefti_sim *sim, wefti_sim_rank *r, int64_t base, int64_t now,
                            int64_t least, uint64_t digest) {
    lap l = lap_of(sim, r);
    digest = add(digest, (int64_t)r->section << 3 | r->done << 2 | r->failed << 1 | r->blocked);
    if (r->done) return digest;
    digest = add(digest, l.iteration == &r->repeat ? 0 : r->repeat);
    digest = add(digest, (int64_t)r->at.step << 32 | r->at.loop);
    digest = add(digest, l.micro ? later(sim, r) - base : 0);
    digest = add(digest, r->entered ? (int64_t)r->code << 32 | r->joined_end : -1);
    digest = add(digest, r->now.at - now);
    digest = add(digest, r->turn);
    const wefti_moment *stream = r->stream[0];
    for (int32_t k = 0; k < sim->options->machine->level_count * WEFTI_SIM_LANES; k++)
        digest = add(digest, stream[k].at > least ? stream[k].at - now : INT64_MIN);
    for (int s = 0; s < WEFTI_SPACES; s++)
        digest = add(digest, r->copied[s].at > least ? r->copied[s].at - now : INT64_MIN);
    for (int32_t i = 0; i < r->moves; i++)
        for (uint32_t k = r->copies[i].waited; k != r->copies[i].posted; k++) {
            const int64_t end = r->copies[i].end[k % WEFTI_COMM_DEPTH].at;
            digest = add(add(digest, i), end > least ? end - now : INT64_MIN);
        }
    for (int32_t i = 0; i < r->count; i++) {
        const wefti_sim_end *e = &r->ends[i];
        if (e->posted == e->waited) continue;
        digest = add(digest, i);
        for (uint32_t k = e->waited; k != e->posted; k++)
            digest = add(digest, e->number[k % WEFTI_COMM_DEPTH] - e->channel->begin);
    }
    return digest;
}

static uint64_t digest_channel(const wefti_sim_channel *c, int64_t now, uint64_t digest) {
    for (int32_t i = 0; i < c->members; i++)
        digest = add(digest, (c->posted[i] - c->begin) << 1 | c->waiting[i]);
    for (int64_t k = 0; k < c->used; k++) {
        const wefti_sim_meeting *m = &c->open[k];
        digest = add(digest, (int64_t)m->arrived << 32 | m->left);
        digest = add(digest, m->when.at - now);
        digest = add(digest, m->duration);
        digest = add(digest, (int64_t)m->by << 32 | m->turn);
        digest = add(digest, m->started ? m->start - now : -1);
    }
    return digest;
}

static uint64_t digest_state(const wefti_sim *sim) {
    wefti_sim_rank *reference = &sim->ranks[sim->repeat.reference];
    const int64_t base = later(sim, reference), now = reference->now.at, least = earliest(sim);
    uint64_t digest = add(6, sim->heaped);
    for (int32_t i = 0; i < sim->count; i++)
        digest = digest_rank(sim, &sim->ranks[i], base, now, least, digest);
    for (const wefti_sim_channel *c = sim->first; c; c = c->all)
        digest = digest_channel(c, now, digest);
    return digest;
}

/* ---- all numbers that grow ---- */

/* Calls `visit` for each row of numbers, in an order that equal states have in common. */
typedef weft_status visit_row(wefti_sim_repeat *x, int64_t *row, int64_t count);

enum { MOMENT = 1 + WEFTI_CAUSES };
_Static_assert(sizeof(wefti_moment) == MOMENT * sizeof(int64_t), "a moment is a row of numbers");

static weft_status visit_all(wefti_sim *sim, visit_row *visit) {
    wefti_sim_repeat *x = &sim->repeat;
    const int64_t least = earliest(sim);
    x->count = 0;
    for (int32_t i = 0; i < sim->count; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        if (r->done) continue;
        WEFT_TRY(visit(x, &r->now.at, MOMENT));
        WEFT_TRY(visit(x, r->time.cause, WEFTI_CAUSES));
        WEFT_TRY(visit(x, r->time.transfers, WEFTI_TRANSFER_KINDS));
        wefti_moment *stream = r->stream[0];
        for (int32_t k = 0; k < sim->options->machine->level_count * WEFTI_SIM_LANES; k++)
            if (stream[k].at > least) WEFT_TRY(visit(x, &stream[k].at, MOMENT));
        for (int s = 0; s < WEFTI_SPACES; s++)
            if (r->copied[s].at > least) WEFT_TRY(visit(x, &r->copied[s].at, MOMENT));
        for (int32_t m = 0; m < r->moves; m++) {
            wefti_sim_copy *c = &r->copies[m];
            for (uint32_t k = c->waited; k != c->posted; k++)
                if (c->end[k % WEFTI_COMM_DEPTH].at > least)
                    WEFT_TRY(visit(x, &c->end[k % WEFTI_COMM_DEPTH].at, MOMENT));
        }
    }
    for (wefti_sim_channel *c = sim->first; c; c = c->all)
        for (int64_t k = 0; k < c->used; k++) {
            WEFT_TRY(visit(x, &c->open[k].when.at, MOMENT));
            if (c->open[k].started) WEFT_TRY(visit(x, &c->open[k].start, 1));
        }
    return WEFT_OK;
}

static weft_status keep_row(wefti_sim_repeat *x, int64_t *row, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        WEFT_TRY(WEFT_GROW(x->scratch, x->count, x->scratch_capacity));
        x->scratch[x->count++] = row[i];
    }
    return WEFT_OK;
}

/* ---- periods ---- */

void wefti_sim_repeat_begin(wefti_sim *sim) {
    wefti_sim_repeat *x = &sim->repeat;
    const wefti_simulate_options *o = sim->options;
    x->reference = -1;
    if (o->every_iteration || o->span || o->fail_seconds > 0 || sim->processors) return;
    for (int32_t i = sim->count - 1; i >= 0; i--) {
        const wefti_program *p = sim->ranks[i].program;
        for (int s = 0; s < WEFTI_SECTIONS; s++)
            if (p->loop_count[s]) x->reference = i;
        if (wefti_sim_runs(sim, &sim->ranks[i], WEFTI_SECTION_NEXT) > 2) x->reference = i;
    }
}

void wefti_sim_repeat_free(wefti_sim *sim) {
    wefti_free(sim->repeat.values);
    wefti_free(sim->repeat.scratch);
    wefti_free(sim->repeat.growth);
}

/* Keeps the present values, and the positions of all ranks. */
static weft_status keep(wefti_sim *sim, uint64_t digest) {
    wefti_sim_repeat *x = &sim->repeat;
    WEFT_TRY(visit_all(sim, keep_row));
    int64_t *old = x->values;
    const int64_t old_capacity = x->capacity;
    x->values = x->scratch;
    x->capacity = x->scratch_capacity;
    x->kept = x->count;
    x->scratch = old;
    x->scratch_capacity = old_capacity;
    x->digest = digest;
    x->passed = 0;
    x->known = true;
    for (int32_t i = 0; i < sim->count; i++) {
        lap l = lap_of(sim, &sim->ranks[i]);
        sim->ranks[i].remembered = l.micro ? *l.iteration : -1;
    }
    return WEFT_OK;
}

/* How often all ranks can repeat what they did since the remembered state, and stay in their
 * loops. */
static int32_t repetitions(const wefti_sim *sim) {
    int32_t most = INT32_MAX;
    for (int32_t i = 0; i < sim->count; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        lap l = lap_of(sim, r);
        if (!l.micro) continue;
        int32_t advance = *l.iteration - r->remembered;
        if (advance <= 0) continue;
        int32_t times = (l.last - *l.iteration) / advance;
        if (times < most) most = times;
    }
    return most == INT32_MAX ? 0 : most;
}

static weft_status grow_row(wefti_sim_repeat *x, int64_t *row, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] += x->growth[x->count++] * x->passed;
    return WEFT_OK;
}

static weft_status skip(wefti_sim *sim) {
    wefti_sim_repeat *x = &sim->repeat;
    const int32_t times = repetitions(sim);
    if (times == 0) return WEFT_OK;
    x->passed = times; /* for grow_row */
    WEFT_TRY(visit_all(sim, grow_row));
    for (int32_t i = 0; i < sim->count; i++) {
        wefti_sim_rank *r = &sim->ranks[i];
        lap l = lap_of(sim, r);
        if (!l.micro || *l.iteration <= r->remembered) continue;
        const int32_t by = (*l.iteration - r->remembered) * times;
        *l.iteration += by;
        if (i == x->reference) sim->iterations += by;
    }
    return WEFT_OK;
}

/* The state has come again: the growth since then, and whether it is that of the period before. */
static weft_status compare(wefti_sim *sim, bool *out_same) {
    wefti_sim_repeat *x = &sim->repeat;
    WEFT_TRY(visit_all(sim, keep_row));
    *out_same = x->grown && x->count == x->kept;
    for (int64_t i = 0; i < x->count && i < x->kept; i++) {
        const int64_t growth = x->scratch[i] - x->values[i];
        while (i >= x->growth_capacity) WEFT_TRY(WEFT_GROW(x->growth, i, x->growth_capacity));
        if (!x->grown || x->growth[i] != growth) *out_same = false;
        x->growth[i] = growth;
    }
    x->grown = true;
    return WEFT_OK;
}

weft_status wefti_sim_repeat_at(wefti_sim *sim, const wefti_sim_rank *r) {
    wefti_sim_repeat *x = &sim->repeat;
    if (x->reference < 0 || r != &sim->ranks[x->reference]) return WEFT_OK;
    const uint64_t digest = digest_state(sim);
    bool same = false;
    if (x->known && digest == x->digest) {
        WEFT_TRY(compare(sim, &same));
        if (same) {
            WEFT_TRY(skip(sim));
            x->known = x->grown = false;
            return WEFT_OK;
        }
        return keep(sim, digest);
    }
    if (x->known && ++x->passed < x->patience) return WEFT_OK;
    x->patience = x->known ? 2 * x->patience : 1;
    x->grown = false;
    return keep(sim, digest);
}
