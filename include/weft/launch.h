/* Starts the processes of a job on this host, watches them, and cleans up: the work of `weft
 * launch`. */
#ifndef WEFT_LAUNCH_H
#define WEFT_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft/job.h"
#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weft_launch_stream { WEFT_LAUNCH_OUTPUT, WEFT_LAUNCH_ERRORS } weft_launch_stream;

/* Callbacks, from the thread of weft_launch_run. Any may be NULL. */
typedef struct weft_launch_events {
    void *context;
    /* All processes are running. `scheduler`: "host:port"; `log_dir`: "" for none. */
    void (*start)(void *context, int first_rank, int count, int size, const char *scheduler,
                  const char *log_dir);
    /* One complete line of a rank, without its newline. */
    void (*line)(void *context, int rank, weft_launch_stream stream, const char *text,
                 size_t bytes);
    void (*note)(void *context, const char *text); /* for the user */
} weft_launch_events;

/* The command and its hosts. Zeroes and NULLs are the defaults. */
typedef struct weft_launch_options {
    size_t struct_bytes;
    const char *const *command; /* NULL-terminated; searched along PATH */
    const char *self;           /* path of the command "weft" if PATH has none */
    int processes;              /* on this host */
    int hosts, host_rank;       /* each host runs as many processes; 0: one host */
    const char *scheduler;      /* "host:port" on host 0, needed with several hosts */
    const char *standby;        /* "host:port" of a standby scheduler, which takes over if the
                                   scheduler is lost; the same on all hosts. NULL: none. The launcher
                                   of a host that has this address runs it */
    bool scheduler_elsewhere;   /* scheduler and standby are processes of their own, as
                                   weft_launch_schedule makes them: this one runs none */
    const char *rank_table;     /* a file that replaces processes, hosts and scheduler */
    const char *server_id;      /* this host's entry in it, if addresses are not enough */
    const char *log_dir;        /* one file per rank there; NULL: none */
    const char *secret_file;    /* NULL: a new secret; with several hosts the user's own */
    const char *interface;      /* network interface between the hosts */
    bool tls; /* members and scheduler use TLS 1.3, as with WEFT_TLS=1; the same on all hosts */
    const char *const *settings; /* "NAME=value" for the processes, NULL-terminated */
    bool bind_cores;             /* spread the cores over the processes */
    double join_seconds, heartbeat_seconds, wait_seconds; /* as in weft_world_options */
    double grace_seconds; /* time between the request to end and the kill; 0: 5 */
    /* How often in all the launcher starts lost ranks again, while the others wait. A rank is lost
     * by a signal, by exit code 75, or if it is silent. Those lost within a second of each other
     * count once. Only once all ranks run with recovery. 0: never, and the job ends with the first
     * such rank. The same on all hosts. */
    int restarts;
    /* A restart no longer counts after so long; 0: 3600. The same on all hosts. */
    double restart_window_seconds;
    /* A command line for /bin/sh, run beside the job for each restart that this launcher makes. Its
     * environment says WEFT_RESTART_JOB (the name of weft_jobs_find), WEFT_RESTART_RANK (or "all"),
     * WEFT_RESTART_HOST, WEFT_RESTART_REASON and WEFT_RESTART_COUNT. A note says if it fails; the
     * job goes on. Both of its outputs go to stderr. NULL: none. */
    const char *on_restart;
    /* This host starts nothing until the launcher of another host and all its processes are lost.
     * Then it takes their place, with at most `processes` of them. host_rank is not used. Needs
     * restarts. A job that ends without it is a success. */
    bool spare;
    /* Adds `processes` to a running elastic job, of which each becomes a rank. `scheduler`: where
     * that job is; NULL: as the environment says, else the one job of `weft launch` that this user
     * runs on this host. secret_file NULL: that job's, else the user's own. Hosts, restarts and a
     * rank table are the job's. WEFT_E_MISMATCH says why the job takes none; WEFT_E_LOST: all of
     * them were lost, and the job goes on. */
    bool add;
    const char *job; /* `add`: the name of that job (weft_jobs_find), in place of `scheduler` */
    /* Set by the program's signal handlers: the number of the last signal, and the count of
     * signals. The first signal is passed on, and processes may take their time. The second is
     * passed on too, and kills after `grace_seconds`. The third kills at once. NULL: never.
     * If the number changes and the count does not, the new signal is passed on and hastens
     * nothing: a job system may send one signal as an announcement and another at its limit. */
    const volatile int *stop_signal, *stop_count;
    weft_launch_events events;
    /* Servers of parameters to start beside the processes, on one host (weft/server.h). The
     * processes hear of them by WEFT_SERVERS. */
    int servers;
} weft_launch_options;
WEFTI_ZERO_DEFAULTS(weft_launch_options, weft_launch_defaults)

