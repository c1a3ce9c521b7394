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
    PIECE,    /* what a rank has updated of the parameters; `source` 1: it has not gathered them */
    STATE,    /* a seat's state */
    ASK,      /* a buddy lacks its ward's state */
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
    wefti_stand at;
    int32_t source;
    int64_t whole;      /* of HALT: the world that was whole last */
    int32_t rank, was;  /* of MEND */
    unsigned states_to; /* of MEND: to whom the receiver gives a state */
    unsigned members;   /* of MEND: the processes of the world */
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
    wefti_round round;
    wefti_survivor s;
    place at;
    bool computed, held;
    int64_t held_step, target;
    unsigned grads, ready; /* whose part came in this step */
    unsigned pieces, torn; /* whose parameters came since the update, or the mend; and not whole */
    unsigned members;      /* the processes of its world */
    bool wards;            /* the ward's gradients came */
    /* The true steps of its state and of its copy, which the machines must know too; -1: none. */
    int64_t has, keeps;
    bool apart, borrowed; /* its parameters are not gathered; its state is of a repair under way */
    bool moves;           /* to a world of another size */
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
    int tears;                /* of updates */
    bool together;            /* no rank can end its update without the others */
    bool scatters;            /* ranks update pieces of parameters, and gather them */
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
    queue q[RANKS_MOST + 1][RANKS_MOST + 1]; /* [from][to]; the last member, for copy() */
} system_t;

typedef struct explorer {
    seen_states seen;
    long mends, from_disk, rolled_forward, resized;
    int depth, deepest;
} explorer;

/* ---- the digest of a state, and its copy ---- */

static seen_digest add(seen_digest h, int64_t x) {
    return (seen_digest){wefti_digest_number(h.a, (uint64_t)x),
                         wefti_digest_number(h.b, (uint64_t)x)};
}

static seen_digest digest(const system_t *x) {
    seen_digest h = {1, 2};
    h = add(add(add(add(add(h, x->failures), x->outages), x->breaks), x->top), x->lost);
    h = add(add(h, x->comers), x->tears);
    for (int32_t i = 0; i < x->size; i++) {
        const rank *r = &x->r[i];
        h = add(add(add(h, r->alive | r->linked << 1), x->seat[i]), x->was[i]);
        if (!r->alive) continue;
        h = add(add(add(h, (int64_t)r->s.phase), r->round.generation), r->s.step);
        h = add(h, (int64_t)r->s.copies | (int64_t)r->round.phase << 2);
        h = add(h, r->computed | r->held << 1 | r->wards << 2 | r->s.borrowed << 3 |
                       r->borrowed << 4 | r->apart << 5 | r->moves << 6);
        h = add(add(add(h, r->members), r->has), r->keeps);
        h = add(add(h, r->pieces), r->torn);
        h = add(add(add(add(h, r->at.whole), r->at.said), r->at.seat), r->at.next);
        h = add(add(add(h, r->grads), r->ready), r->held ? r->held_step : 0);
        h = add(h, r->round.phase == WEFTI_ROUND_MENDS ? r->target : 0);
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
        h = add(h, s->filled | s->stood << 1 | s->whole << 2 | s->at.ready << 3 | s->settled << 4);
        h = add(add(add(add(h, s->at.step), s->at.holds_count), s->source), s->was);
    }
    for (int from = 0; from <= WORLD; from++)
        for (int to = 0; to <= WORLD; to++) {
            const queue *q = &x->q[from][to];
            h = add(h, q->count);
            for (int k = 0; k < q->count; k++) {
                const message *m = &q->m[k];
                h = add(add(add(h, (int64_t)m->kind), m->generation), m->at.step);
                h = add(add(h, m->at.ready), m->at.holds_count);
                h = add(add(add(h, m->source), m->states_to), m->members);
                h = add(add(add(h, m->whole), m->rank), m->was);
            }
        }
    return h;
}

/* Most of the room of queues is empty, and is not copied. */
static void copy(system_t *to, const system_t *from) {
    memcpy(to, from, offsetof(system_t, q));
    to->w.seats = to->seats; /* the machine's pointer stays within a state */
    for (int i = 0; i <= WORLD; i++)
        for (int j = 0; j <= WORLD; j++) {
            const queue *q = &from->q[i][j];
            to->q[i][j].count = q->count;
            for (int k = 0; k < q->count; k++) to->q[i][j].m[k] = q->m[k];
        }
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
        .kind = what, .generation = x->r[i].round.generation, .at.step = x->r[i].s.step};
    for (int32_t j = 0; j < x->size; j++)
        if (j != i && x->r[i].members >> j & 1) post(x, i, j, m);
}

