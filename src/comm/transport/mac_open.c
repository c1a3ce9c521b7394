/* Opens a transport of authenticated messages: each rank listens at an address that all ranks learn
 * through the exchange; of two ranks the higher one connects; both prove the key. Only then TLS
 * begins, where it is wanted. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"

enum {
    /* Connections that have not proved the key; a further one pushes out the oldest. */
    MAC_STRANGERS = 256,
    ACCEPTS = 8, /* before others have their turn */
    POLL_MS = 50
};
/* A listener gives a connection 5 s for its proof. A connector gives it up only before its proof:
 * afterwards the listener may take it for open, however long this process has stood still. */
static const int64_t stranger_ns = 5000000000, pause_ns = 20000000;
int64_t wefti_mac_call_ns = 30000000000;

/* A connection before it is open. */
typedef struct mac_shake {
    int fd; /* -1: none */
    enum { CALLING, CHALLENGED, ANSWERED, SECURING } state;
    int32_t peer, stream; /* of a call */
    bool listens;         /* of a connection that TLS secures */
    wefti_mac_tls *tls;
    int64_t since_ns;
    wefti_mac_hello hello;
    unsigned char in[WEFTI_MAC_ANSWER];
    size_t used;
} mac_shake;

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
    mac_shake stranger[MAC_STRANGERS];
    mac_shake *call; /* [calls]: to the lower ranks, for each stream */
    int32_t calls;
    struct pollfd *polled; /* [1 + MAC_STRANGERS + calls] */
    mac_shake **shake_of;  /* as polled */
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

