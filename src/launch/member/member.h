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
    const char *interface; /* to connect from; "" any */
    const char *job;       /* as the scheduler's; "" */
    wefti_secret secret;
    bool tls;             /* as the scheduler */
    int32_t rank;         /* wanted; -1: any */
    int32_t size;         /* expected; -1: whatever the scheduler says */
    const char *node;     /* node id; "" */
    const char *host;     /* identity of the host; "" this one's own, wefti_host_identity */
    double join_seconds;  /* also for a scheduler that is lost later; 0: 600 */
    double leave_seconds; /* 0: 5 */
} wefti_member_options;

typedef struct wefti_member wefti_member;

weft_status wefti_member_join(const wefti_member_options *options, wefti_member **out) WEFT_CHECKED;
/* No member, but a word from what started a rank of the job: how its process has ended. It goes its
 * way in a thread of its own. */
weft_status wefti_member_report(const wefti_member_options *options, const wefti_end *end,
                                wefti_member **out) WEFT_CHECKED;
/* Waits until it has come, `seconds` at most; or until it is known that nobody answers. Frees. */
void wefti_member_report_end(wefti_member *report, double seconds, bool only_once);
/* Not a member either, but the launcher of these ranks. In a thread of its own it finds out
 * whether the scheduler is there, and later learns which process failed the job. */
weft_status wefti_member_look(const wefti_member_options *options, const wefti_span *ranks,
                              wefti_member **out) WEFT_CHECKED;
/* Whether it still looks, or has not brought its word. */
bool wefti_member_is_under_way(wefti_member *member);
/* For a watcher: whether it has found the scheduler, even if the scheduler has gone since. */
bool wefti_member_has_reached(wefti_member *member);
/* For a watcher: whether the job is over, and the end that caused it. */
bool wefti_member_is_over(wefti_member *member, wefti_end *out);
/* For a watcher that has found the scheduler: whether members have left after unlike calls. Asks
 * the scheduler, for `seconds` at most. */
bool wefti_member_is_unlike(wefti_member *member, double seconds, wefti_abort_reason *out);
int32_t wefti_member_rank(const wefti_member *member);
int32_t wefti_member_size(const wefti_member *member);
uint64_t wefti_member_generation(const wefti_member *member);
const int32_t *wefti_member_hosts(const wefti_member *member); /* [size], counted from 0 */

/* The network interface through which the scheduler is reached, "lo" on one host. */
weft_status wefti_member_interface(wefti_member *member,
                                   char out[WEFTI_INTERFACE_TEXT]) WEFT_CHECKED;

/* All-gather of cards of equal size. Any number of times, from one thread at a time. */
weft_status wefti_member_allgather(wefti_member *member, const void *entry, size_t bytes,
                                   void *entries);
wefti_exchange wefti_member_exchange(wefti_member *member); /* the same as a table */

/* From now on heartbeats say where `position` (may be NULL) stands, and a verdict breaks `comm`;
 * both must live until leave. */
void wefti_member_watch(wefti_member *member, wefti_comm *comm, wefti_position *position);
/* WEFT_OK, or the verdict on this job, or that the scheduler is lost. */
weft_status wefti_member_check(wefti_member *member) WEFT_CHECKED;
/* This process gives up: everybody gets `message`. */
void wefti_member_fail(wefti_member *member, int failed, const char *message);
/* The same when this rank has found that ranks have made unlike calls; none of them is blamed. */
void wefti_member_found_mismatch(wefti_member *member, const char *message);
/* Waits until all have come here, leave_seconds at most and not at all after a failure, which is
 * returned. Frees. `records` (may be NULL): for the scheduler to compare. NULL is legal. */
weft_status wefti_member_close(wefti_member *member, const wefti_call_records *records);

#endif
