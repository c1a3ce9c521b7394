/* Schedulers of one job that follow each other, or live side by side on a network that may be cut:
 * which of them may go on with it. The vote is that of recovery; schedulers and ranks are
 * here, with messages in their order over connections that may break, and what was on its way over
 * these is lost. Every order of events is followed.
 *
 * A world *steps* once all its ranks have heard GO, and none of them knows a later generation: from
 * then on they commit steps. What must hold: a world that steps comes from the last one that has.
 * So no steps are lost, and no two worlds go on side by side. (The last rank to hear GO may find
 * that the others have gone on without it. It may then see the commit of one step, which is made
 * again.)
 * weft-test: computes
 */
#include "vote_system.h"

/* --- states that were seen --- */

static seen_digest digest(const system_t *x) {
    return (seen_digest){wefti_digest_bytes(1, x, sizeof *x), wefti_digest_bytes(2, x, sizeof *x)};
}

static bool is_new(explorer *e, const system_t *x) {
    unsigned char *mark = seen_mark(&e->seen, digest(x));
    const bool fresh = !*mark;
    *mark = 1;
    return fresh;
}

/* --- events --- */

static void explore(explorer *e, const system_t *x);

/* The event is written down before it is carried out. */
static void note(explorer *e, const char *what, int who, int where) {
    assert_true(e->depth < DEEPEST);
    e->trail[e->depth].what = what;
    e->trail[e->depth].who = who;
    e->trail[e->depth].where = where;
}

/* It has heard since of generations that this scheduler knows nothing of. */
static bool has_strayed(const explorer *e, const system_t *x, const scheduler *s, int8_t i,
                        const process *p) {
    if (!x->standby || e->wrong == TAKES_BACK) return false;
    return (p->generation < s->own && p->generation != s->came[i]) || p->generation > s->generation;
}

static void call(explorer *e, const system_t *x, int8_t i, int a) {
    system_t y = *x;
    process *p = &y.p[i];
    scheduler *s = &y.s[a];
    note(e, "calls", i, a);
    p->at = (int8_t)a;
    if (s->phase == GATHERS) {
        explore(e, &y);
        return;
    }
    int r = 0;
    while (r < s->size && s->seat[r] != i) r++;
    if (r < s->size && has_strayed(e, x, s, i, p)) return; /* it tries the other one again */
    if (r == s->size || p->generation > s->generation) {
        die(p); /* refused */
    } else if (p->mends || p->generation < s->generation || s->phase != STEPS) {
        halt(&y, a);
    }
    explore(e, &y);
}

static void explore_process(explorer *e, const system_t *x, int8_t i) {
    const process *p = &x->p[i];
    if (!p->alive) return;
    system_t y = *x;
    if (p->at != NOBODY && p->count) {
        note(e, "hears", i, (int)p->m[0].kind);
        deliver(e, &y, &y.p[i]);
        explore(e, &y);
    }
    y = *x;
    if (p->at != NOBODY && p->says) {
        note(e, "is heard to be whole", i, p->at);
        hear_whole(e, &y, p->at, i);
        explore(e, &y);
    }
    y = *x;
    if (p->at != NOBODY && x->breaks) {
        note(e, "loses its connection", i, p->at);
        y.breaks--;
        drop(&y.p[i]);
        explore(e, &y);
    }
    y = *x;
    if (x->deaths) {
        note(e, "dies", i, p->at);
        y.deaths--;
        die(&y.p[i]);
        explore(e, &y);
    }
    for (int a = 0; a < ADDRESSES && p->at == NOBODY; a++)
        if (x->s[a].phase != DEAD) call(e, x, i, a);
}

static void explore_running(explorer *e, const system_t *x, int a) {
    const scheduler *s = &x->s[a];
    bool filled = true;
    for (int r = 0; r < s->size; r++) {
        system_t y = *x;
        if (s->seat[r] == NOBODY) {
            filled = false;
            if (s->phase != COUNTS || !x->spares) continue;
            note(e, "has a new process", r, a);
            fill(&y, a, r);
            explore(e, &y);
        } else if (!is_linked(x, a, s->seat[r])) {
            note(e, "is missed", s->seat[r], a);
            notice(e, &y, a, r);
            explore(e, &y);
        }
    }
    system_t y = *x;
    if (s->phase == COUNTS && !filled && x->elastic) {
        note(e, "shrinks", 0, a);
        shrink(&y, a);
        if (y.s[a].size) explore(e, &y);
    }
    y = *x;
    if (s->phase == COUNTS && filled && all_stand(x, a)) {
        note(e, "says mend", 0, a);
        mend(&y, a);
        explore(e, &y);
    }
}

