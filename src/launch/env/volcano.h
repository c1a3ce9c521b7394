/* Jobs of Volcano. Its plugin `env` gives each pod the number that it has within its task, and its
 * plugin `svc` tells all pods of all tasks: VC_<TASK>_HOSTS has the names of the task's pods in the
 * order of their numbers, with commas between them, and VC_<TASK>_NUM says how many there are. */
#ifndef WEFTI_LAUNCH_ENV_VOLCANO_H
#define WEFTI_LAUNCH_ENV_VOLCANO_H

#include "launch/env/values.h"

enum { WEFTI_VOLCANO_NAME = 100 };
typedef struct wefti_volcano {          /* a task */
    char list_name[WEFTI_VOLCANO_NAME]; /* "VC_WORKER_HOSTS" */
    const char *list;                   /* its value */
    int size;
    char first_host[WEFTI_HOST_TEXT];
} wefti_volcano;

#endif
