/* Streams: buffers, messages to other ranks, and receives from them. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/p2p/p2p.h"

enum {
    SELDOM = 32, /* ranks from which no message is expected are polled once in this many polls */
    MOURNING_NS = 1000000000
};

/* --- buffers --- */

static wefti_p2p_buffer *new_buffer(wefti_p2p_world *w) {
    size_t head = (sizeof(wefti_p2p_buffer) + 15) / 16 * 16;
    wefti_p2p_buffer *buffer = wefti_alloc(head + w->request_bytes);
    if (buffer) buffer->request = (unsigned char *)buffer + head;
    return buffer;
}

void wefti_p2p_give_buffer(wefti_p2p_world *w, wefti_p2p_buffer *buffer) {
    buffer->next = w->spare;
    w->spare = buffer;
    w->spares++;
}

/* NULL: none is free */
static wefti_p2p_buffer *take_buffer(wefti_p2p_world *w) {
    wefti_p2p_buffer *buffer = w->spare;
    if (!buffer) return NULL;
    w->spare = buffer->next;
    w->spares--;
    return buffer;
}

/* What comes early may use up all buffers but those that sending needs, without which it would
 * never be wanted. */
static wefti_p2p_buffer *buffer_for_receiving(wefti_p2p_world *w) {
    return w->spares > w->reserved / 2 ? take_buffer(w) : new_buffer(w);
}

weft_status wefti_p2p_reserve(wefti_p2p_world *w, int64_t buffers) {
    for (; buffers > 0 && w->reserved < WEFTI_P2P_RESERVE; buffers--, w->reserved++) {
        wefti_p2p_buffer *buffer = new_buffer(w);
        WEFT_REQUIRE(buffer, WEFT_E_NOMEM, "no memory for a message of %d bytes",
                     (int)WEFTI_P2P_ROOM);
        wefti_p2p_give_buffer(w, buffer);
    }
    return WEFT_OK;
}

/* --- telling --- */

static bool has_come(const wefti_p2p_post *post, int64_t receive) {
    unsigned char state = post->receive_state[receive];
    bool small = post->endpoint->plan->receive[receive].request < 0;
    return state == WEFTI_P2P_DONE || (state == WEFTI_P2P_HELD && small);
}
/* Whether a post still has something to get from a rank, or to give to it. */
static bool needs(const wefti_p2p_post *post, int32_t rank) {
    const wefti_commsched *plan = post->endpoint->plan;
    const wefti_commsched_partner *partner = wefti_commsched_find_partner(plan, rank);
    for (int32_t i = 0; partner && i < partner->receives; i++)
        if (!has_come(post, partner->receive[i])) return true;
    for (int64_t i = 0; partner && i < plan->sends; i++)
        if (&plan->partner[plan->send[i].partner] == partner &&
            post->send_state[i] != WEFTI_P2P_DONE)
            return true;
    return false;
}

/* Whether anything under way needs the rank. A rank that has done its part may leave while others
 * are in the same call. */
static bool is_needed(const wefti_p2p_world *w, int32_t rank) {
    for (const wefti_p2p_channel *channel = w->busy; channel; channel = channel->next_busy)
        for (const wefti_p2p_post *post = channel->active; post; post = post->next)
            if (needs(post, rank)) return true;
    return false;
}

/* Nobody need be dead: both ranks are named. */
static void note_loss(wefti_p2p_world *w, int32_t rank) {
    w->lost = rank;
    (void)snprintf(w->loss, sizeof w->loss, "rank %d is lost to rank %d: %s", (int)rank,
                   (int)w->comm.rank, weft_error_message());
}

/* A connection that breaks while nothing needs it says why it broke only now. */
void wefti_p2p_peer_failed(wefti_p2p_world *w, int32_t rank) {
    const bool is_known = w->loss[0] && w->lost == rank;
    if (!w->loss[0]) note_loss(w, rank);
    w->peer[rank].dead = true;
    if (w->losing_ns != 0 || !is_needed(w, rank)) return;
    w->losing_ns = wefti_now_ns();
    if (!is_known) note_loss(w, rank);
}

/* A rank that breaks the world is lost soon after; what it said, or told others, is the better
 * reason, and is waited for a little. What it had sent may come meanwhile. */
