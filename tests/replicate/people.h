/* Three servers, a scheduler and two workers around one shard: their network, the shard's state,
 * and what each does with a word. The machines are those of replicate. */
#ifndef WEFT_TEST_REPLICATE_PEOPLE_H
#define WEFT_TEST_REPLICATE_PEOPLE_H

#include "replicate/replica.h"
#include "support.h"

enum { SERVERS = 3, WORKERS = 2, PARTS = 2, QUEUE = 12, SCHEDULER = SERVERS, NODES };

/* ---- the network ---- */

typedef enum word { HELLO, LEAD, PROMISE, MAP, STORED, GO, CAUGHT, REPLICA } word;

typedef struct map {
    wefti_map_id id;
    wefti_electorate of;
    wefti_shard_view view;
} map;

/* A part of a shard's state: the number of the last push of each worker that it has. */
typedef struct content {
    int32_t last[WORKERS];
} content;

typedef struct message {
    word word;
    int64_t number; /* an epoch, or updates */
    union {
        map map;
        wefti_replica_message replica;
    };
    content part;
} message;

typedef struct channel {
    int32_t count;
    bool broken; /* until the sender notices it, what it sends is lost */
    message of[QUEUE];
} channel;

/* ---- the people ---- */

/* What waits for an answer at a server. */
typedef struct waiting {
    bool is;
    int32_t push;
    int64_t updates;
    wefti_map_id made;
    content read;
} waiting;

/* How a server stands with the scheduler. */
typedef enum stand {
    DEAD,
    AWAY,  /* knows that it is not connected */
    CALLS, /* has said HELLO */
    OBEYS  /* has heard the scheduler since */
} stand;

typedef struct server {
    stand stand;
    wefti_subject subject;
    map map;
    wefti_replica replica;
    content part[PARTS];
    waiting push[WORKERS], reading;
} server;

typedef struct scheduler {
    wefti_ruler ruler;
    map map;
    wefti_servers here, connected, leaving, caught_up;
    int64_t updates[WEFTI_SERVERS_MOST];
} scheduler;

typedef struct system_t {
    server s[SERVERS];
    scheduler c;
    channel q[NODES][NODES]; /* from, to */
    int32_t acknowledged[WORKERS], kills, losses, restarts, drains, reads;
    content seen; /* read, by anybody */
} system_t;

typedef struct limits {
    const char *name;
    int32_t copies, workers, pushes, kills, losses, restarts, drains, reads;
} limits;

static limits most;

static void post(system_t *x, int32_t from, int32_t to, const message *m) {
    channel *q = &x->q[from][to];
    if (q->broken) return;
    assert_true(q->count < QUEUE);
    q->of[q->count++] = *m;
}

static message takes(system_t *x, int32_t from, int32_t to) {
    channel *q = &x->q[from][to];
    const message m = q->of[0];
    q->count--;
    memmove(q->of, q->of + 1, (size_t)q->count * sizeof *q->of);
    memset(&q->of[q->count], 0, sizeof *q->of);
    return m;
}

static void empty(channel *q, bool broken) {
    memset(q, 0, sizeof *q);
    q->broken = broken;
}

/* ---- a server ---- */

static void apply(server *s, int32_t part, wefti_push push) {
    assert_int_equal(push.number, s->part[part].last[push.worker] + 1);
    s->part[part].last[push.worker]++;
}

static void to_replica(system_t *x, int32_t from, int32_t to, wefti_replica_message r) {
    const message m = {.word = REPLICA, .replica = r};
    post(x, from, to, &m);
}

static void greet(system_t *x, int32_t i) {
    const wefti_replica *r = &x->s[i].replica;
    for (int32_t k = 0; k < SERVERS; k++)
        if (wefti_has_server(wefti_replica_greets(r), k))
            to_replica(x, i, k, wefti_replica_greeting(r));
}

static void tell_caught_up(system_t *x, int32_t i) {
    const wefti_replica *r = &x->s[i].replica;
    if (r->phase != WEFTI_REPLICA_LEADS || !r->caught_up) return;
    const message m = {.word = CAUGHT, .map.id = r->view.made, .number = (int64_t)r->caught_up};
    post(x, i, SCHEDULER, &m);
}

static void store(system_t *x, int32_t i, const message *m) {
    server *s = &x->s[i];
    if (!wefti_subject_stores(&s->subject, m->map.id)) return;
    s->map = m->map;
    if (!wefti_same_map(s->map.view.made, s->replica.view.made)) wefti_replica_halt(&s->replica);
    const message answer = {.word = STORED, .map.id = s->map.id, .number = s->replica.updates};
    post(x, i, SCHEDULER, &answer);
}

