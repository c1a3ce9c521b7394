/* Received frames of authenticated messages: which are right, and which receive each of them is
 * for. Nothing here touches a socket. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <string.h>

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

static weft_status hear_first(wefti_mac_peer *p, const wefti_conn_frame *f) {
    if (f->kind == WEFTI_MAC_READY) hear_ready(p, f->tag);
    if (f->kind == WEFTI_MAC_LEAVE) p->left = true;
    if (f->kind == WEFTI_MAC_READY || f->kind == WEFTI_MAC_LEAVE) return WEFT_OK;
    uint64_t size = f->place;
    bool announces = f->kind == WEFTI_MAC_ANNOUNCE && f->bytes == 8 && size < SIZE_MAX / 2;
    bool whole = f->kind == WEFTI_MAC_DATA && f->bytes == size && size <= WEFTI_MAC_EAGER;
    WEFT_REQUIRE(announces || whole, WEFT_E_CORRUPT, "a frame that makes no sense");
    wefti_mac_request *r = take_tag(&p->wanted, f->tag);
    uint64_t id = announces ? wefti_get_number(f->body, 8) : 0;
    if (!r) return add_early(p, f->tag, size, announces, id, f->body);
    if (announces) return ask_for(p, r, id, (size_t)size);
    deliver(r, f->body, f->bytes);
    return WEFT_OK;
}

static wefti_mac_part part_of(const wefti_conn_frame *f) {
    return (wefti_mac_part){.id = f->tag, .at = (size_t)f->place, .bytes = f->bytes};
}

static weft_status hear(wefti_mac_stream *c, const wefti_conn_frame *f) {
    wefti_mac_part part = part_of(f);
    if (f->kind == WEFTI_MAC_PART) return hear_part(c->peer, &part, f->body);
    WEFT_REQUIRE(c->number == 0, WEFT_E_CORRUPT, "a frame of another stream");
    return hear_first(c->peer, f);
}

/* --- bodies that come in pieces: of parts, in the form `tls`. Each byte is authenticated when it
 * comes, so these bodies need not be whole. --- */

static weft_status begin_body(wefti_mac_stream *c, const wefti_conn_frame *f) {
    wefti_mac_part part = part_of(f);
    WEFT_TRY(wefti_mac_parts_begin_one(c->peer, &part));
    c->body_id = part.id;
    c->body_at = part.at;
    c->body_left = part.bytes;
    wefti_mac_request *r = wefti_mac_parts_hold_coming(c->peer, c->body_id);
    if (r && f->come) memcpy(r->destination + c->body_at, f->body, f->come);
    wefti_mac_body_came(c, r, f->come);
    return WEFT_OK;
}

weft_status wefti_mac_body_place(wefti_mac_stream *c, unsigned char **out, size_t *out_room,
                                 wefti_mac_request **out_of) {
    wefti_mac_request *r = *out_of = wefti_mac_parts_hold_coming(c->peer, c->body_id);
    if (r) {
        *out = r->destination + c->body_at;
        *out_room = c->body_left;
        return WEFT_OK;
    }
    WEFT_TRY(wefti_conn_make_room(&c->conn, out_room));
    *out = c->conn.in + c->conn.in_used;
    if (*out_room > c->body_left) *out_room = c->body_left;
    return WEFT_OK;
}

void wefti_mac_body_came(wefti_mac_stream *c, wefti_mac_request *of, size_t bytes) {
    c->body_at += bytes;
    c->body_left -= bytes;
    if (of) wefti_mac_parts_came(c->peer, of, bytes);
}

/* --- */

weft_status wefti_mac_hear(wefti_mac_stream *c) {
    size_t at = 0;
    wefti_conn_frame f;
    weft_status status;
    while ((status = wefti_conn_next(&c->conn, at, &f)) == WEFT_OK) {
        bool goes_on = c->conn.tls && f.kind == WEFTI_MAC_PART;
        if (!goes_on && f.come < f.bytes) break;
        at += goes_on ? WEFTI_CONN_HEADER + f.come : f.whole;
        WEFT_TRY(goes_on ? begin_body(c, &f) : hear(c, &f));
    }
    if (status < 0) return status;
    wefti_conn_forget(&c->conn, at);
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
    WEFT_NEW_ARRAY(p->stream, wefti_mac_stream, streams);
    p->streams = streams;
    for (int32_t i = 0; i < streams; i++)
        p->stream[i] = (wefti_mac_stream){.conn = WEFTI_CONN_NONE, .number = i, .peer = p};
    return WEFT_OK;
}

void wefti_mac_peer_free(wefti_mac_peer *p) {
    for (wefti_mac_early *e; (e = p->early); wefti_free(e)) p->early = e->next;
    for (wefti_mac_control *c; (c = p->control); wefti_free(c)) p->control = c->next;
    for (int32_t i = 0; i < p->streams; i++) wefti_conn_close(&p->stream[i].conn);
    wefti_free(p->stream);
    p->stream = NULL;
    p->streams = 0;
}

#endif
