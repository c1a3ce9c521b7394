/* The protocol of recovery, explored: every order of events of a few ranks, and a rank, or the
 * scheduler, that dies at every point of each. The machines are those of launch/recovery; here are
 * their network, their steps, and what must hold. In an elastic world the seat of a dead process
 * may be given up at any time, and processes come that were not there; then seats change their
 * numbers.
 */
#include "support.h"

#include "base/digest/digest.h"
#include "launch/recovery/recovery.h"

enum { RANKS_MOST = 4, QUEUE = 12, WORLD = RANKS_MOST /* as a sender or receiver */ };
enum { EPOCH = 100 }; /* more generations than one scheduler begins */

typedef enum kind {
    GRAD,     /* a rank's part of the gradients of a step */
    WARDS,    /* the reduced gradients of a ward, to its buddy */
    READY,    /* a rank can update */
    STATE,    /* a seat's state */
    COPY,     /* a ward's state, to its buddy */
    STANDING, /* rank to scheduler: `at` */
    WHOLE,
    DIED,   /* the end of a connection */
    BACK,   /* rank to scheduler: its generation; `source` 1: it is not amid steps */
    REJOIN, /* the same, over a new connection to the same scheduler */
    HALT,   /* scheduler to rank */
    MEND,   /* `at.step` is the target */
    GO,
} kind;

typedef struct message {
    kind kind;
    int64_t generation;
    wefti_standing_report at;
    int32_t source;
    int64_t whole;                 /* of HALT: the world that was whole last */
    int32_t rank, was;             /* of MEND */
    unsigned states_to, copies_to; /* of MEND: what the receiver gives */
    unsigned members;              /* of MEND: the processes of the world */
} message;

typedef struct queue {
    int count;
    message m[QUEUE];
} queue;

/* What a rank knows of its worlds. Generation -1: none. */
typedef struct place {
    int64_t whole, said; /* as in wefti_voter */
    int32_t seat;        /* in `whole`; -1: it was not there */
    int32_t next;        /* in the world that it was told last */
} place;

typedef struct base { /* a world that was whole */
    int64_t generation;
    int32_t size, process[RANKS_MOST];
} base;

typedef struct rank {
    bool alive;
    bool linked; /* to the present scheduler; else it still hears what the one before has sent */
    wefti_survivor s;
    place at;
    bool computed, held;
    int64_t held_step;
    unsigned grads, ready; /* whose part came in this step */
    unsigned members;      /* the processes of its world */
    bool wards;            /* the ward's gradients came */
} rank;

typedef struct system {
    int32_t size;
    bool buddies;
    bool elastic;
    int comers;               /* processes without a seat that may still come */
    int32_t seat[RANKS_MOST]; /* of each process; -1: given up */
    int32_t was[RANKS_MOST];  /* its seat in the world that was whole last; -1: it was not there */
    int64_t last;             /* the step at which all end */
    int failures;             /* of ranks, still to come */
    int outages;              /* of the scheduler */
    int breaks;               /* of connections between it and a rank */
    int64_t top;              /* the furthest step that any rank ever committed */
    unsigned lost;            /* seats without the state that all had when they were whole */
    rank r[RANKS_MOST];
    base base[2];   /* the last one, and the one before it */
    bool gathers;   /* elastic: this scheduler is new */
    unsigned here;  /* processes that have come to it */
    unsigned waits; /* those that have no seat yet */
    int64_t least;
    struct {
        int64_t generation;
        bool mends;
        place at;
    } back[RANKS_MOST]; /* what they have said */
    wefti_mending w;
    wefti_seat seats[RANKS_MOST + 1];
    int32_t first[RANKS_MOST + 1], holder[RANKS_MOST * RANKS_MOST];
    queue q[RANKS_MOST + 1][RANKS_MOST + 1]; /* [from][to] */
} system_t;

typedef struct explorer {
    uint64_t (*seen)[2];
    unsigned char *state; /* of each slot: 0 empty, 1 below the present one, 2 done */
    size_t slots, count;
    long mends, from_disk, rolled_forward, resized;
    int depth, deepest;
} explorer;

