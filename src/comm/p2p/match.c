/* Matches messages from other ranks with posts of this rank. A message without a post waits. A
 * message that does not fit its post breaks the world. */
#include <string.h>

#include "comm/p2p/p2p.h"

static const char *text_of(const wefti_p2p_buffer *buffer, const wefti_p2p_header *header,
                           char out[WEFTI_P2P_MESSAGE_TEXT]) {
    size_t n = header->text < WEFTI_P2P_MESSAGE_TEXT ? header->text : WEFTI_P2P_MESSAGE_TEXT - 1;
    memcpy(out, buffer->data + sizeof *header, n);
    out[n] = 0;
    return out;
}

static wefti_p2p_header header_of(const wefti_p2p_buffer *buffer) {
    wefti_p2p_header header;
    memcpy(&header, buffer->data, sizeof header);
    return header;
}

static bool is_whole(const wefti_p2p_buffer *buffer) {
    if (buffer->bytes < sizeof(wefti_p2p_header)) return false;
    wefti_p2p_header h = header_of(buffer);
    uint64_t data = h.kind == WEFTI_P2P_WITH_DATA ? h.bytes : 0;
    return h.kind >= WEFTI_P2P_WITH_DATA && h.kind <= WEFTI_P2P_ABORT &&
           h.text <= WEFTI_P2P_MESSAGE_TEXT && data <= WEFTI_COMMSCHED_SMALL &&
           buffer->bytes == sizeof h + h.text + data;
}

static void damaged(wefti_p2p_world *w, int32_t rank, const char *what) {
    wefti_p2p_break(w, WEFT_RANK_OWN, "a message from rank %d is damaged: %s", (int)rank, what);
}