typedef struct weft_launch_result {
    int ranks, first_rank; /* of this host */
    int failed_rank;       /* the first that failed on this host, else on another one; -1: none */
    int exit_code;         /* of the failed rank */
    int signal;            /* that killed the failed rank; 0: none */
    int stop_signal;       /* of the request that ended the job, 0: none */
    char *log;             /* path of the failed rank's log; "" without logs, or elsewhere */
    char *last_lines;   /* of the failed rank; "" if it printed nothing, or ran on another host */
    char *abort_reason; /* the scheduler's reason; "" for none. Hosts without the scheduler have it
                           only for unlike calls */
    char *table;        /* position of each rank; "" on hosts without the scheduler */
} weft_launch_result;

/** Run the processes and wait until all have ended. Blocks. Starts a scheduler in a thread (on host
 * 0) by which the processes find each other. After the call nothing of the job remains: processes
 * that ranks started are killed, and shared names and the secret are removed, even if this process
 * itself is killed. While the call runs, this process adopts orphans among its descendants. It
 * sets no signal handler.
 * @param out  freed with weft_launch_result_free, also after a failure
 * @return WEFT_OK if all ended with 0; WEFT_E_PEER if a rank failed and WEFT_E_STOPPED after a
 *   request
 * to stop, both described in *out; WEFT_E_ARG and others if nothing could be started */
WEFT_API weft_status weft_launch_run(const weft_launch_options *options,
                                     weft_launch_result *out) WEFT_CHECKED;
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_launch_result_free(weft_launch_result *result);

typedef enum weft_launch_role { WEFT_LAUNCH_SCHEDULER, WEFT_LAUNCH_STANDBY } weft_launch_role;

/** Run the scheduler of a job, or its standby, and start no processes. The launchers of the job
 * have `scheduler_elsewhere`. Blocks until the job has ended and its launchers have, or a request
 * to stop comes. A standby that was not needed ends with WEFT_OK when the scheduler has ended in
 * good order. If the standby has the job, a scheduler that is started becomes the standby.
 *
 * @param options    as for weft_launch_run. Processes, hosts, scheduler and restarts are the job's.
 * @param announce   called with the address once processes can join; may be NULL
 * @param out_table  the position of each rank; freed with weft_text_free
 * @return what the job failed of; WEFT_E_STOPPED after a request to stop; WEFT_E_TIMEOUT if nobody
 * came */
WEFT_API weft_status weft_launch_schedule(const weft_launch_options *options, weft_launch_role role,
                                          void (*announce)(void *context, const char *address),
                                          void *context, char **out_table) WEFT_CHECKED;

/** The folder in MS_RECOVERY_PATH, if the launcher is MindSpore's and MS_ENABLE_RECOVERY is 1. Then
 * a worker that dies may be started again. The program should run with recovery (recovery.enabled),
 * and keep its checkpoints in that folder unless its user names another one. Borrowed from the
 * environment. NULL: nothing of that is asked for. Nonblocking. */
WEFT_API const char *weft_launch_recovery(void);

/** Be the scheduler of the job that the environment describes (MS_ROLE=MS_SCHED). Blocks until the
 * job has ended, and returns its failure, if any.
 * @param announce   called with the address once processes can join; may be NULL
 * @param out_table  the position of each rank; freed with weft_text_free */
WEFT_API weft_status weft_launch_serve(void (*announce)(void *context, const char *address),
                                       void *context, char **out_table) WEFT_CHECKED;
/** Whether the environment makes this process the scheduler. Nonblocking. */
WEFT_API bool weft_launch_is_scheduler(void);

/* ---- health: whether a job makes steps ---- */

typedef enum weft_health_state {
    WEFT_HEALTH_JOINING,  /* has begun no step yet */
    WEFT_HEALTH_STEPPING, /* makes steps */
    WEFT_HEALTH_HALTED,   /* a rank was lost: it ends its step, or waits for the others to do so */
    WEFT_HEALTH_MENDING,  /* takes and gives states */
    WEFT_HEALTH_LOST,     /* its process has died, and no other one has its place */
    WEFT_HEALTH_LEAVING,  /* has ended its training */
} weft_health_state;

typedef struct weft_health_rank {
    weft_health_state state;
    int host;
    int64_t step;             /* the last that it has begun, from 1; 0: none */
    double heartbeat_seconds; /* since its last heartbeat */
    double step_seconds;      /* since the scheduler heard of that step; 0 without a step */
    double steps_per_second;  /* of its last steps; 0: not known */
} weft_health_rank;

typedef struct weft_health {
    bool makes_steps;
    char *text;      /* one line: the answer, and why */
    char *scheduler; /* "host:port" that has answered */
    uint64_t generation;
    int64_t step;            /* of the rank that has begun the fewest */
    double step_seconds;     /* the longest time since a rank has begun its last step */
    double limit_seconds;    /* with a longer time the job makes no steps */
    double steps_per_second; /* of the slowest rank; 0: not known */
    int size, here;          /* processes of the job, and of them those that have come */
    int restarts;            /* that the job has had; a scheduler that was started again knows only
                                those that still counted (restart_window_seconds) */
    int ranks;               /* entries of `rank`: `size` once all have come, 0 before */
    weft_health_rank *rank;
} weft_health;