/* ---- states that were seen ---- */

static uint64_t add(uint64_t h, int64_t x) {
    return wefti_digest_number(h, (uint64_t)x);
}

static uint64_t digest(const system_t *x, uint64_t h) {
    h = add(add(add(add(add(h, x->failures), x->outages), x->breaks), x->top), x->lost);
    h = add(h, x->comers);
    for (int32_t i = 0; i < x->size; i++) {
        const rank *r = &x->r[i];
        h = add(add(add(h, r->alive | r->linked << 1), x->seat[i]), x->was[i]);
        if (!r->alive) continue;
        h = add(add(add(h, (int64_t)r->s.phase), r->s.generation), r->s.at.step);
        h = add(h, r->s.at.ready | r->s.at.copies << 1 | r->s.lacks_state << 2 |
                       r->s.lacks_copies << 3 | r->computed << 4 | r->held << 5 | r->wards << 6 |
                       r->s.borrowed << 7);
        h = add(h, r->members);
        h = add(add(add(add(h, r->at.whole), r->at.said), r->at.seat), r->at.next);
        h = add(add(add(h, r->grads), r->ready), r->held ? r->held_step : 0);
        h = add(h, r->s.phase == WEFTI_SURVIVOR_MENDING ? r->s.target : 0);
    }
    h = add(add(add(add(h, x->gathers), x->here), x->waits), x->least);
    for (int k = 0; k < 2; k++) {
        h = add(add(h, x->base[k].generation), x->base[k].size);
        for (int32_t i = 0; i < x->base[k].size; i++) h = add(h, x->base[k].process[i]);
    }
    for (int32_t i = 0; i < x->size && x->gathers; i++) {
        if (!(x->here >> i & 1)) continue;
        h = add(add(h, x->back[i].generation), x->back[i].mends);
        h = add(add(add(h, x->back[i].at.whole), x->back[i].at.said), x->back[i].at.seat);
        h = add(h, x->back[i].at.next);
    }
    h = add(add(add(h, (int64_t)x->w.phase), x->w.generation), x->w.target);
    h = add(add(add(h, x->w.broken), x->w.size), x->w.whole);
    for (int32_t i = 0; i < x->w.size; i++) {
        const wefti_seat *s = &x->seats[i];
        h = add(h, s->filled | s->stood << 1 | s->whole << 2 | s->at.ready << 3 |
                       s->at.copies << 4 | s->settled << 5);
        h = add(add(add(h, s->at.step), s->source), s->was);
    }
    for (int from = 0; from <= WORLD; from++)
        for (int to = 0; to <= WORLD; to++) {
            const queue *q = &x->q[from][to];
            h = add(h, q->count);
            for (int k = 0; k < q->count; k++) {
                const message *m = &q->m[k];
                h = add(add(add(h, (int64_t)m->kind), m->generation), m->at.step);
                h = add(h, m->at.ready | m->at.copies << 1);
                h = add(add(add(add(h, m->source), m->states_to), m->copies_to), m->members);
                h = add(add(add(h, m->whole), m->rank), m->was);
            }
        }
    return h;
}

static void grow(explorer *e) {
    explorer old = *e;
    e->slots = old.slots ? 2 * old.slots : 1 << 16;
    e->seen = calloc(e->slots, sizeof *e->seen);
    e->state = calloc(e->slots, 1);
    assert_non_null(e->seen);
    assert_non_null(e->state);
    for (size_t i = 0; i < old.slots; i++) {
        if (!old.state[i]) continue;
        size_t at = old.seen[i][0] & (e->slots - 1);
        while (e->state[at]) at = (at + 1) & (e->slots - 1);
        e->seen[at][0] = old.seen[i][0];
        e->seen[at][1] = old.seen[i][1];
        e->state[at] = old.state[i];
    }
    free(old.seen);
    free(old.state);
}

