#include "replicate/holder.h"

void wefti_holder_begin(wefti_holder *h) {
    for (int32_t i = 0; i < h->shards; i++) {
        h->held[i].replica = wefti_replica_begin(h->me, true);
        h->views[i] = h->held[i].replica.view;
    }
}

/* ---- answers ---- */

typedef enum fate { FATE_WAITS, FATE_GIVEN, FATE_REFUSED } fate;

/* Another view may have other members, and may be entered before the server knows it: then a push
 * is not acknowledged. A server without a scheduler may be given up, and others written to. */
static fate fate_of(const wefti_holder *h, const wefti_replica *r, const wefti_unanswered *w) {
    if (r->phase != WEFTI_REPLICA_LEADS) return FATE_REFUSED;
    if (w->reads && h->stand != WEFTI_HOLDER_OBEYS) return FATE_REFUSED;
    return r->acknowledged >= w->updates ? FATE_GIVEN : FATE_WAITS;
}

static void settle(wefti_holder *h, int32_t shard) {
    wefti_held *held = &h->held[shard];
    int32_t kept = 0;
    for (int32_t i = 0; i < held->waits; i++) {
        const wefti_unanswered w = held->waiting[i];
        const fate f = fate_of(h, &held->replica, &w);
        if (f == FATE_WAITS)
            held->waiting[kept++] = w;
        else
            h->calls->answer(h->self, shard, w.ticket, f == FATE_GIVEN);
    }
    held->waits = kept;
}

static void settle_all(wefti_holder *h) {
    for (int32_t i = 0; i < h->shards; i++) settle(h, i);
}

static void wait_for(wefti_holder *h, int32_t shard, int64_t ticket, bool reads) {
    wefti_held *held = &h->held[shard];
    held->waiting[held->waits++] = (wefti_unanswered){ticket, held->replica.updates, reads};
    settle(h, shard);
}

/* ---- the scheduler ---- */

static void say(wefti_holder *h, wefti_map_message m) {
    h->calls->to_scheduler(h->self, &m);
}

void wefti_holder_calls_scheduler(wefti_holder *h) {
    if (h->stand == WEFTI_HOLDER_ENDS) return;
    h->stand = WEFTI_HOLDER_CALLS;
    say(h, (wefti_map_message){.word = WEFTI_MAP_HELLO, .epoch = h->subject.epoch});
    if (h->leaves) say(h, (wefti_map_message){.word = WEFTI_MAP_LEAVES});
}

void wefti_holder_loses_scheduler(wefti_holder *h) {
    if (h->stand == WEFTI_HOLDER_ENDS) return;
    h->stand = WEFTI_HOLDER_AWAY;
    settle_all(h);
}

void wefti_holder_leaves(wefti_holder *h) {
    if (h->leaves) return;
    h->leaves = true;
    if (h->stand >= WEFTI_HOLDER_CALLS) say(h, (wefti_map_message){.word = WEFTI_MAP_LEAVES});
}

static void tell_caught_up(wefti_holder *h, int32_t shard) {
    const wefti_replica *r = &h->held[shard].replica;
    if (r->phase != WEFTI_REPLICA_LEADS || !r->caught_up) return;
    say(h, (wefti_map_message){.word = WEFTI_MAP_CAUGHT,
                               .id = r->view.made,
                               .shard = shard,
                               .caught_up = r->caught_up});
}

static void obey(wefti_holder *h, int64_t epoch) {
    if (!wefti_subject_obeys(&h->subject, epoch)) return;
    h->stand = WEFTI_HOLDER_OBEYS;
    say(h, (wefti_map_message){.word = WEFTI_MAP_PROMISE,
                               .epoch = epoch,
                               .id = h->subject.stored,
                               .of = h->of,
                               .views = h->views});
    for (int32_t i = 0; i < h->shards; i++) tell_caught_up(h, i);
}

/* Whether the scheduler waits for its word before the shard has a primary again. */
static bool is_asked(const wefti_holder *h, const wefti_shard_view *v) {
    return v->primary < 0 && (wefti_has_server(v->members, h->me) || v->last == h->me);
}

static void store(wefti_holder *h, const wefti_map_message *m) {
    if (!wefti_subject_stores(&h->subject, m->id)) return;
    h->of = m->of;
    for (int32_t i = 0; i < h->shards; i++) {
        wefti_replica *r = &h->held[i].replica;
        h->views[i] = m->views[i];
        if (!wefti_same_map(h->views[i].made, r->view.made)) wefti_replica_halt(r);
        settle(h, i);
        if (is_asked(h, &h->views[i]))
            say(h, (wefti_map_message){
                       .word = WEFTI_MAP_TELLS, .id = m->id, .shard = i, .updates = r->updates});
    }
    say(h, (wefti_map_message){.word = WEFTI_MAP_STORED, .id = m->id});
}

static void greet(wefti_holder *h, int32_t shard, wefti_servers some) {
    const wefti_replica *r = &h->held[shard].replica;
    const wefti_replica_message m = wefti_replica_greeting(r);
    for (some &= wefti_replica_greets(r); some; some &= some - 1)
        h->calls->to_server(h->self, __builtin_ctzll(some), shard, &m);
}

