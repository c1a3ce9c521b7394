/* The protocol of recovery, explored: every order of events of a few ranks, and a rank, or the
 * scheduler, that dies at every point of each. The machines are those of recovery; here are
 * their network, their steps, and what must hold. In an elastic world the seat of a dead process
 * may be given up at any time, and processes come that were not there; then seats change their
 * numbers.
 * weft-test: computes
 */
#include "recovery_scheduler.h"

/* ---- exploring ---- */

enum { BELOW = 1 /* the present state comes from it */, DONE };

static void check(const system_t *x) {
    for (int32_t i = 0; i < x->size; i++)
        if (x->r[i].alive) check_rank(x, &x->r[i]);
    for (int32_t i = 0; i < x->size; i++)
        for (int32_t j = 0; j < i; j++) {
            const rank *a = &x->r[i], *b = &x->r[j];
            if (!a->alive || !b->alive || a->round.generation != b->round.generation || !steps(a) ||
                !steps(b) || a->has < 0 || b->has < 0)
                continue;
            assert_in_range(a->has - b->has + 1, 0, 2);
        }
}

static void finished(const system_t *x) {
    assert_int_equal(x->w.phase, WEFTI_MENDING_NOT);
    for (int32_t i = 0; i < x->size; i++) {
        if (x->seat[i] < 0) continue;
        assert_true(x->r[i].alive);
        assert_true(steps(&x->r[i]));
        assert_int_equal(x->r[i].s.phase, WEFTI_SURVIVOR_STEPPING);
        assert_int_equal(x->r[i].has, x->last);
    }
}

static void explore(explorer *e, const system_t *x);

typedef void move(explorer *, system_t *, int32_t);
static void follow(explorer *e, const system_t *x, move *does, int32_t i) {
    system_t *next = malloc(sizeof *next);
    assert_non_null(next);
    copy(next, x);
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
    const seen_digest seen = digest(x);
    unsigned char *mark = seen_mark(&e->seen, seen);
    if (*mark) {
        assert_int_equal(*mark, DONE); /* else it can go round for ever */
        return;
    }
    *mark = BELOW;
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
        const bool makes = steps(r) && r->s.phase == WEFTI_SURVIVOR_STEPPING;
        if (makes && !r->computed && r->s.step < x->last) moves = true, follow(e, x, compute, i);
        if (may_tear(x, i)) follow(e, x, tear, i);
        for (int32_t j = 0; j < x->size; j++)
            if (x->q[j][i].count && receives(r, &x->q[j][i].m[0]) != LEAVES)
                moves = true, follow(e, x, hears_rank, j * RANKS_MOST + i);
    }
    if (may_give_up(x)) moves = true, follow(e, x, give_up, 0);
    if (may_gather(x)) moves = true, follow(e, x, gather, 0);
    if (!moves) finished(x);
    if (x->outages > 0) follow(e, x, crash, 0);
    for (int32_t i = 0; i < x->size && x->breaks > 0; i++)
        if (x->r[i].alive && x->r[i].linked && x->r[i].round.generation >= 0 &&
            x->w.phase != WEFTI_MENDING_GATHERING)
            follow(e, x, break_link, i);
    for (int32_t i = 0; i < x->size && x->failures > 0; i++) {
        if (!x->r[i].alive) continue;
        follow(e, x, dies_heard, i);
        follow(e, x, dies_unheard, i);
    }
    e->depth--;
    *seen_mark(&e->seen, seen) = DONE;
}

/* Of three ranks, where `how` does not say another number. */
static explorer run(const system_t *how) {
    system_t *x = calloc(1, sizeof *x);
    explorer e = {0};
    assert_non_null(x);
    *x = *how;
    if (!x->size) x->size = 3;
    const int32_t size = x->size;
    for (int32_t i = 0; i < size; i++) {
        x->r[i] = (rank){.alive = true,
                         .linked = true,
                         .members = (1u << size) - 1,
                         .at = {.said = -1, .seat = i},
                         .round = wefti_round_begin(0),
                         .s = wefti_survivor_begin(0)};
        wefti_survivor_copied(&x->r[i].s);
        x->seat[i] = x->was[i] = x->base[0].process[i] = i;
    }
    x->base[0].size = size;
    x->base[1].generation = -1;
    wefti_mending_begin(&x->w, size, x->seats, 0);
    explore(&e, x);
    printf(
        "%d ranks, %s, %d steps, %d failures, %d outages: %zu states, %d deep; %ld mends, %ld from "
        "disk, %ld to another size, %ld updates made up for\n",
        (int)size, x->buddies ? "buddies" : "replicas", (int)x->last, x->failures, x->outages,
        e.seen.count, e.deepest, e.mends, e.from_disk, e.resized, e.rolled_forward);
    seen_free(&e.seen);
    free(x);
    return e;
}

