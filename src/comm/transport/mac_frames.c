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

void wefti_mac_drop(wefti_mac_list *l, wefti_mac_request *r) {
    wefti_mac_request **at = &l->first;
    while (*at && *at != r) at = &(*at)->next;
    if (!*at) return;
    *at = r->next;
    r->next = NULL;
    for (l->last = &l->first; *l->last;) l->last = &(*l->last)->next;
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
    r->at = 0;
    r->id = id;
    if (bytes > r->room) { /* its data is never asked for */
        wefti_mac_finish(r, WEFT_E_CORRUPT);
        return WEFT_OK;
    }
    wefti_mac_append(&p->coming, r);
    return wefti_mac_add_control(p, WEFTI_MAC_READY, id);
}

/* *out: the receive that the next `bytes` of an announced message are for. NULL: it was cancelled.
 */
static weft_status find_coming(const wefti_mac_peer *p, uint64_t id, size_t bytes,
                               wefti_mac_request **out) {
    wefti_mac_request *r = *out = find_id(&p->coming, id);
    WEFT_REQUIRE(!r || bytes <= r->bytes - r->at, WEFT_E_CORRUPT, "a frame beyond its message");
    return WEFT_OK;
}

/* They are in its memory. */
static void has_come(wefti_mac_peer *p, wefti_mac_request *r, size_t bytes) {
    r->at += bytes;
    if (r->at < r->bytes) return;
    wefti_mac_drop(&p->coming, r);
    wefti_mac_finish(r, WEFT_OK);
}

static weft_status hear_announced(wefti_mac_peer *p, uint64_t id, const unsigned char *body,
                                  size_t bytes) {
    wefti_mac_request *r;
    WEFT_TRY(find_coming(p, id, bytes, &r));
    if (!r) return WEFT_OK;
    memcpy(r->destination + r->at, body, bytes);
    has_come(p, r, bytes);
    return WEFT_OK;
}

static void hear_ready(wefti_mac_peer *p, uint64_t id) {
    wefti_mac_request *r = find_id(&p->announced, id);
    if (!r) return; /* cancelled */
    wefti_mac_drop(&p->announced, r);
    r->ready = true;
    wefti_mac_append(&p->sending, r);
}

