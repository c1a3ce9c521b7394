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

/* Finds the task to which this pod belongs. `index` is the pod's number, from the variable
 * `index_name`. If there is one task, it is that one; else the task whose list has this host at
 * that number. There must be tasks. WEFT_E_ARG names variables and values if no task fits, or if a
 * list is malformed or has another length than its number says. */
weft_status wefti_volcano_find(wefti_variables v, const char *index_name, int index,
                               const char *host_name, wefti_volcano *out) WEFT_CHECKED;

#endif