static void explore_gathering(explorer *e, const system_t *x, int a) {
    system_t y = *x;
    for (int i = 0; i < PROCESSES; i++) {
        if (!x->words || x->p[i].alive || !x->p[i].generation || x->s[a].ended[i]) continue;
        note(e, "has ended, says a launcher", i, a);
        y.words--;
        y.s[a].ended[i] = 1;
        explore(e, &y);
        y = *x;
    }
    poll_t v = take_poll(x, a);
    if (e->wrong == ALL_HERE && is_all_here(x, a, v.vote.said)) {
        v.vote.said = 0;
        v.vote.said_size = 0;
    }
    note(e, "refuses", 0, a);
    if (v.count && refuse_past(&y, &v)) {
        explore(e, &y);
        return;
    }
    if (!may_begin(e, &y, a, &v)) return;
    const bool beside =
        x->s[!a].phase == STEPS || x->s[!a].phase == COUNTS || x->s[!a].phase == GIVES;
    e->side_by_side += beside;
    note(e, "begins", (int)v.vote.whole, a);
    begin(e, &y, a, &v);
    explore(e, &y);
}

static void explore(explorer *e, const system_t *x) {
    if (e->bad || !is_new(e, x)) return;
    e->depth++;
    for (int8_t i = 0; i < PROCESSES; i++) explore_process(e, x, i);
    for (int a = 0; a < ADDRESSES; a++) {
        const scheduler *s = &x->s[a];
        system_t y = *x;
        if (s->phase == GATHERS) explore_gathering(e, x, a);
        if (s->phase >= STEPS) explore_running(e, x, a);
        if (s->phase != DEAD && x->outages) {
            note(e, "scheduler dies", 0, a);
            y.outages--;
            end_scheduler(&y, a, false);
            explore(e, &y);
        }
        y = *x;
        const bool alone = x->s[!a].phase == DEAD;
        if (s->phase == DEAD && x->starts && (alone || x->standby)) {
            note(e, "scheduler starts", 0, a);
            y.starts--;
            y.s[a].phase = GATHERS;
            explore(e, &y);
        }
    }
    e->depth--;
}

static system_t world_of(int8_t size) {
    system_t x = {.fresh = 1};
    scheduler *s = &x.s[0];
    *s = (scheduler){
        .phase = STEPS, .size = size, .base_size = size, .generation = 1, .base = 1, .own = 1};
    for (int8_t r = 0; r < RANKS_MOST; r++)
        s->said[r] = NOBODY, s->seat[r] = s->was[r] = r < size ? r : NOBODY;
    for (int8_t i = 0; i < size; i++)
        x.p[i] = (process){.alive = 1, .seat = i, .generation = 1, .whole = {1, i, size}};
    for (int8_t i = size; i < PROCESSES; i++) x.p[i].at = NOBODY;
    x.s[1].phase = DEAD;
    x.stepped = 1;
    x.w[x.worlds++] = (world){.generation = 1, .size = size, .process = {0, 1, 2, 3}};
    return x;
}

/* Who has a vote: "whole generation said" of each of three ranks that comes; 0 generation: it does
 * not. */
