/* The scheduler's connections: new ones, received frames, lost ones. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/memory.h"
#include "launch/scheduler/state.h"

enum {
    STRANGERS = 64, /* connections without a seat, beyond one for each member */
    TURNS = 64,     /* reads from one connection before the others have their turn */
};
static const int64_t stranger_ns = 10000000000; /* time for the handshake and JOIN */
static const int64_t ending_ns = 1000000000;    /* time to write the last message */

static void end(wefti_scheduler *s, wefti_client *client) {
    client->state = WEFTI_CLIENT_GONE;
    s->some_gone = true;
    wefti_free(client->next);
    client->next = NULL;
    wefti_identity_free(&client->identity);
    if (client->link.fd >= 0)
        wefti_wire_close(&client->link); /* leaves epoll with its descriptor */
}

void wefti_client_drop(wefti_scheduler *s, wefti_client *client) {
    end(s, client);
}

/* A fault point: the scheduler says and hears nothing any more. */
static bool dies(wefti_scheduler *s, wefti_frame_kind kind) {
    if (kind == WEFTI_FRAME_BEAT || kind == WEFTI_FRAME_HEARD) return false;
    if (!wefti_fault_due(WEFTI_FAULT_SCHEDULER)) return false;
    s->state = WEFTI_SCHEDULER_LEFT;
    s->stopping = true;
    for (int64_t i = 0; i < s->client_count; i++)
        if (s->clients[i]->state != WEFTI_CLIENT_GONE) end(s, s->clients[i]);
    return true;
}

/* A flood of strangers pushes out the oldest of them, never a member. */
static void make_way(wefti_scheduler *s) {
    wefti_client *oldest = NULL;
    int64_t strangers = 0;
    if (s->client_count - s->taken < STRANGERS + s->options.size) return;
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->slot >= 0 || c->state == WEFTI_CLIENT_GONE || c->watch.count > 0 || c->next)
            continue;
        strangers++;
        if (!oldest || c->since_ns < oldest->since_ns) oldest = c;
    }
    if (strangers >= STRANGERS + s->options.size) end(s, oldest);
}

