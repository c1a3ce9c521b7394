/* The scheduler of a job: one thread that members connect to (launch/member/member.h). It assigns
 * ranks, carries the all-gathers by which members find each other, and watches. It tells all
 * members which rank has died, stopped, given up, or keeps the others waiting. It computes
 * nothing, and no data passes through it. docs/design/control-plane.md describes its behaviour in
 * time. */
#ifndef WEFTI_SCHEDULER_H
#define WEFTI_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "launch/env/env.h"
#include "launch/wire/wire.h"

enum { WEFTI_WAIT_SECONDS = 1800 }; /* unless another limit is said */

typedef struct wefti_scheduler_options {
    int32_t size;          /* members */
    const char *address;   /* "" loopback; a network interface, or an address of this machine */
    bool awaits_name;      /* the address is of a launcher, and its name may not lead here yet */
    bool awaits_interface; /* the address is an interface's name, which may not be there yet */
    /* As of wefti_patience, while it waits for that. */
    bool (*waits)(void *context, int turn, const char *why);
    void *context;
    int port;        /* 0: chosen by the system */
    const char *job; /* name of this run, that members must give too; "" */
    wefti_secret secret;
    bool tls;             /* members must want it too */
    uint64_t generation;  /* of the world that is made; 0: a new one */
    int32_t hosted_by;    /* the rank whose process hosts the scheduler; -1: none */
    bool repeats;         /* worlds may follow each other; else one, and the job is over */
    bool has_other;       /* the job knows two schedulers, of which this is one: standby.c */
    bool fills_no_seats;  /* the launcher that runs it, if one does, starts no ranks by itself */
    bool stands_by;       /* the other one has the job: takes only members that come back from it */
    wefti_span own;       /* ranks of the launcher that runs it; count 0: it starts none */
    uint64_t launcher;    /* its number; 0: no launcher runs it */
    const char *identity; /* of the process that hosts it, a member: as in weft_world_options; NULL:
                             the first member says it */
    int32_t restarts;     /* so often processes that die are started again; 0: never */
    double restart_window_seconds; /* within this time; 0: WEFTI_RESTART_WINDOW_SECONDS */
    double join_seconds;           /* 0: 600 */
    double heartbeat_seconds;      /* 0: 10 */
    double wait_seconds;           /* 0: WEFTI_WAIT_SECONDS */
} wefti_scheduler_options;

/* Where a scheduler runs, and for which job. The texts are borrowed by the options. */
typedef struct wefti_scheduler_site {
    int32_t size;
    const char *host;      /* as the members know it; "" loopback */
    const char *interface; /* to listen on, unless `host` is an address; "" none */
    int port;              /* 0: chosen by the system */
    const char *job;       /* "" none */
    int32_t hosted_by;     /* the rank whose process it is in; -1: none */
} wefti_scheduler_site;
/* Options by the user's settings. The caller adds the secret. */
wefti_scheduler_options wefti_scheduler_options_of(const wefti_settings *set,
                                                   const wefti_scheduler_site *site);

typedef struct wefti_scheduler wefti_scheduler;
typedef enum wefti_scheduler_state {
    WEFTI_SCHEDULER_FORMING, /* members are missing */
    WEFTI_SCHEDULER_RUNNING,
    WEFTI_SCHEDULER_LEFT,   /* all have left in peace */
    WEFTI_SCHEDULER_FAILED, /* see wefti_scheduler_abort_reason */
} wefti_scheduler_state;

/* Listens when this returns. Options are copied. */
weft_status wefti_scheduler_start(const wefti_scheduler_options *options,
                                  wefti_scheduler **out) WEFT_CHECKED;
/* "127.0.0.1:4711", for the members; the port alone. */
const char *wefti_scheduler_address(const wefti_scheduler *scheduler);
int wefti_scheduler_port(const wefti_scheduler *scheduler);

/* These may be called from any thread. */
/* Waits until the state differs from `state`, `seconds` at most (0: not at all). Returns the
 * state. */
wefti_scheduler_state wefti_scheduler_wait(wefti_scheduler *scheduler, wefti_scheduler_state state,
                                           double seconds);