static void enter(wefti_holder *h, wefti_map_id id) {
    if (!wefti_same_map(id, h->subject.stored)) return;
    for (int32_t i = 0; i < h->shards; i++) {
        wefti_replica *r = &h->held[i].replica;
        if (wefti_same_map(h->views[i].made, r->view.made)) continue;
        if (!wefti_replica_enter(r, &h->views[i])) h->calls->drop(h->self, i);
        greet(h, i, ~(wefti_servers)0);
    }
}

static void end(wefti_holder *h) {
    h->stand = WEFTI_HOLDER_ENDS;
    for (int32_t i = 0; i < h->shards; i++) wefti_replica_halt(&h->held[i].replica);
    settle_all(h);
}

void wefti_holder_hears_scheduler(wefti_holder *h, const wefti_map_message *m) {
    if (h->stand == WEFTI_HOLDER_ENDS) return;
    if (m->word == WEFTI_MAP_LEAD) obey(h, m->epoch);
    if (m->word == WEFTI_MAP_MAP) store(h, m);
    if (m->word == WEFTI_MAP_GO) enter(h, m->id);
    if (m->word == WEFTI_MAP_ENDS) end(h);
}

/* ---- other servers ---- */

static void send_updates(wefti_holder *h, int32_t shard, wefti_servers to, int64_t after) {
    const wefti_replica *r = &h->held[shard].replica;
    for (int64_t n = after + 1; n <= r->updates; n++) {
        const wefti_replica_message m = wefti_replica_update(r, n);
        for (wefti_servers of = to; of; of &= of - 1)
            h->calls->to_server(h->self, __builtin_ctzll(of), shard, &m);
    }
}

void wefti_holder_hears_server(wefti_holder *h, int32_t from, int32_t shard,
                               const wefti_replica_message *m) {
    wefti_held *held = &h->held[shard];
    wefti_replica *r = &held->replica;
    const wefti_servers caught_up = r->caught_up;
    switch (wefti_replica_hears(r, from, m)) {
    case WEFTI_REPLICA_APPLY:
        h->calls->apply(h->self, shard, m->update, m->push,
                        r->phase == WEFTI_REPLICA_FILLS ? r->parts : held->parts);
        break;
    case WEFTI_REPLICA_TAKE:
        h->calls->take(h->self, shard, m->part);
        break;
    case WEFTI_REPLICA_RESEND:
        send_updates(h, shard, wefti_server(from), r->has[from]);
        break;
    default:
        break;
    }
    if (r->caught_up != caught_up) tell_caught_up(h, shard);
    settle(h, shard);
    if (!wefti_replica_answers(r, m)) return;
    const wefti_replica_message have = wefti_replica_greeting(r);
    h->calls->to_server(h->self, from, shard, &have);
}

void wefti_holder_misses(wefti_holder *h, int32_t server) {
    for (int32_t i = 0; i < h->shards; i++) {
        wefti_replica_misses(&h->held[i].replica, server);
        greet(h, i, wefti_server(server));
    }
}

bool wefti_holder_sends_part(wefti_holder *h, int32_t shard) {
    wefti_held *held = &h->held[shard];
    wefti_replica *r = &held->replica;
    if (!wefti_replica_has_part(r, held->parts)) return false;
    const wefti_replica_message m = wefti_replica_sends_part(r, held->parts);
    h->calls->to_server(h->self, __builtin_ctzll(r->view.filling), shard, &m);
    return true;
}

/* ---- workers ---- */

wefti_holder_reply wefti_holder_pushes(wefti_holder *h, int32_t shard, wefti_push push,
                                       int64_t ticket) {
    wefti_held *held = &h->held[shard];
    wefti_replica *r = &held->replica;
    if (r->phase != WEFTI_REPLICA_LEADS) return WEFTI_HOLDER_ELSEWHERE;
    if (held->waits == WEFTI_HOLDER_WAITS) return WEFTI_HOLDER_BUSY;
    if (!h->calls->has(h->self, shard, push)) {
        if (!wefti_replica_has_room(r)) return WEFTI_HOLDER_BUSY;
        const int64_t number = wefti_replica_pushes(r, push);
        h->calls->apply(h->self, shard, number, push, held->parts);
        send_updates(h, shard, wefti_replica_hearers(r), number - 1);
    }
    wait_for(h, shard, ticket, false);
    return WEFTI_HOLDER_WAITS_NOW;
}

wefti_holder_reply wefti_holder_reads(wefti_holder *h, int32_t shard, int64_t ticket) {
    const wefti_held *held = &h->held[shard];
    if (held->replica.phase != WEFTI_REPLICA_LEADS || h->stand != WEFTI_HOLDER_OBEYS)
        return WEFTI_HOLDER_ELSEWHERE;
    if (held->waits == WEFTI_HOLDER_WAITS) return WEFTI_HOLDER_BUSY;
    wait_for(h, shard, ticket, true);
    return WEFTI_HOLDER_WAITS_NOW;
}