static weft_status add_client(wefti_scheduler *s, int fd, const wefti_address *from) {
    wefti_client *c = NULL;
    weft_status status = WEFT_GROW(s->clients, s->client_count, s->client_room);
    if (status >= 0 && !(c = wefti_calloc(1, sizeof *c)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a connection");
    if (status < 0) {
        close(fd);
        return status;
    }
    *c = (wefti_client){.slot = -1, .since_ns = wefti_now_ns()};
    char text[WEFTI_ADDRESS_TEXT];
    snprintf(c->address, sizeof c->address, "%s", wefti_address_text(from, false, text));
    wefti_socket_watch(fd, (double)s->heartbeat_ns * 1e-9);
    struct epoll_event reads = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(s->poller, EPOLL_CTL_ADD, fd, &reads) != 0) {
        status = WEFT_RAISE(WEFT_E_IO, "a connection cannot be watched: %s", strerror(errno));
        close(fd);
    } else
        status = wefti_wire_open(&c->link, fd, true, &s->options.secret, s->tls);
    if (status < 0)
        wefti_free(c);
    else
        s->clients[s->client_count++] = c;
    return status;
}

weft_status wefti_scheduler_accept(wefti_scheduler *s) {
    for (int i = 0; i < 256; i++) {
        wefti_address from = {.bytes = sizeof from.at};
        int fd = accept4(s->listener, (struct sockaddr *)&from.at, &from.bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
        WEFT_REQUIRE(fd >= 0, WEFT_E_IO, "no connection can be taken: %s", strerror(errno));
        make_way(s);
        weft_status status = add_client(s, fd, &from);
        (void)status; /* the connection has gone again, or there is no memory for it: take the next
                         one */
    }
    return WEFT_OK;
}

static void want_write(wefti_scheduler *s, wefti_client *c) {
    bool wants = wefti_wire_wants_to_write(&c->link);
    if (wants == c->polls_write) return;
    struct epoll_event events = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.ptr = c};
    if (epoll_ctl(s->poller, EPOLL_CTL_MOD, c->link.fd, &events) == 0) c->polls_write = wants;
}

/* A broken connection is noticed where it is read, where a member's fate is decided. */
void wefti_client_send(wefti_scheduler *s, wefti_client *c, wefti_frame_kind kind, const void *body,
                       size_t bytes) {
    if (c->state != WEFTI_CLIENT_OPEN || dies(s, kind)) return;
    if (wefti_wire_send(&c->link, kind, body, bytes, NULL, 0) >= 0) want_write(s, c);
}
void wefti_client_send_shared(wefti_scheduler *s, wefti_client *c, wefti_frame_kind kind,
                              wefti_shared_body *block) {
    if (c->state != WEFTI_CLIENT_OPEN || dies(s, kind)) return;
    if (wefti_wire_send_shared(&c->link, kind, block) >= 0) want_write(s, c);
}

void wefti_client_end(wefti_client *c) {
    if (c->state == WEFTI_CLIENT_OPEN) c->state = WEFTI_CLIENT_ENDS;
    c->since_ns = wefti_now_ns();
}

void wefti_client_refuse(wefti_scheduler *s, wefti_client *c, weft_status status, int32_t failed,
                         const char *format, ...) {
    char text[WEFTI_TEXT_MAX + 1];
    unsigned char body[WEFTI_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wefti_client_send(s, c, WEFTI_FRAME_REFUSED, body,
                      wefti_abort_reason_encode(status, failed, text, body));
    c->slot = -1;
    wefti_client_end(c);
}

void wefti_client_lost(wefti_scheduler *s, wefti_client *c, const char *why) {
    int32_t slot = c->slot;
    c->slot = -1;
    end(s, c);
    /* A launcher closes its connection once its processes, which it has informed, have ended. */
    for (int32_t r = 0; r < c->watch.count && c->told && c->watch.first >= 0; r++)
        if (c->watch.first + r < s->options.size || c->keep.launcher)
            wefti_scheduler_note_told(s, c->watch.first + r);
    if (slot < 0) return;
    s->slots[slot].client = NULL;
    if (s->state == WEFTI_SCHEDULER_FORMING)
        wefti_scheduler_release_slot(s, slot);
    else if (!wefti_has_left(&s->live.ranks[slot]))
        wefti_scheduler_rank_died(s, slot, why);
}

void wefti_client_write(wefti_scheduler *s, wefti_client *c) {
    weft_status status = wefti_wire_flush(&c->link);
    if (status >= 0) want_write(s, c);
}

static weft_status beat(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    const int64_t now = wefti_now_ns();
    wefti_standing at;
    WEFT_TRY(wefti_beat_decode(frame, now, &at));
    wefti_liveness_beat(&s->live, c->slot, &at, now);
    wefti_client_send(s, c, WEFTI_FRAME_HEARD, NULL, 0);
    return WEFT_OK;
}

/* A member has seen that another one made an unlike call. Neither is to blame: which call is the
 * wrong one, nobody knows. */
static void found_mismatch(wefti_scheduler *s, int32_t slot, const char *what) {
    if (s->state != WEFTI_SCHEDULER_RUNNING || wefti_mend_phase(s) == WEFTI_MENDING_COUNTING)
        return;
    wefti_text text = {0};
    wefti_text_add(&text, "ranks have not made the same calls: ");
    wefti_slot_name(s, slot, &text);
    wefti_text_add(&text, " %s", what);
    s->unlike = true;
    wefti_scheduler_abort_text(s, WEFT_E_MISMATCH, WEFT_RANK_NONE, &text);
    wefti_client_tell_unlike(s);
}

static weft_status gave_up(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_abort_reason reason;
    WEFT_TRY(wefti_abort_reason_decode(frame, &reason));
    if (reason.status == WEFT_E_MISMATCH) {
        found_mismatch(s, c->slot, reason.text);
        return WEFT_OK;
    }
    wefti_scheduler_rank_gave_up(s, c->slot, &reason);
    return WEFT_OK;
}

/* A launcher's word, on a connection of its own. */
static weft_status ended(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_end end;
    WEFT_TRY(wefti_end_decode(frame, &end));
    if (!wefti_keep_owns(s, c, end.rank)) return WEFT_OK;
    wefti_scheduler_rank_ended(s, &end);
    wefti_client_send(s, c, WEFTI_FRAME_HEARD, NULL, 0);
    wefti_client_end(c);
    return WEFT_OK;
}

void wefti_client_tell_over(wefti_scheduler *s) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    size_t bytes = wefti_end_encode(&s->end, body);
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->watch.count == 0 || c->told) continue;
        wefti_client_send(s, c, WEFTI_FRAME_OVER, body, bytes);
        c->told = true;
    }
}

void wefti_client_tell_unlike(wefti_scheduler *s) {
    unsigned char body[WEFTI_MESSAGE_MAX];
    const wefti_abort_reason *v = &s->reason;
    size_t bytes = wefti_abort_reason_encode(v->status, v->failed, v->text, body);
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        if (c->watch.count == 0 || c->told_unlike) continue;
        wefti_client_send(s, c, WEFTI_FRAME_ABORT, body, bytes);
        c->told_unlike = true;
    }
}

/* Said once more it is a question: what there was to tell stands before the answer. */
static weft_status watches(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_span ranks;
    WEFT_TRY(wefti_span_decode(frame, &ranks));
    const bool waits = c->launcher.waits;
    const bool registered = c->launcher.ranks.first == ranks.first &&
                            c->launcher.ranks.count == ranks.count && c->launcher.launcher;
    WEFT_REQUIRE(registered || waits || c->keeps, WEFT_E_CORRUPT,
                 "a launcher that watches ranks which it has not registered");
    c->watch = ranks;
    for (int32_t r = 0; r < c->watch.count && c->watch.first + r < s->options.size; r++)
        s->called[c->watch.first + r] = true;
    if (s->is_over) wefti_client_tell_over(s);
    if (s->unlike) wefti_client_tell_unlike(s);
    wefti_keep_check(s);
    wefti_client_send(s, c, WEFTI_FRAME_HEARD, NULL, 0);
    return WEFT_OK;
}

