/* The protocol of servers, explored: every order of events of three servers, a scheduler and two
 * workers, with deaths and lost connections at every point. No acknowledged push may be lost, none
 * may be applied twice, and a reading has all that was acknowledged or read before it.
 * weft-test: computes
 */
#include "people.h"
#include "seen.h"

/* ---- faults ---- */

static void kill_server(system_t *x, int32_t i) {
    x->kills++;
    memset(&x->s[i], 0, sizeof x->s[i]);
    for (int32_t k = 0; k < NODES; k++) empty(&x->q[k][i], false);
}

static void lose(system_t *x, int32_t a, int32_t b) {
    x->losses++;
    empty(&x->q[a][b], true);
    empty(&x->q[b][a], true);
}

static void kill_scheduler(system_t *x) {
    x->restarts++;
    memset(&x->c, 0, sizeof x->c);
    x->c.map.view.primary = x->c.map.view.last = -1;
    for (int32_t i = 0; i < SERVERS; i++) {
        empty(&x->q[SCHEDULER][i], false);
        empty(&x->q[i][SCHEDULER], x->s[i].stand != DEAD);
    }
}

/* The sender notices that its connection is lost. */
static void notice(system_t *x, int32_t from, int32_t to) {
    x->q[from][to].broken = false;
    if (from == SCHEDULER) {
        x->c.connected &= ~wefti_server(to);
        wefti_ruler_loses(&x->c.ruler, to);
    } else if (to == SCHEDULER) {
        x->s[from].stand = AWAY;
    } else {
        wefti_replica *r = &x->s[from].replica;
        wefti_replica_misses(r, to);
        if (wefti_has_server(wefti_replica_greets(r), to))
            to_replica(x, from, to, wefti_replica_greeting(r));
    }
}

static bool may_notice_death(const system_t *x, int32_t i) {
    return x->s[i].stand == DEAD && wefti_has_server(x->c.connected, i) &&
           !x->q[i][SCHEDULER].count;
}

/* A silent server is given up once it knows by itself that it is not heard. */
static bool may_give_up(const system_t *x, int32_t i) {
    const server *s = &x->s[i];
    return wefti_has_server(x->c.here, i) && !wefti_has_server(x->c.connected, i) &&
           s->stand != OBEYS && x->c.ruler.phase != WEFTI_RULER_GATHERS;
}

static void give_up(system_t *x, int32_t i) {
    x->c.here &= ~wefti_server(i);
    decide(x);
}

static bool may_come(const system_t *x, int32_t i) {
    return x->s[i].stand == AWAY && !x->q[i][SCHEDULER].broken && !x->q[SCHEDULER][i].broken;
}

static void come(system_t *x, int32_t i) {
    const message m = {.word = HELLO, .number = x->s[i].subject.epoch};
    x->s[i].stand = CALLS;
    post(x, i, SCHEDULER, &m);
}

/* ---- exploring ---- */

static seen_states states;
static int64_t ends, stuck;

/* Field by field: what lies between fields is undefined. */
static void add(seen_digest *d, int64_t number) {
    d->a = wefti_digest_number(d->a, (uint64_t)number);
    d->b = wefti_digest_number(d->b, (uint64_t)number);
}
static void add_id(seen_digest *d, wefti_map_id id) {
    add(d, id.epoch);
    add(d, id.count);
}
static void add_view(seen_digest *d, const wefti_shard_view *v) {
    add_id(d, v->made);
    add(d, v->primary);
    add(d, v->last);
    add(d, (int64_t)v->members);
    add(d, (int64_t)v->filling);
}
static void add_map(seen_digest *d, const map *m) {
    add_id(d, m->id);
    add(d, (int64_t)m->of.voters);
    add(d, (int64_t)m->of.before);
    add_view(d, &m->view);
}
static void add_content(seen_digest *d, const content *c) {
    for (int w = 0; w < WORKERS; w++) add(d, c->last[w]);
}
static void add_push(seen_digest *d, wefti_push push) {
    add(d, push.worker);
    add(d, push.number);
}

static void add_replica(seen_digest *d, const wefti_replica *r) {
    add(d, (int64_t)r->phase);
    add_view(d, &r->view);
    add(d, r->updates);
    add(d, r->acknowledged);
    for (int64_t n = r->acknowledged + 1; n <= r->updates && n > 0; n++)
        add_push(d, r->window[n % WEFTI_REPLICA_WINDOW]);
    add(d, r->parts);
    add(d, r->filled_from);
    add(d, (int64_t)r->met);
    add(d, (int64_t)r->caught_up);
    for (int i = 0; i < SERVERS; i++) add(d, r->has[i]);
}

