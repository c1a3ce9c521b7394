/* Three servers, a scheduler and two workers around one shard: their network, the shard's state,
 * and what workers saw. The scheduler is a governor, and each server has a holder. */
#ifndef WEFT_TEST_REPLICATE_PEOPLE_H
#define WEFT_TEST_REPLICATE_PEOPLE_H

#include "replicate/governor.h"
#include "replicate/holder.h"
#include "support.h"

enum { SERVERS = 3, WORKERS = 2, PARTS = 2, QUEUE = 12, SCHEDULER = SERVERS, NODES, READS = -1 };

/* A part of a shard's state: the number of the last push of each worker that it has. */
typedef struct content {
    int32_t last[WORKERS];
} content;

typedef struct message {
    bool between; /* servers */
    union {
        wefti_map_message map; /* its views are `view` */
        wefti_replica_message replica;
    };
    wefti_shard_view view;
    content part;
} message;

typedef struct channel {
    int32_t count;
    bool broken; /* until the sender notices it, what it sends is lost */
    message of[QUEUE];
} channel;

typedef struct server {
    bool alive;
    wefti_holder holder;
    wefti_held held;
    wefti_shard_view view;
    content part[PARTS], came, read; /* `came` with the message that is heard */
} server;

typedef struct scheduler {
    wefti_governor governor;
    wefti_shard_view view;
    wefti_shard_facts facts;
} scheduler;

typedef struct system_t {
    server s[SERVERS];
    scheduler c;
    channel q[NODES][NODES]; /* from, to */
    int32_t acknowledged[WORKERS], kills, losses, restarts, drains, reads;
    wefti_servers given_up;
    content seen; /* read, by anybody */
} system_t;

typedef struct limits {
    const char *name;
    int32_t copies, workers, pushes, kills, losses, restarts, drains, reads;
} limits;

static limits most;

/* ---- the network ---- */

