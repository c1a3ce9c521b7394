/* Received frames of authenticated messages: which are right, and which receive each of them is
 * for. Nothing here touches a socket. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"

/* --- lists --- */

void wefti_mac_append(wefti_mac_list *l, wefti_mac_request *r) {
    r->next = NULL;
    *l->last = r;
    l->last = &r->next;
}

bool wefti_mac_drop(wefti_mac_list *l, wefti_mac_request *r) {
    wefti_mac_request **at = &l->first;
    while (*at && *at != r) at = &(*at)->next;
    if (!*at) return false;
    *at = r->next;
    r->next = NULL;
    for (l->last = at; *l->last;) l->last = &(*l->last)->next;
    return true;
}

static wefti_mac_request *take_tag(wefti_mac_list *l, uint64_t tag) {
    wefti_mac_request *r = l->first;
    while (r && r->tag != tag) r = r->next;
    if (r) wefti_mac_drop(l, r);
    return r;
}

static wefti_mac_request *find_id(const wefti_mac_list *l, uint64_t id) {
    wefti_mac_request *r = l->first;
    while (r && r->id != id) r = r->next;
    return r;
}

weft_status wefti_mac_add_control(wefti_mac_peer *p, wefti_mac_kind kind, uint64_t tag) {
    wefti_mac_control *c;
    WEFT_NEW(c, wefti_mac_control);
    *c = (wefti_mac_control){.kind = kind, .tag = tag};
    *p->control_last = c;
    p->control_last = &c->next;
    return WEFT_OK;
}

/* --- frames --- */

static weft_status add_early(wefti_mac_peer *p, uint64_t tag, uint64_t size, bool announced,
                             uint64_t id, const unsigned char *body) {
    size_t room = announced ? 0 : (size_t)size;
    wefti_mac_early *e = wefti_alloc(sizeof *e + room);
    WEFT_REQUIRE(e, WEFT_E_NOMEM, "no memory for a message of %zu bytes", room);
    *e = (wefti_mac_early){.tag = tag, .id = id, .bytes = (size_t)size, .announced = announced};
    if (room) memcpy(e->data, body, room);
    *p->early_last = e;
    p->early_last = &e->next;
    return WEFT_OK;
}

static void deliver(wefti_mac_request *r, const unsigned char *body, size_t bytes) {
    r->bytes = bytes;
    if (bytes > r->room) {
        wefti_mac_finish(r, WEFT_E_CORRUPT);
        return;
    }
    if (bytes) memcpy(r->destination, body, bytes);
    wefti_mac_finish(r, WEFT_OK);
}

/* READY: there is memory for that message. */
static weft_status ask_for(wefti_mac_peer *p, wefti_mac_request *r, uint64_t id, size_t bytes) {
    r->bytes = bytes;
    r->id = id;
    if (bytes > r->room) { /* its data is never asked for */
        wefti_mac_finish(r, WEFT_E_CORRUPT);
        return WEFT_OK;
    }
    wefti_mac_parts_expect(p, r);
    return wefti_mac_add_control(p, WEFTI_MAC_READY, id);
}

static weft_status hear_part(wefti_mac_peer *p, const wefti_mac_part *part,
                             const unsigned char *body) {
    WEFT_TRY(wefti_mac_parts_begin_one(p, part));
    wefti_mac_request *r = wefti_mac_parts_hold_coming(p, part->id);
    if (!r) return WEFT_OK;
    if (part->bytes) memcpy(r->destination + part->at, body, part->bytes);
    wefti_mac_parts_came(p, r, part->bytes);
    return WEFT_OK;
}

static void hear_ready(wefti_mac_peer *p, uint64_t id) {
    wefti_mac_request *r = find_id(&p->announced, id);
    if (!r) return; /* cancelled */
    (void)wefti_mac_drop(&p->announced, r);
    wefti_mac_parts_send(p, r);
}