static void add_waiting(seen_digest *d, const waiting *w) {
    add(d, w->is);
    if (!w->is) return;
    add(d, w->push);
    add(d, w->updates);
    add_id(d, w->made);
    add_content(d, &w->read);
}

static void add_server(seen_digest *d, const server *s) {
    add(d, (int64_t)s->stand);
    if (s->stand == DEAD) return;
    add(d, s->subject.epoch);
    add_id(d, s->subject.stored);
    add_map(d, &s->map);
    add_replica(d, &s->replica);
    for (int k = 0; k < PARTS; k++) add_content(d, &s->part[k]);
    for (int w = 0; w < WORKERS; w++) add_waiting(d, &s->push[w]);
    add_waiting(d, &s->reading);
}

static void add_scheduler(seen_digest *d, const scheduler *c) {
    add(d, (int64_t)c->ruler.phase);
    add_id(d, c->ruler.id);
    add_id(d, c->ruler.best);
    add(d, (int64_t)c->ruler.of.voters);
    add(d, (int64_t)c->ruler.of.before);
    add(d, (int64_t)c->ruler.with);
    add_map(d, &c->map);
    add(d, (int64_t)c->here);
    add(d, (int64_t)c->connected);
    add(d, (int64_t)c->leaving);
    add(d, (int64_t)c->caught_up);
    for (int i = 0; i < SERVERS; i++) add(d, c->updates[i]);
}

static void add_message(seen_digest *d, const message *m) {
    add(d, (int64_t)m->word);
    if (m->word != REPLICA) {
        add(d, m->number);
        add_map(d, &m->map);
        return;
    }
    add(d, (int64_t)m->replica.word);
    add_id(d, m->replica.made);
    add(d, m->replica.update);
    add(d, m->replica.acknowledged);
    add_push(d, m->replica.push);
    add(d, m->replica.part);
    add_content(d, &m->part);
}

static seen_digest digest_of(const system_t *x) {
    seen_digest d = {1, 2};
    for (int i = 0; i < SERVERS; i++) add_server(&d, &x->s[i]);
    add_scheduler(&d, &x->c);
    for (int w = 0; w < WORKERS; w++) add(&d, x->acknowledged[w]);
    add(&d, x->kills);
    add(&d, x->losses);
    add(&d, x->restarts);
    add(&d, x->drains);
    add(&d, x->reads);
    add_content(&d, &x->seen);
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < NODES; k++) {
            const channel *q = &x->q[i][k];
            add(&d, q->count | q->broken << 8);
            for (int n = 0; n < q->count; n++) add_message(&d, &q->of[n]);
        }
    return d;
}

/* Nothing more happens, but faults. */
static void finished(const system_t *x) {
    const scheduler *c = &x->c;
    const wefti_shard_view *v = &c->map.view;
    wefti_servers alive = 0;
    for (int32_t i = 0; i < SERVERS; i++) alive |= x->s[i].stand != DEAD ? wefti_server(i) : 0;
    ends++;
    if (c->ruler.phase != WEFTI_RULER_RULES || !(v->members & alive)) {
        /* Too many are lost at once: the job ends. */
        assert_true(x->kills + x->restarts + x->losses > 1);
        stuck++;
        return;
    }
    for (int32_t w = 0; w < most.workers; w++) assert_int_equal(x->acknowledged[w], most.pushes);
    for (int32_t i = 0; i < SERVERS; i++) {
        if (!wefti_has_server(v->members, i)) continue;
        for (int32_t k = 0; k < PARTS; k++)
            for (int32_t w = 0; w < most.workers; w++)
                assert_int_equal(x->s[i].part[k].last[w], most.pushes);
    }
    const int here = wefti_count_servers(alive & ~c->leaving);
    assert_int_equal(wefti_count_servers(v->members), here > most.copies ? most.copies : here);
}

