/* One process's side of the control plane (the other is launch/scheduler/scheduler.h). A thread
 * keeps the connection. So heartbeats go on while the program computes, and an abort reason
 * arrives while it waits. Every call returns within a time limit. */
#ifndef WEFTI_MEMBER_H
#define WEFTI_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "launch/auth.h"
#include "launch/wire/wire.h"
#include "launch/socket.h"

typedef struct wefti_member_options {
    const char *scheduler; /* host:port; may start later than this */
    const char *standby;   /* host:port of the scheduler that follows it; NULL, "": none */
    const char *interface; /* to connect from; "" any */
    const char *job;       /* as the scheduler's; "" */
    wefti_secret secret;
    bool tls;         /* as the scheduler */
    int32_t rank;     /* wanted; -1: any */
    int32_t size;     /* expected; -1: whatever the scheduler says */
    const char *node; /* node id; "" */
    const char *host; /* identity of the host; "" this one's own, wefti_host_identity */
    const wefti_identity *identity; /* what it runs, copied; NULL: nothing is said of it */
    const char *facts;              /* what all processes of the job have in common, in words; "" */
    double join_seconds;            /* also for a scheduler that is lost later; 0: 600 */
    bool outlives;            /* the job goes on while no scheduler is there, for join_seconds */
    double heartbeat_seconds; /* with a standby: a silent scheduler is lost after it; 0: 10 */
    double leave_seconds;     /* 0: 5 */
    uint64_t launcher;        /* of a launcher: its number, of no other one; 0: this process's. Of a
                                 member: that of its launcher; 0: it has none */
    wefti_span ranks; /* of a launcher that reports: all that it starts; count 0: that one */
} wefti_member_options;

typedef struct wefti_member wefti_member;

weft_status wefti_member_join(const wefti_member_options *options, wefti_member **out) WEFT_CHECKED;
int32_t wefti_member_rank(const wefti_member *member);
int32_t wefti_member_size(const wefti_member *member);
uint64_t wefti_member_generation(wefti_member *member);
const int32_t *wefti_member_hosts(const wefti_member *member); /* [size], counted from 0 */

/* The network interface through which the scheduler is reached, "lo" on one host. */
weft_status wefti_member_interface(wefti_member *member,
                                   char out[WEFTI_INTERFACE_TEXT]) WEFT_CHECKED;

/* The key of messages between the ranks of this world: of no other job and no other generation. */
void wefti_member_data_key(wefti_member *member, unsigned char out[WEFTI_DIGEST_BYTES]);

/* All-gather of cards of equal size. Any number of times, from one thread at a time. */
weft_status wefti_member_allgather(wefti_member *member, const void *entry, size_t bytes,
                                   void *entries);
wefti_exchange wefti_member_exchange(wefti_member *member); /* the same as a table */

/* From now on heartbeats say where `position` (may be NULL) stands, and a verdict or a death breaks
 * `comm`; both must live until leave, or until another communicator is watched. */
void wefti_member_watch(wefti_member *member, wefti_comm *comm, wefti_position *position);
/* WEFT_OK, or the verdict on this job, or that the scheduler is lost. */
weft_status wefti_member_check(wefti_member *member) WEFT_CHECKED;
/* This process gives up: all members get `message`. Their status is WEFT_E_TIMEOUT or WEFT_E_LOST
 * if `status` is that, else WEFT_E_PEER. If `failed` is another rank, the scheduler first waits a
 * moment for the word of that rank. */
void wefti_member_fail(wefti_member *member, weft_status status, int failed, const char *message);
/* The same when this rank has found that ranks have made unlike calls; none of them is blamed. */
void wefti_member_found_mismatch(wefti_member *member, const char *message);
/* Waits until all have come here, leave_seconds at most and not at all after a failure, which is
 * returned. Frees. `records` (may be NULL): for the scheduler to compare. NULL is legal. */
weft_status wefti_member_close(wefti_member *member, const wefti_call_records *records);

/* --- mending (mending.c): as comm/world.h says */

bool wefti_member_mends(const wefti_member *member);       /* ranks that die are started again */
bool wefti_member_resizes(const wefti_member *member);     /* the world may change its size */
bool wefti_member_is_newcomer(const wefti_member *member); /* this one was, and has not mended */
/* Blocks until the scheduler has heard it, or the world is halted or ended. */
void wefti_member_arm(wefti_member *member, const wefti_elastic *elastic);
/* Breaks the communicator that is watched now, from any thread. */
void wefti_member_break(wefti_member *member, int failed, const char *message);
bool wefti_member_is_halted(const wefti_member *member);
/* Up to MEND. The first call of a newcomer returns for the mend that it joined in. */
weft_status wefti_member_mend(wefti_member *member, const wefti_stand *at,
                              wefti_mend *out) WEFT_CHECKED;
