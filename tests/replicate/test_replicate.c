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
    stop(x, i);
}

static void lose(system_t *x, int32_t a, int32_t b) {
    x->losses++;
    empty(&x->q[a][b], true);
    empty(&x->q[b][a], true);
}

static void kill_scheduler(system_t *x) {
    x->restarts++;
    begin_scheduler(x);
    for (int32_t i = 0; i < SERVERS; i++) {
        empty(&x->q[SCHEDULER][i], false);
        empty(&x->q[i][SCHEDULER], x->s[i].alive);
    }
}

/* The sender notices that its connection is lost. */
static void notice(system_t *x, int32_t from, int32_t to) {
    x->q[from][to].broken = false;
    if (from == SCHEDULER)
        wefti_governor_loses(governor_of(x), to);
    else if (to == SCHEDULER)
        wefti_holder_loses_scheduler(holder_of(x, from));
    else
        wefti_holder_misses(holder_of(x, from), to);
}

static bool may_notice_death(const system_t *x, int32_t i) {
    return !x->s[i].alive && wefti_has_server(x->c.governor.connected, i) &&
           !x->q[i][SCHEDULER].count;
}

/* A silent server is given up once it knows by itself that it is not heard. */
static bool may_give_up(const system_t *x, int32_t i) {
    const server *s = &x->s[i];
    return wefti_has_server(wefti_governor_missing(&x->c.governor), i) &&
           !(s->alive && s->holder.stand == WEFTI_HOLDER_OBEYS);
}

