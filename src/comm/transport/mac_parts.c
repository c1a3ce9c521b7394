/* Announced messages go in parts. The threads of all streams of a pair take parts of one message,
 * and put parts into the memory of one receive. The lock guards which parts have begun, never the
 * use of a message's memory: a request counts its users, and is taken away when it has none. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <stdio.h>
#include <sys/socket.h>

/* From 1 MiB on, the time of four frames, a worker's wake-up is short beside the message. */
wefti_mac_sizes wefti_mac_used = {
    .eager = WEFTI_MAC_EAGER, .split = 1 << 20, .part = WEFTI_CONN_BODY};

weft_status wefti_mac_parts_begin(wefti_mac_parts *parts) {
    *parts = (wefti_mac_parts){0};
    WEFT_REQUIRE(pthread_mutex_init(&parts->lock, NULL) == 0, WEFT_E_NOMEM, "no memory for a lock");
    if (pthread_cond_init(&parts->unused, NULL) == 0) return WEFT_OK;
    pthread_mutex_destroy(&parts->lock);
    WEFT_FAIL(WEFT_E_NOMEM, "no memory for a condition");
}

void wefti_mac_parts_end(wefti_mac_parts *parts) {
    pthread_cond_destroy(&parts->unused);
    pthread_mutex_destroy(&parts->lock);
}

static void lock(const wefti_mac_peer *p) {
    pthread_mutex_lock(&p->parts->lock);
}
static void unlock(const wefti_mac_peer *p) {
    pthread_mutex_unlock(&p->parts->lock);
}

static void leave(wefti_mac_parts *parts, wefti_mac_request *r) {
    if (--r->users == 0) pthread_cond_broadcast(&parts->unused);
}

/* All parts have gone or come: then nobody uses the request. */
static void end_if_whole(wefti_mac_list *l, wefti_mac_request *r) {
    if (r->at == r->bytes && r->users == 0 && wefti_mac_drop(l, r)) wefti_mac_finish(r, WEFT_OK);
}

/* --- sending --- */

static bool splits(const wefti_mac_peer *p, const wefti_mac_request *r) {
    return p->streams > 1 && r->bytes >= wefti_mac_used.split;
}

void wefti_mac_parts_send(wefti_mac_peer *p, wefti_mac_request *r) {
    wefti_mac_parts *parts = p->parts;
    lock(p);
    wefti_mac_append(&p->going, r);
    if (splits(p, r)) {
        if (!p->busy) {
            p->next_busy = parts->busy;
            parts->busy = p;
            p->busy = true;
        }
        wefti_mac_workers_wake(parts, r->bytes / wefti_mac_used.part);
    }
    unlock(p);
}

/* The first message of which stream `number` may take a part. */
static wefti_mac_request *find_part(const wefti_mac_peer *p, int32_t number) {
    wefti_mac_request *r = p->going.first;
    while (r && (r->begun == r->bytes || (number > 0 && !splits(p, r)))) r = r->next;
    return r;
}

bool wefti_mac_parts_take(wefti_mac_stream *c, size_t most, wefti_mac_part *out) {
    lock(c->peer);
    wefti_mac_request *r = find_part(c->peer, c->number);
    if (r) {
        size_t left = r->bytes - r->begun;
        *out = (wefti_mac_part){.id = r->id, .at = r->begun, .bytes = left < most ? left : most};
        r->begun += out->bytes;
        r->users++;
        c->of = r;
        c->part = true;
    }
    unlock(c->peer);
    return r != NULL;
}

weft_status wefti_mac_parts_hold(wefti_mac_stream *c) {
    lock(c->peer);
    bool cut = c->cut;
    if (!cut) c->of->users++;
    unlock(c->peer);
    WEFT_REQUIRE(!cut, WEFT_E_PEER, "a message to it was given up");
    return WEFT_OK;
}

void wefti_mac_parts_release(wefti_mac_stream *c, bool whole) {
    lock(c->peer);
    wefti_mac_request *r = c->of;
    if (whole) {
        c->of = NULL;
        c->part = false;
    }
    if (r) {
        leave(c->peer->parts, r);
        if (whole) r->at += c->conn.body_bytes;
        end_if_whole(&c->peer->going, r);
    }
    unlock(c->peer);
}