static void votes(void **state) {
    (void)state;
    static const struct {
        uint64_t rank[3][3];
        bool begins;
    } cases[] = {
        {{{5, 5, 0}, {5, 5, 0}}, true},             /* steps, one is missing */
        {{{5, 5, 0}}, false},                       /* one of three */
        {{{5, 6, 0}, {0, 0, 0}, {5, 6, 0}}, true},  /* halted */
        {{{5, 6, 0}, {0, 6, 0}}, false},            /* with a newcomer, of a world never whole */
        {{{5, 6, 6}, {0, 6, 6}}, false},            /* the same, where both have said WHOLE */
        {{{6, 6, 6}, {0, 6, 6}}, true},             /* and one has heard GO */
        {{{5, 6, 6}, {0, 6, 0}, {5, 6, 6}}, true},  /* no GO can have been said */
        {{{5, 6, 6}, {0, 0, 0}, {5, 6, 6}}, true},  /* it may have been: two are of both worlds */
        {{{5, 6, 6}, {0, 0, 0}, {5, 5, 0}}, false}, /* only one of them is of the new one */
        {{{6, 6, 6}, {0, 0, 0}, {5, 5, 0}}, false}, /* one was left behind */
        {{{6, 7, 7}, {0, 0, 0}, {6, 7, 6}}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wefti_voter voter[3];
        int32_t count = 0;
        for (int r = 0; r < 3; r++) {
            const uint64_t *is = cases[i].rank[r];
            if (is[1]) voter[count++] = (wefti_voter){is[1], {is[0], r, 3}, {is[2], r, 3}};
        }
        const wefti_vote vote = wefti_vote_take(voter, count);
        if (wefti_vote_may_begin(&vote, voter, count, 0, 0) != cases[i].begins)
            fail_msg("case %zu", i);
    }
}

static void run(const char *what, system_t x) {
    explorer e = {0};
    explore(&e, &x);
    print_message("%s: %zu states, %ld takeovers (%ld without a pause, %ld beside a scheduler that "
                  "has the job), %ld mendings\n",
                  what, e.seen.count, e.takeovers, e.resumed, e.side_by_side, e.mended);
    assert_true(e.takeovers > 0);
    seen_free(&e.seen);
}

/* A wrong rule is found out. */
static void find_out(wrong rule, system_t x) {
    explorer e = {.wrong = rule};
    explore(&e, &x);
    static const char *const names[] = {"right",      "by attempt", "by words",
                                        "takes back", "all here",   "forgets said"};
    print_message("wrong rule '%s' is found out after %zu states\n", names[rule], e.seen.count);
    assert_true(e.bad);
    seen_free(&e.seen);
}

/* The one before has died when the next begins, and ranks die as well. */
static void a_chain(void **state) {
    (void)state;
    system_t x = world_of(3);
    x.outages = x.starts = 2;
    x.deaths = x.spares = 1;
    run("a chain of schedulers", x);
}

static system_t with_standby(int8_t size) {
    system_t x = world_of(size);
    x.standby = 1;
    x.s[1].phase = GATHERS;
    return x;
}

static void two(void **state) {
    (void)state;
    system_t x = with_standby(3);
    x.breaks = 3;
    x.spares = 1;
    run("two schedulers", x);
    x.elastic = 1;
    run("two schedulers, elastic", x);
    x = with_standby(4);
    x.breaks = 3;
    run("two schedulers of 4 ranks", x);
    x.elastic = 1;
    run("two schedulers of 4 ranks, elastic", x);
}

static bool explores_all(void) {
    const char *explores = getenv("WEFT_TEST_EXPLORE");
    return explores && strcmp(explores, "all") == 0;
}

/* With WEFT_TEST_EXPLORE=all, ranks die as well, and more connections break: 200 million states. */
static void two_of_which_one_dies(void **state) {
    (void)state;
    system_t x = with_standby(3);
    x.outages = x.starts = x.spares = 1;
    x.breaks = 2;
    x.deaths = x.words = explores_all();
    run("two, one of which dies", x);
    x.elastic = 1;
    if (!explores_all()) x.breaks = 1;
    run("two, one of which dies, elastic", x);
    if (!explores_all()) return;
    x = with_standby(3);
    x.elastic = x.spares = 1;
    x.breaks = 5;
    run("two, elastic, with 5 breaks", x);
}

static void wrong_rules(void **state) {
    (void)state;
    system_t x = with_standby(4);
    x.breaks = 3;
    x.elastic = 1;
    find_out(BY_ATTEMPT, x);
    x = with_standby(3);
    x.outages = x.starts = x.spares = 1;
    x.deaths = x.words = 1;
    x.breaks = 2;
    x.elastic = 1;
    find_out(BY_WORDS, x);
    x.words = x.deaths = 0;
    find_out(FORGETS_SAID, x);
    x.breaks = 5;
    x.outages = x.starts = 0;
    find_out(ALL_HERE, x);
    find_out(TAKES_BACK, x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes),       cmocka_unit_test(a_chain),
        cmocka_unit_test(two),         cmocka_unit_test(two_of_which_one_dies),
        cmocka_unit_test(wrong_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
