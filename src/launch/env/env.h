/* The job of this process, as the environment describes it: its launcher, its place among the
 * processes, and the scheduler's address.
 *
 * Each launcher has variables of its own, and one launcher may run inside another (mpirun in a
 * Slurm step), so several sets can be there at once. The first set in the order of wefti_start
 * counts, and all others must agree with it on rank and size. A process with wrong numbers would
 * wait for the wrong peers, or train alone many times over. One combination is no contradiction: a
 * Slurm step with one task per node starts launchers, not ranks. docs/guide/how-to-launch.md has
 * the table. */
#ifndef WEFTI_LAUNCH_ENV_H
#define WEFTI_LAUNCH_ENV_H

#include <stdbool.h>
#include <stdint.h>

#include "topo/limits.h"
#include "base/status.h"
#include "weft/world.h"

typedef enum wefti_start { /* by falling precedence */
                           WEFTI_START_WEFT,
                           WEFTI_START_OPEN_MPI,
                           WEFTI_START_MPICH, /* and others that speak PMI */
                           WEFTI_START_TORCHRUN,
                           WEFTI_START_SLURM,
                           WEFTI_START_MINDSPORE,
                           WEFTI_START_RANK_TABLE,
                           WEFTI_START_VOLCANO, /* where nobody else says the rank */
                           WEFTI_START_ALONE    /* no launcher */
} wefti_start;

enum { WEFTI_SERVERS_MAX = 64, WEFTI_SERVERS_TEXT = 4096 };
enum { WEFTI_HOST_TEXT = 256, WEFTI_PATH_TEXT = 1024, WEFTI_STREAMS_MAX = 16 };

/* What users set for all jobs alike, whoever starts them. "" and 0: not said. Options of a call
 * come before them (wefti_settings_override). */
typedef struct wefti_settings {
    char communicator[16];              /* WEFT_COMM */
    char interface[WEFTI_HOST_TEXT];    /* WEFT_INTERFACE */
    char job[WEFTI_HOST_TEXT];          /* WEFT_JOB */
    char host_id[WEFTI_HOST_TEXT];      /* WEFT_HOST_ID: of the memory that processes share */
    char secret_file[WEFTI_PATH_TEXT];  /* WEFT_SECRET_FILE */
    char links[WEFTI_PATH_TEXT];        /* WEFT_LINKS: a file */
    char servers[WEFTI_SERVERS_TEXT];   /* WEFT_SERVERS: "host:port,host:port" */
    char module_path[WEFTI_PATH_TEXT];  /* WEFT_MODULE_PATH: a folder */
    char home[WEFTI_PATH_TEXT];         /* HOME */
    char temporary[WEFTI_PATH_TEXT];    /* TMPDIR, or /tmp */
    const char *commands;               /* PATH, borrowed; NULL: not set */
    char standby[WEFTI_HOST_TEXT + 16]; /* WEFT_STANDBY: "host:port" of the scheduler that follows
                                           one that is lost */
    bool tls;                           /* WEFT_TLS: 1 or 0 */
    int restarts;                       /* WEFT_RESTART; 0: never */
    double restart_window_seconds;      /* WEFT_RESTART_WINDOW */
    int32_t streams; /* WEFT_STREAMS: connections of a pair of ranks between hosts; 0: by the
                        interface's speed */
    double join_seconds, heartbeat_seconds, wait_seconds; /* WEFT_JOIN_SECONDS, ... */
} wefti_settings;

