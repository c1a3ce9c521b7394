/* How a connection opens: both sides prove the key, each by the other's random number. Only then
 * TLS begins, where it is wanted. docs/design/data-plane.md has the table of states. */
#include "comm/connection/inside.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

void wefti_conn_cut(wefti_conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->state = WEFTI_CONN_CLOSED;
    c->frame_bytes = 0;
}

void wefti_conn_close(wefti_conn *c) {
    wefti_conn_cut(c);
    wefti_conn_tls_close(c->tls);
    wefti_conn_direction_close(&c->sends);
    wefti_conn_direction_close(&c->receives);
    wefti_free(c->in);
    *c = WEFTI_CONN_NONE;
    c->since_ns = wefti_now_ns();
}

/* The failure of a handshake closes the connection. */
static weft_status end_if_failed(wefti_conn *c, weft_status status) {
    if (status < 0) wefti_conn_close(c);
    return status;
}

static weft_status say(const wefti_conn *c, const void *data, size_t bytes) {
    ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    WEFT_REQUIRE(n == (ssize_t)bytes, WEFT_E_PEER, "connection closed before it was open");
    return WEFT_OK;
}

weft_status wefti_conn_hear(wefti_conn *c, size_t wanted) {
    ssize_t n = recv(c->fd, c->heard + c->in_used, wanted - c->in_used, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return WEFT_PENDING;
    WEFT_REQUIRE(n > 0, WEFT_E_PEER, "%s", n == 0 ? "connection closed" : strerror(errno));
    c->in_used += (size_t)n;
    return c->in_used == wanted ? WEFT_OK : WEFT_PENDING;
}

/* --- events --- */

weft_status wefti_conn_watch(wefti_conn *c, int poller, uint64_t name) {
    struct epoll_event e = {.events = EPOLLIN | (c->polls_write ? EPOLLOUT : 0u), .data.u64 = name};
    if (c->poller >= 0) (void)epoll_ctl(c->poller, EPOLL_CTL_DEL, c->fd, NULL);
    c->poller = -1;
    if (poller < 0) return WEFT_OK;
    WEFT_REQUIRE(epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e) == 0, WEFT_E_IO,
                 "a connection cannot be watched: %s", strerror(errno));
    c->poller = poller;
    c->name = name;
    return WEFT_OK;
}

void wefti_conn_poll_write(wefti_conn *c, bool wants) {
    if (c->polls_write == wants) return;
    struct epoll_event e = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.u64 = c->name};
    if (c->poller < 0 || epoll_ctl(c->poller, EPOLL_CTL_MOD, c->fd, &e) == 0)
        c->polls_write = wants;
}

/* --- both sides have proved the key --- */

static weft_status open_directions(wefti_conn *c, const wefti_conn_keys *keys) {
    unsigned char up[WEFTI_CONN_PROOF], down[WEFTI_CONN_PROOF];
    WEFT_TRY(wefti_conn_prove(keys->key, "up", &c->hello, up));
    WEFT_TRY(wefti_conn_prove(keys->key, "down", &c->hello, down));
    weft_status status = wefti_conn_direction_open(&c->sends, c->listens ? down : up);
    if (status >= 0) status = wefti_conn_direction_open(&c->receives, c->listens ? up : down);
    explicit_bzero(up, sizeof up);
    explicit_bzero(down, sizeof down);
    return status;
}

static weft_status secure(wefti_conn *c) {
    weft_status status = wefti_conn_tls_shake(c->tls);
    if (status >= 0) wefti_conn_poll_write(c, wefti_conn_tls_has_output(c->tls));
    if (status == WEFT_OK) c->state = WEFTI_CONN_OPEN;
    return status;
}