static bool may_come(const system_t *x, int32_t i) {
    return x->s[i].alive && x->s[i].holder.stand == WEFTI_HOLDER_AWAY &&
           !x->q[i][SCHEDULER].broken && !x->q[SCHEDULER][i].broken;
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
static void add_electorate(seen_digest *d, wefti_electorate of) {
    add(d, (int64_t)of.voters);
    add(d, (int64_t)of.before);
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

/* What waits for a push that was acknowledged elsewhere changes nothing. */
static void add_waiting(seen_digest *d, const system_t *x, const server *s) {
    for (int32_t k = 0; k < s->held.waits; k++) {
        const wefti_unanswered *w = &s->held.waiting[k];
        if (!w->reads && w->ticket / WORKERS <= x->acknowledged[w->ticket % WORKERS]) continue;
        add(d, w->ticket);
        add(d, w->updates);
        if (w->reads) add_content(d, &s->read);
    }
}

static void add_server(seen_digest *d, const system_t *x, const server *s) {
    add(d, s->alive);
    if (!s->alive) return;
    const wefti_holder *h = &s->holder;
    add(d, (int64_t)h->stand);
    add(d, h->leaves);
    add(d, h->subject.epoch);
    add_id(d, h->subject.stored);
    add_electorate(d, h->of);
    add_view(d, &s->view);
    add_replica(d, &s->held.replica);
    for (int k = 0; k < PARTS; k++) add_content(d, &s->part[k]);
    add_waiting(d, x, s);
}

static void add_scheduler(seen_digest *d, const scheduler *c) {
    const wefti_governor *g = &c->governor;
    add(d, (int64_t)g->ruler.phase);
    add_id(d, g->ruler.id);
    add_id(d, g->ruler.best);
    add_electorate(d, g->ruler.of);
    add(d, (int64_t)g->ruler.with);
    add_view(d, &c->view);
    add(d, (int64_t)g->here);
    add(d, (int64_t)g->connected);
    add(d, (int64_t)g->leaving);
    add(d, (int64_t)c->facts.caught_up);
    for (int i = 0; i < SERVERS; i++) add(d, c->facts.updates[i]);
}

static void add_map_message(seen_digest *d, const message *m) {
    add(d, (int64_t)m->map.word);
    add(d, m->map.epoch);
    add_id(d, m->map.id);
    add_electorate(d, m->map.of);
    add_view(d, &m->view);
    add(d, m->map.updates);
    add(d, (int64_t)m->map.caught_up);
}

static void add_message(seen_digest *d, const message *m) {
    add(d, m->between);
    if (!m->between) {
        add_map_message(d, m);
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
    for (int i = 0; i < SERVERS; i++) add_server(&d, x, &x->s[i]);
    add_scheduler(&d, &x->c);
    for (int w = 0; w < WORKERS; w++) add(&d, x->acknowledged[w]);
    add(&d, x->kills);
    add(&d, x->losses);
    add(&d, x->restarts);
    add(&d, x->drains);
    add(&d, x->reads);
    add(&d, (int64_t)x->given_up);
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
    const wefti_governor *g = &x->c.governor;
    const wefti_shard_view *v = &x->c.view;
    wefti_servers alive = 0;
    for (int32_t i = 0; i < SERVERS; i++) alive |= x->s[i].alive ? wefti_server(i) : 0;
    ends++;
    const bool lost = wefti_governor_lost_shard(g) >= 0;
    if (g->ruler.phase != WEFTI_RULER_RULES || lost) {
        /* Too many are lost at once: the job ends. */
        assert_true(x->kills + x->restarts + x->losses > 1);
        assert_true(lost || g->ruler.phase == WEFTI_RULER_GATHERS || wefti_governor_is_stuck(g));
        stuck++;
        return;
    }
    assert_false(wefti_governor_is_stuck(g));
    assert_true(v->members & alive);
    for (int32_t w = 0; w < most.workers; w++) assert_int_equal(x->acknowledged[w], most.pushes);
    for (int32_t i = 0; i < SERVERS; i++) {
        if (!wefti_has_server(v->members, i)) continue;
        for (int32_t k = 0; k < PARTS; k++)
            for (int32_t w = 0; w < most.workers; w++)
                assert_int_equal(x->s[i].part[k].last[w], most.pushes);
    }
    const int here = wefti_count_servers(alive & ~g->leaving);
    assert_int_equal(wefti_count_servers(v->members), here > most.copies ? most.copies : here);
}

/* Whether the receiver of a message ignores it, now and later. */
static bool is_of_no_use(const system_t *x, int32_t to, const message *m) {
    const wefti_map_id id = m->map.id, made = x->c.view.made;
    if (to == SCHEDULER)
        return (m->map.word == WEFTI_MAP_STORED && !wefti_same_map(id, x->c.governor.ruler.id)) ||
               (m->map.word == WEFTI_MAP_TELLS &&
                (x->c.view.primary >= 0 || wefti_map_is_later(made, id))) ||
               (m->map.word == WEFTI_MAP_CAUGHT && !wefti_same_map(id, made));
    const server *s = &x->s[to];
    const wefti_replica *r = &s->held.replica;
    const wefti_map_id stored = s->holder.subject.stored;
    if (!m->between)
        return (m->map.word == WEFTI_MAP_MAP && wefti_map_is_later(stored, id)) ||
               (m->map.word == WEFTI_MAP_GO &&
                (wefti_map_is_later(stored, id) || wefti_same_map(r->view.made, s->view.made)));
    return wefti_map_is_later(r->view.made, m->replica.made);
}

static void deliver(system_t *x, int32_t from, int32_t to) {
    if (to == SCHEDULER)
        scheduler_hears(x, from);
    else if (from == SCHEDULER)
        hears_scheduler(x, to);
    else
        hears_server(x, to, from);
}

static int32_t count_sent(const system_t *x, int32_t from) {
    int32_t count = 0;
    for (int32_t k = 0; k < NODES; k++) count += x->q[from][k].count;
    return count;
}

/* The receiver does ignore it. */
static void deliver_in_vain(system_t *x, int32_t from, int32_t to) {
    const int32_t sent = count_sent(x, to);
    if (to == SCHEDULER) {
        (void)governor_of(x);
        const scheduler before = x->c;
        deliver(x, from, to);
        assert_memory_equal(&x->c, &before, sizeof before);
    } else {
        (void)holder_of(x, to);
        const server before = x->s[to];
        deliver(x, from, to);
        assert_memory_equal(&x->s[to], &before, sizeof before);
    }
    assert_int_equal(count_sent(x, to), sent);
}

/* What changes nothing for anybody happens at once: fewer orders are left. */
static void tidy(system_t *x) {
    for (int32_t i = 0; i < NODES; i++)
        for (int32_t k = 0; k < NODES; k++)
            while (x->q[i][k].count && is_of_no_use(x, k, &x->q[i][k].of[0]))
                deliver_in_vain(x, i, k);
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
    wefti_holder_calls_scheduler(holder_of(x, i));
}
static void does_give_up(system_t *x, int32_t i, int32_t k) {
    (void)k;
    x->given_up |= wefti_server(i);
    wefti_governor_gives_up(governor_of(x), i);
}
static void does_drain(system_t *x, int32_t i, int32_t k) {
    (void)k;
    x->drains++;
    wefti_holder_leaves(holder_of(x, i));
}
static void does_send_part(system_t *x, int32_t i, int32_t k) {
    (void)k;
    assert_true(wefti_holder_sends_part(holder_of(x, i), 0));
}
static void does_read(system_t *x, int32_t i, int32_t k) {
    (void)k;
    read_shard(x, i);
}

static bool server_moves(const system_t *x, int32_t i) {
    const server *s = &x->s[i];
    bool moves = false;
    moves |= follow(x, may_notice_death(x, i), notice, SCHEDULER, i);
    moves |= follow(x, may_give_up(x, i), does_give_up, i, 0);
    moves |= follow(x, may_come(x, i), does_come, i, 0);
    moves |= follow(x, s->alive && wefti_replica_has_part(&s->held.replica, PARTS), does_send_part,
                    i, 0);
    for (int32_t w = 0; w < WORKERS; w++) moves |= follow(x, may_push(x, i, w), push, i, w);
    return moves;
}

static void faults(const system_t *x) {
    for (int32_t i = 0; i < SERVERS; i++) {
        const bool alive = x->s[i].alive;
        (void)follow(x, alive && x->kills < most.kills, does_kill, i, 0);
        (void)follow(x, may_read(x, i), does_read, i, 0);
        (void)follow(x, alive && x->drains < most.drains && !x->s[i].holder.leaves, does_drain, i,
                     0);
        for (int32_t k = i + 1; k < NODES; k++) {
            const bool both = alive && (k == SCHEDULER ? x->s[i].holder.stand != WEFTI_HOLDER_AWAY
                                                       : x->s[k].alive);
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
            const bool alive = k == SCHEDULER || x->s[k].alive;
            moves |= follow(x, alive && x->q[i][k].count, deliver, i, k);
            moves |=
                follow(x, x->q[i][k].broken && (i == SCHEDULER || x->s[i].alive), notice, i, k);
        }
    for (int32_t i = 0; i < SERVERS; i++) moves |= server_moves(x, i);
    if (!moves) finished(x);
    faults(x);
}

/* The first servers have the shard, and all that begins has ended. */
static void begin(system_t *x) {
    memset(x, 0, sizeof *x);
    begin_scheduler(x);
    for (int32_t i = 0; i < SERVERS; i++) {
        server *s = &x->s[i];
        s->alive = true;
        s->holder = (wefti_holder){.me = i, .shards = 1};
        s->held.parts = PARTS;
        wefti_holder_begin(holder_of(x, i));
        wefti_holder_calls_scheduler(holder_of(x, i));
    }
    for (bool moves = true; moves;) {
        moves = false;
        for (int32_t i = 0; i < NODES; i++)
            for (int32_t k = 0; k < NODES; k++)
                if (x->q[i][k].count) moves = true, deliver(x, i, k);
    }
    assert_int_equal(x->c.governor.ruler.phase, WEFTI_RULER_RULES);
    assert_int_equal(x->s[0].held.replica.phase, WEFTI_REPLICA_LEADS);
    assert_int_equal(x->s[1].held.replica.phase, WEFTI_REPLICA_FOLLOWS);
    assert_int_equal(x->s[2].held.replica.phase,
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
    {.name = "a death and a scheduler that starts again",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .kills = 1,
     .restarts = 1},
    /* in the long checks of .ci/nightly */
    {.name = "a server that leaves, and a death",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .drains = 1,
     .kills = 1},
    {.name = "two schedulers that start again",
     .copies = 2,
     .workers = 1,
     .pushes = 1,
     .restarts = 2},
};
enum { QUICK = 10, CASES = sizeof cases / sizeof *cases };

static void all_orders(void **state) {
    (void)state;
    const int count = SANITIZED ? 3 : getenv("WEFT_NIGHTLY") ? CASES : QUICK;
    for (int i = 0; i < count; i++) run(cases[i]);
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_orders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
