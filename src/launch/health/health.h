/* Whether a job makes steps: what a scheduler says (member/ask.c), and what follows from it. */
#ifndef WEFTI_LAUNCH_HEALTH_H
#define WEFTI_LAUNCH_HEALTH_H

#include "launch/env/env.h"
#include "launch/wire/wire.h"

/* Where the scheduler of a job on this host is, by the environment of the job's processes. */
typedef struct wefti_job_place {
    char scheduler[WEFTI_PLACE_TEXT]; /* "host:port" */
    char standby[WEFTI_PLACE_TEXT];   /* "": there is none */
    char secret_file[WEFTI_PATH_TEXT];
    bool tls;
} wefti_job_place;

/* The one job of `weft launch` whose processes this user may look at. WEFT_E_NOT_FOUND: there is
 * none. WEFT_E_ARG: there are several, whose schedulers are named. `folder`: /proc. */
weft_status wefti_job_find(const char *folder, wefti_job_place *out) WEFT_CHECKED;

/* Where that job is: at `scheduler` (and `standby`, which may be NULL), else where the environment
 * says, else on this host. */
weft_status wefti_job_place_of(const char *scheduler, const char *standby,
                               wefti_job_place *out) WEFT_CHECKED;

/* Fills in all that follows of the answer, with `rank` of [job->ranks]. */
weft_status wefti_health_judge(const wefti_job_health *job, const wefti_rank_health *rank,
                               double limit_seconds, weft_health *out) WEFT_CHECKED;

#endif
