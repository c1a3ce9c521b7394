/* A world: the processes of one job, one rank each.
 *
 *     weft_world *world;
 *     weft_world_join(NULL, &world);           // under weft launch, mpirun, srun, torchrun
 *     ... weft_all_reduce(world, ...) ...      // weft/collective.h
 *     ... options.world = world; weft_session_create(graph, &options, &session); ...
 *     weft_world_leave(world);
 *
 * Every call that waits for other ranks returns. If a rank dies, stops or makes a different call,
 * the calls of all other ranks fail and name it (WEFT_E_PEER, WEFT_E_TIMEOUT, WEFT_E_MISMATCH).
 * After that, the world can only be left. One thread at a time may use a world. */
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
    size_t struct_bytes;
    /* The carrier of transfers. "" chooses: memory within a host, UCX or MPI between hosts. "host",
     * "ucx" and "mpi" insist on one. "mac" is TCP with messages that the job's secret
     * authenticates. The variable WEFT_COMM does the same. */
    const char *communicator;
    /* A file of measured links (docs/reference/format-links.md), equal for all processes; they
     * choose the algorithms of collectives between hosts. "": the file that WEFT_LINKS names, else
     * assumed links. */
    const char *links;
    const char *interface; /* network interface to bind to; "": loopback if all are on one host */
    double join_seconds;   /* time to wait for missing processes; 0: 600 */
    double heartbeat_seconds; /* silence after which a process has failed; 0: 10 */
    double wait_seconds;      /* wait of other ranks after which a rank has failed; 0: 1800 */
    /* What this process is about to run: lines "name = value", at most 32 KiB, of which the
     * processes of one job have the same (weft_job_identity makes such lines). Names that two
     * processes both have are compared as the second one joins. It is refused, with the name that
     * differs (WEFT_E_MISMATCH), and its place stays free. NULL, "": it is like any other. MPI's
     * processes are of one job, and are not compared. */
    const char *identity;
} weft_world_options;
WEFTI_ZERO_DEFAULTS(weft_world_options, weft_world_defaults)

/** The launcher that started this process, and its facts, from the environment. */
typedef struct weft_launcher {
    const char *name; /* "weft launch", "Open MPI", "MPICH", "Slurm", "torchrun", "MindSpore",
                         "rank table", "Volcano"; NULL: none, a process by itself */
    int rank, size;   /* rank -1: assigned when joining */
    int local_rank, local_size, host, hosts; /* -1: unknown */
} weft_launcher;
/** Read the environment. Nonblocking, not collective. WEFT_E_ARG if variables of several launchers
 * disagree; the message has both. */
WEFT_API weft_status weft_launcher_find(weft_launcher *out) WEFT_CHECKED;

/** Note `number`, from 0, on environment variables that are set and ask for a feature which weft
 * does not have: the variable, and what weft does in its place. For example: MS_ENABLE_RECOVERY.
 * Static. NULL: there are no more notes. Nonblocking. */
WEFT_API const char *weft_launcher_note(int number);

/** Join the job of this process. Collective over all processes of the job. Blocks until all have
 * joined or the join time ends. Without a launcher: a world of one.
 * @param options  NULL: defaults
 * @param out  left with weft_world_leave or weft_world_close
 * @return WEFT_E_TIMEOUT names the missing processes */
WEFT_API weft_status weft_world_join(const weft_world_options *options,
                                     weft_world **out) WEFT_CHECKED;
/** Leave the world and free it, after its sessions, groups and memory. Collective: waits a few
 * seconds at most for the others. Under mpirun, which ends all processes with the first one, it
 * waits as long as they run and nothing fails. NULL is legal. */
WEFT_API void weft_world_leave(weft_world *world);
/** As weft_world_leave, and return the failure of the job, if any. WEFT_E_LOST: a rank or the
 * scheduler died; WEFT_E_TIMEOUT: one is silent, or keeps the others waiting; both may go well the
 * next time. WEFT_E_PEER: a rank failed, and said why. WEFT_E_MISMATCH names the ranks that did
 * not make the same collective calls, or two ranks with messages sent but not received. This finds
 * errors that no later call finds, such as different roots in the last broadcast. The world is
 * freed in any case. */
WEFT_API weft_status weft_world_close(weft_world *world) WEFT_CHECKED;
/** Fail the job: all other ranks fail with `message` (copied), which should say why. NULL, or
 * weft_error_message() itself, means this thread's last failure and the rank that it names. This
 * thread's message stays. */
WEFT_API void weft_world_fail(weft_world *world, const char *message);

/** This process's rank, from 0; the number of ranks; the number of hosts. Nonblocking, like the
 * functions below. */
WEFT_API int weft_world_rank(const weft_world *world);
WEFT_API int weft_world_size(const weft_world *world);
WEFT_API int weft_world_hosts(const weft_world *world);
WEFT_API int weft_world_host_of(const weft_world *world, int rank); /* hosts count from 0 */
WEFT_API int weft_world_local_rank(const weft_world *world);        /* among those of its host */
WEFT_API int weft_world_local_size(const weft_world *world);
/** The carrier of transfers, "host", "host+ucx", ... Borrowed from the world. */
WEFT_API const char *weft_world_communicator(const weft_world *world);

/** Allocate zeroed memory that other ranks of this host access directly; transfers in it are
 * fastest. Transfers accept any other memory too. Not collective. WEFT_E_NOMEM. */
WEFT_API weft_status weft_world_alloc(weft_world *world, size_t bytes, void **out) WEFT_CHECKED;
/** Free memory of weft_world_alloc; `bytes` as in that call. NULL is legal. */
WEFT_API void weft_world_free(weft_world *world, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
