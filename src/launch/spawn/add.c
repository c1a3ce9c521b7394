/* weft launch --add: processes for a job that runs already. Its scheduler gives them numbers
 * (keep.c), and they join with these. */
#include <stdio.h>
#include <string.h>

#include "launch/health/health.h"
#include "launch/spawn/launch.h"

/* The secret that the user names, else that of the job, if it runs on this host. NULL: the user's
 * own, which is read later. */
static weft_status take_secret(wefti_launch *l, const wefti_job_place *job) {
    const char *file = l->options->secret_file ? l->options->secret_file
                       : *job->secret_file     ? job->secret_file
                       : *l->set.secret_file   ? l->set.secret_file
                                               : NULL;
    if (!file) return WEFT_OK;
    l->secret = wefti_strdup(file);
    WEFT_REQUIRE(l->secret, WEFT_E_NOMEM, "no memory for a path");
    return WEFT_OK;
}

weft_status wefti_launch_find_job(wefti_launch *l) {
    wefti_job_place job;
    WEFT_TRY(wefti_job_place_of(l->options->job, l->options->scheduler, l->options->standby, &job));
    (void)snprintf(l->set.standby, sizeof l->set.standby, "%s", job.standby);
    (void)snprintf(l->place.scheduler, sizeof l->place.scheduler, "%s", job.scheduler);
    if (*job.job) (void)snprintf(l->set.job, sizeof l->set.job, "%s", job.job);
    l->set.tls = l->set.tls || job.tls;
    return take_secret(l, &job);
}
