/* Requests to stop that come while a rank waits for others: see wefti_stopper_start in
 * train/training.h. */
#include "train/training.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "comm/position.h"

static const int64_t look_ns = 100000000, limit_ns = 2000000000;

struct wefti_stopper {
    weft_world *world;
    wefti_position *position; /* of this rank, whatever communicator the world has */
    const volatile int *asked;
    pthread_t thread;
    pthread_mutex_t lock; /* of `ends` */
    pthread_cond_t wake;
    bool ends;
    bool gave_up;     /* read once the thread has ended */
    int64_t asked_ns; /* when the request was seen; 0: there is none */
};

/* In one transfer, since the request, for longer than the limit. Earlier waits do not count: a
 * request ends a waiting process within seconds, however long its steps are. */
static bool waits_in_vain(wefti_stopper *s, const wefti_standing *at, int64_t now) {
    if (!s->asked_ns && *s->asked) s->asked_ns = now;
    int64_t from = at->since_ns > s->asked_ns ? at->since_ns : s->asked_ns;
    return s->asked_ns && at->waiting && now - from > limit_ns;
}

static void give_up(wefti_stopper *s, const wefti_standing *at, int64_t now) {
    char text[WEFTI_POSITION_TEXT + 128];
    (void)snprintf(text, sizeof text,
                   "was asked to stop (signal %d), and no rank answered for %.1f s in %s",
                   *s->asked, (double)(now - at->since_ns) * 1e-9, at->what);
    s->gave_up = true;
    weft_world_fail(s->world, text);
}

static bool sleeps(wefti_stopper *s) {
    int64_t until = wefti_now_ns() + look_ns;
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&s->lock);
    while (!s->ends && pthread_cond_timedwait(&s->wake, &s->lock, &at) != ETIMEDOUT) continue;
    bool goes_on = !s->ends;
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

static void *look(void *context) {
    wefti_stopper *s = context;
    while (!s->gave_up && sleeps(s)) {
        int64_t now = wefti_now_ns();
        wefti_standing at = wefti_position_read(s->position);
        if (waits_in_vain(s, &at, now)) give_up(s, &at, now);
    }
    return NULL;
}

static void release(wefti_stopper *s) {
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    wefti_free(s);
}

weft_status wefti_stopper_start(weft_world *world, const volatile int *asked, wefti_stopper **out) {
    wefti_stopper *s;
    *out = NULL;
    if (!world || !world->comm || !world->comm->position || !asked) return WEFT_OK;
    WEFT_NEW(s, wefti_stopper);
    s->world = world;
    s->position = world->comm->position;
    s->asked = asked;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&s->lock, NULL);
    int error = wefti_thread_start(&s->thread, look, s);
    if (error) {
        release(s);
        WEFT_FAIL(WEFT_E_NOMEM, "no thread that listens to requests to stop: error %d", error);
    }
    *out = s;
    return WEFT_OK;
}

bool wefti_stopper_end(wefti_stopper *s) {
    if (!s) return false;
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    bool gave_up = s->gave_up;
    release(s);
    return gave_up;
}

double weft_file_wait_seconds(void) {
    int64_t since = wefti_disk_since_ns(), now = wefti_now_ns();
    return since && now > since ? (double)(now - since) * 1e-9 : 0;
}
