/* Writes and reads the messages of one stream, as far as its socket goes along. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include "base/io.h"
#include "base/memory.h"

enum {
    READS = 16,  /* from one connection before the others have their turn */
    FRAMES = 16, /* to one connection of a worker; its peer may wait for what it reads */
};

/* --- writing --- */

static weft_status seal_control(wefti_mac_stream *c) {
    wefti_mac_peer *p = c->peer;
    wefti_mac_control *next = p->control;
    p->control = next->next;
    if (!p->control) p->control_last = &p->control;
    weft_status status = wefti_conn_seal(&c->conn, next->kind, next->tag, 0, NULL, 0);
    wefti_free(next);
    return status;
}

static weft_status seal_message(wefti_mac_stream *c, wefti_mac_request *r) {
    wefti_mac_peer *p = c->peer;
    if (r->announced) {
        (void)wefti_mac_drop(&p->sending, r);
        wefti_mac_append(&p->announced, r);
        wefti_put_number(c->id_body, r->id, 8);
        return wefti_conn_seal(&c->conn, WEFTI_MAC_ANNOUNCE, r->tag, r->bytes, c->id_body, 8);
    }
    c->of = r;
    return wefti_conn_seal(&c->conn, WEFTI_MAC_DATA, r->tag, r->bytes, r->source, r->bytes);
}

static weft_status seal_part(wefti_mac_stream *c) {
    wefti_mac_part part;
    size_t most = wefti_mac_used.part;
    if (c->conn.tls && most > WEFTI_CONN_TLS_BODY) most = WEFTI_CONN_TLS_BODY;
    if (!wefti_mac_parts_take(c, most, &part)) return WEFT_OK;
    weft_status status = wefti_conn_seal(&c->conn, WEFTI_MAC_PART, part.id, part.at,
                                         c->of->source + part.at, part.bytes);
    wefti_mac_parts_release(c, false);
    return status;
}

/* The next frame, if there is something to say. Short messages go before parts of long ones. */
static weft_status next_frame(wefti_mac_stream *c) {
    if (c->number == 0 && c->peer->control) return seal_control(c);
    if (c->number == 0 && c->peer->sending.first) return seal_message(c, c->peer->sending.first);
    return seal_part(c);
}

static void message_is_written(wefti_mac_stream *c) {
    wefti_mac_request *r = c->of;
    c->of = NULL;
    if (!r) return;
    (void)wefti_mac_drop(&c->peer->sending, r);
    wefti_mac_finish(r, WEFT_OK);
}

static weft_status write_some(wefti_mac_stream *c) {
    bool part = c->part;
    if (part) WEFT_TRY(wefti_mac_parts_hold(c));
    weft_status status = wefti_conn_write(&c->conn);
    bool whole = c->conn.frame_bytes == 0;
    if (part)
        wefti_mac_parts_release(c, whole);
    else if (whole)
        message_is_written(c);
    return status;
}

weft_status wefti_mac_flush(wefti_mac_stream *c) {
    weft_status status = WEFT_OK;
    for (int frames = 0; status == WEFT_OK;) {
        if (!c->conn.frame_bytes && c->number > 0 && frames++ == FRAMES) break;
        if (!c->conn.frame_bytes) WEFT_TRY(next_frame(c));
        if (!c->conn.frame_bytes) break;
        status = write_some(c);
        c->moved += status == WEFT_OK;
    }
    return wefti_conn_flush(&c->conn, status);
}

/* --- reading --- */

/* TLS decrypts a part into the memory of its receive. */
static weft_status read_body(wefti_mac_stream *c, bool *out_more) {
    unsigned char *place;
    wefti_mac_request *of;
    size_t room, bytes = 0;
    WEFT_TRY(wefti_mac_body_place(c, &place, &room, &of));
    weft_status status = wefti_conn_take(&c->conn, place, room, &bytes, out_more);
    wefti_mac_body_came(c, of, status == WEFT_OK ? bytes : 0);
    return status;
}

static weft_status read_some(wefti_mac_stream *c, bool *out_more) {
    size_t room, bytes;
    if (c->body_left > 0) return read_body(c, out_more);
    wefti_conn *n = &c->conn;
    WEFT_TRY(wefti_conn_make_room(n, &room));
    weft_status status = wefti_conn_take(n, n->in + n->in_used, room, &bytes, out_more);
    if (status != WEFT_OK) return status;
    n->in_used += bytes;
    return wefti_mac_hear(c);
}

weft_status wefti_mac_read(wefti_mac_stream *c) {
    weft_status status = WEFT_OK;
    bool more = true;
    /* What TLS has taken from the socket is read to its end: no event would tell of it. */
    wefti_conn_begin_turn(&c->conn);
    for (int i = 0; more && (i < READS || c->conn.tls) && status == WEFT_OK; i++) {
        status = read_some(c, &more);
        c->moved += status == WEFT_OK;
    }
    return status < 0 ? status : WEFT_OK;
}

#endif
