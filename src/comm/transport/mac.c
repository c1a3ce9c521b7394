/* The transport of authenticated messages: sending, reading, and the table of functions.
 * docs/design-data-plane.md describes it. All pairs of ranks connect when the transport is made.
 * Calls come from one thread at a time. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"

enum {
    MAC_CLOSE_NS = 2000000000,  /* how long closing waits for the others */
    MAC_ABANDON_NS = 300000000, /* the same if the world has failed */
    MAC_EVENTS = 64,
    READS = 16 /* from one connection before the others have their turn */
};

/* --- the end of a connection --- */

static void finish_all(wefti_mac_list *l, weft_status status) {
    for (wefti_mac_request *r; (r = l->first);) {
        wefti_mac_drop(l, r);
        wefti_mac_finish(r, status);
    }
}

/* Nothing comes from that peer or goes to it any more. What has come is still there. */
static void lose(wefti_mac_peer *p, const char *why) {
    if (p->lost) return;
    p->lost = true;
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    finish_all(&p->sending, WEFT_E_PEER);
    finish_all(&p->announced, WEFT_E_PEER);
    finish_all(&p->wanted, WEFT_E_PEER);
    finish_all(&p->coming, WEFT_E_PEER);
    p->of = NULL;
    p->frame_bytes = 0;
}

static weft_status tell_lost(const wefti_mac_side *s, int32_t peer) {
    WEFT_FAIL(WEFT_E_PEER, "%s (rank %d)", s->peer[peer].why, (int)peer);
}

/* --- writing --- */

static weft_status seal(wefti_mac_peer *p, wefti_mac_kind kind, uint64_t tag, uint64_t size,
                        const unsigned char *body, size_t bytes) {
    wefti_put_number(p->header, bytes, 4);
    wefti_put_number(p->header + 4, kind, 4);
    wefti_put_number(p->header + 8, tag, 8);
    wefti_put_number(p->header + 16, size, 8);
    p->body = body;
    p->body_bytes = bytes;
    p->written = 0;
    p->frame_bytes = WEFTI_MAC_HEADER + bytes + (p->tls ? 0 : WEFTI_MAC_TAG);
    if (p->tls) return WEFT_OK;
    return wefti_mac_sign(&p->sends, p->header, body, bytes, p->tag);
}

static weft_status seal_control(wefti_mac_peer *p) {
    wefti_mac_control *c = p->control;
    p->control = c->next;
    if (!p->control) p->control_last = &p->control;
    weft_status status = seal(p, c->kind, c->tag, 0, NULL, 0);
    wefti_free(c);
    return status;
}

/* The next frame, if there is something to say. */
static weft_status next_frame(wefti_mac_peer *p) {
    wefti_mac_request *r = p->sending.first;
    p->of = NULL;
    if (p->control) return seal_control(p);
    if (!r) return WEFT_OK;
    if (r->announced && !r->ready) {
        wefti_mac_drop(&p->sending, r);
        wefti_mac_append(&p->announced, r);
        wefti_put_number(p->id_body, r->id, 8);
        return seal(p, WEFTI_MAC_ANNOUNCE, r->tag, r->bytes, p->id_body, 8);
    }
    size_t most = p->tls ? WEFTI_MAC_TLS_BODY : WEFTI_MAC_BODY;
    size_t bytes = r->bytes - r->at < most ? r->bytes - r->at : most;
    p->of = r;
    return seal(p, WEFTI_MAC_DATA, r->announced ? r->id : r->tag,
                r->announced ? UINT64_MAX : r->bytes, r->source + r->at, bytes);
}

static void frame_is_written(wefti_mac_peer *p) {
    wefti_mac_request *r = p->of;
    p->frame_bytes = 0;
    p->of = NULL;
    if (!r) return;
    r->at += p->body_bytes;
    if (r->at < r->bytes) return;
    wefti_mac_drop(&p->sending, r);
    wefti_mac_finish(r, WEFT_OK);
}