static void post(system_t *x, int32_t from, int32_t to, const message *m) {
    channel *q = &x->q[from][to];
    if (q->broken || (to != SCHEDULER && !x->s[to].alive)) return;
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

static void post_map(system_t *x, int32_t from, int32_t to, const wefti_map_message *m) {
    message out = {.map = *m};
    if (m->views) out.view = *m->views;
    out.map.views = NULL;
    post(x, from, to, &out);
}

/* ---- a server ---- */

typedef struct seat {
    system_t *x;
    int32_t i;
} seat;

static void to_scheduler(void *self, const wefti_map_message *m) {
    const seat *t = self;
    post_map(t->x, t->i, SCHEDULER, m);
}

static void to_server(void *self, int32_t to, int32_t shard, const wefti_replica_message *m) {
    const seat *t = self;
    message out = {.between = true, .replica = *m};
    assert_int_equal(shard, 0);
    assert_true(to >= 0 && to < SERVERS);
    if (m->word == WEFTI_REPLICA_PART) out.part = t->x->s[t->i].part[m->part];
    post(t->x, t->i, to, &out);
}

static bool has(void *self, int32_t shard, wefti_push push) {
    const seat *t = self;
    return t->x->s[t->i].part[shard].last[push.worker] >= push.number;
}

/* Each update is the next one of its worker: none is lost, none comes twice. */
static void apply(void *self, int32_t shard, int64_t number, wefti_push push, int32_t parts) {
    const seat *t = self;
    server *s = &t->x->s[t->i];
    assert_int_equal(number, s->held.replica.updates);
    for (int32_t k = shard; k < parts; k++) {
        assert_int_equal(push.number, s->part[k].last[push.worker] + 1);
        s->part[k].last[push.worker]++;
    }
}

static void take(void *self, int32_t shard, int32_t part) {
    const seat *t = self;
    server *s = &t->x->s[t->i];
    s->part[shard + part] = s->came;
}

static void drop(void *self, int32_t shard) {
    const seat *t = self;
    memset(&t->x->s[t->i].part[shard], 0, sizeof t->x->s[t->i].part);
}

static int64_t ticket_of(int32_t worker, int64_t number) {
    return number * WORKERS + worker;
}

static void answer(void *self, int32_t shard, int64_t ticket, bool given) {
    const seat *t = self;
    system_t *x = t->x;
    assert_int_equal(shard, 0);
    if (given && ticket == READS) {
        const content *read = &x->s[t->i].read;
        for (int32_t w = 0; w < WORKERS; w++)
            if (read->last[w] > x->seen.last[w]) x->seen.last[w] = read->last[w];
    } else if (given) {
        int32_t *acknowledged = &x->acknowledged[ticket % WORKERS];
        const int32_t number = (int32_t)(ticket / WORKERS);
        if (number > *acknowledged) *acknowledged = number;
    }
    if (ticket == READS) memset(&x->s[t->i].read, 0, sizeof x->s[t->i].read);
}

/* The holder of a server, after the system was copied. */
static wefti_holder *holder_of(system_t *x, int32_t i) {
    static const wefti_holder_calls calls = {to_scheduler, to_server, has,   apply,
                                             take,         drop,      answer};
    static seat seats[SERVERS];
    wefti_holder *h = &x->s[i].holder;
    seats[i] = (seat){x, i};
    h->held = &x->s[i].held;
    h->views = &x->s[i].view;
    h->calls = &calls;
    h->self = &seats[i];
    return h;
}

/* The process of a server ends; what it has sent still comes. */
static void stop(system_t *x, int32_t i) {
    memset(&x->s[i], 0, sizeof x->s[i]);
    for (int32_t k = 0; k < NODES; k++) empty(&x->q[k][i], false);
}

static void hears_scheduler(system_t *x, int32_t i) {
    message m = takes(x, SCHEDULER, i);
    m.map.views = &m.view;
    wefti_holder_hears_scheduler(holder_of(x, i), &m.map);
    if (x->s[i].holder.stand != WEFTI_HOLDER_ENDS) return;
    assert_true(x->s[i].holder.leaves || wefti_has_server(x->given_up, i));
    stop(x, i);
}

static void hears_server(system_t *x, int32_t i, int32_t from) {
    const message m = takes(x, from, i);
    x->s[i].came = m.part;
    wefti_holder_hears_server(holder_of(x, i), from, 0, &m.replica);
    memset(&x->s[i].came, 0, sizeof x->s[i].came);
}

/* ---- workers ---- */

static bool waits(const server *s, int64_t ticket) {
    for (int32_t k = 0; k < s->held.waits; k++)
        if (s->held.waiting[k].ticket == ticket) return true;
    return false;
}

static bool leads(const server *s) {
    return s->alive && s->held.replica.phase == WEFTI_REPLICA_LEADS;
}

static bool may_push(const system_t *x, int32_t i, int32_t w) {
    return w < most.workers && leads(&x->s[i]) && x->acknowledged[w] < most.pushes &&
           !waits(&x->s[i], ticket_of(w, x->acknowledged[w] + 1));
}

static void push(system_t *x, int32_t i, int32_t w) {
    const wefti_push p = {w, x->acknowledged[w] + 1};
    const wefti_holder_reply reply =
        wefti_holder_pushes(holder_of(x, i), 0, p, ticket_of(w, p.number));
    assert_int_equal(reply, WEFTI_HOLDER_WAITS_NOW);
}

static bool may_read(const system_t *x, int32_t i) {
    return leads(&x->s[i]) && x->reads < most.reads && !waits(&x->s[i], READS);
}

/* Also asks a server that does not hear the scheduler: it has to refuse. */
static void read_shard(system_t *x, int32_t i) {
    server *s = &x->s[i];
    const content before = x->seen;
    const int32_t acknowledged[] = {x->acknowledged[0], x->acknowledged[1]};
    s->read = s->part[0];
    const content read = s->read;
    if (wefti_holder_reads(holder_of(x, i), 0, READS) != WEFTI_HOLDER_WAITS_NOW) {
        memset(&s->read, 0, sizeof s->read);
        return;
    }
    x->reads++;
    for (int32_t w = 0; w < WORKERS; w++) {
        assert_int_equal(read.last[w], s->part[1].last[w]);
        assert_true(read.last[w] >= acknowledged[w]);
        assert_true(read.last[w] >= before.last[w]);
    }
}

/* ---- the scheduler ---- */

static void say(void *self, int32_t server, const wefti_map_message *m) {
    post_map(self, SCHEDULER, server, m);
}

static wefti_governor *governor_of(system_t *x) {
    wefti_governor *g = &x->c.governor;
    g->views = &x->c.view;
    g->facts = &x->c.facts;
    g->self = x;
    return g;
}

/* A scheduler that knows nothing. */
static void begin_scheduler(system_t *x) {
    memset(&x->c, 0, sizeof x->c);
    x->c.governor = (wefti_governor){
        .shards = 1, .copies = most.copies, .expected = wefti_server(SERVERS) - 1, .say = say};
    x->c.view.primary = x->c.view.last = -1;
}

static void scheduler_hears(system_t *x, int32_t i) {
    message m = takes(x, i, SCHEDULER);
    m.map.views = &m.view;
    wefti_governor_hears(governor_of(x), i, &m.map);
}

#endif
