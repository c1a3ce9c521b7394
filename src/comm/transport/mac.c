/* The transport of authenticated messages: sending, reading, and the table of functions.
 * docs/design/data-plane.md describes it. All pairs of ranks connect when the transport is made.
 * Calls come from one thread at a time. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

enum {
    MAC_CLOSE_NS = 2000000000,  /* how long closing waits for the others */
    MAC_ABANDON_NS = 300000000, /* the same if the world has failed */
    MAC_EVENTS = 64,
    DRAIN = 64 /* turns of reading */
};

/* --- the end of a connection --- */

static void finish_all(wefti_mac_list *l, weft_status status) {
    for (wefti_mac_request *r; (r = l->first);) {
        (void)wefti_mac_drop(l, r);
        wefti_mac_finish(r, status);
    }
}

/* Nothing comes from that peer or goes to it any more. What has come is still there. */
static void lose(wefti_mac_peer *p, const char *why) {
    wefti_mac_stream *c = p->stream;
    if (p->lost) return;
    p->lost = true;
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    finish_all(&p->sending, WEFT_E_PEER);
    finish_all(&p->announced, WEFT_E_PEER);
    finish_all(&p->wanted, WEFT_E_PEER);
    wefti_mac_parts_lose(p);
    wefti_conn_cut(&c->conn);
    c->of = NULL;
}

static weft_status tell_lost(const wefti_mac_side *s, int32_t peer) {
    WEFT_FAIL(WEFT_E_PEER, "%s (rank %d)", s->peer[peer].why, (int)peer);
}

static void flush(wefti_mac_side *s, wefti_mac_peer *p) {
    wefti_mac_stream *c = p->stream;
    if (p->lost || !c || c->conn.fd < 0) return;
    weft_status status = wefti_mac_flush(c);
    s->moved += c->moved;
    c->moved = 0;
    if (status < 0) lose(p, weft_error_message());
}

static void read_peer(wefti_mac_side *s, wefti_mac_peer *p) {
    if (p->lost || p->stream->conn.fd < 0) return;
    weft_status status = wefti_mac_read(p->stream);
    if (status < 0)
        lose(p, weft_error_message());
    else
        flush(s, p);
}

/* What has come on the first stream, as far as it is there now. */
static void drain(wefti_mac_side *s, wefti_mac_peer *p) {
    uint64_t moved = s->moved + 1;
    for (int turns = 0; turns < DRAIN && !p->lost && s->moved != moved; turns++) {
        moved = s->moved;
        read_peer(s, p);
    }
}

/* A stream of a worker has failed, so the pair is lost. What the peer has said before on the first
 * one is heard: it may have left, or say why it ends. */
static void hear_faults(wefti_mac_side *s, uint64_t faults) {
    char why[sizeof s->peer->fault];
    s->faults = faults;
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        if (p->lost || !wefti_mac_parts_read_fault(p, why, sizeof why)) continue;
        drain(s, p);
        if (!p->left) lose(p, why);
    }
}

static void progress(wefti_mac_side *s, int milliseconds) {
    struct epoll_event events[MAC_EVENTS];
    int count = epoll_wait(s->poller, events, MAC_EVENTS, milliseconds);
    for (int i = 0; i < count; i++) {
        wefti_mac_peer *p = &s->peer[events[i].data.u64];
        if (events[i].events & EPOLLOUT) flush(s, p);
        if (events[i].events & ~(uint32_t)EPOLLOUT) read_peer(s, p);
    }
    uint64_t faults = atomic_load_explicit(&s->parts.faults, memory_order_relaxed);
    if (faults != s->faults) hear_faults(s, faults);
}

/* --- the table --- */

static weft_status mac_send(void *context, int peer, uint64_t tag, const void *data, size_t bytes,
                            void *request) {
    wefti_mac_side *s = context;
    wefti_mac_peer *p = &s->peer[peer];
    wefti_mac_request *r = request;
    *r = (wefti_mac_request){.peer = peer, .tag = tag, .source = data, .bytes = bytes};
    if (p->lost) return tell_lost(s, peer);
    r->announced = bytes > wefti_mac_used.eager;
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
    bool done = atomic_load_explicit(&r->done, memory_order_acquire);
    if (!done && r->turn == s->turn) {
        s->turn++;
        progress(s, 0);
        done = atomic_load_explicit(&r->done, memory_order_acquire);
    }
    r->turn = s->turn;
    if (!done) return WEFT_PENDING;
    if (r->status == WEFT_E_PEER) return tell_lost(s, r->peer);
    WEFT_REQUIRE(r->status >= 0, r->status, "a message of %zu bytes from rank %d; %zu are the most",
                 r->bytes, (int)r->peer, r->room);
    if (out_bytes && r->receives) *out_bytes = r->bytes;
    return WEFT_OK;
}

static bool is_done(const wefti_mac_request *r) {
    return atomic_load_explicit(&r->done, memory_order_acquire);
}

