/* Opens a transport of authenticated messages: each rank listens at an address that all ranks learn
 * through the exchange; of two ranks the higher one connects; both prove the key. Only then TLS
 * begins, where it is wanted. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

enum { POLL_MS = 50, OPENING_EVENTS = 64 };
static const int64_t pause_ns = 20000000;
/* A connector gives a connection up only before its proof: afterwards the listener may take it for
 * open, however long this process has stood still. */
int64_t wefti_mac_call_ns = 30000000000;

typedef struct mac_entry {
    struct sockaddr_storage at;
    uint32_t bytes; /* 0: there is none, because */
    char failure[200];
    int32_t streams; /* that this rank wants for each pair */
} mac_entry;

typedef struct mac_opening {
    wefti_mac_side *s;
    const wefti_mac_options *o;
    mac_entry *entry; /* [size] */
    wefti_conn_port port;
    int poller; /* of the port, named 0, and of connections that open, named by their place */
} mac_opening;

static weft_status own_address(const char *interface, mac_entry *out) {
    struct ifaddrs *all = NULL;
    if (!interface || !*interface) interface = "lo";
    WEFT_REQUIRE(getifaddrs(&all) == 0, WEFT_E_IO, "no list of network interfaces: %s",
                 strerror(errno));
    for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
        int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
        bool six = family == AF_INET6;
        if (strcmp(a->ifa_name, interface) != 0 || (family != AF_INET && !six)) continue;
        if (six && out->bytes) continue;
        out->bytes = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        memcpy(&out->at, a->ifa_addr, out->bytes);
        if (!six) break;
    }
    freeifaddrs(all);
    WEFT_REQUIRE(out->bytes, WEFT_E_ARG, "the network interface '%s' has no address", interface);
    return WEFT_OK;
}

static weft_status start_listening(mac_opening *m, mac_entry *out) {
    const char *interface = m->o->interface;
    char why[160];
    WEFT_TRY(own_address(interface, out));
    wefti_conn_side me = {.number = m->s->rank};
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    weft_status status =
        wefti_conn_port_open(&m->port, me, &m->s->keys, &out->at, (socklen_t)out->bytes);
    if (status >= 0) {
        m->poller = epoll_create1(EPOLL_CLOEXEC);
        if (m->poller < 0 || epoll_ctl(m->poller, EPOLL_CTL_ADD, m->port.poller, &e) != 0)
            status = WEFT_RAISE(WEFT_E_IO, "no event queue: %s", strerror(errno));
    }
    (void)snprintf(why, sizeof why, "%s", weft_error_message());
    WEFT_REQUIRE(status >= 0, WEFT_E_IO, "the network interface '%s': %s", interface, why);
    return WEFT_OK;
}

/* All ranks learn of a rank that cannot listen. */
static weft_status swap(mac_opening *m) {
    mac_entry mine = {.bytes = 0, .streams = m->o->streams ? m->o->streams : 1};
    wefti_mac_side *s = m->s;
    weft_status status = start_listening(m, &mine);
    if (status < 0) {
        mine.bytes = 0;
        (void)snprintf(mine.failure, sizeof mine.failure, "%s", weft_error_message());
    }
    WEFT_TRY(s->exchange.allgather(s->exchange.context, &mine, sizeof mine, m->entry));
    for (int32_t r = 0; r < s->size; r++) {
        m->entry[r].failure[sizeof m->entry[r].failure - 1] = 0;
        WEFT_REQUIRE_OF(r, m->entry[r].bytes > 0, WEFT_E_PEER, "rank %d: %s", (int)r,
                        m->entry[r].failure);
        WEFT_REQUIRE_OF(r, m->entry[r].bytes <= sizeof m->entry[r].at, WEFT_E_CORRUPT,
                        "rank %d has an address of %u bytes", (int)r, m->entry[r].bytes);
        WEFT_REQUIRE_OF(r, m->entry[r].streams > 0 && m->entry[r].streams <= WEFTI_MAC_STREAMS,
                        WEFT_E_CORRUPT, "rank %d wants %d streams", (int)r,
                        (int)m->entry[r].streams);
        int32_t streams = mine.streams < m->entry[r].streams ? mine.streams : m->entry[r].streams;
        if (r != s->rank) WEFT_TRY(wefti_mac_peer_open(&s->peer[r], streams));
    }
    return WEFT_OK;
}

/* After a step of a handshake. What the other side has spoilt begins anew. An open connection is
 * not polled: its frames are read later. */