weft_status wefti_member_whole(wefti_member *member) WEFT_CHECKED;

/* --- launchers, which are no members */

/* Tells the scheduler how a process of the job has ended, in a thread of its own. */
typedef struct wefti_report wefti_report;
weft_status wefti_report_begin(const wefti_member_options *options, const wefti_end *end,
                               wefti_report **out) WEFT_CHECKED;
bool wefti_report_is_under_way(wefti_report *report);
/* Waits until the scheduler has heard it, `seconds` at most; with only_once, also until one call
 * has failed. Frees. */
void wefti_report_end(wefti_report *report, double seconds, bool only_once);

/* The launcher of these ranks looks for the scheduler, in a thread of its own. Later it learns from
 * it which process failed the job. */
typedef struct wefti_watch wefti_watch;
weft_status wefti_watch_begin(const wefti_member_options *options, const wefti_span *ranks,
                              wefti_watch **out) WEFT_CHECKED;
/* The same for a launcher that starts lost ranks again: it asks for the seats of keep->seats. */
weft_status wefti_watch_begin_keeping(const wefti_member_options *options, const wefti_keep *keep,
                                      wefti_watch **out) WEFT_CHECKED;
/* Whether the scheduler has heard which ranks this launcher starts, `seconds` at most. Else
 * WEFT_PENDING, or why it may not start them: the launcher that does is there. */
weft_status wefti_watch_registered(wefti_watch *watch, double seconds) WEFT_CHECKED;
/* Its seats, and the size of the job's first world. WEFT_PENDING: they are not given yet;
 * WEFT_E_STOPPED: the job has ended; else the reason why it gets none. */
weft_status wefti_watch_seats(wefti_watch *watch, wefti_span *out, int32_t *out_size) WEFT_CHECKED;
/* How many processes that seat has lost, as far as is known here. */
int32_t wefti_watch_deaths(wefti_watch *watch, int32_t rank);
/* Asks, once for each `starts`, whether another process may follow the one that has ended so. Then
 * says what is known of the answer. Without a scheduler: WEFTI_AGAIN_NO. */
wefti_again wefti_watch_again(wefti_watch *watch, const wefti_end *end, int32_t starts);
/* Whether the scheduler has said that the world can go on without a process of this launcher: then
 * one that has no seats asks as well. */
bool wefti_watch_may_ask(wefti_watch *watch);
bool wefti_watch_is_seeking(wefti_watch *watch); /* it has not found the scheduler, and calls */
/* It has found the scheduler, even if the scheduler has gone since. */
bool wefti_watch_has_found(wefti_watch *watch);
/* The same, if it does so within `seconds`. */
bool wefti_watch_finds(wefti_watch *watch, double seconds);
/* Whether the job is over, and the end that caused it. */
bool wefti_watch_is_over(wefti_watch *watch, wefti_end *out);
/* Whether members have left after unlike calls. Asks the scheduler, for `seconds` at most. */
bool wefti_watch_is_unlike(wefti_watch *watch, double seconds, wefti_abort_reason *out);
void wefti_watch_end(wefti_watch *watch); /* frees */

/* Whether a scheduler that has the job answers at options->scheduler: within `seconds`, and before
 * one call has failed. */
bool wefti_member_finds_job(const wefti_member_options *options, double seconds);
/* The same of another address (NULL or "": false), with the secret and the network of `like`.
 * Blocks for 3 s at most. */
bool wefti_member_runs_at(const wefti_member_options *like, const char *address);
/* Whether the scheduler has ended in good order, or the job is over. */
bool wefti_watch_has_parted(wefti_watch *watch);
/* WEFT_OK, or the reason for which the scheduler has lost its job, and left it to the other one. */
weft_status wefti_watch_deposed(wefti_watch *watch) WEFT_CHECKED;
/* WEFT_OK, or why it finds no scheduler any more, after join_seconds. */
weft_status wefti_watch_check(wefti_watch *watch) WEFT_CHECKED;

/* Asks the scheduler how the job does, for `seconds` at most, in a thread of its own. */
typedef struct wefti_question wefti_question;
weft_status wefti_question_begin(const wefti_member_options *options, double seconds,
                                 wefti_question **out) WEFT_CHECKED;
/* Waits for the answer, and frees. *out_rank: [out->ranks], to be freed; NULL if there are none.
 * *out_by_standby: the scheduler at options->standby has answered. */
weft_status wefti_question_end(wefti_question *question, wefti_job_health *out,
                               wefti_rank_health **out_rank, bool *out_by_standby) WEFT_CHECKED;

#endif
