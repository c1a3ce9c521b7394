/* A process that is the scheduler of a job and nothing else (MS_ROLE=MS_SCHED). */
#include <string.h>

#include "launch/env/env.h"
#include "launch/scheduler/scheduler.h"
#include "weft/launch.h"

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
    bool named = *l.set.interface;
    wefti_scheduler_options o = {.size = l.place.size,
                                 .address = named ? l.set.interface : l.scheduler_host,
                                 .awaits_name = !named,
                                 .port = l.scheduler_port,
                                 .job = l.job,
                                 .tls = l.set.tls,
                                 .hosted_by = -1,
                                 .join_seconds = l.set.join_seconds,
                                 .heartbeat_seconds = l.set.heartbeat_seconds,
                                 .wait_seconds = l.set.wait_seconds};
    WEFT_TRY(wefti_secret_find(l.set.secret_file, &o.secret, NULL));
    weft_status status = wefti_scheduler_serve(&o, announce, context, out_table);
    explicit_bzero(&o.secret, sizeof o.secret);
    return status;
}