/* Whether the receiver of a message ignores it, now and later. */
static bool is_of_no_use(const system_t *x, int32_t from, int32_t to, const message *m) {
    if (to == SCHEDULER)
        return (m->word == STORED && !wefti_same_map(m->map.id, x->c.map.id) &&
                !tells_updates(&x->c, m)) ||
               (m->word == CAUGHT && !wefti_same_map(m->map.id, x->c.map.view.made));
    const wefti_replica *r = &x->s[to].replica;
    if (m->word == MAP) return wefti_map_is_later(x->s[to].map.id, m->map.id);
    if (m->word == GO) return wefti_same_map(r->view.made, m->map.view.made);
    if (m->word != REPLICA || !wefti_map_is_later(r->view.made, m->replica.made)) return false;
    wefti_replica after = *r;
    assert_int_equal(wefti_replica_hears(&after, from, &m->replica), WEFTI_REPLICA_NOTHING);
    assert_false(wefti_replica_answers(&after, &m->replica));
    assert_memory_equal(&after, r, sizeof after);
    return true;
}

/* What changes nothing for anybody happens at once: fewer orders are left. */
static void tidy(system_t *x) {
    for (int32_t i = 0; i < NODES; i++)
        for (int32_t k = 0; k < NODES; k++)
            while (x->q[i][k].count && is_of_no_use(x, i, k, &x->q[i][k].of[0]))
                (void)takes(x, i, k);
    for (int32_t i = 0; i < SERVERS; i++) {
        server *s = &x->s[i];
        for (int32_t w = 0; w < WORKERS; w++)
            if (s->push[w].is && (is_void(s, &s->push[w]) || s->push[w].push <= x->acknowledged[w]))
                memset(&s->push[w], 0, sizeof s->push[w]);
        if (s->reading.is && is_void(s, &s->reading)) memset(&s->reading, 0, sizeof s->reading);
    }
}

static void explore(const system_t *x);

typedef void move(system_t *, int32_t, int32_t);
static bool follow(const system_t *x, bool may, move *does, int32_t i, int32_t k) {
    if (!may) return false;
    system_t *next = malloc(sizeof *next);
    assert_non_null(next);
    memcpy(next, x, sizeof *next);
    does(next, i, k);
    tidy(next);
    explore(next);
    free(next);
    return true;
}

static void deliver(system_t *x, int32_t from, int32_t to) {
    if (to == SCHEDULER)
        scheduler_hears(x, from);
    else if (from == SCHEDULER)
        hears_scheduler(x, to);
    else
        hears_server(x, to, from);
}
static void does_kill(system_t *x, int32_t i, int32_t k) {
    (void)k;
    kill_server(x, i);
}
static void does_restart(system_t *x, int32_t i, int32_t k) {
    (void)i, (void)k;
    kill_scheduler(x);
}
static void does_come(system_t *x, int32_t i, int32_t k) {
    (void)k;
    come(x, i);
}
static void does_give_up(system_t *x, int32_t i, int32_t k) {
    (void)k;
    give_up(x, i);
}
static void does_drain(system_t *x, int32_t i, int32_t k) {
    (void)k;
    x->drains++;
    x->c.leaving |= wefti_server(i);
    decide(x);
}
static void does_send_part(system_t *x, int32_t i, int32_t k) {
    (void)k;
    send_part(x, i);
}
static void does_read(system_t *x, int32_t i, int32_t k) {
    (void)k;
    read_shard(x, i);
}
static void does_answer_reading(system_t *x, int32_t i, int32_t k) {
    (void)k;
    answer_reading(x, i);
}

static bool server_moves(const system_t *x, int32_t i) {
    const server *s = &x->s[i];
    bool moves = false;
    moves |= follow(x, may_notice_death(x, i), notice, SCHEDULER, i);
    moves |= follow(x, may_give_up(x, i), does_give_up, i, 0);
    moves |= follow(x, may_come(x, i), does_come, i, 0);
    moves |= follow(x, s->stand != DEAD && wefti_replica_has_part(&s->replica, PARTS),
                    does_send_part, i, 0);
    moves |= follow(x, may_answer(s, &s->reading), does_answer_reading, i, 0);
    for (int32_t w = 0; w < WORKERS; w++) {
        moves |= follow(x, may_push(x, i, w), push, i, w);
        moves |= follow(x, may_answer(s, &s->push[w]), answer_push, i, w);
    }
    return moves;
}

static void faults(const system_t *x) {
    for (int32_t i = 0; i < SERVERS; i++) {
        const bool alive = x->s[i].stand != DEAD;
        (void)follow(x, alive && x->kills < most.kills, does_kill, i, 0);
        (void)follow(x, may_read(x, i), does_read, i, 0);
        (void)follow(x, alive && x->drains < most.drains && wefti_has_server(x->c.here, i),
                     does_drain, i, 0);
        for (int32_t k = i + 1; k < NODES; k++) {
            const bool both =
                alive && (k == SCHEDULER ? x->s[i].stand >= CALLS : x->s[k].stand != DEAD);
            (void)follow(x, both && x->losses < most.losses, lose, i, k);
        }
    }
    (void)follow(x, x->restarts < most.restarts, does_restart, 0, 0);
}

