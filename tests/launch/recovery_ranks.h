/* The network of the explorer of recovery (test_recovery.c), and what ranks do. The machines are
 * those of recovery. */
#ifndef WEFT_TEST_RECOVERY_RANKS_H
#define WEFT_TEST_RECOVERY_RANKS_H

#include "seen.h"

#include "recovery/recovery.h"

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
    seen_states seen;
    long mends, from_disk, rolled_forward, resized;
    int depth, deepest;
} explorer;

/* ---- the digest of a state ---- */

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

#endif