static weft_status encrypt_some(wefti_mac_peer *p) {
    size_t head = p->written < WEFTI_MAC_HEADER ? WEFTI_MAC_HEADER - p->written : 0, taken;
    size_t at = head ? 0 : p->written - WEFTI_MAC_HEADER;
    weft_status status =
        wefti_mac_tls_write(p->tls, p->header + WEFTI_MAC_HEADER - head, head,
                            p->body ? p->body + at : NULL, p->body_bytes - at, &taken);
    if (status != WEFT_OK) return status;
    p->written += taken;
    if (p->written == p->frame_bytes) frame_is_written(p);
    return WEFT_OK;
}

static weft_status write_encrypted(wefti_mac_peer *p) {
    weft_status status = encrypt_some(p);
    return status == WEFT_PENDING ? wefti_mac_tls_flush(p->tls) : status;
}

/* WEFT_PENDING: the socket is full. */
static weft_status write_some(wefti_mac_peer *p) {
    if (p->tls) return write_encrypted(p);
    struct iovec part[3] = {{p->header, WEFTI_MAC_HEADER},
                            {(void *)(uintptr_t)p->body, p->body_bytes},
                            {p->tag, WEFTI_MAC_TAG}};
    size_t skip = p->written;
    int first = 0;
    while (first < 3 && skip >= part[first].iov_len) skip -= part[first++].iov_len;
    part[first].iov_base = (unsigned char *)part[first].iov_base + skip;
    part[first].iov_len -= skip;
    struct msghdr message = {.msg_iov = part + first, .msg_iovlen = (size_t)(3 - first)};
    ssize_t n = sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n >= 0, WEFT_E_PEER, "%s", strerror(errno));
    p->written += (size_t)n;
    if (p->written == p->frame_bytes) frame_is_written(p);
    return WEFT_OK;
}

static void poll_write(wefti_mac_side *s, wefti_mac_peer *p, bool wants) {
    if (p->fd < 0 || p->polls_write == wants) return;
    struct epoll_event e = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u),
                            .data.u32 = (uint32_t)(p - s->peer)};
    if (epoll_ctl(s->poller, EPOLL_CTL_MOD, p->fd, &e) == 0) p->polls_write = wants;
}

static bool has_output(const wefti_mac_peer *p) {
    return p->frame_bytes > 0 || wefti_mac_tls_has_output(p->tls);
}

static void flush(wefti_mac_side *s, wefti_mac_peer *p) {
    weft_status status = WEFT_OK;
    while (p->fd >= 0 && status == WEFT_OK) {
        if (!p->frame_bytes) status = next_frame(p);
        if (status >= 0 && !p->frame_bytes) break;
        if (status >= 0) status = write_some(p);
        s->moved += status == WEFT_OK;
    }
    if (p->fd >= 0 && status == WEFT_OK && p->tls) status = wefti_mac_tls_flush(p->tls);
    if (status < 0)
        lose(p, weft_error_message());
    else
        poll_write(s, p, has_output(p));
}

/* --- reading --- */

/* WEFT_PENDING: nothing is there. *out_more: more may be there now. A read that finds nothing
 * costs a system call, so it is false where an event would tell of what comes. */