static void explore(const system_t *x) {
    unsigned char *mark = seen_mark(&states, digest_of(x));
    if (*mark) return;
    *mark = 1;
    bool moves = false;
    for (int32_t i = 0; i < NODES; i++)
        for (int32_t k = 0; k < NODES; k++) {
            const bool alive = k == SCHEDULER || x->s[k].stand != DEAD;
            moves |= follow(x, alive && x->q[i][k].count, deliver, i, k);
            moves |= follow(x, x->q[i][k].broken && (i == SCHEDULER || x->s[i].stand != DEAD),
                            notice, i, k);
        }
    for (int32_t i = 0; i < SERVERS; i++) moves |= server_moves(x, i);
    if (!moves) finished(x);
    faults(x);
}

/* The first servers have the shard, and all that begins has ended. */
static void begin(system_t *x) {
    memset(x, 0, sizeof *x);
    scheduler *c = &x->c;
    c->here = 7;
    c->map.view.primary = c->map.view.last = -1;
    for (int32_t i = 0; i < SERVERS; i++) {
        x->s[i].stand = AWAY;
        x->s[i].map.view.primary = x->s[i].map.view.last = -1;
        x->s[i].replica = wefti_replica_begin(i, true);
    }
    const wefti_view_facts f = facts(c);
    const wefti_shard_view first = wefti_view_first(&f);
    c->here = 0;
    c->map.view = first;
    for (int32_t i = 0; i < SERVERS; i++) come(x, i);
    for (bool moves = true; moves;) {
        moves = false;
        for (int32_t i = 0; i < NODES; i++)
            for (int32_t k = 0; k < NODES; k++)
                if (x->q[i][k].count) moves = true, deliver(x, i, k);
    }
    assert_int_equal(c->ruler.phase, WEFTI_RULER_RULES);
    assert_int_equal(x->s[0].replica.phase, WEFTI_REPLICA_LEADS);
    assert_int_equal(x->s[1].replica.phase, WEFTI_REPLICA_FOLLOWS);
    assert_int_equal(x->s[2].replica.phase,
                     most.copies > 2 ? WEFTI_REPLICA_FOLLOWS : WEFTI_REPLICA_OUT);
}

static void run(limits l) {
    system_t *x = malloc(sizeof *x);
    assert_non_null(x);
    most = l;
    ends = stuck = 0;
    begin(x);
    explore(x);
    print_message("%s: %zu states, %lld ends, %lld of them without servers enough\n", l.name,
                  states.count, (long long)ends, (long long)stuck);
    assert_true(ends > stuck);
    seen_free(&states);
    free(x);
}

static const limits cases[] = {
    {.name = "a push and a death", .copies = 2, .workers = 1, .pushes = 1, .kills = 1},
    {.name = "a death", .copies = 2, .workers = 1, .pushes = 2, .kills = 1, .reads = 1},
    {.name = "a lost connection", .copies = 2, .workers = 1, .pushes = 1, .losses = 1, .reads = 1},
    {.name = "a scheduler that starts again",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .restarts = 1,
     .reads = 1},
    {.name = "two workers", .copies = 2, .workers = 2, .pushes = 1, .kills = 1},
    {.name = "two deaths", .copies = 2, .workers = 1, .pushes = 1, .kills = 2},
    {.name = "three copies", .copies = 3, .workers = 2, .pushes = 1, .kills = 1},
    {.name = "a server that leaves",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .drains = 1,
     .reads = 1},
    {.name = "a death and a lost connection",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .kills = 1,
     .losses = 1},
    /* in the long checks of .ci/nightly */
    {.name = "a server that leaves, and a death",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .drains = 1,
     .kills = 1},
    {.name = "a death and a scheduler that starts again",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .kills = 1,
     .restarts = 1},
    {.name = "two schedulers that start again",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .restarts = 2},
};
enum { QUICK = 9, CASES = sizeof cases / sizeof *cases };

static void all_orders(void **state) {
    (void)state;
    const int count = SANITIZED ? 3 : getenv("WEFT_NIGHTLY") ? CASES : QUICK;
    for (int i = 0; i < count; i++) run(cases[i]);
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_orders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