typedef struct weft_health_options {
    size_t struct_bytes;
    const char *job;         /* name of a job on this host (weft_jobs_find); NULL: by `scheduler` */
    const char *scheduler;   /* "host:port"; NULL: as the environment says, else of the one job of
                                `weft launch` that this user runs on this host */
    const char *standby;     /* "host:port" of its standby, which is asked too; NULL: as for
                                `scheduler` */
    const char *secret_file; /* NULL: as for `scheduler`, else the user's own */
    bool tls;
    double timeout_seconds; /* to find the scheduler and get its answer; 0: 5 */
    /* A job makes steps if each rank has begun one within so many seconds. 0: ten times as long as
     * its last steps took, at least 60 s. */
    double limit_seconds;
} weft_health_options;
WEFTI_ZERO_DEFAULTS(weft_health_options, weft_health_defaults)

/** Ask a job's scheduler whether the job makes steps: all ranks are there, none is mended or has
 * left, and each has begun a step not longer ago than `limit_seconds`. Blocks, for
 * `timeout_seconds` at most. A step is what weft_session_step makes, with its passes.
 * @param options  NULL: all defaults
 * @param out      freed with weft_health_free
 * @return WEFT_OK if the scheduler has answered, whatever it says; WEFT_E_NOT_FOUND if nothing says
 * where a scheduler is; WEFT_E_TIMEOUT if it does not answer; WEFT_E_ARG for another secret, a bad
 * address, or several jobs */
WEFT_API weft_status weft_health_ask(const weft_health_options *options,
                                     weft_health *out) WEFT_CHECKED;
typedef struct weft_health_answer {
    weft_status status; /* of weft_health_ask */
    char *error;        /* its message; NULL: the scheduler has answered */
    weft_health health;
} weft_health_answer;
/** Ask the schedulers of several jobs at once: as weft_health_ask for each of options[count], but
 * no longer than the longest `timeout_seconds`. Blocks.
 * @param out  [count], freed with weft_health_answers_free
 * @return WEFT_E_ARG if the first options have no struct_bytes; WEFT_E_NOMEM; what one scheduler
 * has answered is in its entry */
WEFT_API weft_status weft_health_ask_all(const weft_health_options *options, int count,
                                         weft_health_answer *out) WEFT_CHECKED;
/** Frees what the entries hold, not the array. */
WEFT_API void weft_health_answers_free(weft_health_answer *answers, int count);
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_health_free(weft_health *health);
/** "stepping" */
WEFT_API const char *weft_health_state_name(weft_health_state state);

/* ---- jobs: which run on this host ---- */

typedef struct weft_running_job {
    char *name;      /* for weft_health_options and weft_launch_options */
    char *folder;    /* working directory of its processes; "": not known */
    char *scheduler; /* "host:port" */
    int ranks;       /* at its start */
    bool elsewhere;  /* all its processes here are in other network namespaces: its scheduler may
                        be out of reach */
} weft_running_job;

typedef struct weft_jobs {
    int count;
    weft_running_job *job;
} weft_jobs;

/** List the jobs of `weft launch` that have processes on this host, as far as this user may look at
 * them. A job whose processes have ended is not listed. Nonblocking.
 * @param out  freed with weft_jobs_free
 * @return WEFT_E_IO without /proc; WEFT_E_NOMEM */
WEFT_API weft_status weft_jobs_find(weft_jobs *out) WEFT_CHECKED;
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_jobs_free(weft_jobs *jobs);

/* ---- dry runs: one process checks a job of many ranks, without devices ---- */

typedef struct weft_dry_run {
    int ranks, checked;              /* in the job; checked, and matched if all were checked */
    int64_t least_bytes, most_bytes; /* predicted peak memory of one rank */
    int64_t program_bytes; /* the most that the programs of a rank take themselves, in addition */
    int least_rank, most_rank;
    char *largest;              /* largest tensors at the peak of most_rank, one line */
    char *unmatched;            /* as for weft_job_plan; NULL: nothing is split */
    int64_t transfers;          /* in one step, of all checked ranks together */
    double received_bytes;      /* from other ranks, in one step, by all checked ranks together */
    double most_received_bytes; /* by one rank */
    int most_received_rank;
    double seconds; /* for building and matching */
} weft_dry_run;

/** Dry run: check the programs of all ranks of a job (rank -1), or of one rank, and match them
 * against each other. Nothing runs, and no device is needed. Of ranks that are equal except for
 * their place, one is built.
 * @param progress  called with the number of ranks that are done; may be NULL
 * @param out       freed with weft_dry_run_free
 * @return as weft_job_program_text; WEFT_E_NOMEM if a rank needs more than the job's device.memory
 */
WEFT_API weft_status weft_job_dry_run(const weft_job *job, int rank,
                                      void (*progress)(void *context, int done, int of),
                                      void *context, weft_dry_run *out) WEFT_CHECKED;
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_dry_run_free(weft_dry_run *report);

#ifdef __cplusplus
}
#endif
#endif