static weft_status settle(mac_opening *m, wefti_conn *c, weft_status status) {
    if (wefti_conn_blames_other(status)) return WEFT_OK;
    WEFT_TRY(status);
    bool opens = c->state != WEFTI_CONN_OPEN;
    if (opens == (c->poller >= 0)) return WEFT_OK;
    return wefti_conn_watch(c, opens ? m->poller : -1, (uint64_t)(uintptr_t)c);
}

/* The stream of a rank that has proved to be a higher one; NULL: there is none. */
static wefti_mac_stream *find_caller(const wefti_mac_side *s, const wefti_conn_hello *hello) {
    int32_t rank = hello->from.number;
    bool good = hello->from.role == 0 && rank > s->rank && rank < s->size &&
                hello->stream < s->peer[rank].streams;
    return good ? &s->peer[rank].stream[hello->stream] : NULL;
}

static weft_status let_in(mac_opening *m) {
    weft_status status;
    wefti_conn came;
    while ((status = wefti_conn_port_next(&m->port, &came)) == WEFT_OK) {
        wefti_mac_stream *c = find_caller(m->s, &came.hello);
        if (!c) {
            wefti_conn_close(&came);
            continue;
        }
        /* A connection of before: its connector has given it up, since it has proved the key anew.
         */
        wefti_conn_close(&c->conn);
        c->conn = came;
        WEFT_TRY(settle(m, &c->conn, wefti_conn_welcome(&c->conn, &m->s->keys)));
    }
    return status < 0 ? status : WEFT_OK;
}

static weft_status call_again(mac_opening *m, int32_t peer, int32_t stream, int64_t now) {
    wefti_conn *c = &m->s->peer[peer].stream[stream].conn;
    const mac_entry *to = &m->entry[peer];
    if (c->state == WEFTI_CONN_CALLING && now - c->since_ns > wefti_mac_call_ns)
        wefti_conn_close(c);
    if (c->state != WEFTI_CONN_CLOSED || now - c->since_ns < pause_ns) return WEFT_OK;
    wefti_conn_hello hello = {
        .from.number = m->s->rank, .to.number = peer, .stream = (uint8_t)stream};
    return settle(m, c, wefti_conn_call(c, &to->at, (socklen_t)to->bytes, &hello));
}

/* Ranks that do not have all their streams. */
static int missing(const mac_opening *m) {
    int count = 0;
    for (int32_t r = 0; r < m->s->size; r++) {
        const wefti_mac_peer *p = &m->s->peer[r];
        bool all = true;
        for (int32_t i = 0; i < p->streams; i++)
            all = all && p->stream[i].conn.state == WEFTI_CONN_OPEN;
        count += !all;
    }
    return count;
}

static weft_status turn(mac_opening *m) {
    struct epoll_event events[OPENING_EVENTS];
    int64_t now = wefti_now_ns();
    for (int32_t r = 0; r < m->s->rank; r++)
        for (int32_t i = 0; i < m->s->peer[r].streams; i++) WEFT_TRY(call_again(m, r, i, now));
    int count = epoll_wait(m->poller, events, OPENING_EVENTS, POLL_MS);
    for (int i = 0; i < count; i++) {
        wefti_conn *c = (wefti_conn *)(uintptr_t)events[i].data.u64;
        if (c && c->fd >= 0) WEFT_TRY(settle(m, c, wefti_conn_shake(c, &m->s->keys)));
    }
    return let_in(m);
}

static weft_status meet(mac_opening *m) {
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(m->o->seconds, 600);
    int left;
    WEFT_NEW_ARRAY(m->entry, mac_entry, m->s->size);
    WEFT_TRY(swap(m));
    while ((left = missing(m)) > 0) {
        WEFT_REQUIRE(!m->o->goes_on || m->o->goes_on(m->o->context), WEFT_E_PEER,
                     "the job failed while ranks connected");
        WEFT_REQUIRE(wefti_now_ns() < until, WEFT_E_TIMEOUT,
                     "%d of %d ranks have not connected to this one in time", left,
                     (int)m->s->size - 1);
        WEFT_TRY(turn(m));
    }
    return WEFT_OK;
}

weft_status wefti_mac_connect_all(wefti_mac_side *s, const wefti_mac_options *o) {
    mac_opening *m;
    WEFT_NEW(m, mac_opening);
    m->s = s;
    m->o = o;
    m->poller = m->port.fd = m->port.poller = -1;
    weft_status status = meet(m);
    wefti_conn_port_close(&m->port);
    if (m->poller >= 0) close(m->poller);
    wefti_free(m->entry);
    wefti_free(m);
    return status;
}

#endif