static weft_status start_listening(wefti_mac_side *s, const char *interface, mac_entry *out) {
    WEFT_TRY(own_address(interface, out));
    socklen_t bytes = sizeof out->at;
    s->listener = socket(out->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool good = s->listener >= 0 &&
                bind(s->listener, (const struct sockaddr *)&out->at, out->bytes) == 0 &&
                listen(s->listener, 1024) == 0 &&
                getsockname(s->listener, (struct sockaddr *)&out->at, &bytes) == 0;
    WEFT_REQUIRE(good, WEFT_E_IO, "cannot listen on the network interface '%s': %s", interface,
                 strerror(errno));
    return WEFT_OK;
}

/* All ranks learn of a rank that cannot listen. */
static weft_status swap(mac_opening *m) {
    mac_entry mine = {.bytes = 0, .streams = m->o->streams ? m->o->streams : 1};
    wefti_mac_side *s = m->s;
    weft_status status = start_listening(s, m->o->interface, &mine);
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

static void drop(mac_shake *k) {
    wefti_mac_tls_close(k->tls);
    if (k->fd >= 0) close(k->fd);
    *k = (mac_shake){.fd = -1, .peer = k->peer, .stream = k->stream, .since_ns = wefti_now_ns()};
}

static bool say(const mac_shake *k, const void *data, size_t bytes) {
    return send(k->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* True: all `wanted` bytes are there. */
static bool have(mac_shake *k, size_t wanted) {
    ssize_t n = recv(k->fd, k->in + k->used, wanted - k->used, MSG_DONTWAIT);
    if (n > 0) k->used += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) drop(k);
    return k->fd >= 0 && k->used == wanted;
}

static weft_status make_directions(mac_opening *m, const mac_shake *k, wefti_mac_connection *c,
                                   bool listens) {
    unsigned char up[WEFTI_MAC_PROOF], down[WEFTI_MAC_PROOF];
    WEFT_TRY(wefti_mac_prove(m->s->key, "up", &k->hello, up));
    WEFT_TRY(wefti_mac_prove(m->s->key, "down", &k->hello, down));
    weft_status status = wefti_mac_direction_open(&c->sends, listens ? down : up);
    if (status >= 0) status = wefti_mac_direction_open(&c->receives, listens ? up : down);
    explicit_bzero(up, sizeof up);
    explicit_bzero(down, sizeof down);
    return status;
}

/* The connection is open: `listens` on this side. */
static weft_status adopt(mac_opening *m, mac_shake *k, bool listens) {
    wefti_mac_peer *p = &m->s->peer[listens ? k->hello.rank : k->peer];
    wefti_mac_connection *c = &p->connection[listens ? k->hello.stream : k->stream];
    int yes = 1;
    /* A connection of before: its connector has given it up, since it has proved the key anew. */
    wefti_mac_connection_close(c);
    if (!k->tls) WEFT_TRY(make_directions(m, k, c, listens));
    (void)setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    c->fd = k->fd;
    c->tls = k->tls;
    k->fd = -1;
    k->tls = NULL;
    return WEFT_OK;
}

static weft_status secure(mac_opening *m, mac_shake *k) {
    weft_status status = wefti_mac_tls_shake(k->tls);
    if (status < 0) drop(k);
    return status == WEFT_OK ? adopt(m, k, k->listens) : WEFT_OK;
}

/* Both sides have proved the key. */
static weft_status proved(mac_opening *m, mac_shake *k, bool listens) {
    unsigned char key[WEFTI_MAC_PROOF];
    if (!m->s->tls) return adopt(m, k, listens);
    WEFT_TRY(wefti_mac_prove(m->s->key, "tls", &k->hello, key));
    weft_status status = wefti_mac_tls_open(m->s->tls, k->fd, listens, key, &k->tls);
    explicit_bzero(key, sizeof key);
    WEFT_TRY(status);
    k->state = SECURING;
    k->listens = listens;
    return secure(m, k);
}

/* --- the listening side --- */

/* A free place, or that of the oldest connection without a proof; NULL: all have one. */
static mac_shake *find_place(mac_opening *m) {
    mac_shake *oldest = NULL;
    for (int i = 0; i < MAC_STRANGERS; i++) {
        mac_shake *k = &m->stranger[i];
        if (k->fd < 0) return k;
        if (k->state == CHALLENGED && (!oldest || k->since_ns < oldest->since_ns)) oldest = k;
    }
    return oldest;
}

/* False: there is none. */
static bool take_stranger(mac_opening *m) {
    int fd = accept4(m->s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return false;
    mac_shake *k = find_place(m);
    if (!k) {
        close(fd);
        return true;
    }
    drop(k);
    k->fd = fd;
    k->state = CHALLENGED;
    if (wefti_mac_random(k->hello.listener, WEFTI_MAC_NONCE) < 0 ||
        !say(k, k->hello.listener, WEFTI_MAC_NONCE))
        drop(k);
    return true;
}

weft_status wefti_mac_judge(const wefti_mac_side *s, const unsigned char answer[WEFTI_MAC_ANSWER],
                            wefti_mac_hello *hello, wefti_mac_verdict *out) {
    unsigned char proof[WEFTI_MAC_PROOF];
    wefti_mac_read_answer(answer, hello);
    WEFT_TRY(wefti_mac_prove(s->key, "connect", hello, proof));
    bool good = wefti_mac_equal(proof, answer + WEFTI_MAC_PROOF_AT, sizeof proof) &&
                hello->peer == s->rank && hello->rank > s->rank && hello->rank < s->size &&
                hello->stream >= 0 && hello->stream < s->peer[hello->rank].streams;
    *out = good ? WEFTI_MAC_KNOWN : WEFTI_MAC_STRANGER;
    return WEFT_OK;
}

static weft_status hear_answer(mac_opening *m, mac_shake *k) {
    unsigned char proof[WEFTI_MAC_PROOF];
    wefti_mac_verdict verdict;
    if (!have(k, WEFTI_MAC_ANSWER)) return WEFT_OK;
    WEFT_TRY(wefti_mac_judge(m->s, k->in, &k->hello, &verdict));
    if (verdict == WEFTI_MAC_KNOWN) {
        WEFT_TRY(wefti_mac_prove(m->s->key, "accept", &k->hello, proof));
        if (say(k, proof, sizeof proof)) return proved(m, k, true);
    }
    drop(k);
    return WEFT_OK;
}

/* --- the connecting side --- */

static void call(mac_opening *m, mac_shake *k, int64_t now) {
    const mac_entry *to = &m->entry[k->peer];
    if (now - k->since_ns < pause_ns) return;
    drop(k);
    k->fd = socket(to->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (k->fd < 0) return;
    k->state = CALLING;
    if (connect(k->fd, (const struct sockaddr *)&to->at, to->bytes) != 0 && errno != EINPROGRESS)
        drop(k);
}

static weft_status hear_challenge(mac_opening *m, mac_shake *k) {
    unsigned char answer[WEFTI_MAC_ANSWER];
    if (!have(k, WEFTI_MAC_CHALLENGE)) return WEFT_OK;
    memcpy(k->hello.listener, k->in, WEFTI_MAC_NONCE);
    WEFT_TRY(wefti_mac_random(k->hello.connector, WEFTI_MAC_NONCE));
    k->hello.rank = m->s->rank;
    k->hello.peer = k->peer;
    k->hello.stream = k->stream;
    wefti_mac_write_answer(&k->hello, answer);
    WEFT_TRY(wefti_mac_prove(m->s->key, "connect", &k->hello, answer + WEFTI_MAC_PROOF_AT));
    k->used = 0;
    k->state = ANSWERED;
    if (!say(k, answer, sizeof answer)) drop(k);
    return WEFT_OK;
}

static weft_status hear_welcome(mac_opening *m, mac_shake *k) {
    unsigned char proof[WEFTI_MAC_PROOF];
    if (!have(k, WEFTI_MAC_PROOF)) return WEFT_OK;
    WEFT_TRY(wefti_mac_prove(m->s->key, "accept", &k->hello, proof));
    if (wefti_mac_equal(proof, k->in, sizeof proof)) return proved(m, k, false);
    drop(k);
    return WEFT_OK;
}

/* --- both --- */

/* Ranks that do not have all their streams. */
static int missing(const mac_opening *m) {
    int count = 0;
    for (int32_t r = 0; r < m->s->size; r++) {
        const wefti_mac_peer *p = &m->s->peer[r];
        bool all = true;
        for (int32_t i = 0; i < p->streams; i++) all = all && p->connection[i].fd >= 0;
        count += !all;
    }
    return count;
}

static void watch(mac_opening *m, mac_shake *k, nfds_t *count) {
    bool writes = wefti_mac_tls_has_output(k->tls);
    m->shake_of[*count] = k;
    m->polled[(*count)++] =
        (struct pollfd){.fd = k->fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
}

static weft_status go_on(mac_opening *m, mac_shake *k) {
    switch (k->state) {
    case CHALLENGED:
        return hear_answer(m, k);
    case CALLING:
        return hear_challenge(m, k);
    case ANSWERED:
        return hear_welcome(m, k);
    default:
        return secure(m, k);
    }
}

static weft_status turn(mac_opening *m) {
    int64_t now = wefti_now_ns();
    nfds_t count = 1;
    m->polled[0] = (struct pollfd){.fd = m->s->listener, .events = POLLIN};
    for (int i = 0; i < MAC_STRANGERS; i++) {
        mac_shake *k = &m->stranger[i];
        if (k->fd >= 0 && k->state == CHALLENGED && now - k->since_ns > stranger_ns) drop(k);
        if (k->fd >= 0) watch(m, k, &count);
    }
    for (int32_t i = 0; i < m->calls; i++) {
        mac_shake *k = &m->call[i];
        if (m->s->peer[k->peer].connection[k->stream].fd >= 0) continue;
        if (k->fd >= 0 && k->state == CALLING && now - k->since_ns > wefti_mac_call_ns) drop(k);
        if (k->fd < 0) call(m, k, now);
        if (k->fd >= 0) watch(m, k, &count);
    }
    if (poll(m->polled, count, POLL_MS) <= 0) return WEFT_OK;
    for (nfds_t i = 1; i < count; i++) {
        mac_shake *k = m->shake_of[i];
        if (!m->polled[i].revents) continue;
        WEFT_TRY(go_on(m, k));
    }
    for (int i = 0; i < ACCEPTS && m->polled[0].revents && take_stranger(m); i++) continue;
    return WEFT_OK;
}

static weft_status make_calls(mac_opening *m) {
    int32_t count = 0;
    for (int32_t r = 0; r < m->s->rank; r++) m->calls += m->s->peer[r].streams;
    WEFT_NEW_ARRAY(m->call, mac_shake, m->calls + 1);
    for (int32_t r = 0; r < m->s->rank; r++)
        for (int32_t i = 0; i < m->s->peer[r].streams; i++)
            m->call[count++] = (mac_shake){.fd = -1, .peer = r, .stream = i};
    WEFT_NEW_ARRAY(m->polled, struct pollfd, m->calls + MAC_STRANGERS + 1);
    WEFT_NEW_ARRAY(m->shake_of, mac_shake *, m->calls + MAC_STRANGERS + 1);
    return WEFT_OK;
}

static weft_status meet(mac_opening *m) {
    int64_t until = wefti_now_ns() + wefti_ns_of_seconds(m->o->seconds, 600);
    int left;
    WEFT_NEW_ARRAY(m->entry, mac_entry, m->s->size);
    WEFT_TRY(swap(m));
    WEFT_TRY(make_calls(m));
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
    for (int i = 0; i < MAC_STRANGERS; i++) m->stranger[i].fd = -1;
    weft_status status = meet(m);
    for (int i = 0; i < MAC_STRANGERS; i++) drop(&m->stranger[i]);
    for (int32_t i = 0; m->call && i < m->calls; i++) drop(&m->call[i]);
    if (s->listener >= 0) close(s->listener);
    s->listener = -1;
    wefti_free(m->entry);
    wefti_free(m->call);
    wefti_free(m->polled);
    wefti_free(m->shake_of);
    wefti_free(m);
    return status;
}

#endif
