/* When a lost process is started again, as a pure state machine: events with their times go in, and
 * the time of the next start comes out. It holds no clocks and calls nothing. The scheduler decides
 * whether a process may follow; the launcher asks this machine when. docs/control-plane.md has the
 * table of states, tests/launch/test_restart.c explores it.
 *
 * A process that was lost after a steady run is replaced at once. One that keeps failing at its
 * start is replaced after pauses that double: else it would use up all restarts within a second. */
#ifndef WEFTI_LAUNCH_RESTART_H
#define WEFTI_LAUNCH_RESTART_H

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
/* It was lost by itself (`failed`), or has ended for the sake of others, and another one may
 * follow. Returns the pause in ns. */
int64_t wefti_restart_lost(wefti_restart *r, const wefti_restart_rule *rule, bool failed,
                           int64_t now_ns);
/* Whether the next one may start. */
bool wefti_restart_is_due(const wefti_restart *r, int64_t now_ns);

#endif