static weft_status take_bytes(wefti_mac_peer *p, void *data, size_t room, size_t *out,
                              bool *out_more) {
    if (p->tls) {
        weft_status status = wefti_mac_tls_read(p->tls, data, room, out);
        *out_more = wefti_mac_tls_has_input(p->tls);
        return status;
    }
    ssize_t n = recv(p->fd, data, room, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n > 0, WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
    *out = (size_t)n;
    *out_more = *out == room;
    return WEFT_OK;
}

/* TLS decrypts the body of an announced message into the memory of its receive. */
static weft_status read_body(wefti_mac_peer *p, bool *out_more) {
    unsigned char *place;
    size_t room, bytes;
    WEFT_TRY(wefti_mac_body_place(p, &place, &room));
    weft_status status = take_bytes(p, place, room, &bytes, out_more);
    if (status == WEFT_OK) wefti_mac_body_came(p, bytes);
    return status;
}

static weft_status read_some(wefti_mac_peer *p, bool *out_more) {
    size_t room, bytes;
    if (p->body_left > 0) return read_body(p, out_more);
    WEFT_TRY(wefti_mac_make_room(p, &room));
    weft_status status = take_bytes(p, p->in + p->in_used, room, &bytes, out_more);
    if (status != WEFT_OK) return status;
    p->in_used += bytes;
    return wefti_mac_hear(p);
}

static void read_peer(wefti_mac_side *s, wefti_mac_peer *p) {
    weft_status status = WEFT_OK;
    bool more = true;
    /* What TLS has taken from the socket is read to its end: no event would tell of it. */
    if (p->tls) wefti_mac_tls_begin_turn(p->tls);
    for (int i = 0; more && (i < READS || p->tls) && p->fd >= 0 && status == WEFT_OK; i++) {
        status = read_some(p, &more);
        s->moved += status == WEFT_OK;
    }
    if (status < 0)
        lose(p, weft_error_message());
    else
        flush(s, p);
}

static void progress(wefti_mac_side *s, int milliseconds) {
    struct epoll_event events[MAC_EVENTS];
    int count = epoll_wait(s->poller, events, MAC_EVENTS, milliseconds);
    for (int i = 0; i < count; i++) {
        wefti_mac_peer *p = &s->peer[events[i].data.u32];
        if (p->fd >= 0 && events[i].events & EPOLLOUT) flush(s, p);
        if (p->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT) read_peer(s, p);
    }
}

/* --- the table --- */

static weft_status mac_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                            void *request) {
    wefti_mac_side *s = context;
    wefti_mac_peer *p = &s->peer[peer];
    wefti_mac_request *r = request;
    *r = (wefti_mac_request){.peer = peer, .tag = tag, .source = data, .bytes = bytes};
    if (p->lost) return tell_lost(s, peer);
    r->announced = bytes > WEFTI_MAC_EAGER;
    if (r->announced) r->id = p->next_id++;
    wefti_mac_append(&p->sending, r);
    flush(s, p);
    return WEFT_OK;
}

static weft_status mac_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                               void *request) {
    wefti_mac_side *s = context;
    wefti_mac_peer *p = &s->peer[peer];
    wefti_mac_request *r = request;
    *r = (wefti_mac_request){
        .peer = peer, .receives = true, .tag = tag, .destination = data, .room = bytes};
    weft_status status = WEFT_OK;
    bool came = wefti_mac_take_early(p, r, &status);
    if (p->lost && (!came || status == WEFT_E_PEER)) return tell_lost(s, peer);
    if (!came) wefti_mac_append(&p->wanted, r);
    if (p->control) flush(s, p);
    return status;
}

/* A caller that tests many requests in a row makes progress once, not once for each. */
static weft_status mac_test(void *context, void *request, size_t *out_bytes) {
    wefti_mac_side *s = context;
    wefti_mac_request *r = request;
    if (!r->done && r->turn == s->turn) {
        s->turn++;
        progress(s, 0);
    }
    r->turn = s->turn;
    if (!r->done) return WEFT_PENDING;
    if (r->status == WEFT_E_PEER) return tell_lost(s, r->peer);
    WEFT_REQUIRE(r->status >= 0, r->status, "a message of %zu bytes from rank %d; %zu are the most",
                 r->bytes, (int)r->peer, r->room);
    if (out_bytes && r->receives) *out_bytes = r->bytes;
    return WEFT_OK;
}

/* A frame that has begun must end: else the connection is cut. */
static void mac_cancel(void *context, void *request) {
    wefti_mac_side *s = context;
    wefti_mac_request *r = request;
    wefti_mac_peer *p = &s->peer[r->peer];
    if (r->done) return;
    if (p->of == r) flush(s, p);
    if (!r->done && p->of == r) lose(p, "a message to it was given up");
    wefti_mac_drop(&p->sending, r);
    wefti_mac_drop(&p->announced, r);
    wefti_mac_drop(&p->wanted, r);
    wefti_mac_drop(&p->coming, r);
    wefti_mac_finish(r, WEFT_E_STOPPED);
}

static weft_status mac_exchange(void *context, const void *mine, size_t bytes, void *all) {
    wefti_mac_side *s = context;
    return s->exchange.allgather(s->exchange.context, mine, bytes, all);
}

static void mac_abandon(void *context) {
    ((wefti_mac_side *)context)->abandoned = true;
}