void wefti_p2p_check_lost_peers(wefti_p2p_world *w) {
    if (w->losing_ns == 0 || wefti_now_ns() - w->losing_ns <= MOURNING_NS) return;
    if (is_needed(w, w->lost)) {
        wefti_p2p_break(w, w->lost, "%s", w->loss);
        return;
    }
    w->losing_ns = 0;
    for (int32_t rank = w->known; rank >= 0; rank = w->peer[rank].next) {
        if (!w->peer[rank].dead) continue;
        (void)WEFT_RAISE(WEFT_E_PEER, "it has a part in what is under way");
        wefti_p2p_peer_failed(w, rank);
    }
}

bool wefti_p2p_send_header(wefti_p2p_world *w, int32_t rank, const wefti_p2p_header *header,
                           const char *text, const void *data) {
    wefti_p2p_buffer *buffer = take_buffer(w);
    if (!buffer) return false;
    size_t texts = header->text;
    size_t bytes = header->kind == WEFTI_P2P_WITH_DATA ? (size_t)header->bytes : 0;
    memcpy(buffer->data, header, sizeof *header);
    if (texts > 0) memcpy(buffer->data + sizeof *header, text, texts);
    if (bytes > 0) memcpy(buffer->data + sizeof *header + texts, data, bytes);
    buffer->post = NULL;
    buffer->rank = rank;
    buffer->bytes = sizeof *header + texts + bytes;
    weft_status status = w->transport.send(w->transport.context, rank, 0, buffer->data,
                                           buffer->bytes, buffer->request);
    if (status < 0) {
        wefti_p2p_give_buffer(w, buffer);
        wefti_p2p_peer_failed(w, rank);
        return false;
    }
    buffer->next = w->outgoing;
    w->outgoing = buffer;
    return true;
}

bool wefti_p2p_progress_outgoing(wefti_p2p_world *w) {
    bool happened = false;
    for (wefti_p2p_buffer **at = &w->outgoing; *at;) {
        wefti_p2p_buffer *buffer = *at;
        weft_status status = w->transport.test(w->transport.context, buffer->request, NULL);
        if (status == WEFT_PENDING) {
            at = &buffer->next;
            continue;
        }
        *at = buffer->next;
        if (buffer->post) buffer->post->unsent--;
        wefti_p2p_give_buffer(w, buffer);
        happened = true;
        if (status < 0) wefti_p2p_peer_failed(w, buffer->rank);
    }
    return happened;
}

/* --- listening --- */

static weft_status listen_to(wefti_p2p_world *w, int32_t rank) {
    wefti_p2p_buffer *buffer = buffer_for_receiving(w);
    WEFT_REQUIRE(buffer, WEFT_E_NOMEM, "no memory for messages of rank %d", (int)rank);
    buffer->rank = rank;
    weft_status status = w->transport.receive(w->transport.context, rank, 0, buffer->data,
                                              WEFTI_P2P_ROOM, buffer->request);
    if (status < 0) {
        wefti_p2p_give_buffer(w, buffer);
        return status;
    }
    w->peer[rank].incoming = buffer;
    return WEFT_OK;
}

weft_status wefti_p2p_listen_to(wefti_p2p_world *w, int32_t rank) {
    wefti_p2p_peer *peer = &w->peer[rank];
    if (peer->known || rank == w->comm.rank) return WEFT_OK;
    WEFT_TRY(listen_to(w, rank));
    peer->known = true;
    peer->next = w->known;
    w->known = rank;
    wefti_p2p_wake(w); /* there is somebody to listen to */
    return WEFT_OK;
}

static bool hear(wefti_p2p_world *w, int32_t rank) {
    wefti_p2p_peer *peer = &w->peer[rank];
    bool happened = false;
    while (peer->incoming && !atomic_load_explicit(&w->broken, memory_order_relaxed)) {
        wefti_p2p_buffer *buffer = peer->incoming;
        weft_status status =
            w->transport.test(w->transport.context, buffer->request, &buffer->bytes);
        if (status == WEFT_PENDING) break;
        happened = true;
        peer->incoming = NULL;
        if (status < 0) {
            wefti_p2p_give_buffer(w, buffer);
            wefti_p2p_peer_failed(w, rank);
            break;
        }
        status = listen_to(w, rank);
        wefti_p2p_match(w, rank, buffer);
        if (status < 0) wefti_p2p_peer_failed(w, rank);
    }
    return happened;
}

bool wefti_p2p_progress_streams(wefti_p2p_world *w) {
    bool happened = wefti_p2p_progress_outgoing(w), all = ++w->turn % SELDOM == 0;
    for (int32_t rank = w->known; rank >= 0; rank = w->peer[rank].next)
        if (all || w->peer[rank].partner > 0) happened |= hear(w, rank);
    return happened;
}
