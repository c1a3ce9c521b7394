/* How a world breaks: the first reason stands, everybody hears it, and lent memory comes back. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "comm/shm/shm.h"

/* The message is complete before the word `broken` publishes it: a process may be killed in
 * between. Peers are notified after that, and again by each process that learns of the break. */
void wefti_shm_break(wefti_shm_rank *local, int failed, const char *format, ...) {
    wefti_shm_world *world = local->world;
    wefti_shm_common *common = world->common;
    wefti_shm_peer *peer = &common->peer[local->place];
    char text[WEFTI_SHM_MESSAGE];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&world->lock);
    if (!atomic_load(&common->broken)) {
        peer->failed = failed == WEFT_RANK_OWN ? local->comm.rank : (int32_t)failed;
        if (failed == WEFT_RANK_OWN)
            (void)snprintf(peer->message, sizeof peer->message, "rank %d: %.990s",
                           (int)local->comm.rank, text);
        else
            memcpy(peer->message, text, sizeof text);
        uint32_t whole = 0;
        (void)atomic_compare_exchange_strong(&common->broken, &whole, (uint32_t)local->place + 1);
    }
    for (int32_t r = 0; r < world->size; r++)
        wefti_eventcount_notify(&common->peer[r].event, world->mode);
    pthread_mutex_unlock(&world->lock);
}

void wefti_shm_quiesce(wefti_shm_rank *local) {
    wefti_shm_world *world = local->world;
    wefti_eventcount_barrier(world->mode);
    int64_t until = world->patience_ns ? wefti_now_ns() + world->patience_ns : INT64_MAX;
    for (int32_t r = 0; r < world->size; r++)
        while (r != local->place && atomic_load(&world->common->peer[r].moving)) {
            /* A process that is dead, or stopped, does not say so. */
            if (world->patience_ns && wefti_now_ns() > until) return;
            sched_yield();
        }
}

weft_status wefti_shm_fail(wefti_shm_rank *local) {
    wefti_shm_quiesce(local);
    const wefti_shm_common *common = local->world->common;
    const wefti_shm_peer *peer = &common->peer[atomic_load(&common->broken) - 1];
    return wefti_adopt_of(local->at_fault ? WEFT_E_MISMATCH : WEFT_E_PEER, peer->failed,
                          peer->message);
}
