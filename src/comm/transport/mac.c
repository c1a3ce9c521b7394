/* The transport of authenticated messages: connections, frames, matching of messages with receives.
 * docs/design-data-plane.md describes them. All pairs of ranks connect when the transport is made.
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
#include "base/memory.h"

enum {
    MAC_CLOSE_NS = 2000000000,  /* how long closing waits for the others */
    MAC_ABANDON_NS = 300000000, /* the same if the world has failed */
    MAC_EVENTS = 64,
    READS = 16 /* from one connection before the others have their turn */
};

static void put(unsigned char *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(x >> 8 * i);
}
static uint64_t get(const unsigned char *at, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)at[i] << 8 * i;
    return x;
}

/* --- lists --- */

static void append(wefti_mac_list *l, wefti_mac_request *r) {
    r->next = NULL;
    *l->last = r;
    l->last = &r->next;
}

static void drop(wefti_mac_list *l, wefti_mac_request *r) {
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
    if (r) drop(l, r);
    return r;
}

static wefti_mac_request *find_id(const wefti_mac_list *l, uint64_t id) {
    wefti_mac_request *r = l->first;
    while (r && r->id != id) r = r->next;
    return r;
}

/* --- the end of a connection --- */

static void finish(wefti_mac_request *r, weft_status status) {
    r->done = true;
    r->status = status;
}

static void finish_all(wefti_mac_list *l, weft_status status) {
    for (wefti_mac_request *r; (r = l->first);) {
        drop(l, r);
        finish(r, status);
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

static weft_status add_control(wefti_mac_peer *p, wefti_mac_kind kind, uint64_t tag) {
    wefti_mac_control *c;
    WEFT_NEW(c, wefti_mac_control);
    *c = (wefti_mac_control){.kind = kind, .tag = tag};
    *p->control_last = c;
    p->control_last = &c->next;
    return WEFT_OK;
}

static weft_status seal(wefti_mac_peer *p, wefti_mac_kind kind, uint64_t tag, uint64_t size,
                        const unsigned char *body, size_t bytes) {
    put(p->header, bytes, 4);
    put(p->header + 4, kind, 4);
    put(p->header + 8, tag, 8);
    put(p->header + 16, size, 8);
    p->body = body;
    p->body_bytes = bytes;
    p->written = 0;
    p->frame_bytes = WEFTI_MAC_HEADER + bytes + WEFTI_MAC_TAG;
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
        drop(&p->sending, r);
        append(&p->announced, r);
        put(p->id_body, r->id, 8);
        return seal(p, WEFTI_MAC_ANNOUNCE, r->tag, r->bytes, p->id_body, 8);
    }
    size_t bytes = r->bytes - r->at < WEFTI_MAC_BODY ? r->bytes - r->at : WEFTI_MAC_BODY;
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
    drop(&p->sending, r);
    finish(r, WEFT_OK);
}

/* WEFT_PENDING: the socket is full. */
static weft_status write_some(wefti_mac_peer *p) {
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

static void flush(wefti_mac_side *s, wefti_mac_peer *p) {
    weft_status status = WEFT_OK;
    while (p->fd >= 0 && status == WEFT_OK) {
        if (!p->frame_bytes) status = next_frame(p);
        if (status >= 0 && !p->frame_bytes) break;
        if (status >= 0) status = write_some(p);
    }
    if (status < 0)
        lose(p, weft_error_message());
    else
        poll_write(s, p, p->frame_bytes > 0);
}

/* --- reading --- */

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
        finish(r, WEFT_E_CORRUPT);
        return;
    }
    if (bytes) memcpy(r->destination, body, bytes);
    finish(r, WEFT_OK);
}

/* READY: there is memory for that message. */
static weft_status ask_for(wefti_mac_peer *p, wefti_mac_request *r, uint64_t id, size_t bytes) {
    r->bytes = bytes;
    r->at = 0;
    r->id = id;
    if (bytes > r->room) { /* its data is never asked for */
        finish(r, WEFT_E_CORRUPT);
        return WEFT_OK;
    }
    append(&p->coming, r);
    return add_control(p, WEFTI_MAC_READY, id);
}

static weft_status hear_announced(wefti_mac_peer *p, uint64_t id, const unsigned char *body,
                                  size_t bytes) {
    wefti_mac_request *r = find_id(&p->coming, id);
    if (!r) return WEFT_OK; /* cancelled */
    WEFT_REQUIRE(bytes <= r->bytes - r->at, WEFT_E_CORRUPT, "a frame beyond its message");
    memcpy(r->destination + r->at, body, bytes);
    r->at += bytes;
    if (r->at < r->bytes) return WEFT_OK;
    drop(&p->coming, r);
    finish(r, WEFT_OK);
    return WEFT_OK;
}

