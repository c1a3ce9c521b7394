/* A thread for each stream but the first: it sends and reads that stream of all pairs. So signing,
 * encrypting and copying of one long message take several cores. */
#include "comm/transport/mac.h"

#ifdef WEFT_HAVE_OPENSSL

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"

enum { WORKER_EVENTS = 64 };
#define WAKE UINT64_MAX /* the name of an event that says: look for parts */

struct wefti_mac_worker {
    wefti_mac_side *side;
    pthread_t thread;
    bool started;
    int32_t number; /* of its stream */
    int poller, bell;
    bool asleep, ends;      /* with the lock of parts */
    _Atomic uint64_t moved; /* changes if bytes have come or gone */
    wefti_mac_peer *last;   /* that was served */
};

static void ring(const wefti_mac_worker *w) {
    uint64_t one = 1;
    (void)!write(w->bell, &one, sizeof one); /* it can only fail if it has been rung */
}

void wefti_mac_workers_wake(wefti_mac_parts *parts, size_t count) {
    for (int32_t i = 0; i < parts->workers && count > 1; i++) {
        wefti_mac_worker *w = &parts->worker[i];
        count--; /* stream 0 takes one */
        if (!w->asleep) continue;
        w->asleep = false;
        ring(w);
    }
}

uint64_t wefti_mac_workers_moved(const wefti_mac_parts *parts) {
    uint64_t moved = 0;
    for (int32_t i = 0; i < parts->workers; i++)
        moved += atomic_load_explicit(&parts->worker[i].moved, memory_order_relaxed);
    return moved;
}

static bool is_open(wefti_mac_worker *w, wefti_mac_stream *c) {
    pthread_mutex_lock(&w->side->parts.lock);
    bool open = c->conn.fd >= 0;
    pthread_mutex_unlock(&w->side->parts.lock);
    return open;
}

static void end_turn(wefti_mac_worker *w, wefti_mac_stream *c, weft_status status) {
    uint64_t moved = atomic_load_explicit(&w->moved, memory_order_relaxed) + c->moved;
    c->moved = 0;
    atomic_store_explicit(&w->moved, moved, memory_order_relaxed);
    if (status < 0) wefti_mac_parts_fault(c);
}

/* False: it ends. *out: a peer to be served; NULL: none, and the worker counts as asleep. */
static bool look_for_parts(wefti_mac_worker *w, wefti_mac_peer **out) {
    wefti_mac_parts *parts = &w->side->parts;
    pthread_mutex_lock(&parts->lock);
    bool ends = w->ends;
    *out = wefti_mac_parts_next(parts, w->number, w->last);
    w->asleep = !*out;
    pthread_mutex_unlock(&parts->lock);
    return !ends;
}

static void hear_event(wefti_mac_worker *w, const struct epoll_event *e) {
    uint64_t count;
    if (e->data.u64 == WAKE) {
        (void)!read(w->bell, &count, sizeof count);
        return;
    }
    wefti_mac_stream *c = &w->side->peer[e->data.u64].stream[w->number];
    weft_status status = WEFT_OK;
    if (!is_open(w, c)) return;
    if (e->events & EPOLLOUT) status = wefti_mac_flush(c);
    if (status >= 0 && e->events & ~(uint32_t)EPOLLOUT) status = wefti_mac_read(c);
    end_turn(w, c, status);
}

/* Bytes may have come with the end of TLS's handshake: no event tells of them. */
static void read_begun(wefti_mac_worker *w) {
    for (int32_t r = 0; r < w->side->size; r++) {
        wefti_mac_peer *p = &w->side->peer[r];
        if (w->number >= p->streams || !p->stream[w->number].conn.tls) continue;
        end_turn(w, &p->stream[w->number], wefti_mac_read(&p->stream[w->number]));
    }
}

static void *work(void *context) {
    wefti_mac_worker *w = context;
    struct epoll_event events[WORKER_EVENTS];
    wefti_mac_peer *p;
    read_begun(w);
    while (look_for_parts(w, &p)) {
        if (p) {
            wefti_mac_stream *c = &p->stream[w->number];
            end_turn(w, c, wefti_mac_flush(c));
            w->last = p;
        }
        int count = epoll_wait(w->poller, events, WORKER_EVENTS, p ? 0 : -1);
        for (int i = 0; i < count; i++) hear_event(w, &events[i]);
    }
    return NULL;
}

static weft_status start(wefti_mac_worker *w) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = WAKE};
    w->poller = epoll_create1(EPOLL_CLOEXEC);
    w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    WEFT_REQUIRE(w->poller >= 0 && w->bell >= 0 &&
                     epoll_ctl(w->poller, EPOLL_CTL_ADD, w->bell, &e) == 0,
                 WEFT_E_IO, "no event queue: %s", strerror(errno));
    for (int32_t r = 0; r < w->side->size; r++) {
        wefti_mac_peer *p = &w->side->peer[r];
        if (w->number < p->streams)
            WEFT_TRY(wefti_conn_watch(&p->stream[w->number].conn, w->poller, (uint64_t)r));
    }
    int error = wefti_thread_start(&w->thread, work, w);
    WEFT_REQUIRE(error == 0, WEFT_E_NOMEM, "no thread for messages: %s", strerror(error));
    w->started = true;
    return WEFT_OK;
}

weft_status wefti_mac_workers_start(wefti_mac_side *s) {
    int32_t most = 1;
    for (int32_t r = 0; r < s->size; r++)
        if (s->peer[r].streams > most) most = s->peer[r].streams;
    if (most == 1) return WEFT_OK;
    WEFT_NEW_ARRAY(s->parts.worker, wefti_mac_worker, most - 1);
    for (int32_t i = 0; i < most - 1; i++)
        s->parts.worker[i] =
            (wefti_mac_worker){.side = s, .number = i + 1, .poller = -1, .bell = -1};
    s->parts.workers = most - 1;
    for (int32_t i = 0; i < most - 1; i++) WEFT_TRY(start(&s->parts.worker[i]));
    return WEFT_OK;
}

void wefti_mac_workers_stop(wefti_mac_side *s) {
    wefti_mac_parts *parts = &s->parts;
    for (int32_t i = 0; i < parts->workers; i++) {
        wefti_mac_worker *w = &parts->worker[i];
        if (w->started) {
            pthread_mutex_lock(&parts->lock);
            w->ends = true;
            pthread_mutex_unlock(&parts->lock);
            ring(w);
            pthread_join(w->thread, NULL);
        }
        if (w->poller >= 0) close(w->poller);
        if (w->bell >= 0) close(w->bell);
    }
    parts->workers = 0;
    wefti_free(parts->worker);
    parts->worker = NULL;
}

#endif
