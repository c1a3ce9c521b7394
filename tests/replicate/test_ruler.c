/* Who may make maps, explored. Several schedulers run at once, and each takes itself for the only
 * one. Their words come in every order, and any of them may be lost. All chosen maps must form one
 * line: each knows what those before have decided. The voters change on the way.
 * weft-test: computes
 */
#include "replicate/ruler.h"
#include "seen.h"

enum { SERVERS = 3, SCHEDULERS = 3, DECISIONS = 10, CHOSEN = 32, ORDERS = 4000 };

/* What a map says: the decisions of all maps before, and its own. */
typedef struct map {
    wefti_map_id id;
    wefti_electorate of;
    char decided[DECISIONS];
} map;

typedef enum word { NOTHING, PROMISE, STORED } word;

typedef struct answer {
    word word;
    int64_t epoch;
    map map;
} answer;

typedef struct scheduler {
    wefti_ruler ruler;
    map map;
    int32_t proposals;
} scheduler;

typedef struct system_t {
    scheduler c[SCHEDULERS];
    wefti_subject subject[SERVERS];
    map has[SERVERS];
    answer answers[SCHEDULERS][SERVERS]; /* under way; another one may take its place */
    map chosen[CHOSEN];
    int32_t chosen_count;
} system_t;

static seen_states states;
static int32_t schedulers, proposals, epochs, most_chosen;
static const wefti_servers electorates[] = {7, 3, 6};

static void chosen(system_t *x, const map *m) {
    for (int32_t i = 0; i < x->chosen_count; i++) {
        const map *o = &x->chosen[i];
        const bool later = wefti_map_is_later(m->id, o->id);
        const map *first = later ? o : m, *second = later ? m : o;
        if (strncmp(first->decided, second->decided, strlen(first->decided)) != 0)
            fail_msg("'%s' was chosen, and then '%s'", first->decided, second->decided);
    }
    assert_true(x->chosen_count < CHOSEN);
    x->chosen[x->chosen_count++] = *m;
    if (x->chosen_count > most_chosen) most_chosen = x->chosen_count;
}

/* ---- events ---- */

static bool may_propose(const scheduler *c) {
    return c->ruler.phase == WEFTI_RULER_GATHERS
               ? wefti_ruler_may_begin(&c->ruler, 7)
               : c->ruler.phase == WEFTI_RULER_RULES && c->proposals < proposals;
}

static void propose(system_t *x, int32_t i, int32_t voters) {
    scheduler *c = &x->c[i];
    const bool first = c->ruler.phase == WEFTI_RULER_GATHERS;
    const wefti_servers same = c->map.of.voters & ~wefti_server(WEFTI_SCHEDULER);
    c->map.id = wefti_ruler_proposes(&c->ruler, first && same ? same : electorates[voters]);
    c->map.of = c->ruler.of;
    if (first && same) return;
    const size_t length = strlen(c->map.decided);
    assert_true(length + 1 < DECISIONS);
    c->map.decided[length] = (char)('a' + i);
    c->proposals++;
}

/* Epochs end somewhere: two that gather could outbid each other for ever. */
static bool may_say(const system_t *x, int32_t i, int32_t server) {
    const wefti_ruler *r = &x->c[i].ruler;
    if (r->phase == WEFTI_RULER_GATHERS)
        return x->subject[server].epoch < epochs && !(r->with & wefti_server(server));
    return !wefti_same_map(x->has[server].id, x->c[i].map.id);
}

/* The scheduler's word reaches the server, whose answer is under way. */
static void say(system_t *x, int32_t i, int32_t server) {
    scheduler *c = &x->c[i];
    wefti_subject *s = &x->subject[server];
    answer *a = &x->answers[i][server];
    if (c->ruler.phase == WEFTI_RULER_GATHERS) {
        const bool all_again = wefti_ruler_meets(&c->ruler, s->epoch);
        if (all_again) memset(x->answers[i], 0, sizeof x->answers[i]);
        if (!wefti_subject_obeys(s, c->ruler.id.epoch)) return;
        *a = (answer){PROMISE, c->ruler.id.epoch, x->has[server]};
    } else if (wefti_subject_stores(s, c->map.id)) {
        x->has[server] = c->map;
        *a = (answer){STORED, 0, c->map};
    }
}

static void hear(system_t *x, int32_t i, int32_t server) {
    scheduler *c = &x->c[i];
    const answer a = x->answers[i][server];
    memset(&x->answers[i][server], 0, sizeof a);
    if (a.word == PROMISE && wefti_ruler_hears(&c->ruler, server, a.epoch, a.map.id, a.map.of))
        c->map = a.map;
    if (a.word == STORED && wefti_ruler_counts(&c->ruler, server, a.map.id)) chosen(x, &c->map);
}