/* The slot of a state, which is empty if the state is new. */
static size_t slot(explorer *e, uint64_t a, uint64_t b) {
    size_t at = a & (e->slots - 1);
    while (e->state[at] && (e->seen[at][0] != a || e->seen[at][1] != b))
        at = (at + 1) & (e->slots - 1);
    return at;
}

/* ---- the network ---- */

/* A rank that has come to a new scheduler says nothing before that has answered. */
static bool is_silent(const system_t *x, int32_t i) {
    return x->r[i].linked && (x->gathers || x->waits >> i & 1);
}

static void post(system_t *x, int from, int to, message m) {
    queue *q = &x->q[from][to];
    if (to != WORLD && !x->r[to].alive) return;
    if (to == WORLD && from != WORLD && !x->r[from].linked) return; /* nobody hears it */
    if (to == WORLD && is_silent(x, from) && m.kind != DIED) return;
    assert_true(q->count < QUEUE);
    q->m[q->count++] = m;
}

static message take(queue *q) {
    message m = q->m[0];
    memmove(q->m, q->m + 1, (size_t)--q->count * sizeof *q->m);
    memset(q->m + q->count, 0, sizeof *q->m);
    return m;
}

static int32_t buddy(const system_t *x, int32_t i) {
    return (i + 1) % x->size;
}
static int32_t ward(const system_t *x, int32_t i) {
    return (i + x->size - 1) % x->size;
}

/* The process of a seat. */
static int32_t process_of(const system_t *x, int32_t seat) {
    int32_t i = 0;
    while (x->seat[i] != seat) i++;
    assert_true(i < x->size);
    return i;
}

static void to_others(system_t *x, int32_t i, kind what) {
    const message m = {
        .kind = what, .generation = x->r[i].s.generation, .at.step = x->r[i].s.at.step};
    for (int32_t j = 0; j < x->size; j++)
        if (j != i && x->r[i].members >> j & 1) post(x, i, j, m);
}

/* ---- what ranks do ---- */

static void new_step(rank *r) {
    r->computed = r->wards = false;
    r->grads = r->ready = 0;
}

static void act(explorer *e, system_t *x, int32_t i, unsigned actions, const message *mend) {
    rank *r = &x->r[i];
    if (actions & WEFTI_RECOVERY_ABANDON) new_step(r);
    if (actions & WEFTI_RECOVERY_UPDATE) {
        assert_true(r->held);
        assert_int_equal(r->held_step + 1, r->s.at.step); /* the gradients of this very step */
        r->held = false;
        new_step(r);
        if (r->s.at.step > x->top) x->top = r->s.at.step;
        if (mend) e->rolled_forward++;
    }
    if (actions & WEFTI_RECOVERY_FORGET) r->held = false;
    if (actions & WEFTI_RECOVERY_GIVE) {
        assert_non_null(mend);
        const message state = {.kind = STATE, .generation = r->s.generation, .at = r->s.at};
        message copy = state;
        copy.kind = COPY;
        assert_int_equal(r->s.at.step, mend->at.step);
        for (int32_t j = 0; j < x->size; j++) {
            if (mend->states_to >> j & 1) {
                assert_true(r->s.at.copies);
                post(x, i, j, state);
            }
            if (mend->copies_to >> j & 1) post(x, i, j, copy);
        }
    }
    if (actions & WEFTI_RECOVERY_SAY_READY) {
        r->ready |= 1u << i;
        to_others(x, i, READY);
    }
    if (actions & WEFTI_RECOVERY_SAY_STANDING)
        post(x, i, WORLD,
             (message){.kind = STANDING, .generation = r->s.generation, .at = r->s.at});
    /* It may say so to a scheduler that is dead. */
    if (actions & WEFTI_RECOVERY_SAY_WHOLE && !is_silent(x, i)) r->at.said = r->s.generation;
    if (actions & WEFTI_RECOVERY_SAY_WHOLE)
        post(x, i, WORLD, (message){.kind = WHOLE, .generation = r->s.generation});
}

