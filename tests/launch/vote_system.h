/* Ranks and schedulers in the explorer of the vote (test_vote.c). */
#ifndef WEFT_TEST_VOTE_SYSTEM_H
#define WEFT_TEST_VOTE_SYSTEM_H

#include "seen.h"

#include "recovery/recovery.h"

enum { RANKS_MOST = 4, PROCESSES = RANKS_MOST + 1, ADDRESSES = 2, QUEUE = 8, WORLDS = 24 };
enum { NOBODY = -1, EPOCH = 16 /* more generations than one scheduler begins */ };

typedef enum kind { HALT = 1, MEND, GO } kind;

typedef struct message {
    kind kind;
    int16_t generation, whole; /* whole: of HALT, the last world that was, as the sender knows */
    int8_t rank, size;         /* of MEND */
} message;

typedef struct place {
    int16_t generation;
    int8_t rank, size;
} place;

typedef struct process {
    int8_t alive, at; /* at: the address of its scheduler, or NOBODY */
    int8_t mends;     /* it is not amid steps */
    int8_t seat;      /* that it has been told last */
    int16_t generation;
    place whole, said;
    int16_t says; /* WHOLE of this generation is on its way; 0: nothing is */
    int8_t count; /* of messages to it */
    message m[QUEUE];
} process;

typedef enum phase { DEAD, GATHERS, STEPS, COUNTS, GIVES } phase;

typedef struct scheduler {
    int8_t phase;
    int8_t size;              /* of its world; while it gathers: 0 */
    int8_t base_size;         /* of the world that was whole last */
    int16_t generation, base; /* base: the world that was whole last */
    int16_t own;              /* generations from here on are its own */
    int16_t came[PROCESSES];  /* with which they came to it; 0: they began here */
    int8_t seat[RANKS_MOST];  /* a process, or NOBODY */
    int8_t was[RANKS_MOST];   /* its rank in the base; NOBODY: it was not there */
    int8_t said_size;         /* of a later world that may have been whole; 0: there is none */
    int8_t said[RANKS_MOST];  /* as `was`, in that world */
    int8_t whole[PROCESSES], ended[PROCESSES]; /* said WHOLE; has ended, by a launcher's word */
} scheduler;

/* What nobody knows. */
typedef struct world {
    int16_t generation, parent;
    int8_t size;
    int8_t process[RANKS_MOST];
} world;

typedef struct system {
    int8_t elastic, standby, spares;               /* spares: processes that may be started */
    int8_t breaks, deaths, outages, starts, words; /* that may still be */
    int16_t fresh;                                 /* epochs that schedulers have begun */
    int16_t stepped;                               /* the last world that has */
    process p[PROCESSES];
    scheduler s[ADDRESSES];
    int8_t worlds;
    world w[WORLDS];
} system_t;

enum { DEEPEST = 512 };

/* Rules that are wrong. */
typedef enum wrong {
    RIGHT,
    BY_ATTEMPT,   /* a majority of the world that is being made */
    BY_WORDS,     /* words of launchers count beside another scheduler */
    TAKES_BACK,   /* a rank that has been with the other scheduler meanwhile has its seat again */
    ALL_HERE,     /* a later world whose ranks are all here was never whole, beside another one */
    FORGETS_SAID, /* a later world that may have been whole matters when it begins, and not after */
} wrong;

typedef struct explorer {
    struct {
        const char *what;
        int who, where;
    } trail[DEEPEST]; /* the events before the present state */
    int depth;
    seen_states seen;
    long takeovers, resumed, mended, side_by_side;
    bool bad; /* what must hold does not */
    wrong wrong;
} explorer;

/* --- worlds --- */

static world *find_world(system_t *x, int16_t generation) {
    for (int i = 0; i < x->worlds; i++)
        if (x->w[i].generation == generation) return &x->w[i];
    return NULL;
}

static bool comes_from(system_t *x, const world *w, int16_t generation) {
    while (w && w->generation != generation) w = w->parent ? find_world(x, w->parent) : NULL;
    return w != NULL;
}