/* ---- exploring ---- */

static seen_digest digest_of(const system_t *x) {
    return (seen_digest){wefti_digest_bytes(1, x, sizeof *x), wefti_digest_bytes(2, x, sizeof *x)};
}

static void explore(const system_t *x) {
    unsigned char *mark = seen_mark(&states, digest_of(x));
    if (*mark) return;
    *mark = 1;
    for (int32_t i = 0; i < schedulers; i++) {
        system_t next;
        for (int32_t k = 0; may_propose(&x->c[i]) && k < 3; k++) {
            next = *x;
            propose(&next, i, k);
            explore(&next);
        }
        for (int32_t s = 0; s < SERVERS; s++) {
            if (!may_say(x, i, s)) continue;
            next = *x;
            say(&next, i, s);
            explore(&next);
        }
        for (int32_t s = 0; s < SERVERS; s++) {
            if (!x->answers[i][s].word) continue;
            next = *x;
            hear(&next, i, s);
            explore(&next);
        }
    }
}

static void limit(int32_t of, int32_t each, int32_t most_epochs) {
    schedulers = of;
    proposals = each;
    epochs = most_epochs;
    most_chosen = 0;
}

/* One order of more events than can be explored. */
static void walk(uint64_t seed) {
    system_t x;
    memset(&x, 0, sizeof x);
    for (uint64_t n = 0; n < 200; n++) {
        const uint64_t dice = wefti_digest_number(wefti_digest_number(seed, n), n);
        const int32_t i = (int32_t)(dice >> 8 & 0xff) % schedulers;
        const int32_t s = (int32_t)(dice >> 16 & 0xff) % SERVERS, way = (int32_t)(dice >> 24 & 7);
        if (way == 0 && may_propose(&x.c[i]))
            propose(&x, i, (int32_t)(dice >> 32 & 0xff) % 3);
        else if (way < 4 && may_say(&x, i, s))
            say(&x, i, s);
        else if (x.answers[i][s].word)
            hear(&x, i, s);
    }
}

static void run(int32_t of, int32_t each) {
    system_t x;
    memset(&x, 0, sizeof x);
    limit(of, each, 2);
    explore(&x);
    print_message("%d schedulers, %d decisions of each: %zu states, up to %d maps chosen\n", of,
                  each, states.count, most_chosen);
    assert_true(most_chosen > of);
    seen_free(&states);
}

static void chosen_maps_form_a_line(void **state) {
    (void)state;
    run(2, 1);
}

static void three_schedulers(void **state) {
    (void)state;
    limit(3, 3, 9);
    TEST_SEEDS(seed, 1, ORDERS) walk(seed);
    print_message("up to %d maps chosen\n", most_chosen);
    if (!test_one_seed()) assert_true(most_chosen > 3);
}

/* A scheduler finds a map that takes server 0 out, and may not be chosen. Servers 0 and 2 do not
 * know it, and could choose another one. So the next map needs a quorum with server 0 as well. */
static void found_maps_need_both_quorums(void **state) {
    (void)state;
    system_t x;
    memset(&x, 0, sizeof x);
    limit(2, 9, 9);
    for (int32_t s = 0; s < SERVERS; s++) say(&x, 0, s), hear(&x, 0, s);
    for (int32_t s = 0; s < SERVERS; s++) say(&x, 0, s), hear(&x, 0, s);
    propose(&x, 0, 0);
    for (int32_t s = 0; s < SERVERS; s++) say(&x, 0, s), hear(&x, 0, s);
    assert_int_equal(x.c[0].ruler.phase, WEFTI_RULER_RULES);
    propose(&x, 0, 2); /* of servers 1 and 2 */
    say(&x, 0, 1);
    for (int32_t s = 0; s < SERVERS; s++) say(&x, 1, s);
    for (int32_t s = 0; s < SERVERS; s++) say(&x, 1, s), hear(&x, 1, s);
    assert_true(wefti_same_map(x.c[1].map.id, x.c[0].map.id));
    assert_true(may_propose(&x.c[1]));
    propose(&x, 1, 0);
    say(&x, 1, 1), hear(&x, 1, 1);
    assert_int_equal(x.c[1].ruler.phase, WEFTI_RULER_PROPOSES);
    say(&x, 1, 2), hear(&x, 1, 2);
    assert_int_equal(x.c[1].ruler.phase, WEFTI_RULER_RULES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chosen_maps_form_a_line),
                                       cmocka_unit_test(three_schedulers),
                                       cmocka_unit_test(found_maps_need_both_quorums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