/* -1: none */
static int32_t member_of(const wefti_p2p_channel *channel, int32_t rank) {
    int32_t low = 0, high = channel->members;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (channel->ranks[middle] == rank) return middle;
        if (channel->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

wefti_p2p_channel *wefti_p2p_channel_by_id(wefti_p2p_world *w, uint64_t id) {
    wefti_p2p_channel *channel = w->bucket[id % WEFTI_P2P_BUCKETS];
    while (channel && channel->id != id) channel = channel->next;
    return channel;
}

/* --- taking data --- */

static bool gates_are_open(const wefti_p2p_post *post, const wefti_commsched_message *m) {
    return post->round >= m->gate_round &&
           (m->gate_send < 0 || post->send_state[m->gate_send] == WEFTI_P2P_DONE);
}

static void take(wefti_p2p_world *w, wefti_p2p_post *post, int64_t i, wefti_p2p_buffer *buffer) {
    const wefti_commsched *plan = post->endpoint->plan;
    const wefti_commsched_message *m = &plan->receive[i];
    wefti_p2p_header h = header_of(buffer);
    void *to = wefti_p2p_pointer(post, m->at);
    if (h.kind == WEFTI_P2P_WITH_DATA) {
        memcpy(to, buffer->data + sizeof h + h.text, (size_t)h.bytes);
        post->receive_state[i] = WEFTI_P2P_DONE;
    } else {
        int32_t rank = plan->partner[m->partner].rank;
        weft_status status =
            w->transport.receive(w->transport.context, rank, h.tag, to, (size_t)m->bytes,
                                 post->request + (size_t)m->request * w->request_bytes);
        if (status >= 0) {
            post->receive_state[i] = WEFTI_P2P_OPEN;
            post->open_message[post->open++] = plan->sends + i;
            atomic_fetch_add(&w->receiving, 1);
        } else {
            wefti_p2p_peer_failed(w, rank);
        }
    }
    wefti_p2p_give_buffer(w, buffer);
}

void wefti_p2p_release(wefti_p2p_world *w, wefti_p2p_post *post) {
    const wefti_commsched *plan = post->endpoint->plan;
    for (int64_t i = post->received; i < plan->receives && post->held > 0; i++) {
        if (post->receive_state[i] != WEFTI_P2P_HELD || !gates_are_open(post, &plan->receive[i]))
            continue;
        post->held--;
        take(w, post, i, post->early[i]);
    }
}

/* A message of a post that is under way, and equal. */
static void deliver(wefti_p2p_world *w, wefti_p2p_post *post, int32_t rank,
                    wefti_p2p_buffer *buffer) {
    const wefti_commsched *plan = post->endpoint->plan;
    wefti_p2p_header h = header_of(buffer);
    if (h.kind == WEFTI_P2P_QUERY) {
        wefti_p2p_give_buffer(w, buffer);
        return;
    }
    const wefti_commsched_partner *partner = wefti_commsched_find_partner(plan, rank);
    int64_t i =
        partner && h.message < (uint32_t)partner->receives ? partner->receive[h.message] : -1;
    bool follows = h.kind == WEFTI_P2P_DATA_FOLLOWS;
    if (i < 0 || post->receive_state[i] != WEFTI_P2P_NOTHING ||
        h.bytes != (uint64_t)plan->receive[i].bytes || follows != (plan->receive[i].request >= 0)) {
        wefti_p2p_give_buffer(w, buffer);
        damaged(w, rank, plan->text);
        return;
    }
    if (gates_are_open(post, &plan->receive[i])) {
        take(w, post, i, buffer);
        return;
    }
    post->receive_state[i] = WEFTI_P2P_HELD;
    post->early[i] = buffer;
    post->held++;
}

/* --- meeting --- */

/* Whether it is the same transfer as what this rank has posted in its place; breaks if not. */
static bool agrees(wefti_p2p_world *w, const wefti_p2p_channel *channel, const wefti_p2p_post *post,
                   int32_t rank, const wefti_p2p_buffer *buffer) {
    wefti_p2p_header h = header_of(buffer);
    const wefti_p2p_recent *recent = &channel->recent[h.number % WEFTI_P2P_RECENT];
    const char *mine = NULL;
    uint64_t call = 0;
    if (post) {
        if (post->hash == h.hash) return true;
        mine = post->endpoint->plan->text;
        call = post->call;
    } else if (h.number + WEFTI_P2P_RECENT >= channel->begun) {
        if (recent->hash == h.hash) return true;
        mine = recent->text;
        call = recent->call;
    } else if (h.kind == WEFTI_P2P_QUERY) {
        return true; /* long answered */
    }
    char text[WEFTI_P2P_MESSAGE_TEXT], what[WEFTI_COMM_MISMATCH];
    const char *theirs = h.text > 0 ? text_of(buffer, &h, text) : NULL;
    (void)wefti_comm_mismatch(what, mine, call, rank, theirs);
    w->at_fault = true;
    wefti_comm_found(&w->comm, what);
    wefti_p2p_break(w, WEFT_RANK_OWN, "%s", what);
    return false;
}

/* Of a post that has begun here. */
static void meet_begun(wefti_p2p_world *w, const wefti_p2p_channel *channel, int32_t rank,
                       wefti_p2p_buffer *buffer) {
    wefti_p2p_header h = header_of(buffer);
    wefti_p2p_post *post = channel->active;
    while (post && post->number != h.number) post = post->next;
    bool fits = agrees(w, channel, post, rank, buffer);
    if (fits && post) {
        deliver(w, post, rank, buffer);
        return;
    }
    wefti_p2p_give_buffer(w, buffer);
    if (fits && h.kind != WEFTI_P2P_QUERY) damaged(w, rank, "it is of a finished transfer");
}

void wefti_p2p_match(wefti_p2p_world *w, int32_t rank, wefti_p2p_buffer *buffer) {
    if (!is_whole(buffer)) {
        wefti_p2p_give_buffer(w, buffer);
        damaged(w, rank, "its header makes no sense");
        return;
    }
    wefti_p2p_header h = header_of(buffer);
    if (h.kind == WEFTI_P2P_ABORT) {
        char text[WEFTI_P2P_MESSAGE_TEXT];
        bool known = h.number < (uint64_t)w->comm.size;
        wefti_p2p_break(w, known ? (int)h.number : WEFT_RANK_NONE, "%s", text_of(buffer, &h, text));
        w->peer[rank].dead = true; /* knows already */
        wefti_p2p_give_buffer(w, buffer);
        return;
    }
    wefti_p2p_channel *channel = wefti_p2p_channel_by_id(w, h.channel);
    if (!channel) {
        buffer->next = w->strangers;
        w->strangers = buffer;
        return;
    }
    int32_t member = member_of(channel, rank);
    if (member < 0) {
        wefti_p2p_give_buffer(w, buffer);
        damaged(w, rank, "it is of a group without it");
        return;
    }
    if (channel->credit[member].acknowledged < h.consumed)
        channel->credit[member].acknowledged = h.consumed;
    if (h.kind == WEFTI_P2P_CREDIT) {
        wefti_p2p_give_buffer(w, buffer);
    } else if (h.number >= channel->begun) {
        buffer->next = channel->early;
        channel->early = buffer;
    } else {
        meet_begun(w, channel, rank, buffer);
    }
}

void wefti_p2p_match_early(wefti_p2p_world *w, wefti_p2p_channel *channel, wefti_p2p_post *post) {
    for (wefti_p2p_buffer **at = &channel->early; *at;) {
        wefti_p2p_buffer *buffer = *at;
        if (header_of(buffer).number != post->number) {
            at = &buffer->next;
            continue;
        }
        *at = buffer->next;
        meet_begun(w, channel, buffer->rank, buffer);
    }
}