/* A frame that has begun must end: else the connection is cut. */
static void mac_cancel(void *context, void *request) {
    wefti_mac_side *s = context;
    wefti_mac_request *r = request;
    wefti_mac_peer *p = &s->peer[r->peer];
    wefti_mac_stream *first = p->stream;
    if (is_done(r)) return;
    if (first->of == r) flush(s, p);
    bool cut = wefti_mac_parts_drop(p, r);
    if (is_done(r)) return;
    if (cut || first->of == r) lose(p, "a message to it was given up");
    if (is_done(r)) return;
    (void)(wefti_mac_drop(&p->sending, r) || wefti_mac_drop(&p->announced, r) ||
           wefti_mac_drop(&p->wanted, r));
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
    const wefti_mac_side *s = context;
    return s->moved + wefti_mac_workers_moved(&s->parts);
}

static bool is_there(const wefti_mac_peer *p) {
    return p->stream && p->stream->conn.fd >= 0;
}

static bool all_have_left(const wefti_mac_side *s) {
    for (int32_t r = 0; r < s->size; r++) {
        const wefti_mac_peer *p = &s->peer[r];
        if (is_there(p) && (!p->left || wefti_conn_has_output(&p->stream->conn))) return false;
    }
    return true;
}

/* Says LEAVE to all, and waits until all have said it: then nothing is under way. */
static void say_leave(wefti_mac_side *s) {
    int64_t until = wefti_now_ns() + (s->abandoned ? MAC_ABANDON_NS : MAC_CLOSE_NS);
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        if (!is_there(p)) continue;
        if (wefti_mac_add_control(p, WEFTI_MAC_LEAVE, 0) >= 0) flush(s, p);
    }
    while (!all_have_left(s) && wefti_now_ns() < until) progress(s, 1);
}

static void mac_close(void *context) {
    wefti_mac_side *s = context;
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    if (s->peer && s->poller >= 0) say_leave(s);
    wefti_mac_workers_stop(s);
    for (int32_t r = 0; s->peer && r < s->size; r++) wefti_mac_peer_free(&s->peer[r]);
    if (s->poller >= 0) close(s->poller);
    wefti_conn_keys_close(&s->keys);
    wefti_free(s->peer);
    if (s->has_parts) wefti_mac_parts_end(&s->parts);
    wefti_free(s);
    (void)wefti_failure_tell(&failure);
}

static weft_status open_side(wefti_mac_side *s, const wefti_mac_options *o) {
    WEFT_TRY(wefti_mac_parts_begin(&s->parts));
    s->has_parts = true;
    WEFT_NEW_ARRAY(s->peer, wefti_mac_peer, s->size);
    for (int32_t r = 0; r < s->size; r++) wefti_mac_peer_begin(&s->peer[r], &s->parts);
    int32_t streams = o->streams ? o->streams : 1;
    WEFT_TRY(wefti_conn_keys_open(&s->keys, o->key, o->encrypts, s->size * streams));
    WEFT_TRY(wefti_mac_connect_all(s, o));
    s->poller = epoll_create1(EPOLL_CLOEXEC);
    WEFT_REQUIRE(s->poller >= 0, WEFT_E_IO, "no event queue: %s", strerror(errno));
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        if (r != s->rank) WEFT_TRY(wefti_conn_watch(&p->stream->conn, s->poller, (uint64_t)r));
    }
    WEFT_TRY(wefti_mac_workers_start(s));
    /* The first frames may have come with the end of TLS's handshake: no event tells of them. */
    for (int32_t r = 0; s->keys.tls && r < s->size; r++)
        if (r != s->rank) read_peer(s, &s->peer[r]);
    return WEFT_OK;
}

weft_status wefti_mac_transport(const wefti_mac_options *o, weft_transport *out) {
    wefti_mac_side *s;
    WEFT_REQUIRE(o->size >= 1 && o->rank >= 0 && o->rank < o->size, WEFT_E_ARG, "rank %d of %d",
                 (int)o->rank, (int)o->size);
    WEFT_REQUIRE(o->streams >= 0 && o->streams <= WEFTI_MAC_STREAMS, WEFT_E_ARG,
                 "%d streams for a pair of ranks; 1 to %d are possible", (int)o->streams,
                 WEFTI_MAC_STREAMS);
    WEFT_NEW(s, wefti_mac_side);
    s->rank = o->rank;
    s->size = o->size;
    s->exchange = o->exchange;
    s->poller = -1;
    weft_status status = open_side(s, o);
    if (status < 0) {
        mac_close(s);
        return status;
    }
    *out = WEFT_STRUCT(
        weft_transport, .name = o->encrypts ? "tls" : "mac", .context = s, .rank = o->rank,
        .size = o->size, .any_thread = true, .request_bytes = sizeof(wefti_mac_request),
        .send = mac_send, .receive = mac_receive, .test = mac_test, .cancel = mac_cancel,
        .exchange = mac_exchange, .close = mac_close, .abandon = mac_abandon, .moved = mac_moved);
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
