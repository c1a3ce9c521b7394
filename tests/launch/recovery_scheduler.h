/* The scheduler in the explorer of recovery (test_recovery.c), and what may fail. */
#ifndef WEFT_TEST_RECOVERY_SCHEDULER_H
#define WEFT_TEST_RECOVERY_SCHEDULER_H

#include "recovery_ranks.h"

/* ---- what the scheduler does ---- */

/* Whether a seat and all that hold its state have died. */
static bool both_died(const system_t *x) {
    bool both = false;
    for (int32_t i = 0; i < x->size; i++) {
        bool all = x->lost >> i & 1;
        for (int32_t k = 0; k < x->size; k++)
            if (k != i && (!x->buddies || k == buddy(x, i))) all = all && x->lost >> k & 1;
        both = both || all;
    }
    return both;
}

/* Whether seat `from` sends seat `to` its state. In a world of another size the first that has the
 * state gives it. */
static bool gives(const system_t *x, int32_t from, int32_t to) {
    if (!wefti_mending_is_resized(&x->w)) return x->seats[to].source == from;
    int32_t first = 0;
    while (x->seats[first].source != WEFTI_SOURCE_OWN) first++;
    return from == first && x->seats[to].source == WEFTI_SOURCE_ALL;
}

static void tell_mend(explorer *e, system_t *x) {
    const bool disk = x->seats[0].source == WEFTI_SOURCE_DISK;
    unsigned members = 0;
    e->mends++;
    e->from_disk += disk;
    e->resized += wefti_mending_is_resized(&x->w);
    if (!x->together)
        assert_true(disk <= (x->elastic ? x->lost == (1u << x->size) - 1 : both_died(x)));
    if (!disk) assert_true(x->w.target >= x->top - 1); /* one step is repeated at most */
    if (disk) x->top = x->w.target;
    for (int32_t i = 0; i < x->w.size; i++) members |= 1u << process_of(x, i);
    for (int32_t i = 0; i < x->w.size; i++) {
        message m = {.kind = MEND,
                     .generation = x->w.generation,
                     .at.step = x->w.target,
                     .source = x->seats[i].source,
                     .rank = i,
                     .was = x->seats[i].was,
                     .members = members};
        if (x->elastic) assert_int_equal(x->seats[i].was, x->was[process_of(x, i)]);
        for (int32_t to = 0; to < x->w.size && !disk; to++)
            if (gives(x, i, to)) m.states_to |= 1u << process_of(x, to);
        post(x, WORLD, process_of(x, i), m);
    }
}

static void tell_go(system_t *x) {
    x->base[1] = x->base[0];
    x->base[0] = (base){.generation = x->w.generation, .size = x->w.size};
    for (int32_t i = 0; i < x->w.size; i++) x->base[0].process[i] = process_of(x, i);
    x->lost = 0;
    for (int32_t i = 0; i < x->size; i++) {
        x->was[i] = x->seat[i];
        if (x->seat[i] < 0) x->lost |= 1u << i; /* it has nothing of this world's state */
    }
    for (int32_t i = 0; i < x->w.size; i++) {
        const int32_t p = process_of(x, i);
        const rank *r = &x->r[p];
        if (r->alive && r->round.generation == x->w.generation) {
            assert_int_equal(r->s.step, x->w.target);
            assert_true(!x->buddies || wefti_survivor_keeps(&r->s));
            assert_false(r->held);
        }
        post(x, WORLD, p, (message){.kind = GO, .generation = x->w.generation});
    }
}

static void tell(explorer *e, system_t *x, unsigned actions) {
    if (actions & WEFTI_MENDING_HALT)
        for (int32_t i = 0; i < x->w.size; i++)
            if (x->seats[i].filled && !x->seats[i].stood)
                post(x, WORLD, process_of(x, i),
                     (message){.kind = HALT,
                               .generation = x->w.generation,
                               .whole = x->base[0].generation});
    if (actions & WEFTI_MENDING_MEND) tell_mend(e, x);
    if (actions & WEFTI_MENDING_GO) tell_go(x);
}

/* --- elastic worlds of any size are gathered: launch/scheduler/regain.c --- */

/* All that live have come back to a scheduler. The world that counts is the last one that any of
 * them knows to have been whole. */
