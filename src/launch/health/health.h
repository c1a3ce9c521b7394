/* Whether a job makes steps: what a scheduler says (member/ask.c), and what follows from it. */
#ifndef WEFTI_LAUNCH_HEALTH_H
#define WEFTI_LAUNCH_HEALTH_H

#include "launch/env/env.h"
#include "launch/wire/wire.h"

/* A job on this host, by the environment of one of its processes. */
typedef struct wefti_job_place {
    char scheduler[WEFTI_PLACE_TEXT]; /* "host:port" */
    char standby[WEFTI_PLACE_TEXT];   /* "": there is none */
    char secret_file[WEFTI_PATH_TEXT];
    char job[WEFTI_HOST_TEXT];    /* WEFT_JOB; "": it has no name */
    char name[16];                /* differs between the jobs of a host */
    char folder[WEFTI_PATH_TEXT]; /* its process's working directory; "": not known */
    int size;                     /* ranks at the start; 0: not known */
    bool elsewhere;               /* in another network namespace than this process */
    bool tls;
} wefti_job_place;

/* The jobs of `weft launch` whose processes this user may look at, each once. `folder`: /proc. Free
 * with wefti_free. */
weft_status wefti_jobs_find(const char *folder, wefti_job_place **out,
                            int64_t *out_count) WEFT_CHECKED;
/* The job of that name; NULL: the one job there is. One that is elsewhere counts only if no other
 * does. WEFT_E_NOT_FOUND: there is none. WEFT_E_ARG: there are several, which are named. */
weft_status wefti_job_find(const char *folder, const char *name, wefti_job_place *out) WEFT_CHECKED;

/* The name of the job of this network namespace with that scheduler and secret. */
void wefti_job_name(const char *scheduler, const char *secret_file, char out[16]);

/* Where a job is: the one of that name, else at `scheduler` (and `standby`), else where the
 * environment says, else the one on this host. All may be NULL. A job on this host also says its
 * secret. */
weft_status wefti_job_place_of(const char *name, const char *scheduler, const char *standby,
                               wefti_job_place *out) WEFT_CHECKED;

/* Fills in all that follows of the answer, with `rank` of [job->ranks]. */
weft_status wefti_health_judge(const wefti_job_health *job, const wefti_rank_health *rank,
                               double limit_seconds, weft_health *out) WEFT_CHECKED;

#endif