static uint64_t mac_moved(void *context) {
    return ((const wefti_mac_side *)context)->moved;
}

static bool all_have_left(const wefti_mac_side *s) {
    for (int32_t r = 0; r < s->size; r++) {
        const wefti_mac_peer *p = &s->peer[r];
        if (p->fd >= 0 && (!p->left || has_output(p))) return false;
    }
    return true;
}

/* Says LEAVE to all, and waits until all have said it: then nothing is under way. */
static void say_leave(wefti_mac_side *s) {
    int64_t until = wefti_now_ns() + (s->abandoned ? MAC_ABANDON_NS : MAC_CLOSE_NS);
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        if (p->fd < 0) continue;
        if (wefti_mac_add_control(p, WEFTI_MAC_LEAVE, 0) >= 0) flush(s, p);
    }
    while (!all_have_left(s) && wefti_now_ns() < until) progress(s, 1);
}

static void mac_close(void *context) {
    wefti_mac_side *s = context;
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    if (s->peer && s->poller >= 0) say_leave(s);
    for (int32_t r = 0; s->peer && r < s->size; r++) wefti_mac_peer_free(&s->peer[r]);
    if (s->listener >= 0) close(s->listener);
    if (s->poller >= 0) close(s->poller);
    wefti_mac_tls_destroy(s->tls);
    explicit_bzero(s->key, sizeof s->key);
    wefti_free(s->peer);
    wefti_free(s);
    (void)wefti_failure_tell(&failure);
}

static weft_status open_side(wefti_mac_side *s, const wefti_mac_options *o) {
    WEFT_NEW_ARRAY(s->peer, wefti_mac_peer, s->size);
    for (int32_t r = 0; r < s->size; r++) wefti_mac_peer_begin(&s->peer[r]);
    if (o->encrypts) WEFT_TRY(wefti_mac_tls_create(s->size, &s->tls));
    WEFT_TRY(wefti_mac_connect_all(s, o));
    s->poller = epoll_create1(EPOLL_CLOEXEC);
    WEFT_REQUIRE(s->poller >= 0, WEFT_E_IO, "no event queue: %s", strerror(errno));
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)r};
        if (r == s->rank) continue;
        WEFT_REQUIRE(epoll_ctl(s->poller, EPOLL_CTL_ADD, p->fd, &e) == 0, WEFT_E_IO,
                     "a connection cannot be watched: %s", strerror(errno));
        /* The first frames may have come with the end of TLS's handshake: no event tells of them.
         */
        if (p->tls) read_peer(s, p);
    }
    return WEFT_OK;
}

weft_status wefti_mac_transport(const wefti_mac_options *o, weft_transport *out) {
    wefti_mac_side *s;
    WEFT_REQUIRE(o->size >= 1 && o->rank >= 0 && o->rank < o->size, WEFT_E_ARG, "rank %d of %d",
                 (int)o->rank, (int)o->size);
    WEFT_NEW(s, wefti_mac_side);
    s->rank = o->rank;
    s->size = o->size;
    s->exchange = o->exchange;
    s->listener = s->poller = -1;
    memcpy(s->key, o->key, sizeof s->key);
    weft_status status = open_side(s, o);
    if (status < 0) {
        mac_close(s);
        return status;
    }
    *out = (weft_transport){.name = o->encrypts ? "tls" : "mac",
                            .context = s,
                            .rank = o->rank,
                            .size = o->size,
                            .any_thread = true,
                            .request_bytes = sizeof(wefti_mac_request),
                            .send = mac_send,
                            .receive = mac_receive,
                            .test = mac_test,
                            .cancel = mac_cancel,
                            .exchange = mac_exchange,
                            .close = mac_close,
                            .abandon = mac_abandon,
                            .moved = mac_moved};
    return WEFT_OK;
}

#else

weft_status wefti_mac_transport(const wefti_mac_options *options, weft_transport *out) {
    (void)options;
    (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL,
              "this weft was built without OpenSSL, without which messages between hosts are "
              "neither signed nor encrypted; WEFT_COMM=ucx sends such messages, for "
              "networks that you trust");
}

#endif