static void enter(system_t *x, int32_t i, const message *m) {
    server *s = &x->s[i];
    if (!wefti_same_map(m->map.id, s->map.id)) return;
    if (wefti_same_map(s->map.view.made, s->replica.view.made)) return;
    if (!wefti_replica_enter(&s->replica, &s->map.view)) memset(s->part, 0, sizeof s->part);
    greet(x, i);
}

static void hears_scheduler(system_t *x, int32_t i) {
    server *s = &x->s[i];
    const message m = takes(x, SCHEDULER, i);
    if (m.word == MAP) store(x, i, &m);
    if (m.word == GO) enter(x, i, &m);
    if (m.word != LEAD || !wefti_subject_obeys(&s->subject, m.number)) return;
    s->stand = OBEYS;
    message answer = {.word = PROMISE, .number = m.number, .map = s->map};
    post(x, i, SCHEDULER, &answer);
    tell_caught_up(x, i);
}

static void hears_server(system_t *x, int32_t i, int32_t from) {
    server *s = &x->s[i];
    wefti_replica *r = &s->replica;
    const message m = takes(x, from, i);
    const wefti_servers caught_up = r->caught_up;
    switch (wefti_replica_hears(r, from, &m.replica)) {
    case WEFTI_REPLICA_APPLY: {
        const int32_t parts = r->phase == WEFTI_REPLICA_FILLS ? r->parts : PARTS;
        for (int32_t k = 0; k < parts; k++) apply(s, k, m.replica.push);
        break;
    }
    case WEFTI_REPLICA_TAKE:
        s->part[m.replica.part] = m.part;
        break;
    case WEFTI_REPLICA_RESEND:
        for (int64_t n = r->has[from] + 1; n <= r->updates; n++)
            to_replica(x, i, from, wefti_replica_update(r, n));
        break;
    default:
        break;
    }
    if (r->caught_up != caught_up) tell_caught_up(x, i);
    if (wefti_replica_answers(r, &m.replica)) to_replica(x, i, from, wefti_replica_greeting(r));
}

static void send_part(system_t *x, int32_t i) {
    server *s = &x->s[i];
    message m = {.word = REPLICA, .replica = wefti_replica_sends_part(&s->replica, PARTS)};
    m.part = s->part[m.replica.part];
    post(x, i, __builtin_ctzll(s->replica.view.filling), &m);
}

/* ---- workers ---- */

static bool leads(const server *s) {
    return s->stand != DEAD && s->replica.phase == WEFTI_REPLICA_LEADS;
}

static bool may_push(const system_t *x, int32_t i, int32_t w) {
    const server *s = &x->s[i];
    return w < most.workers && leads(s) && !s->push[w].is && x->acknowledged[w] < most.pushes &&
           wefti_replica_has_room(&s->replica);
}

static void push(system_t *x, int32_t i, int32_t w) {
    server *s = &x->s[i];
    wefti_replica *r = &s->replica;
    const int32_t number = x->acknowledged[w] + 1;
    s->push[w] = (waiting){true, number, r->updates, r->view.made, {{0}}};
    if (s->part[0].last[w] >= number) return; /* it has it */
    const wefti_push p = {w, number};
    s->push[w].updates = wefti_replica_pushes(r, p);
    for (int32_t k = 0; k < PARTS; k++) apply(s, k, p);
    for (int32_t k = 0; k < SERVERS; k++)
        if (wefti_has_server(wefti_replica_hearers(r), k))
            to_replica(x, i, k, wefti_replica_update(r, r->updates));
}

static bool is_void(const server *s, const waiting *v) {
    return !leads(s) || !wefti_same_map(v->made, s->replica.view.made);
}

static bool may_answer(const server *s, const waiting *v) {
    return v->is && (is_void(s, v) || s->replica.acknowledged >= v->updates);
}

static void answer_push(system_t *x, int32_t i, int32_t w) {
    server *s = &x->s[i];
    if (!is_void(s, &s->push[w]) && s->push[w].push > x->acknowledged[w])
        x->acknowledged[w] = s->push[w].push;
    memset(&s->push[w], 0, sizeof s->push[w]);
}

/* Only who hears a scheduler may be read. */
static bool may_read(const system_t *x, int32_t i) {
    const server *s = &x->s[i];
    return leads(s) && s->stand == OBEYS && !s->reading.is && x->reads < most.reads;
}

static void read_shard(system_t *x, int32_t i) {
    server *s = &x->s[i];
    x->reads++;
    s->reading = (waiting){true, 0, s->replica.updates, s->replica.view.made, s->part[0]};
    for (int32_t w = 0; w < WORKERS; w++) {
        assert_int_equal(s->part[0].last[w], s->part[1].last[w]);
        assert_true(s->part[0].last[w] >= x->acknowledged[w]);
        assert_true(s->part[0].last[w] >= x->seen.last[w]);
    }
}

