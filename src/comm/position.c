/* Positions: see comm/position.h. The counter is written on every transfer and read seldom, so it
 * is an atomic of its own; the rest changes only where a rank goes to sleep. */
#include "comm/position.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"

struct wefti_position {
    _Atomic uint64_t done;
    pthread_mutex_t lock; /* of what follows */
    wefti_standing now;
    uint64_t seen; /* of `done`, when a watcher last looked */
};

weft_status wefti_position_create(wefti_position **out) {
    wefti_position *p;
    WEFT_NEW(p, wefti_position);
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        wefti_free(p);
        WEFT_FAIL(WEFT_E_NOMEM, "no lock for a rank's position");
    }
    p->now.since_ns = p->now.moved_ns = wefti_now_ns();
    *out = p;
    return WEFT_OK;
}

void wefti_position_destroy(wefti_position *p) {
    if (!p) return;
    pthread_mutex_destroy(&p->lock);
    wefti_free(p);
}

void wefti_position_step(wefti_position *p, int64_t step) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->now.step = step;
    if (!p->now.waiting) p->now.since_ns = wefti_now_ns();
    pthread_mutex_unlock(&p->lock);
}

static void change(wefti_position *p, bool waiting, const char *what) {
    pthread_mutex_lock(&p->lock);
    p->now.waiting = waiting;
    p->now.since_ns = wefti_now_ns();
    size_t n = strlen(what);
    if (n >= sizeof p->now.what) n = sizeof p->now.what - 1;
    memcpy(p->now.what, what, n);
    p->now.what[n] = 0;
    pthread_mutex_unlock(&p->lock);
}

void wefti_position_begin_wait(wefti_position *p, const char *what) {
    if (p) change(p, true, what);
}

void wefti_position_enter(wefti_position *p, const char *what) {
    if (p) change(p, false, what);
}

void wefti_position_end_wait(wefti_position *p, bool begun) {
    if (!p) return;
    atomic_fetch_add_explicit(&p->done, 1, memory_order_relaxed);
    if (begun) change(p, false, "");
}

void wefti_position_moved(wefti_position *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->now.moved_ns = wefti_now_ns();
    pthread_mutex_unlock(&p->lock);
}

/* Transfers that need no waiting only count: that there were some since the last look says that the
 * rank has not computed all the time. */
wefti_standing wefti_position_read(wefti_position *p) {
    pthread_mutex_lock(&p->lock);
    p->now.done = atomic_load_explicit(&p->done, memory_order_relaxed);
    if (p->now.done != p->seen && !p->now.waiting) p->now.since_ns = wefti_now_ns();
    p->seen = p->now.done;
    wefti_standing now = p->now;
    pthread_mutex_unlock(&p->lock);
    return now;
}