static void tell_trail(const explorer *e) {
    for (int i = 1; i <= e->depth; i++)
        print_error("%s: %d, at %d\n", e->trail[i].what, e->trail[i].who, e->trail[i].where);
}

/* Whether half of a world's processes have ended. Then words of launchers may let an older world go
 * on: the later one is lost. */
static bool is_lost(system_t *x, int16_t generation) {
    const world *w = find_world(x, generation);
    int alive = 0;
    for (int r = 0; r < w->size; r++) alive += x->p[w->process[r]].alive;
    return !x->standby && 2 * alive <= w->size;
}

/* A rank has heard GO. */
static void see_steps(explorer *e, system_t *x, int16_t generation) {
    const world *w = find_world(x, generation);
    assert_non_null(w);
    for (int r = 0; r < w->size; r++) {
        const process *p = &x->p[w->process[r]];
        if (!p->alive || p->whole.generation != generation || p->generation != generation) return;
    }
    if (!comes_from(x, w, x->stepped) && !is_lost(x, x->stepped)) {
        if (e->wrong == RIGHT) {
            tell_trail(e);
            fail_msg("world %d steps, and does not come from %d, which has stepped",
                     (int)generation, (int)x->stepped);
        }
        e->bad = true;
    }
    x->stepped = generation;
}

static void record(system_t *x, const scheduler *s) {
    assert_true(x->worlds < WORLDS);
    world *w = &x->w[x->worlds++];
    *w = (world){.generation = s->generation, .parent = s->base, .size = s->size};
    for (int r = 0; r < s->size; r++) w->process[r] = s->seat[r];
}

/* --- what a scheduler says --- */

static bool is_linked(const system_t *x, int a, int8_t i) {
    return i != NOBODY && x->p[i].alive && x->p[i].at == a;
}

static void say(system_t *x, int a, int8_t i, message m) {
    process *p = &x->p[i];
    if (!is_linked(x, a, i)) return;
    assert_true(p->count < QUEUE);
    p->m[p->count++] = m;
}

static message halt_of(const scheduler *s) {
    return (message){.kind = HALT, .generation = s->generation, .whole = s->base};
}

static void drop(process *p) {
    p->at = NOBODY;
    p->says = 0;
    p->count = 0;
    memset(p->m, 0, sizeof p->m);
}

static void die(process *p) {
    drop(p);
    p->alive = 0;
}

/* The world is broken, and counts again. */
static void halt(system_t *x, int a) {
    scheduler *s = &x->s[a];
    s->phase = COUNTS;
    if (++s->generation < s->own) s->generation = s->own;
    memset(s->whole, 0, sizeof s->whole);
    for (int r = 0; r < s->size; r++) {
        const int8_t i = s->seat[r];
        if (i != NOBODY) say(x, a, i, halt_of(s));
    }
}

static void end_scheduler(system_t *x, int a, bool with_its_members) {
    for (int i = 0; i < PROCESSES; i++) {
        if (x->p[i].at != a) continue;
        if (with_its_members) die(&x->p[i]);
        drop(&x->p[i]);
    }
    x->s[a] = (scheduler){.phase = DEAD};
}

/* Whether so many of a world's ranks are left that nobody else can have it. */
static bool has_majority(const system_t *x, int a, const int8_t *rank, int8_t size) {
    const scheduler *s = &x->s[a];
    int32_t here = 0;
    bool has_first = false;
    for (int r = 0; r < s->size; r++) {
        const bool counts = is_linked(x, a, s->seat[r]) && rank[r] >= 0;
        here += counts;
        has_first = has_first || (counts && rank[r] == 0);
    }
    return wefti_is_majority(here, has_first, size);
}

static bool keeps_majority(const explorer *e, const system_t *x, int a) {
    const scheduler *s = &x->s[a];
    const bool later = s->said_size && e->wrong != FORGETS_SAID;
    if (!has_majority(x, a, s->was, e->wrong == BY_ATTEMPT ? s->size : s->base_size)) return false;
    return !later || has_majority(x, a, s->said, s->said_size);
}