static void commit(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (r->ready == r->members) act(e, x, i, wefti_survivor_committed(&r->s), NULL);
}

/* All that this rank updates with has come. Alone in its world, it commits at once. */
static void reduce(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (r->grads != r->members || r->held) return;
    if (x->buddies && !r->wards) return;
    r->held = true;
    r->held_step = r->s.at.step;
    act(e, x, i, wefti_survivor_reduced(&r->s), NULL);
    commit(e, x, i);
}

static void part_came(explorer *e, system_t *x, int32_t i, int32_t from) {
    rank *r = &x->r[i];
    const bool before = r->grads == r->members;
    r->grads |= 1u << from;
    if (x->buddies && !before && r->grads == r->members)
        post(x, i, buddy(x, i),
             (message){.kind = WARDS, .generation = r->s.generation, .at.step = r->s.at.step});
    reduce(e, x, i);
}

/* Whether a rank can take a message now, drops it, or leaves it in its queue. */
typedef enum { LEAVES, TAKES, DROPS } reception;
static reception receives(const rank *r, const message *m) {
    const bool steps = r->s.phase == WEFTI_SURVIVOR_STEPPING || r->s.phase == WEFTI_SURVIVOR_READY;
    if (m->generation < r->s.generation) return DROPS;
    if (m->generation > r->s.generation) return LEAVES;
    if (m->kind == STATE || m->kind == COPY)
        return r->s.phase == WEFTI_SURVIVOR_MENDING ? TAKES : LEAVES;
    if (!steps || m->at.step > r->s.at.step) return LEAVES;
    assert_int_equal(m->at.step, r->s.at.step); /* all parts of a step end before the next */
    return TAKES;
}

static void deliver(explorer *e, system_t *x, int32_t from, int32_t i) {
    const message m = take(&x->q[from][i]);
    rank *r = &x->r[i];
    if (receives(r, &m) == DROPS) return;
    switch (m.kind) {
    case GRAD:
        part_came(e, x, i, from);
        break;
    case WARDS:
        assert_int_equal(from, ward(x, i));
        r->wards = true;
        reduce(e, x, i);
        break;
    case READY:
        r->ready |= 1u << from;
        commit(e, x, i);
        break;
    case STATE:
        assert_int_equal(m.at.step, r->s.target);
        act(e, x, i, wefti_survivor_took_state(&r->s), NULL);
        break;
    case COPY:
        assert_int_equal(m.at.step, r->s.target);
        act(e, x, i, wefti_survivor_took_copies(&r->s), NULL);
        break;
    default:
        fail_msg("a rank heard message %d of another rank", (int)m.kind);
    }
}

static void go(rank *r, int64_t generation) {
    const bool is_whole = r->s.phase == WEFTI_SURVIVOR_WHOLE && r->s.generation == generation;
    (void)wefti_survivor_go(&r->s, generation);
    if (!is_whole) return;
    r->at.whole = generation;
    r->at.seat = r->at.next;
    r->at.said = -1;
}

static void hear(explorer *e, system_t *x, int32_t i) {
    const message m = take(&x->q[WORLD][i]);
    rank *r = &x->r[i];
    unsigned actions = 0;
    if (m.kind == HALT) {
        if (r->at.said >= 0 && r->at.said == m.whole) go(r, m.whole); /* which it has lost */
        actions = wefti_survivor_halt(&r->s, m.generation);
        if (actions) r->at.said = -1;
    }
    if (m.kind == MEND) {
        const bool gives = m.states_to || m.copies_to;
        if (r->s.phase == WEFTI_SURVIVOR_HALTED && r->s.generation == m.generation) {
            r->members = m.members;
            r->at.next = m.rank;
            if (x->elastic) assert_int_equal(m.was, r->at.seat);
        }
        actions = wefti_survivor_mend(&r->s, m.generation, m.at.step, m.source, gives);
    }
    if (m.kind == GO) go(r, m.generation);
    act(e, x, i, actions, m.kind == MEND ? &m : NULL);
}