static weft_status hear_first(wefti_mac_peer *p, const unsigned char *frame, size_t bytes) {
    uint64_t kind = wefti_get_number(frame + 4, 4), tag = wefti_get_number(frame + 8, 8),
             size = wefti_get_number(frame + 16, 8);
    const unsigned char *body = frame + WEFTI_MAC_HEADER;
    if (kind == WEFTI_MAC_READY) hear_ready(p, tag);
    if (kind == WEFTI_MAC_LEAVE) p->left = true;
    if (kind == WEFTI_MAC_READY || kind == WEFTI_MAC_LEAVE) return WEFT_OK;
    bool announces = kind == WEFTI_MAC_ANNOUNCE && bytes == 8 && size < SIZE_MAX / 2;
    bool whole = kind == WEFTI_MAC_DATA && bytes == size && size <= WEFTI_MAC_EAGER;
    WEFT_REQUIRE(announces || whole, WEFT_E_CORRUPT, "a frame that makes no sense");
    wefti_mac_request *r = take_tag(&p->wanted, tag);
    uint64_t id = announces ? wefti_get_number(body, 8) : 0;
    if (!r) return add_early(p, tag, size, announces, id, body);
    if (announces) return ask_for(p, r, id, (size_t)size);
    deliver(r, body, bytes);
    return WEFT_OK;
}

static bool is_part(const unsigned char *frame, wefti_mac_part *out) {
    *out = (wefti_mac_part){.id = wefti_get_number(frame + 8, 8),
                            .at = (size_t)wefti_get_number(frame + 16, 8),
                            .bytes = (size_t)wefti_get_number(frame, 4)};
    return wefti_get_number(frame + 4, 4) == WEFTI_MAC_PART;
}

static weft_status hear(wefti_mac_connection *c, const unsigned char *frame, size_t bytes) {
    wefti_mac_part part;
    if (is_part(frame, &part)) return hear_part(c->peer, &part, frame + WEFTI_MAC_HEADER);
    WEFT_REQUIRE(c->number == 0, WEFT_E_CORRUPT, "a frame of another stream");
    return hear_first(c->peer, frame, bytes);
}

/* The length of the frame that begins at `frame`, with its tag. */
static size_t whole_frame(const wefti_mac_connection *c, const unsigned char *frame) {
    return WEFTI_MAC_HEADER + (size_t)wefti_get_number(frame, 4) + (c->tls ? 0 : WEFTI_MAC_TAG);
}

static weft_status check_tag(wefti_mac_connection *c, const unsigned char *frame, size_t bytes) {
    unsigned char tag[WEFTI_MAC_TAG];
    if (c->tls) return WEFT_OK; /* of the record, which was right */
    WEFT_TRY(wefti_mac_sign(&c->receives, frame, frame + WEFTI_MAC_HEADER, bytes, tag));
    WEFT_REQUIRE(wefti_mac_equal(tag, frame + WEFTI_MAC_HEADER + bytes, sizeof tag), WEFT_E_CORRUPT,
                 "a message was changed on its way");
    return WEFT_OK;
}

/* --- bodies that come in pieces: of parts, in the form `tls`. Each byte is authenticated when it
 * comes, so these bodies need not be whole. --- */

/* `come` bytes of it came with the header. */
static weft_status begin_body(wefti_mac_connection *c, const wefti_mac_part *part,
                              const unsigned char *body, size_t come) {
    WEFT_TRY(wefti_mac_parts_begin_one(c->peer, part));
    c->body_id = part->id;
    c->body_at = part->at;
    c->body_left = part->bytes;
    wefti_mac_request *r = wefti_mac_parts_hold_coming(c->peer, c->body_id);
    if (r && come) memcpy(r->destination + c->body_at, body, come);
    wefti_mac_body_came(c, r, come);
    return WEFT_OK;
}

weft_status wefti_mac_body_place(wefti_mac_connection *c, unsigned char **out, size_t *out_room,
                                 wefti_mac_request **out_of) {
    wefti_mac_request *r = *out_of = wefti_mac_parts_hold_coming(c->peer, c->body_id);
    if (r) {
        *out = r->destination + c->body_at;
        *out_room = c->body_left;
        return WEFT_OK;
    }
    WEFT_TRY(wefti_mac_make_room(c, out_room));
    *out = c->in + c->in_used;
    if (*out_room > c->body_left) *out_room = c->body_left;
    return WEFT_OK;
}

void wefti_mac_body_came(wefti_mac_connection *c, wefti_mac_request *of, size_t bytes) {
    c->body_at += bytes;
    c->body_left -= bytes;
    if (of) wefti_mac_parts_came(c->peer, of, bytes);
}

/* --- */

