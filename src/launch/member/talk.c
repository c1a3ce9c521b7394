/* What a member says to the scheduler, and what it makes of what it hears. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "launch/member/state.h"

enum { MS = 1000000 };
static const int64_t second_ns = 1000000000;

static void change(wefti_member *m, wefti_member_state state) {
    m->state = state;
    pthread_cond_broadcast(&m->changed);
}

void wefti_member_broken(wefti_member *m, weft_status status, int32_t failed, const char *text) {
    if (m->state == WEFTI_MEMBER_FAILED || m->state == WEFTI_MEMBER_PARTED) return;
    m->reason.status = status;
    m->reason.failed = failed;
    snprintf(m->reason.text, sizeof m->reason.text, "%s", text);
    change(m, WEFTI_MEMBER_FAILED);
    wefti_comm *comm = m->comm;
    pthread_mutex_unlock(&m->lock); /* lives until leave, which waits for this thread */
    if (comm) wefti_comm_break(comm, m->reason.failed, m->reason.text);
    pthread_mutex_lock(&m->lock);
}

weft_status wefti_member_ask(wefti_member *m) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    wefti_frame_kind kind = m->looks     ? WEFTI_FRAME_WATCH
                            : m->reports ? WEFTI_FRAME_ENDED
                                         : WEFTI_FRAME_JOIN;
    size_t bytes = m->looks     ? wefti_span_encode(&m->ranks, body)
                   : m->reports ? wefti_end_encode(&m->end, body)
                                : wefti_join_encode(&m->join, body);
    WEFT_TRY(wefti_wire_send(&m->link, kind, body, bytes, NULL, 0));
    m->connection = WEFTI_LINE_ASKED;
    if (m->looks) {
        m->unanswered = m->watches && m->state == WEFTI_MEMBER_PARTED ? m->unanswered + 1 : 1;
        m->asks = false;
        m->watches = true;
        change(m, WEFTI_MEMBER_PARTED); /* all that it says is said */
    }
    /* Allows the scheduler, which knows the missing ranks, the time to report them. */
    m->deadline_ns = wefti_now_ns() + m->join_ns + 2 * second_ns;
    return WEFT_OK;
}

static weft_status send_card(wefti_member *m, const wefti_member_entry *entry) {
    unsigned char head[WEFTI_ENTRY_HEAD];
    wefti_entry_head(entry->number, entry->bytes, head);
    WEFT_TRY(
        wefti_wire_send(&m->link, WEFTI_FRAME_ENTRY, head, sizeof head, entry->data, entry->bytes));
    return WEFT_OK;
}

static weft_status beat(wefti_member *m, int64_t now) {
    wefti_standing standing = {
        .what = "setting up", .since_ns = m->placed_ns, .moved_ns = m->placed_ns};
    if (m->comm && wefti_comm_moves(m->comm)) wefti_position_moved(m->position);
    if (m->position) standing = wefti_position_read(m->position);
    unsigned char body[WEFTI_MESSAGE_MAX];
    m->beat_ns = now;
    WEFT_TRY(wefti_wire_send(&m->link, WEFTI_FRAME_BEAT, body,
                             wefti_beat_encode(&standing, now, body), NULL, 0));
    return WEFT_OK;
}

int64_t wefti_member_interval(const wefti_member *m) {
    int64_t interval = m->placed.heartbeat_ns / 4;
    return interval > 50 * MS ? interval : 50 * MS;
}

static weft_status leave(wefti_member *m) {
    unsigned char *body;
    size_t bytes;
    WEFT_TRY(wefti_records_encode(m->records, &body, &bytes));
    weft_status status = wefti_wire_send(&m->link, WEFTI_FRAME_LEAVE, body, bytes, NULL, 0);
    wefti_free(body);
    return status;
}