/* ---- what ranks do ---- */

static bool steps(const rank *r) {
    return r->round.phase == WEFTI_ROUND_STEPS;
}

/* The machine knows what is so. */
static void check_rank(const system_t *x, const rank *r) {
    assert_int_equal(wefti_survivor_has_state(&r->s) ? r->s.step : -1, r->has);
    if (x->buddies && wefti_survivor_keeps(&r->s)) assert_int_equal(r->keeps, r->has);
    if (r->s.phase == WEFTI_SURVIVOR_READY) assert_true(r->held && r->held_step == r->s.step);
    if (r->s.phase == WEFTI_SURVIVOR_SCATTERED) assert_true(r->apart);
    if (steps(r) && r->has >= 0) assert_int_equal(r->s.phase == WEFTI_SURVIVOR_SCATTERED, r->apart);
}

/* Where the rank stands, as its session tells it: by numbers in the world that was whole last. */
static wefti_stand stand_of(const system_t *x, int32_t i) {
    static int32_t others[2][RANKS_MOST + 1][RANKS_MOST][RANKS_MOST];
    const rank *r = &x->r[i];
    const int32_t size = x->base[0].size, own = r->at.seat < 0 ? r->at.next : r->at.seat;
    wefti_stand at = wefti_survivor_stands(&r->s);
    if (at.step < 0 || (x->buddies && !wefti_survivor_keeps(&r->s))) return at;
    int32_t *holds = others[x->buddies][size][own];
    for (int32_t seat = 0; seat < size; seat++)
        if (x->buddies ? (seat + 1) % size == own : seat != own) holds[at.holds_count++] = seat;
    at.holds = holds;
    return at;
}

static void new_step(rank *r) {
    r->computed = r->wards = false;
    r->grads = r->ready = r->pieces = r->torn = 0;
}

/* All parameters have come that ranks have updated. */
static void gather_pieces(rank *r) {
    if (r->pieces != r->members || !r->torn) return;
    wefti_survivor_scatter(&r->s);
    assert_int_equal(r->s.phase, WEFTI_SURVIVOR_SCATTERED); /* the others wait for its pieces */
    wefti_survivor_gathered(&r->s);
    r->apart = false;
}

static void say_whole(system_t *x, int32_t i);

static void piece_came(system_t *x, int32_t i, int32_t from, bool apart) {
    rank *r = &x->r[i];
    r->pieces |= 1u << from;
    if (apart) r->torn |= 1u << from;
    gather_pieces(r);
    say_whole(x, i);
}

static void give_pieces(system_t *x, int32_t i) {
    rank *r = &x->r[i];
    const message m = {.kind = PIECE,
                       .generation = r->round.generation,
                       .at.step = r->s.step,
                       .source = r->s.phase == WEFTI_SURVIVOR_SCATTERED};
    for (int32_t j = 0; j < x->size; j++)
        if (j != i && r->members >> j & 1) post(x, i, j, m);
    piece_came(x, i, i, m.source);
}

/* As wefti_session_apply does. */
static void update(explorer *e, system_t *x, int32_t i, bool mends) {
    rank *r = &x->r[i];
    assert_true(r->held);
    assert_int_equal(r->held_step, r->s.step); /* the gradients of this very step */
    wefti_survivor_updates(&r->s);
    wefti_survivor_updated(&r->s, x->scatters);
    r->has++;
    if (r->keeps >= 0) r->keeps++;
    r->apart = x->scatters;
    r->held = false;
    new_step(r);
    if (r->s.step > x->top) x->top = r->s.step;
    if (mends) e->rolled_forward++;
}

static void commit(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    const wefti_survivor_phase from = x->together ? WEFTI_SURVIVOR_STEPPING : WEFTI_SURVIVOR_READY;
    if (r->ready != r->members || r->s.phase != from) return;
    update(e, x, i, false);
    if (x->scatters) give_pieces(x, i);
}

