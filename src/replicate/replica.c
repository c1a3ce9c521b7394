#include "replicate/replica.h"

wefti_replica wefti_replica_begin(int32_t me, bool has_state) {
    return (wefti_replica){.me = me, .view.primary = -1, .updates = has_state ? 0 : -1};
}

/* Whether the server that fills has all that is acknowledged, and can bring up to date each member
 * that has less than it. */
static bool catches_up(const wefti_replica *r, int32_t s) {
    return wefti_has_server(r->view.filling & r->met, s) && r->has[s] >= r->acknowledged &&
           r->acknowledged >= r->filled_from;
}

/* Members have all that is acknowledged, and so has the server that has caught up. */
static void acknowledge(wefti_replica *r) {
    int64_t least = r->updates;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++)
        if (s != r->me && wefti_has_server(r->view.members | r->caught_up, s) && r->has[s] < least)
            least = r->has[s];
    if (least > r->acknowledged) r->acknowledged = least;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++)
        if (catches_up(r, s)) r->caught_up |= wefti_server(s);
}

void wefti_replica_halt(wefti_replica *r) {
    if (r->phase != WEFTI_REPLICA_OUT) r->phase = WEFTI_REPLICA_HALTED;
}

bool wefti_replica_enter(wefti_replica *r, const wefti_shard_view *view) {
    const bool member = wefti_has_server(view->members, r->me);
    r->view = *view;
    r->parts = 0;
    r->met = r->caught_up = 0;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++) r->has[s] = -1;
    r->phase = view->primary == r->me                   ? WEFTI_REPLICA_LEADS
               : member && view->primary >= 0           ? WEFTI_REPLICA_FOLLOWS
               : member                                 ? WEFTI_REPLICA_HALTED
               : wefti_has_server(view->filling, r->me) ? WEFTI_REPLICA_FILLS
                                                        : WEFTI_REPLICA_OUT;
    if (!member) r->updates = r->acknowledged = -1;
    if (r->phase == WEFTI_REPLICA_LEADS) acknowledge(r); /* all, if it is alone */
    return member;
}

/* Whether it hears a primary. A server may fill in a view that has none yet. */
static bool obeys(const wefti_replica *r) {
    return r->view.primary >= 0 &&
           (r->phase == WEFTI_REPLICA_FILLS || r->phase == WEFTI_REPLICA_FILLED ||
            r->phase == WEFTI_REPLICA_FOLLOWS);
}

wefti_servers wefti_replica_greets(const wefti_replica *r) {
    if (r->phase == WEFTI_REPLICA_LEADS)
        return (r->view.members | r->view.filling) & ~wefti_server(r->me) & ~r->met;
    return obeys(r) ? wefti_server(r->view.primary) : 0;
}

wefti_replica_message wefti_replica_greeting(const wefti_replica *r) {
    const bool leads = r->phase == WEFTI_REPLICA_LEADS, fills = r->phase == WEFTI_REPLICA_FILLS;
    return (wefti_replica_message){.word = leads ? WEFTI_REPLICA_ASK : WEFTI_REPLICA_HAVE,
                                   .made = r->view.made,
                                   .update = fills ? -1 : r->updates};
}

void wefti_replica_misses(wefti_replica *r, int32_t server) {
    r->met &= ~wefti_server(server);
}

bool wefti_replica_has_room(const wefti_replica *r) {
    return r->updates - r->acknowledged < WEFTI_REPLICA_WINDOW;
}

int64_t wefti_replica_pushes(wefti_replica *r, wefti_push push) {
    r->window[++r->updates % WEFTI_REPLICA_WINDOW] = push;
    acknowledge(r); /* at once, if it is alone */
    return r->updates;
}

wefti_servers wefti_replica_hearers(const wefti_replica *r) {
    return r->met;
}

wefti_replica_message wefti_replica_update(const wefti_replica *r, int64_t number) {
    return (wefti_replica_message){.word = WEFTI_REPLICA_UPDATE,
                                   .made = r->view.made,
                                   .update = number,
                                   .acknowledged = r->acknowledged,
                                   .push = r->window[number % WEFTI_REPLICA_WINDOW]};
}

bool wefti_replica_has_part(const wefti_replica *r, int32_t parts) {
    return r->phase == WEFTI_REPLICA_LEADS && (r->view.filling & r->met & ~r->caught_up) &&
           r->parts < parts;
}

wefti_replica_message wefti_replica_sends_part(wefti_replica *r, int32_t parts) {
    if (!r->parts) r->filled_from = r->updates;
    return (wefti_replica_message){.word = WEFTI_REPLICA_PART,
                                   .made = r->view.made,
                                   .update = r->updates,
                                   .part = r->parts++,
                                   .parts = parts};
}

/* ---- messages ---- */

static wefti_replica_act hears_update(wefti_replica *r, const wefti_replica_message *m) {
    const bool fills = r->phase == WEFTI_REPLICA_FILLS;
    if (!fills && m->update != r->updates + 1) return WEFTI_REPLICA_NOTHING; /* it has it */
    if (m->acknowledged > r->acknowledged) r->acknowledged = m->acknowledged;
    r->updates = m->update;
    r->window[m->update % WEFTI_REPLICA_WINDOW] = m->push;
    return WEFTI_REPLICA_APPLY;
}

static wefti_replica_act hears_part(wefti_replica *r, const wefti_replica_message *m) {
    if (r->phase == WEFTI_REPLICA_FOLLOWS || (m->part && m->part != r->parts))
        return WEFTI_REPLICA_NOTHING;
    r->parts = m->part + 1;
    r->phase = r->parts == m->parts ? WEFTI_REPLICA_FILLED : WEFTI_REPLICA_FILLS;
    if (!m->part) r->acknowledged = m->update; /* its window begins here */
    r->updates = m->update;
    return WEFTI_REPLICA_TAKE;
}

/* Its first word in this view, or since its connection was lost, says what it has not got: the
 * window has that, or else it is filled from the begin. */
static wefti_replica_act hears_have(wefti_replica *r, int32_t from, int64_t updates) {
    if (!wefti_has_server(r->view.members | r->view.filling, from)) return WEFTI_REPLICA_NOTHING;
    const bool met = wefti_has_server(r->met, from);
    r->met |= wefti_server(from);
    if (!met && updates < r->acknowledged) {
        r->parts = 0;
        return WEFTI_REPLICA_NOTHING;
    }
    r->has[from] = updates;
    acknowledge(r);
    return met ? WEFTI_REPLICA_ACKNOWLEDGE : WEFTI_REPLICA_RESEND;
}

wefti_replica_act wefti_replica_hears(wefti_replica *r, int32_t from,
                                      const wefti_replica_message *m) {
    if (!wefti_same_map(m->made, r->view.made)) return WEFTI_REPLICA_NOTHING;
    const bool leads = r->phase == WEFTI_REPLICA_LEADS;
    if (leads && m->word == WEFTI_REPLICA_HAVE) return hears_have(r, from, m->update);
    if (obeys(r) && m->word == WEFTI_REPLICA_UPDATE) return hears_update(r, m);
    if (obeys(r) && m->word == WEFTI_REPLICA_PART) return hears_part(r, m);
    return WEFTI_REPLICA_NOTHING;
}

bool wefti_replica_answers(const wefti_replica *r, const wefti_replica_message *m) {
    return obeys(r) && wefti_same_map(m->made, r->view.made) &&
           (m->word == WEFTI_REPLICA_ASK || r->phase != WEFTI_REPLICA_FILLS);
}