static void gather(explorer *e, system_t *x, int32_t none) {
    int64_t whole = -1;
    unsigned actions = 0;
    (void)none;
    for (int32_t i = 0; i < x->size; i++)
        if (x->here >> i & 1 && x->back[i].at.whole > whole) whole = x->back[i].at.whole;
    if (x->base[0].generation != whole) x->base[0] = x->base[1];
    assert_int_equal(x->base[0].generation, whole);
    x->gathers = false;
    x->base[1] = (base){.generation = -1};
    for (int32_t i = 0; i < x->size; i++) x->seat[i] = x->was[i] = -1;
    x->lost = (1u << x->size) - 1;
    wefti_mending_gather(&x->w, x->base[0].size, x->seats, x->least);
    for (int32_t seat = 0; seat < x->base[0].size; seat++) x->seat[x->base[0].process[seat]] = seat;
    for (int32_t i = 0; i < x->size; i++) {
        const place *at = &x->back[i].at;
        const bool member = x->here >> i & 1 && (at->whole == whole || at->said == whole);
        const bool comes = x->here >> i & 1 && x->back[i].generation >= 0;
        if (x->here >> i & 1 && !member) assert_int_equal(at->whole, -1);
        if (x->here >> i & 1 && (!comes || x->seat[i] < 0)) x->waits |= 1u << i;
        if (member) x->was[i] = x->seat[i];
        if (member) x->lost &= ~(1u << i);
        if (x->seat[i] < 0) continue;
        actions = comes ? wefti_mending_returned(&x->w, x->seat[i], x->back[i].generation,
                                                 x->back[i].mends, !member)
                        : wefti_mending_missing(&x->w, x->seat[i]);
    }
    x->here = 0;
    memset(x->back, 0, sizeof x->back);
    tell(e, x, actions);
}

static void gather_again(system_t *x, int32_t i) {
    rank *r = &x->r[i];
    memset(&x->q[WORLD][i], 0, sizeof x->q[WORLD][i]);
    r->linked = true;
    x->here |= 1u << i;
    x->back[i].generation = r->round.generation;
    x->back[i].mends = !steps(r);
    x->back[i].at = r->at;
}

/* All that live are there, and one of them has a vote. */
static bool may_gather(const system_t *x) {
    bool votes = false;
    for (int32_t i = 0; i < x->size; i++) {
        const bool here = x->here >> i & 1;
        if (x->r[i].alive && !here) return false;
        votes = votes || (here && x->back[i].at.whole >= 0);
    }
    return x->gathers && votes;
}

/* One that waits has its seat, or another one at the end. */
static void enter(explorer *e, system_t *x, int32_t i) {
    x->waits &= ~(1u << i);
    if (x->seat[i] >= 0) {
        tell(e, x, wefti_mending_filled(&x->w, x->seat[i]));
        return;
    }
    x->seat[i] = x->w.size;
    tell(e, x, wefti_mending_grow(&x->w));
}

static void schedule(explorer *e, system_t *x, int32_t from) {
    const message m = take(&x->q[from][WORLD]);
    const int32_t seat = x->seat[from];
    unsigned actions = 0;
    if (x->gathers || x->waits >> from & 1) {
        assert_int_equal(m.kind, DIED);
        x->here &= ~(1u << from);
        x->waits &= ~(1u << from);
        return;
    }
    assert_true(seat >= 0);
    if (m.kind == STANDING) {
        const weft_status status = wefti_mending_stood(&x->w, seat, m.generation, m.at, &actions);
        assert_true(status == WEFT_OK || (x->together && status == WEFT_E_CORRUPT));
    }
    if (m.kind == WHOLE) actions = wefti_mending_whole(&x->w, seat, m.generation);
    if (m.kind == BACK)
        actions = wefti_mending_returned(&x->w, seat, m.generation, m.source == 1, false);
    if (m.kind == BACK && m.at.step < 0) /* given up before, it may have the seat as any newcomer */
        actions |= wefti_mending_filled(&x->w, seat);
    if (m.kind == REJOIN && x->seats[seat].filled)
        actions = wefti_mending_rejoined(&x->w, m.source == 1 || m.generation < x->w.generation);
    if (m.kind == DIED) {
        x->lost |= 1u << from;
        x->was[from] = -1;
        actions = wefti_mending_died(&x->w, seat);
    }
    tell(e, x, actions);
}

/* ---- failures ---- */

/* `heard`: what it has sent still arrives. */
static void die(system_t *x, int32_t i, bool heard) {
    const bool linked = x->r[i].linked;
    x->failures--;
    memset(&x->r[i], 0, sizeof x->r[i]);
    x->r[i].linked = linked; /* while the end of the connection is not seen */
    for (int j = 0; j <= WORLD; j++) {
        memset(&x->q[j][i], 0, sizeof x->q[j][i]);
        if (!heard) memset(&x->q[i][j], 0, sizeof x->q[i][j]);
    }
    post(x, i, WORLD, (message){.kind = DIED});
}

/* The scheduler dies, and the next one knows nothing. What ranks have said to it is lost; what it
 * has said still reaches them, up to where each notices the end of its connection. */
static void crash(explorer *e, system_t *x, int32_t none) {
    (void)e;
    (void)none;
    x->outages--;
    for (int32_t i = 0; i < x->size; i++) {
        memset(&x->q[i][WORLD], 0, sizeof x->q[i][WORLD]);
        x->r[i].linked = false;
    }
    x->gathers = x->elastic;
    x->here = x->waits = 0;
    const int64_t began = x->w.generation > x->w.least ? x->w.generation : x->w.least;
    x->least = began + EPOCH;
    wefti_mending_gather(&x->w, x->elastic ? 0 : x->size, x->seats, began + EPOCH);
}

