/* A port proves strangers: a bounded number of them, in a bounded time. */
#include "comm/connection/inside.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"

enum { ACCEPTS = 8 /* before others have their turn */, PORT_EVENTS = 64 };
#define LISTENS UINT64_MAX /* the name of the event that somebody calls */
static const int64_t stranger_ns = 5000000000;

weft_status wefti_conn_port_open(wefti_conn_port *p, wefti_conn_side me,
                                 const wefti_conn_keys *keys, struct sockaddr_storage *at,
                                 socklen_t bytes) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = LISTENS};
    socklen_t room = sizeof *at;
    p->me = me;
    p->keys = keys;
    for (int i = 0; i < WEFTI_CONN_STRANGERS; i++) p->stranger[i] = WEFTI_CONN_NONE;
    p->poller = epoll_create1(EPOLL_CLOEXEC);
    p->fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->poller >= 0 && p->fd >= 0 && bind(p->fd, (const struct sockaddr *)at, bytes) == 0 &&
        listen(p->fd, 1024) == 0 && getsockname(p->fd, (struct sockaddr *)at, &room) == 0 &&
        epoll_ctl(p->poller, EPOLL_CTL_ADD, p->fd, &e) == 0)
        return WEFT_OK;
    weft_status status = WEFT_RAISE(WEFT_E_IO, "cannot listen: %s", strerror(errno));
    wefti_conn_port_close(p);
    return status;
}

void wefti_conn_port_close(wefti_conn_port *p) {
    for (int i = 0; i < WEFTI_CONN_STRANGERS; i++) wefti_conn_close(&p->stranger[i]);
    if (p->fd >= 0) close(p->fd);
    if (p->poller >= 0) close(p->poller);
    p->fd = p->poller = -1;
}

/* A free place, or that of the oldest. */
static wefti_conn *find_place(wefti_conn_port *p) {
    wefti_conn *oldest = p->stranger;
    for (int i = 0; i < WEFTI_CONN_STRANGERS; i++) {
        wefti_conn *c = &p->stranger[i];
        if (c->fd < 0) return c;
        if (c->since_ns < oldest->since_ns) oldest = c;
    }
    return oldest;
}

/* False: there is none. */
static bool take_stranger(wefti_conn_port *p) {
    int fd = accept4(p->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return false;
    wefti_conn *c = find_place(p);
    wefti_conn_close(c);
    if (wefti_conn_challenge(c, fd) < 0) return true;
    if (wefti_conn_watch(c, p->poller, (uint64_t)(c - p->stranger)) < 0) wefti_conn_close(c);
    return true;
}

/* WEFT_OK: the key was proved. WEFT_PENDING: not, or not yet. */
static weft_status hear_answer(wefti_conn_port *p, wefti_conn *c) {
    wefti_conn_verdict verdict = WEFTI_CONN_STRANGER;
    weft_status status = c->fd < 0 ? WEFT_PENDING : wefti_conn_hear(c, WEFTI_CONN_ANSWER);
    if (status == WEFT_PENDING) return status;
    if (status >= 0) WEFT_TRY(wefti_conn_judge(p->keys->key, c->heard, &c->hello, &verdict));
    if (verdict == WEFTI_CONN_KNOWN && wefti_conn_same(c->hello.to, p->me)) return WEFT_OK;
    wefti_conn_close(c);
    return WEFT_PENDING;
}

static void drop_late(wefti_conn_port *p) {
    int64_t now = wefti_now_ns();
    for (int i = 0; i < WEFTI_CONN_STRANGERS; i++) {
        wefti_conn *c = &p->stranger[i];
        if (c->fd >= 0 && now - c->since_ns > stranger_ns) wefti_conn_close(c);
    }
}

weft_status wefti_conn_port_next(wefti_conn_port *p, wefti_conn *out) {
    struct epoll_event events[PORT_EVENTS];
    drop_late(p);
    int count = epoll_wait(p->poller, events, PORT_EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint64_t name = events[i].data.u64;
        for (int k = 0; name == LISTENS && k < ACCEPTS && take_stranger(p); k++) continue;
        if (name == LISTENS) continue;
        weft_status status = hear_answer(p, &p->stranger[name]);
        if (status == WEFT_PENDING) continue;
        WEFT_TRY(status);
        WEFT_TRY(wefti_conn_watch(&p->stranger[name], -1, 0));
        *out = p->stranger[name];
        out->state = WEFTI_CONN_PROVED;
        p->stranger[name] = WEFTI_CONN_NONE;
        return WEFT_OK;
    }
    return WEFT_PENDING;
}

#endif
