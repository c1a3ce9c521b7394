/* How a world breaks: the first reason stands, everybody hears it, and lent memory comes back. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* Whether a process of this host touches no memory any more: it is gone, or waits for its parent to
 * ask how it ended. */
static bool has_died(int64_t process) {
    char path[40], text[256];
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return errno == ENOENT && kill((pid_t)process, 0) != 0 && errno == ESRCH;
    const ssize_t bytes = read(file, text, sizeof text - 1);
    (void)close(file);
    text[bytes > 0 ? bytes : 0] = 0;
    const char *name_end = strrchr(text, ')');
    char state;
    int threads; /* of a process that is killed, the first one may end first */
    return name_end &&
           sscanf(name_end,
                  ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state,
                  &threads) == 2 &&
           (state == 'Z' || state == 'X') && threads <= 1;
}

void wefti_shm_quiesce(wefti_shm_rank *local) {
    enum { LOOK_NS = 1000000 }; /* a copy of a block takes less */
    wefti_shm_world *world = local->world;
    wefti_eventcount_barrier(world->mode);
    const int64_t begun = wefti_now_ns();
    int64_t look = begun + LOOK_NS;
    for (int32_t r = 0; r < world->size; r++)
        while (r != local->place && atomic_load(&world->common->peer[r].moving)) {
            sched_yield();
            const int64_t now = world->patience_ns ? wefti_now_ns() : begun;
            if (now > begun + world->patience_ns) return; /* a process that is stopped */
            if (now < look) continue;
            if (has_died(world->area[r].process)) break;
            look = now + LOOK_NS;
        }
}

weft_status wefti_shm_fail(wefti_shm_rank *local) {
    wefti_shm_quiesce(local);
    const wefti_shm_common *common = local->world->common;
    const wefti_shm_peer *peer = &common->peer[atomic_load(&common->broken) - 1];
    return wefti_adopt_of(local->at_fault ? WEFT_E_MISMATCH : WEFT_E_PEER, peer->failed,
                          peer->message);
}