/* It sees that the connection of a seat has ended. */
static void notice(explorer *e, system_t *x, int a, int r) {
    scheduler *s = &x->s[a];
    if (x->standby && !keeps_majority(e, x, a)) {
        end_scheduler(x, a, true);
        return;
    }
    s->seat[r] = s->said[r] = NOBODY;
    halt(x, a);
}

static void fill(system_t *x, int a, int r) {
    scheduler *s = &x->s[a];
    int8_t i = 0;
    while (x->p[i].generation) i++; /* never started */
    x->spares--;
    s->seat[r] = i;
    s->was[r] = NOBODY;
    x->p[i] = (process){
        .alive = 1, .at = (int8_t)a, .mends = 1, .seat = (int8_t)r, .generation = s->generation};
}

static void shrink(system_t *x, int a) {
    scheduler *s = &x->s[a];
    int8_t kept = 0;
    for (int r = 0; r < s->size; r++) {
        if (s->seat[r] == NOBODY) continue;
        s->seat[kept] = s->seat[r];
        s->said[kept] = s->said[r];
        s->was[kept++] = s->was[r];
    }
    for (int r = kept; r < s->size; r++) s->seat[r] = s->was[r] = s->said[r] = NOBODY;
    s->size = kept;
}

static bool all_stand(const system_t *x, int a) {
    const scheduler *s = &x->s[a];
    for (int r = 0; r < s->size; r++) {
        const int8_t i = s->seat[r];
        if (!is_linked(x, a, i) || x->p[i].count || x->p[i].generation != s->generation)
            return false;
    }
    return true;
}

static void mend(system_t *x, int a) {
    scheduler *s = &x->s[a];
    s->phase = GIVES;
    for (int8_t r = 0; r < s->size; r++)
        say(x, a, s->seat[r],
            (message){.kind = MEND, .generation = s->generation, .rank = r, .size = s->size});
}

static void go(explorer *e, system_t *x, int a) {
    scheduler *s = &x->s[a];
    record(x, s);
    s->phase = STEPS;
    s->base = s->generation;
    s->base_size = s->size;
    s->said_size = 0;
    memset(s->said, NOBODY, sizeof s->said);
    e->mended++;
    for (int8_t r = 0; r < s->size; r++) {
        s->was[r] = r;
        say(x, a, s->seat[r], (message){.kind = GO, .generation = s->generation});
    }
}

static void hear_whole(explorer *e, system_t *x, int a, int8_t i) {
    scheduler *s = &x->s[a];
    const bool counts = s->phase == GIVES && x->p[i].says == s->generation;
    x->p[i].says = 0;
    if (!counts) return;
    s->whole[i] = 1;
    for (int r = 0; r < s->size; r++)
        if (!s->whole[s->seat[r]]) return;
    go(e, x, a);
}

/* --- what a rank hears --- */

static void take_halt(process *p, const message *m) {
    if (m->generation <= p->generation) return;
    if (p->said.generation == m->whole && p->whole.generation < m->whole)
        p->whole = p->said;     /* it has lost GO */
    p->said = (place){0, 0, 0}; /* else GO was never said */
    p->generation = m->generation;
    p->mends = 1;
}

static void deliver(explorer *e, system_t *x, process *p) {
    const message m = p->m[0];
    memmove(p->m, p->m + 1, (size_t)--p->count * sizeof m);
    memset(p->m + p->count, 0, sizeof m);
    if (m.kind == HALT) take_halt(p, &m);
    if (m.generation != p->generation) return;
    if (m.kind == MEND) {
        p->said = (place){m.generation, m.rank, m.size};
        p->says = m.generation;
        p->seat = m.rank;
    }
    if (m.kind == GO) {
        p->whole = p->said;
        p->said = (place){0, 0, 0};
        p->mends = 0;
        see_steps(e, x, m.generation);
    }
}

/* --- a scheduler that knows nothing --- */

typedef struct poll {
    wefti_voter voter[PROCESSES];
    int8_t process[PROCESSES];
    int32_t count;
    wefti_vote vote;
} poll_t;

