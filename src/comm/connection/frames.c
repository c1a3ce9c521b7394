/* Writes and reads the frames of an open connection, as far as its socket goes along. */
#include "comm/connection/inside.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "base/io.h"
#include "base/memory.h"

/* --- writing --- */

weft_status wefti_conn_seal(wefti_conn *c, uint32_t kind, uint64_t tag, uint64_t place,
                            const void *body, size_t bytes) {
    wefti_put_number(c->header, bytes, 4);
    wefti_put_number(c->header + 4, kind, 4);
    wefti_put_number(c->header + 8, tag, 8);
    wefti_put_number(c->header + 16, place, 8);
    c->body = body;
    c->body_bytes = bytes;
    c->written = 0;
    c->frame_bytes = WEFTI_CONN_HEADER + bytes + (c->tls ? 0 : WEFTI_CONN_TAG);
    if (c->tls) return WEFT_OK;
    return wefti_conn_sign(&c->sends, c->header, body, bytes, c->tag);
}

static weft_status encrypt(wefti_conn *c) {
    size_t head = c->written < WEFTI_CONN_HEADER ? WEFTI_CONN_HEADER - c->written : 0, taken;
    size_t at = head ? 0 : c->written - WEFTI_CONN_HEADER;
    weft_status status =
        wefti_conn_tls_write(c->tls, c->header + WEFTI_CONN_HEADER - head, head,
                             c->body ? c->body + at : NULL, c->body_bytes - at, &taken);
    if (status == WEFT_PENDING) return wefti_conn_tls_flush(c->tls);
    if (status == WEFT_OK) c->written += taken;
    return status;
}

static weft_status write_signed(wefti_conn *c) {
    struct iovec part[3] = {{c->header, WEFTI_CONN_HEADER},
                            {(void *)(uintptr_t)c->body, c->body_bytes},
                            {c->tag, WEFTI_CONN_TAG}};
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

weft_status wefti_conn_write(wefti_conn *c) {
    weft_status status = c->tls ? encrypt(c) : write_signed(c);
    if (c->written == c->frame_bytes) c->frame_bytes = 0;
    return status;
}

bool wefti_conn_has_output(const wefti_conn *c) {
    return c->frame_bytes > 0 || wefti_conn_tls_has_output(c->tls);
}

weft_status wefti_conn_flush(wefti_conn *c, weft_status written) {
    weft_status status = written;
    if (status == WEFT_OK && c->tls) status = wefti_conn_tls_flush(c->tls);
    if (status >= 0) wefti_conn_poll_write(c, wefti_conn_has_output(c));
    return status < 0 ? status : WEFT_OK;
}

/* --- reading --- */

void wefti_conn_begin_turn(wefti_conn *c) {
    if (c->tls) wefti_conn_tls_begin_turn(c->tls);
}

weft_status wefti_conn_take(wefti_conn *c, void *data, size_t room, size_t *out, bool *out_more) {
    if (c->tls) {
        weft_status status = wefti_conn_tls_read(c->tls, data, room, out);
        *out_more = wefti_conn_tls_has_input(c->tls);
        return status;
    }
    ssize_t n = recv(c->fd, data, room, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n > 0, WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
    *out = (size_t)n;
    *out_more = *out == room;
    return WEFT_OK;
}

/* The length of the frame that begins at `frame`, with its tag. */
static size_t whole_frame(const wefti_conn *c, const unsigned char *frame) {
    return WEFTI_CONN_HEADER + (size_t)wefti_get_number(frame, 4) + (c->tls ? 0 : WEFTI_CONN_TAG);
}

/* Memory grows with received bytes, not with announced ones. A long frame is read to its end and no
 * further, so that little has to be moved to the front. */
weft_status wefti_conn_make_room(wefti_conn *c, size_t *out_bytes) {
    enum { FIRST = 65536, MOST = WEFTI_CONN_FRAME + FIRST };
    if (c->in_used == c->in_room) {
        size_t room = c->in_room ? 2 * c->in_room : FIRST;
        if (room > MOST) room = MOST;
        unsigned char *grown = wefti_realloc(c->in, room);
        WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for %zu received bytes", room);
        c->in = grown;
        c->in_room = room;
    }
    *out_bytes = c->in_room - c->in_used;
    if (c->in_used >= WEFTI_CONN_HEADER) {
        size_t whole = whole_frame(c, c->in);
        if (whole > FIRST && whole - c->in_used < *out_bytes) *out_bytes = whole - c->in_used;
    }
    return WEFT_OK;
}

static weft_status check_tag(wefti_conn *c, const unsigned char *frame, size_t bytes) {
    unsigned char tag[WEFTI_CONN_TAG];
    if (c->tls) return WEFT_OK; /* of the record, which was right */
    WEFT_TRY(wefti_conn_sign(&c->receives, frame, frame + WEFTI_CONN_HEADER, bytes, tag));
    WEFT_REQUIRE(wefti_conn_equal(tag, frame + WEFTI_CONN_HEADER + bytes, sizeof tag),
                 WEFT_E_CORRUPT, "a message was changed on its way");
    return WEFT_OK;
}

weft_status wefti_conn_next(wefti_conn *c, size_t at, wefti_conn_frame *out) {
    const unsigned char *frame = c->in + at;
    size_t there = c->in_used - at;
    if (there < WEFTI_CONN_HEADER) return WEFT_PENDING;
    size_t bytes = (size_t)wefti_get_number(frame, 4), whole = whole_frame(c, frame);
    WEFT_REQUIRE(bytes <= WEFTI_CONN_BODY, WEFT_E_CORRUPT, "a frame that is too long");
    if (there < whole && !c->tls) return WEFT_PENDING;
    WEFT_TRY(check_tag(c, frame, bytes));
    size_t come = there - WEFTI_CONN_HEADER < bytes ? there - WEFTI_CONN_HEADER : bytes;
    *out = (wefti_conn_frame){.kind = (uint32_t)wefti_get_number(frame + 4, 4),
                              .tag = wefti_get_number(frame + 8, 8),
                              .place = wefti_get_number(frame + 16, 8),
                              .body = frame + WEFTI_CONN_HEADER,
                              .bytes = bytes,
                              .come = come,
                              .whole = whole};
    return WEFT_OK;
}

void wefti_conn_forget(wefti_conn *c, size_t bytes) {
    if (bytes > 0) memmove(c->in, c->in + bytes, c->in_used - bytes);
    c->in_used -= bytes;
}

#endif
