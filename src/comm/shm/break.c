/* How a world breaks: the first reason stands, everybody hears it, and lent memory comes back. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "comm/shm/shm.h"

/* The message is complete before the word that makes it count, so that a process may die anywhere
 * in between; and behind it, so that who hears of its death rings again. */
void wefti_local_break(wefti_local *local, int failed, const char *format, ...) {
    wefti_local_world *world = local->world;
    wefti_local_common *common = world->common;
    wefti_local_line *line = &common->line[local->place];
    char text[WEFTI_LOCAL_MESSAGE];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&world->lock);
    if (!atomic_load(&common->broken)) {
        line->failed = failed == WEFT_RANK_OWN ? local->comm.rank : (int32_t)failed;
        if (failed == WEFT_RANK_OWN)
            (void)snprintf(line->message, sizeof line->message, "rank %d: %.990s",
                           (int)local->comm.rank, text);
        else
            memcpy(line->message, text, sizeof text);
        uint32_t whole = 0;
        (void)atomic_compare_exchange_strong(&common->broken, &whole, (uint32_t)local->place + 1);
    }
    for (int32_t r = 0; r < world->size; r++) wefti_bell_ring(&common->line[r].bell, world->mode);
    pthread_mutex_unlock(&world->lock);
}

void wefti_local_calm(wefti_local *local) {
    wefti_local_world *world = local->world;
    wefti_bell_barrier(world->mode);
    int64_t until = world->patience_ns ? wefti_now_ns() + world->patience_ns : INT64_MAX;
    for (int32_t r = 0; r < world->size; r++)
        while (r != local->place && atomic_load(&world->common->line[r].moving)) {
            /* A process that is dead, or stopped, does not say so. */
            if (world->patience_ns && wefti_now_ns() > until) return;
            sched_yield();
        }
}

weft_status wefti_local_fail(wefti_local *local) {
    wefti_local_calm(local);
    const wefti_local_common *common = local->world->common;
    const wefti_local_line *line = &common->line[atomic_load(&common->broken) - 1];
    return wefti_adopt_of(local->at_fault ? WEFT_E_MISMATCH : WEFT_E_PEER, line->failed,
                          line->message);
}
