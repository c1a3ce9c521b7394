/* A world: the processes of one job, one rank each, as one of them sees it.
 *
 *     weft_world *world;
 *     weft_world_join(NULL, &world);           // under weft launch, mpirun, srun, torchrun
 *     ... weft_all_reduce(world, ...) ...      // weft/collective.h
 *     ... options.world = world; weft_session_create(graph, &options, &session); ...
 *     weft_world_leave(world);
 *
 * Every call that waits for others returns: a rank that dies, stops or does something else than the
 * others is named in the error of all others (WEFT_E_PEER, WEFT_E_TIMEOUT, WEFT_E_MISMATCH), after
 * which the world can only be left. A world is used by one thread at a time. */
#ifndef WEFT_WORLD_H
#define WEFT_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_world weft_world;

typedef struct weft_world_options {
    /* How transfers go: "" chooses (memory of the host, and between hosts UCX or MPI); "host",
     * "ucx", "mpi" insist. Also by the variable WEFT_COMM. */
    const char *communicator;
    /* Measured links (docs/format-links.md), by which the ways of collectives between hosts are
     * chosen; equal for all processes. "": those that WEFT_LINKS names, else assumed ones. */
    const char *links;
    const char *interface; /* network interface to bind to; "" loopback when all are on one host */
    double join_seconds;   /* how long to wait for missing processes; 0: 600 */
    double heartbeat_seconds; /* a process that is silent for so long has failed; 0: 10 */
    double wait_seconds;      /* a rank that others have waited for so long has failed; 0: 1800 */
} weft_world_options;

/** What this process finds in its environment: the launcher that started it, and what that says. */
typedef struct weft_launcher {
    const char *name; /* "weft launch", "Open MPI", "MPICH", "Slurm", "torchrun", "MindSpore",
                         "rank table", "Volcano"; NULL: none, a process by itself */
    int rank, size;   /* rank -1: assigned when joining */
    int local_rank, local_size, host, hosts; /* -1: unknown */
} weft_launcher;
/** Never blocks. WEFT_E_ARG when variables of several launchers disagree; the message has both. */
WEFT_API weft_status weft_launcher_find(weft_launcher *out) WEFT_CHECKED;

/** Join the job that this process was started for. NULL options: defaults. Collective over all
 * processes of the job; blocks until all are there or the time is up (WEFT_E_TIMEOUT names those
 * that are missing). Without a launcher: a world of one. */
WEFT_API weft_status weft_world_join(const weft_world_options *options,
                                     weft_world **out) WEFT_CHECKED;
/** Collective: waits until all have come here, for a few seconds at most; under mpirun, which ends
 * all processes with the first one, as long as they go on and nothing fails. After its sessions,
 * groups and memory. NULL is legal. */
WEFT_API void weft_world_leave(weft_world *world);
/** The same, and what the job has failed of, if it has: WEFT_E_MISMATCH names the ranks that have
 * not made the same collective calls (broadcasts from other roots at the very end, say, which no
 * later call finds), or the two of which one has sent what the other did not receive. The world is
 * gone in any case. */
WEFT_API weft_status weft_world_close(weft_world *world) WEFT_CHECKED;
/** This process gives up: all others fail with `message` (copied), which should say why. NULL, or
 * weft_error_message() itself: this thread's last failure, blamed on the rank that it names. This
 * thread's failure stays. */
WEFT_API void weft_world_fail(weft_world *world, const char *message);

/** This process's rank, from 0; how many there are; on how many hosts. Never blocking. */
WEFT_API int weft_world_rank(const weft_world *world);
WEFT_API int weft_world_size(const weft_world *world);
WEFT_API int weft_world_hosts(const weft_world *world);
WEFT_API int weft_world_host_of(const weft_world *world, int rank); /* hosts count from 0 */
WEFT_API int weft_world_local_rank(const weft_world *world);        /* among those of its host */
WEFT_API int weft_world_local_size(const weft_world *world);
/** How transfers go, "host", "host+ucx", ... Borrowed from the world. */
WEFT_API const char *weft_world_communicator(const weft_world *world);

/** Zeroed memory that other ranks of this host reach directly, so that transfers in it take the
 * shortest road. Any other memory is legal in transfers too. Not collective. WEFT_E_NOMEM. */
WEFT_API weft_status weft_world_alloc(weft_world *world, size_t bytes, void **out) WEFT_CHECKED;
/** With the `bytes` it was asked for; NULL is legal. */
WEFT_API void weft_world_free(weft_world *world, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
