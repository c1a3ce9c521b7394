/* What a launch consists of: which ranks run here (place.c), their environment
 * (settings.c), and the watch over them (watch.c). launch.c puts them together. */
#ifndef WEFTI_LAUNCH_PARTS_H
#define WEFTI_LAUNCH_PARTS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/memory.h"
#include "launch/env/env.h"
#include "launch/spawn/logs.h"
#include "launch/member/member.h"
#include "recovery/recovery.h"
#include "launch/scheduler/scheduler.h"
#include "launch/spawn/spawn.h"
#include "weft/launch.h"

/* Which part of the job is this host's. */
typedef struct wefti_launch_place {
    int size, first_rank, count; /* ranks of the job; of them here */
    int hosts, host;
    int *host_begin;                      /* [hosts + 1]: first ranks; to be freed */
    bool serves;                          /* the scheduler runs here */
    char address[WEFTI_HOST_TEXT];        /* what it listens on; "" loopback */
    bool by_interface;                    /* which is a network interface's name */
    int port;                             /* 0: any */
    char scheduler[WEFTI_HOST_TEXT + 16]; /* where processes go; "" what the scheduler says */
} wefti_launch_place;
weft_status wefti_launch_place_find(const weft_launch_options *options,
                                    wefti_launch_place *out) WEFT_CHECKED;

typedef struct wefti_process {
    pid_t process; /* 0: not started */
    int handle;    /* to poll for its end; -1: the kernel has no such thing */
    bool ended, failed;
    int code, signal;  /* how it ended */
    bool killed;       /* since it is dead to the others */
    bool of_all;       /* it was said that all that run then are started again */
    int starts;        /* how often this rank was started, also by launchers before this one */
    bool undecided;    /* it has ended, and the scheduler is asked whether another one may follow */
    double asked_at;   /* since when */
    bool parted;       /* the scheduler, which is elsewhere, says that the job goes on without it */
    wefti_restart row; /* its starts, and the pause before the next one */
    wefti_again follows; /* amid that pause: the scheduler's answer */
    bool given_up;       /* it was another launcher's at last, or there was no answer: no report */
    wefti_log *log;
} wefti_process;

typedef struct wefti_launch {
    const weft_launch_options *options;
    wefti_settings set; /* where the options say nothing */
    uint64_t number;    /* of this launch, as in `mark` */
    wefti_launch_place place;
    wefti_arena *arena;
    char *program;         /* path of the command */
    int folder_lock;       /* a descriptor; with a folder only. -1: none */
    char *folder, *secret; /* of the run, mode 0700; the file of the secret */
    bool own_secret;       /* made for this run */
    char mark[64];         /* "WEFT_RUN=..." */
    char scheduler_text[WEFTI_HOST_TEXT + 16];
    wefti_reaper *reaper;
    wefti_scheduler *scheduler; /* NULL: on another host */
    wefti_scheduler
        *standby;            /* the one that stands by; NULL: it runs elsewhere, or there is none */
    wefti_report *report[2]; /* what tells that one of an end here, and of one that failed */
    wefti_watch *look;       /* watches that scheduler; NULL: nobody does */
    pid_t *servers;          /* [options->servers]; 0: not started */
    const char *server_list; /* where they are, as WEFT_SERVERS; NULL: there are none */
    wefti_process *processes; /* [place.count] */
    pid_t *past;              /* processes that others have replaced */
    int64_t past_count, past_room;
    wefti_restart_budget restarts; /* of one process, or of all, as they were told */
    pid_t *hooks;                  /* commands of --on-restart that run: hook.c */
    int64_t hook_count, hook_room;
    int failed;                /* the process whose failure is reported; -1: none */
    bool over;                 /* by the end of a process on another host */
    wefti_end end;             /* that one */
    bool unlike;               /* ranks have left after unlike calls, without a scheduler here... */
    wefti_abort_reason reason; /* ...and what it says of that */
    int64_t notes;             /* of the scheduler, that were told */
    int parted;                /* processes without which the job goes on */
    int stopped_by;            /* the signal of a request to stop; 0: none */
} wefti_launch;