static void compute(explorer *e, system_t *x, int32_t i) {
    x->r[i].computed = true;
    to_others(x, i, GRAD);
    part_came(e, x, i, i);
}

/* ---- what the scheduler does ---- */

/* Whether a seat and all that hold its state have died. */
static bool both_died(const system_t *x) {
    bool both = false;
    for (int32_t i = 0; i < x->size; i++) {
        bool all = x->lost >> i & 1;
        for (int32_t k = x->first[i]; k < x->first[i + 1]; k++)
            all = all && x->lost >> x->holder[k] & 1;
        both = both || all;
    }
    return both;
}

/* Whether seat `from` sends the state, or the copy, of seat `of` to seat `to`. In a world of
 * another size the first that has the state gives it. */
static bool gives(const system_t *x, int32_t from, int32_t of, int32_t to) {
    if (!wefti_mending_is_resized(&x->w)) return wefti_mending_gives(&x->w, from, of, to);
    int32_t first = 0;
    while (x->seats[first].source != WEFTI_SOURCE_OWN) first++;
    return from == first && of == to && x->seats[to].source == WEFTI_SOURCE_ALL;
}

static void tell_mend(explorer *e, system_t *x) {
    const bool disk = x->seats[0].source == WEFTI_SOURCE_DISK;
    unsigned members = 0;
    e->mends++;
    e->from_disk += disk;
    e->resized += wefti_mending_is_resized(&x->w);
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
        for (int32_t of = 0; of < x->w.size && !disk; of++)
            for (int32_t to = 0; to < x->w.size; to++)
                if (gives(x, i, of, to))
                    *(of == to ? &m.states_to : &m.copies_to) |= 1u << process_of(x, to);
        post(x, WORLD, process_of(x, i), m);
    }
}

/* Ranks tell whose states they have by their numbers in the world that was whole last. */
static void find_holders(system_t *x) {
    const int32_t size = x->w.size;
    int32_t n = 0;
    for (int32_t i = 0; i < size; i++) {
        x->first[i] = n;
        for (int32_t j = 1; j < (x->buddies ? 2 : size); j++) x->holder[n++] = (i + j) % size;
    }
    x->first[size] = n;
}

