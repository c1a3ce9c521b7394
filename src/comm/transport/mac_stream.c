/* Writes and reads one connection of authenticated messages, as far as its socket goes along. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/io.h"
#include "base/memory.h"

enum {
    READS = 16,  /* from one connection before the others have their turn */
    FRAMES = 16, /* to one connection of a worker; its peer may wait for what it reads */
};

/* --- writing --- */

static weft_status seal(wefti_mac_connection *c, wefti_mac_kind kind, uint64_t tag, uint64_t size,
                        const unsigned char *body, size_t bytes) {
    wefti_put_number(c->header, bytes, 4);
    wefti_put_number(c->header + 4, kind, 4);
    wefti_put_number(c->header + 8, tag, 8);
    wefti_put_number(c->header + 16, size, 8);
    c->body = body;
    c->body_bytes = bytes;
    c->written = 0;
    c->frame_bytes = WEFTI_MAC_HEADER + bytes + (c->tls ? 0 : WEFTI_MAC_TAG);
    if (c->tls) return WEFT_OK;
    return wefti_mac_sign(&c->sends, c->header, body, bytes, c->tag);
}

static weft_status seal_control(wefti_mac_connection *c) {
    wefti_mac_peer *p = c->peer;
    wefti_mac_control *next = p->control;
    p->control = next->next;
    if (!p->control) p->control_last = &p->control;
    weft_status status = seal(c, next->kind, next->tag, 0, NULL, 0);
    wefti_free(next);
    return status;
}

static weft_status seal_message(wefti_mac_connection *c, wefti_mac_request *r) {
    wefti_mac_peer *p = c->peer;
    if (r->announced) {
        (void)wefti_mac_drop(&p->sending, r);
        wefti_mac_append(&p->announced, r);
        wefti_put_number(c->id_body, r->id, 8);
        return seal(c, WEFTI_MAC_ANNOUNCE, r->tag, r->bytes, c->id_body, 8);
    }
    c->of = r;
    return seal(c, WEFTI_MAC_DATA, r->tag, r->bytes, r->source, r->bytes);
}

static weft_status seal_part(wefti_mac_connection *c) {
    wefti_mac_part part;
    size_t most = wefti_mac_used.part;
    if (c->tls && most > WEFTI_MAC_TLS_BODY) most = WEFTI_MAC_TLS_BODY;
    if (!wefti_mac_parts_take(c, most, &part)) return WEFT_OK;
    weft_status status =
        seal(c, WEFTI_MAC_PART, part.id, part.at, c->of->source + part.at, part.bytes);
    wefti_mac_parts_release(c, false);
    return status;
}

/* The next frame, if there is something to say. Short messages go before parts of long ones. */
static weft_status next_frame(wefti_mac_connection *c) {
    if (c->number == 0 && c->peer->control) return seal_control(c);
    if (c->number == 0 && c->peer->sending.first) return seal_message(c, c->peer->sending.first);
    return seal_part(c);
}

static void message_is_written(wefti_mac_connection *c) {
    wefti_mac_request *r = c->of;
    c->of = NULL;
    if (!r) return;
    (void)wefti_mac_drop(&c->peer->sending, r);
    wefti_mac_finish(r, WEFT_OK);
}

static weft_status encrypt(wefti_mac_connection *c) {
    size_t head = c->written < WEFTI_MAC_HEADER ? WEFTI_MAC_HEADER - c->written : 0, taken;
    size_t at = head ? 0 : c->written - WEFTI_MAC_HEADER;
    weft_status status =
        wefti_mac_tls_write(c->tls, c->header + WEFTI_MAC_HEADER - head, head,
                            c->body ? c->body + at : NULL, c->body_bytes - at, &taken);
    if (status == WEFT_PENDING) return wefti_mac_tls_flush(c->tls);
    if (status == WEFT_OK) c->written += taken;
    return status;
}

/* WEFT_PENDING: the socket is full. */
static weft_status write_signed(wefti_mac_connection *c) {
    struct iovec part[3] = {{c->header, WEFTI_MAC_HEADER},
                            {(void *)(uintptr_t)c->body, c->body_bytes},
                            {c->tag, WEFTI_MAC_TAG}};
    size_t skip = c->written;
    int first = 0;
    while (first < 3 && skip >= part[first].iov_len) skip -= part[first++].iov_len;
    part[first].iov_base = (unsigned char *)part[first].iov_base + skip;
    part[first].iov_len -= skip;
    struct msghdr message = {.msg_iov = part + first, .msg_iovlen = (size_t)(3 - first)};
    ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n >= 0, WEFT_E_PEER, "%s", strerror(errno));
    c->written += (size_t)n;
    return WEFT_OK;
}