static void hear_ready(wefti_mac_peer *p, uint64_t id) {
    wefti_mac_request *r = find_id(&p->announced, id);
    if (!r) return; /* cancelled */
    drop(&p->announced, r);
    r->ready = true;
    append(&p->sending, r);
}

static weft_status hear(wefti_mac_peer *p, const unsigned char *frame, size_t bytes) {
    uint64_t kind = get(frame + 4, 4), tag = get(frame + 8, 8), size = get(frame + 16, 8);
    const unsigned char *body = frame + WEFTI_MAC_HEADER;
    if (kind == WEFTI_MAC_DATA && size == UINT64_MAX) return hear_announced(p, tag, body, bytes);
    if (kind == WEFTI_MAC_READY) hear_ready(p, tag);
    if (kind == WEFTI_MAC_LEAVE) p->left = true;
    if (kind == WEFTI_MAC_READY || kind == WEFTI_MAC_LEAVE) return WEFT_OK;
    bool announces = kind == WEFTI_MAC_ANNOUNCE && bytes == 8 && size < SIZE_MAX / 2;
    bool whole = kind == WEFTI_MAC_DATA && bytes == size && size <= WEFTI_MAC_EAGER;
    WEFT_REQUIRE(announces || whole, WEFT_E_CORRUPT, "a frame that makes no sense");
    wefti_mac_request *r = take_tag(&p->wanted, tag);
    uint64_t id = announces ? get(body, 8) : 0;
    if (!r) return add_early(p, tag, size, announces, id, body);
    if (announces) return ask_for(p, r, id, (size_t)size);
    deliver(r, body, bytes);
    return WEFT_OK;
}

/* All whole frames in the staging buffer. Nothing of a frame but its length is looked at before
 * its tag is right. */
static weft_status hear_frames(wefti_mac_peer *p) {
    unsigned char tag[WEFTI_MAC_TAG];
    size_t at = 0;
    while (p->in_used - at >= WEFTI_MAC_HEADER) {
        const unsigned char *frame = p->in + at;
        size_t bytes = (size_t)get(frame, 4);
        WEFT_REQUIRE(bytes <= WEFTI_MAC_BODY, WEFT_E_CORRUPT, "a frame that is too long");
        size_t whole = WEFTI_MAC_HEADER + bytes + WEFTI_MAC_TAG;
        if (p->in_used - at < whole) break;
        WEFT_TRY(wefti_mac_sign(&p->receives, frame, frame + WEFTI_MAC_HEADER, bytes, tag));
        WEFT_REQUIRE(wefti_mac_equal(tag, frame + whole - sizeof tag, sizeof tag), WEFT_E_CORRUPT,
                     "a message was changed on its way");
        at += whole;
        WEFT_TRY(hear(p, frame, bytes));
    }
    if (at > 0) memmove(p->in, p->in + at, p->in_used - at);
    p->in_used -= at;
    return WEFT_OK;
}

/* Memory grows with received bytes, not with announced ones. */
static weft_status make_room(wefti_mac_peer *p) {
    enum { FIRST = 16384, MOST = 2 * WEFTI_MAC_FRAME };
    if (p->in_used < p->in_room) return WEFT_OK;
    size_t room = p->in_room ? 2 * p->in_room : FIRST;
    if (room > MOST) room = MOST;
    unsigned char *grown = wefti_realloc(p->in, room);
    WEFT_REQUIRE(grown, WEFT_E_NOMEM, "no memory for %zu received bytes", room);
    p->in = grown;
    p->in_room = room;
    return WEFT_OK;
}