static void tell_go(system_t *x) {
    x->base[1] = x->base[0];
    x->base[0] = (base){.generation = x->w.generation, .size = x->w.size};
    for (int32_t i = 0; i < x->w.size; i++) x->base[0].process[i] = process_of(x, i);
    x->lost = 0;
    find_holders(x);
    for (int32_t i = 0; i < x->size; i++) {
        x->was[i] = x->seat[i];
        if (x->seat[i] < 0) x->lost |= 1u << i; /* it has nothing of this world's state */
    }
    for (int32_t i = 0; i < x->w.size; i++) {
        const int32_t p = process_of(x, i);
        const rank *r = &x->r[p];
        if (r->alive && r->s.generation == x->w.generation) {
            assert_int_equal(r->s.at.step, x->w.target);
            assert_true(r->s.at.copies);
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
    wefti_mending_gather(&x->w, x->base[0].size, x->seats, x->w.holders, x->least);
    for (int32_t seat = 0; seat < x->base[0].size; seat++) x->seat[x->base[0].process[seat]] = seat;
    find_holders(x);
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
    x->back[i].generation = r->s.generation;
    x->back[i].mends = r->s.phase > WEFTI_SURVIVOR_READY;
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
    if (m.kind == STANDING)
        assert_int_equal(wefti_mending_stood(&x->w, seat, m.generation, m.at, &actions), WEFT_OK);
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
    const wefti_holders holders = x->w.holders;
    const int64_t began = x->w.generation > x->w.least ? x->w.generation : x->w.least;
    x->least = began + EPOCH;
    wefti_mending_gather(&x->w, x->elastic ? 0 : x->size, x->seats, holders, began + EPOCH);
}

static void come_back(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (x->gathers) {
        gather_again(x, i);
        return;
    }
    memset(&x->q[WORLD][i], 0, sizeof x->q[WORLD][i]);
    r->linked = true;
    if (r->s.generation < 0) { /* it has no place yet, and asks for it once more */
        tell(e, x, wefti_mending_filled(&x->w, i));
        return;
    }
    const bool mends = r->s.phase > WEFTI_SURVIVOR_READY;
    post(x, i, WORLD,
         (message){
             .kind = BACK, .generation = r->s.generation, .at = r->s.at, .source = mends ? 1 : 0});
}

/* What is under way on a connection is lost, and the rank makes a new one. */
static void break_link(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    (void)e;
    x->breaks--;
    memset(&x->q[WORLD][i], 0, sizeof x->q[WORLD][i]);
    memset(&x->q[i][WORLD], 0, sizeof x->q[i][WORLD]);
    post(x, i, WORLD,
         (message){.kind = REJOIN,
                   .generation = r->s.generation,
                   .source = r->s.phase > WEFTI_SURVIVOR_READY ? 1 : 0});
}

/* Whether a rank that is not linked can come back now. */
static bool may_come_back(const system_t *x, int32_t i) {
    const rank *r = &x->r[i];
    if (!r->alive || r->linked) return false;
    if (x->elastic) return x->gathers;
    return r->s.generation >= 0 || (x->w.phase == WEFTI_MENDING_COUNTING && !x->seats[i].filled);
}

/* No process that has this seat is there to come back. */
static bool may_be_missed(const system_t *x, int32_t i) {
    const rank *r = &x->r[i];
    if (x->elastic || x->w.phase != WEFTI_MENDING_GATHERING || x->seats[i].settled ||
        x->q[i][WORLD].count)
        return false;
    return !r->alive || (!r->linked && r->s.generation < 0);
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
                     .s = wefti_survivor_newcomer(x->buddies),
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

/* ---- exploring ---- */

static void check(const system_t *x) {
    for (int32_t i = 0; i < x->size; i++)
        for (int32_t j = 0; j < i; j++) {
            const wefti_survivor *a = &x->r[i].s, *b = &x->r[j].s;
            if (!x->r[i].alive || !x->r[j].alive || a->generation != b->generation ||
                a->phase > WEFTI_SURVIVOR_READY || b->phase > WEFTI_SURVIVOR_READY)
                continue;
            assert_in_range(a->at.step - b->at.step + 1, 0, 2);
        }
}

static void finished(const system_t *x) {
    assert_int_equal(x->w.phase, WEFTI_MENDING_NOT);
    for (int32_t i = 0; i < x->size; i++) {
        if (x->seat[i] < 0) continue;
        assert_true(x->r[i].alive);
        assert_int_equal(x->r[i].s.phase, WEFTI_SURVIVOR_STEPPING);
        assert_int_equal(x->r[i].s.at.step, x->last);
    }
}

static void explore(explorer *e, const system_t *x);

typedef void move(explorer *, system_t *, int32_t);
static void follow(explorer *e, const system_t *x, move *does, int32_t i) {
    system_t *next = malloc(sizeof *next);
    assert_non_null(next);
    *next = *x;
    next->w.seats = next->seats; /* the machine's pointers stay within a state */
    next->w.holders.first = next->first;
    next->w.holders.holder = next->holder;
    does(e, next, i);
    explore(e, next);
    free(next);
}

static void hears_rank(explorer *e, system_t *x, int32_t pair) {
    deliver(e, x, pair / RANKS_MOST, pair % RANKS_MOST);
}
static void dies_heard(explorer *e, system_t *x, int32_t i) {
    (void)e;
    die(x, i, true);
}
static void dies_unheard(explorer *e, system_t *x, int32_t i) {
    (void)e;
    die(x, i, false);
}

static void explore(explorer *e, const system_t *x) {
    if (2 * ++e->count > e->slots) grow(e);
    const uint64_t a = digest(x, 1), b = digest(x, 2);
    size_t at = slot(e, a, b);
    if (e->state[at]) {
        assert_int_equal(e->state[at], 2); /* else it can go round for ever */
        e->count--;
        return;
    }
    e->seen[at][0] = a;
    e->seen[at][1] = b;
    e->state[at] = 1;
    if (++e->depth > e->deepest) e->deepest = e->depth;
    check(x);
    bool moves = false;
    for (int32_t i = 0; i < x->size; i++) {
        const rank *r = &x->r[i];
        if (x->q[i][WORLD].count && !has_to_wait(x, i)) moves = true, follow(e, x, schedule, i);
        if (may_be_missed(x, i)) moves = true, follow(e, x, be_missed, i);
        if (may_come_back(x, i)) moves = true, follow(e, x, come_back, i);
        if (r->alive && may_enter(x, i)) moves = true, follow(e, x, enter, i);
        if (!r->alive) {
            const bool seated = x->seat[i] >= 0;
            const bool empty = seated && !x->seats[x->seat[i]].filled && !(x->waits >> i & 1);
            if (empty && x->w.phase == WEFTI_MENDING_COUNTING) moves = true, follow(e, x, come, i);
            if (!seated && x->comers > 0 && !x->gathers && !x->q[i][WORLD].count)
                follow(e, x, come, i);
            continue;
        }
        if (may_give_up(x) && may_dismiss(x, i)) follow(e, x, dismiss, i);
        if (x->q[WORLD][i].count) moves = true, follow(e, x, hear, i);
        if (r->s.phase == WEFTI_SURVIVOR_STEPPING && !r->computed && r->s.at.step < x->last)
            moves = true, follow(e, x, compute, i);
        for (int32_t j = 0; j < x->size; j++)
            if (x->q[j][i].count && receives(r, &x->q[j][i].m[0]) != LEAVES)
                moves = true, follow(e, x, hears_rank, j * RANKS_MOST + i);
    }
    if (may_give_up(x)) moves = true, follow(e, x, give_up, 0);
    if (may_gather(x)) moves = true, follow(e, x, gather, 0);
    if (!moves) finished(x);
    if (x->outages > 0) follow(e, x, crash, 0);
    for (int32_t i = 0; i < x->size && x->breaks > 0; i++)
        if (x->r[i].alive && x->r[i].linked && x->r[i].s.generation >= 0 &&
            x->w.phase != WEFTI_MENDING_GATHERING)
            follow(e, x, break_link, i);
    for (int32_t i = 0; i < x->size && x->failures > 0; i++) {
        if (!x->r[i].alive) continue;
        follow(e, x, dies_heard, i);
        follow(e, x, dies_unheard, i);
    }
    e->depth--;
    e->state[slot(e, a, b)] = 2; /* the table may have grown */
}

/* comers < 0: the world keeps its size. */
static explorer run_all(int32_t size, bool buddies, int64_t steps, int failures, int outages,
                        int comers, int breaks) {
    system_t *x = calloc(1, sizeof *x);
    explorer e = {0};
    assert_non_null(x);
    x->size = size;
    x->buddies = buddies;
    x->last = steps;
    x->failures = failures;
    x->outages = outages;
    x->breaks = breaks;
    x->elastic = comers >= 0;
    x->comers = comers > 0 ? comers : 0;
    for (int32_t i = 0; i < size; i++) {
        x->r[i] = (rank){.alive = true,
                         .linked = true,
                         .members = (1u << size) - 1,
                         .at = {.said = -1, .seat = i},
                         .s = wefti_survivor_begin(0, 0, buddies)};
        x->seat[i] = x->was[i] = x->base[0].process[i] = i;
    }
    x->base[0].size = size;
    x->base[1].generation = -1;
    const wefti_holders holders = {.first = x->first, .holder = x->holder, .copies = buddies};
    wefti_mending_begin(&x->w, size, x->seats, holders, 0);
    find_holders(x);
    grow(&e);
    explore(&e, x);
    printf(
        "%d ranks, %s, %d steps, %d failures, %d outages: %zu states, %d deep; %ld mends, %ld from "
        "disk, %ld to another size, %ld updates made up for\n",
        (int)size, buddies ? "buddies" : "replicas", (int)steps, failures, outages, e.count,
        e.deepest, e.mends, e.from_disk, e.resized, e.rolled_forward);
    free(e.seen);
    free(e.state);
    free(x);
    return e;
}

static explorer run_elastic(int32_t size, bool buddies, int64_t steps, int failures, int outages,
                            int comers) {
    return run_all(size, buddies, steps, failures, outages, comers, 0);
}

static explorer run(int32_t size, bool buddies, int64_t steps, int failures, int outages) {
    return run_elastic(size, buddies, steps, failures, outages, -1);
}

static void nothing_fails(void **state) {
    (void)state;
    const explorer e = run(3, true, 2, 0, 0);
    assert_int_equal(e.mends, 0);
}

/* Its state comes from memory, and at most one step is made again. */
static void one_rank_dies(void **state) {
    (void)state;
    for (int buddies = 0; buddies < 2; buddies++) {
        const explorer e = run(3, buddies, SANITIZED ? 1 : 2, 1, 0);
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk, 0);
    }
}

/* The second one at every point of a step and of the mending. Sanitizers find nothing in more
 * states of the same kind. */
static void two_ranks_die(void **state) {
    (void)state;
    for (int buddies = 0; buddies < (SANITIZED ? 0 : 2); buddies++) {
        const explorer e = run(3, buddies, 1, 2, 0);
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk > 0, buddies);
    }
}

/* The scheduler dies at every point of the steps, and of a mending, before or after a rank. Alone,
 * it costs no step: a world that makes steps is not halted. */
static void the_scheduler_dies(void **state) {
    (void)state;
    for (int buddies = 0; buddies < 2; buddies++) {
        explorer e = run(3, buddies, SANITIZED ? 1 : 2, 0, 2);
        assert_int_equal(e.mends, 0);
        if (SANITIZED) continue;
        e = run(3, buddies, 1, 1, 1);
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk, 0);
    }
}

