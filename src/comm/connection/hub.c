/* The connections of a process that may be called as long as it runs, and that calls others when it
 * needs them. One thread uses a hub. A link's memory goes at the end of a turn, so that events and
 * functions of the owner never meet one that is gone. */
#include "comm/connection/inside.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

enum { HUB_EVENTS = 64, HUB_READS = 16 /* from one link before the others have their turn */ };

struct wefti_conn_queued {
    wefti_conn_queued *next;
    uint32_t kind;
    uint64_t tag, place;
    size_t bytes;
    unsigned char data[];
};

struct wefti_conn_hub {
    wefti_conn_hub_options o;
    wefti_conn_keys keys;
    wefti_conn_port port;
    int poller; /* of the port, named 0, and of links, named by their place */
    wefti_conn_link *links;
};

/* --- links --- */

static wefti_conn_link *find(const wefti_conn_hub *hub, wefti_conn_side side, bool listens) {
    wefti_conn_link *l = hub->links;
    while (l && (l->conn.state == WEFTI_CONN_CLOSED || l->conn.listens != listens ||
                 !wefti_conn_same(l->side, side)))
        l = l->next;
    return l;
}

/* The first reason stays. */
static void end(wefti_conn_link *l, weft_status status, const char *why) {
    if (!*l->why) {
        l->status = status;
        (void)snprintf(l->why, sizeof l->why, "%s", why);
    }
    wefti_conn_cut(&l->conn);
}

static void free_link(wefti_conn_link *l) {
    wefti_conn_close(&l->conn);
    for (wefti_conn_queued *q; (q = l->first); wefti_free(q)) l->first = q->next;
    wefti_free(l);
}

static weft_status add_link(wefti_conn_hub *hub, wefti_conn_side side, wefti_conn_link **out) {
    wefti_conn_link *l;
    WEFT_NEW(l, wefti_conn_link);
    l->conn = WEFTI_CONN_NONE;
    l->hub = hub;
    l->side = side;
    l->last = &l->first;
    l->until_ns = wefti_now_ns() + wefti_ns_of_seconds(hub->o.seconds, 600);
    l->next = hub->links;
    hub->links = l;
    *out = l;
    return WEFT_OK;
}

void wefti_conn_link_close(wefti_conn_link *l) {
    l->known = false;
    end(l, WEFT_E_STOPPED, "closed here");
}

/* --- sending --- */

static weft_status flush(wefti_conn_link *l) {
    wefti_conn *c = &l->conn;
    weft_status status = WEFT_OK;
    for (wefti_conn_queued *q; status == WEFT_OK && (q = l->first);) {
        if (!c->frame_bytes)
            WEFT_TRY(wefti_conn_seal(c, q->kind, q->tag, q->place, q->data, q->bytes));
        status = wefti_conn_write(c);
        if (status < 0 || c->frame_bytes) continue;
        l->first = q->next;
        if (!l->first) l->last = &l->first;
        l->queued -= WEFTI_CONN_HEADER + q->bytes;
        wefti_free(q);
    }
    return wefti_conn_flush(c, status);
}

static weft_status end_if_failed(wefti_conn_link *l, weft_status status) {
    if (status < 0) end(l, status, weft_error_message());
    return status;
}

weft_status wefti_conn_link_send(wefti_conn_link *l, uint32_t kind, uint64_t tag, uint64_t place,
                                 const struct iovec *part, int parts) {
    size_t bytes = 0;
    for (int i = 0; i < parts; i++) bytes += part[i].iov_len;
    WEFT_REQUIRE(bytes <= WEFTI_CONN_BODY, WEFT_E_ARG, "a frame of %zu bytes; %d are the most",
                 bytes, WEFTI_CONN_BODY);
    WEFT_REQUIRE(l->conn.state != WEFTI_CONN_CLOSED, WEFT_E_PEER, "%s", l->why);
    if (l->first && l->queued + WEFTI_CONN_HEADER + bytes > l->hub->o.queue_bytes)
        return WEFT_PENDING;
    wefti_conn_queued *q = wefti_alloc(sizeof *q + bytes);
    WEFT_REQUIRE(q, WEFT_E_NOMEM, "no memory for a frame of %zu bytes", bytes);
    *q = (wefti_conn_queued){.kind = kind, .tag = tag, .place = place};
    for (int i = 0; i < parts; q->bytes += part[i++].iov_len)
        if (part[i].iov_len > 0) memcpy(q->data + q->bytes, part[i].iov_base, part[i].iov_len);
    *l->last = q;
    l->last = &q->next;
    l->queued += WEFTI_CONN_HEADER + bytes;
    return l->conn.state == WEFTI_CONN_OPEN ? end_if_failed(l, flush(l)) : WEFT_OK;
}

/* --- what events bring --- */

static weft_status hear(wefti_conn_link *l) {
    wefti_conn *c = &l->conn;
    wefti_conn_frame f;
    size_t at = 0;
    weft_status status = WEFT_OK;
    while (c->state == WEFTI_CONN_OPEN && (status = wefti_conn_next(c, at, &f)) == WEFT_OK) {
        if (f.come < f.bytes) break;
        at += f.whole;
        WEFT_TRY(l->hub->o.heard(l->hub->o.context, l, &f));
    }
    wefti_conn_forget(c, at);
    return status;
}

static weft_status read_frames(wefti_conn_link *l) {
    wefti_conn *c = &l->conn;
    weft_status status = WEFT_OK;
    bool more = true;
    wefti_conn_begin_turn(c);
    for (int i = 0; more && (i < HUB_READS || c->tls) && c->state == WEFTI_CONN_OPEN; i++) {
        size_t room, bytes;
        WEFT_TRY(wefti_conn_make_room(c, &room));
        status = wefti_conn_take(c, c->in + c->in_used, room, &bytes, &more);
        if (status != WEFT_OK) return status;
        c->in_used += bytes;
        WEFT_TRY(hear(l));
    }
    return status;
}

