/* Runs posts. A round goes on when its messages are there. Posts progress in any order. */
#include <string.h>

#include "base/digest/digest.h"
#include "comm/p2p/p2p.h"

static wefti_p2p_header header_to(wefti_p2p_channel *channel, int32_t member, wefti_p2p_kind kind) {
    wefti_p2p_credit *credit = &channel->credit[member];
    credit->reported = credit->consumed;
    return (wefti_p2p_header){.kind = kind, .channel = channel->id, .consumed = credit->consumed};
}

static uint32_t text_bytes(const char *text) {
    size_t n = strlen(text);
    return (uint32_t)(n < WEFTI_P2P_TEXT ? n : WEFTI_P2P_TEXT - 1);
}

/* --- sends --- */

/* A tag for data that follows its header; 0 is the stream's tag. Tags repeat so late that no data
 * with an old tag can still wait for its receiver. */
static uint32_t next_tag(wefti_p2p_peer *peer) {
    if (++peer->tag == 0) peer->tag = 1;
    return peer->tag;
}

/* false: later. */
static bool send_one(wefti_p2p_world *w, wefti_p2p_post *post, int64_t i) {
    const wefti_commsched *plan = post->endpoint->plan;
    const wefti_commsched_message *m = &plan->send[i];
    const wefti_commsched_partner *partner = &plan->partner[m->partner];
    bool small = m->request < 0;
    void *data = wefti_p2p_pointer(post, m->at);
    if (!w->spare) return false;
    wefti_p2p_header h = header_to(post->endpoint->channel, partner->member,
                                   small ? WEFTI_P2P_WITH_DATA : WEFTI_P2P_DATA_FOLLOWS);
    h.number = post->number;
    h.hash = post->hash;
    h.bytes = (uint64_t)m->bytes;
    h.message = (uint32_t)m->number;
    h.text = m->number == 0 ? text_bytes(plan->text) : 0;
    if (!small) h.tag = next_tag(&w->peer[partner->rank]);
    if (!wefti_p2p_send_header(w, partner->rank, &h, plan->text, data)) return false;
    if (small) {
        post->send_state[i] = WEFTI_P2P_DONE;
        /* Without a progress thread the post must wait for the send: after the post, the program
         * may compute for ever, or wait in another library for the receiver. */
        if (!w->transport.any_thread) {
            w->outgoing->post = post;
            post->unsent++;
        }
        return true;
    }
    weft_status status =
        w->transport.send(w->transport.context, partner->rank, h.tag, data, (size_t)m->bytes,
                          post->request + (size_t)m->request * w->request_bytes);
    if (status < 0) {
        wefti_p2p_peer_failed(w, partner->rank);
        return false;
    }
    post->send_state[i] = WEFTI_P2P_OPEN;
    post->open_message[post->open++] = i;
    post->open_sends++;
    return true;
}

/* --- one post --- */

static bool test_open(wefti_p2p_world *w, wefti_p2p_post *post) {
    const wefti_commsched *plan = post->endpoint->plan;
    bool happened = false;
    for (int32_t k = 0; k < post->open;) {
        int64_t i = post->open_message[k];
        bool sends = i < plan->sends;
        const wefti_commsched_message *m = sends ? &plan->send[i] : &plan->receive[i - plan->sends];
        size_t bytes = (size_t)m->bytes;
        int32_t rank = plan->partner[m->partner].rank;
        weft_status status = w->transport.test(
            w->transport.context, post->request + (size_t)m->request * w->request_bytes, &bytes);
        if (status == WEFT_PENDING) {
            k++;
            continue;
        }
        happened = true;
        post->open_message[k] = post->open_message[--post->open];
        post->open_sends -= sends;
        if (!sends) atomic_fetch_sub(&w->receiving, 1);
        if (status < 0) {
            wefti_p2p_peer_failed(w, rank);
            break;
        }
        if (!sends && bytes != (size_t)m->bytes) {
            wefti_p2p_break(w, rank, "rank %d has sent %zu bytes instead of %lld of %s", (int)rank,
                            bytes, (long long)m->bytes, plan->text);
            break;
        }
        *(sends ? &post->send_state[i] : &post->receive_state[i - plan->sends]) = WEFTI_P2P_DONE;
    }
    return happened;
}

static void run_ops(const wefti_p2p_post *post, int64_t first, int64_t end) {
    const wefti_commsched *plan = post->endpoint->plan;
    for (int64_t n = first; n < end; n++) {
        const wefti_commsched_op *op = &plan->op[n];
        const void *source[op->move.sources]; /* at least 1, at most WEFTI_COMM_MEMBERS */
        for (int32_t s = 0; s < op->move.sources; s++)
            source[s] = wefti_p2p_pointer(post, op->from[s]);
        wefti_move_run(&op->move, source, wefti_p2p_pointer(post, op->to));
    }
}