/* End the job for a reason that is known elsewhere ("rank 2 ended with exit code 3"). The first
 * verdict stays. */
void wefti_scheduler_fail(wefti_scheduler *scheduler, weft_status status, int32_t failed,
                          const char *message);
/* The process of a rank has ended, successfully or not. While members are missing no other process
 * will replace it, so the world fails; later its connection says more. A failed process also ends
 * the job for ranks that never join: launchers that watch are told. */
void wefti_scheduler_ended(wefti_scheduler *scheduler, const wefti_end *end);
/* The same, where processes may be started again: how the last of the `starts` processes of a rank
 * has ended. YES: the world waits for one more. ALL: for new processes of all ranks. Else NO. */
wefti_again wefti_scheduler_awaits(wefti_scheduler *scheduler, const wefti_end *end, int starts);
/* A process has ended, and the world goes on without it: an elastic job. */
bool wefti_scheduler_goes_on(wefti_scheduler *scheduler, const wefti_end *end);
/* Why all were started again the last time; wefti_free it. NULL: no memory. */
char *wefti_scheduler_again_text(wefti_scheduler *scheduler);
/* The next note for users (a process of another job was refused, a host is left out), behind the
 * first *count. *count then counts it too. wefti_free it. NULL: there is none. */
char *wefti_scheduler_noted(wefti_scheduler *scheduler, int64_t *count);
/* How many processes of that rank are dead to the others. One of them may run still. */
int wefti_scheduler_deaths(wefti_scheduler *scheduler, int32_t rank);
/* Whether one has failed so, and which came first. */
bool wefti_scheduler_is_over(wefti_scheduler *scheduler, wefti_end *out);
/* Whether that rank has left in peace. */
bool wefti_scheduler_has_left(wefti_scheduler *scheduler, int32_t rank);
/* Whether one of ranks first .. first + count - 1 has been told of the verdict, or has ended. */
bool wefti_scheduler_has_told(wefti_scheduler *scheduler, int32_t first, int32_t count);
/* Whether the launcher of these ranks watches, and whether it ever did. */
bool wefti_scheduler_is_watched(wefti_scheduler *scheduler, int32_t first, int32_t count);
bool wefti_scheduler_was_watched(wefti_scheduler *scheduler, int32_t first, int32_t count);
/* Whether the job has failed of members that left after unlike calls. */
bool wefti_scheduler_is_unlike(wefti_scheduler *scheduler);
/* Seconds for which missing members may still come; 0: all are here, or the time is up. A job that
 * has failed counts the same way, because late members are told. */
double wefti_scheduler_seconds_to_come(wefti_scheduler *scheduler);
/* WEFT_OK, or what the job has failed of. */
weft_status wefti_scheduler_check(wefti_scheduler *scheduler) WEFT_CHECKED;
/* Why the job failed, "" if it did not; and the position of each rank, one line each, "" if no
 * rank ever came. wefti_free both; NULL: no memory. */
char *wefti_scheduler_abort_reason(wefti_scheduler *scheduler);
char *wefti_scheduler_table(wefti_scheduler *scheduler);
/* Whether it stands by, and no member has come back to it. */
bool wefti_scheduler_is_idle(wefti_scheduler *scheduler);
/* Whether it has, or has had, the world: a standby scheduler that has taken over, any other one
 * once all members have come. */
bool wefti_scheduler_has_world(wefti_scheduler *scheduler);
/* Whether it has lost so many ranks that the other scheduler may have the job. */
bool wefti_scheduler_is_deposed(wefti_scheduler *scheduler);
/* Whether a launcher is connected. */
bool wefti_scheduler_has_launcher(wefti_scheduler *scheduler);
/* Messages under way are still sent, for a second at most. NULL is legal. */
void wefti_scheduler_stop(wefti_scheduler *scheduler);

/* A process that is the scheduler and nothing else: returns when the job is over, with what it
 * failed of. *out_table (may be NULL): to be freed. `announce` (may be NULL) is called with the
 * address once members can come. */
weft_status wefti_scheduler_serve(const wefti_scheduler_options *options,
                                  void (*announce)(void *context, const char *address),
                                  void *context, char **out_table) WEFT_CHECKED;

#endif