/* servers.c: the servers of the options, before the processes and behind them. */
weft_status wefti_launch_start_servers(wefti_launch *l) WEFT_CHECKED;
void wefti_launch_end_servers(wefti_launch *l);
weft_status wefti_launch_server_settings(const wefti_launch *l, char ***out) WEFT_CHECKED;

/* hook.c: --on-restart, if it was given. rank -1: of all ranks. */
void wefti_hook_run(wefti_launch *l, int32_t rank, const char *reason);
void wefti_hook_check(wefti_launch *l); /* tells of those that have failed */
void wefti_hook_end(wefti_launch *l);   /* waits for them a moment, then ends them */
typedef struct wefti_hook_facts {
    char job[16]; /* its name */
    int32_t rank; /* -1: all */
    const char *reason;
    int64_t count; /* restarts that this launcher has made */
} wefti_hook_facts;
weft_status wefti_launch_hook_settings(const wefti_launch *l, const wefti_hook_facts *facts,
                                       char ***out) WEFT_CHECKED;
/* The environment of this host's process number `local`, in the arena. */
/* In TMPDIR, of the run. Folders of launchers that were killed with their reapers go. */
weft_status wefti_launch_make_folder(wefti_launch *l) WEFT_CHECKED;
void wefti_launch_remove_folder(wefti_launch *l);
weft_status wefti_launch_settings(const wefti_launch *l, int local, char ***out) WEFT_CHECKED;

/* Returns when all processes have ended. */
weft_status wefti_launch_watch(wefti_launch *l) WEFT_CHECKED;
/* "rank 2 (process 4711) ended with exit code 3" */
void wefti_launch_end(const wefti_launch *l, int local, wefti_end *out);
/* The scheduler, wherever it is, hears that process number `local` has ended (report.c). */
void wefti_launch_report(wefti_launch *l, int local);
/* Whether a process on another host has failed the job. */
bool wefti_launch_is_over(const wefti_launch *l, wefti_end *out);
/* Hosts whose launchers start later learn that the job has failed, too (report.c). */
void wefti_launch_look(wefti_launch *l);
/* Fails if another launcher starts ranks of this one, as the scheduler says within `seconds`. */
weft_status wefti_launch_check_claim(const wefti_launch *l, double seconds) WEFT_CHECKED;
void wefti_launch_wait_for_late(wefti_launch *l);
void wefti_launch_report_end(wefti_launch *l);
/* Starts another process in place of one that has ended, with the same rank. */
weft_status wefti_launch_restart(wefti_launch *l, int local) WEFT_CHECKED;
/* standby.c: runs a scheduler that stands by, if the standby's address is this host's. */
weft_status wefti_launch_stand_by(wefti_launch *l, const wefti_secret *secret) WEFT_CHECKED;
/* Whether the job has a scheduler already, at `address`. */
bool wefti_launch_runs_at(const char *address, const wefti_settings *set,
                          const wefti_secret *secret);
/* Where a scheduler of the job listens: at `address`, "" any. Texts are borrowed. */
wefti_scheduler_site wefti_launch_site(const wefti_launch_place *p, const wefti_settings *set);
/* add.c: where the running job is to which processes are added. Before anything else. */
weft_status wefti_launch_find_job(wefti_launch *l) WEFT_CHECKED;
/* keep.c: seats on a host without the scheduler, where lost ranks are started again, or processes
 * are added. */
/* Until this launcher has its seats; then the place is theirs. WEFT_E_STOPPED: the job has ended
 * without it, or a request to stop came. */
weft_status wefti_launch_await_seats(wefti_launch *l) WEFT_CHECKED;
/* A note: the scheduler does not answer, where it was sought, and for how long. */
void wefti_launch_say_that_it_seeks(const wefti_launch *l);
/* Whether the scheduler is elsewhere, and decides which processes start here. */
bool wefti_launch_keeps(const wefti_launch *l);
/* How many processes the seat of process number `local` has lost. */
int wefti_launch_deaths(const wefti_launch *l, int local);
/* Whether another process may follow this one, which has ended. */
wefti_again wefti_launch_again(wefti_launch *l, int local);
/* Ends whatever is left of them, at once. */
void wefti_launch_clear(wefti_launch *l);

#endif