/* Sends that are due, then the operations if all is there; false: something is missing. */
static bool end_round(wefti_p2p_world *w, wefti_p2p_post *post, bool *happened) {
    const wefti_commsched *plan = post->endpoint->plan;
    const wefti_commsched_round *round = &plan->round[post->round];
    for (; post->sent < round->sends; post->sent++, *happened = true)
        if (!send_one(w, post, post->sent)) return false;
    while (post->received < plan->receives && post->receive_state[post->received] == WEFTI_P2P_DONE)
        post->received++;
    if (post->received < round->receives) return false;
    if (round->sends_first && post->open_sends > 0) return false;
    int64_t first = post->round > 0 ? round[-1].ops : 0;
    if (first < round->ops) {
        atomic_fetch_add(&w->receiving, 1);
        run_ops(post, first, round->ops);
        atomic_fetch_sub(&w->receiving, 1);
    }
    post->round++;
    return *happened = true;
}

static bool advance(wefti_p2p_world *w, wefti_p2p_post *post) {
    bool happened = test_open(w, post);
    for (bool goes_on = true; goes_on && !atomic_load(&w->broken);) {
        if (post->held > 0) wefti_p2p_release(w, post);
        goes_on = post->round < post->endpoint->plan->rounds && end_round(w, post, &happened);
    }
    return happened;
}

/* --- the posts of a channel --- */

/* A failed rank gives no more credit. Posts that need it begin, and fail. */
static bool has_credit(const wefti_p2p_world *w, const wefti_p2p_channel *channel,
                       const wefti_commsched *plan) {
    for (int64_t i = 0; i < plan->partners; i++) {
        const wefti_p2p_credit *credit = &channel->credit[plan->partner[i].member];
        if (plan->partner[i].sends > 0 && credit->sent - credit->acknowledged >= WEFTI_P2P_AHEAD &&
            !w->peer[plan->partner[i].rank].dead)
            return false;
    }
    return true;
}

static void begin(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post) {
    const wefti_commsched *plan = post->endpoint->plan;
    wefti_p2p_recent *recent = &channel->recent[post->number % WEFTI_P2P_RECENT];
    recent->hash = channel->hash = wefti_digest_number(channel->hash, plan->hash);
    post->hash = recent->hash;
    recent->call = post->call;
    size_t n = text_bytes(plan->text);
    memcpy(recent->text, plan->text, n);
    recent->text[n] = 0;
    channel->begun = post->number + 1;
    wefti_p2p_post **at = &channel->active;
    while (*at) at = &(*at)->next;
    post->next = NULL;
    *at = post;
    for (int64_t i = 0; i < plan->partners; i++) {
        const wefti_commsched_partner *partner = &plan->partner[i];
        channel->credit[partner->member].sent += partner->sends > 0;
        w->peer[partner->rank].partner++;
    }
    wefti_p2p_match_early(w, channel, post);
    for (int64_t i = 0; i < plan->partners; i++) {
        if (!w->peer[plan->partner[i].rank].dead) continue;
        (void)WEFT_RAISE(WEFT_E_PEER, "it has a part in %s", plan->text);
        wefti_p2p_peer_failed(w, plan->partner[i].rank);
    }
}

static void begin_posts(wefti_p2p_world *w, wefti_p2p_channel *channel) {
    while (channel->first && has_credit(w, channel, channel->first->endpoint->plan) &&
           !atomic_load(&w->broken)) {
        wefti_p2p_post *post = channel->first;
        channel->first = post->next;
        if (!channel->first) channel->last = &channel->first;
        begin(w, channel, post);
    }
}

static void send_credit(wefti_p2p_world *w, wefti_p2p_channel *channel, int32_t member) {
    wefti_p2p_credit *credit = &channel->credit[member];
    uint64_t reported = credit->reported;
    if (w->peer[channel->ranks[member]].dead) {
        credit->reported = credit->consumed; /* nobody wants to know */
        return;
    }
    wefti_p2p_header h = header_to(channel, member, WEFTI_P2P_CREDIT);
    if (wefti_p2p_send_header(w, channel->ranks[member], &h, NULL, NULL)) return;
    credit->reported = reported;
    w->owes = true;
}