weft_status wefti_member_say(wefti_member *m, int64_t now) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    if (m->now.number && !m->now_sent) {
        WEFT_TRY(send_card(m, &m->now));
        m->now_sent = true;
    }
    if (m->giving_up && !m->given_up) {
        /* Where it stood goes first, for the table. */
        WEFT_TRY(beat(m, now));
        WEFT_TRY(wefti_wire_send(
            &m->link, WEFTI_FRAME_FAIL, body,
            wefti_abort_reason_encode(m->fail_status, m->failed, m->giving_up, body), NULL, 0));
        m->given_up = true;
        pthread_cond_broadcast(&m->changed);
    }
    if (m->leaving && !m->leave_sent) {
        WEFT_TRY(leave(m));
        m->leave_sent = true;
    }
    if (now - m->beat_ns >= wefti_member_interval(m)) WEFT_TRY(beat(m, now));
    return WEFT_OK;
}

static weft_status placed(wefti_member *m, const wefti_frame *frame) {
    wefti_world_message placed;
    int32_t *host;
    WEFT_TRY(wefti_world_message_decode(frame, &placed, &host));
    if (m->state == WEFTI_MEMBER_JOINING) {
        m->placed = placed;
        m->host = host;
        m->join.rank = placed.rank;
        m->join.size = placed.size;
        m->join.generation = placed.generation;
        change(m, WEFTI_MEMBER_IN);
    } else {
        bool same = placed.generation == m->placed.generation && placed.rank == m->placed.rank &&
                    placed.size == m->placed.size;
        wefti_free(host);
        WEFT_REQUIRE(same, WEFT_E_CORRUPT, "the scheduler mistakes this rank for another");
        m->placed.hosted_by = placed.hosted_by;
        m->now_sent = m->leave_sent = false;
        m->given_up = false;
        if (m->last.number) WEFT_TRY(send_card(m, &m->last));
    }
    m->connection = WEFTI_LINE_UP;
    m->beat_ns = 0;
    m->looked_ns = m->placed_ns = wefti_now_ns();
    return WEFT_OK;
}

static weft_status take_cards(wefti_member *m, const wefti_frame *frame) {
    wefti_entry entries;
    WEFT_TRY(wefti_entry_decode(frame, m->placed.size, &entries));
    if (!m->entries || entries.number != m->now.number) return WEFT_OK; /* known already */
    WEFT_REQUIRE(entries.bytes == m->now.bytes, WEFT_E_CORRUPT,
                 "all-gather entries of another size");
    memcpy(m->entries, entries.data, entries.bytes * (size_t)m->placed.size);
    m->entries = NULL;
    pthread_cond_broadcast(&m->changed);
    return WEFT_OK;
}

weft_status wefti_member_hear(wefti_member *m, const wefti_frame *frame) {
    wefti_abort_reason reason;
    bool in = m->connection == WEFTI_LINE_UP;
    m->heard_ns = wefti_now_ns();
    switch (frame->kind) {
    case WEFTI_FRAME_WORLD:
        WEFT_REQUIRE(m->connection == WEFTI_LINE_ASKED, WEFT_E_CORRUPT, "placed twice");
        return placed(m, frame);
    case WEFTI_FRAME_ENTRIES:
        WEFT_REQUIRE(in, WEFT_E_CORRUPT, "all-gather entries before the world");
        return take_cards(m, frame);
    case WEFTI_FRAME_ABORT:
    case WEFTI_FRAME_REFUSED:
        WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
        if (m->looks && frame->kind == WEFTI_FRAME_ABORT) {
            m->unlike = reason;
            return WEFT_OK;
        }
        wefti_member_broken(m, reason.status, reason.failed, reason.text);
        return WEFT_OK;
    case WEFTI_FRAME_GOODBYE:
        m->watches = false;
        pthread_cond_broadcast(&m->changed);
        if (m->state == WEFTI_MEMBER_IN) change(m, WEFTI_MEMBER_PARTED);
        return WEFT_OK;
    case WEFTI_FRAME_OVER:
        WEFT_REQUIRE(m->looks && !m->is_over, WEFT_E_CORRUPT, "an end that nobody watches for");
        WEFT_TRY(wefti_end_decode(frame, &m->end));
        m->is_over = true;
        return WEFT_OK;
    case WEFTI_FRAME_HEARD:
        if (m->reports) change(m, WEFTI_MEMBER_PARTED);
        if (m->looks && m->unanswered > 0 && --m->unanswered == 0)
            pthread_cond_broadcast(&m->changed);
        return WEFT_OK;
    default:
        return WEFT_OK;
    }
}
