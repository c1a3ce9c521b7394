/* Whether and when a lost process is started again, as two pure machines: events with their times
 * go in. They hold no clocks. The scheduler asks the budget whether a process may follow; the
 * launcher asks the row of starts when. docs/design/restart.md has the table of states,
 * tests/launch/test_restart.c explores both.
 *
 * A process that was lost after a steady run is replaced at once. One that keeps failing at its
 * start is replaced after pauses that double: else it would use up all restarts within a second. */
#ifndef WEFTI_RESTART_H
#define WEFTI_RESTART_H

#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_restart_rule {
    int64_t first_ns;   /* the pause before the second start in a row; each further one doubles */
    int64_t longest_ns; /* no pause is longer */
    int64_t steady_ns;  /* a process that ran so long ends the row */
} wefti_restart_rule;

/* 1 s, 60 s or a quarter of the time for joining, and 60 s. */
wefti_restart_rule wefti_restart_rule_of(int64_t join_ns);

/* The starts of one rank, all zero at first. */
typedef struct wefti_restart {
    enum { WEFTI_RESTART_NEVER, WEFTI_RESTART_RUNS, WEFTI_RESTART_PAUSES } state;
    int32_t failures; /* in a row */
    int64_t since_ns; /* of the run */
    int64_t due_ns;   /* when the pause ends */
} wefti_restart;

/* Events. A process has started. */
void wefti_restart_started(wefti_restart *r, int64_t now_ns);
/* It was lost, or its world was, and another one may follow. Returns the pause in ns. */
int64_t wefti_restart_lost(wefti_restart *r, const wefti_restart_rule *rule, int64_t now_ns);
/* Whether the next one may start. */
bool wefti_restart_is_due(const wefti_restart *r, int64_t now_ns);

/* How many restarts a job may have: so many within a window of time, after which they no longer
 * count. Processes that fail within a second of each other have one cause, as a host or a switch,
 * and count once. A process that fails again counts again, and so does one that fails after the
 * world has gone on. Freed with wefti_restart_budget_free. */
enum { WEFTI_RESTART_WINDOW_SECONDS = 3600, WEFTI_RESTART_NOBODY = -1 };
typedef struct wefti_restart_entry {
    int64_t at_ns;
    int64_t cause;  /* of neighbors that have the same; ascending */
    int32_t number; /* of the process that was lost; WEFTI_RESTART_NOBODY: none, or not known */
} wefti_restart_entry;
typedef struct wefti_restart_budget {
    int32_t most;               /* causes within the window */
    int64_t window_ns;          /* > 0 */
    int64_t all;                /* processes that were started again */
    wefti_restart_entry *entry; /* [count] within the window, the oldest first */
    int64_t count, room;
    bool went_on; /* since the last entry */
} wefti_restart_budget;

/* seconds 0: WEFTI_RESTART_WINDOW_SECONDS */
wefti_restart_budget wefti_restart_budget_of(int32_t most, double seconds);
void wefti_restart_budget_free(wefti_restart_budget *b);
/* How many count now. */
int32_t wefti_restart_used(const wefti_restart_budget *b, int64_t now_ns);
/* The world goes on, or begins anew: what fails from now on has another cause. */
void wefti_restart_went_on(wefti_restart_budget *b);
/* Whether one more may be, for the process with this number; takes it. False also without memory.
 */
bool wefti_restart_may(const wefti_restart_budget *b, int32_t number, int64_t now_ns);
bool wefti_restart_take(wefti_restart_budget *b, int32_t number, int64_t now_ns);
/* The process with this number has no seat any more: its restarts no longer count. */
void wefti_restart_forget(wefti_restart_budget *b, int32_t number);
/* How often it has failed in a row, with the failure of now: each within two minutes of the one
 * before. *out_ns: since the first. */
int32_t wefti_restart_row(const wefti_restart_budget *b, int32_t number, int64_t now_ns,
                          int64_t *out_ns);
/* With so many it keeps failing: a world that may go on without it does. */
enum { WEFTI_RESTART_KEEPS_FAILING = 5 };
/* How often the host with ranks [first, first + count) has failed in a row, if a spare host is to
 * take its place; else 0. The host keeps failing, or this would be the last restart. */
int32_t wefti_restart_leaves_out(const wefti_restart_budget *b, int32_t number, int32_t first,
                                 int32_t count, int64_t now_ns, int64_t *out_ns);

#endif