weft_status wefti_mac_hear(wefti_mac_connection *c) {
    size_t at = 0;
    while (c->in_used - at >= WEFTI_MAC_HEADER) {
        const unsigned char *frame = c->in + at;
        size_t bytes = (size_t)wefti_get_number(frame, 4), whole = whole_frame(c, frame);
        wefti_mac_part part;
        WEFT_REQUIRE(bytes <= WEFTI_MAC_BODY, WEFT_E_CORRUPT, "a frame that is too long");
        if (c->tls && is_part(frame, &part)) {
            size_t come = c->in_used - at - WEFTI_MAC_HEADER;
            if (come > bytes) come = bytes;
            WEFT_TRY(begin_body(c, &part, frame + WEFTI_MAC_HEADER, come));
            at += WEFTI_MAC_HEADER + come;
            continue;
        }
        if (c->in_used - at < whole) break;
        WEFT_TRY(check_tag(c, frame, bytes));
        at += whole;
        WEFT_TRY(hear(c, frame, bytes));
    }
    if (at > 0) memmove(c->in, c->in + at, c->in_used - at);
    c->in_used -= at;
    return WEFT_OK;
}

/* Memory grows with received bytes, not with announced ones. A long frame is read to its end and no
 * further, so that little has to be moved to the front. */
weft_status wefti_mac_make_room(wefti_mac_connection *c, size_t *out_bytes) {
    enum { FIRST = 65536, MOST = WEFTI_MAC_FRAME + FIRST };
    if (c->in_used == c->in_room) {
        size_t room = c->in_room ? 2 * c->in_room : FIRST;
        if (room > MOST) room = MOST;
        unsigned char *grown = wefti_realloc(c->in, room);
        WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for %zu received bytes", room);
        c->in = grown;
        c->in_room = room;
    }
    *out_bytes = c->in_room - c->in_used;
    if (c->in_used >= WEFTI_MAC_HEADER) {
        size_t whole = whole_frame(c, c->in);
        if (whole > FIRST && whole - c->in_used < *out_bytes) *out_bytes = whole - c->in_used;
    }
    return WEFT_OK;
}

bool wefti_mac_take_early(wefti_mac_peer *p, wefti_mac_request *r, weft_status *out) {
    wefti_mac_early **at = &p->early, *e;
    while (*at && (*at)->tag != r->tag) at = &(*at)->next;
    if (!(e = *at)) return false;
    *at = e->next;
    for (p->early_last = &p->early; *p->early_last;) p->early_last = &(*p->early_last)->next;
    *out = WEFT_OK;
    if (!e->announced)
        deliver(r, e->data, e->bytes);
    else if (p->lost)
        *out = WEFT_E_PEER;
    else
        *out = ask_for(p, r, e->id, e->bytes);
    wefti_free(e);
    return true;
}

/* --- a peer --- */

static void list_begin(wefti_mac_list *l) {
    *l = (wefti_mac_list){.last = &l->first};
}

void wefti_mac_peer_begin(wefti_mac_peer *p, wefti_mac_parts *parts) {
    *p = (wefti_mac_peer){.parts = parts};
    p->control_last = &p->control;
    p->early_last = &p->early;
    list_begin(&p->sending);
    list_begin(&p->announced);
    list_begin(&p->wanted);
    list_begin(&p->going);
    list_begin(&p->coming);
}

weft_status wefti_mac_peer_open(wefti_mac_peer *p, int32_t streams) {
    WEFT_NEW_ARRAY(p->connection, wefti_mac_connection, streams);
    p->streams = streams;
    for (int32_t i = 0; i < streams; i++)
        p->connection[i] = (wefti_mac_connection){.fd = -1, .number = i, .peer = p, .poller = -1};
    return WEFT_OK;
}

void wefti_mac_connection_close(wefti_mac_connection *c) {
    wefti_mac_tls_close(c->tls);
    if (c->fd >= 0) close(c->fd);
    wefti_mac_direction_close(&c->sends);
    wefti_mac_direction_close(&c->receives);
    wefti_free(c->in);
    *c = (wefti_mac_connection){.fd = -1, .number = c->number, .peer = c->peer, .poller = -1};
}

void wefti_mac_peer_free(wefti_mac_peer *p) {
    for (wefti_mac_early *e; (e = p->early); wefti_free(e)) p->early = e->next;
    for (wefti_mac_control *c; (c = p->control); wefti_free(c)) p->control = c->next;
    for (int32_t i = 0; i < p->streams; i++) wefti_mac_connection_close(&p->connection[i]);
    wefti_free(p->connection);
    p->connection = NULL;
    p->streams = 0;
}

#endif