wefti_mac_peer *wefti_mac_parts_next(wefti_mac_parts *parts, int32_t number,
                                     const wefti_mac_peer *last) {
    wefti_mac_peer *first = NULL, **at = &parts->busy;
    bool passed = false;
    for (wefti_mac_peer *p; (p = *at);) {
        if (!find_part(p, 1)) {
            *at = p->next_busy;
            p->busy = false;
            continue;
        }
        const wefti_mac_stream *c = number < p->streams ? &p->stream[number] : NULL;
        bool can = c && c->conn.fd >= 0 && !c->conn.polls_write;
        if (can && passed) return p;
        if (can && !first) first = p;
        passed = passed || p == last;
        at = &p->next_busy;
    }
    return first;
}

/* --- receiving --- */

void wefti_mac_parts_expect(wefti_mac_peer *p, wefti_mac_request *r) {
    lock(p);
    wefti_mac_append(&p->coming, r);
    unlock(p);
}

static wefti_mac_request *find_coming(const wefti_mac_peer *p, uint64_t id) {
    wefti_mac_request *r = p->coming.first;
    while (r && r->id != id) r = r->next;
    return r;
}

weft_status wefti_mac_parts_begin_one(wefti_mac_peer *p, const wefti_mac_part *part) {
    lock(p);
    wefti_mac_request *r = find_coming(p, part->id);
    bool fits = !r || (part->at <= r->bytes && part->bytes <= r->bytes - part->at &&
                       part->bytes <= r->bytes - r->begun);
    if (r && fits) r->begun += part->bytes;
    unlock(p);
    WEFT_REQUIRE(fits, WEFT_E_CORRUPT, "a frame beyond its message");
    return WEFT_OK;
}

wefti_mac_request *wefti_mac_parts_hold_coming(wefti_mac_peer *p, uint64_t id) {
    lock(p);
    wefti_mac_request *r = find_coming(p, id);
    if (r) r->users++;
    unlock(p);
    return r;
}

void wefti_mac_parts_came(wefti_mac_peer *p, wefti_mac_request *r, size_t bytes) {
    lock(p);
    r->at += bytes;
    leave(p->parts, r);
    end_if_whole(&p->coming, r);
    unlock(p);
}

/* --- giving up --- */

/* With the lock. When this returns, no thread uses the request's memory, nor will. True: a frame
 * has begun and cannot end. */
static bool take_away(wefti_mac_peer *p, wefti_mac_request *r) {
    bool cut = false;
    (void)(wefti_mac_drop(&p->going, r) || wefti_mac_drop(&p->coming, r));
    while (r->users > 0) pthread_cond_wait(&p->parts->unused, &p->parts->lock);
    for (int32_t i = 0; i < p->streams; i++) {
        wefti_mac_stream *c = &p->stream[i];
        if (!c->part || c->of != r) continue;
        c->of = NULL;
        c->cut = cut = true;
    }
    return cut;
}

bool wefti_mac_parts_drop(wefti_mac_peer *p, wefti_mac_request *r) {
    lock(p);
    bool cut = take_away(p, r);
    unlock(p);
    return cut;
}

void wefti_mac_parts_lose(wefti_mac_peer *p) {
    lock(p);
    for (int32_t i = 1; i < p->streams; i++) /* its worker closes it */
        if (p->stream[i].conn.fd >= 0) (void)shutdown(p->stream[i].conn.fd, SHUT_RDWR);
    for (wefti_mac_request *r; (r = p->going.first ? p->going.first : p->coming.first);) {
        (void)take_away(p, r);
        wefti_mac_finish(r, WEFT_E_PEER);
    }
    unlock(p);
}

void wefti_mac_parts_fault(wefti_mac_stream *c) {
    wefti_mac_peer *p = c->peer;
    lock(p);
    if (!*p->fault)
        (void)snprintf(p->fault, sizeof p->fault, "stream %d of %d: %s", (int)c->number,
                       (int)p->streams, weft_error_message());
    wefti_conn_cut(&c->conn);
    unlock(p);
    atomic_fetch_add(&p->parts->faults, 1);
}

bool wefti_mac_parts_read_fault(wefti_mac_peer *p, char *out, size_t room) {
    lock(p);
    (void)snprintf(out, room, "%s", p->fault);
    unlock(p);
    return *out;
}

#endif
