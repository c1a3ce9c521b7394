/* A process that is the scheduler of a job and nothing else (MS_ROLE=MS_SCHED). */
#include <string.h>

#include "launch/env/env.h"
#include "launch/scheduler/scheduler.h"
#include "weft/launch.h"

const char *weft_launch_recovery(void) {
    wefti_launcher l;
    return wefti_launcher_find(&l) >= 0 ? l.recovery_path : NULL;
}

bool weft_launch_is_scheduler(void) {
    wefti_launcher l;
    return wefti_launcher_find(&l) >= 0 && l.is_scheduler;
}

weft_status weft_launch_serve(void (*announce)(void *context, const char *address), void *context,
                              char **out_table) {
    wefti_launcher l;
    WEFT_TRY(wefti_launcher_find(&l));
    WEFT_REQUIRE(l.is_scheduler, WEFT_E_ARG,
                 "this process is not a scheduler: MS_ROLE is not MS_SCHED");
    wefti_scheduler_site site = {.size = l.place.size,
                                 .host = l.scheduler_host,
                                 .interface = l.set.interface,
                                 .port = l.scheduler_port,
                                 .job = l.job,
                                 .hosted_by = -1};
    wefti_scheduler_options o = wefti_scheduler_options_of(&l.set, &site);
    WEFT_TRY(wefti_secret_find(l.set.secret_file, l.set.home, &o.secret, NULL));
    weft_status status = wefti_scheduler_serve(&o, announce, context, out_table);
    explicit_bzero(&o.secret, sizeof o.secret);
    return status;
}