static weft_status write_some(wefti_mac_connection *c) {
    bool part = c->part;
    if (part) WEFT_TRY(wefti_mac_parts_hold(c));
    weft_status status = c->tls ? encrypt(c) : write_signed(c);
    bool whole = c->written == c->frame_bytes;
    if (whole) c->frame_bytes = 0;
    if (part)
        wefti_mac_parts_release(c, whole);
    else if (whole)
        message_is_written(c);
    return status;
}

weft_status wefti_mac_watch(wefti_mac_connection *c, int poller, uint64_t name) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = name};
    WEFT_REQUIRE(epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e) == 0, WEFT_E_IO,
                 "a connection cannot be watched: %s", strerror(errno));
    c->poller = poller;
    c->name = name;
    return WEFT_OK;
}

static void poll_write(wefti_mac_connection *c, bool wants) {
    if (c->polls_write == wants) return;
    struct epoll_event e = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.u64 = c->name};
    if (epoll_ctl(c->poller, EPOLL_CTL_MOD, c->fd, &e) == 0) c->polls_write = wants;
}

bool wefti_mac_has_output(const wefti_mac_connection *c) {
    return c->frame_bytes > 0 || wefti_mac_tls_has_output(c->tls);
}

weft_status wefti_mac_flush(wefti_mac_connection *c) {
    weft_status status = WEFT_OK;
    for (int frames = 0; status == WEFT_OK;) {
        if (!c->frame_bytes && c->number > 0 && frames++ == FRAMES) break;
        if (!c->frame_bytes) WEFT_TRY(next_frame(c));
        if (!c->frame_bytes) break;
        status = write_some(c);
        c->moved += status == WEFT_OK;
    }
    if (status == WEFT_OK && c->tls) status = wefti_mac_tls_flush(c->tls);
    if (status >= 0) poll_write(c, wefti_mac_has_output(c));
    return status < 0 ? status : WEFT_OK;
}

/* --- reading --- */

/* WEFT_PENDING: nothing is there. *out_more: more may be there now. A read that finds nothing
 * costs a system call, so it is false where an event would tell of what comes. */
static weft_status take_bytes(wefti_mac_connection *c, void *data, size_t room, size_t *out,
                              bool *out_more) {
    if (c->tls) {
        weft_status status = wefti_mac_tls_read(c->tls, data, room, out);
        *out_more = wefti_mac_tls_has_input(c->tls);
        return status;
    }
    ssize_t n = recv(c->fd, data, room, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n > 0, WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
    *out = (size_t)n;
    *out_more = *out == room;
    return WEFT_OK;
}

/* TLS decrypts a part into the memory of its receive. */
static weft_status read_body(wefti_mac_connection *c, bool *out_more) {
    unsigned char *place;
    wefti_mac_request *of;
    size_t room, bytes = 0;
    WEFT_TRY(wefti_mac_body_place(c, &place, &room, &of));
    weft_status status = take_bytes(c, place, room, &bytes, out_more);
    wefti_mac_body_came(c, of, status == WEFT_OK ? bytes : 0);
    return status;
}

static weft_status read_some(wefti_mac_connection *c, bool *out_more) {
    size_t room, bytes;
    if (c->body_left > 0) return read_body(c, out_more);
    WEFT_TRY(wefti_mac_make_room(c, &room));
    weft_status status = take_bytes(c, c->in + c->in_used, room, &bytes, out_more);
    if (status != WEFT_OK) return status;
    c->in_used += bytes;
    return wefti_mac_hear(c);
}

weft_status wefti_mac_read(wefti_mac_connection *c) {
    weft_status status = WEFT_OK;
    bool more = true;
    /* What TLS has taken from the socket is read to its end: no event would tell of it. */
    if (c->tls) wefti_mac_tls_begin_turn(c->tls);
    for (int i = 0; more && (i < READS || c->tls) && status == WEFT_OK; i++) {
        status = read_some(c, &more);
        c->moved += status == WEFT_OK;
    }
    return status < 0 ? status : WEFT_OK;
}

#endif