static void nothing_fails(void **state) {
    (void)state;
    const explorer e = run(&(system_t){.buddies = true, .last = 2});
    assert_int_equal(e.mends, 0);
}

/* With replicas and with buddies: states come from memory, and at most one step is made again. */
static void mends_from_memory(system_t how) {
    how.last = SANITIZED ? 1 : 2;
    for (int buddies = 0; buddies < 2; buddies++) {
        how.buddies = buddies;
        const explorer e = run(&how);
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk, 0);
    }
}

static void one_rank_dies(void **state) {
    (void)state;
    mends_from_memory((system_t){.failures = 1});
}

/* The second one at every point of a step and of the mending. Sanitizers find nothing in more
 * states of the same kind. */
static void two_ranks_die(void **state) {
    (void)state;
    for (int buddies = 0; buddies < (SANITIZED ? 0 : 2); buddies++) {
        const explorer e = run(&(system_t){.buddies = buddies, .last = 1, .failures = 2});
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk > 0, buddies);
    }
}

/* The scheduler dies at every point of the steps, and of a mending, before or after a rank. Alone,
 * it costs no step: a world that makes steps is not halted. */
static void the_scheduler_dies(void **state) {
    (void)state;
    for (int buddies = 0; buddies < 2; buddies++) {
        explorer e = run(&(system_t){.buddies = buddies, .last = SANITIZED ? 1 : 2, .outages = 2});
        assert_int_equal(e.mends, 0);
        if (SANITIZED) continue;
        e = run(&(system_t){.buddies = buddies, .last = 1, .failures = 1, .outages = 1});
        assert_true(e.mends > 0 && e.rolled_forward > 0);
        assert_int_equal(e.from_disk, 0);
    }
}

/* A connection to the scheduler breaks at every point of a mending, with what is under way on it.
 */
static void a_connection_breaks(void **state) {
    (void)state;
    explorer e = run(&(system_t){.last = SANITIZED ? 1 : 2, .breaks = 1});
    assert_int_equal(e.mends, 0);
    if (SANITIZED) return;
    e = run(&(system_t){.last = 1, .failures = 1, .breaks = 1});
    assert_true(e.mends > 0 && e.rolled_forward > 0);
    assert_int_equal(e.from_disk, 0);
}

/* A rank dies at every point, and its process comes again, or its seat is given up; a process may
 * come to the smaller world at every point. */
static void a_world_shrinks_and_grows(void **state) {
    (void)state;
    const explorer e =
        run(&(system_t){.elastic = true, .last = SANITIZED ? 1 : 2, .failures = 1, .comers = 1});
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    assert_int_equal(e.from_disk, 0);
}

/* A second one at every point of the change. */
static void a_rank_dies_while_a_world_shrinks(void **state) {
    (void)state;
    if (SANITIZED) return;
    const explorer e = run(&(system_t){.elastic = true, .last = 1, .failures = 2});
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    assert_true(e.from_disk > 0); /* a world of one rank, which died: tell_mend looks at each */
}

/* The scheduler dies at every point of a change of size, before a rank or after it. */
static void the_scheduler_dies_while_a_world_changes(void **state) {
    (void)state;
    if (SANITIZED) return;
    explorer e = run(&(system_t){.elastic = true, .last = 1, .failures = 1, .outages = 1});
    assert_true(e.mends > 0 && e.rolled_forward > 0 && e.resized > 0);
    e = run(&(system_t){
        .size = 2, .elastic = true, .last = 1, .failures = 1, .outages = 2, .comers = 1});
    assert_true(e.mends > 0 && e.resized > 0);
}

/* A rank's update breaks off once all are ready, and its state is lost. */
static void an_update_is_torn(void **state) {
    (void)state;
    mends_from_memory((system_t){.tears = 1});
}

/* No rank can make the update that another one has made: all read the last checkpoint. */
static void updates_need_all_ranks(void **state) {
    (void)state;
    const explorer e = run(&(system_t){.last = 1, .failures = 1, .together = true});
    assert_true(e.mends > e.from_disk && e.from_disk > 0);
    assert_int_equal(e.rolled_forward, 0);
}