static weft_status go_on(wefti_conn_link *l) {
    wefti_conn *c = &l->conn;
    wefti_conn_hub *hub = l->hub;
    bool opens = c->state != WEFTI_CONN_OPEN;
    if (c->state == WEFTI_CONN_PROVED)
        WEFT_TRY(wefti_conn_welcome(c, &hub->keys));
    else if (opens)
        WEFT_TRY(wefti_conn_shake(c, &hub->keys));
    if (c->state != WEFTI_CONN_OPEN) return WEFT_OK;
    if (opens) {
        l->known = true;
        hub->o.opened(hub->o.context, l);
    }
    WEFT_TRY(read_frames(l));
    return c->state == WEFTI_CONN_OPEN ? flush(l) : WEFT_OK;
}

/* A newer connection takes the place of an older one, which its connector has given up. */
static weft_status let_in(wefti_conn_hub *hub) {
    wefti_conn came;
    weft_status status;
    while ((status = wefti_conn_port_next(&hub->port, &came)) == WEFT_OK) {
        wefti_conn_side from = came.hello.from;
        wefti_conn_link *l, *before = find(hub, from, true);
        if (came.hello.stream != 0 || !hub->o.takes(hub->o.context, from) ||
            add_link(hub, from, &l) < 0) {
            wefti_conn_close(&came);
            continue;
        }
        if (before) end(before, WEFT_E_STOPPED, "a newer connection has taken its place");
        l->conn = came;
        status = wefti_conn_watch(&l->conn, hub->poller, (uint64_t)(uintptr_t)l);
        (void)end_if_failed(l, status < 0 ? status : go_on(l));
    }
    return status < 0 ? status : WEFT_OK;
}

static void end_late(wefti_conn_hub *hub) {
    int64_t now = wefti_now_ns();
    for (wefti_conn_link *l = hub->links; l; l = l->next)
        if (l->conn.state != WEFTI_CONN_OPEN && now > l->until_ns)
            end(l, WEFT_E_TIMEOUT, "no answer in time");
}

static void sweep(wefti_conn_hub *hub) {
    for (wefti_conn_link *l, **at = &hub->links; (l = *at);) {
        if (l->conn.state != WEFTI_CONN_CLOSED) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        if (l->known) hub->o.closed(hub->o.context, l, l->status, l->why);
        free_link(l);
    }
}

weft_status wefti_conn_hub_turn(wefti_conn_hub *hub, int milliseconds) {
    struct epoll_event events[HUB_EVENTS];
    int count = epoll_wait(hub->poller, events, HUB_EVENTS, milliseconds);
    for (int i = 0; i < count; i++) {
        wefti_conn_link *l = (wefti_conn_link *)(uintptr_t)events[i].data.u64;
        if (l && l->conn.fd >= 0) (void)end_if_failed(l, go_on(l));
    }
    weft_status status = let_in(hub);
    end_late(hub);
    sweep(hub);
    return status;
}

/* --- */

weft_status wefti_conn_hub_call(wefti_conn_hub *hub, wefti_conn_side to,
                                const struct sockaddr_storage *at, socklen_t bytes,
                                wefti_conn_link **out) {
    wefti_conn_hello hello = {.from = hub->o.me, .to = to};
    if ((*out = find(hub, to, false))) return WEFT_OK;
    WEFT_TRY(add_link(hub, to, out));
    weft_status status = wefti_conn_call(&(*out)->conn, at, bytes, &hello);
    if (status >= 0)
        status = wefti_conn_watch(&(*out)->conn, hub->poller, (uint64_t)(uintptr_t)*out);
    (*out)->known = status >= 0;
    return end_if_failed(*out, status);
}

int wefti_conn_hub_poller(const wefti_conn_hub *hub) {
    return hub->poller;
}

static weft_status open_hub(wefti_conn_hub *hub, struct sockaddr_storage *at, socklen_t bytes) {
    enum { SOME = 64 }; /* links: then TLS has smaller buffers */
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    WEFT_TRY(wefti_conn_keys_open(&hub->keys, hub->o.key, hub->o.encrypts, SOME));
    WEFT_TRY(wefti_conn_port_open(&hub->port, hub->o.me, &hub->keys, at, bytes));
    hub->poller = epoll_create1(EPOLL_CLOEXEC);
    WEFT_REQUIRE(hub->poller >= 0 &&
                     epoll_ctl(hub->poller, EPOLL_CTL_ADD, hub->port.poller, &e) == 0,
                 WEFT_E_IO, "no event queue: %s", strerror(errno));
    return WEFT_OK;
}

weft_status wefti_conn_hub_open(const wefti_conn_hub_options *o, struct sockaddr_storage *at,
                                socklen_t bytes, wefti_conn_hub **out) {
    wefti_conn_hub *hub;
    WEFT_NEW(hub, wefti_conn_hub);
    hub->o = *o;
    hub->poller = hub->port.fd = hub->port.poller = -1;
    weft_status status = open_hub(hub, at, bytes);
    explicit_bzero(hub->o.key, sizeof hub->o.key);
    if (status < 0)
        wefti_conn_hub_close(hub);
    else
        *out = hub;
    return status;
}

void wefti_conn_hub_close(wefti_conn_hub *hub) {
    if (!hub) return;
    for (wefti_conn_link *l; (l = hub->links); free_link(l)) hub->links = l->next;
    wefti_conn_port_close(&hub->port);
    if (hub->poller >= 0) close(hub->poller);
    wefti_conn_keys_close(&hub->keys);
    wefti_free(hub);
}

#endif
