/* Jobs of Volcano. Its plugin `env` gives each pod the number that it has within its task, and its
 * plugin `svc` tells all pods of all tasks: VC_<TASK>_HOSTS has the names of the task's pods in the
 * order of their numbers, with commas between them, and VC_<TASK>_NUM says how many there are. */
#ifndef WEFTI_LAUNCH_ENV_VOLCANO_H
#define WEFTI_LAUNCH_ENV_VOLCANO_H

#include "launch/env/values.h"

/* Whether the plugin `svc` says anything. */
bool wefti_volcano_has_tasks(wefti_variables v);

enum { WEFTI_VOLCANO_NAME = 100 };
typedef struct wefti_volcano {          /* a task */
    char list_name[WEFTI_VOLCANO_NAME]; /* "VC_WORKER_HOSTS" */
    const char *list;                   /* its value */
    int size;
    char first_host[WEFTI_HOST_TEXT];
} wefti_volcano;

/* The task whose pod number `index` (a variable of the name `index_name` says so) is this one, of
 * that host name: the only one there is, else the one whose list has this host in that place. There
 * are tasks. WEFT_E_ARG naming variables and values when none is this one, when a list is
 * malformed, or its number is another. */
weft_status wefti_volcano_find(wefti_variables v, const char *index_name, int index,
                               const char *host_name, wefti_volcano *out) WEFT_CHECKED;

#endif