static void come_back(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (x->gathers) {
        gather_again(x, i);
        return;
    }
    memset(&x->q[WORLD][i], 0, sizeof x->q[WORLD][i]);
    r->linked = true;
    if (r->round.generation < 0) { /* it has no place yet, and asks for it once more */
        tell(e, x, wefti_mending_filled(&x->w, i));
        return;
    }
    const bool mends = !steps(r);
    post(x, i, WORLD,
         (message){.kind = BACK,
                   .generation = r->round.generation,
                   .at = stand_of(x, i),
                   .source = mends ? 1 : 0});
}

/* What is under way on a connection is lost, and the rank makes a new one. */
static void break_link(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    (void)e;
    x->breaks--;
    memset(&x->q[WORLD][i], 0, sizeof x->q[WORLD][i]);
    memset(&x->q[i][WORLD], 0, sizeof x->q[i][WORLD]);
    post(x, i, WORLD,
         (message){.kind = REJOIN, .generation = r->round.generation, .source = !steps(r) ? 1 : 0});
}

/* Whether a rank that is not linked can come back now. */
static bool may_come_back(const system_t *x, int32_t i) {
    const rank *r = &x->r[i];
    if (!r->alive || r->linked) return false;
    if (x->elastic) return x->gathers;
    return r->round.generation >= 0 ||
           (x->w.phase == WEFTI_MENDING_COUNTING && !x->seats[i].filled);
}

/* No process that has this seat is there to come back. */
static bool may_be_missed(const system_t *x, int32_t i) {
    const rank *r = &x->r[i];
    if (x->elastic || x->w.phase != WEFTI_MENDING_GATHERING || x->seats[i].settled ||
        x->q[i][WORLD].count)
        return false;
    return !r->alive || (!r->linked && r->round.generation < 0);
}

/* A newcomer whose seat is given up waits until the others are gathered. */
static bool has_to_wait(const system_t *x, int32_t i) {
    const message *m = &x->q[i][WORLD].m[0];
    return !x->elastic && x->w.phase == WEFTI_MENDING_GATHERING && m->kind == BACK &&
           m->at.step < 0 && x->seats[i].settled;
}

static void be_missed(explorer *e, system_t *x, int32_t i) {
    x->lost |= 1u << i;
    tell(e, x, wefti_mending_missing(&x->w, i));
}

static void come(explorer *e, system_t *x, int32_t i) {
    x->r[i] = (rank){.alive = true,
                     .linked = true,
                     .round = wefti_round_newcomer(),
                     .s = wefti_survivor_new(),
                     .has = -1,
                     .keeps = -1,
                     .at = {.whole = -1, .said = -1, .seat = -1}};
    for (int32_t j = 0; j < x->size; j++) memset(&x->q[i][j], 0, sizeof x->q[i][j]);
    if (x->seat[i] >= 0) {
        tell(e, x, wefti_mending_filled(&x->w, x->seat[i]));
        return;
    }
    x->comers--;
    x->seat[i] = x->w.size;
    tell(e, x, wefti_mending_grow(&x->w));
}

/* The scheduler waits no longer for those that are dead. */
static void give_up(explorer *e, system_t *x, int32_t unused) {
    unsigned actions;
    int32_t next = 0;
    (void)unused;
    for (int32_t seat = 0; seat < x->w.size; seat++)
        x->seat[process_of(x, seat)] = x->seats[seat].filled ? next++ : -1 - RANKS_MOST;
    for (int32_t i = 0; i < x->size; i++)
        if (x->seat[i] < 0) x->seat[i] = -1;
    assert_int_equal(wefti_mending_shrink(&x->w, &actions), WEFT_OK);
    assert_int_equal(x->w.size, next);
    tell(e, x, actions);
}

/* Too many are left for each plan: one of them leaves as well. */
static void dismiss(explorer *e, system_t *x, int32_t i) {
    wefti_mending_dismiss(&x->w, x->seat[i]);
    x->lost |= 1u << i;
    x->was[i] = -1;
    memset(&x->r[i], 0, sizeof x->r[i]);
    x->r[i].linked = true;
    for (int j = 0; j <= WORLD; j++) {
        memset(&x->q[j][i], 0, sizeof x->q[j][i]);
        memset(&x->q[i][j], 0, sizeof x->q[i][j]);
    }
    give_up(e, x, 0);
}

static bool may_enter(const system_t *x, int32_t i) {
    if (x->gathers || !(x->waits >> i & 1)) return false;
    return x->seat[i] < 0 || (x->w.phase == WEFTI_MENDING_COUNTING && !x->seats[x->seat[i]].filled);
}

/* Once all that are left stand, and one would stay. */
static bool may_dismiss(const system_t *x, int32_t i) {
    int32_t filled = 0;
    if (x->seat[i] < 0 || !x->seats[x->seat[i]].filled || x->outages) return false;
    for (int32_t seat = 0; seat < x->w.size; seat++) {
        filled += x->seats[seat].filled;
        if (x->seats[seat].filled && !x->seats[seat].stood) return false;
    }
    return filled > 1;
}

static bool may_give_up(const system_t *x) {
    int32_t filled = 0;
    for (int32_t i = 0; i < x->w.size; i++) filled += x->seats[i].filled;
    return x->elastic && x->w.phase == WEFTI_MENDING_COUNTING && filled > 0 && filled < x->w.size;
}

#endif