/* WEFT_PENDING: nothing more is there. */
static weft_status read_some(wefti_mac_peer *p) {
    WEFT_TRY(make_room(p));
    ssize_t n = recv(p->fd, p->in + p->in_used, p->in_room - p->in_used, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n > 0, WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
    p->in_used += (size_t)n;
    return hear_frames(p);
}

static void read_peer(wefti_mac_side *s, wefti_mac_peer *p) {
    weft_status status = WEFT_OK;
    for (int i = 0; i < READS && p->fd >= 0 && status == WEFT_OK; i++) status = read_some(p);
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
    append(&p->sending, r);
    flush(s, p);
    return WEFT_OK;
}

static wefti_mac_early *take_early(wefti_mac_peer *p, uint64_t tag) {
    wefti_mac_early **at = &p->early, *e;
    while (*at && (*at)->tag != tag) at = &(*at)->next;
    if (!(e = *at)) return NULL;
    *at = e->next;
    for (p->early_last = &p->early; *p->early_last;) p->early_last = &(*p->early_last)->next;
    return e;
}

static weft_status mac_receive(void *context, int peer, uint64_t tag, void *data, size_t bytes,
                               void *request) {
    wefti_mac_side *s = context;
    wefti_mac_peer *p = &s->peer[peer];
    wefti_mac_request *r = request;
    *r = (wefti_mac_request){
        .peer = peer, .receives = true, .tag = tag, .destination = data, .room = bytes};
    wefti_mac_early *e = take_early(p, tag);
    if (!e && p->lost) return tell_lost(s, peer);
    if (!e) {
        append(&p->wanted, r);
        return WEFT_OK;
    }
    weft_status status = WEFT_OK;
    if (!e->announced)
        deliver(r, e->data, e->bytes);
    else if (p->lost)
        status = tell_lost(s, peer);
    else
        status = ask_for(p, r, e->id, e->bytes);
    wefti_free(e);
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
    drop(&p->sending, r);
    drop(&p->announced, r);
    drop(&p->wanted, r);
    drop(&p->coming, r);
    finish(r, WEFT_E_STOPPED);
}

static weft_status mac_exchange(void *context, const void *mine, size_t bytes, void *all) {
    wefti_mac_side *s = context;
    return s->exchange.allgather(s->exchange.context, mine, bytes, all);
}

static void mac_abandon(void *context) {
    ((wefti_mac_side *)context)->abandoned = true;
}

static bool all_have_left(const wefti_mac_side *s) {
    for (int32_t r = 0; r < s->size; r++) {
        const wefti_mac_peer *p = &s->peer[r];
        if (p->fd >= 0 && (!p->left || p->frame_bytes)) return false;
    }
    return true;
}

/* Says LEAVE to all, and waits until all have said it: then nothing is under way. */
static void say_leave(wefti_mac_side *s) {
    int64_t until = wefti_now_ns() + (s->abandoned ? MAC_ABANDON_NS : MAC_CLOSE_NS);
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        if (p->fd < 0) continue;
        if (add_control(p, WEFTI_MAC_LEAVE, 0) >= 0) flush(s, p);
    }
    while (!all_have_left(s) && wefti_now_ns() < until) progress(s, 1);
}

static void free_peer(wefti_mac_peer *p) {
    for (wefti_mac_early *e; (e = p->early); wefti_free(e)) p->early = e->next;
    for (wefti_mac_control *c; (c = p->control); wefti_free(c)) p->control = c->next;
    if (p->fd >= 0) close(p->fd);
    wefti_mac_stream_close(&p->sends);
    wefti_mac_stream_close(&p->receives);
    wefti_free(p->in);
}

static void mac_close(void *context) {
    wefti_mac_side *s = context;
    wefti_failure failure;
    wefti_failure_keep(WEFT_OK, &failure);
    if (s->peer && s->poller >= 0) say_leave(s);
    for (int32_t r = 0; s->peer && r < s->size; r++) free_peer(&s->peer[r]);
    if (s->listener >= 0) close(s->listener);
    if (s->poller >= 0) close(s->poller);
    explicit_bzero(s->key, sizeof s->key);
    wefti_free(s->peer);
    wefti_free(s);
    (void)wefti_failure_tell(&failure);
}

static void begin_list(wefti_mac_list *l) {
    l->last = &l->first;
}

static weft_status open_side(wefti_mac_side *s, const wefti_mac_options *o) {
    WEFT_NEW_ARRAY(s->peer, wefti_mac_peer, s->size);
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        p->fd = -1;
        p->control_last = &p->control;
        p->early_last = &p->early;
        begin_list(&p->sending);
        begin_list(&p->announced);
        begin_list(&p->wanted);
        begin_list(&p->coming);
    }
    WEFT_TRY(wefti_mac_connect_all(s, o));
    s->poller = epoll_create1(EPOLL_CLOEXEC);
    WEFT_REQUIRE(s->poller >= 0, WEFT_E_IO, "no event queue: %s", strerror(errno));
    for (int32_t r = 0; r < s->size; r++) {
        wefti_mac_peer *p = &s->peer[r];
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)r};
        if (r == s->rank) continue;
        WEFT_REQUIRE(epoll_ctl(s->poller, EPOLL_CTL_ADD, p->fd, &e) == 0, WEFT_E_IO,
                     "a connection cannot be watched: %s", strerror(errno));
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
    *out = (weft_transport){.name = "mac",
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
                            .abandon = mac_abandon};
    return WEFT_OK;
}

#else

weft_status wefti_mac_transport(const wefti_mac_options *options, weft_transport *out) {
    (void)options;
    (void)out;
    WEFT_FAIL(WEFT_E_NO_IMPL, "this weft was built without OpenSSL, which signs messages");
}

#endif