/* Ranks update pieces of parameters. Whoever has not gathered them, or had none, gets them all. */
static void parameters_are_gathered_again(void **state) {
    (void)state;
    mends_from_memory((system_t){.failures = 1, .scatters = true});
}

/* A process takes its state in a world of another size, and a rank dies before that is whole. */
static void a_newcomer_of_a_new_size_is_halted(void **state) {
    (void)state;
    const explorer e =
        run(&(system_t){.size = 2, .elastic = true, .last = 1, .failures = 2, .comers = 1});
    assert_true(e.mends > 0 && e.resized > 0);
}

/* ---- which words count ---- */

/* In the order of their enums. */
static const char *const phase_names[WEFTI_ROUND_PHASES] = {
    "STEPS",    "ASKS",       "HALTED", "STANDS", "STOOD",
    "ANSWERED", "ASKS_AGAIN", "MENDS",  "WHOLE",  "SAID"};
static const char *const event_names[WEFTI_ROUND_EVENTS] = {"HALT",  "MEND", "GO",    "ASK",
                                                            "STAND", "TAKE", "REACH", "SAY"};

static int index_of(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Rows "| PHASE, PHASE | EVENT | PHASE | ... |" of the page on recovery; -1: no row. */
static void read_moves(int to[WEFTI_ROUND_PHASES][WEFTI_ROUND_EVENTS]) {
    char line[512];
    FILE *page = fopen("docs/design/recovery.md", "r");
    assert_non_null(page);
    memset(to, -1, sizeof(int) * WEFTI_ROUND_PHASES * WEFTI_ROUND_EVENTS);
    while (fgets(line, sizeof line, page)) {
        char *rest = line, *save;
        char *from = strtok_r(rest, "|", &rest), *name = strtok_r(NULL, "| ", &rest);
        char *next = strtok_r(NULL, "| ", &rest);
        const int event = name ? index_of(event_names, WEFTI_ROUND_EVENTS, name) : -1;
        if (line[0] != '|' || event < 0 || !next) continue;
        for (char *f = strtok_r(from, ", ", &save); f; f = strtok_r(NULL, ", ", &save)) {
            const int phase = index_of(phase_names, WEFTI_ROUND_PHASES, f);
            assert_true(phase >= 0 && to[phase][event] < 0);
            to[phase][event] = index_of(phase_names, WEFTI_ROUND_PHASES, next);
            assert_true(to[phase][event] >= 0);
        }
    }
    fclose(page);
}

static void the_page_says_which_words_count(void **state) {
    (void)state;
    int to[WEFTI_ROUND_PHASES][WEFTI_ROUND_EVENTS];
    read_moves(to);
    for (int phase = 0; phase < WEFTI_ROUND_PHASES; phase++)
        for (int event = 0; event < WEFTI_ROUND_EVENTS; event++)
            for (int64_t generation = 4; generation <= 6; generation++) {
                const bool moves =
                    to[phase][event] >= 0 && generation == (event == WEFTI_HEARS_HALT ? 6 : 5);
                const int wanted = moves ? to[phase][event] : phase;
                wefti_round r = {.phase = (wefti_round_phase)phase, .generation = 5};
                const bool moved = wefti_round_happens(&r, (wefti_round_event)event, generation);
                if ((int)r.phase != wanted || moved != moves)
                    fail_msg("%s, %s of generation %d: %s, not %s", phase_names[phase],
                             event_names[event], (int)generation, phase_names[r.phase],
                             phase_names[wanted]);
                assert_int_equal(r.generation, moved ? generation : 5);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_says_which_words_count),
        cmocka_unit_test(nothing_fails),
        cmocka_unit_test(one_rank_dies),
        cmocka_unit_test(two_ranks_die),
        cmocka_unit_test(the_scheduler_dies),
        cmocka_unit_test(a_connection_breaks),
        cmocka_unit_test(an_update_is_torn),
        cmocka_unit_test(updates_need_all_ranks),
        cmocka_unit_test(parameters_are_gathered_again),
        cmocka_unit_test(a_world_shrinks_and_grows),
        cmocka_unit_test(a_newcomer_of_a_new_size_is_halted),
        cmocka_unit_test(a_rank_dies_while_a_world_shrinks),
        cmocka_unit_test(the_scheduler_dies_while_a_world_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