static weft_status go_to_form(wefti_conn *c, const wefti_conn_keys *keys) {
    unsigned char key[WEFTI_CONN_PROOF];
    int yes = 1;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    c->in_used = 0;
    if (!keys->tls) {
        c->state = WEFTI_CONN_OPEN;
        return open_directions(c, keys);
    }
    WEFT_TRY(wefti_conn_prove(keys->key, "tls", &c->hello, key));
    weft_status status = wefti_conn_tls_open(keys->tls, c->fd, c->listens, key, &c->tls);
    explicit_bzero(key, sizeof key);
    WEFT_TRY(status);
    c->state = WEFTI_CONN_SECURING;
    return secure(c);
}

/* --- the listening side --- */

weft_status wefti_conn_challenge(wefti_conn *c, int fd) {
    *c = WEFTI_CONN_NONE;
    c->fd = fd;
    c->state = WEFTI_CONN_CHALLENGED;
    c->listens = true;
    c->since_ns = wefti_now_ns();
    weft_status status = wefti_conn_random(c->hello.listener, WEFTI_CONN_NONCE);
    if (status >= 0) status = say(c, c->hello.listener, WEFTI_CONN_NONCE);
    return end_if_failed(c, status);
}

static weft_status welcome(wefti_conn *c, const wefti_conn_keys *keys) {
    unsigned char proof[WEFTI_CONN_PROOF];
    WEFT_TRY(wefti_conn_prove(keys->key, "accept", &c->hello, proof));
    WEFT_TRY(say(c, proof, sizeof proof));
    return go_to_form(c, keys);
}

weft_status wefti_conn_welcome(wefti_conn *c, const wefti_conn_keys *keys) {
    return end_if_failed(c, welcome(c, keys));
}

/* --- the connecting side --- */

weft_status wefti_conn_call(wefti_conn *c, const struct sockaddr_storage *to, socklen_t bytes,
                            const wefti_conn_hello *hello) {
    *c = WEFTI_CONN_NONE;
    c->fd = socket(to->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->state = WEFTI_CONN_CALLING;
    c->hello = *hello;
    c->since_ns = wefti_now_ns();
    if (c->fd < 0 ||
        (connect(c->fd, (const struct sockaddr *)to, bytes) != 0 && errno != EINPROGRESS))
        return end_if_failed(c, WEFT_RAISE(WEFT_E_PEER, "cannot connect: %s", strerror(errno)));
    return WEFT_OK;
}

static weft_status answer(wefti_conn *c, const wefti_conn_keys *keys) {
    unsigned char text[WEFTI_CONN_ANSWER];
    memcpy(c->hello.listener, c->heard, WEFTI_CONN_NONCE);
    WEFT_TRY(wefti_conn_random(c->hello.connector, WEFTI_CONN_NONCE));
    wefti_conn_write_answer(&c->hello, text);
    WEFT_TRY(wefti_conn_prove(keys->key, "connect", &c->hello, text + WEFTI_CONN_PROOF_AT));
    c->in_used = 0;
    c->state = WEFTI_CONN_ANSWERED;
    return say(c, text, sizeof text);
}

static weft_status hear_welcome(wefti_conn *c, const wefti_conn_keys *keys) {
    unsigned char proof[WEFTI_CONN_PROOF];
    WEFT_TRY(wefti_conn_prove(keys->key, "accept", &c->hello, proof));
    WEFT_REQUIRE(wefti_conn_equal(proof, c->heard, sizeof proof), WEFT_E_PEER,
                 "the other side does not know the key");
    return go_to_form(c, keys);
}

static weft_status shake(wefti_conn *c, const wefti_conn_keys *keys) {
    if (c->state == WEFTI_CONN_SECURING) return secure(c);
    weft_status status = wefti_conn_hear(c, c->state == WEFTI_CONN_CALLING ? WEFTI_CONN_CHALLENGE
                                                                           : WEFTI_CONN_PROOF);
    if (status != WEFT_OK) return status;
    return c->state == WEFTI_CONN_CALLING ? answer(c, keys) : hear_welcome(c, keys);
}

weft_status wefti_conn_shake(wefti_conn *c, const wefti_conn_keys *keys) {
    return end_if_failed(c, shake(c, keys));
}

#endif