static weft_status leaves(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_call_records *records;
    WEFT_NEW(records, wefti_call_records);
    weft_status status = wefti_records_decode(frame, records);
    if (status >= 0) wefti_scheduler_compare(s, c->slot, records);
    wefti_free(records);
    WEFT_TRY(status);
    wefti_scheduler_rank_left(s, c->slot);
    return WEFT_OK;
}

static weft_status handle_member(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    wefti_entry entry;
    switch (frame->kind) {
    case WEFTI_FRAME_BEAT:
        return beat(s, c, frame);
    case WEFTI_FRAME_ENTRY:
        WEFT_TRY(wefti_entry_decode(frame, 1, &entry));
        wefti_scheduler_entry(s, c, &entry);
        return WEFT_OK;
    case WEFTI_FRAME_FAIL:
        return gave_up(s, c, frame);
    case WEFTI_FRAME_LEAVE:
        return leaves(s, c, frame);
    case WEFTI_FRAME_ARM:
        return wefti_mend_arm(s, c->slot, frame);
    case WEFTI_FRAME_STANDING:
        return wefti_mend_stood(s, c->slot, frame);
    case WEFTI_FRAME_WHOLE:
        return wefti_mend_whole(s, c->slot, frame);
    default:
        WEFT_FAIL(WEFT_E_CORRUPT, "a message of kind %d out of its order", (int)frame->kind);
    }
}

static weft_status handle_frame(wefti_scheduler *s, wefti_client *c, const wefti_frame *frame) {
    if (dies(s, frame->kind)) return WEFT_OK;
    if (c->state == WEFTI_CLIENT_ENDS) return WEFT_OK; /* it has not read yet that nobody listens */
    if (c->slot >= 0) return handle_member(s, c, frame);
    WEFT_REQUIRE(!c->next, WEFT_E_CORRUPT, "a message of kind %d between two worlds",
                 (int)frame->kind);
    if (wefti_standby_turns_away(s, c, frame)) return WEFT_OK;
    if (frame->kind == WEFTI_FRAME_REGISTER) return wefti_keep_register(s, c, frame);
    if (frame->kind == WEFTI_FRAME_ENDED) return ended(s, c, frame);
    if (frame->kind == WEFTI_FRAME_WATCH) return watches(s, c, frame);
    if (frame->kind == WEFTI_FRAME_HEALTH) return wefti_scheduler_tell_health(s, c);
    if (frame->kind == WEFTI_FRAME_KEEP) return wefti_keep_ask(s, c, frame);
    if (frame->kind == WEFTI_FRAME_LOST) return wefti_keep_lost(s, c, frame);
    if (frame->kind == WEFTI_FRAME_HOSTS) return wefti_gather_hosts(s, frame);
    if (frame->kind == WEFTI_FRAME_IDENTITY) {
        wefti_identity_free(&c->identity);
        return wefti_identity_decode(frame, &c->identity);
    }
    wefti_join join;
    WEFT_REQUIRE(frame->kind == WEFTI_FRAME_JOIN && !c->watch.count, WEFT_E_CORRUPT,
                 "a message of kind %d before joining", (int)frame->kind);
    WEFT_TRY(wefti_join_decode(frame, &join));
    wefti_scheduler_take_in(s, c, &join);
    return WEFT_OK;
}

void wefti_client_read(wefti_scheduler *s, wefti_client *c) {
    weft_status status = WEFT_OK;
    for (int turn = 0; turn < TURNS && status == WEFT_OK && c->state < WEFTI_CLIENT_GONE; turn++) {
        status = wefti_wire_fill(&c->link);
        if (status != WEFT_OK) break;
        wefti_frame frame;
        while (c->state < WEFTI_CLIENT_GONE &&
               (status = wefti_wire_next(&c->link, &frame)) == WEFT_OK)
            if ((status = handle_frame(s, c, &frame)) < 0) break;
        if (status == WEFT_PENDING) status = WEFT_OK;
    }
    if (status < 0 && c->state < WEFTI_CLIENT_GONE) wefti_client_lost(s, c, weft_error_message());
}

void wefti_client_expire(wefti_scheduler *s, int64_t now_ns) {
    for (int64_t i = 0; i < s->client_count; i++) {
        wefti_client *c = s->clients[i];
        const bool ends = c->state == WEFTI_CLIENT_ENDS;
        if (c->state == WEFTI_CLIENT_GONE || c->slot >= 0 || c->next) continue;
        if (c->watch.count > 0 && !ends) continue;
        bool written = ends && !wefti_wire_wants_to_write(&c->link);
        if (written || now_ns - c->since_ns > (ends ? ending_ns : stranger_ns)) end(s, c);
    }
}

void wefti_scheduler_sweep(wefti_scheduler *s) {
    int64_t kept = 0;
    if (!s->some_gone) return;
    s->some_gone = false;
    for (int64_t i = 0; i < s->client_count; i++) {
        if (s->clients[i]->state == WEFTI_CLIENT_GONE)
            wefti_free(s->clients[i]);
        else
            s->clients[kept++] = s->clients[i];
    }
    s->client_count = kept;
}