/* A connection to the scheduler breaks at every point of a mending, with what is under way on it.
 */
static void a_connection_breaks(void **state) {
    (void)state;
    explorer e = run_all(3, false, SANITIZED ? 1 : 2, 0, 0, -1, 1);
    assert_int_equal(e.mends, 0);
    if (SANITIZED) return;
    e = run_all(3, false, 1, 1, 0, -1, 1);
    assert_true(e.mends > 0 && e.rolled_forward > 0);
    assert_int_equal(e.from_disk, 0);
}

/* A rank dies at every point, and its process comes again, or its seat is given up; a process may
 * come to the smaller world at every point. */
static void a_world_shrinks_and_grows(void **state) {
    (void)state;
    const explorer e = run_elastic(3, false, SANITIZED ? 1 : 2, 1, 0, 1);
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    assert_int_equal(e.from_disk, 0);
}

/* A second one at every point of the change. */
static void a_rank_dies_while_a_world_shrinks(void **state) {
    (void)state;
    if (SANITIZED) return;
    const explorer e = run_elastic(3, false, 1, 2, 0, 0);
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    assert_true(e.from_disk > 0); /* a world of one rank, which died: tell_mend looks at each */
}

/* The scheduler dies at every point of a change of size, before a rank or after it. */
static void the_scheduler_dies_while_a_world_changes(void **state) {
    (void)state;
    if (SANITIZED) return;
    explorer e = run_elastic(3, false, 1, 1, 1, 0);
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    e = run_elastic(2, false, 1, 1, 2, 1);
    assert_true(e.mends > 0 && e.resized > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_fails),
        cmocka_unit_test(one_rank_dies),
        cmocka_unit_test(two_ranks_die),
        cmocka_unit_test(the_scheduler_dies),
        cmocka_unit_test(a_connection_breaks),
        cmocka_unit_test(a_world_shrinks_and_grows),
        cmocka_unit_test(a_rank_dies_while_a_world_shrinks),
        cmocka_unit_test(the_scheduler_dies_while_a_world_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