static void finish(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post) {
    const wefti_commsched *plan = post->endpoint->plan;
    post->finished = true;
    w->under_way--;
    for (int64_t i = 0; i < plan->partners; i++) {
        const wefti_commsched_partner *partner = &plan->partner[i];
        wefti_p2p_credit *credit = &channel->credit[partner->member];
        credit->consumed += partner->receives > 0;
        if (credit->consumed - credit->reported >= WEFTI_P2P_AHEAD / 2)
            send_credit(w, channel, partner->member);
        w->peer[partner->rank].partner--;
    }
}

static bool progress_channel(wefti_p2p_world *w, wefti_p2p_channel *channel) {
    bool happened = false;
    begin_posts(w, channel);
    for (wefti_p2p_post **at = &channel->active; *at && !atomic_load(&w->broken);) {
        wefti_p2p_post *post = *at;
        happened |= advance(w, post);
        if (post->round < post->endpoint->plan->rounds || post->open > 0 || post->unsent > 0) {
            at = &post->next;
            continue;
        }
        *at = post->next;
        finish(w, channel, post);
        happened = true;
    }
    return happened;
}

/* --- all of them --- */

void wefti_p2p_post_begin(wefti_p2p_post *post, const void *source, void *destination) {
    const wefti_commsched *plan = post->endpoint->plan;
    post->source = source;
    post->destination = destination;
    post->finished = post->asked = false;
    post->round = post->sent = post->received = 0;
    post->open = post->open_sends = post->held = post->unsent = 0;
    memset(post->send_state, WEFTI_P2P_NOTHING, (size_t)(plan->sends + plan->receives));
}

void wefti_p2p_append(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post) {
    post->next = NULL;
    post->number = channel->posted++;
    *channel->last = post;
    channel->last = &post->next;
    w->under_way++;
    if (!channel->busy) {
        channel->busy = true;
        channel->next_busy = w->busy;
        w->busy = channel;
    }
    (void)progress_channel(w, channel);
}

/* Credits for which there was no buffer. */
static void pay(wefti_p2p_world *w) {
    w->owes = false;
    for (int b = 0; b < WEFTI_P2P_BUCKETS; b++)
        for (wefti_p2p_channel *channel = w->bucket[b]; channel; channel = channel->next)
            for (int32_t m = 0; m < channel->members; m++)
                if (channel->credit[m].consumed - channel->credit[m].reported >=
                    WEFTI_P2P_AHEAD / 2)
                    send_credit(w, channel, m);
}

bool wefti_p2p_progress(wefti_p2p_world *w) {
    if (atomic_load(&w->broken)) {
        wefti_p2p_abort(w);
        return wefti_p2p_progress_outgoing(w);
    }
    bool happened = wefti_p2p_progress_streams(w);
    if (w->owes) pay(w);
    if (w->losing_ns) wefti_p2p_check_lost_peers(w);
    for (wefti_p2p_channel **at = &w->busy; *at && !atomic_load(&w->broken);) {
        wefti_p2p_channel *channel = *at;
        happened |= progress_channel(w, channel);
        if (channel->active || channel->first) {
            at = &channel->next_busy;
        } else {
            channel->busy = false;
            *at = channel->next_busy;
        }
    }
    if (happened) atomic_fetch_add_explicit(&w->further, 1, memory_order_relaxed);
    if (atomic_load(&w->broken)) wefti_p2p_abort(w);
    return happened;
}

static bool ask_partner(wefti_p2p_world *w, wefti_p2p_channel *channel, const wefti_p2p_post *post,
                        const wefti_commsched_partner *partner) {
    const wefti_commsched *plan = post->endpoint->plan;
    bool missing = false;
    for (int32_t i = 0; i < partner->receives && !missing; i++)
        missing = post->receive_state[partner->receive[i]] != WEFTI_P2P_DONE;
    if (!missing) return true;
    wefti_p2p_header h = header_to(channel, partner->member, WEFTI_P2P_QUERY);
    h.number = post->number;
    h.hash = post->hash;
    h.text = text_bytes(plan->text);
    return wefti_p2p_send_header(w, partner->rank, &h, plan->text, NULL);
}

void wefti_p2p_query_peers(wefti_p2p_world *w) {
    for (wefti_p2p_channel *channel = w->busy; channel; channel = channel->next_busy)
        for (wefti_p2p_post *post = channel->active; post; post = post->next) {
            if (post->asked) continue;
            post->asked = true;
            const wefti_commsched *plan = post->endpoint->plan;
            for (int64_t i = 0; i < plan->partners && !atomic_load(&w->broken); i++)
                post->asked &= ask_partner(w, channel, post, &plan->partner[i]);
        }
}
