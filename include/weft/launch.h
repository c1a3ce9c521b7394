/* Starting the processes of a job on this host, seeing them through, and clearing up after them:
 * what `weft launch` does. */
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

/* Calls made from the thread that launches. Any may be NULL. */
typedef struct weft_launch_events {
    void *context;
    /* All processes run. `scheduler`: "host:port"; `log_dir`: "" for none. */
    void (*start)(void *context, int first_rank, int count, int size, const char *scheduler,
                  const char *log_dir);
    /* One whole line of a rank, without its newline. */
    void (*line)(void *context, int rank, weft_launch_stream stream, const char *text,
                 size_t bytes);
    void (*note)(void *context, const char *text); /* something worth knowing */
} weft_launch_events;

/* What to run where. Zeroes and NULLs are the defaults. */
typedef struct weft_launch_options {
    const char *const *command; /* NULL-terminated; searched along PATH */
    const char *self;           /* what the command "weft" is when PATH has none */
    int processes;              /* on this host */
    int hosts, host_rank;       /* each host runs as many processes; 0: one host */
    const char *scheduler;      /* "host:port" on host 0, needed with several hosts */
    const char *rank_table;     /* a file, instead of the four above */
    const char *server_id;      /* this host's entry in it, where addresses do not tell */
    const char *log_dir;        /* one file per rank there; NULL: none */
    const char *secret_file;    /* NULL: a fresh one; with several hosts the user's own */
    const char *interface;      /* of the network between the hosts */
    bool tls; /* members and scheduler speak TLS 1.3; WEFT_TLS=1 is the same. All hosts alike */
    const char *const *settings; /* "NAME=value" for the processes, NULL-terminated */
    bool bind_cores;             /* spread the cores over the processes */
    double join_seconds, heartbeat_seconds, wait_seconds; /* as in weft_world_options */
    double grace_seconds; /* from the request to end to the kill; 0: 5 */
    /* Set by the program's signal handlers: the last signal's number, and how many came. The first
     * is passed on and all processes may take their time; the second one too, and `grace_seconds`
     * later they are killed; the third kills at once. NULL: never. */
    const volatile int *stop_signal, *stop_count;
    weft_launch_events events;
} weft_launch_options;

typedef struct weft_launch_result {
    int ranks, first_rank; /* of this host */
    int failed_rank;       /* the first that failed here, else on another host; -1: none */
    int exit_code;         /* how it ended, or... */
    int signal;            /* ...of what it died, 0: it did not */
    int stop_signal;       /* of the request that ended the job, 0: none */
    char *log;             /* path of the failed rank's log; "" without logs, or elsewhere */
    char *last_lines;      /* of the failed rank, "" if it said nothing, or elsewhere */
    char *abort_reason; /* of the scheduler: why; "" if it has none. On hosts without the scheduler
                      of unlike calls only */
    char *table;        /* where each rank stood; "" on hosts without the scheduler */
} weft_launch_result;

/** Run the processes and wait until all have ended; then nothing is left of them: what they started
 * in turn is killed too, and shared names and the secret are gone, also when this process is killed
 * itself. Starts a scheduler in a thread (on host 0) that the processes find each other through.
 * While it runs, orphans of this process's descendants are adopted by it. Needs no signal handler
 * and sets none.
 *  @return WEFT_OK when all ended with 0; WEFT_E_PEER when a rank failed, WEFT_E_STOPPED after a
 * request to stop, both told in *out; WEFT_E_ARG and others when nothing could be started.
 *  @param out  freed with weft_launch_result_free, also after a failure */
WEFT_API weft_status weft_launch_run(const weft_launch_options *options,
                                     weft_launch_result *out) WEFT_CHECKED;
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_launch_result_free(weft_launch_result *result);

/** Be the scheduler of the job that the environment tells of (MS_ROLE=MS_SCHED): returns when the
 * job has ended, with what it failed of. *out_table: where each rank stood, freed with
 * weft_text_free. `announce` (may be NULL) gets the address once processes can come. */
WEFT_API weft_status weft_launch_serve(void (*announce)(void *context, const char *address),
                                       void *context, char **out_table) WEFT_CHECKED;
/** Whether the environment says so. */
WEFT_API bool weft_launch_is_scheduler(void);

/* ---- dry runs: a job of many ranks, checked by one process without devices ---- */

typedef struct weft_dry_run {
    int ranks, checked;              /* of the job; built and, when it is all, matched */
    int64_t least_bytes, most_bytes; /* predicted peak memory of one rank */
    int least_rank, most_rank;
    char *largest;              /* what holds memory at the peak of most_rank, one line */
    char *unmatched;            /* as of weft_job_plan; NULL: nothing is split */
    int64_t transfers;          /* in one step, all checked ranks' together */
    double received_bytes;      /* of others, in one step, by all checked ranks together */
    double most_received_bytes; /* by one rank */
    int most_received_rank;
    double seconds; /* that building and matching took */
} weft_dry_run;

/** Build the programs of all ranks of a job (rank -1) or of one, and match all of them against each
 * other. Nothing runs, no device is needed. `progress` (may be NULL) is told how many are built.
 *  @param out  freed with weft_dry_run_free
 *  @return as weft_job_program_text */
WEFT_API weft_status weft_job_dry_run(const weft_job *job, int rank,
                                      void (*progress)(void *context, int done, int of),
                                      void *context, weft_dry_run *out) WEFT_CHECKED;
/** Frees what it holds, not the structure itself. */
WEFT_API void weft_dry_run_free(weft_dry_run *report);

#ifdef __cplusplus
}
#endif
#endif