/* All that this rank updates with has come. Alone in its world, it commits at once. */
static void reduce(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (r->grads != r->members || r->held) return;
    if (x->buddies && !r->wards) return;
    r->held = true;
    r->held_step = r->s.step;
    if (!x->together) wefti_survivor_reduced(&r->s);
    r->ready |= 1u << i;
    to_others(x, i, READY);
    commit(e, x, i);
}

static void part_came(explorer *e, system_t *x, int32_t i, int32_t from) {
    rank *r = &x->r[i];
    const bool before = r->grads == r->members;
    r->grads |= 1u << from;
    if (x->buddies && !before && r->grads == r->members)
        post(x, i, buddy(x, i),
             (message){.kind = WARDS, .generation = r->round.generation, .at.step = r->s.step});
    reduce(e, x, i);
}

/* ---- the repair, as session/mend does it ---- */

static bool has_target(const rank *r) {
    return wefti_survivor_has_state(&r->s) && r->s.step == r->target;
}

static void say_whole(system_t *x, int32_t i) {
    rank *r = &x->r[i];
    if (!has_target(r) || (x->scatters && r->pieces != r->members)) return;
    if ((x->buddies && r->s.copies != WEFTI_COPIES_HELD) ||
        !wefti_round_happens(&r->round, WEFTI_DOES_REACH, r->round.generation))
        return;
    wefti_survivor_settled(&r->s, r->moves);
    if (!r->moves) r->borrowed = false;
    /* It may say so to a scheduler that is dead. */
    if (!is_silent(x, i)) {
        r->at.said = r->round.generation;
        assert_true(wefti_round_happens(&r->round, WEFTI_DOES_SAY, r->round.generation));
    }
    post(x, i, WORLD, (message){.kind = WHOLE, .generation = r->round.generation});
}

/* The rank has the target's state. */
static void reach(system_t *x, int32_t i) {
    rank *r = &x->r[i];
    r->held = false; /* the next step is made again */
    if (x->buddies && r->s.copies != WEFTI_COPIES_HELD)
        post(x, i, ward(x, i), (message){.kind = ASK, .generation = r->round.generation});
    if (x->scatters)
        give_pieces(x, i);
    else
        say_whole(x, i);
}

static void give(system_t *x, int32_t i, unsigned to) {
    rank *r = &x->r[i];
    const message m = {
        .kind = STATE, .generation = r->round.generation, .at.step = r->has, .source = r->apart};
    if (to) assert_int_equal(r->has, r->target);
    if (to && x->buddies) assert_int_equal(r->keeps, r->target);
    for (int32_t j = 0; j < x->size; j++)
        if (to >> j & 1) post(x, i, j, m);
}

static void mend(explorer *e, system_t *x, int32_t i, const message *m) {
    rank *r = &x->r[i];
    r->members = m->members;
    r->at.next = m->rank;
    r->target = m->at.step;
    r->borrowed = false;
    r->moves = m->source == WEFTI_SOURCE_ALL;
    if (x->elastic) assert_int_equal(m->was, r->at.seat);
    if (m->source == WEFTI_SOURCE_DISK) {
        wefti_survivor_moved(&r->s, r->target, true);
        r->borrowed = true;
        r->has = r->target;
        r->keeps = -1;
        r->apart = false;
        reach(x, i);
        return;
    }
    const wefti_survivor_way way = wefti_survivor_mend(&r->s, r->target);
    assert_int_equal(way == WEFTI_SURVIVOR_TAKES, m->source != WEFTI_SOURCE_OWN);
    assert_int_not_equal(way, WEFTI_SURVIVOR_CANNOT);
    if (way == WEFTI_SURVIVOR_UPDATES) update(e, x, i, true);
    if (way == WEFTI_SURVIVOR_TAKES) return;
    give(x, i, m->states_to);
    reach(x, i);
}

/* ---- what ranks hear ---- */