typedef struct wefti_launcher {
    wefti_start start;
    weft_launcher place; /* name, rank, size, local_rank, local_size, host, hosts */
    /* Where the scheduler listens: WEFT_SCHEDULER, or what the launchers say, in the order above,
     * or what follows from their lists of hosts. Port 0: nowhere. */
    char scheduler_host[WEFTI_HOST_TEXT];
    int scheduler_port;
    /* is_scheduler: this process is the scheduler and nothing else (MS_ROLE=MS_SCHED). serves:
     * this is rank 0, and its launcher has no scheduler, so it starts one beside its own work. */
    bool is_scheduler, serves;
    bool mpi;             /* variables of an MPI are there: MPI_Init would find the others */
    bool open_mpi;        /* among them Open MPI's */
    int pmi_fd;           /* PMI_FD: the connection to MPICH's mpirun; -1: none is named */
    char pmix_server[64]; /* "host:port" of Open MPI's mpirun, from PMIX_SERVER_URI2; "" unknown */
    bool one_host; /* surely all ranks are on this host: the scheduler may listen on loopback */
    uint64_t run;  /* WEFT_RUN: the number of the weft launch that started it; 0: another one did */
    char node_id[WEFTI_HOST_TEXT]; /* of this process among those that join; "" none */
    /* The same for all processes of a job and different for others at the same time ("slurm 81.0"),
     * as far as launchers say so; else "". */
    char job[WEFTI_HOST_TEXT];
    int added;                 /* WEFT_ADDED: this process's number if it is added; -1: it is not */
    const char *recovery_path; /* MS_RECOVERY_PATH, borrowed; NULL: workers do not come again */
    wefti_settings set;        /* its times are the launcher's where the user says none */
} wefti_launcher;

/* "NAME=value" each, NULL-terminated. Of one name the first counts, and an empty one as not set. */
typedef const char *const *wefti_variables;

/* Reads `variables` on the host `host_name` ("": unknown). WEFT_E_ARG names the variables and
 * values that are malformed, incomplete or contradict others. Reads a rank table if one is named,
 * and no other file. */
weft_status wefti_launcher_read(wefti_variables variables, const char *host_name,
                                wefti_launcher *out) WEFT_CHECKED;
weft_status wefti_settings_read(wefti_variables variables, wefti_settings *out) WEFT_CHECKED;
/* From the environment of this process. */
weft_status wefti_launcher_find(wefti_launcher *out) WEFT_CHECKED;
weft_status wefti_settings_find(wefti_settings *out) WEFT_CHECKED;
/* "host:port" of the scheduler that this process's environment names, for processes that are no
 * rank too; "": it names none. */
enum { WEFTI_PLACE_TEXT = WEFTI_HOST_TEXT + 16 };
weft_status wefti_scheduler_named(char out[WEFTI_PLACE_TEXT]) WEFT_CHECKED;
/* The same of WEFT_STANDBY. */
weft_status wefti_standby_named(char out[WEFTI_PLACE_TEXT]) WEFT_CHECKED;
/* Checks the address of a standby scheduler, which `what` names, against that of the scheduler ("":
 * not known). WEFT_E_ARG: it is malformed, or the scheduler's own. */
weft_status wefti_standby_address_check(const char *what, const char *standby,
                                        const char *scheduler) WEFT_CHECKED;
/* WEFT_E_ARG saying what to set when `l` has no scheduler to go to. */
weft_status wefti_launcher_check_address(const wefti_launcher *l) WEFT_CHECKED;

/* Note number `number`, from 0, on variables that are set and have no effect; NULL: no such note.
 */
const char *wefti_launcher_note(wefti_variables variables, int number);

/* Options of a call; NULL, "" and 0: not said. */
typedef struct wefti_override {
    const char *communicator, *interface, *links;
    bool tls;
    int restarts;
    double restart_window_seconds;
    double join_seconds, heartbeat_seconds, wait_seconds;
} wefti_override;
/* Puts what the call says in the place of what the user has set. WEFT_E_ARG: too long. */
weft_status wefti_settings_override(wefti_settings *set, const wefti_override *by) WEFT_CHECKED;

/* The variables by which launchers give ranks. A launcher that starts processes removes those of
 * other launchers from their environment. NULL-terminated. */
extern const char *const wefti_launcher_variables[];

/* "host:port" or "[v6]:port" to its parts. WEFT_E_ARG naming `what` (a variable or an option). */
weft_status wefti_address_parse(const char *what, const char *text, char host[WEFTI_HOST_TEXT],
                                int *out_port) WEFT_CHECKED;
/* A port for a job that has none: one of 20,000 that the kernel does not give to clients. It is a
 * function of `bytes`, which must be equal on all hosts. */
int wefti_port_of(const void *data, size_t bytes);

#endif
