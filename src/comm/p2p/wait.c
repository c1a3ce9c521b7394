/* Posting and waiting. Whoever waits, for whatever it is, carries on everything that is under way,
 * so that waits in different orders on different ranks cannot lock each other out. */
#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "comm/eventcount.h"
#include "comm/p2p/p2p.h"

enum {
    SPIN = 200,            /* looks before a waiting thread lets others run */
    PATIENCE_NS = 20000000 /* before it asks the others which posts they have made */
};

weft_status wefti_p2p_post_one(wefti_endpoint *base, const void *source, void *destination) {
    wefti_p2p_endpoint *endpoint = (wefti_p2p_endpoint *)base;
    wefti_p2p_world *w = endpoint->world;
    if (endpoint->posted - endpoint->waited >= WEFTI_COMM_DEPTH)
        return wefti_comm_too_many_posts(&w->comm, endpoint->plan->text);
    pthread_mutex_lock(&w->lock);
    if (atomic_load(&w->broken)) {
        wefti_p2p_abort(w);
        pthread_mutex_unlock(&w->lock);
        return wefti_p2p_fail(w);
    }
    wefti_p2p_post *post = &endpoint->post[endpoint->posted++ % WEFTI_COMM_DEPTH];
    wefti_p2p_post_begin(post, source, destination);
    post->call = base->call;
    wefti_p2p_append(w, endpoint->channel, post);
    if (w->under_way > 0) wefti_p2p_wake(w);
    pthread_mutex_unlock(&w->lock);
    return WEFT_OK;
}

/* The oldest post. With the lock held. */
static weft_status find_oldest(wefti_p2p_endpoint *endpoint, wefti_p2p_post **out) {
    if (endpoint->posted == endpoint->waited)
        return wefti_comm_not_posted(&endpoint->world->comm, endpoint->plan->text);
    *out = &endpoint->post[endpoint->waited % WEFTI_COMM_DEPTH];
    return WEFT_OK;
}

/* Bytes of a long message count before it ends. */
static bool bytes_moved(wefti_p2p_world *w) {
    uint64_t moved = w->transport.moved ? w->transport.moved(w->transport.context) : 0;
    bool so = moved != w->moved;
    w->moved = moved;
    return so;
}

/* One look: WEFT_OK when it is finished. With the lock held. */
static weft_status look(wefti_p2p_world *w, const wefti_p2p_post *post, bool *happened) {
    if (post->finished && !atomic_load(&w->broken)) return WEFT_OK;
    *happened = wefti_p2p_progress(w);
    *happened |= bytes_moved(w);
    if (atomic_load(&w->broken)) return wefti_p2p_fail(w);
    return post->finished ? WEFT_OK : WEFT_PENDING;
}

weft_status wefti_p2p_test(wefti_endpoint *base) {
    wefti_p2p_endpoint *endpoint = (wefti_p2p_endpoint *)base;
    wefti_p2p_world *w = endpoint->world;
    wefti_p2p_post *post;
    bool happened;
    WEFT_TRY(find_oldest(endpoint, &post));
    pthread_mutex_lock(&w->lock);
    weft_status status = look(w, post, &happened);
    pthread_mutex_unlock(&w->lock);
    if (status != WEFT_OK) return status;
    endpoint->waited++;
    wefti_position_end_wait(w->comm.position, false);
    return WEFT_OK;
}

/* The progress thread takes over the posts still under way. With the lock held. */
static void leave(wefti_p2p_world *w) {
    atomic_fetch_sub(&w->waiting, 1);
    if (w->under_way > 0 || w->outgoing) wefti_p2p_wake(w);
}

void wefti_p2p_attend(wefti_comm *comm, bool on) {
    wefti_p2p_world *w = (wefti_p2p_world *)comm;
    if (on) {
        atomic_fetch_add(&w->waiting, 1);
        return;
    }
    pthread_mutex_lock(&w->lock);
    leave(w);
    pthread_mutex_unlock(&w->lock);
}

void wefti_p2p_idle(wefti_comm *comm, int64_t ns) {
    wefti_p2p_world *w = (wefti_p2p_world *)comm;
    if (ns <= PATIENCE_NS) return;
    pthread_mutex_lock(&w->lock);
    wefti_p2p_query_peers(w);
    pthread_mutex_unlock(&w->lock);
}

/* Between two looks that found nothing to do. */
typedef struct patience {
    int spun;
    int64_t since_ns; /* of the first look in a row that found nothing; 0: the last one did */
    bool reported;    /* that this rank waits */
} patience;

static void be_patient(wefti_p2p_endpoint *endpoint, patience *p, bool happened) {
    wefti_p2p_world *w = endpoint->world;
    if (happened) {
        p->spun = 0;
        p->since_ns = 0;
        return;
    }
    if (++p->spun < SPIN) return;
    if (!p->reported) wefti_position_begin_wait(w->comm.position, endpoint->plan->text);
    p->reported = true;
    int64_t now = wefti_now_ns();
    if (p->since_ns == 0) p->since_ns = now;
    wefti_p2p_idle(&w->comm, now - p->since_ns);
    long ns = wefti_eventcount_backoff(now - p->since_ns);
    if (ns > 0)
        (void)nanosleep(&(struct timespec){0, ns}, NULL);
    else
        sched_yield();
}

weft_status wefti_p2p_wait(wefti_endpoint *base) {
    wefti_p2p_endpoint *endpoint = (wefti_p2p_endpoint *)base;
    wefti_p2p_world *w = endpoint->world;
    wefti_p2p_post *post;
    WEFT_TRY(find_oldest(endpoint, &post));
    patience p = {0};
    weft_status status;
    wefti_p2p_attend(&w->comm, true);
    for (;;) {
        bool happened = false;
        pthread_mutex_lock(&w->lock);
        status = look(w, post, &happened);
        if (status != WEFT_PENDING) break;
        pthread_mutex_unlock(&w->lock);
        be_patient(endpoint, &p, happened);
    }
    leave(w);
    pthread_mutex_unlock(&w->lock);
    if (status < 0) return status;
    endpoint->waited++;
    wefti_position_end_wait(w->comm.position, p.reported);
    return WEFT_OK;
}
