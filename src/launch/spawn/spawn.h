/* Processes: starts a process in a group of its own, and finds and ends all processes that came of
 * it.
 *
 * No process outlives a launch. Each process leads a process group, which is killed with it. The
 * kernel kills the process when the launcher dies (PR_SET_PDEATHSIG). The reaper, a small process
 * that only waits for the launcher's end, then kills the groups. It also kills processes that left
 * their group, which it finds by a variable in their environment. */
#ifndef WEFTI_LAUNCH_SPAWN_H
#define WEFTI_LAUNCH_SPAWN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct wefti_spawn {
    const char *path; /* of the program */
    char *const *words, *const *environment;
    int output, errors;     /* become its stdout and stderr */
    const cpu_set_t *cores; /* NULL: all */
} wefti_spawn;

/* Where the command `word` is: along `folders` (the value of PATH; NULL: not set), or itself when
 * it has a slash; "weft" may be `self`. wefti_free it. WEFT_E_NOT_FOUND. */
weft_status wefti_command_find(const char *word, const char *folders, const char *self,
                               char **out) WEFT_CHECKED;
/* Leader of a new group, killed when this thread ends, nothing open but stdio, stdin empty. Returns
 * when the program itself runs; WEFT_E_IO when it does not. */
weft_status wefti_process_start(const wefti_spawn *what, pid_t *out) WEFT_CHECKED;

/* A process that outlives this one for a moment, to clear up. `mark`: "NAME=value" that all
 * processes have in their environment. `secret` and `folder` are removed; either may be "". Call it
 * before anything is opened that should be closed when this process ends. */
typedef struct wefti_reaper wefti_reaper;
weft_status wefti_reaper_start(const char *mark, const char *folder, const char *secret,
                               wefti_reaper **out) WEFT_CHECKED;
void wefti_reaper_add_group(wefti_reaper *reaper, pid_t group);
/* If the reaper has been killed, starts another, which knows all groups. Call it from time to time.
 */
void wefti_reaper_check(wefti_reaper *reaper);
void wefti_reaper_end(wefti_reaper *reaper); /* all is cleared up; NULL is legal */

/* Kill every process of this user with `mark` in its environment and reap those that are children
 * of this one. Returns how many there were. Async-signal-safe. */
int wefti_kill_marked(const char *mark);

#endif