static weft_status hear(wefti_mac_peer *p, const unsigned char *frame, size_t bytes) {
    uint64_t kind = wefti_get_number(frame + 4, 4), tag = wefti_get_number(frame + 8, 8),
             size = wefti_get_number(frame + 16, 8);
    const unsigned char *body = frame + WEFTI_MAC_HEADER;
    if (kind == WEFTI_MAC_DATA && size == UINT64_MAX) return hear_announced(p, tag, body, bytes);
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

/* The length of the frame that begins at `frame`, with its tag. */
static size_t whole_frame(const wefti_mac_peer *p, const unsigned char *frame) {
    return WEFTI_MAC_HEADER + (size_t)wefti_get_number(frame, 4) + (p->tls ? 0 : WEFTI_MAC_TAG);
}

static weft_status check_tag(wefti_mac_peer *p, const unsigned char *frame, size_t bytes) {
    unsigned char tag[WEFTI_MAC_TAG];
    if (p->tls) return WEFT_OK; /* of the record, which was right */
    WEFT_TRY(wefti_mac_sign(&p->receives, frame, frame + WEFTI_MAC_HEADER, bytes, tag));
    WEFT_REQUIRE(wefti_mac_equal(tag, frame + WEFTI_MAC_HEADER + bytes, sizeof tag), WEFT_E_CORRUPT,
                 "a message was changed on its way");
    return WEFT_OK;
}

/* --- bodies in parts: of announced messages, in the form `tls`. Each byte is authenticated when it
 * comes, so these bodies need not be whole. --- */

static bool comes_in_parts(const wefti_mac_peer *p, const unsigned char *frame) {
    return p->tls && wefti_get_number(frame + 4, 4) == WEFTI_MAC_DATA &&
           wefti_get_number(frame + 16, 8) == UINT64_MAX;
}

/* `come` bytes of it came with the header. */
static weft_status begin_body(wefti_mac_peer *p, const unsigned char *frame, size_t come) {
    wefti_mac_request *whole;
    p->body_id = wefti_get_number(frame + 8, 8);
    p->body_left = (size_t)wefti_get_number(frame, 4);
    WEFT_TRY(find_coming(p, p->body_id, p->body_left, &whole));
    p->body_left -= come;
    return hear_announced(p, p->body_id, frame + WEFTI_MAC_HEADER, come);
}

weft_status wefti_mac_body_place(wefti_mac_peer *p, unsigned char **out, size_t *out_room) {
    wefti_mac_request *r;
    WEFT_TRY(find_coming(p, p->body_id, p->body_left, &r));
    if (r) {
        *out = r->destination + r->at;
        *out_room = p->body_left;
        return WEFT_OK;
    }
    WEFT_TRY(wefti_mac_make_room(p, out_room));
    *out = p->in + p->in_used;
    if (*out_room > p->body_left) *out_room = p->body_left;
    return WEFT_OK;
}

void wefti_mac_body_came(wefti_mac_peer *p, size_t bytes) {
    wefti_mac_request *r = find_id(&p->coming, p->body_id);
    p->body_left -= bytes;
    if (r) has_come(p, r, bytes);
}

/* --- */

weft_status wefti_mac_hear(wefti_mac_peer *p) {
    size_t at = 0;
    while (p->in_used - at >= WEFTI_MAC_HEADER) {
        const unsigned char *frame = p->in + at;
        size_t bytes = (size_t)wefti_get_number(frame, 4), whole = whole_frame(p, frame);
        WEFT_REQUIRE(bytes <= WEFTI_MAC_BODY, WEFT_E_CORRUPT, "a frame that is too long");
        if (comes_in_parts(p, frame)) {
            size_t come = p->in_used - at - WEFTI_MAC_HEADER;
            if (come > bytes) come = bytes;
            WEFT_TRY(begin_body(p, frame, come));
            at += WEFTI_MAC_HEADER + come;
            continue;
        }
        if (p->in_used - at < whole) break;
        WEFT_TRY(check_tag(p, frame, bytes));
        at += whole;
        WEFT_TRY(hear(p, frame, bytes));
    }
    if (at > 0) memmove(p->in, p->in + at, p->in_used - at);
    p->in_used -= at;
    return WEFT_OK;
}

/* Memory grows with received bytes, not with announced ones. A long frame is read to its end and no
 * further, so that little has to be moved to the front. */
weft_status wefti_mac_make_room(wefti_mac_peer *p, size_t *out_bytes) {
    enum { FIRST = 65536, MOST = WEFTI_MAC_FRAME + FIRST };
    if (p->in_used == p->in_room) {
        size_t room = p->in_room ? 2 * p->in_room : FIRST;
        if (room > MOST) room = MOST;
        unsigned char *grown = wefti_realloc(p->in, room);
        WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for %zu received bytes", room);
        p->in = grown;
        p->in_room = room;
    }
    *out_bytes = p->in_room - p->in_used;
    if (p->in_used >= WEFTI_MAC_HEADER) {
        size_t whole = whole_frame(p, p->in);
        if (whole > FIRST && whole - p->in_used < *out_bytes) *out_bytes = whole - p->in_used;
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

void wefti_mac_peer_begin(wefti_mac_peer *p) {
    *p = (wefti_mac_peer){.fd = -1};
    p->control_last = &p->control;
    p->early_last = &p->early;
    list_begin(&p->sending);
    list_begin(&p->announced);
    list_begin(&p->wanted);
    list_begin(&p->coming);
}

void wefti_mac_peer_free(wefti_mac_peer *p) {
    for (wefti_mac_early *e; (e = p->early); wefti_free(e)) p->early = e->next;
    for (wefti_mac_control *c; (c = p->control); wefti_free(c)) p->control = c->next;
    wefti_mac_tls_close(p->tls);
    if (p->fd >= 0) close(p->fd);
    wefti_mac_stream_close(&p->sends);
    wefti_mac_stream_close(&p->receives);
    wefti_free(p->in);
}

#endif