/* Whether a rank can take a message now, drops it, or leaves it in its queue. */
typedef enum { LEAVES, TAKES, DROPS } reception;
static reception receives(const rank *r, const message *m) {
    if (m->generation < r->round.generation) return DROPS;
    if (m->generation > r->round.generation) return LEAVES;
    if (m->kind == STATE) return r->round.phase == WEFTI_ROUND_MENDS ? TAKES : LEAVES;
    const bool mends = r->round.phase == WEFTI_ROUND_MENDS;
    if (m->kind == ASK)
        return r->round.phase >= WEFTI_ROUND_MENDS && has_target(r) ? TAKES : LEAVES;
    if (m->kind == COPY || (m->kind == PIECE && mends)) return has_target(r) ? TAKES : LEAVES;
    if (!steps(r) || m->at.step > r->s.step) return LEAVES;
    if (m->kind != PIECE && r->apart) return LEAVES;
    assert_int_equal(m->at.step, r->s.step); /* all parts of a step end before the next */
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
    case PIECE:
        piece_came(x, i, from, m.source);
        break;
    case STATE:
        assert_int_equal(m.at.step, r->target);
        r->borrowed = true;
        if (r->moves)
            wefti_survivor_moved(&r->s, r->target, true);
        else
            wefti_survivor_took(&r->s, r->target);
        r->has = r->target;
        r->keeps = -1;
        r->apart = m.source;
        reach(x, i);
        break;
    case ASK:
        post(x, i, from,
             (message){.kind = COPY, .generation = r->round.generation, .at.step = r->has});
        break;
    case COPY:
        assert_int_equal(m.at.step, r->target);
        wefti_survivor_copied(&r->s);
        r->keeps = r->target;
        say_whole(x, i);
        break;
    default:
        fail_msg("a rank heard message %d of another rank", (int)m.kind);
    }
}

static void go(rank *r, int64_t generation) {
    if (!wefti_round_happens(&r->round, WEFTI_HEARS_GO, generation)) return;
    wefti_survivor_go(&r->s);
    r->borrowed = r->moves = false;
    new_step(r);
    r->at.whole = generation;
    r->at.seat = r->at.next;
    r->at.said = -1;
}

static void halt(system_t *x, int32_t i, int64_t generation) {
    rank *r = &x->r[i];
    if (!wefti_round_happens(&r->round, WEFTI_HEARS_HALT, generation)) return;
    (void)wefti_round_happens(&r->round, WEFTI_DOES_ASK,
                              r->round.generation); /* it may have asked before */
    assert_true(wefti_round_happens(&r->round, WEFTI_DOES_STAND, r->round.generation));
    r->at.said = -1;
    new_step(r);
    wefti_survivor_halt(&r->s);
    if (r->borrowed) r->has = r->keeps = -1;
    r->borrowed = r->moves = false;
    check_rank(x, r);
    post(x, i, WORLD, (message){.kind = STANDING, .generation = generation, .at = stand_of(x, i)});
}

static void hear(explorer *e, system_t *x, int32_t i) {
    const message m = take(&x->q[WORLD][i]);
    rank *r = &x->r[i];
    if (m.kind == HALT) {
        if (r->at.said >= 0 && r->at.said == m.whole) go(r, m.whole); /* which it has lost */
        halt(x, i, m.generation);
    }
    if (m.kind == MEND && wefti_round_happens(&r->round, WEFTI_HEARS_MEND, m.generation)) {
        assert_true(wefti_round_happens(&r->round, WEFTI_DOES_TAKE, r->round.generation));
        mend(e, x, i, &m);
    }
    if (m.kind == GO) go(r, m.generation);
}

static void compute(explorer *e, system_t *x, int32_t i) {
    assert_false(x->r[i].apart);
    x->r[i].computed = true;
    to_others(x, i, GRAD);
    part_came(e, x, i, i);
}

/* Whether all ranks are ready, which this one may know already. */
static bool may_tear(const system_t *x, int32_t i) {
    unsigned ready = x->r[i].ready;
    for (int32_t j = 0; j < x->size; j++)
        for (int k = 0; k < x->q[j][i].count; k++)
            if (x->q[j][i].m[k].kind == READY &&
                x->q[j][i].m[k].generation == x->r[i].round.generation)
                ready |= 1u << j;
    return x->tears > 0 && steps(&x->r[i]) && x->r[i].s.phase == WEFTI_SURVIVOR_READY &&
           ready == x->r[i].members && x->r[i].linked && !is_silent(x, i);
}

/* Its update begins and does not end: the rank says that it is lost, and has no state. */
static void tear(explorer *e, system_t *x, int32_t i) {
    rank *r = &x->r[i];
    (void)e;
    x->tears--;
    wefti_survivor_updates(&r->s);
    r->has = r->keeps = -1;
    r->held = false;
    x->lost |= 1u << i;
    post(x, i, WORLD, (message){.kind = REJOIN, .generation = r->round.generation, .source = 1});
}

#endif