static poll_t take_poll(const system_t *x, int a) {
    poll_t v = {0};
    for (int8_t i = 0; i < PROCESSES; i++) {
        const process *p = &x->p[i];
        if (!is_linked(x, a, i)) continue;
        v.process[v.count] = i;
        v.voter[v.count++] =
            (wefti_voter){.generation = (uint64_t)p->generation,
                          .whole = {(uint64_t)p->whole.generation, p->whole.rank, p->whole.size},
                          .said = {(uint64_t)p->said.generation, p->said.rank, p->said.size}};
    }
    v.vote = wefti_vote_take(v.voter, v.count);
    return v;
}

/* Ranks whose process has ended, by a launcher's word, and that have not come. */
static int32_t count_ended(const explorer *e, system_t *x, int a, uint64_t generation) {
    const world *w = find_world(x, (int16_t)generation);
    int32_t count = 0;
    if (x->standby && e->wrong != BY_WORDS) return 0;
    for (int r = 0; w && r < w->size; r++) count += x->s[a].ended[w->process[r]];
    return count;
}

static bool may_begin(const explorer *e, system_t *x, int a, const poll_t *v) {
    return v->count > 0 && v->vote.whole &&
           wefti_vote_may_begin(&v->vote, v->voter, v->count, count_ended(e, x, a, v->vote.whole),
                                count_ended(e, x, a, v->vote.said));
}

static bool is_all_here(const system_t *x, int a, uint64_t generation) {
    bool here = generation > 0;
    for (int i = 0; i < x->worlds; i++)
        for (int r = 0; x->w[i].generation == (int16_t)generation && r < x->w[i].size; r++)
            here = here && is_linked(x, a, x->w[i].process[r]);
    return here;
}

/* Some are refused, and end. */
static bool refuse_past(system_t *x, const poll_t *v) {
    bool any = false;
    for (int32_t k = 0; k < v->count; k++) {
        if (!wefti_vote_is_past(&v->vote, &v->voter[k])) continue;
        die(&x->p[v->process[k]]);
        any = true;
    }
    return any;
}

static void sit_down(system_t *x, int a, const poll_t *v) {
    scheduler *s = &x->s[a];
    for (int r = 0; r < RANKS_MOST; r++) s->seat[r] = s->was[r] = s->said[r] = NOBODY;
    for (int32_t k = 0; k < v->count; k++) {
        const int32_t r = wefti_vote_rank(&v->vote, &v->voter[k]);
        const int8_t i = v->process[k];
        if (r < 0) continue;
        assert_int_equal(s->seat[r], NOBODY);
        s->seat[r] = i;
        s->came[i] = x->p[i].generation;
        s->was[r] = (int8_t)r;
        if (v->vote.said && v->voter[k].said.generation == v->vote.said)
            s->said[r] = (int8_t)v->voter[k].said.rank;
    }
    for (int32_t k = 0; k < v->count; k++) { /* newcomers, where their seat is empty */
        const int8_t i = v->process[k], r = x->p[i].seat;
        if (wefti_vote_rank(&v->vote, &v->voter[k]) >= 0) continue;
        if (r >= s->size || s->seat[r] != NOBODY) {
            die(&x->p[i]);
            continue;
        }
        s->seat[r] = i;
        s->came[i] = x->p[i].generation;
        if (v->vote.said && v->voter[k].said.generation == v->vote.said)
            s->said[r] = (int8_t)v->voter[k].said.rank;
    }
}

static void begin(explorer *e, system_t *x, int a, const poll_t *v) {
    scheduler *s = &x->s[a];
    bool alike = true;
    s->base = (int16_t)v->vote.whole;
    s->base_size = s->size = (int8_t)v->vote.size;
    s->said_size = (int8_t)v->vote.said_size;
    sit_down(x, a, v);
    for (int r = 0; r < s->size; r++) {
        const int8_t i = s->seat[r];
        alike = alike && i != NOBODY && !x->p[i].mends && x->p[i].generation == s->base;
    }
    e->takeovers++;
    s->own = (int16_t)(EPOCH * ++x->fresh);
    if (alike) {
        s->phase = STEPS;
        s->generation = s->base;
        e->resumed++;
        return;
    }
    halt(x, a);
}

#endif
