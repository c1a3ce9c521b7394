/* How a world of messages breaks, and the thread that makes progress while no rank waits.
 *
 * Any thread can break the world: that sets a flag and a message. The rest needs the transport:
 * cancelling requests and notifying other ranks. The breaking thread does it if the transport
 * allows any thread; otherwise the user's next call does. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/p2p/p2p.h"

void wefti_p2p_break(wefti_p2p_world *w, int failed, const char *format, ...) {
    pthread_mutex_lock(&w->message_lock);
    if (!atomic_load(&w->broken)) {
        int n = 0;
        w->failed = failed == WEFT_RANK_OWN ? w->comm.rank : (int32_t)failed;
        if (failed == WEFT_RANK_OWN)
            n = snprintf(w->message, sizeof w->message, "rank %d: ", (int)w->comm.rank);
        va_list args;
        va_start(args, format);
        (void)vsnprintf(w->message + n, sizeof w->message - (size_t)n, format, args);
        va_end(args);
        atomic_store(&w->broken, 1);
    }
    pthread_mutex_unlock(&w->message_lock);
}

weft_status wefti_p2p_fail(wefti_p2p_world *w) {
    char message[WEFTI_P2P_MESSAGE_TEXT];
    pthread_mutex_lock(&w->message_lock);
    memcpy(message, w->message, sizeof message);
    int failed = w->failed;
    pthread_mutex_unlock(&w->message_lock);
    return wefti_adopt_of(w->at_fault ? WEFT_E_MISMATCH : WEFT_E_PEER, failed, message);
}

enum { TELL_NS = 500000000 }; /* on a busy machine connecting takes a while */

static void give_up(wefti_p2p_world *w, wefti_p2p_post *post) {
    const wefti_commsched *plan = post->endpoint->plan;
    for (int32_t k = 0; k < post->open; k++) {
        int64_t i = post->open_message[k];
        const wefti_commsched_message *m =
            i < plan->sends ? &plan->send[i] : &plan->receive[i - plan->sends];
        w->transport.cancel(w->transport.context,
                            post->request + (size_t)m->request * w->request_bytes);
    }
    for (int64_t i = 0; i < plan->receives && post->held > 0; i++) {
        if (post->receive_state[i] != WEFTI_P2P_HELD) continue;
        wefti_p2p_give_buffer(w, post->early[i]);
        post->held--;
    }
    post->open = post->open_sends = post->held = 0;
}

static void tell_others(wefti_p2p_world *w) {
    wefti_p2p_header h = {.kind = WEFTI_P2P_ABORT, .number = (uint64_t)(int64_t)w->failed};
    h.text = (uint32_t)strlen(w->message);
    for (int32_t rank = w->known; rank >= 0; rank = w->peer[rank].next) {
        if (w->peer[rank].dead) continue;
        if (!w->spare && wefti_p2p_reserve(w, 1) < 0) return; /* they hear it from elsewhere */
        (void)wefti_p2p_send_header(w, rank, &h, w->message, NULL);
    }
}

void wefti_p2p_abort(wefti_p2p_world *w) {
    if (w->quiet) return;
    w->quiet = true;
    tell_others(w); /* before giving up, which may cut connections */
    int64_t until = wefti_now_ns() + TELL_NS;
    while (w->outgoing && wefti_now_ns() < until)
        if (!wefti_p2p_progress_outgoing(w)) sched_yield();
    for (wefti_p2p_channel *channel = w->busy; channel; channel = channel->next_busy) {
        for (wefti_p2p_post *post = channel->active; post; post = post->next) give_up(w, post);
        channel->active = channel->first = NULL;
        channel->last = &channel->first;
        channel->busy = false;
    }
    for (wefti_p2p_buffer *b = w->outgoing; b; b = b->next) b->post = NULL;
    w->busy = NULL;
    w->under_way = 0;
    atomic_store(&w->receiving, 0);
}

/* --- the thread --- */

enum {
    LULL_NS = 5000000,    /* after so long without work it sleeps until it is woken, */
    LISTEN_NS = 10000000, /* or this is over: another rank may ask, or break */
    LOOK_NS = 100000,     /* until then it looks for work so often */
    LEAST_NS = 5000       /* between looks at work that does not go on, doubled up to LOOK_NS */
};

static void nap(wefti_p2p_world *w, long ns) {
    struct timespec time = {0, ns};
    pthread_mutex_unlock(&w->lock);
    (void)nanosleep(&time, NULL);
    pthread_mutex_lock(&w->lock);
}

static void sleep_until_woken(wefti_p2p_world *w) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LISTEN_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    w->sleeps = true;
    if (w->known < 0) /* there is nobody to listen to */
        (void)pthread_cond_wait(&w->wake, &w->lock);
    else
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &until);
}

static bool has_work(const wefti_p2p_world *w) {
    if (atomic_load(&w->broken)) return !w->quiet || w->outgoing;
    return w->under_way > 0 || w->outgoing;
}

static void *carry_on(void *argument) {
    wefti_p2p_world *w = argument;
    int64_t last = wefti_now_ns();
    long pause = LEAST_NS;
    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        if (has_work(w) && atomic_load(&w->waiting) == 0) {
            last = wefti_now_ns();
            if (wefti_p2p_progress(w)) {
                pause = LEAST_NS;
                pthread_mutex_unlock(&w->lock);
                sched_yield();
                pthread_mutex_lock(&w->lock);
            } else {
                nap(w, pause);
                pause = 2 * pause < LOOK_NS ? 2 * pause : LOOK_NS;
            }
        } else if (wefti_now_ns() - last < LULL_NS) {
            nap(w, LOOK_NS);
        } else {
            sleep_until_woken(w);
            if (w->sleeps)
                (void)wefti_p2p_progress(w);
            else
                last = wefti_now_ns();
            w->sleeps = false;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void wefti_p2p_wake(wefti_p2p_world *w) {
    if (!w->sleeps) return;
    w->sleeps = false;
    pthread_cond_signal(&w->wake);
}

weft_status wefti_p2p_start_thread(wefti_p2p_world *w) {
    if (!w->transport.any_thread) return WEFT_OK;
    int error = wefti_thread_start(&w->thread, carry_on, w);
    WEFT_REQUIRE(error == 0, WEFT_E_NOMEM, "no thread for communication: %s", strerror(error));
    w->has_thread = true;
    return WEFT_OK;
}

void wefti_p2p_stop_thread(wefti_p2p_world *w) {
    if (!w->has_thread) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    w->sleeps = false;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->has_thread = false;
}