static void answer_reading(system_t *x, int32_t i) {
    server *s = &x->s[i];
    const bool given = !is_void(s, &s->reading) && s->stand >= CALLS;
    for (int32_t w = 0; given && w < WORKERS; w++)
        if (s->reading.read.last[w] > x->seen.last[w]) x->seen.last[w] = s->reading.read.last[w];
    memset(&s->reading, 0, sizeof s->reading);
}

/* ---- the scheduler ---- */

static void say(system_t *x, int32_t i, word w) {
    const message m = {.word = w, .number = x->c.ruler.id.epoch, .map = x->c.map};
    if (wefti_has_server(x->c.connected, i)) post(x, SCHEDULER, i, &m);
}
static void say_all(system_t *x, word w) {
    for (int32_t i = 0; i < SERVERS; i++) say(x, i, w);
}

static void propose(system_t *x, const wefti_shard_view *view, bool made) {
    scheduler *c = &x->c;
    c->map.id = wefti_ruler_proposes(&c->ruler, c->here);
    c->map.of = c->ruler.of;
    c->map.view = *view;
    if (made) {
        c->map.view.made = c->map.id;
        c->caught_up = 0;
        for (int32_t i = 0; i < WEFTI_SERVERS_MOST; i++) c->updates[i] = -1;
    }
    say_all(x, MAP);
}

static wefti_view_facts facts(const scheduler *c) {
    static const int32_t order[SERVERS] = {0, 1, 2};
    return (wefti_view_facts){.here = c->here,
                              .leaving = c->leaving,
                              .caught_up = c->caught_up,
                              .updates = c->updates,
                              .order = order,
                              .order_count = SERVERS,
                              .copies = most.copies};
}

/* Makes the next map if one is needed, and none is under way. */
static void decide(system_t *x) {
    scheduler *c = &x->c;
    wefti_shard_view next;
    const wefti_view_facts f = facts(c);
    if (c->ruler.phase == WEFTI_RULER_GATHERS && wefti_ruler_may_begin(&c->ruler, 7)) {
        c->here |= c->map.of.voters & ~wefti_server(WEFTI_SCHEDULER);
        propose(x, &c->map.view, true); /* nobody knows who has entered the view */
        return;
    }
    if (c->ruler.phase != WEFTI_RULER_RULES) return;
    const bool changes = wefti_view_next(&c->map.view, &f, &next);
    const wefti_servers servers = c->map.of.voters & ~wefti_server(WEFTI_SCHEDULER);
    if (changes && next.members)
        propose(x, &next, true);
    else if (servers != c->here)
        propose(x, &c->map.view, false);
}

static void hears_promise(system_t *x, int32_t i, const message *m) {
    scheduler *c = &x->c;
    if (wefti_ruler_hears(&c->ruler, i, m->number, m->map.id, m->map.of)) c->map = m->map;
    /* It missed what was said while it was away. */
    if (c->ruler.phase != WEFTI_RULER_GATHERS) say(x, i, MAP);
    if (c->ruler.phase == WEFTI_RULER_RULES) say(x, i, GO);
}

/* Whether the server has halted for the present view, which waits for its updates. */
static bool tells_updates(const scheduler *c, const message *m) {
    return c->map.view.primary < 0 && !wefti_map_is_later(c->map.view.made, m->map.id);
}

static void scheduler_hears(system_t *x, int32_t i) {
    scheduler *c = &x->c;
    const message m = takes(x, i, SCHEDULER);
    if (m.word == HELLO && c->ruler.phase != WEFTI_RULER_GATHERS && !wefti_has_server(c->here, i)) {
        memset(&x->s[i], 0, sizeof x->s[i]); /* it was given up, is told so, and ends */
        return;
    }
    if (m.word == HELLO) {
        c->here |= wefti_server(i);
        c->connected |= wefti_server(i);
        if (wefti_ruler_meets(&c->ruler, m.number))
            say_all(x, LEAD);
        else
            say(x, i, LEAD);
    }
    if (m.word == PROMISE) hears_promise(x, i, &m);
    if (m.word == STORED) {
        if (tells_updates(c, &m)) c->updates[i] = m.number < 0 ? 0 : m.number;
        if (wefti_ruler_counts(&c->ruler, i, m.map.id))
            say_all(x, GO);
        else if (c->ruler.phase == WEFTI_RULER_RULES && wefti_same_map(m.map.id, c->map.id))
            say(x, i, GO);
    }
    if (m.word == CAUGHT && wefti_same_map(m.map.id, c->map.view.made))
        c->caught_up |= (wefti_servers)m.number;
    decide(x);
}

#endif
